"""Versions whose answer is a mean of nets and boosted trees."""

import json
import pathlib
import re

import numpy as np
import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually

pytest.importorskip("lightgbm", reason="not run: LightGBM is not installed (pip install lightgbm)")
ROWS = 600


@pytest.fixture(scope="module")
def fields(db):
    """A table with two targets, its parts packed for each; and `grown`, a model of nets and trees for the class."""
    db.run("SET search_path = public, madlib; SET pg_mop.seed = 1; SET pg_mop.segments = 1")
    db.run(
        f"CREATE TABLE fields AS SELECT i AS id, CASE WHEN i % 9 > 0 THEN i * 7 % 60 END AS age, (ARRAY['town', 'lake', "
        "'hill'])[1 + i % 3] AS area, 'kind ' || i * 11 % 40 AS kind, (i * 37 % 101)::float8 AS size, "
        f"(i * 7919 % 997) / 100.0 AS noise FROM generate_series(1, {ROWS}) i; ALTER TABLE fields ADD PRIMARY KEY (id), "
        "ADD wet text, ADD price float8; UPDATE fields SET wet = CASE WHEN coalesce(age, 20) + (i.k % 3) * 20 + 3 * noise > 60 "
        "THEN 'yes' ELSE 'no' END, price = 100 + 3 * size + 9 * noise + (i.k % 5) * 10 "
        "FROM (SELECT id AS own, id * 11 % 40 AS k FROM fields) i WHERE own = id; ALTER TABLE fields DROP noise"
    )
    db.run("SELECT mop_split('fields', 'part', valid => 0.3)")
    for target, other in (("wet", "price"), ("price", "wet")):
        db.run(f"SELECT mop_pack('part_train', '{target}_packed', target => '{target}', exclude => 'id, {other}')")
        db.run(f"SELECT mop_pack('part_valid', '{target}_checked', fitted_on => '{target}_packed')")
    db.run("SELECT mop_architecture('nets', 'wet_packed', 'linear, small')")
    db.run(
        "SELECT mop_search('wet_packed', 'wet_search', 'nets', $$ {'loss': ['categorical_crossentropy'], "
        "'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.01, 0.03]}], 'batch_size': [32]} $$, 'grid', "
        "'iterations=5', validation_table => 'wet_checked')"
    )
    db.run(
        "SELECT mop_ensemble('wet_search', 'wet_checked', 'grown', trained_on => 'wet_packed', families => 'boosting', "
        "time_limit => '2 s')"
    )
    blend(db)
    return db


def blend(db):
    """More versions of `grown`: 2, a quarter of whose answer is that of a net; 3, the trees of the first version alone; 4, as 2
    with a net that Keras must compute."""
    row = db.run("SELECT model_arch::text AS a, model_weights FROM grown WHERE version = 1")[0]
    config = json.loads(row["a"])["config"]
    texts, total = bytes(row["model_weights"])[config["bytes"] :], sum(one["weight"] for one in config["trees"])
    row = db.run("SELECT model_arch::text AS a, model_weights FROM wet_search WHERE mst_key = 1")[0]
    net, weights = json.loads(row["a"]), bytes(row["model_weights"])
    for version, share, own in ((2, 0.25, net), (3, 0, None), (4, 0.25, permuted(net))):
        trees = [{**one, "weight": (1 - share) * one["weight"] / total} for one in config["trees"]]
        config = {"net": own, "weight": share, "bytes": len(weights) if own else 0, "trees": trees}
        total = 1 - share
        db.run(
            "INSERT INTO grown (version, in_use, target, kind, transform, details, model_arch, model_weights) "
            f"SELECT {version}, false, target, kind, transform, details, %s, %s FROM grown WHERE version = 1",
            [
                json.dumps({"module": "pg_mop", "class_name": "Mixture", "config": config}),
                (weights if own else b"") + texts,
            ],
        )
    db.run("SELECT mop_use_version('grown', 2)")


def permuted(net):
    """The same net with a layer more, which NumPy does not compute here."""
    net = json.loads(json.dumps(net))
    (last,) = net["config"]["output_layers"]
    layer = {"class_name": "Permute", "name": "more", "config": {"name": "more", "dims": [1]}}
    net["config"]["layers"].append({**layer, "inbound_nodes": [[[last[0], 0, 0, {}]]]})
    net["config"]["output_layers"] = [["more", 0, 0]]
    return net


def answers(db, model, version, what="(probabilities->>'yes')::float8"):
    sql = f"SELECT {what} AS p FROM mop_predict('{model}', source => 'fields', keep => 'id', version => {version}) "
    sql += "ORDER BY (kept->>'id')::int"
    return np.array([row["p"] for row in db.run(sql)])


def test_boosted_trees_are_members_as_nets_are(fields):
    details = fields.value("SELECT details FROM grown WHERE version = 1")
    found = details["ensemble"]["members"]
    assert sum(m["weight"] for m in found) == pytest.approx(1) and {m["family"] for m in found} <= {"nets", "boosting"}
    assert details["ensemble"]["value"] <= min(one["loss"] for one in details["boosting"]["trials"]) * 1.001
    measured = {r["metric"]: r["value"] for r in fields.run("SELECT * FROM mop_evaluate('grown', 'part_valid', 1)")}
    assert measured["log_loss"] == pytest.approx(details["ensemble"]["value"], rel=1e-4)


def test_the_answer_is_the_weighted_mean_of_the_members(fields):
    fields.run("SELECT mop_deploy('alone', 'wet_search', 1)")
    mean = 0.25 * answers(fields, "alone", 1) + 0.75 * answers(fields, "grown", 3)
    assert np.allclose(answers(fields, "grown", 2), mean, rtol=1e-4)
    rows = fields.run("SELECT mop_probability('grown', f, 'yes', 3) AS p FROM fields f ORDER BY id")
    assert [row["p"] for row in rows] == answers(fields, "grown", 3).tolist()
    for version in (2, 4):
        rows = fields.run(f"SELECT mop_probability('grown', f, 'yes', {version}) AS p FROM fields f ORDER BY id")
        assert np.allclose([row["p"] for row in rows], mean, rtol=1e-4)


def test_all_that_reads_a_version_reads_its_trees(fields):
    computed = fields.run("SELECT version, computed_by FROM mop_models WHERE name = 'grown' ORDER BY version")
    assert [row["computed_by"] for row in computed] == ["backend"] * 3 + ["trainer: layer Permute"]
    for version in (2, 3):
        assert fields.run(f"SELECT * FROM mop_importance('grown', 'part_test', {version})")[0]["importance"] > 0
        explained = fields.run(
            f"SELECT e.* FROM fields f, mop_explain_answer('grown', f, source => 'fields', version => {version}) e WHERE id = 9"
        )
        assert {row["column_name"] for row in explained} >= {"age", "area", "kind", "size"}
        assert "<html" in fields.value(f"SELECT mop_model_report('grown', 'part_test', version => {version})")
    assert fields.run("SELECT * FROM mop_compare('grown', 2, 3, 'fields')")
    fields.run("SELECT mop_predict_into('grown', 'fields', 'answered', 'id')")
    assert np.allclose(
        [row["p"] for row in fields.run("SELECT (probabilities->>'yes')::float8 AS p FROM answered ORDER BY id")],
        answers(fields, "grown", 2),
    )
    fields.run("CREATE TABLE copied AS TABLE grown")  # what a dump restores
    assert np.array_equal(answers(fields, "copied", 2), answers(fields, "grown", 2))


def test_a_role_that_may_only_ask_is_answered(fields):
    fields.run("CREATE ROLE questioner LOGIN; GRANT mop_user TO questioner; GRANT USAGE ON SCHEMA public TO questioner")
    fields.run("SELECT mop_share('grown', 'questioner', 'answers'); GRANT SELECT ON fields TO questioner")
    fields.run("SET ROLE questioner")
    try:
        assert len(fields.run("SELECT * FROM mop_predict('grown', source => 'fields')")) == ROWS
    finally:
        fields.run("RESET ROLE")


def test_no_file_of_keras_leaves_the_trees_out(fields):
    error = fields.error("SELECT mop_export_model('grown', 2)")
    assert "boosted trees" in str(error) and "families => 'nets'" in error.diag.message_hint


@pytest.mark.parametrize(
    "change",
    [
        "model_weights = substring(model_weights FROM 1 FOR octet_length(model_weights) - 9)",
        "model_weights = overlay(model_weights PLACING 'nan' FROM position('leaf_value='::bytea IN model_weights) + 11)",
        'model_arch = replace(model_arch::text, \'"weight": 0.25, \', \'"weight": "a", \')::json',
        "model_arch = replace(model_arch::text, '\"trees\"', '\"tree\"')::json",
    ],
)
def test_a_changed_row_is_an_error(fields, change):
    fields.run("DROP TABLE IF EXISTS forged; CREATE TABLE forged AS TABLE grown")
    fields.run(f"UPDATE forged SET {change} WHERE version = 2")
    assert "cannot be used" in str(fields.error("SELECT * FROM mop_predict('forged', source => 'fields')"))


TRAIN = "SELECT mop_train('fields', '{}', target => '{}', exclude => 'id', time_limit => '6 s', baselines => false{})"


def test_mop_train_trains_both_and_says_what_the_answer_is_made_of(fields):
    report = fields.value(TRAIN.format("duo", "wet", ", layers => 'linear', max_trials => 2, keep => true"))
    assert "of boosting in" in report and "of nets in" in report
    call = next(line for line in report.splitlines() if "mop_ensemble(" in line)
    assert "trained_on =>" in call and fields.value(call.strip()) == 2  # by hand
    report = fields.value("SELECT mop_retrain('duo', 'fields', '6 s', automatic => false, warm => true)")
    assert "version 3" in report.lower()
    details = fields.value("SELECT details FROM duo WHERE version = 3")
    assert all({"params", "rounds", "loss", "ended"} <= set(one) for one in details["boosting"]["trials"])
    listed = fields.run("SELECT * FROM mop_family_trials WHERE model = 'duo' AND version = 3")
    kept = {(one["family"], one.get("trial")): one["weight"] for one in details["ensemble"]["members"]}
    for family in ("boosting", "mlp"):
        own = [row for row in listed if row["family"] == family]
        assert [row["loss"] for row in own] == [one["loss"] for one in details[family]["trials"]]
        assert all(row["weight"] == kept.get((family, row["trial"])) for row in own)
    fields.run(
        "UPDATE duo SET model_arch = g.model_arch, model_weights = g.model_weights FROM grown g WHERE g.version = 3"
    )
    hint = fields.error("SELECT mop_export_model('duo', 3)").diag.message_hint
    fields.run(hint.partition(";")[0])
    assert len(fields.value("SELECT mop_export_model('duo_of_nets', 1)")) > 1000


def test_trees_alone_answer_for_numbers(fields):
    report = fields.value(TRAIN.format("cost", "price", ", families => 'boosting'"))
    assert "boosted trees" in report and "mop_search" not in report
    measured = {r["metric"]: r["value"] for r in fields.run("SELECT * FROM mop_evaluate('cost', 'fields')")}
    assert measured["r2"] > 0.7
    drift = {r["column_name"] for r in fields.run("SELECT * FROM mop_drift('cost', 'fields')")}
    assert {"price", "age", "area"} <= drift
    assert "boosted trees" in fields.value(
        "SELECT mop_retrain('cost', 'fields', '3 s', automatic => false, warm => true)"
    )


@pytest.mark.parametrize(
    "arguments, fragment",
    [
        ("families => 'forest'", "'forest', which is no family"),
        ("families => ''", "families names no family"),
        ("families => 'boosting', layers => 'small'", "layers applies to nets"),
        ("families => 'boosting', valid => 0", "need a validation part"),
    ],
)
def test_bad_input_names_what_is_wrong(fields, arguments, fragment):
    error = fields.error(TRAIN.format("bad", "wet", f", {arguments}"))
    assert fragment in str(error) and "families =>" in error.diag.message_hint


def test_where_trees_cannot_be_trained_nets_answer_alone(fields):
    fields.run("CREATE TABLE words AS SELECT id, wet, repeat(md5(id::text) || ' ', 9) AS text FROM fields")
    call = "SELECT mop_train('words', '{}', target => 'wet', id => 'id', transform => '{{\"text\": \"text\"}}', "
    call += "layers => 'linear', max_trials => 1, time_limit => '6 s', baselines => false, families => {})"
    fields.run(call.format("silent", "NULL"))
    assert not any("is not trained" in notice for notice in fields.connection.notices)
    fields.run(call.format("told", "'nets, boosting'"))
    assert any("boosting is not trained" in notice and "texts" in notice for notice in fields.connection.notices)


def test_others_watch_the_search_of_trees_and_a_cancel_ends_it_at_once(fields):
    rows = "SELECT i AS id, i % 997 AS a, sin(i) AS b, cos(i * 7) AS y FROM generate_series(1, 30000) i"
    fields.run(f"CREATE TABLE large AS {rows}")
    call = "SELECT madlib.mop_train('large', 'felled', target => 'y', exclude => 'id', families => 'boosting', "
    call += "time_limit => '9 min')"
    other, watching = fields.another(), "SELECT * FROM mop_trainings WHERE model = 'felled' AND trials > 1"
    calling = Calling(other, call)
    assert eventually(lambda: fields.run(watching))
    (row,) = fields.run(watching)
    assert (row["step"], row["pid"]) == ("boosting", other.connection.info.backend_pid)
    assert row["best_loss"] > 0 and 0 < row["seconds_left"] < 540 and any(map(is_boosting, trainers_of(fields)))
    fields.run("CREATE ROLE passer_by LOGIN; GRANT mop_user TO passer_by; GRANT USAGE ON SCHEMA madlib TO passer_by")
    stranger = fields.another("passer_by")
    assert stranger.run("SELECT * FROM madlib.mop_trainings") == []
    stranger.close()
    fields.run("SELECT pg_cancel_backend(%s)", [row["pid"]])
    assert isinstance(calling.end(), psycopg2.errors.QueryCanceled)
    assert eventually(lambda: not any(map(is_boosting, trainers_of(fields))))
    assert fields.run("SELECT * FROM mop_trainings") == []
    other.close()


@pytest.mark.parametrize(
    "arguments, fragment",
    [
        ("NULL, 'apart', 'no', trained_on => 'wet_packed'", "are not packed as those of"),
        ("'wet_search', 'apart', 'no'", "are not packed as those of"),
        ("NULL, 'wet_checked', 'no', trained_on => 'wet_packed', families => 'nets'", "names nets alone"),
        ("'wet_search', 'wet_checked', 'no', balanced => true", "not counted alike in training"),
        ("NULL, 'price_checked', 'no', trained_on => 'price_packed', balanced => true", "the target has numbers"),
    ],
)
def test_an_ensemble_of_what_does_not_go_together_is_refused(fields, arguments, fragment):
    fields.run("DROP TABLE IF EXISTS apart, apart_summary")
    fields.run("SELECT mop_pack('SELECT * FROM part_valid WHERE size < 60', 'apart', 'wet', exclude => 'id, price')")
    error = fields.error(f"SELECT mop_ensemble({arguments})")
    assert fragment in str(error) and error.diag.message_hint
    assert fields.value("SELECT to_regclass('no')") is None


def test_an_error_while_the_version_is_written_leaves_no_tables(fields):
    fields.run(TRAIN.format("closed", "wet", ", families => 'linear'"))
    fields.run("ALTER TABLE closed ADD CHECK (version < 2)")
    assert "closed" in str(fields.error("SELECT mop_retrain('closed', 'fields', '6 s')"))
    assert fields.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'closed_v2%'") == 0


def test_arrays_of_numbers_are_elements_of_linear_models(fields):
    fields.run(
        "CREATE TABLE vectors AS SELECT id, ARRAY[size / 50, 1, coalesce(age, 20) / 30.0]::float8[] AS own, price FROM fields"
    )
    call = TRAIN.replace("'fields'", "'vectors'").format(
        "of_vectors", "price", ", families => 'linear', refit => false, split => 'group', by => 'id'"
    )
    fields.run(call)
    details = fields.value("SELECT details FROM of_vectors")
    measured = fields.run("SELECT * FROM mop_evaluate('of_vectors', %s)", [details["parts"]["valid"]])
    rmse = {r["metric"]: r["value"] for r in measured}["rmse"]
    assert rmse == pytest.approx(details["ensemble"]["value"], rel=1e-4)


def test_a_column_with_a_test_part_has_one_whatever_the_shares_are(fields):
    fields.run(
        "CREATE TABLE parted AS SELECT *, (ARRAY['train', 'train', 'train', 'valid', 'test'])[1 + id % 5] AS part FROM fields"
    )
    call = TRAIN.replace("'fields'", "'parted'").format(
        "by_part", "wet", ", split => 'column', by => 'part', test => 0"
    )
    assert "On the test part:" in fields.value(call)


def test_what_a_family_saw_of_a_large_table_is_what_it_is_trained_on_again(fields):
    """Perceptrons are trained on a sample, linear models on all rows: the report claims no more."""
    rows = (
        "SELECT i AS id, i % 89 AS a, i * 7 % 97 AS b, (i % 89)::float8 + cos(i) AS y FROM generate_series(1, 40000) i"
    )
    fields.run(f"CREATE TABLE broad AS {rows}")
    report = fields.value(
        "SELECT mop_train('broad', 'wide', target => 'y', id => 'id', time_limit => '8 s', families => 'linear, mlp', "
        "max_trials => 1, baselines => false, ensemble => 8)"
    )
    details = fields.value("SELECT details FROM wide")
    saw = {name: details[name]["rows"] for name in ("linear", "mlp")}
    assert saw["mlp"] < saw["linear"]
    refit, families = details["refit"], {one["family"] for one in details["ensemble"]["members"]}
    if refit["models"] == refit["of"]:
        assert refit["rows"] <= min(saw[family] for family in families) + details["ensemble"]["rows"]
    if refit["rows"] < refit["of_rows"]:
        assert f"at least {refit['rows']} of the {refit['of_rows']} rows" in report


def trainers_of(db):
    return [row["pid"] for row in db.run("SELECT pid FROM madlib.mop_trainers WHERE state = 'leased'")]


def is_boosting(pid):
    try:
        return "lightgbm" in pathlib.Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def test_linear_models_are_nets_with_the_weights_of_the_solver(fields):
    call = "SELECT mop_ensemble(NULL, '{0}_checked', 'straight_{0}', members => 3, trained_on => '{0}_packed', "
    call += "families => 'linear')"
    for target in ("wet", "price"):
        assert fields.value(call.format(target)) == 1
        row = fields.run(f"SELECT details, model_arch::text AS net FROM straight_{target}")[0]
        trials, found = row["details"]["linear"]["trials"], row["details"]["ensemble"]
        assert {m["family"] for m in found["members"]} == {"linear"} and "Mixture" not in row["net"]
        best = min(one["loss"] for one in trials)
        if target == "price":  # the solver knows standardised numbers
            scale = fields.value(
                "SELECT __transform__::json#>>'{outputs,0,parameters,deviation}' FROM price_packed_summary"
            )
            best = best**0.5 * float(scale)
        assert found["best_alone"] == pytest.approx(best, rel=1e-3) and found["value"] <= best * 1.001
        measured = fields.run(f"SELECT * FROM mop_evaluate('straight_{target}', 'part_valid')")
        measured = {r["metric"]: r["value"] for r in measured}
        # what a session computes is what the solver has seen
        assert measured[found["metric"]] == pytest.approx(found["value"], rel=1e-3)
        assert len(fields.value(f"SELECT mop_export_model('straight_{target}', 1)")) > 1000  # a net of Keras


def test_a_short_call_trains_perceptrons_in_place_of_nets_and_needs_no_test_part(fields):
    report = fields.value(TRAIN.format("brief", "wet", ", test => 0"))
    assert "of perceptrons in" in report and "of nets in" not in report and "no test part" in report
    row = fields.run("SELECT details, metrics FROM brief")[0]
    assert "test" not in row["details"]["rows"] and row["metrics"] == {"log_loss": row["details"]["ensemble"]["value"]}
    refit = row["details"]["refit"]
    assert refit["rows"] == ROWS and refit["models"] == refit["of"] == len(row["details"]["ensemble"]["members"])
    hint = fields.error("SELECT mop_retrain('brief')").diag.message_hint
    assert "automatic => false" in hint


def test_all_known_rows_choose_where_they_are_few(fields):
    call = TRAIN.format("few", "wet", ", max_trials => 4, keep => true").replace("'6 s'", "'3 min'")
    report = fields.value(call)
    assert "of 480 known rows" in report and "mop_architecture" not in report and "Left out" not in report
    details = fields.value("SELECT details FROM few WHERE version = 1")
    known = details["rows"]["train"] + details["rows"]["valid"]
    assert details["ensemble"]["folds"] == 5 and details["ensemble"]["rows"] == known
    assert {"boosting", "linear", "mlp"} == {family for family in ("boosting", "linear", "mlp") if family in details}
    call = next(line for line in report.splitlines() if "mop_ensemble(" in line)
    assert "folds => true" in call
    call = re.sub("time_limit => '[^']*'", "time_limit => '3 min'", call)  # (a slow moment must not decide)
    assert fields.value(call.strip()) == 2  # by hand
    again = fields.value("SELECT details->'ensemble' FROM few WHERE version = 2")
    assert again["folds"] == 5 and again["rows"] == known


def test_ensembles_by_folds_name_what_they_lack(fields):
    call = "SELECT mop_ensemble({}, 'wet_checked', 'no', trained_on => 'wet_packed', folds => true)"
    assert "its models are trained already" in str(fields.error(call.format("'wet_search'")))
    fields.run("DROP TABLE IF EXISTS bulky, bulky_summary")
    fields.run(
        "SELECT mop_pack('SELECT t.* FROM fields t, generate_series(1, 40)', 'bulky', fitted_on => 'wet_packed')"
    )
    error = fields.error(call.format("NULL").replace("'wet_packed'", "'bulky'"))
    assert "at most 5,000 rows" in str(error) and error.diag.message_hint


def test_members_that_are_trained_again_answer_as_before_but_for_their_rows(fields):
    """refit => false leaves the trainer's models; their answers for the validation rows are those that chose. (Folds do not
    choose by groups.)"""
    more = ", families => 'linear, mlp', max_trials => 3, split => 'group', by => 'id', refit => {}"
    call = TRAIN.format("{}", "price", more)
    for name, again in (("once", "false"), ("twice", "true")):
        fields.run(call.format(name, again))
    details = {name: fields.value(f"SELECT details FROM {name}") for name in ("once", "twice")}
    assert "refit" not in details["once"] and details["twice"]["refit"]["models"] >= 1
    errors = {}
    for name, own in details.items():
        measured = fields.run("SELECT * FROM mop_evaluate(%s, %s)", [name, own["parts"]["valid"]])
        errors[name] = {r["metric"]: r["value"] for r in measured}["rmse"]
    assert errors["once"] == pytest.approx(details["once"]["ensemble"]["value"], rel=1e-3)
    assert errors["twice"] < errors["once"] * 1.1  # (it has seen these rows)
