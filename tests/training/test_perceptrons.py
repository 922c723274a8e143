"""Perceptrons and linear models that a trainer trains whole: what they learn, and the nets of Keras that they become."""

import time

import numpy as np
import pytest

from mop_udf.architecture.architecture import check
from mop_udf.training import linear, perceptrons
from mop_udf.training.linear import Codes, Pieces, Rows
from mop_udf.training.number_losses import SQUARES, NumberLoss
from pg_mop.inference import forward
from pg_mop.plan import nets

pytest.importorskip("scipy", reason="not run: SciPy is not installed (pip install scipy)")
RANDOM = np.random.default_rng(3)
COUNT, CODES = 400, 9
X = RANDOM.normal(size=(COUNT, 3)).astype("f4")
KINDS = RANDOM.integers(0, CODES, (COUNT, 2)).astype("f4")
WORDS = RANDOM.integers(0, 7, (COUNT, 4)).astype("f4")
WORDS[:, 0] = np.maximum(WORDS[:, 0], 1)
EFFECTS = RANDOM.normal(size=CODES)
NUMBERS = (
    np.abs(X[:, 0]) * 2
    + X[:, 1]
    + EFFECTS[KINDS.astype(int)[:, 0]]
    + (WORDS == 3).sum(1)
    + RANDOM.normal(0, 0.2, COUNT)
)
TARGETS = {0: NUMBERS, 2: (NUMBERS > 2) * 1.0, 3: np.digitize(NUMBERS, [1, 3]) * 1.0}
EDGES = np.array([-3.0, -1, 0, 1, 3])
PIECES = Pieces(np.tile(np.arange(3), 4), np.repeat(EDGES[:-1], 3), np.repeat(EDGES[1:], 3))
INPUTS = [Codes(CODES, False), Codes(7, True)]
LONG = 60.0


def rows(classes, part, weights=None):
    return Rows(X[part], [KINDS[part], WORDS[part]], TARGETS[classes][part], weights)


def parts(classes):
    return rows(classes, slice(300)), rows(classes, slice(300, None))


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_they_learn_what_the_targets_depend_on(classes):
    train, valid = parts(classes)
    until = time.monotonic() + LONG
    straight = linear.search(train, valid, INPUTS, PIECES, classes, until, 2)
    trials = perceptrons.search(train, valid, INPUTS, [4, 4], PIECES, classes, until, 4, 1, 3)
    chance = np.bincount(valid.targets.astype(int)).max() / len(valid.targets) if classes else np.var(valid.targets)
    for found in (straight, trials):
        best = min((one for one in found if one.answers is not None), key=lambda one: one.loss)
        if classes:
            assert (best.answers.argmax(1) == valid.targets).mean() > chance + 0.15
            assert np.allclose(best.answers.sum(1), 1)
        else:
            assert best.loss < 0.4 * chance
    # |x| is linear in pieces alone
    losses = {
        design: min(one.loss for one in straight if one.design == design) for design in (linear.PLAIN, linear.PIECES)
    }
    assert losses[linear.PIECES] < losses[linear.PLAIN]
    assert sum(one.answers is not None for one in trials) == 3 and all(
        one.passes == one.recipe.passes for one in trials
    )


def test_a_quantile_is_trained_and_not_the_mean():
    """Noise with a long tail, which grows with a column: the mean is far from most quantiles."""
    random = np.random.default_rng(1)
    x = random.normal(size=(3000, 3)).astype("f4")
    y = x[:, 1] + np.exp(0.5 * x[:, 0]) * random.exponential(1, 3000)
    train, valid = (Rows(x[part], [], y[part], None) for part in (slice(2000), slice(2000, None)))
    until, answers = time.monotonic() + LONG, {}
    for share in (0.1, 0.9):
        for loss in (NumberLoss(share), SQUARES):
            straight = linear.search(train, valid, [], None, 0, until, 1, loss)
            trials = perceptrons.search(train, valid, [], [], None, 0, until, 2, 1, 1, loss)
            for family, found in enumerate((straight, trials)):
                (best,) = (one.answers[:, 0] for one in found if one.answers is not None)
                answers[family, share, loss] = best
                if loss != SQUARES:
                    assert min(one.loss for one in found) == pytest.approx(loss.values(valid.targets - best).mean())
    for family in (0, 1):
        for share in (0.1, 0.9):
            loss = NumberLoss(share)
            own, squares = (loss.values(valid.targets - answers[family, share, by]).mean() for by in (loss, SQUARES))
            assert own < 0.8 * squares


@pytest.mark.parametrize("loss", [NumberLoss(0.9), NumberLoss(0.5, 2.0), SQUARES])
def test_slopes_of_numbers_are_those_of_their_loss(loss):
    missing, width, step = np.linspace(-3, 3, 13) + 0.01, 0.3, 1e-5
    for own in (width, 0.0):
        numeric = (loss.values(missing - step, own) - loss.values(missing + step, own)) / (2 * step)
        assert np.allclose(loss.slopes(missing, own), numeric, atol=1e-4)
    values, weights = RANDOM.exponential(1, 101), RANDOM.uniform(0.1, 1, 101)
    losses = [float(loss.values(values - at) @ weights) for at in (loss.constant(values, weights), *values)]
    assert losses[0] <= min(losses) + 1e-9


def test_slopes_are_those_of_the_loss():
    """The derivatives of a step against differences of the loss, for every kind of weight."""
    train, valid = parts(3)
    recipe = perceptrons.Recipe((5, 4), "selu", True, rate=0.0, decay=0.0, dropout=0.0, smoothing=0.0, batch=300)
    data = perceptrons._Data(train, valid, INPUTS, [2, 3], PIECES, 3)
    net = perceptrons._Net(data, recipe, 1)
    net._flat += np.random.default_rng(2).normal(0, 0.3, net._flat.shape).astype("f4")
    kept = {}
    net._move = lambda rate: kept.update(slopes=[part.copy() for part in net._slope_parts])
    net._train_step(np.arange(300), 0.0, 0.0)

    def loss():
        answers = net.answers(data.x, data.train_codes)
        return -np.log(answers[np.arange(300), train.targets.astype(int)]).mean()

    for part, slopes in zip(net._parts, kept["slopes"], strict=True):
        places = np.abs(slopes).argsort(axis=None)[-2:]
        for place in places:
            at = np.unravel_index(place, part.shape)
            before, values = part[at], []
            for step in (-0.01, 0.01):
                part[at] = before + step
                values.append(loss())
            part[at] = before
            assert slopes[at] == pytest.approx((values[1] - values[0]) / 0.02, rel=0.03, abs=2e-4)


def test_the_nets_of_keras_answer_as_the_trainer_did():
    """`DenseInputs.net`, with inputs in another order than the trainer's: codes before the elements."""
    from pg_mop.api.tables.dense_inputs import DenseInputs, _Input

    train, valid = parts(3)
    embedding = {"input_dim": CODES, "output_dim": 4}
    own = DenseInputs.__new__(DenseInputs)
    own._output, own.classes, own.elements, own.pieces, own.has_pieces = nets.Output("y", 3), 3, 3, 12, True
    given = nets.Pieces(0, tuple([tuple(EDGES)] * 3))
    own._inputs = [
        _Input(nets.Input("kinds", (2,), [("Embedding", embedding), ("Flatten", {})]), 0),
        _Input(nets.Input("numbers", (3,), None, given), 0),
    ]
    train, valid = (Rows(one.elements, one.codes[:1], one.targets, None) for one in (train, valid))
    until = time.monotonic() + LONG
    arrays = [valid.codes[0], valid.elements]
    for one in perceptrons.search(train, valid, INPUTS[:1], [4], PIECES, 3, until, 4, 1, 4):
        recipe = one.recipe
        body = nets.Body(recipe.units, pieces=recipe.pieces, activation=recipe.activation)
        text, weights = own.net(body, linear.flat(one.weights).tobytes(), [4])
        assert np.allclose(forward.compiled(check(text), weights)(arrays)[0], one.answers, atol=1e-4)
    for one in linear.search(train, valid, INPUTS[:1], PIECES, 3, until, 20):
        body = nets.Body((), pieces=one.design == linear.PIECES)
        text, weights = own.net(body, linear.flat(one.weights).tobytes(), [3], adds_tables=True)
        assert np.allclose(forward.compiled(check(text), weights)(arrays)[0], one.answers, atol=1e-4)


def test_training_again_needs_no_validation_rows():
    train, valid = parts(0)
    whole = rows(0, slice(None), np.ones(COUNT))
    recipe = perceptrons.Recipe((32,), pieces=True, rate=0.01, batch=32, passes=20)
    (weights,) = perceptrons.refit(whole, INPUTS, [4, 4], PIECES, 0, [(recipe, 20)], 1)
    (straight,) = linear.refit(whole, INPUTS, PIECES, 0, [(linear.PIECES, 1.0)])
    trial = perceptrons.trained(
        perceptrons._Data(train, valid, INPUTS, [4, 4], PIECES, 0), recipe, time.monotonic() + LONG, 1
    )
    assert [own.shape for own in weights] == [own.shape for own in trial.weights]
    assert len(straight) == 4 and all(np.isfinite(own).all() for own in (*weights, *straight))


def test_without_time_there_is_a_model():
    train, valid = parts(2)
    assert len(linear.search(train, valid, INPUTS, None, 2, 0.0, 2)) > 1  # (the first penalty is the strongest)
    found = perceptrons.search(train, valid, INPUTS, [4, 4], None, 2, 0.0, 3, 1, 1)
    assert found[0].passes >= 1 and found[0].answers is not None or len(found) > 1


def test_a_linear_model_without_time_answers_with_the_shares_of_the_classes():
    train, _ = parts(3)
    model = linear._Model(train, INPUTS, PIECES, 3)
    answers, _ = model.answers(model.fitted(1.0, 0.0, None))
    assert np.allclose(answers, np.bincount(train.targets.astype(int)) / len(train.targets))


def test_a_perceptron_without_time_has_a_part_of_a_pass():
    train, valid = parts(0)
    recipe = perceptrons.Recipe((8,), batch=32, passes=5)
    cut = perceptrons.trained(perceptrons._Data(train, valid, INPUTS, [4, 4], None, 0), recipe, 0.0, 1)
    (whole,) = perceptrons.refit(train, INPUTS, [4, 4], None, 0, [(recipe, 1)], 1)
    assert cut.passes == 1 and np.isfinite(cut.answers).all() and not np.allclose(cut.weights[-2], whole[-2])
