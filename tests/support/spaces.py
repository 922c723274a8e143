"""Base models and mutators that tests of model spaces share."""

import json

from pg_mop.spaces import Base, ModelSpace
from support.workload import layer, sequential

CNN = sequential(
    "cnn",
    [8, 8, 1],
    layer("Conv2D", name="conv", filters=8, kernel_size=3, padding="same", activation="relu"),
    layer("MaxPooling2D", name="pool"),
    layer("Flatten", name="flat"),
    layer("Dense", name="hidden", units=16, activation="relu"),
    layer("Dense", name="out", units=10, activation="softmax"),
)


def node(kind, name, *sources, **config):
    """A layer of a functional model, as Keras 2 writes its inputs."""
    return {
        "class_name": kind,
        "config": {"name": name, **config},
        "name": name,
        "inbound_nodes": [[[source, 0, 0, {}] for source in sources]] if sources else [],
    }


def functional(*layers, outputs=("out",), inputs=("x",)):
    return json.dumps(
        {
            "class_name": "Functional",
            "keras_version": "3.0.0",
            "config": {
                "name": "graph",
                "layers": list(layers),
                "input_layers": [[name, 0, 0] for name in inputs],
                "output_layers": [[name, 0, 0] for name in outputs],
            },
        }
    )


RESIDUAL = functional(
    node("InputLayer", "x", batch_shape=[None, 6]),
    node("Dense", "first", "x", units=8),
    node("Dense", "inner", "first", units=8, activation="relu"),
    node("Add", "sum", "first", "inner"),
    node("Dense", "out", "sum", units=3, activation="softmax"),
)


def space(*mutators, base=CNN, adapt=None):
    bases = base if isinstance(base, list) else [Base(1, base)]
    return ModelSpace(bases, json.dumps(mutators), adapt)


def change(kind, match, **more):
    return {"change": kind, "match": match, **more}


RICH = functional(
    node("InputLayer", "x", batch_shape=[None, 12, 12, 2]),
    node("Conv2D", "stem", "x", filters=4, kernel_size=3, padding="same", activation="relu"),
    node("Conv2D", "side", "stem", filters=4, kernel_size=3, padding="same"),
    node("Add", "sum", "stem", "side"),
    node("MaxPooling2D", "pool", "sum", pool_size=2),
    node("Conv2D", "more", "pool", filters=6, kernel_size=3),
    node("GlobalAveragePooling2D", "mean", "more"),
    node("Dense", "hidden", "mean", units=8, activation="relu"),
    node("Dense", "out", "hidden", units=3, activation="softmax"),
)


RICH_MUTATORS = [
    change("value", "stem", argument="strides", choices=[1, 2]),
    change("value", "side", argument="filters", choices=[4, 6]),
    change("value", {"name": "s*", "class": "Conv2D"}, argument="activation", choices=["relu", "tanh", "linear"]),
    change("layer", "pool", choices=["keep", {"class": "AveragePooling2D", "pool_size": 4}, None]),
    change("value", "more", argument="kernel_size", choices=[1, 3, 7]),
    change("layer", "mean", choices=["keep", {"class": "GlobalMaxPooling2D"}, {"class": "Flatten"}]),
    change(
        "cell",
        "more",
        nodes=2,
        operations=[
            None,
            {"class": "SeparableConv2D", "filters": 5, "kernel_size": 3},
            {"class": "MaxPooling2D", "pool_size": 2},
        ],
    ),
    change("insert", "hidden", choices=[None, {"class": "BatchNormalization"}, {"class": "Dropout", "rate": 0.3}]),
    change("repeat", "hidden", times=[0, 1, 2]),
    {"change": "inputs", "match": "sum", "from": ["stem", "side"], "least": 1, "most": 2},
]
