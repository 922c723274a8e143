"""Check architecture JSON against an allow-list of Keras' own classes, and rewrite it as Keras 3 expects it.

Keras' loaders import any module that the JSON names and run the code of Lambda layers; several CVEs got past their safe
mode. Therefore the loaders only see JSON that this module has written: every object is of a listed class
(architecture_classes.py) with its canonical module, and each string that names a function names an activation of Keras.
JSON of Keras 2 (no modules, `batch_input_shape`, nested lists of inbound nodes) is translated. Standard library only.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from mop_udf.architecture import operations
from mop_udf.architecture.architecture_classes import (
    ACTIVATIONS,
    CONSTRAINTS,
    DISTRIBUTIONS,
    GONE,
    GONE_EVERYWHERE,
    INITIALIZERS,
    LAYERS,
    MODELS,
    MODULES,
    OLD_NAMES,
    OTHER_MODULES,
    RECURRENT,
    REGULARIZERS,
    SNAKE_INITIALIZERS,
    SNAKE_OTHERS,
    SUPER_NET,
    SUPER_NET_MODULE,
)


class ArchitectureError(ValueError):
    """The JSON is not an architecture that may be loaded; the text says why."""


MOST_CHARACTERS = 16 << 20
MOST_DEPTH = 60
MOST_LAYERS = 5000
CUSTOM = "pg_mop_custom>"  # before the registered names of custom layers and models, which no other object can have
# layers of Keras that run code from JSON, or have a state of their own: no custom layer has their names
NEVER_CUSTOM = frozenset(
    "FlaxLayer InputSpec JaxLayer Lambda Layer SlicingOpLambda StochasticDepth TFOpLambda TFSMLayer TorchModuleWrapper".split()
)


def custom_name(name: str, digest: str) -> str:
    """The registered name of a custom layer or model in checked architectures. `digest`: of its pickle."""
    return f"{CUSTOM}{name}@{digest}"


def custom_model(checked: Mapping[str, Any]) -> str | None:
    """The name of the custom class of a model, None for a class of Keras. `checked`: the result of `check`."""
    return _custom_in(checked)


Node = dict[str, Any]  # an object of an architecture's JSON


def _custom_in(node: Mapping[str, Any]) -> str | None:
    """The name of a checked object's custom class, else None."""
    registered = str(node.get("registered_name"))
    return registered[len(CUSTOM) :].rpartition("@")[0] if registered.startswith(CUSTOM) else None


def custom_classes(checked: Any) -> list[str]:
    """The names of all custom classes, of layers and of the model, each once. `checked`: the result of `check`."""
    found: dict[str, None] = {}
    below = [checked]
    while below:
        node = below.pop()
        if isinstance(node, dict):
            if "class_name" in node and (name := _custom_in(node)):
                found[name] = None
            below += node.values()
        elif isinstance(node, list):
            below += node
    return sorted(found)


def check(
    architecture: str | dict[str, Any],
    super_net: bool = False,
    custom: Mapping[str, str] | None = None,
    custom_models: Mapping[str, str] | None = None,
    no_layers: Collection[str] = (),
) -> dict[str, Any]:
    """Architecture JSON (text or dict) -> a dict; as JSON, it is safe for keras.models.model_from_json.

    `super_net`: the layers of super-nets are allowed, too; users' tables have none. `custom`: {name: digest of its pickle} of
    the object table's objects: a layer whose class has such a name, which is none of Keras', is a custom layer.
    `custom_models`: the same for the class of the whole model, by default those of `custom` (a backend does not know which
    objects are layers); `no_layers`: the names of objects that are known to be none, for errors. A custom model has the
    `class_name` of the kind of Keras' models that it is, Sequential or Functional, and its own registered name.
    Modules and registered names of custom classes are not looked at; Keras finds them within
    custom_layers.scope() alone. Raises ArchitectureError where the JSON is not a Keras model, or names any other class that is
    not on the allow-list.
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
    old = str(architecture.get("keras_version")).startswith(("1.", "2."))
    custom = custom or {}
    return _Rewriter(old, super_net, custom, no_layers).whole(
        architecture, custom if custom_models is None else custom_models
    )


def _bounded(architecture: dict[str, Any]) -> None:
    """Refuse JSON that is nested too deeply."""
    level: list[Any] = [architecture]
    depth = 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise ArchitectureError(f"the architecture is nested deeper than {MOST_DEPTH}")
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                below += [v for v in node.values() if isinstance(v, (dict, list))]
            else:
                below += [v for v in node if isinstance(v, (dict, list))]
        level = below


class _Rewriter:
    """Checks every object of an architecture and rewrites it, in one pass. `old`: the JSON is of Keras 2; `super_net`,
    `custom`, `no_layers`: see `check`."""

    def __init__(self, old: bool, super_net: bool, custom: Mapping[str, str], no_layers: Collection[str] = ()) -> None:
        self.layers, self.old, self.super_net, self.custom, self.no_layers = 0, old, super_net, custom, no_layers

    def whole(self, node: Node, custom: Mapping[str, str]) -> Node:
        """The model itself, of a class of Keras or of one in `custom`."""
        own = _custom_class(node, custom)
        if own is None:
            return self.model(node)
        config = node["config"]
        if not isinstance(config, dict) or not isinstance(config.get("layers"), list):
            raise ArchitectureError(
                f"model class {own!r} has no list of layers in its config: a custom model is made from inputs and outputs, or "
                f"is a subclass of Sequential, with Keras' get_config"
            )
        kind = "Functional" if "input_layers" in config else "Sequential"
        made = self.model({"class_name": kind, "config": config, "module": None if self.old else "keras"})
        return {**made, "module": None, "registered_name": custom_name(own, custom[own])}

    def model(self, node: Node) -> Node:
        """A Sequential or functional model."""
        name = self._class(node)
        if name not in MODELS:
            raise ArchitectureError(f"class {name!r} is not a Keras model that may be loaded ({', '.join(MODELS)})")
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

    def _layer_list(self, config: Any) -> list[Node]:
        layers = config.get("layers") if isinstance(config, dict) else None
        if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
            raise ArchitectureError("the architecture has no list of layers")
        return layers

    def _sequential(self, layers: list[Node]) -> list[Node]:
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

    def _node_layer(self, layer: Node, nested: set[str]) -> Node:
        """A layer or operation of a functional model, with its inbound nodes."""
        made = self._operation(layer) if operations.is_operation(layer.get("module")) else self.layer(layer)
        made["name"] = _text(layer.get("name", made["config"].get("name")))
        made["inbound_nodes"] = self._inbound(made["class_name"], layer.get("inbound_nodes", []), nested)
        return made

    def _operation(self, node: Node) -> Node:
        """An operation of keras.ops; a functional model may have one in place of a layer."""
        self._count()
        name = self._class(node)
        try:
            config = operations.check(node["module"], name, node.get("config"))
        except operations.OperationError as error:
            raise ArchitectureError(str(error)) from None
        return self._object(node["module"], name, config)

    def _inbound(self, kind: str, nodes: Any, nested: set[str]) -> list[Node]:
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
                    # Keras would compute a call of constants at once, however large the result is
                    raise ArchitectureError(f"a call of {kind} takes no tensor of the model")
            else:
                call = self._old_call(kind, _from_zero(_plain(node), nested), nested)
            calls.append(call)
        return calls

    def _old_call(self, kind: str, tensors: Any, nested: set[str]) -> Node:
        """A call as Keras 2 writes it: a list of [layer, call, tensor, keyword arguments]."""
        tensors = [tensors] if is_reference(tensors) else tensors
        if not isinstance(tensors, list) or not tensors or not all(map(is_reference, tensors)):
            raise ArchitectureError(f"a call of {kind} takes no tensor of the model")
        made = [_tensor(t) for t in tensors]
        kwargs = tensors[-1][3] if len(tensors[-1]) > 3 else {}
        if not isinstance(kwargs, dict):
            raise ArchitectureError(f"the keyword arguments of a call of {kind} are not a dictionary")
        kwargs = {
            _text(key): _with_tensors(_from_zero(value, nested)) for key, value in kwargs.items() if value is not None
        }
        if kind in RECURRENT and len(made) > 1:
            return {"args": made[:1], "kwargs": {**kwargs, "initial_state": made[1:]}}
        return {"args": made if len(made) == 1 else [made], "kwargs": kwargs}

    def layer(self, node: Any) -> Node:
        """A layer, or a model in place of a layer."""
        self._count()
        if not isinstance(node, dict) or "class_name" not in node:
            raise ArchitectureError(f"{str(node)[:100]!r} is not a layer")
        custom = _custom_class(node, self.custom)
        name = custom or self._class(node)
        if operations.is_operation(node.get("module")):
            raise ArchitectureError(f"{name!r} of {node['module'][:100]!r} is an operation, not a layer")
        if name in MODELS:
            return self.model(node)
        if name == "StochasticDepth":
            raise ArchitectureError(
                "layer class 'StochasticDepth' may not be loaded: its random numbers are not part of the model's state"
            )
        if self.super_net and name in SUPER_NET:
            return self._of_super_net(name, node.get("config"))
        if name not in LAYERS and custom is None:
            raise ArchitectureError(self._not_loaded(name))
        config = node.get("config")
        if not isinstance(config, dict):
            raise ArchitectureError(f"layer {name} has no config")
        if config.get("stateful"):
            raise ArchitectureError(
                f"layer {str(config.get('name', name))[:100]!r} is stateful: its memory of one batch would reach "
                f"unrelated rows (make the model with stateful=False, which has the same weights)"
            )
        made = {}
        for key, value in config.items():
            if custom is not None and key not in ("batch_input_shape", "batch_shape"):
                made[_text(key)] = self._setting(name, key, value)
                continue
            if key in GONE.get(name, ()) or (
                key in GONE_EVERYWHERE and name != "InputLayer" and (name, key) != ("Embedding", "input_dim")
            ):
                continue
            if name == "ReLU" and key == "theta":  # Keras 2's ThresholdedReLU
                key = "threshold"
            if key == "batch_input_shape":
                key = "batch_shape"
            made[_text(key)] = _any_batch(value) if key == "batch_shape" else self._setting(name, key, value)
        made = self._object(OTHER_MODULES.get(name, "keras.layers"), name, made)
        if custom is not None:
            made.update(module=None, registered_name=custom_name(name, self.custom[name]))
        if node.get("build_config") is not None and not self.old:
            # Keras draws initial weights as it builds the layers: keep their order
            made["build_config"] = _build_config(name, node["build_config"])
        return made

    def _not_loaded(self, name: str) -> str:
        """Why a layer class may not be loaded."""
        if name in self.no_layers:
            return f"layer class {name!r} may not be loaded: {name!r} of the object table is no class of layers"
        if name in NEVER_CUSTOM:
            return f"layer class {name!r} may not be loaded: only Keras' own layers without code may"
        table = (
            f"the object table has no class of layers {name!r}"
            if self.custom
            else "a layer with code needs an object table"
        )
        return f"layer class {name!r} may not be loaded: only Keras' own layers without code may; {table}"

    def _of_super_net(self, name: str, config: Any) -> Node:
        """A layer of a super-net: its config has numbers, its name, and the batch normalization of one."""
        inner = {}
        if name == "PathNormalization" and isinstance(config, dict):
            config, inner = dict(config), {"normalization": self.layer(config.get("normalization"))}
            if inner["normalization"]["class_name"] != "BatchNormalization":
                raise ArchitectureError("a PathNormalization has another layer than a BatchNormalization")
            del config["normalization"]
        made = self._object(SUPER_NET_MODULE, name, {**_super_net_config(config), **inner})
        return {**made, "registered_name": f"pg_mop>{name}"}

    def _count(self) -> None:
        self.layers += 1
        if self.layers > MOST_LAYERS:
            raise ArchitectureError(f"the architecture has more than {MOST_LAYERS} layers")

    def _setting(self, layer: str, key: str, value: Any) -> Any:
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

    def _activation(self, value: Any) -> Any:
        if isinstance(value, dict):
            name = self._class(value)
            if name in ("ELU", "LeakyReLU", "PReLU", "ReLU", "Softmax"):
                return self.layer(value)
            value = value.get("config") if name == "function" else name
        if value is None or isinstance(value, str) and value in ACTIVATIONS:
            return value
        raise ArchitectureError(f"activation {str(value)[:100]!r} is not one of Keras' own")

    def _named(self, value: Any, module: str, known: Collection[str], spellings: Mapping[str, str]) -> Node | None:
        if value is None:
            return None
        if isinstance(value, str):
            name = value if value in known else spellings.get(value.lower())
            config: Any = {}
        elif isinstance(value, dict) and "class_name" in value:
            name, config = self._class(value), value.get("config") or {}
            name = name if name in known else spellings.get(name.lower())
        else:
            name, config = None, {}
        if name is None or name not in known or not isinstance(config, dict):
            raise ArchitectureError(f"{str(value)[:100]!r} is not in {module}")
        config = {_text(k): _plain(v) for k, v in config.items() if k not in ("dtype", "input_axes", "output_axes")}
        if name == "VarianceScaling" and "distribution" in config:
            config["distribution"] = DISTRIBUTIONS.get(str(config["distribution"]))
        return self._object(module, name, config)

    def _value(self, value: Any) -> Any:
        """Plain data; the only objects in it are tensors of the graph, tuples, ellipses, slices and arrays of numbers."""
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
                raise ArchitectureError("a slice of a tensor has an end that is not an integer")
            return {"class_name": kind, "config": dict(zip(("start", "stop", "step"), ends))}
        if kind in ("__numpy__", "__tensor__"):
            try:
                return {"class_name": kind, "config": operations.constant(kind, value.get("config"))}
            except operations.OperationError as error:
                raise ArchitectureError(str(error)) from None
        raise ArchitectureError(f"an object of class {str(kind)[:100]!r} is not allowed here")

    def _class(self, node: Node) -> str:
        """The class name of an object, after checks of all names that could lead to other code."""
        name, module, registered = node.get("class_name"), node.get("module"), node.get("registered_name")
        if not isinstance(name, str):
            raise ArchitectureError(f"class_name {str(name)[:100]!r} is not a name")
        parts = name.split(".")
        if len(parts) > 1 and parts[0] not in ("keras", "tensorflow", "tf"):
            raise ArchitectureError(f"class {name[:100]!r} is not Keras' own")
        short = OLD_NAMES.get(parts[-1], parts[-1])
        if self.super_net and name in SUPER_NET and module == SUPER_NET_MODULE:
            return name
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

    def _object(self, module: str, name: str, config: Any) -> Node:
        return {"module": module, "class_name": name, "config": config, "registered_name": None}


def _custom_class(node: Node, custom: Mapping[str, str]) -> str | None:
    """The name of an object's class where that is one of `custom`, and none of Keras', else None."""
    name, module = node.get("class_name"), node.get("module")
    if not isinstance(name, str) or name not in custom:
        return None
    if any(name in known for known in (LAYERS, MODELS, OLD_NAMES, SUPER_NET, NEVER_CUSTOM)) or not name.isidentifier():
        return None
    if module is not None and (
        not isinstance(module, str) or module.split(".")[0] in ("keras", "tf_keras", "tensorflow", "tf")
    ):
        return None
    return name


def _super_net_config(config: Any) -> dict[str, Any]:
    """The config of a layer of a super-net: its name, and nested lists of whole numbers."""

    def is_numbers(value: Any) -> bool:
        if isinstance(value, list):
            return all(map(is_numbers, value))
        return value is None or isinstance(value, int) and not isinstance(value, bool)

    if not isinstance(config, dict):
        raise ArchitectureError("a layer of a super-net has no config")
    for key, value in config.items():
        if not (key == "name" and isinstance(value, str) or key != "name" and is_numbers(value)):
            raise ArchitectureError(f"a layer of a super-net has {str(key)[:100]!r} with another value than numbers")
    return {_text(key): value for key, value in config.items()}


def _any_batch(shape: Any) -> Any:
    """The shape of an input without a fixed number of rows: the configuration sets the batch size."""
    shape = _plain(shape)
    return [None, *shape[1:]] if isinstance(shape, list) and shape else shape


def _build_config(name: str, value: Any) -> dict[str, Any]:
    """The shapes that built a layer: {"input_shape": shape} or {"shapes_dict": {"..._shape": shape}}."""
    if isinstance(value, dict) and set(value) == {"input_shape"} and _is_shape(value["input_shape"]):
        return {"input_shape": value["input_shape"]}
    shapes = value.get("shapes_dict") if isinstance(value, dict) and set(value) == {"shapes_dict"} else None
    if isinstance(shapes, dict) and all(
        re.fullmatch(r"\w+_shape", _text(key)) and _is_shape(shape) for key, shape in shapes.items()
    ):
        return {"shapes_dict": dict(shapes)}
    if value == {}:
        return {}
    raise ArchitectureError(f"build_config of layer {name} states no shapes: {str(value)[:100]}")


def _is_shape(value: Any) -> bool:
    """True for None, a list of sizes, or a list or dictionary of shapes."""
    if isinstance(value, dict):
        return "class_name" not in value and all(isinstance(key, str) and _is_shape(v) for key, v in value.items())
    return (
        value is None
        or isinstance(value, list)
        and all(isinstance(v, int) and not isinstance(v, bool) or _is_shape(v) for v in value)
    )


def _has_tensor(value: Any) -> bool:
    """True where the arguments of a call contain a tensor of the graph."""
    if isinstance(value, dict):
        return value.get("class_name") == "__keras_tensor__" or any(map(_has_tensor, value.values()))
    return isinstance(value, list) and any(map(_has_tensor, value))


def is_reference(value: Any) -> bool:
    """True for Keras 2's [layer, call, tensor] or [layer, call, tensor, keyword arguments]."""
    return (
        isinstance(value, list)
        and len(value) in (3, 4)
        and isinstance(value[0], str)
        and all(isinstance(n, int) for n in value[1:3])
    )


def _tensor(reference: list[Any]) -> Node:
    """Keras 3's form of a tensor of the graph; the layer that makes the tensor gives it its shape and dtype."""
    return {
        "class_name": "__keras_tensor__",
        "config": {"shape": [None], "dtype": "float32", "keras_history": reference[:3]},
    }


def _with_tensors(value: Any) -> Any:
    """A keyword argument of Keras 2, with its tensors in the form of Keras 3."""
    if is_reference(value) and len(value) == 3:
        return _tensor(value)
    return [_with_tensors(v) for v in value] if isinstance(value, list) else value


def _from_zero(value: Any, nested: set[str]) -> Any:
    """Lists of [layer, call, tensor, ...], with the calls of the layers `nested` counted from 0 instead of 1."""
    if isinstance(value, dict):
        return {key: _from_zero(v, nested) for key, v in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > 1 and isinstance(value[0], str) and value[0] in nested and isinstance(value[1], int):
        return [value[0], max(0, value[1] - 1), *value[2:]]
    return [_from_zero(v, nested) for v in value]


def _plain(value: Any) -> Any:
    """Data without objects."""
    if isinstance(value, dict):
        if "class_name" in value or "module" in value:
            raise ArchitectureError(f"an object of class {str(value.get('class_name'))[:100]!r} is not allowed here")
        return {_text(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ArchitectureError(f"{str(value)[:100]!r} is not a name")
    return value
