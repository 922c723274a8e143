"""Population-based training (Jaderberg et al.: "Population Based Training of Neural Networks", 2017)."""

import math
from bisect import bisect_left, insort
from random import Random

from mop_udf.params import SCALARS
from pg_mop.search import sources
from pg_mop.search.base import FAILED, MOST_ITERATIONS, PAUSED, STOPPED, Procedure, SearchError, choice, number, whole
from pg_mop.search.rungs import ordinal
from pg_mop.search.space import CHANGEABLE


class Member:
    """What a trial of the population is: the point that it came from, and what has been changed since."""

    __slots__ = ("point", "lists", "step")

    def __init__(self, point, lists):
        self.point, self.lists = point, lists  # lists: {name of a dimension: its value in each iteration}
        self.step = 0  # the comparison that it trains to


class Population(Procedure):
    """`population` trials train; every `interval` iterations the worst are replaced by copies of the best (exploit, by
    truncation selection), with hyper-parameters changed (explore): each times 0.8 or 1.2, a list's next choice up or
    down, or now and then drawn anew.

    A copy is a new trial whose changed parameters are lists, `lr=[0.1, 0.1, 0.08]`: its path shares the stages of the
    one that it copies, so that copying trains nothing. Members are compared at the same iteration: who is certainly
    neither among the worst nor among the best goes on at once, the others when all have arrived; so the result depends
    on no order. One that failed is among the worst. Only numbers change that can while a model trains: the optimizer's
    scalars, batch_size and dropout. What is known from earlier gives up to half of the first members, the best.
    """

    name = "population"
    PARAMETERS = {
        "population": whole(2, 10_000, 10, "trials that train side by side"),
        "iterations": whole(1, MOST_ITERATIONS, 20, "iterations of each member"),
        "interval": whole(1, MOST_ITERATIONS, 2, "iterations between comparisons"),
        "fraction": number(0.01, 0.5, 0.2, "share of the members that is replaced, and that is copied"),
        "resample": number(0, 1, 0.25, "chance of a hyper-parameter to be drawn anew"),
        "sampler": choice(("random", "grid"), "random", "where the first configurations come from"),
    }

    def __init__(self, space, seed, goal="min", **parameters):
        super().__init__(space, seed, goal, **parameters)
        if not any(_changeable(d) for branch in space.branches for d in branch.dimensions):
            raise SearchError(
                "population-based training has nothing to change in this space",
                "Let one of these be chosen from: " + ", ".join(CHANGEABLE),
            )
        self.source = sources.source(self.settings.sampler, space, seed)
        self.random = Random(f"explore {seed}")
        interval = self.settings.interval
        self.steps = (*range(interval, self.most, interval), self.most)

    @property
    def most(self):
        return self.settings.iterations

    def _begin(self):
        points = []
        for configuration, _ in self.known:
            point = self.space.locate(configuration)
            if (
                len(points) < self.settings.population // 2
                and point is not None
                and self.source.take(self.space.configuration(point))
            ):
                points.append(point)
        while len(points) < self.settings.population and (point := self.source.draw(None)) is not None:
            points.append(point)
        self.copied = max(1, int(self.settings.fraction * len(points)))
        self.generations = [Generation() for _ in self.steps]
        self.generations[0].complete = True
        for point in points:
            self._train(self._new(self.space.configuration(point)), Member(point, {}), 0)

    def _evaluates(self, trial):
        return self.steps

    def _train(self, trial, member, step):
        trial.data, member.step = member, step
        self.generations[step].pending += 1
        self._propose(trial, self.steps[step])

    def _reached(self, trial):
        if trial.state == STOPPED:  # nobody goes on from it
            self._lost(trial)
            return
        step = trial.data.step
        generation = self.generations[step]
        generation.pending -= 1
        insort(generation.told, (trial.loss, trial.number))
        if step < len(self.steps) - 1:
            place = bisect_left(generation.told, (trial.loss, trial.number))
            # of those in the middle, only these may be new there
            for middle in {place, self.copied, len(generation.told) - self.copied - 1}:
                if self.copied <= middle < len(generation.told) - self.copied:
                    self._go_on(generation.told[middle][1], step)
            self._close(step)

    def _lost(self, trial):
        generation = self.generations[trial.data.step]
        generation.pending -= 1
        if trial.state == FAILED:
            generation.failed.append(trial.number)
        self._close(trial.data.step)

    def _withdrawn(self, trial):
        generation = self.generations[trial.data.step]
        generation.told.remove((trial.loss, trial.number))

    def _go_on(self, number, step):
        trial = self.trials[number]
        if trial.state == PAUSED and trial.data.step == step:
            self._train(trial, trial.data, step + 1)

    def _close(self, step):
        """Where all members have arrived at a step: replace the worst, let the others go on."""
        generation = self.generations[step]
        if generation.pending or not generation.complete or step == len(self.steps) - 1:
            return
        generation.complete = False  # once only
        ranked = [n for _, n in generation.told]
        best = ranked[: self.copied]
        worst = ranked[max(len(best), len(ranked) - max(0, self.copied - len(generation.failed))) :]
        for going in ranked[: len(ranked) - len(worst)]:
            self._go_on(going, step)
        for going in [*worst, *sorted(generation.failed)] if best else ():
            copied = self.random.choice(best)
            copy = self._copy(self.trials[copied], step)
            instead = f"trial {copy.number}, a copy of {copied}, goes on instead"
            if going in generation.failed:
                self.why[going] += f"; {instead}"
            else:
                place = ordinal(len(ranked) - len(worst) + worst.index(going) + 1)
                self._stop(self.trials[going], f"iteration {self.steps[step]}: {place} of {len(ranked)}; {instead}")
        self.generations[step + 1].complete = True
        self._close(step + 1)

    def _copy(self, trial, step):
        """A new trial that has been `trial` until the step, and explores from there."""
        until, member = self.steps[step], trial.data
        lists = {name: (values + values[-1:] * until)[:until] for name, values in member.lists.items()}
        for dimension in self.space.branch_of(member.point).dimensions:
            name = dimension.name
            past = lists.get(name) or [dimension.value(member.point[name])] * until
            if _changeable(dimension) and _is_number(past[-1]):  # (a sequence goes on as it is)
                lists[name] = [*past, self._explored(dimension, past[-1])]
        copy = self._new(self.space.configuration(member.point, lists))
        copy.at = until
        self._train(copy, Member(member.point, lists), step + 1)
        return copy

    def _explored(self, dimension, value):
        """Another value of the dimension than `value`, if there is one."""
        again, up = self.random.random() < self.settings.resample, self.random.random() < 0.5
        if dimension.kind is not None:
            if again:
                return _short(dimension, dimension.sample(self.random))
            for factor in (1.2, 0.8) if up else (0.8, 1.2):
                other = _short(dimension, value * factor)
                if other != value:
                    return other
            return value
        choices = _numbers(dimension, value)
        if again:
            return self.random.choice(choices)
        at = choices.index(value)
        if len(choices) == 1:
            return value
        up = at == 0 or up and at < len(choices) - 1
        return choices[at + 1 if up else at - 1]


class Generation:
    """The members at one step."""

    __slots__ = ("pending", "told", "failed", "complete")

    def __init__(self):
        self.pending = 0  # that train to it
        self.told = []  # [(loss, number)] that have arrived, the best first
        self.failed = []
        self.complete = False  # no more come; False again once it has been decided on


def _changeable(dimension):
    return (
        dimension.open
        and dimension.key in CHANGEABLE
        and (dimension.kind is not None or len(_numbers(dimension, None)) > 1)
    )


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(dimension, value):
    """The number of a distribution with at most six digits, as it will be written many times."""
    if dimension.whole:
        return min(max(round(value), math.ceil(dimension.low)), math.floor(dimension.high))
    return min(max(float(f"{value:.6g}"), dimension.low), dimension.high)


def _numbers(dimension, value):
    """The choices that are numbers, in order; for an optimizer's scalar other than the learning rate those of the sign
    of `value` (where it is not None), as Keras' optimizers have other variables for 0."""
    numbers = sorted({c for c in dimension.choices if _is_number(c)})
    if value is None or dimension.key not in SCALARS or dimension.key == "learning_rate":
        return numbers
    return [n for n in numbers if (n > 0) == (value > 0) and (n < 0) == (value < 0)]
