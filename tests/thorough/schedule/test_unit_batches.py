"""Unit batches and chains in many simulated runs: tests/unit/test_unit_batches.py has a case of each of these claims."""

import pytest

from support import simulated

name = pytest.mark.parametrize("name", ["randomized", "longest-first"])


@name
@pytest.mark.parametrize("configurations,workers", [(8, 2), (16, 4), (40, 3), (100, 8)])
def test_no_place_is_idle_for_the_sake_of_groups(name, configurations, workers):
    simulated.assert_not_idle_for_batches(name, configurations, workers, draws=5)


@pytest.mark.parametrize("chained", [0.0, 0.5])
@pytest.mark.parametrize("segments", [2, 3])
def test_every_visit_order_is_equally_likely_in_batches_and_chains(segments, chained):
    simulated.assert_orders_in_batches_are_equally_likely(segments, chained, draws=40)


@name
@pytest.mark.parametrize("configurations,workers", [(1, 2), (2, 2), (4, 2), (5, 2), (16, 2), (16, 4), (40, 3)])
def test_chains_make_a_run_shorter_and_leave_no_worker_idle(name, configurations, workers):
    simulated.assert_chains_pay(name, configurations, workers, draws=5)
