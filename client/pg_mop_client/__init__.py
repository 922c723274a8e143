"""pg_mop from Python: pack rows, select models where the rows are, look at runs.

It talks SQL alone, as the role that connects: it reads the views and the tables that are the role's, and writes by
pg_mop's own functions and by COPY into tables of the role.
"""

from pg_mop_client.errors import ClientError, LostError, ServerError
from pg_mop_client.run import Run
from pg_mop_client.selection import Selection

__all__ = ["ClientError", "LostError", "Run", "Selection", "ServerError"]
__version__ = "0.4.0"
