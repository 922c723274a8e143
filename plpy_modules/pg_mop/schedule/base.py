"""The interface of the schedulers, and what those of them share that scale."""

from abc import ABC, abstractmethod
from heapq import heappop, heappush, heapreplace
from random import Random

from pg_mop.schedule.cost import Costs

SHORT = 0.2  # seconds of a unit, from which on what is around it is little


class Scheduler(ABC):
    """Chooses among the units that a :class:`~pg_mop.schedule.board.Board` allows. Seeded, without a clock: it is told
    what the units took."""

    name: str
    GROUPS = True  # training units of a place may go together
    ANYWHERE = False  # knows what to do where every place does all segments

    def __init__(self, board, seed, alike=None, expected=None):
        """`alike`: a callable, stage number -> what is equal for stages that share a compiled model; None: unknown.
        `expected`: a callable, stage -> seconds that its units should take, or 0."""
        self.board, self.random, self.alike = board, Random(seed), alike or (lambda number: None)
        self.expected = expected or (lambda stage: 0.0)

    def finished(self, unit, seconds):  # noqa: B027 (few need to know)
        """Take note of what a unit took, after the board has."""

    def arrange(self, workers):
        """The order in which to ask for units for places that are idle at the same time; who has got none may be asked
        once more."""
        return self.in_turn(workers)

    def in_turn(self, workers):
        """These places, each once."""
        return sorted(workers)

    def coming(self, worker):
        """The unit that `choose` would give now, if waiting for the place does it no harm; else None."""
        return None

    def following(self, worker, segment):
        """The training unit to do on a segment together with the one before, there, too; None where another comes
        first."""
        unit = self.choose(worker)
        return unit if unit is not None and (unit.kind, unit.segment) == ("train", segment) else None

    def hurries(self, number):
        """True where a stage must not wait for others."""
        return False

    def leaves(self, unit, worker):
        """True where `place` leaves an evaluation to another."""
        return False

    @abstractmethod
    def choose(self, worker):
        """The unit to run now at the idle `place`, or None to leave it idle."""


class Ranked(Scheduler):
    """Evaluations that somebody waits for first, then the idle stage of the least `rank`. Where units are short, on one
    server, other evaluations come when their iteration has been trained: by then more are due, which read rows once.

    A board's watcher. For every segment there is a heap of the stages that may visit it. An entry holds the rank that
    the stage had when it was put there; when it comes to the top, the rank is looked at again. So a unit costs some
    steps of a heap, however many stages there are. What is at the top but at work elsewhere is put aside until it is
    idle again. Where a rank becomes smaller, `again` must put the stage there once more.

    Where every place does all segments (`board.anywhere`), what is compiled has a home, the place that was the first to
    take a stage of it: there is a heap for every segment and home, and one for what has none yet. A place takes from
    others' homes only where it has nothing else and they are at work: so most is compiled in one place, and none is
    idle for it. A short evaluation of a model that it has not met it leaves to its home while that evaluates the same.
    """

    ANYWHERE = True
    MEETS = 0.4  # seconds that a place takes for a model that it has not had

    WARM = False  # looks among the stages that share a compiled model, too

    def __init__(self, board, seed, alike=None, expected=None):
        super().__init__(board, seed, alike, expected)
        self.homes = {}  # compiled model -> place
        # (segment, "at", home), and (segment, "like", compiled model) -> heap of (rank, at random, stage number)
        self.lanes = {}
        # (dataset, segment, home) -> heap of ((nobody waits for it, iteration), at random, stage number)
        self.evaluations = {}
        self.took = {}  # (kind of unit, compiled model) -> the least seconds of a unit
        self.met = set()  # (place, compiled model) of all that was done
        self.evaluating = {}  # place -> the compiled model that it evaluates, or None
        self.aside = {}  # stage number -> [(lane, at random), ...] of the entries that wait for it
        self.own_alone = False  # nobody takes from others' homes
        self.units, self.seconds = 0, 0.0  # units that have ended, and what they took
        board.watch(self)

    @abstractmethod
    def rank(self, stage):
        """Smaller goes first; comparable."""

    # --- what the board tells -------------------------------------------------------------------------------------
    def added(self, stages):
        """Somebody wants these, parents first."""

    def changed(self):
        """What is left has changed otherwise than by units that have ended."""

    def may_train(self, stage, segments):
        """These visits of a stage may be done from now on, whenever it is idle."""
        rank, key = self.rank(stage), self.alike(stage.number) if self.WARM or self.homes else None
        for segment in segments:
            entry = (rank, self.random.random(), stage.number)
            heappush(self.lanes.setdefault((segment, "at", self.homes.get(key)), []), entry)
            if self.WARM and key is not None:
                heappush(self.lanes.setdefault((segment, "like", key), []), entry)

    def served(self, workers):
        """These places are there from now on. What was at home elsewhere has none any more."""
        self.evaluating, self.met = {}, {met for met in self.met if met[0] in workers}
        gone = set(self.homes.values()) - set(workers)
        self.homes = {key: home for key, home in self.homes.items() if home not in gone}
        moved = {lane: (lane[0], "at", None) for lane in self.lanes if lane[1] == "at" and lane[2] in gone}
        for lane, to in moved.items():
            for entry in self.lanes.pop(lane):
                heappush(self.lanes.setdefault(to, []), entry)
        if moved:
            self.aside = {
                number: [(moved.get(lane, lane), tie) for lane, tie in entries]
                for number, entries in self.aside.items()
            }
        for lane in [lane for lane in self.evaluations if lane[2] in gone]:
            for entry in self.evaluations.pop(lane):
                heappush(self.evaluations.setdefault((*lane[:2], None), []), entry)

    def idle(self, stage):
        """A stage that may train is not at work any more."""
        if entries := self.aside.pop(stage.number, None):
            rank = self.rank(stage)
            for lane, tie in entries:
                heappush(self.lanes.setdefault(lane, []), (rank, tie, stage.number))

    def may_evaluate(self, stage, keys):
        """A stage may be evaluated on these from now on."""
        tie, home = self.random.random(), self.homes.get(self.alike(stage.number)) if self.homes else None
        # (of several servers one does its own only when another has: none of these is to be late)
        rank = not (self.board.last_alone or self.board.is_awaited(stage)), stage.iteration
        for key in keys:
            heappush(self.evaluations.setdefault((*key, home), []), (rank, tie, stage.number))

    def finished(self, unit, seconds):
        self.units, self.seconds = self.units + 1, self.seconds + seconds
        if self.homes:
            key = unit.kind, self.alike(unit.stage)
            self.took[key] = min(seconds, self.took.get(key, seconds))

    # --- choosing -------------------------------------------------------------------------------------------------
    def arrange(self, workers):
        order = self.in_turn(workers)
        if not self.board.anywhere or len(order) == 1:
            yield from order
            return
        self.own_alone = True  # at home somebody else may be idle, too
        try:
            yield from order
        finally:
            self.own_alone = False
        yield from order

    def choose(self, worker):
        return self._taken(worker, self._best(worker))

    def _taken(self, worker, unit):
        """Note what a place does now: that unit."""
        if self.board.anywhere:
            key = None if unit is None else self.alike(unit.stage)
            self.evaluating[worker] = None if key is None or unit.kind == "train" else key
            if key is not None:
                self.met.add((worker, key))
                if unit.kind == "train":
                    self.homes.setdefault(key, worker)
        return unit

    def _best(self, worker):
        return self.evaluation(worker, True) or self._or_evaluate(
            worker, self.before_all(worker) or self.kept(worker) or self.train(worker)
        )

    def _or_evaluate(self, worker, unit):
        """In place of a training unit, or of none: an evaluation that nobody waits for, of an earlier iteration. Where
        units are long it does not wait either: there is little around it then."""
        late = self.evaluation(worker)
        return (
            late
            if late is not None
            and (unit is None or late.iteration < unit.iteration or self.seconds >= SHORT * self.units)
            else unit
        )

    def coming(self, worker):
        unit = self.evaluation(worker, True)
        if unit is None and self.before_all(worker) is None:
            unit = self._or_evaluate(worker, self.train(worker))
        return unit

    def evaluation(self, worker, awaited=False):
        """The evaluation to be begun at a place, of the earliest iteration; None where none is due. `awaited`: one that
        somebody waits for."""
        best, at = None, None
        for key in self.board.served(worker):
            for home in {None, *self.homes.values()}:
                heap, left = self.evaluations.get((*key, home), ()), []
                if self.own_alone and home not in (None, worker) and key in self.board.served(home):
                    continue
                while heap and not (awaited and heap[0][0][0]):
                    if not self.board.may_evaluate(heap[0][2], *key):
                        heappop(heap)
                    elif self._leaves(heap[0][2], key, home, worker):
                        left.append(heappop(heap))
                    else:
                        if best is None or heap[0] < best:
                            best, at = heap[0], key
                        break
                for entry in left:
                    heappush(heap, entry)
        return best and self.board.unit(best[2], "evaluate", *at)

    def leaves(self, unit, worker):
        return self._leaves(unit.stage, (unit.dataset, unit.segment), self.homes.get(self.alike(unit.stage)), worker)

    def _leaves(self, number, key, home, worker):
        """True where `place` leaves the evaluation of a stage to the home of its compiled model."""
        if home in (None, worker) or key not in self.board.served(home):
            return False
        model = self.alike(number)
        seconds = self.took.get(("evaluate", model), self.took.get(("train", model), self.MEETS))
        return self.own_alone or (
            self.evaluating.get(home) == model and (worker, model) not in self.met and seconds < self.MEETS
        )

    def before_all(self, worker):
        """A visit that must not wait for others; None where there is none."""

    def kept(self, worker):
        """A visit of the stage that is kept for the place: its state has been read."""
        number = self.board.kept(worker)
        return None if number is None or self.board.is_running(number) else self.visit(number, worker)

    def visit(self, number, worker):
        """A visit of a stage, at random among those that it may do at a place; None where there is none."""
        segments = [s for s in self.board.served(worker, "training") if self.board.may_train(number, s)]
        return self.board.unit(number, "train", "training", self.random.choice(segments)) if segments else None

    def train(self, worker):
        """The visit of the least rank; of stages that are kept for other places only where there is nothing else."""
        segments = self.board.served(worker, "training")
        return self._least_of(worker, segments, (None, worker)) or (
            None
            if self.own_alone or not self.homes
            else self._least_of(worker, segments, sorted(set(self.homes.values()) - {worker}))
        )

    def _least_of(self, worker, segments, homes):
        """The visit of the least rank of what has one of these homes (None: none yet)."""
        return self.least(worker, [((segment, "at", home), segment) for segment in segments for home in homes])

    def is_at_home(self, number, worker):
        """True unless a stage's compiled model is at home elsewhere."""
        return self.homes.get(self.alike(number), worker) == worker

    def following(self, worker, segment):
        best = self._best(worker)
        if (
            best is not None
            and best.kind == "train"
            and best.segment != segment
            and not (self.before_all(worker) or self.kept(worker))
        ):
            # what it serves besides is no better: of those whose turn it is, one that is on this segment, too
            wanted = self._least_of(worker, [segment], (None, worker))
            if (
                wanted is not None
                and self._turn(wanted) <= self._turn(best)
                and self.board.reserved(wanted.stage) in (None, worker)
            ):
                best = wanted
        if (
            best is None
            or (best.kind, best.segment) != ("train", segment)
            or (
                # what it has not met takes it longer: it is for whoever is idle first
                self.board.anywhere and (worker, self.alike(best.stage)) not in self.met
            )
        ):
            return None
        return self._taken(worker, best)

    def _turn(self, unit):
        return self.rank(self.board.plan.stages[unit.stage])

    def least(self, worker, lanes):
        """The visit of the least rank in some lanes: pairs of (lane, segment)."""
        free, others = None, None
        for lane, segment in lanes:
            heap, kept = self.lanes.get(lane), []
            while heap and (entry := self.top(heap, lane, segment)) is not None:
                if self.board.reserved(entry[2]) in (None, worker):
                    if free is None or entry < free[0]:
                        free = entry, segment
                    break
                if others is None or entry < others[0]:
                    others = entry, segment
                kept.append(heappop(heap))
            for entry in kept:
                heappush(heap, entry)
        entry, segment = free or others or (None, None)
        return entry and self.board.unit(entry[2], "train", "training", segment)

    def top(self, heap, lane, segment):
        """The entry of the stage that has the least rank now, and is idle."""
        board = self.board
        while heap:
            rank, tie, number = heap[0]
            if not board.may_train(number, segment):
                heappop(heap)
            elif self.homes and lane[1:] == ("at", None) and (home := self.homes.get(self.alike(number))) is not None:
                heappush(self.lanes.setdefault((segment, "at", home), []), heappop(heap))
            elif board.is_running(number):
                heappop(heap)
                self.aside.setdefault(number, []).append((lane, tie))
            elif (now := self.rank(board.plan.stages[number])) > rank:
                heapreplace(heap, (now, tie, number))
            else:
                return heap[0]
        return None

    def again(self, stage):
        """The stage's rank has become smaller."""
        if self.board.trains(stage.number):
            self.may_train(stage, [s for s in self.board.segments if self.board.may_train(stage.number, s)])


class Timed(Ranked):
    """One that knows what stages take; a stage whose path would outlast the rest of the run goes before all others."""

    URGENT = 0.9  # of the work that is left at a place: from there on a path cannot wait for others

    def __init__(self, board, seed, alike=None, expected=None):
        self.costs = Costs(
            board,
            lambda stage: None if (key := self.alike(stage.number)) is None else (key, stage.parameters[1]),
            expected,
        )
        self.waiting = []  # heap of (-seconds left, stage number): those that can wait
        self.urgent, self.at_work = {}, set()  # those that cannot; and of them who is known to be at work
        super().__init__(board, seed, alike, expected)

    def added(self, stages):
        for number in sorted(self.costs.added(stages)):
            self.again(self.board.plan.stages[number])

    def changed(self):
        self.costs.news = True

    def may_train(self, stage, segments):
        self.costs.opened(stage)
        self.weigh(stage)
        super().may_train(stage, segments)

    def finished(self, unit, seconds):
        super().finished(unit, seconds)
        if unit.kind == "train":
            self.at_work.discard(unit.stage)  # its last visit, or it would be idle
            if self.costs.finished(unit, seconds):
                self.weigh(self.board.plan.stages[unit.stage])
            if self.costs.news and self.costs.settle(self.settling()):
                self.settled()

    def settling(self):
        """How many stages, or as much, `settled` is going to look at."""
        return 0

    def idle(self, stage):
        if stage.number in self.at_work:
            self.at_work.remove(stage.number)
            self.urgent[stage.number] = None
        super().idle(stage)

    def settled(self):
        """Everything has been estimated anew."""
        self.waiting, self.urgent, self.at_work = [], {}, set()
        for number in self.board.open("train"):
            self.weigh(self.board.plan.stages[number])

    def weigh(self, stage):
        """Watch for the moment when the stage cannot wait."""
        left = self.costs.left(stage.number)
        if left is not None:
            heappush(self.waiting, (-left, stage.number))

    def hurries(self, number):
        return number in self.urgent or number in self.at_work

    def limit(self):
        """Seconds of a path from which on a stage cannot wait."""
        return self.URGENT * self.costs.all_left() / len(self.board.workers)

    def before_all(self, worker):
        limit, waiting, left_of = self.limit(), self.waiting, self.costs.left
        while waiting and -waiting[0][0] >= limit:
            number = heappop(waiting)[1]
            if self.board.visits_left(number):
                if left_of(number) >= limit:
                    self.urgent[number] = None
                else:
                    heappush(waiting, (-left_of(number), number))
        best, longest = None, None
        for number in list(self.urgent):
            if not self.board.visits_left(number):
                del self.urgent[number]
                continue
            if self.board.is_running(number):
                del self.urgent[number]
                self.at_work.add(number)
                continue
            left = left_of(number)
            if left < limit:
                del self.urgent[number]
                heappush(waiting, (-left, number))
            elif self.board.reserved(number) in (None, worker) and self.is_at_home(number, worker):
                rank = left, self.random.random()
                if (best is None or rank > longest) and (unit := self.visit(number, worker)) is not None:
                    best, longest = unit, rank
        return best
