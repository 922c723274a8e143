"""Searches that are disturbed: each procedure goes to its end through killed sessions and trainers, a cancel and a lost
caller, and its log tells an undisturbed procedure the same story."""

import os
import signal
import time

import pytest

from support.client import Calling
from support.cluster import eventually
from support.trainers import trainers
from support.workload import dense, load, make_data

SPACE = (
    "{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer_params_list': [{'optimizer': "
    "['Adam'], 'lr': [0.001, 0.1, 'log']}], 'batch_size': [2], 'epochs': [3]}"
)
PROCEDURES = {
    "grid": "iterations=3",
    "random": "iterations=3, trials=4",
    "successive-halving": "iterations=4, trials=6, reduction=2",
    "hyperband": "iterations=4, reduction=2",
    "asha": "iterations=4, trials=6, reduction=2",
    "population": "iterations=4, population=4, interval=2",
    "median-stopping": "iterations=4, trials=5, grace=1, others=2",
    "tpe": "iterations=3, trials=4",
    "bohb": "iterations=4, reduction=2",
}


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=2)
    db.run(
        f"ALTER DATABASE \"{db.database}\" SET pg_mop.kernel = 'plain'; "
        f'ALTER DATABASE "{db.database}" SET pg_mop.seed = 11'
    )
    load(db, "arch", dense())


def disturb(db, run_id, how):
    """Do one thing to a run that is at work."""
    busy = (
        "FROM pg_stat_activity WHERE application_name LIKE 'pg_mop run%%' AND state = 'active' AND "
        "datname = current_database()"
    )
    if how == "session":
        db.run(f"SELECT pg_terminate_backend(min(pid)) {busy}")
    elif how == "trainer":
        for pid in trainers()[:1]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    else:
        db.run(f"SELECT pg_{how}_backend(coordinator_pid) FROM madlib.mop_run WHERE run_id = %s", [run_id])


def log(db, run_id):
    return [
        r["event"]
        for r in db.run("SELECT event FROM madlib.mop_search_log WHERE run_id = %s ORDER BY number", [run_id])
    ]


@pytest.mark.parametrize("procedure", PROCEDURES)
def test_a_disturbed_search_comes_to_its_end(db, data, procedure):
    if procedure == "tpe":
        pytest.importorskip("optuna", reason="not run: it needs Optuna")
    space = SPACE.replace("[0.001, 0.1, 'log']", "[0.01, 0.02, 0.05]") if procedure == "grid" else SPACE
    name = "d_" + procedure.replace("-", "_")
    caller = db.another()
    call = Calling(
        caller,
        f"SELECT madlib.mop_search('flowers_packed', '{name}', 'arch', $s${space}$s$, "
        f"'{procedure}', '{PROCEDURES[procedure]}')",
    )
    at_work = "SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = %s AND status = 'running'"
    for how, after in (("session", 1), ("trainer", 2), ("cancel", 3)):
        assert eventually(
            lambda n=after: (
                (db.value(at_work, [name]) and len(log(db, db.value(at_work, [name]))) >= n)
                or not call.thread.is_alive()
            ),
            120,
        )
        run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = %s", [name])
        disturb(db, run_id, how)
    error = call.end()
    assert error is None or error.pgcode == "57014", error
    heard = log(db, run_id)
    if error is not None:
        other = db.another()
        again = Calling(other, f"SELECT madlib.mop_resume({run_id})")
        time.sleep(0.7)
        disturb(db, run_id, "terminate")  # the session that resumes it
        if again.end() is not None:
            assert eventually(
                lambda: db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == "failed"
            )
            assert log(db, run_id)[: len(heard)] == heard
            heard = log(db, run_id)
            caller.close()
            caller = db.another()
            caller.run("SELECT madlib.mop_resume(%s)", [run_id])
        other.close()
    assert db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == "finished"
    events = log(db, run_id)
    assert events[: len(heard)] == heard
    # exactly once: what was asked for, and nothing else
    assert (
        db.run(
            "SELECT stage FROM madlib.mop_unit WHERE run_id = %s AND kind = 'train' AND status = 'finished' "
            "GROUP BY stage HAVING (count(*), count(DISTINCT segment)) <> (2, 2)",
            [run_id],
        )
        == []
    )
    trials = db.run(f"SELECT mst_key, status, iterations FROM {name}_trials ORDER BY 1")
    assert {t["status"] for t in trials} <= {"finished", "stopped"}
    assert db.value(f"SELECT count(*) FROM {name}") == len([t for t in trials if t["iterations"]])
    assert_the_log_gives_these_trials(db, run_id, procedure, space, events)
    caller.close()


def assert_the_log_gives_these_trials(db, run_id, procedure, space, events):
    """A new procedure with the same seed that is told what the log says proposes what was trained."""
    from pg_mop import search
    from pg_mop.search import grids
    from pg_mop.search.space import Space

    whole = grids.parse(space, "space", (*grids.COMPILE_KEYS, *grids.FIT_KEYS))
    made = search.create(procedure, Space({"model_id": [1], **whole}), 11, "min", PROCEDURES[procedure])
    made.replay([tuple(event) for event in events if event[0] != "end"])
    assert made.done
    trained = {
        r["mst_key"]: (1, r["compile_params"], r["fit_params"])
        for r in db.run(
            "SELECT mst_key, compile_params, fit_params FROM madlib.mop_configuration WHERE run_id = %s", [run_id]
        )
    }
    assert {number: tuple(made.trials[number].configuration) for number in trained} == trained
