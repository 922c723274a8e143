"""Grid texts to configurations: all of them, or a random sample (docs/contract/arch_and_objects.md, section 4)."""

import ast
import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from mop_udf.params import parameter_names, parameter_text, params, sequences

Grid = dict[str, Any]  # key -> list of choices
Row = tuple[int, str, str]  # (model_id, compile_params, fit_params)

COMPILE_KEYS = (
    "loss",
    "metrics",
    "loss_weights",
    "weighted_metrics",
    "sample_weight_mode",
    "optimizer",
    "optimizer_params_list",
)
FIT_KEYS = params.FIT_KEYS
DISTRIBUTIONS = ("linear", "log", "log_near_one")
WHOLE = ("batch_size", "epochs", "initial_epoch", "steps_per_epoch", "verbose")
SEQUENCES = tuple(sequences.KINDS)  # of values that change while a configuration trains
MOST_CONFIGURATIONS = 1_000_000  # of a grid


class GridError(ValueError):
    """A wrong grid; the text names the wrong part."""


class SequenceText(str):
    """The text of a sequence among the choices of a grid: `MultiStep(0.1, [3, 5], 0.1)`. Its repr has no quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def parse(text: str | None, argument: str, keys: Sequence[str]) -> Grid:
    """The grid of a text: a Python dict of lists.

    `argument`: the name of the SQL argument, for errors; `keys`: the accepted keys. Raises GridError for a wrong text.
    """
    grid = _read(text, argument)
    _check(grid, argument, keys)
    return grid


def parse_several(text: str | None, argument: str, keys: Sequence[str]) -> list[Grid]:
    """The grids of a text: a dict as in `parse`, or a list of such dicts. Raises GridError for a wrong text."""
    several = _read(text, argument)
    if not isinstance(several, list):
        several = [several]
    if not several:
        raise GridError(f"{argument} must be a dictionary with entries, or a list of such dictionaries")
    for grid in several:
        _check(grid, argument, keys)
    return several


def _read(text: str | None, argument: str) -> Any:
    """The value of a text of literals and sequences. Raises GridError for another text."""
    if text is None:
        raise GridError(f"{argument} must not be NULL")
    if text and len(text) > parameter_text.MOST_CHARACTERS:
        raise GridError(f"{argument} is longer than {parameter_text.MOST_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings of odd spelling
            grid = _literal(ast.parse(text.strip(), mode="eval").body)
        repr(grid)  # integers too long to print
    except GridError as error:
        raise GridError(f"{error} in {argument}") from None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, ArithmeticError):
        raise GridError(f"{argument} is not a Python dictionary of literals: {text[:200]!r}") from None
    return grid


def _check(grid: object, argument: str, keys: Sequence[str]) -> None:
    """Raises GridError unless the grid is a dict of lists with known keys."""
    if not isinstance(grid, dict) or not grid:
        raise GridError(f"{argument} must be a dictionary with entries")
    for key, choices in grid.items():
        if key not in keys:
            raise GridError(f"{key!r} is not accepted in {argument} ({', '.join(keys)})")
        if not isinstance(choices, list) or not choices:
            raise GridError(f"{key!r} in {argument} must be a list of choices, not {choices!r}")
    blocks = grid.get("optimizer_params_list")
    if blocks is not None:
        for block in blocks:
            if not isinstance(block, dict) or not block:
                raise GridError(f"optimizer_params_list in {argument} must hold dictionaries with entries")
            for key, choices in block.items():
                if not isinstance(choices, list) or not choices:
                    raise GridError(f"{key!r} in optimizer_params_list must be a list of choices, not {choices!r}")
                if key in grid:
                    raise GridError(f"{key!r} is both in {argument} and in its optimizer_params_list")


def grid_search(model_ids: Sequence[int], compile_grid: Grid, fit_grid: Grid) -> list[Row]:
    """Every combination as (model_id, compile_params, fit_params).

    Raises GridError for a distribution, and for more than MOST_CONFIGURATIONS combinations.
    """
    for grid in (compile_grid, fit_grid):
        for key, choices in _all_lists(grid):
            if distribution(choices) and choices[-1] in DISTRIBUTIONS:
                raise GridError(f"{key!r} is a distribution ({choices[-1]!r}), which only random search can sample")
    count = (
        len(model_ids)
        * size(fit_grid)
        * sum(
            size(block or {}) * size({k: v for k, v in compile_grid.items() if k != "optimizer_params_list"})
            for block in compile_grid.get("optimizer_params_list", [None])
        )
    )
    if count > MOST_CONFIGURATIONS:
        raise GridError(f"the grid has {count} configurations, at most {MOST_CONFIGURATIONS} are made at once")
    compiled = []
    for block in compile_grid.get("optimizer_params_list", [None]):
        rest = {k: v for k, v in compile_grid.items() if k != "optimizer_params_list"}
        for settings in _product(block or {}):
            for values in _product(rest):
                compiled.append(compile_text(settings if block else None, values))
    fits = [fit_text(values) for values in _product(fit_grid)]
    return [(m, c, f) for m in model_ids for c in compiled for f in fits]


def distribution(choices: Sequence[Any]) -> bool:
    """True where a list means a distribution: numbers, then its name. ([None, 'mae'] is a list of choices.)"""
    return (
        len(choices) > 1
        and isinstance(choices[-1], str)
        and not isinstance(choices[-1], SequenceText)
        and all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in choices[:-1])
    )


def _literal(node: ast.expr) -> Any:
    """The value of a literal's syntax tree, with sequences as texts. Raises the errors that `_read` expects."""
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {ast.literal_eval(k): _literal(v) for k, v in zip(node.keys, node.values) if k is not None}
    if isinstance(node, ast.List):
        return [_literal(n) for n in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_literal(n) for n in node.elts)
    if isinstance(node, ast.Call):
        _check_sequence(node)
        return SequenceText(ast.unparse(node))
    return ast.literal_eval(node)


def _check_sequence(node: ast.Call) -> None:
    """Raises GridError unless a call is a sequence whose arguments are literals and sequences."""
    if not isinstance(node.func, ast.Name) or node.func.id not in SEQUENCES:
        raise GridError(f"{ast.unparse(node.func)[:100]!r} is none of the sequences ({', '.join(SEQUENCES)})")
    for argument in [*node.args, *(k.value for k in node.keywords if k.arg)]:
        if isinstance(argument, ast.Call):
            _check_sequence(argument)
        else:
            _literal(argument)
    if not all(k.arg for k in node.keywords):
        raise GridError(f"{ast.unparse(node)[:100]!r} is not a sequence")


def check_distribution(key: str, choices: Sequence[Any]) -> None:
    """Raises GridError for a distribution that cannot be sampled."""
    if choices[-1] not in DISTRIBUTIONS:
        raise GridError(f"{key!r} has the unknown distribution {choices[-1]!r} (known: {', '.join(DISTRIBUTIONS)})")
    if len(choices) != 3 or not all(-1e300 < c < 1e300 for c in choices[:2]):
        raise GridError(f"{key!r} must be [low, high, {choices[-1]!r}], not {choices!r}")
    low, high, kind = choices
    if key in WHOLE and math.ceil(low) > math.floor(high):
        raise GridError(f"{key!r}: there is no integer from {low} to {high}")
    if not low < high:
        raise GridError(f"{key!r}: the high end {high} must be above the low end {low}")
    if kind == "log" and low <= 0 or kind == "log_near_one" and high >= 1:
        raise GridError(f"{key!r}: {kind!r} cannot sample from {low} to {high}")


def sample(random: Random, key: str, choices: Sequence[Any]) -> Any:
    """A random choice, or a random number where the list means a distribution."""
    if not distribution(choices):
        return random.choice(choices)
    low, high, kind = choices
    if kind == "linear":
        value = random.uniform(low, high)
    elif kind == "log":
        value = 10 ** random.uniform(math.log10(low), math.log10(high))
    else:
        value = 1 - 10 ** random.uniform(math.log10(1 - high), math.log10(1 - low))
    # a count stays one
    return max(math.ceil(low), min(math.floor(high), round(value))) if key in WHOLE else value


def _all_lists(grid: Grid) -> Iterator[tuple[str, Any]]:
    for key, choices in grid.items():
        if key == "optimizer_params_list":
            for block in choices:
                yield from block.items()
        else:
            yield key, choices


def size(grid: Mapping[str, Any]) -> int:
    """The number of combinations of a grid's choices."""
    return math.prod(len(choices) for choices in grid.values())


def _product(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values)) for values in itertools.product(*grid.values())]


def compile_text(settings: Mapping[str, Any] | None, values: Mapping[str, Any]) -> str:
    """The compile_params text of an optimizer's settings (or None) and other values, each {key: value}."""
    parts = []
    if settings is not None:
        settings = dict(settings)
        name = optimizer_name(settings.pop("optimizer", "rmsprop"))
        arguments = ",".join(f"{k}={v}" for k, v in settings.items())
        parts.append(f"optimizer='{name}({arguments})'")
    for key, value in values.items():
        if key == "metrics":
            value = value if value is None or isinstance(value, list) else [value]
            parts.append(f"metrics={value!r}")
        elif key == "optimizer":
            parts.append(f"optimizer='{value if '(' in str(value) else optimizer_name(value) + '()'}'")
        else:
            parts.append(f"{key}={value!r}")
    return ",".join(parts)


def fit_text(values: Mapping[str, Any]) -> str:
    """The fit_params text of {key: value}."""
    return ",".join(f"{k}={v if k == 'callbacks' else repr(v)}" for k, v in values.items())


def optimizer_name(name: object) -> str:
    """An optimizer's name in Keras' spelling."""
    known = {n.lower(): n for n in parameter_names.OPTIMIZERS}
    return known.get(str(name).lower(), str(name))
