"""What decides, while a run goes on, what of it is asked for: of fit_multiple_model everything is from the beginning."""


class Steering:
    """Asks for nothing more; tells of iterations that all configurations have been through.

    The executor calls `begin(executor)` first, then `ended(stages)` for stages that have been trained and, where that
    was wanted, evaluated; `failed(mst_keys)`; `wishes(list)` of what people want (see mop_add_wish). It goes on until
    the board is done and so is this (`done`).
    """

    done = True

    def __init__(self, on_iteration):
        """`on_iteration(i)` is called once every configuration that goes on has been through iteration i."""
        self.on_iteration = on_iteration

    def begin(self, executor):
        self.executor = executor
        self.left = {}      # iteration -> numbers of the stages that have not ended
        self.worked = set() # iterations of which something was done now
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
        self._tell()

    def failed(self, mst_keys):
        self.unwanted(stage for key in mst_keys for stage in self.executor.plan.path(key))

    def unwanted(self, stages):
        """Somebody needs these stages no longer."""
        for stage in stages:
            if stage.failed or not stage.trials:
                self._leave(stage)
        self._tell()

    def wishes(self, wishes):
        """What people want of the run: nothing that this could do."""

    def _leave(self, stage):
        here = self.left.get(stage.iteration)
        if here is not None:
            here.discard(stage.number)
            if not here:
                del self.left[stage.iteration]

    def _tell(self):
        reached = min(self.left, default=max(self.worked, default=self.told) + 1)
        while self.told < reached - 1:
            self.told += 1
            if self.told in self.worked:
                self.on_iteration(self.told)


def has_ended(stage):
    """True where nothing of the stage is left to do."""
    return stage.trained and (stage.scored or not stage.evaluated)
