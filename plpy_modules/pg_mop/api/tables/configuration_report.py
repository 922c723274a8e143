"""mop_configuration_report: what the model of one configuration of a run does on the run's packed rows, as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.model_table import StoredModel
from pg_mop.api.common.session import trainer_of, trainer_options, with_trainer
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, unseen_run
from pg_mop.backend.quoting import finite_json, quote_identifier
from pg_mop.backend.trusted import PARTITIONED, locked
from pg_mop.call.earlier import own_run, same_rows
from pg_mop.catalog import LocalCatalog
from pg_mop.engines import find
from pg_mop.inference.importance import importance, main_score
from pg_mop.packing.packed_table import PackedTable
from pg_mop.report import model_data

MOST_ROWS = 10_000  # that are measured
MOST_BYTES = 128 << 20  # of their inputs as float32
MOST_PERMUTED = 2_000  # rows whose inputs are permuted
MOST_INPUTS = (
    100  # numbers of an input that are permuted one by one; a longer input, or one of more dimensions, as a whole
)
MODEL_TABLES = ("", "_summary", "_info", "_parts")  # suffixes of the output tables that a model is read from


@with_trainer
def mop_configuration_report(db: Database, session: Session, run_id: int | None, mst_key: int | None) -> str:
    """Measures, confusion matrix and curves of a configuration's model, and the importance of its inputs, as JSON.

    The rows are the run's validation rows, else its training rows: the first MOST_ROWS of them, which were shuffled when they
    were packed. It reads plain tables of the caller's own run alone, and writes nothing. Raises MopError.
    """
    run = db.one(
        f"SELECT run_id, status, source_table, validation_table, model_output_table, owner = current_user AS own "
        f"FROM {db.extension}.mop_runs WHERE run_id = $1",
        ["bigint"],
        [run_id],
    )
    if run is None:
        raise unseen_run(db, run_id)
    if mst_key is None:
        raise MopError(
            "mst_key must not be NULL", hint=f"SELECT mst_key FROM {db.extension}.mop_trials WHERE run_id = {run_id};"
        )
    if not run["own"]:
        raise MopError(f"run {run_id} is another role's: only its owner measures its models", sqlstate="42501")
    if run["status"] == "running":
        raise MopError(f"run {run_id} is running: its models are written when it ends", sqlstate="55000")
    assert run_id is not None
    facts = _Facts(db, run_id, mst_key)
    name, dataset = (
        (run["validation_table"], "validation") if run["validation_table"] else (run["source_table"], "training")
    )
    again = f"SELECT {db.extension}.{dataset}_preprocessor_dl(...); packs the rows again."
    with db.undone():  # the end of the block gives back the locks and the settings
        _lock(db, run_id, name, ("", "_summary"), "packed rows", again)
        trains = f"SELECT {db.extension}.mop_replay({run_id}, 'another_table'); trains the models again."
        _lock(db, run_id, run["model_output_table"], MODEL_TABLES, "models", trains)
        packed = PackedTable(db, name, "packed table")
        model = StoredModel(db, run["model_output_table"], None if facts.single else mst_key)
        _check(packed, model)
        changed = _is_changed(db, packed, facts.segments[dataset])
        inputs, truth = _rows(db, packed, again)
        if model.weights is None:
            model.weights = model.source.read(db)
    with trainer_of(session, trainer_options(db, False)) as trainer:
        model.lend(trainer, db)
        if any(model.steps) or len(model.outputs) != 1:
            raise MopError(f"{model.what} has {_outputs(model)}: a report needs one class or one number in each row")
        net = Net(trainer, model)
        outputs = net.outputs(inputs)
        labels = [] if model.regression else net.labels
        if not np.isfinite(outputs).all():
            raise MopError(f"{model.what} has outputs that are not finite numbers")
        few = min(MOST_PERMUTED, len(truth))
        losses = importance(
            packed.transform.inputs,
            [array[:few] for array in inputs],
            net.outputs,
            lambda outputs: main_score(truth[:few], outputs, model.regression),
            np.random.default_rng(0),
            MOST_INPUTS,
        )
    source = f"{name}, which has been written since the run" if changed else f"{name}, the {dataset} rows"
    notes = list(facts.notes())
    if changed:
        notes.append(
            f"{name} has been written since the run: its rows may be other ones than the run's {dataset} rows."
        )
    return finite_json(
        {
            "run_id": run_id,
            "mst_key": mst_key,
            "table": name,
            "rows": len(truth),
            "trained_on": facts.trained_on,
            "rows_changed": changed,
            "notes": notes,
            "sections": model_data.measured_sections(truth, outputs, labels, losses, [], source),
        }
    )


class _Facts:
    """What the catalog knows of a run and of one of its configurations.

    `single`: the run has trained the one model of madlib_keras_fit; `replicas`: on so many segments at once, else 0;
    `trained_on`: the runs of mop_more that have trained the configuration on; `segments`: {dataset: {segment: fingerprint}}.
    """

    def __init__(self, db: Database, run_id: int, mst_key: int) -> None:
        """Raises MopError where a later run wrote the model table, or the run has no such configuration."""
        with LocalCatalog(db) as catalog:
            run = own_run(db, catalog, run_id)
            table = run["model_output_table"]
            if (later := catalog.later_output(run)) is not None:
                raise MopError(
                    f'"{table}" is of run {later} by now, not of run {run_id}',
                    hint=f"SELECT mst_key, status FROM {db.extension}.mop_trials WHERE run_id = {later}; lists what "
                    f"{db.extension}.mop_configuration_report({later}, mst_key) measures.",
                    sqlstate="55000",
                )
            self.single = run["function"] == "madlib_keras_fit"
            averaging = self.single and run["parameters"]["settings"].get("fit_strategy") == "averaging"
            self.trained_on = [] if self.single else catalog.trained_on(run, mst_key)
            self.segments: dict[str, dict[int, str]] = {"training": {}, "validation": {}}
            for (dataset, segment), fingerprint in catalog.run_segments(run_id).items():
                self.segments[dataset][segment] = fingerprint
            self.replicas = len(self.segments["training"]) if averaging else 0
            if self.single and not 1 <= mst_key <= max(1, self.replicas):
                raise MopError(
                    f"run {run_id} has no mst_key {mst_key}",
                    hint=f"SELECT mst_key, status FROM {db.extension}.mop_trials WHERE run_id = {run_id};",
                )

    def notes(self) -> Iterator[str]:
        """Sentences for people."""
        if self.trained_on:
            yield f"mop_more has trained the model on since (run {', '.join(map(str, self.trained_on))})."
        if self.replicas > 1:
            yield f"The {self.replicas} replicas of the run are one model, the average of their weights: it is measured here."


def _is_changed(db: Database, packed: PackedTable, before: dict[int, str]) -> bool | None:
    """True where the rows have been written since the run; None where that is not known: rows of other servers and segments."""
    if db.has_segments or packed.foreign:
        return None
    return not same_rows(before, {segment.key: segment.fingerprint for segment in find(db, [packed]).segments(packed)})


def _outputs(model: StoredModel) -> str:
    return f"{len(model.outputs)} outputs" if len(model.outputs) != 1 else "an output for each step"


def _lock(db: Database, run_id: int, name: str, suffixes: tuple[str, ...], what: str, hint: str) -> None:
    """Lock the tables of the run, so that they stay what they are. Raises MopError where one is no trusted table."""
    for suffix in suffixes:
        full_name = db.suffixed(name, suffix) if suffix else name
        optional = suffix in ("_info", "_parts")
        if optional and db.find_table(full_name) is None:
            continue
        if locked(db, full_name, PARTITIONED) is None:
            if db.find_table(full_name) is None:
                raise MopError(f'there is no table "{full_name}": the {what} of run {run_id} are gone', hint=hint)
            raise MopError(
                f'"{full_name}" is no table of your role, or has row security: the {what} of run {run_id} are not read from it',
                detail="Reading a view, a foreign table, or a table with row security executes functions of its owner.",
                hint=hint,
            )


def _check(packed: PackedTable, model: StoredModel) -> None:
    """Raises MopError where the rows are not those of the model, or have no single class or number."""
    if difference := packed.differs(model):
        raise MopError(f'"{packed.text}" was packed otherwise than the rows of the model: it has {difference}')
    if len(packed.outputs) != 1:
        raise MopError(f'"{packed.text}" has {len(packed.outputs)} targets: a report needs one')
    if packed.regression and not model.regression:
        raise MopError(f'"{packed.text}" has soft labels: a report needs one class or one number in each row')


def _rows(db: Database, packed: PackedTable, again: str) -> tuple[list[np.ndarray], np.ndarray]:
    """(inputs as float32, the class numbers or numbers of the target) of the first rows.

    Raises MopError, with the hint `again` where a buffer is damaged.
    """
    columns = [*packed.inputs, *packed.outputs]
    dtypes = dict(zip(packed.columns, map(np.dtype, packed.dtypes())))
    shapes = ", ".join(
        f"{quote_identifier(c + '_shape')} AS s{i}, octet_length({quote_identifier(c)}) AS n{i}"
        for i, c in enumerate(columns)
    )
    parts: list[list[np.ndarray]] = []
    rows_left = MOST_ROWS
    at = "gp_segment_id" if db.has_segments else "0"  # each segment of Greenplum counts ctid from the start
    for buffer in db.execute(
        f"SELECT tableoid::bigint AS part, ctid::text AS at, {at} AS place, buffer_id, {shapes} FROM {packed.table} "
        f"ORDER BY buffer_id LIMIT {MOST_ROWS}"
    ):
        own_shapes = [buffer[f"s{i}"] for i in range(len(columns))]
        for i, column in enumerate(columns):
            if not _is_whole(own_shapes[i], buffer[f"n{i}"], dtypes[column].itemsize) or (
                own_shapes[i][0] != own_shapes[0][0] or parts and own_shapes[i][1:] != list(parts[0][i].shape[1:])
            ):
                raise MopError(
                    f'buffer {buffer["buffer_id"]} of "{packed.text}" is damaged: its column "{column}"',
                    detail=f"The shape is {own_shapes[i]}, of {dtypes[column]}, and there are {buffer[f'n{i}']} bytes.",
                    hint=again,
                )
        row_bytes = [math.prod(shape[1:]) * dtypes[c].itemsize for c, shape in zip(columns, own_shapes)]
        inputs = sum(4 * math.prod(shape[1:]) for shape in own_shapes[: len(packed.inputs)])
        if not parts:
            rows_left = min(rows_left, max(1, MOST_BYTES // max(1, inputs)))
        count = min(rows_left, own_shapes[0][0])
        # of a large buffer, only what is used
        values = ", ".join(
            f"substring({quote_identifier(c)} FROM 1 FOR {count * size}) AS v{i}"
            for i, (c, size) in enumerate(zip(columns, row_bytes))
        )
        row = db.one(
            f"SELECT {values} FROM {packed.table} WHERE ctid = $1::tid AND tableoid = $2 AND {at} = $3",
            ["text", "oid", "integer"],
            [buffer["at"], buffer["part"], buffer["place"]],
        )
        if row is None:  # a row was written in between
            raise MopError(f'"{packed.text}" is being written', hint="Call it again afterwards.", sqlstate="55006")
        parts.append(
            [
                np.frombuffer(row[f"v{i}"], dtypes[c]).reshape([count, *shape[1:]])
                for i, (c, shape) in enumerate(zip(columns, own_shapes))
            ]
        )
        rows_left -= count
        if rows_left <= 0:
            break
    *arrays, targets = (np.concatenate(chunks_of_input) for chunks_of_input in zip(*parts))
    if packed.regression:
        if math.prod(targets.shape[1:]) != 1:
            raise MopError(
                f'target "{packed.outputs[0]}" has {math.prod(targets.shape[1:])} numbers in a row: a report needs one'
            )
        truth = packed.transform.outputs[0].restored(targets.reshape(-1).astype("f8"), False)
    else:
        truth = targets.reshape(len(targets), -1).argmax(1)
    return [a.astype("<f4") for a in arrays], truth


def _is_whole(shape: Any, size: int | None, item: int) -> bool:
    """True for a shape whose numbers, of `item` bytes each, have `size` bytes."""
    if not isinstance(shape, list) or not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        return False
    return size == math.prod(shape) * item


class Net:
    """A stored model that a trainer holds."""

    def __init__(self, trainer: Any, model: StoredModel) -> None:
        self.trainer, self.model = trainer, model
        self.output = model.transform.outputs[0]
        self.labels: list[str] = []  # of the units, once the net has answered

    def outputs(self, inputs: list[np.ndarray]) -> np.ndarray:
        """[rows, units]: probabilities of classes, or numbers."""
        chunks = []
        step = max(1, (16 << 20) // max(1, sum(4 * math.prod(a.shape[1:]) for a in inputs)))
        for first in range(0, len(inputs[0]), step):
            batch = [np.ascontiguousarray(a[first : first + step], "<f4") for a in inputs]
            self.trainer.send(
                {"op": "predict", "shapes": [list(a.shape) for a in batch]},
                *(a.reshape(-1).view(np.uint8) for a in batch),
            )
            _, payloads = self.trainer.receive()
            chunks.append(np.frombuffer(payloads[0], "<f4").reshape(len(batch[0]), -1).astype("f8"))
        labels, decoded = self.output.decode(np.concatenate(chunks))
        self.labels = ["NULL" if label is None else str(label) for label in labels]
        return decoded
