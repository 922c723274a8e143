"""The samplers by their names: a sampler is registered here, and nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pg_mop.search.kernel_density import KdeSampler
from pg_mop.search.optuna_sampler import OptunaSampler
from pg_mop.search.parameters import SearchError, word
from pg_mop.search.random_sampler import GridSampler, RandomSampler
from pg_mop.search.sampler import Sampler
from pg_mop.search.space import Space


@dataclass(frozen=True)
class Registered:
    """A sampler as users name it. `make(space, seed)`: a new one; `at_budgets`: the same where losses come at several budgets
    for each trial; `in_brackets`: for procedures that draw the configurations of a bracket at once."""

    make: Callable[[Space, int], Sampler]
    at_budgets: Callable[[Space, int], Sampler] | None = None
    in_brackets: bool = False


SAMPLERS = {
    "random": Registered(RandomSampler, in_brackets=True),
    "grid": Registered(GridSampler, in_brackets=True),  # (all, in their order)
    "tpe": Registered(partial(OptunaSampler, name="tpe"), at_budgets=KdeSampler),
    "cmaes": Registered(partial(OptunaSampler, name="cmaes")),
}
IN_BRACKETS = [name for name, sampler in SAMPLERS.items() if sampler.in_brackets]
SAMPLER, SAMPLER_OF_BRACKETS = (
    word(names, "random", f"where configurations come from: {', '.join(names)} (grid: all, in order)")
    for names in (list(SAMPLERS), IN_BRACKETS)
)


def create_sampler(name: str, space: Space, seed: int, budgets: bool = False) -> Sampler:
    """A new sampler of that name.

    `budgets`: the caller tells losses at several budgets for each trial. Raises SearchError for an unknown name or a
    missing package, and GridError where the sampler cannot sample the space.

    >>> space = Space.of_texts([1], "{'loss': ['mse'], 'optimizer': ['SGD', 'Adam']}", "{'batch_size': [8]}")
    >>> create_sampler("grid", space, seed=1).ask(1)
    {'model_id': 0, 'loss': 0, 'optimizer': 0, 'batch_size': 0}
    """
    sampler = SAMPLERS.get(name)
    if sampler is None:
        raise SearchError(f"there is no sampler {name!r} ({', '.join(SAMPLERS)})")
    return (budgets and sampler.at_budgets or sampler.make)(space, seed)
