"""The space of a search: its dimensions from MADlib's grid texts, its points, and their configurations."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from mop_udf.params import params
from pg_mop.search import grids
from pg_mop.search.dimension import CHANGEABLE, Coordinate, Dimension, Place, bare_optimizer
from pg_mop.search.models import ModelChoices

__all__ = ["CHANGEABLE", "Branch", "ParameterSet", "Coordinate", "Dimension", "Point", "Space"]

Point = Place


class ParameterSet(NamedTuple):
    """The model and the parameters of a configuration; `model_id` is None where the model does not fit together."""

    model_id: int | None
    compile_params: str
    fit_params: str


@dataclass
class Branch:
    """One grid, with one entry of its optimizer_params_list where it has such a list."""

    model: Dimension
    optimizer: list[Dimension] | None
    common: list[Dimension]  # other compile parameters
    fit: list[Dimension]

    def __post_init__(self) -> None:
        self.dimensions: list[Dimension] = [self.model, *(self.optimizer or ()), *self.common, *self.fit]


class Space:
    """Grids of model ids, compile parameters and fit parameters; each configuration belongs to one of the grids.

    A *point* is {name of a dimension: coordinate}: `branch`, and the dimensions of that branch. So the space is
    conditional.
    """

    def __init__(self, *several: Mapping[str, Any], models: ModelChoices | None = None) -> None:
        """`several`: grids {key: choices}, each with the key `model_id`, unless the models come from a model space,
        `models`. Raises GridError for a wrong distribution."""
        self.branches: list[Branch] = []
        self.models = models
        for number, grid in enumerate(several):
            prefix = f"{number}/" if len(several) > 1 else ""
            made = {
                key: Dimension(prefix + key, key, choices)
                for key, choices in grid.items()
                if key != "optimizer_params_list"
            }
            model = made.pop("model_id") if models is None else models.base
            common = [made[key] for key in made if key in grids.COMPILE_KEYS]
            fit = [made[key] for key in made if key not in grids.COMPILE_KEYS]
            for block in grid.get("optimizer_params_list", (None,)):
                optimizer = (
                    None
                    if block is None
                    else [Dimension(f"{len(self.branches)}.{key}", key, choices) for key, choices in block.items()]
                )
                self.branches.append(Branch(model, optimizer, common, fit))
        self.branch = Dimension("branch", "branch", range(len(self.branches)))
        # dimensions that are sampled before all others; the order decides the random numbers of a seed
        self.first = [model] if len(several) == 1 or models is not None else []
        if len(several) > 1 or "optimizer_params_list" in grid:
            self.first.append(self.branch)
        self.size = self._size()  # number of configurations; None: infinite, because of a distribution

    @classmethod
    def of_texts(cls, model_ids: Sequence[int], compile_params_grid: str, fit_params_grid: str) -> "Space":
        """The space of two grids' texts. Raises GridError for a wrong text."""
        return cls(
            {
                "model_id": model_ids,
                **grids.parse(compile_params_grid, "compile_params_grid", grids.COMPILE_KEYS),
                **grids.parse(fit_params_grid, "fit_params_grid", grids.FIT_KEYS),
            }
        )

    def branch_of(self, point: Point) -> Branch:
        """The branch of a point."""
        return self.branches[point.get("branch", 0)]

    def walk(self, choose: Callable[[Dimension], Coordinate]) -> Point:
        """The point that `choose` gives, called for one dimension after the other."""
        point: Point = {dimension.name: choose(dimension) for dimension in self.first}
        for dimension in self.branch_of(point).dimensions:
            if dimension.name not in point:
                point[dimension.name] = choose(dimension)
        if self.models is not None:
            self.models.walk(choose, point)
        return point

    @property
    def dimensions(self) -> dict[str, Dimension]:
        """All dimensions by their names: of every branch, and of every model."""
        found = {d.name: d for d in self.first}
        found.update((d.name, d) for branch in self.branches for d in branch.dimensions)
        found.update((d.name, d) for d in (self.models.dimensions if self.models is not None else ()))
        return found

    @property
    def most_open(self) -> int:
        """The most dimensions of a point that have several values."""
        most = max(sum(d.open for d in branch.dimensions) for branch in self.branches) + self.branch.open
        return most + (self.models.most_open - self.models.base.open if self.models is not None else 0)

    def sample(self, random: Random) -> Point:
        """A random point: model and branch, then each key independently."""
        return self.walk(lambda dimension: dimension.sample(random))

    def mutated(self, point: Point, name: str, random: Random) -> Point:
        """The point with another value of one open dimension: another choice, or a number that is drawn anew. Dimensions that
        this opens are random."""

        def choose(dimension: Dimension) -> Coordinate:
            if dimension.name == name:
                if dimension.kind is not None:
                    return dimension.sample(random)
                return random.choice([at for at in range(len(dimension.choices)) if at != point[name]])
            return point[dimension.name] if dimension.name in point else dimension.sample(random)

        return self.walk(choose)

    def points(self) -> Iterator[Point]:
        """All points, one by one. Raises GridError for a space with distributions."""
        for dimension in itertools.chain.from_iterable(branch.dimensions for branch in self.branches):
            if dimension.kind is not None:
                raise grids.GridError(
                    f"{dimension.key!r} is a distribution ({dimension.kind!r}), which has no grid; write a list of "
                    f"choices, or use another procedure"
                )
        if self.models is not None:
            for place in self.models.places():
                for number, branch in enumerate(self.branches):
                    head = {"branch": number} if self.branch in self.first else {}
                    for coordinates in itertools.product(*(range(len(d.choices)) for d in branch.dimensions[1:])):
                        yield {**place, **head, **{d.name: c for d, c in zip(branch.dimensions[1:], coordinates)}}
            return
        # all points of one model, then all of the next
        for model, group in itertools.groupby(enumerate(self.branches), lambda numbered: numbered[1].model):
            branches = list(group)
            for at in range(len(model.choices)):
                for number, branch in branches:
                    head = {"branch": number} if self.branch in self.first else {}
                    for coordinates in itertools.product(*(range(len(d.choices)) for d in branch.dimensions[1:])):
                        yield {
                            model.name: at,
                            **head,
                            **{d.name: c for d, c in zip(branch.dimensions[1:], coordinates)},
                        }

    def configuration(self, point: Point, values: Mapping[str, Any] | None = None) -> ParameterSet:
        """The configuration of a point. `values`: values to write in place of the point's, by name of the dimension."""
        replaced, branch = values or {}, self.branch_of(point)

        def written(dimensions: Sequence[Dimension]) -> dict[str, Any]:
            return {d.key: replaced[d.name] if d.name in replaced else d.value(point[d.name]) for d in dimensions}

        optimizer = None if branch.optimizer is None else written(branch.optimizer)
        return ParameterSet(
            branch.model.value(point[branch.model.name]) if self.models is None else self.models.model_id(point),
            grids.compile_text(optimizer, written(branch.common)),
            grids.fit_text(written(branch.fit)),
        )

    def told(self, name: str, coordinate: Coordinate) -> tuple[str, Any]:
        """(name, value) of a dimension's coordinate, for people: JSON values."""
        if self.models is not None and (found := self.models.told(name, coordinate)) is not None:
            return found
        dimension = self.dimensions[name]
        value = dimension.value(coordinate)
        return dimension.key, value if isinstance(value, (int, float, bool, type(None))) else str(value)

    def locate(self, configuration: ParameterSet) -> Point | None:
        """A point of a configuration; None where the configuration is not in this space."""
        model_id, compile_params, fit_params = configuration
        try:
            compiled = params.split(compile_params)
            fit = params.split(fit_params) if fit_params and fit_params.strip() else {}
        except params.ParameterError:
            return None
        for number, branch in enumerate(self.branches):
            at: Point | None
            if self.models is not None:
                at = None if model_id is None else self.models.locate(model_id)
            else:
                known = model_id in branch.model.choices
                at = {branch.model.name: branch.model.choices.index(model_id)} if known else None
            if at is None:
                continue
            parts: list[Point | None] = [
                {"branch": number} if self.branch in self.first else {},
                _find(branch.fit, fit),
            ]
            if branch.optimizer is None:
                parts.append(_find(branch.common, compiled))
            else:
                parts.append(_find(branch.common, {k: v for k, v in compiled.items() if k != "optimizer"}))
                parts.append(_find_optimizer(branch.optimizer, compiled.get("optimizer")))
            if None not in parts:
                return {k: v for part in (at, *parts) for k, v in (part or {}).items()}
        return None

    def _size(self) -> int | None:
        if any(d.kind is not None for branch in self.branches for d in branch.dimensions):
            return None
        if self.models is not None:
            several = (math.prod(len(d.choices) for d in branch.dimensions[1:]) for branch in self.branches)
            return self.models.size * sum(several)
        return sum(math.prod(len(d.choices) for d in branch.dimensions) for branch in self.branches)


def _find(dimensions: Sequence[Dimension], texts: Mapping[str, str]) -> Point | None:
    """{name: coordinate} of the values {key: text}; None where a key is missing or unknown, or a value is outside."""
    if {d.key for d in dimensions} != set(texts):
        return None
    found = {d.name: d.find(bare_optimizer(texts[d.key]) if d.key == "optimizer" else texts[d.key]) for d in dimensions}
    return None if None in found.values() else found


def _find_optimizer(dimensions: Sequence[Dimension], text: str | None) -> Point | None:
    """{name: coordinate} of an optimizer's text, such as 'SGD(lr=0.1)'; None where it is outside."""
    if text is None:
        return None
    name, _, arguments = text.strip("'\"").strip().partition("(")
    try:
        texts = params.split(arguments.rstrip()[:-1]) if arguments.strip() not in ("", ")") else {}
    except params.ParameterError:
        return None
    named = next((d for d in dimensions if d.key == "optimizer"), None)
    names = [str(n).lower() for n in named.choices] if named else ["rmsprop"]
    if name.strip().lower() not in names:
        return None
    found = _find([d for d in dimensions if d is not named], texts)
    if found is None or not named:
        return found
    return {named.name: names.index(name.strip().lower()), **found}
