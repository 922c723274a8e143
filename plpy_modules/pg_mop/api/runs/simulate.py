"""mop_simulate: a run, or units of given seconds, with other schedulers and numbers of sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pg_mop.api.madlib import fit_multiple
from pg_mop.api.search import automl, more, search
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, unseen_run
from pg_mop.backend.functions import sql_function
from pg_mop.explain.what_if import Step, Work, compare
from pg_mop.schedule import SCHEDULERS

SIMULATED = (fit_multiple.FUNCTION, search.FUNCTION, automl.FUNCTION, more.FUNCTION)
MOST_UNITS = 100_000  # simulated units of a call
MOST_SECONDS = 1e9  # of a unit
MOST_SESSIONS = 1000

# A command of several units is divided equally among them.
UNITS = """
SELECT stage, kind, dataset, segment, threads, concat(server, '/', backend_pid) AS session, started_at,
       extract(epoch FROM max(finished_at) OVER command - started_at)::float8 / count(*) OVER command AS seconds
FROM {schema}.mop_units WHERE run_id = $1 AND status = 'finished' AND NOT shared
WINDOW command AS (PARTITION BY server, backend_pid, started_at)
"""
STAGES = """
SELECT stage, parent, iteration, mst_keys[1] AS mst_key
FROM {schema}.mop_stages WHERE run_id = $1 AND source_run IS NULL AND mst_keys <> '{{}}' ORDER BY stage
"""


@sql_function
def mop_simulate(
    db: Database,
    run_id: int | None,
    unit_seconds: list[float] | None,
    segment_count: int | None,
    num_iterations: int | None,
    session_counts: list[int] | None,
    schedulers: list[str] | None,
    divided_share: float | None,
) -> list[tuple[Any, ...]]:
    """Simulate the training of a run by its logged unit seconds, or of configurations by given seconds of a unit.

    Returns rows of scheduler, sessions, makespan, lower_bound and utilization. Raises MopError for bad arguments, and for a
    run that the role does not see or that has no finished unit.
    """
    names = _schedulers(db, schedulers)
    if (run_id is None) == (unit_seconds is None):
        raise MopError(
            "give either run_id or unit_seconds",
            hint=f"SELECT * FROM {db.extension}.mop_simulate(unit_seconds => ARRAY[10, 20, 40], segment_count => 2);",
            sqlstate="22023",
        )
    if run_id is not None:
        if segment_count is not None or num_iterations is not None:
            raise MopError("segment_count and num_iterations are of unit_seconds; a run has its own", sqlstate="22023")
        if divided_share is not None:
            raise MopError("divided_share is of unit_seconds; a run's log tells its own", sqlstate="22023")
        work, seed = _of_run(db, run_id), db.value(f"SELECT seed FROM {db.extension}.mop_runs WHERE run_id = {run_id}")
    else:
        work, seed = _of_numbers(unit_seconds, segment_count, 1 if num_iterations is None else num_iterations), 0
        if divided_share is not None:
            if not 0 <= divided_share <= 1:
                raise MopError(
                    f"divided_share must be a share from 0 to 1, not {divided_share:g}",
                    detail="It is the share of a unit's seconds that several cores divide among them.",
                    hint=f"SELECT * FROM {db.extension}.mop_simulate(unit_seconds => ARRAY[10, 20, 400], segment_count => 2, "
                    "divided_share => 0.9);",
                    sqlstate="22023",
                )
            work = replace(work, divided=divided_share)
    counts = _counts(session_counts, len(work.segments))
    if work.units * len(counts) * len(names) > MOST_UNITS:
        raise MopError(
            f"{work.units} units, {len(counts)} numbers of sessions and {len(names)} schedulers are too many to be "
            f"simulated at once (at most {MOST_UNITS} units in all)",
            hint="Name fewer: session_counts => ARRAY[4], schedulers => ARRAY['longest-first'].",
            sqlstate="54000",
        )
    return [tuple(row) for row in compare(work, counts, names, seed, db.check_interrupts)]


def _schedulers(db: Database, names: list[str] | None) -> Sequence[str]:
    if names is None:
        return tuple(SCHEDULERS)
    for name in names:
        if name not in SCHEDULERS:
            raise MopError(
                f"schedulers has {'NULL' if name is None else repr(name)}, which is no scheduler",
                detail=f"Schedulers are {', '.join(SCHEDULERS)}.",
                hint=f"SELECT * FROM {db.extension}.mop_simulate(..., schedulers => ARRAY['longest-first']);",
                sqlstate="22023",
            )
    if not names:
        raise MopError("schedulers is empty", sqlstate="22023")
    return list(dict.fromkeys(names))


def _counts(counts: list[int] | None, segments: int) -> list[int]:
    """Numbers of sessions; by default 1, 2, 4 and so on up to the number of segments."""
    if counts is None:
        return sorted({min(2**power, segments) for power in range(segments.bit_length() + 1)})
    if not counts:
        raise MopError("session_counts is empty", sqlstate="22023")
    _check_flat("session_counts", counts)
    for count in counts:
        if count is None or not 1 <= count <= segments:
            raise MopError(
                f"session_counts must be from 1 to the number of segments ({segments}), not "
                f"{'NULL' if count is None else count}",
                hint="A segment is trained in one session; pg_mop.segments is the number that the preprocessors make.",
                sqlstate="22023",
            )
    return list(dict.fromkeys(counts))


def _check_flat(name: str, values: Sequence[Any]) -> None:
    if any(isinstance(value, list) for value in values):
        raise MopError(f"{name} must be an array of one dimension", sqlstate="2202E")


def _of_numbers(unit_seconds: list[float] | None, segments: int | None, iterations: int) -> Work:
    """The work of configurations with given seconds of a unit."""
    for name, value, most in (("segment_count", segments, MOST_SESSIONS), ("num_iterations", iterations, MOST_UNITS)):
        if value is None or not 1 <= value <= most:
            raise MopError(
                f"{name} must be from 1 to {most}, not {'NULL' if value is None else value}", sqlstate="22023"
            )
    _check_flat("unit_seconds", unit_seconds or ())
    if not unit_seconds or any(s is None or not 0 < s <= MOST_SECONDS for s in unit_seconds):
        raise MopError(
            f"unit_seconds must have a number of seconds above 0, and at most {MOST_SECONDS:g}, for each configuration",
            sqlstate="22023",
        )
    assert segments is not None
    if len(unit_seconds) * segments * iterations > MOST_UNITS:
        raise MopError(f"the units are too many to be simulated (at most {MOST_UNITS})", sqlstate="54000")
    steps: list[Step] = []
    seconds: dict[tuple[str, int, str, int], float] = {}
    for key, duration in enumerate(unit_seconds, 1):
        parent = None
        for iteration in range(1, iterations + 1):
            steps.append(Step(len(steps) + 1, parent, iteration, key))
            parent = len(steps)
            seconds.update({("train", parent, "training", segment): duration for segment in range(segments)})
    return Work(steps, range(segments), (), seconds, {})


def _of_run(db: Database, run_id: int) -> Work:
    """The stages that a run trained itself, with the logged seconds of their units."""
    schema = db.extension
    run = db.one(f"SELECT status, function, segments FROM {schema}.mop_runs WHERE run_id = $1", ["bigint"], [run_id])
    if run is None:
        raise unseen_run(db, run_id)
    units = db.execute(UNITS.format(schema=schema), ["bigint"], [run_id])
    training_units = [u for u in units if u["kind"] == "train"]
    if not training_units:
        raise MopError(
            f"run {run_id} has no finished training unit",
            hint=f"SELECT run_id, status FROM {schema}.mop_runs WHERE run_id = {run_id};",
            sqlstate="55000",
        )
    if run["function"] not in SIMULATED:
        raise MopError(
            f"run {run_id} is of {run['function']}, which has nothing to schedule",
            hint="Runs of madlib_keras_fit_multiple_model and of searches can be simulated.",
            sqlstate="0A000",
        )
    stages = db.execute(STAGES.format(schema=schema), ["bigint"], [run_id])
    evaluated = {u["stage"] for u in units if u["kind"] == "evaluate"}
    stage_numbers = {s["stage"] for s in stages}
    segments = sorted({u["segment"] for u in units if u["dataset"] == "training"})
    steps = [
        Step(
            s["stage"],
            s["parent"] if s["parent"] in stage_numbers else None,
            s["iteration"],
            s["mst_key"],
            s["stage"] in evaluated,
        )
        for s in stages
    ]
    return Work(
        steps,
        segments,
        sorted({u["segment"] for u in units if u["dataset"] == "validation"}),
        {(u["kind"], u["stage"], u["dataset"], u["segment"]): u["seconds"] for u in units},
        _held_out(stages, training_units, segments) if run["status"] == "finished" else {},
        {(u["kind"], u["stage"], u["dataset"], u["segment"]): u["threads"] for u in units if u["threads"] is not None},
    )


def _held_out(
    stages: Sequence[Mapping[str, Any]], trained: Sequence[Mapping[str, Any]], segments: Sequence[int]
) -> dict[int, set[int]]:
    """{mst_key: the segments that none of its stages visited}: those that a fold leaves out."""
    key_of = {s["stage"]: s["mst_key"] for s in stages}
    visited: dict[int, set[int]] = {}
    for unit in trained:
        if (key := key_of.get(unit["stage"])) is not None:
            visited.setdefault(key, set()).add(unit["segment"])
    return {key: set(segments) - keys for key, keys in visited.items() if len(keys) < len(segments)}
