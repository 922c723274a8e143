"""The view mop_monitoring, and the files for exporters and alerts that docs/ has: asked as a member of pg_monitor."""

import json
import re
import time

import pytest
import yaml

from support.client import Calling
from support.cluster import ROOT, eventually
from support.forged import own_run
from support.tries import tries
from support.workload import ADAM, dense, fit, last_run, load, make_data, selection

DOCS = ROOT / "docs"
COLLECTOR = yaml.safe_load((DOCS / "pg_mop.collector.yml").read_text())
QUERIES = yaml.safe_load((DOCS / "pg_mop.queries.yml").read_text())
RULES = yaml.safe_load((DOCS / "pg_mop.rules.yml").read_text())


@pytest.fixture(scope="module")
def roles(db):
    """A role that only watches, and two that train."""
    for role in ("watcher", "trains", "trains_too"):
        db.run(f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN")
    db.run("GRANT pg_monitor TO watcher; GRANT mop_user TO trains, trains_too; GRANT CREATE ON SCHEMA public TO trains")
    clients = {role: db.another(role) for role in ("watcher", "trains", "trains_too")}
    yield clients
    for client in clients.values():
        client.close()
    db.run(
        "DELETE FROM madlib.mop_run; DROP OWNED BY trains, trains_too, watcher; DROP ROLE watcher, trains, trains_too"
    )


def numbers(client, role="trains"):
    (row,) = client.run("SELECT * FROM madlib.mop_monitoring WHERE role = %s", [role])
    return row


def begun(client):
    """The number of a run that a client's session has taken over: it is in progress, with the fencing token 2."""
    run = own_run(client)
    assert client.value("SELECT madlib.mop_reopen_run(%s, backend) FROM madlib.mop_tokens", [run]) == 2
    return run


@pytest.fixture(scope="module")
def run_id(roles):
    """A finished run of two configurations, two iterations and two segments."""
    trains = roles["trains"]
    make_data(trains, segments=2)
    load(trains, "arch", dense())
    selection(trains, "mst", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.05, 0.01)])
    return fit(trains, "flowers_packed", "models", "mst", 2)


def test_the_files_for_exporters_have_every_number_and_run_as_who_only_watches(db, roles, run_id):
    watcher = roles["watcher"]
    queries = {query["query_name"]: query["query"] for query in COLLECTOR["queries"]}
    seen, kinds = set(), {}
    for metric in COLLECTOR["metrics"]:
        rows = watcher.run(queries[metric["query_ref"]])
        (value,) = metric["values"]
        labels = [tuple(row[label] for label in metric["key_labels"]) for row in rows]
        assert "trains" in {label for (label,) in labels} and len(set(labels)) == len(labels)
        assert all(isinstance(row[value], (int, float)) for row in rows), value
        assert metric["metric_name"] == "pg_mop_" + value and metric["help"]
        assert metric["type"] == ("counter" if value.endswith("_total") else "gauge")
        seen.add(value)
        kinds[value] = metric["type"].upper(), metric["help"]
    assert seen | {"role"} == set(rows[0])
    (told,) = QUERIES.values()
    assert watcher.run(told["query"]) and QUERIES.keys() == {"pg_mop"}
    columns = {name: (one["usage"], one["description"]) for metric in told["metrics"] for name, one in metric.items()}
    assert columns.pop("role")[0] == "LABEL" and columns == kinds
    for rule in RULES["groups"][0]["rules"]:
        names = set(re.findall(r"pg_mop_(\w+)", rule["expr"]))
        advice = rule["annotations"]["summary"]
        hints = re.findall(r"SELECT .+? FROM madlib\.\w+", advice)
        assert (
            names and names <= seen and hints and "mop_" not in re.sub("|".join(map(re.escape, hints)), "", advice)
        ), rule
        db.run("; ".join(hints))
    document = (DOCS / "administration.md").read_text()
    assert set(re.findall(r"\bpg_mop_(\w+)", document)) <= seen


def test_counters_are_those_of_the_log_and_stay_when_the_run_is_dropped(db, roles, run_id):
    watcher, trains = roles["watcher"], roles["trains"]
    units = db.value("SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished'", [run_id])
    before = numbers(watcher)
    assert before["units_finished_total"] >= units == 12
    assert before["runs_finished_total"] >= 1 and before["core_seconds_total"] > 0
    assert before["state_bytes"] > 0 and before["trainers_leased"] + before["trainers_idle"] > 0
    assert before["trainer_memory_bytes"] > 0 and before["runs_running"] == 0
    trains.run("SELECT madlib.mop_drop_run(%s)", [run_id])
    after = numbers(watcher)
    assert after["state_bytes"] == 0
    assert {k: v for k, v in after.items() if k.endswith("_total")} == {
        k: v for k, v in before.items() if k.endswith("_total")
    }
    for _ in range(120):  # (each is a row until they are summed up)
        run = begun(trains)
        trains.run("SELECT madlib.mop_close_run(%s, 2, 'cancelled', NULL); SELECT madlib.mop_drop_run(%s)", [run, run])

    def summed():  # (the memory of idle trainers may change at any time)
        return {name: number for name, number in numbers(watcher).items() if not name.startswith("trainer")}

    before = summed()
    rows = "SELECT count(*) FROM madlib.mop_past_count c JOIN madlib.mop_owner USING (owner) WHERE role = 'trains'"
    assert db.value(rows) > 100
    trains.run("SELECT madlib.mop_housekeeping()")
    assert db.value(rows) == 1 and summed() == before and before["runs_cancelled_total"] >= 120


def test_failures_retries_and_lost_runs_are_counted(db, roles):
    watcher, client = roles["watcher"], db.another("trains_too")
    client.run("SET application_name = 'pg_mop test'")
    run = begun(client)
    before = numbers(watcher, "trains_too")
    assert before["runs_running"] == 1 and before["runs_lost"] == 0
    for attempt in (1, 2):
        client.run("SELECT madlib.mop_fail_unit(%s, 2, 1, 1, 0, 'train', 'training', %s, 0, 'x')", [run, attempt])
    client.close()
    assert eventually(lambda: numbers(watcher, "trains_too")["runs_lost"] == 1)
    roles["trains_too"].run("SELECT madlib.mop_housekeeping()")
    after = numbers(watcher, "trains_too")
    changed = {name: after[name] - before[name] for name in after if name.endswith("_total")}
    assert {name: n for name, n in changed.items() if n} == {
        "runs_failed_total": 1, "units_failed_total": 2, "units_retried_total": 1,
    }  # fmt: skip
    assert after["runs_lost"] == after["runs_running"] == 0


def test_a_run_that_waits_is_told_of_and_its_core_seconds_stay(db, roles):
    watcher = roles["watcher"]
    for once in tries():  # (a run that has not asked for 10 s counts as gone, also if the machine stood still)
        began, runs = time.monotonic(), {}
        before = {role: numbers(watcher, role) for role in ("trains", "trains_too")}
        for role in ("trains", "trains_too"):
            roles[role].run("SET application_name = 'pg_mop test'")
            runs[role] = begun(roles[role])
            roles[role].run("SELECT madlib.mop_take_turn(%s, 2, 2, 0, 2, 1, 0)", [runs[role]])
        db.run(
            "UPDATE madlib.mop_turn SET charged_at = charged_at - interval '5 s', "
            "waits_since = waits_since - interval '5 s'"
        )
        first, second = numbers(watcher, "trains"), numbers(watcher, "trains_too")
        roles["trains"].run("SELECT madlib.mop_take_turn(%s, 2, 2, 0, 2, 1, 0)", [runs["trains"]])
        had = numbers(watcher)["core_seconds_total"] - before["trains"]["core_seconds_total"]
        for role, run in runs.items():
            roles[role].run("SELECT madlib.mop_close_run(%s, 2, 'finished', NULL)", [run])
            roles[role].run("RESET application_name")
        after = numbers(watcher)
        once.counts = time.monotonic() - began < 4
    assert (first["runs_running"], first["runs_waiting"], first["cores"]) == (1, 0, 2)
    assert (second["runs_running"], second["runs_waiting"], second["cores"]) == (0, 1, 0)
    assert 5 <= second["longest_wait_seconds"] < 60 and first["longest_wait_seconds"] == 0
    assert had >= 10
    assert after["core_seconds_total"] - before["trains"]["core_seconds_total"] == pytest.approx(had)
    assert after["cores"] == 0 and numbers(watcher, "trains_too")["runs_waiting"] == 0


def test_a_role_sees_its_own_numbers_alone(db, roles):
    own_run(roles["trains_too"])
    assert [row["role"] for row in roles["trains"].run("SELECT role FROM madlib.mop_monitoring")] == ["trains"]
    assert {"trains", "trains_too"} <= {
        row["role"] for row in roles["watcher"].run("SELECT role FROM madlib.mop_monitoring")
    }
    for table in ("mop_run_count", "mop_past_count", "mop_run", "mop_runs"):
        assert "permission denied" in str(roles["watcher"].error(f"SELECT * FROM madlib.{table}")), table
    assert "permission denied" in str(roles["watcher"].error("SELECT madlib.mop_enroll()"))
    db.run("CREATE ROLE reads_all LOGIN; GRANT pg_read_all_data, mop_user TO reads_all")
    reader = db.another("reads_all")
    assert reader.run("SELECT * FROM madlib.mop_monitoring") == []
    assert reader.run("SELECT * FROM madlib.mop_run_count") == reader.run("SELECT * FROM madlib.mop_past_count") == []
    reader.close()
    db.run("DROP OWNED BY reads_all; DROP ROLE reads_all")
    types = db.run("SELECT attname FROM pg_attribute WHERE attrelid = 'madlib.mop_monitoring'::regclass AND attnum > 0 "
                   "AND atttypid NOT IN ('bigint'::regtype, 'double precision'::regtype)")  # fmt: skip
    assert [row["attname"] for row in types] == ["role"]


def test_a_role_counts_for_its_own_runs_alone_and_upwards(db, roles):
    trains, note = roles["trains"], "SELECT madlib.mop_note_counts(%s, 1, %s, 0, 0, 0)"
    run = own_run(trains)
    before = numbers(trains)["units_finished_total"]
    for number, total in ((5, 5), (5, 5), (3, 5), (7, 7)):
        trains.run(note, [run, number])
        assert numbers(trains)["units_finished_total"] - before == total
    for bad in (-1, None, 10**15 + 1, 2**63 - 1):
        assert trains.error(note, [run, bad]).pgcode == "22023"
    for bad in ((1, None), (None, 2), (1, -1), (1, 10**15 + 1)):
        error = trains.error("SELECT madlib.mop_note_counts(%s, 1, 7, 0, 0, 0, %s, %s)", [run, *bad])
        assert error.pgcode == "22023", bad
    assert "there is no run" in str(roles["trains_too"].error(note, [run, 9]))
    assert "permission denied" in str(trains.error("SELECT madlib.mop_count(%s, 1, 9, 0, 0, 0, NULL)", [run]))
    assert "taken over" in str(trains.error("SELECT madlib.mop_note_counts(%s, 2, 9, 0, 0, 0)", [run]))


def test_no_role_makes_the_numbers_too_large_for_all(db, roles):
    trains, watcher = roles["trains"], roles["watcher"]
    before = numbers(watcher)
    db.run("INSERT INTO madlib.mop_past_count (owner, units_finished, sent_bytes) SELECT owner, 9e18::bigint, 9e18::bigint "
           "FROM madlib.mop_owner, generate_series(1, 101) WHERE role = 'trains'")  # fmt: skip
    assert numbers(watcher)["units_finished_total"] == 9 * 10**18
    trains.run("SELECT madlib.mop_housekeeping()")
    assert numbers(watcher)["sent_bytes_total"] == 9 * 10**18
    db.run("DELETE FROM madlib.mop_past_count c USING madlib.mop_owner o WHERE o.owner = c.owner AND role = 'trains'")
    run = begun(trains)
    hops = [{"stage": 1, "version": n, "source": "", "target": "s", "way": "direct", "bytes": 2**63 - 1, "seconds": 1}
            for n in (1, 2)]  # fmt: skip
    trains.run("SELECT madlib.mop_note_hops(%s, 2, %s)", [run, json.dumps(hops)])
    trains.run("SELECT madlib.mop_close_run(%s, 2, 'failed', NULL)", [run])
    assert numbers(watcher)["sent_bytes_total"] == 10**15 and before.keys() == numbers(watcher).keys()
    trains.run("SELECT madlib.mop_drop_run(%s)", [run])
    db.run("DELETE FROM madlib.mop_past_count c USING madlib.mop_owner o WHERE o.owner = c.owner AND role = 'trains'")


def test_a_running_run_adds_its_units_before_it_ends(db, roles):
    trains, watcher = roles["trains"], roles["watcher"]
    make_data(trains, "long_rows", rows=20_000, segments=2)
    load(trains, "long_arch", dense(64))
    selection(trains, "long_mst", "long_arch", [(1, ADAM.format(0.01), "batch_size=10")])
    before = numbers(watcher)["units_finished_total"]
    call = Calling(db.another("trains"), "SET pg_mop.kernel = 'plain'; SELECT madlib.madlib_keras_fit_multiple_model("
                   "'long_rows_packed', 'long_models', 'long_mst', 1000, FALSE)")  # fmt: skip
    assert eventually(lambda: numbers(watcher)["units_finished_total"] > before, 90)
    row = numbers(watcher)
    assert row["worker_sessions"] > 0 and row["trainers_leased"] > 0 and row["runs_running"] == 1
    db.run("SELECT pg_cancel_backend(coordinator_pid) FROM madlib.mop_run WHERE run_id = %s", [last_run(db)])
    assert call.end().pgcode == "57014"
    counted = db.value("SELECT sum(units_finished) FROM madlib.mop_run_count WHERE run_id = %s", [last_run(db)])
    units = "SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished'"
    assert counted == db.value(units, [last_run(db)])
