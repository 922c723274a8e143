"""Several runs beside each other, for the live page: their best configurations as those of one run, and what differs. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from pg_mop_client import viewing
from pg_mop_client.report_sections import SHOWN, WHOLE

MOST_TEXT = 300  # characters of an argument in a comparison
LOSSES = ("validation loss", "training loss")  # the measures for runs without a common ranking measure

Data = Mapping[str, Any]  # mop_report's JSON


def beside(runs: list[Data], most: int) -> dict[str, Any] | None:
    """The `most` best configurations of several runs as the data of one run; None if the runs have no common series.

    A configuration has a name such as `run 7, 3`, and its run is a parameter.
    """
    measures = [*[r["measure"] for r in runs], *({"series": loss, "goal": "min"} for loss in LOSSES)]
    measure = next((m for m in measures if all(m["series"] in r["series"] for r in runs)), None)
    if measure is None:
        return None
    found: list[dict[str, Any]] = []
    curves: dict[str, Any] = {}
    times: dict[str, Any] = {}
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
                times[str(key)] = run["times"].get(str(c["mst_key"]), [])
    sign = -1 if measure["goal"] == "max" else 1
    loss = measure["series"].split(" ")[0] + " loss"
    found.sort(
        key=lambda c: (  # the order of the server (pg_mop/search/ranking.py): the loss decides between equal values
            c["status"] == "failed",
            c["last"].get(measure["series"]) is None,
            sign * (c["last"].get(measure["series"]) or 0),
            c["last"].get(loss) is None,
            c["last"].get(loss) or 0,
        )
    )
    for rank, c in enumerate(found, 1):
        c["rank"] = rank
    names = dict.fromkeys(name for c in found for name in c["parameters"])
    differ = [n for n in names if len({repr(c["parameters"].get(n)) for c in found}) > 1]
    cut = [f"the {most} best of run {r['run']['run_id']}" for r in runs if len(r["configurations"]) > most]
    return {
        **WHOLE,
        **SHOWN,
        "run": {"run_id": None, "status": "", "error": None},
        "measure": measure,
        "varied": differ,
        "fixed": {},
        "series": [s for s in runs[0]["series"] if all(s in r["series"] for r in runs)],
        "curves": curves,
        "times": times,
        "distributions": distributions(runs, measure),
        "configurations": found,
        "settings": {},
        "arguments": {},
        "summary": None,
        "causes": [],
        "next": [],
        "sql": None,
        "sampled": {"curves": ", ".join(cut)} if cut else {},
        "made_at": max(r["made_at"] for r in runs),
    }


def distributions(runs: list[Data], measure: Mapping[str, str]) -> list[list[Any]]:
    """[[name of a run, its results, the best first], ...]: of each run, those of the configurations with the most iterations of
    which there are enough (viewing.comparable)."""
    found: list[list[Any]] = []
    for run in runs:
        fair = viewing.comparable(run["configurations"], measure["series"], viewing.LEAST_COMPARED)
        values = sorted((c["last"][measure["series"]] for c in fair), reverse=measure["goal"] == "max")
        found.append([f"run {run['run']['run_id']}", viewing.thin(values, viewing.MOST_VALUES)])
    return found


FACTS = (
    "function",
    "source_table",
    "validation_table",
    "num_iterations",
    "configurations",
    "segments",
    "scheduler",
    "sessions",
)


def differences(runs: list[Data]) -> list[list[Any]]:
    """[name, value in each run, ...] of what differs between runs: facts, arguments, settings. First results and times, and how
    far these are from what the planner predicted when the run began."""

    def best(run: Data) -> str | None:
        own = run["summary"]["best"] if run["summary"] else None
        return None if own is None else f"{own['value']:.6g} {own['series']}, configuration {own['mst_key']}"

    found: list[list[Any]] = [
        ["best", *(best(run) for run in runs)],
        ["seconds", *(run["run"]["seconds"] for run in runs)],
        ["failed", *(run["summary"]["failed"] if run["summary"] else None for run in runs)],
    ]
    expected = [run["run"].get("predicted_seconds") for run in runs]
    if any(seconds is not None for seconds in expected):
        found += [
            ["predicted seconds of training", *expected],
            [
                "longer (+) or shorter (-) than predicted",
                *(off(_alive(run), seconds, run["run"]["status"]) for run, seconds in zip(runs, expected)),
            ],
        ]
    sources: list[tuple[str, Callable[[Data], Mapping[str, Any]]]] = [
        ("", lambda run: {name: run["run"].get(name) for name in FACTS}),
        ("", lambda run: run["arguments"]),
        ("pg_mop.", lambda run: run["settings"]),
    ]
    for prefix, of in sources:
        for name in dict.fromkeys(name for run in runs for name in of(run)):
            values = [of(run).get(name) for run in runs]
            if len({repr(value) for value in values}) > 1 and f"{prefix}{name}" not in {row[0] for row in found}:
                found.append([f"{prefix}{name}", *(_text(value) for value in values)])
    return found


def _alive(run: Data) -> float | None:
    """The seconds of a run's units without the pauses before its resumes, in which nothing was trained; None: unknown. (A
    server of an older version tells no pauses.)"""
    paused = run.get("paused_seconds", 0.0)
    return None if paused is None else run["makespan"] - paused


def off(actual: float | None, expected: float | None, status: str) -> str | None:
    """The difference of actual and predicted seconds, in percent of the predicted ones, as text; None if the run has not
    finished."""
    if not actual or not expected or status != "finished":
        return None
    return f"{100 * (actual / expected - 1):+.0f} %"


def _text(value: Any) -> str | None:
    """A value of an argument or a setting, shortened."""
    return None if value is None else str(value)[:MOST_TEXT]
