"""States that come from another role's run: what is refused before it is used."""

import struct
import sys

import numpy as np
import pytest

from mop_udf import state
from pg_mop.catalog.shared_stages import is_alias
from pg_mop.run.given_states import problem_of


def packed(weights, optimizer=(), seeds=()):
    groups = {"weights": list(weights), "seeds": list(seeds), "optimizer": list(optimizer)}
    return b"".join(bytes(buffer) for buffer in state.pack(groups))


GOOD = [np.ones((4, 3), "f4"), np.zeros(3, "f4")]


def test_a_state_of_the_net_is_used():
    assert problem_of(packed(GOOD), 15) is None
    assert problem_of(packed(GOOD), None) is None, "a net whose weights cannot be counted"
    assert problem_of(packed(GOOD, [np.array(7), *GOOD], [np.array([1, 2], "u4")]), 15) is None


@pytest.mark.parametrize("value", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("kind", ("f2", "f4", "f8"))
@pytest.mark.parametrize("group", ("weights", "optimizer"))
def test_numbers_that_are_not_finite_are_refused(value, kind, group):
    bad = np.ones(15, kind)
    bad[7] = value
    data = packed([bad]) if group == "weights" else packed(GOOD, [bad])
    assert problem_of(data, 15) == f"its state has {group} that are not finite"


@pytest.mark.parametrize("group", state.GROUPS)
@pytest.mark.parametrize("kind", ("S4", "U1", "V4", "i4,f4", "M8[s]", "m8[s]", "c8", "c16", ">f4", "f16"))
def test_what_are_no_numbers_is_refused(kind, group):
    groups = {"weights": [*GOOD], "optimizer": [], "seeds": []}
    groups[group] = [*groups[group], np.zeros(4, kind)]
    problem = problem_of(packed(**groups), None)
    assert problem.startswith((f"its state has {group} of the type ", "its state is damaged: "))


@pytest.mark.parametrize("kind", ("?", "i1", "u1", "i8", "u4", "f2", "f4", "f8", *state.SHORT_FLOATS))
def test_all_kinds_of_numbers_are_used(kind):
    assert problem_of(packed([np.zeros(15, state.dtype(kind))]), 15) is None


def test_short_floats_that_are_not_finite_are_refused():
    bad = np.full(15, np.nan, state.dtype("bfloat16"))
    assert problem_of(packed([bad]), 15) == "its state has weights that are not finite"


def test_a_state_that_cannot_be_read_here_is_refused(monkeypatch):
    data = packed([np.zeros(15, state.dtype("bfloat16"))])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert problem_of(data, 15).startswith("its state cannot be read here: ")


@pytest.mark.parametrize("shape", ("[-1]", "[-4, -3]", "[12.0]", "12", '""', '{"12": 1}', "[[12]]", "[null]"))
def test_arrays_of_impossible_shapes_are_refused(shape):
    text = b'{"weights": [["<f4", SHAPE]], "seeds": [], "optimizer": []}'.replace(b"SHAPE", shape.encode())
    data = state.MAGIC + bytes([state.VERSION]) + struct.pack("<I", len(text)) + text + bytes(48)
    assert problem_of(data, None).startswith("its state is damaged: ")


def test_another_number_of_weights_is_refused():
    assert problem_of(packed(GOOD), 16) == "its state has 15 weights, the model has 16"


@pytest.mark.parametrize(
    "data",
    (
        b"",
        b"x",
        packed(GOOD)[:-1],
        packed(GOOD) + b"0",
        b"\x80\x04." + packed(GOOD),
        packed(GOOD).replace(b"<f4", b"|O8"),
    ),
)
def test_what_is_no_state_is_refused(data):
    assert problem_of(data, 15).startswith("its state is damaged: ")


def test_aliases_are_no_numbers_of_runs():
    assert is_alias(-1) and is_alias(-(1 << 60)) and not is_alias(0) and not is_alias(1)
