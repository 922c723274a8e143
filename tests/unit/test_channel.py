"""The framed pipe: payloads that nobody read are never taken for frames."""

import json
import os
import struct
import threading

import numpy as np
import pytest

from mop_udf import data
from mop_udf.pool.channel import Channel, ChannelClosed


def frame(header, *payloads):
    text = json.dumps({**header, "sizes": [len(p) for p in payloads]}).encode()
    return struct.pack("<I", len(text)) + text + b"".join(payloads)


@pytest.fixture
def pipe():
    there, back = os.pipe(), os.pipe()
    yield there[1], Channel(there[0], back[1])
    for end in (*there, *back):
        try:
            os.close(end)
        except OSError:
            pass


def test_what_was_not_read_of_a_frame_is_skipped(pipe):
    write, channel = pipe
    evil = frame({"op": "unit", "objects": ["evil"]}, b"pickle")
    os.write(write, frame({"op": "rows"}, evil, b"second") + frame({"op": "end"}, b"abc") + frame({"op": "last"}))
    assert channel.receive_header()["op"] == "rows"
    begun = bytearray(5)
    channel.receive_into(begun)
    assert bytes(begun) == evil[:5]
    header, payloads = channel.receive()
    assert header["op"] == "end" and payloads == [b"abc"]
    assert channel.receive_header()["op"] == "last"
    os.close(write)
    with pytest.raises(ChannelClosed):
        channel.receive_header()


@pytest.mark.parametrize(
    "shapes,dtypes,size",
    [
        ([[-1, -4]], ["<f4"], 16),
        ([[2]], ["O"], 16),
        ([[4]], ["<f4"], 12),
        ([[]], ["<f4"], 4),
        ([[4]], ["|V4"], 16),
        ([[4], [4]], ["<f4"], 16),
        ([], ["<f4"], 0),
        ([[4]] * 2, ["<f4", "<f4"], 16),
    ],
)
def test_shapes_that_do_not_fit_read_nothing_and_the_next_frame_is_found(pipe, shapes, dtypes, size):
    write, channel = pipe
    os.write(write, frame({"op": "rows", "buffer": 7, "shapes": shapes}, b"\1" * size) + frame({"op": "after"}))
    with pytest.raises(ValueError, match="buffer 7"):
        list(data.receive_rows(channel, dtypes, None))
    assert channel.receive_header()["op"] == "after"


def test_rows_arrive_as_arrays_of_their_shapes(pipe):
    write, channel = pipe
    x, y = np.arange(6, dtype="<f4").reshape(3, 2), np.array([1, 0, 1], "<i2")
    os.write(
        write,
        frame({"op": "rows", "buffer": 1, "shapes": [[3, 2], [3]]}, x.tobytes(), y.tobytes()) + frame({"op": "end"}),
    )
    ((_, (got_x, got_y)),) = data.receive_rows(channel, ["<f4", "<i2"], None)
    assert (got_x == x).all() and (got_y == y).all()


def test_small_frames_wait_for_the_one_that_follows_and_large_ones_for_none(pipe):
    write, channel = pipe
    there, back = os.pipe(), os.pipe()
    sender, receiver = (
        Channel(there[0], back[1], check_interrupts=lambda: None),
        Channel(back[0], there[1], check_interrupts=lambda: None),
    )
    sender.send({"op": "first"}, b"1", more=True)
    sender.send({"op": "second"}, b"", b"22", more=True)
    assert not receiver.wait_readable(0)
    os.write(write, frame({"op": "answer"}))
    sender.send({"op": "third"})
    assert [receiver.receive() for _ in range(3)] == [
        ({"op": "first", "sizes": [1]}, [b"1"]),
        ({"op": "second", "sizes": [0, 2]}, [b"", b"22"]),
        ({"op": "third", "sizes": []}, []),
    ]
    # what an answer is waited for goes out before
    channel.send({"op": "held"}, more=True)
    assert channel.receive_header()["op"] == "answer"
    # a large one takes along what was held
    large = os.urandom(200_000)
    got = []
    reader = threading.Thread(target=lambda: got.extend(receiver.receive(joined=True) for _ in range(3)))
    reader.start()
    for payload in (b"small", large, large[:70_000]):
        sender.send({"op": "rows"}, payload[:1000], payload[1000:], more=True)
    sender._flush()
    reader.join(180)
    assert [payload for _, payload in got] == [b"small", large, large[:70_000]]
    for end in (*there, *back):
        os.close(end)


def test_what_was_read_ahead_is_still_readable_and_then_the_channel_is_closed(pipe):
    write, channel = pipe
    writer = threading.Thread(
        target=lambda: (
            [os.write(write, part) for part in (frame({"op": "one"}, b"x" * 70_000), frame({"op": "two"}, b"y"))]
            and os.close(write)
        )
    )
    writer.start()
    assert channel.receive(joined=True)[1] == b"x" * 70_000
    writer.join()
    assert channel.wait_readable(0) and channel.receive()[1] == [b"y"]
    with pytest.raises(ChannelClosed):
        channel.receive_header()
