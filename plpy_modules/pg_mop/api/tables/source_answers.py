"""mop_predict and mop_predict_into: answers of a named model for all rows of a table, view or query, in bounded memory."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.session import computer_of, give_back_at_end, with_trainer
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, without_nul
from pg_mop.backend.functions import called_as
from pg_mop.backend.quoting import quote_identifier, quote_literal, split_names
from pg_mop.inference import block_answers
from pg_mop.inference.block_answers import Blocks
from pg_mop.inference.named_model import NamedModel, RowReader, answer_arrays, answers

Row = tuple[Any, ...]  # kept columns as JSON, prediction, probability, probabilities

# sources that calls of this session read, by number: (the transaction's time and the role, parts of rows)
_opened: dict[int, tuple[tuple[str, str], Iterator[list[Row]]]] = {}
_numbers = itertools.count(1)


@with_trainer(keeps=True)
@called_as("mop_predict")
def mop_predict_source(
    db: Database, session: Session, model: str | None, source: str | None, keep: str | None, version: int | None
) -> int:
    """Open a source for `mop_predict_rows`; returns its number."""
    named = NamedModel.find(db, model, version, asks=True)
    reader = RowReader(db, source, named)
    names = reader.kept(split_names(keep))
    place = _place(db)
    for number, ((time, _), parts) in list(_opened.items()):
        if time != place[0]:  # a call that an error has ended
            del _opened[number]
            with contextlib.suppress(ValueError):  # its cursor has ended with its transaction
                parts.close()  # type: ignore[attr-defined]
    number = next(_numbers)
    _opened[number] = place, _parts(db, session, named, reader, names)
    return number


@with_trainer(keeps=True)
@called_as("mop_predict")
def mop_predict_rows(db: Database, session: Session, opened: int) -> list[Row]:
    """The answers for the next rows of a source, in its order; an empty list after the last."""
    place, parts = _opened.pop(opened, (None, iter(())))
    if place != _place(db):
        raise MopError(
            f"no source is open as {opened}",
            hint=f"SELECT * FROM {db.extension}.mop_predict('model', source => 'table');",
        )
    rows = next(parts, [])
    if rows:
        _opened[opened] = place, parts
    else:
        give_back_at_end(session)
    return rows


@with_trainer
@called_as("mop_predict")
def mop_predict_few(
    db: Database, session: Session, model: str | None, source: str | None, version: int | None
) -> list[Row]:
    """The answers for all rows of a source, in its order, each with the SQL type of the predictions."""
    named = NamedModel.find(db, model, version, asks=True)
    parts = _parts(db, session, named, RowReader(db, source, named), [])
    return [(*answer, named.prediction_type) for part in parts for _, *answer in part]


def _place(db: Database) -> tuple[str, str]:
    """The time of the transaction, and the role whose rights are in force."""
    row = db.one("SELECT now()::text AS time, current_user::text AS role")
    assert row is not None
    return row["time"], row["role"]


def _parts(
    db: Database, session: Session, named: NamedModel, reader: RowReader, names: list[str]
) -> Iterator[list[Row]]:
    pairs = [f"{quote_literal(name)}, {quote_identifier(name)}" for name in names]
    # a function has at most 100 arguments
    objects = [f"pg_catalog.jsonb_build_object({', '.join(pairs[i : i + 50])})" for i in range(0, len(pairs), 50)]
    extra = [f"({' OPERATOR(pg_catalog.||) '.join(objects)})::text"] if objects else []
    with computer_of(db, session, named) as computer, without_nul(db, [*named.json_columns, *names]):
        for chunk, outputs in _outputs(named, computer, reader, extra):
            yield [(row["e0"] if extra else None, *answer) for row, answer in zip(chunk, answers(named, outputs))]


@with_trainer
def mop_predict_into(
    db: Database,
    session: Session,
    model: str | None,
    source: str | None,
    output: str | None,
    keep: str | None,
    version: int | None,
) -> int:
    """Write the answers into a new table: the kept columns, prediction, probability, probabilities. Returns the rows."""
    named = NamedModel.find(db, model, version, asks=True)
    reader = RowReader(db, source, named)
    kept_columns = reader.kept(split_names(keep))
    table = db.output_table(output)
    for name in kept_columns:
        if name in ("prediction", "probability", "probabilities"):
            raise MopError(f'keep: column "{name}" has the name of a column of answers', hint="Rename it in a view.")
    with without_nul(db, named.json_columns):
        blocks = Blocks.of(db, reader, named) if named.net(db) is not None else None
        if blocks is not None:
            count, unseen = block_answers.write(db, named, reader, blocks, table, kept_columns)
            reader.tell_missing()
            reader.tell_unseen(unseen)
        else:
            count = _write(db, session, named, reader, table, kept_columns)
    db.identify_by_all(table)
    return count


def _write(
    db: Database, session: Session, named: NamedModel, reader: RowReader, table: str, kept_columns: list[str]
) -> int:
    """Create a table (quoted) of the kept columns and the answers, and write it in chunks. Returns the rows."""
    names = [quote_identifier(name) for name in kept_columns]
    columns = [*zip(names, (reader.exact_types[name] for name in kept_columns)), *named.answer_columns]
    db.execute(f"CREATE TABLE {table} ({', '.join(f'{name} {sql_type}' for name, sql_type in columns)})")
    casts = [f"(p.c{i})::{sql_type}" for i, (_, sql_type) in enumerate(columns)]
    arrays = [f"${i + 1}" if i < len(names) else f"${i + 1}::{sql_type}[]" for i, (_, sql_type) in enumerate(columns)]
    insert = db.plpy.prepare(
        f"INSERT INTO {table} SELECT {', '.join(casts)} FROM unnest({', '.join(arrays)}) "
        f"AS p({', '.join(f'c{i}' for i in range(len(columns)))})",
        [*["text[]"] * len(names), *["text"] * len(named.answer_columns)],
    )
    extra = [f"{name}::text" for name in names]
    count = 0
    with computer_of(db, session, named) as computer:
        for chunk, outputs in _outputs(named, computer, reader, extra):
            kept_values = [[row[f"e{i}"] for row in chunk] for i in range(len(extra))]
            db.plpy.execute(insert, [*kept_values, *answer_arrays(named, outputs)])
            count += len(chunk)
    return count


def _outputs(
    model: NamedModel, computer: Any, reader: RowReader, extra: list[str]
) -> Iterator[tuple[list[Any], np.ndarray]]:
    """Yield (rows, the net's outputs) in chunks, then tell the caller about missing columns and unseen values."""
    unseen: dict[str, list[str]] = {}
    for rows in reader.chunks(extra):
        yield rows, model.outputs_of(computer, model.encode(computer, rows, unseen))
    reader.tell_missing()
    reader.tell_unseen(unseen)
