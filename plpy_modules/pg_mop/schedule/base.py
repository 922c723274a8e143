"""The interface of the schedulers."""

from abc import ABC, abstractmethod
from random import Random


class Scheduler(ABC):
    """Chooses among the units that a :class:`~pg_mop.schedule.board.Board` allows. Seeded, without a clock: it is told
    what the units took."""

    name: str

    def __init__(self, board, seed, alike=None):
        """`alike`: {mst_key: what is equal for configurations that share a compiled model}."""
        self.board, self.random, self.alike = board, Random(seed), alike or {}
        self.last = {}  # place -> the mst_key that was chosen there last

    def finished(self, unit, seconds):  # noqa: B027 (few need to know)
        """Take note of what a unit took."""

    def coming(self, place):
        """The unit that `choose` would give now, if waiting for the place does it no harm; else None."""
        state, last = self.random.getstate(), dict(self.last)
        unit = self.choose(place)
        self.random.setstate(state)
        self.last = last
        return unit

    @abstractmethod
    def choose(self, place):
        """The unit to run now at the idle `place`, or None to leave it idle."""
