"""Custom losses, metrics and layers: functions and classes pickled by dill, from a table that a superuser owns.

They are unpickled in the trainer, or in a separate process: ``python -m mop_udf.training.objects check`` reads a pickle on
stdin;
``python -m mop_udf.training.objects top_k K NAME`` writes a pickle to stdout.
"""

import hashlib
import sys
import types
from collections.abc import Callable
from typing import Any

import dill


def digest(data: bytes) -> str:
    """The SHA-256 of a pickle, as mop_sha256 gives it."""
    return hashlib.sha256(data).hexdigest()


def load(data: bytes) -> Callable[..., Any]:
    """The function or class of a pickle. Raises ValueError where the pickle does not load, for any reason, or is neither.

    A function made in PL/Python carries the globals of that function, including the module `plpy`. Without a database,
    an empty module stands for `plpy`.
    """
    sys.modules.setdefault("plpy", types.ModuleType("plpy"))
    try:
        function = dill.loads(bytes(data))
    except Exception as error:
        raise ValueError(f"dill cannot load it: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ValueError(f"it is not a function but {type(function).__name__}")
    return function


def top_k_accuracy(k: int, name: str) -> Callable[..., Any]:
    """A function (y_true, y_pred) named `name`: Keras' top_k_categorical_accuracy for this k."""

    def accuracy(y_true: Any, y_pred: Any) -> Any:
        import keras

        return keras.metrics.top_k_categorical_accuracy(y_true, y_pred, k=k)

    accuracy.__name__ = accuracy.__qualname__ = name
    return accuracy


if __name__ == "__main__":
    if sys.argv[1] == "check":
        try:
            load(sys.stdin.buffer.read())
        except ValueError as problem:
            sys.exit(str(problem))
    else:
        sys.stdout.buffer.write(dill.dumps(top_k_accuracy(int(sys.argv[2]), sys.argv[3]), recurse=True))
