"""What the live page shows of some configurations while their own pictures are being read, and what differs between runs."""

import math

import pytest

from pg_mop_client import comparing, viewing


def run(**more):
    return {
        "curves": {"1": {"training loss": [[1, 0.5]]}, "2": {"training loss": [[1, 0.4]]}},
        "times": {"1": [[1, 0.2]], "2": [[1, 0.3]]},
        "bars": [
            [0, 0.0, 1.0, "train", [1, 2], 0, 4, 1],  # a unit batch: two units of each
            [1, 0.0, 1.0, "train", [2], 1, 1, 1],
            [1, 1.0, 2.0, "evaluate", [3], 0, 1, 1],
        ],
        "merged_bars": False,
        "stages": [
            {"parent": None, "first": 1, "last": 1, "keys": [1, 2, 3], "y": 1.0},
            {"parent": 0, "first": 2, "last": 3, "keys": [1], "y": 0},
            {"parent": 0, "first": 2, "last": 2, "keys": [2, 3], "y": 1.5},
            {"parent": 2, "first": 3, "last": 3, "keys": [3], "y": 2},
        ],
        "failed_units": [{"mst_key": 1}, {"mst_key": 3}],
        "sampled": {},
        **more,
    }


def test_pictures_of_some_configurations_are_taken_from_those_of_all():
    found = viewing.narrowed(run(), [{"mst_key": 2}, {"mst_key": 3}])
    assert set(found["curves"]) == set(found["times"]) == {"2"} and found["failed_units"] == [{"mst_key": 3}]
    assert [(bar[4], bar[6]) for bar in found["bars"]] == [([2], 2), ([2], 1), ([3], 1)]
    assert [(node["keys"], node["parent"]) for node in found["stages"]] == [([2, 3], None), ([2, 3], 0), ([3], 1)]
    assert [node["y"] for node in found["stages"]] == [0, 1, 2]  # without gaps
    everything = viewing.narrowed(run(), [{"mst_key": key} for key in (1, 2, 3)])
    assert everything["bars"] == run()["bars"] and [n["keys"] for n in everything["stages"]] == [
        n["keys"] for n in run()["stages"]
    ]
    nothing = viewing.narrowed(run(), [])
    assert nothing["curves"] == {} and nothing["bars"] == nothing["stages"] == nothing["failed_units"] == []


def test_slices_of_the_time_stay_as_they_are():
    slices = [[0, 0.0, 1.0, "train", [], 0, 9, 0.3]]
    assert viewing.narrowed(run(merged_bars=True, bars=slices), [{"mst_key": 1}])["bars"] == slices


def compared(best, **facts):
    return {
        "run": {"seconds": 2.5, "function": "f", "source_table": "t", **facts},
        "arguments": {"use_gpus": False, "num_iterations": facts.get("num_iterations")},
        "settings": {"seed": facts.get("seed"), "kernel": "auto"},
        "summary": None
        if best is None
        else {"failed": 1, "best": {"value": best, "series": "training auc", "mst_key": 4}},
    }


def test_what_differs_between_runs_comes_once():
    rows = comparing.differences([compared(0.5, num_iterations=3, seed=1), compared(None, num_iterations=9, seed=1)])
    assert rows == [
        ["best", "0.5 training auc, configuration 4", None],
        ["seconds", 2.5, 2.5],
        ["failed", 1, None],
        ["num_iterations", "3", "9"],
    ]
    assert comparing.differences([compared(0.5, seed=1), compared(0.5, seed=2)])[3:] == [["pg_mop.seed", "1", "2"]]


def test_a_comparison_tells_how_far_the_predictions_were_off():
    def told(status, makespan, prediction, **more):
        return {**compared(0.5, status=status, predicted_seconds=prediction), "makespan": makespan, **more}

    runs = [
        told("finished", 12.0, 10.0),
        told("finished", 7.5, 10.0),
        told("running", 7.5, 10.0),
        told("finished", 7.5, None),
        told("finished", 0.0, 10.0),
        told("finished", 3612.0, 10.0, paused_seconds=3600.0),
        told("finished", 3612.0, 10.0, paused_seconds=None),
    ]
    rows = {row[0]: row[1:] for row in comparing.differences(runs)}
    assert list(rows)[:4] == ["best", "seconds", "failed", "predicted seconds of training"]
    assert rows["predicted seconds of training"] == [10.0, 10.0, 10.0, None, 10.0, 10.0, 10.0]
    assert rows["longer (+) or shorter (-) than predicted"] == ["+20 %", "-25 %", None, None, None, "+20 %", None]


def test_a_comparison_has_the_distribution_of_each_run():
    def told(run_id, values, iterations=3):
        rows = [
            {"iterations": iterations, "status": "finished", "last": {} if v is None else {"training auc": v}}
            for v in values
        ]
        return {"run": {"run_id": run_id}, "configurations": rows}

    runs = [told(7, [0.1, 0.9, None, 0.5]), told(8, [0.2])]
    for goal, values in (("max", [0.9, 0.5, 0.1]), ("min", [0.1, 0.5, 0.9])):
        found = comparing.distributions(runs, {"series": "training auc", "goal": goal})
        assert found == [["run 7", values], ["run 8", [0.2]]]


def test_configurations_beyond_the_drawn_ones_are_small_marks():
    rows = [
        {"mst_key": k, "status": status, "parameters": {"rate": k}, "last": last}
        for k, (status, last) in enumerate(
            [("finished", {"training auc": 0.5}), ("failed", {"training auc": 0.1}), ("waiting", {})], 1
        )
    ]
    data = {"varied": ["rate", "kind"], "measure": {"series": "training auc", "goal": "max"}}
    assert viewing.others(data, rows) == [[0.5, 1, None]]
    many = [{**rows[0], "mst_key": k} for k in range(3 * viewing.MOST_OTHERS)]
    assert len(viewing.others(data, many)) == viewing.MOST_OTHERS


def test_results_of_the_most_iterations_are_comparable():
    def made(iterations, value=0.5, status="stopped"):
        return {"iterations": iterations, "status": status, "last": {} if value is None else {"training auc": value}}

    rows = [made(9), made(3), made(3), made(1), made(1), made(1), made(1, None), made(9, status="failed")]
    assert [len(viewing.comparable(rows, "training auc", least)) for least in (1, 2, 3, 4, 100)] == [1, 3, 3, 6, 6]
    assert viewing.comparable([], "training auc", 1) == []


def test_a_filter_takes_parameters_results_and_seconds():
    rows = [
        {
            "mst_key": k,
            "status": "finished",
            "parameters": {"rate": k / 10, "kind": kind},
            "last": {"training auc": k / 100},
            "seconds": k,
        }
        for k, kind in enumerate(("a", "b", "c", "a"), 1)
    ]
    data = {"configurations": rows, "varied": ["rate", "kind"], "measure": {"series": "training auc", "goal": "max"}}

    def keys(**given):
        return [c["mst_key"] for c in viewing.chosen(data, **given)]

    assert keys(low={"training auc": 0.02}, high={"training seconds": 3}) == [2, 3]
    assert keys(words={"kind": ["a", "c"]}) == [1, 3, 4] and keys(words={"kind": ["no"]}) == []
    assert keys(low={"kind": 1}) == [] == keys(high={"no such": 1})
    assert viewing.choices(data) == {
        "rate": {"low": 0.1, "high": 0.4},
        "kind": {"words": ["a", "b", "c"], "count": 3},
        "training auc": {"low": 0.01, "high": 0.04},
        "training seconds": {"low": 1, "high": 4},
    }


# as Node.js writes String(value)
WORDS = [
    (True, "true"),
    (False, "false"),
    (1.0, "1"),
    (-0.0, "0"),
    (0.1, "0.1"),
    (1e-05, "0.00001"),
    (1.5e-07, "1.5e-7"),
    (1e-06, "0.000001"),
    (1e20, "100000000000000000000"),
    (1.25e21, "1.25e+21"),
    (12345678901234567890, "12345678901234567000"),
    (10**400, "Infinity"),
    (-math.inf, "-Infinity"),
    ("auto", "auto"),
    ([1.0, None, [True, "a"]], "1,,true,a"),
    ({"a": 1}, "[object Object]"),
]


@pytest.mark.parametrize("value,word", WORDS, ids=[str(n) for n in range(len(WORDS))])
def test_words_are_written_as_the_page_writes_them(value, word):
    assert viewing.word(value) == word


@pytest.mark.parametrize(
    "values,words",
    [([True, False], ["false", "true"]), ([1.0, "auto"], ["1", "auto"]), ([math.inf, "auto"], ["Infinity", "auto"])],
)
def test_each_word_of_a_parameter_chooses_its_configurations(values, words):
    rows = [
        {"mst_key": key, "status": "finished", "parameters": {"p": value}, "last": {}, "seconds": 1}
        for key, value in enumerate([*values, None])
    ]
    data = {"configurations": rows, "varied": ["p"], "measure": {"series": "training auc", "goal": "max"}}
    assert viewing.choices(data)["p"] == {"words": words, "count": 2}
    for value, key in zip(values, (0, 1)):
        assert [c["mst_key"] for c in viewing.chosen(data, words={"p": [viewing.word(value)]})] == [key]
    assert viewing.chosen(data, words={"p": ["None", "null"]}) == []
