"""A space as text or data: each base model's layers with their choice points. Pure Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pg_mop.spaces.choices import Point
from pg_mop.spaces.graph import Graph
from pg_mop.spaces.model_space import ModelSpace, Sampled, _Varied, digits
from pg_mop.spaces.mutators import Variations

MOST_WIDTH = 60  # characters of an option's text
MOST_SHOWN = 8  # options of a point


def text(space: ModelSpace, looked: Sampled) -> str:
    """The text of a space. `looked`: as ModelSpace.check_some returns it."""
    return "\n".join(_lines(space, looked))


def data(space: ModelSpace, looked: Sampled) -> dict[str, Any]:
    """The same as JSON values: {members, adapt, looked: {tried, fitting, refused}, models: [{model_id, name, members, layers:
    [{name, class, from}], points: [{name, layer, options, text, depth, parent, when}]}]}.

    `layer`: where a point is shown; `options`: as the user wrote them; `text`: the same
    for people; `depth`: 0 for a point that is always open; `when`: the options of `parent` for which it is open, for people.
    `members` are texts: numbers of any size; of more than 4,000 digits, about how many.
    """
    return {
        "members": _exact(space.size),
        "adapt": space.adapt,
        "looked": {"tried": looked.tried, "fitting": looked.fitting, "refused": looked.refused},
        "models": [_model(varied) for varied in space.bases],
    }


def _exact(number: int) -> str:
    return str(number) if number.bit_length() < 13_000 else digits(number)


def _model(varied: _Varied) -> dict[str, Any]:
    variations, graph = varied.variations, Graph(varied.checked)
    points = [
        one for point in variations.choices.points if point.parent is None for one in _points(point, variations, 0)
    ]
    return {
        "model_id": varied.base.model_id,
        "name": varied.base.name,
        "members": _exact(variations.choices.size),
        "layers": [
            {"name": name, "class": graph.layers[name]["class_name"], "from": graph.sources(name)}
            for name in graph.order()
        ],
        "points": points,
    }


def _points(point: Point, variations: Variations, depth: int, layer: str | None = None) -> Iterator[dict[str, Any]]:
    layer, parent = layer or variations.shown_at.get(point.name), point.parent
    when = parent and " | ".join(_option(parent.options[option]) for option in sorted(point.when)[:MOST_SHOWN])
    yield {
        "name": point.name,
        "layer": layer,
        "options": list(point.options),
        "text": _options(point),
        "depth": depth,
        "parent": parent and parent.name,
        "when": when,
    }
    for child in point.children:
        yield from _points(child, variations, depth + 1, layer)


def _lines(space: ModelSpace, looked: Sampled) -> Iterator[str]:
    count = len(space.bases)
    yield f"{digits(space.size)} members of {count} base model{'s' * (count > 1)}" + (
        f", adapt: {space.adapt}" if space.adapt else ""
    )
    fitting, whole = looked.fitting, looked.tried == space.size
    yield f"{fitting} of {'all ' if whole else ''}{looked.tried} members looked at fit together"
    for reason, times in sorted(looked.refused.items(), key=lambda item: (-item[1], item[0]))[:5]:
        yield f"  {times} do not: {reason}"
    for varied in space.bases:
        yield ""
        yield from _base(varied)


def _base(varied: _Varied) -> Iterator[str]:
    variations, graph = varied.variations, Graph(varied.checked)
    named = f" {varied.base.name}" if varied.base.name else ""
    members, points = digits(variations.choices.size), len(variations.choices.points)
    yield f"model {varied.base.model_id}{named}: {members} members, {points} choices"
    for name in graph.order():
        sources = graph.sources(name)
        yield f"  {name}: {graph.layers[name]['class_name']}" + (f" <- {', '.join(sources)}" if sources else "")
        for point in variations.choices.points:
            if variations.shown_at.get(point.name) == name and point.parent is None:
                yield from _point(point, 4)
    for point in variations.choices.points:
        if variations.shown_at.get(point.name) not in graph.layers and point.parent is None:
            yield from _point(point, 2)


def _point(point: Point, indent: int) -> Iterator[str]:
    yield " " * indent + f"? {point.name}: " + _options(point)
    for child in point.children:
        at = " | ".join(_option(point.options[option]) for option in sorted(child.when)[:MOST_SHOWN])
        yield " " * (indent + 2) + f"if {at}:"
        yield from _point(child, indent + 4)


def _options(point: Point) -> str:
    shown = [_option(option) for option in point.options[:MOST_SHOWN]]
    more = len(point.options) - len(shown)
    return " | ".join(shown) + (f" | ... {more} more" if more else "")


def _option(option: Any) -> str:
    """An option's text in a line."""
    if option is None:
        return "none"
    if isinstance(option, dict):
        kind = option.get("class") or option.get("class_name")
        given = option.get("config") if "class_name" in option else {k: v for k, v in option.items() if k != "class"}
        values = given.items() if isinstance(given, dict) else ()
        return _cut(f"{kind}({', '.join(f'{k}={_json(v)}' for k, v in values if k != 'name')})")
    if isinstance(option, list) and option and all(isinstance(one, dict) for one in option):
        return _cut(" > ".join(map(_option, option)))
    return _cut(option if isinstance(option, str) else _json(option))


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except ValueError:
        return "a number of very many digits"


def _cut(text: str) -> str:
    text = text.replace("\n", " ")
    return text if len(text) <= MOST_WIDTH else text[: MOST_WIDTH - 3] + "..."
