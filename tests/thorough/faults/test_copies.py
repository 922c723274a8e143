"""A run goes on without a server where segments and states have copies (pg_mop.replicas), until it is back."""

import functools
import json
import time

import psycopg2
import pytest

from support.client import Calling, Client
from support.cluster import eventually
from support.servers import CALL, Servers
from support.tries import tries
from support.workload import ADAM, assert_invariants, holding, is_under_way, last_run, selection

REPLICAS = "SET pg_mop.replicas = 2"


@pytest.fixture(scope="module")
def servers():
    made = Servers(REPLICAS)
    yield made
    made.stop()


def goes_without(servers, run_id):
    """True once the run has given the first worker up."""
    return servers.db.value(
        "SELECT NOT EXISTS (SELECT 1 FROM madlib.mop_remote_run WHERE run_id = %s AND server = 'w1')", [run_id]
    )


def begin(servers, sql, settings="", meanwhile=lambda: None):
    """Begin a call in a session of its own and wait until some units have ended. Until then, call `meanwhile` repeatedly."""
    client = Client(servers.coordinator, "postgres")
    client.run(
        "SET pg_mop.kernel = plain; SET pg_mop.seed = 7; SET pg_mop.threads = 1; SET pg_mop.lock_timeout = '300s'; "
        f"{REPLICAS}; {settings}"
    )
    call = Calling(client, sql)
    assert eventually(lambda: is_under_way(servers.db, more_than=3) or meanwhile(), 120), call.error
    return call


def begin_and_lose(servers, sql, settings=""):
    """Kill the first worker after some units of a call. The call goes on without this worker."""
    with servers.holding() as let_some_begin:
        call = begin(servers, sql, settings, let_some_begin)
        servers.workers[0].kill()
    goes_on_without(servers, call)


def goes_on_without(servers, call):
    """A call goes on without the first worker, which was killed, and is started afterwards."""
    try:
        assert call.end() is None
    finally:
        servers.workers[0].start()
    assert "goes on without server w1" in " ".join(call.client.connection.notices)


def test_a_run_goes_on_without_a_server_that_was_killed(servers):
    with servers.running() as (call, run_id, let_some_begin):
        servers.kill_at_work(run_id, let_some_begin)
    assert call.end() is None
    assert f"run {run_id} goes on without server w1, on copies" in " ".join(call.client.connection.notices)
    assert servers.db.value("SELECT count(*) FROM models") == 2
    servers.workers[0].start()
    servers.check(run_id, replay=True)


def test_a_server_that_is_back_is_used_again(servers):
    with servers.running() as (call, run_id, let_some_begin):
        servers.kill_at_work(run_id, let_some_begin)
        assert eventually(lambda: goes_without(servers, run_id), 120)
        servers.workers[0].start()
        assert eventually(lambda: not goes_without(servers, run_id), 120)
    assert call.end() is None
    assert f"run {run_id}: server w1 is back" in " ".join(call.client.connection.notices)
    servers.check(run_id, replay=True)


def test_units_of_a_slow_server_go_to_the_copy_on_another_one(servers):
    """No unit begins on the second worker: the first one trains on its copy of that segment meanwhile."""
    db = servers.db
    selection(db, "several", "arch", [(1, ADAM.format(0.01 * n), "batch_size=1, epochs=4") for n in range(1, 7)])
    db.run("DROP TABLE IF EXISTS models, models_info, models_summary")
    on_copies = (
        "SELECT count(*) FROM madlib.mop_units u JOIN madlib.mop_segment g USING (run_id, dataset, segment) WHERE u.run_id = "
        "%s AND u.kind = 'train' AND u.status = 'finished' AND g.server = 'w2' AND u.server = 'w1'"
    )
    with servers.holding():
        call = begin(servers, CALL.replace("'mst'", "'several'"))
        run_id = last_run(db)
        assert eventually(lambda: db.value(on_copies, [run_id]) > 3, 120)
    assert call.end() is None
    assert_invariants(db, run_id)
    at = db.run(
        "SELECT g.server AS segment, u.server FROM madlib.mop_units u JOIN madlib.mop_segment g USING (run_id, dataset, "
        "segment) WHERE run_id = %s AND u.status = 'finished' GROUP BY 1, 2 ORDER BY 1, 2",
        [run_id],
    )
    assert {(row["segment"], row["server"]) for row in at} >= {("w1", "w1"), ("w2", "w1"), (None, None)}
    assert {row["server"] for row in at if row["segment"] is None} == {None}, "it has no copy"
    loads = json.loads(db.value("SELECT madlib.mop_explain_run(%s, 'json')", [run_id]))["actual"]["sessions"]
    assert {load["server"] for load in loads} >= {"w1", None} and len({load["session"] for load in loads}) == len(loads)
    db.run("DROP TABLE IF EXISTS again, again_info, again_summary; SELECT madlib.mop_replay(%s, 'again')", [run_id])
    same = "SELECT array_agg(a.model_weights = m.model_weights) FROM models m JOIN again a USING (mst_key)"
    assert db.value(same) == [True] * 6


def test_a_server_that_hangs_is_done_without(servers):
    call, run_id = servers.begin("SET pg_mop.server_timeout = '20s'")
    with servers.hanging():
        assert eventually(lambda: goes_without(servers, run_id), 120)
        time.sleep(2)
    assert call.end() is None
    servers.check(run_id, replay=True)


def test_a_line_that_is_down_is_done_without_to_the_end(servers):
    call, run_id = servers.begin("SET pg_mop.server_timeout = '20s'")
    servers.relay.holds.set()
    try:
        assert call.end() is None
    finally:
        servers.relay.holds.clear()
    servers.check(run_id, replay=True)


def test_a_server_that_comes_and_goes(servers):
    call, run_id = servers.begin()
    for number in range(3):
        servers.workers[0].kill()
        time.sleep(0.3 * number)
        servers.workers[0].start()
        time.sleep(1.5)
    assert call.end() is None
    servers.check(run_id, replay=True)


def test_what_a_server_has_done_that_was_given_up_never_counts(servers):
    """Units that it had committed are done elsewhere; the coordinator's death changes nothing of that."""
    with servers.running("SET pg_mop.server_timeout = '20s'") as (call, run_id, let_some_begin), servers.hanging():
        assert eventually(lambda: goes_without(servers, run_id), 120)
        let_some_begin()
        time.sleep(0.5)
        servers.coordinator.kill()
        assert call.end() is not None
    servers.revive()
    servers.db.run(f"SET pg_mop.threads = 1; {REPLICAS}; SELECT madlib.mop_resume(%s)", [run_id])
    servers.check(run_id, replay=True)


def test_a_copy_that_cannot_be_made_is_made_again(servers):
    """Also where nothing else is left to do."""
    servers.db.run(
        "DROP TABLE IF EXISTS single, single_summary; CREATE TABLE single AS SELECT * FROM mst LIMIT 1; "
        "CREATE TABLE single_summary AS TABLE mst_summary; DROP TABLE IF EXISTS lone, lone_info, "
        "lone_summary"
    )
    call = begin(servers, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'lone', 'single', 4, FALSE)")
    worker = Client(servers.workers[0], "postgres")
    for _ in range(10):
        worker.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'postgres_fdw'")
        time.sleep(0.2)
    worker.close()
    assert call.end() is None
    assert_invariants(servers.db, servers.db.value("SELECT max(run_id) FROM madlib.mop_run"))


def said(session):
    return " ".join(session.connection.notices)


def compare(servers):
    """A run that finds that copies have the very rows."""
    servers.db.run(
        f"DROP TABLE IF EXISTS compared, compared_summary; {REPLICAS}; SELECT madlib.madlib_keras_fit("
        "'flowers_packed', 'compared', 'arch', 1, $$" + ADAM.format(0.03) + "$$, 'batch_size=50', 1, FALSE)"
    )


def test_a_run_begins_without_a_server_that_is_away(servers):
    compare(servers)
    servers.db.run("DROP TABLE IF EXISTS models, models_info, models_summary")
    servers.workers[0].kill()
    servers.db.connection.notices.clear()
    try:
        servers.db.run(f"SET pg_mop.kernel = plain; SET pg_mop.seed = 5; SET pg_mop.reuse = off; {REPLICAS}; {CALL}")
    finally:
        servers.workers[0].start()
    run_id = servers.db.value("SELECT max(run_id) FROM madlib.mop_run")
    assert f"run {run_id} goes on without server w1, on copies" in said(servers.db)
    assert servers.db.value(
        "SELECT array_agg(DISTINCT server ORDER BY server) FROM madlib.mop_segment WHERE run_id = %s", [run_id]
    ) == ["w1", "w2", None]
    servers.check(run_id, replay=True)


def test_a_server_that_was_away_when_a_run_began_is_used_once_it_is_back(servers):
    compare(servers)
    servers.db.run("DROP TABLE IF EXISTS models, models_info, models_summary")
    servers.workers[0].kill()
    with servers.holding() as let_some_begin:
        call = begin(servers, CALL, "SET pg_mop.reuse = off", let_some_begin)
        run_id = servers.db.value("SELECT max(run_id) FROM madlib.mop_run WHERE status = 'running'")
        servers.workers[0].start()
        assert eventually(lambda: not goes_without(servers, run_id), 120)
    assert call.end() is None
    assert f"run {run_id}: server w1 is back" in said(call.client)
    servers.check(run_id, replay=True)


def test_a_run_is_resumed_without_a_server_that_is_away(servers):
    with servers.running() as (call, run_id, _):
        servers.db.run("SELECT pg_cancel_backend(%s)", [call.client.connection.info.backend_pid])
        assert "canceling statement" in str(call.end())
    servers.workers[0].kill()
    servers.db.connection.notices.clear()
    try:
        servers.db.run(f"{REPLICAS}; SELECT madlib.mop_resume(%s)", [run_id])
    finally:
        servers.workers[0].start()
    assert f"run {run_id} goes on without server w1, on copies" in said(servers.db)
    assert_invariants(servers.db, run_id)
    servers.db.run(f"DROP TABLE models, models_info, models_summary; {REPLICAS}; SET pg_mop.reuse = off; {CALL}")
    servers.check(servers.db.value("SELECT max(run_id) FROM madlib.mop_run"))  # (what the guest has left is gone, too)


def test_a_run_whose_states_are_on_a_server_that_is_away_alone_is_not_resumed(servers):
    compare(servers)
    alone = (
        "SELECT EXISTS (SELECT 1 FROM madlib.mop_unit u JOIN madlib.mop_stage_state m USING (run_id, stage, version) "
        "WHERE run_id = {} AND u.kind = 'train' AND u.segment = 0 AND u.status = 'finished' "
        "AND m.state_table IS NULL AND NOT EXISTS (SELECT 1 FROM madlib.mop_stage c "
        "JOIN madlib.mop_stage_state n USING (run_id, stage) "
        "WHERE c.run_id = m.run_id AND c.parent = m.stage AND n.version > m.version))"
    )
    for once in tries(5):  # (it may have come elsewhere in the very moment)
        call, run_id = servers.begin("SET pg_mop.replicas = 1; SET pg_mop.reuse = off; SET pg_mop.resume = off")
        servers.relay.delay = 0.5  # a state needs a while from there
        try:
            assert eventually(functools.partial(servers.db.value, alone.format(run_id)), 120)
            servers.workers[0].kill()
        finally:
            servers.relay.delay = 0.0
        servers.db.run("SELECT pg_cancel_backend(%s)", [call.client.connection.info.backend_pid])
        assert "canceling statement" in str(call.end())
        resume, error = f"{REPLICAS}; SELECT madlib.mop_resume({run_id})", None
        try:
            servers.db.run(resume)
        except psycopg2.Error as caught:
            once.counts, error = True, str(caught)
        finally:
            servers.workers[0].start()
    assert f'model states of run {run_id} are on servers that are away alone: "w1"' in error
    servers.db.run(resume)
    servers.check(run_id, replay=True)


def test_rows_that_nobody_has_compared_with_their_copies_are_waited_for(servers):
    servers.db.run(
        f"DROP TABLE IF EXISTS models, models_info, models_summary; {REPLICAS}; SET pg_mop.servers = "
        f"'w1, local, w2'; SELECT madlib.validation_preprocessor_dl('flowers', 'fresh_packed', 'y', 'x', "
        f"'flowers_packed', 9)"
    )
    servers.workers[0].kill()
    try:
        error = servers.db.error(CALL.replace("NULL, 1", "'fresh_packed', 1"))
    finally:
        servers.workers[0].start()
    assert 'cannot open a session on server "w1"' in str(error)
    assert "no run of yours has compared its rows with their copies" in str(error)
    assert "Call again when it is back" in error.diag.message_hint
    servers.db.run("SELECT madlib.mop_drop_packed('fresh_packed')")


def test_both_servers_are_lost_and_one_is_back(servers):
    call, run_id = servers.begin("SET pg_mop.server_timeout = '300s'")
    first, second = servers.workers
    first.kill()
    assert eventually(lambda: goes_without(servers, run_id), 120)
    second.kill()
    try:
        time.sleep(2)
        first.start()
        assert call.end() is None
    finally:
        second.start()
    servers.check(run_id, replay=True)


def test_a_server_that_is_back_and_does_not_answer_holds_nobody_up(servers):
    """It answers its pulse, but nothing that is asked of it then: the run comes to its end without it."""
    with servers.running() as (call, run_id, let_some_begin):
        servers.kill_at_work(run_id, let_some_begin)
        assert eventually(lambda: goes_without(servers, run_id), 120)
        servers.relay.holds.set()
        servers.workers[0].start()
        worker = Client(servers.workers[0], "postgres")
        worker.run("BEGIN; LOCK TABLE pg_extension")
        servers.relay.holds.clear()
        asked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pg_extension'::regclass"
        assert eventually(lambda: worker.value(asked), 120)
    assert call.end() is None
    worker.run("ROLLBACK")
    worker.close()
    servers.check(run_id, replay=True)


def test_a_state_that_no_other_server_has_is_waited_for(servers):
    """It was committed when the coordinator died, and has no copy yet when its server hangs."""
    with servers.running() as (call, run_id, _):
        servers.coordinator.kill()
        assert call.end() is not None
    servers.revive()
    servers.relay.delay = 0.05
    other = Client(servers.coordinator, "postgres")
    other.run(f"SET pg_mop.threads = 1; {REPLICAS}; SET pg_mop.server_timeout = '8s'")
    resumed = Calling(other, f"SELECT madlib.mop_resume({run_id})")
    assert eventually(
        lambda: servers.db.value("SELECT fencing_token > 1 FROM madlib.mop_run WHERE run_id = %s", [run_id]), 120
    )
    servers.hang()
    time.sleep(4)
    servers.workers[0].kill()
    servers.relay.delay = 0.0
    servers.workers[0].start()
    if resumed.end() is not None:
        servers.db.run(f"SET pg_mop.threads = 1; {REPLICAS}; SELECT madlib.mop_resume(%s)", [run_id])
    servers.check(run_id, replay=True)


def test_other_rows_on_a_server_that_is_back_are_not_used(servers):
    with servers.running() as (call, run_id, let_some_begin):
        servers.kill_at_work(run_id, let_some_begin)
        assert eventually(lambda: goes_without(servers, run_id), 120)
        servers.relay.holds.set()  # the coordinator does not come there meanwhile
        servers.workers[0].start()
        worker = Client(servers.workers[0], "postgres")
        worker.run("UPDATE flowers_packed_segment_0 SET buffer_id = buffer_id")
        worker.close()
        servers.relay.holds.clear()
        assert eventually(lambda: "the rows of segment" in servers.coordinator.said(), 120)
    assert call.end() is None
    servers.db.run("SELECT madlib.mop_drop_packed('flowers_packed')")
    servers.db.run(
        "SET pg_mop.segments = 3; SET pg_mop.servers = 'w1, local, w2'; SET pg_mop.replicas = 2; "
        "SELECT madlib.training_preprocessor_dl('flowers', 'flowers_packed', 'y', 'x', 9)"
    )


def test_an_averaged_model_is_the_undisturbed_one(servers):
    sql = (
        "SELECT madlib.madlib_keras_fit('flowers_packed', '{}', 'arch', 1, $$" + ADAM.format(0.02) + "$$, "
        "$$batch_size=4, epochs=6$$, 6, FALSE)"
    )
    servers.db.run(
        f"DROP TABLE IF EXISTS one, one_summary, two, two_summary; SET pg_mop.kernel = plain; "
        f"SET pg_mop.seed = 7; {REPLICAS}; {sql.format('one')}"
    )
    begin_and_lose(servers, sql.format("two"), "SET pg_mop.reuse = off")
    assert servers.db.value("SELECT one.model_weights = two.model_weights FROM one, two")
    servers.workers[0].kill()  # and where it is away from the beginning
    try:
        servers.db.run(f"DROP TABLE two, two_summary; SET pg_mop.reuse = off; {sql.format('two')}")
    finally:
        servers.workers[0].start()
    assert servers.db.value("SELECT one.model_weights = two.model_weights FROM one, two")


def test_a_search_goes_on_without_a_server(servers):
    servers.db.run("DROP TABLE IF EXISTS found, found_info, found_summary, found_trials")
    begin_and_lose(
        servers,
        """SELECT madlib.mop_search('flowers_packed', 'found', 'arch', $${
        'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'batch_size': [1, 2], 'epochs': [3],
        'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}]}$$,
        'asha', 'iterations=4, trials=8')""",
    )
    assert servers.db.value("SELECT count(*) FROM found_trials") == 8


def test_an_evaluation_goes_on_without_a_server(servers):
    servers.db.run(
        "DROP TABLE IF EXISTS model, model_summary, seen, unseen; SELECT madlib.madlib_keras_fit("
        "'flowers_packed', 'model', 'arch', 1, $$" + ADAM.format(0.02) + "$$, 'batch_size=4', 1, FALSE)"
    )
    evaluate = "SELECT madlib.madlib_keras_evaluate('model', 'flowers_packed', '{}', FALSE)"
    servers.db.run(evaluate.format("seen"))
    with holding(Client(servers.workers[0], "postgres"), "mop"):
        client = Client(servers.coordinator, "postgres")
        client.run(f"SET pg_mop.threads = 1; SET pg_mop.lock_timeout = '300s'; {REPLICAS}")
        call = Calling(client, evaluate.format("unseen"))
        looking = Client(servers.workers[0], "postgres")
        assert eventually(
            lambda: looking.value(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'mop.mop_unit'::regclass"
            ),
            120,
        )
        servers.workers[0].kill()
        goes_on_without(servers, call)
    assert servers.db.value("SELECT abs(a.loss - b.loss) < 1e-6 FROM seen a, unseen b")


@pytest.mark.parametrize(
    "sql",
    [
        "madlib.madlib_keras_fit('flowers_packed', 'silent', 'arch', 1, $$"
        + ADAM.format(0.03)
        + "$$, 'batch_size=4', 1, FALSE)",
        "madlib.madlib_keras_evaluate('model', 'flowers_packed', 'silent', FALSE)",
    ],
    ids=["fit", "evaluate"],
)
def test_a_cancel_is_heard_while_a_server_is_silent_that_compares_its_rows(servers, sql):
    for worker in servers.workers:  # so that they are compared anew
        client = Client(worker, "postgres")
        for row in client.run(
            "SELECT oid::regclass::text AS name FROM pg_class WHERE relkind = 'r' AND relname LIKE 'flowers_packed%%'"
        ):
            client.run(f"UPDATE {row['name']} SET buffer_id = buffer_id")
        client.close()
    client = Client(servers.coordinator, "postgres")
    client.run(f"SET pg_mop.threads = 1; {REPLICAS}")
    servers.relay.holds_at = b"AS digest FROM"
    call = Calling(client, f"SELECT {sql}")
    try:
        assert eventually(servers.relay.holds.is_set, 120)
        servers.db.run("SELECT pg_cancel_backend(%s)", [client.connection.info.backend_pid])
        assert "canceling statement" in str(call.end())
    finally:
        servers.relay.holds_at = None
        servers.relay.holds.clear()
    assert eventually(lambda: not servers.db.value("SELECT to_regclass('silent')"))


def test_members_have_scores_without_a_server_that_was_killed(servers):
    """A one-shot search reads the rows of the lost server from their copies."""
    servers.db.run("""SELECT madlib.mop_space('widths', 'arch', ARRAY[1], '[{"change": "value", "match": {"class": "Dense",
        "position": 1}, "argument": "units", "choices": [8, 12, 16]}]'::text)""")
    sql = """SELECT madlib.mop_search('flowers_packed', 'scored', NULL, $${'loss': ['categorical_crossentropy'],
        'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.01]}], 'batch_size': [2]}$$, 'one-shot',
        'iterations=20, retrain=1, retrain_iterations=1', 'loss', model_space := 'widths')"""
    begin_and_lose(servers, sql, "SET pg_mop.chain_seconds = 0")
    assert servers.db.value("SELECT count(*) FROM scored_one_shot WHERE one_shot_score > 0") == 3
    assert servers.db.value("SELECT count(*) FROM scored") == 1


def test_an_evaluation_does_without_copies_that_are_not_there(servers):
    """Nor is one used that has other rows."""
    evaluate = "SELECT madlib.madlib_keras_evaluate('model', '{}', '{}', FALSE)"
    servers.db.run(
        f"DROP TABLE IF EXISTS first, second; RESET pg_mop.replicas; SELECT madlib.validation_"
        f"preprocessor_dl('flowers', 'bare_packed', 'y', 'x', 'flowers_packed', 9); {REPLICAS}"
    )
    servers.db.connection.notices.clear()
    servers.db.run(evaluate.format("bare_packed", "first"))
    worker = Client(servers.workers[1], "postgres")
    copy = worker.value(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relname LIKE 'flowers_packed_copy%%'"
    )
    worker.run(f"DELETE FROM {copy}")
    worker.close()
    servers.db.run(evaluate.format("flowers_packed", "second"))
    assert servers.db.value("SELECT abs(a.loss - b.loss) < 1e-6 FROM first a, second b")
    assert not [notice for notice in servers.db.connection.notices if "works alone" in notice]
