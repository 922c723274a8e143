"""Threads by what is left to do: the rule, its costs, and its use in simulated time."""

import math

import pytest

from pg_mop.plan.stages import Plan
from pg_mop.schedule.board import Board
from pg_mop.schedule.dealing import LEASE, START, Dealer, LoggedThreads, Threads, shares
from pg_mop.schedule.dealing_by_server import ServerDealers
from pg_mop.schedule.randomized import Randomized
from pg_mop.schedule.simulator import makespan, simulate
from pg_mop.schedule.unit import Unit


class Costs:
    """Units of `seconds[mst_key]`, of which `parallel` is divided among threads."""

    def __init__(self, seconds, parallel=1.0, ready=1.0, least=1):
        self.seconds, self.parallel, self.making, self.least = seconds, parallel, ready, least

    def certain(self, stage):
        return self.seconds[stage.mst_key]

    def speedup(self, stage, threads):
        return 1 / (1 - self.parallel + self.parallel * self.least / threads)

    def ready(self, stage, threads):
        return self.making


def made(iterations, segments=2, sessions=None, evaluated=()):
    """(plan, board) of configurations with so many iterations: {mst_key: n}."""
    plan = Plan()
    for key, count in iterations.items():
        plan.ask(key, f"root of {key}", lambda iteration: ("", ""), until=count, evaluated=evaluated)
    board = Board(plan, range(segments))
    board.anywhere = True
    board.serve(range(sessions or segments))
    return plan, board


def dealer_of(board, costs, cores=2, least=1):
    return Dealer(board, cores, least, lambda number: board.plan.stages[number].mst_key, costs)


def simulated(iterations, costs, cores=2, least=1, deals=True, **more):
    plan, board = made(iterations, **more)
    dealer = dealer_of(board, costs, cores, least) if deals else None
    seconds = lambda unit: costs.seconds[plan.stages[unit.stage].mst_key]  # noqa: E731
    return simulate(board, Randomized(board, 1), seconds, dealer=dealer)


def test_shares_by_what_is_left():
    assert shares({1: 50.0, 2: 50.0}, 8, 1) == {1: 4, 2: 4}
    assert shares({1: 99.0, 2: 1.0}, 2, 1) == {1: 1, 2: 1}
    assert shares({1: 3.0}, 2, 1) == {1: 2}
    assert shares({}, 2, 1) == {} and shares({1: 0.0}, 2, 1) == {1: 1}
    assert shares({1: 90.0, 2: 10.0}, 16, 4) == {1: 12, 2: 4}


@pytest.mark.parametrize("cores", (2, 5, 8, 64))
def test_shares_leave_no_core_and_take_no_more_than_there_are(cores):
    for count in range(1, cores + 1):
        found = shares({number: 1.0 + number**2 for number in range(count)}, cores, 1)
        assert sum(found.values()) == cores and min(found.values()) >= 1


def test_the_large_configuration_that_is_left_gets_all_cores():
    costs = Costs({1: 1.0, 2: 5.0})
    fixed, dealt = (simulated({1: 2, 2: 10}, costs, deals=deals) for deals in (False, True))
    assert makespan(fixed) == 100.0
    last = max(dealt, key=lambda visit: visit.end)
    assert last.threads == 2 and {visit.threads for visit in dealt} == {1, 2}
    assert makespan(dealt) < 60
    small = max(visit.end for visit in dealt if visit.unit.stage in (1, 2))
    assert all(visit.threads == 1 for visit in dealt if visit.start < small), "there was work for both sessions"


def test_many_configurations_have_the_units_and_threads_of_a_run_that_deals_nothing():
    costs = Costs(dict.fromkeys(range(1, 9), 1.0))
    iterations = dict.fromkeys(range(1, 9), 3)
    fixed, dealt = (simulated(iterations, costs, cores=4, least=1, deals=deals, segments=4) for deals in (False, True))
    assert [(v.unit, v.worker, v.start, v.end) for v in dealt] == [(v.unit, v.worker, v.start, v.end) for v in fixed]
    assert {visit.threads for visit in dealt} == {1}


@pytest.mark.parametrize(
    "costs",
    [
        Costs({1: 0.01, 2: 0.05}),  # all is done before another trainer is ready
        Costs({1: 1.0, 2: 5.0}, parallel=0.0),  # more threads are no faster
        Costs({1: 1.0, 2: 5.0}, parallel=0.1),
        Costs({1: 0.0, 2: 0.0}),  # nobody knows what is left
    ],
)
def test_nothing_changes_where_it_does_not_pay(costs):
    assert {visit.threads for visit in simulated({1: 2, 2: 10}, costs)} == {1}


def test_the_cost_of_another_trainer_is_paid_once():
    plan, board = made({1: 10})
    dealer = dealer_of(board, Costs({1: 5.0}, ready=3.0))
    first, second, third = (Unit(1, 1, "train", "training", segment) for segment in (0, 1, 0))
    dealer.costs.seconds[1] = 0.0  # unknown at first
    board.start(first)
    assert dealer.begin(0, first, [0], lambda cores: True) == 1 and dealer.cost == 0.0
    dealer.finished(0, first, 9.0)  # it made the net ready: these are not the seconds of a unit
    board.finish(first)
    dealer.costs.seconds[1] = 5.0
    board.start(second)
    dealer.costs.making = 100.0
    assert dealer.begin(0, second, [0], lambda cores: True) == 1, "the net takes too long to be made ready again"
    dealer.costs.making = 3.0
    assert dealer.begin(0, second, [0], lambda cores: True) == 2 and dealer.cost == START + 3.0
    assert dealer.begin(0, third, [0], lambda cores: True) == 2 and dealer.cost == 0.0
    assert dealer.begin(0, third, [0], lambda cores: cores <= 1) == 1, "another run wants the other core"
    assert dealer.cost == LEASE


def test_what_the_run_measures_counts_more_than_a_guess():
    plan, board = made({1: 100})
    dealer = dealer_of(board, Costs({1: 5.0}))
    unit = Unit(1, 1, "train", "training", 0)

    def trained(seconds):
        board.start(unit)
        chosen = dealer.begin(0, unit, [0], lambda cores: True)
        dealer.finished(0, unit, seconds)
        board.release(unit)
        return chosen

    dealer.costs.parallel = 0.0
    assert trained(9.0) == 1 and trained(5.0) == 1
    dealer.costs.parallel = 1.0
    assert [trained(9.0)] + [trained(4.9) for _ in range(3)] == [2, 2, 2, 2], "the first one made its net ready"
    assert trained(5.0) == 1, "twice the threads, and hardly faster"
    assert trained(20.0) == trained(20.0) == 1, "and that once for all"


def test_threads_that_the_run_finds_fast_stay():
    plan, board = made({1: 100})
    dealer = dealer_of(board, Costs({1: 5.0}, parallel=0.5))
    unit = Unit(1, 1, "train", "training", 0)
    for seconds in (9.0, 3.0, 3.5, 2.9, 3.1, 3.0):
        board.start(unit)
        assert dealer.begin(0, unit, [0], lambda cores: True) == 2
        dealer.finished(0, unit, seconds)
        board.release(unit)


def test_a_configuration_that_comes_later_gets_its_threads():
    plan, board = made({1: 10})
    dealer = dealer_of(board, Costs({1: 5.0, 2: 5.0}))
    unit = Unit(1, 1, "train", "training", 0)
    board.start(unit)
    assert dealer.begin(0, unit, [0], lambda cores: True) == 2
    board.finish(unit)
    board.add(plan.ask(2, "root of 2", lambda iteration: ("", ""), until=10, evaluated=()))
    unit = Unit(1, 1, "train", "training", 1)
    board.start(unit)
    assert dealer.begin(0, unit, [0], lambda cores: True) == 1


@pytest.mark.parametrize("others", (0, 1))
def test_a_chain_of_several_stages_counts_as_one_path(others):
    """A command trains two iterations of a configuration. With no other configuration, it has both cores."""
    plan, board = made(dict.fromkeys(range(1 + others), 4))
    dealer = dealer_of(board, Costs(dict.fromkeys(range(1 + others), 5.0)))
    chain = [board.unit(number, "train", "training", segment) for number in (1, 2) for segment in (0, 1)]
    for unit in chain:
        board.start(unit)
    assert board.training == {1, 2}
    assert dealer.begin(0, chain[0], [0], lambda cores: True) == 2 - others


def test_an_evaluation_has_the_threads_of_the_trainer():
    plan, board = made({1: 4}, evaluated=(2, 4))
    visits = simulate(board, Randomized(board, 1), lambda unit: 5.0, dealer=dealer_of(board, Costs({1: 5.0})))
    assert "evaluate" in {visit.unit.kind for visit in visits}
    trained = {visit.worker: visit.threads for visit in visits if visit.unit.kind == "train"}
    assert all(visit.threads == trained.get(visit.worker, 1) for visit in visits)


def test_several_paths_share_the_cores_by_what_is_left():
    costs = Costs({1: 1.0, 2: 3.0, 3: 1.0, 4: 1.0})
    visits = simulated({1: 20, 2: 20, 3: 1, 4: 1}, costs, cores=8, least=2, segments=4)
    fixed = simulated({1: 20, 2: 20, 3: 1, 4: 1}, costs, cores=8, least=2, segments=4, deals=False)
    at = lambda visits, time: sum(v.threads for v in visits if v.start <= time < v.end)  # noqa: E731
    assert all(at(visits, visit.start) <= 8 for visit in visits)
    assert makespan(visits) < makespan(fixed) and max(visit.threads for visit in visits) > 4


def test_a_fork_ends_a_path():
    plan = Plan()
    for key in (1, 2):
        plan.ask(key, "one root", lambda iteration, key=key: ("", f"{key * (iteration > 2)}"), until=10, evaluated=())
    board = Board(plan, range(2))
    board.anywhere = True
    board.serve(range(2))
    dealer = dealer_of(board, Costs({1: 1.0, 2: 1.0}))
    assert dealer._paths() == {1: 4.0}, "two iterations on two segments, then there are two paths"


def test_fixed_and_logged_threads():
    unit, other = Unit(1, 1, "train", "training", 0), Unit(1, 1, "train", "training", 1)
    assert Threads(None).begin(0, unit, [], lambda cores: True) is None and Threads(3).of(7) == 3
    log = LoggedThreads(1, {unit: 2})
    assert [log.begin(0, one, [], lambda cores: False) for one in (unit, other)] == [2, 1] and log.of(0) == 1
    assert log.logged(unit) == 2 and Threads(1).logged(unit) is None


def test_hardly_ever_slower():
    """Whatever the work is, dealing costs at most the estimate's error: here it has none."""
    for seed in range(10):
        count, cores = 1 + seed % 5, 2 + seed % 7
        seconds = {key: 0.3 * (1 + (seed * key * 7919) % 13) for key in range(1, count + 1)}
        costs = Costs(seconds, parallel=0.9)
        iterations = {key: 1 + (seed * key * 104729) % 9 for key in seconds}
        fixed, dealt = (
            makespan(
                simulated(
                    iterations, costs, cores=cores, segments=2 + seed % 3, deals=deals, least=math.ceil(cores / 8)
                )
            )
            for deals in (False, True)
        )
        assert dealt <= 1.1 * fixed + 1, (seed, fixed, dealt)


# --- several servers ------------------------------------------------------------------------------------------------

KEYS = {
    ("training", 0): None,
    ("training", 1): None,
    ("training", 2): "w1",
    ("training", 3): "w1",
    ("training", 4): "w2",
}
CORES = {None: 2, "w1": 8, "w2": 4, "w3": 4}


def on_servers(iterations, costs, deals=True, guest=False):
    """(board, visits) of configurations on three servers, with two, two and one worker."""
    plan = Plan()
    for key, count in iterations.items():
        plan.ask(key, f"root of {key}", lambda iteration: ("", ""), until=count)
    board = Board(plan, range(5), (), KEYS)
    if guest:
        board.copies = {2: ["w1", "w3"], 3: ["w1", "w3"]}
        board.invite("w3", 2, board.workers)
        board.serve(range(7))

    def make(server):
        def among():
            return [worker for worker in board.workers if board.server(worker) == server]

        there = sum(board.server_of["training", segment] == server for segment in board.segments)
        return Dealer(
            board,
            CORES[server],
            max(1, CORES[server] // len(among())),
            lambda number: plan.stages[number].mst_key,
            costs,
            among=among,
            part=lambda: max(1, there) / 5,
        )

    dealers = ServerDealers(board, make) if deals else None
    seconds = lambda unit: costs.seconds[plan.stages[unit.stage].mst_key]  # noqa: E731
    return board, simulate(board, Randomized(board, 1), seconds, dealer=dealers)


def threads_at(board, visits, server, key):
    plan = board.plan
    return [
        v.threads
        for v in sorted(visits, key=lambda v: v.start)
        if board.server(v.worker) == server and plan.stages[v.unit.stage].mst_key == key
    ]


def test_each_server_deals_its_own_cores_to_the_configuration_that_is_left():
    costs = Costs({1: 1.0, 2: 1.0, 3: 10.0})
    board, visits = on_servers({1: 2, 2: 2, 3: 12}, costs)
    assert {server: threads_at(board, visits, server, 3)[-1] for server in (None, "w1", "w2")} == {
        None: 2,
        "w1": 8,
        "w2": 4,
    }
    others = min(
        v.end for v in visits if v.unit.stage in (2, 4)
    )  # (until then there are as many paths as workers on w1)
    assert {v.threads for v in visits if v.start < others and board.server(v.worker) == "w1"} == {4}
    for server in (None, "w1", "w2"):
        for visit in visits:
            beside = [v for v in visits if v.start <= visit.start < v.end and board.server(v.worker) == server]
            assert sum(v.threads for v in beside) <= CORES[server], "a server has no more threads than cores"
    assert len(visits) == len({v.unit for v in visits}) == 5 * (2 + 2 + 12)


def test_dealt_threads_on_servers_shorten_the_run():
    costs = Costs({1: 1.0, 2: 1.0, 3: 10.0})
    fixed, dealt = (makespan(on_servers({1: 2, 2: 2, 3: 12}, costs, deals)[1]) for deals in (False, True))
    assert dealt < fixed / 1.4
    slow = Costs({1: 1.0, 2: 1.0, 3: 10.0}, parallel=0.0)
    fixed, dealt = (makespan(on_servers({1: 2, 2: 2, 3: 12}, slow, deals)[1]) for deals in (False, True))
    assert dealt <= fixed, "where more threads are no faster, none is dealt"


def test_a_server_that_joins_deals_its_cores_too():
    board, visits = on_servers({1: 2, 2: 2, 3: 12}, Costs({1: 1.0, 2: 1.0, 3: 10.0}), guest=True)
    assert {v.threads for v in visits if board.server(v.worker) == "w3"} <= {2, 4}
    assert len(visits) == len({v.unit for v in visits}) == 5 * (2 + 2 + 12)
