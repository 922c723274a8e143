"""Roles that share what they train: what one takes over from another, and what it never learns."""

import json
import re

import numpy as np
import pytest

from support.client import Calling
from support.cluster import eventually
from support.workload import ADAM, dense, holding, layer, load, make_data, needs_jax, pickled, selection, sequential

SETTINGS = "SET pg_mop.seed = 5; SET pg_mop.reuse = on; SET pg_mop.kernel = 'plain'; SET pg_mop.chain_seconds = 0.2"
ITERATIONS = 3
MEMBERS = ("ann", "bob")
ROLES = (*MEMBERS, "eve")


@pytest.fixture(scope="module", autouse=True)
def data(db):
    """Packed rows that all roles may read, and the roles: ann and bob are members of `team`, eve is not."""
    names = ", ".join((*ROLES, "team"))
    db.run(f"DROP ROLE IF EXISTS {names}; CREATE ROLE team")
    for role in ROLES:
        db.run(f"CREATE ROLE {role} LOGIN; GRANT mop_user TO {role}; CREATE SCHEMA {role} AUTHORIZATION {role}")
    db.run("GRANT team TO ann, bob; CREATE SCHEMA rows; SET search_path = rows")
    make_data(db, rows=60, segments=2)
    db.run(
        "ALTER TABLE flowers_packed RENAME TO original; ALTER TABLE flowers_packed_summary RENAME TO original_summary"
    )
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.01, 0.02)])
    selection(db, "long", "arch", [(1, ADAM.format(0.03), "batch_size=2, epochs=3")])
    db.run(
        f"GRANT USAGE ON SCHEMA rows TO {', '.join(ROLES)}; GRANT SELECT ON ALL TABLES IN SCHEMA rows TO {', '.join(ROLES)}"
    )
    yield
    db.run(f"RESET search_path; DELETE FROM madlib.mop_run; DROP OWNED BY {names} CASCADE; DROP ROLE {names}")


@pytest.fixture
def packed(db):
    """A new packed table, rows.packed: plain, readable by all roles; no run knows it."""
    db.run(
        "DROP TABLE IF EXISTS packed, packed_summary CASCADE; DELETE FROM madlib.mop_run; DELETE FROM madlib.mop_sharing; "
        "CREATE TABLE packed AS TABLE original; CREATE TABLE packed_summary AS TABLE original_summary; "
        "REVOKE SELECT ON packed FROM PUBLIC; GRANT SELECT ON packed, packed_summary TO ann, bob, eve; "
        "GRANT team TO ann, bob; GRANT USAGE ON SCHEMA rows TO ann, bob, eve"
    )
    return "rows.packed"


@pytest.fixture
def clients(db, packed):
    """Sessions of ann, bob and eve. ann and bob share with the team."""
    found = {role: db.another(role) for role in ROLES}
    for role, client in found.items():
        client.run(f"SET search_path = {role}, rows; {SETTINGS}")
        client.run("DROP TABLE IF EXISTS m, m_info, m_summary, m_trials, again, again_info, again_summary")
    for role in MEMBERS:
        found[role].run("SELECT madlib.mop_share_training('team')")
    yield found
    for client in found.values():
        client.close()


def call(selection_table="mst", source="packed", iterations=ITERATIONS, output="m", validation="NULL"):
    return (
        f"SELECT madlib.madlib_keras_fit_multiple_model('{source}', '{output}', '{selection_table}', {iterations}, FALSE, "
        f"{validation}, 1)"
    )


def train(client, *args, **named):
    """Train; returns the run's number."""
    del client.connection.notices[:]
    client.run(call(*args, **named))
    return client.value("SELECT max(run_id) FROM madlib.mop_runs WHERE status = 'finished'")


def units(db, run_id, kind="train"):
    """How many units a run has done itself."""
    return db.value(
        "SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND kind = %s AND status = 'finished'", [run_id, kind]
    )


WHOLE = 2 * 2 * ITERATIONS  # training units of `mst`
SEARCH = (
    "SELECT madlib.mop_search('packed', 'm', 'ann.own', $s${\"model_id\": [1, 2], \"loss\": [\"categorical_crossentropy\"], "
    '"metrics": [["accuracy"]], "batch_size": [8], "optimizer_params_list": [{"optimizer": ["Adam"], '
    "\"lr\": [0.001, 0.1, \"log\"]}]}$s$, 'random', 'trials=6, iterations=2', 'loss')"
)


def weights(db, role, table="m"):
    return db.run(f"SELECT mst_key, md5(model_weights) AS weights FROM {role}.{table} ORDER BY 1")


def metrics(client, run_id):
    return client.run(
        "SELECT mst_key, iteration, dataset, name, value FROM madlib.mop_metrics WHERE run_id = %s ORDER BY 1, 2, 3, 4",
        [run_id],
    )


def order(client, run_id):
    return client.run(
        "SELECT mst_key, iteration, position, segment FROM madlib.mop_visit_order WHERE run_id = %s ORDER BY 1, 2, 3",
        [run_id],
    )


def all_of(db, run_id):
    """All that the catalog has of a run, but what tells when it was looked at."""
    tables = "run configuration stage request segment unit stage_state state_table metric checkpoint taken_unit".split()
    return [
        db.run(f"SELECT t::text FROM madlib.mop_{table} t WHERE run_id = %s ORDER BY 1", [run_id]) for table in tables
    ]


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


def locks_of(db, run_id):
    """Who has locked the catalog's rows of a run: the transactions, by table and row."""
    tables = "run configuration stage request unit stage_state state_table metric checkpoint segment shared_run".split()
    found = [
        db.run(
            f"SELECT ctid::text, xmin::text, xmax::text FROM madlib.mop_{table} WHERE run_id = %s ORDER BY 1", [run_id]
        )
        for table in tables
    ]
    owners = "SELECT ctid::text, xmax::text FROM madlib.mop_owner WHERE role = 'ann'"
    return [*found, db.run(owners)]


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


def test_the_giver_drops_its_run_and_the_taker_loses_nothing(db, clients):
    ann, bob = clients["ann"], clients["bob"]
    one = train(ann)
    two = train(bob)
    ann.run("SELECT madlib.mop_drop_run(%s); SELECT madlib.mop_share_training(NULL)", [one])
    again = bob.value("SELECT madlib.mop_replay(%s, 'again')", [two])
    assert again is not None
    assert weights(db, "bob") == weights(db, "bob", "again") and len(order(bob, two)) == WHOLE
    bob.run("DROP TABLE m, m_info, m_summary")
    assert units(db, train(bob)) == 0, "its own run is taken over as ever"
    assert "stages that run" in "\n".join(bob.connection.notices)


@needs_jax
def test_a_replay_of_stages_of_another_role_takes_as_many_devices(db, clients):
    ann, bob = clients["ann"], clients["bob"]
    wide = [layer("Dense", name=name, units=800, activation="relu") for name in ("first", "second")]
    load(db, "wide", sequential("wide", [4], *wide, layer("Dense", name="out", units=3, activation="softmax")))
    selection(db, "wide_mst", "wide", [(1, ADAM.format(0.01).replace("Adam", "SGD"), "batch_size=50")])
    db.run("GRANT SELECT ON ALL TABLES IN SCHEMA rows TO ann, bob")
    for client in (ann, bob):
        client.run("SET pg_mop.keras_backend = 'jax'; SET pg_mop.threads = 1")
        client.run("SET pg_mop.most_devices = 2; SET pg_mop.device_memory_mb = 8")
    one = train(ann, "wide_mst", iterations=1)
    two = train(bob, "wide_mst", iterations=1)
    devices = "SELECT DISTINCT devices FROM madlib.mop_units WHERE run_id = %s AND kind = 'train'"
    assert ann.run(devices, [one]) == [{"devices": 2}] and units(db, two) == 0
    bob.run("RESET pg_mop.device_memory_mb; SET pg_mop.reuse = off; SELECT madlib.mop_replay(%s, 'again')", [two])
    assert bob.run(devices, [bob.value("SELECT max(run_id) FROM madlib.mop_runs")]) == [{"devices": 2}]
    found = [bob.value(f"SELECT model_weights FROM bob.{table}") for table in ("m", "again")]
    one, other = (np.frombuffer(bytes(state), "<f4") for state in found)
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_both_directions_and_more_iterations(db, clients):
    ann, bob = clients["ann"], clients["bob"]
    assert units(db, train(bob, iterations=1)) == 4
    assert units(db, train(ann, iterations=2)) == 4
    bob.run("DROP TABLE m, m_info, m_summary")
    # (ann's first iteration is bob's own, which ann does not give on: the paths have different beginnings)
    assert units(db, train(bob, iterations=ITERATIONS)) == 8


NEVER = {
    "bob has not said so": "DELETE FROM madlib.mop_sharing s USING madlib.mop_owner o "
    "WHERE o.owner = s.owner AND o.role = 'bob'",
    "bob has left the group": "REVOKE team FROM bob",
    "ann has left the group": "REVOKE team FROM ann",
    "bob sees other rows": "ALTER TABLE packed ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON packed TO bob, ann USING (true)",
    "a row was written": "UPDATE packed SET buffer_id = buffer_id WHERE buffer_id = 0",
    "the rows are a copy": "CREATE TABLE copy AS TABLE packed; DROP TABLE packed; ALTER TABLE copy RENAME TO packed; "
    "GRANT SELECT ON packed TO ann, bob, eve",
}


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


def test_a_role_sees_what_it_has_said(db, clients):
    ann = clients["ann"]
    said = "SELECT group_role, in_force FROM madlib.mop_my_sharing"
    assert ann.run(said) == [{"group_role": "team", "in_force": True}]
    db.run("REVOKE team FROM ann")
    assert ann.run(said) == [{"group_role": "team", "in_force": False}]
    assert clients["eve"].run(said) == []
    ann.run("SELECT madlib.mop_share_training(NULL)")
    assert ann.run(said) == []


# --- attacks ----------------------------------------------------------------------------------------------


def forged_run(client, db, like, tables):
    """A run of the client's that claims to be the run `like`: its stages, its segments, its rows."""
    facts = db.run("SELECT row_to_json(r) AS r FROM madlib.mop_run r WHERE run_id = %s", [like])[0]["r"]
    run = {**facts, "coordinator": client.value("SELECT backend FROM madlib.mop_tokens")}
    segments = db.value("SELECT json_agg(s) FROM madlib.mop_segment s WHERE run_id = %s", [like])
    run_id = client.value(
        "SELECT madlib.mop_open_run(%s, %s)", [json.dumps(run), json.dumps([{**s, "copies": []} for s in segments])]
    )
    rows = [
        db.value(f"SELECT json_agg(t) FROM madlib.mop_{table} t WHERE run_id = %s", [like])
        for table in ("configuration", "stage", "request")
    ]
    rows[1] = [{**row, "version": 0} for row in rows[1]]
    client.run("SELECT madlib.mop_ask(%s, 1, %s, %s, %s)", [run_id, *map(json.dumps, rows)])
    oids = [db.value("SELECT %s::regclass::oid::bigint", [table]) for table in tables]
    shares = client.value(
        "SELECT madlib.mop_share_run(%s, 1, %s::oid, %s::oid)", [run_id, *oids, *[None] * (2 - len(oids))]
    )
    return run_id, shares


def asked(client, db, run_id, like):
    """What the functions that a coordinator asks with tell of the stages of another run."""
    names = [row["identity"] for row in db.run("SELECT identity FROM madlib.mop_stage WHERE run_id = %s", [like])]
    return [
        client.run("SELECT * FROM madlib.mop_known_shared(%s, %s, '{}')", [run_id, names]),
        client.run("SELECT * FROM madlib.mop_shared_beside(%s, -100)", [run_id]),
        client.run("SELECT * FROM madlib.mop_shared_stages_beside(%s, '{-1}', %s)", [run_id, names]),
    ]


NARROW = {
    "no right on the table": "REVOKE SELECT ON packed FROM bob",
    "rights on columns alone": "REVOKE SELECT ON packed FROM bob; GRANT SELECT (x, y, buffer_id) ON packed TO bob",
    "no right on the schema": "REVOKE USAGE ON SCHEMA rows FROM bob",
    "row security": "ALTER TABLE packed ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON packed TO bob USING (buffer_id = 0)",
}


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


HOSTILE = {
    "a view": "CREATE VIEW bob.t AS SELECT bob.spring(1) AS ctid, 1 AS xmin, 1 AS __dist_key__",
    "a view over the rows": "CREATE VIEW bob.t AS SELECT *, bob.spring(1) FROM rows.packed",
    "a table with row security": "CREATE TABLE bob.t (__dist_key__ int); INSERT INTO bob.t VALUES (1); ALTER TABLE bob.t "
    "ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY p ON bob.t USING (bob.spring(1) > 0)",
    "a partition that is a foreign table": "CREATE TABLE bob.t (__dist_key__ int) PARTITION BY LIST (__dist_key__); "
    "CREATE FOREIGN TABLE bob.f PARTITION OF bob.t FOR VALUES IN (1) SERVER trap",
    "a temporary table": "CREATE TEMP TABLE t AS SELECT 1 AS __dist_key__",
    "an ordinary table": "CREATE TABLE bob.t AS SELECT 1 AS a",
    "an empty table": "CREATE TABLE bob.t (__dist_key__ int)",
    "no table": "CREATE TYPE bob.t AS (__dist_key__ int)",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_table_that_is_no_plain_packed_table_is_not_read(db, clients, what):
    bob = clients["bob"]
    db.run(
        "CREATE EXTENSION IF NOT EXISTS postgres_fdw; CREATE SERVER IF NOT EXISTS trap FOREIGN DATA WRAPPER postgres_fdw; "
        "GRANT USAGE ON FOREIGN SERVER trap TO bob; DROP TABLE IF EXISTS sprung; CREATE TABLE sprung (who name); "
        "GRANT INSERT ON sprung TO PUBLIC"
    )
    db.run("DROP SCHEMA bob CASCADE; CREATE SCHEMA bob AUTHORIZATION bob")
    bob.run(
        "CREATE FUNCTION bob.spring(integer) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO rows.sprung VALUES (current_user); RETURN 1; END $$"
    )
    one = train(clients["ann"])
    bob.run(HOSTILE[what])
    oid = bob.value("SELECT max(oid)::bigint FROM pg_class WHERE relname = 't' AND relowner = 'bob'::regrole")
    forged, _ = forged_run(bob, db, one, ["packed"])
    db.run("DELETE FROM madlib.mop_shared_run WHERE run_id = %s", [forged])
    assert bob.value("SELECT madlib.mop_share_run(%s, 1, %s::oid, NULL)", [forged, oid]) is False
    assert db.value("SELECT count(*) FROM sprung") == 0


# what PostgreSQL may execute for a query of a plain table, with the rights of whoever asks: `bob.still` is IMMUTABLE
HANGING = {
    "an expression in an index": "CREATE INDEX ON bob.t ((bob.still(1)))",
    "the predicate of an index": "CREATE INDEX ON bob.t (__dist_key__) WHERE bob.still(1) > 0",
    "an exclusion constraint": "ALTER TABLE bob.t ADD EXCLUDE USING btree ((bob.still(1) + __dist_key__) WITH =)",
    "an expression in statistics": "CREATE STATISTICS bob.s ON (bob.still(1) + __dist_key__) FROM bob.t",
    "an index of a partition": "DROP TABLE bob.t; CREATE TABLE bob.t (__dist_key__ int) PARTITION BY LIST (__dist_key__); "
    "CREATE TABLE bob.p PARTITION OF bob.t FOR VALUES IN (1); INSERT INTO bob.t VALUES (1); "
    "CREATE INDEX ON bob.p ((bob.still(1)))",
    "an index of a child": "CREATE TABLE bob.p () INHERITS (bob.t); INSERT INTO bob.p VALUES (2); "
    "CREATE INDEX ON bob.p ((bob.still(1)))",
    "a constraint": "ALTER TABLE bob.t ADD CHECK (bob.still(__dist_key__) > 0)",
    "a default": "ALTER TABLE bob.t ADD COLUMN a int DEFAULT bob.still(1)",
    "a generated column": "ALTER TABLE bob.t ADD COLUMN a int GENERATED ALWAYS AS (bob.still(__dist_key__)) STORED",
    "an expression that makes partitions": "DROP TABLE bob.t; CREATE TABLE bob.t (__dist_key__ int) "
    "PARTITION BY LIST ((bob.still(1) + __dist_key__)); CREATE TABLE bob.p PARTITION OF bob.t DEFAULT; "
    "INSERT INTO bob.t VALUES (1)",
    "a type of the user": "CREATE DOMAIN bob.d AS int CHECK (bob.still(1) > 0); ALTER TABLE bob.t ADD COLUMN a bob.d",
    "a rule": "CREATE RULE r AS ON INSERT TO bob.t DO ALSO SELECT bob.still(1)",
}
EVALUATED = (
    "an expression in an index",
    "the predicate of an index",
    "an exclusion constraint",
    "an expression in statistics",
)


@pytest.mark.parametrize("what", HANGING)
def test_nothing_that_hangs_on_a_table_runs_as_the_owner(db, clients, what):
    bob = clients["bob"]
    db.run("DROP TABLE IF EXISTS sprung; CREATE TABLE sprung (who name); GRANT INSERT ON sprung TO PUBLIC")
    db.run("DROP SCHEMA bob CASCADE; CREATE SCHEMA bob AUTHORIZATION bob")
    bob.run(
        "CREATE FUNCTION bob.spring() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN IF current_user <> 'bob' THEN "
        "INSERT INTO rows.sprung VALUES (current_user); END IF; RETURN 1; END $$; "
        "CREATE FUNCTION bob.still(integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN "
        "RETURN bob.spring(); END $$; CREATE TABLE bob.t (__dist_key__ int PRIMARY KEY); INSERT INTO bob.t VALUES (1)"
    )
    forged, shares = forged_run(bob, db, train(clients["ann"]), ["bob.t"])
    assert shares is True, "a plain table with an index of a column"
    db.run("DELETE FROM madlib.mop_shared_run WHERE run_id = %s", [forged])
    bob.run(HANGING[what])
    assert db.value("SELECT count(*) FROM sprung") == 0
    share = "SELECT madlib.mop_share_run(%s, 1, 'bob.t'::regclass, NULL)"
    assert bob.value(share, [forged]) is False and db.value("SELECT count(*) FROM sprung") == 0
    bob.run("BEGIN")  # all at once, in the session's own transaction
    assert bob.value(share, [forged]) is False
    bob.run("COMMIT")
    assert db.value("SELECT count(*) FROM sprung") == 0
    if what in EVALUATED:
        db.run("SELECT ctid FROM ONLY bob.t")
        assert db.value("SELECT count(*) FROM sprung") > 0, "what it would have executed"
    db.run("DROP SCHEMA bob CASCADE; CREATE SCHEMA bob AUTHORIZATION bob")


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


CHANGED = {
    "renamed": "ALTER TABLE packed RENAME x TO z; ALTER TABLE packed RENAME y TO x; ALTER TABLE packed RENAME z TO y",
    "dropped": "ALTER TABLE packed DROP COLUMN y",
    "added": "ALTER TABLE packed ADD COLUMN z integer",
}


@pytest.mark.parametrize("what", CHANGED)
def test_other_columns_are_other_rows(db, clients, what):
    """No change of columns writes the rows again."""
    ann, bob = clients["ann"], clients["bob"]
    one = train(ann)
    forged, shares = forged_run(bob, db, one, ["packed"])
    assert shares is True and len(asked(bob, db, forged, one)[0]) == 2 * ITERATIONS
    taken = [
        {"stage": row["stage"], "run": row["run_id"], "of": row["stage"], "state": row["state"], "scored": True}
        for row in asked(bob, db, forged, one)[0]
    ]
    before = db.run("SELECT ctid::text, xmin::text FROM packed ORDER BY 1")
    db.run(CHANGED[what])
    assert db.run("SELECT ctid::text, xmin::text FROM packed ORDER BY 1") == before
    assert bob.value("SELECT madlib.mop_adopt(%s, 1, %s)", [forged, json.dumps(taken)]) is False
    later, shares = forged_run(bob, db, one, ["packed"])
    assert shares is True and asked(bob, db, later, one) == [[], [], []]


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


# --- what members may do to one another ---------------------------------------------------------------------


def bad_state(db, run_id, sql):
    """Change the model states of a run as a role could that writes them by hand."""
    for row in db.run("SELECT state_table FROM madlib.mop_state_table WHERE run_id = %s", [run_id]):
        db.run(f"UPDATE madlib.mop_state_{run_id}_{row['state_table']} SET data = {sql}")


@pytest.mark.parametrize(
    "sql, says",
    [
        ("'forged'", "not a model state"),
        ("substr(data, 1, length(data) - 4)", "damaged model state"),
        (r"overlay(data placing '\x0000c07f'::bytea from length(data) - 3)", "not finite"),
    ],
)
def test_a_state_that_cannot_be_one_is_not_taken_over(db, clients, sql, says):
    bad_state(db, train(clients["ann"]), sql)
    bob = clients["bob"]
    assert units(db, train(bob)) == WHOLE
    said = "\n".join(bob.connection.notices)
    assert "a stage that a member of your group has trained is trained again" in said and says in said
    assert db.value("SELECT count(*) FROM bob.m WHERE model_weights IS NOT NULL") == 2


def test_the_state_of_another_net_is_not_taken_over(db, clients):
    ann, bob = clients["ann"], clients["bob"]
    load(db, "arch2", dense(9))
    selection(db, "wide", "arch2", [(1, ADAM.format(0.01), "batch_size=8")])
    db.run("GRANT SELECT ON arch2, wide, wide_summary TO ann, bob")
    one = train(ann, "wide", iterations=1)
    (state,) = db.run(f"SELECT data FROM madlib.mop_state_{one}_1 ORDER BY version DESC LIMIT 1")
    ann.run("DROP TABLE m, m_info, m_summary")
    two = train(ann, iterations=1)
    bad_state(db, two, "'\\x" + bytes(state["data"]).hex() + "'")
    assert units(db, train(bob, iterations=1)) == 4
    assert "the model has 67" in "\n".join(bob.connection.notices)


FORGED = [
    ("metrics", value)
    for value in (
        '{"accuracy": "high"}', "[]", '{"accuracy": {"a": 1}}', '{"accuracy": 1e999}', '{"accuracy": -1e309}',
        '{"accuracy": 1e999999999}', '{"accuracy": 1e-400}', '{"accuracy": 1' + 400 * "0" + "}", '{"a\\u0000": 1}',
        '{"a\\ud800": 1}', '{"accuracy": 1, "accuracy": 2e308}',
    )
] + [("loss", "NaN"), ("loss", "-Infinity"), ("metric", "Infinity")]  # fmt: skip


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


@pytest.mark.parametrize("metrics_json", ["{}", '{"other": 0.5}'])
def test_metrics_that_a_search_lacks_are_measured_again(db, clients, metrics_json):
    ann, bob = clients["ann"], clients["bob"]
    search = SEARCH.replace("ann.own", "rows.arch").replace("[1, 2]", "[1]").replace("'loss')", "'accuracy')")
    ann.run(search)
    db.run("UPDATE madlib.mop_metric SET metric = NULL, metrics = %s", [metrics_json])
    bob.run(search)
    said = "\n".join(bob.connection.notices)
    assert 'a stage that a member of your group has trained is trained again: its metrics lack "accuracy"' in said
    assert bob.value("SELECT count(DISTINCT mst_key) FROM madlib.mop_metrics WHERE name = 'accuracy'") == 6


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


@pytest.mark.parametrize("of", ["ann", "bob"])
def test_functions_of_an_object_table_are_not_shared(db, clients, of):
    db.run("SET search_path = madlib; DROP TABLE IF EXISTS objects; SET search_path = rows")
    source = "def twice(y_true, y_pred):\n    import keras\n    return 2 * keras.ops.mean(keras.ops.square(y_true - y_pred))\n"
    db.run("SELECT madlib.load_custom_function('madlib.objects', %s, 'twice', 'a loss')", [pickled("twice", source)])
    db.run("GRANT SELECT ON madlib.objects TO ann, bob")
    loss = ADAM.format(0.01).replace("'categorical_crossentropy'", "'twice'")
    assert "twice" in loss
    selection(db, "custom", "arch", [(1, loss, "batch_size=8")], "madlib.objects")
    db.run("GRANT SELECT ON custom, custom_summary TO ann, bob")
    one = train(clients[of], "custom", iterations=1)
    other = "bob" if of == "ann" else "ann"
    assert db.value("SELECT count(*) FROM madlib.mop_shared_run WHERE run_id = %s", [one]) == 0
    assert units(db, train(clients[other], "custom", iterations=1)) == 2


def test_initial_weights_are_not_shared(db, clients):
    """The weights may be private; and their digest is no proof of a right to read them."""
    ann, bob = clients["ann"], clients["bob"]
    train(ann, iterations=1)
    ann.run("CREATE TABLE own AS SELECT a.model_id, a.model_arch, m.model_weights, a.name, a.description, "
            "a.__internal_madlib_id__ FROM rows.arch a, m WHERE mst_key = 1; GRANT USAGE ON SCHEMA ann TO bob; "
            "GRANT SELECT ON own TO bob")  # fmt: skip
    selection(db, "warm", "ann.own", [(1, ADAM.format(0.01), "batch_size=8")])
    db.run("GRANT SELECT ON warm, warm_summary TO ann, bob")
    ann.run("DROP TABLE m, m_info, m_summary")
    done = [train(client, "warm", iterations=1) for client in (ann, bob)]
    assert [units(db, run) for run in done] == [2, 2]
    assert db.value("SELECT count(*) FROM madlib.mop_shared_run WHERE run_id = ANY (%s)", [done]) == 0


def with_weights(ann):
    """ann.own: an architecture table of two models, the first one with weights; bob may read it."""
    train(ann, iterations=1)
    ann.run(
        "DROP TABLE IF EXISTS own; "
        "CREATE TABLE own AS SELECT n AS model_id, a.model_arch, CASE WHEN n = 1 THEN m.model_weights END AS model_weights, "
        "a.name, a.description, a.__internal_madlib_id__ FROM rows.arch a, m, generate_series(1, 2) n WHERE mst_key = 1; "
        "GRANT USAGE ON SCHEMA ann TO bob; GRANT SELECT ON own TO bob; DROP TABLE m, m_info, m_summary"
    )


def test_initial_weights_of_a_search_are_not_shared(db, clients):
    """A search makes its configurations as it goes on: those without weights are shared, the others are not."""
    ann, bob = clients["ann"], clients["bob"]
    with_weights(ann)
    runs = []
    for client in (ann, bob):
        client.run(SEARCH)
        runs.append(client.value("SELECT max(run_id) FROM madlib.mop_runs"))
    one, two = runs
    trained = (
        "SELECT count(*) FILTER (WHERE c.weights_md5 IS NOT NULL) AS weights, count(*) FILTER (WHERE c.weights_md5 IS NULL) "
        "AS seed FROM madlib.mop_unit u JOIN madlib.mop_stage s USING (run_id, stage) JOIN madlib.mop_configuration c "
        "USING (run_id, mst_key) WHERE u.run_id = %s AND u.kind = 'train' AND u.status = 'finished'"
    )
    (first,), (second,) = (db.run(trained, [run]) for run in (one, two))
    assert first["weights"] > 0 and first["seed"] > 0
    assert second == {"weights": first["weights"], "seed": 0}
    ann.run("DROP TABLE own")


@pytest.mark.parametrize("how", ["weights", "a trial of another run"])
@pytest.mark.parametrize("whose", ["giver", "taker"])
def test_stages_that_go_on_from_weights_are_not_shared(db, clients, whose, how):
    """Neither if the weights are at the beginning of another trial, from which the path goes on; and whoever has them."""
    ann, bob = clients["ann"], clients["bob"]
    one = train(ann)
    forged, _ = forged_run(bob, db, one, ["packed"])
    known = asked(bob, db, forged, one)[0]
    assert len(known) == 2 * ITERATIONS
    run = one if whose == "giver" else forged
    # (the second trial goes on from the first one, whose beginning has weights)
    of = "(SELECT stage FROM madlib.mop_stage WHERE run_id = {0} AND mst_key = {1} AND iteration = 1)"
    begins = "weights_md5 = md5('w')" if how == "weights" else """member = '{"inherits": {"trial": 7}}'"""
    db.run(
        f"UPDATE madlib.mop_configuration SET {begins} WHERE run_id = {run} AND mst_key = 1; "
        f"UPDATE madlib.mop_stage SET parent = {of.format(run, 1)} WHERE run_id = {run} AND stage = {of.format(run, 2)}"
    )
    assert asked(bob, db, forged, one)[0] == []
    taken = [
        {"stage": row["stage"], "run": row["run_id"], "of": row["stage"], "state": row["state"], "scored": True}
        for row in known
    ]
    for one_alone in taken:
        assert bob.value("SELECT madlib.mop_adopt(%s, 1, %s)", [forged, json.dumps([one_alone])]) is False


def test_what_inherits_from_a_trial_of_the_run_is_shared(db, clients):
    one = train(clients["ann"])
    forged, _ = forged_run(clients["bob"], db, one, ["packed"])
    of = f"(SELECT stage FROM madlib.mop_stage WHERE run_id = {one} AND mst_key = %s AND iteration = 1)"
    db.run(
        f"""UPDATE madlib.mop_configuration SET member = '{{"inherits": {{"trial": 1}}}}' WHERE run_id = {one} AND mst_key = 2;
        UPDATE madlib.mop_stage SET parent = {of % 1} WHERE run_id = {one} AND stage = {of % 2}"""
    )
    assert len(asked(clients["bob"], db, forged, one)[0]) == 2 * ITERATIONS


def test_what_was_taken_over_is_not_given_on(db, clients):
    ann, bob, eve = (clients[role] for role in ROLES)
    db.run("GRANT team TO eve")
    eve.run("SELECT madlib.mop_share_training('team')")
    train(ann)
    assert units(db, train(bob)) == 0
    ann.run("SELECT madlib.mop_share_training(NULL)")
    assert units(db, train(eve)) == WHOLE, "ann has taken its consent back"
    db.run("REVOKE team FROM eve")


# --- at the same time ---------------------------------------------------------------------------------------


def begun(db, role, meanwhile=lambda: None):
    """Waits until a run of the role trains; returns its number. `meanwhile` is called again and again until then."""
    sql = (
        "SELECT max(u.run_id) FROM madlib.mop_unit u JOIN madlib.mop_run r USING (run_id) JOIN madlib.mop_owner o "
        f"USING (owner) WHERE o.role = '{role}' AND r.status = 'running' AND u.status = 'finished'"
    )
    assert eventually(lambda: db.value(sql) is not None or meanwhile(), 120)
    return db.value(sql)


def looks_around(db, role):
    """Wait until a run of the role has begun and reads the runs of others. Returns the number of the run."""
    assert eventually(lambda: last(db, role) is not None, 120)
    sql = f"SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT sessions FROM%run_id = {last(db, role)}'"
    assert eventually(lambda: db.value(sql), 120)
    return last(db, role)


def last(db, role):
    return db.value(
        "SELECT max(run_id) FROM madlib.mop_run r JOIN madlib.mop_owner o USING (owner) WHERE o.role = %s", [role]
    )


def test_at_the_same_time_a_stage_is_trained_once(db, clients):
    ann, bob = clients["ann"], clients["bob"]
    for client in (ann, bob):
        client.run("SET pg_mop.lock_timeout = '300s'")
    with holding(db.another()) as let_some_begin:  # (ann's run does not end before bob's has found it)
        first = Calling(ann, call("long", iterations=15))
        one = begun(db, "ann", let_some_begin)
        del bob.connection.notices[:]
        second = Calling(bob, call("long", iterations=15))
        two = looks_around(db, "bob")
    assert first.end() is None and second.end() is None
    assert (units(db, one), units(db, two)) == (30, 0)
    assert weights(db, "ann") == weights(db, "bob") and metrics(ann, one) == metrics(bob, two)
    said = "\n".join(bob.connection.notices)
    assert re.search(r"(\d+ stages|a stage) that a member of your group trains (is|are) not trained twice", said)
    assert not re.search(r"that run \d+", said)


@pytest.mark.parametrize(
    "ends",
    ["cancel", "SELECT madlib.mop_share_training(NULL)", "REVOKE team FROM ann", "REVOKE SELECT ON packed FROM bob"],
)
def test_who_waits_for_a_run_that_shares_no_more_trains_itself(db, clients, ends):
    ann, bob = clients["ann"], clients["bob"]
    iterations = 600
    first = Calling(ann, call("long", iterations=iterations))
    one = begun(db, "ann")
    second = Calling(bob, call("long", iterations=iterations))
    assert eventually(lambda: last(db, "bob") is not None, 120)
    two = last(db, "bob")
    before = units(db, one)
    assert eventually(lambda: units(db, one) > before + 20, 120)
    assert units(db, two) == 0, "it waits"
    if ends == "cancel":
        db.run("SELECT pg_cancel_backend(%s)", [ann.connection.info.backend_pid])
    elif ends.startswith("SELECT"):
        other = db.another("ann")
        other.run(ends)
        other.close()
    else:
        db.run(ends)
    if "SELECT ON packed" in ends:  # it may train no more, and hears nothing of others
        error = second.end()
        assert error is not None and "ann" not in str(error)
    else:
        assert eventually(lambda: units(db, two) > 0, 300)
        db.run("SELECT pg_cancel_backend(%s)", [bob.connection.info.backend_pid])
        assert second.end().pgcode == "57014"
    db.run("SELECT pg_cancel_backend(%s)", [ann.connection.info.backend_pid])
    assert first.end() is None or first.error.pgcode == "57014"


def test_validation_rows_count_as_rows(db, clients):
    """What ann has evaluated on rows that bob may not read, or does not use, is none of bob's."""
    ann, bob = clients["ann"], clients["bob"]
    db.run("DROP TABLE IF EXISTS valid, valid_summary")
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'valid', 'y', 'x', 'packed', 10)")
    db.run("GRANT SELECT ON valid, valid_summary TO ann")
    one = train(ann, validation="'valid'")
    assert units(db, train(bob)) == WHOLE
    db.run("GRANT SELECT ON valid, valid_summary TO bob; DELETE FROM madlib.mop_run WHERE run_id <> %s", [one])
    bob.run("DROP TABLE m, m_info, m_summary")
    two = train(bob, validation="'valid'")
    assert units(db, two) == 0 and metrics(ann, one) == metrics(bob, two)
    assert {row["dataset"] for row in metrics(bob, two)} == {"training", "validation"}
    db.run("DROP TABLE valid, valid_summary")


def test_a_run_that_waits_is_cancelled_and_goes_on(db, clients):
    ann, bob = clients["ann"], clients["bob"]
    for client in (ann, bob):
        client.run("SET pg_mop.lock_timeout = '300s'")
    with holding(db.another()) as let_some_begin:  # (ann's run does not end before bob's is cancelled)
        first = Calling(ann, call("long", iterations=20))
        one = begun(db, "ann", let_some_begin)
        second = Calling(bob, call("long", iterations=20))
        two = looks_around(db, "bob")
        before = units(db, one)
        assert eventually(lambda: units(db, one) > before + 4 or let_some_begin(), 120)
        db.run("SELECT pg_cancel_backend(%s)", [bob.connection.info.backend_pid])
    assert second.end().pgcode == "57014", "a run that waits hears a cancel"
    assert first.end() is None and units(db, one) == 40
    bob.run("SELECT madlib.mop_resume(%s)", [two])
    # (ann's run has ended: what bob had not taken over by then he trains himself)
    assert units(db, two) <= 40 and len(order(bob, two)) == 40
    assert bob.value("SELECT count(*) FROM m WHERE model_weights IS NOT NULL") == 1
    bob.run("SELECT madlib.mop_replay(%s, 'again')", [two])
    assert weights(db, "bob") == weights(db, "bob", "again")
