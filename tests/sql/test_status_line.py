"""mop_watch: a line for each run that goes on, else of the last one."""

import json
import random
import re
import threading

import pytest

from pg_mop.search import goals
from support.client import Calling
from support.cluster import ROOT, eventually
from support.workload import ADAM, NAN, dense, fit, last_run, load, make_data, selection

TWIN = ROOT / "sql" / "greenplum" / "17_watch.sql"


@pytest.fixture(scope="module")
def data(db):
    load(db, "arch", dense())
    return make_data(db, rows=60, segments=2)


def lines(db):
    return [r["line"] for r in db.run("SELECT line FROM madlib.mop_watch ORDER BY run_id")]


def test_a_role_without_runs_has_no_line(db, data):
    db.run("DROP ROLE IF EXISTS onlooker; CREATE ROLE onlooker LOGIN; GRANT mop_user TO onlooker")
    onlooker = db.another("onlooker")
    assert lines(onlooker) == []
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    fit(db, data, "models", "mst", 1)
    assert len(lines(db)) == 1 and lines(onlooker) == []
    onlooker.close()
    db.run("DROP OWNED BY onlooker; DROP ROLE onlooker")


def of_twin(db, run_id):
    """The best configuration by the twin for Greenplum, whose catalog has the same tables."""
    twin = TWIN.read_text().replace("@extschema@.mop_watch", "@extschema@.twin_of_watch")
    db.run("DROP VIEW IF EXISTS madlib.twin_of_watch; " + twin.replace("@extschema@", "madlib"))
    return re.search(r", best .*", db.value("SELECT line FROM madlib.twin_of_watch WHERE run_id = %s", [run_id]))[0]


def page_best(db, run_id):
    """The best configuration on the page: mst_key, series, value."""
    return json.loads(db.value("SELECT madlib.mop_report(%s, 'summary')", [run_id]))["summary"]["best"]


@pytest.mark.parametrize(
    "compiled, kept, series, validates",
    [
        ("metrics=['accuracy']", "", "accuracy", True),  # equal accuracies: then the loss decides
        ("metrics=['mae']", "", "mae", False),
        ("metrics=['accuracy']", ", keep='best'", "accuracy", False),
        ("metrics=[]", "", "loss", True),
    ],
)
def test_the_line_ranks_as_the_page_does(db, data, compiled, kept, series, validates):
    rates = (0.001, 0.01, 0.05, 0.1, 0.3)
    chosen = [f"loss='categorical_crossentropy', optimizer='Adam(learning_rate={rate})', {compiled}" for rate in rates]
    selection(db, "mst", "arch", [(1, params, f"batch_size=4{kept}") for params in chosen])
    run_id = fit(db, data, "models", "mst", 4, data if validates else None, 1)
    best = page_best(db, run_id)
    what = best["series"].replace("validation", "val.").replace("training ", "")
    assert best["series"] == f"{'validation' if validates else 'training'} {series}"
    (line,) = lines(db)
    told = re.search(r", best (\d+): (.+) (\S+), ", line)
    assert told and (int(told[1]), told[2]) == (best["mst_key"], what), (line, best)
    assert float(told[3]) == pytest.approx(best["value"], abs=1e-4)
    assert of_twin(db, run_id) == re.search(r", best .*", line)[0]


@pytest.mark.parametrize(
    "kept, kept_by, validates",
    [
        ("keep='best'", "{} loss min", True),
        ("keep='last'", None, False),
        ("keep='best', stop={'patience': 9, 'metric': 'accuracy'}", "{} accuracy max", False),
        (
            "keep = 'best', stop = {'metric': 'training_accuracy', 'patience': 9, 'mode': 'min'}",
            "training accuracy min",
            True,
        ),
    ],
)
def test_the_line_counts_the_state_that_is_kept(db, data, kept, kept_by, validates):
    """Whatever the evaluations are, and where loss and accuracy disagree on the best iteration."""
    rows = [(1, ADAM.format(rate), f"batch_size=8, {kept}") for rate in (0.01, 0.1, 0.2)]
    selection(db, "mst", "arch", rows)
    db.run("SET pg_mop.reuse = off")
    run_id = fit(db, data, "models", "mst", 4, data if validates else None, 1)
    db.run("RESET pg_mop.reuse")
    chance = random.Random(5)
    found = db.run("SELECT stage, dataset FROM madlib.mop_metric WHERE run_id = %s ORDER BY 1, 2", [run_id])
    assert len(found) == 12 * (1 + validates)
    told = db.value("SELECT min(kept_by) FROM madlib.mop_trials WHERE run_id = %s", [run_id])
    assert told == (kept_by and kept_by.format("validation" if validates else "training"))
    for _ in range(4):
        for row in found:
            loss, accuracy = round(chance.uniform(0, 1), 3), chance.randint(0, 6) / 6
            db.run(
                "UPDATE madlib.mop_metric SET loss = %s, metric = %s, metrics = %s "
                "WHERE (run_id, stage, dataset) = (%s, %s, %s)",
                [loss, accuracy, json.dumps({"accuracy": accuracy}), run_id, row["stage"], row["dataset"]],
            )
        best = page_best(db, run_id)
        (line,) = lines(db)
        assert f", best {best['mst_key']}: " in line and f"accuracy {best['value']:.4f}, " in line, (line, best)
        assert of_twin(db, run_id) == re.search(r", best .*", line)[0]


def test_the_line_knows_which_metrics_are_better_if_greater():
    for sql in (TWIN, TWIN.parents[1] / "postgresql" / "15_progress.sql"):
        text = re.sub(r"'\n\s*'", "", sql.read_text())
        assert f"'{goals.LESS.pattern}'::text AS less" in text and f"'{goals.MORE.pattern}'::text AS more" in text


def test_the_last_run_has_one_line_of_what_its_tables_tell(db, data):
    selection(
        db,
        "mst",
        "arch",
        [(1, ADAM.format(0.05), "batch_size=8"), (1, ADAM.format(0.001), "batch_size=8"), (1, NAN, "batch_size=8")],
    )
    run_id = fit(db, data, "models", "mst", 3, data, 1)
    best = page_best(db, run_id)
    (line,) = lines(db)
    done = db.value("SELECT sum(units_done) FROM madlib.mop_progress WHERE run_id = %s", [run_id])
    assert re.sub(r"\d+:\d\d:\d\d|(?<=accuracy )\S+(?=,)", "#", line) == (
        f"run {run_id}: {done}/{done} units, 100%, finished in #, 1 failed, "
        f"best {best['mst_key']}: val. accuracy #, fit_multiple"
    )
    assert len(line) <= 100 and float(re.search(r"accuracy (\S+),", line)[1]) == pytest.approx(best["value"], abs=1e-4)


def test_a_run_that_goes_on_has_a_line_and_those_that_have_ended_have_none(db, data):
    selection(db, "mst", "arch", [(1, ADAM.format(0.01 * i), "batch_size=1") for i in range(1, 4)])
    caller = db.another()
    pid = caller.connection.get_backend_pid()

    ended = []

    def call():
        ended.append(
            caller.error("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'long', 'mst', 3000, FALSE)")
        )

    thread = threading.Thread(target=call)
    thread.start()
    try:
        # before the first evaluation the best is a unit's
        line = eventually(lambda: next((x for x in lines(db) if " left, " in x and "unit loss" in x), None), 60)
        assert line, (lines(db), ended)
    finally:
        db.run("SELECT pg_cancel_backend(%s)", [pid])
        thread.join()
        caller.close()
    run_id = last_run(db)
    assert (
        re.match(
            rf"run {run_id}: [1-9]\d*/18\d\d\d units, \d+%, \d+:\d\d:\d\d left, [0-2] busy, 0 failed, "
            r"best \d: unit loss \d",
            line,
        )
        and len(line) <= 100
    )
    (line,) = lines(db)
    assert line.startswith(f"run {run_id}: ") and "cancelled in" in line and "busy" not in line
    db.run("SELECT madlib.mop_drop_run(%s)", [run_id])


def test_a_run_whose_session_was_ended_says_so_and_what_it_has_left(db, data):
    selection(db, "mst", "arch", [(1, ADAM.format(0.01 * i), "batch_size=1") for i in range(1, 4)])
    caller = db.another()
    calling = Calling(
        caller, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'cut', 'mst', 3000, FALSE)"
    )
    try:
        assert eventually(lambda: [x for x in lines(db) if "unit loss" in x], 60)
        run_id = last_run(db)
        db.run("SELECT pg_terminate_backend(%s)", [caller.connection.info.backend_pid])
        assert calling.end() is not None
        assert eventually(
            lambda: db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == "failed"
        )
    finally:
        calling.end()
        caller.close()
    (line,) = lines(db)
    assert re.match(rf"run {run_id}: [1-9]\d*/18\d\d\d units, \d\d?%, failed in ", line), line
    told = db.value("SELECT error FROM madlib.mop_runs WHERE run_id = %s", [run_id])
    assert told == "the session that ran it has ended; mop_resume goes on with it"
    db.run("SELECT madlib.mop_drop_run(%s)", [run_id])
