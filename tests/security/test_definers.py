"""The functions that act with the rights of the extension's owner do so for nobody but whom they are for."""

import json

import psycopg2
import pytest

from conftest import Calling, eventually, parent, trainers
from forged import own_run


@pytest.fixture(scope="module")
def roles(db):
    """A user who attacks, and one who owns a run."""
    db.run("DROP ROLE IF EXISTS mallory, victor; CREATE ROLE mallory LOGIN; CREATE ROLE victor LOGIN; "
           "GRANT mop_user TO mallory, victor; CREATE SCHEMA mallory AUTHORIZATION mallory")
    mallory, victor = db.another("mallory"), db.another("victor")
    mallory.run("SET search_path = mallory")
    victor.run_id = own_run(victor, state=b"victors")
    yield mallory, victor
    for client in (mallory, victor):
        client.close()
    db.run("DELETE FROM madlib.mop_run; DROP OWNED BY mallory, victor CASCADE; DROP ROLE mallory, victor")


def states_of(db, run_id):
    return db.value(f"SELECT count(*) FROM madlib.mop_state_{run_id}_1")


@pytest.mark.slice
def test_no_trigger_function_of_ours_can_be_hung_on_another_table(db, roles):
    mallory, victor = roles
    mallory.run("CREATE TABLE bait (run_id bigint, generation integer); INSERT INTO bait VALUES (%s, 1)",
                [victor.run_id])
    triggers = db.run("SELECT p.oid::regproc::text AS name FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace "
                      "WHERE nspname = 'madlib' AND prorettype IN ('trigger'::regtype, 'event_trigger'::regtype)")
    assert len(triggers) == 2
    for trigger in triggers:
        assert not db.value("SELECT has_function_privilege('mop_user', %s, 'EXECUTE')", [trigger["name"] + "()"])
    assert isinstance(mallory.error("CREATE TRIGGER x BEFORE DELETE ON bait FOR EACH ROW EXECUTE FUNCTION "
                                    "madlib.mop_generation_gone()"), psycopg2.errors.InsufficientPrivilege)
    # and where a superuser hangs it there himself
    db.run("CREATE TRIGGER x BEFORE DELETE ON mallory.bait FOR EACH ROW EXECUTE FUNCTION madlib.mop_generation_gone()")
    assert "this is the trigger of mop_generation" in str(mallory.error("DELETE FROM bait"))
    assert states_of(db, victor.run_id) == 1


@pytest.mark.parametrize("how", ["ANALYZE mallory.lure", "REINDEX TABLE mallory.lure", "VACUUM ANALYZE mallory.lure"])
def test_maintenance_of_a_users_table_lends_him_nobodys_runs(db, roles, how):
    """PostgreSQL runs the functions of an index as the table's owner, but in the session of him who analyzes."""
    mallory, victor = roles
    mine = own_run(db, state=b"the superuser's")
    mallory.run("DROP TABLE IF EXISTS lure, heard; CREATE TABLE heard (who text, result text); "
                "CREATE TABLE lure (a integer); INSERT INTO lure SELECT generate_series(1, 100)")
    mallory.run(f"""
        CREATE OR REPLACE FUNCTION act() RETURNS void LANGUAGE plpgsql AS $$
        DECLARE call text;
        BEGIN
            FOREACH call IN ARRAY ARRAY['mop_drop_run({mine})', 'mop_drop_run({victor.run_id})',
                                        'mop_read_state({mine}, 1, 1)', 'mop_set_sessions({mine}, 1)',
                                        'mop_drop_as_caller({mine}, true)',
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


def options(**changed):
    return json.dumps({"threads": 1, "keras_backend": "tensorflow", "cache_mb": 1, "idle_ms": 0, **changed})


@pytest.mark.parametrize("changed", [
    {"memory_mb": 0}, {"model_mb": 0}, {"threads": 0}, {"threads": -1}, {"memory_mb": True}, {"memory_mb": "1"},
    {"memory_mb": 1.5}, {"model_mb": float("nan")}, {"threads": None}, {"cache_mb": -1}, {"idle_ms": "x"},
    {"gpu": "0; x"}, {"keras_backend": "/tmp/x"}, {"threads": 1 << 40}])
def test_options_of_a_trainer_that_would_pass_a_limit(roles, changed):
    mallory, _ = roles
    before = set(trainers())
    assert "invalid option of a trainer" in str(mallory.error("SELECT madlib.mop_start_trainer(%s)",
                                                              [options(**changed)]))
    assert set(trainers()) == before


def test_another_role_that_is_set_does_not_lift_a_limit(db, roles):
    mallory, _ = roles
    db.run("INSERT INTO madlib.mop_limit VALUES ('mallory', 1, 2, 3000, 10), (NULL, 5, 5, 5000, 50)")
    limits = {"sessions": 1, "threads": 2, "trainer_memory_mb": 3000, "max_model_mb": 10}
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
        assert {parent(pid) for pid in trainers()} <= {c.connection.info.backend_pid for c in clients}
        assert len(trainers()) == 2
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
    assert len(trainers()) == 2
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


def test_generations_are_made_one_after_the_other_and_not_without_end(roles):
    mallory, _ = roles
    run_id = own_run(mallory)
    assert "cannot have a generation 7" in str(mallory.error("SELECT madlib.mop_new_generation(%s, 7)", [run_id]))
    assert "cannot have a generation 51" in str(mallory.error(
        "SELECT madlib.mop_new_generation(%s, g) FROM generate_series(2, 60) AS g", [run_id]))
    mallory.run("SELECT madlib.mop_drop_run(%s)", [run_id])
