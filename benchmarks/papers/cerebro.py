"""Nakandala, Zhang, Kumar: "Cerebro", VLDB 2020."""

import functools
import math
import random
from heapq import heapify, heapreplace
from statistics import mean

from papers.common import bound, plan_of, run, seconds, span, table, telling
from papers.schedulers import SCHEDULERS as BY_NAME
from papers.schedulers import milp
from papers.transport import Transport
from pg_mop.schedule.board import Board
from pg_mop.schedule.dealing import Dealer
from pg_mop.schedule.simulator import makespan, simulate

MILP_SECONDS = 10
# appendix B, table 7, millions of floating-point operations
FLOPS = [
    727,
    724,
    837,
    360,
    727,
    2000,
    3000,
    2000,
    2000,
    2000,
    16000,
    16000,
    20000,
    2000,
    2000,
    4000,
    4000,
    8000,
    11000,
]
FLOPS += [4000, 8000, 16000, 6000, 4000, 8000, 11000, 4000, 8000, 21000, 2000, 3000, 8000, 3000, 4000, 579]
TERAFLOPS = (12.1, 5.6, 11.3, 18.7)
SCHEDULERS = ("vector-rearrangement", "milp", "longest-first", "monte-carlo")
GIGABIT = 125_000_000


def figure_6():
    """Schedulers, relative to randomized."""
    milp.MOST_SECONDS, milp.SHARE = MILP_SECONDS, math.inf
    rows = []
    for unequal in (False, True):
        for configurations in (16, 256):
            for places in (8, 16):
                ratios, over = {name: [] for name in SCHEDULERS}, []
                for draw in range(5):
                    source = random.Random(f"{draw} {configurations} {places}")
                    costs = [source.choice(FLOPS) if unequal else 1000.0 for _ in range(configurations)]
                    slow = [1 / (source.choice(TERAFLOPS) if unequal else 10.0) for _ in range(places)]
                    randomized = seconds("randomized", costs, slow, 1, draw)
                    over.append(randomized / bound(costs, slow))
                    for name in SCHEDULERS:
                        ratios[name].append(seconds(name, costs, slow, 1, draw) / randomized)
                kind = "unequal" if unequal else "equal"
                rows.append([kind, configurations, places, span(over), *(span(ratios[name]) for name in SCHEDULERS)])
    text = table(
        ["units", "configurations", "places", "randomized / lower bound", *(f"{n} / randomized" for n in SCHEDULERS)],
        telling(rows),
    )
    return f"""## Cerebro, Figure 6: schedulers

Source: section 5.4, Figure 6, appendix B, Table 7. One iteration; unit time = cost of the net / speed of the place; costs
drawn from the 35 nets of Table 7, speeds from 12.1, 5.6, 11.3 and 18.7 TFLOPS. Mean of 5 draws (least-most);
rows whose ratios are all 1.000 are left out, here those of 256 configurations. The
paper gives no numbers in its text. It says: randomized is near the optimum, with little variance; vector rearrangement is poor
where configurations and places are unequal; MILP, with 5 minutes, is sometimes worse than both, because it has not
converged.

{text}
Differences. MILP had {MILP_SECONDS} s for a plan here, not 5 minutes, and HiGHS in place of Gurobi; with 256 configurations
its program is too large, and a heuristic's schedule is followed. Here the schedulers that plan follow a plan only where it is
shorter than longest-first by the simulator, so they are never worse than longest-first; the paper's plans were followed as they
were. With 16 unequal configurations on 16 unequal places, longest-first itself is worse than randomized.
"""


def figure_8a():
    """Speed-up with places."""
    rows, whole = [], 8 * 3600.0
    one = None
    for places in range(1, 9):
        transport = functools.partial(Transport, bytes=293e6, network=10 * GIGABIT, disk=1e9)
        taken = mean(
            seconds("randomized", [whole / places] * 8, [1.0] * places, 5, seed, transport=transport)
            for seed in range(5)
        )
        one = one or taken
        rows.append([places, f"{one / taken:.2f}"])
    return f"""## Cerebro, Figure 8 (A): speed-up

Source: section 6.2. 8 configurations, 5 iterations, 1 to 8 places; states of 293 MB (ResNet50, Table 5) over 10 Gbit/s and
through the coordinator. The paper: linear, slightly above linear, since one worker alone could not keep the data in
memory. A pass of a configuration over all rows is assumed to take 8 hours.

{table(["places", "speed-up"], rows)}
Differences. The simulator knows no memory, so nothing is above linear. Numbers of places that do not divide 8 leave
places idle at the end.
"""


def figure_8b():
    """Two of eight servers are lost and come back."""
    text = []
    for configurations in (8, 16):
        epochs = []

        def prepare(scheduler, board, configurations=configurations):
            finished, done = scheduler.finished, [0]
            per_epoch = configurations * 8

            def count(unit, taken):
                finished(unit, taken)
                done[0] += 1
                if done[0] == per_epoch + per_epoch // 2:  # in the middle of iteration 2: on their two copies
                    board.serve([0, 1, 2, 3, 4, 5])
                if done[0] == 3 * per_epoch + per_epoch // 2:
                    board.serve(range(8))

            scheduler.finished = count

        visits = run("randomized", [1.0] * configurations, [1.0] * 8, 5, 1, prepare=prepare)
        ends = [0.0] + [max(v.end for v in visits if v.unit.iteration <= i) for i in range(1, 6)]
        epochs = [b - a for a, b in zip(ends, ends[1:])]
        text.append([configurations, *(f"{epoch / epochs[0]:.2f}" for epoch in epochs)])
    return f"""## Cerebro, Figure 8 (B): two servers are lost and come back

Source: section 6.2. 8 places; two of them are lost in the middle of iteration 2, and are back in the middle of
iteration 4. Meanwhile each of their segments is dealt to another place: copies on servers are not simulated. Duration of each
iteration, iteration 1 = 1. The paper's text has no figures; it says that the workload goes on.

{table(["configurations", "1", "2", "3", "4", "5"], text)}
Differences. The units that run at the time of the loss are not lost here. A place that stands in for another one does
two segments. Iterations overlap: an iteration's duration is from the end of the one before to its own. In the paper a
segment has three copies. With real servers: tests/thorough/faults/test_copies.py.
"""


def figure_8b_joined():
    """A ninth server joins."""
    text = []
    for configurations in (8, 16, 64):
        ends = {}
        for joins in (False, True):
            plan = plan_of(configurations, 5)
            board = Board(plan, range(8), (), {("training", key): f"w{key}" for key in range(8)})
            scheduler = BY_NAME["randomized"](board, 1, lambda number, plan=plan: plan.stages[number].mst_key)
            finished, done = scheduler.finished, [0]

            def count(unit, taken, finished=finished, done=done, board=board, joins=joins, units=configurations * 8):
                finished(unit, taken)
                done[0] += 1
                if joins and done[0] == units + units // 2:  # in the middle of iteration 2
                    board.copies = {key: [f"w{key}", "w8"] for key in range(8)}
                    board.invite("w8", 1, board.workers)
                    board.serve(range(9))

            scheduler.finished = count
            visits = simulate(board, scheduler, lambda unit: 1.0)
            ends[joins] = [0.0] + [max(v.end for v in visits if v.unit.iteration <= i) for i in range(1, 6)]
        epochs = [b - a for a, b in zip(ends[True], ends[True][1:])]
        row = [f"{epoch / epochs[0]:.2f}" for epoch in epochs]
        text.append([configurations, *row, f"{ends[False][-1] / ends[True][-1]:.2f}"])
    return f"""## Cerebro, Figure 8 (B), in the other direction: a server joins

No paper has this table; Cerebro's section 5.6 says that new compute resources may be used by the same mechanism. 8 places; a
ninth one, with a copy of each segment, joins in the middle of iteration 2. Duration of each iteration, iteration 1 = 1, and how
much sooner the run ends than without it: at most 5 / (1.5 + 3.5 x 8 / 9) = 1.08.

{table(["configurations", "1", "2", "3", "4", "5", "sooner"], text)}
Differences. The copies are there at once. Iterations overlap, as above. 8 configurations keep only 8 of the 9 places
busy. With real servers: tests/thorough/faults/test_joining.py.
"""


def table_2():
    """Bytes of an approach."""
    k, s, p, m, d, batches = 20, 20, 10, 1e9, 1e12, 100_000
    visits = run("randomized", [1.0] * s, [1.0] * p, k, 1)
    hops, at = 0, {}
    plan_key = lambda v: (v.unit.stage - 1) // k  # noqa: E731
    for v in sorted(visits, key=lambda v: v.start):
        hops += at.get(plan_key(v)) != v.worker
        at[plan_key(v)] = v.worker
    terabytes = lambda value: f"{value / 1e12:.2f} TB" if value < 1e15 else f"{value / 1e15:.2f} PB"  # noqa: E731
    rows = [
        ["MOP: k m p S + m S", "4 TB", terabytes(k * m * p * s + m * s)],
        ["MOP: hops of the simulated run, and m S to bring the models home", "", terabytes((hops + s) * m)],
        ["task-parallel, data on all workers: p D + m S", "10 TB", terabytes(p * d + m * s)],
        ["task-parallel, remote reads: k S D + m S", "400 TB", terabytes(k * s * d + m * s)],
        ["bulk synchronous: 2 k m p S", "8 TB", terabytes(2 * k * m * p * s)],
        ["parameter server: 2 k m p S (batches / p)", "80 PB", terabytes(2 * k * m * p * s * math.ceil(batches / p))],
        ["all-reduce: k m p S (batches / p)", "40 PB", terabytes(k * m * p * s * math.ceil(batches / p))],
    ]
    return f"""## Cerebro, Table 2: bytes over the network

Source: section 3.2. k = 20 iterations, S = 20 configurations, p = 10 places, models of m = 1 GB, data of D = 1 TB, 100,000
batches.

{table(["approach", "paper", "formula, or simulated hops"], rows)}
All rows but the second, which counts simulated hops, are the paper's formulas. These count a hop for every unit; a
state that stays where it is for the next iteration needs none, so the simulated run has {hops} hops for {k * p * s}
units. Through the coordinator each hop is two transfers. Bytes on real connections were not counted.
"""


def half():
    """One to p configurations: MOP against data-parallel training."""
    p, rows, factors = 8, [], (1.0, 2.0, 4.0)
    for configurations in range(1, p + 1):
        mop = seconds("randomized", [1.0 / p] * configurations, [1.0] * p, 4, 1) / 4
        formula = (f"{configurations / p * factor:.2f}" for factor in factors)
        dealt = (f"{dealt_seconds(configurations, p, factor):.2f}" for factor in factors)
        rows.append([configurations, f"{mop:.2f}", *formula, *dealt])
    return f"""## Cerebro, Figure 17: fewer configurations than places

Source: sections 5.7 and 6.2, appendix D. 8 places; time of an iteration, a pass of one configuration on one place = 1.
"MOP" and "dealt" are simulated. The columns of data-parallel training on all places are a formula: configurations /
places, multiplied by the cost of communication. The paper switches to
data-parallel training below p / 2 configurations; its Horovod took twice as long as Cerebro with batches of 32 (section 6.2,
Figure 9).

{table(["configurations", "MOP", "data-parallel, free", "x 2", "x 4", "dealt, free", "x 2", "x 4"], rows)}
With the paper's factor of 2 the two meet at 4 configurations, which is p / 2; with other factors they meet elsewhere.
In "dealt" `schedule/dealing.py` gives each configuration as many places as pay by the cost model, which knows the
factor, where any place may train on any rows.
"""


class Costs:
    """Of places that train a configuration together: `factor` times as long as without communication."""

    def __init__(self, factor, second):
        self.factor, self.second = factor, second

    def certain(self, stage):
        return self.second

    def speedup(self, stage, places):
        return max(1.0, places / self.factor)

    def ready(self, stage, places):
        return 0.0


def dealt_seconds(configurations, places, factor):
    """Seconds of an iteration. Each configuration gets places in proportion to its remaining work."""
    plan, iterations, hour = plan_of(configurations, 4), 4, 3600.0  # (a change of places takes a part of a second)
    board = Board(plan, range(places))
    board.anywhere = True
    board.serve(range(places))
    costs = Costs(factor, hour / places)
    dealer = Dealer(board, places, 1, lambda number: 0, costs)
    expected = costs.certain
    scheduler = BY_NAME["longest-first"](board, 1, lambda number: plan.stages[number].mst_key, expected)
    visits = simulate(board, scheduler, lambda unit: costs.second, dealer=dealer)
    return makespan(visits) / iterations / hour


def fifo(times, workers):
    """The makespan of tasks that idle workers take in this order."""
    ends = [0.0] * workers
    heapify(ends)
    for time in times:
        heapreplace(ends, ends[0] + time)
    return max(ends)


def stragglers():
    """Task-parallel FIFO against MOP."""

    def tasks(exponent):
        shares = [batch**-exponent for batch in (32, 64, 256, 512) for _ in range(4)]
        return [17.0 * 8 * share / sum(shares) for share in shares]

    exponent = min((e / 100 for e in range(30, 70)), key=lambda e: abs(fifo(sorted(tasks(e))[::-1], 8) - 19.7))
    times = tasks(exponent)
    orders = []
    for seed in range(1000):
        order = times[:]
        random.Random(seed).shuffle(order)
        orders.append(fifo(order, 8))
    mop = [seconds("randomized", [t / 40 for t in times], [1.0] * 8, 5, seed) for seed in range(5)]
    rows = [
        ["FIFO", "27.4", f"{mean(orders):.1f} on average, {max(orders):.1f} at worst, of 1,000 orders"],
        ["best order of tasks", "19.7", f"{fifo(sorted(times)[::-1], 8):.1f} (the longest first)"],
        ["MOP", "17.0 (5 x 3.40)", span(mop, 1)],
    ]
    return f"""## Cerebro, appendix C: stragglers

Source: appendix C, Figures 7, 14 and 15: Criteo, 16 configurations, 5 epochs, 8 workers, hours.

{table(["schedule", "paper", "here"], rows)}
Differences. The times of the configurations are not published. Here they are proportional to the batch size (32, 64, 256, 512)
to the power of -{exponent:.2f}, and together they take MOP's 17.0 h on 8 workers. No such exponent gives a best order of
19.7 h; this one comes nearest. Hence only the order of the three can be compared: FIFO, best order, MOP.
"""


def sections():
    """The sections of the page."""
    return [figure_6(), figure_8a(), figure_8b(), figure_8b_joined(), table_2(), half(), stragglers()]
