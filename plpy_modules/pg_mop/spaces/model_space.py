"""A space of models: base models and mutators, and its members by number. Pure Python."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from mop_udf.architecture.architecture import ArchitectureError, check
from mop_udf.architecture.architecture_shapes import input_shapes
from pg_mop.plan.arithmetic import Arithmetic
from pg_mop.plan.shapes import Misfit, Shape
from pg_mop.spaces.choices import Chosen, Point
from pg_mop.spaces.custom import NONE, CustomLayers
from pg_mop.spaces.fitting import PROJECT, fit
from pg_mop.spaces.graph import Graph
from pg_mop.spaces.mutators import Variations
from pg_mop.spaces.reading import SpaceError, check_text, read

ADAPTS = (None, PROJECT)
MOST_BASES = 1000
TRIED = 1000  # members of a large space that are looked at to find one that fits
MOST_PARAMETERS = 1 << 40  # of a member
MOST_BYTES = 128 << 20  # of a sample
TRIES = 20  # numbers drawn for each member of a sample, at most, where many do not fit


@dataclass(frozen=True)
class Base:
    """A base model: its model_id, its architecture JSON, and a name to show."""

    model_id: int
    architecture: str
    name: str | None = None


@dataclass(frozen=True)
class Member:
    """A member of a space.

    `number`: from 0; `model_id`: of its base model; `choices`: {choice point: option}; `chosen`: the same by index;
    `record`: the primitives that make it from its base; `architecture`: its JSON as text, None where it does not fit;
    `misfit`: why; `parameters`: how many, None where the JSON does not tell.
    """

    number: int
    model_id: int
    choices: Mapping[str, Any]
    chosen: Mapping[str, int]
    record: Sequence[Mapping[str, Any]]
    architecture: str | None
    misfit: str | None
    parameters: int | None


@dataclass
class _Varied:
    """A base model with its variations. `first`: the number of its first member; `outputs`: the shapes of its outputs."""

    base: Base
    checked: dict[str, Any]
    variations: Variations
    outputs: list[Shape]
    first: int = 0


@dataclass
class Sampled:
    """What was drawn: how many of `tried` fit, and {reason: how many} of the others. `members`: what was kept of a sample."""

    members: list[Any] = field(default_factory=list)
    fitting: int = 0
    tried: int = 0
    refused: dict[str, int] = field(default_factory=dict)


class ModelSpace:
    """Base models and mutators. Members are numbered base by base; the first choice point counts most.

    >>> dense = {"class_name": "Dense", "config": {"units": 3, "name": "out"}}
    >>> hidden = {"class_name": "Dense", "config": {"units": 8, "name": "hidden", "batch_input_shape": [None, 4]}}
    >>> base = Base(1, json.dumps({"class_name": "Sequential", "config": {"layers": [hidden, dense]}}))
    >>> space = ModelSpace([base], '[{"change": "value", "match": "hidden", "argument": "units", "choices": [8, 16]}]')
    >>> space.size, space.member(1).choices, space.member(1).parameters
    (2, {'hidden.units': 16}, 131)
    >>> space.member(1).record
    [{'primitive': 'set', 'layer': 'hidden', 'argument': 'units', 'value': 16}]
    """

    def __init__(
        self,
        bases: Sequence[Base],
        mutators: str,
        adapt: str | None = None,
        check: Callable[[], None] = lambda: None,
        custom: CustomLayers = NONE,
    ) -> None:
        """`mutators`: JSON text; `check`: called in each loop, also of later calls, so that the caller can cancel; `custom`:
        the layers with code. Raises SpaceError."""
        self.check, self.custom = check, custom
        if adapt not in ADAPTS:
            raise SpaceError(f"adapt must be {PROJECT!r} or NULL, not {str(adapt)[:100]!r}")
        if not bases:
            raise SpaceError("a space needs a base model")
        if len(bases) > MOST_BASES:
            raise SpaceError(f"a space has at most {MOST_BASES} base models, not {len(bases)}")
        self.adapt, self.mutators = adapt, read(mutators, check, custom)
        ids = [base.model_id for base in bases]
        if len(set(ids)) < len(ids):
            raise SpaceError(f"base model {next(i for i in ids if ids.count(i) > 1)} is named twice")
        for mutator in self.mutators:
            unknown = next((base for base in mutator.bases if base not in ids), None)
            if unknown is not None:
                raise SpaceError(f"mutator {mutator.number} has base {unknown}, which is no base model of the space")
        self.bases = [self._planned(base) for base in bases]
        self._check_matches()
        self._check_ends()
        self.size = 0
        for varied in self.bases:
            varied.first = self.size
            self.size += varied.variations.choices.size
        facts: list[Any] = [[[base.model_id, base.architecture] for base in bases], mutators, adapt]
        if custom:
            facts += [custom.names, custom.told]
        self.digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def _planned(self, base: Base) -> _Varied:
        self.check()
        try:
            checked = self._checked(base.architecture)
            check_text(checked)
            outputs = fit(Graph(checked), self.adapt, self.custom)
            variations = Variations(Graph(checked), base.model_id, self.mutators, self.check, self.custom)
            return _Varied(base, checked, variations, outputs)
        except (ArchitectureError, Misfit) as error:
            raise SpaceError(f"base model {base.model_id} cannot be used: {error}") from None

    def _checked(self, architecture: str | dict[str, Any]) -> dict[str, Any]:
        """(A model with a training step of its own is no base model: members have other layers, and no class.)"""
        return check(architecture, custom=self.custom.names, custom_models={})

    def _check_matches(self) -> None:
        matched = set().union(*(varied.variations.matched for varied in self.bases))
        idle = next((mutator for mutator in self.mutators if mutator.number not in matched), None)
        if idle is not None:
            variations = self.bases[0].variations
            names = ", ".join(f"{slot.name} ({slot.class_name})" for slot in variations.slots[:20])
            raise SpaceError(
                f"mutator {idle.number} ({idle.change}) matches no layer: {idle.match}",
                f"Model {variations.model_id} has {names}.",
            )

    def _check_ends(self) -> None:
        """Raises SpaceError where base models have different inputs or outputs."""
        first = self.bases[0]
        for other in self.bases[1:]:
            shapes = [input_shapes(varied.checked) for varied in (first, other)]
            if shapes[0] != shapes[1]:
                raise SpaceError(
                    f"the base models have no common input: {first.base.model_id} takes {_show(shapes[0])}, "
                    f"{other.base.model_id} takes {_show(shapes[1])}"
                )
            if len(first.outputs) != len(other.outputs) or any(
                a is not None and b is not None and a != b for a, b in zip(first.outputs, other.outputs)
            ):
                raise SpaceError(
                    f"the base models have different outputs: {first.base.model_id} puts out {_show(first.outputs)}, "
                    f"{other.base.model_id} puts out {_show(other.outputs)}"
                )

    # --- members -------------------------------------------------------------------------------------
    def member(self, number: int) -> Member:
        """The member of a number from 0 to size - 1. Raises SpaceError for another number."""
        if not 0 <= number < self.size:
            raise SpaceError(f"there is no member {digits(number)}: the space has {digits(self.size)}, from 0")
        varied = next(varied for varied in reversed(self.bases) if varied.first <= number)
        return self._made(varied, varied.variations.choices.chosen(number - varied.first), number)

    def of_choices(self, model_id: int, chosen: Mapping[str, int]) -> Member:
        """The member of a base model with these choices, by index."""
        varied = self._base(model_id)
        return self._made(varied, chosen, varied.first + varied.variations.choices.number(chosen))

    def points(self, model_id: int) -> list[Point]:
        """The choice points of a base model, each after its parent."""
        return self._base(model_id).variations.choices.points

    def size_of(self, model_id: int) -> int:
        """The number of members of a base model."""
        return self._base(model_id).variations.choices.size

    def walk(self, model_id: int, choose: Callable[[Point], int]) -> Chosen:
        """The choices of a member, as `choose` gives them for each open point."""
        return self._base(model_id).variations.choices.walk(choose)

    def members(self) -> Iterator[Member]:
        """All members, by number."""
        return map(self.member, range(self.size))

    def sample(self, count: int, seed: int, keep: Callable[[Member], Any] = lambda member: member) -> Sampled:
        """Random members that fit, each once; fewer where too few fit, or are found. `keep`: what to keep of each. Raises
        SpaceError for more than MOST_BYTES of architectures, choices and records."""
        found, size = Sampled(), 0
        for number in self._drawn(count * TRIES + TRIED, Random(seed)):
            if found.fitting >= count:
                break
            found.tried += 1
            member = self.member(number)
            if member.misfit is None:
                found.fitting += 1
                found.members.append(keep(member))
                size += sum(len(str(part)) for part in (member.architecture, member.choices, member.record))
                if size > MOST_BYTES:
                    raise SpaceError(
                        f"{found.fitting} members of the sample have more than {MOST_BYTES >> 20} MB",
                        f"Draw fewer at a time, for instance {max(found.fitting // 2, 1)}, with several seeds.",
                    )
            else:
                found.refused[member.misfit] = found.refused.get(member.misfit, 0) + 1
        return found

    def _drawn(self, most: int, random: Random) -> Iterator[int]:
        """Numbers in random order, each once: at most so many."""
        if self.size <= 2 * most:
            numbers = list(range(self.size))
            random.shuffle(numbers)
            yield from numbers[:most]
            return
        seen: set[int] = set()
        while len(seen) < most:
            number = random.randrange(self.size)
            if number not in seen:
                seen.add(number)
                yield number

    def check_some(self) -> Sampled:
        """Look at members: all of a small space, else TRIED. Raises SpaceError where none of them fits."""
        found = Sampled()
        for number in self._drawn(TRIED, Random(0)):
            found.tried += 1
            member = self.member(number)
            if member.misfit is None:
                found.fitting += 1
            else:
                found.refused[member.misfit] = found.refused.get(member.misfit, 0) + 1
        if not found.fitting:
            reason = max(found.refused, key=lambda text: found.refused[text])
            raise SpaceError(
                f"no member of the space fits together ({found.tried} of {digits(self.size)} looked at): {reason}",
                None if self.adapt else "adapt => 'project' puts a Dense layer or a 1x1 convolution before merges.",
            )
        return found

    def _base(self, model_id: int) -> _Varied:
        return next(varied for varied in self.bases if varied.base.model_id == model_id)

    def _made(self, varied: _Varied, chosen: Mapping[str, int], number: int) -> Member:
        self.check()
        options = {point.name: point.options for point in varied.variations.choices.points}
        choices = {name: options[name][at] for name, at in chosen.items()}
        graph, text, misfit, parameters = Graph(varied.checked), None, None, None
        try:
            varied.variations.build(graph, chosen)
            outputs = fit(graph, self.adapt, self.custom)
            for given, wanted in zip(outputs, varied.outputs):
                if given is not None and wanted is not None and given != wanted:
                    raise Misfit(f"an output has shape {_show([given])}, that of the base model {_show([wanted])}")
            checked = self._checked(graph.architecture())
            counted = Arithmetic.find(checked)
            if counted is not None and counted.parameters > MOST_PARAMETERS:
                raise Misfit("the model is too large: it has more than 2^40 parameters")
            text = json.dumps(checked)
            parameters = None if counted is None or counted.unknown else counted.parameters
        except (ArchitectureError, Misfit) as error:
            misfit = str(error)
        return Member(number, varied.base.model_id, choices, dict(chosen), graph.record, text, misfit, parameters)


def _show(shapes: Sequence[Any]) -> str:
    return ", ".join(
        "?" if shape is None else "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
        for shape in shapes
    )


def digits(number: int) -> str:
    """A whole number, however large, as a short text."""
    if abs(number) < 10**18:
        return str(number)
    exponent = 18
    while abs(number) >= 10 ** (exponent + 1):
        exponent += 1
        if exponent > 4000:
            return "more than 10^4000"
    return f"about 10^{exponent}"
