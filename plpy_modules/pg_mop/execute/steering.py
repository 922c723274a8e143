"""What decides, while a run goes on, what of it is asked for: of fit_multiple_model, all from the beginning."""


class Steering:
    """Asks for what people wish to be added, and for nothing else; tells of iterations that all have been through.

    The executor calls `begin(executor)` first, then `ended(stages)` for stages that have been trained and, where that
    was wanted, evaluated; `failed(mst_keys)`; `wishes(list)` of what people want (mop_stop_trial, mop_add_trial). It
    goes on until the board is done and so is this (`done`).
    """

    done = True

    def __init__(self, training):
        """`training`: the call (api/training.py), which checks configurations and knows what to tell."""
        self.training = training

    def begin(self, executor):
        self.executor = executor
        self.left = {}       # iteration -> numbers of the stages that have not ended
        self.worked = set()  # iterations of which something was done now
        self.expect(executor.plan.stages.values())
        self.told = min(self.left, default=1) - 1

    def expect(self, stages):
        """These stages are to be done."""
        for stage in stages:
            if stage.trials and not stage.failed and not has_ended(stage):
                self.left.setdefault(stage.iteration, set()).add(stage.number)

    def ended(self, stages):
        for stage in stages:
            self.worked.add(stage.iteration)
            self._leave(stage)
        self.tell()

    def failed(self, mst_keys):
        self.unwanted(mst_keys)
        self.tell()

    def unwanted(self, mst_keys):
        """These configurations go no further."""
        for numbers in list(self.left.values()):
            gone = {n for n in numbers if not (stage := self.executor.plan.stages[n]).trials or stage.failed}
            for number in gone:
                self._leave(self.executor.plan.stages[number])

    def wishes(self, wishes):
        """Do what people want of the run. True where something has changed that is not their doing."""
        for wish in wishes:
            if "stop" in wish:
                self.stop(wish["stop"], f"stopped by {wish['by']}")
            elif "add" in wish:
                self.add(wish["add"], wish["iterations"], f"added by {wish['by']}")

    def stop(self, mst_key, reason):
        """A configuration goes no further than the iteration that it is in."""
        if self.executor.plan.path(mst_key):
            self.executor.withdraw(mst_key, reason)
            self.unwanted([mst_key])

    def add(self, configuration, iterations, reason):
        """Train a configuration (model_id, compile_params, fit_params), too."""
        training = self.training
        iterations = iterations or training.num_iterations
        c = training.new_configuration(max(c["mst_key"] for c in training.configurations) + 1, configuration)
        if problem := training.add(c):
            training.db.warning(f"configuration {c['mst_key']}, {reason}, cannot be trained: {problem}")
        self.ask(c, iterations, [i for i in range(1, iterations + 1)
                                 if i in training.metrics_iterations or i == iterations], [c])

    def ask(self, c, until, evaluated, new=()):
        """Ask for a configuration's iterations up to `until`; `new`: itself where it is."""
        stages, requests = ([], []) if c.get("error") else self.training.ask(c, until, evaluated)
        self.executor.ask(new, stages, requests)
        self.expect(stages)

    def tell(self):
        """Tell of the iterations that have been gone through."""
        reached = min(self.left, default=max(self.worked, default=self.told) + 1)
        while self.told < reached - 1:
            self.told += 1
            if self.told in self.worked:
                self.training.tell(self.told)

    def _leave(self, stage):
        here = self.left.get(stage.iteration)
        if here is not None:
            here.discard(stage.number)
            if not here:
                del self.left[stage.iteration]


def has_ended(stage):
    """True where nothing of the stage is left to do."""
    return stage.trained and (stage.scored or not stage.evaluated)
