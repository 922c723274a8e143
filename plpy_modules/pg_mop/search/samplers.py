"""Makes a sampler by its name."""

from pg_mop.search.kernel_density import KdeSampler
from pg_mop.search.optuna_sampler import OptunaSampler
from pg_mop.search.parameters import SearchError, word
from pg_mop.search.random_sampler import GridSampler, RandomSampler
from pg_mop.search.sampler import Sampler
from pg_mop.search.space import Space

SAMPLERS = ("random", "grid", "tpe", "cmaes")
SAMPLER = word(SAMPLERS, "random", "where configurations come from: random, grid (in order), tpe or cmaes")
SAMPLER_OF_BRACKETS = word(
    ("random", "grid"), "random", "where configurations come from: random, or grid (all, in order)"
)


def create_sampler(name: str, space: Space, seed: int, budgets: bool = False) -> Sampler:
    """A new sampler of that name.

    `budgets`: the caller tells losses at several budgets for each trial. Raises SearchError for an unknown name or a
    missing package, and GridError where the sampler cannot sample the space.

    >>> space = Space.of_texts([1], "{'loss': ['mse'], 'optimizer': ['SGD', 'Adam']}", "{'batch_size': [8]}")
    >>> create_sampler("grid", space, seed=1).ask(1)
    {'model_id': 0, 'loss': 0, 'optimizer': 0, 'batch_size': 0}
    """
    if name == "grid":
        return GridSampler(space, seed)
    if name == "random":
        return RandomSampler(space, seed)
    if name not in SAMPLERS:
        raise SearchError(f"there is no sampler {name!r} ({', '.join(SAMPLERS)})")
    if name == "tpe" and budgets:
        return KdeSampler(space, seed)
    return OptunaSampler(space, seed, name)
