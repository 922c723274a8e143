"""The code that a named model needs: its custom layers, or its class, from an object table, as they were when it was deployed.

The model's row has the table's name and the digests of the pickles. The code itself stays where superusers alone may write it:
whoever reads the model looks it up, and a changed or dropped table is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pg_mop.backend import object_table
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError

KEY = "custom_code"  # among the details of a version
HINT = "Train and deploy the model again, or load the code that it was trained with."


@dataclass(frozen=True)
class CustomCode:
    """`table`: the name of the object table, in the extension's schema; `digests`: {class: SHA-256 of its pickle}."""

    table: str
    digests: Mapping[str, str]

    @classmethod
    def of(cls, db: Database, functions: str, names: list[str]) -> CustomCode:
        """The code of these classes. `functions`: the object table, as a summary names it. Raises MopError."""
        quoted = object_table.check(db, functions)
        digests = object_table.digests(db, quoted, None, names)
        return cls(object_table.within_schema(quoted), {name: digest for name, digest in digests if name in names})

    @classmethod
    def of_details(cls, text: str | None, what: str) -> CustomCode | None:
        """The code that the details (JSON) of a version name; None without any. Raises MopError for anything else there."""
        try:
            details = json.loads(text) if text else None
        except (ValueError, RecursionError):
            raise MopError(f"{what} cannot be used: its details name no custom code that can be read") from None
        entry = details.get(KEY) if isinstance(details, dict) else None
        if entry is None:
            return None
        table, digests = (entry.get("object_table"), entry.get("digests")) if isinstance(entry, dict) else (None, None)
        if not (
            isinstance(table, str)
            and isinstance(digests, dict)
            and digests
            and all(isinstance(digest, str) for digest in digests.values())
            and object_table.are_names(digests)
        ):
            raise MopError(f"{what} cannot be used: its details name no custom code that can be read")
        return cls(table, digests)

    def to_details(self) -> dict[str, Any]:
        """The entry of a version's details that names this code."""
        return {KEY: {"object_table": self.table, "digests": dict(self.digests)}}

    def check_trained(self, db: Database, what: str, trained: Mapping[str, Any]) -> None:
        """Raise MopError where the model `what` was trained with other code. `trained`: {name: digest}, where known."""
        digests = {name: digest for name in self.digests if isinstance(digest := trained.get(name), str)}
        if digests:
            object_table.check_unchanged(db, self.table, digests, what, HINT, "training")

    def check(self, db: Database, what: str) -> str:
        """The object table, quoted. Raises MopError where it is gone, may be written by others than superusers, or has other
        code now."""
        return object_table.check_unchanged(db, self.table, self.digests, what, HINT, "deployment")

    def read(self, db: Database, what: str) -> dict[str, bytes]:
        """{class: pickle}. Raises MopError as `check` does."""
        digests = [[name, digest] for name, digest in self.digests.items()]
        return object_table.read(db, self.check(db, what), None, digests, layers=self.digests)
