"""Errors that the client raises itself, and optional packages, imported when they are used."""

import importlib
import re


class ClientError(Exception):
    """What is wrong, in a sentence; `hint` says what mends it."""

    def __init__(self, message, hint=None):
        super().__init__(f"{message}\nHINT: {hint}" if hint else message)
        self.message, self.hint = message, hint


class ServerError(ClientError):
    """What the server says is wrong: `message`, `detail` and `hint` as psql shows them, its `sqlstate` (None where it
    came from the driver), and as `orig` the driver's error, which has the rest."""

    def __init__(self, orig):
        told = orig.diag
        self.orig, self.sqlstate, self.detail = orig, orig.pgcode, told.message_detail
        # (PL/Python puts an exception's class before what it says)
        message = re.sub(r"^(plpy|spiexceptions)\.\w+: ", "", told.message_primary or str(orig).strip())
        super().__init__(f"{message}\nDETAIL: {self.detail}" if self.detail else message, told.message_hint)
        self.message = message


class LostError(ServerError):
    """There is no connection to the server: none was made, it broke, or the server ends, begins or has no room."""


def needed(module, extra):
    """The module of an optional package. Raises ClientError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        lacking = (error.name or package).split(".")[0]  # (Keras may lack the framework that it works with)
        raise ClientError(
            f"this needs the package {lacking}: {error}",
            hint=f"pip install 'pg_mop_client[{extra}]'" if lacking == package else f"pip install {lacking}",
        ) from None
