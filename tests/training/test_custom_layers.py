"""Layers, losses and metrics with code: named in architectures, found among superusers' objects alone, as in plain Keras."""

import json
import os

import numpy as np
import pytest

from mop_udf.architecture import architecture
from mop_udf.architecture.architecture import ArchitectureError, custom_classes, custom_name
from support.custom_code import LAYER, made, pickle, with_scale
from support.workload import layer

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


def check(text, custom=None):
    return architecture.check(text, custom=custom)


CODE = (
    LAYER
    + """
class Half(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1) / 2

class Worst(keras.metrics.Metric):
    pass

def absolute(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)
"""
)


@pytest.fixture(scope="module")
def pickles():
    return {name: pickle(name, CODE) for name in ("Scale", "Half", "Worst", "absolute")}


def net(class_name="Scale", **more):
    return with_scale(class_name, **more)


# --- architectures ----------------------------------------------------------------------------------------------------


def test_a_custom_layer_is_one_of_the_object_tables_names():
    checked = check(net(), {"Scale": "abc"})
    found = next(one for one in checked["config"]["layers"] if one["class_name"] == "Scale")
    assert found["module"] is None and found["registered_name"] == custom_name("Scale", "abc")
    assert found["config"] == {"name": "scale", "start": 2.0} and custom_classes(checked) == ["Scale"]
    assert custom_classes(check(net().replace("Scale", "Dropout").replace('"start"', '"rate"'))) == []
    # what to_json of a notebook's class writes
    assert check(net(module="__main__", registered_name="Custom>Scale"), {"Scale": "abc"}) == checked
    nested = json.loads(net())
    nested["config"]["layers"][1] = layer("TimeDistributed", name="t", layer={"class_name": "Scale", "config": {}})
    assert custom_classes(check(nested, {"Scale": "x"})) == ["Scale"]


ATTACKS = {
    "a name that is not in the table": ({}, {"Other": "x"}),
    "no table at all": ({}, None),
    "another case": ({}, {"scale": "x"}),
    "a module of Keras": ({"module": "keras.layers"}, {"Scale": "x"}),
    "a module of TensorFlow": ({"module": "tensorflow.keras.layers"}, {"Scale": "x"}),
    "a path to a name": ({"class_name": "os.Scale"}, {"Scale": "x", "os.Scale": "x"}),
    "a package of the registry": ({"class_name": "Custom>Scale"}, {"Scale": "x", "Custom>Scale": "x"}),
    "Lambda in the table": ({"class_name": "Lambda"}, {"Lambda": "x"}),
    "a layer of other frameworks": ({"class_name": "TFSMLayer"}, {"TFSMLayer": "x"}),
    "a module that is no text": ({"module": ["os"]}, {"Scale": "x"}),
    "a class that is no text": ({"class_name": {"Scale": 1}}, {"Scale": "x"}),
    "Lambda within": (
        {"config": {"inner": {"class_name": "Lambda", "module": "keras.layers", "config": {}}}},
        {"Scale": "x"},
    ),
    "an object of a module within": ({"config": {"inner": [{"class_name": "system", "module": "os"}]}}, {"Scale": "x"}),
    "a custom layer in a place for plain data": (
        {"config": {"inner": {"class_name": "Scale", "config": {}}}},
        {"Scale": "x"},
    ),
    "our own mark": ({"class_name": "system", "registered_name": custom_name("system", "x")}, {"Scale": "x"}),
    "an activation of that name": ({"class_name": "Activation", "config": {"activation": "Scale"}}, {"Scale": "x"}),
    "no config": ({"config": None}, {"Scale": "x"}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks(attack):
    changed, names = ATTACKS[attack]
    with pytest.raises(ArchitectureError):
        check(net(**changed), names)


def test_a_name_of_keras_stays_keras_own():
    text = net(class_name="Dropout", config={"name": "d", "rate": 0.5})
    assert (
        check(text, {"Dropout": "x", "Dense": "y"}) == check(text)
        and custom_classes(check(text, {"Dropout": "x"})) == []
    )
    assert {"Sequential", "Model", "Functional"} & architecture.LAYERS == set()
    whole = json.loads(text)
    assert check(whole, {"Sequential": "x"}) == check(whole), "nor is a model"


# --- in the trainer ---------------------------------------------------------------------------------------------------


def compiled(pickles, text, loss="mse", metrics=(), seed=5):
    from mop_udf.kernels.autotuner_memory import AutotunerMemory
    from mop_udf.params import params
    from mop_udf.training.compiled_model import CompiledModel

    parameters = params.parse_compile_params(f"loss='{loss}', optimizer='SGD(lr=0.1)', metrics={list(metrics)!r}")
    return CompiledModel(text, parameters, pickles, lambda architecture, part: AutotunerMemory(), "net", seed)


def test_a_model_with_a_custom_layer_is_that_of_plain_keras(pickles):
    import keras

    scale = made(CODE)["Scale"]
    ours = compiled({"Scale": pickles["Scale"]}, net())
    plain = keras.Sequential(
        [keras.Input([4]), keras.layers.Dense(6, activation="relu"), scale(start=2.0), keras.layers.Dense(3)]
    )
    plain.set_weights(ours.model.get_weights())
    plain.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(8, 4)).astype("f4"), draw.normal(size=(8, 3)).astype("f4")
    for _ in range(3):
        plain.train_on_batch(x, y)
        ours.model.train_on_batch(x, y)
    for one, other in zip(plain.get_weights(), ours.model.get_weights(), strict=True):
        assert np.array_equal(one, other)
    assert not np.array_equal(ours.model.get_layer("scale").get_weights()[0], np.full(6, 2.0)), "it has learned"
    state = b"".join(ours.save())
    ours.start(7)
    ours.load(state)
    assert np.array_equal(plain.get_weights()[2], ours.model.get_layer("scale").get_weights()[0])


def test_two_versions_of_a_class_are_two_classes(pickles):
    other = pickle("Scale", LAYER.replace("inputs * self.scale", "inputs * self.scale + 1"))
    one, two = compiled({"Scale": pickles["Scale"]}, net()), compiled({"Scale": other}, net())
    x = np.ones((2, 4), "f4")
    assert one.architecture != two.architecture
    assert not np.array_equal(one.model(x), two.model(x))
    again = compiled({"Scale": pickles["Scale"]}, net())
    assert np.array_equal(one.model(x), again.model(x))


def test_losses_may_be_classes(pickles):
    import keras

    from mop_udf.training import models

    text = net(class_name="Dropout", config={"name": "d", "rate": 0.0})
    ours = compiled({name: pickles[name] for name in ("Half", "absolute")}, text, "Half", ["absolute"])
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(8, 4)).astype("f4"), draw.normal(size=(8, 3)).astype("f4")
    predicted = np.asarray(ours.model(x))
    found = ours.score([len(x), *ours.forward.evaluate((x, y), 1)])
    assert found["loss"] == pytest.approx(float(np.mean((predicted - y) ** 2)) / 2, rel=1e-5)
    assert found["metrics"]["absolute"] == pytest.approx(float(np.abs(predicted - y).mean()), rel=1e-5)
    plain = models.build(ours.architecture, 1)
    plain.set_weights(ours.model.get_weights())
    plain.compile(optimizer=keras.optimizers.SGD(0.1), loss=made(CODE)["Half"]())
    plain.train_on_batch(x, y)
    ours.model.train_on_batch(x, y)
    assert np.allclose(plain.get_weights()[0], ours.model.get_weights()[0], atol=1e-7)


PLAIN = net(class_name="Dropout", config={"rate": 0.1})


@pytest.mark.parametrize(
    "text,loss,metrics,names,problem",
    [
        (net(), "mse", [], "", "layer class 'Scale' may not be loaded: .*; a layer with code needs an object table"),
        (net(class_name="absolute"), "mse", [], "absolute", "'absolute' of the object table is no class of layers"),
        (net(class_name="Half"), "mse", [], "Half", "'Half' of the object table is no class of layers"),
        (net(config={"name": "s", "stop": 1}), "mse", [], "Scale", "Keras refuses the architecture"),
        (net(), "Scale", [], "Scale", "the custom object 'Scale' is no loss but the class Scale"),
        (PLAIN, "mse", ["Worst"], "Worst", "the custom object 'Worst' is no metric but the class Worst"),
    ],
)
def test_what_is_no_layer_loss_or_metric_is_refused(pickles, text, loss, metrics, names, problem):
    from mop_udf.training.models import ConfigurationError

    with pytest.raises(ConfigurationError, match=problem):
        compiled({name: pickles[name] for name in names.split()}, text, loss, metrics)


def test_a_custom_layer_above_the_memory_limit_is_refused_before_it_is_made(pickles, monkeypatch):
    from mop_udf.training import sizes
    from mop_udf.training.models import ConfigurationError

    monkeypatch.setattr(sizes, "limit_mb", 1)
    with pytest.raises(ConfigurationError, match="more than pg_mop.max_model_mb allows"):
        compiled({"Scale": pickles["Scale"]}, net().replace('"units": 6', '"units": 900000'))
