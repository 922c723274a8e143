"""Whether other sessions may go through the parts of a table, each for itself, in place of the caller's own."""

from pg_mop.connections.targets import IS_POSTGRES_FDW


def why_alone(db, table, columns, checked):
    """Why no other session can read the very rows, part by part, that the caller sees in `columns` (names) of a Table;
    None: it can, as far as can be told here. `checked`: whether others see the same rows is found out later."""
    if table.kind not in ("r", "p"):
        return "it is no table"
    if not checked and db.setting("transaction_isolation") != "read committed":
        return "the transaction has a snapshot of its own"
    found = db.one(
        "SELECT bool_or(c.relpersistence = 't') AS temporary, "
        # what it has written or altered itself, others do not see; a lock stays to the end
        "bool_or(EXISTS (SELECT 1 FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.relation IN (c.oid, $1) "
        "AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'SIReadLock'))) AS written, "
        "row_security_active($1) OR bool_or(row_security_active(c.oid)) AS policies, "
        f"bool_or(NOT coalesce((SELECT {IS_POSTGRES_FDW} "
        "FROM pg_foreign_table f JOIN pg_foreign_server s ON s.oid = f.ftserver JOIN pg_foreign_data_wrapper w "
        "ON w.oid = s.srvfdw WHERE f.ftrelid = c.oid), c.relkind = 'r')) AS others, "
        # who may read the table may read its partitions by it alone
        "bool_or(c.relkind = 'r' AND (NOT has_schema_privilege(c.relnamespace, 'USAGE') OR EXISTS ("
        "SELECT 1 FROM unnest($2) AS name WHERE NOT has_column_privilege(c.oid, name, 'SELECT')))) AS forbidden, "
        "bool_or(EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY ($2) "
        "AND a.attfdwoptions IS NOT NULL)) AS renamed "
        # (only of a partitioned table, or a partition, there is such a tree)
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
    return next((reason for name, reason in reasons.items() if found[name]), None)
