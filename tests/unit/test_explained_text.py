"""The text of a call that is to be explained, and the text of its plan."""

import pytest

from pg_mop.api.call_text import Call, parse
from pg_mop.backend.errors import MopError
from pg_mop.catalog.local import literal, literals
from pg_mop.report import plan_text, run_account


@pytest.mark.parametrize(
    "text,name,arguments",
    [
        ("SELECT madlib.f('a', 1)", ("madlib", "f"), "'a', 1"),
        ("select f()", ("f",), ""),
        ("  SELECT * FROM madlib.f(x => 'it''s', y := NULL) ; ;", ("madlib", "f"), "x => 'it''s', y := NULL"),
        ('SELECT "My schema"."F"(TRUE)', ("My schema", "F"), "TRUE"),
        ("SELECT F($a$ it's $$ \n; $a$)", ("f",), "$a$ it's $$ \n; $a$"),
        ("SELECT f(ARRAY[1, -2.5e3]::double precision[], ARRAY[['a'], ['b']])", ("f",), None),
        (
            "SELECT f('1 h'::interval, interval '1 h', CAST('x' AS varchar(10)), 'x'::character varying(3))",
            ("f",),
            None,
        ),
        ("SELECT /* a /* nested */ comment */ f(E'a\\'b' -- one more\n, 'c')", ("f",), None),
        ("SELECT f(('a'), +1, ARRAY[]::int[], ''::text)", ("f",), None),
    ],
)
def test_a_call_with_constants_is_read(text, name, arguments):
    found = parse(text, "madlib")
    assert found.name == name and not found.procedure
    assert arguments is None or found.arguments == arguments


def test_a_procedure_is_called():
    assert parse("CALL madlib.p('a')", "madlib") == Call(("madlib", "p"), "'a'", True)


@pytest.mark.parametrize(
    "text,why",
    [
        ("SELECT f('a'); SELECT f('b')", "only one statement is expected"),
        ("SELECT f('a'), f('b')", "the end is expected"),
        ("SELECT f('a') FROM t", "the end is expected"),
        ("SELECT f('a') WHERE true", "the end is expected"),
        ("SELECT f(g('a'))", "a constant is expected at 'g'"),
        ("SELECT f(pg_sleep(1)::text)", "a constant is expected"),
        ("SELECT f((SELECT 1))", "a constant is expected at 'SELECT'"),
        ("SELECT f(a)", "a constant is expected at 'a'"),
        ("SELECT f(current_user)", "a constant is expected"),
        ("SELECT f('a'::evil)", "a type is expected"),
        ("SELECT f('a'::evil.int4)", "a type is expected"),
        ("SELECT f(evil 'a')", "a constant is expected at 'evil'"),
        ("SELECT f('a'::text || 'b')", "it cannot have"),
        ("SELECT f('a' COLLATE \"C\")", "')' is expected"),
        ("SELECT f(1 + 2)", "')' is expected"),
        ("SELECT f(ARRAY(SELECT 1))", "'[' is expected"),
        ("SELECT f(ARRAY[g(1)])", "a constant is expected"),
        ("SELECT f($1)", "it cannot have '$1)'"),
        ("SELECT f(:'v')", "it cannot have"),
        ("SELECT f(U&'a')", "it cannot have"),
        ("SELECT a.b.f(1)", "more than two parts"),
        ("SELECT f(E'm'\n'\\', ' || evil()/*' -- */)", "two strings follow one another"),
        ("SELECT f('a'\n'b')", "two strings follow one another"),
        ("SELECT f(" + "(" * 100_000 + "1" + ")" * 100_000 + ")", "nested more than 50 deep"),
        ("SELECT f(ARRAY" + "[" * 100_000 + "1" + "]" * 100_000 + ")", "nested more than 50 deep"),
        ("SELECT 1", "the name of a function is expected"),
        ("SELECT f('a'", "')' is expected at its end"),
        ("SELECT f('a)", "it cannot have"),
        ("SELECT f($$a)", "a dollar-quoted string has no end"),
        ("SELECT f('a') /* open", "a comment has no end"),
        ("DROP TABLE t", "SELECT is expected at 'DROP'"),
        ("WITH x AS (DELETE FROM t) SELECT f('a')", "SELECT is expected"),
        ("EXPLAIN SELECT f('a')", "SELECT is expected"),
        ("SELECT f('a'::int(1, (SELECT 1)))", "')' is expected"),
        ("SELECT f(1x)", "it cannot have"),
    ],
)
def test_anything_else_is_refused_before_it_reaches_the_server(text, why):
    with pytest.raises(MopError) as caught:
        parse(text, "madlib")
    assert why in caught.value.message and caught.value.sqlstate == "42601" and "mop_explain($$" in caught.value.hint


@pytest.mark.parametrize("text", [None, "", "  -- nothing\n"])
def test_an_empty_text_is_refused(text):
    with pytest.raises(MopError, match="there is no call to explain"):
        parse(text, "madlib")


def test_parameters_become_literals():
    assert literals((1, "it's", None, True, [1, 2])) == ("1", "'it''s'", "NULL", "true", "ARRAY[1, 2]")
    assert "%(a)s" % literals({"a": "\\", "not named": object()}) == "E'\\\\'" and literal(()) == "'{}'"
    with pytest.raises(TypeError):
        literal(object())


NET = {
    "model_id": 1,
    "optimizer": "Adam",
    "loss": "mse",
    "batch_size": 32,
    "configurations": 7,
    "mst_keys": [1, 2, 3, 4, 5],
    "parameters": 51,
    "operations_per_row": 96.0,
    "unknown_layers": ["Odd"],
    "unit_seconds": 0.25,
    "source": "history",
    "runs": 2,
    "kernel": "loop",
    "measured_nets": None,
}
PLAN = {
    "function": "madlib_keras_fit_multiple_model",
    "output_table": "models",
    "resumes": None,
    "source": {"table": "packed", "segments": 2, "rows": 100, "bytes": 1600},
    "validation": None,
    "places": [
        {"server": None, "segments": [{"dataset": "training", "segment": 0, "rows": 50, "bytes": 800, "copies": []}]},
        {
            "server": "w1",
            "segments": [{"dataset": "training", "segment": 1, "rows": 50, "bytes": 800, "copies": [None]}],
        },
    ],
    "sessions": 2,
    "threads": 1,
    "warm_trainers": False,
    "use_gpus": False,
    "trainers": None,
    "scheduler": "randomized",
    "averaging": False,
    "configurations": 7,
    "folds": None,
    "unfit": [{"mst_key": 9, "reason": "it takes 5 inputs"}],
    "unfit_count": 1,
    "framework": {"name": "tensorflow", "reason": "pg_mop.keras_backend"},
    "kernel": {"name": "loop", "reason": "by the cost history"},
    "nets": [NET],
    "stages": {
        "asked": 21,
        "shared": 3,
        "found_trained": 2,
        "found_in_runs": [4],
        "awaited": 0,
        "awaited_from": [],
        "to_train": 16,
        "merge_rate": 1.3125,
    },
    "prediction": {
        "seconds": 5.0,
        "seconds_low": 4.0,
        "seconds_high": 75.0,
        "makespan": 4.0,
        "makespan_low": 3.0,
        "makespan_high": 6.0,
        "lower_bound": 3.5,
        "simulated": True,
        "training_units": 32,
        "evaluation_units": 14,
        "commands": 9,
        "chains": 3,
        "unit_batches": 2,
        "session_seconds": {"train": 6.0, "evaluate": 0.0, "ready": 1.5, "around": 0.05, "write": 0.0},
        "start_seconds": 0.8,
        "end_seconds": 0.2,
        "limits": ["configuration 7 is 61% of the work"],
    },
    "memory": {
        "trainer": 500 << 20,
        "process": 400 << 20,
        "weights": 204,
        "optimizer": 612,
        "activations": 9999,
        "rows": 1600,
    },
    "disk": {"states": 4000, "most": 12000},
    "moved_bytes": 2048,
    "suggestions": [{"statement": "SET pg_mop.scheduler = 'longest-first';", "seconds": 4.0, "saves": 1.0}],
}


def test_a_plan_as_text():
    assert plan_text.render(PLAN).splitlines() == [
        'Train 7 configurations on "packed"  (time=4 s..1 min 15 s, expected 5 s)',
        "  Function: madlib_keras_fit_multiple_model   Output: models",
        "  Sessions: 2 on 2 servers, 1 thread each   Scheduler: randomized",
        '  Training: "packed"  (segments=2 rows=100 bytes=1600)',
        "  Place: this server  (segments=1 rows=50 bytes=800)",
        "    -> training segment 0  (rows=50 bytes=800)",
        "  Place: server w1  (segments=1 rows=50 bytes=800)",
        "    -> training segment 1  (rows=50 bytes=800 copies=this server)",
        "  Configurations that do not fit the data: 1",
        "    mst_key 9: it takes 5 inputs",
        "  Stages: 21 asked for, 3 shared, 2 found trained in run 4, 16 to train  (merge rate 1.31)",
        "  Units: 32 to train, 14 to evaluate, in 9 commands (3 chains, 2 with unit batches)",
        "  Framework: TensorFlow (pg_mop.keras_backend)",
        "  Kernel: loop (by the cost history)",
        "  Net: model_id 1, Adam, mse, batch 32  (configurations 1, 2, 3, 4, 5, ...)",
        "    -> 250 ms a unit, measured by 2 runs with the kernel loop",
        "    -> parameters=51 operations=96 a row; not known: Odd",
        "  Makespan: 3 s..6 s, expected 4 s; lower bound 3.5 s",
        "  Session seconds: train 6 s, make nets ready 1.5 s, transactions 50 ms",
        "  Before the first unit: 800 ms; after the last: 200 ms",
        "  Limited by: configuration 7 is 61% of the work",
        "  Memory of a trainer: about 500 MB  (process=400 MB weights=204 bytes "
        "optimizer=612 bytes activations=10 kB rows=2 kB)",
        "  Disk for states: 4 kB, at most 12 kB; states moved between servers: 2 kB",
        "  Suggestion: SET pg_mop.scheduler = 'longest-first';  -- expected 4 s, saves 1 s",
    ]


def test_a_guess_is_said_to_be_one():
    assert "a guess" in plan_text.source({**NET, "source": "arithmetic"})
    assert "3 other nets" in plan_text.source({**NET, "source": "other nets", "measured_nets": 3})


# --- the account of a run -------------------------------------------------------------------------------------------


ACCOUNT = {
    "run_id": 4,
    "function": "f",
    "status": "running",
    "prediction": None,
    "units": {"train": 0, "evaluate": 0},
    "moved": {"hops": 0, "bytes": 0, "seconds": 0, "ways": {}},
}


def unit(mst_key, session, began, ended, **more):
    return {
        "mst_key": mst_key,
        "stage": mst_key,
        "iteration": 1,
        "segment": 0,
        "kind": "train",
        "session": session,
        "status": "finished",
        "began": began,
        "ended": ended,
        "train": 0.0 if ended is None else (ended - began) * 0.8,
        "read": 0.0,
        "write": 0.0,
        "compile": None,
        **more,
    }


def test_stages_that_runs_beside_train_are_told_with_their_runs():
    stages = {**PLAN["stages"], "awaited": 5, "awaited_from": [8], "to_train": 11}
    text = plan_text.render({**PLAN, "stages": stages})
    assert "found trained in run 4, 5 awaited, 11 to train" in text
    assert "-> run 8 trains what is awaited now; the wait is not counted (SET pg_mop.reuse = off;" in text
    assert "-> runs 8, 9 train what" in plan_text.render({**PLAN, "stages": {**stages, "awaited_from": [8, 9]}})


def test_session_seconds_add_up_to_the_makespan_of_all_sessions():
    units = [
        unit(1, 7, 1.0, 5.0, compile=1.2, read=0.1, write=0.2),
        unit(2, 8, 1.0, 3.0),
        unit(2, 8, 3.0, 4.0, status="failed"),
        unit(2, 8, 4.0, 5.0, kind="evaluate"),
    ]
    found = run_account.account(units, 9.0, 2)
    assert found["makespan"] == 4.0 and found["start_seconds"] == 1.0 and found["units"] == 3
    spent = found["session_seconds"]
    assert sum(spent.values()) == pytest.approx(8.0) and "idle" not in spent
    assert spent["make ready"] == pytest.approx(1.2) and spent["retried"] == pytest.approx(1.0)
    assert spent["train"] == pytest.approx(3.2 - 1.2 + 1.6) and spent["evaluate"] == pytest.approx(0.8)
    assert [(load["session"], load["busy"]) for load in found["sessions"]] == [(7, 4.0), (8, 4.0)]


def test_the_processors_of_units_that_tell_them():
    units = [unit(1, 7, 0.0, 2.0, train=2.0, cpu=3.0), unit(2, 8, 0.0, 1.0, train=1.0, cpu=None)]
    assert run_account.account(units, 2.0, 2)["processors"] == {"seconds": 3.0, "busy": 1.5}
    assert run_account.account(units[1:], 2.0, 2)["processors"] is None


def test_the_gpus_of_units_that_tell_them():
    units = [
        unit(1, 7, 0.0, 2.0, train=3.0, gpu=0.9, gpu_bytes=5 << 30),
        unit(2, 8, 0.0, 1.0, train=1.0, gpu=0.5, gpu_bytes=None),
        unit(3, 8, 1.0, 2.0, train=1.0, gpu=None, gpu_bytes=None),
    ]
    assert run_account.account(units, 2.0, 2)["gpus"] == {"utilization": pytest.approx(0.8), "bytes": 5 << 30}
    assert run_account.account(units[1:], 2.0, 2)["gpus"] == {"utilization": 0.5, "bytes": None}
    assert run_account.account(units[2:], 2.0, 2)["gpus"] is None

    def line(units):
        found = run_account.render({**ACCOUNT, "actual": {**run_account.account(units, 2.0, 2), "seconds": 2.0}})
        return [line for line in found.splitlines() if "GPU" in line]

    said = " utilized on average while a trainer trains or evaluates"
    assert line(units) == [f"  GPUs: 80%{said}, at most 5.0 GB of one in use (work and memory of all processes)"]
    assert line(units[1:]) == [f"  GPUs: 50%{said} (work and memory of all processes)"]
    assert line(units[2:]) == []


def test_the_threads_of_units_that_tell_them():
    units = [unit(1, 7, 1.0, 2.0, threads=1), unit(2, 8, 1.0, 2.0, threads=1), unit(2, 9, 2.5, 3.0, threads=2)]
    found = run_account.account(units, 3.0, 2)
    assert found["threads"] == [
        {"threads": 1, "sessions": 2, "from": 0.0, "units": 2},
        {"threads": 2, "sessions": 1, "from": 1.5, "units": 1},
    ]
    text = run_account.render({**ACCOUNT, "actual": {**found, "seconds": 3.0}})
    assert "\n  Threads: 1 in 2 sessions from 0 ms on (2 units); 2 in 1 session from 1.5 s on (1 unit)" in text
    assert "Threads" not in run_account.render(
        {**ACCOUNT, "actual": {**run_account.account(units[:2], 3.0, 2), "seconds": 3.0}}
    ), "all of them are equal"
    assert run_account.account([unit(1, 7, 0.0, 2.0)], 2.0, 2)["threads"] == []


def test_units_of_a_batch_count_their_step_once():
    units = [unit(key, 7, 0.0, 2.0, train=0.5) for key in (1, 2, 3)]
    found = run_account.account(units, 2.0, 2)
    assert found["session_seconds"] == {"train": 1.5, "transactions": 0.5, "idle": 2.0}
    assert found["sessions"] == [{"session": 7, "busy": 2.0, "units": 3, "from": 0.0, "until": 2.0}]


def test_the_critical_path_goes_back_through_configurations_and_sessions():
    units = [unit(1, 7, 0.0, 2.0), unit(2, 8, 0.0, 1.0), unit(2, 7, 2.0, 5.0), unit(3, 8, 1.0, 1.5)]
    path = run_account.account(units, 5.0, 2)["critical_path"]
    assert path == {
        "units": 2,
        "configurations": 2,
        "busy_seconds": 5.0,
        "waiting_seconds": 0.0,
        "longest": {"mst_key": 2, "seconds": 3.0},
    }


def test_a_run_that_goes_on_counts_until_now_and_one_without_units_is_told():
    found = run_account.account([unit(1, 7, 1.0, 2.0), unit(1, 7, 2.0, None, status="running", train=None)], 6.0, 1)
    assert found["makespan"] == 5.0 and found["sessions"][0]["busy"] == 5.0
    empty = run_account.account([], 6.0, 1)
    assert empty["makespan"] == 0.0 and empty["critical_path"] is None
    assert run_account.render({**ACCOUNT, "actual": {**empty, "seconds": 6.0}}).splitlines() == [
        "Run 4: f, goes on  (actual time=6 s)",
        "  Makespan: actual 0 ms",
        "  Units: 0 trained, 0 evaluated; no prediction was stored when the run began",
    ]


def test_a_pause_between_two_coordinators_is_not_idle_time():
    units = [unit(1, 7, 1.0, 2.0), unit(2, 8, 1.0, 2.5), unit(1, 9, 102.5, 103.5), unit(2, 10, 103.0, 104.0)]
    found = run_account.account(units, 104.0, 2)
    assert found["paused_seconds"] == pytest.approx(100.0) and found["makespan"] == pytest.approx(3.0)
    assert found["session_seconds"]["idle"] == pytest.approx(2 * 3.0 - 4.5)
    assert found["critical_path"]["waiting_seconds"] < 2.0
    kept = run_account.account([*units[:3], unit(2, 8, 103.0, 104.0)], 104.0, 2)
    assert kept["paused_seconds"] == 0.0, "a session that goes on: the run was alive"
