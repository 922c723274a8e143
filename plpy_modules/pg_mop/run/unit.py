"""One unit, inside its worker session: read the state, run the aggregate over the segment, write the state.

The coordinator sends the unit as JSON within BEGIN ... COMMIT; whatever fails here rolls back whole, so that the model
stays at its version and the unit undone. What a unit does is a coroutine, whose SQL is run as backend/queries.py says.
"""

import functools
import json
import math
import operator
import time

from mop_udf import aggregate, params
from mop_udf.errors import raise_error
from pg_mop.backend import object_table
from pg_mop.backend.database import Database, MopError, extension_schema, finite_json, quote_identifier
from pg_mop.backend.queries import Query, as_text, by_spi, rows_of
from pg_mop.backend.trainers import put_state, trainer_at
from pg_mop.inference.model import Model


def start_trainer(plpy, options):
    """Start this session's trainer, which imports Keras while the coordinator still plans."""
    holder, options = aggregate.session(plpy), json.loads(options)
    by_spi(holder, trainer_at(holder, _schema(plpy, holder), options.get("place")).start(options, True))


def _schema(plpy, holder):
    """The extension's schema, quoted; asked for once in a session."""
    if holder.schema is None:
        holder.schema = quote_identifier(extension_schema(plpy))
    return holder.schema


def run_unit(plpy, text):
    """Train or evaluate as the unit (JSON) says; the units' rows in the catalog, already there, get the results.

    `unit["models"]` lists what differs between the models, of which there may be several: stage, iteration, attempt,
    version, epochs, kernel, and the passes that are left. They are trained one after the other, or evaluated in one
    pass over the rows.

    Raises SQLSTATE MOP01 where the configuration is at fault, MOP02 where the trainer was lost, MOP03 where the source
    has changed since the run began, MOP04 where a trainer takes too much memory. Of several models one is enough to
    fail.
    """
    holder = aggregate.session(plpy)
    work = _Work(plpy, holder, json.loads(text))
    try:
        with aggregate.failures_as_sql(plpy, holder):
            by_spi(holder, work.run())
    except BaseException:
        work.trainer.failed()
        raise


def next_statement(plpy, text, answer):
    """Greenplum: as run_unit, but for the SQL: the statement that is to be run next, None: there are no more.

    `text`: the unit, with which it begins; then None, and `answer`, the last statement's row as JSON.
    """
    holder = aggregate.session(plpy)
    rows = None if text is not None else rows_of(answer)
    if text is not None:
        holder.steps = _Work(plpy, holder, json.loads(text)).run()
    with aggregate.failures_as_sql(plpy, holder):
        try:
            return as_text(holder.steps.send(rows))
        except StopIteration:
            holder.steps = None


class _Work:
    """One unit's work in this session's transaction."""

    def __init__(self, plpy, holder, unit):
        self.plpy, self.holder, self.unit = plpy, holder, unit
        self.schema = _schema(plpy, holder)
        self.trainer = trainer_at(
            holder, self.schema, unit["options"].get("place"), unit.get("places"), unit.get("object_table")
        )
        self.done = []  # what is to be noted of models, at last
        self.models = unit["models"]
        self.train = unit["kind"] == "train"

    def run(self):
        unit = self.unit
        began = time.monotonic()
        # for the whole transaction: see sql/12_journal.sql
        self.token = (yield Query(f"SELECT token FROM {self.schema}.mop_tokens"))[0]["token"]
        found = yield from self.found()
        yield from self.check_rows()
        if "predict" in unit:
            yield from self.predict(found[0])
            return
        objects = [_rights(self.plpy, unit["object_table"], model) for model in found]
        header = {
            **{
                name: unit[name]
                for name in (
                    "kind",
                    "seed",
                    "same_start",
                    "segment",
                    "dtypes",
                    "inputs",
                    "outputs",
                    "rows",
                    "replicas",
                    "run_seconds",
                    "share_prefixes",
                    "keep",
                )
            },
            "nbytes": unit["bytes"],
            "dataset": unit["dataset_key"],
        }
        keeps = yield from self.trainer.begin(unit["options"], header, found, objects)
        # rows that cannot be kept are read for each training anew
        parts = [slice(None)] if keeps or not self.train else [slice(n, n + 1) for n in range(len(found))]
        for these in parts:
            self.holder.coming = (lambda: self.read_ahead(unit["coming"])) if these is parts[-1] else None
            yield from self.together(
                self.models[these], {**header, "keeps_rows": keeps}, found[these], objects[these], began
            )
            began = time.monotonic()
        # last of all: on Greenplum an UPDATE locks a table for all others
        yield from self.finish()

    def together(self, models, header, found, objects, began):
        """Train or evaluate models on the segment's rows, which come once, as the unit's `header` tells the trainer."""
        unit, trainer = self.unit, self.trainer
        states = yield from self.states(models)
        yield from trainer.give(header, found, states, objects)
        report, sent = yield from trainer.work(unit["rows_sql"])
        reports = report["models"]
        if sent:
            yield from self.check_rows()  # again: they were read by a later statement, which may have seen others
        rest = max(0.0, time.monotonic() - began - sum(own["seconds"] for own in reports)) / len(reports)
        sizes, since = [None] * len(models), time.monotonic()
        if self.train:
            sizes = yield from trainer.save(
                unit["run_id"],
                [(model["stage"], model["version"] + 1, model["state_table"]) for model in models],
                self.token,
            )
        else:
            yield from self.score([model["stage"] for model in models], [own["sums"] for own in reports])
        written = (time.monotonic() - since) / len(models) if self.train else 0.0
        self.done += [(model, own, size, rest, written) for model, own, size in zip(models, reports, sizes)]

    def predict(self, model):
        """Write the predictions for a partition of raw rows: in parts, as of stage 0 and the segment's number."""
        # (numpy is not for sessions that only train)
        from pg_mop.inference.prediction import Choice, Predictor, Reader, in_pieces, predictions

        unit, told, began = self.unit, self.unit["predict"], time.monotonic()
        yield from self.trainer.start(unit["options"])
        states = yield from self.states(self.models)
        trainer, db = self.holder.trainer, Database(self.plpy, extension_schema(self.plpy))
        try:
            with db.pinned_path():
                lent = Model.from_told(told["model"], model["architecture"], b"".join(part for _, part in states))
                lent.lend(trainer)
                predictor = Predictor(trainer, lent, Choice.for_model(told["pred_type"], lent))
                reader = Reader(db, told["table"], told["identifier"], told["inputs"])
                for number, rows in enumerate(in_pieces(predictions(predictor, reader))):
                    yield put_state(
                        self.schema,
                        unit["run_id"],
                        0,
                        unit["segment"],
                        1,
                        number,
                        json.dumps(rows).encode(),
                        self.token,
                    )
            self.done = [
                (
                    self.models[0],
                    {"kernel": "plain", "rows": reader.rows, "loss": None, "seconds": time.monotonic() - began},
                    None,
                    0.0,
                    0.0,
                )
            ]
            yield from self.finish()
            return
        except MopError as error:
            problem = error
        raise_error(
            self.plpy, f"{problem.message}{problem.hint and f' ({problem.hint})' or ''}", aggregate.CONFIGURATION_FAILED
        )

    def check_rows(self):
        """The segment must hold the very rows that the run began with."""
        unit = self.unit
        if (yield Query(unit["fingerprint_sql"]))[0]["fingerprint"] != unit["fingerprint"]:
            raise_error(
                self.plpy,
                f"the rows of segment {unit['segment']} in {unit['table']} have changed since the run began",
                aggregate.SOURCE_CHANGED,
            )

    def found(self):
        """What the trainer needs to know of each model; those that are to be trained are locked."""
        self.taken = rows = {
            row["stage"]: row
            for row in (
                yield Query(
                    f"SELECT * FROM {self.schema}.mop_take_states($1, $2, $3, $4, $5, $6)",
                    ("bigint", "integer", "integer[]", "integer[]", "boolean", "text"),
                    (
                        self.unit["run_id"],
                        self.unit["fencing_token"],
                        [model["stage"] for model in self.models],
                        [model["version"] for model in self.models],
                        self.train,
                        self.token,
                    ),
                    several=True,
                )
            )
        }
        return [self.told(model, rows[model["stage"]]) for model in self.models]

    @staticmethod
    def told(model, row):
        return {
            "stage": model["stage"],
            "mst_key": row["mst_key"],
            "model_id": row["model_id"],
            "iteration": model["iteration"],
            "architecture": row["model_arch"],
            "compile_params": row["compile_params"],
            "fit_params": row["fit_params"],
            "functions": model.get("functions", []),
            **{name: model.get(name) for name in ("epochs", "kernel", "costs", "passes_left", "run_passes_left")},
            # version 0 has no state, or weights alone: of a warm start or of the architecture table
            "plain_weights": model["version"] == 0,
        }

    def states(self, models):
        """The parts of the states of models, then those of other replicas where there are some: (stage, bytes).

        What a replica begins with is of the others' stages before; it comes under the replica's own.
        """
        versions = [(model["stage"], model["version"]) for model in models]
        if self.unit["replicas"] and versions[0][1] > 0:
            versions += [(stage, versions[0][1]) for stage, _ in self.unit["replicas"] if stage != versions[0][0]]
        ahead, self.holder.ahead = self.holder.ahead, {}
        known = [
            (stage, part)
            for stage, version in versions
            for part in ahead.get((self.unit["run_id"], stage, version), ())
        ]
        unread = [(stage, version) for stage, version in versions if stage not in {stage for stage, _ in known}]
        found = yield from self.trainer.states(self.unit["run_id"], unread, self.token, self.taken)
        return self.complete(known, found, unread)

    def complete(self, known, found, unread):
        """The parts of states that are `known`, then those that are `found`, which must be of all `unread`."""
        yield from known
        read = set()
        for stage, part in found:
            read.add(stage)
            yield stage, part
        for stage, version in unread:
            if version > 0 and stage not in read:
                raise_error(
                    self.plpy,
                    f"the state of stage {stage} of run {self.unit['run_id']} at version {version} is missing",
                    aggregate.SOURCE_CHANGED,
                )

    def read_ahead(self, model):
        """Read the state of the model (stage, version) that the next unit here will most likely be of.

        What is at a version never changes, so that it is as good later; a version that is gone, or is not there yet,
        is read when its time has come.
        """
        if model is not None:
            run_id, wanted = self.unit["run_id"], (model["stage"], model["version"])
            self.holder.ahead = {
                (run_id, *wanted): [
                    part for _, part in by_spi(self.holder, self.trainer.states(run_id, [wanted], self.token, {}))
                ]
            }

    def score(self, stages, sums):
        """Add evaluations' sums, of models of so many stages, to those of the other segments; the last one notes the
        loss and metrics of them all.

        Raises SQLSTATE MOP01 where one of these is not finite.
        """
        unit = self.unit
        found = (
            yield Query(
                f"SELECT * FROM {self.schema}.mop_put_sums($1, $2, $3, $4, $5, $6, $7)",
                ("bigint", "integer[]", "text", "integer", "integer[]", "float8[]", "text"),
                (
                    unit["run_id"],
                    stages,
                    unit["dataset"],
                    unit["segment"],
                    [len(own) for own in sums],
                    [value for own in sums for value in own],
                    self.token,
                ),
            )
        )[0]
        if not found["complete"]:  # (an empty array, or what Greenplum makes of one)
            return
        theirs = {stage: {unit["segment"]: own} for stage, own in zip(stages, sums)}
        if found["whose"]:
            for stage, segment, value in zip(found["whose"], found["segments"], found["value"]):
                if segment != unit["segment"]:
                    theirs[stage].setdefault(segment, []).append(float(value))
        # in the order of the segments, whichever ended first: the same sums every time
        reports = {}
        for stage in found["complete"]:
            reports[stage] = yield from self.trainer.score(
                stages.index(stage),
                [
                    functools.reduce(operator.add, values)
                    for values in zip(*(own for _, own in sorted(theirs[stage].items())), strict=True)
                ],
            )
        for report in reports.values():
            values = [("loss", report["loss"]), *report["metrics"].items()]
            bad = [
                f"{name} is {'NaN' if value != value else 'infinite'}"
                for name, value in values
                if not math.isfinite(value)
            ]
            if bad and unit["finite"]:
                raise_error(self.plpy, f"{bad[0]} on the {unit['dataset']} data", aggregate.CONFIGURATION_FAILED)
        yield Query(
            f"SELECT {self.schema}.mop_note_metrics($1, $2, $3, $4, $5, $6, $7)",
            ("bigint", "integer[]", "text", "float8[]", "float8[]", "text[]", "text"),
            (
                unit["run_id"],
                list(reports),
                unit["dataset"],
                *([report[name] for report in reports.values()] for name in ("loss", "metric")),
                [finite_json(report["metrics"]) for report in reports.values()],
                self.token,
            ),
        )

    def finish(self):
        """Note the models' results in their units' rows, and the sizes of their new states."""
        results = [
            {
                "stage": model["stage"],
                "attempt": model["attempt"],
                **(
                    {
                        "version": model["version"] + 1,
                        "state_table": model["state_table"],
                        "bytes": size,
                        "release": model["release"],
                    }
                    if self.train
                    else {}
                ),
                "kernel": report["kernel"],
                "rows": report["rows"],
                "loss": _number(report["loss"]),
                "metric": _number(report.get("metric")),
                "read_seconds": read_seconds,
                "train_seconds": report["seconds"],
                "write_seconds": write_seconds,
                "compilations": report.get("compilations"),
                "choice": report.get("choice"),
            }
            for model, report, size, read_seconds, write_seconds in self.done
        ]
        yield Query(
            f"SELECT {self.schema}.mop_finish_units($1, $2, $3, $4, $5, $6)",
            ("bigint", "integer", "text", "text", "json", "text"),
            (
                self.unit["run_id"],
                self.unit["segment"],
                self.unit["kind"],
                self.unit["dataset"],
                json.dumps(results),
                self.token,
            ),
        )


def _number(value):
    """A number, or None, as JSON knows it: one that is not finite as PostgreSQL's text of it."""
    return value if value is None or math.isfinite(value) else str(value).replace("inf", "Infinity")


@functools.lru_cache(100)
def _parsed(compile_params, fit_params):
    """(compile parameters, whether there are callbacks) of parameter strings."""
    return params.parse_compile_params(compile_params), bool(params.parse_fit_params(fit_params)["callbacks"])


def _rights(plpy, table, configuration):
    """{name: pickle} of the configuration's custom functions.

    What runs code or writes files is checked here once more: the unit and its configuration are only what a client
    says. The functions' table must be a superuser's, and so must the role that uses callbacks.
    """
    try:
        compile_params, callbacks = _parsed(configuration["compile_params"], configuration["fit_params"])
        if not callbacks and not object_table.custom_names(compile_params):
            return {}
        db = Database(plpy, extension_schema(plpy))
        with db.pinned_path():
            if callbacks and not db.is_superuser():
                raise MopError("only a superuser may use callbacks")
            return object_table.read(db, table, compile_params, configuration["functions"])
    except (MopError, params.ParameterError) as error:
        problem = str(error)
    raise_error(plpy, problem, aggregate.CONFIGURATION_FAILED)
