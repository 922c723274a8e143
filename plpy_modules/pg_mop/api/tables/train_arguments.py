"""The arguments of mop_train as a value: of a call, and as a version's row stores them for mop_retrain."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pg_mop.backend.errors import MopError


@dataclass(frozen=True)
class TrainArguments:
    """The arguments of mop_train, in the order of the SQL function (sql/64_train.sql); None where an argument is NULL."""

    source: str | None
    name: str
    target: str | None
    id: str | None
    exclude: str | None
    kind: str | None
    transform: str | None
    weight: str | None
    split: str | None
    by: str | None
    valid: float | None
    test: float | None
    layers: str | None
    time_limit: str | None
    max_trials: float | None
    baselines: bool | None
    keep: bool | None
    folds: int | None
    ensemble: int | None
    families: str | None
    refit: bool | None
    metric: str | None

    @classmethod
    def of_call(cls, values: Sequence[Any]) -> TrainArguments:
        """The arguments from the values of an SQL call. Raises MopError without a name of the model."""
        arguments = cls(*values)
        if arguments.name is None or not arguments.name.strip():
            raise MopError("no name is given for the model", hint="name => 'churn', for instance.")
        return arguments

    @classmethod
    def from_json(cls, stored: dict[str, Any], name: str) -> TrainArguments:
        """The arguments that `to_json` has stored in the row of a version, for the model that is called `name` now.

        Another role may write the row. Raises ValueError for an unknown argument and for a value of another type than a call's.
        """
        for argument, value in stored.items():
            kinds = KINDS.get(argument)
            if kinds is None:
                raise ValueError(f"{argument} is no argument")
            if value is not None and (not isinstance(value, kinds) or isinstance(value, bool) and bool not in kinds):
                raise ValueError(f"{argument} is {value!r}")
        return cls(**{**dict.fromkeys(KINDS), **stored, "name": name})

    def to_json(self) -> dict[str, Any]:
        """The arguments that are not NULL, by name (JSON-able)."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


def _kinds(hint: Any) -> tuple[type, ...]:
    """The types of a field's value; a float may be an integer, and JSON may have either for an integer."""
    kinds = set(typing.get_args(hint) or (hint,)) - {type(None)}
    return (int, float) if kinds & {int, float} else tuple(kinds)


# {argument: the types of its values}, in the order of the SQL function
KINDS = {name: _kinds(hint) for name, hint in typing.get_type_hints(TrainArguments).items()}
