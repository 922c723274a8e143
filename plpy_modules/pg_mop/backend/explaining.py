"""While a call is explained, the function that it calls makes its checks and its plan, and nothing else.

`mop_explain` (api/common/explain.py) executes the call in a subtransaction, which it rolls back, after it has set the setting
MARK for that subtransaction. PostgreSQL takes the setting back with the subtransaction, however that ends. So a function is
explained only while both say so: this module, and the setting of the session. An error that unwinds Python's frames without
running them leaves no function explained by mistake.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pg_mop.backend.errors import MopError

MARK = "mop_explain.call"  # no name of pg_mop.*: those are checked against the known settings
# functions whose calls can be explained
SUPPORTED = (
    "madlib_keras_fit_multiple_model",
    "madlib_keras_fit",
    "mop_search",
    "madlib_keras_automl",
    "mop_more",
    "mop_resume",
    "mop_replay",
    "mop_train",
    "mop_retrain",
)
# what steps of mop_train call before its search; a view of the caller's may call other functions, which do not run
STEPS = ("mop_split_for", "mop_pack", "mop_architecture", "load_keras_model")
# in Python: the forms of these functions that return a text about themselves, and what the plan itself reads
PASSES = ("answer", "mop_pool")

_present: Explaining | None = None


class Explained(Exception):
    """A call has been checked and planned: it ends here."""


class Explaining:
    """One call that is explained. `plan(spec)`: makes the plan of a checked call (a RunSpec); `path`: the search_path by which
    the call looks names up; `made`: the plan, once it is there; `rows`: how many rows a dataset ('training', 'validation') of
    the call will have, where its packed table has a sample of them; `stepping`: steps of the call run (see `steps`)."""

    def __init__(self, plan: Callable[[Any], Any], path: str | None) -> None:
        self.token, self._plan, self.path = secrets.token_hex(16), plan, path
        self.made: Any = None
        self.rows: dict[str, int] = {}
        self.stepping = False

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Within it, the functions of STEPS run: steps of the explained call, which are rolled back with it."""
        self.stepping = True
        try:
            yield
        finally:
            self.stepping = False

    def take(self, spec: Any) -> None:
        """Make the plan of a checked call. Raises Explained, and MopError where the call would fail."""
        self.made = self._plan(spec)
        raise Explained


@contextmanager
def begun(explaining: Explaining, db: Any) -> Iterator[None]:
    """Within it, our functions are explained. The block runs in a subtransaction, which is rolled back."""
    global _present
    with db.undone():
        db.execute("SELECT set_config($1, $2, true)", ["text", "text"], [MARK, explaining.token])
        before, _present = _present, explaining
        try:
            yield
        finally:
            _present = before


def present(plpy: Any, function: str) -> Explaining | None:
    """The Explaining under which a function has been called; None: it runs. Raises MopError for a function that cannot be
    explained."""
    global _present
    found = _present
    if found is None:
        return None
    if _mark(plpy) != found.token:
        _present = None
        return None
    if function in PASSES:
        return None
    if found.stepping and function in STEPS:
        return None
    if function not in SUPPORTED or found.stepping and found.made is not None:
        raise unsupported(function)
    return found


def _mark(plpy: Any) -> str | None:
    """The value of the setting MARK; None where it is not set."""
    try:  # PostgreSQL 9.4 has no argument missing_ok
        return plpy.execute(f"SELECT pg_catalog.current_setting('{MARK}') AS token")[0]["token"]
    except plpy.SPIError as error:
        if error.sqlstate != "42704":
            raise
        return None


def prepares() -> bool:
    """True while steps of an explained call run: nothing is made ready for the training that a call would do."""
    return _present is not None and _present.stepping


def unsupported(function: str) -> MopError:
    """The MopError for a function that cannot be explained."""
    return MopError(
        f"calls of {function} cannot be explained",
        detail=f"Calls of these functions can: {', '.join(SUPPORTED)}.",
        sqlstate="0A000",
    )
