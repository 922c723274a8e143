"""Architecture JSON: checked against an allow-list of Keras' own classes, and rewritten as Keras 3 wants it.

Keras' loaders import whatever module a JSON names and run Lambda layers' code; several CVEs got past their safe mode.
So nothing reaches them but what this module has written: every object is of a class listed here, its module is the
canonical one, and strings that name a function are names of Keras' own activations. JSON of Keras 2 (no modules,
`batch_input_shape`, nested lists of inbound nodes) is translated. Standard library only.
"""

import json
import re


class ArchitectureError(ValueError):
    """The JSON is no architecture that may be loaded; the text says why."""


MOST_CHARACTERS = 16 << 20
MOST_DEPTH = 60
MOST_LAYERS = 5000

LAYERS = frozenset("""
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
""".split())
INITIALIZERS = frozenset("""
Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity LecunNormal LecunUniform Ones Orthogonal RandomNormal
RandomUniform TruncatedNormal VarianceScaling Zeros
""".split())
REGULARIZERS = frozenset(("L1", "L2", "L1L2", "OrthogonalRegularizer"))
CONSTRAINTS = frozenset(("MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm"))
ACTIVATIONS = frozenset("""
celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear log_sigmoid
log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus sparse_sigmoid sparsemax
squareplus swish tanh tanh_shrink threshold
""".split())
MODELS = {"Sequential": "keras", "Functional": "keras.src.models.functional"}
OLD_NAMES = {"Model": "Functional", "OrthogonalInitializer": "Orthogonal", "IdentityInitializer": "Identity",
             "CuDNNLSTM": "LSTM", "CuDNNGRU": "GRU", "BatchNormalizationV1": "BatchNormalization",
             "BatchNormalizationV2": "BatchNormalization", "Convolution2D": "Conv2D", "Convolution1D": "Conv1D",
             "GlorotUniformV2": "GlorotUniform", "ThresholdedReLU": "ReLU"}
SNAKE_INITIALIZERS = {re.sub(r"(?<!^)(?=[A-Z])", "_", n).lower(): n for n in INITIALIZERS}
SNAKE_INITIALIZERS.update({"normal": "RandomNormal", "uniform": "RandomUniform", "zero": "Zeros", "one": "Ones"})
SNAKE_OTHERS = {"l1": "L1", "l2": "L2", "l1_l2": "L1L2", "max_norm": "MaxNorm", "min_max_norm": "MinMaxNorm",
                "non_neg": "NonNeg", "unit_norm": "UnitNorm"}
# keys of Keras 2 that Keras 3 has no use for
GONE = {"InputLayer": ("ragged", "sparse", "input_tensor", "input_dtype", "input_shape"),
        "BatchNormalization": ("fused", "virtual_batch_size", "adjustment"),
        "LSTM": ("implementation", "time_major"), "GRU": ("implementation", "time_major"),
        "SimpleRNN": ("implementation", "time_major")}
KERNEL = ("kernel_initializer", "kernel_regularizer", "kernel_constraint")
GONE.update({f"SpatialDropout{n}D": ("noise_shape",) for n in (1, 2, 3)})
GONE.update({f"Conv{n}DTranspose": ("groups",) for n in (1, 2, 3)})
GONE.update({f"SeparableConv{n}D": ("groups", *KERNEL) for n in (1, 2)})
GONE.update({f"DepthwiseConv{n}D": ("groups", "filters", *KERNEL) for n in (1, 2)})
GONE_EVERYWHERE = ("batch_input_shape", "input_dim", "input_length", "batch_shape")
DISTRIBUTIONS = {"normal": "truncated_normal", "uniform": "uniform", "truncated_normal": "truncated_normal",
                 "untruncated_normal": "untruncated_normal"}
MODULES = re.compile(r"(keras|tf_keras|tensorflow\.keras|tensorflow\.python\.keras|builtins)?"
                     r"(\.(src|engine|layers|initializers|regularizers|constraints|models|activations|dtype_policies|"
                     r"[a-z_0-9]+))*")


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
    return _Rewriter().model(architecture)


def input_shapes(architecture):
    """Shapes of the model's inputs, without the batch dimension, in the order of its inputs.

    Raises ArchitectureError where no layer says its input shape.
    """
    shapes = {}
    for number, layer in enumerate(_layers(architecture)):
        shape = layer["config"].get("batch_shape", layer["config"].get("batch_input_shape"))
        if isinstance(shape, list):
            shapes[str(layer["config"].get("name", number))] = shape[1:]
    if not shapes:
        raise ArchitectureError("the architecture does not state its input shape (batch_shape, batch_input_shape)")
    order = _ends(architecture, "input_layers")
    return [shapes[n] for n in order] if set(order) == set(shapes) else list(shapes.values())


def output_units(architecture, outputs=1):
    """`units` of the model's outputs: of its output layers or, where those have none, of the last layers that do.

    Raises ArchitectureError where the model has another number of outputs, or none with units.
    """
    units = {str(layer["config"].get("name", number)): layer["config"]["units"]
             for number, layer in enumerate(_layers(architecture))
             if isinstance(layer["config"].get("units"), int)}
    ends = _ends(architecture, "output_layers")
    count = len(ends) or 1  # a Sequential model has one
    if count != outputs:
        raise ArchitectureError(f"the architecture has {count} output{'s' if count > 1 else ''}, not {outputs}")
    if ends and all(name in units for name in ends):
        return [units[name] for name in ends]
    if len(units) < outputs:
        raise ArchitectureError(f"the architecture has no layer with units for each of its {outputs} outputs")
    return list(units.values())[len(units) - outputs:]


def _ends(architecture, key):
    """Names of the layers that a functional model lists under `key`: [[name, node, tensor], ...], or just one."""
    listed = architecture["config"].get(key) if isinstance(architecture.get("config"), dict) else None
    if isinstance(listed, list) and listed and isinstance(listed[0], str):
        listed = [listed]
    if not isinstance(listed, list):
        return []
    return [end[0] for end in listed if isinstance(end, list) and end and isinstance(end[0], str)]


def _layers(architecture):
    config = architecture.get("config")
    layers = config if isinstance(config, list) else isinstance(config, dict) and config.get("layers")
    if not isinstance(layers, list) or not all(isinstance(x, dict) and isinstance(x.get("config"), dict)
                                               for x in layers):
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
    """One pass over an architecture: checks every object and writes it anew."""

    def __init__(self):
        self.layers = 0

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
            nested = set() if node.get("module") else {
                str(layer.get("name")) for layer in layers if str(layer.get("class_name")) in ("Model", *MODELS)}
            made = {"name": _text(config.get("name", "model")),
                    "layers": [self._node_layer(layer, nested) for layer in layers]}
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
                made.append(self._object("keras.layers", "InputLayer",
                                         {"batch_shape": _plain(shape), "name": name, "dtype": "float32"}))
            made.append(rewritten)
        return made

    def _node_layer(self, layer, nested):
        """A layer of a functional model, with its inbound nodes."""
        made = self.layer(layer)
        made["name"] = _text(layer.get("name", made["config"].get("name")))
        made["inbound_nodes"] = self._inbound(layer.get("inbound_nodes", []), nested)
        return made

    def _inbound(self, nodes, nested):
        if not isinstance(nodes, list):
            raise ArchitectureError("inbound_nodes is not a list")
        if all(isinstance(n, dict) for n in nodes):
            return [{"args": self._value(n.get("args", [])), "kwargs": self._value(n.get("kwargs", {}))}
                    for n in nodes]
        # Keras 2: every node is a list of [layer, node, tensor, keyword arguments], which Keras 3 still reads
        return _from_zero(_plain(nodes), nested)

    def layer(self, node):
        """A layer, or a model used as one."""
        self.layers += 1
        if self.layers > MOST_LAYERS:
            raise ArchitectureError(f"the architecture has more than {MOST_LAYERS} layers")
        if not isinstance(node, dict) or "class_name" not in node:
            raise ArchitectureError(f"{str(node)[:100]!r} is no layer")
        name = self._class(node)
        if name in MODELS:
            return self.model(node)
        if name not in LAYERS:
            raise ArchitectureError(f"layer class {name!r} may not be loaded: only Keras' own layers without code may")
        config = node.get("config")
        if not isinstance(config, dict):
            raise ArchitectureError(f"layer {name} has no config")
        made = {}
        for key, value in config.items():
            if key in GONE.get(name, ()) or (key in GONE_EVERYWHERE and name != "InputLayer"
                                             and (name, key) != ("Embedding", "input_dim")):
                continue
            if name == "ReLU" and key == "theta":  # ThresholdedReLU of Keras 2
                key = "threshold"
            if key == "batch_input_shape":
                key = "batch_shape"
            made[_text(key)] = self._setting(name, key, value)
        return self._object("keras.layers", name, made)

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
            return {"class_name": kind, "config": {k: _plain(config.get(k))
                                                   for k in ("shape", "dtype", "keras_history")}}
        if kind == "__tuple__" and isinstance(value.get("items", []), list):
            return {"class_name": kind, "items": [self._value(v) for v in value.get("items", [])]}
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
        if module is not None and not (isinstance(module, str) and MODULES.fullmatch(module)
                                       and module.split(".")[0] in ("keras", "tf_keras", "tensorflow", "builtins")):
            raise ArchitectureError(f"module {str(module)[:100]!r} of class {name[:100]!r} is not Keras' own")
        if module is not None and "ops" in module.split("."):
            raise ArchitectureError(f"{name[:100]!r} of {module[:100]!r} is an operation, not a layer")
        if registered is not None and (not isinstance(registered, str) or ">" in registered
                                       or registered.split(".")[-1] not in (name, parts[-1], short)):
            raise ArchitectureError(f"registered name {str(registered)[:100]!r} of class {name[:100]!r} is custom")
        return short

    def _object(self, module, name, config):
        return {"module": module, "class_name": name, "config": config, "registered_name": None}


def _from_zero(value, nested):
    """Lists of [layer, call, tensor, ...] in which calls of the layers `nested` are counted from 0, not 1."""
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
