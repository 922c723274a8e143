"""Packed buffers to arrays, mini-batches, and the per-trainer cache of segments. Needs numpy only."""

import math

import numpy as np

DTYPES = ("<f4", "<i2")  # of packed columns


class Segment:
    """The rows of one segment: a tuple of arrays (inputs, then outputs) with equal first dimension."""

    def __init__(self, columns):
        self.columns = columns

    @property
    def rows(self):
        return len(self.columns[0])

    @property
    def nbytes(self):
        return sum(c.nbytes for c in self.columns)


class Cache:
    """Segments kept in memory while they fit `limit` bytes together."""

    def __init__(self, limit):
        self.limit, self.segments = limit, {}

    def get(self, key):
        return self.segments.get(key)

    def room_for(self, nbytes, keep):
        """True when `nbytes` more fit, after dropping segments whose key is not in `keep` where need be."""
        if nbytes > self.limit:
            return False
        for key in [k for k in self.segments if k not in keep]:
            if self.used() + nbytes <= self.limit:
                break
            del self.segments[key]
        return self.used() + nbytes <= self.limit

    def used(self):
        return sum(s.nbytes for s in self.segments.values())


def receive_rows(channel, dtypes, total_rows):
    """Yield a tuple of arrays for each "rows" frame on `channel`, until its "end" frame.

    With `total_rows`, the arrays are slices of whole-segment arrays, which the generator returns as a Segment at its
    end (None otherwise). Raises ValueError where buffers do not fit together.
    """
    whole, done = None, 0
    while True:
        header = channel.receive_header()
        if header["op"] == "end":
            if whole is None or done != total_rows:
                return None
            return Segment(tuple(whole))
        shapes = header["shapes"]
        if not _fit(shapes, dtypes, header["sizes"]):
            raise ValueError(f"buffer {header['buffer']} has {header['sizes']} bytes, its shapes {shapes} do not fit")
        rows = shapes[0][0]
        if total_rows is not None and whole is None:
            whole = [np.empty([total_rows, *s[1:]], d) for s, d in zip(shapes, dtypes)]
        if whole is not None and done + rows <= total_rows and all(
                list(w.shape[1:]) == s[1:] for w, s in zip(whole, shapes)):
            arrays = tuple(w[done:done + rows] for w in whole)
        else:
            whole, total_rows = None, None
            arrays = tuple(np.empty(s, d) for s, d in zip(shapes, dtypes))
        for array in arrays:
            channel.receive_into(array.reshape(-1).view(np.uint8))
        done += rows
        yield header.get("epoch", 1), arrays


def _fit(shapes, dtypes, sizes):
    """True where the shapes are those of arrays with equal first dimension and of these sizes in bytes."""
    return (len(shapes) == len(dtypes) == len(sizes) and all(dtype in DTYPES for dtype in dtypes)
            and all(1 <= len(s) <= 32 and min(s) >= 0 and s[0] == shapes[0][0] for s in shapes)
            and [math.prod(s) * np.dtype(d).itemsize for s, d in zip(shapes, dtypes)] == sizes)


def batches(chunks, batch_size, most=None):
    """Cut a sequence of chunks (tuples of arrays) into mini-batches of `batch_size` rows.

    A partial batch is carried on into the next chunk, so that only the last batch may be short. At most `most`
    batches are given; the rest of the chunks is still read.
    """
    carried, count = None, 0
    for chunk in chunks:
        if most is not None and count >= most:
            continue
        start = 0
        if carried is not None:
            start = min(batch_size - len(carried[0]), len(chunk[0]))
            carried = tuple(np.concatenate([c, n[:start]]) for c, n in zip(carried, chunk))
            if len(carried[0]) < batch_size:
                continue
            yield carried
            carried, count = None, count + 1
        rows = len(chunk[0])
        while rows - start >= batch_size and (most is None or count < most):
            yield tuple(c[start:start + batch_size] for c in chunk)
            start, count = start + batch_size, count + 1
        if start < rows:
            carried = tuple(c[start:] for c in chunk)
    if carried is not None and (most is None or count < most):
        yield carried


def permuted(segment, how, batch_size, random):
    """The rows of `segment` in a new order: True permutes rows, 'batch' whole batches. `random`: numpy Generator."""
    if how == "batch":
        starts = random.permutation(np.arange(0, segment.rows, batch_size))
        order = np.concatenate([np.arange(s, min(s + batch_size, segment.rows)) for s in starts])
    else:
        order = random.permutation(segment.rows)
    return tuple(c[order] for c in segment.columns)
