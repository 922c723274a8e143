"""madlib_keras_automl and hyperband_schedule: what MADlib's own tests assert, and where it goes its own way."""

from collections import Counter

import pytest

from support.workload import dense, load, make_data

COMPILE = (
    "{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'], 'optimizer_params_list': ["
    "{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}, {'optimizer': ['SGD'], 'lr': [0.01, 0.5, 'linear']}]}"
)
FIT = "{'batch_size': [8, 16], 'epochs': [1]}"
INFO = """mst_key model_id compile_params fit_params model_type model_size metrics_elapsed_time metrics_type loss_type
training_metrics_final training_loss_final training_metrics training_loss validation_metrics_final
validation_loss_final validation_metrics validation_loss error all_metrics iteration metrics_iters""".split()
SUMMARY = """source_table validation_table model model_info dependent_varname independent_varname model_arch_table
model_selection_table automl_method automl_params random_state object_table use_gpus metrics_compute_frequency name
description start_training_time end_training_time madlib_version num_classes y_class_values dependent_vartype
normalizing_const best_mst_key""".split()


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, segments=2)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'val_packed', 'y', 'x', 'flowers_packed')")
    load(db, "arch", dense(), dense(12))


def automl(db, output, method=None, params=None, seed=None, validation=None, frequency=None, ids=(1, 2)):
    """A call whose tables are <output>, <output>_best and their companions."""
    db.run(f"DROP TABLE IF EXISTS {output}, {output}_info, {output}_summary, {output}_best, {output}_best_summary")
    db.run(
        "SELECT madlib.madlib_keras_automl('flowers_packed', %s, 'arch', %s, %s, %s, %s, %s, %s, %s, NULL, FALSE, "
        "%s, %s, 'a name', 'a description')",
        [output, output + "_best", list(ids), COMPILE, FIT, method, params, seed, validation, frequency],
    )
    return db.run(f"SELECT * FROM {output}_info ORDER BY mst_key")


def columns(db, table):
    return [
        r["attname"]
        for r in db.run(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum", [table]
        )
    ]


def test_hyperband_by_default_gives_the_contracts_tables(db):
    info = automl(db, "m")
    assert columns(db, "m_info") == [*INFO, "s", "i"]
    assert columns(db, "m_summary") == SUMMARY
    summary = db.run("SELECT * FROM m_summary")
    assert len(summary) == 1
    assert {
        n: summary[0][n]
        for n in (
            "automl_method",
            "automl_params",
            "metrics_compute_frequency",
            "random_state",
            "model_info",
            "model_selection_table",
            "name",
        )
    } == {
        "automl_method": "hyperband",
        "automl_params": "R=6, eta=3, skip_last=0",
        "metrics_compute_frequency": 6,
        "random_state": None,
        "model_info": "m_info",
        "model_selection_table": "m_best",
        "name": "a name",
    }
    # bracket 1: three for 2 iterations, the best for 6 more; bracket 0: two for 6
    assert (
        [r["mst_key"] for r in info]
        == [1, 2, 3, 4, 5]
        == [r["mst_key"] for r in db.run("SELECT mst_key FROM m ORDER BY 1")]
    )
    assert Counter((r["s"], r["i"], r["iteration"]) for r in info) == {(1, 0, 2): 2, (1, 1, 8): 1, (0, 0, 6): 2}
    assert [r["s"] for r in info] == [1, 1, 1, 0, 0]
    assert {(r["i"], tuple(r["metrics_iters"])) for r in info if r["s"] == 1} == {(0, (2,)), (1, (2, 8))}
    assert {tuple(r["metrics_iters"]) for r in info if r["s"] == 0} == {(8,)}
    for row in info:
        assert len(row["training_loss"]) == len(row["metrics_iters"]) == len(row["metrics_elapsed_time"])
        assert row["metrics_elapsed_time"] == sorted(row["metrics_elapsed_time"]) and row["error"] is None
    # the best of the first round went on
    assert min((r["training_loss"][0], r["i"]) for r in info if r["s"] == 1)[1] == 1
    best = min(info, key=lambda r: r["training_loss_final"])
    assert db.run("SELECT * FROM m_best") == [
        {name: best[name] for name in ("mst_key", "model_id", "compile_params", "fit_params")}
    ]
    assert db.run("SELECT * FROM m_best_summary") == [{"model_arch_table": "arch", "object_table": None}]


def test_the_best_is_that_of_least_validation_loss_where_there_is_a_validation_table(db):
    info = automl(db, "v", "HyperBand", "R=4, eta=2", 5, "val_packed", 2)
    assert Counter((r["s"], r["i"]) for r in info) == {(2, 0): 2, (2, 1): 1, (2, 2): 1, (1, 0): 1, (1, 1): 1, (0, 0): 3}
    # 1, 2 and 4 iterations; metrics after every second, or at the end of a round that has less
    wanted = {(2, 0): [1], (2, 1): [1, 3], (2, 2): [1, 3, 5, 7], (1, 0): [3], (1, 1): [3, 5, 7], (0, 0): [5, 7]}
    assert all(r["metrics_iters"] == wanted[r["s"], r["i"]] for r in info)
    assert all(len(r["validation_loss"]) == len(r["metrics_iters"]) for r in info)
    best = min(info, key=lambda r: r["validation_loss_final"])
    assert db.value("SELECT mst_key FROM v_best") == best["mst_key"]
    assert db.run("SELECT automl_method, automl_params, random_state, metrics_compute_frequency FROM v_summary") == [
        {
            "automl_method": "HyperBand",
            "automl_params": "R=4, eta=2",
            "random_state": "5",
            "metrics_compute_frequency": 2,
        }
    ]
    # what was found predicts and is evaluated like what fit_multiple gives
    db.run("SELECT madlib.madlib_keras_evaluate('v', 'val_packed', 'v_scores', FALSE, %s)", [best["mst_key"]])
    assert db.value("SELECT loss FROM v_scores") == pytest.approx(best["validation_loss_final"], rel=1e-5)


def test_hyperopt_gives_the_same_configurations_for_the_same_random_state(db):
    params = "NUM_CONFIGS = 3, num_iterations = 2, Algorithm = TPE"
    first, again, other = (
        automl(db, name, "hyperopt", params, seed, frequency=1) for name, seed in (("h1", 7), ("h2", 7), ("h3", 8))
    )
    assert columns(db, "h1_info") == INFO
    assert [r["mst_key"] for r in first] == [1, 2, 3]
    assert all(r["metrics_iters"] == [1, 2] and r["iteration"] == 2 for r in first)

    def parameters(rows):
        return [(r["model_id"], r["compile_params"], r["fit_params"]) for r in rows]

    # (with two segments all three are one batch: tpe has learnt nothing before)
    assert parameters(first) == parameters(again) != parameters(other)
    best = min(first, key=lambda r: r["training_loss_final"])
    assert [r["mst_key"] for r in db.run("SELECT mst_key FROM h1_best")] == [best["mst_key"]]


def test_the_schedule_is_madlibs(db):
    db.run("SELECT madlib.hyperband_schedule('schedule', 81, 3, 0)")
    rows = [tuple(r.values()) for r in db.run("SELECT s, i, n_i, r_i FROM schedule ORDER BY s DESC, i")]
    assert rows[:6] == [(4, 0, 81, 1), (4, 1, 27, 3), (4, 2, 9, 9), (4, 3, 3, 27), (4, 4, 1, 81), (3, 0, 27, 3)]
    assert len(rows) == 15  # (tests/unit/test_search.py has the other schedules)
    # powers are whole numbers' own: MADlib's logarithm finds 4 brackets of 243
    db.run("SELECT madlib.hyperband_schedule('powers', 243)")
    assert db.value("SELECT max(s) FROM powers") == 5
    for call, fragment in (
        ("'schedule', 9", "already exists"),
        ("'x', 9, 1", "eta must be greater than 1"),
        ("'x', 2, 3", "R (2) must be at least eta (3)"),
        ("'x', 9, 3, 3", "skip_last"),
        ("'x', 9, 3, -1", "skip_last"),
        ("NULL, 9", "NULL/empty"),
        ("'x', 9, 3, NULL", "skip_last"),
    ):
        assert fragment in str(db.error(f"SELECT madlib.hyperband_schedule({call})")), call


WRONG = [
    ({"source": "nothing"}, "does not exist"),
    ({"output": "arch"}, "already exists"),
    ({"arch": "nothing"}, "does not exist"),
    ({"ids": "ARRAY[1, 9]"}, "model_id 9 is not in"),
    ({"method": "'grid'"}, "automl_method"),
    ({"params": "'R=2, eta=3'"}, "R (2) must be at least eta (3)"),
    ({"params": "'eta=1'"}, "eta must be greater than 1"),
    ({"params": "'r=9'"}, "'r' is not accepted"),
    ({"method": "'hyperopt'", "params": "'num_configs=0'"}, "num_configs must be an integer above 0"),
    ({"method": "'hyperopt'", "params": "'algorithm=random'"}, "algorithm must be 'rand' or 'tpe'"),
    ({"method": "'hyperopt'", "compile": "$${'loss': ['mse'], 'optimizer': ['SGD']}$$"}, "optimizer_params_list"),
    (
        {
            "method": "'hyperopt'",
            "compile": "$${'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], "
            "'momentum': [0.5, 0.99, 'log_near_one']}]}$$",
        },
        "'log_near_one' of 'momentum' is not for hyperopt",
    ),
    ({"compile": "$${'loss': ['nonsense'], 'optimizer_params_list': [{'optimizer': ['SGD']}]}$$"}, "nonsense"),
    ({"compile": "'nonsense'"}, "compile_params_grid"),
    ({"fit": "$${'size': [1]}$$"}, "fit_params_grid"),
]


@pytest.mark.parametrize("change, fragment", WRONG)
def test_bad_input_is_refused_before_any_work(db, change, fragment):
    a = {
        "source": "flowers_packed",
        "output": "bad",
        "arch": "arch",
        "selection": "bad_best",
        "ids": "ARRAY[1]",
        "compile": f"$${COMPILE}$$",
        "fit": f"$${FIT}$$",
        "method": "NULL",
        "params": "NULL",
        "object": "NULL",
        "validation": "NULL",
        "frequency": "NULL",
        **change,
    }
    runs = db.value("SELECT count(*) FROM madlib.mop_runs")
    error = str(
        db.error(
            f"SELECT madlib.madlib_keras_automl('{a['source']}', '{a['output']}', '{a['arch']}', '{a['selection']}', "
            f"{a['ids']}, {a['compile']}, {a['fit']}, {a['method']}, {a['params']}, NULL, {a['object']}, FALSE, "
            f"{a['validation']}, {a['frequency']})"
        )
    )
    assert error.startswith("plpy.Error: madlib_keras_automl: ") and fragment in error
    assert db.value("SELECT count(*) FROM madlib.mop_runs") == runs
    assert db.value("SELECT to_regclass('bad') IS NULL AND to_regclass('bad_best') IS NULL")
