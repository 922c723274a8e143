"""mop_train: from a table to a named model, by the public functions that a user would call (docs/tables.md)."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.model_table import StoredModel
from pg_mop.api.common.session import with_trainer
from pg_mop.api.search.folds import check_folds
from pg_mop.api.tables import (
    baselines,
    drawn_rows,
    ensembles,
    explained_training,
    folded,
    refit,
    reports,
    same_rows,
    step_relations,
    time_shares,
    trained,
    training_checks,
    training_report,
)
from pg_mop.api.tables.baselines import Contender
from pg_mop.api.tables.named_models import add_version, check_writable, step_prefix, switch, version_of
from pg_mop.api.tables.pack import Options
from pg_mop.api.tables.split import PRIMARY_KEY, SHARE, read_shares
from pg_mop.api.tables.step_relations import StepRelations
from pg_mop.api.tables.steps import Steps
from pg_mop.api.tables.table_nets import layer_names
from pg_mop.api.tables.time_shares import LEAST_SECONDS, TimeShares
from pg_mop.api.tables.train_arguments import KINDS, TrainArguments
from pg_mop.backend import settings, weights
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, understood
from pg_mop.backend.quoting import finite_json, quote_identifier, quote_literal, split_names, written
from pg_mop.inference import scores
from pg_mop.inference.metrics import Metric, with_scale
from pg_mop.inference.model_parts import is_callers, signed
from pg_mop.inference.named_model import NamedModel, table_of
from pg_mop.packing.packed_table import PackedTable
from pg_mop.packing.row_source import columns_named, in_brackets, is_query, rows_of, view_of_query

PASSES = 27  # over the rows, of the longest trial
LEAST_STEPS = 500  # mini-batches of the longest trial: of few rows, it has more passes
ROWS_A_SECOND = 50_000  # that a session trains on, roughly: of many rows, a trial has fewer passes
RATES = (0.001, 0.002, 0.003, 0.005, 0.01)  # at the beginning of a trial; they fall to 0 by a cosine
DECAYS = [0.01, 0.5, "log"]  # of weights
LEAST_FOR_NETS = 8.0  # seconds of the search of nets, where perceptrons are trained, too: nets must be compiled
TOGETHER = 4  # trials that go on at a time: few whole trials are better than many beginnings
SHORT = 20.0  # seconds of a short search of nets
TOGETHER_IN_SHORT = 2  # its trials that go on at a time: those that have begun at its end are finished
BALANCED = "balanced"  # as weight: each class counts as much as the others
FOLDS = 5  # that choose where there is no validation part
LEAST_SHARE = 0.05  # of the time limit, for packing; and for simple models, where that is less than they need to start
ARGUMENTS = tuple(KINDS)


@with_trainer
def mop_train(db: Database, session: Session, *values: Any) -> str:
    """Train a model for a table's target, and make it version 1 of `name`; returns a report."""
    call = Training(db, TrainArguments.of_call(values))
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
def mop_retrain(
    db: Database,
    session: Session,
    name: str | None,
    source: str | None,
    time_limit: str | None,
    automatic: bool | None,
    warm: bool | None,
) -> str:
    """Train the named model again, on `source`, as its last version was trained; returns a report.

    `automatic`: the new version comes into use only if it is better on the new rows' test part. `warm`: training begins with
    the net, the weights and the transform of the version in use.
    """
    table = table_of(db, name)
    assert name is not None
    row = db.one(
        # one statement: another role may write between two
        f"SELECT details::text AS details, {is_callers(db)} AS own FROM {table} WHERE details ? 'arguments' "
        "ORDER BY version DESC LIMIT 1",
        ["oid"],
        [table.oid],
    )
    if row is None:
        raise MopError(
            f'no version of model "{name}" was made by mop_train',
            hint="Train by hand and deploy: "
            f"SELECT {db.extension}.mop_deploy({quote_literal(name)}, 'model_table', mst_key);",
        )
    with understood(f'the details of model "{name}" name no arguments of mop_train that can be read'):
        arguments = TrainArguments.from_json(json.loads(row["details"])["arguments"], name)
    check_writable(db, table)
    if source is not None:
        arguments = dataclasses.replace(arguments, source=source)
    elif not row["own"]:
        # Present rights on the table prove nothing: a role without them may have written the source earlier.
        raise MopError(
            f'it is not certain who gave model "{name}" its source: mop_retrain needs a source',
            detail="Your role did not. The stored source would be read with your rights. Name it if you trust it.",
            hint=f"SELECT {db.extension}.mop_retrain({quote_literal(name)}, source => {quote_literal(arguments.source)});",
            sqlstate="42501",
        )
    if time_limit is not None:
        arguments = dataclasses.replace(arguments, time_limit=time_limit)
    version = 1 + db.value(f"SELECT max(version) FROM {table}")
    if automatic and arguments.test == 0:
        raise MopError(
            f'model "{name}" was trained without a test part, on which versions are compared',
            hint=f"SELECT {db.extension}.mop_retrain({quote_literal(name)}, automatic => false);",
        )
    version_in_use = NamedModel.find(db, name).version if warm or automatic else None
    return Training(db, arguments, version_in_use if warm else None).run(session, version, not automatic)


@dataclasses.dataclass
class Judged:
    """The measurement of a version: its `metrics`, keys for its `details`, and sentences for the report (`said`)."""

    metrics: dict[str, float]
    details: dict[str, Any]
    said: list[str]
    is_better: bool = True


class Training:
    """One call of mop_train or mop_retrain. `statements`: what was run, for a user who wants to do it by hand.

    `present`: the version whose training goes on; None: training begins with new weights.
    """

    def __init__(self, db: Database, arguments: TrainArguments, present: int | None = None) -> None:
        """Check the arguments. Raises MopError."""
        began = time.monotonic()
        time_limit = "00:05:00" if arguments.time_limit is None else arguments.time_limit
        arguments = dataclasses.replace(arguments, time_limit=time_limit)
        self.db, self.arguments, self.present = db, arguments, present
        self.name, self.source, self.target = arguments.name, arguments.source, arguments.target
        if db.explaining is not None:
            explained_training.refuse_query(db, self.source)
        self.split = (arguments.split or "random").strip().lower()
        self.seconds = float(db.value("SELECT extract(epoch FROM $1::interval)", ["text"], [time_limit]))
        read_shares(arguments.valid if arguments.folds is None else 0, arguments.test, self.split)
        if self.seconds < 1:
            raise MopError(f"time_limit must be at least a second, not {time_limit}", hint="time_limit => '2 min'")
        if arguments.max_trials is not None and arguments.max_trials < 1:
            raise MopError(f"max_trials must be at least 1, not {arguments.max_trials:g}")
        self.most_members = ensembles.members_of_call("ensemble", arguments.ensemble)
        self.families = trained.families_of(arguments.families)
        self.has_nets = trained.NETS in self.families
        if not self.has_nets:
            self._check_without_nets()
            if present is not None:
                db.notice(
                    f"no weights of version {present} go on, its transform alone: the model's families have no nets",
                    hint="warm => false fits the transform, too.",
                )
        layer_names(arguments.layers)
        Metric.read(arguments.metric)
        if db.setting("transaction_isolation") != "read committed":
            raise MopError(
                "mop_train needs a transaction of isolation level read committed",
                detail="It sees what its own steps commit.",
                hint="BEGIN ISOLATION LEVEL READ COMMITTED;",
                sqlstate="25001",
            )
        db.check_engine("mop_train")
        Options.read(arguments.kind, arguments.transform, None, None)
        if arguments.folds is not None:
            self._check_folds()
        self.statements: list[str] = []
        self.made_by = ""  # the statement that makes the version
        self.drawn: dict[str, int] = {}  # rows that are drawn of a part
        self.query: str | None = None  # the source with qualified names, where it is a query
        with rows_of(db, self.source) if not is_query(self.source) else view_of_query(db, str(self.source)) as rows:
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
            self.balanced = arguments.weight == BALANCED and BALANCED not in db.columns(rows)
            unused = [
                columns_named(db, rows, name, split_names(getattr(arguments, name)))
                for name in ("id", "exclude", *([] if self.balanced else ["weight"]))
            ]
            self.column, self.columns = target, list(db.columns(rows))
            by = columns_named(db, rows, "by", split_names(arguments.by)[:1]) if arguments.by is not None else []
            self.by = by[0] if by else ""
            self.keys = unused[0] or self._primary_key(rows) or self.columns
            self.used = [name for name in db.columns(rows) if not any(name in names for names in unused)]
            if is_query(self.source):
                self.query = db.value("SELECT pg_get_viewdef($1::oid)", ["oid"], [rows.oid])
            else:
                if arguments.folds is not None and self.split == "group":
                    self._groups(rows)
                self._count(rows)
        if not is_query(self.source) and db.is_temporary(db.find_table(self.source)):  # type: ignore[arg-type]
            raise MopError(
                f'table "{self.source}" is temporary: the sessions that train cannot see it',
                hint=f"CREATE TABLE ... AS SELECT * FROM {self.source};",
            )
        self.seconds = training_checks.seconds_until_timeout(db, self.seconds)
        self.times = TimeShares(self.seconds - (time.monotonic() - began), self.timed_steps)
        if self.arguments.baselines is not False:
            self.times.need(time_shares.BASELINES, min(baselines.START, LEAST_SHARE * self.seconds))

    def _count(self, rows: Any, steps: Any = None) -> None:
        self.rows = self._value(f"SELECT count(*) FROM {rows}", steps)
        if self.rows < 10:
            raise MopError(
                f"there are {self.rows} rows: too few to train, to choose and to measure",
                detail="Each of the three parts needs rows of its own.",
            )

    def _value(self, sql: str, steps: Any) -> Any:
        """The only value of a query; with `steps`, of their relations: a lock of this session's would keep a failed call from
        dropping them."""
        return self.db.value(sql) if steps is None else training_checks.read(steps, sql)[0][0]

    def _primary_key(self, rows: Any) -> list[str]:
        """The columns of a table's primary key, if it has one."""
        found = self.db.execute(PRIMARY_KEY, ["oid"], [rows.oid])
        return [row["attname"] for row in found]

    def _check_folds(self) -> None:
        """Raises MopError where the folds cannot choose among the trials of this call."""
        db, a = self.db, self.arguments
        assert a.folds is not None
        check_folds(db, a.folds, {})
        if a.valid not in (None, 0, SHARE):
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

    def _check_without_nets(self) -> None:
        """Raises MopError where the call asks for what nets alone have."""
        a, hint = self.arguments, f"families => '{', '.join(trained.FAMILIES)}'"
        asked = [name for name in ("folds", "layers") if getattr(a, name) is not None]
        if asked:
            raise MopError(f"{asked[0]} applies to nets, but this call trains none", hint=hint)

    def _groups(self, rows: Any, steps: Any = None) -> int:
        """The number of groups of a table or view. Raises MopError where they are fewer than the folds."""
        by, folds = split_names(self.arguments.by)[:1], self.arguments.folds or 0
        rows_read = self.db.input_table(rows, "table of a step", rows=False) if isinstance(rows, str) else rows
        columns = columns_named(self.db, rows_read, "by", by)
        if not columns:
            raise MopError("split => 'group' needs a column", hint="by => 'column'")
        column = columns[0]
        name = quote_identifier(column)
        sql = f"SELECT count(DISTINCT {name}) + count(DISTINCT 1) FILTER (WHERE {name} IS NULL) FROM {rows_read}"
        count = self._value(sql, steps)
        if count < folds:
            raise MopError(
                f'column "{column}" has {count} group{"s" * (count != 1)} in {rows_read}, fewer than the {folds} folds',
                detail="All rows of a group are in one fold.",
                hint=f"folds => {count}" if count > 1 else "Leave out folds.",
            )
        return count

    # --- the steps ---

    def run(self, session: Any, version: int, use: bool) -> str:
        """Train, and add the version; returns the report. Raises MopError."""
        db, times = self.db, self.times
        preparing = times.begin(time_shares.PREPARE)
        self.relations = StepRelations(db, self.name, step_prefix(db, self.name, version))
        n = self.relations.names
        if db.explaining is not None:
            explained_training.explain(self, n, version)
        training_checks.tell_beginning(db, self.name, self.seconds)
        with Steps(db, f"mop_train {self.name}") as steps:
            times.told = steps.tell
            steps.tell(time_shares.PREPARE, times.left)
            self.begin(steps)
            same_rows.check(db, steps, str(self.source))
            try:
                self.read_query(steps, n)
                self.split_rows(steps, n)
                self.draw_rows(steps, n, preparing)
                self.pack_parts(steps, n)
                kind = self.kind(steps, n)
                metric = self.judged_by(kind)
                self.tell_of_rows(steps, n, kind)
                self._may_be_balanced(kind)
                reasons = self.without_others(n)
                if self.has_perceptrons_alone(reasons):
                    self.has_nets = False
                    times.leave_out(time_shares.NETS, time_shares.OTHERS, not self.are_folds_possible)
                if self.has_nets:
                    self.make_nets(steps, n)
                rows, others = self._train_others(steps, session, n, reasons)
                if self.has_nets:
                    self.search_nets(steps, n, kind)
                with db.undone():
                    best, trial = self._best_trial(n) if self.has_nets else (0, None)
                    members = self._ensemble(session, n, rows, others)
                place = n["search"], best
                again: dict[str, Any] = {}
                if self.may_refit and "valid" in self.parts:
                    again, place = refit.run(self, steps, session, n, rows, members, place, best, others)
                whole: dict[str, Any] = {}
                judged: Judged | None = None
                if self.may_train_at_last:
                    with db.undone():
                        number = self._add(place, members, trial, kind, use)
                        judged = self._judged(session, number, n, members, metric, use)
                    whole, place = refit.run(
                        self, steps, session, n, rows, members, place, best, others, refit.ALL_PARTS
                    )
                # an error gives back its locks, so that the steps' tables can be dropped
                with db.plpy.subtransaction():
                    kept = {
                        **others.to_json(),
                        **({"refit": again} if again else {}),
                        **({"final": {**whole, "until": self._latest(n)}} if whole else {}),
                    }
                    made = self._made(session, n, place, members, trial, kept, kind, metric, judged, use)
            except BaseException:
                steps.finish(self.relations.dropping())
                raise
        number, model, details, switched, said = made
        return training_report.text(self, number, model, metric, details, trial, switched, said)

    def _made(
        self,
        session: Any,
        n: dict[str, str],
        place: tuple[str, int],
        members: ensembles.Ensemble | None,
        trial: dict[str, Any] | None,
        kept: dict[str, Any],
        kind: str,
        metric: Metric,
        judged: Judged | None,
        use: bool,
    ) -> tuple[int, NamedModel, dict[str, Any], bool, list[str]]:
        """Add the version, and measure it: (its number, the model, its details, whether it is in use, what is said of its
        measures). `place`: of the best net; `kept`: what details have of the other families and of training again; `judged`:
        its measurement, if that came before training on the test rows."""
        db, times = self.db, self.times
        if members is None:
            self.made_by = self._call("mop_deploy", [self.name, *place], {})
            self.statements.append(self.made_by)
        number = self._add(place, members, trial, kind, use)
        model = NamedModel.find(db, self.name, number)
        if judged is None:
            judged = self._judged(session, number, n, members, metric, use)
        if judged.is_better and not use:
            switch(db, str(table_of(db, self.name)), number)
        trials = db.value(f"SELECT count(*) FROM {self._found(n['search'], '_trials')}") if self.has_nets else 0
        details = {
            "arguments": self.arguments.to_json(),
            "parts": self.queries,
            **({"folds": self._means(n, trial["mst_key"])} if self.arguments.folds is not None and trial else {}),
            "statements": self.statements,
            **({"net": trial["net"], "iterations": trial["iterations"]} if trial is not None else {}),
            **(self._described(n, members) if members is not None else {}),
            **kept,
            "trials": trials,
            "rows": self.parts,
            **({"drawn": self.drawn} if self.drawn else {}),
            **({"left_out": times.left_out} if times.left_out else {}),
            "metric": metric.name,
            **judged.details,
            "seconds": {**times.seconds, "all": times.elapsed},
        }
        self._complete(number, judged.metrics, details)
        self.relations.end(bool(self.arguments.keep))
        return number, model, details, judged.is_better, judged.said

    def _judged(
        self,
        session: Any,
        number: int,
        n: dict[str, str],
        members: ensembles.Ensemble | None,
        metric: Metric,
        use: bool,
    ) -> Judged:
        """Measure version `number` on the test part. `use`: the version comes into use in any case."""
        model = NamedModel.find(self.db, self.name, number)
        self.times.begin(time_shares.MEASURE)
        judged = self._measured(session, n, model, members, metric)
        judged.is_better = use or number == 1 or self._is_better(session, metric, model, judged.metrics, n)
        return judged

    def _latest(self, n: dict[str, str]) -> str:
        """The latest value of the column that the rows are split by, as text."""
        return str(self.db.value(f"SELECT max({quote_identifier(self.by)})::text FROM {self._found(n['test_view'])}"))

    def _measured(
        self, session: Any, n: dict[str, str], model: NamedModel, members: ensembles.Ensemble | None, metric: Metric
    ) -> Judged:
        """The new version on the test part, beside simple models. Without a test part, the metric in validation."""
        if "test" not in self.parts:
            self.times.end()
            metrics = {} if members is None else {metric.name: members.value}
            said = "There is no test part: the rows that have chosen have judged, so they judge too well."
            return Judged(metrics, {}, [said])
        measurement = reports.measure(self.db, session, model, n["test"], baselines.is_taken)
        metrics = measurement.measures(metric.share)
        contenders_here, comparison = [Contender("pg_mop", metrics)], ""
        if time_shares.BASELINES in self.timed_steps:
            more, comparison = self._baselines(session, n, model, measurement, metrics, metric)
            contenders_here += more
        self.times.end()
        main = "r2" if model.regression else "accuracy"
        without = 0.0 if model.regression else scores.most_frequent(measurement.truth)
        training_checks.tell_giveaway(self.db, session, model, n["test"], main, metrics[main], without)
        interval = measurement.interval(metric.name, metric.share) or [metrics.get(metric.name, math.nan)] * 2
        details = {
            "interval": list(interval),
            "contenders": {contender.name: contender.metrics for contender in contenders_here},
        }
        return Judged(metrics, details, [*training_report.of_absent(measurement), *filter(None, [comparison])])

    def _baselines(
        self,
        session: Any,
        n: dict[str, str],
        model: NamedModel,
        measured: reports.Measured,
        own: dict[str, float],
        metric: Metric,
    ) -> tuple[list[Contender], str]:
        """The simple models, and what is to say about them."""
        seconds: float | None = self.times.begin(time_shares.BASELINES)
        if not self.times.allows("simple models of scikit-learn", LEAST_SECONDS):
            seconds = None
        most = baselines.most_rows_in(model, seconds or 0.0)
        examples = baselines.of_packed(self.db, model, n["packed"], most)
        found = baselines.contenders(self.db, session, model, examples, measured, seconds, metric.share)
        said = baselines.better(measured, own, found, metric)
        if len(examples.truth) < examples.of and len(found) > 1:
            rows = f"The simple models are trained on {len(examples.truth)} of {examples.of} rows, drawn at random."
            said = f"{rows}\n  {said}" if said else rows
        return found, said or ""

    def begin(self, steps: Steps) -> None:
        """Reserve the names of the steps' relations, and drop what an earlier call has left. Raises MopError."""
        self.relations.reserve()
        # there is no such version: what was kept of one has no model
        steps.run(self.relations.dropping(self.relations.kept), quiet=True)
        self.relations.begin()

    def say(self, steps: Steps, sql: str, made: list[str] | None = None, quiet: bool = False) -> None:
        """Run a statement that the report will show; `made`: the tables that it makes, as far as they are needed.

        The same transaction gives the tables our comment. If the call is killed, the next call finds them by it.
        """
        self.statements.append(sql)
        self._run(steps, sql, made, quiet)

    def _run(self, steps: Steps, sql: str, made: list[str] | None = None, quiet: bool = False) -> None:
        steps.run(sql + (self.relations.marking(made) if made else ""), quiet)

    def read_query(self, steps: Steps, n: dict[str, str]) -> None:
        """Store the rows of a query, which so runs once."""
        if self.query is not None:
            self._run(
                steps,
                f"CREATE UNLOGGED TABLE {self.ref(n['rows'])} AS {str(self.source).strip().rstrip(';')}\n;",
                [n["rows"]],
            )
            self._count(self._found(n["rows"]), steps)

    def split_rows(self, steps: Steps, n: dict[str, str]) -> None:
        a, prefix = self.arguments, self.relations.prefix
        method, by = a.split, a.by
        if method is None:
            method = "random"
        valid = a.valid if a.folds is None else 0
        arguments = {"valid": valid, "test": a.test, "method": method, "by": by, "id": a.id}
        self.statements.append(self._call("mop_split", [self.source, prefix], arguments, "SELECT * FROM"))
        source = self.source if self.query is None else n["rows"]
        values = [source, prefix, *arguments.values(), step_relations.REMARK]
        parts = steps.run(self._call("mop_split_for", values, {}, "SELECT * FROM"))
        self.parts = {part: rows for part, rows, _ in parts}
        self.queries = {part: query for part, _, query in parts}
        if self.query is not None:
            from_sql = f"FROM {self._found(n['rows'])} t"
            self.queries = {
                part: query.replace(from_sql, f"FROM {in_brackets(self.query)} t")
                for part, query in self.queries.items()
            }
        if "test" not in self.parts and "valid" not in self.parts and a.folds is None:
            raise MopError("the split has no part that judges", hint="valid => 0.2, test => 0.2")
        if a.folds is None and "valid" not in self.parts and self.has_nets:
            self._choose_by_folds(n, steps)
        elif a.folds is not None and "valid" in self.parts:
            raise MopError(
                "folds and a validation part cannot be combined",
                detail=f'Column "{by}" has rows of a validation part.',
                hint="Leave out folds, or give these rows to the training part.",
            )

    def _choose_by_folds(self, n: dict[str, str], steps: Any) -> None:
        """There is no validation part: folds of the training part choose among nets, where they can. Raises MopError."""
        if self.split == "time":
            self.db.warning(
                "there is no validation part, so the loss on training rows chooses",
                detail="Folds would train on later rows than those that they are evaluated on.",
                hint="valid => 0.2",
            )
            return
        folds = FOLDS
        if self.split == "group":
            folds = max(2, min(FOLDS, self._groups(n["train"], steps)))
        self.db.notice(f"there is no validation part: {folds} folds of the training part choose", hint="valid => 0.2")
        self.arguments = dataclasses.replace(self.arguments, folds=folds, valid=0)
        self._check_folds()

    def most_rows(self, steps: Any, n: dict[str, str], preparing: float) -> dict[str, int]:
        """How many rows the time limit allows, of the parts of which that is fewer than all; `preparing`: seconds for all of
        the preparation."""
        if max(self.parts.values()) <= drawn_rows.LEAST_VALID:
            return {}
        ((width,),) = training_checks.read(steps, drawn_rows.width_sql(self.ref(n["train"]), self.columns))
        speed = drawn_rows.Speed.of(len(self.used), float(width))
        most = drawn_rows.most_rows(
            self.parts,
            speed,
            packing=max(preparing - self.times.elapsed, LEAST_SHARE * self.seconds),
            nets=self.times.planned(time_shares.NETS) if self.has_nets else 0.0,
            measuring=self.times.planned(time_shares.MEASURE),
            sessions=settings.cores(),
        )
        self.times.need(time_shares.MEASURE, most.get("test", self.parts.get("test", 0)) * speed.row)
        return most

    def draw_rows(self, steps: Steps, n: dict[str, str], preparing: float) -> None:
        """Draw rows of the parts that are too large for the time limit; `preparing`: as for `most_rows`."""
        for part, rows in self.most_rows(steps, n, preparing).items():
            view, of = self.ref(n[part]), self.parts[part]
            if part == "train" and self.split == "time":  # old rows tell less about those to come
                read = functools.partial(training_checks.read, steps)
                which = drawn_rows.latest(read, view, self.by, rows, of, self.keys)
            else:
                which = drawn_rows.condition(rows / of, self.keys)
            drawn = n[f"{part}_drawn"]
            sql = f"CREATE UNLOGGED TABLE {self.ref(drawn)} AS SELECT * FROM {view} t WHERE {which};"
            self.statements.append(sql)
            self._run(steps, f"{training_checks.PINNED} {sql}", [drawn])
            n[part] = drawn
            self.drawn[part] = int(self._value(f"SELECT count(*) FROM {self.ref(drawn)}", steps))

    def used_rows(self, part: str) -> int:
        """The rows of a part that this call reads."""
        return self.drawn.get(part, self.parts.get(part, 0))

    def pack_parts(self, steps: Steps, n: dict[str, str]) -> None:
        a = self.arguments
        weight = None if self.balanced else a.weight
        arguments = {
            "target": self.target,
            **{k: getattr(a, k) for k in ("id", "exclude", "kind")},
            "transform": self.transform,
            "weight": weight,
        }
        if self.split == "column" and a.by:
            arguments["exclude"] = ", ".join(filter(None, (arguments["exclude"], a.by)))
        if self.present is not None:
            arguments = {"fitted_on": self.name, "weight": weight}
        if a.folds is not None:
            least = self.segments
            if self.split == "group":
                arguments["grouped_by"] = a.by
                least = min(least, self._groups(n["train"], steps))
            if least < self.segments or least < a.folds:  # a fold holds out whole segments
                self.say(steps, f"SET pg_mop.segments = {a.folds};")
        self.pack(steps, n["train"], n["packed"], arguments)
        if "valid" in self.parts:
            self.pack(steps, n["valid"], n["checked"], {"fitted_on": n["packed"]})

    def pack(self, steps: Steps, part: str, output: str, given: dict[str, Any]) -> None:
        # mop_pack itself comments on the packed table
        self.say(steps, self._call("mop_pack", [part, output], given), [self.db.suffixed(output, "_summary")])

    def make_nets(self, steps: Steps, n: dict[str, str]) -> None:
        """Make the nets, or those with their weights of the version whose training goes on, if it has any."""
        if self.present is not None and self._load_nets(steps, n, self.present):
            return
        arguments = {"layers": self.arguments.layers}
        self.say(steps, self._call("mop_architecture", [n["nets"], n["packed"]], arguments), [n["nets"]], True)

    def kind(self, steps: Steps, n: dict[str, str]) -> str:
        """The kind of the target, as it is packed."""
        row = steps.run(f"SELECT to_json(s)->>'dependent_dtype' FROM {self.ref(n['packed'], '_summary')} s")
        return "regression" if row[0][0] == "float32" else "classification"

    def judged_by(self, kind: str) -> Metric:
        """The metric of this call for a kind of targets. Raises MopError."""
        return Metric.of_call(self.arguments.metric, kind == "regression", self.column)

    def _load_nets(self, steps: Steps, n: dict[str, str], version: int) -> bool:
        """Load the nets of a version, with their weights: training goes on with each member of an ensemble. False where the
        version has trees alone."""
        table = table_of(self.db, self.name)
        load, nets = f"SELECT {written(self.db.schema)}.load_keras_model", quote_literal(n["nets"])
        loaded_from = f"FROM {self.ref(self.name)} m WHERE m.version = {version};"
        members = ensembles.nets_of(self.db, table, version)
        for number, member in enumerate(members or (), 1):
            value = f"substring(m.model_weights FROM {member.first + 1} FOR {member.bytes})"
            what = quote_literal(f"version {version}, member {number}")
            self.say(steps, f"{load}({nets}, {member.arch_sql}, {value}, {what}) {loaded_from}", [n["nets"]], True)
        if members is not None:
            return bool(members)
        self.say(
            steps,
            f"{load}({nets}, m.model_arch, m.model_weights, 'version {version}') {loaded_from}",
            [n["nets"]],
            True,
        )
        if (parts := weights.existing(self.db, str(table), weights.READING)) is not None:
            copy = self.db.suffixed(n["nets"], weights.SUFFIX)
            self.say(steps, f"CREATE TABLE {self.ref(copy)} AS TABLE {parts};", [copy], True)
        return True

    @property
    def transform(self) -> str | None:
        """The argument `transform` of mop_pack for the training rows."""
        return with_scale(self.arguments.transform, self.column, Metric.read(self.arguments.metric))

    def tell_of_rows(self, steps: Steps, n: dict[str, str], kind: str) -> None:
        """Warn the caller of copies of rows, of a target with a long tail, and of a rare class."""
        train = self._found(n["train"])
        if "test" not in self.parts:
            pass
        elif "train" in self.drawn:
            self.times.left_out.append("whether test rows are copies of training rows")
        else:
            training_checks.tell_copies(self.db, steps, train, self._found(n["test"]), self.used, self.parts)
        if kind == "regression":
            if self.column not in json.loads(self.transform or "{}"):
                training_checks.tell_long_tail(self.db, steps, train, self.column)
        elif self.arguments.weight is None:
            training_checks.tell_rare_class(self.db, steps, train, self.column)

    def _may_be_balanced(self, kind: str) -> None:
        if self.balanced and kind == "regression":
            raise MopError("weight => 'balanced' needs classes, but the target has numbers", hint="Leave weight out.")

    @property
    def timed_steps(self) -> list[str]:
        """The steps that the time limit is divided among."""
        has_others = self.families != (trained.NETS,)
        steps = {
            time_shares.OTHERS: has_others,
            time_shares.NETS: self.has_nets,
            time_shares.ENSEMBLE: self.has_nets and self.arguments.folds is None,
            time_shares.REFIT: self.may_refit,
            time_shares.BASELINES: self.arguments.baselines is not False and self.has_test,
            time_shares.FINAL: self.may_refit and self.split == "time" and self.has_test,
        }
        return [time_shares.PREPARE, time_shares.MEASURE, *(step for step, has in steps.items() if has)]

    @property
    def has_test(self) -> bool:
        """Whether there may be a test part: the values of a column decide about it, where one has the parts."""
        return self.split == "column" or self.arguments.test != 0

    @property
    def may_refit(self) -> bool:
        """Whether the chosen models are trained again on the validation rows, too."""
        return self.arguments.refit is not False and self.arguments.folds is None and self.arguments.valid != 0

    @property
    def may_train_at_last(self) -> bool:
        """Whether the chosen models are trained on all rows when they have been measured."""
        return time_shares.FINAL in self.timed_steps and all(part in self.parts for part in refit.ALL_PARTS)

    def without_others(self, n: dict[str, str]) -> dict[str, str | None]:
        """Why this call trains no models of its families but nets; None: it trains them."""
        families = [family for family in self.families if family != trained.NETS]
        if "valid" not in self.parts:
            return dict.fromkeys(families, "they need a validation part, which chooses among them")
        with self.db.undone():  # (a lock of this session's would keep a failed call from dropping the table)
            return ensembles.obstacles(PackedTable(self.db, n["packed"], "packed table").shaped, families)

    def has_perceptrons_alone(self, reasons: dict[str, str | None]) -> bool:
        """Whether perceptrons take the place of nets: the time is too short to compile these, or the rows are few, so that
        folds of them choose. `reasons`: why other families are not trained."""
        if (
            not self.has_nets
            or self.present is not None
            or trained.MLP not in reasons
            or reasons[trained.MLP] is not None
        ):
            return False
        if self.arguments.families is not None or self.arguments.layers is not None:
            return False
        return self.are_folds_possible or self.times.planned(time_shares.NETS) < LEAST_FOR_NETS

    @property
    def are_folds_possible(self) -> bool:
        """Whether the training rows may choose, too, among models that are trained without a fold of them."""
        known = sum(map(self.used_rows, refit.PARTS))
        return self.split in ("random", "stratified") and "valid" in self.parts and known <= folded.MOST_ROWS

    def _train_others(
        self, steps: Steps, session: Any, n: dict[str, str], reasons: dict[str, str | None]
    ) -> tuple[Any, ensembles.Others]:
        """The validation rows, if they are needed, and the models of other families than nets. `reasons`: as of
        `without_others`."""
        others = ensembles.Others()
        if all(reasons.values()) and not self.has_nets:
            raise MopError(
                f"no model can be trained: {'; '.join(sorted(set(map(str, reasons.values()))))}",
                hint=f"families => '{trained.NETS}'",
            )
        for family, reason in reasons.items():
            if reason is not None and self.arguments.families is not None:
                self.db.notice(f"the family {family} is not trained: {reason}")
        if all(reasons.values()):
            return None, others
        try:
            seconds = self.times.begin(time_shares.OTHERS)
            with self.db.undone():
                rows = ensembles.Rows(self.db, n["checked"], self.balanced, self.arguments.metric)
            most = self.arguments.max_trials
            by_folds = not self.has_nets and self.are_folds_possible
            given = self.db, session, n["packed"], rows, tuple(reasons), seconds, True, most, by_folds
            others.train(*given, lambda family, *trials: steps.tell(family, self.times.left, *trials))
        except MopError as error:
            if not self.has_nets:
                raise
            self.db.warning(f"nets answer alone: {error.message}", detail=error.detail, hint=error.hint)
            return None, ensembles.Others()
        finally:
            session.give_back()  # the search may need the trainer
        return rows, others

    def search_nets(self, steps: Steps, n: dict[str, str], kind: str) -> None:
        """Search nets in their part of the time."""
        seconds = self.times.begin(time_shares.NETS)
        prepared = self.times.elapsed - self.times.seconds.get(time_shares.OTHERS, 0.0)
        rows = self.used_rows("train")
        small = 32 if rows < 20_000 else 128 if rows < 200_000 else 512
        loss, metrics = "categorical_crossentropy", ["accuracy"]
        if kind == "regression":
            loss, metrics = self.judged_by(kind).training_loss, ["mae"]
        passes, together = passes_for(rows, small, seconds), TOGETHER if seconds >= SHORT else TOGETHER_IN_SHORT
        rates = [f"Cosine({rate if self.present is None else rate / 10:g}, {passes})" for rate in RATES]
        space = {
            "loss": [loss],
            "metrics": [metrics],
            "optimizer_params_list": [{"optimizer": ["AdamW"], "lr": rates, "weight_decay": DECAYS}],
            "batch_size": [small],
            "epochs": [1],
        }
        if self.balanced:
            space["class_weight"] = ["balanced"]
        if prepared > 0.6 * self.seconds:
            self.db.warning(
                f"preparing the rows has taken {prepared:.0f} s of the time_limit of {self.seconds:.0f} s",
                hint=f"time_limit => '{math.ceil(6 * prepared)} s'",
            )
        arguments: dict[str, Any] = {
            "procedure": "asha",
            "procedure_params": f"iterations={passes}, least=3, parallel={together}",
            "validation_table": n["checked"] if "valid" in self.parts else None,
            "time_limit": f"{seconds:.1f} s",
            "max_trials": self.arguments.max_trials,
            "folds": self.arguments.folds,
        }
        call = self._call("mop_search", [n["packed"], n["search"], n["nets"], str(space)], arguments)
        self.say(
            steps,
            call,
            [self.db.suffixed(n["search"], end) for end in (*step_relations.OF_SEARCH, weights.SUFFIX)],
            True,
        )

    def _means(self, n: dict[str, str], best: int) -> dict[str, Any]:
        """The means and deviations over the folds of the chosen trial."""
        row = self.db.one(
            f"SELECT metrics_type[1] AS metric, folds_metrics_mean AS mean, folds_metrics_deviation AS deviation, "
            f"folds_loss_mean AS loss_mean, folds_loss_deviation AS loss_deviation "
            f"FROM {self._found(n['search'], '_info')} WHERE mst_key = {int(best)}"
        )
        assert row is not None
        return {"number": self.arguments.folds, **row}

    def _call(self, function: str, values: list[Any], given: dict[str, Any], verb: str = "SELECT") -> str:
        """SQL that calls one of our functions, as a user writes it."""
        arguments = [str(value) if isinstance(value, int) else quote_literal(value) for value in values]
        for name, value in given.items():
            if value is not None:
                said = str(value).lower() if isinstance(value, (int, float)) else quote_literal(value)
                arguments.append(f"{name} => {said}")
        return f"{verb} {written(self.db.schema)}.{function}({', '.join(arguments)});"

    def ref(self, name: str, suffix: str = "") -> str:
        """SQL for a relation by its name, as the caller writes it."""
        return step_relations.ref(self.db, self.db.suffixed(name, suffix))

    def _found(self, name: str, suffix: str = "") -> str:
        return str(self.db.input_table(self.db.suffixed(name, suffix), "table of a step", rows=False))

    # --- the result ---

    def _best_trial(self, n: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """The best trial's number, and what the report says of it. Raises MopError."""
        best = self.db.value(f"SELECT best_mst_key FROM {self._found(n['search'], '_summary')}")
        if best is None:
            raise MopError("no trial was evaluated within the time limit", hint="Give a longer time_limit.")
        trial = self.db.one(
            "SELECT t.mst_key, t.compile_params, t.fit_params, t.iterations, a.name AS net "
            f"FROM {self._found(n['search'], '_trials')} t "
            f"JOIN {self.db.find_table(n['nets'])} a USING (model_id) WHERE mst_key = {int(best)}"
        )
        assert trial is not None
        return int(best), trial

    def _ensemble(
        self, session: Any, n: dict[str, str], rows: Any, others: ensembles.Others
    ) -> ensembles.Ensemble | None:
        """The models whose mean answers; None where no validation rows choose: the best net answers alone. `rows`: for
        validation, if they are read."""
        if "valid" not in self.parts:
            return None
        search, more = n["search"] if self.has_nets else None, dict[str, Any]()
        if others:
            families = ", ".join(others.to_json())
            more = {"trained_on": n["packed"], "families": families, "time_limit": f"{others.seconds:.1f} s"}
            if self.balanced and not self.has_nets:
                more["balanced"] = True
            if others.rows is not None:
                more["folds"] = True
        seconds = self.times.begin(time_shares.ENSEMBLE) if self.has_nets else LEAST_SECONDS
        try:
            rows = rows or ensembles.Rows(self.db, n["checked"], self.balanced, self.arguments.metric)
            nets = ensembles.candidates_of(self.db, search, self.most_members) if self.has_nets else []
            found = ensembles.choose(self.db, session, search, nets, rows, self.most_members, others, seconds)
        except MopError as error:  # the trials are trained: the best of them is an answer
            if not self.has_nets:
                raise
            self.db.warning(f"the best trial answers alone: {error.message}", detail=error.detail, hint=error.hint)
            return None
        arguments = {"members": self.most_members, **more, "metric": self.arguments.metric}
        self.made_by = self._call("mop_ensemble", [search, n["checked"], self.name], arguments)
        self.statements.append(self.made_by)
        return found

    def _described(self, n: dict[str, str], members: ensembles.Ensemble) -> dict[str, Any]:
        """The details of an ensemble, with the names and the iterations of its members' nets."""
        known: dict[int, dict[str, Any]] = {}
        keys = ", ".join(str(member.key) for member in members.nets if member.model is not None)
        if keys:
            rows = self.db.execute(
                f"SELECT t.mst_key, t.iterations, a.name AS net FROM {self._found(n['search'], '_trials')} t "
                f"JOIN {self.db.find_table(n['nets'])} a USING (model_id) WHERE mst_key IN ({keys})"
            )
            known = {row["mst_key"]: {"net": row["net"], "iterations": row["iterations"]} for row in rows}
        details = members.to_json()
        details["members"] = [{**member, **known.get(member.get("mst_key"), {})} for member in details["members"]]
        names = (member.get("net", member["family"]) for member in details["members"])
        iterations = [member["iterations"] for member in details["members"] if "iterations" in member]
        return {
            "net": ", ".join(dict.fromkeys(names)),
            **({"iterations": iterations[0]} if iterations else {}),
            "ensemble": details,
        }

    def _add(
        self,
        best: tuple[str, int],
        members: ensembles.Ensemble | None,
        trial: dict[str, Any] | None,
        kind: str,
        use: bool,
    ) -> int:
        more: dict[str, Any] = {
            "kind": kind,
            "description": f"trained on {self.source}"[:200],
            "statement": self.made_by,
        }
        if members is None:
            assert trial is not None
            model = StoredModel(self.db, *best)
            if self.balanced:
                more["transform"] = ensembles.balanced_transform(model)
            version = version_of(model, fit_params=trial["fit_params"], **more)
        else:
            fit_params = next((net.info["fit_params"] for net in members.nets if net.model is not None), None)
            version = members.version(fit_params=fit_params, **more)
        return add_version(self.db, self.name, version, use)

    def _is_better(
        self, session: Any, metric: Metric, model: NamedModel, metrics: dict[str, float], n: dict[str, str]
    ) -> bool:
        """Whether the new version, whose `metrics` are of the test part, is better there than the one in use. Rows that the
        one in use was trained on say nothing: where it was trained at last on test rows of its own, later rows decide."""
        db, in_use, source = self.db, NamedModel.find(self.db, self.name), n["test"]
        until = db.value(f"SELECT details #>> '{{final,until}}' FROM {in_use.table} WHERE version = {in_use.version}")
        if until is not None and self.by:
            rows = f"{self._found(n['test'])} WHERE {quote_identifier(self.by)} > {quote_literal(until)}"
            if not db.value(f"SELECT EXISTS (SELECT FROM {rows})"):
                db.notice(f"no test row is later than {until}, until when version {in_use.version} was trained")
                return False
            source = f"SELECT * FROM {rows}"
            metrics = reports.measure(db, session, model, source).measures(metric.share)
        before = reports.measure(db, session, in_use, source).measures(metric.share)
        return metric.is_better(metrics.get(metric.name, math.nan), before.get(metric.name, math.nan))

    def _complete(self, number: int, metrics: dict[str, float], details: dict[str, Any]) -> None:
        table = table_of(self.db, self.name)
        self.db.execute(
            f"UPDATE {table} SET metrics = $2::jsonb, details = $3::jsonb || jsonb_build_object('signature', "
            f"{self.db.extension}.mop_sign({signed('$3::jsonb')})) WHERE version = {number}",
            ["oid", "text", "text"],
            [table.oid, finite_json(metrics), finite_json(details)],
        )


def passes_for(rows: int, batch_size: int, seconds: float) -> int:
    """The passes over so many rows of a trial that trains to the end: 3, 9, 27, 81 or 243.

    >>> [passes_for(rows, 32, 30) for rows in (100, 5000, 100_000, 1_000_000)]
    [243, 27, 3, 3]
    """
    passes = PASSES
    while passes < 243 and passes * max(1, rows // batch_size) < LEAST_STEPS:
        passes *= 3
    while passes > 3 and passes * rows > seconds / 2 * ROWS_A_SECOND:
        passes //= 3
    return passes


@with_trainer
def mop_compare(
    db: Database, session: Session, name: str | None, first: int | None, second: int | None, source: str | None
) -> list[tuple[str, float, float, float]]:
    """Two versions of a model on the same rows: [(metric, first, second, difference)]."""
    values = []
    for version in (first, second):
        model = NamedModel.find(db, name, version)
        values.append(reports.measure(db, session, model, source).measures())
    return [
        (metric, value, values[1][metric], values[1][metric] - value)
        for metric, value in values[0].items()
        if metric in values[1]
    ]
