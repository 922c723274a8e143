"""The scores of a search's zero-cost filter: computed by a trainer of the calling session, before anything is trained."""

from __future__ import annotations

from typing import Any

from mop_udf import aggregate
from pg_mop.api.common.session import options_of_trainer, trainer_of
from pg_mop.backend import settings
from pg_mop.backend.errors import MopError
from pg_mop.search.base import Procedure
from pg_mop.search.zero_cost import WITHOUT_ROWS, Filter

AT_ONCE = 8  # models in one request to the trainer: between requests a cancel is heard
MOST_ROWS = 64  # of the minibatch, from the first buffer of the packed table


def scores(db: Any, procedure: Procedure, inputs: Any, seed: int) -> list[list[Any]]:
    """[[model_id, score or None], ...] of the members that a procedure's filter has drawn. `seed`: of the run. Raises
    MopError."""
    filter_of_search: Filter = procedure.sampler.filter  # type: ignore[attr-defined]
    models = procedure.space.models
    assert models is not None
    if models.space.custom:
        raise MopError(
            f"the filter {filter_of_search.kind} does not look at custom layers, as {next(iter(models.space.custom.names))}",
            hint="Search without a filter.",
            sqlstate="0A000",
        )
    ids = filter_of_search.pool()
    db.info(f"the filter {filter_of_search.kind} looks at {len(ids)} untrained members")
    batch = [] if filter_of_search.kind in WITHOUT_ROWS else _minibatch(inputs)
    session = aggregate.session(db.plpy)
    begins_trainer, rows = session.trainer is None, list[list[Any]]()
    options = options_of_trainer(inputs.options, settings.cores(), None)
    try:
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            request = {
                "op": "zero_cost",
                "kind": filter_of_search.kind,
                "seed": seed,
                "models": [[model_id, models.by_id[model_id].architecture] for model_id in some],
                "shapes": [list(array.shape) for array in batch],
            }
            with trainer_of(session, options) as trainer:
                trainer.send(request, *batch)
                rows += [list(pair) for pair in zip(some, trainer.receive()[0]["scores"])]
    finally:
        if begins_trainer:
            session.give_back()
    return rows


def _minibatch(inputs: Any) -> list[Any]:
    """An array of float32 for each input of the packed table, with the first rows of a buffer."""
    from pg_mop.backend.arrays import np
    from pg_mop.backend.quoting import quote_identifier

    source = inputs.source
    columns = ", ".join(quote_identifier(name) for name in source.inputs)
    shapes = ", ".join(quote_identifier(name + "_shape") for name in source.inputs)
    row = inputs.engine.first_row(source, f"{columns}, {shapes}")
    count = len(source.inputs)
    arrays = [
        np.frombuffer(data, kind).reshape(shape) for data, shape, kind in zip(row[:count], row[count:], source.dtypes())
    ]
    return [np.ascontiguousarray(array[:MOST_ROWS], "<f4") for array in arrays]
