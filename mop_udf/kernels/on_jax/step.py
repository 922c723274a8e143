"""A Keras training step as a function without side effects, for JAX to compile."""

from typing import Any

import jax

from mop_udf.kernels.on_jax.devices import placed
from mop_udf.kernels.on_jax.scalars import given, numbers


class Step:
    """The training step of a compiled model whose variables have all been made."""

    def __init__(self, model: Any) -> None:
        self.model, self.numbers = model, numbers(model.optimizer)
        self.groups = [
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        ]

    def pure(self, function: Any) -> Any:
        """Turn `function(step, state, *arguments) -> state` into a function of (numbers, state, *arguments).

        The argument `step(state, data) -> state` is Keras' training step.
        """

        def step(state: Any, data: Any) -> Any:
            return self.model.train_step(state, data)[1]

        def pure(values: Any, state: Any, *arguments: Any) -> Any:
            with given(self.numbers, values):
                return placed(function(step, state, *arguments))

        return pure

    def compiled(self, function: Any) -> Any:
        """`function` (see `pure`), compiled as a function of its arguments that trains the model's variables."""
        made = jax.jit(self.pure(function))

        def call(*arguments: Any) -> None:
            state = made(*self.read(), *arguments)
            jax.block_until_ready(state)  # errors and time belong to this call
            self.write(state)

        return call

    def read(self) -> Any:
        """(numbers, state) of the model."""
        return [n.value for n in self.numbers], tuple([v.value for v in own] for own in self.groups)

    def write(self, state: Any) -> None:
        """Put the model into a state."""
        for variables, values in zip(self.groups, state):
            for variable, value in zip(variables, values):
                variable._value = value
