"""What an earlier run has trained is not trained again: checkpoints, their budget, mop_more."""

import json
import time

import pytest

from support.client import Calling
from support.workload import ADAM, dense, fit, layer, load, make_data, selection


@pytest.fixture(scope="module")
def data(db):
    db.run("SET pg_mop.reuse = on; SET pg_mop.kernel = 'plain'")
    make_data(db, segments=2)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")
    load(db, "arch", dense(), dense(16))
    selection(
        db,
        "mst",
        "arch",
        [
            (1, ADAM.format("MultiStep(0.05, [2], 0.1)"), "batch_size=8"),
            (1, ADAM.format(0.05), "batch_size=8"),
            (2, ADAM.format(0.05), "batch_size=8"),
        ],
    )


@pytest.fixture
def anew(db, data):
    db.run("RESET pg_mop.checkpoint_mb; SET pg_mop.reuse = on; SET pg_mop.seed = 5")
    db.run("SELECT madlib.mop_drop_checkpoints()")
    db.run("DELETE FROM madlib.mop_run")


def units(db, run_id, kind="train"):
    return db.value("SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND kind = %s", [run_id, kind])


def weights(db, table):
    return {r["mst_key"]: bytes(r["model_weights"]) for r in db.run(f"SELECT mst_key, model_weights FROM {table}")}


def test_the_same_again_returns_at_once_with_its_metrics(db, anew):
    first = fit(db, "flowers_packed", "models", "mst", iterations=4, frequency=2)
    second = fit(db, "flowers_packed", "again", "mst", iterations=4, frequency=2)
    assert units(db, first) == (2 + 2 + 2 + 4) * 2 and units(db, second) == units(db, second, "evaluate") == 0
    assert weights(db, "again") == weights(db, "models")
    info = "SELECT mst_key, training_loss, training_metrics, all_metrics::text FROM {}_info ORDER BY 1"
    assert db.run(info.format("again")) == db.run(info.format("models"))
    order = (
        "SELECT mst_key, iteration, position, segment FROM madlib.mop_visit_order WHERE run_id = %s ORDER BY 1, 2, 3"
    )
    assert db.run(order, [second]) == db.run(order, [first])
    sources = db.run("SELECT DISTINCT source_run FROM madlib.mop_stages WHERE run_id = %s", [second])
    assert sources == [{"source_run": first}]
    # what was taken over can be replayed
    db.run(
        "DROP TABLE IF EXISTS replayed, replayed_info, replayed_summary; SELECT madlib.mop_replay(%s, 'replayed')",
        [second],
    )
    assert weights(db, "replayed") == weights(db, "models")


def test_what_was_taken_over_is_nothing_to_do(db, anew):
    """There are no units of it in this run, but where it is evaluated as it was not before."""
    fit(db, "flowers_packed", "models", "mst", iterations=2, frequency=2)
    progress = (
        "SELECT DISTINCT status, units_done = units_total AS whole, iteration, units_total > 0 AS works "
        "FROM madlib.mop_progress WHERE run_id = %s"
    )
    for frequency in (2, 1, 1):
        run_id = fit(db, "flowers_packed", "longer", "mst", iterations=4, frequency=frequency)
        made = db.value("SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished'", [run_id])
        line = db.value("SELECT line FROM madlib.mop_watch")
        assert line.startswith(f"run {run_id}: ") and ", 100%, finished in " in line
        told = db.run(progress, [run_id])
        assert told == [{"status": "finished", "whole": True, "iteration": 4, "works": made > 0}]
    assert made == 0


def test_more_iterations_train_those_alone(db, anew):
    fit(db, "flowers_packed", "models", "mst", iterations=2)
    longer = fit(db, "flowers_packed", "longer", "mst", iterations=5)
    assert units(db, longer) == 3 * 3 * 2
    db.run(
        "DROP TABLE IF EXISTS whole, whole_info, whole_summary; SET pg_mop.reuse = off; "
        "SELECT madlib.mop_replay(%s, 'whole')",
        [longer],
    )
    assert weights(db, "whole") == weights(db, "longer"), "as if trained at one go"


def test_only_the_same_is_taken_over(db, anew):
    """Another seed, other rows, another kernel, another architecture: nothing is shared."""
    fit(db, "flowers_packed", "models", "mst", iterations=2)
    whole = (2 + 2) * 2

    def trained(sql="SELECT 1", packed="flowers_packed", back="SELECT 1"):
        db.run(sql)
        run_id = fit(db, packed, "other", "mst", iterations=2)
        db.run(back)
        return units(db, run_id)

    assert trained("SET pg_mop.seed = 6", back="SET pg_mop.seed = 5") == whole
    assert trained("SET pg_mop.kernel = 'loop'", back="SET pg_mop.kernel = 'plain'") == whole
    assert trained("SET pg_mop.reuse = off", back="SET pg_mop.reuse = on") == whole
    db.run(
        "CREATE TABLE copied_packed AS SELECT * FROM flowers_packed; CREATE TABLE copied_packed_summary AS "
        "SELECT * FROM flowers_packed_summary"
    )
    assert trained(packed="copied_packed") == whole
    assert trained() == 0


def test_another_validation_table_is_evaluated_and_nothing_trained(db, anew):
    fit(db, "flowers_packed", "models", "mst", iterations=2)
    run_id = fit(db, "flowers_packed", "validated", "mst", iterations=2, validation="flowers_val")
    assert units(db, run_id) == 0 and units(db, run_id, "evaluate") > 0
    assert db.value("SELECT count(validation_loss_final) FROM validated_info") == 3
    assert weights(db, "validated") == weights(db, "models")


def test_the_budget_is_kept_and_what_is_evicted_is_trained_again(db, anew):
    fit(db, "flowers_packed", "models", "mst", iterations=3)
    assert db.value("SELECT count(*) FROM madlib.mop_checkpoints") >= 3
    assert db.value("SELECT sum(bytes) > 0 AND bool_and(seconds > 0) FROM madlib.mop_checkpoints")
    db.run("SET pg_mop.checkpoint_mb = 0")
    again = fit(db, "flowers_packed", "again", "mst", iterations=3)
    assert units(db, again) > 0 and db.value("SELECT count(*) FROM madlib.mop_checkpoints") == 0
    assert db.value("SELECT count(*) FROM madlib.mop_state_table WHERE run_id <> %s", [again]) == 0, "the disk is free"


@pytest.mark.parametrize("kept", range(5))
def test_whatever_has_been_evicted_the_result_is_right(db, anew, kept):
    """Any one checkpoint is left: what is trained from there on is what the log says."""
    first = fit(db, "flowers_packed", "models", "mst", iterations=3)
    stages = [r["stage"] for r in db.run("SELECT stage FROM madlib.mop_checkpoints ORDER BY stage")]
    gone = [s for number, s in enumerate(stages) if number != kept]
    db.run(
        "DELETE FROM madlib.mop_checkpoint WHERE stage = ANY (%s); UPDATE madlib.mop_stage_state SET state_table = NULL "
        "WHERE run_id = %s AND stage = ANY (%s)",
        [gone, first, gone],
    )
    run_id = fit(db, "flowers_packed", "again", "mst", iterations=4)
    db.run(
        "DROP TABLE IF EXISTS whole, whole_info, whole_summary; SET pg_mop.reuse = off; "
        "SELECT madlib.mop_replay(%s, 'whole')",
        [run_id],
    )
    assert weights(db, "whole") == weights(db, "again")


def test_a_run_that_takes_over_is_resumed(db, anew):
    fit(db, "flowers_packed", "models", "mst", iterations=2)
    db.run("DROP TABLE IF EXISTS rolled, rolled_info, rolled_summary; BEGIN")
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'rolled', 'mst', 4, FALSE)")
    run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs")
    db.run("ROLLBACK")
    done = units(db, run_id)
    db.run("SELECT madlib.mop_drop_checkpoints()")  # its own are not its to drop: its output is not written
    db.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert units(db, run_id) == done and len(weights(db, "rolled")) == 3


def test_more_trains_a_finished_configuration_on(db, anew):
    first = fit(db, "flowers_packed", "models", "mst", iterations=3, frequency=1)
    before, others = weights(db, "models"), db.run("SELECT * FROM models_info WHERE mst_key <> 2 ORDER BY 1")
    history = db.value("SELECT training_loss FROM models_info WHERE mst_key = 2")
    db.run("SELECT madlib.mop_more(%s, 2, 2)", [first])
    more = db.value("SELECT max(run_id) FROM madlib.mop_runs")
    assert units(db, more) == 2 * 2
    after = weights(db, "models")
    assert after[2] != before[2] and {k: after[k] for k in (1, 3)} == {k: before[k] for k in (1, 3)}
    row = db.run("SELECT iteration, training_loss FROM models_info WHERE mst_key = 2")[0]
    assert row["iteration"] == 5 and row["training_loss"][:3] == history and len(row["training_loss"]) == 5
    assert db.run("SELECT * FROM models_info WHERE mst_key <> 2 ORDER BY 1") == others
    # and once more, from there
    db.run("SELECT madlib.mop_more(%s, 2, 1)", [first])
    assert units(db, db.value("SELECT max(run_id) FROM madlib.mop_runs")) == 2
    assert db.value("SELECT iteration FROM models_info WHERE mst_key = 2") == 6
    # and when the checkpoint has gone, from the beginning
    db.run("SELECT madlib.mop_drop_checkpoints()")
    db.run("SELECT madlib.mop_more(%s, 1, 1)", [first])
    assert db.value("SELECT iteration FROM models_info WHERE mst_key = 1") == 4


@pytest.mark.parametrize(
    "call,text",
    [
        ("mop_more(0, 1, 1)", "there is no run 0"),
        ("mop_more({run}, 9, 1)", "has no mst_key 9"),
        ("mop_more({run}, 1, 0)", "iterations must be at least 1"),
        ("mop_more(NULL, 1, 1)", "there is no run NULL"),
    ],
)
def test_more_of_what_is_not_there_is_refused(db, anew, call, text):
    run_id = fit(db, "flowers_packed", "models", "mst", iterations=1)
    assert text in str(db.error("SELECT madlib." + call.format(run=run_id)))
    db.run("DROP TABLE models_info")
    assert "does not exist" in str(db.error(f"SELECT madlib.mop_more({run_id}, 1, 1)"))
    db.run("DROP TABLE models, models_summary")


WILD = "loss='categorical_crossentropy', optimizer='Adam(lr=[0.05, 0.05, 3.0, 3.0, 0.01])', metrics=['accuracy']"


@pytest.fixture
def wild(db, anew):
    """A selection table of one configuration that keeps its best state, which is not its last one; its run."""
    db.run("DROP TABLE IF EXISTS wild, wild_summary")
    selection(db, "wild", "arch", [(1, WILD, "batch_size=8, keep='best'")])
    return fit(db, "flowers_packed", "kept", "wild", iterations=4, frequency=1)


def test_the_best_state_is_kept_of_what_is_taken_over_too(db, wild):
    best = db.run("SELECT iteration, training_loss FROM kept_info")[0]
    assert best["iteration"] == 1 + best["training_loss"].index(min(best["training_loss"])) < 4
    again = fit(db, "flowers_packed", "again", "wild", iterations=4, frequency=1)
    assert units(db, again) == 0 and weights(db, "again") == weights(db, "kept")
    assert db.run("SELECT iteration, training_loss FROM again_info")[0] == best
    # of a run that kept no more than the last state, the best one is trained again
    db.run("SELECT madlib.mop_drop_checkpoints(); DELETE FROM madlib.mop_run")
    selection(db, "wild", "arch", [(1, WILD, "batch_size=8")])
    fit(db, "flowers_packed", "last", "wild", iterations=4, frequency=1)
    selection(db, "wild", "arch", [(1, WILD, "batch_size=8, keep='best'")])
    anew = fit(db, "flowers_packed", "again", "wild", iterations=4, frequency=1)
    assert units(db, anew) > 0 and weights(db, "again") == weights(db, "kept")
    assert db.value("SELECT iteration FROM again_info") == best["iteration"]


STOPS = [
    "stop={'patience': 1, 'min_delta': 0.5}",
    "stop={'patience': 2, 'min_delta': 0.6}, keep='best'",
    "stop={'target': 0.5, 'metric': 'accuracy'}",
]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("before", [["batch_size=8"], ["batch_size=8", "batch_size=8, {}"], ["batch_size=8, {}"]])
def test_a_stop_rule_decides_alone_which_iteration_is_written(db, anew, stop, before):
    """Whatever an earlier run has trained of the configuration, and whoever shares its iterations."""

    def run(output, *fits, reuse="on", iterations=6):
        selection(db, "mst2", "arch", [(1, ADAM.format(0.02), fit_params.format(stop)) for fit_params in fits])
        db.run(f"DROP TABLE IF EXISTS {output}, {output}_info, {output}_summary; SET pg_mop.reuse = {reuse}")
        fit(db, "one_packed", output, "mst2", iterations=iterations, frequency=1)
        return (db.run(f"SELECT mst_key, iteration, training_loss FROM {output}_info ORDER BY 1"), weights(db, output))

    make_data(db, "one", segments=1)  # (of several, the order of visits depends on who else trains)
    wanted, expected = run("undisturbed", "batch_size=8, {}", reuse="off")
    assert wanted[0]["iteration"] < 6, "it stops"
    run("earlier", *before)
    for name, iterations in (("alone", 6), ("again", 6), ("longer", 8)):
        assert run(name, "batch_size=8, {}", iterations=iterations) == (wanted, expected)
    rows, both = run("side_by_side", "batch_size=8", "batch_size=8, {}")
    assert rows[0]["iteration"] == 6 and both[2] == expected[1] != both[1]
    assert {**rows[1], "mst_key": 1} == wanted[0]


def test_more_after_a_warm_start_begins_with_what_the_table_had_then(db, anew):
    fit(db, "flowers_packed", "models", "mst", iterations=1)
    db.run(
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 2, FALSE, NULL, NULL, TRUE)"
    )
    warm = db.value("SELECT max(run_id) FROM madlib.mop_runs")
    db.run("SELECT madlib.mop_more(%s, 2, 1)", [warm])
    assert units(db, db.value("SELECT max(run_id) FROM madlib.mop_runs")) == 2
    assert db.value("SELECT iteration FROM models_info WHERE mst_key = 2") == 3


def test_what_others_evict_while_it_is_wanted_is_trained_again(db, anew):
    """Checkpoints go at every moment of a run that takes them over."""
    selection(
        db,
        "slow",
        "arch",
        [
            (1, ADAM.format(0.01), "batch_size=1, epochs=3"),
            (1, ADAM.format("[0.01, 0.01, 0.02]"), "batch_size=1, epochs=3"),
        ],
    )
    other = db.another()
    other.run("SET pg_mop.reuse = on; SET pg_mop.seed = 5; SET pg_mop.kernel = 'plain'")
    for number, pause in enumerate((0.0, 0.1, 0.3)):
        fit(db, "flowers_packed", "models", "slow", iterations=2)
        name = f"evicted{number}"
        db.run(f"DROP TABLE IF EXISTS {name}, {name}_info, {name}_summary")
        call = Calling(
            other, f"SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', '{name}', 'slow', 3, FALSE)"
        )
        time.sleep(pause)
        db.run("SELECT madlib.mop_drop_checkpoints()")
        assert call.end() is None
        run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs")
        db.run(
            "DROP TABLE IF EXISTS whole, whole_info, whole_summary; SET pg_mop.reuse = off; "
            "SELECT madlib.mop_replay(%s, 'whole'); SET pg_mop.reuse = on",
            [run_id],
        )
        assert weights(db, "whole") == weights(db, name)
        db.run("SELECT madlib.mop_drop_checkpoints(); DELETE FROM madlib.mop_run")
    other.close()


def test_states_that_another_call_reads_are_dropped_by_the_next(db, anew):
    """Who drops waits for no table, and who takes over has all checkpoints before the first: there is no deadlock."""
    run_id = fit(db, "flowers_packed", "models", "mst", iterations=1)
    state_table = db.value("SELECT max(state_table) FROM madlib.mop_state_table WHERE run_id = %s", [run_id])
    reader = db.another()
    reader.run(f"BEGIN; LOCK TABLE madlib.mop_state_{run_id}_{state_table} IN ACCESS SHARE MODE")
    db.run("SET statement_timeout = '3min'; SELECT madlib.mop_drop_checkpoints(); RESET statement_timeout")
    assert db.value("SELECT count(*) FROM madlib.mop_checkpoints") == 0
    assert db.value("SELECT count(*) FROM madlib.mop_state_table") == 1
    reader.run("ROLLBACK")
    reader.close()
    db.run("SELECT madlib.mop_drop_checkpoints()")
    assert db.value("SELECT count(*) FROM madlib.mop_state_table") == 0


def test_two_roles_never_share(db, anew):
    fit(db, "flowers_packed", "models", "mst", iterations=1)
    db.run(
        "DROP ROLE IF EXISTS bert; CREATE ROLE bert LOGIN; GRANT mop_user TO bert; CREATE SCHEMA bert "
        "AUTHORIZATION bert; GRANT SELECT ON ALL TABLES IN SCHEMA public TO bert"
    )
    bert = db.another("bert")
    bert.run("SET search_path = bert, public; SET pg_mop.reuse = on; SET pg_mop.seed = 5; SET pg_mop.kernel = 'plain'")
    bert.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'bert.his', 'mst', 1, FALSE)")
    run_id = bert.value("SELECT max(run_id) FROM madlib.mop_runs")
    assert units(db, run_id) > 0
    assert bert.value("SELECT count(DISTINCT run_id) FROM madlib.mop_checkpoints") == 1
    own = bert.value("SELECT max(run_id) FROM madlib.mop_runs")
    theirs = db.value("SELECT min(run_id) FROM madlib.mop_runs")
    assert "there is no run" in str(bert.error(f"SELECT madlib.mop_adopt({theirs}, 1, '[]')"))
    stolen = f'[{{"stage": 1, "run": {theirs}, "of": 1, "state": true}}]'
    assert "taken over" in str(bert.error(f"SELECT madlib.mop_adopt({own}, 9, '{stolen}')"))
    assert bert.value(f"SELECT madlib.mop_adopt({own}, 1, '{stolen}')") is False
    bert.close()
    db.run("DROP OWNED BY bert; DROP ROLE bert")


NAMES = "ALTER TABLE {0} RENAME {1} TO z; ALTER TABLE {0} RENAME {2} TO {1}; ALTER TABLE {0} RENAME z TO {2}; "
SWAPS = {
    "columns renamed": "".join(NAMES.format("pairs_packed", "a" + more, "b" + more) for more in ("", "_shape")),
    "the summary says so": "UPDATE pairs_packed_summary SET independent_varname = "
    "ARRAY[independent_varname[2], independent_varname[1]]",
}


@pytest.fixture
def pairs(db, anew):
    """A packed table of two inputs of one shape, an architecture that tells them apart; a function that trains it."""
    db.run("DROP TABLE IF EXISTS pairs, pairs_packed, pairs_packed_summary, two, two_summary, pair_arch")
    db.run(
        "CREATE TABLE pairs AS SELECT i AS id, ARRAY[i % 7, i % 3]::real[] AS a, ARRAY[i % 5, 4]::real[] AS b, "
        "i % 2 AS y FROM generate_series(1, 60) AS i; SET pg_mop.segments = 1"
    )
    db.run("SELECT madlib.training_preprocessor_dl('pairs', 'pairs_packed', 'y', 'a,b')")

    def tensor(name, width=2):
        config = {"shape": [None, width], "dtype": "float32", "keras_history": [name, 0, 0]}
        return {"class_name": "__keras_tensor__", "config": config}

    def called(own, *args):
        nodes = [{"args": list(args), "kwargs": {}}] if args else []
        return {**own, "name": own["config"]["name"], "inbound_nodes": nodes}

    layers = [called(layer("InputLayer", name=name, batch_shape=[None, 2])) for name in ("a", "b")]
    layers.append(called(layer("Concatenate", name="both"), [tensor("a"), tensor("b")]))
    layers.append(called(layer("Dense", name="out", units=2, activation="softmax"), tensor("both", 4)))
    ends = {"input_layers": [["a", 0, 0], ["b", 0, 0]], "output_layers": [["out", 0, 0]]}
    made = {"class_name": "Functional", "config": {"name": "pair", "trainable": True, "layers": layers, **ends}}
    made = {**made, "module": "keras.src.models.functional", "registered_name": None}
    load(db, "pair_arch", json.dumps(made))
    selection(db, "two", "pair_arch", [(1, ADAM.format(0.05), "batch_size=8")])

    def trained(db, reuse):
        db.run(f"SET pg_mop.reuse = {reuse}")
        fit(db, "pairs_packed", "paired", "two", iterations=2)
        return weights(db, "paired")[1]

    return trained


@pytest.mark.parametrize("swap", SWAPS)
def test_columns_are_what_they_hold_and_not_what_they_are_called(db, pairs, swap):
    """Neither an earlier run's states nor the rows that a warm trainer keeps are taken for those of other columns."""
    before = pairs(db, "on")
    db.run(SWAPS[swap])
    warm = [pairs(db, reuse) for reuse in ("on", "off")]
    other = db.another()
    other.run("SET pg_mop.kernel = plain; SET pg_mop.seed = 5; SET pg_mop.segments = 1")
    assert warm == [pairs(other, "off")] * 2 and warm[0] != before
    other.close()
    db.run(SWAPS[swap])  # back again: it is known from before
    assert pairs(db, "on") == before and units(db, db.value("SELECT max(run_id) FROM madlib.mop_runs")) == 0
