"""Configurations, the stages of their search plan, and stages that earlier runs have trained."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg2

from pg_mop.backend import weights
from pg_mop.backend.errors import MopError
from pg_mop.catalog.session import FEW, Row
from pg_mop.catalog.shared_stages import SharedStages, is_alias
from pg_mop.plan.reuse import Beside, Known

if TYPE_CHECKING:
    from pg_mop.plan.stages import Stage

MAX_ROWS = 5000  # inserted by one statement
CONFIGURATION_COLUMNS = (
    "mst_key",
    "model_id",
    "compile_params",
    "fit_params",
    "model_arch",
    "error",
    "weights_sql",
    "weights_md5",
    "fold",
    "fold_of",
    "held_out",
    "member",
    "kept_by",
)


class Stages(SharedStages):
    """The catalog's configurations, stages and requests."""

    # --- configurations ---------------------------------------------------------------------------
    def run_configurations(self, run_id: int) -> list[Row]:
        """A run's configurations as dicts, ordered by mst_key."""
        return self.execute(
            f"""
            SELECT mst_key, model_id, compile_params, fit_params, model_arch, error, blame,
                   weights_sql, weights_md5, reason, fold, fold_of, held_out, member
            FROM {self.prefix}configuration
            WHERE run_id = %s
            ORDER BY mst_key
            """,
            (run_id,),
        )

    def fail_configurations(self, run_id: int, mst_keys: Iterable[int], error: str, blame: str) -> None:
        """Mark configurations as failed; `blame`: 'configuration' or 'infrastructure'."""
        self.call("mop_fail_configurations", run_id, self.fencing_token, list(mst_keys), error, blame)

    def withdraw(self, run_id: int, mst_key: int, iterations: int, reason: str | None) -> None:
        """End a configuration after `iterations`."""
        self.call("mop_withdraw", run_id, self.fencing_token, mst_key, iterations, reason)

    # --- stages and requests ----------------------------------------------------------------------
    def ask(
        self,
        run_id: int,
        configurations: Sequence[Mapping[str, Any]],
        stages: Collection[Stage],
        requests: Sequence[tuple[int, Stage]],
        visits: Callable[[Stage], int],
    ) -> None:
        """Add to a run: configurations (as in `open_run`), stages that are new or newly to be evaluated, and `requests`:
        (mst_key, the stage of its next iteration). A stage has `visits(stage)` training units."""
        if configurations or stages or requests:
            self._retrying(self._in_transaction, self._insert, run_id, configurations, stages, requests, visits)

    def run_stages(self, run_id: int) -> list[Row]:
        """A run's stages as dicts, parents first; `mst_keys`: the configurations that request the stage."""
        return self.execute_whole(
            f"""
            SELECT s.stage, s.parent, s.iteration, s.identity, s.mst_key, s.compile_params, s.fit_params,
                   s.evaluated, s.source_run, s.source_stage, coalesce(x.scores, 0) AS scores, q.mst_keys
            FROM {self.prefix}stage s
            LEFT JOIN (
                SELECT run_id, stage, count(*) AS scores
                FROM {self.prefix}metric
                GROUP BY run_id, stage) x USING (run_id, stage)
            LEFT JOIN (
                SELECT run_id, stage, array_agg(mst_key) AS mst_keys
                FROM {self.prefix}request
                GROUP BY run_id, stage) q USING (run_id, stage)
            WHERE s.run_id = %s
            ORDER BY s.stage
            """,
            (run_id,),
        )

    def _insert(
        self,
        cursor: Any,
        run_id: int,
        configurations: Iterable[Mapping[str, Any]],
        stages: Iterable[Stage],
        requests: Iterable[tuple[int, Stage]],
        visits: Callable[[Stage], int],
    ) -> None:
        rows: list[list[Row]] = [
            [{name: row.get(name) for name in CONFIGURATION_COLUMNS} for row in configurations],
            [
                {
                    "stage": stage.number,
                    "parent": stage.parent and stage.parent.number,
                    "iteration": stage.iteration,
                    "identity": stage.identity,
                    "mst_key": stage.mst_key,
                    "compile_params": stage.parameters[0],
                    "fit_params": stage.parameters[1],
                    "evaluated": stage.evaluated,
                    "version": (stage.iteration - 1) * visits(stage),
                }
                for stage in stages
            ],
            [{"mst_key": key, "iteration": stage.iteration, "stage": stage.number} for key, stage in requests],
        ]
        if max(map(len, rows)) <= MAX_ROWS:
            steps = [rows]
        else:  # configurations first, then stages, then requests, which refer to both
            steps = [
                [rows[n][first : first + MAX_ROWS] if n == kind else [] for n in range(3)]
                for kind in range(3)
                for first in range(0, len(rows[kind]), MAX_ROWS)
            ]
        for step in steps:
            cursor.execute(
                f"SELECT {self.schema}.mop_ask(%s, %s, %s, %s, %s)",
                (run_id, self.fencing_token, *map(json.dumps, step)),
            )

    # --- initial weights --------------------------------------------------------------------------
    def start(
        self, run_id: int, stages: Iterable[Stage], configurations: Mapping[int, Mapping[str, Any]]
    ) -> list[Stage]:
        """Store the initial weights of untrained root stages, and return the stages that now have weights.

        A stage takes part if its configuration (`configurations`: by mst_key) has `weights_sql`, a query for the weights
        (float32 bytes). Their MD5 must be `weights_md5`. Raises MopError if this session sees other weights: worker
        sessions would see these, too.
        """
        starts = [
            stage
            for stage in stages
            if stage.parent is None
            and not stage.trained
            and (configurations.get(stage.mst_key) or {}).get("weights_sql")
        ]
        if starts:
            self._retrying(self._in_transaction, self._insert_weights, run_id, starts, configurations)
        return starts

    def _insert_weights(
        self, cursor: Any, run_id: int, stages: Iterable[Stage], configurations: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Copy plain weights within the server, as version 0 of the stages' states."""
        groups: dict[tuple[str, str], tuple[Mapping[str, Any], list[int]]] = {}
        for stage in stages:
            row = configurations[stage.mst_key]
            groups.setdefault((row["weights_sql"], row["weights_md5"]), (row, []))[1].append(stage.number)
        for (source, digest), (row, numbers) in groups.items():
            source = source.replace("%", "%%")
            try:
                if digest.startswith(weights.IN_PARTS):
                    visible = self._insert_parts(cursor, run_id, numbers, source, digest)
                else:
                    whole = f"SELECT w FROM ({source}) AS source(w) WHERE md5(w) = %s"
                    cursor.execute(
                        f"SELECT {self.schema}.mop_put_weights(%s, %s, ({whole}))", (run_id, numbers, digest)
                    )
                    visible = True
            except (
                psycopg2.errors.NotNullViolation,
                psycopg2.errors.UndefinedTable,
                psycopg2.errors.UndefinedColumn,
                psycopg2.errors.LockNotAvailable,
                psycopg2.errors.InvalidSchemaName,
                psycopg2.errors.FeatureNotSupported,
                psycopg2.errors.InsufficientPrivilege,
            ):
                visible = False
            if not visible:
                raise MopError(
                    f"the initial weights of mst_key {row['mst_key']} are not those that other sessions see",
                    detail="Worker sessions see committed data only, and no temporary tables; or the weights have been "
                    "replaced since.",
                    hint="COMMIT the transaction that wrote them, then call again.",
                    sqlstate="55000",
                )

    def _insert_parts(self, cursor: Any, run_id: int, stages: list[int], source: str, digest: str) -> bool:
        """The same for weights in parts (backend/weights.py). False where this session sees other parts."""
        cursor.execute(f"SELECT n AS part, md5(w) AS digest FROM ({source}) AS source(w, n) ORDER BY 1")
        found = [(part["part"], part["digest"]) for part in cursor.fetchall()]
        if weights.IN_PARTS + weights.digest_of([of_part for _, of_part in found]) != digest:
            return False
        for place, (part, of_part) in enumerate(found):
            # (a part whose contents have just changed is NULL, which is an error)
            one = f"SELECT w FROM ({source}) AS source(w, n) WHERE n = %s AND md5(w) = %s"
            cursor.execute(
                f"SELECT {self.schema}.mop_put_weights_part(%s, %s, %s, ({one}))",
                (run_id, stages, place, part, of_part),
            )
        return True

    # --- stages that earlier runs have trained ----------------------------------------------------
    def known_stages(
        self,
        run_id: int,
        identities: Collection[str],
        fingerprints: Mapping[tuple[str, int], str],
        beside: Collection[int] = (),
    ) -> dict[str, list[Known]]:
        """{identity: [Known, ...]} of the stages that other runs of the role have trained completely, and runs of roles that
        share with it. Of a run that goes on, and of the runs `beside`, these include the states that it has on this server now.

        `fingerprints`: {(dataset, segment): fingerprint} of the present run. Metrics count as known if they cover all its
        datasets with the same rows.
        """
        if not identities:
            return {}
        # Each table is read for itself: of a new run, PostgreSQL's planner expects a row or two, and a join of the tables would
        # compare each stage with all rows of its run.
        stages = self.execute(
            f"""
            SELECT identity, run_id, stage, parent, mst_key, iteration, source_run, source_stage
            FROM {self.prefix}stage WHERE identity = ANY (%s) AND run_id <> %s
            """,
            (list(identities), run_id),
        )
        runs = {
            row["run_id"]: row
            for row in self.execute(
                f"""
                SELECT run_id, segments, function <> 'remote_run' AND (status = 'running' OR run_id = ANY (%s)) AS goes_on
                FROM {self.prefix}run WHERE run_id = ANY (%s) AND owner = {self._role}
                """,
                (list(beside), list({row["run_id"] for row in stages})),
            )
        }
        stages = [row for row in stages if row["run_id"] in runs]
        own = {(row["run_id"], row["stage"]) for row in stages}
        above = {(row["run_id"], row["parent"]) for row in stages if row["parent"] is not None}
        parents = self._row_at("stage", "t.source_run, t.source_stage", above)
        states = self._row_at("stage_state", "t.version, t.state_table IS NOT NULL AS stored, t.made_on", own)
        kept = self._row_at("checkpoint", "1", own)
        folds = self._row_at("configuration", "t.held_out", {(r["run_id"], r["mst_key"]) for r in stages}, "mst_key")
        scores = self._scores(own, fingerprints)

        def origin_of(row: Row, run: int, stage: int) -> tuple[int, int]:
            return (run, stage) if row["source_run"] is None else (row["source_run"], row["source_stage"])

        known: dict[str, list[Known]] = {}
        datasets = len({dataset for dataset, _ in fingerprints})
        for row in stages:
            key, before = (row["run_id"], row["stage"]), (row["run_id"], row["parent"])
            state, run = states.get(key), runs[row["run_id"]]
            held_out = folds[row["run_id"], row["mst_key"]]["held_out"] or ()
            if state is None or state["version"] != row["iteration"] * (run["segments"] - len(held_out)):
                continue
            stays = key in kept or run["goes_on"] and state["made_on"] is not None
            known.setdefault(row["identity"], []).append(
                Known(
                    *key,
                    state["stored"] and stays,
                    scores[key] >= datasets,
                    origin_of(row, *key),
                    origin_of(parents[before], *before) if before in parents else None,
                )
            )
        for row in self._known_shared(list(identities), list(beside)):
            known.setdefault(row["identity"], []).append(
                Known(
                    row["run_id"],
                    row["stage"],
                    row["state"],
                    row["scores"] >= datasets,
                    (row["origin_run"], row["origin_stage"]),
                    None if row["parent_run"] is None else (row["parent_run"], row["parent_stage"]),
                )
            )
        return known

    def _scores(
        self, stages: Collection[tuple[int, int]], fingerprints: Mapping[tuple[str, int], str]
    ) -> Counter[tuple[int, int]]:
        """The number of datasets for which `stages`, (run, stage), have metrics, of those that have the rows of `fingerprints`
        (as mop_same_segments compares them)."""
        wanted: dict[str, dict[int, str]] = {}
        for (dataset, segment), fingerprint in fingerprints.items():
            wanted.setdefault(dataset, {})[segment] = fingerprint
        found: dict[tuple[int, str], dict[int, str]] = {}
        for row in self.execute(
            f"SELECT run_id, dataset, segment, fingerprint FROM {self.prefix}segment WHERE run_id = ANY (%s)",
            (list({run for run, _ in stages}),),
        ):
            found.setdefault((row["run_id"], row["dataset"]), {})[row["segment"]] = row["fingerprint"]
        return Counter(
            (row["run_id"], row["stage"])
            for row in self._rows_at("metric", "t.dataset", stages)
            if found.get((row["run_id"], row["dataset"])) == wanted.get(row["dataset"], {})
        )

    def runs_beside(self, run_id: int, priority: int) -> list[int]:
        """The runs of the role, and of roles that share with it, that began before a run, go on with at least its priority, and
        share what they train."""
        rows = self.execute(
            f"""
            SELECT r.run_id FROM {self.prefix}run r JOIN {self.schema}.mop_runs s USING (run_id)
            WHERE r.owner = {self._role} AND r.status = 'running' AND r.run_id < %s AND s.status = 'running'
              AND r.function <> 'remote_run' AND r.parameters -> 'settings' ->> 'reuse' = 'true'
              AND (r.parameters -> 'settings' ->> 'priority')::integer >= %s
            """,
            (run_id, priority),
        )
        return sorted(row["run_id"] for row in rows) + self._shared_beside(priority)

    def stages_beside(self, runs: Sequence[int], identities: Collection[str]) -> dict[str, list[Beside]]:
        """{identity: [Beside, ...]} of the stages that these runs want, and that have not failed."""
        found: dict[str, list[Beside]] = {}
        read = self.execute if len(identities) <= FEW else self.execute_whole
        for run in (run for run in runs if not is_alias(run)):
            for row in read(
                f"""
                SELECT s.identity, s.run_id, s.evaluated, p.parent IS NULL AS ends, array_agg(c.fit_params) AS fits,
                       m.version = s.iteration * (r.segments - coalesce(array_length(c.held_out, 1), 0)) AS trained
                FROM {self.prefix}stage s
                JOIN {self.prefix}run r USING (run_id)
                JOIN {self.prefix}request q ON (q.run_id, q.stage) = (s.run_id, s.stage)
                JOIN {self.prefix}configuration c ON (c.run_id, c.mst_key) = (q.run_id, q.mst_key)
                JOIN {self.prefix}stage_state m ON (m.run_id, m.stage) = (s.run_id, s.stage)
                LEFT JOIN (
                    SELECT DISTINCT n.parent FROM {self.prefix}stage n
                    JOIN {self.prefix}request w ON (w.run_id, w.stage) = (n.run_id, n.stage)
                    WHERE n.run_id = %(run)s
                ) p ON p.parent = s.stage
                WHERE s.run_id = %(run)s AND s.identity = ANY (%(identities)s) AND c.error IS NULL
                GROUP BY 1, 2, 3, 4, 6
                """,
                {"run": run, "identities": list(identities)},
            ):
                found.setdefault(row["identity"], []).append(
                    Beside(row["run_id"], row["ends"], row["evaluated"], row["trained"], frozenset(row["fits"]))
                )
        for identity, beside in self._shared_stages_beside([run for run in runs if is_alias(run)], identities):
            found.setdefault(identity, []).append(beside)
        return found

    def adopt(
        self,
        run_id: int,
        stages: Sequence[tuple[Stage, Known, bool]],
        check: Callable[[int, Any], None],
        check_metrics: Callable[[int, str, Collection[str]], None],
    ) -> bool:
        """Take over stages that earlier runs have trained; `stages`: as plan.reuse.adoptable returns them. `check(number,
        state)` raises an error for a state of another role's run that cannot be that of the stage, and so does
        `check_metrics(number, dataset, names)` for its metrics.

        Returns False, and takes over none, if one of them has been dropped, or is not shared any more.
        """
        adopted = [
            {"stage": stage.number, "run": known.run, "of": known.stage, "state": state, "scored": known.scored}
            for stage, known, state in stages
        ]
        if all(not is_alias(known.run) for _, known, _ in stages):
            return self.call("mop_adopt", run_id, self.fencing_token, json.dumps(adopted))
        wanted = [stage.number for stage, known, state in stages if state and is_alias(known.run)]
        scored = [stage.number for stage, known, _ in stages if known.scored and is_alias(known.run)]
        checks = (wanted, check, scored, check_metrics)
        return self._retrying(self._in_transaction, self._adopt_checked, run_id, json.dumps(adopted), *checks)

    def keep_checkpoints(self, run_id: int) -> None:
        """Keep a run's states for later runs."""
        self.call("mop_keep_checkpoints", run_id, self.fencing_token)
