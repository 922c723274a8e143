"""mop_train: from a table to a named model, by the public functions that a user would call (docs/tables.md)."""

from __future__ import annotations

import json
import time
from typing import Any

from pg_mop.api import explained_training, reports
from pg_mop.api.baselines import Contender, contenders
from pg_mop.api.folds import check_folds
from pg_mop.api.model_table import StoredModel
from pg_mop.api.named_models import Version, add_version, check_writable, step_prefix, switch, with_shapes
from pg_mop.api.pack import Options
from pg_mop.api.session import with_trainer
from pg_mop.api.split import read_shares
from pg_mop.api.table_nets import layer_names
from pg_mop.backend import object_table, settings, weights
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, understood
from pg_mop.backend.quoting import finite_json, quote_identifier, quote_literal, split_names, written
from pg_mop.inference import scores
from pg_mop.inference.named_model import NamedModel, table_of
from pg_mop.packing.row_source import columns_named, is_query, rows_of
from pg_mop.run.steps import Steps

MARK = "a step of mop_train"
VALID = 0.2  # the default share of the validation part (sql/64_train.sql)
RESERVED = 0.05  # of the time limit, for measuring the winner
STEPS_WANTED = 3000  # mini-batches that the longest trial should train, as far as the time allows
MOST_DRAWN = 100_000  # rows that the interval of R2 is drawn from
BALANCED = "balanced"  # as weight: each class counts as much as the others
OF_SEARCH = ("", "_info", "_summary", "_trials")  # the ends of the names of a search's tables
ARGUMENTS = (
    "source",
    "name",
    "target",
    "id",
    "exclude",
    "kind",
    "transform",
    "weight",
    "split",
    "by",
    "valid",
    "test",
    "layers",
    "time_limit",
    "max_trials",
    "baselines",
    "keep",
    "folds",
)


@with_trainer
def mop_train(db, session, *values):
    """Train a model for a table's target, and make it version 1 of `name`; returns a report."""
    call = Training(db, dict(zip(ARGUMENTS, values)))
    if call.name is None or not call.name.strip():
        raise MopError("no name is given for the model", hint="name => 'churn', for instance.")
    if db.find_table(call.name) is not None:
        table_of(db, call.name)
        raise MopError(
            f'model "{call.name}" exists',
            hint=f"SELECT {db.extension}.mop_retrain({quote_literal(call.name)}, ...); makes another version.",
            sqlstate="42P07",
        )
    db.output_table(call.name)
    return call.run(session, 1, True)


@with_trainer
def mop_retrain(db, session, name, source, time_limit, automatic, warm):
    """Train the named model again, on `source`, as its last version was trained; returns a report.

    `automatic`: the new version comes into use only if it is better on the new rows' test part. `warm`: training begins with
    the net, the weights and the transform of the version in use.
    """
    table = table_of(db, name)
    row = db.one(
        f"SELECT details::text AS details FROM {table} WHERE details ? 'arguments' ORDER BY version DESC LIMIT 1"
    )
    if row is None:
        raise MopError(
            f'no version of model "{name}" was made by mop_train',
            hint="Train by hand and deploy: "
            f"SELECT {db.extension}.mop_deploy({quote_literal(name)}, 'model_table', mst_key);",
        )
    with understood(f'the details of model "{name}" name no arguments of mop_train that can be read'):
        arguments = {**dict.fromkeys(ARGUMENTS), **json.loads(row["details"])["arguments"], "name": name}
    check_writable(db, table)
    if source is None:
        _check_writers(db, table, name, arguments["source"])
    else:
        arguments["source"] = source
    if time_limit is not None:
        arguments["time_limit"] = time_limit
    version = 1 + db.value(f"SELECT max(version) FROM {table}")
    present = NamedModel.find(db, name).version if warm or automatic else None
    return Training(db, arguments, present if warm else None).run(session, version, not automatic)


def _check_writers(db: Database, table: Any, name: str, source: str) -> None:
    """Raises MopError where another role may have written the source into the model's row: it would run as the caller."""
    rows = db.execute(
        f"SELECT coalesce(quote_ident(role), 'PUBLIC') AS role FROM ({object_table.WRITERS} UNION ALL SELECT rolname FROM "
        "pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = $1 AND NOT rolsuper) w "
        "WHERE role IS DISTINCT FROM current_user",
        ["oid"],
        [table.oid],
    )
    if rows:
        raise MopError(
            f'model "{name}" may be written by {rows[0]["role"]}: mop_retrain needs a source',
            detail="The source that it stores would be read with your rights. Give that source if you trust it.",
            hint=f"SELECT {db.extension}.mop_retrain({quote_literal(name)}, source => {quote_literal(source)});",
            sqlstate="42501",
        )


class Training:
    """One call of mop_train or mop_retrain. `statements`: what was run, for a user who wants to do it by hand.

    `present`: the version whose training goes on; None: training begins with new weights.
    """

    def __init__(self, db: Database, arguments: dict[str, Any], present: int | None = None) -> None:
        """Check the arguments. Raises MopError."""
        self.db, self.arguments, self.present = db, arguments, present
        self.name: str = arguments["name"]
        self.source, self.target = arguments["source"], arguments["target"]
        if db.explaining is not None:
            explained_training.refuse_query(db, self.source)
        self.split = (arguments["split"] or "random").strip().lower()
        if arguments["time_limit"] is None:
            arguments["time_limit"] = "00:05:00"
        self.seconds = float(db.value("SELECT extract(epoch FROM $1::interval)", ["text"], [arguments["time_limit"]]))
        read_shares(arguments["valid"] if arguments["folds"] is None else 0, arguments["test"], self.split)
        if self.seconds < 1:
            raise MopError(
                f"time_limit must be at least a second, not {arguments['time_limit']}", hint="time_limit => '2 min'"
            )
        if arguments["max_trials"] is not None and arguments["max_trials"] < 1:
            raise MopError(f"max_trials must be at least 1, not {arguments['max_trials']:g}")
        layer_names(arguments["layers"])
        if db.setting("transaction_isolation") != "read committed":
            raise MopError(
                "mop_train needs a transaction of isolation level read committed",
                detail="It sees what its own steps commit.",
                hint="BEGIN ISOLATION LEVEL READ COMMITTED;",
                sqlstate="25001",
            )
        db.check_engine("mop_train")
        Options.read(arguments["kind"], arguments["transform"], None, None)
        if arguments["folds"] is not None:
            self._check_folds()
        self.statements: list[str] = []
        self.made: list[tuple[str, str]] = []  # (kind, name) of relations that the steps have made
        with rows_of(db, self.source) as rows:
            if len(split_names(self.target)) != 1:
                raise MopError("mop_train takes one target", hint="target => 'column', the column to predict")
            (target,) = columns_named(db, rows, "target", split_names(self.target))
            if db.columns(rows)[target].endswith("[]"):
                raise MopError(
                    f'target "{target}" has arrays: mop_train takes a column of classes or of numbers',
                    hint="Train on arrays by hand: "
                    f"SELECT {db.extension}.mop_pack(...); then mop_architecture(...) and mop_search(...).",
                    sqlstate="42804",
                )
            self.balanced = arguments["weight"] == BALANCED and BALANCED not in db.columns(rows)
            for name in ("id", "exclude", *([] if self.balanced else ["weight"])):
                columns_named(db, rows, name, split_names(arguments[name]))
            if arguments["folds"] is not None and self.split == "group":
                self._groups(rows)
            self.rows = db.value(f"SELECT count(*) FROM {rows}")
        if not is_query(self.source) and db.is_temporary(db.find_table(self.source)):  # type: ignore[arg-type]
            raise MopError(
                f'table "{self.source}" is temporary: the sessions that train cannot see it',
                hint=f"CREATE TABLE ... AS SELECT * FROM {self.source};",
            )
        if self.rows < 10:
            raise MopError(
                f"there are {self.rows} rows: too few to train, to choose and to measure",
                detail="Each of the three parts needs rows of its own.",
            )

    def _check_folds(self) -> None:
        """Raises MopError where the folds cannot choose among the trials of this call."""
        db, a = self.db, self.arguments
        check_folds(db, a["folds"], {})
        if a["valid"] not in (None, 0, VALID):
            raise MopError(
                "folds and valid cannot be combined",
                detail="With folds there is no validation part: the folds of the training part choose.",
                hint="Leave out folds or valid.",
            )
        if self.split == "time":
            raise MopError(
                "folds and split => 'time' cannot be combined",
                detail="Folds would train on later rows than those that they are evaluated on.",
                hint="Leave out folds: a validation part chooses.",
            )
        self.segments = settings.load(db)["segments"] or settings.gpus() or settings.cores()

    def _groups(self, rows: Any) -> int:
        """The number of groups of a table or view. Raises MopError where they are fewer than the folds."""
        by, folds = split_names(self.arguments["by"])[:1], self.arguments["folds"]
        found = self.db.input_table(rows, "table of a step", rows=False) if isinstance(rows, str) else rows
        (column,) = columns_named(self.db, found, "by", by) or [None]
        if column is None:
            raise MopError("split => 'group' needs a column", hint="by => 'column'")
        name = quote_identifier(column)
        count = self.db.value(
            f"SELECT count(DISTINCT {name}) + count(DISTINCT 1) FILTER (WHERE {name} IS NULL) FROM {found}"
        )
        if count < folds:
            raise MopError(
                f'column "{column}" has {count} group{"s" * (count != 1)} in {found}, fewer than the {folds} folds',
                detail="All rows of a group are in one fold.",
                hint=f"folds => {count}" if count > 1 else "Leave out folds.",
            )
        return count

    # --- the steps ---

    def run(self, session: Any, version: int, use: bool) -> str:
        """Train, and add the version; returns the report. Raises MopError."""
        db, began = self.db, time.monotonic()
        prefix = step_prefix(db, self.name, version)
        n = {
            part: db.suffixed(prefix, f"_{part}")
            for part in ("train", "valid", "test", "packed", "checked", "nets", "search")
        }
        if db.explaining is not None:
            explained_training.explain(self, prefix, n, version)
        with Steps(db, f"mop_train {self.name}") as steps:
            self.begin(steps, prefix, n)
            try:
                self.split_rows(steps, prefix, n)
                self.pack_parts(steps, n)
                kind = self.make_nets(steps, n)
                prepared = time.monotonic() - began
                self.search_nets(steps, n, kind, began)
            except BaseException:
                self._drop(steps)
                raise
        searched = time.monotonic() - began - prepared
        best = db.value(f"SELECT best_mst_key FROM {self._found(n['search'], '_summary')}")
        if best is None:
            raise MopError("no trial was evaluated within the time limit", hint="Give a longer time_limit.")
        chosen = db.one(
            f"SELECT t.compile_params, t.fit_params, t.iterations, a.name AS net FROM {self._found(n['search'], '_trials')} t "
            f"JOIN {db.find_table(n['nets'])} a USING (model_id) WHERE mst_key = {int(best)}"
        )
        assert chosen is not None
        number = self._add(n, best, chosen["fit_params"], kind, use)
        model = NamedModel.find(db, self.name, number)
        measured = reports.measure(db, session, model, n["test"])
        metrics = measured.measures(model.regression)
        found = [Contender("pg_mop", metrics)]
        if self.arguments.get("baselines") is not False:
            found += contenders(db, session, model, n["train"], n["test"])
        switched = self._decide(session, model, number, metrics, use, n)
        trials = db.value(f"SELECT count(*) FROM {self._found(n['search'], '_trials')}")
        details = {
            "arguments": {name: value for name, value in self.arguments.items() if value is not None},
            **({"folds": self._means(n, best)} if self.arguments["folds"] is not None else {}),
            "statements": self.statements,
            "net": chosen["net"],
            "iterations": chosen["iterations"],
            "trials": trials,
            "rows": self.parts,
            "interval": list(_interval(model, measured, metrics)),
            "contenders": {contender.name: contender.metrics for contender in found},
            "seconds": {"prepare": prepared, "search": searched, "all": time.monotonic() - began},
        }
        self._complete(number, metrics, details)
        if self.arguments.get("keep"):  # (no later call may take them for leftovers)
            self.db.execute(f"COMMENT ON TABLE {self._found(n['packed'], '_summary')} IS NULL")
        else:
            self._drop_tables(n)
        return self._report(number, model, found, details, chosen, switched)

    def begin(self, steps: Steps, prefix: str, n: dict[str, str]) -> None:
        """Reserve the names of the steps' relations, and drop what an earlier call has left. Raises MopError."""
        self._reserve(prefix)
        self._drop_left(steps, n)
        self._check_free(n)

    def _say(self, steps: Steps, sql: str, quiet: bool = False) -> list[tuple[Any, ...]]:
        """Run a statement that the report will show."""
        self.statements.append(sql)
        return steps.run(sql, quiet)

    def split_rows(self, steps: Steps, prefix: str, n: dict[str, str]) -> None:
        a = self.arguments
        method, by = a["split"], a["by"]
        if method is None:
            method = "random"
        valid = a["valid"] if a["folds"] is None else 0
        given = {"valid": valid, "test": a["test"], "method": method, "by": by, "id": a["id"]}
        found = self._say(steps, self._call("mop_split", [self.source, prefix], given, "SELECT * FROM"))
        self.parts = {part: rows for part, _, rows in found}
        self.made += [("VIEW", view) for _, view, _ in found]
        if "test" not in self.parts:
            raise MopError("the split has no test part", hint="test => 0.2")
        if a["folds"] is not None and "valid" in self.parts:
            raise MopError(
                "folds and a validation part cannot be combined",
                detail=f'Column "{by}" has rows of a validation part.',
                hint="Leave out folds, or give these rows to the training part.",
            )

    def pack_parts(self, steps: Steps, n: dict[str, str]) -> None:
        a = self.arguments
        weight = None if self.balanced else a["weight"]
        given = {"target": self.target, **{k: a[k] for k in ("id", "exclude", "kind", "transform")}, "weight": weight}
        if self.split == "column" and a["by"]:
            given["exclude"] = ", ".join(filter(None, (given["exclude"], a["by"])))
        if self.present is not None:
            given = {"fitted_on": self.name, "weight": weight}
        if a["folds"] is not None:
            least = self.segments
            if self.split == "group":
                given["grouped_by"] = a["by"]
                least = min(least, self._groups(n["train"]))
            if least < self.segments or least < a["folds"]:  # a fold holds out whole segments
                self._say(steps, f"SET pg_mop.segments = {a['folds']};")
        self._say(steps, self._call("mop_pack", [n["train"], n["packed"]], given))
        self.made += [("TABLE", n["packed"]), ("TABLE", self.db.suffixed(n["packed"], "_summary"))]
        steps.run(f"COMMENT ON TABLE {self._ref(n['packed'], '_summary')} IS {quote_literal(MARK)}")
        if "valid" in self.parts:
            self._say(steps, self._call("mop_pack", [n["valid"], n["checked"]], {"fitted_on": n["packed"]}))
            self.made += [("TABLE", n["checked"]), ("TABLE", self.db.suffixed(n["checked"], "_summary"))]

    def make_nets(self, steps: Steps, n: dict[str, str]) -> str:
        if self.present is None:
            given = {"layers": self.arguments["layers"]}
            self._say(steps, self._call("mop_architecture", [n["nets"], n["packed"]], given), True)
        else:
            self._say(
                steps,
                f"SELECT {written(self.db.schema)}.load_keras_model({quote_literal(n['nets'])}, m.model_arch, m.model_weights, "
                f"'version {self.present}') FROM {self._ref(self.name)} m WHERE m.version = {self.present};",
                True,
            )
        self.made.append(("TABLE", n["nets"]))
        if (
            self.present is not None
            and (parts := weights.existing(self.db, str(table_of(self.db, self.name)), weights.READING)) is not None
        ):
            self._say(steps, f"CREATE TABLE {self._ref(n['nets'], weights.SUFFIX)} AS TABLE {parts};", True)
            self.made.append(("TABLE", self.db.suffixed(n["nets"], weights.SUFFIX)))
        row = steps.run(f"SELECT to_json(s)->>'dependent_dtype' FROM {self._ref(n['packed'], '_summary')} s")
        return "regression" if row[0][0] == "float32" else "classification"

    def search_nets(self, steps: Steps, n: dict[str, str], kind: str, began: float) -> None:
        rows = self.parts["train"]
        small = 32 if rows < 20_000 else 128 if rows < 200_000 else 512
        loss, metrics = ("mse", ["mae"]) if kind == "regression" else ("categorical_crossentropy", ["accuracy"])
        rates = [0.0003, 0.01, "log"] if self.present is None else [0.00003, 0.003, "log"]
        space = {
            "loss": [loss],
            "metrics": [metrics],
            "optimizer_params_list": [{"optimizer": ["Adam"], "lr": rates}],
            "batch_size": [small, 4 * small],
            "epochs": [1],
        }
        if self.balanced:
            if kind == "regression":
                raise MopError(
                    "weight => 'balanced' needs classes, but the target has numbers", hint="Leave weight out."
                )
            space["class_weight"] = ["balanced"]
        iterations = 27
        while iterations < 243 and iterations * max(1, rows // (2 * small)) < STEPS_WANTED:
            iterations *= 3
        left = self.seconds * (1 - RESERVED) - (time.monotonic() - began)
        given: dict[str, Any] = {
            "procedure": "asha",
            "procedure_params": f"iterations={iterations}",
            "validation_table": n["checked"] if "valid" in self.parts else None,
            "time_limit": f"{max(0.5, left):.1f} s",
            "max_trials": self.arguments["max_trials"],
            "folds": self.arguments["folds"],
        }
        call = self._call("mop_search", [n["packed"], n["search"], n["nets"], str(space)], given)
        self._say(steps, call, quiet=True)
        self.made += [("TABLE", self.db.suffixed(n["search"], end)) for end in OF_SEARCH]
        if self.db.find_table(self.db.suffixed(n["search"], weights.SUFFIX)) is not None:
            self.made.append(("TABLE", self.db.suffixed(n["search"], weights.SUFFIX)))

    def _means(self, n: dict[str, str], best: int) -> dict[str, Any]:
        """The means and deviations over the folds of the chosen trial."""
        row = self.db.one(
            f"SELECT metrics_type[1] AS metric, folds_metrics_mean AS mean, folds_metrics_deviation AS deviation, "
            f"folds_loss_mean AS loss_mean, folds_loss_deviation AS loss_deviation "
            f"FROM {self._found(n['search'], '_info')} WHERE mst_key = {int(best)}"
        )
        assert row is not None
        return {"number": self.arguments["folds"], **row}

    def _call(self, function: str, values: list[Any], given: dict[str, Any], verb: str = "SELECT") -> str:
        """SQL that calls one of our functions, as a user writes it."""
        arguments = [quote_literal(value) for value in values]
        for name, value in given.items():
            if value is not None:
                arguments.append(f"{name} => {value if isinstance(value, (int, float)) else quote_literal(value)}")
        return f"{verb} {written(self.db.schema)}.{function}({', '.join(arguments)});"

    def _ref(self, name: str, suffix: str = "") -> str:
        """SQL for a relation by its name, as the caller writes it."""
        schema, own = self.db.parse_name(self.db.suffixed(name, suffix))
        return ".".join(quote_identifier(part) for part in (schema, own) if part is not None)

    def _found(self, name: str, suffix: str = "") -> str:
        return str(self.db.input_table(self.db.suffixed(name, suffix), "table of a step", rows=False))

    # --- leftovers ---

    def _reserve(self, prefix: str) -> None:
        """Reserve the names of the steps' relations until the end of the transaction. Raises MopError."""
        schema, name = self.db.parse_name(prefix)
        if schema is None:
            with self.db.caller_path():
                schema = self.db.value("SELECT pg_catalog.current_schema()")
        reserved = self.db.value(
            f"SELECT {self.db.extension}.mop_reserve($1, $2::name)", ["text", "text"], [schema, name]
        )
        if not reserved:
            raise MopError(
                f'another session is training model "{self.name}" now',
                hint=f"SELECT * FROM {self.db.extension}.mop_runs WHERE status = 'running';",
                sqlstate="55006",
            )

    def _relations(self, n: dict[str, str]) -> list[tuple[str, str]]:
        suffixed = self.db.suffixed
        return [
            *(("VIEW", n[part]) for part in ("train", "valid", "test")),
            *(("TABLE", suffixed(n[part], end)) for part in ("packed", "checked") for end in ("", "_summary")),
            *(("TABLE", suffixed(n["nets"], end)) for end in ("", weights.SUFFIX)),
            *(("TABLE", suffixed(n["search"], end)) for end in (*OF_SEARCH, weights.SUFFIX)),
        ]

    def _drop_left(self, steps: Steps, n: dict[str, str]) -> None:
        """Drop what a call has left whose transaction was rolled back: its summary has our mark."""
        comment = steps.run(
            f"SELECT obj_description(to_regclass({quote_literal(self._ref(n['packed'], '_summary'))}), 'pg_class')"
        )[0][0]
        if comment == MARK:
            for kind, name in reversed(self._relations(n)):
                steps.run(f"DROP {kind} IF EXISTS {self._ref(name)}", quiet=True)

    def _check_free(self, n: dict[str, str]) -> None:
        """Raises MopError where a relation of a step exists."""
        left = [self.db.find_table(name) for kind, name in self._relations(n) if kind == "VIEW"]
        views = [str(view) for view in left if view is not None and view.kind == "v"]
        if len(views) > 1:
            raise MopError(
                f"{len(views)} views of an earlier model have the names that mop_train needs",
                detail="They are " + ", ".join(views) + ".",
                hint=f"DROP VIEW {', '.join(views)};",
                sqlstate="42P07",
            )
        for _, name in self._relations(n):
            self.db.output_table(name)

    def _drop(self, steps: Steps) -> None:
        """Drop what the steps have made, after a failure."""
        for kind, name in reversed(self.made):
            steps.drop(kind, self._ref(name))

    def _drop_tables(self, n: dict[str, str]) -> None:
        """Drop the tables of the steps in the caller's transaction; the views stay, for reports."""
        for kind, name in reversed(self.made):
            if kind == "TABLE":
                self.db.execute(f"DROP TABLE {self._found(name)}")

    # --- the result ---

    def _add(self, n: dict[str, str], best: int, fit_params: str, kind: str, use: bool) -> int:
        model = StoredModel(self.db, n["search"], best)
        return add_version(
            self.db,
            self.name,
            Version(
                transform=with_shapes(model).to_json(),
                architecture=model.architecture_text,
                source=model.source,
                target=model.output_names[0],
                kind=kind,
                compile_params=model.compile_params,
                fit_params=fit_params,
                description=f"trained on {self.source}"[:200],
                statement=self.statements[-1],
            ),
            use,
        )

    def _decide(
        self, session: Any, model: NamedModel, number: int, metrics: dict[str, float], use: bool, n: dict[str, str]
    ) -> bool:
        """Whether the new version is in use: if `use`, or if it is better than the present one on the test part."""
        if use or number == 1:
            return True
        present = NamedModel.find(self.db, self.name)
        before = reports.measure(self.db, session, present, n["test"]).measures(present.regression)
        main = main_metric(model.regression)
        if not metrics[main] > before[main]:
            return False
        switch(self.db, str(table_of(self.db, self.name)), number)
        return True

    def _complete(self, number: int, metrics: dict[str, float], details: dict[str, Any]) -> None:
        table = table_of(self.db, self.name)
        self.db.execute(
            f"UPDATE {table} SET metrics = $1::jsonb, details = $2::jsonb WHERE version = {number}",
            ["text", "text"],
            [finite_json(metrics), finite_json(details)],
        )

    def _report(
        self,
        number: int,
        model: NamedModel,
        found: list[Contender],
        details: dict[str, Any],
        chosen: dict[str, Any],
        switched: bool,
    ) -> str:
        main = main_metric(model.regression)
        lines = [
            f'Version {number} of model "{self.name}" predicts {model.target} ({model.kind})'
            + ("." if switched else "; it is not in use: the present version is at least as good."),
            f"Rows: {', '.join(f'{rows} {part}' for part, rows in self.parts.items())}. "
            f"Trials: {details['trials']} in {details['seconds']['search']:.0f} s. "
            f"Chosen: net {chosen['net']}, {chosen['compile_params']}, {chosen['fit_params']}, "
            f"after {chosen['iterations']} iterations.",
            *([_line(details["folds"])] if "folds" in details else []),
            "On the test part:",
        ]
        names = ["r2", "rmse", "mae"] if model.regression else ["accuracy", "auc", "log_loss"]
        for contender in found:
            values = ", ".join(f"{m} {contender.metrics[m]:.4g}" for m in names if m in contender.metrics)
            lines.append(f"  {contender.name}: {values}")
        low, high = details["interval"]
        lines.append(f"  (95 % interval of pg_mop's {main}: {low:.3f} to {high:.3f})")
        ahead = max(found, key=lambda contender: contender.metrics.get(main, float("-inf")))
        if ahead is not found[0]:
            lines.append(f"  On these rows, {ahead.name} is better: consider it.")
        quoted, schema = quote_literal(self.name), written(self.db.schema)
        lines += [
            "Predict:",
            f"  SELECT t.*, p.* FROM {'your_table' if is_query(self.source) else self.source} t, "
            f"{schema}.mop_predict({quoted}, t) AS p;",
            "The steps by hand:",
            *(f"  {statement}" for statement in self.statements),
        ]
        return "\n".join(lines)


def _line(means: dict[str, Any]) -> str:
    """The line of the report about the folds; means of targets that are numbers are in standardised units."""
    return (
        f"Over {means['number']} folds of the training part: {means['metric']} {means['mean']:.4g} "
        f"(deviation {means['deviation']:.2g}), loss {means['loss_mean']:.4g} ({means['loss_deviation']:.2g})."
    )


def _interval(model: NamedModel, measured: Any, metrics: dict[str, float]) -> tuple[float, float]:
    """The 95 % interval of the measure by which versions are compared."""
    main = main_metric(model.regression)
    if not model.regression:
        return scores.interval(metrics[main], len(measured.truth))
    truth, predicted = measured.truth[:MOST_DRAWN], measured.outputs[:MOST_DRAWN, 0]
    return scores.bootstrapped(lambda t, p: scores.regression(t, p)[main], truth, predicted)


def main_metric(regression: bool) -> str:
    """The measure by which versions are compared."""
    return "r2" if regression else "accuracy"


@with_trainer
def mop_compare(db, session, name, first, second, source):
    """Two versions of a model on the same rows: [(metric, first, second, difference)]."""
    values = []
    for version in (first, second):
        model = NamedModel.find(db, name, version)
        values.append(reports.measure(db, session, model, source).measures(model.regression))
    return [
        (metric, value, values[1][metric], values[1][metric] - value)
        for metric, value in values[0].items()
        if metric in values[1]
    ]
