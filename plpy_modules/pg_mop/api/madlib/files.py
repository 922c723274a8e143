"""mop_export_model and mop_import_model: models as .keras files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mop_udf.aggregate import Session
from mop_udf.pool.channel import PART_BYTES
from pg_mop.api.common.model_table import StoredModel
from pg_mop.api.common.session import trainer_of, trainer_options, with_trainer
from pg_mop.api.madlib.architectures import append
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.inference.named_model import NamedModel, is_named

MOST_BYTES = (1 << 30) - 5  # of a bytea value, which has a header of four bytes


@with_trainer
def mop_export_model(db: Database, session: Session, model_table: str | None, mst_key: int | None) -> bytes:
    """A trained model as the bytes of a .keras file; of a named model, the version `mst_key`, which takes raw columns."""
    data = _exported(db, session, model_table, mst_key)
    if len(data) >= MOST_BYTES:
        raise MopError(
            f"the file has {len(data):,} bytes, more than a value of PostgreSQL may have (1 GB)",
            hint=f"SELECT * FROM {db.extension}.mop_export_parts(...) gives it in parts.",
            sqlstate="54000",
        )
    return bytes(data)


@with_trainer
def mop_export_parts(
    db: Database, session: Session, model_table: str | None, mst_key: int | None
) -> Iterator[tuple[int, bytes]]:
    """The same file in parts: an iterator of (number from 0 on, bytes)."""
    data = memoryview(_exported(db, session, model_table, mst_key))
    starts = range(0, len(data), PART_BYTES)
    # not a function that yields: PostgreSQL would call it after this call has given its trainer back
    return ((part, bytes(data[first : first + PART_BYTES])) for part, first in enumerate(starts))


def _exported(db: Database, session: Session, model_table: str | None, mst_key: int | None) -> Any:
    """The .keras file (bytes-like). Raises MopError."""
    request: dict[str, Any] = {"op": "export"}
    table = db.input_table(model_table, "model table", rows=False)
    if is_named(db, table):
        named = NamedModel.find(db, model_table, mst_key)
        named.check_without_code("a .keras file")
        named.check_without_trees(db)
        request["raw"] = named.to_keras()
    with trainer_of(session, trainer_options(db, False)) as trainer:
        if "raw" in request:
            named.lend(trainer, db)
            named.check_steps(db)
        else:
            model = StoredModel(db, model_table, mst_key)
            model.check_without_code("a .keras file")
            model.lend(trainer, db)
        trainer.send(request)
        _, (data,) = trainer.receive()
    return data


@with_trainer
def mop_import_model(
    db: Database,
    session: Session,
    model_arch_table: str | None,
    data: bytes | None,
    name: str | None,
    description: str | None,
) -> int:
    """Append the architecture and weights of a .keras file (bytes) to an architecture table; returns its model_id."""
    if data is None:
        raise MopError("the file must not be NULL", hint="It takes the bytes of a .keras file.")
    with trainer_of(session, trainer_options(db, False)) as trainer:
        trainer.send({"op": "import"}, data)
        header, (weights,) = trainer.receive()
    return append(db, model_arch_table, header["architecture"], bytes(weights), name, description)
