"""Which unit runs next: the board, the schedulers behind one interface, and a simulator. Pure Python."""

from pg_mop.schedule.base import Scheduler
from pg_mop.schedule.breadth_first import BreadthFirst
from pg_mop.schedule.longest_first import LongestFirst
from pg_mop.schedule.milp import Milp
from pg_mop.schedule.monte_carlo import MonteCarlo
from pg_mop.schedule.most_children_first import MostChildrenFirst
from pg_mop.schedule.randomized import Randomized
from pg_mop.schedule.round_robin import RoundRobin
from pg_mop.schedule.vector_rearrangement import VectorRearrangement

SCHEDULERS: dict[str, type[Scheduler]] = {
    scheduler.name: scheduler
    for scheduler in (
        Randomized,
        LongestFirst,
        VectorRearrangement,
        Milp,
        MonteCarlo,
        BreadthFirst,
        MostChildrenFirst,
        RoundRobin,
    )
}
