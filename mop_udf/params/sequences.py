"""Hyper-parameters that change in the course of training: sequences of values. Standard library only.

The functions are those of TreeML (appendix A.1) with PyTorch's names, as calls in a parameter string:
`lr=MultiStep(0.1, [40, 60], gamma=0.1)`. A list holds the values themselves; its last value repeats. A sequence is a
function of the step: 0 is the first iteration or, with `per='batch'`, the first mini-batch. The parser is in
sequence_parser.py, Keras' own schedules are in keras_schedules.py.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mop_udf.errors import abbreviated
from mop_udf.params.sequence_functions import FUNCTIONS, PYTHON

MODES = ("triangular", "triangular2", "exp_range")
REQUIRED = object()

# the arguments of each kind in order, with their defaults
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
VALUES = ("value", "base", "max", "min", "start")  # arguments that are values of the sequence


class SequenceError(ValueError):
    """A text is not a sequence, or its values are not finite; the text says why."""


class Sequence:
    """A function of the step. Immutable; sequences with equal text are equal.

    `kind`: a key of KINDS; `arguments`: {name: float, tuple, Sequence, text or None}; `per`: 'iteration' or 'batch'.
    """

    def __init__(self, kind: str, arguments: dict[str, Any], per: str = "iteration") -> None:
        self.kind, self.arguments, self.per = kind, arguments, per
        self.text = _text(kind, arguments, per)
        self._function, self._stated = self.bind(self.numbers()), self.stated()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def at(self, step: int) -> Any:
        """The value at `step`, from 0: a float, or an element of Values. Raises SequenceError where it is not finite.

        Computed values have 15 digits. A value within rounding of a value in the text becomes that value: 0.1 * 0.1 is
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

    def stated(self) -> list[Any]:
        """The values in the text of the sequence, including its first value."""
        found = (
            list(self.arguments["values"])
            if self.kind == "Values"
            else [self.arguments[name] for name in VALUES if name in self.arguments]
        )
        then = self.arguments.get("then")
        return found + (then.stated() if then is not None else [])

    def signs(self) -> set[int]:
        """The signs (-1, 0, 1) of the values, as far as the text determines them."""
        then = self.arguments.get("then")
        ends = self.stated() if then is None else [self.arguments["start"]]
        if self.kind == "Cosine" and not self.arguments["min"]:  # the sequence never reaches its minimum 0
            ends = [self.arguments["value"]]
        return {(v > 0) - (v < 0) for v in ends} | (then.signs() if then is not None else set())

    def mapped(self, function: Callable[[Any], Any]) -> "Sequence":
        """These Values with `function` applied to each value."""
        return Sequence(self.kind, {"values": tuple(map(function, self.arguments["values"]))}, self.per)

    def numbers(self) -> list[Any]:
        """The numbers that differ between sequences of one structure: floats or tuples of floats, in order."""
        found = []
        for value in self.arguments.values():
            if isinstance(value, Sequence):
                found += value.numbers()
            elif isinstance(value, (float, tuple)):
                found.append(value)
        return found

    def structure(self) -> list[Any]:
        """Everything but the numbers, as JSON data: sequences of equal structure share one computation."""
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

    def bind(self, numbers: Iterable[Any]) -> Callable[..., Any]:
        """The function (operations, step) -> value with `numbers`, in the form of `numbers()`, in place of its own."""
        return self._bind(iter(numbers))

    def _bind(self, numbers: Iterator[Any]) -> Callable[..., Any]:
        bound = {
            name: value._bind(numbers)
            if isinstance(value, Sequence)
            else next(numbers)
            if isinstance(value, (float, tuple))
            else value
            for name, value in self.arguments.items()
        }
        return functools.partial(FUNCTIONS[self.kind], **bound)


def constant(value: float) -> Sequence:
    """A Sequence with one value at every step."""
    return Sequence("Constant", {"value": value})


def _text(kind: str, arguments: dict[str, Any], per: str) -> str:
    """Canonical text of a sequence; parsing it gives an equal sequence."""
    if kind == "Constant":
        return repr(arguments["value"])
    parts = [
        f"{name}={list(value) if isinstance(value, tuple) else value!r}"
        for name, value in arguments.items()
        if value is not None
    ]
    return f"{kind}({', '.join(parts)}{'' if per == 'iteration' else f', per={per!r}'})"


def checked_number(kind: str, name: str, value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not -(2**63) < value < 2**63
        and not (isinstance(value, float) and math.isfinite(value))
    ):
        raise SequenceError(f"{name} of {kind} must be a number, not {abbreviated(value)}")
    return float(value) + 0.0  # -0.0 is 0
