"""Object tables: who may fill them, what is refused, and training with custom losses and metrics."""

import dill
import pytest

from support.custom_code import SQUARED, ZERO
from support.workload import ADAM, dense, fit, load, make_data, pickled, selection


def put(db, name, data, table="functions", description="text"):
    db.run("SELECT madlib.load_custom_function(%s, %s, %s, %s)", [table, data, name, description])


@pytest.fixture
def functions(db):
    db.run("DROP TABLE IF EXISTS madlib.functions")
    put(db, "zero_loss", ZERO)
    put(db, "squared", SQUARED)
    return "functions"


def test_the_table_has_the_contracts_columns_and_ids(db, functions):
    columns = db.run(
        "SELECT attname, format_type(atttypid, NULL) AS t FROM pg_attribute WHERE attnum > 0 AND "
        "attrelid = 'madlib.functions'::regclass ORDER BY attnum"
    )
    described = ", ".join(f"{c['attname']} {c['t']}" for c in columns)
    assert described == "id integer, name text, description text, object bytea"
    db.run("SELECT madlib.load_custom_function('functions', %s, 'third')", [SQUARED])
    rows = db.run("SELECT id, name, description FROM madlib.functions ORDER BY id")
    assert [(r["id"], r["name"], r["description"]) for r in rows] == [
        (1, "zero_loss", "text"),
        (2, "squared", "text"),
        (3, "third", None),
    ]
    stored = bytes(db.value("SELECT object FROM madlib.functions WHERE id = 1"))
    assert dill.loads(stored)(1, 2) == 0


def test_deletion_by_id_and_name_and_the_last_one_drops_the_table(db, functions):
    db.run("SELECT madlib.delete_custom_function('functions', 1)")
    assert "no function whose id is 1" in str(db.error("SELECT madlib.delete_custom_function('functions', 1)"))
    db.run("SELECT madlib.delete_custom_function('functions', 'squared'::text)")
    assert db.value("SELECT to_regclass('madlib.functions')") is None
    assert "does not exist" in str(db.error("SELECT madlib.delete_custom_function('functions', 'squared'::text)"))


def test_top_k_functions(db):
    db.run("DROP TABLE IF EXISTS madlib.functions")
    for k in (3, 7, 4, 8):
        db.run("SELECT madlib.load_top_k_accuracy_function('functions', %s)", [k])
    rows = db.run("SELECT name, description FROM madlib.functions ORDER BY id")
    assert [r["name"] for r in rows] == [f"top_{k}_accuracy" for k in (3, 7, 4, 8)]
    assert rows[0]["description"] == "returns top_3_accuracy"


@pytest.mark.parametrize(
    "sql,fragment",
    [
        ("load_custom_function('functions', NULL, 'x')", "object must not be NULL"),
        ("load_custom_function('functions', 'junk'::bytea, 'x')", "no custom function"),
        ("load_custom_function('functions', %(squared)s, NULL)", "must not be NULL"),
        ("load_custom_function('functions', %(squared)s, 'squared')", "already exists"),
        ("load_custom_function('a UNION SELECT 1', %(squared)s, 'x')", "invalid table name"),
        ("load_custom_function('mop_run', %(squared)s, 'x')", "no object table"),
        ("delete_custom_function('functions', NULL::text)", "must not be NULL"),
        ("delete_custom_function('nowhere', 1)", "does not exist"),
        ("load_top_k_accuracy_function('functions', 0)", "k must be at least 1"),
    ],
)
def test_bad_input_is_refused(db, functions, sql, fragment):
    before = db.value("SELECT count(*) FROM pg_class")
    assert fragment in str(db.error("SELECT madlib." + sql, {"squared": SQUARED}))
    assert db.value("SELECT count(*) FROM pg_class") == before


def test_only_superusers_change_an_object_table(db, functions):
    """security/test_attacks.py tries pickles."""
    db.run("DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN; GRANT mop_user TO plain")
    client = db.another("plain")
    for sql in ("delete_custom_function('functions', 1)", "load_top_k_accuracy_function('functions', 3)"):
        assert "superuser" in str(client.error("SELECT madlib." + sql))
    client.close()


def test_training_with_custom_losses_and_metrics(db, functions):
    make_data(db, segments=1)  # so that all visit the rows in the same order
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")
    load(db, "arch", dense())
    db.run("SELECT madlib.load_top_k_accuracy_function('functions', 2)")
    db.run("DROP TABLE IF EXISTS mst, mst_summary")
    db.run(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], ARRAY["
        "$$loss='Zero_Loss', optimizer='Adam(lr=0.1)', metrics=['top_2_accuracy']$$,"
        "$$loss='squared', optimizer='Adam(lr=0.05)', metrics=['accuracy']$$,"
        "$$loss='mse', optimizer='Adam(lr=0.05)', metrics=['accuracy']$$], ARRAY['batch_size=10'], 'functions')"
    )
    assert db.value("SELECT object_table FROM mst_summary") == "madlib.functions"
    fit(db, "flowers_packed", "models", "mst", 3, "flowers_val", 1)
    zero, own, keras = db.run("SELECT * FROM models_info ORDER BY mst_key")
    assert zero["training_loss"] == zero["validation_loss"] == [0, 0, 0]
    assert zero["metrics_type"] == ["top_2_accuracy"] and zero["loss_type"] == "Zero_Loss"
    assert len(zero["training_metrics"]) == 3 and 0 < zero["training_metrics_final"] <= 1
    assert own["training_loss"] == pytest.approx(keras["training_loss"], rel=1e-4), "the same loss, written twice"
    assert db.value("SELECT object_table FROM models_summary") == "madlib.functions"
    db.run("DROP TABLE IF EXISTS evaluated")
    db.run("SELECT madlib.madlib_keras_evaluate('models', 'flowers_val', 'evaluated', FALSE, 2)")
    row = db.run("SELECT * FROM evaluated")[0]
    assert row["loss"] == pytest.approx(own["validation_loss_final"], rel=1e-5) and row["loss_type"] == "squared"


def test_a_metric_may_have_any_name(db, functions):
    """Those of our own reports, too."""
    for name in ("loss", "rows", "kernel"):
        put(db, name, pickled(name, f"def {name}(y_true, y_pred):\n    return y_pred[:, 0] * 0 + 0.25\n"))
    make_data(db, segments=1)
    load(db, "arch", dense())
    selection(
        db,
        "mst",
        "arch",
        [(1, f"loss='mse', optimizer='SGD()', metrics=['{n}']", "batch_size=10") for n in ("loss", "rows", "kernel")],
    )
    db.run("UPDATE mst_summary SET object_table = 'madlib.functions'")
    fit(db, "flowers_packed", "models", "mst", 1)
    rows = db.run("SELECT * FROM models_info ORDER BY mst_key")
    assert [r["error"] for r in rows] == [None] * 3
    assert [r["training_metrics_final"] for r in rows] == [0.25] * 3
    assert all(0 < r["training_loss_final"] < 1 and r["training_loss_final"] != 0.25 for r in rows)


def test_one_that_cannot_be_evaluated_leaves_the_others_alone(db, functions):
    put(db, "once", pickled("once", "def once(y_true, y_pred):\n    raise ValueError('not for evaluation')\n"))
    make_data(db, segments=1)
    load(db, "arch", dense())
    selection(
        db,
        "mst",
        "arch",
        [
            (1, f"loss='mse', optimizer='SGD(lr={0.1 / (1 + k)})', metrics=['{m}']", "batch_size=10")
            for k, m in enumerate(("mae", "once", "mae", "mae"))
        ],
    )
    db.run("UPDATE mst_summary SET object_table = 'madlib.functions'; SET pg_mop.scheduler = 'round-robin'")
    run_id = fit(db, "flowers_packed", "models", "mst", 1)
    db.run("RESET pg_mop.scheduler")
    errors = [r["error"] for r in db.run("SELECT error FROM models_info ORDER BY mst_key")]
    assert "not for evaluation" in errors[1] and [e for e in errors if e] == [errors[1]]
    assert db.value("SELECT max(attempt) FROM madlib.mop_units WHERE run_id = %s AND mst_key = 1", [run_id]) == 2


def test_functions_that_are_missing_are_errors_before_any_work(db, functions):
    make_data(db)
    load(db, "arch", dense())
    call = (
        "SELECT madlib.load_model_selection_table('arch', 'none', ARRAY[1], ARRAY[$$loss='{}',optimizer='SGD()',"
        "metrics=['{}']$$], ARRAY['epochs=1']{})"
    )
    for loss, metric, rest, fragment in (
        ("mine", "mae", "", "object table missing"),
        ("mse", "mine", "", "object table missing"),
        ("mine", "mae", ", 'functions'", "no such function"),
        ("mse", "mine", ", 'functions'", "no such function"),
        ("mse", "mae", ", 'nowhere'", "does not exist"),
    ):
        assert fragment in str(db.error(call.format(loss, metric, rest)))
    assert db.value("SELECT to_regclass('none')") is None


# MADlib's second way to make an object: https://madlib.apache.org, "Define Custom Functions"
IN_PLPYTHON = """
CREATE OR REPLACE FUNCTION pickled_here() RETURNS bytea LANGUAGE plpython3u AS $$
import dill
def halved(y_true, y_pred):
    import keras
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1) / 2
return dill.dumps(halved)
$$;
CREATE OR REPLACE FUNCTION globals_of_users() RETURNS text[] LANGUAGE plpython3u AS $$ return list(GD) $$;
"""


def test_functions_pickled_in_plpython_train_also_in_a_session_that_has_a_trainer(db, functions):
    make_data(db, segments=2)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, "loss='mse', optimizer='SGD(lr=0.1)'", "batch_size=10")])
    fit(db, "flowers_packed", "models", "mst", 1)
    db.run("DROP TABLE IF EXISTS evaluated")
    db.run("SELECT madlib.madlib_keras_evaluate('models', 'flowers_packed', 'evaluated', FALSE, 1)")
    db.run(IN_PLPYTHON)
    db.run("SELECT madlib.load_custom_function('functions', pickled_here(), 'halved')")
    selection(
        db,
        "mst",
        "arch",
        [
            (1, "loss='halved', optimizer='SGD(lr=0.0)'", ""),
            (1, "loss='mse', optimizer='SGD(lr=0.0)', metrics=['halved']", ""),
        ],
    )
    db.run("UPDATE mst_summary SET object_table = 'functions'")
    fit(db, "flowers_packed", "models", "mst", 1)
    halved, squared = db.run("SELECT * FROM models_info ORDER BY mst_key")
    assert halved["error"] is None and squared["error"] is None
    assert 2 * halved["training_loss_final"] == pytest.approx(squared["training_loss_final"], rel=1e-5)
    assert squared["training_metrics_final"] == pytest.approx(halved["training_loss_final"], rel=1e-5)


def test_nothing_of_ours_is_in_the_users_globals(db, functions):
    client = db.another()
    client.run(IN_PLPYTHON)
    make_data(client, segments=2)
    load(client, "arch", dense())
    selection(client, "mst", "arch", [(1, ADAM.format(0.1), "")])
    fit(client, "flowers_packed", "models", "mst", 1)
    client.run("DROP TABLE IF EXISTS evaluated")
    client.run("SELECT madlib.madlib_keras_evaluate('models', 'flowers_packed', 'evaluated', FALSE, 1)")
    assert client.value("SELECT globals_of_users()") == []
    client.run("DISCARD ALL")  # as poolers do before they hand the session to the next client
    client.run("DROP TABLE evaluated")
    client.run("SELECT madlib.madlib_keras_evaluate('models', 'flowers_packed', 'evaluated', FALSE, 1)")
    assert client.value("SELECT count(*) FROM evaluated") == 1
    client.close()
