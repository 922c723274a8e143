"""What an idle trainer does between two leases."""

import os
import threading

from mop_udf.pool import lease


def test_work_ahead_goes_on_until_nothing_is_left_and_keeps_the_priority(monkeypatch):
    """Threads inherit the priority: a framework's threads, made in the work, serve all later leases."""
    monkeypatch.setattr(lease, "has_free_core", lambda: True)
    monkeypatch.setattr(lease, "REST_SECONDS", 0)
    found, done = [], threading.Event()

    def work():
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        if len(found) == 3:
            done.set()
        return len(found) < 3

    with lease._in_background(work):
        assert done.wait(120)
    assert found == [os.getpriority(os.PRIO_PROCESS, os.getpid())] * 3


def test_work_ahead_waits_for_a_free_core(monkeypatch):
    free, looked, done = [False], threading.Event(), threading.Event()

    def has_free_core():
        looked.set()
        return free[0]

    monkeypatch.setattr(lease, "has_free_core", has_free_core)
    monkeypatch.setattr(lease, "REST_SECONDS", 0)
    with lease._in_background(lambda: done.set()):
        assert looked.wait(120) and not done.wait(3 * lease.LOOK_SECONDS)
        free[0] = True
        assert done.wait(120)


def test_a_lease_that_follows_at_once_finds_no_work_under_way(monkeypatch):
    monkeypatch.setattr(lease, "REST_SECONDS", 600)
    worked = []
    with lease._in_background(lambda: worked.append(True)):
        pass
    assert not worked


def test_a_core_is_free_or_not():
    assert lease.has_free_core() in (True, False)
