"""Losses and metrics of a model, both Keras' and custom ones. Runs in the trainer."""

import keras

from mop_udf import architecture_shapes
from mop_udf.errors import first_line
from mop_udf.models import ConfigurationError
from mop_udf.objects import load as load_function


def weights_by_position(loss_weights, architecture):
    """The loss weights as a list, if they and the architecture's outputs are dictionaries.

    Raises ConfigurationError where they name an unknown output.
    """
    names = architecture_shapes.named(architecture, "output_layers")
    if names is None or not isinstance(loss_weights, dict):
        return loss_weights
    if unknown := sorted(set(map(str, loss_weights)) - set(names)):
        raise ConfigurationError(
            f"loss_weights names {unknown[0]!r}, the architecture's outputs are {', '.join(names)}"
        )
    return [loss_weights.get(name, 1.0) for name in names]


def load_functions(objects):
    """{name: pickle} -> {name: function}; raises ConfigurationError where a pickle does not load."""
    functions = {}
    for name, data in objects.items():
        try:
            functions[name] = load_function(data)
        except ValueError as error:
            raise ConfigurationError(f"custom function {name!r} cannot be used: {first_line(error)}") from error
    return functions


def make_loss(name, functions, outputs):
    """The argument `loss` of `compile`: Keras' or the custom loss `name` for each of the model's `outputs`."""
    loss = name
    if name in functions:
        function = functions[name]

        def loss(y_true, y_pred):
            # adding zero times the prediction gives gradients to losses that do not depend on it (MADlib's tests have
            # one)
            value = function(keras.ops.cast(y_true, y_pred.dtype), y_pred)
            return keras.ops.cast(value, y_pred.dtype) + 0 * keras.ops.sum(y_pred)

    return loss if outputs == 1 else [loss] * outputs


def make_metrics(names, functions, model):
    """For each output of `model`, a list of (name, Keras metric) with sums in float64.

    `names`: {name in reports: the metric's name}.
    """
    return [
        [(reported, _metric(name, functions, output.shape[-1])) for reported, name in names.items()]
        for output in model.outputs
    ]


def _metric(name, functions, width):
    """The metric `name` for an output of `width`, which decides the meaning of `accuracy` and `crossentropy`, as in
    Keras.
    """
    metrics = keras.metrics
    if name in functions:
        return _float64_metric(metrics.MeanMetricWrapper, _per_row(functions[name]), name=f"custom_{name}")
    if name.lower() in ("accuracy", "acc"):
        return _float64_metric(metrics.BinaryAccuracy if width == 1 else metrics.CategoricalAccuracy, name=name)
    if name.lower() in ("crossentropy", "ce"):
        return _float64_metric(metrics.BinaryCrossentropy if width == 1 else metrics.CategoricalCrossentropy, name=name)
    found = metrics.get(name)
    return (
        _float64_metric(type(found))
        if isinstance(found, metrics.Metric)
        else _float64_metric(metrics.MeanMetricWrapper, found, name=name)
    )


def _float64_metric(kind, *args, **kwargs):
    """A Keras metric with float64 variables: float32 sums over many rows would lose small values."""

    def add_variable(self, *args, dtype=None, **kwargs):
        return kind.add_variable(self, *args, dtype="float64", **kwargs)

    return type(kind.__name__, (kind,), {"add_variable": add_variable})(*args, dtype="float64", **kwargs)


def _per_row(function):
    """A custom metric with its value repeated for each row of the batch, so that it becomes a mean over rows."""

    def metric(y_true, y_pred):
        value = keras.ops.convert_to_tensor(function(keras.ops.cast(y_true, y_pred.dtype), y_pred))
        return keras.ops.broadcast_to(value, keras.ops.shape(y_pred)[:1]) if len(value.shape) == 0 else value

    return metric
