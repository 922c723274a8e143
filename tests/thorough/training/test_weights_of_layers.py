"""Every layer that may be loaded computes with the weights that the model has now, as Keras does after loading."""

import os

import numpy as np
import pytest

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

# (Keras on TensorFlow, when numpy asks it for an array)
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")
COMPILE = {
    "loss": "mean_squared_error",
    "optimizer": "SGD",
    "optimizer_args": {"learning_rate": 0.01},
    "metrics": [],
    "weighted_metrics": None,
    "loss_weights": None,
}

# calls of Keras' layers, by the shape of their input
VECTOR = """
Activation('relu'); ActivityRegularization(); AlphaDropout(0.5); BatchNormalization(); CategoryEncoding(4);
Dense(3); Dropout(0.5); ELU(); GaussianDropout(0.5); GaussianNoise(0.1); Identity(); LayerNormalization();
LeakyReLU(); Masking(); Normalization(); PReLU(); RMSNormalization(); ReLU(); RepeatVector(2); Rescaling(0.5);
Reshape((2, 2)); Softmax(); SpectralNormalization(Dense(3)); UnitNormalization(); Embedding(9, 3)
"""
SEQUENCE = """
AveragePooling1D(2); Bidirectional(GRU(3)); Conv1D(3, 2); Conv1DTranspose(3, 2); Cropping1D(1);
EinsumDense('abc,cd->abd', (None, 3)); Flatten(); GRU(3); GlobalAveragePooling1D(); GlobalMaxPooling1D();
GroupNormalization(2); LSTM(3); MaxPooling1D(2); Normalization(); Permute((2, 1)); RNN(LSTMCell(3));
SeparableConv1D(3, 2); SimpleRNN(3); SpatialDropout1D(0.5); TimeDistributed(Normalization()); UpSampling1D(2);
ZeroPadding1D(1)
"""
PICTURE = """
AveragePooling2D(2); CenterCrop(3, 3); Conv2D(3, 2); Conv2DTranspose(3, 2); ConvLSTM1D(3, 2); Cropping2D(1);
DepthwiseConv2D(2); GlobalAveragePooling2D(); GlobalMaxPooling2D(); MaxPooling2D(2); Normalization();
RandomBrightness(0.2); RandomContrast(0.2); RandomCrop(3, 3); RandomFlip(); RandomRotation(0.2);
RandomTranslation(0.2, 0.2); RandomZoom(0.2); Resizing(3, 3); SeparableConv2D(3, 2); SpatialDropout2D(0.5);
UpSampling2D(2); ZeroPadding2D(1)
"""
VOLUME = """
AveragePooling3D(2); Conv3D(3, 2); Conv3DTranspose(3, 2); ConvLSTM2D(3, 2); Cropping3D(1); GlobalAveragePooling3D();
GlobalMaxPooling3D(); MaxPooling3D(2); Normalization(); SpatialDropout3D(0.5); UpSampling3D(2); ZeroPadding3D(1)
"""
SHAPES = {(4,): VECTOR, (6, 4): SEQUENCE, (6, 6, 4): PICTURE, (4, 6, 6, 2): VOLUME}
SHAPES = {
    shape: {call.split("(")[0].strip(): call.strip() for call in text.split(";")} for shape, text in SHAPES.items()
}
PAIRS = "Add Average Concatenate Maximum Minimum Multiply Subtract AdditiveAttention Attention".split()
# these are parts of other layers, or are tried below
OTHERS = set(
    "InputLayer Dot MultiHeadAttention GroupQueryAttention GRUCell LSTMCell SimpleRNNCell StackedRNNCells "
    "DepthwiseConv1D ConvLSTM3D LayerScale CustomScaleLayer".split()
)


def model_of(shape, kinds):
    """A model of one input whose outputs are those of all layers, each made a vector of one number."""
    import keras

    x = keras.Input(shape)
    outputs = []
    for name, call in kinds.items():
        y = eval(call, vars(keras.layers))(
            keras.ops.cast(x > 0.5, "int32") if name in ("Embedding", "CategoryEncoding") else x
        )
        outputs.append(keras.layers.Reshape((-1,))(y))
    if len(shape) == 2:
        k = keras.layers
        outputs += [k.Reshape((-1,))(getattr(k, name)()([x, x * 2])) for name in PAIRS]
        outputs += [
            k.Reshape((-1,))(y)
            for y in (
                k.Dot(2)([x, x]),
                k.MultiHeadAttention(2, 3)(x, x),
                k.GroupQueryAttention(3, 2, 1)(x, x),
                k.DepthwiseConv1D(2)(x),
                k.RNN([k.LSTMCell(3), k.GRUCell(2), k.SimpleRNNCell(2)])(x),
            )
        ]
    if len(shape) == 3:
        outputs.append(
            keras.layers.Reshape((-1,))(
                keras.Sequential(  # within a model, and frozen
                    [keras.layers.Normalization(), keras.layers.Dense(2)], name="inner"
                )(x)
            )
        )
    return keras.Model(x, keras.layers.Concatenate()(outputs))


def randomised(model, seed):
    """Random weights of the model's shapes, all positive: some are variances."""
    random = np.random.default_rng(seed)
    return [random.uniform(0.2, 2.0, w.shape).astype(w.dtype) for w in model.weights]


def loaded_by_keras(model, weights, path):
    """The model with these weights as Keras' own loading gives it."""
    import keras

    model.set_weights(weights)
    model.save(path)
    return keras.models.load_model(path)


def test_every_layer_that_may_be_loaded_is_tried():
    from mop_udf.architecture.architecture_classes import LAYERS

    tried = {name for kinds in SHAPES.values() for name in kinds}
    assert tried | set(PAIRS) | OTHERS == LAYERS


@pytest.mark.parametrize("shape", SHAPES)
def test_layers_compute_with_the_weights_that_the_model_has_now(shape, tmp_path):
    import keras

    from mop_udf.kernels.autotuner_memory import AutotunerMemory
    from mop_udf.training import compiled_model, evaluation, models

    model = model_of(shape, SHAPES[shape])
    text = model.to_json()
    x = np.random.default_rng(0).uniform(0, 1, (5, *shape)).astype("f4")
    compiled = compiled_model.CompiledModel(text, COMPILE, {}, lambda *_: AutotunerMemory(), "name", seed=1)
    plain = models.build(models.normalise(text), 0)
    from mop_udf.kernels.forward import Forward

    forwards = Forward(plain), Forward(compiled.model)
    for seed in (1, 2):  # the second time the compiled functions are there
        weights = randomised(model, seed)
        wanted = loaded_by_keras(model, weights, tmp_path / "model.keras").predict(x, verbose=0)
        plain.set_weights(weights)
        compiled.weights.put(weights)
        for forward in forwards:
            assert np.allclose(forward.predict((x,))[0], wanted, rtol=1e-4, atol=1e-4)
        sums = evaluation.Evaluation(compiled, weights, 1)
        sums.add((x, wanted))
        assert sums.report()["loss"] < 1e-6
    keras.backend.clear_session()
