"""The live page's queries. All tabs share them, and they take a small share of the time, so that runs do not slow down."""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import sqlalchemy
from sqlalchemy import text

from pg_mop_client.database import connected, plain, quote
from pg_mop_client.errors import ClientError
from pg_mop_client.watching import LEAST_SECONDS, SHARE

MOST_RUNS = 8  # runs with data in memory
HURRY_SECONDS = 10  # after an action, queries may be frequent
MOST_FILTERS = 4  # filters with data in memory, for each run
RUNS_PER_PAGE = 50
MOST_MODELS = 500
SHOWN_MEASURES = ("accuracy", "auc", "r2", "rmse")  # in the list of models


class Snapshot:
    """The last known state of a run.

    `head`: its progress. `data`: mop_report's data. `number`: the version of `data`, unique among all snapshots.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.head: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        self.state: tuple[Any, ...] | None = None
        self.some: dict[tuple[int, tuple[int, ...]], dict[str, Any]] = {}  # (number, mst_keys) -> data of these alone
        self.number, self.looks_at, self.reads_at = time.time_ns(), 0.0, 0.0
        self.hurries_until = 0.0


class Snapshots:
    """The runs that the role of `engine` sees."""

    def __init__(self, engine: sqlalchemy.Engine, schema: str) -> None:
        self.engine, self.schema = engine, plain(quote(schema))
        self._runs: OrderedDict[int, Snapshot] = OrderedDict()
        self._lock = threading.Lock()
        self._list: dict[Hashable, tuple[float, dict[str, Any]]] = {}
        self._listing = threading.Lock()

    def runs(self, page: int) -> dict[str, Any]:
        """A page of the role's runs, the latest first: {'runs', 'page', 'pages', 'count'}."""
        return self._shared(page, lambda connection: self._runs_of(connection, page))

    def models(self) -> dict[str, Any]:
        """The named models that the role may read, with the version in use of each: {'models', 'more'}."""
        return self._shared("models", self._models)

    def model(self, name: str, version: int | None) -> dict[str, Any]:
        """The data that are stored with a named model (mop_model_report). Raises ClientError."""
        return self._shared((name, version), lambda connection: self.measured(connection, name, version, None))

    def measured(
        self, connection: sqlalchemy.Connection, name: str, version: int | None, source: str | None
    ) -> dict[str, Any]:
        """The report's data of a named model on the rows of a source; None: what is stored."""
        return json.loads(
            connection.execute(
                text(f"SELECT {self.schema}.mop_model_report(:name, :source, 'json', :version)"),
                {"name": name, "source": source, "version": version},
            ).scalar_one()
        )

    def _shared(self, key: Hashable, query: Callable[[sqlalchemy.Connection], dict[str, Any]]) -> dict[str, Any]:
        """The result of a query, executed again after a while."""
        with self._listing:
            until, found = self._list.get(key, (0.0, {}))
            if time.monotonic() < until:
                return found
            began = time.monotonic()
            with connected(self.engine) as connection:
                found = query(connection)
            self._list = {k: kept for k, kept in self._list.items() if kept[0] > began}  # drops outdated results
            self._list[key] = self._after(began), found
            return found

    def _runs_of(self, connection: sqlalchemy.Connection, page: int) -> dict[str, Any]:
        count = connection.execute(text(f"SELECT count(*) FROM {self.schema}.mop_runs")).scalar_one()
        pages = max(1, -(-count // RUNS_PER_PAGE))
        rows = (
            connection.execute(
                text(
                    f"SELECT run_id, status, function, model_output_table, configurations, num_iterations, owner, "
                    f"CAST(date_trunc('second', started_at) AS text) AS started_at, "
                    f"CAST(extract(epoch FROM coalesce(finished_at, CASE status WHEN 'running' THEN clock_timestamp() "
                    f"END) - started_at) AS float8) AS seconds, left(error, 300) AS error "
                    f"FROM {self.schema}.mop_runs ORDER BY run_id DESC LIMIT {RUNS_PER_PAGE} OFFSET :skipped"
                ),
                {"skipped": (min(page, pages) - 1) * RUNS_PER_PAGE},
            )
            .mappings()
            .all()
        )
        return {"runs": [dict(row) for row in rows], "page": min(page, pages), "pages": pages, "count": count}

    def _models(self, connection: sqlalchemy.Connection) -> dict[str, Any]:
        rows = (
            connection.execute(
                text(
                    f"SELECT DISTINCT ON (name) name, version, in_use, target, kind, owner, "
                    f"CASE WHEN length(CAST(metrics AS text)) < 10000 THEN metrics END AS metrics, "
                    f"left(description, 300) AS description, CAST(date_trunc('second', created) AS text) AS created, "
                    f"count(*) OVER (PARTITION BY name) AS versions "
                    f"FROM {self.schema}.mop_models ORDER BY name, in_use DESC, version DESC LIMIT {MOST_MODELS + 1}"
                )
            )
            .mappings()
            .all()
        )
        found = []
        for row in rows[:MOST_MODELS]:
            metrics = row["metrics"] if isinstance(row["metrics"], dict) else {}
            measures = {name: v for name in SHOWN_MEASURES if isinstance(v := metrics.get(name), (int, float))}
            found.append({**row, "metrics": measures})
        return {"models": found, "more": len(rows) > MOST_MODELS}

    def run(self, run_id: int) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """(number, head, data) of a run. Raises ClientError if the role sees no such run."""
        snapshot = self._snapshot(run_id)
        with snapshot.lock:
            if time.monotonic() >= snapshot.looks_at:
                try:
                    self._look(run_id, snapshot)
                except ClientError:
                    with self._lock:
                        self._runs.pop(run_id, None)
                    raise
            return snapshot.number, snapshot.head, snapshot.data

    def some(self, run_id: int, keys: list[int]) -> dict[str, Any]:
        """The data of some configurations (a list of mst_key) of a run, as of the last call of `run`."""
        snapshot = self._snapshot(run_id)
        with snapshot.lock:
            kept = snapshot.number, tuple(keys)
            if kept not in snapshot.some:
                began = time.monotonic()
                with connected(self.engine) as connection:
                    found = self._report(connection, run_id, keys)
                # (the times of all filters count together)
                snapshot.reads_at = max(snapshot.reads_at, time.monotonic()) + (time.monotonic() - began) / SHARE
                snapshot.some = {**dict([*snapshot.some.items()][-MOST_FILTERS + 1 :]), kept: found}
            return snapshot.some[kept]

    def _snapshot(self, run_id: int) -> Snapshot:
        with self._lock:
            snapshot = self._runs.setdefault(run_id, Snapshot())
            self._runs.move_to_end(run_id)
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)
            return snapshot

    def _report(self, connection: sqlalchemy.Connection, run_id: int, keys: list[int] | None = None) -> dict[str, Any]:
        return json.loads(
            connection.execute(
                text(f"SELECT {self.schema}.mop_report(:run, 'json', CAST(:keys AS integer[]))"),
                {"run": run_id, "keys": keys},
            ).scalar_one()
        )

    def forget(self, run_id: int) -> None:
        """After an action: discard the state of a run, and for HURRY_SECONDS query it at every request."""
        snapshot = self._snapshot(run_id)
        with snapshot.lock:
            snapshot.looks_at, snapshot.state, snapshot.hurries_until = 0.0, None, time.monotonic() + HURRY_SECONDS
        self._list = {}

    def _look(self, run_id: int, snapshot: Snapshot) -> None:
        """Update the snapshot's head and, at most once in a while, its data. Raises ClientError."""
        began = time.monotonic()
        with connected(self.engine) as connection:
            row = (
                connection.execute(
                    text(
                        f"SELECT r.status, r.error, CAST(r.finished_at AS text) AS finished_at, p.* "
                        f"FROM {self.schema}.mop_runs r CROSS JOIN LATERAL ("
                        f"SELECT CAST(sum(units_done) AS bigint) AS done, CAST(sum(units_total) AS bigint) AS total, "
                        f"max(seconds_left) AS seconds_left, "
                        f"max(seconds_elapsed) AS seconds FROM {self.schema}.mop_progress g WHERE g.run_id = :run) p "
                        f"WHERE r.run_id = :run"
                    ),
                    {"run": run_id},
                )
                .mappings()
                .one_or_none()
            )
            if row is None:
                raise ClientError(
                    f"there is no run {run_id} that the role may see", hint="The list of runs has all visible runs."
                )
            head = dict(row)
            snapshot.looks_at = began if began < snapshot.hurries_until else self._after(began)
            state = head["status"], head["finished_at"], head["done"]
            seen = snapshot.state
            if seen is None or state[:2] != seen[:2] or state != seen and time.monotonic() >= snapshot.reads_at:
                began = time.monotonic()
                snapshot.data = self._report(connection, run_id)
                # (the first query also loads the extension's Python into the session)
                snapshot.reads_at = self._after(began) if seen else time.monotonic() + LEAST_SECONDS
                # (the state from before the data: the next query sees later changes)
                snapshot.state, snapshot.number = state, snapshot.number + 1
            snapshot.head = head

    @staticmethod
    def _after(began: float) -> float:
        """The time of the next query, so that queries take at most a fiftieth of the time."""
        return time.monotonic() + max(LEAST_SECONDS, (time.monotonic() - began) / SHARE)
