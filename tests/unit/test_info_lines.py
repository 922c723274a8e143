"""The lines that a long call tells of an iteration."""

import pytest

from pg_mop.run import metrics
from pg_mop.run.messages import listed

NAMED = "mst_key={}: ".format


def rows(count, dataset="training", name="accuracy"):
    """Of so many configurations: of less loss, and of less accuracy, with a greater key."""
    return [
        {
            "mst_key": key,
            "stage": key,
            "dataset": dataset,
            "took": 0.5,
            "loss": 1 / key,
            "metric": 1 - key / 1000,
            "metrics": {name: 1 - key / 1000},
        }
        for key in range(1, count + 1)
    ]


def test_few_configurations_have_a_line_each_with_metrics_by_name_to_four_digits():
    told = metrics.lines(1, 2, 3.0, rows(8) + rows(8, "validation"), NAMED, 8, {7: "no"}, 60.0).splitlines()
    assert told[0] == "iteration 1 of 2: trained in 3.000 s, evaluated in 8.000 s"
    assert told[3] == "  mst_key=3: accuracy=0.997, loss=0.3333; validation accuracy=0.997, loss=0.3333"
    assert len(told) == 9


def test_of_many_configurations_the_best_five_are_told_and_by_what():
    failed = {8: "its loss is NaN\nafter a step", 900: "another"}
    told = metrics.lines(3, 9, 3.0, rows(500) + rows(500, "validation"), NAMED, 502, failed, 400.0).splitlines()
    assert told[:2] == [
        "iteration 3 of 9: trained in 3.000 s, evaluated in 500.000 s, about 7 min left",
        "the best 5 of 500 configurations by validation accuracy:",
    ]
    assert [line.split(":")[0] for line in told[2:7]] == [f"  mst_key={k}" for k in range(1, 6)]
    assert told[7:] == ["2 of 502 configurations failed, mst_key=8: its loss is NaN after a step"]


@pytest.mark.parametrize("count", [1, 8, 9, 10, 11, 100])
def test_an_iteration_has_at_most_ten_lines(count):
    assert (
        len(
            metrics.lines(1, 1, 3.0, rows(count) + rows(count, "validation"), NAMED, count, {1: "no"}, 9.0).splitlines()
        )
        <= 10
    )


@pytest.mark.parametrize("name", ["my_own", None])
def test_where_nobody_knows_whether_more_of_a_metric_is_better_the_loss_decides(name):
    asked = rows(20, name=name)
    if name is None:
        asked = [{**row, "metric": None, "metrics": {}} for row in asked]
    told = metrics.lines(1, 1, 3.0, asked, NAMED, 20).splitlines()
    assert told[1] == "the best 5 of 20 configurations by training loss:" and told[2].startswith("  mst_key=20: ")


def test_configurations_of_several_metrics_are_compared_by_their_loss():
    mixed = rows(20) + rows(20, name="mae")
    assert metrics.best(mixed)[1] == "loss"


def test_a_metric_of_which_less_is_better_is_ranked_so():
    found, by = metrics.best(rows(20, name="mae"))
    assert by == "mae" and [row["mst_key"] for row in found] == [20, 19, 18, 17, 16]


def test_iterations_without_metrics_tell_of_time_and_failures():
    told = metrics.lines(1, 2, 3.0, [], NAMED, 20, {2: "x" * 1000}, 42.0).splitlines()
    assert told[0] == "iteration 1 of 2: trained in 3.000 s, about 42 s left"
    assert told[1].endswith("x...") and len(told[1]) < 300 and len(told) == 2


def test_times_are_as_people_read_them():
    assert [metrics.duration(s) for s in (0.4, 89, 150, 5400, 90000)] == [
        "0 s",
        "89 s",
        "2 min",
        "1 h 30 min",
        "25 h 0 min",
    ]


def test_of_many_failures_the_first_are_listed():
    assert listed(dict.fromkeys(range(1, 101), "no"), 5).splitlines() == [
        *(f"mst_key {k}: no" for k in range(1, 6)),
        "and 95 more",
    ]
    assert listed({2: "b", 1: "a"}, 2) == listed({2: "b", 1: "a"}) == "mst_key 1: a\nmst_key 2: b"
