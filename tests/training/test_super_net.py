"""Super-nets: the paths compute what their members compute, and a path trains what is its own."""

import json
import os
from random import Random

import numpy as np
import pytest

from support.super_nets import (
    ACTIVATION,
    AVERAGE,
    CNN,
    DROPOUT,
    FILTERS,
    KERNEL,
    NORMALIZED,
    NORMALIZED_WIDTHS,
    SIGMOID,
    TWO,
    UNITS,
    net_of,
    times,
)
from support.workload import layer

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")


def slices(layer, array, shape):
    """The first channels of a weight; of a kernel behind a Flatten, those of each position."""
    if len(shape) == 2 and layer == "hidden":
        channels = shape[0] // 16
        array = array.reshape(16, -1, array.shape[1])[:, :channels].reshape(16 * channels, -1)
    return array[tuple(slice(size) for size in shape)]


def weights_for(model, name, chosen):
    """The weights that a member's layer has in the super-net: of its own variant, where an argument has several."""
    names = {layer.name for layer in model.layers}
    variant = next((f"{name}_{at + 1}" for point, at in chosen.items() if point == f"{name}.kernel_size"), name)
    return model.get_layer(variant if variant in names else name).get_weights()


@pytest.mark.parametrize(
    "mutators",
    [
        [FILTERS],
        [FILTERS, UNITS],
        [FILTERS, DROPOUT, times("conv", 1, 2, 3), AVERAGE, times("hidden", 1, 2), UNITS],
        [times("hidden", 1, 2, 3), UNITS, ACTIVATION],
        [KERNEL, AVERAGE],
        [NORMALIZED, times("hidden", 1, 2)],
        [FILTERS, SIGMOID],
        [TWO, AVERAGE, FILTERS],
        [FILTERS, NORMALIZED_WIDTHS, times("conv", 1, 2)],
    ],
    ids=lambda mutators: ", ".join(m["change"] for m in mutators),
)
def test_each_path_computes_what_its_member_does(mutators):
    from mop_udf.training import models
    from mop_udf.training import super_net as layers

    space, net = net_of(*mutators)
    model = models.build(models.normalise(net.architecture), 1)
    at, x = layers.path_position(model), np.random.default_rng(0).random((5, 8, 8, 2), "f4")
    draw = np.random.default_rng(2)
    weights = [draw.uniform(0.1, 1, w.shape).astype("f4") if w.ndim == 1 else w for w in model.get_weights()]
    numbers = Random(1).sample(range(space.size), min(space.size, 10))
    for member in map(space.member, numbers):
        weights[at] = np.array(net.path(member.chosen), "f4")
        model.set_weights(weights)
        alone = models.build(models.normalise(member.architecture), 0)
        for own in alone.layers:
            if own.weights:
                found = weights_for(model, own.name, member.chosen)
                own.set_weights([slices(own.name, a, w.shape) for a, w in zip(found, own.weights)])
        given = [np.asarray(one(x, training=False)) for one in (model, alone)]
        np.testing.assert_allclose(*given, atol=1e-6, err_msg=str(member.choices))


def test_training_draws_each_path_equally_often_and_closed_points_have_no_option():
    from mop_udf.training import models
    from mop_udf.training.super_net import Paths

    space, net = net_of(FILTERS, times("hidden", 1, 2), UNITS)
    model = models.build(models.normalise(net.architecture), 1)
    (paths,) = (layer for layer in model.layers if isinstance(layer, Paths))
    x = np.zeros((3, 8, 8, 2), "f4")
    drawn = [np.asarray(paths(x, training=True)) for _ in range(600)]
    assert all((one == one[0]).all() for one in drawn), "the rows of a mini-batch take the same path"
    found = [tuple(one[0].astype(int).tolist()) for one in drawn]
    names = [point.name for point in net.points]
    assert names == ["conv.filters", "times hidden", "hidden.units", "hidden_2.units"]
    assert all((one[3] == -1) == (one[1] == 0) for one in found)
    counts = {one: found.count(one) for one in set(found)}
    assert len(counts) == space.size == 18
    for option in range(3):
        assert 150 < sum(one[0] == option for one in found) < 250
    again = models.build(models.normalise(net.architecture), 1)
    (other,) = (layer for layer in again.layers if isinstance(layer, Paths))
    second = [tuple(np.asarray(other(x, training=True))[0].astype(int).tolist()) for _ in range(20)]
    assert second == found[:20], "the seed of the weights decides the paths"


def changes(net, layer):
    """Which numbers of each weight of a layer change, for each of twelve mini-batches."""
    import keras

    from mop_udf.training import models

    model = models.build(models.normalise(net.architecture), 1)
    model.compile(keras.optimizers.SGD(0.1), "categorical_crossentropy")
    x, y = np.random.default_rng(0).random((8, 8, 8, 2), "f4"), np.eye(10, dtype="f4")[np.arange(8)]
    for _ in range(12):
        before = model.get_layer(layer).get_weights()
        model.train_on_batch(x, y)
        yield [a != b for a, b in zip(before, model.get_layer(layer).get_weights())]


def test_the_last_channels_of_a_narrow_member_get_no_gradient():
    seen = set()
    for kernel, _ in changes(net_of({**FILTERS, "choices": [4, 8]})[1], "conv"):
        channels = kernel.any(axis=(0, 1, 2))
        assert channels[:4].any()
        seen.add(bool(channels[4:].any()))
    assert seen == {True, False}


def test_a_narrow_member_leaves_the_averages_of_the_last_channels():
    always = {"change": "insert", "match": "conv", "choices": [{"class": "BatchNormalization"}]}
    seen = set()
    for _, _, mean, variance in changes(net_of({**FILTERS, "choices": [4, 8]}, always)[1], "conv_after"):
        assert mean.any() and variance.any() and mean[4:].any() == variance[4:].any()
        seen.add(bool(mean[4:].any()))
    assert seen == {True, False}


@pytest.mark.parametrize(
    "mutators, layer",
    [
        ([NORMALIZED], "hidden_after"),
        ([FILTERS, NORMALIZED_WIDTHS], "conv_after"),
        ([{**AVERAGE, "choices": ["keep", [{"class": "MaxPooling2D"}, {"class": "BatchNormalization"}]]}], "pool_2"),
        (
            [{"change": "value", "match": "hidden_after", "argument": "momentum", "choices": [0.9, 0.5]}],
            "hidden_after_1",
        ),
    ],
    ids=("inserted", "with widths", "second of a branch", "variant"),
)
def test_a_path_without_a_batch_normalization_leaves_its_averages(mutators, layer):
    base = CNN if layer != "hidden_after_1" else with_normalization()
    seen = set()
    for *_, mean, variance in changes(net_of(*mutators, base=base)[1], layer):
        assert mean.any() == variance.any()
        seen.add(bool(mean.any()))
    assert seen == {True, False}


def with_normalization():
    layers = json.loads(CNN)["config"]["layers"]
    at = next(at for at, one in enumerate(layers) if one["config"]["name"] == "hidden")
    made = json.loads(CNN)
    made["config"]["layers"].insert(at + 1, layer("BatchNormalization", name="hidden_after"))
    return json.dumps(made)


@pytest.mark.parametrize(
    "mutators",
    [
        [{**ACTIVATION, "choices": ["relu", "exponential"]}],
        [
            {
                "change": "insert",
                "match": "hidden",
                "choices": [None, {"class": "Activation", "activation": "exponential"}],
            }
        ],
    ],
    ids=("argument", "layer"),
)
def test_a_branch_that_overflows_spoils_only_its_own_path(mutators):
    import tensorflow as tf

    from mop_udf.training import models
    from mop_udf.training import super_net as layers

    space, net = net_of(*mutators)
    model = models.build(models.normalise(net.architecture), 1)
    weights = [100 * abs(w) for w in model.get_weights()]
    at, x = layers.path_position(model), np.ones((4, 8, 8, 2), "f4")
    finite = []
    for number in range(space.size):
        weights[at] = np.array(net.path(space.member(number).chosen), "f4")
        model.set_weights(weights)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        finite.append(all(np.isfinite(g).all() for g in gradients if g is not None) and bool(np.isfinite(loss)))
    assert finite == [True, False]


def test_channels_that_overflow_are_cut_off():
    from mop_udf.training.super_net import PathWidth

    values, paths = np.array([[1.0, np.inf, np.nan]], "f4"), np.array([[0.0]], "f4")
    assert np.asarray(PathWidth(0, [1, 3])([values, paths])).tolist() == [[1, 0, 0]]


def test_many_widths_of_a_wide_layer_take_little_memory():
    import tracemalloc

    from mop_udf.training.super_net import PathWidth

    widths, values = list(range(1, 401)), np.ones((3, 20_000), "f4")
    made = PathWidth(1, widths)
    paths = np.array([[0, 0], [0, 399], [0, -1]], "f4")
    tracemalloc.start()
    try:
        shown = np.asarray(made([values, paths]))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20, "a table of widths x channels"
    finally:
        tracemalloc.stop()
    assert shown.sum(1).tolist() == [1, 400, 20_000] and shown[1, :400].all()
