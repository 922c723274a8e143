"""The summary of a packed table: one row with the arguments, the transform and the segments."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.foreign_code import OF_WRITING, Place, code_sql
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.catalog.session import CatalogSession
from pg_mop.columns import Transform, madlib
from pg_mop.engines.base import COPIES
from pg_mop.packing.partitions import quoted
from pg_mop.packing.placement import Entry
from pg_mop.packing.shards import Placement

Copy = tuple[int, str | None, str]  # segment, server (None: the coordinator's), quoted table there
LOCK_SECONDS = 2  # to wait for a lock on a summary that is to be changed

# SQL: why a role must not write to the table {oid}, or NULL. A table of another role, a trigger, a rule, a policy, or what lies
# behind a view may run functions of somebody else with the role's privileges.
OBSTACLE = f"""
SELECT CASE
    WHEN c.relkind <> 'r' THEN 'it is no plain table'
    WHEN c.relowner IS DISTINCT FROM (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = current_user)
        THEN 'it belongs to another role'
    ELSE (SELECT 'it has ' || CASE found.place WHEN {Place.TRIGGER:d} THEN 'triggers' WHEN {Place.RULE:d} THEN 'rules'
                                               ELSE 'row security' END
          FROM ({code_sql("{oid}", "NULL", OF_WRITING)}) AS found ORDER BY found.place LIMIT 1) END AS obstacle
FROM pg_catalog.pg_class c WHERE c.oid = {{oid}}"""


def write(
    db: Database, summary: str, source_table: str, output_table: str, transform: Transform, placement: Placement
) -> None:
    """Create the table `summary` (quoted) with its row, except for the values that `complete` adds."""
    rules = "text" if isinstance(placement.rules, str) else "integer[]"

    def literals(*entries: tuple[str, str, Any]) -> list[tuple[str, str, str]]:
        return [(name, sql_type, madlib.literal(sql_type, value)) for name, sql_type, value in entries]

    columns = [
        *literals(("source_table", "text", source_table), ("output_table", "text", output_table)),
        *literals(*madlib.names(transform), *madlib.sql_types(transform)),
        *madlib.of_packed_table(transform),
        *literals(("buffer_size", "integer", None), *madlib.constant(transform), ("num_classes", "integer[]", None)),
        *literals(("distribution_rules", rules, placement.rules)),
        *literals(("__internal_gpu_config__", rules, placement.gpu_config)),
        *literals(*madlib.extra(transform)),
        *literals(*[(COPIES, "text", None)] * any(placement.copies)),
    ]
    db.execute(f"CREATE TABLE {summary} ({', '.join(f'{quote_identifier(name)} {kind}' for name, kind, _ in columns)})")
    db.identify_by_all(summary)
    db.execute(f"INSERT INTO {summary} SELECT {', '.join(value for _, _, value in columns)}")


def complete(db: Database, summary: str, buffer_size: int, num_classes: list[int], copies: list[Entry]) -> None:
    """Write the values that are known once the rows are packed. `copies`: see COPIES."""
    db.execute(
        f"UPDATE {summary} SET buffer_size = $1, num_classes = $2", ["int4", "int4[]"], [buffer_size, num_classes]
    )
    if copies:
        db.execute(f"UPDATE {summary} SET {COPIES} = $1", ["text"], [json.dumps(copies)])


def copies_in(row: Mapping[str, Any] | None, table: Table) -> list[Copy]:
    """The copies of segments in the row of a summary `table`; no entry is there twice. Raises MopError."""
    return [(key, server, quoted((schema, name))) for key, server, schema, name in entries_in(row, table)]


def reachable(db: Database, copies: list[Copy], summary: Table) -> list[Copy]:
    """Those of the `copies` in a summary whose server exists; a NOTICE names the servers of the others."""
    servers = {server for _, server, _ in copies if server is not None}
    existing_servers = (
        {row["name"] for row in db.execute("SELECT srvname::text AS name FROM pg_foreign_server")} if servers else set()
    )
    for server in sorted(servers - existing_servers):
        db.notice(
            f"server {quote_identifier(server)}, on which {summary} notes copies of segments, does not exist any more: the "
            "copies do not count",
            hint=f"To forget them: UPDATE {summary} SET {COPIES} = (SELECT json_agg(c) FROM "
            f"json_array_elements({COPIES}::json) c WHERE c->>1 IS DISTINCT FROM {quote_literal(server)})::text;",
        )
    return [copy for copy in copies if copy[1] is None or copy[1] in existing_servers]


def entries_in(row: Mapping[str, Any] | None, table: Table) -> list[Entry]:
    """The same as `copies_in`, with the schema and the name of each copy. Raises MopError."""
    try:
        return list(
            dict.fromkeys(
                (int(key), server if server is None else str(server), str(schema), str(name))
                for key, server, schema, name in json.loads((row or {}).get(COPIES) or "[]")
            )
        )
    except (ValueError, TypeError):
        raise MopError(
            f'column "{COPIES}" of {table} is not what a preprocessor writes',
            hint=f"UPDATE {table} SET {COPIES} = NULL; gives the copies up.",
        ) from None


def entries_now(catalog: CatalogSession, summary: Table) -> list[Entry]:
    """The copies that a summary has now, as a session of its own sees them; see `entries_in`. Raises MopError and
    psycopg2.Error."""
    if summary.kind != "r":
        return []
    rows = catalog.execute(f"SELECT * FROM {str(summary).replace('%', '%%')}")
    return entries_in(rows[0] if rows else None, summary)


def note(catalog: CatalogSession, summary: Table, new: Iterable[Entry], gone: Collection[Entry]) -> str | None:
    """Write `new` copies into a summary, beside those that other runs have noted by now, and remove those that are `gone`.

    Returns the reason why the role must not, or None. Raises MopError and psycopg2.Error.
    """
    obstacle_sql, table = OBSTACLE.format(oid=int(summary.oid)), str(summary).replace("%", "%%")

    def work(cursor: Any) -> str | None:
        cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
        cursor.execute(obstacle_sql)
        if (obstacle := _first(cursor)["obstacle"]) is not None:  # a lock on a view would lock the tables behind it
            return obstacle
        # nobody makes a trigger, a rule or a policy meanwhile
        cursor.execute(f"LOCK TABLE ONLY {summary} IN SHARE ROW EXCLUSIVE MODE")
        cursor.execute(obstacle_sql)
        if (obstacle := _first(cursor)["obstacle"]) is not None:
            return obstacle
        cursor.execute(f"SELECT {COPIES} FROM ONLY {summary}")
        entries = [entry for entry in entries_in(_first(cursor), summary) if entry not in gone]
        cursor.execute(f"UPDATE ONLY {table} SET {COPIES} = %s", (json.dumps(list(dict.fromkeys([*entries, *new]))),))
        return None

    return catalog.within_transaction(work)


def _first(cursor: Any) -> dict[str, Any]:
    """The first row of a cursor. Raises MopError where there is none."""
    row = cursor.fetchone()
    if row is None:
        raise MopError("the summary of the packed table has gone", sqlstate="42P01")
    return dict(row)
