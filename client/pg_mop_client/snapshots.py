"""The live page's queries. All tabs share them, and they take a small share of the time, so that runs do not slow down."""

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import sqlalchemy
from sqlalchemy import text

from pg_mop_client.database import connected, plain, quote, without_jit
from pg_mop_client.errors import ClientError, LostError
from pg_mop_client.watching import LEAST_SECONDS, MOST_SECONDS, rest

MOST_RUNS = 8  # runs with data in memory
HURRY_SECONDS = 10  # after an action, queries may be frequent
MANY_UNITS = 20_000  # of a run whose table is read first, and then the data of its pictures
MOST_FILTERS = 4  # filters with data in memory, for each run
# errors of a report that the server refuses, or whose answer is no JSON (NULL, of a run that was dropped meanwhile)
UNREADABLE = (ClientError, ValueError, TypeError)
SOON = 0.15  # seconds that a request waits for newer data; then it is answered with what is there
RUNS_PER_PAGE = 20
MOST_SUMMARIES = 2000  # runs with a summary in memory
SUMMARY_SHARE = 0.5  # of the time at most goes into first summaries of runs: each is read once after its end
ORDERS = {  # of the list of runs
    "run": "run_id",
    "status": "status",
    "models": "model_output_table",
    "function": "function",
    "configurations": "configurations",
    "begun": "started_at",
    "seconds": "seconds",
    "owner": "owner",
}
RUN_STATES = ("running", "finished", "failed", "cancelled")
MOST_MODELS = 500
SHOWN_MEASURES = ("accuracy", "auc", "r2", "rmse")  # in the list of models


class Snapshot:
    """The last known state of a run.

    `head`: its progress, as of `looked` (monotonic seconds). `data`: mop_report's data, which were those of the run at
    `right_at`, too (no unit has ended between their reading and that moment). `number`: the version of `data`, unique among
    all snapshots. `problem`: the error of the last look, if it failed.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held by the thread that reads
        self.head: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        self.state: tuple[Any, ...] | None = None
        self.some: dict[tuple[int, tuple[int, ...]], dict[str, Any]] = {}  # (number, mst_keys) -> data of these alone
        self.reading: set[tuple[int, tuple[int, ...]]] = set()  # that a thread reads now
        self.number, self.looks_at, self.reads_at = time.time_ns(), 0.0, 0.0
        self.looked, self.took = time.monotonic(), 0.0  # seconds of the last report
        self.right_at = self.looked
        self.hurries_until, self.acted_at = 0.0, 0.0
        self.problem: Exception | None = None
        self.whole = True  # the data of the pictures are there


class Snapshots:
    """The runs that the role of `engine` sees."""

    def __init__(self, engine: sqlalchemy.Engine, schema: str) -> None:
        self.engine, self.schema = engine, plain(quote(schema))
        self._runs: OrderedDict[int, Snapshot] = OrderedDict()
        self._lock = threading.Lock()
        self._list: dict[Hashable, tuple[float, dict[str, Any]]] = {}
        self._listing = threading.Lock()
        self.summaries = Summaries(engine, self.schema)

    def runs(
        self, page: int, words: str = "", state: str | None = None, order: str | None = None, descending: bool = True
    ) -> dict[str, Any]:
        """A page of the role's runs: {'runs', 'page', 'pages', 'count', 'schema', 'summaries', 'pending'}.

        `words`: texts that a run must have, each in one of its names or as its number; `state`: its status; `order`: a key of
        ORDERS. `pending` counts the runs whose summaries are still to be read. Raises ClientError.
        """
        if order is not None and order not in ORDERS:
            raise ClientError(f"runs have no order {order!r}", hint=f"The orders are {', '.join(ORDERS)}.")
        if state is not None and state not in RUN_STATES:
            raise ClientError(f"there is no state {state!r}", hint=f"The states are {', '.join(RUN_STATES)}.")
        asked = page, words, state, order or "run", descending
        found = self._shared(asked, lambda connection: self._runs_of(connection, *asked))
        summaries, pending = self.summaries.of(found["runs"])
        return {**found, "summaries": summaries, "pending": pending, "schema": self.schema.replace("\\:", ":")}

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

    def _runs_of(
        self, connection: sqlalchemy.Connection, page: int, words: str, state: str | None, order: str, descending: bool
    ) -> dict[str, Any]:
        without_jit(connection)
        given: dict[str, Any] = {}
        conditions = ["true"]
        notes = self._notes(connection)
        for place, word in enumerate(words.split()[:8]):
            given[f"word{place}"] = "%" + re.sub(r"([\\\\%_])", r"\\\1", word) + "%"
            conditions.append(
                f"concat_ws(' ', run_id, function, model_output_table, source_table, validation_table, owner, note, "
                f"array_to_string(tags, ' ')) ILIKE :word{place}"
            )
        if state is not None:
            given["state"] = state
            conditions.append("status = :state")
        of = f"FROM {self.schema}.mop_runs {notes} WHERE {' AND '.join(conditions)}"
        count = connection.execute(text(f"SELECT count(*) {of}"), given).scalar_one()
        pages = max(1, -(-count // RUNS_PER_PAGE))
        rows = (
            connection.execute(
                text(
                    f"SELECT run_id, status, function, model_output_table, configurations, num_iterations, owner, "
                    f"note, tags, "
                    f"CAST(extract(epoch FROM started_at) AS float8) AS begun, "
                    f"CAST(finished_at AS text) AS finished_at, "
                    f"CAST(extract(epoch FROM coalesce(finished_at, CASE status WHEN 'running' THEN clock_timestamp() "
                    f"END) - started_at) AS float8) AS seconds, left(error, 300) AS error "
                    f"{of} ORDER BY {ORDERS[order]} {'DESC' if descending else 'ASC'} NULLS LAST, run_id DESC "
                    f"LIMIT {RUNS_PER_PAGE} OFFSET :skipped"
                ),
                {**given, "skipped": (min(page, pages) - 1) * RUNS_PER_PAGE},
            )
            .mappings()
            .all()
        )
        runs = [dict(row) for row in rows]
        for run in runs:
            if run["status"] == "running":
                run.update(_progress(connection, self.schema, run["run_id"]))
        return {"runs": runs, "page": min(page, pages), "pages": pages, "count": count}

    def _notes(self, connection: sqlalchemy.Connection) -> str:
        """The join that adds `note` and `tags` to a query of mop_runs: empty ones where the role may not read them."""
        view = f"{self.schema}.mop_notes".replace("\\:", ":")
        allowed = "SELECT coalesce(has_table_privilege(to_regclass(:view), 'SELECT'), false)"
        if connection.execute(text(allowed), {"view": view}).scalar_one():
            return f"LEFT JOIN {self.schema}.mop_notes USING (run_id)"
        return "CROSS JOIN (SELECT CAST(NULL AS text) AS note, CAST(NULL AS text[]) AS tags) AS no_notes"

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
        """(number, head, data) of a run, which may be older than now: `head` has their `age` in seconds, and
        the `data_age` of the data: results wait longer for the next query than the counters of units.

        The first call reads them. Later calls wait for newer ones only a moment: a thread reads them. Raises ClientError if the
        role sees no such run, and LostError.
        """
        snapshot = self._snapshot(run_id)
        if not snapshot.data:
            with snapshot.lock:
                if not snapshot.data:
                    self._try(run_id, snapshot)
        elif time.monotonic() >= snapshot.looks_at and snapshot.lock.acquire(blocking=False):
            reader = threading.Thread(target=self._renew, args=(run_id, snapshot), daemon=True)
            reader.start()
            reader.join(SOON)
        if snapshot.problem is not None:
            raise snapshot.problem
        now = time.monotonic()
        head = {
            **snapshot.head,
            "age": now - snapshot.looked,
            "data_age": now - snapshot.right_at,
            "pending": not snapshot.whole,
        }
        return snapshot.number, head, snapshot.data

    def _renew(self, run_id: int, snapshot: Snapshot) -> None:
        """In a thread of its own: look at a run, and release the snapshot's lock."""
        try:
            self._try(run_id, snapshot)
        finally:
            snapshot.lock.release()

    def _try(self, run_id: int, snapshot: Snapshot) -> None:
        """Look at a run; an error goes to the snapshot's `problem`."""
        try:
            self._look(run_id, snapshot)
            snapshot.problem = None
        except ClientError as error:
            snapshot.problem = error
            if not isinstance(error, LostError):
                with self._lock:
                    self._runs.pop(run_id, None)

    def some(self, run_id: int, keys: list[int]) -> dict[str, Any] | None:
        """The data of some configurations (a list of mst_key) of a run, as of the last call of `run`.

        None where reading them takes long: a thread reads them, and then the number of the run's data changes.
        """
        snapshot = self._snapshot(run_id)
        kept = snapshot.number, tuple(keys)
        if kept in snapshot.some:
            return snapshot.some[kept]
        if kept not in snapshot.reading:
            snapshot.reading.add(kept)
            reader = threading.Thread(target=self._read_some, args=(run_id, snapshot, kept), daemon=True)
            reader.start()
            reader.join(SOON if snapshot.took < SOON else 0)
        return snapshot.some.get(kept)

    def _read_some(self, run_id: int, snapshot: Snapshot, kept: tuple[int, tuple[int, ...]]) -> None:
        began = time.monotonic()
        try:
            with connected(self.engine) as connection:
                found = self._report(connection, run_id, list(kept[1]))
            took = time.monotonic() - began
            snapshot.some = {**dict([*snapshot.some.items()][-MOST_FILTERS + 1 :]), kept: found}
        except UNREADABLE:  # (the next look tells)
            took = time.monotonic() - began
        finally:
            snapshot.reading.discard(kept)
        # (the times of all filters count together)
        now, wait = time.monotonic(), rest(took)
        snapshot.reads_at = min(max(snapshot.reads_at, now) + wait, now + max(MOST_SECONDS, wait))

    def _snapshot(self, run_id: int) -> Snapshot:
        with self._lock:
            snapshot = self._runs.setdefault(run_id, Snapshot())
            self._runs.move_to_end(run_id)
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)
            return snapshot

    def _report(
        self, connection: sqlalchemy.Connection, run_id: int, keys: list[int] | None = None, form: str = "json"
    ) -> dict[str, Any]:
        return json.loads(
            connection.execute(
                text(f"SELECT {self.schema}.mop_report(:run, :form, CAST(:keys AS integer[]))"),
                {"run": run_id, "keys": keys, "form": form},
            ).scalar_one()
        )

    def forget(self, run_id: int) -> None:
        """After an action: discard the state of a run, and for HURRY_SECONDS query it at every request."""
        snapshot = self._snapshot(run_id)
        snapshot.acted_at = time.monotonic()
        snapshot.looks_at, snapshot.state, snapshot.hurries_until = 0.0, None, time.monotonic() + HURRY_SECONDS
        self._list = {}

    def _look(self, run_id: int, snapshot: Snapshot) -> None:
        """Update the snapshot's head and, at most once in a while, its data. Raises ClientError."""
        began = time.monotonic()
        with connected(self.engine) as connection:
            without_jit(connection)
            row = (
                connection.execute(
                    text(
                        f"SELECT status, error, CAST(finished_at AS text) AS finished_at, note, tags "
                        f"FROM {self.schema}.mop_runs {self._notes(connection)} WHERE run_id = :run"
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
            head = {**row, **_progress(connection, self.schema, run_id)}
            looked = time.monotonic()
            looks_at = began if began < snapshot.hurries_until else self._after(began)
            state = head["status"], head["finished_at"], head["done"]
            seen = snapshot.state
            if seen is None or state[:2] != seen[:2] or state != seen and time.monotonic() >= snapshot.reads_at:
                began = time.monotonic()
                first = not snapshot.data and (head["done"] or 0) > MANY_UNITS
                data = self._report(connection, run_id, form="table" if first else "json")
                snapshot.took, snapshot.whole = time.monotonic() - began, not first
                # (the first query also loads the extension's Python into the session)
                snapshot.reads_at = self._after(began) if seen else time.monotonic() + LEAST_SECONDS
                # (the state from before the data: the next query sees later changes)
                snapshot.data, snapshot.state, snapshot.number = data, state, snapshot.number + 1
                snapshot.right_at = began
            elif state == seen:
                snapshot.right_at = looked
            snapshot.head, snapshot.looked = head, looked
            if (
                snapshot.acted_at > began or not snapshot.whole
            ):  # somebody acted while this looked; the pictures are missing
                snapshot.state = None
            else:
                snapshot.looks_at = looks_at

    @staticmethod
    def _after(began: float) -> float:
        """The time of the next query, so that queries take a small share of the time."""
        return time.monotonic() + rest(time.monotonic() - began)


class Summaries:
    """Summaries of runs (mop_report's 'summary'), for the list: those of ended runs are read once, by a thread."""

    def __init__(self, engine: sqlalchemy.Engine, schema: str) -> None:
        self.engine, self.schema = engine, schema
        self._known: OrderedDict[int, tuple[Hashable, float, dict[str, Any] | None]] = OrderedDict()
        self._wanted: dict[int, Hashable] = {}
        self._being_read: tuple[int, Hashable] | None = None  # (run_id, state)
        self._lock = threading.Lock()
        self._reads = False

    def of(self, runs: list[dict[str, Any]]) -> tuple[dict[int, dict[str, Any]], int]:
        """({run_id: summary} of those runs of a list that have one, how many are still to be read).

        A summary that failed is not read again before the run's state changes, or, of a running run, before its time.
        """
        found, pending = {}, 0
        with self._lock:
            self._wanted = {}
            for run in runs:
                state = run["status"], run["finished_at"]
                before, until, summary = self._known.get(run["run_id"], (None, 0.0, None))
                if summary is not None:
                    found[run["run_id"]] = summary
                if before != state or run["status"] == "running" and time.monotonic() >= until:
                    if self._being_read != (run["run_id"], state):
                        self._wanted[run["run_id"]] = state
                    pending += before != state and summary is None
            if self._wanted and not self._reads:
                self._reads = True
                threading.Thread(target=self._read, daemon=True).start()
        return found, pending

    def _next(self) -> tuple[int, Hashable] | None:
        with self._lock:
            if not self._wanted:
                self._reads = False
                return None
            run_id = next(iter(self._wanted))
            self._being_read = run_id, self._wanted.pop(run_id)
            return self._being_read

    def _read(self) -> None:
        """Read the wanted summaries, one at a time."""
        while (wanted := self._next()) is not None:
            run_id, state = wanted
            began = time.monotonic()
            summary: dict[str, Any] | None = None
            try:
                with connected(self.engine) as connection:
                    summary = json.loads(
                        connection.execute(
                            text(f"SELECT {self.schema}.mop_report(:run, 'summary')"), {"run": run_id}
                        ).scalar_one()
                    )
            except LostError:  # the list says so, and asks again
                with self._lock:
                    self._wanted, self._being_read, self._reads = {}, None, False
                return
            except UNREADABLE:  # the run was dropped meanwhile, or its summary fails: in this state it has none
                pass
            took = time.monotonic() - began
            for name in ("ranked", "next", "causes"):  # (the list does not show them)
                (summary or {}).pop(name, None)
            with self._lock:
                self._being_read = None
                self._known[run_id] = state, time.monotonic() + rest(took), summary
                self._known.move_to_end(run_id)
                while len(self._known) > MOST_SUMMARIES:
                    self._known.popitem(last=False)
            time.sleep(took * (1 / SUMMARY_SHARE - 1))


def _progress(connection: sqlalchemy.Connection, schema: str, run_id: int) -> dict[str, Any]:
    """done and total units of a run, its seconds_left and its seconds so far; `schema` is quoted."""
    rows = connection.execute(
        text(
            f"SELECT units_done AS done, units_total AS total, seconds_left, seconds_elapsed AS seconds "
            f"FROM {schema}.mop_run_progress WHERE run_id = :run"
        ),
        {"run": run_id},
    )
    row = rows.mappings().one_or_none()
    return dict(row) if row is not None else {"done": 0, "total": 0, "seconds_left": None, "seconds": None}
