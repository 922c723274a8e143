"""Roles that share what they train: what one takes over from another, and what it never learns."""

import json
import re

import pytest

from support.sharing import (
    FORGED,
    ITERATIONS,
    NARROW,
    NEVER,
    ROLES,
    WHOLE,
    all_of,
    asked,
    clients,
    data,
    forged_run,
    locks_of,
    metrics,
    order,
    packed,
    train,
    units,
    weights,
)
from support.workload import ADAM, selection

__all__ = ["clients", "data", "packed"]  # fixtures


def test_a_member_takes_over_what_another_has_trained(db, clients):
    ann, bob = clients["ann"], clients["bob"]
    one = train(ann)
    before = all_of(db, one)
    two = train(bob)
    assert (units(db, one), units(db, two)) == (WHOLE, 0)
    assert weights(db, "ann") == weights(db, "bob") and metrics(ann, one) == metrics(bob, two)
    assert order(ann, one) == order(bob, two) != []
    said = "\n".join(bob.connection.notices)
    assert "stages that a member of your group has trained are not trained again" in said
    # nothing tells either of the other's run
    assert not re.search(rf"\b{one}\b", said) and "ann" not in said
    assert bob.run("SELECT DISTINCT run_id, source_run FROM madlib.mop_stages") == [{"run_id": two, "source_run": two}]
    assert {row["run_id"] for row in bob.run("SELECT run_id FROM madlib.mop_runs")} == {two}
    assert bob.run("SELECT * FROM madlib.mop_taken_unit WHERE run_id <> %s", [two]) == []
    assert all_of(db, one) == before
    for client, other in ((ann, "bob"), (bob, "ann")):
        assert not any(other in str(row) for row in client.run("SELECT * FROM madlib.mop_audit"))
    acts = {"run", "end", "share training"}
    assert {row["act"] for row in ann.run("SELECT act FROM madlib.mop_audit")} >= acts
    assert bob.value("SELECT details FROM madlib.mop_audit WHERE act = 'take over stages'") == {
        "stages": 2 * ITERATIONS
    }
    # superusers see who gave what
    gave = (
        "SELECT DISTINCT o.role, t.giver_run FROM madlib.mop_taken_stage t JOIN madlib.mop_owner o ON o.owner = t.giver"
    )
    assert db.run(gave) == [{"role": "ann", "giver_run": one}]


def test_nothing_of_the_giver_is_locked(db, clients):
    """The giver could see a lock in its rows, and would wait for it."""
    one = train(clients["ann"])
    assert db.value("SELECT count(*) FROM madlib.mop_checkpoint WHERE run_id = %s", [one]) > 0
    before = locks_of(db, one)
    two = train(clients["bob"])
    assert units(db, two) == 0 and locks_of(db, one) == before
    assert db.value("SELECT count(*) FROM madlib.mop_taken_stage WHERE run_id = %s", [two]) == 2 * ITERATIONS


def test_a_run_that_is_dropped_during_the_takeover_is_not_half_taken_over(db, clients):
    """The giver's units are gone when they are copied; the state, before it, was still there."""
    ann, bob = clients["ann"], clients["bob"]
    one = train(ann)
    forged, _ = forged_run(bob, db, one, ["packed"])
    asked_for = [
        {"stage": row["stage"], "run": row["run_id"], "of": row["stage"], "state": False, "scored": False}
        for row in asked(bob, db, forged, one)[0]
    ]
    # (the list is revealed; then, as if between two statements of mop_adopt, the run loses its units)
    db.run(
        "CREATE FUNCTION rows.lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"DELETE FROM madlib.mop_unit WHERE run_id = {one}; RETURN NEW; END $$; CREATE TRIGGER lose BEFORE UPDATE ON "
        "madlib.mop_stage_state FOR EACH ROW EXECUTE FUNCTION rows.lose()"
    )
    adopt = "SELECT madlib.mop_adopt(%s, 1, %s)"
    # (the trigger acts with the rights of the extension's owner, as mop_adopt does)
    try:
        assert bob.value(adopt, [forged, json.dumps(asked_for)]) is False
    finally:
        db.run("DROP TRIGGER lose ON madlib.mop_stage_state; DROP FUNCTION rows.lose()")
    assert db.value("SELECT count(*) FROM madlib.mop_taken_stage WHERE run_id = %s", [forged]) == 0
    assert units(db, one) == WHOLE and bob.value(adopt, [forged, json.dumps(asked_for)]) is True


def test_both_directions_and_more_iterations(db, clients):
    ann, bob = clients["ann"], clients["bob"]
    assert units(db, train(bob, iterations=1)) == 4
    assert units(db, train(ann, iterations=2)) == 4
    bob.run("DROP TABLE m, m_info, m_summary")
    # (ann's first iteration is bob's own, which ann does not give on: the paths have different beginnings)
    assert units(db, train(bob, iterations=ITERATIONS)) == 8


@pytest.mark.parametrize("why", NEVER)
def test_roles_share_only_what_both_may_read_and_want(db, clients, why):
    train(clients["ann"])
    db.run(NEVER[why])
    assert units(db, train(clients["bob"])) == WHOLE
    assert "member of your group" not in "\n".join(clients["bob"].connection.notices)
    db.run("DROP POLICY IF EXISTS p ON packed")


def test_runs_from_before_are_not_shared(db, clients):
    ann, bob = clients["ann"], clients["bob"]
    ann.run("SELECT madlib.mop_share_training(NULL)")
    train(ann)
    ann.run("SELECT madlib.mop_share_training('team')")
    assert units(db, train(bob)) == WHOLE


@pytest.mark.parametrize("ends", ["mop_share_training(NULL)", "mop_share_training('ann')"])
def test_who_ends_the_sharing_gives_nothing_more(db, clients, ends):
    ann, bob = clients["ann"], clients["bob"]
    train(ann)
    ann.run(f"SELECT madlib.{ends}; SELECT madlib.mop_share_training('team')")
    assert units(db, train(bob)) == WHOLE


def test_a_role_outside_the_group_shares_nothing_in_either_direction(db, clients):
    ann, eve = clients["ann"], clients["eve"]
    error = eve.error("SELECT madlib.mop_share_training('team')")
    assert error.pgcode == "42501" and 'role "eve" is not a member of role "team"' in str(error)
    train(ann)
    assert units(db, train(eve)) == WHOLE
    db.run("DELETE FROM madlib.mop_run WHERE owner = (SELECT owner FROM madlib.mop_owner WHERE role = 'ann')")
    ann.run("DROP TABLE m, m_info, m_summary")
    assert units(db, train(ann)) == WHOLE


@pytest.mark.parametrize(
    "group, code", [("nobody", "42704"), ("x" * 100, "42704"), ("", "42704"), ("postgres", "42501")]
)
def test_groups_that_do_not_fit(clients, group, code):
    assert clients["eve"].error("SELECT madlib.mop_share_training(%s)", [group]).pgcode == code


@pytest.mark.parametrize(
    "why, when", [*((why, "before") for why in NARROW), ("no right on the table", "after"), ("row security", "after")]
)
def test_a_role_with_narrower_rights_learns_nothing_by_a_forged_run(db, clients, why, when):
    """bob knows the identities of all stages, and the fingerprints of all rows, of ann's run."""
    ann, bob = clients["ann"], clients["bob"]
    one = train(ann)
    if when == "before":
        db.run(NARROW[why])
        forged, shares = forged_run(bob, db, one, ["packed"])
        assert shares is False
    else:
        forged, shares = forged_run(bob, db, one, ["packed"])
        assert shares is True and len(asked(bob, db, forged, one)[0]) == 2 * ITERATIONS, "as it is, bob may"
        aliases = asked(bob, db, forged, one)[0]
        db.run(NARROW[why])
        taken = [
            {"stage": row["stage"], "run": row["run_id"], "of": row["stage"], "state": row["state"], "scored": True}
            for row in aliases
        ]
        assert bob.value("SELECT madlib.mop_adopt(%s, 1, %s)", [forged, json.dumps(taken)]) is False
    assert asked(bob, db, forged, one) == [[], [], []]
    assert db.value("SELECT count(*) FROM madlib.mop_taken_stage") == 0
    db.run("DROP POLICY IF EXISTS p ON packed")


def test_rows_that_are_gone_are_not_readable(db, clients):
    """ann has trained on a row that was deleted before bob could read it."""
    ann, bob = clients["ann"], clients["bob"]
    one = train(ann)
    db.run("DELETE FROM packed WHERE buffer_id = 0")
    forged, shares = forged_run(bob, db, one, ["packed"])
    assert shares is True and asked(bob, db, forged, one) == [[], [], []]


def test_a_priority_that_is_no_number_stops_no_other_run(db, clients):
    """A session opens runs with parameters of its own, and gives itself a name under which its runs go on."""
    ann, bob = clients["ann"], clients["bob"]
    ann.run("SET application_name = 'pg_mop'")
    one = train(ann)
    hers, _ = forged_run(ann, db, one, ["packed"])
    his, _ = forged_run(bob, db, one, ["packed"])
    settings = json.dumps({"settings": {"reuse": True, "priority": 0}})
    db.run("UPDATE madlib.mop_run SET parameters = %s WHERE run_id = %s", [settings, hers])
    assert len(asked(bob, db, his, one)[1]) == 1
    db.run("UPDATE madlib.mop_run SET parameters = %s WHERE run_id = %s", [settings.replace("0", '"x"'), hers])
    assert asked(bob, db, his, one)[1] == []


def test_a_member_reaches_no_run_by_its_number(db, clients):
    ann, bob = clients["ann"], clients["bob"]
    one = train(ann)
    forged, _ = forged_run(bob, db, one, ["packed"])
    for run in (one, -one, -1):
        stage = [{"stage": 1, "run": run, "of": 1, "state": False, "scored": False, "shared": True}]
        assert bob.value("SELECT madlib.mop_adopt(%s, 1, %s)", [forged, json.dumps(stage)]) is False
    for function in (
        "mop_givers(1, 10)", "mop_alias(1, 10)", "mop_reveal(1, '[]', 10)", "mop_may_give(1, 1)", "mop_group_of(10)",
        "mop_digest_of_rows(10, 1)", "mop_bare('{1}')",
        "mop_stages_from_weights(1)", "mop_may_want(1, '{}')", "mop_may_read_all(10, 1)", "mop_note_taken(1, 1, 1, 1, 10)",
    ):  # fmt: skip
        assert "permission denied for function" in str(bob.error(f"SELECT madlib.{function}")), function
    for table in ("mop_sharing", "mop_shared_run", "mop_taken_stage"):
        assert "permission denied" in str(bob.error(f"SELECT * FROM madlib.{table}"))
        assert "permission denied" in str(bob.error(f"DELETE FROM madlib.{table}"))


def test_an_alias_is_good_for_one_role_alone(db, clients):
    ann, bob, eve = (clients[role] for role in ROLES)
    db.run("GRANT team TO eve")
    eve.run("SELECT madlib.mop_share_training('team')")
    one = train(ann)
    (his, _), (hers, _) = (forged_run(client, db, one, ["packed"]) for client in (bob, eve))
    aliases = [{row["run_id"] for row in asked(client, db, run, one)[0]} for client, run in ((bob, his), (eve, hers))]
    assert all(len(found) == 1 for found in aliases) and aliases[0] != aliases[1]
    stolen = [{"stage": 1, "run": aliases[0].pop(), "of": 1, "state": False, "scored": False}]
    assert eve.value("SELECT madlib.mop_adopt(%s, 1, %s)", [hers, json.dumps(stolen)]) is False
    db.run("REVOKE team FROM eve")


@pytest.mark.parametrize(
    "change", ["CREATE INDEX i ON rows.packed (__dist_key__)", "CREATE STATISTICS rows.i ON x, y FROM rows.packed"]
)
def test_a_table_is_locked_before_it_is_looked_at_and_then_given_back(db, clients, change):
    """What begins after the look would be evaluated; what has begun is waited for, though not for long."""
    other = db.another()
    table, bob = (db.value(f"SELECT {name}::oid::bigint") for name in ("'rows.packed'::regclass", "'bob'::regrole"))
    digest = "SELECT madlib.mop_digest_of_rows(%s::oid, %s::oid)"
    try:
        other.run(f"BEGIN; {change}")
        assert db.value(digest, [bob, table]) is None
        other.run("ROLLBACK; BEGIN")
        assert other.value(digest, [bob, table]) is not None
        locks = "SELECT count(*) FROM pg_locks WHERE relation = %s AND pid = %s"
        assert db.value(locks, [table, other.connection.info.backend_pid]) == 0
        db.run(f"SET lock_timeout = '5s'; {change}; RESET lock_timeout; DROP {change.split()[1]} rows.i")
    finally:
        other.close()


def test_partitions_are_read(db, clients):
    bob = clients["bob"]
    db.run("DROP SCHEMA bob CASCADE; CREATE SCHEMA bob AUTHORIZATION bob")
    bob.run(
        'CREATE TABLE bob."a ""b" (__dist_key__ int) PARTITION BY LIST (__dist_key__); CREATE TABLE bob.p PARTITION OF '
        'bob."a ""b" FOR VALUES IN (1); INSERT INTO bob."a ""b" VALUES (1)'
    )
    table, who = (
        db.value(f"SELECT '{name}'::{kind}::oid::bigint")
        for name, kind in (('bob."a ""b"', "regclass"), ("bob", "regrole"))
    )
    digest = "SELECT madlib.mop_digest_of_rows(%s::oid, %s::oid)"
    first = db.value(digest, [who, table])
    assert re.fullmatch("[0-9a-f]{64}", first) and db.value(digest, [who, table]) == first
    bob.run("INSERT INTO bob.p VALUES (1)")
    assert db.value(digest, [who, table]) not in (first, None)
    ann = db.value("SELECT 'ann'::regrole::oid::bigint")
    assert db.value(digest, [ann, table]) is None
    # while somebody changes the table, nobody waits for long
    bob.run('BEGIN; ALTER TABLE bob."a ""b" ADD COLUMN c int')
    assert db.value(digest, [who, table]) is None
    bob.run("ROLLBACK")
    db.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert db.value(digest, [who, table]) is None, "an old snapshot may have other names"
    db.run("ROLLBACK")


def test_a_function_of_another_role_shares_nothing_in_ones_name(db, clients):
    """bob's SECURITY DEFINER function in ann's session says what bob shares, and a function without it acts as ann."""
    ann, bob = clients["ann"], clients["bob"]
    ann.run("SELECT madlib.mop_share_training(NULL)")
    bob.run(
        "GRANT USAGE ON SCHEMA bob TO ann; CREATE FUNCTION bob.share() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ "
        "BEGIN PERFORM madlib.mop_share_training('team'); END $$"
    )
    ann.run("SELECT bob.share()")
    assert ann.run("SELECT * FROM madlib.mop_my_sharing") == []
    token = bob.value("SELECT token FROM madlib.mop_tokens")
    assert "no token of this transaction" in str(ann.error("SELECT madlib.mop_put_sharing('team', %s)", [token]))


def test_another_search_path_leads_to_no_function_of_a_user(db, clients):
    bob = clients["bob"]
    db.run("DROP SCHEMA bob CASCADE; CREATE SCHEMA bob AUTHORIZATION bob")
    bob.run(
        "CREATE FUNCTION bob.pg_has_role(oid, oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'; CREATE FUNCTION "
        "bob.has_table_privilege(oid, oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'; "
        "SET search_path = bob, pg_catalog, rows"
    )
    db.run("REVOKE team FROM bob")
    assert bob.error("SELECT madlib.mop_share_training('team')").pgcode == "42501"
    train(clients["ann"])
    assert units(db, train(bob)) == WHOLE


def test_forged_metrics_are_measured_again(db, clients):
    ann, bob = clients["ann"], clients["bob"]
    rates = [0.001 * number for number in range(1, 2 + len(FORGED) // ITERATIONS)]
    selection(db, "many", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in rates])
    db.run("GRANT SELECT ON many, many_summary TO ann, bob")
    one = train(ann, "many")
    kept = metrics(ann, one)
    stages = db.run("SELECT stage FROM madlib.mop_metric WHERE run_id = %s ORDER BY 1", [one])
    assert len(stages) >= len(FORGED)
    for (column, value), row in zip(FORGED, stages):
        db.run(
            f"UPDATE madlib.mop_metric SET {column} = %s WHERE (run_id, stage) = (%s, %s)", [value, one, row["stage"]]
        )
    two = train(bob, "many")
    assert metrics(bob, two) == kept and units(db, two, "evaluate") >= len(FORGED)


@pytest.mark.parametrize(
    "number, is_one",
    [
        *((number, True) for number in ("0", "-0.0", "1", "-2.5", "1e3", "1E+30", "1.7976931348623157e308", "5e-324", "0e999")),
        *((number, False) for number in ("1.7976931348623159e308", "4e-324", "1e1000", "NaN", "", "1e", "1e-999", "9" * 101)),
    ],
)  # fmt: skip
def test_numbers_that_fit(db, number, is_one):
    assert db.value("SELECT madlib.mop_is_double(%s)", [number]) is is_one
    if is_one:
        assert db.value("SELECT %s::double precision", [number]) == float(number)
