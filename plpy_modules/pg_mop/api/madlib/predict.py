"""madlib_keras_predict and madlib_keras_predict_byom: predictions for raw rows.

See docs/contract/fit_evaluate_predict.md, sections 3 and 4.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mop_udf.aggregate import Session
from mop_udf.unit_spec import ModelSpec, UnitSpec
from pg_mop.api.common.model_table import OwnModel, StoredModel, TableModel
from pg_mop.api.common.session import options_of_trainer, trainer_of, trainer_options, with_trainer
from pg_mop.api.madlib import applying
from pg_mop.api.madlib.applying import OnSegments, first_row, tell_alone
from pg_mop.backend import settings
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.call.inputs import Inputs
from pg_mop.call.spec import Application
from pg_mop.call.unit_specs import UnitSpecs
from pg_mop.engines import greenplum
from pg_mop.inference import at_segments
from pg_mop.inference.prediction import Choice, Predictor, Reader, Rows, check_shapes, predictions
from pg_mop.inference.raw_table import RawTable
from pg_mop.schedule.unit import Unit
from pg_mop.schedule.unit_batches import units_of


@with_trainer
def madlib_keras_predict(
    db: Database,
    session: Session,
    model_table: str | None,
    test_table: str | None,
    id_col: str | None,
    independent_varname: str | None,
    output_table: str | None,
    pred_type: Any,
    use_gpus: bool | None,
    mst_key: int | None,
) -> None:
    """Write the predictions of a trained model for the rows of `test_table` to `output_table`."""
    if model_table is None or not model_table.strip():
        raise MopError("NULL/empty input table name", detail="It is the model table.")
    choice = Choice(pred_type)
    test = RawTable(db, test_table, id_col, independent_varname)
    model = StoredModel(db, model_table, mst_key)
    _write(db, session, "madlib_keras_predict", model, test, output_table, choice, use_gpus)


@with_trainer
def madlib_keras_predict_byom(
    db: Database,
    session: Session,
    model_arch_table: str | None,
    model_id: int | None,
    test_table: str | None,
    id_col: str | None,
    independent_varname: str | None,
    output_table: str | None,
    pred_type: Any,
    use_gpus: bool | None,
    class_values: list[Any] | None,
    normalizing_const: float | None,
    dependent_count: int | None,
) -> None:
    """Write the predictions of the caller's own model, from an architecture table."""
    choice = Choice(pred_type)
    model = OwnModel(db, model_arch_table, model_id, class_values, normalizing_const, dependent_count)
    test = RawTable(db, test_table, id_col, independent_varname)
    _write(db, session, "madlib_keras_predict_byom", model, test, output_table, choice, use_gpus)


def _write(
    db: Database,
    session: Session,
    function: str,
    model: TableModel,
    test: RawTable,
    output_table: str | None,
    choice: Choice,
    use_gpus: bool | None,
) -> None:
    """Predict on all partitions at once, on Greenplum on all segments, or in the caller's transaction with the trainer of
    the caller's session. Rows stream through a trainer in chunks."""
    if model.regression:
        choice.all_in_order()
    if len(test.inputs) != len(model.input_shapes):
        raise MopError(f"the model takes {len(model.input_shapes)} inputs, not {len(test.inputs)}")
    model.check_names(test.inputs)
    table = db.output_table(output_table)
    # other sessions and segments get the architecture and the weights, but no code
    alone = bool(model.objects)
    call = on_partitions(db, test, function, model, use_gpus, choice) if test.in_parts and not alone else None
    first = first_row(db, test, call)
    if first is None:
        raise MopError(f'test table "{test.text}" is empty')
    check_shapes(first, test.inputs, model.input_shapes)
    output = PredictionTable(db, table, test, choice)
    if call is not None:
        is_written = call.run(table, output_table, output.gather) is not None
    else:
        is_written = db.has_segments and not alone and _on_segments(db, test, model, choice, output, use_gpus)
    if not is_written:
        with trainer_of(session, trainer_options(db, use_gpus)) as trainer:
            model.lend(trainer, db)
            reader = Reader(db, test.table, test.identifier, test.inputs, model)
            for rows in predictions(Predictor(trainer, model, choice), reader):
                output.add(rows)
    output.tell()


def _on_segments(
    db: Database, test: RawTable, model: TableModel, choice: Choice, output: PredictionTable, use_gpus: bool | None
) -> bool:
    """Predict on Greenplum's segments by one statement of the caller's session. False, with a NOTICE, if that is not
    possible."""
    engine, options = greenplum.Greenplum(db, []), settings.load(db)
    if use_gpus:
        engine.check_gpus(options["keras_backend"])
    workers = greenplum.keys(db).values()
    cores = engine.info(options["keras_backend"])["cores"]  # of all segments together
    for worker in workers:
        db.execute(f"SELECT {db.extension}.mop_share_host({int(worker)})")
    problem = at_segments.insert(
        db,
        test,
        model,
        choice,
        output,
        workers,
        options_of_trainer(options, max(1, cores // len(workers)), 0 if use_gpus else None),
    )
    if problem is not None:
        tell_alone(db, problem)
    return problem is None


class PredictionTable:
    """The table with the predictions; it is created immediately."""

    def __init__(self, db: Database, table: str, test: RawTable, choice: Choice) -> None:
        """`table`: its name, quoted."""
        self.db, self.table, self.unknown = db, table, 0
        db.execute(
            f"CREATE TABLE {table} ({quote_identifier(test.identifier)} {test.id_type}, class_name text, "
            f"class_value text, prob float8{', rank integer' if choice.rank else ''})"
        )
        db.identify_by_all(table)
        names = ["class_name", "class_value", "prob", *(["rank"] if choice.rank else [])]
        self.insert = f"INSERT INTO {table} SELECT (p.id)::{test.id_type}, {', '.join(f'p.{n}' for n in names)} FROM "
        self.insert_arrays = None

    def add(self, rows: Rows) -> None:
        """Write a chunk of predictions, as columns."""
        if self.insert_arrays is None:
            self.insert_arrays = self.db.plpy.prepare(
                self.insert + "unnest($1, $2, $3, $4, $5) AS p(id, class_name, class_value, prob, rank)",
                ["text[]", "text[]", "text[]", "float8[]", "integer[]"],
            )
        self.unknown += sum(probability is None for probability in rows[3])
        self.db.plpy.execute(self.insert_arrays, rows)

    def gather(self, servers: Mapping[str | None, Any], parts: Mapping[Any, Any]) -> None:
        """Write the predictions that worker sessions have left on their servers: {name: Server}, {key: part}."""
        for part in parts.values():
            server = servers[part.server]
            for rows in server.catalog.predictions(server.run_id, part.key):
                self.add(json.loads(rows))

    def take(self, source: str, types: Sequence[str], values: Sequence[Any]) -> None:
        """Write the predictions that SQL returns, `AS p(id, class_name, class_value, prob, rank)`."""
        self.db.execute(self.insert + source, types, values)
        self.unknown = self.db.value(f"SELECT count(*) FROM {self.table} WHERE prob IS NULL")

    def tell(self) -> None:
        """Warn if a row has no prediction."""
        if self.unknown:
            self.db.warning(
                f"{self.unknown} prediction{'s are' if self.unknown > 1 else ' is'} NULL",
                detail="An input is NaN or infinite there, or an output of the model.",
                hint=f"SELECT * FROM {self.table} WHERE prob IS NULL;",
            )


def on_partitions(
    db: Database, test: RawTable, function: str, model: TableModel, use_gpus: bool | None, choice: Choice
) -> OnSegments | None:
    """The OnSegments that predicts for all leaf partitions at once; None if that is not possible."""
    request = {
        "identifier": test.identifier,
        "inputs": test.inputs,
        "model": model.to_json(),
        "pred_type": choice.pred_type,
    }

    def application(inputs: Inputs) -> Application:
        return Application(functools.partial(PredictionSpecs, request=request), parts=lambda: inputs.engine.parts(test))

    return applying.on_segments(db, test, function, model, use_gpus, application)


@dataclass
class PredictionSpecs(UnitSpecs):
    """The unit specs of partitions to predict for. `request`: the part that all partitions have in common."""

    request: Mapping[str, Any] = field(default_factory=dict)

    def describe(
        self,
        steps: Sequence[Sequence[Unit | None]],
        worker: int,
        threads: int | None = None,
        parts: int | None = None,
        run_id: int = 0,
        fencing_token: int = 0,
    ) -> UnitSpec:
        (unit,) = units_of(steps)
        part = self.segments[unit.dataset, unit.segment]
        return UnitSpec(
            run_id=run_id,
            fencing_token=fencing_token,
            kind=unit.kind,
            dataset=unit.dataset,
            segment=unit.segment,
            options=self.trainer(worker, threads=threads, parts=parts),
            table=self.packed[unit.dataset].text,
            fingerprint=part.fingerprint,
            fingerprint_sql=part.fingerprint_sql,
            models=[ModelSpec(stage=unit.stage, iteration=unit.iteration)],
            predict={**self.request, "table": part.table},
        )
