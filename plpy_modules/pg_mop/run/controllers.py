"""What decides, while a run goes on, what of it is asked for."""

import time

from pg_mop.backend.database import MopError
from pg_mop.catalog import metric_of
from pg_mop.plan.watch import Watch


class RunController:
    """Stops configurations by their own rules (`stop` in fit parameters), and keeps the best states of those that ask
    for that.

    The executor calls `begin(executor)` first, then `ended(stages)` for stages that have been trained and, where that
    was wanted, evaluated; `failed(mst_keys)`; `wishes(list)` of what people want (mop_stop_trial, mop_add_trial). It
    goes on until the board is done and so is this (`done`).

    A subclass has these but `wishes`, and does what people and rules want: `stop(mst_key, reason, at)`, at an iteration
    if a rule wants it; `add(configuration, iterations, reason)`, the configuration as (model_id, compile_params,
    fit_params).
    """

    done = True
    executor = None  # until the run begins

    def __init__(self, training):
        """`training`: the call (api/training.py), which checks configurations and knows what to tell."""
        self.training = training
        self.watches = {}  # mst_key -> Watch
        self.seen = {}  # mst_key -> the last iteration that its watch has been told of
        self.kept = {}  # mst_key -> the stage whose state is kept as its best one
        self.values = {}  # (stage, dataset) -> row of metrics
        self.stopped = set()  # mst_keys of those that go no further by a rule, or a wish

    def watch(self):
        """Watch the configurations that have rules, from what is known of them."""
        for c in self.training.configurations:
            self.begin_to_watch(c)
        self.look_up(
            {stage for key in self.watches for stage in self.executor.plan.path(key) if stage.evaluated and stage.ended}
        )
        for key in list(self.watches):
            self.look(key)

    def begin_to_watch(self, c):
        if "rule" in c and not c.get("error"):
            _, _, goal = c["rule"]
            self.watches[c["mst_key"]] = Watch(goal, c["fit"]["stop"])

    def look(self, mst_key):
        """Tell a configuration's watch what is known of its stages by now; stop it where the watch says so."""
        if (verdict := self.judge(mst_key)) is not None:
            self.stop(mst_key, *verdict)

    def judge(self, mst_key, until=None):
        """Tell a configuration's watch what is known of its stages by now, or of those `until` an iteration: (why it
        stops, after which iteration), or None."""
        watch, executor = self.watches[mst_key], self.executor
        c = self.training.by_key[mst_key]
        metric, dataset, _ = c["rule"]
        path = executor.plan.path(mst_key)
        for stage in path[self.seen.get(mst_key, 0) : until]:
            if not stage.ended:
                return None
            self.seen[mst_key] = stage.iteration
            row = self.row(stage, dataset) if stage.evaluated else None
            if row is None:
                continue
            reason = watch.told(stage.iteration, metric_of(row, metric))
            if c["fit"]["keep"] == "best" and watch.best[0] == stage.iteration:
                executor.pin(stage.number, self.kept.get(mst_key))
                self.kept[mst_key] = stage.number
            if reason is not None and mst_key not in self.stopped:
                return reason, stage.iteration
        return None

    def row(self, stage, dataset):
        """The metrics of a stage that has been evaluated; None: not on this dataset."""
        if (stage.number, "training") not in self.values:
            self.look_up([stage])
        return self.values.get((stage.number, dataset))

    def look_up(self, stages):
        """Read the metrics of stages that have been evaluated."""
        unknown = [stage.number for stage in stages if (stage.number, "training") not in self.values]
        for row in self.training.catalog.metrics(self.training.run_id, stages=unknown) if unknown else ():
            self.values[row["stage"], row["dataset"]] = row

    def apply_rules(self, stages):
        """Heed the rules of the configurations of stages that have ended."""
        if self.watches:
            self.look_up([stage for stage in stages if stage.evaluated])
            for mst_key in sorted(set().union(*(stage.trials for stage in stages)) & self.watches.keys()):
                self.look(mst_key)

    def control_requests(self, control_requests):
        """Do what people want of the run. True where something has changed that is not their doing."""
        for control_request in control_requests:
            if "stop" in control_request:
                self.stop(control_request["stop"], f"stopped by {control_request['by']}")
                continue
            model_id, compile_params, fit_params = control_request["add"]
            reason = f"added by {control_request['by']}"
            try:
                self.add((model_id, compile_params, fit_params or ""), control_request["iterations"], reason)
            except MopError as error:  # the tables that it needs have changed
                self.training.db.warning(f"the configuration {reason} cannot be taken up: {error.message}")

    def withdraw(self, mst_key, reason, at=None):
        """A configuration goes no further than the iteration that it is in, or than `at`, and is evaluated after that,
        for that is what will be written of it. Returns the stages of which less is wanted by that."""
        self.stopped.add(mst_key)
        gone = self.executor.withdraw(mst_key, reason, at)
        path = self.executor.plan.path(mst_key)
        if path and not path[-1].failed:
            stages, _ = self.training.ask(self.training.by_key[mst_key], len(path), (len(path),))
            if stages and mst_key in self.seen:  # it may have ended without: its watch is to be told now
                self.seen[mst_key] = min(self.seen[mst_key], len(path) - 1)
            self.executor.ask([], stages, [])
            self.expect(stages)
        return gone

    def expect(self, stages):
        """These stages are to be done."""


class FixedController(RunController):
    """All is asked for at the beginning, but for what people add; tells of iterations that all have been through."""

    def begin(self, executor):
        self.executor = executor
        self.left = {}  # iteration -> numbers of the stages that have not ended
        self.worked = set()  # iterations of which something was done now
        self.watch()
        self.expect(executor.plan.stages.values())
        self.told = min(self.left, default=1) - 1
        self.began, self.passed = time.monotonic(), 0  # since when so many stages have ended

    def ended(self, stages):
        for stage in stages:
            self.worked.add(stage.iteration)
            self._leave(stage)
        self.passed += len(stages)
        self.apply_rules(stages)
        self.tell()

    def failed(self, mst_keys):
        self.unwanted()
        self.tell()

    def stop(self, mst_key, reason, at=None):
        for stage in self.withdraw(mst_key, reason, at) if self.executor.plan.path(mst_key) else ():
            if not stage.trials:
                self._leave(stage)

    def add(self, configuration, iterations, reason):
        training = self.training
        iterations = iterations or training.num_iterations
        c = training.new_configuration(max(training.by_key) + 1, configuration)
        if problem := training.add(c, iterations):
            training.db.warning(f"configuration {c['mst_key']}, {reason}, cannot be trained: {problem}")
        self.begin_to_watch(c)
        stages, requests = (
            ([], [])
            if problem
            else training.ask(
                c,
                iterations,
                [i for i in range(1, iterations + 1) if i in training.metrics_iterations or i == iterations],
            )
        )
        self.executor.ask([c], stages, requests)
        self.expect(stages)
        if c["mst_key"] in self.watches:  # what others have trained already may be its best, or its end
            self.look(c["mst_key"])

    def tell(self):
        """Tell of the iterations that have been gone through."""
        reached = min(self.left, default=max(self.worked, default=self.told) + 1)
        while self.told < reached - 1:
            self.told += 1
            if self.told in self.worked:
                self.training.tell(self.told, self.seconds_left())

    def seconds_left(self):
        """To the end, if stages go on to take what they took by now; None where none has ended."""
        left = sum(len(numbers) for numbers in self.left.values())
        return (time.monotonic() - self.began) * left / self.passed if self.passed else None

    def expect(self, stages):
        for stage in stages:
            if stage.trials and not stage.failed and not stage.ended:
                self.left.setdefault(stage.iteration, set()).add(stage.number)

    def unwanted(self):
        """Some configurations go no further: what nobody else wants is not to be done."""
        for numbers in list(self.left.values()):
            gone = {n for n in numbers if not (stage := self.executor.plan.stages[n]).trials or stage.failed}
            for number in gone:
                self._leave(self.executor.plan.stages[number])

    def _leave(self, stage):
        here = self.left.get(stage.iteration)
        if here is not None:
            here.discard(stage.number)
            if not here:
                del self.left[stage.iteration]
