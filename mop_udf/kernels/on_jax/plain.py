"""The plain kernel on JAX: one Keras step per mini-batch."""

import keras

from mop_udf.kernels.batches import weighted
from mop_udf.kernels.on_jax.step import Step


class Plain:
    """Trains one compiled Keras model, batch by batch, as `model.train_on_batch`; compiled for each size of a batch."""

    def __init__(self, model):
        self.model, self.trains = model, False  # trains: Keras has made all variables
        self.steps = {}  # shapes -> the step compiled for them

    def step(self, batch, inputs, class_weight, full):
        """Train on one batch, a full or a short one."""
        if not self.trains:
            self.begin(batch, inputs, class_weight)
        data = weighted(batch, inputs, class_weight)
        key = str([(a.dtype, a.shape) for a in keras.tree.flatten(data)])
        if key not in self.steps:
            self.steps[key] = Step(self.model).compiled(lambda step, state, data: step(state, data))
        self.steps[key](data)

    def begin(self, batch, inputs, class_weight):
        """Let Keras make the variables of losses and metrics, without training."""
        self.model._symbolic_build(data_batch=weighted(batch, inputs, class_weight))
        self.trains = True
