"""Architecture JSON and compile parameters to a compiled Keras model, and its state. Runs in the trainer."""

import functools
import json

import keras
import numpy as np

from mop_udf import architecture as architectures
from mop_udf import architecture_dropout, architecture_shapes, parameter_resolver, params, sizes, state
from mop_udf.errors import first_line
from mop_udf.kernels.framework import framework


class ConfigurationError(Exception):
    """The configuration cannot be trained: the architecture, a parameter, or what comes of them is at fault."""


def initial_seed(seed, model_id, mst_key=None):
    """The Keras seed of the initial weights, from the run's seed (32 bits).

    It depends on (seed, model_id) only, so that configurations of one architecture start equal; with `mst_key`, each
    starts for itself.
    """
    parts = [seed, model_id] if mst_key is None else [seed, model_id, mst_key]
    return int(np.random.SeedSequence([n & 0xFFFFFFFF for n in parts]).generate_state(1)[0])


def build(architecture, seed):
    """A new Keras model from a normalised architecture (dict), its weights and random state drawn from `seed`. It
    takes and gives lists where the architecture has dictionaries.

    Raises ConfigurationError, before anything is allocated where it is for the size.
    """
    check_size(architecture)
    keras.utils.set_random_seed(seed)
    try:
        model = keras.models.model_from_json(json.dumps(architecture_shapes.by_position(architecture)))
    except Exception as error:
        raise ConfigurationError(f"Keras refuses the architecture: {first_line(error)}") from error
    if not model.built:
        raise ConfigurationError("the architecture does not say its input shape")
    framework.draw_from_state(model)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization) and layer.input_mean is None:
            _normalise_by_variables(layer)
    return model


def _normalise_by_variables(layer):
    """Let an adapted Normalization compute with the values that its variables have now.

    Keras derives the mean and variance from the variables once, when a file is loaded, and holds them as constants.
    Here variables change under compiled functions, so every call derives them.
    """
    call = layer.call

    def current(inputs):
        constants = layer.mean, layer.variance
        layer.finalize_state()
        try:
            return call(inputs)
        finally:  # a tensor of a graph must not outlive it
            layer.mean, layer.variance = constants

    layer.call = current


def output_shapes(model):
    """Shapes of a model's outputs without the batch dimension, as lists; None for what is not known."""
    return [list(output.shape[1:]) for output in model.outputs]


def check_outputs(model, wanted):
    """Raises ConfigurationError where a model does not output what the rows have (architecture_shapes.output_misfit)."""
    shapes, count = output_shapes(model), len(wanted["widths"])
    if len(shapes) != count:
        raise ConfigurationError(f"the architecture has {len(shapes)} outputs, not {count}")
    for shape in shapes:
        if not architecture_shapes.is_vector(shape):
            raise ConfigurationError(f"{architecture_shapes.NO_VECTOR} {shape}")
    if problem := architecture_shapes.output_misfit([shape[0] for shape in shapes], wanted):
        raise ConfigurationError(problem)


def check_size(architecture, make_optimizer=None):
    """Raises ConfigurationError where the model would be too large, or nobody knows how large; `make_optimizer` gives a
    new optimizer of it."""
    try:
        sizes.check(architecture, make_optimizer)
    except sizes.TooLarge as error:
        raise ConfigurationError(str(error)) from error
    except sizes.Unsized as error:
        raise ConfigurationError(f"Keras refuses the architecture: {first_line(error.__cause__)}") from error


def normalise(text, dropout=None):
    """Architecture JSON text -> the checked dict that Keras may see; raises ConfigurationError.

    `dropout`: see architecture_dropout.with_dropout.
    """
    try:
        made = architectures.check(text)
        return made if dropout is None else architecture_dropout.with_dropout(made, dropout)
    except architectures.ArchitectureError as error:
        raise ConfigurationError(str(error)) from error


def set_zero_rates(model, dropout):
    """Give the dropout layers of a new model the rates 0 of `dropout`, for which the architecture has NO_RATE.

    So the model has the same random state whatever the rates, and one state serves them all.
    """
    for layer in model._flatten_layers() if dropout is not None else ():
        rate = dropout.get(layer.name) if isinstance(dropout, dict) else dropout
        if type(layer).__name__ in architecture_dropout.DROPOUTS and rate == 0:
            layer.rate = 0.0


def initial_state(model):
    """The weights and random states of a new model, as `_assign` takes them."""
    return {"weights": state.values(model.weights), "seeds": state.values(seed_variables(model))}


def seed_variables(model):
    """The variables of `model` that hold the state of random generators, in order."""
    weights = {id(w) for w in model.weights}
    return [v for v in model.variables if id(v) not in weights]


def parse(compile_text, fit_text, iteration=1):
    """Parameter strings -> parsed dicts of one iteration, literals for sequences; raises ConfigurationError."""
    try:
        return _parsed(*parameter_resolver.resolve(compile_text, fit_text, iteration))
    except params.ParameterError as error:
        raise ConfigurationError(str(error)) from error


@functools.lru_cache(1000)
def _parsed(compile_text, fit_text):
    return params.parse_compile_params(compile_text), params.parse_fit_params(fit_text)
