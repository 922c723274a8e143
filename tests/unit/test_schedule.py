"""The schedulers' rules, shown on simulated runs: no server, no clock."""

import random
from dataclasses import dataclass

import pytest

from pg_mop.plan.sharing import Sharing
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import makespan, simulate
from support.conformance import SchedulerConformance
from support.conformance.schedulers import SERVERS, board_of, uneven
from support.plans import chains
from support.simulated import (
    anywhere,
    assert_as_long_as_longest_first,
    assert_compiled_in_one,
    assert_compiled_is_used_again,
    assert_hardly_idle,
    assert_orders_are_equally_likely,
    run,
)

AFFINE = [name for name, kind in SCHEDULERS.items() if kind.ANYWHERE]  # with affinity of a model for a worker


class TestSchedulers(SchedulerConformance):
    """A scheduler has these tests as soon as it is in SCHEDULERS."""


def test_one_model_is_evaluated_on_several_segments_at_once():
    visits = run("longest-first", 1, 3, 1, metrics=[1])
    starts = {v.start for v in visits if v.unit.kind == "evaluate"}
    assert len(starts) == 1


def test_round_robin_moves_every_configuration_to_the_next_segment_in_lockstep():
    visits = run("round-robin", 4, 4, 1, seconds=uneven)
    for key in range(1, 5):
        order = [v.unit.segment for v in sorted(visits, key=lambda v: v.start) if v.key == key]
        assert order == [(order[0] + k) % 4 for k in range(4)]
    rounds = [sorted(v.start for v in visits)[i * 4 : (i + 1) * 4] for i in range(4)]
    assert all(len(set(r)) == 1 for r in rounds)


def test_without_rounds_unequal_units_finish_sooner():
    cost = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0, 6: 8.0}
    seconds = lambda key, unit: cost[key]  # noqa: E731
    assert makespan(run("randomized", 6, 3, 4, seconds=seconds)) < makespan(
        run("round-robin", 6, 3, 4, seconds=seconds)
    )


def test_places_are_idle_for_little_more_than_they_must():
    assert_hardly_idle(12, 4, ahead=True, draws=8)


def test_a_configuration_that_would_outlast_all_others_never_waits():
    cost = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0, 6: 8.0}
    visits = run("longest-first", 6, 3, 4, seconds=lambda key, unit: cost[key])
    assert makespan(visits) <= 3 * 4 * 8 + 8


@pytest.mark.parametrize("architectures,each,segments,ahead", [(1, 16, 2, False), (3, 4, 2, True)])
def test_what_is_compiled_is_used_again_and_the_run_takes_no_longer(architectures, each, segments, ahead):
    assert_compiled_is_used_again(architectures, each, segments, ahead, draws=4)


@pytest.mark.parametrize("groups,models,each,segments", [(False, 2, 8, 2), (True, 8, 2, 4)])
@pytest.mark.parametrize("name", AFFINE)
def test_where_any_place_does_all_segments_most_is_compiled_in_one(name, groups, models, each, segments):
    assert_compiled_in_one(name, groups, models, each, segments, draws=2)


@pytest.mark.parametrize("name", AFFINE)
def test_nobody_takes_from_the_home_of_a_place_that_is_idle(name):
    """One configuration of each model: where all places but its own are idle, it stays at home."""
    for models, workers in ((1, 2), (2, 3)):
        board, scheduler, alike = anywhere(name, models, 4, 3, models, workers=workers)
        homes = {(alike[v.unit.stage], v.worker) for v in simulate(board, scheduler, lambda unit: 1.0)}
        assert len(homes) == models, homes


@pytest.mark.parametrize("name", AFFINE)
def test_a_short_evaluation_is_left_to_its_home_while_that_evaluates_the_same_model_alone(name):
    def step(worker, seconds):
        unit = scheduler.choose(worker)
        board.start(unit)
        board.finish(unit)
        scheduler.finished(unit, seconds)
        return unit.kind

    board, scheduler, _ = anywhere(name, 1, 3, 1, 1, workers=2, metrics=[1])
    assert [step(0, 0.01) for _ in range(3)] == ["train"] * 3
    board.start(first := scheduler.choose(0))
    assert first.kind == "evaluate" and scheduler.choose(1) is None
    board.finish(first)
    scheduler.finished(first, 5.0)
    assert step(1, 5.0) == "evaluate", "it is not short"


@pytest.mark.parametrize("name", AFFINE)
def test_an_evaluation_that_is_left_to_its_home_keeps_no_other_back(name):
    """Two nets, both at home at one place, which evaluates one of them."""
    for seed in range(3):
        board, scheduler, alike = anywhere(name, 8, 2, 1, 2, seed, metrics=[1])
        while any(board.visits_left(number) for number in alike):
            board.start(unit := scheduler.train(0))
            scheduler.affinity.setdefault((None, alike[unit.stage]), 0)
            board.finish(unit)
            scheduler.finished(unit, 0.01)
        board.start(first := scheduler.choose(0))
        other = scheduler.choose(1)
        assert first.kind == other.kind == "evaluate" and alike[first.stage] != alike[other.stage]


def test_a_compiled_model_is_known_again_by_its_digest_in_another_call():
    """Whatever numbers its architecture and itself have there."""

    def digests(architectures, shape="4 -> 3", framework="tensorflow"):
        sharing = Sharing(architectures, shape, framework)
        return {key: sharing.digest(sharing.key(Asked(key))[0]) for key in architectures}

    one, two = digests({1: "{}", 2: "[]"}), digests({1: "[]", 2: "{}"})
    assert one[1] == two[2] != one[2] == two[1]
    assert one[1] not in (*digests({1: "{}"}, "5 -> 3").values(), *digests({1: "{}"}, framework="jax").values())
    assert digests({3: "{}"}) == {3: one[1]}


@dataclass(frozen=True)
class Asked:
    """What Sharing needs of a stage."""

    mst_key: int
    parameters: tuple = ("loss='mse', optimizer='SGD()'", "batch_size=8")


@pytest.mark.parametrize("name", AFFINE)
def test_no_evaluation_waits_for_a_home_that_trains(name):
    """One net; of its seven configurations one has units of a minute, the others of a second."""
    for seed in range(2):
        board, scheduler, _ = anywhere(name, 7, 2, 1, 1, seed, metrics=[1])
        long, trained = {n for n, stage in board.plan.stages.items() if 1 in stage.trials}, {}
        seconds = lambda u, long=long: 0.01 if u.kind == "evaluate" else 60.0 if u.stage in long else 1.0  # noqa: E731
        for v in simulate(board, scheduler, seconds):  # (by end)
            if v.unit.kind == "train":
                trained[v.unit.stage] = v.end
            elif v.unit.stage not in long:
                assert v.start <= trained[v.unit.stage] + 13, "two places are there, and one trains for a minute"


@pytest.mark.parametrize("name", AFFINE)
def test_a_place_may_go_and_come_back(name):
    for seed in range(5):
        board, scheduler, alike = anywhere(name, 8, 2, 6, 4, seed)
        source, running = random.Random(f"steps {seed}"), {}
        goes = source.randint(2, 60)
        comes = goes + source.randint(1, 10)
        for step in range(1000):
            if board.done:
                break
            if step in (goes, comes):
                board.serve([0] if step == goes else [0, 1])
            for worker in scheduler.arrange([worker for worker in board.workers if worker not in running]):
                if worker not in running and (unit := scheduler.choose(worker)) is not None:
                    board.start(unit)
                    running[worker] = unit
            unit = running.pop(source.choice(sorted(running)))
            board.finish(unit)
            scheduler.finished(unit, source.uniform(1, 3) * (1 + alike[unit.stage]))
        assert board.done


@pytest.mark.parametrize("name", AFFINE)
def test_what_was_compiled_at_places_that_have_gone_finds_a_home_anew(name):
    models, segments, after, lasting = 8, 4, set(), []
    for seed in range(3):
        board, scheduler, alike = anywhere(name, models * 2, segments, 6, models, seed)
        for _ in range(4):
            for running in lasting:
                board.finish(running)
            lasting = []
            for worker in range(segments):
                lasting.append(scheduler.choose(worker))
                board.start(lasting[-1])
        assert set(scheduler.affinity.values()) == {0, 1, 2, 3}
        board.serve(range(2))
        assert set(scheduler.affinity.values()) == {0, 1}
        for unit in lasting:  # at work meanwhile
            board.finish(unit)
        lasting = []
        visits = simulate(board, scheduler, lambda unit: 1.0)
        assert board.done and len(visits) == models * 2 * segments * 6 - 4 * segments
        after |= {(seed, alike[v.unit.stage], v.worker) for v in visits}
    assert len(after) <= 0.75 * 3 * models * 2, len(after)


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


def test_a_reserved_stage_is_left_to_its_place_by_those_that_have_others():
    board = board_of(2, 2, 1)
    board.reserve(0, 1)
    assert [u.stage for u in board.eligible(0)] == [1, 2]
    assert [u.stage for u in board.eligible(1)] == [2]
    board.start(board.eligible(1)[0])
    assert [u.stage for u in board.eligible(1)] == [1], "better that than nothing"


# --- the default is random -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("ahead,everywhere", [(True, False), (False, True)])
def test_every_visit_order_is_equally_likely(ahead, everywhere):
    assert_orders_are_equally_likely(4, 3, 3, ahead, everywhere, draws=120)


def test_orders_are_random_within_a_run_too():
    """The demo's shape: 16 configurations of 2 architectures, 2 segments, 12 iterations; units vary a little."""
    same, alike = [], {key: key % 2 for key in range(1, 17)}
    for seed in range(12):
        source = random.Random(seed)
        seconds = lambda key, unit, s=source: (1 + key % 2) * s.uniform(1, 1.05)  # noqa: E731
        visits, found = run("randomized", 16, 2, 12, seed, seconds, ahead=True, alike=alike), {}
        for v in sorted(visits, key=lambda v: v.start):
            found.setdefault((v.key, v.unit.iteration), []).append(v.unit.segment)
        first = sum(order[0] == 0 for order in found.values())
        assert 70 < first < 192 - 70, "longest-first began 184 of 192 on the same segment"
        same += [found[key, i] == found[key, i + 1] for key in range(1, 17) for i in range(1, 12)]
    assert 0.46 < sum(same) / len(same) < 0.54


def test_at_random_takes_as_long_as_the_longest_first():
    assert_as_long_as_longest_first("tenfold", True, [(16, 2, 8), (12, 4, 4)], draws=2)


# --- several servers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AFFINE)
def test_each_server_has_a_worker_with_affinity_for_each_model(name, seed=1):
    """Two servers with two segments and two workers each: where the models are many, most are compiled once on each."""
    servers = {("training", segment): "w1" if segment < 2 else None for segment in range(4)}
    board = Board(chains(12, 3), range(4), servers=servers)
    board.anywhere = True
    board.serve(range(4))
    alike = {number: min(stage.trials) % 6 for number, stage in board.plan.stages.items()}
    scheduler = SCHEDULERS[name](board, seed, alike.get)
    lengths = random.Random(seed)
    visits = simulate(board, scheduler, lambda unit: lengths.uniform(1, 1.2))
    assert len(visits) == 12 * 3 * 4
    assert all(board.server_of["training", v.unit.segment] == board.server(v.worker) for v in visits)
    assert all(board.server(worker) == server for (server, _), worker in scheduler.affinity.items())
    assert len(scheduler.affinity) == 2 * 6
    compiled = {(v.worker, alike[v.unit.stage]) for v in visits}
    assert len(compiled) < 20, "four workers and six models: without affinity, nearly all 24 pairs"


def test_an_evaluation_that_fails_is_not_the_last_one_any_more():
    board = Board(chains(1, 1, [1]), range(4), range(3), SERVERS)
    stage = next(iter(board.plan.stages))
    for segment in range(4):
        unit = board.unit(stage, "train", "training", segment)
        board.start(unit)
        board.finish(unit)
    first, second, third = (board.unit(stage, "evaluate", "validation", s) for s in range(3))
    board.start(first)
    board.start(second)
    assert not board.may_evaluate(stage, "validation", 2), "it waits for the others"
    board.release(second)
    assert board.may_evaluate(stage, "validation", 1) and board.may_evaluate(stage, "validation", 2)
    board.start(third)
    assert not board.may_evaluate(stage, "validation", 1)
    board.finish(first), board.finish(third)
    assert board.may_evaluate(stage, "validation", 1)
    board.start(second)
    assert board.is_last(second)
    board.finish(second)


# --- stages that another run trains -----------------------------------------------------------------------------------


def test_a_trial_that_is_withdrawn_waits_for_nobody():
    board = board_of(2, 2, 3)
    board.hold(board.plan.path(2))
    board.withdraw(2)
    assert not board.held and {min(stage.trials) for stage in board.left.values()} == {1}
