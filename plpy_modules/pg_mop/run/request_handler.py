"""Carries out the requests of a run controller (run/requests.py)."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import psycopg2

from pg_mop.backend.errors import MopError
from pg_mop.connections.sessions import message_of
from pg_mop.plan.stages import Stage
from pg_mop.run.context import RunContext
from pg_mop.run.failover import Failover
from pg_mop.run.needed_states import NeededStates
from pg_mop.run.requests import Ask, Fetch, GiveUp, HasState, Invite, Pin, Register, Request, Steps, Withdraw, perform
from pg_mop.run.runs_beside import RunsBeside


class RequestHandler:
    """Extends, shortens and fails the paths of a run's configurations. `beside`: of a run that may wait for others."""

    beside: RunsBeside | None = None

    def __init__(
        self,
        run: RunContext,
        needed: NeededStates,
        failover: Failover,
        adopt: Callable[..., list[Stage]],
        extend: Callable[..., tuple[list[Stage], list[tuple[int, Stage]]]],
        invite: Callable[[str, str], None],
        bring_home: Callable[[Iterable[Stage]], None],
        tell_planner: Callable[[], None],
    ) -> None:
        """`adopt(stages)` takes over the states of those stages that earlier runs have trained, and returns these
        stages. `extend(configuration, until, evaluated, new, shareable)` asks the planner for more iterations: (stages
        to be done, new requests: [(mst_key, stage)]). `invite(server, role)`: see Joining. `bring_home(stages)`:
        see Transfers. `tell_planner()`: that the run may have grown."""
        self.run, self.needed, self.failover, self.adopt, self.extend = run, needed, failover, adopt, extend
        self.invite, self.bring_home, self.tell_planner = invite, bring_home, tell_planner
        self.failed: dict[int, str] = {}  # mst_key -> why the configuration failed

    def perform(self, steps: Steps) -> Any:
        """Carry out the requests of a controller's generator, and return its result."""
        return perform(steps, self._do)

    def _do(self, request: Request) -> Any:
        """Carry out a request. Returns its answer (run/requests.py)."""
        match request:
            case Ask(c, until, evaluated, new):
                stages, requests = self.extend(c, until, evaluated, new, self._shareable)
                if stages or requests or new:
                    self._ask([c] if new else [], stages, requests)
                return stages, requests
            case Register(c):
                self._ask([c], [], [])
            case Withdraw(mst_key, reason, until, beside):
                return self._withdraw(mst_key, reason, until, beside)
            case Pin(stage, instead):
                self.needed.pin(stage, instead)
            case GiveUp(mst_key, message, blame):
                self.give_up([mst_key], message, blame)
            case Invite(server, by):
                self.invite(server, by)
            case HasState(stage):
                return self.run.states.has(stage)
            case Fetch(stage):
                return self._fetch(stage)
        return None

    def _fetch(self, number: int) -> Any:
        """The state of a trained stage, which is carried to this server first; None where it does not exist. Idle sessions give
        their trainers back: the calling session needs one to use the state, and the role's limits may leave no other."""
        states, sessions = self.run.states, self.run.sessions
        if not states.has(number):
            return None
        for worker, session in list(sessions.by_worker.items()):
            if not session.work and self.run.board.server(worker) is None:
                sessions.leave_trainer(session)  # (that a session was lost is found with its next command)
        self.bring_home([self.run.plan.stages[number]])
        wanted = {"stage": number, "version": self.needed.version(number), "bytes": states.bytes(number)}
        (state,) = self.run.catalog.states(self.run.run_id, [wanted])
        return state

    def _ask(
        self, configurations: list[dict[str, Any]], stages: list[Stage], requests: list[tuple[int, Stage]]
    ) -> None:
        """Do more: `stages` as the plan's `ask` gave them, for `requests`: [(mst_key, stage)]. `configurations`: the new
        ones among the configurations, as in catalog.open_run."""
        run = self.run
        for name, server in list(run.servers.items()):
            try:
                server.catalog.ask(server.run_id, configurations, stages, requests, run.board.visits)
            except (psycopg2.Error, MopError) as error:
                if server.home or not self.failover.do_without(name, message_of(error)):
                    raise
        self.take_over(
            [stage for stage in stages if not run.board.is_running(stage.number) and not self.needed.has_trained(stage)]
        )
        begun = [stage for stage in stages if stage.number not in self.needed.versions]
        for stage in run.catalog.start(run.run_id, begun, {c["mst_key"]: c for c in configurations}):
            run.states.adopted(stage.number)
        self.needed.wait_for(stages)
        if self.beside is not None:
            self.beside.hold(stages)
        run.board.add(stages)
        self.tell_planner()

    def take_over(self, stages: list[Stage], *found: Any) -> None:
        """Take over those of the stages that other runs have trained; `found`: see Adoption.adopt."""
        for stage in self.adopt(stages, *found):
            self.needed.versions[stage.number] = self.run.version(stage) + self.run.board.visits(stage)
            self.run.states.adopted(stage.number)

    def _shareable(self, stages: list[Stage], evaluated: Collection[int], keeps: bool = False) -> int:
        """Returns how many of `stages` a path may share: all, if the states and metrics that the path needs exist; else
        those up to the last stage with a state.

        `stages`: as plan.foresee gives them; `evaluated`: the iterations whose metrics the path needs; `keeps`: the path
        also needs the states of these iterations, because it may end with any of them, or keep it.
        """
        going, shared = self.run.released_under_way(), 0
        for i, stage in enumerate(stages):
            if not stage.trained:
                begun = stage.number in self.needed.versions or self.run.board.is_running(stage.number)
                return len(stages) if begun or shared == i else shared
            if self.run.states.has(stage.number) and stage.number not in going:
                shared = i + 1
            elif stage.iteration in evaluated and (keeps or not stage.scored):
                return shared
        return shared

    def _withdraw(
        self, mst_key: int, reason: str | None, until: int | None = None, beside: Sequence[int] = ()
    ) -> list[Stage]:
        """End a configuration with the iteration that it is in, or with iteration `until`, where that is known; `beside`: as
        in requests.Withdraw. Returns the stages that leave its path."""
        plan = self.run.plan
        before = plan.path(mst_key)
        self.run.board.withdraw(mst_key, until, beside)
        gone = before[len(plan.path(mst_key)) :]
        self.needed.need_no_parent(stage for stage in before if not stage.trials)
        self.needed.release(stage for stage in gone if stage.trained)
        self.run.catalog.withdraw(self.run.run_id, mst_key, len(before) - len(gone), reason)
        return gone

    def save(self, mst_key: int, message: str, iterations: int) -> None:
        """Note that a configuration has stopped after `iterations` because it cannot be trained further; its best state is
        kept."""
        self.run.catalog.withdraw(self.run.run_id, mst_key, iterations, message)
        self.run.db.warning(
            f"configuration {mst_key} has stopped: {message}",
            detail="It keeps the best state of its iterations before.",
        )

    def give_up(self, keys: Iterable[int], message: str, blame: str = "infrastructure") -> None:
        """Note that configurations have failed."""
        keys = list(keys)
        if not keys:
            return
        self.failed.update(dict.fromkeys(keys, message))
        self.run.catalog.fail_configurations(self.run.run_id, keys, message, blame)
