"""A run goes on without a server.

Other servers have copies of its segments, and the coordinator's server has copies of its states.

A server that is away is given up: the coordinator forgets that server's remote run, durably, before it begins any unit
anew on copies. Units that the remote run has committed, but that do not count yet, will therefore never count, and every
unit counts once. A server that is back gets a new remote run.
"""

import time
from collections.abc import Callable

import psycopg2

from mop_udf.aggregate import SOURCE_CHANGED
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.connections.sessions import Heartbeat
from pg_mop.connections.targets import Target
from pg_mop.run.context import RunContext

BACK_SECONDS = 1.0, 60.0  # until the next look at a server that was given up again: at first, and at most
HANGING_SECONDS = 60  # for an answer to a look, until another look is made


class Failover:
    """Gives servers up, and takes them back."""

    def __init__(
        self,
        run: RunContext,
        enabled: bool,
        take_back: Callable[[str], None],
        away: dict[str, tuple[Target, str]],
        leave: Callable[[str, str], None],
        resize: Callable[[], None],
    ) -> None:
        """`enabled`: states have copies (pg_mop.replicas > 1). `take_back(name)` reopens a server that answers again,
        with a new remote run, and puts it into `run.servers` (run/remote_runs.py). `away`: {name: (target, why)} of the
        servers that were away when the call began. `leave(name, why)` withdraws all work from a server that is given
        up; `resize()` opens sessions anew."""
        self.run, self.enabled, self.take_back, self.away = run, enabled, take_back, away
        self.leave, self.resize = leave, resize
        self.given_up: dict[str, tuple[Heartbeat, float]] = {}  # server -> (its heartbeat, when to look at it)
        self.guests: set[str] = set()  # servers that were given up, and had no segments of their own
        self.delays: dict[str, float] = {}  # server -> seconds until it is looked at, when it is given up again

    def begin(self, lost: int) -> None:
        """Begin, or go on, without the servers that are `away`. Raises MopError where `lost` states are on none of the
        others."""
        run, names = self.run, ", ".join(map(quote_identifier, sorted(self.away)))
        if self.away and lost:
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
    def can_do_without(self, name: str | None) -> bool:
        """True where other servers have copies of everything that a server holds."""
        return self._moved(name) is not None

    def _moved(self, name: str | None) -> dict | None:
        """{segment of a server: the server that has its copy}; None where the run cannot do without that server."""
        run = self.run
        if not self.enabled or name is None or name not in run.servers or run.states.only_at(name):
            return None
        left = run.servers.keys() - {name}
        try:
            return {
                key: run.unit_specs.segments[key].at(left).server
                for key, server in run.board.server_of.items()
                if server == name
            }
        except LookupError:
            return None

    def do_without(self, name: str | None, why: str) -> bool:
        """Give a server up, where that can be; False where it cannot."""
        run, moved = self.run, self._moved(name)
        if moved is None or name is None:
            return False
        run.catalog.forget_remote_run(run.run_id, name)
        run.states.begin_anew()  # a copy that is on its way may yet be committed
        run.db.warning(f"run {run.run_id} goes on without server {name}, on copies: {why}")
        server = run.servers.pop(name)
        run.states.lose(name)
        self.leave(name, why)
        server.catalog.close()
        self._look_for(name, server.target)
        if run.board.dismiss(name):
            self.guests.add(name)
        run.board.relocate(moved)
        self.resize()
        return True

    # --- taking back --------------------------------------------------------------------------------
    def _look_for(self, name: str, target: Target) -> None:
        """Look after a while whether a server answers again."""
        delay = self.delays.get(name, 0.0)
        self.delays[name] = min(BACK_SECONDS[1], max(BACK_SECONDS[0], 2 * delay))
        self.given_up[name] = self.run.sessions.heartbeat(target, anew=True), time.monotonic() + delay

    def look(self) -> None:
        """Take the servers back that answer again."""
        now = time.monotonic()
        for name, (heartbeat, when) in list(self.given_up.items()):
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
            self.take_back(name)
            run.states.add(name)
        except (MopError, psycopg2.Error) as error:
            if (server := run.servers.pop(name, None)) is not None:  # it has gone once more
                run.catalog.forget_remote_run(run.run_id, name)
                server.catalog.close()
            run.db.log(f"server {name} is not used again: {error}")
            delay = self.delays[name]
            self.delays[name] = min(BACK_SECONDS[1], 2 * delay)
            self.given_up[name] = heartbeat, time.monotonic() + delay
            if isinstance(error, MopError) and error.sqlstate == SOURCE_CHANGED:
                run.db.warning(f"run {run.run_id} goes on without server {name}: {error.message}")
                del self.given_up[name]
            return
        del self.given_up[name]
        for relay in run.sessions.relays.values():
            relay.prepared = False  # it may lack foreign tables of that server
        segments = run.unit_specs.segments
        if name in self.guests:
            run.board.invite(name)
        run.board.relocate({key: segments[key].at(run.servers).server for key in run.board.server_of})
        self.resize()
        run.db.info(f"run {run.run_id}: server {name} is back")
