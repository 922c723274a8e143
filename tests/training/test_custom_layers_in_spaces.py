"""Custom layers in model spaces: changed, inserted and followed by merges, as far as they have told their shapes."""

import json
import os

import pytest

from pg_mop.spaces import Base, ModelSpace, SpaceError
from pg_mop.spaces.custom import NONE, CustomLayers, checked
from pg_mop.spaces.super_net import super_net
from support.custom_code import LAYER, MODEL, of_class, pickle, with_scale
from support.workload import layer

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
NAMES = {"Scale": "abc", "Other": "def"}
VALUE = {"change": "value", "match": {"class": "Scale"}, "argument": "start", "choices": [1.0, 2.0, 3.0]}
INSERT = {"change": "insert", "match": "hidden", "choices": [None, {"class": "Scale", "start": 5.0}]}


def keeps(class_name, config, shapes, listed):
    """A layer whose output has the shape of its input."""
    return shapes[0]


def space(mutators, text=None, custom=None, adapt=None):
    layers = CustomLayers(NAMES, ask=keeps) if custom is None else custom
    return ModelSpace([Base(1, text or with_scale())], json.dumps(mutators), adapt, custom=layers)


def configs(member):
    return {one["name"]: one for one in json.loads(member.architecture)["config"]["layers"]}


def test_mutators_change_insert_and_replace_custom_layers():
    changed = space([VALUE])
    assert [configs(changed.member(n))["scale"]["config"]["start"] for n in range(changed.size)] == [1.0, 2.0, 3.0]
    inserted = space(
        [INSERT, {"change": "value", "match": {"class": "Scale"}, "argument": "start", "choices": [1.0, 2.0]}]
    )
    last = configs(inserted.member(inserted.size - 1))
    assert [one["config"]["start"] for one in last.values() if one["class_name"] == "Scale"] == [2.0, 2.0]
    replaced = space([{"change": "layer", "match": "scale", "choices": ["keep", {"class": "Other"}, None]}])
    assert [member.misfit for member in replaced.members()] == [None] * 3
    kinds = [
        {one["class_name"] for one in configs(member).values()} - {"InputLayer", "Dense"}
        for member in replaced.members()
    ]
    assert kinds == [{"Scale"}, {"Other"}, set()]
    repeated = space([{"change": "repeat", "match": "scale", "times": [0, 1, 3]}])
    assert [sum(one["class_name"] == "Scale" for one in configs(m).values()) for m in repeated.members()] == [0, 1, 3]
    assert "pg_mop" not in json.dumps([point.options for point in replaced.points(1)])


def test_a_cell_may_have_custom_layers():
    cell = {
        "change": "cell",
        "match": "scale",
        "nodes": 2,
        "operations": [{"class": "Scale"}, {"class": "Dense", "units": 6}],
    }
    found = space([cell])
    assert found.check_some().fitting == found.size


def branched(units=6):
    """hidden -> Scale -> Add(hidden, ...) -> out."""
    text = json.loads(with_scale())
    made = text["config"]["layers"]
    names = ["net_in", "hidden", "scale", "sum", "out"]
    made[1]["config"]["units"] = units
    made.insert(3, layer("Add", name="sum"))

    def node(*sources):
        tensors = [
            {
                "class_name": "__keras_tensor__",
                "config": {"shape": [None], "dtype": "float32", "keras_history": [s, 0, 0]},
            }
            for s in sources
        ]
        return [{"args": [tensors] if len(tensors) > 1 else tensors, "kwargs": {}}] if sources else []

    sources = [(), ("net_in",), ("hidden",), ("hidden", "scale"), ("sum",)]
    layers = [
        {**one, "name": name, "inbound_nodes": node(*own)} for one, name, own in zip(made, names, sources, strict=True)
    ]
    config = {"name": "net", "layers": layers, "input_layers": [["net_in", 0, 0]], "output_layers": [["out", 0, 0]]}
    return json.dumps({"class_name": "Functional", "module": "keras", "config": config})


def test_a_merge_behind_a_layer_that_has_told_its_shape():
    assert space([VALUE], branched()).member(0).misfit is None
    halves = CustomLayers(NAMES, ask=lambda name, config, shapes, listed: [shapes[0][0] // 2])
    with pytest.raises(
        SpaceError, match=r"base model 1 cannot be used: sum: Add takes inputs of equal shapes, not \(6\), \(3\)"
    ):
        space([VALUE], branched(), halves)
    # a projection makes one width of them
    projected = space([VALUE], branched(), halves, "project").member(0)
    assert projected.misfit is None and "sum_project_2" in configs(projected)


def test_a_merge_behind_a_layer_of_unknown_shape_is_refused():
    for unknown in (CustomLayers(NAMES), CustomLayers(NAMES, ask=lambda *asked: None)):
        assert space([VALUE], None, unknown).member(0).misfit is None, "without a merge its shape does not matter"
        with pytest.raises(SpaceError, match="sum: Add takes what the custom layer 'scale' computes, of unknown shape"):
            space([VALUE], branched(), unknown)


def test_a_layer_may_refuse_its_inputs():
    def refuses(class_name, config, shapes, listed):
        return "takes no input of shape (8): too wide" if shapes == [[8]] else shapes[0]

    units = {"change": "value", "match": "hidden", "argument": "units", "choices": [4, 8]}
    members = list(space([units], None, CustomLayers(NAMES, ask=refuses)).members())
    assert [member.misfit for member in members] == [None, "scale: Scale takes no input of shape (8): too wide"]


def test_what_was_told_is_enough_for_equal_members():
    asking = CustomLayers(NAMES, ask=keeps)
    first = space([VALUE], branched(), asking)
    assert first.check_some().fitting == 3
    told = checked(json.loads(json.dumps(asking.told)))
    again = space([VALUE], branched(), CustomLayers(NAMES, told))
    assert again.digest == space([VALUE], branched(), CustomLayers(NAMES, told)).digest
    assert [m.architecture for m in again.members()] == [m.architecture for m in first.members()]
    others = space([VALUE], branched(), CustomLayers({**NAMES, "Scale": "changed"}, told))
    assert others.digest != again.digest


@pytest.mark.parametrize(
    "told", [[], {"a": "x", "b": 3}, {"a": [None, 0]}, {"a": [True]}, {"a": [2**40]}, {"a": {"b": 1}}, "x"]
)
def test_what_was_told_is_checked_when_it_is_read(told):
    with pytest.raises(ValueError):
        checked(told)


def inserted(**layer):
    return {"change": "insert", "match": "hidden", "choices": [layer]}


def valued(**option):
    return {**VALUE, "choices": [option]}


MARKED = {"class_name": "x", "module": None, "registered_name": "pg_mop_custom>Scale@abc", "config": {}}
ATTACKS = {
    "a class that is not in the table": inserted(**{"class": "system"}),
    "another case": inserted(**{"class": "scale"}),
    "a module of Keras": inserted(class_name="Scale", module="keras.layers", config={}),
    "Lambda": inserted(**{"class": "Lambda", "function": "x"}),
    "Lambda as an argument": valued(class_name="Lambda", module="keras.layers", config={"function": "x"}),
    "a module as an argument": valued(module="os", class_name="system", config={}),
    "a custom layer as an argument": valued(class_name="Scale", config={}),
    "an argument within a list": {**VALUE, "choices": [[{"registered_name": "Custom>x", "class_name": "x"}]]},
    "its class": {**VALUE, "argument": "class_name", "choices": ["Lambda"]},
    "its module": {**VALUE, "argument": "module", "choices": ["os"]},
    "an argument that is no name": {**VALUE, "argument": "start; DROP", "choices": [1]},
    "a match by another class": {**VALUE, "match": {"class": "system"}},
    "a name with quotes": inserted(**{"class": 'Sc"ale'}),
    "our own mark": inserted(**MARKED),
    "a stateful layer": inserted(**{"class": "Scale", "stateful": True}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_through_mutators(attack):
    with pytest.raises(SpaceError):
        space([ATTACKS[attack]])


def test_without_an_object_table_nothing_is_custom():
    for text, mutators in (
        (with_scale(), [VALUE]),
        (with_scale("Dropout", config={"rate": 0.5, "name": "d"}), [INSERT]),
    ):
        with pytest.raises(SpaceError, match="Scale"):
            ModelSpace([Base(1, text)], json.dumps(mutators), custom=NONE)


def test_a_model_with_a_training_step_is_no_base_model():
    custom = CustomLayers({**NAMES, "Stepper": "x"}, ask=keeps)
    with pytest.raises(SpaceError, match="base model 1 cannot be used: .*'Stepper'"):
        space([VALUE], of_class(with_scale(), "Stepper"), custom)


def test_a_super_net_has_no_custom_layers():
    with pytest.raises(SpaceError, match="a space with the custom layer Scale cannot be trained by one-shot"):
        super_net(space([VALUE]), 1)


# --- in the trainer ---------------------------------------------------------------------------------------------------

HALF = """
import keras

class Half(keras.layers.Layer):
    def __init__(self, parts=2, **more):
        super().__init__(**more)
        self.parts = parts

    def call(self, inputs):
        return inputs[..., : inputs.shape[-1] // self.parts]

    def compute_output_shape(self, shape):
        if shape[-1] % self.parts:
            raise ValueError(f"{shape[-1]} channels cannot be divided by {self.parts}")
        return (*shape[:-1], shape[-1] // self.parts)

class Both(keras.layers.Layer):
    def call(self, inputs):
        return keras.ops.concatenate(inputs, axis=-1)

    def compute_output_shape(self, shapes):
        return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))

class Rows(keras.layers.Layer):
    def call(self, inputs):
        return keras.ops.sum(inputs, axis=0)

class Two(keras.layers.Layer):
    def call(self, inputs):
        return inputs, inputs

    def compute_output_shape(self, shape):
        return shape, shape

class Ids(keras.layers.Layer):
    def __init__(self, width=3, **more):
        super().__init__(**more)
        self.width = width

    def call(self, inputs):
        if not keras.backend.is_int_dtype(inputs.dtype):
            raise ValueError("numbers of words are integers")
        return keras.ops.one_hot(inputs, self.width)

class Wide(keras.layers.Layer):
    def __init__(self, width, **more):
        super().__init__(**more)
        self.width = width

    def call(self, inputs):
        return inputs

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.width)

class Large(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(10**7, 10**5), name="table")

    def call(self, inputs):
        return inputs
"""


def told(name, shapes, listed=False, code=HALF, **config):
    from mop_udf.training import custom_layers, layer_shapes
    from mop_udf.training.losses import load_functions

    objects = {name: pickle(name, code)}
    custom = custom_layers.register(objects, load_functions(objects))
    return layer_shapes.told({"class_name": name, "config": config, "module": None}, shapes, listed, custom)


def test_a_layer_tells_its_output_shape():
    assert told("Half", [[8]]) == {"shape": [4]} and told("Half", [[5, None, 9]], parts=3) == {"shape": [5, None, 3]}
    assert told("Scale", [[6]], code=LAYER, start=3.0) == {"shape": [6]}, (
        "without compute_output_shape Keras traces call"
    )
    assert told("Both", [[4, 2], [4, 3]], listed=True) == {"shape": [4, 5]}
    assert told("Two", [[4]]) == {"shape": None}
    assert told("Large", [[4]]) == {"shape": [4]}, "no weights are allocated"
    assert told("Ids", [[5]]) == {"shape": [5, 3]}, "where float32 is refused, int32 is tried"
    assert told("Wide", [[4]], width=2**31 - 1) == {"shape": [2**31 - 1]}


@pytest.mark.parametrize(
    "name,shapes,config,problem",
    [
        ("Half", [[5]], {}, "takes no input of shape (5): "),
        ("Half", [[4]], {"pieces": 2}, "takes no input of shape (4): "),
        ("Half", [[4]], {"parts": {"class_name": "Lambda", "config": {}}}, "'Lambda'"),
        ("Rows", [[4]], {}, "puts out [4], which has no dimension for the rows"),
        ("Wide", [[4]], {"width": 0}, "puts out [None, 0], where each dimension must be from 1 to 2147483647"),
        ("Wide", [[4]], {"width": 2**31}, "puts out [None, 2147483648], where each dimension must be"),
        ("Ids", [[5]], {"width": "x"}, "takes no input of shape (5): numbers of words are integers"),
    ],
)
def test_a_layer_tells_why_it_takes_no_such_inputs(name, shapes, config, problem):
    assert problem in told(name, shapes, **config)["refused"]


def test_what_is_no_layer_tells_nothing():
    refused = told("Stepper", [[4]], code=MODEL)["refused"]
    assert "'Stepper' of the object table is no class of layers" in refused
