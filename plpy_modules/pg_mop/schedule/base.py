"""The interface of the schedulers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from random import Random

from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule.board import Board
from pg_mop.schedule.unit import CompiledModel, SegmentNumber, Unit, Worker

SHORT = 0.2  # seconds of a unit; the fixed costs around a longer unit hardly matter


class Scheduler(ABC):
    """Chooses among the units that a :class:`~pg_mop.schedule.board.Board` allows.

    A scheduler is seeded and has no clock: the caller reports how long units took. A subclass needs a name and `choose`:

    >>> from pg_mop.plan.stages import Plan
    >>> from pg_mop.schedule.simulator import makespan, simulate
    >>> class FirstEligible(Scheduler):
    ...     name = "first-eligible"
    ...
    ...     def choose(self, worker):
    ...         return next(iter(self.board.eligible(worker)), None)
    >>> plan = Plan()
    >>> for mst_key in (1, 2, 3):
    ...     stages = plan.ask(mst_key, f"root of {mst_key}", lambda iteration: ("", ""), until=2)
    >>> board = Board(plan, segments=[0, 1])
    >>> visits = simulate(board, FirstEligible(board, seed=1), lambda unit: 1.5)
    >>> board.done, len(visits), makespan(visits)
    (True, 12, 9.0)
    """

    name: str
    BATCHES = True  # several training units of a worker may form a unit batch
    ANYWHERE = False  # supports boards on which every worker does all segments

    def __init__(
        self,
        board: Board,
        seed: int | float | str,
        model_of: Callable[[StageNumber], CompiledModel] | None = None,
        expected: Callable[[Stage], float] | None = None,
    ) -> None:
        """`model_of`: the compiled model of a stage, equal for stages that share it; None: unknown. `expected`: seconds
        that a unit of the stage should take by earlier runs, or 0."""
        self.board, self.seed, self.random = board, seed, Random(seed)
        self.model_of: Callable[[StageNumber], CompiledModel] = model_of or (lambda number: None)
        self.expected: Callable[[Stage], float] = expected or (lambda stage: 0.0)
        self.prepare()
        self.watch()

    def prepare(self) -> None:  # noqa: B027 (some have no fields of their own)
        """Set the subclass' own fields; after those above, and before anything is told of the board."""

    def watch(self) -> None:  # noqa: B027
        """Begin to hear what the board tells."""

    def tie(self, number: StageNumber, segment: SegmentNumber) -> float:
        """A random number in [0, 1) that only the seed, the stage and the segment decide.

        A stage visits the segments in the order of these numbers where nothing else decides. So the order of a run with
        one configuration does not depend on the time that its units take.
        """
        digest = blake2b(f"{self.seed} {number} {segment}".encode(), digest_size=6).digest()
        return int.from_bytes(digest, "big") / (1 << 48)

    @abstractmethod
    def choose(self, worker: Worker) -> Unit | None:
        """The unit to start now on an idle worker, or None to leave the worker idle."""

    def peek(self, worker: Worker) -> Unit | None:
        """The unit that an idle worker would start now; `take` then notes whether it does. Both together are `choose`."""
        return self.choose(worker)

    def take(self, worker: Worker, unit: Unit | None) -> Unit | None:
        """Note that a worker starts the unit that `peek` has returned; None: it stays idle."""
        return unit

    def finished(self, unit: Unit, seconds: float) -> None:  # noqa: B027 (few schedulers need it)
        """Take the seconds of a unit, after the board has marked it as finished."""

    def arrange(self, workers: Collection[Worker]) -> Iterable[Worker]:
        """Workers that are idle at the same time, in the order of asking for their units. A worker may occur twice: the
        caller asks again for it if it got no unit."""
        return self.order(workers)

    def order(self, workers: Collection[Worker]) -> list[Worker]:
        """These workers, each once."""
        return sorted(workers)

    def coming(self, worker: Worker) -> Unit | None:
        """The unit that `choose` would return now, if it can wait for the worker; else None."""
        return None

    def next_in_batch(self, worker: Worker, segment: SegmentNumber) -> Unit | None:
        """The next training unit on the same segment for the worker's unit batch; None where another unit comes
        first."""
        unit = self.choose(worker)
        return unit if unit is not None and (unit.kind, unit.segment) == ("train", segment) else None

    def is_urgent(self, number: StageNumber) -> bool:
        """True where the stage must not wait for other units of a batch."""
        return False

    def defers(self, unit: Unit, worker: Worker) -> bool:
        """True where `worker` leaves an evaluation to another worker."""
        return False
