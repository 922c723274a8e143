"""Timed trials for EXPLAIN: a few mini-batches of each net, in a run that is rolled back with the explanation.

The run is opened by the catalog's own functions, and its units are done as in a worker session (run/unit.py), but in the
calling session and on a few buffers of one segment. The subtransaction of the explanation takes all of it back.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from typing import Any

from mop_udf import aggregate
from pg_mop.backend.errors import MopError, is_cancel
from pg_mop.call.planned_run import PlannedRun
from pg_mop.plan.configuration import Configuration
from pg_mop.plan.estimates import MEASURED, Estimates, NetCost
from pg_mop.plan.sharing import epochs
from pg_mop.plan.stages import Stage
from pg_mop.run.unit import run_unit
from pg_mop.schedule import setup
from pg_mop.schedule.unit import Unit

SECONDS = 5.0  # for all trials
UNIT_SECONDS = 0.4  # of a trial's mini-batches, by what is expected of them
LEAST_BATCHES, MOST_BATCHES = 12, 200
MOST_SECONDS = 1.0  # of a trial, by what is expected of its mini-batches


def measure(preview: PlannedRun, estimates: Estimates) -> int:
    """Time the nets that are left to train, those with most work first, and note what they took in `estimates`. Returns how
    many were timed: the time may end before all are. Raises MopError where the rows are not on this server."""
    if preview.options["trainers"] or any(
        s.server is not None or s.host_segment is not None for s in preview.segments.values()
    ):
        raise MopError(
            "measure is for calls whose segments and trainers are all on this server",
            hint="Leave out measure: the plan then guesses by arithmetic, or takes the cost history.",
            sqlstate="0A000",
        )
    until, timed = time.monotonic() + SECONDS, 0
    wanted = _stages(preview, estimates)
    if not wanted:
        return 0
    holder = aggregate.session(preview.db.plpy)
    try:
        run_id = _open_run(preview)
        for number, stage in enumerate(wanted):
            if number and time.monotonic() > until:  # (the machine may have stood still before the first)
                break
            timed += _time(preview, estimates, run_id, stage)
    finally:
        holder.give_back()
    return timed


def _stages(preview: PlannedRun, estimates: Estimates) -> list[Stage]:
    """A first stage of each net that is left to train, those of most work first."""
    planner = preview.planner
    work: dict[Any, float] = {}
    roots: dict[Any, Stage] = {}
    for stage in planner.plan.stages.values():
        net = planner.sharing.net(stage)
        if stage.trials and not stage.trained:
            work[net] = work.get(net, 0.0) + planner.visits(stage) * estimates.unit(stage)
        if stage.parent is None and stage.trials:
            roots.setdefault(net, stage)
    return [roots[net] for net in sorted(work, key=lambda net: -work[net]) if net in roots]


def _open_run(preview: PlannedRun) -> int:
    """A run in the catalog, as the coordinator opens it; the board and the unit specs of `preview` belong to it."""
    preview.catalog.coordinator = preview.db.value(f"SELECT backend FROM {preview.db.extension}.mop_tokens")
    preview.board = setup.make_board(
        preview.planner, list(preview.configurations), preview.configurations.misfits, preview.wanted
    )
    preview.device_parts = preview.device_parts_of(preview.board)
    preview.unit_specs = preview._unit_specs()
    parameters = {"arguments": {}, "settings": {**preview.options, "seed": preview.seed}, "tables": {}}
    noted: list[Configuration] = [{**c, "error": None} for c in preview._noted()]
    return preview._write_run(preview.catalog, preview.spec.function, noted, parameters, None, None)


def _time(preview: PlannedRun, estimates: Estimates, run_id: int, stage: Stage) -> bool:
    """Time a few mini-batches of a stage's net. False where its epochs take too long, and where the trial fails: the call
    itself will tell why."""
    planner, catalog, db = preview.planner, preview.catalog, preview.db
    net = planner.sharing.net(stage)
    number = min(planner.workload.keys("training"))
    unit = Unit(stage.iteration, stage.number, "train", "training", number)
    segment, packed = preview.segments["training", number], preview.inputs.source
    guess = estimates.net(stage).batch
    batches = max(LEAST_BATCHES, min(MOST_BATCHES, int(UNIT_SECONDS / guess)))
    rows, size, source = _sample(preview, packed, segment, min(segment.rows, batches * net.batch_size))
    passes = max(1, epochs(stage.parameters[1]))
    made = passes * math.ceil(rows / net.batch_size)
    if made > MOST_BATCHES and made * guess > MOST_SECONDS:
        return False  # (a unit makes all its epochs, even on so few rows)
    worker, device_parts = preview.board.workers[0], preview.device_parts
    assert device_parts is not None and catalog.fencing_token is not None
    device_parts.begin(worker, unit, ())
    several = device_parts.of(worker) if device_parts.several(worker) else None
    spec = preview.unit_specs.describe(
        [[unit]], worker, parts=several, run_id=run_id, fencing_token=catalog.fencing_token
    )
    spec.models[0].state_table, spec.models[0].epochs = 1, passes
    sampled = dataclasses.replace(segment, table=source)
    spec.rows, spec.bytes = rows, size
    spec.rows_sql = preview.engine.rows_sql(packed, sampled, f"{db.extension}.mop_sub_epoch")
    spec.dataset_key = f"explained/{packed.table.oid}/{number}/{segment.fingerprint}/{rows}"
    catalog.execute(
        f"SELECT {catalog.schema}.mop_begin_units(%s, %s, 'train', 'training', %s, %s, %s, %s, %s)",
        (run_id, catalog.fencing_token, [stage.number], [stage.iteration], [number], [1], [time.time()]),
    )
    try:
        run_unit(db.plpy, json.dumps(spec.to_json()))
    except (db.plpy.SPIError, db.plpy.Error) as error:
        if is_cancel(error):
            raise
        return False
    found = catalog.execute(
        f"SELECT kernel, train_seconds, choice FROM {catalog.prefix}unit WHERE run_id = %s AND stage = %s AND kind = 'train'",
        (run_id, stage.number),
    )[0]
    choice = found["choice"] or {}
    measured, compiled = choice.get("batch_seconds") or {}, choice.get("compile_seconds") or {}
    kernel = min(measured, key=lambda name: measured[name]) if measured else found["kernel"]
    seconds = measured.get(kernel) or found["train_seconds"] / made
    estimates.note(stage, NetCost(seconds, compiled.get(kernel) or 0.0, MEASURED, kernel, 1, choice.get("device")))
    return True


def _sample(preview: PlannedRun, packed: Any, segment: Any, wanted: int) -> tuple[int, int, str]:
    """(rows, bytes, SQL for FROM) of the first buffers of a segment, with about so many rows."""
    from pg_mop.engines.postgresql import sizes

    condition, mean = packed.of_segment(segment.key), max(1, segment.rows)
    count = preview.db.value(f"SELECT count(*) FROM {segment.table} WHERE {condition}")
    buffers = max(1, min(count, math.ceil(wanted / mean * count)))
    source = f"(SELECT * FROM {segment.table} WHERE {condition} ORDER BY buffer_id LIMIT {buffers}) AS sample"
    found = preview.db.one(f"SELECT {sizes(packed)} FROM {source}")
    return int(found["rows"]), int(found["bytes"]), source
