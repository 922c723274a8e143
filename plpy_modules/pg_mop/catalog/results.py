"""Results: metrics, the last stage of each configuration, training times, measured costs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pg_mop.catalog.session import FEW, Row
from pg_mop.catalog.units import Units

if TYPE_CHECKING:
    from pg_mop.plan.cost_history import Net


class Results(Units):
    """The catalog's metrics and costs."""

    def metrics(self, run_id: int, iteration: int | None = None, stages: Sequence[int] | None = None) -> list[Row]:
        """Loss and metrics by configuration, iteration and dataset, for one `iteration` or some `stages` (numbers) only.

        Each row has `loss`, `metrics` ({name: value}), `metric` (the first), `stage`, `seconds` (from the start of the
        run's first unit to the end of the evaluation; only without `stages`) and `took` (seconds that sessions spent on
        the evaluation; None if an earlier run evaluated). Replicas share their rows, which have mst_key 1.
        """
        # `seconds` reads all units of the run, so a running run (`stages`) goes without. Metrics that an earlier run
        # computed are older than this run's first unit: 0 seconds.
        few = stages is not None and len(stages) <= FEW
        read = self.execute if few else self.execute_whole
        return read(
            f"""
            SELECT q.mst_key, q.iteration, m.stage, m.dataset, m.loss, m.metric, m.metrics,
                   CASE WHEN %(stages)s::integer[] IS NULL THEN greatest(0, extract(epoch FROM
                       m.noted_at - coalesce(
                           (SELECT min(started_at) FROM {self.prefix}unit WHERE run_id = %(run_id)s),
                           m.noted_at))::float8) END AS seconds,
                   (SELECT sum(u.read_seconds + u.train_seconds) FROM {self.prefix}unit u
                    WHERE u.run_id = m.run_id AND u.stage = m.stage AND u.kind = 'evaluate'
                      AND u.dataset = m.dataset AND u.status = 'finished')::float8 AS took
            FROM {self.prefix}metric m
            JOIN {self.prefix}request q USING (run_id, stage)
            WHERE m.run_id = %(run_id)s
              AND (%(iteration)s IS NULL OR q.iteration = %(iteration)s)
              AND (%(stages)s::integer[] IS NULL OR m.stage = ANY (%(stages)s::integer[]))
              AND (%(few)s OR %(stages)s::integer[] IS NULL OR q.stage = ANY (%(stages)s::integer[]))
            ORDER BY 2, 1, 4
            """,
            {"run_id": run_id, "iteration": iteration, "stages": stages, "few": few},
        )

    def outcome(self, run_id: int, kept: Mapping[int, int] | None = None) -> list[Row]:
        """The run's configurations as dicts: mst_key, model_id, parameters, error, reason, member, and the last trained stage.

        Of the stage: stage, iteration, version, bytes of its state, segment of its last unit (an earlier run's, where the
        stage was reused; None if that run is gone). `kept` ({mst_key: iteration}) selects the stage of an earlier iteration.
        """
        kept = kept or {}
        rows = self.execute_whole(
            f"""
            SELECT DISTINCT ON (c.mst_key) c.mst_key, c.model_id, c.compile_params, c.fit_params, c.model_arch,
                   c.error, c.reason, c.member, l.stage, l.iteration, l.version, l.bytes, l.source_run, l.source_stage
            FROM {self.prefix}configuration c
            LEFT JOIN unnest(%(keys)s::integer[], %(iterations)s::integer[]) AS k(mst_key, iteration) USING (mst_key)
            LEFT JOIN (
                SELECT q.mst_key, q.stage, q.iteration, m.version, m.bytes, s.source_run, s.source_stage
                FROM {self.prefix}request q
                JOIN {self.prefix}stage_state m USING (run_id, stage)
                JOIN {self.prefix}stage s USING (run_id, stage)
                WHERE q.run_id = %(run_id)s) l
              ON l.mst_key = c.mst_key AND l.iteration <= coalesce(k.iteration, l.iteration)
            WHERE c.run_id = %(run_id)s
            ORDER BY c.mst_key, l.iteration DESC NULLS LAST
            """,
            {"run_id": run_id, "keys": list(kept), "iterations": list(kept.values())},
        )
        origins = [(row.pop("source_run") or run_id, row.pop("source_stage") or row["stage"]) for row in rows]
        units = self.training_units({(run, stage) for run, stage in origins if stage is not None})
        segments = {(unit["run_id"], unit["stage"], unit["version"]): unit["segment"] for unit in units}
        for row, origin in zip(rows, origins):
            row["segment"] = segments.get((*origin, row["version"]))
        return rows

    def training_seconds(self, run_id: int, iteration: int) -> float | None:
        """Seconds from the start of an iteration's first training unit to the end of its last."""
        return self.value(
            f"""
            SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 AS seconds
            FROM {self.prefix}unit
            WHERE run_id = %s AND iteration = %s AND kind = 'train'
            """,
            (run_id, iteration),
        )

    def costs(self, architecture: str) -> list[Row]:
        """The measured costs of an architecture (a digest) in the role's runs: rows of mop_unit_costs."""
        return self.execute(
            f"""
            SELECT net, part, version, device, kernel, batch_seconds, compile_seconds, runs, noted_at, place, unit_seconds,
                   units, memory_bytes
            FROM {self.schema}.mop_unit_costs
            WHERE architecture = %s
            """,
            (architecture,),
        )

    def note_costs(self, run_id: int, stages: Mapping[Net, Mapping[int, int]]) -> None:
        """Keep a run's measurements for later runs; `stages`: {Net: {number of a measured stage: passes over the rows in a
        unit}}."""
        if stages:
            rows = [
                {
                    "net": net.digest,
                    "architecture": net.architecture,
                    "optimizer": net.optimizer,
                    "loss": net.loss,
                    "batch_size": net.batch_size,
                    "shape": net.shape,
                    "stages": passes,
                }
                for net, passes in stages.items()
            ]
            self.call("mop_note_costs", run_id, self.fencing_token, json.dumps(rows))


def metric_of(row: Mapping[str, Any], name: str) -> Any:
    """The value of 'loss' or of a metric in a row of Catalog.metrics; None if it was not evaluated."""
    return row["loss"] if name == "loss" else row["metrics"].get(name)
