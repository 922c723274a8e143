"""Loss and metrics that are added up over pieces of rows are those of all rows, and Keras' own."""

import json

import keras
import numpy as np
import pytest

from mop_udf import state
from mop_udf.kernels.batch_size import BatchSize
from mop_udf.params import params
from mop_udf.training import evaluation, model_cache
from support.scored import by_keras, compiled, in_pieces, rows
from support.workload import dense, layer, sequential


@pytest.mark.parametrize("loss", ["dice", "poisson"])
def test_a_loss_of_pieces_is_that_of_all_rows(loss):
    """Every loss: tests/thorough/training/test_scores.py."""
    columns = rows(3)
    model = compiled(loss)
    assert in_pieces(model, columns)["loss"] == pytest.approx(by_keras(model, columns, loss, None)["loss"], rel=1e-5)


def test_regularization_counts_once():
    l2 = {"class_name": "L2", "module": "keras.regularizers", "config": {"l2": 0.1}, "registered_name": None}
    text = sequential(
        "r",
        [4],
        layer("Dense", name="h", units=5, kernel_regularizer=l2, activity_regularizer=l2),
        layer("Dense", name="o", units=3, activation="softmax"),
    )
    for loss in ("categorical_crossentropy", "dice"):
        model, columns = compiled(loss, architecture=text), rows(3)
        theirs = by_keras(model, columns, loss, None)["loss"]
        assert in_pieces(model, columns)["loss"] == pytest.approx(theirs, rel=1e-5)


def test_several_outputs_have_each_metric_and_its_mean():
    given = keras.Input([4], name="i")
    outputs = [keras.layers.Dense(n, activation="softmax", name=name)(given) for n, name in ((3, "a"), (2, "b"))]
    text = json.loads(keras.Model(given, outputs).to_json())
    x, y = rows(3)
    columns = (x, y, np.eye(2, dtype="i2")[y[:, 0]])
    for loss in ("categorical_crossentropy", "tversky"):
        model = compiled(loss, ["f1_score", "accuracy"], architecture=json.dumps(text), loss_weights=[0.3, 2.0])
        scores = in_pieces(model, columns)
        theirs = by_keras(model, columns, [loss] * 2, [["f1_score", "accuracy"]] * 2, loss_weights=[0.3, 2.0])
        assert scores["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        for name in ("f1_score", "accuracy"):
            own = [float(np.mean(theirs[f"{output}_{name}"])) for output in "ab"]
            assert scores["metrics"][name] == pytest.approx(np.mean(own), rel=1e-5)
            assert [scores["metrics"][f"{output}_{name}"] for output in "ab"] == pytest.approx(own, rel=1e-5)
        assert scores["metric"] == scores["metrics"]["f1_score"]


def test_a_custom_metric_of_a_whole_batch_counts_by_its_rows():
    import dill

    space = {"__name__": "__main__"}
    exec("def mean_error(t, p):\n    import keras\n    return keras.ops.mean(keras.ops.abs(t - p))\n", space)
    text = params.parse_compile_params("loss='mse', optimizer='SGD()', metrics=['mean_error', 'mae']")
    model = model_cache.ModelCache().get(
        dense(), text, {"mean_error": dill.dumps(space["mean_error"], recurse=True)}, 5
    )
    scores = in_pieces(model, rows(3))
    assert scores["metrics"]["mean_error"] == pytest.approx(scores["metrics"]["mae"], rel=1e-6)


def test_values_far_from_zero_keep_their_r2_score():
    random = np.random.default_rng(3)
    linear = sequential("l", [1], layer("Dense", name="d", units=1))
    model = compiled("mse", ["r2_score"], architecture=linear)
    x = random.normal(size=(200, 1)).astype("f4")
    y = (10_000 + x + 0.5 * random.normal(size=(200, 1))).astype("f4")
    model.model.set_weights([np.ones((1, 1), "f4"), np.full(1, 10_000, "f4")])
    predicted = model.model.predict(x, verbose=0).astype("f8")
    truth = 1 - ((y - predicted) ** 2).sum() / ((y - y.mean(dtype="f8")) ** 2).sum()
    assert in_pieces(model, (x, y))["metric"] == pytest.approx(truth, rel=1e-6)


def test_an_evaluation_is_compiled_once_and_its_sums_are_those_of_its_batches():
    """For any number of rows."""
    model, columns = compiled(metrics=["accuracy", "auc", "f1_score"]), rows(3)
    many = tuple(np.concatenate([c] * 30) for c in columns)  # 6,000
    evaluated = [model.forward.evaluate(tuple(c[:n] for c in many), 1) for n in (6000, 1, 17, 5000, 6000)]
    assert len(model.forward._steps) == 1 and (evaluated[0] == evaluated[4]).all()
    size, own = model.forward.size.rows, model.forward.scores
    for count, sums in zip((6000, 1, 17, 5000), evaluated):
        for variable in own.variables:
            variable.assign(np.zeros(variable.shape))
        for start in range(0, count, size):
            own.update(*(c[start : min(count, start + size)] for c in many))
        assert sums == pytest.approx(np.concatenate([np.asarray(v).reshape(-1) for v in own.variables]), rel=1e-6)


def test_an_evaluation_is_compiled_once_for_all_optimizers_and_rates():
    cache, columns = model_cache.ModelCache(), rows(3)

    def parsed(optimizer, metrics="['accuracy']"):
        return params.parse_compile_params(
            f"loss='categorical_crossentropy', optimizer='{optimizer}', metrics={metrics}"
        )

    trained = [cache.get(dense(), parsed(optimizer), {}) for optimizer in ("Adam()", "SGD()", "SGD(momentum=0.9)")]
    assert len(cache.models) == 3
    assert {id(cache.evaluator(dense(), parsed(o), {})) for o in ("SGD()", "Adam()", "RMSprop()")} == {id(trained[0])}
    assert len(cache.models) == 3
    assert cache.evaluator(dense(), parsed("SGD()", "['mae']"), {}) not in trained
    assert cache.evaluator(dense(width=9), parsed("SGD()"), {}) not in trained
    weights = [w + 1 for w in state.values(trained[1].model.weights)]
    reports = []
    for model in (cache.evaluator(dense(), parsed("SGD()"), {}), trained[1]):
        reports.append(evaluation.Evaluation(model, weights, 1))
        reports[-1].add(columns)
    assert reports[0].report()["sums"] == reports[1].report()["sums"]
    cache.most_bytes = 1
    cache.get(dense(), parsed("RMSprop()"), {})
    assert len(cache.models) == 1 and cache.evaluator(dense(), parsed("SGD()"), {}) not in trained


class Held:
    """A machine on which a batch takes `row` bytes a row besides what is held."""

    def __init__(self, row, held=600 << 20):
        self.row, self.held, self.most = row, held, held

    def begin(self):
        self.most = self.held
        return self.held

    def batch(self, rows):
        self.most = max(self.most, self.held + self.row * rows)

    def peak(self):
        return self.most


def grown(memory, row_bytes=0):
    """The batch sizes that are tried, the last of them the one that stays."""
    size, tried = BatchSize(row_bytes, memory), []
    while not size.settled:
        tried.append(size.rows)
        size.measure(lambda: memory.batch(tried[-1]))
    return [*tried, size.rows]


def test_batches_grow_while_memory_allows(monkeypatch):
    from mop_udf.kernels import batch_size

    assert max(grown(Held(1 << 10))) == batch_size.MOST
    heavy = Held(2 << 20)  # a row
    assert max(grown(heavy)) * heavy.row <= batch_size.ENOUGH
    monkeypatch.setattr(batch_size, "limit_bytes", 700 << 20)
    for row in (1 << 20, 2 << 20, 3 << 20):
        assert 600 + max(grown(Held(row))) * (row >> 20) <= 700, "no batch passes the limit"
    hidden = Held(0)  # by what TensorFlow keeps in reserve
    assert max(grown(hidden, row_bytes=1 << 20)) == 32
    monkeypatch.setattr(batch_size, "limit_bytes", None)
    assert max(grown(hidden, row_bytes=1 << 20)) == 256
    monkeypatch.setattr(batch_size, "limit_bytes", 8 << 30)
    assert max(grown(Held(1 << 20))) == 1024


def test_where_memory_ends_batches_are_halved_and_nothing_counts_twice():
    import tensorflow as tf

    model, columns = compiled(metrics=["accuracy", "true_positives"]), rows(3)
    whole = in_pieces(model, columns)
    other = compiled(metrics=["accuracy", "true_positives"])
    other.model.set_weights(model.model.get_weights())
    forward, seen = other.forward, []
    run = forward._run

    def tight(kind, data):
        count = len(tf.nest.flatten(data)[0])
        seen.append(count)
        result = run(kind, data)
        if count > 5:  # after the sums have been changed: as when memory ends in the middle
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return result

    forward._run = tight
    scores = in_pieces(other, columns)
    assert max(seen) > 5 and scores["rows"] == 200
    assert scores["metrics"] == pytest.approx(whole["metrics"], rel=1e-6)
    assert scores["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert np.concatenate(forward.predict(columns[:1])).shape == (200, 3)
    forward._run = lambda kind, data: (_ for _ in ()).throw(tf.errors.ResourceExhaustedError(None, None, "OOM"))
    with pytest.raises(tf.errors.ResourceExhaustedError):
        in_pieces(other, columns)


SOFTMAX = {
    "softmax in the last layer": dense(classes=2),
    "a layer of its own": sequential(
        "own", [4], layer("Dense", name="out", units=2), layer("Softmax", name="probabilities")
    ),
}


@pytest.mark.parametrize("architecture", SOFTMAX.values(), ids=SOFTMAX)
def test_auc_precision_and_recall_of_two_classes_are_those_of_the_second_class(architecture):
    """As of scikit-learn; AUC within what its 200 thresholds leave open."""
    sklearn = pytest.importorskip("sklearn.metrics")
    columns = x, y = rows(2)
    x += np.random.default_rng(1).normal(scale=2, size=x.shape).astype("f4")  # so that classes overlap
    model = compiled(metrics=["auc", "precision", "recall"], architecture=architecture)
    found = in_pieces(model, columns)["metrics"]
    probability = np.asarray(model.model(x))
    labels = y.argmax(1)
    assert found["auc"] == pytest.approx(sklearn.roc_auc_score(labels, probability[:, 1]), abs=0.005)
    guesses = probability.argmax(1)
    assert 0 < guesses.sum() < len(guesses)
    assert found["precision"] == pytest.approx(sklearn.precision_score(labels, guesses), abs=1e-12)
    assert found["recall"] == pytest.approx(sklearn.recall_score(labels, guesses), abs=1e-12)


def test_two_units_that_are_no_classes_have_keras_metrics():
    two = sequential("two", [4], layer("Dense", name="out", units=2, activation="sigmoid"))
    columns, names = rows(2), ["auc", "precision", "recall"]
    model = compiled("binary_crossentropy", names, architecture=two)
    found = in_pieces(model, columns)["metrics"]
    theirs = by_keras(
        model, columns, "binary_crossentropy", [getattr(keras.metrics, n)() for n in ("AUC", "Precision", "Recall")]
    )
    assert list(found.values()) == pytest.approx([v for n, v in theirs.items() if n != "loss"], rel=1e-5)
