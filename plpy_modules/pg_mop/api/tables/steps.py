"""Steps of a call that must be committed before others see them: they run one by one in a session of the caller's role."""

from __future__ import annotations

import re
import time
from typing import Any

import psycopg2

from mop_udf import aggregate
from pg_mop.backend import settings
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, step_message
from pg_mop.backend.quoting import quote_literal
from pg_mop.connections import sessions, targets
from pg_mop.connections.sessions import SessionLost

LOCK_SECONDS = 1  # between two looks at what a step waits for
UNDEFINED_TABLE = "42P01"
OWN_SESSION = "Steps run in a session of their own. It sees what is committed, and no temporary tables."
END_SECONDS = 10  # that a canceled step has to end
FINISH_SECONDS = 60  # that dropping the relations of all steps may take on a busy machine
NOTICE = re.compile(r"^(NOTICE|WARNING|INFO):\s+(.*)$", re.DOTALL)


class Steps:
    """A session of the calling role with the caller's search_path and settings; each statement commits.

    Messages of the statements go to the caller. A cancel of the caller cancels the statement.
    """

    def __init__(self, db: Database, name: str) -> None:
        """Open the session; `name`: its application_name. Raises MopError."""
        self.db, self._told, self._pid = db, "", db.value("SELECT pg_backend_pid()")
        aggregate.session(db.plpy).give_back()  # a step may need the trainer of the calling session
        self.session = sessions.open_session(targets.local(db), None, name, db.check_interrupts)
        parameters = {"search_path": db.callers_path or "", "client_min_messages": "notice"}
        parameters["TimeZone"] = db.setting("TimeZone") or "UTC"  # of the casts in the caller's views and queries
        parameters.update({f"pg_mop.{setting}": text for setting, text in settings.given(db).items()})
        self.run(
            "SELECT "
            + ", ".join(
                f"pg_catalog.set_config({quote_literal(setting)}, {quote_literal(text)}, false)"
                for setting, text in parameters.items()
            )
        )

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        self.session.close()

    def run(self, sql: str, quiet: bool = False) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows; `quiet`: its messages are dropped. Raises MopError."""
        problem: MopError | None = None
        try:
            self.session.begin(self._told + sql)
            checked = time.monotonic()
            while True:
                ended = sessions.wait([self.session], self.db.check_interrupts)
                self._tell(quiet)
                if ended:
                    break
                if time.monotonic() > checked + LOCK_SECONDS:
                    self._check_locks()
                    checked = time.monotonic()
            if ended[0][1] is not None:
                raise ended[0][1]
            # This backend learns of new relations when it locks a table. Until then, a name that it has looked up in
            # vain stays unknown.
            self.db.execute("SELECT 1 FROM pg_class LIMIT 1")
            return self.session.rows()
        except psycopg2.Error as error:
            diag = error.diag
            text = step_message(diag.message_primary or str(error)).strip()
            detail, hint = diag.message_detail, diag.message_hint
            if error.pgcode == UNDEFINED_TABLE and detail is None:
                detail, hint = OWN_SESSION, "COMMIT; or, for a temporary table: CREATE TABLE ... AS SELECT ...;"
            problem = MopError(text, detail, hint, sqlstate=error.pgcode or "XX000")
        except SessionLost as error:
            problem = MopError(f"the session of the steps was lost: {error}", sqlstate="08006")
        except BaseException:  # a cancel: the statement must end before its tables can be dropped
            self._stop()
            raise
        raise problem

    def tell(self, step: str, left: float, trials: int = 0, loss: float | None = None) -> None:
        """Publish the present `step` of this call in the view mop_trainings. `left`: seconds of the time limit; `trials`: of a
        family so far; `loss`: the least of theirs. A comment of the session's statement carries the values, so the call commits
        nothing. Raises MopError."""
        best = "" if loss is None else f"{loss:.9f}"
        self._told = f"/* mop_train {self._pid} {step} {time.time() + left:.0f} {trials} {best} */ "
        self.run("SELECT 1", True)

    def _tell(self, quiet: bool) -> None:
        notices = self.session.connection.notices
        while notices:
            match = NOTICE.match(notices.pop(0).strip())
            if match is None or quiet:
                continue
            level, text = match[1], match[2].split("\nCONTEXT:")[0]
            message, _, hint = text.partition("\nHINT:")
            message, _, detail = message.partition("\nDETAIL:")
            tell = self.db.warning if level == "WARNING" else self.db.notice
            if level == "INFO":
                self.db.info(text)
            else:
                tell(message.strip(), detail.strip() or None, hint.strip() or None)

    def finish(self, sql: str) -> None:
        """Run a last statement after a failure; a cancel does not stop it."""
        try:
            self.session.begin(f"{self.session.clean_sql()}{sql}")
        except SessionLost:
            return
        self._await_end(FINISH_SECONDS)

    def _check_locks(self) -> None:
        """Raises MopError where the statement waits for the caller's transaction, which waits for the statement."""
        if self.db.value("SELECT pg_backend_pid() = ANY (pg_blocking_pids($1))", ["integer"], [self.session.pid]):
            raise MopError(
                "a step waits for a lock that this transaction itself holds",
                detail=OWN_SESSION,
                hint="COMMIT;",
                sqlstate="55006",
            )

    def _stop(self) -> None:
        self.session.cancel()
        self._await_end(END_SECONDS)

    def _await_end(self, seconds: int) -> None:
        try:
            for _ in range(seconds * 10):
                if sessions.wait([self.session], lambda: None):
                    return
        except (psycopg2.Error, SessionLost):
            pass
