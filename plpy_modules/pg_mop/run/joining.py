"""Servers join a run in progress (mop_add_server).

A server that joins gets copies of segments of all servers of the run, about as many as suit its strength. A session of the
coordinator copies them, one after the other, while units go on. Then the server is one of the run's, as a server that is
back (run/failover.py): it has a remote run and worker sessions, which train on the copies. The summary of the packed table
notes the copies, so that a resumed run and later runs find them.

A server that cannot be used, or fails before it has all copies, does not join, and the run goes on as it was.
"""

import dataclasses
import json
import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import psycopg2

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.connections.sessions import SessionLost, WorkerSession, message_of
from pg_mop.engines.base import COPIES, Segment
from pg_mop.packing.partitions import columns_sql, foreign_options, partition_name, quoted
from pg_mop.packing.placement import copy_stem, make_on
from pg_mop.run.context import RunContext
from pg_mop.run.workers import SILENT_SECONDS, Workers

Key = int  # of a training segment
DISK = 1.3, 64 << 20  # times the rows' bytes, and bytes besides, that must be free
MOST_SESSIONS = 1000  # of a run (mop_want_sessions)
CLEAN_SECONDS = 2  # for a server to drop what a join has left


@dataclasses.dataclass
class Guest:
    """A server that is joining. `left`: the segments that are to be copied; `tables`: (schema, name) of their copies there;
    `copies`: those that are complete."""

    name: str
    link: Any
    left: deque[Key]
    tables: dict[Key, tuple[str, str]]
    began: float
    copies: dict[Key, Segment] = dataclasses.field(default_factory=dict)
    relay: WorkerSession | None = None


class Joining:
    """Lets servers join one run."""

    def __init__(self, run: RunContext, hosts: Any, enabled: bool, workers: Workers, away: Mapping[str, Any]) -> None:
        """`hosts`: the RemoteRuns; `enabled`: states have copies (pg_mop.replicas > 1); `away`: the servers of the run that
        are given up now, by name."""
        self.run, self.hosts, self.enabled, self.workers, self.away = run, hosts, enabled, workers, away
        self.guests: dict[str, Guest] = {}

    @property
    def busy(self) -> list[WorkerSession]:
        """The relay sessions that copy segments now."""
        return [guest.relay for guest in self.guests.values() if guest.relay is not None]

    def invite(self, name: str, by: str) -> None:
        """A role asks for a server to join."""
        run = self.run
        if name in run.servers or name in self.guests or name in self.away:
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
        if not self.enabled or not packed.keyed or packed.distributed:
            raise MopError(
                "the run has no copies of segments", hint="SET pg_mop.replicas = 2; before the training call."
            )
        link = self.hosts.meet(name)
        segments = {key: run.unit_specs.segments["training", key] for key in self._chosen(link)}
        need = int(DISK[0] * sum(segment.bytes for segment in segments.values())) + DISK[1]
        free = link.info.get("free_bytes")
        if free is not None and free < need:
            raise MopError(
                f"its disk has {free >> 20} MB left, and the copies of {len(segments)} segments need {need >> 20} MB",
                sqlstate="53100",
            )
        schema, table = packed.table.schema, packed.table.name
        columns, count = self._columns(packed), len(run.board.segments)
        made = {
            key: (schema, partition_name(copy_stem(table, 1 + len(segment.copies)), key, count))
            for key, segment in segments.items()
        }
        guest = self.guests[name] = Guest(name, link, deque(segments), {}, time.monotonic())
        for key, partition in made.items():
            make_on(run.db, link, f"copy of segment {key} of {packed.table}", partition, key, columns)
            guest.tables[key] = partition  # (not before: a table that is in the way is somebody's)
        self._copy(guest)

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
        guest.relay = relay
        try:
            relay.begin(
                f"{relay.clean_sql()}BEGIN; "
                + "".join(
                    f"CREATE FOREIGN TABLE {name} ({columns_sql(columns)}) {foreign_options(server, table)}; "
                    for name, server, table in made
                )
                + f"INSERT INTO pg_temp.mop_copy ({names}) SELECT {names} FROM "
                f"{source.table if source.server is None else 'pg_temp.mop_source'} WHERE {packed.of_segment(key)}; "
                f"DROP FOREIGN TABLE {', '.join(name for name, _, _ in made)}; COMMIT"
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
        guest.relay = None
        if isinstance(error, SessionLost):
            relay.close()
        try:
            if error is not None:
                raise error
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
            raise MopError(f"the copy of segment {key} has other rows than the segment")
        guest.copies[key] = copy

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
        self.workers.wanted = min(MOST_SESSIONS, self.workers.wanted + more)
        run.catalog.call("mop_want_sessions", run.run_id, self.workers.wanted)
        self._note(guest)
        run.db.info(
            f"run {run.run_id}: server {name} has joined, with copies of {len(guest.copies)} segments after "
            f"{time.monotonic() - guest.began:.1f} s"
        )
        self.workers.resize()

    def _note(self, guest: Guest) -> None:
        """Note the copies in the summary of the packed table, if the role may."""
        run, packed = self.run, self.run.unit_specs.packed["training"]
        summary = str(packed.summary_table).replace("%", "%%")
        entries = json.dumps([[key, guest.name, *guest.tables[key]] for key in guest.copies])
        try:
            run.catalog.execute(
                f"UPDATE {summary} SET {COPIES} = (coalesce(nullif({COPIES}, ''), '[]')::jsonb || %s::jsonb)::text",
                (entries,),
            )
        except psycopg2.Error as error:
            if error.pgcode == "57014":
                raise
            run.db.notice(
                f"run {run.run_id}: the copies on server {guest.name} are of this run alone: {message_of(error)}",
                hint=f"A later run does not find them. On that server: DROP TABLE "
                f"{', '.join(map(quoted, guest.tables.values()))};",
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
            tables = ", ".join(map(quoted, guest.tables.values()))
            try:
                if tables:
                    guest.link.run(f"ROLLBACK; SET lock_timeout = '{CLEAN_SECONDS}s'; DROP TABLE IF EXISTS {tables}")
            except (psycopg2.Error, SessionLost) as error:  # (another join of the packed table replaces them)
                self.run.db.plpy.log(f"pg_mop: {tables} on server {name} are left behind: {message_of(error)}")
        self.hosts.part(name)


def strength(info: Mapping[str, Any]) -> int:
    """How many segments suit a server, from its description of itself: its GPUs, or else its cores."""
    return int(info["gpus"] or info["cores"])
