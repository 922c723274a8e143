"""Linear models for the rows of packed tables: trained in the session's trainer by L-BFGS, candidates of an ensemble.

Such a model is a net of Keras: categories and words have a table of weights, one for each output, and one dense layer adds them
to the elements' products. So whatever reads a net reads it. Its design may have the numbers in pieces, too: then the answer is
a sum of piecewise linear functions of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.tables import dense_inputs
from pg_mop.api.tables.dense_inputs import DenseInputs
from pg_mop.api.tables.trained import LINEAR, Target, Tell, Trained
from pg_mop.backend.database import Database
from pg_mop.columns import Transform
from pg_mop.inference.metrics import Metric
from pg_mop.plan import nets

KEPT = 4  # trials that may be members
CELLS_PER_SECOND = 4_000_000  # elements of training rows, for each second
DESIGNS = {"plain": nets.Body(()), "pieces": nets.Body((), pieces=True)}


def train(
    db: Database,
    session: Session,
    packed_text: str | None,
    valid: Target,
    is_balanced: bool,
    metric: Metric,
    seconds: float,
    tell: Tell | None = None,
) -> Trained:
    """Search linear models on a packed table for so many seconds; `valid`: the rows that judge; `metric`: for which
    numbers are trained; `tell`: told of the trials so far. Raises MopError."""
    request = {"op": LINEAR, "kept": KEPT}
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
    models = [[info["params"]["design"], info["params"]["alpha"]] for info in infos]
    request = {"op": "refit", "family": LINEAR, "models": models, **more}
    return dense_inputs.asked(db, session, DenseInputs(transform), [rows], metric, request)[1]


def _info(trial: dict[str, Any]) -> dict[str, Any]:
    return {"params": trial["params"], "seconds": trial["seconds"]}


def _net(inputs: DenseInputs, info: dict[str, Any], weights: bytes) -> tuple[str, bytes]:
    dimensions = [inputs.outputs] * len(inputs.dimensions())
    return inputs.net(DESIGNS[info["params"]["design"]], weights, dimensions, adds_tables=True)
