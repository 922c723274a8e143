"""mop_more: a configuration that has been trained is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pg_mop.api.common.output import model_tables, note_code, tell_of_large, write_models_summary
from pg_mop.api.common.winner import JudgedBy, Winner, best_of, winner
from pg_mop.api.madlib.class_weights import ClassWeights
from pg_mop.api.madlib.fit_multiple import info_of, weights_of, write_models
from pg_mop.api.search.search import write_trials
from pg_mop.backend import foreign_code, object_table, weights
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import quote_identifier
from pg_mop.backend.trusted import check_of_run, check_output, output_of_run
from pg_mop.call.configurations import Configurations, is_super_net
from pg_mop.call.earlier import Earlier, open_catalog, options_of, own_run
from pg_mop.call.inputs import Inputs
from pg_mop.call.spec import Output, RunResult, RunSpec
from pg_mop.catalog import metric_of
from pg_mop.plan.configuration import Configuration
from pg_mop.run.coordinator import execute
from pg_mop.search.ranking import LOSS

FUNCTION = "mop_more"
ARGUMENTS = ("run_id", "mst_key", "iterations")


@sql_function
def mop_more(db: Database, *values: Any) -> None:
    """Train a configuration of a run on, and put the result in its rows of the run's output tables.

    Raises MopError where the run has no such configuration, or its output tables are gone.
    """
    train(db, dict(zip(ARGUMENTS, values)))


def train(db: Database, arguments: dict[str, Any], earlier: Earlier | None = None) -> None:
    """Train with the arguments of mop_more (a dict); `earlier`: the run that mop_resume goes on with, or mop_replay repeats."""
    a = arguments
    if earlier is not None and earlier.followed is not None:
        _repeat(db, a, earlier)
        return
    if a["iterations"] is None or a["iterations"] < 1:
        raise MopError(f"iterations must be at least 1, not {a['iterations']}")
    key = a["mst_key"]
    path = TrainedPath(db, a["run_id"], key)
    before = path.before
    inputs = path.inputs(a["iterations"], earlier)
    judged_by = inputs.read_metric(path.metric)
    configurations = _one(db, inputs, path.configuration, path.object_table, judged_by, path.searched)
    model, info = path.tables
    weights.existing(db, model)  # raises MopError

    def write(result: RunResult) -> None:
        path.check_outputs()
        c = result.outcome()[0]
        most = inputs.options["weights_value_mb"]
        value, size = weights.store(db, model, next(weights_of(result, [c])), most, len(c["model_arch"].encode()))
        db.execute(
            f"UPDATE {model} SET model_weights = $1, __dist_key__ = $2 WHERE mst_key = $3",
            ["bytea", "integer", "integer"],
            [value, c["segment"], key],
        )
        weights.prune(db, path.model)
        columns = info_of(result, c, size)
        types = db.columns(path.info)
        if "metrics_iters" in types:  # of automl: its counter goes on
            counts = db.value(f"SELECT metrics_iters FROM {info} WHERE mst_key = $1", ["integer"], [key]) or []
            columns["metrics_iters"] = (
                "integer[]",
                counts
                + [(counts or [path.done])[-1] + i - path.done for i in inputs.metrics_iterations if i > path.done],
            )
        _update(db, info, key, {name: value for name, value in columns.items() if name in types})
        best = None
        if path.trials is not None:
            update_trial(db, result, c, path.trials, judged_by)
            best = best_trial(db, path.trials, info, judged_by)
        elif path.summary is not None:
            best = winner(db, info, LOSS if path.automl else None)
        if path.summary is not None:
            db.execute(
                f"UPDATE {path.summary} SET best_mst_key = $1", ["integer"], [None if best is None else best.mst_key]
            )
            if "object_digests" in path.summary_columns:
                note_code(result, path.summary)
        tell_of_large(db, model, [value])

    execute(
        RunSpec(
            FUNCTION,
            inputs,
            configurations,
            Output(path.output, model, write),
            a,
            {
                "model_arch_table": before.tables.get("model_arch_table"),
                "object_table": path.object_table,
                "use_gpus": inputs.use_gpus,
                "metric": path.metric,
                "searched": path.searched,
                "automl": path.automl,
            },
            preferred=a["run_id"],
            trained_on=path.before,
        )
    )


def check_packed(db: Database, *names: str | None) -> None:
    """Raises MopError where the packed tables of a run, or their summaries, would run code of another role when they are read.
    `names`: the tables, or None."""
    for name in names:
        if name is not None:
            check_of_run(db, name, "packed table of the run")
            check_of_run(db, db.suffixed(name, "_summary"), "summary of the packed table of the run")


def _one(
    db: Database, inputs: Inputs, c: Mapping[str, Any], functions_table: str | None, judged_by: Any, searched: bool
) -> Configurations:
    """The Configurations of a call that trains one configuration on. `c`: its row in the catalog; `searched`: its run is a
    search. Raises MopError."""
    functions = None if functions_table is None else object_table.check(db, functions_table)
    configurations = Configurations(
        inputs, ClassWeights(inputs.source, inputs.engine), judged_by=judged_by, keep="best" if searched else "last"
    )
    configurations.check([cast(Configuration, {**c, "error": None, "reason": None})], functions)
    for one in configurations:  # the rule that stopped it shall not do so again
        one["fit"]["stop"] = None
    return configurations


def _repeat(db: Database, a: dict[str, Any], earlier: Earlier) -> None:
    """Replay a run of mop_more into tables of its own, with one row each; `a`: with `output_table` besides."""
    original = earlier.followed
    assert original is not None
    tables, first = original.tables, original.configurations[0]
    inputs = Inputs.read(
        db, a["source_table"], a["validation_table"], earlier.num_iterations, None, tables["use_gpus"], earlier
    ).replace(metrics_iterations=sorted(original.evaluated[first["mst_key"]]))
    judged_by = inputs.read_metric(tables["metric"])
    suffixes = ("_info", "_summary", *(["_trials"] if tables["searched"] else []))
    model, info, summary, *trials = model_tables(db, a["output_table"], *suffixes)

    def write(result: RunResult) -> None:
        write_models(result, model, info, None)
        for table in trials:
            write_trials(result, table, judged_by)
        write_models_summary(
            result,
            summary,
            {**a, "model_output_table": a["output_table"], "name": None, "description": None},
            [("object_table", "text", tables["object_table"]), ("num_iterations", "integer", inputs.num_iterations)],
            [("metrics_iters", "integer[]", inputs.metrics_iterations), ("best_mst_key", "integer", first["mst_key"])],
        )

    execute(
        RunSpec(
            FUNCTION,
            inputs,
            _one(db, inputs, first, tables["object_table"], judged_by, tables["searched"]),
            Output(a["output_table"], model, write),
            a,
            {name: value for name, value in tables.items() if name != "replay_of"},
        )
    )


def _update(db: Database, table: str, key: int, columns: Mapping[str, tuple[str, Any]]) -> None:
    """Set columns ({name: (SQL type, value)}) of the row of mst_key `key` in a table (quoted)."""
    db.execute(
        f"UPDATE {table} SET "
        + ", ".join(f"{quote_identifier(n)} = ${i + 1}" for i, n in enumerate(columns))
        + f" WHERE mst_key = ${len(columns) + 1}",
        [kind for kind, _ in columns.values()] + ["integer"],
        [v for _, v in columns.values()] + [key],
    )


def _check_update(db: Database, table: Table, column: str) -> None:
    """Raises MopError where the caller may not update a table, or where a publication forbids it: a table of an older
    version may have no key."""
    if not db.value("SELECT has_table_privilege($1::oid, 'UPDATE')", ["oid"], [table.oid]):
        raise MopError(f"permission denied to update {table}", sqlstate="42501")
    foreign_code.check_writable(db, table)
    if db.has_segments:  # no publications, and an UPDATE locks the table
        return
    try:
        with db.undone():
            db.execute(f"UPDATE {table} SET {column} = {column} WHERE false")
    except db.plpy.SPIError as error:
        if getattr(error, "sqlstate", None) != "55000":
            raise
        raise MopError(
            f"{table} cannot be updated: {error}", hint=f"ALTER TABLE {table} REPLICA IDENTITY FULL;", sqlstate="55000"
        ) from None


class TrainedPath:
    """The path of one configuration of a run that has ended, and the run's output tables.

    `before`: the run; `output`: the name of its model table, as its caller wrote it; `done`: iterations that it has been
    trained for; `tables`: model and info table (quoted); `trials`: of mop_search, its table of trials (quoted), else None;
    `summary`: the summary (quoted), None if it names no best configuration; `automl`: the run is of madlib_keras_automl, which
    judges by the loss.
    """

    trials: str | None = None
    summary: str | None = None

    def __init__(self, db: Database, run_id: int, key: int) -> None:
        """Raises MopError if the run has no such configuration, or its output tables are not its own any more."""
        self.db, self.run_id, self.key = db, run_id, key
        with open_catalog(db) as catalog:
            run = own_run(db, catalog, run_id)
            if run["status"] == "running" or not catalog.output_is_written(run_id):
                raise MopError(
                    f"run {run_id} is {run['status']}, and its output tables are not written",
                    hint=None if run["status"] == "running" else f"SELECT {db.extension}.mop_resume({run_id});",
                    sqlstate="55000",
                )
            later = catalog.later_output(run)
            if later is not None:
                raise MopError(
                    f'"{run["model_output_table"]}" is of run {later} by now, not of run {run_id}',
                    hint=f"SELECT {db.extension}.mop_more({later}, ...);",
                    sqlstate="55000",
                )
            self.before = before = Earlier(catalog, run)
            evaluated = {m["iteration"] for m in catalog.metrics(run_id) if m["mst_key"] == key}
        if before.arguments.get("folds"):
            raise MopError(
                f"run {run_id} has folds, whose means would not describe a configuration that is trained on",
                hint=f"Call {before.function} again with more iterations: it goes on from this run's states if "
                "pg_mop.seed is the same.",
                sqlstate="0A000",
            )
        if before.averaging or before.function == "madlib_keras_fit":
            raise MopError(f"run {run_id} is of madlib_keras_fit", hint="Call it again with warm_start => TRUE.")
        c = next((c for c in before.configurations if c["mst_key"] == key), None)
        if c is None or c["error"] is not None:
            raise MopError(
                f"run {run_id} has no mst_key {key}"
                if c is None
                else f"mst_key {key} of run {run_id} failed: {c['error']}",
                hint=f"SELECT mst_key, status, reason FROM {db.extension}.mop_trials WHERE run_id = {run_id};",
            )
        if is_super_net(c):
            raise MopError(
                f"mst_key {key} of run {run_id} is a super-net: it is no model of its own, and cannot be trained on",
                hint=f"SELECT mst_key, status FROM {db.extension}.mop_trials WHERE run_id = {run_id};",
                sqlstate="0A000",
            )
        self.output: str = run["model_output_table"]
        db.look_up_as(before.path)
        self.outputs: list[tuple[Table, str]] = []
        self.model = self._table("")
        self.info = self._table("_info")
        self.tables = [str(self.model), str(self.info)]
        if not db.value(
            f"SELECT model_arch::text = $1 FROM {self.tables[0]} WHERE mst_key = $2",
            ["text", "integer"],
            [c["model_arch"], key],
        ):
            raise MopError(
                f'the model of mst_key {key} in "{self.output}" is not that of run {run_id}',
                detail="Its architecture is another: the table has been made anew.",
                sqlstate="55000",
            )
        # it may have been trained on since
        done = max(
            before.iterations[key],
            db.value(f"SELECT iteration FROM {self.info} WHERE mst_key = $1", ["integer"], [key]) or 0
            if "iteration" in db.columns(self.info)
            else 0,
        )
        self.done = done
        self.run, self.configuration, self.evaluated = run, c, evaluated
        self.metric = before.tables.get("metric", before.arguments.get("metric")) or "loss"
        self.searched = before.tables.get("searched", before.function == "mop_search")
        self.automl = before.tables.get("automl", before.function == "madlib_keras_automl")
        self.object_table = before.tables.get("object_table")

    def inputs(self, iterations: int, earlier: Earlier | None) -> Inputs:
        """The inputs of a call that trains the path for so many more iterations. Raises MopError."""
        db, before, until = self.db, self.before, self.done + iterations
        check_packed(db, self.run["source_table"], self.run["validation_table"])
        inputs = Inputs.read(
            db,
            self.run["source_table"],
            self.run["validation_table"],
            until,
            None,
            before.tables.get("use_gpus", before.arguments.get("use_gpus")),
            earlier,
        )
        if self.searched:
            self.trials = str(self._table("_trials"))
        summary = self._output("_summary", "summary of the run")
        if "best_mst_key" in db.columns(summary):  # an earlier version did not write it
            self.summary_columns = db.columns(summary)
            _check_update(db, summary, "best_mst_key")
            if "object_digests" in self.summary_columns:
                _check_update(db, summary, "object_digests")
            self.summary = str(summary)
        every = before.arguments.get("metrics_compute_frequency") or iterations
        more = {i for i in range(self.done + 1, until + 1) if i % every == 0}
        return inputs.replace(
            options={**options_of(before, inputs.options), "seed": before.seed},
            metrics_iterations=sorted(self.evaluated | more | {until}),
        )

    def _table(self, suffix: str) -> Table:
        """An output table with a row of the configuration, which the caller may update. Raises MopError."""
        table = self._output(suffix, "output table of the run")
        if not self.db.value(f"SELECT EXISTS (SELECT 1 FROM {table} WHERE mst_key = $1)", ["integer"], [self.key]):
            raise MopError(f"{table} has no row of mst_key {self.key}")
        _check_update(self.db, table, "mst_key")
        return table

    def _output(self, suffix: str, what: str) -> Table:
        """An output table. The caller names the run alone: what has taken a table's name since is checked before it is read.
        Raises MopError."""
        text = self.db.suffixed(self.output, suffix) if suffix else self.output
        table = output_of_run(self.db, text, what, self._hint)
        self.outputs.append((table, what))
        return table

    def check_outputs(self) -> None:
        """Check the output tables again, before they are written. Raises MopError."""
        for table, what in self.outputs:
            check_output(self.db, table, what, self._hint, lock=True)

    @property
    def _hint(self) -> str:
        return f"SELECT {self.db.extension}.mop_replay({self.run_id}, 'another_table'); trains the models again."


def update_trial(db: Database, result: RunResult, c: Mapping[str, Any], table: str, judged_by: JudgedBy) -> None:
    """Bring a trial's row in the table of trials (quoted) up to date. `c`: its outcome; `judged_by`: (metric, dataset,
    goal)."""
    metric, dataset, goal = judged_by
    values = [(row["iteration"], metric_of(row, metric)) for row in result.metrics if row["dataset"] == dataset]
    best = (min if goal == "min" else max)((value for _, value in values), default=None)
    _update(
        db,
        table,
        c["mst_key"],
        {
            "status": ("text", "finished"),
            "reason": ("text", None),
            "iterations": ("integer", c["iteration"]),
            "metric_iters": ("integer[]", [i for i, _ in values]),
            "metric": ("float8[]", [v for _, v in values]),
            "metric_best": ("float8", best),
            "metric_final": ("float8", dict(values).get(c["iteration"])),
        },
    )


def best_trial(db: Database, table: str, info: str, judged_by: JudgedBy) -> Winner | None:
    """The Winner of the trials in a table of trials and an info table (both quoted). `judged_by`: (metric, dataset,
    goal)."""
    metric, dataset, goal = judged_by
    rows = db.execute(
        f"SELECT t.mst_key, t.metric_final, i.{dataset}_loss_final AS loss FROM {table} t LEFT JOIN {info} i "
        f"USING (mst_key) WHERE t.metric_final IS NOT NULL AND t.status <> 'failed'"
    )
    return best_of([tuple(row.values()) for row in rows], (metric, goal), dataset)
