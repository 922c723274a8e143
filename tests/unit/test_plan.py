"""The search plan and the board that walks it: what is shared is trained once, whatever comes between."""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pg_mop.plan import identity
from pg_mop.plan.stages import Plan
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board, Unit
from pg_mop.schedule.cost import Costs
from pg_mop.schedule.logged import Logged
from pg_mop.schedule.simulator import simulate

ROOT = identity.root({"model": 1})


def values(*along):
    """Parameters that are these values, by iteration; the last one holds."""
    return lambda iteration: (f"lr={along[min(iteration, len(along)) - 1]}", "")


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


def test_a_replay_visits_in_the_logged_order():
    plan = Plan()
    for key in (1, 2):
        plan.ask(key, ROOT, values(0, key), 2)
    order = {1: [2, 0, 1], 2: [0, 2, 1], 3: [1, 0, 2]}
    for name in SCHEDULERS:
        if name != "round-robin":  # has an order of its own
            plan = Plan()
            for key in (1, 2):
                plan.ask(key, ROOT, values(0, key), 2)
            board = Logged(plan, [0, 1, 2], order=order)
            visits = simulate(board, SCHEDULERS[name](board, 1), lambda unit: 1 + unit.segment)
            found = {}
            for v in visits:
                found.setdefault(v.unit.stage, []).append(v.unit.segment)
            assert found == order


# --- anything may happen at any time -------------------------------------------------------------------------------
class Story:
    """A run with random trials, withdrawals, faults and places, beside the simplest account of what must hold."""

    def __init__(self, seed, name):
        self.random = random.Random(seed)
        self.plan = Plan()
        self.segments = list(range(self.random.randint(1, 3)))
        self.validation = list(range(self.random.randint(0, 2)))
        self.name, self.trials, self.units, self.running = name, {}, set(), []
        self.told, self.gone, self.kept = set(), set(), set()
        self.begin()

    def begin(self):
        self.board = Board(self.plan, self.segments, self.validation)
        self.board.key_of = lambda stage: stage.parameters[0]
        self.tell(self.board.restore(self.units))
        self.scheduler = SCHEDULERS[self.name](self.board, self.random.random(), lambda number: number % 2)

    def tell(self, stages):
        for stage in stages:
            assert stage.trials and self.board.ended(stage.number)
            self.told.add(stage.number)

    def ask(self):
        if self.trials and self.random.random() < 0.5:
            key = self.random.choice(list(self.trials))
        else:
            key = len(self.trials) + 1
            self.trials[key] = self.random.choice([1, 2]), [self.random.choice([1, 1, 2]) for _ in range(5)]
        start, along = self.trials[key]
        until = min(5, len(self.plan.path(key)) + self.random.randint(0, 3))
        evaluated = {i for i in range(1, until + 1) if self.random.random() < 0.3}
        self.gone.discard(key)
        stages = self.plan.ask(key, identity.root(start), values(*along), until, evaluated)
        self.told -= {stage.number for stage in stages}
        self.tell(self.board.add(stages))
        if self.plan.failed(key):
            self.board.withdraw(key)
            self.gone.add(key)
        self.told |= {s.number for s in self.plan.path(key) if self.board.ended(s.number)}  # who asks can see that

    def withdraw(self):
        if self.trials:
            key = self.random.choice(list(self.trials))
            self.tell(self.board.withdraw(key))
            self.gone.add(key)

    def fail(self):
        if self.running and self.random.random() < 0.2:
            unit = self.random.choice(self.running)[1]
            stage = self.plan.stages[unit.stage]
            trials = {key for key in self.trials if stage in self.plan.path(key)}
            assert self.board.fail(unit.stage) == trials and all(map(self.plan.failed, trials))
            self.gone |= trials

    def start(self):
        idle = set(self.board.workers) - {place for place, _ in self.running}
        for place in self.scheduler.arrange(idle):
            if place in {at for at, _ in self.running}:
                continue
            eligible = self.board.eligible(place)
            unit = self.scheduler.choose(place)
            if unit is None:
                continue
            stage = self.plan.stages[unit.stage]
            assert unit in eligible or self.board.reserved(unit.stage) is not None
            assert unit not in self.units and unit not in [u for _, u in self.running]
            assert stage.trials and not stage.failed and (stage.parent is None or stage.parent.trained)
            if unit.kind == "train":
                assert all(u.stage != unit.stage for _, u in self.running if u.kind == "train")
            else:
                assert stage.trained
            self.board.start(unit)
            self.running.append((place, unit))
            coming = self.scheduler.coming(place) if self.random.random() < 0.5 else None
            self.board.reserve(place, coming and coming.stage)

    def finish(self):
        if self.running:
            place, unit = self.running.pop(self.random.randrange(len(self.running)))
            if self.random.random() < 0.15:
                self.board.release(unit)
                return
            if not self.plan.stages[unit.stage].failed:
                self.units.add(unit)
            self.tell(self.board.finish(unit))
            self.scheduler.finished(unit, 1 + self.random.random())

    def serve(self):
        self.board.serve(range(self.random.randint(1, 4)))

    def resume(self):
        """The coordinator dies, and another one takes over."""
        if self.random.random() < 0.2:
            self.running = []
            before, self.plan = self.plan, Plan()
            for s in before.stages.values():
                self.plan.restore(
                    s.number, s.parent and s.parent.number, s.iteration, s.identity, s.parameters, s.failed
                )
            for key, (start, along) in self.trials.items():
                path = before.path(key)
                evaluated = {s.iteration for s in path if s.evaluated_for and key in s.evaluated_for}
                self.plan.ask(key, identity.root(start), values(*along), len(path), evaluated)
            self.begin()

    def check(self):
        for stage in self.plan.stages.values():
            assert stage.trials == {key for key in self.trials if stage in self.plan.path(key)}
        for segment in self.segments:
            left = Counter()
            for number, stage in self.plan.stages.items():
                if stage.trials and not stage.failed:
                    visited = Unit(stage.iteration, number, "train", "training", segment) in self.units
                    assert self.board.visits_left(number, segment) == (not visited)
                    left[stage.parameters[0]] += not visited
            assert self.board.passes_left(None, segment) == left.total()
            assert all(self.board.passes_left(key, segment) == n for key, n in left.items())

    def end(self):
        while not self.board.done:
            self.start()
            assert self.running, "nobody can go on"
            self.finish()
        for key in set(self.trials) - self.gone:
            for stage in self.plan.path(key):
                assert self.board.ended(stage.number) and stage.number in self.told
                assert {
                    Unit(stage.iteration, stage.number, "train", "training", s) for s in self.segments
                } <= self.units
                assert (
                    not stage.evaluated
                    or {Unit(stage.iteration, stage.number, "evaluate", *key) for key in self.board.datasets}
                    <= self.units
                )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 10**9),
    st.sampled_from(sorted(SCHEDULERS)),
    st.lists(
        st.sampled_from("ask ask start start finish finish finish withdraw fail serve resume".split()), max_size=60
    ),
)
def test_whatever_happens_nothing_is_lost_or_done_twice(seed, name, events):
    story = Story(seed, name)
    story.ask()
    for event in events:
        getattr(story, event)()
        story.check()
    story.end()


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
    story = Story(seed, "randomized")
    for _ in range(40):
        source.choice([story.ask, story.start, story.finish])()
        costs, board = story.scheduler.costs, story.board
        visits = {number: board.visits_left(number) for number in board.left}
        assert costs.visits == sum(visits.values())
        assert costs.known == sum(n for number, n in visits.items() if costs.unit_seconds[number])
        assert costs.total == pytest.approx(sum(n * costs.unit_seconds[number] for number, n in visits.items()))
