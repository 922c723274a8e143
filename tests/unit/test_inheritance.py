"""What a child inherits from its parent: which layers, and the arithmetic. (Whole models: training/test_inheritance.py.)"""

import numpy as np
import pytest

from mop_udf.training.inherited_weights import InheritanceError, changed, channels, shares
from support.heirs import SEED, dense, found, layers
from support.workload import layer, sequential


def chain(text):
    """A net of layers such as 'd1 8 relu' (Dense) and 'norm LayerNormalization'."""
    layers = []
    for part in text.split(", "):
        name, what, *activation = part.split()
        more = {"units": int(what), "activation": (activation or [None])[0]} if what.isdigit() else {}
        layers.append(
            layer("Dense" if more else what, name=name, **more, **({"rate": 0.3} if what == "Dropout" else {}))
        )
    return sequential("net", [4], *layers)


RELU = "d1 8 relu, d2 6 relu, out 3 softmax"
# what becomes of a net: the parent, the child, {layer: how it is inherited}, fresh layers, whether it is the same function
CASES = {
    "unchanged": (RELU, RELU, "d1 copied d2 copied out copied", "", True),
    "wider": (RELU, RELU.replace("8", "12"), "d1 widened d2 copied out copied", "", True),
    "narrower": (RELU, RELU.replace("8", "4"), "out copied", "d1 d2", False),
    "another activation": (RELU, RELU.replace("relu", "tanh"), "d1 copied d2 copied out copied", "", False),
    "a wider output": ("out 3", "out 5", "", "out", False),
    "units that cannot be told apart": (
        "d1 4, norm LayerNormalization, out 3",
        "d1 6, norm LayerNormalization, out 3",
        "",
        "d1 norm out",
        False,
    ),
    **{
        f"inserted {activation}": (
            "d1 8 relu, out 3",
            f"d1 8 relu, new 8 {activation}, out 3",
            inherited,
            fresh,
            not fresh,
        )
        for activation, inherited, fresh in (
            ("relu", "d1 copied new identity out copied", ""),
            ("linear", "d1 copied new identity out copied", ""),
            ("tanh", "d1 copied out copied", "new"),
        )
    },
    "relu after numbers below zero": (
        "d1 8 tanh, out 3",
        "d1 8 tanh, new 8 relu, out 3",
        "d1 copied out copied",
        "new",
        False,
    ),
    "dropout comes": ("d1 8, out 3", "d1 8, drop Dropout, out 3", "d1 copied out copied", "", True),
    "dropout goes": ("d1 8, drop Dropout, out 3", "d1 8, out 3", "d1 copied out copied", "", True),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_child_inherits(case):
    parent, child, inherited, fresh, same = CASES[case]
    made, words = found(chain(parent), chain(child)), inherited.split()
    assert layers(made) == dict(zip(words[::2], words[1::2])) and made.fresh == fresh.split() and made.same == same
    if case == "wider":
        assert made.layers[0]["out"] == made.layers[1]["in"] == ["wide", "d1", 8, 12]


def test_unlike_models_have_nothing_in_common():
    other = sequential("other", [9], layer("Dense", name="a", units=2), layer("Dense", name="b", units=3))
    assert not found(dense(8, 6), other).layers


# --- the arithmetic ---------------------------------------------------------------------------------------------------


def test_shares_of_repeated_units_sum_up_to_1_and_differ():
    taken = channels(["wide", "layer", 3, 8], SEED)
    made = shares(taken, 5, np.random.default_rng(1))
    for channel in range(3):
        np.testing.assert_allclose(made[taken == channel].sum(0), 1)
    repeated = made[taken == np.bincount(taken).argmax()]
    assert len(repeated) > 1 and len(np.unique(np.round(repeated, 12))) == repeated.size


def test_channel_maps_are_the_same_for_the_same_seed():
    one = ["wide", "layer", 4, 9]
    assert list(channels(one, SEED)) == list(channels(one, SEED)) != list(channels(one, SEED + 1))
    assert list(channels(one, SEED)[:4]) == [0, 1, 2, 3]
    assert list(channels(["flat", ["wide", "x", 1, 2], 3], SEED)) == [0, 0, 1, 1, 2, 2]
    assert list(channels(["join", [2, ["wide", "x", 1, 2]]], SEED)) == [0, 1, 2, 2]
    with pytest.raises(InheritanceError):
        channels(["exec", "x"], SEED)


def test_a_kernel_of_repeated_channels_computes_the_same():
    draw = np.random.default_rng(2)
    kernel, bias, x = draw.normal(size=(3, 5)), draw.normal(size=5), draw.normal(size=(7, 3))
    taken = channels(["wide", "a", 3, 6], SEED)
    new, same = changed([kernel, bias], taken, None, draw)
    np.testing.assert_allclose(x[:, taken] @ new + same, x @ kernel + bias)
