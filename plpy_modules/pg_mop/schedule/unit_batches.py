"""Unit batches and chains: units that a worker does as one command and one transaction.

A unit has fixed costs of some milliseconds: a command, two transactions, and the transfer of its state. Where one worker can
do the next units of a configuration as well, they are one command, a chain. Its first step is a unit, or a unit batch. Each
further step trains the same configurations on another segment, in their random order, or in the next iteration. `UnitBatches`
(`schedule/unit_batches.py`) forms chains, from estimates that this run has measured or confirmed, within these limits:

- about `pg_mop.chain_seconds` of training, and a share of the work that is left, if stages outnumber workers;
- nobody else reads the state in between (`NeededStates.passes_on()`): no evaluation, no branch, no configuration that ends or
  keeps its state there, so no decision of a search or of a stop rule;
- the rows of all segments that the worker does are on one host and fit its trainer's cache (`Planner.may_chain()`). A unit on
  a copy that the worker does for another one ends its command. A replica of averaging has one unit between two averages, and
  so no chain.

On other servers a chain visits the segments of that server. The reports of its units come with the command's answer, and the
coordinator registers them in one transaction. So after any loss either all units of a chain count, or none. Where states have
copies (`pg_mop.replicas`), the units that trained one model count together, once the model's last state is copied: a server
that is lost before that takes their work with it, and they are done again elsewhere.

The worker session takes the states once, sends the rows that the trainer lacks, and writes the last states. In between they
stay in the trainer: in the variables of the compiled model if configurations are trained one after the other, or as arrays
for a vmap batch (`mop_udf/training/chain.py`). Each unit has its row in `mop_unit`, with version, loss and times of its own;
one INSERT begins the rows, and one UPDATE finishes them. A state that only the next stage of the chain read is never written.
On the board a stage has all its units of the chain running, in order, so a request to stop a configuration finds the
iterations begun.

A chain that fails is undone whole, and each of its units is retried alone. Weights do not depend on chains: for the same
visit order they are equal, byte for byte (tests/sql/test_chains.py). Evaluations are not part of chains. A trainer on Ray
does chains as others do: the relay passes every frame on unchanged, so a chain costs one round trip.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule.base import SHORT, Scheduler
from pg_mop.schedule.board import Board
from pg_mop.schedule.unit import SegmentNumber, Unit, Worker

Step = list[Unit | None]
CommandSteps = list[Step]  # see UnitBatches.choose

SECONDS = SHORT  # of a training batch, about: fixed costs hardly matter beside it, and no stage waits long for others
MOST = 16  # units of a training batch
MOST_UNMEASURED = 4  # units of a training batch whose seconds are unknown or estimated from earlier runs
LEAST = 0.02  # seconds that a training batch may always take; units at most this long favor one unit more
TRAINED_BYTES = 16 << 20  # of the model states of a training batch, which the trainer keeps until they are written
EVALUATED_BYTES = 256 << 20  # of the model states of an evaluation batch
MOST_CHAINED = 256  # training units of a chain


def units_of(steps: Sequence[Sequence[Unit | None]]) -> list[Unit]:
    """The units of a command, step by step."""
    return [unit for step in steps for unit in step if unit is not None]


class UnitBatches:
    """Chooses the next command of a worker with a scheduler: a unit, a unit batch, or a chain of them.

    Evaluations on the same rows form a batch, so that the rows are read once. Training units form a batch where the
    fixed costs of a command, some milliseconds, would matter: where units are short by measurement or by earlier runs.

    The stages of a batch wait for one another, and other workers may run out of stages. So a batch takes at most about
    an equal share of the trainable stages, one share for each worker and one for the first worker to become idle. The
    share shrinks with the work that is left, as in guided self-scheduling (Polychronopoulos and Kuck, IEEE Trans.
    Comput. C-36(12), 1987). A batch also takes at most about as long as that many average units, so that a batch of
    long units does not delay the other stages.

    A chain trains the stages of its first batch further, with the same worker: on other segments, in random order, and in
    the next iteration, where nobody reads the state in between. It takes at most about `chain_seconds`. Where stages
    outnumber workers it also has at most half of an equal share of the passes that are left, so that chains become short
    towards the end of a run and no worker is left with a long one; this is factoring (Hummel, Schonberg and Flynn, Comm.
    ACM 35(8), 1992).
    """

    def __init__(
        self,
        board: Board,
        scheduler: Scheduler,
        key_of: Callable[[StageNumber], Hashable],
        bytes_of: Callable[[StageNumber], int],
        chain_seconds: float = 0.0,
        passes_on: Callable[[Stage, Stage], bool] | None = None,
        may_chain: Callable[[Worker], bool] | None = None,
        threads_of: Callable[[Unit], Hashable] = lambda unit: None,
        may_begin: Callable[[Worker, Unit | None], bool] = lambda worker, unit: True,
    ) -> None:
        """`key_of`: equal for stages whose units take about equally long. `bytes_of`: size of a stage's model state, or
        of the state that it begins with. `chain_seconds`: of a chain, at most; 0: no chains. `passes_on(stage, child)`:
        True where only the child reads the state of its parent; None: never. `may_chain`: the workers whose units may form
        chains; None: all. `threads_of`: equal for units that may be done by one trainer (of a replay; and by its part of
        a device). `may_begin`: whether a worker's command may begin now with a unit; None: the scheduler has no unit for it."""
        self.board, self.scheduler, self.key_of, self.bytes_of = board, scheduler, key_of, bytes_of
        self.chain_seconds, self.passes_on = chain_seconds, passes_on or (lambda stage, child: False)
        self.may_chain, self.threads_of = may_chain or (lambda worker: True), threads_of
        self.may_begin = may_begin
        self.single: set[Unit] = set()  # units that run alone, because a unit of their batch was at fault
        self.seconds: dict[tuple[Hashable, SegmentNumber], float] = {}  # estimate of a training unit
        self.shares: dict[Unit, float] = {}  # running training unit -> its share of its command, 1 for the mean
        self.ended, self.total = 0, 0.0  # training units, and the sum of their seconds
        self.slowdown: float | None = None  # least ratio of measured seconds to those expected from earlier runs

    def choose(self, worker: Worker) -> CommandSteps:
        """The units to do now on an idle worker, marked as running on the board; []: leave the worker idle.

        The steps of the command, each on one segment: the units of a batch, by stage, and the units of a chain's further
        steps. Element i of each step trains the same model further; None: the step leaves that model out.
        """
        unit = self.scheduler.peek(worker)
        begins = self.may_begin(worker, unit)
        if self.scheduler.take(worker, unit if begins else None) is None or unit is None:
            return []
        if unit.kind == "evaluate":
            units = self._evaluations(worker, unit)
            for each in units:
                self.board.start(each)
            return [[*sorted(units, key=lambda u: u.stage)]]
        units = sorted(self._trainings(worker, unit), key=lambda u: u.stage)
        steps: CommandSteps = [[*units], *self._chain(worker, units)]
        all_units = units_of(steps)
        seconds = [self._estimate(unit) for unit in all_units]
        mean = sum(seconds) / len(seconds)
        self.shares.update({each: estimate / mean for each, estimate in zip(all_units, seconds)})
        return steps

    def finished(self, unit: Unit, seconds: float) -> None:
        """Take the seconds of a unit, after the board has marked it as finished: the mean of its command."""
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
            if self.threads_of(other) != self.threads_of(unit):
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
                or self.threads_of(following) != self.threads_of(unit)
                or sum(seconds) + self._estimate(following) > longest
                or size + self.bytes_of(following.stage) > TRAINED_BYTES
            ):
                break
            unit = following
        return units

    # --- chains ---------------------------------------------------------------------------------------------------
    def _chain(self, worker: Worker, first: list[Unit]) -> CommandSteps:
        """The further steps of a chain that begins with a unit batch, marked as running on the board."""
        steps: CommandSteps = []
        if not self.chain_seconds or not self.scheduler.BATCHES or any(unit in self.single for unit in first):
            return steps
        # (a unit on a copy is done for another worker, and ends here)
        if not self.may_chain(worker) or first[0].segment not in self.board.served_segments(worker, "training"):
            return steps
        left, workers = self._passes_left(), len(self.board.workers)
        # (a stage is trained by one worker at a time: with a worker for each, a chain keeps no other worker waiting)
        most_passes = left if self._trainable() <= workers or workers == 1 else left / (2 * workers)
        last, count = [*first], len(first)  # the last unit of each model
        seconds, passes = sum(map(self._estimate, first)), self._passes(first)
        while self._is_measured(last):
            step = self._next_step(worker, last)
            units = units_of([step])
            count, seconds, passes = (
                count + len(units),
                seconds + sum(map(self._estimate, units)),
                passes + self._passes(units),
            )
            if (
                not units
                or count > MOST_CHAINED
                or seconds > self.chain_seconds
                or passes > most_passes
                or not self._is_measured(units)
            ):
                return steps
            for unit in units:
                self.board.start(unit)
            steps.append(step)
            last = [unit or before for unit, before in zip(step, last)]
        return steps

    def _next_step(self, worker: Worker, last: Sequence[Unit]) -> Step:
        """The step that may follow in a chain, after the `last` unit of each model: on the segment that most of them may
        visit next; of equal ones, the first in the random order of the first stage."""
        stages = [self._trained_next(unit) for unit in last]
        visits: Counter[SegmentNumber] = Counter()
        for stage in stages:
            visits.update(self.board.next_visits(stage.number) if stage is not None else ())
        served = self.board.served_segments(worker, "training")
        most = max((visits[segment] for segment in served), default=0)
        if not most:
            return [None] * len(last)
        first = next(stage for stage in stages if stage is not None)
        segment = min(
            (segment for segment in served if visits[segment] == most),
            key=lambda segment: self.scheduler.tie(first.number, segment),
        )
        step: Step = []
        for stage in stages:
            unit = None
            if stage is not None and segment in self.board.next_visits(stage.number):
                unit = self.board.unit(stage.number, "train", "training", segment)
                if (
                    unit in self.single
                    or self.threads_of(unit) != self.threads_of(last[0])
                    or len(last) > 1
                    and self.scheduler.is_urgent(stage.number)
                ):
                    unit = None
            step.append(unit)
        return step

    def _trained_next(self, unit: Unit) -> Stage | None:
        """The stage whose training may follow a running unit in a chain: its own, or its child."""
        stage = self.board.plan.stages[unit.stage]
        if self.board.next_visits(unit.stage):
            return stage
        if len(stage.children) != 1 or stage.evaluated or stage.ends:
            return None
        (child,) = stage.children
        if child.iteration != stage.iteration + 1:  # another trial inherits from the stage
            return None
        return child if child.number in self.board.left and self.passes_on(stage, child) else None

    def _is_measured(self, units: Sequence[Unit]) -> bool:
        """True where the seconds of training units are known from this run, or from earlier runs as this run confirms."""
        return all(self._known(u) is not None or (self.slowdown and self._expected_before(u)) for u in units)

    def _passes(self, units: Sequence[Unit]) -> int:
        return sum(self.board.passes(unit.stage) for unit in units)

    def _passes_left(self) -> int:
        return sum(self.board.passes_left(None, segment) for segment in self.board.segments)

    # --- estimates ------------------------------------------------------------------------------------------------

    def _limits(self) -> tuple[int, float]:
        """How many training units a batch may have, and about how many seconds of them."""
        trainable, workers = self._trainable(), len(self.board.workers)
        if workers == 1:
            return min(MOST, trainable), SECONDS
        share, mean = trainable / (workers + 1), self.total / self.ended if self.ended else None
        most = max(1, min(MOST, round(share) if mean is not None and mean <= LEAST else int(share)))
        return most, SECONDS if mean is None else min(SECONDS, max(LEAST, (most + 0.5) * mean))

    def _trainable(self) -> int:
        """How many stages are trained or could be."""
        return len(self.board.idle) + len(self.board.training)

    def _may_wait(self, unit: Unit) -> bool:
        """True where a training unit may wait for the others of its batch."""
        return self.scheduler.BATCHES and unit not in self.single and not self.scheduler.is_urgent(unit.stage)
