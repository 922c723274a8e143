"""Model spaces: the attacks on architectures again, through base models and mutators; and other roles' spaces."""

import json

import pytest

from pg_mop.spaces import Base, ModelSpace, SpaceError
from support.payloads import ARCHITECTURES, call, code, made
from support.workload import dense, load, make_data, sequential
from support.workload import layer as plain_layer

GOOD = dense()


@pytest.fixture
def mark(tmp_path):
    yield tmp_path / "mark"
    assert not (tmp_path / "mark").exists(), "the attack has left its mark"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_base_model(name, mark):
    make, fragment = ARCHITECTURES[name]
    data = make(str(mark))
    with pytest.raises(SpaceError, match=fragment):
        ModelSpace([Base(1, data if isinstance(data, str) else json.dumps(data))], "[]")


def layers_of(data):
    """The layers of an attack."""
    config = data.get("config") if isinstance(data, dict) else None
    layers = config if isinstance(config, list) else config.get("layers") if isinstance(config, dict) else None
    return [one for one in layers or () if isinstance(one, dict) and one.get("class_name") != "InputLayer"]


OF_LAYERS = [
    name for name, (make, fragment) in ARCHITECTURES.items() if "layer class" in fragment and layers_of(make("m"))
]


@pytest.mark.parametrize("change", ["layer", "insert", "cell"])
@pytest.mark.parametrize("name", OF_LAYERS)
def test_a_layer_of_a_mutator(name, change, mark):
    make, fragment = ARCHITECTURES[name]
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


CASTS = """CREATE TABLE proof (who text); GRANT INSERT ON proof TO PUBLIC;
CREATE TYPE evil AS (t text);
CREATE FUNCTION said(evil) RETURNS text LANGUAGE plpgsql AS
    $f$ BEGIN INSERT INTO space_room.proof VALUES (current_user); RETURN $1.t; END $f$;
CREATE CAST (evil AS text) WITH FUNCTION said(evil);
CREATE TABLE spoilt AS SELECT row(base::text)::evil AS base, mutators, adapt FROM own;
CREATE TABLE spoilt_arch AS SELECT model_id, model_arch, model_weights, row('n')::evil AS name FROM arch;
CREATE TABLE spoilt_json AS SELECT model_id, row(model_arch::text)::evil AS model_arch, model_weights FROM arch;
CREATE TABLE spoilt_sel AS SELECT 1 AS mst_key, 1 AS model_id, row('x')::evil AS compile_params,
    'batch_size=1'::text AS fit_params;
CREATE TABLE spoilt_sel_summary AS SELECT 'space_room.arch'::text AS model_arch_table, NULL::text AS object_table;
GRANT SELECT ON ALL TABLES IN SCHEMA space_room TO space_ben"""


def test_casts_of_another_role_are_not_run(db, ann):
    make_data(db, rows=20, segments=1)
    db.run("GRANT SELECT ON flowers_packed, flowers_packed_summary TO space_ben")
    ann.run(CASTS)
    ben = db.another("space_ben")
    try:
        ben.run("SET search_path = space_room, public")
        space = "$${'loss': ['mse'], 'batch_size': [8]}$$"
        for call_ in (
            "mop_space_size('spoilt')",
            "mop_space_show('spoilt')",
            "mop_space_sample('spoilt')",
            "mop_space('mine', 'spoilt_arch', ARRAY[1], '[]')",
            "mop_space('mine', 'spoilt_json', ARRAY[1], '[]')",
            "load_model_selection_table('spoilt_json', 'sel', ARRAY[1], ARRAY['loss=''mse'''], ARRAY['batch_size=2'])",
            "madlib_keras_fit('flowers_packed', 'm', 'spoilt_json', 1, 'loss=''mse''', 'batch_size=2', 1)",
            "madlib_keras_fit_multiple_model('flowers_packed', 'm', 'spoilt_sel', 1, FALSE)",
            f"mop_search('flowers_packed', 'x', NULL, {space}, model_space => 'spoilt')",
            f"mop_search('flowers_packed', 'x', 'spoilt_json', {space})",
        ):
            assert "has the type space_room.evil, which is not built in" in str(ben.error(f"SELECT madlib.{call_}")), (
                call_
            )
    finally:
        ben.close()
    assert ann.value("SELECT count(*) FROM proof") == 0


OPEN = """SELECT madlib.mop_open_run(json_build_object('coordinator', (SELECT backend FROM madlib.mop_tokens), 'function',
'mop_search', 'source_table', 's', 'model_output_table', 'o', 'seed', 1, 'scheduler', 'x', 'num_iterations', 1,
'metrics_iterations', json_build_array(1), 'configurations', 1, 'segments', 1, 'parameters', '{}'::json,
'sessions', 1), '[]')"""


def test_a_members_record_that_the_view_cannot_read_is_refused(db, ann):
    run = ann.value(OPEN)
    asked = '[{"mst_key": 1, "model_id": 1, "compile_params": "", "fit_params": "", "model_arch": "{}", "member": %s}]'
    for member in (
        '{"parent": "abc"}',
        '{"base": 1e30}',
        '{"member": "x"}',
        '{"changed": "\\u0000"}',
        '{"choices": {"a": "\\ud800"}}',
        '{"primitives": ["\\u0000"]}',
    ):
        error = str(ann.error("SELECT madlib.mop_ask(%s, 1, %s, '[]', '[]')", [run, asked % member]))
        assert "input syntax" in error or "nicode" in error, (member, error)
    db.run("SELECT * FROM madlib.mop_lineage")
    assert db.value("SELECT count(*) FROM madlib.mop_lineage WHERE run_id = %s", [run]) == 0
