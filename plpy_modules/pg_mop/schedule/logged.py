"""A visit order that is given: the board of a replay."""

from pg_mop.schedule.board import Board


class Logged(Board):
    """Every configuration visits the segments in a logged order, whoever has a place for them.

    `order`: {(mst_key, iteration): [segment, ...]}, as the view mop_visit_order lists it.
    """

    def __init__(self, mst_keys, segments, num_iterations, metrics_iterations=(), validation_segments=(), *, order):
        self.order = order
        super().__init__(mst_keys, segments, num_iterations, metrics_iterations, validation_segments)

    def eligible(self, place):
        return [u for u in super().eligible(place) if u.kind != "train" or self._next(u.mst_key) == u.segment]

    def _next(self, mst_key):
        configuration = self._live[mst_key]
        left = {u.segment for u in configuration.todo}
        return next(segment for segment in self.order[mst_key, configuration.iteration] if segment in left)
