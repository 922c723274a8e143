"""Parents and children of which the children inherit weights."""

from mop_udf.architecture.architecture import check
from pg_mop.spaces.inheritance import inheritance
from support.workload import layer, sequential

SEED = 7


def dense(*units, activation="relu", inputs=4, last="softmax"):
    hidden = [layer("Dense", name=f"d{n}", units=u, activation=activation) for n, u in enumerate(units, 1)]
    return sequential("net", [inputs], *hidden, layer("Dense", name="out", units=3, activation=last))


def found(parent, child):
    return inheritance(check(parent), check(child))


def layers(made):
    return {entry["layer"]: entry["how"] for entry in made.layers}
