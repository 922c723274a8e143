"""The catalog of another server."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg2
import psycopg2.extensions

from mop_udf.pool.patience import Patience
from pg_mop.backend.errors import MopError, is_cancel
from pg_mop.catalog.catalog import Catalog
from pg_mop.catalog.session import T
from pg_mop.connections.blocking import connect

if TYPE_CHECKING:
    from pg_mop.connections.targets import Target


class RemoteCatalog(Catalog):
    """The catalog of another server, for a remote run (sql/postgresql/14_servers.sql).

    Waiting for that server reacts to cancels, and ends with an error after SECONDS, unless the server says that it is still at
    work.
    """

    SECONDS = 5  # for any answer
    _asks = False  # True while the server is asked whether it is at work, and where it is not to be asked

    def __init__(self, target: Target, schema: str, check_interrupts: Callable[[], None]) -> None:
        """Connect. `schema`: the extension's on that server, quoted; `check_interrupts`: called while waiting. Raises
        MopError."""
        self.schema, self.target, self.check_interrupts = schema.replace("%", "%%"), target, check_interrupts
        self.prefix = f"{self.schema}.mop_"
        self.fencing_token = self.caller = None
        self.leads: int | None = None  # the remote run of this session
        self._connect()

    def _connect(self) -> None:
        with self._waiting():
            super()._connect()
            self.coordinator = self._run(f"SELECT backend FROM {self.schema}.mop_tokens")[0]["backend"]
            if self.leads is not None:
                self._run(
                    f"SELECT {self.schema}.mop_lead_remote_run(%s, %s, %s)",
                    (self.leads, self.fencing_token, self.coordinator),
                )

    def _retrying(self, work: Callable[..., T], *arguments: Any) -> T:
        with self._waiting():
            return super()._retrying(work, *arguments)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Within the block, psycopg2 waits by `_wait`."""
        before = psycopg2.extensions.get_wait_callback()
        psycopg2.extensions.set_wait_callback(self._wait)
        try:
            yield
        finally:
            psycopg2.extensions.set_wait_callback(before)

    def hurry(self) -> None:
        """Give any answer a second from now on: the run ends before its time, and its caller waits."""
        self.SECONDS, self._asks = 1, True

    def _is_at_work(self, connection: Any) -> bool:
        """True where the server answers another session, and executes the command of this one."""
        pid = connection.info.backend_pid
        if self._asks or not pid:
            return False
        self._asks = True
        try:
            other = connect(self.target, "pg_mop catalog")
            try:
                with other.cursor() as cursor:
                    cursor.execute("SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s", (pid,))
                    return cursor.fetchone() == (True,)
            finally:
                other.close()
        except (psycopg2.Error, MopError) as error:
            if is_cancel(error):
                raise
            return False
        finally:
            self._asks = False

    def _wait(self, connection: Any) -> None:
        """Wait for an answer, checking for interrupts.

        If this raises, psycopg2 closes the connection and drops the answer. Do not close the connection in this
        function: it would wait for psycopg2's own lock for ever.
        """
        patience = Patience(self.SECONDS)
        while (state := connection.poll()) != psycopg2.extensions.POLL_OK:
            reading = [connection] if state == psycopg2.extensions.POLL_READ else []
            writing = [connection] if state == psycopg2.extensions.POLL_WRITE else []
            if not any(select.select(reading, writing, [], 0.1)):
                self.check_interrupts()
                if patience.over():
                    if self._is_at_work(connection):  # a statement about a large run may take minutes
                        patience = Patience(self.SECONDS)
                        continue
                    raise MopError(
                        f"server {self.target.server} has not answered for {self.SECONDS} s", sqlstate="08006"
                    )
