"""Pure functions that filter, sort and page the data of a run (mop_report's JSON) for the live page."""

import csv
import io
import math
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any

from pg_mop_client.report_sections import SHOWN, WHOLE

PER_PAGE = 20
MOST_DRAWN = 500  # configurations in the pictures
MOST_OTHERS = 4000  # configurations that the slices show as small marks besides
MOST_FAILED = 1000  # listed configurations that have failed
MOST_WORDS = 200  # listed values of a parameter
LEAST_COMPARED = 8  # configurations with the most iterations, for a distribution (as in mop_report)
MOST_VALUES = 200  # of the distribution of the results that pass a filter
TIME = "training seconds"
STATES = ("finished", "running", "waiting", "stopped", "failed", "cancelled")

Data = Mapping[str, Any]  # mop_report's JSON, or a part of it


def columns(data: Data) -> dict[str, Callable[[Data], Any]]:
    """The leaderboard's columns, {name: function from a configuration to its value}, with varied parameters first."""
    measure = data["measure"]["series"]
    series = sorted(
        {name for c in data["configurations"] for name in c["last"]},
        key=lambda n: (n != measure, not n.startswith("validation"), n),
    )
    # (in a comparison of several runs, mst_key is a parameter)
    key = {} if data["run"]["run_id"] is None else {"mst_key": lambda c: c["mst_key"]}
    return {
        "rank": lambda c: c["rank"],
        **key,
        "status": lambda c: c["status"],
        **{name: _within("parameters", name) for name in data["varied"]},
        **{name: _within("last", name) for name in series},
        f"best {measure}": lambda c: c["best"],
        "iterations": lambda c: c["iterations"],
        TIME: lambda c: c["seconds"],
        "why it ended": lambda c: c["reason"],
    }


def _within(part: str, name: str) -> Callable[[Data], Any]:
    return lambda c: c[part].get(name)


def choices(data: Data) -> dict[str, dict[str, Any]]:
    """The possible filters for each parameter, the result and the time.

    {'low', 'high'} for numbers, {'words', 'count'} for other values.

    `words` lists the first MOST_WORDS of the `count` different values.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in (*data["varied"], data["measure"]["series"], TIME):
        values = [v for c in data["configurations"] if (v := valued(c, name)) is not None]
        if not values and name not in data["varied"]:
            continue
        if values and all(_is_number(v) for v in values):
            found[name] = {"low": min(values), "high": max(values)}
        else:
            words = sorted({word(v) for v in values})
            found[name] = {"words": words[:MOST_WORDS], "count": len(words)}
    return found


def word(value: Any) -> str:
    """A JSON value as JavaScript writes it (String): the page sends back such words, for it has read the same JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, list):
        return ",".join("" if one is None else word(one) for one in value)
    if value is None:
        return "null"
    return "[object Object]" if isinstance(value, Mapping) else str(value)


def _number(value: float) -> str:
    """A number as JavaScript writes it (ECMA-262, Number::toString), with the fewest digits that tell it apart, as Python."""
    try:
        number = float(value)
    except OverflowError:  # (a whole number beyond all floats)
        number = math.inf if value > 0 else -math.inf
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0 or math.isnan(number):
        return "0" if number == 0 else "NaN"
    if 1e-6 <= abs(number) < 1e21:
        plain = format(Decimal(repr(number)), "f")
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    digits, _, exponent = repr(number).partition("e")
    return f"{digits}e{int(exponent):+d}"


def valued(c: Data, name: str) -> Any:
    """The value of a configuration for a name of `choices`: its time, a result, or a parameter; None if it has none."""
    if name == TIME:
        return c["seconds"]
    return c["last"][name] if name in c["last"] else c["parameters"].get(name)


def chosen(
    data: Data,
    states: Collection[str] = (),
    best: int | None = None,
    low: Mapping[str, float] | None = None,
    high: Mapping[str, float] | None = None,
    words: Mapping[str, Collection[str]] | None = None,
) -> list[Data]:
    """The configurations that pass a filter, by rank.

    `states`: allowed states (none given: all). `low`, `high`: {name of `choices`: limit}; `words`: {name: allowed
    values}. `best`: the number of configurations to keep at the end.
    """
    found = [c for c in data["configurations"] if not states or c["status"] in states]
    bounds: tuple[tuple[Mapping[str, float], Callable[[float, float], bool]], ...] = (
        (low or {}, lambda v, limit: v >= limit),
        (high or {}, lambda v, limit: v <= limit),
    )
    for limits, fits in bounds:
        for name, limit in limits.items():
            found = [c for c in found if _is_number(v := valued(c, name)) and fits(v, limit)]
    for name, allowed in (words or {}).items():
        found = [c for c in found if (v := valued(c, name)) is not None and word(v) in allowed]
    return found[:best] if best else found


def ordered(data: Data, configurations: list[Data], by: str | None = None, descending: bool = False) -> list[Data]:
    """The configurations sorted by a column, without a value last; by rank if no column has the name `by`."""
    value = columns(data).get(by) if by is not None else None
    if value is None:
        return configurations
    have = [c for c in configurations if value(c) is not None]
    words = any(not _is_number(value(c)) for c in have)
    have.sort(key=lambda c: str(value(c)) if words else value(c), reverse=descending)
    return have + [c for c in configurations if value(c) is None]


def view(data: Data, configurations: list[Data], page: int = 1, pictures: Data | None = None) -> dict[str, Any]:
    """The data for the live page: a page of the table, and pictures of the best of the given configurations.

    `pictures`: mop_report's data of these configurations alone; None: use `data`.
    """
    pages = max(1, -(-len(configurations) // PER_PAGE))
    page = min(max(1, page), pages)
    of = columns(data)
    drawn = sorted(configurations, key=lambda c: c["rank"])[:MOST_DRAWN]
    keys = {c["mst_key"] for c in configurations}
    pictures = pictures or data
    curves = {key: own for key, own in pictures["curves"].items() if int(key) in keys}
    sampled = dict(pictures["sampled"])
    series = data["measure"]["series"]
    values = sorted(
        (c["last"][series] for c in comparable(configurations, series, LEAST_COMPARED)),
        reverse=data["measure"]["goal"] == "max",
    )
    shown = {c["mst_key"] for c in drawn}
    rest = others(data, [c for c in configurations if c["mst_key"] not in shown])
    if len(drawn) < len(configurations):
        sampled["parallel"] = f"the best {len(drawn)} of {len(configurations)} configurations"
        sampled["slices"] = f"{sampled['parallel']} as dots, and {len(rest)} others as small marks"
    first = (page - 1) * PER_PAGE
    return {
        **{
            name: data[name]
            for name in (
                "run",
                "measure",
                "varied",
                "fixed",
                "settings",
                "arguments",
                "sql",
                "made_at",
                "summary",
                "causes",
                "next",
                *WHOLE,
            )
        },
        **{name: pictures.get(name, nothing) for name, nothing in SHOWN.items()},
        "distributions": data.get("distributions"),
        "shown_values": thin(values, MOST_VALUES) if len(configurations) < len(data["configurations"]) else None,
        "best": best_so_far(data),
        "failed": failed(data)[:MOST_FAILED],
        "sampled": sampled,
        "curves": curves,
        "choices": choices(data),
        "configurations": [_short(c) for c in drawn],
        "others": rest,
        "columns": [
            {"name": name, "number": all(_is_number(v) for c in configurations if (v := value(c)) is not None)}
            for name, value in of.items()
        ],
        "rows": [[value(c) for value in of.values()] for c in configurations[first : first + PER_PAGE]],
        "keys": [c["mst_key"] for c in configurations[first : first + PER_PAGE]],
        "page": page,
        "pages": pages,
        "shown": len(configurations),
        "all": len(data["configurations"]),
    }


def others(data: Data, configurations: list[Data]) -> list[list[Any]]:
    """[[result, value of each varied parameter], ...] of configurations with a result, which are not drawn one by one."""
    series = data["measure"]["series"]
    found = [
        [c["last"][series], *(c["parameters"].get(name) for name in data["varied"])]
        for c in configurations
        if c["status"] != "failed" and _is_number(c["last"].get(series))
    ]
    return thin(found, MOST_OTHERS)


def narrowed(data: Data, configurations: list[Data]) -> dict[str, Any]:
    """The pictures of some configurations, from the pictures of all: of a large run, those that are among its samples.

    A unit batch counts the units of these configurations, in equal parts. Bars that are slices of the time have no
    configurations: they stay as they are.
    """
    keys = {c["mst_key"] for c in configurations}
    bars = data["bars"]
    if not data["merged_bars"]:
        bars = [
            [*bar[:4], own, bar[5], round(bar[6] * len(own) / len(bar[4])), *bar[7:]]
            for bar in bars
            if (own := [key for key in bar[4] if key in keys])
        ]
    places: dict[int, int] = {}  # of a node before -> now
    stages: list[dict[str, Any]] = []
    for at, node in enumerate(data["stages"]):
        if own := [key for key in node["keys"] if key in keys]:
            places[at] = len(stages)
            stages.append({**node, "keys": own, "parent": places.get(node["parent"])})
    heights = {y: place for place, y in enumerate(sorted({node["y"] for node in stages}))}
    return {
        **data,
        "curves": {key: own for key, own in data["curves"].items() if int(key) in keys},
        "times": {key: own for key, own in data["times"].items() if int(key) in keys},
        "bars": bars,
        "stages": [{**node, "y": heights[node["y"]]} for node in stages],
        "failed_units": [unit for unit in data["failed_units"] if unit["mst_key"] in keys],
    }


def comparable(configurations: list[Data], series: str, least: int) -> list[Data]:
    """The configurations with the most iterations, `least` of them at least where so many have a value of `series`.

    Results after fewer iterations, of what a search has stopped early, are not comparable with those of the best.
    """
    have = [c for c in configurations if c["status"] != "failed" and _is_number(c["last"].get(series))]
    for rung in sorted({c["iterations"] for c in have}, reverse=True):
        if len(found := [c for c in have if c["iterations"] >= rung]) >= least:
            return found
    return have


def failed(data: Data) -> list[list[Any]]:
    """[mst_key, parameters as text, error] of the configurations that have failed."""
    return [
        [
            c["mst_key"],
            ", ".join(f"{name} {v}" for name in data["varied"] if (v := c["parameters"].get(name)) is not None),
            c["reason"],
        ]
        for c in data["configurations"]
        if c["status"] == "failed"
    ]


def best_so_far(data: Data) -> dict[str, Any] | None:
    """The name and value of the configuration with the best value of the measure in any iteration; None without one."""
    have = [c for c in data["configurations"] if c["best"] is not None]
    if not have:
        return None
    first = (max if data["measure"]["goal"] == "max" else min)(have, key=lambda c: c["best"])
    return {"name": first.get("name") or str(first["mst_key"]), "value": first["best"]}


def table(data: Data, configurations: list[Data]) -> str:
    """The configurations as CSV, in the given order. An apostrophe protects texts that a spreadsheet would execute."""
    file, of = io.StringIO(), columns(data)
    writer = csv.writer(file)
    writer.writerow([_plain(name) for name in of])
    writer.writerows([_plain(value(c)) for value in of.values()] for c in configurations)
    return file.getvalue()


def thin(values: list[Any], most: int) -> list[Any]:
    """At most `most` of the values, evenly spread, with the first and the last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _short(c: Data) -> dict[str, Any]:
    """The part of a configuration that the pictures need."""
    return {
        key: c.get(key) for key in ("mst_key", "rank", "status", "parameters", "last", "seconds", "iterations", "name")
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return "'" + value if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
