"""What a run's report says of its failures, and what to do next: statements from made-up curves, times and spaces."""

import itertools
import math
import re

import pytest

from pg_mop.report import again, causes, widening
from pg_mop.report.advice import Facts, next_steps, remedy
from pg_mop.report.summary import curve, told
from support.golden import assert_golden

HOSTILE = """'); DROP TABLE x; -- "</script>"""


def made(key, rate, curve=(), status="finished", reason=None, size=8, **more):
    """A configuration of a run; its curve has a value for each iteration."""
    return {
        "mst_key": key,
        "rank": key,
        "model_id": 1,
        "compile_params": f"loss='mse', optimizer='SGD(lr={rate})'",
        "fit_params": f"batch_size={size}",
        "status": status,
        "reason": reason,
        "iterations": len(curve),
        "parameters": {"optimizer": "SGD", "learning_rate": rate, "batch_size": size},
        "curve": [[i, v] for i, v in enumerate(curve, 1)],
        **more,
    }


def facts(configurations, status="finished", function="madlib_keras_fit_multiple_model", **more):
    run = {
        "run_id": 7,
        "status": status,
        "function": function,
        "source_table": "packed",
        "validation_table": None,
        "model_output_table": "models",
        "num_iterations": 9,
    }
    return Facts(
        **{
            "run": run,
            "schema": "madlib",
            "gets": "=>",
            "configurations": configurations,
            "measure": {"series": "training accuracy", "goal": "max"},
            "varied": ["learning_rate", "batch_size"],
            "arguments": {"source_table": "packed"},
            "arch_table": "nets",
            "causes": causes.causes(configurations, ["learning_rate", "batch_size"]),
            **more,
        }
    )


def kinds(given):
    return [step["kind"] for step in next_steps(given)]


def diverged(*keys, **more):
    return [made(k, k, status="failed", reason=f"the loss of unit {k} became NaN", **more) for k in keys]


FLAT = (0.5, 0.9, 0.9, 0.9)
RISING = (0.5, 0.6, 0.7, 0.8)
FALLING = (0.5, 0.4, 0.4, 0.4)
GOOD = [made(k, k / 10, FLAT) for k in (1, 2, 3)]
LOST = made(4, 0.1, status="failed", reason="the connection to server s1 was lost")
LAYER = made(5, 0.1, status="failed", reason="unknown layer 'X'\nwith a second line")
MEMORY = made(6, 0.1, status="failed", reason="out of memory: 9 GB", size=64)
STUCK = [made(1, 0.1, RISING, status="running"), made(2, 0.2, FALLING, status="running")]
SPACE = "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [0.001, 0.1, 'log']}], 'batch_size': [8, 16]}"
SEARCH = {"source_table": "packed", "model_output_table": "models", "space": SPACE, "name": "x", "procedure": "asha"}
SEARCHED = {"function": "mop_search", "arguments": SEARCH}
TRIED = [made(k, 0.1 / k, FLAT) for k in range(1, 7)]
GRID = enumerate(itertools.product((1.0, 0.1, 0.01), (8, 16)), 1)
OFTEN = {"metrics_compute_frequency": 1, "model_output_table": "models"}
GIVEN = {"use_gpus": True, "metrics_compute_frequency": 3, "folds": 4, "name": "x"}
ADVISED = {
    "a run was cancelled": facts(GOOD, "cancelled"),
    "a run failed since a connection was lost": facts([*GOOD, LOST], "failed"),
    "configurations failed for several causes": facts([*GOOD, *diverged(4, 7), LAYER, MEMORY], object_table="losses"),
    "a step trains as the run did": facts([*GOOD, *diverged(4)], arguments=GIVEN),
    "two still improve": facts([made(1, 0.1, RISING), made(2, 0.2, FLAT), made(3, 0.3, (0.1, 0.2, 0.3, 0.5))]),
    "less loss is better": facts(
        [made(1, 0.1, (0.8, 0.7, 0.6, 0.5))], measure={"series": "training loss", "goal": "min"}
    ),
    "the best is at the edge of a space": facts(TRIED, **SEARCHED),
    "the best is at the edge of a grid": facts([made(k, rate, FLAT, size=size) for k, (rate, size) in GRID]),
    "a state was better before": facts([made(1, 0.1, (0.5, 0.7, 0.7, 0.7)), made(2, 0.2, (0.6, 0.95, 0.6, 0.5))]),
    "nets took long to make ready": facts(GOOD, seconds={"train": 20.0, "ready": 30.0}),
    "evaluations took long": facts(GOOD, seconds={"train": 10.0, "evaluate": 30.0}, arguments=OFTEN),
    "sessions idled": facts(GOOD, seconds={"busy": 25.0, "idle": 75.0}, sessions=4),
    "one does not improve": facts(STUCK, "running"),
}


def test_advice():
    """The steps of each situation, and the causes of failures with what helps against each."""
    lines = []
    for name, given in ADVISED.items():
        steps = {step["sql"]: step["kind"] for step in next_steps(given)}
        lines.append(f"# {name}")
        for step in next_steps(given):
            lines += [f"{step['kind']}: {step['say']}", step["sql"]]
        for cause in given.causes:
            lines.append(f"{' | '.join(map(str, cause.values()))} -> {steps.get(remedy(given, cause))}")
    assert_golden("advice", "\n".join(lines))


NOT_ADVISED = [
    ("", facts(GOOD)),
    ("", facts([], function="remote_run")),
    ("", facts([made(1, 0.1, RISING, status="running")], "running")),
    ("", facts([made(1, 0.1, RISING)], function="madlib_keras_fit")),
    ("", facts([made(1, 0.1, RISING)], arguments={})),
    ("", facts([made(1, 0.1, RISING)], arguments={"folds": 5})),
    ("", facts([made(1, 0.1, RISING, status="failed")])),
    ("keep", facts(ADVISED["less loss is better"].configurations)),
    ("", facts([made(k, 0.01, FLAT) for k in range(1, 7)], **SEARCHED)),
    ("", facts(TRIED[:5], **SEARCHED)),
    ("", facts(TRIED, "running", **SEARCHED)),
    ("", facts(TRIED, function="mop_search", arguments={**SEARCH, "space": HOSTILE})),
    ("", facts(GOOD, seconds={"train": 40.0, "ready": 10.0})),
    ("", facts(GOOD, seconds={"train": 0.1, "ready": 3.0})),  # a few seconds are nothing
    ("", facts([{**STUCK[1], "rank": 1}], "running")),  # it is the best
    # others than the owner cannot steer the run
    ("", facts([LOST], "failed", own=False)),
    ("", facts(STUCK, "running", own=False)),
    ("", facts([made(1, 0.1, RISING)], own=False)),
    # a run whose configurations all failed is resumed only if that may help
    ("clip", facts([LAYER, *diverged(1)], "failed")),
    ("resume", facts([LAYER, LOST], "failed")),
    ("resume", facts([LAYER, made(1, 0.1, status="failed")], "failed")),  # the run was interrupted
    ("resume", facts([], "failed")),
]


@pytest.mark.parametrize("kind, given", NOT_ADVISED)
def test_a_step_comes_only_where_it_helps_and_the_reader_may_take_it(kind, given):
    assert kinds(given) == kind.split()
    may_resume = kind == "resume" and LOST in given.configurations
    assert any("mop_resume" in (remedy(given, cause) or "") for cause in given.causes) == may_resume


@pytest.mark.parametrize(
    "own, theirs, said",
    [
        ([1.0, 1.0], [0.1, 0.2], "learning_rate 1, and no"),
        ([1.0, 1.0], [1.0, 0.1, 0.2], "learning_rate 1; so has 1 of the 3"),
        ([0.001, 0.002], [0.1, 0.2], "learning_rate 0.002 or less, and no"),
        ([0.1], [1.0, 2.0], "learning_rate 0.1, and no"),
        (["SGD", "SGD"], ["Adam", None], "learning_rate SGD, and no"),
        (["SGD", None], ["Adam"], None),
        ([0.1, 2.0], [0.01, 0.5, 9.0], None),
        ([1.0], [], None),
    ],
)
def test_what_sets_the_failed_apart(own, theirs, said):
    rows = [[{"parameters": {"learning_rate": v} if v else {}} for v in values] for values in (own, theirs)]
    found = causes.shared(*rows, ["learning_rate"])
    assert found is None if said is None else said in found


def test_no_failure_has_no_cause_and_all_failed_share_nothing():
    assert causes.causes(GOOD, ["learning_rate"]) == [] == causes.causes([], [])
    (cause,) = causes.causes([made(k, 0.1 * k, status="failed", reason=None) for k in (1, 2)], ["learning_rate"])
    assert cause["shared"] is None and cause["count"] == 2
    assert remedy(facts(diverged(1), arch_table=None), causes.causes(diverged(1), [])[0]) is None


@pytest.mark.parametrize(
    "status, failed, level",
    [
        ("finished", 0, "good"),
        ("finished", 12, "warn"),
        ("finished", 16, "bad"),
        ("cancelled", 2, "calm"),
        ("failed", 1, "bad"),
    ],
)
def test_the_state_of_a_run_has_a_colour(status, failed, level):
    assert told(status, failed, 16)[0] == level


def test_a_curve_is_that_of_the_measure():
    c = {
        "metric": "accuracy",
        "metrics_iterations": [1, 2],
        "series": {"training loss": [3.0, math.nan], "training metric": [0.1, 0.2], "validation loss": None},
    }
    assert curve(c, "training accuracy") == [[1, 0.1], [2, 0.2]] and curve(c, "training loss") == [[1, 3.0]]
    assert curve(c, "validation loss") == [] == curve(c, "training auc")


@pytest.mark.parametrize(
    "name, choices, value, new",
    [
        ("dropout", [0.1, 0.3, 0.9], 0.9, None),  # no dropout of 2.7
        ("batch_size", [1, 2, 4], 1, None),  # no batch of half a row
        ("batch_size", [8, 16, 32], 32, 64),
        ("momentum", [0.0, 0.5, 0.9], 0.0, None),
        ("learning_rate", [0.0, 0.1, 0.2], 0.2, 0.4),
        ("learning_rate", [0.1, 0.2], 0.2, None),  # of two choices each is at an edge
    ],
)
def test_no_number_is_proposed_that_a_parameter_cannot_have(name, choices, value, new):
    assert widening.beyond(name, value, choices) == (None if new is None else pytest.approx(new))


def test_what_people_write_stays_a_literal():
    run = {**facts([]).run, "model_output_table": '"My ""t"', "source_table": HOSTILE}
    given = facts([{**c, "fit_params": HOSTILE} for c in diverged(2)], run=run, arch_table=HOSTILE)
    sql = remedy(given, given.causes[0])
    literals = re.sub(r"E?'(?:[^']|'')*'", "", sql)
    assert "DROP" in sql and "DROP" not in literals and '\'"My ""t_clipped"\'' in sql


def test_rows_that_a_selection_table_cannot_have_alone_are_left_out():
    run = facts([]).run
    rows = [(1, "a", "x"), (1, "b", "x"), (1, "c", "y")]
    sql, trained = again.train_rows(run, "nets", rows, "_again", "madlib", "=>", {})
    assert "ARRAY['a', 'b']" in sql and "ARRAY['x']" in sql and "'c'" not in sql and trained == set(rows[:2])


@pytest.mark.parametrize("sizes, trained", [((8,), again.MOST_ROWS), ((8, 16, 32), 7)])
def test_a_step_says_how_many_of_the_failed_configurations_its_statement_trains(sizes, trained):
    (step,) = next_steps(facts([c for k in range(1, 61) for c in diverged(k, size=sizes[k % len(sizes)])]))
    assert step["sql"].count("optimizer=") == trained and f"train {trained} of them" in step["say"]
    assert step["sql"].startswith(f"-- trains {trained} of the 60 configurations\n")


@pytest.mark.parametrize("suffix", ["_clipped", "_clipped_mst", "_wider", "_predicted"])
@pytest.mark.parametrize(
    "name",
    [
        "m" * 55,
        "m" * 47 + "_clipped",
        f"some_schema.{'m' * 63}",
        f'"My ""s"."{"é" * 31}"',
        '"' + '""' * 60 + '"',
        "Models",
    ],
)
def test_a_new_name_is_short_enough_for_its_tables(name, suffix):
    schema, _, own = name.rpartition(".")
    new_schema, _, new = again.named_anew(name, suffix).rpartition(".")
    bare = new[1:-1].replace('""', '"') if new.startswith('"') else new
    assert new_schema == schema and new != own and bare.endswith(suffix)
    assert len((bare + "_summary").encode()) <= 63 and new.startswith('"') == own.startswith('"')


# --- colours -------------------------------------------------------------------------------------------------
# How the three kinds of colour blindness see linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
