"""Applying a trained model on all segments at once: a run that trains nothing and leaves nothing.

Its plan is one stage that has been trained already, whose state is the model's weights. Its units evaluate the model, or
predict with it, on the servers that hold the rows. So sessions, trainers and servers are lost and replaced as in any run,
and mop_runs shows the run while it goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import psycopg2

from pg_mop.api.common.model_table import TableModel
from pg_mop.backend import settings
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError, is_cancel
from pg_mop.call.configurations import Configurations
from pg_mop.call.inputs import Inputs
from pg_mop.call.spec import Application, Output, RunResult, RunSpec
from pg_mop.engines.postgresql import PostgreSQL
from pg_mop.inference.parts import why_alone
from pg_mop.inference.raw_table import RawTable
from pg_mop.packing.packed_table import PackedTable
from pg_mop.run.coordinator import apply

WORTH_BYTES = 128 << 20  # of rows; with fewer, to start several trainers takes longer than they save
NOTHING = "optimizer='SGD()', loss='mse'"  # parameters of a stage in which nothing is trained or measured


@dataclasses.dataclass
class OnSegments:
    """A call that applies a model on all segments at once. `first`: the `shape_columns` of any row, None if there is no
    row."""

    spec: RunSpec
    first: list[Any] | None

    def run(self, output: str, output_name: str | None, gather: Callable[..., None] | None = None) -> RunResult | None:
        """Apply the model. Returns the RunResult; None if it could not be done: then the caller is told, and the session
        does the work itself. Raises errors of `gather`.

        `output`: the output table, quoted; `output_name`: as the caller writes it; `gather(servers, segments)`: writes
        the results that the units have left on their servers.
        """
        db, application = self.spec.inputs.db, self.spec.application
        assert application is not None
        gathering: list[bool] = []

        def gather_results(servers: Any, segments: Any) -> None:
            assert gather is not None
            gathering.append(True)
            gather(servers, segments)

        spec = dataclasses.replace(
            self.spec,
            output=Output(str(output_name), output, lambda result: None),
            application=dataclasses.replace(application, gather=gather_results if gather else None),
        )
        try:
            return apply(spec)
        except (MopError, psycopg2.Error, db.plpy.SPIError) as error:
            if gathering:
                raise
            tell_alone(db, error)
            return None


def on_segments(
    db: Database,
    table: PackedTable | RawTable,
    function: str,
    model: TableModel,
    use_gpus: bool | None,
    application: Callable[[Inputs], Application],
    compares: bool = False,
    copies: bool = False,
    **parameters: Any,
) -> OnSegments | None:
    """The call that applies `model` to a table on all segments at once. None if that is impossible or does not pay; a
    NOTICE tells the caller if an error is the reason.

    `table`: a PackedTable or a RawTable; `application(inputs)`: the spec's Application; `compares`: worker sessions must
    see the rows that the caller sees on this server; `copies`: copies of segments are of use; `parameters`:
    compile_params and functions, as of `_spec`.
    """
    checked = compares and not table.foreign
    if not db.has_segments and (
        why_alone(db, table.table, table.columns, checked) or not (table.foreign or _is_worthwhile(db, table.table))
    ):
        return None
    try:
        spec = _spec(db, table, function, model, use_gpus, application, copies, **parameters)
        return OnSegments(spec, spec.inputs.engine.first_row(table, table.shape_columns()))
    except (MopError, psycopg2.Error, db.plpy.SPIError) as error:
        tell_alone(db, error)
        return None


def _spec(
    db: Database,
    table: PackedTable | RawTable,
    function: str,
    model: TableModel,
    use_gpus: bool | None,
    application: Callable[[Inputs], Application],
    copies: bool,
    compile_params: str = NOTHING,
    functions: str | None = None,
) -> RunSpec:
    """`functions`: the object table of the model's custom functions (quoted), or None. Raises MopError."""
    inputs = Inputs.read(db, table, None, 1, 1, use_gpus, copies=copies)
    inputs.options.update(resume=False, reuse=False)
    configurations = Configurations(inputs)
    configurations.check_parameters(
        [
            {
                "mst_key": 1,
                "model_id": 0,
                "compile_params": compile_params,
                "fit_params": "",
                "model_arch": model.architecture_text,
                "weights_sql": model.source.sql,
                "weights_md5": model.source.md5(db),
            }
        ],
        functions,
    )
    return RunSpec(
        function,
        inputs,
        configurations,
        Output("", "", lambda result: None),
        application=application(inputs),
        all_failed=lambda failed: failed[1].partition(": ")[2],
    )


def _is_worthwhile(db: Database, table: Table) -> bool:
    """True if several sessions take less time than the caller's own to go through a Table on this server: where the
    table is large, or where the pool has several trainers of the caller."""
    return _idle_trainers(db) > 1 or db.value(
        "SELECT sum(pg_total_relation_size(relid)) >= $2 FROM pg_partition_tree($1::oid::regclass)",
        ["oid", "bigint"],
        [table.oid, WORTH_BYTES],
    )


def _idle_trainers(db: Database) -> int:
    """How many trainers in the pool are idle for the caller's role in this database."""
    return db.value(
        f"SELECT count(*) FROM {db.extension}.mop_trainers WHERE state = 'idle' AND role = current_user "
        "AND database = current_database() AND framework = $1",
        ["text"],
        [settings.load(db, check_names=False)["keras_backend"]],
    )


def first_row(db: Database, table: PackedTable | RawTable, call: OnSegments | None) -> list[Any] | None:
    """The `shape_columns` of any row of a PackedTable or a RawTable, as the OnSegments knows it or, without one, as the
    caller's own session reads it; None if the table is empty."""
    return PostgreSQL(db).first_row(table, table.shape_columns()) if call is None else call.first


def tell_alone(db: Database, error: Any) -> None:
    """Tell the caller why the session works alone. Raises a cancel."""
    if is_cancel(error):  # a cancel, in PostgreSQL's own words
        raise error
    db.notice(f"this session works alone, not on all segments at once: {str(error).strip()}")
