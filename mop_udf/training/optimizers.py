"""Keras optimizers from parsed compile parameters, and their scalars as variables. Runs in the trainer."""

from typing import Any

import keras
import numpy as np

from mop_udf import state
from mop_udf.errors import first_line
from mop_udf.kernels.framework import framework
from mop_udf.params.keras_schedules import Schedule
from mop_udf.params.sequences import Sequence
from mop_udf.training.models import ConfigurationError


def make_optimizer(name: str, arguments: Any) -> Any:
    """A Keras optimizer from parsed compile parameters. Raises ConfigurationError.

    `decay` is the time-based decay of Keras 2: the rate at update t is learning_rate / (1 + decay * t). A sequence per
    batch is replaced by its first value, except for the learning rate.
    """
    arguments = {
        key: value.at(0) if isinstance(value, Sequence) and key != "learning_rate" else value
        for key, value in dict(arguments).items()
    }
    # (Keras' default name has a counter in it, and XLA's cache would not find code with another name)
    arguments.setdefault("name", "optimizer")
    decay, rate = arguments.pop("decay", None), arguments.get("learning_rate")
    try:
        if isinstance(rate, Sequence):
            arguments["learning_rate"] = framework.Rate(rate)
        elif isinstance(rate, Schedule):
            arguments["learning_rate"] = _keras_schedule(rate)
        optimizer_class = getattr(keras.optimizers, name)
        if decay:
            if rate is None:
                rate = float(optimizer_class().learning_rate)
            arguments["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
        return optimizer_class(**arguments)
    except Exception as error:
        raise ConfigurationError(f"Keras refuses the optimizer {name}: {first_line(error)}") from error


def _keras_schedule(described: Any) -> Any:
    """The Keras schedule of a description (keras_schedules.Schedule); raises Keras' errors."""
    kind = getattr(keras.optimizers.schedules, described.name)
    return kind(**{key: list(value) if isinstance(value, tuple) else value for key, value in described.config.items()})


class FastVariable:
    """A scalar in a Keras variable, assigned ten times as fast as by the variable's own `assign`."""

    def __init__(self, variable: Any) -> None:
        self._variables, self._dtype = framework.Variables([variable]), state.dtype(variable.dtype)

    def assign(self, value: Any) -> None:
        self._variables.put([np.asarray(value, self._dtype)])


def make_scalar_variables(optimizer: Any, scalars: Any) -> Any:
    """Turn the `scalars` (of params.scalars) of a new optimizer into variables: {name: an object with `assign`}."""
    made, schedule = {}, optimizer._learning_rate
    if isinstance(schedule, framework.Rate):
        made["learning_rate"] = schedule
    elif "decay" in scalars and isinstance(schedule, keras.optimizers.schedules.InverseTimeDecay):
        made["learning_rate"] = framework.make_variable(schedule, "initial_learning_rate")
        made["decay"] = framework.make_variable(schedule, "decay_rate")
    elif isinstance(schedule, keras.Variable):
        made["learning_rate"] = FastVariable(schedule)
    for name, scalar in scalars.items():
        if name not in made and isinstance(getattr(optimizer, name, None), (int, float)):
            made[name] = framework.make_variable(optimizer, name, scalar if isinstance(scalar, Sequence) else None)
    return made
