"""Claims about many simulated runs: a quick case of each in tests/unit, and all of them in tests/thorough."""

import itertools
import random
from collections import Counter

from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.simulator import makespan, simulate
from pg_mop.schedule.unit_batches import UnitBatches
from support.conformance.schedulers import Keyed, board_of, orders


def run(name, configurations, segments, iterations, seed=7, seconds=None, ahead=False, alike=None, **more):
    """The visits of a run. `seconds`: of a configuration and a unit, or of each configuration; `alike`: of configurations,
    equal where they share a compiled model."""
    board = board_of(configurations, segments, iterations, **more)
    key_of = {number: min(stage.trials) for number, stage in board.plan.stages.items()}
    scheduler = SCHEDULERS[name](board, seed, alike and (lambda number: alike[key_of[number]]))
    of = (lambda key, unit: seconds[key]) if isinstance(seconds, dict) else seconds or (lambda key, unit: 1.0)
    visits = simulate(board, scheduler, lambda unit: of(key_of[unit.stage], unit), ahead)
    return [Keyed(v.unit, v.worker, v.start, v.end, key_of[v.unit.stage]) for v in visits]


def anywhere(name, configurations, segments, iterations, models, seed=1, workers=None, metrics=()):
    """(a board whose workers do all segments, a scheduler, {stage: its model}); `models`: of the configurations."""
    board = board_of(configurations, segments, iterations, metrics, workers=workers or segments)
    alike = {number: min(stage.trials) % models for number, stage in board.plan.stages.items()}
    return board, SCHEDULERS[name](board, seed, alike.get), alike


def assert_hardly_idle(configurations, segments, ahead, draws):
    """Configurations of which the dearest costs ten times the cheapest; averages over draws of their costs."""
    over = {"longest-first": 0.0, "randomized": 0.0}
    for draw, name in itertools.product(range(draws), over):
        source = random.Random(draw)
        cost = {key: 10 ** source.uniform(0, 1) for key in range(1, configurations + 1)}
        bound = 4 * max(sum(cost.values()), segments * max(cost.values()))  # a place's work, or a configuration's
        over[name] += makespan(run(name, configurations, segments, 4, draw, cost, ahead)) / bound - 1
    assert max(over.values()) / draws < 0.05


def assert_compiled_is_used_again(architectures, each, segments, ahead, draws):
    """Architectures of which the dearest costs ten times the cheapest, with their configurations a little apart: a place
    seldom goes on with another compiled model, and the run takes no longer."""
    longer, changes = 0.0, [0, 0]
    for draw in range(draws):
        source, spans = random.Random(draw), []
        base = [10 ** source.uniform(0, 1) for _ in range(architectures)]
        alike = {key: key % architectures for key in range(1, architectures * each + 1)}
        cost = {key: base[alike[key]] * source.uniform(0.95, 1.05) for key in alike}
        for known in (None, alike):
            visits, last = run("longest-first", len(alike), segments, 4, draw, cost, ahead, known), {}
            spans.append(makespan(visits))
            for v in sorted(visits, key=lambda v: v.start):
                changes[known is alike] += v.worker in last and alike[last[v.worker]] != alike[v.key]
                last[v.worker] = v.key
        longer += spans[1] / spans[0]
    assert longer / draws < 1.01
    if architectures > 1 and each > 1:  # places take configurations from one another
        assert changes[1] < (0.75 if segments <= 4 else 0.9) * changes[0]


def assert_compiled_in_one(name, groups, models, each, segments, draws):
    """A unit takes a while the first time that its model is compiled at a place."""
    spans, compiled = {False: 0.0, True: 0.0}, {False: 0, True: 0}
    for everywhere, seed in itertools.product(spans, range(draws)):
        board = board_of(models * each, segments, 5)
        board.anywhere = everywhere
        board.serve(range(segments))
        alike = {number: min(stage.trials) % models for number, stage in board.plan.stages.items()}
        scheduler = SCHEDULERS[name](board, seed, alike.get)
        known, at, peek = set(), {}, scheduler.peek

        def seconds(unit, known=known, at=at, alike=alike):
            first = (alike[unit.stage], at["worker"]) not in known
            known.add((alike[unit.stage], at["worker"]))
            return 1.0 + alike[unit.stage] / models + 6.0 * first

        scheduler.peek = lambda worker, peek=peek, at=at: (at.update(worker=worker), peek(worker))[1]
        batches = UnitBatches(board, scheduler, alike.get, lambda number: 1) if groups else None
        visits = simulate(board, scheduler, seconds, batches=batches)
        assert sorted((v.unit.stage, v.unit.segment) for v in visits) == [
            (n, s) for n in alike for s in range(segments)
        ]
        spans[everywhere] += makespan(visits)
        compiled[everywhere] += len(known)
    assert spans[True] <= 1.02 * spans[False], spans
    assert models < segments or compiled[True] <= 0.75 * compiled[False], compiled


def assert_orders_are_equally_likely(configurations, segments, workers, ahead, everywhere, draws):
    """As long as no place does several segments, which cannot be visited at the same time then, or all do all."""
    counts = {}
    for seed in range(draws):
        board = board_of(configurations, segments, 2)
        board.anywhere = everywhere
        board.serve(range(workers))
        source = random.Random(f"seconds {seed}")  # (of the scheduler's own seed they would go together)
        seconds = {key: source.uniform(1, 3) for key in range(1, configurations + 1)}
        stages = board.plan.stages
        scheduler = SCHEDULERS["randomized"](board, seed, lambda number: number % 2)
        visits = simulate(board, scheduler, lambda u, s=seconds, of=stages: s[min(of[u.stage].trials)], ahead)
        for number, order in orders(visits).items():
            counts.setdefault(number, Counter())[tuple(order)] += 1
    permutations = list(itertools.permutations(range(segments)))
    expected = draws / len(permutations)
    for count in counts.values():
        square = sum((count[order] - expected) ** 2 / expected for order in permutations)
        assert square < {2: 12.1, 6: 22.1}[len(permutations)] + 4, "one in 2,000 is above by chance, before the 4"


def assert_as_long_as_longest_first(kind, ahead, shapes, draws):
    """The default, whose orders are random. `kind`: of the seconds of configurations."""
    ratios = []
    for (configurations, segments, iterations), draw in itertools.product(shapes, range(draws)):
        source = random.Random(draw)
        drawn = {
            "tenfold": lambda s=source: 10 ** s.uniform(0, 1),
            "hundredfold": lambda s=source: 10 ** s.uniform(0, 2),
            "two sizes": lambda s=source: s.choice([1, 8]),
            "one large": lambda: 1,
        }[kind]
        cost = {key: drawn() for key in range(1, configurations + 1)}
        cost[1] = 8 if kind == "one large" else cost[1]
        one, other = (
            makespan(run(name, configurations, segments, iterations, draw, cost, ahead))
            for name in ("randomized", "longest-first")
        )
        ratios.append(one / other)
    assert sum(ratios) / len(ratios) < 1.01


# --- unit batches and chains --------------------------------------------------------------------------------------------

AROUND = 0.005  # seconds around a unit, or a batch, as measured


def in_batches(
    configurations,
    segments,
    iterations,
    seconds,
    name="randomized",
    grouped=True,
    seed=3,
    metrics=(),
    size=1000,
    workers=None,
    board=None,
    around=AROUND,
    alike=None,
):
    """The visits of a run, and its board. `seconds`: of a unit, or of a configuration's number and a unit; `alike`: of
    a stage's number, equal where units take as long (by default: those of one configuration)."""
    board = board or board_of(configurations, segments, iterations, metrics)
    board.serve(range(workers or segments))
    scheduler, batches = SCHEDULERS[name](board, seed), None
    key_of = {number: min(stage.trials) for number, stage in board.plan.stages.items()}
    if grouped:
        batches = UnitBatches(board, scheduler, alike or key_of.get, lambda number: size)
    of = (lambda unit: seconds(key_of[unit.stage], unit)) if callable(seconds) else lambda unit: seconds
    return simulate(board, scheduler, of, batches=batches, around=lambda *_: around), board


def commands(board, seconds, name="randomized", chained=0.5, seed=3, around=AROUND, **more):
    """The visits of a run, and the steps of its commands. `seconds`: of a unit."""
    scheduler = SCHEDULERS[name](board, seed)
    batches, taken = UnitBatches(board, scheduler, lambda number: 0, lambda number: 1000, chained, **more), []
    choose = batches.choose
    batches.choose = lambda worker: taken.append(choose(worker)) or taken[-1]
    return simulate(board, scheduler, lambda unit: seconds, batches=batches, around=lambda *_: around), taken


def assert_not_idle_for_batches(name, configurations, workers, draws):
    """Were there nothing around a unit, batches could only harm."""
    over = 0.0
    for draw in range(draws):
        cost = {key: random.Random(draw * 1000 + key).uniform(0.002, 0.02) for key in range(1, configurations + 1)}
        one, other = (
            in_batches(configurations, workers, 6, lambda k, _, c=cost: c[k], name, grouped, draw, around=0.0)[0]
            for grouped in (True, False)
        )
        over += makespan(one) / makespan(other) / draws
    assert over < 1.05


def assert_orders_in_batches_are_equally_likely(segments, chained, draws):
    """Those of one batch are not drawn each for itself, so that they vary more than chance alone would have them."""
    counts = Counter()
    for seed in range(draws):
        if chained:
            board = board_of(40, segments, 3, workers=2)
            visits, _ = commands(board, 0.002, chained=chained, seed=seed, passes_on=lambda stage, child: True)
        else:
            visits, board = in_batches(40, segments, 3, 0.002, seed=seed)
        found = orders(visits).items()
        counts.update(tuple(order) for number, order in found if board.plan.stages[number].iteration == 3)
    permutations, all_of = list(itertools.permutations(range(segments))), 40 * draws
    assert sum(counts.values()) == all_of
    wide = 0.15 * (40 / draws) ** 0.5 * all_of / 2
    assert all(abs(counts[order] - all_of / len(permutations)) < wide for order in permutations), counts


def assert_chains_pay(name, configurations, workers, draws):
    spans = Counter()
    for around, chained, seed in itertools.product((0.0, AROUND), (0.0, 0.5), range(draws)):
        board = board_of(configurations, 2, 6, [6], workers=workers)
        visits, _ = commands(board, 0.01, name, chained, seed, around, passes_on=lambda stage, child: True)
        spans[around, chained] += makespan(visits)
    assert spans[0.0, 0.5] <= 1.05 * spans[0.0, 0.0], "were there nothing around a unit, chains could only harm"
    assert spans[AROUND, 0.5] < spans[AROUND, 0.0]
