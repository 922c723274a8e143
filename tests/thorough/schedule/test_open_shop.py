"""Plans of open shops in many disturbed runs: tests/unit/test_open_shop.py has ten."""

import pytest

from support.simulated import assert_nobody_is_idle_for_ever


@pytest.mark.parametrize("name", ["monte-carlo", "vector-rearrangement"])
def test_whatever_happens_a_plan_leaves_nobody_idle_for_ever(name):
    assert_nobody_is_idle_for_ever(name, range(100))
