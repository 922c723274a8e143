"""Servers join a run in progress (mop_add_server).

A server that joins gets copies of segments of all servers of the run, about as many as suit its strength. A session of the
coordinator copies them, one after the other, while units go on. Then the server is one of the run's, as a server that is
back (run/failover.py): it has a remote run and worker sessions, which train on the copies. The summary of the packed table
notes the copies, so that a resumed run and later runs find them.

A server that cannot be used, or fails before it has all copies, does not join, and the run goes on as it was.
"""

import dataclasses
import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import psycopg2

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.connections.sessions import SessionLost, WorkerSession, message_of
from pg_mop.engines.base import Segment
from pg_mop.engines.postgresql import content_sql
from pg_mop.packing.partitions import columns_sql, foreign_options, partition_name, quoted
from pg_mop.packing.placement import guest_stem, make_on
from pg_mop.packing.summary import Entry, entries_now, note
from pg_mop.run.run import Run
from pg_mop.run.workers import SILENT_SECONDS, Workers

Key = int  # of a training segment
DISK = 1.3, 64 << 20  # times the rows' bytes, and bytes besides, that must be free
MOST_SESSIONS = 1000  # of a run (mop_want_sessions)
STEP_SECONDS = 10  # for a server that joins to do what the coordinator waits for, between two copies
LOCK_SECONDS = 3  # for the locks on its tables
CLEAN_SECONDS = 2  # for a server to drop what a join has left
SAME = "mop_join.same"  # a setting of the relay session: whether a copy has the segment's rows


@dataclasses.dataclass
class Guest:
    """A server that is joining. `left`: the segments that are to be copied; `tables`: (schema, name) of their copies there;
    `found`: the segments with copies that another run has made there, which are compared, not made; `copies`: those that are
    complete; `gone`: noted copies that are not there;
    `kept`: (schema, name) of those that are there, but that the role cannot use."""

    name: str
    link: Any
    left: deque[Key]
    tables: dict[Key, tuple[str, str]]
    began: float
    copies: dict[Key, Segment] = dataclasses.field(default_factory=dict)
    found: set[Key] = dataclasses.field(default_factory=set)
    gone: list[Entry] = dataclasses.field(default_factory=list)
    kept: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    relay: WorkerSession | None = None

    @property
    def made(self) -> list[str]:
        """The tables (quoted) that this run has made there."""
        return [quoted(table) for key, table in self.tables.items() if key not in self.found]


class Joining:
    """Lets servers join one run."""

    def __init__(self, run: Run, workers: Workers, hosts: Any) -> None:
        """`hosts`: the RemoteRuns."""
        self.run, self.workers, self.hosts = run, workers, hosts
        self.guests: dict[str, Guest] = {}

    @property
    def busy(self) -> list[WorkerSession]:
        """The relay sessions that copy segments now."""
        return [guest.relay for guest in self.guests.values() if guest.relay is not None]

    def invite(self, name: str, by: str) -> None:
        """A role asks for a server to join."""
        run = self.run
        if name in run.servers or name in self.guests or name in run.given_up:
            run.db.info(f"run {run.run_id}: server {name} is one of its servers already")
            return
        try:
            self._begin(name)
        except (MopError, psycopg2.Error, SessionLost) as error:
            self._refuse(name, error)
        else:
            run.db.info(f"run {run.run_id}: server {name} is joining, as {by} asks; segments are being copied there")

    def _begin(self, name: str) -> None:
        """Make the tables of the copies, and begin to copy. Raises MopError, and errors of the server's link."""
        run, packed = self.run, self.run.unit_specs.packed["training"]
        if not run.replicated or not packed.keyed or packed.distributed:
            raise MopError(
                "the run has no copies of segments", hint="SET pg_mop.replicas = 2; before the training call."
            )
        link = self.hosts.meet(name)
        link.check_interrupts, link.lock_timeout = self.hosts.within(STEP_SECONDS), f"{LOCK_SECONDS}s"
        segments = {key: run.unit_specs.segments["training", key] for key in self._chosen(link)}
        guest = Guest(name, link, deque(segments), {}, time.monotonic())
        self._find(guest)
        need = int(DISK[0] * sum(s.bytes for key, s in segments.items() if key not in guest.found)) + DISK[1]
        free = link.info.get("free_bytes")
        if free is not None and free < need:
            raise MopError(
                f"its disk has {free >> 20} MB left, and the copies of {len(segments)} segments need {need >> 20} MB",
                sqlstate="53100",
            )
        schema, table = packed.table.schema, packed.table.name
        columns, count = self._columns(packed), len(run.board.segments)
        self.guests[name] = guest
        for key in [key for key in segments if key not in guest.found]:
            partition = schema, partition_name(guest_stem(table, run.run_id), key, count)
            if partition in guest.kept:
                raise MopError(f"table {quoted(partition)}, a copy of segment {key}, is there and cannot be read")
            make_on(run.db, link, f"copy of segment {key} of {packed.table}", partition, key, columns)
            guest.tables[key] = partition  # (not before: a table that is in the way is somebody's)
        self._copy(guest)

    def _find(self, guest: Guest) -> None:
        """Find the copies there that another run has noted in the summary since this one began."""
        packed = self.run.unit_specs.packed["training"]
        for entry in entries_now(self.run.catalog, packed.summary_table):
            key, server, schema, table = entry
            if server != guest.name or key not in guest.left or key in guest.found:
                continue
            known = quote_literal(quoted((schema, table)))
            ((there, usable),) = guest.link.run(
                f"SELECT to_regclass({known}) IS NOT NULL, coalesce((SELECT c.relkind = 'r' AND "
                f"has_table_privilege(c.oid, 'SELECT') FROM pg_class c WHERE c.oid = to_regclass({known})), false)"
            )
            if usable:
                guest.tables[key] = schema, table
                guest.found.add(key)
            elif not there:
                guest.gone.append(entry)
            else:  # (it is never replaced)
                guest.kept.add((schema, table))

    def _columns(self, packed: Any) -> list[tuple[str, str]]:
        return list(self.run.db.columns(packed.table).items())

    def _chosen(self, link: Any) -> list[Key]:
        """The segments to be copied: of each server as many as the new one's part of all strengths, and one at least."""
        run = self.run
        new = strength(link.info)
        part = new / (new + sum(strength(server.info) for server in run.servers.values()))
        held: dict[str | None, list[Segment]] = {}
        for (dataset, _), segment in run.unit_specs.segments.items():
            if dataset == "training":
                held.setdefault(segment.server, []).append(segment)
        chosen = []
        for own in held.values():
            own.sort(key=lambda segment: (len(segment.copies), segment.key))
            chosen += [segment.key for segment in own[: math.ceil(len(own) * part)]]
        return sorted(chosen)

    # --- copying --------------------------------------------------------------------------------------
    def _copy(self, guest: Guest) -> None:
        """Begin to copy the next segment. Raises MopError."""
        run, packed, key = self.run, self.run.unit_specs.packed["training"], guest.left[0]
        relay = run.sessions.relay(None, run.servers[None], f"join {guest.name}")
        source = self._source(key)
        columns = self._columns(packed)
        names = ", ".join(quote_identifier(name) for name, _ in columns)
        made = [("pg_temp.mop_copy", guest.name, guest.tables[key])]
        if source.server is not None:
            made.append(("pg_temp.mop_source", source.server, run.db.parse_name(source.table)))
        rows = source.table if source.server is None else "pg_temp.mop_source"
        if key in guest.found:
            guest.link.share(quoted(guest.tables[key]))  # nobody writes to it after the comparison
            digests = " = ".join(f"({content_sql(packed, table, key)})" for table in ("pg_temp.mop_copy", rows))
            fill, then = f"SELECT set_config('{SAME}', ({digests})::text, false)", f"; SELECT current_setting('{SAME}')"
        else:
            fill = f"INSERT INTO pg_temp.mop_copy ({names}) SELECT {names} FROM {rows} WHERE {packed.of_segment(key)}"
            then = ""
        guest.relay = relay
        try:
            relay.begin(
                f"{relay.clean_sql()}BEGIN; "
                + "".join(
                    f"CREATE FOREIGN TABLE {name} ({columns_sql(columns)}) {foreign_options(server, table)}; "
                    for name, server, table in made
                )
                + f"{fill}; DROP FOREIGN TABLE {', '.join(name for name, _, _ in made)}; COMMIT{then}"
            )
        except SessionLost:
            relay.close()  # the next wait for it reports that

    def _source(self, key: Key) -> Segment:
        """A segment, or its copy where its server is away. Raises MopError."""
        try:
            return self.run.unit_specs.segments["training", key].at(self.run.servers)
        except LookupError:
            raise MopError(f"segment {key} is on no server that the run has now") from None

    def ended(self, relay: WorkerSession, error: Exception | None) -> None:
        """A relay session has copied a segment, or has failed."""
        guest = next(guest for guest in self.guests.values() if guest.relay is relay)
        guest.relay, guest.link.check_interrupts = None, self.hosts.within(STEP_SECONDS)
        if isinstance(error, SessionLost):
            relay.close()
        try:
            if error is not None:
                raise error
            if guest.left[0] in guest.found and relay.rows() != [("true",)]:
                raise self._differs(guest.left[0])
            self._copied(guest)
            if guest.left:
                self._copy(guest)
                return
            self._admit(guest.name)
        except (MopError, psycopg2.Error, SessionLost) as trouble:
            self._refuse(guest.name, trouble)
        else:
            self._welcome(guest)

    def _copied(self, guest: Guest) -> None:
        """A segment has been copied: check that the copy has its rows. Raises MopError, and errors of the servers."""
        run, packed, key = self.run, self.run.unit_specs.packed["training"], guest.left.popleft()
        segment, table = run.unit_specs.segments["training", key], quoted(guest.tables[key])
        guest.link.share(table)
        source = self._source(key)
        # (the copy was read after the run began: equal fingerprints say that nobody wrote in between)
        if run.servers[source.server].catalog.fingerprint(source.fingerprint_sql) != source.fingerprint:
            raise MopError(f"the rows of segment {key} have changed since the run began")
        copy = run.unit_specs.engine.copy_there(packed, guest.name, table, key)
        if copy is None or (copy.rows, copy.bytes) != (segment.rows, segment.bytes):
            raise self._differs(key)
        guest.copies[key] = copy

    def _differs(self, key: Key) -> MopError:
        return MopError(f"the copy of segment {key} has other rows than the segment")

    def _admit(self, name: str) -> None:
        """All is copied: the server gets a remote run. Raises MopError, and errors of the servers."""
        run = self.run
        try:
            self.hosts.admit(name)
            run.states.add(name)
        except BaseException:
            if (server := run.servers.pop(name, None)) is not None:
                run.catalog.forget_remote_run(run.run_id, name)
                server.catalog.close()
            raise

    def _welcome(self, guest: Guest) -> None:
        """The server is one of the run's now: let it train."""
        run, name = self.run, guest.name
        del self.guests[name]
        segments, board = run.unit_specs.segments, run.board
        for key, copy in guest.copies.items():
            segment = segments["training", key]
            segments["training", key] = dataclasses.replace(segment, copies=(*segment.copies, copy))
            board.copies = {**board.copies, key: [*board.copies.get(key, [segment.server]), name]}
        for relay in run.sessions.relays.values():
            relay.prepared = False  # it lacks the foreign tables of that server
        more = max(1, min(len(guest.copies), strength(run.servers[name].info)))
        board.invite(name, more, run.sessions.by_worker)
        run.wanted = min(MOST_SESSIONS, run.wanted + more)
        run.catalog.call("mop_want_sessions", run.run_id, run.wanted)
        self._note(guest)
        run.db.info(
            f"run {run.run_id}: server {name} has joined, with copies of {len(guest.copies)} segments after "
            f"{time.monotonic() - guest.began:.1f} s"
        )
        self.workers.resize()

    def _note(self, guest: Guest) -> None:
        """Note the copies in the summary of the packed table, if the role may."""
        run, summary = self.run, self.run.unit_specs.packed["training"].summary_table
        if not guest.made:
            return
        new = [(key, guest.name, *guest.tables[key]) for key in guest.copies if key not in guest.found]
        try:
            why = note(run.catalog, summary, new, guest.gone)
            why = why and f"they cannot be noted in {summary}: {why}"
        except (MopError, psycopg2.Error) as error:
            if getattr(error, "pgcode", None) == "57014":
                raise
            why = message_of(error)
        if why is not None:
            run.db.notice(
                f"run {run.run_id}: the copies on server {guest.name} are of this run alone: {why}",
                hint=f"A later run does not find them. On that server: DROP TABLE {', '.join(guest.made)};",
            )

    # --- the end --------------------------------------------------------------------------------------
    def look(self) -> None:
        """End the relays to servers that do not answer."""
        for guest in self.guests.values():
            if guest.relay is not None and self.run.sessions.heartbeat(guest.link.target).look() > SILENT_SECONDS:
                guest.relay.close()

    def abandon(self) -> None:
        """The run has nothing left to do: no server joins it any more."""
        for name in list(self.guests):
            self._leave(name)
            self.run.db.info(f"run {self.run.run_id} has ended before server {name} could join")

    def _refuse(self, name: str, error: Exception) -> None:
        """A server does not join."""
        if getattr(error, "pgcode", None) == "57014":  # the call is cancelled
            raise error
        run = self.run
        self._leave(name)
        run.db.warning(
            f"run {run.run_id} goes on without server {name}, which does not join: {message_of(error)}",
            detail=getattr(error, "detail", None),
            hint=getattr(error, "hint", None),
        )

    def _leave(self, name: str) -> None:
        """Drop the copies of a server that does not join, as far as it answers."""
        guest = self.guests.pop(name, None)
        if guest is not None:
            if guest.relay is not None:
                guest.relay.cancel()
                guest.relay.close()
            guest.link.check_interrupts = self.hosts.within(CLEAN_SECONDS)
            tables = ", ".join(guest.made)
            try:
                if tables:
                    guest.link.run(f"ROLLBACK; SET lock_timeout = '{CLEAN_SECONDS}s'; DROP TABLE IF EXISTS {tables}")
            except (psycopg2.Error, SessionLost) as error:  # (the next join of this run replaces them)
                self.run.db.log(f"{tables} on server {name} are left behind: {message_of(error)}")
        self.hosts.part(name)


def strength(info: Mapping[str, Any]) -> int:
    """How many segments suit a server, from its description of itself: its GPUs, or else its cores."""
    return int(info["gpus"] or info["cores"])
