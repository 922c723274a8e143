"""The space of a search: MADlib's grid texts, points of it, and where in it a configuration is."""

import ast
import itertools
import math

from mop_udf import params
from pg_mop.search import grids

# what may change while a configuration is trained, without another compiled model or another network
CHANGEABLE = (*params.SCALARS, "lr", "batch_size", "dropout")


class Dimension:
    """A key of the space: choices, or a distribution from `low` to `high`.

    A *coordinate* is a choice's index, or a number of the distribution.
    """

    __slots__ = ("name", "key", "choices", "low", "high", "kind")

    def __init__(self, name, key, choices):
        """`name` is the only one of the space, `key` that of the parameter. Raises GridError."""
        self.name, self.key, self.choices, self.kind = name, key, list(choices), None
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
            inside = (isinstance(literal, (int, float)) and not isinstance(literal, bool)
                      and self.low <= literal <= self.high and not (self.whole and literal != int(literal)))
            return literal if inside else None
        for index, choice in enumerate(self.choices):
            if text == str(choice) or text == repr(choice) or literal is not None and _same(literal, choice):
                return index
        return None


class Space:
    """Model ids, and grids of compile and fit parameters.

    A *point* is {name of a dimension: coordinate}: `model`, `block` (an entry of optimizer_params_list, by its index;
    a point has the dimensions of one block, so the space is conditional), those of the block (`0.lr`), and the keys
    that all have. A *configuration* is (model_id, compile_params, fit_params).
    """

    def __init__(self, model_ids, compile_grid, fit_grid):
        """Grids as :func:`grids.parse` gives them. Raises GridError."""
        blocks = compile_grid.get("optimizer_params_list")
        rest = {k: v for k, v in compile_grid.items() if k != "optimizer_params_list"}
        self.model = Dimension("model", "model_id", model_ids)
        self.block = Dimension("block", "block", range(len(blocks))) if blocks else None
        self.blocks = [[Dimension(f"{number}.{k}", k, v) for k, v in block.items()]
                       for number, block in enumerate(blocks or [])]
        self.compiled = [Dimension(k, k, v) for k, v in rest.items()]
        self.fit = [Dimension(k, k, v) for k, v in fit_grid.items()]
        self.size = self._size()  # configurations; None: a distribution has no end of them

    @classmethod
    def of_texts(cls, model_ids, compile_params_grid, fit_params_grid):
        """A space of the texts of the two grids. Raises GridError."""
        return cls(model_ids, grids.parse(compile_params_grid, "compile_params_grid", grids.COMPILE_KEYS),
                   grids.parse(fit_params_grid, "fit_params_grid", grids.FIT_KEYS))

    def dimensions(self, block=None):
        """The dimensions of points of that block, without `model` and `block` themselves."""
        return [*(self.blocks[block] if self.block else ()), *self.compiled, *self.fit]

    def walk(self, choose):
        """The point of `choose(dimension)` -> coordinate, which is asked dimension by dimension."""
        point = {"model": choose(self.model)}
        if self.block:
            point["block"] = choose(self.block)
        for dimension in self.dimensions(point.get("block")):
            point[dimension.name] = choose(dimension)
        return point

    def sample(self, random):
        """A point at random: model, block, then each key by itself."""
        return self.walk(lambda dimension: dimension.sample(random))

    def points(self):
        """All points, one by one. Raises GridError where there is a distribution."""
        for dimension in itertools.chain(self.compiled, self.fit, *self.blocks):
            if dimension.kind is not None:
                raise grids.GridError(f"{dimension.key!r} is a distribution ({dimension.kind!r}), of which there is "
                                      f"no grid; write a list of choices, or use another procedure")
        for model in range(len(self.model.choices)):
            for block in range(len(self.blocks)) if self.block else (None,):
                dimensions = self.dimensions(block)
                head = {"model": model} if block is None else {"model": model, "block": block}
                for coordinates in itertools.product(*(range(len(d.choices)) for d in dimensions)):
                    yield {**head, **{d.name: c for d, c in zip(dimensions, coordinates)}}

    def configuration(self, point, values=None):
        """The configuration of a point; `values`: {name of a dimension: what to write in place of its value}."""
        values = values or {}

        def written(dimensions):
            return {d.key: values[d.name] if d.name in values else d.value(point[d.name]) for d in dimensions}
        settings = written(self.blocks[point["block"]]) if self.block else None
        return (self.model.value(point["model"]), grids.compile_text(settings, written(self.compiled)),
                grids.fit_text(written(self.fit)))

    def locate(self, configuration):
        """The point of a configuration; None where the configuration is not in this space."""
        model_id, compile_params, fit_params = configuration
        if model_id not in self.model.choices:
            return None
        try:
            compiled = params.split(compile_params)
            fit = params.split(fit_params) if fit_params and fit_params.strip() else {}
        except params.ParameterError:
            return None
        head = {"model": self.model.choices.index(model_id)}
        tail = self._find(self.fit, fit)
        if not self.block:
            parts = [self._find(self.compiled, compiled)]
        else:
            optimizer = compiled.pop("optimizer", None)
            parts = [self._find(self.compiled, compiled), self._find_block(optimizer)]
        if tail is None or None in parts:
            return None
        return {k: v for part in (head, *reversed(parts), tail) for k, v in part.items()}

    def _find(self, dimensions, texts):
        """{name: coordinate} of the values {key: text}; None where one is missing, outside, or too many."""
        if {d.key for d in dimensions} != set(texts):
            return None
        found = {d.name: d.find(_bare_optimizer(texts[d.key]) if d.key == "optimizer" else texts[d.key])
                 for d in dimensions}
        return None if None in found.values() else found

    def _find_block(self, optimizer):
        if optimizer is None:
            return None
        name, _, arguments = optimizer.strip("'\"").strip().partition("(")
        try:
            texts = params.split(arguments.rstrip()[:-1]) if arguments.strip() not in ("", ")") else {}
        except params.ParameterError:
            return None
        for number, dimensions in enumerate(self.blocks):
            named = next((d for d in dimensions if d.key == "optimizer"), None)
            names = [str(n).lower() for n in named.choices] if named else ["rmsprop"]
            if name.strip().lower() not in names:
                continue
            found = self._find([d for d in dimensions if d is not named], texts)
            if found is not None:
                at = {named.name: names.index(name.strip().lower())} if named else {}
                return {"block": number, **at, **found}
        return None

    def _size(self):
        if any(d.kind is not None for d in itertools.chain(self.compiled, self.fit, *self.blocks)):
            return None

        def product(dimensions):
            return math.prod(len(d.choices) for d in dimensions)
        own = sum(map(product, self.blocks)) if self.block else 1
        return len(self.model.choices) * own * product(self.compiled) * product(self.fit)


def _bare_optimizer(text):
    """As a grid has it: 'Adam()' -> Adam."""
    text = text.strip("'\"").strip()
    return text[:-2] if text.endswith("()") else text


def _same(literal, choice):
    """True where a text's literal is the choice; numbers by value, `True` is not 1, a metric alone is a list of it."""
    if isinstance(literal, bool) or isinstance(choice, bool):
        return literal is choice
    return literal == choice or isinstance(literal, list) and literal == [choice]
