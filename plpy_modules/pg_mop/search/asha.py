"""ASHA (Li et al.: "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, Algorithm 2)."""

from heapq import heappop, heappush, heappushpop

from pg_mop.search import sources
from pg_mop.search.base import FAILED, MOST_TRIALS, PAUSED, Procedure, whole
from pg_mop.search.sources import SAMPLER
from pg_mop.search.successive_halving import LEAST, MOST, REDUCTION, SKIP, rung_levels


class Asha(Procedure):
    """Asynchronous successive halving: whenever a place is free, a trial among the best 1 / `reduction` of its rung
    goes on to the next one, of the highest rung that has one; where none has, a new trial begins.

    A trial that waits keeps its state and costs nothing, so promotions are the paper's, at any time. The paper has no
    end of configurations; when those of `trials` or of the space are used up and nothing more can be promoted, the best
    of the highest rung goes on until one has trained to the end. What is known from earlier is in the rungs from the
    beginning, and may be promoted.
    """

    name = "asha"
    PARAMETERS = {
        "trials": whole(
            1,
            MOST_TRIALS,
            None,
            "configurations; not given: all of a grid, else three times as many as give one that trains to the end",
        ),
        "iterations": MOST,
        "reduction": REDUCTION,
        "least": LEAST,
        "skip": SKIP,
        "sampler": SAMPLER,
        "parallel": whole(1, MOST_TRIALS, 8, "trials that train at a time"),
    }

    def __init__(self, space, seed, goal="min", **parameters):
        super().__init__(space, seed, goal, **parameters)
        self.levels = tuple(rung_levels(self))
        self.rungs = [Rung(self.settings.reduction) for _ in self.levels]
        self.source = sources.source(self.settings.sampler, space, seed, budgets=True)
        self.left = self.settings.trials or (
            MOST_TRIALS if self.settings.sampler == "grid" else 3 * self.settings.reduction ** (len(self.levels) - 1)
        )

    @property
    def most(self):
        return self.settings.iterations

    def _begin(self):
        for configuration, losses in self.known:
            for iteration in sorted({*self.levels, max(losses)} & set(losses)):
                self.source.knows(configuration, iteration, losses[iteration])
            at = [rung for rung, level in enumerate(self.levels) if level in losses]
            if at and self.space.locate(configuration) is not None and self.source.take(configuration):
                trial = self._new(configuration)
                trial.at, trial.data = self.levels[at[-1]], at[-1]
                self.source.goes_on(trial.number, configuration)
                for rung in at:
                    self.rungs[rung].add(losses[self.levels[rung]], trial.number, promoted=rung != at[-1])
        self._fill()

    def _evaluates(self, trial):
        return self.levels

    def _reached(self, trial):
        self.source.told(trial.number, trial.at, trial.loss)
        self.rungs[trial.data].add(trial.loss, trial.number)
        self._fill()

    def _lost(self, trial):
        self.source.lost(trial.number, trial.state == FAILED)
        self._fill()

    def _withdrawn(self, trial):
        self._fill()

    def _fill(self):
        while self._running < self.settings.parallel:
            rung, trial = self._promotable()
            if trial is None and self.left:
                trial, rung = self._drawn(), 0
            if trial is None:
                return
            trial.data = rung
            self._propose(trial, self.levels[rung])

    def _promotable(self):
        """(its next rung, the trial) that goes on first; (None, None)."""
        for rung in range(len(self.levels) - 2, -1, -1):
            number = self.rungs[rung].promote(self._waits)
            if number is not None:
                return rung + 1, self.trials[number]
        return None, None

    def _waits(self, number):
        return self.trials[number].state == PAUSED

    def _drawn(self):
        point = self.source.draw(len(self.trials) + 1)
        if point is None:
            self.left = 0
            return None
        self.left -= 1
        return self._new(self.space.configuration(point))

    def _finish(self):
        if not len(self.rungs[-1]):
            for rung in range(len(self.levels) - 2, -1, -1):
                number = self.rungs[rung].promote(self._waits, anyway=True)
                if number is not None:
                    self.trials[number].data = rung + 1
                    self._propose(self.trials[number], self.levels[rung + 1])
                    return
        for rung, waiting in enumerate(self.rungs[:-1]):
            for loss, number in waiting.unpromoted:
                del loss
                if self._waits(number):
                    self._stop(
                        self.trials[number],
                        f"rung {rung}: not among the best 1/{self.settings.reduction} of {len(waiting)}",
                    )


class Rung:
    """What has been told at a rung, and which of it may go on: the best floor(n / reduction) of n. O(log n)."""

    def __init__(self, reduction):
        self.reduction = reduction
        self.top, self.rest = [], []  # heaps: the best floor(n / reduction), the worst of them first; and the others
        self.unpromoted = []  # heap of (loss, number)

    def __len__(self):
        return len(self.top) + len(self.rest)

    def add(self, loss, number, promoted=False):
        """A trial's loss. Of equal ones, the earlier trial counts as better."""
        if not promoted:
            heappush(self.unpromoted, (loss, number))
        if self.top:
            worst = heappushpop(self.top, (-loss, -number))
            loss, number = -worst[0], -worst[1]
        heappush(self.rest, (loss, number))
        if len(self.top) < len(self) // self.reduction:
            loss, number = heappop(self.rest)
            heappush(self.top, (-loss, -number))

    def promote(self, waits, anyway=False):
        """The number of the best trial that did not go on yet, if it is among the best; it counts as gone. Else None.

        `waits(number)`: it still may; `anyway`: also one that is not among the best.
        """
        while self.unpromoted and not waits(self.unpromoted[0][1]):
            heappop(self.unpromoted)
        if not self.unpromoted:
            return None
        loss, number = self.unpromoted[0]
        if anyway or self.top and (-loss, -number) >= self.top[0]:
            return heappop(self.unpromoted)[1]
        return None
