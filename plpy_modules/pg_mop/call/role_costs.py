"""What the runs of a role have measured on this machine, for estimates: the speed of nets, fixed costs, trainers that are
ready."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection
from typing import Any

from mop_udf.params import params
from pg_mop.plan.arithmetic import Arithmetic
from pg_mop.plan.estimates import BACKWARD, FixedCosts, Sample
from pg_mop.plan.fixed_costs import learned
from pg_mop.plan.planner import Planner
from pg_mop.plan.sharing import epochs

OTHER_NETS = 30  # measured nets that give the speed of this machine
LAST_RUNS = 3  # whose log tells the fixed costs
MOST_LOGGED = 3000  # units of such a run
FEW_LOGGED = 400  # the same, where the log is read while a run begins
LEAST_BATCH = (
    1e-4  # seconds of a mini-batch: of shorter ones, what a trainer does for a unit besides takes most of its time
)
MOST_SLOWDOWN = 2.0  # by which units may take longer than their mini-batches that were timed


def other_nets(catalog: Any, framework: str) -> list[Sample]:
    """(operations of a mini-batch, its seconds) of the nets that the role's runs have measured last with a framework: another
    one has other speeds.

    The architectures come from the role's own runs: nobody learns of the nets of others.
    """
    from mop_udf.architecture import architecture
    from pg_mop.plan.cost_history import digest

    measured = catalog.execute(
        f"""
        SELECT c.architecture, c.batch_size, min(c.batch_seconds) AS seconds
        FROM {catalog.schema}.mop_unit_costs c WHERE c.part = 'model' AND strpos(c.version, %s) > 0
        GROUP BY c.architecture, c.net, c.batch_size ORDER BY max(c.noted_at) DESC LIMIT {OTHER_NETS}
        """,
        (f", {framework} ",),  # (mop_udf/kernels/device.py writes "Keras 3.9.0, jax 0.5.0")
    )
    if not measured:
        return []
    texts = catalog.execute(
        f"""
        SELECT DISTINCT c.model_arch FROM {catalog.prefix}configuration c
        WHERE c.run_id IN (SELECT r.run_id FROM {catalog.prefix}run r WHERE r.owner = {catalog._role}
                           ORDER BY r.run_id DESC LIMIT 20) LIMIT 200
        """
    )
    found: dict[str, Arithmetic | None] = {}
    wanted = {row["architecture"] for row in measured}
    for row in texts:
        if (name := digest(row["model_arch"])) in wanted:
            try:
                found[name] = Arithmetic.find(architecture.check(row["model_arch"]))
            except architecture.ArchitectureError:
                continue
    return [
        (BACKWARD * own.operations * row["batch_size"], row["seconds"])
        for row in measured
        if (own := found.get(row["architecture"])) is not None
    ]


def fixed_costs(
    catalog: Any, most_logged: int = MOST_LOGGED, architectures: Collection[str] = (), warm: bool = False
) -> FixedCosts:
    """Seconds that do not depend on the rows, by the log of the role's last finished runs of at most so many units; the usual
    ones without any. Runs that had one of the `architectures` (JSON) tell what commands cost, if there are any: small states
    and large ones differ in that. `warm`: the run's trainers are ready."""
    digests = sorted({hashlib.md5(text.encode()).hexdigest() for text in architectures})
    last = [
        row["run_id"]
        for row in catalog.execute(
            f"""
            SELECT o.run_id FROM {catalog.prefix}run o WHERE o.owner = {catalog._role} AND o.status = 'finished'
              AND greatest(o.configurations, 1)::bigint * o.num_iterations * o.segments <= {int(most_logged)}
            ORDER BY o.run_id DESC LIMIT {LAST_RUNS}
            """
        )
    ]
    # (Greenplum has no aggregates in LATERAL: the units of the last runs are summed up by run)
    runs = catalog.execute(
        f"""
        SELECT r.run_id, extract(epoch FROM u.first - r.started_at)::float8 AS start,
               extract(epoch FROM r.finished_at - u.last)::float8 AS "end",
               EXISTS (SELECT 1 FROM {catalog.prefix}configuration c
                   WHERE c.run_id = r.run_id AND md5(c.model_arch) = ANY (%s::text[])) AS alike
        FROM {catalog.prefix}run r JOIN (
            SELECT u.run_id, min(u.started_at) AS first, max(u.finished_at) AS last FROM {catalog.prefix}unit u
            WHERE u.run_id = ANY (%s::bigint[]) AND u.status = 'finished' GROUP BY u.run_id) u USING (run_id)
        WHERE r.function <> 'remote_run' AND u.first IS NOT NULL  -- (0.1.0 noted no times of units)
        ORDER BY r.run_id DESC
        """,
        (digests, last),
    )
    units = catalog.execute(
        f"""
        SELECT u.run_id, concat(u.server, '/', u.backend_pid) AS session, u.server, s.mst_key AS model, u.kind, u.rows,
               s.fit_params, extract(epoch FROM u.started_at)::float8 AS began,
               extract(epoch FROM u.finished_at)::float8 AS ended, u.train_seconds AS train, m.bytes,
               u.compilations > 0 AS compiled
        FROM {catalog.prefix}unit u JOIN {catalog.prefix}stage s USING (run_id, stage)
        LEFT JOIN {catalog.prefix}stage_state m USING (run_id, stage)
        WHERE u.run_id = ANY (%s::bigint[]) AND u.status = 'finished'
        """,
        ([run["run_id"] for run in runs],),
    )
    for unit in units:
        unit["passes"] = _passes(unit["fit_params"]) if unit["kind"] == "train" else 1
    slowdown = catalog.value(
        f"""
        SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY c.unit_seconds / c.batch_seconds)
        FROM {catalog.schema}.mop_unit_costs c WHERE c.units > 0 AND c.batch_seconds >= {LEAST_BATCH}
        """
    )
    usual = FixedCosts()
    if slowdown is not None:
        usual = dataclasses.replace(usual, slowdown=min(MOST_SLOWDOWN, max(1.0, slowdown)))
    return learned(runs, units, usual, warm)


def _passes(fit_params: str) -> int:
    """Passes over the rows in a unit; 1 where an older version wrote parameters that this one refuses."""
    try:
        return epochs(fit_params)
    except params.ParameterError:
        return 1


def are_warm(db: Any, planner: Planner, options: dict[str, Any], sessions: int, anywhere: bool) -> bool:
    """True where idle trainers of the role have as many nets as a plan has left to train: most likely these.

    `anywhere`: each net is trained in one trainer (setup.trains_anywhere); else in as many as there are sessions."""
    stages = [stage for stage in planner.plan.stages.values() if stage.trials and not stage.trained]
    wanted = len({planner.sharing.key(stage)[0] for stage in stages})
    idle = db.execute(
        f"SELECT t.nets FROM {db.extension}.mop_trainers t WHERE t.state = 'idle' AND t.role = current_user "
        "AND t.database = current_database() AND t.framework = $1 AND t.threads = $2",
        ["text", "integer"],
        [options["keras_backend"], options["threads"]],
    )
    nets = [row["nets"] or 0 for row in idle]
    return sum(nets) >= wanted if anywhere else sum(count >= wanted for count in nets) >= sessions
