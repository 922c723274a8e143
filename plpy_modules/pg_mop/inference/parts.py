"""Whether other sessions may read the parts of a table, one part each, in place of the caller's own session."""

from __future__ import annotations

from pg_mop.backend.database import Database, Table
from pg_mop.connections.targets import IS_POSTGRES_FDW


def why_alone(db: Database, table: Table, columns: list[str], checked: bool) -> str | None:
    """The reason why other sessions cannot read, part by part, the same rows of `columns` as the caller; None: they can.

    `checked`: a later check compares the rows that the other sessions see with the caller's.
    """
    if table.kind not in ("r", "p"):
        return "it is no table"
    if not checked and db.setting("transaction_isolation") != "read committed":
        return "the transaction has a snapshot of its own"
    (row,) = db.execute(
        "SELECT bool_or(c.relpersistence = 't') AS temporary, "
        # others do not see uncommitted changes of this transaction; its locks stay until its end
        "bool_or(EXISTS (SELECT 1 FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.relation IN (c.oid, $1) "
        "AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'SIReadLock'))) AS written, "
        "row_security_active($1) OR bool_or(row_security_active(c.oid)) AS policies, "
        f"bool_or(NOT coalesce((SELECT {IS_POSTGRES_FDW} "
        "FROM pg_foreign_table f JOIN pg_foreign_server s ON s.oid = f.ftserver JOIN pg_foreign_data_wrapper w "
        "ON w.oid = s.srvfdw WHERE f.ftrelid = c.oid), c.relkind = 'r')) AS others, "
        # the right to read a table includes its partitions only when they are read through the table
        "bool_or(c.relkind = 'r' AND (NOT has_schema_privilege(c.relnamespace, 'USAGE') OR EXISTS ("
        "SELECT 1 FROM unnest($2) AS name WHERE NOT has_column_privilege(c.oid, name, 'SELECT')))) AS forbidden, "
        "bool_or(EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY ($2) "
        "AND a.attfdwoptions IS NOT NULL)) AS renamed "
        # only partitioned tables and partitions have such a tree
        "FROM pg_class c WHERE c.oid IN (SELECT relid FROM pg_partition_tree($1::regclass) WHERE isleaf) "
        "OR c.oid = $1 AND c.relkind = 'r'",
        ["oid", "text[]"],
        [table.oid, columns],
    )
    reasons = {
        "temporary": "it is temporary",
        "written": "this transaction has written to it",
        "policies": "it has row security",
        "others": "a partition is no table of PostgreSQL's",
        "forbidden": "its partitions may not be read by themselves",
        "renamed": "a column has another name on another server",
    }
    return next((reason for name, reason in reasons.items() if row[name]), None)
