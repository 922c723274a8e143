"""Errors that the client raises itself, and optional packages, imported when they are used."""

import importlib


class ClientError(Exception):
    """What is wrong, in a sentence; `hint` says what mends it."""

    def __init__(self, message, hint=None):
        super().__init__(f"{message}\nHINT: {hint}" if hint else message)
        self.message, self.hint = message, hint


def needed(module, extra):
    """The module of an optional package. Raises ClientError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ClientError(f"this needs the package {module.split('.')[0]}: {error}",
                          hint=f"pip install 'pg_mop_client[{extra}]'") from None
