"""The planner is a function of a workload and of history; with the simulator it is all that EXPLAIN needs."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from pg_mop.explain.prediction import predict
from pg_mop.plan.cost_history import CostHistory
from pg_mop.plan.estimates import CommandCosts, Estimates, FixedCosts
from pg_mop.plan.planner import Planner
from pg_mop.schedule import setup
from pg_mop.schedule.simulator import makespan, simulate
from support.plans import OPTIONS, configuration, measured, planned, workload


def test_every_configuration_asks_for_its_iterations_and_misfits_for_none():
    planner = planned(workload(), [configuration(1), configuration(2, 0.2), configuration(3, 0.3)], {3: "bad"})
    assert [len(planner.plan.path(key)) for key in (1, 2, 3)] == [3, 3, 0]
    assert [stage.evaluated for stage in planner.plan.path(1)] == [False, False, True]
    assert len(planner.plan.stages) == 6


def test_equal_configurations_share_their_stages_unless_sharing_is_off():
    pair = [configuration(1), configuration(2)]
    assert len(planned(workload(), pair).plan.stages) == 3
    assert len(planned(workload(options={"sharing": False}), pair).plan.stages) == 6
    assert len(planned(workload(options={"same_start": False}), pair).plan.stages) == 6


@pytest.mark.parametrize(
    "change", [{"seed": 6}, {"table": 8}, {"columns": (["x"], ["z"])}, {"options": {**OPTIONS, "kernel": "xla"}}]
)
def test_the_identity_of_a_path_has_everything_that_decides_its_result(change):
    import dataclasses

    work = workload()
    before = planned(work, [configuration(1)]).plan.path(1)[0].identity
    after = planned(dataclasses.replace(work, **change), [configuration(1)]).plan.path(1)[0].identity
    assert before != after
    assert before == planned(work, [configuration(9)]).plan.path(9)[0].identity, (
        "the number of a configuration does not"
    )


def test_averaging_trains_a_replica_for_each_segment_and_evaluates_the_first():
    planner = planned(workload(segments=3, averaging=True), [configuration(1)])
    assert [len(planner.plan.path(key)) for key in (1, 2, 3)] == [3, 3, 3]
    assert [planner.plan.path(key)[-1].evaluated for key in (1, 2, 3)] == [True, False, False]
    assert setup.scheduler_name(planner) == "randomized" and len(set(planner.sharing.architectures)) == 3


@pytest.mark.parametrize(
    "asked,capacity,sessions", [(None, None, 4), (2, None, 2), (9, None, 4), (None, 3, 3), (2, 3, 2), (None, 8, 4)]
)
def test_there_is_a_session_for_each_segment_unless_fewer_are_asked_for_or_fit(asked, capacity, sessions):
    assert planned(workload(options={"sessions": asked}), [configuration(1)]).sessions(capacity) == sessions


@pytest.mark.parametrize("servers,threads", [(None, 4), (["a", None, None, None], None)])
def test_trainers_on_one_server_share_its_cores(servers, threads):
    assert planned(workload(servers=servers), [configuration(1)]).threads(8, 2) == threads
    assert planned(workload(servers=servers, options={"threads": 3}), [configuration(1)]).threads(8, 2) == 3


def test_a_call_that_applies_a_model_has_no_more_sessions_than_the_servers_can_run():
    planner = planned(workload(servers=["a", "a", "a", None]), [configuration(1)])
    assert planner.sessions(None, {"a": 2, None: 8}) == 3 and planner.sessions(1, {"a": 2, None: 8}) == 1


def test_costs_of_earlier_runs_tell_what_a_run_will_take():
    unknown = planned(workload(), [configuration(1)])
    assert unknown.expected_seconds(2) is None
    history = measured(unknown.sharing.net(unknown.plan.path(1)[0]), 0.01)
    planner = planned(workload(), [configuration(1), configuration(2, 0.2)], history=history)
    stage = planner.plan.path(1)[0]
    assert planner.unit_seconds(stage) == pytest.approx(2 * 10 * 0.01)  # 2 epochs of 10 mini-batches
    # two configurations of 3 iterations, 4 segments, 2 sessions
    assert planner.expected_seconds(2) == pytest.approx(2 * 3 * 4 * 0.2 / 2)


@pytest.mark.parametrize(
    "change,anywhere",
    [
        ({}, True),
        ({"segments": 9}, False),
        ({"segments": 16, "servers": [*["a"] * 8, *["b"] * 8]}, True),
        ({"servers": ["a", "a", None, None], "options": {"replicas": 2}}, True),
        ({"use_gpus": True}, True),
        ({"averaging": True}, False),
        ({"servers": ["a", None, None, None]}, True),
        ({"options": {"trainers": "ray"}}, True),
        ({"options": {"scheduler": "round-robin"}}, False),
        ({"options": {"cache_mb": 0}}, False),
    ],
)
def test_a_trainer_holds_the_rows_of_all_segments_only_where_that_pays(change, anywhere):
    planner = planned(workload(**change), [configuration(1)])
    assert setup.trains_anywhere(planner, [configuration(1)]) is anywhere
    assert setup.trains_anywhere(planner, []) is False
    frozen = configuration(1, architecture=json.dumps({"trainable": False}))
    assert setup.trains_anywhere(planner, [frozen]) is False


def test_a_plan_is_simulated_with_nothing_opened():
    """EXPLAIN: the planner, the simulator, and text."""
    configurations = [configuration(key, key / 10) for key in (1, 2, 3)]
    first = planned(workload(), configurations)
    history = measured(first.sharing.net(first.plan.path(1)[0]), 0.05)
    planner = planned(workload(), configurations, history=history)
    board = setup.make_board(planner, configurations, {}, planner.sessions())
    scheduler = setup.make_scheduler(planner, board)
    visits = simulate(board, scheduler, lambda unit: planner.unit_seconds(planner.plan.stages[unit.stage]))
    assert board.done
    trained = [visit.unit for visit in visits if visit.unit.kind == "train"]
    assert len(trained) == len(set(trained)) == 3 * 3 * 4
    assert makespan(visits) >= planner.expected_seconds(4) * 0.99


def test_a_slow_server_makes_the_run_longer_and_its_units_too():
    configurations = [configuration(1), configuration(2, 0.2)]
    work = workload(servers=[None, None, "slow", "slow"], options={"chain_seconds": 0.5})
    net = (first := planned(work, configurations)).sharing.net(first.plan.path(1)[0])
    base = measured(net, 0.01).measured(net)[0]
    rows = [{**base, "place": ""}, {**base, "place": "slow", "batch_seconds": 0.03}]
    planner = planned(work, configurations, history=CostHistory(lambda architecture: rows))
    assert planner.unit_seconds(planner.plan.path(1)[0]) == pytest.approx(2 * 10 * 0.02)
    free = CommandCosts(0.0, 0.0, 0.0, 0.0)
    fixed = FixedCosts(unit=0.0, ready=0.0, compile=0.0, evaluation=0.0, training=free, evaluating=free, slowdown=1.0)
    estimates = Estimates(planner, fixed=fixed, sessions=4)
    stage = planner.plan.path(1)[0]
    assert [estimates.slowness(stage, place) for place in (None, "slow")] == [pytest.approx(0.5), pytest.approx(1.5)]
    found = predict(planner, configurations, {}, estimates)
    busy = {load.worker: load.busy for load in found.loads}
    assert sum(busy.values()) == pytest.approx(2 * 3 * 2 * 20 * (0.01 + 0.03))
    assert sorted(busy.values())[0] < sorted(busy.values())[-1] / 2, "the slow server's sessions are busy for longer"


def test_a_replay_asks_for_what_the_log_has_and_offers_the_logged_visits_alone():
    """Of a configuration that failed, its whole iterations; of one that failed at once, none."""
    configurations = [configuration(1), configuration(2, 0.2), configuration(3, 0.3)]
    followed = SimpleNamespace(
        replay=True,
        iterations=Counter({1: 2, 2: 3}),
        evaluated={1: {1, 2}, 2: {3}},
        apart={},
        order={
            (1, 1): [2, 0, 1, 3],
            (1, 2): [0, 1, 2, 3],
            (2, 1): [3, 2, 1, 0],
            (2, 2): [1, 0, 3, 2],
            (2, 3): [0, 2, 1, 3],
        },
        kernels={(1, 1, 2): "loop", (2, 4, 1): "plain"},
        sessions=1,
    )
    followed.followed = followed
    planner = Planner(workload(), configurations, None, followed)
    planner.ask_for_all(configurations, {3: "bad"})
    assert [len(planner.plan.path(key)) for key in (1, 2, 3)] == [2, 3, 0]
    assert [[stage.evaluated for stage in planner.plan.path(key)] for key in (1, 2)] == [
        [True, True],
        [False, False, True],
    ]
    board = setup.make_board(planner, configurations, {3: "bad"}, 4)
    visits = simulate(board, setup.make_scheduler(planner, board), lambda unit: 1.0 + unit.segment)
    for (key, iteration), order in followed.order.items():
        number = planner.plan.path(key)[iteration - 1].number
        assert [v.unit.segment for v in visits if v.unit.stage == number and v.unit.kind == "train"] == order
    kernels = setup.logged_kernels(planner, {3: "bad"})
    assert {(unit.iteration, unit.segment): kernel for unit, kernel in kernels.items()} == {(1, 2): "loop"}
