"""Runs of several sessions share the cores of a server by turns: priority, shares, preemption, starvation."""

import datetime
import json
import random
import time

import pytest

from support.client import Calling
from support.cluster import eventually
from support.tries import tries
from support.workload import ADAM, dense, fit, last_run, load, make_data, selection

ROLES = [f"turn{n}" for n in range(10)]


# The function takes back the real time since its last call. Rows that were written since then get the present time.
HOLD = """
CREATE TABLE turn_clock AS SELECT clock_timestamp() AS at;
CREATE FUNCTION hold_turn_clock() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    present timestamptz := clock_timestamp();
BEGIN
    UPDATE madlib.mop_turn SET charged_at = charged_at + (present - greatest(at, charged_at)),
        waits_since = waits_since + (present - greatest(at, waits_since)), deadline = deadline + (present - at)
    FROM public.turn_clock;
    UPDATE public.turn_clock SET at = present;
END
$$"""


class Clock:
    """The time of the account. It passes only where a test lets it pass, so a machine that stands still changes nothing."""

    def __init__(self, db):
        self.db = db
        db.run(HOLD)

    def close(self):
        self.db.run("DROP FUNCTION hold_turn_clock(); DROP TABLE turn_clock")

    def go(self, seconds):
        """Let this time pass."""
        self.db.run(
            "UPDATE madlib.mop_turn SET charged_at = charged_at - %(go)s, waits_since = waits_since - %(go)s, "
            "deadline = deadline - %(go)s",
            {"go": datetime.timedelta(seconds=seconds)},
        )

    def now(self, client, sql, args):
        """Run a query in no time: again, where a part of a second has passed meanwhile."""
        while True:
            client.run("BEGIN; SELECT public.hold_turn_clock()")
            began = time.monotonic()
            rows = client.run(sql, args)
            is_quick = time.monotonic() - began < 0.5
            client.run("COMMIT" if is_quick else "ROLLBACK")
            if is_quick:
                return rows


@pytest.fixture
def roles(db):
    """{role: a session}, of roles that may use pg_mop. Their runs have a clock of their own."""
    for name in ROLES:
        db.run(f"CREATE ROLE {name} LOGIN; GRANT mop_user TO {name}; GRANT CREATE ON DATABASE {db.database} TO {name}")
    clients = {name: db.another(name) for name in ROLES}
    Run.clock = Clock(db)
    yield clients
    Run.clock.close()
    Run.clock = None
    for client in clients.values():
        client.close()
    db.run("DELETE FROM madlib.mop_run; DELETE FROM madlib.mop_limit; DELETE FROM madlib.mop_role_turn")
    for name in ROLES:
        db.run(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


class Run:
    """A run in the catalog whose coordinator is a client's session. It asks for turns and trains nothing."""

    clock = None  # real time

    def __init__(self, client, priority=0, total=2, deadline=None, left=None):
        self.client, self.priority, self.total, self.deadline, self.left = client, priority, total, deadline, left
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
        sql = "SELECT * FROM madlib.mop_take_turn(%s, 1, %s, %s, %s, %s, %s, now() + %s * interval '1 second', %s)"
        args = [self.run_id, wanted, busy, self.total, threads, self.priority, self.deadline, self.left]
        return (self.clock.now(self.client, sql, args) if self.clock else self.client.run(sql, args))[0]

    def close(self):
        self.client.run("SELECT madlib.mop_close_run(%s, 1, 'finished', NULL)", [self.run_id])


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
        Run.clock.go(1)
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
        Run.clock.go(1)
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


def shared(db, runs, seconds):
    """Let the runs train for so many seconds, side by side: {run: core-seconds}."""
    for _ in range(seconds):
        for run in 3 * runs:  # (one that waits asks often: cores that another leaves are not idle for a second)
            run.ask()
        Run.clock.go(1)
        for run in runs:
            if run.left is not None:  # what it has trained, alone or beside others
                has = db.value("SELECT cores FROM madlib.mop_turn WHERE run_id = %s", [run.run_id])
                run.left = max(0, run.left - has / run.total)
    for run in runs:
        run.ask(0)  # so that it is charged
    rows = db.run("SELECT run_id, core_seconds FROM madlib.mop_queue")
    had = {row["run_id"]: row["core_seconds"] for row in rows}
    return [had[run.run_id] for run in runs]


SLOT = 9  # core-seconds: a run may go on until the account, which is written every 3 seconds, has it a second ahead


def test_runs_of_one_role_take_turns_of_seconds_not_of_minutes(db, roles):
    one, two = Run(roles["turn0"]), Run(roles["turn0"])
    assert shared(db, [one, two], 40) == pytest.approx([40, 40], abs=SLOT)
    for run in (one, two):
        run.close()
    one, two, other = Run(roles["turn0"]), Run(roles["turn0"]), Run(roles["turn1"])
    had = shared(db, [one, two, other], 80)
    assert had[2] == pytest.approx(80, abs=SLOT) and had[:2] == pytest.approx([40, 40], abs=SLOT), had


def test_a_run_that_would_be_late_goes_before_its_roles_others_and_takes_nothing_from_other_roles(db, roles):
    calm, late, other = Run(roles["turn0"]), Run(roles["turn0"], deadline=72, left=28), Run(roles["turn1"])
    had = shared(db, [calm, late, other], 44)
    assert had[2] == pytest.approx(44, abs=SLOT), had
    assert had[1] > 30 and had[0] < SLOT, had


def test_a_deadline_that_is_far_away_changes_nothing_and_one_that_is_past_neither(db, roles):
    calm, far, missed = (
        Run(roles["turn0"]),
        Run(roles["turn0"], deadline=99_999, left=10),
        Run(roles["turn0"], deadline=-5, left=9),
    )
    had = shared(db, [calm, far, missed], 60)
    assert had == pytest.approx([40, 40, 40], abs=SLOT), had


def test_the_earliest_deadline_goes_first_and_one_that_cannot_be_made_has_no_precedence(db, roles):
    runs = [
        Run(roles["turn0"]),
        Run(roles["turn0"], deadline=20, left=500),  # it will be late anyway: as good as no deadline
        Run(roles["turn0"], deadline=900, left=400),
        Run(roles["turn0"], deadline=800, left=400),
        Run(roles["turn0"], deadline=700),  # nobody knows what it takes: likewise
        Run(roles["turn1"], priority=-1, deadline=10, left=9),
    ]
    for run in runs:
        run.ask(0)
    order = [row["run_id"] for row in db.run("SELECT run_id FROM madlib.mop_turn_order(2) ORDER BY place")]
    assert order == [runs[n].run_id for n in (3, 2, 0, 1, 4, 5)]
    assert "permission denied" in str(roles["turn0"].error("SELECT * FROM madlib.mop_turn_order(2)"))


def test_the_queue_tells_when_a_run_will_train_and_end(db, roles):
    def queue(run):
        return Run.clock.now(
            db,
            "SELECT extract(epoch FROM turn_at - now())::float8 AS turn, extract(epoch FROM ends_at - now())::float8 AS ends, "
            "extract(epoch FROM deadline - now())::float8 AS deadline FROM madlib.mop_queue WHERE run_id = %s",
            [run.run_id],
        )[0]

    alone = Run(roles["turn0"], left=100, deadline=500)
    alone.ask()
    row = queue(alone)
    assert (
        row["turn"] is None
        and row["ends"] == pytest.approx(100, abs=5)
        and row["deadline"] == pytest.approx(500, abs=5)
    )
    high = Run(roles["turn1"], priority=3, left=20)
    high.ask(), alone.ask(), high.ask(), alone.ask()
    row = queue(alone)  # the other ends before a minute has passed; afterwards this one has all cores
    assert row["turn"] == pytest.approx(20, abs=5) and row["turn"] < row["ends"]
    assert queue(high)["turn"] is None and queue(high)["ends"] == pytest.approx(20, abs=5)
    high.left = None
    high.ask(), Run.clock.go(5), high.ask(), alone.ask()
    assert queue(high)["ends"] is None and queue(alone)["turn"] == pytest.approx(55, abs=6), "a minute at most"
    equal = Run(roles["turn2"], priority=3, left=10)
    equal.ask()
    assert queue(equal)["turn"] < 12 and queue(equal)["ends"] == pytest.approx(queue(equal)["turn"] + 20, abs=5)
    sees = "SELECT turn_at, ends_at FROM madlib.mop_turn_outlook(%s)"
    assert roles["turn3"].run(sees, [equal.run_id]) == [{"turn_at": None, "ends_at": None}]
    assert roles["turn2"].value(sees, [equal.run_id]) is not None
    assert "no token" in str(roles["turn3"].error("SELECT madlib.mop_turn_outlook(%s, '10 x')", [equal.run_id]))


def test_the_time_that_a_role_was_alone_is_not_held_against_it(db, roles):
    ann, ben = roles["turn0"], roles["turn1"]
    night = Run(ann)
    for _ in range(50):
        night.ask()
        Run.clock.go(9)
    night.close()
    there, back, trained = Run(ben), None, 0
    there.ask()
    back = Run(ann)
    for _ in range(30):
        there.ask()
        trained += back.ask() > 0
        there.ask()
        Run.clock.go(1)
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
    bad = (
        "1, 0, 2, 1, 0, 'infinity'",
        "1, 0, 2, 1, 0, NULL, -1",
        "1, 0, 2, 1, 0, NULL, 'NaN'",
        "10, 0, 2, 1, 0",
        "1, 10, 2, 1, 0",
        "1, 0, 9999, 1, 0",
        "1, 0, 2, 3, 0",
        "1, 0, 2, 1, 101",
        "NULL, 0, 2, 1, 0",
    )
    for numbers in bad:
        error = run.client.error(f"SELECT madlib.mop_take_turn(%s, 1, {numbers})", [run.run_id])
        assert error.pgcode == "22023", numbers


def test_lost_and_silent_coordinators_do_not_count(db, roles):
    lost, silent, last = Run(db.another("turn0")), Run(roles["turn1"]), Run(roles["turn2"])
    assert lost.ask() == 2 and last.ask() == 0
    lost.client.close()
    assert eventually(lambda: last.ask() == 2)
    assert last.ask(0) == 0 and silent.ask() == 2 and last.ask() == 0
    Run.clock.go(11)
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
    for once in tries():  # (a run that has not asked for ten seconds, since the machine stood still, loses its turn)
        db.run("DROP TABLE IF EXISTS turn_models, turn_models_info, turn_models_summary")
        call = Calling(
            db.another(),
            "SET pg_mop.chain_seconds = 0.2; SET pg_mop.threads = 2; SET pg_mop.reuse = off; SET pg_mop.kernel = 'loop'; "
            "SELECT madlib.madlib_keras_fit_multiple_model('turn_rows_packed', 'turn_models', 'turn_long', 8, FALSE)",
        )
        at_work = (
            "SELECT count(*) FROM madlib.mop_units JOIN madlib.mop_runs r USING (run_id) WHERE r.status = 'running'"
        )
        assert eventually(lambda sql=at_work: db.value(f"{sql} AND mop_units.status = 'finished'") > 1, 120)
        long = last_run(db)
        short = fit(ann, "turn_rows_packed", "turn_models2", "turn_short", 2)
        assert call.end() is None
        times = {
            run: db.run("SELECT started_at AS began, finished_at AS ended FROM madlib.mop_units WHERE run_id = %s AND NOT "
                        "shared AND kind = 'train' ORDER BY 1", [run])
            for run in (long, short)
        }  # fmt: skip
        first, last = times[short][0]["began"], times[short][-1]["ended"]
        inside = [unit for unit in times[long] if first < unit["began"] < last]
        once.counts = not inside
    assert times[long][-1]["ended"] > last, (first, last)
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

    def waits():
        blocks.ask(1000, busy=1000)
        return db.value("SELECT state FROM madlib.mop_queue WHERE owner = 'turner'") == "waits"

    for once in tries():  # (the machine may stand still while it is heard)
        call = Calling(
            waiter,
            "SELECT madlib.madlib_keras_fit_multiple_model('turn_rows_packed', 'turn_models3', 'turn_short', 1, FALSE)",
        )
        assert eventually(waits, 120)
        began = time.monotonic()
        db.run("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'turner' AND state = 'active' "
               "AND query LIKE 'SELECT madlib.madlib_keras_fit%'")  # fmt: skip
        assert call.end().pgcode == "57014"
        once.counts = time.monotonic() - began < 5
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", 'invalid value for setting "pg_mop.deadline": "soon"'),
        ("infinity", 'invalid value for setting "pg_mop.deadline"'),
        ("2020-01-01", "is not in the future"),
        ("-2 hours", "is not in the future"),
        ("2020-13-45", 'invalid value for setting "pg_mop.deadline"'),
        ("9999 years", "is beyond the year 9999"),
        ("17:00", 'ambiguous value for setting "pg_mop.deadline": "17:00"'),
    ],
)
def test_a_bad_deadline_is_refused_before_the_run_begins(db, ann, data, text, message):
    before = last_run(db)
    call = "SELECT madlib.madlib_keras_fit_multiple_model('turn_rows_packed', 'turn_models5', 'turn_short', 1, FALSE)"
    ann.run("SELECT set_config('pg_mop.deadline', %s, false)", [text])
    error = ann.error(call)
    assert message in str(error) and error.pgcode == "22023"
    assert message in str(ann.error("SELECT madlib.mop_explain(%s)", [call]))
    ann.run(error.diag.message_hint.split(" or ")[0])
    assert last_run(db) == before
    ann.run("RESET pg_mop.deadline")


def test_a_run_that_cannot_make_its_deadline_says_so_at_its_begin_and_so_does_explain(db, ann, data):
    call = "SELECT madlib.madlib_keras_fit_multiple_model('turn_rows_packed', 'turn_models6', 'turn_long', 2, FALSE)"
    ann.run("SET pg_mop.reuse = off; SET pg_mop.deadline = '10 days'")
    assert "Deadline: " in (text := ann.value("SELECT madlib.mop_explain(%s)", [call])) and " late, even" not in text
    ann.run("SET pg_mop.deadline = '0.2 s'")
    assert "late, even if it is alone" in ann.value("SELECT madlib.mop_explain(%s)", [call])
    del ann.connection.notices[:]
    ann.run(call)
    (said,) = [text for text in ann.connection.notices if "after its deadline" in text]
    assert said.startswith("WARNING:  this run is expected to end") and "HINT:" in said and "DETAIL:" in said
    logged = "SELECT parameters #>> '{settings,deadline}' FROM madlib.mop_run WHERE run_id = %s"
    assert db.value(logged, [last_run(db)]).startswith("20"), "an interval is logged as the time that it means"
    ann.run("SET pg_mop.deadline = '1 day'; DROP TABLE turn_models6, turn_models6_info, turn_models6_summary")
    del ann.connection.notices[:]
    call = call.replace("turn_long', 2,", "turn_long', 12,")
    running = Calling(ann, call)
    seen = []

    def looked():  # (a run that ends while the view is read has no outlook)
        seen.extend(
            db.run("SELECT q.ends_at < q.deadline AS makes_it, t.left_seconds AS seconds FROM madlib.mop_queue q "
                   "JOIN madlib.mop_turn t USING (run_id) WHERE q.ends_at IS NOT NULL")
        )  # fmt: skip
        return not running.thread.is_alive()

    assert eventually(looked, 300) and running.end() is None
    assert not [text for text in ann.connection.notices if "deadline" in text]
    assert seen and all(row["makes_it"] for row in seen)
    assert seen[-1]["seconds"] < seen[0]["seconds"], "less is left"
    # a deadline in the session is no concern of what does not train
    ann.run("SET pg_mop.deadline = '2020-01-01'")
    ann.run("SELECT madlib.madlib_keras_evaluate('turn_models6', 'turn_rows_packed', 'turn_eval6', FALSE, 1)")
