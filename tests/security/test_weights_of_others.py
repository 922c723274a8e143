"""A table beside a model table, of another role or with code in it, is not taken for the table of the weights' parts.

Anybody who may create tables in a schema can make `<model table>_parts`, before the model needs one.
"""

from contextlib import closing

import pytest

from support.workload import ADAM, dense, fit, layer, load, make_data, selection, sequential

WHOLE, PARTS = "RESET pg_mop.weights_value_mb", "SET pg_mop.weights_value_mb = 1"
ASK = "SELECT prediction FROM madlib.mop_predict('prized', (SELECT f FROM (SELECT ARRAY[1, 2, 3, 4]::real[] AS x) f))"
COLUMNS = "(digest text, part integer, data bytea)"


@pytest.fixture(scope="module")
def models(db):
    """The superuser's models `large`, in parts, and `small`; the runs that have trained them."""
    db.run(
        "DROP ROLE IF EXISTS squatter, guest; CREATE ROLE squatter LOGIN; CREATE ROLE guest LOGIN; "
        "GRANT mop_user TO squatter, guest; GRANT USAGE, CREATE ON SCHEMA public TO squatter; "
        "CREATE TABLE snare (seen text); GRANT INSERT ON snare TO public"
    )
    make_data(db, then="SET pg_mop.kernel = 'plain'; SET pg_mop.threads = 1; SET pg_mop.reuse = off")
    hidden = [layer("Dense", name=f"d{i}", units=600, activation="tanh") for i in range(2)]
    output = layer("Dense", name="o", units=3, activation="softmax")
    load(db, "arch", sequential("large", [4], *hidden, output), dense())
    selection(db, "large_mst", "arch", [(1, ADAM.format(0.001), "batch_size=20")])
    runs = {}
    db.run(PARTS)
    runs["large"] = fit(db, "flowers_packed", "large", "large_mst", 1)
    db.run(WHOLE)
    runs["small"] = fit(db, "flowers_packed", "small", "large_mst", 1)  # (in one value)
    yield runs
    db.run("DROP OWNED BY squatter, guest CASCADE; DROP ROLE squatter, guest; DROP TABLE snare")


@pytest.fixture
def squatter(db, models):
    client = db.another("squatter")
    client.run(
        "CREATE OR REPLACE FUNCTION snatch() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO public.snare VALUES (current_user); RETURN NEW; END $$; "
        "CREATE OR REPLACE FUNCTION snap() RETURNS text LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO public.snare VALUES (current_user); RETURN 'x'; END $$; "
        "CREATE OR REPLACE FUNCTION snared() RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN public.snap(); END $$"
    )
    db.run("TRUNCATE snare")
    yield client
    db.run("DROP OWNED BY squatter CASCADE")
    db.run(
        "GRANT USAGE, CREATE ON SCHEMA public TO squatter; DROP TABLE IF EXISTS prized, prized_parts, small_parts CASCADE; "
        + WHOLE
    )
    client.close()


def squat(squatter, table):
    squatter.run(
        f"CREATE TABLE {table}_parts {COLUMNS}; CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON {table}_parts "
        f"FOR EACH ROW EXECUTE FUNCTION snatch(); GRANT ALL ON {table}_parts TO public"
    )


def caught(db):
    return db.run("SELECT * FROM snare")


def test_a_version_is_not_written_into_another_roles_table(db, models, squatter):
    db.run("SELECT madlib.mop_deploy('prized', 'small', 1)")
    squat(squatter, "prized")
    error = db.error("SELECT madlib.mop_deploy('prized', 'large', 1)")
    assert 'table "public"."prized_parts" of role squatter is not used for the weights of "public"."prized"' in str(
        error
    )
    assert "which role postgres owns" in str(error)
    # the hint runs; then the trigger is in the way, and a hint removes that
    for command in error.diag.message_hint.split(" if its rows are of this model, else "):
        assert command.startswith(("ALTER TABLE ", "DROP TABLE "))
    db.run(error.diag.message_hint.split(" if ")[0])
    error = db.error("SELECT madlib.mop_deploy('prized', 'large', 1)")
    assert "it has the trigger t" in str(error)
    db.run(error.diag.message_hint)
    assert db.value("SELECT madlib.mop_deploy('prized', 'large', 1)") == 2
    assert db.value("SELECT count(*) FROM prized_parts") == 1 and caught(db) == []


def test_a_run_that_goes_on_refuses_before_it_trains(db, models, squatter):
    squat(squatter, "small")
    runs = db.value("SELECT count(*) FROM madlib.mop_runs")
    for how in (PARTS, WHOLE):
        db.run(how)
        assert "of role squatter is not used" in str(db.error("SELECT madlib.mop_more(%s, 1, 1)", [models["small"]]))
    assert db.value("SELECT count(*) FROM madlib.mop_runs") == runs and caught(db) == []


def test_a_table_that_is_made_while_a_run_trains(db, models, squatter):
    """The run fails when it writes its output, and goes on when the table is gone."""
    db.run(
        "DROP TABLE IF EXISTS prized, prized_info, prized_summary; CREATE TABLE flowers_seen AS TABLE flowers_packed; "
        "CREATE TABLE flowers_seen_summary AS TABLE flowers_packed_summary; " + PARTS
    )
    # (the definition of a table that depends on nothing is all that another session needs)
    db.run(
        "CREATE OR REPLACE FUNCTION public.meanwhile() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF to_regclass('public.prized') IS NOT NULL AND to_regclass('public.prized_parts') IS NULL THEN "
        "EXECUTE 'CREATE TABLE public.prized_parts (digest text, part integer, data bytea); "
        "CREATE TRIGGER t BEFORE INSERT ON public.prized_parts FOR EACH ROW EXECUTE FUNCTION public.snatch(); "
        "ALTER TABLE public.prized_parts OWNER TO squatter; GRANT ALL ON public.prized_parts TO public'; END IF; END $$; "
        "CREATE EVENT TRIGGER meanwhile ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.meanwhile()"
    )
    try:
        error = db.error(
            "SELECT madlib.madlib_keras_fit_multiple_model('flowers_seen', 'prized', 'large_mst', 1, FALSE)"
        )
    finally:
        db.run("DROP EVENT TRIGGER meanwhile; DROP FUNCTION meanwhile()")
    assert 'table "public"."prized_parts" of role squatter' in str(error) and caught(db) == []
    run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs")
    db.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert db.value("SELECT count(*) FROM prized_parts") == 1
    db.run("DROP TABLE prized_info, prized_summary, flowers_seen, flowers_seen_summary")


HARMS = {
    "trigger": "CREATE TRIGGER t AFTER DELETE ON {} FOR EACH ROW EXECUTE FUNCTION public.snatch()",
    "trigger of statements": "CREATE TRIGGER t BEFORE INSERT ON {} EXECUTE FUNCTION public.snatch()",
    "rule": "CREATE RULE r AS ON INSERT TO {} DO ALSO INSERT INTO public.snare VALUES (current_user)",
    "row-level security": "ALTER TABLE {} ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON {} USING (public.snared() = 'x')",
    "child table": "CREATE TABLE public.prized_child () INHERITS ({})",
    "parent table": "CREATE TABLE public.prized_parent (digest text); ALTER TABLE {} INHERIT public.prized_parent",
    "default expression": "ALTER TABLE {} ALTER digest SET DEFAULT public.snared()",
    "constraint": "ALTER TABLE {} ADD CHECK (digest <> public.snared())",
    "index": "CREATE INDEX ON {} ((public.snared() || digest))",
    "index of some rows": "CREATE INDEX ON {} (part) WHERE digest = public.snared()",
    "statistics object": "CREATE STATISTICS public.prized_statistics (dependencies) ON digest, part FROM {}",
}
FORMS = {
    "more columns": "ALTER TABLE {} ADD more text",
    "fewer columns": "ALTER TABLE {} DROP part",
    "another type": "ALTER TABLE {} ALTER part TYPE bigint",
    "view": "ALTER TABLE {} RENAME TO prized_rows; CREATE VIEW {} AS SELECT digest, part, data FROM public.prized_rows "
    "WHERE public.snared() = 'x'; GRANT SELECT ON {} TO public",
}


@pytest.mark.parametrize("harm", [*HARMS, *FORMS])
def test_code_in_a_table_of_parts_runs_as_nobody_who_reads_or_writes(db, models, squatter, harm):
    """Even where one role owns both tables."""
    parts = "public.prized_parts"
    squatter.run("DROP TABLE IF EXISTS public.prized_parent, public.prized_rows CASCADE")
    db.run("SELECT madlib.mop_deploy('prized', 'large', 1)")
    db.run(f"ALTER TABLE prized OWNER TO squatter; ALTER TABLE {parts} OWNER TO squatter")
    squatter.run("GRANT ALL ON prized, prized_parts TO public")
    assert db.value(f"SELECT EXISTS ({ASK})")
    squatter.run((HARMS.get(harm) or FORMS[harm]).replace("{}", parts))
    db.run("TRUNCATE snare")
    for call in (
        "SELECT madlib.mop_deploy('prized', 'large', 1)",
        "SELECT madlib.mop_share('prized', 'guest')",
        ASK,
        "SELECT * FROM madlib.mop_evaluate('prized', 'flowers')",
    ):
        with closing(db.another()) as other:
            error = other.error(call)
        text = str(error)
        assert (
            "is not used for the weights" in text
            or "no table of the weights' parts" in text
            or ("of another role has policies" in text)
        ), (call, text)
        assert caught(db) == [], call
    kind = "VIEW" if harm == "view" else "TABLE"
    if harm in HARMS and "of another role" not in str(error):
        assert harm.split(" of ")[0] in str(error)
        db.run(error.diag.message_hint)
        assert db.value(f"SELECT EXISTS ({ASK})")
    db.run(f"DROP {kind} {parts} CASCADE; DROP TABLE IF EXISTS prized_rows, prized_parent, prized_child CASCADE")


def test_a_model_table_of_another_role_with_triggers_is_not_written_to(db, models, squatter):
    db.run("SELECT madlib.mop_deploy('prized', 'small', 1); ALTER TABLE prized OWNER TO squatter")
    squatter.run(
        "GRANT ALL ON prized TO public; CREATE TRIGGER t BEFORE INSERT OR UPDATE ON prized FOR EACH ROW "
        "EXECUTE FUNCTION snatch()"
    )
    for call in ("madlib.mop_deploy('prized', 'small', 1)", "madlib.mop_use_version('prized', 1)"):
        error = db.error(f"SELECT {call}")
        assert 'table "public"."prized" of role squatter has the trigger t' in str(error)
    squatter.run("DROP TRIGGER t ON prized")
    assert db.value("SELECT madlib.mop_deploy('prized', 'small', 1)") == 2 and caught(db) == []


def test_who_may_read_a_model_may_read_its_new_table_of_parts(db, models, squatter):
    db.run(
        "DROP ROLE IF EXISTS \"the 'guests'\"; CREATE ROLE \"the 'guests'\"; GRANT SELECT ON flowers TO guest; "
        "SELECT madlib.mop_deploy('prized', 'small', 1); SELECT madlib.mop_share('prized', 'guest')"
    )
    db.run(
        "GRANT SELECT ON prized TO \"the 'guests'\" WITH GRANT OPTION; GRANT SELECT (model_weights) ON prized TO squatter; "
        "GRANT SELECT (version) ON prized TO pg_monitor; GRANT INSERT ON prized TO pg_signal_backend"
    )
    with closing(db.another("guest")) as guest:
        assert guest.value(ASK) is not None
        db.run(f"{PARTS}; SELECT madlib.mop_deploy('prized', 'large', 1); {WHOLE}")
        assert guest.value(ASK) is not None
    rights = db.run(
        "SELECT x.grantee::regrole::text AS role, x.privilege_type AS what, x.is_grantable AS further FROM pg_class c, "
        "aclexplode(c.relacl) x WHERE c.oid = 'prized_parts'::regclass AND x.grantee <> c.relowner ORDER BY 1"
    )
    assert [tuple(row.values()) for row in rights] == [
        ("\"the 'guests'\"", "SELECT", True), ("guest", "SELECT", False), ("squatter", "SELECT", False),
    ]  # fmt: skip
    db.run("DROP TABLE prized, prized_parts; DROP OWNED BY \"the 'guests'\"; DROP ROLE \"the 'guests'\"")


def test_a_member_of_the_owner_makes_a_table_of_the_owner(db, models, squatter):
    """And one that may not give it away is told what the owner does."""
    db.run(
        "DROP ROLE IF EXISTS crew; CREATE ROLE crew; GRANT crew TO squatter; GRANT mop_user TO crew; "
        "SELECT madlib.mop_deploy('prized', 'small', 1); ALTER TABLE prized OWNER TO crew; "
        "GRANT SELECT ON large, large_parts, large_info, large_summary TO squatter"
    )
    deploy = "SELECT madlib.mop_deploy('prized', 'large', 1)"
    assert "which the owner of" in str(squatter.error(deploy))
    db.run("GRANT CREATE ON SCHEMA public TO crew")
    assert squatter.value(deploy) == 2
    owner = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'prized_parts'::regclass"
    assert db.value(owner) == "crew"
    db.run("DROP OWNED BY crew CASCADE; DROP ROLE crew")
