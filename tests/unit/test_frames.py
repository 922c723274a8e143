"""Frames: what runs by `safely` sees the frames that are there, and Python is as before after it."""

import traceback

import pytest

from pg_mop import frames

pytestmark = pytest.mark.skipif(not frames._is_known(),
                                reason="not run: this Python has no such structure, or not one that is known")


def names():
    return [line.name for line in traceback.extract_stack()]


def outer(count):
    return frames.safely(outer, count - 1) if count else frames.safely(names)


def test_the_frames_are_those_that_are_there():
    here = names()[:-1]
    assert outer(50) == [*here, *["outer", "safely"] * 51, "names"]
    assert names()[:-1] == here


def test_what_is_raised_goes_through():
    for _ in range(1000):
        with pytest.raises(ValueError):
            frames.safely(int, "x")
    assert frames._is_known()


def test_generators():
    made = frames.safely(lambda: (frames.safely(n.__add__, 1) for n in (1, 2)))
    assert [frames.safely(next, made), frames.safely(next, made)] == [2, 3]
    with pytest.raises(StopIteration):
        frames.safely(next, made)
