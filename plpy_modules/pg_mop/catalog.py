"""Runs, configurations, segments, units and states: the only module that knows the catalog tables (with execute/unit,
the part of it that runs in a worker session).

It writes through the run's own session, so that what it writes is committed at once and survives the caller's
transaction.
"""

import json

import psycopg2
import psycopg2.extras

from pg_mop.database import MopError, connection_refused, quote_identifier


class Catalog:
    """The catalog through a session of its own, as the calling role."""

    def __init__(self, db, parameters):
        """Connects. Raises MopError with what mends it."""
        self.schema, self.role, self.parameters = db.extension, db.current_user(), parameters
        self._connect()

    def _connect(self):
        parameters = self.parameters
        try:
            self.connection = psycopg2.connect(
                **parameters, connect_timeout=10, application_name="pg_mop catalog",
                cursor_factory=psycopg2.extras.RealDictCursor,
                options="-c search_path=pg_catalog,pg_temp -c client_min_messages=error -c statement_timeout=30000 "
                        "-c lock_timeout=10000 -c default_transaction_isolation=read\\ committed "
                        "-c default_transaction_read_only=off -c idle_in_transaction_session_timeout=0 "
                        "-c idle_session_timeout=0")
            self.connection.autocommit = True
            if self.role != parameters["user"]:
                self._run(f"SET ROLE {quote_identifier(self.role)}")
        except psycopg2.Error as error:
            raise connection_refused(parameters, error) from None

    def execute(self, sql, values=None):
        """Run one statement that may be run twice: where the session turns out to have gone, a new one runs it."""
        if not self.connection.closed:
            try:
                return self._run(sql, values)
            except psycopg2.Error:
                if not self.connection.closed:
                    raise
        self._connect()
        return self._run(sql, values)

    def _run(self, sql, values=None):
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)
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
        except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName,
                psycopg2.errors.FeatureNotSupported, psycopg2.errors.InsufficientPrivilege):
            # not there, or there as another session's temporary table
            return None

    # --- runs -------------------------------------------------------------------------------------
    def open_run(self, run, configurations, segments):
        """Insert a run (dict), its configurations and segments (lists of dicts). Returns run_id.

        A configuration with `weights_sql` starts from the weights (float32 bytes) that it selects, whose MD5 must be
        `weights_md5`. Raises MopError where this session, as the workers, sees others.
        """
        with self.connection.cursor() as cursor:
            cursor.execute("BEGIN")
            try:
                cursor.execute(
                    f"INSERT INTO {self.schema}.mop_run (function, source_table, validation_table, model_output_table,"
                    f" seed, scheduler, num_iterations, metrics_iterations, configurations, segments, parameters,"
                    f" coordinator_pid, coordinator_start) VALUES (%(function)s, %(source_table)s,"
                    f" %(validation_table)s, %(model_output_table)s, %(seed)s, %(scheduler)s, %(num_iterations)s,"
                    f" %(metrics_iterations)s, %(configurations)s, %(segments)s, %(parameters)s, %(coordinator_pid)s,"
                    f" (SELECT backend_start FROM pg_stat_activity WHERE pid = %(coordinator_pid)s)) RETURNING run_id",
                    {**run, "parameters": json.dumps(run["parameters"])})
                run_id = cursor.fetchone()["run_id"]
                for row in configurations:
                    cursor.execute(
                        f"INSERT INTO {self.schema}.mop_configuration (run_id, mst_key, model_id, compile_params,"
                        f" fit_params, model_arch, error) VALUES (%s, %s, %s, %s, %s, %s, %s)",
                        (run_id, row["mst_key"], row["model_id"], row["compile_params"], row["fit_params"],
                         row["model_arch"], row.get("error")))
                    if row.get("weights_sql"):
                        self._insert_weights(cursor, run_id, row)
                for dataset, segment in segments:
                    cursor.execute(f"INSERT INTO {self.schema}.mop_segment VALUES (%s, %s, %s, %s, %s, %s)",
                                   (run_id, dataset, segment.key, segment.rows, segment.bytes, segment.fingerprint))
                cursor.execute("COMMIT")
            except (psycopg2.Error, MopError):
                if not self.connection.closed:
                    cursor.execute("ROLLBACK")
                raise
        return run_id

    def _insert_weights(self, cursor, run_id, row):
        """Version 0 of a model state: plain weights, copied within the server."""
        try:
            source = row["weights_sql"].replace("%", "%%")
            cursor.execute(f"INSERT INTO {self.schema}.mop_state SELECT %s, %s, 0, 0, w FROM ({source}) "
                           f"AS source(w) WHERE md5(w) = %s", (run_id, row["mst_key"], row["weights_md5"]))
            seen = cursor.rowcount == 1
        except (psycopg2.errors.UndefinedTable, psycopg2.errors.UndefinedColumn, psycopg2.errors.LockNotAvailable,
                psycopg2.errors.InvalidSchemaName, psycopg2.errors.FeatureNotSupported,
                psycopg2.errors.InsufficientPrivilege):
            seen = False
        if not seen:
            raise MopError(f"the initial weights of mst_key {row['mst_key']} are not those that other sessions see",
                           detail="Worker sessions see committed data only, and no temporary tables.",
                           hint="COMMIT the transaction that wrote them, then call again.", sqlstate="55000")

    def close_run(self, run_id, status, error=None):
        """Mark a run as ended, and the units that it leaves behind as cancelled."""
        self.execute(f"UPDATE {self.schema}.mop_unit SET status = 'cancelled', finished_at = clock_timestamp() "
                     f"WHERE run_id = %s AND status = 'running'", (run_id,))
        self.execute(f"UPDATE {self.schema}.mop_run SET status = %s, error = %s, finished_at = clock_timestamp() "
                     f"WHERE run_id = %s", (status, error, run_id))

    def housekeeping(self):
        """Drop the states that nobody needs any more, and close the runs whose coordinator has gone.

        A finished run's states go once the caller that wrote its output has committed (see note_output). Where they
        cannot be deleted, the next call will try again.
        """
        self.execute("SET statement_timeout = 0")
        try:
            for row in self.execute(
                    f"SELECT run_id FROM {self.schema}.mop_run r WHERE owner = current_user AND output_written "
                    f"AND EXISTS (SELECT 1 FROM {self.schema}.mop_state s WHERE s.run_id = r.run_id)"):
                self.execute(f"DELETE FROM {self.schema}.mop_state WHERE run_id = %s", (row["run_id"],))
        except psycopg2.errors.LockNotAvailable:
            pass
        self.execute("SET statement_timeout = 30000")
        for row in self.execute(
                f"SELECT run_id FROM {self.schema}.mop_run r WHERE status = 'running' AND owner = current_user "
                f"AND NOT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = r.coordinator_pid "
                f"AND a.backend_start IS NOT DISTINCT FROM r.coordinator_start)"):
            self.close_run(row["run_id"], "failed", "the session that ran it has ended")

    def terminate(self, pids):
        """End backends that did not hear a cancel."""
        for pid in pids:
            self.execute("SELECT pg_terminate_backend(%s)", (pid,))

    # --- units ------------------------------------------------------------------------------------
    def begin_unit_sql(self, unit):
        """SQL that notes a unit (dict) as running, for the worker session to run and commit first."""
        if self.connection.closed:
            self._connect()
        with self.connection.cursor() as cursor:
            return cursor.mogrify(
                f"INSERT INTO {self.schema}.mop_unit (run_id, mst_key, iteration, segment, kind, dataset, attempt,"
                f" status, backend_pid, queued_at, started_at) VALUES (%(run_id)s, %(mst_key)s, %(iteration)s,"
                f" %(segment)s, %(kind)s, %(dataset)s, %(attempt)s, 'running', pg_backend_pid(),"
                f" to_timestamp(%(queued_at)s), clock_timestamp())", unit).decode()

    def fail_unit(self, unit, error):
        """Note that an attempt (dict) failed. Its row is made here where the session went before it could."""
        self.execute(
            f"INSERT INTO {self.schema}.mop_unit (run_id, mst_key, iteration, segment, kind, dataset, attempt,"
            f" status, queued_at, finished_at, error) VALUES (%(run_id)s, %(mst_key)s, %(iteration)s, %(segment)s,"
            f" %(kind)s, %(dataset)s, %(attempt)s, 'failed', to_timestamp(%(queued_at)s), clock_timestamp(), %(error)s)"
            f" ON CONFLICT (run_id, mst_key, iteration, kind, dataset, segment, attempt) DO UPDATE"
            f" SET status = 'failed', finished_at = clock_timestamp(), error = excluded.error",
            {**unit, "error": error})

    def state_bytes(self, run_id, versions):
        """{mst_key: bytes} of the model states of [(mst_key, version), ...]."""
        return {row["mst_key"]: row["bytes"] for row in self.execute(
            f"SELECT mst_key, sum(octet_length(data)) AS bytes FROM {self.schema}.mop_state WHERE run_id = %s"
            f" AND (mst_key, version) IN %s GROUP BY 1", (run_id, tuple(versions)))}

    def unit_is_finished(self, unit):
        """True where the unit's commit reached the server although its answer did not reach us."""
        return bool(self.execute(
            f"SELECT 1 FROM {self.schema}.mop_unit WHERE run_id = %(run_id)s AND mst_key = %(mst_key)s"
            f" AND iteration = %(iteration)s AND segment = %(segment)s AND kind = %(kind)s"
            f" AND dataset = %(dataset)s AND status = 'finished'", unit))

    def fail_configuration(self, run_id, mst_key, error):
        self.execute(f"UPDATE {self.schema}.mop_configuration SET error = %s WHERE run_id = %s AND mst_key = %s",
                     (error, run_id, mst_key))

    # --- results ----------------------------------------------------------------------------------
    def metrics(self, run_id, iteration=None, together=False):
        """Loss and metric by configuration, iteration and dataset: means weighted by the segments' rows.

        `together`: the configurations are replicas of one model, which evaluate it together; its mst_key is 1.
        Each row also has `seconds`, from the first unit's start to the evaluation's end.
        """
        return self.execute(
            f"SELECT {'1' if together else 'mst_key'} AS mst_key, iteration, dataset,"
            f" sum(loss * rows) / sum(rows) AS loss,"
            f" sum(metric * rows) / sum(rows) AS metric,"
            f" extract(epoch FROM max(finished_at) - (SELECT min(started_at) FROM {self.schema}.mop_unit"
            f" WHERE run_id = %(run_id)s))::float8 AS seconds,"
            f" extract(epoch FROM max(finished_at) - min(started_at))::float8 AS took"
            f" FROM {self.schema}.mop_unit WHERE run_id = %(run_id)s AND kind = 'evaluate' AND status = 'finished'"
            f" AND (%(iteration)s IS NULL OR iteration = %(iteration)s)"
            f" GROUP BY 1, 2, 3 ORDER BY 2, 1, 3", {"run_id": run_id, "iteration": iteration})

    def training_seconds(self, run_id, iteration):
        """From an iteration's first training unit's start to its last one's end."""
        return self.execute(
            f"SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 AS s FROM {self.schema}.mop_unit"
            f" WHERE run_id = %s AND iteration = %s AND kind = 'train'", (run_id, iteration))[0]["s"]


def note_output(db, run_id):
    """Note, in the caller's transaction, that the run's output is written: others see it once that has committed."""
    db.execute(f"UPDATE {db.extension}.mop_run SET output_written = true WHERE run_id = $1", ["bigint"], [run_id])


def configurations(db, run_id):
    """The run's configurations as the caller's transaction sees them: mst_key, version, error, last segment."""
    return db.execute(
        f"SELECT c.mst_key, c.model_id, c.compile_params, c.fit_params, c.model_arch, c.version, c.error,"
        f" (SELECT u.segment FROM {db.extension}.mop_unit u WHERE u.run_id = c.run_id AND u.mst_key = c.mst_key"
        f"  AND u.kind = 'train' AND u.status = 'finished' ORDER BY u.version DESC LIMIT 1) AS segment"
        f" FROM {db.extension}.mop_configuration c WHERE c.run_id = $1 ORDER BY c.mst_key", ["bigint"], [run_id])


def state(db, run_id, mst_key, version):
    """The bytes of a model state, as the caller's transaction sees them. Raises MopError where there is none."""
    rows = db.execute(f"SELECT data FROM {db.extension}.mop_state WHERE run_id = $1 AND mst_key = $2 AND version = $3 "
                      f"ORDER BY part", ["bigint", "integer", "integer"], [run_id, mst_key, version])
    if not rows:
        raise MopError(f"the state of model {mst_key} of run {run_id} is missing", sqlstate="XX001")
    return rows[0]["data"] if len(rows) == 1 else b"".join(row["data"] for row in rows)
