"""A run while it goes on: its state in one place, which the parts of the event loop read and change."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.call.servers import Server
from pg_mop.catalog import Catalog
from pg_mop.connections.sessions import Heartbeat
from pg_mop.plan.stages import Plan
from pg_mop.run.attempt import UNDER_WAY, Attempt, Policy, State
from pg_mop.run.needed_states import NeededStates
from pg_mop.run.sessions import Sessions
from pg_mop.run.states import States
from pg_mop.run.turns import Turns
from pg_mop.schedule.board import Board, Unit
from pg_mop.schedule.dealing import Threads
from pg_mop.schedule.device_parts import DeviceParts


@dataclass
class Counts:
    """What a coordinator has counted since it began, for mop_monitoring."""

    finished: int = 0  # units
    trained: int = 0  # of these, training units
    failed: int = 0  # attempts
    retried: int = 0  # attempts that were not the first of their unit
    sent_bytes: int = 0  # of states that went from one server to another


@dataclass
class Run:
    """One run.

    `db`: the caller's backend; `catalog`: the coordinator's session to the catalog; `options`: of the call
    (backend/settings.py).
    """

    db: Any
    catalog: Catalog
    run_id: int
    servers: dict[str | None, Server]  # by name; None: the coordinator's own
    sessions: Sessions
    wanted: int  # sessions that the run asks for
    plan: Plan
    board: Board
    scheduler: Any
    unit_specs: Any  # see call/unit_specs.py
    states: States
    needed: NeededStates
    threads: Threads  # of the trainers
    turns: Turns  # of the workers on the coordinator's server
    device_parts: DeviceParts  # of all trainers on devices
    policy: Policy
    options: dict[str, Any]
    done_before: int = 0  # units that earlier coordinators of the run have finished
    begun_before: dict[Unit, int] = field(default_factory=dict)  # attempts that earlier coordinators have begun
    attempts: dict[Unit, Attempt] = field(default_factory=dict)  # the last attempt at each unit that has not ended
    counts: Counts = field(default_factory=Counts)
    failed: dict[int, str] = field(default_factory=dict)  # mst_key -> why the configuration failed
    began: float = field(default_factory=time.time)
    ready_since: dict[int, float] = field(default_factory=dict)  # stage -> when its next unit could have begun first
    carried: Counter[int] = field(default_factory=Counter)  # stage -> moves of its state that are under way
    ahead: dict[int, int] = field(default_factory=dict)  # worker -> the stage whose state its session reads ahead
    # a server that was given up -> (its heartbeat, when to look at it)
    given_up: dict[str, tuple[Heartbeat, float]] = field(default_factory=dict)

    # --- attempts ---------------------------------------------------------------------------------------
    def attempts_in(self, *states: State) -> list[Attempt]:
        """The attempts that are in one of these states."""
        return [attempt for attempt in self.attempts.values() if attempt.state in states]

    def released_under_way(self) -> set[int]:
        """The stages whose states are released by the commits of attempts under way."""
        return {stage for attempt in self.attempts_in(*UNDER_WAY) for stage in attempt.released}

    # --- workers and servers ----------------------------------------------------------------------------
    @property
    def working(self) -> list[int]:
        """The workers with commands."""
        return [worker for worker, session in self.sessions.by_worker.items() if session.work]

    def forget_ahead(self, worker: int) -> None:
        """The worker reads no state ahead."""
        self.board.reserve(worker, None)
        self.ahead.pop(worker, None)

    @property
    def replicated(self) -> bool:
        """True where states have copies (pg_mop.replicas > 1)."""
        return self.options["replicas"] > 1

    def can_do_without(self, name: str | None) -> bool:
        """True where other servers have copies of everything that a server holds."""
        return self.substitutes(name) is not None

    def substitutes(self, name: str | None) -> dict[Any, str | None] | None:
        """{segment of a server: the server that has its copy}; None where the run cannot do without that server."""
        if not self.replicated or name is None or name not in self.servers or self.states.only_at(name):
            return None
        left = self.servers.keys() - {name}
        try:
            return {
                key: self.unit_specs.segments[key].at(left).server
                for key, server in self.board.server_of.items()
                if server == name
            }
        except LookupError:
            return None

    def waited_in_vain(self, message: str, until: str = "all servers are back", detail: str | None = None) -> MopError:
        """The error for a server that has been away for server_timeout."""
        return MopError(**asdict(self.policy.waited_in_vain(message, until, detail)))
