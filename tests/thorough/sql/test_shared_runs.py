"""Two runs of a role at the same time train what they have in common once."""

import contextlib
import json
import re

import pytest

from support.client import Calling
from support.cluster import eventually
from support.workload import ADAM, NAN, dense, holding, load, make_data, selection

SETTINGS = (
    "SET pg_mop.seed = 5; SET pg_mop.reuse = on; SET pg_mop.kernel = 'plain'; SET pg_mop.chain_seconds = 0.2; "
    "SET pg_mop.lock_timeout = '300s'"
)
ITERATIONS = 6
SLOW = "batch_size=2, epochs=3"
SPACE = json.dumps({
    "loss": ["categorical_crossentropy"], "metrics": [["accuracy"]], "batch_size": [2], "epochs": [3],
    "optimizer_params_list": [{"optimizer": ["Adam"], "lr": [0.001, 0.1, "log"]}],
})  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, rows=150, segments=2)
    load(db, "arch", dense())
    fits = [(1, ADAM.format(rate), SLOW) for rate in (0.01, 0.02, 0.03, 0.04)]
    selection(db, "two", "arch", fits[:2])
    selection(db, "three", "arch", fits[:3])
    selection(db, "rest", "arch", fits[3:])
    selection(db, "bad", "arch", [fits[0], (1, NAN, SLOW)])


@pytest.fixture
def clients(db):
    """Two sessions, of the runs that begin first and second. Nothing is left of earlier tests that could be taken over."""
    db.run("SELECT madlib.mop_drop_run(run_id) FROM madlib.mop_runs WHERE status <> 'running'")
    for name in ("a", "b"):
        db.run(f"DROP TABLE IF EXISTS {name}, {name}_info, {name}_summary")
    pair = [db.another(), db.another()]
    for client in pair:
        client.run(SETTINGS)
    yield pair
    for client in pair:
        client.close()


def call(output, selection_table, iterations=ITERATIONS, every=1):
    return (
        f"SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', '{output}', '{selection_table}', {iterations}, "
        f"FALSE, NULL, {every})"
    )


def run_of(db, output):
    """The number of the run that makes a table, once it trains."""
    found = []

    def begun():
        found[:] = [
            row["run_id"]
            for row in db.run(
                "SELECT max(r.run_id) AS run_id FROM madlib.mop_runs r JOIN madlib.mop_units u USING (run_id) "
                "WHERE r.model_output_table = %s AND r.status = 'running' AND u.status = 'finished'", [output])
        ]  # fmt: skip
        return found[0] is not None

    assert eventually(begun, 60), f"no run makes {output}"
    return found[0]


@contextlib.contextmanager
def held(db, client, sql, output="a"):
    """Within the context, a call that makes `output` has begun to train and does not end: no unit begins. The `with` statement
    gets the Calling, the number of its run, and a function that lets the waiting units begin."""
    with holding(db.another()) as let_some_begin:
        first = Calling(client, sql)
        assert eventually(lambda: trained(db, last(db, output) or 0) or let_some_begin(), 90)
        yield first, last(db, output), let_some_begin


def asking(db, output, after):
    """Wait until the run that makes `output`, which began after another one, asks for its turn: by then it knows what it waits
    for. Returns its number."""
    asks = "SELECT count(*) FROM madlib.mop_turn WHERE run_id = %s"
    assert eventually(lambda: (last(db, output) or 0) > after and db.value(asks, [last(db, output)]), 90)
    return last(db, output)


def last(db, output):
    return db.value("SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = %s", [output])


def trained(db, run_id):
    """{mst_key: training units that the run has done for it}, of those shared among configurations the first one's."""
    rows = db.run(
        "SELECT mst_key, count(*) AS units FROM madlib.mop_units WHERE run_id = %s AND kind = 'train' "
        "AND status = 'finished' AND NOT shared GROUP BY 1",
        [run_id],
    )
    return {row["mst_key"]: row["units"] for row in rows}


def same(db, one, other, keys):
    """How many of these configurations have equal weights in both tables."""
    return db.value(
        f"SELECT count(*) FROM {one} x JOIN {other} y USING (mst_key) WHERE x.model_weights = y.model_weights "
        "AND mst_key = ANY (%s)",
        [list(keys)],
    )


def metrics(db, run_id):
    return db.run(
        "SELECT mst_key, iteration, dataset, name, value FROM madlib.mop_metrics WHERE run_id = %s ORDER BY 1, 2, 3, 4",
        [run_id],
    )


def test_the_second_run_trains_only_what_the_first_does_not(db, clients):
    with held(db, clients[0], call("a", "two")) as (first, one, _):
        second = Calling(clients[1], call("b", "three"))
        two = asking(db, "b", one)
    assert first.end() is None and second.end() is None
    assert trained(db, one) == {1: 2 * ITERATIONS, 2: 2 * ITERATIONS}
    assert trained(db, two) == {3: 2 * ITERATIONS}, "it trained others beside, or in vain"
    prediction = db.value("SELECT prediction FROM madlib.mop_run WHERE run_id = %s", [two])
    assert prediction["training_units"] == 2 * ITERATIONS, "it counts what it waits for"
    assert same(db, "a", "b", (1, 2)) == 2
    assert [row for row in metrics(db, two) if row["mst_key"] < 3] == metrics(db, one)
    said = "\n".join(clients[1].connection.notices)
    assert re.search(rf"\d+ stages that run {one} trains are not trained twice", said)
    db.run("SELECT madlib.mop_replay(%s, 'c')", [two])
    assert db.value("SELECT count(*) FROM b JOIN c USING (mst_key) WHERE b.model_weights = c.model_weights") == 3
    db.run("DROP TABLE c, c_info, c_summary")


def test_an_explanation_tells_what_a_run_beside_trains_now(db, clients):
    with held(db, clients[0], call("a", "two")) as (first, one, _):
        explain = f"SELECT madlib.mop_explain($x${call('b', 'three')}$x$, 'json')"
        found, alone = (json.loads(clients[1].value(f"{more}; {explain}")) for more in ("", "SET pg_mop.reuse = off"))
        text = clients[1].value(f"SET pg_mop.reuse = on; SELECT madlib.mop_explain($x${call('b', 'three')}$x$)")
        assert db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [one]) == "running", (
            "it ended too early"
        )
    stages = found["stages"]
    assert stages["awaited"] > 0 and (stages["awaited_from"], stages["to_train"]) == ([one], ITERATIONS)
    assert stages["awaited"] + stages["found_trained"] == 2 * ITERATIONS
    assert found["prediction"]["training_units"] == 2 * ITERATIONS
    assert f"-> run {one} trains what is awaited now" in text
    assert (alone["stages"]["awaited"], alone["stages"]["to_train"]) == (0, 3 * ITERATIONS)
    assert first.end() is None


def test_more_iterations_go_on_from_where_the_first_run_ends(db, clients):
    first = Calling(clients[0], call("a", "two"))
    run_of(db, "a")
    second = Calling(clients[1], call("b", "two", ITERATIONS + 2))
    assert first.end() is None and second.end() is None
    assert trained(db, last(db, "b")) == {1: 4, 2: 4}


def test_fewer_iterations_do_not_wait_for_a_state_that_moves_on(db, clients):
    first = Calling(clients[0], call("a", "two", 400))
    run_of(db, "a")
    clients[1].run(call("b", "two", 2))  # (it may find an iteration that has just ended)
    assert set(trained(db, last(db, "b")).values()) <= {2, 4}
    db.run("SELECT pg_cancel_backend(%s)", [clients[0].connection.info.backend_pid])
    assert first.end().pgcode == "57014"


def test_metrics_that_the_first_run_does_not_measure(db, clients):
    """So it trains everything itself. (No unit begins until it is planned: the first run has ended no iteration by then.)"""
    for client in clients:
        client.run("SET pg_mop.chain_seconds = 0")
    with held(db, clients[0], call("a", "two", every="NULL")) as (first, one, _):
        assert set(trained(db, one).values()) == {1}
        second = Calling(clients[1], call("b", "two", every=2))
        two = asking(db, "b", one)
        assert set(trained(db, one).values()) == {1}, "a unit has begun meanwhile"
    assert first.end() is None and second.end() is None
    assert trained(db, one) == trained(db, two) == {1: 2 * ITERATIONS, 2: 2 * ITERATIONS}
    prediction = db.value("SELECT prediction FROM madlib.mop_run WHERE run_id = %s", [two])
    assert prediction["training_units"] == 4 * ITERATIONS, "it counts on the first run"
    assert {row["iteration"] for row in metrics(db, two)} == {2, 4, 6}


@pytest.mark.parametrize("end", ("pg_cancel_backend", "pg_terminate_backend"))
def test_a_run_that_dies_leaves_its_work_to_the_other(db, clients, end):
    iterations = 16
    with held(db, clients[0], call("a", "two", iterations)) as (first, one, let_some_begin):
        second = Calling(clients[1], call("b", "two", iterations))
        two = asking(db, "b", one)
        before = sum(trained(db, one).values())
        assert eventually(lambda: sum(trained(db, one).values()) > before + 8 or let_some_begin(), 90)
        assert not trained(db, two), "it waits"
        db.run(f"SELECT {end}(%s)", [clients[0].connection.info.backend_pid])
    assert first.end() is not None
    assert second.end() is None
    done = trained(db, two)  # (it may begin with iterations that the first run had ended)
    assert all(0 < done[key] <= 2 * iterations and done[key] % 2 == 0 for key in (1, 2))
    assert db.value("SELECT count(*) FROM b WHERE model_weights IS NOT NULL") == 2
    db.run("SELECT madlib.mop_replay(%s, 'c')", [two])
    assert db.value("SELECT count(*) FROM b JOIN c USING (mst_key) WHERE b.model_weights = c.model_weights") == 2
    db.run("DROP TABLE c, c_info, c_summary")
    if end == "pg_cancel_backend":  # the first run is whole, too
        clients[0].run(f"SELECT madlib.mop_resume({one})")
        assert trained(db, one) == {1: 2 * iterations, 2: 2 * iterations}
    else:
        db.run("SELECT madlib.mop_drop_run(%s)", [one])


def test_the_second_run_that_dies_leaves_the_first_whole(db, clients):
    with held(db, clients[0], call("a", "two", 20)) as (first, one, _):
        second = Calling(clients[1], call("b", "two", 20))
        two = asking(db, "b", one)
        db.run("SELECT pg_cancel_backend(%s)", [clients[1].connection.info.backend_pid])
        assert second.end().pgcode == "57014", "a run that waits hears a cancel"
    assert first.end() is None and trained(db, one) == {1: 40, 2: 40}
    clients[1].run(f"SELECT madlib.mop_resume({two})")
    assert db.value("SELECT count(*) FROM b WHERE model_weights IS NOT NULL") == 2


def test_a_configuration_that_fails_in_the_first_run_fails_in_the_second(db, clients):
    first = Calling(clients[0], call("a", "bad"))
    run_of(db, "a")
    second = Calling(clients[1], call("b", "bad"))
    assert first.end() is None and second.end() is None
    failed = db.run(
        "SELECT mst_key FROM madlib.mop_configuration WHERE run_id = %s AND error IS NOT NULL", [last(db, "b")]
    )
    assert [row["mst_key"] for row in failed] == [2]
    assert same(db, "a", "b", (1,)) == 1


@pytest.mark.parametrize(
    ("which", "setting"), ((0, "reuse = off"), (1, "reuse = off"), (1, "seed = 6"), (1, "priority = 1"))
)
def test_runs_that_share_nothing_do_not_wait(db, clients, which, setting):
    """Nor does a run wait for one of lower priority. (It may take over an iteration that ended before it began.)"""
    clients[which].run(f"SET pg_mop.{setting}")
    first = Calling(clients[0], call("a", "two", 400))
    run_of(db, "a")
    second = Calling(clients[1], call("b", "two", 400))
    assert eventually(lambda: sum(trained(db, last(db, "b") or 0).values()) >= 8, 60)
    for client, running in zip(clients, (first, second), strict=True):
        db.run("SELECT pg_cancel_backend(%s)", [client.connection.info.backend_pid])
        assert running.end().pgcode == "57014"


def test_a_rule_that_ends_a_configuration_early_waits_for_nothing(db, clients):
    fits = SLOW + ", stop={'patience': 1, 'min_delta': 10}"
    selection(db, "ruled", "arch", [(1, ADAM.format(0.01), fits)])
    first = Calling(clients[0], call("a", "two", 400))
    run_of(db, "a")
    clients[1].run(call("b", "ruled", 400))
    assert sum(trained(db, last(db, "b")).values()) < 20
    db.run("SELECT pg_cancel_backend(%s)", [clients[0].connection.info.backend_pid])
    assert first.end().pgcode == "57014"


def test_two_searches(db, clients):
    """The second one has the same trials: it trains at most a part of them."""
    search = "SELECT madlib.mop_search('flowers_packed', '{}', 'arch', %s, 'random', 'trials=6, iterations=4', 'loss')"
    first = Calling(clients[0], search.format("a") % f"$s${SPACE}$s$")
    run_of(db, "a")
    second = Calling(clients[1], search.format("b") % f"$s${SPACE}$s$")
    assert first.end() is None and second.end() is None
    one, two = (sum(trained(db, last(db, name)).values()) for name in ("a", "b"))
    assert one == 6 * 4 * 2 and two < one
    assert db.value("SELECT count(*) FROM b") == 6
