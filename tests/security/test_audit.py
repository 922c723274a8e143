"""The audit log: every act leaves a row in the name of who did it, and nobody else can write, change or delete one."""

import psycopg2
import pytest

from support.cluster import eventually
from support.forged import own_run
from support.workload import ADAM, dense, fit, last_run, load, make_data, selection

ROLES = ("acts", "others", "audits")


@pytest.fixture(scope="module")
def roles(db):
    """A role that acts, as itself and as a group; another one; one that reads the log."""
    for role in (*ROLES, "acting_group"):
        db.run(f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN")
    db.run("GRANT mop_user TO acts, others, acting_group; GRANT pg_read_all_settings TO audits; GRANT acting_group TO acts; "
           "GRANT CREATE ON SCHEMA public TO acts; DELETE FROM madlib.mop_audit_log")  # fmt: skip
    clients = {role: db.another(role) for role in ROLES}
    yield clients
    for client in clients.values():
        client.close()
    db.run("DELETE FROM madlib.mop_run; DELETE FROM madlib.mop_limit; DELETE FROM madlib.mop_audit_log")
    for role in (*ROLES, "acting_group"):
        db.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


def acts_of(client, run=None, of="true"):
    """[(act, role, login, details)] of a run, oldest first."""
    rows = client.run(
        f"SELECT act, role, login, details FROM madlib.mop_audit WHERE (run_id = %s OR %s IS NULL) AND {of} ORDER BY noted_at",
        [run, run],
    )
    return [(row["act"], row["role"], row["login"], row["details"]) for row in rows]


def begun(client):
    """The number of a run that a client's session has taken over."""
    run = own_run(client)
    client.run("SELECT madlib.mop_reopen_run(%s, backend) FROM madlib.mop_tokens", [run])
    return run


def test_a_run_leaves_who_began_ended_and_dropped_it(db, roles):
    acts = roles["acts"]
    make_data(acts, "audit_rows", segments=2)
    load(acts, "audit_arch", dense())
    selection(acts, "audit_mst", "audit_arch", [(1, ADAM.format(0.05), "batch_size=8")])
    run = fit(acts, "audit_rows_packed", "audit_models", "audit_mst", 1)
    (began, *begin, told), (ended, *end, status) = acts_of(acts, run)
    assert (began, begin, ended, end, status) == (
        "run",
        ["acts", "acts"],
        "end",
        ["acts", "acts"],
        {"status": "finished"},
    )
    assert told == {
        "function": "madlib_keras_fit_multiple_model", "source_table": "audit_rows_packed",
        "model_output_table": "audit_models", "configurations": 1, "num_iterations": 1, "replay_of": None,
    }  # fmt: skip
    acts.run("SELECT madlib.mop_replay(%s, 'audit_again')", [run])
    again = last_run(db)
    assert [row[0] for row in acts_of(acts, again)] == ["replay", "end"]
    assert acts_of(acts, again)[0][3]["replay_of"] == str(run)
    acts.run("SELECT madlib.mop_drop_states(%s)", [again])
    acts.run("BEGIN; SELECT madlib.mop_drop_run(%s); ROLLBACK", [again])
    assert [row[0] for row in acts_of(acts, again)] == ["replay", "end", "drop states"], (
        "what is rolled back was not done"
    )
    db.run("SELECT madlib.mop_drop_run(%s)", [again])
    assert acts_of(db, again)[-1] == (
        "drop run", "postgres", "postgres", {"owner": "acts", "model_output_table": "audit_again"},
    )  # fmt: skip
    assert len(acts_of(acts, again)) == 3, "a role sees its own acts"
    # a call that is rolled back has begun, and ended
    acts.run("BEGIN")
    fit(acts, "audit_rows_packed", "audit_late", "audit_mst", 1)
    acts.run("ROLLBACK")
    late = last_run(db)
    acts.run("SELECT madlib.mop_resume(%s)", [late])
    assert [row[0] for row in acts_of(acts, late)] == ["run", "end", "resume", "end"]
    # the role in force and the login may differ
    db.run("GRANT acts TO others")
    roles["others"].run("SET ROLE acts")
    fit(roles["others"], "audit_rows_packed", "audit_theirs", "audit_mst", 1)
    roles["others"].run("RESET ROLE")
    db.run("REVOKE acts FROM others")
    assert acts_of(acts, last_run(db))[0][:3] == ("run", "acts", "others")
    before = len(acts_of(db))
    acts.run("SELECT madlib.madlib_keras_evaluate('audit_models', 'audit_rows_packed', 'audit_eval', FALSE, 1)")
    assert len(acts_of(db)) == before


def test_changes_of_a_running_run_leave_what_was_and_what_is(db, roles):
    acts = roles["acts"]
    acts.run("SET application_name = 'pg_mop test'; SET ROLE acting_group")
    run = begun(acts)
    acts.run("SELECT madlib.mop_take_turn(%s, 2, 1, 0, 2, 1, 0)", [run])
    acts.run("SELECT madlib.mop_set_priority(%s, 4)", [run])
    acts.run("SELECT madlib.mop_set_sessions(%s, 3)", [run])
    acts.run("SELECT madlib.mop_stop_trial(%s, 1)", [run])
    secret = "optimizer='secret'" * 99
    acts.run("SELECT madlib.mop_add_trial(%s, 1, %s, NULL, 2)", [run, secret])
    db.run("SELECT madlib.mop_set_priority(%s, -1)", [run])
    acts.run("SELECT madlib.mop_close_run(%s, 2, 'cancelled', 'x'); RESET ROLE; RESET application_name", [run])
    group = ["acting_group", "acts"]
    rows = acts_of(db, run)[-6:]
    assert [row[0] for row in rows] == [
        "set priority", "set sessions", "stop trial", "add trial", "set priority", "end",
    ]  # fmt: skip
    assert [list(row[1:3]) for row in rows] == [*[group] * 4, ["postgres", "postgres"], group]
    assert [row[3] for row in rows] == [
        {"from": 0, "to": 4}, {"from": None, "to": 3}, {"mst_key": 1}, {"model_id": 1, "iterations": 2},
        {"from": 4, "to": -1}, {"status": "cancelled"},
    ]  # fmt: skip
    assert "secret" not in str(db.run("SELECT * FROM madlib.mop_audit_log"))


def test_a_run_ends_once_and_the_log_tells_if_its_session_was_lost(db, roles):
    acts, ends = roles["acts"], db.another("acts")
    ends.run("SET application_name = 'pg_mop test'")
    run, lost = begun(ends), own_run(acts)
    for outcome in ("cancelled", "failed", "finished"):
        ends.run("SELECT madlib.mop_close_run(%s, 2, %s, NULL)", [run, outcome])
    assert db.value("SELECT status FROM madlib.mop_run WHERE run_id = %s", [run]) == "cancelled"
    assert acts_of(acts, run, "act = 'end'")[1:] == [("end", "acts", "acts", {"status": "cancelled"})]
    # what has finished may fail yet, until its output is there
    ends.run("SELECT madlib.mop_reopen_run(%s, backend) FROM madlib.mop_tokens", [run])
    for outcome in ("finished", "finished", "failed", "finished", "failed"):
        ends.run("SELECT madlib.mop_close_run(%s, 3, %s, NULL)", [run, outcome])
    assert [row[3]["status"] for row in acts_of(acts, run, "act = 'end'")[2:]] == ["finished", "failed"]
    ends.run("SELECT madlib.mop_reopen_run(%s, backend) FROM madlib.mop_tokens", [lost])
    ends.close()
    now = "SELECT madlib.mop_status(status, coordinator_pid, coordinator_start, 'lost') FROM madlib.mop_run WHERE run_id = %s"
    assert eventually(lambda: db.value(now, [lost]) == "lost")
    acts.run("SELECT madlib.mop_housekeeping(); SELECT madlib.mop_housekeeping()")
    told = [row[3] for row in acts_of(acts, lost, "act = 'end'")[1:]]
    assert told == [{"status": "failed", "lost": True}]


def test_jobs_checkpoints_and_limits_leave_a_row(db, roles):
    acts = roles["acts"]
    job = acts.value("SELECT madlib.mop_submit('SELECT pg_sleep(60) /* hunter2 */')")
    assert eventually(lambda: acts.value("SELECT madlib.mop_cancel(%s)", [job]))
    acts.run("SELECT madlib.mop_drop_checkpoints()")
    assert acts_of(acts)[-3:] == [
        ("submit", "acts", "acts", {"job": job}), ("cancel", "acts", "acts", {"job": job}),
        ("drop checkpoints", "acts", "acts", {"checkpoints": 0}),
    ]  # fmt: skip
    assert "hunter2" not in str(db.run("SELECT * FROM madlib.mop_audit_log"))
    db.run("INSERT INTO madlib.mop_limit (role, sessions) VALUES ('acts', 2)")
    db.run("UPDATE madlib.mop_limit SET share = 3, sessions = 1 WHERE role = 'acts'")
    db.run("DELETE FROM madlib.mop_limit WHERE role = 'acts'")
    rows = acts_of(db, of="act LIKE '%%limits'")
    assert [row[:3] for row in rows] == [(f"{do} limits", *["postgres"] * 2) for do in ("insert", "update", "delete")]
    assert rows[1][3] == {
        "role": "acts",
        "changed": {"share": {"from": None, "to": 3}, "sessions": {"from": 2, "to": 1}},
    }
    db.run("INSERT INTO madlib.mop_limit (role, sessions) VALUES ('acts', 2); TRUNCATE madlib.mop_limit")
    assert acts_of(db, of="act LIKE '%%limits'")[-1] == ("truncate limits", "postgres", "postgres", None)
    assert acts_of(acts, of="act LIKE '%%limits'") == []


def test_what_is_on_no_table_of_the_catalog_leaves_a_row_too(db, roles):
    acts = roles["acts"]
    mine = "act IN ('drop packed', 'end trainers')"
    make_data(acts, "to_drop", segments=2)
    acts.run("BEGIN; SELECT madlib.mop_drop_packed('to_drop_packed'); ROLLBACK")
    assert acts_of(acts, of=mine) == [], "what is rolled back was not done"
    acts.run("SELECT madlib.mop_drop_packed('to_drop_packed'); SELECT madlib.mop_end_trainers()")
    dropped, ended = acts_of(acts, of=mine)
    assert dropped == ("drop packed", "acts", "acts", {"table": '"public"."to_drop_packed"', "servers": []})
    assert ended[:3] == ("end trainers", "acts", "acts") and ended[3]["trainers"] >= 0
    acts.run("BEGIN READ ONLY; SELECT madlib.mop_end_trainers(); ROLLBACK")
    assert len(acts_of(acts, of=mine)) == 2, "a transaction that can write nothing notes nothing"
    for act in ("run", "end", "trim audit", None):
        assert "no such act" in str(acts.error("SELECT madlib.mop_note_act(%s, '{}')", [act])), "no act can be made up"
    long = "SELECT madlib.mop_note_act('end trainers', json_build_object('x', repeat('x', 10001)))"
    assert "longer than 10000 bytes" in str(acts.error(long))
    # nor details: only what the act has is kept, and a table is one's own
    note, before = "SELECT madlib.mop_note_act(%s, %s)", len(acts_of(db))
    for act, details in (
        ("end trainers", None), ("end trainers", "[]"), ("end trainers", "{}"), ("end trainers", '{"trainers": -1}'),
        ("end trainers", '{"trainers": "x"}'), ("end trainers", '{"trainers": 10000000}'),
        ("drop packed", '{"trainers": 1}'), ("drop packed", '{"table": "none"}'), ("drop packed", '{"table": ["x"]}'),
        ("connect servers", '{"servers": ["x", "y"]}'), ("connect servers", '{"servers": "x"}'), ("connect servers", "3"),
    ):  # fmt: skip
        error = acts.error(note, [act, details])
        assert f'the act "{act}" has other details' in str(error), details
    theirs = '{"table": "\\"madlib\\".\\"mop_run\\""}'
    assert 'must be owner of table "madlib"."mop_run"' in str(acts.error(note, ["drop packed", theirs]))
    assert len(acts_of(db)) == before
    acts.run(note, ["end trainers", '{"trainers": 3, "x": "' + "x" * 900 + '"}'])
    own = '{"table": "\\"public\\".\\"to_drop\\"", "servers": ["x", 3, null], "more": 1}'
    acts.run(note, ["drop packed", own])
    assert [row[3] for row in acts_of(acts)[-2:]] == [
        {"trainers": 3}, {"table": '"public"."to_drop"', "servers": []},
    ]  # fmt: skip
    acts.run("DROP TABLE to_drop")


def test_nobody_else_writes_changes_or_deletes_a_row(db, roles):
    acts, others = roles["acts"], roles["others"]
    db.run("GRANT pg_write_all_data, pg_read_all_data TO others")
    run = begun(acts)
    rows = db.run("SELECT * FROM madlib.mop_audit_log ORDER BY noted_at")
    assert rows
    forged = "INSERT INTO madlib.mop_audit_log (act, role, login, who) VALUES ('x', 'acts', 'acts', 'acts'::regrole)"
    for client in (acts, others):
        for sql in (
            forged,
            "INSERT INTO madlib.mop_audit (act, run_id) VALUES ('x', 1)",
            "SELECT madlib.mop_audit_act('acts'::regrole, 'x', 1, '{}')",
            "UPDATE madlib.mop_audit SET act = 'x'",
            "DELETE FROM madlib.mop_audit",
            "TRUNCATE madlib.mop_audit_log",
            "SELECT madlib.mop_trim_audit('2100-01-01')",
            "SELECT madlib.mop_trim_audit('2000-01-01')",
        ):
            assert isinstance(
                client.error(sql), (psycopg2.errors.InsufficientPrivilege, psycopg2.errors.ObjectNotInPrerequisiteState)
            ), sql
    for sql in ("UPDATE madlib.mop_audit_log SET act = 'x'", "DELETE FROM madlib.mop_audit_log"):
        others.run(sql)  # (row security: it finds no row)
        assert isinstance(acts.error(sql), psycopg2.errors.InsufficientPrivilege)
    assert (
        others.run("SELECT * FROM madlib.mop_audit_log")
        == others.run("SELECT * FROM madlib.mop_audit WHERE role = 'acts'")
        == []
    )
    # nor in another's name by the functions that write rows
    assert "there is no run" in str(others.error("SELECT madlib.mop_close_run(%s, 2, 'failed', 'x')", [run]))
    token = acts.value("SELECT token FROM madlib.mop_tokens")
    for call in ("mop_drop(%s, true, %s)", "mop_want_sessions(%s, 1, %s)"):
        assert isinstance(others.error(f"SELECT madlib.{call}", [run, token]), psycopg2.errors.InsufficientPrivilege)
    assert db.run("SELECT * FROM madlib.mop_audit_log ORDER BY noted_at") == rows
    db.run("REVOKE pg_write_all_data, pg_read_all_data FROM others")


def test_auditors_see_all_and_only_superusers_trim(db, roles):
    audits = roles["audits"]
    assert {"acts", "acting_group", "postgres"} <= {row[1] for row in acts_of(audits)}
    assert isinstance(audits.error("SELECT madlib.mop_enroll()"), psycopg2.errors.InsufficientPrivilege)
    for bad in (None, "2100-01-01", "infinity"):
        error = db.error("SELECT madlib.mop_trim_audit(%s)", [bad])
        assert error.pgcode == "22023" and "SELECT madlib.mop_trim_audit(" in error.diag.message_hint
    count, half = len(acts_of(db)), db.value("SELECT noted_at FROM madlib.mop_audit ORDER BY 1 OFFSET 5 LIMIT 1")
    assert db.value("SELECT madlib.mop_trim_audit(%s)", [half]) == 5
    assert len(acts_of(db)) == count - 4 and acts_of(db)[-1][0] == "trim audit" and acts_of(db)[-1][3]["rows"] == 5


def test_a_dropped_roles_rows_stay_and_are_nobodys(db, roles):
    db.run("CREATE ROLE gone LOGIN; GRANT mop_user TO gone")
    gone = db.another("gone")
    own_run(gone)
    gone.close()
    db.run(
        "DELETE FROM madlib.mop_run; DROP OWNED BY gone; DROP ROLE gone; CREATE ROLE gone LOGIN; GRANT mop_user TO gone"
    )
    gone = db.another("gone")
    assert acts_of(gone) == [] and {row[1] for row in acts_of(db, of="role::text LIKE '%%gone%%'")} == {
        "unknown (gone)"
    }
    gone.close()
    db.run("DROP OWNED BY gone; DROP ROLE gone")
