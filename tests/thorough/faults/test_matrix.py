"""Every fault, caused for real, at every moment of a run: what the caller sees, what remains, and that the run goes on
to the weights of an undisturbed one. docs/reliability.md has the table.

The moments: in the middle of a training unit, with units before it committed; of an evaluation; of the final write,
when the caller's transaction has written its models but not the summary.
"""

import os
import signal
import socket
import time

import psycopg2
import pytest

from support.client import Calling, Client
from support.cluster import Cluster, eventually
from support.trainers import of_backend, trainers
from support.workload import ADAM, assert_invariants, layer, load, make_data, selection, sequential, weights

MOMENTS = ["training unit", "evaluation", "final write"]
KEPT = {"training unit": 1, "evaluation": 2, "final write": 6}  # units that are committed then, at least
GATE = 77  # an advisory lock: who holds it keeps callers from the end of their final write


def prepare(db):
    """The workload: two configurations of a net that is slow for every row, so that evaluations last, too."""
    make_data(db, rows=30, segments=1)
    db.run("CREATE TABLE val AS SELECT f.id + 1000 * n AS id, x, y FROM flowers f, generate_series(1, 150) AS n")
    db.run("SELECT madlib.validation_preprocessor_dl('val', 'val_packed', 'y', 'x', 'flowers_packed')")
    for setting in ("kernel = 'plain'", "threads = 1", "seed = 5"):
        db.run(f'ALTER DATABASE "{db.database}" SET pg_mop.{setting}; SET pg_mop.{setting}')
    load(
        db,
        "arch",
        sequential(
            "slow",
            [4],
            layer("RepeatVector", name="r", n=2000),
            layer("Conv1D", name="c", filters=16, kernel_size=9),
            layer("Conv1D", name="d", filters=16, kernel_size=9),
            layer("GlobalAveragePooling1D", name="g"),
            layer("Dense", name="out", units=3, activation="softmax"),
        ),
    )
    selection(db, "mst", "arch", [(1, ADAM.format(r), "batch_size=1, epochs=5") for r in (0.01, 0.02)])
    db.run(f"""CREATE FUNCTION wait_at_the_gate() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
               IF current_setting('application_name') = 'caller' THEN
                   PERFORM pg_advisory_xact_lock_shared({GATE});
               END IF; END $$;
               CREATE EVENT TRIGGER gate ON ddl_command_start WHEN TAG IN ('CREATE TABLE AS')
               EXECUTE FUNCTION wait_at_the_gate()""")


def sql(output, packed="flowers_packed", validation="'val_packed'", every=2):
    return (
        f"SELECT madlib.madlib_keras_fit_multiple_model('{packed}', '{output}', 'mst', 2, FALSE, {validation}, {every})"
    )


class Call:
    """A call that has come to a moment, if one is given. `end` returns the error that the call raised.

    The trainer of the unit at that moment stands still until `end`: the unit has not ended when something happens to it.
    """

    def __init__(self, client, watcher, moment, output, packed="flowers_packed"):
        self.client, self.watcher, self.moment, self.output = client, watcher, moment, output
        self.trainers, self.sessions = set(trainers()), self._sessions()
        client.run("SET application_name = 'caller'")
        self.gate = self.stopped = None
        if moment == "final write":
            self.gate = watcher.another()
            self.gate.run(f"SELECT pg_advisory_lock({GATE})")
        client.connection.notices.clear()
        self.pid = client.connection.info.backend_pid
        # (evaluations that nothing waits for are the last units)
        self.calling = Calling(client, sql(output, packed, every=1 if moment == "evaluation" else 2))
        if moment is None:
            return
        self.unit = eventually(lambda: self._there() or not self.calling.thread.is_alive(), 120)
        if self.unit in (None, True) and self.gate is not None:
            self.gate.close()
        assert self.unit not in (None, True), f"the call did not come to its {moment}: {self.calling.error}"
        self.run_id = self.unit["run_id"]
        self.before = self.finished()
        assert len(self.before) >= KEPT[moment]

    def _there(self):
        if self.moment == "final write":
            rows = self.watcher.run(
                "SELECT max(run_id) AS run_id FROM madlib.mop_runs WHERE EXISTS (SELECT 1 FROM "
                "pg_stat_activity WHERE pid = %s AND wait_event = 'advisory') HAVING "
                "max(run_id) IS NOT NULL",
                [self.pid],
            )
        else:
            kind, kept = ("train", 1) if self.moment == "training unit" else ("evaluate", 2)
            rows = self.watcher.run(
                "SELECT u.* FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) WHERE model_output_table = %s"
                " AND u.status = 'running' AND u.kind = %s AND (u.kind = 'train' OR u.dataset = 'validation') AND "
                "clock_timestamp() - u.started_at > interval '0.05 s' AND (SELECT count(*) FROM madlib.mop_unit f "
                "WHERE f.run_id = r.run_id AND f.status = 'finished') >= %s",
                [self.output, kind, kept],
            )
            if rows and not self._stop(rows[0]):
                return None
        return rows[0] if rows else None

    def _stop(self, unit):
        """Stop the trainer of a unit: True if the unit goes on all the same."""
        found = [pid for pid in trainers() if of_backend(pid) == unit["backend_pid"]]
        if len(found) != 1:
            return False
        os.kill(found[0], signal.SIGSTOP)
        self.stopped = found[0]
        time.sleep(0.2)  # (a message that the trainer has sent may still arrive)
        names = ("run_id", "stage", "segment", "kind", "dataset", "attempt")
        same = " AND ".join(f"{name} = %s" for name in names)
        if self.watcher.run(
            f"SELECT 1 FROM madlib.mop_units WHERE status = 'running' AND {same}", [unit[name] for name in names]
        ):
            return True
        self._go_on()
        return False

    def _go_on(self):
        """Let the trainer work again that was stopped, if it lives."""
        if self.stopped in trainers():
            os.kill(self.stopped, signal.SIGCONT)
        self.stopped = None

    def last_run(self):
        """The number of the last run that was begun."""
        return self.watcher.value("SELECT max(run_id) FROM madlib.mop_runs")

    def _sessions(self):
        return {
            row["pid"]
            for row in self.watcher.run(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pg_mop%%' AND datname = current_database()"
            )
        }

    def finished(self):
        """The units of the run that are committed."""
        return self.watcher.run(
            "SELECT mst_key, iteration, kind, dataset, finished_at FROM madlib.mop_units WHERE "
            "run_id = %s AND status = 'finished' ORDER BY 1, 2, 3, 4",
            [self.run_id],
        )

    def workers(self):
        """Process ids of the run's worker sessions."""
        return [
            row["pid"]
            for row in self.watcher.run(
                "SELECT pid FROM pg_stat_activity WHERE application_name = %s", [f"pg_mop run {self.run_id}"]
            )
        ]

    def trainer(self):
        """The process id of its trainer."""
        found = [pid for pid in trainers() if of_backend(pid) in self.workers()]
        assert len(found) == 1
        return found[0]

    def end(self):
        """Let the call go on to its end; what it raised."""
        self._go_on()
        if self.gate is not None:
            self.gate.close()
        return self.calling.end()

    def assert_it_went_on(self, undisturbed):
        """The call ended as an undisturbed one."""
        assert self.end() is None
        assert all(unit in self.finished() for unit in self.before), "what was committed was not done again"
        assert_invariants(self.watcher, self.run_id)
        assert weights(self.watcher, self.output) == undisturbed

    def assert_nothing_is_left(self, status):
        """No process, no table; the run is listed as abandoned, with all that was committed."""
        watcher = self.watcher
        assert eventually(lambda: set(trainers()) <= self.trainers), "no trainer is left"
        assert eventually(lambda: self._sessions() <= self.sessions), "no session of the run is left"
        assert watcher.run("SELECT relname FROM pg_class WHERE relname LIKE %s", [f"{self.output}%"]) == []
        assert eventually(
            lambda: (
                watcher.run("SELECT status FROM madlib.mop_abandoned_runs WHERE run_id = %s", [self.run_id])
                == [{"status": status}]
            )
        ), watcher.run("SELECT status, error FROM madlib.mop_runs WHERE run_id = %s", [self.run_id])
        assert all(unit in self.finished() for unit in self.before)
        assert not watcher.run("SELECT 1 FROM madlib.mop_units WHERE run_id = %s AND status = 'running'", [self.run_id])
        elapsed = [
            watcher.value("SELECT max(seconds_elapsed) FROM madlib.mop_progress WHERE run_id = %s", [self.run_id])
            for _ in range(2)
        ]
        assert elapsed[0] == elapsed[1] >= 0, "its time has ended, too"
        line = watcher.value("SELECT line FROM madlib.mop_watch WHERE run_id = %s", [self.run_id])
        failed = watcher.value(
            "SELECT count(*) FROM madlib.mop_configuration WHERE run_id = %s AND error IS NOT NULL", [self.run_id]
        )
        assert line is None or f" {failed} failed," in line, line

    def assert_resume_completes(self, db, undisturbed):
        """mop_resume does what is left, and nothing twice."""
        db.run("SELECT madlib.mop_resume(%s)", [self.run_id])
        self.assert_it_is_whole(undisturbed)

    def assert_it_is_whole(self, undisturbed):
        assert all(unit in self.finished() for unit in self.before), "what was committed was not done again"
        assert_invariants(self.watcher, self.run_id)
        assert weights(self.watcher, self.output) == undisturbed
        assert self.watcher.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [self.run_id]) == "finished"


@pytest.fixture(scope="module")
def undisturbed(db):
    """The weights of a call that nothing happened to."""
    prepare(db)
    db.run("SET application_name = 'caller'")
    db.run(sql("undisturbed"))
    return weights(db, "undisturbed")


@pytest.fixture
def watcher(db, undisturbed):
    client = db.another()
    yield client
    client.close()


@pytest.fixture
def client(db, undisturbed):
    client = db.another()
    yield client
    client.close()


def name(*words):
    return "_".join(words).replace(" ", "_").replace("'", "")


# --- the run goes on --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault, moment",
    [
        *((fault, moment) for fault in ("trainer killed", "worker session terminated") for moment in MOMENTS[:2]),
        *(("catalog session terminated", moment) for moment in MOMENTS),
    ],
)
def test_what_works_for_the_run_is_lost(db, undisturbed, watcher, fault, moment):
    call = Call(db, watcher, moment, name(fault, moment))
    if fault == "trainer killed":
        os.kill(call.trainer(), signal.SIGKILL)
    else:
        assert (call.workers() == []) == (moment == "final write"), "the sessions end before it"
        wanted = "pg_mop catalog" if fault.startswith("catalog") else f"pg_mop run {call.run_id}"
        assert watcher.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", [wanted]
        )
    call.assert_it_went_on(undisturbed)
    failed = watcher.run(
        "SELECT kind, error FROM madlib.mop_units WHERE run_id = %s AND status = 'failed'", [call.run_id]
    )
    if moment == "final write" or fault.startswith("catalog"):
        assert failed == []
    else:
        assert failed and all(row["kind"] == call.unit["kind"] and row["error"] for row in failed)
    assert eventually(lambda: len(call._sessions()) <= 1)


# --- the call ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_call_is_cancelled(db, undisturbed, watcher, client, moment):
    call = Call(client, watcher, moment, name("cancelled", moment))
    watcher.run("SELECT pg_cancel_backend(%s)", [call.pid])
    assert isinstance(call.calling.end(), psycopg2.errors.QueryCanceled)
    call.end()
    call.assert_nothing_is_left("cancelled")
    call.assert_resume_completes(db, undisturbed)


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_call_times_out(db, undisturbed, watcher, client, moment):
    for seconds in (9, 20, 40, 80):
        client.run(f"SET statement_timeout = '{seconds}s'")
        try:
            call = Call(client, watcher, moment, name("timeout", moment))
            break
        except AssertionError:  # time was out before: the same call again goes on from there
            continue
    error = call.calling.end()  # (it stays at that moment until time is out)
    assert isinstance(error, psycopg2.errors.QueryCanceled) and "statement timeout" in str(error)
    call.end()
    call.assert_nothing_is_left("cancelled")
    call.assert_resume_completes(db, undisturbed)


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_client_goes(db, undisturbed, watcher, client, moment):
    """With client_connection_check_interval, the server's own setting, a client that is gone is noticed."""
    client.run("SET client_connection_check_interval = '200ms'")
    call = Call(client, watcher, moment, name("gone", moment))
    with socket.socket(fileno=os.dup(client.connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
    assert isinstance(call.calling.end(), psycopg2.OperationalError)
    assert eventually(lambda: not watcher.run("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [call.pid]))
    call.end()
    call.assert_nothing_is_left("failed")
    call.assert_resume_completes(db, undisturbed)


def test_the_trainer_runs_out_of_memory(db, undisturbed, watcher, client):
    """It is the configuration that fails, here both; with more memory the run goes on."""
    client.run("SET pg_mop.trainer_memory_mb = 256")
    call = Call(client, watcher, None, "memory")
    error = call.end()
    assert "all 2 configurations failed" in str(error) and "pg_mop.trainer_memory_mb allows" in str(error)
    call.run_id = call.last_run()
    call.before = call.finished()
    assert not [u for u in call.before if u["kind"] == "train"]
    call.assert_nothing_is_left("failed")
    call.assert_resume_completes(db, undisturbed)


# --- the source -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(db, undisturbed):
    """The name of a role that may read, but not write or lock, what it trains on."""
    db.run(
        "DROP ROLE IF EXISTS matrix_reader; CREATE ROLE matrix_reader LOGIN; GRANT mop_user TO matrix_reader; "
        "GRANT USAGE, CREATE ON SCHEMA public TO matrix_reader"
    )
    yield "matrix_reader"
    db.run("DROP OWNED BY matrix_reader CASCADE; DROP ROLE matrix_reader")


def reading(db, reader, table):
    """A session of the reader's and a packed table that it may read."""
    packed = make_data(db, table, rows=30, segments=1)
    db.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}")
    client = db.another(reader)
    client.run("SET pg_mop.lock_timeout = '1s'")
    return client, packed


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_source_is_changed_by_its_owner(db, undisturbed, watcher, reader, moment):
    client, packed = reading(db, reader, name("changed", moment))
    call = Call(client, watcher, moment, packed + "_out", packed=packed)
    watcher.run(f"UPDATE {packed} SET buffer_id = buffer_id")
    if moment == "final write":  # all was read before
        call.assert_it_went_on(undisturbed)
    else:
        assert "have changed since the run began" in str(call.end())
        client.close()
        call.assert_nothing_is_left("failed")
        again = db.another(reader)
        assert "have changed since run" in str(again.error("SELECT madlib.mop_resume(%s)", [call.run_id]))
        again.run("SELECT madlib.mop_drop_run(%s)", [call.run_id])
        assert watcher.run("SELECT 1 FROM madlib.mop_abandoned_runs WHERE run_id = %s", [call.run_id]) == []
        again.close()
    client.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_source_is_dropped_by_its_owner(db, undisturbed, watcher, reader, moment):
    """DROP waits for the call. One that waits for long is before the worker sessions in the queue: the call ends."""
    client, packed = reading(db, reader, name("dropped", moment))
    call = Call(client, watcher, moment, packed + "_out", packed=packed)
    watcher.run("SET lock_timeout = '50ms'")
    assert isinstance(watcher.error(f"DROP TABLE {packed}"), psycopg2.errors.LockNotAvailable)
    watcher.run("SET lock_timeout = 0")
    owner = db.another()
    drop = Calling(owner, f"DROP TABLE {packed}")
    if moment == "final write":
        assert drop.thread.is_alive()
        call.assert_it_went_on(undisturbed)
        assert drop.end() is None
    else:
        error = call.end()
        assert isinstance(error, psycopg2.errors.LockNotAvailable) and "waited in vain for a lock" in str(error)
        assert drop.end() is None
        client.close()
        call.assert_nothing_is_left("failed")
        again = db.another(reader)
        assert "does not exist" in str(again.error("SELECT madlib.mop_resume(%s)", [call.run_id]))
        again.run("SELECT madlib.mop_drop_run(%s)", [call.run_id])
        again.close()
    owner.close()
    client.close()


# --- the server -------------------------------------------------------------------------------------


def in_a_cluster(cluster, tablespace=""):
    """A superuser's session in a database of the cluster's with the workload."""
    maker = Client(cluster, "postgres")
    maker.run(f"CREATE DATABASE matrix {tablespace}")
    maker.close()
    client = Client(cluster, "matrix")
    client.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE")
    prepare(client)
    return client


@pytest.fixture(scope="module")
def cluster():
    """A server with few connections, which may be killed."""
    cluster = Cluster(fsync="on", max_connections=16, superuser_reserved_connections=6)
    in_a_cluster(cluster).close()
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_server_is_killed(cluster, undisturbed, moment):
    client, watcher = Client(cluster, "matrix"), Client(cluster, "matrix")
    call = Call(client, watcher, moment, name("killed", moment))
    cluster.kill()
    assert isinstance(call.calling.end(), psycopg2.OperationalError)
    assert eventually(lambda: set(trainers()) <= call.trainers), "no trainer is left"
    cluster.start()
    db = call.watcher = Client(cluster, "matrix")
    call.assert_nothing_is_left("failed")
    call.assert_resume_completes(db, undisturbed)
    db.close()


@pytest.fixture
def analyst(cluster):
    """A session of a role that gets no reserved connection."""
    maker = Client(cluster, "matrix")
    if not maker.value("SELECT 1 FROM pg_roles WHERE rolname = 'analyst'"):
        make_data(maker, "three", rows=30, segments=3)
        maker.run(
            "CREATE ROLE analyst LOGIN; GRANT mop_user TO analyst; GRANT USAGE, CREATE ON SCHEMA public TO "
            "analyst; GRANT SELECT ON ALL TABLES IN SCHEMA public TO analyst"
        )
    maker.close()
    client = Client(cluster, "matrix", "analyst")
    yield client
    client.close()


def use_up(cluster, watcher, known, free):
    """Sessions of others that leave `free` connections to users. `known`: how many sessions there are without them, `watcher`
    included."""
    there = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    assert eventually(lambda: watcher.value(there) == known)  # sessions end a moment after their clients
    others = []
    with pytest.raises(psycopg2.OperationalError, match="connection slots"):
        while True:
            others.append(Client(cluster, "postgres", "analyst"))
    for _ in range(free):
        others.pop().close()
    assert eventually(lambda: watcher.value(there) == known + len(others))
    return others


def assert_replay_is_equal(call):
    """The undisturbed twin of a run on several segments is its replay."""
    call.client.run("SELECT madlib.mop_replay(%s, %s)", [call.run_id, call.output + "_twin"])
    assert weights(call.watcher, call.output) == weights(call.watcher, call.output + "_twin")


def test_there_are_few_connections_at_the_start(cluster, undisturbed, analyst):
    watcher = Client(cluster, "matrix")
    others = use_up(cluster, watcher, 2, 2)  # for the catalog's session and one that works
    try:
        call = Call(analyst, watcher, None, "few_at_start", packed="three_packed")
        error = call.end()
        call.run_id = call.last_run()
    finally:
        for other in others:
            other.close()
    assert error is None
    assert any("goes on with 1 of 3 worker sessions" in n for n in analyst.connection.notices)
    assert_invariants(watcher, call.run_id)
    assert_replay_is_equal(call)
    watcher.close()


@pytest.mark.parametrize("moment", MOMENTS[:2])  # (the sessions end before the final write)
def test_a_session_is_lost_and_no_new_one_can_be_had(cluster, undisturbed, analyst, moment):
    watcher = Client(cluster, "matrix")
    call = Call(analyst, watcher, moment, name("no_new", moment), packed="three_packed")
    watcher.run("ALTER ROLE analyst CONNECTION LIMIT 0")
    watcher.run("SELECT pg_terminate_backend(%s)", [call.unit["backend_pid"]])
    error = call.end()
    watcher.run("ALTER ROLE analyst CONNECTION LIMIT -1")
    assert error is None
    assert any("goes on with 2 worker sessions" in n for n in analyst.connection.notices)
    assert all(unit in call.finished() for unit in call.before)
    assert_invariants(watcher, call.run_id)
    assert_replay_is_equal(call)
    watcher.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_clock_is_set_back(undisturbed, clocked, moment):
    client, watcher = Client(clocked, "matrix"), Client(clocked, "matrix")
    clocked.set_clock("+0s")
    call = Call(client, watcher, moment, name("clock", moment))
    clocked.set_clock("-2d")
    assert eventually(
        lambda: watcher.value(
            "SELECT clock_timestamp() < now_before FROM (SELECT started_at AS "
            "now_before FROM madlib.mop_runs WHERE run_id = %s) r",
            [call.run_id],
        )
    )
    assert call.end() is None
    assert weights(watcher, call.output) == undisturbed
    order = watcher.run("SELECT count(*) FROM madlib.mop_visit_order WHERE run_id = %s", [call.run_id])
    assert order == [{"count": 4}]
    client.close()
    watcher.close()


@pytest.fixture(scope="module")
def clocked():
    """A server whose clock can be set."""
    cluster = Cluster(clock=True, fsync="on")
    in_a_cluster(cluster).close()
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_disk_is_full(undisturbed, small, moment):
    """That of the database; the write-ahead log is on another."""
    client, watcher = Client(small, "matrix"), Client(small, "matrix")
    call = Call(client, watcher, moment, name("disk", moment))
    filler = small.fill()
    error = call.end()
    assert isinstance(error, psycopg2.errors.DiskFull) and "No space left on device" in str(error)
    filler.unlink()
    call.assert_nothing_is_left("failed")
    client.close()
    call.assert_resume_completes(watcher, undisturbed)
    watcher.close()


@pytest.fixture(scope="module")
def small():
    """A server with a database on a small disk."""
    cluster = Cluster(small_mb=80, fsync="on")
    maker = Client(cluster, "postgres")
    maker.run(f"CREATE TABLESPACE small LOCATION '{cluster.small}'")
    maker.close()
    in_a_cluster(cluster, "TABLESPACE small").close()
    yield cluster
    cluster.stop()
