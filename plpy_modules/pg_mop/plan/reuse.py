"""Which stages need not be trained, as an earlier run has done so. Pure Python."""

from collections import namedtuple

# What an earlier run has of a stage: which run and stage that is there, whether its state is kept, whether all metrics
# that are wanted are known; where it was trained: (run, stage); and where the stage before it was: None at a root.
Known = namedtuple("Known", "run stage state scored origin before")


def adoptable(stages, known, preferred=None, kept=()):
    """Which of `stages` (new to a plan, parents first) are taken over: [(stage, Known, whether its state is needed)].

    `known`: {identity: [Known, ...]}; where several serve, the one of which most can be taken over, then that of the
    run `preferred`, then the latest. A stage is taken over after the very parent that it was trained from (`origin` of
    the one is `before` of the other), so that a path has one history; where it, or one below it, has a state; with its
    metrics, where these are wanted and its state is gone; and with its state, where anybody will read that, or its
    number is among `kept`, since a path may end with it. Sets nothing: who takes the stages over sets their `origin`.
    """
    worth = {}  # (stage number, origin) -> stages that can be taken over from there on
    best = {}  # (stage number, where the parent was trained) -> Known
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
            other = best.get((stage.number, found.before))
            if other is None or _rank(worth, stage, found, preferred) > _rank(worth, stage, other, preferred):
                best[stage.number, found.before] = found
    taken, refused = {}, set()
    while True:
        taken.clear()
        for stage in stages:
            parent = stage.parent
            before = (
                None
                if parent is None
                else (taken[parent.number].origin if parent.number in taken else parent.origin or ())
            )
            found = best.get((stage.number, before))
            if found is not None and stage.number not in refused:
                taken[stage.number] = found
        lacking = {
            stage.number
            for stage in stages
            if stage.number in taken
            and not taken[stage.number].state
            and (stage.number in kept or _is_read(stage, taken))
        }
        if not lacking:
            return [
                (stage, taken[stage.number], stage.number in kept or _is_read(stage, taken))
                for stage in stages
                if stage.number in taken
            ]
        refused |= lacking


def _rank(worth, stage, found, preferred):
    return worth[stage.number, found.origin], found.run == preferred, found.state, found.scored, found.run


def _is_read(stage, taken):
    """True where somebody needs the state of a stage that is taken over."""
    return (
        stage.ends > 0
        or stage.evaluated
        and not taken[stage.number].scored
        or any(child.trials and child.number not in taken for child in stage.children)
    )
