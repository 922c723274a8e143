"""What of a run's data (mop_report's JSON) the live page shows: filtered, sorted, a page of it. Pure functions."""

import csv
import io

PER_PAGE = 50
MOST_DRAWN = 500  # configurations that the pictures have
MOST_WORDS = 200  # values of a parameter that are listed
LOSSES = ("validation loss", "training loss")  # by which runs are compared that were ranked otherwise
STATES = ("finished", "running", "waiting", "stopped", "failed", "cancelled")


def columns(data):
    """The leaderboard's columns, {name: function that gives a configuration's value}: what differs comes first."""
    measure = data["measure"]["series"]
    series = sorted(
        {name for c in data["configurations"] for name in c["last"]},
        key=lambda n: (n != measure, not n.startswith("validation"), n),
    )
    # (of several runs it has one in each, which is a parameter)
    key = {} if data["run"]["run_id"] is None else {"mst_key": lambda c: c["mst_key"]}
    return {
        "rank": lambda c: c["rank"],
        **key,
        "status": lambda c: c["status"],
        **{name: lambda c, name=name: c["parameters"].get(name) for name in data["varied"]},
        **{name: lambda c, name=name: c["last"].get(name) for name in series},
        f"best {measure}": lambda c: c["best"],
        "iterations": lambda c: c["iterations"],
        "training seconds": lambda c: c["seconds"],
        "why it ended": lambda c: c["reason"],
    }


def choices(data):
    """What may be filtered by: {parameter: {'low', 'high'}} of numbers, {parameter: {'words', 'count'}} of others, of
    whose `count` different values the first are listed."""
    found = {}
    for name in data["varied"]:
        values = [v for c in data["configurations"] if (v := c["parameters"].get(name)) is not None]
        if values and all(_is_number(v) for v in values):
            found[name] = {"low": min(values), "high": max(values)}
        else:
            words = sorted({str(v) for v in values})
            found[name] = {"words": words[:MOST_WORDS], "count": len(words)}
    return found


def chosen(data, states=(), best=None, low=None, high=None, words=None):
    """The configurations that a filter lets through, by rank: of these states, with parameters from `low` to `high` and
    of these `words` ({parameter: value}); of what is left the `best`."""
    found = [c for c in data["configurations"] if not states or c["status"] in states]
    for limits, fits in ((low or {}, lambda v, limit: v >= limit), (high or {}, lambda v, limit: v <= limit)):
        for name, limit in limits.items():
            found = [c for c in found if _is_number(c["parameters"].get(name)) and fits(c["parameters"][name], limit)]
    for name, word in (words or {}).items():
        found = [c for c in found if str(c["parameters"].get(name)) == word]
    return found[:best] if best else found


def ordered(data, configurations, by=None, descending=False):
    """The configurations by a column, those without a value last; by rank where there is no such column."""
    value = columns(data).get(by)
    if value is None:
        return configurations
    have = [c for c in configurations if value(c) is not None]
    words = any(not _is_number(value(c)) for c in have)
    have.sort(key=lambda c: str(value(c)) if words else value(c), reverse=descending)
    return have + [c for c in configurations if value(c) is None]


def view(data, configurations, page=1, pictures=None):
    """What the page shows: a page of the table, and the pictures of the best of the configurations that are given.

    `pictures`: the data of these alone; None: those of all are what there is."""
    pages = max(1, -(-len(configurations) // PER_PAGE))
    page = min(max(1, page), pages)
    of = columns(data)
    drawn = sorted(configurations, key=lambda c: c["rank"])[:MOST_DRAWN]
    keys = {c["mst_key"] for c in configurations}
    pictures = pictures or data
    curves = {key: own for key, own in pictures["curves"].items() if int(key) in keys}
    sampled = dict(pictures["sampled"])
    if len(drawn) < len(configurations):
        sampled["parallel"] = f"the best {len(drawn)} of {len(configurations)} configurations"
    first = (page - 1) * PER_PAGE
    return {
        **{
            name: data[name]
            for name in ("run", "measure", "varied", "fixed", "series", "settings", "arguments", "sql", "made_at")
        },
        **{
            name: pictures[name]
            for name in ("lanes", "bars", "merged_bars", "stages", "time", "makespan", "failed_units")
        },
        "best": best_so_far(data),
        "sampled": sampled,
        "curves": curves,
        "choices": choices(data),
        "configurations": [_short(c) for c in drawn],
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


def best_so_far(data):
    """The name of the configuration with the best value of the measure, in whichever iteration, and that value; None
    where there is none yet."""
    have = [c for c in data["configurations"] if c["best"] is not None]
    if not have:
        return None
    first = (max if data["measure"]["goal"] == "max" else min)(have, key=lambda c: c["best"])
    return {"name": first.get("name") or str(first["mst_key"]), "value": first["best"]}


def table(data, configurations):
    """The configurations as CSV, in the order in which they are given. A text that a spreadsheet would take for a
    formula begins with an apostrophe."""
    file, of = io.StringIO(), columns(data)
    writer = csv.writer(file)
    writer.writerow([_plain(name) for name in of])
    writer.writerows([_plain(value(c)) for value in of.values()] for c in configurations)
    return file.getvalue()


def beside(runs, most):
    """The best of several runs' data as one: a configuration is called `run 7, 3`, and its run is a parameter.

    None where no series is in all of them.
    """
    measures = [*[r["measure"] for r in runs], *({"series": loss, "goal": "min"} for loss in LOSSES)]
    measure = next((m for m in measures if all(m["series"] in r["series"] for r in runs)), None)
    if measure is None:
        return None
    found, curves = [], {}
    for run in runs:
        for c in run["configurations"][:most]:
            key = len(found) + 1
            label = f"run {run['run']['run_id']}"
            found.append(
                {
                    **c,
                    "mst_key": key,
                    "name": f"{label}, {c['mst_key']}",
                    "best": c["best"] if run["measure"] == measure else None,
                    "parameters": {"run": label, "configuration": c["mst_key"], **c["parameters"]},
                }
            )
            if own := run["curves"].get(str(c["mst_key"])):
                curves[str(key)] = own
    sign = -1 if measure["goal"] == "max" else 1
    found.sort(
        key=lambda c: (
            c["status"] == "failed",
            c["last"].get(measure["series"]) is None,
            sign * (c["last"].get(measure["series"]) or 0),
        )
    )
    for rank, c in enumerate(found, 1):
        c["rank"] = rank
    names = dict.fromkeys(name for c in found for name in c["parameters"])
    differ = [n for n in names if len({repr(c["parameters"].get(n)) for c in found}) > 1]
    cut = [f"the {most} best of run {r['run']['run_id']}" for r in runs if len(r["configurations"]) > most]
    return {
        "run": {"run_id": None, "status": "", "error": None},
        "measure": measure,
        "varied": differ,
        "fixed": {},
        "series": [s for s in runs[0]["series"] if all(s in r["series"] for r in runs)],
        "curves": curves,
        "configurations": found,
        "lanes": [],
        "bars": [],
        "merged_bars": False,
        "stages": [],
        "time": [],
        "makespan": 0,
        "settings": {},
        "arguments": {},
        "failed_units": [],
        "sql": None,
        "sampled": {"curves": ", ".join(cut)} if cut else {},
        "made_at": max(r["made_at"] for r in runs),
    }


def _short(c):
    """What the pictures need of a configuration."""
    return {key: c.get(key) for key in ("mst_key", "rank", "status", "parameters", "last", "seconds", "name")}


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(value):
    return "'" + value if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
