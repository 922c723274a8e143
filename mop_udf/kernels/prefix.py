"""The frozen prefix of a model: what it computes of a row before anything that trains, and so the same at every visit.

Transfer learning has it: layers with `trainable: false` at the input side. Their outputs are computed once for a
segment, and the rest of the model, the *head*, trains on these (common sub-expression elimination; Retiarii, OSDI
2020). A model is cut at one tensor of its outermost graph; where there are several, at the last:

- everything that the tensor is computed of gives for each row the same whenever it is computed, in training as without,
  whatever the other rows of its batch are: see `_is_fixed`;
- the outputs are computed of it alone;
- there is a matrix of weights before it: what is less is done as fast as it is read;
- something trains after it.
"""

import hashlib
import json
import math

import keras
import numpy as np
from keras.src.models.functional import operation_fn

from mop_udf import state

# Layers that give for each row what they give for it alone, with no random numbers and nothing that training changes
# but weights. (Recurrent layers and attention have random states for their dropout; Masking and masked Embeddings give
# more than their outputs.)
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
# keys of a layer's configuration that say nothing of what it computes, once it has its weights
SILENT = ("name", "trainable", "_initializer", "_regularizer", "_constraint")


class Split:
    """A built Keras model cut in two, which share its layers and variables.

    `prefix`: a model from the inputs to the tensor where it is cut; `head`: from there to the outputs, not compiled;
    `row_bytes`: of what the prefix gives for a row.
    """

    def __init__(self, model, cut, fixed, after):
        """`cut`: a tensor of the model's graph; `fixed`: the nodes before it, `after`: those after it, in order."""
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
    def layers(self):
        """How many layers the prefix has, those of models in it included."""
        return sum(
            not isinstance(layer, (keras.Model, keras.layers.InputLayer)) for layer in self.prefix._flatten_layers()
        )

    def digest(self, weights=None):
        """Names what the prefix computes: equal for equal layers with equal weights, in whatever models (bytes).

        `weights`: arrays in the order of the model's weights; those that it has if None.
        """
        found = hashlib.blake2b(self._text, digest_size=32)
        for number, variable in zip(self._numbers, self._variables):
            own = np.asarray(variable)
            array = own if weights is None else np.ascontiguousarray(weights[number], own.dtype)
            found.update(array.reshape(-1).view(np.uint8))
        return found.digest()


class Head(keras.Model):
    """What comes after the cut, as a model of its own whose variables are all those of the whole, in their order.

    So its optimizer, its losses (regularization, too) and its random state are the whole model's.
    """

    def __init__(self, whole, cut, nodes):
        super().__init__(autocast=False)  # the layers do what the whole's do with the dtype of the tensor
        self.whole, self._path = whole, _Path(cut, nodes, _graph(whole))
        self.outputs = whole.outputs
        if hasattr(whole, "output_names"):
            self.output_names = whole.output_names
        self.built = True

    def call(self, features, training=None):
        return self._path.run(features, training)

    @property
    def own_layers(self):
        """The layers after the cut, with those of models among them."""
        return [one for layer in self._path.layers for one in layer._flatten_layers()]


class _Path:
    """Nodes of a graph, in order, from one tensor to the outputs. (Keras would take a list of layers for sublayers.)"""

    def __init__(self, cut, nodes, graph):
        self.cut, self.nodes, self.graph = cut, nodes, graph
        self.layers = [n.operation for n in nodes if isinstance(n.operation, keras.layers.Layer)]

    def run(self, features, training):
        """The outputs, as Keras' Functional.call computes them."""
        known = {id(self.cut): features}
        for node in self.nodes:
            args, kwargs = node.arguments.fill_in(known)
            outputs = operation_fn(node.operation, training=training)(*args, **kwargs)
            known.update(zip(map(id, node.outputs), keras.tree.flatten(outputs)))
        outputs = [known[id(output)] for output in self.graph.outputs]
        return outputs[0] if len(outputs) == 1 else keras.tree.pack_sequence_as(self.graph._outputs_struct, outputs)


def split(model):
    """The Split of a built Keras model at the last tensor where it may be cut; None where there is none."""
    graph = _graph(model)
    if graph is None or not model.trainable_variables:
        return None
    nodes = _nodes(graph)
    fixed, known, worth = [], {id(tensor) for tensor in graph.inputs}, set()
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


def _graph(model):
    """The Functional model that a model is; None for one that is not of layers in a graph."""
    graph = model._functional if isinstance(model, keras.Sequential) else model
    return graph if hasattr(graph, "_nodes_by_depth") else None


def _nodes(graph):
    """The nodes of a Functional model that compute, each after those whose outputs it needs."""
    return [
        node
        for depth in sorted(graph._nodes_by_depth, reverse=True)
        for node in graph._nodes_by_depth[depth]
        if node.operation and not node.is_input
    ]


def _computed_of(tensors, nodes):
    """Those of `nodes` that can be computed of `tensors` alone."""
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


def _needed_for(tensor, nodes):
    """The tensors that `tensor` is computed of by `nodes` (in order), and itself."""
    needed = {id(tensor): tensor}
    for node in reversed(nodes):
        if any(id(output) in needed for output in node.outputs):
            needed.update((id(one), one) for one in node.input_tensors)
    return list(needed.values())


def _is_array(tensor):
    """True where a tensor's size is known, but for the number of its rows."""
    return (
        len(tensor.shape) > 1
        and tensor.shape[0] is None
        and None not in tensor.shape[1:]
        and (keras.backend.is_float_dtype(tensor.dtype))
    )


def _is_fixed(node):
    """True where a node of a graph gives for each row the same, whenever and with whatever other rows it is computed,
    and adds nothing to the loss."""
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


def _is_trained_in_place(layer):
    """True for a normalization by the statistics of the batch, which it also changes: without weights of its own to
    train, it may still do so."""
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def _is_along_rows(layer, node):
    """True where a layer's `axis` is that of the rows."""
    axes = getattr(layer, "axis", None)
    axes = list(axes) if isinstance(axes, (list, tuple)) else [axes]
    return any(
        isinstance(axis, int) and axis in (0, -len(tensor.shape)) for axis in axes for tensor in node.input_tensors
    )


def _is_elementwise(node):
    """True for an operation element by element between tensors that have rows, and constants that have none."""
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


def _has_matrix(operation):
    """True where there is a matrix by which an operation multiplies, as a layer or as layers of a model."""
    if not isinstance(operation, keras.layers.Layer):
        return False
    return any(
        len(variable.shape) > 1
        for layer in operation._flatten_layers()
        if not isinstance(layer, (keras.Model, keras.layers.Embedding, keras.layers.Normalization))
        for variable in layer.weights
    )


def _described(inputs, nodes, outputs):
    """What `nodes` compute of `inputs`, as far as that is no matter of weights: what JSON can say, without names that
    say nothing; and the layers, in the order in which it tells of them."""
    numbers = {id(tensor): number for number, tensor in enumerate(inputs)}
    layers, told = [], [[str(tensor.dtype), tensor.shape[1:]] for tensor in inputs]

    def named(value):
        return {"tensor": numbers[id(value)]} if isinstance(value, keras.KerasTensor) else value

    for node in nodes:
        operation, within = _operation(node.operation)
        layers += within
        told.append([operation, *node.arguments.convert(named)])
        for tensor in node.outputs:
            numbers[id(tensor)] = len(numbers)
    return [told, [numbers[id(tensor)] for tensor in outputs]], layers


def _operation(operation):
    """What tells of an operation, and the layers that it is or has."""
    kind = type(operation).__name__
    if isinstance(operation, keras.Model):
        inner = _graph(operation)
        told, layers = _described(inner.inputs, _nodes(inner), inner.outputs)
        return [kind, told], layers
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


def _plain(value):
    """What JSON does not know of itself, as it can say it."""
    return [str(value.dtype), np.asarray(value).tolist()] if hasattr(value, "dtype") else repr(value)
