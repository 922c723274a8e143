"""madlib_keras_fit: one model, trained on all segments at once and averaged, or hopping over them in sequence."""

from pg_mop import __version__
from pg_mop.api.output import PreviousModel, insert, tell_of_large, write_summary
from pg_mop.api.training import Training
from pg_mop.backend import object_table
from pg_mop.backend.database import MopError, sql_function

FUNCTION = "madlib_keras_fit"


@sql_function
def madlib_keras_fit(
    db,
    source_table,
    model,
    model_arch_table,
    model_id,
    compile_params,
    fit_params,
    num_iterations,
    use_gpus,
    validation_table,
    metrics_compute_frequency,
    warm_start,
    name,
    description,
    object_table_name,
):
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


def train(db, arguments, earlier=None):
    """What madlib_keras_fit does with its arguments (a dict), or mop_resume and mop_replay with an
    :class:`~pg_mop.api.earlier.Earlier` run's."""
    a = arguments
    training = Single(
        db,
        FUNCTION,
        a["source_table"],
        a["validation_table"],
        a["num_iterations"],
        a["metrics_compute_frequency"],
        a["use_gpus"],
        earlier,
    )
    training.averaging = training.options["fit_strategy"] == "averaging"
    previous = None
    if a["warm_start"]:
        previous = PreviousModel(db, a["model"], training.options["lock_timeout"])
        output = previous.names
    else:
        output = db.output_table(a["model"], "_summary")
    functions = None if a["object_table"] is None else object_table.check(db, a["object_table"])
    if earlier is None:
        training.read_architecture(
            a["model_arch_table"], a["model_id"], a["compile_params"], a["fit_params"], previous, functions
        )
    else:
        training.check([{**earlier.configurations[0], "mst_key": 1, "error": None}], functions)
    training.reserve(output[0])
    training.run(a["model"], a, {})
    table, summary = output
    with training.output(previous):
        from pg_mop.backend.arrays import state

        weights = state.weights_to_bytes(training.weights())
        c = training.configurations[0]
        db.execute(f"CREATE TABLE {table} (model_weights bytea, model_arch json)")
        db.identify_by_all(table)
        db.execute(f"ALTER TABLE {table} ALTER COLUMN model_weights SET STORAGE EXTERNAL")
        insert(db, table, {"model_weights": ("bytea", weights), "model_arch": ("json", c["model_arch"])})
        tell_of_large(db, table, [len(weights)])
        metrics = {
            "metrics_elapsed_time": None,
            "all_metrics": None,
            **{
                f"{dataset}_{what}": None
                for dataset in ("training", "validation")
                for what in ("metrics_final", "loss_final", "metrics", "loss")
            },
        }
        metrics.update({k: v for k, (_, v) in training.metric_columns(1, None, training.kept.get(1)).items()})
        source = training.source
        values = [
            ("source_table", "text", a["source_table"]),
            ("model", "text", a["model"]),
            ("dependent_varname", "text[]", source.outputs),
            ("independent_varname", "text[]", source.inputs),
            ("model_arch_table", "text", a["model_arch_table"]),
            ("model_id", "integer", a["model_id"]),
            ("compile_params", "text", a["compile_params"]),
            ("fit_params", "text", a["fit_params"] or ""),
            ("num_iterations", "integer", a["num_iterations"]),
            ("validation_table", "text", a["validation_table"]),
            ("object_table", "text", functions and db.bare(functions)),
            ("metrics_compute_frequency", "integer", training.frequency),
            ("name", "text", a["name"]),
            ("description", "text", a["description"]),
            ("model_type", "text", "madlib_keras"),
            ("model_size", "double precision", len(weights) / 1024),
            ("start_training_time", "timestamp", training.started),
            ("end_training_time", "timestamp", db.value("SELECT clock_timestamp()::timestamp::text")),
            ("metrics_elapsed_time", "double precision[]", metrics["metrics_elapsed_time"]),
            ("madlib_version", "text", f"pg_mop {__version__}"),
            ("num_classes", "integer[]", training.outputs["widths"]),
            ("dependent_vartype", "text[]", source.summary.get("dependent_vartype")),
            ("normalizing_const", "real", source.summary.get("normalizing_const")),
            ("metrics_type", "text[]", c["compile"]["metrics"] or None),
            ("loss_type", "text", c["compile"]["loss"]),
        ]
        for dataset in ("training", "validation"):
            values += [
                (f"{dataset}_metrics_final", "double precision", metrics[f"{dataset}_metrics_final"]),
                (f"{dataset}_loss_final", "double precision", metrics[f"{dataset}_loss_final"]),
                (f"{dataset}_metrics", "double precision[]", metrics[f"{dataset}_metrics"]),
                (f"{dataset}_loss", "double precision[]", metrics[f"{dataset}_loss"]),
            ]
        values.append(("metrics_iters", "integer[]", training.metrics_iterations))
        write_summary(db, source, summary, values, [("all_metrics", "jsonb", metrics["all_metrics"])])


class Single(Training):
    """Training of one architecture with one pair of parameter strings: the configuration of mst_key 1."""

    def read_architecture(self, model_arch_table, model_id, compile_params, fit_params, previous, functions):
        """Read and check the model. `previous`: of a warm start, or None; `functions`: object table or None."""
        db = self.db
        arch = db.input_table(
            model_arch_table, "model architecture table", hint=f"SELECT {db.extension}.load_keras_model(...) makes it."
        )
        if model_id is None:
            raise MopError("invalid model architecture ID: it is NULL", hint=f"SELECT model_id, name FROM {arch};")
        row = db.one(
            f"SELECT model_arch::text AS model_arch, md5(nullif(model_weights, '')) AS weights_md5 "
            f"FROM {arch} WHERE model_id = $1",
            ["integer"],
            [model_id],
        )
        if row is None:
            raise MopError(
                f'invalid model architecture ID: no model arch found for model_id {model_id} in "{model_arch_table}"',
                hint=f"SELECT model_id, name FROM {arch};",
            )
        c = {
            **row,
            "mst_key": 1,
            "model_id": model_id,
            "compile_params": compile_params or "",
            "fit_params": fit_params,
        }
        if previous is not None:
            previous.fill(c)
        elif c["weights_md5"] is not None:
            c["weights_sql"] = f"SELECT model_weights FROM {arch} WHERE model_id = {int(model_id)}"
        self.check([c], functions)

    def unusable(self, count):
        return "the model cannot be trained"

    def all_failed(self):
        return "training failed"

    def named(self, mst_key):
        return ""

    def weights(self):
        """The trained weights: of averaging, the average of the replicas, weighted by their segments' rows."""
        from pg_mop.backend.arrays import state

        states = (
            state.output_weights(its)
            for its in self.catalog.states(self.run_id, self.catalog.outcome(self.run_id, self.kept))
        )
        if not self.averaging:
            return next(states)
        return state.average(states, self.replicas())
