"""The client's exceptions, and the import of optional packages on first use."""

import importlib
import re
from types import ModuleType

import psycopg2

# PL/Python puts the classes of exceptions before a message. (The extension has the same pattern in backend/errors.py.)
_CLASSES = re.compile(r"^(?:(?:(?:plpy|spiexceptions)\.\w+|pg_mop): )+")


class ClientError(Exception):
    """An error of the client. `message` is one sentence; `hint` says how to correct the cause, or is None."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(f"{message}\nHINT: {hint}" if hint else message)
        self.message, self.hint = message, hint


class ServerError(ClientError):
    """An error that the server reports.

    `message`, `detail` and `hint` are those that psql shows. `sqlstate` is None if the error comes from the driver.
    `orig` is the driver's exception, with all other fields.
    """

    def __init__(self, orig: psycopg2.Error) -> None:
        fields = orig.diag
        self.orig, self.sqlstate, self.detail = orig, orig.pgcode, fields.message_detail
        message = without_classes(fields.message_primary or str(orig).strip())
        super().__init__(f"{message}\nDETAIL: {self.detail}" if self.detail else message, fields.message_hint)
        self.message = message


class LostError(ServerError):
    """The connection is lost: it could not be made, it broke, or the server starts, shuts down or has no capacity."""


def without_classes(text: str) -> str:
    """A message without the classes of exceptions that PL/Python puts before it."""
    return _CLASSES.sub("", text)


def needed(module: str, extra: str) -> ModuleType:
    """Import a module of an optional package. Raises ClientError, with pip's command, if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        lacking = (error.name or package).split(".")[0]  # (Keras may be there without its framework)
        raise ClientError(
            f"this needs the package {lacking}: {error}",
            hint=f"pip install 'pg_mop_client[{extra}]'" if lacking == package else f"pip install {lacking}",
        ) from None
