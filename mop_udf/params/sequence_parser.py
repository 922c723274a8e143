"""The parser of sequences: text to a Sequence, a Schedule or a value.

Text is parsed by `ast`; nothing is executed. Standard library only.
"""

import ast
import re
import warnings
from typing import Any

from mop_udf.errors import abbreviated
from mop_udf.params.keras_schedules import SERIALIZED_KEYS, parse_schedule
from mop_udf.params.sequences import KINDS, MODES, REQUIRED, Sequence, SequenceError, checked_number, constant

MOST_NESTED = 10
COUNTS = ("step_size_up", "step_size_down", "period", "steps")  # arguments that count iterations or mini-batches


def is_sequence_text(text: str) -> bool:
    """True for text in the form of a sequence: a list, a call of a name of KINDS, or the dictionary of a Keras
    schedule.
    """
    called = re.match(r"\s*(\w+)\s*\(", text)
    if called:
        return _kind(called[1]) is not None
    return bool(re.match(rf"\s*(\[|\{{\s*['\"]({'|'.join(SERIALIZED_KEYS)})['\"]\s*:)", text))


def parse(text: str) -> Any:
    """Text -> a Sequence or a Schedule, or a value where all steps have the same value.

    Values are floats; the values of a list may be dictionaries ({class: weight}, {layer: rate}) instead. Raises
    SequenceError.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings about odd literals
            node = ast.parse(text.strip(), mode="eval").body
        return _sequence(node, 0)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError, ArithmeticError) as error:
        if isinstance(error, SequenceError):
            raise
        raise SequenceError(f"{abbreviated(text)} is not a sequence") from None


def _sequence(node: ast.expr, depth: int) -> Any:
    """The node of a list, a call or a Keras schedule -> the result of `parse`."""
    if depth > MOST_NESTED:
        raise SequenceError(f"sequences are nested deeper than {MOST_NESTED}")
    if isinstance(node, ast.List):
        return _made("Values", {"values": _plain(node)}, "iteration")
    if isinstance(node, ast.Dict):
        return parse_schedule(_plain(node))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise SequenceError(f"{_code(node)} is not a sequence")
    kind = _kind(node.func.id)
    if kind is None:
        raise SequenceError(f"unknown sequence {node.func.id!r} ({', '.join(KINDS)})")
    arguments, per = _arguments(kind, node, depth)
    return _made(kind, arguments, per)


def _arguments(kind: str, node: ast.Call, depth: int) -> tuple[dict[str, Any], str]:
    """({name: value as written}, per) of a call."""
    names, given, per = list(KINDS[kind]), {}, None
    nodes = list(node.args)
    if kind == "CyclicLR" and len(nodes) > 3 and isinstance(nodes[3], ast.Constant) and isinstance(nodes[3].value, str):
        names.remove("step_size_down")  # a string as fourth argument is the mode
    if len(nodes) > len(names) or any(isinstance(n, ast.Starred) for n in nodes):
        raise SequenceError(f"{kind} takes {', '.join(KINDS[kind])}, not {len(nodes)} values")
    for name, value in (*zip(names, nodes), *((k.arg, k.value) for k in node.keywords)):
        if name == "per":
            if per is not None:
                raise SequenceError(f"{kind} is given per twice")
            per = _plain(value)
            if per not in ("iteration", "batch"):
                raise SequenceError(f"per of {kind} must be 'iteration' or 'batch', not {abbreviated(per)}")
            if depth:
                raise SequenceError("per belongs to the outermost sequence alone")
        elif name not in KINDS[kind]:
            raise SequenceError(f"{abbreviated(name)} is not an argument of {kind} ({', '.join(KINDS[kind])}, per)")
        elif name in given:
            raise SequenceError(f"{kind} is given {name} twice")
        else:
            given[name] = _then(value, depth) if name == "then" else _plain(value)
    for name, default in KINDS[kind].items():
        if name not in given and default is REQUIRED:
            raise SequenceError(f"{_signature(kind)} needs {name}")
        given.setdefault(name, default)
    return {name: given[name] for name in KINDS[kind]}, per or "iteration"


def _then(node: ast.expr, depth: int) -> Sequence:
    if isinstance(node, (ast.List, ast.Call)):
        value = _sequence(node, depth + 1)
    else:
        value = checked_number(_signature("Warmup"), "then", _plain(node))
    if isinstance(value, dict):
        raise SequenceError("Warmup needs numbers")
    return value if isinstance(value, Sequence) else constant(value)


def _made(kind: str, arguments: dict[str, Any], per: str) -> Any:
    """A Sequence of arguments as written, or a value where all steps have the same value."""
    if kind == "Values":
        return _values(arguments["values"], per)
    if kind == "Constant":
        value = arguments["value"]
        return _dictionary(value) if isinstance(value, dict) else checked_number(_signature(kind), "value", value)
    milestones = arguments.pop("milestones", None)
    checked: dict[str, Any] = {
        name: value
        if name in ("mode", "then") or value is None and name == "step_size_down"
        else checked_number(_signature(kind), name, value)
        for name, value in arguments.items()
    }
    for name in COUNTS:
        if checked.get(name) is not None and not (checked[name] == int(checked[name]) and 1 <= checked[name] < 2**53):
            raise SequenceError(
                f"{name} of {_signature(kind)} must be an integer of at least 1, not {abbreviated(arguments[name])}"
            )
    if "gamma" in checked and checked["gamma"] <= 0:
        raise SequenceError(f"gamma of {_signature(kind)} must be above 0, not {abbreviated(arguments['gamma'])}")
    if kind == "Exponential" and (checked["gamma"] == 1 or not checked["value"]):
        return checked["value"]
    if kind == "MultiStep":
        milestones = _milestones(milestones)
        if not milestones or checked["gamma"] == 1 or not checked["value"]:
            return checked["value"]
        checked = {"value": checked["value"], "milestones": milestones, "gamma": checked["gamma"]}
    if kind == "CyclicLR":
        if checked["mode"] not in MODES:
            raise SequenceError(
                f"mode of {_signature(kind)} must be one of {', '.join(MODES)}, not {abbreviated(checked['mode'])}"
            )
        if checked["step_size_down"] is None:
            checked["step_size_down"] = checked["step_size_up"]
        if checked["mode"] != "exp_range":
            checked["gamma"] = None
        elif checked["gamma"] == 1:
            checked.update(mode="triangular", gamma=None)
        if checked["base"] == checked["max"]:
            return checked["base"]
    if kind == "Cosine":
        if checked["gamma"] < 1:
            raise SequenceError(
                f"gamma of {_signature(kind)} must be at least 1, not {abbreviated(arguments['gamma'])}"
            )
        if checked["gamma"] == 1:
            checked["gamma"] = None  # the formula without gamma applies
        if checked["value"] == checked["min"]:
            return checked["value"]
    if kind == "Warmup" and checked["then"].kind == "Constant" and checked["then"].at(0) == checked["start"]:
        return checked["start"]
    return Sequence(kind, checked, per)


def _values(values: Any, per: str) -> Any:
    if not isinstance(values, list) or not values:
        raise SequenceError(f"Values needs a list with values, not {abbreviated(values)}")
    if any(isinstance(v, dict) for v in values):
        values = [_dictionary(v) for v in values]
    else:
        values = [checked_number("a list", "a value", v) for v in values]
    while len(values) > 1 and values[-1] == values[-2]:  # the last value repeats anyway
        values.pop()
    return values[0] if len(values) == 1 else Sequence("Values", {"values": tuple(values)}, per)


def _milestones(values: Any) -> tuple[float, ...]:
    good = isinstance(values, list) and all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and 1 <= v < 2**53 and v == int(v) for v in values
    )
    if not good or values != sorted(values):
        raise SequenceError(
            f"milestones of {_signature('MultiStep')} must be an ascending list of integers of at least 1, "
            f"not {abbreviated(values)}"
        )
    return tuple(map(float, values))


def _plain(node: ast.expr | None) -> Any:
    """A literal in Python's or JSON's form, from its node."""
    if isinstance(node, ast.List):
        return [_plain(n) for n in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = list(map(_key, node.keys))
        if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
            raise SequenceError(f"{_code(node)} has the key {abbreviated(twice[0])} twice")
        return dict(zip(keys, map(_plain, node.values)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _plain(node.operand)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, (bool, int, float, str))):
        return node.value
    raise SequenceError(f"{_code(node)} is not a literal")


def _key(node: ast.expr | None) -> Any:
    key = _plain(node)
    if isinstance(key, (list, dict)):
        raise SequenceError(f"{abbreviated(key)} is not a key")
    return key


def _dictionary(value: Any) -> dict[Any, Any]:
    """A dictionary in a list of values, unchanged; the parameter checks its content."""
    if not isinstance(value, dict):
        raise SequenceError(f"a list holds numbers or dictionaries, not both: {abbreviated(value)}")
    return value


def _kind(name: str) -> str | None:
    return next((kind for kind in KINDS if kind.lower() == name.lower()), None)


def _signature(kind: str) -> str:
    """The kind with its arguments in order, for errors: a wrong order is a frequent mistake."""
    return f"{kind}({', '.join(KINDS[kind])})"


def _code(node: ast.expr | None) -> str:
    text = ast.unparse(node) if node is not None else ""
    return text if len(text) <= 200 else text[:200] + "..."
