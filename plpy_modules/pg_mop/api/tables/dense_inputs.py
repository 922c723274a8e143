"""The rows of packed tables as vectors, for models that a trainer trains whole: linear models and perceptrons.

A packed column gives elements, whose numbers may enter piece by piece, too; or codes of categories or words, which have a table
of weights. What the trainer returns becomes a net of Keras over the same packed columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.session import trainer_of, trainer_options
from pg_mop.api.tables.trained import NETS, Kept, Target, Tell, Trained, answer_of, check_installed, kept_of, target_of
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.columns import OneHot, TargetNumber, Transform
from pg_mop.inference.metrics import Metric
from pg_mop.packing import packed_rows
from pg_mop.packing.packed_table import PackedTable
from pg_mop.plan import nets

MOST_WEIGHTS = 1_000_000  # of a linear model
MOST_PIECES = 4_000
LEAST_ROWS, MOST_BYTES = 20_000, 256 << 20  # of the training rows, where there are more


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


class DenseInputs:
    """How the packed inputs of a transform become the vectors that a trainer takes, and its weights those of a net of Keras."""

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
        self.elements, self.pieces = elements, pieces
        self.width = elements + pieces + sum(own.given.shape[0] for own in self._inputs if own.embedding is not None)

    def arrays(self, rows: Target) -> list[np.ndarray]:
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
        dimensions = self.dimensions()
        return {"codes": codes, "dimensions": dimensions, "pieces": pieces, "classes": self.classes}

    def dimensions(self) -> list[int]:
        """Of the table of each array of codes, as an embedding."""
        return [own.embedding["output_dim"] for own in self._inputs if own.embedding is not None]

    @property
    def outputs(self) -> int:
        return self._output.classes or self._output.numbers

    def net(
        self, body: nets.Body, weights: bytes, dimensions: Sequence[int], adds_tables: bool = False
    ) -> tuple[str, bytes]:
        """The architecture (JSON) and the weights of the net.

        `weights`: float32, as the trainer returned them: the tables of codes, [codes, dimensions] each; the first matrix, whose
        rows are for the elements, for their pieces if the body has any, and for the places of the tables; its bias; the other
        layers. `adds_tables`: the first matrix has no rows for the tables, whose values are added to its outputs.
        """
        rest, columns = np.frombuffer(weights, "<f4"), (*body.units, self.outputs)
        coded = [own for own in self._inputs if own.embedding is not None]
        tables, inputs = [], []
        for own, size in zip(coded, dimensions, strict=True):
            count = own.embedding["input_dim"] * size  # type: ignore[index]
            tables.append(rest[:count])
            rest = rest[count:]
        has_pieces = body.pieces and self.has_pieces
        rows = self.elements + (self.pieces if has_pieces else 0)
        wide = [size if own.are_words else size * own.given.shape[0] for own, size in zip(coded, dimensions)]
        count = (rows + (0 if adds_tables else sum(wide))) * columns[0]
        matrix, rest = rest[:count].reshape(-1, columns[0]), rest[count:]
        kernel: list[np.ndarray] = []
        sizes, firsts = iter(dimensions), iter([rows + sum(wide[:k]) for k in range(len(wide))])
        for own in self._inputs:
            layers = own.given.layers
            if own.embedding is not None:
                size, first = next(sizes), next(firsts)
                layers = [("Embedding", {**own.embedding, "output_dim": size}), *(own.given.layers or ())[1:]]
                places = 1 if own.are_words else own.given.shape[0]
                if adds_tables:
                    kernel += [np.eye(size, dtype="<f4")] * places
                else:
                    kernel.append(matrix[first : first + size * places])
            else:
                kernel.append(matrix[own.first : own.first + own.given.shape[0]])
                if has_pieces and own.pieces:
                    first = self.elements + own.first_piece
                    kernel.append(matrix[first : first + own.pieces])
            inputs.append(nets.Input(own.given.name, own.given.shape, layers, own.given.pieces))
        text = nets.architecture(inputs, [self._output], replace(body, pieces=has_pieces))
        flat = np.concatenate([part.reshape(-1) for part in (*tables, *kernel, rest)])
        return text, flat.astype("<f4").tobytes()


def obstacle(transform: Transform) -> str | None:
    """Why neither linear models nor perceptrons are trained for rows of a transform; None where they are."""
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


def search(
    db: Database,
    session: Session,
    packed_text: str | None,
    valid: Target,
    is_balanced: bool,
    metric: Metric,
    tell: Tell | None,
    seconds: float,
    cells_per_second: int,
    request: dict[str, Any],
    info_of: Callable[[dict[str, Any]], dict[str, Any]],
    net_of: Callable[[DenseInputs, dict[str, Any], bytes], tuple[str, bytes]],
) -> Trained:
    """The trials of a family on a packed table, for so many seconds; `valid`: the rows that judge; `metric`: names the loss for
    numbers; `tell`: gets the trials so far; `request`: the family's request without its rows; `info_of`, `net_of`:
    what a version keeps of a trial, and its net. Raises MopError."""
    began = time.monotonic()
    check_installed(request["op"])
    with db.undone():  # a lock on a step's table would hinder its owner, another session of this call, from dropping it
        packed = PackedTable(db, packed_text, "packed table of training rows")
        reason = obstacle(packed.shaped)
        if reason is not None:
            raise MopError(f'"{packed_text}" has no {request["op"]}: {reason}', hint=f"families => '{NETS}'")
        inputs = DenseInputs(packed.shaped)
        answer_bytes = 8 * inputs.outputs * max(1, len(valid.truth))
        if answer_bytes > MOST_BYTES:
            raise MopError(
                f"{inputs.outputs:,} classes of {len(valid.truth):,} validation rows need too much memory",
                hint=f"families => '{NETS}'",
            )
        most = max(LEAST_ROWS, int(cells_per_second * seconds / max(1, inputs.width)))
        most = min(most, max(1, MOST_BYTES // (4 * inputs.outputs)))  # (perceptrons have an element for each class)
        training = target_of(packed, packed_rows.read(db, packed, most, MOST_BYTES), is_balanced)
    if training.truth.shape[1] != valid.truth.shape[1]:
        raise MopError(f'the targets of "{packed_text}" and of the validation rows are not packed alike')
    request = {**request, "until": began + seconds, "kept": min(request["kept"], max(1, MOST_BYTES // answer_bytes))}
    header, payloads = asked(db, session, inputs, [training, valid], metric, request, tell)
    numbers, trials, kept = header["kept"], header["trials"], []
    for place, outputs in kept_of(payloads[len(numbers) :], len(valid.truth)):
        info = info_of(trials[numbers[place]])
        net, weights = net_of(inputs, info, bytes(payloads[place]))
        kept.append(Kept(numbers[place] + 1, weights, outputs, info, net))
    return Trained(packed.shaped, trials, kept, len(training.truth), time.monotonic() - began)


def asked(
    db: Database,
    session: Session,
    inputs: DenseInputs,
    rows: Sequence[Target],
    metric: Metric,
    header: dict[str, Any],
    tell: Tell | None = None,
) -> tuple[dict[str, Any], list[Any]]:
    """The trainer's answer to a request about rows; `metric`: for which numbers are trained; `tell`: told of the trials so far.
    Raises MopError."""
    shapes, arrays = [], []
    for own in rows:
        vectors = inputs.arrays(own)
        shapes.append([[list(array.shape) for array in vectors], own.weights is not None])
        arrays += [*vectors, *own.targets(bool(inputs.classes))]
    with trainer_of(session, trainer_options(db, False)) as trainer:
        trainer.send(
            {**header, **inputs.header(), "rows": shapes, "loss": metric.number_loss},
            *(np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays),
        )
        del arrays
        answer, payloads = answer_of(trainer, tell)
    if "absent" in answer:
        raise MopError("the trainer cannot load SciPy", detail=answer["absent"], sqlstate="58000")
    return answer, payloads
