"""Runs and limits are a role's, whatever it is called."""

import json

import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually
from support.forged import RUN, own_run
from support.workload import ADAM, dense, holding, load, make_data, selection


def number_of(client):
    return client.value("SELECT count(*) FROM madlib.mop_run"), client.value("SELECT count(*) FROM madlib.mop_runs")


@pytest.fixture
def nina(db):
    """A session of a role with a run (`run_id`)."""
    db.run("CREATE ROLE nina LOGIN; GRANT mop_user TO nina")
    client = db.another("nina")
    client.run_id = own_run(client, state=b"hers")
    yield client
    client.close()
    db.run("DELETE FROM madlib.mop_run")
    for role in ("nina", "anina"):
        if db.value("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]):
            db.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


def assert_a_stranger(db, run_id):
    """A new role that is called nina has nothing of the one before."""
    db.run("CREATE ROLE nina LOGIN; GRANT mop_user TO nina")
    client = db.another("nina")
    assert number_of(client) == (0, 0)
    for call in (
        f"mop_drop_run({run_id})",
        f"mop_drop_states({run_id})",
        f"mop_read_states({run_id}, '{{1}}', '{{1}}')",
        f"mop_has_output({run_id})",
    ):
        assert f'there is no run {run_id} of role "nina"' in str(client.error(f"SELECT madlib.{call}"))
    client.run("SELECT madlib.mop_housekeeping()")
    own = own_run(client)
    assert number_of(client) == (1, 1)
    client.run("SELECT madlib.mop_drop_run(%s)", [own])
    client.close()
    assert db.value(f"SELECT count(*) FROM madlib.mop_state_{run_id}_1") == 1


def test_who_takes_the_name_of_a_renamed_role_gets_nothing_of_it(db, nina):
    db.run("ALTER ROLE nina RENAME TO anina")
    assert_a_stranger(db, nina.run_id)
    assert nina.value("SELECT owner FROM madlib.mop_runs") == "anina"
    assert nina.value("SELECT data FROM madlib.mop_read_states(%s, '{1}', '{1}')", [nina.run_id]).tobytes() == b"hers"
    nina.run("SELECT madlib.mop_drop_run(%s)", [nina.run_id])
    assert number_of(db) == (0, 0)


def test_who_takes_the_name_of_a_dropped_role_gets_nothing_of_it(db, nina):
    nina.close()
    db.run("DROP OWNED BY nina; DROP ROLE nina")
    assert_a_stranger(db, nina.run_id)
    assert db.value("SELECT owner FROM madlib.mop_runs WHERE run_id = %s", [nina.run_id]) == "unknown (nina)"
    db.run("SELECT madlib.mop_drop_run(%s)", [nina.run_id])
    assert number_of(db) == (0, 0)


def test_members_of_a_renamed_role_see_its_runs(db, nina):
    db.run("DROP ROLE IF EXISTS chief; CREATE ROLE chief LOGIN; GRANT mop_user, nina TO chief")
    chief = db.another("chief")
    assert number_of(chief) == (0, 1)
    db.run("ALTER ROLE nina RENAME TO anina")
    assert number_of(chief) == (0, 1)
    chief.run("SET ROLE anina")
    assert number_of(chief) == (1, 1)
    chief.close()
    db.run("DROP OWNED BY chief; DROP ROLE chief")


def test_who_may_act_as_a_role_sees_its_runs_and_who_may_not_does_not(db, nina):
    """Since PostgreSQL 16 a member may be one who neither inherits nor may SET ROLE, as is who has made the role."""
    members = (
        {"chief": ("", 1)}
        if db.connection.server_version < 160000
        else {
            "chief": ("", 1),
            "heir": (" WITH INHERIT TRUE, SET FALSE", 1),
            "actor": (" WITH INHERIT FALSE, SET TRUE", 1),
            "keeper": (" WITH INHERIT FALSE, SET FALSE", 0),
        }
    )
    for role, (how, seen) in members.items():
        db.run(
            f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN; GRANT mop_user TO {role}; GRANT nina TO {role}{how}"
        )
        client = db.another(role)
        assert number_of(client) == (0, seen), role
        client.close()
        db.run(f"DROP OWNED BY {role}; DROP ROLE {role}")
    # who may make roles sees nothing of those that he makes: an administrator of roles is none of data
    db.run("DROP ROLE IF EXISTS maker; CREATE ROLE maker LOGIN CREATEROLE; GRANT mop_user TO maker")
    maker = db.another("maker")
    maker.run("CREATE ROLE made LOGIN")
    db.run("GRANT mop_user TO made")
    made = db.another("made")
    own_run(made)
    assert number_of(made) == (1, 1) and number_of(maker) == (0, 0)
    for client in (maker, made):
        client.close()
    db.run("DELETE FROM madlib.mop_run WHERE owner = (SELECT owner FROM madlib.mop_owner WHERE who = 'made'::regrole)")
    db.run("DROP OWNED BY made; DROP ROLE made; DROP OWNED BY maker; DROP ROLE maker")


def test_a_limit_stays_with_the_role_that_it_was_written_for(db, nina):
    db.run("INSERT INTO madlib.mop_limit (role, threads) VALUES ('nina', 2), ('later', 3)")
    threads = "SELECT threads FROM madlib.mop_limits()"
    assert nina.value(threads) == 2
    db.run("ALTER ROLE nina RENAME TO anina")
    assert nina.value(threads) == 2
    db.run(
        "CREATE ROLE nina LOGIN; GRANT mop_user TO nina; DROP ROLE IF EXISTS later; CREATE ROLE later LOGIN; "
        "GRANT mop_user TO later"
    )
    other, later = db.another("nina"), db.another("later")
    assert other.value(threads) is None
    assert later.value(threads) == 3, "a limit may be written before its role is made"
    # whose rights are in force counts, too
    db.run("GRANT later TO nina; UPDATE madlib.mop_limit SET role = 'nina' WHERE role = 'later'")
    assert later.value(threads) is None and other.value(threads) == 3
    db.run("UPDATE madlib.mop_limit SET role = 'later' WHERE who = 'nina'::regrole")
    other.run("SET ROLE later")
    assert other.value(threads) == 3
    other.close()
    later.close()
    # a role has one row: what was written for it before is changed, not written beside
    assert isinstance(
        db.error("INSERT INTO madlib.mop_limit (role, threads) VALUES ('later', 1)"), psycopg2.errors.UniqueViolation
    )
    db.run(
        "INSERT INTO madlib.mop_limit (role, threads) VALUES ('later', 1) ON CONFLICT (role) DO UPDATE SET "
        "threads = excluded.threads"
    )
    assert db.run("SELECT role, threads FROM madlib.mop_limit ORDER BY 1") == [
        {"role": "anina", "threads": 2},
        {"role": "later", "threads": 1},
    ]
    db.run("DELETE FROM madlib.mop_limit; DROP OWNED BY later; DROP ROLE later")


def test_a_run_is_opened_by_a_session_of_the_role_that_lives(db, nina):
    """Its number is what people are told to cancel."""
    other = db.another("nina")
    postgres = db.value("SELECT backend FROM madlib.mop_tokens")
    said = other.value("SELECT backend FROM madlib.mop_tokens")
    pid, rest = said.split(" ", 1)
    for forged in (
        None,
        "",
        pid,
        postgres,
        f"{db.value('SELECT pg_backend_pid()')} {rest}",
        f"{pid} 1 {rest[-64:]}",
        nina.value("SELECT token FROM madlib.mop_tokens"),
    ):
        for call, values in (
            ("mop_open_run(%s, '[]')", [json.dumps({**RUN, "coordinator": forged, "coordinator_pid": 1})]),
            ("mop_reopen_run(%s, %s)", [nina.run_id, forged]),
        ):
            assert "there is no such session of the role" in str(nina.error(f"SELECT madlib.{call}", values)), forged
    opened = nina.value("SELECT madlib.mop_open_run(%s, '[]')", [json.dumps({**RUN, "coordinator": said})])
    assert db.value("SELECT coordinator_pid FROM madlib.mop_run WHERE run_id = %s", [opened]) == int(pid)
    assert nina.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [opened]) == "running"
    other.close()
    # and a process that has the number later is not that session
    db.run("UPDATE madlib.mop_run SET coordinator_pid = pg_backend_pid() WHERE run_id = %s", [opened])
    assert nina.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [opened]) == "failed"
    nina.run("SELECT madlib.mop_drop_run(%s)", [opened])


def test_only_ones_own_runs_are_noted_as_written_and_only_as_long_as_they_are_there(db, nina):
    note = "SELECT madlib.mop_note_output(%s, %s)"
    seal = nina.value("SELECT madlib.mop_output_token(%s)", [nina.run_id])
    others = own_run(db)
    for run_id, forged in ((others, seal), (999999, seal), (nina.run_id, None), (nina.run_id, "0" * 64)):
        assert "this is no token of run" in str(nina.error(note, [run_id, forged]))
    assert "there is no run" in str(nina.error("SELECT madlib.mop_output_token(%s)", [others]))
    nina.run("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT 1")
    late = own_run(other := db.another("nina"))
    nina.run(note, [late, other.value("SELECT madlib.mop_output_token(%s)", [late])])
    assert other.value("SELECT madlib.mop_has_output(%s)", [late]) is False
    nina.run("COMMIT")
    assert other.value("SELECT madlib.mop_has_output(%s)", [late]) is True
    other.run("SELECT madlib.mop_drop_run(%s)", [late])
    assert db.value("SELECT count(*) FROM madlib.mop_output") == 0
    # what is noted while the run is dropped goes with the next call
    nina.run("BEGIN; " + note, [nina.run_id, seal])
    other.run("SELECT madlib.mop_drop_run(%s)", [nina.run_id])
    nina.run("COMMIT")
    assert db.value("SELECT count(*) FROM madlib.mop_output") == 1
    other.run("SELECT madlib.mop_housekeeping()")
    assert db.value("SELECT count(*) FROM madlib.mop_output") == 0
    other.close()


def test_an_output_table_is_kept_for_oneself_by_those_who_may_make_it(db, nina):
    db.run("CREATE SCHEMA private; CREATE SCHEMA common; GRANT ALL ON SCHEMA common TO nina")
    reserve = "SELECT madlib.mop_reserve(%s, 'models')"
    nina.run("BEGIN")
    for schema in ("private", "nowhere"):
        nina.run("SAVEPOINT s")
        with pytest.raises(Exception, match=f'permission denied for schema "{schema}"'):
            nina.run(reserve, [schema])
        nina.run("ROLLBACK TO s")
    assert nina.value(reserve, ["common"]) is True and nina.value(reserve, ["common"]) is True
    assert db.value(reserve, ["common"]) is False
    assert db.value("SELECT madlib.mop_reserve('common', 'other')") is True
    # a lock that somebody else takes after it was seen keeps nobody
    locks = db.run(
        "SELECT classid, objid, (classid::bigint << 32 | objid::bigint) AS key FROM pg_locks "
        "WHERE locktype = 'advisory' AND pid = %s",
        [nina.connection.info.backend_pid],
    )
    nina.run("ROLLBACK")
    nina.run('SELECT pg_advisory_lock(hashtextextended(\'pg_mop output "private"."models"\', 0))')
    other = db.another("nina")
    for lock in locks:
        other.run("SELECT pg_advisory_lock(%s)", [lock["key"]])
    assert locks and db.value(reserve, ["common"]) is True and db.value(reserve, ["private"]) is True
    for internal in (
        "mop_reservation(1, 'models', 1)",
        "mop_lock_run_shared(1)",
        "mop_lock_run_exclusive(1)",
        "mop_lock_stages_exclusive(1)",
        "mop_lock_stage_exclusive(1, 1)",
        "mop_lock_checkpoints_exclusive('{1}', '{1}')",
        "mop_lock_owner_exclusive(1)",
        "mop_lock_lost_runs_exclusive(1)",
        "mop_forget_outputs()",
        "mop_count_rows()",
        "mop_make_state_table('mine')",
        "mop_delete_state_tables(1)",
        "mop_delete_run(1)",
        "mop_owner_of('x')",
    ):
        assert "permission denied for function" in str(nina.error(f"SELECT madlib.{internal}")), internal
    other.close()
    db.run("DROP SCHEMA private, common")


@pytest.fixture
def training(db):
    """A session of a role that has what a training call needs, in a schema of its own; and the call."""
    db.run("CREATE ROLE tina LOGIN; GRANT mop_user TO tina; CREATE SCHEMA tina AUTHORIZATION tina")
    client = db.another("tina")
    client.run("SET search_path = tina, madlib, public; SET pg_mop.lock_timeout = '300s'")
    make_data(client, segments=2)
    load(client, "arch", dense())
    selection(client, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    yield client
    client.close()
    db.run("DELETE FROM madlib.mop_run; DROP OWNED BY tina; DROP ROLE tina")


def test_a_run_whose_role_lost_its_rights_on_the_way_is_running_no_more(db, training):
    """Although its session, which could not say so, goes on; once the rights are back, any session goes on with it."""
    with holding(db.another()):
        call = Calling(
            training, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 2, FALSE)"
        )
        assert eventually(lambda: db.value("SELECT count(*) FROM madlib.mop_runs WHERE status = 'running'"), 120)
        db.run("REVOKE mop_user FROM tina")
    assert "permission denied" in str(call.end())
    assert db.run("SELECT status, owner FROM madlib.mop_runs") == [{"status": "failed", "owner": "tina"}]
    db.run("GRANT mop_user TO tina")
    other = db.another("tina")
    other.run("SET search_path = tina, madlib, public")
    other.run("SELECT madlib.mop_resume(%s)", [db.value("SELECT run_id FROM madlib.mop_runs")])
    assert db.value("SELECT status FROM madlib.mop_runs") == "finished"
    other.close()


def test_views_of_states_work_after_a_call_has_dropped_those_of_another(db, training):
    """A run of averaged replicas keeps no states once its output is there: the next call drops their table."""
    training.run(
        "SELECT madlib.madlib_keras_fit('flowers_packed', 'fitted', 'arch', 1, %s, 'batch_size=8', 1)",
        [ADAM.format(0.05)],
    )
    training.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 1, FALSE)")
    assert db.value("SELECT count(*) FROM madlib.mop_state_table") == 1, "that of the second call's checkpoint"
    assert training.value("SELECT count(DISTINCT stage) FROM madlib.mop_departures") == 1
    assert (
        db.value(
            "SELECT count(*) FROM madlib.mop_stage_state m WHERE state_table IS NOT NULL AND NOT EXISTS (SELECT 1 "
            "FROM madlib.mop_state_table g WHERE (g.run_id, g.state_table) = (m.run_id, m.state_table))"
        )
        == 0
    )


def test_a_role_sees_its_own_limits_and_no_others(db):
    db.run(
        "DROP ROLE IF EXISTS mia, otto; CREATE ROLE mia LOGIN; CREATE ROLE otto LOGIN; GRANT mop_user TO mia; "
        "INSERT INTO madlib.mop_limit (role, sessions, threads) VALUES ('mia', 2, 1), ('otto', 7, NULL), (NULL, 5, 4)"
    )
    client, other = db.another("mia"), db.another("otto")
    limits = "SELECT role, sessions, threads, trainer_memory_mb, max_model_mb FROM madlib.mop_my_limits"
    assert [tuple(row.values()) for row in client.run(limits)] == [("mia", 2, 1, None, None)]
    assert "permission denied" in str(client.error("SELECT * FROM madlib.mop_limit"))
    assert "permission denied" in str(other.error(limits))  # it is no member of mop_user
    db.run("DELETE FROM madlib.mop_limit WHERE role = 'mia'")
    assert client.run(limits)[0]["sessions"] == 5, "the limits of all roles without a row of their own"
    client.close()
    other.close()
    db.run("DELETE FROM madlib.mop_limit; DROP OWNED BY mia, otto; DROP ROLE mia, otto")
