"""A long call: in a thread and a connection of its own, with a progress bar, ended by Ctrl-C."""

import contextlib
import threading
import warnings

from sqlalchemy import text
from sqlalchemy.exc import PendingRollbackError, ResourceClosedError, SQLAlchemyError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # (a notebook without ipywidgets has a bar of text, which is no problem)
    from tqdm.auto import tqdm

from pg_mop_client.database import plain, quote, told
from pg_mop_client.errors import LostError, ServerError
from pg_mop_client.watching import Watcher, this_call

LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 10  # for a call that was cancelled


class Calls:
    """The session that calls: one connection, so that its worker sessions and trainers stay warm from call to call."""

    def __init__(self, engine, schema, settings):
        self.engine, self.schema, self.settings = engine, schema, dict(settings)
        self._connection, self._transacts = None, False
        self.last_run = None  # the number of the run of the last call that trained

    def connection(self):
        """The connection; a new one, with the same settings, where it was lost, but for within a transaction."""
        if self._transacts:
            return self._connection
        if self._connection is not None:
            try:
                with told():
                    self._connection.execute(text("SELECT 1"))
            except (LostError, PendingRollbackError, ResourceClosedError):
                with contextlib.suppress(LostError), told():
                    self._connection.close()
                self._connection = None
        if self._connection is None:
            with told():
                self._connection = self.engine.connect()
            self._set(self.settings)
        return self._connection

    def set(self, **settings):
        """Set pg_mop's settings, by their names without `pg_mop.`, for the calls to come; None: the default. Raises
        ServerError for an unknown name or a bad value, and leaves all as they were."""
        self.connection()
        try:
            self._set(settings)
        except ServerError:
            self._set({name: self.settings.get(name) for name in settings})
            raise
        self.settings.update(settings)

    @told()
    def _set(self, settings):
        for name, value in settings.items():
            if value is None:
                self._connection.execute(text(f"RESET pg_mop.{plain(quote(name))}"))
            else:
                self._connection.execute(
                    text("SELECT pg_catalog.set_config('pg_mop.' || :name, :value, false)"),
                    {"name": name, "value": _written(value)},
                )
        if settings:  # (what is wrong is said now, not by a call that has come far)
            self._connection.execute(text(f"SELECT count(*) FROM {plain(quote(self.schema))}.mop_settings()"))

    @contextlib.contextmanager
    def transaction(self):
        """What is done within is there at the end, or by an error not at all. Gives the connection."""
        connection, self._transacts = self.connection(), True
        try:
            with told():
                connection.execute(text("BEGIN"))
            yield connection
            with told():
                connection.execute(text("COMMIT"))
        except BaseException:
            try:
                connection.execute(text("ROLLBACK"))
            except SQLAlchemyError:  # it is lost, and all that was done in it
                with contextlib.suppress(SQLAlchemyError):
                    connection.close()
                self._connection = None
            raise
        finally:
            self._transacts = False

    def close(self):
        """End the session, and with it its worker sessions."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def execute(self, statement, values):
        """The result of a statement. Ctrl-C cancels it."""
        work = _Work(self.connection(), statement, values)
        try:
            while not work.ended.wait(LOOK_SECONDS):  # (where a wait without end does not hear it)
                pass
        except KeyboardInterrupt:
            work.cancel()
            raise
        return work.result()

    def watched(self, statement, values, progress=True):
        """Carry out a call that trains; returns the number of its run, None where it was not found.

        Ctrl-C cancels it: the server ends it within two seconds, the run can be resumed, and KeyboardInterrupt is
        raised. Raises what the call raises.
        """
        connection = self.connection()
        call = this_call(connection)
        watcher = Watcher(self.engine, self.schema)
        work = _Work(connection, statement, values)
        try:
            with _Bar(progress) as bar:
                while not work.ended.wait(LOOK_SECONDS if bar.run_id is None else watcher.rest):
                    bar.show(watcher, call)
                # (the second time by a new connection, where it was lost)
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
                print("The call had ended already.")
            elif run_id is not None:
                print(
                    f"Cancelled. Every unit that has ended is kept: mop_resume({run_id}), or the same call again, "
                    f"goes on with run {run_id}."
                )
            raise
        finally:
            watcher.close()

    @staticmethod
    def _lost(error, run_id):
        """The error of a call whose connection was lost, with what there is to do."""
        if run_id is not None:
            error.hint = f"run({run_id}).info.status tells of the run, and mop_resume({run_id}) goes on with it."
            error.args = (f"{error.message}\nHINT: {error.hint}",)
        return error


class _Work:
    """A statement that is carried out in a thread, so that Ctrl-C is heard meanwhile. `ended`: an Event (a join that
    Ctrl-C interrupts forgets that the thread goes on); `error`: what it raised, or None."""

    def __init__(self, connection, statement, values):
        self.connection, self.statement, self.values = connection, statement, values
        self.ended, self.error, self._result = threading.Event(), None, None
        self._driver = connection.connection.dbapi_connection
        threading.Thread(target=self._work, daemon=True, name="pg_mop call").start()

    def _work(self):
        try:
            with told():
                self._result = self.connection.execute(text(self.statement), self.values)
        except BaseException as error:  # raised where the call was made
            self.error = error
        finally:
            self.ended.set()

    def cancel(self):
        """Have the server end it, and wait for that a while."""
        self._driver.cancel()
        self.ended.wait(PATIENCE_SECONDS)

    def result(self):
        """What it gave. Raises what it raised."""
        if self.error is not None:
            raise self.error
        return self._result


class _Bar:
    """tqdm's bar over the units of a run."""

    def __init__(self, wanted):
        self.run_id, self.bar, self.wanted = None, None, wanted

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.close()

    def show(self, watcher, call):
        """Look at the run and draw it; what goes wrong with looking is no error of the call."""
        if not self.wanted:
            return
        now = None
        with contextlib.suppress(ServerError):
            if self.run_id is None:
                self.run_id = watcher.run_of(call)
            now = watcher.look(self.run_id) if self.run_id is not None else None
        if now is None:
            if self.bar is not None and not watcher.is_connected:
                self.bar.set_postfix_str("the connection that looks is lost: trying again")
            return
        if self.bar is None:
            self.bar = tqdm(
                total=now.units_total,
                unit="unit",
                desc=f"run {self.run_id}",
                bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]",
            )
        if self.bar.total != now.units_total and hasattr(self.bar, "container"):  # (a search's grows, the widget's not)
            self.bar.container.children[1].max = now.units_total
        # (of one that is taken over whole from an earlier run there is nothing to do)
        over = not now.units_total and now.run.status == "finished"
        self.bar.total, self.bar.n = (1, 1) if over else (now.units_total, now.units_done)
        self.bar.set_postfix_str(now.told)


def _written(value):
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
