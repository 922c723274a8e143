"""A Keras step on a batch as a function without side effects, which JAX compiles."""

import jax

from mop_udf.kernels.on_jax.scalars import given, numbers


class Step:
    """The training step of a compiled model whose variables have all been made."""

    def __init__(self, model):
        self.model, self.numbers = model, numbers(model.optimizer)
        self.groups = [model.trainable_variables, model.non_trainable_variables, model.optimizer.variables,
                       model.metrics_variables]

    def compiled(self, function):
        """`function(step, state, *arguments) -> state`, compiled: of arguments alone, it trains the model's variables;
        `step(state, data) -> state` is Keras'."""
        def step(state, data):
            return self.model.train_step(state, data)[1]

        def pure(values, state, *arguments):
            with given(self.numbers, values):
                return function(step, state, *arguments)

        made = jax.jit(pure)

        def call(*arguments):
            state = made([n.value for n in self.numbers], tuple([v.value for v in own] for own in self.groups),
                         *arguments)
            jax.block_until_ready(state)  # errors, and time, belong to this call
            for variables, values in zip(self.groups, state):
                for variable, value in zip(variables, values):
                    variable._value = value

        return call
