"""mop_train: from a table of ordinary columns to a named model, in one statement; and the model's later versions."""

import json

import pytest

from support.client import Calling
from support.cluster import eventually
from support.workload import under_way

ROWS = 600


@pytest.fixture(scope="module")
def people(db):
    """A table whose target follows from an age, a plan and a score that is sometimes NULL."""
    db.run("SET search_path = public, madlib")
    db.run(
        f"CREATE TABLE people AS SELECT i AS id, 18 + i * 7 % 60 AS age, (ARRAY['free', 'pro', 'team'])[1 + i % 3] AS plan, "
        "CASE WHEN i % 10 > 0 THEN (i * 37 % 101)::numeric END AS score, date '2024-01-01' + i % 300 AS joined "
        f"FROM generate_series(1, {ROWS}) i; ALTER TABLE people ADD PRIMARY KEY (id), ADD leaves text, ADD income float8; "
        "UPDATE people SET leaves = CASE WHEN age + coalesce(score, 50) + 40 * (plan = 'free')::int > 110 THEN 'yes' "
        "ELSE 'no' END, income = 1000 + 50 * age + 300 * (plan = 'pro')::int"
    )
    return db


def relations(db, pattern):
    return {r["relname"] for r in db.run("SELECT relname FROM pg_class WHERE relname LIKE %s", [pattern])}


@pytest.fixture(scope="module")
def leaving(people):
    """The model leaving, and the report of its training."""
    return people.value(
        "SELECT mop_train('people', 'leaving', target => 'leaves', exclude => 'income', max_trials => 2, "
        "time_limit => '60 s', layers => 'linear, small', families => 'nets')"
    )


def test_the_report_has_the_result_the_baselines_and_the_statements(people, leaving):
    assert 'Version 1 of model "leaving" predicts leaves (classification).' in leaving
    assert "majority: log_loss" in leaving and "gradient boosting: log_loss" in leaving and "95 % interval" in leaving
    statements = [line.strip() for line in leaving.split("The steps by hand:\n")[1].splitlines()]
    steps = ["split", "pack", "pack", "architecture", "search", "ensemble"]
    assert [s.split("mop_")[1].split("(")[0] for s in statements[: len(steps)]] == steps


def test_the_measures_are_those_of_the_test_part(people, leaving):
    row = people.run("SELECT metrics, details, kind, in_use FROM leaving")[0]
    measured = {r["metric"]: r["value"] for r in people.run("SELECT * FROM mop_evaluate('leaving', 'leaving_test')")}
    assert row["in_use"] and row["kind"] == "classification"
    assert row["metrics"]["accuracy"] == pytest.approx(measured["accuracy"])
    assert row["metrics"]["accuracy"] > row["details"]["contenders"]["majority"]["accuracy"]
    assert sum(row["details"]["rows"].values()) == ROWS and measured["rows"] == row["details"]["rows"]["test"]


def test_a_part_is_read_by_its_name(people, leaving):
    counts = {
        part: people.value("SELECT count(*) FROM mop_predict('public.leaving', source => %s)", [f"leaving_{part}"])
        for part in ("train", "valid", "test")
    }
    assert counts == people.value("SELECT details->'rows' FROM leaving WHERE version = 1")
    for name in ("leaving_v9_test", "leaving_rest", "other_test", "other.leaving_test"):
        assert "does not exist" in str(people.error("SELECT * FROM mop_evaluate('leaving', %s)", [name]))
    people.run("CREATE VIEW leaving_valid AS SELECT * FROM people LIMIT 7")  # (another role could have made it)
    assert people.value("SELECT count(*) FROM mop_predict('leaving', source => 'leaving_valid')") == counts["valid"]
    people.run("DROP VIEW leaving_valid")


def test_a_part_follows_the_name_of_its_table_and_hinders_no_change_of_it(people, leaving):
    people.run("ALTER TABLE people RENAME TO backup; CREATE TABLE people AS SELECT * FROM backup WHERE id <= 300")
    try:
        people.run("ALTER TABLE people ALTER score TYPE float8; ALTER TABLE people DROP income")
        rows = people.value("SELECT value FROM mop_evaluate('leaving', 'leaving_test') WHERE metric = 'rows'")
        assert 0 < rows < people.value("SELECT (details->'rows'->>'test')::int FROM leaving WHERE version = 1")
    finally:
        people.run("DROP TABLE people; ALTER TABLE backup RENAME TO people")


def test_the_part_of_another_roles_model_is_not_read(people, leaving):
    people.run(
        "DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN; GRANT mop_user TO guest; GRANT SELECT ON people TO guest; "
        "GRANT USAGE ON SCHEMA public TO guest; SELECT mop_share('leaving', 'guest')"
    )
    guest = people.another("guest")
    guest.run("SET search_path = public, madlib")
    assert guest.value("SELECT count(*) FROM mop_evaluate('leaving', 'leaving_test')") > 0  # (a superuser's query)
    told = people.value("SELECT details::text FROM leaving WHERE version = 1")
    people.run("UPDATE leaving SET details = jsonb_set(details, '{parts,test}', '\"SELECT * FROM people\"')")
    try:
        error = guest.error("SELECT * FROM mop_evaluate('leaving', 'leaving_test')")
        assert error.pgcode == "42501" and error.diag.message_hint == "source => 'SELECT * FROM people'"
    finally:
        people.run("UPDATE leaving SET details = %s WHERE version = 1", [told])
    guest.close()
    people.run("DROP OWNED BY guest; DROP ROLE guest")


def test_rows_of_a_class_without_training_rows_are_errors(people, leaving):
    more = "SELECT id, age, plan, score, joined, CASE id % 2 WHEN 0 THEN 'maybe' ELSE leaves END AS leaves FROM people"
    known = f"SELECT * FROM ({more}) q WHERE leaves <> 'maybe'"
    accuracy = "SELECT value FROM mop_evaluate('leaving', $${}$$, 1) WHERE metric = 'accuracy'"
    assert people.value(accuracy.format(more)) == pytest.approx(people.value(accuracy.format(known)) / 2)
    matrix = people.run("SELECT * FROM mop_confusion_matrix('leaving', %s, 1)", [more])
    assert sum(r["row_count"] for r in matrix if r["actual"] == "maybe") == ROWS // 2
    assert not [r for r in matrix if r["predicted"] == "maybe" and r["row_count"]]
    found = people.run("SELECT * FROM mop_baselines('leaving', 'people', %s, 1) WHERE metric = 'accuracy'", [more])
    assert len(found) > 2 and all(r["value"] <= 0.5 for r in found)


def test_the_statements_by_hand_repeat_the_steps(people, leaving):
    for statement in leaving.split("The steps by hand:\n")[1].splitlines():
        people.run(statement.strip().replace("leaving", "by_hand"))
    best = people.value("SELECT best_mst_key FROM by_hand_search_summary")
    assert people.value("SELECT mop_deploy('by_hand', 'by_hand_search', %s)", [best]) == 2
    assert people.value("SELECT count(*) FROM mop_predict('by_hand', source => 'people')") == ROWS


def test_a_name_that_exists_is_refused_with_the_call_that_retrains(people, leaving):
    error = people.error("SELECT mop_train('people', 'leaving', target => 'leaves')")
    assert 'model "leaving" exists' in str(error) and "mop_retrain('leaving'" in error.diag.message_hint


def test_numbers_are_predicted_in_the_targets_unit(people):
    report = people.value(
        "SELECT mop_train('people', 'income', target => 'income', exclude => 'leaves', id => 'id', max_trials => 2, "
        "time_limit => '60 s', baselines => false, families => 'boosting, linear')"
    )
    assert "(regression)" in report and "gradient" not in report
    rows = people.run("SELECT * FROM mop_predict('income', source => 'income_test', keep => 'income')")
    errors = [abs(r["kept"]["income"] - float(r["prediction"])) for r in rows]
    assert sum(errors) / len(errors) < 500 and rows[0]["probabilities"] is None
    same = people.value(
        "SELECT bool_and(mop_number('income', t) = p.prediction::float8) FROM people t, mop_predict('income', t) p"
    )
    assert same and "predicts numbers" in str(people.error("SELECT mop_class('income', t) FROM people t"))


def test_one_value_of_an_answer_stands_in_a_condition(people, leaving):
    rows = people.run(
        "SELECT p.*, mop_class('leaving', t) AS class, mop_probability('leaving', t, 'yes') AS yes, "
        "mop_probability('leaving', t, p.prediction, 1) AS highest FROM people t, mop_predict('leaving', t) p"
    )
    assert len(rows) == ROWS
    for row in rows:
        assert row["class"] == row["prediction"] and row["highest"] == row["probability"]
        assert row["yes"] == row["probabilities"]["yes"]
    wanted = sum(row["yes"] > 0.5 for row in rows)
    counted = people.value("SELECT count(*) FROM people t WHERE mop_probability('leaving', t, 'yes') > 0.5")
    assert counted == wanted and 0 < wanted < ROWS
    assert people.value("SELECT mop_class('leaving', NULL::people)") is None
    error = people.error("SELECT mop_probability('leaving', t, 'maybe') FROM people t")
    assert "has no class 'maybe'" in str(error) and "yes" in error.diag.message_detail
    error = people.error("SELECT mop_number('leaving', t) FROM people t")
    assert "predicts classes" in str(error) and "mop_class('leaving', t)" in error.diag.message_hint
    error = people.error("SELECT mop_class('leaving', t.plan) FROM people t")
    assert "a row must have columns with names" in str(error)


def test_retraining_keeps_the_version_in_use_unless_the_new_one_is_better(people, leaving):
    people.run("CREATE TABLE noise AS SELECT *, 'x' AS y FROM people LIMIT 0; ALTER TABLE noise DROP y")
    people.run(
        "INSERT INTO noise SELECT id, age, plan, score, joined, CASE WHEN (id * 7919) % 13 < 6 THEN 'yes' ELSE 'no' END, "
        "income FROM people"
    )
    report = people.value("SELECT mop_retrain('leaving', time_limit => '6 s')")
    versions = {r["version"]: r["in_use"] for r in people.run("SELECT version, in_use FROM leaving")}
    assert sorted(versions) == [1, 2] and list(versions.values()).count(True) == 1
    assert ("is not in use" in report) == versions[1]
    people.run("SELECT mop_use_version('leaving', 1)")
    compared = people.run("SELECT * FROM mop_compare('leaving', 1, 2, 'leaving_test')")
    assert {"accuracy", "auc"} <= {r["metric"] for r in compared}
    assert all(r["difference"] == pytest.approx(r["second_value"] - r["first_value"]) for r in compared)


def test_a_version_that_takes_the_place_of_another_answers_for_itself(people, leaving):
    ask = "SELECT p.probabilities FROM (SELECT 30 AS age, 'pro' AS plan) t, mop_predict('leaving', t{}) p"
    first, second = (people.value(ask.format(f", {version}")) for version in (1, 2))
    people.run("BEGIN; CREATE TEMPORARY TABLE kept AS SELECT * FROM leaving")
    found = []
    for version in (1, 2):
        people.run(
            f"TRUNCATE leaving; INSERT INTO leaving SELECT * FROM kept WHERE version = {version}; "
            "UPDATE leaving SET in_use = true"
        )
        found.append(people.value(ask.format("")))
    people.run("ROLLBACK")
    assert found == [first, second] and first != second


def test_a_call_does_not_disturb_another_one_that_trains_the_same_model(people):
    other = people.another()
    call = (
        "SELECT mop_train('people', 'twice', target => 'leaves', max_trials => 1, time_limit => '5 s', "
        "baselines => FALSE, layers => 'linear', families => 'nets')"
    )
    other.run("SET search_path = public, madlib")
    with under_way(people, other, call) as calling:
        error = people.error(call)
        assert 'another session is training model "twice" now' in str(error)
        assert (
            error.diag.message_hint == f"SELECT pg_cancel_backend({other.connection.info.backend_pid}); ends its call."
        )
    assert calling.end() is None
    assert people.value("SELECT count(*) FROM twice") == 1
    other.close()


def test_retraining_needs_a_version_in_use_before_it_begins(people, leaving):
    people.run("CREATE TABLE idle AS SELECT * FROM leaving; UPDATE idle SET in_use = FALSE")
    assert 'no version of model "idle" is in use' in str(people.error("SELECT mop_retrain('idle', source => 'people')"))
    assert not relations(people, "idle\\_%")
    people.run("DROP TABLE idle")


def test_retraining_needs_rights_on_the_model_before_it_begins(people, leaving):
    people.run(
        "DROP ROLE IF EXISTS reader; CREATE ROLE reader; GRANT mop_user TO reader; GRANT SELECT ON people TO reader"
    )
    people.run("SELECT mop_share('leaving', 'reader'); GRANT USAGE, CREATE ON SCHEMA public TO reader; SET ROLE reader")
    for call in ("mop_retrain('leaving', 'people')", "mop_use_version('leaving', 1)"):
        error = people.error(f"SELECT {call}")
        assert 'permission denied for model "public"."leaving"' in str(error)
        assert error.diag.message_hint == 'GRANT INSERT, UPDATE ON "public"."leaving" TO "reader";'
    people.run("RESET ROLE; DROP OWNED BY reader; DROP ROLE reader")


def test_percent_signs_in_names_stay_as_they_are(people):
    people.run('CREATE TABLE "100%%s" AS TABLE people')
    people.run(
        "SELECT mop_train('\"100%%s\"', '\"50%%d\"', target => 'leaves', exclude => 'income', max_trials => 1, "
        "layers => 'linear', baselines => false, time_limit => '3 s', families => 'nets')"
    )
    assert people.value("SELECT count(*) FROM mop_predict('\"50%%d\"', source => '\"100%%s\"')") == ROWS


def test_a_call_does_not_wait_for_its_own_transaction(people):
    people.run("CREATE TABLE held AS SELECT * FROM people")
    call = "SELECT mop_train('{0}', '{0}_model', target => 'leaves', id => 'id')"
    people.run("BEGIN; ALTER TABLE held ADD more integer")
    error = people.error(call.format("held"))
    assert "a lock that this transaction itself holds" in str(error) and error.diag.message_hint == "COMMIT;"
    people.run("ROLLBACK; BEGIN; CREATE TABLE fresh AS SELECT * FROM people")
    error = people.error(call.format("fresh"))
    assert "does not exist" in str(error) and error.diag.message_hint.startswith("COMMIT;")
    people.run("ROLLBACK; CREATE TEMPORARY TABLE short AS SELECT * FROM people")
    error = people.error("SELECT mop_train('SELECT * FROM short', 'm', target => 'leaves', id => 'id')")
    assert "no temporary tables" in error.diag.message_detail
    people.run("DROP TABLE short")


@pytest.mark.parametrize(
    "arguments, fragment",
    [
        ("'people', 'm', target => 'nothing'", 'column "nothing" does not exist'),
        ("'people', 'm'", "mop_train takes one target"),
        ("'people', 'm', target => 'leaves', time_limit => '0 s'", "time_limit must be at least a second"),
        ("'people', 'm', target => 'leaves', kind => 'ranking'", "kind must be"),
        ("'people', 'm', target => 'leaves', transform => '{\"age\": \"cubic\"}'", "must be one of"),
        ("'people', 'm', target => 'leaves', layers => 'small, huge'", 'layers has "huge", which is no net'),
        ("'people', 'm', target => 'leaves', folds => 1", "folds must be at least 2, not 1"),
        ("'people', 'm', target => 'leaves', max_trials => 0", "max_trials must be at least 1, not 0"),
        ("'people', 'm', target => 'leaves', ensemble => 0", "ensemble must be from 1 to 40, not 0"),
        ("'people', 'm', target => 'leaves', ensemble => 1.5", "ensemble must be an integer, not 1.5"),
        ("'people', 'm', target => 'leaves', ensemble => 1000", "ensemble must be from 1 to 40, not 1000"),
        ("'people', 'm', target => 'leaves', valid => 'NaN'", "valid must be a share from 0 to 1, not nan"),
        ("'people', 'm', target => 'leaves', folds => 3, valid => 0.3", "folds and valid cannot be combined"),
        ("'people', 'm', target => 'leaves', folds => 3, split => 'time', by => 'joined'", "cannot be combined"),
        (
            "'people', 'm', target => 'leaves', folds => 5, split => 'group', by => 'plan'",
            'column "plan" has 3 groups in',
        ),
        ("'passing', 'm', target => 'leaves'", "is temporary"),
        ("'people', 'm', target => 'leaves', split => 'fold'", "method must be one of"),
        ("'people', 'm', target => 'leaves', split => 'time'", "needs a column"),
        ("'SELECT * FROM people LIMIT 5', 'm', target => 'leaves'", "there are 5 rows"),
        ("'nowhere', 'm', target => 'leaves'", "does not exist"),
        ("'people', NULL, target => 'leaves'", "no name is given"),
        ("'people', 'people', target => 'leaves'", "is no model with versions"),
    ],
)
def test_bad_input_is_an_error_that_leaves_nothing(people, arguments, fragment):
    people.run("CREATE TEMPORARY TABLE IF NOT EXISTS passing AS SELECT * FROM people")
    assert fragment in str(people.error(f"SELECT mop_train({arguments})"))
    assert not relations(people, "m\\_%") and not relations(people, "m")


def test_a_cancel_ends_the_steps_and_drops_their_tables(people):
    other = people.another()
    other.run("SET search_path = public, madlib")
    pid = other.value("SELECT pg_backend_pid()")
    calling = Calling(other, "SELECT mop_train('people', 'stopped', target => 'leaves', families => 'nets')")
    searches = "SELECT count(*) FROM mop_runs WHERE status = 'running' AND model_output_table LIKE '%stopped%'"
    assert eventually(lambda: people.value(searches) or calling.error)
    people.run("SELECT pg_cancel_backend(%s)", [pid])
    assert "cancel" in str(calling.end())
    assert eventually(lambda: not relations(people, "stopped%"))
    other.close()


def test_what_a_rolled_back_call_has_left_does_not_hinder_the_next(people):
    call = (
        "SELECT mop_train('people', 'again', target => 'leaves', max_trials => 1, time_limit => '3 s', "
        "baselines => false, layers => 'linear', families => 'nets')"
    )
    people.run("BEGIN")
    people.run(call)
    people.run("ROLLBACK")
    assert relations(people, "again\\_packed") and not relations(people, "again")
    # (a killed call may leave any of them)
    people.run("DROP TABLE again_packed, again_packed_summary, again_search, again_search_info")
    assert "Version 1" in people.value(call)
    assert relations(people, "again%") == {"again", "again_pkey", "again_in_use_idx"}


def test_weights_are_counted_and_no_feature(people):
    people.run("CREATE TABLE weighed AS SELECT *, 1 + (leaves = 'yes')::int * 9 AS w FROM people")
    people.run("ALTER TABLE weighed ADD PRIMARY KEY (id)")
    people.run(
        "SELECT mop_train('weighed', 'heavy', target => 'leaves', exclude => 'income, score, age, plan', weight => 'w', "
        "time_limit => '2 min', baselines => false, families => 'linear', keep => true)"
    )
    assert not people.run("SELECT * FROM mop_feature_info('heavy') WHERE column_name = 'w'")
    # the classes are about even, and nothing left tells them apart: with the weights, most answers are the heavy class
    answers = people.run(
        "SELECT prediction, count(*) AS n FROM mop_predict('heavy', source => 'weighed') GROUP BY 1 ORDER BY 2 DESC"
    )
    assert answers[0]["prediction"] == "yes" and answers[0]["n"] > 0.9 * ROWS
    for change, fragment in (("w = -1", "below 0"), ("w = NULL", "is NULL in"), ("w = 0", "0 in all rows")):
        people.run(f"UPDATE weighed SET {change}")
        error = people.error("SELECT mop_pack('weighed', 'heavy_no', target => 'leaves', weight => 'w')")
        assert fragment in str(error)


def test_a_named_weight_is_taken_in_place_of_the_models_own(people):
    source = "SELECT *, -1 AS wrong FROM weighed"
    people.run("UPDATE weighed SET w = 2")
    people.run("SELECT mop_pack('weighed', 'heavy_again', fitted_on => 'heavy')")
    error = people.error(f"SELECT mop_pack('{source}', 'heavy_no', fitted_on => 'heavy', weight => 'wrong')")
    assert 'column "wrong" has sample weights below 0' in str(error)
    # the hint runs, though the view of the query is gone
    hint = error.diag.message_hint.partition(";")[0]
    assert hint.startswith(f"SELECT * FROM ({source}) AS q WHERE") and len(people.run(hint)) == ROWS
    error = people.error("SELECT mop_pack('SELECT id FROM weighed', 'heavy_no', fitted_on => 'heavy', target => 'id')")
    assert "does not exist in the query" in str(error) and "mop_rows_" not in str(error.diag.message_hint)


def test_warm_retraining_goes_on_from_the_version_in_use(people, leaving):
    people.run("CREATE TABLE more_people AS SELECT * FROM people; ALTER TABLE more_people ADD PRIMARY KEY (id)")
    before = people.run("SELECT version, transform::text AS t, model_arch::text AS a FROM leaving WHERE in_use")[0]
    report = people.value("SELECT mop_retrain('leaving', 'more_people', '8 s', automatic => false, warm => true)")
    after = people.run("SELECT version, transform::text AS t, model_arch::text AS a FROM leaving WHERE in_use")[0]
    assert after["version"] > before["version"] and f"net version {before['version']}" in report
    assert json.loads(after["t"])["inputs"] == json.loads(before["t"])["inputs"]
    assert json.loads(after["a"])["config"]["layers"] == json.loads(before["a"])["config"]["layers"]
    both = people.run("SELECT * FROM mop_compare('leaving', %s, %s, 'people')", [before["version"], after["version"]])
    values = {r["metric"]: r for r in both}
    assert values["accuracy"]["second_value"] > values["accuracy"]["first_value"] - 0.1
    people.run("UPDATE more_people SET leaves = 'perhaps' WHERE id % 9 = 0")
    error = people.error("SELECT mop_retrain('leaving', 'more_people', '10 s', warm => true)")
    assert "no subset of those of training" in str(error) and "has no class perhaps" in str(error)
    people.run("ALTER TABLE more_people DROP plan CASCADE")
    assert 'column "plan"' in str(people.error("SELECT mop_retrain('leaving', 'more_people', '10 s', warm => true)"))


def test_a_packed_table_with_the_transform_of_a_model_is_a_training_table(people, leaving):
    people.run("SELECT mop_pack('people', 'onward', fitted_on => 'leaving', buffer_size => 50)")
    assert (
        people.value("SELECT count(DISTINCT __dist_key__) FROM onward") > 1
        or people.value("SELECT count(*) FROM onward") > 1
    )
    assert "shuffled" in people.value("SELECT obj_description('onward'::regclass)")
    error = people.error(
        "SELECT mop_pack('SELECT *, 1.5 AS half FROM people', 'no', fitted_on => 'leaving', target => 'half')"
    )
    assert "but the model was trained on text" in str(error)


def test_balanced_weights_make_rare_classes_count(people):
    people.run("CREATE TABLE rare AS SELECT id, score, (id % 17 = 0)::text AS y FROM people")
    for name, weight in (("plain_rare", "NULL"), ("balanced_rare", "'balanced'")):
        people.run(
            f"SELECT mop_train('rare', '{name}', target => 'y', id => 'id', weight => {weight}, max_trials => 2, "
            "time_limit => '3 min', baselines => false, layers => 'linear', families => 'nets')"
        )
    found = {
        name: people.run(
            "SELECT avg((probabilities->>'true')::float8) AS mean, count(*) FILTER (WHERE prediction = 'true') AS rows "
            f"FROM mop_predict('{name}', source => 'rare')"
        )[0]
        for name in ("plain_rare", "balanced_rare")
    }
    assert found["balanced_rare"]["rows"] > 2 * found["plain_rare"]["rows"]
    assert found["balanced_rare"]["mean"] == pytest.approx(1 / 17, abs=0.03)  # probabilities are the table's
    fitted = people.value("SELECT fit_params FROM balanced_rare")
    assert "class_weight='balanced'" in fitted.replace('"', "'")
    error = people.error("SELECT mop_train('people', 'm', target => 'income', weight => 'balanced', max_trials => 1)")
    assert "needs classes" in str(error) and not relations(people, "m\\_%")
    error = people.error("SELECT mop_pack('people', 'no', target => 'leaves', weight => 'balanced')")
    assert "is for mop_train" in str(error)


def test_folds_of_the_training_part_choose_in_place_of_a_validation_part(people):
    report = people.value(
        "SELECT mop_train('people', 'folded', target => 'leaves', exclude => 'income', max_trials => 1, "
        "time_limit => '5 s', baselines => FALSE, keep => TRUE, folds => 5, layers => 'linear', families => 'nets')"
    )
    statements = [line.strip() for line in report.split("The steps by hand:\n")[1].splitlines()]
    assert [s.split("(")[0].split(".")[-1] for s in statements if "mop" in s.split("(")[0]] == [
        "mop_split",
        "segments = 5;",
        "mop_pack",
        "mop_architecture",
        "mop_search",
        "mop_deploy",
    ]
    assert "valid => 0" in statements[0] and "folds => 5" in statements[-2]
    assert "folded_valid" not in relations(people, "folded%")
    means = people.value("SELECT details->'folds' FROM folded")
    info = people.run(
        "SELECT * FROM folded_search_info WHERE mst_key = (SELECT best_mst_key FROM folded_search_summary)"
    )[0]
    assert len(info["folds_metrics"]) == means["number"] == 5 and means["metric"] == "accuracy"
    assert means["mean"] == pytest.approx(info["folds_metrics_mean"])
    assert f"Over 5 folds of the training part: accuracy {means['mean']:.4g} (deviation" in report
    assert "shuffled" in people.value("SELECT obj_description('folded_packed'::regclass)")
    assert "DROP VIEW" in people.value("SELECT obj_description('folded_train'::regclass)")


def test_what_was_kept_of_a_dropped_model_hinders_no_other_of_its_name_and_folds_choose_without_a_validation_part(
    people,
):
    call = (
        "SELECT mop_train('people', 'unfolded', target => 'leaves', exclude => 'income', max_trials => 1, "
        "time_limit => '4 s', baselines => FALSE, layers => 'linear', families => 'nets', {})"
    )
    people.run(call.format("keep => TRUE"))
    people.run("DROP TABLE unfolded")
    kept = {"unfolded_packed", "unfolded_search", "unfolded_train"}
    assert kept <= relations(people, "unfolded%")
    report = people.value(call.format("valid => 0"))
    assert "Over 5 folds of the training part" in report and "folds => 5" in report
    assert not kept & relations(people, "unfolded%")


def test_as_many_rows_of_a_large_table_are_used_as_the_time_allows(people):
    pytest.importorskip("lightgbm", reason="not run: LightGBM is not installed (pip install lightgbm)")
    people.run(
        "CREATE TABLE many AS SELECT i AS id, i * 7 % 1009 AS a, i * 11 % 997 AS b, CASE WHEN i % 100 = 7 THEN 'rare' ELSE "
        "(i * 7 % 1009 + i * 11 % 997 > 1000)::text END AS y, i % 5 AS day FROM generate_series(1, 100000) i"
    )
    report = people.value(
        "SELECT mop_train('many', 'much', target => 'y', id => 'id', split => 'time', by => 'day', time_limit => '2 s', "
        "families => 'boosting', keep => true)"
    )
    details = people.value("SELECT details FROM much")
    drawn, parts = details["drawn"], details["rows"]
    assert parts == {"train": 60000, "valid": 20000, "test": 20000}
    assert 8_000 < drawn["test"] < 12_000 and 9_000 < drawn["train"] < 60_000 and drawn["valid"] < 20_000
    assert f"Trained on {drawn['train']} of 60000 rows" in report
    days = people.run("SELECT day, count(*) AS n FROM much_train_drawn GROUP BY 1 ORDER BY 1 DESC")
    assert sum(row["n"] for row in days) == drawn["train"]
    assert [row["day"] for row in days] == [2, 1, 0][: len(days)], "the latest rows train"
    assert all(row["n"] == 20_000 for row in days[:-1])
    assert people.value("SELECT count(*) FROM mop_predict('much', source => 'much_test')") == 20_000


def test_the_latest_rows_train_when_they_have_measured(people):
    pytest.importorskip("lightgbm", reason="not run: LightGBM is not installed (pip install lightgbm)")
    people.run(
        "CREATE TABLE weeks AS SELECT i AS id, i / 100 AS week, i * 7 % 101 AS a, "
        "((i * 7 % 101 > 50) <> (i >= 1600))::text AS y FROM generate_series(0, 1999) i"
    )
    report = people.value(
        "SELECT mop_train('weeks', 'weekly', target => 'y', id => 'id', split => 'time', by => 'week', "
        "families => 'boosting', max_trials => 3, time_limit => '5 s')"
    )
    version = (
        "SELECT metrics->>'accuracy' AS measured, details->'final' AS final, in_use FROM weekly WHERE version = {}"
    )
    (first,) = people.run(version.format(1))
    assert float(first["measured"]) < 0.1, "the rule has changed for the test rows"
    assert first["final"]["rows"] == first["final"]["of_rows"] == 2000 and first["final"]["until"] == "19"
    assert "on rows until 19" in report
    right = "SELECT avg((prediction = w.y)::int)::float8 FROM weeks w, mop_predict('weekly', w) WHERE week {}"
    assert people.value(right.format(">= 16")) > 0.95
    assert people.value(right.format("< 16")) > 0.95
    assert not {"weekly_tested", "weekly_whole", "weekly_packed"} & relations(people, "weekly%")
    # the version in use knows these test rows: only later ones can tell which is better
    people.run("SELECT mop_retrain('weekly', automatic => true)")
    assert not people.value("SELECT in_use FROM weekly WHERE version = 2")
    people.run("INSERT INTO weeks SELECT i, i / 100, i * 7 % 101, 'false' FROM generate_series(2000, 2299) i")
    people.run("SELECT mop_retrain('weekly', automatic => true)")
    assert people.value("SELECT details->'final'->>'until' FROM weekly WHERE version = 3") == "22"


def test_folds_with_groups_never_part_a_group(people):
    people.run("CREATE TABLE visits AS SELECT *, 'town ' || id % 23 AS town FROM people")
    report = people.value(
        "SELECT mop_train('visits', 'grouped', target => 'leaves', id => 'id', exclude => 'income, town', max_trials => 1, "
        "time_limit => '5 s', baselines => FALSE, keep => TRUE, folds => 3, split => 'group', by => 'town', "
        "layers => 'linear', families => 'nets')"
    )
    assert "grouped_by => 'town'" in report and "Over 3 folds" in report
    towns = [people.run(f"SELECT DISTINCT town FROM grouped_{part}") for part in ("train", "test")]
    assert not {r["town"] for r in towns[0]} & {r["town"] for r in towns[1]}
