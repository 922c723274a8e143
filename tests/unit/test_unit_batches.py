"""Units that go together, on simulated runs: which, how many, and that nobody has to wait for it."""

import itertools
import random
from collections import Counter

import pytest

from pg_mop.plan import identity
from pg_mop.plan.stages import Plan
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.logged import Logged
from pg_mop.schedule.simulator import makespan, simulate
from pg_mop.schedule.unit_batches import (
    EVALUATED_BYTES,
    MOST,
    MOST_UNMEASURED,
    SECONDS,
    TRAINED_BYTES,
    UnitBatches,
    units_of,
)
from support.conformance.schedulers import board_of, orders
from support.plans import chains
from support.simulated import (
    AROUND,
    assert_chains_pay,
    assert_not_idle_for_batches,
    assert_orders_in_batches_are_equally_likely,
    commands,
)
from support.simulated import in_batches as run


def sizes(visits):
    """How many units went together, each time."""
    return list(Counter((v.worker, v.start) for v in visits if v.unit.kind == "train").values())


def test_short_units_go_in_groups_and_sooner():
    together, _ = run(200, 2, 3, 0.002, alike=lambda number: 0)
    alone, _ = run(200, 2, 3, 0.002, grouped=False)
    assert max(sizes(together)) <= MOST and sum(sizes(together)) / len(sizes(together)) > 6
    assert makespan(together) < 0.5 * makespan(alone)
    for (_, start), units in itertools.groupby(
        sorted((v for v in together if v.unit.kind == "train"), key=lambda v: (v.worker, v.start)),
        lambda v: (v.worker, v.start),
    ):
        assert len({v.unit.segment for v in units}) == 1, f"of one segment (at {start})"


def test_a_place_of_several_segments_has_groups_as_large():
    visits, _ = run(200, 8, 2, 0.002, workers=2, alike=lambda number: 0)
    assert sum(sizes(visits)) / len(sizes(visits)) > 6
    assert all(
        len({v.unit.segment for v in units}) == 1
        for _, units in itertools.groupby(
            sorted((v for v in visits if v.unit.kind == "train"), key=lambda v: (v.worker, v.start)),
            lambda v: (v.worker, v.start),
        )
    )


@pytest.mark.parametrize("name", [name for name, kind in SCHEDULERS.items() if kind.ANYWHERE])
def test_a_worker_that_waits_for_memory_gets_no_affinity(name):
    """Else other workers would leave the net to it."""
    board = Board(chains(4, 1), range(2))
    board.anywhere = True
    board.serve(range(2))
    scheduler, may = SCHEDULERS[name](board, 1, lambda number: "net"), set()
    batches = UnitBatches(
        board, scheduler, lambda number: 0, lambda number: 1, may_begin=lambda worker, unit: worker in may
    )
    assert batches.choose(0) == [] and not board.training
    assert (scheduler.affinity, scheduler.compiled, scheduler.evaluating) == ({}, set(), {0: None})
    may.add(1)
    ((unit, *_),) = batches.choose(1)
    assert unit.kind == "train" and set(scheduler.affinity.values()) == {1}


def test_long_units_go_alone():
    visits, _ = run(200, 2, 2, SECONDS)
    assert set(sizes(visits)) == {1}


def test_what_is_not_known_yet_goes_alone():
    visits, _ = run(30, 1, 1, 0.002)
    assert set(sizes(visits)) == {1}, "each configuration's seconds are its own here: nobody knows another's"


def test_what_earlier_runs_have_found_short_goes_together_at_once():
    board = Board(chains(40, 2), range(2))
    scheduler = SCHEDULERS["randomized"](board, 1, expected=lambda stage: 0.002)
    batches = UnitBatches(board, scheduler, lambda number: number, lambda number: 1)
    (units,) = batches.choose(0)
    assert len(units) == MOST_UNMEASURED
    for unit in units:
        board.finish(unit)
        batches.finished(unit, 0.05)  # of this, most is what compiles
    assert all(0.02 < batches.seconds[unit.stage, 0] < 0.03 for unit in units)


@pytest.mark.parametrize("name", ["randomized", "longest-first"])
def test_what_earlier_runs_have_found_much_shorter_goes_together_once_in_a_place(name):
    board = Board(chains(64, 2), range(2))
    scheduler = SCHEDULERS[name](board, 1, expected=lambda stage: 0.01)
    batches = UnitBatches(board, scheduler, lambda number: number, lambda number: 1)
    visits = simulate(board, scheduler, lambda unit: 1.0, batches=batches, around=lambda *_: AROUND)
    assert sorted(sizes(visits), reverse=True)[:3] == [MOST_UNMEASURED, MOST_UNMEASURED, 1]


@pytest.mark.parametrize("configurations", [3, 8, 40])
def test_a_place_that_is_alone_takes_what_there_is(configurations):
    visits, _ = run(configurations, 1, 5, 0.002, alike=lambda number: 0)
    assert Counter(sizes(visits)).most_common(1)[0][0] == min(configurations, MOST)


def test_of_what_a_place_has_not_met_it_takes_one_at_a_time_where_others_may_have_it():
    board = Board(chains(24, 2), range(3))
    board.anywhere = True
    board.serve(range(3))
    scheduler = SCHEDULERS["randomized"](board, 1, lambda number: number % 4, lambda stage: 0.002)
    batches = UnitBatches(board, scheduler, scheduler.model_of, lambda number: 1)
    visits = simulate(board, scheduler, lambda unit: 0.002, batches=batches, around=lambda *_: AROUND)
    met, many = set(), 0

    def at(v):
        return v.start, v.worker

    for _, together in itertools.groupby(sorted(visits, key=at), at):
        models = [(v.worker, scheduler.model_of(v.unit.stage)) for v in together]
        assert len({*models} - met) <= 1
        many += len(models) > 3
        met.update(models)
    assert many and len(met) < 12, "not every place has compiled everything"


@pytest.mark.parametrize("searched", [False, True])
def test_evaluations_that_nobody_waits_for_come_when_their_iteration_has_been_trained(searched):
    late = 0
    for seed in range(5):
        board = Board(chains(12, 2, [2]), range(3))
        board.searched = searched
        visits, _ = run(12, 3, 2, 0.002, seed=seed, board=board, alike=lambda number: 0)
        trained = max(v.end for v in visits if v.unit.kind == "train")
        begun = min(v.start for v in visits if v.unit.kind == "evaluate")
        batches = {(v.worker, v.start) for v in visits if v.unit.kind == "evaluate"}
        late += begun > 0.7 * trained
        assert searched or len(batches) <= 9
    assert late == 0 if searched else late >= 4  # (a random order may leave a worker without other work)


def test_evaluations_do_not_wait_where_that_saves_little_or_another_server_waits_for_it():
    for more, seconds in ({}, SECONDS), ({"servers": {("training", s): f"server {s}" for s in range(3)}}, 0.002):
        visits, _ = run(12, 3, 2, seconds, board=Board(chains(12, 2, [2]), range(3), **more), alike=lambda number: 0)
        trained = max(v.end for v in visits if v.unit.kind == "train")
        assert min(v.start for v in visits if v.unit.kind == "evaluate") < 0.9 * trained


def test_an_evaluation_does_not_wait_any_more_where_somebody_comes_who_waits_for_it():
    plan = chains(20, 2, [2])
    board = Board(plan, range(2))
    scheduler = SCHEDULERS["randomized"](board, 1)
    for stage in plan.path(1):
        for segment in range(2):
            unit = board.unit(stage.number, "train", "training", segment)
            board.start(unit)
            board.finish(unit)
            scheduler.finished(unit, 0.002)
    assert scheduler.choose(0).kind == "train"
    board.add(plan.ask(21, identity.root({"mst_key": 1}), lambda iteration: ("", "1"), 6, [6]))
    assert scheduler.choose(0) == board.unit(plan.path(1)[1].number, "evaluate", "training", 0)


@pytest.mark.parametrize("name", ["randomized", "longest-first"])
def test_a_configuration_that_ends_early_is_evaluated_before_later_iterations(name):
    """Also where those are of paths that would outlast the rest of the run."""
    for others in (8, 60):
        plan = Plan()
        for key in range(1, 13):
            last = others if key <= 3 else 2
            plan.ask(key, identity.root({"mst_key": key}), lambda iteration, key=key: ("", str(key)), last, [last])
        visits, _ = run(12, 3, 0, 0.002, name=name, board=Board(plan, range(3)), alike=lambda number: 0)
        early = [v for v in visits if v.unit.iteration == 2 and min(plan.stages[v.unit.stage].trials) > 3]
        trained = max(v.end for v in early if v.unit.kind == "train")
        assert max(v.start for v in early if v.unit.kind == "evaluate") < trained + 0.1


def test_the_board_knows_what_is_being_trained():
    board = Board(chains(3, 1), range(2))
    units = [board.unit(number, "train", "training", 0) for number in (1, 2, 3)]
    for unit in units:
        board.start(unit)
    assert board.training == {1, 2, 3} and not board.idle
    board.release(units[0])
    board.finish(units[1])
    board.fail(3)
    board.finish(units[2])  # its session learns of that later
    assert board.training == set() and board.idle == {1, 2}


@pytest.mark.parametrize("configurations", [1, 2, 3])
def test_few_configurations_are_left_to_all_places(configurations):
    visits, _ = run(configurations, 2, 10, 0.002)
    assert set(sizes(visits)) == {1}


@pytest.mark.parametrize("name", ["randomized", "longest-first"])
def test_no_place_is_idle_for_the_sake_of_groups(name):
    assert_not_idle_for_batches(name, 16, 4, draws=2)


def test_units_of_a_large_segment_go_alone_however_short_those_of_a_small_one_are():
    visits, _ = run(64, 2, 3, lambda key, unit: 1.0 if unit.segment == 0 else 0.002, alike=lambda number: number % 8)
    together = Counter((v.worker, v.start) for v in visits if v.unit.segment == 0)
    assert set(together.values()) == {1}
    assert max(Counter((v.worker, v.start) for v in visits if v.unit.segment == 1).values()) > 1


def test_a_dear_unit_is_not_taken_for_a_cheap_one_that_it_went_with():
    board = Board(chains(60, 6), range(2))
    scheduler = SCHEDULERS["randomized"](board, 1, lambda number: "dear" if number % 60 == 0 else "cheap")
    dear = lambda number: scheduler.model_of(number) == "dear"  # noqa: E731
    batches = UnitBatches(board, scheduler, scheduler.model_of, lambda number: 1000)
    visits = simulate(
        board, scheduler, lambda unit: 0.03 if dear(unit.stage) else 0.002, batches=batches, around=lambda *_: AROUND
    )
    beside = Counter((v.worker, v.start) for v in visits)
    assert any(beside[v.worker, v.start] > 1 for v in visits if dear(v.unit.stage))
    assert all(0.02 < seconds < 0.04 for (key, _), seconds in scheduler.costs.seconds.items() if key == "dear")


@pytest.mark.parametrize("name", ["randomized", "longest-first"])
def test_what_would_outlast_the_others_waits_for_nobody_in_its_group(name):
    plan = Plan()
    for key in range(1, 41):
        plan.ask(
            key, identity.root({"mst_key": key}), lambda iteration, key=key: ("", str(key)), 200 if key == 1 else 8
        )
    visits, _ = run(40, 4, 0, 0.002, name=name, board=Board(plan, range(4)), alike=lambda number: 0)
    beside = Counter((v.worker, v.start) for v in visits)
    own = {stage.number for stage in plan.path(1)}
    late = [beside[v.worker, v.start] for v in visits if v.unit.stage in own and v.unit.iteration > 8]
    others = [beside[v.worker, v.start] for v in visits if v.unit.stage not in own]
    assert set(late) == {1} and max(others) > 4


def test_large_states_go_alone():
    visits, _ = run(200, 2, 2, 0.002, size=TRAINED_BYTES // 2 + 1)
    assert set(sizes(visits)) == {1}


def test_evaluations_go_together_as_far_as_memory_goes():
    board = Board(chains(40, 1, [1]), range(1))
    board.restore([board.unit(number, "train", "training", 0) for number in board.plan.stages])
    batches = UnitBatches(
        board, SCHEDULERS["randomized"](board, 1), lambda number: 0, lambda number: EVALUATED_BYTES // 5
    )
    (units,) = batches.choose(0)
    assert len(units) == 5 and {unit.kind for unit in units} == {"evaluate"}
    batches.single |= set(units)
    for unit in units:
        board.release(unit)
    assert sorted(len(batches.choose(0)[0]) for _ in range(12)) == [1] * 5 + [5] * 7


def test_one_that_is_to_blame_holds_up_nobody_else():
    board = Board(chains(200, 1), range(2))
    batches = UnitBatches(board, SCHEDULERS["randomized"](board, 1), lambda number: 0, lambda number: 1)
    ((first,),) = batches.choose(0)
    board.finish(first)
    batches.finished(first, 0.002)
    (units,) = batches.choose(0)
    assert len(units) == MOST and units == sorted(units, key=lambda unit: unit.stage)
    batches.single |= set(units)
    for unit in units:
        board.release(unit)
    seen = []
    while steps := batches.choose(0):
        (more,) = steps
        assert len(more) == 1 or not set(more) & set(units)
        seen += more
        for unit in more:
            board.finish(unit)
    assert {*units} <= {*seen}


def test_every_visit_order_is_equally_likely_in_groups_too():
    assert_orders_in_batches_are_equally_likely(2, chained=0.0, draws=12)


def test_a_replay_keeps_its_order_in_groups_too():
    plan = chains(60, 2)
    source = random.Random(4)
    order = {number: source.sample(range(3), 3) for number in plan.stages}
    visits, _ = run(60, 3, 2, 0.002, board=Logged(plan, range(3), order=order))
    assert orders(visits) == order and max(sizes(visits)) > 1


# --- chains -----------------------------------------------------------------------------------------


def anywhere(configurations, segments, iterations, metrics=()):
    """A board of two workers that do all segments."""
    return board_of(configurations, segments, iterations, metrics, workers=2)


ALWAYS = {"passes_on": lambda stage, child: True}


@pytest.mark.parametrize("name", ["randomized", "longest-first"])
def test_units_of_a_chain_follow_one_another_within_its_seconds(name):
    board = anywhere(8, 3, 4)
    _, taken = commands(board, 0.02, name=name, **ALWAYS)
    found = [steps for steps in taken if len(steps) > 1 and steps[0][0].kind == "train"]
    assert found
    for steps in found:
        assert len(units_of(steps)) * 0.02 < 0.5
        last = list(steps[0])
        for step in steps[1:]:
            assert len({unit.segment for unit in units_of([step])}) == 1
            for place, unit in enumerate(step):
                if unit is not None:
                    before, last[place] = last[place], unit
                    stage = board.plan.stages[unit.stage]
                    assert before.stage == unit.stage or stage.parent.number == before.stage


def test_chains_are_off_or_end_with_their_stage():
    for more in ({"chained": 0.0, **ALWAYS}, {}):
        _, taken = commands(anywhere(8, 2, 4), 0.002, **more)
        longest = max(len(steps) for steps in taken)
        assert longest == (1 if more else 2)


def test_a_chain_goes_into_the_next_iteration_unless_somebody_reads_the_state_or_the_metrics():
    _, taken = commands(anywhere(4, 2, 8), 0.002, **ALWAYS)
    assert max(len(steps) for steps in taken) > 4
    _, taken = commands(anywhere(4, 2, 8, [1, 2, 3, 4, 5, 6, 7, 8]), 0.002, **ALWAYS)
    assert max(len(steps) for steps in taken) == 2
    plan = chains(1, 4)
    plan.ask(2, identity.root({"mst_key": 1}), lambda iteration: ("", "1" if iteration < 3 else "2"), 4)
    board = Board(plan, range(1))
    _, taken = commands(board, 0.002, **ALWAYS)
    branch = plan.path(1)[1].number
    assert plan.path(2)[1].number == branch and len(plan.stages[branch].children) == 2
    for steps in taken:
        stages = [unit.stage for unit in units_of(steps)]
        assert branch not in stages or stages[-1] == branch, "its children read its state"


@pytest.mark.parametrize("name", ["randomized", "longest-first"])
def test_chains_make_a_run_shorter_and_leave_no_worker_idle(name):
    for configurations, workers in ((1, 2), (5, 2), (16, 4)):
        assert_chains_pay(name, configurations, workers, draws=1)


def test_few_configurations_that_outnumber_the_workers_are_not_left_to_one_of_them():
    """Three configurations with two visits each: two workers need three turns, and chains would make that four."""
    assert makespan(commands(anywhere(3, 2, 1), 0.1, around=0.0)[0]) == pytest.approx(
        makespan(commands(anywhere(3, 2, 1), 0.1, chained=0.0)[0]), abs=0.05
    )


def test_units_that_are_done_alone_are_in_no_chain():
    board = anywhere(24, 2, 6)
    scheduler = SCHEDULERS["randomized"](board, 1)
    batches = UnitBatches(board, scheduler, lambda number: 0, lambda number: 1, 0.5, **ALWAYS)
    for _ in range(2):
        for steps in (batches.choose(0), batches.choose(1)):
            for unit in units_of(steps):
                board.finish(unit)
                batches.finished(unit, 0.002)
    chain = next(steps for steps in iter(lambda: batches.choose(0), []) if len(steps) > 1)
    units = units_of(chain)
    batches.single |= set(units)
    for unit in units:
        board.release(unit)
    assert not board.training & {unit.stage for unit in units}
    while steps := batches.choose(0):
        together = units_of(steps)
        assert len(together) == 1 or not set(together) & set(units)
        for unit in together:
            board.finish(unit)
            batches.finished(unit, 0.002)
    assert board.done


def test_every_visit_order_is_equally_likely_in_chains_too():
    assert_orders_in_batches_are_equally_likely(2, chained=0.5, draws=12)


def test_a_replay_keeps_its_order_in_chains_too():
    source = random.Random(4)
    order = {number: source.sample(range(3), 3) for number in chains(12, 3).stages}
    board = Logged(chains(12, 3), range(3), order=order)
    board.anywhere = True
    board.serve(range(2))
    visits, taken = commands(board, 0.002, **ALWAYS)
    assert orders(visits) == order and max(map(len, taken)) > 1


def test_a_stage_is_idle_again_when_all_units_of_its_chain_have_ended_or_are_taken_back():
    board = anywhere(1, 3, 2)
    first, second = (stage.number for stage in board.plan.path(1))
    chain = [board.unit(first, "train", "training", s) for s in (2, 0, 1)]
    chain.append(board.unit(second, "train", "training", 1))
    for unit in chain:
        board.start(unit)
    assert board.training == {first, second} and board.visits_left(first) == 3 and board.next_visits(first) == []
    assert board.next_visits(second) == [0, 2]
    for unit in chain:
        board.release(unit)
    assert board.training == set() and board.idle == {first} and board.next_visits(first) == [0, 1, 2]
    for unit in chain:
        board.start(unit)
    assert board.finish(chain[0]) == [] and board.is_running(first) and not board.idle
    assert board.finish(chain[1]) == [] and board.finish(chain[2]) == [board.plan.stages[first]]
    assert board.trained(first) and not board.idle, "its child runs"
    assert board.finish(chain[3]) == [] and board.idle == {second} and board.visits_left(second) == 2
