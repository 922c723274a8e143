"""Roles that share what they train: states, tables and weights that are not shared, and runs at the same time."""

import json
import re

import numpy as np
import pytest

from support.client import Calling
from support.cluster import eventually
from support.sharing import (
    CHANGED,
    EVALUATED,
    HANGING,
    HOSTILE,
    ITERATIONS,
    ROLES,
    SEARCH,
    WHOLE,
    asked,
    bad_state,
    begun,
    call,
    clients,
    data,
    forged_run,
    last,
    looks_around,
    metrics,
    order,
    packed,
    train,
    units,
    weights,
)
from support.workload import ADAM, dense, holding, layer, load, needs_jax, pickled, selection, sequential

__all__ = ["clients", "data", "packed"]  # fixtures


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
