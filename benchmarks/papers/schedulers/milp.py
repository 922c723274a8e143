"""The optimal schedule of an open shop, by mixed-integer linear programming (SciPy's HiGHS)."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from papers.schedulers.monte_carlo import best_of
from papers.schedulers.open_shop import Operation, Seconds, check, loads, longest_first, lower_bound, makespan
from papers.schedulers.planned import Planned
from papers.schedulers.vector_rearrangement import schedule as vector_rearrangement

MOST_CHOICES = 6000  # binary variables of a program that HiGHS is asked to solve
SHARE, MOST_SECONDS = 0.05, 60.0  # of the shortest possible makespan that solving may take, and at most
NEAR = 1.0005  # a heuristic's schedule within this ratio of the lower bound is taken as it is


class Solution(NamedTuple):
    """`schedule`: the best one that was found, the heuristic's if no other. `bound`: no schedule is shorter. `why`: what
    ended the search: optimal, time limit, too large, or HiGHS' message."""

    schedule: list[Operation]
    bound: float
    why: str


class Milp(Planned):
    """Follows the schedule of a mixed-integer linear program (Cerebro's platform, thesis 2023, section 4.3).

    The best one of longest-first, vector rearrangement and Monte-Carlo dry runs is the start: its makespan bounds the
    program from above, and it is followed where HiGHS finds no better one within its time, 5 % of the lower bound of the
    makespan and at most a minute.
    """

    name = "milp"

    def propose(self, shop: Seconds) -> list[Operation] | None:
        return solve(shop, _seconds(shop)).schedule


def _seconds(shop: Seconds) -> float:
    return min(MOST_SECONDS, SHARE * lower_bound(shop))


def choices(shop: Seconds) -> int:
    """The binary variables of a shop's program: one for each two operations of a job, and for each two at a place."""
    at = [sum(place in job for job in shop) for place in loads(shop)]
    return sum(n * (n - 1) // 2 for n in [*at, *map(len, shop)])


def heuristic(shop: Seconds) -> list[Operation]:
    """The shortest of the schedules of longest-first, vector rearrangement and Monte-Carlo dry runs."""
    return min((longest_first(shop), vector_rearrangement(shop), best_of(shop, 0)), key=makespan)


def solve(shop: Seconds, seconds: float) -> Solution:
    """A schedule within so many seconds of solving; never longer than the heuristic's.

    Raises ImportError without SciPy, unless the heuristic's schedule is optimal or the shop is too large.
    """
    found, bound = heuristic(shop), lower_bound(shop)
    if makespan(found) <= NEAR * bound:
        return Solution(found, bound, "optimal")
    if choices(shop) > MOST_CHOICES:
        return Solution(found, bound, "too large")
    return _solve(shop, seconds, found)


def _solve(shop: Seconds, seconds: float, known: list[Operation]) -> Solution:
    """Solve the program (thesis, equations 4.1 to 4.14, with one strategy on one device at every place).

    Variables: the start I of each operation, the makespan C, and a choice for each two operations that must not overlap:
    1 if the first one comes first. Minimize C with C >= I + R (4.1), I1 + R1 <= I2 + U (1 - choice) and
    I2 + R2 <= I1 + U choice (4.7 and 4.8 at a place, 4.10 and 4.11 for a job; 4.14 holds because there is one choice for
    both orders), and I >= 0 (4.13). U is the makespan of the known schedule, which bounds C, too.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore
    from scipy.sparse import coo_array  # type: ignore

    operations = [(job, place) for job, places in enumerate(shop) for place in sorted(places)]
    pairs = [
        (a, b)
        for a, b in combinations(range(len(operations)), 2)
        if operations[a][0] == operations[b][0] or operations[a][1] == operations[b][1]
    ]
    most, least = makespan(known), lower_bound(shop)
    times = [shop[job][place] for job, place in operations]
    count, first_choice = len(operations), len(operations) + 1
    size = first_choice + len(pairs)
    rows: list[tuple[list[tuple[int, float]], float]] = []  # sum of (variable, coefficient) >= bound
    for a in range(count):
        rows.append(([(count, 1.0), (a, -1.0)], times[a]))
    for number, (a, b) in enumerate(pairs):
        choice = first_choice + number
        rows.append(([(b, 1.0), (a, -1.0), (choice, -most)], times[a] - most))
        rows.append(([(a, 1.0), (b, -1.0), (choice, most)], times[b]))
    entries = [(row, variable, value) for row, (terms, _) in enumerate(rows) for variable, value in terms]
    at_row, at_variable, values = zip(*entries)
    matrix = coo_array((values, (at_row, at_variable)), shape=(len(rows), size))
    upper = np.concatenate([[most - seconds for seconds in times], [most], np.ones(len(pairs))])
    lower = np.concatenate([np.zeros(count), [least], np.zeros(len(pairs))])
    result = milp(
        np.eye(1, size, count)[0],
        integrality=np.concatenate([np.zeros(count + 1), np.ones(len(pairs))]),
        bounds=Bounds(lower, upper),
        constraints=LinearConstraint(matrix, [bound for _, bound in rows], np.inf),
        options={"time_limit": seconds, "mip_rel_gap": NEAR - 1},
    )
    bound = most if result.status == 2 else max(least, float(result.mip_dual_bound or 0.0))
    why = {0: "optimal", 1: "time limit", 2: "optimal"}.get(result.status, str(result.message))
    if result.x is None:  # 2: no schedule is shorter than the known one
        return Solution(known, bound, why)
    found = in_order(shop, [operations[number] for number in np.argsort(result.x[:count], kind="stable")])
    return Solution(min((known, found), key=makespan), bound, why)


def in_order(shop: Seconds, order: Sequence[tuple[int, int]]) -> list[Operation]:
    """The schedule in which every operation (job, place) begins as soon as those before it in the order let it. (The
    times of a solver's solution are exact within its tolerance only.)"""
    job_free: dict[int, float] = {}
    place_free: dict[int, float] = {}
    found = []
    for job, place in order:
        start = max(job_free.get(job, 0.0), place_free.get(place, 0.0))
        job_free[job] = place_free[place] = end = start + shop[job][place]
        found.append(Operation(job, place, start, end))
    check(shop, found)
    return found
