"""madlib_keras_fit_multiple_model: train every configuration of a selection table, write the three output tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from mop_udf.params import params
from pg_mop.api.common.output import PreviousModels, insert, model_tables, tell_of_large, write_models_summary
from pg_mop.api.common.winner import winner
from pg_mop.api.madlib.class_weights import ClassWeights
from pg_mop.api.madlib.configurations import architecture_table
from pg_mop.api.search.folds import FoldsOfRun, check_folds, fold_trials, without_folds
from pg_mop.backend import object_table, weights
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function, sql_procedure
from pg_mop.backend.trusted import check_summary
from pg_mop.call.configurations import Configurations, is_super_net
from pg_mop.call.earlier import Earlier
from pg_mop.call.inputs import Inputs
from pg_mop.call.spec import Output, RunResult, RunSpec
from pg_mop.plan.configuration import Configuration
from pg_mop.run.coordinator import execute
from pg_mop.run.messages import warn_of_failures
from pg_mop.search.space import ParameterSet

FUNCTION = "madlib_keras_fit_multiple_model"
ARGUMENTS = (
    "source_table",
    "model_output_table",
    "model_selection_table",
    "num_iterations",
    "use_gpus",
    "validation_table",
    "metrics_compute_frequency",
    "warm_start",
    "name",
    "description",
    "use_caching",
    "folds",
)


@sql_function
def madlib_keras_fit_multiple_model(db: Database, *values: Any) -> None:
    """Train the configurations of a selection table (docs/contract/fit_multiple.md). Arguments as in SQL; returns nothing.

    `use_caching` changes nothing: rows are always kept in the trainers while they fit pg_mop.cache_mb.
    """
    train(db, dict(zip(ARGUMENTS, values)))


@sql_procedure
def mop_fit_multiple_model(db: Database, *values: Any) -> None:
    """The same as a procedure, which commits between waits: nothing of it holds back VACUUM while units run."""
    train(db, dict(zip(ARGUMENTS, values)))


def train(db: Database, arguments: dict[str, Any], earlier: Earlier | None = None) -> None:
    """Train with the arguments of madlib_keras_fit_multiple_model (a dict); `earlier`: the run that mop_resume goes on
    with, or mop_replay repeats (:class:`~pg_mop.call.earlier.Earlier`)."""
    a = without_folds(arguments)
    folds = a.get("folds")
    if folds is not None:
        check_folds(db, folds, a)
    inputs = Inputs.of_arguments(db, a, earlier)
    previous = None
    if a["warm_start"]:
        previous = PreviousModels(db, a["model_output_table"], inputs.options["lock_timeout"])
        output = previous.names
    else:
        output = model_tables(db, a["model_output_table"], "_info", "_summary")
    selection = (
        SelectionTable.of_run(db, earlier)
        if earlier is not None
        else SelectionTable.read(db, a["model_selection_table"])
    )
    configurations = Configurations(
        inputs,
        ClassWeights(inputs.source, inputs.engine),
        make=selection.make,
        unusable=selection.unusable,
        folds=folds,
    )
    if earlier is None:
        rows = selection.rows(previous)
        if folds is not None:
            rows += fold_trials(rows, inputs, folds)
        configurations.check(rows, selection.functions)
    else:
        configurations.check([{**c, "error": None} for c in earlier.configurations], selection.functions)
    model, info, summary = output

    def write(result: RunResult) -> None:
        write_models(result, model, info, previous)
        result.winner = winner(db, info)
        write_models_summary(
            result,
            summary,
            a,
            [
                ("model_selection_table", "text", a["model_selection_table"]),
                ("object_table", "text", selection.object_table),
                ("num_iterations", "integer", a["num_iterations"]),
                ("metrics_compute_frequency", "integer", inputs.frequency),
                ("warm_start", "boolean", bool(a["warm_start"])),
                *([("folds", "integer", folds)] if folds is not None else []),
            ],
            [
                ("metrics_iters", "integer[]", inputs.metrics_iterations),
                ("best_mst_key", "integer", result.winner and result.winner.mst_key),
            ],
        )

    result = execute(
        RunSpec(
            FUNCTION,
            inputs,
            configurations,
            Output(a["model_output_table"], model, write, previous),
            a,
            {"model_arch_table": selection.arch_table_name, "object_table": selection.object_table},
            listed_iterations=inputs.metrics_iterations,
        )
    )
    failed = configurations.failures(result.failed)
    warn_of_failures(db, failed, len(configurations.own), "configurations", info)
    if result.winner is not None:
        result.winner.tell(db, info)


class SelectionTable:
    """A model selection table: which configurations there are, and the tables that it refers to.

    `table`, `arch_table`: where the configurations are read from; a run that goes on has its own.
    """

    table: Table
    arch_table: str | None

    def __init__(self, db: Database, text: str, arch_table_name: str | None, object_table_name: str | None) -> None:
        self.db, self.text, self.arch_table_name, self.object_table = db, text, arch_table_name, object_table_name
        self.functions = None if object_table_name is None else object_table.check(db, object_table_name)

    @classmethod
    def of_run(cls, db: Database, earlier: Earlier) -> SelectionTable:
        """The selection table of an earlier run, whose configurations are taken as they were then."""
        tables = earlier.tables
        text = earlier.arguments["model_selection_table"]
        return cls(db, text, tables.get("model_arch_table"), tables.get("object_table"))

    @classmethod
    def read(cls, db: Database, text: str | None) -> SelectionTable:
        """The selection table that the caller calls `text`. Raises MopError."""
        hint = f"SELECT {db.extension}.generate_model_configs(...) (or load_model_selection_table) makes it."
        table = db.input_table(text, "model selection table", hint=hint)
        text = str(text)
        what = "summary of the model selection table"
        summary = db.input_table(db.suffixed(text, "_summary"), what, hint=hint, rows=False)
        check_summary(db, table, summary)
        if db.one(f"SELECT 1 AS x FROM {summary} LIMIT 1") is None:
            raise MopError(f'{what} "{db.suffixed(text, "_summary")}" is empty', hint=hint)
        for relation, columns in (
            (table, ("mst_key", "model_id", "compile_params", "fit_params")),
            (summary, ("model_arch_table", "object_table")),
        ):
            absent_columns = [c for c in columns if c not in db.columns(relation)]
            if absent_columns:
                raise MopError(f'{relation} has no column "{absent_columns[0]}"', hint=hint)
            db.check_built_in(relation, (*columns, "model_arch_schema"))
        arch_table_name, arch_table = architecture_table(db, summary)
        selection = cls(db, text, arch_table_name, db.value(f"SELECT object_table FROM {summary}"))
        selection.table, selection.arch_table = table, arch_table
        return selection

    def rows(self, previous: PreviousModels | None) -> list[Configuration]:
        """The configurations of the table. `previous`: of a warm start, or None. Raises MopError."""
        db, table, text = self.db, self.table, self.text
        arch = db.input_table(
            self.arch_table, "model architecture table", hint=f"SELECT {db.extension}.load_keras_model(...) makes it."
        )
        db.check_built_in(arch, ("model_id", "model_arch", "model_weights"))
        for column in ("mst_key", "model_id"):
            kind = db.columns(table)[column]
            if kind not in ("smallint", "integer", "bigint") or db.value(
                f"SELECT bool_or({column} NOT BETWEEN -2147483648 AND 2147483647) FROM {table}"
            ):
                raise MopError(
                    f'column "{column}" of model selection table "{text}" must hold integers',
                    detail=f"It is of type {kind}.",
                )
        configurations = db.execute(
            f"SELECT s.mst_key::integer AS mst_key, s.model_id::integer AS model_id, "
            f"s.compile_params::text AS compile_params, s.fit_params::text AS fit_params, "
            f"a.model_arch::text AS model_arch, "
            f"{weights.digest_sql('a.model_weights')}, a.model_id IS NOT NULL AS has_model "
            f"FROM {table} s LEFT JOIN {arch} a ON a.model_id = s.model_id ORDER BY s.mst_key"
        )
        keys = [c["mst_key"] for c in configurations]
        if None in keys or len(set(keys)) < len(keys):
            raise MopError(f'model selection table "{text}" has mst_keys that are NULL or not unique')
        for c in configurations:
            c["problem"] = self._start(c, arch, previous)
        return cast(list[Configuration], configurations)

    def make(self, mst_key: int, added: ParameterSet) -> Configuration:
        """A configuration that somebody adds while the run goes on."""
        model_id, compile_params, fit_params = added
        arch = self.db.input_table(self.arch_table_name, "model architecture table")
        self.db.check_built_in(arch, ("model_id", "model_arch", "model_weights"))
        row = self.db.one(
            f"SELECT model_arch::text AS model_arch, {weights.digest_sql('model_weights')} "
            f"FROM {arch} WHERE model_id = $1",
            ["integer"],
            [model_id],
        ) or {"model_arch": None, "weights_md5": None}
        c = {
            **row,
            "mst_key": mst_key,
            "model_id": model_id,
            "compile_params": compile_params,
            "fit_params": fit_params,
            "has_model": row["model_arch"] is not None,
        }
        c["problem"] = self._start(c, arch, None)
        c["model_arch"] = c["model_arch"] or "{}"  # the catalog has an architecture for each configuration
        return cast(Configuration, c)

    def unusable(self, count: int) -> str:
        """Begins the error for `count` configurations that cannot be trained."""
        return (
            f'model selection table "{self.text}" has {count} configuration{"s" if count > 1 else ""} '
            f"that cannot be trained"
        )

    def _start(self, c: dict[str, Any], arch: Table, previous: PreviousModels | None) -> str | None:
        """Give a configuration its initial weights (docs/contract/fit_multiple.md, section 2.1).

        Returns the reason if it cannot start, else None."""
        reference = c.pop("reference", None)
        if not c["has_model"]:
            return f'model_id {c["model_id"]} is not in architecture table "{self.arch_table_name}"'
        if previous is not None:
            return previous.fill(c)
        where, what = f"model_id = {int(c['model_id'])}", f'model_id {c["model_id"]} of "{self.arch_table_name}"'
        c["reference"] = reference
        weights.complete(self.db, arch, where, c, what)
        return None


def write_models(result: RunResult, model: str, info: str, previous: PreviousModels | None) -> None:
    """Write the model table and the info table (docs/contract/fit_multiple.md, sections 5.1 and 5.2).

    `previous`: of a warm start, or None.
    """
    db = result.db
    db.execute(
        f"CREATE TABLE {model} (mst_key integer PRIMARY KEY, model_weights bytea, model_arch json, "
        f"__dist_key__ integer)"
    )
    db.execute(f"ALTER TABLE {model} ALTER COLUMN model_weights SET STORAGE EXTERNAL")
    db.execute(f"""CREATE TABLE {info} (mst_key integer PRIMARY KEY, model_id integer, compile_params text,
        fit_params text, model_type text, model_size float8, metrics_elapsed_time float8[], metrics_type text[],
        loss_type text, training_metrics_final float8, training_loss_final float8, training_metrics float8[],
        training_loss float8[], validation_metrics_final float8, validation_loss_final float8,
        validation_metrics float8[], validation_loss float8[], error text, all_metrics jsonb, iteration integer)""")
    most, values = result.spec.inputs.options["weights_value_mb"], []
    outcome, folded = [c for c in result.outcome() if c["error"] or not is_super_net(c)], FoldsOfRun.of(result)
    if folded is not None:
        outcome = folded.own(outcome)
        folded.add_columns(info)
    models = weights_of(result, [c for c in outcome if _is_trained(c)])
    for c in outcome:
        size, key = None, c["mst_key"]
        if _is_trained(c):
            value, size = weights.store(db, model, next(models), most, len(c["model_arch"].encode()))
            values.append(value)
            db.execute(
                f"INSERT INTO {model} VALUES ($1, $2, $3::json, $4)",
                ["integer", "bytea", "text", "integer"],
                [key, value, c["model_arch"], c["segment"]],
            )
        elif previous is not None:
            previous.keep(key, model)
        columns = info_of(result, c, size)
        if folded is not None:
            columns.update(folded.columns(key, c["iteration"] if size else None))
        insert(db, info, columns)
    tell_of_large(db, model, values)


def _is_trained(outcome: Mapping[str, Any]) -> bool:
    return outcome["error"] is None and outcome["stage"] is not None


def weights_of(result: RunResult, outcomes: list[dict[str, Any]]) -> Iterator[Any]:
    """The weights (lists of arrays) of configurations' outcomes (dicts of Catalog.outcome), one after the other."""
    from pg_mop.backend.arrays import state

    for its in result.states(outcomes):
        yield state.output_weights(its)


def info_of(result: RunResult, c: Mapping[str, Any], size: int | None) -> dict[str, tuple[str, Any]]:
    """A row of the info table: {column: (SQL type, value)}; `size`: bytes of the weights, None: there are none."""
    key = c["mst_key"]
    compiled = result.configurations[key].get("compile")  # None: the parameters could not be read
    return {
        "mst_key": ("integer", key),
        "model_id": ("integer", c["model_id"]),
        "compile_params": ("text", c["compile_params"]),
        "fit_params": ("text", c["fit_params"]),
        "model_type": ("text", "madlib_keras"),
        "model_size": ("float8", size and size / 1024),
        "metrics_type": ("text[]", (compiled and list(params.reported_metrics(compiled))) or None),
        "loss_type": ("text", compiled and params.loss_text(compiled)),
        "error": ("text", c["error"]),
        "iteration": ("integer", c["iteration"] if size is not None else None),
        **(result.metric_columns(key, 0.0, c["iteration"]) if size is not None else {}),
    }  # 0 as in MADlib
