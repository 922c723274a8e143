"""TreeML, thesis, Seoul National University 2021, chapter 6."""

import random
import re
from functools import cache
from statistics import mean

from papers.common import table
from papers.schedulers import SCHEDULERS
from pg_mop.plan.stages import Plan
from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import makespan, simulate
from pg_mop.search import create
from pg_mop.search.space import Space

ITERATIONS, LEAST, REDUCTION, GPUS = 32, 4, 4, 8
MILESTONES = tuple(range(4, 31, 2))


def schedules(count, seed):
    """Learning-rate schedules of `count` trials: {trial: values by iteration}. They begin with few values, and drop at two
    milestones to other values, as the sequences of the thesis do, so that trials have first iterations in common."""
    source, found = random.Random(seed), {}
    while len(found) < count:
        first, second = sorted(source.sample(MILESTONES, 2))
        values = source.choice([0.1, 0.05]), source.choice([0.02, 0.01, 0.005]), source.choice([0.002, 0.001])
        found[first, second, values] = [
            values[(iteration > first) + (iteration > second)] for iteration in range(1, ITERATIONS + 1)
        ]
    return dict(enumerate(found.values(), 1))


def space(count):
    """A space of so many configurations, whose learning rate is a number."""
    rates = [i / 10000 for i in range(1, count + 1)]
    return Space.of_texts(
        [1],
        f"{{'loss': ['mse'], 'optimizer_params_list': [{{'optimizer': ['SGD'], 'lr': {rates}}}]}}",
        "{'epochs': [1]}",
    )


class SearchBoard(Board):
    """A board whose trials a search procedure requests. Every GPU has all rows, as in the thesis: a stage is one unit."""

    def __init__(self, procedure, values, shared, places=GPUS):
        self.procedure, self.values, self.shared, self.requested = procedure, values, shared, 0
        self.number, self.at = {}, {}  # of trials: configuration, and the last iteration that was told
        super().__init__(Plan(), [0])
        self.anywhere = True
        self.serve(range(places))

    def proposals(self):
        """Request the iterations that the procedure proposes at this moment."""
        ended = []
        for trial, configuration, budget in self.procedure.ask():
            if configuration is not None:
                rate = float(re.search(r"(?:learning_rate|lr)=([0-9.e-]+)", str(configuration))[1])
                self.number[trial], self.at[trial] = round(rate * 10000), 0
            values = self.values[self.number[trial]]
            own = "" if self.shared else f"{trial} "
            self.requested += budget - len(self.plan.path(trial))
            stages = self.plan.ask(
                trial, f"{own}root", lambda iteration, v=values, o=own: (f"{o}{v[iteration - 1]}", ""), budget
            )
            ended += self.add(stages)
            self.tell(trial)
        return ended

    def tell(self, trial):
        """Tell the procedure the values of a trial's stages that have ended."""
        for stage in self.plan.path(trial)[self.at[trial] :]:
            if not stage.ended:
                break
            self.at[trial] = stage.iteration
            if stage.iteration in self.procedure.evaluates(trial):
                history = tuple(self.values[self.number[trial]][: stage.iteration])
                self.procedure.tell(trial, stage.iteration, quality(history))

    def finish(self, unit):
        ended = super().finish(unit)
        for stage in ended:
            for trial in sorted(stage.trials):
                self.tell(trial)
        while True:
            before = self.requested
            for trial in self.procedure.stopped():
                self.withdraw(trial)
            self.proposals()
            if self.requested == before:
                return ended


@cache
def quality(history):
    """The loss after these learning rates: it falls, and luck decides some of it."""
    return random.Random(repr(history)).random() * 0.3 + 1 / len(history) + abs(sum(history) / len(history) - 0.02)


def study(procedure, values, scheduler="longest-first", shared=True, seed=1, **parameters):
    """Returns (units trained, iterations requested, makespan)."""
    board = SearchBoard(create(procedure, space(len(values)), seed, "min", parameters), values, shared)
    chosen = SCHEDULERS[scheduler](board, seed, expected=lambda stage: 60.0)
    board.proposals()
    visits = simulate(board, chosen, lambda unit: 60.0)
    return len(visits), board.requested, makespan(visits)


def saving():
    """Section 6.1."""
    rows = []
    cases = [
        ("grid", 240, "3.14, 2.05", "3.15, 2.07", {"iterations": ITERATIONS, "trials": 240}),
        ("successive-halving", 448, "2.45", "4.81", None),
        ("asha", 448, "2.45", "3.92", {"parallel": GPUS}),
    ]
    for name, trials, rate, saved, parameters in cases:
        values = schedules(trials, 1)
        whole, _, _ = study("grid", values, iterations=ITERATIONS, trials=trials)
        if parameters is None or name == "asha":
            more = {
                "iterations": ITERATIONS,
                "least": LEAST,
                "reduction": REDUCTION,
                "trials": trials,
                **(parameters or {}),
            }
        else:
            more = parameters
        together, _, time = study(name, values, **more)
        apart, _, longer = study(name, values, shared=False, **more)
        rows.append(
            [
                name,
                trials,
                rate,
                saved,
                f"{trials * ITERATIONS / whole:.2f}",
                f"{apart / together:.2f}",
                f"{longer / time:.2f}",
            ]
        )
    text = table(["procedure", "trials", "merge rate: thesis", "saved", "merge rate: here", "saved", "sooner"], rows)
    return f"""## TreeML, section 6.1: one study

Source: section 6.1, Table 6.2, Figure 6.1. GPU time without sharing / with sharing ("saved"), against the merge rate of the
whole search space: iterations of all trials / different iterations. {GPUS} GPUs that hold all rows; {ITERATIONS} iterations,
of which early stopping needs {LEAST} at least and keeps one trial in {REDUCTION}; pg_mop's own procedures.

{text}
The grid's saving is its merge rate, in the thesis and here. Early stopping prunes later iterations, which are less shared,
so it saves more than the merge rate. Differences. The thesis does not list its trials; here learning rates drop at two of
14 iterations. Its ASHA also stopped different trials in the two runs. Times to load states, and the 100 further steps of
the best trial, are left out.
"""


def together():
    """Section 6.2."""
    rows = []
    for studies, rate in ((2, "2.26"), (4, "2.77"), (8, "2.47")):
        parts = [schedules(40, seed) for seed in range(studies)]
        values = {}
        for part in parts:
            values.update({len(values) + number: value for number, value in part.items()})
        one = [study("grid", part, iterations=ITERATIONS, trials=40)[0] for part in parts]
        all_of_them = study("grid", values, iterations=ITERATIONS, trials=len(values))[0]
        total = len(values) * ITERATIONS
        rows.append([studies, rate, f"{total / all_of_them:.2f}", f"{total / sum(one):.2f}"])
    return f"""## TreeML, section 6.2: several studies

Source: section 6.2, Figures 6.2 and 6.3: k-wise merge rates of 2.26, 2.77 and 2.47 gave up to 6.77 times less GPU time and 3.53
times less time (with early stopping); rates of 1.40, 1.19 and 1.66 gave up to 2.32 and 1.99.

{table(["studies", "merge rate: thesis", "here: saved, shared by all studies", "shared within each study"], rows)}
Differences. Grid searches of 40 trials each from one space; the thesis does not publish its spaces.
"""


def order():
    """Section 6.3."""
    rows = []
    for name, more in (
        ("grid", {"trials": 100}),
        ("asha", {"trials": 200, "least": LEAST, "reduction": REDUCTION, "parallel": 2 * GPUS}),
    ):
        times = {}
        for scheduler in ("longest-first", "breadth-first", "most-children-first"):
            times[scheduler] = mean(
                study(name, schedules(more["trials"], draw), scheduler, seed=draw, iterations=ITERATIONS, **more)[2]
                for draw in range(5)
            )
        paper = "1.27" if name == "asha" else "about 1"
        rows.append(
            [
                name,
                paper,
                f"{times['most-children-first'] / times['longest-first']:.3f}",
                f"{times['breadth-first'] / times['longest-first']:.3f}",
            ]
        )
    text = table(
        ["procedure", "most children first / critical path: thesis", "here", "breadth-first / critical path: here"],
        rows,
    )
    return f"""## TreeML, section 6.3: the critical path first

Source: section 6.3, Figure 6.4. Makespans of the schedulers `longest-first` (critical path), `most-children-first` ("THR") and
`breadth-first` ("BFS"); {GPUS} GPUs, mean of 5 draws. The text gives no figure for breadth-first.

{text}
Differences. The order makes no difference here, and the thesis' gain is not seen. All iterations take equally long, {2 * GPUS}
trials run at a time, and a rung asks for few iterations at once, so no path is much longer than the others. The thesis' search
space has a merge rate of 3.55 and is not published, and neither are the times of its stages.
"""


def sections():
    """The sections of the page."""
    return [saving(), together(), order()]
