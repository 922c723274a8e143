"""Samplers that do not learn: at random, and the grid in its order."""

from pg_mop.search.parameters import SearchError
from pg_mop.search.sampler import Sampler
from pg_mop.search.space import Point, Space

MOST_TRIES = 1000  # random draws in a row without a new configuration, before the remaining ones are listed
MOST_LISTED = 1_000_000  # configurations of a space that are listed
MOST_MADE = 10_000  # the same of a space of models, which are made one by one
MOST_MISFITS = 10_000  # members of a grid in a row that do not fit together


class GridSampler(Sampler):
    """The grid, in its order."""

    def __init__(self, space: Space, seed: int) -> None:
        """Raises GridError for a space with distributions."""
        super().__init__(space, seed)
        self.points = space.points()
        self.ahead = next(self.points, None)

    def ask(self, trial: int | None) -> Point | None:
        """Raises SearchError where no member is found among the first MOST_MISFITS of a space of models; a grid that has
        proposed configurations ends there."""
        before = self._misfits()
        while self.ahead is not None:
            point, self.ahead = self.ahead, next(self.points, None)
            if self.claim(self.space.configuration(point)):
                return point
            if self._misfits() - before >= MOST_MISFITS:
                self.ahead = None
                self._end()
        return None

    def _misfits(self) -> int:
        return 0 if self.space.models is None else self.space.models.missed

    def _end(self) -> None:
        models = self.space.models
        assert models is not None
        if not self.claimed:
            reason = max(models.misfits, key=lambda text: models.misfits[text])
            raise SearchError(
                f"none of the first {MOST_MISFITS} members of the model space fits together, the most frequent reason is: "
                f"{reason}",
                "Use another procedure: 'random' draws members of the whole space.",
            )
        models.ended = True


class RandomSampler(Sampler):
    """Random points, without replacement."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space, seed)
        self.left: list[Point] | None = None  # the remaining points, shuffled, once random draws find few of them

    def ask(self, trial: int | None) -> Point | None:
        if self.left is None:
            for _ in range(MOST_TRIES):
                point = self.space.sample(self.random)
                if self.claim(self.space.configuration(point)):
                    return point
            self.left = []
            if self.space.size is not None and self.space.size <= (
                MOST_LISTED if self.space.models is None else MOST_MADE
            ):
                self.left = [p for p in self.space.points() if self.space.configuration(p) not in self.claimed]
                self.random.shuffle(self.left)
        while self.left:
            point = self.left.pop()
            if self.claim(self.space.configuration(point)):
                return point
        return None
