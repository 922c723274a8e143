"""Errors for the caller."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mop_udf.errors import sqlstate_of

# what PL/Python puts before a message: classes of exceptions (on Greenplum, the one that raise_error makes)
_CLASSES = re.compile(r"^(?:(?:(?:plpy|spiexceptions)\.\w+|pg_mop): )+")


class MopError(Exception):
    """An error for the caller: a message of one sentence, facts in `detail`, the command that helps in `hint`."""

    unreachable: Any = (
        None  # the connection target of a server that did not answer, or that is starting up or shutting down
    )

    def __init__(
        self, message: str, detail: str | None = None, hint: str | None = None, sqlstate: str = "22023"
    ) -> None:
        super().__init__(message)
        self.message, self.detail, self.hint, self.sqlstate = message, detail, hint, sqlstate


@contextmanager
def understood(problem: str) -> Iterator[None]:
    """In this block, an error in what a table stores, perhaps by another role's hand, becomes a MopError with `problem`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        text = f"{type(error).__name__}: {error}"[:500]
        raise MopError(problem, detail=text.encode("ascii", "backslashreplace").decode(), sqlstate="22023") from None


@contextmanager
def without_nul(db: Any, columns: Sequence[str]) -> Iterator[None]:
    """In this block, a JSON value with the character U+0000, which text cannot have, is a MopError. `columns`: with JSON."""
    try:
        yield
        return
    except db.plpy.SPIError as error:
        if error.sqlstate != "22P05":
            raise
    raise has_nul(columns)


def has_nul(columns: Sequence[str]) -> MopError:
    """The error for JSON with the character U+0000 in one of the columns."""
    names = list(dict.fromkeys(columns)) or ["..."]
    return MopError(
        f"a value of JSON has \\u0000, which text cannot have: column {', '.join(names)}",
        hint=f"SELECT * FROM ... WHERE strpos({names[0]}::text, '\\u0000') = 0; leaves out such rows.",
        sqlstate="22P05",
    )


def without_classes(text: str) -> str:
    """A message without the classes of exceptions that PL/Python puts before it.

    >>> without_classes("spiexceptions.RaiseException: plpy.Error: mop_fit: there is no table")
    'mop_fit: there is no table'
    """
    return _CLASSES.sub("", text)


def step_message(text: str) -> str:
    """The message of a call's step: without classes, and without the name of the function that the step calls.

    >>> step_message("plpy.Error: mop_pack: there is no table"), step_message("spiexceptions.DataError: bad: value")
    ('there is no table', 'bad: value')
    """
    message = without_classes(text)
    of_python = re.search(r"(plpy\.\w+|pg_mop): $", text.removesuffix(message))
    return re.sub(r"^\w+: ", "", message, count=1) if of_python else message


def error_of(error: Any, message: str | None = None) -> MopError:
    """The MopError of an SPI error; `message`: in place of the error's own."""
    _, detail, hint, *_ = getattr(error, "spidata", None) or (None, None, None)
    return MopError(message or without_classes(str(error)), detail, hint, sqlstate_of(error))


def is_cancel(error: Any) -> bool:
    """True if a plpy error is a cancel or a timeout: it must be raised again, whatever was being tried."""
    return getattr(error, "sqlstate", None) == "57014"


def unseen_run(db: Any, run_id: int | None) -> MopError:
    """The MopError for a run that the role does not see, or that does not exist."""
    return MopError(
        f'there is no run {"NULL" if run_id is None else run_id} that role "{db.current_user()}" may see',
        detail="A run is seen by its owner and by the roles that may act as its owner, until mop_drop_run.",
        hint=f"SELECT run_id, status, model_output_table FROM {db.extension}.mop_runs;",
    )


def has_lost_segment(error: Any) -> bool:
    """True if a psycopg2 error tells that the session has lost a Greenplum segment.

    Do not use such a session again: its rollback may raise an error past PL/Python, which corrupts the interpreter
    state. The next call of that process ended the coordinator, and so all sessions.
    """
    return (
        error.pgcode == "58M01" or error.pgcode == "XX000" and bool(re.search(r"DTX \w+ dispatch failed", str(error)))
    )
