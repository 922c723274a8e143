"""The report as one HTML file: this module writes the tables, page.js draws the pictures from the data in the file.

All text from users is escaped: html.escape within elements, and no `<` at all within the data. The script writes text as
text. The file's content security policy forbids it to load or send anything.
"""

import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from pg_mop.report.numbers import thin
from pg_mop.report.sections import DRAWING, PICTURES, SECTIONS, Section

HERE = pathlib.Path(__file__).parent
MOST_ROWS = 1000  # best configurations in the leaderboard and in pictures of single ones
PICTURED = {key: None for picture in PICTURES for key in (*picture.whole, *picture.shown)}  # the data of pictures
MOST_OTHERS = 4000  # of the others, those that the slices show as small marks

Data = Mapping[str, Any]  # see gather.py

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(data: Data) -> str:
    """The HTML document of a report's data (gather.py)."""
    run, count = data["run"], len(data["configurations"])
    sampled = dict(data["sampled"])
    if count > MOST_ROWS:
        sampled["parallel"] = f"the best {MOST_ROWS} of {count} configurations"
        sampled["slices"] = f"{sampled['parallel']} as dots, the others as small marks"
    leaderboard, curves, *others = (_section(own, {**data, "sampled": sampled}) for own in SECTIONS)
    strip = '<div id="strip" class="strip" role="group" aria-label="Summary"></div>'
    main = "\n".join((strip, f'<div class="two tall">{leaderboard}{curves}</div>', *others))
    return document(
        f"Run {run['run_id']}: {run['model_output_table']}",
        ("leaderboard", "To the leaderboard"),
        f"<p>{_headline(data)}</p>\n{_error(run)}",
        main,
        f"Made {data['made_at']} by pg_mop {data['version']}.",
        f'<script type="application/json" id="data">{embedded(data)}</script>',
        DRAWING,
    )


def _section(own: Section, data: Data) -> str:
    """The HTML of a section; an empty text where it has nothing to show."""
    if own.only_with and not data[own.only_with]:
        return ""
    if own.script is None:
        body = WRITTEN[own.name](data)
    else:
        body = drawn(own.name, _note(data, own.sampled or own.name) or (_merged(data) if own.name == "stages" else ""))
    return section(own.name, own.title, body) if body else ""


def document(
    title: str, skip: tuple[str, str], head: str, main: str, made: str, data: str, scripts: Iterable[str]
) -> str:
    """A self-contained HTML document.

    `skip`: the id of the main part and the text of the link to it. `head`, `main`, `data`: HTML; the others are texts.
    `scripts`: the names of the files in this folder that draw.
    """
    skip_to, skip_text = skip
    drawing = "".join(f"<script>\n{(HERE / name).read_text(encoding='utf-8')}</script>\n" for name in scripts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{(HERE / "page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<a class="skip" href="#{skip_to}">{escape(skip_text)}</a>
<header>
<h1>{escape(title)}</h1>
{head}
</header>
<main>
{main}
</main>
<footer><p>{escape(made)} This file needs no network.</p></footer>
{data}
{drawing}</body>
</html>
"""


def embedded(data: Data) -> str:
    """The data of the pictures as JSON that is safe within a script element."""
    values = {key: data[key] for key in ("run", "measure", "varied", "summary", "causes", "next", *PICTURED)}
    values["failed"] = [
        [
            c["mst_key"],
            ", ".join(f"{name} {number(v)}" for name in data["varied"] if (v := c["parameters"].get(name)) is not None),
            c["reason"],
        ]
        for c in data["configurations"]
        if c["status"] == "failed"
    ][:MOST_ROWS]
    values["others"] = _others(data)
    values["configurations"] = [
        {key: c[key] for key in ("mst_key", "rank", "status", "parameters", "last", "seconds", "iterations")}
        for c in data["configurations"][:MOST_ROWS]
    ]
    return in_script(values)


def in_script(values: Any) -> str:
    """JSON that is safe within a script element."""
    return (
        json.dumps(values, default=str, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def number(value: Any) -> str:
    """A number for people; other values as text; an empty text for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if 10_000 <= abs(value) < 1e15 else f"{value:.4g}"
    return str(value)


def duration(seconds: float | None) -> str:
    """A duration for people."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.3g} min" if minutes < 120 else f"{hours:.3g} h"


def _headline(data: Data) -> str:
    run, configurations = data["run"], data["configurations"]
    counts: dict[str, int] = {}
    for c in configurations:
        counts[c["status"]] = counts.get(c["status"], 0) + 1
    of = f" of {data['all']}" if len(configurations) < data["all"] else ""
    texts = [
        f"<b>{escape(run['status'])}</b>",
        f"{len(configurations)}{of} configurations ({', '.join(f'{n} {escape(s)}' for s, n in counts.items())})"
        if configurations
        else "no configurations",
        duration(run["seconds"]),
    ]
    best = configurations[0] if configurations else None
    if best and best["last"].get(data["measure"]["series"]) is not None:
        texts.append(
            f"best: <b>{best['mst_key']}</b> with {escape(data['measure']['series'])} "
            f"<b>{number(best['last'][data['measure']['series']])}</b>"
        )
    return " · ".join(texts)


def _error(run: Data) -> str:
    if not run["error"]:
        return ""
    if run["status"] == "cancelled":  # somebody wanted it: no error
        return f'<p class="note">{escape(run["error"])}</p>'
    return f'<p class="error"><b>Error:</b> {escape(run["error"])}</p>'


def _note(data: Data, part: str) -> str:
    note = data["sampled"].get(part)
    return f"Sampled: {note}." if note else ""


def _others(data: Data) -> list[list[Any]]:
    """[[result, value of each varied parameter], ...] of the configurations that pictures do not draw one by one."""
    series = data["measure"]["series"]
    points = [
        [c["last"][series], *(c["parameters"].get(name) for name in data["varied"])]
        for c in data["configurations"][MOST_ROWS:]
        if c["status"] != "failed" and c["last"].get(series) is not None
    ]
    return thin(points, MOST_OTHERS)


def _facts(data: Data) -> str:
    run = data["run"]
    rate = run["merge_rate"]
    facts = {
        "function": run["function"],
        "replay of": data["replay_of"] and f"run {data['replay_of']}",
        "owner": run["owner"],
        "training rows": run["source_table"],
        "validation rows": run["validation_table"],
        "models": run["model_output_table"],
        "iterations": run["num_iterations"],
        "segments": run["segments"],
        "scheduler": run["scheduler"],
        "seed": run["seed"],
        "begun": run["started_at"],
        "ended": run["finished_at"],
        "merge rate": None if rate is None else number(rate),
    }
    return pairs({k: v for k, v in facts.items() if v is not None})


def pairs(values: Mapping[str, Any]) -> str:
    """A list of names and values."""
    return (
        "<dl>"
        + "".join(f"<div><dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd></div>" for k, v in values.items())
        + "</dl>"
    )


def section(name: str, title: str, body: str) -> str:
    """A section whose heading is its name for screen readers. `title`, `body`: HTML."""
    return f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>\n{body}\n</section>'


def table(
    columns: Mapping[str, bool] | Iterable[tuple[str, bool]],
    rows: Iterable[tuple[str, Sequence[Any]]],
    caption: str,
    attributes: str = "",
) -> str:
    """A sortable table. `columns`: {title: True for numbers}, or its pairs; `rows`: pairs of (HTML attributes, values)."""
    columns = list(columns.items() if isinstance(columns, Mapping) else columns)
    head = "".join(
        f'<th scope="col"{" class=number" if numeric else ""}><button type="button">{escape(title)}</button></th>'
        for title, numeric in columns
    )
    kinds = [numeric for _, numeric in columns]
    body = "".join(
        f"<tr{row_attributes}>"
        + "".join(
            f"<td{' class=number' if numeric else ''}{_sort_key(value, numeric)}>{escape(number(value))}</td>"
            for value, numeric in zip(values, kinds)
        )
        + "</tr>\n"
        for row_attributes, values in rows
    )
    return (
        f'<div class="wide" role="region" aria-label="{escape(caption)}"><table{attributes}>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _sort_key(value: Any, numeric: bool) -> str:
    """The attribute with the exact number for sorting, where the cell shows a shortened one."""
    return f' data-v="{value!r}"' if numeric and isinstance(value, float) else ""


def _leaderboard(data: Data) -> str:
    rows = data["configurations"]
    if not rows:
        return "<p>No configurations yet.</p>"
    series = sorted(
        {name for c in rows for name in c["last"]},
        key=lambda n: (n != data["measure"]["series"], not n.startswith("validation"), n),
    )
    columns = {"rank": True, "mst_key": True, "status": False}
    columns.update(
        {name: all(isinstance(c["parameters"].get(name, 0), (int, float)) for c in rows) for name in data["varied"]}
    )
    columns.update(
        {
            **dict.fromkeys(series, True),
            f"best {data['measure']['series']}": True,
            "iterations": True,
            "training seconds": True,
            "why it ended": False,
        }
    )
    best = rows[:MOST_ROWS]
    body = [
        (
            f' data-key="{c["mst_key"]}"',
            [
                c["rank"],
                c["mst_key"],
                c["status"],
                *(c["parameters"].get(n) for n in data["varied"]),
                *(c["last"].get(n) for n in series),
                c["best"],
                c["iterations"],
                c["seconds"],
                c["reason"],
            ],
        )
        for c in best
    ]
    better = "more" if data["measure"]["goal"] == "max" else "less"
    caption = f"By {data['measure']['series']}, {better} is better; values after the last iteration"
    if len(best) < len(rows):
        caption += f"; the best {len(best)} of {len(rows)}"
    return '<p class="hint">A heading sorts. A row, by click or Enter, is marked in every picture.</p>' + table(
        columns, body, caption, ' id="board"'
    )


def drawn(name: str, note: str) -> str:
    """A note, and the element in which the script draws the picture."""
    paragraph = f'<p class="note">{escape(note)}</p>' if note else ""
    return (
        f'{paragraph}<div class="picture" id="{name}-picture"><noscript>The picture needs JavaScript.</noscript></div>'
    )


def _merged(data: Data) -> str:
    run = data["run"]
    if not run["merge_rate"] or run["merge_rate"] <= 1:
        return "No two configurations share a first stage."
    return f"{number(run['merge_rate'])} stages are asked for each trained stage. Thick lines are shared."


def _time(data: Data) -> str:
    if not data["time"]:
        return ""
    rows: list[tuple[str, list[Any]]] = []
    gpus = any(part["gpu"] is not None for part in data["time"])
    for part in data["time"]:
        rest = max(0.0, part["seconds"] - part["read"] - part["compute"] - part["write"])
        usage = [part["cpu"], *([part["gpu"]] if gpus else [])]
        rows.append(
            (
                "",
                [
                    part["what"],
                    part["units"],
                    part["seconds"],
                    part["compute"],
                    *usage,
                    part["read"],
                    part["write"],
                    rest,
                ],
            )
        )
    busy, whole = sum(part["seconds"] for part in data["time"]), len(data["lanes"]) * data["makespan"]
    rows.append(("", ["sessions without a unit", None, max(0.0, whole - busy), *[None] * (5 + gpus)]))
    return table(
        {
            "what": False,
            "units": True,
            "seconds": True,
            "trainer at work": True,
            "its processors": True,
            **({"utilization of its GPU": True} if gpus else {}),
            "reading": True,
            "writing": True,
            "other": True,
        },
        rows,
        f"Seconds of {len(data['lanes'])} worker sessions, from the first unit to the last: {duration(data['makespan'])}",
    )


def _next(data: Data) -> str:
    """The place of next steps, which the script fills; without a script, their texts."""
    steps = "".join(
        f"<p>{escape(step['say'])}</p>"
        + (f'<pre tabindex="0"><code>{escape(step["sql"])}</code></pre>' if step["sql"] else "")
        for step in data["next"]
    )
    return f'<div id="steps"><noscript>{steps or "<p>Nothing stands out.</p>"}</noscript></div>'


def _failures(data: Data) -> str:
    failed = [("", [c["mst_key"], c["reason"]]) for c in data["configurations"] if c["status"] == "failed"]
    body = '<div id="causes"></div>'
    if failed:
        body += (
            "<noscript>"
            + table({"mst_key": True, "error": False}, failed[:MOST_ROWS], f"Configurations that failed: {len(failed)}")
            + "</noscript>"
        )
    if data["failed_units"]:
        columns = ("mst_key", "iteration", "segment", "kind", "attempt", "error")
        body += table(
            {c: c not in ("kind", "error") for c in columns},
            [("", [unit[c] for c in columns]) for unit in data["failed_units"]],
            _note(data, "failures") or "Failed units (a unit that is lost with its session or trainer is tried again)",
        )
    return body


def _settings(data: Data) -> str:
    body = ""
    if data["fixed"]:
        body += "<h3>Parameters that all configurations have in common</h3>" + pairs(data["fixed"])
    if data["settings"]:
        body += "<h3>Settings that were in force</h3>" + pairs(
            {f"pg_mop.{k}": v for k, v in data["settings"].items() if v is not None}
        )
    return body or "<p>Only the run's owner sees them.</p>"


def _repeat(data: Data) -> str:
    run = data["run"]
    sql = data["sql"] or "-- the arguments are shown to the run's owner alone"
    if run["status"] == "finished" and run["function"] != "remote_run":
        sql += (
            f"\n\n-- by the log of this run, into new tables\n"
            f"SELECT {data['schema']}.mop_replay({run['run_id']}, '...');"
        )
    return f'<pre tabindex="0"><code>{escape(sql)}</code></pre>'


# the sections without a script
WRITTEN: dict[str, Callable[[Data], str]] = {
    "leaderboard": _leaderboard,
    "next": _next,
    "failures": _failures,
    "time": _time,
    "asked": _facts,
    "settings": _settings,
    "repeat": _repeat,
}
