"""What a schedule would take: the schedulers' own objects, run on given unit times."""

import heapq
from dataclasses import dataclass, field

from pg_mop.schedule.board import Unit


@dataclass(frozen=True)
class Visit:
    """A unit that ran at `place` from `start` to `end` (seconds of simulated time), or was of a group that did."""

    unit: Unit
    worker: int
    start: float
    end: float


@dataclass
class Transport:
    """What it takes to bring models to their units where each place is a server of its own.

    `bytes`: of a model state; `network`: bytes a second of a server's line, and of the coordinator's; `disk`: bytes a
    second that a server writes; `coordinator`: seconds of its own work for a unit, one unit after the other. `direct`:
    states go from server to server; else all pass the coordinator's line.
    """

    bytes: float
    network: float
    disk: float
    coordinator: float = 0.005
    direct: bool = False
    line_free: float = 0.0  # when the coordinator's line has carried all that was asked of it
    worker_free: float = 0.0  # when the coordinator has done all its work
    where: dict = field(default_factory=dict)  # stage -> the place of its state

    def begins(self, unit, worker, now, parent):
        """When a unit begins to compute that is chosen at `now`."""
        self.worker_free = ready = max(now, self.worker_free) + self.coordinator
        at = self.where.get(unit.stage, self.where.get(parent))
        if unit.kind == "train":
            self.where[unit.stage] = worker
        if at is None or at == worker:
            return ready
        carried = self.bytes / self.network
        if not self.direct:
            self.line_free = ready = max(ready, self.line_free) + carried
        else:
            ready += carried
        return ready + self.bytes / self.disk

    def ends(self, unit, computed):
        """When a unit has ended that has computed until then: a new state is written."""
        return computed + (self.bytes / self.disk if unit.kind == "train" else 0.0)


def simulate(board, scheduler, seconds, ahead=False, transport=None, groups=None, around=0.0):
    """Run `board` to its end under `scheduler`; `seconds(unit)` is how long a unit takes. Returns the Visits by end.

    `ahead`: every place reserves the stage that comes next, as the executor does where it reads states ahead.
    `transport`: a :class:`Transport`; None: nothing but the units takes time. `groups`: a
    :class:`~pg_mop.schedule.groups.Groups` of the scheduler's; None: every unit goes alone. `around`: seconds that a
    place takes for what is around a unit, or a group.

    Raises RuntimeError where the scheduler leaves every place idle although units remain.
    """
    now, idle, events, visits = 0.0, set(board.workers), [], []
    while not board.done:
        for worker in scheduler.arrange(idle):
            if worker not in idle:
                continue
            if groups is not None:
                units = groups.choose(worker)
            else:
                units = [unit] if (unit := scheduler.choose(worker)) is not None else []
                for unit in units:
                    board.start(unit)
            if units:
                coming = scheduler.coming(worker) if ahead else None
                board.reserve(worker, coming and coming.stage)
                idle.remove(worker)
                end = now + around + sum(map(seconds, units))
                if transport is not None:
                    (unit,) = units
                    parent = board.plan.stages[unit.stage].parent
                    begun = transport.begins(unit, worker, now, parent and parent.number)
                    end = transport.ends(unit, begun + seconds(unit))
                heapq.heappush(events, (end, worker, now, units))
        if not events:
            raise RuntimeError("the scheduler leaves every place idle although units remain")
        now = events[0][0]
        while events and events[0][0] == now:
            end, worker, start, units = heapq.heappop(events)
            for unit in units:
                board.finish(unit)
                (groups or scheduler).finished(unit, (end - start) / len(units))
                visits.append(Visit(unit, worker, start, end))
            idle.add(worker)
    return visits


def makespan(visits):
    """Time from the first unit's start to the last unit's end."""
    return max(v.end for v in visits) - min(v.start for v in visits)
