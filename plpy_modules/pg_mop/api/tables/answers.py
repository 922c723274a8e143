"""mop_predict, mop_probability, mop_class, mop_number: answers of a named model for one row. A standby answers, too."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from mop_udf.aggregate import Session
from mop_udf.errors import raise_error
from pg_mop.api.common.session import computer_of, with_trainer
from pg_mop.backend.caller import extension_schema
from pg_mop.backend.catalog_state import catalog_state, statement_begin
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import called_as, sql_function
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.inference.named_model import Answer, NamedModel, tell_unseen
from pg_mop.inference.ready_model import keep_ready, ready_model


def answer_for_row(
    plpy: Any, model: str | None, row: str | None, version: float | None, path: str | None
) -> list[Answer]:
    """The answer for one row, a JSON object: [(prediction, probability, probabilities)]. `path`: the caller's search_path.

    It is called by SQL, for each row of a query.
    """
    if row and row[0] == "{":
        ready = ready_model(plpy, (model, version, path))
        row_answers = ready.answers(plpy, row) if ready is not None else None
        if row_answers is not None:
            return row_answers
    return mop_predict_row(plpy, model, row, version, path)


def value_for_row(
    plpy: Any, what: str, model: str | None, row: str | None, label: str | None, version: float | None, path: str | None
) -> str | None:
    """One value of the answer for a row; `what`: the SQL function that the caller calls. `label`: the class of its probability.

    NULL for a NULL row, and where the net's outputs are not finite.
    """
    ((prediction, probability, probabilities),) = answer_for_row(plpy, model, row, version, path)
    if prediction is None:
        return None
    if (what == "mop_number") != (probability is None):
        kind, other = ("numbers", "mop_number") if probability is None else ("classes", "mop_class")
        call = f"{quote_identifier(extension_schema(plpy))}.{other}({quote_literal(model)}, t)"
        raise_error(plpy, f'{what}: model "{model}" predicts {kind}', "22023", None, f"Call {call}.")
    if what != "mop_probability":
        return prediction
    of_classes = json.loads(str(probabilities))
    if label not in of_classes:
        few = ", ".join(list(of_classes)[:10]) + ", ..." * (len(of_classes) > 10)
        raise_error(
            plpy,
            f'{what}: model "{model}" has no class {quote_literal(label)}',
            "22023",
            f"Its classes are {few}.",
            None,
        )
    return repr(of_classes[label])


@with_trainer(keeps=True)
@called_as("mop_predict")
def mop_predict_row(
    db: Database, session: Session, model: str | None, row: str | None, version: int | None, path: str | None
) -> list[Answer]:
    """The same with all checks; the model is kept ready for the next row."""
    db.look_up_as(path)
    state = catalog_state()
    if row is None:
        return [(None, None, None)]
    if not row.lstrip().startswith("{"):
        raise _no_row(db, model, None)
    named = NamedModel.find(db, model, version, asks=True)
    named.tell_lacking(db, row, statement_begin())
    rows = named.wires_of(db, session, row)
    unseen: dict[str, list[str]] = {}
    with computer_of(db, session, named, check_names=False) as computer:
        row_answers = named.answers(computer, rows, unseen)
    # a query asks for each row: the session is told once for each column
    tell_unseen(db, {name: values for name, values in unseen.items() if name not in named.told}, {})
    named.told.update(unseen)
    keep_ready(db, (model, version, path), state, named, computer)
    return row_answers


def mop_trained_columns(plpy: Any, model: str | None, version: float | None, path: str | None) -> list[str]:
    """The columns of a row that a model reads. `path`: the caller's search_path."""
    ready = ready_model(plpy, (model, version, path))
    return list(ready.model.types()) if ready is not None else _trained_columns(plpy, model, version)


@sql_function
def _trained_columns(db: Database, model: str | None, version: int | None) -> list[str]:
    return list(NamedModel.find(db, model, version, asks=True).types())


def _no_row(db: Database, model: str | None, text: str | None) -> MopError:
    """The error for a value that is not a row. `text`: the value, where it may be the name of a table."""
    try:
        table = db.find_table(text) if text and text.strip() else None
    except MopError:  # it is no name
        table = None
    name, schema = str(table or "your_table"), db.extension
    call = f"{schema}.mop_predict({quote_literal(model)}, "
    return MopError(
        "a row must have columns with names",
        detail="A value that is not a row was given. It may come from the data, so it is never read as a table or a query.",
        hint=f"SELECT t.*, p.* FROM {name} t, {call}t.*) p; -- for each row\n"
        f"SELECT * FROM {call}source => {quote_literal(name)}); -- for a table, a view or a query",
        sqlstate="42804",
    )


@sql_function
def mop_predict(db: Database, model: str | None, text: str | None) -> NoReturn:
    """Raises MopError: the caller gave a text in place of a row."""
    raise _no_row(db, model, text)
