"""What may run now: the one place that keeps model hopper parallelism's rules.

Every configuration visits every segment once per iteration; it is at one place at a time while it trains; after an
iteration with metrics it is evaluated, on many segments at once, before it trains on. Pure Python: the event loop and
the simulator drive the same object.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Unit:
    """One configuration on one segment once: trained, or evaluated."""

    iteration: int
    mst_key: int
    kind: str      # 'train' | 'evaluate'
    dataset: str   # 'training' | 'validation'
    segment: int


@dataclass
class _Configuration:
    iteration: int = 1
    phase: str = "train"
    todo: set = field(default_factory=set)
    running: set = field(default_factory=set)


class Board:
    """The state of a run's units.

    `mst_keys`: configurations; `segments`: keys of the training segments; `metrics_iterations`: after which iterations
    to evaluate; `validation_segments`: keys of the validation segments. A unit's place (the number of the worker
    session that runs it) is that of its segment: training segment number i at place i, validation segments dealt out
    over the same places.
    """

    def __init__(self, mst_keys, segments, num_iterations, metrics_iterations=(), validation_segments=()):
        self.segments, self.num_iterations = list(segments), num_iterations
        self.metrics_iterations = frozenset(metrics_iterations)
        self.datasets = [("training", s) for s in segments] + [("validation", s) for s in validation_segments]
        self.place = {("training", s): i for i, s in enumerate(segments)}
        self.place.update({("validation", s): i % len(self.segments) for i, s in enumerate(validation_segments)})
        self.places = range(len(self.segments))
        self._live = {}
        self._reserved = {}  # mst_key -> place
        self.finished_units = set()
        for key in mst_keys:
            self._live[key] = _Configuration()
            self._enter(key, 1, "train")

    @property
    def live(self):
        """Configurations that still have work, in order."""
        return sorted(self._live)

    @property
    def done(self):
        return not self._live

    def iteration(self, mst_key):
        """The iteration that a configuration is in; one more than the last when it is done."""
        return self._live[mst_key].iteration if mst_key in self._live else self.num_iterations + 1

    def visits_left(self, mst_key, segment):
        """How often a configuration is still to be trained on a training segment."""
        configuration = self._live.get(mst_key)
        if configuration is None:
            return 0
        left = self.num_iterations - configuration.iteration
        if configuration.phase == "train":
            left += any(u.segment == segment for u in (*configuration.todo, *configuration.running))
        return left

    def eligible(self, place):
        """The units that may start now at `place`, in a fixed order."""
        units = []
        for configuration in self._live.values():
            if configuration.phase == "train" and configuration.running:
                continue
            units += [u for u in configuration.todo if self.place[u.dataset, u.segment] == place]
        free = [u for u in units if self._reserved.get(u.mst_key, place) == place]
        return sorted(free or units)

    def reserve(self, place, mst_key):
        """Keep a configuration for `place`, in place of the one before (None: none), from those that have others."""
        self._reserved = {key: of for key, of in self._reserved.items() if of != place}
        if mst_key is not None:
            self._reserved.setdefault(mst_key, place)

    def start(self, unit):
        configuration = self._live[unit.mst_key]
        configuration.todo.remove(unit)
        configuration.running.add(unit)
        self._reserved.pop(unit.mst_key, None)

    def release(self, unit):
        """A unit was not done: it is to be run again."""
        if unit.mst_key in self._live:
            configuration = self._live[unit.mst_key]
            configuration.running.remove(unit)
            configuration.todo.add(unit)

    def finish(self, unit):
        self.finished_units.add(unit)
        configuration = self._live.get(unit.mst_key)
        if configuration is None:
            return
        configuration.running.remove(unit)
        if not configuration.todo and not configuration.running:
            self._advance(unit.mst_key, configuration)

    def drop(self, mst_key):
        """A configuration has failed: it has no more units."""
        self._live.pop(mst_key, None)

    def _advance(self, key, configuration):
        if configuration.phase == "train" and configuration.iteration in self.metrics_iterations:
            self._enter(key, configuration.iteration, "evaluate")
        elif configuration.iteration < self.num_iterations:
            self._enter(key, configuration.iteration + 1, "train")
        else:
            del self._live[key]

    def _enter(self, key, iteration, phase):
        configuration = self._live[key]
        configuration.iteration, configuration.phase = iteration, phase
        datasets = self.datasets if phase == "evaluate" else [("training", s) for s in self.segments]
        configuration.todo = {Unit(iteration, key, phase, dataset, segment) for dataset, segment in datasets}
