"""What the configurations of a run tell together."""

import random

import pytest

from pg_mop.report.spread import BINS, ENOUGH, MOST_VALUES, comparable, explained, spread

MEASURE = {"series": "validation accuracy", "goal": "max"}


def made(value, iterations=9, status="finished", **parameters):
    last = {} if value is None else {"validation accuracy": value, "validation loss": 1 - value}
    return {"parameters": parameters, "last": last, "iterations": iterations, "status": status}


def test_results_of_the_most_iterations_are_compared_where_there_are_enough():
    rows = [made(0.5, 27), *(made(0.4, 9) for _ in range(ENOUGH)), *(made(0.3, 1) for _ in range(50))]
    assert {c["iterations"] for c in comparable(rows, MEASURE["series"])} == {9, 27}
    few = rows[: ENOUGH - 2]
    assert comparable(few, MEASURE["series"]) == few
    assert comparable([made(None), made(0.5, status="failed")], MEASURE["series"]) == []


def test_what_decides_explains_all_and_what_does_not_explains_nothing():
    chance = random.Random(3)
    rates = [chance.random() for _ in range(400)]
    assert explained(rates, rates) > 0.9
    assert explained(rates, [chance.random() for _ in rates]) < 0.05
    assert explained(["a", "b"] * 200, [0.0, 1.0] * 200) == pytest.approx(1)
    assert explained([1] * 400, rates) == 0 == explained([], []) == explained([1, 2], [3, 3])


def test_omega_squared_by_hand():
    # groups 1, 2, 3 and 4, 5, 6: between 13.5, within 4 / 4 = 1, whole 17.5: (13.5 - 1) / (17.5 + 1)
    assert explained(["a"] * 3 + ["b"] * 3, [1, 2, 3, 4, 5, 6]) == pytest.approx(12.5 / 18.5)


def test_equal_numbers_are_in_one_class():
    xs = [1.0] * 90 + [2.0, 3.0, 4.0, 5.0, 6.0]
    assert len(set(xs)) > BINS
    # (the 90 equal ones would else be in four classes, and their differences count as between)
    ys = [float(i % 2) for i in range(90)] + [0.5] * 5
    assert explained(xs, ys) == 0


def test_a_search_that_stops_early_is_told_by_its_highest_rung():
    rows = [made(0.1 * i, 1, rate=i, kind="x") for i in range(1, 6)] + [
        made(0.05 * i, 9, rate=i, kind="y") for i in range(1, 17)
    ]
    found = spread(rows, ["rate", "kind"], MEASURE)
    assert (found["of"], found["iterations"]) == (16, 9)
    assert found["parts"]["rate"] > 0.8 and found["parts"]["kind"] == 0
    assert found["values"] == sorted(found["values"], reverse=True) and found["values"][0] == 0.8
    assert found["goals"] == {"validation accuracy": "max", "validation loss": "min"}


def test_few_results_explain_nothing_and_many_are_thinned():
    few = spread([made(0.5, rate=1), made(0.6, rate=2)], ["rate"], MEASURE)
    assert few["parts"] is None and few["of"] == 2 and few["values"] == [0.6, 0.5]
    many = spread([made(i / 1000, rate=i) for i in range(1000)], ["rate"], MEASURE)
    assert len(many["values"]) == MOST_VALUES and many["values"][0] == 0.999 and many["values"][-1] == 0
    assert spread([], [], MEASURE) == {
        "of": 0,
        "iterations": 0,
        "parts": None,
        "values": [],
        "goals": {"validation accuracy": "max"},
    }
