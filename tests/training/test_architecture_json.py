"""Architecture JSON: what is translated for Keras 3, and what never reaches Keras."""

import copy
import json
import os
import pathlib
import random

import pytest

from mop_udf.architecture import architecture, architecture_shapes
from mop_udf.architecture.architecture import ArchitectureError, check
from support.circles import draws

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")


def layer(kind, /, **config):
    return {"class_name": kind, "config": config}


def node(name, kind, inbound, **config):
    return {"name": name, "class_name": kind, "config": {"name": name, **config}, "inbound_nodes": inbound}


# models as versions of Keras 2 have written them, one a line
KERAS_2 = json.loads(pathlib.Path(__file__).with_name("keras_2_models.json").read_text())


def keras_3_models():
    import keras
    from keras import layers as k

    x, z = keras.Input((6,)), keras.Input((5, 4))
    return [
        keras.Sequential(
            [
                keras.Input((8, 8)),
                k.Reshape((8, 8, 1)),
                k.Conv2D(4, 3, activation="relu"),
                k.BatchNormalization(),
                k.Flatten(),
                k.Dropout(0.1),
                k.Dense(10, activation="softmax"),
            ]
        ),
        keras.Model(x, k.Dense(3)(k.Concatenate()([k.Dense(4)(x), k.Dense(5, kernel_regularizer="l2")(x)]))),
        keras.Model(z, k.Dense(2)(k.Flatten()(k.MultiHeadAttention(2, 2)(z, z)))),
        keras.Sequential([keras.Input((5, 3)), k.Bidirectional(k.LSTM(4)), k.Dense(2)]),
        keras.Sequential(
            [
                keras.Input((3,)),
                k.Dense(4, activation=k.LeakyReLU(0.2)),
                keras.Sequential([keras.Input((4,)), k.Dense(4)]),
                k.Dense(2),
            ]
        ),
        keras.Sequential(
            [
                keras.Input((4, 3)),
                k.TimeDistributed(k.Dense(2, kernel_constraint="max_norm")),
                k.GlobalAveragePooling1D(),
                k.Dense(2, kernel_initializer=keras.initializers.Constant(0.5)),
            ]
        ),
    ]


def test_json_of_keras_3_gives_the_same_model():
    import keras

    for model in keras_3_models():
        loaded = keras.models.model_from_json(json.dumps(check(model.to_json())))
        assert [w.shape for w in loaded.weights] == [w.shape for w in model.weights]
        loaded.set_weights(model.get_weights())
        x = keras.random.normal((2, *model.input_shape[1:]), seed=1)
        assert (keras.ops.convert_to_numpy(model(x)) == keras.ops.convert_to_numpy(loaded(x))).all()


@pytest.mark.parametrize("name", KERAS_2)
def test_json_of_keras_2_gives_a_working_model(name):
    import keras
    import numpy as np

    made = check(json.dumps(KERAS_2[name]))
    model = keras.models.model_from_json(json.dumps(made))
    shapes = architecture_shapes.input_shapes(made)
    inputs = [np.ones((2, *shape), "f4") for shape in shapes]
    output = model.predict_on_batch(inputs if len(inputs) > 1 else inputs[0])
    assert list(output.shape) == [2, architecture_shapes.output_widths(made)[0]]


def evil(**changes):
    made = {
        "class_name": "Sequential",
        "module": "keras",
        "registered_name": None,
        "config": {
            "name": "s",
            "layers": [layer("InputLayer", batch_shape=[None, 4]), layer("Dense", name="d", units=3)],
        },
    }
    target = made["config"]["layers"][1]
    for key, value in changes.items():
        (target["config"] if key.startswith("c_") else target)[key.removeprefix("c_")] = value
    return made


CALL = {"module": "os", "class_name": "function", "config": "system", "registered_name": "system"}
ATTACKS = {
    "a module under keras' name": evil(module="keras_evil.layers"),
    "a module that climbs": evil(module="keras/../os"),
    "another registered name": evil(registered_name="X"),
    "an activation by path": evil(c_activation="os.system"),
    "an unknown initializer": evil(c_kernel_initializer="os.system"),
    "an object in a list": evil(c_units=[1, [CALL]]),
    "an object without a class": evil(c_units={"module": "os", "config": {}}),
    "code in a dtype": evil(c_dtype={"class_name": "DTypePolicy", "config": {"name": "os.system('x')"}}),
    "an optimizer as layer": evil(class_name="Adam"),
    "an operation as an activation": evil(
        c_activation={"module": "keras.src.ops.nn", "class_name": "Relu", "config": {}}
    ),
    "an operation in TimeDistributed": evil(
        class_name="TimeDistributed", c_layer={"module": "keras.src.ops.nn", "class_name": "Relu", "config": {}}
    ),
    "shapes of which a layer is built that are none": {
        "class_name": "Sequential",
        "config": [{**layer("Dense", units=1), "build_config": {"input_shape": CALL}}],
    },
    "arguments by which a layer is built that are no shapes": {
        "class_name": "Sequential",
        "config": [{**layer("Dense", units=1), "build_config": {"shapes_dict": {"self": [1]}}}],
    },
    "a model that is none": {"class_name": "Lambda", "config": {"layers": []}},
    "no layers": {"class_name": "Sequential", "config": {"layers": 3}},
}


def tensor(name="x"):
    return {
        "class_name": "__keras_tensor__",
        "config": {"shape": [None, 4], "dtype": "float32", "keras_history": [name, 0, 0]},
    }


def operation(kind, *args, module="keras.src.ops.numpy", registered=None, kwargs=None, **config):
    """A functional model whose only layer is an operation."""
    return {
        "class_name": "Functional",
        "module": "keras.src.models.functional",
        "config": {
            "name": "m",
            "layers": [
                node("x", "InputLayer", [], batch_shape=[None, 4], dtype="float32"),
                {
                    "module": module,
                    "class_name": kind,
                    "config": {"name": "o", **config},
                    "registered_name": registered,
                    "name": "o",
                    "inbound_nodes": [{"args": list(args or [tensor()]), "kwargs": kwargs or {}}],
                },
            ],
            "input_layers": [["x", 0, 0]],
            "output_layers": [["o", 0, 0]],
        },
    }


CORE, IMAGE = "keras.src.ops.core", "keras.src.ops.image"
ATTACKS.update(
    {
        "a branch of functions": operation("Cond", tensor(), CALL, CALL, module=CORE),
        "a loop over a function": operation("WhileLoop", module=CORE, cond=CALL, body=CALL),
        "a loop that counts": operation("ForiLoop", module=CORE, lower=0, upper=10**9, body_fun=CALL),
        "a scan": operation("Scan", module=CORE, length=10**9),
        "a switch": operation("Switch", module=CORE),
        "an associative scan": operation("AssociativeScan", module=CORE),
        "a derivative of a function": operation("JVP", module="keras.src.ops.linalg"),
        "an operation of another module": operation("system", module="os.ops.system"),
        "an operation of a module that climbs": operation("Add", module="keras.src.ops/../os"),
        "an operation of a module within Keras that is none": operation("Add", module="keras.src.ops.numpy.os"),
        "a class of a module of operations that is none": operation("KerasTensor", module="keras.src.ops.numpy"),
        "the class of all operations": operation("Operation", module="keras.src.ops.operation"),
        "an operation of the public module": operation("Add", module="keras.ops"),
        "a function of operations": operation("get_file", module="keras.src.utils.ops"),
        "an operation by a registered name": operation("Add", registered="custom>Evil"),
        "an operation by another's name": operation("Add", registered="Evil"),
        "code in a list among an operation's arguments": operation("Mean", axis=[[CALL]]),
        "a dictionary among an operation's arguments": operation("Mean", axis={"class_name": "__lambda__"}),
        "code among a call's keyword arguments": operation("Add", kwargs={"x2": CALL}),
        "code as an end of a slice": operation(
            "GetItem", tensor(), [{"class_name": "__slice__", "config": {"start": CALL, "stop": None, "step": None}}]
        ),
        "objects as an array": operation(
            "Add", tensor(), {"class_name": "__numpy__", "config": {"value": [1.0], "dtype": "O"}}
        ),
        "texts as an array": operation(
            "Add", tensor(), {"class_name": "__numpy__", "config": {"value": ["x"], "dtype": "S1000000000"}}
        ),
        "an array of a type of a gigabyte": operation(
            "Add", tensor(), {"class_name": "__numpy__", "config": {"value": [1.0], "dtype": "V1000000000"}}
        ),
        "an array of arrays of code": operation(
            "Add", tensor(), {"class_name": "__tensor__", "config": {"value": [[CALL]], "dtype": "float32"}}
        ),
        "a graph of ones and zeros out of nothing": operation("Full", 1.0, shape=[10**6, 10**6]),
        "numbers out of nothing": operation("Arange", 0, 10**12),
        "a matrix out of nothing": operation("Eye", 10**6),
        "numbers between two": operation("Linspace", tensor(), 1.0, num=10**12),
        "a repetition that takes no tensor": operation("Tile", [[1.0]], repeats=[10**6, 10**6]),
        "a layer that takes no tensor": {
            "class_name": "Functional",
            "config": {
                "name": "m",
                "layers": [
                    node("x", "InputLayer", [], batch_shape=[None, 4]),
                    node("o", "RepeatVector", [{"args": [[[1.0]]], "kwargs": {}}], n=10**12),
                ],
                "input_layers": [["x", 0, 0]],
                "output_layers": [["o", 0, 0]],
            },
        },
        "a billion pieces": operation("Split", indices_or_sections=10**9, axis=1),
        "a billion slices": operation("Unstack", module=CORE, num=10**9, axis=1),
        "a billion patches": operation("ExtractPatches", module=IMAGE, size=[10**5, 10**5]),
        "differences of differences": operation("Diff", n=10**9),
        "powers of all": operation("Vander", N=10**9),
        "a histogram": operation("Histogram", bins=10**12),
        "random numbers that no state keeps": operation(
            "StochasticDepth", module="keras.src.applications.convnext", drop_path_rate=0.1
        ),
    }
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_code_in_data_is_refused(attack):
    with pytest.raises(ArchitectureError):
        check(json.dumps(ATTACKS[attack]))


@pytest.mark.parametrize(
    "text", ["", "null", "[" * 100_000, "{not json", '{"class_name": 1, "config": 2}', '{"class_name": "Sequential"}']
)
def test_what_is_no_architecture_is_refused(text):
    with pytest.raises(ArchitectureError):
        check(text)


def test_what_an_operation_would_make_is_not_made_when_it_is_checked():
    """Sizes beyond all memory: nothing of them is allocated before a row comes, and what cannot be is refused."""
    import resource

    from mop_udf.training import models

    huge = 10**12
    for made in (
        operation("Tile", repeats=[1, huge]),
        operation("Repeat", repeats=huge, axis=1),
        operation("Pad", pad_width=[[0, 0], [huge, huge]]),
        operation("BroadcastTo", shape=[huge, 4]),
        operation("Reshape", newshape=[-1, huge]),
        operation("Roll", shift=huge, axis=1),
        operation("OneHot", module="keras.src.ops.nn", num_classes=huge),
        operation("Split", indices_or_sections=[huge, 2 * huge], axis=1),
        operation("Power", tensor(), huge),
        operation("Add", tensor(), 10**300),
        operation("GetItem", tensor(), huge),
        operation("Einsum", tensor(), subscripts="ab->" + "a" * 50),
        operation("Rot90", k=huge),
        operation("Transpose", axes=[huge, 0]),
        operation("Resize", tensor(), module=IMAGE, size=[huge, huge]),
    ):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            models.build(check(made), 1)
        except models.ConfigurationError as error:
            assert "Keras refuses" in str(error)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, made["config"]["layers"][1]


def test_nesting_is_bounded():
    deep = layer("Dense", units=1)
    for _ in range(200):
        deep = layer("TimeDistributed", layer=deep)
    with pytest.raises(ArchitectureError, match="nested deeper"):
        check({"class_name": "Sequential", "config": [deep]})


def test_damaged_architectures_raise_nothing_but_architecture_errors():
    source = random.Random(3)
    values = json.loads(
        """[null, 1, -1, 1.5, "x", "", [], {}, [null], {"class_name": "Dense"}, {"class_name": 3, "config": []}, true,
        {"config": {}}, [[["x", 0, 0, {}]]], {"class_name": "__keras_tensor__", "config": 3},
        {"class_name": "__tuple__", "items": 3}]"""
    )
    originals = [json.loads(m.to_json()) for m in keras_3_models()[:4]] + list(KERAS_2.values())
    for _ in range(draws(300, 8000)):
        damaged = copy.deepcopy(source.choice(originals))
        places = []

        def walk(at, places=places):
            for key, value in at.items() if isinstance(at, dict) else enumerate(at):
                places.append((at, key))
                if isinstance(value, (dict, list)):
                    walk(value)

        walk(damaged)
        for _ in range(source.randint(1, 3)):
            at, key = source.choice(places)
            at[key] = copy.deepcopy(source.choice(values))
        try:
            made = check(damaged)
            for read in (architecture_shapes.input_shapes, architecture_shapes.output_widths):
                read(made)
        except ArchitectureError:
            pass


def test_a_state_that_a_layer_begins_with_is_used():
    import keras
    import numpy as np

    model = keras.models.model_from_json(json.dumps(check(KERAS_2["a state from another layer, Keras 2"])))
    x, first, other = np.ones((2, 5, 4), "f4"), np.zeros((2, 3), "f4"), np.ones((2, 3), "f4")
    assert (model.predict_on_batch([x, first]) != model.predict_on_batch([x, other])).any()


def test_shapes_and_units_are_read_from_both_generations():
    made = check(KERAS_2["convolutions"])
    assert architecture_shapes.input_shapes(made) == [[8, 8, 1]] and architecture_shapes.output_widths(made) == [3]
    with pytest.raises(ArchitectureError, match="input shape"):
        architecture_shapes.input_shapes(check({"class_name": "Sequential", "config": [layer("Dense", units=1)]}))
    assert architecture_shapes.output_widths(check({"class_name": "Sequential", "config": [layer("Flatten")]})) == [
        None
    ]


def test_the_number_of_outputs_is_the_models():
    made = check(KERAS_2["functional, two inputs"])
    assert architecture_shapes.output_widths(made, 1) == [2]
    with pytest.raises(ArchitectureError, match="has 1 output, not 2"):
        architecture_shapes.output_widths(made, 2)
    made["config"]["output_layers"].append(["e", 0, 0])
    assert architecture_shapes.output_widths(made, 2) == [2, 5]
    with pytest.raises(ArchitectureError, match="has 2 outputs, not 1"):
        architecture_shapes.output_widths(made, 1)


def test_a_thresholded_relu_keeps_its_threshold():
    import keras
    import numpy as np

    made = check(
        {
            "class_name": "Sequential",
            "config": [layer("ThresholdedReLU", name="r", batch_input_shape=[None, 3], theta=0.5)],
        }
    )
    model = keras.models.model_from_json(json.dumps(made))
    assert model.predict_on_batch(np.array([[-1, 0.4, 0.6]], "f4")).tolist() == [[0, 0, pytest.approx(0.6)]]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_stateful_layer_is_refused_and_a_fixed_batch_is_not(wrapped):
    """What a stateful layer remembers would go to whatever rows come next."""
    import keras
    import numpy as np

    from mop_udf.training import models

    def made(stateful):
        lstm = keras.layers.LSTM(4, stateful=stateful, name="memory")
        x = keras.Input(batch_shape=(8, 5, 2))
        return keras.Model(x, keras.layers.Dense(3)(keras.layers.Bidirectional(lstm)(x) if wrapped else lstm(x)))

    with pytest.raises(ArchitectureError, match="is stateful: .* stateful=False"):
        check(made(True).to_json())
    plain = made(False)
    ours = models.build(check(plain.to_json()), 1)
    ours.set_weights(plain.get_weights())
    rows = np.random.default_rng(0).random((8, 5, 2), "f4")
    assert ours.input_shape == (None, 5, 2)
    assert np.allclose(ours(rows[:3]), plain(rows)[:3], atol=1e-6)
    old = {
        "class_name": "Sequential",
        "config": [
            layer("LSTM", name="l", units=4, batch_input_shape=[8, 5, 3], stateful=False),
            layer("Dense", name="o", units=2),
        ],
    }
    assert check(json.dumps(old))["config"]["layers"][0]["config"]["batch_shape"] == [None, 5, 3]


def with_ends(inputs, outputs):
    """A functional model of inputs p, q and outputs r, s with these ends."""

    layers = [node(name, "InputLayer", [], batch_shape=[None, width]) for name, width in (("p", 2), ("q", 3))]
    layers += [
        node(name, "Dense", [{"args": [tensor(of)], "kwargs": {}}], units=units)
        for name, units, of in (("r", 4, "p"), ("s", 5, "q"))
    ]
    return {
        "module": "keras.src.models.functional",
        "class_name": "Functional",
        "registered_name": None,
        "config": {"name": "m", "layers": layers, "input_layers": inputs, "output_layers": outputs},
    }


def test_inputs_and_outputs_of_dictionaries_have_the_order_that_keras_gives_them():
    import keras

    p, q, r, s = (["p", 0, 0], ["q", 0, 0], ["r", 0, 0], ["s", 0, 0])
    for inputs, shapes in (
        ([p, q], [[2], [3]]),
        ([q, p], [[3], [2]]),
        ({"b": p, "a": q}, [[3], [2]]),
        ({"a": p, "b": q}, [[2], [3]]),
    ):
        for outputs, widths in (([s, r], [5, 4]), ({"z": r, "y": s}, [5, 4]), ({"y": r, "z": s}, [4, 5])):
            made = architecture.check(with_ends(inputs, outputs))
            assert (
                architecture_shapes.input_shapes(made) == shapes
                and architecture_shapes.output_widths(made, 2) == widths
            )
            assert architecture_shapes.named(made, "input_layers") == (
                sorted(inputs) if isinstance(inputs, dict) else None
            )
            assert architecture_shapes.named(made, "output_layers") == (
                ["y", "z"] if isinstance(outputs, dict) else None
            )
            model = keras.models.model_from_json(json.dumps(made))
            assert [output.shape[1] for output in model.outputs] == widths
            assert [list(i.shape[1:]) for i in model.inputs] == shapes


def test_a_dictionary_of_one_is_its_only_one_and_of_lists_is_refused():
    p, q, r, s = (["p", 0, 0], ["q", 0, 0], ["r", 0, 0], ["s", 0, 0])
    one = architecture.check(with_ends([p, q], {"only": r}))
    assert architecture_shapes.name_misfit(one, "output_layers", ["label"]) is None
    assert architecture_shapes.output_widths(one, 1) == [4]
    for outputs in ({"a": [r, s]}, [{"a": r, "b": s}], {"a": {"b": r, "c": s}}):
        made = architecture.check(with_ends([p, q], outputs))
        with pytest.raises(architecture.ArchitectureError, match="in a dictionary together with lists"):
            architecture_shapes.name_misfit(made, "output_layers", ["a", "b"])
    assert architecture_shapes.named(architecture.check(with_ends([p, q], [[r], [s]])), "output_layers") is None
