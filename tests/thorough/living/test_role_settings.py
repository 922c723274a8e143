"""Whatever a role has set for itself, the same run gives the same bytes."""

import pytest

from support.places import job, outcome, prepare

CLASSES = ("a", "grün", "日本")

# what a role may have set, by what it touches
SETTINGS = {
    "text of values": {
        "datestyle": "'SQL, DMY'",
        "intervalstyle": "'sql_standard'",
        "timezone": "'Asia/Kathmandu'",
        "extra_float_digits": "'-15'",
        "bytea_output": "'escape'",
        "xmloption": "'document'",
    },
    "text of statements": {
        "standard_conforming_strings": "off",
        "escape_string_warning": "on",
        "array_nulls": "off",
        "backslash_quote": "off",
        "quote_all_identifiers": "on",
        "transform_null_equals": "on",
    },
    "encoding": {"client_encoding": "'LATIN1'"},
    "commits": {
        "synchronous_commit": "off",
        "default_transaction_deferrable": "on",
        "check_function_bodies": "off",
        "client_min_messages": "'error'",
        "commit_delay": "10",
    },
    "row security": {"row_security": "off"},
    "plans": {
        "plan_cache_mode": "'force_generic_plan'",
        "jit": "on",
        "jit_above_cost": "0",
        "enable_seqscan": "off",
        "enable_sort": "off",
        "work_mem": "'64kB'",
        "constraint_exclusion": "off",
    },
    "parallel plans": {
        "max_parallel_workers_per_gather": "8",
        "force_parallel_mode": "on",
        "debug_parallel_query": "on",
        "parallel_setup_cost": "0",
        "parallel_tuple_cost": "0",
        "min_parallel_table_scan_size": "0",
    },
    "time limits": {
        "statement_timeout": "'5min'",
        "lock_timeout": "'1min'",
        "idle_session_timeout": "'1min'",
        "idle_in_transaction_session_timeout": "'1s'",
    },
    "triggers": {"session_replication_role": "'replica'"},
}
RENAMED = {"force_parallel_mode", "debug_parallel_query"}  # two names of one: PostgreSQL 16 has the second


@pytest.fixture(scope="module")
def expected(db):
    """What the job makes under the defaults."""
    db.run("DROP ROLE IF EXISTS lodger; CREATE ROLE lodger LOGIN; GRANT mop_user TO lodger")
    prepare(db, "lodger", "lodger", CLASSES)
    client = db.another("lodger")
    job(client, "lodger")
    client.close()
    yield outcome(db, "lodger")
    db.run("DROP OWNED BY lodger CASCADE; DROP ROLE lodger")


def assert_same(db, expected, settings):
    """The job of the role `lodger` gives what it gives under the defaults, with `settings` for the role."""
    known = {row["name"] for row in db.run("SELECT name FROM pg_settings")}
    settings = {n: v for n, v in settings.items() if n in known or n not in RENAMED}
    db.run("ALTER ROLE lodger RESET ALL; " + "; ".join(f"ALTER ROLE lodger SET {n} = {v}" for n, v in settings.items()))
    try:
        client = db.another("lodger")
        before = {n: client.value(f"SHOW {n}") for n in settings}
        job(client, "lodger")
        assert {n: client.value(f"SHOW {n}") for n in settings} == before, "the caller's settings are as they were"
        client.close()
        assert outcome(db, "lodger") == expected
    finally:
        db.run("ALTER ROLE lodger RESET ALL")


# owner: "text of values" (the catalog's session needs extra_float_digits = 1) and "row security"
@pytest.mark.parametrize("what", SETTINGS)
def test_the_settings_of_a_role_change_nothing(db, expected, what):
    assert_same(db, expected, SETTINGS[what])


# owner: the catalog's session and the workers need client_encoding=UTF8


def test_a_search_path_of_traps_changes_nothing(db, expected):
    """A schema before pg_catalog whose functions, operators, tables and types are not those that SQL means."""
    db.run("DROP SCHEMA IF EXISTS evil CASCADE; CREATE SCHEMA evil; GRANT USAGE, CREATE ON SCHEMA evil TO lodger")
    for name, arguments, result in (
        ("current_setting", "text", "text"),
        ("current_setting", "text, boolean", "text"),
        ("set_config", "text, text, boolean", "text"),
        ("md5", "text", "text"),
        ("md5", "bytea", "text"),
        ("count", "", "bigint"),
        ("to_regclass", "text", "regclass"),
        ("parse_ident", "text", "text[]"),
        ("octet_length", "bytea", "integer"),
        ("generate_series", "integer, integer", "SETOF integer"),
        ("pg_backend_pid", "", "integer"),
        ("clock_timestamp", "", "timestamptz"),
        ("now", "", "timestamptz"),
        ("format_type", "oid, integer", "text"),
        ("array_send", "anyarray", "bytea"),
        ("has_table_privilege", "oid, text", "boolean"),
        ("current_schema", "", "name"),
        ("pg_has_role", "oid, text", "boolean"),
        ("row_to_json", "record", "json"),
        ("pg_try_advisory_xact_lock", "bigint", "boolean"),
        ("current_database", "", "name"),
        ("encode", "bytea, text", "text"),
        ("decode", "text, text", "bytea"),
        ("random", "", "float8"),
    ):
        db.run(
            f"CREATE FUNCTION evil.{name}({arguments}) RETURNS {result} LANGUAGE plpgsql AS "
            f"$f$ BEGIN RAISE 'evil {name}'; END $f$"
        )
    for kind in ("text", "name", "oid", "integer", "bigint", "boolean", "real", "bytea"):
        db.run(
            f"CREATE FUNCTION evil.compare({kind}, {kind}) RETURNS boolean LANGUAGE plpgsql AS "
            f"$f$ BEGIN RAISE 'evil = of {kind}'; END $f$"
        )
        for operator in ("=", "<>", "<", ">"):
            db.run(f"CREATE OPERATOR evil.{operator} (LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = evil.compare)")
    for table in (
        "pg_class",
        "pg_namespace",
        "pg_extension",
        "pg_attribute",
        "pg_roles",
        "pg_locks",
        "pg_stat_activity",
        "pg_foreign_server",
        "pg_user_mappings",
        "pg_type",
        "mop_run",
        "mop_stage_state",
    ):
        db.run(f"CREATE TABLE evil.{table} (trap integer)")
    db.run(
        "CREATE DOMAIN evil.text AS pg_catalog.int4; CREATE DOMAIN evil.regclass AS pg_catalog.int4; "
        "CREATE DOMAIN evil.oid AS pg_catalog.int4; CREATE DOMAIN evil.bytea AS pg_catalog.int4; "
        "GRANT SELECT ON ALL TABLES IN SCHEMA evil TO lodger"
    )
    assert_same(db, expected, {"search_path": "evil, pg_catalog, lodger"})
