"""The values that all parts of a run's event loop share."""

from dataclasses import asdict, dataclass, field
from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.call.servers import Server
from pg_mop.catalog import Catalog
from pg_mop.plan.stages import Plan, Stage
from pg_mop.run.attempt import UNDER_WAY, Attempt, Policy, State
from pg_mop.run.sessions import Sessions
from pg_mop.run.states import States
from pg_mop.schedule.board import Board, Unit


@dataclass
class Counts:
    """What a coordinator has counted since it began, for mop_monitoring."""

    finished: int = 0  # units
    failed: int = 0  # attempts
    retried: int = 0  # attempts that were not the first of their unit
    sent_bytes: int = 0  # of states that went from one server to another


@dataclass
class RunContext:
    """One run. `db`: the caller's backend; `catalog`: the coordinator's session to the catalog."""

    db: Any
    catalog: Catalog
    run_id: int
    servers: dict[str | None, Server]  # by name; None: the coordinator's own
    sessions: Sessions
    plan: Plan
    board: Board
    unit_specs: Any  # see call/unit_specs.py
    states: States
    policy: Policy
    attempts: dict[Unit, Attempt] = field(default_factory=dict)  # the last attempt at each unit that has not ended
    counts: Counts = field(default_factory=Counts)

    def version(self, stage: Stage) -> int:
        """The version of a stage's state before its first unit: the training units of its path before it."""
        return (stage.iteration - 1) * self.board.visits(stage)

    def attempts_in(self, *states: State) -> list[Attempt]:
        """The attempts that are in one of these states."""
        return [attempt for attempt in self.attempts.values() if attempt.state in states]

    def released_under_way(self) -> set[int]:
        """The stages whose states are released by the commits of attempts under way."""
        return {stage for attempt in self.attempts_in(*UNDER_WAY) for stage in attempt.released}

    def waited_in_vain(self, message: str, until: str = "all servers are back", detail: str | None = None) -> MopError:
        """The error for a server that has been away for server_timeout."""
        return MopError(**asdict(self.policy.waited_in_vain(message, until, detail)))
