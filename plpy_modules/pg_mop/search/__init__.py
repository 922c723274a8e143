"""Search procedures, which propose, extend and stop trials, each behind the interface of `base.py`. Pure Python.

procedure = create("asha", Space.of_texts([1], compile_params_grid, fit_params_grid), seed=1, goal="max",
                   parameters="iterations=27, reduction=3")
while not procedure.done:
    for trial, configuration, budget in procedure.ask(): ...
    procedure.tell(trial, iteration, value)
"""

from collections.abc import Mapping
from typing import Any

from pg_mop.search.asha import Asha
from pg_mop.search.base import Procedure
from pg_mop.search.bohb import Bohb
from pg_mop.search.evolution import Evolution
from pg_mop.search.grid import Grid
from pg_mop.search.hyperband import Hyperband
from pg_mop.search.madlib_hyperband import MadlibHyperband
from pg_mop.search.madlib_hyperopt import MadlibHyperopt
from pg_mop.search.median_stopping import MedianStopping
from pg_mop.search.one_shot import OneShot
from pg_mop.search.parameters import SearchError, read_parameters
from pg_mop.search.population import Population
from pg_mop.search.random import Random
from pg_mop.search.space import Space
from pg_mop.search.successive_halving import SuccessiveHalving
from pg_mop.search.tpe import Tpe

PROCEDURES: dict[str, type[Procedure]] = {
    p.name: p
    for p in (Grid, Random, SuccessiveHalving, Hyperband, Asha, Population, MedianStopping, Tpe, Bohb, Evolution)
}
OF_MODELS: dict[str, type[Procedure]] = {OneShot.name: OneShot}  # they need a model space
MADLIB: dict[str, type[Procedure]] = {p.name: p for p in (MadlibHyperband, MadlibHyperopt)}  # madlib_keras_automl only


def find(name: str | None) -> type[Procedure]:
    """The class of the procedure of that name, in any case. Raises SearchError for an unknown name."""
    found = {**PROCEDURES, **OF_MODELS, **MADLIB}.get((name or "").strip().lower().replace("_", "-").replace(" ", "-"))
    if found is None:
        raise SearchError(
            f"there is no search procedure {name!r}", "The procedures are " + ", ".join((*PROCEDURES, *OF_MODELS)) + "."
        )
    return found


def create(
    name: str | None, space: Space, seed: int, goal: str = "min", parameters: Mapping[str, Any] | str | None = None
) -> Procedure:
    """A new procedure.

    `goal`: 'min' or 'max' of the metric. `parameters`: a dict, or a text such as 'iterations=27, reduction=3'. Raises
    SearchError for an unknown name or parameter, and GridError where the procedure cannot search the space.
    """
    kind = find(name)
    values = parameters if isinstance(parameters, Mapping) else read_parameters(parameters)
    kind.check_names(values)  # (before the call: a name may equal that of an argument)
    return kind(space, seed, goal, **values)
