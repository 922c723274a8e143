"""EXPLAIN: a call is checked and planned as it would run, and nothing of it stays. What runs took is told to those who may
see them."""

import json
import re
import time

import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually
from support.trainers import all_trainers
from support.workload import ADAM, dense, fit, holding, last_run, load, make_data, selection

FIT = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'm', 'mst', 3, FALSE, 'flowers_val')"
SPACE = (
    "$s${'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer_params_list': [{'optimizer': ['Adam'], "
    "'lr': [0.001, 0.1, 'log']}], 'batch_size': [8, 16]}$s$"
)
SEARCH = (
    f"SELECT madlib.mop_search('flowers_packed', 'm', 'arch', {SPACE}, 'asha', 'trials=9, iterations=4', "
    "metric => 'accuracy')"
)
GRIDS = (
    "$s${'loss': ['categorical_crossentropy'], 'optimizer_params_list': [{'optimizer': ['SGD'], "
    "'lr': [0.01, 0.1, 'log']}]}$s$, $s${'batch_size': [8], 'epochs': [1]}$s$"
)
CALLS = {
    "fit_multiple": FIT,
    "procedure": "CALL madlib.mop_fit_multiple_model('flowers_packed', 'm', 'mst', 3, FALSE)",
    "folds": "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'm', 'mst', 2, FALSE, folds => 2)",
    "fit": "SELECT madlib.madlib_keras_fit('flowers_packed', 'm', 'arch', 1, "
    f"$s${ADAM.format(0.01)}$s$, 'batch_size=8', 4)",
    "search": SEARCH,
    "automl": f"SELECT madlib.madlib_keras_automl('flowers_packed', 'm', 'arch', 'm_mst', ARRAY[1], {GRIDS}, 'hyperband', "
    "'R=4, eta=2, skip_last=0', 7)",
    "hyperopt": f"SELECT madlib.madlib_keras_automl('flowers_packed', 'm', 'arch', 'm_mst', ARRAY[1]::int[], {GRIDS}, "
    "'hyperopt', 'num_configs=5, num_iterations=2, algorithm=rand')",
}


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, segments=2)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.01, 0.02, 0.03)])


def explain(db, call, output="text"):
    return db.value("SELECT madlib.mop_explain(%s, %s)", [call, output])


def plan(db, call):
    return json.loads(explain(db, call, "json"))


SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pg_mop%'"


def everything(db):
    """All that a call might leave: relations, the rows of every catalog table, sessions, trainers."""
    # (PostgreSQL shows a session for a moment after its client has closed it)
    eventually(lambda: not db.value(SESSIONS), 30)
    relations = db.value("SELECT count(*) FROM pg_class")
    tables = [
        row["name"]
        for row in db.run(
            "SELECT c.oid::regclass::text AS name FROM pg_class c WHERE c.relkind = 'r' AND "
            "c.relnamespace = 'madlib'::regnamespace ORDER BY 1"
        )
    ]
    rows = {
        name: db.value(f"SELECT md5(coalesce(string_agg(t::text, ';' ORDER BY t::text), '')) FROM {name} t")
        for name in tables
    }
    sessions = db.value(SESSIONS)
    locks = db.value("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype IN ('advisory')")
    return relations, rows, sessions, locks, sorted(all_trainers())


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_planned_and_leaves_nothing(db, name):
    db.run("SELECT madlib.mop_end_trainers()")
    assert eventually(lambda: not all_trainers())
    before = everything(db)
    db.run("BEGIN")
    text = explain(db, CALLS[name])
    shared = db.value(
        "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'flowers_packed'::regclass "
        "AND mode = 'ShareLock'"
    )
    found = plan(db, CALLS[name])
    db.run("COMMIT")
    assert shared == 0, "the lock ends with the explanation, not with the transaction"
    assert everything(db) == before
    first, *lines = text.splitlines()
    assert re.match(r'(Train|Search) .* on "flowers_packed"  \(time=.*\.\..*, expected .*\)$', first)
    assert all(line.startswith("  ") for line in lines)
    assert found["source"]["rows"] == 100 and found["sessions"] == 2 and found["memory"]["trainer"] > 100 << 20
    if "search" in found:
        cases = found["search"]
        assert 0 < cases["least"]["seconds"] <= cases["expected"]["seconds"] <= cases["most"]["seconds"]
    else:
        predicted = found["prediction"]
        assert 0 < predicted["lower_bound"] <= predicted["makespan"]
        assert predicted["seconds_low"] <= predicted["seconds"] <= predicted["seconds_high"]
        assert predicted["training_units"] == 2 * found["stages"]["to_train"] or name in ("fit", "folds")
        assert {net["source"] for net in found["nets"]} <= {"arithmetic", "other nets", "history"}


def test_history_reuse_and_sharing_are_in_the_plan(db):
    db.run("SET pg_mop.reuse = on")
    fit(db, "flowers_packed", "m", "mst", 2, "flowers_val")
    db.run("DROP TABLE m, m_info, m_summary")
    found = plan(db, FIT)
    assert found["nets"][0]["source"] == "history" and found["nets"][0]["kernel"]
    assert found["stages"]["found_trained"] == 6 and found["stages"]["to_train"] == 3
    assert "found trained in run" in explain(db, FIT)
    db.run("SELECT madlib.mop_drop_checkpoints(); SET pg_mop.reuse = off")
    assert plan(db, FIT)["stages"]["to_train"] == 9
    db.run("RESET pg_mop.reuse")
    selection(db, "same", "arch", [(1, ADAM.format(0.01), "batch_size=8")] * 2)
    found = plan(db, FIT.replace("'mst'", "'same'"))
    assert found["stages"]["shared"] == 3 and found["stages"]["asked"] == 6
    # of a net with enough operations that its seconds tell the speed of this machine
    load(db, "wide", dense(5000), dense(64, name="narrow"))
    selection(db, "heavy", "wide", [(1, ADAM.format(0.01), "batch_size=50, epochs=20")])
    fit(db, "flowers_packed", "m", "heavy", 1)
    db.run("DROP TABLE m, m_info, m_summary; SELECT madlib.mop_drop_checkpoints()")
    selection(db, "others", "wide", [(2, ADAM.format(0.01), "batch_size=8")])
    found = plan(db, FIT.replace("'mst'", "'others'"))
    assert found["nets"][0]["source"] == "other nets" and "a guess" in explain(db, FIT.replace("'mst'", "'others'"))


OF_FLOWERS = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', {})"
GOOD = OF_FLOWERS.format("'m', 'mst', 3, FALSE")
BAD = [
    (GOOD.replace("flowers_packed", "nothing"), None),
    *(
        (OF_FLOWERS.format(arguments), None)
        for arguments in (
            "'flowers', 'mst', 3, FALSE",
            "'m', 'mst', 0, FALSE",
            "'m', 'mst', 1.5, FALSE",
            "'m', 'bad', 3, FALSE",
            "'m', 'misfit', 3, FALSE",
            "'m', 'mst', 3, FALSE, folds => 9",
            "'m', 'mst', 3, TRUE",
            "'m', 'mst', 3, 7",
            "wrong => 1",
        )
    ),
    (GOOD, "SET pg_mop.scheduler = 'none'"),
    (GOOD, "SET pg_mop.kernel = 'vmap'"),
    ("SELECT madlib.madlib_keras_fit('flowers_packed', 'm', 'arch', 7, 'x', 'y', 1)", None),
    (SEARCH.replace("asha", "none"), None),
    (SEARCH.replace("'accuracy'", "'nonsense'"), None),
    (SEARCH.replace("trials=9", "trials=0"), None),
    ("SELECT madlib.mop_more(123456, 1, 1)", None),
]


@pytest.mark.parametrize("call,setting", BAD)
def test_a_call_that_would_fail_fails_with_its_own_error_and_nothing_else(db, call, setting):
    selection(db, "bad", "arch", [(1, "loss='mse', optimizer='Nonsense()'", "batch_size=8")])
    load(db, "arch5", dense(inputs=5))
    selection(db, "misfit", "arch5", [(1, ADAM.format(0.1), "batch_size=8")])
    other = db.another()
    other.run(setting or "SELECT 1")
    before = everything(db)
    with pytest.raises(psycopg2.Error) as own:
        other.run(call)
    with pytest.raises(psycopg2.Error) as explained:
        other.run("SELECT madlib.mop_explain(%s)", [call])
    other.close()
    said = []
    for caught in (own.value, explained.value):
        # (PL/Python puts the class of an error before its text, also before that of PostgreSQL's own errors)
        message = caught.diag.message_primary.removeprefix("plpy.Error: ")
        said.append((caught.pgcode, message, caught.diag.message_detail, caught.diag.message_hint))
    assert "plpy" not in said[1][1]
    assert said[0] == said[1]
    assert everything(db)[:3] == before[:3]


@pytest.mark.parametrize(
    "call,said",
    [
        ("SELECT 1", "constants for arguments"),
        (FIT + "; " + FIT, "only one statement"),
        (FIT.replace("'m'", "(SELECT 'm')"), "a constant is expected"),
        ("SELECT madlib.mop_drop_run(1)", "cannot be explained"),
        ("SELECT madlib.mop_pack('flowers', 'x', 'y')", "cannot be explained"),
        ("SELECT madlib.mop_explain('x')", "cannot be explained"),
        ("SELECT pg_sleep(9)", "is no function of pg_mop"),
        ("SELECT other.madlib_keras_fit_multiple_model('x')", "is no function of pg_mop"),
        ("SELECT madlib.madlib_keras_fit_multiple_model('usage')", "shows help and trains nothing"),
        ("SELECT madlib.madlib_keras_fit_multiple_model()", "shows help and trains nothing"),
        ("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed')", "shows help and trains nothing"),
    ],
)
def test_a_text_that_is_no_call_is_refused(db, call, said):
    before = everything(db)
    error = db.error("SELECT madlib.mop_explain(%s)", [call])
    assert said in str(error)
    assert everything(db) == before
    for call in ("mop_explain($$SELECT 1$$, 'xml')", "mop_explain_run(1, 'xml')"):
        assert "format must be 'text' or 'json', not 'xml'" in str(db.error(f"SELECT madlib.{call}"))


def test_a_name_without_a_schema_is_ours_only_if_the_search_path_says_so(db):
    call = FIT.replace("madlib.madlib", "madlib")
    assert "is no function of pg_mop" in str(db.error("SELECT madlib.mop_explain(%s)", [call]))
    db.run("SET search_path = public, madlib")
    assert explain(db, call).startswith("Train 3 configurations")
    db.run(
        "CREATE SCHEMA mine; CREATE FUNCTION mine.madlib_keras_fit_multiple_model(x text) RETURNS text LANGUAGE sql "
        "AS 'SELECT x'; SET search_path = mine, public, madlib"
    )
    assert "is no function of pg_mop" in str(db.error("SELECT madlib.mop_explain(%s)", [call]))
    db.run("RESET search_path; DROP SCHEMA mine CASCADE")


def test_rows_that_others_do_not_see_are_refused_as_in_the_call(db):
    other = db.another()
    for change in ("DELETE FROM flowers_packed WHERE buffer_id = 0", "UPDATE flowers_packed SET buffer_id = buffer_id"):
        said = []
        for call in (FIT, "SELECT madlib.mop_explain($e$" + FIT + "$e$)"):
            other.run("BEGIN; " + change)
            error = other.error(call)
            said.append((error.pgcode, error.diag.message_primary, error.diag.message_hint))
        assert said[0] == said[1] and "rows that other sessions do not see" in said[0][1]
    other.run("BEGIN; CREATE TABLE beside(i int); INSERT INTO beside VALUES (1)")
    assert other.value("SELECT madlib.mop_explain(%s)", [FIT]).startswith("Train 3")
    other.run("ROLLBACK")
    other.close()


def test_the_mode_ends_with_every_error(db):
    """After an explanation that failed or was cancelled, the call runs."""
    with pytest.raises(psycopg2.Error):
        explain(db, FIT.replace("'mst'", "'nothing'"))
    with pytest.raises(psycopg2.errors.QueryCanceled):  # (the error takes the setting back)
        db.run("SET statement_timeout = '1ms'; SELECT madlib.mop_explain(%s, 'text')", [FIT])
    assert db.value("SHOW statement_timeout") == "0"
    explain(db, FIT)
    db.run("SET mop_explain.call = 'x'")
    db.run(FIT)
    assert db.value("SELECT count(*) FROM m") == 3
    db.run("RESET mop_explain.call; DROP TABLE m, m_info, m_summary; SELECT madlib.mop_drop_checkpoints()")


def test_what_is_left_of_a_cancelled_run_is_planned(db):
    client = db.another()
    client.run("SET pg_mop.chain_seconds = 0; SET pg_mop.reuse = off; SET pg_mop.lock_timeout = '300s'")
    trained = "SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND kind = 'train' AND status = 'finished'"
    with holding(db.another()) as let_some_begin:
        call = Calling(client, FIT.replace("3, FALSE, 'flowers_val'", "400, FALSE").replace("'m'", "'left'"))
        assert eventually(lambda: db.value("SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = 'left'"))
        run_id = last_run(db)
        resume = f"SELECT madlib.mop_resume({run_id})"
        assert "is running" in str(db.error("SELECT madlib.mop_explain(%s)", [resume]))
        assert eventually(lambda: db.value(trained, [run_id]) > 10 or let_some_begin(), 90)
        db.run("SELECT pg_cancel_backend(%s)", [client.connection.info.backend_pid])
    assert call.end().pgcode == "57014"
    done, before = db.value(trained, [run_id]), everything(db)
    found = plan(db, resume)
    assert found["stages"]["asked"] == 3 * 400
    # (of an iteration that is not done yet, the plan has all units)
    assert 0 <= found["prediction"]["training_units"] - (3 * 400 * 2 - done) <= 3
    assert everything(db) == before
    assert f"no run {run_id + 1000}" in str(
        db.error("SELECT madlib.mop_explain(%s)", [f"SELECT madlib.mop_resume({run_id + 1000})"])
    )
    client.close()
    db.run("SELECT madlib.mop_drop_run(%s)", [run_id])


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_is_explained_with_what_was_predicted(db):
    run_id = fit(db, "flowers_packed", "m", "mst", 3, "flowers_val")
    db.run("DROP TABLE m, m_info, m_summary; SELECT madlib.mop_drop_checkpoints()")
    found = json.loads(db.value("SELECT madlib.mop_explain_run(%s, 'json')", [run_id]))
    predicted, actual = found["prediction"], found["actual"]
    assert found["status"] == "finished" and found["units"]["train"] == predicted["training_units"] == 18
    assert predicted["makespan"] > 0 and 0 < actual["makespan"] <= actual["seconds"]
    assert sum(actual["session_seconds"].values()) == pytest.approx(
        actual["makespan"] * predicted["sessions"], rel=0.01
    )
    assert {"train"} < set(actual["session_seconds"]) and actual["critical_path"]["units"] > 0
    text = db.value("SELECT madlib.mop_explain_run(%s)", [run_id])
    assert text.startswith(f"Run {run_id}: madlib_keras_fit_multiple_model, finished") and "Critical path:" in text
    assert re.search(r"Makespan: expected .*, actual .*  \(\d+\.\d\d x\)", text)


def test_a_long_look_at_a_search_can_be_cancelled(db):
    call = "SELECT madlib.mop_explain($x$" + SEARCH.replace("asha", "hyperband").replace(
        "trials=9, iterations=4", "iterations=6561"
    )
    call += "$x$)"
    error = db.error(f"SET statement_timeout = '300ms'; {call}")  # (which takes the setting back)
    assert error.pgcode == "57014", error
    assert db.value("SHOW statement_timeout") == "0"
    assert "Search: " in db.value("SELECT madlib.mop_explain($x$" + SEARCH + "$x$)")


def test_a_search_has_a_stored_prediction_with_its_range(db):
    db.run(SEARCH)
    run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs")
    db.run("DROP TABLE m, m_info, m_summary, m_trials; SELECT madlib.mop_drop_checkpoints()")
    found = json.loads(db.value("SELECT madlib.mop_explain_run(%s, 'json')", [run_id]))
    predicted, cases = found["prediction"], found["prediction"]["search"]
    assert cases["least"]["trials"] == cases["most"]["trials"] == 9 and cases["whole"]
    counts = [cases[name]["training_units"] for name in ("least", "expected", "most")]
    assert min(counts) <= found["units"]["train"] <= max(counts)
    assert predicted["training_units"] == cases["expected"]["training_units"]
    assert 0 < predicted["makespan_low"] < predicted["makespan"] < predicted["makespan_high"]
    text = db.value("SELECT madlib.mop_explain_run(%s)", [run_id])
    assert re.search(r"Units: expected \d+ to train \(\d+ to \d+, as the search goes\), actual \d+", text)


def test_a_stored_prediction_leaves_out_what_earlier_runs_have_trained(db):
    db.run("SET pg_mop.reuse = on; SET pg_mop.seed = 4")
    fit(db, "flowers_packed", "m", "mst", 2)
    db.run("DROP TABLE m, m_info, m_summary")
    run_id = fit(db, "flowers_packed", "m", "mst", 3)
    db.run("DROP TABLE m, m_info, m_summary")
    nothing_new = fit(db, "flowers_packed", "m", "mst", 3)
    db.run(
        "DROP TABLE m, m_info, m_summary; RESET pg_mop.reuse; RESET pg_mop.seed; SELECT madlib.mop_drop_checkpoints()"
    )
    found, none = (
        json.loads(db.value("SELECT madlib.mop_explain_run(%s, 'json')", [r])) for r in (run_id, nothing_new)
    )
    assert found["prediction"]["training_units"] == found["units"]["train"] == 6
    assert none["units"]["train"] == 0 and none["actual"]["start_seconds"] is None
    assert db.value("SELECT madlib.mop_explain_run(%s)", [nothing_new]).startswith(f"Run {nothing_new}: ")


def test_a_plan_counts_the_typical_unit_and_not_the_least_mini_batch(db):
    fit(db, "flowers_packed", "m", "mst", 1)
    db.run("DROP TABLE m, m_info, m_summary; SELECT madlib.mop_drop_checkpoints()")
    db.run("UPDATE madlib.mop_cost SET batch_seconds = ARRAY[1e-6], unit_seconds = ARRAY[0.5, 0.25, 0.5], units = 3")
    (net,) = plan(db, FIT)["nets"]
    batches = 7  # of 8 of the 50 rows of a segment
    assert net["batch_seconds"] == pytest.approx(0.5) and net["unit_seconds"] == pytest.approx(batches * 0.5)
    db.run("UPDATE madlib.mop_cost SET units = 0")
    (net,) = plan(db, FIT)["nets"]
    assert net["batch_seconds"] == pytest.approx(1e-6), "no unit is known"
    db.run("DELETE FROM madlib.mop_cost")


def test_nobody_learns_of_the_nets_or_runs_of_others(db):
    run_id = fit(db, "flowers_packed", "m", "mst", 1)
    db.run("DROP TABLE m, m_info, m_summary")
    db.run("CREATE ROLE explain_stranger LOGIN; GRANT mop_user TO explain_stranger")
    stranger = db.another("explain_stranger")
    assert "there is no run" in str(stranger.error("SELECT madlib.mop_explain_run(%s)", [run_id]))
    assert "permission denied" in str(stranger.error("SELECT madlib.mop_explain(%s)", [FIT]))
    db.run(
        "GRANT CREATE ON SCHEMA public TO explain_stranger; GRANT SELECT ON flowers_packed, flowers_packed_summary, "
        "flowers_val, flowers_val_summary, mst, mst_summary, arch TO explain_stranger"
    )
    assert plan(db, FIT)["nets"][0]["source"] == "history"
    theirs = plan(stranger, FIT)
    assert theirs["nets"][0]["source"] == "arithmetic" and theirs["nets"][0]["runs"] is None
    assert theirs["stages"]["found_trained"] == 0
    stranger.close()
    db.run("DROP OWNED BY explain_stranger; DROP ROLE explain_stranger; SELECT madlib.mop_drop_checkpoints()")


def test_more_iterations_of_a_configuration_are_planned(db):
    db.run("SET pg_mop.reuse = on")
    run_id = fit(db, "flowers_packed", "m", "mst", 2)
    before = everything(db)
    found = plan(db, f"SELECT madlib.mop_more({run_id}, 1, 3)")
    assert found["configurations"] == 1 and found["stages"]["to_train"] == 3 and found["stages"]["found_trained"] == 2
    assert everything(db) == before
    db.run("DROP TABLE m, m_info, m_summary; SELECT madlib.mop_drop_checkpoints(); RESET pg_mop.reuse")


def test_a_limit_refuses_a_run_by_its_estimate_and_so_does_its_explanation(db):
    load(db, "large", dense(width=100_000))
    selection(db, "long", "large", [(1, ADAM.format(0.01), "batch_size=1, epochs=1000")])
    long = FIT.replace("'mst'", "'long'")
    db.run(
        "DELETE FROM madlib.mop_cost"
    )  # (the estimate is arithmetic's: it does not depend on how busy the machine was)
    for column, value, said in (
        ("max_seconds", 5, "is expected to take at least"),
        ("max_disk_mb", 1, "are expected to need"),
    ):
        db.run(f"INSERT INTO madlib.mop_limit (role, {column}) VALUES (NULL, {value})")
        try:
            before = db.value("SELECT count(*) FROM madlib.mop_run")
            errors = [db.error(long), db.error("SELECT madlib.mop_explain(%s)", [long])]
            assert len({(e.pgcode, e.diag.message_primary) for e in errors}) == 1 and said in str(errors[0])
            assert db.value("SELECT count(*) FROM madlib.mop_run") == before
            assert explain(db, FIT), "a short one is allowed"
        finally:
            db.run("DELETE FROM madlib.mop_limit")


def test_a_limit_of_seconds_wants_a_time_limit_of_a_search(db):
    db.run("INSERT INTO madlib.mop_limit (role, max_seconds) VALUES (NULL, 60)")
    try:
        for call in (SEARCH, f"SELECT madlib.mop_explain($x${SEARCH}$x$)"):
            error = db.error(call)
            assert error.pgcode == "53400" and "must have a time limit of at most 60 s" in str(error)
    finally:
        db.run("DELETE FROM madlib.mop_limit")


def test_equal_calls_have_equal_plans(db):
    plans = [explain(db, FIT) for _ in range(3)]
    assert plans[0] == plans[1] == plans[2]


def test_measure_times_each_net_in_a_trial_that_is_rolled_back(db):
    db.run("DELETE FROM madlib.mop_cost; SELECT madlib.mop_drop_checkpoints()")
    load(db, "pair", dense(), dense(width=32, name="wide"))
    selection(db, "couple", "pair", [(1, ADAM.format(0.01), "batch_size=8"), (2, ADAM.format(0.01), "batch_size=8")])
    before = everything(db)[:4]
    for call in (FIT.replace("'mst'", "'couple'"), SEARCH):
        began = time.monotonic()
        found = json.loads(db.value("SELECT madlib.mop_explain(%s, 'json', TRUE)", [call]))
        took = time.monotonic() - began
        assert "measured" in {net["source"] for net in found["nets"]}
        assert all(net["batch_seconds"] > 0 and net["kernel"] for net in found["nets"] if net["source"] == "measured")
        assert everything(db)[:4] == before
        assert took < 200, "(a trainer may have to start, and a net to be compiled)"
    assert "measured now" in db.value("SELECT madlib.mop_explain(%s, measure => TRUE)", [FIT])
    leased = "SELECT count(*) FROM madlib.mop_trainers WHERE state <> 'idle'"
    assert eventually(lambda: db.value(leased) == 0, 60), "the session has given its trainer back"
