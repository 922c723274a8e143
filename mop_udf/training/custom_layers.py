"""Layer and model classes with code, from a table that a superuser owns (objects.py). Runs in the trainer.

A checked architecture names such a class by the digest of its pickle (architecture.py): so a name in JSON leads to these bytes
or to nothing, and Keras imports no module for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from mop_udf.architecture.architecture import custom_name
from mop_udf.training import objects

_classes: dict[str, type] = {}  # name in checked architectures -> class


@dataclass(frozen=True)
class Custom:
    """The classes among custom objects: {name: digest} of those of layers, and of those of models; `no_layers`: the names of
    all objects that are no classes of layers."""

    layers: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    no_layers: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.layers or self.models)


def register(pickles: Mapping[str, bytes], loaded: Mapping[str, Any]) -> Custom:
    """The layer and model classes among custom objects, which architectures may name from now on.

    `pickles`: {name: pickle}; `loaded`: {name: what it is}. A class that this process knows is not replaced: all models of one
    digest have the same class.
    """
    found = Custom({}, {}, frozenset(name for name, made in loaded.items() if not is_layer(made)))
    for name, made in loaded.items():
        digests = found.layers if is_layer(made) else found.models if is_model(made) else None
        if digests is not None:
            digests[name] = objects.digest(pickles[name])  # type: ignore[index]
            _classes.setdefault(custom_name(name, digests[name]), made)
    return found


def is_layer(made: Any) -> bool:
    """Whether a custom object is a class of layers; a model is none."""
    return isinstance(made, type) and issubclass(made, keras.layers.Layer) and not issubclass(made, keras.Model)


def is_model(made: Any) -> bool:
    """Whether a custom object is a class of models."""
    return isinstance(made, type) and issubclass(made, keras.Model)


def scope() -> Any:
    """A context in which Keras finds the registered classes by their names in checked architectures."""
    return keras.saving.CustomObjectScope(_classes)
