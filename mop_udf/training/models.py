"""Keras models from architecture JSON: built, checked and described. Runs in the trainer."""

import functools
import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from mop_udf import state
from mop_udf.architecture import architecture as architectures
from mop_udf.architecture import architecture_dropout, architecture_shapes
from mop_udf.errors import first_line
from mop_udf.kernels.framework import framework
from mop_udf.params import parameter_resolver, params
from mop_udf.params.parameter_names import takes_class_numbers
from mop_udf.training import custom_layers, sizes
from mop_udf.training import super_net as _super_net  # noqa: F401 (so that Keras knows its layers)
from mop_udf.unit_spec import UnitHeader

NO_CODE = custom_layers.Custom()


class ConfigurationError(Exception):
    """The configuration cannot be trained, because of its architecture, a parameter or their result."""


def initial_seed(seed: int, model_id: int, mst_key: int | None = None) -> int:
    """The Keras seed of the initial weights, from the run's seed (32 bits).

    It depends on (seed, model_id) only, so configurations of one architecture start equal. With `mst_key`, each
    configuration has its own initial weights.
    """
    parts = [seed, model_id] if mst_key is None else [seed, model_id, mst_key]
    return int(np.random.SeedSequence([n & 0xFFFFFFFF for n in parts]).generate_state(1)[0])


def build(architecture: dict[str, Any], seed: int) -> keras.Model:
    """A new Keras model from a normalised architecture (dict), with weights and random state drawn from `seed`.

    The model takes and gives lists where the architecture has dictionaries. Raises ConfigurationError; for a model that
    is too large, before any memory is allocated.
    """
    check_size(architecture)
    framework.seed(seed)
    try:
        with custom_layers.scope():
            model = keras.models.model_from_json(json.dumps(architecture_shapes.by_position(architecture)))
    except Exception as error:
        raise ConfigurationError(f"Keras refuses the architecture: {first_line(error)}") from error
    if not model.built:
        raise ConfigurationError("the architecture does not state its input shape")
    framework.draw_from_state(model)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization) and layer.input_mean is None:
            _normalise_by_variables(layer)
    return model


def _normalise_by_variables(layer: Any) -> None:
    """Let an adapted Normalization compute with the present values of its variables.

    Keras derives mean and variance from the variables once, when it loads a file, and keeps them as constants. Here the
    variables change under compiled functions, so every call derives them.
    """
    call = layer.call

    def current(inputs: Any) -> Any:
        constants = layer.mean, layer.variance
        layer.finalize_state()
        try:
            return call(inputs)
        finally:  # a tensor must not outlive its graph
            layer.mean, layer.variance = constants

    layer.call = current


def output_shapes(model: keras.Model) -> list[list[int | None]]:
    """Shapes of a model's outputs without the batch dimension, as lists; None for unknown sizes."""
    return [list(output.shape[1:]) for output in model.outputs]


def check_outputs(model: keras.Model, wanted: dict[str, Any], losses: Sequence[str]) -> None:
    """Raise ConfigurationError where a model's outputs do not fit the rows (architecture_shapes.output_misfit).

    `losses`: the text of each output's loss. One of class numbers takes a vector of them, one for each step.
    """
    shapes, count = output_shapes(model), len(wanted["widths"])
    steps = wanted.get("steps") or [[]] * count
    if len(shapes) != count:
        raise ConfigurationError(f"the architecture has {len(shapes)} outputs, not {count}")
    widths: list[int | None] = []
    for shape, before, width, loss in zip(shapes, steps, wanted["widths"], losses, strict=True):
        if not architecture_shapes.is_known(shape):
            raise ConfigurationError(f"{architecture_shapes.NO_SHAPE} {shape}")
        if shape[:-1] == [*before, width] and takes_class_numbers(loss):
            widths.append(width)  # (class numbers: any number of classes)
            continue
        if shape[:-1] != before:
            raise ConfigurationError(
                f'the architecture outputs {shape} for a row, but "{wanted["table"]}" has {[*before, width]}'
            )
        widths.append(shape[-1])
    if problem := architecture_shapes.output_misfit(widths, wanted):
        raise ConfigurationError(problem)
    for output, width, given in zip(model.outputs, widths, wanted["widths"], strict=True):
        activation = getattr(maker_of(output), "activation", None)
        if width == 1 and given == 2 and activation is not keras.activations.sigmoid:
            raise ConfigurationError(
                "the architecture has one output unit for two classes: its activation must be sigmoid, "
                "so that it is the probability of the second class"
            )


def check_weights(model: keras.Model, class_weight: Any, unit: UnitHeader) -> None:
    """Raise ConfigurationError where rows have weights, but an output has several steps, which need weights of their own."""
    if all(len(shape) == 1 for shape in output_shapes(model)):
        return
    if class_weight:
        raise ConfigurationError("class_weight needs one class in each row, but an output has several steps")
    if len(unit.dtypes) > unit.inputs + len(model.outputs):
        raise ConfigurationError("sample weights are not supported for an output of several steps")


def maker_of(output: Any) -> Any:
    """The layer that makes an output (a KerasTensor of a model), within nested models of one output; None: unknown."""
    layer = getattr(output, "_keras_history", (None,))[0]
    if isinstance(layer, keras.Model):
        return maker_of(layer.outputs[0]) if len(layer.outputs) == 1 else None
    return layer


def check_size(architecture: dict[str, Any], make_optimizer: Any = None) -> None:
    """Raise ConfigurationError where a model of the architecture would be too large, or its size is unknown.

    `make_optimizer` makes a new optimizer for it.
    """
    try:
        sizes.check(architecture, make_optimizer)
    except sizes.TooLarge as error:
        raise ConfigurationError(str(error)) from error
    except sizes.Unsized as error:
        cause = error.__cause__ or error
        raise ConfigurationError(f"Keras refuses the architecture: {first_line(cause)}") from error


def normalise(
    text: str, dropout: float | dict[str, float] | None = None, custom: custom_layers.Custom = NO_CODE
) -> dict[str, Any]:
    """Architecture JSON text -> a checked dict that Keras may load; raises ConfigurationError.

    `dropout`: see architecture_dropout.with_dropout; `custom`: see custom_layers.register.
    """
    try:
        # (the backend has refused super-nets of users)
        made = architectures.check(
            text, super_net=True, custom=custom.layers, custom_models=custom.models, no_layers=custom.no_layers
        )
        return made if dropout is None else architecture_dropout.with_dropout(made, dropout)
    except architectures.ArchitectureError as error:
        raise ConfigurationError(str(error)) from error


def set_zero_rates(model: keras.Model, dropout: float | dict[str, float] | None) -> None:
    """Set the rates of 0 in `dropout` in a new model, whose architecture has NO_RATE for them.

    So the model has the same random state for all rates, and one model state serves them all.
    """
    for layer in model._flatten_layers() if dropout is not None else ():
        rate = dropout.get(layer.name) if isinstance(dropout, dict) else dropout
        if type(layer).__name__ in architecture_dropout.DROPOUTS and rate == 0:
            layer.rate = 0.0


def initial_state(model: Any) -> Any:
    """The weights and random states of a new model, in groups of a model state."""
    return {"weights": state.values(model.weights), "seeds": state.values(seed_variables(model))}


def seed_variables(model: Any) -> Any:
    """The variables of `model` that hold the state of random generators, in order."""
    weights = {id(w) for w in model.weights}
    return [v for v in model.variables if id(v) not in weights]


def parse(compile_text: str, fit_text: str | None, iteration: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameter strings -> parsed dicts for one iteration, without sequences per iteration; raises ConfigurationError."""
    try:
        return _parsed(*parameter_resolver.resolve(compile_text, fit_text, iteration))
    except params.ParameterError as error:
        raise ConfigurationError(str(error)) from error


@functools.lru_cache(1000)
def _parsed(compile_text: str, fit_text: Any) -> Any:
    return params.parse_compile_params(compile_text), params.parse_fit_params(fit_text)
