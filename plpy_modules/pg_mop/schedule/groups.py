"""Which units go together: those of one segment that a place does as one command and one transaction."""

from pg_mop.schedule.base import SHORT

SECONDS = SHORT  # of the units of a group that trains, about: what is around it is little beside that, none waits long
MOST = 16  # of its units
FORESEEN = 4  # of those of which nothing is known but by earlier runs
LEAST = 0.02  # seconds that a group may always have; and of units that had better be some more together
TRAINED_BYTES = 16 << 20  # of its model states, which the trainer keeps until they are written
EVALUATED_BYTES = 256 << 20  # of the states of models that are evaluated together


class Groups:
    """Chooses what a place does next, by a scheduler: one unit, or several.

    Evaluations on the same rows go together, so that these are read once; training units where what is around each,
    some milliseconds, would weigh: those that are known to be short, or expected to be by what earlier runs took. A
    stage in a group waits for the others in it, and so may a place. So a group takes no more of the stages that can be
    trained than there is for every place, about, and once more for the one that falls idle first (the share shrinks
    with what is left, as in guided self-scheduling: Polychronopoulos and Kuck, IEEE Trans. Comput. C-36(12), 1987); and
    hardly longer than so many units mostly do, or the dear ones, together, would hold up the others.
    """

    def __init__(self, board, scheduler, key_of, bytes_of):
        """`key_of(stage number)`: equal for stages whose units take about as long; `bytes_of(stage number)`: of its
        model state, or of what it begins with."""
        self.board, self.scheduler, self.key_of, self.bytes_of = board, scheduler, key_of, bytes_of
        self.alone = set()  # units that are each done for themselves: one of a group was to blame
        self.seconds = {}  # (key, segment) -> what a training unit takes, about
        self.shares = {}  # training unit at work -> its share of its group's time, as a multiple of the mean
        self.ended, self.took = 0, 0.0  # training units; and the seconds of all of them
        self.times = None  # what one took as a multiple of what it should by earlier runs: the least

    def choose(self, worker):
        """The units to do now at an idle place, by stage; they have been started on the board. []: leave it idle."""
        unit = self.scheduler.choose(worker)
        if unit is None:
            return []
        if unit.kind == "evaluate":
            units = self._evaluations(worker, unit)
            for each in units:
                self.board.start(each)
        else:
            units = self._trainings(worker, unit)
        return sorted(units, key=lambda u: u.stage)  # all sessions lock models in one order

    def finished(self, unit, seconds):
        """Take note of what a unit took, after the board has: the mean of its group."""
        # (a dear one is not to be taken for a cheap one; and 0 is what nobody knows)
        seconds = max(1e-6, seconds * self.shares.pop(unit, 1.0))
        self.scheduler.finished(unit, seconds)
        if unit.kind == "train":
            self.ended, self.took = self.ended + 1, self.took + seconds
            known, foreseen = self._known(unit), self._foreseen(unit)
            if foreseen:
                self.times = min(seconds / foreseen, self.times or seconds / foreseen)
            known = known or foreseen or seconds
            # one that compiled, or was disturbed, tells little
            self.seconds[self.key_of(unit.stage), unit.segment] = min(seconds, (known + seconds) / 2)

    def _known(self, unit):
        """Seconds that a training unit has taken, about; None where nobody knows."""
        return self.seconds.get((self.key_of(unit.stage), unit.segment))

    def _foreseen(self, unit):
        """What it should take by what earlier runs took; 0 where nobody knows."""
        return self.scheduler.expected(self.board.plan.stages[unit.stage])

    def _expected(self, unit):
        """Seconds that a training unit takes, about."""
        return self._known(unit) or self._foreseen(unit) * max(1.0, self.times or 1.0) or SECONDS

    def _evaluations(self, worker, unit):
        """An evaluation at a place and the others that are due on the same rows, as far as memory goes."""
        if unit in self.alone:
            return [unit]
        total, chosen = 0, []
        for other in self.board.due_with(unit):
            if other in self.alone or other is not unit and self.scheduler.leaves(other, worker):
                continue
            total += self.bytes_of(other.stage)
            if chosen and total > EVALUATED_BYTES:
                break
            chosen.append(other)
        return chosen

    def _trainings(self, worker, unit):
        """A training unit and those that the scheduler would have follow it, as long as they are short and can wait."""
        units, seconds, size = [], [], 0
        most, longest = self._share()
        while True:
            self.board.start(unit)
            units.append(unit)
            seconds.append(self._expected(unit))
            if self._known(unit) is None:
                most = min(most, FORESEEN)
            size += self.bytes_of(unit.stage)
            if len(units) >= most or sum(seconds) >= longest or not self._may_wait(units[0]):
                break
            unit = self.scheduler.following(worker, units[0].segment)
            if (
                unit is None
                or not self._may_wait(unit)
                or (sum(seconds) + self._expected(unit) > longest or size + self.bytes_of(unit.stage) > TRAINED_BYTES)
            ):
                break
        mean = sum(seconds) / len(seconds)
        self.shares.update({each: own / mean for each, own in zip(units, seconds)})
        return units

    def _share(self):
        """How many training units a place may take at once, and about how many seconds of them."""
        trainable, workers = len(self.board.idle) + len(self.board.training), len(self.board.workers)
        if workers == 1:
            return min(MOST, trainable), SECONDS
        share, mean = trainable / (workers + 1), self.took / self.ended if self.ended else None
        most = max(1, min(MOST, round(share) if mean is not None and mean <= LEAST else int(share)))
        return most, SECONDS if mean is None else min(SECONDS, max(LEAST, (most + 0.5) * mean))

    def _may_wait(self, unit):
        """True where a training unit may wait for others that it goes with."""
        return self.scheduler.GROUPS and unit not in self.alone and not self.scheduler.hurries(unit.stage)
