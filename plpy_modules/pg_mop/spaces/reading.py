"""Reads mutators: JSON that people write by hand, checked in every field before anything is made of it. Pure Python."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mop_udf.architecture.architecture import ArchitectureError, check
from mop_udf.architecture.architecture_classes import LAYERS, MODELS
from pg_mop.plan.shapes import Misfit, check_needed, check_values
from pg_mop.spaces.custom import NONE, CustomLayers

MOST_CHARACTERS = 1 << 20
MOST_DEPTH = 40
MOST_MUTATORS = 1000
MOST_OPTIONS = 1000
MOST_TIMES = 100
MOST_IN_OPTION = 200  # layers of an option
MOST_SOURCES = 1000  # names or patterns of inputs
MOST_NODES = 10

KEEP = "keep"  # the option of a layer choice that leaves the layer as it is
Option = list[dict[str, Any]] | None  # checked layers, one after the other; None: the layer as it is


class SpaceError(ValueError):
    """Base models or mutators that are no space; the text names the wrong part, `hint` says how to correct it."""

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text)
        self.hint = hint


@dataclass(frozen=True)
class Match:
    """Which layers: by name (a pattern with * and ?), class, position among these (1: the first, -1: the last).

    An empty field matches every layer.
    """

    name: str | None = None
    classes: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()

    def fits(self, name: str, class_name: str) -> bool:
        """True for a layer of this name and class, before positions count."""
        return (self.name is None or fnmatchcase(name, self.name)) and (not self.classes or class_name in self.classes)

    def at(self, names: Sequence[str]) -> list[str]:
        """Those of the layers that fit whose positions match."""
        if not self.positions:
            return list(names)
        places = {p - 1 if p > 0 else len(names) + p for p in self.positions}
        return [name for place, name in enumerate(names) if place in places]

    def __str__(self) -> str:
        parts = [self.name or "", "|".join(self.classes), ",".join(f"#{p}" for p in self.positions)]
        return " ".join(part for part in parts if part) or "*"


@dataclass(frozen=True)
class Mutator:
    """A mutator: what it changes (`change`, one of CHANGES), where, and its options, checked.

    `number`: its place in the list, from 1; `given`: its JSON; `bases`: model_ids, empty: all; `together`: one choice for all
    matching layers; `options`: values, or Option for layers; `written`: the options as the user wrote them.
    """

    number: int
    change: str
    match: Match
    given: Mapping[str, Any]
    name: str | None
    bases: tuple[int, ...]
    together: bool
    options: tuple[Any, ...]
    written: tuple[Any, ...]
    argument: str = ""
    before: bool = False
    to: Match | None = None
    sources: tuple[str, ...] = ()
    least: int = 1
    most: int = 1
    nodes: int = 0
    inputs: int = 1
    join: str = "Concatenate"
    times: tuple[int, ...] = (1,)


COMMON = ("change", "match", "base", "name")
CHANGES: dict[str, tuple[str, ...]] = {  # change -> its keys besides the common ones
    "value": ("argument", "choices", "together"),
    "layer": ("choices", "together"),
    "insert": ("choices", "where", "together"),
    "remove": ("together",),
    "repeat": ("to", "times"),
    "inputs": ("from", "least", "most"),
    "cell": ("nodes", "operations", "inputs", "join", "times"),
}
EXAMPLE = (
    'For instance: [{"change": "value", "match": {"class": "Dense", "position": 1}, "argument": "units", '
    '"choices": [16, 32]}]'
)
JOINS = ("Concatenate", "Add", "Average", "Maximum", "Multiply")
NEVER_SET = ("name", "batch_shape", "batch_input_shape", "dtype", "trainable", "class_name", "module")


def read(text: str, check: Callable[[], None] = lambda: None, custom: CustomLayers = NONE) -> list[Mutator]:
    """The mutators of a JSON text: a list of objects. `check`: called for each part; `custom`: layers with code that they may
    name. Raises SpaceError."""
    if len(text) > MOST_CHARACTERS:
        raise SpaceError(f"mutators have {len(text)} characters, at most {MOST_CHARACTERS}")
    try:
        given = json.loads(text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_unique)
        check_text(given)
    except SpaceError:
        raise
    except (ValueError, RecursionError) as error:
        raise SpaceError(f"mutators are not JSON: {str(error)[:200]}", EXAMPLE) from None
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise SpaceError("mutators must be a list of objects", EXAMPLE)
    if len(given) > MOST_MUTATORS:
        raise SpaceError(f"there are {len(given)} mutators, at most {MOST_MUTATORS}")
    _check_depth(given)
    return [_Reader(number, one, check, custom).mutator() for number, one in enumerate(given, 1)]


class _Reader:
    """Reads one mutator."""

    def __init__(self, number: int, given: dict[str, Any], check: Callable[[], None], custom: CustomLayers) -> None:
        self.number, self.given, self.check, self.custom = number, given, check, custom

    def mutator(self) -> Mutator:
        self.check()
        change = self.given.get("change")
        if not isinstance(change, str) or change not in CHANGES:
            raise self._error(f"has change {_short(change)}, which is none of {', '.join(CHANGES)}", EXAMPLE)
        unknown = next((key for key in self.given if key not in (*COMMON, *CHANGES[change])), None)
        if unknown is not None:
            raise self._error(
                f"has the key {_short(unknown)}, which is none of {', '.join((*COMMON, *CHANGES[change]))}"
            )
        if "match" not in self.given:
            raise self._error("has no match", 'For instance: "match": "dense_*", or "match": {"class": "Dense"}.')
        name, bases = self.given.get("name"), self.given.get("base", [])
        if name is not None and not (isinstance(name, str) and 0 < len(name) <= 200):
            raise self._error(f"has the name {_short(name)}, which is no text of at most 200 characters")
        bases = bases if isinstance(bases, list) else [bases]
        if not all(_is_integer(base) for base in bases):
            raise self._error(f"has base {_short(bases)}, which is no list of model_ids")
        together = self.given.get("together", False)
        if not isinstance(together, bool):
            raise self._error(f"has together {_short(together)}, which is neither true nor false")
        options, written, more = getattr(self, f"_{change}")()
        match = self._match(self.given["match"])
        return Mutator(
            self.number, change, match, self.given, name, tuple(bases), together, tuple(options), tuple(written), **more
        )

    # --- one method for each change: (options, options as written, other fields) ---------------------
    def _value(self) -> Any:
        argument = self.given.get("argument")
        if not isinstance(argument, str) or not re.fullmatch(r"[a-z_][a-z0-9_]{0,99}", argument):
            raise self._error(f"has argument {_short(argument)}, which is no argument of a layer")
        if argument in NEVER_SET:
            raise self._error(f"changes the argument {argument!r}, which no mutator may change")
        choices = self._choices("choices")
        return choices, choices, {"argument": argument}

    def _layer(self) -> Any:
        written = self._choices("choices")
        return [None if one == KEEP else self._layers(one) for one in written], written, {}

    def _insert(self) -> Any:
        where = self.given.get("where", "after")
        if where not in ("after", "before"):
            raise self._error(f"has where {_short(where)}, which is neither after nor before")
        written = self._choices("choices")
        return [self._layers(one) for one in written], written, {"before": where == "before"}

    def _remove(self) -> Any:
        return [None, []], [KEEP, None], {}

    def _repeat(self) -> Any:
        times = self._integers("times", 0, MOST_TIMES)
        to = None if "to" not in self.given else self._match(self.given["to"])
        return times, times, {"to": to}

    def _inputs(self) -> Any:
        sources = self.given.get("from")
        if not isinstance(sources, list) or not sources or not all(isinstance(s, str) for s in sources):
            raise self._error(f"has from {_short(sources)}, which is no list of layers' names")
        if len(sources) > MOST_SOURCES:
            raise self._error(f"takes inputs from {len(sources)} names, at most {MOST_SOURCES}")
        least, most = self.given.get("least", 1), self.given.get("most", self.given.get("least", 1))
        for key, value in (("least", least), ("most", most)):
            if not _is_integer(value) or not 1 <= value <= 100:
                raise self._error(f"has {key} {_short(value)}, which is no integer from 1 to 100")
        if least > most:
            raise self._error(f"takes at least {least} inputs and at most {most}")
        return (), (), {"sources": tuple(sources), "least": least, "most": most}

    def _cell(self) -> Any:
        fields: dict[str, Any] = {}
        for key, default, highest in (("nodes", 1, MOST_NODES), ("inputs", 1, 2)):
            fields[key] = self.given.get(key, default)
            if not _is_integer(fields[key]) or not 1 <= fields[key] <= highest:
                raise self._error(f"has {key} {_short(fields[key])}, which is no integer from 1 to {highest}")
        fields["join"] = self.given.get("join", "Concatenate")
        if fields["join"] not in JOINS:
            raise self._error(f"has join {_short(fields['join'])}, which is none of {', '.join(JOINS)}")
        fields["times"] = tuple(self._integers("times", 1, MOST_TIMES)) if "times" in self.given else (1,)
        written = self._choices("operations")
        return [self._layers(one) for one in written], written, fields

    # --- fields --------------------------------------------------------------------------------------
    def _choices(self, key: str) -> list[Any]:
        choices = self.given.get(key)
        if not isinstance(choices, list) or not choices:
            raise self._error(f"has {key} {_short(choices)}, which is no list of options")
        if len(choices) > MOST_OPTIONS:
            raise self._error(f"has {len(choices)} {key}, at most {MOST_OPTIONS}")
        seen: set[str] = set()
        for one in choices:
            text = json.dumps(one, sort_keys=True)
            if text in seen:
                raise self._error(f"has the option {_short(one)} twice")
            seen.add(text)
        return choices

    def _integers(self, key: str, lowest: int, highest: int) -> list[int]:
        values = self._choices(key)
        wrong = next((v for v in values if not _is_integer(v) or not lowest <= v <= highest), None)
        if wrong is not None:
            raise self._error(f"has {key} {_short(wrong)}, which is no integer from {lowest} to {highest}")
        return values

    def _match(self, given: Any) -> Match:
        given = {"name": given} if isinstance(given, str) else given
        if not isinstance(given, dict) or not given or set(given) - {"name", "class", "position"}:
            raise self._error(
                f"matches {_short(given)}, which is neither a name nor an object of name, class, position",
                'For instance: "match": {"class": "Dense", "position": [1, -1]}.',
            )
        name, classes, positions = given.get("name"), given.get("class", []), given.get("position", [])
        if name is not None and not (isinstance(name, str) and 0 < len(name) <= 1000):
            raise self._error(f"matches the name {_short(name)}, which is no pattern")
        classes = [classes] if isinstance(classes, str) else classes
        if not isinstance(classes, list):
            raise self._error(f"matches the class {_short(classes)}, which is no name")
        for one in classes:
            if not isinstance(one, str) or one not in (*LAYERS, *MODELS, *self.custom.names):
                own = " or of the object table" if self.custom else ""
                raise self._error(f"matches the class {_short(one)}, which is no layer class of Keras{own}")
        positions = positions if isinstance(positions, list) else [positions]
        if not all(_is_integer(p) and p for p in positions):
            raise self._error(f"matches position {_short(positions)}: 1 is the first layer, -1 the last")
        return Match(name, tuple(classes), tuple(positions))

    def _layers(self, given: Any) -> list[dict[str, Any]]:
        """An option of layers: one, a list of them, or none (null)."""
        if given is None:
            return []
        if isinstance(given, list) and len(given) > MOST_IN_OPTION:
            raise self._error(
                f"has an option of {len(given)} layers, at most {MOST_IN_OPTION}",
                'To have a layer several times: {"change": "repeat", "match": "dense_1", "times": [1, 2]}.',
            )
        return [self._checked(one) for one in (given if isinstance(given, list) else [given])]

    def _checked(self, given: Any) -> dict[str, Any]:
        """A layer that the user has written in Keras' form or as {"class": ..., argument: value, ...}."""
        self.check()
        if isinstance(given, dict) and "class" in given and "class_name" not in given:
            config = {key: value for key, value in given.items() if key != "class"}
            given = {"class_name": given["class"], "config": config}
        if not isinstance(given, dict) or "class_name" not in given:
            raise self._error(
                f"has the option {_short(given)}, which is no layer",
                'For instance: {"class": "Dropout", "rate": 0.2}; null: no layer; "keep", of a layer choice: as it is.',
            )
        try:
            layer = checked_layer(given, self.custom)
            check_needed(layer["class_name"], layer["config"])
        except (ArchitectureError, Misfit) as error:
            raise self._error(f"has an option that may not be used: {error}") from None
        if layer["class_name"] == "InputLayer":
            raise self._error("adds an InputLayer: all members of a space take the inputs of their base model")
        name = layer["config"].get("name")
        if name is not None and (not isinstance(name, str) or not name or "/" in name or len(name) > 500):
            raise self._error(f"names a layer {_short(name)}: a name has 1 to 500 characters, and no '/'")
        return layer

    def _error(self, text: str, hint: str | None = None) -> SpaceError:
        return SpaceError(f"mutator {self.number} {text}", hint)


def checked_layer(layer: Mapping[str, Any], custom: CustomLayers = NONE) -> dict[str, Any]:
    """A layer by the allow-list of architectures, or of `custom`. Raises ArchitectureError, and Misfit for a wrong size."""
    model = {"class_name": "Sequential", "config": {"layers": [_without_shapes(layer)]}, "keras_version": "3.0.0"}
    (found,) = check(model, custom=custom.names, custom_models={})["config"]["layers"]
    check_values(found["class_name"], found["config"])
    return found


def _without_shapes(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The layer without what places it in another model."""
    config = layer.get("config")
    if not isinstance(config, dict):
        raise ArchitectureError(f"layer {_short(layer.get('class_name'))} has no config")
    kept = {key: value for key, value in config.items() if key not in ("batch_input_shape", "batch_shape")}
    return {**{k: v for k, v in layer.items() if k not in ("build_config", "inbound_nodes")}, "config": kept}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise SpaceError(f"mutators have the key {_short(twice)} twice in one object")
    return found


def _no_number(text: str) -> Any:
    raise SpaceError(f"mutators have {text}, which is no number of JSON")


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        _no_number(text)
    return value


def check_text(given: Any) -> None:
    """Raises SpaceError for JSON with characters that the database cannot store."""
    try:
        written = json.dumps(given, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise SpaceError("the JSON has half of a character, or a number that is not finite") from None
    if b"\\u0000" in written:
        raise SpaceError("the JSON has a character \\u0000, which the database cannot store")


def _check_depth(given: Any) -> None:
    level, depth = [given], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise SpaceError(f"mutators are nested deeper than {MOST_DEPTH}")
        level = [
            below
            for node in level
            for below in (node.values() if isinstance(node, dict) else node)
            if isinstance(below, (dict, list))
        ]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31


def _short(value: Any) -> str:
    """A value for an error's text."""
    try:
        return json.dumps(value, ensure_ascii=False)[:100]
    except ValueError:
        return "a number of very many digits"
