"""Model spaces: what mutators match and make, exact counts, and what is refused."""

import json
import os
import time
from random import Random

import pytest

from pg_mop.plan.shapes import Misfit, output_shape
from pg_mop.spaces import Base, ModelSpace, SpaceError, showing
from pg_mop.spaces.reading import MOST_DEPTH
from support.circles import draws
from support.spaces import CNN, RESIDUAL, RICH, change, functional, node, space
from support.workload import dense, layer, sequential

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")


def layers_of(member):
    """{name: (class, names of its inputs)} of a member, in order."""
    found = {}
    for one in json.loads(member.architecture)["config"]["layers"]:
        text = json.dumps(one["inbound_nodes"])
        parts = text.split('"keras_history": ["')[1:]
        found[one["name"]] = one["class_name"], [part.split('"')[0] for part in parts]
    return found


def with_choices(models, **wanted):
    """The first member with these choices, by the names of points with _ for other characters."""
    for member in models.members():
        told = {name.replace(" ", "_").replace(".", "_"): value for name, value in member.choices.items()}
        if all(told.get(name) == value for name, value in wanted.items()):
            return member
    raise AssertionError(f"no member has {wanted}")


ALL_KINDS = [
    change("value", "conv", argument="filters", choices=[4, 8]),
    change("insert", "conv", choices=[None, {"class": "BatchNormalization"}]),
    change("repeat", "conv", times=[1, 2]),
    change("layer", "pool", choices=["keep", {"class": "AveragePooling2D", "pool_size": 2}, None]),
    change("repeat", "hidden", times=[0, 1, 2]),
    change("value", "hidden*", argument="units", choices=[8, 16]),
    change("remove", "flat"),
]


# --- counting and numbers ---------------------------------------------------------------------------------------------


def test_the_size_is_that_of_a_list_of_all_members():
    models = space(*ALL_KINDS)
    members = list(models.members())
    assert models.size == len(members) == 2 * 2 * 2 * 3 * (1 + 2 + 4) * 2
    assert len({json.dumps(member.choices) for member in members}) == models.size
    assert [member.number for member in members] == list(range(models.size))
    for member in members:
        assert models.of_choices(1, member.chosen) == member


def test_a_choice_is_open_only_where_its_layer_is_there():
    models = space(*ALL_KINDS)
    for member in models.members():
        times = member.choices["times hidden"]
        assert ("hidden.units" in member.choices) == (times >= 1)
        assert ("hidden_2.units" in member.choices) == (times == 2)


def test_a_space_of_10_to_the_12_costs_nothing_and_1000_members_take_seconds():
    start = time.process_time()
    thousand = [{"class": "Dropout", "rate": i / 1000} for i in range(1000)]
    models = space(
        change("value", "conv", argument="filters", choices=list(range(1, 1001))),
        change("value", "hidden", argument="units", choices=list(range(1, 1001))),
        change("insert", "hidden", choices=thousand),
        change("insert", "flat", choices=thousand),
    )
    assert models.size == 10**12
    sample = models.sample(1000, 7)
    assert len({member.number for member in sample.members}) == 1000 and not sample.refused
    assert max(member.number for member in sample.members) > 10**11
    assert time.process_time() - start < 30


def test_the_same_seed_gives_the_same_members():
    models = space(*ALL_KINDS)
    assert models.sample(20, 3) == space(*ALL_KINDS).sample(20, 3)
    assert [m.number for m in models.sample(20, 3).members] != [m.number for m in models.sample(20, 4).members]


def test_a_sample_of_a_small_space_is_all_that_fits():
    models = space(change("layer", "pool", choices=["keep", {"class": "MaxPooling2D", "pool_size": 9}, None]))
    sample = models.sample(10, 0)
    assert sorted(member.number for member in sample.members) == [0, 2] and sample.tried == 3
    ((reason, count),) = sample.refused.items()
    assert count == 1 and reason.startswith("pool: the window of MaxPooling2D, 9, is larger than its input")


# --- what mutators make -----------------------------------------------------------------------------------------------


def test_an_unchanged_member_has_the_layers_of_its_base():
    (member,) = space().members()
    assert list(layers_of(member)) == ["cnn_in", "conv", "pool", "flat", "hidden", "out"]
    assert not member.record and member.parameters == 9 * 8 + 8 + 128 * 16 + 16 + 16 * 10 + 10


def test_a_value_chosen_before_a_repeat_is_that_of_all_copies_and_one_after_it_of_each():
    value = change("value", "hidden*", argument="units", choices=[8, 16])
    repeat = change("repeat", "hidden", times=[3])
    assert space(value, repeat).size == 2 and space(repeat, value).size == 8
    member = space(value, repeat).member(1)
    found = {one["name"]: one["config"] for one in json.loads(member.architecture)["config"]["layers"]}
    assert [found[name]["units"] for name in ("hidden", "hidden_2", "hidden_3")] == [16, 16, 16] or member.misfit
    assert layers_of(member)["hidden_3"] == ("Dense", ["hidden_2"]) and layers_of(member)["out"][1] == ["hidden_3"]


def test_what_is_inserted_beside_a_layer_is_repeated_with_it():
    models = space(
        change("insert", "hidden", choices=[[{"class": "Dropout", "rate": 0.5}, {"class": "LayerNormalization"}]]),
        change("insert", "hidden", where="before", choices=[{"class": "ReLU"}]),
        change("repeat", "hidden", times=[2]),
    )
    made = layers_of(models.member(0))
    assert list(made)[4:] == [
        "hidden_before",
        "hidden",
        "hidden_after_1",
        "hidden_after_2",
        "hidden_before_2",
        "hidden_2",
        "hidden_after_1_2",
        "hidden_after_2_2",
        "out",
    ]
    assert made["hidden_before_2"] == ("ReLU", ["hidden_after_2"]) and made["out"][1] == ["hidden_after_2_2"]


def test_an_inserted_layer_is_changed_and_repeated_like_any_other():
    models = space(
        change("insert", "hidden", where="before", choices=[[{"class": "ReLU"}, {"class": "Dense", "units": 5}]]),
        change(
            "layer",
            "hidden_before_2",
            choices=["keep", [{"class": "Dropout", "rate": 0.1}, {"class": "Dense", "units": 6}]],
        ),
        change("repeat", "hidden_before_2", times=[2]),
        change("repeat", "hidden_before_1", times=[0, 1]),
    )
    kept, replaced = (layers_of(models.member(number)) for number in (1, 3))
    assert list(kept)[4:] == ["hidden_before_1", "hidden_before_2", "hidden_before_2_2", "hidden", "out"]
    assert replaced["hidden_before_2"][1] == ["hidden_before_2_1"] and replaced["hidden_before_2_1"][0] == "Dropout"
    assert replaced["hidden"][1] == ["hidden_before_2_2"]
    assert "hidden_before_1" not in layers_of(models.member(0))


def test_a_repeat_over_what_an_earlier_one_took_out_repeats_the_rest():
    inserted = change(
        "insert", "out", where="before", choices=[None, [{"class": "Dense", "units": 8}, {"class": "ReLU"}]]
    )
    models = space(inserted, change("repeat", "out_before_1", times=[0]), change("repeat", "out", times=[2]))
    assert list(layers_of(models.member(1)))[-4:] == ["out_before_2", "out", "out_before_2_2", "out_2"]


def test_a_layer_choice_keeps_the_name_and_may_be_several_layers_or_none():
    models = space(
        change(
            "layer", "pool", choices=["keep", [{"class": "ReLU"}, {"class": "AveragePooling2D", "pool_size": 2}], None]
        )
    )
    kept, several, none = (layers_of(member) for member in models.members())
    assert kept["pool"][0] == "MaxPooling2D"
    assert several["pool"] == ("AveragePooling2D", ["pool_1"]) and several["pool_1"] == ("ReLU", ["conv"])
    assert "pool" not in none and none["flat"][1] == ["conv"]


def test_a_block_with_a_way_around_it_is_repeated_whole():
    models = space(change("repeat", "inner", to="sum", times=[0, 1, 3]), base=RESIDUAL)
    assert list(layers_of(models.member(0))) == ["x", "first", "out"], "zero times: without the block"
    models = space(change("repeat", "inner", to="sum", times=[1, 3]), base=RESIDUAL)
    made = layers_of(models.member(1))
    assert made["inner_2"][1] == ["sum"] and made["sum_2"][1] == ["sum", "inner_2"]
    assert made["sum_3"][1] == ["sum_2", "inner_3"] and made["out"][1] == ["sum_3"]
    assert models.member(1).record == [
        {"primitive": "copy", "layers": ["inner", "sum"], "to": ["inner_2", "sum_2"]},
        {"primitive": "copy", "layers": ["inner", "sum"], "to": ["inner_3", "sum_3"]},
    ]


def test_inputs_are_chosen_and_what_nobody_needs_is_left_out():
    mutator = {"change": "inputs", "match": "sum", "from": ["first", "inner"], "least": 1, "most": 2}
    models = space(mutator, base=RESIDUAL)
    assert [member.choices["inputs of sum"] for member in models.members()] == [
        ["first"],
        ["inner"],
        ["first", "inner"],
    ]
    assert "inner" not in layers_of(models.member(0))
    assert models.member(2).record == [], "it takes both already"


def test_a_removed_layer_is_not_an_input_but_what_stands_in_its_place_is():
    models = space(change("remove", "inner"), {"change": "inputs", "match": "sum", "from": ["inner"]}, base=RESIDUAL)
    assert layers_of(models.member(0))["sum"][1] == ["inner"] and layers_of(models.member(1))["sum"][1] == ["first"]


def test_a_cell_has_choices_for_inputs_and_operations_and_equal_copies():
    operations = [None, {"class": "Conv2D", "filters": 8, "kernel_size": 1}]
    models = space(
        change("cell", "conv", nodes=2, inputs=2, operations=operations, join="Add", times=[1, 2]), adapt="project"
    )
    assert models.size == 2 * 4 * (2 * 2) * 4
    for member in models.members():
        assert member.misfit is None and layers_of(member)["pool"][1] == ["conv"]
    copied = with_choices(models, conv_times=2, conv_node_1_1_operation=operations[1])
    filters = [name for name, (kind, _) in layers_of(copied).items() if kind == "Conv2D" and name.count("_1_1_1")]
    assert {"conv_1_1_1_1", "conv_2_1_1_1"} <= set(filters)


@pytest.mark.parametrize(
    "match,names",
    [
        ("hidden", ["hidden"]),
        ("*o*", ["conv", "pool", "out"]),
        ({"class": "Dense"}, ["hidden", "out"]),
        ({"class": ["Dense", "Flatten"], "position": 1}, ["flat"]),
        ({"name": "?o*", "position": [1, 2]}, ["conv", "pool"]),
    ],
)
def test_matches(match, names):
    each = change("value", match, argument="autocast", choices=[1, 2])
    models = space(each)
    assert [point.name for point in models.points(1)] == [f"{name}.autocast" for name in names]
    assert models.size == 2 ** len(names) and space({**each, "together": True}).size == 2, "one choice for all"


def test_base_models_have_their_own_mutators_and_members_come_base_by_base():
    bases = [Base(3, dense(8)), Base(7, dense(16))]
    models = space(
        change("value", "hidden", argument="units", choices=[2, 4], base=3),
        change("insert", "hidden", choices=[None, {"class": "Dropout", "rate": 0.1}]),
        base=bases,
    )
    assert models.size == 4 + 2 and [member.model_id for member in models.members()] == [3] * 4 + [7] * 2


def test_projections_let_a_merge_take_other_shapes():
    narrow = change("value", "inner", argument="units", choices=[5, 8, 13])
    alone, adapted = space(narrow, base=RESIDUAL), space(narrow, base=RESIDUAL, adapt="project")
    assert [member.misfit is None for member in alone.members()] == [False, True, False]
    assert "sum: Add takes inputs of equal shapes, not (8), (5)" in alone.member(0).misfit
    found = [layers_of(member) for member in adapted.members()]
    assert found[0]["sum"][1] == ["first", "sum_project_2"] and found[2]["sum"][1] == ["sum_project_1", "inner"]
    assert "sum_project_1" not in found[1]


def test_the_inputs_of_a_base_are_not_changed():
    text = json.dumps(json.loads(CNN))
    base = Base(1, text)
    models = space(*ALL_KINDS, base=[base])
    list(models.members())
    assert base.architecture == text and models.member(0) == space(*ALL_KINDS).member(0)


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_of_members_are_unique_whatever_the_base_calls_its_layers():
    base = sequential(
        "s", [4], *(layer("Dense", name=f"d{end}", units=4) for end in ("", "_2", "_3", "_after", "_after_2"))
    )
    models = space(
        change("insert", "d*", choices=[{"class": "ReLU"}, [{"class": "ReLU", "name": "d"}, {"class": "ReLU"}]]),
        change("repeat", {"name": "d", "position": 1}, times=[2, 3]),
        base=base,
    )
    for member in models.sample(40, 1).members:
        names = [one["name"] for one in json.loads(member.architecture)["config"]["layers"]]
        assert len(set(names)) == len(names)


# --- what is refused --------------------------------------------------------------------------------------------------


def value(choices, name="conv", argument="filters"):
    return change("value", name, argument=argument, choices=choices)


def inputs(*names, **more):
    return change("inputs", "flat", **{"from": list(names), **more})


VALUE = '[{"change": "value", "match": "conv", "argument": "filters", "choices": [%s]}]'
RELU = {"class": "ReLU"}
KEYS = ",".join(f'"{chr(0x4E00 + n % 20_000)}{n // 20_000}":1' for n in range(60_000))
WRITTEN = layer("Dense", name="hidden", units=4, activation="relu", use_bias=True, trainable=True, dtype="float32")
BY_KERAS = sequential("s", [4], WRITTEN, layer("Dense", name="out", units=2))


@pytest.mark.parametrize(
    "mutators,fragment",
    [
        ("", "not JSON"),
        ('[{"match": "conv"}]', "has change null"),
        ('[{"a":{' + KEYS + ',"zz":1,"zz":1}}]', 'key "zz" twice'),
        (VALUE % "NaN", "no number of JSON"),
        (VALUE % '"\\u0000"', "cannot store"),
        (VALUE % ("9" * 5000), "not JSON"),
        ("[" * 100_000, "not JSON"),
        (VALUE % ("[" * 60 + "]" * 60), f"deeper than {MOST_DEPTH}"),
        ([change("value", "conv", argument="units")], "has choices null"),
        ([value([])], "no list of options"),
        ([value(list(range(1001)))], "1001 choices, at most 1000"),
        ([value([1], argument="a.b")], "no argument of a layer"),
        ([value(["x"], argument="name")], "no mutator may change"),
        ([value([1, 2], "hidden", "unitz")], "sets 'unitz', which is no argument"),
        *(([value([wrong])], "above 0") for wrong in (0, 2.5, True, 10**300, "8")),
        ([change("insert", "conv", choices=[{"class": "Dropout", "rate": 1.5}])], "from 0 to 1"),
        ([{**value([1]), "often": 2}], 'the key "often"'),
        ([change("layer", "pool", choices=[{"class": "AveragePooling2D"}])], "AveragePooling2D needs pool_size"),
        ([change("insert", "conv", choices=[{"class": "Lambda", "function": "f"}])], "'Lambda' may not be loaded"),
        *(([change("insert", "conv", choices=[{**RELU, "name": name}])], "mutator 1") for name in (3, ["a"], True)),
        ([change("insert", "conv", where="beside", choices=[None])], "neither after nor before"),
        *(([change("repeat", "conv", times=[times])], "no integer from 0 to 100") for times in (-1, 101, "2")),
        ([{"change": "inputs", "match": "flat", "from": "conv"}], "no list of layers' names"),
        ([inputs("nobody")], "matches no other layer"),
        ([inputs("conv", least=3, most=2)], "at least 3"),
        ([inputs("hidden")], "makes a cycle"),
        ([inputs(*["h*"] * 100_000)], "from 100000 names, at most 1000"),
        ([change("cell", "conv", operations=[None], nodes=99)], "no integer from 1 to"),
        ([change("remove", {"class": "Nothing"})], "no layer class of Keras"),
        ([change("remove", "nobody*")], "mutator 1 (remove) matches no layer: nobody*"),
        ([change("remove", "conv", base=2)], "has base 2, which is no base model"),
        ([value([1])] * 2, "a second time"),
        # what depends on two choices, or is the place of a cell
        ([change("insert", "hidden", choices=[None, RELU]), change("repeat", "hidden*", times=[0, 2])], "two choices"),
        ([change("cell", "conv", operations=[None, RELU]), change("remove", "conv")], "the place of a cell"),
        # too large
        (
            [
                change("insert", n, choices=[None, {**RELU, "name": n + "n"}])
                for n in ["hidden" + "n" * k for k in range(101)]
            ],
            "more than 99 others",
        ),
        ([change("repeat", "hidden", to=to, times=[100]) for to in ("hidden", "hidden_100")], "more than 2000 layers"),
        ([change("insert", "hidden", choices=[None, [RELU] * 50_000])], "option of 50000 layers, at most 200"),
        ([change("cell", "hidden", operations=[[RELU] * 200], nodes=10, inputs=2, times=[1, 100])], "more than 2000"),
        ([change("insert", "hidden", choices=[None, *([RELU] * n for n in range(1, 201))])] * 2, "more than 20000"),
    ],
)
def test_mutators_are_refused_at_once(mutators, fragment):
    begun = time.process_time()
    with pytest.raises(SpaceError) as error:
        ModelSpace([Base(1, CNN)], mutators if isinstance(mutators, str) else json.dumps(mutators))
    assert fragment in str(error.value) and len(str(error.value)) < 1000
    assert time.process_time() - begun < 20


def test_other_arguments_that_are_refused():
    for adapt, number, fragment in (("reshape", 0, "not 'reshape'"), (None, -1, "no member"), (None, 2, "no member")):
        with pytest.raises(SpaceError, match=fragment):
            space(value([1, 2]), adapt=adapt).member(number)
    with pytest.raises(SpaceError, match="sets 'unit', which is no argument of the Dense 'hidden'"):
        space(value([1], "hidden", "unit"), base=BY_KERAS)  # Keras has written this layer with all of its arguments


def deep(count):
    """Mutators each of which inserts after the layer that the one before has inserted."""
    names = ["hidden", *(f"n{i}" for i in range(count))]
    return [
        change("insert", name, choices=[None, {"class": "ReLU", "name": new}]) for name, new in zip(names, names[1:])
    ]


def test_choices_as_deep_as_is_allowed_are_counted_and_made():
    models = space(*deep(99))
    assert models.size == 100
    assert [len(layers_of(models.member(n))) for n in (0, 50, 99)] == [6, 56, 105]
    assert showing.text(models, models.sample(2, 0))


def test_a_merge_and_a_layer_take_each_others_place():
    merge = change("layer", "hidden", choices=["keep", {"class": "Add"}])
    member = space(merge).member(1)
    call = next(one for one in json.loads(member.architecture)["config"]["layers"] if one["name"] == "hidden")
    assert isinstance(call["inbound_nodes"][0]["args"][0], list) and member.misfit is None
    other = space(change("layer", "sum", choices=[{"class": "ReLU"}, {"class": "Concatenate"}]), base=RESIDUAL)
    assert other.member(0).misfit == "sum: ReLU takes one input, not 2" and other.member(1).misfit is None


@pytest.mark.parametrize(
    "bases,fragment",
    [
        ([], "needs a base model"),
        ([Base(1, "{}")], "base model 1 cannot be used: the architecture is not the JSON"),
        ([Base(1, dense()), Base(1, dense())], "base model 1 is named twice"),
        ([Base(1, dense(inputs=4)), Base(2, dense(inputs=5))], "no common input: 1 takes (4), 2 takes (5)"),
        ([Base(1, dense(classes=2)), Base(2, dense(classes=3))], "different outputs: 1 puts out (2), 2 puts out (3)"),
        (
            [Base(1, sequential("s", [4], layer("Conv2D", name="c", filters=1, kernel_size=1)))],
            "c: Conv2D takes an input of 3",
        ),
        ([Base(1, sequential("s", [4], layer("Dense", name="c")))], "c: Dense needs units"),
        ([Base(1, sequential("s", [4], layer("Lambda", name="c")))], "'Lambda' may not be loaded"),
        (
            [
                Base(
                    1,
                    functional(
                        node("InputLayer", "x", batch_shape=[None, 4]),
                        node("Add", "a", "x", "out"),
                        node("Dense", "out", "a", units=4),
                    ),
                )
            ],
            "form a cycle",
        ),
        (
            [Base(1, functional(node("InputLayer", "x", batch_shape=[None, 4]), node("Dense", "out", "y", units=4)))],
            "'y'",
        ),
    ],
)
def test_base_models_that_are_refused(bases, fragment):
    with pytest.raises(SpaceError) as error:
        ModelSpace(bases, "[]")
    assert fragment in str(error.value)


def test_a_space_without_any_member_that_fits_is_refused():
    models = space(change("layer", "pool", choices=[{"class": "MaxPooling2D", "pool_size": size} for size in (9, 10)]))
    with pytest.raises(
        SpaceError, match=r"no member of the space fits together \(2 of 2 looked at\): pool: the window"
    ):
        models.check_some()


def test_a_large_space_of_which_little_fits_is_looked_at_in_bounded_time():
    models = space(
        change("value", "out", argument="units", choices=list(range(1, 1001))),
        change("value", "hidden", argument="units", choices=list(range(1, 1001))),
    )
    found = models.check_some()
    assert found.tried == 1000 and 0 <= found.fitting < 20
    assert all("an output has shape" in reason for reason in found.refused)


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind,config,shapes,made",
    [
        ("Conv2D", {"filters": 3, "kernel_size": [3, 5], "strides": 2}, [(9, 9, 1)], (4, 3, 3)),
        ("Conv1D", {"filters": 3, "kernel_size": 3, "padding": "causal"}, [(None, 2)], (None, 3)),
        ("Flatten", {}, [(2, 3, 4)], (24,)),
        ("Flatten", {}, [(None, 3)], (None,)),
        ("Concatenate", {"axis": 1}, [(2, 3), (5, 3)], (7, 3)),
        ("Multiply", {}, [(8, 8, 4), (1, 1, 4)], (8, 8, 4)),
        ("Dense", {"units": 5}, [None], None),
        ("GRU", {"units": 5, "return_sequences": True}, [(7, 2)], (7, 5)),
        ("Reshape", {"target_shape": [-1, 2]}, [(6,)], (3, 2)),
        ("SomethingNew", {}, [(6,)], None),
    ],
)
def test_shapes(kind, config, shapes, made):
    assert output_shape(kind, config, shapes) == made


@pytest.mark.parametrize(
    "kind,config,shapes",
    [
        ("Conv2D", {"filters": 3, "kernel_size": 3}, [(9, 9)]),
        ("Conv2D", {"filters": 3, "kernel_size": 3, "dilation_rate": 4}, [(8, 8, 1)]),
        ("Conv2D", {"filters": 3, "kernel_size": 1, "groups": 2}, [(8, 8, 4)]),
        ("GRU", {"units": 5}, [(7,)]),
        ("Subtract", {}, [(3,), (3,), (3,)]),
        ("Concatenate", {"axis": 3}, [(3, 2), (3, 2)]),
        ("Concatenate", {}, [(3, 2), (4, 2)]),
        ("Cropping1D", {"cropping": [2, 2]}, [(4, 1)]),
        ("Permute", {"dims": [1, 3]}, [(4, 1)]),
        ("Reshape", {"target_shape": [4, 2]}, [(6,)]),
        ("Dense", {"units": None}, [(6,)]),
    ],
)
def test_shapes_that_do_not_fit(kind, config, shapes):
    with pytest.raises(Misfit):
        output_shape(kind, config, shapes)


# --- random spaces ----------------------------------------------------------------------------------------------------


def random_layers(random):
    some = [
        {"class": "Dense", "units": 8},
        {"class": "Dropout", "rate": 0.1},
        {"class": "Conv2D", "filters": 4, "kernel_size": 3, "padding": "same"},
        {"class": "MaxPooling2D"},
        {"class": "Flatten"},
        {"class": "Add"},
        {"class": "BatchNormalization"},
        {"class": "LSTM", "units": 3},
    ]
    return random.choice([None, random.choice(some), [random.choice(some) for _ in range(random.randint(1, 3))]])


def random_mutator(random, names):
    kind = random.choice(["value", "layer", "insert", "remove", "repeat", "inputs", "cell"])
    name = random.choice(names)
    by_class = {
        "class": random.choice(["Dense", "Conv2D", "Add", "Dropout"]),
        "position": random.choice([1, -1, [1, -1]]),
    }
    mutator = change(kind, random.choice([name, name + "*", "*", by_class]))
    layers = [random_layers(random) for _ in range(random.randint(1, 3))]
    options = list({json.dumps(option): option for option in layers}.values())
    if kind == "value":
        mutator.update(match={"class": "Dense"}, argument="units", choices=[4, 8])
    elif kind == "layer":
        mutator["choices"] = random.choice([options, ["keep", *options]])
    elif kind == "insert":
        mutator.update(choices=options, where=random.choice(["before", "after"]))
    elif kind == "repeat":
        mutator["times"] = random.choice([[1, 2], [0, 1], [3], [0, 2, 4]])
        if random.random() < 0.5:
            mutator["to"] = random.choice(names) + "*"
    elif kind == "inputs":
        mutator.update({"from": random.sample(names, 2), "most": random.randint(1, 2)})
    elif kind == "cell":
        mutator.update(operations=options, nodes=random.randint(1, 3), inputs=random.randint(1, 2), times=[1, 2])
        mutator["join"] = random.choice(["Add", "Concatenate"])
    if kind in ("value", "layer", "insert", "remove"):
        mutator["together"] = random.random() < 0.3
    return mutator


def test_random_spaces_are_refused_or_have_numbered_members_with_unique_names():
    random, made, fitting = Random(0), 0, 0
    for _ in range(draws(30, 300)):
        base, names = random.choice(
            [
                (CNN, ["conv", "pool", "flat", "hidden", "out"]),
                (RESIDUAL, ["first", "inner", "sum", "out"]),
                (RICH, ["stem", "side", "sum", "pool", "more", "mean", "hidden", "out"]),
            ]
        )
        mutators = [random_mutator(random, names) for _ in range(random.randint(1, 5))]
        try:
            models = space(*mutators, base=base, adapt=random.choice([None, "project"]))
        except SpaceError:
            continue
        made += 1
        listed = models.size <= 30
        numbers = range(models.size) if listed else [random.randrange(models.size) for _ in range(10)]
        members = [models.member(number) for number in numbers]
        assert not listed or len({json.dumps(member.choices) for member in members}) == models.size
        for member in members:
            assert models.of_choices(1, member.chosen) == member
            if member.misfit is None:
                fitting += 1
                layers = [one["name"] for one in json.loads(member.architecture)["config"]["layers"]]
                assert len(set(layers)) == len(layers)
        assert showing.text(models, models.sample(2, 0))
    assert made > 3 and fitting > 1


# --- small texts that ask for much work ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mutators",
    [
        [change("insert", "hidden", choices=[None, [RELU] * 100])],
        [change("value", "hidden", argument="units", choices=list(range(1, 200)))],
        [change("insert", "hidden", choices=[RELU])] * 100,
        [change("repeat", "hidden", times=[1, 100])],
    ],
)
def test_a_cancel_is_heard_while_a_space_is_read(mutators):
    class Cancelled(BaseException):
        pass

    heard = []

    def check():
        heard.append(1)
        if len(heard) > 60:
            raise Cancelled

    with pytest.raises(Cancelled):
        ModelSpace([Base(1, CNN)], json.dumps(mutators), check=check)


# --- odd values ------------------------------------------------------------------------------------------------------------


def test_a_member_of_too_many_parameters_does_not_fit():
    wide = {"class": "Dense", "units": 2**31 - 1}
    models = space(change("insert", "hidden", choices=[None, [wide] * 4, [wide, {"class": "Dense", "units": 4}]]))
    assert "more than 2^40 parameters" in models.member(1).misfit
    assert models.member(2).parameters > 2**31
    assert sorted(member.number for member in models.sample(10, 0).members) == [0, 2]
