"""Population-based training (Jaderberg et al.: "Population Based Training of Neural Networks", 2017)."""

import math
from bisect import bisect_left, insort
from collections.abc import Collection
from random import Random
from typing import Any

from mop_udf.params.params import SCALARS
from pg_mop.search.base import ENDED, FAILED, PAUSED, STOPPED, Procedure, Trial, TrialNumber
from pg_mop.search.parameters import MOST_ITERATIONS, SearchError, integer, number, word
from pg_mop.search.rungs import ordinal
from pg_mop.search.samplers import create_sampler
from pg_mop.search.space import CHANGEABLE, Coordinate, Dimension, Point, Space

Lists = dict[str, list[Any]]  # name of a dimension -> its value in each iteration


TRIES = 20  # mutations of a model until one fits together and inherits weights


class Member:
    """A trial of the population: the point that it started from, and its changes since.

    `before`: iterations that its weights have behind them from other trials; its own iterations begin after them.
    """

    __slots__ = ("point", "lists", "step", "lineage", "before")

    def __init__(self, point: Point, lists: Lists, lineage: dict[str, Any] | None = None, before: int = 0) -> None:
        self.point, self.lists, self.lineage, self.before = point, lists, lineage, before
        self.step = 0  # number of the comparison that it trains to


class Population(Procedure):
    """`population` trials train. Every `interval` iterations, copies of the best trials replace the worst ones (exploit,
    by truncation selection), with changed hyper-parameters (explore): a number is multiplied by 0.8 or 1.2, a choice
    moves up or down its list, and now and then a value is sampled anew.

    A copy is a new trial whose changed parameters are lists, `lr=[0.1, 0.1, 0.08]`. Its path shares the stages of the
    copied trial, so copying trains nothing. Members are compared at the same iteration: a member that is certainly
    neither among the worst nor among the best goes on at once, the others when all members have arrived; so the order
    of results does not decide. A failed member is among the worst. Only numbers change that may change while a model
    trains: the optimizer's scalars, batch_size and dropout. Up to half of the first members continue the best
    configurations of earlier results.

    In a model space, a copy's model changes, too, with the probability `mutate`: in one random choice, so that the new model
    fits together and inherits weights of the copied one. Such a copy begins with these weights, and a new optimizer, and so do
    all copies of it; its iterations count from there, and it is compared with the members that have as many iterations behind
    them. Where no such model is found, the model stays.
    """

    name = "population"
    PARAMETERS = {
        "population": integer(2, 10_000, 10, "trials that train side by side"),
        "iterations": integer(1, MOST_ITERATIONS, 20, "iterations of each member"),
        "interval": integer(1, MOST_ITERATIONS, 2, "iterations between comparisons"),
        "fraction": number(0.01, 0.5, 0.2, "share of the members that is replaced, and that is copied"),
        "resample": number(0, 1, 0.25, "probability that a hyper-parameter is sampled anew"),
        "mutate": number(0, 1, 0, "probability that the model of a copy changes, too, in a model space"),
        "sampler": word(("random", "grid"), "random", "where the first configurations come from"),
    }

    def __init__(self, space: Space, seed: int, goal: str = "min", **parameters: Any) -> None:
        super().__init__(space, seed, goal, **parameters)
        if self.settings.mutate and space.models is None:
            raise SearchError(
                f"mutate={self.settings.mutate} changes the members of a model space",
                "mop_search(..., model_space => 'space'), or leave out mutate.",
            )
        models = bool(self.settings.mutate) and space.models is not None and space.models.most_open > 0
        if not models and not any(_changeable(d) for branch in space.branches for d in branch.dimensions):
            raise SearchError(
                "population-based training has nothing to change in this space",
                "Give several values to at least one of these: " + ", ".join(CHANGEABLE),
            )
        self.sampler = create_sampler(self.settings.sampler, space, seed)
        self.random = Random(f"explore {seed}")
        self.dimensions = space.dimensions
        interval = self.settings.interval
        self.steps = (*range(interval, self.most, interval), self.most)  # iterations of the comparisons

    @property
    def most(self) -> int:
        return self.settings.iterations

    def lineage(self, trial: TrialNumber) -> dict[str, Any] | None:
        member = self.trials[trial].data
        return None if member is None else member.lineage

    def _begin(self) -> None:
        points: list[Point] = []
        for configuration, _ in self.known:
            located = self.space.locate(configuration)
            if (
                len(points) < self.settings.population // 2
                and located is not None
                and self.sampler.claim(self.space.configuration(located))
            ):
                points.append(located)
        while len(points) < self.settings.population and (point := self.sampler.ask(None)) is not None:
            points.append(point)
        self.copied = max(1, int(self.settings.fraction * len(points)))  # members to copy, and to replace
        self.generations = [Generation() for _ in self.steps]
        self.generations[0].complete = True
        for point in points:
            self._train(self._new(self.space.configuration(point)), Member(point, {}), 0)

    def _evaluates(self, trial: Trial) -> Collection[int]:
        return tuple(step - trial.data.before for step in self.steps if step > trial.data.before)

    def _train(self, trial: Trial, member: Member, step: int) -> None:
        trial.data, member.step = member, step
        self.generations[step].pending += 1
        self._propose(trial, self.steps[step] - member.before)

    def _on_budget(self, trial: Trial) -> None:
        if trial.state == STOPPED:  # by its own rule
            self._on_lost(trial)
            return
        step = trial.data.step
        generation = self.generations[step]
        generation.pending -= 1
        insort(generation.arrived, (trial.loss, trial.number))
        if step < len(self.steps) - 1:
            position = bisect_left(generation.arrived, (trial.loss, trial.number))
            # of the members in the middle, only these may be new there
            for middle in {position, self.copied, len(generation.arrived) - self.copied - 1}:
                if self.copied <= middle < len(generation.arrived) - self.copied:
                    self._go_on(generation.arrived[middle][1], step)
            self._close(step)
        else:
            trial.state = ENDED  # (a mutated copy has fewer iterations of its own)

    def _on_lost(self, trial: Trial) -> None:
        generation = self.generations[trial.data.step]
        generation.pending -= 1
        if trial.state == FAILED:
            generation.failed.append(trial.number)
        self._close(trial.data.step)

    def _on_withdrawn(self, trial: Trial) -> None:
        generation = self.generations[trial.data.step]
        generation.arrived.remove((trial.loss, trial.number))

    def _go_on(self, number: TrialNumber, step: int) -> None:
        trial = self.trials[number]
        if trial.state == PAUSED and trial.data.step == step:
            self._train(trial, trial.data, step + 1)

    def _close(self, step: int) -> None:
        """When all members have arrived at a step, replace the worst ones and let the others go on."""
        generation = self.generations[step]
        if generation.pending or not generation.complete or step == len(self.steps) - 1:
            return
        generation.complete = False  # once only
        ranked = [n for _, n in generation.arrived]
        best = ranked[: self.copied]
        worst = ranked[max(len(best), len(ranked) - max(0, self.copied - len(generation.failed))) :]
        for member in ranked[: len(ranked) - len(worst)]:
            self._go_on(member, step)
        for member in [*worst, *sorted(generation.failed)] if best else ():
            copied = self.random.choice(best)
            copy = self._copy(self.trials[copied], step)
            instead = f"trial {copy.number}, a copy of {copied}, goes on instead"
            if member in generation.failed:
                self.why[member] += f"; {instead}"
            else:
                position = ordinal(len(ranked) - len(worst) + worst.index(member) + 1)
                at = self.steps[step] - self.trials[member].data.before
                self._stop(self.trials[member], f"iteration {at}: {position} of {len(ranked)}; {instead}")
        self.generations[step + 1].complete = True
        self._close(step + 1)

    def _copy(self, trial: Trial, step: int) -> Trial:
        """A new trial that equals `trial` up to the step, and explores from there; or, where a model on its line has been
        mutated, one that begins with what fits of its weights."""
        member = trial.data
        until = self.steps[step] - member.before  # of the trial's own iterations
        lists: Lists = {name: (values + values[-1:] * until)[:until] for name, values in member.lists.items()}
        for dimension in self.space.branch_of(member.point).dimensions:
            name = dimension.name
            past = lists.get(name) or [dimension.value(member.point[name])] * until
            if _changeable(dimension) and _is_number(past[-1]):  # (a sequence continues unchanged)
                lists[name] = [*past, self._explored(dimension, past[-1])]
        changed = [self.dimensions[name].key for name in lists if lists[name][-1:] != lists[name][-2:-1]]
        lineage: dict[str, Any] = {"parent": trial.number, "changed": ", ".join(changed)}
        mutated = self._mutated(member.point)
        point = member.point
        if mutated is not None:
            point, name = mutated
            label, before = self.space.told(name, member.point[name])
            after = self.space.told(name, point[name])[1]
            lineage.update(changed=", ".join((label, *changed)), before=before, after=after)
        if (
            mutated or member.before
        ):  # (the path of a mutated copy cannot begin again: its parent's state is gone by then)
            lineage.update(inherits=True, iteration=until)
            copied = Member(point, {key: values[-1:] for key, values in lists.items()}, lineage, self.steps[step])
        else:
            lineage.update(inherited=f"iterations 1 to {until}")
            copied = Member(point, lists, lineage)
        values = {name: own if len(own) > 1 else own[0] for name, own in copied.lists.items()}
        copy = self._new(self.space.configuration(copied.point, values))
        copy.at = self.steps[step] - copied.before
        self._train(copy, copied, step + 1)
        return copy

    def _mutated(self, point: Point) -> tuple[Point, str] | None:
        """A point with another model, which inherits weights of the point's, and the name of the choice that differs; None
        where the model stays."""
        models = self.space.models
        if models is None or not self.settings.mutate or self.random.random() >= self.settings.mutate:
            return None
        names = [name for name in models.own(point) if self.dimensions[name].open]
        for _ in range(TRIES if names else 0):
            name = self.random.choice(names)
            other = self.space.mutated(point, name, self.random)
            if models.inherits(models.model_id(other), models.model_id(point)):
                return other, name
        return None

    def _explored(self, dimension: Dimension, value: Any) -> Any:
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

    __slots__ = ("pending", "arrived", "failed", "complete")

    def __init__(self) -> None:
        self.pending = 0  # members that train to the step
        self.arrived: list[tuple[float, TrialNumber]] = []  # (loss, trial), the best first
        self.failed: list[TrialNumber] = []
        self.complete = False  # all members are known; False again after the comparison


def _changeable(dimension: Dimension) -> bool:
    return (
        dimension.open
        and dimension.key in CHANGEABLE
        and (dimension.kind is not None or len(_numbers(dimension, None)) > 1)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(dimension: Dimension, value: Coordinate) -> Coordinate:
    """A number of a distribution with at most six digits, because parameter texts repeat it in every iteration."""
    if dimension.whole:
        return min(max(round(value), math.ceil(dimension.low)), math.floor(dimension.high))
    return min(max(float(f"{value:.6g}"), dimension.low), dimension.high)


def _numbers(dimension: Dimension, value: Any) -> list:
    """The choices that are numbers, in order. For an optimizer's scalar other than the learning rate, only those of the
    sign of `value` (unless None), because Keras' optimizers have other variables for 0."""
    numbers = sorted({c for c in dimension.choices if _is_number(c)})
    if value is None or dimension.key not in SCALARS or dimension.key == "learning_rate":
        return numbers
    return [n for n in numbers if (n > 0) == (value > 0) and (n < 0) == (value < 0)]
