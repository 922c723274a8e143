"""The catalog tables: runs, configurations, stages, segments, units, states, metrics and costs.

Only this package and run/unit.py (in worker sessions) know the tables. Users may not write to them: the SQL functions
of sql/13_*.sql do.
"""

from pg_mop.catalog.catalog import Catalog
from pg_mop.catalog.local import LocalCatalog
from pg_mop.catalog.remote import RemoteCatalog
from pg_mop.catalog.results import metric_of
from pg_mop.catalog.runs import note_output

__all__ = ["Catalog", "LocalCatalog", "RemoteCatalog", "metric_of", "note_output"]
