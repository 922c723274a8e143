"""The graph of a model, from checked architecture JSON, and the primitives that change it. Pure Python.

Each primitive is recorded: what members of a space have in common is known without comparing their graphs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mop_udf.architecture import operations
from mop_udf.architecture.architecture import is_reference
from mop_udf.architecture.architecture_shapes import input_shapes
from pg_mop.plan.shapes import Misfit

Layer = dict[str, Any]  # as a functional model's JSON has it


class Graph:
    """A functional model: {name: layer}, and its inputs and outputs. `record`: the primitives so far."""

    def __init__(self, architecture: dict[str, Any]) -> None:
        """`architecture`: as mop_udf.architecture.architecture.check gives it; it stays as it is."""
        config = json.loads(json.dumps(architecture["config"]))
        self.model_name = str(config.get("name") or "model")
        self.record: list[dict[str, Any]] = []
        self.gone: dict[str, str] = {}  # a removed layer -> the one whose output takes its place
        # a layer -> those that were inserted before it; those that were inserted after it: they belong to it, in this order
        self.leads: dict[str, list[str]] = {}
        self.follows: dict[str, list[str]] = {}
        self.layers: dict[str, Layer] = {}
        if architecture["class_name"] == "Sequential":
            self._chain(architecture, config["layers"])
        else:
            for layer in config["layers"]:
                layer.pop("build_config", None)  # the shapes that built it, which may be others now
                layer["config"].setdefault("name", layer["name"])
                for call in layer["inbound_nodes"]:
                    for tensor in _tensors(call):
                        tensor["config"].update(shape=[None], dtype="float32")
                self.layers[layer["name"]] = layer
            self.inputs, self.outputs = config.get("input_layers"), config.get("output_layers")

    def _chain(self, architecture: dict[str, Any], layers: list[Layer]) -> None:
        """The layers of a Sequential."""
        if not layers:
            raise Misfit("the architecture has no layers")
        if layers[0]["class_name"] != "InputLayer":
            (shape,) = input_shapes(architecture)
            config = {"batch_shape": [None, *shape], "dtype": "float32"}
            layers = [{"module": "keras.layers", "class_name": "InputLayer", "config": config}, *layers]
        last = None
        for layer in layers:
            name = self.free(str(layer["config"].get("name") or layer["class_name"].lower()))
            self.add(name, layer, [last] if last is not None else [], recorded=False)
            last = name
        self.inputs, self.outputs = [next(iter(self.layers)), 0, 0], [last, 0, 0]

    # --- reading -----------------------------------------------------------------------------------
    def free(self, name: str) -> str:
        """A name that no layer has."""
        number, made = 1, name
        while made in self.layers:
            number, made = number + 1, f"{name}_{number}"
        return made

    def sources(self, name: str) -> list[str]:
        """The names of the layers whose outputs a layer takes, over all of its calls."""
        return [history[0] for call in self.layers[name]["inbound_nodes"] for history in _histories(call)]

    def input_of(self, name: str) -> str:
        """The layer whose output is the only input of a layer. Raises Misfit for a layer with other inputs."""
        calls = self.layers[name]["inbound_nodes"]
        found = self.sources(name)
        if len(calls) != 1 or len(found) != 1:
            raise Misfit(f"layer {name!r} has not exactly one input")
        return found[0]

    def consumers(self, name: str) -> list[str]:
        """The names of the layers that take a layer's output."""
        return [other for other in self.layers if name in self.sources(other)]

    def standing(self, name: str) -> str:
        """The layer itself; of a removed one, the layer in its place."""
        while name not in self.layers and name in self.gone:
            name = self.gone[name]
        if name not in self.layers:
            raise Misfit(f"there is no layer {name!r} in this member")
        return name

    def first_of(self, name: str) -> str:
        """The first layer of what belongs to a layer, or itself."""
        while own := self.leads.get(name):
            name = own[0]
        return name

    def last_of(self, name: str) -> str:
        """The last layer of what belongs to a layer, or itself."""
        while own := self.follows.get(name):
            name = own[-1]
        return name

    def order(self) -> list[str]:
        """The names of the layers, each after those whose outputs it takes. Raises Misfit for a circle."""
        made: dict[str, None] = {}
        for start in self.layers:
            path: list[tuple[str, Iterator[str]]] = [(start, iter(self.sources(start)))]
            open_names = {start}
            while path and start not in made:
                name, rest = path[-1]
                source = next((s for s in rest if s not in made), None)
                if source is None:
                    made[name] = None
                    open_names.discard(name)
                    path.pop()
                elif source in open_names:
                    raise Misfit(f"the layers form a cycle through {source!r}")
                elif source not in self.layers:
                    raise Misfit(f"layer {name!r} takes the output of {source!r}, which is not there")
                else:
                    open_names.add(source)
                    path.append((source, iter(self.sources(source))))
        return list(made)

    def after(self, name: str) -> set[str]:
        """The layers that a layer's output reaches, and itself."""
        taken: dict[str, list[str]] = {}
        for other in self.layers:
            for source in self.sources(other):
                taken.setdefault(source, []).append(other)
        found, reached = {name}, [name]
        while reached:
            for other in taken.get(reached.pop(), ()):
                if other not in found:
                    found.add(other)
                    reached.append(other)
        return found

    def before(self, name: str) -> set[str]:
        """The layers whose output reaches a layer, and itself."""
        found, reached = {name}, [name]
        while reached:
            for other in self.sources(reached.pop()):
                if other not in found:
                    found.add(other)
                    reached.append(other)
        return found

    def is_layer(self, name: str) -> bool:
        """True for a layer; False for an input and for an operation of keras.ops."""
        layer = self.layers[name]
        return layer["class_name"] != "InputLayer" and not operations.is_operation(layer.get("module"))

    # --- primitives --------------------------------------------------------------------------------
    def set(self, name: str, argument: str, value: Any) -> None:
        """Set an argument of a layer."""
        config = self.layers[name]["config"]
        if argument not in config or config[argument] != value or type(config[argument]) is not type(value):
            config[argument] = value
            self._note("set", layer=name, argument=argument, value=value)

    def add(self, name: str, layer: Mapping[str, Any], sources: Sequence[str], recorded: bool = True) -> None:
        """Add a layer with a free name, which nobody takes the output of yet."""
        calls: list[Any] = []
        if sources:
            tensors = [tensor(source) for source in sources]
            listed = len(tensors) > 1 or layer["class_name"] in LISTS
            calls = [{"args": [tensors] if listed else tensors, "kwargs": {}}]
        made = {key: value for key, value in layer.items() if key not in ("build_config", "inbound_nodes")}
        self.layers[name] = {**made, "config": {**layer["config"], "name": name}, "name": name, "inbound_nodes": calls}
        if recorded:
            self._note("add", layer=name, **{"class": layer["class_name"]}, inputs=list(sources))

    def insert_after(self, name: str, new: str, layer: Mapping[str, Any]) -> None:
        """Put a layer between another one and all that take its output."""
        self._check_output(name)
        self.add(new, layer, [name], recorded=False)
        self._redirect(name, new, but=new)
        self._note("insert", layer=new, **{"class": layer["class_name"]}, after=name)

    def insert_before(self, name: str, new: str, layer: Mapping[str, Any]) -> None:
        """Put a layer between another one and its only input. Raises Misfit for a layer with other inputs."""
        source = self.input_of(name)
        self.add(new, layer, [source], recorded=False)
        (history,) = _histories(self.layers[name]["inbound_nodes"][0])
        history[:] = [new, 0, 0]
        self._note("insert", layer=new, **{"class": layer["class_name"]}, before=name)

    def remove(self, name: str) -> None:
        """Take a layer out: those that took its output take its only input. Raises Misfit for a layer with other inputs."""
        source = self.input_of(name)
        self._check_output(name)
        (history,) = _histories(self.layers[name]["inbound_nodes"][0])
        self._redirect(name, source, to=list(history))
        self._delete(name, source)
        self._note("remove", layer=name)

    def replace(self, name: str, layer: Mapping[str, Any]) -> None:
        """Put another layer in the place of one, with its name and its inputs."""
        old = self.layers[name]
        for call in old["inbound_nodes"]:
            first = call["args"][0] if call["args"] else None
            if layer["class_name"] in LISTS and is_tensor(first):
                call["args"][0] = [first]
            elif layer["class_name"] not in LISTS and isinstance(first, list) and len(first) == 1:
                call["args"][0] = first[0]
        self.layers[name] = {
            **{key: value for key, value in layer.items() if key not in ("build_config", "inbound_nodes")},
            "config": {**layer["config"], "name": name},
            "name": name,
            "inbound_nodes": old["inbound_nodes"],
        }
        self._note("replace", layer=name, **{"class": layer["class_name"]})

    def connect(self, name: str, sources: Sequence[str]) -> None:
        """Let a layer take the outputs of these layers, in place of its inputs."""
        calls = self.layers[name]["inbound_nodes"]
        if len(calls) != 1:
            raise Misfit(f"layer {name!r} is called {len(calls)} times")
        if self.sources(name) == list(sources):
            return
        tensors = [tensor(source) for source in sources]
        listed = len(tensors) > 1 or self.layers[name]["class_name"] in LISTS
        calls[0]["args"] = [tensors] if listed else tensors
        self._note("connect", layer=name, inputs=list(sources))

    def replace_source(self, name: str, place: int, source: str) -> None:
        """Let a layer take the output of `source` as its input number `place`, from 0."""
        histories = [history for call in self.layers[name]["inbound_nodes"] for history in _histories(call)]
        histories[place][:] = [source, 0, 0]

    def block(self, first: str, last: str) -> tuple[str, list[str]]:
        """(the layer before a block, the layers of the block in order): all that lies between the only input of `first` and
        the output of `last`. Raises Misfit where there is no such block."""
        before = self.input_of(first)
        inside = (self.after(before) & self.before(last)) - {before}
        if first not in inside or last not in inside:
            raise Misfit(f"layer {last!r} does not come after {first!r}")
        self._check_output(last)
        for name in inside:
            if len(self.layers[name]["inbound_nodes"]) != 1:
                raise Misfit(f"layer {name!r} of the block is called {len(self.layers[name]['inbound_nodes'])} times")
        return before, [name for name in self.order() if name in inside]

    def repeat(self, first: str, last: str, times: int, named: Mapping[tuple[str, int], str]) -> None:
        """Have a block `times` times, one after the other; 0: take it out. `named`: names of copies, by (layer, number from 2).

        Raises Misfit where there is no such block.
        """
        if times == 1:
            return
        before, inside = self.block(first, last)
        if times == 0:
            self._redirect(last, before)
            for name in inside:
                if set(self.consumers(name)) - set(inside):
                    raise Misfit(f"layer {name!r} is needed outside of its block")
            for name in inside:
                self._delete(name, before)
            self._note("remove", layers=inside)
            return
        end = last
        for number in range(2, times + 1):
            names = {name: named.get((name, number)) or self.free(f"{name}_{number}") for name in inside}
            copies = {}
            for name in inside:
                copy = json.loads(json.dumps(self.layers[name]))
                copy["name"] = copy["config"]["name"] = names[name]
                for call in copy["inbound_nodes"]:
                    for history in _histories(call):
                        if history[0] == before:
                            history[:] = [end, 0, 0]
                        elif history[0] in names:
                            history[0] = names[history[0]]
                copies[names[name]] = copy
            self._redirect(end, names[last])
            self.layers.update(copies)
            for links in (self.leads, self.follows):
                links.update(
                    {names[a]: [names[b] for b in own if b in names] for a, own in list(links.items()) if a in names}
                )
            end = names[last]
            self._note("copy", layers=inside, to=list(names.values()))

    def _delete(self, name: str, instead: str) -> None:
        """Take a layer out whose output nobody takes; `instead`: the one in its place."""
        del self.layers[name]
        self.gone[name] = instead
        for links in (self.leads, self.follows):
            left = links.pop(name, [])  # what belonged to it, and is still there
            for own in links.values():
                if name in own:
                    at = own.index(name)
                    own[at : at + 1] = left

    def _check_output(self, name: str) -> None:
        """Raises Misfit unless a layer has one call and one output."""
        if len(self.layers[name]["inbound_nodes"]) > 1:
            raise Misfit(f"layer {name!r} is called {len(self.layers[name]['inbound_nodes'])} times")
        others = [h for other in self.layers.values() for call in other["inbound_nodes"] for h in _histories(call)]
        if any(history[0] == name and history[1:3] != [0, 0] for history in [*others, *_ends(self.outputs)]):
            raise Misfit(f"layer {name!r} has several outputs")

    def _redirect(self, name: str, new: str, but: str | None = None, to: list[Any] | None = None) -> None:
        """Let all that take the output of `name` take that of `new`, except for the layer `but`."""
        for other, layer in self.layers.items():
            if other != but:
                for call in layer["inbound_nodes"]:
                    for history in _histories(call):
                        if history[0] == name:
                            history[:] = to or [new, 0, 0]
        for end in _ends(self.outputs):
            if end[0] == name:
                end[:] = to or [new, 0, 0]

    def _note(self, primitive: str, **facts: Any) -> None:
        self.record.append({"primitive": primitive, **facts})

    # --- writing -----------------------------------------------------------------------------------
    def ends(self) -> list[str]:
        """The names of the layers whose outputs are the model's, in order."""
        return [end[0] for end in _ends(self.outputs)]

    def starts(self) -> list[str]:
        """The names of the model's inputs, in order."""
        return [start[0] for start in _ends(self.inputs)]

    def takes_first(self, name: str) -> list[bool]:
        """For each of `sources`: whether it is the first output of that layer's first call."""
        return [list(h[1:3]) == [0, 0] for call in self.layers[name]["inbound_nodes"] for h in _histories(call)]

    def ends_first(self) -> bool:
        """True where the model's outputs are the first outputs of first calls."""
        return all(list(end[1:3]) == [0, 0] for end in _ends(self.outputs))

    def prune(self) -> None:
        """Take out layers that no output needs, but for the inputs."""
        needed = set().union(*(self.before(end) for end in self.ends()))
        for name in [name for name in self.layers if name not in needed]:
            if self.layers[name]["class_name"] == "InputLayer":
                raise Misfit(f"no output depends on the input {name!r}")
            del self.layers[name]
            self._note("remove", layer=name)

    def architecture(self) -> dict[str, Any]:
        """The JSON of the model, for mop_udf.architecture.architecture.check."""
        config = {
            "name": self.model_name,
            "layers": [self.layers[name] for name in self.order()],
            "input_layers": self.inputs,
            "output_layers": self.outputs,
        }
        return {"module": "keras.src.models.functional", "class_name": "Functional", "config": config}


# layers that take a list, also of one input
LISTS = frozenset("Add Average Concatenate Dot Maximum Minimum Multiply Subtract".split())


def is_tensor(value: Any) -> bool:
    """True for a tensor of the graph among a call's arguments."""
    return isinstance(value, dict) and value.get("class_name") == "__keras_tensor__"


def tensor(name: str) -> dict[str, Any]:
    """The output of a layer, among a call's arguments."""
    return {
        "class_name": "__keras_tensor__",
        "config": {"shape": [None], "dtype": "float32", "keras_history": [name, 0, 0]},
    }


def _tensors(value: Any) -> Iterator[dict[str, Any]]:
    if is_tensor(value):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def _histories(call: Any) -> Iterator[list[Any]]:
    """[layer, call, tensor] of each tensor of a call; a change of it is one of the graph."""
    for one in _tensors(call):
        history = one["config"].get("keras_history")
        if not is_reference(history):
            raise Misfit("a tensor of the graph names no layer")
        yield history


def _ends(value: Any) -> list[list[Any]]:
    """[layer, call, tensor] of each output, in Keras' order."""
    if is_reference(value):
        return [value]
    if isinstance(value, dict):
        return [end for name in sorted(value) for end in _ends(value[name])]
    return [end for one in value for end in _ends(one)] if isinstance(value, list) else []
