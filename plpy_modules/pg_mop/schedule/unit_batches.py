"""Unit batches: several units on one segment that a worker does as one command and one transaction."""

from collections.abc import Callable, Hashable

from pg_mop.plan.stages import StageNumber
from pg_mop.schedule.base import SHORT, Scheduler
from pg_mop.schedule.board import Board
from pg_mop.schedule.unit import SegmentNumber, Unit, Worker

SECONDS = SHORT  # of a training batch, about: fixed costs hardly matter beside it, and no stage waits long for others
MOST = 16  # units of a training batch
MOST_UNMEASURED = 4  # units of a training batch whose seconds are unknown or estimated from earlier runs
LEAST = 0.02  # seconds that a training batch may always take; units at most this long favor one unit more
TRAINED_BYTES = 16 << 20  # of the model states of a training batch, which the trainer keeps until they are written
EVALUATED_BYTES = 256 << 20  # of the model states of an evaluation batch


class UnitBatches:
    """Chooses the next unit batch of a worker with a scheduler; a batch may be one unit.

    Evaluations on the same rows form a batch, so that the rows are read once. Training units form a batch where the
    fixed costs of a command, some milliseconds, would matter: where units are short by measurement or by earlier runs.

    The stages of a batch wait for one another, and other workers may run out of stages. So a batch takes at most about
    an equal share of the trainable stages, one share for each worker and one for the first worker to become idle. The
    share shrinks with the work that is left, as in guided self-scheduling (Polychronopoulos and Kuck, IEEE Trans.
    Comput. C-36(12), 1987). A batch also takes at most about as long as that many average units, so that a batch of
    long units does not delay the other stages.
    """

    def __init__(
        self,
        board: Board,
        scheduler: Scheduler,
        key_of: Callable[[StageNumber], Hashable],
        bytes_of: Callable[[StageNumber], int],
    ) -> None:
        """`key_of`: equal for stages whose units take about equally long. `bytes_of`: size of a stage's model state, or
        of the state that it begins with."""
        self.board, self.scheduler, self.key_of, self.bytes_of = board, scheduler, key_of, bytes_of
        self.single: set[Unit] = set()  # units that run alone, because a unit of their batch was at fault
        self.seconds: dict[tuple[Hashable, SegmentNumber], float] = {}  # estimate of a training unit
        self.shares: dict[Unit, float] = {}  # running training unit -> its expected share of its batch, 1 for the mean
        self.ended, self.total = 0, 0.0  # training units, and the sum of their seconds
        self.slowdown: float | None = None  # least ratio of measured seconds to those expected from earlier runs

    def choose(self, worker: Worker) -> list[Unit]:
        """The units to do now on an idle worker, by stage, marked as running on the board; []: leave the worker idle."""
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

    def finished(self, unit: Unit, seconds: float) -> None:
        """Take the seconds of a unit, after the board has marked it as finished: the mean of its batch."""
        # (the mean is split by expected shares, so that a long unit is not recorded as short; 0 means unknown)
        seconds = max(1e-6, seconds * self.shares.pop(unit, 1.0))
        self.scheduler.finished(unit, seconds)
        if unit.kind == "train":
            self.ended, self.total = self.ended + 1, self.total + seconds
            expected = self._expected_before(unit)
            if expected:
                self.slowdown = min(seconds / expected, self.slowdown or seconds / expected)
            known = self._known(unit) or expected or seconds
            # (a unit that compiled, or was disturbed, says little)
            self.seconds[self.key_of(unit.stage), unit.segment] = min(seconds, (known + seconds) / 2)

    def _known(self, unit: Unit) -> float | None:
        """The estimate from units of this run; None without any."""
        return self.seconds.get((self.key_of(unit.stage), unit.segment))

    def _expected_before(self, unit: Unit) -> float:
        """The estimate from earlier runs; 0 without any."""
        return self.scheduler.expected(self.board.plan.stages[unit.stage])

    def _estimate(self, unit: Unit) -> float:
        """Seconds that a training unit takes, about."""
        return self._known(unit) or self._expected_before(unit) * max(1.0, self.slowdown or 1.0) or SECONDS

    def _evaluations(self, worker: Worker, unit: Unit) -> list[Unit]:
        """An evaluation and the others that are due on the same rows, within EVALUATED_BYTES."""
        if unit in self.single:
            return [unit]
        total = 0
        chosen: list[Unit] = []
        for other in self.board.due_with(unit):
            if other in self.single or other is not unit and self.scheduler.defers(other, worker):
                continue
            total += self.bytes_of(other.stage)
            if chosen and total > EVALUATED_BYTES:
                break
            chosen.append(other)
        return chosen

    def _trainings(self, worker: Worker, unit: Unit) -> list[Unit]:
        """A training unit and the scheduler's next ones, as long as they are short and can wait."""
        units: list[Unit] = []
        seconds: list[float] = []
        size = 0
        most, longest = self._limits()
        while True:
            self.board.start(unit)
            units.append(unit)
            seconds.append(self._estimate(unit))
            if self._known(unit) is None:
                most = min(most, MOST_UNMEASURED)
            size += self.bytes_of(unit.stage)
            if len(units) >= most or sum(seconds) >= longest or not self._may_wait(units[0]):
                break
            following = self.scheduler.next_in_batch(worker, units[0].segment)
            if (
                following is None
                or not self._may_wait(following)
                or sum(seconds) + self._estimate(following) > longest
                or size + self.bytes_of(following.stage) > TRAINED_BYTES
            ):
                break
            unit = following
        mean = sum(seconds) / len(seconds)
        self.shares.update({each: estimate / mean for each, estimate in zip(units, seconds)})
        return units

    def _limits(self) -> tuple[int, float]:
        """How many training units a batch may have, and about how many seconds of them."""
        trainable, workers = len(self.board.idle) + len(self.board.training), len(self.board.workers)
        if workers == 1:
            return min(MOST, trainable), SECONDS
        share, mean = trainable / (workers + 1), self.total / self.ended if self.ended else None
        most = max(1, min(MOST, round(share) if mean is not None and mean <= LEAST else int(share)))
        return most, SECONDS if mean is None else min(SECONDS, max(LEAST, (most + 0.5) * mean))

    def _may_wait(self, unit: Unit) -> bool:
        """True where a training unit may wait for the others of its batch."""
        return self.scheduler.BATCHES and unit not in self.single and not self.scheduler.is_urgent(unit.stage)
