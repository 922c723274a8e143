"""What a run took, from the log of its units: where the session seconds went, the critical path, the sessions' loads. Pure
Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pg_mop.explain.plan_text import seconds, size

Row = Mapping[str, Any]
LEAST_PAUSE = 0.5  # seconds: a session that was lost is replaced sooner
PURPOSES = ("train", "evaluate", "make ready", "read", "write", "transactions", "retried", "idle")


def account(units: Sequence[Row], until: float, sessions: int) -> dict[str, Any]:
    """The account of a run's units, without the times in which it was not alive (`paused_seconds`).

    `units`: rows of the log, one for each attempt, with stage, iteration, mst_key, kind, segment, session (any key), status,
    began and ended (seconds from the run's start, None: it runs), train, cpu, read, write and compile (seconds; None:
    unknown), threads (of the trainer), gpu and gpu_bytes (utilization of its GPU, 0 to 1, and bytes in use there; None:
    unknown); `until`: the run's end, or now; `sessions`: that it asked for.

    The units of a unit batch have the times of their step and a part of its seconds each.
    """
    gone = pauses(units)
    units, until = [_without(unit, gone) for unit in units] if gone else units, alive_at(until, gone)
    begun = [unit for unit in units if unit["began"] is not None]
    if not begun:
        return {
            "makespan": 0.0,
            "paused_seconds": 0.0,
            "start_seconds": None,
            "session_seconds": {},
            "sessions": [],
            "critical_path": None,
            "processors": None,
            "gpus": None,
            "threads": [],
            "units": 0,
        }
    first = min(unit["began"] for unit in begun)
    last = max(unit["ended"] if unit["ended"] is not None else until for unit in begun)
    spent: defaultdict[str, float] = defaultdict(float)
    steps: dict[tuple[Any, float, float], list[Row]] = {}
    for unit in begun:
        end = unit["ended"] if unit["ended"] is not None else until
        steps.setdefault((unit["session"], unit["began"], end), []).append(unit)
    loads: dict[Any, dict[str, Any]] = {}
    for (session, start, end), together in steps.items():
        took = max(0.0, end - start)
        load = loads.setdefault(session, {"busy": 0.0, "units": 0, "from": start, "until": end})
        load["busy"], load["units"] = load["busy"] + took, load["units"] + len(together)
        load["from"], load["until"] = min(load["from"], start), max(load["until"], end)
        _spend(spent, together, took)
    makespan = max(1e-9, last - first)
    count = max(sessions, 1)
    spent["idle"] = max(0.0, makespan * count - sum(load["busy"] for load in loads.values()))
    return {
        "units": sum(unit["status"] == "finished" for unit in units),
        "start_seconds": first,
        "makespan": makespan,
        "paused_seconds": sum(end - begin for begin, end in gone),
        "session_seconds": {name: spent[name] for name in PURPOSES if spent[name] > 0},
        "sessions": [
            {"session": session, **{k: v - first if k in ("from", "until") else v for k, v in load.items()}}
            for session, load in sorted(loads.items(), key=lambda item: (item[1]["from"], str(item[0])))
        ],
        "critical_path": _critical_path(begun, first, until),
        "processors": _processors(begun),
        "gpus": _gpus(begun),
        "threads": _threads(begun, first),
    }


def _processors(units: Sequence[Row]) -> dict[str, float] | None:
    """The processor seconds of the trainers, and how many processors they had busy on average while they trained and
    evaluated; None where no unit tells them."""
    known = [unit for unit in units if unit.get("cpu") is not None and unit["train"]]
    if not known:
        return None
    cpu = sum(unit["cpu"] for unit in known)
    return {"seconds": cpu, "busy": cpu / max(1e-9, sum(unit["train"] for unit in known))}


def _gpus(units: Sequence[Row]) -> dict[str, Any] | None:
    """The mean utilization (0 to 1) of the trainers' GPUs while they trained and evaluated, weighted by the seconds of units,
    and the most bytes in use on one of them (None: unknown); None where no unit tells them."""
    known = [unit for unit in units if unit.get("gpu") is not None and unit["train"]]
    if not known:
        return None
    return {
        "utilization": sum(unit["gpu"] * unit["train"] for unit in known) / sum(unit["train"] for unit in known),
        "bytes": max((unit["gpu_bytes"] for unit in known if unit.get("gpu_bytes") is not None), default=None),
    }


def _threads(units: Sequence[Row], first: float) -> list[dict[str, Any]]:
    """How many sessions had trainers with how many threads, from when on (seconds after the first unit's start), and for how
    many units; by the number of threads. Empty where no unit tells them."""
    by_count: dict[int, list[Row]] = {}
    for unit in units:
        if unit.get("threads") is not None:
            by_count.setdefault(unit["threads"], []).append(unit)
    return [
        {
            "threads": count,
            "sessions": len({unit["session"] for unit in own}),
            "from": min(unit["began"] for unit in own) - first,
            "units": len(own),
        }
        for count, own in sorted(by_count.items())
    ]


def pauses(units: Sequence[Row]) -> list[tuple[float, float]]:
    """The times (from, until) in which the run was not alive: between two coordinators. A coordinator's sessions end with it,
    so no session has units both before and after such a time.

    >>> unit = {"session": 1, "began": 0.0, "ended": 2.0}
    >>> pauses([unit, {**unit, "session": 2, "began": 50.0, "ended": 51.0}])
    [(2.0, 50.0)]
    >>> pauses([unit, {**unit, "began": 50.0, "ended": 51.0}])
    []
    """
    begun = sorted((unit for unit in units if unit["began"] is not None), key=lambda unit: unit["began"])
    last = {unit["session"]: number for number, unit in enumerate(begun)}
    found, end, latest = [], 0.0, -1  # the latest of the units of the sessions so far
    for number, unit in enumerate(begun):
        if number and unit["began"] > end + LEAST_PAUSE and latest < number:
            found.append((end, unit["began"]))
        end = max(end, unit["ended"] if unit["ended"] is not None else float("inf"))
        latest = max(latest, last[unit["session"]])
    return found


def alive_at(when: float, gone: Sequence[tuple[float, float]]) -> float:
    """The seconds that a run has been alive at a time.

    >>> alive_at(60.0, [(2.0, 50.0)]), alive_at(1.0, [(2.0, 50.0)])
    (12.0, 1.0)
    """
    return when - sum(min(when, end) - begin for begin, end in gone if when > begin)


def _without(unit: Row, gone: Sequence[tuple[float, float]]) -> Row:
    """A unit with its times in seconds of the run's life."""
    return {**unit, **{name: None if unit[name] is None else alive_at(unit[name], gone) for name in ("began", "ended")}}


def _spend(spent: defaultdict[str, float], together: Sequence[Row], took: float) -> None:
    """Add the seconds of a step to the purposes. What a step took besides is the way to the trainer, and the transaction."""
    if any(unit["status"] in ("failed", "cancelled") for unit in together):
        spent["retried"] += took
        return
    parts: defaultdict[str, float] = defaultdict(float)
    for unit in together:
        purpose = "train" if unit["kind"] == "train" else "evaluate"
        compiled = min(unit["compile"] or 0.0, unit["train"] or 0.0)
        parts[purpose] += (unit["train"] or 0.0) - compiled
        parts["make ready"] += compiled
        parts["read"] += unit["read"] or 0.0
        parts["write"] += unit["write"] or 0.0
    total = sum(parts.values())
    if total > took > 0:  # (units that ran side by side)
        for name in parts:
            parts[name] = parts[name] * took / total
        total = took
    for name, value in parts.items():
        spent[name] += value
    spent["transactions"] += took - total


def _critical_path(units: Sequence[Row], first: float, until: float) -> dict[str, Any] | None:
    """The chain of units that ends with the last one: before each unit comes the one that ended last of those that it waited
    for, of its configuration or of its session."""
    finished = [unit for unit in units if unit["ended"] is not None and unit["status"] == "finished"]
    if not finished:
        return None
    ordered = sorted(finished, key=lambda unit: unit["ended"])
    by_key: dict[tuple[str, Any], list[Row]] = {}
    for unit in ordered:
        for key in (("configuration", unit["mst_key"]), ("session", unit["session"])):
            by_key.setdefault(key, []).append(unit)
    places = {key: {id(unit): at for at, unit in enumerate(own)} for key, own in by_key.items()}
    at: Row | None = ordered[-1]
    busy = waited = 0.0
    count, shares = 0, Counter[int]()
    while at is not None:
        took = at["ended"] - at["began"]
        busy, count = busy + took, count + 1
        shares[at["mst_key"]] += took
        before: list[Row] = []
        for key in (("configuration", at["mst_key"]), ("session", at["session"])):
            own, position = by_key[key], places[key][id(at)] - 1
            while position >= 0 and own[position]["ended"] > at["began"] + 1e-6:
                position -= 1
            if position >= 0:
                before.append(own[position])
        found = max(before, key=lambda unit: unit["ended"], default=None)
        waited += max(0.0, at["began"] - (found["ended"] if found is not None else first))
        at = found
    longest, most = shares.most_common(1)[0]
    return {
        "units": count,
        "configurations": len(shares),
        "busy_seconds": busy,
        "waiting_seconds": waited,
        "longest": {"mst_key": longest, "seconds": most},
    }


def render(found: Mapping[str, Any]) -> str:
    """The text of a run's account (api/runs/explain_run.py)."""
    return "\n".join(_lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    actual, expected = found["actual"], found["prediction"]
    ends = "goes on" if found["status"] == "running" else found["status"]
    pause = actual["paused_seconds"]
    besides = f" and a pause of {seconds(pause)} before it was resumed" if pause else ""
    yield f"Run {found['run_id']}: {found['function']}, {ends}  (actual time={seconds(actual['seconds'])}{besides})"
    yield "  " + _compared("Makespan", expected and expected["makespan"], actual["makespan"], found["status"])
    if expected is not None:
        yield "  " + _range(expected, actual, found["status"])
        if actual["start_seconds"] is not None:
            yield "  " + _compared(
                "Before the first unit", expected["start_seconds"], actual["start_seconds"], "finished"
            )
        yield (
            f"  Units: expected {expected['training_units']} to train{_of_search(expected)}, actual "
            f"{found['units']['train']} (and {found['units']['evaluate']} evaluations)"
        )
    else:
        yield (
            f"  Units: {found['units']['train']} trained, {found['units']['evaluate']} evaluated; "
            "no prediction was stored when the run began"
        )
    spent = actual["session_seconds"]
    if spent:
        total = sum(spent.values())
        yield "  Session seconds: " + ", ".join(
            f"{name} {seconds(value)} ({value / total:.0%})" for name, value in spent.items()
        )
    processors = actual["processors"]
    if processors is not None:
        yield (
            f"  Processors: {seconds(processors['seconds'])} of the trainers, {processors['busy']:.2f} busy on average while "
            "one of them trains or evaluates"
        )
    gpus = actual["gpus"]
    if gpus is not None:
        yield (
            f"  GPUs: {gpus['utilization']:.0%} utilized on average while a trainer trains or evaluates"
            + (f", at most {size(gpus['bytes'])} of one in use" if gpus["bytes"] is not None else "")
            + " (work and memory of all processes)"
        )
    yield from _dealt(actual["threads"], expected)
    path = actual["critical_path"]
    if path is not None:
        yield (
            f"  Critical path: {path['units']} units of {path['configurations']} "
            f"configuration{'s' * (path['configurations'] != 1)}, busy {seconds(path['busy_seconds'])}, waiting "
            f"{seconds(path['waiting_seconds'])}; configuration {path['longest']['mst_key']} has "
            f"{seconds(path['longest']['seconds'])}"
        )
    for load in actual["sessions"]:
        where = f" on server {load['server']}" if load.get("server") else ""
        yield (
            f"  Session {load['session']}{where}: busy {seconds(load['busy'])} "
            f"({load['busy'] / max(1e-9, actual['makespan']):.0%})  (units={load['units']} "
            f"from={seconds(load['from'])} until={seconds(load['until'])})"
        )
    moved = found["moved"]
    if moved["hops"]:
        through = moved["ways"].get("coordinator", {"hops": 0})["hops"]
        yield (
            f"  States between servers: {moved['hops']} hops, {size(moved['bytes'])}, {seconds(moved['seconds'])}"
            + (f"; {through} of them through the coordinator's server" if through else "")
        )


def _dealt(threads: Sequence[Mapping[str, Any]], expected: Mapping[str, Any] | None) -> Iterator[str]:
    """The line on trainers that had more threads than others of the run, or that were expected to have more."""
    planned = (expected or {}).get("dealt")
    if len(threads) < 2 and not planned:
        return
    said = "; ".join(
        f"{one['threads']} in {one['sessions']} session{'s' * (one['sessions'] != 1)} from {seconds(one['from'])} on "
        f"({one['units']} unit{'s' * (one['units'] != 1)})"
        for one in threads
    )
    before = f"expected {planned['threads']} from {seconds(planned['from'])} on, actual " if planned else ""
    yield f"  Threads: {before}{said or 'unknown'}"


def _of_search(expected: Mapping[str, Any]) -> str:
    """The least and the most units of a search."""
    if "search" not in expected:
        return ""
    counts = [expected["search"][name]["training_units"] for name in ("least", "expected", "most")]
    return f" ({min(counts)} to {max(counts)}, as the search goes)"


def _compared(name: str, expected: float | None, actual: float, status: str) -> str:
    if expected is None:
        return f"{name}: actual {seconds(actual)}"
    said = "so far" if status == "running" else "actual"
    factor = f"  ({actual / expected:.2f} x)" if expected > 0 and status == "finished" and actual > 0 else ""
    return f"{name}: expected {seconds(expected)}, {said} {seconds(actual)}{factor}"


def _range(expected: Mapping[str, Any], actual: Mapping[str, Any], status: str) -> str:
    low, high = expected["makespan_low"], expected["makespan_high"]
    told = f"Expected range: {seconds(low)}..{seconds(high)}, from {', '.join(expected['sources'])}"
    if status == "finished" and not low <= actual["makespan"] <= high:
        return f"{told}: the actual makespan is outside"
    return told
