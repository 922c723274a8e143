"""The catalog tables: runs, configurations, stages, segments, units, states, metrics and costs.

Only this package and run/unit.py (in worker sessions) know the tables. Users may not write to them: the SQL functions
of sql/13_*.sql do.

The catalog's statements have no `statement_timeout`: a large run needs longer statements. `lock_timeout` ends a wait for
another session's lock. The time of a statement grows with the run and not with its square. PostgreSQL's planner has no
statistics of a new run and expects one or two rows of it. So a statement that joins all rows of a run avoids nested loops
(`execute_whole`, or `SET enable_nestloop` at the function). A statement about few stages looks up each by the primary key
(`_rows_at`). A JSON argument is parsed once, not once for each row. `tests/sql/test_catalog_growth.py` counts the rows that
each statement looks at. A server that takes long and says that it is at work is not taken for lost (`catalog/remote.py`).
"""

from pg_mop.catalog.catalog import Catalog
from pg_mop.catalog.local import LocalCatalog
from pg_mop.catalog.remote import RemoteCatalog
from pg_mop.catalog.results import metric_of
from pg_mop.catalog.runs import note_output

__all__ = ["Catalog", "LocalCatalog", "RemoteCatalog", "metric_of", "note_output"]
