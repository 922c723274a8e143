"""Losses and metrics of a model, both Keras' and custom ones. Runs in the trainer."""

import functools
import re
from typing import Any

import keras

from mop_udf.architecture import architecture_shapes
from mop_udf.errors import first_line
from mop_udf.params import keras_calls
from mop_udf.params.parameter_names import SPARSE_LOSSES, SPARSE_METRICS
from mop_udf.training.models import ConfigurationError, maker_of
from mop_udf.training.objects import load as load_function

OF_SECOND_CLASS = (keras.metrics.AUC, keras.metrics.Precision, keras.metrics.Recall)
_ACCURACY = keras.metrics.categorical_accuracy, keras.metrics.sparse_categorical_accuracy
_CROSSENTROPY = keras.metrics.categorical_crossentropy, keras.metrics.sparse_categorical_crossentropy
# names -> functions of Keras for one-hot labels, and for class numbers
OF_STEPS = {"accuracy": _ACCURACY, "acc": _ACCURACY, "crossentropy": _CROSSENTROPY, "ce": _CROSSENTROPY}


def by_position(what: str, given: Any, architecture: dict[str, Any], model: Any, default: Any = None) -> Any:
    """Turn the argument `what` of compile into a list with a value for each output of the model; None stays None.

    `given`: one value for all outputs, a list, or a dictionary of the outputs' names; `default`: the value of outputs that
    the dictionary leaves out; None: it must name all. Raises ConfigurationError.
    """
    outputs = len(model.outputs)
    if isinstance(given, dict):
        names = architecture_shapes.named(architecture, "output_layers") or getattr(model, "output_names", [])
        if outputs == 1 and len(given) == 1:  # (the only output of a Sequential model has no name of its own)
            return list(given.values())
        if unknown := sorted(set(given) - set(names)):
            raise ConfigurationError(f"{what} names {unknown[0]!r}, the architecture's outputs are {', '.join(names)}")
        if default is None and (missing := [name for name in names if name not in given]):
            raise ConfigurationError(f"{what} has nothing for the output {missing[0]!r}")
        return [given.get(name, default) for name in names]
    if isinstance(given, list) and len(given) != outputs:
        raise ConfigurationError(f"{what} has {len(given)} values, the architecture {outputs} outputs")
    return given if given is None or isinstance(given, list) else [given] * outputs


def load_functions(objects: Any) -> Any:
    """{name: pickle} -> {name: function or class}; raises ConfigurationError where a pickle does not load."""
    functions = {}
    for name, data in objects.items():
        try:
            functions[name] = load_function(data)
        except ValueError as error:
            raise ConfigurationError(f"custom function {name!r} cannot be used: {first_line(error)}") from error
    return functions


def make_loss(losses: Any, functions: Any, model: Any) -> Any:
    """The argument `loss` of `compile`: Keras' and custom losses for `losses`, the text of each output's."""
    made = [
        _of_one_unit(loss) if output.shape[-1] == 1 else loss
        for loss, output in zip((_loss(text, functions) for text in losses), model.outputs, strict=True)
    ]
    return made[0] if len(made) == 1 else made


def labels_for(y_true: Any, y_pred: Any) -> Any:
    """The labels as an output takes them. An output of one unit predicts the second of two classes."""
    return y_true[..., 1:] if y_pred.shape[-1] == 1 and y_true.shape[-1] == 2 else y_true


def _of_one_unit(loss: Any) -> Any:
    """The same loss for an output of one unit, whose labels may be those of two classes."""
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    if isinstance(loss, keras.losses.Loss):
        own = loss.call
        loss.call = lambda y_true, y_pred: own(labels_for(y_true, y_pred), y_pred)
        return loss

    @functools.wraps(loss)
    def of_one_unit(y_true: Any, y_pred: Any) -> Any:
        return loss(labels_for(y_true, y_pred), y_pred)

    return of_one_unit


def _loss(text: str, functions: Any) -> Any:
    if text in functions:
        function = functions[text]
        if isinstance(function, type) and issubclass(function, keras.losses.Loss):
            function = function().call  # (a value for each row, as of a function)
        _check_function(text, function, "loss")

        def custom(y_true: Any, y_pred: Any) -> Any:
            # adding zero times the prediction gives gradients to losses that do not depend on it (MADlib's tests have
            # one)
            value = function(keras.ops.cast(y_true, y_pred.dtype), y_pred)
            return keras.ops.cast(value, y_pred.dtype) + 0 * keras.ops.sum(y_pred)

        return custom
    name, arguments = keras_calls.read(text)
    if name == "Pinball":
        return _pinball(**arguments)
    if name in SPARSE_LOSSES:
        return _of_class_number(keras.losses.sparse_categorical_crossentropy, arguments)
    return getattr(keras.losses, name)(**arguments) if arguments else name


def _pinball(quantile: float = 0.5) -> Any:
    """The loss whose least mean a quantile has (Koenker and Bassett 1978). Raises ConfigurationError."""
    if isinstance(quantile, bool) or not isinstance(quantile, (int, float)) or not 0 < quantile < 1:
        raise ConfigurationError(f"the quantile of Pinball must be between 0 and 1, not {quantile!r}")

    def pinball(y_true: Any, y_pred: Any) -> Any:
        missing = keras.ops.cast(y_true, y_pred.dtype) - y_pred
        return keras.ops.mean(keras.ops.maximum(quantile * missing, (quantile - 1) * missing), axis=-1)

    return pinball


def _check_function(name: str, function: Any, what: str) -> None:
    """Raise ConfigurationError where a custom object is a class: only losses may be classes. (The states of segments add up,
    which those of a class of metrics need not do.)"""
    if isinstance(function, type):
        raise ConfigurationError(
            f"the custom object {name!r} is no {what} but the class {function.__name__}: write a function of (y_true, y_pred)"
        )


def _of_class_number(function: Any, arguments: Any) -> Any:
    """A loss or metric of Keras that takes class numbers, for one-hot labels or for class numbers (see `are_numbers`)."""

    def of_labels(y_true: Any, y_pred: Any) -> Any:
        labels = keras.ops.cast(y_true, "int32") if are_numbers(y_true, y_pred) else keras.ops.argmax(y_true, axis=-1)
        return function(labels, y_pred, **arguments)

    return of_labels


def are_numbers(y_true: Any, y_pred: Any) -> bool:
    """Whether labels are class numbers of steps: they have one dimension less than the predictions."""
    return len(y_true.shape) < len(y_pred.shape)


def _of_steps(one_hot: Any, of_numbers: Any) -> Any:
    """A metric of Keras (two functions) for an output of steps, whose labels are one-hot, or class numbers."""

    def metric(y_true: Any, y_pred: Any) -> Any:
        return of_numbers(y_true, y_pred) if are_numbers(y_true, y_pred) else one_hot(y_true, y_pred)

    return metric


def make_metrics(names: Any, functions: Any, model: Any) -> Any:
    """For each output of `model`, a list of (name, Keras metric) with sums in float64.

    `names`: {name in reports: the metric's text}.
    """
    return [
        [
            (reported, _for_labels(_metric(text, functions, output, reported), output))
            for reported, text in names.items()
        ]
        for output in model.outputs
    ]


def _for_labels(metric: Any, output: Any) -> Any:
    """The metric, which for an output of one unit takes the labels of two classes, too."""
    if output.shape[-1] == 1:
        own = metric.update_state

        def update_state(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            return own(labels_for(y_true, y_pred), y_pred, sample_weight)

        metric.update_state = update_state
    return metric


def _is_softmax(output: Any) -> bool:
    """True where a softmax makes this output (a KerasTensor of a model)."""
    layer = maker_of(output)
    return isinstance(layer, keras.layers.Softmax) or getattr(layer, "activation", None) is keras.activations.softmax


def _metric(name: str, functions: Any, output: Any, reported: Any) -> Any:
    """The metric `name`, possibly with arguments, for an output, whose width decides the meaning of `accuracy` and
    `crossentropy`, as in Keras; `reported`: its name in reports. Where a softmax makes an output of two classes,
    OF_SECOND_CLASS are of the second one.
    """
    metrics, width = keras.metrics, output.shape[-1]
    if name in functions:
        _check_function(name, functions[name], "metric")
        return _float64_metric(metrics.MeanMetricWrapper, _per_row(functions[name]), name=f"custom_{name}")
    if len(output.shape) > 2 and width > 1 and name.lower() in OF_STEPS:
        return _float64_metric(metrics.MeanMetricWrapper, _of_steps(*OF_STEPS[name.lower()]), name=name)
    if name.lower() in ("accuracy", "acc"):
        return _float64_metric(metrics.BinaryAccuracy if width == 1 else metrics.CategoricalAccuracy, name=name)
    if name.lower() in ("crossentropy", "ce"):
        return _float64_metric(metrics.BinaryCrossentropy if width == 1 else metrics.CategoricalCrossentropy, name=name)
    kind, arguments = keras_calls.read(name)
    if kind in SPARSE_METRICS:
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower()
        function = getattr(metrics, snake)
        own = {key: value for key, value in arguments.items() if key != "name"}
        return _float64_metric(metrics.MeanMetricWrapper, _of_class_number(function, own), name=reported)
    of_second = width == 2 and _is_softmax(output)
    if arguments:
        called = getattr(metrics, kind)
        called = _of_second_class(called) if of_second and called in OF_SECOND_CLASS else called
        return _float64_metric(called, **{**arguments, "name": reported})
    found = metrics.get(name)
    if of_second and type(found) in OF_SECOND_CLASS:
        return _float64_metric(_of_second_class(type(found)))
    return (
        _float64_metric(type(found))
        if isinstance(found, metrics.Metric)
        else _float64_metric(metrics.MeanMetricWrapper, found, name=name)
    )


def _of_second_class(kind: Any) -> Any:
    """A class of metrics that sees the second unit alone, the probability of the second of two classes.

    Keras takes both units as predictions of one label, so that each row would count twice, once with each class as the
    positive one.
    """

    def update_state(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return kind.update_state(self, y_true[..., 1:], y_pred[..., 1:], sample_weight)

    return type(kind.__name__, (kind,), {"update_state": update_state})


def _float64_metric(kind: Any, *args: Any, **kwargs: Any) -> Any:
    """A Keras metric with float64 variables: float32 sums over many rows would lose small values."""

    def add_variable(self: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        return kind.add_variable(self, *args, dtype="float64", **kwargs)

    return type(kind.__name__, (kind,), {"add_variable": add_variable})(*args, dtype="float64", **kwargs)


def _per_row(function: Any) -> Any:
    """A custom metric with its value repeated for each row of the batch, so that it becomes a mean over rows."""

    def metric(y_true: Any, y_pred: Any) -> Any:
        value = keras.ops.convert_to_tensor(function(keras.ops.cast(y_true, y_pred.dtype), y_pred))
        return keras.ops.broadcast_to(value, keras.ops.shape(y_pred)[:1]) if len(value.shape) == 0 else value

    return metric
