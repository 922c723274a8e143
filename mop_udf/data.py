"""Packed buffers as arrays, mini-batches, and the trainer's cache of segments. Needs numpy only."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mop_udf.pool.channel import Channel

Arrays = tuple[np.ndarray, ...]  # with equal first dimension

DTYPES = ("<f4", "<i2")  # dtypes of packed columns
SHUFFLED_BYTES = 64 << 20  # of rows that change places with one another
STALE = 4  # features are stale if the last STALE * (number of cached features) accesses left them out


class Columns(tuple[np.ndarray, ...]):
    """Arrays with equal first dimension that stay in memory, with tensors that kernels have made from them (`made`).

    Later units use the tensors again. `made` stays small, since the cache does not count it.
    """

    MOST_BYTES = 16 << 20  # limit of `made`
    made: dict[Any, Any]
    made_bytes: int

    def __new__(cls, arrays: Iterable[np.ndarray]) -> Columns:
        self = super().__new__(cls, arrays)
        self.made, self.made_bytes = {}, 0
        return self

    def keep(self, key: Any, made: Any, nbytes: int) -> None:
        """Keep `made`, of `nbytes`, under a key if the limit allows it."""
        if self.made_bytes + nbytes <= self.MOST_BYTES:
            self.made[key] = made
            self.made_bytes += nbytes


class Segment:
    """The rows of one segment: a tuple of arrays (inputs, outputs, sample weights if there are any) with
    equal first dimension."""

    def __init__(self, columns: Iterable[np.ndarray]) -> None:
        self.columns = Columns(columns)

    @property
    def rows(self) -> int:
        return len(self.columns[0])

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes for c in self.columns)


class Cache:
    """Segments, and features computed from their rows, in memory up to `limit` bytes together.

    Features can be computed again, so they are dropped before rows.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.segments: dict[Any, Segment] = {}
        # (segment's key, digest of the prefix) -> features, in the order of their last use
        self.features: dict[tuple[Any, str], Segment] = {}
        self._last_access: dict[tuple[Any, str], int] = {}  # key of features -> count of accesses at their last use
        self._accesses = 0

    def get(self, key: Any) -> Segment | None:
        return self.segments.get(key)

    def make_capacity(self, nbytes: int, keep: Any) -> bool:
        """True where `nbytes` more of rows fit, after dropping features, then segments with keys not in `keep`, as
        needed.
        """
        return self._make_capacity(nbytes, [*self.features, *(key for key in self.segments if key not in keep)])

    def make_feature_capacity(self, nbytes: int, keep: Any) -> bool:
        """True where `nbytes` more of features fit, after dropping stale features, then segments with keys not in
        `keep`.
        """
        stale = [key for key in self.features if self._accesses - self._last_access[key] > STALE * len(self.features)]
        return self._make_capacity(nbytes, [*stale, *(key for key in self.segments if key not in keep)])

    def features_of(self, key: Any, digest: str) -> Segment | None:
        """The features of the segment `key` by the prefix that `digest` names; None where they are not cached."""
        self._accesses += 1
        if (key, digest) in self.features:
            self.features[key, digest] = self.features.pop((key, digest))
            self._last_access[key, digest] = self._accesses
        return self.features.get((key, digest))

    def add_features(self, key: Any, digest: str, segment: Segment) -> None:
        self.features[key, digest], self._last_access[key, digest] = segment, self._accesses

    def used(self) -> int:
        return sum(s.nbytes for s in (*self.segments.values(), *self.features.values()))

    def _make_capacity(self, nbytes: int, victims: Iterable[Any]) -> bool:
        """True where `nbytes` more fit, after dropping victims (keys) in order; nothing is dropped if that does not
        suffice.
        """
        before = self.segments, self.features
        self.segments, self.features = dict(self.segments), dict(self.features)
        for key in victims:
            if self.used() + nbytes <= self.limit:
                break
            self._drop(key)
        if self.used() + nbytes <= self.limit:
            return True
        self.segments, self.features = before
        return False

    def _drop(self, key: Any) -> None:
        """Drop features, or a segment with all its features."""
        self.segments.pop(key, None)
        for own in [k for k in self.features if key in (k, k[0])]:
            del self.features[own]


def receive_rows(
    channel: Channel, dtypes: Sequence[str], total_rows: int | None
) -> Generator[tuple[int, Arrays], None, Segment | None]:
    """Yield (epoch, tuple of arrays) for each "rows" frame on `channel`, until its "end" frame.

    With `total_rows`, the arrays are slices of whole-segment arrays; the generator returns these as a Segment, or None
    if the rows do not add up. Raises ValueError where a buffer's sizes do not fit its shapes.
    """
    whole: list[np.ndarray] | None = None
    done = 0
    while True:
        header = channel.receive_header()
        if header["op"] == "end":
            if whole is None or done != total_rows:
                return None
            return Segment(tuple(whole))
        shapes = header["shapes"]
        if not _shapes_fit(shapes, dtypes, header["sizes"]):
            raise ValueError(f"buffer {header['buffer']} has {header['sizes']} bytes, its shapes {shapes} do not fit")
        rows = shapes[0][0]
        if total_rows is not None and whole is None:
            whole = [np.empty([total_rows, *s[1:]], d) for s, d in zip(shapes, dtypes)]
        if (
            whole is not None
            and total_rows is not None
            and done + rows <= total_rows
            and all(list(w.shape[1:]) == s[1:] for w, s in zip(whole, shapes))
        ):
            arrays = tuple(w[done : done + rows] for w in whole)
        else:
            whole, total_rows = None, None
            arrays = tuple(np.empty(s, d) for s, d in zip(shapes, dtypes))
        for array in arrays:
            channel.receive_into(array.reshape(-1).view(np.uint8))
        done += rows
        yield header.get("epoch", 1), arrays


def _shapes_fit(shapes: list[list[int]], dtypes: Sequence[str], sizes: list[int]) -> bool:
    """True where the shapes have an equal first dimension and give these sizes in bytes."""
    return (
        len(shapes) == len(dtypes) == len(sizes)
        and all(dtype in DTYPES for dtype in dtypes)
        and all(1 <= len(s) <= 32 and min(s) >= 0 and s[0] == shapes[0][0] for s in shapes)
        and [math.prod(s) * np.dtype(d).itemsize for s, d in zip(shapes, dtypes)] == sizes
    )


def whole_batches(
    chunks: Iterable[Arrays], batch_size: int, least: int = 16, enough: int = 32 << 20
) -> Iterator[Arrays]:
    """Regroup chunks (tuples of arrays in sequence) so that each chunk but the last is a whole number of batches.

    Small chunks are joined up to `least` batches or `enough` bytes. From a larger chunk, only the rows that complete
    the last open batch are copied.
    """
    held: list[Arrays] = []
    count, size = 0, 0
    for chunk in chunks:
        bytes_ = sum(column.nbytes for column in chunk)
        if held and bytes_ >= enough:
            missing = min(-count % batch_size, len(chunk[0]))
            held.append(tuple(column[:missing] for column in chunk))
            count += missing
            if count % batch_size:  # the chunk was too short
                size += bytes_
                continue
            yield _joined(held)
            held, count, size, chunk = [], 0, 0, tuple(column[missing:] for column in chunk)
        held.append(chunk)
        count, size = count + len(chunk[0]), size + bytes_
        if count >= batch_size and (count >= least * batch_size or size >= enough):
            joined = _joined(held)
            full = count // batch_size * batch_size
            yield tuple(column[:full] for column in joined)
            count -= full
            held = [tuple(column[full:].copy() for column in joined)] if count else []
            size = sum(column.nbytes for columns in held for column in columns)
    if count:
        yield _joined(held)


def _joined(chunks: list[Arrays]) -> Arrays:
    return chunks[0] if len(chunks) == 1 else tuple(map(np.concatenate, zip(*chunks)))


def batches(chunks: Iterable[Arrays], batch_size: int) -> Iterator[Arrays]:
    """Cut a sequence of chunks (tuples of arrays) into mini-batches; only the last may be short."""
    for chunk in whole_batches(chunks, batch_size, least=1):
        for start in range(0, len(chunk[0]), batch_size):
            yield tuple(column[start : start + batch_size] for column in chunk)


def permuted(
    columns: Sequence[np.ndarray], how: Any, batch_size: int, block: int, random: np.random.Generator
) -> tuple:
    """Rows (arrays with equal first dimension) in a new order.

    Rows change places within blocks of `block` rows (see `shuffle_block`): True permutes rows, 'batch' whole batches.
    """
    rows = len(columns[0])
    order = np.concatenate(
        [start + _order(min(block, rows - start), how, batch_size, random) for start in range(0, rows, block)]
    )
    return tuple(column[order] for column in columns)


def permuted_stream(
    chunks: Iterable[tuple], how: Any, batch_size: int, block: int, random: np.random.Generator
) -> Iterator[tuple]:
    """The same for chunks of rows in sequence, of which one block is in memory at a time."""
    for rows in batches(chunks, block):
        yield permuted(rows, how, batch_size, block, random)


def shuffle_block(nbytes: int, rows: int, batch_size: int) -> int:
    """The rows of a block of a segment: about SHUFFLED_BYTES, and whole batches.

    It is the same for rows in memory and for rows that are read anew, so both give the same order.
    """
    return max(1, SHUFFLED_BYTES // max(1, nbytes // max(1, rows)) // batch_size) * batch_size


def _order(rows: int, how: Any, batch_size: int, random: np.random.Generator) -> np.ndarray:
    if how != "batch":
        return random.permutation(rows)
    starts = random.permutation(np.arange(0, rows, batch_size))
    return np.concatenate([np.arange(s, min(s + batch_size, rows)) for s in starts])
