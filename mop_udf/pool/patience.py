"""How long something has been waited for, on a machine that may stand still meanwhile. Standard library only."""

import math
import time

LONGEST = 1.0  # seconds that count at most of the time between two looks
PART = 0.25  # of a limit that counts at most


class Patience:
    """A limit of the time for something that is checked at short intervals.

    Of a longer interval only `LONGEST` seconds count, or a part of a short limit: this process or the whole virtual machine
    stood still, and so the answer may be on its way.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds, self.waited, self._looked = seconds, 0.0, time.monotonic()
        self._longest = min(LONGEST, PART * seconds)

    def look(self) -> float:
        """The seconds that have been waited, with those since the last look."""
        now = time.monotonic()
        self.waited, self._looked = self.waited + min(now - self._looked, self._longest), now
        return self.waited

    def over(self) -> bool:
        """Look: True once more than `seconds` have been waited."""
        return self.look() > self.seconds
