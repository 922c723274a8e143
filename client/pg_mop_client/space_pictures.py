"""The graph of a base model with its choice points as a picture, with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import pyplot

from pg_mop_client.errors import ClientError
from pg_mop_client.watching import printable

BOX = {"boxstyle": "round,pad=0.35", "linewidth": 1.0}
OPEN, FIXED, GREY = "#4f86d9", "#9aa3b2", "#6b7280"  # of layers with choices, of others, of text and arrows
MOST_LAYERS = 200
MOST_TEXT = 90  # characters of a line


def base_model(data: Mapping[str, Any], base: int | None = None, ax: Any = None) -> Any:
    """The layers of a base model from top to bottom, with arrows along their connections, and beside each layer the choice
    points that concern it. `data`: of mop_space_show(space, 'json'). Raises ClientError. Returns matplotlib's Axes."""
    models = data["models"]
    model = next((one for one in models if base is None or one["model_id"] == base), None)
    if model is None:
        known = ", ".join(str(one["model_id"]) for one in models)
        raise ClientError(f"the space has no base model {base}", hint=f"Its base models: {known}")
    layers: Sequence[Mapping[str, Any]] = model["layers"]
    if len(layers) > MOST_LAYERS:
        raise ClientError(f"the model has {len(layers)} layers, too many for a picture", hint="print(space.show())")
    rows, places = _places(layers)
    below = [one for one in model["points"] if one["layer"] not in places]
    height = 0.9 + 0.42 * (sum(rows) + len(_lines(below)))
    ax = ax or pyplot.subplots(figsize=(9, height), layout="constrained")[1]
    width = 1 + max((x for x, _ in places.values()), default=0)
    for one in layers:
        x, y = places[one["name"]]
        for source in one["from"]:
            if source in places:
                ax.annotate(
                    "", (x, y - 0.28), (places[source][0], places[source][1] + 0.28), arrowprops=_arrow(), zorder=1
                )
        points = [point for point in model["points"] if point["layer"] == one["name"]]
        colour = OPEN if points else FIXED
        ax.text(
            x,
            y,
            _cut(f"{one['name']}: {one['class']}"),
            ha="center",
            va="center",
            fontsize=8,
            parse_math=False,
            bbox={**BOX, "edgecolor": colour, "facecolor": "white"},
            zorder=2,
        )
        for number, line in enumerate(_lines(points)):
            _write(ax, width - 0.35, y + number, line)
    end = sum(rows)
    for number, line in enumerate(_lines(below)):
        _write(ax, width - 0.35, end + number, line)
    ax.set_xlim(-0.6, width + 1.6)
    ax.set_ylim(max(end + len(_lines(below)), 1) - 0.4, -0.6)
    ax.set_axis_off()
    named = f" {model['name']}" if model.get("name") else ""
    title = f"model {model['model_id']}{named}: {model['members']} members, {len(model['points'])} choices"
    ax.set_title(_cut(title), fontsize="medium", loc="left", parse_math=False)
    return ax


def _places(layers: Sequence[Mapping[str, Any]]) -> tuple[list[int], dict[str, tuple[int, int]]]:
    """(rows of each depth, {layer: (column, row)}): a layer is below all whose outputs it takes. A layer has as many rows as
    lines of choices."""
    depth: dict[str, int] = {}
    columns: dict[int, int] = {}
    rows: list[int] = []
    for one in layers:  # (each after its sources)
        at = depth[one["name"]] = 1 + max((depth.get(source, -1) for source in one["from"]), default=-1)
        rows += [1] * (at + 1 - len(rows))
        rows[at] = max(rows[at], one["lines"])
        columns[at] = columns.get(at, 0) + 1
    starts, taken, found = [sum(rows[:at]) for at in range(len(rows))], dict.fromkeys(columns, 0), {}
    for one in layers:
        at = depth[one["name"]]
        found[one["name"]] = (taken[at], starts[at])
        taken[at] += 1
    return rows, found


def _lines(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each choice point, and one for its condition, if it has one."""
    return [f"{'    ' * one['depth']}{one['name']}: {one['text']}{_condition(one)}" for one in points]


def _condition(one: Mapping[str, Any]) -> str:
    return f"   (if {one['parent']} is {one['when']})" if one.get("parent") else ""


def _write(ax: Any, x: float, y: float, line: str) -> None:
    ax.text(x, y, _cut(line), ha="left", va="center", fontsize=7, color=GREY, parse_math=False)


def _arrow() -> dict[str, Any]:
    return {"arrowstyle": "-|>", "color": GREY, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}


def _cut(text: str) -> str:
    indent = len(text) - len(text.lstrip(" "))
    text = " " * indent + printable(text[indent:])
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."
