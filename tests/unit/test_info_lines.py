"""The lines that a long call tells of an iteration."""

import pytest

from pg_mop.call import metrics
from pg_mop.run.messages import listed
from support.golden import assert_golden

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


@pytest.mark.parametrize("count", [1, 8, 9, 10, 11, 100])
def test_an_iteration_has_at_most_ten_lines(count):
    assert (
        len(
            metrics.lines(1, 1, 3.0, rows(count) + rows(count, "validation"), NAMED, count, {1: "no"}, 9.0).splitlines()
        )
        <= 10
    )


def test_info_lines():
    """Of few configurations; of many, some of which failed; of an iteration without metrics; and lists of failures."""
    failed = {8: "its loss is NaN\nafter a step", 900: "another"}
    texts = [
        metrics.lines(1, 2, 3.0, rows(8) + rows(8, "validation"), NAMED, 8, {7: "no"}, 60.0),
        metrics.lines(3, 9, 3.0, rows(500) + rows(500, "validation"), NAMED, 502, failed, 400.0),
        metrics.lines(1, 2, 3.0, [], NAMED, 20, {2: "x" * 1000}, 42.0),
        " ".join(metrics.duration(s) for s in (0.4, 89, 150, 5400, 90000)),
        listed({3: "c", 2: "b", 1: "a"}, 2),
    ]
    assert_golden("info_lines", "\n\n".join(texts))


@pytest.mark.parametrize(
    "judged, by, keys",
    [
        (rows(20), "accuracy", [1, 2, 3, 4, 5]),
        (rows(20, name="mae"), "mae", [20, 19, 18, 17, 16]),
        (rows(20) + rows(20, name="mae"), "loss", None),
        (rows(20, name="my_own"), "loss", [20, 19, 18, 17, 16]),  # nobody knows whether more of it is better
        ([{**row, "metrics": {}} for row in rows(20)], "loss", [20, 19, 18, 17, 16]),
    ],
)
def test_the_best_configurations_by_the_metric_that_all_have(judged, by, keys):
    found, name = metrics.best(judged)
    assert name == by and keys in (None, [row["mst_key"] for row in found])
