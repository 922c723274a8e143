"""pg_mop from Python: load tables, train and select models inside the database, look at runs.

The client uses only SQL, as the connected role. It reads views and the role's tables. It writes through pg_mop's
functions, and by COPY into tables of the role.
"""

from pg_mop_client.errors import ClientError, LostError, ServerError
from pg_mop_client.model import Model
from pg_mop_client.run import Run
from pg_mop_client.selection import Selection
from pg_mop_client.spaces import ServerSpace, Space, layer, match

__all__ = [
    "ClientError",
    "LostError",
    "Model",
    "Run",
    "Selection",
    "ServerError",
    "ServerSpace",
    "Space",
    "layer",
    "match",
]
__version__ = "0.4.0"
