"""A widened or deepened net computes what its parent does, and a client that lies about it spoils nothing."""

import json
import os
from random import Random

import numpy as np
import pytest

from mop_udf.training.inherited_weights import channels
from pg_mop.spaces import Base, ModelSpace
from support.heirs import SEED, dense, found, layers
from support.workload import layer, sequential

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


def build(text):
    from mop_udf.training import models

    return models.build(models.normalise(text), 1)


def trained(text, seed):
    """A model with arbitrary weights, as after training."""
    model, draw = build(text), np.random.default_rng(seed)
    model.set_weights(
        [
            np.abs(draw.normal(size=w.shape)).astype("f4") + 0.1
            if w.path.endswith("moving_variance")
            else draw.normal(size=w.shape).astype("f4") * 0.4
            for w in model.weights
        ]
    )
    return model


def heir(parent, child, seed=SEED):
    """(the parent, the child with what it inherits, the Inheritance)."""
    from mop_udf.training.inherited_weights import inherited

    made = found(parent, child)
    old, new = trained(parent, seed), build(child)
    new.set_weights(inherited(old, new, made.layers, seed))
    return old, new, made


def same_answers(old, new, tolerance=2e-5):
    x = np.random.default_rng(3).normal(size=(6, *old.input_shape[1:])).astype("f4")
    a, b = (np.asarray(model(x, training=False)) for model in (old, new))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(a).max())))


IMAGE = [
    layer("Conv2D", name="conv", filters=4, kernel_size=3, padding="same", activation="relu"),
    layer("BatchNormalization", name="norm"),
    layer("Activation", name="act", activation="relu"),
    layer("MaxPooling2D", name="pool"),
    layer("Conv2D", name="deep", filters=5, kernel_size=3, padding="same", activation="relu"),
    layer("Flatten", name="flat"),
    layer("Dense", name="hidden", units=6, activation="relu"),
    layer("Dense", name="out", units=3, activation="softmax"),
]


def image(**changes):
    """The image net with other arguments, or other layers (lists), in place of layers of these names."""
    made = []
    for one in IMAGE:
        change = changes.get(one["config"]["name"], {})
        if isinstance(change, list):
            made += change
        else:
            made.append({**one, "config": {**one["config"], **change}})
    return sequential("image", [8, 8, 2], *made)


CASES = {
    "wider convolution before a batch normalization": {"conv": {"filters": 9}},
    "wider convolution before Flatten": {"deep": {"filters": 8}},
    "wider Dense": {"hidden": {"units": 11}},
    "all wider": {"conv": {"filters": 5}, "deep": {"filters": 6}, "hidden": {"units": 20}},
    "deeper": {
        "pool": [
            layer("MaxPooling2D", name="pool"),
            layer("Conv2D", name="new", filters=4, kernel_size=3, padding="same", activation="relu"),
        ],
        "flat": [layer("Flatten", name="flat"), layer("Dropout", name="drop", rate=0.4)],
    },
    "deeper and wider at once": {
        "pool": [
            layer("MaxPooling2D", name="pool"),
            layer("Conv2D", name="new", filters=7, kernel_size=4, padding="same", activation="relu"),
        ]
    },
    "wider, and deeper behind it": {
        "hidden": [
            layer("Dense", name="hidden", units=9, activation="relu"),
            layer("Dense", name="more", units=9, activation="relu"),
            layer("Dense", name="most", units=12, activation="linear"),
        ]
    },
    "a batch normalization more": {"flat": [layer("BatchNormalization", name="new"), layer("Flatten", name="flat")]},
}


@pytest.mark.parametrize("case", CASES)
def test_a_wider_or_deeper_net_computes_what_its_parent_does(case):
    old, new, made = heir(image(), image(**CASES[case]))
    assert made.same and not made.fresh
    assert {"widened", "identity"} & {entry["how"] for entry in made.layers}
    same_answers(old, new)


def functional(wide, concatenated):
    import keras

    x = keras.Input((6,), name="x")
    a = keras.layers.Dense(wide, activation="relu", name="a")(x)
    b = keras.layers.Dense(4, activation="relu", name="b")(x)
    if concatenated:
        y = keras.layers.Concatenate(name="join")([b, a, x])
    else:
        y = keras.layers.Add(name="join")([a, keras.layers.Dropout(0.1, name="drop")(a)])
    y = keras.layers.Dense(5, activation="relu", name="c")(y)
    return keras.Model(x, [keras.layers.Dense(3, name="out")(y)], name="graph").to_json()


@pytest.mark.parametrize("concatenated", [True, False])
def test_a_wider_layer_within_a_graph(concatenated):
    old, new, made = heir(functional(4, concatenated), functional(7, concatenated))
    assert made.same and layers(made)["a"] == "widened"
    same_answers(old, new)


def test_a_layer_whose_output_is_added_to_another_is_not_widened():
    def added(units):
        import keras

        x = keras.Input((6,), name="x")
        a = keras.layers.Dense(units, name="a")(x)
        b = keras.layers.Dense(units, name="b")(x)
        return keras.Model(x, keras.layers.Dense(3, name="out")(keras.layers.Add(name="sum")([a, b]))).to_json()

    made = found(added(4), added(6))
    assert made.fresh == ["a", "out"] and not made.same, "both would be repeated at random, and differently"


def test_repeated_units_learn_different_things():
    import keras

    keras.utils.set_random_seed(1)
    _, new, _ = heir(dense(3, activation="tanh", last=None), dense(6, activation="tanh", last=None))
    taken = channels(["wide", "d1", 3, 6], SEED)
    draw = np.random.default_rng(4)
    x, y = draw.normal(size=(64, 4)).astype("f4"), draw.normal(size=(64, 3)).astype("f4")
    new.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    kernel = new.get_layer("d1").get_weights()[0]
    twins = [(i, j) for i in range(6) for j in range(i) if taken[i] == taken[j]]
    assert twins and all((kernel[:, i] == kernel[:, j]).all() for i, j in twins)
    new.fit(x, y, epochs=10, batch_size=8, verbose=0)
    kernel = new.get_layer("d1").get_weights()[0]
    assert all(np.abs(kernel[:, i] - kernel[:, j]).max() > 1e-3 for i, j in twins)


def called_twice(units):
    import keras

    x, shared = keras.Input((4,), name="x"), keras.layers.Dense(units, name="shared")
    both = keras.layers.Concatenate(name="join")([shared(x), shared(keras.layers.Dense(4, name="first")(x))])
    return keras.Model(x, keras.layers.Dense(3, name="out")(both)).to_json()


def grouped(**arguments):
    return sequential(
        "net",
        [6, 6, 4],
        layer("Conv2D", name="conv", kernel_size=3, **arguments),
        layer("GlobalAveragePooling2D", name="pool"),
        layer("Dense", name="out", units=3),
    )


def adapted(units):
    """A Dense layer with weights of a low rank (LoRA)."""
    return sequential(
        "net", [4], layer("Dense", name="d", units=units, lora_rank=2), layer("Dense", name="out", units=3)
    )


@pytest.mark.parametrize(
    "name,parent,child",
    [
        ("shared", called_twice(4), called_twice(6)),
        ("conv", grouped(filters=4, groups=2), grouped(filters=8, groups=2)),
        ("conv", grouped(filters=4, data_format="channels_first"), grouped(filters=6, data_format="channels_first")),
        ("d", adapted(4), adapted(6)),
    ],
    ids=["of several calls", "groups", "channels_first", "LoRA"],
)
def test_a_layer_that_cannot_be_widened_starts_fresh_with_other_units(name, parent, child):
    made = found(parent, child)
    assert name in made.fresh and name not in layers(made) and not made.same
    assert layers(found(parent, parent))[name] == "copied"


def test_a_batch_normalization_of_another_axis_keeps_no_weights():
    def normalised(axis):
        return sequential(
            "net",
            [6, 6, 4],
            layer("BatchNormalization", name="norm", axis=axis),
            layer("Flatten", name="flat"),
            layer("Dense", name="out", units=3),
        )

    for one, other in ((1, -1), (-1, 1)):
        made = found(normalised(one), normalised(other))
        assert made.fresh == ["norm"] and not made.same
        assert found(normalised(one), normalised(one)).same


def two_inputs(listed, order):
    """A model of two inputs: the layers are listed in one order, and the model takes them in another."""
    import keras

    x = {name: keras.Input((4,), name=name) for name in ("p", "q")}
    a, b = (keras.layers.Dense(3, name=f"of_{name}")(x[name]) for name in ("p", "q"))
    made = json.loads(
        keras.Model(
            [x[n] for n in order], keras.layers.Dense(3, name="out")(keras.layers.Add(name="sum")([a, b]))
        ).to_json()
    )
    own = {one["name"]: one for one in made["config"]["layers"]}
    made["config"]["layers"] = [*(own.pop(name) for name in listed), *own.values()]
    return json.dumps(made)


def test_inputs_correspond_by_the_order_in_which_the_model_takes_them():
    parent = two_inputs("pq", "pq")
    assert found(parent, two_inputs("qp", "pq")).same
    assert not found(parent, two_inputs("pq", "qp")).same


def outputs_of_calls(place, call=0):
    """`a` is called on two inputs; `out` takes the output of one of the calls, and `both` takes both."""
    import keras

    x = keras.Input((4,), name="x")
    y = keras.layers.Dense(4, name="y")(x)
    a = keras.layers.Dense(4, name="a")
    calls = a(x), a(y)
    b = keras.layers.Dense(4, name="b")(calls[place])
    both = keras.layers.Add(name="both")([b, *calls])
    return keras.Model(x, [keras.layers.Dense(3, name="out")(both), calls[call]]).to_json()


def test_which_call_of_a_layer_is_taken_is_a_part_of_the_function():
    assert not found(outputs_of_calls(0), outputs_of_calls(1)).same
    assert not found(outputs_of_calls(0, 0), outputs_of_calls(0, 1)).same


@pytest.mark.parametrize("size,dilation,how", [(2, 2, None), (4, 3, None), (3, 2, "identity"), (2, 1, "identity")])
def test_a_dilated_kernel_without_a_middle_is_no_identity(size, dilation, how):
    new = layer("Conv2D", name="new", filters=4, kernel_size=size, dilation_rate=dilation, padding="same")
    old, child, made = heir(image(), image(pool=[layer("MaxPooling2D", name="pool"), new]))
    assert layers(made).get("new") == how and made.same == (how is not None)
    if made.same:
        same_answers(old, child)


MUTATORS = [
    {"change": "value", "match": "conv", "argument": "filters", "choices": [4, 6]},
    {"change": "insert", "match": "conv", "choices": [None, {"class": "BatchNormalization"}]},
    {"change": "repeat", "match": "conv", "times": [1, 2]},
    {"change": "layer", "match": "pool", "choices": ["keep", {"class": "AveragePooling2D", "pool_size": 2}, None]},
    {"change": "repeat", "match": "hidden", "times": [0, 1, 2]},
    {"change": "value", "match": "hidden*", "argument": "units", "choices": [6, 8, 12]},
    {"change": "insert", "match": "flat", "choices": [None, {"class": "Dropout", "rate": 0.2}]},
]


def test_whatever_is_said_to_be_the_same_function_is_the_same():
    """Over random members of a space, and random children, one choice apart."""
    simple = image(norm=[], act=[], deep=[])
    space, draw = ModelSpace([Base(1, simple)], json.dumps(MUTATORS)), Random(5)
    kept, changes = 0, set()
    for trial in range(40):
        parent = space.member(draw.randrange(space.size))
        name = draw.choice(list(parent.chosen))

        def choose(point, parent=parent, name=name):
            if point.name in parent.chosen and point.name != name:
                return parent.chosen[point.name]
            return draw.choice([at for at in range(len(point.options)) if at != parent.chosen.get(point.name)])

        child = space.of_choices(1, space.walk(1, choose))
        if parent.architecture is None or child.architecture is None:
            continue
        old, new, made = heir(parent.architecture, child.architecture, trial)
        if made.same:
            same_answers(old, new)
            kept += 1
        changes |= {entry["how"] for entry in made.layers}
    assert kept >= 5 and changes == {"copied", "widened", "identity"}


def deep(depth):
    made = 1
    for _ in range(depth):
        made = ["then", made, 1]
    return made


@pytest.mark.parametrize(
    "layers",
    [
        [{"layer": "nobody", "how": "copied", "from": "out"}],
        [{"layer": "out", "how": "copied"}],
        [{"layer": "hidden", "how": "copied", "from": "hidden", "in": ["wide", "x", 1, 10**15]}],
        [{"layer": "hidden", "how": "copied", "from": "hidden", "in": ["flat", ["wide", "x", 2, 2**20], 2**20]}],
        [{"layer": "hidden", "how": "copied", "from": "hidden", "in": ["__import__", "os"]}],
        [{"layer": "hidden", "how": "copied", "from": "hidden", "in": deep(5000)}],
        [{"layer": 7, "how": None, "from": {}}],
        {"layer": "hidden"},
        None,
    ],
)
def test_hostile_inheritance_is_an_error_of_the_configuration(layers):
    """A client can send any unit."""
    from mop_udf.training import models
    from mop_udf.training.compiled_model import CompiledModel
    from support.workload import dense as net

    parsed, _ = models.parse("loss='mse', optimizer='SGD()'", "batch_size=8")
    compiled = CompiledModel(net(), parsed, {}, lambda *_: {}, "x", seed=1)
    state = b"".join(bytes(part) for part in compiled.save())
    before = compiled.model.get_weights()
    for told in ({"architecture": net(), "layers": layers, "seed": 1},):
        with pytest.raises(models.ConfigurationError):
            compiled.inherit(told, state)
    hostile = json.dumps({"class_name": "Sequential", "config": {"layers": [{"class_name": "Lambda", "config": {}}]}})
    for told, data in (
        ({"architecture": hostile, "layers": [], "seed": 1}, state),
        ({"architecture": net(16), "layers": [], "seed": 1}, state),
        ({"architecture": net(), "layers": [], "seed": 1}, b"no state"),
    ):
        with pytest.raises(models.ConfigurationError):
            compiled.inherit(told, data)
    for one, other in zip(before, compiled.model.get_weights()):
        np.testing.assert_array_equal(one, other)
