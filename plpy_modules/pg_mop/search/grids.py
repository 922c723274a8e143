"""Grid texts to configurations: all of them, or a random sample (docs/contract/arch_and_objects.md, section 4)."""

import ast
import itertools
import math
import warnings

from mop_udf import parameter_names, parameter_text, params, sequences

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
SEQUENCES = tuple(sequences.KINDS)  # hyper-parameters that change while a configuration trains
MOST_CONFIGURATIONS = 1_000_000  # that a grid may have


class GridError(ValueError):
    """A grid that says nothing usable; the text names the offending part."""


class Sequence(str):
    """A sequence among the choices of a grid, as text: `MultiStep(0.1, [3, 5], 0.1)`. It prints as it is written."""

    __slots__ = ()
    __repr__ = str.__str__


def parse(text, argument, keys):
    """The text of a Python dict of lists -> dict. `argument` names it in errors. Raises GridError."""
    grid = _read(text, argument)
    _check(grid, argument, keys)
    return grid


def parse_several(text, argument, keys):
    """The text of such a dict, or of a list of them -> list of dicts. Raises GridError."""
    several = _read(text, argument)
    if not isinstance(several, list):
        several = [several]
    if not several:
        raise GridError(f"{argument} must be a dictionary with entries, or a list of such dictionaries")
    for grid in several:
        _check(grid, argument, keys)
    return several


def _read(text, argument):
    """What a text of literals and sequences stands for. Raises GridError."""
    if text is None:
        raise GridError(f"{argument} must not be NULL")
    if text and len(text) > parameter_text.MOST_CHARACTERS:
        raise GridError(f"{argument} is longer than {parameter_text.MOST_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's remarks on odd spelling
            grid = _literal(ast.parse(text.strip(), mode="eval").body)
        repr(grid)  # integers too long to print
    except GridError as error:
        raise GridError(f"{error} in {argument}") from None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, ArithmeticError):
        raise GridError(f"{argument} is not a Python dictionary of literals: {text[:200]!r}") from None
    return grid


def _check(grid, argument, keys):
    """A grid must be a dict of lists under known keys. Raises GridError."""
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


def grid_search(model_ids, compile_grid, fit_grid):
    """Every combination as (model_id, compile_params, fit_params). Raises GridError where a list is a distribution."""
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


def distribution(choices):
    """True where a list stands for a distribution: numbers, then its name. ([None, 'mae'] is a choice.)"""
    return (
        len(choices) > 1
        and isinstance(choices[-1], str)
        and not isinstance(choices[-1], Sequence)
        and all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in choices[:-1])
    )


def _literal(node):
    """What a literal's syntax tree stands for, with sequences as texts. Raises what `parse` expects."""
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {ast.literal_eval(k): _literal(v) for k, v in zip(node.keys, node.values)}
    if isinstance(node, ast.List):
        return [_literal(n) for n in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_literal(n) for n in node.elts)
    if isinstance(node, ast.Call):
        _check_sequence(node)
        return Sequence(ast.unparse(node))
    return ast.literal_eval(node)


def _check_sequence(node):
    """A call must be of a sequence, with literals and sequences for arguments. Raises GridError."""
    if not isinstance(node.func, ast.Name) or node.func.id not in SEQUENCES:
        raise GridError(f"{ast.unparse(node.func)[:100]!r} is none of the sequences ({', '.join(SEQUENCES)})")
    for argument in [*node.args, *(k.value for k in node.keywords if k.arg)]:
        if isinstance(argument, ast.Call):
            _check_sequence(argument)
        else:
            _literal(argument)
    if not all(k.arg for k in node.keywords):
        raise GridError(f"{ast.unparse(node)[:100]!r} is no sequence")


def check_distribution(key, choices):
    """A list that stands for a distribution must be one that can be sampled. Raises GridError."""
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


def sample(random, key, choices):
    """One of the choices, or a number of the distribution that they stand for."""
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


def _all_lists(grid):
    for key, choices in grid.items():
        if key == "optimizer_params_list":
            for block in choices:
                yield from block.items()
        else:
            yield key, choices


def size(grid):
    """Combinations of a grid's choices."""
    return math.prod(len(choices) for choices in grid.values())


def _product(grid):
    return [dict(zip(grid, values)) for values in itertools.product(*grid.values())]


def compile_text(settings, values):
    """compile_params of an optimizer's settings (or None) and other values, each {key: value}."""
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


def fit_text(values):
    """fit_params of {key: value}."""
    return ",".join(f"{k}={v if k == 'callbacks' else repr(v)}" for k, v in values.items())


def optimizer_name(name):
    """As Keras writes it."""
    known = {n.lower(): n for n in parameter_names.OPTIMIZERS}
    return known.get(str(name).lower(), str(name))
