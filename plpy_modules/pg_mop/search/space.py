"""The space of a search: its dimensions from MADlib's grid texts, its points, and their configurations."""

import ast
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from mop_udf import params
from pg_mop.search import grids

Configuration = tuple[int, str, str]  # (model_id, compile_params, fit_params)
Coordinate = Any  # the index of a choice, or a number of a distribution
Point = dict[str, Coordinate]  # by name of the dimension

# parameters that may change while a configuration trains, with the same compiled model and the same network
CHANGEABLE = (*(name for name in params.SCALARS if name != "decay"), "lr", "batch_size", "dropout")


class Dimension:
    """A dimension of the space: choices, or a distribution from `low` to `high`.

    A *coordinate* is a choice's index, or a number of the distribution. `kind` is the name of the distribution, or None.
    """

    __slots__ = ("name", "key", "choices", "low", "high", "kind")

    def __init__(self, name: str, key: str, choices: Sequence[Any]) -> None:
        """`name`: unique in the space; `key`: the parameter's name. Raises GridError for a wrong distribution."""
        self.name, self.key = name, key
        self.choices: list[Any] = list(choices)
        self.kind: str | None = None
        if key == "optimizer":
            self.choices = [_bare_optimizer(c) if isinstance(c, str) else c for c in choices]
        if grids.distribution(self.choices):
            grids.check_distribution(key, self.choices)
            self.low, self.high, self.kind = self.choices

    @property
    def whole(self) -> bool:
        """True for a distribution of integers."""
        return self.kind is not None and self.key in grids.WHOLE

    @property
    def open(self) -> bool:
        """True for a dimension with several values."""
        return self.kind is not None or len(self.choices) > 1

    def sample(self, random: Random) -> Coordinate:
        """A random coordinate."""
        if self.kind is None:
            return random.randrange(len(self.choices))
        return grids.sample(random, self.key, self.choices)

    def value(self, coordinate: Coordinate) -> Any:
        """The value of a coordinate in parameter strings."""
        return self.choices[coordinate] if self.kind is None else coordinate

    def find(self, text: str) -> Coordinate | None:
        """The coordinate of a value's text; None where the value is not in the dimension."""
        try:
            literal = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            literal = None
        if self.kind is not None:
            inside = (
                isinstance(literal, (int, float))
                and not isinstance(literal, bool)
                and self.low <= literal <= self.high
                and not (self.whole and literal != int(literal))
            )
            return literal if inside else None
        for index, choice in enumerate(self.choices):
            if text == str(choice) or text == repr(choice) or literal is not None and _same(literal, choice):
                return index
        return None


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

    def __init__(self, *several: Mapping[str, Any]) -> None:
        """`several`: grids {key: choices}, each with the key `model_id`. Raises GridError for a wrong distribution."""
        self.branches: list[Branch] = []
        for number, grid in enumerate(several):
            prefix = f"{number}/" if len(several) > 1 else ""
            made = {
                key: Dimension(prefix + key, key, choices)
                for key, choices in grid.items()
                if key != "optimizer_params_list"
            }
            model = made.pop("model_id")
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
        self.first = [model] if len(several) == 1 else []
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
        return point

    def sample(self, random: Random) -> Point:
        """A random point: model and branch, then each key independently."""
        return self.walk(lambda dimension: dimension.sample(random))

    def points(self) -> Iterator[Point]:
        """All points, one by one. Raises GridError for a space with distributions."""
        for dimension in itertools.chain.from_iterable(branch.dimensions for branch in self.branches):
            if dimension.kind is not None:
                raise grids.GridError(
                    f"{dimension.key!r} is a distribution ({dimension.kind!r}), which has no grid; write a list of "
                    f"choices, or use another procedure"
                )
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

    def configuration(self, point: Point, values: Mapping[str, Any] | None = None) -> Configuration:
        """The configuration of a point. `values`: values to write in place of the point's, by name of the dimension."""
        replaced, branch = values or {}, self.branch_of(point)

        def written(dimensions: Sequence[Dimension]) -> dict[str, Any]:
            return {d.key: replaced[d.name] if d.name in replaced else d.value(point[d.name]) for d in dimensions}

        optimizer = None if branch.optimizer is None else written(branch.optimizer)
        return (
            branch.model.value(point[branch.model.name]),
            grids.compile_text(optimizer, written(branch.common)),
            grids.fit_text(written(branch.fit)),
        )

    def locate(self, configuration: Configuration) -> Point | None:
        """A point of a configuration; None where the configuration is not in this space."""
        model_id, compile_params, fit_params = configuration
        try:
            compiled = params.split(compile_params)
            fit = params.split(fit_params) if fit_params and fit_params.strip() else {}
        except params.ParameterError:
            return None
        for number, branch in enumerate(self.branches):
            if model_id not in branch.model.choices:
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
                at = {branch.model.name: branch.model.choices.index(model_id)}
                return {k: v for part in (at, *parts) for k, v in (part or {}).items()}
        return None

    def _size(self) -> int | None:
        if any(d.kind is not None for branch in self.branches for d in branch.dimensions):
            return None
        return sum(math.prod(len(d.choices) for d in branch.dimensions) for branch in self.branches)


def _find(dimensions: Sequence[Dimension], texts: Mapping[str, str]) -> Point | None:
    """{name: coordinate} of the values {key: text}; None where a key is missing or unknown, or a value is outside."""
    if {d.key for d in dimensions} != set(texts):
        return None
    found = {
        d.name: d.find(_bare_optimizer(texts[d.key]) if d.key == "optimizer" else texts[d.key]) for d in dimensions
    }
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


def _bare_optimizer(text: str) -> str:
    """The shortest text of an optimizer: 'adam()' -> Adam."""
    text = text.strip("'\"").strip()
    return grids.optimizer_name(text[:-2] if text.endswith("()") else text)


def _same(literal: object, choice: object) -> bool:
    """True where a literal equals a choice: numbers by value, `True` is not 1, a single metric equals a list of it."""
    if isinstance(literal, bool) or isinstance(choice, bool):
        return literal is choice
    return literal == choice or isinstance(literal, list) and literal == [choice]
