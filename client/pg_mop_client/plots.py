"""Pictures of a run, or of a plan, with matplotlib. Each function draws the report's data and returns its Axes.

User-defined names are drawn as plain text, so that a `$` does not begin a formula.
"""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy
import pandas
from matplotlib import pyplot

from pg_mop_client.errors import ClientError
from pg_mop_client.reading import ARRAYS
from pg_mop_client.watching import printable

TOP = 8  # configurations with their own colours
MOST_CLASSES = 500
MISSING = "(missing)"  # the name of a missing class, distinct from the text NULL
TRAIN, EVALUATE, GREY = "#4f86d9", "#d98f2b", "#9aa3b2"

Data = Mapping[str, Any]  # mop_report's JSON, or a part of it


def curves(data: Data, series: str | None = None, ax: Any = None) -> Any:
    """Learning curves: the best in colour, the others grey. Raises ClientError for an unknown series."""
    series = series or next(iter(data["series"]), None)
    if series is None:
        raise ClientError(f"run {data['run']['run_id']} has no evaluations yet")
    if series not in data["series"]:
        raise ClientError(
            f"there is no series {series!r}", hint=f"The series are {', '.join(map(repr, data['series']))}."
        )
    ax = ax or _axes()
    for c in reversed(data["configurations"]):
        points = [p for p in data["curves"].get(str(c["mst_key"]), {}).get(series, []) if p[1] is not None]
        if points:
            ax.plot(*zip(*points), marker="." if len(points) == 1 else None, **_style(c))
    _label(ax, "iteration", series, _title(data, "curves"))
    if ax.get_legend_handles_labels()[0]:
        lines, names = ax.get_legend_handles_labels()
        ax.legend(lines[::-1], names[::-1], title="mst_key", fontsize="small")
    ax.xaxis.get_major_locator().set_params(integer=True)
    return ax


def plan(data: Data, ax: Any = None) -> Any:
    """A Gantt chart of the simulated run of a plan, with a line for each session. Raises ClientError without a simulated run.

    The configurations that train longest have their own colours.
    """
    units = (data.get("prediction") or {}).get("units")
    if not units or not units["rows"]:
        why = "nothing is left to train" if units else "the plan was summed up, not simulated"
        raise ClientError(f"there are no units to draw: {why}", hint="print(plan)")
    spent: dict[int, float] = {}
    for _, begin, end, key, _, kind in units["rows"]:
        if kind == "train":
            spent[key] = spent.get(key, 0.0) + end - begin
    colours = {key: f"C{n}" for n, key in enumerate(sorted(sorted(spent, key=lambda k: -spent[k])[:TOP]))}
    names = sorted({row[0] for row in units["rows"]})
    ax = ax or _axes(height=1.5 + len(names) * 0.4)
    drawn: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for session, begin, end, key, _, kind in units["rows"]:
        colour = EVALUATE if kind == "evaluate" else colours.get(key, GREY)
        label = "evaluate" if kind == "evaluate" else str(key) if key in colours else "others"
        drawn.setdefault((session, colour, label), []).append((begin, end - begin))
    told: set[str] = set()
    for (session, colour, label), spans in drawn.items():
        ax.broken_barh(
            spans,
            (names.index(session) - 0.4, 0.8),
            facecolors=colour,
            edgecolors="white",
            linewidth=0.3,
            label=None if label in told else label,
        )
        told.add(label)
    ax.set_yticks(range(len(names)), [f"session {name}" for name in names], fontsize="small")
    ax.invert_yaxis()
    expected = data["prediction"]["makespan"]
    left = f", the first {len(units['rows'])} units" if units["left_out"] else ""
    _label(ax, "seconds from the first unit", "", f"expected: {expected:.3g} s{left}")
    ax.legend(title="mst_key", fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def confusion(actual: Iterable[Any], predicted: Iterable[Any], title: str = "", ax: Any = None) -> Any:
    """A matrix of counts, with a line for each actual class and a column for each predicted class."""
    pairs = [(_class(a), _class(b)) for a, b in zip(actual, predicted)]
    names = sorted({name for pair in pairs for name in pair}, key=_by_number)
    if len(names) > MOST_CLASSES:
        raise ClientError(
            f"there are {len(names)} different values, which are not classes",
            hint=f"A matrix has at most {MOST_CLASSES} classes.",
        )
    at = {name: position for position, name in enumerate(names)}
    counts = [[0] * len(names) for _ in names]
    for a, b in pairs:
        counts[at[a]][at[b]] += 1
    return matrix(counts, names, title, ax)


def matrix(counts: list[list[int]], names: Sequence[str | None], title: str = "", ax: Any = None) -> Any:
    """A matrix of counts by [actual class][predicted class]; a name None is the missing class."""
    side = min(12, 2.5 + 0.4 * len(names))
    ax = ax or _axes(width=side + 1, height=side)
    image = ax.imshow(counts, cmap="Blues", norm="symlog" if max(map(max, counts)) > 100 else None)
    if len(names) <= 25:
        for row, own in enumerate(counts):
            for column, count in enumerate(own):
                if count:
                    ax.text(
                        column,
                        row,
                        str(count),
                        ha="center",
                        va="center",
                        fontsize="x-small",
                        color="white" if image.norm(count) > 0.5 else "black",
                    )
    shown = [_text(MISSING if name is None else name, 20) for name in names] if len(names) <= 60 else []
    ax.set_xticks(range(len(shown)), shown, rotation=90, fontsize="x-small", parse_math=False)
    ax.set_yticks(range(len(shown)), shown, fontsize="x-small", parse_math=False)
    right = sum(own[row] for row, own in enumerate(counts))
    _label(ax, "predicted", "actual", f"{title}\n{right} of {sum(map(sum, counts))} right".strip())
    return ax


def _class(value: Any) -> str | None:
    """A class in the server's spelling, or None if it is missing.

    A vector stands for the position of its greatest element, as in predictions.
    """
    if isinstance(value, ARRAYS):
        value = int(numpy.argmax(value))
    if pandas.isna(value):
        return None
    if isinstance(value, (bool, numpy.bool_)):
        return str(value).lower()
    number: Any = value  # (mypy's numbers.Real does not convert to int)
    if isinstance(value, numbers.Real) and math.isfinite(value) and value == int(number):
        return str(int(number))
    return str(value)


def _by_number(name: str | None) -> tuple[int, float, str]:
    """A sort key: numbers by value, then texts, then the missing class."""
    if name is None:
        return 2, 0.0, ""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name


def _axes(width: float = 8, height: float = 4.5) -> Any:
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def _style(c: Data) -> dict[str, Any]:
    if c["rank"] <= TOP and c["status"] != "failed":
        return {"color": f"C{c['rank'] - 1}", "linewidth": 1.6, "label": str(c["mst_key"]), "zorder": 3}
    return {"color": GREY, "linewidth": 0.7, "alpha": 0.5}


def _title(data: Data, part: str | None = None) -> str:
    run = data["run"]
    title = f"run {run['run_id']}: {run['model_output_table']}"
    return f"{title}\n{data['sampled'][part]}" if part in data["sampled"] else title


def _label(ax: Any, x: str, y: str, title: str) -> None:
    ax.set_xlabel(_text(x), parse_math=False)
    ax.set_ylabel(_text(y), parse_math=False)
    ax.set_title(_text(title, 160), fontsize="medium", loc="left", parse_math=False)


def _text(value: Any, most: int = 60) -> str:
    """A name for a picture: at most `most` characters, all of them printable."""
    text = printable(value).replace("\t", " ")
    return text if len(text) <= most else text[: most - 1] + "…"
