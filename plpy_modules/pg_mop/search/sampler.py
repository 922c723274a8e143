"""The interface of the samplers, which propose configurations."""

from abc import ABC, abstractmethod
from random import Random

from pg_mop.search.space import ParameterSet, Point, Space


class Sampler(ABC):
    """Proposes configurations of a space, each once; a subclass may learn from the results.

    A subclass needs `ask`:

    >>> class LastFirst(Sampler):
    ...     def __init__(self, space, seed):
    ...         super().__init__(space, seed)
    ...         self.points = list(space.points())
    ...
    ...     def ask(self, trial):
    ...         while self.points:
    ...             point = self.points.pop()
    ...             if self.claim(self.space.configuration(point)):
    ...                 return point
    ...         return None
    >>> space = Space.of_texts([1], "{'loss': ['mse'], 'optimizer': ['SGD', 'Adam']}", "{'batch_size': [8]}")
    >>> sampler = LastFirst(space, seed=1)
    >>> space.configuration(sampler.ask(1))
    ParameterSet(model_id=1, compile_params="loss='mse',optimizer='Adam()'", fit_params='batch_size=8')
    >>> sampler.ask(2) is None, sampler.ask(3) is None
    (False, True)
    """

    def __init__(self, space: Space, seed: int) -> None:
        self.space, self.random = space, Random(seed)
        self.claimed: set[ParameterSet] = set()

    @abstractmethod
    def ask(self, trial: int | None) -> Point | None:
        """The point of a new configuration for the trial of that number; None: the sampler finds no new one."""

    def claim(self, configuration: ParameterSet) -> bool:
        """Mark a configuration as proposed. Returns False if it was proposed before, or if its model does not fit together."""
        if configuration[0] is None:
            return False
        new = configuration not in self.claimed
        self.claimed.add(configuration)
        return new

    def tell(self, trial: int, budget: int, loss: float) -> None:  # noqa: B027 (few samplers learn)
        """Take the loss of a trial after `budget` iterations."""

    def tell_lost(self, trial: int, failed: bool) -> None:  # noqa: B027
        """A trial will have no more results, because it has failed, or because a user has stopped it."""

    def add_result(self, configuration: ParameterSet, budget: int, loss: float) -> None:  # noqa: B027
        """Take an earlier result of a configuration."""

    def resume(self, trial: int, configuration: ParameterSet) -> None:  # noqa: B027
        """The trial of that number continues a configuration that has earlier results."""
