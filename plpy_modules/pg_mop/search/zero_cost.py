"""The zero-cost filter of a search over models: of many members, those with the best scores before any training come first.

Scores may tell nothing in a space. So the first trials are members at random, and where the ranks of their scores and of their
results do not agree, the filter is dropped. Pure Python; the trainers compute the scores (mop_udf/training/zero_cost.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from pg_mop.search.parameters import OFF, SearchError
from pg_mop.search.space import Point, Space

if TYPE_CHECKING:
    from pg_mop.search.base import Procedure

KINDS = ("synflow", "naswot", "jacob-cov")
WITHOUT_ROWS = ("synflow",)  # kinds that need no rows
PROCEDURES = ("random", "asha", "median-stopping")
MEMBERS, MOST_MEMBERS = 100, 10_000
PROBES = 8  # first trials, whose results are compared with their scores
LEAST_CORRELATION = 0.3  # of ranks
TRIES = 20  # draws for each member


class Filter:
    """Gives members of a model space in the order of their scores, once `take` has been given these.

    `dropped`: the rank correlation for which the filter was dropped, if it was.
    """

    def __init__(self, space: Space, seed: int, kind: str, members: int) -> None:
        """`members`: how many are drawn, and have scores."""
        self.space, self.seed, self.kind, self.members = space, seed, kind, members
        self.correlation: float | None = None  # of the first trials, once known
        self.dropped = False
        self._scores: dict[int, float | None] = {}
        self._left: list[int] = []  # members that are no trial yet, in the order in which they were drawn
        self._ranked = False
        self._probes: dict[int, int] = {}  # trial -> its model_id
        self._results: dict[int, float] = {}  # trial -> its first loss

    def pool(self) -> list[int]:
        """The model_ids of random members that fit together, each once: always the same."""
        random, found = Random(f"filter {self.seed}"), dict[int, None]()
        models = self.space.models
        assert models is not None
        for _ in range(TRIES * self.members):
            if len(found) == self.members:
                break
            model_id = models.model_id(self.space.sample(random))
            if model_id is not None:
                found[model_id] = None
        return list(found)

    def take(self, scores: Mapping[int, float | None]) -> None:
        """Begin with the scores of the pool's members; None: a member without a score, which is among the last."""
        self._scores = dict(scores)
        self._left = [model_id for model_id in self.pool() if model_id in self._scores]

    def draw(self, trial: int | None, random: Random) -> Point | None:
        """A point with the next member, and random hyper-parameters; None where the filter gives none."""
        if self.dropped or not self._left:
            return None
        models, model_id = self.space.models, self._left.pop(0)
        assert models is not None
        place = models.locate(model_id)
        if place is None:
            return None
        if not self._ranked and trial is not None and len(self._probes) < PROBES:
            self._probes[trial] = model_id
        return self.space.walk(lambda d: place[d.name] if d.name in place else d.sample(random))

    def tell(self, trial: int, loss: float) -> None:
        """Take a loss of a trial: its first one counts."""
        if trial not in self._probes or trial in self._results or self.correlation is not None:
            return
        self._results[trial] = loss
        self._judge()

    def tell_lost(self, trial: int) -> None:
        """A trial will have no result."""
        if trial in self._probes and trial not in self._results and self.correlation is None:
            del self._probes[trial]

    def _judge(self) -> None:
        if len(self._results) < PROBES:
            return
        known = [(self._scores[self._probes[trial]], loss) for trial, loss in self._results.items()]
        pairs = [(score, -loss) for score, loss in known if score is not None]
        self.correlation = spearman([score for score, _ in pairs], [loss for _, loss in pairs])
        if self.correlation < LEAST_CORRELATION:
            self.dropped = True
            return
        self._ranked = True
        worst = float("-inf")
        self._left.sort(key=lambda model_id: -(worst if (s := self._scores[model_id]) is None else s))


def read(name: str, parameters: dict[str, Any], has_models: bool) -> tuple[str, int] | None:
    """(kind, members) of the filter that the parameters of a search ask for, which are taken out of them; None without one.

    `name`: of the procedure; `has_models`: the search has a model space. Raises SearchError.
    """
    kind, members = parameters.pop("filter", "off"), parameters.pop("filter_members", None)
    kind = kind.lower() if isinstance(kind, str) else kind
    if kind is False or kind in OFF:
        if members is not None:
            raise SearchError("filter_members is for a search with a filter", f"Write filter={KINDS[0]}, too.")
        return None
    if kind not in KINDS:
        raise SearchError(f"filter must be one of {', '.join(KINDS)}, off, not {kind!r}")
    members = MEMBERS if members is None else members
    if not isinstance(members, int) or isinstance(members, bool) or not PROBES < members <= MOST_MEMBERS:
        raise SearchError(f"filter_members must be an integer from {PROBES + 1} to {MOST_MEMBERS}, not {members!r}")
    if not has_models:
        raise SearchError("a filter ranks the members of a model space", "mop_search(..., model_space => 'space')")
    if name.lower() not in PROCEDURES or parameters.get("sampler", "random") != "random":
        raise SearchError(
            f"a filter is for trials at random, of {', '.join(PROCEDURES)}",
            "Leave out filter, or choose one of these procedures, with sampler=random.",
        )
    return kind, members


def filter_by(procedure: Procedure, kind: str, members: int) -> None:
    """Give a procedure that draws at random a filter, which works once it has taken scores."""
    procedure.sampler.filter = Filter(procedure.space, procedure.seed, kind, members)  # type: ignore[attr-defined]
    if hasattr(procedure, "parallel"):  # (results must come before the last trial begins)
        procedure.parallel = min(procedure.parallel, PROBES)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The rank correlation of two sequences of equal lengths (Spearman, 1904), by mean ranks of equal values; 0 where one of
    them has equal values only.

    >>> spearman([1, 2, 3], [10, 20, 15])
    0.5
    """
    a, b = _ranks(one), _ranks(other)
    if len(a) < 2:
        return 0.0
    middle = (len(a) + 1) / 2
    top = sum((x - middle) * (y - middle) for x, y in zip(a, b))
    bottom = sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b)
    return top / bottom**0.5 if bottom else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda at: values[at])
    found: list[Any] = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            found[order[place]] = (start + end) / 2 + 1
        start = end + 1
    return found
