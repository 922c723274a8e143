"""What a run's report says of its failures, and what to do next: statements from made-up curves, times and spaces."""

import itertools
import math
import re

import pytest

from pg_mop.report import again, causes, widening
from pg_mop.report.advice import Facts, next_steps, remedy
from pg_mop.report.summary import curve, told
from support.cluster import ROOT

CSS = (ROOT / "plpy_modules" / "pg_mop" / "report" / "page.css").read_text()
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
            **more,
        }
    )


def kinds(given):
    return [step["kind"] for step in next_steps(given)]


FLAT = (0.5, 0.9, 0.9, 0.9)
RISING = (0.5, 0.6, 0.7, 0.8)


# --- failures ------------------------------------------------------------------------------------------------
def test_equal_errors_are_one_cause_and_name_the_parameter_that_they_share():
    failed = [
        made(k, rate, status="failed", reason=f"the loss of unit {k} became NaN") for k, rate in ((4, 3.0), (5, 9.0))
    ]
    other = made(6, 0.1, status="failed", reason="unknown layer 'X'\nwith a second line")
    good = [made(k, rate, FLAT) for k, rate in ((1, 0.1), (2, 0.2), (3, 0.01))]
    first, second = causes.causes([*good, *failed, other], ["learning_rate", "batch_size"])
    assert (first["count"], first["keys"], first["kind"]) == (2, [4, 5], "diverged")
    assert first["shared"] == "All have learning_rate 3 or more, and no other has." and "clipnorm" in first["help"]
    assert (second["count"], second["keys"], second["help"]) == (1, [6], None)


@pytest.mark.parametrize(
    "own, theirs, said",
    [
        ([1.0, 1.0], [0.1, 0.2], "All have learning_rate 1, and no other has."),
        ([1.0, 1.0], [1.0, 0.1, 0.2], "All have learning_rate 1; so has 1 of the 3 others."),
        ([0.001, 0.002], [0.1, 0.2], "All have learning_rate 0.002 or less, and no other has."),
        ([0.1], [1.0, 2.0], "It has learning_rate 0.1, and no other has."),
        ([0.1, 2.0], [0.01, 0.5, 9.0], None),
        ([1.0], [], None),
    ],
)
def test_what_sets_the_failed_apart(own, theirs, said):
    def rows(values):
        return [{"parameters": {"learning_rate": value}} for value in values]

    assert causes.shared(rows(own), rows(theirs), ["learning_rate"]) == said


def test_words_of_parameters_set_apart_too_and_a_missing_value_does_not():
    def rows(*values):
        return [{"parameters": {"optimizer": value} if value else {}} for value in values]

    assert (
        causes.shared(rows("SGD", "SGD"), rows("Adam", None), ["optimizer"])
        == "All have optimizer SGD, and no other has."
    )
    assert causes.shared(rows("SGD", None), rows("Adam"), ["optimizer"]) is None


def test_no_failure_has_no_cause_and_all_failed_share_nothing():
    assert causes.causes([made(1, 0.1, FLAT)], ["learning_rate"]) == [] == causes.causes([], [])
    (cause,) = causes.causes([made(k, 0.1 * k, status="failed", reason=None) for k in (1, 2)], ["learning_rate"])
    assert cause["error"] == "no error was noted" and cause["shared"] is None and cause["count"] == 2


def test_what_helps_against_a_loss_that_is_no_number_trains_the_failed_ones_clipped():
    failed = [made(k, rate, status="failed", reason="the loss became NaN") for k, rate in ((2, 3.0), (3, 9.0))]
    given = facts([made(1, 0.1, FLAT), *failed])
    (cause,) = causes.causes(given.configurations, given.varied)
    sql = remedy(given, cause)
    assert "load_model_selection_table('nets', 'models_clipped_mst', ARRAY[1]" in sql
    assert "SGD(lr=0.3, clipnorm=1.0)" in sql and "SGD(lr=0.9, clipnorm=1.0)" in sql
    assert "model_output_table => 'models_clipped'" in sql and "num_iterations => 9" in sql
    assert remedy(facts(given.configurations, arch_table=None), cause) is None


def test_too_much_memory_halves_the_batches():
    given = facts([made(1, 0.1, FLAT), made(2, 0.1, status="failed", reason="out of memory: 9 GB", size=64)])
    (cause,) = causes.causes(given.configurations, given.varied)
    assert "batch_size=32" in remedy(given, cause)


def test_the_state_of_a_run_in_words():
    assert told("finished", 0, 16) == ("good", "finished") and told("finished", 12, 16) == (
        "warn",
        "finished, 12 of 16 failed",
    )
    assert told("finished", 4, 4)[0] == "bad" and told("cancelled", 2, 4)[0] == "calm"
    assert told("failed", 1, 4) == ("bad", "failed") and told("finished", 0, 0) == ("good", "finished")


def test_a_curve_is_that_of_the_measure():
    c = {
        "metric": "accuracy",
        "metrics_iterations": [1, 2],
        "series": {"training loss": [3.0, math.nan], "training metric": [0.1, 0.2], "validation loss": None},
    }
    assert curve(c, "training accuracy") == [[1, 0.1], [2, 0.2]] and curve(c, "training loss") == [[1, 3.0]]
    assert curve(c, "validation loss") == [] == curve(c, "training auc")


# --- what next -----------------------------------------------------------------------------------------------
def test_a_run_that_did_not_end_goes_on():
    for status in ("failed", "cancelled"):
        step = next_steps(facts([made(1, 0.1, FLAT)], status=status))[0]
        assert step["kind"] == "resume" and step["sql"] == "SELECT madlib.mop_resume(7);"
    assert "resume" not in kinds(facts([made(1, 0.1, FLAT)])) and next_steps(facts([], function="remote_run")) == []


def failing(*reasons):
    return [made(k, 0.1, status="failed", reason=reason) for k, reason in enumerate(reasons, 1)]


@pytest.mark.parametrize(
    "reasons, resumes",
    [
        (["unknown layer 'X'", "the loss became NaN"], False),
        (["unknown layer 'X'", "the connection to server s1 was lost"], True),
        (["unknown layer 'X'", None], True),  # the run was interrupted
        ([], True),
    ],
)
def test_a_run_whose_configurations_all_failed_is_resumed_only_if_that_may_help(reasons, resumes):
    given = facts(failing(*reasons), status="failed")
    given = facts(given.configurations, status="failed", causes=causes.causes(given.configurations, given.varied))
    assert ("resume" in kinds(given)) == resumes
    assert any("mop_resume" in (remedy(given, c) or "") for c in given.causes) == ("lost" in str(reasons))


def test_only_the_owner_is_told_to_steer_the_run():
    lost = failing("the connection was lost")
    stuck = made(2, 0.2, (0.5, 0.4, 0.4, 0.4), status="running")
    for given in (
        facts(lost, status="failed", own=False, causes=causes.causes(lost, [])),
        facts([made(1, 0.1, RISING, status="running"), stuck], "running", own=False),
        facts([made(1, 0.1, RISING)], own=False),
    ):
        assert kinds(given) == []
        assert [remedy(given, cause) for cause in given.causes] == [None] * len(given.causes)


def test_configurations_that_still_improve_are_trained_on():
    given = facts([made(1, 0.1, RISING), made(2, 0.2, FLAT), made(3, 0.3, (0.1, 0.2, 0.3, 0.5))])
    step = next(s for s in next_steps(given) if s["kind"] == "more")
    assert step["sql"] == "SELECT madlib.mop_more(7, 1, 2);\nSELECT madlib.mop_more(7, 3, 2);"
    assert step["say"].startswith("2 of the 3 best configurations still improved") and "1 and 3" in step["say"]
    for other in (
        facts([made(1, 0.1, FLAT)]),
        facts([made(1, 0.1, RISING)], status="running"),
        facts([made(1, 0.1, RISING)], function="madlib_keras_fit"),
        facts([made(1, 0.1, RISING)], arguments={}),
        facts([made(1, 0.1, RISING)], arguments={"folds": 5}),
        facts([made(1, 0.1, RISING, status="failed")]),
    ):
        assert "more" not in kinds(other)


def test_less_is_better_of_a_loss():
    given = facts([made(1, 0.1, (0.8, 0.7, 0.6, 0.5))], measure={"series": "training loss", "goal": "min"})
    assert "more" in kinds(given) and "more" not in kinds(facts(given.configurations))


SPACE = "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [0.001, 0.1, 'log']}], 'batch_size': [8, 16]}"


def test_the_best_at_the_edge_of_a_space_asks_for_a_wider_one():
    arguments = {
        "source_table": "packed",
        "model_output_table": "models",
        "space": SPACE,
        "name": "x",
        "procedure": "asha",
    }
    tried = [made(k, 0.1 / k, FLAT) for k in range(1, 7)]
    step = next(s for s in next_steps(facts(tried, function="mop_search", arguments=arguments)) if s["kind"] == "wider")
    assert (
        "learning_rate of the best configuration is at the edge" in step["say"]
        and "[0.001, 1.0, ''log'']" in step["sql"]
    )
    assert "continue_from => 7" in step["sql"] and "model_output_table => 'models_wider'" in step["sql"]
    assert "name =>" not in step["sql"] and "procedure => 'asha'" in step["sql"]
    inside = [made(k, 0.01, FLAT) for k in range(1, 7)]
    assert "wider" not in kinds(facts(inside, function="mop_search", arguments=arguments))
    assert "wider" not in kinds(facts(tried[:5], function="mop_search", arguments=arguments))  # too few
    assert "wider" not in kinds(facts(tried, "running", "mop_search", arguments=arguments))
    assert "wider" not in kinds(facts(tried, function="mop_search", arguments={**arguments, "space": HOSTILE}))


def test_the_best_at_the_edge_of_a_grid_asks_for_one_beyond():
    tried = [
        made(k, rate, FLAT, size=size) for k, (rate, size) in enumerate(itertools.product((1.0, 0.1, 0.01), (8, 16)), 1)
    ]
    step = next(s for s in next_steps(facts(tried)) if s["kind"] == "wider")
    assert step["say"] == "learning_rate 1 of the best configuration is the greatest that was tried: try 10."
    assert "SGD(lr=10.0)" in step["sql"] and "models_wider_mst" in step["sql"]


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


def test_a_state_that_was_better_before_is_kept():
    given = facts([made(1, 0.1, (0.5, 0.7, 0.7, 0.7)), made(2, 0.2, (0.6, 0.95, 0.6, 0.5))])
    step = next(s for s in next_steps(given) if s["kind"] == "keep")
    assert "after iteration 2 (0.95)" in step["say"] and "keep=''best''" in step["sql"]
    assert "keep" not in kinds(facts([made(1, 0.1, FLAT)]))


def test_where_the_time_went():
    base = [made(1, 0.1, FLAT)]
    step = next(s for s in next_steps(facts(base, seconds={"train": 20.0, "ready": 30.0})) if s["kind"] == "ready")
    assert step["say"].startswith("60%") and step["sql"].startswith("SET pg_mop.")
    assert "ready" not in kinds(facts(base, seconds={"train": 40.0, "ready": 10.0}))
    assert "ready" not in kinds(facts(base, seconds={"train": 0.1, "ready": 3.0}))  # a few seconds are nothing
    often = {"metrics_compute_frequency": 1, "model_output_table": "models"}
    step = next(
        s
        for s in next_steps(facts(base, seconds={"train": 10.0, "evaluate": 30.0}, arguments=often))
        if s["kind"] == "evaluations"
    )
    assert "metrics_compute_frequency => 5" in step["sql"] and "'models_again'" in step["sql"]
    step = next(
        s for s in next_steps(facts(base, seconds={"busy": 25.0, "idle": 75.0}, sessions=4)) if s["kind"] == "idle"
    )
    assert step["sql"] == "SET pg_mop.sessions = 1;"


def test_a_run_that_goes_on_stops_what_does_not_improve():
    stuck = made(2, 0.2, (0.5, 0.4, 0.4, 0.4), status="running")
    step = next(
        s for s in next_steps(facts([made(1, 0.1, RISING, status="running"), stuck], "running")) if s["kind"] == "stop"
    )
    assert step["sql"] == "SELECT madlib.mop_stop_trial(7, 2);" and "since iteration 1 of 4" in step["say"]
    assert "stop" not in kinds(
        facts([made(1, 0.1, (0.5, 0.4, 0.4, 0.4), status="running")], "running")
    )  # it is the best


def test_what_people_write_stays_a_literal():
    failed = made(2, 3.0, status="failed", reason="the loss became NaN")
    given = facts([made(1, 0.1, FLAT), {**failed, "fit_params": HOSTILE}])
    run = {**given.run, "model_output_table": '"My ""t"', "source_table": HOSTILE}
    given = facts(given.configurations, run=run, arch_table=HOSTILE)
    (cause,) = causes.causes(given.configurations, given.varied)
    sql = remedy(given, cause)
    literals = re.sub(r"E?'(?:[^']|'')*'", "", sql)
    assert "DROP" in sql and "DROP" not in literals and '\'"My ""t_clipped"\'' in sql


def test_rows_that_a_selection_table_cannot_have_alone_are_left_out():
    run = facts([]).run
    rows = [(1, "a", "x"), (1, "b", "x"), (1, "c", "y")]
    sql, trained = again.train_rows(run, "nets", rows, "_again", "madlib", "=>", {})
    assert "ARRAY['a', 'b']" in sql and "ARRAY['x']" in sql and "'c'" not in sql and trained == set(rows[:2])


@pytest.mark.parametrize("sizes, trained", [((8,), again.MOST_ROWS), ((8, 16, 32), 7)])
def test_a_step_says_how_many_of_the_failed_configurations_its_statement_trains(sizes, trained):
    failed = [
        made(k, k, status="failed", reason="the loss became NaN", size=sizes[k % len(sizes)]) for k in range(1, 61)
    ]
    given = facts(failed, status="finished")
    given = facts(failed, causes=causes.causes(given.configurations, given.varied))
    (step,) = [s for s in next_steps(given) if s["kind"] == "clip"]
    assert step["sql"].count("optimizer=") == trained
    assert f"of 60 configurations became NaN: train {trained} of them with clipped" in step["say"]
    assert step["sql"].startswith(f"-- trains {trained} of the 60 configurations\nSELECT ")


def test_a_step_trains_as_the_run_did():
    failed = made(2, 3.0, status="failed", reason="the loss became NaN")
    arguments = {"use_gpus": True, "metrics_compute_frequency": 3, "folds": 4, "name": "x"}
    given = facts([made(1, 0.1, FLAT), failed], arguments=arguments, object_table="losses")
    (cause,) = causes.causes(given.configurations, given.varied)
    sql = remedy(given, cause)
    assert "use_gpus => TRUE" in sql and "metrics_compute_frequency => 3" in sql and "folds => 4" in sql
    assert "],\n    'losses');" in sql and "name =>" not in sql
    plain = remedy(facts(given.configurations), cause)
    assert "use_gpus => FALSE" in plain and "metrics_compute_frequency" not in plain and "losses" not in plain


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
SEEN = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def linear(colour):
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def lab(rgb):
    """CIELAB of linear RGB, D65."""
    r, g, b = rgb
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def apart(one, other, kind):
    seen = [
        [min(1, max(0, sum(a * b for a, b in zip(row, linear(colour))))) for row in SEEN[kind]]
        for colour in (one, other)
    ]
    return math.dist(*map(lab, seen))


def luminance(colour):
    r, g, b = linear(colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("dark", [False, True])
def test_the_colours_of_curves_are_told_apart_by_all_eyes_and_stand_out(dark):
    theme = CSS.split("prefers-color-scheme: dark")[dark]
    colours = [re.search(rf"--c{i}: (#\w{{6}});", theme)[1] for i in range(4)]
    paper = re.search(r"--paper: (#\w{6});", theme)[1]
    for one, other in itertools.combinations(colours, 2):
        for kind in SEEN:
            assert apart(one, other, kind) > 20, (one, other, kind)
    for colour in colours:
        low, high = sorted((luminance(colour), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) > 3, colour
