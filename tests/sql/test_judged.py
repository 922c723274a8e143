"""Models that are judged by what a call asks for: metrics, thresholds, calibration, balanced classes."""

import json
import pathlib

import numpy as np
import pytest

keras = pytest.importorskip("keras")
TRAIN = "SELECT mop_train('claims', '{}', target => '{}', id => 'id', exclude => '{}', time_limit => '6 s', max_trials => 3, "
TRAIN += "baselines => false, keep => true{})"


@pytest.fixture(scope="module")
def claims(db):
    """A table with a rare class and a target with noise of one side."""
    db.run("SET search_path = public, madlib; SET pg_mop.seed = 1; SET pg_mop.segments = 1")
    db.run(
        "CREATE TABLE claims AS SELECT i AS id, (i * 7919 % 1009) / 1009.0 AS a, (i * 104729 % 997) / 997.0 AS b, "
        "(i * 1299709 % 991) / 991.0 AS u FROM generate_series(1, 1500) i; "
        "ALTER TABLE claims ADD fraud text, ADD cost float8; "
        "UPDATE claims SET fraud = CASE WHEN u < 0.6 * a ^ 3 THEN 'yes' ELSE 'no' END, cost = 10 * a - 5 * ln(u + 0.001); "
        "ALTER TABLE claims DROP u"
    )
    return db


def measures(db, model, source):
    return {r["metric"]: r["value"] for r in db.run(f"SELECT * FROM mop_evaluate('{model}', '{source}')")}


def test_a_threshold_is_part_of_every_answer(claims):
    report = claims.value(TRAIN.format("fraud", "fraud", "cost", ", metric => 'f1', families => 'nets'"))
    found = claims.value("SELECT details->'ensemble' FROM fraud")
    threshold = found["decision"]["weights"][0]
    assert "pg_mop: f1 " in report and f"from probability {threshold:.3g} on" in report
    rows = claims.run("SELECT c.id, p.* FROM claims c, mop_predict('fraud', c) p ORDER BY id")
    chances = np.array([row["probabilities"]["yes"] for row in rows])
    predicted = np.where(chances >= threshold, "yes", "no")
    assert [row["prediction"] for row in rows] == predicted.tolist()
    assert (predicted != np.where(chances > 0.5, "yes", "no")).any()
    assert np.allclose(
        [row["probability"] for row in rows], np.where(predicted == "yes", chances, 1 - chances), atol=1e-6
    )
    others = {
        "source": "SELECT prediction FROM mop_predict('fraud', source => 'claims', keep => 'id') ORDER BY (kept->>'id')::int",
        "into": "SELECT prediction FROM answered ORDER BY id",
        "class": "SELECT mop_class('fraud', c) AS prediction FROM claims c ORDER BY id",
    }
    claims.run("SELECT mop_predict_into('fraud', 'claims', 'answered', 'id')")
    for sql in others.values():
        assert [row["prediction"] for row in claims.run(sql)] == predicted.tolist()
    measured = measures(claims, "fraud", "fraud_valid")
    assert measured["f1"] == pytest.approx(found["value"], abs=1e-6)
    confusion = claims.run("SELECT * FROM mop_confusion_matrix('fraud', 'claims') WHERE predicted = 'yes'")
    assert sum(row["row_count"] for row in confusion) == (predicted == "yes").sum()
    said = json.loads(claims.value("SELECT mop_model_report('fraud', 'fraud_test', format => 'json')"))
    matrix = next(one for one in said["measured"] if one["name"] == "confusion")["tables"][0]["rows"]
    test = claims.run("SELECT * FROM mop_confusion_matrix('fraud', 'fraud_test')")
    assert sorted(n for row in matrix for n in row[1:]) == sorted(row["row_count"] for row in test)


def test_a_file_of_keras_decides_as_the_model_does(claims, tmp_path):
    claims.run(TRAIN.format("fraud_exported", "fraud", "cost", ", metric => 'f1', families => 'nets', ensemble => 1"))
    decision = json.dumps({"temperature": 1.7, "factors": [1.6, 0.4], "weights": [0.2, 0.8]})
    claims.run(
        "UPDATE fraud_exported SET transform = jsonb_set(transform::jsonb, '{outputs,0,parameters,decision}', "
        f"'{decision}')::json"
    )
    path = tmp_path / "fraud.keras"
    pathlib.Path(path).write_bytes(bytes(claims.value("SELECT mop_export_model('fraud_exported', NULL)")))
    model = keras.models.load_model(path)
    rows = claims.run(
        "SELECT c.id, c.a::float8, c.b::float8, p.* FROM claims c, mop_predict('fraud_exported', c) p LIMIT 300"
    )
    found = model({name: np.array([row[name] for row in rows], "f8") for name in ("a", "b")})
    assert [text.decode() for text in np.array(found["prediction"]).reshape(-1)] == [row["prediction"] for row in rows]
    own = [[row["probabilities"][name] for name in ("no", "yes")] for row in rows]
    assert np.allclose(found["probabilities"], own, atol=1e-5)


def test_what_selection_saw_is_what_the_version_answers(claims):
    """With the temperature and the threshold: the version is measured, not a mean that nobody gets."""
    claims.run(
        "CREATE TABLE sure AS SELECT i AS id, random() AS a, random() AS b, random() AS noise FROM generate_series(1, 5200) i, "
        "setseed(0.5); ALTER TABLE sure ADD outcome text; UPDATE sure SET outcome = CASE WHEN a + noise > 1 THEN 'yes' "
        "ELSE 'no' END; ALTER TABLE sure DROP noise"
    )
    claims.run("SELECT mop_split('sure', 'sure', valid => 0.5, test => 0.3)")
    claims.run("SELECT mop_pack('sure_train', 'sure_packed', target => 'outcome', exclude => 'id')")
    claims.run("SELECT mop_pack('sure_valid', 'sure_checked', fitted_on => 'sure_packed')")
    for metric in ("log_loss", "accuracy", "brier"):
        claims.run(
            f"SELECT mop_ensemble(NULL, 'sure_checked', 'by_{metric}', trained_on => 'sure_packed', families => 'mlp', "
            f"time_limit => '1 s', members => 1, metric => '{metric}')"
        )
        found = claims.value(f"SELECT details->'ensemble' FROM by_{metric}")
        assert measures(claims, f"by_{metric}", "sure_valid")[metric] == pytest.approx(found["value"], rel=1e-5)


def test_the_statement_of_a_balanced_call_without_nets_balances(claims):
    more = ", weight => 'balanced', families => 'linear', refit => false"
    report = claims.value(TRAIN.format("even", "fraud", "cost", more))
    (call,) = [line.strip() for line in report.splitlines() if "mop_ensemble(" in line]
    assert claims.value("SELECT statement FROM even") == call
    claims.run(call.replace("'even',", "'even_by_hand',"))
    own, other = (claims.value(f"SELECT details->'ensemble' FROM {name}") for name in ("even", "even_by_hand"))
    assert len(own["decision"]["factors"]) == 2 and other["decision"] == own["decision"]


@pytest.mark.parametrize("families", ["nets", "boosting", "linear, mlp"])
def test_a_quantile_is_what_is_predicted(claims, families):
    if families != "nets":
        pytest.importorskip("lightgbm")
    name = f"dear_by_{families.partition(',')[0]}"
    more = f", metric => 'quantile:0.9', families => '{families}'"
    more += """, transform => '{"cost": "log"}'""" * (families == "linear, mlp")
    report = claims.value(TRAIN.format(name, "cost", "fraud", more))
    assert "pg_mop: quantile:0.9 " in report
    share = claims.value(f"SELECT avg((cost <= prediction::float8)::int) FROM claims c, mop_predict('{name}', c) p")
    if families == "nets":  # (of few passes)
        assert "Pinball(quantile=0.9)" in claims.value(f"SELECT compile_params FROM {name}") and share > 0.5
    else:
        assert 0.82 < share < 0.96


def test_retraining_is_judged_by_the_metric_of_the_model(claims):
    claims.run(
        "UPDATE fraud SET transform = jsonb_set(transform::jsonb, '{outputs,0,parameters,decision,weights}', "
        "'[0.999, 0.001]')::json"
    )
    report = claims.value("SELECT mop_retrain('fraud', time_limit => '6 s')")
    assert report.startswith("Version 2 ") and "it is not in use" not in report.splitlines()[0]


@pytest.mark.parametrize(
    "more, fragment",
    [
        ("'fraud', metric => 'gini'", "is not one by which models are judged"),
        ("'fraud', metric => 'rmse'", "which has classes"),
        ("'cost', metric => 'auc'", "which has numbers"),
        ("'cost', metric => 'quantile:90'", "between 0 and 1"),
        ("'cost', metric => 'rmsle', source => 'SELECT id, a, cost - 100 AS cost FROM claims'", "has no logarithm"),
    ],
)
def test_a_metric_that_does_not_suit_is_refused(claims, more, fragment):
    source = "" if "source" in more else ", source => 'claims'"
    error = claims.error(f"SELECT mop_train(name => 'none', target => {more}{source}, id => 'id', time_limit => '5 s')")
    assert fragment in str(error) and error.diag.message_hint
    assert not claims.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'none%'")


def test_a_target_of_logarithms_is_turned_back_everywhere(claims, tmp_path):
    claims.run("CREATE TABLE sales AS SELECT id, a, b, exp(3 * a + cost / 10) - 1 AS price FROM claims")
    report = claims.value(
        "SELECT mop_train('sales', 'logged', target => 'price', id => 'id', metric => 'rmsle', families => 'nets, linear', "
        "time_limit => '6 s', max_trials => 2, baselines => false, keep => true)"
    )
    found = claims.value("SELECT details->'ensemble' FROM logged")
    assert '"price": "log"' in report and "pg_mop: rmsle " in report and found["value"] < 1
    assert measures(claims, "logged", "logged_valid")["rmsle"] < 1.1 * found["value"]  # (it is trained again)
    claims.run("SELECT mop_predict_into('logged', 'sales', 'priced', 'id')")
    rows = claims.run(
        "SELECT p.id, p.prediction AS into, mop_number('logged', s) AS number, s.a::float8, s.b::float8 "
        "FROM priced p JOIN sales s USING (id) ORDER BY id"
    )
    numbers = np.array([row["number"] for row in rows])
    assert np.allclose([row["into"] for row in rows], numbers) and np.median(numbers) > 5
    path = tmp_path / "price.keras"
    pathlib.Path(path).write_bytes(bytes(claims.value("SELECT mop_export_model('logged', NULL)")))
    inputs = {name: np.array([row[name] for row in rows], "f8") for name in ("a", "b")}
    assert np.allclose(keras.models.load_model(path)(inputs)["prediction"], numbers, rtol=1e-3)


@pytest.mark.parametrize(
    "target, scale, fragment",
    [("fraud", "log", "has classes"), ("cost", "robust", "must be its scale"), ("below", "log", "has no logarithm")],
)
def test_a_scale_that_the_target_cannot_have_is_refused(claims, target, scale, fragment):
    source = "SELECT id, a, fraud, cost, cost - 50 AS below FROM claims"
    error = claims.error(f"SELECT mop_pack('{source}', 'no', '{target}', transform => '{{\"{target}\": \"{scale}\"}}')")
    assert fragment in str(error) and error.diag.message_hint
