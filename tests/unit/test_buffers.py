"""pg_mop.packing.buffers and pg_mop.columns.binary: sizes, binary arrays and buffers, without a server."""

import struct

import numpy as np
import pytest

from pg_mop.backend.errors import MopError
from pg_mop.columns import binary
from pg_mop.inference.prediction import in_pieces
from pg_mop.packing import buffers
from pg_mop.packing.partitions import partition_name


def wire(array, dtype=">f4", flags=0):
    """An array as array_send writes it; None elements are NULL."""
    array = np.asarray(array, object)
    head = struct.pack(">iii", array.ndim, flags, 700) + b"".join(struct.pack(">ii", d, 1) for d in array.shape)
    size = np.dtype(dtype).itemsize
    return head + b"".join(
        struct.pack(">i", -1) if v is None else struct.pack(">i", size) + np.array(v, dtype).tobytes()
        for v in array.ravel()
    )


@pytest.mark.parametrize(
    "rows, segments, requested, elements, expected, count",
    [
        (52, 3, None, 6, 18, 3),
        (52, 3, 10, 6, 9, 6),
        (52, 1, None, 6, 52, 1),
        (17, 1, 5, 6, 5, 4),
        (17, 1, 4, 6, 4, 5),
        (17, 3, 5, 6, 3, 6),
        (120, 3, None, 6, 40, 3),
        (30, 3, None, 6, 10, 3),
        (2, 3, None, 6, 1, 2),
        (1_000_000, 4, None, 3072, 22728, 44),
        (10, 4, 2, 6, 2, 5),
    ],
)
def test_buffer_size_follows_the_contract(rows, segments, requested, elements, expected, count):
    size = buffers.buffer_rows(rows, segments, requested, [elements])
    assert (size, -(-rows // size)) == (expected, count)


def test_smallest_request_of_several_inputs_wins():
    assert buffers.buffer_rows(10**6, 1, None, [75_000, 7_500_000]) == 10


def test_huge_example_gets_buffers_of_one_row():
    assert buffers.buffer_rows(5, 1, None, [80_000_000]) == 1


def test_packed_row_stays_below_one_gigabyte_even_when_more_is_requested():
    assert buffers.buffer_rows(10**6, 1, 10**6, [1000], row_bytes=4000) * 4000 <= buffers.MAX_PACKED_BYTES


def test_read_takes_binary_arrays_exactly():
    rows = np.array([[[1.5, -2], [3e38, 0.1]], [[np.inf, 0], [-0.0, 7]]], np.float32)
    got = binary.read([wire(r) for r in rows], (2, 2), "real", "x")
    assert got.dtype == np.dtype("<f4") and got.tobytes() == rows.tobytes()


def test_read_takes_smallints():
    assert binary.read([wire([0, 1, -7], ">i2")], (3,), "smallint", "y").tolist() == [[0, 1, -7]]


def test_null_bitmap_flag_without_null_elements_is_no_error():
    assert binary.read([wire([1.0], flags=1)], (1,), "real", "x").tolist() == [[1]]


@pytest.mark.parametrize(
    "bad, words",
    [
        (None, "NULL instead of an array"),
        (wire(np.empty(0)), "empty"),
        (wire([1.0]), "different dimensions"),
        (wire([[1.0, 2], [3, 4]]), "different dimensions"),
        (wire([1.0, None, 3, 4]), "NULL element"),
    ],
)
def test_bad_arrays_are_named(bad, words):
    with pytest.raises(MopError, match=words) as caught:
        binary.read([wire([1.0, 2, 3, 4]), bad], (4,), "real", "my x")
    assert "my x" in str(caught.value)


def test_same_length_but_other_shape_is_noticed():
    with pytest.raises(MopError, match="different dimensions"):
        binary.read([wire(np.ones((2, 3))), wire(np.ones((3, 2)))], (2, 3), "real", "x")


def test_one_hot_puts_one_1_per_row():
    assert binary.one_hot(np.array([2, 0]), 4).tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]


def test_buffers_carry_rows_over_chunk_borders():
    x, y = np.arange(34, dtype="<f4").reshape(17, 2), np.arange(17, dtype="<i2").reshape(17, 1)
    gathered, got = buffers.Buffers(5, 2), []
    for start, end in ((0, 3), (3, 4), (4, 16), (16, 17)):
        got += gathered.add([x[start:end], y[start:end]])
    got.append(gathered.take())
    assert [rows for rows, _ in got] == [5, 5, 5, 2]
    assert b"".join(values[0] for _, values in got) == x.tobytes()
    assert b"".join(values[1] for _, values in got) == y.tobytes()


@pytest.mark.parametrize("constant", [None, 1.0, 1.0 + 5e-7])
def test_constant_of_one_or_null_scales_nothing(constant):
    assert binary.reciprocal(constant) is None


def test_scaling_multiplies_by_the_float32_reciprocal():
    assert binary.reciprocal(255.0) == np.float32(1 / 255)


@pytest.mark.parametrize("constant", [0.0, -1.0, float("nan"), float("inf")])
def test_constant_must_be_positive(constant):
    with pytest.raises(MopError, match="normalizing constant must be positive or NULL"):
        binary.reciprocal(constant)


def test_overflow_of_scaling_is_an_error_but_infinity_passes():
    with pytest.raises(MopError, match="out of range"):
        binary.scale(np.array([[3e38]], "f4"), binary.reciprocal(0.01), "x")
    assert np.isinf(binary.scale(np.array([[np.inf]], "f4"), binary.reciprocal(0.01), "x")).all()


def test_partition_names_fit_63_bytes_and_stay_unique():
    long = "ä" * 30
    names = {partition_name(t, k, 1000) for t in (long + "a", long + "b", "t") for k in range(1000)}
    assert len(names) == 3000 and max(len(n.encode()) for n in names) <= 63
    assert partition_name("t", 3, 4) == "t_segment_3"


def test_bytes_and_lists_round_trip():
    assert buffers.to_bytes([[1.0, 2.0]], "real") == np.array([1, 2], "<f4").tobytes()
    assert buffers.from_bytes(buffers.to_bytes([1, -2], "smallint"), "smallint") == [1, -2]
    for bad in ([None, 1.0], [None]):
        with pytest.raises(MopError, match="NULL element"):
            buffers.to_bytes(bad, "real")
    with pytest.raises(MopError, match="no whole number"):
        buffers.from_bytes(b"abc", "real")


def test_chunks_come_in_pieces_by_what_their_ids_weigh():
    ids = ["x" * 1_000_000] * 5 + [None, "y"]
    chunk = [ids, *([list(range(7))] * 4)]
    pieces = list(in_pieces([chunk, [["z"], ["n"], ["v"], [1.0], [1]]]))
    assert [[len(column) for column in piece] for piece in pieces] == [[3] * 5, [4] * 5, [1] * 5]
    assert [i for piece in pieces[:2] for i in piece[0]] == ids
