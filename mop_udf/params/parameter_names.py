"""Keras' names of optimizers, losses and metrics in parameter strings, and other spellings of them.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from mop_udf.errors import abbreviated
from mop_udf.params import keras_calls
from mop_udf.params.parameter_text import ParameterError

# Keras refuses unknown arguments of an optimizer: that configuration fails, and the others continue.
OPTIMIZERS = (
    "SGD",
    "RMSprop",
    "Adam",
    "AdamW",
    "Adadelta",
    "Adagrad",
    "Adamax",
    "Adafactor",
    "Nadam",
    "Ftrl",
    "Lion",
    "Lamb",
    "Muon",
)
LOSSES = frozenset(
    """
binary_crossentropy binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy
categorical_hinge cosine_similarity ctc dice hinge huber kl_divergence
log_cosh mean_absolute_error mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson
squared_hinge tversky mae mape mse msle kld bce
BinaryCrossentropy BinaryFocalCrossentropy CategoricalCrossentropy CategoricalFocalCrossentropy CategoricalHinge
CosineSimilarity Hinge Huber KLDivergence LogCosh MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError
MeanSquaredLogarithmicError Poisson SquaredHinge CTC Dice Tversky
""".split()
)


# names of Keras 2 without a counterpart of the same name in Keras 3
OLD_LOSSES = {"logcosh": "log_cosh", "kullback_leibler_divergence": "kl_divergence"}


# losses and metrics that Keras has for class numbers; the trainer gives them the number of a one-hot label's class
SPARSE_LOSSES = frozenset(("sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"))
SPARSE_METRICS = frozenset(
    """
sparse_categorical_accuracy sparse_categorical_crossentropy sparse_top_k_categorical_accuracy SparseCategoricalAccuracy
SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy
""".split()
)


def needs_all_classes(loss: str) -> bool:
    """Whether a loss needs an output unit for each class."""
    name = loss.partition("(")[0].lower().replace("_", "")
    return "categorical" in name or name in ("kldivergence", "kld", "ctc")


OF_ALL_ROWS = ("dice", "tversky")  # losses that are not means over rows
# Circle compares the classes of a batch's rows
REFUSED_LOSSES = ("circle", "serialize", "deserialize", "get")
METRICS = frozenset(
    """
accuracy acc crossentropy ce binary_accuracy binary_crossentropy categorical_accuracy categorical_crossentropy
categorical_hinge cosine_similarity hinge kl_divergence mae mape mse msle mean_absolute_error
mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson squared_hinge
top_k_categorical_accuracy auc f1_score f_beta_score false_negatives false_positives log_cosh_error precision r2_score
recall root_mean_squared_error true_negatives true_positives bce concordance_correlation pearson_correlation
AUC Accuracy BinaryAccuracy BinaryCrossentropy CategoricalAccuracy CategoricalCrossentropy CategoricalHinge
CosineSimilarity F1Score FBetaScore FalseNegatives FalsePositives Hinge KLDivergence LogCoshError MeanAbsoluteError
MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson Precision R2Score Recall
RootMeanSquaredError SquaredHinge TopKCategoricalAccuracy TrueNegatives TruePositives ConcordanceCorrelation
PearsonCorrelation
""".split()
)
OLD_METRICS = {
    "logcosh": "LogCoshError",
    "log_cosh": "LogCoshError",
    "kld": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
}


def is_builtin_loss(name: str) -> bool:
    """True where Keras has the loss `name`, in any case, or with arguments."""
    return (
        keras_calls.is_call(name)
        or name.lower() in OLD_LOSSES
        or canonical_name(name, LOSSES | SPARSE_LOSSES) is not None
    )


def is_builtin_metric(name: str) -> bool:
    """True where Keras has the metric `name`, in any case, or with arguments."""
    return (
        keras_calls.is_call(name)
        or name.lower() in OLD_METRICS
        or canonical_name(name, METRICS | SPARSE_METRICS) is not None
    )


def loss_name(name: Any) -> str:
    """Keras' spelling of a loss, with its arguments, or `name` itself for a custom loss. Raises ParameterError."""
    if keras_calls.is_call(name):
        return keras_calls.canonical("loss", name, keras_calls.LOSSES)
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name):
        raise ParameterError(f"loss {abbreviated(name)} is not a name")
    if name.lower() in REFUSED_LOSSES:
        raise ParameterError(f"loss {name!r} is not supported")
    return OLD_LOSSES.get(name.lower()) or canonical_name(name, LOSSES | SPARSE_LOSSES) or name


def takes_class_numbers(loss: str) -> bool:
    """True for a loss, as text, whose labels are numbers of classes, not one-hot vectors."""
    return loss.partition("(")[0] in SPARSE_LOSSES


def canonical_name(name: Any, known: Collection[str]) -> str | None:
    if name in known:
        return name
    by_lower = {k.lower(): k for k in sorted(known, reverse=True)}
    return by_lower.get(name.lower()) if isinstance(name, str) else None


def metric_name(name: Any) -> str:
    """Keras' spelling of a metric, with its arguments, or `name` itself for a custom metric. Raises ParameterError."""
    if keras_calls.is_call(name):
        return keras_calls.canonical("metric", name, keras_calls.METRICS)
    if not isinstance(name, str):
        raise ParameterError(f"metric {abbreviated(name)} is not a name")
    return OLD_METRICS.get(name.lower()) or canonical_name(name, METRICS | SPARSE_METRICS) or name
