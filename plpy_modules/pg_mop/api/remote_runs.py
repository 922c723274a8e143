"""The other servers that a training call is at work on: there it has a run of its own, a guest
(sql/postgresql/13_servers.sql)."""

import dataclasses
import time

import psycopg2

from mop_udf.aggregate import SOURCE_CHANGED
from pg_mop.api.planning import Planning
from pg_mop.backend import object_table, settings
from pg_mop.backend.database import MopError, quote_identifier
from pg_mop.catalog import RemoteCatalog
from pg_mop.connections.sessions import SessionLost
from pg_mop.packing.placement import this_database
from pg_mop.run.servers import Server

BACK_SECONDS = 10  # in which a server that is back must answer all that it is asked


class RemoteRuns(Planning):
    """The part of a training call that knows of other servers: `servers`, {name: Server}, the coordinator's own (None)
    among them."""

    def _server(self, worker):
        """The Server of a place; None: the coordinator's own."""
        return self.servers[None if worker is None else self.board.server(worker)]

    def _remote_servers(self):
        return [server for server in self.servers.values() if not server.home]

    def _reach_servers(self):
        """Look whether the servers that hold segments serve: they come into `servers`. Raises MopError."""
        used = {one.server for s in self.segments.values() for one in (s, *s.copies)} - self.engine.away.keys()
        names = sorted(used - {None})
        if names:
            self.servers[None].info["identity"] = this_database(self.db)
        for name in names:
            self.servers[name] = self._reach(self.engine.links[name])
        if self.use_gpus and not self.options["trainers"]:
            for name in used:
                if not self.servers[name].info["gpus"]:
                    raise (
                        settings.no_gpu(self.options["keras_backend"])
                        if name is None
                        else MopError(
                            f"use_gpus is set, but server {quote_identifier(name)} has no GPU, or its TensorFlow is for "
                            f"processors alone",
                            hint="There: make install FRAMEWORK=cuda; or call with use_gpus => FALSE.",
                        )
                    )

    def _away(self):
        """{name of a server that is away and holds segments: (the Way there, why it is away)}."""
        names = {segment.server for segment in self.segments.values()} & self.engine.away.keys()
        return {name: (self.engine.target(name), self.engine.away[name].detail) for name in names}

    def _reach(self, link):
        """The Server that a link leads to, which has no guest yet. Raises MopError."""
        self._check_functions(link)
        remote_run = RemoteCatalog(link.target, link.schema, self.db.check_interrupts)
        return Server(link.target.server, link.target, remote_run, None, link.schema, link.info)

    def take_back(self, name):
        """A server that the run has done without answers again: it comes into `servers`, with a new guest, and without
        anything of the one before. Raises MopError; its `sqlstate` is that of SOURCE_CHANGED where other rows are there
        now."""
        tables = [packed for packed in (self.source, self.validation) if packed is not None]
        until = time.monotonic() + BACK_SECONDS

        def check_interrupts():
            self.db.check_interrupts()
            if time.monotonic() > until:
                raise SessionLost(f"no answer within {BACK_SECONDS} s")

        link, server = self.engine.reopen(name, tables, check_interrupts), None
        try:
            self._check_rows(link)
            server = self._reach(link)
            self._open_remote_run(server)
        except BaseException as error:
            link.session.close()
            if server is not None:
                server.catalog.close()
            if isinstance(error, (psycopg2.Error, SessionLost)):
                raise link.target.refused(error) from None
            raise
        link.check_interrupts = self.db.check_interrupts
        self.servers[name] = server

    def _check_rows(self, link):
        """The rows on a server that is back must be those with which the run began. Raises MopError."""
        name = link.target.server
        for segment in (one for s in self.segments.values() for one in (s, *s.copies) if one.server == name):
            try:
                same = link.run(segment.fingerprint_sql) == [(segment.fingerprint,)]
            except psycopg2.errors.UndefinedTable:
                same = False
            if not same:
                raise MopError(
                    f"the rows of segment {segment.key} on server {quote_identifier(name)} are others now",
                    sqlstate=SOURCE_CHANGED,
                )

    def _check_copies(self):
        """The copies of segments must have the very rows. Raises MopError."""
        known = self.catalog.known_copies(self.segments)

        def known_of(segment, copy):
            return known.get((segment.server, copy.server, copy.fingerprint), ())

        for key, segment in self.segments.items():
            if segment.server in self.engine.away:
                self.segments[key] = self._as_known(key, segment, known_of(segment, segment.copies[0]))
        pairs = [
            (self._packed(dataset), segment, copy)
            for (dataset, _), segment in self.segments.items()
            for copy in segment.copies
            if segment.fingerprint not in known_of(segment, copy)
        ]
        wanted = list(dict.fromkeys((packed, one) for packed, segment, copy in pairs for one in (segment, copy)))
        digests = dict(zip(wanted, self.engine.contents(wanted) if wanted else ()))
        for packed, segment, copy in pairs:
            if digests[packed, segment] != digests[packed, copy]:
                where = "here" if copy.server is None else f"on server {quote_identifier(copy.server)}"
                raise MopError(
                    f'the copy of segment {segment.key} of "{packed.text}" {where} has other rows',
                    detail=f"It is {copy.table}. Somebody has written to one of the two.",
                    hint="Pack the table anew; or RESET pg_mop.replicas; to train without copies.",
                    sqlstate="55000",
                )

    def _as_known(self, key, segment, fingerprints):
        """A segment on a server that is away, with the fingerprint that an earlier run found there. Raises MopError."""
        if not fingerprints:
            away = self.engine.away[segment.server]
            raise MopError(
                f"{away.message}, and no run of yours has compared its rows with their copies",
                detail=away.detail,
                sqlstate=away.sqlstate,
                hint="Call again when it is back.",
            )
        before = self.earlier.segments.get(key) if self.earlier is not None else None
        return dataclasses.replace(segment, fingerprint=before if before in fingerprints else fingerprints[-1])

    def _check_functions(self, link):
        """On another server its own object table counts: it must have the same custom functions. Raises MopError."""
        wanted = {name: digest for c in self.configurations for name, digest in c["functions"]}
        if not wanted:
            return
        table = f"{link.schema}.{object_table.within_schema(self.functions)}"
        try:
            there, detail = dict(link.run(object_table.digests_sql(table, list(wanted)))), None
        except (
            psycopg2.errors.UndefinedTable,
            psycopg2.errors.UndefinedColumn,
            psycopg2.errors.InsufficientPrivilege,
        ) as error:
            there, detail = {}, str(error).splitlines()[0]
        for name in sorted(wanted):
            if there.get(name) != wanted[name]:
                raise MopError(
                    f"server {quote_identifier(link.target.server)} has not the same custom function {name!r}",
                    detail=detail or f"It {'is another' if name in there else 'is none'} of {table} there.",
                    hint=f"On that server, as a superuser: SELECT {link.schema}.load_custom_function(...) "
                    f"with the same object.",
                    sqlstate="42704",
                )

    def _reopen_remote_runs(self):
        """Take the guests of a run that goes on over from its earlier coordinator, and register what they have done:
        (Catalog, number) of each."""
        known, done = self.catalog.remote_runs(self.run_id), set(self.catalog.finished_units(self.run_id))
        remote_runs = [server for server in self._remote_servers() if server.name in known]
        for server in remote_runs:
            server.run_id = server.catalog.leads = known[server.name]
            server.catalog.reopen_run(server.run_id)
            for unit in server.catalog.finished_units(server.run_id):
                if unit not in done:
                    self.catalog.register(self.run_id, server.catalog.report(server.run_id, unit))
        here = self.catalog.models(self.run_id)  # now that all is registered
        for server in remote_runs:
            # what has been trained elsewhere since
            late = [
                stage
                for stage, model in server.catalog.models(server.run_id).items()
                if model["state_table"] is not None and (stage not in here or model["version"] < here[stage]["version"])
            ]
            if late:
                server.catalog.release_states(server.run_id, late)
        return [(server.catalog, server.run_id) for server in remote_runs]

    def _open_remote_run(self, server):
        """Open a guest on another server where there is none yet; drop those of runs that are gone."""
        # of another role, or by another name of the server, it is somebody else's
        db, identity = self.db, self.servers[None].info["identity"]
        leader = f"{identity}/{db.value('SELECT current_user::regrole::oid')}/{server.name}"
        there = server.catalog.led_by(leader)
        known = {self.catalog.remote_runs(run).get(server.name) for run in {self.run_id, *there.values()}}
        for remote_run in there.keys() - known:
            try:
                server.catalog.drop_run(remote_run)
            except (psycopg2.Error, MopError) as error:
                db.plpy.log(f"pg_mop: run {remote_run} on server {server.name} is left behind: {error}")
        if server.run_id is None:
            server.run_id = server.catalog.leads = self.open_run_of(
                server.catalog,
                "remote_run",
                self._output_name,
                [{**c, "error": None, "weights_sql": None} for c in self._noted()],
                {"leader": leader, "run": self.run_id, "arguments": {}, "settings": {}},
            )
            self.catalog.add_remote_run(self.run_id, server.name, server.run_id)

    def _drop_remote_runs(self):
        """All states have come home: nothing is left of the run on other servers."""
        for server in self._remote_servers():
            # first: a guest that no run knows is dropped by whoever comes there next
            self.catalog.forget_remote_run(self.run_id, server.name)
            try:
                server.catalog.close_run(server.run_id, "finished")
                server.catalog.drop_run(server.run_id)
            except (psycopg2.Error, MopError) as error:
                self.db.warning(
                    f"run {server.run_id} on server {server.name} is left behind: {str(error).strip()}",
                    hint="The next call that trains there drops it.",
                )
            finally:
                server.catalog.close()

    def _close_remote_runs(self, outcome):
        """The call ends before its time: note (status, error text) in the guests."""
        for server in self._remote_servers():
            try:
                server.catalog.SECONDS = 1
                if server.run_id is not None:
                    self._close_remote_run(server, outcome)
                server.catalog.close()
            except (MopError, SessionLost, psycopg2.Error) as trouble:
                self.db.plpy.log(f"pg_mop: run {server.run_id} on server {server.name} is left open: {trouble}")

    def _close_remote_run(self, server, outcome):
        """It stays for who resumes the run."""
        server.catalog.close_run(server.run_id, *outcome)
