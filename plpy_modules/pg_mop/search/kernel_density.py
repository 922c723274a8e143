"""The sampler of BOHB, for trials with losses at several budgets (Falkner, Klein, Hutter: "BOHB: Robust and Efficient
Hyperparameter Optimization at Scale", ICML 2018, sections 3.2 and 4.1)."""

import math
from bisect import insort
from collections.abc import Sequence
from random import Random

from pg_mop.search.random_sampler import RandomSampler
from pg_mop.search.space import Coordinate, Dimension, ParameterSet, Point, Space

AT_RANDOM = 1 / 3  # share of random proposals
GOOD = 0.15  # share of a budget's trials that count as good
CANDIDATES = 64  # points that are drawn near good ones; the most promising one is proposed
WIDER = 3  # factor on the bandwidth when candidates are drawn
EVERYWHERE = 0.1  # share of a density that is uniform
MOST = 500  # points of a density

Key = int  # a trial's number; negative for a configuration with earlier results


class KdeSampler(RandomSampler):
    """Proposes points that are likely among good trials and unlikely among bad ones: TPE with one kernel density
    estimate over all dimensions.

    The model uses the losses of the largest budget that has N_min + 2 of them (N_min = dimensions + 1). The best 15 % of
    these trials are good, but at least N_min. All other trials are bad, also those that have not reached that budget.
    The paper takes the bad ones from that budget alone. But only the best trials of a budget go on to the next budget,
    so the bad ones of a large budget lie close to the good ones and would keep proposals away from that region. Failed
    trials are bad, and so are running ones, so that trials that run at the same time differ. With 1,000 trials, a
    proposal takes about 25 ms.
    """

    def __init__(self, space: Space, seed: int, at_random: float = AT_RANDOM) -> None:
        """`at_random`: the share of random proposals."""
        super().__init__(space, seed)
        self.at_random = at_random
        self.least = space.most_open + 1
        self.points: dict[Key, Point] = {}
        self.losses_at: dict[int, list[tuple[float, Key]]] = {}  # budget -> losses, the best first
        self.losses_of: dict[Key, dict[int, float]] = {}  # -> {budget: loss}
        self.failed: set[Key] = set()
        self.withdrawn: set[Key] = set()
        self.known: dict[ParameterSet, Key] = {}  # configurations with earlier results
        self.resumed: dict[int, Key] = {}  # trial -> the key of the configuration that it continues

    @property
    def budget(self) -> int | None:
        """The budget whose losses the model uses; None: no budget has enough losses."""
        return max((b for b, losses in self.losses_at.items() if len(losses) >= self.least + 2), default=None)

    def ask(self, trial: int | None) -> Point | None:
        point = None
        if self.random.random() >= self.at_random:
            point = self._from_model()
        if point is None:
            point = super().ask(trial)
        if point is not None and trial is not None:
            self.points[trial] = point
        return point

    def tell(self, trial: int, budget: int, loss: float) -> None:
        key = self.resumed.get(trial, trial)
        if key in self.points:
            self._add(key, budget, loss)

    def tell_lost(self, trial: int, failed: bool) -> None:
        key = self.resumed.get(trial, trial)
        if failed:
            self.failed.add(key)
            for budget, loss in self.losses_of.pop(key, {}).items():
                self.losses_at[budget].remove((loss, key))
        else:
            self.withdrawn.add(key)

    def add_result(self, configuration: ParameterSet, budget: int, loss: float) -> None:
        point = self.space.locate(configuration)
        if point is not None:
            key = self.known.setdefault(configuration, -1 - len(self.known))
            self.points[key] = point
            self._add(key, budget, loss)

    def resume(self, trial: int, configuration: ParameterSet) -> None:
        if configuration in self.known:
            self.resumed[trial] = self.known[configuration]

    def _add(self, key: Key, budget: int, loss: float) -> None:
        losses = self.losses_of.setdefault(key, {})
        if budget not in losses:
            losses[budget] = loss
            insort(self.losses_at.setdefault(budget, []), (loss, key))

    def _from_model(self) -> Point | None:
        """A new point that the model proposes; None: the model has too few losses, or finds no new point."""
        if (budget := self.budget) is None:
            return None
        ranked = [key for _, key in self.losses_at[budget]]
        good = ranked[: max(self.least, math.ceil(GOOD * len(ranked)))]
        # (a trial that a user stopped may have been good or bad)
        excluded = {*good, *(key for key in self.withdrawn if budget not in self.losses_of.get(key, {}))}
        bad = [key for key in self.points if key not in excluded]
        if len(bad) < self.least:
            bad += ranked[len(good) - (self.least - len(bad)) : len(good)]
        count = len(self.losses_of)
        better, worse = (Density(self.space, [self.points[k] for k in _some(keys)], count) for keys in (good, bad))
        candidates = [better.sample(self.random) for _ in range(CANDIDATES)]
        for point in sorted(candidates, key=lambda p: worse.log(p) - better.log(p)):
            if self.claim(self.space.configuration(point)):
                return point
        return None


class Density:
    """A kernel density estimate: around each of some points a product of one-dimensional kernels, and one uniform kernel,
    so that good and bad are equally likely far from all trials. A point of one branch of the space says nothing about
    the dimensions of another branch."""

    def __init__(self, space: Space, points: Sequence[Point], count: int) -> None:
        """`count`: trials with losses; with more of them, kernels may be narrower."""
        self.space, self.points = space, points
        self.kernels: dict[str, NumberKernels | ChoiceKernels] = {}
        many = space.most_open
        for dimension in space.dimensions.values():
            if dimension.open:
                positions = [_position(dimension, p[dimension.name]) if dimension.name in p else None for p in points]
                self.kernels[dimension.name] = (
                    ChoiceKernels(dimension, positions)
                    if dimension.kind is None
                    else NumberKernels(dimension, positions, many, count)
                )

    def sample(self, random: Random) -> Point:
        """A point near one of the estimate's points, or (EVERYWHERE) a uniform one."""
        if random.random() < EVERYWHERE:
            return self.space.sample(random)
        near = random.choice(self.points)

        def choose(dimension: Dimension) -> Coordinate:
            if dimension.open and dimension.name in near:
                return self.kernels[dimension.name].sample(random, near[dimension.name])
            return dimension.sample(random)

        return self.space.walk(choose)

    def log(self, point: Point) -> float:
        """The logarithm of the density at a point."""
        sums = [0.0] * (len(self.points) + 1)  # the last one is the uniform kernel
        for name, kernel in self.kernels.items():
            if name in point:
                kernel.add(sums, point[name])
        sums[-1] += math.log(EVERYWHERE / (1 - EVERYWHERE) * len(self.points))
        most = max(sums)
        return most + math.log(sum(math.exp(s - most) for s in sums) / len(self.points))


class NumberKernels:
    """Normal kernels of a distribution, whose positions are from 0 to 1. The bandwidth follows the normal reference rule,
    with a lower bound, so that a search does not stay near its first good trials."""

    def __init__(self, dimension: Dimension, positions: Sequence[float | None], many: int, count: int) -> None:
        self.dimension, self.positions = dimension, positions
        known = [p for p in positions if p is not None]
        mean = sum(known) / len(known) if known else 0
        spread = math.sqrt(sum((p - mean) ** 2 for p in known) / (len(known) - 1)) if len(known) > 1 else 0
        self.width = max(1.06 * spread * max(1, len(known)) ** (-1 / (4 + many)), 2 / min(100, 2 + count))

    def sample(self, random: Random, near: Coordinate) -> Coordinate:
        """A coordinate near another one."""
        center = _position(self.dimension, near)
        for _ in range(100):
            position = random.gauss(center, WIDER * self.width)
            if 0 <= position <= 1:
                break
        return _coordinate(self.dimension, min(max(position, 0.0), 1.0))

    def add(self, sums: list[float], coordinate: Coordinate) -> None:
        """Add the logarithms of all kernels at a coordinate to `sums`."""
        at, factor = _position(self.dimension, coordinate), -0.5 / self.width**2
        constant = math.log(self.width * math.sqrt(2 * math.pi))
        for i, position in enumerate(self.positions):
            if position is not None:
                sums[i] += factor * (at - position) ** 2 - constant


class ChoiceKernels:
    """Kernels of choices (Aitchison, Aitken): the same choice is likely, all others are equally unlikely."""

    def __init__(self, dimension: Dimension, positions: Sequence[float | None]) -> None:
        self.positions, self.count = positions, len(dimension.choices)
        self.other = (1 - 1 / self.count) * max(1, sum(p is not None for p in positions)) ** -0.5

    def sample(self, random: Random, near: Coordinate) -> Coordinate:
        """The same choice, or now and then another one."""
        if random.random() >= self.other:
            return near
        return random.choice([c for c in range(self.count) if c != near])

    def add(self, sums: list[float], coordinate: Coordinate) -> None:
        """Add the logarithms of all kernels at a coordinate to `sums`."""
        same, other = math.log(1 - self.other), math.log(self.other / (self.count - 1))
        for i, position in enumerate(self.positions):
            if position is not None:
                sums[i] += same if position == coordinate else other
        sums[-1] -= math.log(self.count)


def _position(dimension: Dimension, coordinate: Coordinate) -> float:
    """The position of a coordinate from 0 to 1, such that random positions are uniform; of a choice, its index."""
    if dimension.kind is None:
        return coordinate
    low, high = _scaled(dimension, dimension.low), _scaled(dimension, dimension.high)
    return (_scaled(dimension, coordinate) - low) / (high - low)


def _scaled(dimension: Dimension, coordinate: Coordinate) -> float:
    if dimension.kind == "log":
        return math.log(coordinate)
    return -math.log(1 - coordinate) if dimension.kind == "log_near_one" else coordinate


def _coordinate(dimension: Dimension, position: float) -> Coordinate:
    """The coordinate at a position from 0 to 1."""
    low, high = _scaled(dimension, dimension.low), _scaled(dimension, dimension.high)
    value = low + position * (high - low)
    if dimension.kind == "log":
        value = math.exp(value)
    elif dimension.kind == "log_near_one":
        value = 1 - math.exp(-value)
    if dimension.whole:
        return min(max(round(value), math.ceil(dimension.low)), math.floor(dimension.high))
    return min(max(value, dimension.low), dimension.high)


def _some(keys: list[Key]) -> list[Key]:
    """At most MOST of the keys, evenly spread."""
    return keys if len(keys) <= MOST else [keys[i * len(keys) // MOST] for i in range(MOST)]
