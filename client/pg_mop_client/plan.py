"""The plan of a call that was explained: its text, its data and its picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pg_mop_client.errors import needed


class CallPlan(str):
    """The text of a plan. `data` is the plan as JSON has it, and `plot` draws the sessions of the simulated run.

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

    def plot(self, ax: Any = None) -> Any:
        """Draw the simulated run as a Gantt chart, with a line for each session; returns the Axes. Raises ClientError where the
        server has not simulated the plan: of a search, or of very many units."""
        plots: Any = needed("pg_mop_client.plots", "plot")
        return plots.plan(self.data, ax)
