"""The schedulers of the papers that pg_mop does not use: with them the experiments compare its own.

No run is better off with them where units take other times than expected ("Makespans against the lower bound" in
docs/papers.md).
"""

from papers.schedulers.breadth_first import BreadthFirst
from papers.schedulers.milp import Milp
from papers.schedulers.monte_carlo import MonteCarlo
from papers.schedulers.most_children_first import MostChildrenFirst
from papers.schedulers.vector_rearrangement import VectorRearrangement
from pg_mop.schedule import SCHEDULERS as OF_PG_MOP
from pg_mop.schedule.base import Scheduler

OF_PAPERS: dict[str, type[Scheduler]] = {
    scheduler.name: scheduler for scheduler in (VectorRearrangement, Milp, MonteCarlo, BreadthFirst, MostChildrenFirst)
}
SCHEDULERS = OF_PG_MOP | OF_PAPERS
