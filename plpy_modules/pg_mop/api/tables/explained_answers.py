"""mop_explain_answer: what each column of a row adds to the answer of a named model (docs/tables.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.session import computer_of, with_trainer
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_literal
from pg_mop.inference import shapley
from pg_mop.inference.model_parts import stored_part, uncertain
from pg_mop.inference.named_model import NamedModel, RowReader, check_missing, tell_missing, tell_unseen

BASE = "(base)"  # the name of the first row of an explanation
MOST_BACKGROUND = 256  # rows
BLOCK_BYTES = 32 << 20  # of the inputs of the hybrids that are computed together
SHOWN = 100  # characters of a value

Explanation = list[tuple[str, str | None, float, float | None]]
Arrays = Sequence[np.ndarray]  # of each input of the net, [rows, ...]


@with_trainer
def mop_explain_answer(
    db: Database,
    session: Session,
    model: str | None,
    row: str | None,
    label: str | None,
    source: str | None,
    version: int | None,
    seed: int | None,
) -> Explanation:
    """The base and the contributions to the answer for a row, a JSON object: [(column, value, contribution, deviation)].

    The base is the mean of the background rows: of those that the version was trained on, or of those of `source`.
    """
    if row is None:
        return []
    named = NamedModel.find(db, model, version)
    if not row.lstrip().startswith("{"):
        raise MopError(
            "a row must have columns with names", hint=_example(db, named, "a table of yours"), sqlstate="42804"
        )
    if named.regression and label is not None:
        raise MopError(f'model "{model}" predicts numbers: it has no class "{label}"', hint="Leave out label.")
    row = named.without_nul(row)
    wires = named.wires_of(db, session, row)
    texts = {
        entry["key"]: entry["v"]
        for entry in db.execute(
            f"SELECT key, CASE WHEN length(value) > {SHOWN} THEN left(value, {SHOWN}) || '...' ELSE value END AS v "
            "FROM json_each_text($1::json)",
            ["text"],
            [row],
        )
    }
    missing = named.lacking(row)
    check_missing(named, missing)
    unseen: dict[str, list[str]] = {}
    seed = abs(seed or 0)
    with computer_of(db, session, named) as computer:
        explained = named.encode(computer, wires, unseen)
        outputs = named.outputs_of(computer, explained)
        label, value_of = _value(named, outputs, label)
        value = float(value_of(outputs)[0])
        if not math.isfinite(value):
            raise MopError(f'model "{model}" has no answer for the row: its net gives no finite numbers')
        rows = named.encode(computer, _background(db, named, source, seed))
        values = value_of(named.outputs_of(computer, rows))
        if not np.isfinite(values).any():
            raise MopError(f'model "{model}" has no answer for any background row: its net gives no finite numbers')
        rows = [array[np.isfinite(values)] for array in rows]
        columns = _places(named)
        most = max(1, BLOCK_BYTES // (4 * sum(math.prod(column.shape) for column in named.inputs)))

        def values_of(numbers: np.ndarray, taken: np.ndarray) -> np.ndarray:
            db.hear_interrupts()
            hybrids = [array[numbers] for array in rows]
            for column, places in enumerate(columns.values()):
                own = taken[:, column]
                for i, place in places:
                    hybrids[i][own, ..., place] = explained[i][0][..., place]
            return value_of(named.outputs_of(computer, hybrids))

        found = shapley.contributions(
            value,
            values[np.isfinite(values)],
            _differences(columns, explained, rows),
            values_of,
            np.random.default_rng(seed),
            most,
        )
    if not np.isfinite(found.means).all():
        raise MopError(
            f'model "{model}" has no answer between the row and the background rows: they are no finite numbers'
        )
    tell_missing(db, missing)
    tell_unseen(db, unseen, {})
    contributions = zip(columns, found.means.tolist(), found.errors.tolist())
    return [
        (BASE, label, found.base, None),
        *(
            (name, texts.get(name), mean, error)
            for name, mean, error in sorted(contributions, key=lambda own: -abs(own[1]))
        ),
    ]


def _value(
    named: NamedModel, outputs: np.ndarray, label: str | None
) -> tuple[str | None, Callable[[np.ndarray], np.ndarray]]:
    """(the class that is explained, or None, the function from outputs to the explained values). `outputs`: for the row;
    `label`: the class that the caller wants. Raises MopError."""
    if named.regression:
        return None, lambda found: found[:, 0]
    labels = named.labels(outputs.shape[1])
    if label is not None and label not in labels:
        few = ", ".join(labels[:10]) + ", ..." * (len(labels) > 10)
        raise MopError(f'model "{named.name}" has no class {label!r}', detail=f"Its classes are {few}.")
    unit = int(named.output.predicted(outputs)[0]) if label is None else labels.index(label)
    exclusive = named.widths[0] > 1 and abs(outputs[0].sum() - 1) < 1e-4
    return labels[unit], lambda found: shapley.log_odds(found, unit, exclusive)


def _places(named: NamedModel) -> dict[str, list[tuple[int, slice]]]:
    """{column of the source: [(number of an input, elements on its last axis)]}: what the column has become."""
    found: dict[str, list[tuple[int, slice]]] = {name: [] for name in named.types()}
    for i, column in enumerate(named.inputs):
        names = [feature.column for feature in column.features] or [column.sources[0]]
        for name, (_, place) in zip(names, column.places(), strict=True):
            found[name].append((i, place))
    return found


def _differences(columns: dict[str, list[tuple[int, slice]]], explained: Arrays, rows: Arrays) -> np.ndarray:
    """Whether each background row's value of a column differs from that of the explained row, for the net."""
    differs = np.zeros((len(rows[0]), len(columns)), bool)
    for i, (own, array) in enumerate(zip(explained, rows)):
        unequal = (array != own) & ~(np.isnan(array) & np.isnan(own))
        for column, places in enumerate(columns.values()):
            for number, place in places:
                if number == i:
                    differs[:, column] |= unequal[..., place].reshape(len(array), -1).any(1)
    return differs


def _background(db: Database, named: NamedModel, source: str | None, seed: int) -> Sequence[Any]:
    """The wires of background rows: a sample of the source, the same for one seed. Raises MopError."""
    reader = RowReader(db, source, named) if source is not None else _training_rows(db, named)
    wires = ", ".join(f"s.w{i}::text" for i in range(len(named.wires_sql())))
    # evenly spaced rows of an order that the values decide, so that no plan and no setting changes the sample
    hashed = f"pg_catalog.hashtextextended(pg_catalog.concat_ws('/'::text, {wires}), {seed}::bigint)"
    numbered = f"SELECT s.*, (pg_catalog.row_number() OVER (ORDER BY {hashed})) AS place FROM ({reader.sql()}) s"
    try:
        with db.caller_path():
            count = db.plpy.execute(f"SELECT pg_catalog.count(*) AS n FROM {reader.origin} t")[0]["n"]
            places = np.unique(np.arange(MOST_BACKGROUND) * count // MOST_BACKGROUND + 1).tolist()
            sample = db.plpy.prepare(
                f"SELECT * FROM ({numbered}) n WHERE place OPERATOR(pg_catalog.=) ANY ($1)", ["pg_catalog.int8[]"]
            )
            rows = db.plpy.execute(sample, [places])
    except db.plpy.SPIError as error:
        if source is not None or error.sqlstate not in UNREADABLE:
            raise
        raise _unreadable(db, named, error) from None
    if not len(rows):
        raise MopError(
            "there are no background rows: the source has no rows", hint=_example(db, named, "a table of yours")
        )
    return rows


UNREADABLE = ("42501", "42P01", "42703", "3F000")  # SQLSTATEs: no right, or no table, column or schema


def _training_rows(db: Database, named: NamedModel) -> RowReader:
    """The reader of the rows that the version was trained on. Raises MopError."""
    query, is_callers_own = stored_part(db, named.table, named.version, "train")
    if query is None:
        raise MopError(
            f"{named.what} does not say which rows it was trained on",
            detail="Contributions are compared with the mean of background rows.",
            hint=_example(db, named, "the table of these rows"),
        )
    part = db.suffixed(named.name, "_train" if named.version == 1 else f"_v{named.version}_train")
    if not is_callers_own:
        raise uncertain(named.name, part, query)
    try:
        return RowReader(db, part, named)
    except db.plpy.SPIError as error:
        if error.sqlstate not in UNREADABLE:
            raise
        raise _unreadable(db, named, error) from None


def _unreadable(db: Database, named: NamedModel, error: Any) -> MopError:
    return MopError(
        f"the rows that {named.what} was trained on cannot be read",
        detail=str(error).partition("\n")[0],
        hint=_example(db, named, "a table of yours"),
        sqlstate=str(error.sqlstate),
    )


def _example(db: Database, named: NamedModel, table: str) -> str:
    """A call with background rows; `table`: what the name in it stands for."""
    return (
        f"SELECT e.* FROM your_table t, {db.extension}.mop_explain_answer({quote_literal(named.name)}, t, "
        f"source => 'your_table') e LIMIT 20; -- your_table: {table}"
    )
