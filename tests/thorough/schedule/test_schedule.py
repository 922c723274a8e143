"""Schedulers in many simulated runs: tests/unit/test_schedule.py has one case of each of these claims."""

import pytest

from pg_mop.schedule import SCHEDULERS
from support import simulated
from support.conformance import SchedulerConformance, schedulers


class TestSchedulersThoroughly(SchedulerConformance):
    shapes, batches, wanted, stories = schedulers.SHAPES, schedulers.BATCHES, (1, 3, 4, 5, 9), 150


ahead = pytest.mark.parametrize("ahead", [False, True])


@ahead
@pytest.mark.parametrize("configurations,segments,draws", [(12, 2, 20), (12, 4, 20), (30, 8, 4)])
def test_places_are_idle_for_little_more_than_they_must(configurations, segments, draws, ahead):
    simulated.assert_hardly_idle(configurations, segments, ahead, draws)


@ahead
@pytest.mark.parametrize("architectures,each,segments", [(1, 16, 2), (3, 4, 2), (6, 4, 4), (10, 3, 8), (40, 1, 2)])
def test_what_is_compiled_is_used_again_and_the_run_takes_no_longer(architectures, each, segments, ahead):
    simulated.assert_compiled_is_used_again(architectures, each, segments, ahead, draws=6)


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("name", [name for name, kind in SCHEDULERS.items() if kind.ANYWHERE])
@pytest.mark.parametrize("models,each,segments", [(2, 8, 2), (8, 2, 4), (12, 1, 3), (1, 6, 2), (3, 5, 4)])
def test_where_any_place_does_all_segments_most_is_compiled_in_one(models, each, segments, name, groups):
    simulated.assert_compiled_in_one(name, groups, models, each, segments, draws=6)


@pytest.mark.parametrize("ahead,everywhere", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("configurations,segments,workers", [(5, 3, 3), (2, 3, 3), (7, 2, 2), (4, 3, 6), (3, 2, 4)])
def test_every_visit_order_is_equally_likely(configurations, segments, workers, ahead, everywhere):
    simulated.assert_orders_are_equally_likely(configurations, segments, workers, ahead, everywhere, draws=400)


@ahead
@pytest.mark.parametrize("kind", ["tenfold", "hundredfold", "two sizes", "one large"])
def test_at_random_takes_as_long_as_the_longest_first(kind, ahead):
    shapes = [(16, 2, 8), (12, 4, 4), (30, 8, 4), (24, 8, 6)]
    simulated.assert_as_long_as_longest_first(kind, ahead, shapes, draws=4)
