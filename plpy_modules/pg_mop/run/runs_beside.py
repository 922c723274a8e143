"""Runs at the same time, of one role or of roles that share: a stage that two of them want is trained once.

A run waits for the stages that a run which began earlier is about to train, and takes them over once that run has come to the
end of the path. So a run never waits for one that waits for it. It trains the stages itself as soon as the other run ends,
gives them up, or has a result that cannot be taken over. (TreeML's studies that share, thesis 2021, section 6.2.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pg_mop.catalog.shared_stages import is_alias
from pg_mop.plan import reuse
from pg_mop.plan.stages import Stage
from pg_mop.run.adoption import Adoption
from pg_mop.run.run import Run

LAST_RUN = (1 << 63) - 1  # a run that would begin now: all others are older
MOST_TRIES = 10  # to take over the same stages: the other run may be changing their rows each time


class RunsBeside:
    """Holds the stages of a run that others are about to train."""

    def __init__(self, run: Run, adoption: Adoption) -> None:
        self.run, self.adoption = run, adoption
        self.older = older_than(run.run_id, adoption)
        adoption.beside = self.older
        self.told: set[int] = set()  # runs that the user knows of
        self.tries = 0

    def hold(self, stages: Iterable[Stage]) -> None:
        """Hold those of the stages that another run is about to train. (They are on the board, or about to come onto it.)"""
        fresh = [stage for stage in stages if self._is_fresh(stage)] if self.older else []
        if not fresh:
            return
        self._narrow()
        held = self._awaited(fresh)
        if held:
            self._tell(held)
            self.run.board.hold([stage for stage in fresh if stage.number in held])

    def look(self) -> tuple[list[Stage], bool]:
        """Take over what other runs have trained by now, and let go of what they will not train: (the stages that have ended by
        that, whether anything has changed)."""
        board, plan = self.run.board, self.run.plan
        held = [plan.stages[number] for number in sorted(board.held)]
        if not held:
            return [], False
        self._narrow()
        awaited = self._awaited(held)  # as it is before the states are looked for
        found = self.adoption.find(held)
        if found:
            take_over(self.run, self.adoption, held, found)
        taken = [stage for stage in held if stage.trained]
        ended = board.take_over(taken) if taken else []
        self.run.needed.need_no_parent(taken)
        self.tries = self.tries + 1 if found and not taken else 0
        if found and not taken and self.tries < MOST_TRIES:
            return [], False
        gone = [stage for stage in held if not stage.trained and stage.number not in awaited]
        board.let_go(gone)
        return ended, bool(taken or gone)

    def _is_fresh(self, stage: Stage) -> bool:
        board = self.run.board
        begun = stage.trained or board.has_begun(stage.number) or board.is_running(stage.number)
        return bool(stage.trials) and not stage.failed and not begun

    def _narrow(self) -> None:
        """Forget the runs that have ended."""
        self.older = older_than(self.run.run_id, self.adoption)

    def _awaited(self, stages: list[Stage]) -> dict[int, int]:
        """{stage number: run} of those of the stages that other runs are about to train."""
        return awaited(self.older, self.adoption, stages)

    def _tell(self, held: dict[int, int]) -> None:
        for run in sorted(set(held.values()) - self.told):
            count = sum(of == run for of in held.values())
            who = "a member of your group" if is_alias(run) else f"run {run}"
            what = f"{count} stages that {who} trains are" if count != 1 else f"a stage that {who} trains is"
            self.run.db.info(
                f"{what} not trained twice: this run waits and takes the result over (SET pg_mop.reuse = off; trains here)"
            )
            self.told.add(run)


def take_over(run: Run, adoption: Adoption, stages: Sequence[Stage], found: Any = None) -> None:
    """Take over those of the stages that other runs have trained; `found`: see Adoption.adopt."""
    for stage in adoption.adopt(stages, found):
        run.needed.versions[stage.number] = run.needed.first_version(stage) + run.board.visits(stage)
        run.states.adopted(stage.number)


def older_than(run_id: int, adoption: Adoption) -> list[int]:
    """The runs that began before a run, go on, and may train stages for it."""
    search = adoption.spec.search
    if not adoption.allowed or search is not None and search.stops_within_budget:
        return []  # (where a procedure stops trials, any of a path's states may be needed, and the other run keeps one)
    return adoption.catalog.runs_beside(run_id, adoption.planner.workload.options["priority"])


def awaited(older: Sequence[int], adoption: Adoption, stages: Sequence[Stage]) -> dict[int, int]:
    """{stage number: run} of those of the stages that the runs `older` are about to train. `stages`: see plan.reuse.awaited."""
    if not older or not stages:
        return {}
    beside = adoption.catalog.stages_beside(older, [stage.identity for stage in stages])
    spec, early = adoption.spec, dict[int, set[str | None]]()
    fits = {c["mst_key"]: c["fit_params"] for c in spec.configurations if spec.may_end_early(c)}
    for stage in stages if fits else ():
        if asking := stage.trials & fits.keys():
            early[stage.number] = {fits[key] for key in asking}
    return reuse.awaited(stages, beside, early)


def expected(adoption: Adoption, stages: Iterable[Stage], run_id: int | None = None) -> dict[int, int]:
    """{stage number: run} of those of the stages that runs beside train now, so that a run which begins now, or is continued as
    `run_id`, would wait for them. `stages`: none that this run has begun."""
    fresh = [stage for stage in stages if stage.trials and not stage.trained]
    return awaited(older_than(run_id or LAST_RUN, adoption), adoption, fresh)
