"""One-shot searches: the scores of members by the shared weights of a super-net, and the output table that lists them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from mop_udf import aggregate
from mop_udf.unit_spec import UnitHeader, UnitModel
from pg_mop.api.common.output import insert
from pg_mop.api.common.session import options_of_trainer, trainer_of
from pg_mop.backend import object_table, settings
from pg_mop.backend.quoting import quote_identifier
from pg_mop.call.configurations import is_super_net
from pg_mop.engines.base import Segment
from pg_mop.search.base import Procedure
from pg_mop.search.one_shot import OneShot

AT_ONCE = 25  # members that are evaluated while the rows are read once


def scores(
    db: Any,
    inputs: Any,
    functions: str | None,
    judged_by: tuple[str, str, str],
    outputs: Any,
    procedure: Procedure,
    c: dict[str, Any],
    state: Any,
    segments: Sequence[Segment],
) -> list[list[Any]]:
    """[[model_id, score or None, {member, base, choices}], ...] of the candidates of a super-net: what each reaches with its
    weights, by the search's metric.

    A trainer of the calling session evaluates them. `functions`: the object table; `judged_by`: (metric, dataset, goal);
    `outputs`: see PackedTable.wanted_outputs; `c`: the configuration of the super-net; `state`: the bytes of its state;
    `segments`: of the dataset, by key. Raises MopError.
    """
    assert isinstance(procedure, OneShot)
    metric, dataset, _ = judged_by
    net, ids = procedure.nets[c["model_id"]], procedure.candidates(c["mst_key"]) or []
    db.info(
        f"{len(ids)} members of base model {net.model_id} are scored with the weights of super-net mst_key={c['mst_key']}"
    )
    packed_table = inputs.validation if dataset == "validation" else inputs.source
    columns = [
        sql
        for name in packed_table.columns
        for sql in (quote_identifier(name), f"{quote_identifier(name + '_shape')}::text")
    ]
    objects = object_table.read(db, functions, c["compile"], c["functions"])
    unit = UnitHeader(kind="evaluate", dtypes=packed_table.dtypes(), inputs=len(packed_table.inputs), outputs=outputs)
    model = UnitModel(
        stage=0,
        model_id=c["model_id"],
        iteration=0,
        architecture=c["model_arch"],
        compile_params=c["compile_params"],
        plain_weights=False,
    )
    session = aggregate.session(db.plpy)
    options = options_of_trainer(inputs.options, settings.cores(), None)
    rows: list[list[Any]] = []
    try:
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            members = [procedure.models.by_id[model_id] for model_id in some]
            with trainer_of(session, options):
                models = [dataclasses.replace(model, path=net.path(member.chosen)) for member in members]
                session.begin(unit, models, [(0, state)], [objects] * len(models))
                for number, values in enumerate(inputs.engine.buffers(packed_table, segments, columns)):
                    session.rows(1, number, values[::2], values[1::2])
                reports = session.end()["models"]
            rows += [
                [model_id, _value(report, metric), _told(procedure, model_id)]
                for model_id, report in zip(some, reports)
            ]
    finally:
        session.give_back()
    return rows


def _told(procedure: OneShot, model_id: int) -> dict[str, Any]:
    description = procedure.models.describe(model_id) or {}
    return {name: description[name] for name in ("member", "base", "choices")}


def _value(report: dict[str, Any], metric: str) -> float | None:
    value = report.get("loss") if metric == "loss" else (report.get("metrics") or {}).get(metric)
    return value if value is not None and math.isfinite(value) else None


def write_scores(result: Any, table: str, metric: str, goal: str) -> None:
    """Write the scores of a one-shot search as `table` (quoted), the best first: from its log, which a replay has, too."""
    db = result.db
    db.execute(
        f"CREATE TABLE {table} (rank integer PRIMARY KEY, base_model integer, member numeric, choices jsonb, metric text, "
        "one_shot_score float8, mst_key integer)"
    )
    log = result.catalog.search_log(result.run_id)
    members = [row for kind, *values in log if kind == "members" for row in values[1] if row[1] is not None]
    members.sort(key=lambda row: row[1] if goal == "min" else -row[1])
    retrained = {c["model_id"]: c["mst_key"] for c in result.outcome() if not is_super_net(c)}
    for rank, (model_id, value, description) in enumerate(members, 1):
        insert(
            db,
            table,
            {
                "rank": ("integer", rank),
                "base_model": ("integer", description["base"]),
                "member": ("numeric", Decimal(description["member"])),
                "choices": ("jsonb", json.dumps(description["choices"])),
                "metric": ("text", metric),
                "one_shot_score": ("float8", value),
                "mst_key": ("integer", retrained.get(model_id)),
            },
        )
