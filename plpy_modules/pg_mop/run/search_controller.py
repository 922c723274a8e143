"""Lets a search procedure decide what is asked for: what it proposes is trained, what comes of it is told to it."""

import time

from pg_mop.backend.database import MopError
from pg_mop.run.controllers import RunController
from pg_mop.search.base import FAILED, PAUSED, RUNNING, STOPPED


class SearchController(RunController):
    """Drives a :class:`~pg_mop.search.base.Procedure`, whose trials are the configurations of the run.

    What the procedure is told is logged, in order, before anybody acts on it: so that a coordinator that takes the run
    over brings a new procedure to the same point, which then makes the same proposals.
    """

    def __init__(self, training, procedure, events=(), seconds=None, most=None):
        """`events`: the log of an earlier coordinator; `seconds`: after so many since the call began nothing more is
        begun; `most`: trials at most."""
        super().__init__(training)
        self.procedure = procedure
        self.events, self.logged, self.seconds, self.most = list(events), len(events), seconds, most
        self.heard = {}  # mst_key -> the last iteration of which the procedure knows
        self.halts = {}  # mst_key -> the iteration after which its own rule stops it; None: a person does
        self.over = False  # time is up
        self.taken = 0  # trials that the procedure has begun

    @property
    def done(self):
        return self.executor is not None and (self.over or self.procedure.done)

    def begin(self, executor):
        self.executor = executor
        self._replay()
        if self.over:
            self._end_all()  # perhaps the coordinator before had no time for that
        self.watch()
        # perhaps the coordinator before had no time to end what the procedure had stopped
        ended = self.training.earlier.stopped if self.training.earlier is not None else ()
        for key, trial in self.procedure.trials.items():
            if trial.state == STOPPED and key not in ended and executor.plan.path(key):
                self.withdraw(key, self.procedure.why.get(key), self._end_of(key))
        self._go_on()

    def _replay(self):
        """Bring the procedure to where the log says that it was."""
        for event in self.events:
            what, *arguments = event
            if what == "known":
                self.procedure.begin_with(
                    [
                        (tuple(configuration), {int(i): value for i, value in values.items()})
                        for configuration, values in arguments[0]
                    ]
                )
            elif what == "limit":
                self.over = True
            else:
                if what == "tell":
                    self.heard[arguments[0]] = max(arguments[1] or 0, self.heard.get(arguments[0], 0))
                elif what == "add":
                    arguments[0] = tuple(arguments[0])
                self.procedure.replay([(what, *arguments)])
        training, trials = self.training, self.procedure.trials
        for key, trial in trials.items():
            c = training.by_key.get(key)
            if c is not None and (c["model_id"], c["compile_params"], c["fit_params"] or "") != (
                *trial.configuration[:2],
                trial.configuration[2] or "",
            ):
                raise MopError(
                    f"run {training.run_id} cannot go on: its search proposes another mst_key {key} now",
                    detail="Perhaps another version of Optuna or of pg_mop is installed.",
                    hint=f"Begin another with continue_from => {training.run_id}.",
                    sqlstate="55000",
                )
            self.taken += c is not None and not trial.outside
        for key, why in self.procedure.stopped().items():
            # what failed for its place's sake is not tried again: the procedure has been told
            if key in training.by_key and trials[key].state == "failed" and key not in training.misfits:
                if self.executor.plan.path(key):
                    self.executor.withdraw(key, why)
                self.executor.give_up([key], why)

    def ended(self, stages):
        self.look_up([stage for stage in stages if stage.evaluated])
        for stage in stages:
            for key in sorted(stage.trials):
                self._hear(key)
        self.apply_rules(stages)
        self._go_on()

    def failed(self, mst_keys):
        for key in sorted(mst_keys):
            self._tell(key)
        self._go_on()

    def control_requests(self, control_requests):
        ended = False
        if self.seconds is not None and not self.over and time.monotonic() - self.training.began > self.seconds:
            self._note(["limit"])
            self.over = ended = True
            self._end_all()
        super().control_requests(control_requests)
        while self.over and (late := self.training.catalog.control_requests(self.training.run_id, last=True)):
            super().control_requests(late)
        return ended

    def _end_all(self):
        """The time is up: nothing more is begun."""
        for key, trial in sorted(self.procedure.trials.items()):
            if trial.state == "running" and self.executor.plan.path(key):
                self.withdraw(key, "the time was up")

    def judge(self, mst_key, until=None):
        trial = self.procedure.trials.get(mst_key)
        if trial is not None and trial.state in (STOPPED, FAILED) and mst_key not in self.stopped:
            # it is about to end with what the procedure has heard
            heard = self.heard.get(mst_key, 0)
            until = heard if until is None else min(until, heard)
        return super().judge(mst_key, until)

    def stop(self, mst_key, reason, at=None):
        trial = self.procedure.trials.get(mst_key)
        if trial is not None and trial.state in (RUNNING, PAUSED):
            self.halts[mst_key] = at
            self.procedure.stop(mst_key, reason)
            self._note(["stop", mst_key, reason])
            self._go_on()

    def add(self, configuration, iterations, reason):
        if self.over:
            self.training.tell_of_late(reason)
            return
        self.procedure.add(configuration, iterations)
        self._note(["add", list(configuration), iterations])
        self._go_on()

    # --- asking and telling -------------------------------------------------------------------------
    def _go_on(self):
        """Do what the procedure wants, until it waits for something."""
        while True:
            for key, why in self.procedure.stopped().items():
                c = self.training.by_key.get(key)
                if c is not None and not c.get("error") and key not in self.executor.failed:
                    self.withdraw(key, why, self._end_of(key))
            proposals = [] if self.over else self.procedure.ask()
            if not proposals:
                return
            self.training.tell_asked(proposals)
            for proposal in proposals:
                self._take_up(proposal)

    def _take_up(self, proposal):
        key, new = proposal.trial, []
        if proposal.configuration is not None and key not in self.training.by_key:
            outside = self.procedure.trials[key].outside
            if self.most is not None and self.taken >= self.most and not outside:
                self._note(["stop", key, "max_trials"])
                self.procedure.stop(key, "max_trials")
                return
            self.taken += not outside
            c = self.training.new_configuration(key, proposal.configuration)
            problem, new = self.training.add(c, max(proposal.budget, self.training.num_iterations)), [c]
            self.begin_to_watch(c)
            if problem:
                self.executor.ask(new, [], [])
                self._tell(key)
                return
        evaluated = {
            i
            for wanted in (self.procedure.evaluates(key), self.training.also_evaluated(key))
            for i in wanted
            if i <= proposal.budget
        }
        stages, requests = self.training.ask(self.training.by_key[key], proposal.budget, evaluated)
        if requests or stages or new:
            self.executor.ask(new, stages, requests)
        plan = self.executor.plan
        if plan.failed(key):
            self._tell(key)
        else:
            self.look_up([s for s in plan.path(key)[self.heard.get(key, 0) :] if s.evaluated and s.ended])
            self._hear(key)
            if key in self.watches:  # of what others have trained for it already
                self.look(key)

    def _end_of(self, key):
        """The iteration with which a trial ends that is stopped: of what others have trained for it, or an earlier run,
        it has no more than the procedure, or its own rule, knew. None: what it has begun it ends."""
        if key in self.halts:
            return self.halts.pop(key)
        at, path = self.heard.get(key), self.executor.plan.path(key)
        return at if at and at <= len(path) and self.executor.states.has(path[at - 1].number) else None

    def _hear(self, key):
        """Tell the procedure, and the trial's own rule, of its iterations that have been evaluated since."""
        trial = self.procedure.trials.get(key)
        if trial is None:
            return
        wanted = self.procedure.evaluates(key)
        for stage in self.executor.plan.path(key)[self.heard.get(key, 0) :]:
            if not stage.ended:
                return
            # its own rule first: who stops by that takes no place among those that go on
            verdict = self.judge(key, stage.iteration) if key in self.watches else None
            if stage.iteration in wanted:
                self._tell(key, stage.iteration, self.row(stage, self.training.dataset), verdict and verdict[0])
            if verdict is not None:
                if trial.state == STOPPED:
                    self.halts[key] = verdict[1]
                self.stop(key, *verdict)
            if trial.state in (STOPPED, FAILED):
                return

    def _tell(self, key, iteration=None, row=None, ends=None):
        """Tell the procedure of a trial's metrics after an iteration, or that it has failed; `ends`: why it goes no
        further, by a rule of its own."""
        value = None if row is None else self.training.value(row)
        ends = [ends] if ends else []
        self._note(["tell", key, iteration, value, *ends])
        self.heard[key] = iteration or self.heard.get(key, 0)
        best = self.procedure.best
        self.procedure.tell(key, iteration, value, *ends)
        if self.procedure.best != best:
            self.training.tell_best(key, row, len(self.procedure.trials))

    def _note(self, event):
        self.training.catalog.log_search(self.training.run_id, self.logged + 1, [event])
        self.logged += 1
