"""Frozen prefixes: where a model is cut, that the head trains as the whole does, and what is kept of it."""

import itertools
import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import dill
import numpy as np
import pytest

from mop_udf import data, params, state
from mop_udf.kernels import batch_size

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
    from mop_udf import architecture, models

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


@pytest.mark.parametrize("name", CUT)
def test_a_model_is_cut_where_nothing_before_trains(name):
    call, shape, count = CUT[name]
    split = parts(model(call, shape))
    assert weighted_layers(split) == count
    x = columns(split.head.whole)[: len(split.head.whole.inputs)]
    x = x[0] if len(x) == 1 else list(x)
    for training in (False, True):
        whole = split.head.whole(x, training=training)
        ours = split.head(split.prefix(x, training=training), training=training)
        for one, other in zip(*(v if isinstance(v, list) else [v] for v in (whole, ours)), strict=True):
            assert (np.asarray(one) == np.asarray(other)).all()
    assert [id(v) for v in split.head.trainable_variables] == [id(v) for v in split.head.whole.trainable_variables]
    assert len(split.head.losses) == len(split.head.whole.losses)


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_a_prefix(name):
    assert weighted_layers(parts(model(with_layer(ENDS[name]), (6,)))) == 1


@pytest.mark.parametrize("call,layers", [(mixed_rows, 1), (across, 1)])
def test_what_is_between_rows_ends_a_prefix(call, layers):
    assert weighted_layers(parts(model(call, (6,)))) == layers


@pytest.mark.parametrize("name", NOT_CUT)
def test_a_model_without_a_prefix_is_not_cut(name):
    call, shape = NOT_CUT[name]
    assert parts(model(call, shape)) is None


def test_a_model_that_was_made_for_batches_of_a_fixed_size_is_cut_as_another():
    split = parts(model(lambda x, k: head(dense(4, k)(x), k), (6,), batch_size=8))
    assert [o.shape for o in split.prefix.outputs] == [(None, 4)]


def test_what_comes_last_is_the_cut():
    """As much as can be is computed once, and what is pooled is smaller."""
    import keras

    k = keras.layers
    split = parts(sequential(base(k), k.GlobalAveragePooling2D(), k.Activation("relu"), k.Dropout(0.2), k.Dense(3)))
    assert [o.shape for o in split.prefix.outputs] == [(None, 4)] and split.row_bytes == 16
    assert [type(layer).__name__ for layer in split.head.own_layers] == ["Dropout", "Dense"]


@pytest.mark.parametrize("name", ["MobileNetV2", "MobileNetV3Small", "EfficientNetB0"])
def test_bases_of_keras_applications(name):
    """All of it is a prefix, but where it has Dropout, which Keras does not switch off in training."""
    import keras

    base = getattr(keras.applications, name)(weights=None, include_top=False, input_shape=(32, 32, 3))
    base.trainable = False
    split = parts(model(lambda x, k: k.Dense(3)(k.GlobalAveragePooling2D()(base(x, training=False))), (32, 32, 3)))
    random = any(type(layer).__name__ in ("Dropout", "StochasticDepth") for layer in base._flatten_layers())
    assert (split is None) == random and random == (name == "EfficientNetB0")
    if split:
        assert split.prefix.outputs[0].shape == (None, base.output_shape[-1])
    keras.backend.clear_session()


def test_equal_prefixes_have_equal_digests_whatever_they_are_called():
    one, other = (
        parts(model(transfer)),
        parts(model(lambda x, k: k.Dense(3)(k.Dropout(0.1)(k.Flatten()(base(k)(k.Rescaling(1 / 9)(x))))), seed=2)),
    )
    assert [v.path for v in one.prefix.weights] != [v.path for v in other.prefix.weights]
    assert one.digest() == other.digest()
    other.prefix.weights[-1].assign(other.prefix.weights[-1] + 1)
    assert one.digest() != other.digest()
    other.prefix.weights[-1].assign(other.prefix.weights[-1] - 1)
    weights = state.values(other.head.whole.weights)
    assert other.digest(weights) == one.digest()
    weights[0] = weights[0] + 1e-7
    assert other.digest(weights) != one.digest(), "the arrays count, not what the model has"
    weights = state.values(other.head.whole.weights)
    weights[-1] = weights[-1] + 1
    assert other.digest(weights) == one.digest(), "the head's do not count"


@pytest.mark.parametrize(
    "other",
    [
        lambda x, k: head(k.Flatten()(base(k)(k.Rescaling(1 / 8)(x))), k),
        lambda x, k: head(k.Flatten()(base(k)(k.Rescaling(1 / 9, offset=1.0)(x))), k),
        lambda x, k: head(
            k.Flatten()(
                sequential(
                    k.Conv2D(4, 3, activation="relu"), k.BatchNormalization(), k.ReLU(), k.MaxPooling2D(), frozen=True
                )(k.Rescaling(1 / 9)(x))
            ),
            k,
        ),
        lambda x, k: head(
            k.Flatten()(
                sequential(k.Conv2D(4, 3), k.BatchNormalization(epsilon=0.1), k.ReLU(), k.MaxPooling2D(), frozen=True)(
                    k.Rescaling(1 / 9)(x)
                )
            ),
            k,
        ),
        lambda x, k: head(k.Flatten()(base(k)(k.Rescaling(1 / 9)(x)) * 2.0), k),
    ],
)
def test_other_prefixes_have_other_digests(other):
    one, two = parts(model(transfer)), parts(model(other))
    for variable, value in zip(two.prefix.weights, state.values(one.prefix.weights)):
        variable.assign(value)
    assert one.digest() != two.digest()


def test_prefixes_of_equal_digests_compute_the_same():
    """Whatever the order in which their graphs and their layers are told."""

    def minus(x, k, swapped, within):
        a, b = dense(4, k), dense(4, k)
        first, second = (b, a) if within else (a, b)
        first, second = first(x), second(x)
        return k.Subtract()([second, first] if swapped else [first, second])

    found, x = [], columns(model(lambda x, k: head(x, k), (6,)))[0]
    for swapped, within, order in itertools.product([False, True], repeat=3):
        for nested in (False, True):

            def call(x, k, swapped=swapped, within=within, nested=nested):
                if not nested:
                    return head(minus(x, k, swapped, within), k)
                inner = model(lambda x, k: minus(x, k, swapped, within), (6,))
                inner.trainable = False
                return head(inner(x), k)

            split = parts(model(call, (6,)))
            values = [np.full((6, 4), 1, "f4"), np.zeros(4, "f4"), np.full((6, 4), 2, "f4"), np.ones(4, "f4")]
            for variable, value in zip(split.prefix.weights, values[2:] + values[:2] if order else values):
                variable.assign(value)
            found.append((nested, split.digest(), np.asarray(split.prefix(x)).tobytes()))
    for nested in (False, True):
        pairs = {(digest, output) for of, digest, output in found if of == nested}
        assert len({digest for digest, _ in pairs}) == len({output for _, output in pairs}) == len(pairs) == 2


# with the head -------------------------------------------------------------------------------------------------------


def compiled(original, optimizer="Adam(lr=0.01)", loss="categorical_crossentropy", metrics=("accuracy",), **functions):
    from mop_udf import model_cache

    text = f"loss='{loss}', optimizer='{optimizer}', metrics={list(metrics)!r}"
    made = model_cache.ModelCache().get(
        original.to_json(),
        params.parse_compile_params(text),
        {name: dill.dumps(f, recurse=True) for name, f in functions.items()},
    )
    made.start(7)
    return made


def unit(rows, inputs=1, **more):
    return {
        "share_prefixes": True,
        "kernel": "auto",
        "keeps_rows": True,
        "dataset": "d",
        "rows": len(rows[0]),
        "nbytes": sum(c.nbytes for c in rows),
        "keep": ["d"],
        "inputs": inputs,
        "kind": "train",
        "run_passes_left": 9,
        **more,
    }


def kept(rows, limit=1 << 30):
    cache = data.Cache(limit)
    cache.segments["d"] = data.Segment(rows)
    return cache


def trained(made, rows, kernel, shared, inputs=1, class_weight=None, passes=3):
    """Losses of passes, the weights and the optimizer's variables after them, and an evaluation."""
    from mop_udf import evaluation, prefixes

    cache, kernels, told, own = kept(rows), made.kernels, unit(rows, inputs), inputs
    columns = rows
    if shared:
        columns, kernels, own = prefixes.features(cache, told, made).segment(BATCH).columns, made.cut.kernels, 1
    reports = [kernels.train([columns], len(rows[0]), BATCH, own, class_weight, forced=kernel) for _ in range(passes)]
    assert {report["kernel"] for report in reports} == {kernel}
    weights = state.values(made.model.weights)
    found = prefixes.features(cache, {**told, "kind": "evaluate"}, made, weights) if shared else None
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


@pytest.mark.parametrize(
    "kernel,optimizer",
    [*(("loop", optimizer) for optimizer in OPTIMIZERS), ("plain", OPTIMIZERS[1]), ("xla", OPTIMIZERS[2])],
)
def test_the_head_trains_as_the_whole_does(kernel, optimizer):
    original = model(transfer)
    rows = columns(original)
    assert_equal(
        *(trained(compiled(original, optimizer), rows, kernel, shared) for shared in (False, True)),
        of_optimizer=1e-5 if kernel == "xla" else 1e-6,
    )  # which puts other operations together


@pytest.mark.parametrize("name", list(CUT)[1:])
def test_every_kind_of_model_trains_as_the_whole_does(name):
    call, shape, _ = CUT[name]
    original = model(call, shape)
    rows, inputs = columns(original), len(original.inputs)
    assert_equal(*(trained(compiled(original), rows, "loop", shared, inputs) for shared in (False, True)))


def far(y_true, y_pred):
    import keras

    return keras.ops.mean(keras.ops.square(y_true - y_pred) * 3, axis=-1)


def test_a_custom_loss_and_weights_of_classes_count_in_the_head():
    original = model(transfer)
    rows = columns(original)
    results = [
        trained(
            compiled(original, loss="far", metrics=("mae", "far"), far=far),
            rows,
            "loop",
            shared,
            class_weight={0: 3.0, 2: 0.5},
        )
        for shared in (False, True)
    ]
    assert_equal(*results)
    other = trained(compiled(original, loss="far", far=far), rows, "loop", True)
    assert abs(other[0][0] - results[1][0][0]) > 1e-3, "the classes' weights matter"


def test_dropout_after_the_cut_draws_what_it_draws_in_the_whole():
    original = model(lambda x, k: head(k.Dropout(0.5)(k.Flatten()(base(k)(x))), k))
    rows = columns(original)
    for kernel in ("plain", "loop"):
        whole, shared = (trained(compiled(original), rows, kernel, shared) for shared in (False, True))
        assert_equal(whole, shared)
    made = compiled(original)
    assert "xla" in made.cut.kernels.refused


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16", "float64"])
def test_other_dtypes_train_as_in_the_whole(policy):
    def call(x, k):
        found = k.Conv2D(4, 3, trainable=False, dtype=policy)(x)
        return k.Dense(3, "softmax")(k.Dense(5, dtype=policy)(k.Flatten(dtype=policy)(found)))

    original = model(call)
    rows = columns(original)
    made = compiled(original, "SGD(lr=0.001)")
    assert made.cut.split.row_bytes == 6 * 6 * 4 * {"mixed_bfloat16": 2, "float16": 2, "float64": 8}[policy]
    for kernel in ("plain", "loop"):
        assert_equal(
            *(trained(compiled(original, "SGD(lr=0.001)"), rows, kernel, shared) for shared in (False, True)),
            rel=1e-6 if policy == "float64" else 1e-2,
        )


def test_heads_share_what_one_of_them_had_computed():
    from mop_udf import prefixes

    rows = columns(model(transfer))
    cache, arrays = kept(rows), []
    for width in (5, 9):
        made = compiled(model(lambda x, k, width=width: head(k.Flatten()(base(k)(k.Rescaling(1 / 9)(x))), k, width)))
        made.model.layers[2].set_weights([np.full(w.shape, 0.3, "f4") for w in made.model.layers[2].weights])
        arrays.append(prefixes.features(cache, unit(rows), made).segment(BATCH).columns[0])
    assert arrays[0] is arrays[1] and len(cache.features) == 1
    made.model.layers[2].weights[0].assign(np.zeros((3, 3, 1, 4), "f4"))
    other = prefixes.features(cache, unit(rows), made).segment(BATCH).columns[0]
    assert len(cache.features) == 2 and (other != arrays[0]).any(), "other weights, other features"


@pytest.mark.parametrize(
    "more",
    [{"share_prefixes": False}, {"kernel": "plain"}, {"kernel": "loop"}, {"keeps_rows": False}, {"run_passes_left": 1}],
)
def test_units_that_do_not_share(more):
    from mop_udf import prefixes

    original = model(transfer)
    rows = columns(original)
    assert prefixes.features(kept(rows), unit(rows, **more), compiled(original)) is None


def test_the_last_pass_shares_what_is_there():
    from mop_udf import prefixes

    made, rows = compiled(model(transfer)), columns(model(transfer))
    cache = kept(rows)
    prefixes.features(cache, unit(rows), made).segment(BATCH)
    assert prefixes.features(cache, unit(rows, run_passes_left=1), made)


def test_features_stay_within_the_caches_limit_and_go_before_rows(monkeypatch):
    from mop_udf import prefixes

    made, rows = compiled(model(transfer)), columns(model(transfer))
    size, features = sum(c.nbytes for c in rows), ROWS * 36 * 4
    assert prefixes.features(kept(rows, size + features - 1), unit(rows), made) is None
    cache = kept(rows, size + features)
    assert prefixes.features(cache, unit(rows), made).segment(BATCH) and cache.used() == size + features
    assert cache.make_capacity(1, ["d"]) and not cache.features and "d" in cache.segments, "rows come first"
    empty = data.Cache(size + features - 1)  # the rows are on their way
    assert prefixes.features(empty, unit(rows), made) is None
    empty.limit += 1
    assert prefixes.features(empty, unit(rows), made)
    monkeypatch.setattr(batch_size, "limit_bytes", 1 << 20)  # of the process, which holds more
    assert prefixes.features(kept(rows), unit(rows), made) is None


def test_rows_that_no_run_asks_for_make_room_for_features():
    cache = kept((np.zeros(100, "u1"),), 250)
    cache.segments["old"] = data.Segment((np.zeros(100, "u1"),))
    cache.features_of("old", b"1")
    cache.add_features("old", b"1", data.Segment((np.zeros(10, "u1"),)))
    assert not cache.make_feature_capacity(100, ["d", "old"])
    assert len(cache.segments) == 2 and len(cache.features) == 1, "nothing goes for the sake of what does not fit"
    assert cache.make_feature_capacity(100, ["d"])
    assert list(cache.segments) == ["d"] and not cache.features, "with a segment what was computed of it"


def test_features_in_turn_do_not_drive_one_another_out():
    """Of two prefixes of which one fits the first stays, until nobody asks for it any more."""
    cache, made = kept((np.zeros(100, "u1"),), 150), []
    for number in [1, 2] * 10 + [2] * 10:
        if cache.features_of("d", number) is None and cache.make_feature_capacity(40, ["d"]):
            cache.add_features("d", number, data.Segment((np.zeros(40, "u1"),)))
            made.append(number)
    assert made == [1, 2]


def test_a_prefix_that_cannot_be_computed_by_itself_is_trained_as_a_whole(monkeypatch):
    from mop_udf import prefixes

    made, rows = compiled(model(transfer)), columns(model(transfer))
    cache = kept(rows)

    def fail(*_):
        raise ValueError("not by itself")

    monkeypatch.setattr(made.cut._prefix, "_run", fail)
    assert prefixes.features(cache, unit(rows), made).segment(BATCH) is None and not cache.features
    assert prefixes.features(cache, unit(rows), made) is None
    assert made.cut.report(made.kernels) == {"refused": "ValueError: not by itself"}


def test_a_batch_for_which_memory_does_not_suffice_is_halved(monkeypatch):
    import tensorflow as tf

    from mop_udf import prefixes

    made, rows = compiled(model(transfer)), columns(model(transfer))
    whole = prefixes.features(kept(rows), unit(rows), made).segment(BATCH).columns[0]
    run, seen = made.cut._prefix._run, []

    def tight(kind, batch):
        seen.append(len(batch[0]))
        if seen[-1] > 5:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return run(kind, batch)

    monkeypatch.setattr(made.cut._prefix, "_run", tight)
    assert (prefixes.features(kept(rows), unit(rows), made).segment(BATCH).columns[0] == whole).all()
    assert max(seen) == ROWS and seen[-1] <= 5


def test_a_model_that_is_not_cut_is_trained_by_its_own_kernels_alone():
    from mop_udf import prefixes

    original = model(lambda x, k: head(k.Dense(4)(x), k), (6,))
    made, rows = compiled(original), columns(original)
    assert made.cut is None and prefixes.features(kept(rows), unit(rows), made) is None
