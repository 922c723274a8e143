"""pg_mop.backend.frames: Python is as before after what has run by `safely`."""

import functools
import traceback

import pytest

from pg_mop.backend import frames

pytestmark = pytest.mark.skipif(
    not frames._is_known(), reason="not run: this Python has no such structure, or not one that is known"
)


def names():
    return [line.name for line in traceback.extract_stack()]


def outer(count):
    inner = frames.safely(functools.partial(outer, count - 1)) if count else frames.safely(functools.partial(names))
    return [names()[-2], *inner]


def test_what_runs_has_no_frame_before_it_and_who_called_has_its_own():
    here = names()[:-1]
    assert outer(20) == ["outer"] * 21 + ["names"]
    assert names()[:-1] == here


def test_what_is_raised_goes_through():
    for _ in range(1000):
        with pytest.raises(ValueError):
            frames.safely(int, "x")
    assert frames._is_known()


def test_generators():
    made = (frames.safely(n.__add__, 1) for n in (1, 2))
    assert [frames.safely(next, made), frames.safely(next, made)] == [2, 3]
    with pytest.raises(StopIteration):
        frames.safely(next, made)
