"""The frozen prefix of a model: its part before all trained weights, with the same output for a row at every visit.

Models for transfer learning have one: layers with `trainable: false` at the input side. Their outputs are computed once
for a segment, and the rest of the model, the *head*, trains on these outputs (common sub-expression elimination;
Retiarii, OSDI 2020). A model is cut at the last tensor of its outermost graph that meets these conditions:

- everything before the tensor is fixed: it gives the same output for a row each time, in training or not, and
  independent of the batch's other rows (`_is_fixed`);
- the model's outputs are computed from the tensor alone;
- a matrix of weights lies before the tensor: cheaper computations are as fast as reading their result;
- something trains after the tensor.
"""

import hashlib
import json
import math
from typing import Any

import keras
import numpy as np
from keras.src.models.functional import operation_fn

from mop_udf import state

# Layers whose output for a row depends on that row and their weights only, without random numbers. (Recurrent layers
# and attention have random states for their dropout; Masking and masked Embeddings also give a mask.)
FIXED = frozenset(
    """
Activation Add Average AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization CenterCrop Concatenate
Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose Cropping1D Cropping2D Cropping3D CustomScaleLayer
Dense DepthwiseConv1D DepthwiseConv2D ELU Embedding Flatten GlobalAveragePooling1D GlobalAveragePooling2D
GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization Identity InputLayer
LayerNormalization LayerScale LeakyReLU MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum Multiply Normalization
PReLU Permute RMSNormalization ReLU RepeatVector Rescaling Reshape Resizing SeparableConv1D SeparableConv2D Softmax
Subtract UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
""".split()
)
# operations (keras.ops) that work element by element
ELEMENTWISE = frozenset(
    """
Abs Absolute Add Ceil Celu Clip Divide Elu Exp Floor Gelu HardSigmoid HardSilu HardTanh LeakyRelu Log Log1p Maximum
Minimum Multiply Negative Power Reciprocal Relu Relu6 Round Rsqrt Selu Sigmoid Silu Softplus Softsign Sqrt Square
Subtract Tanh TrueDivide
""".split()
)
# suffixes of config keys that do not matter for the computation, once the layer has its weights
SILENT = ("name", "trainable", "_initializer", "_regularizer", "_constraint")


class Split:
    """A built Keras model, cut in two parts that share its layers and variables.

    `prefix`: a model from the inputs to the cut tensor; `head`: from that tensor to the outputs, not compiled;
    `row_bytes`: size of the prefix's output for a row.
    """

    def __init__(self, model: Any, cut: Any, fixed: Any, after: Any) -> None:
        """`cut`: a tensor of the model's graph; `fixed`: the nodes before it; `after`: the nodes after it, in order."""
        inputs = _graph(model).inputs
        self.prefix = keras.Model(inputs[0] if len(inputs) == 1 else inputs, cut)
        self.head = Head(model, cut, after)
        self.row_bytes = state.dtype(cut.dtype).itemsize * math.prod(cut.shape[1:])
        described, layers = _described(inputs, fixed, [cut])
        self._text = json.dumps(described, sort_keys=True, default=_plain).encode()
        numbers = {id(variable): number for number, variable in enumerate(model.weights)}
        self._variables = [variable for layer in layers for variable in layer.weights]
        self._numbers = [numbers[id(variable)] for variable in self._variables]

    @property
    def layers(self) -> Any:
        """The number of layers in the prefix, including the layers of nested models."""
        return sum(
            not isinstance(layer, (keras.Model, keras.layers.InputLayer)) for layer in self.prefix._flatten_layers()
        )

    def digest(self, weights: Any = None) -> Any:
        """A digest (bytes) of the prefix's computation, equal for equal layers with equal weights in any model.

        `weights`: arrays in the order of the model's weights, or None for its present weights.
        """
        found = hashlib.blake2b(self._text, digest_size=32)
        for number, variable in zip(self._numbers, self._variables):
            own = np.asarray(variable)
            array = own if weights is None else np.ascontiguousarray(weights[number], own.dtype)
            found.update(array.reshape(-1).view(np.uint8).data)
        return found.digest()


class Head(keras.Model):
    """The part after the cut as a model of its own, with all variables of the whole model in their order.

    So its optimizer, its losses (including regularization) and its random state are those of the whole model.
    """

    def __init__(self, whole: Any, cut: Any, nodes: Any) -> None:
        super().__init__(autocast=False)  # the layers cast the tensor as they do in the whole model
        self.whole, self._path = whole, _Path(cut, nodes, _graph(whole))
        self.outputs = whole.outputs
        if hasattr(whole, "output_names"):
            self.output_names = whole.output_names
        self.built = True

    def call(self, features: Any, training: Any = None) -> Any:
        return self._path.run(features, training)

    @property
    def own_layers(self) -> Any:
        """The layers after the cut, including the layers of nested models."""
        return [one for layer in self._path.layers for one in layer._flatten_layers()]


class _Path:
    """Nodes of a graph, in order, from one tensor to the outputs. (Keras would register a list of layers as sublayers.)"""

    def __init__(self, cut: Any, nodes: Any, graph: Any) -> None:
        self.cut, self.nodes, self.graph = cut, nodes, graph
        self.layers = [n.operation for n in nodes if isinstance(n.operation, keras.layers.Layer)]

    def run(self, features: Any, training: Any) -> Any:
        """The outputs, computed as Keras' Functional.call does."""
        known = {id(self.cut): features}
        for node in self.nodes:
            args, kwargs = node.arguments.fill_in(known)
            outputs = operation_fn(node.operation, training=training)(*args, **kwargs)
            known.update(zip(map(id, node.outputs), keras.tree.flatten(outputs)))
        outputs = [known[id(output)] for output in self.graph.outputs]
        return outputs[0] if len(outputs) == 1 else keras.tree.pack_sequence_as(self.graph._outputs_struct, outputs)


def split(model: Any) -> Any:
    """The Split of a built Keras model at the last possible tensor; None where no tensor is possible."""
    graph = _graph(model)
    if graph is None or not model.trainable_variables:
        return None
    nodes = _nodes(graph)
    fixed, known = [], {id(tensor) for tensor in graph.inputs}
    worth: set[int] = set()
    for node in nodes:
        if all(id(tensor) in known for tensor in node.input_tensors) and _is_fixed(node):
            fixed.append(node)
            known.update(map(id, node.outputs))
            if _has_matrix(node.operation) or any(id(tensor) in worth for tensor in node.input_tensors):
                worth.update(map(id, node.outputs))
    for node in reversed(fixed):
        if len(node.outputs) != 1 or id(node.outputs[0]) not in worth or not _is_array(node.outputs[0]):
            continue
        cut = node.outputs[0]
        after = _computed_of([cut], nodes)
        made = {id(tensor) for node in after for tensor in node.outputs}
        if all(id(output) in made for output in graph.outputs):
            needed = {id(tensor) for tensor in _needed_for(cut, fixed)}
            return Split(model, cut, [n for n in fixed if id(n.outputs[0]) in needed], after)
    return None


def _graph(model: Any) -> Any:
    """The Functional model of a model; None for a model that is not a graph of layers."""
    graph = model._functional if isinstance(model, keras.Sequential) else model
    return graph if hasattr(graph, "_nodes_by_depth") else None


def _nodes(graph: Any) -> Any:
    """The computing nodes of a Functional model, each after the nodes that it depends on."""
    return [
        node
        for depth in sorted(graph._nodes_by_depth, reverse=True)
        for node in graph._nodes_by_depth[depth]
        if node.operation and not node.is_input
    ]


def _computed_of(tensors: Any, nodes: Any) -> Any:
    """The nodes that can be computed from `tensors` alone."""
    known, found = {id(tensor) for tensor in tensors}, []
    for node in nodes:
        if (
            node.input_tensors
            and all(id(tensor) in known for tensor in node.input_tensors)
            and not any(id(tensor) in known for tensor in node.outputs)
        ):
            found.append(node)
            known.update(map(id, node.outputs))
    return found


def _needed_for(tensor: Any, nodes: Any) -> Any:
    """`tensor` and all tensors that `nodes` (in order) compute it from."""
    needed = {id(tensor): tensor}
    for node in reversed(nodes):
        if any(id(output) in needed for output in node.outputs):
            needed.update((id(one), one) for one in node.input_tensors)
    return list(needed.values())


def _is_array(tensor: Any) -> Any:
    """True for a float tensor with a known size, apart from the number of rows."""
    return (
        len(tensor.shape) > 1
        and tensor.shape[0] is None
        and None not in tensor.shape[1:]
        and (keras.backend.is_float_dtype(tensor.dtype))
    )


def _is_fixed(node: Any) -> Any:
    """True where a node gives the same output for a row each time, in any batch, and adds nothing to the loss."""
    operation = node.operation
    if not isinstance(operation, keras.layers.Layer):
        return _is_elementwise(node)
    if operation.trainable_variables or operation.activity_regularizer is not None:
        return False
    if isinstance(operation, keras.Model):
        inner = _graph(operation)
        return inner is not None and all(map(_is_fixed, _nodes(inner)))
    return (
        type(operation).__name__ in FIXED
        and not getattr(operation, "mask_zero", False)
        and not getattr(operation, "quantization_mode", None)
        and not _is_along_rows(operation, node)
        and not _is_trained_in_place(operation)
    )


def _is_trained_in_place(layer: Any) -> Any:
    """True for a normalization that updates its statistics in training; it does so even without trainable weights."""
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def _is_along_rows(layer: Any, node: Any) -> bool:
    """True where a layer works along the axis of the rows."""
    axes = getattr(layer, "axis", None)
    axes = list(axes) if isinstance(axes, (list, tuple)) else [axes]
    return any(
        isinstance(axis, int) and axis in (0, -len(tensor.shape)) for axis in axes for tensor in node.input_tensors
    )


def _is_elementwise(node: Any) -> bool:
    """True for an operation element by element on tensors with rows and constants without."""
    operation, tensors = node.operation, node.input_tensors
    ranks = {len(tensor.shape) for tensor in tensors}
    others = [
        value
        for value in keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
        if not isinstance(value, keras.KerasTensor)
    ]
    return (
        type(operation).__name__ in ELEMENTWISE
        and len(ranks) == 1
        and all(tensor.shape[0] is None for tensor in (*tensors, *node.outputs))
        and all(np.ndim(value) < min(ranks) for value in others)
    )


def _has_matrix(operation: Any) -> bool:
    """True where an operation, a layer or a nested layer, multiplies by a matrix of weights."""
    if not isinstance(operation, keras.layers.Layer):
        return False
    return any(
        len(variable.shape) > 1
        for layer in operation._flatten_layers()
        if not isinstance(layer, (keras.Model, keras.layers.Embedding, keras.layers.Normalization))
        for variable in layer.weights
    )


def _described(inputs: Any, nodes: Any, outputs: Any) -> Any:
    """(description as JSON data, layers): the computation of `outputs` from `inputs` by `nodes`.

    The description leaves out the weights' values and the names; the layers are in the order of the description.
    """
    numbers = {id(tensor): number for number, tensor in enumerate(inputs)}
    layers, description = [], [[str(tensor.dtype), tensor.shape[1:]] for tensor in inputs]

    def named(value: Any) -> Any:
        return {"tensor": numbers[id(value)]} if isinstance(value, keras.KerasTensor) else value

    for node in nodes:
        operation, within = _operation(node.operation)
        layers += within
        description.append([operation, *node.arguments.convert(named)])
        for tensor in node.outputs:
            numbers[id(tensor)] = len(numbers)
    return [description, [numbers[id(tensor)] for tensor in outputs]], layers


def _operation(operation: Any) -> Any:
    """(description, layers) of an operation, a layer or a nested model."""
    kind = type(operation).__name__
    if isinstance(operation, keras.Model):
        inner = _graph(operation)
        description, layers = _described(inner.inputs, _nodes(inner), inner.outputs)
        return [kind, description], layers
    if not isinstance(operation, keras.layers.Layer):
        return [
            kind,
            {key: value for key, value in vars(operation).items() if key != "name" and not key.startswith("_")},
        ], []
    return [
        kind,
        [[str(v.dtype), list(v.shape)] for v in operation.weights],
        {key: value for key, value in operation.get_config().items() if not key.endswith(SILENT)},
    ], [operation]


def _plain(value: Any) -> Any:
    """JSON data for a value that JSON does not support."""
    return [str(value.dtype), np.asarray(value).tolist()] if hasattr(value, "dtype") else repr(value)
