"""Units: begun, failed, finished, and reported between servers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pg_mop.catalog.session import CatalogSession, Row
from pg_mop.schedule.board import Unit

# of a unit: the devices that its model was divided among, NULL for one
DIVIDED_BY = "nullif((t.choice ->> 'devices')::integer, 1)"
ARRIVED = "mop_arrived(%s, %s, %s, %s, %s) AS size"


@dataclass(frozen=True)
class Move:
    """A stage's state, at a version, is carried from one server to a state table on another (names of servers)."""

    stage: int
    version: int
    source: str | None
    to: str | None
    state_table: int


@dataclass(frozen=True)
class Hop:
    """A state has arrived on a server. `way`: "direct", or "coordinator" where it passed through the coordinator's server;
    `seconds`: to carry it; states that went together have an equal part each."""

    stage: int
    version: int
    source: str | None
    target: str | None
    way: str
    bytes: int
    seconds: float


class Units(CatalogSession):
    """The catalog's units."""

    # --- units of this server ---------------------------------------------------------------------
    def begin_units_sql(self, run_id: int, units: Sequence[Mapping[str, Any]], on_server: str | None = None) -> str:
        """SQL that notes units (dicts) as running. All are of one kind and dataset. The worker session runs and commits the
        SQL before it trains. `on_server`: another server that does them."""
        if self.connection.closed:
            self._connect()
        common = [units[0][name] for name in ("kind", "dataset")]
        columns = [[unit[name] for unit in units] for name in ("stage", "iteration", "segment", "attempt", "queued_at")]
        with self.connection.cursor() as cursor:
            return cursor.mogrify(
                f"SELECT {self.schema}.mop_begin_units(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (run_id, self.fencing_token, *common, *columns, on_server),
            ).decode()

    def begin_units(self, run_id: int, units: Sequence[Mapping[str, Any]], on_server: str | None) -> None:
        """Note units as running that another server executes."""
        self.execute(self.begin_units_sql(run_id, units, on_server).replace("%", "%%"))

    def fail_unit(self, unit: Mapping[str, Any], error: str, decision: str) -> None:
        """Note that an attempt (dict) failed, and the decision about it. Its row is inserted if the worker session was
        lost before doing so."""
        self.execute(
            f"""
            SELECT {self.schema}.mop_fail_unit(
                %(run_id)s, %(fencing_token)s, %(stage)s, %(iteration)s, %(segment)s, %(kind)s, %(dataset)s,
                %(attempt)s, %(queued_at)s, %(error)s, %(decision)s)
            """,
            {**unit, "fencing_token": self.fencing_token, "error": error, "decision": decision},
        )

    def unit_is_finished(self, unit: Mapping[str, Any]) -> bool:
        """True if a unit (dict) has committed: its worker session may be lost before its answer arrives."""
        return bool(
            self.execute(
                f"""
                SELECT 1 FROM {self.prefix}unit
                WHERE run_id = %(run_id)s AND stage = %(stage)s AND segment = %(segment)s
                  AND kind = %(kind)s AND dataset = %(dataset)s AND status = 'finished'
                """,
                unit,
            )
        )

    def run_units(self, run_id: int) -> list[Row]:
        """A run's units that were begun, as dicts, training units ordered by version.

        The finished training units of adopted stages are included; their `own` is false: an earlier run executed them.
        """
        own = self.execute(
            f"""
            SELECT t.stage, t.iteration, t.segment, t.kind, t.dataset, t.attempt, t.status, t.version, t.kernel,
                   t.threads, t.choice -> 'order' AS kernels, {DIVIDED_BY} AS divided_by, true AS own
            FROM {self.prefix}unit t
            WHERE t.run_id = %s
            """,
            (run_id,),
        )
        adopted: dict[tuple[int, int], list[Row]] = {}
        for stage in self.execute(
            f"""
            SELECT stage, iteration, source_run, source_stage FROM {self.prefix}stage
            WHERE run_id = %s AND source_run IS NOT NULL
            """,
            (run_id,),
        ):
            adopted.setdefault((stage["source_run"], stage["source_stage"]), []).append(stage)
        common = {"kind": "train", "dataset": "training", "attempt": 1, "status": "finished", "own": False}
        rows = own + [
            {**unit, **common, "stage": stage["stage"], "iteration": stage["iteration"]}
            for unit in self.training_units(adopted)
            for stage in adopted[unit["run_id"], unit["stage"]]
        ]
        return sorted(rows, key=lambda row: (row["version"] is None, row["version"] or 0, row["attempt"]))

    def training_units(self, stages: Collection[tuple[int, int]]) -> list[Row]:
        """The finished training units of `stages`, (run, stage): run_id, stage, segment, version, kernel, threads, kernels,
        divided_by. (What a run has taken over from another role's run, it has as its own.)"""
        common = "t.segment, t.version, t.kernel, t.threads"
        units = f"{common}, t.choice -> 'order' AS kernels, {DIVIDED_BY} AS divided_by"
        return self._rows_at("unit", units, stages, where="t.kind = 'train' AND t.status = 'finished'") + self._rows_at(
            "taken_unit", f"{common}, t.kernels, t.divided_by", stages
        )

    def finished_units(self, run_id: int) -> list[Unit]:
        """A run's finished Units, training units ordered by version."""
        return [
            Unit(**row)
            for row in self.execute(
                f"""
                SELECT iteration, stage, kind, dataset, segment FROM {self.prefix}unit
                WHERE run_id = %s AND status = 'finished'
                ORDER BY version
                """,
                (run_id,),
            )
        ]

    # --- units of several servers -----------------------------------------------------------------
    def report(self, run_id: int, unit: Unit) -> str | None:
        """This server's report of a finished Unit, as JSON text, or None."""
        return self.value(f"SELECT {self._report_sql(run_id, unit)} AS report")

    def reports_sql(self, run_id: int, units: Sequence[Unit]) -> str:
        """SQL for the reports of several units, as an array, for a worker session."""
        reports = ", ".join(self._report_sql(run_id, unit) for unit in units)
        return f"SELECT ARRAY[{reports}]".replace("%%", "%")  # (`schema` is quoted for psycopg2's placeholders)

    def _report_sql(self, run_id: int, unit: Unit) -> str:
        return (
            f"{self.schema}.mop_report_unit({int(run_id)}, {int(unit.stage)}, {int(unit.segment)}, "
            f"'{unit.kind}', '{unit.dataset}')::text"
        )

    def register(self, run_id: int, server: str | None, *reports: str | None, copy: Move | None = None) -> Any:
        """Register another server's reports of units in one transaction, in their order.

        `copy`: a Move that brings a unit's state to this server. The report and the state are then registered in one
        transaction, and the state's size in bytes is returned.
        """
        # Statements that are sent together are one transaction.
        register = "; ".join([f"SELECT {self.schema}.mop_register_unit(%s, %s, %s, %s)"] * len(reports))
        values = [value for report in reports for value in (run_id, self.fencing_token, report, server)]
        if copy is None:
            self.execute(register, values)
            return None
        return self.value(
            f"{register}; SELECT {self.schema}.{ARRIVED}",
            (*values, run_id, self.fencing_token, copy.stage, copy.version, copy.state_table),
        )

    def arrived(self, run_id: int, stage: int, version: int, state_table: int) -> int:
        """Register that a stage's state has arrived from another server, in a state table. Returns its size in bytes."""
        return self.value(f"SELECT {self.schema}.{ARRIVED}", (run_id, self.fencing_token, stage, version, state_table))

    def note_hops(self, run_id: int, hops: Sequence[Hop]) -> None:
        """Write states that have arrived into the log, after `arrived` or `register` on their target's server."""
        told = [{**asdict(hop), "source": hop.source or "", "target": hop.target or ""} for hop in hops]
        self.call("mop_note_hops", run_id, self.fencing_token, json.dumps(told))

    def partials(self, run_id: int, stage: int, dataset: str) -> str | None:
        """The metric sums of the segments evaluated so far, as JSON text, or None."""
        return self.value(f"SELECT {self.schema}.mop_take_partials(%s, %s, %s)::text AS sums", (run_id, stage, dataset))

    def put_partials(self, run_id: int, stage: int, dataset: str, sums: str | None) -> None:
        """Store another server's `partials`."""
        self.call("mop_put_partials", run_id, self.fencing_token, stage, dataset, sums)

    # --- remote runs ------------------------------------------------------------------------------
    def remote_runs(self, run_id: int) -> dict[str, int]:
        """{server: number of the remote run} of the other servers that a run uses."""
        return {
            row["server"]: row["remote_run"]
            for row in self.execute(
                f"SELECT server, remote_run FROM {self.prefix}remote_run WHERE run_id = %s", (run_id,)
            )
        }

    def has_other_servers(self, run_id: int) -> bool:
        """True where a run's segments are on other servers, also where these are away."""
        return self.value(
            f"SELECT EXISTS (SELECT 1 FROM {self.prefix}segment WHERE run_id = %s AND server IS NOT NULL)", (run_id,)
        )

    def add_remote_run(self, run_id: int, server: str, remote_run: int) -> None:
        """Note the remote run of a server."""
        self.call("mop_add_remote_run", run_id, self.fencing_token, server, remote_run)

    def forget_remote_run(self, run_id: int, server: str) -> None:
        """Delete the note about a server's remote run."""
        self.call("mop_forget_remote_run", run_id, self.fencing_token, server)

    def led_by(self, leader: str) -> dict[int, int]:
        """{number of a remote run on this server: number of the coordinator's run} of the role's remote runs for the
        coordinator `leader`."""
        return {
            row["run_id"]: int(row["led"])
            for row in self.execute(
                f"""
                SELECT run_id, parameters ->> 'run' AS led FROM {self.prefix}run
                WHERE owner = {self._role} AND function = 'remote_run' AND parameters ->> 'leader' = %s
                """,
                (leader,),
            )
        }
