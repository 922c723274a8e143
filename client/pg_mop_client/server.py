"""A server with pg_mop: its connections, and its SQL functions as methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy

from pg_mop_client.calling import Calls
from pg_mop_client.database import Where, connected, find_extension, make_engine
from pg_mop_client.errors import ServerError
from pg_mop_client.functions import methods

Self = TypeVar("Self", bound="Server")


class Server(ABC):
    """The connections to a server, the schema of the extension, and a method for each SQL function.

    `engine`: for what is read; `calls`: the session that makes the calls, with pg_mop's settings.
    """

    if TYPE_CHECKING:  # the SQL functions

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    def __init__(self, where: Where, schema: str | None, settings: Mapping[str, Any]) -> None:
        """`where`: an SQLAlchemy engine, a URI, or libpq's parameters; `schema`: the required schema of the extension.
        Raises ClientError if the extension is missing, too old, in another schema, or not granted to the role."""
        self.engine = make_engine(where)
        self._is_own = not isinstance(where, sqlalchemy.Engine)
        with connected(self.engine) as connection:
            self.schema = find_extension(connection, schema)
            for name, method in methods(connection, self.schema, self._call).items():
                setattr(self, name, method)
        self.calls = Calls(self.engine, self.schema, dict(settings))
        try:
            self.calls.connection()
        except ServerError:
            self.close()
            raise

    @abstractmethod
    def _call(self, function: Any, statement: str, values: Mapping[str, Any], form: Any) -> Any:
        """Execute an SQL function; `function` is its row of mop_functions, `form` the overloaded form."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        driver: Any = self.calls.connection().connection.dbapi_connection
        return f"<pg_mop in schema {self.schema}: {driver.info.dbname}>"

    def close(self) -> None:
        """End the session that makes the calls, and all connections of an own engine.

        The pool of an engine that was passed as `where` stays open.
        """
        self.calls.close()
        if self._is_own:
            self.engine.dispose()

    def set(self, **settings: Any) -> None:
        """Set pg_mop's settings for later calls: set(seed=42, segments=2); None: back to the default."""
        self.calls.set(**settings)
