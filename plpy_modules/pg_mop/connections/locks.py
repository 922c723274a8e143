"""What a training call holds until it ends: the name of its output against other calls, its sources against writers."""

import select
import time

import psycopg2

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_literal
from pg_mop.connections.blocking import connect

SLICE = 200  # milliseconds of waiting for a lock, after which PostgreSQL sees interrupts


class Locks:
    """Held by the caller's own transaction or, where that ends again and again, by that of a session of their own.

    That session is looked at whenever the caller waits; where it was lost, another holds the same from then on.
    """

    def __init__(self, db, target, lock_timeout):
        """`way()`: how a session as the calling role gets here; `lock_timeout`: milliseconds."""
        self.db, self.target, self.lock_timeout, self._session = db, target, lock_timeout, None
        self.output, self.shared = None, []
        if db.commits:
            self._open()
            db.while_waiting.append(self._look)
            db.at_end.append(lambda: self._session.close())

    def reserve(self, output):
        """Keep other calls from the same output table (quoted). Raises MopError."""
        self.output = output
        schema, name = self.db.parse_name(output)
        if schema.startswith("pg_temp"):  # this session's own
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

    def share(self, packed):
        """Keep writers from a packed table, where the caller may do so: fingerprints tell the rest. Raises MopError."""
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
                detail="Created, altered or locked here, it cannot be read by the worker sessions.",
                hint="COMMIT; then call again: worker sessions read what is committed and not locked.",
                sqlstate="55006",
            )
        # (of what Citus distributes shards are locked; LOCK TABLE would take the caller's transaction to all nodes)
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

    def _share(self, packed):
        """Lock a table in the session of our own. It waits in slices: nothing could be heard while psycopg2 waits."""
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
            except psycopg2.Error as error:  # it is not committed yet, or has gone
                raise MopError(
                    f'"{packed.text}" cannot be locked: {str(error).strip()}', sqlstate=error.pgcode or "08006"
                ) from None

    def _open(self):
        self._session = connect(self.target(), "pg_mop locks")
        self._session.autocommit = False  # one transaction, to the end

    def _look(self):
        """Hold the same by another session where this one was lost. Raises MopError where that cannot be."""
        if not self._session.closed and not select.select([self._session], [], [], 0)[0]:
            return
        try:
            self._value("SELECT 1")
        except psycopg2.Error:
            self.db.plpy.log("pg_mop: the session that holds the locks of a call was lost")
            self._open()
            if self.output is not None:
                self.reserve(self.output)
            for packed in self.shared:
                self._share(packed)

    def _value(self, sql):
        """The first value that some SQL gives, run where locks are held; None where it gives none."""
        if self._session is None:
            return self.db.value(sql)
        with self._session.cursor() as cursor:
            cursor.execute(sql)
            row = cursor.fetchone() if cursor.description else None
            return row and row[0]


def is_locked(packed):
    """The MopError for a source that could not be locked or read in time."""
    return MopError(
        f'"{packed.text}" is locked by another transaction',
        sqlstate="55P03",
        hint=f"SELECT pid, mode FROM pg_locks WHERE relation = {quote_literal(packed.table)}::regclass;",
    )
