"""Which unit runs next: the board, the schedulers behind one interface, and a simulator. Pure Python."""

from pg_mop.schedule.base import Scheduler
from pg_mop.schedule.longest_first import LongestFirst
from pg_mop.schedule.randomized import Randomized
from pg_mop.schedule.round_robin import RoundRobin

SCHEDULERS: dict[str, type[Scheduler]] = {
    scheduler.name: scheduler for scheduler in (Randomized, LongestFirst, RoundRobin)
}
