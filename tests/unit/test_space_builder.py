"""The client's builder of model spaces: the JSON that it writes, and pictures of base models."""

import json

import numpy
import pytest

from pg_mop.spaces import Base, ModelSpace
from pg_mop.spaces.showing import data
from pg_mop_client import ClientError, Space, layer, match
from support.golden import assert_golden
from support.workload import dense
from support.workload import layer as keras_layer


def functional():
    """A net with two branches that a merge adds."""

    def made(kind, name, sources, **config):
        nodes = [[[source, 0, 0, {}] for source in sources]] if sources else []
        return {**keras_layer(kind, name=name, **config), "name": name, "inbound_nodes": nodes}

    layers = [
        made("InputLayer", "in", [], batch_input_shape=[None, 4]),
        made("Dense", "left", ["in"], units=8),
        made("Dense", "right", ["in"], units=8),
        made("Add", "sum", ["left", "right"]),
        made("Dense", "out", ["sum"], units=3),
    ]
    config = {"name": "two", "layers": layers, "input_layers": [["in", 0, 0]], "output_layers": [["out", 0, 0]]}
    return json.dumps({"class_name": "Functional", "config": config})


def test_every_mutator_is_written_as_mop_space_reads_it():
    drop = layer("Dropout", rate=0.2)
    space = (
        Space(base=[1, 2])
        .choose("left", "units", numpy.array([8, 16]), name="width")
        .choose(match(kind="Dense", position=[1, -1]), "use_bias", [True, False], together=True, base=1)
        .replace("right", ["keep", [layer("Dense", units=8), drop], layer("Dense", units=8, activation="relu")])
        .insert("left", [None, drop])
        .insert("right", [None, drop], before=True, name="early")
        .repeat("left", [1, 2], to="left")
        .connect("sum", ["left", "right"], least=1, most=2)
        .cell("out", [layer("Dense", units=3)], nodes=2, inputs=2, join="Add", times=[1])
    )
    assert_golden("space_of_the_client", "\n".join(map(json.dumps, json.loads(space.json()))))
    assert str(space) == space.json() and repr(space) == "<space of models 1, 2, 8 mutators>"
    made = ModelSpace([Base(1, functional()), Base(2, functional())], space.json(), "project")
    assert made.size > 100 and made.check_some().fitting
    assert json.loads(Space().remove("left", together=True).json()) == [
        {"change": "remove", "match": "left", "together": True}
    ]
    assert Space().json() == "[]" and repr(Space(3)) == "<space of models 3, 0 mutators>"


def test_a_space_is_the_beginning_of_several():
    first = Space([1]).choose("hidden", "units", [4, 8])
    one, other = first.remove("hidden"), first.repeat("hidden", [1, 2])
    assert [len(space.mutators) for space in (first, one, other)] == [1, 2, 2] and one.json() != other.json()


@pytest.mark.parametrize(
    "make,error,text",
    [
        (lambda: Space().insert("a", [lambda x: x]), ClientError, "cannot be written as JSON"),
        (lambda: Space().choose(7, "rate", [1]), ClientError, "matches a layer's name"),
        (lambda: match(), ClientError, "match needs a name"),
        (lambda: Space(base="12"), ClientError, "base must be a model_id or a list of them, not the text '12'"),
        (lambda: Space().remove("a", base="12"), ClientError, "base must be a model_id or a list"),
        (lambda: Space().choose("x", "activation", "relu"), ClientError, "values must be a list, not the text 'relu'"),
        (lambda: Space().replace("x", "keep"), ClientError, "options must be a list"),
        (lambda: Space().connect("x", "left"), ClientError, "sources must be a list"),
        (lambda: Space().repeat("a", [1], together=True), TypeError, "no argument 'together'"),
        (lambda: Space().choose("a", "units", [1], where="before"), TypeError, "no argument 'where'"),
    ],
)
def test_wrong_calls(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_a_space_as_data_has_what_its_text_has():
    mutators = Space().repeat("hidden", [0, 1, 2]).choose("hidden*", "units", [4, 8]).json()
    found = data(space := ModelSpace([Base(1, dense(), "net")], mutators), space.check_some())
    (model,) = found["models"]
    assert (found["members"], model["members"], model["model_id"], model["name"]) == ("7", "7", 1, "net")
    assert found["looked"]["tried"] == 7 and found["looked"]["fitting"] == 7
    layers = {one["name"]: one for one in model["layers"]}
    assert layers["out"]["from"] == ["hidden"]
    assert [(p["name"], p["depth"], p["parent"], p["when"], p["text"]) for p in model["points"]] == [
        ("times hidden", 0, None, None, "0 | 1 | 2"),
        ("hidden.units", 1, "times hidden", "1 | 2", "4 | 8"),
        ("hidden_2.units", 1, "times hidden", "2", "4 | 8"),
    ]
    assert {p["layer"] for p in model["points"]} == {"hidden"}
    wide = [{"change": "value", "match": "hidden", "argument": "units", "choices": list(range(1, 200))}] * 1
    many = ModelSpace(
        [Base(1, dense())], json.dumps([*wide, *([{"change": "repeat", "match": "out", "times": [1, 2]}])])
    )
    json.dumps(data(many, many.check_some()))
