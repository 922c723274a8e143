"""Linear models for the rows of packed tables: trained in the session's trainer by L-BFGS, candidates of an ensemble.

Such a model is a net of Keras: categories and words have a table of weights, one for each output, and one dense layer adds
them to the elements' products. So whatever reads a net reads it. Its design may have the numbers in pieces, too: then the
answer is a sum of piecewise linear functions of the columns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.session import trainer_of, trainer_options
from pg_mop.api.tables import boosting
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.columns import OneHot, TargetNumber, Transform
from pg_mop.packing import packed_rows
from pg_mop.packing.packed_table import PackedTable
from pg_mop.plan import nets

KEPT = 4  # trials that may be members
MOST_WEIGHTS = 1_000_000
MOST_PIECES = 4_000
CELLS_PER_SECOND = 4_000_000  # elements of training rows, for each second
LEAST_ROWS, MOST_BYTES = 20_000, 256 << 20  # of the training rows, where there are more
DESIGNS = {"plain": nets.Body(()), "pieces": nets.Body((), pieces=True)}


@dataclass
class Linear:
    """The trials, as `details` keep them, and those that may be members: (number from 1 on, architecture as JSON, bytes of the
    weights, the answers for the validation rows [rows, width])."""

    transform: Transform
    trials: list[dict[str, Any]] = field(default_factory=list)
    kept: list[tuple[int, str, bytes, np.ndarray]] = field(default_factory=list)
    rows: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The key `linear` of a version's details."""
        return {"trials": self.trials, "rows": self.rows, "seconds": self.seconds}


@dataclass(frozen=True)
class _Input:
    """An input of the net: a vector of elements from `first` on, of which those with pieces have the pieces from `first_piece`
    on; or codes, the array with the number `first`."""

    given: nets.Input
    first: int
    first_piece: int = 0

    @property
    def embedding(self) -> dict[str, Any] | None:
        layers = self.given.layers or ()
        return dict(layers[0][1]) if layers and layers[0][0] == "Embedding" else None

    @property
    def are_words(self) -> bool:
        return bool((self.embedding or {}).get("mask_zero"))

    @property
    def pieces(self) -> int:
        """The number of pieces of all elements."""
        own = self.given.pieces
        return 0 if own is None else len(own.edges) * len(own.bounds())


class Design:
    """How the packed inputs of a transform become the inputs of a linear model, and its weights those of a net."""

    def __init__(self, transform: Transform) -> None:
        """The transform has no `obstacle`."""
        (target,) = transform.outputs
        self._output, self._inputs = target.net_output(), list[_Input]()
        self.classes = len(target.classes) if isinstance(target, OneHot) else 0
        elements = codes = pieces = 0
        for column in transform.inputs:
            own = _Input(column.net_input(), elements, pieces)
            if own.embedding is not None:
                own, codes = _Input(own.given, codes), codes + 1
            else:
                elements, pieces = elements + own.given.shape[0], pieces + own.pieces
            self._inputs.append(own)
        self.has_pieces = 0 < pieces <= MOST_PIECES
        self.elements = elements

    def arrays(self, rows: boosting.Target) -> list[np.ndarray]:
        """The arrays of a request: the elements, and the codes of each input that has codes."""
        arrays = [np.ascontiguousarray(array, "<f4") for array in rows.inputs]
        parts = [array for own, array in zip(self._inputs, arrays) if own.embedding is None]
        joined = np.concatenate(parts, 1) if parts else np.zeros((len(rows.truth), 0), "<f4")
        return [joined, *(array for own, array in zip(self._inputs, arrays) if own.embedding is not None)]

    def header(self) -> dict[str, Any]:
        """What a request says of the codes and of the pieces."""
        codes = [[own.embedding["input_dim"], own.are_words] for own in self._inputs if own.embedding is not None]
        places: list[int] = []
        low: list[float] = []
        high: list[float] = []
        for own in self._inputs if self.has_pieces else ():
            for lows, highs in own.given.pieces.bounds() if own.given.pieces is not None else ():
                first = own.first + own.given.pieces.first  # type: ignore[union-attr]
                places += range(first, first + len(lows))
                low, high = low + lows, high + highs
        pieces = {"places": places, "low": low, "high": high} if places else None
        return {"codes": codes, "pieces": pieces, "classes": self.classes}

    def net(self, name: str, weights: bytes) -> tuple[str, bytes]:
        """The architecture (JSON) and the weights of the net; `weights`: as the trainer returned them for the design `name`."""
        width = self._output.classes or self._output.numbers
        body, rest = DESIGNS[name], np.frombuffer(weights, "<f4")
        inputs, tables = [], []
        for own in self._inputs:
            embedding, layers = own.embedding, own.given.layers
            if embedding is not None:
                layers = [("Embedding", {**embedding, "output_dim": width}), *(own.given.layers or ())[1:]]
                size = embedding["input_dim"] * width
                tables.append(rest[:size])
                rest = rest[size:]
            inputs.append(nets.Input(own.given.name, own.given.shape, layers, own.given.pieces))
        matrix, bias = rest[:-width].reshape(-1, width), rest[-width:]
        kernel: list[np.ndarray] = []
        for own in self._inputs:
            if own.embedding is not None:
                kernel += [np.eye(width, dtype="<f4")] * (1 if own.are_words else own.given.shape[0])
                continue
            kernel.append(matrix[own.first : own.first + own.given.shape[0]])
            if body.pieces and own.pieces:
                first = self.elements + own.first_piece
                kernel.append(matrix[first : first + own.pieces])
        text = nets.architecture(inputs, [self._output], body)
        flat = np.concatenate([part.reshape(-1) for part in (*tables, *kernel, bias)])
        return text, flat.astype("<f4").tobytes()


def obstacle(transform: Transform) -> str | None:
    """Why no linear model is trained for rows of a transform; None where they are."""
    if len(transform.outputs) != 1 or not isinstance(transform.outputs[0], (OneHot, TargetNumber)):
        return "the target is neither one class nor one number"
    (target,) = transform.outputs
    width = weights = 0
    for column in transform.inputs:
        own = _Input(column.net_input(), 0)
        if own.given.layers is None and len(own.given.shape) == 1:
            width += own.given.shape[0] + own.pieces
        elif own.embedding is not None:
            weights += own.embedding["input_dim"]
        else:
            return f'column "{column.name}" has images, series or arrays of arrays'
    outputs = len(target.classes) if isinstance(target, OneHot) else 1
    if isinstance(target, OneHot) and outputs < 2:
        return "the target has one class"
    if (width + weights) * outputs > MOST_WEIGHTS:
        return f"it would have more than {MOST_WEIGHTS:,} weights"
    return None


def train(
    db: Database, session: Session, packed_text: str | None, valid: boosting.Target, is_balanced: bool, seconds: float
) -> Linear:
    """Search linear models on a packed table for so many seconds; `valid`: the rows that judge. Raises MopError."""
    began = time.monotonic()
    with db.undone():  # a lock on a step's table would hinder its owner, another session of this call, from dropping it
        packed = PackedTable(db, packed_text, "packed table of linear models")
        reason = obstacle(packed.transform)
        if reason is not None:
            raise MopError(f'"{packed_text}" has no linear model: {reason}', hint=f"families => '{boosting.NETS}'")
        design = Design(packed.transform)
        width = sum(math.prod(column.shape) for column in packed.transform.inputs)
        most = max(LEAST_ROWS, int(CELLS_PER_SECOND * seconds / max(1, width)))
        training = boosting.target_of(packed, packed_rows.read(db, packed, most, MOST_BYTES), is_balanced)
    header, payloads = _asked(
        db, session, design, [training, valid], {"op": "linear", "until": began + seconds, "kept": KEPT}
    )
    weights, answers = payloads[: len(header["kept"])], payloads[len(header["kept"]) :]
    kept = []
    for number, own, answer in zip(header["kept"], weights, answers, strict=True):
        outputs = np.frombuffer(answer, "<f8").reshape(len(valid.truth), -1)
        if np.isfinite(outputs).all():
            kept.append((number + 1, *design.net(header["trials"][number]["params"]["design"], bytes(own)), outputs))
    return Linear(packed.transform, header["trials"], kept, len(training.truth), time.monotonic() - began)


def refit(
    db: Database, session: Session, transform: Transform, rows: boosting.Target, params: Sequence[dict[str, Any]]
) -> list[tuple[str, bytes]]:
    """The nets, as of `Design.net`, of models with the `params` of trials, trained on `rows`. Raises MopError."""
    design = Design(transform)
    models = [[own["design"], own["alpha"]] for own in params]
    _, payloads = _asked(db, session, design, [rows], {"op": "refit", "family": boosting.LINEAR, "models": models})
    return [design.net(own["design"], bytes(weights)) for own, weights in zip(params, payloads, strict=True)]


def _asked(
    db: Database, session: Session, design: Design, rows: Sequence[boosting.Target], header: dict[str, Any]
) -> tuple[dict[str, Any], list[Any]]:
    """The trainer's answer to a request about rows. Raises MopError."""
    shapes, arrays = [], []
    for own in rows:
        inputs = design.arrays(own)
        shapes.append([[list(array.shape) for array in inputs], own.weights is not None])
        arrays += [*inputs, *own.targets(bool(design.classes))]
    with trainer_of(session, trainer_options(db, False)) as trainer:
        trainer.send(
            {**header, **design.header(), "rows": shapes},
            *(np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays),
        )
        del arrays
        answer, payloads = trainer.receive()
    if "absent" in answer:
        raise MopError("the trainer cannot load SciPy", detail=answer["absent"], sqlstate="58000")
    return answer, payloads
