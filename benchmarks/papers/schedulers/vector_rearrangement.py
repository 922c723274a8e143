"""Vector rearrangement: an optimal schedule for open shops with many jobs, in polynomial time."""

from papers.schedulers.compact_sums import compact_order
from papers.schedulers.open_shop import Job, Operation, Place, Seconds, check, dispatch, loads, longest, longest_first
from papers.schedulers.planned import Planned

MOST_JOBS = 1000  # of a shop whose order is computed (some seconds)


class VectorRearrangement(Planned):
    """Follows the schedule of vector rearrangement (Cerebro, VLDB 2020, section 5.2).

    It is optimal where the greatest load of a worker is at least (p^2 + p - 1) times the longest unit, with p workers.
    Otherwise the same order of the configurations, on each worker from a place of its own in the circle, is followed
    without needless idle time: the makespan is at most the optimum plus (p - 1) times the longest unit.
    """

    name = "vector-rearrangement"

    def propose(self, shop: Seconds) -> list[Operation] | None:
        if len(shop) > MOST_JOBS:
            return None
        return schedule(shop)


def schedule(shop: Seconds) -> list[Operation]:
    """The schedule of vector rearrangement for an open shop. See the module's class for what it guarantees.

    The jobs get an order in which, at every job, the places have had nearly equal work (compact vector summation). Every
    place takes the jobs in that order as a circle, and each place begins further back than the one before, so that a
    job comes to the places one after the other. (Barany and Fiala 1982, in Sevastyanov: "On some geometric methods in
    scheduling theory", Discrete Applied Mathematics 55, 1994.)
    """
    places = sorted(loads(shop))
    if len(places) < 2 or len(shop) < 2:
        return longest_first(shop)
    padded = _padded(shop, places)
    order = _order(padded, places)
    first = _starts(padded, order, places)
    if max(loads(shop).values()) >= (len(places) ** 2 + len(places) - 1) * longest(shop):
        found = _circular(shop, padded, order, first)
        try:
            check(shop, found)
            return found
        except ValueError:  # rounding
            pass
    position = {
        (job, place): (number - first[place]) % len(order) for number, job in enumerate(order) for place in places
    }
    return dispatch(shop, lambda job, place, left: position[job, place])


def _padded(shop: Seconds, places: list[Place]) -> list[dict[Place, float]]:
    """The shop with equal loads of all places: operations become longer, and jobs without meaning are added at the end,
    both up to the longest operation."""
    most, work = longest(shop), loads(shop)
    rows = [{place: job.get(place, 0.0) for place in places} for job in shop]
    for place in places:
        short, number = max(work.values()) - work[place], 0
        while short > 1e-12 * most:
            if number == len(rows):
                rows.append(dict.fromkeys(places, 0.0))
            more = min(short, most - rows[number][place])
            rows[number][place] += more
            short -= more
            number += 1
    return rows


def _order(padded: Seconds, places: list[Place]) -> list[Job]:
    """The order of the jobs in which, at every job, all places have had nearly the same work."""
    import numpy as np

    rows = np.array([[job[place] for place in places] for job in padded])
    return compact_order(rows[:, :-1] - rows[:, -1:])


def _starts(padded: Seconds, order: list[Job], places: list[Place]) -> dict[Place, int]:
    """{place: the position in the order of the job that the place does first}. Each place is at least p longest operations
    behind the place before it, and begins with a whole operation."""
    starts, behind, most = {places[0]: 0}, 0.0, longest(padded)
    for place in places[1:]:
        number, passed = len(order), 0.0
        while passed < behind + len(places) * most and number > 0:
            number -= 1
            passed += padded[order[number]][place]
        if number == 0:  # the circle is too short: the places are spread over it evenly
            return {place: len(order) * (len(places) - i) // len(places) % len(order) for i, place in enumerate(places)}
        starts[place], behind = number, passed
    return starts


def _circular(shop: Seconds, padded: Seconds, order: list[Job], first: dict[Place, int]) -> list[Operation]:
    """Every place does its jobs in the order from its first job on, at the times of the padded shop."""
    found: list[Operation] = []
    for place, start in first.items():
        now = 0.0
        for job in order[start:] + order[:start]:
            if job < len(shop) and place in shop[job]:
                found.append(Operation(job, place, now, now + shop[job][place]))
            now += padded[job][place]
    return found
