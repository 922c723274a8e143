"""The caller's backend as ordinary Python: its session (caller.py), and the tables that the caller names."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Any, overload

from pg_mop.backend.caller import CallerSession, extension_schema
from pg_mop.backend.errors import MopError, is_cancel
from pg_mop.backend.quoting import MAX_NAME, parse_identifier, quote_identifier, written

__all__ = ["Database", "Table", "extension_schema"]


# relkind -> the word in DROP, except for tables
DROPPED_AS = {"v": "VIEW", "m": "MATERIALIZED VIEW", "f": "FOREIGN TABLE", "S": "SEQUENCE", "i": "INDEX", "c": "TYPE"}


class Table:
    """An existing relation: OID, schema, name, kind (relkind), and `sql`, its quoted and qualified name."""

    def __init__(self, oid: int, schema: str, name: str, kind: str) -> None:
        self.oid, self.schema, self.name, self.kind = oid, schema, name, kind
        self.sql = f"{quote_identifier(schema)}.{quote_identifier(name)}"

    def __str__(self) -> str:
        return self.sql


class Database(CallerSession):
    """The caller's session, with the tables that the caller names.

    `checked`: the SQL of those weights in parts that this call has found complete (weights.py).
    """

    def __init__(self, plpy: Any, extension_schema: str) -> None:
        super().__init__(plpy, extension_schema)
        self.checked: set[str] = set()

    # --- names ---------------------------------------------------------------------------------
    def parse_name(self, text: str) -> tuple[str | None, str]:
        """'schema.table', 'table' or quoted forms as (schema or None, table), folded as SQL folds them.

        Raises MopError for an invalid name.
        """
        try:
            if self.has("parse_ident", "text, bool"):
                parts = self.value("SELECT pg_catalog.parse_ident($1) AS p", ["text"], [text])
            else:
                parts = parse_identifier(text)
        except (self.plpy.SPIError, ValueError) as error:
            if is_cancel(error):
                raise
            raise MopError(
                f'invalid table name "{text}"', hint='Write it as in SQL: table, schema.table or "Quoted Table".'
            ) from None
        if len(parts) > 2:
            raise MopError(f'invalid table name "{text}"', detail="It has more than two parts.")
        return (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])

    def find_table(self, text: str) -> Table | None:
        """The relation that `text` names for the caller, or None. Raises MopError if the schema is not accessible."""
        schema, name = self.parse_name(text)
        quoted = ".".join(quote_identifier(p) for p in (schema, name) if p is not None)
        with self.caller_path():
            try:
                oid = self.relation(quoted)
            except self.plpy.SPIError as error:
                if error.sqlstate != "42501" or schema is None:
                    raise
                raise MopError(
                    f'permission denied for schema "{schema}" of "{text}"',
                    sqlstate="42501",
                    hint=f"GRANT USAGE ON SCHEMA {quote_identifier(schema)} TO "
                    f"{quote_identifier(self.current_user())};",
                ) from None
        if oid is None:
            return None
        (row,) = self.execute(
            "SELECT n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE c.oid = $1",
            ["oid"],
            [oid],
        )
        return Table(int(oid), row["nspname"], row["relname"], row["relkind"])

    def _other_spelling(self, text: str) -> str | None:
        """The quoted name of a visible relation that differs from `text` only in capitals, or None."""
        schema, name = self.parse_name(text)
        with self.caller_path():
            row = self.one(
                "SELECT CASE WHEN $2::text IS NULL THEN '' ELSE pg_catalog.quote_ident(n.nspname) || '.' END || "
                "pg_catalog.quote_ident(c.relname) AS name FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
                "ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE pg_catalog.lower(c.relname) "
                "OPERATOR(pg_catalog.=) pg_catalog.lower($1) AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v,m,f,p}') "
                "AND CASE WHEN $2::text IS NULL THEN pg_catalog.pg_table_is_visible(c.oid) ELSE "
                "n.nspname OPERATOR(pg_catalog.=) $2 END ORDER BY 1 LIMIT 1",
                ["text", "text"],
                [name, schema],
            )
        return row["name"] if row else None

    def suffixed(self, text: str, suffix: str) -> str:
        """The name `text` with `suffix`, inside its closing quote if any: '"My t"' becomes '"My t_info"'.

        Raises MopError for an invalid name.
        """
        self.parse_name(text)
        text = text.strip()
        return f'{text[:-1]}{suffix}"' if text.endswith('"') else text + suffix

    def bare(self, text: str) -> str:
        """The name `text` without needless quotes. Raises MopError for an invalid name."""
        return ".".join(written(p) for p in self.parse_name(text) if p is not None)

    def input_table(
        self, text: str | None, what: str = "input table", hint: str | None = None, rows: bool = True
    ) -> Table:
        """The existing, readable table named by `text`; with `rows`, it must not be empty.

        `what` names the table's purpose in messages. Raises MopError.
        """
        if text is None or not text.strip():
            raise MopError("NULL/empty input table name", detail=f"It is the {what}.", hint=hint)
        table = self.find_table(text)
        if table is None:
            alike = self._other_spelling(text)
            raise MopError(
                f"{what} '{text}' does not exist",
                sqlstate="42P01",  # MADlib's quotes
                hint=f"There is {alike}: a name with capitals is written in quotes, '{alike}'." if alike else hint,
            )
        if not self.value(
            "SELECT has_schema_privilege($1, 'USAGE') AND has_any_column_privilege($2, 'SELECT')",
            ["text", "oid"],
            [table.schema, table.oid],
        ):
            raise MopError(
                f'permission denied for {what} "{text}"',
                hint=f"GRANT SELECT ON {table} TO {quote_identifier(self.current_user())};",
                sqlstate="42501",
            )
        if rows and self.one(f"SELECT 1 AS x FROM {table} LIMIT 1") is None:
            raise MopError(f'{what} "{text}" is empty', hint=hint)
        return table

    # --- properties of tables ------------------------------------------------------------------
    def has_foreign_rows(self, table: Table) -> bool:
        """True if a Table or one of its partitions is a foreign table, or if Citus distributes it."""
        if self.has_segments:  # Greenplum has no tables of postgres_fdw
            return False
        return (
            self.value(
                "SELECT EXISTS (SELECT 1 FROM (SELECT relid FROM pg_partition_tree($1::oid::regclass) UNION "
                "SELECT $1::oid::regclass) t JOIN pg_foreign_table f ON f.ftrelid = t.relid)",
                ["oid"],
                [table.oid],
            )
            or (self.distribution(table) or "n") != "n"
        )

    def _other_name(self, quoted: str) -> str:
        """The hint for an output table that exists. No hint drops a named model with all its versions."""
        is_model = self.value(
            "SELECT count(*) = 2 FROM pg_attribute WHERE attrelid = $1::bigint::oid AND attname IN ('in_use', 'model_weights')",
            ["bigint"],
            [self.relation(quoted)],
        )
        if is_model:
            return "It is a named model: choose another name."
        return f"DROP {self.kind_of_relation(quoted)} {quoted}; or choose another name."

    def kind_of_relation(self, quoted: str) -> str:
        """The word for an existing relation (quoted) in DROP."""
        kind = self.value(
            "SELECT relkind::text FROM pg_class WHERE oid = $1::bigint::oid", ["bigint"], [self.relation(quoted)]
        )
        return DROPPED_AS.get(kind, "TABLE")

    def is_temporary(self, table: Table) -> bool:
        """True for a temporary table."""
        return self.value("SELECT relpersistence = 't' FROM pg_class WHERE oid = $1", ["oid"], [table.oid])

    def distribution(self, table: Table) -> str | None:
        """How Citus distributes a Table, or None if it does not.

        'h by <column>': by hash; 'n': in one part, such as a reference table; else the letter of another method.
        """
        if not self.has_citus:
            return None
        method = self.value(
            "SELECT CASE partmethod WHEN 'h' THEN 'h by ' || column_to_column_name(logicalrelid, partkey) "
            "ELSE partmethod::text END FROM pg_dist_partition WHERE logicalrelid = $1",
            ["oid"],
            [table.oid],
        )
        self.on_nodes = self.on_nodes or method is not None
        return method

    def columns(self, table: Table) -> dict[str, str]:
        """{column name: type as format_type prints it}, in the order of the columns."""
        rows = self.execute(
            "SELECT attname, pg_catalog.format_type(atttypid, NULL) AS t FROM pg_attribute "
            "WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            ["oid"],
            [table.oid],
        )
        return {row["attname"]: row["t"] for row in rows}

    def check_readable(self, table: Table, columns: Iterable[str]) -> None:
        """Raises MopError if the caller may not read one of the columns."""
        for column in columns:
            if not self.value("SELECT has_column_privilege($1, $2, 'SELECT')", ["oid", "text"], [table.oid, column]):
                raise MopError(
                    f'permission denied for column "{column}" of {table}',
                    sqlstate="42501",
                    hint=f"GRANT SELECT ON {table} TO {quote_identifier(self.current_user())};",
                    detail="A query that names other columns needs no right on this one.",
                )

    def check_built_in(self, table: Table, columns: Iterable[str]) -> None:
        """Raises MopError if one of the columns has a type that is not built in: its owner may have made casts of it, which
        would run with the rights of the caller."""
        row = self.one(
            "SELECT a.attname, pg_catalog.format_type(a.atttypid, NULL) AS kind FROM pg_attribute a "
            "JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace n ON n.oid = t.typnamespace WHERE a.attrelid = $1 "
            "AND a.attnum > 0 AND NOT a.attisdropped AND n.nspname <> 'pg_catalog' AND a.attname::text = ANY ($2) "
            "ORDER BY a.attnum LIMIT 1",
            ["oid", "text[]"],
            [table.oid, list(columns)],
        )
        if row is not None:
            raise MopError(
                f'column "{row["attname"]}" of {table} has the type {row["kind"]}, which is not built in',
                detail="Casts of such a type are functions of its owner, and would run with your rights.",
                hint=f"Its owner can change it: ALTER TABLE {table} ALTER COLUMN {quote_identifier(row['attname'])} TYPE ...;",
                sqlstate="42804",
            )

    def find_column(self, columns: Container[str], name: str) -> str | None:
        """The column that the user calls `name`: an exact match, else in lower case; None if absent."""
        if name in columns:
            return name
        return name.lower() if name.lower() in columns else None

    def identify_by_all(self, table: str) -> None:
        """Give a new table (quoted) without a key REPLICA IDENTITY FULL: otherwise a publication FOR ALL TABLES forbids
        UPDATE and DELETE."""
        if not self.has_segments:  # Greenplum has no publications
            self.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")

    # --- output tables -------------------------------------------------------------------------
    @overload
    def output_table(self, text: str | None) -> str: ...

    @overload
    def output_table(self, text: str | None, suffix: str, /, *suffixes: str) -> list[str]: ...

    def output_table(self, text: str | None, *suffixes: str) -> str | list[str]:
        """Check that tables `text` and `text` + each suffix can be created; return their quoted, qualified names.

        Returns one name without suffixes, else a list. Raises MopError: NULL or invalid name, existing table, missing
        privilege.
        """
        if text is None or text.strip().lower() in ("", "null"):
            raise MopError("NULL/empty output table name")
        if self.setting("transaction_read_only") == "on":
            raise MopError(f'cannot create "{text}" in a read-only transaction', sqlstate="25006")
        if not re.match(r'[A-Za-z_"\u0080-\uffff]', text.strip()):
            raise MopError(
                f'invalid output table name "{text}"', detail='It must begin with a letter, "_" or a double quote.'
            )
        schema, name = self.parse_name(text)
        temporary = schema is not None and schema.startswith("pg_temp")
        if schema is None:
            with self.caller_path():
                schema = self.value("SELECT pg_catalog.current_schema()")
            if schema is None:
                raise MopError(
                    f'no schema has been selected to create "{text}" in', hint="SET search_path, or write schema.table."
                )
        elif not temporary and self.value("SELECT 1 FROM pg_namespace WHERE nspname = $1", ["text"], [schema]) is None:
            raise MopError(f'schema "{schema}" of output table "{text}" does not exist', sqlstate="3F000")
        if not temporary and not self.value("SELECT has_schema_privilege($1, 'CREATE')", ["text"], [schema]):
            raise MopError(
                f'permission denied to create "{text}" in schema "{schema}"',
                hint=f"GRANT CREATE ON SCHEMA {quote_identifier(schema)} TO {quote_identifier(self.current_user())};",
                sqlstate="42501",
            )
        names = []
        for suffix in ("", *suffixes):
            if len((name + suffix).encode()) > MAX_NAME:
                raise MopError(f'output table name "{name + suffix}" is longer than {MAX_NAME} bytes')
            full = f"{quote_identifier(schema)}.{quote_identifier(name + suffix)}"
            if self.relation(full) is not None:
                raise MopError(
                    f'output table "{name + suffix}" already exists', hint=self._other_name(full), sqlstate="42P07"
                )
            names.append(full)
        return names if suffixes else names[0]
