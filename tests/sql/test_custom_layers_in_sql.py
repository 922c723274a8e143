"""Architectures with custom layers: trained, evaluated, predicted, replayed and resumed; whose code may run, and whose not."""

import json

import pytest

from support.custom_code import LAYER, made, pickle, put, with_scale
from support.workload import ADAM, dense, fit, last_run, load, make_data, pickled, selection

CODE = (
    LAYER
    + """
class Half(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.losses.categorical_crossentropy(y_true, y_pred) / 2
"""
)
FAST = ADAM.format(0.01)
SQUARED = pickled("squared", "def squared(y_true, y_pred):\n    return (y_true - y_pred) ** 2\n")
MARK = """
import keras

class Scale(keras.layers.Layer):
    def call(self, inputs):
        open({path!r}, "w").close()
        return inputs
"""


def net(kind="Scale", **more):
    return with_scale(kind, "softmax", **more)


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, segments=2)
    db.run("SET pg_mop.kernel = 'plain'; SET pg_mop.seed = 3; SET pg_mop.lock_timeout = '300s'")
    put(db, "Scale", pickle("Scale"))


@pytest.fixture(autouse=True)
def layers(db):
    db.run("DROP TABLE IF EXISTS arch; DELETE FROM madlib.layers")
    put(db, "Scale", pickle("Scale"))
    put(db, "Half", pickle("Half", CODE))
    load(db, "arch", net(module="__main__", registered_name="Custom>Scale"), dense())


def train(db, output="made", table="layers", compile_params=FAST, iterations=2, models=(1,)):
    selection(
        db, "mst", "arch", [(model, compile_params, "batch_size=8") for model in models], table and f"madlib.{table}"
    )
    return fit(db, "flowers_packed", output, "mst", iterations)


def weights(db, output):
    return [bytes(row["w"]) for row in db.run(f"SELECT model_weights AS w FROM {output} ORDER BY mst_key")]


def test_a_custom_layer_is_trained_evaluated_and_predicts(db):
    run_id = train(db, models=(1, 2))
    info = db.run("SELECT mst_key, model_id, training_loss_final FROM made_info ORDER BY 1")
    assert [row["model_id"] for row in info] == [1, 2] and all(row["training_loss_final"] for row in info)
    assert db.value("SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND status = 'finished'", [run_id]) >= 8
    db.run("DROP TABLE IF EXISTS answers, scores")
    db.run("SELECT madlib.madlib_keras_evaluate('made', 'flowers_packed', 'scores', FALSE, 1)")
    assert db.value("SELECT loss FROM scores") == pytest.approx(info[0]["training_loss_final"], rel=1e-4)
    db.run("SELECT madlib.madlib_keras_predict('made', 'flowers', 'id', 'x', 'answers', 'prob', FALSE, 1)")
    assert db.value("SELECT count(*) FROM answers") == 3 * db.value("SELECT count(*) FROM flowers")
    plain(db)
    assert "has the custom class Scale: a .keras file" in str(db.error("SELECT madlib.mop_export_model('made', 1)"))


def plain(db):
    """The predictions are those of plain Keras with the same weights."""
    import keras
    import numpy as np

    names = made(LAYER)
    model = keras.Sequential(
        [
            keras.Input([4]),
            keras.layers.Dense(6, activation="relu"),
            names["Scale"](start=2.0),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    flat = np.frombuffer(weights(db, "made")[0], "<f4")
    parts, at = [], 0
    for weight in model.weights:
        size = int(np.prod(weight.shape))
        parts.append(flat[at : at + size].reshape(weight.shape))
        at += size
    assert at == len(flat)
    model.set_weights(parts)
    rows = db.run("SELECT id, x FROM flowers ORDER BY id LIMIT 20")
    wanted = np.asarray(model(np.array([row["x"] for row in rows], "f4"))).max(axis=1)
    found = db.run(
        "SELECT max(prob) AS p FROM answers WHERE id = ANY (%s) GROUP BY id ORDER BY id", [[r["id"] for r in rows]]
    )
    assert [row["p"] for row in found] == pytest.approx(list(map(float, wanted)), abs=1e-5)


def test_a_replay_gives_the_same_bytes(db):
    run_id = train(db)
    db.run("DROP TABLE IF EXISTS again, again_info, again_summary")
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    assert weights(db, "made") == weights(db, "again")


def test_another_code_is_another_stage(db):
    db.run("SET pg_mop.reuse = on; SET pg_mop.seed = 77")
    try:
        first, same = train(db), train(db, "same")
        db.run("DELETE FROM madlib.layers WHERE name = 'Scale'")
        put(db, "Scale", pickle("Scale", LAYER.replace("inputs * self.scale", "inputs + self.scale")))
        other = train(db, "other")
    finally:
        db.run("RESET pg_mop.reuse; SET pg_mop.seed = 3")
    taken = "SELECT count(*) FROM madlib.mop_stages WHERE run_id = %s AND source_run IS NOT NULL"
    assert [db.value(taken, [run]) for run in (first, same, other)] == [0, 2, 0]
    assert weights(db, "made") == weights(db, "same") != weights(db, "other")


def test_losses_may_be_classes_beside_layers(db):
    train(db, compile_params=FAST.replace("categorical_crossentropy", "Half"))
    assert db.value("SELECT training_loss_final FROM made_info") > 0


@pytest.mark.parametrize(
    "architecture,fragment",
    [
        (net("Other"), "layer class 'Other' may not be loaded"),
        (net("scale"), "layer class 'scale' may not be loaded"),
        (net(module="keras.layers"), "layer class 'Scale' may not be loaded"),
        (net("os.system", module="os"), "is not Keras' own"),
        (net("Lambda", module="keras.layers"), "layer class 'Lambda' may not be loaded"),
        (net(config={"name": "s", "a": {"class_name": "Lambda", "module": "keras.layers", "config": {}}}), "Lambda"),
    ],
)
def test_attacks_are_refused_before_anything_is_trained(db, architecture, fragment):
    put(db, "Lambda", pickle("Scale"))
    db.run("DROP TABLE IF EXISTS arch")
    db.run("CREATE TABLE arch (model_id integer, model_arch json, model_weights bytea, name text)")
    db.run("INSERT INTO arch VALUES (1, %s, NULL, 'x')", [architecture])
    runs = db.value("SELECT count(*) FROM madlib.mop_runs")
    with pytest.raises(Exception) as error:
        train(db)
    assert fragment in str(error.value), str(error.value)
    assert db.value("SELECT count(*) FROM madlib.mop_runs") == runs


def test_a_function_is_no_layer_and_a_name_of_keras_stays_keras_own(db, tmp_path):
    tmp_path.chmod(0o777)
    mark = tmp_path / "mark"
    put(db, "squared", SQUARED)
    put(db, "Dropout", pickle("Scale", MARK.format(path=str(mark))))
    load(db, "arch", net("squared"), net("Dropout", config={"name": "d", "rate": 0.1}))
    train(db, models=(1, 2))
    errors = db.run("SELECT model_id, error FROM madlib.mop_configuration WHERE run_id = %s ORDER BY 1", [last_run(db)])
    assert "layer class 'squared' may not be loaded" in errors[0]["error"] and errors[1]["error"] is None
    assert not mark.exists()


def test_without_the_table_or_with_that_of_another_role_no_code_runs(db, tmp_path):
    tmp_path.chmod(0o777)
    mark = tmp_path / "mark"
    db.run("DROP ROLE IF EXISTS maker; CREATE ROLE maker LOGIN; GRANT mop_user TO maker")
    with pytest.raises(Exception, match="class 'Scale' is not Keras' own"):
        train(db, table=None)
    db.run("CREATE TABLE madlib.mine (id serial, name text, description text, object bytea)")
    try:
        db.run(
            "INSERT INTO madlib.mine (name, object) VALUES ('Scale', %s)",
            [pickle("Scale", MARK.format(path=str(mark)))],
        )
        for change, fragment in (
            ("ALTER TABLE madlib.mine OWNER TO maker", "is no superuser"),
            (
                "ALTER TABLE madlib.mine OWNER TO CURRENT_USER; GRANT INSERT ON madlib.mine TO maker",
                'may be written by "maker"',
            ),
        ):
            db.run(change)
            with pytest.raises(Exception, match=fragment):
                train(db, table="mine")
        assert not mark.exists()
    finally:
        db.run("DROP TABLE madlib.mine; DROP OWNED BY maker; DROP ROLE maker")


def test_a_prediction_takes_no_code_of_a_table_that_a_role_may_write_by_now(db):
    train(db)
    db.run(
        "DROP ROLE IF EXISTS maker; CREATE ROLE maker LOGIN; GRANT mop_user TO maker; GRANT UPDATE ON madlib.layers TO maker"
    )
    try:
        db.run("DROP TABLE IF EXISTS answers, scores")
        assert 'may be written by "maker"' in str(
            db.error("SELECT madlib.madlib_keras_predict('made', 'flowers', 'id', 'x', 'answers', 'prob', FALSE, 1)")
        )
    finally:
        db.run("REVOKE UPDATE ON madlib.layers FROM maker; DROP OWNED BY maker; DROP ROLE maker")


def test_a_search_takes_custom_layers(db):
    db.run("DROP TABLE IF EXISTS found, found_info, found_summary, found_trials")
    space = json.dumps({"loss": ["categorical_crossentropy"], "optimizer": ["Adam()"], "batch_size": [8, 16]})
    db.run(
        "SELECT madlib.mop_search('flowers_packed', 'found', 'arch', %s, 'grid', 'iterations=1', object_table => 'layers')",
        [space],
    )
    assert db.value("SELECT count(*) FROM found_trials WHERE status = 'finished'") == 4
    run_id = last_run(db)
    db.connection.notices.clear()
    replay = (
        "DROP TABLE IF EXISTS again, again_info, again_summary, again_trials; SELECT madlib.mop_replay(%s, 'again')"
    )
    db.run(replay, [run_id])
    assert not any("custom code" in notice for notice in db.connection.notices)
    assert weights(db, "again") == weights(db, "found")
    db.run("DELETE FROM madlib.layers")
    put(db, "Half", pickle("Half", CODE.replace("/ 2", "/ 4")))  # no trial takes it
    put(db, "Scale", pickle("Scale", LAYER.replace("start=1.0", "start=3.0")))
    db.connection.notices.clear()
    db.run(replay, [run_id])
    (told,) = [notice for notice in db.connection.notices if "custom code" in notice]
    assert f"the custom code 'Scale' was changed after run {run_id}, which is repeated" in told and "Half" not in told
