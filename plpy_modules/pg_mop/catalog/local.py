"""The catalog as the calling session itself reads it: EXPLAIN opens no session and writes nothing."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pg_mop.backend.quoting import quote_literal
from pg_mop.catalog.catalog import Catalog
from pg_mop.catalog.session import Row, T, Values

if TYPE_CHECKING:
    from pg_mop.backend.database import Database

JSON_TYPES = (114, 3802)  # OIDs of json and jsonb


class LocalCatalog(Catalog):
    """The catalog, read in the caller's transaction with the caller's rights: row security gives a role its own runs."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.schema = db.extension.replace("%", "%%")
        self.prefix = f"{self.schema}.mop_own_" if db.has_segments else f"{self.schema}.mop_"
        self.fencing_token, self.coordinator = None, ""
        self.caller = db.value("SELECT pg_backend_pid()")

    def close(self) -> None:
        """Nothing is open."""

    def _retrying(self, work: Callable[..., T], *arguments: Any) -> T:
        """(No session can be lost but the caller's own.)"""
        return work(*arguments)

    def _in_transaction(self, work: Callable[..., T], *arguments: Any) -> T:
        """(The caller's transaction, or a part of it, is the transaction.)"""
        return work(_Cursor(self), *arguments)

    def execute(self, sql: str, values: Values = None) -> list[Row]:
        self.db.check_cancel()
        result = self.db.plpy.execute(sql.replace("%%", "%") if values is None else sql % literals(values))
        if not (result.nrows() and len(result)):
            return []
        encoded = [name for name, kind in zip(result.colnames(), result.coltypes()) if kind in JSON_TYPES]
        rows = [dict(row) for row in result]
        for row in rows:
            row.update({name: json.loads(row[name]) for name in encoded if row[name] is not None})
        return rows

    def execute_whole(self, sql: str, values: Values = None) -> list[Row]:
        before = self.db.setting("enable_nestloop")
        self.execute("SET LOCAL enable_nestloop = off")
        rows = self.execute(sql, values)
        self.execute(f"SET LOCAL enable_nestloop = {before}")  # (an error ends the transaction, or this part of it)
        return rows


class _Cursor:
    """What the catalog's methods need of a psycopg2 cursor."""

    def __init__(self, catalog: LocalCatalog) -> None:
        self._catalog, self._rows = catalog, list[Row]()

    def execute(self, sql: str, values: Values = None) -> None:
        self._rows = self._catalog.execute(sql, values)

    def fetchone(self) -> Row:
        return self._rows.pop(0)


def literals(values: Sequence[Any] | Mapping[str, Any]) -> Any:
    """Parameters as SQL literals, in a tuple or a dict for the operator %.

    >>> literals((1, "it's", None, [1, 2], ["a"], []))
    ('1', "'it''s'", 'NULL', 'ARRAY[1, 2]', "ARRAY['a']", "'{}'")
    """
    if isinstance(values, Mapping):
        return _Literals(values)
    return tuple(literal(value) for value in values)


class _Literals(dict):
    """The values of a mapping as literals: of those alone that the SQL names."""

    def __getitem__(self, name: str) -> str:
        return literal(super().__getitem__(name))


def literal(value: Any) -> str:
    """A value as an SQL literal. Raises TypeError for a value of another type."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, datetime.datetime)):
        return quote_literal(value)
    if isinstance(value, (list, tuple)):
        return f"ARRAY[{', '.join(map(literal, value))}]" if value else "'{}'"
    raise TypeError(f"no SQL literal for {type(value).__name__}")
