"""Frozen prefixes: where a model is cut, that the head trains as the whole does, and what is kept of it."""

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import numpy as np
import pytest

from mop_udf import data, state
from mop_udf.kernels import batch_size
from support.frozen import (
    BATCH,
    CUT,
    ENDS,
    NOT_CUT,
    OPTIMIZERS,
    ROWS,
    across,
    assert_equal,
    assert_the_head_trains_as_the_whole,
    base,
    columns,
    compiled,
    dense,
    head,
    kept,
    mixed_rows,
    model,
    parts,
    sequential,
    trained,
    transfer,
    unit,
    weighted_layers,
    with_layer,
)


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


def with_base(scaled, *layers):
    """`layers`: of the base, with a head behind it."""
    return lambda x, k: head(k.Flatten()(sequential(*(make(k) for make in layers), frozen=True)(scaled(k)(x))), k)


def test_other_prefixes_have_other_digests():
    ninth, relu, pool = lambda k: k.Rescaling(1 / 9), lambda k: k.ReLU(), lambda k: k.MaxPooling2D()
    conv, normal = lambda k: k.Conv2D(4, 3), lambda k: k.BatchNormalization()
    one, same = parts(model(transfer)), parts(model(with_base(ninth, conv, normal, relu, pool)))
    others = [
        with_base(lambda k: k.Rescaling(1 / 8), conv, normal, relu, pool),
        with_base(lambda k: k.Rescaling(1 / 9, offset=1.0), conv, normal, relu, pool),
        with_base(ninth, lambda k: k.Conv2D(4, 3, activation="relu"), normal, relu, pool),
        with_base(ninth, conv, lambda k: k.BatchNormalization(epsilon=0.1), relu, pool),
        lambda x, k: head(k.Flatten()(base(k)(k.Rescaling(1 / 9)(x)) * 2.0), k),
    ]
    for two in (same, *(parts(model(other)) for other in others)):
        for variable, value in zip(two.prefix.weights, state.values(one.prefix.weights)):
            variable.assign(value)
        assert (one.digest() == two.digest()) == (two is same)


# with the head -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel,optimizer", [("loop", OPTIMIZERS[2]), ("plain", OPTIMIZERS[1])])
def test_the_head_trains_as_the_whole_does(kernel, optimizer):
    assert_the_head_trains_as_the_whole(model(transfer), kernel, optimizer)


@pytest.mark.parametrize("name", ["two outputs", "two inputs"])
def test_other_kinds_of_models_train_as_the_whole_does(name):
    call, shape, _ = CUT[name]
    assert_the_head_trains_as_the_whole(model(call, shape))


def far(y_true, y_pred):
    import keras

    return keras.ops.mean(keras.ops.square(y_true - y_pred) * 3, axis=-1)


def test_a_custom_loss_and_weights_of_classes_count_in_the_head():
    original = model(transfer)
    rows = columns(original)
    whole, shared, other = (
        trained(
            compiled(original, loss="far", metrics=("mae", "far"), far=far), rows, "loop", shares, class_weight=weights
        )
        for shares, weights in ((False, {0: 3.0, 2: 0.5}), (True, {0: 3.0, 2: 0.5}), (True, None))
    )
    assert_equal(whole, shared)
    assert abs(other[0][0] - shared[0][0]) > 1e-3, "the classes' weights matter"


def test_heads_share_what_one_of_them_had_computed():
    from mop_udf.training import prefixes

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


@pytest.fixture(scope="module")
def transferred():
    """(a compiled model with a prefix, rows for it)"""
    original = model(transfer)
    return compiled(original), columns(original)


def test_units_that_do_not_share_and_the_last_pass_that_does(transferred):
    from mop_udf.training import prefixes

    made, rows = transferred
    for more in ({"share_prefixes": False}, {"kernel": "plain"}, {"kernel": "loop"}, {"keeps_rows": False}):
        assert prefixes.features(kept(rows), unit(rows, **more), made) is None
    cache = kept(rows)
    assert prefixes.features(cache, unit(rows, run_passes_left=1), made) is None
    prefixes.features(cache, unit(rows), made).segment(BATCH)
    assert prefixes.features(cache, unit(rows, run_passes_left=1), made), "it is there"


def test_features_stay_within_the_caches_limit_and_go_before_rows(monkeypatch, transferred):
    from mop_udf.training import prefixes

    made, rows = transferred
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
    from mop_udf.training import prefixes

    made, rows = compiled(model(transfer)), columns(model(transfer))
    cache = kept(rows)

    def fail(*_):
        raise ValueError("not by itself")

    monkeypatch.setattr(made.cut._prefix, "_run", fail)
    assert prefixes.features(cache, unit(rows), made).segment(BATCH) is None and not cache.features
    assert prefixes.features(cache, unit(rows), made) is None
    assert made.cut.report(made.kernels) == {"refused": "ValueError: not by itself"}


def test_a_batch_for_which_memory_does_not_suffice_is_halved(monkeypatch, transferred):
    import tensorflow as tf

    from mop_udf.training import prefixes

    made, rows = transferred
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
    from mop_udf.training import prefixes

    original = model(lambda x, k: head(k.Dense(4)(x), k), (6,))
    made, rows = compiled(original), columns(original)
    assert made.cut is None and prefixes.features(kept(rows), unit(rows), made) is None
