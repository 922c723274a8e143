"""Models with a training step of their own: found among superusers' objects alone, and trained as plain Keras trains them."""

import os
import re

import dill
import numpy as np
import pytest

from mop_udf.architecture import architecture, architecture_shapes
from mop_udf.architecture.architecture import ArchitectureError, custom_classes, custom_model, custom_name
from support.cluster import ROOT
from support.custom_code import LAYER, MODEL, MODEL_FOR_JAX, functional, made, of_class, pickle, stepper, with_scale
from support.workload import dense, layer

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")
NET = dense(classes=3)


def check(text, custom=None, models=None):
    return architecture.check(text, custom=custom, custom_models=models)


# --- architectures ----------------------------------------------------------------------------------------------------


def test_a_custom_model_is_the_whole_model_of_its_kind():
    plain = check(NET)
    checked = check(of_class(NET, "Stepper"), {"Stepper": "abc"})
    assert checked == {**plain, "module": None, "registered_name": custom_name("Stepper", "abc")}
    assert custom_model(checked) == "Stepper" and custom_classes(checked) == ["Stepper"] and custom_model(plain) is None
    assert architecture_shapes.input_shapes(checked) == [[4]] and architecture_shapes.output_widths(checked) == [3]
    # what to_json of a notebook's class writes
    assert (
        check(of_class(NET, "Stepper", module="__main__", registered_name="Custom>Stepper"), {"Stepper": "abc"})
        == checked
    )
    both = check(of_class(with_scale(), "Stepper"), {"Stepper": "a", "Scale": "b"})
    assert custom_classes(both) == ["Scale", "Stepper"] and custom_model(both) == "Stepper"


def test_a_functional_model_may_be_custom():
    text = functional(layer("Dense", name="out", units=3))
    checked = check(of_class(text, "Stepper"), {"Stepper": "x"})
    assert checked["class_name"] == "Functional" and checked["config"] == check(text)["config"]
    assert custom_model(checked) == "Stepper"


ATTACKS = {
    "a name that is not in the table": (of_class(NET, "Stepper"), {"Other": "x"}),
    "no table": (of_class(NET, "Stepper"), None),
    "another case": (of_class(NET, "Stepper"), {"stepper": "x"}),
    "a module of Keras": (of_class(NET, "Stepper", module="keras.models"), {"Stepper": "x"}),
    "a path to a name": (of_class(NET, "os.Stepper", module="os"), {"Stepper": "x", "os.Stepper": "x"}),
    "a name with quotes": (of_class(NET, 'a"b'), {'a"b': "x"}),
    "a name with a digest": (of_class(NET, "Stepper@x"), {"Stepper@x": "x"}),
    "our own mark": (of_class(NET, "Sequential", registered_name=custom_name("system", "x")), {"Stepper": "x"}),
    "our own mark on a name": (of_class(NET, "system", registered_name=custom_name("Stepper", "x")), {"Stepper": "x"}),
    "no list of layers": (of_class(NET, "Stepper", config={"path": "/etc"}), {"Stepper": "x"}),
    "no config": (of_class(NET, "Stepper", config=None), {"Stepper": "x"}),
    "Lambda within": (of_class(with_scale("Lambda"), "Stepper"), {"Stepper": "x", "Lambda": "x"}),
    "a layer that is not in the table": (of_class(with_scale(), "Stepper"), {"Stepper": "x"}),
    "a custom model within another": (
        with_scale("Stepper", config={"layers": [layer("Dense", units=2)], "name": "x"}),
        {"Stepper": "x"},
    ),
    "a name of Keras' layers": (of_class(NET, "Dense"), {"Dense": "x"}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks(attack):
    text, names = ATTACKS[attack]
    with pytest.raises(ArchitectureError):
        check(text, names)


def test_a_custom_model_of_keras_name_stays_keras_own():
    assert check(NET, {"Sequential": "x", "Functional": "x", "Model": "x"}) == check(NET)


def test_a_trainer_tells_layers_from_models():
    with pytest.raises(ArchitectureError, match="'Stepper'"):
        check(of_class(NET, "Stepper"), {"Stepper": "x"}, {})
    with pytest.raises(ArchitectureError, match="'Scale'"):
        check(with_scale(), {}, {"Scale": "x"})


# --- in the trainer ---------------------------------------------------------------------------------------------------


def compiled(text, pickles, loss="mse", optimizer="Adam(learning_rate=0.05)", metrics=()):
    from mop_udf.kernels.autotuner_memory import AutotunerMemory
    from mop_udf.params import params
    from mop_udf.training.compiled_model import CompiledModel

    parameters = params.parse_compile_params(f"loss='{loss}', optimizer='{optimizer}', metrics={list(metrics)!r}")
    return CompiledModel(text, parameters, pickles, lambda architecture, part: AutotunerMemory(), "net", 5)


def rows(count=20):
    draw = np.random.default_rng(0)
    return draw.normal(size=(count, 4)).astype("f4"), draw.normal(size=(count, 3)).astype("f4")


def of_steps(code=MODEL, **more):
    return compiled(stepper(), {"Stepper": pickle("Stepper", code)}, **more)


def as_keras_trains(ours, passes):
    """The weights after `fit` of plain Keras, of a model of the same class with the same initial weights."""
    import keras

    from mop_udf.training import models

    net = models.build(architecture.check(stepper("Functional")), 0)
    plain = made(MODEL)["Stepper"](net.inputs, net.outputs)
    plain.set_weights(ours.model.get_weights())
    plain.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")
    x, y = rows()
    history = plain.fit(x, y, batch_size=8, epochs=passes, shuffle=False, verbose=0)
    return plain.get_weights(), history.history["loss"][-1]


@pytest.mark.parametrize("forced", [None, "plain", "loop", "xla", "vmap"])
def test_a_training_step_is_called_whatever_kernel_is_asked_for(forced):
    ours = of_steps()
    ours.check_trainable()
    expected, loss = as_keras_trains(ours, 3)
    reports = [ours.kernels.train([rows()], 20, 8, 1, forced=forced) for _ in range(3)]
    assert {report["kernel"] for report in reports} == {"plain"}
    for one, other in zip(expected, ours.model.get_weights(), strict=True):
        assert np.allclose(one, other, atol=1e-5)
    # (Keras weighs the short last batch as this step does)
    assert reports[-1]["loss"] == pytest.approx(loss, rel=1e-4)
    refused = ours.kernels.autotuner(8, forced).report()["refused"]
    assert refused["loop"] == "model class Stepper has a training step of its own: the kernel plain calls it"


def test_the_training_step_makes_a_difference():
    """The factor on the loss is in the step: plain stochastic gradient descent goes half as far."""
    optimizer = "SGD(learning_rate=0.1)"
    plain, half = compiled(stepper("Functional"), {}, optimizer=optimizer), of_steps(optimizer=optimizer)
    before = plain.model.get_weights()
    half.model.set_weights(before)
    for one in (plain, half):
        one.kernels.train([rows(8)], 8, 8, 1, forced="plain")
    for start, one, other in zip(before, plain.model.get_weights(), half.model.get_weights(), strict=True):
        assert np.allclose(other - start, (one - start) / 2, atol=1e-6)


def test_a_state_has_all_that_continued_training_needs():
    ours = of_steps()
    ours.kernels.train([rows()], 20, 8, 1)
    state = b"".join(ours.save())
    ours.kernels.train([rows()], 20, 8, 1)
    whole = [np.array(weight) for weight in ours.model.get_weights()]
    other = of_steps()
    other.start(99)
    other.load(state)
    other.kernels.train([rows()], 20, 8, 1)
    for one, again in zip(whole, other.model.get_weights(), strict=True):
        assert np.array_equal(one, again)


OWN_WEIGHT = """
import keras
import tensorflow as tf

class Counter(keras.Sequential):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def train_step(self, data):
        self.seen.assign_add(1.0)
        return super().train_step(data)
"""


def test_a_weight_of_the_class_itself_is_part_of_the_state():
    pickles = {"Counter": pickle("Counter", OWN_WEIGHT)}
    ours = compiled(of_class(NET, "Counter"), pickles)
    ours.check_trainable()
    ours.kernels.train([rows(24)], 24, 8, 1)
    assert float(ours.model.seen.numpy()) == 3
    state = b"".join(ours.save())
    ours.start(5)
    assert float(ours.model.seen.numpy()) == 0
    ours.load(state)
    assert float(ours.model.seen.numpy()) == 3


OWN_METRICS = """
import keras
import tensorflow as tf

class Tracked(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.own_loss = keras.metrics.Mean(name="loss")
        self.error = keras.metrics.MeanAbsoluteError(name="error")
        self.noise = keras.random.SeedGenerator(7)

    @property
    def metrics(self):
        return [self.own_loss, self.error]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return 2 * keras.ops.mean(keras.ops.square(y - y_pred))

    def train_step(self, data):
        x, y = data
        x = x + 0.1 * keras.random.normal(keras.ops.shape(x), seed=self.noise)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.own_loss.update_state(loss)
        self.error.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}
"""


def test_a_class_with_metrics_random_draws_and_a_loss_of_its_own():
    pickles = {"Tracked": pickle("Tracked", OWN_METRICS)}
    ours = compiled(stepper("Tracked"), pickles)
    ours.check_trainable()
    reports = [ours.kernels.train([rows(24)], 24, 8, 1) for _ in range(4)]
    assert reports[-1]["loss"] < reports[0]["loss"] and set(reports[0]["metrics"]) == {"error"}
    state = b"".join(ours.save())
    ours.kernels.train([rows(24)], 24, 8, 1)
    whole = [np.array(weight) for weight in ours.model.get_weights()]
    other = compiled(stepper("Tracked"), pickles)
    other.load(state)
    other.kernels.train([rows(24)], 24, 8, 1)
    for one, again in zip(whole, other.model.get_weights(), strict=True):
        assert np.array_equal(one, again), "the draws are part of the state"
    x, y = rows()
    found = ours.score([len(x), *ours.forward.evaluate((x, y), 1)])
    wanted = 2 * float(np.mean((np.asarray(ours.model(x)) - y) ** 2))
    assert found["loss"] == pytest.approx(wanted, rel=1e-5), "evaluations take the loss of the class"


def test_the_example_of_the_documents_trains():
    text = (ROOT / "docs/custom_code.md").read_text()
    (example,) = [
        block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if "class Distiller" in block
    ]
    names = made("import keras\nimport tensorflow as tf\n" + example)
    ours = compiled(names["model"].to_json(), {"Distiller": dill.dumps(names["Distiller"], recurse=True)})
    ours.check_trainable()
    reports = [ours.kernels.train([rows()], 20, 8, 1) for _ in range(3)]
    assert reports[-1]["loss"] < reports[0]["loss"] and {report["kernel"] for report in reports} == {"plain"}


TENSOR = "type('Tensor', (), {'__module__': 'torch'})()"  # (as PyTorch's classes look)
OPTIMIZER = "type('Adam', (type('Optimizer', (), {'__module__': 'torch.optim.optimizer'}),), {})()"


@pytest.mark.parametrize(
    "name,value,problem",
    [
        ("second", "keras.optimizers.SGD(0.1)", "an optimizer of its own in 'second': only the variables of the"),
        ("_second", "keras.optimizers.SGD(0.1)", "an optimizer of its own in '_second'"),
        ("opts", "[keras.optimizers.Adam()]", "an optimizer of its own in 'opts'"),
        ("opt", OPTIMIZER, "an optimizer of its own in 'opt'"),
        ("seen", "tf.Variable(0.0)", "a variable in 'seen' that is no part of a state"),
        ("seen", "{'a': [tf.Variable(0.0)]}", "a variable in 'seen' that is no part of a state"),
        ("tensor", TENSOR, "a variable in 'tensor' that is no part of a state"),
    ],
)
def test_what_no_state_keeps_is_refused(name, value, problem):
    from mop_udf.training.models import ConfigurationError

    text = OWN_WEIGHT.replace("Counter", "Kept")
    at = text.index("self.seen")
    rest = text[text.index("\n", at) :].replace("self.seen.assign_add(1.0)", "pass")
    ours = compiled(of_class(NET, "Kept"), {"Kept": pickle("Kept", f"{text[:at]}self.{name} = {value}{rest}")})
    with pytest.raises(ConfigurationError, match=f"model class Kept has {problem}"):
        ours.check_trainable()


def test_a_variable_in_a_layer_of_keras_is_refused():
    from mop_udf.training.models import ConfigurationError

    own = "def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)\n"
    own += "        self.layers[-1].secret = tf.Variable(0.0)"
    ours = of_steps(MODEL.replace("factor = 0.5", f"factor = 0.5\n\n    {own}"))
    with pytest.raises(
        ConfigurationError, match="layer 'out' of class Dense has a variable in 'secret' that is no part"
    ):
        ours.check_trainable()


DRAWN = "tf.cond(data[0][0, 0] > 9, lambda: 0.0, lambda: tf.random.uniform(()))"


@pytest.mark.parametrize(
    "step,problem",
    [
        (
            "gen = self.made[0].draw; noise = gen.normal(())",
            "uses the variable 'StateVar:0', which is no part of a state",
        ),
        ("noise = self.made[0].second.assign_add(1.0)", "uses the variable 'second:0', which is no part of a state"),
        ("noise = keras.random.normal(())", "random numbers by a function of Keras without seed=: .* seed=self.draws"),
        ("noise = tf.random.normal(())", "draws random numbers by TensorFlow's operation RandomStandardNormal"),
        (f"noise = {DRAWN}", "draws random numbers by TensorFlow's operation RandomUniform"),
    ],
)
def test_what_the_trace_of_a_step_shows_is_refused(step, problem):
    """Variables within objects, and draws whose state no unit keeps: resumed training would give other weights."""
    from mop_udf.training.models import ConfigurationError

    holder = (
        "type('Holder', (), {'second': tf.Variable(0.0, name='second'), 'draw': tf.random.Generator.from_seed(1)})()"
    )
    text = OWN_WEIGHT.replace("Counter", "Kept").replace(
        "super().__init__", f"self.made = ({holder},)\n        super().__init__"
    )
    text = text.replace("self.seen.assign_add(1.0)", f"{step}; self.seen.assign_add(noise)")
    ours = compiled(of_class(NET, "Kept"), {"Kept": pickle("Kept", text)})
    ours.check_trainable()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=problem):
            ours.kernels.train([rows()], 20, 8, 1)


def test_layers_that_draw_and_metrics_that_the_class_leaves_out_are_no_problem():
    """Keras' own layers draw from a state that units keep; a loss tracker of its own is no state at all."""
    tail = '            if metric.name == "loss":\n                metric.update_state(loss)'
    code = MODEL.replace(
        tail, "            pass\n        self.extra.update_state(loss)\n        self._loss_tracker.update_state(loss)"
    )
    code = code.replace(
        "    factor = 0.5",
        """    factor = 0.5

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = keras.metrics.Mean(name="extra")
        self.layers[1].last = [tf.constant(1.0), None]

    @property
    def metrics(self):
        return []
""",
    )
    layers = [
        layer("Dense", name="hidden", units=6),
        layer("BatchNormalization", name="norm"),
        layer("GaussianNoise", name="noise", stddev=0.1, seed=3),
        layer("Dropout", name="drop", rate=0.3),
        layer("Dense", name="out", units=3),
    ]
    for optimizer in (
        "Adam(learning_rate=0.05, weight_decay=0.01)",
        "SGD(learning_rate=0.1, momentum=0.9, clipnorm=1.0, use_ema=True)",
    ):
        ours = compiled(
            of_class(functional(*layers), "Stepper"), {"Stepper": pickle("Stepper", code)}, optimizer=optimizer
        )
        ours.check_trainable()
        before = ours.model.get_weights()
        ours.kernels.train([rows()], 20, 8, 1)
        assert any(not np.array_equal(one, other) for one, other in zip(before, ours.model.get_weights(), strict=True))


def test_a_class_without_a_training_step_is_said_to_have_code():
    code = "import keras\n\nclass Stepper(keras.Model):\n    pass\n"
    ours = of_steps(code)
    ours.check_trainable()
    assert ours.kernels.train([rows()], 20, 8, 1)["kernel"] == "plain"
    assert ours.kernels.refused["loop"] == "model class Stepper has code of its own: the kernel plain runs it"


def test_a_constructor_that_keras_does_not_call_is_named():
    from mop_udf.training.models import ConfigurationError

    own = "def __init__(self, *a, **k):\n        super().__init__(*a, **k)\n"
    with pytest.raises(ConfigurationError) as error:
        of_steps(MODEL.replace("factor = 0.5", f"factor = 0.5\n\n    {own}"))
    assert str(error.value) == (
        "the constructor of model class Stepper takes (self, *a, **k): Keras makes such a model from its layers only by "
        "__init__(self, *args, **kwargs), with these names"
    )


def test_a_step_of_another_framework_is_refused():
    from mop_udf.training.models import ConfigurationError

    code = MODEL_FOR_JAX.replace("import jax\n", "").replace("jax.value_and_grad", "len")
    ours = of_steps(code)
    with pytest.raises(ConfigurationError, match=r"Stepper takes \(self, state, data\), on tensorflow .* SET pg_mop"):
        ours.check_trainable()


def test_a_step_that_tells_no_loss_has_none():
    code = MODEL.replace('metric.name == "loss"', "False")
    ours = of_steps(code)
    assert [ours.kernels.train([rows()], 20, 8, 1)["loss"] for _ in range(2)] == [None, None]


@pytest.mark.parametrize(
    "text,name,code,problem",
    [
        (of_class(NET, "Stepper"), "Scale", LAYER, "'Stepper'"),
        (of_class(NET, "Scale"), "Scale", LAYER, "'Scale'"),
        (with_scale("Stepper"), "Stepper", MODEL, "layer class 'Stepper' may not be loaded"),
        (of_class(NET, "Nothing"), "Nothing", "class Nothing: pass", "'Nothing'"),
    ],
)
def test_what_is_no_model_or_no_layer_is_refused(text, name, code, problem):
    from mop_udf.training.models import ConfigurationError

    with pytest.raises(ConfigurationError, match=problem):
        compiled(text, {name: pickle(name, code)})


def test_a_hostile_pickle_is_the_configurations_error():
    from mop_udf.training.models import ConfigurationError

    for data in (b"", b"no pickle", pickle("Stepper", MODEL)[:-20]):
        with pytest.raises(ConfigurationError, match="custom function 'Stepper' cannot be used"):
            compiled(stepper(), {"Stepper": data})


def test_two_versions_of_a_model_class_are_two_classes():
    one, two = of_steps(), of_steps(MODEL.replace("factor = 0.5", "factor = 3.0"))
    assert one.architecture != two.architecture and (one.model.factor, two.model.factor) == (0.5, 3.0)
