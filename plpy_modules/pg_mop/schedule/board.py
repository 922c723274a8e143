"""The units that may run now: the only module that knows the rules of model hopper parallelism.

A wanted stage visits every segment once, on one worker at a time. After that it is evaluated, if a trial wants its
metrics, on many segments at once. (The stage of a fold visits the segments outside its fold, and is evaluated on its
fold.) Then its children begin. Children of one parent train side by side, because they only
read the parent's state. Pure Python: the executor and the simulator drive the same object. Only `eligible` loops over
all stages, so the cost of a unit does not grow with their number.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

from pg_mop.plan.folds import visited
from pg_mop.plan.stages import Iteration, MstKey, Plan, Stage, StageNumber
from pg_mop.schedule.assignment import Assignment
from pg_mop.schedule.passes import PassCounter
from pg_mop.schedule.unit import Dataset, DatasetSegment, Kind, SegmentNumber, Server, Unit, Worker
from pg_mop.schedule.watcher import BoardWatcher


class StageWork:
    """The work that is left of a stage that has begun or may begin."""

    __slots__ = ("stage", "todo", "training", "due", "evaluating", "open")

    def __init__(self, stage: Stage, todo: set[SegmentNumber]) -> None:
        self.stage = stage
        self.todo = todo  # segments that the stage has not visited
        self.training: list[Unit] = []  # the training units that run: one, or those of a chain in their order
        self.due: set[DatasetSegment] | None = None  # evaluations to begin; None until the stage is trained
        self.evaluating: Counter[Dataset] = Counter()  # evaluations that run
        self.open: Kind | None = None  # the kind of units that may start now


class Board(Assignment):
    """The state of a run's units."""

    shares_states = False  # a unit reads the states of other stages
    searched = False  # results of evaluations decide the next requests (set it before `watch`)

    def __init__(
        self,
        plan: Plan,
        segments: Sequence[SegmentNumber],
        validation_segments: Sequence[SegmentNumber] = (),
        servers: Mapping[DatasetSegment, Server] | None = None,
        others: Iterable[Server] = (),
        held_out: Callable[[Stage], Collection[SegmentNumber]] | None = None,
    ) -> None:
        """`plan`: the search plan, whose wanted stages are to be run; the board sets `trained`, `scored` and `failed` of
        its stages. `held_out`: the training segments that a stage leaves out, and is evaluated on in place of all; empty
        for a stage of no fold. The other arguments are those of Assignment."""
        self.plan = plan
        self._held_out: Callable[[Stage], Collection[SegmentNumber]] = held_out or (lambda stage: ())
        self._watchers: list[BoardWatcher] = []
        super().__init__(segments, validation_segments, servers, others)
        # The worker that evaluates the last segment of a dataset must know the results of the other servers.
        self.last_alone = len(self._all) > 1
        self._works: dict[StageNumber, StageWork] = {}
        self.left: dict[StageNumber, Stage] = {}  # wanted and not ended
        self.idle: set[StageNumber] = set()  # stages that may be trained and are not
        self.training: set[StageNumber] = set()  # stages that are being trained
        self.held: set[StageNumber] = set()  # stages that wait for another run, see `hold`
        self._due: dict[DatasetSegment, dict[StageNumber, None]] = {key: {} for key in self.datasets}
        self._passes = PassCounter(self.segments)
        self.add(sorted(plan.stages.values(), key=lambda stage: stage.number))

    # --- requests -------------------------------------------------------------------------------------------------
    def add(self, stages: Iterable[Stage]) -> list[Stage]:
        """Take the stages that `plan.ask` returned: new ones, and ones to be evaluated now.

        Returns the stages that have ended already, because all their units ran before a trial asked for them again.
        """
        ended, new = [], []
        for stage in stages:
            if stage.failed or not stage.trials:
                continue
            self._passes.add(stage, self._unfinished(stage))
            if stage.ended:
                ended.append(stage)
            elif stage.number not in self.left:
                self.left[stage.number] = stage
                new.append(stage)
        for watcher in self._watchers if new else ():
            watcher.added(new)
        for stage in new:
            if stage.parent is None or stage.trained or stage.parent.ended:
                self._open(stage)
            elif due := [key for key in self.datasets if stage.parent.number in self._due[key]]:
                for watcher in self._watchers:  # these evaluations are awaited now
                    watcher.may_evaluate(stage.parent, due)
        return ended

    def withdraw(self, mst_key: MstKey, until: Iteration | None = None, beside: Collection[MstKey] = ()) -> list[Stage]:
        """Stop a trial: it ends the iteration that it has begun, or the one that `until` names (see Plan.withdraw). Trials
        that stop together, such as folds (`beside`: their mst_keys), end with one iteration: that of the furthest of them.
        Stages that no other trial wants are not run.

        Returns the stages that have ended for other trials: they are trained, and only this trial wanted their metrics.
        """
        ended: list[Stage] = []
        least = max((self.plan.end(key, self._is_begun, until) for key in beside), default=0)
        for stage in self.plan.withdraw(mst_key, self._is_begun, until, least):
            if not stage.trials:
                self._forget(stage)
            elif stage.ended and stage.number in self.left:
                self._close(stage)
                self._end(stage, ended)
        return [stage for stage in ended if stage.trials - {mst_key}]

    def _is_begun(self, number: StageNumber) -> bool:
        return self.has_begun(number) or self.is_running(number)

    def fail(self, stage_number: StageNumber) -> set[MstKey]:
        """Mark a stage and all stages below it as failed; withdraw the trials whose paths contain it.

        Returns the mst_keys of these trials.
        """
        below = [self.plan.stages[stage_number]]
        for stage in below:  # grows
            stage.failed = True
            below += stage.children
        trials = {mst_key for stage in below for mst_key in stage.trials}  # (also those that inherit)
        for mst_key in sorted(trials):
            for stage in self.plan.withdraw(mst_key):
                if not stage.trials:
                    self._forget(stage)
        for stage in below:
            self._forget(stage)
            self._works.pop(stage.number, None)
        return trials

    def restore(self, units: Iterable[Unit]) -> list[Stage]:
        """Take units that an earlier coordinator finished. Returns the stages that have ended by that."""
        units = sorted(set(units))
        for unit in units:
            self._note(unit)
        ended: list[Stage] = []
        for number in sorted({unit.stage for unit in units}):
            stage = self.plan.stages[number]
            if number in self.left and stage.trained:
                self._close(stage)
                self._trained(stage, ended)
        for watcher in self._watchers:
            watcher.changed()
        return ended

    # --- stages that another run trains ---------------------------------------------------------------------------
    def hold(self, stages: Iterable[Stage]) -> None:
        """Do not train these stages, which have not begun, until they are let go of or taken over."""
        for stage in stages:
            self.held.add(stage.number)
            self._close(stage)
        for watcher in self._watchers:
            watcher.changed()

    def let_go(self, stages: Iterable[Stage]) -> None:
        """Train stages that were held."""
        for stage in stages:
            self.held.discard(stage.number)
            if stage.number in self.left and (stage.parent is None or stage.parent.ended):
                self._open(stage)

    def take_over(self, stages: Sequence[Stage]) -> list[Stage]:
        """Take stages that were held, parents first, and that another run has trained: they are marked as trained. Returns
        those that have ended by that."""
        ended: list[Stage] = []
        for stage in stages:
            self.held.discard(stage.number)
            self._passes.remove(stage, self._visits(stage))
            self._works.pop(stage.number, None)
        for stage in stages:
            if stage.number in self.left:
                self._trained(stage, ended)
        for watcher in self._watchers:
            watcher.changed()
        return ended

    def serve(self, workers: Iterable[Worker]) -> None:
        super().serve(workers)
        for watcher in self._watchers:
            watcher.served(self.workers)

    # --- units that may run ---------------------------------------------------------------------------------------
    @property
    def done(self) -> bool:
        """True when no wanted stage is left."""
        return not self.left

    def unit(self, stage_number: StageNumber, kind: Kind, dataset: Dataset, segment: SegmentNumber) -> Unit:
        """The unit of a stage on a segment."""
        return Unit(self.plan.stages[stage_number].iteration, stage_number, kind, dataset, segment)

    def open(self, kind: Kind) -> list[StageNumber]:
        """The numbers of the stages that may be trained ('train'; they may be running), or evaluated ('evaluate')."""
        works = self._works
        return [number for number in self.left if number in works and works[number].open == kind]

    def trains(self, stage_number: StageNumber) -> bool:
        """True where the stage may be trained, or is being trained."""
        work = self._works.get(stage_number)
        return work is not None and work.open == "train"

    def may_train(self, stage_number: StageNumber, segment: SegmentNumber) -> bool:
        """True where the stage may visit the segment as soon as it is idle."""
        work = self._works.get(stage_number)
        return work is not None and work.open == "train" and segment in work.todo

    def may_evaluate(self, stage_number: StageNumber, dataset: Dataset, segment: SegmentNumber) -> bool:
        """True where the evaluation may start."""
        return stage_number in self._due[dataset, segment]

    def is_awaited(self, stage: Stage) -> bool:
        """True where a child of the stage, or a search, waits for its evaluation."""
        return self.searched or any(child.number in self.left for child in stage.children)

    def eligible(self, worker: Worker) -> list[Unit]:
        """The units that may start now on a worker, in a fixed order. Loops over all stages: for small runs."""
        units: list[Unit] = []
        for number in self.open("train"):
            if not self.is_running(number):
                units += [
                    self.unit(number, "train", *key)
                    for key in self.served(worker)
                    if key[0] == "training" and self.may_train(number, key[1])
                ]
        free = [u for u in units if self._reserved.get(u.stage, worker) == worker]
        evaluations = [self.unit(number, "evaluate", *key) for key in self.served(worker) for number in self._due[key]]
        return sorted(evaluations + free or units)

    def due_with(self, unit: Unit, most: int | None = None) -> list[Unit]:
        """An evaluation and the others that may start now on the same rows; at most `most` units."""
        units = [unit]
        for number in self._due[unit.dataset, unit.segment]:
            if most is not None and len(units) >= most:
                break
            if number != unit.stage:
                units.append(self.unit(number, "evaluate", unit.dataset, unit.segment))
        return units

    def watch(self, watcher: BoardWatcher) -> None:
        """Tell a watcher the present state, and every change from now on."""
        self._watchers.append(watcher)
        watcher.added(sorted(self.left.values(), key=lambda stage: stage.number))
        for number in sorted(self._works):
            work = self._works[number]
            if work.open == "train":
                watcher.may_train(work.stage, self._visits_now(work))
                if not work.training:
                    watcher.idle(work.stage)
            elif work.open == "evaluate":
                watcher.may_evaluate(work.stage, [key for key in self.datasets if key in (work.due or ())])

    # --- units that run -------------------------------------------------------------------------------------------
    def start(self, unit: Unit) -> None:
        """Mark a unit as running; in a chain, as running after the units that were marked before it."""
        work = self._work(self.plan.stages[unit.stage])
        if unit.kind == "train":
            work.todo.remove(unit.segment)
            work.training.append(unit)
            self.idle.discard(unit.stage)
            self.training.add(unit.stage)
            self._unreserve(unit.stage)
        else:
            assert work.due is not None
            work.due.remove((unit.dataset, unit.segment))
            del self._due[unit.dataset, unit.segment][unit.stage]
            work.evaluating[unit.dataset] += 1
            if self.last_alone and len(left := self._due_of(work, unit.dataset)) == 1:
                self._due[left[0]].pop(unit.stage, None)

    def is_last(self, unit: Unit) -> bool:
        """True where a running unit is the last evaluation of its stage on its dataset."""
        work = self._works[unit.stage]
        return work.evaluating[unit.dataset] == 1 and not self._due_of(work, unit.dataset)

    def release(self, unit: Unit) -> None:
        """Take back a unit that did not finish: it is to be run again."""
        work = self._stop_running(unit)
        if work is None:
            return
        if unit.kind == "train":
            work.todo.add(unit.segment)
            if work.open:
                self._offer(work, [unit.segment])
                if not work.training:
                    self._free(work)
        else:
            assert work.due is not None
            work.due.add((unit.dataset, unit.segment))
            self._evaluated(work, unit.dataset)
            if work.open:  # an evaluation that waited to be the last one is not the last any more
                self._announce(
                    work, self._due_of(work, unit.dataset) if self.last_alone else [(unit.dataset, unit.segment)]
                )

    def finish(self, unit: Unit) -> list[Stage]:
        """Mark a unit as finished. Returns the wanted stages that have ended by it: trained on all segments and, where
        a trial wants their metrics, evaluated."""
        ended: list[Stage] = []
        work = self._stop_running(unit)
        if work is None:
            return ended
        stage = work.stage
        if unit.kind == "train":
            self._passes.finished(stage, unit.segment)
            if work.training:  # the next unit of its chain
                return ended
            if work.todo:
                if work.open:
                    self._visited(work)
                    self._free(work)
                return ended
            stage.trained = True
        else:
            self._evaluated(work, unit.dataset)
            stage.scored = not work.due and not work.evaluating.total()
        if stage.number in self.left:
            if unit.kind == "train":
                self._close(stage)
                self._trained(stage, ended)
            elif stage.scored:
                self._close(stage)
                self._end(stage, ended)
        return ended

    @staticmethod
    def _due_of(work: StageWork, dataset: Dataset) -> list[DatasetSegment]:
        return [key for key in work.due or () if key[0] == dataset]

    def _evaluated(self, work: StageWork, dataset: Dataset) -> None:
        """An evaluation has ended: announce the last one of its dataset, if that waited for the others."""
        work.evaluating[dataset] -= 1
        if (
            self.last_alone
            and work.open
            and not work.evaluating[dataset]
            and len(left := self._due_of(work, dataset)) == 1
        ):
            self._announce(work, left)

    def _stop_running(self, unit: Unit) -> StageWork | None:
        """The work of a unit's stage, with the unit not running any more; None where the stage has failed meanwhile."""
        work = self._works.get(unit.stage)
        if unit.kind == "train":
            if work is not None and unit in work.training:
                work.training.remove(unit)
            if work is None or not work.training:
                self.training.discard(unit.stage)
        return work

    # --- questions ------------------------------------------------------------------------------------------------
    def is_running(self, stage_number: StageNumber) -> bool:
        """True while a unit of the stage runs."""
        work = self._works.get(stage_number)
        return work is not None and (len(work.training) > 0 or work.evaluating.total() > 0)

    def has_begun(self, stage_number: StageNumber) -> bool:
        """True once the stage has been trained on a segment: it has a state of its own."""
        stage, work = self.plan.stages[stage_number], self._works.get(stage_number)
        return stage.trained or (work is not None and len(work.todo) + len(work.training) < len(self._visits(stage)))

    def trained(self, stage_number: StageNumber) -> bool:
        """True once the stage has been trained on all segments."""
        return self.plan.stages[stage_number].trained

    def ended(self, stage_number: StageNumber) -> bool:
        """True once the stage has been trained on all segments and, where a trial wants its metrics, evaluated."""
        return self.plan.stages[stage_number].ended

    def visits_left(self, stage_number: StageNumber, segment: SegmentNumber | None = None) -> int:
        """How many training units of a stage have not ended, on one segment or on all (None); running ones count."""
        stage, work = self.plan.stages[stage_number], self._works.get(stage_number)
        if stage.trained or stage.failed or not stage.trials:
            return 0
        if work is None:
            return len(self._visits(stage)) if segment is None else int(segment in self._visits(stage))
        if segment is None:
            return len(work.todo) + len(work.training)
        return int(segment in work.todo or any(unit.segment == segment for unit in work.training))

    def units_left(self, stage: Stage) -> int:
        """How many units of a wanted stage have not ended, with its evaluations if a trial wants its metrics; running ones
        count."""
        left = self.visits_left(stage.number)
        if not stage.evaluated or stage.scored or stage.failed:
            return left
        work = self._works.get(stage.number)
        due = len(self._evaluations(stage)) if work is None or work.due is None else len(work.due)
        return left + due + (0 if work is None else work.evaluating.total())

    def next_visits(self, stage_number: StageNumber) -> list[SegmentNumber]:
        """The segments that a stage may visit after the units that run, in whichever order the board allows. Of a stage
        that may not be trained yet: those that it may visit first."""
        stage = self.plan.stages[stage_number]
        return [] if stage.trained or stage.failed or not stage.trials else self._visits_now(self._work(stage))

    def visits(self, stage: Stage) -> int:
        """How many training units a stage has in all."""
        return len(self._visits(stage))

    def all_visits(self, stage: Stage) -> Sequence[SegmentNumber]:
        """The segments that a stage is trained on."""
        return self._visits(stage)

    def evaluations(self, stage: Stage) -> set[DatasetSegment]:
        """The segments that a stage is evaluated on, if a trial wants its metrics."""
        return self._evaluations(stage)

    @property
    def held_out(self) -> Callable[[Stage], Collection[SegmentNumber]]:
        """The function that gives the segments that a stage leaves out."""
        return self._held_out

    def passes_left(self, key: Hashable, segment: SegmentNumber) -> int:
        """How many passes over a training segment are left: of the stages with this key, or of all stages (None).

        See `count_by` for keys and passes. O(1).
        """
        return self._passes.left(key, segment)

    def passes(self, stage_number: StageNumber) -> int:
        """How many passes over a segment a visit of a wanted stage makes; see `count_by`."""
        return self._passes.passes_of(self.plan.stages[stage_number])

    @property
    def key_of(self) -> Callable[[Stage], Hashable]:
        """The function that gives a stage's key for `passes_left`."""
        return self._passes.key_of

    @key_of.setter
    def key_of(self, key_of: Callable[[Stage], Hashable]) -> None:
        self.count_by(key_of)

    def count_by(self, key_of: Callable[[Stage], Hashable], passes_of: Callable[[Stage], int] | None = None) -> None:
        """Set how `passes_left` counts; to be called once.

        `key_of`: a stage's key, which never changes, such as its compiled model. `passes_of`: passes over a segment
        that a visit of the stage makes (by default 1).
        """
        wanted = [self.plan.stages[number] for number in self._passes.counted]
        self._passes.key_of, self._passes.passes_of = key_of, passes_of or self._passes.passes_of
        self._passes.clear()
        for stage in wanted:
            self._passes.add(stage, self._unfinished(stage))

    # --- the life of a stage --------------------------------------------------------------------------------------
    def _visits(self, stage: Stage) -> Sequence[SegmentNumber]:
        """The segments that a stage is trained on."""
        return visited(self.segments, self._held_out(stage))

    def _evaluations(self, stage: Stage) -> set[DatasetSegment]:
        """The segments that a stage is evaluated on."""
        if held_out := self._held_out(stage):
            return {("training", segment) for segment in held_out}
        return set(self.datasets)

    def _unfinished(self, stage: Stage) -> Collection[SegmentNumber]:
        """The segments of training units that have not ended, running ones included, whether wanted or not."""
        work = self._works.get(stage.number)
        if work is None:
            return () if stage.trained else self._visits(stage)
        return work.todo if not work.training else {*work.todo, *(unit.segment for unit in work.training)}

    def _work(self, stage: Stage) -> StageWork:
        work = self._works.get(stage.number)
        if work is None:
            work = self._works[stage.number] = StageWork(stage, set() if stage.trained else set(self._visits(stage)))
        return work

    def _open(self, stage: Stage) -> None:
        """Allow the stage's units: training or, once it is trained, evaluation."""
        if stage.number in self.held:
            return
        work = self._work(stage)
        if stage.trained:
            self._open_evaluation(work)
        elif work.open is None:
            work.open = "train"
            self._offer(work, self._visits_now(work))
            if not work.training:
                self._free(work)

    def _open_evaluation(self, work: StageWork) -> None:
        if work.due is None:
            work.due = self._evaluations(work.stage)
        if work.open is None:
            work.open = "evaluate"
            # (when evaluation opens again, the last unit of a dataset may have to wait for others that run)
            alone = {
                dataset
                for dataset, _ in work.due
                if self.last_alone and work.evaluating[dataset] and len(self._due_of(work, dataset)) == 1
            }
            self._announce(work, [key for key in self.datasets if key in work.due and key[0] not in alone])

    def _close(self, stage: Stage) -> None:
        """Allow no more units of the stage to start."""
        work = self._works.get(stage.number)
        if work is not None and work.open is not None:
            for key in work.due or () if work.open == "evaluate" else ():
                self._due[key].pop(stage.number, None)
            work.open = None
        self.idle.discard(stage.number)
        self._unreserve(stage.number)

    def _trained(self, stage: Stage, ended: list[Stage]) -> None:
        """A wanted stage has been trained on all segments: evaluate it, or end it."""
        if stage.ended:
            self._end(stage, ended)
        else:
            self._open_evaluation(self._work(stage))

    def _end(self, stage: Stage, ended: list[Stage]) -> None:
        """All work of a stage is done: its children begin."""
        self.left.pop(stage.number, None)
        ended.append(stage)
        for child in stage.children:
            if child.number in self.left and not child.trained:
                self._open(child)

    def _forget(self, stage: Stage) -> None:
        """No trial wants the stage any more."""
        self._close(stage)
        self.left.pop(stage.number, None)
        self.held.discard(stage.number)
        self._passes.remove(stage, self._unfinished(stage))
        for watcher in self._watchers:
            watcher.changed()

    def _note(self, unit: Unit) -> None:
        """Note a unit that an earlier coordinator finished."""
        stage = self.plan.stages[unit.stage]
        work = self._work(stage)
        if unit.kind == "train":
            if unit.segment in work.todo:
                work.todo.discard(unit.segment)
                self._passes.finished(stage, unit.segment)
            stage.trained = not work.todo
            return
        if work.due is None:
            work.due = self._evaluations(stage)
        work.due.discard((unit.dataset, unit.segment))
        self._due[unit.dataset, unit.segment].pop(unit.stage, None)
        stage.scored = not work.due

    # --- messages to watchers -------------------------------------------------------------------------------------
    def _visits_now(self, work: StageWork) -> list[SegmentNumber]:
        """The segments that a stage may visit next."""
        return [segment for segment in self._visits(work.stage) if segment in work.todo]

    def _visited(self, work: StageWork) -> None:
        """A stage has visited a segment. A subclass announces the visits that are allowed by that."""

    def _offer(self, work: StageWork, segments: Sequence[SegmentNumber]) -> None:
        for watcher in self._watchers:
            watcher.may_train(work.stage, segments)

    def _free(self, work: StageWork) -> None:
        self.idle.add(work.stage.number)
        for watcher in self._watchers:
            watcher.idle(work.stage)

    def _announce(self, work: StageWork, keys: Sequence[DatasetSegment]) -> None:
        for key in keys:
            self._due[key][work.stage.number] = None
        for watcher in self._watchers:
            watcher.may_evaluate(work.stage, keys)
