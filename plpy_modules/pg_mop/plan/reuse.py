"""Which stages a run takes over from earlier runs instead of training them, or waits for. Pure Python."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from pg_mop.plan.identity import Identity
from pg_mop.plan.stages import Origin, Stage, StageNumber


class Known(NamedTuple):
    """A stage of an earlier run."""

    run: int
    stage: StageNumber  # its number in that run
    state: bool  # its state is still stored
    scored: bool  # all metrics that the present run wants are known
    origin: Origin  # where the stage was trained
    before: Origin | None  # where its parent was trained; None for a root


class Beside(NamedTuple):
    """A stage that a run beside this one wants, which began earlier."""

    run: int
    ends: bool  # a path of that run ends with it: its state stays
    evaluated: bool  # that run wants its metrics
    trained: bool  # on all segments
    fits: frozenset[str | None] = frozenset()  # the fit parameters of the configurations that want it


def adoptable(
    stages: Sequence[Stage],
    known: Mapping[Identity, Sequence[Known]],
    preferred: int | None = None,
    kept: Collection[StageNumber] = (),
) -> list[tuple[Stage, Known, bool]]:
    """The stages to take over: [(stage, its Known, whether its state is needed)]. Changes nothing; the caller sets
    `origin` of the stages.

    `stages`: new stages of a plan, parents first. `known`: earlier stages by identity. `preferred`: the run to take
    stages from where several runs offer equally much. `kept`: numbers of the stages whose states must be available,
    because a path may end with them.

    Of several earlier stages, the function prefers the one that allows the most stages below it to be taken over, then
    the one of the run `preferred`, then the latest. A stage is taken over only if all of these hold:

    - Its parent is the very stage that it was trained from (`before` equals the parent's `origin`), so that a path has
      one history.
    - The stage itself, or a stage below it that is taken over, has a stored state.
    - Its metrics are known, or they are not wanted, or its state is stored.
    - Its state is stored, or no unit reads that state and its number is not in `kept`.
    """
    best = _best_by_parent(stages, known, preferred, kept)
    taken: dict[StageNumber, Known] = {}
    refused: set[StageNumber] = set()
    while True:
        taken.clear()
        for stage in stages:
            found = best.get((stage.number, _trained_parent(stage, taken)))
            if found is not None and stage.number not in refused:
                taken[stage.number] = found
        needed = {n.number for n in stages if n.number in taken and (n.number in kept or _is_read(n, taken))}
        lacking = {number for number in needed if not taken[number].state}
        if not lacking:
            return [(n, taken[n.number], n.number in needed) for n in stages if n.number in taken]
        refused |= lacking


def awaited(
    stages: Sequence[Stage],
    beside: Mapping[Identity, Sequence[Beside]],
    early: Mapping[StageNumber, Collection[str | None]] | None = None,
) -> dict[StageNumber, int]:
    """The stages that a run had better wait for, since another one is about to train them: {stage number: that run}.

    `stages`: of a plan, parents first, none of which has begun. `beside`: stages of other runs by identity. `early`:
    {stage number: fit parameters} of the configurations on a stage that may end before their last iteration, or keep another
    state than their last one. Such a stage is waited for only if the other run has a configuration of the same rule, which
    ends at the same iteration and keeps the same state.

    A stage is waited for if the other run wants it and all stages before it, with all metrics that this run wants, and a path
    of that run ends with it or with a stage below it, whose state this run can then take over. A path whose last stage is
    trained already is not waited for: it has been taken over, or cannot be.
    """
    found: dict[StageNumber, int] = {}
    early = early or {}
    numbers = {stage.number for stage in stages}
    for run in sorted({one.run for ones in beside.values() for one in ones}):
        theirs = {name: one for name, ones in beside.items() for one in ones if one.run == run}
        common: set[StageNumber] = set()
        for stage in stages:
            one, parent = theirs.get(stage.identity), stage.parent
            if (
                one is None
                or stage.evaluated
                and not one.evaluated
                or not one.fits.issuperset(early.get(stage.number, ()))
            ):
                continue
            if parent is None or parent.number in common or parent.number not in numbers and parent.origin is not None:
                common.add(stage.number)
        worth: set[StageNumber] = set()
        for stage in reversed(stages):
            if stage.number in common:
                one = theirs[stage.identity]
                if one.ends and not one.trained or any(child.number in worth for child in stage.children):
                    worth.add(stage.number)
                    found.setdefault(stage.number, run)
    return found


def _best_by_parent(
    stages: Sequence[Stage],
    known: Mapping[Identity, Sequence[Known]],
    preferred: int | None,
    kept: Collection[StageNumber],
) -> dict[tuple[StageNumber, Origin | tuple[()] | None], Known]:
    """{(stage number, where its parent was trained): the best earlier stage}."""
    worth: dict[tuple[StageNumber, Origin], int] = {}  # stages that can be taken over from this one on
    best: dict[tuple[StageNumber, Origin | tuple[()] | None], Known] = {}

    def rank(number: StageNumber, found: Known) -> tuple:
        return worth[number, found.origin], found.run == preferred, found.state, found.scored, found.run

    for stage in reversed(stages):
        for found in known.get(stage.identity, ()):
            if not found.state and (stage.evaluated and not found.scored or stage.number in kept):
                continue
            below = sum(
                worth[child.number, best[child.number, found.origin].origin]
                for child in stage.children
                if (child.number, found.origin) in best
            )
            if not below and not found.state:
                continue
            worth[stage.number, found.origin] = below + 1
            # (a path may be without the trial that it inherits from: of mop_more)
            before = None if stage.parent is None else found.before
            other = best.get((stage.number, before))
            if other is None or rank(stage.number, found) > rank(stage.number, other):
                best[stage.number, before] = found
    return best


def _trained_parent(stage: Stage, taken: Mapping[StageNumber, Known]) -> Origin | tuple[()] | None:
    """Where a stage's parent was trained: None for a root, () for a parent that the run trains itself."""
    if stage.parent is None:
        return None
    return taken[stage.parent.number].origin if stage.parent.number in taken else stage.parent.origin or ()


def _is_read(stage: Stage, taken: Mapping[StageNumber, Known]) -> bool:
    """True where the run reads the state of a stage that it takes over: to write it, to evaluate it, to train on."""
    return (
        stage.ends > 0
        or stage.evaluated
        and not taken[stage.number].scored
        or any(child.trials and child.number not in taken for child in stage.children)
    )
