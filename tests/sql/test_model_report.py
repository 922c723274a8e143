"""mop_model_report: its numbers are those of the reports, it shows what is stored, and nothing in it is markup but its own."""

import json
import re

import numpy as np
import pytest

from pg_mop.inference import scores
from support.pages import ATTACK, Page

ROWS = 300


@pytest.fixture(scope="module")
def guests(db):
    """A model of three classes with two versions, one of numbers, and one that mop_train has made."""
    db.run("SET search_path = public, madlib; SET pg_mop.seed = 7")
    db.run(
        "CREATE TABLE guests AS SELECT i AS id, (i * 37 % 101)::float8 AS age, "
        f"(ARRAY[$${ATTACK}$$, 'b', 'c'])[1 + i % 3] AS town, 10.5 * i AS spent, "
        f"(ARRAY[$${ATTACK}$$, 'tea', 'beer'])[1 + (i * 37 % 101) / 40] AS drink FROM generate_series(1, {ROWS}) i; "
        "ALTER TABLE guests ADD PRIMARY KEY (id)"
    )
    for name, target, others, loss, metric in (
        ("drinks", "drink", "spent", "categorical_crossentropy", "accuracy"),
        ("spending", "spent", "drink", "mse", "mae"),
    ):
        db.run(
            f"SELECT mop_pack('guests', '{name}_packed', target => '{target}', id => 'id', exclude => '{others}'); "
            f"SELECT mop_architecture('{name}_nets', '{name}_packed', 'small')"
        )
        db.run(
            f"SELECT madlib_keras_fit('{name}_packed', '{name}_fitted', '{name}_nets', 1, $$loss='{loss}', "
            f"optimizer='Adam(lr=0.01)', metrics=['{metric}']$$, 'batch_size=16, epochs=2', 6)"
        )
        for _ in range(2):
            db.run(f"SELECT mop_deploy('{name}', '{name}_fitted')")
    db.run(
        "SELECT mop_train('guests', 'old', target => 'age', id => 'id', exclude => 'drink', max_trials => 2, "
        "families => 'nets', ensemble => 1, time_limit => '4 s')"
    )
    return db


def report(db, *arguments, **more):
    """The report's data: (all, {name: section})."""
    listed = ", ".join(["%s"] * len(arguments) + [f"{name} => %s" for name in more])
    found = db.value(f"SELECT mop_model_report({listed}, format => 'json')", [*arguments, *more.values()])
    data = json.loads(found)
    return data, {own["name"]: own for own in [*data["stored"], *data["measured"]]}


def rows(section):
    return section["tables"][0]["rows"]


def test_the_numbers_are_those_of_the_reports(guests):
    data, found = report(guests, "drinks", "guests")
    assert (data["version"], data["versions"], data["kind"]) == (2, [1, 2], "classification")
    measured = {r["metric"]: r["value"] for r in guests.run("SELECT * FROM mop_evaluate('drinks', 'guests')")}
    assert measured.pop("rows") == ROWS
    assert {name: own for name, own, *_ in rows(found["measures"])} == pytest.approx(measured, rel=1e-4)
    matrix = guests.run("SELECT * FROM mop_confusion_matrix('drinks', 'guests')")
    names = list(dict.fromkeys(r["actual"] for r in matrix))
    assert found["confusion"]["picture"]["names"] == names
    assert sum(found["confusion"]["picture"]["counts"], []) == [r["row_count"] for r in matrix]
    for r, (label, *own) in zip(
        guests.run("SELECT * FROM mop_class_report('drinks', 'guests')"), rows(found["classes"]), strict=True
    ):
        assert label == r["label"]
        assert own == pytest.approx([r["precision"], r["recall"], r["f1"], r["support"]], rel=1e-4)
    for line in found["roc"]["picture"]["lines"]:
        found_rows = guests.run(
            "SELECT kept, probabilities FROM mop_predict('drinks', source => 'guests', keep => 'drink')"
        )
        truth = np.array([r["kept"]["drink"] == line["name"] for r in found_rows])
        whole = scores.roc_curve(truth, np.array([r["probabilities"][line["name"]] for r in found_rows]))
        assert line["points"][0] == [0, 0] and line["points"][-1] == [1, 1] and len(line["points"]) > 2
        assert {(f"{x:.6g}", f"{y:.6g}") for x, y in line["points"]} <= {(f"{x:.6g}", f"{y:.6g}") for _, x, y in whole}
    bins = guests.run("SELECT * FROM mop_calibration('drinks', 'guests', 'tea')")
    own = next(line for line in found["calibration"]["picture"]["lines"] if line["name"] == "tea")
    assert sum(own["points"], []) == pytest.approx([r[n] for r in bins for n in ("probability", "share")], rel=1e-4)
    lost = guests.run("SELECT * FROM mop_importance('drinks', 'guests')")
    assert [name for name, *_ in rows(found["importance"])] == [r["column_name"] for r in lost]
    assert found["importance"]["picture"]["series"][0]["values"] == pytest.approx(
        [r["importance"] for r in lost], rel=1e-4
    )
    drift = guests.run("SELECT * FROM mop_drift('drinks', 'guests')")
    assert [(r[0], r[4]) for r in rows(found["drift"])] == [(r["column_name"], r["verdict"]) for r in drift]


def test_a_model_of_numbers_has_its_predictions_by_truth(guests):
    data, found = report(guests, "spending", "guests", version=1)
    assert data["version"] == 1 and not {"confusion", "roc"} & set(found)
    measured = {r["metric"]: r["value"] for r in guests.run("SELECT * FROM mop_evaluate('spending', 'guests', 1)")}
    own = {name: (number, low, high) for name, number, low, high in rows(found["measures"])}
    assert own["rmse"][0] == pytest.approx(measured["rmse"], rel=1e-4)
    for name in ("r2", "rmse", "mae"):
        assert own[name][1] < own[name][0] < own[name][2]
    assert own["max_error"][1:] == (None, None)
    bands = guests.run("SELECT * FROM mop_regression_report('spending', 'guests', 1)")
    assert [list(r) for r in rows(found["predicted"])] == [pytest.approx(list(r.values()), rel=1e-4) for r in bands]
    dots = found["predicted"]["picture"]["dots"]
    answers = guests.run(
        "SELECT kept, prediction FROM mop_predict('spending', source => 'guests', keep => 'spent', version => 1)"
    )
    assert sorted(dots) == [
        pytest.approx(pair, rel=1e-4) for pair in sorted([a["kept"]["spent"], float(a["prediction"])] for a in answers)
    ]


def test_what_mop_train_has_stored_is_shown_without_reading_a_row(guests):
    data, found = report(guests, "old")
    assert data["measured"] == [] and data["source"] is None and data["test_part"] == "old_test"
    stored = guests.run("SELECT metrics, details, compile_params FROM old")[0]
    assert dict(rows(found["about"])) == pytest.approx(stored["metrics"], rel=1e-4)
    facts = found["about"]["facts"]
    assert facts["net"] == stored["details"]["net"] and facts["compiled with"] == stored["compile_params"]
    ask = "SELECT count(*) FROM mop_predict('old', source => %s)"
    counts = {part: guests.value(ask, [f"old_{part}"]) for part in ("train", "valid", "test")}
    assert stored["details"]["rows"] == counts and f"{counts['test']} test" in facts["rows"]
    low, high = stored["details"]["interval"]
    assert (
        low < stored["metrics"]["rmse"] < high and f"{low:.4g} to {high:.4g}" in found["about"]["tables"][0]["caption"]
    )
    bars = found["baselines"]["picture"]
    assert bars["names"][0] == "pg_mop" and "mean" in bars["names"] and bars["axis"] == "rmse"
    assert bars["series"][0]["values"][0] == pytest.approx(stored["metrics"]["rmse"], rel=1e-4)
    assert found["repeat"]["code"].splitlines() == "\n".join(stored["details"]["statements"]).splitlines()
    guests.run("UPDATE old SET details = details - 'signature'")
    assert report(guests, "old")[0]["test_part"] is None


def test_strange_stored_values_are_left_out(guests):
    guests.run("BEGIN")
    for metrics, details in (
        ('"x"', "[1, 2]"),
        ('{"accuracy": "high", "f1": {"a": 1}, "auc": true}', '{"contenders": 7, "statements": {"a": 1}, "rows": [1]}'),
        (
            "{}",
            '{"contenders": {"a": {"accuracy": 1}, "b": []}, "folds": [], "interval": ["a", 1], "arguments": 3, "net": [1]}',
        ),
    ):
        guests.run("UPDATE drinks SET metrics = %s, details = %s", [metrics, details])
        _, found = report(guests, "drinks")
        assert found["about"]["tables"] == [] and len(rows(found["versions"])) == 2
        Page(guests.value("SELECT mop_model_report('drinks')"))
    guests.run(
        "UPDATE drinks SET metrics = jsonb_build_object('accuracy', 0.5, 'x', repeat('a', 2000000)), details = NULL"
    )
    assert report(guests, "drinks")[1]["about"]["tables"] == []
    guests.run(
        "INSERT INTO drinks SELECT 10 + i, false, created, target, kind, NULL, 'more', statement, NULL, transform, "
        "compile_params, fit_params, model_arch, model_weights FROM drinks, generate_series(1, 300) i WHERE version = 1"
    )
    data, found = report(guests, "drinks", version=1)
    assert len(data["versions"]) == 201 and data["versions"][0] == 1 and data["versions"][-1] == 310
    assert "200 of 302" in found["versions"]["tables"][0]["caption"] and len(rows(found["versions"])) == 200
    guests.run("ROLLBACK")


def test_the_report_is_read_with_the_rights_of_the_caller(guests):
    guests.run("CREATE ROLE report_reader LOGIN IN ROLE mop_user; GRANT USAGE ON SCHEMA public TO report_reader")
    report_reader = guests.another(user="report_reader")
    try:
        report_reader.run("SET search_path = public, madlib")
        assert "permission denied" in str(report_reader.error("SELECT mop_model_report('drinks')"))
        guests.run("SELECT mop_share('drinks', 'report_reader')")
        assert report(report_reader, "drinks")[0]["versions"] == [1, 2]
        assert 'denied for source table "guests"' in str(
            report_reader.error("SELECT mop_model_report('drinks', 'guests')")
        )
    finally:
        report_reader.close()
        guests.run("DROP OWNED BY report_reader; DROP ROLE report_reader")


def test_what_is_wrong_is_said(guests):
    error = guests.error("SELECT mop_model_report('drinks', 'guests', 'pdf')")
    assert "format must be one of html, json" in str(error) and "mop_model_report(" in error.diag.message_hint
    assert "has no version 9" in str(guests.error("SELECT mop_model_report('drinks', NULL, 'html', 9)"))
    assert 'the rows have no column "drink"' in str(
        guests.error("SELECT mop_model_report('drinks', 'SELECT age, town FROM guests')")
    )
    assert "no model is named" in str(guests.error("SELECT mop_model_report(NULL)"))


def test_the_file_is_whole_and_asks_for_nothing(guests):
    guests.run("BEGIN; UPDATE drinks SET description = %s", [ATTACK])
    text = guests.value("SELECT mop_model_report('drinks', 'SELECT * FROM guests WHERE ''<b>'' <> town')")
    guests.run("ROLLBACK")
    page = Page(text)
    assert not [a for _, given in page.elements for name, a in given.items() if name in ("src", "href") and a[0] != "#"]
    assert "default-src 'none'" in text and not re.search(r"https?://(?!www\.w3\.org)", text)
    assert page.count("img") == 0 and page.count("b") == 0
    assert any("the query SELECT * FROM guests WHERE '<b>' <> town" in own for own in page.text)
    assert page.count("svg") == 0 and page.count("noscript") == 6 and page.count("caption") >= 8
