"""Multilayer perceptrons for the rows of packed tables: trained whole in the session's trainer, candidates of an ensemble.

They are nets of Keras over the same packed columns as those of mop_architecture. For tables of some ten thousand rows, a trial
takes less time than a framework needs to compile it; larger tables, texts and images are for the search of nets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.tables import dense_inputs
from pg_mop.api.tables.dense_inputs import DenseInputs
from pg_mop.api.tables.trained import MLP, Target, Tell, Trained, seed_of
from pg_mop.backend.database import Database
from pg_mop.columns import Transform
from pg_mop.inference.metrics import Metric
from pg_mop.plan import nets

KEPT = 8  # trials that may be members
MOST_TRIALS = 300
CELLS_PER_SECOND = 100_000  # elements of training rows, for each second: a trial has some passes over them


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
    """Search perceptrons on a packed table for so many seconds; `valid`: the rows that judge; `metric`: for which
    numbers are trained; `tell`: told of the trials so far. Raises MopError."""
    most = int(min(MOST_TRIALS, most_trials or MOST_TRIALS))
    request = {"op": MLP, "kept": KEPT, "most": most, "seed": seed_of(db)}
    return dense_inputs.search(
        db, session, packed_text, valid, is_balanced, metric, tell, seconds, CELLS_PER_SECOND, request, _info, _net
    )


def refit(
    db: Database, session: Session, transform: Transform, rows: Target, infos: Sequence[dict[str, Any]], metric: Metric
) -> list[tuple[str, bytes]]:
    """(architecture, weights) of the models of these `infos`, trained on `rows` for the metric. Raises MopError."""
    inputs, payloads = DenseInputs(transform), again(db, session, transform, rows, infos, metric)
    return [_net(inputs, info, bytes(weights)) for info, weights in zip(infos, payloads, strict=True)]


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
    models = [[info["params"], info["passes"]] for info in infos]
    request = {"op": "refit", "family": MLP, "models": models, "seed": seed_of(db), **more}
    return dense_inputs.asked(db, session, DenseInputs(transform), [rows], metric, request)[1]


def _info(trial: dict[str, Any]) -> dict[str, Any]:
    return {name: trial[name] for name in ("params", "passes", "seconds")}


def _net(inputs: DenseInputs, info: dict[str, Any], weights: bytes) -> tuple[str, bytes]:
    params = info["params"]
    body = nets.Body(tuple(params["units"]), pieces=params["pieces"], activation=params["activation"])
    return inputs.net(body, weights, inputs.dimensions())
