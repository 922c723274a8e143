"""The paths of a run's configurations: carries out the instructions of a run controller (run/instructions.py)."""

from collections.abc import Collection, Iterable, Sequence

import psycopg2

from pg_mop.backend.errors import MopError
from pg_mop.connections.sessions import message_of
from pg_mop.plan.configuration import Configuration
from pg_mop.plan.stages import Stage
from pg_mop.run.adoption import Adoption
from pg_mop.run.instructions import (
    Ask,
    Fetch,
    GiveServerUp,
    GiveUp,
    HasState,
    Instruction,
    Instructions,
    Pin,
    Register,
    Withdraw,
)
from pg_mop.run.run import Run
from pg_mop.run.runs_beside import RunsBeside, take_over
from pg_mop.run.transfers import Transfers


class Paths:
    """Extends, shortens and fails the paths of a run's configurations."""

    def __init__(self, run: Run, adoption: Adoption, transfers: Transfers, beside: RunsBeside) -> None:
        self.run, self.adoption, self.transfers, self.beside = run, adoption, transfers, beside

    def do(self, instruction: Instruction) -> Instructions:
        """Carry out an instruction of the controller. Returns its answer."""
        match instruction:
            case Ask():
                return (yield from self._extend(instruction))
            case Register(c):
                yield from self._ask([c], [], [])
            case Withdraw(mst_key, reason, until, beside):
                return self._withdraw(mst_key, reason, until, beside)
            case Pin(stage, instead):
                self.run.needed.pin(stage, instead)
            case GiveUp(mst_key, message, blame):
                self.give_up([mst_key], message, blame)
            case HasState(stage):
                return self.run.states.has(stage)
            case Fetch(stage):
                return (yield from self._fetch(stage))
            case _:
                raise AssertionError(f"no instruction of a controller: {instruction}")
        return None

    def _extend(self, ask: Ask) -> Instructions:
        """Ask the planner for more iterations of a configuration: (stages to be done, new requests: [(mst_key, stage)])."""
        planner, c = self.adoption.planner, ask.configuration
        if ask.new:
            planner.register(c)
        early = self.adoption.spec.may_end_early(c)
        stages, requests = planner.ask(
            c, ask.until, ask.evaluated, shareable=lambda foreseen, wanted: self._shareable(foreseen, wanted, early)
        )
        if stages or requests or ask.new:
            yield from self._ask([c] if ask.new else [], stages, requests)
        return stages, requests

    def _fetch(self, number: int) -> Instructions:
        """The state of a trained stage, which is carried to this server first; None where it does not exist. Idle sessions give
        their trainers back: the calling session needs one to use the state, and the role's limits may leave no other."""
        states, sessions = self.run.states, self.run.sessions
        if not states.has(number):
            return None
        for worker, session in list(sessions.by_worker.items()):
            if not session.work and self.run.board.server(worker) is None:
                sessions.leave_trainer(session)  # (that a session was lost is found with its next command)
        yield from self.transfers.bring_home([self.run.plan.stages[number]])
        wanted = {"stage": number, "version": self.run.needed.version(number), "bytes": states.bytes(number)}
        (state,) = self.run.catalog.states(self.run.run_id, [wanted])
        return state

    def _ask(
        self, configurations: list[Configuration], stages: list[Stage], requests: list[tuple[int, Stage]]
    ) -> Instructions:
        """Do more: `stages` as the plan's `ask` gave them, for `requests`: [(mst_key, stage)]. `configurations`: the new
        ones among the configurations, as in catalog.open_run."""
        run = self.run
        for name, server in list(run.servers.items()):
            try:
                server.catalog.ask(server.run_id, configurations, stages, requests, run.board.visits)
            except (psycopg2.Error, MopError) as error:
                if name is None or not run.can_do_without(name):
                    raise
                yield GiveServerUp(name, message_of(error))
        take_over(
            run,
            self.adoption,
            [stage for stage in stages if not run.board.is_running(stage.number) and not run.needed.has_trained(stage)],
        )
        begun = [stage for stage in stages if stage.number not in self.run.needed.versions]
        for stage in run.catalog.start(run.run_id, begun, {c["mst_key"]: c for c in configurations}):
            run.states.adopted(stage.number)
        run.needed.wait_for(stages)
        self.beside.hold(stages)
        run.board.add(stages)

    def _shareable(self, stages: Sequence[Stage], evaluated: Collection[int], keeps: bool = False) -> int:
        """Returns how many of `stages` a path may share: all, if the states and metrics that the path needs exist; else
        those up to the last stage with a state.

        `stages`: as plan.foresee gives them; `evaluated`: the iterations whose metrics the path needs; `keeps`: the path
        also needs the states of these iterations, because it may end with any of them, or keep it.
        """
        going, shared = self.run.released_under_way(), 0
        for i, stage in enumerate(stages):
            if not stage.trained:
                begun = stage.number in self.run.needed.versions or self.run.board.is_running(stage.number)
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
        self.run.needed.need_no_parent(stage for stage in before if not stage.trials)
        self.run.needed.release(stage for stage in gone if stage.trained)
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
        self.run.failed.update(dict.fromkeys(keys, message))
        self.run.catalog.fail_configurations(self.run.run_id, keys, message, blame)
