"""What TensorFlow has traced, kept for later trainers beside what XLA has compiled (compile_cache.py).

Tracing Keras' step takes 0.1 s, reading what came of it 1 ms. It is kept as TensorFlow's own protocol buffers, with the
places of the variables that it uses in a list of them. What cannot be kept or read is traced, as ever.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import weakref

import keras
import tensorflow as tf
from google.protobuf.message import Error as ProtobufError
from tensorflow.core.framework import function_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from mop_udf import compile_cache
from mop_udf.kernels.on_tensorflow.lowering import lower

SUFFIX = "_kept"  # of the functions' names: what has been traced may still have its own
# what is missing or other than expected, in a file or in TensorFlow, whose inner parts these are
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
    """A traced function: called with nests of tensors it gives its output, or a list of them."""

    def __init__(self, definitions, captured):
        """`definitions`: FunctionDefs, of which the last is the function's own; `captured`: the tensors that it takes
        after those that it is called with."""
        self._context, self._captured = context.context(), captured
        self._name = definitions[-1].signature.name.encode()
        self._outputs = len(definitions[-1].signature.output_arg)
        added = []
        self._added = weakref.finalize(self, _forget, added)
        self._added.atexit = False
        for definition in definitions:  # (TensorFlow counts how often it has each)
            self._context.add_function_def(definition)
            added.append(definition.signature.name)

    def __call__(self, *arguments):
        outputs = self._context.call_function(self._name, [*tf.nest.flatten(arguments), *self._captured], self._outputs)
        return outputs[0] if self._outputs == 1 else outputs


@contextlib.contextmanager
def unoptimized():
    """Within it functions run as they were traced: TensorFlow does not look first for what would make them faster, for
    which it takes 0.05 s where a function is new. They round otherwise then."""
    own = context.context()
    before = own.function_call_options
    own.function_call_options = _plainly()
    try:
        yield
    finally:
        own.function_call_options = before


@functools.cache
def _plainly():
    config = config_pb2.ConfigProto.FromString(context.context().function_call_options.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return context.FunctionCallOptions(config_proto=config)


def _forget(names):
    for name in names:
        context.remove_function(name)


def function(trace, text, variables, lasting, optimizer=None):
    """The function that `trace()` makes, a ConcreteFunction, or what an earlier trainer has kept of it: to be called
    with the same arguments.

    `text`: equal for what is traced alike, which names it; None where it shall have other names than before;
    `variables`: those that it may use, in an order that is always the same; `lasting`: it is kept under its text;
    `optimizer`: the name of the one that XLA compiles in it for this processor, or None.
    """
    handles = [_handle(variable) for variable in variables]
    made_for = keras.__version__, tf.__version__, [(v.dtype, tuple(v.shape)) for v in variables]
    alike = hashlib.sha256(str(made_for).encode()).hexdigest()
    cache = compile_cache.current() if lasting and text else None
    if cache and (data := cache.read(text)):
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
            traced, cache = trace(), None  # names that it had before are still in use
    try:
        definitions, captured = _definitions(traced, optimizer), traced.captured_inputs
        places = {id(handle): place for place, handle in enumerate(handles)}
        if (
            cache
            and all(id(tensor) in places for tensor in captured)
            and not any("token" in node.attr for definition in definitions for node in definition.node_def)
        ):
            # (a token is for a Python function, which this process alone knows)
            told = {"variables": alike, "captured": [places[id(tensor)] for tensor in captured]}
            library = function_pb2.FunctionDefLibrary(function=definitions)
            cache.write(text, json.dumps(told).encode() + b"\n" + library.SerializeToString())
        return Function(definitions, list(captured))
    except TRACE_ERRORS:
        return traced


@contextlib.contextmanager
def without_gradient_registry():
    """Within it something is traced that nobody will differentiate any more: TensorFlow would keep what custom
    gradients (such as that of a softmax with its loss) are of, graphs of 1 to 3 MB, as long as the process lives."""
    before = set(ops.gradient_registry.list())
    try:
        yield
    finally:
        for name in set(ops.gradient_registry.list()) - before:
            ops.gradient_registry._registry.pop(name)


@contextlib.contextmanager
def stable_names(text):
    """Within it TensorFlow's functions get names that depend on `text` alone, not on how many there are already: XLA's
    cache takes them for a part of what is compiled, and what is read must not have the names of anything else."""
    if text is None:
        yield
        return
    before, numbers = ops.uid, itertools.count(int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) * 1000)
    ops.uid = lambda: next(numbers)
    try:
        yield
    finally:
        ops.uid = before


def _read(data, alike, handles):
    told, functions = data.split(b"\n", 1)
    told = json.loads(told)
    if told["variables"] != alike:
        raise ValueError("it uses other variables")
    return Function(
        function_pb2.FunctionDefLibrary.FromString(functions).function, [handles[place] for place in told["captured"]]
    )


def _definitions(traced, optimizer):
    """FunctionDefs of a ConcreteFunction, the last its own, under names of their own."""
    made = [
        function_pb2.FunctionDef.FromString(definition.SerializeToString())
        for definition in (*traced.graph.as_graph_def(add_shapes=True).library.function, traced.function_def)
    ]
    for node in made[-1].node_def:  # (of the others they have been added)
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


def _handle(variable):
    """What stands for a variable of Keras or TensorFlow among the tensors that a function captures."""
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle
