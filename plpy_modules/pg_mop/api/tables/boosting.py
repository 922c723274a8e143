"""Boosted trees for the rows of packed tables: trained by LightGBM in the session's trainer, candidates of an ensemble."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.session import trainer_of, trainer_options
from pg_mop.backend import settings
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import split_names
from pg_mop.columns import OneHot, TargetNumber, Transform
from pg_mop.inference.tree_inputs import TreeInputs
from pg_mop.packing import packed_rows
from pg_mop.packing.packed_table import PackedTable

NETS, BOOSTING, LINEAR = "nets", "boosting", "linear"
PACKAGES = {NETS: None, BOOSTING: "lightgbm", LINEAR: "scipy"}  # {family: the package that it needs}
FAMILIES = tuple(PACKAGES)
MOST_CLASSES = 200  # a round has a tree for each class
MOST_TRIALS, KEPT = 60, 5  # trials, and those that may be members
CELLS_PER_SECOND = 250_000  # elements of training rows, for each second and thread: some hundred rounds are trained
LEAST_ROWS, MOST_BYTES = 20_000, 512 << 20  # of the training rows, where there are more
SECONDS = 10.0  # that boosting is searched in a call of mop_ensemble


def families_of(text: str | None) -> tuple[str, ...]:
    """The families that a call asks for; by default all whose packages are installed. Raises MopError."""
    if text is None:
        return tuple(name for name, package in PACKAGES.items() if package is None or settings.is_installed(package))
    names = [name.lower() for name in split_names(text)]
    unknown = [name for name in names if name not in FAMILIES]
    if unknown or not names:
        raise MopError(
            f"families has {unknown[0]!r}, which is no family of models that pg_mop trains"
            if unknown
            else "families names no family of models",
            hint=f"families => '{', '.join(FAMILIES)}', or some of them.",
        )
    for name in names:
        check_installed(name)
    return tuple(name for name in FAMILIES if name in names)


def check_installed(family: str = BOOSTING) -> None:
    """Raises MopError where the package of a family is not installed on this server."""
    package = PACKAGES[family]
    if package is not None and not settings.is_installed(package):
        raise MopError(
            f"the family {family} needs {package}, which is not installed on this server",
            hint=f"On this server: {settings.to_install(package)}; or families => '{NETS}'.",
            sqlstate="58000",
        )


@dataclass
class Target:
    """Rows of a packed table with their target. `truth`: [rows, width], one-hot or numbers; `weights`: of the rows, or None;
    `own_weights`: without those that balance the classes."""

    inputs: list[np.ndarray]
    truth: np.ndarray
    weights: np.ndarray | None
    own_weights: np.ndarray | None

    def joined(self, other: Target, is_balanced: bool) -> Target:
        """These rows and others. `is_balanced`: the weights of each of the two balance its classes."""
        parts = [own.weights for own in (self, other) if own.weights is not None]
        scales = [own.mean() or 1.0 if is_balanced else 1.0 for own in parts]
        weights = np.concatenate([own / scale for own, scale in zip(parts, scales)]) if len(parts) == 2 else None
        inputs = [np.concatenate(arrays) for arrays in zip(self.inputs, other.inputs, strict=True)]
        own_parts = [own.own_weights for own in (self, other) if own.own_weights is not None]
        own_weights = np.concatenate(own_parts) if len(own_parts) == 2 else None
        return Target(inputs, np.concatenate([self.truth, other.truth]), weights, own_weights)

    def targets(self, is_classes: bool) -> list[np.ndarray]:
        """The targets and the weights, if any, as arrays of a request. The mean weight is 1: LightGBM regards weights as parts
        of rows."""
        own = self.truth.argmax(1) if is_classes else self.truth[:, 0]
        weights = [] if self.weights is None else [(self.weights / (self.weights.mean() or 1)).astype("<f8")]
        return [own.astype("<f8"), *weights]


@dataclass
class Boosted:
    """The trials of boosting, as `details` keep them, and those that may be members: (number from 1 on, LightGBM's text, the
    answers for the validation rows [rows, width]). `transform`: of the training rows, which knows how targets are distributed.
    """

    transform: Transform
    trials: list[dict[str, Any]] = field(default_factory=list)
    kept: list[tuple[int, bytes, np.ndarray]] = field(default_factory=list)
    rows: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The key `boosting` of a version's details."""
        return {"trials": self.trials, "rows": self.rows, "seconds": self.seconds}


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


def target_of(packed: PackedTable, arrays: list[np.ndarray], is_balanced: bool) -> Target:
    """The rows of a packed table with one target; `is_balanced`: all classes count alike."""
    inputs, truth = arrays[: len(packed.inputs)], arrays[len(packed.inputs)]
    truth = truth.reshape(len(truth), -1)
    weights = own_weights = arrays[-1].reshape(-1).astype("f8") if packed.weighted else None
    if is_balanced:  # as nets are trained
        codes = truth.argmax(1)
        own = 1 / np.bincount(codes)[codes]
        weights = own if weights is None else own * weights
    return Target(inputs, truth, weights, own_weights)


def train(
    db: Database,
    session: Session,
    packed_text: str | None,
    valid: Target,
    is_balanced: bool,
    seconds: float,
    most_trials: float | None = None,
    objective: Mapping[str, Any] = MappingProxyType({}),
) -> Boosted:
    """Search boosted trees on a packed table for so many seconds; `valid`: the rows that judge; `objective`: LightGBM's
    parameters, where it is not the usual one. Raises MopError."""
    began = time.monotonic()
    check_installed()
    threads = max(1, settings.cores() - settings.runnable_threads())
    with db.undone():  # a lock on a step's table would hinder its owner, another session of this call, from dropping it
        packed = PackedTable(db, packed_text, "packed table of boosting")
        reason = obstacle(packed.transform)
        if reason is not None:
            raise MopError(f'"{packed_text}" has no boosted trees: {reason}', hint=f"families => '{NETS}'")
        encoder = TreeInputs(packed.transform.inputs)
        most = max(LEAST_ROWS, int(CELLS_PER_SECOND * threads * seconds / encoder.width))
        training = target_of(packed, packed_rows.read(db, packed, most, MOST_BYTES), is_balanced)
    (target,) = packed.transform.outputs
    classes = len(target.classes) if isinstance(target, OneHot) else 0
    if len({max(classes, 1), training.truth.shape[1], valid.truth.shape[1]}) > 1:
        raise MopError(f'the targets of "{packed_text}" and of the validation rows are not packed alike')
    given = [
        [np.ascontiguousarray(encoder.elements(own.inputs), "<f4"), *own.targets(bool(classes))]
        for own in (training, valid)
    ]
    count = len(given[0][0])
    seed = settings.load(db)["seed"]
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
                "seed": 1 if seed is None else seed,
                "kept": KEPT,
                "objective": dict(objective),
            },
            *(array.reshape(-1).view(np.uint8) for arrays in given for array in arrays),
        )
        del given
        header, payloads = trainer.receive()
    if "absent" in header:
        raise MopError("the trainer cannot load LightGBM", detail=header["absent"], sqlstate="58000")
    texts, answers = payloads[: len(header["kept"])], payloads[len(header["kept"]) :]
    kept = [
        (number + 1, bytes(text), np.frombuffer(found, "<f8").reshape(len(valid.truth), -1))
        for number, text, found in zip(header["kept"], texts, answers, strict=True)
        if np.isfinite(np.frombuffer(found, "<f8")).all()
    ]
    return Boosted(packed.transform, header["trials"], kept, count, time.monotonic() - began)


def refit(
    db: Database,
    session: Session,
    transform: Transform,
    rows: Target,
    models: Sequence[tuple[dict[str, Any], int]],
    objective: Mapping[str, Any],
) -> list[bytes]:
    """LightGBM's texts of trees with these parameters and rounds, trained on `rows`; `objective`: as of `train`. Raises
    MopError."""
    encoder = TreeInputs(transform.inputs)
    (target,) = transform.outputs
    classes = len(target.classes) if isinstance(target, OneHot) else 0
    elements = np.ascontiguousarray(encoder.elements(rows.inputs), "<f4")
    seed = settings.load(db)["seed"]
    header = {
        "op": "refit",
        "family": BOOSTING,
        "rows": [[[list(elements.shape)], rows.weights is not None]],
        "codes": encoder.codes,
        "classes": classes,
        "models": [list(model) for model in models],
        "objective": dict(objective),
        "threads": max(1, settings.cores() - settings.runnable_threads()),
        "seed": 1 if seed is None else seed,
    }
    with trainer_of(session, trainer_options(db, False)) as trainer:
        arrays = [elements, *rows.targets(bool(classes))]
        trainer.send(header, *(array.reshape(-1).view(np.uint8) for array in arrays))
        _, payloads = trainer.receive()
    return [bytes(text) for text in payloads]


def seconds_of(db: Database, limit: str | None) -> float:
    """The seconds of an interval, as text. Raises MopError."""
    if limit is None:
        return SECONDS
    seconds = float(db.value("SELECT extract(epoch FROM $1::interval)", ["text"], [limit]))
    if not 0 < seconds < math.inf:
        raise MopError(f"time_limit must be positive, not {limit}", hint="time_limit => '10 s'")
    return seconds
