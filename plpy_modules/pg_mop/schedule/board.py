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
    to evaluate; `validation_segments`: keys of the validation segments. A place is the number of a worker session: at
    first there is one for each training segment, which does the units of that, and the validation segments are dealt
    out over the same places. `serve` changes that.
    """

    shares_states = False  # a unit reads the states of other configurations

    def __init__(self, mst_keys, segments, num_iterations, metrics_iterations=(), validation_segments=()):
        self.segments, self.num_iterations = list(segments), num_iterations
        self.metrics_iterations = frozenset(metrics_iterations)
        self.datasets = [("training", s) for s in segments] + [("validation", s) for s in validation_segments]
        self.home = {("training", s): i for i, s in enumerate(segments)}
        self.home.update({("validation", s): i % len(self.segments) for i, s in enumerate(validation_segments)})
        self.serve(range(len(self.segments)))
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

    def serve(self, places):
        """Deal the segments out over these places: several to each or, where there are more places, to several."""
        self.places = sorted(places)
        self._serves = {place: set() for place in self.places}
        for dataset in ("training", "validation"):
            keys = [key for key in self.datasets if key[0] == dataset]
            for number in range(max(len(keys), len(self.places)) if keys else 0):
                self._serves[self.places[number % len(self.places)]].add(keys[number % len(keys)])

    def restore(self, units):
        """Go on after `units` that have been finished earlier."""
        finished = set(units)
        for key in list(self._live):
            while key in self._live:
                configuration = self._live[key]
                self.finished_units |= configuration.todo & finished
                configuration.todo -= finished
                if configuration.todo:
                    break
                self._advance(key, configuration)

    def is_running(self, mst_key):
        """True while a unit of the configuration is at work."""
        return mst_key in self._live and bool(self._live[mst_key].running)

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
            units += [u for u in configuration.todo if (u.dataset, u.segment) in self._serves.get(place, ())]
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
