"""Runs of several sessions share the cores of a server by turns: priority, shares, preemption, starvation."""

import json
import random
import time

import pytest

from conftest import Calling, eventually
from workload import ADAM, dense, fit, last_run, load, make_data, selection

ROLES = [f"turn{n}" for n in range(10)]


@pytest.fixture
def roles(db):
    """{role: a session}, of roles that may use pg_mop."""
    for name in ROLES:
        db.run(f"CREATE ROLE {name} LOGIN; GRANT mop_user TO {name}; GRANT CREATE ON DATABASE {db.database} TO {name}")
    clients = {name: db.another(name) for name in ROLES}
    yield clients
    for client in clients.values():
        client.close()
    db.run("DELETE FROM madlib.mop_run; DELETE FROM madlib.mop_limit; DELETE FROM madlib.mop_role_turn")
    for name in ROLES:
        db.run(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


class Run:
    """A run in the catalog whose coordinator is a client's session. It asks for turns and trains nothing."""

    def __init__(self, client, priority=0, total=2):
        self.client, self.priority, self.total = client, priority, total
        client.run("SET application_name = 'pg_mop test'")  # (an idle session of another name coordinates nothing)
        told = {
            "function": "f", "source_table": "s", "model_output_table": "m", "seed": 1, "scheduler": "r",
            "num_iterations": 1, "metrics_iterations": [1], "configurations": 1, "segments": 1, "parameters": {},
            "coordinator": client.value("SELECT backend FROM madlib.mop_tokens"),
        }  # fmt: skip
        self.run_id = client.value("SELECT madlib.mop_open_run(%s, '[]')", [json.dumps(told)])

    def ask(self, wanted=2, busy=0, threads=1):
        """The cores that it may use."""
        return self.answer(wanted, busy, threads)["cores"]

    def answer(self, wanted=2, busy=0, threads=1):
        return self.client.run(
            "SELECT * FROM madlib.mop_take_turn(%s, 1, %s, %s, %s, %s, %s)",
            [self.run_id, wanted, busy, self.total, threads, self.priority],
        )[0]

    def close(self):
        self.client.run("SELECT madlib.mop_close_run(%s, 1, 'finished', NULL)", [self.run_id])


def pass_time(db, seconds):
    """Let this time pass for the account of all runs."""
    db.run(
        "UPDATE madlib.mop_turn SET charged_at = charged_at - %s * interval '1 second', "
        "waits_since = waits_since - %s * interval '1 second'",
        [seconds, seconds],
    )


def used(db):
    """{role: core-seconds} of its runs that go on."""
    rows = db.run("SELECT owner::text AS role, sum(core_seconds) AS used FROM madlib.mop_queue GROUP BY owner")
    return {row["role"]: row["used"] for row in rows}


def test_a_run_that_is_alone_has_all_and_leaves_what_it_does_not_want(db, roles):
    one, two = Run(roles["turn0"], total=4), Run(roles["turn1"], total=4)
    assert one.answer(4) == {"cores": 4, "alone": True, "others": 0}
    assert two.answer(4) == {"cores": 0, "alone": False, "others": 4}
    assert one.ask(1, busy=1) == 1 and two.ask(4) == 3
    one.close()
    assert two.answer(4) == {"cores": 4, "alone": True, "others": 0}


def test_priority_goes_first_once_what_others_have_begun_has_ended(db, roles):
    low, high = Run(roles["turn0"]), Run(roles["turn1"], priority=5)
    assert low.ask() == 2
    assert high.ask() == 0  # the other's commands are in progress
    assert low.ask(2, busy=1) == 0 and high.ask() == 1
    assert low.ask(2) == 0 and high.ask(2, busy=1) == 2
    row = db.run("SELECT state, ahead, priority, cores FROM madlib.mop_queue WHERE run_id = %s", [low.run_id])[0]
    assert row == {"state": "waits", "ahead": 1, "priority": 0, "cores": 0}
    db.run("SELECT madlib.mop_set_priority(%s, 6)", [low.run_id])
    assert high.ask(2) == 0 and low.ask() == 2


def test_a_run_that_has_waited_for_a_minute_gets_a_turn_whatever_the_priorities(db, roles):
    low, turns = Run(roles["turn0"], -5), 0
    for _ in range(130):  # seconds, of short runs of high priority
        high = Run(roles["turn1"], 50)
        turns += low.ask() > 0
        high.ask()
        turns += low.ask() > 0
        pass_time(db, 1)
        high.close()
        Run(roles["turn2"], 50).ask()
        db.run("DELETE FROM madlib.mop_run WHERE run_id = %s", [last_run(db)])
    assert turns >= 2


@pytest.mark.parametrize("weights", [dict.fromkeys(ROLES, 1), {"turn0": 3, "turn1": 1}])
def test_roles_have_cores_by_their_shares_whatever_their_number_of_runs_and_their_lengths(db, roles, weights):
    for name, weight in weights.items():
        db.run("INSERT INTO madlib.mop_limit (role, share) VALUES (%s, %s)", [name, weight])
    chance, ended = random.Random(3), dict.fromkeys(weights, 0.0)
    runs = {name: [Run(roles[name]) for _ in range(1 + n % 3)] for n, name in enumerate(weights)}
    for second in range(150):
        for run in sorted((run for own in runs.values() for run in own), key=lambda _: chance.random()):
            run.ask()
        for run in [run for own in runs.values() for run in own]:
            run.ask()
        pass_time(db, 1)
        if second % 7 == 6:  # a short run ends, and another one begins
            name = chance.choice(list(weights))
            gone = runs[name].pop(0)
            gone.ask(0)
            ended[name] += db.value("SELECT core_seconds FROM madlib.mop_queue WHERE run_id = %s", [gone.run_id])
            gone.close()
            runs[name].append(Run(roles[name]))
    total = {name: ended[name] + seconds for name, seconds in used(db).items()}
    shares = [total[name] / weights[name] for name in weights]
    jain = sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
    assert jain >= 0.95 and sum(total.values()) > 200, (jain, total)


def test_a_worker_of_many_threads_is_not_given_a_part_of_them_for_ever(db, roles):
    wide, narrow, trained = Run(roles["turn0"], total=4), Run(roles["turn1"], total=4), 0
    for _ in range(60):
        narrow.ask(1)
        trained += wide.ask(4, threads=4) == 4
        narrow.ask(1)
        pass_time(db, 1)
    assert 8 <= trained <= 52


def test_the_time_that_a_role_was_alone_is_not_held_against_it(db, roles):
    ann, ben = roles["turn0"], roles["turn1"]
    night = Run(ann)
    for _ in range(50):
        night.ask()
        pass_time(db, 9)
    night.close()
    there, back, trained = Run(ben), None, 0
    there.ask()
    back = Run(ann)
    for _ in range(30):
        there.ask()
        trained += back.ask() > 0
        there.ask()
        pass_time(db, 1)
    assert trained >= 10


def test_an_open_change_of_the_priority_does_not_end_the_run(db, roles):
    run, other = Run(roles["turn0"]), db.another()
    run.ask()
    other.connection.autocommit = False
    other.run("SELECT madlib.mop_set_priority(%s, 5)", [run.run_id])
    refused = run.client.error("SELECT madlib.mop_take_turn(%s, 1, 1, 0, 2, 1, 0)", [run.run_id])
    assert refused.pgcode == "55P03"
    other.connection.rollback()
    other.close()
    assert run.ask(1) == 1


def test_false_numbers_are_refused(db, roles):
    run = Run(roles["turn0"])
    bad = "10, 0, 2, 1, 0", "1, 10, 2, 1, 0", "1, 0, 9999, 1, 0", "1, 0, 2, 3, 0", "1, 0, 2, 1, 101", "NULL, 0, 2, 1, 0"
    for numbers in bad:
        error = run.client.error(f"SELECT madlib.mop_take_turn(%s, 1, {numbers})", [run.run_id])
        assert error.pgcode == "22023", numbers


def test_lost_and_silent_coordinators_do_not_count(db, roles):
    lost, silent, last = Run(db.another("turn0")), Run(roles["turn1"]), Run(roles["turn2"])
    assert lost.ask() == 2 and last.ask() == 0
    lost.client.close()
    assert eventually(lambda: last.ask() == 2)
    assert last.ask(0) == 0 and silent.ask() == 2 and last.ask() == 0
    pass_time(db, 11)
    assert last.ask() == 2
    assert silent.ask() == 0  # it is back, as a newcomer: nothing is charged for the time
    assert db.value("SELECT core_seconds FROM madlib.mop_queue WHERE run_id = %s", [silent.run_id]) == 0


def test_a_role_has_the_turns_of_its_own_runs_alone_and_no_higher_priority_than_it_may(db, roles):
    mine, other = Run(roles["turn0"]), roles["turn1"]
    assert mine.ask() == 2
    stolen = "SELECT madlib.mop_take_turn(%s, 1, 2, 0, 2, 1, 0)"
    assert f'there is no run {mine.run_id} of role "turn1"' in str(other.error(stolen, [mine.run_id]))
    assert "there is no run" in str(other.error("SELECT madlib.mop_set_priority(%s, 1)", [mine.run_id]))
    assert "has been taken over" in str(
        mine.client.error("SELECT madlib.mop_take_turn(%s, 7, 2, 0, 2, 1, 0)", [mine.run_id])
    )
    assert other.run("SELECT * FROM madlib.mop_queue") == []
    for name in ("mop_turn", "mop_role_turn", "mop_competing"):
        assert "permission denied" in str(other.error(f"SELECT * FROM madlib.{name}"))
    db.run("INSERT INTO madlib.mop_limit (role, max_priority) VALUES ('turn0', 3), (NULL, 0)")
    error = mine.client.error("SELECT madlib.mop_set_priority(%s, 4)", [mine.run_id])
    assert 'priority 4 is more than the 3 that role "turn0" may have' in str(error)
    mine.client.run(error.diag.message_hint)
    assert db.value("SELECT priority FROM madlib.mop_queue") == 3
    forged = Run(other, priority=100)
    forged.ask()
    assert db.value("SELECT priority FROM madlib.mop_queue WHERE run_id = %s", [forged.run_id]) == 0
    for bad, text in ((101, "from -100 to 100"), (None, "from -100 to 100"), (1.5, "integer")):
        assert text in str(mine.client.error("SELECT madlib.mop_set_priority(%s, %s)", [mine.run_id, bad]))
    db.run("DELETE FROM madlib.mop_limit")
    mine.close()
    assert "is not running" in str(db.error("SELECT madlib.mop_set_priority(%s, 0)", [mine.run_id]))


@pytest.fixture
def data(db):
    make_data(db, "turn_rows", rows=20_000, segments=2)
    load(db, "turn_arch", dense(64))
    rows = [(1, ADAM.format(rate), "batch_size=10") for rate in (0.1, 0.05, 0.01, 0.005)]
    selection(db, "turn_long", "turn_arch", rows)
    selection(db, "turn_short", "turn_arch", rows[:1])


@pytest.fixture
def ann(db, data):
    client = db.another()
    yield client
    client.close()


def test_a_run_of_high_priority_trains_first_and_the_other_loses_nothing(db, ann):
    """The long run is preempted at the end of a command: no unit is done twice, and its replay has the same weights."""
    db.run("SET pg_mop.chain_seconds = 0.2; SET pg_mop.threads = 2; SET pg_mop.reuse = off; SET pg_mop.kernel = 'loop'")
    ann.run("SET pg_mop.threads = 2; SET pg_mop.reuse = off; SET pg_mop.kernel = 'loop'; SET pg_mop.priority = 10")
    call = Calling(
        db.another(),
        "SET pg_mop.chain_seconds = 0.2; SET pg_mop.threads = 2; SET pg_mop.reuse = off; SET pg_mop.kernel = 'loop'; "
        "SELECT madlib.madlib_keras_fit_multiple_model('turn_rows_packed', 'turn_models', 'turn_long', 8, FALSE)",
    )
    assert eventually(lambda: db.value("SELECT count(*) FROM madlib.mop_units WHERE status = 'finished'") > 1, 60)
    long = last_run(db)
    short = fit(ann, "turn_rows_packed", "turn_models2", "turn_short", 2)
    assert call.end(120) is None
    times = {
        run: db.run("SELECT started_at AS began, finished_at AS ended FROM madlib.mop_units WHERE run_id = %s AND NOT shared "
                    "AND kind = 'train' ORDER BY 1", [run])
        for run in (long, short)
    }  # fmt: skip
    first, last = times[short][0]["began"], times[short][-1]["ended"]
    inside = [unit for unit in times[long] if first < unit["began"] < last]
    assert times[long][-1]["ended"] > last and not inside, (first, last, inside)
    assert (
        db.value("SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND kind = 'train' AND NOT shared", [long])
        == 64
    )
    db.run("SELECT madlib.mop_replay(%s, 'turn_again')", [long])
    assert db.value("SELECT count(*) FROM turn_models a JOIN turn_again b USING (mst_key) "
                    "WHERE a.model_weights = b.model_weights") == 4  # fmt: skip


def test_a_waiting_run_hears_a_cancel_and_its_owner_may_go(db, ann, data):
    db.run("CREATE ROLE turner LOGIN SUPERUSER")
    holder, waiter = db.another(), db.another("turner")
    blocks = Run(holder, priority=100)
    blocks.total = 1000
    waiter.run("SET pg_mop.sessions = 1")
    call = Calling(
        waiter,
        "SELECT madlib.madlib_keras_fit_multiple_model('turn_rows_packed', 'turn_models3', 'turn_short', 1, FALSE)",
    )

    def waits():
        blocks.ask(1000, busy=1000)
        return db.value("SELECT state FROM madlib.mop_queue WHERE owner = 'turner'") == "waits"

    assert eventually(waits, 60)
    began = time.monotonic()
    db.run("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'turner' AND state = 'active' "
           "AND query LIKE 'SELECT madlib.madlib_keras_fit%'")  # fmt: skip
    assert call.end(10).pgcode == "57014" and time.monotonic() - began < 5
    blocks.close()
    waiter.run("SELECT madlib.mop_resume((SELECT max(run_id) FROM madlib.mop_runs WHERE owner = 'turner'))")
    for client in (holder, waiter):
        client.close()
    db.run("DROP OWNED BY turner; DROP ROLE turner")


def test_a_bad_priority_is_refused_before_the_run_begins(db, ann, data):
    before = last_run(db)
    call = "SELECT madlib.madlib_keras_fit_multiple_model('turn_rows_packed', 'turn_models4', 'turn_short', 1, FALSE)"
    assert 'invalid value for setting "pg_mop.priority": "high"' in str(
        ann.error(f"SET pg_mop.priority = 'high'; {call}")
    )
    ann.run("SET pg_mop.priority = 5")
    db.run("INSERT INTO madlib.mop_limit (role, max_priority) VALUES (NULL, 2)")
    error = ann.error(call)
    db.run("DELETE FROM madlib.mop_limit")
    assert (
        "priority 5 is more than the 2 that role" in str(error)
        and error.diag.message_hint == "SET pg_mop.priority = 2;"
    )
    assert last_run(db) == before
