"""What a schedule would take: the schedulers' own objects, run on given unit times."""

import heapq
from dataclasses import dataclass

from pg_mop.schedule.board import Unit


@dataclass(frozen=True)
class Visit:
    """A unit that ran at `place` from `start` to `end` (seconds of simulated time)."""

    unit: Unit
    place: int
    start: float
    end: float


def simulate(board, scheduler, seconds, ahead=False):
    """Run `board` to its end under `scheduler`; `seconds(unit)` is how long a unit takes. Returns the Visits by end.

    `ahead`: every place reserves the stage that comes next, as the executor does where it reads states ahead.

    Raises RuntimeError where the scheduler leaves every place idle although units remain.
    """
    now, idle, events, visits = 0.0, set(board.places), [], []
    while not board.done:
        for place in scheduler.arrange(idle):
            unit = scheduler.choose(place)
            if unit is not None:
                board.start(unit)
                coming = scheduler.coming(place) if ahead else None
                board.reserve(place, coming and coming.stage)
                idle.remove(place)
                heapq.heappush(events, (now + seconds(unit), place, now, unit))
        if not events:
            raise RuntimeError("the scheduler leaves every place idle although units remain")
        now = events[0][0]
        while events and events[0][0] == now:
            end, place, start, unit = heapq.heappop(events)
            board.finish(unit)
            scheduler.finished(unit, end - start)
            idle.add(place)
            visits.append(Visit(unit, place, start, end))
    return visits


def makespan(visits):
    """Time from the first unit's start to the last unit's end."""
    return max(v.end for v in visits) - min(v.start for v in visits)
