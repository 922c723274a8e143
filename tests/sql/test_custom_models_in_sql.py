"""Models with a training step of their own: trained, evaluated, explained, replayed, resumed and predicted with."""

import json

import pytest

from support.custom_code import LAYER, MODEL, MODEL_FOR_JAX, of_class, pickle, put, stepper, with_scale
from support.workload import ADAM, ended_early, fit, last_run, load, make_data, needs_jax, selection

FAST = ADAM.format(0.01)
SETTINGS = "SET pg_mop.kernel = 'auto'; SET pg_mop.seed = 3; SET pg_mop.lock_timeout = '300s'; SET pg_mop.threads = 1"
HALVES = "loss='categorical_crossentropy', optimizer='SGD(learning_rate=0.05)'"


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, segments=2)
    make_data(db, "one", segments=1, seed=3)
    db.run(SETTINGS)
    put(db, "Stepper", pickle("Stepper", MODEL))


@pytest.fixture(autouse=True)
def classes(db):
    db.run("DROP TABLE IF EXISTS arch; DELETE FROM madlib.layers WHERE name <> 'Stepper'")
    load(db, "arch", stepper(module="__main__", registered_name="Custom>Stepper"), stepper("Functional"))


def train(
    db, output="made", packed="flowers_packed", compile_params=FAST, iterations=2, models=(1,), table="madlib.layers"
):
    selection(db, "mst", "arch", [(model, compile_params, "batch_size=8") for model in models], table)
    return fit(db, packed, output, "mst", iterations)


def weights(db, output):
    return [bytes(row["w"]) for row in db.run(f"SELECT model_weights AS w FROM {output} ORDER BY mst_key")]


def kernels(db, run_id, model_id=1):
    return {
        row["kernel"]
        for row in db.run(
            "SELECT DISTINCT kernel FROM madlib.mop_units JOIN madlib.mop_configuration USING (run_id, mst_key) "
            "WHERE run_id = %s AND kind = 'train' AND model_id = %s AND status = 'finished'",
            [run_id, model_id],
        )
    }


def test_a_training_step_is_trained_evaluated_and_predicts(db):
    run_id = train(db, models=(1, 2))
    assert kernels(db, run_id) == {"plain"}
    info = db.run("SELECT mst_key, model_id, training_loss_final FROM made_info ORDER BY 1")
    assert [row["model_id"] for row in info] == [1, 2] and all(row["training_loss_final"] for row in info)
    db.run("DROP TABLE IF EXISTS answers, scores")
    db.run("SELECT madlib.madlib_keras_evaluate('made', 'flowers_packed', 'scores', FALSE, 1)")
    assert db.value("SELECT loss FROM scores") == pytest.approx(info[0]["training_loss_final"], rel=1e-4)
    db.run("SELECT madlib.madlib_keras_predict('made', 'flowers', 'id', 'x', 'answers', 'prob', FALSE, 1)")
    assert db.value("SELECT count(*) FROM answers") == 3 * db.value("SELECT count(*) FROM flowers")
    why = db.value(
        "SELECT refused ->> 'loop' FROM madlib.mop_kernel_choices WHERE run_id = %s AND mst_key = 1 LIMIT 1", [run_id]
    )
    assert why == "model class Stepper has a training step of its own: the kernel plain calls it"


def test_the_training_step_is_the_one_of_the_object_table(db):
    """A step that multiplies the loss by 0 trains nothing; one that multiplies it by 0.5 does."""
    put(db, "Still", pickle("Still", MODEL.replace("Stepper", "Still").replace("factor = 0.5", "factor = 0.0")))
    load(db, "arch", stepper(), stepper("Still"))
    db.run("SET pg_mop.same_start = on")
    try:
        run_id = train(db, "few", compile_params=HALVES, iterations=1, models=(1, 2))
        train(db, "many", compile_params=HALVES, iterations=4, models=(1, 2))
    finally:
        db.run("RESET pg_mop.same_start")
    assert kernels(db, run_id, 2) == {"plain"}
    few, many = weights(db, "few"), weights(db, "many")
    assert few[1] == many[1] and few[0] != many[0]


def test_explain_says_why_the_kernel_is_plain(db):
    selection(db, "mst", "arch", [(model, FAST, "batch_size=8") for model in (1, 2)], "madlib.layers")
    call = "madlib_keras_fit_multiple_model('flowers_packed', 'new', 'mst', 1, FALSE)"
    plan = db.value("SELECT madlib.mop_explain(%s, 'json')", [f"SELECT madlib.{call}"])
    plan = json.loads(plan) if isinstance(plan, str) else plan
    nets = {net["model_id"]: net for net in plan["nets"]}
    assert (nets[1]["kernel"], nets[1]["own_class"], nets[2]["own_class"]) == ("plain", "Stepper", None)
    explain = "SELECT madlib.mop_explain(%s)", [f"SELECT madlib.{call}"]
    assert "-> kernel plain: only it runs the code of model class Stepper" in db.value(*explain)
    db.run("SET pg_mop.kernel = 'loop'")
    try:
        assert "Kernel: loop (set by pg_mop.kernel)" in db.value(*explain), "that of the other net"
        selection(db, "mst", "arch", [(1, FAST, "batch_size=8")], "madlib.layers")
        text = db.value(*explain)
    finally:
        db.run(SETTINGS)
    assert "Kernel: plain (only this kernel runs the code of model class Stepper)" in text


def test_a_cancelled_run_goes_on(db):
    other = db.another()
    other.run(SETTINGS + "; SET pg_mop.reuse = off")
    db.run("DROP TABLE IF EXISTS slow, slow_info, slow_summary, whole, whole_info, whole_summary")
    selection(db, "mst", "arch", [(1, FAST, "batch_size=8")], "madlib.layers")
    call = "SELECT madlib.madlib_keras_fit_multiple_model('one_packed', '{}', 'mst', 12, FALSE)"
    db.run(call.format("whole"))
    assert ended_early(db, other, call.format("slow"), 2).pgcode == "57014"
    other.run("SELECT madlib.mop_resume((SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = 'slow'))")
    assert weights(db, "slow") == weights(db, "whole")
    other.close()


def test_a_warm_start_goes_on_from_its_weights(db):
    train(db, packed="one_packed", compile_params=HALVES)
    before = weights(db, "made")
    db.run(
        "SELECT madlib.madlib_keras_fit_multiple_model('one_packed', 'made', 'mst', 1, FALSE, NULL, 1, TRUE, 'more', '')"
    )
    assert weights(db, "made") != before
    assert db.value("SELECT training_loss_final FROM made_info") > 0


def test_a_custom_model_may_have_custom_layers(db):
    put(db, "Row", pickle("Row", MODEL.replace("Stepper", "Row").replace("keras.Model", "keras.Sequential")))
    put(db, "Scale", pickle("Scale", LAYER))
    load(db, "arch", of_class(with_scale(activation="softmax"), "Row"))
    run_id = train(db)
    assert kernels(db, run_id) == {"plain"}
    assert len(weights(db, "made")[0]) == 4 * (4 * 6 + 6 + 6 + 6 * 3 + 3)


@needs_jax
def test_on_jax_the_step_takes_the_state(db):
    put(db, "Pure", pickle("Pure", MODEL_FOR_JAX.replace("Stepper", "Pure")))
    load(db, "arch", stepper("Pure"), stepper())
    db.run("SET pg_mop.keras_backend = 'jax'")
    try:
        run_id = train(db, models=(1, 2))
        assert kernels(db, run_id) == {"plain"}
        db.run("DROP TABLE IF EXISTS again, again_info, again_summary")
        db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
        assert weights(db, "again")[0] == weights(db, "made")[0]
    finally:
        db.run("RESET pg_mop.keras_backend")
    errors = db.run("SELECT error FROM madlib.mop_configuration WHERE run_id = %s ORDER BY mst_key", [run_id])
    assert errors[0]["error"] is None
    assert (
        "train_step of model class Stepper takes (self, data), on jax Keras calls train_step(self, state, data)"
        in (errors[1]["error"])
    )
    assert "SET pg_mop.keras_backend" in errors[1]["error"]


def test_what_the_trainer_finds_is_the_configurations_error(db):
    """A layer in place of a model, a pickle that does not load, and an optimizer that no state keeps."""
    put(db, "Scale", pickle("Scale", LAYER))
    second = "class Two(keras.Model):\n    second = keras.optimizers.SGD(0.1)\n"
    put(db, "Two", pickle("Two", "import keras\n" + second))
    db.run("INSERT INTO madlib.layers (name, object) VALUES ('Broken', 'not a pickle')")
    load(db, "arch", *[stepper(kind) for kind in ("Scale", "Two", "Broken", "Stepper")])
    train(db, models=(1, 2, 3, 4))
    found = db.run("SELECT error FROM madlib.mop_configuration WHERE run_id = %s ORDER BY mst_key", [last_run(db)])
    errors = [row["error"] for row in found]
    assert "'Scale'" in errors[0]
    assert "model class Two has an optimizer of its own in 'second'" in errors[1]
    assert "custom function 'Broken' cannot be used" in errors[2] and errors[3] is None
