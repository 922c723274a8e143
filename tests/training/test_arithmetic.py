"""The arithmetic of nets counts the parameters that Keras counts."""

import json

import pytest

from mop_udf.architecture import architecture
from pg_mop.plan.arithmetic import Arithmetic
from support.workload import layer, sequential


def arithmetic(text):
    return Arithmetic.of(architecture.check(text))


NETS = {
    "convolutions": sequential(
        "cnn",
        [28, 28, 3],
        layer("Conv2D", name="a", filters=8, kernel_size=[3, 3], padding="same", activation="relu"),
        layer("MaxPooling2D", name="b", pool_size=[2, 2]),
        layer("DepthwiseConv2D", name="c", kernel_size=[3, 3], strides=[2, 2]),
        layer("SeparableConv2D", name="d", filters=5, kernel_size=[2, 2]),
        layer("BatchNormalization", name="e"),
        layer("Conv2DTranspose", name="f", filters=4, kernel_size=[2, 2], strides=[2, 2]),
        layer("Flatten", name="g"),
        layer("Dense", name="h", units=10),
    ),
    "recurrent": sequential(
        "rnn",
        [12],
        layer("Embedding", name="a", input_dim=50, output_dim=6),
        layer("LSTM", name="b", units=7, return_sequences=True),
        layer("GRU", name="c", units=5, return_sequences=True),
        layer("SimpleRNN", name="d", units=4),
        layer("LayerNormalization", name="e"),
        layer("Dense", name="f", units=2, use_bias=False),
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_parameters_are_those_that_keras_counts(name):
    import keras

    model = keras.models.model_from_json(json.dumps(architecture.check(NETS[name])))
    found = arithmetic(NETS[name])
    assert found.parameters == model.count_params() and found.unknown == set()


def test_parameters_of_a_functional_model_are_those_that_keras_counts():
    import keras

    entry = keras.Input([6])
    left, right = keras.layers.Dense(5, "relu")(entry), keras.layers.Dense(3)(entry)
    both = keras.layers.Concatenate()([left, right])
    inner = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    model = keras.Model(entry, keras.layers.Add()([inner(both), keras.layers.Dense(4)(right)]))
    found = arithmetic(model.to_json())
    assert found.parameters == model.count_params() and found.unknown == set()
