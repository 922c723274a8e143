"""The space of a search: MADlib's grid texts, points of it, and where in it a configuration is."""

import ast
import itertools
import math
from types import SimpleNamespace

from mop_udf import params
from pg_mop.search import grids

# what may change while a configuration is trained, without another compiled model or another network
CHANGEABLE = (*(name for name in params.SCALARS if name != "decay"), "lr", "batch_size", "dropout")


class Dimension:
    """A key of the space: choices, or a distribution from `low` to `high`.

    A *coordinate* is a choice's index, or a number of the distribution.
    """

    __slots__ = ("name", "key", "choices", "low", "high", "kind")

    def __init__(self, name, key, choices):
        """`name` is the only one of the space, `key` that of the parameter. Raises GridError."""
        self.name, self.key, self.choices, self.kind = name, key, list(choices), None
        if key == "optimizer":
            self.choices = [_bare_optimizer(c) if isinstance(c, str) else c for c in choices]
        if grids.distribution(self.choices):
            grids.check_distribution(key, self.choices)
            self.low, self.high, self.kind = self.choices

    @property
    def whole(self):
        """True where a distribution gives integers."""
        return self.kind is not None and self.key in grids.WHOLE

    @property
    def open(self):
        """True where there is something to choose."""
        return self.kind is not None or len(self.choices) > 1

    def sample(self, random):
        """A coordinate at random."""
        if self.kind is None:
            return random.randrange(len(self.choices))
        return grids.sample(random, self.key, self.choices)

    def value(self, coordinate):
        """What stands in the parameter string."""
        return self.choices[coordinate] if self.kind is None else coordinate

    def find(self, text):
        """The coordinate whose value is written as `text`; None where it is outside."""
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


class Space:
    """Grids of model ids, compile parameters and fit parameters; a configuration is of one of them.

    A *branch* is one of the grids, with one entry of its optimizer_params_list where it has one. A *point* is
    {name of a dimension: coordinate}: `branch`, and the dimensions of that branch; so the space is conditional. A
    *configuration* is (model_id, compile_params, fit_params).
    """

    def __init__(self, *several):
        """`several`: {key: choices} each, `model_id` among the keys. Raises GridError."""
        self.branches = []
        for number, grid in enumerate(several):
            own = f"{number}/" if len(several) > 1 else ""
            made = {
                key: Dimension(own + key, key, choices)
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
                self.branches.append(
                    SimpleNamespace(
                        model=model,
                        optimizer=optimizer,
                        common=common,
                        fit=fit,
                        dimensions=[model, *(optimizer or ()), *common, *fit],
                    )
                )
        self.branch = Dimension("branch", "branch", range(len(self.branches)))
        # what is chosen before all else: so a seed draws of one grid what it always drew
        self.first = [model] if len(several) == 1 else []
        if len(several) > 1 or "optimizer_params_list" in grid:
            self.first.append(self.branch)
        self.size = self._size()  # configurations; None: a distribution has no end of them

    @classmethod
    def of_texts(cls, model_ids, compile_params_grid, fit_params_grid):
        """A space of the texts of two grids. Raises GridError."""
        return cls(
            {
                "model_id": model_ids,
                **grids.parse(compile_params_grid, "compile_params_grid", grids.COMPILE_KEYS),
                **grids.parse(fit_params_grid, "fit_params_grid", grids.FIT_KEYS),
            }
        )

    def branch_of(self, point):
        """The branch that a point is of."""
        return self.branches[point.get("branch", 0)]

    def walk(self, choose):
        """The point of `choose(dimension)` -> coordinate, which is asked dimension by dimension."""
        point = {dimension.name: choose(dimension) for dimension in self.first}
        for dimension in self.branch_of(point).dimensions:
            if dimension.name not in point:
                point[dimension.name] = choose(dimension)
        return point

    def sample(self, random):
        """A point at random: model and branch, then each key by itself."""
        return self.walk(lambda dimension: dimension.sample(random))

    def points(self):
        """All points, one by one. Raises GridError where there is a distribution."""
        for dimension in itertools.chain.from_iterable(branch.dimensions for branch in self.branches):
            if dimension.kind is not None:
                raise grids.GridError(
                    f"{dimension.key!r} is a distribution ({dimension.kind!r}), of which there is "
                    f"no grid; write a list of choices, or use another procedure"
                )
        # all of one model, then all of the next
        for model, several in itertools.groupby(enumerate(self.branches), lambda numbered: numbered[1].model):
            several = list(several)
            for at in range(len(model.choices)):
                for number, branch in several:
                    head = {"branch": number} if self.branch in self.first else {}
                    for coordinates in itertools.product(*(range(len(d.choices)) for d in branch.dimensions[1:])):
                        yield {
                            model.name: at,
                            **head,
                            **{d.name: c for d, c in zip(branch.dimensions[1:], coordinates)},
                        }

    def configuration(self, point, values=None):
        """The configuration of a point; `values`: {name of a dimension: what to write in place of its value}."""
        values, branch = values or {}, self.branch_of(point)

        def written(dimensions):
            return {d.key: values[d.name] if d.name in values else d.value(point[d.name]) for d in dimensions}

        optimizer = None if branch.optimizer is None else written(branch.optimizer)
        return (
            branch.model.value(point[branch.model.name]),
            grids.compile_text(optimizer, written(branch.common)),
            grids.fit_text(written(branch.fit)),
        )

    def locate(self, configuration):
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
            parts = [{"branch": number} if self.branch in self.first else {}, _find(branch.fit, fit)]
            if branch.optimizer is None:
                parts.append(_find(branch.common, compiled))
            else:
                parts.append(_find(branch.common, {k: v for k, v in compiled.items() if k != "optimizer"}))
                parts.append(_find_optimizer(branch.optimizer, compiled.get("optimizer")))
            if None not in parts:
                at = {branch.model.name: branch.model.choices.index(model_id)}
                return {k: v for part in (at, *parts) for k, v in part.items()}
        return None

    def _size(self):
        if any(d.kind is not None for branch in self.branches for d in branch.dimensions):
            return None
        return sum(math.prod(len(d.choices) for d in branch.dimensions) for branch in self.branches)


def _find(dimensions, texts):
    """{name: coordinate} of the values {key: text}; None where one is missing, outside, or too many."""
    if {d.key for d in dimensions} != set(texts):
        return None
    found = {
        d.name: d.find(_bare_optimizer(texts[d.key]) if d.key == "optimizer" else texts[d.key]) for d in dimensions
    }
    return None if None in found.values() else found


def _find_optimizer(dimensions, text):
    """{name: coordinate} of an optimizer that is written as `text`, or None."""
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


def _bare_optimizer(text):
    """The shortest way to write it: 'adam()' -> Adam."""
    text = text.strip("'\"").strip()
    return grids.optimizer_name(text[:-2] if text.endswith("()") else text)


def _same(literal, choice):
    """True where a text's literal is the choice; numbers by value, `True` is not 1, a metric alone is a list of it."""
    if isinstance(literal, bool) or isinstance(choice, bool):
        return literal is choice
    return literal == choice or isinstance(literal, list) and literal == [choice]
