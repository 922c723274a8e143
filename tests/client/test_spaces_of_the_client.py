"""Model spaces from Python: built, created, sampled and searched on a server."""

import json

import pytest

from pg_mop_client import Selection, ServerError, Space, layer
from support.custom_code import LAYER, pickle, put
from support.workload import dense, load, make_data


@pytest.fixture(scope="module")
def s(db):
    make_data(db, segments=2)
    load(db, "arch", dense(), dense(32))
    with Selection(db.uri(), progress=False, kernel="plain", seed=3) as selection:
        yield selection


def test_a_space_in_a_few_lines_is_searched(db, s):
    space = Space(base=[1]).repeat("hidden", [1, 2]).choose("hidden*", "units", [4, 8, 16])
    space = space.insert("hidden", [None, layer("Dropout", rate=0.1)], together=True)
    made = space.create(s, "py_space", "arch")
    assert made.size() == db.value("SELECT madlib.mop_space_size('py_space')") == (3 + 9) * 2
    assert json.loads(space.json()) == db.value("SELECT mutators FROM py_space")
    assert made.show() == str(made) == db.value("SELECT madlib.mop_space_show('py_space')")
    sample = s.space("py_space").sample(5, seed=1)
    assert len(sample) == 5 and set(sample.model_id) == {1}
    found = made.data
    assert found["members"] == "24" and [one["model_id"] for one in found["models"]] == [1]
    run = s.mop_search(
        "flowers_packed",
        "py_found",
        None,
        {"loss": ["categorical_crossentropy"], "optimizer": ["Adam()"], "batch_size": [8]},
        "random",
        "iterations=1, trials=2",
        model_space="py_space",
    )
    assert run.info.status == "finished" and db.value("SELECT count(*) FROM py_found_trials") == 2


def test_the_server_refuses_what_it_always_does(db, s):
    with pytest.raises(ServerError, match="Lambda"):
        Space([1]).insert("hidden", [layer("Lambda", function="os.system")]).create(s, "py_bad", "arch")
    with pytest.raises(ServerError, match="matches no layer"):
        Space([1]).choose("nothing", "units", [4]).create(s, "py_bad", "arch")
    assert db.value("SELECT to_regclass('py_bad') IS NULL")
    name = '"a ""py"" space\'; DROP TABLE arch; --"'
    assert Space([1]).remove("hidden").create(s, name, "arch").size() == 2
    with pytest.raises(ServerError, match="format must be 'text' or 'json'"):
        s.mop_space_show(name, "html")
    with pytest.raises(ServerError):
        s.space("no_such_space").size()


def test_a_space_may_name_an_object_table(db, s):
    put(db, "Scale", pickle("Scale", LAYER))
    space = Space([1]).insert("hidden", [None, layer("Scale", start=2.0)])
    assert space.create(s, "py_scaled", "arch", object_table="layers").size() == 2
    assert list(db.value("SELECT custom_layers FROM py_scaled")["digests"]) == ["Scale"]
    with pytest.raises(ServerError, match="Scale"):
        space.create(s, "py_bad", "arch")
