"""Models of a class with code, which has its own training step: whether they can be trained. Runs in the trainer.

The plain kernel alone calls a model's `train_step`, once for each mini-batch. The state of a training unit has the model's
variables, the optimizer's and the random state; what else changes in training would be lost at the end of each unit.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras

from mop_udf.models import ConfigurationError

# the arguments of train_step, by the framework
STEPS = {"tensorflow": ("self", "data"), "torch": ("self", "data"), "jax": ("self", "state", "data")}


def refusal(name: str) -> dict[str, str]:
    """{kernel: reason} of the kernels that do not train a model of the class `name`."""
    return dict.fromkeys(
        ("loop", "xla", "vmap"), f"model class {name} has a training step of its own: the kernel plain calls it"
    )


def check(model: keras.Model, name: str) -> None:
    """Raise ConfigurationError where a model of the custom class `name` cannot be trained on this framework, or keeps what
    changes in training where no state has it."""
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
    kept = {id(variable) for variable in model.variables}
    for attribute, value in _own(model).items():
        if value is model.optimizer:
            continue
        if isinstance(value, keras.optimizers.Optimizer):
            raise ConfigurationError(
                f"model class {name} has an optimizer of its own in {attribute!r}: only the variables of the optimizer in the "
                f"compile parameters are part of a state"
            )
        if _varies(value) and id(value) not in kept:
            raise ConfigurationError(
                f"model class {name} has a variable in {attribute!r} that is no part of a state: make it by add_weight"
            )


def _own(model: Any) -> dict[str, Any]:
    """The attributes of a model and of its custom classes."""
    found: dict[str, Any] = {}
    for kind in reversed(type(model).__mro__):
        if not kind.__module__.startswith(("keras.", "tensorflow.", "torch.", "builtins")):
            found.update(vars(kind))
    return {**found, **vars(model)}


def _varies(value: Any) -> bool:
    """Whether an attribute is a variable, of Keras or of TensorFlow."""
    return isinstance(value, keras.Variable) or (
        callable(getattr(value, "assign_add", None)) and not isinstance(value, (keras.layers.Layer, type))
    )
