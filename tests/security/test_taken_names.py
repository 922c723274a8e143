"""A run names its tables. Where another role has taken the names, nothing of it runs as whoever goes on with the run."""

from contextlib import closing

import pytest

OUTPUTS = ("beans_runs", "beans_runs_info", "beans_runs_summary")
PACKED = ("beans_packed", "beans_packed_summary")
FIT = "SELECT madlib.madlib_keras_fit_multiple_model('{}', '{}', 'beans_choice', 1, FALSE)"


@pytest.fixture(scope="module")
def honest(db):
    """The superuser with a trained run, and one to be resumed: `runs`. The role forger may make tables beside its own."""
    db.run(
        "SET search_path = public, madlib; CREATE EXTENSION IF NOT EXISTS postgres_fdw; DROP ROLE IF EXISTS forger, crew; "
        "CREATE ROLE forger LOGIN; CREATE ROLE crew; GRANT mop_user TO forger, crew; GRANT USAGE, CREATE ON SCHEMA public TO "
        "forger, crew; CREATE TABLE trap (seen text); GRANT INSERT ON trap TO public; CREATE SERVER far FOREIGN DATA WRAPPER "
        "postgres_fdw; GRANT USAGE ON FOREIGN SERVER far TO forger; "
        "CREATE TABLE beans AS SELECT i AS id, i % 7 AS size, (i % 5 > 2)::text AS y FROM generate_series(1, 80) i; "
        "GRANT SELECT ON beans TO public; SET pg_mop.seed = 1; SET pg_mop.kernel = 'plain'"
    )
    db.run("SELECT madlib.mop_pack('beans', 'beans_packed', 'y', id => 'id')")
    db.run("SELECT madlib.mop_architecture('beans_nets', 'beans_packed', 'linear')")
    db.run(
        "SELECT madlib.load_model_selection_table('beans_nets', 'beans_choice', ARRAY[1], "
        "ARRAY[$$loss='categorical_crossentropy', optimizer='Adam()'$$], ARRAY['batch_size=8']); "
        "GRANT SELECT ON beans_nets, beans_choice, beans_choice_summary TO public"
    )
    db.run(FIT.format("beans_packed", "beans_runs"))
    db.runs = [db.value("SELECT max(run_id) FROM madlib.mop_runs")]
    with closing(db.another()) as client:
        client.run("SET search_path = public, madlib; SET pg_mop.reuse = off; BEGIN")
        client.run(FIT.format("beans_packed", "beans_cut"))
        client.run("ROLLBACK")
    db.runs.append(db.value("SELECT max(run_id) FROM madlib.mop_runs"))
    db.run(f"GRANT SELECT ON {', '.join(OUTPUTS + PACKED)} TO public")
    yield db
    db.run("DROP OWNED BY forger, crew CASCADE; DROP ROLE forger, crew")


@pytest.fixture
def forger(honest):
    client = honest.another("forger")
    client.run(
        "SET search_path = public, madlib; CREATE OR REPLACE FUNCTION snap(text) RETURNS text LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO public.trap VALUES (current_user || $1); RETURN $1; END $$; CREATE OR REPLACE FUNCTION "
        "spring(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN public.snap($1); END $$; CREATE OR REPLACE "
        "FUNCTION sprung() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM public.snap('t'); RETURN NEW; END $$"
    )
    yield client
    client.close()


def take(honest, forger, tables):
    """The superuser renames the tables, and the forger makes its own of these names, with the same rows."""
    for table in tables:
        honest.run(f"ALTER TABLE {table} RENAME TO {table}_kept")
        forger.run(f"CREATE TABLE {table} AS SELECT * FROM {table}_kept; GRANT ALL ON {table} TO public")


def give_back(honest, forger, tables):
    for table in tables:
        honest.run(
            f"DO $$ BEGIN EXECUTE 'DROP ' || CASE WHEN (SELECT relkind FROM pg_class WHERE oid = '{table}'::regclass) = 'f' "
            f"THEN 'FOREIGN TABLE' ELSE 'TABLE' END || ' {table} CASCADE'; END $$; ALTER TABLE {table}_kept RENAME TO {table}"
        )


SNARES = {
    "a plain copy": "",
    "index": "CREATE INDEX ON beans_runs ((spring('index') || mst_key::text))",
    "child": "ALTER TABLE beans_runs RENAME TO kid_rows; CREATE TABLE beans_runs (LIKE kid_rows); CREATE TABLE kid () INHERITS "
    "(beans_runs); INSERT INTO kid SELECT * FROM kid_rows; DROP TABLE kid_rows; GRANT ALL ON beans_runs, kid TO public; "
    "CREATE TRIGGER t BEFORE UPDATE ON kid FOR EACH ROW EXECUTE FUNCTION sprung()",
    "check": "ALTER TABLE beans_runs ADD CHECK (mst_key::text <> spring('check'))",
    "index of the info table": "CREATE INDEX ON beans_runs_info ((spring('index') || mst_key::text))",
    "trigger of the summary": "CREATE TRIGGER t BEFORE UPDATE ON beans_runs_summary FOR EACH ROW EXECUTE FUNCTION sprung()",
    "foreign table": "DROP TABLE beans_runs; CREATE FOREIGN TABLE beans_runs (mst_key integer, model_weights bytea, "
    "model_arch json) SERVER far; GRANT ALL ON beans_runs TO public",
}


@pytest.mark.parametrize("snare", list(SNARES))
def test_more_is_written_into_no_table_that_another_role_made(honest, forger, snare):
    take(honest, forger, OUTPUTS)
    try:
        forger.run(SNARES[snare] or "SELECT 1")
        honest.run("TRUNCATE trap")
        error = honest.error("SELECT madlib.mop_more(%s, 1, 1)", [honest.runs[0]])
        assert error.pgcode == "42501" and "is another role's: forger owns it" in str(error)
        assert "mop_replay" in error.diag.message_hint and honest.run("SELECT * FROM trap") == []
    finally:
        give_back(honest, forger, OUTPUTS)


@pytest.mark.parametrize("suffix,column", [("_info", "mst_key"), ("_summary", "source_table")])
def test_more_refuses_one_table_of_another_role_beside_its_own(honest, forger, suffix, column):
    take(honest, forger, ["beans_runs" + suffix])
    try:
        forger.run(f"CREATE INDEX ON beans_runs{suffix} ((spring('index') || {column}::text))")
        honest.run("TRUNCATE trap")
        error = honest.error("SELECT madlib.mop_more(%s, 1, 1)", [honest.runs[0]])
        assert error.pgcode == "42501" and honest.run("SELECT * FROM trap") == []
    finally:
        give_back(honest, forger, ["beans_runs" + suffix])


def calls(honest):
    """Calls that name a run alone."""
    first, cut = honest.runs
    return [f"mop_more({first}, 1, 1)", f"mop_replay({first}, 'again')", f"mop_resume({cut})"]


@pytest.mark.parametrize("snare", ["index of the rows", "check of the summary"])
def test_packed_rows_of_a_run_whose_names_another_role_has_taken_are_not_read(honest, forger, snare):
    take(honest, forger, PACKED)
    try:
        forger.run(
            "CREATE INDEX ON beans_packed ((spring('index') || buffer_id::text))"
            if snare == "index of the rows"
            else "ALTER TABLE beans_packed_summary ADD CHECK (source_table <> spring('check'))"
        )
        honest.run("TRUNCATE trap")
        for call in calls(honest):
            error = honest.error(f"SELECT madlib.{call}")
            assert error.pgcode == "42501" and "of role forger is not read" in str(error), (call, str(error))
            assert honest.run("SELECT * FROM trap") == [], call
    finally:
        give_back(honest, forger, PACKED)


def test_a_selection_of_a_run_whose_name_another_role_has_taken_is_not_read(honest, forger):
    take(honest, forger, ["beans_nets"])
    try:
        forger.run("CREATE INDEX ON beans_nets ((spring('index') || model_id::text))")
        honest.run("TRUNCATE trap")
        for call in calls(honest)[1:]:
            error = honest.error(f"SELECT madlib.{call}")
            assert error.pgcode == "42501" and "of role forger is not read" in str(error), (call, str(error))
            assert honest.run("SELECT * FROM trap") == [], call
    finally:
        give_back(honest, forger, ["beans_nets"])


def test_more_is_not_trained_on_other_rows(honest, forger):
    """A plain copy has no code, but its rows are others."""
    before = honest.value("SELECT md5(model_weights) FROM beans_runs")
    take(honest, forger, PACKED)
    try:
        error = honest.error(f"SELECT madlib.{calls(honest)[0]}")
        assert error.pgcode == "55000" and "have changed since run" in str(error)
        assert error.diag.message_hint == "Call madlib_keras_fit_multiple_model again to train on the rows as they are."
        assert honest.value("SELECT md5(model_weights) FROM beans_runs") == before
    finally:
        give_back(honest, forger, PACKED)


def test_who_goes_on_with_a_run_on_rows_that_another_role_shares(honest, forger):
    """The packed table has no code, and the output tables are those of a group of the run's role."""
    honest.run("SELECT madlib.mop_pack('beans', 'shared_packed', 'y', id => 'id'); GRANT crew TO forger")
    honest.run(
        "DO $$ DECLARE t text; BEGIN FOR t IN SELECT relid::regclass::text FROM pg_partition_tree('shared_packed') "
        "UNION SELECT 'shared_packed_summary' LOOP EXECUTE format('ALTER TABLE %1$s OWNER TO crew; GRANT SELECT ON %1$s TO "
        "public', t); END LOOP; END $$"
    )
    forger.run(FIT.format("shared_packed", "shared"))
    run = forger.value("SELECT max(run_id) FROM madlib.mop_runs")
    for table in ("shared", "shared_info", "shared_summary"):
        forger.run(f"ALTER TABLE {table} OWNER TO crew")
    forger.run("SELECT madlib.mop_more(%s, 1, 1)", [run])
    assert forger.value("SELECT iteration FROM shared_info") == 2
    forger.run("SELECT madlib.mop_replay(%s, 'shared_again')", [run])
    # what the group's other members could have hung on it does not run
    honest.run("CREATE INDEX ON shared ((spring('index') || mst_key::text))")
    error = forger.error("SELECT madlib.mop_more(%s, 1, 1)", [run])
    assert error.pgcode == "42501" and "of role crew has the index" in str(error)
