"""The measures that judge models, and the decision of a version, without a server."""

import numpy as np
import pytest

from pg_mop.backend.errors import MopError
from pg_mop.columns import OneHot
from pg_mop.columns.decision import KEY, Decision
from pg_mop.inference import calibration, scores
from pg_mop.inference.ensemble import select
from pg_mop.inference.metrics import OF_CLASSES, OF_NUMBERS, Metric, judge_of_classes, judge_of_numbers


def chances(classes, rows=200, models=5, seed=0):
    """(class numbers, probabilities [models, rows, classes]), with equal ones among them."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, classes, rows)
    scored = np.round(random.normal(size=(models, rows, classes)) + 1.5 * np.eye(classes)[codes], 1)
    powers = np.exp(scored)
    return codes, powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("name", OF_CLASSES)
@pytest.mark.parametrize("classes", [2, 4])
def test_a_judge_measures_as_the_reports_do(name, classes):
    codes, answers = chances(classes)
    metric = Metric(name)
    judge = judge_of_classes(metric, codes, classes)
    losses = judge.loss(judge.taken(answers))
    doubled = judge_of_classes(metric, codes[:100], classes, np.full(100, 2.0))
    assert np.allclose(
        doubled.loss(doubled.taken(answers[:, :100])),
        judge_of_classes(metric, codes[:100], classes).loss(doubled.taken(answers[:, :100])),
    )
    for loss, own in zip(losses, answers):
        decision = calibration.decide(metric, own, codes) or Decision()
        measured = scores.classification(codes, own, 0, decision.weighted(own).argmax(1))
        assert metric.of_loss(loss) == pytest.approx(measured[name], rel=1e-6)


def test_numbers_are_judged_as_the_reports_do():
    random = np.random.default_rng(1)
    truth = random.lognormal(size=100)
    answers = truth + random.normal(size=(3, 100))
    for metric in [*map(Metric, OF_NUMBERS), Metric.read("quantile:0.8")]:
        losses = judge_of_numbers(metric, truth).loss(answers)
        for loss, own in zip(losses, answers):
            assert loss == pytest.approx(scores.regression(truth, own, metric.share)[metric.name])
    constant = [judge_of_numbers(Metric.read("quantile:0.9"), truth).loss(np.full(100, one)) for one in (0.5, 3.4, 9)]
    assert np.argmin(constant) == 1  # near the quantile


def test_the_mean_is_best_in_what_is_asked():
    codes, answers = chances(3, models=8)
    for name in OF_CLASSES:
        judge = judge_of_classes(Metric(name), codes, 3)
        taken = judge.taken(answers)
        counts = select(taken, judge.selecting)
        mean = np.tensordot(counts / counts.sum(), taken, 1)
        assert judge.selecting(mean) <= judge.selecting(taken).min() + 1e-12


@pytest.mark.parametrize("text", ["quantile:1", "quantile:0.1, 0.9", "quantile", "r2"])
def test_a_metric_that_judges_nothing_is_refused(text):
    with pytest.raises(MopError) as caught:
        Metric.read(text)
    assert caught.value.hint.startswith("metric =>")


def test_a_temperature_is_kept_where_it_helps_alone():
    random = np.random.default_rng(2)
    honest = random.beta(1, 1, 4000)
    codes = (random.random(4000) < honest).astype(int)
    powers = np.stack([1 - honest, honest], 1) ** 2
    sharp = powers / powers.sum(1, keepdims=True)
    decision = calibration.decide(Metric("log_loss"), sharp, codes)
    assert decision.temperature == pytest.approx(2, rel=0.15) and decision.weights is None
    assert np.allclose(decision.probabilities(sharp)[:, 1], honest, atol=0.05)
    assert calibration.decide(Metric("log_loss"), np.stack([1 - honest, honest], 1), codes) is None
    assert calibration.decide(Metric("log_loss"), sharp[:900], codes[:900]) is None


def test_balanced_classes_are_corrected_and_decide():
    random = np.random.default_rng(3)
    honest = random.beta(0.5, 6, 3000)
    codes = (random.random(3000) < honest).astype(int)
    counts = np.bincount(codes)
    balanced = np.stack([(1 - honest) / counts[0], honest / counts[1]], 1)
    balanced /= balanced.sum(1, keepdims=True)
    decision = calibration.decide(Metric("log_loss"), balanced, codes, None, counts / counts.mean())
    corrected = decision.probabilities(balanced)
    assert np.allclose(corrected[:, 1], honest, atol=0.02)
    assert np.array_equal(decision.weighted(corrected).argmax(1), balanced.argmax(1))


def test_a_column_decides_as_its_parameters_say():
    decision = Decision(2.0, (3.0, 1.0), Decision.of_threshold(0.2))
    column = OneHot("y", {"classes": ["a", "b"], KEY: decision.to_json()})
    _, outputs = column.decode(np.array([[0.9, 0.1], [0.1, 0.9], [np.nan, 0.1], [1.0, 0.0]]))
    assert outputs[0, 1] == pytest.approx(0.1) and outputs[1, 1] == pytest.approx(0.5)
    assert np.isnan(outputs[2]).all() and outputs[3].tolist() == [1, 0]
    assert column.predicted(outputs[:2]).tolist() == [0, 1]
    assert column.predicted(np.pad(outputs[:2], ((0, 0), (0, 1)))).tolist() == [0, 1]
    for change in ({"temperature": 0}, {"weights": ["a"]}, {"factors": [0, 0]}, {"weights": [1, -1]}):
        with pytest.raises(ValueError):
            Decision.read({KEY: change})
