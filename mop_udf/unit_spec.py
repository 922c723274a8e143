"""What travels about units: the unit spec from the coordinator to a worker session, and the request from there to a trainer.

Each value is a dataclass that becomes JSON and is read from JSON, which is checked: any role may call the functions that
take it. Standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mop_udf.errors import abbreviated

T = TypeVar("T", bound="Spec")


class SpecError(ValueError):
    """A JSON value that is none of the values of this module. The message is one sentence."""


@dataclass(kw_only=True)
class Spec:
    """A value that travels as a JSON object with a member for each field."""

    def to_json(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in vars(self).items()}

    @classmethod
    def from_json(cls: type[T], data: Any) -> T:
        """The value of a JSON object; members without a field are ignored. Raises SpecError."""
        if not isinstance(data, dict):
            raise SpecError(f"a {cls.__name__} must be a JSON object, not {abbreviated(data)}")
        values, kind = {}, typing.cast(Hashable, cls)
        for name, read, is_needed in _fields(kind):
            if name in data:
                try:
                    values[name] = read(data[name])
                except TypeError as error:
                    raise SpecError(
                        f"{name} of a {cls.__name__} must be {error}, not {abbreviated(data[name])}"
                    ) from None
            elif is_needed:
                raise SpecError(f"a {cls.__name__} has no {name}")
        return cls(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.to_json()
    return [_plain(item) for item in value] if isinstance(value, list) and any(map(_is_spec, value)) else value


def _is_spec(value: Any) -> bool:
    return isinstance(value, Spec)


@functools.cache
def _fields(cls: Any) -> list[tuple[str, Callable[[Any], Any], bool]]:
    """(name, function that checks and reads its value, whether it is needed) of each field."""
    hints, missing = typing.get_type_hints(cls), dataclasses.MISSING
    return [
        (f.name, _reader(hints[f.name]), f.default is missing and f.default_factory is missing)
        for f in dataclasses.fields(cls)
    ]


def _reader(hint: Any) -> Callable[[Any], Any]:
    """The function that returns a JSON value as a value of a type. It raises TypeError with the name of the type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: value
    if origin is types.UnionType:
        (one,) = (_reader(argument) for argument in arguments if argument is not type(None))
        return lambda value: None if value is None else one(value)
    if origin is list:
        item = _reader(arguments[0])
        whole = _reader(list)
        return lambda value: [item(element) for element in whole(value)]
    if origin is dict:
        return _reader(dict)
    if issubclass(hint, Spec):
        return hint.from_json
    kinds = (int, float) if hint is float else hint

    def read(value: Any) -> Any:
        if not isinstance(value, kinds) or isinstance(value, bool) and hint is not bool:
            raise TypeError(NAMES[hint])
        return value

    return read


NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a text",
    list: "an array",
    dict: "an object",
}


# --- from the coordinator to a worker session -----------------------------------------------------------


@dataclass(kw_only=True)
class SegmentSpec(Spec):
    """The rows of a segment: how to read them, and how to tell whether they have changed.

    `dataset_key` names the exact rows.
    """

    segment: int
    fingerprint: str | None
    fingerprint_sql: str
    rows_sql: str = ""
    rows: int = 0
    bytes: int = 0
    dataset_key: str = ""

    def trainer_rows(self) -> TrainerRows:
        return TrainerRows(segment=self.segment, rows=self.rows, nbytes=self.bytes, dataset=self.dataset_key)


@dataclass(kw_only=True)
class ModelSpec(Spec):
    """A model of a unit: one attempt at a training unit, or at an evaluation.

    `version`: of the state that it reads. `release`: stages whose states its commit releases. `state_table`: where its
    new state goes, None where this step writes none. `kernel`: of the setting, or the list of a log. `costs`: of its net in
    earlier runs; only where its stage is new in a chain. `inherits`: what a stage inherits from another trial's state.
    """

    stage: int
    iteration: int
    attempt: int = 1
    version: int = 0
    release: list[int] = field(default_factory=list)
    state_table: int | None = None
    epochs: int = 1
    kernel: Any = "auto"
    net: str | None = None
    passes_left: int = 0
    run_passes_left: int = 0
    functions: list[list[str]] | None = field(default_factory=list)
    costs: Any = None
    inherits: dict[str, Any] | None = None


@dataclass(kw_only=True)
class StepSpec(Spec):
    """A later step of a chain. `models`: in the order of the unit's; None for one that the step leaves out."""

    segment: int
    models: list[ModelSpec | None]


@dataclass(kw_only=True)
class UnitSpec(SegmentSpec):
    """A unit, a unit batch, or a chain of them, for a worker session: see run/unit.py.

    `options`: of its trainer, see process.Trainer; `host_segments`: see trainers.trainer_at; `then`: the later steps of a
    chain; `segments`: of these steps; `coming`: the state that the session may read ahead; `predict`: in place of training.
    """

    run_id: int
    fencing_token: int
    kind: str
    dataset: str
    models: list[ModelSpec]
    options: dict[str, Any]
    host_segments: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    same_start: bool = True
    replicas: list[list[int]] | None = None
    table: str = ""
    dtypes: list[str] = field(default_factory=list)
    inputs: int = 1
    outputs: Any = None
    finite: bool = True
    run_seconds: float = 0.0
    share_prefixes: bool = False
    then: list[StepSpec] = field(default_factory=list)
    segments: list[SegmentSpec] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)
    object_table: str | None = None
    coming: dict[str, int] | None = None
    predict: dict[str, Any] | None = None

    def steps(self) -> Iterator[tuple[int, Sequence[ModelSpec | None]]]:
        """(segment, models) of each step."""
        yield self.segment, self.models
        for step in self.then:
            yield step.segment, step.models

    def header(self, segment: SegmentSpec) -> UnitHeader:
        """What the trainer is told of all models of the unit on one of its segments."""
        return UnitHeader(
            **vars(segment.trainer_rows()),
            kind=self.kind,
            seed=self.seed,
            same_start=self.same_start,
            dtypes=self.dtypes,
            inputs=self.inputs,
            outputs=self.outputs,
            replicas=self.replicas,
            run_seconds=self.run_seconds,
            share_prefixes=self.share_prefixes,
            keep=self.keep,
        )


# --- from a worker session to its trainer ---------------------------------------------------------------


@dataclass(kw_only=True)
class TrainerRows(Spec):
    """The rows of a segment, as a trainer is told of them. `dataset` names them in its cache; None: they are not kept."""

    segment: int = 0
    rows: int = 0
    nbytes: int = 0
    dataset: str | None = None


@dataclass(kw_only=True)
class UnitHeader(TrainerRows):
    """What all models of a request have in common.

    `keep`: the datasets that should stay in the cache; `keeps_rows`: the trainer holds the rows or can keep them;
    `sends_rows`: they follow, `epochs_sent` times.
    """

    kind: str
    dtypes: list[str]
    inputs: int
    outputs: Any
    seed: int = 0
    same_start: bool = True
    replicas: list[list[int]] | None = None
    run_seconds: float = 0.0
    share_prefixes: bool = False
    keep: list[str] = field(default_factory=list)
    keeps_rows: bool = False
    sends_rows: bool = True
    epochs_sent: int = 1


@dataclass(kw_only=True)
class UnitModel(Spec):
    """A model of a request. `plain_weights`: its state is none, or weights alone, or another trial's, which it inherits.

    `objects`: the names of its custom functions, whose pickles follow; `path`: of a super-net, whose member it is.
    """

    stage: int
    model_id: int
    iteration: int
    architecture: str
    compile_params: str
    fit_params: str | None = None
    plain_weights: bool
    mst_key: int | None = None
    epochs: int = 1
    kernel: Any = "auto"
    net: str | None = None
    passes_left: int = 0
    run_passes_left: int = 0
    functions: list[list[str]] | None = field(default_factory=list)
    costs: Any = None
    inherits: dict[str, Any] | None = None
    objects: list[str] = field(default_factory=list)
    path: list[int] | None = None


@dataclass(kw_only=True)
class UnitRequest(UnitHeader):
    """What a trainer is told of a unit, of a unit batch, or of a chain. `then`: of each later step, its rows, and of each
    model what differs from the step before (None: the step leaves it out)."""

    models: list[UnitModel]
    then: list[dict[str, Any]] = field(default_factory=list)

    def units(self) -> list[TrainerUnit]:
        """The units of the first step."""
        common = {f.name: getattr(self, f.name) for f in dataclasses.fields(UnitHeader)}
        return [TrainerUnit(**common, **vars(model)) for model in self.models]


@dataclass(kw_only=True)
class TrainerUnit(UnitHeader, UnitModel):
    """One model of a request, with what it has in common with the others."""


def steps_of(request: UnitRequest) -> list[list[TrainerUnit | None]]:
    """The units of a request, a list for each step, in the order of the models; None where a step leaves a model out.

    Raises SpecError.
    """
    last = request.units()
    steps: list[list[TrainerUnit | None]] = [[*last]]
    for step in request.then:
        rows = vars(TrainerRows.from_json(step))
        units = [
            None if changes is None else TrainerUnit.from_json({**vars(before), **rows, **changes})
            for before, changes in zip(last, step["models"], strict=True)
        ]
        last = [unit or before for unit, before in zip(units, last)]
        steps.append(units)
    return steps
