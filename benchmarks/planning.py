"""The cost of a proposal for each search procedure: a simulation of 10,000 trials of 100 iterations. Prints a table.

    PYTHONPATH=plpy_modules:. python benchmarks/planning.py [procedure ...]

The times include all work of the procedures: drawing, recording values, deciding and stopping. TPE's model is Optuna's,
and its cost grows with the number of known values, so that procedures with TPE are measured with fewer trials.
"""

import sys
import time
from random import Random

from pg_mop.search import create
from pg_mop.search.space import Space

TRIALS, ITERATIONS = 10_000, 100
CASES = {
    "random": [{"trials": TRIALS, "iterations": ITERATIONS}],
    "grid": [{"trials": TRIALS, "iterations": ITERATIONS}],
    "successive-halving": [{"trials": TRIALS, "iterations": ITERATIONS}],
    "hyperband": [{"iterations": 6561}],  # 15,000 trials, of up to 6,561 iterations
    "asha": [{"trials": TRIALS, "iterations": ITERATIONS, "parallel": 16}],
    "median-stopping": [
        {"trials": TRIALS, "iterations": ITERATIONS},
        {"trials": TRIALS, "iterations": ITERATIONS, "parallel": 16},
    ],
    "population": [{"population": 1000, "iterations": ITERATIONS, "interval": 4, "fraction": 0.4}],
    "tpe": [{"trials": 100}, {"trials": 1000}],
    "bohb": [{"iterations": 81}, {"iterations": 243}],
}


def main(names):
    print(f"{'procedure':20} {'trials':>8} {'asked':>8} {'told':>9} {'ms a proposal':>14} {'us a value told':>16}")
    for name in names or CASES:
        for parameters in CASES[name]:
            measure(name, parameters)


def measure(name, parameters):
    """Run a search with a random end for every trial, and print its cost."""
    choices = [i / 1e4 for i in range(1, 4000)]
    rate = choices if name == "grid" else [1e-5, 1, "log"]
    space = Space.of_texts(
        [1, 2],
        f"{{'loss': ['mse'], 'optimizer_params_list': [{{'optimizer': ['Adam'], 'lr': {rate}}}, "
        f"{{'optimizer': ['SGD'], 'lr': {rate}, 'momentum': [0.0, 0.5, 0.9]}}]}}",
        "{'batch_size': [16, 32, 64, 128], 'epochs': [1]}",
    )
    random, level, reached = Random(1), {}, {}
    spent = time.perf_counter()
    procedure = create(name, space, 1, "min", parameters)
    live, told, asked = [], 0, 0
    while True:
        for trial, _, budget in procedure.ask():
            asked += 1
            if trial not in level:
                level[trial] = random.random()
                reached[trial] = procedure.trials[trial].at
            live.append((trial, budget))
        if not live:
            break
        at = random.randrange(len(live))
        live[at], live[-1] = live[-1], live[at]
        trial, budget = live.pop()
        wanted = procedure.evaluates(trial)
        for iteration in range(reached[trial] + 1, budget + 1):
            if iteration in wanted and trial not in procedure.why:
                procedure.tell(trial, iteration, level[trial] + random.random() / iteration)
                told += 1
        reached[trial] = budget
    spent = time.perf_counter() - spent
    assert procedure.done
    print(
        f"{name:20} {len(level):8} {asked:8} {told:9} {spent / asked * 1e3:14.3f} {spent / told * 1e6:16.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
