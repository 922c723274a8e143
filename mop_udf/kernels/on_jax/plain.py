"""The plain kernel on JAX: one Keras step per mini-batch."""

from typing import Any

import keras

from mop_udf.kernels import plain
from mop_udf.kernels.on_jax.step import Step


class Plain(plain.Plain):
    """As `model.train_on_batch`, compiled for each size of a batch."""

    def run(self, data: Any) -> None:
        key = str([(a.dtype, a.shape) for a in keras.tree.flatten(data)])
        if key not in self.steps:
            self.steps[key] = Step(self.model).compiled(lambda step, state, data: step(state, data))
        self.steps[key](data)
