"""Tests of every scheduler (schedule/base.py), on simulated runs: no server, no clock."""

import functools
import itertools
import random
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pg_mop.plan import folds, identity
from pg_mop.plan.stages import Plan
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board, Unit
from pg_mop.schedule.logged import Logged
from pg_mop.schedule.simulator import Visit, simulate
from pg_mop.schedule.unit_batches import UnitBatches
from support.conformance.base import Conformance
from support.plans import chains

SHAPES = [(16, 2, 3), (2, 5, 2), (1, 3, 2), (4, 1, 2), (1, 1, 1), (5, 3, 1), (3, 3, 2)]
BATCHES = [(40, 2, 3), (17, 3, 4), (64, 4, 2), (2, 2, 3)]
SERVERS = {
    **{("training", segment): server for segment, server in enumerate(["w1", None, "w1", "w2"])},
    **{("validation", segment): server for segment, server in enumerate([None, "w2", "w3"])},
}
EVENTS = "ask ask start start finish finish finish withdraw fail serve resume".split()


@dataclass(frozen=True)
class Keyed(Visit):
    """A visit, and the configuration that it was of."""

    key: int


def board_of(configurations, segments, iterations, metrics=(), validation=(), workers=None):
    """`workers`: so many, each of which does all segments; None: one for each segment."""
    board = Board(chains(configurations, iterations, metrics), range(segments), validation)
    if workers:
        board.anywhere = True
        board.serve(range(workers))
    return board


def values(*along):
    """Parameters that are these values, by iteration; the last one holds."""
    return lambda iteration: (f"lr={along[min(iteration, len(along)) - 1]}", "")


def uneven(key, unit):
    return random.Random(repr((key, unit))).uniform(0.1, 3.0)


def tree(source, trials, iterations):
    """Trials of two architectures, whose learning rates fall at some iterations."""
    plan = Plan()
    for key in range(1, trials + 1):
        model, falls = source.choice(["small", "large"]), source.sample(range(2, iterations + 1), 2)
        plan.ask(
            key,
            identity.root(model),
            lambda i, f=falls, m=model: (f"{0.1 ** sum(i >= at for at in f):g}", m),
            source.choice([iterations // 2, iterations]),
        )
    return plan


def with_folds(kind=Board, iterations=3):
    """(a board of two configurations with two folds each, and metrics after the last iterations; {key: its held-out
    segments})"""
    own = [{"mst_key": 1}, {"mst_key": 2}]
    trials = [*own, *folds.trials(own, folds.deal(range(5), 2))]
    held_out, plan = {c["mst_key"]: c.get("held_out", ()) for c in trials}, Plan()
    for key in held_out:
        root = identity.root({"mst_key": key})
        plan.ask(key, root, lambda iteration: ("", ""), iterations, (iterations - 1, iterations))
    return kind(plan, range(5), held_out=lambda stage: held_out[stage.mst_key]), held_out


def assert_no_leak(board, held_out, visits):
    """A fold trains outside its held-out segments alone, and is evaluated on these alone."""
    found = {}
    for visit in visits:
        stage = board.plan.stages[visit.unit.stage]
        found.setdefault((stage.mst_key, stage.iteration, visit.unit.kind), []).append(visit.unit.segment)
    for (key, segments), iteration in itertools.product(held_out.items(), (1, 2, 3)):
        assert sorted(found[key, iteration, "train"]) == [s for s in board.segments if s not in segments]
        evaluated = sorted(found.get((key, iteration, "evaluate"), []))
        assert evaluated == ([] if iteration == 1 else sorted(segments) or list(board.segments))
    assert board.done and all(board.passes_left(None, segment) == 0 for segment in board.segments)


def orders(visits):
    """{stage: its segments in the order of its training}"""
    found = {}
    for visit in sorted(visits, key=lambda visit: visit.start):
        if visit.unit.kind == "train":
            found.setdefault(visit.unit.stage, []).append(visit.unit.segment)
    return found


class SchedulerConformance(Conformance):
    """`in_lockstep`: has an order of its own and knows nothing ahead; `without_chance`: of which the seed decides nothing;
    `shapes`, `batches`, `wanted`, `stories`: how much is tried."""

    cases, registered = SCHEDULERS, SCHEDULERS
    in_lockstep, without_chance = ("round-robin",), ()
    shapes, batches, wanted, stories = SHAPES[:3], BATCHES[1:2], (1, 5), 20

    def run(self, kind, configurations, segments, iterations, seed=7, seconds=None, ahead=False, **more):
        """`seconds`: of a configuration and a unit."""
        board = board_of(configurations, segments, iterations, **more)
        key_of = {number: min(stage.trials) for number, stage in board.plan.stages.items()}
        scheduler = self.cases[kind](board, seed)
        visits = simulate(board, scheduler, lambda u: seconds(key_of[u.stage], u) if seconds else 1.0, ahead)
        return [Keyed(v.unit, v.worker, v.start, v.end, key_of[v.unit.stage]) for v in visits]

    @pytest.mark.parametrize("ahead", [False, True])
    def test_every_configuration_visits_every_segment_once_per_iteration_and_one_at_a_time(self, kind, ahead):
        for configurations, segments, iterations in self.shapes:
            visits = self.run(kind, configurations, segments, iterations, seconds=uneven, ahead=ahead)
            assert sorted((v.key, v.unit.iteration, v.unit.segment) for v in visits) == [
                (c, i, s)
                for c in range(1, configurations + 1)
                for i in range(1, iterations + 1)
                for s in range(segments)
            ]
            for busy in (lambda v: v.worker, lambda v: v.key):
                for _, own in itertools.groupby(sorted(visits, key=lambda v: (busy(v), v.start)), busy):
                    assert all(a.end <= b.start for a, b in itertools.pairwise(own))

    def test_a_board_whose_workers_do_all_segments_is_done(self, kind):
        if not self.cases[kind].ANYWHERE:
            return
        for workers in (1, 2, 5):
            board = board_of(4, 3, 2, workers=workers)
            scheduler = self.cases[kind](board, 1, lambda number: number % 2)
            visits = simulate(board, scheduler, lambda unit: uneven(unit.stage, unit))
            assert len({(v.unit.stage, v.unit.segment) for v in visits}) == len(visits) == 4 * 3 * 2

    def test_the_seed_alone_decides_the_order(self, kind):
        first, again, other = ([v.unit for v in self.run(kind, 6, 3, 3, seed)] for seed in (1, 1, 2))
        assert first == again and (first == other) == (kind in self.without_chance)
        one, two = (self.cases[kind](board_of(count, 3, 1), 5) for count in (2, 4))
        assert 0 <= one.tie(1, 2) == two.tie(1, 2) < 1 and one.tie(1, 2) != one.tie(2, 2) != one.tie(2, 1)

    def test_peek_and_take_together_are_choose(self, kind):
        orders = []
        for peeks in (False, True):
            board = board_of(6, 3, 2, [2])
            scheduler, order = self.cases[kind](board, 3), []
            while not board.done:
                for worker in scheduler.arrange(board.workers):
                    if peeks:
                        unit = scheduler.peek(worker)
                        assert unit == scheduler.take(worker, unit)
                    else:
                        unit = scheduler.choose(worker)
                    if unit is not None:
                        assert scheduler.is_urgent(unit.stage) in (True, False) and not scheduler.defers(unit, worker)
                        board.start(unit)
                        board.finish(unit)
                        scheduler.finished(unit, 1.0)
                        order.append((worker, unit))
            orders.append(order)
        assert orders[0] == orders[1]
        assert sorted(scheduler.order({2, 0, 1})) == [0, 1, 2] and set(scheduler.arrange({2, 0})) <= {0, 2}

    def test_a_configuration_trains_on_only_after_its_evaluation(self, kind):
        visits = self.run(kind, 4, 2, 3, metrics=[2, 3], validation=[0, 1, 5], seconds=uneven)
        times = defaultdict(list)
        for v in visits:
            times[v.key, v.unit.iteration, v.unit.kind].append(v)
        assert sum(v.unit.kind == "evaluate" for v in visits) == 4 * 2 * (2 + 3)
        for key in range(1, 5):
            evaluated = times[key, 2, "evaluate"]
            assert min(v.start for v in times[key, 3, "train"]) >= max(v.end for v in evaluated)
            assert min(v.start for v in evaluated) >= max(v.end for v in times[key, 2, "train"])

    def test_a_failed_configuration_leaves_and_the_others_finish(self, kind):
        board = board_of(3, 2, 2)
        scheduler = self.cases[kind](board, 1)
        unit = scheduler.choose(0)
        board.start(unit)
        key = min(board.plan.stages[unit.stage].trials)
        assert board.fail(unit.stage) == {key} and board.plan.failed(key)
        visits = simulate(board, scheduler, lambda unit: 1 / unit.stage)
        assert len(visits) == 2 * 2 * 2 and key not in {(v.unit.stage - 1) // 2 + 1 for v in visits}

    def test_a_unit_that_was_not_done_is_run_again(self, kind):
        board = board_of(1, 2, 1)
        scheduler = self.cases[kind](board, 1)
        unit = scheduler.choose(0) or scheduler.choose(1)
        board.start(unit)
        assert not board.eligible(0) and not board.eligible(1)
        assert not scheduler.choose(0) and not scheduler.choose(1)
        board.release(unit)
        assert unit in [v.unit for v in simulate(board, scheduler, lambda unit: 1 + unit.segment)]

    def test_what_comes_next_at_a_place_is_what_it_then_gets(self, kind):
        """Nobody takes it away, and asking for it changes nothing."""
        board = board_of(8, 2, 1)
        scheduler = self.cases[kind](board, 1)
        board.start(first := scheduler.choose(0))
        if (coming := scheduler.coming(0)) is None:
            assert kind in self.in_lockstep
            return
        board.reserve(0, coming.stage)
        board.start(other := scheduler.choose(1))
        assert other.stage != coming.stage
        board.finish(first)
        scheduler.finished(first, 1.0)
        assert scheduler.choose(0) == coming

    def test_a_tree_is_trained_once_from_its_roots_down(self, kind):
        plan = tree(random.Random(5), 20, 8)
        assert plan.merge_rate() > 1.5
        board, done = Board(plan, range(3)), defaultdict(list)
        for v in simulate(board, self.cases[kind](board, 1), lambda unit: 1 + uneven(1, unit)):
            done[v.unit.stage].append(v)
        assert set(done) == set(plan.stages)
        for number, of in done.items():
            assert sorted(v.unit.segment for v in of) == [0, 1, 2]
            of.sort(key=lambda v: v.start)
            assert all(a.end <= b.start for a, b in itertools.pairwise(of))
            parent = plan.stages[number].parent
            assert parent is None or max(v.end for v in done[parent.number]) <= of[0].start

    def test_a_place_does_segments_of_its_own_server_alone(self, kind):
        """However few places there are, each server has one; the last evaluation of a dataset waits for the others."""
        for wanted in self.wanted:
            board = Board(chains(4, 2, range(1, 3)), range(4), range(3), SERVERS)
            board.serve(board.first_workers(wanted))
            assert {board.server(p) for p in board.workers} == {"w1", "w2", "w3", None}
            visits = simulate(board, self.cases[kind](board, 3), lambda unit: 1 + uneven(1, unit))
            assert len(visits) == 4 * 2 * (4 + 4 + 3)
            assert all(SERVERS[v.unit.dataset, v.unit.segment] == board.server(v.worker) for v in visits)
            evaluations = defaultdict(list)
            for v in visits:
                if v.unit.kind == "evaluate":
                    evaluations[v.unit.stage, v.unit.dataset].append(v)
            assert len(evaluations) == 4 * 2 * 2
            for own in evaluations.values():
                last = max(own, key=lambda v: v.start)
                assert all(v.end <= last.start for v in own if v is not last)

    def test_stages_that_are_held_are_trained_by_nobody_and_the_others_are(self, kind):
        board = board_of(3, 2, 2)
        scheduler = self.cases[kind](board, 7)
        held = [stage for stage in board.plan.stages.values() if stage.trials == {2}]
        board.hold(held)
        with pytest.raises(RuntimeError):  # (a simulator does not wait for other runs)
            simulate(board, scheduler, lambda unit: 1.0)
        assert {min(stage.trials) for stage in board.left.values()} == {2} and not board.done
        board.let_go(held)
        simulate(board, scheduler, lambda unit: 1.0)
        assert board.done and not board.held and all(stage.trained for stage in held)

    @pytest.mark.parametrize("scored", (True, False))
    def test_stages_that_are_taken_over_are_not_trained(self, kind, scored):
        board = board_of(3, 2, 3, metrics=(1, 2, 3))
        scheduler, path = self.cases[kind](board, 7), board.plan.path(2)
        board.hold(path)
        for stage in path[:2]:
            stage.trained, stage.scored, stage.origin = True, scored or stage is path[0], (1, stage.number)
        assert board.take_over(path[:2]) == (path[:2] if scored else path[:1])
        assert board.held == {path[2].number}
        board.let_go(path[2:])
        own = {stage.number for stage in path}
        units = [v.unit for v in simulate(board, scheduler, lambda unit: 1.0) if v.unit.stage in own]
        assert sorted((unit.iteration, unit.kind) for unit in units) == [
            *[(2, "evaluate")] * 2 * (not scored),
            *[(3, "evaluate")] * 2,
            *[(3, "train")] * 2,
        ]
        assert board.done and board.passes_left(None, 0) == 0

    def test_a_replay_visits_in_the_logged_order(self, kind):
        if kind in self.in_lockstep:
            return
        plan, order = Plan(), {1: [2, 0, 1], 2: [0, 2, 1], 3: [1, 0, 2]}
        for key in (1, 2):
            plan.ask(key, identity.root({"model": 1}), values(0, key), 2)
        board = Logged(plan, [0, 1, 2], order=order)
        assert orders(simulate(board, self.cases[kind](board, 1), lambda unit: 1 + unit.segment)) == order
        board, _ = with_folds()
        order = orders(simulate(board, self.cases[kind](board, 3), lambda unit: 1.0))
        again, held_out = with_folds(functools.partial(Logged, order=order))
        visits = simulate(again, self.cases[kind](again, 5), lambda unit: 1.0)
        assert_no_leak(again, held_out, visits)
        assert orders(visits) == order

    def test_a_fold_trains_outside_its_segments_and_is_evaluated_on_them(self, kind):
        board, held_out = with_folds()
        visits = simulate(board, self.cases[kind](board, 7), lambda unit: 1.0 + unit.segment / 3)
        assert_no_leak(board, held_out, visits)

    @pytest.mark.parametrize("anywhere,chained", [(False, 0.0), (True, 0.5)])
    def test_in_batches_and_chains_too_every_stage_visits_every_segment_once_after_its_parent(
        self, kind, anywhere, chained
    ):
        for configurations, segments, iterations in self.batches:
            source, make = random.Random(1), self.cases[kind]
            board = board_of(configurations, segments, iterations, [1, iterations])
            board.anywhere = anywhere and make.ANYWHERE
            board.serve(range(segments))
            scheduler, begins, ends = make(board, 3), defaultdict(list), {}
            key_of = {number: min(stage.trials) for number, stage in board.plan.stages.items()}
            batches = UnitBatches(board, scheduler, key_of.get, lambda number: 1000, chained, lambda *_: True)
            seconds = lambda unit, source=source: source.uniform(0.001, 0.02)  # noqa: E731
            visits = simulate(board, scheduler, seconds, batches=batches, around=lambda *_: 0.005)
            trained = sorted((v.unit.stage, v.unit.segment) for v in visits if v.unit.kind == "train")
            assert trained == [(stage, s) for stage in sorted(board.plan.stages) for s in range(segments)]
            for v in visits:
                ends[v.unit.stage] = max(v.end, ends.get(v.unit.stage, 0.0))
                if v.unit.kind == "train":
                    begins[v.unit.stage].append((v.start, v.end))
            for number, times in begins.items():
                assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(times))), "at two places at once"
                parent = board.plan.stages[number].parent
                assert parent is None or ends[parent.number] <= min(times)[0]

    def test_whatever_happens_nothing_is_lost_or_done_twice(self, kind):
        @settings(max_examples=self.stories, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.integers(0, 10**9), st.lists(st.sampled_from(EVENTS), max_size=60))
        def told(seed, events):
            story = Story(seed, self.cases[kind])
            story.ask()
            for event in events:
                getattr(story, event)()
                story.check()
            story.end()

        told()


# --- anything may happen at any time -------------------------------------------------------------------------------
class Story:
    """A run with random trials, withdrawals, faults and places, beside the simplest account of what must hold."""

    def __init__(self, seed, make):
        self.random = random.Random(seed)
        self.plan = Plan()
        self.segments = list(range(self.random.randint(1, 3)))
        self.validation = list(range(self.random.randint(0, 2)))
        self.make, self.trials, self.units, self.running = make, {}, set(), []
        self.told, self.gone, self.kept = set(), set(), set()
        self.begin()

    def begin(self):
        self.board = Board(self.plan, self.segments, self.validation)
        self.board.key_of = lambda stage: stage.parameters[0]
        self.tell(self.board.restore(self.units))
        self.scheduler = self.make(self.board, self.random.random(), lambda number: number % 2)

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
