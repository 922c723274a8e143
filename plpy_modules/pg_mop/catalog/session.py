"""The catalog's database session: it is opened, asked, and opened again after a loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg2
import psycopg2.extensions
import psycopg2.extras

from pg_mop.backend.errors import MopError, has_lost_segment
from pg_mop.connections.blocking import connect

if TYPE_CHECKING:
    from pg_mop.backend.database import Database
    from pg_mop.connections.targets import Target

FEW = 100  # stages that a statement looks up one by one; more of them, it finds among all of the run
SEGMENT_SECONDS = 5  # time for a lost Greenplum segment to come back

Row = dict[str, Any]
Values = Sequence[Any] | Mapping[str, Any] | None
T = TypeVar("T")
S = TypeVar("S", bound="CatalogSession")


class CatalogSession:
    """A session of the calling role for the catalog alone, in autocommit mode.

    Statements commit at once, so they survive a rollback of the caller's transaction. They also see current data at any
    isolation level of the caller.
    """

    schema: str  # the extension's schema, quoted, for SQL with parameters: each % is doubled
    prefix: str  # what precedes the name of a catalog relation that the role may read: a table's, or a view's
    target: Target
    coordinator: str  # names the calling session in the catalog, in this session
    caller: int | None  # the calling backend's process ID
    fencing_token: int | None  # of the run that this session has opened or reopened
    connection: Any

    least_state_table_bytes = 4 << 20  # a smaller state table costs more to create than its compaction frees

    def __init__(self, db: Database, target: Target) -> None:
        """Connect by a connection target. Raises MopError with a hint."""
        self.schema, self.target = db.extension.replace("%", "%%"), target
        # Greenplum has no row security: views select the role's rows there.
        self.prefix = f"{self.schema}.mop_own_" if db.has_segments else f"{self.schema}.mop_"
        if db.has_segments:  # creating a table takes 0.05 s on Greenplum
            self.least_state_table_bytes *= 8
        self.fencing_token = None
        self.caller = db.value("SELECT pg_backend_pid()")
        self.coordinator = db.value(f"SELECT backend FROM {db.extension}.mop_tokens")
        self._connect()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the session."""
        self.connection.close()

    def execute(self, sql: str, values: Values = None) -> list[Row]:
        """Run one statement and return its rows as dicts.

        The statement must be repeatable: it runs again if the session is lost. In `sql`, % is written %%.
        """
        return self._retrying(self._run, sql, values)

    def execute_whole(self, sql: str, values: Values = None) -> list[Row]:
        """The same for a statement that joins all rows of a run.

        PostgreSQL's planner expects a few rows of a run that it does not know yet, and would join them in nested loops, whose
        time grows with the square of the run.
        """
        return self._retrying(self._run_whole, sql, values)

    def value(self, sql: str, values: Values = None) -> Any:
        """Run one statement and return the first column of its first row."""
        return next(iter(self.execute(sql, values)[0].values()))

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the extension's schema by name and return its value (one row)."""
        placeholders = ", ".join(["%s"] * len(arguments))
        return self.value(f"SELECT {self.schema}.{function}({placeholders}) AS value", arguments or None)

    def fingerprint(self, sql: str) -> str | None:
        """The segment fingerprint that `sql` selects, as other sessions see it; None if the table is not visible."""
        try:
            return self.execute(sql.replace("%", "%%"))[0]["fingerprint"]
        except (
            psycopg2.errors.UndefinedTable,
            psycopg2.errors.InvalidSchemaName,
            psycopg2.errors.FeatureNotSupported,
            psycopg2.errors.InsufficientPrivilege,
        ):
            return None  # the table is uncommitted, or is another session's temporary table
        except psycopg2.errors.InternalError_ as error:  # PostgreSQL's error for a temporary partitioned table
            if "temporary relation" in str(error):
                return None
            raise

    def terminate(self, pids: Sequence[int]) -> None:
        """Terminate backends that did not react to a cancel."""
        for pid in pids:
            self.execute("SELECT pg_terminate_backend(%s)", (pid,))

    @property
    def _role(self) -> str:
        """SQL for the calling role's number in the catalog."""
        return f"(SELECT o.owner FROM {self.prefix}owner o WHERE o.who = {self.schema}.mop_role(current_user))"

    def _rows_at(
        self, table: str, columns: str, places: Collection[tuple[int, int]], key: str = "stage", where: str = "true"
    ) -> list[Row]:
        """run_id, `key` and `columns` of a table's rows t at `places`, (run, `key`)."""
        if not places:
            return []
        wanted = f"unnest(%s::bigint[], %s::integer[]) AS p(run_id, {key})"
        rows = f"SELECT t.run_id, t.{key}, {columns} FROM {self.prefix}{table} t"
        at = f"(t.run_id, t.{key}) = (p.run_id, p.{key}) AND {where}"
        if self.prefix.endswith("mop_own_"):  # Greenplum
            sql = f"{rows} JOIN {wanted} ON {at}"
        else:  # OFFSET 0 makes the planner look up each place by the primary key
            sql = f"SELECT t.* FROM {wanted} CROSS JOIN LATERAL ({rows} WHERE {at} OFFSET 0) AS t"
        return self.execute(sql, tuple(map(list, zip(*places))))

    def _row_at(
        self, table: str, columns: str, places: Collection[tuple[int, int]], key: str = "stage"
    ) -> dict[tuple[int, int], Row]:
        """The same of a table with at most one row at each place: {place: row}."""
        return {(row["run_id"], row[key]): row for row in self._rows_at(table, columns, places, key)}

    def _connect(self) -> None:
        self.connection = connect(self.target, "pg_mop catalog")
        self.connection.cursor_factory = psycopg2.extras.RealDictCursor

    def _retrying(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return `work(*arguments)`. After a lost session, work is done once more in a new session; after the loss of a
        Greenplum segment, it is repeated for SEGMENT_SECONDS."""
        deadline, retried = time.monotonic() + SEGMENT_SECONDS, False
        while True:
            try:
                if self.connection.closed:
                    self._connect()
                return work(*arguments)
            except psycopg2.Error as error:
                if has_lost_segment(error) and time.monotonic() < deadline:
                    self.connection.close()
                    time.sleep(0.2)
                elif retried or not self.connection.closed:
                    raise
                else:
                    retried = True

    def _run(self, sql: str, values: Values = None) -> list[Row]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql.replace("%%", "%") if values is None else sql, values)
            return [dict(row) for row in cursor.fetchall()] if cursor.description else []

    def _run_whole(self, sql: str, values: Values = None) -> list[Row]:
        self._run("SET enable_nestloop = off")
        try:
            return self._run(sql, values)
        finally:
            if not self.connection.closed:
                self._run("RESET enable_nestloop")

    def _in_transaction(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return `work(cursor, *arguments)`, done in one transaction."""
        with self.connection.cursor() as cursor:
            cursor.execute("BEGIN")
            try:
                result = work(cursor, *arguments)
                cursor.execute("COMMIT")
            except (psycopg2.Error, MopError):
                if not self.connection.closed:
                    cursor.execute("ROLLBACK")
                raise
        return result

    def within_transaction(self, work: Callable[..., T]) -> T:
        """Return `work(cursor)`, done in one transaction; it is done again if the session is lost."""
        return self._retrying(self._in_transaction, work)

    @contextmanager
    def _waiting_for_locks(self, milliseconds: int) -> Iterator[None]:
        """Statements within wait for locks at most so many milliseconds. (An error leaves the session so.)"""
        self.execute(f"SET lock_timeout = {milliseconds}")
        yield
        self.execute("SET lock_timeout = 10000")
