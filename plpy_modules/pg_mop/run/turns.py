"""Turns: a run asks before its workers begin commands, so that the runs of a server share its cores."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_SECONDS = 0.5  # between two questions of a run that does not wait
POLL_SECONDS = 0.05  # of one that waits


class Turns:
    """How many workers of a run may have commands. Workers on other servers and trainers on Ray do not count.

    The database decides (sql/postgresql/13_turns.sql). A run that is alone asks twice a second, others before each command.
    """

    def __init__(self, ask: Callable[[int, int], tuple[int, bool]] | None, threads: int, cores: int) -> None:
        """`ask(wanted, busy)`: cores that the run wants and uses -> (cores that it may use, whether no other run asks);
        None: the run takes no turns. `threads`: of a worker, at most `cores`, those of the server."""
        self._ask, self.threads, self.cores = ask, threads, cores
        self.waits = False  # a worker is idle since the run may use no more cores
        self._allowed, self._alone, self._asked = 0, False, float("-inf")
        # `look` has just got cores. (To ask again would be a second turn, which may be another run's.)
        self._granted = False

    def begin(self, busy: int, idle: int) -> int:
        """How many of the idle workers may begin a command, where `busy` others have one."""
        if self._ask is None:
            return idle
        known = self._alone and busy + idle <= self._allowed and time.monotonic() - self._asked < LOOK_SECONDS
        if not (known or self._granted):
            self._take(busy + idle, busy)
        self._granted = False
        self.waits = busy + idle > self._allowed
        return max(0, min(idle, self._allowed - busy))

    def settle(self, busy: int) -> None:
        """The idle workers have been asked: leave cores that no worker uses to other runs."""
        if self._ask is not None and busy < self._allowed:
            self.waits = False  # the idle workers have no work
            if not (self._alone and busy):
                self._take(busy, busy)

    def look(self, busy: int, idle: int) -> bool:
        """Ask again, if it is time to. True where idle workers may begin commands now that might not before."""
        patience = POLL_SECONDS if self.waits else LOOK_SECONDS
        if self._ask is None or time.monotonic() - self._asked < patience:
            return False
        self._take(busy + (idle if self.waits else 0), busy)
        self._granted = self.waits and self._allowed > busy
        return self._granted

    @property
    def patience(self) -> float | None:
        """Seconds until the next question of a run that waits; None: nothing is waited for."""
        return POLL_SECONDS if self.waits else None

    def _take(self, wanted: int, busy: int) -> None:
        """Ask for so many workers, of which so many have commands."""
        assert self._ask is not None
        # more workers than cores are as many as the run has asked for; they share what there is
        cores, self._alone = self._ask(min(wanted * self.threads, self.cores), min(busy * self.threads, self.cores))
        self._asked = time.monotonic()
        self._allowed = wanted if cores >= min(wanted * self.threads, self.cores) else cores // self.threads
