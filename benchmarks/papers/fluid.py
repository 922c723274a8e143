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


class Costs:
    """The seconds of units, and the speedups, that the Dealer is told."""

    def certain(self, stage):
        return SECONDS

    def speedup(self, stage, places):
        return 1 / (1 - PARALLEL + PARALLEL / places)

    def ready(self, stage, places):
        return READY


def study(name, places, deals, seed):
    """(makespan, share of the places' time with a trial) of a search."""
    trials, parameters = PROCEDURES[name]
    values = schedules(trials, seed)
    more = {**parameters, "iterations": ITERATIONS, **({"parallel": places} if name == "asha" else {})}
    board = SearchBoard(create(name, space(trials), seed, "min", more), values, False, places)
    dealer = Dealer(board, places, 1, lambda number: 0, Costs()) if deals else None
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
            fixed, dealt = (
                [mean(column) for column in zip(*(study(name, places, deals, draw) for draw in range(1, DRAWS + 1)))]
                for deals in (False, True)
            )
            rows.append([name, places, f"{fixed[0] / dealt[0]:.2f}", f"{fixed[1]:.0%}", f"{dealt[1]:.0%}"])
    head = ["procedure", "places", "sooner: here", "places in use: one trial a place", "dealt"]
    return [
        f"""## Fluid: places by what is left to do

Source: the paper's evaluation of ASHA, Hyperband and BOHB. Makespan with one trial on one place / with places dealt by what is
left of each trial
(`schedule/dealing.py`), and how much of the places' time has a trial. {ITERATIONS} iterations of {SECONDS:.0f} s at most;
{READY:.0f} s to make a net ready on other places; {PARALLEL:.0%} of an iteration's time is divided among its places. Mean of
{DRAWS} draws, with pg_mop's own procedures. The paper: makespans 1.1 to 2 times shorter, and better utilization, for any
number of places.

{table(head, rows)}
Differences. In a run pg_mop deals the cores of one server among trainers; it places no trial on several servers or GPUs, so
these places are cores. A place in use is not a place that is used well: a trial on 32 places is
{Costs().speedup(None, 32):.1f} times as fast. Trials that share a place (the paper's c) are pg_mop's unit batches, which are
not simulated here. Hyperband's and BOHB's proposals wait for whole rungs, so places fall idle with them.
"""
    ]
