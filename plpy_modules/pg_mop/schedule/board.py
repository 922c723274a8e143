"""What may run now: the one place that keeps model hopper parallelism's rules.

Every stage that somebody wants visits every segment once, at one place at a time; it is evaluated, where somebody
wants its metrics, once it has been trained on all of them, on many segments at once; and the stages below it begin when
all that has ended. Children of one parent train side by side: they only read its state. Pure Python: the event loop
and the simulator drive the same object. Nothing here but `eligible` loops over stages, so that a unit costs the same
however many there are.
"""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Unit:
    """One stage on one segment once: trained, or evaluated."""

    iteration: int
    stage: int  # its number
    kind: str  # 'train' | 'evaluate'
    dataset: str  # 'training' | 'validation'
    segment: int


class _Work:
    """What is left of a stage that somebody has begun, or may begin."""

    __slots__ = ("stage", "todo", "training", "due", "evaluating", "open")

    def __init__(self, stage, todo):
        self.stage = stage
        self.todo = todo  # segments that it has to visit yet
        self.training = None  # the unit at work
        self.due = None  # (dataset, segment) that it has to be evaluated on yet; None: before it is trained
        self.evaluating = Counter()  # dataset -> units at work
        self.open = None  # 'train', 'evaluate': may be done now; else None


class Board:
    """The state of a run's units.

    `plan`: the search plan, whose stages that somebody wants are to be done, and which is told what came of them;
    `segments`: keys of the training segments; `validation_segments`: of the validation segments. A place is the number
    of a worker session: at first there is one for each training segment, which does the units of that, and the
    validation segments are dealt out over the same places. `serve` changes that. `servers`: {(dataset, segment): the
    name of the server that holds it}, None where it is not said: a place does segments of its own server alone.
    `others`: servers that may come to hold some (`relocate`).
    """

    shares_states = False  # a unit reads the states of other stages
    anywhere = False  # every place does all training segments of its server (to be set before `serve`)
    searched = False  # what evaluations find decides what is asked for next (to be set before `watch`)

    def __init__(self, plan, segments, validation_segments=(), servers=None, others=()):
        self.plan, self.segments = plan, list(segments)
        self.datasets = [("training", s) for s in segments] + [("validation", s) for s in validation_segments]
        self.home = {("training", s): i for i, s in enumerate(segments)}
        self.home.update({("validation", s): i % len(self.segments) for i, s in enumerate(validation_segments)})
        self.server_of = {key: (servers or {}).get(key) for key in self.datasets}
        self.servers = list(dict.fromkeys(self.server_of.values()))  # those that hold segments now
        at = [self.server_of["training", s] for s in self.segments]
        self._all = list(dict.fromkeys([*self.servers, *others]))
        self._servers = at + [server for server in self._all if server not in at]  # of the places, by number
        # what others have found out about a dataset must be known to who evaluates its last segment
        self.last_alone = len(self._all) > 1
        self._watchers = []
        self.serve(worker for worker in range(len(self._servers)) if self._servers[worker] in self.servers)
        self._works = {}  # stage number -> _Work
        self.left = {}  # stage number -> Stage: wanted, not ended
        self.idle = set()  # numbers of the stages that may be trained and are not at work
        self.training = set()  # of those that are being trained
        self._due = {key: {} for key in self.datasets}  # -> {stage number: None}, of the evaluations to be begun
        self._reserved, self._kept = {}, {}  # stage number -> place, and back
        self._wanted = {}  # stage number -> (key, passes) as counted
        self._key_of, self._passes_of = (lambda stage: None), (lambda stage: 1)
        self._asked, self._passed = Counter(), Counter()  # passes, by key; by (key, segment)
        self.add(sorted(plan.stages.values(), key=lambda stage: stage.number))

    # --- what is asked for ----------------------------------------------------------------------------------------
    def add(self, stages):
        """Take up what `plan.ask` returned: new stages, and stages to be evaluated now. Returns those that have ended
        already, as all of their units had been done when nobody wanted them."""
        ended, new = [], []
        for stage in stages:
            if stage.failed or not stage.trials:
                continue
            self._count(stage)
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
                for watcher in self._watchers:  # somebody waits for these evaluations now
                    watcher.may_evaluate(stage.parent, due)
        return ended

    def withdraw(self, mst_key, until=None):
        """A trial is stopped: it ends the iteration that it has begun, or with `until` (see plan.withdraw); nothing
        else that nobody else wants is run.

        Returns the stages that have ended by it for others: they were trained, and only this one wanted their metrics.
        """
        ended = []
        for stage in self.plan.withdraw(
            mst_key, lambda number: self.has_begun(number) or self.is_running(number), until
        ):
            if not stage.trials:
                self._forget(stage)
            elif stage.ended and stage.number in self.left:
                self._close(stage)
                self._end(stage, ended)
        return [stage for stage in ended if stage.trials - {mst_key}]

    def fail(self, stage_number):
        """A stage cannot be done: gone are all trials that have it on their path, and all stages below it.

        Returns the mst_keys of these trials.
        """
        below = [self.plan.stages[stage_number]]
        for stage in below:  # grows
            stage.failed = True
            below += stage.children
        trials = set(below[0].trials)
        for mst_key in sorted(trials):
            for stage in self.plan.withdraw(mst_key):
                if not stage.trials:
                    self._forget(stage)
        for stage in below:
            self._forget(stage)
            self._works.pop(stage.number, None)
        return trials

    def restore(self, units):
        """Go on after `units` that have been finished earlier. Returns the stages that have ended by that."""
        units = sorted(set(units))
        for unit in units:
            self._note(unit)
        ended = []
        for number in sorted({unit.stage for unit in units}):
            stage = self.plan.stages[number]
            if number in self.left and stage.trained:
                self._close(stage)
                self._trained(stage, ended)
        for watcher in self._watchers:
            watcher.changed()
        return ended

    # --- places ---------------------------------------------------------------------------------------------------
    def serve(self, workers):
        """Deal the segments out over these places: several to each or, where there are more places, to several."""
        self.workers = sorted(workers)
        self._serves = {worker: [] for worker in self.workers}
        for server in self.servers:
            here = [worker for worker in self.workers if self.server(worker) == server]
            for dataset in ("training", "validation"):
                keys = [key for key in self.datasets if key[0] == dataset and self.server_of[key] == server]
                if self.anywhere and dataset == "training":
                    for worker in here:
                        self._serves[worker] += keys
                    continue
                for number in range(max(len(keys), len(here)) if keys and here else 0):
                    self._serves[here[number % len(here)]].append(keys[number % len(keys)])
        for watcher in self._watchers:
            watcher.served(self.workers)

    def relocate(self, servers):
        """Segments are on other servers from now on: {(dataset, segment): the server's name}. The places that are
        served no longer do segments of theirs; `serve` is to be called with others."""
        self.server_of.update(servers)
        self.servers = list(dict.fromkeys(self.server_of.values()))
        self.serve(worker for worker in self.workers if self.server(worker) in self.servers)

    def server(self, worker):
        """The name of the server that a place is on."""
        if worker < len(self._servers):
            return self._servers[worker]
        return self._all[worker % len(self._all)]

    def first_workers(self, wanted):
        """The numbers of `wanted` places, or of as many as it takes to have one on each server."""
        first = [self._servers.index(server) for server in self.servers]
        more = [p for p, server in enumerate(self._servers) if p not in first and server in self.servers]
        return sorted((first + more)[: max(wanted, len(first))])

    def served(self, worker, dataset=None):
        """The (dataset, segment) that a place does; of one dataset: their segments."""
        serves = self._serves.get(worker, ())
        return serves if dataset is None else [segment for of, segment in serves if of == dataset]

    def reserve(self, worker, stage_number):
        """Keep a stage's training for `place`, in place of the one before (None: none), from those that have others."""
        self._reserved.pop(self._kept.pop(worker, None), None)
        if stage_number is not None and stage_number not in self._reserved:
            self._reserved[stage_number], self._kept[worker] = worker, stage_number

    def reserved(self, stage_number):
        """The place that a stage is kept for, or None."""
        return self._reserved.get(stage_number)

    def kept(self, worker):
        """The number of the stage that is kept for a place, or None."""
        return self._kept.get(worker)

    # --- what may run ---------------------------------------------------------------------------------------------
    @property
    def done(self):
        """True when nobody waits for anything."""
        return not self.left

    def unit(self, stage_number, kind, dataset, segment):
        return Unit(self.plan.stages[stage_number].iteration, stage_number, kind, dataset, segment)

    def open(self, kind):
        """The numbers of the stages that may be trained ('train'; perhaps they are, just now) or evaluated."""
        works = self._works
        return [number for number in self.left if number in works and works[number].open == kind]

    def trains(self, stage_number):
        """True where the stage may be trained, and perhaps is, just now."""
        work = self._works.get(stage_number)
        return work is not None and work.open == "train"

    def may_train(self, stage_number, segment):
        """True where the stage's visit of the segment is to be done as soon as the stage is idle."""
        work = self._works.get(stage_number)
        return work is not None and work.open == "train" and segment in work.todo

    def may_evaluate(self, stage_number, dataset, segment):
        return stage_number in self._due[dataset, segment]

    def is_awaited(self, stage):
        """True where somebody waits for a stage to be evaluated: those below it, or a search."""
        return self.searched or any(child.number in self.left for child in stage.children)

    def eligible(self, worker):
        """The units that may start now at `place`, in a fixed order. Looks at all stages: for small runs."""
        serves, units = self.served(worker), []
        for number in self.open("train"):
            if not self.is_running(number):
                units += [
                    self.unit(number, "train", *key)
                    for key in serves
                    if key[0] == "training" and self.may_train(number, key[1])
                ]
        free = [u for u in units if self._reserved.get(u.stage, worker) == worker]
        evaluations = [self.unit(number, "evaluate", *key) for key in serves for number in self._due[key]]
        return sorted(evaluations + free or units)

    def due_with(self, unit, most=None):
        """`unit`, an evaluation, and the others that may start now on the same rows; at most so many."""
        units = [unit]
        for number in self._due[unit.dataset, unit.segment]:
            if most is not None and len(units) >= most:
                break
            if number != unit.stage:
                units.append(self.unit(number, "evaluate", unit.dataset, unit.segment))
        return units

    def watch(self, watcher):
        """Tell a watcher (see schedule/base.py) what there is to do, and from now on what comes."""
        self._watchers.append(watcher)
        watcher.added(sorted(self.left.values(), key=lambda stage: stage.number))
        for number in sorted(self._works):
            work = self._works[number]
            if work.open == "train":
                watcher.may_train(work.stage, self._visits_now(work))
                if work.training is None:
                    watcher.idle(work.stage)
            elif work.open == "evaluate":
                watcher.may_evaluate(work.stage, [key for key in self.datasets if key in work.due])

    # --- what runs ------------------------------------------------------------------------------------------------
    def start(self, unit):
        work = self._works[unit.stage]
        if unit.kind == "train":
            work.todo.remove(unit.segment)
            work.training = unit
            self.idle.discard(unit.stage)
            self.training.add(unit.stage)
            self._kept.pop(self._reserved.pop(unit.stage, None), None)
        else:
            work.due.remove((unit.dataset, unit.segment))
            del self._due[unit.dataset, unit.segment][unit.stage]
            work.evaluating[unit.dataset] += 1
            if self.last_alone and len(left := self._due_of(work, unit.dataset)) == 1:
                self._due[left[0]].pop(unit.stage, None)

    def is_last(self, unit):
        """True where a unit at work is the last evaluation of its stage on its dataset."""
        work = self._works[unit.stage]
        return work.evaluating[unit.dataset] == 1 and not self._due_of(work, unit.dataset)

    @staticmethod
    def _due_of(work, dataset):
        return [key for key in work.due if key[0] == dataset]

    def _evaluated(self, work, dataset):
        """A unit of evaluation has ended: the last one may begin now, if it waited for that."""
        work.evaluating[dataset] -= 1
        if (
            self.last_alone
            and work.open
            and not work.evaluating[dataset]
            and len(left := self._due_of(work, dataset)) == 1
        ):
            self._announce(work, left)

    def release(self, unit):
        """A unit was not done: it is to be run again."""
        work = self._at_work_no_more(unit)
        if work is None:
            return
        if unit.kind == "train":
            work.todo.add(unit.segment)
            if work.open:
                self._offer(work, [unit.segment])
                self._free(work)
        else:
            work.due.add((unit.dataset, unit.segment))
            self._evaluated(work, unit.dataset)
            if work.open:  # one that waited to be the last is so no longer
                self._announce(
                    work, self._due_of(work, unit.dataset) if self.last_alone else [(unit.dataset, unit.segment)]
                )

    def finish(self, unit):
        """A unit has been done. Returns the stages that have ended by it: trained on all segments and, where somebody
        wants it, evaluated; none where nobody wants them."""
        work, ended = self._at_work_no_more(unit), []
        if work is None:
            return ended
        stage = work.stage
        if unit.kind == "train":
            self._pass(stage, unit.segment)
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

    def _at_work_no_more(self, unit):
        """What is left of a unit's stage, but for what is being trained; None where that has failed meanwhile."""
        work = self._works.get(unit.stage)
        if unit.kind == "train":
            self.training.discard(unit.stage)
            if work is not None:
                work.training = None
        return work

    # --- what is known --------------------------------------------------------------------------------------------
    def is_running(self, stage_number):
        """True while a unit of the stage is at work."""
        work = self._works.get(stage_number)
        return work is not None and (work.training is not None or work.evaluating.total() > 0)

    def has_begun(self, stage_number):
        """True once the stage has been trained on a segment: it has a state of its own."""
        stage, work = self.plan.stages[stage_number], self._works.get(stage_number)
        return stage.trained or (
            work is not None and len(work.todo) + (work.training is not None) < len(self._visits(stage))
        )

    def trained(self, stage_number):
        """True once the stage has been trained on all segments."""
        return self.plan.stages[stage_number].trained

    def ended(self, stage_number):
        """True once the stage has been trained on all segments and, where somebody wants it, evaluated."""
        return self.plan.stages[stage_number].ended

    def visits_left(self, stage_number, segment=None):
        """How often a stage is still to be trained on a training segment, or on any: those at work included."""
        stage, work = self.plan.stages[stage_number], self._works.get(stage_number)
        if stage.trained or stage.failed or not stage.trials:
            return 0
        if work is None:
            return len(self._visits(stage)) if segment is None else int(segment in self._visits(stage))
        if segment is None:
            return len(work.todo) + (work.training is not None)
        return int(segment in work.todo or (work.training is not None and work.training.segment == segment))

    def passes_left(self, key, segment):
        """How many passes over a training segment are left: of all stages with this key, or of all (None).

        The key is what `key_of` says; a pass is a visit, unless `count_by` was told more. O(1).
        """
        return self._asked[key] - self._passed[key, segment]

    @property
    def key_of(self):
        """A callable: stage -> what `passes_left` counts by (hashable, never changing), for instance what is
        compiled for it. To be set once."""
        return self._key_of

    @key_of.setter
    def key_of(self, key_of):
        self.count_by(key_of)

    def count_by(self, key_of, passes_of=None):
        """`passes_of`: stage -> how many passes over a segment one of its visits makes (by default: 1)."""
        self._key_of, self._passes_of = key_of, passes_of or self._passes_of
        wanted = [self.plan.stages[number] for number in self._wanted]
        self._asked.clear(), self._passed.clear(), self._wanted.clear()
        for stage in wanted:
            self._count(stage)

    # --- a stage's life -------------------------------------------------------------------------------------------
    def _visits(self, stage):
        """The segments that a stage is trained on."""
        return self.segments

    def _work(self, stage):
        work = self._works.get(stage.number)
        if work is None:
            work = self._works[stage.number] = _Work(stage, set() if stage.trained else set(self._visits(stage)))
        return work

    def _open(self, stage):
        """Let the stage's units be done: it is trained or, where it has been, evaluated."""
        work = self._work(stage)
        if stage.trained:
            self._open_evaluation(work)
        elif work.open is None:
            work.open = "train"
            self._offer(work, self._visits_now(work))
            if work.training is None:
                self._free(work)

    def _open_evaluation(self, work):
        if work.due is None:
            work.due = set(self.datasets)
        if work.open is None:
            work.open = "evaluate"
            # (opened again, the last one may have to wait for others that are at work)
            alone = {
                dataset
                for dataset, _ in work.due
                if self.last_alone and work.evaluating[dataset] and len(self._due_of(work, dataset)) == 1
            }
            self._announce(work, [key for key in self.datasets if key in work.due and key[0] not in alone])

    def _close(self, stage):
        """None of the stage's units is to be begun."""
        work = self._works.get(stage.number)
        if work is not None and work.open is not None:
            for key in work.due if work.open == "evaluate" else ():
                self._due[key].pop(stage.number, None)
            work.open = None
        self.idle.discard(stage.number)
        self._kept.pop(self._reserved.pop(stage.number, None), None)

    def _trained(self, stage, ended):
        """A stage that somebody wants has been trained on all segments: what comes next?"""
        if stage.ended:
            self._end(stage, ended)
        else:
            self._open_evaluation(self._work(stage))

    def _end(self, stage, ended):
        """Nothing is left to do of a stage: those below it begin."""
        self.left.pop(stage.number, None)
        ended.append(stage)
        for child in stage.children:
            if child.number in self.left and not child.trained:
                self._open(child)

    def _forget(self, stage):
        """Nobody wants the stage."""
        self._close(stage)
        self.left.pop(stage.number, None)
        self._count(stage, -1)
        for watcher in self._watchers:
            watcher.changed()

    def _note(self, unit):
        """A unit has been finished by an earlier coordinator."""
        stage = self.plan.stages[unit.stage]
        work = self._work(stage)
        if unit.kind == "train":
            if unit.segment in work.todo:
                work.todo.discard(unit.segment)
                self._pass(stage, unit.segment)
            stage.trained = not work.todo
            return
        if work.due is None:
            work.due = set(self.datasets)
        work.due.discard((unit.dataset, unit.segment))
        self._due[unit.dataset, unit.segment].pop(unit.stage, None)
        stage.scored = not work.due

    # --- telling the watchers -------------------------------------------------------------------------------------
    def _visits_now(self, work):
        """The segments that a stage may visit now, once it is idle."""
        return [segment for segment in self._visits(work.stage) if segment in work.todo]

    def _visited(self, work):
        """A segment has been visited: may others be, by that?"""

    def _offer(self, work, segments):
        for watcher in self._watchers:
            watcher.may_train(work.stage, segments)

    def _free(self, work):
        self.idle.add(work.stage.number)
        for watcher in self._watchers:
            watcher.idle(work.stage)

    def _announce(self, work, keys):
        for key in keys:
            self._due[key][work.stage.number] = None
        for watcher in self._watchers:
            watcher.may_evaluate(work.stage, keys)

    # --- counting passes ------------------------------------------------------------------------------------------
    def _count(self, stage, sign=1):
        """Count the passes of a stage that is wanted from now on, or (-1) no longer."""
        if (stage.number in self._wanted) == (sign > 0):
            return
        if sign > 0:
            self._wanted[stage.number] = self._key_of(stage), self._passes_of(stage)
        key, passes = self._wanted[stage.number]
        work = self._works.get(stage.number)
        left = self._visits(stage) if work is None and not stage.trained else () if work is None else work.todo
        at_work = work and work.training and work.training.segment
        for of in {None, key}:
            self._asked[of] += sign * passes
            if len(left) < len(self.segments):
                for segment in self.segments:
                    if segment not in left and segment != at_work:
                        self._passed[of, segment] += sign * passes
        if sign < 0:
            del self._wanted[stage.number]

    def _pass(self, stage, segment):
        """Count a visit that has been done."""
        if stage.number in self._wanted:
            key, passes = self._wanted[stage.number]
            for of in {None, key}:
                self._passed[of, segment] += passes
