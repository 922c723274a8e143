"""mop_configuration_report: what a configuration's model does on the run's rows, read only, and with whose rights."""

import json

import pytest

from support.workload import ADAM, NAN, dense, last_run, layer, load, make_data, selection, sequential

REGRESSION = "loss='mse', optimizer='Adam(learning_rate={})', metrics=['mae']"


@pytest.fixture(scope="module")
def made(db):
    """The number of a run with validation rows, whose third configuration fails."""
    make_data(db, rows=90, segments=2)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed', 7)")
    load(db, "arch", dense())
    selection(
        db,
        "mst",
        "arch",
        [(1, ADAM.format(0.05), "batch_size=8"), (1, ADAM.format(0.001), "batch_size=8"), (1, NAN, "batch_size=8")],
    )
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 6, FALSE, 'flowers_val')")
    return last_run(db)


def report(db, run, key):
    found = json.loads(db.value("SELECT madlib.mop_configuration_report(%s, %s)", [run, key]))
    return found, {own["name"]: own for own in found["sections"]}


def test_it_measures_the_validation_rows_in_a_transaction_that_reads_only(db, made):
    db.run("BEGIN READ ONLY")
    try:
        found, sections = report(db, made, 1)
    finally:
        db.run("ROLLBACK")
    assert found["table"] == "flowers_val" and found["rows"] == 90
    counts = sections["confusion"]["picture"]["counts"]
    accuracy = sum(counts[k][k] for k in range(3)) / 90
    stored = db.value("SELECT validation_metrics_final FROM models_info WHERE mst_key = 1")
    assert accuracy == pytest.approx(stored, abs=1e-6) and "roc" in sections
    # the fourth number of x is the same in all rows, so that permuting it changes nothing; the first one tells the class
    worth = {name: loss for name, loss, _ in sections["importance"]["tables"][0]["rows"]}
    assert worth["x[4]"] == 0 and max(worth, key=worth.get) == "x[1]"
    assert report(db, made, 2)[1]["confusion"]["picture"]["counts"] != counts


def test_numbers_have_predictions_by_truth(db):
    db.run(
        "CREATE TABLE cities AS SELECT i AS id, ARRAY[i % 5, i % 3]::real[] AS x, (2.0 * (i % 5) + 1)::real AS y "
        "FROM generate_series(1, 80) i"
    )
    db.run(
        "SELECT madlib.training_preprocessor_dl('cities', 'cities_packed', 'y', 'x', 20, dependent_dtype => 'float32')"
    )
    load(db, "arch_numbers", sequential("numbers", [2], layer("Dense", name="out", units=1, activation="linear")))
    selection(db, "mst_numbers", "arch_numbers", [(1, REGRESSION.format(0.1), "batch_size=8, epochs=3")])
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('cities_packed', 'cities_models', 'mst_numbers', 8, FALSE)")
    found, sections = report(db, last_run(db), 1)
    assert found["table"] == "cities_packed" and "predicted" in sections and "confusion" not in sections
    worth = {name: loss for name, loss, _ in sections["importance"]["tables"][0]["rows"]}
    assert worth["x[1]"] > worth["x[2]"]


def test_bad_input_is_refused_before_any_work(db, made):
    for key, says in (
        (99, "mst_key 99 is not in the info table"),
        (3, "failed in training"),
        (None, "mst_key must not be NULL"),
    ):
        assert says in str(db.error("SELECT madlib.mop_configuration_report(%s, %s)", [made, key]))
    assert "there is no run 999999" in str(db.error("SELECT madlib.mop_configuration_report(999999, 1)"))
    assert "mst_key must be an integer" in str(db.error(f"SELECT madlib.mop_configuration_report({made}, 1.5)"))


def test_no_code_of_another_role_is_executed(db, made):
    """Another role has replaced a table of the run by a view; a role that sees the run but does not own it is refused."""
    db.run("ALTER TABLE flowers_val RENAME TO flowers_val_kept")
    db.run("DROP ROLE IF EXISTS mallory; CREATE ROLE mallory LOGIN; GRANT mop_user TO mallory")
    try:
        db.run(
            "CREATE FUNCTION trap() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the trap has sprung'; END $$;"
            "CREATE VIEW flowers_val AS SELECT * FROM flowers_val_kept WHERE trap(); ALTER VIEW flowers_val OWNER TO mallory"
        )
        said = str(db.error("SELECT madlib.mop_configuration_report(%s, 1)", [made]))
        assert "flowers_val" in said and "no table of your role" in said and "trap" not in said
        db.run("DROP VIEW flowers_val; DROP FUNCTION trap()")
    finally:
        db.run("DROP VIEW IF EXISTS flowers_val; ALTER TABLE flowers_val_kept RENAME TO flowers_val")
    other = db.another("mallory")
    try:
        assert "there is no run" in str(other.error("SELECT madlib.mop_configuration_report(%s, 1)", [made]))
    finally:
        other.close()
        db.run("DROP OWNED BY mallory; DROP ROLE mallory")
    assert report(db, made, 1)[0]["rows"] == 90


def test_a_table_that_a_later_run_wrote_is_not_measured_as_the_earlier_runs(db, made):
    load(db, "arch_again", dense())
    selection(db, "mst_again", "arch_again", [(1, ADAM.format(0.05), "batch_size=8")])
    call = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'again_models', 'mst_again', 2, FALSE)"
    db.run(call)
    first = last_run(db)
    assert report(db, first, 1)[0]["notes"] == []
    db.run(f"SELECT madlib.mop_more({first}, 1, 1)")
    more = last_run(db)
    found, _ = report(db, first, 1)
    assert found["trained_on"] == [more] and f"run {more}" in found["notes"][0]
    assert report(db, more, 1)[0]["trained_on"] == []
    db.run("DROP TABLE again_models, again_models_info, again_models_summary")
    assert 'no table "again_models"' in str(error := db.error("SELECT madlib.mop_configuration_report(%s, 1)", [first]))
    assert "mop_replay" in error.diag.message_hint
    db.run(call)
    later = last_run(db)
    error = db.error("SELECT madlib.mop_configuration_report(%s, 1)", [first])
    assert f'"again_models" is of run {later} by now' in str(error)
    db.run(error.diag.message_hint.partition(";")[0])
    assert report(db, later, 1)[0]["trained_on"] == []


def test_rows_that_were_written_since_are_not_called_the_runs_rows(db, made):
    measured = report(db, made, 1)[0]
    assert measured["rows_changed"] is False and "validation rows" in json.dumps(measured["sections"])
    db.run("BEGIN; UPDATE flowers_val SET buffer_id = buffer_id")
    try:
        found = json.loads(db.value("SELECT madlib.mop_configuration_report(%s, 1)", [made]))
    finally:
        db.run("ROLLBACK")
    assert found["rows_changed"] is True and "written since" in found["notes"][0]
    assert "the validation rows" not in json.dumps(found["sections"])


@pytest.mark.parametrize("strategy", ["averaging", "sequential"])
def test_the_one_model_of_a_fit_is_measured(db, made, strategy):
    db.run(f"SET pg_mop.fit_strategy = {strategy}")
    try:
        db.run(
            f"SELECT madlib.madlib_keras_fit('flowers_packed', 'fitted_{strategy}', 'arch', 1, $x${ADAM.format(0.05)}$x$, "
            "'batch_size=8', 2, FALSE, 'flowers_val')"
        )
    finally:
        db.run("RESET pg_mop.fit_strategy")
    run = last_run(db)
    found, sections = report(db, run, 1)
    counts = sections["confusion"]["picture"]["counts"]
    stored = db.value(f"SELECT validation_metrics_final FROM fitted_{strategy}_summary")
    assert sum(counts[k][k] for k in range(3)) / 90 == pytest.approx(stored, abs=1e-6)
    assert [note for note in found["notes"] if "one model" in note] == found["notes"]
    assert len(found["notes"]) == (strategy == "averaging")
    if strategy == "averaging":
        assert report(db, run, 2)[1]["confusion"] == sections["confusion"]
    assert "has no mst_key 9" in str(db.error("SELECT madlib.mop_configuration_report(%s, 9)", [run]))


HURT = "UPDATE flowers_val SET {} WHERE buffer_id = (SELECT min(buffer_id) FROM flowers_val)"


@pytest.mark.parametrize(
    "change,says",
    [
        (HURT.format("x_shape = NULL"), 'is damaged; "x"'),
        (HURT.format("x_shape = ARRAY[0, 4]"), 'is damaged; "x"'),
        (HURT.format("x = NULL"), 'is damaged; "x"'),
        (HURT.format("y_shape[1] = 1"), 'is damaged; "y"'),
        (HURT.format("y = NULL"), 'is damaged; "y"'),
        ("ALTER TABLE flowers_val RENAME TO flowers_away", 'no table "flowers_val"'),
        ("ALTER TABLE flowers_val ENABLE ROW LEVEL SECURITY", "has row security"),
    ],
)
def test_rows_that_are_damaged_gone_or_under_row_security_are_told(db, made, change, says):
    db.run(f"BEGIN; {change}")
    try:
        error = db.error("SELECT madlib.mop_configuration_report(%s, 1)", [made])
    finally:
        db.run("ROLLBACK")
    assert all(words in str(error) for words in says.split("; ")), error
    assert "validation_preprocessor_dl" in error.diag.message_hint
