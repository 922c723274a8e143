"""A run goes on without a server.

Other servers have copies of its segments, and the coordinator's server has copies of its states.

A server that is away is given up: the coordinator forgets that server's remote run, durably, before it begins any unit
anew on copies. Units that the remote run has committed, but that do not count yet, will therefore never count, and every
unit counts once. A server that is back gets a new remote run.
"""

import time
from typing import Any

import psycopg2

from mop_udf.aggregate import SOURCE_CHANGED
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.connections.sessions import Heartbeat
from pg_mop.connections.targets import Target
from pg_mop.run.instructions import Instructions, LeaveServer
from pg_mop.run.run import Run
from pg_mop.run.workers import Workers

BACK_SECONDS = 1.0, 60.0  # until the next look at a server that was given up again: at first, and at most
HANGING_SECONDS = 60  # for an answer to a look, until another look is made


class Failover:
    """Gives servers up, and takes them back."""

    def __init__(self, run: Run, workers: Workers, remote_runs: Any) -> None:
        """`remote_runs`: the RemoteRuns, which know the servers that were away when the call began, and reopen a server that
        answers again."""
        self.run, self.workers, self.remote_runs = run, workers, remote_runs
        self.away: dict[str, tuple[Target, str]] = remote_runs.away()
        self.guests: set[str] = set()  # servers that were given up, and had no segments of their own
        self.delays: dict[str, float] = {}  # server -> seconds until it is looked at, when it is given up again

    def begin(self) -> None:
        """Begin, or go on, without the servers that are `away`. Raises MopError where needed states are on none of the
        others."""
        lost = len(self.run.needed.lost()) if self.away else 0
        run, names = self.run, ", ".join(map(quote_identifier, sorted(self.away)))
        if lost:
            raise MopError(
                f"{lost} model states of run {run.run_id} are on servers that are away alone: {names}",
                detail="; ".join(why for _, why in self.away.values()),
                sqlstate="08006",
                hint=f"{run.policy.resume} when they are back.",
            )
        for name, (target, why) in self.away.items():
            run.catalog.forget_remote_run(run.run_id, name)
            run.db.warning(f"run {run.run_id} goes on without server {name}, on copies: {why}")
            self._look_for(name, target)

    # --- giving up ----------------------------------------------------------------------------------
    def give_up(self, name: str, why: str) -> Instructions:
        """Give a server up, if others have copies of all that it holds."""
        run, substitutes = self.run, self.run.substitutes(name)
        if substitutes is None:
            return
        run.catalog.forget_remote_run(run.run_id, name)
        run.states.begin_anew()  # a copy that is on its way may yet be committed
        run.db.warning(f"run {run.run_id} goes on without server {name}, on copies: {why}")
        server = run.servers.pop(name)
        run.states.lose(name)
        yield LeaveServer(name, why)
        server.catalog.close()
        self._look_for(name, server.target)
        if run.board.dismiss(name):
            self.guests.add(name)
        run.board.relocate(substitutes)
        self.workers.resize()

    # --- taking back --------------------------------------------------------------------------------
    def _look_for(self, name: str, target: Target) -> None:
        """Look after a while whether a server answers again."""
        delay = self.delays.get(name, 0.0)
        self.delays[name] = min(BACK_SECONDS[1], max(BACK_SECONDS[0], 2 * delay))
        self.run.given_up[name] = self.run.sessions.heartbeat(target, anew=True), time.monotonic() + delay

    def look(self) -> None:
        """Take the servers back that answer again."""
        now = time.monotonic()
        for name, (heartbeat, when) in list(self.run.given_up.items()):
            if now < when:
                continue
            if heartbeat.look() > HANGING_SECONDS:
                heartbeat.close()
                heartbeat.asked = None
            if heartbeat.beats:
                self._take_back(name, heartbeat)

    def _take_back(self, name: str, heartbeat: Heartbeat) -> None:
        run = self.run
        try:
            self.remote_runs.take_back(name)
            run.states.add(name)
        except (MopError, psycopg2.Error) as error:
            if (server := run.servers.pop(name, None)) is not None:  # it has gone once more
                run.catalog.forget_remote_run(run.run_id, name)
                server.catalog.close()
            run.db.log(f"server {name} is not used again: {error}")
            delay = self.delays[name]
            self.delays[name] = min(BACK_SECONDS[1], 2 * delay)
            self.run.given_up[name] = heartbeat, time.monotonic() + delay
            if isinstance(error, MopError) and error.sqlstate == SOURCE_CHANGED:
                run.db.warning(f"run {run.run_id} goes on without server {name}: {error.message}")
                del self.run.given_up[name]
            return
        del self.run.given_up[name]
        for relay in run.sessions.relays.values():
            relay.prepared = False  # it may lack foreign tables of that server
        segments = run.unit_specs.segments
        if name in self.guests:
            run.board.invite(name)
        run.board.relocate({key: segments[key].at(run.servers).server for key in run.board.server_of})
        self.workers.resize()
        run.db.info(f"run {run.run_id}: server {name} is back")
