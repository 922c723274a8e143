"""The plain kernel: one Keras step per mini-batch. It supports every model, and the other kernels are measured by it."""

from typing import Any

import tensorflow as tf

from mop_udf import state
from mop_udf.kernels.batches import weighted
from mop_udf.kernels.on_tensorflow import own_steps, traces


class Plain:
    """Trains one compiled Keras model, batch by batch.

    Equal, bit for bit, to `model.train_on_batch` of a fresh model over the same batches. TensorFlow compiles a step for
    the shapes of its first batch, and a second one for any number of rows when another shape comes; the two round
    differently. This kernel always makes both steps, one for full batches and one for short batches, so that a result
    does not depend on the trainer's earlier work. (Keras' own train_on_batch drops the metrics of earlier batches. It
    serves only for the first batch, where Keras makes its missing variables.)
    """

    name = "plain"

    def __init__(self, model: Any, own_class: Any = None) -> None:
        """`own_class`: see TunedKernels."""
        self.model, self.own_class = model, own_class
        self.steps: dict[Any, Any] = {}
        self.trains = False  # Keras has made its variables

    def step(self, batch: Any, inputs: Any, class_weight: Any, full: bool) -> None:
        """Train on one batch; `full`: it has the full number of rows."""
        data = weighted(batch, inputs, len(self.model.outputs), class_weight)
        if self.trains:
            self._run(data, full)
        else:
            self._first(data, lambda data: self._run(data, full))

    def begin(self, batch: Any, inputs: Any, class_weight: Any) -> None:
        """Let Keras make the variables of losses and metrics, without training: a loop must not make any."""
        x, y, *weight = tf.nest.map_structure(
            tf.convert_to_tensor, weighted(batch, inputs, len(self.model.outputs), class_weight)
        )
        before = state.values(self.model.variables)  # layers may change their variables, even their weights
        predicted = self.model(x, training=True)
        self.model.compute_loss(x, y, predicted, *weight)
        self.model.compute_metrics(x, y, predicted, *weight)
        for variable, value in zip(self.model.variables, before):
            variable.assign(value)
        self.model.reset_metrics()
        self.trains = True

    def _first(self, data: Any, step: Any) -> None:
        """Let Keras make the missing variables, and train on `data` by `step`."""
        self.model.train_function = _of_iterator(step)
        self.model.train_on_batch(*data[:2], sample_weight=data[2] if len(data) > 2 else None)
        self.trains = True

    def _run(self, data: Any, full: bool) -> Any:
        """Run a Keras step on one batch, compiled for its shapes; unless `full`, for any number of rows."""
        data = tf.nest.map_structure(tf.convert_to_tensor, data)
        shapes = tuple((t.dtype, (t.shape if full else [None, *t.shape[1:]])) for t in tf.nest.flatten(data))
        key = (full, str(shapes))
        if key not in self.steps:
            signature = tf.nest.map_structure(
                lambda t: tf.TensorSpec(t.shape if full else [None, *t.shape[1:]], t.dtype), data
            )
            step = tf.function(self.model.train_step, input_signature=[signature], autograph=False)
            with traces.without_gradient_registry():
                if self.own_class is not None:
                    self._check(step.get_concrete_function())
                self.steps[key] = step
                return self.steps[key](data)
        return self.steps[key](data)

    def _check(self, function: Any) -> None:
        """Raise ConfigurationError where a traced step of a model's own class may not be trained (own_steps.py)."""
        from mop_udf.training.models import ConfigurationError  # (which imports the framework)

        if problem := own_steps.problem(function, self.model, self.own_class):
            raise ConfigurationError(problem)


def _of_iterator(step: Any) -> Any:
    """A step on data in the form of Keras' train_function, which takes an iterator."""
    return lambda iterator: step(tuple(part for part in next(iter(iterator)) if part is not None))
