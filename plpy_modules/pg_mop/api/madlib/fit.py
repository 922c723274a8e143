"""madlib_keras_fit: one model, trained on all segments at once and averaged, or hopping over them in sequence."""

from __future__ import annotations

from typing import Any, cast

from mop_udf.params import params
from pg_mop import __version__
from pg_mop.api.common.output import PreviousModel, digests_column, insert, model_tables, tell_of_large, write_summary
from pg_mop.api.madlib.class_weights import ClassWeights
from pg_mop.backend import object_table, weights
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.call.configurations import Configurations
from pg_mop.call.earlier import Earlier
from pg_mop.call.inputs import Inputs
from pg_mop.call.spec import Output, RunResult, RunSpec
from pg_mop.columns import madlib
from pg_mop.plan.configuration import Configuration
from pg_mop.run.coordinator import execute

FUNCTION = "madlib_keras_fit"


@sql_function
def madlib_keras_fit(
    db: Database,
    source_table: str | None,
    model: str | None,
    model_arch_table: str | None,
    model_id: int | None,
    compile_params: str | None,
    fit_params: str | None,
    num_iterations: int | None,
    use_gpus: bool | None,
    validation_table: str | None,
    metrics_compute_frequency: int | None,
    warm_start: bool | None,
    name: str | None,
    description: str | None,
    object_table_name: str | None,
) -> None:
    """Train one model (docs/contract/fit_evaluate_predict.md, section 1). Arguments as in SQL; returns nothing.

    By the setting pg_mop.fit_strategy: `averaging`, data-parallel with the average of the segments' weights after every
    iteration; or `sequential`, what fit_multiple_model does with one configuration.
    """
    train(
        db,
        {
            "source_table": source_table,
            "model": model,
            "model_arch_table": model_arch_table,
            "model_id": model_id,
            "compile_params": compile_params,
            "fit_params": fit_params,
            "num_iterations": num_iterations,
            "use_gpus": use_gpus,
            "validation_table": validation_table,
            "metrics_compute_frequency": metrics_compute_frequency,
            "warm_start": warm_start,
            "name": name,
            "description": description,
            "object_table": object_table_name,
        },
    )


def train(db: Database, arguments: dict[str, Any], earlier: Earlier | None = None) -> None:
    """Train with the arguments of madlib_keras_fit (a dict); `earlier`: the run that mop_resume goes on with, or
    mop_replay repeats (:class:`~pg_mop.call.earlier.Earlier`)."""
    a = arguments
    inputs = Inputs.of_arguments(db, a, earlier)
    averaging, previous = inputs.options["fit_strategy"] == "averaging", None
    if a["warm_start"]:
        previous = PreviousModel(db, a["model"], inputs.options["lock_timeout"])
        output = previous.names
    else:
        output = model_tables(db, a["model"], "_summary")
    functions = None if a["object_table"] is None else object_table.check(db, a["object_table"])
    configurations = Configurations(
        inputs,
        ClassWeights(inputs.source, inputs.engine),
        averaging,
        unusable=lambda count: "the model cannot be trained",
    )
    if earlier is None:
        c: dict[str, Any] = read_model(db, a["model_arch_table"], a["model_id"], previous)
        c.update(compile_params=a["compile_params"] or "", fit_params=a["fit_params"])
    else:
        c = {**earlier.configurations[0], "mst_key": 1, "error": None}
    configurations.check([cast(Configuration, c)], functions)
    table, summary = output

    def write(result: RunResult) -> None:
        db.execute(f"CREATE TABLE {table} (model_weights bytea, model_arch json)")
        db.identify_by_all(table)
        db.execute(f"ALTER TABLE {table} ALTER COLUMN model_weights SET STORAGE EXTERNAL")
        most, arch = inputs.options["weights_value_mb"], c["model_arch"]
        value, size = weights.store(db, table, weights_of(result), most, len(arch.encode()))
        insert(db, table, {"model_weights": ("bytea", value), "model_arch": ("json", arch)})
        tell_of_large(db, table, [value])
        metrics = {
            "metrics_elapsed_time": None,
            "all_metrics": None,
            **{
                f"{dataset}_{column}": None
                for dataset in ("training", "validation")
                for column in ("metrics_final", "loss_final", "metrics", "loss")
            },
        }
        metrics.update({k: v for k, (_, v) in result.metric_columns(1, None, result.kept.get(1)).items()})
        source = inputs.source
        values = [
            ("source_table", "text", a["source_table"]),
            ("model", "text", a["model"]),
            *madlib.names(source.transform),
            ("model_arch_table", "text", a["model_arch_table"]),
            ("model_id", "integer", a["model_id"]),
            ("compile_params", "text", a["compile_params"]),
            ("fit_params", "text", a["fit_params"] or ""),
            ("num_iterations", "integer", a["num_iterations"]),
            ("validation_table", "text", a["validation_table"]),
            ("object_table", "text", functions and db.bare(functions)),
            ("metrics_compute_frequency", "integer", inputs.frequency),
            ("name", "text", a["name"]),
            ("description", "text", a["description"]),
            ("model_type", "text", "madlib_keras"),
            ("model_size", "double precision", size / 1024),
            ("start_training_time", "timestamp", result.started),
            ("end_training_time", "timestamp", db.value("SELECT clock_timestamp()::timestamp::text")),
            ("metrics_elapsed_time", "double precision[]", metrics["metrics_elapsed_time"]),
            ("madlib_version", "text", f"pg_mop {__version__}"),
            madlib.num_classes(result.outputs["widths"]),
            *madlib.of_model(source.transform),
            ("metrics_type", "text[]", list(params.reported_metrics(c["compile"])) or None),
            ("loss_type", "text", params.loss_text(c["compile"])),
        ]
        for dataset in ("training", "validation"):
            values += [
                (f"{dataset}_metrics_final", "double precision", metrics[f"{dataset}_metrics_final"]),
                (f"{dataset}_loss_final", "double precision", metrics[f"{dataset}_loss_final"]),
                (f"{dataset}_metrics", "double precision[]", metrics[f"{dataset}_metrics"]),
                (f"{dataset}_loss", "double precision[]", metrics[f"{dataset}_loss"]),
            ]
        values.append(("metrics_iters", "integer[]", inputs.metrics_iterations))
        after = [("all_metrics", "jsonb", metrics["all_metrics"]), *digests_column(result)]
        write_summary(db, source, summary, values, after)

    execute(
        RunSpec(
            FUNCTION,
            inputs,
            configurations,
            Output(a["model"], table, write, previous),
            a,
            averaging=averaging,
            listed_iterations=inputs.metrics_iterations,
            all_failed=lambda failed: "training failed",
            label=lambda mst_key: "",
        )
    )


def read_model(
    db: Database, model_arch_table: str | None, model_id: int | None, previous: PreviousModel | None
) -> dict[str, Any]:
    """The configuration of an architecture table's model, without parameter strings. `previous`: of a warm start, or
    None. Raises MopError."""
    arch = db.input_table(
        model_arch_table, "model architecture table", hint=f"SELECT {db.extension}.load_keras_model(...) makes it."
    )
    db.check_built_in(arch, ("model_id", "model_arch", "model_weights"))
    if model_id is None:
        raise MopError("invalid model architecture ID: it is NULL", hint=f"SELECT model_id, name FROM {arch};")
    row = db.one(
        f"SELECT model_arch::text AS model_arch, {weights.digest_sql('model_weights')} FROM {arch} WHERE model_id = $1",
        ["integer"],
        [model_id],
    )
    if row is None:
        raise MopError(
            f'invalid model architecture ID: no model arch found for model_id {model_id} in "{model_arch_table}"',
            hint=f"SELECT model_id, name FROM {arch};",
        )
    c = {**row, "mst_key": 1, "model_id": model_id}
    if previous is not None:
        previous.fill(c)
    else:
        where, what = f"model_id = {int(model_id)}", f'model_id {model_id} of "{model_arch_table}"'
        weights.complete(db, arch, where, c, what)
    return c


def weights_of(result: RunResult) -> Any:
    """The trained weights: of averaging, the average of the replicas, weighted by their segments' rows."""
    from pg_mop.backend.arrays import state

    states = (state.output_weights(one) for one in result.states(result.outcome()))
    return state.average(states, result.replicas) if result.spec.averaging else next(states)
