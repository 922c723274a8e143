"""A role without superuser rights runs no code, reads no file and writes none.

Proven here: pickles by unpickling them, SQL by a function that concatenates it, shadows by a query that is not guarded.
"""

import contextlib
import io
import json
import pickle
import re
import struct
import subprocess

import dill
import numpy as np
import psycopg2
import pytest

from mop_udf.architecture import architecture
from mop_udf.params import params
from support import payloads
from support.forged import mark, options, own_run, unit
from support.payloads import ARCHITECTURES, FILES, PARAMETERS, Writes
from support.workload import ADAM, dense, fit, load, make_data, selection

__all__ = ["mark"]


@pytest.fixture(scope="module")
def attacker(db):
    """A role with a schema of its own and the use of pg_mop, who has data, a model and rows to predict."""
    db.run(
        "DROP ROLE IF EXISTS attacker, another; CREATE ROLE attacker LOGIN; CREATE ROLE another LOGIN PASSWORD 'p'; "
        "GRANT mop_user TO attacker, another; CREATE SCHEMA attacker AUTHORIZATION attacker"
    )
    client = db.another("attacker")
    make_data(client, segments=1)
    load(client, "arch", dense())
    selection(client, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=10")])
    fit(client, "flowers_packed", "models", "mst", 1)
    # the function that is written as it should not be
    client.run(
        "CREATE FUNCTION naive(template text, argument text) RETURNS void LANGUAGE plpgsql AS "
        "$f$ BEGIN EXECUTE replace(template, '{}', argument); END $f$"
    )
    yield client
    client.close()


def refusal(client, fragment, sql, args=None):
    """The error of `sql`, whose message has `fragment` (a regular expression)."""
    error = client.error(sql, args)
    assert re.search(fragment, str(error)), str(error)
    return error


# --- architectures, parameter strings, files --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture(attacker, mark, name):
    make, fragment = ARCHITECTURES[name]
    data = make(str(mark))
    text = data if isinstance(data, str) else json.dumps(data)
    with pytest.raises(architecture.ArchitectureError, match=fragment):
        architecture.check(text)
    if not isinstance(data, str):  # the others are no JSON to PostgreSQL
        load(attacker, "evil", text)
        attacker.run("UPDATE evil SET model_weights = '\\x00'")
        refusal(
            attacker,
            fragment,
            "SELECT madlib.madlib_keras_predict_byom('evil', 1, 'flowers', 'id', 'x', 'never', 'prob', FALSE)",
        )
        selection(attacker, "evil_mst", "evil", [(1, ADAM.format(0.05), "")])
        refusal(
            attacker,
            fragment,
            "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'evil_mst', 1, FALSE)",
        )


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_string(attacker, mark, name):
    kind, make, fragment = PARAMETERS[name]
    text = make(str(mark))
    with pytest.raises(params.ParameterError, match=fragment):
        (params.parse_compile_params if kind == "compile" else params.parse_fit_params)(text)
    both = (text, "batch_size=8") if kind == "compile" else (ADAM.format(0.05), text)
    refusal(
        attacker,
        fragment,
        "SELECT madlib.load_model_selection_table('arch', 'never', ARRAY[1], ARRAY[%s], ARRAY[%s])",
        both,
    )
    selection(attacker, "evil_mst", "arch", [(1, *both)])
    refusal(
        attacker,
        fragment,
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'evil_mst', 1, FALSE)",
    )
    refusal(attacker, fragment, "SELECT madlib.madlib_keras_fit('flowers_packed', 'never', 'arch', 1, %s, %s, 1)", both)


GRIDS = {
    "a grid of code": ("{'loss': [%s], 'optimizer_params_list': [{'optimizer': ['SGD']}]}", "{'batch_size': [8]}"),
    "a grid of code to fit": (
        "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD']}]}",
        "{'batch_size': [%s]}",
    ),
}


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid(attacker, mark, name):
    touch = payloads.touch(str(mark))
    compile_grid, fit_grid = (text.replace("%s", touch) for text in GRIDS[name])
    eval(compile_grid), eval(fit_grid)
    assert mark.exists()
    mark.unlink()
    refusal(
        attacker,
        "literal|none of the sequences",
        "SELECT madlib.generate_model_configs('arch', 'never', ARRAY[1], %s, %s)",
        [compile_grid, fit_grid],
    )


@pytest.mark.parametrize("name", FILES)
def test_a_file(attacker, mark, name):
    make, fragment = FILES[name]
    refusal(attacker, fragment, "SELECT madlib.mop_import_model('imported', %s)", [make(str(mark))])
    assert attacker.value("SELECT to_regclass('imported')") is None


# --- pickles, in everything that is bytea -----------------------------------------------------------------------------


def npy(path):
    made = io.BytesIO()
    np.save(made, np.array([Writes(path)], object), allow_pickle=True)
    return made.getvalue()


def objects_state(path):
    """A model state whose arrays are of Python objects."""
    header = json.dumps({"weights": [["O", [1]]], "seeds": [], "optimizer": []}).encode()
    return b"pg_mop\0\1" + struct.pack("<I", len(header)) + header + pickle.dumps(Writes(path))


PICKLES = {
    "pickle": (lambda p: pickle.dumps(Writes(p)), pickle.loads),
    "old pickle": (lambda p: pickle.dumps(Writes(p), 0), pickle.loads),
    "dill": (lambda p: dill.dumps(Writes(p), recurse=True), dill.loads),
    "numpy": (npy, lambda data: np.load(io.BytesIO(data), allow_pickle=True)),
}


def as_weights(client, evil):
    client.run(
        "DROP TABLE IF EXISTS evil; CREATE TABLE evil AS SELECT * FROM arch; UPDATE evil SET model_weights = %s", [evil]
    )
    return (
        "model weights have",
        "SELECT madlib.madlib_keras_predict_byom('evil', 1, 'flowers', 'id', 'x', 'never', "
        "'prob', FALSE, ARRAY['a','b','c'])",
    )


def as_model(client, evil):
    client.run(
        "DROP TABLE IF EXISTS evil, evil_info, evil_summary; CREATE TABLE evil AS SELECT * FROM models; "
        "CREATE TABLE evil_info AS SELECT * FROM models_info; CREATE TABLE evil_summary AS SELECT * FROM "
        "models_summary; UPDATE evil SET model_weights = %s",
        [evil],
    )
    return "model weights have", "SELECT madlib.mop_export_model('evil', 1)"


def as_rows(client, evil):
    client.run(
        "DROP TABLE IF EXISTS evil, evil_summary; CREATE TABLE evil AS SELECT * FROM flowers_packed; CREATE "
        "TABLE evil_summary AS SELECT * FROM flowers_packed_summary; UPDATE evil SET x = %s",
        [evil],
    )
    return "its shapes .* do not fit", "SELECT madlib.madlib_keras_evaluate('models', 'evil', 'never', FALSE, 1)"


def as_function(client, evil):
    return "only a superuser may load", f"SELECT madlib.load_custom_function('objects', '\\x{evil.hex()}', 'evil')"


def as_object_table(client, evil):
    client.run(
        "DROP TABLE IF EXISTS objects; CREATE TABLE objects AS SELECT 1 AS id, 'evil'::text AS name, "
        "''::text AS description, %s::bytea AS object",
        [evil],
    )
    return (
        "must be in schema",
        "SELECT madlib.load_model_selection_table('arch', 'never', ARRAY[1], ARRAY[$$loss="
        "'evil', optimizer='SGD()'$$], ARRAY['batch_size=8'], 'attacker.objects')",
    )


@pytest.mark.parametrize("place", [as_weights, as_model, as_rows, as_function, as_object_table])
@pytest.mark.parametrize("kind", PICKLES)
def test_a_pickle(attacker, mark, place, kind):
    make, loads = PICKLES[kind]
    evil = make(str(mark))
    loads(evil)
    assert mark.exists()
    mark.unlink()
    refusal(attacker, *place(attacker, evil))


@pytest.mark.parametrize("kind,fragment", [("pickle", "not a model state"), ("objects", "with Python objects")])
def test_a_pickle_as_model_state(attacker, mark, kind, fragment):
    evil = objects_state(str(mark)) if kind == "objects" else pickle.dumps(Writes(str(mark)))
    pickle.loads(evil[evil.index(b"\x80") :])
    assert mark.exists()
    mark.unlink()
    run_id = own_run(attacker, ADAM.format(0.05), dense(), state=evil)
    refusal(attacker, fragment, "SELECT madlib.mop_run_unit(%s)", [json.dumps(unit(run_id, version=1))])


def test_a_superusers_object_table_that_others_may_write(db, attacker, mark):
    evil = dill.dumps(Writes(str(mark)))
    dill.loads(evil)
    assert mark.exists()
    mark.unlink()
    db.run(
        "CREATE TABLE madlib.shared (id serial, name text, description text, object bytea); "
        "GRANT USAGE ON SEQUENCE madlib.shared_id_seq TO attacker; "
        "GRANT SELECT ON madlib.shared TO PUBLIC; GRANT INSERT (name, object) ON madlib.shared TO attacker; "
        "INSERT INTO madlib.shared (name, object) VALUES ('mine', '')"
    )
    attacker.run("INSERT INTO madlib.shared (name, object) VALUES ('evil', %s)", [evil])
    call = (
        "SELECT madlib.load_model_selection_table('arch', 'never', ARRAY[1], ARRAY[$$loss='evil', "
        "optimizer='SGD()'$$], ARRAY['batch_size=8'], 'shared')"
    )
    assert "REVOKE" in refusal(attacker, 'may be written by "attacker"', call).diag.message_hint
    db.run("REVOKE ALL ON madlib.shared FROM attacker; GRANT UPDATE ON madlib.shared TO PUBLIC")
    refusal(attacker, "may be written by PUBLIC", call)
    run_id = own_run(attacker, "loss='evil', optimizer='SGD()'", dense())
    shared = json.dumps(unit(run_id, object_table="madlib.shared"))
    refusal(attacker, "may be written by PUBLIC", "SELECT madlib.mop_run_unit(%s)", [shared])
    db.run("REVOKE ALL ON madlib.shared FROM PUBLIC; ALTER TABLE madlib.shared OWNER TO attacker")
    refusal(attacker, "no superuser", "SELECT madlib.mop_run_unit(%s)", [shared])
    db.run("DROP TABLE madlib.shared")


# --- what worker sessions run, called by hand -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"threads": "1; touch {}"}, {"cache_mb": "$(touch {})"}, {"idle_ms": "`touch {}`"}, {"threads": "1\n touch {}"}],
)
def test_options_of_a_trainer(attacker, mark, change):
    ((key, value),) = change.items()
    value = value.replace("{}", str(mark))
    subprocess.run(f"true {value}", shell=True, check=False)
    assert mark.exists()
    mark.unlink()
    client = attacker.another()
    run_id = own_run(client, ADAM.format(0.05), dense())
    refusal(
        client,
        f"invalid option of a trainer: {key}",
        "SELECT madlib.mop_run_unit(%s)",
        [json.dumps(unit(run_id, options=options(**{key: value})))],
    )
    client.close()


@pytest.mark.parametrize("log_dir", ["{}", "{}/../mark", "//{}"])
def test_callbacks_write_for_superusers_only(db, attacker, mark, log_dir):
    path = log_dir.replace("{}", str(mark))
    text = f"batch_size=8, callbacks=[TensorBoard(log_dir='{path}')]"
    refusal(
        attacker,
        "only a superuser may use callbacks|superuser",
        "SELECT madlib.load_model_selection_table('arch', 'never', ARRAY[1], ARRAY[%s], ARRAY[%s])",
        [ADAM.format(0.05), text],
    )
    selection(db, "evil_mst", "attacker.arch", [(1, ADAM.format(0.05), text)])
    db.run("GRANT SELECT ON evil_mst, evil_mst_summary TO attacker")
    for call in (
        "madlib_keras_fit_multiple_model('flowers_packed', 'never', 'public.evil_mst', 1, FALSE)",
        f"madlib_keras_fit('flowers_packed', 'never', 'arch', 1, $${ADAM.format(0.05)}$$, $${text}$$, 1)",
    ):
        refusal(attacker, "only a superuser may use callbacks", f"SELECT madlib.{call}")
    run_id = own_run(attacker, ADAM.format(0.05), dense(), text)
    refusal(
        attacker, "only a superuser may use callbacks", "SELECT madlib.mop_run_unit(%s)", [json.dumps(unit(run_id))]
    )


@pytest.mark.parametrize(
    "name,value",
    [
        ("python_path", "/tmp"),
        ("home", "/tmp/venv"),
        ("library", "/tmp/evil.so"),
        ("keras_home", "/tmp"),
        ("log_dir", "/tmp"),
        ("trainer_program", "/bin/sh"),
        ("keras_backend", "/tmp/evil"),
        ("keras_backend", "torch; touch /tmp/x"),
        ("threads", "1; touch /tmp/x"),
        ("kernel", "exec(open(1))"),
    ],
)
def test_no_setting_names_code_or_a_path(attacker, name, value):
    client = attacker.another()
    client.run(f"SET pg_mop.{name} = '{value}'")
    refusal(
        client,
        f'(unrecognized setting|invalid value for setting) "pg_mop.{name}"',
        "SELECT madlib.training_preprocessor_dl('flowers', 'never', 'y', 'x')",
    )
    client.close()


# --- SQL in names -----------------------------------------------------------------------------------------------------

INPUT, COLUMN, OUTPUT = "SELECT FROM {}", "SELECT {} FROM flowers LIMIT 1", "CREATE TABLE {} (a integer)"
THEN = "; CREATE TABLE pwned(); --"
CALLS = {
    "source table": (INPUT, "flowers" + THEN, "training_preprocessor_dl(%s, 'never', 'y', 'x')"),
    "quoted source table": (INPUT, '"flowers"' + THEN, "training_preprocessor_dl(%s, 'never', 'y', 'x')"),
    "subquery": (INPUT, "(SELECT 1) AS s" + THEN, "training_preprocessor_dl(%s, 'never', 'y', 'x')"),
    "dependent variable": (COLUMN, "y FROM flowers" + THEN, "training_preprocessor_dl('flowers', 'never', %s, 'x')"),
    "independent variable": (COLUMN, "x FROM flowers" + THEN, "training_preprocessor_dl('flowers', 'never', 'y', %s)"),
    "quoted variable": (COLUMN, '"x" FROM flowers' + THEN, "training_preprocessor_dl('flowers', 'never', 'y', %s)"),
    "output table": (OUTPUT, "o (b integer)" + THEN, "training_preprocessor_dl('flowers', %s, 'y', 'x')"),
    "schema of the output": (
        OUTPUT,
        '"attacker".o2 (b integer)' + THEN,
        "training_preprocessor_dl('flowers', %s, 'y', 'x')",
    ),
    "training table": (INPUT, "flowers" + THEN, "validation_preprocessor_dl('flowers', 'never', 'y', 'x', %s)"),
    "architecture table": (INPUT, "arch" + THEN, "load_keras_model(%s, '{}'::json)"),
    "table to delete from": ("DELETE FROM {}", "arch WHERE false" + THEN, "delete_keras_model(%s, 1)"),
    "selection table": (
        OUTPUT,
        "o3 (b integer)" + THEN,
        "load_model_selection_table('arch', %s, ARRAY[1], ARRAY["
        "$$loss='mse', optimizer='SGD()'$$], ARRAY['batch_size=8'])",
    ),
    "object table": (
        INPUT,
        "arch" + THEN,
        "load_model_selection_table('arch', 'never', ARRAY[1], ARRAY["
        "$$loss='mse', optimizer='SGD()'$$], ARRAY['batch_size=8'], %s)",
    ),
    "source of training": (
        INPUT,
        "flowers_packed" + THEN,
        "madlib_keras_fit_multiple_model(%s, 'never', 'mst', 1, FALSE)",
    ),
    "models to train into": (
        OUTPUT,
        "o4 (b integer)" + THEN,
        "madlib_keras_fit_multiple_model('flowers_packed', %s, 'mst', 1, FALSE)",
    ),
    "selection to train": (
        INPUT,
        "mst" + THEN,
        "madlib_keras_fit_multiple_model('flowers_packed', 'never', %s, 1, FALSE)",
    ),
    "validation table": (
        INPUT,
        "flowers_packed" + THEN,
        "madlib_keras_fit_multiple_model('flowers_packed', 'never', 'mst', 1, FALSE, %s)",
    ),
    "model to evaluate": (INPUT, "models" + THEN, "madlib_keras_evaluate(%s, 'flowers_packed', 'never', FALSE, 1)"),
    "id column": (
        COLUMN,
        "id FROM flowers" + THEN,
        "madlib_keras_predict('models', 'flowers', %s, 'x', 'never', 'prob', FALSE, 1)",
    ),
    "column to predict from": (
        COLUMN,
        "x FROM flowers" + THEN,
        "madlib_keras_predict('models', 'flowers', 'id', %s, 'never', 'prob', FALSE, 1)",
    ),
    "predictions": (
        OUTPUT,
        "o5 (b integer)" + THEN,
        "madlib_keras_predict('models', 'flowers', 'id', 'x', %s, 'prob', FALSE, 1)",
    ),
    "model to export": (INPUT, "models" + THEN, "mop_export_model(%s, 1)"),
    "table of GPUs": (OUTPUT, "o6 (b integer)" + THEN, "gpu_configuration(%s, 'nvidia')"),
}


@pytest.mark.parametrize("name", CALLS)
def test_sql_in_a_name(attacker, name):
    template, text, call = CALLS[name]
    fragment = "pwned" if template == COLUMN else "invalid table name"
    attacker.run("SELECT naive(%s, %s)", [template, text])
    attacker.run("DROP TABLE pwned")  # it was made
    error = refusal(attacker, fragment, f"SELECT madlib.{call}", [text])
    assert "syntax error" not in str(error)
    assert attacker.value("SELECT to_regclass('pwned')") is None
    # in quotes it is nothing but a name, of something that may well be made
    with contextlib.suppress(psycopg2.Error):
        attacker.run(f"SELECT madlib.{call}", ['"' + text.replace('"', '""') + '"'])
    assert attacker.value("SELECT to_regclass('pwned')") is None


@pytest.mark.parametrize("text", ["mo\x01dels", "models\n; --", "models\x7f", "'", "\\", '"', "%s", "a.b.c.d", "$1"])
def test_odd_characters_in_a_name(attacker, text):
    refusal(attacker, "invalid table name|does not exist", "SELECT madlib.mop_export_model(%s, 1)", [text])


# --- shadows: the attacker's schema comes first in a superuser's search_path ------------------------------------------

SHADOWS = {  # what is called unguarded, and the trap's definition
    "= of integers": ("SELECT 1 = 1", "OPERATOR", "=", "integer, integer", "boolean"),
    "= of names": ("SELECT 'a'::name = 'a'::name", "OPERATOR", "=", "name, name", "boolean"),
    "= of oids": ("SELECT 1::oid = 1::oid", "OPERATOR", "=", "oid, oid", "boolean"),
    "= of texts": ("SELECT 'a'::text = 'a'::text", "OPERATOR", "=", "text, text", "boolean"),
    "= of bigints": ("SELECT 1::bigint = 1::bigint", "OPERATOR", "=", "bigint, bigint", "boolean"),
    "> of smallints": ("SELECT 1::int2 > 1::int2", "OPERATOR", ">", "smallint, smallint", "boolean"),
    "|| of texts": ("SELECT 'a'::text || 'b'::text", "OPERATOR", "||", "text, text", "text"),
    "quote_ident": ("SELECT quote_ident('a'::text)", "FUNCTION", "quote_ident", "text", "text"),
    "format": ("SELECT format('a'::text, 'b'::text)", "FUNCTION", "format", "text, text", "text"),
    "concat_ws": (
        "SELECT concat_ws(','::text, 1::oid, '(1,1)'::tid, '1'::xid)",
        "FUNCTION",
        "concat_ws",
        "text, oid, tid, xid",
        "text",
    ),
    "octet_length": ("SELECT octet_length('a'::bytea)", "FUNCTION", "octet_length", "bytea", "integer"),
    "format_type": ("SELECT format_type(1::oid, 2)", "FUNCTION", "format_type", "oid, integer", "text"),
    "array_send": ("SELECT array_send(ARRAY[1]::real[])", "FUNCTION", "array_send", "real[]", "bytea"),
    "to_regclass": ("SELECT to_regclass('a'::text)", "FUNCTION", "to_regclass", "text", "regclass"),
    "current_setting": (
        "SELECT current_setting('a'::text, true)",
        "FUNCTION",
        "current_setting",
        "text, boolean",
        "text",
    ),
    "md5": ("SELECT md5('a'::text)", "FUNCTION", "md5", "text", "text"),
    "has_schema_privilege": (
        "SELECT has_schema_privilege('a'::text, 'b'::text)",
        "FUNCTION",
        "has_schema_privilege",
        "text, text",
        "boolean",
    ),
    "mop_run_unit": ("SELECT mop_run_unit('a'::text)", "FUNCTION", "mop_run_unit", "text", "text"),
    "mop_sub_epoch": (
        "SELECT mop_sub_epoch(1, 1, ARRAY[''::bytea], ARRAY['a'])",
        "FUNCTION",
        "mop_sub_epoch",
        "integer, integer, bytea[], text[]",
        "text",
    ),
}


@pytest.fixture(scope="module")
def traps(db, attacker):
    """Functions, operators and relations in the attacker's schema that note who fell into them."""
    attacker.run(
        "CREATE TABLE attacker.fallen (what text, who name); "
        "GRANT ALL ON attacker.fallen TO PUBLIC; GRANT USAGE ON SCHEMA attacker TO PUBLIC"
    )
    for number, (name, (_, kind, what, types, result)) in enumerate(SHADOWS.items()):
        function = what if kind == "FUNCTION" else f"trap_{number}"
        attacker.run(
            f"CREATE FUNCTION attacker.{function}({types}) RETURNS {result} LANGUAGE plpgsql AS $f$ BEGIN "
            f"INSERT INTO attacker.fallen VALUES ($v${name}$v$, current_user); RETURN NULL; END $f$"
        )
        if kind == "OPERATOR":
            left, right = types.split(", ")
            attacker.run(
                f"CREATE OPERATOR attacker.{what} (FUNCTION = attacker.{function}, LEFTARG = {left}, "
                f"RIGHTARG = {right})"
            )
    for relation in ("pg_class", "pg_namespace", "pg_extension", "pg_roles", "mop_run", "mop_configuration"):
        attacker.run(f"CREATE TABLE attacker.{relation} (oid oid, nspname name)")
    return db


@pytest.mark.parametrize("name", SHADOWS)
def test_a_shadow_catches_who_is_not_guarded(traps, name):
    traps.run("SET search_path = attacker, pg_catalog")
    traps.run("TRUNCATE attacker.fallen")
    traps.run(SHADOWS[name][0])
    traps.run("SET search_path = pg_catalog")
    assert traps.run("SELECT what, who FROM attacker.fallen") == [{"what": name, "who": "postgres"}]


def test_no_function_of_ours_falls_into_a_shadow(traps):
    db = traps
    db.run("RESET search_path; TRUNCATE attacker.fallen")
    make_data(db, table="safe", segments=2)
    load(db, "safe_arch", dense())
    selection(db, "safe_mst", "safe_arch", [(1, ADAM.format(0.05), "batch_size=10")])
    db.run("ALTER ROLE postgres SET search_path = attacker, pg_catalog, public")
    client = db.another("postgres")
    try:
        assert client.value("SHOW search_path") == "attacker, pg_catalog, public"
        for call in (
            "training_preprocessor_dl('public.safe', 'public.p', 'y', 'x', 10)",
            "validation_preprocessor_dl('public.safe', 'public.v', 'y', 'x', 'public.p', 10)",
            "load_keras_model('public.a', $$" + dense() + "$$::json)",
            "load_model_selection_table('public.a', 'public.s', ARRAY[1], ARRAY[$$"
            + ADAM.format(0.1)
            + "$$], ARRAY['batch_size=8'])",
            "madlib_keras_fit_multiple_model('public.p', 'public.m', 'public.s', 2, FALSE, 'public.v')",
            "madlib_keras_fit('public.p', 'public.f', 'public.a', 1, $$" + ADAM.format(0.1) + "$$, 'batch_size=8', 1)",
            "madlib_keras_evaluate('public.m', 'public.v', 'public.e', FALSE, 1)",
            "madlib_keras_predict('public.m', 'public.safe', 'id', 'x', 'public.g', 'prob', FALSE, 1)",
            "mop_import_model('public.a', madlib.mop_export_model('public.m', 1))",
            "delete_keras_model('public.a', 2)",
        ):
            client.run("SELECT madlib." + call)
        client.run("SELECT * FROM madlib.mop_runs; SELECT * FROM madlib.mop_progress; SELECT * FROM madlib.mop_units")
    finally:
        db.run("ALTER ROLE postgres RESET search_path")
        client.close()
    assert db.run("SELECT DISTINCT what FROM attacker.fallen") == []


# --- what is another's ------------------------------------------------------------------------------------------------


@pytest.fixture
def foreign_run(db, attacker):
    """The number of a run of another role, with its model."""
    db.run("INSERT INTO madlib.mop_owner (role) VALUES ('another') ON CONFLICT DO NOTHING")
    owner = db.value("SELECT owner FROM madlib.mop_owner WHERE role = 'another'")
    run_id = db.value(
        "INSERT INTO madlib.mop_run (owner, function, source_table, model_output_table, seed, scheduler, "
        "num_iterations, metrics_iterations, configurations, segments, parameters, coordinator_pid) "
        "VALUES (%s, 'f', 's', 'm', 1, 'r', 1, '{1}', 1, 1, '{}', 1) RETURNING run_id",
        [owner],
    )
    db.run(
        "INSERT INTO madlib.mop_configuration (run_id, mst_key, model_id, compile_params, model_arch) "
        "VALUES (%s, 1, 1, %s, %s)",
        [run_id, ADAM.format(0.05), dense()],
    )
    db.run("INSERT INTO madlib.mop_stage VALUES (%s, 1, NULL, 1, 'x', 1, %s, '', true)", [run_id, ADAM.format(0.05)])
    db.run("INSERT INTO madlib.mop_stage_state (run_id, stage, version) VALUES (%s, 1, 0)", [run_id])
    return run_id


def proves_itself(db, sql, args=None):
    """It is SQL that a superuser can run: what refuses it are rights."""
    try:
        db.run(f"BEGIN; {sql}", args)
    finally:
        db.run("ROLLBACK")


@pytest.mark.parametrize(
    "sql,fragment",
    [
        ("INSERT INTO madlib.mop_configuration VALUES (%s, 2, 1, '', NULL, '')", "permission denied"),
        ("UPDATE madlib.mop_stage_state SET version = 7 WHERE run_id = %s", "permission denied"),
        ("UPDATE madlib.mop_stage SET identity = 'mine' WHERE run_id = %s", "permission denied"),
        ("INSERT INTO madlib.mop_request VALUES (%s, 1, 1, 1)", "permission denied"),
        ("INSERT INTO madlib.mop_segment VALUES (%s, 'training', 0, 1, 1, '')", "permission denied"),
        ("UPDATE madlib.mop_run SET owner = owner WHERE run_id = %s", "permission denied"),
        ("UPDATE madlib.mop_owner SET who = 0 WHERE role = 'another'; SELECT %s", "permission denied"),
        (
            "INSERT INTO madlib.mop_run SELECT run_id + 1000000, owner FROM madlib.mop_run WHERE run_id = %s",
            "permission denied",
        ),
        (
            "DELETE FROM madlib.mop_configuration; UPDATE madlib.mop_run SET run_id = run_id + 1000000 WHERE run_id = %s",
            "permission denied",
        ),
        ("ALTER TABLE madlib.mop_run DISABLE ROW LEVEL SECURITY; SELECT %s", "must be owner"),
        (
            "CREATE TRIGGER t BEFORE UPDATE ON madlib.mop_run FOR EACH ROW EXECUTE FUNCTION "
            "suppress_redundant_updates_trigger(); SELECT %s",
            "permission denied",
        ),
        (
            "CREATE FUNCTION madlib.mop_may_see(text) RETURNS boolean LANGUAGE sql AS 'SELECT true'; SELECT %s",
            "permission denied",
        ),
        ("CREATE FUNCTION f() RETURNS void LANGUAGE plpython3u AS 'pass'; SELECT %s", "permission denied"),
    ],
)
def test_a_run_of_another(db, attacker, foreign_run, sql, fragment):
    sql = sql.replace(
        "run_id + 1000000, owner FROM",
        "run_id + 1000000, owner, status, function, source_table, NULL, "
        "model_output_table, seed, scheduler, num_iterations, metrics_iterations, configurations, "
        "segments, started_at, NULL, NULL, parameters, 1 FROM",
    )
    proves_itself(db, sql, [foreign_run])
    refusal(attacker, fragment, sql, [foreign_run])


@pytest.mark.parametrize(
    "table",
    [
        "mop_runs",
        "mop_run",
        "mop_progress",
        "mop_units",
        "mop_stages",
        "mop_lineage",
        "mop_stage",
        "mop_request",
        "mop_trials",
        "mop_search_log",
    ],
)
def test_runs_of_others_are_not_seen(attacker, foreign_run, table):
    assert attacker.value(f"SELECT count(*) FROM madlib.{table} WHERE run_id = %s", [foreign_run]) == 0
    refusal(
        attacker,
        "permission denied|cannot delete from view",
        f"DELETE FROM madlib.{table} WHERE run_id = %s",
        [foreign_run],
    )


def test_a_unit_of_anothers_run(attacker, foreign_run):
    refusal(
        attacker,
        f"there is no run {foreign_run} of role",
        "SELECT madlib.mop_run_unit(%s)",
        [json.dumps(unit(foreign_run))],
    )


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE USER MAPPING FOR PUBLIC SERVER pg_mop OPTIONS (password 'x')",
        "ALTER USER MAPPING FOR another SERVER pg_mop OPTIONS (SET password 'x')",
        "DROP USER MAPPING FOR another SERVER pg_mop",
        "ALTER SERVER pg_mop OPTIONS (SET host '10.0.0.1')",
        "CREATE SERVER mine FOREIGN DATA WRAPPER pg_mop OPTIONS (host '10.0.0.1')",
        "CREATE FOREIGN DATA WRAPPER mine NO HANDLER",
        "SET ROLE another",
        "SET SESSION AUTHORIZATION another",
    ],
)
def test_credentials_of_another(db, attacker, sql):
    db.run(
        "CREATE SERVER pg_mop FOREIGN DATA WRAPPER pg_mop OPTIONS (host '127.0.0.1'); GRANT USAGE ON FOREIGN SERVER "
        "pg_mop TO another, attacker; CREATE USER MAPPING FOR another SERVER pg_mop OPTIONS (password 'p')"
    )
    try:
        proves_itself(db, sql)
        refusal(attacker, "permission denied|must be owner|must be superuser", sql)
        assert attacker.value("SELECT umoptions FROM pg_user_mappings WHERE usename = 'another'") is None
    finally:
        db.run("DROP SERVER pg_mop CASCADE")
