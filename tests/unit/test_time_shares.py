"""The division of a call's time limit among its steps."""

import pytest

from pg_mop.api.tables.time_shares import (
    BASELINES,
    ENSEMBLE,
    LEAST_SECONDS,
    MEASURE,
    NETS,
    OTHERS,
    PREPARE,
    SHARES,
    TimeShares,
)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_steps_that_take_their_parts_fill_the_limit(clock):
    shares = {step: share for step, share in SHARES.items() if share}
    times = TimeShares(60, shares, clock)
    for step, share in shares.items():
        seconds = times.begin(step)
        assert seconds == pytest.approx(60 * share / sum(shares.values()))
        clock.now += seconds
    times.end()
    assert times.left == pytest.approx(0) and sum(times.seconds.values()) == pytest.approx(60)


def test_what_a_step_leaves_goes_to_all_later_ones(clock):
    times = TimeShares(60, (PREPARE, OTHERS, NETS, MEASURE), clock)
    times.begin(PREPARE)
    clock.now += 1
    assert times.begin(OTHERS) == pytest.approx(59 * SHARES[OTHERS] / (SHARES[OTHERS] + SHARES[NETS] + SHARES[MEASURE]))
    clock.now += 2
    assert times.begin(NETS) == pytest.approx(57 * SHARES[NETS] / (SHARES[NETS] + SHARES[MEASURE]))


def test_a_step_that_overran_takes_from_the_later_ones_and_they_get_the_least(clock):
    times = TimeShares(10, SHARES, clock)
    times.begin(PREPARE)
    clock.now += 8
    assert times.part(NETS) < 2
    clock.now += 3
    assert times.begin(OTHERS) == times.begin(MEASURE) == LEAST_SECONDS and times.left == -1


def test_a_step_leaves_what_a_later_one_needs(clock):
    times = TimeShares(10, (NETS, ENSEMBLE, MEASURE), clock)
    times.need(MEASURE, 4)
    assert times.begin(NETS) == pytest.approx(6)
    clock.now += 7
    assert times.begin(ENSEMBLE) == LEAST_SECONDS
    assert times.begin(MEASURE) == 3


def test_what_does_not_fit_is_noted(clock):
    times = TimeShares(10, (PREPARE, BASELINES), clock)
    assert times.allows("copies", 10)
    clock.now += 9
    assert not times.allows("simple models", 2) and times.left_out == ["simple models"]


def test_the_share_of_a_step_that_does_not_come_is_its_heirs(clock):
    times = TimeShares(100, [PREPARE, OTHERS, NETS, MEASURE], clock)
    before = times.planned(OTHERS) + times.planned(NETS)
    times.leave_out(NETS, OTHERS)
    assert times.planned(OTHERS) == pytest.approx(before) and times.left_out == [NETS]
