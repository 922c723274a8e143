"""The commands of worker sessions: attempts at units, and the SQL that lets a session do them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mop_udf.unit_spec import UnitSpec
from pg_mop.backend.quoting import quote_literal
from pg_mop.call.servers import Server
from pg_mop.run.attempt import Attempt, State
from pg_mop.run.run import Run
from pg_mop.schedule.board import Unit
from pg_mop.schedule.unit_batches import CommandSteps, units_of

AttemptSteps = list[list[Attempt | None]]  # attempts at the units of a command's steps


def attempts_at(run: Run, steps: CommandSteps, server: str | None) -> AttemptSteps:
    """New attempts at the units of a command, on a server."""
    return [[None if unit is None else _attempt(run, unit, server, steps) for unit in step] for step in steps]


def _attempt(run: Run, unit: Unit, server: str | None, steps: CommandSteps) -> Attempt:
    """The next attempt at a unit, on a server, in a command with these steps."""
    before = run.attempts.get(unit)
    attempt = before.next() if before else Attempt(unit, run.begun_before.get(unit, 0) + 1)
    run.counts.retried += attempt.number > 1
    attempt.state, attempt.server = State.PREPARING, server
    attempt.chain = len(steps) > 1
    attempt.batch = len(units_of(steps)) > 1
    attempt.row = {
        "run_id": run.run_id,
        "stage": unit.stage,
        "iteration": unit.iteration,
        "segment": unit.segment,
        "kind": unit.kind,
        "dataset": unit.dataset,
        "attempt": attempt.number,
        "queued_at": run.ready_since.get(unit.stage, run.began),
    }
    run.attempts[unit] = attempt
    return attempt


def command_of(
    run: Run, server: Server, worker: int, steps: CommandSteps, attempts: AttemptSteps, threads: int | None, parts: int
) -> UnitSpec:
    """The unit spec of a command, with its attempts. `threads`: of the worker's trainer; `parts`: of its device."""
    spec = run.unit_specs.describe(steps, worker, threads, parts, server.run_id, server.catalog.fencing_token)
    _tell_attempts(run, attempts, spec)
    return spec


def sql_of(server: Server, rows: Sequence[dict[str, Any]], units: Sequence[Unit], command: UnitSpec) -> str:
    """The SQL of a command: note that its attempts (`rows`) have begun; do its units; on another server, report them."""
    sql = (
        f"BEGIN; {server.catalog.begin_units_sql(server.run_id, rows)}; COMMIT; "
        f"BEGIN; SELECT {server.schema}.mop_run_unit({quote_literal(json.dumps(command.to_json()))}); COMMIT"
    )
    return sql if server.home else f"{sql}; {server.catalog.reports_sql(server.run_id, units)}"


def _tell_attempts(run: Run, steps: AttemptSteps, spec: UnitSpec) -> None:
    """Complete the models of a unit spec by their attempts. Element i of each step is of the same model, which only its last
    attempt writes."""
    versions: dict[int, int] = {}  # stage -> its version in the chain
    last: list[Attempt | None] = [None] * len(steps[0])
    models: list[list[Attempt]] = [[] for _ in steps[0]]
    for step in steps:
        for place, attempt in enumerate(step):
            if attempt is None:
                continue
            before, last[place] = last[place], attempt
            attempt.model = models[place]
            attempt.model.append(attempt)
            attempt.begins = attempt.unit.stage not in versions
            versions[attempt.unit.stage] = 0
            attempt.released = before.released if before else []
            if attempt.unit.kind == "train" and attempt.begins:
                attempt.released = attempt.released + run.needed.begin(attempt.unit, before is not None)
    versions.clear()
    for step, (_, models_of_step) in zip(steps, spec.steps(), strict=True):
        for attempt, model in zip(step, models_of_step, strict=True):
            if attempt is None or model is None:
                continue
            unit = attempt.unit
            attempt.writes = unit.kind == "train" and attempt in last
            version = versions.get(unit.stage, run.needed.version(unit.stage))
            versions[unit.stage] = attempt.version = version + 1
            model.attempt, model.version = attempt.number, version
            if attempt.writes:
                model.release = attempt.released
                model.state_table = run.states.begin(unit.stage, attempt.server)
