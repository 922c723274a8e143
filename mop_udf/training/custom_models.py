"""Models with classes that have code: whether they can be trained. Runs in the trainer.

The plain kernel alone runs the code of a model's class, as `train_step`, once for each mini-batch. The state of a training unit
has the model's variables, the optimizer's and the random state; what else changes in training would be lost at the end of each
unit. Attributes show some of it, here; on TensorFlow the trace of the step shows the rest (kernels/on_tensorflow/own_steps.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from mop_udf.training.models import ConfigurationError

# the arguments of train_step, by the framework
STEPS = {"tensorflow": ("self", "data"), "torch": ("self", "data"), "jax": ("self", "state", "data")}


def refusal(kind: type, name: str) -> dict[str, str]:
    """{kernel: reason} of the kernels that do not train a model of the class `kind`, called `name`."""
    own = "a training step" if not _is_of_framework(_definer(kind, "train_step")) else "code"
    calls = "calls" if own == "a training step" else "runs"
    return dict.fromkeys(
        ("loop", "xla", "vmap"), f"model class {name} has {own} of its own: the kernel plain {calls} it"
    )


def check_constructor(kind: type, name: str, architecture: Mapping[str, Any]) -> None:
    """Raise ConfigurationError where Keras cannot make a functional model of the custom class `kind`, called `name`.

    `architecture`: the checked one. (Model.from_config wants a constructor with the names *args and **kwargs.)
    """
    constructor: Any = kind.__init__  # type: ignore[misc]
    own = inspect.getfullargspec(constructor)
    if (
        architecture["class_name"] == "Functional"
        and _is_of_framework(_definer(kind, "from_config"))
        and (own.varargs, own.varkw) != ("args", "kwargs")
        and not _is_of_framework(_definer(kind, "__init__"))
    ):
        raise ConfigurationError(
            f"the constructor of model class {name} takes {inspect.signature(constructor)}: Keras makes such a model from "
            f"its layers only by __init__(self, *args, **kwargs), with these names"
        )


def check_step(model: keras.Model, name: str) -> None:
    """Raise ConfigurationError where the training step of a model of the custom class `name` is not one of this framework."""
    framework = keras.backend.backend()
    wanted = STEPS[framework]
    signature = inspect.signature(type(model).train_step)
    try:
        signature.bind(*wanted)
    except TypeError:
        raise ConfigurationError(
            f"train_step of model class {name} takes {signature}, on {framework} Keras calls train_step({', '.join(wanted)}): "
            f"write it so, or SET pg_mop.keras_backend to the framework that it is written for"
        ) from None


def check_attributes(model: keras.Model, name: str | None) -> None:
    """Raise ConfigurationError where an attribute of a model or of one of its layers changes in training, and no state has it.

    `name`: of the model's class, where it is a custom one.
    """
    kept = {id(variable) for variable in model.variables}
    kept |= {id(variable._value) for variable in model.variables}  # (PyTorch's parameters, which modules list)
    for layer in model._flatten_layers():
        custom = not _is_of_framework(type(layer))
        if layer is model:
            where = f"model class {name or type(model).__name__}"
        else:
            where = f"layer {layer.name!r} of class {type(layer).__name__}"
        for attribute, value in _own(layer):
            if value is model.optimizer or id(value) in kept:
                continue
            if isinstance(value, keras.optimizers.Optimizer) or _is_torch(value, "Optimizer"):
                raise ConfigurationError(
                    f"{where} has an optimizer of its own in {attribute!r}: only the variables of the optimizer in the "
                    f"compile parameters are part of a state"
                )
            # (Keras keeps tensors of its own, as losses, in attributes that begin with _)
            if _varies(value) or custom and not attribute.startswith("_") and _is_torch(value, "Tensor"):
                raise ConfigurationError(
                    f"{where} has a variable in {attribute!r} that is no part of a state: make it by add_weight"
                )


def _own(layer: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a layer and of its custom classes; in place of lists, tuples, sets and dictionaries their entries."""
    found: dict[str, Any] = {}
    for kind in reversed(type(layer).__mro__):
        if not _is_of_framework(kind):
            found.update(vars(kind))
    for attribute, value in {**found, **vars(layer)}.items():
        if attribute.startswith("_self_"):  # (TensorFlow lists some attributes again)
            continue
        below, seen = [value], set()
        while below:
            entry = below.pop()
            if isinstance(entry, dict | list | tuple | set | frozenset):
                if id(entry) not in seen:
                    seen.add(id(entry))
                    below += entry.values() if isinstance(entry, dict) else entry
            else:
                yield attribute, entry


def _is_of_framework(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("keras", "tensorflow", "torch", "builtins")


def _definer(kind: type, method: str) -> type:
    """The class that defines a method which `kind` has or inherits."""
    return next(base for base in kind.__mro__ if method in vars(base))


def _is_torch(value: Any, name: str) -> bool:
    """Whether a value is of PyTorch's class `name`. (PyTorch is not imported for the question.)"""
    return any(kind.__name__ == name and kind.__module__.partition(".")[0] == "torch" for kind in type(value).__mro__)


def _varies(value: Any) -> bool:
    """Whether an attribute is a variable, of Keras or of TensorFlow."""
    return isinstance(value, keras.Variable) or (
        callable(getattr(value, "assign_add", None)) and not isinstance(value, (keras.layers.Layer, type))
    )
