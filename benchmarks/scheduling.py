"""The cost of choosing, starting and finishing a unit: processor milliseconds by scheduler and size.

PYTHONPATH=plpy_modules python3 benchmarks/scheduling.py [scheduler ...]
"""

import heapq
import random
import sys
import time

from pg_mop.plan import identity
from pg_mop.plan.stages import Plan
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board

SIZES = [  # configurations, segments, iterations, executed units (None: all)
    (16, 2, 12, None),
    (300, 16, 4, None),
    (1000, 16, 12, 100_000),
    (1000, 64, 12, 100_000),
    (1000, 64, 1, None),
    (10_000, 16, 10, 100_000),
    (10_000, 16, 1, None),
]
MODELS = 10  # shared by the configurations


def chains(configurations, iterations):
    """The plan of fit_multiple without sharing; a stage's number divided by the iterations gives its configuration."""
    plan = Plan()
    for key in range(configurations):
        plan.ask(key, identity.root(key), lambda iteration, k=key: (f"lr={k}", "batch_size=32"), iterations)
    return plan


def run(name, configurations, segments, iterations, most):
    """Prints a line of the table."""
    clock, source = time.process_time, random.Random(1)
    begun = clock()
    plan = chains(configurations, iterations)
    asked = clock() - begun
    seconds = [10 ** source.uniform(0, 1) for _ in range(MODELS)]
    model_of = lambda number: (number - 1) // iterations % MODELS  # noqa: E731
    begun = clock()
    board = Board(plan, range(segments))
    scheduler = SCHEDULERS[name](board, 1, model_of)
    made = clock() - begun
    now, idle, events, units, spent, worst = 0.0, set(board.workers), [], 0, 0.0, 0.0
    while not board.done and (most is None or units < most):
        begun = clock()
        started = []
        for place in scheduler.arrange(idle):
            unit = scheduler.choose(place)
            if unit is not None:
                board.start(unit)
                started.append((place, unit))
        spent, worst = spent + clock() - begun, max(worst, (clock() - begun) / max(1, len(started)))
        for place, unit in started:
            idle.discard(place)
            heapq.heappush(events, (now + seconds[model_of(unit.stage)] * source.uniform(1, 1.1), place, now, unit))
        now, place, since, unit = heapq.heappop(events)
        begun = clock()
        board.finish(unit)
        scheduler.finished(unit, now - since)
        spent, worst = spent + clock() - begun, max(worst, clock() - begun)
        idle.add(place)
        units += 1
    print(
        f"{name:20} {configurations:6} x {segments:2} x {iterations:2}: {1e3 * spent / units:6.3f} ms a unit,"
        f" at most {1e3 * worst:6.1f};  plan {1e6 * asked / len(plan.stages):5.1f} us a stage,"
        f" board and scheduler {made:5.2f} s",
        flush=True,
    )


if __name__ == "__main__":
    for scheduler_name in sys.argv[1:] or [name for name in SCHEDULERS if name != "round-robin"]:
        for size in SIZES:
            run(scheduler_name, *size)
