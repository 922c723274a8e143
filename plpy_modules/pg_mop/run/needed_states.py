"""The model states that the run still needs, and their versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pg_mop.plan.stages import Plan, Stage
from pg_mop.run.states import States
from pg_mop.schedule.board import Board, Unit


class NeededStates:
    """Releases each state once no unit will read it and no configuration ends with it or keeps it."""

    def __init__(
        self, plan: Plan, board: Board, states: States, unit_specs: Any, versions: dict[int, int], kept_bytes: int
    ) -> None:
        """`versions`: {stage: version of its state}, how often it has been trained since its path began. `kept_bytes`: of
        states that are kept for later runs (pg_mop.reuse)."""
        self.plan, self.board, self.states, self.unit_specs = plan, board, states, unit_specs
        self.versions, self.kept_bytes = versions, kept_bytes
        self.waiting: dict[int, set[int]] = {}  # stage -> its children that have not begun, and begin with its state
        self.reading: Counter[int] = Counter()  # stage -> units under way that begin with its state
        self.pinned: Counter[int] = Counter()  # stage -> configurations that keep its state to the end
        self.wait_for(plan.stages.values())

    # --- versions -----------------------------------------------------------------------------------
    def version(self, stage: int) -> int:
        """How often the stage's state has been trained since its path began."""
        version = self.versions.get(stage)
        return self.first_version(self.plan.stages[stage]) if version is None else version

    def first_version(self, stage: Stage) -> int:
        """The version of a stage's state before its first unit: the training units of its path before it."""
        return (stage.iteration - 1) * self.board.visits(stage)

    def has_trained(self, stage: Stage) -> bool:
        """True where this run has trained the stage on a segment at least."""
        return stage.origin is None and self.version(stage.number) > self.first_version(stage)

    # --- readers ------------------------------------------------------------------------------------
    def wait_for(self, stages: Iterable[Stage]) -> None:
        """Note the stages that have not begun: each will read its parent's state."""
        for stage in stages:
            if (
                stage.parent is not None
                and stage.number not in self.versions
                and stage.trials
                and not (stage.failed or stage.trained)
            ):
                self.waiting.setdefault(stage.parent.number, set()).add(stage.number)

    def need_no_parent(self, stages: Iterable[Stage]) -> None:
        """These stages have begun, or never will: they do not need their parents' states any more."""
        parents = []
        for stage in stages:
            if stage.parent is not None:
                self.waiting.get(stage.parent.number, set()).discard(stage.number)
                parents.append(stage.parent)
        self.release(parents)

    def begin(self, unit: Unit, chained: bool = False) -> list[int]:
        """A training unit begins, the first of its stage in its command: the stages whose states its commit releases.
        `chained`: the stage follows its parent in a chain."""
        parent = self.plan.stages[unit.stage].parent
        if parent is None or unit.stage in self.versions:
            return []
        self.reading[parent.number] += 1
        if chained or not self.board.shares_states and self._is_unneeded(parent, but_for=unit.stage):
            return [parent.number]
        return []

    def end(self, unit: Unit) -> None:
        """A training unit has ended, committed or not: it does not read its parent's state any more."""
        parent = self.plan.stages[unit.stage].parent
        if parent is not None and unit.stage not in self.versions:
            self.reading[parent.number] -= 1

    def trained(self, unit: Unit) -> None:
        """A training unit counts: its stage's state has the next version."""
        self.end(unit)
        self.versions[unit.stage] = self.version(unit.stage) + 1

    def pin(self, stage: int, instead: int | None = None) -> None:
        """Keep a stage's state to the end for a configuration, `instead` of another one."""
        self.pinned[stage] += 1
        if instead is not None:
            self.pinned[instead] -= 1
            self.release([self.plan.stages[instead]])

    def passes_on(self, stage: Stage, child: Stage) -> bool:
        """True where nobody but a child will read the state that a stage ends with: a chain need not write it."""
        return not (
            stage.ends
            or self.pinned[stage.number]
            or self.waiting.get(stage.number, set()) - {child.number}
            or self._may_be_kept(stage)
        )

    # --- release ------------------------------------------------------------------------------------
    def release(self, stages: Iterable[Stage]) -> None:
        """Release those of the stages' states that are not needed any more."""
        if self.board.shares_states:
            return
        states = self.states
        gone = [
            stage.number
            for stage in stages
            if states.has(stage.number) and not self.reading[stage.number] and self._is_unneeded(stage)
        ]
        if gone:
            states.release(gone)

    def release_replicas(self, iteration: int) -> None:
        """Averaging: once all replicas have trained an iteration, their states of the one before are not needed."""
        plan = self.plan
        paths = [plan.path(key) for key in range(1, len(self.unit_specs.replicas) + 1)]
        if iteration > 1 and all(path[iteration - 1].trained for path in paths):
            self.states.release([path[iteration - 2].number for path in paths])

    def lost(self) -> list[Stage]:
        """The trained stages whose states are needed and on no server that answers."""
        stages = self.plan.stages.values()
        first = min((stage.iteration for stage in stages if not stage.ended), default=0)
        return [
            stage
            for stage in stages
            if self.version(stage.number) > self.first_version(stage)
            and not self.states.has(stage.number)
            and (stage.iteration >= first - 1 if self.board.shares_states else self._is_read(stage))
        ]

    def _is_read(self, stage: Stage, but_for: int | None = None) -> bool:
        """True where the stage's state will be read, not only by its child `but_for`."""
        return bool(
            not stage.ended
            or stage.ends
            or self.pinned[stage.number]
            or self.waiting.get(stage.number, set()) - {but_for}
        )

    def _is_unneeded(self, stage: Stage, but_for: int | None = None) -> bool:
        """True where the stage's state will not be read any more, except by its child `but_for`."""
        if self._is_read(stage, but_for):
            return False
        return not self._may_be_kept(stage)

    def _may_be_kept(self, stage: Stage) -> bool:
        """True where a later run may begin with the stage's state, and there is room to keep it."""
        # a later run may branch off where paths part, or where a search may have stopped a trial
        may_begin = len(stage.children) > 1 or stage.evaluated and self.board.searched
        return may_begin and self.states.live < self.kept_bytes
