"""Dear configurations before cheap ones, by what their units have taken so far."""

from pg_mop.schedule.base import Scheduler

ABOUT = 0.8   # of the longest's work left: so much is about as long
URGENT = 0.9  # of the work that is left at a place: from there on a configuration cannot wait for others


class LongestFirst(Scheduler):
    """The idle configuration with the most work left, among those in the earliest iteration.

    The rule of the longest remaining processing time for open shops (Pinedo, "Scheduling: Theory, Algorithms, and
    Systems", section 8.2: what is short fills the gaps at the end), within an iteration, so that all configurations
    advance together. One whose own work, which cannot be done in parallel, would outlast the others' is taken first
    in any iteration. A configuration that has not been trained yet comes before those that have, at random. Among those
    that are about equally long, one comes first that shares its compiled model with the one before at that place.
    """

    name = "longest-first"

    def __init__(self, board, seed, alike=None):
        super().__init__(board, seed, alike)
        self.seconds = {}  # (mst_key, kind) -> least seconds of a unit
        self.order = {key: self.random.random() for key in board.live}

    def finished(self, unit, seconds):
        key = (unit.mst_key, unit.kind)
        self.seconds[key] = min(seconds, self.seconds.get(key, seconds))

    def choose(self, place):
        units = self.board.eligible(place)
        if not units:
            return None
        evaluations = [u for u in units if u.kind == "evaluate"]
        if evaluations:  # the configuration waits for all of its own
            return min(evaluations, key=lambda u: (u.iteration, self.order[u.mst_key], u))
        left = {key: self._left(key) for key in self.board.live}
        urgent = self._urgent(left)

        def rank(unit):
            seconds = left[unit.mst_key]
            if seconds is None:
                return (unit.iteration, 0, self.order[unit.mst_key])
            return (0 if seconds >= urgent else unit.iteration, 1, -seconds)

        best = min(units, key=rank)
        if left[best.mst_key] is None or left[best.mst_key] < urgent:
            best = min((u for u in units if self._is_alike(u, place) and self._is_about(u, best, left)), key=rank,
                       default=best)
        self.last[place] = best.mst_key
        return best

    def _is_alike(self, unit, place):
        """True where the compiled model of the last unit at the place serves this one, too."""
        before = self.last.get(place)
        return before in self.alike and self.alike[before] == self.alike[unit.mst_key]

    def _is_about(self, unit, best, left):
        """True where to take `unit` in place of `best` makes the schedule little longer."""
        mine, its = left[unit.mst_key], left[best.mst_key]
        return unit.iteration == best.iteration and (mine is None) == (its is None) and (
            mine is None or mine >= ABOUT * its)

    def coming(self, place):
        unit = super().coming(place)
        if unit is None:
            return None
        left = {key: self._left(key) for key in self.board.live}
        return unit if (left[unit.mst_key] or 0) < self._urgent(left) else None

    def _urgent(self, left):
        """Seconds of training from which on a configuration cannot wait; `left`: see `_left`, of all."""
        return URGENT * sum(seconds for seconds in left.values() if seconds is not None) / len(self.board.places)

    def _left(self, mst_key):
        """Seconds of training that a configuration has left; None before its first unit has ended."""
        seconds = self.seconds.get((mst_key, "train"))
        if seconds is None:
            return None
        return seconds * sum(self.board.visits_left(mst_key, segment) for segment in self.board.segments)
