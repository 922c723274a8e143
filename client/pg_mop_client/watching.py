"""The progress of a run, read on a separate connection, for a small share of the time."""

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlalchemy import text

from pg_mop_client.database import driver_errors, plain, quote, without_jit
from pg_mop_client.errors import LostError

SHARE = 0.02  # of the time goes into queries for progress
LEAST_SECONDS = 1.0
MOST_SECONDS = 60.0  # a query that took long, perhaps because the machine stood still, is asked again after a minute
SLOW_SHARE = 0.2  # of the time goes at most into queries that take longer


def rest(took: float) -> float:
    """The seconds until a query that took so many seconds is asked again."""
    return min(max(MOST_SECONDS, took / SLOW_SHARE), max(LEAST_SECONDS, took / SHARE))


def has_failed(configuration: Any) -> bool:
    """True if the configuration itself has failed: it has no units left.

    (If the session of a run ends, mop_progress reports all unfinished configurations as failed, too.)
    """
    return configuration.status == "failed" and configuration.units_done == configuration.units_total


@dataclass
class Look:
    """The state of a run at a moment.

    `run`: its row of mop_runs. `configurations`: its rows of mop_progress. `sessions`: one row for each busy worker
    session. `told`: its summary (mop_report's 'summary'), with the ranks of the page; None where nobody asked for it.
    """

    run: Any
    configurations: list[Any]
    sessions: list[Any]
    told: dict[str, Any] | None = None

    @property
    def units_done(self) -> int:
        return sum(c.units_done for c in self.configurations)

    @property
    def units_total(self) -> int:
        return sum(c.units_total for c in self.configurations)

    @property
    def best(self) -> Any:
        """The configuration with the least loss so far, or None."""
        losses = [c for c in self.configurations if c.last_loss is not None and not has_failed(c)]
        return min(losses, key=lambda c: c.last_loss, default=None)

    @property
    def seconds_left(self) -> float | None:
        return next((c.seconds_left for c in self.configurations if c.seconds_left is not None), None)

    @property
    def results(self) -> list[str]:
        """The best result and the number of failed configurations, as texts: of a summary the best by the run's measure, else
        the best loss of a unit."""
        said = []
        best = self.told["summary"]["best"] if self.told is not None else None
        if best is not None:
            said.append(f"best {printable(best['series'])} {best['value']:.4g} ({best['mst_key']})")
        elif self.best is not None:
            said.append(f"best unit loss {self.best.last_loss:.4g} ({self.best.mst_key})")
        if failed := sum(map(has_failed, self.configurations)):
            said.append(f"{failed} failed")
        return said

    @property
    def summary(self) -> str:
        """The best result, the number of failed configurations, and the remaining time, as text."""
        return ", ".join([*self.results, *([f"{duration(self.seconds_left)} left"] if self.seconds_left else [])])

    @property
    def ends_at(self) -> str:
        """The time of day at which the run will have ended, by this machine's clock; '' where that is unknown."""
        return "" if not self.seconds_left else time.strftime("%H:%M", time.localtime(time.time() + self.seconds_left))

    def ranked(self) -> list[tuple[Any, dict[str, Any]]]:
        """The configurations in the order of the page, each with what its summary tells of it ({}: nothing)."""
        known = {} if self.told is None else {c["mst_key"]: c for c in self.told["ranked"]}
        last = len(known) + 1
        pairs = [(c, known.get(c.mst_key, {})) for c in self.configurations]
        return sorted(
            pairs,
            key=lambda pair: (
                pair[1].get("rank", last),
                pair[0].last_loss is None,
                pair[0].last_loss or 0.0,
                pair[0].mst_key,
            ),
        )


@driver_errors()
def this_call(connection: sqlalchemy.Connection) -> Mapping[Any, Any]:
    """The process ID and start of a session, and the present time: they identify the run of the session's next call."""
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
    """Reads the progress of runs, and restores a lost connection.

    `lost` counts the lost connections. `rest` is the number of seconds to wait before the next query.
    """

    def __init__(self, engine: sqlalchemy.Engine, schema: str) -> None:
        self.engine, self.schema = engine, plain(quote(schema))
        self.lost, self.rest, self.is_connected = 0, LEAST_SECONDS, True
        self._connection: sqlalchemy.Connection | None = None
        # the last summary: of which run, itself, when to read the next one, and how many this connection has read
        self._told: tuple[int, dict[str, Any] | None] = (0, None)
        self._told_at, self._summaries = 0.0, 0

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(LostError), driver_errors():
                self._connection.close()
            self._connection = None

    def run_of(self, call: Mapping[Any, Any]) -> int | None:
        """The number of the run that a call executes or has ended; None without a run, or if the connection is lost.

        `call`: the result of `this_call`.
        """
        rows = self._rows(
            f"SELECT run_id FROM {self.schema}.mop_run WHERE coordinator_pid = :pid "
            f"AND coordinator_start = :start AND coalesce(finished_at, 'infinity') >= :since "
            f"ORDER BY run_id DESC LIMIT 1",
            **call,
        )
        return rows[0].run_id if rows else None

    def steps_of(self, call: Mapping[Any, Any], name: str) -> Any:
        """The session in which mop_train executes its steps (api/tables/steps.py): pid, start, since, query; None without one.

        `call`: the result of `this_call`; `name`: of the model.
        """
        rows = self._rows(
            "SELECT pid, backend_start AS start, CAST(:since AS timestamptz) AS since, query "
            "FROM pg_catalog.pg_stat_activity WHERE usename = current_user AND backend_start >= :since "
            "AND left(application_name, 10) = 'mop_train ' "
            "ORDER BY application_name = left('mop_train ' || :name, 63) DESC, backend_start LIMIT 1",
            since=call["since"],
            name=name,
        )
        return rows[0] if rows else None

    def latest(self) -> int | None:
        """The number of the role's latest running run, else of its latest run; None if the role has no runs."""
        rows = self._rows(
            f"SELECT run_id FROM {self.schema}.mop_runs ORDER BY status = 'running' DESC, run_id DESC LIMIT 1"
        )
        return rows[0].run_id if rows else None

    def look(self, run_id: int, sessions: bool = False, summary: bool = False) -> Look | None:
        """The present state of a run; None if the connection is lost, or if the role sees no such run.

        `sessions`: read also the worker sessions. `summary`: read also the run's summary.
        """
        began = time.monotonic()
        run = self._rows(f"SELECT * FROM {self.schema}.mop_runs WHERE run_id = :run", run=run_id)
        if not run:
            return None
        configurations = self._rows(
            f"SELECT * FROM {self.schema}.mop_progress WHERE run_id = :run ORDER BY mst_key", run=run_id
        )
        work = (
            self._rows(
                # (a chain has units of several segments and iterations)
                f"SELECT server, backend_pid, kind, min(iteration) AS iteration, "
                f"array_to_string(array_agg(DISTINCT segment ORDER BY segment), ', ') AS segment, "
                f"min(mst_key) AS mst_key, count(DISTINCT mst_key) AS models, "
                f"extract(epoch FROM clock_timestamp() - min(started_at))::float8 AS seconds "
                f"FROM {self.schema}.mop_units WHERE run_id = :run AND status = 'running' "
                f"GROUP BY server, backend_pid, kind, started_at ORDER BY 1 NULLS FIRST, 2",
                run=run_id,
            )
            if sessions
            else []
        )
        self.rest = rest(time.monotonic() - began)
        if configurations is None or work is None or summary and not self._tell(run_id, run[0].status):
            return None
        return Look(run[0], configurations, work, self._told[1] if summary else None)

    def _tell(self, run_id: int, status: str) -> bool:
        """Read the summary of a run, if the last one is old enough; False if the connection is lost."""
        known, _ = self._told
        if known == run_id and status == "running" and time.monotonic() < self._told_at:
            return True
        began = time.monotonic()
        rows = self._rows(f"SELECT {self.schema}.mop_report(:run, 'summary')", run=run_id)
        if rows is None:
            return False
        self._told, self._summaries = (run_id, json.loads(rows[0][0])), self._summaries + 1
        took = time.monotonic() - began
        # (the first one also loads the extension's Python into the session)
        self._told_at = time.monotonic() + rest(took if self._summaries > 1 else 0.0)
        return True

    def _rows(self, sql: str, **values: Any) -> list[Any] | None:
        """The rows of a query; None if the connection is lost."""
        try:
            with driver_errors():
                if self._connection is None:
                    self._connection = self.engine.connect()
                    self._summaries = 0
                    without_jit(self._connection)
                rows = self._connection.execute(text(sql), values).all()
            self.is_connected = True
            return list(rows)
        except LostError:
            if self.is_connected:
                self.lost += 1
            self.is_connected = False
            self.close()
            return None


def printable(value: object) -> str:
    """A text for a terminal: unprintable characters, except line breaks and tabs, become U+FFFD."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(value))


def duration(seconds: float | None) -> str:
    """A readable duration: 4 s, 3:20, 2:01:00; '' for None."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
