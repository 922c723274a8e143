"""Hyper-parameters that change while a configuration trains: sequences of values. Standard library only.

The functions of TreeML (appendix A.1) and PyTorch's names for what they mean, as calls in a parameter string:
`lr=MultiStep(0.1, [40, 60], gamma=0.1)`; a list holds the values themselves, of which the last one stays. Texts are
parsed by `ast`, nothing is executed. A sequence is a function of the step, which is 0 in the first iteration or, with
`per='batch'`, at the first mini-batch. Keras' LearningRateSchedule, as JSON, is one of mini-batches by nature.
"""

import ast
import functools
import math
import re
import warnings

MOST_NESTED = 10
MODES = ("triangular", "triangular2", "exp_range")
REQUIRED = object()

# the arguments of each kind in order, with what they are when left out
KINDS = {
    "Constant": {"value": REQUIRED},
    "Exponential": {"value": REQUIRED, "gamma": REQUIRED},
    "MultiStep": {"value": REQUIRED, "milestones": REQUIRED, "gamma": 0.1},
    "CyclicLR": {
        "base": REQUIRED,
        "max": REQUIRED,
        "step_size_up": REQUIRED,
        "step_size_down": None,
        "mode": "triangular",
        "gamma": 1.0,
    },
    "Cosine": {"value": REQUIRED, "period": REQUIRED, "min": 0.0, "gamma": 1.0},
    "Warmup": {"start": REQUIRED, "steps": REQUIRED, "then": REQUIRED},
    "Values": {"values": REQUIRED},
}
VALUES = ("value", "base", "max", "min", "start")  # arguments that are values of the sequence itself
COUNTS = ("step_size_up", "step_size_down", "period", "steps")  # arguments that count iterations or mini-batches

# Keras' schedules: the config of each, with Keras' own defaults
SCHEDULES = {
    "ExponentialDecay": {
        "initial_learning_rate": REQUIRED,
        "decay_steps": REQUIRED,
        "decay_rate": REQUIRED,
        "staircase": False,
    },
    "PiecewiseConstantDecay": {"boundaries": REQUIRED, "values": REQUIRED},
    "PolynomialDecay": {
        "initial_learning_rate": REQUIRED,
        "decay_steps": REQUIRED,
        "end_learning_rate": 0.0001,
        "power": 1.0,
        "cycle": False,
    },
    "InverseTimeDecay": {
        "initial_learning_rate": REQUIRED,
        "decay_steps": REQUIRED,
        "decay_rate": REQUIRED,
        "staircase": False,
    },
    "CosineDecay": {
        "initial_learning_rate": REQUIRED,
        "decay_steps": REQUIRED,
        "alpha": 0.0,
        "warmup_target": None,
        "warmup_steps": 0.0,
    },
    "CosineDecayRestarts": {
        "initial_learning_rate": REQUIRED,
        "first_decay_steps": REQUIRED,
        "t_mul": 2.0,
        "m_mul": 1.0,
        "alpha": 0.0,
    },
}
BOOLEANS, LISTS, OPTIONAL = ("staircase", "cycle"), ("boundaries", "values"), ("warmup_target",)
SERIALIZED_KEYS = {"class_name", "config", "module", "registered_name", "build_config", "name"}
SCHEDULE_MODULES = re.compile(r"keras(\.src)?\.optimizers\.schedules(\.learning_rate_schedule)?|builtins")


class SequenceError(ValueError):
    """A text that is no sequence, or one that has no values; the text says why."""


class Sequence:
    """A function of the step: `kind` of KINDS, its `arguments` {name: float, tuple, Sequence, text or None}, and `per`
    ('iteration' or 'batch'). Immutable; equal where the text is."""

    def __init__(self, kind, arguments, per="iteration"):
        self.kind, self.arguments, self.per = kind, arguments, per
        self.text = _text(kind, arguments, per)
        self._function, self._stated = self.bind(self.numbers()), self.stated()

    def __str__(self):
        return self.text

    def __repr__(self):
        return self.text

    def __eq__(self, other):
        return isinstance(other, Sequence) and self.text == other.text

    def __hash__(self):
        return hash(self.text)

    def at(self, step):
        """The value at `step`, from 0: a float, or what the list of Values holds. Raises SequenceError where it is not
        finite.

        What is computed has 15 digits, and is a value that the text names where it comes that near: so 0.1 * 0.1 is
        0.01, and sequences that are equal on paper give equal values.
        """
        if self.kind == "Values":
            values = self.arguments["values"]
            return values[min(step, len(values) - 1)]
        try:
            value = self._function(PYTHON, float(step))
        except (OverflowError, ZeroDivisionError):
            value = math.inf
        if not math.isfinite(value):
            raise SequenceError(f"{self.text} is not finite at step {step}")
        for named in self._stated:
            if abs(value - named) <= 1e-15 * abs(named):
                return named
        return float(f"{value:.15g}")

    def stated(self):
        """The values of the sequence that its text names: among them the first one."""
        found = (
            list(self.arguments["values"])
            if self.kind == "Values"
            else [self.arguments[name] for name in VALUES if name in self.arguments]
        )
        then = self.arguments.get("then")
        return found + (then.stated() if then is not None else [])

    def signs(self):
        """Which signs (-1, 0, 1) the values have, as far as a text says it."""
        then = self.arguments.get("then")
        ends = self.stated() if then is None else [self.arguments["start"]]
        if self.kind == "Cosine" and not self.arguments["min"]:  # which it never reaches
            ends = [self.arguments["value"]]
        return {(v > 0) - (v < 0) for v in ends} | (then.signs() if then is not None else set())

    def mapped(self, function):
        """These Values with `function` applied to each."""
        return Sequence(self.kind, {"values": tuple(map(function, self.arguments["values"]))}, self.per)

    def numbers(self):
        """The numbers that may differ between sequences of one structure: floats, or tuples of floats, in order."""
        found = []
        for value in self.arguments.values():
            if isinstance(value, Sequence):
                found += value.numbers()
            elif isinstance(value, (float, tuple)):
                found.append(value)
        return found

    def structure(self):
        """All the rest, as JSON has it: sequences of one structure are computed alike."""
        return [
            self.kind,
            self.per,
            *(
                v.structure()
                if isinstance(v, Sequence)
                else len(v)
                if isinstance(v, tuple)
                else "number"
                if isinstance(v, float)
                else v
                for v in self.arguments.values()
            ),
        ]

    def bind(self, numbers):
        """The function (operations, step) -> value, of `numbers` in place of its own (as `numbers` gives them)."""
        return self._bind(iter(numbers))

    def _bind(self, numbers):
        bound = {
            name: value._bind(numbers)
            if isinstance(value, Sequence)
            else next(numbers)
            if isinstance(value, (float, tuple))
            else value
            for name, value in self.arguments.items()
        }
        return functools.partial(FUNCTIONS[self.kind], **bound)


class Schedule:
    """Keras' LearningRateSchedule: its class name and checked config, every default filled in. Equal where that is."""

    per = "batch"

    def __init__(self, name, config):
        self.name, self.config = name, config
        self.text = repr(
            {
                "class_name": name,
                "config": {
                    key: list(value) if isinstance(value, tuple) else value for key, value in sorted(config.items())
                },
            }
        )

    def __str__(self):
        return self.text

    def __repr__(self):
        return self.text

    def __eq__(self, other):
        return isinstance(other, Schedule) and self.text == other.text

    def __hash__(self):
        return hash(self.text)


# --- reading -----------------------------------------------------------------------------------------
def is_sequence_text(text):
    """True where a text is written as a sequence: a list, a call of a name of KINDS, a Keras schedule's dictionary."""
    called = re.match(r"\s*(\w+)\s*\(", text)
    if called:
        return _kind(called[1]) is not None
    return bool(re.match(rf"\s*(\[|\{{\s*['\"]({'|'.join(SERIALIZED_KEYS)})['\"]\s*:)", text))


def parse(text):
    """A text -> a Sequence or a Schedule or, where it has the same value at every step, that value.

    Values are floats; those of a list may be dictionaries ({class: weight}, {layer: rate}) instead. Raises
    SequenceError.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's remarks on odd spelling
            node = ast.parse(text.strip(), mode="eval").body
        return _sequence(node, 0)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError, ArithmeticError) as error:
        if isinstance(error, SequenceError):
            raise
        raise SequenceError(f"{_short(text)} is no sequence") from None


def constant(value):
    """A Sequence of one value at every step."""
    return Sequence("Constant", {"value": value})


def _sequence(node, depth):
    """The node of a list, a call or a Keras schedule -> as `parse`."""
    if depth > MOST_NESTED:
        raise SequenceError(f"sequences are nested deeper than {MOST_NESTED}")
    if isinstance(node, ast.List):
        return _made("Values", {"values": _plain(node)}, "iteration")
    if isinstance(node, ast.Dict):
        return _schedule(_plain(node))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise SequenceError(f"{_code(node)} is no sequence")
    kind = _kind(node.func.id)
    if kind is None:
        raise SequenceError(f"unknown sequence {node.func.id!r} ({', '.join(KINDS)})")
    arguments, per = _arguments(kind, node, depth)
    return _made(kind, arguments, per)


def _arguments(kind, node, depth):
    """({name: value as it was written}, per) of a call."""
    names, given, per = list(KINDS[kind]), {}, None
    nodes = list(node.args)
    if kind == "CyclicLR" and len(nodes) > 3 and isinstance(nodes[3], ast.Constant) and isinstance(nodes[3].value, str):
        names.remove("step_size_down")  # a text in the fourth place is the mode
    if len(nodes) > len(names) or any(isinstance(n, ast.Starred) for n in nodes):
        raise SequenceError(f"{kind} takes {', '.join(KINDS[kind])}, not {len(nodes)} values")
    for name, value in (*zip(names, nodes), *((k.arg, k.value) for k in node.keywords)):
        if name == "per":
            if per is not None:
                raise SequenceError(f"{kind} is given per twice")
            per = _plain(value)
            if per not in ("iteration", "batch"):
                raise SequenceError(f"per of {kind} must be 'iteration' or 'batch', not {_short(per)}")
            if depth:
                raise SequenceError("per belongs to the outermost sequence alone")
        elif name not in KINDS[kind]:
            raise SequenceError(f"{_short(name)} is no argument of {kind} ({', '.join(KINDS[kind])}, per)")
        elif name in given:
            raise SequenceError(f"{kind} is given {name} twice")
        else:
            given[name] = _then(value, depth) if name == "then" else _plain(value)
    for name, default in KINDS[kind].items():
        if name not in given and default is REQUIRED:
            raise SequenceError(f"{_signature(kind)} needs {name}")
        given.setdefault(name, default)
    return {name: given[name] for name in KINDS[kind]}, per or "iteration"


def _then(node, depth):
    if isinstance(node, (ast.List, ast.Call)):
        value = _sequence(node, depth + 1)
    else:
        value = _number(_signature("Warmup"), "then", _plain(node))
    if isinstance(value, dict):
        raise SequenceError("Warmup needs numbers")
    return value if isinstance(value, Sequence) else constant(value)


def _made(kind, arguments, per):
    """A Sequence of arguments as they were written; the value alone where there is but one."""
    if kind == "Values":
        return _values(arguments["values"], per)
    if kind == "Constant":
        value = arguments["value"]
        return _dictionary(value) if isinstance(value, dict) else _number(_signature(kind), "value", value)
    milestones = arguments.pop("milestones", None)
    checked = {
        name: value
        if name in ("mode", "then") or value is None and name == "step_size_down"
        else _number(_signature(kind), name, value)
        for name, value in arguments.items()
    }
    for name in COUNTS:
        if checked.get(name) is not None and not (checked[name] == int(checked[name]) and 1 <= checked[name] < 2**53):
            raise SequenceError(
                f"{name} of {_signature(kind)} must be an integer of at least 1, not {_short(arguments[name])}"
            )
    if "gamma" in checked and checked["gamma"] <= 0:
        raise SequenceError(f"gamma of {_signature(kind)} must be above 0, not {_short(arguments['gamma'])}")
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
                f"mode of {_signature(kind)} must be one of {', '.join(MODES)}, not {_short(checked['mode'])}"
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
            raise SequenceError(f"gamma of {_signature(kind)} must be at least 1, not {_short(arguments['gamma'])}")
        if checked["gamma"] == 1:
            checked["gamma"] = None  # computed otherwise
        if checked["value"] == checked["min"]:
            return checked["value"]
    if kind == "Warmup" and checked["then"].kind == "Constant" and checked["then"].at(0) == checked["start"]:
        return checked["start"]
    return Sequence(kind, checked, per)


def _values(values, per):
    if not isinstance(values, list) or not values:
        raise SequenceError(f"Values needs a list with values, not {_short(values)}")
    if any(isinstance(v, dict) for v in values):
        values = [_dictionary(v) for v in values]
    else:
        values = [_number("a list", "a value", v) for v in values]
    while len(values) > 1 and values[-1] == values[-2]:  # the last one stays
        values.pop()
    return values[0] if len(values) == 1 else Sequence("Values", {"values": tuple(values)}, per)


def _milestones(values):
    good = isinstance(values, list) and all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and 1 <= v < 2**53 and v == int(v) for v in values
    )
    if not good or values != sorted(values):
        raise SequenceError(
            f"milestones of {_signature('MultiStep')} must be a rising list of integers of at least 1, "
            f"not {_short(values)}"
        )
    return tuple(map(float, values))


def _schedule(value):
    """The dictionary of a Keras schedule's JSON -> Schedule."""
    name, config = value.get("class_name"), value.get("config")
    if not isinstance(name, str) or name not in SCHEDULES:
        raise SequenceError(f"{_short(name)} is no learning rate schedule of Keras' own ({', '.join(SCHEDULES)})")
    module, registered = value.get("module"), value.get("registered_name")
    if (
        not value.keys() <= SERIALIZED_KEYS
        or not (module is None or isinstance(module, str) and SCHEDULE_MODULES.fullmatch(module))
        or registered not in (None, name)
    ):
        raise SequenceError(f"schedule {name} is not of Keras' own form: {{'class_name': ..., 'config': {{...}}}}")
    if not isinstance(config, dict):
        raise SequenceError(f"schedule {name} has no config")
    known, checked = SCHEDULES[name], {}
    for key, given in config.items():
        if key == "name" and (given is None or isinstance(given, str)):
            continue
        if key not in known:
            raise SequenceError(f"{_short(key)} is no argument of schedule {name} ({', '.join(known)})")
        checked[key] = _config_value(name, key, given)
    for key, default in known.items():
        if key not in checked and default is REQUIRED:
            raise SequenceError(f"schedule {name} needs {key}")
        checked.setdefault(key, default)
    for key in ("decay_steps", "first_decay_steps"):
        if checked.get(key, 1) <= 0:
            raise SequenceError(f"{key} of {name} must be above 0, not {checked[key]:g}")
    if name == "PiecewiseConstantDecay" and not 1 <= len(checked["boundaries"]) == len(checked["values"]) - 1:
        raise SequenceError(f"values of {name} must be one more than its boundaries")
    return Schedule(name, {key: checked[key] for key in known})


def _config_value(name, key, value):
    if key in BOOLEANS:
        if not isinstance(value, bool):
            raise SequenceError(f"{key} of {name} must be True or False, not {_short(value)}")
        return value
    if key in LISTS:
        if not isinstance(value, list):
            raise SequenceError(f"{key} of {name} must be a list of numbers, not {_short(value)}")
        return tuple(_number(name, key, v) for v in value)
    return None if value is None and key in OPTIONAL else _number(name, key, value)


def _plain(node):
    """A literal as Python or JSON writes it, from its node."""
    if isinstance(node, ast.List):
        return [_plain(n) for n in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = list(map(_key, node.keys))
        if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
            raise SequenceError(f"{_code(node)} has the key {_short(twice[0])} twice")
        return dict(zip(keys, map(_plain, node.values)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _plain(node.operand)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, (bool, int, float, str))):
        return node.value
    raise SequenceError(f"{_code(node)} is no literal")


def _key(node):
    key = _plain(node)
    if isinstance(key, (list, dict)):
        raise SequenceError(f"{_short(key)} is no key")
    return key


def _dictionary(value):
    """A dictionary among a list's values, as it is; what it may hold is its parameter's to check."""
    if not isinstance(value, dict):
        raise SequenceError(f"a list holds numbers or dictionaries, not both: {_short(value)}")
    return value


def _number(kind, name, value):
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not -(2**63) < value < 2**63
        and not (isinstance(value, float) and math.isfinite(value))
    ):
        raise SequenceError(f"{name} of {kind} must be a number, not {_short(value)}")
    return float(value) + 0.0  # -0.0 is 0


def _kind(name):
    return next((kind for kind in KINDS if kind.lower() == name.lower()), None)


def _signature(kind):
    """The kind with its arguments in their order: for errors, since another order is what is often wrong."""
    return f"{kind}({', '.join(KINDS[kind])})"


def _text(kind, arguments, per):
    """The text from which a sequence is read again: canonical, since its arguments are."""
    if kind == "Constant":
        return repr(arguments["value"])
    parts = [
        f"{name}={list(value) if isinstance(value, tuple) else value!r}"
        for name, value in arguments.items()
        if value is not None
    ]
    return f"{kind}({', '.join(parts)}{'' if per == 'iteration' else f', per={per!r}'})"


def _code(node):
    text = ast.unparse(node)
    return text if len(text) <= 200 else text[:200] + "..."


def _short(value):
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."


# --- the functions: of operations (Python's, or TensorFlow's for mini-batches), the step, and the arguments ----------
class PYTHON:
    """The operations that the functions below are written in, on floats."""

    cos, log, maximum = math.cos, math.log, max

    @staticmethod
    def floor(value):
        return float(math.floor(value))

    @staticmethod
    def where(condition, yes, no):
        return yes if condition else no

    @staticmethod
    def reached(step, milestones):
        """How many of the milestones `step` has reached."""
        return float(sum(step >= m for m in milestones))

    @staticmethod
    def pick(values, step):
        """The value of that number; the last one beyond."""
        return values[min(int(step), len(values) - 1)]


def _constant(ops, step, value):
    return value


def _exponential(ops, step, value, gamma):
    return value * gamma**step


def _multi_step(ops, step, value, milestones, gamma):
    return value * gamma ** ops.reached(step, milestones)


def _cyclic(ops, step, base, max, step_size_up, step_size_down, mode, gamma):
    length = step_size_up + step_size_down
    cycle = ops.floor(step / length)
    position = step - cycle * length
    height = (max - base) * ops.where(
        position <= step_size_up, position / step_size_up, (length - position) / step_size_down
    )
    if mode == "triangular2":
        height = height * 0.5**cycle
    elif mode == "exp_range":
        height = height * gamma**step
    return base + height


def _cosine(ops, step, value, period, min, gamma):
    if gamma is None:
        position = step / period - ops.floor(step / period)
    else:  # periods of lengths period, period * gamma, ...
        number = ops.floor(ops.log(1 + step * (gamma - 1) / period) / ops.log(gamma))
        for _ in range(2):  # rounding may have given a neighbour
            begin = period * (gamma**number - 1) / (gamma - 1)
            number = ops.where(
                step < begin, number - 1, ops.where(step >= begin + period * gamma**number, number + 1, number)
            )
        position = (step - period * (gamma**number - 1) / (gamma - 1)) / (period * gamma**number)
    return min + (value - min) * (1 + ops.cos(math.pi * position)) / 2


def _warmup(ops, step, start, steps, then):
    rising = start + (then(ops, 0.0 * step) - start) * step / steps
    return ops.where(step < steps, rising, then(ops, ops.maximum(step - steps, 0.0)))


def _pick(ops, step, values):
    return ops.pick(values, step)


FUNCTIONS = {
    "Constant": _constant,
    "Exponential": _exponential,
    "MultiStep": _multi_step,
    "CyclicLR": _cyclic,
    "Cosine": _cosine,
    "Warmup": _warmup,
    "Values": _pick,
}
