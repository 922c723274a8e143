"""Monte-Carlo look-ahead: many random dry runs, of which the best is followed."""

from math import exp
from random import Random

from papers.schedulers.open_shop import Operation, Seconds, dispatch, longest_first, lower_bound, makespan
from papers.schedulers.planned import Planned

DRY_RUNS, FINALISTS, DRAWS = 200, 5, 8
MOST_COMPARISONS = 3_000_000  # of jobs, in all dry runs of a plan: about a second
SPREAD = 0.5  # standard deviation of the logarithm of a rank
NOISE = 0.1  # standard deviation of the logarithm of an operation's seconds


class MonteCarlo(Planned):
    """Follows the best of many simulated schedules (Cerebro's platform, thesis 2023, section 4.2.2).

    From the present state, an iteration is simulated up to 200 times: a free worker takes the configuration with the longest
    rest, times a random factor of the dry run. The five shortest schedules are simulated again with random unit times,
    the same for all of them, and the order with the least mean makespan is followed. So an order that needs exact times
    loses. The number of dry runs shrinks with their size, so that a plan takes about a second at most.
    """

    name = "monte-carlo"

    def propose(self, shop: Seconds) -> list[Operation] | None:
        return best_of(shop, self.seed)


def best_of(shop: Seconds, seed: int | float | str) -> list[Operation]:
    """The schedule that the class describes. The schedule of longest-first is one of the dry runs."""
    size = len(shop) * sum(map(len, shop))
    draws = max(0, min(DRY_RUNS, MOST_COMPARISONS // max(1, size) - FINALISTS * DRAWS))
    found, bound = [longest_first(shop)], lower_bound(shop)
    for number in range(draws):
        if makespan(found[-1]) <= bound * (1 + 1e-9):
            break
        source = Random(f"{seed} {number}")
        factors = [exp(source.gauss(0, SPREAD)) for _ in shop]
        found.append(dispatch(shop, lambda job, place, left, f=factors: -left * f[job]))  # type: ignore[misc]
    finalists = sorted(found, key=makespan)[: FINALISTS if draws else 1]
    return min(finalists, key=lambda schedule: _mean(shop, schedule, seed) if len(finalists) > 1 else 0.0)


def _mean(shop: Seconds, schedule: list[Operation], seed: int | float | str) -> float:
    """The mean makespan of a schedule's order under random unit times."""
    order = {(o.job, o.place): number for number, o in enumerate(sorted(schedule, key=lambda o: o.start))}
    total = 0.0
    for draw in range(DRAWS):
        source = Random(f"{seed} times {draw}")
        drawn = [{place: seconds * exp(source.gauss(0, NOISE)) for place, seconds in job.items()} for job in shop]
        total += makespan(dispatch(drawn, lambda job, place, left: order[job, place]))
    return total / DRAWS
