"""The plan of a call that was explained: its text and its data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CallPlan(str):
    """The text of a plan. `data` is the plan as JSON has it.

    The data are made by the server when they are first needed: it plans the call once more.
    """

    _fetch: Callable[[], dict[str, Any]]
    _data: dict[str, Any] | None

    def __new__(cls, text: str, fetch: Callable[[], dict[str, Any]]) -> CallPlan:
        """`fetch`: gives the plan of the same call as JSON has it."""
        made = super().__new__(cls, text)
        made._fetch, made._data = fetch, None
        return made

    def __repr__(self) -> str:
        return str(self)

    @property
    def data(self) -> dict[str, Any]:
        """The plan as plain values (docs/explain.md). Raises ServerError where the call would fail by now."""
        if self._data is None:
            self._data = self._fetch()
        return self._data
