"""madlib_keras_evaluate: loss and metric of a trained model on a packed table.

See docs/contract/fit_evaluate_predict.md, section 2.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from mop_udf.aggregate import Session
from mop_udf.architecture import architecture_shapes
from mop_udf.params import params
from mop_udf.unit_spec import UnitHeader, UnitModel
from pg_mop.api.common.model_table import StoredModel
from pg_mop.api.common.output import as_json
from pg_mop.api.common.session import trainer_of, trainer_options, with_trainer
from pg_mop.api.madlib import applying
from pg_mop.api.madlib.applying import OnSegments, first_row
from pg_mop.api.tables.pack import is_raw, packed_for
from pg_mop.backend import object_table
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.call.spec import Application
from pg_mop.call.unit_specs import UnitSpecs
from pg_mop.packing.packed_table import PackedTable

FUNCTION = "madlib_keras_evaluate"


@with_trainer
def madlib_keras_evaluate(
    db: Database,
    session: Session,
    model_table: str | None,
    test_table: str | None,
    output_table: str | None,
    use_gpus: bool | None,
    mst_key: int | None,
) -> None:
    """Write one row (loss, metric, metrics_type, loss_type) to `output_table`.

    `test_table`: packed; or a table, a view or a query with raw rows, which are packed with the model's transform first.

    Runs on all segments at once; or in the caller's transaction with a trainer of the caller's own session, so that
    temporary and uncommitted tables work.
    """
    if model_table is None or not model_table.strip():
        raise MopError("NULL/empty input table name", detail="It is the model table.")
    raw = is_raw(db, test_table)
    packed = None if raw else PackedTable(db, test_table, "test table")
    model = StoredModel(db, model_table, mst_key)
    output = db.output_table(output_table)
    if packed is not None:
        report = _report(db, session, packed, model, use_gpus, output, output_table)
    else:
        with packed_for(db, session, model, test_table) as name:
            packed = PackedTable(db, name, "test table")
            report = _report(db, session, packed, model, use_gpus, output, output_table)
    db.execute(
        f"CREATE TABLE {output} (loss float8, metric float8, metrics_type text[], loss_type text, all_metrics jsonb)"
    )
    db.identify_by_all(output)
    db.execute(
        f"INSERT INTO {output} VALUES ($1, $2, $3, $4, $5::jsonb)",
        ["float8", "float8", "text[]", "text", "text"],
        [
            report["loss"],
            report["metric"],
            list(params.reported_metrics(model.compile)) or None,
            params.loss_text(model.compile),
            as_json(report["metrics"]),
        ],
    )


def _report(
    db: Database,
    session: Session,
    packed: PackedTable,
    model: StoredModel,
    use_gpus: bool | None,
    output: str,
    output_table: str | None,
) -> Mapping[str, Any]:
    """The loss and the metrics of the model on a packed table. Raises MopError."""
    call = on_segments(db, packed, model, use_gpus)
    first = first_row(db, packed, call)
    if first is None:
        raise MopError(f'test table "{packed.text}" has no rows')
    shapes = packed.shapes_of(first)
    shapes_of_inputs = [shapes[c] for c in packed.inputs]
    if shapes_of_inputs != model.input_shapes:
        raise MopError(
            f'the model takes input of shapes {model.input_shapes}, "{packed.text}" has {shapes_of_inputs}: '
            f"input shape does not match"
        )
    if difference := packed.differs(model):
        raise MopError(
            f'"{packed.text}" was packed otherwise than the rows that the model was trained on: it has {difference}',
            hint="Pack it by validation_preprocessor_dl with the same training table.",
        )
    wanted_outputs = packed.wanted_outputs(shapes)
    if problem := architecture_shapes.output_misfit(model.outputs, wanted_outputs):
        raise MopError(problem)
    if call is not None:
        call.spec.configurations.outputs = wanted_outputs
    if call is not None and (result := call.run(output, output_table)) is not None:
        return next(row for row in result.metrics if row["dataset"] == "training")
    return alone(db, session, packed, model, wanted_outputs, use_gpus)


def on_segments(db: Database, packed: PackedTable, model: StoredModel, use_gpus: bool | None) -> OnSegments | None:
    """The OnSegments that evaluates all segments at once; None if there are not several, or if that is not possible."""
    if not packed.foreign and (
        not packed.keyed
        or db.is_temporary(packed.table)
        or db.value(f"SELECT count(*) < 2 FROM (SELECT DISTINCT __dist_key__ FROM {packed.table}) AS segments")
    ):
        return None
    functions = model.summary.get("object_table")
    # losses and metrics are reported as they are, finite or not
    application = Application(functools.partial(UnitSpecs, finite=False), needs_copies=False)
    return applying.on_segments(
        db,
        packed,
        FUNCTION,
        model,
        use_gpus,
        lambda inputs: application,
        compares=True,
        copies=True,
        compile_params=model.compile_params,
        functions=functions and object_table.check(db, functions),
    )


def alone(
    db: Database,
    session: Session,
    packed: PackedTable,
    model: StoredModel,
    wanted: dict[str, Any],
    use_gpus: bool | None,
) -> dict[str, Any]:
    """{"loss", "metric", "metrics"} by a trainer of the caller's session. Raises MopError."""
    columns = ", ".join(
        f"{quote_identifier(c)} AS c{i}, {quote_identifier(c + '_shape')}::text AS s{i}"
        for i, c in enumerate(packed.columns)
    )
    options = trainer_options(db, use_gpus)
    objects = {**object_table.read(db, model.summary.get("object_table"), model.compile), **model.objects}
    with trainer_of(session, options):
        session.begin(
            UnitHeader(kind="evaluate", dtypes=packed.dtypes(), inputs=len(packed.inputs), outputs=wanted),
            [
                UnitModel(
                    stage=0,
                    model_id=0,
                    iteration=0,
                    architecture=model.architecture_text,
                    compile_params=model.compile_params,
                    plain_weights=True,
                )
            ],
            ((0, piece) for piece in ([model.weights] if model.weights is not None else model.source.pieces(db))),
            [objects],
        )
        # one buffer at a time: it may be large (not by an aggregate: Greenplum runs no other query within it)
        cursor = db.plpy.cursor(f"SELECT buffer_id, {columns} FROM {packed.table} ORDER BY buffer_id")
        while rows := list(cursor.fetch(1)):
            buffer, *values = rows[0].values()
            session.rows(1, buffer, values[::2], values[1::2])
        cursor.close()
        report = session.end()["models"][0]
    if not report["rows"]:
        raise MopError(f'test table "{packed.text}" has no rows')
    return report
