"""Ensembles: versions whose answer is a weighted mean of several nets."""

import json

import numpy as np
import pytest

ROWS = 500


@pytest.fixture(scope="module")
def houses(db):
    """A table with a class and a number, both noisy; for each nine trained models, and the ensemble `sold` or `price`."""
    # (one segment and one seed: the models are always the same)
    db.run("SET search_path = public, madlib; SET pg_mop.seed = 1; SET pg_mop.segments = 1")
    db.run(
        f"CREATE TABLE houses AS SELECT i AS id, i * 7 % 60 AS age, (ARRAY['town', 'lake', 'hill'])[1 + i % 3] AS area, "
        "(i * 37 % 101)::float8 AS size, (i * 7919 % 997) / 100.0 AS noise "
        f"FROM generate_series(1, {ROWS}) i; ALTER TABLE houses ADD PRIMARY KEY (id), ADD sold text, ADD price float8; "
        "UPDATE houses SET sold = CASE WHEN sin(age / 9.0) * size + 8 * noise > 50 THEN 'yes' ELSE 'no' END, "
        "price = 100 + 3 * size + 40 * sin(age / 9.0) + 9 * noise"
    )
    db.run("SELECT mop_split('houses', 'part', valid => 0.3)")
    for target, other, loss in (("sold", "price", "categorical_crossentropy"), ("price", "sold", "mse")):
        db.run(
            f"SELECT mop_pack('part_train', '{target}_packed', target => '{target}', exclude => 'id, noise, {other}')"
        )
        db.run(f"SELECT mop_pack('part_valid', '{target}_checked', fitted_on => '{target}_packed')")
        db.run(f"SELECT mop_architecture('{target}_nets', '{target}_packed', 'linear, small, 16x16')")
        search(db, target, f"{target}_search", loss)
        db.run(f"SELECT mop_ensemble('{target}_search', '{target}_checked', '{target}')")
    return db


def search(db, target, output, loss):
    """Train models for a target: each net with three rates."""
    db.run(
        f"SELECT mop_search('{target}_packed', '{output}', '{target}_nets', $$ {{'loss': ['{loss}'], "
        "'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.005, 0.01, 0.03]}], 'batch_size': [32]} $$, 'grid', "
        f"'iterations=8', validation_table => '{target}_checked', random_state => 1)"
    )


def members(db, model):
    return db.value(f"SELECT details->'ensemble'->'members' FROM {model} WHERE version = 1")


def answers(db, model, version, what="(probabilities->>'yes')::float8"):
    sql = f"SELECT {what} AS p FROM mop_predict('{model}', source => 'houses', keep => 'id', version => {version}) "
    sql += "ORDER BY (kept->>'id')::int"
    return np.array([row["p"] for row in db.run(sql)])


@pytest.mark.parametrize("model, what", [("sold", "(probabilities->>'yes')::float8"), ("price", "prediction::float8")])
def test_the_answer_is_the_weighted_mean_of_the_members(houses, model, what):
    found = members(houses, model)
    assert 1 < len(found) <= 8 and sum(m["weight"] for m in found) == pytest.approx(1)
    mean = np.zeros(ROWS)
    for member in found:
        version = houses.value(f"SELECT mop_deploy('{model}_alone', '{model}_search', {member['mst_key']})")
        mean += member["weight"] * answers(houses, f"{model}_alone", version, what)
    assert np.allclose(answers(houses, model, 1, what), mean, rtol=1e-4)
    details = houses.value(f"SELECT details->'ensemble' FROM {model} WHERE version = 1")
    assert details["value"] < details["best_alone"]
    measured = {r["metric"]: r["value"] for r in houses.run(f"SELECT * FROM mop_evaluate('{model}', 'part_valid', 1)")}
    assert details["value"] == pytest.approx(measured[details["metric"]], rel=1e-4)


def test_it_is_one_net_for_all_that_reads_a_version(houses):
    assert houses.value("SELECT computed_by FROM mop_models WHERE name = 'sold'") == "backend"
    row = houses.value("SELECT p.probability FROM houses h, mop_predict('sold', h) p WHERE id = 7")
    assert row == pytest.approx(max(answers(houses, "sold", 1)[6], 1 - answers(houses, "sold", 1)[6]))
    assert houses.run("SELECT * FROM mop_importance('sold', 'part_test')")
    base = houses.run("SELECT * FROM houses h, mop_explain_answer('sold', h, source => 'houses') e WHERE h.id = 7")
    assert {r["column_name"] for r in base} >= {"age", "size", "area"}
    assert "<html" in houses.value("SELECT mop_model_report('sold', 'part_test')")
    assert len(houses.value("SELECT mop_export_model('sold', 1)")) > 1000


def test_of_one_member_the_version_is_the_best_model_itself(houses):
    version = houses.value(
        "SELECT mop_ensemble('sold_search', 'sold_checked', 'best', members => 1, description => 'mine')"
    )
    best = houses.value("SELECT best_mst_key FROM sold_search_summary")
    row = houses.run(
        "SELECT h.model_arch::text = s.model_arch::text AND h.model_weights = s.model_weights AS is_same, description "
        f"FROM best h, sold_search s WHERE h.version = {version} AND s.mst_key = {best}"
    )[0]
    assert row == {"is_same": True, "description": "mine"}


TRAIN = (
    "SELECT mop_train('houses', '{}', target => 'sold', exclude => 'id, noise, price', max_trials => 6, "
    "time_limit => '15 s', layers => 'linear, small', families => 'nets', refit => false, baselines => false{})"
)


def test_mop_train_makes_an_ensemble_unless_one_net_is_wanted(houses):
    report = houses.value(TRAIN.format("trained", ", keep => true"))
    call = [line for line in report.splitlines() if "mop_ensemble(" in line]
    assert len(call) == 1
    version = houses.value(call[0].strip())  # again, by hand
    two = houses.run(
        "SELECT model_arch::text AS a, model_weights, details->'ensemble' AS e FROM trained ORDER BY version"
    )
    assert version == 2
    if (
        two[0]["e"] is not None and two[0]["e"]["candidates"] == two[1]["e"]["candidates"]
    ):  # (its time may have been up)
        assert (two[0]["a"], two[0]["model_weights"]) == (two[1]["a"], two[1]["model_weights"])
    if two[0]["e"] is not None:
        assert report.count(" net ") == len(two[0]["e"]["members"])
    report = houses.value(TRAIN.format("single", ", ensemble => 1"))
    assert "Chosen: net " in report and "members => 1" in report and len(members(houses, "single")) == 1


def test_warm_training_goes_on_with_each_member(houses):
    assert houses.value("SELECT mop_ensemble('sold_search', 'sold_checked', 'trained')") == 3
    count = len(members(houses, "sold"))
    report = houses.value("SELECT mop_retrain('trained', 'houses', '15 s', automatic => false, warm => true)")
    assert report.count("load_keras_model") == count > 1 and "version 3, member 2" in report
    assert "net version 3, member" in report
    measured = houses.run("SELECT * FROM mop_compare('trained', 3, 4, 'houses') WHERE metric = 'log_loss'")[0]
    assert measured["second_value"] < measured["first_value"] + 0.1
    houses.run(
        "UPDATE trained SET details = jsonb_set(details, '{ensemble,members,0,bytes}', '7') WHERE version = 3; "
        "SELECT mop_use_version('trained', 3)"
    )
    error = houses.error("SELECT mop_retrain('trained', 'houses', '10 s', warm => true)")
    assert "details have been changed" in str(error)


@pytest.mark.parametrize(
    "call, fragment",
    [
        ("'sold_search', 'sold_checked', 'm', 0", "members must be from 1 to 40, not 0"),
        ("'sold_search', 'sold_checked', 'm', 1.5", "members must be an integer"),
        ("'sold_search', 'price_checked', 'm'", "are not packed as those of"),
        ("'sold_search', 'houses', 'm'", "houses_summary"),
        ("'houses', 'sold_checked', 'm'", "_info"),
        ("'sold_search', NULL, 'm'", "validation table"),
        ("'sold_search', 'sold_checked', 'houses'", "is no model with versions"),
        ("'sold_search', 'sold_checked', NULL", "NULL/empty output table"),
    ],
)
def test_bad_input_names_what_is_wrong(houses, call, fragment):
    assert fragment in str(houses.error(f"SELECT mop_ensemble({call})"))


def test_a_transaction_that_can_write_nothing_computes_nothing(houses):
    houses.run("BEGIN READ ONLY")
    error = houses.error("SELECT mop_ensemble('sold_search', 'sold_checked', 'sold')")
    assert error.pgcode == "25006" and "model" in str(error)


def test_nets_of_keras_are_members_too(houses):
    """A net that NumPy does not compute answers in the trainer, and an ensemble with it in a serving process."""
    net = {
        "class_name": "Sequential",
        "config": {
            "name": "net",
            "layers": [
                {"class_name": "Reshape", "config": {"target_shape": [-1, 1], "batch_input_shape": [None, 5]}},
                {"class_name": "Conv1D", "config": {"filters": 4, "kernel_size": 2}},
                {"class_name": "Flatten", "config": {}},
                {"class_name": "Dense", "config": {"units": 2, "activation": "softmax"}},
            ],
        },
    }
    elements = houses.value("SELECT features_shape[2] FROM sold_packed LIMIT 1")
    net["config"]["layers"][0]["config"]["batch_input_shape"] = [None, elements]
    houses.run("SELECT load_keras_model('sold_nets', %s, NULL, 'convolution')", [json.dumps(net)])
    search(houses, "sold", "mixed", "categorical_crossentropy")
    houses.run("SELECT mop_ensemble('mixed', 'sold_checked', 'mixed_model')")
    keys = {member["mst_key"] for member in members(houses, "mixed_model")}
    assert houses.value("SELECT details->'ensemble'->'candidates' FROM mixed_model") == 12
    assert houses.value("SELECT count(*) FROM mop_predict('mixed_model', source => 'houses')") == ROWS
    convolutions = houses.run("SELECT mst_key FROM mixed_info ORDER BY model_id DESC LIMIT 3")
    by = houses.value("SELECT computed_by FROM mop_models WHERE name = 'mixed_model'")
    assert ("Conv1D" in by) == bool(keys & {row["mst_key"] for row in convolutions})
