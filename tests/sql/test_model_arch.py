"""load_keras_model and delete_keras_model."""

import pytest


@pytest.fixture(autouse=True)
def clean(db):
    db.run('DROP TABLE IF EXISTS arch; DROP TABLE IF EXISTS "Arch; table"; DROP SCHEMA IF EXISTS other CASCADE')


def test_the_first_call_makes_the_table_and_later_ones_append(db):
    db.run("SELECT madlib.load_keras_model('arch', '{\"a\": 1}')")
    db.run("SELECT madlib.load_keras_model('arch', '{\"config\": [1,  2]}', '\\x0000803f'::bytea, 'n', 'd')")
    rows = db.run("SELECT *, model_arch::text AS text FROM arch ORDER BY model_id")
    assert [r["model_id"] for r in rows] == [1, 2]
    assert rows[0]["model_weights"] is None and rows[0]["name"] is None
    assert bytes(rows[1]["model_weights"]) == bytes.fromhex("0000803f")
    assert (rows[1]["name"], rows[1]["description"]) == ("n", "d")
    assert rows[1]["text"] == '{"config": [1,  2]}', "the text is kept as it is"
    assert rows[0]["__internal_madlib_id__"] != rows[1]["__internal_madlib_id__"]
    assert db.value("SELECT model_arch -> 'config' ->> 0 FROM arch WHERE model_id = 2") == "1"
    types = {
        r["column_name"]: r["data_type"]
        for r in db.run("SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'arch'")
    }
    assert list(types.items()) == [
        ("model_id", "integer"),
        ("model_arch", "json"),
        ("model_weights", "bytea"),
        ("name", "text"),
        ("description", "text"),
        ("__internal_madlib_id__", "text"),
    ]


def test_deleting_the_last_row_drops_the_table(db):
    db.run("SELECT madlib.load_keras_model('arch', '{}'), madlib.load_keras_model('arch', '{}')")
    db.run("SELECT madlib.delete_keras_model('arch', 1)")
    assert db.value("SELECT count(*) FROM arch") == 1
    assert "model_id 7 is not in" in str(db.error("SELECT madlib.delete_keras_model('arch', 7)"))
    db.run("SELECT madlib.delete_keras_model('arch', 2)")
    assert db.value("SELECT to_regclass('arch') IS NULL")
    assert "does not exist" in str(db.error("SELECT madlib.delete_keras_model('arch', 2)"))


def test_schema_qualified_and_quoted_names_are_what_sql_makes_of_them(db):
    db.run("CREATE SCHEMA other")
    db.run("SELECT madlib.load_keras_model('other.arch', '{}')")
    db.run("SELECT madlib.load_keras_model('\"Arch; table\"', '{}')")
    assert db.value("SELECT count(*) FROM other.arch") == 1
    assert db.value('SELECT count(*) FROM "Arch; table"') == 1


@pytest.mark.parametrize(
    "call,fragment",
    [
        ("load_keras_model(NULL, '{}')", "NULL/empty"),
        ("load_keras_model('arch', NULL)", "must not be NULL"),
        ("load_keras_model('strange', '{}')", "no column model_arch"),
        ("load_keras_model('no.such.name.here', '{}')", "invalid table name"),
        ("load_keras_model('nowhere.arch', '{}')", 'schema "nowhere"'),
        ("load_keras_model('arch', '{not json')", "invalid input syntax for type json"),
        ("delete_keras_model(NULL, 1)", "NULL/empty input table name"),
        ("delete_keras_model('strange', 1)", "no column"),
        ("delete_keras_model('hollow', 1)", "is empty"),
    ],
)
def test_bad_calls_have_clear_errors(db, call, fragment):
    db.run(
        "DROP TABLE IF EXISTS strange, hollow; CREATE TABLE strange AS SELECT 1 AS model_id;"
        "CREATE TABLE hollow (model_id integer)"
    )
    assert fragment in str(db.error(f"SELECT madlib.{call}"))
    assert db.value("SELECT to_regclass('arch') IS NULL")


def test_keras_2_json_trains(db):
    from support.workload import ADAM, fit, make_data, selection

    old = """{"class_name": "Sequential", "keras_version": "2.1.6", "backend": "tensorflow", "config": [
        {"class_name": "Dense", "config": {"name": "dense_1", "batch_input_shape": [null, 4], "units": 8,
         "activation": "relu", "use_bias": true, "dtype": "float32", "trainable": true, "activity_regularizer": null,
         "kernel_initializer": {"class_name": "VarianceScaling",
                                "config": {"scale": 1.0, "mode": "fan_avg", "distribution": "normal", "seed": null}}}},
        {"class_name": "Dense", "config": {"name": "dense_2", "units": 3, "activation": "softmax"}}]}"""
    packed = make_data(db, segments=1, rows=30)
    db.run("SELECT madlib.load_keras_model('arch', %s)", [old])
    selection(db, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=8")])
    fit(db, packed, "models", "mst", iterations=1)
    assert db.value("SELECT length(model_weights) FROM models") == 4 * (4 * 8 + 8 + 8 * 3 + 3)
