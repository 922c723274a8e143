"""Which unit runs next: the board, the schedulers behind one interface, and a simulator. Pure Python."""

from pg_mop.schedule.base import Scheduler
from pg_mop.schedule.compared.breadth_first import BreadthFirst
from pg_mop.schedule.compared.milp import Milp
from pg_mop.schedule.compared.monte_carlo import MonteCarlo
from pg_mop.schedule.compared.most_children_first import MostChildrenFirst
from pg_mop.schedule.compared.round_robin import RoundRobin
from pg_mop.schedule.compared.vector_rearrangement import VectorRearrangement
from pg_mop.schedule.longest_first import LongestFirst
from pg_mop.schedule.randomized import Randomized

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
