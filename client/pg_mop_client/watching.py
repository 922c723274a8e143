"""Looking at a run while it goes on, by a connection of its own, seldom enough to cost it nothing."""

import contextlib
import time
from dataclasses import dataclass

from sqlalchemy import text

from pg_mop_client.database import plain, quote, told
from pg_mop_client.errors import LostError

SHARE = 0.02  # of the time at most is spent on looking
LEAST_SECONDS = 1.0


def has_failed(configuration):
    """True where it has failed for itself: it has nothing left to do. (Of a run whose session was ended all are told as
    failed that had something left.)"""
    return configuration.status == "failed" and configuration.units_done == configuration.units_total


@dataclass
class Look:
    """A run at a time. `configurations`, `sessions`: rows of what they do."""

    run: object
    configurations: list
    sessions: list

    @property
    def units_done(self):
        return sum(c.units_done for c in self.configurations)

    @property
    def units_total(self):
        return sum(c.units_total for c in self.configurations)

    @property
    def best(self):
        """The configuration of the least loss so far, or None."""
        losses = [c for c in self.configurations if c.last_loss is not None and not has_failed(c)]
        return min(losses, key=lambda c: c.last_loss, default=None)

    @property
    def seconds_left(self):
        return next((c.seconds_left for c in self.configurations if c.seconds_left is not None), None)

    @property
    def told(self):
        """Best loss and time left, and how many have failed."""
        said = []
        if self.best is not None:
            said.append(f"best unit loss {self.best.last_loss:.4g} ({self.best.mst_key})")
        if failed := sum(map(has_failed, self.configurations)):
            said.append(f"{failed} failed")
        if self.seconds_left:
            said.append(f"{duration(self.seconds_left)} left")
        return ", ".join(said)


@told()
def this_call(connection):
    """What tells the run of the call that a session is about to make from all others."""
    return (
        connection.execute(
            text(
                "SELECT pid, backend_start AS start, clock_timestamp() AS since FROM pg_catalog.pg_stat_activity "
                "WHERE pid = pg_catalog.pg_backend_pid()"
            )
        )
        .mappings()
        .one()
    )


class Watcher:
    """Looks at runs. A connection that is lost is made again: `lost` counts how often, and `rest` is how long to wait
    until the next look."""

    def __init__(self, engine, schema):
        self.engine, self.schema = engine, plain(quote(schema))
        self.lost, self.rest, self.is_connected = 0, LEAST_SECONDS, True
        self._connection = None

    def close(self):
        if self._connection is not None:
            with contextlib.suppress(LostError), told():
                self._connection.close()
            self._connection = None

    def run_of(self, call):
        """The number of the run that a call is at, or has ended; None where there is none, or the connection is lost.

        `call`: its session's pid and start, and since when it has gone on (as `this_call` gives them)."""
        rows = self._rows(
            f"SELECT run_id FROM {self.schema}.mop_run WHERE coordinator_pid = :pid "
            f"AND coordinator_start = :start AND coalesce(finished_at, 'infinity') >= :since "
            f"ORDER BY run_id DESC LIMIT 1",
            **call,
        )
        return rows[0].run_id if rows else None

    def latest(self):
        """The number of the role's latest run that goes on, else of its latest; None where it has none."""
        rows = self._rows(
            f"SELECT run_id FROM {self.schema}.mop_runs ORDER BY status = 'running' DESC, run_id DESC LIMIT 1"
        )
        return rows[0].run_id if rows else None

    def look(self, run_id, sessions=False):
        """A Look at a run; None where the connection is lost, or the role may see no such run."""
        began = time.monotonic()
        run = self._rows(f"SELECT * FROM {self.schema}.mop_runs WHERE run_id = :run", run=run_id)
        if not run:
            return None
        configurations = self._rows(
            f"SELECT * FROM {self.schema}.mop_progress WHERE run_id = :run ORDER BY mst_key", run=run_id
        )
        work = (
            self._rows(
                f"SELECT backend_pid, kind, iteration, segment, min(mst_key) AS mst_key, count(*) AS models, "
                f"extract(epoch FROM clock_timestamp() - min(started_at))::float8 AS seconds "
                f"FROM {self.schema}.mop_units WHERE run_id = :run AND status = 'running' "
                f"GROUP BY 1, 2, 3, 4 ORDER BY 1",
                run=run_id,
            )
            if sessions
            else []
        )
        self.rest = max(LEAST_SECONDS, (time.monotonic() - began) / SHARE)
        return None if configurations is None or work is None else Look(run[0], configurations, work)

    def _rows(self, sql, **values):
        """The rows of a query; None where the connection is lost."""
        try:
            with told():
                if self._connection is None:
                    self._connection = self.engine.connect()
                rows = self._connection.execute(text(sql), values).all()
            self.is_connected = True
            return rows
        except LostError:
            if self.is_connected:
                self.lost += 1
            self.is_connected = False
            self.close()
            return None


def printable(value):
    """A name or a message as a terminal may have it: what is no letter, but the ends of lines, is shown as such."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(value))


def duration(seconds):
    """Seconds for people: 4 s, 3:20, 2:01:00."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
