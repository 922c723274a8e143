"""Nets in NumPy (inference/forward.py) give what Keras gives."""

import json
import random

import keras
import numpy as np
import pytest
from keras import layers

from mop_udf import state
from mop_udf.architecture import architecture
from mop_udf.architecture.architecture_classes import ACTIVATIONS as ALL_ACTIVATIONS
from pg_mop.inference import ensemble, forward
from pg_mop.inference.activations import ACTIVATIONS
from pg_mop.plan import nets

# threshold needs arguments, which a string cannot give; Keras' sparsemax is not that of its paper
NOT_COMPUTED = {"threshold", "sparsemax"}


def compare(model, *arrays):
    """Assert that a net gives the outputs of a Keras model whose weights are random."""
    numbers = np.random.default_rng(7)
    # (variances and the like must be positive)
    weights = [
        numbers.uniform(0.1, 1, w.shape).astype(w.dtype) * numbers.choice([1, 1, -1]) for w in model.get_weights()
    ]
    # (sums of hundreds of products would lose digits, and saturate a softmax)
    weights = [w / np.sqrt(w.shape[0]).astype(w.dtype) if w.ndim > 1 else w for w in weights]
    weights = [abs(w) if "variance" in v.path or "count" in v.path else w for w, v in zip(weights, model.weights)]
    model.set_weights(weights)
    for layer in model.layers:
        if isinstance(layer, layers.Normalization) and layer.input_mean is None:
            layer.finalize_state()  # (as mop_udf/training/models.py)
    text = architecture.check(json.loads(model.to_json()))
    net = forward.compiled(text, state.weights_to_bytes(weights))
    wanted = model.predict(list(arrays) if len(arrays) > 1 else arrays[0], verbose=0)
    wanted = wanted if isinstance(wanted, list) else [wanted]
    given = net(arrays)
    assert [a.shape for a in given] == [w.shape for w in wanted]
    for one, other in zip(given, wanted):
        assert np.isclose(one, other, rtol=2e-5, atol=2e-6).all(), np.abs(one - other).max()


def rows(*shape, count=9, seed=1):
    return np.random.default_rng(seed).normal(0, 2, (count, *shape)).astype("f4")


VECTOR = {
    "Dense": lambda: layers.Dense(4, activation="tanh"),
    "Dense without bias": lambda: layers.Dense(3, use_bias=False),
    "Normalization that is adapted": lambda: layers.Normalization(axis=-1),
    "Normalization": lambda: layers.Normalization(axis=-1, mean=[1.0] * 6, variance=[4.0] * 6),
    "BatchNormalization": layers.BatchNormalization,
    "BatchNormalization without scale": lambda: layers.BatchNormalization(scale=False, epsilon=0.1),
    "LayerNormalization": layers.LayerNormalization,
    "LayerNormalization without center": lambda: layers.LayerNormalization(center=False, epsilon=0.1),
    "Rescaling": lambda: layers.Rescaling(2.0, offset=-1.0),
    "UnitNormalization": layers.UnitNormalization,
    "Reshape": lambda: layers.Reshape((2, -1)),
    "Dropout": lambda: layers.Dropout(0.5),
    "GaussianNoise": lambda: layers.GaussianNoise(1.0),
    "Activation": lambda: layers.Activation("swish"),
    "ReLU": lambda: layers.ReLU(max_value=1.5, negative_slope=0.1, threshold=0.5),
    "LeakyReLU": layers.LeakyReLU,
    "PReLU": layers.PReLU,
    "ELU": lambda: layers.ELU(alpha=0.7),
    "Softmax": layers.Softmax,
}


@pytest.mark.parametrize(
    "arguments", [{}, {"threshold": 1.0}, {"max_value": 1.5, "negative_slope": 0.2, "threshold": 0.5}]
)
def test_relu_at_its_edges(arguments):
    edges = [0, -0.0, 0.5, 1, 1.5, np.nextafter(np.float32(1), np.float32(2)), -1, 1e38, -1e38, np.inf]
    edges += [] if "negative_slope" in arguments else [-np.inf]
    compare(keras.Sequential([layers.Input((1,)), layers.ReLU(**arguments)]), np.array(edges, "f4").reshape(-1, 1))


@pytest.mark.parametrize("name", VECTOR)
def test_a_layer_of_vectors(name):
    compare(keras.Sequential([keras.Input((6,)), VECTOR[name](), layers.Dense(2)]), rows(6))


MATRIX = {
    "Dense": lambda: layers.Dense(4, activation="relu"),
    "BatchNormalization": layers.BatchNormalization,
    "LayerNormalization": layers.LayerNormalization,
    "PReLU": lambda: layers.PReLU(shared_axes=[1]),
    "Cropping1D": lambda: layers.Cropping1D((1, 2)),
    "SpatialDropout1D": lambda: layers.SpatialDropout1D(0.5),
    "Softmax": layers.Softmax,
}


@pytest.mark.parametrize("name", MATRIX)
def test_a_layer_of_matrices(name):
    compare(keras.Sequential([keras.Input((5, 3)), MATRIX[name](), layers.Flatten(), layers.Dense(2)]), rows(5, 3))


def test_embeddings():
    codes = np.random.default_rng(3).integers(0, 11, (9, 4)).astype("f4")
    compare(keras.Sequential([keras.Input((4,)), layers.Embedding(11, 3), layers.Flatten(), layers.Dense(2)]), codes)


@pytest.mark.parametrize("name", ["Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract", "Concatenate"])
def test_a_layer_of_several_arrays(name):
    first, second = keras.Input((5,)), keras.Input((5,))
    merged = getattr(layers, name)()([first, second])
    compare(keras.Model([first, second], layers.Dense(2)(merged)), rows(5), rows(5, seed=2))


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_an_activation(name):
    compare(keras.Sequential([keras.Input((6,)), layers.Activation(name)]), rows(6))


def test_all_activations_of_keras_are_computed():
    assert set(ACTIVATIONS) == ALL_ACTIVATIONS - NOT_COMPUTED


@pytest.mark.parametrize("seed", range(4))
def test_weights_are_taken_in_keras_order(seed):
    """Graphs with branches of different depth: Keras sorts layers by depth, and not as they were made."""
    draw = random.Random(seed)
    ends = [keras.Input((draw.randint(2, 4),)) for _ in range(draw.randint(1, 3))]
    inputs = list(ends)
    for _ in range(draw.randint(3, 12)):
        if len(ends) > 1 and draw.random() < 0.4:
            made = layers.Concatenate()(draw.sample(ends, 2))
        else:
            kind = draw.choice([lambda: layers.Dense(draw.randint(2, 5), "tanh"), layers.LayerNormalization])
            made = kind()(draw.choice(ends))
        ends.append(made)
    loose = [layers.Dense(2)(end) for end in draw.sample(ends, min(3, len(ends)))]
    joined = layers.Concatenate()([*loose, *(layers.Dense(1)(one) for one in inputs)])
    model = keras.Model(inputs, [layers.Dense(3, "softmax")(joined), loose[0]])
    # (as from JSON: the order of a model's layers is that of the model which the JSON makes)
    compare(
        keras.models.model_from_json(model.to_json()), *(rows(*one.shape[1:], seed=i) for i, one in enumerate(inputs))
    )


@pytest.mark.parametrize("body", nets.BODIES)
def test_the_nets_of_mop_architecture(body):
    codes = [("Embedding", {"input_dim": 10, "output_dim": 6}), ("Flatten", {})]
    numbers = nets.Input("features", (4,), pieces=nets.Pieces(1, ((0.0, 1.0, 2.0), (0.0, 3.0))))
    text = nets.architecture([numbers, nets.Input("codes", (2,), codes)], [nets.Output("y", 3)], nets.BODIES[body])
    model = keras.models.model_from_json(json.dumps(architecture.check(text)))
    compare(model, rows(4), np.random.default_rng(3).integers(0, 10, (9, 2)).astype("f4"))


def test_an_ensemble_is_the_weighted_mean_of_its_members_and_has_their_weights():
    codes = [("Embedding", {"input_dim": 10, "output_dim": 6}), ("Flatten", {})]
    given = [nets.Input("features", (4,)), nets.Input("codes", (2,), codes)]
    made = [
        nets.architecture(given, [nets.Output("y", 3)], nets.BODIES[body]) for body in ("small", "residual", "linear")
    ]
    members = [architecture.check(text) for text in made]
    net = architecture.check(ensemble.joined(list(zip(members, (0.5, 0.2, 0.3)))))
    model = keras.models.model_from_json(json.dumps(net))
    arrays = rows(4), np.random.default_rng(3).integers(0, 10, (9, 2)).astype("f4")
    compare(model, *arrays)
    assert [net["config"]["layers"][place]["class_name"] for place in ensemble.members_of(net)] == ["Functional"] * 3
    assert not ensemble.members_of(members[0])
    models = [keras.models.model_from_json(json.dumps(member)) for member in members]
    weights = b"".join(state.weights_to_bytes(one.get_weights()) for one in models)
    mean = sum(one.predict(list(arrays), verbose=0) * weight for one, weight in zip(models, (0.5, 0.2, 0.3)))
    assert np.allclose(forward.compiled(net, weights)(arrays)[0], mean, atol=1e-6)


def test_a_model_within_a_model_takes_the_shapes_that_it_names():
    net = architecture.check(
        keras.Sequential([keras.Input((4,)), keras.Sequential([keras.Input((4,)), layers.Dense(2)])]).to_json()
    )
    assert forward.compiled(net, b"\0" * 40).shapes == [(2,)]
    net["config"]["layers"][0]["config"]["batch_shape"] = [None, 1]
    with pytest.raises(forward.Unsupported, match="other shapes"):
        forward.compiled(net, b"\0" * 40)


UNSUPPORTED = {
    "layer Conv1D": [keras.Input((5, 3)), layers.Conv1D(2, 2)],
    "layer GRU": [keras.Input((5, 3)), layers.GRU(2)],
    "dtype float16": [keras.Input((5,)), layers.Dense(2, dtype="float16")],
    "a mask": [keras.Input((5,)), layers.Embedding(9, 2, mask_zero=True), layers.GlobalAveragePooling1D()],
    "axis 1": [keras.Input((5, 3)), layers.BatchNormalization(axis=1)],
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_other_nets_are_refused(what):
    model = keras.Sequential(UNSUPPORTED[what])
    with pytest.raises(forward.Unsupported, match=what):
        forward.compiled(architecture.check(json.loads(model.to_json())), state.weights_to_bytes(model.get_weights()))


def test_a_layer_that_is_called_twice_and_other_weights_are_refused():
    entry, shared = keras.Input((3,)), layers.Dense(3)
    twice = keras.Model(entry, shared(shared(entry)))
    with pytest.raises(forward.Unsupported, match="several times"):
        forward.compiled(architecture.check(json.loads(twice.to_json())), b"")
    once = keras.Model(entry, layers.Dense(3)(entry))
    for data in (b"\0" * 44, b"\0" * 52):
        with pytest.raises(forward.Unsupported, match="other weights"):
            forward.compiled(architecture.check(json.loads(once.to_json())), data)


def test_nan_goes_through():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, "softmax")])
    net = forward.compiled(architecture.check(json.loads(model.to_json())), state.weights_to_bytes(model.get_weights()))
    (given,) = net([np.array([[1, np.nan, 2], [0, 1, 2]], "f4")])
    assert np.isnan(given[0]).all() and np.isfinite(given[1]).all()


def doubled(times):
    """The JSON of a net that joins an array to itself, again and again."""
    net = nets._Net()
    last = net.add("InputLayer", [], name="entry", batch_shape=[None, 4])
    for _ in range(times):
        last = net.add("Concatenate", [last, last])
    config = {"name": "net", "layers": net.layers, "input_layers": [["entry", 0, 0]], "output_layers": [[last, 0, 0]]}
    return {"class_name": "Functional", "config": config, "keras_version": "3.0.0"}


def test_a_net_of_few_weights_and_large_arrays_is_refused():
    """(A role may share a net that would fill the memory of another role's backend.)"""
    entry = keras.Input((4,))
    wide = layers.Reshape((1, 1032))(layers.Dense(1032)(entry))
    high = layers.Reshape((1032, 1))(layers.Dense(1032)(entry))
    models = [
        keras.Sequential([keras.Input((2048, 1)), layers.Dense(2048)]),
        keras.Model(entry, layers.Add()([wide, high])),
    ]
    cases = [(json.loads(model.to_json()), state.weights_to_bytes(model.get_weights())) for model in models]
    for text, data in [*cases, (doubled(40), b"")]:
        with pytest.raises(forward.Unsupported, match="elements a row"):
            forward.compiled(architecture.check(text), data)


def test_many_rows_are_computed_in_blocks(monkeypatch):
    monkeypatch.setattr(forward, "BLOCK_ELEMENTS", 40)
    compare(keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.Dense(2)]), rows(6, count=23))
