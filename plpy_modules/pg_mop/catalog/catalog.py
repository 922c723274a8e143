"""The whole catalog behind one session."""

from pg_mop.catalog.results import Results
from pg_mop.catalog.runs import Runs
from pg_mop.catalog.searches import Searches
from pg_mop.catalog.states import States


class Catalog(Runs, States, Results, Searches):  # (Results are Units)
    """The catalog of this server: each base class has the methods for one subject."""
