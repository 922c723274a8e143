"""Limits of the time that is waited, on a machine that stands still meanwhile."""

import types

from mop_udf.pool import patience


def test_of_a_long_time_between_two_looks_only_a_part_counts(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(patience, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    waits = patience.Patience(4.1)
    for _ in range(10):
        now[0] += 0.2
        assert not waits.over()
    now[0] += 500  # the machine stands still
    assert not waits.over(), "an answer may be on its way"
    for _ in range(6):
        now[0] += 0.2
    assert not waits.over()
    now[0] += 0.2
    assert waits.over()
    assert abs(waits.waited - (10 * 0.2 + 2 * patience.LONGEST + 0.2)) < 1e-6


def test_a_stop_does_not_end_a_short_limit(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(patience, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    waits = patience.Patience(1)
    for seconds in (0.1, 10, 0.1, 500, 0.1):
        now[0] += seconds
        assert not waits.over()
    now[0] += 0.15
    assert not waits.over()
    now[0] += 0.1
    assert waits.over()
