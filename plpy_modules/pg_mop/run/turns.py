"""Turns: a run asks before its workers begin commands, so that the runs of a server share its cores."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_SECONDS = 0.5  # between two questions of a run that does not wait
POLL_SECONDS = 0.05  # of one that waits
WIDE_SECONDS = (
    60.0  # that a command of a replay waits for more cores than a worker has at first (as a run for its turn)
)

Answer = tuple[int, bool, int]  # cores that a run may use, whether no other run asks, and cores that other runs want


class Turns:
    """How many cores the commands of a run may use. Workers on other servers and trainers on Ray do not count.

    The database decides (sql/postgresql/13_turns.sql). A run that is alone asks twice a second, others before each command.
    """

    def __init__(self, ask: Callable[[int, int], Answer] | None, threads: int, cores: int) -> None:
        """`ask(wanted, busy)`: cores that the run wants and uses; None: the run takes no turns. `threads`: of a worker, as
        it is at first, at most `cores`, those of the server."""
        self._ask, self.threads, self.cores = ask, threads, cores
        self.waits = False  # a worker is idle since the run may use no more cores
        self._wide_since: float | None = None  # since when a command with more threads waits (time.monotonic)
        self._allowed, self._alone, self._others, self._asked = 0, False, 0, float("-inf")
        # `look` has just got cores. (To ask again would be a second turn, which may be another run's.)
        self._granted = False

    def begin(self, busy: int, idle: int) -> int:
        """How many cores the `idle` workers may begin commands on, where those of others use `busy` cores."""
        wanted = busy + idle * self.threads
        if self._ask is None:
            return wanted - busy
        if not (self._is_known(wanted) or self._granted):
            self._take(wanted, busy)
        self._granted = False
        self.waits = wanted > self._allowed
        return max(0, min(wanted, self._allowed) - busy)

    def grow(self, busy: int, cores: int) -> bool:
        """Whether the run may use so many `cores`, for a worker with more threads than at first: only such as no other run
        wants. (`busy`: those that its commands use.)"""
        if self._ask is None or self._is_known(cores):
            return True
        if min(cores, self.cores) > self.cores - self._others:
            return False
        self._take(cores, busy)
        return self._allowed >= cores and min(cores, self.cores) <= self.cores - self._others

    def may_have(self, busy: int, threads: int) -> bool:
        """Whether a worker of a replay may begin a command that had so many threads in the run that is repeated: where it may
        `grow`, and after a minute in any case, for it cannot do with fewer threads."""
        now = time.monotonic()
        if self.grow(busy, busy + threads) or now - (self._wide_since or now) >= WIDE_SECONDS:
            self._wide_since = None
            return True
        self._wide_since = self._wide_since or now
        return False

    def settle(self, busy: int) -> None:
        """The idle workers have been asked: leave cores that no worker uses to other runs."""
        if self._ask is not None and busy < self._allowed:
            self.waits = self._wide_since is not None  # (else the idle workers have no work)
            if not (self._alone and busy):
                self._take(busy, busy)

    def look(self, busy: int, idle: int) -> bool:
        """Ask again, if it is time to. True where idle workers may begin commands now that might not before."""
        patience = POLL_SECONDS if self.waits else LOOK_SECONDS
        if self._ask is None or time.monotonic() - self._asked < patience:
            return False
        self._take(busy + (idle * self.threads if self.waits else 0), busy)
        self._granted = self.waits and self._allowed >= busy + self.threads
        return self._granted

    @property
    def patience(self) -> float | None:
        """Seconds until the next question of a run that waits; None: nothing is waited for."""
        return POLL_SECONDS if self.waits else None

    def _is_known(self, wanted: int) -> bool:
        return self._alone and wanted <= self._allowed and time.monotonic() - self._asked < LOOK_SECONDS

    def _take(self, wanted: int, busy: int) -> None:
        """Ask for so many cores, of which so many are in use."""
        assert self._ask is not None
        # workers with more threads than there are cores share them: they have as much as the run has asked for
        most = min(wanted, self.cores)
        cores, self._alone, self._others = self._ask(most, min(busy, self.cores))
        self._asked = time.monotonic()
        self._allowed = wanted if cores >= most else cores - cores % self.threads
