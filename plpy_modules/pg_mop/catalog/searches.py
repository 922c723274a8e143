"""Searches: the log of a procedure's events, and users' control requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pg_mop.catalog.session import CatalogSession, Row


class Searches(CatalogSession):
    """The catalog's search logs and control requests."""

    def log_search(self, run_id: int, first: int, events: Sequence[Any]) -> None:
        """Append events (JSON-able), numbered from `first`, to the log of a search."""
        if events:
            self.call("mop_log_search", run_id, self.fencing_token, first, json.dumps(events))

    def search_log(self, run_id: int) -> list[Any]:
        """The events of a search, in order."""
        return [
            row["event"]
            for row in self.execute(
                f"SELECT event FROM {self.prefix}search_log WHERE run_id = %s ORDER BY number", (run_id,)
            )
        ]

    def control_requests(self, run_id: int, last: bool = False) -> list[Row]:
        """Take the control requests that have arrived since the last call, oldest first.

        `last`: if there are none, the run refuses later requests.
        """
        if not last and not self.value(
            f"SELECT EXISTS (SELECT 1 FROM {self.prefix}control_request WHERE run_id = %s)", (run_id,)
        ):
            return []
        return [
            row["request"]
            for row in self.execute(
                f"SELECT {self.schema}.mop_take_control_requests(%s, %s, %s) AS request",
                (run_id, self.fencing_token, last),
            )
        ]
