"""Whether the layers of a member fit together, and what a merge needs so that they do. Pure Python."""

from __future__ import annotations

from typing import Any

from pg_mop.plan.shapes import JOINS, Known, Misfit, Shape, output_shape
from pg_mop.spaces.custom import NONE, CustomLayers
from pg_mop.spaces.graph import Graph

PROJECT = "project"


def fit(graph: Graph, adapt: str | None, custom: CustomLayers = NONE) -> list[Shape]:
    """The shapes of a model's outputs. `adapt`: 'project': a Dense layer or a 1x1 convolution is inserted before a merge of
    different shapes; None: they are a misfit. Raises Misfit with the name of the layer.

    A shape is known as far as the JSON tells it: an operation, a layer called several times and a nested model have none.
    `custom`: the layers with code. A merge behind one of unknown shape is a misfit: nobody could tell whether it fits.
    """
    shapes: dict[str, Shape] = {}
    behind: dict[str, str] = {}  # a layer of unknown shape -> the custom layer that is to blame
    for name in graph.order():
        layer = graph.layers[name]
        calls = layer["inbound_nodes"]
        blamed = next((behind[source] for source in graph.sources(name) if source in behind), None)
        if blamed is not None:
            if layer["class_name"] in JOINS:
                raise Misfit(
                    f"{name}: {layer['class_name']} takes what the custom layer {blamed!r} computes, of unknown shape"
                )
            behind[name] = blamed
        if layer["class_name"] in custom:
            shapes[name] = _of_custom(graph, name, shapes, custom) if blamed is None else None
            if shapes[name] is None:
                behind[name] = blamed or name
            continue
        if not graph.is_layer(name) and layer["class_name"] != "InputLayer" or len(calls) > 1:
            shapes[name] = None
            continue
        try:
            if adapt == PROJECT and layer["class_name"] in JOINS and calls:
                _project(graph, name, shapes)
            sources = graph.sources(name)
            shapes[name] = output_shape(layer["class_name"], layer["config"], [shapes[source] for source in sources])
        except Misfit as error:
            raise Misfit(f"{name}: {error}") from None
    return [shapes[end] for end in graph.ends()]


def _of_custom(graph: Graph, name: str, shapes: dict[str, Shape], custom: CustomLayers) -> Shape:
    """The shape of a custom layer's output; None where it is unknown. Raises Misfit."""
    layer, calls = graph.layers[name], graph.layers[name]["inbound_nodes"]
    if len(calls) != 1 or len(calls[0]["args"]) != 1 or calls[0]["kwargs"] or not all(graph.takes_first(name)):
        return None
    try:
        given = [shapes[source] for source in graph.sources(name)]
        return custom.shape(layer["class_name"], layer["config"], given, isinstance(calls[0]["args"][0], list))
    except Misfit as error:
        raise Misfit(f"{name}: {error}") from None


def _project(graph: Graph, name: str, shapes: dict[str, Shape]) -> None:
    """Insert what lets the inputs of a merge have one shape. Raises Misfit where nothing does."""
    layer = graph.layers[name]
    sources = graph.sources(name)
    known = [shapes[source] for source in sources]
    try:
        output_shape(layer["class_name"], layer["config"], known)
        return
    except Misfit as error:
        found = [shape for shape in known if shape is not None]
        if (
            len({len(shape) for shape in found}) != 1
            or () in found
            or None in {size for shape in found for size in shape}
        ):
            raise
        joined = layer["class_name"] == "Concatenate"
        if joined and layer["config"].get("axis", -1) not in (-1, len(found[0])) or _first_channels(layer["config"]):
            raise
        problem = error
    # the smallest space, and the most channels: nothing is made up where an input has less
    space = tuple(min(sizes) for sizes in zip(*(shape[:-1] for shape in found)))
    width = max(shape[-1] or 0 for shape in found)
    for place, (source, shape) in enumerate(zip(sources, known)):
        wanted = (*space, shape[-1] if joined and shape else width)
        if shape is None or shape == wanted:
            continue
        own = _projection(shape, wanted, problem)
        new = graph.free(f"{name}_project_{place + 1}")
        graph.add(new, own, [source])
        graph.replace_source(name, place, new)
        shapes[new] = output_shape(own["class_name"], own["config"], [shape])
        if shapes[new] != wanted:
            raise problem


def _projection(shape: Known, wanted: Known, problem: Misfit) -> dict[str, Any]:
    """A layer from one shape to another. Raises `problem` where there is none."""
    rank = len(shape) - 1
    if rank == 0:
        return _layer("Dense", units=wanted[-1], activation="linear", use_bias=True)
    if rank > 3:
        raise problem
    strides = [-(-(size or 1) // (to or 1)) for size, to in zip(shape[:-1], wanted[:-1])]
    return _layer(
        f"Conv{rank}D", filters=wanted[-1], kernel_size=[1] * rank, strides=strides, padding="same", activation="linear"
    )


def _first_channels(config: Any) -> bool:
    return config.get("data_format") == "channels_first"


def _layer(class_name: str, **config: Any) -> dict[str, Any]:
    return {"module": "keras.layers", "class_name": class_name, "config": config, "registered_name": None}
