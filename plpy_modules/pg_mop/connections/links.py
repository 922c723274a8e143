"""Links: the call's own sessions with other servers, which read and hold locks until the call ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import psycopg2

from pg_mop import __version__
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.connections import targets
from pg_mop.connections.sessions import SessionLost, WorkerSession, answer, open_sessions, run
from pg_mop.connections.targets import Target

if TYPE_CHECKING:
    from pg_mop.backend.database import Database


class Links(dict[str | None, "Link"]):
    """{name of a server (None: this one): its Link}. Subscription opens a missing link, or raises MopError.

    `first`: SQL that their sessions run first. All links are closed when the call ends.
    """

    def __init__(self, db: Database, first: str | None = None) -> None:
        super().__init__()
        self.db, self.first = db, first
        db.at_end.append(self._close)  # no session keeps locks on other servers after the call, even after an error

    def __missing__(self, server: str | None) -> Link:
        self.reach([server])
        return self[server]

    def reach(self, servers: Iterable[str | None], away: dict[str | None, MopError] | None = None) -> None:
        """Open the missing links to servers, all at once.

        Raises MopError. With a dict `away`, servers that do not answer are entered in it instead: {name: MopError}.
        """
        missing = [server for server in dict.fromkeys(servers) if server not in self]
        opened = [targets.local(self.db) if server is None else targets.to(self.db, server) for server in missing]
        try:
            self.update(zip(missing, self._open(opened)))
        except MopError as error:
            if away is None or error.unreachable is None or error.unreachable.server is None:
                raise
            away[error.unreachable.server] = error
            self.reach([server for server in missing if server not in away], away)

    def open(self, target: Target, check_interrupts: Callable[[], None] | None = None) -> Link:
        """A new Link. Raises MopError."""
        return self._open([target], check_interrupts)[0]

    def _open(self, opened: list[Target], check_interrupts: Callable[[], None] | None = None) -> list[Link]:
        sessions = open_sessions(opened, None, "pg_mop link", check_interrupts or self.db.check_interrupts)
        try:
            links = [
                Link(self.db, target, session, check_interrupts, self.first)
                for target, session in zip(opened, sessions)
            ]
            for link in links:
                link.receive_info()
            return links
        except BaseException:
            for session in sessions:
                session.close()
            raise

    def _close(self) -> None:
        for link in self.values():
            link.session.close()


class Link:
    """A session with another server, in one transaction until the call ends: it reads, and holds locks.

    `info`: the server's description of itself (api/runs/servers.py). `schema`: the extension's on that server, quoted.
    """

    info: dict[str, Any]

    def __init__(
        self,
        db: Database,
        target: Target,
        session: WorkerSession,
        check_interrupts: Callable[[], None] | None = None,
        first: str | None = None,
    ) -> None:
        """Ask for the server's description; `receive_info` waits for it, so that several servers prepare theirs at once.

        `session`: a connected session; `first`: SQL to run first; `check_interrupts`: called while waiting. Raises
        MopError if the server cannot be used.
        """
        self.target, self.session = target, session
        self.check_interrupts = check_interrupts or db.check_interrupts
        self.lock_timeout = db.setting("pg_mop.lock_timeout") or "10s"
        self.name = quoted = quote_identifier(target.server or targets.LOCAL)
        try:
            if first:
                self.run(first)
            schema = self.run(
                "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
                "WHERE e.extname = 'pg_mop'"
            )
            if not schema:
                raise MopError(
                    f'pg_mop is not installed on server {quoted}, in database "{target.parameters["dbname"]}"',
                    hint="On that server: CREATE EXTENSION pg_mop SCHEMA madlib CASCADE;",
                    sqlstate="58P01",
                )
            self.schema = quote_identifier(schema[0][0])
            session.begin(f"SELECT {self.schema}.mop_server_info()::text")
        except (psycopg2.Error, SessionLost) as error:
            raise target.refused(error) from None

    def receive_info(self) -> None:
        """Receive the server's description, `info`. Raises MopError if units cannot run on the server."""
        target, quoted = self.target, self.name
        try:
            try:
                self.info = json.loads(answer(self.session, self.check_interrupts)[0][0])
            except psycopg2.errors.InsufficientPrivilege:
                raise MopError(
                    f"role {quote_identifier(target.role)} may not use pg_mop on server {quoted}",
                    hint=f"On that server: GRANT mop_user TO {quote_identifier(target.role)};",
                    sqlstate="42501",
                ) from None
            except psycopg2.errors.UndefinedFunction:
                self.info = {"pg_mop": "older"}
        except (psycopg2.Error, SessionLost) as error:
            raise target.refused(error) from None
        if self.info["pg_mop"] != __version__:
            raise MopError(
                f"server {quoted} has pg_mop {self.info['pg_mop']}, this one has {__version__}",
                hint="On the server with the older version: ALTER EXTENSION pg_mop UPDATE;",
                sqlstate="58000",
            )

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL and return its rows. Raises psycopg2.Error and SessionLost."""
        return run(self.session, sql, self.check_interrupts)

    def share(self, table: str) -> None:
        """Lock a table (quoted) of the server against writers until the call ends, if the role has the privilege.

        Raises MopError if the lock is not free in time.
        """
        try:
            # A missing table is reported by its first reader.
            allowed = f"SELECT has_table_privilege(to_regclass({quote_literal(table)}), 'UPDATE, DELETE, TRUNCATE')"
            if self.run(allowed)[0][0]:
                self.run(f"BEGIN; SET LOCAL lock_timeout = '{self.lock_timeout}'; LOCK TABLE {table} IN SHARE MODE")
        except psycopg2.errors.LockNotAvailable:
            raise MopError(
                f"{table} on server {self.name} is locked by another transaction",
                hint=f"On that server: SELECT pid, mode FROM pg_locks "
                f"WHERE relation = {quote_literal(table)}::regclass;",
                sqlstate="55P03",
            ) from None
        except (psycopg2.Error, SessionLost) as error:
            raise self.target.refused(error) from None
