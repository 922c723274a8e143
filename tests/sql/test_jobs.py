"""mop_submit: calls that go on without their client; whose they are, how they end, what is told of them."""

import os
import signal

import pytest

from support.client import Calling, Client
from support.cluster import Cluster, eventually
from support.workload import ADAM, dense, holding, load, make_data, selection

FIT = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', '{}', '{}', {}, FALSE)"


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=2)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8"), (1, ADAM.format(0.01), "batch_size=8")])
    selection(db, "slow", "arch", [(1, ADAM.format(0.01), "batch_size=1, epochs=50")])


def submit(db, command):
    return db.value("SELECT madlib.mop_submit(%s)", [command])


def job(db, number):
    return db.run("SELECT * FROM madlib.mop_jobs WHERE job = %s", [number])[0]


def supervisor_of(db, number):
    """The process id of a job's job supervisor, or None."""
    title = f"pg_mop job supervisor: port {db.server.port}, database {db.database}, job {number}"
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline") as file:
                if file.read().rstrip("\0 ") == title:
                    return int(entry)
        except OSError:
            continue
    return None


def test_a_job_keeps_its_run_when_others_go_on_with_it(db, data):
    def cancelled(number):
        db.value("SELECT madlib.mop_cancel(%s)", [number])
        return db.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "cancelled"

    first = submit(db, FIT.format("passed_on", "slow", 100))
    assert eventually(lambda: job(db, first)["runs"], 60)
    runs = job(db, first)["runs"]
    assert cancelled(first)
    for _ in range(2):
        other = submit(db, f"SELECT madlib.mop_resume({runs[0]})")
        assert eventually(lambda other=other: job(db, other)["runs"] == runs, 60)
        assert job(db, first)["runs"] == runs and cancelled(other)
    assert job(db, other)["runs"] == job(db, other - 1)["runs"] == runs
    db.run("SELECT madlib.mop_drop_run(%s)", runs)


def test_a_call_goes_on_when_its_client_has_gone(db, data):
    client = db.another()
    client.run("SET search_path = public, madlib; SET pg_mop.seed = 77; SET pg_mop.lock_timeout = '300s'")
    with holding(db.another()):  # so that it does not end before its client has gone
        number = submit(client, FIT.format("models", "mst", 2).replace("madlib.", ""))
        assert job(client, number)["status"] == "running"
        client.close()
    assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "finished"
    told = job(db, number)
    assert db.value("SELECT count(*) FROM models_info WHERE training_loss_final > 0") == 2
    assert told["error"] is None and told["finished_at"] > told["submitted_at"] and told["owner"] == "postgres"
    assert any(line.startswith("INFO:") for line in told["messages"])
    run = db.run("SELECT status, seed FROM madlib.mop_runs WHERE run_id = ANY (%s)", [told["runs"]])
    assert run == [{"status": "finished", "seed": 77}]
    assert eventually(lambda: supervisor_of(db, number) is None)
    assert db.value("SELECT madlib.mop_cancel(%s)", [number]) is False


def test_it_is_cancelled_and_resumed(db, data):
    number = submit(db, FIT.format("slow_models", "slow", 50))
    assert eventually(lambda: job(db, number)["runs"])
    assert supervisor_of(db, number)
    assert db.value("SELECT madlib.mop_wait(%s, '200 ms')", [number]) == "running"
    assert db.value("SELECT madlib.mop_cancel(%s)", [number]) is True
    assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "cancelled"
    told = job(db, number)
    assert "cancel" in told["error"]
    assert db.value("SELECT status FROM madlib.mop_runs WHERE run_id = ANY (%s)", [told["runs"]]) == "cancelled"
    again = submit(db, f"SELECT madlib.mop_resume({told['runs'][0]})")
    assert eventually(lambda: job(db, again)["runs"] == told["runs"])
    db.run("SELECT madlib.mop_cancel(%s)", [again])
    assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [again]) == "cancelled"


def test_what_a_command_says_and_how_it_fails_is_told(db, data):
    number = submit(
        db,
        "DO $x$ BEGIN RAISE NOTICE 'one %', chr(228); RAISE WARNING 'two'; "
        "RAISE EXCEPTION 'three' USING DETAIL = 'four', HINT = 'five'; END $x$",
    )
    assert db.value("SELECT madlib.mop_wait(%s)", [number]) == "failed"
    told = job(db, number)
    assert told["messages"] == ["NOTICE:  one \u00e4", "WARNING:  two"]
    assert told["error"] == "three\nDETAIL:  four\nHINT:  five"
    many = submit(db, "DO $x$ BEGIN FOR i IN 1 .. 1000 LOOP RAISE NOTICE '%', i; END LOOP; END $x$")
    assert db.value("SELECT madlib.mop_wait(%s)", [many]) == "finished"
    assert job(db, many)["messages"] == [f"NOTICE:  {i}" for i in range(801, 1001)]
    after = [submit(db, f"SELECT 1; DO $x$ BEGIN RAISE WARNING 'w'; {more} END $x$") for more in ("", "RAISE 'x';") * 4]
    for number in after:
        db.run("SELECT madlib.mop_wait(%s)", [number])
        assert job(db, number)["messages"] == ["WARNING:  w"]
    late = submit(db, "CREATE TEMP TABLE t (i int); SELECT i / 0 FROM generate_series(1, 1) AS i")
    assert db.value("SELECT madlib.mop_wait(%s)", [late]) == "failed" and job(db, late)["error"] == "division by zero"
    for copy in ("COPY copied FROM STDIN", "INSERT INTO copied VALUES (1); COPY copied TO STDOUT"):
        copies = submit(db, f"CREATE TABLE copied (i int); {copy}")
        assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [copies]) == "failed"
        assert "a job has no client, so there is no COPY to STDOUT or from STDIN" in job(db, copies)["error"]
        assert eventually(lambda number=copies: supervisor_of(db, number) is None)
        db.run("DROP TABLE IF EXISTS copied")
    opened = submit(db, "BEGIN; CREATE TABLE lost (i int)")
    assert db.value("SELECT madlib.mop_wait(%s)", [opened]) == "failed" and "rolled back" in job(db, opened)["error"]
    itself = submit(
        db, "DO $x$ BEGIN PERFORM pg_sleep(0.5); PERFORM madlib.mop_wait(max(job)) FROM madlib.mop_jobs; END $x$"
    )
    assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [itself]) == "failed"
    assert job(db, itself)["error"].startswith(f"job {itself} would wait for itself\nHINT:  ")
    percent = submit(db, "SELECT '%s % %%'::text")
    long = submit(db, "DO $x$ BEGIN RAISE NOTICE '%', repeat('x', 9000); RAISE '%', repeat('y', 9000); END $x$")
    assert db.value("SELECT madlib.mop_wait(%s)", [long]) == "failed"
    assert len(job(db, long)["messages"][0]) == 4000 and job(db, long)["error"] == "y" * 4000
    assert db.value("SELECT madlib.mop_wait(%s)", [percent]) == "finished"


@pytest.mark.parametrize(
    "command, fragment",
    [
        (None, "there is no command"),
        ("/* a /* b */ c */\n;--d", "there is no command"),
        ("/* SELECT 1 */ SELEC 1", "syntax error"),
        ("/* a /* b */ SELECT 1", "unterminated"),
        ("SELECT madlib.no_such_call()", "does not exist"),
        ("SELECT 1; SELEC 2", "syntax error"),
        (f"SELECT '{'x' * (17 << 20)}'", "the command has 17.0 MB"),
    ],
)
def test_what_cannot_be_run_is_refused(db, command, fragment):
    before = db.value("SELECT count(*) FROM madlib.mop_jobs")
    assert fragment in str(db.error("SELECT madlib.mop_submit(%s)", [command]))
    assert db.value("SELECT count(*) FROM madlib.mop_jobs") == before


def test_wrong_settings_are_refused(db):
    error = db.error("SET pg_mop.kernel = 'fast'; SELECT madlib.mop_submit('SELECT 1')")
    assert 'invalid value for setting "pg_mop.kernel"' in str(error)
    db.run("RESET pg_mop.kernel")


def test_a_job_is_of_its_role(db, data):
    db.run(
        "DROP ROLE IF EXISTS jo, flo; CREATE ROLE jo LOGIN; CREATE ROLE flo LOGIN; GRANT mop_user TO jo, flo; "
        "CREATE ROLE team; GRANT team, mop_user TO jo; GRANT mop_user TO team"
    )
    jo, flo = db.another("jo"), db.another("flo")
    jo.run("SET ROLE team")
    number = submit(jo, "SELECT pg_sleep(100)")
    assert job(jo, number)["owner"] == "team"
    assert db.value("SELECT usename FROM pg_stat_activity WHERE pid = %s", [job(jo, number)["session_pid"]]) == "jo"
    assert flo.run("SELECT * FROM madlib.mop_jobs") == []
    for call in (f"mop_cancel({number})", f"mop_wait({number})", "mop_cancel(NULL)", "mop_wait(NULL)"):
        assert "there is no job" in str(flo.error(f"SELECT madlib.{call}"))
    assert "denied" in str(flo.error("SELECT * FROM madlib.mop_job"))
    flo.run(
        "SELECT madlib.mop_note_job(%s, %s, ARRAY['forged'], 'finished', NULL)",
        [number, job(jo, number)["session_pid"]],
    )
    assert job(jo, number)["status"] == "running" and job(jo, number)["messages"] == []
    assert jo.value("SELECT madlib.mop_cancel(%s)", [number]) is True
    assert jo.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "cancelled"
    # who the command is
    who = submit(jo, "DO $x$ BEGIN RAISE NOTICE '% %', session_user, current_user; END $x$")
    jo.value("SELECT madlib.mop_wait(%s)", [who])
    assert job(jo, who)["messages"] == ["NOTICE:  jo team"]
    # a function of another role lends its rights to no job
    db.run(
        "CREATE FUNCTION lend() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS "
        "$$ SELECT madlib.mop_submit('SELECT 1') $$"
    )
    assert "SECURITY DEFINER" in str(flo.error("SELECT lend()"))
    jo.close()
    flo.close()
    db.run("DROP FUNCTION lend; DROP OWNED BY jo, flo, team; DROP ROLE jo, flo, team")


def test_why_a_role_can_have_no_session_is_said_with_what_mends_it(db):
    db.run("DROP ROLE IF EXISTS flo; CREATE ROLE flo LOGIN; GRANT mop_user TO flo")
    flo, call = db.another("flo"), "SELECT madlib.mop_submit('SELECT 1')"
    for limit in (1, 2):  # of the two sessions, the first or the second
        db.run(f"ALTER ROLE flo CONNECTION LIMIT {limit}")
        error = flo.error(call)
        assert error.pgcode == "53300" and 'too many connections for role "flo"' in error.diag.message_primary
        assert 'ALTER ROLE "flo" CONNECTION LIMIT' in error.diag.message_hint
        assert eventually(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'flo'") == 1)
    db.run("ALTER ROLE flo CONNECTION LIMIT -1 NOLOGIN")
    error = flo.error(call)
    assert error.pgcode == "28000" and "not permitted to log in" in error.diag.message_primary
    assert error.diag.message_hint == 'ALTER ROLE "flo" LOGIN;'
    db.run("ALTER ROLE flo LOGIN")
    # what it waits for
    db.run("BEGIN; LOCK TABLE madlib.mop_secret")
    error = flo.error(call)
    assert error.pgcode == "55P03" and "lock timeout" in error.diag.message_primary
    assert "pg_locks" in error.diag.message_hint
    db.run("ROLLBACK")
    assert flo.value("SELECT count(*) FROM madlib.mop_jobs") == 0
    flo.run("SELECT set_config('lock_timeout', '7s', false)")
    db.run("ALTER ROLE flo SET lock_timeout = '9s'")
    number = submit(flo, "DO $x$ BEGIN RAISE NOTICE '%', current_setting('lock_timeout'); END $x$")
    assert flo.value("SELECT madlib.mop_wait(%s)", [number]) == "finished"
    assert job(flo, number)["messages"] == ["NOTICE:  9s"]  # the login's own
    flo.close()
    db.run("DROP OWNED BY flo; DROP ROLE flo")


def test_what_ends_by_a_timeout_has_failed(db):
    number = submit(db, "SET statement_timeout = '100ms'; SELECT pg_sleep(100)")
    assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "failed"
    assert job(db, number)["error"] == "canceling statement due to statement timeout"
    number = submit(db, "SELECT pg_sleep(100)")
    pid = job(db, number)["session_pid"]
    waits = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
    assert eventually(lambda: db.value(waits, [pid]) == "PgSleep")
    db.run("SELECT pg_cancel_backend(%s)", [pid])  # as mop_cancel does
    assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "cancelled"


def test_a_job_whose_end_cannot_be_noted_does_not_run_for_ever(db):
    db.run("DROP ROLE IF EXISTS rita; CREATE ROLE rita LOGIN; GRANT mop_user TO rita; SELECT pg_advisory_lock(2)")
    rita = db.another("rita")
    number = submit(rita, "SELECT pg_advisory_xact_lock(2)")
    db.run("REVOKE mop_user FROM rita")  # (committed before the job goes on)
    db.run("SELECT pg_advisory_unlock(2)")
    assert eventually(lambda: job(db, number)["status"] == "failed", 60)
    assert "whether the command was finished was not noted" in job(db, number)["error"]
    db.run("GRANT mop_user TO rita")  # it is tried again
    assert eventually(lambda: job(db, number)["status"] == "finished", 60) and job(db, number)["error"] is None
    rita.close()
    db.run("DROP OWNED BY rita; DROP ROLE rita")


def test_a_command_that_has_ended_is_not_cancelled(db):
    other = db.another()
    other.run("SELECT pg_advisory_lock(3)")
    number = submit(db, "SELECT pg_advisory_xact_lock(3)")
    other.run("BEGIN; LOCK TABLE madlib.mop_job IN EXCLUSIVE MODE; SELECT pg_advisory_unlock(3)")
    pid = job(db, number)["session_pid"]
    assert eventually(lambda: db.value("SELECT state FROM pg_stat_activity WHERE pid = %s", [pid]) == "idle")
    assert job(db, number)["status"] == "running" and db.value("SELECT madlib.mop_cancel(%s)", [number]) is False
    other.run("ROLLBACK")
    other.close()
    assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "finished"


def test_nobody_waits_for_ever_for_a_job_that_waits_for_him(db):
    db.run("DROP TABLE IF EXISTS wanted; CREATE TABLE wanted (i int)")
    db.run("BEGIN; LOCK TABLE wanted")
    number = submit(db, "INSERT INTO wanted SELECT generate_series(1, 3)")
    assert db.value("SELECT madlib.mop_wait(%s, '1500 ms')", [number]) == "running"
    error = db.error("SELECT madlib.mop_wait(%s)", [number])
    assert error.pgcode == "55006" and f"job {number} waits for a lock that this transaction holds" in str(error)
    assert error.diag.message_hint == (
        f"COMMIT; and wait then, or wait with a timeout: SELECT madlib.mop_wait({number}, '1 min');"
    )
    assert db.value("SELECT madlib.mop_wait(%s)", [number]) == "finished"
    assert db.value("SELECT count(*) FROM wanted") == 3


def test_no_rights_are_had_by_a_job_that_its_role_does_not_have(db):
    """PostgreSQL lets nobody RESET ROLE within a security-restricted operation: neither does a command there."""
    db.run(
        "DROP ROLE IF EXISTS mallory; CREATE ROLE mallory LOGIN; GRANT mop_user TO mallory; "
        "CREATE SCHEMA mallory AUTHORIZATION mallory"
    )
    mallory = db.another("mallory")
    mallory.run(
        "CREATE FUNCTION mallory.f() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN madlib.mop_submit("
        "'RESET ROLE; ALTER ROLE mallory SUPERUSER'); END $$; "
        "CREATE MATERIALIZED VIEW mallory.v AS SELECT mallory.f() WITH NO DATA; "
        "CREATE TABLE mallory.t (b text); CREATE FUNCTION mallory.steal() RETURNS void LANGUAGE sql "
        "SECURITY DEFINER AS $$ INSERT INTO mallory.t SELECT backend FROM madlib.mop_tokens $$"
    )
    error = db.error("SET ROLE mallory; REFRESH MATERIALIZED VIEW mallory.v")
    assert "security-restricted operation" in str(error)
    db.run("RESET ROLE; SELECT mallory.steal()")
    assert "not one of login" in str(mallory.error("SELECT madlib.mop_open_job('x', (SELECT b FROM mallory.t))"))
    assert db.value("SELECT count(*) FROM madlib.mop_jobs WHERE owner = 'mallory'") == 0
    mallory.close()
    db.run("DROP OWNED BY mallory; DROP ROLE mallory")


def test_a_submitter_holds_no_lock_that_the_job_needs(db):
    db.run("DROP TABLE IF EXISTS wanted; CREATE TABLE wanted (i int)")
    db.run("BEGIN")
    number = submit(db, "INSERT INTO wanted VALUES (1); DROP TABLE wanted")
    assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "finished"
    db.run("ROLLBACK")


def test_a_job_ends_with_its_supervisor_and_its_session(db):
    number = submit(db, "SELECT pg_sleep(100)")
    os.kill(eventually(lambda: supervisor_of(db, number)), signal.SIGKILL)
    assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "failed"
    assert "the session that ran it has ended" in job(db, number)["error"]
    number = submit(db, "SELECT pg_sleep(100)")
    db.run("SELECT pg_terminate_backend(session_pid) FROM madlib.mop_jobs WHERE job = %s", [number])
    assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "failed"
    assert eventually(lambda: "administrator" in job(db, number)["error"])
    assert eventually(lambda: supervisor_of(db, number) is None)


def test_a_restart_of_the_server_ends_a_job_and_its_run_is_resumed():
    with Cluster(max_connections=30) as cluster:
        Client(cluster, "postgres").run('CREATE DATABASE "a b%\'q"')
        db = Client(cluster, "a b%'q")
        db.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; SET pg_mop.kernel = 'plain'")
        db.run("SET pg_mop.lock_timeout = '300s'")
        make_data(db, segments=2)
        load(db, "arch", dense())
        selection(db, "slow", "arch", [(1, ADAM.format(0.01), "batch_size=8")])
        units = "SELECT count(*) FROM madlib.mop_units WHERE status = 'finished'"
        with holding(db.another()) as let_some_begin:
            number = submit(db, FIT.format("slow_models", "slow", 10))
            assert eventually(lambda: db.value(units) or let_some_begin(), 90)
            cluster.process.send_signal(signal.SIGINT)
            cluster.process.wait(120)
        cluster.start()
        db = Client(cluster, "a b%'q")
        assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "failed"
        assert eventually(
            lambda: "terminating connection" in job(db, number)["error"]
        )  # its job supervisor is there still
        again = submit(db, f"SELECT madlib.mop_resume({job(db, number)['runs'][0]})")
        assert db.value("SELECT madlib.mop_wait(%s, '2 min')", [again]) == "finished"
        assert db.value("SELECT count(*) FROM slow_models") == 1


def test_a_submission_that_is_cancelled_leaves_no_job(db):
    """The role's new session waits for a lock that the canceller holds."""
    other = db.another()
    locker = db.another()
    before = db.value("SELECT coalesce(max(job), 0) FROM madlib.mop_jobs")
    locker.run("BEGIN; LOCK TABLE madlib.mop_job IN EXCLUSIVE MODE")
    call = Calling(other, "SELECT madlib.mop_submit('SELECT pg_sleep(100)')")
    pid = other.connection.get_backend_pid()
    assert eventually(
        lambda: db.value(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = "
            "'pg_mop job''s log' AND wait_event_type = 'Lock'"
        )
    )
    db.run("SELECT pg_cancel_backend(%s)", [pid])
    assert "cancel" in str(call.end())  # (while the lock is held still)
    locker.run("ROLLBACK")
    assert eventually(lambda: db.value("SELECT status FROM madlib.mop_jobs WHERE job > %s", [before]) == "cancelled")
    other.close()
    locker.close()


def test_its_end_is_not_seen_in_a_transaction_that_sees_no_commits(db):
    number = submit(db, "SELECT 1")
    db.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert "does not see commits of other sessions" in str(db.error("SELECT madlib.mop_wait(%s)", [number]))
    db.run("ROLLBACK")
    db.run("BEGIN")  # neither is it undone with the transaction that submitted it
    number = submit(db, "SELECT 1")
    db.run("ROLLBACK")
    assert db.value("SELECT madlib.mop_wait(%s)", [number]) == "finished"
