"""A long call: it runs in its own thread and connection, shows a progress bar, and ends on Ctrl-C."""

import contextlib
import re
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import sqlalchemy
from sqlalchemy import text
from sqlalchemy.exc import PendingRollbackError, ResourceClosedError, SQLAlchemyError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # (without ipywidgets, a notebook shows a bar of text)
    from tqdm.auto import tqdm

from pg_mop_client.database import driver_errors, plain, quote
from pg_mop_client.errors import LostError, ServerError
from pg_mop_client.watching import LEAST_SECONDS, Look, Watcher, duration, printable, this_call

LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 10  # for a cancelled call to end
# the comment in which the session of the steps names the present step (api/tables/steps.py)
TOLD = re.compile(r"^/\* mop_train \d+ (\w+) ")
STEP = re.compile(r"\bmop_(split|pack|architecture|search)\(|\b(load_keras_model)\(")
TRAINED = {
    "linear": "trains linear models",
    "boosting": "trains boosted trees",
    "mlp": "trains perceptrons",
    "folds": "lets all rows choose",
    "refit": "trains again",
    "final": "trains again",
}
# the words for each step of mop_train
STEPS = {
    "split": "splits",
    "pack": "packs",
    "architecture": "makes nets",
    "load_keras_model": "makes nets",
    "search": "trains",
}


class Calls:
    """The session that makes all calls. It is one connection, so settings last from call to call.

    `last_run`: the number of the run of the last training call. `messages`: what the server said during the last call of
    mop_train or mop_retrain: texts that begin with NOTICE or WARNING.
    """

    def __init__(self, engine: sqlalchemy.Engine, schema: str, settings: Mapping[str, Any]) -> None:
        self.engine, self.schema, self.settings = engine, schema, dict(settings)
        self._connection: sqlalchemy.Connection | None = None
        self._transacts = False
        self.last_run: int | None = None
        self.messages: list[str] = []

    def connection(self) -> sqlalchemy.Connection:
        """The connection. A lost one is replaced by a new one with the same settings, except within a transaction."""
        connection = self._connection
        if connection is not None and self._transacts:
            return connection
        if connection is not None:
            try:
                with driver_errors():
                    connection.execute(text("SELECT 1"))
            except (LostError, PendingRollbackError, ResourceClosedError):
                with contextlib.suppress(LostError), driver_errors():
                    connection.close()
                connection = self._connection = None
        if connection is None:
            with driver_errors():
                connection = self._connection = self.engine.connect()
            self._set(connection, self.settings)
        return connection

    def set(self, **settings: Any) -> None:
        """Set pg_mop's settings for later calls; names are without `pg_mop.`, and None is the default value.

        Raises ServerError for an unknown name or a bad value, and then changes nothing.
        """
        connection = self.connection()
        try:
            self._set(connection, settings)
        except ServerError:
            self._set(connection, {name: self.settings.get(name) for name in settings})
            raise
        self.settings.update(settings)

    @driver_errors()
    def _set(self, connection: sqlalchemy.Connection, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            if value is None:
                connection.execute(text(f"RESET pg_mop.{plain(quote(name))}"))
            else:
                connection.execute(
                    text("SELECT pg_catalog.set_config('pg_mop.' || :name, :value, false)"),
                    {"name": name, "value": _written(value)},
                )
        if settings:  # (reports a bad value now, instead of in the middle of a call)
            connection.execute(text(f"SELECT count(*) FROM {plain(quote(self.schema))}.mop_settings()"))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlalchemy.Connection]:
        """A transaction for a `with` block, which gets the connection. It commits at the end, or rolls back on an error."""
        connection, self._transacts = self.connection(), True
        try:
            with driver_errors():
                connection.execute(text("BEGIN"))
            yield connection
            with driver_errors():
                connection.execute(text("COMMIT"))
        except BaseException:
            try:
                connection.execute(text("ROLLBACK"))
            except SQLAlchemyError:  # the connection is lost, and the transaction with it
                with contextlib.suppress(SQLAlchemyError):
                    connection.close()
                self._connection = None
            raise
        finally:
            self._transacts = False

    def close(self) -> None:
        """End the session, and thereby its worker sessions."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def execute(self, statement: str, values: Mapping[str, Any]) -> sqlalchemy.CursorResult[Any]:
        """The result of a statement. Ctrl-C cancels the statement."""
        work = _Work(self.connection(), statement, values)
        try:
            while not work.ended.wait(LOOK_SECONDS):  # (Ctrl-C does not interrupt a wait without a time limit)
                pass
        except KeyboardInterrupt:
            work.cancel()
            raise
        return work.result()

    def watched(self, statement: str, values: Mapping[str, Any], progress: bool = True) -> int | None:
        """Execute a training call. Returns the number of its run, or None if no run was found.

        Ctrl-C cancels the call: the server ends it, the run can be resumed, and KeyboardInterrupt is raised. Raises the
        errors of the call.
        """
        connection = self.connection()
        call = this_call(connection)
        watcher = Watcher(self.engine, self.schema)
        work = _Work(connection, statement, values)
        try:
            with _Bar(progress) as bar:
                while not work.ended.wait(LOOK_SECONDS if bar.run_id is None else watcher.rest):
                    bar.show(watcher, call)
                # (the second time on a new connection, if the first was lost)
                run_id = bar.run_id or watcher.run_of(call) or watcher.run_of(call)
                self.last_run = run_id or self.last_run
                try:
                    work.result()
                except LostError as error:
                    raise self._lost(error, run_id) from None
                bar.show(watcher, call)
                return run_id
        except KeyboardInterrupt:
            work.cancel()
            run_id = watcher.run_of(call)
            self.last_run = run_id or self.last_run
            if work.ended.is_set() and work.error is None:
                print("The call had already ended.")
            elif run_id is not None:
                print(
                    f"Cancelled. All finished units are kept. mop_resume({run_id}), or the same call again, "
                    f"continues run {run_id}."
                )
            raise
        finally:
            watcher.close()

    def trained(
        self, statement: str, values: Mapping[str, Any], name: str, time_limit: Any = None, progress: bool = True
    ) -> Any:
        """The value of a call of mop_train or mop_retrain. Ctrl-C cancels it; the server then drops the tables of its steps.

        `name`: of the model. `time_limit`: an interval; None: not known. With `progress`, a bar shows the steps and, after
        the call, its messages are printed: psycopg2 has them only then. Raises the errors of the call.
        """
        connection = self.connection()
        call = this_call(connection)
        limit = self._seconds(connection, time_limit)
        driver: Any = connection.connection.dbapi_connection
        before, driver.notices = driver.notices, (said := _Messages())
        watcher = Watcher(self.engine, self.schema)
        work = _Work(connection, statement, values)
        try:
            with _TrainingBar(progress, name, limit) as bar:
                while not work.ended.wait(LEAST_SECONDS / 2 if bar.run_id is None else watcher.rest):
                    bar.show(watcher, call)
                if work.error is None:
                    bar.finish()
            return work.result().scalar()
        except KeyboardInterrupt:
            work.cancel()
            print("Cancelled. What the steps have made is dropped.")
            raise
        finally:
            watcher.close()
            driver.notices, self.messages = before, said.messages
            if progress:
                for message in self.messages:
                    print(printable(message))

    @staticmethod
    def _seconds(connection: sqlalchemy.Connection, interval: Any) -> float | None:
        """The seconds of an SQL interval; None for any other text (the call itself reports it)."""
        if interval is None:
            return None
        with contextlib.suppress(ServerError), driver_errors():
            return float(
                connection.execute(
                    text("SELECT extract(epoch FROM CAST(:i AS interval))"), {"i": interval}
                ).scalar_one()
            )
        return None

    @staticmethod
    def _lost(error: LostError, run_id: int | None) -> LostError:
        """Add a hint about the run to the error of a call that lost its connection."""
        if run_id is not None:
            error.hint = f"run({run_id}).info.status shows the state of the run, and mop_resume({run_id}) continues it."
            error.args = (f"{error.message}\nHINT: {error.hint}",)
        return error


class _Work:
    """A statement that runs in a thread, so that the main thread receives Ctrl-C.

    `ended`: an Event (after Ctrl-C has interrupted Thread.join, a second join returns at once). `error`: the
    statement's exception, or None.
    """

    def __init__(self, connection: sqlalchemy.Connection, statement: str, values: Mapping[str, Any]) -> None:
        self.connection, self.statement, self.values = connection, statement, values
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._result: Any = None
        self._driver: Any = connection.connection.dbapi_connection
        threading.Thread(target=self._work, daemon=True, name="pg_mop call").start()

    def _work(self) -> None:
        try:
            with driver_errors():
                self._result = self.connection.execute(text(self.statement), dict(self.values))
        except BaseException as error:  # result() raises it in the caller's thread
            self.error = error
        finally:
            self.ended.set()

    def cancel(self) -> None:
        """Cancel the statement on the server, and wait up to PATIENCE_SECONDS for its end."""
        self._driver.cancel()
        self.ended.wait(PATIENCE_SECONDS)

    def result(self) -> Any:
        """The statement's result. Raises the statement's exception."""
        if self.error is not None:
            raise self.error
        return self._result


class _Closed:
    """A context at whose end the `bar`, if there is one, is closed."""

    bar: Any = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()


class _Bar(_Closed):
    """tqdm's bar over the units of a run; `wanted` False: no bar."""

    def __init__(self, wanted: bool) -> None:
        self.run_id: int | None = None
        self.bar: Any = None
        self.wanted = wanted

    def __enter__(self) -> "_Bar":
        return self

    def show(self, watcher: Watcher, call: Mapping[Any, Any]) -> None:
        """Read the state of the run and draw it. Errors of reading are ignored, because they do not affect the call."""
        if not self.wanted:
            return
        now = None
        with contextlib.suppress(ServerError):
            if self.run_id is None:
                self.run_id = watcher.run_of(call)
            now = watcher.look(self.run_id) if self.run_id is not None else None
        if now is None:
            if self.bar is not None and not watcher.is_connected:
                self.bar.set_postfix_str("progress: connection lost, trying again")
            return
        if self.bar is None:
            self.bar = tqdm(
                total=now.units_total,
                unit="unit",
                desc=f"run {self.run_id}",
                bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]",
            )
        if self.bar.total != now.units_total and hasattr(self.bar, "container"):
            # (a search's total grows, and the notebook's widget does not follow by itself)
            self.bar.container.children[1].max = now.units_total
        # (a run that reuses all results of an earlier run has no units)
        over = not now.units_total and now.run.status == "finished"
        self.bar.total, self.bar.n = (1, 1) if over else (now.units_total, now.units_done)
        self.bar.set_postfix_str(now.summary)


class _TrainingBar(_Closed):
    """tqdm's bar over the time of mop_train; over the units of its search if the time limit (seconds) is None."""

    def __init__(self, wanted: bool, name: str, limit: float | None) -> None:
        self.wanted, self.name, self.limit = wanted, name, limit
        self.run_id: int | None = None
        self.steps: Any = None  # the last known row of Watcher.steps_of
        self.bar: Any = None
        self.began = time.monotonic()

    def __enter__(self) -> "_TrainingBar":
        if self.wanted:
            self.bar = tqdm(
                total=self.limit or 1,
                desc=self._said("begins"),
                bar_format="{desc}: {percentage:3.0f}%|{bar}| [{elapsed}{postfix}]",
            )
        return self

    def _said(self, step: str) -> str:
        return f"model {printable(self.name)} {step}"

    def show(self, watcher: Watcher, call: Mapping[str, Any]) -> None:
        """Read the present step and draw it. Errors of reading are ignored, because they do not affect the call."""
        if self.bar is None:
            return
        steps, now = None, None
        with contextlib.suppress(ServerError):
            steps = watcher.steps_of(call, self.name)
            if steps is not None and self.run_id is None:
                self.run_id = watcher.run_of({name: getattr(steps, name) for name in ("pid", "start", "since")})
            now = watcher.look(self.run_id) if self.run_id is not None else None
        if not watcher.is_connected:
            self.bar.set_postfix_str("progress: connection lost, trying again")
            return
        if steps is not None:
            self.steps = steps
            found = STEP.search(steps.query)
            told = TOLD.search(steps.query)
            if told and told[1] in TRAINED:
                self.bar.set_description_str(self._said(TRAINED[told[1]]), refresh=False)
            elif found:
                self.bar.set_description_str(self._said(STEPS[found[1] or found[2]]), refresh=False)
        elif self.steps is not None:  # (its session has ended: the call measures the winner and simple models)
            self.bar.set_description_str(self._said("is measured"), refresh=False)
        self._draw(now, steps is not None)

    def _draw(self, now: Look | None, steps: bool) -> None:
        elapsed = time.monotonic() - self.began
        said = [] if now is None else [f"{now.units_done} units", *now.results]
        left = now.seconds_left if now is not None and steps else None
        if self.limit is not None:
            rest = self.limit - elapsed
            self.bar.n = max(0.0, min(elapsed, self.limit))
            if rest > 0:  # (a search may end before its time; while it asks for more units, the estimate grows)
                about = f"about {duration(left)}, " if left and left < rest / 2 else ""
                said.append(f"{about}at most {duration(rest)} left")
        elif now is not None:
            self.bar.total, self.bar.n = now.units_total or 1, now.units_done
            if hasattr(self.bar, "container"):  # (the notebook's widget does not follow by itself)
                self.bar.container.children[1].max = self.bar.total
            said += [f"{duration(left)} left"] if left else []
        self.bar.set_postfix_str(", ".join(said))

    def finish(self) -> None:
        """Draw the end of a call that has succeeded."""
        if self.bar is not None:
            self.bar.n = self.bar.total
            self.bar.set_description_str(self._said("is trained"), refresh=False)
            self.bar.set_postfix_str("")


class _Messages:
    """Keeps the notices and warnings of a connection. It is no list, because SQLAlchemy empties lists of notices."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def append(self, message: str) -> None:
        """psycopg2 calls this for each message."""
        if message.startswith(("NOTICE", "WARNING")):
            self.messages.append(message.strip().split("\nCONTEXT:")[0].replace(":  ", ": ", 1))


def _written(value: Any) -> str:
    """A setting's value as SQL text."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
