"""A base model, mutators, and the super-nets of their spaces."""

import json

from pg_mop.spaces import Base, ModelSpace
from pg_mop.spaces.super_net import super_net
from support.workload import layer, sequential

CNN = sequential(
    "cnn",
    [8, 8, 2],
    layer("Conv2D", name="conv", filters=8, kernel_size=3, padding="same", activation="relu"),
    layer("MaxPooling2D", name="pool"),
    layer("Flatten", name="flat"),
    layer("Dense", name="hidden", units=16, activation="relu"),
    layer("Dense", name="out", units=10, activation="softmax"),
)
FILTERS = {"change": "value", "match": "conv", "argument": "filters", "choices": [4, 8, 3]}
UNITS = {"change": "value", "match": "hidden*", "argument": "units", "choices": [16, 7]}
AVERAGE = {"change": "layer", "match": "pool", "choices": ["keep", {"class": "AveragePooling2D", "pool_size": 2}]}
DROPOUT = {"change": "insert", "match": "conv", "choices": [None, {"class": "Dropout", "rate": 0.2}]}
NORMALIZED = {"change": "insert", "match": "hidden", "choices": [None, {"class": "BatchNormalization"}]}
NORMALIZED_WIDTHS = {"change": "insert", "match": "conv", "choices": [None, {"class": "BatchNormalization"}]}
SIGMOID = {"change": "insert", "match": "conv", "choices": [None, {"class": "Activation", "activation": "sigmoid"}]}
TWO = {"change": "insert", "match": "flat", "choices": [[{"class": "Dropout", "rate": 0.1}, {"class": "ReLU"}], None]}
ACTIVATION = {"change": "value", "match": "hidden", "argument": "activation", "choices": ["relu", "tanh", "elu"]}
KERNEL = {"change": "value", "match": "conv", "argument": "kernel_size", "choices": [3, 5, 1]}


def times(name, *choices, **more):
    return {"change": "repeat", "match": name, "times": list(choices), **more}


def space_of(*mutators, base=CNN):
    return ModelSpace([Base(1, base)], json.dumps(mutators))


def net_of(*mutators, base=CNN):
    space = space_of(*mutators, base=base)
    return space, super_net(space, 1)
