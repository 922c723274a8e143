"""pg_mop.deadline: which texts may mean a time as well as an interval."""

import pytest

from pg_mop.call.deadline import is_ambiguous


@pytest.mark.parametrize(
    "text", ["17:00", "17:00:30", "2030", "1", "-1", "0.5", "1e3", " 12 ", "1 12:00", "10-12", "20301201"]
)
def test_numbers_without_a_unit_or_a_date_are_ambiguous(text):
    assert is_ambiguous(text)


@pytest.mark.parametrize(
    "text",
    ["2030-12-01 08:00", "2030-12-01T08:00:00Z", "2030-12-01 08:00+01", "01.12.2030 08:00", "12/01/2030", "tomorrow 08:00"]
    + ["2 hours", "0.2 s", "1 day 02:00", "P1D", "-2 hours", "17h", "infinity", "soon", " "],
)  # fmt: skip
def test_dates_and_intervals_with_units_are_not(text):
    assert not is_ambiguous(text)
