"""Threads by what is left to do: the configuration that is left at a run's end trains with all cores, where that pays."""

import os
import signal
import subprocess
import sys

import pytest

from support.client import Calling
from support.cluster import eventually
from support.tries import tries
from support.workload import ADAM, dense, fit, holding, last_run, load, make_data, selection

CORES = len(os.sched_getaffinity(0))
FEW = max(1, CORES // 2)  # threads of a trainer, of two sessions
# (other tests may use the cores: `auto` would wait for them)
PATIENT = "SET pg_mop.lock_timeout = '300s'"
SETTINGS = f"SET pg_mop.reuse = off; SET pg_mop.chain_seconds = 0.2; SET pg_mop.deal_threads = on; {PATIENT}"
BIG, TIMES, LONG = 2, 12, 24  # the configuration that is left, and the iterations of runs

pytestmark = pytest.mark.skipif(CORES < 2, reason="not run: there is one processor core")


@pytest.fixture(scope="module", autouse=True)
def data(db):
    """A small and a large configuration, and what runs measured with few threads."""
    make_data(db, rows=3000, segments=2, then="SELECT")
    load(db, "arch", dense(8), dense(900, name="large"))
    selection(
        db, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=50"), (2, ADAM.format(0.01), "batch_size=5, epochs=8")]
    )
    db.run(f"{SETTINGS}; SET pg_mop.deal_threads = off")
    fit(db, "flowers_packed", "m", "mst", 2)
    db.run("SET pg_mop.deal_threads = on")


@pytest.fixture(autouse=True)
def history(db, data):
    """A history by which the large configuration is far faster with all cores, and ready at once there, whatever the runs
    before have measured.

    (Whether it is does not matter: a run itself measures it, and goes back to fewer threads where it is not.)
    """
    give_history(db)


def give_history(db):
    few, all_cores = f", {FEW} threads", f", {CORES} threads"
    db.run("DELETE FROM madlib.mop_cost WHERE device LIKE '%%' || %s", [all_cores])
    db.run(
        "INSERT INTO madlib.mop_cost (owner, net, part, version, device, kernel, architecture, optimizer, loss, batch_size, "
        "shape, batch_seconds, compile_seconds) SELECT owner, net, part, version, replace(device, %s, %s), kernel, "
        "architecture, optimizer, loss, batch_size, shape, ARRAY(SELECT b / 10 FROM unnest(batch_seconds) b, "
        "generate_series(1, 9)), ARRAY[0.001] FROM madlib.mop_cost WHERE device LIKE '%%' || %s",
        [few, all_cores, few],
    )


def units(db, run_id, key=BIG):
    """The finished units of a configuration, evaluations included."""
    return db.run(
        "SELECT * FROM madlib.mop_units WHERE run_id = %s AND mst_key = %s AND status = 'finished' ORDER BY started_at",
        [run_id, key],
    )


def visits(db, run_id):
    """(iteration, segment) of the training units of the large configuration."""
    return sorted((unit["iteration"], unit["segment"]) for unit in units(db, run_id) if unit["kind"] == "train")


def all_visits(iterations):
    return [(iteration, segment) for iteration in range(1, iterations + 1) for segment in (0, 1)]


def threads(db, run_id, key=BIG):
    """How many threads the units of a configuration had."""
    return {unit["threads"] for unit in units(db, run_id, key)}


def begin(db, client, iterations=None):
    """(a call in progress whose large configuration is trained with all cores, the process ID of the trainer that has them).

    (A run goes back to fewer threads after three units that are hardly faster: so that it is seen, units wait until it is.)
    """
    client.run(SETTINGS)
    db.run("DROP TABLE IF EXISTS m, m_info, m_summary")
    with holding(db.another()) as let_some_begin:
        call = Calling(
            client,
            f"SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'm', 'mst', {iterations or LONG}, FALSE)",
        )
        trainer = eventually(lambda: grown(db) or let_some_begin(), 120)
        assert trainer is not None, "it never has more threads"
    return call, trainer


def grown(db):
    """The process ID of a trainer with all cores that is leased, or None."""
    return db.value("SELECT min(pid) FROM madlib.mop_trainers WHERE state = 'leased' AND threads = %s", [CORES])


def widened(db, iterations=TIMES):
    """The number of a run whose large configuration was trained with all cores at the end.

    (A run whose second trainer starts late may train the small configuration last.)"""
    for once in tries():
        if once.number:
            give_history(db)
        run_id = fit(db, "flowers_packed", "m", "mst", iterations)
        once.counts = CORES in threads(db, run_id)
    return run_id


def test_the_last_configuration_has_all_cores_and_a_replay_the_same_bytes(db):
    run_id = widened(db)
    small, large = (units(db, run_id, key) for key in (1, BIG))
    assert {unit["threads"] for unit in small} == {FEW}
    ended = max(unit["finished_at"] for unit in small)
    assert all(unit["started_at"] > ended for unit in large if unit["threads"] > FEW), (
        "there was work for both sessions"
    )
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    again = last_run(db)
    assert told(db, again) == told(db, run_id) and equal_weights(db) == 2
    db.run("DROP TABLE again, again_info, again_summary")


def told(db, number):
    """{unit: (threads, kernel)} of a run's finished units."""
    return {
        (u["mst_key"], u["kind"], u["iteration"], u["dataset"], u["segment"]): (u["threads"], u["kernel"])
        for key in (1, BIG)
        for u in units(db, number, key)
    }


def equal_weights(db):
    """In how many configurations the tables m and again have equal weights."""
    return db.value("SELECT count(*) FROM m JOIN again USING (mst_key) WHERE m.model_weights = again.model_weights")


def test_a_replay_has_the_threads_of_the_log_while_another_run_has_the_cores(db):
    """It waits for the cores that a unit had, and takes none of those that the other run wants."""
    run_id = widened(db)
    other, client = db.another(), db.another()
    db.run("DROP TABLE IF EXISTS o, o_info, o_summary, again, again_info, again_summary")
    selection(db, "small", "arch", [(1, ADAM.format(rate), "batch_size=2") for rate in (0.01, 0.02, 0.03)])
    other.run(f"{SETTINGS}; SET pg_mop.priority = 10")
    begun = "SELECT count(*) FROM madlib.mop_runs WHERE model_output_table = %s AND status = 'running'"
    with holding(db.another()):  # so that the other run does not end before the replay begins
        beside = Calling(
            other, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'o', 'small', 12, FALSE)"
        )
        assert eventually(lambda: db.value(begun, ["o"]))
        client.run(SETTINGS)
        call = Calling(client, f"SELECT madlib.mop_replay({run_id}, 'again')")
        assert eventually(lambda: db.value(begun, ["again"]))
    assert beside.end() is None and call.end() is None
    again = last_run(db)
    assert told(db, again) == told(db, run_id) and equal_weights(db) == 2
    began, ended = (
        db.value(
            f"SELECT {what}(u.{at}) FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) "
            "WHERE model_output_table = 'o'"
        )
        for what, at in (("min", "started_at"), ("max", "finished_at"))
    )
    assert db.value("SELECT started_at < %s FROM madlib.mop_runs WHERE run_id = %s", [ended, again]), (
        "it came afterwards"
    )
    wide = [unit for unit in units(db, again) if unit["threads"] == CORES]
    assert wide and not [unit for unit in wide if began < unit["started_at"] < ended]
    for one in (client, other):
        one.close()
    db.run("DROP TABLE again, again_info, again_summary, o, o_info, o_summary")


def test_a_replay_that_needs_more_threads_than_the_role_may_have_is_refused(db, limit):
    run_id = widened(db)
    before = db.value("SELECT count(*) FROM madlib.mop_runs")
    limit("threads", FEW)
    error = db.error("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    assert error.pgcode == "53400"
    assert f"a replay of run {run_id} needs trainers with {CORES} threads, and the role may have {FEW}" in str(error)
    assert db.value("SELECT count(*) FROM madlib.mop_runs") == before


@pytest.mark.parametrize("setting", ("deal_threads = off", f"threads = {FEW}", "kernel = 'plain'"))
def test_settings_that_fix_the_threads(db, setting):
    name = setting.split()[0]
    db.run(f"SET pg_mop.{setting}")
    try:
        run_id = fit(db, "flowers_packed", "m", "mst", 6)
        assert "Threads: from second" not in db.value("SELECT madlib.mop_explain(%s)", [
            "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'n', 'mst', 24, FALSE)"])  # fmt: skip
    finally:
        db.run(f"RESET pg_mop.{name}; {SETTINGS}")
    assert threads(db, run_id) == threads(db, run_id, 1) == {FEW}


def test_cores_that_other_programs_use_are_left_to_them(db):
    db.run("SET pg_mop.deal_threads = auto")
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(CORES)]
    try:
        run_id = fit(db, "flowers_packed", "m", "mst", 6)
    finally:
        for other in others:
            other.kill()
            other.wait()
        db.run(SETTINGS)
    assert threads(db, run_id) == {FEW}


@pytest.fixture
def long_units(db, history):
    """A history of units so long that the costs around them, which depend on what else the machine does, do not matter."""
    times = (
        "UPDATE madlib.mop_cost SET batch_seconds = ARRAY(SELECT b * %s FROM unnest(batch_seconds) b), "
        "unit_seconds = ARRAY(SELECT b * %s FROM unnest(unit_seconds) b)"
    )
    db.run(times, [100.0, 100.0])
    yield
    db.run(times, [0.01, 0.01])


def test_explain_tells_from_when_on(db, long_units):
    call = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'n', 'mst', 24, FALSE)"
    found = db.value("SELECT madlib.mop_explain(%s, 'json')::jsonb -> 'prediction'", [call])
    assert found["dealt"]["sessions"] == 1 and found["dealt"]["threads"] == CORES and found["dealt"]["from"] > 0
    assert found["lower_bound"] <= found["makespan"]
    assert f" on 1 session of {CORES} threads" in db.value("SELECT madlib.mop_explain(%s)", [call])
    db.run("SET pg_mop.deal_threads = off")
    fixed = db.value("SELECT madlib.mop_explain(%s, 'json')::jsonb -> 'prediction'", [call])
    db.run("SET pg_mop.deal_threads = on")
    assert fixed["dealt"] is None and fixed["makespan"] > found["makespan"]


@pytest.fixture
def limit(db):
    """A function that sets a limit of the role of the tests, which has the history."""
    yield lambda name, value: db.run(f"INSERT INTO madlib.mop_limit (role, {name}) VALUES (current_user, %s)", [value])
    db.run("DELETE FROM madlib.mop_limit")


def test_a_role_has_no_more_threads_than_it_may(db, limit):
    limit("threads", FEW)
    assert threads(db, fit(db, "flowers_packed", "m", "mst", 8)) == {FEW}


def test_a_role_with_as_many_trainers_as_sessions(db, limit):
    """A trainer that is given back for another one is not one too many while it is on its way."""
    limit("sessions", 2)
    run_id = widened(db, 8)
    assert not db.run("SELECT * FROM madlib.mop_units WHERE run_id = %s AND status <> 'finished'", [run_id])


def test_a_cancel_and_a_resume(db):
    client = db.another()
    call, _ = begin(db, client)
    run_id = last_run(db)
    db.run("SELECT pg_cancel_backend(%s)", [client.connection.info.backend_pid])
    assert call.end().pgcode == "57014"
    assert eventually(lambda: grown(db) is None, 60), "its trainer is back"
    assert 0 < len(visits(db, run_id)) < 2 * LONG
    client.run(f"SELECT madlib.mop_resume({run_id})")
    assert visits(db, run_id) == all_visits(LONG)
    client.close()


def test_a_killed_trainer(db):
    client = db.another()
    call, trainer = begin(db, client)
    run_id = last_run(db)
    os.kill(trainer, signal.SIGKILL)
    assert call.end() is None
    assert visits(db, run_id) == all_visits(LONG)
    failed = db.run("SELECT decision FROM madlib.mop_units WHERE run_id = %s AND status = 'failed'", [run_id])
    assert all("retried" in row["decision"] for row in failed)
    client.close()
