"""The other servers of a run. On each of them the run has a run of its own, its remote run (sql/postgresql/14_servers.sql)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg2

from mop_udf.aggregate import SOURCE_CHANGED
from pg_mop.backend import object_table, settings
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.call.segments import Segments
from pg_mop.call.servers import Server
from pg_mop.call.spec import RunSpec
from pg_mop.catalog import RemoteCatalog
from pg_mop.connections.sessions import SessionLost, within
from pg_mop.packing.partitions import this_database

BACK_SECONDS = 10  # a server that is back must answer everything within this time

OpenRun = Callable[[Any, str], int]


class RemoteRuns:
    """Opens, resumes and ends the remote runs of one run.

    `servers`: {name: Server}, the coordinator's own (None) among them; `open_run(catalog, leader)`: opens a remote run in
    a catalog and returns its number; `leader` names this run for the other server.
    """

    run_id: int | None = None

    def __init__(self, spec: RunSpec, segments: Segments, servers: dict[str | None, Server], open_run: OpenRun) -> None:
        self.spec, self.segments, self.servers, self.open_run = spec, segments, servers, open_run
        self.db, self.engine = spec.inputs.db, spec.inputs.engine

    @property
    def catalog(self) -> Any:
        """The coordinator's own catalog."""
        return self.servers[None].catalog

    @property
    def remote(self) -> list[Server]:
        return [server for server in self.servers.values() if not server.home]

    def reach(self) -> None:
        """Put the servers that hold segments into `servers`. Raises MopError if one of them cannot be used."""
        inputs = self.spec.inputs
        used = {one.server for s in self.segments.values() for one in (s, *s.copies)} - self.engine.away.keys()
        names = sorted(used - {None})
        if names or self.engine.away:  # (which may come back)
            self.servers[None].info["identity"] = this_database(self.db)
        for name in names:
            self.servers[name] = self._server(self.engine.links[name])
        if inputs.use_gpus and not inputs.options["trainers"]:
            for name in used:
                if not self.servers[name].info["gpus"]:
                    raise (
                        settings.no_gpu(inputs.options["keras_backend"])
                        if name is None
                        else MopError(
                            f"use_gpus is set, but server {quote_identifier(name)} has no GPU, or its TensorFlow is for "
                            f"CPUs only",
                            hint="There: make install FRAMEWORK=cuda; or call with use_gpus => FALSE.",
                        )
                    )

    def away(self) -> dict[str, tuple[Any, str]]:
        """{name: (connection target, reason)} of the servers that hold segments and do not answer."""
        names = {segment.server for segment in self.segments.values()} & self.engine.away.keys()
        return {name: (self.engine.target(name), self.engine.away[name].detail) for name in names}

    def _server(self, link: Any) -> Server:
        """The Server of a link, without a remote run yet. Raises MopError."""
        self._check_functions(link)
        catalog = RemoteCatalog(link.target, link.schema, self.db.check_interrupts)
        return Server(link.target.server, link.target, catalog, None, link.schema, link.info)

    def take_back(self, name: str) -> None:
        """A server that the run has given up answers again: put it into `servers`, with a new remote run and without
        anything of the old one.

        Raises MopError; its `sqlstate` is SOURCE_CHANGED if the server has other rows now.
        """
        link = self.engine.reopen(name, self.spec.inputs.tables, self.within(BACK_SECONDS))
        try:
            self._admit(name, link, self._check_rows)
        except BaseException:
            link.session.close()
            raise

    def _admit(self, name: str, link: Any, check: Callable[[Any], None] | None = None) -> None:
        """Put the server of a link into `servers`, with a remote run. `check(link)` may refuse it first. Raises MopError."""
        server = None
        try:
            if check is not None:
                check(link)
            server = self._server(link)
            self.open(server)
        except BaseException as error:
            if server is not None:
                server.catalog.close()
            if isinstance(error, (psycopg2.Error, SessionLost)):
                raise link.target.refused(error) from None
            raise
        link.check_interrupts = self.db.check_interrupts
        self.servers[name] = server

    def meet(self, name: str) -> Any:
        """The Link to a server that is to join the run, and is not in `servers` yet. Raises MopError."""
        inputs, identity = self.spec.inputs, self.servers[None].info["identity"]
        link = self.engine.reopen(name, (), self.within(BACK_SECONDS))
        try:
            # also those that are joining now, or that the run has given up
            known = {
                one.info["identity"]: other for other, one in self.engine.links.items() if other not in (None, name)
            }
            if link.info["identity"] in {identity, *known}:
                other = known.get(link.info["identity"])
                raise MopError(
                    f"server {quote_identifier(name)} is {f'server {quote_identifier(other)}' if other else 'this server'}, "
                    "under another name"
                )
            self._check_functions(link)
            if inputs.use_gpus and not inputs.options["trainers"] and not link.info["gpus"]:
                raise settings.no_gpu(inputs.options["keras_backend"])
        except BaseException as error:
            self.part(name)
            if isinstance(error, (psycopg2.Error, SessionLost)):
                raise link.target.refused(error) from None
            raise
        link.check_interrupts = self.db.check_interrupts
        return link

    def part(self, name: str) -> None:
        """Close the link to a server that does not join."""
        link = self.engine.links.pop(name, None)
        if link is not None:
            link.session.close()

    def admit(self, name: str) -> None:
        """Put a server that has been met into `servers`, with a remote run. Raises MopError."""
        link = self.engine.links[name]
        link.check_interrupts = self.within(BACK_SECONDS)
        self._admit(name, link)

    def within(self, seconds: float) -> Callable[[], None]:
        """A function to be called while another server is waited for; it raises SessionLost after so many seconds."""
        return within(seconds, self.db.check_interrupts)

    def _check_rows(self, link: Any) -> None:
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

    def _check_functions(self, link: Any) -> None:
        """A server uses its own object table, which must have the same custom functions. Raises MopError."""
        configurations = self.spec.configurations
        wanted = {name: digest for c in configurations for name, digest in c["functions"]}
        if not wanted:
            return
        table = f"{link.schema}.{object_table.within_schema(configurations.functions)}"
        try:
            found, detail = dict(link.run(object_table.digests_sql(table, list(wanted)))), None
        except (
            psycopg2.errors.UndefinedTable,
            psycopg2.errors.UndefinedColumn,
            psycopg2.errors.InsufficientPrivilege,
        ) as error:
            found, detail = {}, str(error).splitlines()[0]
        for name in sorted(wanted):
            if found.get(name) != wanted[name]:
                raise MopError(
                    f"server {quote_identifier(link.target.server)} has not the same custom function {name!r}",
                    detail=detail or f"It {'is another' if name in found else 'is none'} of {table} there.",
                    hint=f"On that server, as a superuser: SELECT {link.schema}.load_custom_function(...) "
                    f"with the same object.",
                    sqlstate="42704",
                )

    def reopen(self) -> list[tuple[Any, Any]]:
        """Take the remote runs over from the run's earlier coordinator, and register the units that they have finished.
        Returns (catalog, number) of each."""
        known, done = self.catalog.remote_runs(self.run_id), set(self.catalog.finished_units(self.run_id))
        servers = [server for server in self.remote if server.name in known]
        for server in servers:
            server.run_id = server.catalog.leads = known[server.name]
            server.catalog.reopen_run(server.run_id)
            for unit in server.catalog.finished_units(server.run_id):
                if unit not in done:
                    self.catalog.register(self.run_id, server.name, server.catalog.report(server.run_id, unit))
        registered = self.catalog.models(self.run_id)
        for server in servers:
            # states of stages that other servers have trained since
            late = [
                stage
                for stage, model in server.catalog.models(server.run_id).items()
                if model["state_table"] is not None
                and (stage not in registered or model["version"] < registered[stage]["version"])
            ]
            if late:
                server.catalog.release_states(server.run_id, late)
        return [(server.catalog, server.run_id) for server in servers]

    def open(self, server: Server) -> None:
        """Open a remote run if the server has none yet; drop the remote runs of runs that are gone."""
        # a remote run of another role, or under another name of the server, belongs to somebody else
        db, identity = self.db, self.servers[None].info["identity"]
        leader = f"{identity}/{db.value('SELECT current_user::regrole::oid')}/{server.name}"
        found = server.catalog.led_by(leader)
        known = {self.catalog.remote_runs(run).get(server.name) for run in {self.run_id, *found.values()}}
        for remote_run in found.keys() - known:
            try:
                server.catalog.drop_run(remote_run)
            except (psycopg2.Error, MopError) as error:
                db.log(f"run {remote_run} on server {server.name} is left behind: {error}")
        if server.run_id is None:
            server.run_id = server.catalog.leads = self.open_run(server.catalog, leader)
            self.catalog.add_remote_run(self.run_id, server.name, server.run_id)

    def drop(self) -> None:
        """All states are on the coordinator's server: drop the remote runs."""
        for server in self.remote:
            # first of all: the next call that trains there drops a remote run that no run knows
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

    def close(self, status: str, error: str) -> None:
        """The run ends before its time: note that in the remote runs, which stay for a resumed run unless the call
        leaves nothing behind."""
        for server in self.remote:
            try:
                server.catalog.hurry()
                if server.run_id is not None:
                    server.catalog.close_run(server.run_id, status, error)
                    if self.spec.application is not None:
                        server.catalog.drop_run(server.run_id)
                server.catalog.close()
            except (MopError, SessionLost, psycopg2.Error) as trouble:
                self.db.log(f"run {server.run_id} on server {server.name} is left open: {trouble}")
