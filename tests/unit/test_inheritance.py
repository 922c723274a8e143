"""What a child inherits from its parent: which layers, and the arithmetic. (Whole models: training/test_inheritance.py.)"""

import numpy as np
import pytest

from mop_udf.inherited_weights import InheritanceError, changed, channels, shares
from support.heirs import SEED, dense, found, layers
from support.workload import layer, sequential


def test_an_unchanged_model_is_copied():
    made = found(dense(8, 6), dense(8, 6))
    assert layers(made) == dict.fromkeys(("d1", "d2", "out"), "copied") and made.same and not made.fresh


def test_a_wider_layer_keeps_the_function_by_the_next_layer():
    made = found(dense(8, 6), dense(12, 6))
    assert layers(made) == {"d1": "widened", "d2": "copied", "out": "copied"} and made.same
    widened, after, _ = made.layers
    assert widened["out"] == after["in"] == ["wide", "d1", 8, 12]


def test_a_narrower_layer_and_the_one_after_it_are_fresh():
    made = found(dense(8, 6), dense(4, 6))
    assert layers(made) == {"out": "copied"} and made.fresh == ["d1", "d2"] and not made.same


def test_another_activation_keeps_the_weights_but_not_the_function():
    made = found(dense(8, 6), dense(8, 6, activation="tanh"))
    assert layers(made) == dict.fromkeys(("d1", "d2", "out"), "copied") and not made.same


def test_the_output_is_never_widened():
    parent = sequential("net", [4], layer("Dense", name="out", units=3))
    made = found(parent, sequential("net", [4], layer("Dense", name="out", units=5)))
    assert made.fresh == ["out"] and not made.layers


def test_a_layer_after_which_units_cannot_be_told_apart_is_not_widened():
    def normalised(units):
        return sequential(
            "net",
            [4],
            layer("Dense", name="d1", units=units),
            layer("LayerNormalization", name="norm"),
            layer("Dense", name="out", units=3),
        )

    made = found(normalised(4), normalised(6))
    assert made.fresh == ["d1", "norm", "out"] and not made.same


@pytest.mark.parametrize(
    "activation,how,same", [("relu", "identity", True), ("linear", "identity", True), ("tanh", None, False)]
)
def test_an_inserted_layer_is_the_identity_where_its_activation_lets_all_pass(activation, how, same):
    parent = dense(8)
    child = sequential(
        "net",
        [4],
        layer("Dense", name="d1", units=8, activation="relu"),
        layer("Dense", name="new", units=8, activation=activation),
        layer("Dense", name="out", units=3, activation="softmax"),
    )
    made = found(parent, child)
    assert layers(made).get("new") == how and made.same == same
    assert ("new" in made.fresh) == (how is None)


def test_a_relu_is_not_the_identity_after_numbers_below_zero():
    parent = dense(8, activation="tanh")
    child = sequential(
        "net",
        [4],
        layer("Dense", name="d1", units=8, activation="tanh"),
        layer("Dense", name="new", units=8, activation="relu"),
        layer("Dense", name="out", units=3, activation="softmax"),
    )
    made = found(parent, child)
    assert made.fresh == ["new"] and not made.same and layers(made) == {"d1": "copied", "out": "copied"}


def test_dropout_that_comes_or_goes_changes_no_prediction():
    plain, dropped = (
        sequential("net", [4], layer("Dense", name="d1", units=8), *between, layer("Dense", name="out", units=3))
        for between in ([], [layer("Dropout", name="drop", rate=0.3)])
    )
    assert found(plain, dropped).same and found(dropped, plain).same and not found(plain, dropped).fresh


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
