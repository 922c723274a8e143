"""`make soak`: small runs, one after another and two at once, under random faults, until the time is up.

Every run is brought to its end, by mop_resume or by the same call again. Then mop_replay repeats it, undisturbed and with
another number of sessions: the weights of both must be equal, byte by byte, and so must be the order of visits. Where the
visit order cannot differ from that of an undisturbed twin, the run's weights must be the twin's, too. Prints what it found;
exits 1 where anything is wrong. Chance comes from the seed, but for the moments at which things happen.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import signal
import socket
import sys
import threading
import time
import traceback

import psycopg2

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from support.client import Client, connect  # noqa: E402
from support.cluster import Cluster, eventually  # noqa: E402
from support.trainers import all_trainers, of_backend, trainers  # noqa: E402
from support.workload import ADAM, assert_invariants, dense, load, make_data, selection  # noqa: E402

DATABASE, ROLES = "soak", ("soak_a", "soak_b")
ATTEMPT_SECONDS = 120  # a call that lasts longer hangs
ATTEMPTS = 5  # of a run that are disturbed
IN_VAIN = 4  # attempts that no fault of ours explains, after which a run never ends
PYTHON_ERROR = re.compile(r"^(plpy\.Error: )?(\w+: )?(psycopg2\.|\w+(Error|Exception)\b)")


def parameters():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--faults", default=None, help="only these kinds, comma-separated")
    return parser.parse_args()


class Job:
    """One fit call that is disturbed until it is finished: `attempt` begins it or goes on with it, in a thread."""

    def __init__(self, soak, number, role, chance):
        self.soak, self.role, self.chance = soak, role, chance
        self.kind = chance.choice(["multiple", "multiple", "multiple", "average"])
        self.segments, self.iterations = chance.randint(1, 3), chance.randint(2, 3)
        self.configurations = chance.randint(1, 4) if self.kind == "multiple" else 1
        self.every = chance.choice([None, 1])
        self.validation = f"val{self.segments}" if chance.random() < 0.3 else None
        self.fresh = chance.random() < 0.3
        self.output = f"{role}.out_{number}"
        self.client, self.thread, self.error = None, None, None
        self.attempts, self.in_vain, self.faults, self.history, self.finished = 0, 0, [], [], False
        # held to note a fault and to end a call: a fault is noted for a call that is not over, or not at all
        self.lock, self.over = threading.Lock(), True

    def __str__(self):
        return (
            f"{self.output}: {self.kind}, {self.segments} segments, {self.configurations} configurations, "
            f"{self.iterations} iterations, metrics every {self.every}, validation {self.validation}"
        )

    def sql(self, output=None):
        return call(
            self.kind,
            self.segments,
            self.configurations,
            self.iterations,
            output or self.output,
            self.every,
            self.validation,
        )

    def run_id(self):
        return self.soak.watch(
            "SELECT max(run_id) AS id FROM madlib.mop_runs WHERE model_output_table = %s", [self.output]
        )[0]["id"]

    def has_output(self):
        return bool(self.soak.watch("SELECT to_regclass(%s) IS NOT NULL AS yes", [self.output])[0]["yes"])

    def note(self, kind, detail=""):
        """A fault is thrown at this job now: its entry; None where the call is over, and how it ended is its own."""
        with self.lock:
            if self.over:
                return None
            self.faults.append([kind, round(time.monotonic() - self.began, 2), detail])
            return self.faults[-1]

    @property
    def rests(self):
        """What hit the last attempt is still in force: the next waits until it is over."""
        return any(kind in self.soak.lingering for kind, _, _ in self.faults)

    def attempt(self):
        """Begin the next attempt, perhaps with a fault of its own."""
        chance, self.attempts = self.chance, self.attempts + 1
        self.faults, self.began, self.error, self.over = [], time.monotonic(), None, False
        calm = self.attempts > ATTEMPTS
        if (
            self.client is None
            or self.client.connection.closed
            or self.client.life != self.soak.restarts
            or (self.fresh and self.attempts > 1)
        ):
            self.leave()
            self.client = self.soak.client(self.role)
        run_id = self.run_id()
        again = run_id is not None and chance.random() < 0.5
        sql = f"SELECT madlib.mop_resume({run_id})" if again else self.sql()
        settings = "RESET statement_timeout; RESET pg_mop.trainer_memory_mb; "
        own = None if calm else chance.choice([None] * 5 + ["statement_timeout", "memory", "rollback"])
        own = own if own in self.soak.kinds else None
        if own == "statement_timeout":
            settings += f"SET statement_timeout = {chance.randint(100, 9000)}"
        elif own == "memory":
            settings += f"SET pg_mop.trainer_memory_mb = {chance.choice([300, 400, 450])}"
        if own:
            self.note(own, settings)
        for kind in self.soak.lingering:
            self.note(kind, "still")
        self.rollback, self.what = own == "rollback", sql
        self.pid = self.client.connection.info.backend_pid
        self.thread = threading.Thread(target=self._go, args=(settings, sql), daemon=True)
        self.thread.start()

    def _go(self, settings, sql):
        ended = None
        try:
            self.client.run(settings)
            if self.rollback:
                self.client.run("BEGIN")
            self.client.run(sql)
            if self.rollback:
                self.client.run("ROLLBACK")
        except psycopg2.Error as error:
            ended = error
        finally:
            with self.lock:
                self.error, self.over = ended, True

    @property
    def working(self):
        return self.thread is not None and self.thread.is_alive()

    def leave(self):
        """Close the client's connection and wait until its backend has ended, with what it had begun.

        The role has no other client: its worker sessions are to end, too.
        """
        if self.client is not None:
            self.client.close()
            pid, self.client = self.pid if self.attempts else None, None
            if pid and not eventually(
                lambda: (
                    not self.soak.watch(
                        "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND usename = %s", [pid, self.role]
                    )
                ),
                ATTEMPT_SECONDS,
            ):
                self.soak.found("hang", self, f"backend {pid} does not end after its client has gone")
                self.soak.watch("SELECT pg_terminate_backend(%s)", [pid])
            if pid and not eventually(lambda: not self.soak.sessions_of(self, "pg_mop%"), 30):
                self.soak.found("sessions left", self, f"of client {pid}: {self.soak.sessions_of(self, 'pg_mop%')}")

    def ended(self):
        """An attempt has ended: judge how. True where there is to be no other: the run is finished, or given up."""
        self.thread = None
        soak, error = self.soak, self.error
        self.history.append((self.what[:30], self.faults, str(error).strip()[:200] if error else "ok"))
        soak.count_faults(self.faults)
        if self.client.connection.closed:
            self.leave()
        elif error is not None:
            try:
                self.client.run("ROLLBACK")
            except psycopg2.Error:
                self.leave()
        # whatever we were told: a commit may have been made of which we did not hear
        self.finished = self.has_output()
        if error is not None:
            self.judge(error)
        elif not self.finished and not self.rollback:
            soak.found("no output", self, "the call ended well, but there is no output table")
        if self.rollback and self.finished:
            soak.found("output despite ROLLBACK", self, "the call's transaction was rolled back")
        # (that we ended a call that hung explains its error, not that it hung)
        self.in_vain += not self.rollback and not {kind for kind, _, _ in self.faults} & (ENDING - {"hung"})
        if self.in_vain >= IN_VAIN and not self.finished:
            soak.found(
                "never ends",
                self,
                f"not finished after {self.attempts} attempts, {self.in_vain} of them with no fault that ends a call",
            )
            return True
        return self.finished

    def judge(self, error):
        """Is this error one that the faults of the attempt explain?"""
        kinds = {kind for kind, _, _ in self.faults}
        message = (error.diag.message_primary or str(error)).strip()
        # a server or session that goes takes every call along
        if not kinds & ENDING:
            self.soak.found("unexpected error", self, f"{error.pgcode} {error}")
        elif error.pgcode == "38000" or PYTHON_ERROR.match(message):
            self.soak.found("a Python error", self, f"{error.pgcode} {error}")

    def check(self):
        """Compare a finished run with its replay and perhaps with a twin, check the log, and drop the output."""
        soak, run_id = self.soak, self.run_id()
        failed = soak.watch(
            "SELECT mst_key, error FROM madlib.mop_configuration WHERE run_id = %s AND error IS NOT NULL", [run_id]
        )
        if failed and not any(fault[0] == "memory" for _, faults, _ in self.history for fault in faults):
            soak.found("a failed configuration", self, str(failed))
        if self.replay(run_id):
            soak.replays += 1
            self.compare(f"{self.output}_again", failed)
        if self.kind == "average" or self.segments == 1:
            self.compare(
                soak.twin("average", self.segments, 1, self.iterations)
                if self.kind == "average"
                else soak.twin("multiple", 1, 4, self.iterations),
                failed,
            )
        try:
            if self.kind == "multiple":
                assert_invariants(soak.watcher, run_id)
            else:
                visits = soak.watch(
                    "SELECT count(*) AS n, count(DISTINCT (mst_key, iteration)) AS d FROM "
                    "madlib.mop_visit_order WHERE run_id = %s",
                    [run_id],
                )[0]
                assert visits["n"] == visits["d"] == self.segments * self.iterations, visits
            states = {
                r["status"]
                for r in soak.watch("SELECT DISTINCT status FROM madlib.mop_unit WHERE run_id = %s", [run_id])
            }
            assert "running" not in states, f"units of a finished run are {states}"
            status = soak.watch("SELECT status FROM madlib.mop_run WHERE run_id = %s", [run_id])[0]["status"]
            assert status == "finished", f"a run whose output is committed is {status}"
        except AssertionError as error:
            soak.found("an invariant", self, str(error)[:3000])
        self.drop()

    def replay(self, run_id):
        """Replay the finished run into the tables `<output>_again`; whether that went well, in the visit order of the run.

        (Kernels are plain and trainers have one thread, so that a replay promises the same bytes.)
        """
        soak, order = (
            self.soak,
            "SELECT mst_key, iteration, position, segment FROM madlib.mop_visit_order WHERE run_id = %s",
        )
        most = self.segments if self.kind == "average" else 4
        other = self.chance.choice([n for n in range(1, max(most, 2) + 1) if n != self.segments])
        if not soak.quietly(
            self,
            f"SET pg_mop.sessions = {other}; SELECT madlib.mop_replay({run_id}, "
            f"'{self.output}_again'); RESET pg_mop.sessions",
        ):
            return False
        again = soak.watch(
            "SELECT max(run_id) AS id FROM madlib.mop_runs WHERE model_output_table = %s", [f"{self.output}_again"]
        )[0]["id"]
        finished = "(SELECT mst_key FROM madlib.mop_configuration WHERE run_id = %s AND error IS NULL)"
        visits = f"{order} AND mst_key IN {finished} EXCEPT {order}"
        wrong = soak.watch(visits, [run_id, run_id, again]) if self.kind == "multiple" else []
        if wrong:
            soak.found("another visit order", self, f"of replay {again} of run {run_id}: {wrong}")
        return True

    def compare(self, other, failed):
        """Compare the weights with those of another table, byte by byte. `failed`: configurations that have none."""
        soak, key = self.soak, "mst_key" if self.kind == "multiple" else "1"
        mine, theirs = (
            {row["k"]: row["w"] for row in soak.watch(f"SELECT {key} AS k, md5(model_weights) AS w FROM {table}")}
            for table in (self.output, other)
        )
        for row in failed:
            mine.pop(row["mst_key"], None)
        soak.compared += len(mine)
        wrong = [k for k in mine if mine[k] is None or mine[k] != theirs.get(k)]
        if wrong or len(mine) != self.configurations - len(failed):
            soak.differences += len(wrong) or 1
            soak.found("a difference", self, f"of {other}: mst_keys {wrong} of {sorted(mine)}")

    def drop(self):
        """Drop the output tables and the job's runs that were not finished. (The states of one whose output was
        written are for the owner's next call to drop.)"""
        soak, again = self.soak, f"{self.output}_again"
        soak.units += soak.watch(
            "SELECT count(*) AS n FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) "
            "WHERE model_output_table IN (%s, %s)",
            [self.output, again],
        )[0]["n"]
        soak.watch(
            "; ".join(
                f"DROP TABLE IF EXISTS {name}{more}"
                for name in (self.output, again)
                for more in ("", "_info", "_summary")
            )
        )
        for row in soak.watch(
            "SELECT run_id FROM madlib.mop_abandoned_runs WHERE model_output_table IN (%s, %s) AND "
            "to_go_on IS NOT NULL",
            [self.output, again],
        ):
            try:
                soak.watch("SELECT madlib.mop_drop_run(%s)", [row["run_id"]])
            except psycopg2.Error as error:
                soak.found("a run that cannot be dropped", self, str(error))


def call(kind, segments, configurations, iterations, output, every=None, validation=None):
    """SQL of a fit call."""
    every, validation = every or "NULL", f"'{validation}'" if validation else "NULL"
    if kind == "multiple":
        return (
            f"SELECT madlib.madlib_keras_fit_multiple_model('flowers{segments}_packed', '{output}', "
            f"'mst{configurations}', {iterations}, FALSE, {validation}, {every})"
        )
    return (
        f"SELECT madlib.madlib_keras_fit('flowers{segments}_packed', '{output}', 'arch', 1, "
        f"$${ADAM.format(0.01)}$$, 'batch_size=1, epochs=6', {iterations}, FALSE, {validation}, {every})"
    )


# kind -> (how often, relative to the others; method of Soak that throws it at a job, given the job)
TIMED = {
    "trainer killed": (3, "kill_trainer"),
    "worker terminated": (3, "terminate_worker"),
    "catalog terminated": (3, "terminate_catalog"),
    "coordinator terminated": (2, "terminate_coordinator"),
    "coordinator cancelled": (2, "cancel_coordinator"),
    "worker cancelled": (2, "cancel_worker"),
    "client closed": (2, "close_client"),
    "server killed": (1, "kill_server"),
    "server shut down": (1, "shut_server_down"),
    "sessions": (2, "set_sessions"),
    "connections": (1, "use_up_connections"),
}
OF_ATTEMPTS = ("statement_timeout", "memory", "rollback")
# those after which a call may end with an error
ENDING = {
    "coordinator terminated",
    "coordinator cancelled",
    "worker cancelled",
    "client closed",
    "server killed",
    "server shut down",
    "connections",
    "statement_timeout",
    "memory",
    "hung",
}
WHOLE_SERVER = ("server killed", "server shut down", "connections")


class Soak:
    """The server, the jobs, the faults and what was found."""

    def __init__(self, server, seconds, seed, kinds):
        self.server, self.seed, self.kinds = server, seed, kinds
        self.chance, self.deadline = random.Random(seed), time.monotonic() + seconds
        self.watcher, self.lingering, self.background = None, [], []
        self.jobs, self.twins, self.expected = [], {}, {}
        self.faults, self.findings = collections.Counter(), []
        self.units = self.runs = self.attempts = self.replays = self.compared = self.differences = 0
        self.restarts, self.interrupted = 0, False

    def interrupt(self, number, frame):
        """Signal handler: end soon. (An exception would come anywhere, between a fault and its note, too.)"""
        if not self.interrupted:
            print("interrupted: what was found so far follows", flush=True)
        self.interrupted = True

    # --- the server -----------------------------------------------------------------------------
    def watch(self, sql, values=None):
        """Run SQL as the superuser."""
        if self.watcher is None or self.watcher.connection.closed:
            self.watcher = self.client("postgres")
        return self.watcher.run(sql, values)

    def client(self, role):
        """A session of a role; waits for a server that has no connection left, or starts."""
        deadline = time.monotonic() + 30
        while True:
            try:
                client = Client(self.server, DATABASE, role)
                client.life = self.restarts  # other than ours: a fault has ended its connection
                return client
            except psycopg2.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def prepare(self):
        """The database with its data, architectures and roles."""
        maker = connect(self.server, "postgres")
        maker.cursor().execute(f"CREATE DATABASE {DATABASE}")
        maker.close()
        self.watch("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; CREATE SCHEMA twins")
        self.watch(
            f"ALTER DATABASE {DATABASE} SET pg_mop.kernel = 'plain'; "
            f"ALTER DATABASE {DATABASE} SET pg_mop.threads = 1; ALTER DATABASE {DATABASE} SET pg_mop.seed = 5"
        )
        self.watcher.close()
        self.watch("SELECT 1")
        for segments in (1, 2, 3):
            make_data(self.watcher, f"flowers{segments}", rows=60, segments=segments)
            self.watch(
                f"SELECT madlib.validation_preprocessor_dl('flowers{segments}', 'val{segments}', 'y', 'x', "
                f"'flowers{segments}_packed')"
            )
        load(self.watcher, "arch", dense())
        for count in (1, 2, 3, 4):  # the second and third begin as the first, and part from it one after the other
            selection(
                self.watcher,
                f"mst{count}",
                "arch",
                [
                    (1, ADAM.format(rate), "batch_size=1, epochs=6")
                    for rate in ("0.01", "[0.01, 0.02]", "[0.01, 0.01, 0.03]", "0.04")[:count]
                ],
            )
        for role in ROLES:
            self.watch(
                f"CREATE ROLE {role} LOGIN; GRANT mop_user TO {role}; CREATE SCHEMA {role} AUTHORIZATION {role};"
                f" GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}; "
                f"GRANT USAGE ON SCHEMA madlib TO {role}"
            )
        # one of them may lock the sources
        self.watch(f"GRANT UPDATE ON ALL TABLES IN SCHEMA public TO {ROLES[0]}")

    def quietly(self, job, sql):
        """Run what must succeed, undisturbed, as the job's role; whether it did."""
        self.calm_down()
        client, done = self.client(job.role), False
        try:
            client.run(f"SET statement_timeout = '{ATTEMPT_SECONDS}s'")
            for statement in sql.split("; "):
                client.run(statement)
            done = True
        except psycopg2.Error as error:
            self.found("unexpected error", job, f"{sql}: {error}")
        client.close()
        return done

    def calm_down(self):
        """Wait until no fault is in force; none is thrown while we, who throw them, are busy."""
        assert eventually(lambda: not self.lingering, 60), f"still in force: {self.lingering}"

    def twin(self, kind, segments, configurations, iterations):
        """The output table of an undisturbed run of this shape."""
        key = (kind, segments, iterations)
        if key not in self.twins:
            table = f"twins.{kind}_{segments}_{iterations}"
            self.calm_down()
            client, began = self.client("postgres"), time.monotonic()
            client.run(call(kind, segments, configurations, iterations, table))
            client.close()
            self.twins[key], self.expected[key] = table, time.monotonic() - began
        return self.twins[key]

    # --- findings -------------------------------------------------------------------------------
    def found(self, what, job, text):
        """Note and print something wrong, with all that is needed to find it."""
        lines = [f"--- {what} (seed {self.seed}): {text}"]
        if job is not None:
            lines.append(f"  job {job}")
            lines += [f"  attempt {entry}" for entry in job.history]
            lines.append(f"  now: {job.what[:60]}, faults (kind, second, detail) {job.faults}")
            try:
                for row in self.watch(
                    "SELECT run_id, status, error, started_at, finished_at, coordinator_pid, sessions"
                    " FROM madlib.mop_run WHERE model_output_table = %s ORDER BY 1",
                    [job.output],
                ):
                    lines.append("  run " + ", ".join(f"{k}={v}" for k, v in row.items()))
                for row in self.watch(
                    "SELECT u.run_id, stage, iteration, segment, kind, dataset, attempt, u.status, "
                    "version, backend_pid, u.started_at::time, u.finished_at::time, left(u.error, 200"
                    ") AS error FROM madlib.mop_unit u JOIN madlib.mop_run r USING (run_id) WHERE "
                    "model_output_table = %s ORDER BY coalesce(u.started_at, u.finished_at)",
                    [job.output],
                ):
                    lines.append("  unit " + " ".join(str(v) for v in row.values()))
            except psycopg2.Error as error:
                lines.append(f"  (the log cannot be read: {error})")
        lines += ["  server: " + line[:200] for line in self.server.said().splitlines()[-20:]]
        self.findings.append(what)
        print("\n".join(lines), flush=True)

    def count_faults(self, faults):
        self.faults.update(kind for kind, _, detail in faults if detail != "still" and kind in OF_ATTEMPTS)

    # --- faults ---------------------------------------------------------------------------------
    def sessions_of(self, job, name):
        return [
            row["pid"]
            for row in self.watch(
                "SELECT pid FROM pg_stat_activity WHERE usename = %s AND application_name LIKE %s ORDER BY 1",
                [job.role, name],
            )
        ]

    def signal_backend(self, job, how, pids):
        if not pids:
            return False
        pid = self.chance.choice(pids)
        return self.watch(f"SELECT {how}(%s) AS sent", [pid])[0]["sent"] and str(pid)

    def kill_trainer(self, job):
        workers = set(self.sessions_of(job, "pg_mop run%"))
        pids = sorted(pid for pid in trainers() if of_backend(pid) in workers)
        if not pids:
            return False
        pid = self.chance.choice(pids)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return str(pid)

    def terminate_worker(self, job):
        return self.signal_backend(job, "pg_terminate_backend", self.sessions_of(job, "pg_mop run%"))

    def cancel_worker(self, job):
        return self.signal_backend(job, "pg_cancel_backend", self.sessions_of(job, "pg_mop run%"))

    def terminate_catalog(self, job):
        return self.signal_backend(job, "pg_terminate_backend", self.sessions_of(job, "pg_mop catalog"))

    def terminate_coordinator(self, job):
        job.client.life = None  # also where it ends only after the call
        return self.signal_backend(job, "pg_terminate_backend", [job.pid])

    def cancel_coordinator(self, job):
        return self.signal_backend(job, "pg_cancel_backend", [job.pid])

    def close_client(self, job):
        """As when the client's machine goes: the socket is shut, nobody says goodbye."""
        job.client.life = None
        try:
            with socket.socket(fileno=os.dup(job.client.connection.fileno())) as copy:
                copy.shutdown(socket.SHUT_RDWR)
        except (psycopg2.InterfaceError, OSError):  # its server was quicker
            return False
        return "closed"

    def kill_server(self, job):
        self.restarts += 1  # before it happens, for those who ask whether it has
        self.server.kill()
        self.start_again()
        return "killed"

    def shut_server_down(self, job):
        self.restarts += 1
        self.server.end(signal.SIGQUIT)
        self.start_again()
        return "immediately"

    def start_again(self):
        if not eventually(lambda: not all_trainers(), 10):
            self.found("orphans", None, f"trainers {all_trainers()} outlive the server")
        self.server.start()
        self.watcher.close()

    def set_sessions(self, job):
        run_id, number = job.run_id(), self.chance.randint(1, 5)
        try:
            self.watch("SELECT madlib.mop_set_sessions(%s, %s)", [run_id, number])
        except psycopg2.Error as error:
            if "is not running" in str(error):
                return False
            raise
        return str(number)

    def use_up_connections(self, job):
        """All connections but the superusers' are taken for a few seconds."""
        taken, seconds, restarts = [], self.chance.uniform(1, 4), self.restarts
        self.lingering.append("connections")
        try:
            while True:
                taken.append(connect(self.server, DATABASE, ROLES[0]))
        except psycopg2.OperationalError:
            pass

        def give_back():
            eventually(lambda: restarts != self.restarts, seconds)
            backends = [f"/proc/{connection.info.backend_pid}" for connection in taken]
            for connection in taken:
                connection.close()
            eventually(lambda: not any(map(os.path.exists, backends)), 30)
            self.lingering.remove("connections")

        self.later(give_back)
        return f"{len(taken)} for {seconds:.1f} s"

    def later(self, function):
        thread = threading.Thread(target=function, daemon=True)
        thread.start()
        self.background.append(thread)

    def throw(self, kind, job):
        """Throw a fault at a job; False where there is nothing to throw it at now."""
        # noted before it happens, as the call may end at once; all calls begin in this thread, so none does meanwhile
        touched = self.jobs if kind in WHOLE_SERVER else [job]
        noted = [(other, fault) for other in touched if (fault := other.note(kind))]
        detail = noted and getattr(self, TIMED[kind][1])(job)
        for other, fault in noted:
            if detail:
                fault[2] = detail
            else:
                other.faults.remove(fault)
        if detail:
            self.faults[kind] += 1
        return bool(detail)

    # --- the soak -------------------------------------------------------------------------------
    def go(self):
        """Jobs and faults until the time is up."""
        number, clients = 0, {}
        while time.monotonic() < self.deadline and not self.interrupted:
            chance = random.Random(f"{self.seed} {number}")
            roles = list(ROLES) if chance.random() < 0.3 else [chance.choice(ROLES)]
            self.jobs = []
            for role in roles:
                job = Job(self, number, role, chance)
                job.client, job.pid = clients.pop(role, None), None
                if job.fresh and job.client is not None:
                    job.client.close()
                    job.client = None
                self.jobs.append(job)
                number += 1
            self.disturb(chance)
            if self.interrupted:
                return
            for job in self.jobs:
                self.runs += 1
                if job.client is not None:
                    clients[job.role] = job.client
            self.jobs = []
        for client in clients.values():
            client.close()

    def disturb(self, chance):
        """Bring the jobs to their end, throwing faults at them."""
        plan = {}  # job -> [(when, kind)]
        left = list(self.jobs)
        timed = [k for k in TIMED if k in self.kinds]
        while left and not self.interrupted:
            for job in left:
                if job.thread is None:
                    if job.rests:
                        continue
                    job.attempt()
                    self.attempts += 1
                    count = chance.choice([0, 1, 2, 2, 3]) if job.attempts <= ATTEMPTS and timed else 0
                    lasts = 3 + 0.5 * job.iterations * job.configurations
                    plan[job] = sorted(
                        (job.began + chance.uniform(0, lasts), kind)
                        for kind in chance.choices(timed, [TIMED[k][0] for k in timed], k=count)
                    )
                elif not job.working:
                    if job.ended():
                        left.remove(job)
                        if job.has_output():
                            job.check()
                        else:
                            job.drop()
                elif time.monotonic() - job.began > ATTEMPT_SECONDS and job.note("hung"):
                    activity = self.watch(
                        "SELECT pid, application_name, state, wait_event, left(query, 100) AS query "
                        "FROM pg_stat_activity WHERE datname = current_database()"
                    )
                    self.found("hang", job, "\n".join(map(str, activity)))
                    self.terminate_coordinator(job)
                    job.thread.join(30)
                    if job.working:
                        self.close_client(job)
                        job.thread.join(30)
                elif plan[job] and plan[job][0][0] < time.monotonic():
                    kind = plan[job][0][1]
                    if self.throw(kind, job) or kind in ("sessions", "client closed"):
                        plan[job].pop(0)
            time.sleep(0.05)

    def rest(self):
        """End what is still under way: nothing of a run may be left."""
        for thread in self.background:
            thread.join(60)
            if thread.is_alive():
                self.found("hang", None, "the connections that were taken are not given back")
        self.background = []
        for job in self.jobs:
            if job.client is not None:
                self.watch("SELECT pg_terminate_backend(%s)", [job.pid]) if job.working else None
                job.client.close()
        idle = eventually(
            lambda: (
                not self.watch(
                    "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'pg_mop%%'"
                    " AND datname = current_database()",
                    [],
                )
            ),
            15,
        )
        alone = eventually(lambda: not trainers(), 5)
        return idle, alone

    def orphans(self):
        """What is left although every run is finished or dropped, by kind."""
        self.rest()
        sessions = self.watch("SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'pg_mop%%'", [])
        left = {"sessions": len(sessions), "trainers": len(trainers())}
        for job in self.jobs:  # interrupted
            job.drop()
        # a finished run's states go with the owner's next call; that call's own we drop
        for role in ROLES:
            client = self.client(role)
            table = f"{role}.the_last"
            client.run(call("multiple", 1, 1, 1, table))
            client.run(f"DROP TABLE {table}, {table}_info, {table}_summary")
            for row in self.watch("SELECT run_id FROM madlib.mop_runs WHERE model_output_table = %s", [table]):
                client.run("SELECT madlib.mop_drop_run(%s)", [row["run_id"]])
            client.close()
        for row in self.watch("SELECT run_id FROM madlib.mop_runs WHERE owner = 'postgres'"):
            self.watch("SELECT madlib.mop_drop_run(%s)", [row["run_id"]])
        states = self.watch("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^mop_state_[0-9]'")
        tables = self.watch(
            "SELECT oid::regclass::text AS name FROM pg_class WHERE relkind = 'r' AND relnamespace IN "
            "(SELECT oid FROM pg_namespace WHERE nspname = ANY (%s))",
            [list(ROLES)],
        )
        running = self.watch("SELECT run_id FROM madlib.mop_run WHERE status = 'running'")
        left.update({"state tables": len(states), "output tables": len(tables), "runs 'running'": len(running)})
        for name, rows in (("state tables", states), ("output tables", tables), ("running", running)):
            if rows:
                print(f"--- orphans: {name} {[next(iter(r.values())) for r in rows]}")
        return left

    def size(self):
        """(MB of memory of the server's processes and trainers, MB of disk of the cluster)."""
        self.rest()
        if self.watcher is not None:
            self.watcher.close()
        self.watch("CHECKPOINT")
        kilobytes = 0
        for pid in self.server.processes() + all_trainers():
            try:
                with open(f"/proc/{pid}/smaps_rollup") as file:
                    kilobytes += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
            except OSError:
                continue
        disk = 0
        for folder, _, names in os.walk(self.server.data):
            for name in names:
                try:
                    disk += os.lstat(os.path.join(folder, name)).st_size
                except OSError:  # it has just been removed
                    continue
        return round(kilobytes / 1024), round(disk / 1e6)


def main():
    """Run the soak and print what was found; the exit status."""
    given = parameters()
    seed = given.seed if given.seed is not None else random.randrange(1 << 31)
    kinds = given.faults.split(",") if given.faults else [*TIMED, *OF_ATTEMPTS]
    print(f"soak: {given.seconds:.0f} s, seed {seed}", flush=True)
    began = time.monotonic()
    server = Cluster(max_connections=30, log_line_prefix="%m[%p]%u_%a:", log_min_messages="error")
    try:
        soak = Soak(server, given.seconds, seed, kinds)
        for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell in the background has it ignored
            signal.signal(number, soak.interrupt)
        soak.prepare()
        soak.twin("multiple", 1, 4, 2)
        at_start = soak.size()
        try:
            soak.go()
        except Exception:
            soak.found("the soak itself failed", None, traceback.format_exc())
        left, at_end = {}, ("?", "?")
        try:
            left = soak.orphans()
            at_end = soak.size()
        except Exception:
            soak.found("the soak itself failed", None, traceback.format_exc())
        crashes = re.findall(r".*(?:PANIC|was terminated by signal (?!9).*|TRAP:).*", server.said())
    finally:
        server.stop()
    for line in crashes:
        print(f"--- the server's log: {line}")
    print(f"faults: {sum(soak.faults.values())} (" + ", ".join(f"{kind} {soak.faults[kind]}" for kind in kinds) + ")")
    print(f"units run: {soak.units}; runs: {soak.runs}, of {soak.attempts} calls; server restarts: {soak.restarts}")
    print(f"replays: {soak.replays}; results compared: {soak.compared}; differences: {soak.differences}")
    print("orphans: " + ", ".join(f"{kind} {count}" for kind, count in left.items()))
    print(
        f"memory of the server's processes: {at_start[0]} MB at start, {at_end[0]} MB at the end; "
        f"disk of the cluster: {at_start[1]} MB, {at_end[1]} MB"
    )
    print("found: " + (", ".join(f"{what} {n}" for what, n in collections.Counter(soak.findings).items()) or "nothing"))
    print(f"soak: {time.monotonic() - began:.0f} s, seed {seed}" + (", interrupted" if soak.interrupted else ""))
    return int(bool(soak.findings or soak.differences or any(left.values()) or crashes))


if __name__ == "__main__":
    sys.exit(main())
