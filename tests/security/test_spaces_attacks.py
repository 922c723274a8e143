"""Model spaces: the attacks on architectures again, through base models and mutators; and other roles' spaces."""

import json

import pytest

from payloads import ARCHITECTURES, call, code, made
from pg_mop.spaces import Base, ModelSpace, SpaceError
from workload import dense, load, sequential
from workload import layer as plain_layer

GOOD = dense()


@pytest.fixture
def mark(tmp_path):
    yield tmp_path / "mark"
    assert not (tmp_path / "mark").exists(), "the attack has left its mark"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_base_model(name, mark):
    _, make, fragment = ARCHITECTURES[name]
    data = make(str(mark))
    with pytest.raises(SpaceError, match=fragment):
        ModelSpace([Base(1, data if isinstance(data, str) else json.dumps(data))], "[]")


def layers_of(data):
    """The layers of an attack."""
    config = data.get("config") if isinstance(data, dict) else None
    layers = config if isinstance(config, list) else config.get("layers") if isinstance(config, dict) else None
    return [one for one in layers or () if isinstance(one, dict) and one.get("class_name") != "InputLayer"]


OF_LAYERS = [
    name for name, (_, make, fragment) in ARCHITECTURES.items() if "layer class" in fragment and layers_of(make("m"))
]


@pytest.mark.parametrize("change", ["layer", "insert", "cell"])
@pytest.mark.parametrize("name", OF_LAYERS)
def test_a_layer_of_a_mutator(name, change, mark):
    _, make, fragment = ARCHITECTURES[name]
    layers = layers_of(make(str(mark)))
    key = "operations" if change == "cell" else "choices"
    with pytest.raises(SpaceError, match=fragment):
        ModelSpace([Base(1, GOOD)], json.dumps([{"change": change, "match": "hidden", key: [layers]}]))


def test_there_are_attacks_by_layers():
    assert len(OF_LAYERS) > 4


OBJECTS = {
    "code": lambda m: code(m),
    "a function of Python": lambda m: call("builtins", "exec", f"open({m!r}, 'w').close()"),
    "a class of Python": lambda m: made("subprocess", "Popen", args=["touch", m]),
    "a registered name": lambda m: {"class_name": "mine>Evil", "config": {}, "registered_name": "mine>Evil"},
    "another module": lambda m: {"module": "os", "class_name": "system", "config": f"touch {m}"},
}


@pytest.mark.parametrize(
    "argument",
    [
        "activation",
        "kernel_initializer",
        "bias_initializer",
        "kernel_regularizer",
        "activity_regularizer",
        "kernel_constraint",
        "units",
        "anything",
        "dtype_policy",
    ],
)
@pytest.mark.parametrize("name", OBJECTS)
def test_a_value_of_a_mutator(name, argument, mark):
    value = OBJECTS[name](str(mark))
    for option in (value, [value], {"class_name": "L2", "config": {"l2": value}}):
        mutators = json.dumps([{"change": "value", "match": "hidden", "argument": argument, "choices": [option]}])
        try:
            members = list(ModelSpace([Base(1, GOOD)], mutators).members())
        except SpaceError:
            continue
        assert all(member.misfit for member in members), (argument, option)


@pytest.mark.parametrize(
    "field", ["name", "match", "argument", "change", "base", "where", "join", "to", "times", "from"]
)
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_in_another_field(name, field, mark):
    for kind, own in (
        ("value", {"argument": "units", "choices": [3]}),
        ("insert", {"choices": [None]}),
        ("repeat", {"times": [1]}),
        ("inputs", {"from": ["dense_in"]}),
        ("cell", {"operations": [None]}),
    ):
        mutator = {"change": kind, "match": "hidden", **own, field: OBJECTS[name](str(mark))}
        with pytest.raises(SpaceError):
            ModelSpace([Base(1, GOOD)], json.dumps([mutator]))


# --- roles ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ann(db):
    """A session of a role that has a space; and one of a stranger."""
    db.run("CREATE ROLE space_ann LOGIN; CREATE ROLE space_ben LOGIN; GRANT mop_user TO space_ann, space_ben")
    db.run("CREATE SCHEMA space_room; GRANT USAGE, CREATE ON SCHEMA space_room TO space_ann, space_ben")
    client = db.another("space_ann")
    client.run("SET search_path = space_room")
    load(client, "arch", GOOD)
    client.run(
        "SELECT madlib.mop_space('own', 'arch', ARRAY[1], "
        """'[{"change": "value", "match": "hidden", "argument": "units", "choices": [4, 8]}]')"""
    )
    yield client
    client.close()
    for role in ("space_ann", "space_ben"):
        db.run(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
    db.run("DROP SCHEMA space_room CASCADE")


def test_a_space_of_another_role_is_read_only_with_its_grant(db, ann):
    ben = db.another("space_ben")
    try:
        for call_ in (
            "mop_space_size('space_room.own')",
            "mop_space_show('space_room.own')",
            "mop_space_sample('space_room.own')",
            "mop_search('flowers_packed', 'x', NULL, $${'loss': ['mse']}$$, model_space => 'space_room.own')",
            "mop_space('space_room.mine', 'space_room.arch', ARRAY[1], '[]')",
        ):
            error = ben.error(f"SELECT madlib.{call_}")
            assert "permission denied" in str(error) or "does not exist" in str(error)
            assert "hidden" not in str(error)
        ann.run("GRANT SELECT ON own TO space_ben")
        assert ben.value("SELECT madlib.mop_space_size('space_room.own')") == 2
        assert "permission denied" in str(ben.error("UPDATE space_room.own SET adapt = 'project'"))
        ann.run("REVOKE SELECT ON own FROM space_ben; GRANT SELECT (mutators) ON own TO space_ben")
        assert "permission denied" in str(ben.error("SELECT madlib.mop_space_size('space_room.own')"))
    finally:
        ben.close()


def test_row_security_on_a_space_counts(db, ann):
    ben = db.another("space_ben")
    try:
        ann.run("GRANT SELECT ON own TO space_ben; ALTER TABLE own ENABLE ROW LEVEL SECURITY")
        assert "is empty" in str(ben.error("SELECT madlib.mop_space_size('space_room.own')"))
    finally:
        ben.close()


def test_hostile_spaces_in_the_database_run_nothing(db, ann, tmp_path):
    evil = json.loads(sequential("s", [4], plain_layer("Lambda", name="x", function=code(str(tmp_path / "mark")))))
    base = json.dumps([{"model_id": 1, "name": None, "model_arch": evil}])
    ann.run("UPDATE own SET base = %s", [base])
    for call_ in ("mop_space_size('own')", "mop_space_show('own')", "mop_space_sample('own')"):
        assert "layer class 'Lambda' may not be loaded" in str(ann.error(f"SELECT madlib.{call_}"))
    assert not (tmp_path / "mark").exists()
