"""The schedulers' rules, shown on simulated runs: no server, no clock."""

import random
from dataclasses import dataclass

import pytest

from pg_mop.plan import identity
from pg_mop.plan.stages import Plan
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import Visit, makespan, simulate

SHAPES = [(16, 2, 3), (2, 5, 2), (1, 3, 2), (4, 1, 2), (1, 1, 1), (5, 3, 1), (3, 3, 2)]


def chains(configurations, iterations, metrics=()):
    """The plan of fit_multiple: configurations from 1 that share nothing."""
    plan = Plan()
    for key in range(1, configurations + 1):
        plan.ask(key, identity.root({"mst_key": key}), lambda iteration, key=key: ("", str(key)), iterations, metrics)
    return plan


def board_of(configurations, segments, iterations, metrics=(), validation=()):
    return Board(chains(configurations, iterations, metrics), range(segments), validation)


@dataclass(frozen=True)
class Keyed(Visit):
    """A visit, and the configuration that it was of."""

    key: int


def run(name, configurations, segments, iterations, seed=7, metrics=(), validation=(), seconds=None, ahead=False,
        alike=None):
    """`seconds`: of a configuration and a unit; `alike`: of configurations."""
    board = board_of(configurations, segments, iterations, metrics, validation)
    key_of = {number: min(stage.trials) for number, stage in board.plan.stages.items()}
    scheduler = SCHEDULERS[name](board, seed, alike and (lambda number: alike[key_of[number]]))
    visits = simulate(board, scheduler, lambda unit: seconds(key_of[unit.stage], unit) if seconds else 1.0, ahead)
    return [Keyed(v.unit, v.place, v.start, v.end, key_of[v.unit.stage]) for v in visits]


def uneven(key, unit):
    return random.Random(repr((key, unit))).uniform(0.1, 3.0)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("configurations,segments,iterations", SHAPES)
def test_every_configuration_visits_every_segment_once_per_iteration(name, configurations, segments, iterations, ahead):
    visits = run(name, configurations, segments, iterations, seconds=uneven, ahead=ahead)
    trained = [(v.key, v.unit.iteration, v.unit.segment) for v in visits]
    assert sorted(trained) == [(c, i, s) for c in range(1, configurations + 1)
                               for i in range(1, iterations + 1) for s in range(segments)]


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("configurations,segments,iterations", SHAPES)
def test_neither_a_configuration_nor_a_place_trains_twice_at_once(name, configurations, segments, iterations):
    visits = run(name, configurations, segments, iterations, seconds=uneven)
    for key in (lambda v: v.place, lambda v: ("model", v.key)):
        groups = {}
        for v in sorted(visits, key=lambda v: v.start):
            if key(v) in groups:
                assert groups[key(v)] <= v.start
            groups[key(v)] = v.end


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_same_seed_gives_the_same_visit_order(name):
    first, again = run(name, 6, 3, 3, seed=1), run(name, 6, 3, 3, seed=1)
    assert [v.unit for v in first] == [v.unit for v in again]
    if name not in ("breadth-first", "most-children-first"):  # those leave nothing to chance
        assert [v.unit for v in first] != [v.unit for v in run(name, 6, 3, 3, seed=2)]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_configuration_trains_on_only_after_its_evaluation(name):
    visits = run(name, 4, 2, 3, metrics=[2, 3], validation=[0, 1, 5], seconds=uneven)
    evaluations = [v for v in visits if v.unit.kind == "evaluate"]
    assert len(evaluations) == 4 * 2 * (2 + 3)
    for key in range(1, 5):
        mine = [v for v in visits if v.key == key]
        evaluated = max(v.end for v in mine if v.unit.kind == "evaluate" and v.unit.iteration == 2)
        assert min(v.start for v in mine if v.unit.iteration == 3) >= evaluated
        trained = max(v.end for v in mine if v.unit.kind == "train" and v.unit.iteration == 2)
        assert min(v.start for v in evaluations if v.key == key and v.unit.iteration == 2) >= trained


def test_one_model_is_evaluated_on_several_segments_at_once():
    visits = run("longest-first", 1, 3, 1, metrics=[1])
    starts = {v.start for v in visits if v.unit.kind == "evaluate"}
    assert len(starts) == 1


def test_round_robin_moves_every_configuration_to_the_next_segment_in_lockstep():
    visits = run("round-robin", 4, 4, 1, seconds=uneven)
    for key in range(1, 5):
        order = [v.unit.segment for v in sorted(visits, key=lambda v: v.start) if v.key == key]
        assert order == [(order[0] + k) % 4 for k in range(4)]
    rounds = [sorted(v.start for v in visits)[i * 4:(i + 1) * 4] for i in range(4)]
    assert all(len(set(r)) == 1 for r in rounds)


def test_without_rounds_unequal_units_finish_sooner():
    cost = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0, 6: 8.0}
    seconds = lambda key, unit: cost[key]  # noqa: E731
    assert (makespan(run("randomized", 6, 3, 4, seconds=seconds))
            < makespan(run("round-robin", 6, 3, 4, seconds=seconds)))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("configurations,segments,draws", [(12, 2, 20), (12, 4, 20), (30, 8, 4)])
def test_places_are_idle_for_little_more_than_they_must(configurations, segments, draws, ahead):
    """Configurations of which the dearest costs ten times the cheapest; averages over draws of their costs."""
    over = {"longest-first": [], "randomized": []}
    for draw in range(draws):
        source = random.Random(draw)
        cost = {key: 10 ** source.uniform(0, 1) for key in range(1, configurations + 1)}
        bound = 4 * max(sum(cost.values()), segments * max(cost.values()))  # a place's work, or a configuration's
        for name, found in over.items():
            visits = run(name, configurations, segments, 4, seed=draw, seconds=lambda key, unit, c=cost: c[key],
                         ahead=ahead)
            found.append(makespan(visits) / bound - 1)
    mean = {name: sum(found) / len(found) for name, found in over.items()}
    assert mean["longest-first"] < 0.05 and mean["randomized"] < 0.05


def test_a_configuration_that_would_outlast_all_others_never_waits():
    cost = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0, 6: 8.0}
    visits = run("longest-first", 6, 3, 4, seconds=lambda key, unit: cost[key])
    assert makespan(visits) <= 3 * 4 * 8 + 8


def changes(visits, alike):
    """How often a place goes on with a configuration of another compiled model than the one before."""
    found, last = 0, {}
    for v in sorted(visits, key=lambda v: v.start):
        found += v.place in last and alike[last[v.place]] != alike[v.key]
        last[v.place] = v.key
    return found


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("architectures,each,segments", [(1, 16, 2), (3, 4, 2), (6, 4, 4), (10, 3, 8), (40, 1, 2)])
def test_what_is_compiled_is_used_again_and_the_run_takes_no_longer(architectures, each, segments, ahead):
    """Architectures of which the dearest costs ten times the cheapest, with their configurations a little apart."""
    longer, before, after = [], 0, 0
    for draw in range(6):
        source = random.Random(draw)
        base = [10 ** source.uniform(0, 1) for _ in range(architectures)]
        alike = {key: key % architectures for key in range(1, architectures * each + 1)}
        cost = {key: base[alike[key]] * source.uniform(0.95, 1.05) for key in alike}
        spans = []
        for known in (None, alike):
            visits = run("longest-first", len(alike), segments, 4, seed=draw, seconds=lambda key, unit, c=cost: c[key],
                         ahead=ahead, alike=known)
            spans.append(makespan(visits))
            if known is None:
                before += changes(visits, alike)
            else:
                after += changes(visits, alike)
        longer.append(spans[1] / spans[0])
    assert sum(longer) / len(longer) < 1.01
    if architectures > 1 and each > 1:
        assert after < (0.75 if segments <= 4 else 0.9) * before  # places take configurations from one another


def test_what_would_come_is_asked_for_without_a_trace():
    board = board_of(4, 1, 1)
    alike = {1: "a", 2: "b", 3: "a", 4: "b"}.get
    scheduler = SCHEDULERS["longest-first"](board, 3, alike)
    first = scheduler.choose(0)
    board.start(first)
    board.finish(first)
    scheduler.coming(0)
    assert scheduler.last == {0: alike(first.stage)}
    assert alike(scheduler.choose(0).stage) == alike(first.stage)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_failed_configuration_leaves_and_the_others_finish(name):
    board = board_of(3, 2, 2)
    scheduler = SCHEDULERS[name](board, 1)
    unit = scheduler.choose(0)
    board.start(unit)
    key = min(board.plan.stages[unit.stage].trials)
    assert board.fail(unit.stage) == {key} and board.plan.failed(key)
    visits = simulate(board, scheduler, lambda unit: 1 / unit.stage)
    assert len(visits) == 2 * 2 * 2
    assert key not in {(v.unit.stage - 1) // 2 + 1 for v in visits}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_unit_that_was_not_done_is_run_again(name):
    board = board_of(1, 2, 1)
    scheduler = SCHEDULERS[name](board, 1)
    unit = scheduler.choose(0) or scheduler.choose(1)
    board.start(unit)
    assert not board.eligible(0) and not board.eligible(1)
    assert not scheduler.choose(0) and not scheduler.choose(1)
    board.release(unit)
    assert unit in [v.unit for v in simulate(board, scheduler, lambda unit: 1 + unit.segment)]


def test_a_reserved_stage_is_left_to_its_place_by_those_that_have_others():
    board = board_of(2, 2, 1)
    board.reserve(0, 1)
    assert [u.stage for u in board.eligible(0)] == [1, 2]
    assert [u.stage for u in board.eligible(1)] == [2]
    board.start(board.eligible(1)[0])
    assert [u.stage for u in board.eligible(1)] == [1], "better that than nothing"


@pytest.mark.parametrize("name", sorted(set(SCHEDULERS) - {"round-robin"}))
@pytest.mark.parametrize("seed", range(5))
def test_what_comes_next_at_a_place_is_what_it_then_gets(name, seed):
    """Nobody takes it away, and asking for it changes nothing."""
    board = board_of(8, 2, 1)
    scheduler = SCHEDULERS[name](board, seed)
    first = scheduler.choose(0)
    board.start(first)
    coming = scheduler.coming(0)
    board.reserve(0, coming.stage)
    other = scheduler.choose(1)
    assert other.stage != coming.stage
    board.start(other)
    board.finish(first)
    scheduler.finished(first, 1.0)
    assert scheduler.choose(0) == coming
