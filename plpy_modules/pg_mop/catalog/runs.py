"""Runs: opened, resumed, closed and dropped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pg_mop.catalog.session import Row
from pg_mop.catalog.stages import Stages

if TYPE_CHECKING:
    from pg_mop.backend.database import Database
    from pg_mop.engines.base import Segment
    from pg_mop.plan.stages import Plan, Stage


class Runs(Stages):
    """The catalog's runs with their segments; a run is opened with its stages."""

    def open_run(
        self,
        run: Mapping[str, Any],
        segments: Iterable[tuple[str, Segment]],
        configurations: Sequence[Mapping[str, Any]],
        plan: Plan,
        visits: Callable[[Stage], int],
    ) -> int:
        """Insert a run (dict), its segments (dataset, Segment), its configurations (dicts) and the stages of its
        :class:`~pg_mop.plan.stages.Plan`, each with `visits(stage)` training units. Returns run_id.

        `start` stores the initial weights.
        """
        self.fencing_token = 1
        return self._retrying(self._in_transaction, self._open, run, segments, configurations, plan, visits)

    def _open(
        self,
        cursor: Any,
        run: Mapping[str, Any],
        segments: Iterable[tuple[str, Segment]],
        configurations: Sequence[Mapping[str, Any]],
        plan: Plan,
        visits: Callable[[Stage], int],
    ) -> int:
        rows = [
            {
                "dataset": dataset,
                "segment": segment.key,
                "rows": segment.rows,
                "bytes": segment.bytes,
                "fingerprint": segment.fingerprint,
                "server": segment.server,
                "copies": [{"fingerprint": copy.fingerprint, "server": copy.server} for copy in segment.copies],
            }
            for dataset, segment in segments
        ]
        cursor.execute(
            f"SELECT {self.schema}.mop_open_run(%s, %s) AS run_id",
            (json.dumps({**run, "coordinator": self.coordinator}), json.dumps(rows)),
        )
        run_id = cursor.fetchone()["run_id"]
        requests = [(c["mst_key"], stage) for c in configurations for stage in plan.path(c["mst_key"])]
        self._insert(cursor, run_id, configurations, plan.stages.values(), requests, visits)
        return run_id

    def reopen_run(self, run_id: int) -> None:
        """Take a run over from a coordinator that has ended; the run gets a new fencing token."""
        self.fencing_token = self.call("mop_reopen_run", run_id, self.coordinator)

    def close_run(self, run_id: int, status: str, error: str | None = None) -> None:
        """Mark a run as ended, and its unfinished units as cancelled."""
        self.call("mop_close_run", run_id, self.fencing_token, status, error)

    def drop_run(self, run_id: int) -> None:
        """Drop a run and its states."""
        self.call("mop_drop_run", run_id)

    def run(self, run_id: int) -> Row | None:
        """One of the role's own runs as a dict, with its current `status`; None if the role has no such run.

        A run that the calling backend itself seems to be running is 'failed': an earlier call left it open.
        """
        rows = self.execute(
            f"""
            SELECT r.*, EXISTS (SELECT 1 FROM {self.prefix}state_table g WHERE g.run_id = r.run_id) AS has_states
            FROM {self.prefix}run r
            WHERE run_id = %s AND owner = {self._role}
            """,
            (run_id,),
        )
        if not rows:
            return None
        run = rows[0]
        status = self.value(
            f"SELECT {self.schema}.mop_status(%(status)s, %(coordinator_pid)s, %(coordinator_start)s, 'failed')", run
        )
        abandoned = status == "running" and run["coordinator_pid"] == self.caller
        return {**run, "status": "failed" if abandoned else status}

    def unfinished(
        self, function: str, output: str, arguments: Mapping[str, Any], replay_of: int | None = None
    ) -> Row | None:
        """The role's last run of a call of `function` with these arguments, if the run still holds states and its
        output was never committed; else None. `replay_of`: the run that it repeats, of a replay."""
        for row in self.execute(
            f"""
            SELECT run_id FROM {self.prefix}run r
            WHERE owner = {self._role} AND function = %s AND model_output_table = %s
              AND EXISTS (SELECT 1 FROM {self.prefix}state_table g WHERE g.run_id = r.run_id)
            ORDER BY run_id DESC LIMIT 1
            """,
            (function, output),
        ):
            run = self.run(row["run_id"])
            if run is None:
                continue
            parameters = run["parameters"]
            if (
                parameters.get("arguments") == json.loads(json.dumps(arguments))
                and run["status"] != "running"
                and parameters.get("tables", {}).get("replay_of") == replay_of
                and not self.output_is_written(row["run_id"])
            ):
                return run
        return None

    def later_output(self, run: Row) -> int | None:
        """The number of the role's last run after `run` that has written the same output tables, or None.

        Such a run is a warm start, or it followed after a DROP of the tables.
        """
        rows = self.execute(
            f"""
            SELECT r.run_id FROM {self.prefix}run r
            WHERE owner = {self._role} AND r.run_id > %s AND r.function <> 'mop_more' AND r.model_output_table = %s
              AND {self.schema}.mop_has_output(r.run_id)
            ORDER BY 1 DESC LIMIT 1
            """,
            (run["run_id"], run["model_output_table"]),
        )
        return rows[0]["run_id"] if rows else None

    def trained_on(self, run: Row, mst_key: int) -> list[int]:
        """The numbers of the role's runs of mop_more that have since trained this configuration on, in order.

        They have written its model to the same output tables as `run`; see `later_output` for other runs.
        """
        rows = self.execute(
            f"""
            SELECT r.run_id FROM {self.prefix}run r
            WHERE owner = {self._role} AND r.run_id > %s AND r.function = 'mop_more' AND r.model_output_table = %s
              AND (r.parameters -> 'arguments' ->> 'mst_key')::double precision = %s
              AND {self.schema}.mop_has_output(r.run_id)
            ORDER BY 1
            """,
            (run["run_id"], run["model_output_table"], mst_key),
        )
        return [row["run_id"] for row in rows]

    def output_is_written(self, run_id: int) -> bool:
        """True if the output tables of one of the role's runs are committed."""
        return self.call("mop_has_output", run_id)

    def output_token(self, run_id: int) -> str:
        """The token for `note_output`: the caller's transaction needs it, for it may not see the run."""
        return self.call("mop_output_token", run_id)

    def run_segments(self, run_id: int) -> dict[tuple[str, int], str]:
        """{(dataset, segment): fingerprint} of a run."""
        return {
            (row["dataset"], row["segment"]): row["fingerprint"]
            for row in self.execute(
                f"SELECT dataset, segment, fingerprint FROM {self.prefix}segment WHERE run_id = %s", (run_id,)
            )
        }

    def known_copies(
        self, segments: Mapping[tuple[str, int], Segment]
    ) -> dict[tuple[str | None, str | None, str], list[str]]:
        """The copies of Segments (by dataset and key) that earlier runs found to have the same rows as the segment.

        Returns {(segment's server, copy's server, copy's fingerprint): fingerprints of the segment, latest run last}.
        """
        fingerprints = [copy.fingerprint for segment in segments.values() for copy in segment.copies]
        if not fingerprints:
            return {}
        found: dict[tuple[str | None, str | None, str], list[str]] = {}
        for row in self.execute(
            f"""
            SELECT s.server, c.server AS copy_on, c.fingerprint AS same, s.fingerprint
            FROM {self.prefix}copy c
            JOIN {self.prefix}segment s USING (run_id, dataset, segment)
            JOIN {self.prefix}run r USING (run_id)
            WHERE r.owner = {self._role} AND c.fingerprint = ANY (%s)
            GROUP BY 1, 2, 3, 4
            ORDER BY max(run_id)
            """,
            (fingerprints,),
        ):
            found.setdefault((row["server"], row["copy_on"], row["same"]), []).append(row["fingerprint"])
        return found

    def wanted_sessions(self, run_id: int) -> Any:
        """The number of worker sessions that mop_set_sessions has asked for, or None."""
        return self.value(f"SELECT sessions FROM {self.prefix}run WHERE run_id = %s", (run_id,))

    def take_turn(
        self,
        run_id: int,
        wanted: int,
        busy: int,
        total: int,
        threads: int,
        priority: int,
        deadline: float | None,
        left: float | None,
    ) -> tuple[int, bool, int]:
        """Ask for `wanted` cores, of which `busy` are in use: (the cores that the run may use, whether no other run asks, and
        how many cores the others want).

        `total`: the cores of this server; `threads`: of a worker; `priority` and `deadline` (time.time()): of the run, at the
        first time; `left`: seconds that its training would take if it were alone. Raises psycopg2.Error, 55P03 where another
        transaction changes the run's priority.
        """
        found = self.execute(
            f"SELECT cores, alone, others FROM {self.schema}.mop_take_turn(%s, %s, %s, %s, %s, %s, %s, to_timestamp(%s), %s)",
            (run_id, self.fencing_token, wanted, busy, total, threads, priority, deadline, left),
        )[0]
        return found["cores"], found["alone"], found["others"]

    def prediction(self, run_id: int) -> dict[str, Any] | None:
        """What the planner expected of a run at its start."""
        rows = self.execute(f"SELECT prediction FROM {self.prefix}run WHERE run_id = %s", (run_id,))
        return rows[0]["prediction"] if rows else None

    def note_counts(
        self, run_id: int, finished: int, failed: int, retried: int, sent_bytes: int, done: int, left: int
    ) -> None:
        """Note what this coordinator has counted: units, failed attempts, retries, and bytes of states that went from one
        server to another, for mop_monitoring; and for those who watch the run, its units that are done and left."""
        counts = (finished, failed, retried, sent_bytes, done, left)
        self.call("mop_note_counts", run_id, self.fencing_token, *counts)

    def note_growth(self, run_id: int) -> None:
        """Note that the run's catalog rows have become many more (for ANALYZE)."""
        self.call("mop_note_growth", run_id, self.fencing_token)

    def housekeeping(self, checkpoint_bytes: int) -> None:
        """Drop states that nobody needs, and close the runs of coordinators that have ended.

        Checkpoints, which are kept for later runs, stay up to `checkpoint_bytes`, those of most benefit first. The states
        of a finished run are dropped after the caller's transaction with the output has committed (see note_output). If
        they cannot be dropped now, the next call tries again.
        """
        with self._waiting_for_locks(100):
            self.call("mop_housekeeping")
            self.call("mop_evict", checkpoint_bytes)
            for row in self.execute(
                f"""
                SELECT run_id FROM {self.prefix}run
                WHERE status = 'running' AND owner = {self._role} AND coordinator_pid = %s
                """,
                (self.caller,),
            ):
                self.close_run(row["run_id"], "failed", "an earlier call of this session could not note how it ended")


def note_output(db: Database, run_id: int, token: str) -> None:
    """Note, in the caller's transaction, that the run's output is written: others see the note after its commit.

    `token`: from Catalog.output_token.
    """
    db.execute(f"SELECT {db.extension}.mop_note_output($1, $2)", ["bigint", "text"], [run_id, token])
