"""SQL functions in Python: how an SQL shim calls the API.

Every SQL function for users enters Python through :func:`sql_function`, which passes a
:class:`~pg_mop.backend.database.Database` instead of ``plpy``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mop_udf.errors import raise_error
from pg_mop.backend import explaining
from pg_mop.backend.caller import extension_schema
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError

# Arguments that must be integers. SQL declares them double precision: every number casts to it implicitly.
INTEGERS = frozenset(
    """
buffer_size dependent_count ensemble eta first folds id iterations k max_categories max_trials members
metrics_compute_frequency model_id mst_key num_configs num_iterations r random_state second seed segment_count sessions
skip_last version
""".split()
)
LONG_INTEGERS = frozenset(("continue_from", "job", "run_id"))
LISTS_OF_INTEGERS = frozenset(("base", "model_id_list", "mst_keys", "num_classes", "session_counts"))
ALL_INTEGERS = INTEGERS | LONG_INTEGERS | LISTS_OF_INTEGERS


def sql_function(function: Callable[..., Any], commits: bool = False) -> Callable[..., Any]:
    """Make `function(db, *arguments)` callable from an SQL shim as ``function(plpy, *arguments)``.

    Arguments named in ALL_INTEGERS become integers; a function with `*values` lists its argument names in ARGUMENTS of
    its module. A MopError becomes a PostgreSQL error with DETAIL and HINT, prefixed by the function's name as in MADlib.
    `commits`: the shim is a procedure's, which commits whenever it waits.
    """

    @functools.wraps(function)
    def shim(plpy: Any, *arguments: Any) -> Any:
        db = Database(plpy, extension_schema(plpy))
        try:
            db.explaining = explaining.present(plpy, function.__name__)
            if commits:
                _begin_procedure(db)
            with db.pinned_path():
                if db.explaining is not None:
                    db.look_up_as(db.explaining.path)
                result = function(db, *_with_integers(function, arguments))
            if commits:
                db.commit()
            return result
        except explaining.Explained:  # mop_explain has the plan
            return None
        except MopError as error:
            problem = error
        finally:
            for work in db.at_end:
                work()
        name = getattr(function, "called_as", function.__name__)
        raise_error(plpy, f"{name}: {problem.message}", problem.sqlstate, problem.detail, problem.hint)

    return shim


def called_as(name: str) -> Callable[[Any], Any]:
    """Name the SQL function that users call, of which a function is a part; its errors begin with this name."""

    def named(function: Any) -> Any:
        function.called_as = name
        return function

    return named


sql_procedure = functools.partial(sql_function, commits=True)


def raising(plpy: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return `function(*arguments)`; a MopError becomes a PostgreSQL error."""
    try:
        return function(*arguments)
    except MopError as error:
        problem = error
    raise_error(plpy, problem.message, problem.sqlstate, problem.detail, problem.hint)


def as_integer(name: str, value: Any) -> Any:
    """The value of SQL argument `name` as an integer, if it is a number. Raises MopError.

    >>> as_integer("run_id", 7.0)
    7
    """
    if not isinstance(value, float):
        return value
    bits = 31 if name not in LONG_INTEGERS else 53
    if value != value or abs(value) == float("inf") or value != int(value):
        raise MopError(f"{name} must be an integer, not {value:g}")
    if abs(value) >= 2**bits:
        raise MopError(f"{name} is out of range: {value:.0f}", sqlstate="22003")
    return int(value)


def _with_integers(function: Callable[..., Any], values: Sequence[Any]) -> Iterator[Any]:
    """The arguments of an SQL function, converted to integers where ALL_INTEGERS says so."""
    for name, value in zip(_argument_names(inspect.unwrap(function)), values):
        if name in INTEGERS or name in LONG_INTEGERS:
            yield as_integer(name, value)
        elif name in LISTS_OF_INTEGERS and value is not None:
            yield [as_integer(name, element) for element in value]
        else:
            yield value


@functools.cache
def _argument_names(function: Callable[..., Any]) -> Sequence[str]:
    names = [name for name in inspect.signature(function).parameters if name not in ("db", "session")]
    return function.__globals__["ARGUMENTS"] if names == ["values"] else names


def _begin_procedure(db: Database) -> None:
    """Raises MopError if the procedure cannot commit."""
    db.commits = True
    try:
        db.commit()
    except db.plpy.SPIError as error:
        if getattr(error, "sqlstate", None) != "2D000":
            raise
        raise MopError(
            "it cannot be called within a transaction block",
            sqlstate="25001",
            detail="It commits again and again, so as not to hold back VACUUM while it trains.",
            hint="COMMIT; and call again, with autocommit on and not from a block that handles exceptions; "
            "or use the function of the same arguments: SELECT "
            f"{db.extension}.madlib_keras_fit_multiple_model(...);",
        ) from None
