"""Traced functions of TensorFlow, kept for later trainers beside XLA's compiled code (compile_cache.py).

Tracing a Keras step takes 0.1 s, reading the trace 1 ms. Traces are kept as TensorFlow's protocol buffers, with the
positions of their variables in a list. Where a trace cannot be kept or read, the function is traced again.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from google.protobuf.message import Error as ProtobufError
from tensorflow.core.framework import function_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from mop_udf.kernels.on_tensorflow.lowering import lower
from mop_udf.pool import compile_cache

SUFFIX = "_kept"  # of the functions' names: the traced originals may still have theirs
# unexpected content of a file, or of TensorFlow's internals used here
TRACE_ERRORS = (
    AttributeError,
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    RuntimeError,
    tf.errors.OpError,
    ProtobufError,
)


class Function:
    """A traced function: called with nests of tensors, it gives its output or a list of outputs."""

    def __init__(self, definitions: Any, captured: Any) -> None:
        """`definitions`: FunctionDefs, the function's own last; `captured`: tensors passed after the arguments."""
        self._context, self._captured = context.context(), captured
        self._name = definitions[-1].signature.name.encode()
        self._outputs = len(definitions[-1].signature.output_arg)
        added: list[Any] = []
        self._added = weakref.finalize(self, _forget, added)
        self._added.atexit = False
        for definition in definitions:  # (TensorFlow counts references to each)
            self._context.add_function_def(definition)
            added.append(definition.signature.name)

    def __call__(self, *arguments: Any) -> Any:
        outputs = self._context.call_function(self._name, [*tf.nest.flatten(arguments), *self._captured], self._outputs)
        return outputs[0] if self._outputs == 1 else outputs


@contextlib.contextmanager
def unoptimized() -> Iterator[None]:
    """A context that runs functions as traced, without TensorFlow's graph optimizer.

    The optimizer takes 0.05 s for a new function. Without it, results round differently.
    """
    own = context.context()
    before = own.function_call_options
    own.function_call_options = _plainly()
    try:
        yield
    finally:
        own.function_call_options = before


@functools.cache
def _plainly() -> Any:
    config = config_pb2.ConfigProto.FromString(context.context().function_call_options.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return context.FunctionCallOptions(config_proto=config)


def _forget(names: Any) -> None:
    for name in names:
        context.remove_function(name)


def function(trace: Any, text: str | None, variables: Any, lasting: bool, optimizer: Any = None) -> Any:
    """The function that `trace()` makes, a ConcreteFunction, or the same function from an earlier trainer's trace.

    `text`: a name, equal for equal traces, or None for new names; `variables`: all variables that the function may use,
    always in the same order; `lasting`: keep the trace under its name; `optimizer`: the name of the optimizer whose
    operations XLA compiles for this processor, or None.
    """
    handles = [_handle(variable) for variable in variables]
    made_for = keras.__version__, tf.__version__, [(v.dtype, tuple(v.shape)) for v in variables]
    alike = hashlib.sha256(str(made_for).encode()).hexdigest()
    name = text or ""
    cache = compile_cache.current() if lasting and name else None
    if cache and (data := cache.read(name)):
        try:
            return _read(data, alike, handles)
        except TRACE_ERRORS:
            pass
    try:
        with without_gradient_registry(), stable_names(text):
            traced = trace()
    except (tf.errors.InvalidArgumentError, KeyError) as error:
        if "same name" not in str(error) and not isinstance(error, KeyError):
            raise
        with without_gradient_registry():
            traced, cache = trace(), None  # earlier functions with these names still exist
    try:
        definitions, captured = _definitions(traced, optimizer), traced.captured_inputs
        positions = {id(handle): position for position, handle in enumerate(handles)}
        if (
            cache
            and all(id(tensor) in positions for tensor in captured)
            and not any("token" in node.attr for definition in definitions for node in definition.node_def)
        ):
            # (a token refers to a Python function of this process)
            header = {"variables": alike, "captured": [positions[id(tensor)] for tensor in captured]}
            library = function_pb2.FunctionDefLibrary(function=definitions)
            cache.write(name, json.dumps(header).encode() + b"\n" + library.SerializeToString())
        return Function(definitions, list(captured))
    except TRACE_ERRORS:
        return traced


@contextlib.contextmanager
def without_gradient_registry() -> Iterator[None]:
    """A context for traces that are not differentiated later.

    TensorFlow would keep the graphs of custom gradients (such as the gradient of a softmax with its loss), 1 to 3 MB
    each, as long as the process lives.
    """
    before = set(ops.gradient_registry.list())
    try:
        yield
    finally:
        for name in set(ops.gradient_registry.list()) - before:
            ops.gradient_registry._registry.pop(name)


@contextlib.contextmanager
def stable_names(text: str | None) -> Iterator[None]:
    """A context that derives the names of TensorFlow's functions from `text` alone, not from their number.

    XLA's cache takes the names as part of the code. Functions read from the cache must not share names with others.
    """
    if text is None:
        yield
        return
    before, numbers = ops.uid, itertools.count(int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) * 1000)
    ops.uid = lambda: next(numbers)
    try:
        yield
    finally:
        ops.uid = before


def _read(data: Any, alike: Any, handles: Any) -> Any:
    header, functions = data.split(b"\n", 1)
    header = json.loads(header)
    if header["variables"] != alike:
        raise ValueError("it uses other variables")
    return Function(
        function_pb2.FunctionDefLibrary.FromString(functions).function,
        [handles[position] for position in header["captured"]],
    )


def _definitions(traced: Any, optimizer: Any) -> Any:
    """FunctionDefs of a ConcreteFunction, its own last, with names of their own."""
    made = [
        function_pb2.FunctionDef.FromString(definition.SerializeToString())
        for definition in (*traced.graph.as_graph_def(add_shapes=True).library.function, traced.function_def)
    ]
    for node in made[-1].node_def:  # (the graph has added the shapes for the other functions)
        node.attr["_output_shapes"].list.shape.extend(
            output.shape.as_proto() for output in traced.graph.get_operation_by_name(node.name).outputs
        )
    names = {definition.signature.name for definition in made}
    for definition in made:
        definition.signature.name += SUFFIX
        if optimizer is not None:
            lower(definition, optimizer)
        for node in definition.node_def:
            node.attr.pop("_output_shapes", None)
            for value in node.attr.values():
                for called in (value.func, *value.list.func):
                    if called.name in names:
                        called.name += SUFFIX
    return made


def _handle(variable: Any) -> Any:
    """The tensor that functions capture for a variable of Keras or TensorFlow."""
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle
