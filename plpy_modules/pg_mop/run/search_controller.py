"""Lets a search procedure decide: its proposals are trained, and it is told the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.call import metrics
from pg_mop.call.configurations import Configuration
from pg_mop.call.earlier import END
from pg_mop.call.spec import Search
from pg_mop.plan import folds
from pg_mop.plan.stages import Stage
from pg_mop.run.controllers import Row, RunController
from pg_mop.run.inheriting import inherit
from pg_mop.run.instructions import Ask, Fetch, GiveUp, HasState, Instructions, Register, Withdraw
from pg_mop.search.base import FAILED, PAUSED, RUNNING, STOPPED, Procedure
from pg_mop.search.logged import outline
from pg_mop.search.parameters import SearchError
from pg_mop.search.space import ParameterSet

Event = list[Any]


class SearchController(RunController):
    """Drives a :class:`~pg_mop.search.base.Procedure`, whose trials are the configurations of the run.

    Every event that the procedure is told is logged first, in order. So a coordinator that resumes the run brings a new
    procedure to the same point, and the procedure makes the same proposals.
    """

    def __init__(
        self,
        *arguments: Any,
        procedure: Procedure,
        search: Search,
        began: float,
        num_iterations: int,
        events: Sequence[Event],
        log: Callable[[int, list[Event]], None],
        late_requests: Callable[[], Sequence[dict[str, Any]]],
        stopped_before: Collection[int] = (),
        seed: int = 0,
        segments: Sequence[Any] = (),
    ) -> None:
        """`began`: when the call began (time.monotonic); `events`: the log of an earlier coordinator; `log(number,
        events)`: writes events to the log; `late_requests()`: the last control requests, after which the run takes no
        more; `stopped_before`: mst_keys that were stopped in the run that this call resumes; `seed`: of the run; `segments`: of
        the search's dataset, by key."""
        super().__init__(*arguments)
        self.procedure, self.search, self.began, self.num_iterations = procedure, search, began, num_iterations
        self.events, self.logged, self.log = list(events), len(events), log
        self.late_requests, self.stopped_before, self.seed = late_requests, stopped_before, seed
        self.segments = segments
        self.heard: dict[int, int] = {}  # mst_key -> the last iteration that the procedure knows
        self.halts: dict[int, int | None] = {}  # mst_key -> the iteration after which a rule stops it; None: a person
        self.over = False  # the time is up
        self.begun_at: dict[int, float] = {}  # mst_key -> when the iteration that it is in began (time.monotonic)
        self.lasting = 0.0  # seconds of the iteration that ended last
        self.taken = 0  # trials that the procedure has begun
        self.begun = False
        self.given_up: set[int] = set()  # mst_keys that have failed

    @property
    def done(self) -> bool:
        return self.begun and (self.over or self.procedure.done)

    def begin(self) -> Instructions:
        self.begun = True
        yield from self._replay()
        if self.over:
            yield from self._end_all()  # the coordinator before may not have come to that
        yield from self.watch()
        # the coordinator before may not have ended the trials that the procedure had stopped
        for key, trial in self.procedure.trials.items():
            if trial.state == STOPPED and key not in self.stopped_before and self.plan.path(key):
                yield from self.withdraw(key, self.procedure.why.get(key), (yield from self._end_of(key)))
        yield from self._go_on()

    def _replay(self) -> Instructions:
        """Bring the procedure to the end of the log."""
        for event in self.events:
            kind, *values = event
            if kind == "known":
                self.procedure.begin_with(
                    [
                        (ParameterSet(*configuration), {int(i): value for i, value in found.items()})
                        for configuration, found in values[0]
                    ]
                )
            elif kind == "limit":
                self.over = True
            elif kind != END:
                if kind == "tell":
                    self.heard[values[0]] = max(values[1] or 0, self.heard.get(values[0], 0))
                elif kind == "add":
                    values[0] = tuple(values[0])
                self.procedure.replay([(kind, *values)])
                if kind == "members":
                    self.heard[values[0]] = self.procedure.trials[values[0]].at
        trials, run_id = self.procedure.trials, self.messages.run_id
        for key, trial in trials.items():
            c = self.configurations.get(key)
            if c is not None and (c["model_id"], c["compile_params"], c["fit_params"] or "") != (
                *trial.configuration[:2],
                trial.configuration[2] or "",
            ):
                raise MopError(
                    f"run {run_id} cannot go on: its search proposes another mst_key {key} now",
                    detail="Perhaps another version of Optuna or of pg_mop is installed.",
                    hint=f"Begin another with continue_from => {run_id}.",
                    sqlstate="55000",
                )
            self.taken += c is not None and not trial.outside
        for key, why in self.procedure.stopped().items():
            # the log already reports these trials as failed, so they are not retried
            failed = key in self.configurations and trials[key].state == "failed"
            if failed and key not in self.configurations.misfits:
                yield from self._give_up(key, why)

    def _give_up(self, key: int, why: str) -> Instructions:
        """A trial has failed: nothing more is wanted of it, nor of its folds."""
        for each in self.configurations.trials_of(key):
            if self.plan.path(each):
                yield Withdraw(each, why)  # no last evaluation is wanted
        self.given_up.add(key)
        yield GiveUp(key, why)

    def ended(self, stages: Sequence[Stage]) -> Instructions:
        self.look_up([stage for stage in stages if stage.evaluated])
        for stage in stages:
            for key in sorted({self.configurations.own_key(key) for key in stage.trials}):
                self._time(key)
                yield from self._hear(key)
        yield from self.apply_rules(stages)
        yield from self._go_on()

    def _time(self, key: int) -> None:
        """Note how long the iteration of a trial has taken that has ended."""
        now = time.monotonic()
        self.lasting = now - self.begun_at.get(key, now)
        self.begun_at[key] = now

    def failed(self, mst_keys: Collection[int]) -> Instructions:
        for key in sorted(mst_keys):
            own = self.configurations.own_key(key)
            if own in self.given_up:
                continue
            self.given_up.add(own)
            if self.search.held_out:
                yield from self._give_up(own, self.configurations.failures(self.messages.failed())[own])
            self._tell(own)
        yield from self._go_on()

    def control_requests(self, requests: Iterable[dict[str, Any]]) -> Instructions:
        ended, limit = False, self.search.seconds
        # iterations that have begun are finished: one as long as the last should end by then
        if limit is not None and not self.over and time.monotonic() - self.began > limit - self.lasting:
            self._note(["limit"])
            self.over = ended = True
            yield from self._end_all()
        yield from super().control_requests(requests)
        while self.over and (late := self.late_requests()):
            yield from super().control_requests(late)
        return ended

    def _end_all(self) -> Instructions:
        """The time is up: nothing more is begun."""
        for key, trial in sorted(self.procedure.trials.items()):
            if trial.state == "running" and self.plan.path(key):
                yield from self.withdraw(key, "the time was up")

    def judge(self, mst_key: int, until: int | None = None) -> Instructions:
        trial = self.procedure.trials.get(mst_key)
        if trial is not None and trial.state in (STOPPED, FAILED) and mst_key not in self.stopped:
            # it is about to end with the metrics that the procedure has heard
            heard = self.heard.get(mst_key, 0)
            until = heard if until is None else min(until, heard)
        return (yield from super().judge(mst_key, until))

    def stop(self, mst_key: int, reason: str, at: int | None = None) -> Instructions:
        mst_key = self.configurations.own_key(mst_key)
        trial = self.procedure.trials.get(mst_key)
        if trial is not None and trial.state in (RUNNING, PAUSED):
            self.halts[mst_key] = at
            self.procedure.stop(mst_key, reason)
            self._note(["stop", mst_key, reason])
            yield from self._go_on()

    def add(self, added: ParameterSet, iterations: int | None, reason: str) -> Instructions:
        if self.over:
            self.messages.late(reason)
            return
        try:
            self.procedure.add(added, iterations)
        except SearchError as error:
            raise MopError(str(error)) from None
        self._note(["add", list(added), iterations])
        yield from self._go_on()

    # --- asking and telling -------------------------------------------------------------------------
    def _go_on(self) -> Instructions:
        """Carry out the procedure's proposals until it waits for results."""
        while True:
            for key, why in self.procedure.stopped().items():
                c = self.configurations.get(key)
                if c is not None and not c.get("error") and key not in self.given_up:
                    yield from self.withdraw(key, why, (yield from self._end_of(key)))
            proposals = [] if self.over else self.procedure.ask()
            if not proposals:
                return
            self.messages.lines(self.search.lines(self.procedure, proposals))
            for proposal in proposals:
                yield from self._take_up(proposal)

    def _take_up(self, proposal: Any) -> Instructions:
        key, new = proposal.trial, False
        if proposal.configuration is not None and key not in self.configurations:
            outside = self.procedure.trials[key].outside
            if self.search.most_trials is not None and self.taken >= self.search.most_trials and not outside:
                self._note(["stop", key, "max_trials"])
                self.procedure.stop(key, "max_trials")
                return
            self.taken += not outside
            c: Configuration = self.configurations.make(key, proposal.configuration)
            if lineage := self.procedure.lineage(key):
                yield from self._trace(c, lineage)
            plain = c.copy()
            problem, new = self.configurations.add(c, max(proposal.budget, self.num_iterations)), True
            self.begin_to_watch(c)
            if problem:
                yield Register(c)
                self._tell(key)
                return
            for fold in folds.trials_of_search(plain, self.search.held_out):
                self.configurations.add(fold, max(proposal.budget, self.num_iterations))
        wanted = (*self.procedure.evaluates(key), *self.search.also_evaluated(self.procedure, key))
        evaluated = {i for i in wanted if i <= proposal.budget}
        trials = self.configurations.trials_of(key)
        self.begun_at[key] = time.monotonic()
        for each in trials:
            yield Ask(self.configurations[each], proposal.budget, evaluated, new)
        if any(self.plan.failed(each) for each in trials):
            self._tell(key)
        else:
            path = [s for each in trials for s in self.plan.path(each)[self.heard.get(key, 0) :]]
            self.look_up([stage for stage in path if stage.evaluated and stage.ended])
            yield from self._hear(key)
            if key in self.watches:  # stages that others have trained may be its best, or its end
                yield from self.look(key)

    def _trace(self, c: Configuration, lineage: dict[str, Any]) -> Instructions:
        """Note a new trial's lineage, and what it inherits (see Procedure.lineage)."""
        told = {name: value for name, value in lineage.items() if name not in ("inherits", "iteration")}
        c["member"] = {**(c.get("member") or {}), **told}
        if not lineage.get("inherits") or self.configurations.read_architecture(c) is None:
            return
        parent = None if lineage["parent"] is None else self.configurations[lineage["parent"]]
        path = self.plan.path(lineage["parent"])[: lineage.get("iteration")] if parent is not None else []
        ends = [
            self.plan.path(each)[len(path) - 1 : len(path)]
            for each in (self.configurations.trials_of(lineage["parent"]) if path else ())
        ]
        has = True
        for end in ends:
            has = has and bool(end) and end[0].trained and (yield HasState(end[0].number))
        inherit(c, parent, path, has, self.seed)

    def _end_of(self, key: int) -> Instructions:
        """The last iteration of a trial that is stopped: if others, or an earlier run, have trained more of its path, the
        trial still has no more than the procedure or its own rule knew. None: it ends the iteration that it is in."""
        if key in self.halts:
            return self.halts.pop(key)
        at, path = self.heard.get(key), self.plan.path(key)
        if at and at <= len(path) and (yield HasState(path[at - 1].number)):
            return at
        return None

    def _hear(self, key: int) -> Instructions:
        """Tell the procedure, and the trial's own rule, the metrics of its iterations that have been evaluated since."""
        trial = self.procedure.trials.get(key)
        if trial is None:
            return
        if self.procedure.candidates(key) is not None:
            yield from self._score_members(key)
            return
        wanted = self.procedure.evaluates(key)
        _, *folded = self.configurations.trials_of(key)
        for stage in self.plan.path(key)[self.heard.get(key, 0) :]:
            beside = [self.plan.path(each)[stage.iteration - 1 : stage.iteration] for each in folded]
            if not stage.ended or not all(found and found[0].ended for found in beside):
                return
            # apply the trial's own rule first: a stopped trial is not promoted
            verdict = (yield from self.judge(key, stage.iteration)) if key in self.watches else None
            if stage.iteration in wanted:
                row = self.row(stage, self.search.dataset) if not folded else self._mean(key, [s for (s,) in beside])
                self._tell(key, stage.iteration, row, verdict and verdict[0])
            if verdict is not None:
                if trial.state == STOPPED:
                    self.halts[key] = verdict[1]
                yield from self.stop(key, *verdict)
            if trial.state in (STOPPED, FAILED):
                return

    def _score_members(self, key: int) -> Instructions:
        """Tell the procedure what its members reach with the weights of a super-net that has been trained."""
        trial, path = self.procedure.trials[key], self.plan.path(key)
        if trial.state != RUNNING or len(path) < trial.budget or not all(stage.ended for stage in path):
            return
        state = yield Fetch(path[trial.budget - 1].number)
        if state is None or self.search.score_members is None:
            raise MopError(f"the state of super-net {key} of run {self.messages.run_id} is missing", sqlstate="XX001")
        rows = self.search.score_members(self.procedure, self.configurations[key], state, self.segments)
        self._note(["members", key, rows])
        self.heard[key] = trial.budget
        self.procedure.take_scores_of_members(key, {row[0]: row[1] for row in rows})

    def _mean(self, key: int, stages: Sequence[Stage]) -> Row | None:
        """The means of a trial over its folds; `stages`: of the folds, which have ended."""
        rows = [self.row(stage, self.search.dataset) for stage in stages]
        found = [row for row in rows if row is not None]
        return {**metrics.mean(key, found), "iteration": stages[0].iteration} if len(found) == len(stages) else None

    def _tell(self, key: int, iteration: int | None = None, row: Row | None = None, ends: str | None = None) -> None:
        """Tell the procedure a trial's metrics after an iteration, or that it has failed; `ends`: why its own rule
        stops it."""
        value = None if row is None else self.search.value(row)
        why = [ends] if ends else []
        self._note(["tell", key, iteration, value, *why])
        self.heard[key] = iteration or self.heard.get(key, 0)
        best = self.procedure.best
        self.procedure.tell(key, iteration, value, *why)
        if self.procedure.best != best:
            self.messages.lines([self.search.best_line(key, row or {}, len(self.procedure.trials))])

    def finish(self) -> None:
        """Log what the output tables tell besides the results, so that a replay needs no procedure."""
        kept = {key: self.plan.stages[stage].iteration for key, stage in self.kept.items()}
        self._note([END, {"kept": kept, "trials": outline(self.procedure)}])

    def _note(self, event: Event) -> None:
        self.log(self.logged + 1, [event])
        self.logged += 1
