"""Kinds of models that people have: each is checked, built, and gives what plain Keras gives."""

import json
import os

import numpy as np
import pytest

from support.built import assert_same, functional

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")


def shortcut(x, k, ops):
    y = k.Dense(4)(x)
    return k.Softmax()((y + x) * 2 - ops.mean(y, axis=-1, keepdims=True) / 3 + np.arange(4, dtype="f4"))


def pieces(x, k, ops):
    first, second = ops.split(k.Dense(6)(x), 2, axis=-1)
    both = ops.concatenate([first[:, :2], ops.relu(second), x[..., None, 1]], axis=-1)
    return ops.einsum("ab,ab->ab", both, ops.where(both > 0, both, ops.cast(both < 0, "float32")))


OUTPUTS = {
    "pooled maps": (5, (8, 8, 3), lambda x, k, ops: k.Softmax()(k.GlobalAveragePooling2D()(k.Conv2D(5, 3)(x)))),
    "EinsumDense": (3, (4,), lambda x, k, ops: k.EinsumDense("ab,bc->ac", output_shape=3)(x)),
    "Concatenate": (7, (4,), lambda x, k, ops: k.Concatenate()([k.Dense(3)(x), x])),
    "Multiply": (4, (4,), lambda x, k, ops: k.Multiply()([k.Dense(4, "sigmoid")(x), x])),
    "Reshape and pooling": (2, (8,), lambda x, k, ops: k.GlobalMaxPooling1D()(k.Reshape((-1, 2))(k.Dense(12)(x)))),
    "Flatten": (6, (3, 2), lambda x, k, ops: k.Flatten()(k.Dense(2)(x))),
    "a model in a model": (3, (4,), lambda x, k, ops: functional((4,), lambda y, k, _: k.Dense(3)(y))(x)),
    "operators": (4, (4,), shortcut),
    "cut and put together": (6, (4,), pieces),
    "a matrix by a matrix": (3, (3, 4), lambda x, k, ops: ops.matmul(x, ops.transpose(x, (0, 2, 1)))[:, 0]),
    "statistics": (4, (5, 4), lambda x, k, ops: ops.max(k.Dense(4)(x), axis=1) - ops.std(x, axis=1)),
    "attention by hand": (
        4,
        (5, 4),
        lambda x, k, ops: ops.sum(
            ops.softmax(ops.matmul(k.Dense(4)(x), ops.swapaxes(x, 1, 2)) / np.sqrt(4.0)) @ x, axis=1
        ),
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_that_no_layer_with_units_makes(name):
    width, shape, call = OUTPUTS[name]
    assert_same(functional(shape, call), [[width]])


def test_a_model_as_the_first_layer():
    import keras

    from mop_udf.architecture import architecture, architecture_shapes

    first = functional((4,), lambda x, k, ops: k.Dense(3)(x) + 1)
    model = keras.Sequential([first, keras.layers.Dense(2)])
    assert_same(model, [[2]])
    assert architecture_shapes.input_shapes(architecture.check(model.to_json())) == [[4]]


def test_every_layer_draws_the_initial_weights_that_plain_keras_draws():
    """Also those that make layers of their own when they are built, and so draw their seeds then."""
    import keras

    k = keras.layers
    x, image, words = keras.Input((6, 4)), keras.Input((8, 8, 3)), keras.Input((5,))
    vectors = [
        k.GlobalAveragePooling1D()(k.MultiHeadAttention(2, 3, dropout=0.1)(k.Dense(4)(x), x)),
        k.GlobalAveragePooling1D()(k.GroupQueryAttention(3, 4, 2)(x, x)),
        k.Flatten()(k.Attention(use_scale=True)([x, x])),
        k.Flatten()(k.AdditiveAttention()([x, x])),
        k.Bidirectional(k.LSTM(3))(x),
        k.GRU(2, recurrent_dropout=0.1)(x),
        k.SimpleRNN(2)(x),
        k.RNN([k.LSTMCell(3), k.GRUCell(2)])(x),
        k.Flatten()(k.TimeDistributed(k.Dense(2))(x)),
        k.Flatten()(k.ConvLSTM1D(2, 2)(k.Reshape((3, 2, 4))(x))),
        k.Flatten()(k.Conv1D(2, 3)(x)),
        k.Flatten()(k.SpectralNormalization(k.Dense(2))(x)),
        k.Flatten()(k.LayerNormalization()(x)),
        k.Flatten()(k.SeparableConv1D(2, 3)(x)),
        k.Flatten()(k.EinsumDense("abc,cd->abd", output_shape=(6, 2))(x)),
        k.Flatten()(k.Conv2DTranspose(2, 3)(image)),
        k.Flatten()(k.DepthwiseConv2D(2)(image)),
        k.Flatten()(k.SeparableConv2D(2, 3)(k.BatchNormalization()(image))),
        k.Flatten()(k.PReLU()(image)),
        k.Flatten()(k.GroupNormalization(3)(image)),
        k.Flatten()(k.Embedding(10, 3)(words)),
        k.Flatten()(k.SpatialDropout2D(0.1)(k.RandomFlip()(image))),
        keras.Sequential([keras.Input((5,)), k.Dense(3, kernel_initializer="he_normal"), k.Dropout(0.2)])(words),
    ]
    assert_same(keras.Model([x, image, words], k.Dense(2)(k.Concatenate()(vectors))), [[2]])


@pytest.mark.parametrize(
    "call,said",
    [
        (
            lambda x, k, ops: k.LSTM(3, return_sequences=True)(x),
            'the architecture outputs [5, 3] for a row, but "t" has [3]',
        ),
        (lambda x, k, ops: k.Dense(3)(x), 'the architecture outputs [5, 3] for a row, but "t" has [3]'),
        (lambda x, k, ops: ops.mean(x, axis=(1, 2)), "an output of the architecture must have a known shape, not []"),
    ],
)
def test_an_output_of_another_shape_is_refused(call, said):
    from mop_udf.training import models

    model = functional((5, 4), call)
    with pytest.raises(models.ConfigurationError) as caught:
        models.check_outputs(model, {"widths": [3], "what": "classes", "table": "t"}, ["categorical_crossentropy"])
    assert str(caught.value) == said


def test_an_output_of_steps_suits_vectors_of_steps_and_class_numbers():
    from mop_udf.training import models

    model = functional((5, 4), lambda x, k, ops: k.Dense(3)(x))
    of_steps = {"widths": [3], "steps": [[5]], "what": "classes", "table": "t"}
    models.check_outputs(model, of_steps, ["categorical_crossentropy"])
    numbers = {"widths": [5], "what": "classes", "table": "t"}
    models.check_outputs(model, numbers, ["sparse_categorical_crossentropy"])
    with pytest.raises(models.ConfigurationError, match="outputs"):
        models.check_outputs(model, numbers, ["categorical_crossentropy"])


@pytest.mark.parametrize(
    "config,said",
    [
        ({"unitz": 3}, "Dense 'd': Unrecognized keyword arguments passed to Dense: {'unitz': 3}"),
        (
            {"units": -3},
            "Dense 'd': Received an invalid value for `units`, expected a positive integer. Received: units=",
        ),
        (
            {"kernel_initializer": {"class_name": "GlorotUniform", "config": {"sead": 3}}},
            "Dense 'd': GlorotUniform.__init__() got an unexpected keyword argument 'sead'",
        ),
        ({"dtype": "float99"}, "Dense 'd': Cannot convert 'float99' to a mixed precision DTypePolicy"),
        (
            {"activation": {"class_name": "ReLU", "config": {"maximum": 3}}},
            "ReLU: Unrecognized keyword arguments passed to ReLU: {'maximum': 3}",
        ),
    ],
)
def test_what_keras_refuses_is_named(config, said):
    from mop_udf.training import models

    text = json.dumps(
        {
            "class_name": "Sequential",
            "config": [
                {"class_name": "Dense", "config": {"name": "d", "units": 3, "batch_input_shape": [None, 4], **config}}
            ],
        }
    )
    with pytest.raises(models.ConfigurationError) as caught:
        models.build(models.normalise(text), 1)
    assert str(caught.value).startswith(f"Keras refuses the architecture: {said}")


def test_numbers_in_pieces_are_those_of_the_definition():
    import keras

    from mop_udf.architecture import architecture
    from mop_udf.training import models
    from pg_mop.plan import nets

    edges = ((-2.0, -1.0, 0.0, 3.0), (0.0, 1.0))
    given = nets.Input("features", (4,), pieces=nets.Pieces(1, edges))
    text = nets.architecture([given], [nets.Output("y")], nets.Body((), pieces=True))
    model = models.build(architecture.check(text), 1)
    joined = next(layer for layer in reversed(model.layers) if layer.__class__.__name__ == "Concatenate")
    rows = np.array([[9, -3, 0, 9], [9, -1.5, 1, 9], [9, 1.5, 0.5, 9], [9, 5, 2, 9]], "f4")
    made = keras.Model(model.inputs, joined.output).predict(rows, verbose=0)
    pieces = np.array(
        [
            [
                np.clip((x - a) / (b - a), 0, 1)
                for x, (a, b) in zip((row[1], row[2]) * 3, [(-2, -1), (0, 1), (-1, 0), (0, 1), (0, 3), (0, 1)])
            ]
            for row in rows
        ]
    )
    assert np.allclose(made, np.concatenate([rows, pieces], 1), atol=1e-5)
