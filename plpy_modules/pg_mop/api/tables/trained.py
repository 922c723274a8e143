"""What a trainer trains whole for mop_train and mop_ensemble: families of models, the rows that they take, their trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pg_mop.backend import settings
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import finite_json, split_names
from pg_mop.columns import Transform
from pg_mop.packing import packed_rows
from pg_mop.packing.packed_table import PackedTable

NETS, BOOSTING, LINEAR, MLP = "nets", "boosting", "linear", "mlp"
PACKAGES = {NETS: None, BOOSTING: "lightgbm", LINEAR: "scipy", MLP: "scipy"}  # {family: the package that it needs}
FAMILIES = tuple(PACKAGES)
# of the time of families but nets, in their order
SHARES = {LINEAR: 0.1, BOOSTING: 0.45, MLP: 0.45}
MOST_NUMBER = 2.0**31  # in the details of a version
SECONDS = 10.0  # that the families are trained in a call of mop_ensemble
MOST_BYTES = 512 << 20  # of rows that are read at once


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


def share_of(families: Sequence[str]) -> float:
    """The first family's share of the time that is left for these families."""
    return SHARES[families[0]] / sum(SHARES[family] for family in families)


def check_installed(family: str) -> None:
    """Raises MopError where the package of a family is not installed on this server."""
    package = PACKAGES[family]
    if package is not None and not settings.is_installed(package):
        raise MopError(
            f"the family {family} needs {package}, which is not installed on this server",
            hint=f"On this server: {settings.to_install(package)}; or families => '{NETS}'.",
            sqlstate="58000",
        )


def seconds_of(db: Database, limit: str | None) -> float:
    """The seconds of an interval, as text. Raises MopError."""
    if limit is None:
        return SECONDS
    seconds = float(db.value("SELECT extract(epoch FROM $1::interval)", ["text"], [limit]))
    if not 0 < seconds < math.inf:
        raise MopError(f"time_limit must be positive, not {limit}", hint="time_limit => '10 s'")
    return seconds


def seed_of(db: Database) -> int:
    """The seed of the families' trials."""
    seed = settings.load(db)["seed"]
    return 1 if seed is None else int(seed)


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


def read_target(db: Database, packed_text: str | None, most: int, is_balanced: bool) -> Target:
    """At most so many rows of a packed table. Raises MopError."""
    with db.undone():  # (a lock of this session's would keep a failed call from dropping the table)
        packed = PackedTable(db, packed_text, "packed table")
        return target_of(packed, packed_rows.read(db, packed, most, MOST_BYTES), is_balanced)


@dataclass(frozen=True)
class Kept:
    """A trial that may be a member of an ensemble. `number`: from 1 on; `content`: LightGBM's text, or the weights of the net
    `architecture` (JSON); `answers`: for the validation rows, [rows, width]; `info`: for the version's details."""

    number: int
    content: bytes
    answers: np.ndarray
    info: dict[str, Any]
    architecture: str | None = None


@dataclass
class Trained:
    """The trials of a family, as `details` keep them, and the best of them. `transform`: of the training rows, which knows how
    targets are distributed; `rows`: that trained; `seconds`: that it took."""

    transform: Transform
    trials: list[dict[str, Any]] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    rows: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The value of the family's key in a version's details."""
        return {"trials": self.trials, "rows": self.rows, "seconds": self.seconds}


Tell = Callable[[int, "float | None"], None]  # trials so far, and the least loss of them


def answer_of(trainer: Any, tell: Tell | None) -> tuple[dict[str, Any], list[Any]]:
    """The answer of a trainer to a search; `tell`: told of the trials until it comes."""
    while True:
        header, payloads = trainer.receive()
        if "done" not in header:
            return header, payloads
        if tell is not None:
            tell(header["done"], header["best"])


def trials_of(details: Any) -> list[tuple[Any, ...]]:
    """The rows of the view mop_family_trials, without model and version, from a version's details. The function leaves out what
    it cannot read.

    >>> members = [{"family": "mlp", "trial": 1, "weight": 0.7}]
    >>> trials_of({"mlp": {"trials": [{"params": {}, "loss": 0.5, "passes": 3}, 7]}, "ensemble": {"members": members}})
    [('mlp', 1, '{}', 0.5, 3, None, 0.7)]
    """

    def number(value: Any) -> float | None:
        is_number = isinstance(value, (int, float)) and abs(value) < MOST_NUMBER and not isinstance(value, bool)
        return float(value) if is_number else None

    def part(of: Any, name: str, kind: type) -> Any:
        value = of.get(name) if isinstance(of, dict) else None
        return value if isinstance(value, kind) else kind()

    members = (own for own in part(part(details, "ensemble", dict), "members", list) if isinstance(own, dict))
    shares = {(str(own.get("family")), number(own.get("trial"))): number(own.get("weight")) for own in members}
    found = []
    for family in FAMILIES:
        for place, trial in enumerate(part(part(details, family, dict), "trials", list), 1):
            if isinstance(trial, dict):
                rounds = number(trial.get("rounds", trial.get("passes")))
                params, share = finite_json(part(trial, "params", dict)), shares.get((family, place))
                loss, seconds = number(trial.get("loss")), number(trial.get("seconds"))
                found.append((family, place, params, loss, None if rounds is None else int(rounds), seconds, share))
    return found


def answers_of(payloads: Sequence[Any], rows: int) -> list[np.ndarray]:
    """A trainer's payloads as answers [rows, width]."""
    return [np.frombuffer(own, "<f8").reshape(rows, -1) for own in payloads]


def kept_of(payloads: Sequence[Any], rows: int) -> list[tuple[int, np.ndarray]]:
    """(place, answers [rows, width]) of those payloads of a trainer whose answers are finite."""
    return [(place, own) for place, own in enumerate(answers_of(payloads, rows)) if np.isfinite(own).all()]
