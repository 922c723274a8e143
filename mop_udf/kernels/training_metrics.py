"""Keras' report on training: loss and metrics, for every framework."""

from typing import Any

import keras
import numpy as np

from mop_udf.kernels.batches import array
from mop_udf.kernels.framework import framework


class TrainingMetrics:
    """A model's metrics since their reset.

    If all metrics are means, as with the loss alone, their sums are set and read together: one by one they would take
    longer than a small model trains.
    """

    def __init__(self, model: Any, own_step: bool = False) -> None:
        """`own_step`: the model has a training step of its own, which need not tell a loss."""
        self.model, self._own_step = model, own_step
        self._names: Any = None  # once Keras has made the metrics
        self._sums: Any = None

    def reset(self, made: Any) -> None:
        """Reset the metrics. `made`: Keras has made all metrics of the model and their variables."""
        if made and self._names is None:
            self._look()
        if self._sums is None:
            self.model.reset_metrics()
        else:
            self._sums.put(self._zeros)

    def _look(self) -> None:
        metrics = self.model.metrics
        self._names = [metric.name for metric in metrics]
        if all(type(metric) is keras.metrics.Mean for metric in metrics):
            self._sums = framework.Variables(
                variable for metric in metrics for variable in (metric.total, metric.count)
            )
            self._zeros = [np.zeros((), variable.dtype) for variable in self._sums.variables]

    def report(self, rows: int) -> Any:
        """{"loss", "metrics": {name: value}, "rows"} since the reset, with plain numbers.

        The value of a metric with a value for each class is their mean. The loss is that of the metric `loss`; None where the
        model's own training step does not update it.
        """
        if self._sums is None:
            values = {name: float(np.mean(array(value))) for name, value in self.model.get_metrics_result().items()}
        else:
            sums = self._sums.take()
            values = {
                name: float(total / count) if count else 0.0
                for name, total, count in zip(self._names, sums[::2], sums[1::2])
            }
        losses = {
            "loss",
            *(f"{name}_loss" for name in getattr(self.model, "output_names", []) if len(self.model.outputs) > 1),
        }
        return {
            "loss": values.get("loss", 0.0) if self._tells_loss() else None,
            "rows": rows,
            "metrics": {name: value for name, value in values.items() if name not in losses},
        }

    def _tells_loss(self) -> bool:
        if not self._own_step:
            return True
        means = [metric for metric in self.model.metrics if metric.name == "loss"]
        return any(not isinstance(metric, keras.metrics.Mean) or float(array(metric.count)) for metric in means)
