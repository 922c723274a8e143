"""Open shops: jobs that visit every place once, in any order, at one place at a time. Pure functions on unit times.

One iteration of model hopper parallelism is an open shop (Cerebro, VLDB 2020, section 5.1): a job is a configuration, a
place is a worker, and an operation is the training of the configuration on the rows of that worker.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Job = int
Place = int
Seconds = Sequence[Mapping[Place, float]]  # by job: {place: seconds of its operation there}


class Operation(NamedTuple):
    """A job at a place from `start` to `end` (seconds)."""

    job: Job
    place: Place
    start: float
    end: float


def loads(shop: Seconds) -> dict[Place, float]:
    """{place: seconds of all its operations}."""
    found: dict[Place, float] = {}
    for job in shop:
        for place, seconds in job.items():
            found[place] = found.get(place, 0.0) + seconds
    return found


def longest(shop: Seconds) -> float:
    """Seconds of the longest operation."""
    return max((seconds for job in shop for seconds in job.values()), default=0.0)


def lower_bound(shop: Seconds) -> float:
    """No schedule is shorter: a place, and likewise a job, does its operations one after the other."""
    return max([*loads(shop).values(), *(sum(job.values()) for job in shop)], default=0.0)


def makespan(schedule: Sequence[Operation]) -> float:
    """Seconds until the last operation ends."""
    return max((operation.end for operation in schedule), default=0.0)


def dispatch(shop: Seconds, rank: Callable[[Job, Place, float], float]) -> list[Operation]:
    """A schedule without needless idle time: a place that is free takes the free job of least rank.

    `rank(job, place, seconds left of the job)`. Since a place is idle only while all its jobs are elsewhere, the makespan
    is less than the optimum plus the longest sum of a job's other operations, for every rank.
    """
    left = [dict(job) for job in shop]
    rest = [sum(job.values()) for job in shop]
    waiting: dict[Place, set[Job]] = {place: set() for place in sorted(loads(shop))}
    for number, of in enumerate(shop):
        for place in of:
            waiting[place].add(number)
    place_free, job_free = dict.fromkeys(waiting, 0.0), [0.0] * len(shop)
    schedule: list[Operation] = []
    now = 0.0
    while any(waiting.values()):
        for place, jobs in waiting.items():
            if jobs and place_free[place] <= now:
                free = [job for job in jobs if job_free[job] <= now]
                if free:
                    job = min(free, key=lambda j: (rank(j, place, rest[j]), j))  # noqa: B023 (called at once)
                    seconds = left[job].pop(place)
                    jobs.remove(job)
                    rest[job] -= seconds
                    place_free[place] = job_free[job] = now + seconds
                    schedule.append(Operation(job, place, now, now + seconds))
        now = min((end for end in (*place_free.values(), *job_free) if end > now), default=now)
    return schedule


def longest_first(shop: Seconds) -> list[Operation]:
    """The rule of the longest remaining job (Pinedo, "Scheduling", section 8.2)."""
    return dispatch(shop, lambda job, place, left: -left)


def check(shop: Seconds, schedule: Sequence[Operation], within: float = 1e-6) -> None:
    """Raises ValueError unless a schedule does every operation once, and no job and no place does two at a time."""
    asked = sorted((job, place) for job, places in enumerate(shop) for place in places)
    if sorted((operation.job, operation.place) for operation in schedule) != asked:
        raise ValueError("the schedule lacks operations, or repeats some")
    for of in ("job", "place"):
        free: dict[int, float] = {}
        for operation in sorted(schedule, key=lambda operation: operation.start):
            number = getattr(operation, of)
            if operation.start < free.get(number, 0.0) - within:
                raise ValueError(f"{of} {number} does two operations at a time")
            free[number] = operation.end
    for job, place, start, end in schedule:
        if abs(end - start - shop[job][place]) > within:
            raise ValueError(f"the operation of job {job} at place {place} has the wrong length")
