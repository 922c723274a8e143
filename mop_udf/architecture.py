"""Architecture JSON: checked against an allow-list of Keras' own classes, and rewritten as Keras 3 wants it.

Keras' loaders import whatever module a JSON names and run Lambda layers' code; several CVEs got past their safe mode.
So nothing reaches them but what this module has written: every object is of a class listed here, its module is the
canonical one, and strings that name a function are names of Keras' own activations. JSON of Keras 2 (no modules,
`batch_input_shape`, nested lists of inbound nodes) is translated. Standard library only.
"""

import json
import re

from mop_udf import operations
from mop_udf.sequences import Sequence


class ArchitectureError(ValueError):
    """The JSON is no architecture that may be loaded; the text says why."""


MOST_CHARACTERS = 16 << 20
MOST_DEPTH = 60
MOST_LAYERS = 5000

LAYERS = frozenset(
    """
Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average AveragePooling1D
AveragePooling2D AveragePooling3D BatchNormalization Bidirectional CategoryEncoding CenterCrop Concatenate Conv1D
Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Cropping1D Cropping2D
Cropping3D Dense DepthwiseConv1D DepthwiseConv2D Dot Dropout ELU EinsumDense Embedding Flatten GRU GRUCell
GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention Identity InputLayer
LSTM LSTMCell LayerNormalization LeakyReLU Masking MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum
MultiHeadAttention Multiply Normalization PReLU Permute RMSNormalization RNN ReLU RepeatVector Rescaling Reshape
Resizing SeparableConv1D SeparableConv2D SimpleRNN SimpleRNNCell Softmax SpatialDropout1D SpatialDropout2D
SpatialDropout3D SpectralNormalization StackedRNNCells Subtract TimeDistributed UnitNormalization UpSampling1D
UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
RandomBrightness RandomContrast RandomCrop RandomFlip RandomRotation RandomTranslation RandomZoom
CustomScaleLayer LayerScale
""".split()
)
INITIALIZERS = frozenset(
    """
Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity LecunNormal LecunUniform Ones Orthogonal RandomNormal
RandomUniform TruncatedNormal VarianceScaling Zeros
""".split()
)
REGULARIZERS = frozenset(("L1", "L2", "L1L2", "OrthogonalRegularizer"))
CONSTRAINTS = frozenset(("MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm"))
ACTIVATIONS = frozenset(
    """
celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear log_sigmoid
log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus sparse_sigmoid sparsemax
squareplus swish tanh tanh_shrink threshold
""".split()
)
# layers that keras.applications keep to themselves
OTHER_MODULES = {
    "LayerScale": "keras.src.applications.convnext",
    "CustomScaleLayer": "keras.src.applications.inception_resnet_v2",
}
MODELS = {"Sequential": "keras", "Functional": "keras.src.models.functional"}
OLD_NAMES = {
    "Model": "Functional",
    "OrthogonalInitializer": "Orthogonal",
    "IdentityInitializer": "Identity",
    "CuDNNLSTM": "LSTM",
    "CuDNNGRU": "GRU",
    "BatchNormalizationV1": "BatchNormalization",
    "BatchNormalizationV2": "BatchNormalization",
    "Convolution2D": "Conv2D",
    "Convolution1D": "Conv1D",
    "GlorotUniformV2": "GlorotUniform",
    "ThresholdedReLU": "ReLU",
}
# layers whose last dimension is `units`; and those whose output has their input's shape
NO_VECTOR = "an output of the architecture must be a vector of a known width, not of shape"
WHAT = {"input_layers": "inputs", "output_layers": "outputs"}
WITH_UNITS = ("Dense",)
KEEP_SHAPE = frozenset(
    """
Activation ActivityRegularization AlphaDropout BatchNormalization Dropout ELU GaussianDropout GaussianNoise Identity
LayerNormalization LeakyReLU PReLU ReLU Softmax UnitNormalization
""".split()
)
# layers whose `rate` the fit parameter dropout sets, and what stands for 0 until the model is built: Keras would give
# the layer no random state, which it needs when its rate changes
DROPOUTS = frozenset("AlphaDropout Dropout GaussianDropout SpatialDropout1D SpatialDropout2D SpatialDropout3D".split())
NO_RATE = 0.5
RECURRENT = ("RNN", "LSTM", "GRU", "SimpleRNN", "Bidirectional", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")
SNAKE_INITIALIZERS = {re.sub(r"(?<!^)(?=[A-Z])", "_", n).lower(): n for n in INITIALIZERS}
SNAKE_INITIALIZERS.update({"normal": "RandomNormal", "uniform": "RandomUniform", "zero": "Zeros", "one": "Ones"})
SNAKE_OTHERS = {
    "l1": "L1",
    "l2": "L2",
    "l1_l2": "L1L2",
    "max_norm": "MaxNorm",
    "min_max_norm": "MinMaxNorm",
    "non_neg": "NonNeg",
    "unit_norm": "UnitNorm",
}
# keys of Keras 2 that Keras 3 has no use for
GONE = {
    "InputLayer": ("ragged", "sparse", "input_tensor", "input_dtype", "input_shape"),
    "BatchNormalization": ("fused", "virtual_batch_size", "adjustment"),
    "LSTM": ("implementation", "time_major"),
    "GRU": ("implementation", "time_major"),
    "SimpleRNN": ("implementation", "time_major"),
    "MultiHeadAttention": ("query_shape", "key_shape", "value_shape", "softmax_robust_masking"),
}
KERNEL = ("kernel_initializer", "kernel_regularizer", "kernel_constraint")
GONE.update({f"SpatialDropout{n}D": ("noise_shape", "trainable") for n in (1, 2, 3)})
GONE.update({f"Conv{n}DTranspose": ("groups",) for n in (1, 2, 3)})
GONE.update({f"SeparableConv{n}D": ("groups", *KERNEL) for n in (1, 2)})
GONE.update({f"DepthwiseConv{n}D": ("groups", "filters", *KERNEL) for n in (1, 2)})
GONE_EVERYWHERE = ("batch_input_shape", "input_dim", "input_length", "batch_shape")
DISTRIBUTIONS = {
    "normal": "truncated_normal",
    "uniform": "uniform",
    "truncated_normal": "truncated_normal",
    "untruncated_normal": "untruncated_normal",
}
MODULES = re.compile(
    r"(keras|tf_keras|tensorflow\.keras|tensorflow\.python\.keras|builtins)?"
    r"(\.(src|engine|layers|initializers|regularizers|constraints|models|activations|dtype_policies|"
    r"[a-z_0-9]+))*"
)


def check(architecture):
    """Architecture JSON (text, or the dict of it) -> a dict that keras.models.model_from_json may be given as JSON.

    Raises ArchitectureError where the JSON is no Keras model, or names anything but Keras' own classes.
    """
    if isinstance(architecture, str):
        if len(architecture) > MOST_CHARACTERS:
            raise ArchitectureError(f"the architecture has {len(architecture)} characters, at most {MOST_CHARACTERS}")
        try:
            architecture = json.loads(architecture)
        except (ValueError, RecursionError) as error:
            raise ArchitectureError(f"the architecture is not JSON: {error}") from None
    if not isinstance(architecture, dict) or "class_name" not in architecture or "config" not in architecture:
        raise ArchitectureError("the architecture is not the JSON of a Keras model (Model.to_json)")
    _bounded(architecture)
    return _Rewriter(str(architecture.get("keras_version")).startswith(("1.", "2."))).model(architecture)


def input_shapes(architecture):
    """Shapes of the model's inputs, without the batch dimension, in the order of its inputs.

    `architecture` as `check` gives it. Raises ArchitectureError where no layer says its input shape.
    """
    shapes, layers = {}, _layers(architecture)
    if architecture["class_name"] == "Sequential" and layers and layers[0]["class_name"] in MODELS:
        return input_shapes(layers[0])
    for number, layer in enumerate(layers):
        shape = layer["config"].get("batch_shape", layer["config"].get("batch_input_shape"))
        if isinstance(shape, list):
            shapes[str(layer["config"].get("name", number))] = shape[1:]
    if not shapes:
        raise ArchitectureError("the architecture does not state its input shape (batch_shape, batch_input_shape)")
    order = _ends(architecture, "input_layers")  # (of a dictionary by the sorted names)
    return [shapes[n] for n in order] if set(order) == set(shapes) else list(shapes.values())


def output_widths(architecture, outputs=1):
    """Widths of the model's outputs, in order; None where only the model itself, once built, says one.

    `architecture` as `check` gives it. A width is known where an output is that of a layer with `units`, or of layers
    after it that keep its shape. Raises ArchitectureError where the model has another number of outputs.
    """
    config = architecture["config"]
    if architecture["class_name"] == "Sequential":
        ends = [len(config["layers"]) - 1]
    else:
        ends = config.get("output_layers")
        if isinstance(ends, dict):
            ends = [ends[name] for name in sorted(ends)]
        ends = [ends] if _is_reference(ends) else ends
        if not isinstance(ends, list) or not all(map(_is_reference, ends)):
            return [None] * outputs
        ends = [end[0] for end in ends]
    if len(ends) != outputs:
        raise ArchitectureError(f"the architecture has {len(ends)} output{'s' if len(ends) > 1 else ''}, not {outputs}")
    return [_width(architecture, end) for end in ends]


def named(architecture, key):
    """The names of a model's inputs (key "input_layers") or outputs ("output_layers") where it has several in a
    dictionary, in the order in which Keras takes and gives them: sorted. None: they are known by their place.

    `architecture` as `check` gives it. Raises ArchitectureError for a dictionary that has, or is in, lists.
    """
    if architecture["class_name"] == "Sequential":
        layers = architecture["config"]["layers"]
        inner = layers[0 if key == "input_layers" else -1] if layers else None
        return named(inner, key) if inner is not None and inner["class_name"] in MODELS else None
    ends = architecture["config"].get(key)
    if isinstance(ends, dict) and all(map(_is_reference, ends.values())):
        return sorted(ends) if len(ends) > 1 else None
    if _has_dictionary(ends):
        raise ArchitectureError(
            f"the architecture has its {WHAT[key]} in a dictionary together with lists: give it a "
            f"dictionary, or a list, alone"
        )
    return None


def by_place(architecture):
    """An architecture whose inputs and outputs are lists where they were dictionaries, in Keras' order of these."""
    config = dict(architecture["config"])
    for key in WHAT:
        if isinstance(config.get(key), dict) and all(map(_is_reference, config[key].values())):
            ends = [config[key][name] for name in sorted(config[key])]
            config[key] = ends if len(ends) > 1 else ends[0]
    return {**architecture, "config": config}


def name_misfit(architecture, key, columns):
    """(why the inputs or outputs that an architecture has by name (see `named`) are not those of these columns, in this
    order; what mends it); or None. Raises ArchitectureError as `named` does."""
    names = named(architecture, key)
    if names is None or names == list(columns):
        return None
    problem = (
        f"the architecture has its {WHAT[key]} in a dictionary, which Keras reads in the order "
        f"{', '.join(names)}, and the columns are {', '.join(columns)}"
    )
    if sorted(columns) == names:
        return problem, f"Give the columns in that order, when they are packed, too: ARRAY{names}."
    end = WHAT[key][:-1]
    of = f"[model.{end}[name] for name in {names}]"
    made = f"{of}, model.output" if end == "input" else f"model.input, {of}"
    return problem, f"A list is matched by place: keras.Model({made}), in the order of the columns."


def _has_dictionary(value):
    return isinstance(value, dict) or isinstance(value, list) and any(map(_has_dictionary, value))


def with_dropout(architecture, dropout):
    """A copy of an architecture (as `check` gives it) whose Dropout layers have other rates.

    `dropout`: the rate of all of them, or {name of a layer: rate}. A rate of 0 is NO_RATE here. Raises
    ArchitectureError where there is no such layer.
    """
    found = set()

    def copy(node):
        if isinstance(node, list):
            return list(map(copy, node))
        if not isinstance(node, dict):
            return node
        made = {key: copy(value) for key, value in node.items()}
        if made.get("class_name") in DROPOUTS and isinstance(made.get("config"), dict):
            name = str(made["config"].get("name"))
            found.add(name)
            rate = dropout.get(name) if isinstance(dropout, dict) else dropout
            if rate is not None:
                made["config"]["rate"] = rate or NO_RATE
        return made

    made = copy(architecture)
    if not found:
        raise ArchitectureError(f"dropout is given, but the architecture has no layer of {', '.join(sorted(DROPOUTS))}")
    unknown = [name for name in dropout if name not in found] if isinstance(dropout, dict) else []
    if unknown:
        raise ArchitectureError(
            f"the architecture has no dropout layer {str(unknown[0])[:100]!r}, only {', '.join(sorted(found))[:200]}"
        )
    return made


def check_dropout(architecture, dropout):
    """Raises ArchitectureError where `dropout` of parsed fit parameters (also a Sequence, or None) names no layer of an
    architecture (as `check` gives it)."""
    if dropout is not None:
        with_dropout(architecture, dropout.at(0) if isinstance(dropout, Sequence) else dropout)


def is_vector(shape):
    """True for the shape of an output that can be compared with a row's classes or numbers: [width]."""
    return len(shape) == 1 and shape[0] is not None


def output_misfit(widths, wanted):
    """Why outputs of `widths` (None: not known) do not fit rows of `wanted`: {"widths", "what", "table"}; or None."""
    if all(width in (None, given) for width, given in zip(widths, wanted["widths"], strict=True)):
        return None
    has, given = (values[0] if len(values) == 1 else values for values in (widths, wanted["widths"]))
    return f'the architecture outputs {has} {wanted["what"]} but "{wanted["table"]}" has {given}'


def _width(architecture, end):
    """The width of what a layer of a model (its number in a Sequential, else its name) gives; None where not said."""
    layers, sequential = architecture["config"]["layers"], architecture["class_name"] == "Sequential"
    names = {} if sequential else {layer["name"]: layer for layer in layers}
    for _ in layers:
        layer = layers[end] if sequential and end >= 0 else names.get(end)
        if layer is None or layer["class_name"] not in (*WITH_UNITS, *KEEP_SHAPE):
            return None
        if layer["class_name"] in WITH_UNITS:
            units = layer["config"].get("units")
            return units if isinstance(units, int) and not isinstance(units, bool) else None
        if sequential:
            end -= 1
            continue
        calls = layer["inbound_nodes"]
        if len(calls) != 1 or not calls[0]["args"] or not isinstance(calls[0]["args"][0], dict):
            return None
        history = calls[0]["args"][0].get("config", {}).get("keras_history")
        end = history[0] if _is_reference(history) else None
    return None


def _ends(architecture, key):
    """Names of the layers that a functional model lists under `key`: [[name, node, tensor], ...], or just one."""
    listed = architecture["config"].get(key) if isinstance(architecture.get("config"), dict) else None
    if isinstance(listed, dict):
        listed = [listed[name] for name in sorted(listed)]
    if isinstance(listed, list) and listed and isinstance(listed[0], str):
        listed = [listed]
    if not isinstance(listed, list):
        return []
    return [end[0] for end in listed if isinstance(end, list) and end and isinstance(end[0], str)]


def _layers(architecture):
    config = architecture.get("config")
    layers = config if isinstance(config, list) else isinstance(config, dict) and config.get("layers")
    if not isinstance(layers, list) or not all(
        isinstance(x, dict) and isinstance(x.get("config"), dict) for x in layers
    ):
        raise ArchitectureError("the architecture has no list of layers")
    return layers


def _bounded(architecture):
    """Refuse what is too deep or too large to walk."""
    level, depth = [architecture], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise ArchitectureError(f"the architecture is nested deeper than {MOST_DEPTH}")
        below = []
        for node in level:
            if isinstance(node, dict):
                below += [v for v in node.values() if isinstance(v, (dict, list))]
            else:
                below += [v for v in node if isinstance(v, (dict, list))]
        level = below


class _Rewriter:
    """One pass over an architecture: checks every object and writes it anew. `old`: it is of Keras 2."""

    def __init__(self, old):
        self.layers, self.old = 0, old

    def model(self, node):
        """A Sequential or functional model."""
        name = self._class(node)
        if name not in MODELS:
            raise ArchitectureError(f"class {name!r} is no Keras model that may be loaded ({', '.join(MODELS)})")
        config = node["config"]
        if name == "Sequential":
            config = {"layers": config} if isinstance(config, list) else config
            layers = self._layer_list(config)
            made = {"name": _text(config.get("name", "sequential")), "layers": self._sequential(layers)}
        else:
            layers = self._layer_list(config)
            # Keras 2 counts the calls of a nested model from 1, Keras 3 from 0
            nested = (
                set()
                if node.get("module")
                else {str(layer.get("name")) for layer in layers if str(layer.get("class_name")) in ("Model", *MODELS)}
            )
            made = {
                "name": _text(config.get("name", "model")),
                "layers": [self._node_layer(layer, nested) for layer in layers],
            }
            for key in ("input_layers", "output_layers"):
                made[key] = _from_zero(_plain(config.get(key)), nested)
        for key in ("trainable",):
            if isinstance(config.get(key), bool):
                made[key] = config[key]
        return {"module": MODELS[name], "class_name": name, "config": made, "registered_name": name}

    def _layer_list(self, config):
        layers = config.get("layers") if isinstance(config, dict) else None
        if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
            raise ArchitectureError("the architecture has no list of layers")
        return layers

    def _sequential(self, layers):
        made = []
        for number, layer in enumerate(layers):
            rewritten = self.layer(layer)
            config = layer.get("config")
            shape = config.get("batch_input_shape") if isinstance(config, dict) else None
            if number == 0 and rewritten["class_name"] != "InputLayer" and shape is not None:
                name = str(rewritten["config"].get("name", "first")) + "_input"
                made.append(
                    self._object(
                        "keras.layers",
                        "InputLayer",
                        {"batch_shape": _any_batch(shape), "name": name, "dtype": "float32"},
                    )
                )
            made.append(rewritten)
        return made

    def _node_layer(self, layer, nested):
        """A layer or operation of a functional model, with its inbound nodes."""
        made = self._operation(layer) if operations.is_operation(layer.get("module")) else self.layer(layer)
        made["name"] = _text(layer.get("name", made["config"].get("name")))
        made["inbound_nodes"] = self._inbound(made["class_name"], layer.get("inbound_nodes", []), nested)
        return made

    def _operation(self, node):
        """An operation of keras.ops, which a functional model may have in place of a layer."""
        self._count()
        name = self._class(node)
        try:
            config = operations.check(node["module"], name, node.get("config"))
        except operations.OperationError as error:
            raise ArchitectureError(str(error)) from None
        return self._object(node["module"], name, config)

    def _inbound(self, kind, nodes, nested):
        """The calls of a layer or operation of class `kind`, as Keras 3 writes them."""
        if not isinstance(nodes, list):
            raise ArchitectureError("inbound_nodes is not a list")
        calls = []
        for node in nodes:
            if isinstance(node, dict):
                args, kwargs = node.get("args", []), node.get("kwargs", {})
                if not isinstance(args, list) or not isinstance(kwargs, dict):
                    raise ArchitectureError(f"a call of {kind} has no list of arguments")
                call = {"args": self._value(args), "kwargs": self._value(kwargs)}
                if not _has_tensor(args) and not _has_tensor(kwargs):
                    # Keras would compute it at once, however large it is
                    raise ArchitectureError(f"a call of {kind} takes no tensor of the model")
            else:
                call = self._old_call(kind, _from_zero(_plain(node), nested), nested)
            calls.append(call)
        return calls

    def _old_call(self, kind, tensors, nested):
        """A call as Keras 2 writes it: a list of [layer, call, tensor, keyword arguments]."""
        tensors = [tensors] if _is_reference(tensors) else tensors
        if not isinstance(tensors, list) or not tensors or not all(map(_is_reference, tensors)):
            raise ArchitectureError(f"a call of {kind} takes no tensor of the model")
        made = [_tensor(t) for t in tensors]
        kwargs = tensors[-1][3] if len(tensors[-1]) > 3 else {}
        if not isinstance(kwargs, dict):
            raise ArchitectureError(f"the keyword arguments of a call of {kind} are none")
        kwargs = {
            _text(key): _with_tensors(_from_zero(value, nested)) for key, value in kwargs.items() if value is not None
        }
        if kind in RECURRENT and len(made) > 1:
            return {"args": made[:1], "kwargs": {**kwargs, "initial_state": made[1:]}}
        return {"args": made if len(made) == 1 else [made], "kwargs": kwargs}

    def layer(self, node):
        """A layer, or a model used as one."""
        self._count()
        if not isinstance(node, dict) or "class_name" not in node:
            raise ArchitectureError(f"{str(node)[:100]!r} is no layer")
        name = self._class(node)
        if operations.is_operation(node.get("module")):
            raise ArchitectureError(f"{name!r} of {node['module'][:100]!r} is an operation, not a layer")
        if name in MODELS:
            return self.model(node)
        if name == "StochasticDepth":
            raise ArchitectureError(
                "layer class 'StochasticDepth' may not be loaded: its random numbers are no part of the model's state"
            )
        if name not in LAYERS:
            raise ArchitectureError(f"layer class {name!r} may not be loaded: only Keras' own layers without code may")
        config = node.get("config")
        if not isinstance(config, dict):
            raise ArchitectureError(f"layer {name} has no config")
        if config.get("stateful"):
            raise ArchitectureError(
                f"layer {str(config.get('name', name))[:100]!r} is stateful: what it remembers of one batch would go "
                f"to whatever rows come next (make the model with stateful=False, which has the same weights)"
            )
        made = {}
        for key, value in config.items():
            if key in GONE.get(name, ()) or (
                key in GONE_EVERYWHERE and name != "InputLayer" and (name, key) != ("Embedding", "input_dim")
            ):
                continue
            if name == "ReLU" and key == "theta":  # ThresholdedReLU of Keras 2
                key = "threshold"
            if key == "batch_input_shape":
                key = "batch_shape"
            made[_text(key)] = _any_batch(value) if key == "batch_shape" else self._setting(name, key, value)
        made = self._object(OTHER_MODULES.get(name, "keras.layers"), name, made)
        if node.get("build_config") is not None and not self.old:
            # what Keras builds first draws its initial weights first
            made["build_config"] = _build_config(name, node["build_config"])
        return made

    def _count(self):
        self.layers += 1
        if self.layers > MOST_LAYERS:
            raise ArchitectureError(f"the architecture has more than {MOST_LAYERS} layers")

    def _setting(self, layer, key, value):
        """One entry of a layer's config."""
        if key == "dtype" or key == "autocast":
            if isinstance(value, dict):
                value = value.get("config", {}).get("name") if isinstance(value.get("config"), dict) else None
            if value is not None and not isinstance(value, bool) and not re.fullmatch(r"\w+", str(value)):
                raise ArchitectureError(f"dtype {value!r} is not known")
            return value
        if key.endswith("activation"):
            return self._activation(value)
        if key.endswith("initializer"):
            return self._named(value, "keras.initializers", INITIALIZERS, SNAKE_INITIALIZERS)
        if key.endswith("regularizer"):
            return self._named(value, "keras.regularizers", REGULARIZERS, SNAKE_OTHERS)
        if key.endswith("constraint"):
            return self._named(value, "keras.constraints", CONSTRAINTS, SNAKE_OTHERS)
        if key in ("layer", "cell", "forward_layer", "backward_layer"):
            return None if value is None else self.layer(value)
        if key == "cells" and isinstance(value, list):
            return [self.layer(cell) for cell in value]
        if layer == "BatchNormalization" and key == "axis" and isinstance(value, list):
            if len(value) != 1:
                raise ArchitectureError("BatchNormalization over several axes is not supported")
            return value[0]
        return self._value(value)

    def _activation(self, value):
        if isinstance(value, dict):
            name = self._class(value)
            if name in ("ELU", "LeakyReLU", "PReLU", "ReLU", "Softmax"):
                return self.layer(value)
            value = value.get("config") if name == "function" else name
        if value is None or isinstance(value, str) and value in ACTIVATIONS:
            return value
        raise ArchitectureError(f"activation {str(value)[:100]!r} is none of Keras' own")

    def _named(self, value, module, known, spellings):
        if value is None:
            return None
        if isinstance(value, str):
            name = value if value in known else spellings.get(value.lower())
            config = {}
        elif isinstance(value, dict) and "class_name" in value:
            name, config = self._class(value), value.get("config") or {}
            name = name if name in known else spellings.get(name.lower())
        else:
            name, config = None, {}
        if name is None or name not in known or not isinstance(config, dict):
            raise ArchitectureError(f"{str(value)[:100]!r} is none of {module}' own")
        config = {_text(k): _plain(v) for k, v in config.items() if k not in ("dtype", "input_axes", "output_axes")}
        if name == "VarianceScaling" and "distribution" in config:
            config["distribution"] = DISTRIBUTIONS.get(str(config["distribution"]))
        return self._object(module, name, config)

    def _value(self, value):
        """Plain data, in which only tensors of the graph and tuples may be objects."""
        if isinstance(value, list):
            return [self._value(v) for v in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("class_name")
        if kind is None:
            if "module" in value or "registered_name" in value:
                raise ArchitectureError("an object without a class is not allowed")
            return {_text(k): self._value(v) for k, v in value.items()}
        if kind == "__keras_tensor__":
            config = value.get("config")
            if not isinstance(config, dict):
                raise ArchitectureError("a tensor of the graph has no config")
            return {
                "class_name": kind,
                "config": {k: _plain(config.get(k)) for k in ("shape", "dtype", "keras_history")},
            }
        if kind == "__tuple__" and isinstance(value.get("items", []), list):
            return {"class_name": kind, "items": [self._value(v) for v in value.get("items", [])]}
        if kind == "__ellipsis__":
            return {"class_name": kind, "config": {}}
        if kind == "__slice__":
            config = value.get("config")
            ends = [config.get(end) if isinstance(config, dict) else "" for end in ("start", "stop", "step")]
            if not all(end is None or isinstance(end, int) for end in ends):
                raise ArchitectureError("a slice of a tensor has an end that is no integer")
            return {"class_name": kind, "config": dict(zip(("start", "stop", "step"), ends))}
        if kind in ("__numpy__", "__tensor__"):
            try:
                return {"class_name": kind, "config": operations.constant(kind, value.get("config"))}
            except operations.OperationError as error:
                raise ArchitectureError(str(error)) from None
        raise ArchitectureError(f"an object of class {str(kind)[:100]!r} is not allowed here")

    def _class(self, node):
        """The class name of an object, after the check of everything that could lead to other code."""
        name, module, registered = node.get("class_name"), node.get("module"), node.get("registered_name")
        if not isinstance(name, str):
            raise ArchitectureError(f"class_name {str(name)[:100]!r} is not a name")
        parts = name.split(".")
        if len(parts) > 1 and parts[0] not in ("keras", "tensorflow", "tf"):
            raise ArchitectureError(f"class {name[:100]!r} is not Keras' own")
        short = OLD_NAMES.get(parts[-1], parts[-1])
        if module is not None and not (
            isinstance(module, str)
            and MODULES.fullmatch(module)
            and module.split(".")[0] in ("keras", "tf_keras", "tensorflow", "builtins")
        ):
            raise ArchitectureError(f"module {str(module)[:100]!r} of class {name[:100]!r} is not Keras' own")
        if registered is not None and (
            not isinstance(registered, str)
            or ">" in registered
            or registered.split(".")[-1] not in (name, parts[-1], short)
        ):
            raise ArchitectureError(f"registered name {str(registered)[:100]!r} of class {name[:100]!r} is custom")
        return short

    def _object(self, module, name, config):
        return {"module": module, "class_name": name, "config": config, "registered_name": None}


def _any_batch(shape):
    """The shape of an input, without a fixed number of rows: the configuration says how many a batch has."""
    shape = _plain(shape)
    return [None, *shape[1:]] if isinstance(shape, list) and shape else shape


def _build_config(name, value):
    """The shapes of which a layer was built: {"input_shape": shape} or {"shapes_dict": {"..._shape": shape}}."""
    if isinstance(value, dict) and set(value) == {"input_shape"} and _is_shape(value["input_shape"]):
        return {"input_shape": value["input_shape"]}
    shapes = value.get("shapes_dict") if isinstance(value, dict) and set(value) == {"shapes_dict"} else None
    if isinstance(shapes, dict) and all(
        re.fullmatch(r"\w+_shape", _text(key)) and _is_shape(shape) for key, shape in shapes.items()
    ):
        return {"shapes_dict": dict(shapes)}
    if value == {}:
        return {}
    raise ArchitectureError(f"build_config of layer {name} says no shapes: {str(value)[:100]}")


def _is_shape(value):
    """True for None, a list of sizes, or a list or dictionary of such."""
    if isinstance(value, dict):
        return "class_name" not in value and all(isinstance(key, str) and _is_shape(v) for key, v in value.items())
    return (
        value is None
        or isinstance(value, list)
        and all(isinstance(v, int) and not isinstance(v, bool) or _is_shape(v) for v in value)
    )


def _has_tensor(value):
    """True where a tensor of the graph is among the arguments of a call."""
    if isinstance(value, dict):
        return value.get("class_name") == "__keras_tensor__" or any(map(_has_tensor, value.values()))
    return isinstance(value, list) and any(map(_has_tensor, value))


def _is_reference(value):
    """True for Keras 2's [layer, call, tensor] or [layer, call, tensor, keyword arguments]."""
    return (
        isinstance(value, list)
        and len(value) in (3, 4)
        and isinstance(value[0], str)
        and all(isinstance(n, int) for n in value[1:3])
    )


def _tensor(reference):
    """Keras 3's form of a tensor of the graph; its shape and dtype are those of the layer that makes it."""
    return {
        "class_name": "__keras_tensor__",
        "config": {"shape": [None], "dtype": "float32", "keras_history": reference[:3]},
    }


def _with_tensors(value):
    """A keyword argument of Keras 2, its tensors in the form of Keras 3."""
    if _is_reference(value) and len(value) == 3:
        return _tensor(value)
    return [_with_tensors(v) for v in value] if isinstance(value, list) else value


def _from_zero(value, nested):
    """Lists of [layer, call, tensor, ...] in which calls of the layers `nested` are counted from 0, not 1."""
    if isinstance(value, dict):
        return {key: _from_zero(v, nested) for key, v in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > 1 and isinstance(value[0], str) and value[0] in nested and isinstance(value[1], int):
        return [value[0], max(0, value[1] - 1), *value[2:]]
    return [_from_zero(v, nested) for v in value]


def _plain(value):
    """Data without objects."""
    if isinstance(value, dict):
        if "class_name" in value or "module" in value:
            raise ArchitectureError(f"an object of class {str(value.get('class_name'))[:100]!r} is not allowed here")
        return {_text(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value


def _text(value):
    if not isinstance(value, str):
        raise ArchitectureError(f"{str(value)[:100]!r} is not a name")
    return value
