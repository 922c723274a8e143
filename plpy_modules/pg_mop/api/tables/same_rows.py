"""Whether the sessions of a call see the rows that its caller sees: row security may ask for more than the caller's role."""

from __future__ import annotations

from contextlib import nullcontext

from pg_mop.api.tables.steps import Steps
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.packing.row_source import in_brackets, is_query, view_of_query

DIGEST = "pg_catalog.sum(pg_catalog.hashtext(ROW(tableoid, ctid)::pg_catalog.text)::bigint)::text"  # of a table's rows
TRIES = 5  # while other sessions change the rows
# the relations that a relation $1 reads, and their policies
REACHED = """
WITH RECURSIVE reached(relation) AS (
    SELECT $1::oid
    UNION
    SELECT d.refobjid FROM reached r JOIN pg_rewrite w ON w.ev_class = r.relation
    JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid AND d.refclassid = 'pg_class'::regclass
)
"""
POLICIES = f"""{REACHED}
SELECT format('%I.%I', n.nspname, c.relname) AS name, has_table_privilege(c.oid, 'SELECT') AS readable,
    coalesce((SELECT string_agg(quote_ident(p.polname), ', ' ORDER BY p.polname) FROM pg_policy p WHERE p.polrelid = c.oid),
        '(none)') AS policies
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relrowsecurity AND c.oid IN (SELECT relation FROM reached) ORDER BY 1
"""
# whether a relation calls functions of users, in a database with policies: they may read tables with policies
MAY_READ_MORE = f"""{REACHED}
SELECT EXISTS (SELECT 1 FROM reached r JOIN pg_rewrite w ON w.ev_class = r.relation
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid AND d.refclassid = 'pg_proc'::regclass)
    AND EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relrowsecurity AND n.nspname <> $2)
"""


def check(db: Database, steps: Steps, source: str) -> None:
    """Raises MopError where row security shows the session of the steps other rows than the caller.

    Compares the number and a digest of the rows of each table with policies that the source reads. The settings of the
    caller's application are those of the session, too, but a policy may ask for anything, such as the client's address.
    """
    table = None if is_query(source) else db.input_table(source, "source table", rows=False)
    with view_of_query(db, source) if table is None else nullcontext(table) as rows:
        tables = db.execute(POLICIES, ["oid"], [rows.oid])
        more = db.value(MAY_READ_MORE, ["oid", "text"], [rows.oid, db.schema])
    looks = [
        f"SELECT pg_catalog.count(*) AS count, {DIGEST} AS text FROM {table['name']}"
        for table in tables
        if table["readable"]
    ]
    # A view's owner may read tables that the caller may not read: then the source alone shows the caller their rows.
    if more or len(looks) < len(tables):
        looks.append(f"SELECT pg_catalog.count(*) AS count, NULL::text AS text FROM {table or in_brackets(source)} t")
    if not looks:
        return
    for _ in range(TRIES):
        rows_here = _seen(db, looks)
        if rows_here == [tuple(steps.run(sql)[0]) for sql in looks]:
            return
        if rows_here == _seen(db, looks):
            break
    else:
        if not tables:  # a function may return other rows at each call, and may read no table with policies
            return
    reasons = [f"{table['policies']} of {table['name']}" for table in tables]
    raise MopError(
        "row security shows other rows to the sessions that train than to this one",
        detail=f"The policies: {'; '.join(reasons) or 'those of tables that a function reads'}. Sessions that train have your "
        "role, your search_path and the settings of your application such as app.tenant. They see what is committed.",
        hint="COMMIT; where this transaction has changed the rows. Else train on a copy of the rows that you see: "
        "CREATE TABLE my_rows AS SELECT * FROM ...;",
        sqlstate="42501",
    )


def _seen(db: Database, looks: list[str]) -> list[tuple[int, str | None]]:
    """(rows, digest) of each look, as the caller sees them."""
    with db.caller_path():
        return [(row["count"], row["text"]) for row in map(db.one, looks) if row is not None]
