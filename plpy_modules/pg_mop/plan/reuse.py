"""Which stages need not be trained, as an earlier run has done so. Pure Python."""

from collections import namedtuple

# What an earlier run has of a stage: which run and stage it is there, whether its state is kept, and whether all
# metrics that are wanted are known.
Known = namedtuple("Known", "run stage state scored")


def adoptable(stages, known):
    """Which of `stages` (new to a plan, parents first) are taken over: [(stage, Known, whether its state is needed)].

    `known`: {identity: Known}. Of each path the longest beginning is taken over that ends with a state that is kept,
    and whose metrics are known or can be had of a state. A stage whose state is needed (its path ends there, or a child
    is to be trained, or it is to be evaluated) is taken over with it, or not at all.
    """
    reached, taken = set(), set()
    for stage in stages:
        found, parent = known.get(stage.identity), stage.parent
        if found is None or not (parent is None or parent.trained or parent.number in reached):
            continue
        if stage.evaluated and not found.scored and not found.state:
            continue
        reached.add(stage.number)
        if found.state:
            while stage is not None and stage.number in reached and stage.number not in taken:
                taken.add(stage.number)
                stage = stage.parent
    result = []
    for stage in reversed(stages):
        if stage.number not in taken:
            continue
        found = known[stage.identity]
        needed = (stage.ends > 0 or stage.evaluated and not found.scored
                  or any(child.trials and child.number not in taken for child in stage.children))
        if needed and not found.state:
            taken.discard(stage.number)
        else:
            result.append((stage, found, needed))
    result.reverse()
    return result
