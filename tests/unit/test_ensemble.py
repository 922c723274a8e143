"""Which members an ensemble has, without a server."""

import itertools

import numpy as np
import pytest

from pg_mop.inference.ensemble import select
from pg_mop.inference.metrics import Metric, judge_of_classes, judge_of_numbers


def log_loss(weights=None):
    """Of the probabilities of each row's true class."""
    return lambda chances: judge_of_classes(Metric("log_loss"), np.zeros(chances.shape[-1], int), 2, weights).loss(
        chances
    )


def squared_error(truth):
    return judge_of_numbers(Metric("rmse"), truth).loss


def by_hand(answers, loss, steps, most):
    """The same selection, candidate by candidate: (counts, loss) of its best step."""
    chosen, found = [], []
    for _ in range(steps):
        allowed = range(len(answers)) if len(set(chosen)) < most else sorted(set(chosen))
        losses = {k: float(loss(np.mean([answers[i] for i in [*chosen, k]], 0))) for k in allowed}
        least = min(losses.values())
        inside = [k for k in allowed if losses[k] <= least * (1 + 1e-6) and k in chosen]
        chosen.append(max(inside, key=chosen.count) if inside else min(losses, key=losses.get))
        found.append((losses[chosen[-1]], list(chosen)))
    least, members = found[0]
    for loss_then, members_then in found[1:]:
        if loss_then < least * (1 - 1e-6):
            least, members = loss_then, members_then
    return [members.count(k) for k in range(len(answers))], least


def cases(seed):
    """(answers, loss) of classes, and of numbers."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=30)
    yield random.beta(2, 1, (6, 30)), log_loss(random.uniform(0, 2, 30))
    yield truth + random.normal(0, random.uniform(0.3, 1, (6, 1)), (6, 30)), squared_error(truth)


def mean_of(answers, counts):
    return np.tensordot(counts, answers, 1) / counts.sum()


@pytest.mark.parametrize("seed, most", list(itertools.product(range(8), (1, 2, 8))))
def test_the_selection_is_that_of_the_paper(seed, most):
    for answers, loss in cases(seed):
        counts = select(answers, loss, 12, most)
        wanted, least = by_hand(answers, loss, 12, most)
        assert counts.tolist() == wanted and loss(mean_of(answers, counts)) == pytest.approx(least)
        assert np.count_nonzero(counts) <= most
        assert loss(mean_of(answers, counts)) <= loss(answers).min() * (1 + 1e-12)


def test_one_member_is_the_best_alone():
    for answers, loss in cases(1):
        assert select(answers, loss, most=1).argmax() == loss(answers).argmin()


def test_a_mean_of_opposite_errors_has_none():
    truth = np.arange(5.0)
    counts = select(np.array([truth + 1, truth - 1]), squared_error(truth))
    assert counts.tolist() == [1, 1]  # not two of each, which are no better


def test_of_equal_members_the_first_alone_is_chosen():
    answers = np.tile(np.linspace(0.1, 0.9, 7), (4, 1))
    assert select(answers, log_loss()).tolist() == [1, 0, 0, 0]


def test_members_without_finite_answers_are_never_chosen():
    answers = np.array([[np.nan, 0.9], [0.5, 0.5], [np.inf, 1.0]])
    assert select(answers[:2], log_loss()).tolist() == [0, 1]
    truth = np.zeros(2)
    assert select(answers, squared_error(truth)).tolist() == [0, 1, 0]
    assert select(answers[[0, 2]], squared_error(truth)).tolist() == [0, 0]
    assert select(np.zeros((0, 4)), log_loss()).tolist() == []
