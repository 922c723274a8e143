"""Ensembles: versions whose answer is a weighted mean of several nets."""

import json

import numpy as np
import pytest

ROWS = 500


@pytest.fixture(scope="module")
def houses(db):
    """A table with a class and a number, both noisy; the models `sold` and `price`, whose steps are kept."""
    db.run("SET search_path = public, madlib")
    db.run(
        f"CREATE TABLE houses AS SELECT i AS id, i * 7 % 60 AS age, (ARRAY['town', 'lake', 'hill'])[1 + i % 3] AS area, "
        "(i * 37 % 101)::float8 AS size, (i * 7919 % 997) / 100.0 AS noise "
        f"FROM generate_series(1, {ROWS}) i; ALTER TABLE houses ADD PRIMARY KEY (id), ADD sold text, ADD price float8; "
        "UPDATE houses SET sold = CASE WHEN sin(age / 9.0) * size + 8 * noise > 50 THEN 'yes' ELSE 'no' END, "
        "price = 100 + 3 * size + 40 * sin(age / 9.0) + 9 * noise"
    )
    for target, other in (("sold", "price"), ("price", "sold")):
        db.run(
            f"SELECT mop_train('houses', '{target}', target => '{target}', exclude => 'id, noise, {other}', max_trials => 8, "
            "time_limit => '60 s', layers => 'linear, small, 16x16', keep => true, baselines => false)"
        )
    return db


def members(db, model):
    return db.value(f"SELECT details->'ensemble'->'members' FROM {model} WHERE version = 1")


def answers(db, model, version, what="(probabilities->>'yes')::float8"):
    sql = f"SELECT {what} AS p FROM mop_predict('{model}', source => 'houses', keep => 'id', version => {version}) ORDER BY id"
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
    best = houses.value(f"SELECT validation_loss_final FROM {model}_search_info ORDER BY 1 LIMIT 1")
    assert details["loss"] < details["best_alone"] == pytest.approx(best, rel=1e-3)


def test_the_loss_is_that_of_the_answers_for_the_validation_rows(houses):
    measured = {r["metric"]: r["value"] for r in houses.run("SELECT * FROM mop_evaluate('sold', 'sold_valid', 1)")}
    assert measured["log_loss"] == pytest.approx(houses.value("SELECT details->'ensemble'->'loss' FROM sold"), rel=1e-4)


def test_it_is_one_net_for_all_that_reads_a_version(houses):
    assert houses.value("SELECT computed_by FROM mop_models WHERE name = 'sold'").startswith("this session")
    row = houses.value("SELECT p.probability FROM houses h, mop_predict('sold', h) p WHERE id = 7")
    assert row == pytest.approx(max(answers(houses, "sold", 1)[6], 1 - answers(houses, "sold", 1)[6]))
    assert houses.run("SELECT * FROM mop_importance('sold', 'sold_test')")
    base = houses.run("SELECT * FROM houses h, mop_explain_answer('sold', h, source => 'houses') e WHERE h.id = 7")
    assert {r["column_name"] for r in base} >= {"age", "size", "area"}
    assert "<html" in houses.value("SELECT mop_model_report('sold', 'sold_test')")
    assert len(houses.value("SELECT mop_export_model('sold', 1)")) > 1000


def test_by_hand_it_has_the_same_members(houses):
    version = houses.value("SELECT mop_ensemble('sold_search', 'sold_checked', 'sold_by_hand', description => 'mine')")
    own = houses.run(f"SELECT *, model_arch::text AS a FROM sold_by_hand WHERE version = {version}")[0]
    keys = [(m["mst_key"], m["weight"]) for m in own["details"]["ensemble"]["members"]]
    assert keys == [(m["mst_key"], m["weight"]) for m in members(houses, "sold")] and own["description"] == "mine"
    assert own["a"] == houses.value("SELECT model_arch::text FROM sold WHERE version = 1")
    assert np.allclose(answers(houses, "sold", 1), answers(houses, "sold_by_hand", version))


def test_of_one_member_the_version_is_the_best_model_itself(houses):
    version = houses.value("SELECT mop_ensemble('sold_search', 'sold_checked', 'sold_by_hand', members => 1)")
    best = houses.value("SELECT best_mst_key FROM sold_search_summary")
    same = houses.value(
        f"SELECT h.model_arch::text = s.model_arch::text AND h.model_weights = s.model_weights FROM sold_by_hand h, "
        f"sold_search s WHERE h.version = {version} AND s.mst_key = {best}"
    )
    assert same
    report = houses.value(
        "SELECT mop_train('houses', 'single', target => 'sold', exclude => 'id, noise, price', max_trials => 2, "
        "time_limit => '60 s', layers => 'linear, small', baselines => false, ensemble => 1)"
    )
    assert "Chosen: net " in report and "mop_ensemble" not in report
    assert houses.value("SELECT details->'arguments'->'ensemble' FROM single") == 1
    assert houses.value("SELECT details ? 'ensemble' FROM single") is False


def test_warm_training_goes_on_with_each_member(houses):
    count = len(members(houses, "sold"))
    report = houses.value("SELECT mop_retrain('sold', 'houses', '30 s', automatic => false, warm => true)")
    assert report.count("load_keras_model") >= count
    found = houses.value("SELECT details->'ensemble'->'members' FROM sold WHERE version = 2")
    names = {f"version 1, member {k + 1}" for k in range(count)}
    assert names >= {m["net"] for m in found} if found else True
    measured = houses.run("SELECT * FROM mop_compare('sold', 1, 2, 'houses') WHERE metric = 'log_loss'")[0]
    assert measured["second_value"] < measured["first_value"] + 0.1
    houses.run(
        "UPDATE sold SET details = jsonb_set(details, '{ensemble,members,0,bytes}', '7') WHERE version = 1; "
        "SELECT mop_use_version('sold', 1)"
    )
    error = houses.error("SELECT mop_retrain('sold', 'houses', '10 s', warm => true)")
    assert "details have been changed" in str(error)


@pytest.mark.parametrize(
    "call, fragment",
    [
        ("'sold_search', 'sold_checked', 'm', 0", "members must be from 1 to 40, not 0"),
        ("'sold_search', 'sold_checked', 'm', 1.5", "members must be an integer"),
        ("'sold_search', 'price_checked', 'm'", "are not packed as those of"),
        ("'sold_search', 'houses', 'm'", "buffer_id"),
        ("'houses', 'sold_checked', 'm'", "_info"),
        ("'sold_search', NULL, 'm'", "validation table"),
        ("'sold_search', 'sold_checked', NULL", "name"),
    ],
)
def test_bad_input_names_what_is_wrong(houses, call, fragment):
    assert fragment in str(houses.error(f"SELECT mop_ensemble({call})"))


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
    width = json.loads(houses.value("SELECT transform::text FROM sold WHERE version = 1"))["inputs"]
    elements = houses.value("SELECT (features_shape)[2] FROM sold_packed LIMIT 1")
    assert width
    net["config"]["layers"][0]["config"]["batch_input_shape"] = [None, elements]
    houses.run("SELECT load_keras_model('sold_nets', %s, NULL, 'convolution')", [json.dumps(net)])
    houses.run(
        """SELECT mop_search('sold_packed', 'mixed', 'sold_nets', $$ {'loss': ['categorical_crossentropy'],
        'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.01]}], 'batch_size': [32]} $$, 'grid',
        'iterations=4', validation_table => 'sold_checked')"""
    )
    houses.run("SELECT mop_ensemble('mixed', 'sold_checked', 'mixed_model')")
    found = members(houses, "mixed_model")
    convolution = houses.value("SELECT max(model_id) FROM sold_nets")
    chosen = houses.run("SELECT mst_key FROM mixed_info WHERE model_id = %s", [convolution])
    assert houses.value("SELECT details->'ensemble'->'candidates' FROM mixed_model") == 4
    assert houses.value("SELECT count(*) FROM mop_predict('mixed_model', source => 'houses')") == ROWS
    if chosen[0]["mst_key"] in [m["mst_key"] for m in found]:
        assert "Conv1D" in houses.value("SELECT computed_by FROM mop_models WHERE name = 'mixed_model'")
