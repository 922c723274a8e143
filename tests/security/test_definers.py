"""The functions that act with the rights of the extension's owner do so for nobody but whom they are for."""

import json
import re

import psycopg2
import pytest

from support.client import Calling, Client
from support.cluster import eventually
from support.forged import RUN, own_run
from support.trainers import of_backend, trainers
from support.workload import ADAM, dense, fit, load, make_data, selection


@pytest.fixture(scope="module")
def roles(db):
    """A user who attacks, and one who owns a run."""
    db.run(
        "DROP ROLE IF EXISTS mallory, victor; CREATE ROLE mallory LOGIN; CREATE ROLE victor LOGIN; "
        "GRANT mop_user TO mallory, victor; CREATE SCHEMA mallory AUTHORIZATION mallory"
    )
    mallory, victor = db.another("mallory"), db.another("victor")
    mallory.run("SET search_path = mallory")
    victor.run_id = own_run(victor, state=b"victors")
    yield mallory, victor
    for client in (mallory, victor):
        client.close()
    db.run("DELETE FROM madlib.mop_run; DROP OWNED BY mallory, victor CASCADE; DROP ROLE mallory, victor")


def states_of(db, run_id):
    return db.value(f"SELECT count(*) FROM madlib.mop_state_{run_id}_1")


def test_no_trigger_function_of_ours_can_be_hung_on_another_table(db, roles):
    mallory, victor = roles
    mallory.run(
        "CREATE TABLE bait (run_id bigint, state_table integer); INSERT INTO bait VALUES (%s, 1)", [victor.run_id]
    )
    triggers = db.run(
        "SELECT p.oid::regproc::text AS name FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace "
        "WHERE nspname = 'madlib' AND prorettype IN ('trigger'::regtype, 'event_trigger'::regtype)"
    )
    assert len(triggers) == 6
    for trigger in triggers:
        assert not db.value("SELECT has_function_privilege('mop_user', %s, 'EXECUTE')", [trigger["name"] + "()"])
    assert isinstance(
        mallory.error(
            "CREATE TRIGGER x BEFORE DELETE ON bait FOR EACH ROW EXECUTE FUNCTION madlib.mop_state_table_gone()"
        ),
        psycopg2.errors.InsufficientPrivilege,
    )
    # and where a superuser hangs it there himself
    db.run("CREATE TRIGGER x BEFORE DELETE ON mallory.bait FOR EACH ROW EXECUTE FUNCTION madlib.mop_state_table_gone()")
    assert "this is the trigger of mop_state_table" in str(mallory.error("DELETE FROM bait"))
    db.run("CREATE TRIGGER z AFTER INSERT ON mallory.bait FOR EACH ROW EXECUTE FUNCTION madlib.mop_audit_limit()")
    assert "this is the trigger of mop_limit" in str(mallory.error("INSERT INTO bait VALUES (1, 1)"))
    db.run("CREATE TRIGGER y BEFORE INSERT ON mallory.bait FOR EACH ROW EXECUTE FUNCTION madlib.mop_arrive()")
    assert "this is the trigger of mop_arrivals" in str(mallory.error("INSERT INTO bait VALUES (1, 1)"))
    # what arrives, and what departs, is of one's own runs
    into = "INSERT INTO madlib.mop_arrivals (run_id, stage, version, target, part, data) VALUES (%s, 1, 9, 1, 0, 'x')"
    assert "there is no run" in str(mallory.error(into, [victor.run_id]))
    assert mallory.run("SELECT data FROM madlib.mop_departures") == []
    assert states_of(db, victor.run_id) == 1


@pytest.mark.parametrize("how", ["ANALYZE mallory.lure", "REINDEX TABLE mallory.lure", "VACUUM ANALYZE mallory.lure"])
def test_maintenance_of_a_users_table_lends_him_nobodys_runs(db, roles, how):
    """PostgreSQL runs the functions of an index as the table's owner, but in the session of him who analyzes."""
    mallory, victor = roles
    mine = own_run(db, state=b"the superuser's")
    mallory.run(
        "DROP TABLE IF EXISTS lure, heard; CREATE TABLE heard (who text, result text); "
        "CREATE TABLE lure (a integer); INSERT INTO lure SELECT generate_series(1, 100)"
    )
    mallory.run(f"""
        CREATE OR REPLACE FUNCTION act() RETURNS void LANGUAGE plpgsql AS $$
        DECLARE call text;
        BEGIN
            FOREACH call IN ARRAY ARRAY['mop_drop_run({mine})', 'mop_drop_run({victor.run_id})',
                                        'mop_read_states({mine}, ''{{1}}'', ''{{1}}'')', 'mop_set_sessions({mine}, 1)',
                                        'mop_drop({mine}, true)', 'mop_drop({victor.run_id}, true)',
                                        'mop_close_run({mine}, NULL, ''failed'', ''x'')']
            LOOP
                BEGIN
                    EXECUTE 'SELECT madlib.' || call;
                    INSERT INTO mallory.heard VALUES (session_user, call);
                EXCEPTION WHEN OTHERS THEN
                    INSERT INTO mallory.heard VALUES (session_user, SQLERRM);
                END;
            END LOOP;
        END $$;
        CREATE OR REPLACE FUNCTION f(integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
        BEGIN IF session_user <> 'mallory' THEN PERFORM mallory.act(); END IF; RETURN $1; END $$;
        CREATE INDEX i ON lure (f(a))""")
    db.run("RESET ROLE")
    db.run(how)
    heard = {r["result"] for r in db.run("SELECT result FROM mallory.heard WHERE who = 'postgres'")}
    assert heard and not any(r.startswith("mop_") or "does not exist" in r for r in heard), heard
    assert states_of(db, mine) == 1 and states_of(db, victor.run_id) == 1
    db.run("SELECT madlib.mop_drop_run(%s)", [mine])
    mallory.run("DROP TABLE lure, heard")


# what a role could do to the run of another: of the functions that units and coordinators call, too
ACTS = {
    "drop": "madlib.mop_drop_run({run})",
    "drop states": "madlib.mop_drop_states({run})",
    "note": "madlib.mop_put_note({run}, 'x', NULL)",
    "set sessions": "madlib.mop_set_sessions({run}, 1)",
    "set priority": "madlib.mop_set_priority({run}, 1)",
    "take turn": "madlib.mop_take_turn({run}, 1, 1, 0, 1, 1, 0)",
    "share run": "madlib.mop_share_run({run}, 1, 0, NULL)",
    "known shared": "madlib.mop_known_shared({run}, '{{x}}', '{{}}')",
    "shared beside": "madlib.mop_shared_beside({run}, 0)",
    "shared stages beside": "madlib.mop_shared_stages_beside({run}, '{{-1}}', '{{x}}')",
    "adopt": "madlib.mop_adopt({run}, 1, '[]')",
    "note counts": "madlib.mop_note_counts({run}, 1, 9, 9, 9, 9)",
    "note hops": "madlib.mop_note_hops({run}, 1, '[]')",
    "close": "madlib.mop_close_run({run}, NULL, 'failed', 'x')",
    "reopen": "madlib.mop_reopen_run({run}, backend) FROM madlib.mop_tokens",
    "output token": "madlib.mop_output_token({run})",
    "ask": "madlib.mop_ask({run}, 1, '[]', '[]', '[]')",
    "withdraw": "madlib.mop_withdraw({run}, 1, 1, 0, 'x')",
    "log": "madlib.mop_log_search({run}, 1, 1, '[1]')",
    "add control request": "madlib.mop_add_control_request({run}, json_build_object('stop', 1, 'by', 'x'))",
    "take control requests": "madlib.mop_take_control_requests({run}, 1, false)",
    "release": "madlib.mop_release_states({run}, 1, '{{1}}')",
    "begin": "madlib.mop_begin_units({run}, 1, 'train', 'training', '{{1}}', '{{2}}', '{{0}}', '{{1}}', '{{0}}')",
    "fail": "madlib.mop_fail_unit({run}, 1, 1, 2, 0, 'train', 'training', 1, 0, 'x')",
    "fail configuration": "madlib.mop_fail_configurations({run}, 1, '{{1}}', 'x', 'infrastructure')",
    "new state_table": "madlib.mop_new_state_table({run}, 2)",
    "drop state tables": "madlib.mop_drop_state_tables({run}, '{{1}}')",
    "move": "madlib.mop_move_states({run}, '{{1}}', 1)",
    "put weights": "madlib.mop_put_weights({run}, '{{1}}', 'x')",
    "put a part of weights": "madlib.mop_put_weights_part({run}, '{{1}}', 0, 'x')",
    "take": "madlib.mop_take_states({run}, 1, '{{1}}', '{{1}}', true)",
    "read": "madlib.mop_read_states({run}, '{{1}}', '{{1}}')",
    "sums": "madlib.mop_put_sums({run}, '{{1}}', 'training', 0, '{{1}}', '{{1}}')",
    "metrics": "madlib.mop_note_metrics({run}, '{{1}}', 'training', '{{1}}', '{{1}}', ARRAY['{{}}'])",
    "finish": 'madlib.mop_finish_units({run}, \'train\', \'training\', \'[{{"stage": 1, "segment": 0, "attempt": 1, '
    '"version": 2, "state_table": 1, "bytes": 1, "release": []}}]\')',
    "put": "madlib.mop_put_state({run}, 1, 2, 1, 0, 'x')",
    "put several": "madlib.mop_put_states({run}, '{{1}}', '{{2}}', 1, '{{x}}')",
    "output": "madlib.mop_has_output({run})",
}


@pytest.fixture(scope="module")
def trap(db, roles):
    """A function that runs SQL as mallory, whoever calls it, in all that lets one role's function run in another's
    session; gives the text that it answers."""
    mallory, _ = roles
    mallory.run("""
        GRANT USAGE ON SCHEMA mallory TO PUBLIC;
        CREATE FUNCTION trap(call text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
        DECLARE result text;
        BEGIN
            IF current_user <> 'mallory' THEN RETURN 'this is not mallory'; END IF;
            EXECUTE 'SELECT ' || call INTO result;
            RETURN 'it works';
        EXCEPTION WHEN OTHERS THEN RETURN SQLERRM;
        END $$;
        CREATE TABLE heard (answer text);
        CREATE FUNCTION hear() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN INSERT INTO mallory.heard VALUES (mallory.trap(NEW.call)); RETURN NULL; END $$;
        CREATE TABLE lure (call text); CREATE TRIGGER hear AFTER INSERT ON lure FOR EACH ROW EXECUTE FUNCTION hear();
        CREATE TABLE calls (call text); CREATE VIEW seen AS SELECT trap(call) AS answer FROM calls;
        CREATE TABLE guarded (call text, answer text GENERATED ALWAYS AS (NULL) STORED);
        ALTER TABLE guarded ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON guarded USING (trap(call) <> '');
        CREATE TABLE ruled (call text);
        CREATE RULE r AS ON INSERT TO ruled DO INSTEAD INSERT INTO mallory.heard VALUES (mallory.trap(NEW.call));
        GRANT ALL ON ALL TABLES IN SCHEMA mallory TO PUBLIC""")

    def answer(client, how, call):
        for table in ("heard", "calls"):
            mallory.run(f"DELETE FROM {table}")
        if how == "call":
            return client.value("SELECT mallory.trap(%s)", [call])
        if how == "prepared":
            client.run("PREPARE p(text) AS SELECT mallory.trap($1)")
            try:
                return client.value("EXECUTE p(%s)", [call])
            finally:
                client.run("DEALLOCATE p")
        if how == "view":
            mallory.run("INSERT INTO calls VALUES (%s)", [call])
            return client.value("SELECT answer FROM mallory.seen")
        client.run(f"INSERT INTO mallory.{'lure' if how == 'trigger' else 'ruled'} VALUES (%s)", [call])
        return mallory.value("SELECT answer FROM heard")

    return answer


@pytest.mark.parametrize("how", ["call", "prepared", "view", "trigger", "rule"])
@pytest.mark.parametrize("user", ["victor", "application", "postgres"])
def test_a_function_of_another_role_acts_on_no_run_of_whoever_calls_it(db, roles, trap, user, how):
    """mallory's SECURITY DEFINER function in the session of a role, SET or logged in, or of a superuser."""
    mallory, victor = roles
    db.run("DROP ROLE IF EXISTS application; CREATE ROLE application LOGIN; GRANT victor TO application")
    client = db.another(user)
    client.run("SET ROLE victor")
    for act, call in ACTS.items():
        answer = trap(client, how, call.format(run=victor.run_id))
        assert answer == f'there is no run {victor.run_id} of role "mallory"', act
    assert "permission denied" in trap(client, how, "secret FROM madlib.mop_secret")
    assert states_of(db, victor.run_id) == 1
    # the role itself may
    assert client.value("SELECT madlib.mop_has_output(%s)", [victor.run_id]) is False
    client.close()
    db.run("DROP ROLE application")


def test_cursors_and_stored_rows_carry_no_role_from_one_to_another(db, roles, trap):
    mallory, victor = roles
    mallory.run("""
        CREATE FUNCTION opened() RETURNS refcursor LANGUAGE plpgsql SECURITY DEFINER AS $$
        DECLARE c refcursor := 'hers'; BEGIN OPEN c FOR SELECT token FROM madlib.mop_tokens; RETURN c; END $$;
        CREATE FUNCTION fetched(name text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
        DECLARE c refcursor := name; one text; BEGIN FETCH c INTO one; RETURN one; END $$;
        CREATE MATERIALIZED VIEW kept AS SELECT madlib.mop_token() AS token;
        CREATE VIEW invoked WITH (security_invoker) AS SELECT *, trap('madlib.mop_drop_run(0)') AS answer
        FROM madlib.mop_tokens; GRANT SELECT ON invoked TO PUBLIC""")
    her, his = (db.value("SELECT %s::regrole::oid::text", [role]) for role in ("mallory", "victor"))
    for cursor, sql in (
        ("his", "DECLARE his CURSOR FOR SELECT token FROM madlib.mop_tokens"),
        ("hers", "SELECT mallory.opened()"),
    ):
        victor.run("BEGIN; " + sql)
        assert victor.value("SELECT mallory.fetched(%s)", [cursor]).split()[0] == her
        victor.run("ROLLBACK")
    victor.run("BEGIN; SELECT mallory.opened()")
    assert victor.value("FETCH hers").split()[0] == his
    victor.run("ROLLBACK; BEGIN; DECLARE calls CURSOR FOR SELECT madlib.mop_drop_run(%s)", [victor.run_id])
    assert 'of role "mallory"' in str(victor.error("SELECT mallory.fetched('calls')"))
    db.run("REFRESH MATERIALIZED VIEW mallory.kept")
    assert mallory.value("SELECT token FROM kept").split()[0] == her
    seen = victor.run("SELECT * FROM mallory.invoked")[0]
    assert (seen["token"].split()[0], seen["answer"]) == (his, 'there is no run 0 of role "mallory"')
    db.run("SET SESSION AUTHORIZATION mallory")
    assert db.value("SELECT madlib.mop_token()").split()[0] == her
    parallel = db.value("SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')")
    db.run(f"RESET SESSION AUTHORIZATION; SET {parallel} = on")
    assert db.value("SELECT madlib.mop_token()").split()[0] == "10"
    db.run(f"RESET {parallel}")
    assert states_of(db, victor.run_id) == 1


def test_a_function_of_another_role_ends_no_idle_session(db, roles):
    """Those that are kept for a next call end with DROP EXTENSION, for those who may do that."""
    mallory, _ = roles
    mallory.run(
        "CREATE FUNCTION dropping() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ "
        "BEGIN DROP EXTENSION IF EXISTS nothing_at_all; END $$"
    )
    idle = db.another()
    idle.run("SET application_name = 'pg_mop run 12'")
    db.run("SELECT mallory.dropping()")
    assert idle.value("SELECT 1") == 1
    idle.close()


def test_what_a_function_of_another_role_makes_in_ones_session_is_its_own(db, roles, trap):
    mallory, victor = roles
    victor.run("SET ROLE victor")
    answer = trap(
        victor,
        "call",
        f"madlib.mop_open_run(jsonb_set('{json.dumps(RUN)}', '{{coordinator}}', to_jsonb(backend))::json,"
        " '[]') FROM madlib.mop_tokens",
    )
    assert answer == "it works"
    assert [r["owner"] for r in db.run("SELECT owner FROM madlib.mop_runs ORDER BY run_id DESC LIMIT 1")] == ["mallory"]
    db.run("DELETE FROM madlib.mop_run WHERE owner = (SELECT owner FROM madlib.mop_owner WHERE role = 'mallory')")


def test_a_token_is_good_for_its_role_in_its_transaction_of_its_session_alone(db, roles):
    mallory, victor = roles
    has = "SELECT madlib.mop_has_output(%s, %s)"
    other = db.another("victor")
    victor.run("BEGIN")
    token = victor.value("SELECT token FROM madlib.mop_tokens")
    assert victor.value(has, [victor.run_id, token]) is False
    role, seal = token.split()
    mine = mallory.value("SELECT token FROM madlib.mop_tokens")
    for forged in (
        f"{mine.split()[0]} {seal}",
        f"{role} {mine.split()[1]}",
        f"10 {seal}",
        f"{role} {'0' * 64}",
        "",
        "10",
        f"{role} ",
        f" {role} {seal}",
        f"{role} {seal}\n",
        None,
        f"{role} {seal.upper()}",
        victor.value("SELECT backend FROM madlib.mop_tokens"),
        victor.value("SELECT madlib.mop_output_token(%s)", [victor.run_id]),
    ):
        victor.run("SAVEPOINT s")
        with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="this is no token of this transaction"):
            victor.run(has, [victor.run_id, forged])
        victor.run("ROLLBACK TO s")
    for client in (other, mallory):
        assert "this is no token of this transaction" in str(client.error(has, [victor.run_id, token]))
    victor.run("COMMIT")
    assert "this is no token of this transaction" in str(victor.error(has, [victor.run_id, token]))
    other.close()


def test_nobody_reads_what_tokens_are_made_with(db, roles):
    db.run("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN; GRANT mop_user, pg_read_all_data TO reader")
    reader = db.another("reader")
    assert reader.value("SELECT count(*) FROM madlib.mop_runs") == 0
    assert reader.value("SELECT count(*) FROM madlib.mop_secret") == 0
    assert reader.value("SELECT count(*) FROM madlib.mop_owner") == 0
    for function in ("mop_caller(%s)", "mop_own(1, %s)"):
        token = reader.value("SELECT token FROM madlib.mop_tokens")
        assert "permission denied for function" in str(reader.error(f"SELECT madlib.{function}", [token]))
    reader.close()
    # a qual of the reader's is not run within the view
    mallory, _ = roles
    mallory.run(
        "CREATE FUNCTION leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$ "
        "BEGIN RAISE NOTICE '%', $1; RETURN true; END $$"
    )
    del mallory.connection.notices[:]
    mallory.run("SELECT * FROM madlib.mop_tokens WHERE leak(token)")
    assert len(mallory.connection.notices) == 1
    db.run("DROP OWNED BY reader; DROP ROLE reader")


def options(**changed):
    return json.dumps({"threads": 1, "keras_backend": "tensorflow", "cache_mb": 1, "idle_ms": 0, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"memory_mb": 0},
        {"model_mb": 0},
        {"threads": 0},
        {"threads": -1},
        {"memory_mb": True},
        {"memory_mb": "1"},
        {"memory_mb": 1.5},
        {"model_mb": float("nan")},
        {"threads": None},
        {"cache_mb": -1},
        {"idle_ms": "x"},
        {"gpu": "0; x"},
        {"keras_backend": "/tmp/x"},
        {"threads": 1 << 40},
    ],
)
def test_options_of_a_trainer_that_would_pass_a_limit(roles, changed):
    mallory, _ = roles
    before = set(trainers())
    assert "invalid option of a trainer" in str(
        mallory.error("SELECT madlib.mop_start_trainer(%s)", [options(**changed)])
    )
    assert set(trainers()) == before


def test_another_role_that_is_set_does_not_lift_a_limit(db, roles):
    mallory, _ = roles
    db.run("INSERT INTO madlib.mop_limit VALUES ('mallory', 1, 2, 3000, 10), (NULL, 5, 5, 5000, 50)")
    limits = {
        "sessions": 1,
        "threads": 2,
        "trainer_memory_mb": 3000,
        "max_model_mb": 10,
        "max_seconds": None,
        "max_disk_mb": None,
        "max_priority": None,
        "share": None,
        "device_share": None,
    }
    assert mallory.run("SELECT * FROM madlib.mop_limits()") == [limits]
    mallory.run("SET ROLE mop_user")
    assert mallory.run("SELECT * FROM madlib.mop_limits()") == [limits]
    mallory.run("RESET ROLE")
    db.run("DELETE FROM madlib.mop_limit")


def test_of_trainers_that_start_in_the_same_instant_as_many_stay_as_may(db, roles):
    db.run("INSERT INTO madlib.mop_limit (role, sessions) VALUES ('mallory', 2)")
    start = "SELECT madlib.mop_start_trainer($json$" + options() + "$json$)"
    for _ in range(3):
        clients = [db.another("mallory") for _ in range(6)]
        for client in clients:  # its packages are found before the race
            client.error("SELECT madlib.mop_start_trainer('{}')")
        calls = [Calling(client, start) for client in clients]
        refused = [error for error in (call.end() for call in calls) if error is not None]
        assert len(refused) == 4 and all("as many as it may have at once" in str(error) for error in refused)
        assert {of_backend(pid) for pid in trainers()} <= {c.connection.info.backend_pid for c in clients}
        assert eventually(lambda: len(trainers()) == 2), "those of the refused ones are on their way back"
        for client in clients:
            client.close()
        assert eventually(lambda: not trainers())
    # nor does an open transaction that has looked at who is there, and sees that for ever
    clients = []
    for _ in range(4):
        clients.append(db.another("mallory"))
        clients[-1].run("BEGIN; SELECT count(*) FROM pg_stat_activity")
    for client in reversed(clients[2:]):
        client.run(start)
    for client in clients[:2]:
        assert "as many as it may have at once" in str(client.error(start))
    assert eventually(lambda: len(trainers()) == 2)
    for client in clients:
        client.close()
    assert eventually(lambda: not trainers())
    db.run("DELETE FROM madlib.mop_limit")


def test_a_stranger_who_drops_nothing_ends_no_session(db, roles):
    db.run("DROP ROLE IF EXISTS stranger2; CREATE ROLE stranger2 LOGIN")
    idle, stranger = db.another(), db.another("stranger2")
    idle.run("SET application_name = 'pg_mop run 12'")
    stranger.run("BEGIN; DROP EXTENSION IF EXISTS nothing_at_all; ROLLBACK")
    assert idle.value("SELECT 1") == 1
    stranger.close()
    idle.close()
    db.run("DROP ROLE stranger2")


def test_state_tables_are_made_one_after_the_other_and_not_without_end(roles):
    mallory, _ = roles
    run_id = own_run(mallory)
    assert "cannot have a state_table 7" in str(mallory.error("SELECT madlib.mop_new_state_table(%s, 7)", [run_id]))
    assert "cannot have a state_table 51" in str(
        mallory.error("SELECT madlib.mop_new_state_table(%s, g) FROM generate_series(2, 60) AS g", [run_id])
    )
    mallory.run("SELECT madlib.mop_drop_run(%s)", [run_id])


def test_every_view_of_runs_is_a_barrier(db):
    """Or who may read all tables would see by a cheap function in WHERE what the view leaves out."""
    others = {
        row["relname"]
        for row in db.run(
            "SELECT c.relname FROM pg_class c JOIN pg_depend d ON d.objid = c.oid AND d.deptype = 'e' JOIN pg_extension e "
            "ON e.oid = d.refobjid AND e.extname = 'pg_mop' WHERE c.relkind = 'v' "
            "AND NOT coalesce(c.reloptions @> '{security_barrier=true}', false)"
        )
    }
    assert others == {"mop_tokens", "mop_arrivals"}


@pytest.fixture
def generous(db):
    """A database whose administrator gives everybody all rights on what he makes, and has made the extension then."""
    for command in (
        "DROP DATABASE IF EXISTS generous",
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN",
        "CREATE DATABASE generous",
    ):
        db.run(command)
    client = Client(db.server, "generous")
    client.run(
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC, reader; ALTER DEFAULT PRIVILEGES GRANT ALL ON "
        "SEQUENCES TO reader; ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO reader; CREATE SCHEMA madlib; "
        "CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; GRANT USAGE ON SCHEMA madlib TO reader"
    )
    yield client
    client.close()
    db.run("DROP DATABASE generous")
    db.run("DROP ROLE reader")


def test_an_administrators_default_privileges_open_nothing(generous):
    """Neither the catalog, nor states, nor functions that act for the owner."""
    make_data(generous)
    load(generous, "arch", dense())
    selection(generous, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=8")])
    fit(generous, "flowers_packed", "out", "mst", 1)
    rights = generous.run(
        "SELECT c.relname, a.privilege_type, a.grantee::regrole::text AS who FROM pg_class c, aclexplode(c.relacl) a "
        "WHERE c.relnamespace = 'madlib'::regnamespace AND a.grantee <> c.relowner AND NOT (c.relkind = 'v' AND "
        "a.privilege_type = 'SELECT')"
    )
    assert {r["who"] for r in rights} == {"mop_user"}
    assert {(r["privilege_type"], r["relname"]) for r in rights if r["privilege_type"] != "SELECT"} == {
        ("INSERT", "mop_arrivals")
    }
    assert not [r for r in rights if re.match("mop_state_[0-9]", r["relname"])]
    assert generous.value("SELECT count(*) FROM pg_class WHERE relname ~ '^mop_state_[0-9]'") > 0
    functions = {
        r["proname"]
        for r in generous.run(
            "SELECT proname FROM pg_proc p WHERE pronamespace = 'madlib'::regnamespace AND has_function_privilege("
            "'reader', p.oid, 'EXECUTE') AND NOT has_function_privilege('mop_user', p.oid, 'EXECUTE')"
        )
    }
    assert functions == set()


def test_maintenance_of_the_catalog_and_of_what_people_keep_of_its_views_needs_no_search_path(db):
    """PostgreSQL 17 sets one of its own for it; nor may any other be in the way."""
    views = [
        row["name"]
        for row in db.run(
            "SELECT c.oid::regclass::text AS name FROM pg_class c WHERE c.relkind = 'v' AND c.relnamespace = "
            "'madlib'::regnamespace AND has_table_privilege('mop_user', c.oid, 'SELECT') ORDER BY 1"
        )
    ]
    assert len(views) > 10
    own_run(db)
    db.run("CREATE SCHEMA kept")
    for view in views:
        db.run(f"CREATE MATERIALIZED VIEW kept.{view.split('.')[1]} AS SELECT v::text AS row FROM {view} v")
    db.run("SET search_path = kept")
    for view in views:
        db.run(f"REFRESH MATERIALIZED VIEW kept.{view.split('.')[1]}")
    for row in db.run(
        "SELECT c.oid::regclass::text AS name FROM pg_class c WHERE relkind = 'r' AND relnamespace = "
        "'madlib'::regnamespace"
    ):
        db.run(f"VACUUM (FULL, ANALYZE) {row['name']}")
        db.run(f"REINDEX TABLE {row['name']}")
    db.run("RESET search_path; DROP SCHEMA kept CASCADE; DELETE FROM madlib.mop_run")


@pytest.mark.parametrize(
    "how", ["REINDEX TABLE mallory.lure", "REFRESH MATERIALIZED VIEW mallory.remembered", "SELECT mallory.lent()"]
)
def test_no_session_is_opened_where_nobody_may_reset_the_role(db, roles, how):
    """As in maintenance by a superuser who has SET ROLE: the user's code in a worker session might RESET it."""
    mallory, _ = roles
    mallory.run(
        "DROP TABLE IF EXISTS lure; CREATE TABLE lure (a integer); INSERT INTO lure VALUES (1); "
        "SELECT set_config('search_path', 'mallory, madlib', false)"
    )
    make_data(mallory)
    load(mallory, "arch", dense())
    # (maintenance has a search_path of its own since PostgreSQL 17)
    selection(mallory, "mst", "mallory.arch", [(1, ADAM.format(0.01), "batch_size=8")])
    mallory.run("""
        CREATE OR REPLACE FUNCTION train() RETURNS integer LANGUAGE plpgsql AS $$
        BEGIN
            IF session_user <> 'mallory' THEN
                PERFORM madlib.madlib_keras_fit_multiple_model(
                    'mallory.flowers_packed', 'mallory.out', 'mallory.mst', 1, FALSE);
            END IF;
            RETURN 1;
        END $$;
        CREATE OR REPLACE FUNCTION f(integer) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT mallory.train() * $1';
        CREATE INDEX i ON lure (f(a));
        CREATE OR REPLACE FUNCTION lent() RETURNS integer LANGUAGE sql SECURITY DEFINER AS 'SELECT mallory.train()';
        DROP MATERIALIZED VIEW IF EXISTS remembered;
        CREATE MATERIALIZED VIEW remembered AS SELECT mallory.train() WITH NO DATA""")
    runs = "SELECT count(*) FROM madlib.mop_run"
    before, careful = db.value(runs), db.another()
    careful.run("SET ROLE mallory")
    error = careful.error(how)
    assert 'cannot set parameter "role" within security-' in str(error)
    assert db.value(runs) == before
    # and where he may, he trains
    assert careful.value("SELECT mallory.train()") == 1
    careful.close()
    mallory.run("DROP TABLE mallory.lure, out, out_info, out_summary; SET search_path = mallory")
