"""One command, inside its worker session: read the states, run the aggregate over the segment, write the states.

The run coordinator sends the unit as JSON between BEGIN and COMMIT. If anything fails, the transaction rolls back: the
model stays at its version and the unit is not done. The work of a unit is a coroutine of queries (backend/queries.py).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mop_udf import aggregate
from mop_udf.errors import raise_error
from mop_udf.params import params
from mop_udf.pool.process import DeviceFull
from mop_udf.unit_spec import ModelSpec, SegmentSpec, SpecError, UnitHeader, UnitModel, UnitSpec
from pg_mop.backend import object_table
from pg_mop.backend.caller import extension_schema
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.queries import Query, as_text, by_spi, rows_of
from pg_mop.backend.quoting import finite_json, quote_identifier
from pg_mop.backend.trainers import put_state, trainer_at
from pg_mop.inference.model import Model

Queries = Generator[Query, Any, Any]  # yields queries, is sent their rows
Part = tuple[int, bytes]  # (stage, a part of its state)
# of a model in a chain: what may differ from the step before
CHANGES = ("stage", "iteration", "epochs", "kernel", "net", "passes_left", "run_passes_left")


def start_trainer(plpy: Any, options: str) -> str:
    """Lease or start this session's trainer; a new one imports Keras while the coordinator still plans.

    `options`: as JSON, with `wants` as of process.Trainer. Returns JSON: the digests of the trainer's compiled models, none
    where other trainers hold its part of the device's memory: the session's first unit asks for a trainer again, and waits.
    """
    holder, chosen = aggregate.session(plpy), json.loads(options)
    wants = chosen.pop("wants", None)
    trainer = trainer_at(holder, _schema(plpy, holder), chosen.get("host_segment"))
    try:
        by_spi(holder, trainer.start(chosen, True, wants))
    except DeviceFull:
        holder.stop_trainer()
        return "[]"
    return json.dumps(trainer.nets)


def _schema(plpy: Any, holder: Any) -> str:
    """The extension's schema, quoted. A session asks for it once."""
    if holder.schema is None:
        holder.schema = quote_identifier(extension_schema(plpy))
    return holder.schema


def run_unit(plpy: Any, text: str) -> None:
    """Train or evaluate as the unit says (the JSON of a UnitSpec), and write the results into the units' rows in the catalog.

    The models of a unit batch are trained one after the other, or evaluated in one pass over the rows. The rows of a chain stay
    in the trainer, and so do the states between two steps.

    Raises SQLSTATE MOP01 if the configuration is at fault, MOP02 if the trainer was lost, MOP03 if the rows have changed
    since the run began, MOP04 if a trainer takes too much memory. One failing model fails the whole batch.
    """
    holder = aggregate.session(plpy)
    work = _Work(plpy, holder, _spec_of(plpy, text))
    try:
        with aggregate.failures_as_sql(plpy, holder):
            by_spi(holder, work.run())
    except BaseException:
        work.trainer.failed()
        raise


def next_statement(plpy: Any, text: str | None, answer: str | None) -> str | None:
    """Greenplum: like run_unit, but the caller runs the SQL. Returns the next statement, None at the end.

    `text`: the unit, in the first call; None in the later ones, with `answer`, the last statement's row as JSON.
    """
    holder = aggregate.session(plpy)
    rows = None if text is not None else rows_of(answer)
    if text is not None:
        holder.steps = _Work(plpy, holder, _spec_of(plpy, text)).run()
    with aggregate.failures_as_sql(plpy, holder):
        try:
            return as_text(holder.steps.send(rows))
        except StopIteration:
            holder.steps = None
            return None


def _spec_of(plpy: Any, text: str) -> UnitSpec:
    """The unit spec that a text has. Raises a PostgreSQL error where it is none."""
    try:
        return UnitSpec.from_json(json.loads(text))
    except SpecError as error:
        problem = str(error)
    raise_error(plpy, problem, "22023")


class _Work:
    """One unit's work in this session's transaction."""

    def __init__(self, plpy: Any, holder: Any, unit: UnitSpec) -> None:
        self.plpy, self.holder, self.unit = plpy, holder, unit
        self.schema = _schema(plpy, holder)
        self.trainer = trainer_at(
            holder, self.schema, unit.options.get("host_segment"), unit.host_segments, unit.object_table
        )
        # (segment, model, report, bytes of its state, seconds to read and to write)
        self.done: list[tuple[Any, ...]] = []
        self.models = unit.models
        self.segments: dict[int, SegmentSpec] = {spec.segment: spec for spec in (*unit.segments, unit)}
        self.train = unit.kind == "train"

    def run(self) -> Queries:
        unit = self.unit
        began = time.monotonic()
        # a capability token is good for the whole transaction
        self.token = (yield Query(f"SELECT token FROM {self.schema}.mop_tokens"))[0]["token"]
        yield from self.take()
        models = [self.told(model) for model in self.models]
        for segment in self.segments.values():
            yield from self.check_rows(segment)
        if unit.predict is not None:
            yield from self.predict(unit.predict, models[0])
            return
        objects = [_rights(self.plpy, unit.object_table, model) for model in models]
        header = unit.header(unit)
        if unit.then:
            yield from self.chain(header, models, objects, began)
            yield from self.finish()
            return
        header.keeps_rows = yield from self.trainer.begin(unit.options, header, models, objects)
        # rows that the trainer cannot keep are read again for each model
        parts = [slice(None)] if header.keeps_rows or not self.train else [slice(n, n + 1) for n in range(len(models))]
        for these in parts:
            self.holder.coming = self.read_ahead if these is parts[-1] else None
            yield from self.batch(self.models[these], header, models[these], objects[these], began)
            began = time.monotonic()
        # at the very end: on Greenplum an UPDATE locks the table for all other sessions
        yield from self.finish()

    def batch(
        self,
        models: Sequence[ModelSpec],
        header: UnitHeader,
        told: Sequence[UnitModel],
        objects: Sequence[dict[str, bytes]],
        began: float,
    ) -> Queries:
        """Train or evaluate models in one pass over the segment's rows. `told`: the models, as the trainer is told of them;
        `objects`: custom functions of each."""
        unit, trainer = self.unit, self.trainer
        states = yield from self.states(models)
        yield from trainer.give(header, told, states, objects)
        report, sent = yield from trainer.work(unit.rows_sql)
        reports = report["models"]
        if sent:
            yield from self.check_rows(unit)  # again: the rows were read by a later statement, with a later snapshot
        rest = max(0.0, time.monotonic() - began - sum(own["seconds"] for own in reports)) / len(reports)
        sizes, since = [None] * len(models), time.monotonic()
        if self.train:
            sizes = yield from trainer.save(unit.run_id, [_written(model) for model in models], self.token)
        else:
            yield from self.score([model.stage for model in models], [own["sums"] for own in reports])
        written = (time.monotonic() - since) / len(models) if self.train else 0.0
        self.done += [
            (unit.segment, model, own, size, rest, written) for model, own, size in zip(models, reports, sizes)
        ]

    def chain(
        self, header: UnitHeader, told: Sequence[UnitModel], objects: Sequence[dict[str, bytes]], began: float
    ) -> Queries:
        """Train the models of a chain; the arguments are as in `batch`, of the first step."""
        unit, trainer, last = self.unit, self.trainer, list(self.models)
        for _, models in unit.steps():
            last = [model or before for model, before in zip(models, last, strict=True)]
        then = list(self.told_next())
        for step in then:
            for first, changes, own in zip(told, step["models"], objects, strict=True):
                if (
                    changes
                    and changes["stage"] != first.stage
                    and own != _rights(self.plpy, unit.object_table, dataclasses.replace(first, **changes))
                ):
                    raise_error(self.plpy, "the custom functions of a chain differ", aggregate.CONFIGURATION_FAILED)
        rows = [(unit.header(segment), segment.rows_sql) for segment in self.segments.values()]
        loaded = yield from trainer.begin_chain(unit.options, rows)
        if loaded is None:
            # (the coordinator has compared their bytes with the limit: each unit is done by itself now)
            raise_error(self.plpy, "the trainer cannot keep the rows of a chain", aggregate.TRAINER_LOST)
        for segment in loaded:
            yield from self.check_rows(self.segments[segment])
        states = yield from self.states(self.models)
        self.holder.coming = self.read_ahead
        header.keeps_rows = True
        yield from trainer.give(header, told, states, objects, then)
        report, _ = yield from trainer.work(unit.rows_sql)
        reports = iter(report["models"])
        count = len(report["models"])
        rest = max(0.0, time.monotonic() - began - sum(own["seconds"] for own in report["models"])) / count
        since = time.monotonic()
        sizes = yield from trainer.save(unit.run_id, [_written(model) for model in last], self.token)
        written = (time.monotonic() - since) / count
        self.done += [
            (segment, model, next(reports), size, rest, written)
            for segment, models in unit.steps()
            for model, size in zip(models, sizes)
            if model is not None
        ]

    def predict(self, request: dict[str, Any], model: UnitModel) -> Queries:
        """Write the predictions for a partition of raw rows, in parts, under stage 0 and the partition's number."""
        # imported here: sessions that only train do not need numpy
        from pg_mop.inference.prediction import Choice, Predictor, Reader, in_pieces, predictions

        unit, began = self.unit, time.monotonic()
        yield from self.trainer.start(unit.options)
        states = yield from self.states(self.models)
        trainer, db = self.holder.trainer, Database(self.plpy, extension_schema(self.plpy))
        try:
            with db.pinned_path():
                lent = Model.from_json(request["model"], model.architecture, b"".join(part for _, part in states))
                lent.lend(trainer)
                predictor = Predictor(trainer, lent, Choice.for_model(request["pred_type"], lent))
                reader = Reader(db, request["table"], request["identifier"], request["inputs"], lent)
                for number, rows in enumerate(in_pieces(predictions(predictor, reader))):
                    yield put_state(
                        self.schema, unit.run_id, 0, unit.segment, 1, number, json.dumps(rows).encode(), self.token
                    )
            self.done = [
                (
                    unit.segment,
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

    def check_rows(self, segment: SegmentSpec) -> Queries:
        """A segment must hold the rows of the run's beginning."""
        if (yield Query(segment.fingerprint_sql))[0]["fingerprint"] != segment.fingerprint:
            raise_error(
                self.plpy,
                f"the rows of segment {segment.segment} in {self.unit.table} have changed since the run began",
                aggregate.SOURCE_CHANGED,
            )

    def take(self) -> Queries:
        """Read the rows of all stages from the catalog, and lock those that will be trained."""
        first: dict[int, int] = {}  # stage -> the version of its first unit
        for _, models in self.unit.steps():
            for model in models:
                if model is not None:
                    first.setdefault(model.stage, model.version)
        self.taken: dict[int, Mapping[str, Any]] = {
            row["stage"]: row
            for row in (
                yield Query(
                    f"SELECT * FROM {self.schema}.mop_take_states($1, $2, $3, $4, $5, $6)",
                    ("bigint", "integer", "integer[]", "integer[]", "boolean", "text"),
                    (
                        self.unit.run_id,
                        self.unit.fencing_token,
                        list(first),
                        list(first.values()),
                        self.train,
                        self.token,
                    ),
                    several=True,
                )
            )
        }

    def told(self, model: ModelSpec) -> UnitModel:
        """A model as the trainer is told of it."""
        row = self.taken[model.stage]
        return UnitModel(
            stage=model.stage,
            mst_key=row["mst_key"],
            model_id=row["model_id"],
            iteration=model.iteration,
            architecture=row["model_arch"],
            compile_params=row["compile_params"],
            fit_params=row["fit_params"],
            functions=model.functions,
            epochs=model.epochs,
            kernel=model.kernel,
            net=model.net,
            costs=model.costs,
            passes_left=model.passes_left,
            run_passes_left=model.run_passes_left,
            # version 0 has no state, or the weights alone of a warm start or of the architecture table; or the state of
            # another trial, whose weights it inherits
            plain_weights=model.version == 0,
            inherits=model.inherits if model.version == 0 else None,
        )

    def told_next(self) -> Iterator[dict[str, Any]]:
        """The later steps of a chain, as the trainer is told of them (see UnitRequest)."""
        stages = {model.stage for model in self.models}
        for step in self.unit.then:
            models: list[dict[str, Any] | None] = []
            for model in step.models:
                if model is None:
                    models.append(None)
                    continue
                row = self.taken[model.stage]
                models.append(
                    {
                        **{name: getattr(model, name) for name in CHANGES},
                        **({} if model.stage in stages else {"costs": model.costs}),
                        **{name: row[name] for name in ("mst_key", "compile_params", "fit_params")},
                    }
                )
            stages.update(model.stage for model in step.models if model is not None)
            yield {**self.segments[step.segment].trainer_rows().to_json(), "models": models}

    def states(self, models: Sequence[ModelSpec]) -> Queries:
        """The parts of the models' states, then the parts of the states of other replicas, if any: an iterator of Parts.

        A replica begins with the average of the states that all replicas had after the iteration before.
        """
        versions = [(model.stage, model.version) for model in models]
        if self.unit.replicas and versions[0][1] > 0:
            versions += [(stage, versions[0][1]) for stage, _ in self.unit.replicas if stage != versions[0][0]]
        ahead, self.holder.ahead = self.holder.ahead, {}
        known = [
            (stage, part) for stage, version in versions for part in ahead.get((self.unit.run_id, stage, version), ())
        ]
        unread = [(stage, version) for stage, version in versions if stage not in {stage for stage, _ in known}]
        found = yield from self.trainer.states(self.unit.run_id, unread, self.token, self.taken)
        return self.complete(known, found, unread)

    def complete(
        self, known: Iterable[Part], found: Iterable[Part], unread: Iterable[tuple[int, int]]
    ) -> Iterator[Part]:
        """The parts that are `known`, then those that were `found`. Every state of `unread` (stage, version) must be
        among the latter."""
        yield from known
        read = set()
        for stage, part in found:
            read.add(stage)
            yield stage, part
        heirs = {model.stage for model in self.models if model.inherits}
        for stage, version in unread:
            if (version > 0 or stage in heirs) and stage not in read:
                raise_error(
                    self.plpy,
                    f"the state of stage {stage} of run {self.unit.run_id} at version {version} is missing",
                    aggregate.SOURCE_CHANGED,
                )

    def read_ahead(self) -> None:
        """Read the state that the next unit of this session will most likely need, if the unit spec names it.

        The state of a version never changes. If the version is gone or not yet written, the next unit reads it.
        """
        if (coming := self.unit.coming) is not None:
            run_id, wanted = self.unit.run_id, (coming["stage"], coming["version"])
            self.holder.ahead = {
                (run_id, *wanted): [
                    part for _, part in by_spi(self.holder, self.trainer.states(run_id, [wanted], self.token, {}))
                ]
            }

    def score(self, stages: list[int], sums: Sequence[Sequence[float]]) -> Queries:
        """Add the sums of evaluations, one list for each stage, to those of the other segments. The last segment writes
        the loss and the metrics of the stage.

        Raises SQLSTATE MOP01 if one of these is not finite.
        """
        unit = self.unit
        found = (
            yield Query(
                f"SELECT * FROM {self.schema}.mop_put_sums($1, $2, $3, $4, $5, $6, $7)",
                ("bigint", "integer[]", "text", "integer", "integer[]", "float8[]", "text"),
                (
                    unit.run_id,
                    stages,
                    unit.dataset,
                    unit.segment,
                    [len(own) for own in sums],
                    [value for own in sums for value in own],
                    self.token,
                ),
            )
        )[0]
        if not found["complete"]:  # an empty array; Greenplum may give NULL
            return
        by_stage: dict[int, dict[int, list[float]]] = {
            stage: {unit.segment: list(own)} for stage, own in zip(stages, sums)
        }
        if found["whose"]:
            for stage, segment, value in zip(found["whose"], found["segments"], found["value"]):
                if segment != unit.segment:
                    by_stage[stage].setdefault(segment, []).append(float(value))
        # in the order of the segments, whichever ended first, so that the sums are equal in every run
        reports = {}
        for stage in found["complete"]:
            reports[stage] = yield from self.trainer.score(
                stages.index(stage),
                [
                    functools.reduce(operator.add, values)
                    for values in zip(*(own for _, own in sorted(by_stage[stage].items())), strict=True)
                ],
            )
        for report in reports.values():
            values = [("loss", report["loss"]), *report["metrics"].items()]
            bad = [
                f"{name} is {'NaN' if value != value else 'infinite'}"
                for name, value in values
                if not math.isfinite(value)
            ]
            if bad and unit.finite:
                raise_error(self.plpy, f"{bad[0]} on the {unit.dataset} data", aggregate.CONFIGURATION_FAILED)
        yield Query(
            f"SELECT {self.schema}.mop_note_metrics($1, $2, $3, $4, $5, $6, $7)",
            ("bigint", "integer[]", "text", "float8[]", "float8[]", "text[]", "text"),
            (
                unit.run_id,
                list(reports),
                unit.dataset,
                *([report[name] for report in reports.values()] for name in ("loss", "metric")),
                [finite_json(report["metrics"]) for report in reports.values()],
                self.token,
            ),
        )

    def finish(self) -> Queries:
        """Write the models' results, and the sizes of their new states, into their units' rows."""
        threads = self.trainer.threads(self.unit.options)
        results = [
            {
                "stage": model.stage,
                "segment": segment,
                "attempt": model.attempt,
                **(
                    {
                        "version": model.version + 1,
                        "made_on": self.unit.segment,
                        "state_table": model.state_table,
                        "bytes": size,
                        "release": model.release,
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
                "cpu_seconds": report.get("cpu_seconds"),
                "gpu_utilization": report.get("gpu_utilization"),
                "gpu_memory_bytes": report.get("gpu_memory_bytes"),
                "threads": threads,
                "write_seconds": write_seconds,
                "compilations": report.get("compilations"),
                "choice": report.get("choice"),
                "began": report.get("began"),
                "ended": report.get("ended"),
            }
            for segment, model, report, size, read_seconds, write_seconds in self.done
        ]
        yield Query(
            f"SELECT {self.schema}.mop_finish_units($1, $2, $3, $4, $5)",
            ("bigint", "text", "text", "json", "text"),
            (self.unit.run_id, self.unit.kind, self.unit.dataset, json.dumps(results), self.token),
        )


def _written(model: ModelSpec) -> tuple[int, int, int]:
    """(stage, version, state table) of a model's new state."""
    assert model.state_table is not None
    return model.stage, model.version + 1, model.state_table


def _number(value: float | None) -> float | str | None:
    """A number for JSON: a number that is not finite becomes PostgreSQL's text for it."""
    return value if value is None or math.isfinite(value) else str(value).replace("inf", "Infinity")


@functools.lru_cache(100)
def _parsed(compile_params: str, fit_params: str) -> tuple[dict[str, Any], bool]:
    """(compile parameters, whether there are callbacks) of parameter strings."""
    return params.parse_compile_params(compile_params), bool(params.parse_fit_params(fit_params)["callbacks"])


def _rights(plpy: Any, table: str | None, model: UnitModel) -> dict[str, bytes]:
    """{name: pickle} of a model's custom functions and layers.

    Custom functions run code, and callbacks write files. Their rights are checked here again, since a client can send any
    unit: the table of the functions must belong to a superuser, and only a superuser may use callbacks.
    """
    try:
        compile_params, callbacks = _parsed(model.compile_params, model.fit_params)
        # (the digests name custom layers, too; an architecture cannot use others)
        if not callbacks and not object_table.custom_names(compile_params) and not model.functions:
            return {}
        db = Database(plpy, extension_schema(plpy))
        with db.pinned_path():
            if callbacks and not db.is_superuser():
                raise MopError("only a superuser may use callbacks")
            return object_table.read(db, table, compile_params, model.functions)
    except (MopError, params.ParameterError) as error:
        problem = str(error)
    raise_error(plpy, problem, aggregate.CONFIGURATION_FAILED)
    return {}  # raise_error does not return
