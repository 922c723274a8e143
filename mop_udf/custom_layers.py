"""Layer classes with code, from a table that a superuser owns (objects.py). Runs in the trainer.

A checked architecture names such a class by the digest of its pickle (architecture.py): so a name in JSON leads to these bytes
or to nothing, and Keras imports no module for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from mop_udf import objects
from mop_udf.architecture import custom_name

_classes: dict[str, type] = {}  # name in checked architectures -> class


def register(pickles: Mapping[str, bytes], loaded: Mapping[str, Any]) -> dict[str, str]:
    """{name: digest} of the layer classes among custom objects, which architectures may name from now on.

    `pickles`: {name: pickle}; `loaded`: {name: what it is}. A class that this process knows is not replaced: all models of one
    digest have the same class.
    """
    found = {}
    for name, made in loaded.items():
        if is_layer(made):
            found[name] = objects.digest(pickles[name])
            _classes.setdefault(custom_name(name, found[name]), made)
    return found


def is_layer(made: Any) -> bool:
    """Whether a custom object is a class of layers; a model is none."""
    return isinstance(made, type) and issubclass(made, keras.layers.Layer) and not issubclass(made, keras.Model)


def scope() -> Any:
    """A context in which Keras finds the registered classes by their names in checked architectures."""
    return keras.saving.CustomObjectScope(_classes)
