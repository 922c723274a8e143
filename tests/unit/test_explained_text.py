"""The text of a call that is to be explained, and the text of its plan."""

import json
import pathlib

import pytest

from pg_mop.backend.errors import MopError
from pg_mop.catalog.local import literal, literals
from pg_mop.explain import plan_text, run_account
from pg_mop.explain.call_text import Call, parse
from support.golden import assert_golden


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
        ("SELECT f(g('a'))", "a constant is expected at 'g'"),
        ("SELECT f(pg_sleep(1)::text)", "a constant is expected"),
        ("SELECT f(a)", "a constant is expected at 'a'"),
        ("SELECT f('a'::evil)", "a type is expected"),
        ("SELECT f('a'::text || 'b')", "it cannot have"),
        ("SELECT f('a' COLLATE \"C\")", "')' is expected"),
        ("SELECT f(1 + 2)", "')' is expected"),
        ("SELECT f(ARRAY(SELECT 1))", "'[' is expected"),
        ("SELECT f($1)", "it cannot have '$1)'"),
        ("SELECT f(U&'a')", "it cannot have"),
        ("SELECT a.b.f(1)", "more than two parts"),
        ("SELECT f(E'm'\n'\\', ' || evil()/*' -- */)", "two strings follow one another"),
        ("SELECT f(" + "(" * 100_000 + "1" + ")" * 100_000 + ")", "nested more than 50 deep"),
        ("SELECT 1", "the name of a function is expected"),
        ("SELECT f('a)", "it cannot have"),
        ("SELECT f('a') /* open", "a comment has no end"),
        ("DROP TABLE t", "SELECT is expected at 'DROP'"),
        ("WITH x AS (DELETE FROM t) SELECT f('a')", "SELECT is expected"),
        ("SELECT f('a'::int(1, (SELECT 1)))", "')' is expected"),
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


PLANS = json.loads(pathlib.Path(__file__).with_name("plans.json").read_text())  # as mop_explain(..., 'json') gives them
GIB = 1 << 30
DEVICES = {"count": 2, "of": "GPU", "memory": 80 * GIB, "needed_by_one": 90 * GIB, "needed_by_each": 46 * GIB}
DEVICES = {**DEVICES, "most": 4, "needed_by_most": 24 * GIB, "why_one": None}
(NET,) = PLANS["of_configurations"]["nets"]
OTHER = {**NET, "source": "arithmetic", "parameters": None}
NETS = [
    NET,
    {**OTHER, "devices": DEVICES, "mst_keys": [6], "configurations": 1},
    {**OTHER, "devices": {**DEVICES, "count": 1, "why_one": "the limit"}, "source": "measured"},
    {**OTHER, "devices": {**DEVICES, "count": 1, "most": 1}, "source": "other nets", "measured_nets": 3},
    {**OTHER, "own_class": "Mine", "shared_by": {"members": 4, "base": 1}, "source": "history", "runs": 1},
    OTHER,
]
PLAN = {**PLANS["of_configurations"], "nets": NETS}
TRAINED = {**PLAN, **PLANS["of_a_model"], "function": "mop_train", "nets": [NET], "places": []}


def test_plans_as_text(monkeypatch):
    """Of a call that trains a table's configurations; of one that trains a model; the titles of other calls."""
    monkeypatch.setattr(plan_text, "MOST_NETS", len(NETS) - 1)
    monkeypatch.setattr(plan_text, "MOST_SEGMENTS", 1)
    others = [{**TRAINED, "train": None}, {**PLAN, "resumes": 4}, {**PLAN, "folds": 3}]
    titles = "\n".join(plan_text.render(plan).splitlines()[0] for plan in others)
    assert_golden("plan", "\n\n".join([plan_text.render(PLAN), plan_text.render(TRAINED), titles]))


# --- the account of a run -------------------------------------------------------------------------------------------


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


def test_the_threads_of_units_that_tell_them():
    units = [unit(1, 7, 1.0, 2.0, threads=1), unit(2, 8, 1.0, 2.0, threads=1), unit(2, 9, 2.5, 3.0, threads=2)]
    found = run_account.account(units, 3.0, 2)
    assert found["threads"] == [
        {"threads": 1, "sessions": 2, "from": 0.0, "units": 2},
        {"threads": 2, "sessions": 1, "from": 1.5, "units": 1},
    ]
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


def test_a_run_that_goes_on_counts_until_now_and_one_without_units_takes_none():
    found = run_account.account([unit(1, 7, 1.0, 2.0), unit(1, 7, 2.0, None, status="running", train=None)], 6.0, 1)
    assert found["makespan"] == 5.0 and found["sessions"][0]["busy"] == 5.0
    empty = run_account.account([], 6.0, 1)
    assert empty["makespan"] == 0.0 and empty["critical_path"] is None


def test_a_pause_between_two_coordinators_is_not_idle_time():
    units = [unit(1, 7, 1.0, 2.0), unit(2, 8, 1.0, 2.5), unit(1, 9, 102.5, 103.5), unit(2, 10, 103.0, 104.0)]
    found = run_account.account(units, 104.0, 2)
    assert found["paused_seconds"] == pytest.approx(100.0) and found["makespan"] == pytest.approx(3.0)
    assert found["session_seconds"]["idle"] == pytest.approx(2 * 3.0 - 4.5)
    assert found["critical_path"]["waiting_seconds"] < 2.0
    kept = run_account.account([*units[:3], unit(2, 8, 103.0, 104.0)], 104.0, 2)
    assert kept["paused_seconds"] == 0.0, "a session that goes on: the run was alive"


def test_accounts_as_text():
    """Of a finished run that a prediction belongs to, and of one that has no units yet."""
    more = {"compile": 1.2, "read": 0.1, "write": 0.2, "threads": 1, "cpu": 3.0, "gpu": 0.9, "gpu_bytes": 5 << 30}
    units = [unit(1, 7, 1.0, 5.0, **more), unit(2, 8, 1.0, 3.0), unit(2, 8, 3.0, 4.0, status="failed")]
    units += [unit(2, 9, 104.0, 105.5, kind="evaluate", threads=2)]
    found = run_account.account(units, 106.0, 2)
    found["sessions"][0]["server"] = "w1"
    run = {"run_id": 4, "function": "f", "status": "finished", "units": {"train": 2, "evaluate": 1}}
    moved = {"hops": 3, "bytes": 2048, "seconds": 0.5, "ways": {"coordinator": {"hops": 1}}}
    cases = {name: {"training_units": count} for name, count in (("least", 1), ("expected", 4), ("most", 9))}
    expected = {**PLAN["prediction"], "search": cases, "sources": ["history", "arithmetic"]}
    finished = {**run, "moved": moved, "prediction": expected, "actual": {**found, "seconds": 106.0}}
    empty = {**run_account.account([], 6.0, 1), "seconds": 6.0}
    begun = {**run, "status": "running", "moved": {"hops": 0}, "prediction": None, "actual": empty}
    assert_golden("account", "\n\n".join(map(run_account.render, (finished, begun))))
