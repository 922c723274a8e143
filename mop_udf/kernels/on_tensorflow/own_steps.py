"""Training steps of custom models on TensorFlow: whether a traced step changes more than a state of a unit has.

A user wrote the step in Python. Its attributes do not show which variables it uses, so this module searches its trace.
"""

import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from mop_udf.kernels.on_tensorflow.loop import trained

# operations that draw from a hidden state of TensorFlow (those that begin with Stateless do not; Keras uses these alone)
DRAWS = re.compile(
    r"RandomStandardNormal|RandomUniform(Int)?|TruncatedNormal|ParameterizedTruncatedNormal|RandomGamma|RandomPoisson(V2)?"
    r"|RandomShuffle|Multinomial|StochasticCastToInt|FixedUnigramCandidateSampler|(Log)?UniformCandidateSampler"
)


def problem(function: Any, model: Any, name: str) -> Any:
    """Why a traced step is refused, or None: it uses a variable that no state has, or draws random numbers from one.

    `function`: the ConcreteFunction; `model`: the compiled Keras model; `name`: of its class.
    """
    known = {id(_handle(variable)) for variable in (*trained(model), *_of_metrics(model))}
    others = [tensor for tensor in function.captured_inputs if tensor.dtype == tf.resource and id(tensor) not in known]
    common = global_state.get_global_attribute("global_seed_generator")  # Keras', for draws without seed=
    if common is not None and any(tensor is _handle(common.state) for tensor in others):
        return _draws(name, "a function of Keras without seed=")
    if others:
        names = {id(variable.handle): variable.name for variable in function.graph.variables}
        found = next((names[id(tensor)] for tensor in others if id(tensor) in names), None)
        what = f"the variable {found[:100]!r}" if found else "a resource of TensorFlow"
        return (
            f"train_step of model class {name} uses {what}, which is no part of a state: make it by add_weight of the model or "
            f"of a layer, and use the optimizer of the compile parameters alone"
        )
    for kind in _kinds(function):
        if DRAWS.fullmatch(kind):
            return _draws(name, f"TensorFlow's operation {kind}")
    return None


def _draws(name: str, what: str) -> Any:
    return (
        f"train_step of model class {name} draws random numbers by {what}: a resumed run would draw others; use "
        f"keras.random with seed=self.draws, and set self.draws = keras.random.SeedGenerator() in the constructor of the model "
        f"or layer"
    )


def _of_metrics(model: Any) -> Iterator[Any]:
    """The variables of all metrics of the model and of its layers, with those that `model.metrics` leaves out."""
    metrics = [metric for layer in model._flatten_layers() for metric in layer._metrics]
    for metric in (*metrics, model._loss_tracker, model._compile_metrics):
        yield from metric.variables if metric is not None else ()


def _kinds(function: Any) -> Any:
    """The types of the operations of a function and of the functions that it calls."""
    graph = function.graph.as_graph_def()
    called = (node for inner in graph.library.function for node in inner.node_def)
    return sorted({node.op for node in (*graph.node, *called)})


def _handle(variable: Any) -> Any:
    """The tensor that functions capture for a variable of Keras or TensorFlow."""
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle
