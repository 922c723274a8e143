"""The live page's queries: what it asks again and what not, and how old its answers say that they are."""

import math
import threading
import time

import pytest
import sqlalchemy

from pg_mop_client.database import make_engine
from pg_mop_client.snapshots import Snapshots, Summaries
from pg_mop_client.watching import rest
from support.cluster import eventually
from support.workload import ADAM, dense, fit, load, make_data, selection

SECONDS = 6  # of asking


@pytest.fixture(scope="module")
def run_id(db):
    make_data(db, rows=60, segments=2)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.01, 0.02)])
    return fit(db, "flowers_packed", "models", "mst", 2)


@pytest.fixture
def watcher(db):
    """A role that sees the runs of the superuser, and may neither read their notes nor call mop_report."""
    db.run("DROP ROLE IF EXISTS watcher; CREATE ROLE watcher LOGIN NOINHERIT")
    db.run(f"GRANT {db.user} TO watcher; GRANT USAGE ON SCHEMA madlib TO watcher")
    db.run("GRANT SELECT ON madlib.mop_runs, madlib.mop_run_progress TO watcher")
    db.run(
        "GRANT EXECUTE ON FUNCTION madlib.mop_status(text, integer, timestamptz, text), madlib.mop_trains(text) TO watcher"
    )
    yield "watcher"
    db.run("DROP OWNED BY watcher; DROP ROLE watcher")


def test_a_summary_that_fails_is_not_read_again_and_keeps_no_other_from_its_turn(db, run_id, watcher):
    engine, asked = make_engine(db.uri(watcher)), []

    @sqlalchemy.event.listens_for(engine, "before_cursor_execute")
    def note(connection, cursor, statement, *others):
        if "'summary'" in statement:
            asked.append(time.monotonic())

    snapshots = Snapshots(engine, "madlib")
    count = len(snapshots.runs(1)["runs"])
    assert count >= 1
    assert eventually(lambda: snapshots.runs(1)["pending"] == 0, 60)
    assert len(asked) == count
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found = snapshots.runs(1)
        assert found["pending"] == 0 and found["summaries"] == {}
        time.sleep(0.2)
    assert len(asked) == count
    engine.dispose()


def test_a_summary_that_is_being_read_is_not_asked_for_again(db, run_id):
    engine, asked, begun, may_end = make_engine(db.uri()), [], threading.Event(), threading.Event()

    @sqlalchemy.event.listens_for(engine, "before_cursor_execute")
    def note(connection, cursor, statement, *others):
        if "'summary'" in statement:
            asked.append(statement)
            begun.set()
            may_end.wait(180)

    snapshots = Snapshots(engine, "madlib")
    runs = [run for run in snapshots.runs(1)["runs"] if run["run_id"] == run_id]
    snapshots.summaries.of(runs)
    assert begun.wait(180)
    assert snapshots.summaries.of(runs) == ({}, 1)
    may_end.set()
    assert eventually(lambda: run_id in snapshots.summaries._known and not snapshots.summaries._reads, 60)
    assert len(asked) == len(snapshots.summaries._known)
    engine.dispose()


def test_a_summary_is_read_once_and_given_with_the_list(db, run_id):
    engine = make_engine(db.uri())
    snapshots = Snapshots(engine, "madlib")
    assert eventually(lambda: run_id in snapshots.runs(1)["summaries"], 60)
    assert snapshots.runs(1)["summaries"][run_id]["summary"]["best"]["value"] is not None
    engine.dispose()


def test_a_report_without_an_answer_does_not_end_the_reader(db, run_id):
    db.run("CREATE SCHEMA unanswered")
    db.run(
        "CREATE FUNCTION unanswered.mop_report(bigint, text, integer[] DEFAULT NULL) RETURNS text LANGUAGE sql "
        "AS 'SELECT NULL::text'"
    )
    engine = make_engine(db.uri())
    summaries, runs = (
        Summaries(engine, "unanswered"),
        [{"run_id": own, "status": "finished", "finished_at": "now"} for own in (run_id, run_id + 1)],
    )
    assert summaries.of(runs) == ({}, 2)
    assert eventually(lambda: summaries.of(runs) == ({}, 0), 60)
    snapshots = Snapshots(engine, "unanswered")
    assert snapshots.some(run_id, [1]) is None
    assert eventually(lambda: not snapshots._snapshot(run_id).reading, 60)
    engine.dispose()
    db.run("DROP SCHEMA unanswered CASCADE")


def test_the_age_of_the_results_is_not_that_of_the_counters(db, run_id):
    engine = make_engine(db.uri())
    snapshots = Snapshots(engine, "madlib")
    number, first, _ = snapshots.run(run_id)
    assert abs(first["data_age"] - first["age"]) < 5

    def look(is_as=lambda head: True):
        """A new look. A machine that stands still in one makes it old: then another one is taken."""
        found = []

        def wanted():
            snapshots._snapshot(run_id).looks_at = 0.0
            found[:] = snapshots.run(run_id)
            return is_as(found[1])

        eventually(wanted, 30)
        return found

    # nothing has changed: what was read before is right now
    time.sleep(1)
    same, head, _ = look(lambda head: head["data_age"] <= head["age"] + 0.5 and head["age"] < 1)
    assert same == number and head["data_age"] <= head["age"] + 0.5 and head["age"] < 1
    # a unit changes, and the results' turn has not come: they grow old
    db.run(
        "UPDATE madlib.mop_unit SET status = 'running' WHERE run_id = %s AND kind = 'evaluate' AND (stage, segment) = ("
        "SELECT max(stage), 1 FROM madlib.mop_unit WHERE run_id = %s AND kind = 'evaluate')",
        [run_id, run_id],
    )
    snapshots._snapshot(run_id).reads_at = math.inf
    time.sleep(1)
    same, head, _ = look(lambda head: head["age"] < 1 < head["data_age"])
    assert same == number and head["done"] < first["done"]
    assert head["age"] < 1 < head["data_age"]
    # their turn has come
    snapshots._snapshot(run_id).reads_at = 0.0
    eventually(lambda: look()[0] != number, 60)
    later, head, _ = look()
    assert later != number and head["data_age"] <= head["age"] + 5
    engine.dispose()


def test_a_query_is_asked_again_after_a_second_at_least_and_a_minute_at_most():
    assert [rest(took) for took in (0.001, 0.5, 9.0, 100.0)] == [1, 25, 60, 500]
