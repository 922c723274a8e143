"""Loss and metrics as sums over rows, which add up over batches, segments and replicas in any grouping.

Every supported metric of Keras computes its value from variables that are sums. Losses are means over rows, except for
Dice and Tversky: these relate sums over all their rows, so they are computed here from the sums over all rows instead
of batch by batch. Sums are in float64.

The loss reported by training is a mean over batches while the weights change. It equals the loss of an evaluation only
if nothing trains and nothing is random, where reusing it would save little. So it never replaces an evaluation.
"""

import inspect
from typing import Any

import keras
import numpy as np
from keras import ops

from mop_udf.kernels.batches import array
from mop_udf.params import keras_calls
from mop_udf.params.parameter_names import OF_ALL_ROWS
from mop_udf.training.losses import labels_for


class Scores:
    """The sums of one compiled model, in variables: `update` adds a batch, `sums` gives the sums of a single batch."""

    def __init__(self, model: Any, losses: Any, loss_weights: Any, metrics: Any, weighted: Any = ()) -> None:
        """`losses`: the text of each output's loss; `loss_weights`: of each output, or None; `metrics`: each output's list
        of (name, Metric); `weighted`: the names of those that take sample weights.
        """
        self.model, self.metrics, self.weighted = model, metrics, weighted
        # (the compute_loss of a custom class may lack the argument)
        self.training = {"training": False} if _takes_training(model.compute_loss) else {}
        read = [keras_calls.read(loss) for loss in losses]
        # of each output, where its loss relates sums over all rows (params.py lets only all of them do so)
        self.overlap_losses = read if read[0][0].lower() in OF_ALL_ROWS else None
        self.names = list(getattr(model, "output_names", [""]))  # a Sequential model has one output, without a name
        self.loss_weights = list(loss_weights or [1.0] * len(self.names))
        self.total = keras.Variable(np.zeros(1), dtype="float64", trainable=False)  # the loss times the rows
        # of each output: sums of labels times predictions, of labels, of predictions
        self.overlaps = keras.Variable(np.zeros((len(metrics), 3)), dtype="float64", trainable=False)
        self.weights = keras.Variable(np.zeros(1), dtype="float64", trainable=False)  # the sum of the rows' weights

    @property
    def variables(self) -> Any:
        return [
            self.total,
            self.overlaps,
            self.weights,
            *(v for own in self.metrics for _, m in own for v in m.variables),
        ]

    def update(self, x: Any, y: Any, weight: Any = None) -> None:
        """Add a batch: tensors, or lists of tensors for several inputs or outputs; `weight`: of each row, or None."""
        predicted = self.model(x, training=False)
        rows = ops.cast(ops.shape(keras.tree.flatten(x)[0])[0], "float64")
        outputs = keras.tree.flatten(predicted)
        labels = [labels_for(label, output) for label, output in zip(keras.tree.flatten(y), outputs)]
        if self.overlap_losses is None:
            loss = self.model.compute_loss(x, y, predicted, weight, **self.training)
        else:
            loss = sum(self.model.losses, ops.zeros((), "float32"))
            t, p = ([ops.cast(v, "float64") for v in values] for values in (labels, outputs))
            self.overlaps.assign_add(
                ops.stack([ops.stack([ops.sum(a * b), ops.sum(a), ops.sum(b)]) for a, b in zip(t, p)])
            )
        self.weights.assign_add(ops.reshape(rows if weight is None else ops.sum(ops.cast(weight, "float64")), [1]))
        self.total.assign_add(ops.reshape(ops.cast(loss, "float64") * rows, [1]))
        for own, label, output in zip(self.metrics, labels, outputs):
            for name, metric in own:
                metric.update_state(label, output, sample_weight=weight if name in self.weighted else None)

    def sums(self, x: Any, y: Any, weight: Any = None) -> Any:
        """The sums of a batch as one vector (float64), for compilation.

        The variables must exist: call `update` first.
        """
        for variable in self.variables:
            variable.assign(ops.zeros(variable.shape, variable.dtype))
        self.update(x, y, weight)
        return ops.concatenate([ops.cast(ops.reshape(v, [-1]), "float64") for v in self.variables])

    def results(self, sums: Any, rows: int) -> Any:
        """(loss, {name of a metric: its value}) of `rows` rows, from their `sums`.

        The value of a metric with a value for each class is their mean. For several outputs, each output's value is
        given in addition as <output>_<metric>, as in Keras.
        """
        for variable in self.variables:
            size = int(np.prod(variable.shape))
            variable.assign(sums[:size].reshape(variable.shape))
            sums = sums[size:]
        loss = float(array(self.total)[0]) / rows
        if self.overlap_losses is not None:
            overlaps = sum(
                weight * _overlap(*loss, *of)
                for weight, loss, of in zip(self.loss_weights, self.overlap_losses, array(self.overlaps))
            )
            loss += float(overlaps * array(self.weights)[0] / rows)  # (Keras multiplies by the mean weight)
        single = [{name: float(np.mean(array(metric.result()))) for name, metric in own} for own in self.metrics]
        values = {name: float(np.mean([own[name] for own in single])) for name in single[0]}
        if len(single) > 1:
            own_names = {f"{output}_{name}": own[name] for output, own in zip(self.names, single) for name in own}
            values.update({name: value for name, value in own_names.items() if name not in values})
        return loss, values


def _takes_training(function: Any) -> bool:
    """Whether a function takes the keyword argument `training`."""
    parameters = inspect.signature(function).parameters.values()
    return any(one.name == "training" or one.kind is one.VAR_KEYWORD for one in parameters)


def _overlap(loss: Any, arguments: Any, both: Any, labels: Any, predictions: Any) -> Any:
    """Keras' loss from the sums of labels times predictions, of labels, and of predictions."""
    if loss.lower() == "dice":
        return 1 - 2 * both / (labels + predictions + keras.config.epsilon())
    missed, wrong = labels - both, predictions - both
    alpha, beta = arguments.get("alpha", 0.5), arguments.get("beta", 0.5)
    return 1 - both / (both + beta * missed + alpha * wrong + keras.config.epsilon())
