"""Data-parallel training of one model: the board of madlib_keras_fit's averaging."""

from pg_mop.schedule.board import Board


class Replicas(Board):
    """One configuration as replicas, one for each segment (docs/contract/fit_evaluate_predict.md, section 1.1), each a trial from 1.

    Replica k trains on training segment number k - 1 alone, from the average of all replicas after the iteration
    before, so an iteration of training begins when the one before has ended everywhere. The average is evaluated once
    all have trained; what comes of that belongs to the first replica's stage.
    """

    shares_states = True

    def __init__(self, plan, segments, validation_segments=(), servers=None, others=()):
        trials = set().union(*(stage.trials for stage in plan.stages.values()))
        if trials - set(range(1, len(segments) + 1)):
            raise ValueError("replicas are of one configuration, one for each segment")
        self._replica = {stage.number: k for k in trials for stage in plan.path(k)}
        for number, k in self._replica.items():
            if k > 1:
                plan.stages[number].evaluated_for = None
        self._here = {}  # iteration -> stages that have been trained and wait for the others
        super().__init__(plan, segments, validation_segments, servers, others)

    def fail(self, stage_number):
        """A replica has failed: the configuration has."""
        return set().union(*(super(Replicas, self).fail(stage.number) for stage in list(self.plan.stages.values())))

    def _visits(self, stage):
        return [self.segments[self._replica[stage.number] - 1]]

    def _trained(self, stage, ended):
        here = self._here.setdefault(stage.iteration, [])
        here.append(stage)
        if len(here) == len(self.segments):
            for each in here:
                super()._trained(each, ended)
