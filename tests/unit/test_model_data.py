"""The sections of a model's report: what is shown of many classes and rows, and that the page has every number."""

import json

import numpy as np
import pytest

from pg_mop.inference import scores
from pg_mop.report import model_data
from pg_mop.report.model_page import model_page

STORED = {
    "version": 1,
    "in_use": True,
    "target": "y",
    "kind": "classification",
    "created": "now",
    "owner": "ann",
    "bytes": 9,
}
STORED |= {
    "count": 1,
    **dict.fromkeys(("net", "metrics", "details", "description", "statement", "compile_params", "fit_params")),
}


def measured(classes, rows, labels=None):
    random = np.random.default_rng(0)
    if classes:
        truth = np.minimum(random.geometric(0.05, rows) - 1, classes - 1)
        outputs = random.dirichlet(np.ones(classes), rows)
        labels = labels or [f"class {k}" for k in range(classes)]
    else:
        truth, labels = random.normal(size=rows), []
        outputs = truth[:, None] + random.normal(size=(rows, 1))
    columns = [(f"c{k}", 1 / (k + 1), 0.01) for k in range(60)]
    drift = [(f"c{k}", 1 / (k + 1), 0.0, 0.0, "stable") for k in range(60)]
    found = model_data.measured_sections(truth, outputs, labels, columns, drift, "rows")
    return truth, outputs, {own["name"]: own for own in found}


def page(sections):
    stored = model_data.stored_sections([STORED], 1)
    given = {"model": "m", "version": 1, "headline": "h", "pg_mop": "1", "made_at": "now", "stored": stored}
    return model_page({**given, "measured": list(sections.values())})


def test_the_members_of_an_ensemble_are_named():
    members = [{"weight": 0.75, "net": "small"}, {"weight": 0.15, "mst_key": 7}, {"weight": "no"}, 5]
    members.append({"weight": 0.1, "family": "boosting", "trial": 3})
    for stored, shown in ((members, "0.75 small, 0.15 7, 0.1 boosting"), ([], None), (3, None)):
        about = model_data.stored_sections([{**STORED, "details": {"ensemble": {"members": stored}}}], 1)[0]
        assert about["facts"].get("members") == shown


def test_of_many_classes_the_most_frequent_are_drawn():
    truth, outputs, found = measured(200, 3000)
    names = found["confusion"]["picture"]["names"]
    assert len(names) == 30 and found["confusion"]["note"] == "The 30 most frequent of 200 classes."
    counts = np.bincount(truth, minlength=200)
    low, high = found["measures"]["tables"][0]["rows"][0][2:]
    assert low < found["measures"]["tables"][0]["rows"][0][1] < high
    assert found["measures"]["tables"][0]["rows"][1][2:] == [None, None]
    assert set(names) == {f"class {k}" for k in np.argsort(-counts, kind="stable")[:30]}
    assert len(found["roc"]["picture"]["lines"]) == 8 and len(found["classes"]["tables"][0]["rows"]) == 200
    assert len(found["importance"]["picture"]["names"]) == 30 and len(found["drift"]["tables"][0]["rows"]) == 60
    text = page(found)
    assert len(text) < 250_000 and "class 199" in text
    json.dumps(found, allow_nan=False)


def test_of_many_rows_a_sample_is_drawn():
    truth, outputs, found = measured(0, 20_000)
    assert len(found["predicted"]["picture"]["dots"]) == 500
    assert found["predicted"]["note"] == "500 of 20,000 rows, drawn at random."
    assert sum(row[2] for row in found["predicted"]["tables"][0]["rows"]) == 20_000
    json.dumps(found, allow_nan=False)


def test_classes_of_one_name_keep_their_columns():
    _, _, found = measured(3, 100, ["NULL", "NULL", "x"])
    columns = [title for title, _ in found["confusion"]["tables"][0]["columns"]]
    assert columns == ["actual", "predicted NULL", "predicted NULL", "predicted x"]
    assert page(found).count("predicted NULL</button>") == 2


def test_a_perfect_share_has_an_interval_and_a_perfect_area_has_none():
    truth = np.arange(60) % 2
    found = model_data.measured_sections(truth, np.eye(2)[truth], ["no", "yes"], [], [], "rows")
    own = {name: (value, low, high) for name, value, low, high in found[0]["tables"][0]["rows"]}
    assert own["precision"][:2] == own["recall"][:2] and 0.8 < own["recall"][1] < own["recall"][2] == 1
    assert own["accuracy"][1] == pytest.approx(0.9398, abs=1e-3) and own["auc"] == (1, None, None)


@pytest.mark.parametrize("rows", [400, 20_000])
def test_intervals_are_as_wide_as_theory_says(rows):
    """The bootstrap of an accuracy has Wilson's width, whether all rows are drawn or fewer."""
    random = np.random.default_rng(3)
    truth = random.integers(0, 2, rows)
    right = random.random(rows) < 0.8
    outputs = np.eye(2)[np.where(right, truth, 1 - truth)]
    measures = {"accuracy": float(right.mean())}
    found = scores.intervals(lambda t, o: {"accuracy": float((o.argmax(1) == t).mean())}, truth, outputs)
    low, high = found["accuracy"]
    wanted = scores.interval(measures["accuracy"], rows)
    assert low < measures["accuracy"] < high
    assert high - low == pytest.approx(wanted[1] - wanted[0], rel=0.2)


def test_a_measure_that_rows_do_not_have_has_no_interval():
    found = scores.intervals(lambda t, o: {"a": float("nan"), "b": 1.0}, np.zeros(5), np.zeros((5, 1)))
    assert found == {"b": (1.0, 1.0)}


def test_a_paired_interval_tells_a_difference_from_chance():
    random = np.random.default_rng(2)
    truth = random.integers(0, 2, 4000)
    right = np.where(random.random(4000) < 0.9, truth, 1 - truth)  # nine of ten answers
    others = right.copy()
    others[:2] = 1 - others[:2]
    worse = np.where(random.random(4000) < 0.03, 1 - truth, right)

    def of(answers):
        return lambda rows: float((truth[rows] == answers[rows]).mean())

    low, high = scores.paired_interval(of(right), of(others), len(truth))
    assert low <= 0 <= high < 0.005
    assert scores.paired_interval(of(right), of(worse), len(truth))[0] > 0.005


def test_numbers_that_another_role_has_stored_need_not_be_floats():
    huge = 10**400
    details = {"interval": [huge, 1], "contenders": {"pg_mop": {"accuracy": huge}, "x": {"accuracy": 0.5}}}
    row = {**STORED, "metrics": {"accuracy": huge, "auc": 0.5}, "details": details}
    about = model_data.stored_sections([row], 1)[0]
    assert about["tables"][0]["rows"] == [["auc", 0.5]] and "interval" not in about["tables"][0]["caption"]
