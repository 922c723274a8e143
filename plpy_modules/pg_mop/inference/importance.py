"""Permutation importance: what the main measure of a model loses where one column of its inputs is permuted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pg_mop.backend.arrays import np
from pg_mop.columns import Column
from pg_mop.inference import scores

REPEATS = 5
Losses = list[tuple[str, float, float]]  # (name, mean loss, its deviation) of each column, largest loss first


def importance(
    columns: Sequence[Column],
    arrays: Sequence[np.ndarray],
    outputs_of: Callable[[list[np.ndarray]], np.ndarray],
    score: Callable[[np.ndarray], float],
    random: np.random.Generator,
    most_apart: int = 0,
) -> Losses:
    """The losses of the columns. `arrays`: their packed rows; `outputs_of`: the model; `score`: of its outputs.

    The numbers of a vector are permuted apart where it has at most `most_apart` of them.
    """
    base = score(outputs_of(list(arrays)))
    losses = []
    for i, name, places in _elements(columns, arrays, most_apart):
        repeats = []
        for _ in range(REPEATS):
            permuted, order = list(arrays), random.permutation(len(arrays[i]))
            permuted[i] = arrays[i].copy()
            permuted[i][..., places] = arrays[i][order][..., places]
            repeats.append(base - score(outputs_of(permuted)))
        losses.append((name, float(np.mean(repeats)), float(np.std(repeats))))
    return sorted(losses, key=lambda loss: -loss[1])


def main_score(truth: np.ndarray, outputs: np.ndarray, regression: bool, predicted: np.ndarray | None = None) -> float:
    """R2 of numbers, else accuracy; `truth`: numbers, or class numbers; `predicted`: these; None: the most probable ones."""
    if regression:
        return scores.regression(truth, outputs[:, 0])["r2"]
    return float(((outputs.argmax(1) if predicted is None else predicted) == truth).mean())


def _elements(
    columns: Sequence[Column], arrays: Sequence[np.ndarray], most_apart: int
) -> Iterator[tuple[int, str, slice]]:
    """(number of the array, name, places on its last axis) of what is permuted together."""
    for i, (column, array) in enumerate(zip(columns, arrays, strict=True)):
        if not column.features and array.ndim == 2 and 1 < array.shape[1] <= most_apart:
            for k in range(array.shape[1]):
                yield i, f"{column.name}[{k + 1}]", slice(k, k + 1)
        else:
            yield from ((i, name, place) for name, place in column.places())
