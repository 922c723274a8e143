"""Data-parallel training of one model: the board of madlib_keras_fit's averaging."""

from pg_mop.schedule.board import Board, Unit


class Replicas(Board):
    """One configuration as replicas, one for each segment (contract 4, section 1.1).

    Replica k (its mst_key, from 1) trains on training segment number k - 1 alone, from the average of all replicas
    after the iteration before, so an iteration of training begins when the one before has ended everywhere. The
    average is evaluated by all replicas together, each on its own segments, once all have trained.
    """

    shares_states = True

    def __init__(self, mst_keys, segments, num_iterations, metrics_iterations=(), validation_segments=()):
        if len(mst_keys) > 1:
            raise ValueError("replicas are of one configuration")
        super().__init__([k + 1 for k in range(len(segments))] if mst_keys else [], segments, num_iterations,
                         metrics_iterations, validation_segments)

    def eligible(self, place):
        trained = min((c.iteration - (c.phase == "train") for c in self._live.values()), default=0)
        return [u for u in super().eligible(place) if trained >= u.iteration - (u.kind == "train")]

    def drop(self, mst_key):
        """A replica has failed: the configuration has."""
        self._live.clear()

    def _enter(self, key, iteration, phase):
        configuration = self._live[key]
        configuration.iteration, configuration.phase = iteration, phase
        datasets = self.datasets if phase == "evaluate" else [("training", s) for s in self.segments]
        configuration.todo = {Unit(iteration, key, phase, dataset, segment) for dataset, segment in datasets
                              if self.home[dataset, segment] == key - 1}
