"""Models of keras.applications are checked, built, and give what plain Keras gives; a frozen one is a prefix."""

import os

import pytest

from support.built import assert_same
from support.frozen import model, parts

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

APPLICATIONS = {
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "EfficientNetB0": 32,
    "ResNet50": 32,
    "DenseNet121": 32,
    "Xception": 71,
    "InceptionV3": 75,
    "NASNetMobile": 32,
    "VGG16": 32,
    "ConvNeXtTiny": 32,
}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_models_of_keras_applications(name):
    import keras

    side = APPLICATIONS[name]
    assert_same(getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=3), [[3]])
    keras.backend.clear_session()


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
