"""How a call of mop_train divides its time limit among its steps (pure).

Each step that begins gets a part of the time that is left, by its share among the steps that are still to come. So what a step
leaves goes to those after it, and what a step takes beyond its part is missing to those after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

PREPARE, OTHERS, NETS, ENSEMBLE = "prepare", "others", "nets", "ensemble"
REFIT, MEASURE, BASELINES, FINAL = "refit", "measure", "baselines", "final"
# of the time limit; a call without some of the steps divides their shares among the others
SHARES = {
    PREPARE: 0.2,
    OTHERS: 0.25,
    NETS: 0.4,
    ENSEMBLE: 0.03,
    REFIT: 0.12,
    MEASURE: 0.05,
    BASELINES: 0.07,
    FINAL: 0.15,
}
LEAST_SECONDS = 0.5  # of each step, even where nothing is left


class TimeShares:
    """The time of one call. `seconds`: what each step has taken, by name; `left_out`: what the time did not allow."""

    def __init__(self, limit: float, steps: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        """`limit`: seconds from now on; `steps`: names of SHARES that the call has; `clock`: seconds since any moment."""
        self._limit, self._clock, self._began = limit, clock, clock()
        self._to_come = {name: SHARES[name] for name in SHARES if name in set(steps)}
        self._needs: dict[str, float] = {}
        self._step: str | None = None
        self._step_began = self._began
        self.seconds: dict[str, float] = {}
        self.told: Callable[[str, float], None] = lambda step, left: None  # of each step that begins, and the time left
        self.left_out: list[str] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the call began."""
        return self._clock() - self._began

    @property
    def left(self) -> float:
        """Seconds until the time limit; below 0 after it."""
        return self._limit - self.elapsed

    def need(self, step: str, seconds: float) -> None:
        """A step to come certainly takes so many seconds: the steps before it leave them."""
        self._needs[step] = seconds

    def leave_out(self, step: str, heir: str, for_lack_of_time: bool = True) -> None:
        """A step to come does not come: `heir`, another one, has its share, too."""
        self._to_come[heir] += self._to_come.pop(step, 0.0)
        if for_lack_of_time:
            self.left_out.append(step)

    def part(self, step: str) -> float:
        """The seconds that a step to come would get if it began now."""
        shares = list(self._to_come)
        later = shares[shares.index(step) + 1 :]
        own = self._to_come[step]
        of = own + sum(self._to_come[name] for name in later)
        equal = self.left * own / of if of else 0.0
        return max(0.0, min(equal, self.left - sum(self._needs.get(name, 0.0) for name in later)))

    def planned(self, step: str) -> float:
        """The seconds that a step to come will get if those before it take their parts."""
        return max(0.0, self.left) * self._to_come[step] / sum(self._to_come.values())

    def begin(self, step: str) -> float:
        """End the present step and begin another, which the call has; returns the seconds that it may take, at least
        LEAST_SECONDS. Steps that stand before it are over, or do not come."""
        self.end()
        seconds = max(LEAST_SECONDS, self.part(step))
        names = list(self._to_come)
        for name in names[: names.index(step) + 1]:
            del self._to_come[name]
        self._step, self._step_began = step, self._clock()
        self.told(step, self.left)
        return seconds

    def end(self) -> None:
        """The present step is over."""
        if self._step is not None:
            self.seconds[self._step] = self.seconds.get(self._step, 0.0) + self._clock() - self._step_began
            self._step = None

    def allows(self, what: str, seconds: float) -> bool:
        """Whether so many seconds are left for something that a call may leave out; if not, `what` is noted."""
        if seconds <= self.left:
            return True
        self.left_out.append(what)
        return False
