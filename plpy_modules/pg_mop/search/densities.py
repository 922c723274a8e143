"""The model of BOHB, for trials that are told of at several budgets (Falkner, Klein, Hutter: "BOHB: Robust and
Efficient Hyperparameter Optimization at Scale", ICML 2018, sections 3.2 and 4.1)."""

import math
from bisect import insort

from pg_mop.search.sources import AtRandom

AT_RANDOM = 1 / 3  # share of the proposals that the model does not make
GOOD = 0.15  # share of a budget's trials that are good ones
CANDIDATES = 64  # points near the good ones, of which the most promising is proposed
WIDER = 3  # bandwidth with which these are drawn, by the density's
EVERYWHERE = 0.1  # share of a density that is everywhere the same
MOST = 500  # points of a density


class Densities(AtRandom):
    """Points that are likely among the good trials and unlikely among the bad ones: TPE with one density over all
    dimensions.

    The largest budget with N_min + 2 losses has the say (N_min = dimensions + 1). Of its trials the best 15 % are good,
    N_min of them at least. The others are bad, and so is every trial that has not got as far. The paper takes the bad
    ones from that budget, too. But only the best of a budget go on to the next, so that those of a large budget lie
    around the good ones, and would keep proposals away from there. A trial that failed is a bad one, and so is one that
    is still training, so that those that train together differ.
    Of 1,000 trials a proposal takes some 25 ms.
    """

    def __init__(self, space, seed, at_random=AT_RANDOM):
        """`at_random`: share of the proposals that is drawn at random."""
        super().__init__(space, seed)
        self.at_random = at_random
        self.least = _dimensions(space) + 1
        self.points = {}  # key -> point; a key is a trial's number, or a negative one of what is known from earlier
        self.told_at = {}  # budget -> [(loss, key)], the best first
        self.told_of = {}  # key -> {budget: loss}
        self.failed, self.withdrawn = set(), set()  # keys
        self.known = {}  # configuration -> its key
        self.goes_on_as = {}  # trial's number -> the key of what is known of it from earlier

    @property
    def budget(self):
        """The budget that has the say; None where each has too few losses."""
        return max((b for b, told in self.told_at.items() if len(told) >= self.least + 2), default=None)

    def draw(self, trial):
        point = None
        if self.random.random() >= self.at_random:
            point = self._modelled()
        if point is None:
            point = super().draw(trial)
        if point is not None:
            self.points[trial] = point
        return point

    def told(self, trial, budget, loss):
        key = self.goes_on_as.get(trial, trial)
        if key in self.points:
            self._note(key, budget, loss)

    def lost(self, trial, failed):
        key = self.goes_on_as.get(trial, trial)
        if failed:
            self.failed.add(key)
            for budget, loss in self.told_of.pop(key, {}).items():
                self.told_at[budget].remove((loss, key))
        else:
            self.withdrawn.add(key)

    def knows(self, configuration, budget, loss):
        point = self.space.locate(configuration)
        if point is not None:
            key = self.known.setdefault(configuration, -1 - len(self.known))
            self.points[key] = point
            self._note(key, budget, loss)

    def goes_on(self, trial, configuration):
        if configuration in self.known:
            self.goes_on_as[trial] = self.known[configuration]

    def _note(self, key, budget, loss):
        told = self.told_of.setdefault(key, {})
        if budget not in told:
            told[budget] = loss
            insort(self.told_at.setdefault(budget, []), (loss, key))

    def _modelled(self):
        """A new point that the model proposes; None: it has too little to go by, or nothing new."""
        if (budget := self.budget) is None:
            return None
        ranked = [key for _, key in self.told_at[budget]]
        good = ranked[: max(self.least, math.ceil(GOOD * len(ranked)))]
        # (of one that a person stopped nothing is known beyond what has been told)
        off = {*good, *(key for key in self.withdrawn if budget not in self.told_of.get(key, {}))}
        bad = [key for key in self.points if key not in off]
        if len(bad) < self.least:
            bad += ranked[len(good) - (self.least - len(bad)) : len(good)]
        told = len(self.told_of)
        better, worse = (Density(self.space, [self.points[k] for k in _some(keys)], told) for keys in (good, bad))
        candidates = [better.drawn(self.random) for _ in range(CANDIDATES)]
        for point in sorted(candidates, key=lambda p: worse.log(p) - better.log(p)):
            if self.take(self.space.configuration(point)):
                return point
        return None


class Density:
    """A kernel around each of some points, the product of one for each dimension, and one kernel that is everywhere
    the same: where no trial has come near, good ones and bad ones are equally likely. A point of another branch of the
    space says nothing of a dimension."""

    def __init__(self, space, points, told):
        """`told`: trials of which losses are known; the more, the narrower a kernel may be."""
        self.space, self.points, self.kernels = space, points, {}
        dimensions = {d.name: d for d in space.first}
        dimensions.update((d.name, d) for branch in space.branches for d in branch.dimensions)
        many = _dimensions(space)
        for dimension in dimensions.values():
            if dimension.open:
                places = [_place(dimension, p[dimension.name]) if dimension.name in p else None for p in points]
                self.kernels[dimension.name] = (
                    Choices(dimension, places) if dimension.kind is None else Numbers(dimension, places, many, told)
                )

    def drawn(self, random):
        """A point near one of these, or now and then anywhere."""
        if random.random() < EVERYWHERE:
            return self.space.sample(random)
        near = random.choice(self.points)

        def choose(dimension):
            if dimension.open and dimension.name in near:
                return self.kernels[dimension.name].drawn(random, near[dimension.name])
            return dimension.sample(random)

        return self.space.walk(choose)

    def log(self, point):
        """The logarithm of the density at a point."""
        sums = [0.0] * (len(self.points) + 1)  # the last one is of the kernel that is everywhere
        for name, kernel in self.kernels.items():
            if name in point:
                kernel.add(sums, point[name])
        sums[-1] += math.log(EVERYWHERE / (1 - EVERYWHERE) * len(self.points))
        most = max(sums)
        return most + math.log(sum(math.exp(s - most) for s in sums) / len(self.points))


class Numbers:
    """The kernels of a distribution, whose places are from 0 to 1: normal, of a bandwidth by the normal reference rule,
    which does not become so small that a search stays where its first good trials are."""

    def __init__(self, dimension, places, many, told):
        self.dimension, self.places = dimension, places
        here = [p for p in places if p is not None]
        mean = sum(here) / len(here) if here else 0
        spread = math.sqrt(sum((p - mean) ** 2 for p in here) / (len(here) - 1)) if len(here) > 1 else 0
        self.width = max(1.06 * spread * max(1, len(here)) ** (-1 / (4 + many)), 2 / min(100, 2 + told))

    def drawn(self, random, near):
        """A coordinate near another one."""
        near = _place(self.dimension, near)
        for _ in range(100):
            at = random.gauss(near, WIDER * self.width)
            if 0 <= at <= 1:
                break
        return _coordinate(self.dimension, min(max(at, 0.0), 1.0))

    def add(self, sums, coordinate):
        """Add the logarithm of each place's kernel at a coordinate, and of the one that is everywhere."""
        at, factor, constant = (
            _place(self.dimension, coordinate),
            -0.5 / self.width**2,
            math.log(self.width * math.sqrt(2 * math.pi)),
        )
        for i, place in enumerate(self.places):
            if place is not None:
                sums[i] += factor * (at - place) ** 2 - constant


class Choices:
    """The kernels of choices (Aitchison, Aitken): the same one is likely, all others are equally unlikely."""

    def __init__(self, dimension, places):
        self.places, self.count = places, len(dimension.choices)
        self.other = (1 - 1 / self.count) * max(1, sum(p is not None for p in places)) ** -0.5

    def drawn(self, random, near):
        if random.random() >= self.other:
            return near
        return random.choice([c for c in range(self.count) if c != near])

    def add(self, sums, coordinate):
        same, other = math.log(1 - self.other), math.log(self.other / (self.count - 1))
        for i, place in enumerate(self.places):
            if place is not None:
                sums[i] += same if place == coordinate else other
        sums[-1] -= math.log(self.count)


def _dimensions(space):
    """How many a point has, at most, in which there is something to choose."""
    return max(sum(d.open for d in branch.dimensions) for branch in space.branches) + space.branch.open


def _place(dimension, coordinate):
    """Where a coordinate is from 0 to 1, equally likely everywhere at random; of choices the choice itself."""
    if dimension.kind is None:
        return coordinate
    low, high = _scaled(dimension, dimension.low), _scaled(dimension, dimension.high)
    return (_scaled(dimension, coordinate) - low) / (high - low)


def _scaled(dimension, coordinate):
    if dimension.kind == "log":
        return math.log(coordinate)
    return -math.log(1 - coordinate) if dimension.kind == "log_near_one" else coordinate


def _coordinate(dimension, place):
    """The coordinate at a place from 0 to 1."""
    low, high = _scaled(dimension, dimension.low), _scaled(dimension, dimension.high)
    value = low + place * (high - low)
    if dimension.kind == "log":
        value = math.exp(value)
    elif dimension.kind == "log_near_one":
        value = 1 - math.exp(-value)
    if dimension.whole:
        return min(max(round(value), math.ceil(dimension.low)), math.floor(dimension.high))
    return min(max(value, dimension.low), dimension.high)


def _some(keys):
    """At most MOST of them, spread evenly."""
    return keys if len(keys) <= MOST else [keys[i * len(keys) // MOST] for i in range(MOST)]
