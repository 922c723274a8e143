"""Measures of predictions are scikit-learn's."""

import numpy as np
import pytest

from pg_mop.inference import scores

metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed: measures are not compared")


@pytest.fixture(params=[2, 4])
def rows(request):
    random = np.random.default_rng(request.param)
    p = random.dirichlet(np.ones(request.param), 300).round(2) + 1e-3  # (rounded: ties)
    return random.integers(0, request.param, 300), p / p.sum(1, keepdims=True)


def test_classification(rows):
    truth, p = rows
    found, predicted = scores.classification(truth, p), p.argmax(1)
    assert all(scores.classification(truth, p, only=name)[name] == value for name, value in found.items())
    average = "binary" if p.shape[1] == 2 else "macro"
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(truth, predicted))
    assert found["log_loss"] == pytest.approx(metrics.log_loss(truth, p))
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(truth, predicted))
    for name in ("precision", "recall", "f1"):
        assert found[name] == pytest.approx(getattr(metrics, f"{name}_score")(truth, predicted, average=average))
    given = p[:, 1] if p.shape[1] == 2 else p
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(truth, given, multi_class="ovr"))
    table = scores.confusion(truth, predicted, p.shape[1])
    assert (table == metrics.confusion_matrix(truth, predicted)).all()
    if p.shape[1] == 2:
        assert found["brier"] == pytest.approx(metrics.brier_score_loss(truth, p[:, 1]))


def test_roc_curve(rows):
    truth, p = rows
    found = np.array(scores.roc_curve(truth == 1, p[:, 1]))
    false, true, thresholds = metrics.roc_curve(truth == 1, p[:, 1], drop_intermediate=False)
    theirs = {(round(x, 9), round(y, 9)): t for x, y, t in zip(false, true, thresholds)}
    ours = [(round(x, 9), round(y, 9)) for _, x, y in found]
    assert set(ours) <= set(theirs) and [theirs[point] for point in ours[1:]] == pytest.approx(found[1:, 0].tolist())
    assert metrics.auc(found[:, 1], found[:, 2]) == pytest.approx(scores.auc(truth == 1, p[:, 1]))


def test_macro_averages_are_over_the_classes_that_occur_in_the_truth_or_in_the_predictions():
    truth, predicted = np.array([0, 0, 1, 1, 1]), np.array([0, 2, 1, 1, 0])
    found = scores.classification(truth, np.eye(4)[predicted])
    for name in ("precision", "recall", "f1"):
        wanted = getattr(metrics, f"{name}_score")(truth, predicted, average="macro", zero_division=0)
        assert found[name] == pytest.approx(wanted)
    assert found["balanced_accuracy"] == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_regression():
    random = np.random.default_rng(1)
    truth = random.normal(size=100)
    predicted = truth + random.normal(size=100)
    found = scores.regression(truth, predicted)
    assert found["r2"] == pytest.approx(metrics.r2_score(truth, predicted))
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(truth, predicted))
    assert found["rmse"] == pytest.approx(metrics.mean_squared_error(truth, predicted) ** 0.5)
    assert found["max_error"] == pytest.approx(metrics.max_error(truth, predicted))
    assert found["mape"] == pytest.approx(metrics.mean_absolute_percentage_error(truth, predicted))
    assert found["explained_variance"] == pytest.approx(metrics.explained_variance_score(truth, predicted))


def test_the_bands_of_a_regression_report_are_the_rows():
    random = np.random.default_rng(2)
    truth = random.normal(size=1000).round(1)  # (ties)
    predicted = truth + random.normal(size=1000)
    report = scores.regression_report(truth, predicted)
    assert sum(band["rows"] for band in report) == 1000 and len(report) == 10
    assert all(one["most"] < two["least"] for one, two in zip(report, report[1:]))
    own = (truth >= report[3]["least"]) & (truth <= report[3]["most"])
    assert report[3]["mae"] == pytest.approx(metrics.mean_absolute_error(truth[own], predicted[own]))
    assert len(scores.regression_report(np.ones(5), np.zeros(5))) == 1


def test_stability_is_0_for_equal_and_large_for_other_distributions():
    assert scores.stability([0.5, 0.5], [0.5, 0.5]) == 0
    assert scores.stability([0.9, 0.1], [0.1, 0.9]) > 1


def test_the_interval_contains_the_share():
    low, high = scores.interval(0.8, 100)
    assert low < 0.8 < high and scores.interval(1.0, 10)[1] == pytest.approx(1)
