"""Model states and mini-batches as bytes and arrays: no server, no Keras."""

import numpy as np
import pytest

from mop_udf import data, state

GROUPS = {
    "weights": [np.ones((2, 3), "f4"), np.float32(0.5).reshape(())],
    "seeds": [np.array([7, 8], "u4")],
    "optimizer": [np.array(12, "i8"), np.zeros((0,), "f4"), np.full((4,), np.nan, "f4")],
}


def packed():
    return b"".join(bytes(b) for b in state.pack(GROUPS))


def test_a_state_comes_back_bit_for_bit():
    back = state.unpack(packed())
    for name, arrays in GROUPS.items():
        assert [a.dtype for a in back[name]] == [a.dtype for a in arrays]
        assert [a.tobytes() for a in back[name]] == [a.tobytes() for a in arrays]
        assert [a.shape for a in back[name]] == [a.shape for a in arrays]


def test_short_floats_come_back_bit_for_bit():
    import ml_dtypes

    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16):
        arrays = [np.array([0.5, -3, 0], dtype), np.array(2, dtype)]
        data = b"".join(bytes(b) for b in state.pack({**GROUPS, "weights": arrays}))
        back = state.unpack(data)["weights"]
        assert [(a.dtype, a.tobytes(), a.shape) for a in back] == [(a.dtype, a.tobytes(), a.shape) for a in arrays]
        assert state.weights_to_bytes(back) == np.array([0.5, -3, 0, 2], "<f4").tobytes()
        mean = state.average([[np.array([1, 3], dtype)], [np.array([3, 3], dtype)]], [1, 1])[0]
        assert mean.dtype == dtype and mean.tolist() == [2, 3]


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b"",
        lambda b: b[:5],
        lambda b: b[:-1],
        lambda b: b + b"x",
        lambda b: b"X" + b[1:],
        lambda b: b[:7] + b"\x63" + b[8:],
        lambda b: b[:12] + b"]" + b[13:],
        lambda b: b.replace(b'"<f4"', b'"|O4"', 1),
    ],
)
def test_damaged_states_are_refused(damage):
    with pytest.raises(state.StateError):
        state.unpack(damage(packed()))


def test_user_visible_weights_are_plain_float32():
    assert state.weights_to_bytes([np.ones((2,), "f8")]) == bytes.fromhex("0000803f0000803f")
    first, second = state.weights_from_bytes(bytes.fromhex("0000803f0000803f"), [(1,), (1, 1)])
    assert first.tolist() == [1.0] and second.tolist() == [[1.0]]
    with pytest.raises(state.StateError, match="2 elements, the architecture needs 3"):
        state.weights_from_bytes(bytes(8), [(3,)])


@pytest.mark.parametrize("sizes", [[10], [3, 3, 4], [1] * 10, [7, 3], [4, 4, 2]])
@pytest.mark.parametrize("batch", [1, 3, 4, 10, 32])
def test_mini_batches_do_not_depend_on_the_buffers(sizes, batch):
    rows, chunks = np.arange(10), []
    for size in sizes:
        chunks.append((rows[:size], rows[:size] * 2))
        rows = rows[size:]
    found = [b[0].tolist() for b in data.batches(chunks, batch)]
    assert found == [list(range(s, min(s + batch, 10))) for s in range(0, 10, batch)]
    assert all((b[1] == b[0] * 2).all() for b in data.batches(chunks, batch))


@pytest.mark.parametrize("least", [1, 2, 100])
@pytest.mark.parametrize("sizes", [[10], [3, 3, 4], [1] * 10, [7, 3], [4, 4, 2]])
def test_pieces_are_whole_batches_but_the_last(sizes, least):
    rows, chunks = np.arange(10), []
    for size in sizes:
        chunks.append((rows[:size], rows[:size] * 2))
        rows = rows[size:]
    pieces = list(data.whole_batches(iter(chunks), 3, least))
    assert all(len(a) % 3 == 0 and len(a) >= 3 * least for a, _ in pieces[:-1])
    assert np.concatenate([a for a, _ in pieces]).tolist() == list(range(10))
    assert all((b == a * 2).all() for a, b in pieces)


def test_pieces_are_bounded_in_bytes_and_large_chunks_are_not_copied():
    chunk = (np.zeros((100, 1000), "f4"),)  # 400 kB
    pieces = list(data.whole_batches([chunk] * 50, 8, least=1000, enough=4_000_000))
    assert sum(len(p[0]) for p in pieces) == 5000 and max(p[0].nbytes for p in pieces) <= 4_800_000
    pieces = list(data.whole_batches([chunk] * 5, 8, enough=100_000))
    assert sum(np.shares_memory(p[0], chunk[0]) for p in pieces) >= 5 and sum(len(p[0]) for p in pieces) == 500
    pieces = list(data.whole_batches([chunk] * 5, 250, enough=100_000))
    assert [len(p[0]) for p in pieces] == [250, 250]


def test_the_cache_gives_room_by_dropping_what_the_run_does_not_need():
    cache = data.Cache(100)
    cache.segments = {"old": data.Segment((np.zeros(60, "i1"),)), "mine": data.Segment((np.zeros(40, "i1"),))}
    assert not cache.make_capacity(101, [])
    assert not cache.make_capacity(61, ["mine", "old"])
    assert cache.make_capacity(60, ["mine"]) and list(cache.segments) == ["mine"]


def test_a_permutation_keeps_every_row_with_its_label():
    rows = np.arange(50), np.arange(50) * 3
    x, y = data.permuted(rows, True, 8, 64, np.random.default_rng([1, 2]))
    assert sorted(x) == list(range(50)) and (y == x * 3).all() and list(x) != list(range(50))
    x, _ = data.permuted(rows, "batch", 8, 64, np.random.default_rng([1, 2]))
    assert sorted(x) == list(range(50)) and (np.diff(x[:2]) == 1).all()


@pytest.mark.parametrize("how", [True, "batch"])
@pytest.mark.parametrize("cuts", [[], [7], [16, 17, 40], [3, 49]])
def test_rows_that_are_read_anew_come_in_the_order_of_rows_in_memory(how, cuts):
    rows = np.arange(50), np.arange(50) * 3
    chunks = [(a, b) for a, b in zip(np.split(rows[0], cuts), np.split(rows[1], cuts))]
    whole = data.permuted(rows, how, 4, 16, np.random.default_rng(5))
    pieces = list(data.permuted_stream(chunks, how, 4, 16, np.random.default_rng(5)))
    assert [len(x) for x, _ in pieces] == [16, 16, 16, 2]
    assert [np.concatenate(own).tolist() for own in zip(*pieces)] == [own.tolist() for own in whole]
    assert all(sorted(x) == list(range(16 * k, 16 * k + len(x))) for k, (x, _) in enumerate(pieces))
    assert any(list(x) != sorted(x) for x, _ in pieces)


def test_a_block_that_is_shuffled_is_whole_batches_of_64_mb():
    assert data.shuffle_block(100 << 20, 100, 8) == 64
    assert data.shuffle_block(100 << 20, 100, 7) == 63
    assert data.shuffle_block(100 << 30, 100, 8) == 8
    assert data.shuffle_block(1000, 100, 32) > 100


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_parts_hold_all_bytes_in_order(size):
    buffers = [b"abcde", b"", np.arange(6, dtype="u1"), b"x"]
    parts = [b"".join(map(bytes, part)) for part in state.parts(buffers, size)]
    assert b"".join(parts) == b"abcde\0\1\2\3\4\5x"
    assert all(len(p) == size for p in parts[:-1]) and 0 < len(parts[-1]) <= size
