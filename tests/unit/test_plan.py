"""The search plan and the board that walks it: what is shared is trained once, whatever comes between."""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pg_mop.plan import identity
from pg_mop.plan.stages import Plan
from pg_mop.schedule.board import Board
from pg_mop.schedule.cost import Costs
from pg_mop.schedule.randomized import Randomized
from support.conformance.schedulers import Story, values

ROOT = identity.root({"model": 1})


def numbers(stages):
    return [stage.number for stage in stages]


# --- identities ----------------------------------------------------------------------------------------------------
def test_an_identity_does_not_depend_on_the_order_of_facts():
    assert identity.root({"a": 1, "b": [1.5, None]}) == identity.root({"b": [1.5, None], "a": 1})
    assert identity.root({"a": 1}) != identity.root({"a": 1.0000000001}) != identity.root({"a": "1"})


@pytest.mark.parametrize("facts", [{"a": float("nan")}, {"a": {1, 2}}, {"a": b"1"}])
def test_what_is_not_equal_to_itself_or_no_json_is_no_fact(facts):
    with pytest.raises((TypeError, ValueError)):
        identity.root(facts)


def test_a_stage_is_its_parent_and_all_its_parameters():
    names = [
        identity.child(ROOT, ("a", "b")),
        identity.child(ROOT, ("ab", "")),
        identity.child(ROOT, ("", "ab")),
        identity.child(identity.root({"model": 2}), ("a", "b")),
        identity.child(ROOT, ("a", 'b","')),
    ]
    assert len(set(names)) == 5 and names[0] == identity.child(ROOT, ("a", "b"))


# --- the plan ------------------------------------------------------------------------------------------------------
def test_two_trials_share_exactly_their_longest_common_path():
    plan = Plan()
    assert numbers(plan.ask(1, ROOT, values(1, 1, 2), 4)) == [1, 2, 3, 4]
    assert numbers(plan.ask(2, ROOT, values(1, 1, 3), 3)) == [5]
    assert numbers(plan.path(2)) == [1, 2, 5] and plan.stages[5].parent is plan.stages[2]
    assert [sorted(stage.trials) for stage in plan.stages.values()] == [[1, 2], [1, 2], [1], [1], [2]]
    assert plan.asked == 7 and plan.merge_rate() == 7 / 5 and plan.merge_rate(4) == 7 / 4
    assert plan.ask(3, identity.root({"model": 2}), values(1), 1)[0].parent is None, "another start: nothing shared"


def test_more_iterations_of_a_trial_are_its_next_stages():
    plan = Plan()
    plan.ask(1, ROOT, values(1), 2)
    assert plan.ask(1, ROOT, values(1), 2) == [] == plan.ask(1, ROOT, values(1), 1)
    assert [(s.number, s.iteration) for s in plan.ask(1, ROOT, values(1), 4)] == [(3, 3), (4, 4)]


def test_metrics_that_nobody_wanted_are_asked_for_of_stages_that_are_there():
    plan = Plan()
    plan.ask(1, ROOT, values(1), 3, evaluated={3})
    assert numbers(plan.ask(2, ROOT, values(1), 3, evaluated=range(2, 4))) == [2]
    assert numbers(plan.ask(2, ROOT, values(1), 3, evaluated={1, 2})) == [1]
    assert [stage.evaluated for stage in plan.path(1)] == [True, True, True]


def test_a_path_may_stay_apart_from_equal_ones():
    plan = Plan()
    plan.ask(1, ROOT, values(1, 1, 2), 4)
    assert numbers(plan.foresee(2, ROOT, values(1, 1, 3), 4)) == [1, 2] and not plan.foresee(1, ROOT, values(1), 4)
    assert numbers(plan.ask(2, ROOT, values(1, 1, 3), 4, apart={2: 2})) == [5, 6, 7]
    assert numbers(plan.path(2)) == [1, 5, 6, 7] and plan.stages[5].parent is plan.stages[1]
    assert numbers(plan.ask(3, ROOT, values(1, 1, 3), 3)) == [8], "with the one that everybody shares"
    again = Plan()
    for number, stage in plan.stages.items():
        again.restore(
            number,
            stage.parent and stage.parent.number,
            stage.iteration,
            stage.identity,
            stage.parameters,
            stage.mst_key,
            stage.trials,
        )
    assert numbers(again.ask(2, ROOT, values(1, 1, 3), 5)) == [9] and again.stages[9].parent is again.stages[7]


def test_a_withdrawn_trial_leaves_what_others_want_and_keeps_what_is_trained():
    plan = Plan()
    plan.ask(1, ROOT, values(1), 4, evaluated={4})
    plan.ask(2, ROOT, values(1), 3)
    plan.stages[1].trained = True
    assert numbers(plan.withdraw(1)) == [2, 3, 4]
    assert [sorted(stage.trials) for stage in plan.stages.values()] == [[1, 2], [2], [2], []]
    assert numbers(plan.path(1)) == [1] and not plan.stages[4].evaluated and plan.asked == 4
    assert numbers(plan.ask(1, ROOT, values(1), 4)) == [4], "wanted again, under its number"
    assert plan.withdraw(9) == []


def test_stages_come_back_under_their_numbers():
    plan, again = Plan(), Plan()
    plan.ask(1, ROOT, values(1, 2), 3)
    plan.ask(2, ROOT, values(1, 3), 2)
    for s in plan.stages.values():
        again.restore(s.number, s.parent and s.parent.number, s.iteration, s.identity, s.parameters)
    assert numbers(again.ask(2, ROOT, values(1, 3), 3)) == [1, 4, 5]
    assert numbers(again.ask(1, ROOT, values(1, 2), 3)) == [2, 3]


@given(st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 2), min_size=1, max_size=6)), max_size=12))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_stages_are_exactly_the_distinct_prefixes(trials):
    plan, found = Plan(), Counter()
    for key, (start, along) in enumerate(trials):
        stages = plan.ask(key, identity.root(start), values(*along), len(along))
        assert numbers(stages) == sorted(numbers(stages))
        found.update(numbers(stages))
    prefixes = {(start, *along[:end]) for start, along in trials for end in range(1, len(along) + 1)}
    assert len(plan.stages) == len(prefixes) and set(found.values()) <= {1}
    assert plan.asked == sum(len(along) for _, along in trials)
    for key, (_, along) in enumerate(trials):
        assert [s.parameters[0] for s in plan.path(key)] == [f"lr={value}" for value in along]
        assert all(s.parent is before for before, s in zip([None, *plan.path(key)], plan.path(key)))
        assert all(s.parent is None or s.parent.number < s.number for s in plan.stages.values())


# --- the board -----------------------------------------------------------------------------------------------------
def do(board, *units):
    """Run units to their end; what has ended by the last."""
    for unit in units:
        board.start(unit)
        ended = board.finish(unit)
    return ended


def train(board, number, segments=(0, 1)):
    return do(board, *(board.unit(number, "train", "training", segment) for segment in segments))


def evaluate(board, number, segments=(0, 1)):
    return do(board, *(board.unit(number, "evaluate", "training", segment) for segment in segments))


def branching(evaluated=()):
    """Trial 1 is stages 1, 2; trial 2 is 1, 3."""
    plan = Plan()
    plan.ask(1, ROOT, values(1, 2), 2, evaluated)
    plan.ask(2, ROOT, values(1, 3), 2)
    return plan, Board(plan, [0, 1])


def test_children_begin_when_their_parent_has_ended_and_train_side_by_side():
    _, board = branching()
    assert {u.stage for place in (0, 1) for u in board.eligible(place)} == {1}
    assert numbers(train(board, 1)) == [1] and board.trained(1) and board.ended(1)
    assert [u.stage for u in board.eligible(0)] == [2, 3]
    board.start(board.unit(2, "train", "training", 0))
    assert [u.stage for u in board.eligible(1)] == [3] and board.is_running(2)
    assert not board.has_begun(2) and board.has_begun(1)
    board.start(board.unit(3, "train", "training", 1))


def test_children_wait_for_their_parents_evaluation():
    _, board = branching(evaluated={1})
    assert train(board, 1) == []
    units = board.eligible(0)
    assert [(u.kind, u.stage) for u in units] == [("evaluate", 1)]
    assert evaluate(board, 1, [0]) == [] and numbers(evaluate(board, 1, [1])) == [1]
    assert [u.stage for u in board.eligible(0)] == [2, 3]


def test_metrics_that_are_asked_for_late_stop_no_child_that_has_begun():
    plan, board = branching()
    train(board, 1)
    train(board, 2, [0])
    assert board.add(plan.ask(1, ROOT, values(1, 2), 2, evaluated={1})) == []
    assert [(u.kind, u.stage) for u in board.eligible(1)] == [("evaluate", 1), ("train", 2), ("train", 3)]
    board.add(plan.ask(3, ROOT, values(1, 4), 2))
    assert [u.stage for u in board.eligible(1)] == [1, 2, 3], "a new one waits"
    assert numbers(evaluate(board, 1)) == [1]
    assert [u.stage for u in board.eligible(1)] == [2, 3, 4]


def test_what_is_due_on_the_same_rows_may_be_evaluated_together():
    plan = Plan()
    for key in (1, 2, 3):
        plan.ask(key, ROOT, values(key), 1, evaluated={1})
    board = Board(plan, [0, 1], [0])
    for number in (1, 2, 3):
        train(board, number)
    unit = board.unit(2, "evaluate", "validation", 0)
    assert [u.stage for u in board.due_with(unit)] == [2, 1, 3]
    assert [u.stage for u in board.due_with(unit, most=2)] == [2, 1]
    board.start(unit)
    assert [u.stage for u in board.due_with(board.unit(1, "evaluate", "validation", 0))] == [1, 3]


def test_a_withdrawn_trial_ends_the_iteration_that_it_has_begun_and_nothing_comes_after_it():
    """Its parent's state may be gone by then: the trial's own is that after the iteration."""
    plan, board = branching()
    train(board, 1)
    unit = board.unit(2, "train", "training", 0)
    board.start(unit)
    assert board.withdraw(1) == []
    assert numbers(plan.path(1)) == [1, 2]
    assert board.finish(unit) == []
    assert {u.stage for place in (0, 1) for u in board.eligible(place)} == {2, 3}
    last = board.unit(2, "train", "training", 1)
    board.start(last)
    assert numbers(board.finish(last)) == [2]
    assert {u.stage for place in (0, 1) for u in board.eligible(place)} == {3}


def test_who_waits_for_anothers_metrics_hears_when_it_is_withdrawn():
    _, board = branching(evaluated={1})
    train(board, 1)
    assert numbers(board.withdraw(1)) == [1]
    assert [u.stage for u in board.eligible(0)] == [3]


def test_a_stage_at_fault_takes_all_its_trials_along():
    plan, board = branching()
    plan_3 = plan.ask(3, ROOT, values(5), 3)
    board.add(plan_3)
    train(board, 1)
    unit = board.unit(2, "train", "training", 0)
    board.start(unit)
    assert board.fail(2) == {1} and plan.failed(1) and not plan.failed(2)
    board.release(unit)
    assert [u.stage for u in board.eligible(0)] == [4, 3]
    assert plan.ask(6, ROOT, values(1, 2), 9) == [] and plan.failed(6), "nobody tries again"
    assert board.fail(4) == {3}
    train(board, 3)
    assert board.done


def test_passes_left_are_counted_by_key():
    plan, board = branching()
    board.key_of = lambda stage: stage.parameters[0]
    assert [board.passes_left(None, 0), board.passes_left("lr=1", 0), board.passes_left("lr=2", 1)] == [3, 1, 1]
    train(board, 1, [0])
    board.start(unit := board.unit(1, "train", "training", 1))
    assert [board.passes_left(None, s) for s in (0, 1)] == [2, 3], "what is at work is left"
    board.finish(unit)
    board.withdraw(2)
    assert [board.passes_left(None, s) for s in (0, 1)] == [1, 1] and board.passes_left("lr=3", 0) == 0
    board.count_by(lambda stage: None, lambda stage: 10)
    assert board.passes_left(None, 0) == 10


# --- costs ---------------------------------------------------------------------------------------------------------
def test_the_critical_path_is_what_a_stage_and_the_longest_below_it_have_left():
    plan = Plan()
    plan.ask(1, ROOT, values(1, 2), 3)
    plan.ask(2, ROOT, values(1, 3), 5)
    board = Board(plan, [0, 1])
    costs = Costs(board, lambda stage: None)
    board.watch(watcher := Silent(costs))
    assert costs.left(1) is None and costs.all_left() == 0
    train(board, 1, [0])
    assert costs.finished(board.unit(1, "train", "training", 0), 2.0) and costs.settle()
    assert costs.left(1) == 2 + 4 * 2 * 2 and costs.left(2) == 2 * 2 * 2
    assert costs.all_left() == 2 * (1 + 2 * 6) == 2 * board.visits_left(1) + 2 * 12
    board.add(plan.ask(2, ROOT, values(1, 3), 6))
    assert costs.left(1) == 2 + 5 * 2 * 2 and watcher.lifted >= {1, 4, 5, 6, 7}
    board.withdraw(2)
    costs.units = 10
    assert costs.settle() and costs.left(1) == 2 + 2 * 2 * 2


class Silent:
    """A watcher that keeps costs alone."""

    def __init__(self, costs):
        self.costs, self.lifted = costs, set()

    def added(self, stages):
        self.lifted = self.costs.added(stages)

    def changed(self):
        self.costs.news = True

    def may_train(self, stage, segments):
        self.costs.opened(stage)

    def idle(self, stage):
        pass

    def may_evaluate(self, stage, keys):
        pass


@given(st.integers(0, 10**9))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_left_is_the_sum_of_what_every_stage_has_left(seed):
    source = random.Random(seed)
    story = Story(seed, Randomized)
    for _ in range(40):
        source.choice([story.ask, story.start, story.finish])()
        costs, board = story.scheduler.costs, story.board
        visits = {number: board.visits_left(number) for number in board.left}
        assert costs.visits == sum(visits.values())
        assert costs.known == sum(n for number, n in visits.items() if costs.unit_seconds[number])
        assert costs.total == pytest.approx(sum(n * costs.unit_seconds[number] for number, n in visits.items()))
