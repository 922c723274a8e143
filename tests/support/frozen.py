"""Models with frozen layers, of many kinds, and their training with and without a common prefix."""

import dataclasses

import dill
import numpy as np
import pytest

from mop_udf import data, state
from mop_udf.params import params
from mop_udf.unit_spec import TrainerUnit

ROWS, BATCH, SHAPE = 83, 8, (8, 8, 1)


def model(call, shape=SHAPE, seed=1, **arguments):
    """A Keras model of what `call` makes of its inputs (one for each of `shape`, where it is a list)."""
    import keras

    keras.utils.set_random_seed(seed)
    shapes = shape if isinstance(shape, list) else [shape]
    inputs = [keras.Input(one, **arguments) for one in shapes]
    return keras.Model(inputs if isinstance(shape, list) else inputs[0], call(*inputs, keras.layers))


def sequential(*layers, shape=SHAPE, frozen=False, name=None):
    import keras

    made = keras.Sequential([keras.Input(shape), *layers], name=name)
    if frozen:
        made.trainable = False
    return made


def base(k, *more):
    """A frozen model to be a layer of others: normalization and dropout are among what it may have in `more`."""
    return sequential(k.Conv2D(4, 3), k.BatchNormalization(), k.ReLU(), *more, k.MaxPooling2D(), frozen=True)


def head(x, k, width=5):
    return k.Dense(3, "softmax")(k.Dense(width, "relu", kernel_regularizer="l2")(x))


def transfer(x, k):
    return head(k.Flatten()(base(k)(k.Rescaling(1 / 9)(x))), k)


def residual(x, k):
    """A base in the graph itself, with a way around a layer, and operations of keras.ops."""
    first = k.Conv2D(4, 3, padding="same", trainable=False)(x)
    second = k.BatchNormalization(trainable=False)(k.Conv2D(4, 3, padding="same", trainable=False)(first))
    return head(k.GlobalAveragePooling2D()(k.ReLU()((first + second) * 2 - 1)), k)


def twice(x, k):
    """A frozen layer that is used before the cut and after it."""
    both = k.Dense(6, trainable=False)
    return k.Dense(3, "softmax")(both(k.Dense(6)(both(both(x)))))


def words(x, k):
    found = k.Dense(4, "relu", trainable=False)(k.Embedding(20, 6, trainable=False)(x))
    return head(k.GlobalMaxPooling1D()(found), k)


def two_ways(x, k):
    import keras

    frozen = k.Dense(6, trainable=False)(k.Dense(6, trainable=False)(x))
    return [
        k.Dense(3, "softmax", name="a")(k.Dense(3)(frozen)),
        k.Dense(2, "softmax", name="b")(keras.ops.relu(frozen)),
    ]


def joined(x, z, k):
    """Two inputs that a frozen layer has together."""
    together = k.Concatenate()([k.Dense(3, trainable=False)(x), z])
    return head(k.Dense(4, trainable=False)(together), k)


def dense(units, k, **more):
    return k.Dense(units, trainable=False, **more)


def with_layer(make):
    """A frozen layer, what `make` makes, another frozen layer, and a head."""
    return lambda x, k: head(dense(4, k)(make(k)(dense(5, k)(x))), k)


# name -> (what makes the outputs, shape of the inputs, how many layers of the prefix have weights)
CUT = {
    "a base as a layer": (transfer, SHAPE, 2),
    "a base in the graph": (residual, SHAPE, 3),
    "a layer used on both sides": (twice, (6,), 1),
    "embedded words": (words, (7,), 2),
    "two outputs": (two_ways, (6,), 2),
    "two inputs": (joined, [(4,), (5,)], 2),
    "frozen normalization": (with_layer(lambda k: k.BatchNormalization(trainable=False)), (6,), 3),
    "a known normalization": (with_layer(lambda k: k.Normalization(mean=1.0, variance=4.0)), (6,), 2),
    "weights that are regularized": (with_layer(lambda k: dense(5, k, kernel_regularizer="l2")), (6,), 3),
    "a base with another in it": (
        lambda x, k: head(k.Flatten()(sequential(base(k), k.Conv2D(2, 1), frozen=True)(x)), k),
        SHAPE,
        3,
    ),
    "a gap that is not frozen": (lambda x, k: head(dense(4, k)(k.Dense(4)(dense(5, k)(x))), k), (6,), 1),
}
# what ends a prefix: all that is left of it has one layer with weights
ENDS = {
    "what trains": lambda k: k.Dense(4),
    "Dropout": lambda k: k.Dropout(0.2),
    "noise": lambda k: k.GaussianNoise(0.1),
    "activities that count": lambda k: dense(4, k, activity_regularizer="l2"),
    "a loss of its own": lambda k: k.ActivityRegularization(0.1),
    "normalization that trains": lambda k: k.BatchNormalization(),
    "normalization by the batch": lambda k: k.BatchNormalization(scale=False, center=False),
    "softmax along the rows": lambda k: k.Softmax(axis=0),
    "normalization along the rows": lambda k: k.LayerNormalization(axis=0, center=False, scale=False),
    "a norm along the rows": lambda k: k.UnitNormalization(axis=-2),
    "weights that a pass changes": lambda k: k.SpectralNormalization(dense(5, k), trainable=False),
    "a base with Dropout": lambda k: sequential(dense(5, k), k.Dropout(0.1), shape=(5,), frozen=True),
    "a base of which a part trains": lambda k: sequential(dense(5, k), k.Dense(5), shape=(5,)),
}


def mixed_rows(x, k):
    """An operation between all rows of a batch."""
    import keras

    frozen = dense(4, k)(x)
    return head(frozen - keras.ops.mean(frozen, axis=0, keepdims=True), k)


def across(x, k):
    frozen = dense(4, k)(x)
    return head(dense(4, k)(frozen[:, None] + frozen)[:, 0], k)


def around(x, k):
    return k.Dense(3, "softmax")(k.Concatenate()([k.Dense(4)(dense(4, k)(x)), x]))


def masked(x, k):
    return head(k.LSTM(3)(k.Embedding(20, 6, mask_zero=True, trainable=False)(x)), k)


NOT_CUT = {
    "nothing frozen": (lambda x, k: head(k.Dense(4)(x), k), (6,)),
    "all frozen": (lambda x, k: dense(3, k, activation="softmax")(dense(4, k)(x)), (6,)),
    "nothing worth it": (lambda x, k: head(k.Flatten()(k.Rescaling(0.1)(x)), k), SHAPE),
    "an Embedding alone": (lambda x, k: head(k.Flatten()(k.Embedding(20, 3, trainable=False)(x)), k), (7,)),
    "a frozen layer in the middle alone": (lambda x, k: head(dense(4, k)(k.Dense(4)(x)), k), (6,)),
    "a frozen layer at the end alone": (lambda x, k: dense(3, k)(k.Dense(4)(x)), (6,)),
    "a way around": (around, (6,)),
    "masks": (masked, (7,)),
    "recurrent": (lambda x, k: head(k.LSTM(3, trainable=False)(x), k), (7, 2)),
    "a cell that is frozen": (lambda x, k: head(k.RNN(k.SimpleRNNCell(3), trainable=False)(x), k), (7, 2)),
    "two inputs that meet where it trains": (
        lambda x, z, k: head(k.Concatenate()([k.Dense(4)(dense(4, k)(x)), dense(4, k)(z)]), k),
        [(4,), (5,)],
    ),
    "two outputs, one of them of the input": (lambda x, k: [head(dense(4, k)(x), k), k.Dense(2)(x)], (6,)),
    "a size that nobody knows": (lambda x, k: head(k.LSTM(2)(dense(3, k)(x)), k), (None, 2)),
}


def built(original):
    """The model as a trainer builds it."""
    from mop_udf.architecture import architecture
    from mop_udf.training import models

    return models.build(architecture.check(original.to_json()), 3)


def parts(original):
    from mop_udf.kernels.prefix import split

    return split(built(original))


def weighted_layers(split):
    import keras

    return sum(bool(layer.weights) for layer in split.prefix._flatten_layers() if not isinstance(layer, keras.Model))


def columns(whole, seed=0, rows=ROWS):
    """Rows for a model: its inputs (also as word numbers), then one-hot classes for each output."""
    random = np.random.default_rng(seed)
    x = [random.integers(0, 20, (rows, *i.shape[1:])).astype("f4") for i in whole.inputs]
    y = [np.eye(o.shape[-1], dtype="i2")[random.integers(0, o.shape[-1], rows)] for o in whole.outputs]
    return (*x, *y)


def compiled(original, optimizer="Adam(lr=0.01)", loss="categorical_crossentropy", metrics=("accuracy",), **functions):
    from mop_udf.training import model_cache

    text = f"loss='{loss}', optimizer='{optimizer}', metrics={list(metrics)!r}"
    made = model_cache.ModelCache().get(
        original.to_json(),
        params.parse_compile_params(text),
        {name: dill.dumps(f, recurse=True) for name, f in functions.items()},
    )
    made.start(7)
    return made


def unit(rows, inputs=1, **more):
    """A unit that may share the prefix's outputs."""
    model = {
        "stage": 1,
        "model_id": 1,
        "iteration": 1,
        "architecture": "",
        "compile_params": "",
        "plain_weights": False,
    }
    return TrainerUnit(
        **{
            "share_prefixes": True,
            "keeps_rows": True,
            "dataset": "d",
            "rows": len(rows[0]),
            "nbytes": sum(c.nbytes for c in rows),
            "keep": ["d"],
            "dtypes": [],
            "inputs": inputs,
            "outputs": None,
            "kind": "train",
            "run_passes_left": 9,
            **model,
            **more,
        }
    )


def kept(rows, limit=1 << 30):
    cache = data.Cache(limit)
    cache.segments["d"] = data.Segment(rows)
    return cache


def trained(made, rows, kernel, shared, inputs=1, class_weight=None, passes=3):
    """Losses of passes, the weights and the optimizer's variables after them, and an evaluation."""
    from mop_udf.training import evaluation, prefixes

    cache, kernels, told, own = kept(rows), made.kernels, unit(rows, inputs), inputs
    columns = rows
    if shared:
        columns, kernels, own = prefixes.features(cache, told, made).segment(BATCH).columns, made.cut.kernels, 1
    reports = [kernels.train([columns], len(rows[0]), BATCH, own, class_weight, forced=kernel) for _ in range(passes)]
    assert {report["kernel"] for report in reports} == {kernel}
    weights = state.values(made.model.weights)
    found = prefixes.features(cache, dataclasses.replace(told, kind="evaluate"), made, weights) if shared else None
    evaluation = evaluation.Evaluation(made, weights, inputs, found)
    evaluation.add(rows)
    assert len(cache.features) == bool(shared), "what training computed serves the evaluation"
    return [r["loss"] for r in reports], weights, state.values(made.optimizer.variables), evaluation.report()


def assert_equal(whole, shared, rel=1e-6, of_optimizer=1e-6):
    """Results within `rel`; of weights and of the optimizer's variables, of the largest of an array."""
    assert shared[0] == pytest.approx(whole[0], rel=rel)
    for number, within in ((1, rel), (2, max(rel, of_optimizer))):
        for one, other in zip(whole[number], shared[number], strict=True):
            assert one.dtype == other.dtype
            assert np.allclose(one.astype("f8"), other.astype("f8"), rtol=0, atol=within * float(np.abs(one).max()))
    assert shared[3]["loss"] == pytest.approx(whole[3]["loss"], rel=rel)
    assert shared[3]["metrics"] == pytest.approx(whole[3]["metrics"], rel=rel)
    assert len(shared[3]["sums"]) == len(whole[3]["sums"]) and shared[3]["rows"] == whole[3]["rows"]


OPTIMIZERS = (
    "SGD(lr=0.05, momentum=0.9)",
    "Adam(lr=0.01)",
    "AdamW(lr=0.01, weight_decay=0.1, clipnorm=0.5)",
    "Adam(lr=0.01, global_clipnorm=0.3)",
    "RMSprop(lr=0.01, clipvalue=0.1)",
    "SGD(lr=0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=10)",
)


def assert_the_head_trains_as_the_whole(original, kernel="loop", optimizer="Adam(lr=0.01)", **within):
    rows, inputs = columns(original), len(original.inputs)
    one, other = (trained(compiled(original, optimizer), rows, kernel, shared, inputs) for shared in (False, True))
    assert_equal(one, other, **within)
