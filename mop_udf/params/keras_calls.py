"""Keras' losses and metrics with arguments in parameter strings, such as `Huber(delta=2.0)`.

The classes and the arguments that a string may name are listed here; values are literals. No part of a string is ever
executed. Standard library only.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

from mop_udf.errors import abbreviated
from mop_udf.params.parameter_text import ParameterError, evaluate_literal, is_number, split, write_literal

# (not `reduction`, and not `ignore_class`: pg_mop adds losses up over rows, in any grouping)
LOSSES: dict[str, tuple[str, ...]] = {
    "BinaryCrossentropy": ("from_logits", "label_smoothing"),
    "BinaryFocalCrossentropy": ("apply_class_balancing", "alpha", "gamma", "from_logits", "label_smoothing"),
    "CategoricalCrossentropy": ("from_logits", "label_smoothing"),
    "CategoricalFocalCrossentropy": ("alpha", "gamma", "from_logits", "label_smoothing"),
    "CategoricalHinge": (),
    "CosineSimilarity": (),
    "CTC": (),
    "Dice": (),
    "Hinge": (),
    "Huber": ("delta",),
    "KLDivergence": (),
    "LogCosh": (),
    "MeanAbsoluteError": (),
    "MeanAbsolutePercentageError": (),
    "MeanSquaredError": (),
    "MeanSquaredLogarithmicError": (),
    "Pinball": ("quantile",),  # of pg_mop (training/losses.py)
    "Poisson": (),
    "SparseCategoricalCrossentropy": ("from_logits",),
    "SquaredHinge": (),
    "Tversky": ("alpha", "beta"),
}
METRICS: dict[str, tuple[str, ...]] = {
    "AUC": (
        "num_thresholds",
        "curve",
        "summation_method",
        "thresholds",
        "multi_label",
        "num_labels",
        "label_weights",
        "from_logits",
    ),
    "Accuracy": (),
    "BinaryAccuracy": ("threshold",),
    "BinaryCrossentropy": ("from_logits", "label_smoothing"),
    "CategoricalAccuracy": (),
    "CategoricalCrossentropy": ("from_logits", "label_smoothing"),
    "CategoricalHinge": (),
    "CosineSimilarity": (),
    "F1Score": ("average", "threshold"),
    "FBetaScore": ("average", "beta", "threshold"),
    "FalseNegatives": ("thresholds",),
    "FalsePositives": ("thresholds",),
    "Hinge": (),
    "KLDivergence": (),
    "LogCoshError": (),
    "MeanAbsoluteError": (),
    "MeanAbsolutePercentageError": (),
    "MeanSquaredError": (),
    "MeanSquaredLogarithmicError": (),
    "Poisson": (),
    "Precision": ("thresholds", "top_k", "class_id"),
    "PrecisionAtRecall": ("recall", "num_thresholds", "class_id"),
    "R2Score": ("class_aggregation",),
    "Recall": ("thresholds", "top_k", "class_id"),
    "RecallAtPrecision": ("precision", "num_thresholds", "class_id"),
    "RootMeanSquaredError": (),
    "SensitivityAtSpecificity": ("specificity", "num_thresholds", "class_id"),
    "SparseCategoricalAccuracy": (),
    "SparseCategoricalCrossentropy": ("from_logits",),
    "SparseTopKCategoricalAccuracy": ("k",),
    "SpecificityAtSensitivity": ("sensitivity", "num_thresholds", "class_id"),
    "SquaredHinge": (),
    "TopKCategoricalAccuracy": ("k",),
    "TrueNegatives": ("thresholds",),
    "TruePositives": ("thresholds",),
}


def is_call(text: Any) -> bool:
    """True for the text of a class with arguments."""
    return isinstance(text, str) and "(" in text


def canonical(what: str, text: str, classes: Mapping[str, tuple[str, ...]]) -> str:
    """Write the call of a class in one way for each meaning. `what`: 'loss' or 'metric'. Raises ParameterError."""
    match = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", text, re.DOTALL)
    if match is None:
        raise ParameterError(f"{what} {abbreviated(text)} is not a name, nor a name with arguments in brackets")
    name = {known.lower(): known for known in classes}.get(match[1].lower())
    if name is None:
        raise ParameterError(
            f"{what} {abbreviated(match[1])} is not a name of one of Keras' classes, and only these take arguments"
        )
    arguments: dict[str, Any] = {}
    accepted = (*classes[name], "name") if what == "metric" else classes[name]
    for key, value in (split(match[2]) if match[2].strip() else {}).items():
        if key not in accepted:
            raise ParameterError(
                f"{abbreviated(key)} is not accepted as an argument of {what} {name} ({', '.join(accepted) or 'none is'})"
            )
        literal = evaluate_literal(f"argument {key} of {what} {name}", value)
        if not _is_value(literal):
            raise ParameterError(
                f"argument {key} of {what} {name} must be a number, a list of numbers, True, False, None or a word, "
                f"not {abbreviated(value)}"
            )
        arguments[key] = literal
    given = ", ".join(f"{key}={write_literal(value)}" for key, value in sorted(arguments.items()))
    return f"{name}({given})" if given else name


def _is_value(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"\w{1,63}", value) is not None
    if isinstance(value, (list, tuple)):
        return all(map(is_number, value))
    return value is None or isinstance(value, bool) or is_number(value)


@functools.lru_cache(1000)
def read(text: str) -> tuple[str, dict[str, Any]]:
    """(name, arguments) of a canonical text: 'Huber(delta=2.0)', or a name alone. The result must not be changed."""
    name, bracket, rest = text.partition("(")
    if not bracket:
        return text, {}
    return name, {key: evaluate_literal(key, value) for key, value in split(rest[:-1]).items()}


def reported(metric: str) -> str:
    """The name of a metric in reports: its argument `name`, or its text."""
    return str(read(metric)[1].get("name", metric))
