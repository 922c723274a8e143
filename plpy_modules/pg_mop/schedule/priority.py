"""Schedulers that take the stage of least rank from priority queues, so that they scale to many stages."""

from abc import abstractmethod
from collections.abc import Collection, Hashable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Any

from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule.base import SHORT, Scheduler
from pg_mop.schedule.unit import CompiledModel, Dataset, DatasetSegment, SegmentNumber, Server, Unit, Worker

Entry = tuple[Any, float, StageNumber]  # (rank when it was queued, random tie breaker, stage number)
Queue = tuple[
    SegmentNumber, str, Hashable
]  # (segment, "affinity", worker or None) or (segment, "model", compiled model)
EvaluationQueue = tuple[Dataset, SegmentNumber, Worker | None]  # the last one: the worker with affinity


class PriorityScheduler(Scheduler):
    """Takes evaluations that are awaited first, then the idle stage of least `rank`.

    A worker trains on copies of other servers' segments where it has no unit on its own segments, or where clearly more passes
    are left of a copied segment than of its own (Cerebro, VLDB 2020, section 5.5: in Algorithm 1, line 10 asks an
    availability map). So copies fill idle time and relieve slow servers, also by way of servers in between.

    Where units are short and on one server, other evaluations wait until their iteration has been trained: then more of
    them are due, and they read rows once together.

    The scheduler watches its board. Each segment has a heap of the stages that may visit it. An entry holds the rank at
    the time it was queued; when the entry reaches the top, the scheduler compares it with the present rank. So a unit
    costs some heap operations, however many stages there are. A stage that reaches the top while it runs is parked until
    it is idle again. A subclass whose ranks can decrease calls `requeue`.

    On a board where every worker does all segments of its server (`board.anywhere`), each compiled model has an *affinity*
    for one worker of each server: the first worker there that took a stage of it. Each pair of segment and worker has its
    own heap, and one heap per segment holds the models without affinity. A worker takes stages with affinity for a busy
    worker only if it finds no other stage. So most models are compiled on one worker, and no worker idles for that reason.
    A worker leaves a short evaluation of a model that it has not compiled to the worker with affinity while that worker
    evaluates the same model.
    """

    ANYWHERE = True
    COMPILE_SECONDS = 0.4  # that a worker needs for a model that it has not had
    BEHIND = (
        2,
        0.05,
    )  # passes, and share of its passes, by which a copied segment is behind a worker's own: more is clear

    QUEUES_BY_MODEL = False  # keeps heaps of the stages that share a compiled model, too

    def prepare(self) -> None:
        self.affinity: dict[tuple[Server, CompiledModel], Worker] = {}
        self.queues: dict[Queue, list[Entry]] = {}
        self.evaluations: dict[EvaluationQueue, list[Entry]] = {}  # ranks: (not awaited, iteration)
        self.least_seconds: dict[tuple[str, CompiledModel], float] = {}  # (kind of unit, model) -> of a unit
        self.compiled: set[tuple[Worker, CompiledModel]] = set()  # models that a worker has had
        self.evaluating: dict[Worker, CompiledModel | None] = {}  # the model that a worker evaluates
        self.parked: dict[StageNumber, list[tuple[Queue, float]]] = {}  # -> (queue, tie breaker) to return to
        self.strict = False  # workers take no stage with affinity for another worker
        self.units, self.seconds = 0, 0.0  # units that have ended, and the sum of their seconds

    def watch(self) -> None:
        self.board.watch(self)

    @abstractmethod
    def rank(self, stage: Stage) -> Any:
        """The stages of least rank go first; comparable values."""

    # --- messages of the board ------------------------------------------------------------------------------------
    def added(self, stages: Sequence[Stage]) -> None:
        """These stages are wanted now, parents first."""

    def changed(self) -> None:
        """The work that is left has changed for another reason than the end of a unit."""

    def may_train(self, stage: Stage, segments: Sequence[SegmentNumber]) -> None:
        """The stage may be trained on these segments from now on, whenever it is idle."""
        rank = self.rank(stage)
        model = self.model_of(stage.number) if self.QUEUES_BY_MODEL or self.affinity else None
        for segment in segments:
            entry = (rank, self.tie(stage.number, segment), stage.number)
            owner = self.affinity.get((self.board.server_of["training", segment], model))
            heappush(self.queues.setdefault((segment, "affinity", owner), []), entry)
            if self.QUEUES_BY_MODEL and model is not None:
                heappush(self.queues.setdefault((segment, "model", model), []), entry)

    def served(self, workers: Sequence[Worker]) -> None:
        """The board's workers from now on. Models with affinity for other workers lose it."""
        self.evaluating, self.compiled = {}, {pair for pair in self.compiled if pair[0] in workers}
        gone = set(self.affinity.values()) - set(workers)
        self.affinity = {key: worker for key, worker in self.affinity.items() if worker not in gone}
        moved: dict[Queue, Queue] = {
            queue: (queue[0], "affinity", None) for queue in self.queues if queue[1] == "affinity" and queue[2] in gone
        }
        for queue, target in moved.items():
            for entry in self.queues.pop(queue):
                heappush(self.queues.setdefault(target, []), entry)
        if moved:
            self.parked = {
                number: [(moved.get(queue, queue), tie) for queue, tie in entries]
                for number, entries in self.parked.items()
            }
        for dataset, segment, worker in [key for key in self.evaluations if key[2] in gone]:
            for entry in self.evaluations.pop((dataset, segment, worker)):
                heappush(self.evaluations.setdefault((dataset, segment, None), []), entry)

    def idle(self, stage: Stage) -> None:
        """No unit trains the stage any more; it may be trained further."""
        if entries := self.parked.pop(stage.number, None):
            rank = self.rank(stage)
            for queue, tie in entries:
                heappush(self.queues.setdefault(queue, []), (rank, tie, stage.number))

    def may_evaluate(self, stage: Stage, keys: Sequence[DatasetSegment]) -> None:
        """The stage may be evaluated on these segments from now on."""
        tie = self.random.random()
        model = self.model_of(stage.number) if self.affinity else None
        # (with several servers, one server's evaluation waits for another's: all of them count as awaited)
        rank = not (self.board.last_alone or self.board.is_awaited(stage)), stage.iteration
        for dataset, segment in keys:
            worker = self.affinity.get((self.board.server_of[dataset, segment], model))
            heappush(self.evaluations.setdefault((dataset, segment, worker), []), (rank, tie, stage.number))

    def finished(self, unit: Unit, seconds: float) -> None:
        self.units, self.seconds = self.units + 1, self.seconds + seconds
        if self.affinity:
            key = unit.kind, self.model_of(unit.stage)
            self.least_seconds[key] = min(seconds, self.least_seconds.get(key, seconds))

    # --- choosing -------------------------------------------------------------------------------------------------
    def arrange(self, workers: Collection[Worker]) -> Iterator[Worker]:
        order = self.order(workers)
        if not self.board.anywhere or len(order) == 1:
            yield from order
            return
        self.strict = True  # the worker with affinity may be idle, too
        try:
            yield from order
        finally:
            self.strict = False
        yield from order

    def choose(self, worker: Worker) -> Unit | None:
        return self.take(worker, self.peek(worker))

    def peek(self, worker: Worker) -> Unit | None:
        return self._best(worker)

    def take(self, worker: Worker, unit: Unit | None) -> Unit | None:
        if self.board.anywhere:
            model = None if unit is None else self.model_of(unit.stage)
            self.evaluating[worker] = None if unit is None or unit.kind == "train" else model
            if unit is not None and model is not None:
                self.compiled.add((worker, model))
                if unit.kind == "train":
                    self.affinity.setdefault((self.board.server(worker), model), worker)
        return unit

    def _best(self, worker: Worker) -> Unit | None:
        return self.evaluation(worker, True) or self._or_evaluate(
            worker, self.urgent_visit(worker) or self.reserved_visit(worker) or self._train(worker)
        )

    def _train(self, worker: Worker) -> Unit | None:
        if not self.board.copies:
            return self.train(worker)
        own = max((self.board.passes_left(None, s) for s in self.board.served_segments(worker, "training")), default=0)
        return (
            self.train_on_copy(worker, own)
            or self.train(worker)
            # (its own server may have stages with affinity for others)
            or (None if self.strict else self.train_on_copy(worker))
        )

    def train_on_copy(self, worker: Worker, ahead_of: int | None = None) -> Unit | None:
        """The training unit of least rank on a segment of another server that the worker's server has a copy of: of the
        segment with the most passes left. `ahead_of`: only of segments with clearly more passes left."""
        least, share = self.BEHIND
        for segment in sorted(self.board.copied(worker), key=lambda s: (-self.board.passes_left(None, s), s)):
            left = self.board.passes_left(None, segment)
            if ahead_of is not None and left - ahead_of <= max(least, share * left):
                return None
            owners = self._owners_at(self.board.server_of["training", segment])
            if unit := self._least_with_affinity(worker, [segment], [None, *owners]):
                return unit
        return None

    def _or_evaluate(self, worker: Worker, unit: Unit | None) -> Unit | None:
        """Returns the training unit, or an evaluation of an earlier iteration. Any evaluation may come first without a
        training unit, or if units are long: then reading rows once for several evaluations saves little."""
        late = self.evaluation(worker)
        return (
            late
            if late is not None
            and (unit is None or late.iteration < unit.iteration or self.seconds >= SHORT * self.units)
            else unit
        )

    def coming(self, worker: Worker) -> Unit | None:
        unit = self.evaluation(worker, True)
        if unit is None and self.urgent_visit(worker) is None:
            unit = self._or_evaluate(worker, self._train(worker))
        return unit

    def evaluation(self, worker: Worker, awaited: bool = False) -> Unit | None:
        """The evaluation of the earliest iteration to start on a worker, or None. `awaited`: only awaited ones."""
        best: Entry | None = None
        best_key: DatasetSegment | None = None
        for key in self.board.served(worker):
            for owner in {None, *self.affinity.values()}:
                heap: list[Entry] = self.evaluations.get((*key, owner), [])
                if self.strict and owner is not None and owner != worker and key in self.board.served(owner):
                    continue
                deferred = []
                while heap and not (awaited and heap[0][0][0]):
                    if not self.board.may_evaluate(heap[0][2], *key):
                        heappop(heap)
                    elif self._defers(heap[0][2], key, owner, worker):
                        deferred.append(heappop(heap))
                    else:
                        if best is None or heap[0] < best:
                            best, best_key = heap[0], key
                        break
                for entry in deferred:
                    heappush(heap, entry)
        if best is None or best_key is None:
            return None
        return self.board.unit(best[2], "evaluate", *best_key)

    def defers(self, unit: Unit, worker: Worker) -> bool:
        return self._defers(unit.stage, (unit.dataset, unit.segment), self._owner(unit.stage, worker), worker)

    def _defers(self, number: StageNumber, key: DatasetSegment, owner: Worker | None, worker: Worker) -> bool:
        """True where `worker` leaves the evaluation of a stage to the worker with affinity, `owner`."""
        if owner is None or owner == worker or key not in self.board.served(owner):
            return False
        model = self.model_of(number)
        seconds = self.least_seconds.get(
            ("evaluate", model), self.least_seconds.get(("train", model), self.COMPILE_SECONDS)
        )
        return self.strict or (
            self.evaluating.get(owner) == model
            and (worker, model) not in self.compiled
            and seconds < self.COMPILE_SECONDS
        )

    def urgent_visit(self, worker: Worker) -> Unit | None:
        """A training unit that must not wait for others, or None."""
        return None

    def reserved_visit(self, worker: Worker) -> Unit | None:
        """A training unit of the stage that is reserved for the worker, because its state has been read ahead."""
        number = self.board.reserved_for(worker)
        return None if number is None or self.board.is_running(number) else self.visit(number, worker)

    def visit(self, number: StageNumber, worker: Worker) -> Unit | None:
        """The first training unit of a stage, in its random order, that a worker can do; None if there is none."""
        segments = [s for s in self.board.served_segments(worker, "training") if self.board.may_train(number, s)]
        if not segments:
            return None
        return self.board.unit(number, "train", "training", min(segments, key=lambda s: self.tie(number, s)))

    def train(self, worker: Worker) -> Unit | None:
        """The training unit of least rank. Stages with affinity for other workers come last."""
        segments = self.board.served_segments(worker, "training")
        return self._least_with_affinity(worker, segments, (None, worker)) or (
            None
            if self.strict or not self.affinity
            else self._least_with_affinity(worker, segments, self._others(worker))
        )

    def _owner(self, number: StageNumber, worker: Worker) -> Worker | None:
        """The worker on this worker's server that a stage's compiled model has affinity for."""
        return self.affinity.get((self.board.server(worker), self.model_of(number)))

    def _others(self, worker: Worker) -> list[Worker]:
        """The other workers on this worker's server that models have affinity for."""
        return [owner for owner in self._owners_at(self.board.server(worker)) if owner != worker]

    def _owners_at(self, name: Server) -> list[Worker]:
        """The workers on a server that models have affinity for."""
        return sorted({owner for (server, _), owner in self.affinity.items() if server == name})

    def _least_with_affinity(
        self, worker: Worker, segments: Sequence[SegmentNumber], owners: Sequence[Worker | None]
    ) -> Unit | None:
        """The training unit of least rank of models with affinity for these workers (None: for no worker yet)."""
        return self.least(worker, [(segment, "affinity", owner) for segment in segments for owner in owners])

    def may_do(self, number: StageNumber, worker: Worker) -> bool:
        """True unless a stage's compiled model has affinity for another worker on the same server."""
        return self._owner(number, worker) in (None, worker)

    def next_in_batch(self, worker: Worker, segment: SegmentNumber) -> Unit | None:
        best = self._best(worker)
        if (
            best is not None
            and best.kind == "train"
            and best.segment != segment
            and not (self.urgent_visit(worker) or self.reserved_visit(worker))
        ):
            # of the units of equal rank, prefer one on the batch's segment
            owners = (None, worker) if self.may_do(best.stage, worker) else self._others(worker)
            local = self._least_with_affinity(worker, [segment], owners)
            if (
                local is not None
                and self._rank_of(local) <= self._rank_of(best)
                and self.board.reserved(local.stage) in (None, worker)
            ):
                best = local
        if (
            best is None
            or (best.kind, best.segment) != ("train", segment)
            or (
                # a model that the worker has to compile takes it longer: leave it to the first idle worker
                self.board.anywhere and (worker, self.model_of(best.stage)) not in self.compiled
            )
        ):
            return None
        return self.take(worker, best)

    def _rank_of(self, unit: Unit) -> Any:
        return self.rank(self.board.plan.stages[unit.stage])

    def least(self, worker: Worker, queues: Sequence[Queue]) -> Unit | None:
        """The training unit of least rank in some queues; stages that are reserved for other workers come last."""
        free: tuple[Entry, SegmentNumber] | None = None
        reserved: tuple[Entry, SegmentNumber] | None = None
        for queue in queues:
            segment = queue[0]
            heap, skipped = self.queues.get(queue, []), []
            while heap and (entry := self.top(heap, queue)) is not None:
                if self.board.reserved(entry[2]) in (None, worker):
                    if free is None or entry < free[0]:
                        free = entry, segment
                    break
                if reserved is None or entry < reserved[0]:
                    reserved = entry, segment
                skipped.append(heappop(heap))
            for entry in skipped:
                heappush(heap, entry)
        found = free or reserved
        return None if found is None else self.board.unit(found[0][2], "train", "training", found[1])

    def top(self, heap: list[Entry], queue: Queue) -> Entry | None:
        """The entry of the idle stage with the least present rank; the other entries before it are moved away."""
        board, segment = self.board, queue[0]
        server = board.server_of["training", segment]
        while heap:
            rank, tie, number = heap[0]
            if not board.may_train(number, segment):
                heappop(heap)
            elif (
                self.affinity
                and queue[1:] == ("affinity", None)
                and (owner := self.affinity.get((server, self.model_of(number)))) is not None
            ):
                heappush(self.queues.setdefault((segment, "affinity", owner), []), heappop(heap))
            elif board.is_running(number):
                heappop(heap)
                self.parked.setdefault(number, []).append((queue, tie))
            elif (now := self.rank(board.plan.stages[number])) > rank:
                heapreplace(heap, (now, tie, number))
            else:
                return heap[0]
        return None

    def requeue(self, stage: Stage) -> None:
        """Queue a stage again, because its rank has decreased."""
        if self.board.trains(stage.number):
            self.may_train(stage, [s for s in self.board.segments if self.board.may_train(stage.number, s)])
