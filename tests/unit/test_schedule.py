"""The schedulers' rules, shown on simulated runs: no server, no clock."""

import itertools
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from pg_mop.plan import identity
from pg_mop.plan.sharing import Sharing
from pg_mop.plan.stages import Plan
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import Transport, Visit, makespan, simulate
from pg_mop.schedule.unit_batches import UnitBatches
from support.plans import chains

SHAPES = [(16, 2, 3), (2, 5, 2), (1, 3, 2), (4, 1, 2), (1, 1, 1), (5, 3, 1), (3, 3, 2)]


def board_of(configurations, segments, iterations, metrics=(), validation=()):
    return Board(chains(configurations, iterations, metrics), range(segments), validation)


@dataclass(frozen=True)
class Keyed(Visit):
    """A visit, and the configuration that it was of."""

    key: int


def run(
    name, configurations, segments, iterations, seed=7, metrics=(), validation=(), seconds=None, ahead=False, alike=None
):
    """`seconds`: of a configuration and a unit; `alike`: of configurations."""
    board = board_of(configurations, segments, iterations, metrics, validation)
    key_of = {number: min(stage.trials) for number, stage in board.plan.stages.items()}
    scheduler = SCHEDULERS[name](board, seed, alike and (lambda number: alike[key_of[number]]))
    visits = simulate(board, scheduler, lambda unit: seconds(key_of[unit.stage], unit) if seconds else 1.0, ahead)
    return [Keyed(v.unit, v.worker, v.start, v.end, key_of[v.unit.stage]) for v in visits]


def uneven(key, unit):
    return random.Random(repr((key, unit))).uniform(0.1, 3.0)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("configurations,segments,iterations", SHAPES)
def test_every_configuration_visits_every_segment_once_per_iteration(name, configurations, segments, iterations, ahead):
    visits = run(name, configurations, segments, iterations, seconds=uneven, ahead=ahead)
    trained = [(v.key, v.unit.iteration, v.unit.segment) for v in visits]
    assert sorted(trained) == [
        (c, i, s) for c in range(1, configurations + 1) for i in range(1, iterations + 1) for s in range(segments)
    ]


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("configurations,segments,iterations", SHAPES)
def test_neither_a_configuration_nor_a_place_trains_twice_at_once(name, configurations, segments, iterations):
    visits = run(name, configurations, segments, iterations, seconds=uneven)
    for key in (lambda v: v.worker, lambda v: ("model", v.key)):
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
    rounds = [sorted(v.start for v in visits)[i * 4 : (i + 1) * 4] for i in range(4)]
    assert all(len(set(r)) == 1 for r in rounds)


def test_without_rounds_unequal_units_finish_sooner():
    cost = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0, 6: 8.0}
    seconds = lambda key, unit: cost[key]  # noqa: E731
    assert makespan(run("randomized", 6, 3, 4, seconds=seconds)) < makespan(
        run("round-robin", 6, 3, 4, seconds=seconds)
    )


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
            visits = run(
                name, configurations, segments, 4, seed=draw, seconds=lambda key, unit, c=cost: c[key], ahead=ahead
            )
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
        found += v.worker in last and alike[last[v.worker]] != alike[v.key]
        last[v.worker] = v.key
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
            visits = run(
                "longest-first",
                len(alike),
                segments,
                4,
                seed=draw,
                seconds=lambda key, unit, c=cost: c[key],
                ahead=ahead,
                alike=known,
            )
            spans.append(makespan(visits))
            if known is None:
                before += changes(visits, alike)
            else:
                after += changes(visits, alike)
        longer.append(spans[1] / spans[0])
    assert sum(longer) / len(longer) < 1.01
    if architectures > 1 and each > 1:
        assert after < (0.75 if segments <= 4 else 0.9) * before  # places take configurations from one another


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("name", [name for name, kind in SCHEDULERS.items() if kind.ANYWHERE])
@pytest.mark.parametrize("models,each,segments", [(2, 8, 2), (8, 2, 4), (12, 1, 3), (1, 6, 2), (3, 5, 4)])
def test_where_any_place_does_all_segments_most_is_compiled_in_one(name, models, each, segments, groups):
    """And no run takes longer: a unit takes a while the first time that its model is compiled at a place."""
    compiling, spans, compiled = 6.0, {}, {}
    for anywhere in (False, True):
        spans[anywhere] = compiled[anywhere] = 0.0
        for seed in range(6):
            board = board_of(models * each, segments, 5)
            board.anywhere = anywhere
            board.serve(range(segments))
            alike = {number: min(stage.trials) % models for number, stage in board.plan.stages.items()}
            scheduler = SCHEDULERS[name](board, seed, alike.get)
            at = {}
            known = set()

            def seconds(unit, known=known, at=at, alike=alike):
                first = (alike[unit.stage], at["worker"]) not in known
                known.add((alike[unit.stage], at["worker"]))
                return 1.0 + alike[unit.stage] / models + (compiling if first else 0.0)

            peek = scheduler.peek
            scheduler.peek = lambda worker, peek=peek, at=at: (at.update(worker=worker), peek(worker))[1]
            visits = simulate(
                board,
                scheduler,
                seconds,
                batches=UnitBatches(board, scheduler, alike.get, lambda number: 1) if groups else None,
            )
            trained = sorted((v.unit.stage, v.unit.segment) for v in visits)
            assert trained == [(number, s) for number in sorted(alike) for s in range(segments)]
            spans[anywhere] += makespan(visits)
            compiled[anywhere] += len(known)
    assert spans[True] <= 1.02 * spans[False], spans
    if models >= segments:
        assert compiled[True] <= 0.75 * compiled[False], compiled


@pytest.mark.parametrize("name", [name for name, kind in SCHEDULERS.items() if kind.ANYWHERE])
@pytest.mark.parametrize("models,workers", [(1, 2), (1, 4), (2, 3)])
def test_nobody_takes_from_the_home_of_a_place_that_is_idle(name, models, workers):
    """One configuration of each model: where all places but its own are idle, it stays at home."""
    for seed in range(6):
        board = board_of(models, 4, 3)
        board.anywhere = True
        board.serve(range(workers))
        alike = {number: min(stage.trials) for number, stage in board.plan.stages.items()}
        visits, of = simulate(board, SCHEDULERS[name](board, seed, alike.get), lambda unit: 1.0), {}
        for v in visits:
            of.setdefault(alike[v.unit.stage], set()).add(v.worker)
        assert [len(at) for at in of.values()] == [1] * models, of


def of_one_net(name, configurations, segments, seed=1):
    """A board of one iteration for two places that do all segments, and a scheduler."""
    board = board_of(configurations, segments, 1, metrics=[1])
    board.anywhere = True
    board.serve(range(2))
    return board, SCHEDULERS[name](board, seed, lambda number: 0)


@pytest.mark.parametrize("name", [name for name, kind in SCHEDULERS.items() if kind.ANYWHERE])
def test_a_short_evaluation_is_left_to_its_home_while_that_evaluates_the_same_model_alone(name):
    def step(worker, seconds):
        unit = scheduler.choose(worker)
        board.start(unit)
        board.finish(unit)
        scheduler.finished(unit, seconds)
        return unit.kind

    board, scheduler = of_one_net(name, 1, 3)
    assert [step(0, 0.01) for _ in range(3)] == ["train"] * 3
    board.start(first := scheduler.choose(0))
    assert first.kind == "evaluate" and scheduler.choose(1) is None
    board.finish(first)
    scheduler.finished(first, 5.0)
    assert step(1, 5.0) == "evaluate", "it is not short"


@pytest.mark.parametrize("name", [name for name, kind in SCHEDULERS.items() if kind.ANYWHERE])
def test_an_evaluation_that_is_left_to_its_home_keeps_no_other_back(name):
    """Two nets, both at home at one place, which evaluates one of them."""
    for seed in range(20):
        board = board_of(8, 2, 1, metrics=[1])
        board.anywhere = True
        board.serve(range(2))
        alike = {number: min(stage.trials) % 2 for number, stage in board.plan.stages.items()}
        scheduler = SCHEDULERS[name](board, seed, alike.get)
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


@pytest.mark.parametrize("name", [name for name, kind in SCHEDULERS.items() if kind.ANYWHERE])
def test_no_evaluation_waits_for_a_home_that_trains(name):
    """One net; of its seven configurations one has units of a minute, the others of a second."""
    for seed in range(8):
        board, scheduler = of_one_net(name, 7, 2, seed)
        long, trained = {n for n, stage in board.plan.stages.items() if 1 in stage.trials}, {}
        for v in simulate(
            board,
            scheduler,
            lambda unit, long=long: 0.01 if unit.kind == "evaluate" else 60.0 if unit.stage in long else 1.0,
        ):  # (by end)
            if v.unit.kind == "train":
                trained[v.unit.stage] = v.end
            elif v.unit.stage not in long:
                assert v.start <= trained[v.unit.stage] + 13, "two places are there, and one trains for a minute"


@pytest.mark.parametrize("name", [name for name, kind in SCHEDULERS.items() if kind.ANYWHERE])
def test_a_place_may_go_and_come_back(name):
    for seed in range(40):
        board = board_of(8, 2, 6)
        board.anywhere = True
        board.serve(range(2))
        alike = {number: min(stage.trials) % 4 for number, stage in board.plan.stages.items()}
        scheduler, source, running = SCHEDULERS[name](board, seed, alike.get), random.Random(f"steps {seed}"), {}
        goes = source.randint(2, 60)
        comes = goes + source.randint(1, 10)
        for step in range(1000):
            if board.done:
                break
            if step == goes:
                board.serve([0])
            if step == comes:
                board.serve([0, 1])
            for worker in scheduler.arrange([worker for worker in board.workers if worker not in running]):
                if worker not in running and (unit := scheduler.choose(worker)) is not None:
                    board.start(unit)
                    running[worker] = unit
            worker = source.choice(sorted(running))
            unit = running.pop(worker)
            board.finish(unit)
            scheduler.finished(unit, source.uniform(1, 3) * (1 + alike[unit.stage]))
        assert board.done


@pytest.mark.parametrize("name", [name for name, kind in SCHEDULERS.items() if kind.ANYWHERE])
def test_what_was_compiled_at_places_that_have_gone_finds_a_home_anew(name):
    models, segments, after, lasting = 8, 4, set(), []
    for seed in range(6):
        board = board_of(models * 2, segments, 6)
        board.anywhere = True
        board.serve(range(segments))
        alike = {number: min(stage.trials) % models for number, stage in board.plan.stages.items()}
        scheduler = SCHEDULERS[name](board, seed, alike.get)
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
    assert len(after) <= 0.75 * 6 * models * 2, len(after)


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


# --- the default is random -----------------------------------------------------------------------------------------
def unit_specs(visits):
    """{(configuration, iteration): its order of segments}."""
    found = {}
    for v in sorted(visits, key=lambda v: v.start):
        found[v.key, v.unit.iteration] = *found.get((v.key, v.unit.iteration), ()), v.unit.segment
    return found


@pytest.mark.parametrize("ahead,anywhere", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("configurations,segments,workers", [(5, 3, 3), (2, 3, 3), (7, 2, 2), (4, 3, 6), (3, 2, 4)])
def test_every_visit_order_is_equally_likely(configurations, segments, workers, ahead, anywhere):
    """As long as no place does several segments, which cannot be visited at the same time then, or all do all."""
    counts = {}
    for seed in range(400):
        board = board_of(configurations, segments, 2)
        board.anywhere = anywhere
        board.serve(range(workers))
        source = random.Random(f"seconds {seed}")  # (of the scheduler's own seed they would go together)
        seconds = {key: source.uniform(1, 3) for key in range(1, configurations + 1)}
        scheduler = SCHEDULERS["randomized"](board, seed, lambda number: number % 2)
        key_of = {number: min(stage.trials) for number, stage in board.plan.stages.items()}
        visits = simulate(board, scheduler, lambda u, s=seconds, k=key_of: s[k[u.stage]], ahead)
        visits = [Keyed(v.unit, v.worker, v.start, v.end, key_of[v.unit.stage]) for v in visits]
        for passed, order in unit_specs(visits).items():
            counts.setdefault(passed, Counter())[order] += 1
    permutations = list(itertools.permutations(range(segments)))
    expected = 400 / len(permutations)
    for count in counts.values():
        square = sum((count[order] - expected) ** 2 / expected for order in permutations)
        assert square < {2: 12.1, 6: 22.1}[len(permutations)] + 4, "one in 2,000 is above by chance, before the 4"


@pytest.mark.parametrize("ahead", [False, True])
def test_orders_are_random_within_a_run_too(ahead):
    """The demo's shape: 16 configurations of 2 architectures, 2 segments, 12 iterations; units vary a little."""
    same = []
    for seed in range(20):
        source = random.Random(seed)
        visits = run(
            "randomized",
            16,
            2,
            12,
            seed=seed,
            ahead=ahead,
            alike={key: key % 2 for key in range(1, 17)},
            seconds=lambda key, unit, s=source: (1 + key % 2) * s.uniform(1, 1.05),
        )
        found = unit_specs(visits)
        first = Counter(order[0] for order in found.values())
        assert 70 < first[0] < 192 - 70, "longest-first began 184 of 192 on the same segment"
        same += [found[key, i] == found[key, i + 1] for key in range(1, 17) for i in range(1, 12)]
    assert 0.46 < sum(same) / len(same) < 0.54


def spread(kind, count, source):
    """Seconds of the units of some configurations."""
    return {
        "tenfold": lambda: [10 ** source.uniform(0, 1) for _ in range(count)],
        "hundredfold": lambda: [10 ** source.uniform(0, 2) for _ in range(count)],
        "two sizes": lambda: [source.choice([1, 8]) for _ in range(count)],
        "one large": lambda: [8] + [1] * (count - 1),
    }[kind]()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("kind", ["tenfold", "hundredfold", "two sizes", "one large"])
def test_at_random_takes_as_long_as_the_longest_first(kind, ahead):
    ratios = []
    for configurations, segments, iterations in [(16, 2, 8), (12, 4, 4), (30, 8, 4), (24, 8, 6)]:
        for draw in range(4):
            cost = spread(kind, configurations, random.Random(draw))
            spans = [
                makespan(
                    run(
                        name,
                        configurations,
                        segments,
                        iterations,
                        seed=draw,
                        ahead=ahead,
                        seconds=lambda key, unit, c=cost: c[key - 1],
                    )
                )
                for name in ("randomized", "longest-first")
            ]
            ratios.append(spans[0] / spans[1])
    assert sum(ratios) / len(ratios) < 1.01


# --- trees ---------------------------------------------------------------------------------------------------------
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


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_tree_is_trained_once_from_its_roots_down(name):
    plan = tree(random.Random(5), 20, 8)
    assert plan.merge_rate() > 1.5
    board = Board(plan, range(3))
    visits = simulate(board, SCHEDULERS[name](board, 1), lambda unit: random.Random(repr(unit)).uniform(1, 2))
    done = {}
    for v in visits:
        done.setdefault(v.unit.stage, []).append(v)
    assert set(done) == set(plan.stages) and all(len(of) == 3 for of in done.values())
    for number, of in done.items():
        assert sorted(v.unit.segment for v in of) == [0, 1, 2]
        of.sort(key=lambda v: v.start)
        assert all(a.end <= b.start for a, b in itertools.pairwise(of))
        parent = plan.stages[number].parent
        assert parent is None or max(v.end for v in done[parent.number]) <= of[0].start


def test_the_longest_path_first_takes_no_longer_than_level_by_level():
    """TreeML's comparison (thesis 2021, section 6.3), simulated; and the default takes no longer either."""
    spans = dict.fromkeys(SCHEDULERS, 0.0)
    for draw in range(12):
        for name in set(SCHEDULERS) - {"round-robin"}:
            plan = tree(random.Random(draw), 12, 8)
            board = Board(plan, range(2))
            scheduler = SCHEDULERS[name](board, draw, lambda number, p=plan: p.stages[number].parameters[1])
            spans[name] += makespan(
                simulate(
                    board,
                    scheduler,
                    lambda unit, p=plan: (
                        (8 if p.stages[unit.stage].parameters[1] == "large" else 1)
                        + random.Random(repr(unit)).random() / 10
                    ),
                )
            )
    assert spans["longest-first"] < spans["breadth-first"]
    assert spans["randomized"] < 1.01 * spans["longest-first"]


# --- several servers ---------------------------------------------------------------------------------------

SERVERS = {
    ("training", 0): "w1",
    ("training", 1): None,
    ("training", 2): "w1",
    ("training", 3): "w2",
    ("validation", 0): None,
    ("validation", 1): "w2",
    ("validation", 2): "w3",
}


def board_on_servers(configurations=4, iterations=2):
    return Board(chains(configurations, iterations, range(1, iterations + 1)), range(4), range(3), SERVERS)


@pytest.mark.parametrize("wanted", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_place_does_segments_of_its_own_server_alone(name, wanted):
    """However few places there are, each server has one; the last evaluation of a dataset waits for the others."""
    board = board_on_servers()
    board.serve(board.first_workers(wanted))
    assert {board.server(p) for p in board.workers} == {"w1", "w2", "w3", None}
    visits = simulate(board, SCHEDULERS[name](board, 3), lambda unit: random.Random(repr(unit)).uniform(1, 2))
    assert len(visits) == 4 * 2 * (4 + 4 + 3)
    assert all(SERVERS[v.unit.dataset, v.unit.segment] == board.server(v.worker) for v in visits)
    for stage in board.plan.stages:
        for dataset in ("training", "validation"):
            evaluations = [
                v for v in visits if (v.unit.stage, v.unit.kind, v.unit.dataset) == (stage, "evaluate", dataset)
            ]
            last = max(evaluations, key=lambda v: v.start)
            assert all(v.end <= last.start for v in evaluations if v is not last)


@pytest.mark.parametrize("name", [name for name, kind in SCHEDULERS.items() if kind.ANYWHERE])
@pytest.mark.parametrize("seed", range(3))
def test_each_server_has_a_worker_with_affinity_for_each_model(name, seed):
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
    board = board_on_servers(1, 1)
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


def test_carrying_and_the_coordinators_work_take_time():
    def span(**transport):
        board = board_of(8, 4, 3)
        given = Transport(**{"bytes": 1e8, "network": 1e8, "disk": 1e9, "coordinator": 0.0, **transport})
        return makespan(simulate(board, SCHEDULERS["randomized"](board, 1), lambda unit: 1.0, transport=given))

    free = makespan(simulate(board := board_of(8, 4, 3), SCHEDULERS["randomized"](board, 1), lambda unit: 1.0))
    assert span(bytes=0) == pytest.approx(free)
    assert free < span(direct=True) < span() and span(bytes=0, coordinator=1.0) >= 8 * 4 * 3


# --- stages that another run trains -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULERS)
def test_stages_that_are_held_are_trained_by_nobody_and_the_others_are(name):
    board = board_of(3, 2, 2)
    scheduler = SCHEDULERS[name](board, 7)
    held = [stage for stage in board.plan.stages.values() if stage.trials == {2}]
    board.hold(held)
    with pytest.raises(RuntimeError):  # (a simulator does not wait for other runs)
        simulate(board, scheduler, lambda unit: 1.0)
    assert {min(stage.trials) for stage in board.left.values()} == {2} and not board.done
    board.let_go(held)
    simulate(board, scheduler, lambda unit: 1.0)
    assert board.done and not board.held and all(stage.trained for stage in held)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("scored", (True, False))
def test_stages_that_are_taken_over_are_not_trained(name, scored):
    board = board_of(3, 2, 3, metrics=(1, 2, 3))
    scheduler = SCHEDULERS[name](board, 7)
    path = board.plan.path(2)
    board.hold(path)
    for stage in path[:2]:
        stage.trained, stage.scored, stage.origin = True, scored or stage is path[0], (1, stage.number)
    assert board.take_over(path[:2]) == (path[:2] if scored else path[:1])
    assert board.held == {path[2].number}
    board.let_go(path[2:])
    visits = simulate(board, scheduler, lambda unit: 1.0)
    units = [(v.unit.iteration, v.unit.kind) for v in visits if v.unit.stage in {stage.number for stage in path}]
    assert sorted(units) == [(2, "evaluate")] * 2 * (not scored) + [(3, "evaluate")] * 2 + [(3, "train")] * 2
    assert board.done and board.passes_left(None, 0) == 0


def test_a_trial_that_is_withdrawn_waits_for_nobody():
    board = board_of(2, 2, 3)
    board.hold(board.plan.path(2))
    board.withdraw(2)
    assert not board.held and {min(stage.trials) for stage in board.left.values()} == {1}
