"""Boosted trees for the rows of packed tables: trained by LightGBM in the session's trainer, candidates of an ensemble."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.session import trainer_of, trainer_options
from pg_mop.api.tables.trained import (
    BOOSTING,
    MOST_BYTES,
    NETS,
    Kept,
    Target,
    Tell,
    Trained,
    answer_of,
    check_installed,
    kept_of,
    seed_of,
    target_of,
)
from pg_mop.backend import settings
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.columns import OneHot, TargetNumber, Transform
from pg_mop.inference import trees
from pg_mop.inference.metrics import Metric
from pg_mop.inference.tree_inputs import TreeInputs
from pg_mop.packing import packed_rows
from pg_mop.packing.packed_table import PackedTable

MOST_CLASSES = 200  # a round has a tree for each class
MOST_TRIALS, KEPT = 60, 5  # trials, and those that may be members
CELLS_PER_SECOND = 250_000  # elements of training rows, for each second and thread: some hundred rounds are trained
LEAST_ROWS = 20_000  # of the training rows, where there are more


def obstacle(transform: Transform) -> str | None:
    """Why no trees are trained for rows of a transform; None where they are."""
    if len(transform.outputs) != 1 or not isinstance(transform.outputs[0], (OneHot, TargetNumber)):
        return "the target is neither one class nor one number"
    if not TreeInputs.are_possible(transform.inputs):
        return "there are texts, images, series or arrays, which trees do not take"
    (target,) = transform.outputs
    if isinstance(target, OneHot) and not 2 <= len(target.classes) <= MOST_CLASSES:
        return f"there are {len(target.classes)} classes, and trees are trained for 2 to {MOST_CLASSES}"
    return None


def train(
    db: Database,
    session: Session,
    packed_text: str | None,
    valid: Target,
    is_balanced: bool,
    metric: Metric,
    seconds: float,
    most_trials: float | None = None,
    tell: Tell | None = None,
) -> Trained:
    """Search boosted trees on a packed table for so many seconds; `valid`: the rows that judge; `metric`: for which the trees
    are trained; `tell`: told of the trials so far. Raises MopError."""
    began = time.monotonic()
    check_installed(BOOSTING)
    threads = settings.free_cores()
    with db.undone():  # a lock on a step's table would hinder its owner, another session of this call, from dropping it
        packed = PackedTable(db, packed_text, "packed table of boosting")
        reason = obstacle(packed.shaped)
        if reason is not None:
            raise MopError(f'"{packed_text}" has no boosted trees: {reason}', hint=f"families => '{NETS}'")
        encoder = TreeInputs(packed.shaped.inputs)
        most = max(LEAST_ROWS, int(CELLS_PER_SECOND * threads * seconds / encoder.width))
        training = target_of(packed, packed_rows.read(db, packed, most, MOST_BYTES), is_balanced)
    (target,) = packed.shaped.outputs
    classes = len(target.classes) if isinstance(target, OneHot) else 0
    if len({max(classes, 1), training.truth.shape[1], valid.truth.shape[1]}) > 1:
        raise MopError(f'the targets of "{packed_text}" and of the validation rows are not packed alike')
    given = [
        [np.ascontiguousarray(encoder.elements(own.inputs), "<f4"), *own.targets(bool(classes))]
        for own in (training, valid)
    ]
    count = len(given[0][0])
    with trainer_of(session, trainer_options(db, False)) as trainer:
        trainer.send(
            {
                "op": "boosting",
                "shapes": [list(arrays[0].shape) for arrays in given],
                "weighted": [own.weights is not None for own in (training, valid)],
                "codes": encoder.codes,
                "classes": classes,
                "until": began + seconds,
                "most": int(min(MOST_TRIALS, most_trials or MOST_TRIALS)),
                "threads": threads,
                "seed": seed_of(db),
                "kept": KEPT,
                "objective": dict(metric.objective),
            },
            *(array.reshape(-1).view(np.uint8) for arrays in given for array in arrays),
        )
        del given
        header, payloads = answer_of(trainer, tell)
    if "absent" in header:
        raise MopError("the trainer cannot load LightGBM", detail=header["absent"], sqlstate="58000")
    texts, answers = payloads[: len(header["kept"])], payloads[len(header["kept"]) :]
    trials, kept = header["trials"], []
    for place, outputs in kept_of(answers, len(valid.truth)):
        number = header["kept"][place]
        info = {name: trials[number][name] for name in ("params", "rounds", "seconds")}
        kept.append(Kept(number + 1, bytes(texts[place]), outputs, info))
    if kept:
        _check_readable(kept[0].content, encoder.width)
    return Trained(packed.shaped, trials, kept, count, time.monotonic() - began)


def refit(
    db: Database, session: Session, transform: Transform, rows: Target, infos: Sequence[dict[str, Any]], metric: Metric
) -> list[bytes]:
    """LightGBM's texts of the models of these `infos`, trained on `rows` for the metric. Raises MopError."""
    return [bytes(text) for text in again(db, session, transform, rows, infos, metric)]


def again(
    db: Database,
    session: Session,
    transform: Transform,
    rows: Target,
    infos: Sequence[dict[str, Any]],
    metric: Metric,
    **more: Any,
) -> Sequence[Any]:
    """The payloads of the trainer's answer to a request `refit` for the models of these `infos`; `more`: of its header. Raises
    MopError."""
    encoder = TreeInputs(transform.inputs)
    (target,) = transform.outputs
    classes = len(target.classes) if isinstance(target, OneHot) else 0
    elements = np.ascontiguousarray(encoder.elements(rows.inputs), "<f4")
    header = {
        "op": "refit",
        "family": BOOSTING,
        "rows": [[[list(elements.shape)], rows.weights is not None]],
        "codes": encoder.codes,
        "classes": classes,
        "models": [[info["params"], info["rounds"]] for info in infos],
        "objective": dict(metric.objective),
        "threads": settings.free_cores(),
        "seed": seed_of(db),
        **more,
    }
    with trainer_of(session, trainer_options(db, False)) as trainer:
        arrays = [elements, *rows.targets(bool(classes))]
        trainer.send(header, *(array.reshape(-1).view(np.uint8) for array in arrays))
        _, payloads = trainer.receive()
    return payloads


def _check_readable(text: bytes, width: int) -> None:
    """Raises MopError where a session cannot read LightGBM's text, for rows of so many elements."""
    try:
        trees.read(text, width)
        return
    except trees.BadTrees as error:
        problem = str(error)
    raise MopError(
        "the trees of the installed LightGBM cannot be read",
        detail=problem,
        hint=f"pg_mop reads text {trees.VERSION}, of LightGBM 4: pip install 'lightgbm>=4,<5'; or families => '{NETS}'.",
        sqlstate="0A000",
    )
