"""The pool of trainers: who leases what, how leases end, and what of one lease the next can see."""

import json
import os
import pathlib
import re
import signal
import threading
import time

import psycopg2
import pytest

from support.client import Calling, Client
from support.cluster import eventually, fork_servers
from support.trainers import all_trainers, of_backend, trainers
from support.tries import tries
from support.workload import ADAM, assert_invariants, dense, fit, last_run, load, make_data, pickled, selection

OPTIONS = {
    "threads": 1,
    "keras_backend": "tensorflow",
    "cache_mb": 1024,
    "compile_cache_mb": 256,
    "idle_ms": 0,
    "keep_ms": 600000,
    "fork_server_ms": 600000,
}
SLOW = "batch_size=1, epochs=30"
SQUARED = pickled(
    "squared",
    "def squared(y_true, y_pred):\n    import keras\n    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)\n",
)


@pytest.fixture(scope="module")
def db(own):
    client = Client(own, "postgres")
    client.run(
        "CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; CREATE ROLE ana LOGIN; CREATE ROLE ben LOGIN; "
        "GRANT mop_user TO ana, ben; GRANT CREATE ON SCHEMA public TO ana, ben"
    )
    make_data(client, segments=2)
    load(client, "arch", dense())
    selection(client, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=5"), (1, ADAM.format(0.02), "batch_size=5")])
    client.run("GRANT SELECT ON ALL TABLES IN SCHEMA public TO ana, ben")
    yield client
    client.close()


@pytest.fixture(autouse=True)
def empty(db):
    """Each test begins with an empty pool."""
    assert eventually(lambda: not leased(db))
    db.run("SELECT madlib.mop_end_trainers()")
    assert db.run("SELECT * FROM madlib.mop_trainers") == []


def leased(db):
    return db.run("SELECT * FROM madlib.mop_trainers WHERE state <> 'idle'")


def idle(db):
    """Process IDs of the idle trainers, once no trainer is leased."""
    assert eventually(lambda: not leased(db))
    return {row["pid"] for row in db.run("SELECT pid FROM madlib.mop_trainers")}


def start(client, **options):
    client.run("SELECT madlib.mop_start_trainer(%s)", [json.dumps({**OPTIONS, **options})])


def lease(client, **options):
    """Lease a trainer for a client's session: its process ID, once it lives."""
    start(client, **options)
    backend = client.connection.info.backend_pid
    found = eventually(lambda: [pid for pid in trainers() if of_backend(pid) == backend], 120)
    assert found
    return found[0]


def returned(db, client):
    """The process ID of the trainer that a session leases and gives back by its end."""
    pid = lease(client)
    client.close()
    assert eventually(lambda: idle(db) >= {pid})
    return pid


def in_work(db, call):
    """Wait until a unit of a Calling trains: its row."""
    rows = eventually(
        lambda: db.run(
            "SELECT * FROM madlib.mop_units WHERE status = 'running' "
            "AND started_at < clock_timestamp() - interval '0.3 s'"
        ),
        120,
    )
    assert rows, call.error
    return rows[0]


# --- who gets which ---------------------------------------------------------------------------------


def test_only_sessions_of_the_same_role_database_and_options_get_an_idle_trainer(own, db):
    pid = returned(db, db.another("ana"))
    db.run("CREATE DATABASE elsewhere")
    elsewhere = Client(own, "elsewhere")
    elsewhere.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE")
    there, ben, more, again = (Client(own, "elsewhere", "ana"), db.another("ben"), db.another("ana"), db.another("ana"))
    assert pid not in {lease(there), lease(ben), lease(more, threads=2)}
    assert lease(again) == pid
    for client in (there, ben, more, again, elsewhere):
        client.close()
    db.run("DROP DATABASE elsewhere WITH (FORCE)")


def test_one_trainer_has_one_lease_at_a_time(db):
    pid = returned(db, db.another("ana"))
    clients = [db.another("ana") for _ in range(6)]
    threads = [threading.Thread(target=start, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backends = {client.connection.info.backend_pid for client in clients}

    def of_backends():
        return {of_backend(pid): pid for pid in trainers() if of_backend(pid)}

    try:
        assert eventually(lambda: len(leased(db)) == 6 and of_backends().keys() == backends, 120)
        found = of_backends()
        assert len(set(found.values())) == 6 and pid in found.values()
    finally:
        for client in clients:
            client.close()


def test_a_role_does_not_get_what_another_has_left_in_the_session(db):
    db.run(
        "CREATE FUNCTION public.begin_trainer() RETURNS integer LANGUAGE plpython3u AS $$\nfrom mop_udf import aggregate\n"
        "from pg_mop.backend.limits import Limits\n"
        f"return aggregate.session(plpy).start_trainer({OPTIONS!r}, Limits(plpy, 'madlib')).pid\n$$; "
        "CREATE FUNCTION public.begin_as_ben() RETURNS integer LANGUAGE sql SECURITY DEFINER "
        "AS 'SELECT public.begin_trainer()'; "
        "ALTER FUNCTION public.begin_as_ben() OWNER TO ben"
    )
    ana = db.another("ana")
    ana.run("SELECT * FROM madlib.mop_trainers")  # (this makes Python find the modules)
    role_of = "SELECT role FROM madlib.mop_trainers WHERE pid = %s"
    of_ben = ana.value("SELECT begin_as_ben()")
    roles, again = [db.value(role_of, [of_ben])], ana.value("SELECT begin_as_ben()")
    of_ana = ana.value("SELECT begin_trainer()")
    roles.append(db.value(role_of, [of_ana]))
    ana.close()
    assert of_ben == again != of_ana and roles == ["ben", "ana"]
    db.run("DROP FUNCTION public.begin_trainer(), public.begin_as_ben()")


def test_a_call_does_not_lack_the_trainer_that_its_own_session_keeps(db):
    """mop_predict keeps the trainer of a net of texts for the next row, while mop_train works in other sessions."""
    db.run(
        "CREATE TABLE houses AS SELECT i AS id, (i % 7)::float AS a, (i % 7) * 2.0 AS price, "
        "'a note about the house ' || i || ' in ' || (ARRAY['York', 'Bath'])[1 + i % 2] AS note "
        "FROM generate_series(1, 200) i; GRANT SELECT ON houses TO ana; "
        "INSERT INTO madlib.mop_limit (role, sessions) VALUES ('ana', 1)"
    )
    train = (
        "SELECT madlib.mop_train('houses', %s, 'price', max_trials => 1, baselines => FALSE, layers => 'linear', "
        "families => 'nets', time_limit => '3 s')"
    )
    try:
        ana = db.another("ana")
        ana.run("SET pg_mop.threads = 1; SET pg_mop.sessions = 1; SET pg_mop.serving_processes = 0")
        ana.run(train, ["first"])
        ana.run("SELECT madlib.mop_predict('first', h) FROM houses h LIMIT 1")
        assert [row["session_pid"] for row in leased(db)] == [ana.connection.info.backend_pid]
        ana.run(train, ["second"])
        ana.close()
    finally:
        db.run("DELETE FROM madlib.mop_limit")


def test_a_new_role_with_the_name_of_a_dropped_one_gets_nothing_of_it(db):
    db.run("CREATE ROLE cleo LOGIN; GRANT mop_user TO cleo")
    pid = returned(db, db.another("cleo"))
    db.run("DROP ROLE cleo; CREATE ROLE cleo LOGIN; GRANT mop_user TO cleo")
    assert db.value("SELECT role LIKE 'unknown%%' FROM madlib.mop_trainers WHERE pid = %s", [pid])
    cleo = db.another("cleo")
    assert lease(cleo) != pid
    assert {row["role"] for row in cleo.run("SELECT role FROM madlib.mop_trainers")} == {"cleo"}
    cleo.close()
    db.run("DROP ROLE cleo")


def test_each_role_sees_and_ends_its_own(db):
    pids = {name: returned(db, db.another(name)) for name in ("ana", "ben")}
    ana = db.another("ana")
    assert [row["pid"] for row in ana.run("SELECT pid FROM madlib.mop_trainers")] == [pids["ana"]]
    db.run("GRANT pg_read_all_stats TO ana")
    assert {row["pid"] for row in ana.run("SELECT pid FROM madlib.mop_trainers")} == set(pids.values())
    row = ana.run("SELECT * FROM madlib.mop_trainers WHERE role = 'ben'")[0]
    assert (row["database"], row["state"], row["session_pid"], row["framework"]) == (
        db.database,
        "idle",
        None,
        "tensorflow",
    )
    assert row["memory_bytes"] > 50_000_000 and row["rows_bytes"] == row["nets"] == 0
    assert ana.value("SELECT clock_timestamp() - since < interval '10 min' FROM madlib.mop_trainers WHERE role = 'ana'")
    assert ana.value("SELECT madlib.mop_end_trainers()") == 1
    assert idle(db) == {pids["ben"]}
    db.run("REVOKE pg_read_all_stats FROM ana")
    ana.close()


# --- what a lease leaves ----------------------------------------------------------------------------


def test_kept_rows_serve_only_who_may_read_them_now(db):
    ana = db.another("ana")
    fit(ana, "flowers_packed", "anas", "mst")
    kept = idle(db)
    assert db.value("SELECT sum(rows_bytes) > 0 FROM madlib.mop_trainers")
    for revoked in ("REVOKE SELECT ON flowers_packed FROM ana", "ALTER TABLE flowers_packed ENABLE ROW LEVEL SECURITY"):
        db.run(revoked)
        ana.run("DROP TABLE IF EXISTS anas, anas_info, anas_summary")
        with pytest.raises(psycopg2.Error):
            fit(ana, "flowers_packed", "anas", "mst")
        db.run("GRANT SELECT ON flowers_packed TO ana; ALTER TABLE flowers_packed DISABLE ROW LEVEL SECURITY")
    fit(ana, "flowers_packed", "anas", "mst")
    assert idle(db) == kept
    ana.close()


def test_the_next_lease_cannot_read_the_weights_of_the_last(db):
    fit(db, "flowers_packed", "mine", "mst")
    kept = idle(db)
    client = db.another()
    pid = lease(client)
    assert pid in kept
    for op in ('{"op": "save", "numbers": [0]}', '{"op": "score", "number": 0, "sums": [1.0]}', '{"op": "export"}'):
        with pytest.raises(psycopg2.Error) as caught:
            client.run(
                "DO LANGUAGE plpython3u $$\nfrom mop_udf import aggregate\ntrainer = aggregate.session(plpy).trainer\n"
                f"trainer.send({op})\nplpy.error('got ' + repr(trainer.receive()))\n$$"
            )
        assert "plpy.Error: got" not in str(caught.value), op
        client.close()
        client = db.another()
        lease(client)
    client.close()


def test_a_trainer_that_has_run_a_custom_function_does_not_return(db):
    db.run(
        "DROP TABLE IF EXISTS madlib.functions; SELECT madlib.load_custom_function('functions', %s, 'squared')",
        [SQUARED],
    )
    selection(
        db,
        "custom_mst",
        "arch",
        [(1, "loss='squared', optimizer='SGD(learning_rate=0.01)'", "batch_size=5")],
        "functions",
    )
    fit(db, "flowers_packed", "custom", "custom_mst", iterations=1)
    ran = db.run(
        "SELECT DISTINCT backend_pid FROM madlib.mop_units WHERE run_id = %s AND kind = 'train'", [last_run(db)]
    )
    assert eventually(lambda: not leased(db))
    assert len(idle(db)) <= 2 - len(ran)
    db.run("DROP TABLE madlib.functions")


def test_a_session_does_not_kill_a_trainer_that_has_left_it(db):
    """After its idle time a trainer leaves. The session that had it may not end the lease of the session that has it."""
    first = db.another()
    pid = lease(first, idle_ms=500)
    assert eventually(lambda: idle(db) == {pid})
    second = db.another()
    assert lease(second) == pid
    first.run("DO LANGUAGE plpython3u $$\nfrom mop_udf import aggregate\naggregate.session(plpy).stop_trainer()\n$$")
    first.close()
    assert of_backend(pid) == second.connection.info.backend_pid
    second.run(
        "DO LANGUAGE plpython3u $$\nfrom mop_udf import aggregate\ntrainer = aggregate.session(plpy).trainer\n"
        "trainer.send({'op': 'ready'})\nassert trainer.receive()[0]['keras']\n$$"
    )
    second.close()


# --- how leases end ---------------------------------------------------------------------------------


def test_a_trainer_returns_when_its_waiting_session_is_killed(db):
    client = db.another()
    pid = lease(client)
    db.run("SELECT pg_terminate_backend(%s)", [client.connection.info.backend_pid])
    assert eventually(lambda: idle(db) == {pid})


def test_a_trainer_that_still_starts_ends_with_its_session(own, db):
    for pid in fork_servers(own):
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not fork_servers(own))
    client = db.another()
    start(client)
    client.close()
    assert eventually(lambda: fork_servers(own))
    other = db.another()
    pid = lease(other)
    assert {row["pid"] for row in leased(db)} == {pid}
    other.close()
    assert idle(db) == {pid}


def test_a_trainer_that_hangs_as_it_is_reset_is_ended(db):
    client = db.another()
    pid = lease(client)
    os.kill(pid, signal.SIGSTOP)
    client.close()
    assert eventually(
        lambda: [row["state"] for row in db.run("SELECT state FROM madlib.mop_trainers")] == ["returning"]
    )
    other = db.another()
    assert lease(other) != pid, "the request does not wait for it for long"
    other.close()
    assert eventually(lambda: pid not in all_trainers())


def test_a_session_that_waits_for_a_trainer_on_the_way_back_may_be_killed(db):
    gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"
    for once in tries():  # (a slow machine takes longer than the fork server waits for a trainer)
        first, waiting = db.another(), db.another()
        pid = lease(first)
        os.kill(pid, signal.SIGSTOP)
        first.close()
        assert eventually(lambda: db.value("SELECT state FROM madlib.mop_trainers") == "returning")
        began = time.monotonic()
        start(waiting)  # (this returns before the request is answered)
        os.kill(waiting.connection.info.backend_pid, signal.SIGTERM)
        assert eventually(lambda ended=waiting.connection.info.backend_pid: db.value(gone, [ended]))
        once.counts = time.monotonic() - began < 1.5
        os.kill(pid, signal.SIGCONT)
        if not once.counts:
            idle(db)
            db.run("SELECT madlib.mop_end_trainers()")
    assert eventually(lambda: idle(db) == {pid}), "nobody has it, and no other was forked"
    other = db.another()
    assert lease(other) == pid
    other.close()


def test_the_pool_of_another_version_is_shown_and_ended(db):
    """After an upgrade the fork server of the older version has idle trainers that nobody leases any more."""
    pid = returned(db, db.another())
    folder = pathlib.Path(db.value("SHOW data_directory")) / "pgsql_tmp.pg_mop"
    older = {path: path.with_name(re.sub("[0-9a-f]{16}", "0" * 16, path.name)) for path in folder.glob("fork-server-*")}
    for path, name in older.items():
        path.rename(name)
    client = db.another()
    other = lease(client)
    assert other != pid
    client.close()
    assert idle(db) == {pid, other}
    assert db.value("SELECT madlib.mop_end_trainers()") == 2
    (lock,) = folder.glob(f"*-{'0' * 16}.lock")
    os.kill(int(lock.read_text()), signal.SIGKILL)


def test_an_idle_trainer_that_hangs_is_replaced(db):
    pid = returned(db, db.another())
    os.kill(pid, signal.SIGSTOP)
    client = db.another()
    assert lease(client) != pid
    assert eventually(lambda: pid not in all_trainers())
    client.close()


def test_a_trainer_at_work_is_killed_with_its_session(db):
    selection(db, "slow", "arch", [(1, ADAM.format(0.01), SLOW), (1, ADAM.format(0.02), SLOW)])
    client = db.another()
    client.run("SET pg_mop.kernel = 'plain'; DROP TABLE IF EXISTS slowly, slowly_info, slowly_summary")
    call = Calling(
        client, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'slowly', 'slow', 1, FALSE)"
    )
    unit = in_work(db, call)
    (pid,) = [pid for pid in trainers() if of_backend(pid) == unit["backend_pid"]]
    db.run("SELECT pg_terminate_backend(%s)", [unit["backend_pid"]])
    assert eventually(lambda: pid not in all_trainers())
    assert call.end() is None
    assert_invariants(db, last_run(db))
    assert pid not in idle(db)
    client.close()


def test_a_run_goes_on_when_the_pool_is_killed(own, db):
    selection(db, "slow", "arch", [(1, ADAM.format(0.01), SLOW), (1, ADAM.format(0.02), SLOW)])
    client = db.another()
    client.run("SET pg_mop.kernel = 'plain'; DROP TABLE IF EXISTS slowly, slowly_info, slowly_summary")
    call = Calling(
        client, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'slowly', 'slow', 1, FALSE)"
    )
    in_work(db, call)
    before = {row["pid"] for row in leased(db)}
    (pool,) = fork_servers(own)
    os.kill(pool, signal.SIGKILL)
    assert call.end() is None
    assert_invariants(db, last_run(db))
    assert eventually(lambda: not before & set(all_trainers())), "without a pool to return to, they end"
    fit(client, "flowers_packed", "afterwards", "mst")
    assert len(fork_servers(own)) == 1 and idle(db)
    client.close()


def test_the_pool_ends_with_the_extension(db):
    client = db.another()
    client.run("CREATE DATABASE short")
    other = Client(db.server, "short")
    other.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE")
    pid = lease(other)
    other.close()
    other = Client(db.server, "short")
    assert eventually(lambda: pid in idle(db))
    other.run("DROP EXTENSION pg_mop CASCADE")
    assert eventually(lambda: pid not in all_trainers())
    other.close()
    client.run("DROP DATABASE short WITH (FORCE)")
    client.close()


def test_the_extension_can_be_dropped_without_its_packages(db):
    db.run("CREATE DATABASE bare")
    other = Client(db.server, "bare")
    other.run(
        "CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; "
        "CREATE OR REPLACE FUNCTION madlib.mop_end_trainers() RETURNS integer LANGUAGE plpython3u AS "
        "'import no_such_package'; DROP EXTENSION pg_mop CASCADE"
    )
    assert any("no_such_package" in notice for notice in other.connection.notices)
    other.close()
    db.run("DROP DATABASE bare WITH (FORCE)")


def test_the_pool_ends_with_the_server(own, db):
    waiting, client = db.another(), db.another()
    idle_one, working = lease(waiting), lease(client)
    waiting.close()
    assert eventually(lambda: of_backend(idle_one) == 0)
    (pool,) = fork_servers(own)
    own.end(signal.SIGKILL)
    ended = {working, idle_one, pool}
    assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ended))
