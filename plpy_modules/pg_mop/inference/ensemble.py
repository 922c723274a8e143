"""Ensembles: which models' answers are averaged with which weights, and the one net that averages them. Pure.

A version of a named model has one net. The nets of an ensemble are one net, too: a functional model of Keras whose inputs go to
each member, a model within the model, and whose output is the weighted sum of the members' outputs (Rescaling and Add). So
whatever reads a version knows nothing of ensembles: the backend's NumPy (forward.py), serving processes, the export, reports.
Keras' get_weights() has the weights of a model within a model as a block, so the net's weights are those of its members, one
after the other.

Boosted trees are no layer of Keras. They stand beside this net, each with a weight of its own: then the architecture of the
version is an object of ours (`Mixture`), which holds the net's, and the texts of the trees follow the net's weights. Their
answers are added in `NamedModel.outputs_of`; whoever takes the architecture for a net is refused by its check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mop_udf.architecture import architecture_shapes
from mop_udf.architecture.architecture_classes import MODELS
from pg_mop.backend.arrays import np
from pg_mop.plan.nets import calls, functional, layer

STEPS, MOST = 40, 8  # of the selection; members of an ensemble
TIE = 1e-6  # losses that differ by a smaller share are equal
NAME = "ensemble"  # of its net
MIXTURE, MODULE = "Mixture", "pg_mop"  # class and module of the architecture of a net and trees
MOST_TREE_BYTES = 64 << 20  # of all texts of a version
IS_MIXTURE = re.compile(r'"module"\s*:\s*"pg_mop"')
Loss = Callable[["np.ndarray"], "np.ndarray"]  # answers [..., rows] -> their loss [...]


# --- which members --------------------------------------------------------------------------------------------------------
def select(answers: np.ndarray, loss: Loss, steps: int = STEPS, most: int = MOST) -> np.ndarray:
    """How often each member is chosen, by greedy selection with replacement (Caruana et al. 2004, "Ensemble selection from
    libraries of models", sections 2 and 2.1).

    `answers` [members, rows] or [members, rows, classes]. Each step adds the member with which the mean of all chosen answers
    has the least loss: of equal ones a member that is in, the one that is in most often. At most `most` different members are
    chosen. The result is that of the step with the least loss, of equal ones the first: on these rows, never worse than the
    best member alone. All are 0 where no member has a finite loss.

    >>> truth = np.array([0.0, 1.0, 2.0])
    >>> answers = np.array([truth - 0.2, truth + 0.1, truth + 3])
    >>> select(answers, lambda means: ((means - truth) ** 2).mean(-1), steps=3).tolist()
    [1, 2, 0]
    """
    counts = np.zeros(len(answers), int)
    chosen, least = counts, np.inf
    total = np.zeros(answers.shape[1:])
    places, pool = np.arange(len(answers)), answers  # of the members that may be added
    for step in range(1, steps + 1):
        with np.errstate(all="ignore"):
            losses = loss((total + pool) / step)
        losses = np.where(np.isfinite(losses), losses, np.inf)
        lowest = losses.min(initial=np.inf)
        if lowest == np.inf:
            break
        equal = np.where(losses <= lowest * (1 + TIE), counts[places], 0)
        best = int(equal.argmax() if equal.any() else losses.argmin())
        counts = counts.copy()
        counts[places[best]] += 1
        total += pool[best]
        if losses[best] < least * (1 - TIE):
            chosen, least = counts, losses[best]
        if len(places) > most == np.count_nonzero(counts):
            places = np.flatnonzero(counts)
            pool = answers[places]
    return chosen


# --- one net --------------------------------------------------------------------------------------------------------------
def joined(members: Sequence[tuple[dict[str, Any], float]]) -> str:
    """The JSON of the net whose output is the weighted sum of its members'. `members`: (architecture as
    mop_udf.architecture.check gives it, weight); all take the same inputs and have one output of the same width. The net's
    weights are theirs, one after the other."""
    shapes = architecture_shapes.input_shapes(members[0][0])
    inputs = [f"input_{k}" for k in range(1, 1 + len(shapes))]
    layers = [
        layer("InputLayer", name, [], batch_shape=[None, *shape], dtype="float32")
        for name, shape in zip(inputs, shapes)
    ]
    scaled = []
    for number, (member, weight) in enumerate(members, 1):
        own = architecture_shapes.by_position(member)
        name = f"member_{number}"
        made = {**own, "name": name, "config": {**own["config"], "name": name}, "inbound_nodes": calls(inputs)}
        scaled.append(f"weight_{number}")
        layers += [made, layer("Rescaling", scaled[-1], [name], scale=weight, offset=0.0)]
    layers.append(layer("Add", "answer", scaled))
    return functional(NAME, layers, inputs, ["answer"])


def members_of(architecture: Mapping[str, Any]) -> list[int]:
    """The places of the members among the layers of a net of `joined`; none in any other net. `architecture`: its JSON."""
    config = architecture["config"]
    if architecture["class_name"] != "Functional" or config.get("name") != NAME:
        return []
    return [place for place, own in enumerate(config["layers"]) if own["class_name"] in MODELS]


# --- a net and trees ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Mixture:
    """What a version with boosted trees consists of: at most one net, the architecture `net` (JSON) whose weights are the first
    `net_bytes` of the version's, and texts of LightGBM, which follow. `net_weight`, `trees`: their shares of the answer, and
    the bytes of each text."""

    net: str | None
    net_weight: float
    net_bytes: int
    trees: tuple[tuple[float, int], ...]

    def to_json(self) -> str:
        """The architecture of the version."""
        config = {
            "net": None if self.net is None else json.loads(self.net),
            "weight": self.net_weight,
            "bytes": self.net_bytes,
            "trees": [{"weight": weight, "bytes": size} for weight, size in self.trees],
        }
        return json.dumps({"module": MODULE, "class_name": MIXTURE, "config": config})

    @classmethod
    def read(cls, architecture: str, size: int) -> Mixture | None:
        """The mixture of a version's architecture (JSON), with so many bytes of weights; None where it is a net's. Raises
        ValueError."""
        if IS_MIXTURE.search(architecture) is None:
            return None
        data = json.loads(architecture)
        if data.get("module") != MODULE:
            return None
        config = data["config"]
        net, own, net_bytes = config["net"], _share(config["weight"]), _bytes(config["bytes"])
        trees = tuple((_share(one["weight"]), _bytes(one["bytes"])) for one in config["trees"])
        if not 1 <= len(trees) <= STEPS or net_bytes + sum(count for _, count in trees) != size:
            raise ValueError("the bytes of its members are not those of the version")
        if sum(count for _, count in trees) > MOST_TREE_BYTES:
            raise ValueError(f"its trees have more than {MOST_TREE_BYTES >> 20} MB")
        if net is None and (own or net_bytes):
            raise ValueError("it has weights without a net")
        return cls(None if net is None else json.dumps(net), own, net_bytes, trees)

    def places(self) -> list[tuple[float, int, int]]:
        """(share, first byte, bytes) of each text."""
        firsts = [self.net_bytes + sum(size for _, size in self.trees[:k]) for k in range(len(self.trees))]
        return [(weight, first, size) for (weight, size), first in zip(self.trees, firsts)]


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1 + TIE:
        raise ValueError("a member's weight is no number from 0 to 1")
    return float(value)


def _bytes(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a member's bytes are no number")
    return value
