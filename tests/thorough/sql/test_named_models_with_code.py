"""Named models whose architecture has code: deployed, shared and measured, as long as the code is the one that they had."""

import json

import psycopg2
import pytest

from support.custom_code import LAYER, MARK, MODEL, pickle, put, stepper, with_scale
from support.workload import ADAM, fit, load, make_data, selection

FAST = ADAM.format(0.01)


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, segments=1)
    db.run("SET pg_mop.kernel = 'plain'; SET pg_mop.seed = 3; SET pg_mop.threads = 1; SET pg_mop.lock_timeout = '300s'")
    put(db, "Scale", pickle("Scale", LAYER))
    put(db, "Stepper", pickle("Stepper", MODEL))
    load(db, "arch", with_scale(activation="softmax"), stepper())
    selection(db, "mst", "arch", [(model, FAST, "batch_size=8") for model in (1, 2)], "madlib.layers")
    fit(db, "flowers_packed", "made", "mst", 1)
    db.run("DROP ROLE IF EXISTS code_reader, code_maker; CREATE ROLE code_reader LOGIN; CREATE ROLE code_maker LOGIN")
    db.run("GRANT mop_user TO code_reader, code_maker; GRANT CREATE ON SCHEMA public TO code_maker")
    yield
    db.run("DROP OWNED BY code_reader, code_maker; DROP ROLE code_reader, code_maker")


@pytest.fixture(autouse=True)
def code(db):
    db.run(
        "DROP TABLE IF EXISTS clever; TRUNCATE madlib.layers; REVOKE ALL ON madlib.layers FROM code_maker, code_reader"
    )
    db.run("GRANT SELECT ON madlib.layers TO PUBLIC")
    put(db, "Scale", pickle("Scale", LAYER))
    put(db, "Stepper", pickle("Stepper", MODEL))
    db.run("SELECT madlib.mop_deploy('clever', 'made', 1)")


def asks(model="clever", version="NULL"):
    """SQL: the answer for one row."""
    return (
        f"""SELECT prediction, probability FROM madlib.mop_predict_row('{model}', '{{"x": [1, 2, 3, 1]}}', {version})"""
    )


def predicted(client, version="NULL"):
    return client.run(asks(version=version))[0]


def plain_answers(db, mst_key):
    """The highest probability of each row, as the model table predicts it."""
    db.run("DROP TABLE IF EXISTS answers")
    db.run(f"SELECT madlib.madlib_keras_predict('made', 'flowers', 'id', 'x', 'answers', 'prob', FALSE, {mst_key})")
    rows = db.run("SELECT max(prob) AS p FROM answers GROUP BY id ORDER BY id")
    return [row["p"] for row in rows]


@pytest.mark.parametrize("mst_key,name", [(1, "Scale"), (2, "Stepper")])
def test_a_named_model_with_code_answers_as_its_model_table(db, mst_key, name):
    db.run("DROP TABLE IF EXISTS clever")
    db.run("SELECT madlib.mop_deploy('clever', 'made', %s)", [mst_key])
    rows = db.run("SELECT probability FROM madlib.mop_predict('clever', source => 'SELECT * FROM flowers ORDER BY id')")
    assert [row["probability"] for row in rows] == pytest.approx(plain_answers(db, mst_key), abs=1e-5)
    told = db.value("SELECT details FROM clever")["custom_code"]
    assert list(told["digests"]) == [name] and told["object_table"].strip('"') == "layers"
    measured = {row["metric"]: row["value"] for row in db.run("SELECT * FROM madlib.mop_evaluate('clever', 'flowers')")}
    assert 0 < measured["accuracy"] <= 1
    assert predicted(db)["prediction"] in ("a", "b", "c")
    db.run("DROP TABLE IF EXISTS written")
    assert db.value("SELECT madlib.mop_predict_into('clever', 'flowers', 'written', 'id')") == len(rows)
    assert f"has the custom class {name}: a .keras file" in str(db.error("SELECT madlib.mop_export_model('clever', 1)"))


def test_code_runs_in_no_process_that_sessions_share(db):
    db.run("SELECT madlib.mop_end_trainers()")
    predicted(db)
    states = {row["state"] for row in db.run("SELECT state FROM madlib.mop_trainers WHERE role = current_user")}
    assert "leased" in states and "serving" not in states


def test_a_role_that_may_read_the_model_predicts(db):
    db.run("SELECT madlib.mop_share('clever', 'code_reader')")
    reader = db.another("code_reader")
    assert predicted(reader)["prediction"] == predicted(db)["prediction"]
    db.run("REVOKE SELECT ON madlib.layers FROM PUBLIC")
    error = reader.error(asks())
    assert "needs code of an object table: permission denied for object table" in str(error)
    assert "GRANT SELECT ON" in error.diag.message_hint
    heard = len(db.connection.notices)
    db.run("SELECT madlib.mop_share('clever', 'code_reader')")
    assert any("may not read object table" in notice for notice in db.connection.notices[heard:])
    reader.close()


def test_changed_or_dropped_code_is_an_error_in_a_session_that_has_predicted(db):
    answer = predicted(db)
    code, what = pickle("Scale", LAYER), 'version 1 of model "clever"'
    db.run(
        "UPDATE madlib.layers SET object = %s WHERE name = 'Scale'", [pickle("Scale", LAYER + "\n# changed\nx = 1\n")]
    )
    db.run("UPDATE madlib.layers SET object = object || 'x'::bytea WHERE name = 'Scale'")
    error = db.error(asks())
    assert f"the custom class 'Scale' of {what} is not the one in madlib" in str(error).replace('"madlib"', "madlib")
    assert error.diag.message_detail == "It was changed after the deployment."
    assert error.pgcode == "55000" and "Train and deploy the model again, or load the code" in error.diag.message_hint
    db.run("DELETE FROM madlib.layers WHERE name = 'Scale'")
    assert db.error(asks()).diag.message_detail == "It was deleted after the deployment."
    db.run("ALTER TABLE madlib.layers RENAME TO away")
    try:
        error = db.error(asks())
        assert f"{what} needs code of an object table: object table" in str(error) and "does not exist" in str(error)
        with pytest.raises(psycopg2.Error, match="needs code of an object table"):
            db.run("SELECT * FROM madlib.mop_evaluate('clever', 'flowers')")
    finally:
        db.run("ALTER TABLE madlib.away RENAME TO layers")
    put(db, "Scale", code)
    assert predicted(db) == answer


def test_code_that_another_role_may_write_is_refused(db):
    predicted(db)
    db.run("GRANT UPDATE ON madlib.layers TO code_maker")
    assert 'may be written by "code_maker"' in str(db.error(asks()))
    db.run("REVOKE UPDATE ON madlib.layers FROM code_maker; ALTER TABLE madlib.layers OWNER TO code_maker")
    try:
        assert "is no superuser" in str(db.error(asks()))
    finally:
        db.run("ALTER TABLE madlib.layers OWNER TO CURRENT_USER")
    assert predicted(db)["prediction"] in ("a", "b", "c")


def test_a_role_cannot_name_code_of_its_own(db, tmp_path):
    """The owner of a model may write anything into its row: no code but superusers' runs for those who read it."""
    tmp_path.chmod(0o777)
    mark = tmp_path / "mark"
    evil = pickle("Scale", MARK.format(name="Scale", base="layers.Dense", path=str(mark)))
    db.run("DROP TABLE IF EXISTS mine; CREATE TABLE mine AS TABLE clever; ALTER TABLE mine OWNER TO code_maker")
    maker = db.another("code_maker")
    maker.run("CREATE TABLE public.layers2 (id serial, name text, description text, object bytea)")
    maker.run("INSERT INTO layers2 (name, object) VALUES ('Scale', %s)", [evil])
    maker.run("GRANT SELECT ON layers2, mine TO PUBLIC")
    digests = {"Scale": db.value("SELECT encode(sha256(%s), 'hex')", [evil])}
    try:
        for told, fragment in (
            ({"object_table": "layers2", "digests": digests}, "does not exist"),
            ({"object_table": "public.layers2", "digests": digests}, "must be in schema"),
            ({"object_table": "layers", "digests": digests}, "is not the one in"),
            ({"object_table": 'layers"; DROP TABLE mine; --', "digests": digests}, "invalid table name"),
            ({"object_table": "layers", "digests": {}}, "name no custom code that can be read"),
            ({"object_table": "layers", "digests": {"Scale": 3}}, "name no custom code that can be read"),
            ({"object_table": 1, "digests": digests}, "name no custom code that can be read"),
            (["Scale"], "name no custom code that can be read"),
            (None, "layer class 'Scale' may not be loaded: only Keras' own layers without code may"),
        ):
            maker.run("UPDATE mine SET details = %s", [json.dumps({"custom_code": told})])
            error = db.error(asks("mine"))
            assert fragment in str(error), (told, str(error))
        # another class of the table in the place of the layer
        stepped = {
            "Stepper": db.value("SELECT encode(sha256(object), 'hex') FROM madlib.layers WHERE name = 'Stepper'")
        }
        maker.run(
            "UPDATE mine SET details = %s, model_arch = replace(model_arch::text, '\"Scale\"', '\"Stepper\"')::json",
            [json.dumps({"custom_code": {"object_table": "layers", "digests": stepped}})],
        )
        assert "'Stepper' may not be loaded" in str(db.error(asks("mine")))
        assert not mark.exists()
    finally:
        maker.run("DROP TABLE layers2, mine")
        maker.close()


@pytest.mark.parametrize("mst_key,name,code", [(1, "Scale", LAYER), (2, "Stepper", MODEL)])
def test_trained_weights_are_not_deployed_with_other_code(db, mst_key, name, code):
    db.run("UPDATE madlib.layers SET object = %s WHERE name = %s", [pickle(name, code + "\nx = 1\n") + b"x", name])
    error = db.error("SELECT madlib.mop_deploy('other', 'made', %s)", [mst_key])
    assert f"the custom class '{name}' of model {mst_key} of \"made\" is not the one in" in str(error)
    assert error.pgcode == "55000" and error.diag.message_detail == "It was changed after the training."
    assert db.value("SELECT to_regclass('other') IS NULL")
    db.run("UPDATE madlib.layers SET object = %s WHERE name = %s", [pickle(name, code), name])
    assert db.value("SELECT madlib.mop_deploy('other', 'made', %s)", [mst_key]) == 1
    db.run("DROP TABLE other")


def test_a_replay_with_other_code_says_so(db):
    run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = 'made'")
    replay = "DROP TABLE IF EXISTS again, again_info, again_summary; SELECT madlib.mop_replay(%s, 'again')"
    heard = len(db.connection.notices)
    db.run(replay, [run_id])
    assert not any("custom code" in notice for notice in db.connection.notices[heard:])
    db.run(
        "UPDATE madlib.layers SET object = %s WHERE name = 'Scale'",
        [pickle("Scale", LAYER.replace("start=1.0", "start=3.0"))],
    )
    heard = len(db.connection.notices)
    db.run(replay, [run_id])
    told = [notice for notice in db.connection.notices[heard:] if "custom code" in notice]
    assert f"the custom code 'Scale' was changed after run {run_id}, which is repeated" in told[0]


def test_a_model_cannot_be_deployed_without_its_code(db):
    db.run("DELETE FROM madlib.layers WHERE name = 'Scale'")
    assert "Scale" in str(db.error("SELECT madlib.mop_deploy('other', 'made', 1)"))
    assert db.value("SELECT to_regclass('other') IS NULL")
