"""Tables that look like named models and belong to somebody else run no code with the rights of who reads them."""

import json

import pytest


@pytest.fixture(scope="module")
def honest(db):
    """A named model of the superuser, and a role that may make tables."""
    db.run(
        "SET search_path = public, madlib; DROP ROLE IF EXISTS forger; CREATE ROLE forger LOGIN; GRANT mop_user TO forger; "
        "GRANT USAGE, CREATE ON SCHEMA public TO forger; CREATE TABLE trap (seen text); GRANT INSERT ON trap TO public; "
        "CREATE TABLE beans AS SELECT i AS id, i % 7 AS size, 'kind ' || i % 40 AS form, (i % 5 > 2)::text AS y "
        "FROM generate_series(1, 80) i; GRANT SELECT ON beans TO public; "
        "SELECT madlib.mop_pack('beans', 'beans_packed', 'y', id => 'id'); "
        "SELECT madlib.mop_architecture('beans_nets', 'beans_packed', 'linear')"
    )
    db.run(
        "SELECT madlib.madlib_keras_fit('beans_packed', 'beans_fitted', 'beans_nets', 1, "
        "$$loss='categorical_crossentropy', optimizer='Adam()'$$, 'batch_size=8', 1)"
    )
    db.run("SELECT madlib.mop_deploy('beans_model', 'beans_fitted'); SELECT madlib.mop_share('beans_model', 'forger')")
    return db


@pytest.fixture
def forger(honest):
    client = honest.another("forger")
    client.run(
        "SET search_path = public, madlib; CREATE OR REPLACE FUNCTION snap() RETURNS text LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO public.trap VALUES (current_user); RETURN 'x'; END $$; CREATE OR REPLACE FUNCTION spring() "
        "RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN public.snap(); END $$"
    )
    client.run("CREATE TABLE forged AS SELECT * FROM beans_model; GRANT SELECT ON forged TO public")
    yield client
    client.run("DROP TABLE forged CASCADE")
    client.close()


ROW = "SELECT p.* FROM (SELECT * FROM beans LIMIT 1) t, madlib.mop_predict('forged', t) AS p"
TRICKS = {
    "policy": "ALTER TABLE forged ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON forged USING (spring() = 'x')",
    "index expression": "CREATE INDEX ON forged ((spring() || description))",
    "index predicate": "CREATE INDEX ON forged (version) WHERE description = spring()",
    "child": "CREATE TABLE forged_child () INHERITS (forged); CREATE INDEX ON forged_child ((spring() || description))",
    "constraint": "ALTER TABLE forged ADD CHECK (description IS NULL OR description <> spring())",
    "type": "CREATE TYPE sprung AS (a text); CREATE FUNCTION sprung_text(sprung) RETURNS text LANGUAGE plpgsql AS "
    "$$ BEGIN INSERT INTO public.trap VALUES (current_user); RETURN '{}'; END $$; CREATE CAST (sprung AS text) WITH FUNCTION "
    "sprung_text(sprung); ALTER TABLE forged DROP metrics; ALTER TABLE forged ADD metrics sprung DEFAULT ROW('a')::sprung",
    "view": "ALTER TABLE forged RENAME TO forged_rows; CREATE VIEW forged AS SELECT *, spring() AS more FROM forged_rows; "
    "GRANT SELECT ON forged TO public",
}


@pytest.mark.parametrize("trick", list(TRICKS))
def test_somebody_elses_table_runs_nothing(honest, forger, trick):
    try:
        forger.run(TRICKS[trick])
        honest.run("TRUNCATE trap")  # (CREATE INDEX and ADD CHECK ran it as its owner)
        names = [r["name"] for r in honest.run("SELECT * FROM madlib.mop_models")]
        assert "beans_model" in names and "forged" not in names
        assert "forged" not in [r["model"] for r in honest.run("SELECT * FROM madlib.mop_family_trials")]
        assert any(text in str(honest.error(ROW)) for text in ("of another role has", "is no model with versions"))
        assert honest.run("SELECT * FROM trap") == []
    finally:
        if trick == "view":
            forger.run("DROP VIEW forged; ALTER TABLE forged_rows RENAME TO forged")
        if trick == "type":
            forger.run("DROP TYPE sprung CASCADE")


def test_an_honest_copy_of_another_role_answers(honest, forger):
    assert "forged" in [r["name"] for r in honest.run("SELECT * FROM madlib.mop_models")]
    assert len(honest.run(ROW)) == 1


def test_a_role_may_have_policies_on_its_own_model(honest, forger):
    forger.run("ALTER TABLE forged ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON forged USING (true)")
    assert len(forger.run(ROW)) == 1


@pytest.mark.parametrize(
    "sql_type", ["text", "varchar", "name", "char(80)", "words", "regclass", "json", "integer", "text[]"]
)
def test_a_value_of_the_data_is_never_read_as_a_table_or_a_query(honest, forger, sql_type):
    """The forger may write a row that the reader predicts for: its text would run, or read a view, with the reader's rights."""
    forger.run("CREATE OR REPLACE VIEW snare AS SELECT public.snap() AS form; GRANT SELECT ON snare TO public")
    honest.run("DROP DOMAIN IF EXISTS words; CREATE DOMAIN words AS varchar; TRUNCATE trap")
    values = {"integer": "7", "text[]": "{snare}", "json": '"SELECT snap()"', "regclass": "snare"}
    for value in (
        [values[sql_type]] if sql_type in values else ["SELECT snap() AS form", "snare", "(TABLE snare)", "beans"]
    ):
        error = honest.error(
            f"SELECT * FROM (SELECT $${value}$$::{sql_type} AS note) note, madlib.mop_predict('beans_model', note.note) p"
        )
        assert "a row must have columns with names" in str(error) and "source =>" in error.diag.message_hint
    assert honest.run("SELECT * FROM trap") == []


def test_a_text_in_place_of_a_row_has_a_hint_that_runs(honest):
    error = honest.error("SELECT * FROM madlib.mop_predict('beans_model', 'beans', keep => 'id')")
    statements = error.diag.message_hint.splitlines()
    assert [len(honest.run(statement)) for statement in statements] == [80, 80]


HIJACKS = """
CREATE SCHEMA ambush; GRANT USAGE ON SCHEMA ambush TO public;
CREATE FUNCTION ambush.caught(name text) RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.trap VALUES (name || ' of ' || current_user); END $$;
CREATE FUNCTION ambush.array_send(float8[]) RETURNS bytea LANGUAGE plpgsql AS
    $$ BEGIN PERFORM ambush.caught('send'); RETURN pg_catalog.array_send($1); END $$;
CREATE FUNCTION ambush.array_send(real[]) RETURNS bytea LANGUAGE plpgsql AS
    $$ BEGIN PERFORM ambush.caught('send real'); RETURN pg_catalog.array_send($1); END $$;
CREATE FUNCTION ambush.array_replace(float8[], float8, float8) RETURNS float8[] LANGUAGE plpgsql AS
    $$ BEGIN PERFORM ambush.caught('replace'); RETURN pg_catalog.array_replace($1, $2, $3); END $$;
CREATE FUNCTION ambush.jsonb_build_object(text, integer) RETURNS jsonb LANGUAGE plpgsql AS
    $$ BEGIN PERFORM ambush.caught('json'); RETURN '{}'; END $$;
CREATE FUNCTION ambush.hashtextextended(text, integer) RETURNS bigint LANGUAGE plpgsql AS
    $$ BEGIN PERFORM ambush.caught('hash'); RETURN pg_catalog.hashtextextended($1, $2); END $$;
CREATE FUNCTION ambush.concat_ws(text, text) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM ambush.caught('concat'); RETURN $2; END $$;
CREATE FUNCTION ambush.band(bigint, integer) RETURNS bigint LANGUAGE plpgsql AS
    $$ BEGIN PERFORM ambush.caught('and'); RETURN $1 OPERATOR(pg_catalog.&) $2::bigint; END $$;
CREATE OPERATOR ambush.& (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = ambush.band);
CREATE FUNCTION ambush.times(numeric, float8) RETURNS float8 LANGUAGE plpgsql AS
    $$ BEGIN PERFORM ambush.caught('times'); RETURN $2; END $$;
CREATE OPERATOR ambush.* (LEFTARG = numeric, RIGHTARG = float8, FUNCTION = ambush.times);
"""
READERS = [
    "SELECT count(*) FROM mop_predict('beans_model', source => 'beans', keep => 'id')",
    "SELECT count(*) FROM mop_predict('beans_model', source => 'SELECT id, 1e301 AS size, form, y FROM beans', keep => 'id')",
    "SELECT count(*) FROM mop_predict('tones_model', source => 'SELECT * FROM tones')",
    "SELECT count(*) FROM mop_evaluate('beans_model', 'SELECT * FROM beans')",
    "SELECT count(*) FROM mop_drift('beans_model', 'SELECT * FROM beans')",
    "SELECT mop_pack('SELECT id, size::numeric, form, y FROM beans', 'beans_again', fitted_on => 'beans_packed')",
    "SELECT count(*) FROM mop_split('beans', 'beans_parts', id => 'id')",
    "SELECT count(*) FROM mop_split('SELECT * FROM beans', 'beans_query', id => 'id')",
    "SELECT count(*) FROM mop_split('TABLE beans', 'beans_layers', method => 'stratified', by => 'y', id => 'id')",
    "SELECT count(*) FROM beans_parts_train, beans_query_train, beans_layers_train",
]


def test_functions_of_another_role_in_the_search_path_are_not_run(honest, forger):
    honest.run(
        "CREATE TABLE tones AS SELECT i AS id, array_fill((i % 3)::float8, ARRAY[3 + i % 4]) AS steps, "
        "ARRAY[i % 2]::float8[] AS one, (i % 2)::text AS y FROM generate_series(1, 60) i; "
        "SELECT madlib.mop_pack('tones', 'tones_packed', 'y', id => 'id'); "
        "SELECT madlib.mop_architecture('tones_nets', 'tones_packed', 'linear'); GRANT CREATE ON DATABASE "
        + honest.value("SELECT quote_ident(current_database())")
        + " TO forger"
    )
    honest.run(
        "SELECT madlib.madlib_keras_fit('tones_packed', 'tones_fitted', 'tones_nets', 1, "
        "$$loss='categorical_crossentropy', optimizer='Adam()'$$, 'batch_size=8', 1)"
    )
    honest.run("SELECT madlib.mop_deploy('tones_model', 'tones_fitted')")
    forger.run(HIJACKS)
    honest.run("TRUNCATE trap; SET search_path = ambush, public, madlib")
    honest.run("SELECT array_send(ARRAY[1::float8]), jsonb_build_object('a', 1), 1::bigint & 2, 1::numeric * 1::float8")
    assert len(honest.run("SELECT * FROM trap")) == 4  # the ambush works
    honest.run("TRUNCATE trap")
    try:
        for call in READERS:
            honest.run(f"SET search_path = ambush, public, madlib; {call}")
            assert honest.run("SELECT * FROM public.trap") == [], call
    finally:
        honest.run("SET search_path = public, madlib; DROP SCHEMA ambush CASCADE")


def test_only_who_may_grant_shares_a_model(honest, forger):
    error = forger.error("SELECT mop_share('beans_model', 'forger')")
    assert "permission denied to share model" in str(error)
    assert error.diag.message_hint == 'GRANT SELECT ON "public"."beans_model" TO "forger" WITH GRANT OPTION;'


def test_a_query_is_one_statement(honest):
    honest.run("CREATE TABLE prey AS SELECT 1 AS a")
    for query in ("SELECT * FROM beans; DROP TABLE prey", "SELECT 1) t; DROP TABLE prey; SELECT * FROM (SELECT 2"):
        for call in (
            f"mop_pack($${query}$$, 'no', 'y')",
            f"mop_split($${query}$$, 'no', id => 'id')",
            f"mop_predict('beans_model', source => $${query}$$)",
        ):
            assert "syntax error" in str(honest.error(f"SELECT {call}"))
    assert honest.value("SELECT count(*) FROM prey") == 1


def test_a_split_without_a_right_on_a_column_says_which(honest, forger):
    honest.run(
        "CREATE TABLE partly AS SELECT *, 1 AS secret FROM beans; GRANT SELECT (id, size, y) ON partly TO forger"
    )
    error = forger.error("SELECT mop_split('partly', 'partly', id => 'id')")
    assert 'permission denied for column "form"' in str(error)


def test_a_stored_source_of_another_role_is_not_run(honest, forger):
    arguments = {"source": "SELECT *, public.snap() AS more FROM beans", "target": "y", "id": "id"}
    forger.run("UPDATE forged SET details = %s, in_use = true", [json.dumps({"arguments": arguments})])
    honest.run("TRUNCATE trap")
    error = honest.error("SELECT madlib.mop_retrain('forged', time_limit => '2 s')")
    assert "needs a source" in str(error)
    assert (
        error.diag.message_hint.startswith("SELECT") and "source => 'SELECT *, public.snap()" in error.diag.message_hint
    )
    # nor is one in the caller's own model that another role may write to, or might have written to
    honest.run("CREATE TABLE own_beans AS SELECT * FROM forged; GRANT UPDATE (details) ON own_beans TO forger")
    assert "needs a source" in str(honest.error("SELECT madlib.mop_retrain('own_beans', time_limit => '2 s')"))
    honest.run("REVOKE ALL ON own_beans FROM forger")
    assert "needs a source" in str(honest.error("SELECT madlib.mop_retrain('own_beans', time_limit => '2 s')"))
    assert honest.run("SELECT * FROM trap") == []


def test_a_signature_is_of_one_role_one_text_and_one_model(honest, forger):
    signature = forger.value("SELECT madlib.mop_sign('a text')")
    signer = "SELECT madlib.mop_signer(%s, %s)::regrole::text"
    assert honest.value(signer, ["a text", signature]) == "forger"
    owner = honest.value("SELECT current_user::regrole::oid::text")
    for text, forged in (
        ("another text", signature),
        ("a text", f"{owner} {signature.split()[1]}"),
        ("a text", "9" * 10 + " " + "0" * 64),
        ("a text", "no signature"),
        ("a text", None),
        (None, signature),
    ):
        assert honest.value(signer, [text, forged]) is None


def _first(transform):
    return transform["inputs"][0]["parameters"]


HOSTILE = {
    "a word": lambda t: "words",
    "a list": lambda t: [1],
    "no inputs": lambda t: {"outputs": t["outputs"]},
    "input is null": lambda t: {**t, "inputs": [None]},
    "one input less": lambda t: {**t, "inputs": t["inputs"][:1]},
    "another width": lambda t: _first(t).update(shape=[10**12]),
    "a negative width": lambda t: _first(t).update(shape=[-1]),
    "features are missing": lambda t: _first(t).update(features=_first(t)["features"][:0]),
    "features are a number": lambda t: _first(t).update(features=3),
    "the mean is a word": lambda t: _first(t)["features"][0]["parameters"].update(center="x", fill="y"),
    "parameters are missing": lambda t: _first(t)["features"][0].update(parameters={"column": "size"}),
    "classes are a number": lambda t: t["outputs"][0]["parameters"].update(classes=3),
    "words of a huge length": lambda t: t["inputs"].__setitem__(
        0, {"type": "words", "name": "form", "parameters": {"column": "form", "vocabulary": ["a"], "shape": [10**11]}}
    ),
}


@pytest.mark.parametrize("change", list(HOSTILE))
def test_a_transform_that_does_not_suit_its_net_is_an_error(honest, forger, change):
    transform = json.loads(forger.value("SELECT transform::text FROM forged"))
    transform = HOSTILE[change](transform) or transform
    forger.run("UPDATE forged SET transform = %s, in_use = true", [json.dumps(transform)])
    for ask in (ROW, "SELECT * FROM madlib.mop_predict('forged', source => 'beans')"):
        error = str(honest.error(ask))
        assert "cannot be used" in error or "there is no" in error, error
    assert honest.value("SELECT 1") == 1


@pytest.fixture
def packed_by_forger(honest, forger):
    """A packed table of the forger, with its summary, that all may read."""
    forger.run(
        "CREATE TABLE lure AS SELECT *, 'sort ' || id % 3 AS sort FROM beans; "
        "SELECT mop_pack('lure', 'lure_packed', 'y', id => 'id'); GRANT SELECT ON lure_packed, lure_packed_summary TO public"
    )
    honest.run("TRUNCATE trap")
    yield forger
    forger.run("DROP TABLE lure, lure_packed CASCADE")


SNARES = {
    "view of the summary": "ALTER TABLE lure_packed_summary RENAME TO lure_rows; CREATE VIEW lure_packed_summary AS "
    "SELECT *, snap() AS more FROM lure_rows; GRANT SELECT ON lure_packed_summary TO public",
    "view of the rows": "ALTER TABLE lure_packed RENAME TO lure_kept; CREATE VIEW lure_packed AS SELECT *, snap() AS more "
    "FROM lure_kept; GRANT SELECT ON lure_packed TO public",
    "policy": "ALTER TABLE lure_packed_summary ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON lure_packed_summary "
    "USING (spring() = 'x')",
    "policy of the rows": "ALTER TABLE lure_packed ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON lure_packed "
    "USING (spring() = 'x')",
    "index of the summary": "CREATE INDEX ON lure_packed_summary ((spring() || source_table))",
    "index predicate of the rows": "CREATE INDEX ON lure_packed (buffer_id) WHERE spring() = 'x'",
    "index of a partition": "DO $do$ BEGIN EXECUTE format('CREATE INDEX ON %s (buffer_id) WHERE spring() IS NOT NULL', (SELECT "
    "min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'lure_packed'::regclass)); END $do$",
    "statistics of the summary": "CREATE STATISTICS sprung ON (spring() || output_table) FROM lure_packed_summary",
    "constraint of the rows": "ALTER TABLE lure_packed ADD CHECK (buffer_id >= 0 OR spring() = 'y')",
    "default of the summary": "ALTER TABLE lure_packed_summary ALTER source_table SET DEFAULT snap()",
    "type of a column": "CREATE TYPE sprung AS (a text); ALTER TABLE lure_packed_summary ADD more sprung",
    "trigger": "CREATE FUNCTION sprung() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$; CREATE TRIGGER t "
    "BEFORE INSERT ON lure_packed_summary FOR EACH ROW EXECUTE FUNCTION sprung()",
}
CLEARED = {
    "view of the summary": "DROP VIEW lure_packed_summary; DROP TABLE lure_rows",
    "view of the rows": "DROP VIEW lure_packed; ALTER TABLE lure_kept RENAME TO lure_packed; DROP TABLE lure_packed_summary",
    "type of a column": "DROP TABLE lure_packed_summary; DROP TYPE sprung",
    "trigger": "DROP TABLE lure_packed_summary; DROP FUNCTION sprung()",
}


OF_PACKED = (
    "SELECT * FROM madlib.mop_drift('lure_packed', 'SELECT * FROM beans WHERE id < 40')",
    "SELECT * FROM madlib.mop_feature_info('lure_packed')",
)


def test_columns_of_a_packed_table_that_another_role_shares_are_read(honest, packed_by_forger):
    """It has nothing that would run code of its owner. A role without rights on it reads nothing."""
    expected = [packed_by_forger.run(ask) for ask in OF_PACKED]
    assert all(expected)
    packed_by_forger.run(
        "ALTER TABLE lure_packed_summary ADD PRIMARY KEY (source_table); CREATE INDEX ON lure_packed (buffer_id); "
        "ALTER TABLE lure_packed_summary ALTER output_table SET NOT NULL"
    )
    honest.run(
        "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN; GRANT mop_user TO reader; GRANT USAGE ON SCHEMA public TO reader"
    )
    reader = honest.another("reader")
    try:
        for client in (honest, reader):
            client.run("SET search_path = public, madlib")
            assert [client.run(ask) for ask in OF_PACKED] == expected
        packed_by_forger.run("REVOKE SELECT ON lure_packed_summary FROM public")
        for ask in OF_PACKED:
            assert reader.error(ask).pgcode == "42501"
    finally:
        reader.close()
        packed_by_forger.run("DROP TABLE lure_packed_summary")
        honest.run("DROP OWNED BY reader; DROP ROLE reader")


@pytest.mark.parametrize("snare", list(SNARES))
def test_columns_of_a_packed_table_of_another_role_are_not_read(honest, packed_by_forger, snare):
    packed_by_forger.run(SNARES[snare])
    honest.run("TRUNCATE trap")  # (CREATE INDEX and ADD CHECK ran it as its owner)
    try:
        for ask in OF_PACKED:
            error = honest.error(ask)
            assert error.pgcode == "42501" and "of role forger is not read: public.lure_packed" in str(error)
            assert honest.run("SELECT * FROM trap") == [], ask
    finally:
        packed_by_forger.run(CLEARED.get(snare, "DROP TABLE lure_packed_summary CASCADE"))


def test_a_summary_that_another_role_made_for_a_packed_table_is_not_read(honest, forger):
    """The caller names the packed table alone. Whoever may create tables in its schema can make a lost summary anew."""
    honest.run(
        "CREATE TABLE bare AS SELECT * FROM beans; SELECT madlib.mop_pack('bare', 'bare_packed', 'y', id => 'id'); "
        "ALTER TABLE bare_packed_summary RENAME TO bare_rows; GRANT SELECT ON bare_packed, bare_rows TO public"
    )
    forger.run(
        "CREATE VIEW bare_packed_summary AS SELECT *, snap() AS more FROM bare_rows; "
        "GRANT SELECT ON bare_packed_summary TO public"
    )
    honest.run("TRUNCATE trap")
    try:
        for call in (
            "mop_drift('bare_packed', 'SELECT * FROM beans')",
            "mop_feature_info('bare_packed')",
            "mop_pack('beans', 'bare_again', fitted_on => 'bare_packed')",
            "mop_architecture('bare_nets', 'bare_packed', 'linear')",
            "validation_preprocessor_dl('beans', 'bare_again', 'y', 'size', 'bare_packed')",
            "madlib_keras_fit('bare_packed', 'bare_fitted', 'beans_nets', 1, "
            "$$loss='categorical_crossentropy', optimizer='Adam()'$$, 'batch_size=8', 1)",
            "madlib_keras_evaluate('beans_fitted', 'bare_packed', 'bare_measures')",
        ):
            error = honest.error(f"SELECT madlib.{call}")
            assert error.pgcode == "42501", (call, str(error))
            assert honest.run("SELECT * FROM trap") == [], call
    finally:
        forger.run("DROP VIEW bare_packed_summary")
        honest.run("DROP TABLE bare, bare_packed, bare_rows")


RUN = "(SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = 'beans_runs' AND status = 'finished')"


@pytest.mark.parametrize("suffix", ["", "_info"])
def test_tables_of_a_run_whose_names_another_role_has_taken_are_not_read(honest, forger, suffix):
    """The caller names the run, or the model table of a warm start."""
    honest.run(
        "SELECT madlib.load_model_selection_table('beans_nets', 'beans_choice', ARRAY[1], "
        "ARRAY[$$loss='categorical_crossentropy', optimizer='Adam()'$$], ARRAY['batch_size=8'])"
    )
    fit = "SELECT madlib.madlib_keras_fit_multiple_model('beans_packed', 'beans_runs', 'beans_choice', 1, FALSE{})"
    honest.run(fit.format(""))
    honest.run(f"ALTER TABLE beans_runs{suffix} RENAME TO beans_kept; GRANT SELECT ON beans_kept TO public")
    calls = [f"SELECT madlib.mop_more({RUN}, 1, 1)"]
    if suffix:
        calls.append(fit.format(", warm_start => TRUE"))
    forger.run(
        f"CREATE VIEW beans_runs{suffix} AS SELECT *, snap() AS more FROM beans_kept; GRANT ALL ON beans_runs{suffix} TO public"
    )
    honest.run("TRUNCATE trap")
    try:
        for call in calls:
            error = honest.error(call)
            assert error.pgcode == "42501", (call, str(error))
            assert honest.run("SELECT * FROM trap") == [], call
    finally:
        forger.run(f"DROP VIEW beans_runs{suffix}")
        honest.run(f"ALTER TABLE beans_kept RENAME TO beans_runs{suffix}")
        honest.run("DROP TABLE beans_runs, beans_runs_info, beans_runs_summary, beans_choice, beans_choice_summary")


@pytest.mark.parametrize("table", ["beans_fitted", "beans_runs", "beans_choice"])
def test_a_summary_that_another_role_made_for_models_or_a_selection_is_not_read(honest, forger, table):
    honest.run(
        "SELECT madlib.load_model_selection_table('beans_nets', 'beans_choice', ARRAY[1], "
        "ARRAY[$$loss='categorical_crossentropy', optimizer='Adam()'$$], ARRAY['batch_size=8'])"
    )
    fit = "madlib_keras_fit_multiple_model('beans_packed', '{}', 'beans_choice', 1, FALSE)"
    honest.run("SELECT madlib." + fit.format("beans_runs"))
    honest.run(f"ALTER TABLE {table}_summary RENAME TO beans_rows; GRANT SELECT ON beans_rows TO public")
    forger.run(
        f"CREATE VIEW {table}_summary AS SELECT *, snap() AS more FROM beans_rows; GRANT SELECT ON {table}_summary TO public"
    )
    honest.run("TRUNCATE trap")
    calls = {
        "beans_choice": [fit.format("beans_again")],
        "beans_fitted": [
            "mop_deploy('beans_model', 'beans_fitted')",
            "mop_export_model('beans_fitted', NULL)",
            "madlib_keras_fit('beans_packed', 'beans_fitted', 'beans_nets', 1, $$loss='categorical_crossentropy', "
            "optimizer='Adam()'$$, 'batch_size=8', 1, warm_start => TRUE)",
        ],
        "beans_runs": [
            "mop_deploy('beans_model', 'beans_runs')",
            "mop_export_model('beans_runs', 1)",
            fit.format("beans_runs").replace("FALSE)", "FALSE, warm_start => TRUE)"),
            f"mop_more({RUN}, 1, 1)",
        ],
    }
    try:
        for call in calls[table]:
            error = honest.error(f"SELECT madlib.{call}")
            assert error.pgcode == "42501" and "is another role's" in str(error), (call, str(error))
            assert honest.run("SELECT * FROM trap") == [], call
    finally:
        forger.run(f"DROP VIEW {table}_summary")
        honest.run(f"ALTER TABLE beans_rows RENAME TO {table}_summary")
        honest.run("DROP TABLE beans_runs, beans_runs_info, beans_runs_summary, beans_choice, beans_choice_summary")


WRITING = {
    "default": "ALTER TABLE forged ADD more text DEFAULT spring()",
    "generated column": "ALTER TABLE forged ADD gen text GENERATED ALWAYS AS (spring() || version::int4::char) STORED",
    "domain": "CREATE DOMAIN sprung AS text CHECK (spring() IS NOT NULL); ALTER TABLE forged ADD more sprung",
    "default of a column of models": "CREATE FUNCTION public.later() RETURNS timestamptz LANGUAGE plpgsql AS "
    "$$ BEGIN PERFORM public.snap(); RETURN now(); END $$; ALTER TABLE forged ALTER created SET DEFAULT later()",
}


@pytest.mark.parametrize("trick", list(WRITING))
def test_a_model_of_another_role_is_not_written_where_that_runs_code(honest, forger, trick):
    forger.run("GRANT ALL ON forged TO public; ALTER TABLE forged ALTER created SET DEFAULT now()")
    forger.run(WRITING[trick])
    honest.run("TRUNCATE trap")
    try:
        for call in ("mop_deploy('forged', 'beans_fitted')", "mop_use_version('forged', 1)"):
            error = honest.error(f"SELECT madlib.{call}")
            assert error.pgcode == "42501" and 'table "public"."forged" of role forger has the' in str(error)
            assert honest.run("SELECT * FROM trap") == [], call
    finally:
        if trick == "domain":
            forger.run("DROP DOMAIN sprung CASCADE")
        if trick == "default of a column of models":
            forger.run("DROP FUNCTION later() CASCADE")


def test_a_model_of_another_role_with_the_columns_of_a_model_alone_is_written(honest, forger):
    forger.run("GRANT ALL ON forged TO public; ALTER TABLE forged ALTER created SET DEFAULT now()")
    assert honest.value("SELECT madlib.mop_deploy('forged', 'beans_fitted')") == 2
    honest.run("SELECT madlib.mop_use_version('forged', 1)")


DAMAGES = {
    "an open brace": "{",
    "a list": "[]",
    "an empty object": "{}",
    "a text": '"x"',
    "deep": "[" * 100_000,
    "no parameters": lambda t: t["inputs"][0].pop("parameters"),
    "no edges": lambda t: [f["parameters"].pop("edges", None) for f in features(t)],
    "rows that are a text": lambda t: [f["parameters"].update(rows="a") for f in features(t)],
    "no values": lambda t: [f["parameters"].update(values=None) for f in features(t)],
    "a mean that is a text": lambda t: [f["parameters"].update(mean="a") for f in features(t)],
    "half of a character": lambda t: t["inputs"][0].update(name="\ud800"),
}


def features(transform):
    return transform["inputs"][0]["parameters"]["features"]


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_summary_of_another_role_is_an_error_of_one_sentence(honest, packed_by_forger, damage):
    """mop_feature_info may have an answer, where what is damaged concerns mop_drift alone, and the other way round."""
    change = DAMAGES[damage]
    if not isinstance(change, str):
        transform = json.loads(packed_by_forger.value("SELECT __transform__ FROM lure_packed_summary"))
        change(transform)
        change = json.dumps(transform)
    packed_by_forger.run("UPDATE lure_packed_summary SET __transform__ = %s", [change])
    try:
        told = 0
        for ask in OF_PACKED:
            try:
                honest.run(ask)
            except Exception as error:
                assert error.pgcode == "22023" and str(error).startswith("plpy.Error: mop_"), str(error)
                assert "cannot be read" in str(error)
                told += 1
        assert told >= 1
    finally:
        packed_by_forger.run("DROP TABLE lure_packed_summary")


def test_a_locked_summary_and_a_missing_one_are_told_apart(honest, packed_by_forger):
    packed_by_forger.run("BEGIN; LOCK TABLE lure_packed_summary")
    try:
        error = honest.error(OF_PACKED[0])
    finally:
        packed_by_forger.run("ROLLBACK")
    assert error.pgcode == "55P03" and 'another session changes "lure_packed"' in str(error)
    packed_by_forger.run("DROP TABLE lure_packed_summary")
    error = honest.error(OF_PACKED[0])
    assert error.pgcode == "42P01" and '"lure_packed" has no summary\n' in str(error)


def test_an_index_whose_predicate_hides_a_cast_is_code(honest, packed_by_forger):
    packed_by_forger.run(
        "CREATE TYPE sprung AS ENUM ('a'); CREATE FUNCTION is_sprung(sprung) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM public.spring(); RETURN true; END $$; CREATE CAST (sprung AS boolean) WITH FUNCTION "
        "is_sprung(sprung) AS IMPLICIT; CREATE TABLE cast_rows (in_use sprung); "
        "CREATE INDEX ON cast_rows (in_use) WHERE in_use; GRANT SELECT ON cast_rows TO public"
    )
    try:
        shown = "SELECT pg_get_expr(indpred, indrelid) FROM pg_index WHERE indrelid = 'cast_rows'::regclass"
        assert honest.value(shown) == "in_use", "it shows no cast"
        packed_by_forger.run(
            "ALTER TABLE lure_packed_summary ADD in_use sprung; "
            "CREATE INDEX ON lure_packed_summary (source_table) WHERE in_use"
        )
        error = str(honest.error(OF_PACKED[0]))
        assert "of an expression" in error
    finally:
        packed_by_forger.run("DROP TABLE cast_rows, lure_packed_summary; DROP TYPE sprung CASCADE")
