"""Fixed costs as the log of earlier runs tells them: how long a run takes to start and to end, and what a command costs besides
its computation. Pure Python."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pg_mop.plan.estimates import HISTORY, FixedCosts

Row = Mapping[str, Any]

APART = 2e-4  # seconds between two units of a session that are of two commands: those of a chain follow at once
NEXT = 0.1  # seconds: a longer gap is idle time
MOST_SLOWDOWN = 4.0  # the log may tell, and its inverse
LEAST_COMMANDS = 5  # that tell what a command costs


def learned(runs: Sequence[Row], units: Iterable[Row], usual: FixedCosts | None = None) -> FixedCosts:
    """The medians over runs, latest first. What the log does not tell stays as `usual`.

    `runs`: of each run `run_id`, `start` (seconds to its first unit), `end` (from its last unit), `prediction`, as it was
    stored, or None, and `alike`: it had nets of the present plan; `units`: of these runs
    `run_id`, `session`, `kind`, `rows`, `began`, `ended` (seconds), `train`, `read`, `write`, `compiled` and `threads`.
    """
    usual = usual or FixedCosts()
    if not runs:
        return usual
    by_run: dict[Any, list[Row]] = {run["run_id"]: [] for run in runs}
    for unit in units:
        by_run[unit["run_id"]].append(unit)
    around = [value for own in by_run.values() if (value := _around(own)) is not None]
    evaluation = [value for own in by_run.values() if (value := _evaluation(own)) is not None]
    found: dict[str, Any] = {
        "start": statistics.median(max(0.0, run["start"]) for run in runs),
        "end": statistics.median(max(0.0, run["end"]) for run in runs),
        "measured": len(runs),
    }
    slowdown = [value for run in runs if (value := _slowdown(run, by_run[run["run_id"]])) is not None]
    if slowdown:
        found["slowdown"] = min(MOST_SLOWDOWN, max(1 / MOST_SLOWDOWN, statistics.median(slowdown)))
    if around:
        found["around"] = statistics.median(around)
    if evaluation:
        found["evaluation"] = statistics.median(evaluation)
    return dataclasses.replace(usual, **found)


def _slowdown(run: Row, units: Sequence[Row]) -> float | None:
    """Seconds that training units took, as a multiple of those that the history said; None where the run was predicted from
    something else, or trained other units than it was expected to."""
    said = run.get("prediction")
    if said is None or said["sources"] != [HISTORY] or not run.get("alike", True):
        return None
    trained = [unit["train"] or 0.0 for unit in units if unit["kind"] == "train"]
    expected = said["session_seconds"]["train"]
    if len(trained) != said["training_units"] or not expected or any(u["compiled"] for u in units):
        return None
    threads = {(unit.get("server"), unit.get("threads")) for unit in units}
    if len(threads) > len({server for server, _ in threads}):  # (some were to be sooner than the history says)
        return None
    return sum(trained) / expected * said.get("slowdown", 1.0)


def _around(units: Sequence[Row]) -> float | None:
    """Seconds of a command besides its computation: to read and write states and rows, and until the next command."""
    by_session: dict[Any, list[Row]] = {}
    for unit in units:
        by_session.setdefault(unit["session"], []).append(unit)
    costs: list[float] = []
    for own in by_session.values():
        own.sort(key=lambda unit: (unit["began"], unit["ended"]))
        end: float | None = None
        now = 0.0
        for unit in own:
            gap = None if end is None else unit["began"] - end
            if gap is not None and gap >= APART:
                costs.append(now + gap if gap < NEXT else now)
                now = 0.0
            now += (unit["read"] or 0.0) + (unit["write"] or 0.0)
            end = max(end or 0.0, unit["ended"])
        costs.append(now)
    return statistics.median(costs) if len(costs) >= LEAST_COMMANDS else None


def _evaluation(units: Sequence[Row]) -> float | None:
    """Seconds of an evaluated row, in seconds of a trained row, by the medians of units that compiled nothing."""
    seconds: dict[str, list[float]] = {"train": [], "evaluate": []}
    for unit in units:
        if unit["rows"] and unit["train"] and not unit["compiled"]:
            seconds[unit["kind"]].append(unit["train"] / unit["rows"])
    if not all(seconds.values()):
        return None
    trained = statistics.median(seconds["train"])
    return min(10.0, statistics.median(seconds["evaluate"]) / trained) if trained else None
