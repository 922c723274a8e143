"""SQL and JSON text: identifiers, literals, lists of names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

MAX_NAME = 63  # bytes of an identifier


def quote_identifier(name: str) -> str:
    """`name` as a double-quoted SQL identifier.

    >>> print(quote_identifier('my "own" table'))
    "my ""own"" table"
    """
    return '"' + name.replace('"', '""') + '"'


def written(name: str) -> str:
    """`name` as a user writes it in SQL: in quotes where they are needed.

    >>> print(written("price"), written("List price"))
    price "List price"
    """
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else quote_identifier(name)


def quote_literal(value: object) -> str:
    """`value` as an SQL literal; None is NULL.

    >>> quote_literal("it's")
    "'it''s'"
    """
    if value is None:
        return "NULL"
    text = str(value).replace("'", "''")
    return "E'" + text.replace("\\", "\\\\") + "'" if "\\" in text else "'" + text + "'"


def finite_json(values: Mapping[str, Any]) -> str:
    """{name: value} as JSON text; NaN and infinity, which JSON lacks, become null at any depth.

    >>> finite_json({"loss": float("nan"), "all": {"auc": 0.5, "r2": [float("inf")]}})
    '{"loss": null, "all": {"auc": 0.5, "r2": [null]}}'
    """
    return json.dumps(_finite(values))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(element) for name, element in value.items()}
    if isinstance(value, list):
        return [_finite(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def split_names(text: str | None) -> list[str]:
    """The column names in a comma-separated list, unquoted. Commas inside double quotes do not separate.

    Unquoted names keep their case: callers look columns up both ways.

    >>> split_names('a, "b, c", D')
    ['a', 'b, c', 'D']
    """
    parts = re.findall(r'\s*((?:"(?:[^"]|"")*"|[^,"])*)(?:,|$)', text or "")
    names = []
    for part in parts[: (text or "").count(",") + 1]:
        part = part.strip()
        if part.startswith('"') and part.endswith('"') and len(part) > 1:
            part = part[1:-1].replace('""', '"')
        if part:
            names.append(part)
    return names


def parse_identifier(text: str) -> list[str]:
    """The parts of a qualified name, as PostgreSQL's parse_ident returns them. Raises ValueError."""
    part = r'\s*("(?:[^"]|"")+"|[A-Za-z_\u0080-\U0010ffff][\w$\u0080-\U0010ffff]*)\s*'
    if not re.fullmatch(rf"{part}(?:\.{part})*", text):
        raise ValueError
    return [
        name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
        for name in re.findall(rf"{part}(?:\.|$)", text)
    ]
