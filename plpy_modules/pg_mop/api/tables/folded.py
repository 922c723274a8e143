"""Of few rows, all choose among the trained models: a validation part of some hundred rows prefers the luckiest model.

The validation rows are one of the folds of the known rows. The best models of each family are trained again without each of
the other folds, and answer for it. So each model has an answer for each row that it was not trained on (the cross-validation of
stacking: Wolpert 1992, Breiman 1996), and all rows select the ensemble.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.tables import boosting, linear, perceptrons, trained
from pg_mop.api.tables.trained import Kept, Target, Trained
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.inference.metrics import Metric
from pg_mop.packing import packed_rows
from pg_mop.packing.packed_table import PackedTable

FOLDS = 5  # of the known rows
MOST_ROWS = 5000  # known rows: of more, the validation part is large enough
MOST_BYTES = 256 << 20  # of the answers of a family's models
SHARE = 0.4  # of the time of the families
_AGAIN: dict[str, Callable[..., Sequence[Any]]] = {
    trained.LINEAR: linear.again,
    trained.BOOSTING: boosting.again,
    trained.MLP: perceptrons.again,
}


def check(db: Database, has_nets: bool, trained_on: str | None, checked: str | None) -> None:
    """Raises MopError where a call of mop_ensemble asks for folds that cannot choose; `checked`: the validation table."""
    if has_nets:
        raise MopError(
            "folds need trained_on, and no model table: its models are trained already",
            hint="Leave out folds; or model_table => NULL, trained_on => 'packed training table'.",
        )
    with db.undone():
        count = sum(packed_rows.count(db, PackedTable(db, name, "packed table")) for name in (trained_on, checked))
    if count > MOST_ROWS:
        raise MopError(
            f'folds choose by at most {MOST_ROWS:,} rows, and "{trained_on}" and "{checked}" have {count:,}',
            detail="Of more rows, the validation rows are enough to choose by.",
            hint="Leave out folds.",
        )


def answered(
    db: Database,
    session: Session,
    packed_text: str | None,
    valid: Target,
    is_balanced: bool,
    metric: Metric,
    families: Mapping[str, Trained],
    seconds: float,
) -> tuple[Target, dict[str, list[Kept]]] | None:
    """(validation and training rows, the best models of each family with their answers for these), within about `seconds`; None
    where the time or the memory is too short for one model of each family. Raises MopError."""
    ordered = {name: _best_first(own) for name, own in families.items() if own.kept}
    least = sum((FOLDS - 1) * kept[0].info["seconds"] for kept in ordered.values())
    rows = max((families[name].rows for name in ordered), default=0)
    most = MOST_BYTES // (8 * (rows + len(valid.truth)) * valid.truth.shape[1])
    if not ordered or least > seconds or not most:
        return None
    until = time.monotonic() + seconds
    training = trained.read_target(db, packed_text, rows, is_balanced)
    together = valid.joined(training, is_balanced)
    folds = np.concatenate([np.zeros(len(valid.truth), int), _dealt(training.truth, trained.seed_of(db))])
    found: dict[str, list[Kept]] = {}
    for place, (name, kept) in enumerate(ordered.items()):
        db.check_cancel()
        share = trained.share_of(list(ordered)[place:])
        ends = time.monotonic() + share * (until - time.monotonic())
        given = db, session, families[name].transform, together, [one.info for one in kept[:most]], metric
        answers = trained.answers_of(_AGAIN[name](*given, folds=folds.tolist(), until=ends), len(training.truth))
        found[name] = [
            replace(one, answers=np.concatenate([one.answers, own]))
            for one, own in zip(kept, answers)
            if np.isfinite(own).all()
        ]
    return (together, found) if all(found.values()) else None


def _best_first(own: Trained) -> list[Kept]:
    def loss(one: Kept) -> Any:
        value = own.trials[one.number - 1]["loss"]
        return np.inf if value is None else value

    return sorted(own.kept, key=loss)


def _dealt(truth: np.ndarray, seed: int) -> np.ndarray:
    """The folds [rows] of training rows, from 1 on, with about as many rows of each class or of similar numbers.

    >>> np.bincount(_dealt(np.eye(2)[[0] * 8 + [1] * 4], 1)[:8]).tolist()
    [0, 2, 2, 2, 2]
    """
    random = np.random.default_rng(seed)
    targets = truth.argmax(1) if truth.shape[1] > 1 else truth[:, 0]
    order = np.lexsort((random.random(len(targets)), targets))
    folds = np.empty(len(targets), int)
    for first in range(0, len(order), FOLDS - 1):
        places = order[first : first + FOLDS - 1]
        folds[places] = 1 + random.permutation(FOLDS - 1)[: len(places)]
    return folds
