"""Fluid (Yu et al., MLSys 2021): its evaluation."""

from statistics import mean

from papers.common import table
from papers.treeml import ITERATIONS, SearchBoard, schedules, space
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.dealing import Dealer
from pg_mop.schedule.simulator import makespan, simulate
from pg_mop.search import create

SECONDS, READY = 60.0, 10.0  # of an iteration on one place; to make a net ready on other places
PARALLEL = 0.9  # of an iteration's time, which several places divide
DRAWS = 3
PROCEDURES = {  # (trials, parameters)
    "asha": (64, {"least": 2, "reduction": 4, "trials": 64}),
    "hyperband": (200, {"reduction": 3}),
    "bohb": (200, {"reduction": 3}),
}


class StaticFluid(Dealer):
    """Deals a trial's places when its trial group (here: a rung's iterations) is submitted, and never anew (the paper's
    algorithm 1). Dealer is DynamicFluid (algorithm 2)."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.dealt = {}  # stage -> places

    def _choose(self, worker, unit, working, may_grow):
        if unit.stage not in self.dealt:
            places, below = super()._choose(worker, unit, working, may_grow), [self.board.plan.stages[unit.stage]]
            for stage in below:  # (grows: all that has been asked for is of the same group)
                self.dealt[stage.number] = places
                below += [child for child in stage.children if child.number in self.board.left]
        return self.dealt[unit.stage]

    def _pays(self, worker, unit, wanted, paths):
        return True  # (it begins: nothing is reallocated)


class Costs:
    """The seconds of units, and the speedups, that the Dealer is told."""

    def certain(self, stage):
        return SECONDS

    def speedup(self, stage, places):
        return 1 / (1 - PARALLEL + PARALLEL / places)

    def ready(self, stage, places):
        return READY


def study(name, places, dealing, seed):
    """(makespan, share of the places' time with a trial) of a search."""
    trials, parameters = PROCEDURES[name]
    values = schedules(trials, seed)
    more = {**parameters, "iterations": ITERATIONS, **({"parallel": places} if name == "asha" else {})}
    board = SearchBoard(create(name, space(trials), seed, "min", more), values, False, places)
    dealer = dealing and dealing(board, places, 1, lambda number: 0, Costs())
    board.proposals()
    scheduler = SCHEDULERS["longest-first"](board, seed, expected=lambda stage: SECONDS)
    visits = simulate(board, scheduler, lambda unit: SECONDS, dealer=dealer)
    busy = sum((visit.end - visit.start) * (visit.threads or 1) for visit in visits)
    return makespan(visits), busy / (places * makespan(visits))


def sections():
    """The section of the page."""
    rows = []
    for name in PROCEDURES:
        for places in (8, 32):
            fixed, static, dynamic = (
                [mean(column) for column in zip(*(study(name, places, dealing, draw) for draw in range(1, DRAWS + 1)))]
                for dealing in (None, StaticFluid, Dealer)
            )
            sooner = [f"{fixed[0] / dealt[0]:.2f}" for dealt in (static, dynamic)]
            rows.append([name, places, *sooner, *(f"{one[1]:.0%}" for one in (fixed, static, dynamic))])
    head = [
        "procedure",
        "places",
        "sooner: StaticFluid",
        "DynamicFluid",
        "places in use: one trial a place",
        "StaticFluid",
    ]
    head.append("DynamicFluid")
    return [
        f"""## Fluid: places by what is left to do

Source: the paper's evaluation of ASHA, Hyperband and BOHB. Makespan with one trial on one place / with places dealt by what is
left of each trial, and how much of the places' time has a trial. StaticFluid (algorithm 1) deals when iterations of a trial are
asked for. DynamicFluid (algorithm 2), which pg_mop has (`schedule/dealing.py`), also deals anew when others end.
{ITERATIONS} iterations of {SECONDS:.0f} s at most;
{READY:.0f} s to make a net ready on other places; {PARALLEL:.0%} of an iteration's time is divided among its places. Mean of
{DRAWS} draws, with pg_mop's own procedures. The paper: makespans 1.1 to 2 times shorter, and better utilization, for any
number of places.

{table(head, rows)}
Differences. In a run pg_mop deals the cores of each server among its trainers; it places no trial on several servers, so
these places are cores. A place in use is not a place that is used well: a trial on 32 places is
{Costs().speedup(None, 32):.1f} times as fast. Trials that share a place (the paper's c) are pg_mop's unit batches, which are
not simulated here. Hyperband's and BOHB's proposals wait for whole rungs, so places fall idle with them.
"""
    ]
