"""Runs, configurations, stages, segments, units and states: the only module that knows the catalog tables (with
run/unit, the part of it that runs in a worker session).

It reads and writes through the run's own session, so that what it writes is committed at once and survives the caller's
transaction, and what it reads is there at any isolation level of that. Users may not write to the tables: the SQL
functions of sql/12_journal.sql do.
"""

import contextlib
import io
import json
import select
import struct
import time

import psycopg2
import psycopg2.extensions
import psycopg2.extras

from pg_mop.backend.database import MopError, has_lost_segment
from pg_mop.connections.blocking import connect
from pg_mop.plan.reuse import Known
from pg_mop.schedule.board import Unit

SEGMENT_SECONDS = 5  # how long a segment of Greenplum is waited for


MOST_ROWS = 5000  # that are written by one statement
READ_BYTES = 8 << 20  # of model states that are read by one


class Catalog:
    """The catalog through a session of its own, as the calling role."""

    least_state_table_bytes = (
        4 << 20
    )  # bytes of a state_table of states: with small ones a table is not worth its making

    def __init__(self, db, target):
        """Connects. Raises MopError with what mends it."""
        # psycopg2 takes a single % for a place to fill
        self.schema, self.target = db.extension.replace("%", "%%"), target
        # what the role reads of a table of the catalog: the table itself, or where there is no row security, a view
        self.own = f"{self.schema}.mop_own_" if db.has_segments else f"{self.schema}.mop_"
        if db.has_segments:  # where a table takes 0.05 s
            self.least_state_table_bytes *= 8
        self.fencing_token = None  # of the run that is opened or reopened by this
        self.caller = db.value("SELECT pg_backend_pid()")
        # tells the catalog, in this session, which session it is that calls
        self.coordinator = db.value(f"SELECT backend FROM {db.extension}.mop_tokens")
        self._connect()

    @property
    def _me(self):
        """SQL: this role's number there."""
        return f"(SELECT o.owner FROM {self.own}owner o WHERE o.who = {self.schema}.mop_role(current_user))"

    def _connect(self):
        self.connection = connect(self.target, "pg_mop catalog")
        self.connection.cursor_factory = psycopg2.extras.RealDictCursor

    def execute(self, sql, values=None):
        """Run one statement that may be run twice."""
        return self._lasting(self._run, sql, values)

    def _lasting(self, work, *args):
        """What `work(*args)` gives. Where the session turns out to have gone, a new one does it once more; where a
        segment of Greenplum has, it is soon back."""
        until, again = time.monotonic() + SEGMENT_SECONDS, False
        while True:
            try:
                if self.connection.closed:
                    self._connect()
                return work(*args)
            except psycopg2.Error as error:
                if has_lost_segment(error) and time.monotonic() < until:
                    self.connection.close()
                    time.sleep(0.2)
                elif again or not self.connection.closed:
                    raise
                else:
                    again = True

    def _run(self, sql, values=None):
        with self.connection.cursor() as cursor:
            cursor.execute(sql.replace("%%", "%") if values is None else sql, values)
            return [dict(r) for r in cursor.fetchall()] if cursor.description else []

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    # --- what this session can see ----------------------------------------------------------------
    def fingerprint(self, sql):
        """The fingerprint of a segment as other sessions see it; None where they see no such table."""
        try:
            return self.execute(sql)[0]["fingerprint"]
        except (
            psycopg2.errors.UndefinedTable,
            psycopg2.errors.InvalidSchemaName,
            psycopg2.errors.FeatureNotSupported,
            psycopg2.errors.InsufficientPrivilege,
        ):
            # not there, or there as another session's temporary table
            return None
        except psycopg2.errors.InternalError_ as error:  # as PostgreSQL says it of a partitioned one
            if "temporary relation" in str(error):
                return None
            raise

    # --- runs -------------------------------------------------------------------------------------
    def open_run(self, run, segments, configurations, plan, visits):
        """Insert a run (dict), its segments, its configurations (lists of dicts) and the stages of its
        :class:`~pg_mop.plan.stages.Plan`, each of so many `visits`. Returns run_id.

        What a path begins with is put there by `start`.
        """
        self.fencing_token = 1
        return self._lasting(self._within, self._open_run, run, segments, configurations, plan, visits)

    def ask(self, run_id, configurations, stages, requests, visits):
        """Add to a run: configurations (as in `open_run`), stages that are new or to be evaluated now, and which stage
        an iteration of a configuration is: `requests`, a list of (mst_key, stage). A stage has so many `visits`."""
        if configurations or stages or requests:
            self._lasting(self._within, self._ask, run_id, configurations, stages, requests, visits)

    def start(self, run_id, stages, configurations):
        """Put the weights that paths begin with into their first stages, those of `stages` that have not been trained
        and whose configuration (by mst_key) has `weights_sql`: it selects them (float32 bytes), and their MD5 must be
        `weights_md5`. Returns the stages that have them now.

        Raises MopError where this session, as the workers, sees others.
        """
        starts = [
            stage
            for stage in stages
            if stage.parent is None
            and not stage.trained
            and (configurations.get(stage.mst_key) or {}).get("weights_sql")
        ]
        if starts:
            self._lasting(self._within, self._insert_weights, run_id, starts, configurations)
        return starts

    def _within(self, work, *args):
        """What `work(cursor, *args)` gives, in a transaction."""
        with self.connection.cursor() as cursor:
            cursor.execute("BEGIN")
            try:
                result = work(cursor, *args)
                cursor.execute("COMMIT")
            except (psycopg2.Error, MopError):
                if not self.connection.closed:
                    cursor.execute("ROLLBACK")
                raise
        return result

    def _open_run(self, cursor, run, segments, configurations, plan, visits):
        cursor.execute(
            f"SELECT {self.schema}.mop_open_run(%s, %s) AS run_id",
            (
                json.dumps({**run, "coordinator": self.coordinator}),
                json.dumps(
                    [
                        {
                            "dataset": dataset,
                            "segment": s.key,
                            "rows": s.rows,
                            "bytes": s.bytes,
                            "fingerprint": s.fingerprint,
                            "server": s.server,
                            "copies": [{"fingerprint": c.fingerprint, "server": c.server} for c in s.copies],
                        }
                        for dataset, s in segments
                    ]
                ),
            ),
        )
        run_id = cursor.fetchone()["run_id"]
        self._ask(
            cursor,
            run_id,
            configurations,
            plan.stages.values(),
            [(c["mst_key"], stage) for c in configurations for stage in plan.path(c["mst_key"])],
            visits,
        )
        return run_id

    def _ask(self, cursor, run_id, configurations, stages, requests, visits):
        names = (
            "mst_key",
            "model_id",
            "compile_params",
            "fit_params",
            "model_arch",
            "error",
            "weights_sql",
            "weights_md5",
        )
        rows = (
            [{name: row.get(name) for name in names} for row in configurations],
            [
                {
                    "stage": s.number,
                    "parent": s.parent and s.parent.number,
                    "iteration": s.iteration,
                    "identity": s.identity,
                    "mst_key": s.mst_key,
                    "compile_params": s.parameters[0],
                    "fit_params": s.parameters[1],
                    "evaluated": s.evaluated,
                    "version": (s.iteration - 1) * visits,
                }
                for s in stages
            ],
            [{"mst_key": key, "iteration": s.iteration, "stage": s.number} for key, s in requests],
        )
        if max(map(len, rows)) <= MOST_ROWS:
            steps = [rows]
        else:  # first what others refer to
            steps = [
                [rows[n][first : first + MOST_ROWS] if n == kind else [] for n in range(3)]
                for kind in range(3)
                for first in range(0, len(rows[kind]), MOST_ROWS)
            ]
        for step in steps:
            cursor.execute(
                f"SELECT {self.schema}.mop_ask(%s, %s, %s, %s, %s)",
                (run_id, self.fencing_token, *map(json.dumps, step)),
            )

    def _insert_weights(self, cursor, run_id, stages, configurations):
        """Version 0 of paths' model states: plain weights, copied within the server."""
        alike = {}
        for stage in stages:
            row = configurations[stage.mst_key]
            alike.setdefault((row["weights_sql"], row["weights_md5"]), (row, []))[1].append(stage.number)
        for (source, digest), (row, numbers) in alike.items():
            try:
                cursor.execute(
                    f"SELECT {self.schema}.mop_put_weights(%s, %s, (SELECT w FROM ("
                    f"{source.replace('%', '%%')}) AS source(w) WHERE md5(w) = %s))",
                    (run_id, numbers, digest),
                )
                seen = True
            except (
                psycopg2.errors.NotNullViolation,
                psycopg2.errors.UndefinedTable,
                psycopg2.errors.UndefinedColumn,
                psycopg2.errors.LockNotAvailable,
                psycopg2.errors.InvalidSchemaName,
                psycopg2.errors.FeatureNotSupported,
                psycopg2.errors.InsufficientPrivilege,
            ):
                seen = False
            if not seen:
                raise MopError(
                    f"the initial weights of mst_key {row['mst_key']} are not those that other sessions see",
                    detail="Worker sessions see committed data only, and no temporary tables; or they have been "
                    "replaced since.",
                    hint="COMMIT the transaction that wrote them, then call again.",
                    sqlstate="55000",
                )

    def run(self, run_id):
        """One of the caller's own runs as a dict, its `status` the true one, or None.

        A run that this very backend is said to run was left open by an earlier call, which could not close it.
        """
        rows = self.execute(
            f"SELECT r.*, EXISTS (SELECT 1 FROM {self.own}state_table g WHERE g.run_id = r.run_id) AS has_states"
            f" FROM {self.own}run r WHERE run_id = %s AND owner = {self._me}",
            (run_id,),
        )
        if not rows:
            return None
        run = rows[0]
        now = self.execute(
            f"SELECT {self.schema}.mop_status(%(status)s, %(coordinator_pid)s, %(coordinator_start)s, 'failed') AS now",
            run,
        )[0]["now"]
        left = now == "running" and run["coordinator_pid"] == self.caller
        return {**run, "status": "failed" if left else now}

    def unfinished(self, function, output, arguments):
        """The caller's last run of a call of `function` with these arguments (dict), if its output was never
        committed and it still holds states; or None."""
        for row in self.execute(
            f"SELECT run_id FROM {self.own}run r WHERE owner = {self._me} AND function = %s"
            f" AND model_output_table = %s AND EXISTS (SELECT 1 FROM {self.own}state_table g"
            f" WHERE g.run_id = r.run_id) ORDER BY run_id DESC LIMIT 1",
            (function, output),
        ):
            run = self.run(row["run_id"])
            parameters = run["parameters"] if run is not None else {}
            if (
                parameters.get("arguments") == json.loads(json.dumps(arguments))
                and run["status"] != "running"
                and "replay_of" not in parameters.get("tables", {})
                and not self.output_is_written(row["run_id"])
            ):
                return run
        return None

    def later_output(self, run):
        """The number of the caller's last run after `run` (a dict) that has written the same output tables, or None:
        by a warm start, or after somebody dropped them."""
        rows = self.execute(
            f"SELECT r.run_id FROM {self.own}run r WHERE owner = {self._me} AND r.run_id > %s AND"
            f" r.function <> 'mop_more' AND r.model_output_table = %s AND {self.schema}.mop_has_output(r.run_id)"
            f" ORDER BY 1 DESC LIMIT 1",
            (run["run_id"], run["model_output_table"]),
        )
        return rows[0]["run_id"] if rows else None

    def output_is_written(self, run_id):
        """True where the output tables of one of the caller's runs are committed."""
        return self.execute(f"SELECT {self.schema}.mop_has_output(%s) AS yes", (run_id,))[0]["yes"]

    def run_configurations(self, run_id):
        """A run's configurations as dicts, by mst_key."""
        return self.execute(
            f"SELECT mst_key, model_id, compile_params, fit_params, model_arch, error, blame,"
            f" weights_sql, weights_md5, reason FROM {self.own}configuration WHERE run_id = %s"
            f" ORDER BY mst_key",
            (run_id,),
        )

    def run_segments(self, run_id):
        """{(dataset, segment): fingerprint} of a run."""
        return {
            (row["dataset"], row["segment"]): row["fingerprint"]
            for row in self.execute(
                f"SELECT dataset, segment, fingerprint FROM {self.own}segment WHERE run_id = %s", (run_id,)
            )
        }

    def known_copies(self, segments):
        """Of copies of some Segments (by dataset and key) those that earlier runs have found to have the same rows as
        these: {(the segment's server, the copy's server, the copy's fingerprint): fingerprints of the segment}, that of
        the latest run last."""
        fingerprints, found = [copy.fingerprint for s in segments.values() for copy in s.copies], {}
        for row in (
            self.execute(
                f"SELECT s.server, c.server AS copy_on, c.fingerprint AS same, s.fingerprint"
                f" FROM {self.own}copy c JOIN {self.own}segment s USING (run_id, dataset, segment)"
                f" JOIN {self.own}run r USING (run_id) WHERE r.owner = {self._me} AND c.fingerprint = ANY (%s)"
                f" GROUP BY 1, 2, 3, 4 ORDER BY max(run_id)",
                (fingerprints,),
            )
            if fingerprints
            else ()
        ):
            found.setdefault((row["server"], row["copy_on"], row["same"]), []).append(row["fingerprint"])
        return found

    def run_stages(self, run_id):
        """A run's stages as dicts, parents first, with the `mst_keys` that ask for each."""
        return self.execute(
            f"SELECT s.stage, s.parent, s.iteration, s.identity, s.mst_key, s.compile_params, s.fit_params,"
            f" s.evaluated, s.source_run, s.source_stage, coalesce(x.scores, 0) AS scores, q.mst_keys"
            f" FROM {self.own}stage s LEFT JOIN (SELECT run_id, stage, count(*) AS scores FROM {self.own}metric"
            f" GROUP BY run_id, stage) x USING (run_id, stage) LEFT JOIN (SELECT run_id, stage, array_agg(mst_key)"
            f" AS mst_keys FROM {self.own}request GROUP BY run_id, stage) q USING (run_id, stage)"
            f" WHERE s.run_id = %s ORDER BY s.stage",
            (run_id,),
        )

    def run_units(self, run_id):
        """A run's units that were begun, as dicts, those of training by version; `own`: or those of an earlier run, of
        a stage that was taken over."""
        return self.execute(
            f"SELECT u.stage, u.iteration, u.segment, u.kind, u.dataset, u.attempt, u.status, u.version, u.kernel,"
            f" true AS own FROM {self.own}unit u WHERE u.run_id = %(run_id)s"
            f" UNION ALL SELECT s.stage, u.iteration, u.segment, u.kind, u.dataset, u.attempt, u.status, u.version,"
            f" u.kernel, false FROM {self.own}stage s JOIN {self.own}unit u"
            f" ON (u.run_id, u.stage) = (s.source_run, s.source_stage)"
            f" WHERE s.run_id = %(run_id)s AND u.kind = 'train' AND u.status = 'finished'"
            f" ORDER BY version, attempt",
            {"run_id": run_id},
        )

    def models(self, run_id):
        """{stage: {version, state_table, bytes}} of a run's stages that have been trained or start from weights."""
        return {
            row["stage"]: row
            for row in self.execute(
                f"SELECT stage, version, state_table, bytes FROM {self.own}stage_state"
                f" WHERE run_id = %s AND bytes IS NOT NULL",
                (run_id,),
            )
        }

    def state_bytes(self, run_id, stage):
        """Bytes of a stage's model state."""
        return self.execute(
            f"SELECT bytes FROM {self.own}stage_state WHERE run_id = %s AND stage = %s", (run_id, stage)
        )[0]["bytes"]

    def state_tables(self, run_id):
        """The numbers of a run's generations of states, as a set."""
        return {
            row["state_table"]
            for row in self.execute(f"SELECT state_table FROM {self.own}state_table WHERE run_id = %s", (run_id,))
        }

    def reopen_run(self, run_id):
        """Take a run over from a coordinator that has gone: it has another epoch then."""
        self.fencing_token = self.execute(
            f"SELECT {self.schema}.mop_reopen_run(%s, %s) AS fencing_token", (run_id, self.coordinator)
        )[0]["fencing_token"]

    def close_run(self, run_id, status, error=None):
        """Mark a run as ended, and the units that it leaves behind as cancelled."""
        self.execute(f"SELECT {self.schema}.mop_close_run(%s, %s, %s, %s)", (run_id, self.fencing_token, status, error))

    def output_token(self, run_id):
        """What the caller's transaction, which may not see the run, needs to note its output (note_output)."""
        return self.execute(f"SELECT {self.schema}.mop_output_token(%s) AS seal", (run_id,))[0]["seal"]

    def housekeeping(self, checkpoint_bytes):
        """Drop the states that nobody needs any more, and close the runs whose coordinator has gone.

        Of the states that are kept for later runs those of most benefit stay, up to so many bytes.

        A finished run's states go once the caller that wrote its output has committed (see note_output). Where they
        cannot be dropped, the next call will try again.
        """
        self.execute("SET statement_timeout = 0; SET lock_timeout = 100")
        self.execute(f"SELECT {self.schema}.mop_housekeeping()")
        self.execute(f"SELECT {self.schema}.mop_evict(%s)", (checkpoint_bytes,))
        for row in self.execute(
            f"SELECT run_id FROM {self.own}run WHERE status = 'running' AND owner ="
            f" {self._me} AND coordinator_pid = %s",
            (self.caller,),
        ):
            self.close_run(row["run_id"], "failed", "an earlier call of this session could not note how it ended")
        self.execute("SET statement_timeout = 30000; SET lock_timeout = 10000")

    def wanted_sessions(self, run_id):
        """How many worker sessions somebody wants the run to have (mop_set_sessions)."""
        return self.execute(f"SELECT sessions FROM {self.own}run WHERE run_id = %s", (run_id,))[0]["sessions"]

    def terminate(self, pids):
        """End backends that did not hear a cancel."""
        for pid in pids:
            self.execute("SELECT pg_terminate_backend(%s)", (pid,))

    # --- stages that earlier runs have trained ------------------------------------------------------
    def known_stages(self, run_id, identities, datasets):
        """{identity: [Known, ...]} of those stages that earlier runs of the role have trained to their end. Metrics are
        known if they are of all `datasets` (their number), of the same rows."""
        # (no function may look at tables for each row: on Greenplum it would do so on a segment)
        rows = (
            self.execute(
                f"WITH found AS (SELECT s.identity, s.run_id, s.stage,"
                f" c.stage IS NOT NULL AND m.state_table IS NOT NULL AS state,"
                f" coalesce(s.source_run, s.run_id) AS origin_run, coalesce(s.source_stage, s.stage) AS origin_stage,"
                f" coalesce(p.source_run, p.run_id) AS parent_run, coalesce(p.source_stage, p.stage) AS parent_stage"
                f" FROM {self.own}stage s JOIN {self.own}run r USING (run_id)"
                f" LEFT JOIN {self.own}stage p ON (p.run_id, p.stage) = (s.run_id, s.parent)"
                f" JOIN {self.own}stage_state m ON (m.run_id, m.stage) = (s.run_id, s.stage)"
                f" LEFT JOIN {self.own}checkpoint c ON (c.run_id, c.stage) = (s.run_id, s.stage)"
                f" WHERE s.identity = ANY (%s) AND s.run_id <> %s AND r.owner = {self._me}"
                f" AND m.version = s.iteration * r.segments),"
                # datasets by their rows, as mop_same_segments compares them
                f" datasets AS (SELECT g.run_id, g.dataset, array_agg((g.segment, g.fingerprint)::text ORDER BY g.segment)"
                f" AS are FROM {self.own}segment g WHERE g.run_id = %s OR g.run_id IN (SELECT f.run_id FROM found f)"
                f" GROUP BY 1, 2),"
                f" scored AS (SELECT x.run_id, x.stage, count(*) AS scores FROM {self.own}metric x"
                f" JOIN datasets o USING (run_id, dataset) JOIN datasets m ON (m.dataset, m.are) = (o.dataset, o.are)"
                f" WHERE m.run_id = %s GROUP BY 1, 2)"
                f" SELECT f.*, coalesce(n.scores, 0) AS scores FROM found f LEFT JOIN scored n USING (run_id, stage)",
                (list(identities), run_id, run_id, run_id),
            )
            if identities
            else []
        )
        known = {}
        for row in rows:
            before = None if row["parent_run"] is None else (row["parent_run"], row["parent_stage"])
            known.setdefault(row["identity"], []).append(
                Known(
                    row["run_id"],
                    row["stage"],
                    row["state"],
                    row["scores"] >= datasets,
                    (row["origin_run"], row["origin_stage"]),
                    before,
                )
            )
        return known

    def adopt(self, run_id, stages):
        """Take stages over: `stages` as plan.reuse gives them. False where one is no longer there: none is taken."""
        return self.execute(
            f"SELECT {self.schema}.mop_adopt(%s, %s, %s) AS done",
            (
                run_id,
                self.fencing_token,
                json.dumps(
                    [
                        {
                            "stage": stage.number,
                            "run": known.run,
                            "of": known.stage,
                            "state": state,
                            "scored": known.scored,
                        }
                        for stage, known, state in stages
                    ]
                ),
            ),
        )[0]["done"]

    def keep_checkpoints(self, run_id):
        """Keep a run's states for later ones."""
        self.execute(f"SELECT {self.schema}.mop_keep_checkpoints(%s, %s)", (run_id, self.fencing_token))

    # --- what units cost --------------------------------------------------------------------------
    def costs(self, architecture):
        """What the role's runs have measured of an architecture (a digest): rows of mop_unit_costs."""
        return self.execute(
            f"SELECT net, part, version, device, kernel, batch_seconds, compile_seconds, runs,"
            f" noted_at FROM {self.schema}.mop_unit_costs WHERE architecture = %s",
            (architecture,),
        )

    def note_costs(self, run_id, stages):
        """Keep what a run has measured for later ones; `stages`: {Net: numbers of stages, not all of them}."""
        if stages:
            self.execute(
                f"SELECT {self.schema}.mop_note_costs(%s, %s, %s)",
                (
                    run_id,
                    self.fencing_token,
                    json.dumps(
                        [
                            {
                                "net": net.digest,
                                "architecture": net.architecture,
                                "optimizer": net.optimizer,
                                "loss": net.loss,
                                "batch_size": net.batch_size,
                                "shape": net.shape,
                                "stages": numbers,
                            }
                            for net, numbers in stages.items()
                        ]
                    ),
                ),
            )

    # --- units ------------------------------------------------------------------------------------
    def begin_units_sql(self, run_id, units):
        """SQL that notes units (dicts) on a segment that go together as running, for the worker session to run and
        commit first."""
        if self.connection.closed:
            self._connect()
        columns = [[unit[name] for unit in units] for name in ("stage", "iteration", "attempt", "queued_at")]
        with self.connection.cursor() as cursor:
            return cursor.mogrify(
                f"SELECT {self.schema}.mop_begin_units(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (run_id, self.fencing_token, *(units[0][name] for name in ("segment", "kind", "dataset")), *columns),
            ).decode()

    def begin_units(self, run_id, units):
        """Note such units as running; they do so on another server."""
        self.execute(self.begin_units_sql(run_id, units).replace("%", "%%"))

    def fail_unit(self, unit, error, decision):
        """Note that an attempt (dict) failed, and the decision about it. Its row is made here where the session went
        before it could."""
        self.execute(
            f"SELECT {self.schema}.mop_fail_unit(%(run_id)s, %(fencing_token)s, %(stage)s, %(iteration)s, %(segment)s,"
            f" %(kind)s, %(dataset)s, %(attempt)s, %(queued_at)s, %(error)s, %(decision)s)",
            {**unit, "fencing_token": self.fencing_token, "error": error, "decision": decision},
        )

    # --- model states -----------------------------------------------------------------------------
    def new_state_table(self, run_id, state_table):
        """Make a table for the states that are written from now on."""
        self.execute(f"SELECT {self.schema}.mop_new_state_table(%s, %s)", (run_id, state_table))

    def drop_state_tables(self, run_id, state_tables):
        """Drop the tables of these generations, but for those that hold a state of use or that somebody reads: the
        set of those that were dropped."""
        self.execute("SET lock_timeout = 10")
        dropped = self.execute(f"SELECT {self.schema}.mop_drop_state_tables(%s, %s) AS g", (run_id, list(state_tables)))
        self.execute("SET lock_timeout = 10000")
        return {row["g"] for row in dropped}

    def move_states(self, run_id, stages, state_table):
        """Bring the states of stages (numbers) that train no more into a generation."""
        self.execute("SET statement_timeout = 0")
        self.execute(f"SELECT {self.schema}.mop_move_states(%s, %s, %s)", (run_id, list(stages), state_table))
        self.execute("SET statement_timeout = 30000")

    def release_states(self, run_id, stages):
        """Nobody needs the states of these stages (numbers) any more."""
        self.execute(f"SELECT {self.schema}.mop_release_states(%s, %s, %s)", (run_id, self.fencing_token, list(stages)))

    def states(self, run_id, outcomes):
        """The bytes of the model states of `outcomes` (dicts of `outcome`, each with a stage), one after the other;
        small ones are read together. Raises MopError where there is none.

        They come by COPY in binary: as a column of a result they would come as hexadecimal text.
        """
        at = 0
        while at < len(outcomes):
            end = at + 1
            while end < len(outcomes) and sum(c["bytes"] or READ_BYTES for c in outcomes[at : end + 1]) <= READ_BYTES:
                end += 1
            parts = {}
            for stage, part in _copied(self._lasting(self._copy_states, run_id, outcomes[at:end]).getbuffer(), 2):
                parts.setdefault(struct.unpack("!i", stage)[0], []).append(part)
            for c in outcomes[at:end]:
                found = parts.get(c["stage"])
                if not found:
                    raise MopError(f"the state of stage {c['stage']} of run {run_id} is missing", sqlstate="XX001")
                yield found[0] if len(found) == 1 else b"".join(found)
            at = end

    def _copy_states(self, run_id, outcomes):
        parts = io.BytesIO()
        self.execute("SET statement_timeout = 0")
        with self.connection.cursor() as cursor:
            versions = {c["stage"]: c["version"] for c in outcomes}  # (configurations that are alike share a stage)
            cursor.copy_expert(
                cursor.mogrify(
                    f"COPY (SELECT stage, data FROM {self.schema}.mop_read_states(%s, %s, %s)) TO STDOUT (FORMAT binary)",
                    (run_id, list(versions), list(versions.values())),
                ),
                parts,
            )
            cursor.execute("SET statement_timeout = 30000")
        return parts

    def predictions(self, run_id, segment):
        """The parts (bytes) of what has been predicted for a partition, one after the other."""
        number = 0
        while (
            part := self.execute(
                f"SELECT {self.schema}.mop_read_predictions(%s, %s, %s) AS part", (run_id, segment, number)
            )[0]["part"]
        ) is not None:
            yield bytes(part)
            number += 1

    # --- several servers --------------------------------------------------------------------------
    def remote_runs(self, run_id):
        """{server: the run's number there} of the other servers that a run is at work on."""
        return {
            row["server"]: row["remote_run"]
            for row in self.execute(f"SELECT server, remote_run FROM {self.own}remote_run WHERE run_id = %s", (run_id,))
        }

    def add_remote_run(self, run_id, server, remote_run):
        self.execute(
            f"SELECT {self.schema}.mop_add_remote_run(%s, %s, %s, %s)", (run_id, self.fencing_token, server, remote_run)
        )

    def forget_remote_run(self, run_id, server):
        self.execute(f"SELECT {self.schema}.mop_forget_remote_run(%s, %s, %s)", (run_id, self.fencing_token, server))

    def drop_run(self, run_id):
        """Drop a run and its states."""
        self.execute(f"SELECT {self.schema}.mop_drop_run(%s)", (run_id,))

    def led_by(self, leader):
        """{its number there: the number of the leader's run} of the role's runs here that are guests of a server."""
        return {
            row["run_id"]: int(row["led"])
            for row in self.execute(
                f"SELECT run_id, parameters ->> 'run' AS led FROM {self.own}run WHERE owner = {self._me}"
                f" AND function = 'remote_run' AND parameters ->> 'leader' = %s",
                (leader,),
            )
        }

    def finished_units(self, run_id):
        """A run's Units that are finished, those of training by version."""
        return [
            Unit(**row)
            for row in self.execute(
                f"SELECT iteration, stage, kind, dataset, segment FROM {self.own}unit"
                f" WHERE run_id = %s AND status = 'finished' ORDER BY version",
                (run_id,),
            )
        ]

    def report(self, run_id, unit):
        """What is known here of a Unit that is finished (JSON as text), or None."""
        return self.execute(self.report_sql(run_id, unit))[0]["report"]

    def report_sql(self, run_id, unit):
        """SQL for that, as column `report`."""
        return (
            f"SELECT {self.schema}.mop_report_unit({int(run_id)}, {int(unit.stage)}, {int(unit.segment)}, "
            f"'{unit.kind}', '{unit.dataset}')::text AS report"
        )

    def register(self, run_id, report, copy=None):
        """Register what another server reports of a unit; where there is to be a copy of its state (a Move) here, both
        or neither: the copy's bytes."""
        register = f"SELECT {self.schema}.mop_register_unit(%s, %s, %s)"
        if copy is None:
            self.execute(register, (run_id, self.fencing_token, report))
            return None
        return self.execute(
            f"{register}; {self._arrived}",
            (  # (statements that are sent at once are one transaction)
                run_id,
                self.fencing_token,
                report,
                run_id,
                self.fencing_token,
                copy.stage,
                copy.version,
                copy.state_table,
            ),
        )[0]["size"]

    def partials(self, run_id, stage, dataset):
        """The sums of the segments that have been evaluated (JSON as text), or None."""
        return self.execute(
            f"SELECT {self.schema}.mop_take_partials(%s, %s, %s)::text AS sums", (run_id, stage, dataset)
        )[0]["sums"]

    def put_partials(self, run_id, stage, dataset, sums):
        self.execute(
            f"SELECT {self.schema}.mop_put_partials(%s, %s, %s, %s, %s)",
            (run_id, self.fencing_token, stage, dataset, sums),
        )

    def arrived(self, run_id, stage, version, state_table):
        """A stage's state has arrived from elsewhere, in this generation: its bytes."""
        return self.execute(self._arrived, (run_id, self.fencing_token, stage, version, state_table))[0]["size"]

    @property
    def _arrived(self):
        return f"SELECT {self.schema}.mop_arrived(%s, %s, %s, %s, %s) AS size"

    # --- units that ended -------------------------------------------------------------------------
    def unit_is_finished(self, unit):
        """True where the unit's commit reached the server although its answer did not reach us."""
        return bool(
            self.execute(
                f"SELECT 1 FROM {self.own}unit WHERE run_id = %(run_id)s AND stage = %(stage)s"
                f" AND segment = %(segment)s AND kind = %(kind)s AND dataset = %(dataset)s AND status = 'finished'",
                unit,
            )
        )

    def fail_configurations(self, run_id, mst_keys, error, blame):
        """Mark configurations as failed; `blame`: 'configuration' or 'place'."""
        self.execute(
            f"SELECT {self.schema}.mop_fail_configurations(%s, %s, %s, %s, %s)",
            (run_id, self.fencing_token, list(mst_keys), error, blame),
        )

    def withdraw(self, run_id, mst_key, iterations, reason):
        """A configuration goes no further than `iterations`."""
        self.execute(
            f"SELECT {self.schema}.mop_withdraw(%s, %s, %s, %s, %s)",
            (run_id, self.fencing_token, mst_key, iterations, reason),
        )

    def note_growth(self, run_id):
        """The run has many more rows than before."""
        self.execute(f"SELECT {self.schema}.mop_note_growth(%s, %s)", (run_id, self.fencing_token))

    # --- searches ---------------------------------------------------------------------------------
    def log_search(self, run_id, first, events):
        """Add events (JSON-able), numbered from `first`, to the log of a search."""
        if events:
            self.execute(
                f"SELECT {self.schema}.mop_log_search(%s, %s, %s, %s)",
                (run_id, self.fencing_token, first, json.dumps(events)),
            )

    def search_log(self, run_id):
        """The events of a search, in order."""
        return [
            row["event"]
            for row in self.execute(
                f"SELECT event FROM {self.own}search_log WHERE run_id = %s ORDER BY number", (run_id,)
            )
        ]

    def control_requests(self, run_id, last=False):
        """What people have wished of a run since the last look, in order; it is theirs who asked first. `last`: where
        there is nothing, who wishes from now on is refused."""
        if (
            not last
            and not self.execute(
                f"SELECT EXISTS (SELECT 1 FROM {self.own}control_request WHERE run_id = %s) AS some", (run_id,)
            )[0]["some"]
        ):
            return []
        return [
            row["request"]
            for row in self.execute(
                f"SELECT {self.schema}.mop_take_control_requests(%s, %s, %s) AS request",
                (run_id, self.fencing_token, last),
            )
        ]

    # --- results ----------------------------------------------------------------------------------
    def metrics(self, run_id, iteration=None, stages=None):
        """Loss and metrics by configuration, iteration and dataset; `metrics`: {name: value}, `metric`: the first.

        `iteration`, `stages` (numbers): of these alone. Replicas have theirs together, as those of mst_key 1. Each row
        also has `stage`, `seconds` from the run's first unit's start to the evaluation's end, and `took`, those of
        sessions that evaluated (None: an earlier run had).
        """
        return self.execute(
            f"SELECT q.mst_key, q.iteration, m.stage, m.dataset, m.loss, m.metric, m.metrics,"
            # (of all units of the run: not while it goes on)
            # (what an earlier run had evaluated was there when this one began)
            f" CASE WHEN %(stages)s::integer[] IS NULL THEN greatest(0, extract(epoch FROM m.noted_at - coalesce(("
            f"SELECT min(started_at) FROM {self.own}unit WHERE run_id = %(run_id)s), m.noted_at))::float8) END"
            f" AS seconds,"
            f" (SELECT sum(u.read_seconds + u.train_seconds) FROM {self.own}unit u WHERE u.run_id = m.run_id"
            f" AND u.stage = m.stage AND u.kind = 'evaluate' AND u.dataset = m.dataset AND u.status = 'finished')"
            f"::float8 AS took"
            f" FROM {self.own}metric m JOIN {self.own}request q USING (run_id, stage)"
            f" WHERE m.run_id = %(run_id)s AND (%(iteration)s IS NULL OR q.iteration = %(iteration)s)"
            f" AND (%(stages)s::integer[] IS NULL OR m.stage = ANY (%(stages)s::integer[]))"
            f" ORDER BY 2, 1, 4",
            {"run_id": run_id, "iteration": iteration, "stages": stages},
        )

    def outcome(self, run_id, kept=None):
        """The run's configurations as dicts: mst_key, model_id, parameters, error, reason; and of the last stage that
        it trained, or that of the iteration `kept` ({mst_key: iteration}): stage, iteration, version, bytes of its
        state, segment of its last unit."""
        return self.execute(
            f"SELECT DISTINCT ON (c.mst_key) c.mst_key, c.model_id, c.compile_params, c.fit_params, c.model_arch,"
            f" c.error, c.reason, l.stage, l.iteration, l.version, l.bytes, u.segment"
            f" FROM {self.own}configuration c LEFT JOIN ("
            f"  SELECT q.run_id, q.mst_key, q.stage, q.iteration, m.version, m.bytes"
            f"  FROM {self.own}request q JOIN {self.own}stage_state m USING (run_id, stage)) l"
            f" ON l.run_id = c.run_id AND l.mst_key = c.mst_key"
            f" AND l.iteration <= coalesce((%s::json ->> c.mst_key::text)::integer, l.iteration)"
            f" LEFT JOIN {self.own}unit u ON u.run_id = l.run_id AND u.stage = l.stage AND u.version = l.version"
            f" AND u.kind = 'train' AND u.status = 'finished'"
            f" WHERE c.run_id = %s ORDER BY c.mst_key, l.iteration DESC NULLS LAST",
            (json.dumps(kept or {}), run_id),
        )

    def training_seconds(self, run_id, iteration):
        """From an iteration's first training unit's start to its last one's end."""
        return self.execute(
            f"SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 AS s FROM {self.own}unit"
            f" WHERE run_id = %s AND iteration = %s AND kind = 'train'",
            (run_id, iteration),
        )[0]["s"]


class RemoteCatalog(Catalog):
    """The catalog of another server, where a run has a run of its own (sql/postgresql/13_servers.sql).

    Whoever waits for it hears cancels, and waits no longer than SECONDS.
    """

    SECONDS = 5  # for any answer

    def __init__(self, target, schema, check_interrupts):
        """Connects. `schema`: the extension's there, quoted; `tick`: called while it waits. Raises MopError."""
        self.schema, self.target, self.check_interrupts, self.fencing_token, self.caller = (
            schema.replace("%", "%%"),
            target,
            check_interrupts,
            None,
            None,
        )
        self.own = f"{self.schema}.mop_"
        self.leads = None  # the run there that this session leads
        self._connect()

    def _connect(self):
        with self._listening():
            super()._connect()
            self.coordinator = self._run(f"SELECT backend FROM {self.schema}.mop_tokens")[0]["backend"]
            if self.leads is not None:
                self._run(
                    f"SELECT {self.schema}.mop_lead_remote_run(%s, %s, %s)",
                    (self.leads, self.fencing_token, self.coordinator),
                )

    def _lasting(self, work, *args):
        with self._listening():
            return super()._lasting(work, *args)

    @contextlib.contextmanager
    def _listening(self):
        """Within it psycopg2 waits as `_wait` does."""
        before = psycopg2.extensions.get_wait_callback()
        psycopg2.extensions.set_wait_callback(self._wait)
        try:
            yield
        finally:
            psycopg2.extensions.set_wait_callback(before)

    def _wait(self, connection):
        """(Where this raises, psycopg2 closes the connection: nobody waits for the answer. Who did it here would wait
        for psycopg2's lock for ever.)"""
        until = time.monotonic() + self.SECONDS
        while (state := connection.poll()) != psycopg2.extensions.POLL_OK:
            reading = [connection] if state == psycopg2.extensions.POLL_READ else []
            writing = [connection] if state == psycopg2.extensions.POLL_WRITE else []
            if not any(select.select(reading, writing, [], 0.1)):
                self.check_interrupts()
                if time.monotonic() > until:
                    raise MopError(
                        f"server {self.target.server} has not answered for {self.SECONDS} s", sqlstate="08006"
                    )


def metric_of(row, name):
    """The value of 'loss' or of a metric in a row of Catalog.metrics; None where it was not asked for."""
    return row["loss"] if name == "loss" else row["metrics"].get(name)


def note_output(db, run_id, seal):
    """Note, in the caller's transaction, that the run's output is written: others see it once that has committed.

    `seal`: the catalog's, see output_seal.
    """
    db.execute(f"SELECT {db.extension}.mop_note_output($1, $2)", ["bigint", "text"], [run_id, seal])


def _copied(data, columns):
    """The rows (lists of memoryviews) of COPY's binary format, of so many columns."""
    offset = 19 + struct.unpack_from("!i", data, 15)[0]  # signature, flags, length of the header's extension
    rows = []
    while struct.unpack_from("!h", data, offset)[0] >= 0:
        offset += 2
        rows.append([])
        for _ in range(columns):
            size = struct.unpack_from("!i", data, offset)[0]
            rows[-1].append(data[offset + 4 : offset + 4 + size])
            offset += 4 + size
    return rows
