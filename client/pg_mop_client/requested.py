"""Checks the values that requests to the live page send."""

import json
import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from pg_mop_client.database import quote_table
from pg_mop_client.errors import ClientError

MOST_BODY = 60_000  # bytes of a request: a note has at most 4,000 characters, which JSON may escape


async def body(request: Request) -> dict[str, Any]:
    """The body of a POST: a JSON object of at most MOST_BODY bytes. Raises ClientError."""
    given = b""
    async for part in request.stream():
        given += part
        if len(given) > MOST_BODY:
            raise ClientError("the request is too long")
    try:
        read = json.loads(given or b"{}")
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise ClientError("the request is not a JSON object")
    check_texts(read)
    return read


def check_texts(given: Any) -> None:
    """Raises ClientError for a text, in lists and dictionaries, with a character that no text of the database has."""
    shown = json.dumps(given, ensure_ascii=False)  # (it has NUL as an escape, and half of a surrogate pair as it is)
    if re.search(r"(?<!\\)(\\\\)*\\u0000", shown) or re.search("[\ud800-\udfff]", shown):
        raise ClientError("the request has a character that no text of the database can have")


def whole(value: Any, name: str) -> int:
    """An integer from 1 to 2^31 - 1. Raises ClientError."""
    try:
        found = int(str(value)[:12]) if isinstance(value, (int, str)) else 0
    except ValueError:
        found = 0
    if not 1 <= found < 1 << 31:
        shown = repr(value) if value is None or isinstance(value, (int, float, str)) else type(value).__name__
        raise ClientError(f"{name} must be a whole number from 1, not {shown}")
    return found


def model(given: Mapping[str, Any]) -> tuple[str, int | None]:
    """The name and version of the requested model; None: the version in use. Raises ClientError."""
    name, version = given.get("name"), given.get("version")
    if not isinstance(name, str) or not name.strip():
        raise ClientError("no model is named", hint="The list of models has all visible models.")
    quote_table(name)
    return name, whole(version, "version") if version not in (None, "") else None


def number(value: str, name: str) -> float:
    """A number. Raises ClientError."""
    try:
        return float(value)
    except ValueError:
        raise ClientError(f"{name} must be a number, not {value!r}") from None
