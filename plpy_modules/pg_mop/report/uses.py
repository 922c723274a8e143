"""How to use a configuration's model: SQL that predicts with it, and SQL that exports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import written
from pg_mop.backend.trusted import is_trusted, row_of
from pg_mop.report.again import literal, named_anew, suffixed

WITHOUT = {"predict": None, "export": None}


def uses(db: Database, run: Mapping[str, Any], mst_key: int, schema: str) -> dict[str, str | None]:
    """{'predict', 'export'}: SQL for the model of a configuration of one's own run; None where its output tables are gone.

    `schema`: the extension's, as SQL writes it. The run must be the caller's own, and only tables of the caller's or of a
    superuser's are read (backend/trusted.py): others' views would execute with the caller's rights. The rows to predict are
    those that were packed, where the summary of the packed table tells which these were; else the statement has a name to
    replace.
    """
    models = run["model_output_table"]
    tables = (models, suffixed(models, "_summary"))
    if run["status"] != "finished" or not all(is_trusted(db, name) for name in tables):
        return dict(WITHOUT)
    one = run["function"] == "madlib_keras_fit"  # its tables have one model
    rows, key, features = _packed_from(db, run["source_table"])
    arguments = [
        literal(models),
        literal(rows or "..."),
        literal(key or "id"),
        literal(features or "..."),
        literal(named_anew(models, "_predicted")),
        "'response'",
        *([] if one else ["FALSE", str(mst_key)]),
    ]
    replace = "" if rows else "-- put in your table of rows and its column of features\n"
    return {
        "predict": f"{replace}SELECT {schema}.madlib_keras_predict({', '.join(arguments)});",
        "export": None if one else f"SELECT {schema}.mop_export_model({literal(models)}, {mst_key});",
    }


def _readable(db: Database, name: str) -> Table | None:
    """The table, where it exists and the caller may read it."""
    try:
        table = db.find_table(name)
    except MopError:
        return None
    if table is None or not db.value("SELECT has_table_privilege($1::oid, 'SELECT')", ["oid"], [table.oid]):
        return None
    return table


def _packed_from(db: Database, packed: str) -> tuple[str | None, str | None, str | None]:
    """(table of the rows, its key, its column of features) of a packed table, as SQL writes them; None for what is unknown."""
    row = row_of(db, suffixed(packed, "_summary"), ("source_table", "independent_varname"))
    if not row:
        return None, None, None
    features = row.get("independent_varname")
    features = features if isinstance(features, list) else [features]
    rows = None if row.get("source_table") is None else _readable(db, row["source_table"])
    if rows is None or len(features) != 1 or not isinstance(features[0], str):
        return None, None, None
    key = db.value(
        "SELECT min(a.attname::text) FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid "
        "AND a.attnum = ANY (i.indkey) WHERE i.indrelid = $1 AND i.indisprimary GROUP BY i.indexrelid HAVING count(*) = 1",
        ["oid"],
        [rows.oid],
    )
    return row["source_table"], None if key is None else written(key), features[0]
