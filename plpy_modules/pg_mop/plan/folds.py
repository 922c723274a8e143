"""Cross-validation: segments are folds. Pure Python.

A configuration with k folds has k further trials. The trial of a fold never visits the segments of its fold, and is
evaluated on them alone.

Cross-validation needs no other rows, only other visits. A fold is a further configuration of the run (`plan/folds.py`) with
its own `mst_key`, the `mst_key` of its configuration (`fold_of`), and its held-out segments (`mop_configuration.held_out`).
The board asks which segments a stage visits, and which ones it is evaluated on. The identity of the fold's root covers its
held-out segments, so folds are shared and reused like all stages, while the trial on all segments has the identity of a call
without folds. The version of a stage's state counts the visits of its own path. Configurations hand out the caller's view: a
configuration with its trials (`call/configurations.py`). Means are taken where results are read (`call/metrics.py`): for
lines, for output tables, and for a search procedure, which never sees a fold.

Folds share no stage with one another. Their first passes have segments in common, and could be trained as a tree (TreeCV:
Joulani, Gyorgy, Szepesvari, IJCAI 2015). That would need stages of less than an iteration, and would fix the order of the
first iteration's visits.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pg_mop.plan.configuration import Configuration

MOST_KEY = 2**31 - 1  # the largest mst_key of a table
# The folds of a search's trial have mst_keys that are so much larger each: trials are added while the search goes on.
STEP = 10_000_000
MOST_IN_SEARCH = MOST_KEY // STEP - 1  # folds


def deal(segments: Iterable[int], folds: int) -> list[list[int]]:
    """Deal segments (numbers) out to folds: fold f gets every `folds`-th one, so that folds differ by one at most.

    >>> deal([0, 1, 2, 3, 4], 2)
    [[0, 2, 4], [1, 3]]
    """
    ordered = sorted(segments)
    return [ordered[fold::folds] for fold in range(folds)]


def trials(configurations: Sequence[Configuration], held_out: Sequence[Sequence[int]]) -> list[Configuration]:
    """The trials of folds: a copy of each configuration for each fold, with an mst_key above all others.

    `held_out`: the segments of each fold. A copy has `fold` (from 1), `fold_of` (the configuration's mst_key) and
    `held_out`. Raises OverflowError if an mst_key would exceed MOST_KEY.
    """
    last = max(c["mst_key"] for c in configurations)
    if last + len(configurations) * len(held_out) > MOST_KEY:
        raise OverflowError(f"the folds need mst_keys above {last}, which end at {MOST_KEY}")
    copies = [(c, fold, segments) for c in configurations for fold, segments in enumerate(held_out, 1)]
    return [_fold(c, last + number, fold, segments) for number, (c, fold, segments) in enumerate(copies, 1)]


def trials_of_search(c: Configuration, held_out: Sequence[Sequence[int]]) -> list[Configuration]:
    """The trials of the folds of a search's trial, as `trials` makes them, with mst_keys that later trials do not use."""
    return [_fold(c, c["mst_key"] + fold * STEP, fold, segments) for fold, segments in enumerate(held_out, 1)]


def _fold(c: Configuration, mst_key: int, fold: int, held_out: Sequence[int]) -> Configuration:
    return {**c, "mst_key": mst_key, "fold": fold, "fold_of": c["mst_key"], "held_out": list(held_out)}


@dataclass(frozen=True)
class Summary:
    """One measure of a configuration over its folds.

    `values`: one for each fold, None where a fold has none; `mean` and `deviation` (the sample standard deviation): None
    unless every fold has a value.
    """

    values: list[float | None]
    mean: float | None
    deviation: float | None


def summarize(values: Iterable[float | None]) -> Summary:
    """The Summary of at least two values. Folds count alike, whatever their number of rows.

    >>> summarize([1.0, 2.0, 3.0])
    Summary(values=[1.0, 2.0, 3.0], mean=2.0, deviation=1.0)
    >>> summarize([1.0, None])
    Summary(values=[1.0, None], mean=None, deviation=None)
    """
    found = list(values)
    known = [value for value in found if value is not None]
    if len(known) < max(len(found), 2):
        return Summary(found, None, None)
    return Summary(found, statistics.fmean(known), statistics.stdev(known))


def visited(segments: Sequence[int], held_out: Collection[int]) -> Sequence[int]:
    """The segments that a trial visits, in their order."""
    return [segment for segment in segments if segment not in held_out] if held_out else segments
