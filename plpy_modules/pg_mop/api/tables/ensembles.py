"""Ensembles of the models of a table: their answers for validation rows choose, and one version of a named model has them all.

Each candidate's net answers once, in this process by NumPy where it can, else in the session's trainer; the selection
(inference/ensemble.py) needs these answers alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mop_udf.aggregate import Session
from mop_udf.params import params
from pg_mop.api.common.model_table import StoredModel
from pg_mop.api.common.session import trainer_of, trainer_options, with_trainer
from pg_mop.api.tables.named_models import Version, add_version, check_writable, version_of
from pg_mop.backend import weights
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError, understood
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.inference import ensemble, forward
from pg_mop.inference.named_model import table_of
from pg_mop.packing.packed_table import PackedTable

CANDIDATES = 32  # models of the least validation loss, among which an ensemble chooses
MOST_ROWS = 20_000  # that choose
MOST_BYTES = 256 << 20  # of these rows, and of the weights of an ensemble
CHUNK_ROWS = 10_000  # that a model answers for at a time
Computer = Callable[[Sequence["np.ndarray"]], "np.ndarray"]  # inputs [rows, ...] -> the output [rows, ...]


@dataclass
class Member:
    """A model of an ensemble, without its weights, of which there are `bytes`. `weight`: its share of the answer; `info`: its
    row in the info table."""

    mst_key: int
    model: StoredModel
    bytes: int
    info: dict[str, Any]
    weight: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """What the version's details have of it; `bytes`: of its weights, which follow those of the members before it."""
        own = {name: self.info[name] for name in ("compile_params", "fit_params")}
        return {"mst_key": self.mst_key, "weight": self.weight, "bytes": self.bytes, **own}


@dataclass
class Ensemble:
    """The members, largest weight first. `loss`: of their mean on `rows` rows; `alone`: of the best of `candidates` alone."""

    members: list[Member]
    loss: float
    alone: float
    candidates: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        """The key `ensemble` of a version's details."""
        members = [member.to_json() for member in self.members]
        return {
            "members": members,
            "loss": self.loss,
            "best_alone": self.alone,
            "candidates": self.candidates,
            "rows": self.rows,
        }

    def version(self, **more: Any) -> Version:
        """The version that has all members; `more`: its other values. One member is the version itself."""
        first = self.members[0].model
        if len(self.members) == 1:
            return version_of(first, **more)
        architecture = ensemble.joined([(member.model.architecture, member.weight) for member in self.members])
        together = " || ".join(f"({member.model.source.sql})" for member in self.members)
        return version_of(first, architecture, weights.Source(f"SELECT {together}", "an ensemble"), **more)


@with_trainer
def mop_ensemble(
    db: Database,
    session: Session,
    model_table: str | None,
    validation_table: str | None,
    name: str | None,
    members: int | None,
    description: str | None,
) -> int:
    """Make the best mean of models of a table a version of the named model `name`; returns the version."""
    db.check_engine("mop_ensemble")
    most = members_of_call("members", members)
    if name is None or db.find_table(name) is None:
        db.output_table(name)
    else:
        check_writable(db, table_of(db, name))
    found = choose(db, session, model_table, validation_table, most)
    call = ", ".join(quote_literal(value) for value in (model_table, validation_table, name))
    statement = f"SELECT {db.extension}.mop_ensemble({call}, members => {most});"
    details = {"ensemble": found.to_json()}
    return add_version(db, name, found.version(details=details, description=description, statement=statement))


def members_of_call(name: str, value: int | None) -> int:
    """The most members of an ensemble, from an argument `name` of a call. Raises MopError."""
    most = ensemble.MOST if value is None else value
    if not 1 <= most <= ensemble.STEPS:
        raise MopError(
            f"{name} must be from 1 to {ensemble.STEPS}, not {most:g}",
            detail="It is the number of nets whose answers may be averaged; 1 is the best net alone.",
            hint=f"{name} => {ensemble.MOST}",
        )
    return most


def choose(
    db: Database,
    session: Session,
    model_table: str | None,
    validation_table: str | None,
    most: int,
    seconds: float = math.inf,
) -> Ensemble:
    """The ensemble of at most `most` models of a table that is best on the rows of a packed table. After `seconds`, no other
    candidate answers. Raises MopError."""
    ends = time.monotonic() + seconds
    packed = PackedTable(db, validation_table, "validation table")
    candidates = _candidates(db, model_table, most)
    rows = _Rows(db, packed, bool(candidates) and all(_is_balanced(info) for info in candidates))
    tried: list[Member] = []
    answers: list[np.ndarray] = []
    shape: tuple[Any, ...] | None = None
    with _computers(db, session) as computer_of:
        for info in candidates:
            if tried and time.monotonic() > ends:
                break
            db.check_cancel()
            model = StoredModel(db, model_table, info["mst_key"])
            difference = packed.differs(model)
            if difference is not None:
                raise MopError(
                    f'the rows of "{validation_table}" are not packed as those of {model.what}: {difference}',
                    hint=f"SELECT {db.extension}.mop_pack(..., fitted_on => 'packed training table');",
                )
            if model.objects or model.weights is None:  # code, or weights in parts
                continue
            found, size = rows.answers(db, model, computer_of(model)), len(model.weights)
            own, model.weights = (*model.input_shapes, rows.width), None
            if shape in (None, own):  # (not one unit for two classes among models of two units)
                shape = own
                answers.append(found)
                tried.append(Member(info["mst_key"], model, size, info))
    if not tried:
        raise MopError(
            f'"{model_table}" has no models for an ensemble',
            detail=f"A member has weights of at most {MOST_BYTES // most >> 20} MB, layers of Keras and one output.",
        )
    together = np.array(answers)
    counts = ensemble.select(together, rows.loss, most=most)
    if not counts.any():
        raise MopError(f'no model of "{model_table}" has a finite loss on the rows of "{validation_table}"')
    for member, count in zip(tried, counts.tolist()):
        member.weight = count / int(counts.sum())
    mean = np.tensordot(counts / counts.sum(), np.where(counts[:, None], together, 0), 1)
    members = sorted((m for m in tried if m.weight), key=lambda m: (-m.weight, m.mst_key))
    return Ensemble(members, float(rows.loss(mean)), float(np.nanmin(rows.loss(together))), len(tried), rows.count)


def members_of(db: Database, table: Table, version: int) -> list[tuple[int, int, int]]:
    """(place among the layers, first byte of the weights, their bytes) of each member of a version of a model; none where the
    version has one net. Raises MopError."""
    row = db.one(
        f"SELECT model_arch::text AS arch, details->'ensemble'->'members' AS members, octet_length(model_weights) AS size "
        f"FROM {table} WHERE version = {version}"
    )
    assert row is not None
    if row["members"] is None:  # a net that only looks like one of several
        return []
    with understood(f"the members of version {version} of {table} cannot be read"):
        places = ensemble.members_of(json.loads(row["arch"]))
        sizes = [member["bytes"] for member in json.loads(row["members"])] if places else []
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError("a number of bytes is none")
    if [len(sizes), sum(sizes)] != [len(places), row["size"] if places else 0]:
        raise MopError(
            f"the members of version {version} of {table} are unknown: its details have been changed",
            hint="Train with warm => false.",
        )
    return [(place, sum(sizes[:k]), size) for k, (place, size) in enumerate(zip(places, sizes))]


def _is_balanced(info: dict[str, Any]) -> bool:
    with understood("the fit_params of the model table cannot be read"):
        return params.parse_fit_params(info["fit_params"])["class_weight"] == "balanced"


def _candidates(db: Database, model_table: str | None, most: int) -> list[dict[str, Any]]:
    """The rows of the info table of the best models that may be members, best first. Raises MopError."""
    table = db.input_table(model_table, "model table")
    info = db.input_table(db.suffixed(str(model_table), "_info"), "info table of the model table")
    return db.execute(
        f"SELECT i.mst_key, i.model_id, i.compile_params, i.fit_params FROM {info} i JOIN {table} m USING (mst_key) "
        f"WHERE octet_length(m.model_weights) <= {MOST_BYTES // most} "
        f"ORDER BY (to_json(i)->>'validation_loss_final')::float8 NULLS LAST, i.mst_key LIMIT {CANDIDATES}"
    )


@contextlib.contextmanager
def _computers(db: Database, session: Session) -> Iterator[Callable[[StoredModel], Computer]]:
    """Context manager: gives, for a model, the function that computes its output. The trainer starts when a model needs it."""
    with contextlib.ExitStack() as stack:
        trainers: list[Any] = []

        def in_trainer(arrays: Sequence[np.ndarray]) -> np.ndarray:
            header = {"op": "predict", "shapes": [list(array.shape) for array in arrays]}
            trainers[0].send(header, *(np.ascontiguousarray(a, "<f4").reshape(-1).view(np.uint8) for a in arrays))
            answer, payloads = trainers[0].receive()
            return np.frombuffer(payloads[0], "<f4").reshape(answer["shapes"][0]).copy()

        def computer_of(model: StoredModel) -> Computer:
            assert model.weights is not None
            if forward.obstacle(model.architecture_text, len(model.weights)) is None:
                net = forward.compiled(model.architecture, model.weights)
                return lambda arrays: net(arrays)[0]
            if not trainers:
                trainers.append(stack.enter_context(trainer_of(session, trainer_options(db, False))))
            model.lend(trainers[0], db)
            return in_trainer

        yield computer_of


class _Rows:
    """Rows of a packed table. `inputs`: arrays [rows, ...]; `loss`: of `answers`; `width`: of the output that answered last."""

    def __init__(self, db: Database, packed: PackedTable, is_balanced: bool) -> None:
        """Read them; `is_balanced`: all classes count alike. Raises MopError where there are several targets."""
        columns = packed.transform.columns
        if len(packed.outputs) != 1:
            raise MopError(f'"{packed.text}" has {len(packed.outputs)} targets: a named model has one')
        arrays = _read(db, packed)
        self.inputs, self.count = arrays[: len(packed.inputs)], len(arrays[0])
        self._truth = arrays[len(packed.inputs)].reshape(self.count, -1)
        self._is_classes = not columns[len(packed.inputs)].is_numbers
        row_weights = arrays[-1].reshape(-1).astype("f8") if packed.weighted else None
        if self._is_classes:
            self._codes = self._truth.argmax(1)
            if is_balanced:  # as the models have been trained
                own = 1 / np.bincount(self._codes)[self._codes]
                row_weights = own if row_weights is None else own * row_weights
            self.loss = ensemble.log_loss(row_weights)
        else:
            if row_weights is not None:
                row_weights = np.repeat(row_weights, self._truth.shape[1])
            self.loss = ensemble.squared_error(self._truth.reshape(-1).astype("f8"), row_weights)

    def answers(self, db: Database, model: StoredModel, compute: Computer) -> np.ndarray:
        """What the loss takes of a model's outputs: the probability of each row's class, or the numbers. Raises MopError."""
        found = []
        for start in range(0, self.count, CHUNK_ROWS):
            db.check_cancel()
            part = slice(start, start + CHUNK_ROWS)
            outputs = compute([array[part] for array in self.inputs])
            self.width = outputs.shape[-1]
            found.append(
                self._of_classes(model, outputs, part) if self._is_classes else self._numbers(model, outputs, part)
            )
        return np.concatenate(found)

    def _numbers(self, model: StoredModel, outputs: np.ndarray, part: slice) -> np.ndarray:
        if not model.regression or outputs.shape != self._truth[part].shape:
            raise MopError(f"{model.what} has soft labels or several steps: their mean is no ensemble")
        return outputs.reshape(-1)

    def _of_classes(self, model: StoredModel, outputs: np.ndarray, part: slice) -> np.ndarray:
        if outputs.ndim != 2:
            raise MopError(f"{model.what} has an output of several steps, which a named model cannot answer with")
        if outputs.shape[1] == 1 and self._truth.shape[1] == 2:
            outputs = np.concatenate([1 - outputs, outputs], 1)
        elif not np.allclose(outputs.sum(1), 1, atol=0.01, equal_nan=True) or outputs.min(initial=0) < 0:
            raise MopError(
                f"{model.what} gives no probabilities of classes", hint="Its output needs the activation softmax."
            )
        return outputs[np.arange(len(outputs)), self._codes[part]]


def _read(db: Database, packed: PackedTable) -> list[np.ndarray]:
    """The columns of a packed table; of many rows, each of so many."""
    columns = packed.transform.columns
    first = quote_identifier(columns[0].name + "_shape")
    total = db.value(f"SELECT sum({first}[1])::bigint FROM {packed.table}") or 0
    row_bytes = sum(column.packed_bytes for column in columns)
    step = max(1, math.ceil(total / max(1, min(MOST_ROWS, MOST_BYTES // row_bytes))))
    names = ", ".join(
        f"{quote_identifier(c.name)} AS c{i}, {quote_identifier(c.name + '_shape')} AS s{i}"
        for i, c in enumerate(columns)
    )
    parts: list[list[np.ndarray]] = [[] for _ in columns]
    cursor = db.plpy.cursor(f"SELECT {names} FROM {packed.table} ORDER BY buffer_id")
    try:
        while buffers := cursor.fetch(1):
            db.check_cancel()
            for i, column in enumerate(columns):
                array = np.frombuffer(buffers[0][f"c{i}"], column.dtype).reshape(buffers[0][f"s{i}"])
                parts[i].append(array[::step].copy() if step > 1 else array)
    finally:
        cursor.close()
    return [np.concatenate(arrays) for arrays in parts]
