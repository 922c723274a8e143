"""The kernel `vmap`: several states of one compiled model, trained on the same rows as one computation.

It maps the loop kernel's loop over the states and over the numbers of their optimizers. It always computes WIDTH
states, repeating the last state as needed. So it is compiled once, and the result of a state depends neither on the
number of states nor on its position (XLA rounds differently for each width).
"""

from typing import Any

import jax
import keras
import numpy as np

from mop_udf.kernels.on_jax.loop import Loop, over_batches
from mop_udf.kernels.on_jax.step import Step

WIDTH = 16


class Group(Loop):
    """Trains the states given to `begin`. Keras must have made all of the model's variables."""

    most = WIDTH

    def __init__(self, model: Any, name: str = "") -> None:
        super().__init__(model, f"{name} vmap")
        self.steps: dict[Any, Any] = {}  # shapes of a batch -> the step on it
        self._known: Step | None = None
        self.drop()

    @property
    def _step(self) -> Any:
        """The model's Step, made again after Keras has made the variables of its metrics."""
        if self._known is None or len(self._known.groups[-1]) != len(self.model.metrics_variables):
            self._known = Step(self.model)
        return self._known

    def held(self) -> Any:
        """The state that the model is in, with its optimizer's numbers and without its metrics: a nest of arrays."""
        numbers, state = self._step.read()
        return numbers, jax.tree.map(np.asarray, state[:-1])

    def put(self, held: Any) -> None:
        """Put the model into a state from `held` or `end`."""
        self._step.write(held[1])
        for number, value in zip(self._step.numbers, held[0]):
            number.assign(value)

    def begin(self, states: Any) -> None:
        """Train these states, from `held`, from now on, WIDTH at most. `reset` must precede each pass."""
        padded = [*states, *[states[-1]] * (WIDTH - len(states))]
        self.numbers, self.state = jax.tree.map(lambda *values: np.stack(values), *padded)

    def reset(self) -> None:
        """Reset the metrics of all states."""
        self.model.reset_metrics()
        metrics = [np.stack([np.asarray(v.value)] * WIDTH) for v in self.model.metrics_variables]
        self.state = (*self.state[:3], metrics)

    def end(self) -> Any:
        """The WIDTH states as they are now, with their metrics."""
        made = jax.device_get((self.numbers, self.state))
        self.drop()
        return [jax.tree.map(lambda values, n=n: values[n], made) for n in range(WIDTH)]

    def drop(self) -> None:
        """Release the states."""
        self.numbers, self.state = [], ()

    def step(self, data: Any) -> None:
        """Train on one batch, possibly short; compiled for each size."""
        key = str([(a.dtype, a.shape) for a in keras.tree.flatten(data)])
        if key not in self.steps:
            self.steps[key] = self._mapped(lambda step, state, data: step(state, data), 1)
            self.compilations += 1
        self.steps[key](data)

    def _function(self, data: Any, batch_size: int) -> Any:
        return self._mapped(over_batches(batch_size), 3)

    def _mapped(self, function: Any, count: int) -> Any:
        """A function (see Step.pure) compiled for all states at once; they share its `count` arguments."""
        made = jax.jit(jax.vmap(self._step.pure(function), in_axes=(0, 0, *[None] * count)))

        def call(*arguments: Any) -> None:
            self.state = jax.block_until_ready(made(self.numbers, self.state, *arguments))

        return call
