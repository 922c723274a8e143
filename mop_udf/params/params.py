"""The meaning of parameter strings: compile and fit parameters. The coordinator and the trainer both read them.

The grammar is in parameter_text.py. No part of a string is ever executed. Some values may be sequences (sequences.py),
with a value for each iteration: parameter_resolver.py writes the strings of one iteration. Standard library only.
"""

import json
import math
import re
from typing import Any

from mop_udf.errors import abbreviated
from mop_udf.params import keras_calls, sequence_parser, sequences
from mop_udf.params.keras_schedules import Schedule
from mop_udf.params.parameter_names import (
    OF_ALL_ROWS,
    OPTIMIZERS,
    canonical_name,
    is_builtin_metric,
    loss_name,
    metric_name,
)
from mop_udf.params.parameter_text import (
    ParameterError,
    check_integer,
    evaluate_literal,
    is_integer,
    is_number,
    literal_of,
    split,
    strip_quotes,
)
from mop_udf.params.sequences import Sequence

# numbers of optimizers; configurations that differ only in these share one compiled model
SCALARS = ("learning_rate", "decay", "momentum", "beta_1", "beta_2", "rho", "epsilon", "weight_decay")
COMPILE_KEYS = ("loss", "optimizer", "metrics", "loss_weights", "weighted_metrics", "sample_weight_mode")
FIT_KEYS = (
    "batch_size",
    "epochs",
    "verbose",
    "shuffle",
    "class_weight",
    "initial_epoch",
    "steps_per_epoch",
    "callbacks",
    "dropout",
    "stop",
    "keep",
)
SEQUENCE_KEYS = ("batch_size", "class_weight", "dropout")  # fit parameters that may be sequences
WITHOUT_EFFECT = ("verbose", "stop", "keep")  # on the result of an iteration
STOP_KEYS = ("patience", "min_delta", "target", "metric", "mode")
DEFAULTS: dict[str, Any] = {
    "batch_size": 32,
    "epochs": 1,
    "verbose": 0,
    "shuffle": False,
    "class_weight": None,
    "initial_epoch": 0,
    "steps_per_epoch": None,
    "dropout": None,
    "callbacks": None,
    "stop": None,
    "keep": "last",
}
TENSORBOARD_KEYS = (
    "log_dir",
    "histogram_freq",
    "batch_size",
    "update_freq",
    "write_graph",
    "write_grad",
    "write_images",
)


def parse_compile_params(text: str | None) -> dict[str, Any]:
    """A compile_params string -> dict.

    Keys: loss (a name, possibly with arguments; for several outputs also a list, or {output: name}), optimizer (Keras'
    class name), optimizer_args (`lr` as learning_rate, None dropped; SCALARS may be a Sequence, the learning rate also a
    Schedule), metrics (list of distinct names, possibly with arguments), loss_weights, weighted_metrics,
    sample_weight_mode. Raises ParameterError.
    """
    if text is None or not text.strip():
        raise ParameterError("the compile parameters are empty")
    values = {k: strip_quotes(v) for k, v in split(text).items()}
    for key in values:
        if key not in COMPILE_KEYS:
            raise ParameterError(
                f"{abbreviated(key)} is not accepted in compile parameters ({', '.join(COMPILE_KEYS)})"
            )
    for key in ("loss", "optimizer"):
        if not values.get(key):
            raise ParameterError(f"{key!r} is required in compile parameters")
    loss = _losses(values["loss"])
    name, arguments = parse_optimizer(values["optimizer"])
    mode = values.get("sample_weight_mode")
    if mode not in (None, "None", "temporal"):
        raise ParameterError(f"sample_weight_mode must be 'temporal' or None, not {abbreviated(mode)}")
    parsed = {
        "loss": loss,
        "optimizer": name,
        "optimizer_args": arguments,
        "metrics": _metrics(values.get("metrics")),
        "loss_weights": _loss_weights(values.get("loss_weights")),
        "weighted_metrics": _weighted_metrics(values.get("weighted_metrics")),
        "sample_weight_mode": None if mode == "None" else mode,
    }
    given = [*parsed["metrics"], *(parsed["weighted_metrics"] or ())]
    if len(reported_metrics(parsed)) < len(given):
        raise ParameterError(
            f"two of the metrics {', '.join(given)} have the same name: give one another, as name='...'"
        )
    return parsed


def parse_fit_params(text: str | None) -> dict[str, Any]:
    """A fit_params string (or None) -> dict with every key of FIT_KEYS, defaults filled in.

    `stop` is None or a dict with every key of STOP_KEYS: a configuration stops when its metric has not improved by
    `min_delta` in `patience` evaluations, or has reached `target`. `keep`: 'last', or 'best' by that metric.
    `callbacks` is None or the keyword arguments of the TensorBoard callback; `dropout` None, a rate, or {layer: rate}.
    Parameters of SEQUENCE_KEYS may be a Sequence; :func:`fit_value` gives the values. Raises ParameterError.
    """
    values = split(text) if text and text.strip() else {}
    for key in values:
        if key not in FIT_KEYS:
            raise ParameterError(f"{abbreviated(key)} is not accepted in fit parameters ({', '.join(FIT_KEYS)})")
    callbacks = values.pop("callbacks", None)
    parsed = dict(DEFAULTS)
    for key, value in values.items():
        parsed[key] = (
            _fit_sequence(key, value) if sequence_parser.is_sequence_text(value) else evaluate_literal(key, value)
        )
    if parsed["batch_size"] is None:
        parsed["batch_size"] = 32
    for key in SEQUENCE_KEYS:
        if not isinstance(parsed[key], Sequence) and parsed[key] is not None:
            parsed[key] = FIT_CHECKS[key](parsed[key])
    check_integer("epochs", parsed["epochs"], 1)
    check_integer("initial_epoch", parsed["initial_epoch"], 0)
    if parsed["initial_epoch"] >= parsed["epochs"]:
        raise ParameterError(f"initial_epoch ({parsed['initial_epoch']}) must be below epochs ({parsed['epochs']})")
    if parsed["steps_per_epoch"] is not None:
        check_integer("steps_per_epoch", parsed["steps_per_epoch"], 1)
    if not (parsed["verbose"] is None or parsed["verbose"] == "auto" or isinstance(parsed["verbose"], int)):
        raise ParameterError(f"verbose must be an integer or 'auto', not {abbreviated(parsed['verbose'])}")
    if not (isinstance(parsed["shuffle"], bool) or parsed["shuffle"] == "batch"):
        raise ParameterError(f"shuffle must be True, False or 'batch', not {abbreviated(parsed['shuffle'])}")
    parsed["stop"] = _stop(parsed["stop"])
    if parsed["keep"] not in ("last", "best"):
        raise ParameterError(f"keep must be 'last' or 'best', not {abbreviated(parsed['keep'])}")
    parsed["callbacks"] = None if callbacks in (None, "None", "[]") else _tensorboard(callbacks)
    return parsed


def _stop(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not value or any(key not in STOP_KEYS for key in value):
        raise ParameterError(f"stop must be a dictionary with keys of {', '.join(STOP_KEYS)}, not {abbreviated(value)}")
    stop = {"patience": None, "min_delta": 0.0, "target": None, "metric": "loss", "mode": None, **value}
    if stop["patience"] is None and stop["target"] is None:
        raise ParameterError(f"stop needs patience or target, as in stop={{'patience': 3}}, not {abbreviated(value)}")
    if stop["patience"] is not None:
        check_integer("patience of stop", stop["patience"], 1)
    for key in ("min_delta", "target"):
        if stop[key] is not None and not is_number(stop[key]):
            raise ParameterError(f"{key} of stop must be a number, not {abbreviated(stop[key])}")
    if stop["min_delta"] < 0:
        raise ParameterError(f"min_delta of stop must not be below 0, not {stop['min_delta']}")
    if not isinstance(stop["metric"], str):
        raise ParameterError(f"metric of stop must be the name of a metric, not {abbreviated(stop['metric'])}")
    if stop["mode"] not in (None, "min", "max"):
        raise ParameterError(f"mode of stop must be 'min' or 'max', not {abbreviated(stop['mode'])}")
    return stop


def parse_optimizer(text: str) -> tuple[str, dict[str, Any]]:
    """'Adam', "Adam()", 'SGD(lr=0.1, momentum=0.9)' -> (Keras' class name, {argument: literal}). Raises ParameterError."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    name = match and canonical_name(match[1], OPTIMIZERS)
    if match is None or name is None:
        raise ParameterError(f"unknown optimizer {abbreviated(text)}")
    arguments: dict[str, Any] = {}
    for key, value in (split(match[2]) if match[2] and match[2].strip() else {}).items():
        key = "learning_rate" if key == "lr" else key
        if not re.fullmatch(r"[A-Za-z_]\w{0,62}", key):
            raise ParameterError(f"{abbreviated(key)} is not an argument name of optimizer {name}")
        if key in arguments:
            raise ParameterError(f"optimizer {name} is given both lr and learning_rate")
        if sequence_parser.is_sequence_text(value):
            arguments[key] = _scalar_sequence(key, value)
            continue
        literal = evaluate_literal(f"optimizer argument {key}", value)
        if not (literal is None or isinstance(literal, bool) or is_number(literal)):
            raise ParameterError(
                f"optimizer argument {key} must be a number, True, False or None, not {abbreviated(value)}"
            )
        # Keras refuses lr=1, an integer
        arguments[key] = float(literal) if key in SCALARS and is_integer(literal) else literal
    arguments = {key: value for key, value in arguments.items() if value is not None}
    rate: Any = arguments.get("learning_rate")
    if "decay" in arguments and _is_sequence(rate) and rate.per == "batch":
        raise ParameterError(
            "decay, which changes the learning rate with each mini-batch, cannot be given together "
            "with learning rates that do so themselves: leave one of them out"
        )
    return name, arguments


def reported_metrics(compile_params: dict[str, Any]) -> dict[str, str]:
    """{name in reports: Keras' name} of the metrics and the weighted metrics in parsed compile parameters, in order.

    As in Keras, a weighted metric that is also among the metrics is reported as weighted_<name>.
    """
    names = {keras_calls.reported(metric): metric for metric in compile_params["metrics"]}
    return {**names, **weighted_metrics(compile_params)}


def weighted_metrics(compile_params: dict[str, Any]) -> dict[str, str]:
    """{name in reports: Keras' name} of the weighted metrics in parsed compile parameters."""
    names = set(map(keras_calls.reported, compile_params["metrics"]))
    weighted = {keras_calls.reported(metric): metric for metric in compile_params["weighted_metrics"] or ()}
    return {f"weighted_{name}" if name in names else name: metric for name, metric in weighted.items()}


def losses(compile_params: dict[str, Any]) -> list[str]:
    """The losses in parsed compile parameters: one, or one for each output."""
    loss = compile_params["loss"]
    return [loss] if isinstance(loss, str) else list(loss.values() if isinstance(loss, dict) else loss)


def loss_text(compile_params: dict[str, Any]) -> str:
    """The loss in parsed compile parameters as text."""
    loss = compile_params["loss"]
    return loss if isinstance(loss, str) else repr(loss)


def without_scalars(compile_params: dict[str, Any]) -> dict[str, Any]:
    """The part of parsed compile parameters that decides which compiled model serves them.

    SCALARS count by their presence and sign only. A learning rate that is a variable of Keras counts by its presence
    only. A sequence per batch counts by its structure, without its numbers. A schedule of Keras counts in full.
    """
    arguments = dict(compile_params["optimizer_args"])
    for key, value in arguments.items():
        if isinstance(value, Schedule):
            arguments[key] = ["schedule", value.text]
        elif isinstance(value, Sequence) and value.per == "batch":
            arguments[key] = ["per batch", *value.structure(), None if key == "learning_rate" else sign(value.at(0))]
        elif key in SCALARS and (isinstance(value, Sequence) or is_number(value)):
            variable = key == "learning_rate" and "decay" not in arguments
            arguments[key] = ["scalar", None if variable else sign(_first(value))]
    return {**compile_params, "optimizer_args": arguments}


def scalars(compile_params: dict[str, Any]) -> dict[str, Any]:
    """{name: number, or Sequence per batch}: the scalars in parsed compile parameters."""
    return {
        k: v
        for k, v in compile_params["optimizer_args"].items()
        if k in SCALARS and (is_number(v) or isinstance(v, Sequence))
    }


def canonical_compile(text: str | None) -> str:
    """Text that is equal for compile_params of equal meaning. Raises ParameterError."""
    return json.dumps(parse_compile_params(text), sort_keys=True, default=str)


def canonical_fit(text: str | None) -> str:
    """Text that is equal for fit_params of equal meaning. Raises ParameterError."""
    return json.dumps(parse_fit_params(text), sort_keys=True, default=str)


SIGN_CHANGED = (
    "{0} must not change between zero and other signs while a configuration trains, since Keras would then keep other "
    "variables: {1} does not have the sign of the first value"
)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (Sequence, Schedule))


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _first(value: Any) -> Any:
    return value.at(0) if isinstance(value, Sequence) else value


def _parsed_sequence(key: str, text: str) -> Any:
    try:
        return sequence_parser.parse(text)
    except sequences.SequenceError as error:
        raise ParameterError(f"{key}: {error}") from None


def _scalar_sequence(key: str, text: str) -> Any:
    """The Sequence or Schedule of an optimizer's argument, or a number where it has a single value."""
    value = _parsed_sequence(key, text)
    if isinstance(value, dict) or isinstance(value, Sequence) and any(isinstance(v, dict) for v in value.stated()):
        raise ParameterError(f"optimizer argument {key} must be numbers, not {abbreviated(text)}")
    if key not in SCALARS or key == "decay":
        raise ParameterError(
            f"optimizer argument {key} cannot be a sequence, only "
            f"{', '.join(name for name in SCALARS if name != 'decay')} can"
        )
    if isinstance(value, Schedule) and key != "learning_rate":
        raise ParameterError(f"a learning rate schedule of Keras cannot stand for {key}")
    if isinstance(value, Sequence) and key != "learning_rate" and len(value.signs()) > 1:
        first = value.at(0)
        raise ParameterError(SIGN_CHANGED.format(key, next(v for v in value.stated() if sign(v) != sign(first))))
    return value


def _fit_sequence(key: str, text: str) -> Any:
    """The Sequence of a fit parameter, with all values in its text checked, or its value where it has a single one."""
    if key not in SEQUENCE_KEYS:
        raise ParameterError(f"{abbreviated(key)} cannot be a sequence, only {', '.join(SEQUENCE_KEYS)} can")
    value = _parsed_sequence(key, text)
    if isinstance(value, Schedule):
        raise ParameterError(f"a learning rate schedule of Keras cannot stand for {key}")
    if isinstance(value, Sequence) and value.per == "batch":
        raise ParameterError(
            f"{key} cannot change within an iteration: per='batch' is for the scalars of an "
            f"optimizer ({', '.join(name for name in SCALARS if name != 'decay')})"
        )
    if not isinstance(value, Sequence):
        return _stated(key, value)
    checked = [_stated(key, v) for v in value.stated()]
    if key == "dropout" and isinstance(checked[0], dict) and any(v.keys() != checked[0].keys() for v in checked):
        raise ParameterError("the dictionaries of dropout must all name the same layers")
    return value.mapped(FIT_CHECKS[key]) if isinstance(checked[0], dict) else value


def _stated(key: str, value: Any) -> Any:
    """A checked value from a sequence's text; a batch size is rounded."""
    if key == "batch_size" and isinstance(value, float):
        if not value >= 1:
            raise ParameterError(f"batch_size must be at least 1, not {value:g}")
        value = _rounded(value)
    return FIT_CHECKS[key](value)


def fit_value(key: str, value: Any) -> Any:
    """The fit parameter for a sequence's value: a batch size is rounded, and at least 1."""
    return FIT_CHECKS[key](max(1, _rounded(value)) if key == "batch_size" else value)


def _rounded(value: float) -> int:
    return math.floor(value + 0.5)


def _checked_batch_size(value: Any) -> int:
    check_integer("batch_size", value, 1)
    return value


def _checked_class_weight(weights: Any) -> Any:
    """{class: weight}, sorted by class, a number from 0 or a label. Weights become floats, so that 1 equals 1.0.

    Also 'balanced': :class:`~mop_udf.params.parameter_resolver.Resolver` replaces it by weights.
    """
    if weights == "balanced":
        return weights
    if not (
        isinstance(weights, dict)
        and all((isinstance(k, (str, bool)) or is_integer(k) and k >= 0) and is_number(v) for k, v in weights.items())
    ):
        raise ParameterError(
            f"class_weight must be a dictionary of class numbers or labels to weights, or 'balanced', "
            f"not {abbreviated(weights)}"
        )
    if negative := [k for k, v in weights.items() if v < 0]:
        raise ParameterError(
            f"class_weight must not be below 0, as that of class {negative[0]!r} is in {abbreviated(weights)}"
        )
    return {k: float(v) + 0.0 for k, v in sorted(weights.items(), key=lambda item: (str(type(item[0])), item[0]))}


def _checked_dropout(rates: Any) -> float | dict[str, float]:
    """A rate, or {layer name: rate}."""
    if isinstance(rates, dict):
        if not rates or not all(isinstance(k, str) and _is_rate(v) for k, v in rates.items()):
            raise ParameterError(f"dropout must name layers with rates from 0 to below 1, not {abbreviated(rates)}")
        return {k: float(v) + 0.0 for k, v in sorted(rates.items())}
    if not _is_rate(rates):
        raise ParameterError(
            f"dropout must be a rate from 0 to below 1, or a dictionary of layers to rates, not {abbreviated(rates)}"
        )
    return float(rates) + 0.0


def _is_rate(value: Any) -> bool:
    return is_number(value) and 0 <= value < 1


FIT_CHECKS = {"batch_size": _checked_batch_size, "class_weight": _checked_class_weight, "dropout": _checked_dropout}


def _losses(text: str) -> Any:
    """A loss; or losses by output, in a list or a dictionary."""
    if text[:1] not in ("[", "{"):
        return loss_name(text)
    given = literal_of("loss", text, (list, dict))
    if not given or isinstance(given, dict) and not all(isinstance(output, str) for output in given):
        raise ParameterError(f"loss must be a name, a list of names or {{output: name}}, not {abbreviated(text)}")
    found = {k: loss_name(v) for k, v in given.items()} if isinstance(given, dict) else list(map(loss_name, given))
    names = [keras_calls.read(loss)[0].lower() for loss in (found.values() if isinstance(found, dict) else found)]
    if len({name in OF_ALL_ROWS for name in names}) > 1:
        raise ParameterError(
            f"{' and '.join(OF_ALL_ROWS)} cannot be combined with other losses, as in {abbreviated(text)}"
        )
    return found


def _metrics(text: str | None) -> list[str]:
    """A list of names, or a single name; possibly with arguments."""
    if text is not None and re.fullmatch(r"(?!None$)[A-Za-z]\w*\s*(\(.*\))?", text, re.DOTALL):
        return [metric_name(text)]
    metrics = literal_of("metrics", text, (list, tuple, str)) if text is not None else None
    if isinstance(metrics, str):  # as in metrics=('accuracy')
        metrics = [metrics]
    return list(dict.fromkeys(metric_name(name) for name in metrics or ()))


def _weighted_metrics(text: str | None) -> list[str] | None:
    # only names may pass: Keras would load a dictionary as an object of any class
    names = literal_of("weighted_metrics", text, (list, tuple))
    if names is None:
        return None
    for name in names:
        metric_name(name)
        if not is_builtin_metric(name):
            raise ParameterError(f"weighted metric {abbreviated(name)} is not one of Keras' own")
    return list(dict.fromkeys(map(metric_name, names)))


def _loss_weights(text: str | None) -> Any:
    weights = literal_of("loss_weights", text, (list, dict))
    values = weights.values() if isinstance(weights, dict) else weights or ()
    if not all(map(is_number, values)) or isinstance(weights, dict) and not all(isinstance(k, str) for k in weights):
        raise ParameterError(
            f"loss_weights must be a list of numbers, or a dictionary of output names to numbers, not {abbreviated(text)}"
        )
    return weights


def _tensorboard(text: str) -> dict[str, Any]:
    match = re.fullmatch(r"\[\s*TensorBoard\s*\((.*)\)\s*\]", strip_quotes(text), re.DOTALL)
    if not match:
        raise ParameterError(f"callbacks must be one TensorBoard(...) in a list, not {abbreviated(text)}")
    arguments = {k: evaluate_literal(k, v) for k, v in (split(match[1]) if match[1].strip() else {}).items()}
    for key in arguments:
        if key not in TENSORBOARD_KEYS:
            raise ParameterError(f"{abbreviated(key)} is not accepted in TensorBoard ({', '.join(TENSORBOARD_KEYS)})")
    if not isinstance(arguments.get("log_dir"), str):
        raise ParameterError("TensorBoard needs log_dir, a string")
    return arguments
