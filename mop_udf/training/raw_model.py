"""Models that take the columns of an ordinary table: Keras layers encode the raw values in front of the net.

The layers compute what `encode` of the features computes (plpy_modules/pg_mop/columns/features). Runs in the trainer.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from mop_udf.training.models import ConfigurationError

DAY = 86_400.0
YEAR = 365.2425 * DAY
MOST_LOG = 100.0  # as pg_mop/columns/target_number.py has it


def build(
    net: keras.Model, inputs: list[list[dict[str, Any]]], output: dict[str, Any] | None, classes: bool
) -> keras.Model:
    """The model whose inputs are a dictionary of raw columns, each of shape [rows] or of an array.

    `inputs`: for each input of `net`, descriptions of the raw values that it is made of (`Column.raw_inputs`); `output`: a
    layer between the net's output and the target's terms, the `limits` of numbers (`log`: the layer's are logarithms), and
    the `decision` of classes; `classes`: the layer takes class numbers. The outputs are {"prediction"} and, for classes,
    {"probabilities": [rows, classes]}. Raises ConfigurationError.
    """
    if keras.backend.backend() != "tensorflow":
        raise ConfigurationError("a model that takes texts can be written by Keras on TensorFlow alone")
    raw: dict[str, Any] = {}
    parts = [_part(own, raw) for own in inputs]
    outputs = net(parts[0] if len(parts) == 1 else parts)
    if isinstance(outputs, (list, tuple)):
        (outputs,) = outputs
    if classes:
        if outputs.shape[-1] == 1:  # (of the second of two classes)
            outputs = layers.Concatenate(axis=-1)([1.0 - outputs, outputs])
        outputs, deciding = _decided(outputs, (output or {}).get("decision"))
        numbers = ops.argmax(deciding, axis=-1)
        made = {"prediction": _layer(output)(numbers) if output else numbers, "probabilities": outputs}
    else:
        numbers = _layer(output)(outputs) if output else outputs
        if output and output.get("log"):
            numbers = ops.expm1(ops.minimum(numbers, MOST_LOG))
        if output and output.get("limits"):
            numbers = ops.clip(numbers, *output["limits"])
        made = {"prediction": ops.reshape(numbers, (-1,))}
    return keras.Model(raw, made, name="raw_model")


def _decided(outputs: Any, decision: dict[str, Any] | None) -> tuple[Any, Any]:
    """(probabilities, the products of which the greatest decides): as pg_mop/columns/decision.py has them."""
    if decision is None:
        return outputs, outputs
    if decision["power"] != 1 or decision["factors"] is not None:
        powers = ops.power(outputs / ops.max(outputs, axis=-1, keepdims=True), decision["power"])
        if decision["factors"] is not None:
            powers = powers * np.array(decision["factors"], "f4")
        outputs = powers / ops.sum(powers, axis=-1, keepdims=True)
    weights = decision["weights"]
    return outputs, outputs if weights is None else outputs * np.array(weights, "f4")


def _part(descriptions: list[dict[str, Any]], raw: dict[str, Any]) -> Any:
    """One input of the net. `raw`: the raw columns, to which those of this input are added."""
    made = [_encoded(one, raw) for one in descriptions]
    return made[0] if len(made) == 1 else layers.Concatenate(axis=-1)(made)


def _encoded(one: dict[str, Any], raw: dict[str, Any]) -> Any:
    kind, name = one["kind"], one["name"]
    if kind == "array":
        value = _input(raw, name, tuple(one["shape"]), "float32")
        return _layer(one["layer"])(value) if one["layer"] else ops.cast(value, "float32")
    if kind == "series":
        return _series(_input(raw, name, tuple(one["shape"]), "float64"), one)
    if kind == "words":
        texts = _input(raw, name, (), "string")
        layer = layers.TextVectorization(vocabulary=_texts(one["vocabulary"]), output_sequence_length=one["length"])
        empty = np.eye(1, one["length"], dtype="f4")  # one unknown word
        return ops.maximum(ops.cast(layer(texts), "float32"), empty)
    if kind == "category":
        vocabulary = _texts(one["values"]) + ([one["null"]] if one["null"] is not None else [])
        numbers = layers.StringLookup(vocabulary=vocabulary)(_input(raw, name, (), "string"))
        if one["one_hot"]:
            return ops.one_hot(ops.cast(numbers, "int32"), len(vocabulary) + 1)
        return ops.reshape(ops.cast(numbers + one["offset"], "float32"), (-1, 1))
    value = ops.reshape(_input(raw, name, (), "float64"), (-1, 1))
    unknown = ops.logical_not(ops.isfinite(value)) if kind == "moment" else ops.isnan(value)  # (infinity is no moment)
    filled = ops.where(unknown, ops.full_like(value, one["fill"]), value)
    elements = _moment(filled, one) if kind == "moment" else [_number(filled, one)]
    if one["indicator"]:
        elements.append(ops.cast(unknown, "float32"))
    return elements[0] if len(elements) == 1 else layers.Concatenate(axis=-1)(elements)


def _number(value: Any, one: dict[str, Any]) -> Any:
    if one["log"]:
        value = ops.sign(value) * ops.log1p(ops.abs(value))
    return ops.cast(ops.clip((value - one["center"]) * one["factor"], -one["limit"], one["limit"]), "float32")


def _series(value: Any, one: dict[str, Any]) -> Any:
    """Scaled steps; the steps after the last one that has a number are padding."""
    means, deviations = (np.array(one[name], "f8") for name in ("means", "deviations"))  # (Keras makes lists float32)
    scaled = (value - means) / deviations
    known = ops.logical_not(ops.isnan(value))
    scaled = ops.where(known, ops.clip(scaled, -one["limit"], one["limit"]), ops.zeros_like(value))
    steps = ops.cast(ops.any(known, axis=-1, keepdims=True), "float32")
    followed = ops.flip(ops.cumsum(ops.flip(steps, axis=1), axis=1), axis=1)
    return ops.cast(ops.where(followed > 0.0, scaled, ops.full_like(value, one["padding"])), "float32")


def _moment(seconds: Any, one: dict[str, Any]) -> list[Any]:
    made = []
    for part in one["parts"]:
        if part == "age":
            scaled = (seconds - one["mean"]) / one["deviation"]
            made.append(ops.cast(ops.clip(scaled, -one["limit"], one["limit"]), "float32"))
        elif part == "weekday":
            weekday = ops.mod(ops.floor(seconds / DAY) + 3.0, 7.0)
            made.append(ops.one_hot(ops.cast(ops.reshape(weekday, (-1,)), "int32"), 7))
        else:
            angle = ops.mod(seconds / (YEAR if part == "year" else DAY), 1.0) * 6.283185307179586
            made += [ops.cast(ops.sin(angle), "float32"), ops.cast(ops.cos(angle), "float32")]
    return made


def _input(raw: dict[str, Any], name: str, shape: tuple[int, ...], dtype: str) -> Any:
    """The input for a raw column, which several descriptions may share."""
    if name not in raw:
        # (Keras accepts no "/" in a name, and warns where the input's name is not its key)
        raw[name] = keras.Input(shape=shape, dtype=dtype, name=None if "/" in name else name)
    return raw[name]


def _texts(values: Any) -> list[str]:
    """A vocabulary, checked: Keras would read a file if a text came in place of the list."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigurationError("a vocabulary of the model is no list of texts")
    return values


def _layer(described: dict[str, Any]) -> Any:
    return getattr(layers, described["class_name"])(**described["config"])
