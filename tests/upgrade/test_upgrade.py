"""Every path of ALTER EXTENSION pg_mop UPDATE ends with the objects of a fresh install, and with the users' data."""

import pathlib
import re
import runpy

import psycopg2
import pytest

from support.client import Calling, Client, connect
from support.cluster import HOME, ROOT, eventually
from support.workload import ADAM, assert_invariants, dense, fit, holding, last_run, load, make_data, selection

OLDER = sorted(p.stem.split("--")[1] for p in (pathlib.Path(__file__).parent / "versions").glob("*.sql"))

MEMBERS = """
SELECT i.type, i.identity, d.classid::regclass::text AS catalog, d.objid
FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass,
     pg_identify_object(d.classid, d.objid, d.objsubid) AS i
WHERE d.deptype = 'e' AND e.extname = 'pg_mop' AND i.identity !~ 'mop_state_[0-9]'
"""
RELATION = """
SELECT relkind, reloptions, relrowsecurity, relreplident, coalesce(relacl, acldefault(
           CASE relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, relowner))::text AS acl,
       CASE WHEN relkind = 'v' THEN pg_get_viewdef(c.oid) END AS view,
       ARRAY(SELECT concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attstorage, attacl::text,
                              pg_get_expr(adbin, adrelid))
             FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
             WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attname) AS columns,
       ARRAY(SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = c.oid ORDER BY 1)
           AS constraints,
       ARRAY(SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = c.oid ORDER BY 1) AS indexes,
       ARRAY(SELECT concat_ws(' ', polname, polcmd, pg_get_expr(polqual, polrelid),
                              pg_get_expr(polwithcheck, polrelid)) FROM pg_policy WHERE polrelid = c.oid ORDER BY 1)
           AS policies,
       ARRAY(SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal ORDER BY 1)
           AS triggers,
       (SELECT extcondition[array_position(extconfig, c.oid)] FROM pg_extension WHERE extname = 'pg_mop') AS dumped,
       (SELECT array_position(extconfig, c.oid) IS NOT NULL FROM pg_extension WHERE extname = 'pg_mop') AS is_dumped
FROM pg_class c WHERE oid = %s
"""
DETAILS = {
    "pg_class": RELATION,
    "pg_proc": "SELECT CASE WHEN prokind = 'a' THEN (SELECT a::text FROM pg_aggregate a WHERE aggfnoid = p.oid) ELSE "
    "pg_get_functiondef(oid) END AS definition, proacl::text FROM pg_proc p WHERE oid = %s",
    "pg_event_trigger": "SELECT evtevent, evtenabled, evttags, evtfoid::regproc::text FROM pg_event_trigger "
    "WHERE oid = %s",
    "pg_foreign_data_wrapper": "SELECT fdwname, fdwhandler, fdwvalidator, fdwacl::text FROM pg_foreign_data_wrapper "
    "WHERE oid = %s",
}


def database(server, name):
    maker = connect(server, "postgres")
    maker.cursor().execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    maker.cursor().execute(f'CREATE DATABASE "{name}"')
    maker.close()
    return Client(server, name)


def objects(client):
    """{(type, identity): what it is} of the extension's members."""
    return {
        (m["type"], m["identity"]): client.run(DETAILS[m["catalog"]], [m["objid"]])
        for m in client.run(MEMBERS)
        if m["catalog"] in DETAILS
    }


def paths(server):
    client = Client(server, "postgres")
    return [
        (r["source"], r["target"])
        for r in client.run(
            "SELECT source, target FROM pg_extension_update_paths('pg_mop') WHERE path IS NOT NULL ORDER BY 1, 2"
        )
    ]


def test_every_older_version_has_a_path_to_this_one(db):
    version = db.value("SELECT default_version FROM pg_available_extensions WHERE name = 'pg_mop'")
    assert OLDER and all((older, version) in paths(db.server) for older in OLDER)
    assert version not in OLDER


@pytest.mark.parametrize("older", OLDER)
def test_an_updated_extension_is_a_fresh_one_and_keeps_the_users_data(db, older):
    fresh = objects(db)
    assert len(fresh) > 60 and {kind for kind, _ in fresh} >= {
        "table",
        "view",
        "function",
        "event trigger",
        "sequence",
        "index",
        "foreign-data wrapper",
        "aggregate",
    } - {"index"}
    client = database(db.server, "updated")
    client.run(f"CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib VERSION '{older}' CASCADE")
    make_data(client, segments=2)
    load(client, "arch", dense())
    selection(client, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    if older == "0.1.0":
        # one run is finished, the other was cancelled and holds states
        client.run("""
            INSERT INTO madlib.mop_run (status, function, source_table, model_output_table, seed, scheduler,
                num_iterations, metrics_iterations, configurations, segments, parameters, coordinator_pid,
                output_written)
            SELECT status, 'f', 's', 'o', 1, 'randomized', 3, '{3}', 1, 1, '{}', 1, status = 'finished'
            FROM unnest(ARRAY['finished', 'cancelled']) AS status;
            INSERT INTO madlib.mop_configuration SELECT run_id, 1, 1, 'c', 'f', 'a', 3 FROM madlib.mop_run;
            INSERT INTO madlib.mop_state VALUES (2, 1, 3, 0, '\\x01'), (2, 1, 3, 1, '\\x0203');
            INSERT INTO madlib.mop_unit (run_id, mst_key, iteration, segment, kind, dataset, attempt, status)
            SELECT run_id, 1, 1, 0, 'train', 'training', 1, 'finished' FROM madlib.mop_run""")
    if older == "0.2.0":
        client.run("""
            DROP ROLE IF EXISTS ghost, keeper; CREATE ROLE keeper;
            INSERT INTO madlib.mop_run (owner, status, function, source_table, model_output_table, seed, scheduler,
                num_iterations, metrics_iterations, configurations, segments, parameters, coordinator_pid)
            SELECT owner, 'finished', 'f', 's', 'o', 1, 'randomized', 1, '{1}', 1, 1, '{}', 1
            FROM unnest(ARRAY['ghost', 'keeper', 'ghost']) AS owner;
            INSERT INTO madlib.mop_output VALUES (1, 'ghost'), (2, 'keeper'), (2, 'ghost'), (99, 'keeper');
            INSERT INTO madlib.mop_limit (role, threads) VALUES ('keeper', 2), ('ghost', 3), (NULL, 4);
            INSERT INTO madlib.mop_segment SELECT 2, 'training', s, 1, 1, 'f' FROM generate_series(0, 1) AS s;
            INSERT INTO madlib.mop_configuration (run_id, mst_key, model_id, compile_params, model_arch)
            SELECT 2, k, 1, 'loss=''mse'', metrics=[''mae'']', 'a' FROM generate_series(1, 2) AS k;
            INSERT INTO madlib.mop_unit (run_id, mst_key, iteration, segment, kind, dataset, attempt, status, rows,
                loss, metric) SELECT 2, k, 1, s, 'evaluate', 'training', 1, 'finished', 1 + 2 * s, s, 2 * s
            FROM generate_series(1, 2) AS k, generate_series(0, 1) AS s WHERE (k, s) <> (2, 1);
            CREATE VIEW dash AS SELECT run_id, owner, status FROM madlib.mop_runs;
            GRANT SELECT ON madlib.mop_runs TO keeper""")
    client.run("ALTER EXTENSION pg_mop UPDATE")
    if older == "0.2.0":
        # who is gone is not found again where somebody takes his name
        client.run("CREATE ROLE ghost; ALTER ROLE keeper RENAME TO keeps")
        assert client.run("SELECT run_id, owner FROM madlib.mop_runs ORDER BY 1") == [
            {"run_id": 1, "owner": "unknown (ghost)"},
            {"run_id": 2, "owner": "keeps"},
            {"run_id": 3, "owner": "unknown (ghost)"},
        ]
        assert client.run("SELECT run_id FROM madlib.mop_output ORDER BY 1") == [{"run_id": 1}, {"run_id": 2}]
        assert client.run("SELECT who::text FROM madlib.mop_limit ORDER BY threads") == [
            {"who": "keeps"},
            {"who": "-"},
            {"who": None},
        ]
        # what is made of the views, and who may read them, stays
        assert client.value("SELECT count(*) FROM dash") == 3
        assert client.value("SELECT has_table_privilege('keeps', 'madlib.mop_runs', 'SELECT')")
        # what was evaluated whole has its metrics; the rest is to be evaluated again
        assert client.run("SELECT mst_key, name, value FROM madlib.mop_metrics ORDER BY 1, 2") == [
            {"mst_key": 1, "name": "loss", "value": 0.75},
            {"mst_key": 1, "name": "mae", "value": 1.5},
        ]
        assert client.run("SELECT DISTINCT mst_key, status FROM madlib.mop_units WHERE run_id = 2 ORDER BY 1") == [
            {"mst_key": 1, "status": "finished"},
            {"mst_key": 2, "status": "cancelled"},
        ]
        client.run(
            "DELETE FROM madlib.mop_run; DELETE FROM madlib.mop_limit; DROP VIEW dash; "
            "REVOKE ALL ON madlib.mop_runs FROM keeps"
        )
        client.run("DROP OWNED BY keeps; DROP ROLE ghost, keeps")  # (initial privileges name it since PostgreSQL 17)
    updated = objects(client)
    assert updated.keys() == fresh.keys()
    for key in fresh:
        assert updated[key] == fresh[key], key
    if older == "0.1.0":
        assert client.run("SELECT run_id, status, state_bytes > 0 AS holds FROM madlib.mop_runs ORDER BY 1") == [
            {"run_id": 1, "status": "finished", "holds": False},
            {"run_id": 2, "status": "cancelled", "holds": True},
        ]
        assert (
            client.value("SELECT string_agg(encode(data, 'hex'), ' ') FROM madlib.mop_read_states(2, '{3}', '{3}')")
            == "01 0203"
        )
        assert client.value("SELECT count(*) FROM madlib.mop_units") == 2
        client.run("SELECT madlib.mop_drop_run(2)")
        assert client.value("SELECT count(*) FROM pg_class WHERE relname ~ 'mop_state_[0-9]'") == 0
    run_id = fit(client, "flowers_packed", "models", "mst")
    assert run_id > (2 if older == "0.1.0" else 0) and client.value("SELECT count(*) FROM models") == 1
    client.run("DROP EXTENSION pg_mop")
    assert client.value("SELECT count(*) FROM pg_class WHERE relname ~ '^mop_'") == 0
    client.close()


def test_a_session_from_before_the_update_gets_the_new_versions_modules(db, tmp_path):
    """Another version has another directory of packages: here, another name of the same."""
    tmp_path.chmod(0o755)
    home = tmp_path / "next"
    home.symlink_to(HOME)
    heading = runpy.run_path(str(ROOT / "tools" / "build_sql.py"))["heading"](str(home))
    client = db.another()
    assert client.value("SELECT madlib.training_preprocessor_dl()")
    client.run(
        "DO LANGUAGE plpython3u $$\nimport mop_udf, pg_mop.backend.database\npg_mop.backend.database.before = True\n$$"
    )
    client.run(
        f"CREATE FUNCTION next_version() RETURNS text[] LANGUAGE plpython3u AS $$\n{heading}\n"
        "from pg_mop.backend import database\nreturn [sys.modules['mop_udf'].home, hasattr(database, 'before')]\n$$"
    )
    assert client.value("SELECT next_version()") == [str(home), "False"]
    client.run("DO LANGUAGE plpython3u $$\nimport pg_mop.backend.database\npg_mop.backend.database.before = True\n$$")
    assert client.value("SELECT next_version()") == [str(home), "True"], "once per session"
    client.close()


def test_packages_of_another_python_than_the_servers_are_told_of_and_not_imported(db, tmp_path):
    """As after an upgrade of the system."""
    tmp_path.chmod(0o755)
    (tmp_path / "lib" / "python3.1" / "site-packages" / "mop_udf").mkdir(parents=True)
    heading = runpy.run_path(str(ROOT / "tools" / "build_sql.py"))["heading"](str(tmp_path))
    client = db.another()
    client.run(f"CREATE FUNCTION upgraded() RETURNS text LANGUAGE plpython3u AS $$\n{heading}\nreturn 'imported'\n$$")
    for _ in range(2):
        error = client.error("SELECT upgraded()")
        assert re.search(r"there are no packages of pg_mop for Python 3\.\d+, the server's: no .*/lib/", str(error))
        assert "sudo make install" in error.diag.message_hint
    assert client.value("SELECT madlib.training_preprocessor_dl()"), "the session's own are found as before"
    client.close()


# table of 0.3.0 -> its rows as the catalog of today has them
ROWS = {
    "mop_run": "SELECT r.*, r.fencing_token AS epoch, parameters::jsonb #- '{settings,sharing}' AS parameters "
    "FROM madlib.mop_run r",
    "mop_configuration": "SELECT * FROM madlib.mop_configuration",
    "mop_segment": "SELECT * FROM madlib.mop_segment",
    **{
        table: f"SELECT s.mst_key, s.iteration, t.* FROM madlib.{table} t JOIN madlib.mop_stage s USING (run_id, stage)"
        for table in ("mop_unit", "mop_metric", "mop_partial")
    },
}
STATES = (
    "SELECT mst_key, version, bytes, (madlib.mop_read_states(run_id, ARRAY[stage], ARRAY[version])).data "
    "FROM madlib.mop_stage_state JOIN madlib.mop_stage USING (run_id, stage) "
    "WHERE run_id = %s AND state_table IS NOT NULL ORDER BY version"
)
SHOWN = {
    "mop_runs": "status, function, seed, scheduler, num_iterations, configurations, segments, started_at, finished_at",
    "mop_units": "mst_key, iteration, segment, kind, dataset, attempt, status, kernel, rows, loss, metric, started_at, "
    "finished_at, shared",
    "mop_metrics": "mst_key, iteration, dataset, name, value",
    "mop_visit_order": "mst_key, iteration, position, segment, shared",
    "mop_progress": "mst_key, units_done, units_total, iteration, last_loss, status",
    "mop_trials": "mst_key, model_id, compile_params, fit_params, status, iterations, metrics_iterations, "
    "training_loss, training_metric, reason",
    "mop_stages": "iteration, mst_keys, units_done, parent IS NULL AS begins",
}


def write_as_0_3_0(db, client, run_id):
    """Write a run and its states into the catalog of another database, which is of 0.3.0."""
    client.run(
        "INSERT INTO madlib.mop_owner SELECT 1, 'postgres', 'postgres' WHERE NOT EXISTS (SELECT 1 FROM "
        "madlib.mop_owner)"
    )
    for table, rows in ROWS.items():
        client.run(
            f"INSERT INTO madlib.{table} SELECT * FROM json_populate_recordset(NULL::madlib.{table}, %s)",
            [db.value(f"SELECT coalesce(json_agg(r), '[]')::text FROM ({rows}) r WHERE run_id = {run_id}")],
        )
    # each replica evaluated on its own segments
    client.run(
        "UPDATE madlib.mop_unit SET mst_key = segment + 1 WHERE kind = 'evaluate' AND run_id IN (SELECT run_id "
        "FROM madlib.mop_run WHERE function = 'madlib_keras_fit')"
    )
    client.run(
        "UPDATE madlib.mop_segment s SET fingerprint = (SELECT count(*) || ':' || md5(string_agg(concat_ws(',', "
        "tableoid, ctid, xmin), ';' ORDER BY tableoid, ctid)) FROM flowers_packed WHERE __dist_key__ = segment)"
    )
    client.run(
        "INSERT INTO madlib.mop_model (run_id, mst_key) SELECT run_id, mst_key FROM madlib.mop_configuration "
        "WHERE run_id = %s",
        [run_id],
    )
    client.run("SELECT madlib.mop_new_generation(%s, 1)", [run_id])
    for row in db.run(STATES, [run_id]):
        client.run(
            f"INSERT INTO madlib.mop_state_{run_id}_1 VALUES (%s, %s, 0, %s)",
            [row["mst_key"], row["version"], row["data"]],
        )
        client.run(
            "UPDATE madlib.mop_model SET version = %s, bytes = %s, kept_generation = generation, generation = 1 "
            "WHERE (run_id, mst_key) = (%s, %s)",
            [row["version"], row["bytes"], run_id, row["mst_key"]],
        )


def test_runs_of_0_3_0_read_right_and_go_on(db):
    """A finished run, an unfinished one and one of averaging: of today, written as 0.3.0 had them."""
    client = database(db.server, "of_0_3_0")
    client.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib VERSION '0.3.0' CASCADE")
    for each in (db, client):
        each.run("SET pg_mop.kernel = plain; SET pg_mop.threads = 1")
        make_data(each, segments=2)
        load(each, "arch", dense())
        selection(each, "mst", "arch", [(1, ADAM.format(rate), "batch_size=10") for rate in (0.01, 0.02)])
    db.run("BEGIN")
    finished = fit(db, "flowers_packed", "models", "mst", 2, frequency=1)
    db.run(
        "SELECT madlib.madlib_keras_fit('flowers_packed', 'one', 'arch', 1, %s, 'batch_size=8', 2)", [ADAM.format(0.01)]
    )
    averaging = last_run(db)
    db.run("ROLLBACK")
    stopped = db.another()
    call = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'rest', 'mst', 3, FALSE, NULL, 1)"
    stopped.run(
        "SET pg_mop.kernel = plain; SET pg_mop.threads = 1; SET pg_mop.seed = 5; SET pg_mop.lock_timeout = '300s'; "
        "SET pg_mop.chain_seconds = 0"
    )
    trained = "SELECT count(*) FROM madlib.mop_units WHERE run_id > %s AND kind = 'train' AND status = 'finished'"
    with holding(db.another()) as let_some_begin:
        running = Calling(stopped, call)
        assert eventually(lambda: db.value(trained, [averaging]) >= 5 or let_some_begin(), 120)
        db.run("SELECT pg_cancel_backend(%s)", [stopped.connection.info.backend_pid])
    assert isinstance(running.end(), psycopg2.errors.QueryCanceled)
    stopped.close()
    unfinished = last_run(db)
    for run_id in (finished, averaging, unfinished):
        write_as_0_3_0(db, client, run_id)
    client.run("INSERT INTO madlib.mop_output VALUES (%s), (%s)", [finished, averaging])
    client.run(
        "SELECT setval('madlib.mop_run_run_id_seq', %s); SELECT setval('madlib.mop_owner_owner_seq', 1)", [unfinished]
    )
    client.run("ALTER EXTENSION pg_mop UPDATE")
    for view, columns in SHOWN.items():
        shown, wanted = (
            each.run(
                f"SELECT run_id, {columns} FROM madlib.{view} WHERE run_id = ANY (%s) ORDER BY 1, 2, 3, 4, 5",
                [[finished, averaging, unfinished]],
            )
            for each in (client, db)
        )
        assert wanted and shown == wanted, view
    assert client.run(
        "SELECT count(*) AS parents FROM madlib.mop_stages s JOIN madlib.mop_stages p ON (p.run_id, "
        "p.stage, p.mst_keys, p.iteration) = (s.run_id, s.parent, s.mst_keys, s.iteration - 1)"
    ) == [{"parents": 2 * 1 + 2 * 1 + 2 * 2}]
    assert client.run("SELECT DISTINCT merge_rate FROM madlib.mop_runs") == [{"merge_rate": 1}]
    # every state is its stage's
    for run_id in (finished, averaging, unfinished):
        states, wanted = (
            [(row["mst_key"], row["version"], bytes(row["data"])) for row in each.run(STATES, [run_id])]
            for each in (client, db)
        )
        assert wanted and sorted(states) == sorted(wanted)
    units = client.run(
        "SELECT mst_key, iteration, segment, finished_at FROM madlib.mop_units WHERE run_id = %s AND "
        "status = 'finished'",
        [unfinished],
    )
    client.connection.notices.clear()
    client.run(call)
    assert any(f"going on with run {unfinished} of the same call" in n for n in client.connection.notices)
    assert_invariants(client, unfinished)
    done = client.run(
        "SELECT mst_key, iteration, segment, finished_at FROM madlib.mop_units WHERE run_id = %s AND "
        "status = 'finished'",
        [unfinished],
    )
    assert all(unit in done for unit in units) and len(done) == 2 * 3 * (2 + 2)
    for run_id, own in ((unfinished, "rest"), (finished, None)):
        client.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
        if own:
            assert client.value(
                "SELECT bool_and(a.model_weights = b.model_weights) FROM again a JOIN rest b USING (mst_key)"
            )
        client.run("DROP TABLE again, again_info, again_summary")
    assert client.value("SELECT madlib.mop_drop_states(%s)", [averaging]) == ""
    client.close()
