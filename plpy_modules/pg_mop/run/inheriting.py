"""What a trial of a search inherits from the trial that it was made from: decided once, when the trial begins, and logged.

The child's first stage has the parent's last stage as its parent: so the plan keeps that state until the child has begun, a
resumed run finds it again, and a replay trains it first. The trainer computes the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pg_mop.plan.configuration import Configuration
from pg_mop.plan.stages import Stage
from pg_mop.spaces.inheritance import Inheritance, inheritance

MOST_NAMED = 5  # layers that the text names

# of a child that inherits nothing
EARLIER = "nothing: the parent is a trial of an earlier run"
GONE = "nothing: the state of the parent is gone"
OWN = "nothing: the model has weights of its own"
UNLIKE = "nothing: no layer fits"


def inherit(
    child: Configuration, parent: Configuration | None, path: Sequence[Stage], has_states: bool, seed: int
) -> None:
    """Note in a configuration's `member` what it inherits: `inherits`, for planner and trainer, and `inherited`, a text.

    `child`, `parent`: configurations with a checked `architecture`; None: the parent is of another run. `path`: the parent's
    stages; `has_states`: the state of its last one is there, and of the folds' trials; `seed`: of the run.
    """
    member = child["member"]
    if parent is None:
        member["inherited"] = EARLIER
    elif not path or not path[-1].trained or not has_states:
        member["inherited"] = GONE
    elif child.get("weights_md5") is not None:
        member["inherited"] = OWN
    else:
        found = inheritance(parent["architecture"], child["architecture"])
        if not found.layers:
            member["inherited"] = UNLIKE
            return
        member["inherits"] = {
            "trial": parent["mst_key"],
            "iteration": path[-1].iteration,
            "identity": path[-1].identity,
            "seed": _seed(seed, parent["model_id"], child["model_id"]),
            "layers": found.layers,
            "fresh": found.fresh,
            "same": found.same,
        }
        member["inherited"] = f"after iteration {path[-1].iteration}: {text(found)}"


def text(found: Inheritance) -> str:
    """What is inherited, in words."""
    parts = [
        f"{len(names)} {word} ({', '.join(names[:MOST_NAMED])}{', ...' if len(names) > MOST_NAMED else ''})"
        for word, names in (
            ("copied", found.named("copied")),
            ("widened", found.named("widened")),
            ("inserted as the identity", found.named("identity")),
            ("fresh", found.fresh),
        )
        if names
    ]
    return ", ".join(parts) + ("; the same function" if found.same else "")


def _seed(seed: int, parent: int, child: int) -> int:
    """The seed of random repetitions: equal for equal models in runs of one seed."""
    return int(hashlib.sha256(f"{seed} {parent} {child}".encode()).hexdigest()[:8], 16)
