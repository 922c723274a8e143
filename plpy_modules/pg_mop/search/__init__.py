"""Procedures that propose, extend and stop trials, each behind the interface of `base.py`. Pure Python.

procedure = create("asha", Space.of_texts([1], compile_params_grid, fit_params_grid), seed=1, goal="max",
                   parameters="iterations=27, reduction=3")
while not procedure.done:
    for trial, configuration, budget in procedure.ask(): ...
    procedure.tell(trial, iteration, value)
"""

from pg_mop.search.asha import Asha
from pg_mop.search.base import SearchError, read_parameters
from pg_mop.search.bohb import Bohb
from pg_mop.search.grid import Grid
from pg_mop.search.hyperband import Hyperband
from pg_mop.search.madlib_hyperband import MadlibHyperband
from pg_mop.search.madlib_hyperopt import MadlibHyperopt
from pg_mop.search.median_stopping import MedianStopping
from pg_mop.search.population import Population
from pg_mop.search.random import Random
from pg_mop.search.successive_halving import SuccessiveHalving
from pg_mop.search.tpe import Tpe

PROCEDURES = {
    p.name: p for p in (Grid, Random, SuccessiveHalving, Hyperband, Asha, Population, MedianStopping, Tpe, Bohb)
}
MADLIB = {p.name: p for p in (MadlibHyperband, MadlibHyperopt)}  # of madlib_keras_automl alone


def find(name):
    """The class of the procedure of that name (in any case). Raises SearchError."""
    found = {**PROCEDURES, **MADLIB}.get((name or "").strip().lower().replace("_", "-").replace(" ", "-"))
    if found is None:
        raise SearchError(f"there is no search procedure {name!r}", "The procedures are " + ", ".join(PROCEDURES) + ".")
    return found


def create(name, space, seed, goal="min", parameters=None):
    """A procedure of that name. `parameters`: a dict, or the text of one: `iterations=27, reduction=3`.

    Raises SearchError, and GridError where the space does not serve.
    """
    kind = find(name)
    if not isinstance(parameters, dict):
        parameters = read_parameters(parameters)
    kind.check_names(parameters)  # (one of them may be called as an argument is)
    return kind(space, seed, goal, **parameters)
