"""The locks of a training call: on its output's name against other calls, on its sources against writers."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg2

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_literal
from pg_mop.connections.blocking import connect

if TYPE_CHECKING:
    from pg_mop.backend.database import Database
    from pg_mop.connections.targets import Target

SLICE = 200  # milliseconds of waiting for a lock between two checks for interrupts


class Locks:
    """Locks in the caller's transaction or, for a procedure, which commits while it runs, in a separate session.

    The separate session is checked whenever the procedure waits. If it is lost, a new session takes the same locks.
    """

    def __init__(self, db: Database, target: Callable[[], Target], lock_timeout: int) -> None:
        """`target()`: the connection target for this server as the calling role; `lock_timeout`: milliseconds."""
        self.db, self.target, self.lock_timeout = db, target, lock_timeout
        self._session: Any = None
        self.output: str | None = None
        self.shared: list[Any] = []
        if db.commits:
            self._open()
            db.while_waiting.append(self._check_session)
            db.at_end.append(lambda: self._session.close())

    def reserve(self, output: str) -> None:
        """Reserve an output table (quoted) against other calls. Raises MopError."""
        self.output = output
        schema, name = self.db.parse_name(output)
        if (schema or "").startswith("pg_temp"):  # visible to this session alone
            return
        try:
            reserved = self._value(
                f"SELECT {self.db.extension}.mop_reserve({quote_literal(schema)}, {quote_literal(name)})"
            )
        except psycopg2.Error as error:  # the schema is not committed yet
            raise MopError(f"{output} cannot be reserved: {str(error).strip()}", sqlstate=error.pgcode) from None
        if not reserved:
            raise MopError(
                f"another session is training into {output} now",
                hint=f"SELECT * FROM {self.db.extension}.mop_runs WHERE status = 'running';",
                sqlstate="55006",
            )

    def share(self, packed: Any) -> None:
        """Lock a packed table against writers, if the caller has the privilege: otherwise fingerprints detect changes.

        Raises MopError.
        """
        db, table = self.db, packed.table
        if db.value(
            "SELECT true FROM pg_locks WHERE pid = pg_backend_pid() AND granted AND locktype = 'relation' "
            "AND mode = 'AccessExclusiveLock' AND (relation = $1 OR relation IN "
            "(WITH RECURSIVE tree(relid) AS (SELECT inhrelid FROM pg_inherits WHERE inhparent = $1 UNION ALL "
            "SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON i.inhparent = t.relid) SELECT relid FROM tree)) "
            "LIMIT 1",
            ["oid"],
            [table.oid],
        ):
            raise MopError(
                f'"{packed.text}" is locked by this transaction itself',
                detail="Worker sessions cannot read a table that this transaction has created, altered or locked.",
                hint="COMMIT; then call again: worker sessions read what is committed and not locked.",
                sqlstate="55006",
            )
        # The shards of a table that Citus distributes are locked instead: LOCK TABLE would extend the caller's transaction
        # to all nodes.
        if (
            table.kind not in ("r", "p")
            or packed.distributed
            or not db.value("SELECT has_table_privilege($1, 'UPDATE, DELETE, TRUNCATE')", ["oid"], [table.oid])
        ):
            return
        if self._session is not None:
            self.shared.append(packed)
            self._share(packed)
            return
        before = db.setting("lock_timeout")
        try:
            db.execute(f"SET LOCAL lock_timeout = {self.lock_timeout}")
            db.execute(f"LOCK TABLE {table} IN SHARE MODE")
        except db.plpy.SPIError as error:
            if getattr(error, "sqlstate", None) != "55P03":
                raise
            raise is_locked(packed) from None
        finally:
            db.execute(f"SET LOCAL lock_timeout = {quote_literal(before)}")

    def _share(self, packed: Any) -> None:
        """Lock a table in the separate session. It waits in slices: psycopg2 does not check for interrupts."""
        deadline = time.monotonic() + self.lock_timeout / 1000
        while True:
            try:
                self._value(
                    f"SAVEPOINT before; SET LOCAL lock_timeout = {SLICE}; LOCK TABLE {packed.table} IN SHARE MODE"
                )
                return
            except psycopg2.errors.LockNotAvailable:
                self._value("ROLLBACK TO SAVEPOINT before")
                if time.monotonic() > deadline:
                    raise is_locked(packed) from None
                self.db.check_interrupts()
            except psycopg2.Error as error:  # the table is not committed yet, or was dropped
                raise MopError(
                    f'"{packed.text}" cannot be locked: {str(error).strip()}', sqlstate=error.pgcode or "08006"
                ) from None

    def _open(self) -> None:
        self._session = connect(self.target(), "pg_mop locks")
        self._session.autocommit = False  # one transaction for the whole call

    def _check_session(self) -> None:
        """If the session was lost, take the same locks in a new one. Raises MopError if that fails."""
        if not self._session.closed and not select.select([self._session], [], [], 0)[0]:
            return
        try:
            self._value("SELECT 1")
        except psycopg2.Error:
            self.db.log("the session that holds the locks of a call was lost")
            self._open()
            if self.output is not None:
                self.reserve(self.output)
            for packed in self.shared:
                self._share(packed)

    def _value(self, sql: str) -> Any:
        """Run SQL in the session that holds the locks; return the first value, or None."""
        if self._session is None:
            return self.db.value(sql)
        with self._session.cursor() as cursor:
            cursor.execute(sql)
            row = cursor.fetchone() if cursor.description else None
            return row and row[0]


def is_locked(packed: Any) -> MopError:
    """The MopError for a source that could not be locked or read within lock_timeout."""
    return MopError(
        f'"{packed.text}" is locked by another transaction',
        sqlstate="55P03",
        hint=f"SELECT pid, mode FROM pg_locks WHERE relation = {quote_literal(packed.table)}::regclass;",
    )
