"""Greenplum: what it has of its own. Rows are packed into its segments, and trainers stand beside these.

(tests/thorough/engines/test_engines.py shows that it trains as the other engines do.)
"""

import json
import os
import pathlib
import signal
import time

import numpy as np
import psycopg2
import pytest

from support import greenplum
from support.client import Calling, connect
from support.cluster import eventually
from support.trainers import of_backend, trainers
from support.workload import ADAM, assert_invariants, dense, fit, load, make_data, pickled, selection

greenplum.needed("tests/thorough/engines/test_greenplum.py")

DATABASE = "pg_mop_tests"
REQUEST = {"kind": "train", "dtypes": ["<f4"], "inputs": 1, "outputs": None, "models": []}
MODEL = {"stage": 1, "model_id": 1, "iteration": 1, "architecture": "", "compile_params": "", "plain_weights": True}
TABLES = (
    "run",
    "configuration",
    "segment",
    "unit",
    "stage_state",
    "state_table",
    "metric",
    "stage",
    "request",
    "search_log",
    "checkpoint",
    "control_request",
    "hop",
    "remote_run",
    "copy",
)


def make(role):
    return (
        f"DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{role}') THEN "
        f"CREATE ROLE {role} LOGIN; END IF; END $$; GRANT mop_user TO {role}; "
        f"GRANT CREATE ON DATABASE {DATABASE} TO {role}"
    )


@pytest.fixture(scope="module")
def db():
    """A superuser's session in a fresh database with the extension in schema madlib, and roles ann and bob."""
    made = greenplum.Database(DATABASE)
    client = made.db
    client.run(make("ann"))
    client.run(make("bob"))
    yield client
    made.close()
    client = greenplum.Client(greenplum.Coordinator(), "postgres")
    client.run("DROP ROLE ann, bob")
    client.close()


@pytest.fixture
def ann(db):
    client = db.another("ann")
    yield client
    client.close()


@pytest.fixture
def bob(db):
    client = db.another("bob")
    yield client
    client.close()


RUN = {
    "function": "madlib_keras_fit_multiple_model",
    "source_table": "s",
    "model_output_table": "o",
    "seed": 7,
    "scheduler": "randomized",
    "num_iterations": 2,
    "metrics_iterations": [1, 2],
    "configurations": 2,
    "segments": 2,
    "parameters": {"settings": {}, "arguments": {}},
    "sessions": 2,
}
SEGMENTS = [
    {
        "dataset": "training",
        "segment": key,
        "rows": 10,
        "bytes": 100,
        "fingerprint": f"f{key}",
        "server": None,
        "copies": [{"fingerprint": "c", "server": None}] if key else [],
    }
    for key in (0, 1)
]


def open_run(client, **changed):
    """A run of two configurations of two iterations, whose first is shared: its number."""
    run = {**RUN, "coordinator": client.value("SELECT backend FROM madlib.mop_tokens"), **changed}
    run_id = client.value("SELECT madlib.mop_open_run(%s, %s)", [json.dumps(run), json.dumps(SEGMENTS)])
    configurations = [
        {"mst_key": key, "model_id": 1, "compile_params": "c", "fit_params": "f", "model_arch": "a"} for key in (1, 2)
    ]
    stages = [
        {"stage": 1, "parent": None, "iteration": 1, "version": 0, "mst_key": 1},
        {"stage": 2, "parent": 1, "iteration": 2, "version": 2, "mst_key": 1},
        {"stage": 3, "parent": 1, "iteration": 2, "version": 2, "mst_key": 2},
    ]
    stages = [
        {"identity": f"i{s['stage']}", "compile_params": "c", "fit_params": "f", "evaluated": s["stage"] == 3, **s}
        for s in stages
    ]
    requests = [{"mst_key": key, "iteration": 1, "stage": 1} for key in (1, 2)]
    requests += [{"mst_key": key, "iteration": 2, "stage": key + 1} for key in (1, 2)]
    ask = "SELECT madlib.mop_ask(%s, 1, %s, %s, %s)"
    client.run(ask, [run_id, json.dumps(configurations), json.dumps(stages), json.dumps(requests)])
    # asked again, by a session whose answer got lost; one is to be evaluated now
    stages[0]["evaluated"] = True
    client.run(ask, [run_id, "[]", json.dumps(stages), json.dumps(requests)])
    return run_id


def train(client, run_id, stage, segment, version, iteration=1, fencing_token=1, state=b"\0\1state"):
    client.run(
        "SELECT madlib.mop_begin_units(%s, %s, 'train', 'training', ARRAY[%s], ARRAY[%s], ARRAY[%s], '{1}', '{0}')",
        [run_id, fencing_token, stage, iteration, segment],
    )
    client.run("BEGIN")
    taken = client.run(
        "SELECT * FROM madlib.mop_take_states(%s, %s, ARRAY[%s], ARRAY[%s], true)",
        [run_id, fencing_token, stage, version - 1],
    )
    client.run("SELECT madlib.mop_put_state(%s, %s, %s, 1, 0, %s)", [run_id, stage, version, state])
    finish(
        client,
        run_id,
        segment,
        "train",
        stage=stage,
        version=version,
        state_table=1,
        bytes=len(state),
        release=[],
        loss=0.5,
        compilations=1,
        choice={},
    )
    client.run("COMMIT")
    return taken[0]


def finish(client, run_id, segment, kind, **more):
    client.run(
        "SELECT madlib.mop_finish_units(%s, %s, 'training', %s)",
        [
            run_id,
            kind,
            json.dumps(
                [
                    {
                        "segment": segment,
                        "attempt": 1,
                        "kernel": "plain",
                        "rows": 10,
                        "read_seconds": 0,
                        "train_seconds": 1,
                        "write_seconds": 0,
                        **more,
                    }
                ]
            ),
        ],
    )


def evaluate(client, run_id, stage, segment, sums):
    client.run(
        "SELECT madlib.mop_begin_units(%s, 1, 'evaluate', 'training', ARRAY[%s], '{1}', ARRAY[%s], '{1}', '{0}')",
        [run_id, stage, segment],
    )
    row = client.run(
        "SELECT * FROM madlib.mop_put_sums(%s, ARRAY[%s], 'training', %s, ARRAY[%s], %s)",
        [run_id, stage, segment, len(sums), sums],
    )[0]
    total = None
    if row["complete"]:
        assert row["complete"] == [stage] and row["whose"] == [stage] * len(row["value"])
        total = [
            sum(values)
            for values in zip(
                *(
                    [value for at, value in zip(row["segments"], row["value"]) if at == one]
                    for one in set(row["segments"])
                )
            )
        ]
        client.run(
            "SELECT madlib.mop_note_metrics(%s, ARRAY[%s], 'training', '{0.25}', '{0.5}', ARRAY[%s])",
            [run_id, stage, json.dumps({"accuracy": 0.5})],
        )
    finish(client, run_id, segment, "evaluate", stage=stage, loss=0.25, metric=0.5, compilations=0)
    return total


def test_another_role_sees_nothing_and_writes_nothing(db, ann, bob):
    run_id = open_run(ann)
    token = ann.value("SELECT token FROM madlib.mop_tokens")
    for table in (*TABLES, "owner", "output", "secret", "limit", "partial", "job"):
        assert "permission denied" in str(bob.error(f"SELECT * FROM madlib.mop_{table}"))
        for write in ("DELETE FROM", "INSERT INTO"):
            rest = " DEFAULT VALUES" if write == "INSERT INTO" else ""
            assert "permission denied" in str(ann.error(f"{write} madlib.mop_{table}{rest}"))
    for table in TABLES:
        assert bob.value(f"SELECT count(*) FROM madlib.mop_own_{table}") == 0, table
    for view in (
        "runs",
        "units",
        "stages",
        "progress",
        "trials",
        "metrics",
        "metrics_wide",
        "visit_order",
        "checkpoints",
        "kernel_choices",
        "abandoned_runs",
    ):
        assert bob.value(f"SELECT count(*) FROM madlib.mop_{view}") == 0, view
    assert ann.value("SELECT count(*) FROM madlib.mop_own_run WHERE run_id = %s", [run_id]) == 1
    for call in (
        "mop_begin_units(%s, 1, 'train', 'training', '{1}', '{1}', '{0}', '{1}', '{0}')",
        "mop_close_run(%s, 1, 'failed', NULL)",
        "mop_read_states(%s, '{1}', '{1}')",
        "mop_drop_run(%s)",
        "mop_stop_trial(%s, 1)",
        "mop_set_sessions(%s, 2)",
    ):
        assert f'there is no run {run_id} of role "bob"' in str(bob.error(f"SELECT madlib.{call}", [run_id])), call
    assert "no token" in str(bob.error("SELECT madlib.mop_has_output(%s, %s)", [run_id, token]))
    assert "no token" in str(ann.error("SELECT madlib.mop_has_output(%s, %s)", [run_id, token]))  # of another moment
    assert "no such session" in str(
        bob.error(
            "SELECT madlib.mop_open_run(%s, '[]')",
            [json.dumps({**RUN, "coordinator": ann.value("SELECT backend FROM madlib.mop_tokens")})],
        )
    )
    for function in (
        "mop_caller('x')",
        "mop_own(1, 'x')",
        "mop_lock_run_shared(1)",
        "mop_lock_run_exclusive(1)",
        "mop_delete_run(1)",
        "mop_delete_state_tables(1)",
        "mop_lock_number('run', 1, 0)",
        "mop_reservation(1, 'a', 1)",
        "mop_the_secret(1)",
        "mop_token_role(1, 'x', 1, 'x')",
        "mop_standing(1, 1, 'x', 1, 'x')",
        "mop_know(1, 1, 'x', 'x')",
        "mop_at_objects('{x}', '{x}')",
    ):
        assert "permission denied for function" in str(ann.error(f"SELECT madlib.{function}")), function
    # who is a member of the role sees its runs, and writes none
    db.run("GRANT ann TO bob")
    assert bob.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == "running"
    assert bob.value("SELECT count(*) FROM madlib.mop_own_run") == 0
    assert "there is no run" in str(bob.error("SELECT madlib.mop_drop_run(%s)", [run_id]))
    db.run("REVOKE ann FROM bob")


def test_what_people_want_of_a_run_reaches_it(ann):
    run_id = open_run(ann)
    ann.run("SELECT madlib.mop_stop_trial(%s, 2)", [run_id])
    ann.run("SELECT madlib.mop_add_trial(%s, 1, 'c', 'f', 3)", [run_id])
    assert "has no mst_key 9" in str(ann.error("SELECT madlib.mop_stop_trial(%s, 9)", [run_id]))
    assert [row["w"] for row in ann.run("SELECT madlib.mop_take_control_requests(%s, 1, false) AS w", [run_id])] == [
        {"stop": 2, "by": "ann"},
        {"add": [1, "c", "f"], "iterations": 3, "by": "ann"},
    ]
    assert ann.run("SELECT madlib.mop_take_control_requests(%s, 1, false)", [run_id]) == []
    ann.run("SELECT madlib.mop_set_sessions(%s, 3)", [run_id])
    assert ann.value("SELECT sessions FROM madlib.mop_own_run WHERE run_id = %s", [run_id]) == 3
    ann.run('SELECT madlib.mop_log_search(%s, 1, 1, \'[{"a": 1}, {"b": 2}]\')', [run_id])
    assert ann.run("SELECT number, event FROM madlib.mop_own_search_log WHERE run_id = %s ORDER BY 1", [run_id]) == [
        {"number": 1, "event": {"a": 1}},
        {"number": 2, "event": {"b": 2}},
    ]
    ann.run("SELECT madlib.mop_withdraw(%s, 1, 2, 1, 'enough')", [run_id])
    ann.run("SELECT madlib.mop_close_run(%s, 1, 'finished', NULL)", [run_id])
    assert ann.run("SELECT path, reason FROM madlib.mop_trials WHERE run_id = %s AND mst_key = 2", [run_id]) == [
        {"path": [1], "reason": "enough"}
    ]
    assert "is not running" in str(ann.error("SELECT madlib.mop_stop_trial(%s, 2)", [run_id]))


# --- packing ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(db):
    """A superuser's session in a schema with `rows41`, packed as `packed` and as validation rows in `val`."""
    client = db.another()
    client.run(
        "CREATE SCHEMA packing; SET search_path = packing; SET pg_mop.seed = 3; SET client_min_messages = warning"
    )
    client.run(
        "CREATE TABLE rows41 AS SELECT i AS id, ARRAY[i, -i]::real[] AS x, "
        "CASE WHEN i % 4 > 0 THEN (ARRAY['b','a','c'])[i % 4] END AS y, i / 7.0 AS amount "
        "FROM generate_series(1, 41) i"
    )
    client.run("SELECT madlib.training_preprocessor_dl('rows41', 'packed', 'y', 'x', 4, 2)")
    client.run("SELECT madlib.validation_preprocessor_dl('rows41', 'val', 'y', 'x', 'packed', 4)")
    yield client
    client.close()


def unpacked(client, table):
    """[(x, class of y), ...] of a packed table, in the order of its buffers."""
    classes = client.value(f"SELECT y_class_values FROM {table}_summary")
    found = []
    for row in client.run(f"SELECT x, x_shape, y, y_shape FROM {table} ORDER BY buffer_id"):
        x = np.frombuffer(row["x"], "<f4").reshape(row["x_shape"])
        hot = np.frombuffer(row["y"], "<i2").reshape(row["y_shape"])
        assert (hot.sum(axis=1) == 1).all()
        found += zip(x.tolist(), (classes[code] for code in hot.argmax(axis=1)))
    return found


def test_buffers_are_dealt_out_over_the_segments_by_keys_that_both_tables_share(packed):
    places = packed.run("SELECT gp_segment_id AS at, dist_key FROM madlib.mop_host_segment ORDER BY 1")
    assert [row["at"] for row in places] == packed.value(
        "SELECT array_agg(content ORDER BY content) FROM gp_segment_configuration WHERE role = 'p' AND content >= 0"
    )
    for table in ("packed", "val"):
        rows = packed.run(f"SELECT gp_segment_id AS at, __dist_key__ AS key, buffer_id FROM {table} ORDER BY 3")
        assert [row["buffer_id"] for row in rows] == list(range(11))
        assert [(row["at"], row["key"]) for row in rows] == [
            (places[i % len(places)]["at"], places[i % len(places)]["dist_key"]) for i in range(11)
        ]
        assert packed.value(
            "SELECT array_agg(a.attname::text) FROM gp_distribution_policy p JOIN pg_attribute a ON "
            f"a.attrelid = p.localoid AND a.attnum = ANY (p.distkey) WHERE p.localoid = '{table}'"
            "::regclass"
        ) == ["__dist_key__"]
    row = packed.run("SELECT * FROM packed_summary")[0]
    assert row["distribution_rules"] == row["__internal_gpu_config__"] == "all_segments"
    assert row["y_class_values"] == [None, "a", "b", "c"] and row["buffer_size"] == 4


def test_every_row_is_packed_once_with_its_label_and_the_seed_decides_the_order(packed):
    wanted = [([i / 2, -i / 2], [None, "b", "a", "c"][i % 4]) for i in range(1, 42)]
    training = unpacked(packed, "packed")
    assert sorted(training) == wanted == sorted(unpacked(packed, "val")) and training != wanted
    for seed, table, same in ((3, "again", True), (4, "other", False)):
        packed.run(f"SET pg_mop.seed = {seed}")
        packed.run(f"SELECT madlib.training_preprocessor_dl('rows41', '{table}', 'y', 'x', 4, 2)")
        assert (unpacked(packed, table) == training) is same and sorted(unpacked(packed, table)) == wanted
    packed.run("CREATE VIEW seen AS SELECT * FROM rows41")
    packed.run("SELECT madlib.training_preprocessor_dl('seen', 'of_view', 'y', 'x', 4, 2)")
    assert sorted(unpacked(packed, "of_view")) == wanted


def test_numbers_are_packed_for_regression_and_from_a_partitioned_table(packed):
    packed.run(
        "CREATE TABLE parted (id integer, x real[], y float8) DISTRIBUTED BY (id) PARTITION BY RANGE (id) "
        "(START (0) END (60) EVERY (20))"
    )
    packed.run("INSERT INTO parted SELECT id, x, amount FROM rows41")
    packed.run("SELECT madlib.training_preprocessor_dl('parted', 'numbers', 'y', 'x', dependent_dtype := 'float32')")
    pairs = [
        (x[0], y)
        for row in packed.run("SELECT x, y FROM numbers")
        for x, y in zip(np.frombuffer(row["x"], "<f4").reshape(-1, 2), np.frombuffer(row["y"], "<f4"))
    ]
    assert sorted(pairs) == [(i, np.float32(i / 7)) for i in range(1, 42)]


def test_rules_choose_the_segments(packed):
    known = packed.run(
        "SELECT dbid, content FROM gp_segment_configuration WHERE role = 'p' AND content >= 0 ORDER BY 2"
    )
    chosen = known[1:]
    packed.run(
        "CREATE TABLE chosen AS SELECT dbid::integer FROM gp_segment_configuration WHERE role = 'p' AND content > 0"
    )
    packed.run("SELECT madlib.training_preprocessor_dl('rows41', 'on_some', 'y', 'x', 4, 2, NULL, 'chosen')")
    assert [row["at"] for row in packed.run("SELECT DISTINCT gp_segment_id AS at FROM on_some ORDER BY 1")] == [
        row["content"] for row in chosen
    ]
    row = packed.run("SELECT distribution_rules, __internal_gpu_config__ AS contents FROM on_some_summary")[0]
    assert row == {"distribution_rules": [r["dbid"] for r in chosen], "contents": [r["content"] for r in chosen]}
    packed.run(
        "CREATE TABLE twice AS SELECT unnest(ARRAY[%s, %s]) AS dbid; CREATE TABLE wrong AS SELECT 999 AS dbid; "
        "CREATE TABLE bare AS SELECT 1 AS id",
        [known[0]["dbid"]] * 2,
    )
    for rules, words in (
        ("twice", "duplicate dbid"),
        ("wrong", "invalid dbid 999"),
        ("absent", "does not exist"),
        ("bare", "must contain the column"),
        ("gpu_segments", "No GPUs configured"),
    ):
        assert words in str(
            packed.error("SELECT madlib.training_preprocessor_dl('rows41', 'never', 'y', 'x', 4, 2, NULL, %s)", [rules])
        )
    packed.run("SELECT madlib.gpu_configuration('gpus', 'nvidia')")
    assert packed.value("SELECT count(*) FROM gpus") == 0


# --- training (what all engines have in common: test_engines.py) -------------------------------------------


SETTINGS = (
    "SET search_path = trained; SET pg_mop.threads = 1; SET pg_mop.kernel = plain; SET client_min_messages = warning"
)


@pytest.fixture(scope="module")
def trained(db):
    """A superuser's session in a schema with flowers, an architecture and a selection table."""
    client = db.another()
    client.run(f"CREATE SCHEMA trained; {SETTINGS}")
    make_data(client, rows=101, buffer_size=9)
    load(client, "arch", dense())
    selection(client, "mst", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.01, 0.02)])
    selection(client, "slow", "arch", [(1, ADAM.format(rate), "batch_size=1, epochs=8") for rate in (0.01, 0.02)])
    yield client
    client.close()


def test_madlibs_own_packed_tables_are_trained_on(trained):
    """They have no key, and numbers that MADlib has found."""
    trained.run(
        "CREATE TABLE theirs (__dist_key__ integer, x bytea, y bytea, x_shape integer[], y_shape integer[], "
        "buffer_id integer) DISTRIBUTED BY (__dist_key__); INSERT INTO theirs SELECT * FROM flowers_packed; "
        "CREATE TABLE theirs_summary AS SELECT * FROM flowers_packed_summary"
    )
    trained.run("UPDATE theirs_summary SET distribution_rules = 'all_segments'")
    mine, others = fit(trained, "flowers_packed", "mine", "mst"), fit(trained, "theirs", "others", "mst")
    assert_invariants(trained, others)
    assert mine != others and trained.value("SELECT count(*) FROM others WHERE model_weights IS NOT NULL") == 2
    trained.run(
        "CREATE TABLE astray AS SELECT * FROM flowers_packed DISTRIBUTED RANDOMLY; "
        "CREATE TABLE astray_summary AS SELECT * FROM flowers_packed_summary"
    )
    problem = trained.error("SELECT madlib.madlib_keras_fit_multiple_model('astray', 'never', 'mst', 1, FALSE)")
    assert "is not distributed by" in str(problem) and "SET DISTRIBUTED BY" in problem.diag.message_hint


def test_segments_on_a_host_have_one_fork_server_and_one_place_for_what_is_compiled(trained, ann):
    fit(trained, "flowers_packed", "of_fork_server", "mst")
    hosts = {}
    for row in trained.run(
        "SELECT hostname, datadir FROM gp_segment_configuration WHERE role = 'p' AND content >= 0 ORDER BY content"
    ):
        hosts.setdefault(row["hostname"], []).append(pathlib.Path(row["datadir"]) / "pgsql_tmp.pg_mop")
    beside = [(first, other) for first, *others in hosts.values() for other in others if first.exists()]
    if not beside:
        pytest.skip("that segments share a fork server was NOT RUN: none of them are on this host")
    for first, other in beside:
        assert (other / "shares").read_text() == str(first.parent)
        assert list(first.glob("fork-server-*.lock")) and list(first.glob("xla-*"))
    place = trained.value("SELECT max(dist_key) FROM madlib.mop_host_segment")
    ann.run("SELECT madlib.mop_share_host(%s)", [place])  # it says what is, whoever asks
    assert ann.error("SELECT madlib.mop_at_host('/tmp')").pgcode == "42501"


def test_a_session_trains_all_segments_of_a_host_with_one_trainer(trained):
    """Chains and single units give the same weights, and the second call finds its nets in the pool of the host."""
    if trained.value("SELECT count(DISTINCT hostname) FROM gp_segment_configuration WHERE content >= 0") > 1:
        pytest.skip("one trainer for all segments was NOT RUN: they are on several hosts")
    trained.run("SELECT madlib.mop_end_trainers()")
    weights, runs = [], []
    for seconds in (0, 0.5, 0.5):
        trained.run(f"SET pg_mop.chain_seconds = {seconds}")
        runs.append(fit(trained, "flowers_packed", "chained", "mst", 4))
        assert_invariants(trained, runs[-1])
        weights.append(trained.run("SELECT mst_key, model_weights::text FROM chained ORDER BY 1"))
    trained.run("RESET pg_mop.chain_seconds")
    assert weights[0] == weights[1] == weights[2]
    units = (
        "SELECT backend_pid, count(*) AS units, count(DISTINCT segment) AS segments, count(DISTINCT queued_at) AS commands, "
        "sum(compilations) AS compilations FROM madlib.mop_unit WHERE run_id = %s AND kind = 'train' GROUP BY 1"
    )
    single, _, second = ([dict(row) for row in trained.run(units, [run])] for run in runs)
    assert max(own["segments"] for own in single) == 3, "one session trains on all segments"
    assert sum(own["commands"] for own in second) < sum(own["units"] for own in second), "there are chains"
    assert sum(own["compilations"] for own in second) == 0
    pool = trained.run("SELECT state, nets FROM madlib.mop_trainers WHERE nets > 0")
    assert pool and {row["state"] for row in pool} == {"idle"}
    assert trained.value("SELECT madlib.mop_end_trainers()") >= len(pool)
    assert trained.run("SELECT FROM madlib.mop_trainers WHERE state = 'idle'") == []


START = "SELECT madlib.mop_at_start(%s, FALSE) FROM madlib.mop_host_segment WHERE dist_key = %s"


def test_a_trainer_at_a_segment_is_within_the_roles_limits(db, ann):
    place = ann.value("SELECT dist_key FROM madlib.mop_host_segment LIMIT 1")
    options, again = {"threads": 1, "cache_mb": 1, "idle_ms": 0, "keras_backend": "tensorflow"}, db.another("ann")
    db.run("INSERT INTO madlib.mop_limit (role, sessions) VALUES ('ann', 1)")
    try:
        ann.run(START, [json.dumps(options), place])
        assert again.error(START, [json.dumps(options), place]).pgcode == "53000"
        db.run("UPDATE madlib.mop_limit SET sessions = 2")
        again.run(START, [json.dumps(options), place])
        assert "memory_mb" in str(again.error(START, [json.dumps({**options, "memory_mb": -1}), place]))
    finally:
        db.run("DELETE FROM madlib.mop_limit")
        again.close()


@pytest.fixture(scope="module")
def predicting(trained):
    fit(trained, "flowers_packed", "models", "mst", iterations=1)
    return trained


PREDICT = "SELECT madlib.madlib_keras_predict('models', %s, 'id', 'x', %s, 'prob', FALSE, 1)"
# how the rows of 101 flowers may be brought together
FORMS = {
    "hashed": "TABLE {} AS SELECT * FROM flowers DISTRIBUTED BY (id)",
    "anywhere": "TABLE {} AS SELECT * FROM flowers DISTRIBUTED RANDOMLY",
    "everywhere": "TABLE {} AS SELECT * FROM flowers DISTRIBUTED REPLICATED",
    "partitioned": "TABLE {} (id integer, x real[], y text) DISTRIBUTED BY (y) PARTITION BY RANGE (id) "
    "(START (0) END (200) EVERY (40)); INSERT INTO {} SELECT * FROM flowers",
    "in_order": "VIEW {} AS SELECT id, x FROM flowers ORDER BY id LIMIT 1000",
    "joined": "VIEW {} AS SELECT a.id, b.x FROM flowers a JOIN flowers b ON a.id + 1 = b.id + 1",
    "grouped": "VIEW {} AS SELECT id, max(x) AS x FROM flowers GROUP BY id",
    "united": "VIEW {} AS SELECT id, x FROM flowers WHERE id < 9 UNION ALL SELECT id, x FROM flowers WHERE id >= 9",
    "made": "VIEW {} AS SELECT i AS id, ARRAY[i % 3, (i * 7) % 5, (i * 11) % 7, 1]::real[] AS x "
    "FROM generate_series(1, 101) AS i",
    "temporary": "TEMP TABLE {} AS SELECT * FROM flowers",
}


def another(predicting):
    """A session that predicts, and its process at the coordinator."""
    client = predicting.another()
    client.run(SETTINGS)
    return client, client.value("SELECT pg_backend_pid()")


def predicted(client, table):
    client.run("DROP TABLE IF EXISTS out")
    client.run(PREDICT, [table, "out"])
    return client.run("SELECT id, class_value, rank, round(prob::numeric, 5) AS prob FROM out ORDER BY 1, 3")


def test_rows_are_predicted_where_they_are_whatever_they_are_rows_of(predicting):
    """As the coordinator's own trainer predicts, which does so for what the coordinator itself reads."""
    client, session = another(predicting)
    client.run(
        "CREATE VIEW of_catalog AS SELECT id, ARRAY[id % 3, (id * 7) % 5, (id * 11) % 7, 1]::real[] AS x FROM "
        "(SELECT row_number() OVER (ORDER BY oid)::integer AS id FROM pg_class) c WHERE id <= 101"
    )
    assert [of for of in map(of_backend, trainers()) if of == session] == []
    expected = {
        form: (client.run("CREATE " + sql.replace("{}", form)), predicted(client, form))[1]
        for form, sql in FORMS.items()
    }
    there = set(greenplum.processes(client, session))
    assert session not in map(of_backend, trainers()), "the segments have done it"
    assert len({of for of in map(of_backend, trainers()) if of in there}) >= 3
    of_coordinator = "SELECT count(*) FROM madlib.mop_trainers"  # (in its own pool)
    before = client.value(of_coordinator)
    alone = predicted(client, "of_catalog")
    assert client.value(of_coordinator) == before + 1, "the coordinator has done it"
    assert len(alone) == 303
    for form, rows in expected.items():
        assert rows == alone, form
    client.run("BEGIN")
    client.run("INSERT INTO flowers VALUES (102, '{1,2,3,1}', 'a')")
    assert len(predicted(client, "flowers")) == 306, "what this transaction has written counts"
    client.run("ROLLBACK")
    client.close()


def test_a_cancel_or_a_lost_trainer_ends_predicting_and_the_next_call_does_it(predicting):
    client, session = another(predicting)
    client.run(
        "CREATE TABLE many AS SELECT i AS id, ARRAY[i % 3, 1, 2, 1]::real[] AS x FROM "
        "generate_series(1, 300000) AS i DISTRIBUTED BY (id)"
    )

    def at_work():
        there = set(greenplum.processes(predicting, session))
        return [pid for pid in trainers() if of_backend(pid) in there]

    calling = Calling(client, PREDICT % ("'many'", "'never'"))
    assert eventually(at_work, 60)
    predicting.run("SELECT pg_cancel_backend(%s)", [session])
    assert calling.end().pgcode == "57014"
    assert eventually(lambda: not at_work(), 60), "the trainers of the cancelled call have ended"
    calling = Calling(client, PREDICT % ("'many'", "'never'"))
    (lost, *_) = eventually(at_work, 60)
    os.kill(lost, signal.SIGKILL)
    assert "trainer" in str(calling.end())
    assert client.value("SELECT to_regclass('never') IS NULL")
    client.run(PREDICT, ["many", "out_of_many"])
    assert client.value("SELECT count(DISTINCT id) FROM out_of_many") == 300000
    client.close()


def test_a_cancel_amid_a_query_of_ours_does_no_harm_to_the_session(predicting):
    """Most of these come as the coordinator tells segments of a savepoint, past Python."""
    client, session = another(predicting)
    client.run(
        "CREATE TABLE few AS SELECT i AS id, ARRAY[i % 3, 1, 2, 1]::real[] AS x "
        "FROM generate_series(1, 101) AS i DISTRIBUTED BY (id)"
    )
    client.run(
        "CREATE FUNCTION pg_temp.many(count integer) RETURNS void LANGUAGE plpython3u AS $$\n"
        "from pg_mop.backend.frames import careful\n"
        "db = careful(plpy)\n"
        "for _ in range(count):\n"
        "    db.execute('SELECT 1')\n$$"
    )
    for number in range(20):
        calling = Calling(client, "SELECT pg_temp.many(1000000)")
        time.sleep(0.05 + 0.003 * number)
        predicting.run("SELECT pg_cancel_backend(%s)", [session])
        assert calling.end().pgcode in ("57014", "XX000")
        if number % 10 == 0:
            assert len(predicted(client, "few")) == 303
    client.close()


def test_users_run_nothing_as_the_owner_on_segments(db, ann):
    """There a query of a function's owner has the path of the caller's session, not the function's."""
    db.run("CREATE SCHEMA evil AUTHORIZATION ann")
    ann.run(
        "CREATE FUNCTION evil.array_length(integer[], integer) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'as %%', current_user; END $$; CREATE FUNCTION evil.equal(integer, integer) RETURNS "
        "boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'as %%', current_user; END $$; "
        "CREATE OPERATOR evil.= (PROCEDURE = evil.equal, LEFTARG = integer, RIGHTARG = integer)",
        [],
    )
    try:
        for path in ("evil", "evil, pg_catalog"):
            other = ann.another()
            other.run(f"SET search_path = {path}")
            run_id = open_run(other)
            train(other, run_id, 1, 0, 1)
            evaluate(other, run_id, 1, 0, [1.0, 2.0])
            other.close()
    finally:
        db.run("DROP SCHEMA evil CASCADE")


def test_a_token_is_of_no_use_in_a_later_transaction(ann):
    """Also not to the process that has seen it."""
    run_id = open_run(ann)
    ann.run("BEGIN")
    token = ann.value("SELECT token FROM madlib.mop_tokens")
    seal = "SELECT madlib.mop_output_token(%s, %s)"
    assert ann.value(seal, [run_id, token]) == ann.value(seal, [run_id, token])
    ann.run("COMMIT")
    assert ann.error(seal, [run_id, token]).pgcode == "42501"


def test_what_a_session_knows_of_an_extension_is_not_taken_for_that_of_the_next(db, ann):
    """Its secret is another one, and its runs have the numbers of those before."""
    made = greenplum.Database("pg_mop_again")
    try:
        mine, run = made.db, "SELECT madlib.mop_open_run(%s, '[]')"
        mine.run(make("ann").replace(DATABASE, "pg_mop_again"))
        hers = mine.another("ann")
        for again in (False, True):
            if again:
                mine.run("DROP EXTENSION pg_mop; CREATE EXTENSION pg_mop SCHEMA madlib")
            first, second = (mine, hers) if again else (hers, mine)
            for client in (first, second):
                client.run(
                    run, [json.dumps({**RUN, "coordinator": client.value("SELECT backend FROM madlib.mop_tokens")})]
                )
        assert hers.value("SELECT array_agg(run_id) FROM madlib.mop_own_run") == [2]
        assert "there is no run 1 of role" in str(hers.error("SELECT madlib.mop_close_run(1, 1, 'failed', NULL)"))
        hers.run("SELECT madlib.mop_close_run(2, 1, 'failed', NULL)")
        hers.close()
    finally:
        made.close()


def test_the_extensions_schema_may_need_quotes(db):
    maker = greenplum.Client(greenplum.Coordinator(), "postgres")
    maker.run("CREATE DATABASE pg_mop_quotes")
    try:
        client = greenplum.Client(greenplum.Coordinator(), "pg_mop_quotes")
        client.run('CREATE SCHEMA "our $1 Nets"')
        client.run("CREATE EXTENSION plpython3u")
        client.run('CREATE EXTENSION pg_mop SCHEMA "our $1 Nets"')
        own = client.value("SELECT oid::bigint FROM pg_roles WHERE rolname = current_user")
        assert client.value('SELECT "our $1 Nets".mop_caller("our $1 Nets".mop_token())::bigint') == own
        client.close()
    finally:
        eventually(lambda: maker.value("SELECT count(*) FROM pg_stat_activity WHERE datname = 'pg_mop_quotes'") == 0)
        maker.run("DROP DATABASE pg_mop_quotes")
        maker.close()


def test_places_are_found_anew_where_some_are_missing(trained):
    before = trained.run("SELECT dist_key FROM madlib.mop_host_segment ORDER BY 1")
    trained.run("DELETE FROM madlib.mop_host_segment WHERE dist_key = 0")
    fit(trained, "flowers_packed", "anew", "mst", iterations=1)
    assert trained.run("SELECT dist_key FROM madlib.mop_host_segment ORDER BY 1") == before


def test_a_part_of_a_unit_outside_of_one_is_an_error(trained):
    assert "no model" in str(trained.error("SELECT madlib.mop_at_predict(2, NULL, NULL, '1', NULL)"))
    """Never silently nothing: what is called elsewhere than where the trainer is finds no unit."""
    place = trained.value("SELECT dist_key FROM madlib.mop_host_segment LIMIT 1")
    for call in (
        "mop_at_end()",
        "mop_at_state(1, 'x')",
        f"mop_at_begin('{json.dumps({'unit': REQUEST})}')",
        "mop_at_save(0)",
    ):
        assert trained.error(f"SELECT madlib.{call} FROM madlib.mop_host_segment WHERE dist_key = {place}"), call


def test_a_segment_that_dies_ends_the_call_and_the_run_is_resumed(db, trained):
    """The caller's own transaction is lost with its process there."""
    other, run_id, pid = begin(trained, "struck")
    os.kill(greenplum.processes(db, pid)[0], signal.SIGKILL)
    assert other.end().pgcode == "58M01" and "with it this call's transaction" in str(other.error)
    assert other.client.value("SELECT count(*) FROM madlib.mop_functions()")  # (the Python of its process is whole)
    come_back(db, trained)
    ended_and_resumed(trained, run_id, "struck")


def test_a_coordinator_that_dies_leaves_a_run_that_is_resumed(db, trained):
    other, run_id, pid = begin(trained, "beheaded")
    os.kill(pid, signal.SIGKILL)
    assert other.end() is not None
    come_back(db, trained)
    ended_and_resumed(trained, run_id, "beheaded")


def begin(client, output):
    """A call of a session of its own that has done units: (it, the run's number, a worker session's process id)."""
    other = client.another()
    other.run(SETTINGS)
    call = Calling(
        other,
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', %s, 'slow', 2, FALSE)".replace(
            "%s", f"'{output}'"
        ),
    )
    find = "SELECT max(run_id) FROM madlib.mop_run WHERE status = 'running'"
    done = "SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished'"
    assert eventually(lambda: client.value(find) and client.value(done, [client.value(find)]) > 1, 120)
    worker = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND state = 'active' "
        "AND query LIKE '%%mop_run_unit%%' LIMIT 1"
    )
    run_id = client.value(find)
    assert eventually(lambda: client.value(worker, [f"pg_mop run {run_id}"]), 60)
    return call, run_id, client.value(worker, [f"pg_mop run {run_id}"])


def ended_and_resumed(client, run_id, output):
    status = "SELECT status FROM madlib.mop_runs WHERE run_id = %s"
    assert eventually(lambda: client.value(status, [run_id]) == "failed")
    client.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert_invariants(client, run_id)
    client.run(f"SELECT madlib.mop_replay(%s, '{output}_again')", [run_id])
    assert client.value(
        f"SELECT array_agg(a.model_weights = b.model_weights) FROM {output} a JOIN {output}_again b USING (mst_key)"
    ) == [True, True]


def come_back(*clients):
    """Wait until all segments answer, with new connections for these clients, whose own may be lost."""

    def answers(client):
        try:
            client.connection = connect(client.server, client.database, client.user)
            return client.value("SELECT count(*) FROM gp_dist_random('gp_id')")
        except psycopg2.OperationalError:
            return False

    for client in clients:
        assert eventually(lambda: answers(client), 60)  # noqa: B023
        client.run(SETTINGS)


def test_a_job_goes_on_without_its_client(trained, bob):
    job = "SELECT * FROM madlib.mop_jobs WHERE job = %s"
    client = trained.another()
    client.run(SETTINGS)
    number = client.value(
        "SELECT madlib.mop_submit($$ SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', "
        "'by_job', 'mst', 1, FALSE) $$)"
    )
    client.close()
    assert trained.value("SELECT madlib.mop_wait(%s, '2 min')", [number]) == "finished"
    (told,) = trained.run(job, [number])
    assert told["error"] is None and any(line.startswith("INFO:") for line in told["messages"])
    assert trained.value("SELECT status FROM madlib.mop_runs WHERE run_id = ANY (%s)", [told["runs"]]) == "finished"
    assert trained.value("SELECT count(*) FROM by_job") == 2 and bob.run(job, [number]) == []
    assert "there is no job" in str(bob.error("SELECT madlib.mop_cancel(%s)", [number]))
    long = trained.value("SELECT madlib.mop_submit('SELECT pg_sleep(600)')")
    assert trained.value("SELECT madlib.mop_wait(%s, '1 s')", [long]) == "running"
    assert trained.value("SELECT madlib.mop_cancel(%s)", [long]) is True
    assert trained.value("SELECT madlib.mop_wait(%s, '30 s')", [long]) == "cancelled"
    failed = trained.value("SELECT madlib.mop_submit('SELECT 1 / 0')")
    assert trained.value("SELECT madlib.mop_wait(%s)", [failed]) == "failed"
    assert trained.run(job, [failed])[0]["error"] == "division by zero"


def test_what_is_not_there_yet_says_so_before_any_work(trained):
    trained.run("SET pg_mop.trainers = 'gpus'")
    problem = trained.error("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'mst', 1, FALSE)")
    assert problem.pgcode == "0A000" and "not supported on Greenplum yet" in str(problem)
    assert problem.diag.message_hint
    trained.run("RESET pg_mop.trainers")
    for call in (
        "mop_split('flowers', 'parts', id := 'id')",
        "mop_pack('flowers', 'never', 'y')",
        "mop_train('never', 'flowers', 'y')",
        "mop_deploy('never', 'first', 1)",
        "mop_use_version('never', 1)",
        "mop_predict_row('never', '{}')",
        "mop_evaluate('never', 'flowers')",
    ):
        problem = trained.error(f"SELECT madlib.{call}")
        assert problem.pgcode == "0A000" and "is not supported on Greenplum yet" in str(problem), call
    assert trained.run("SELECT * FROM madlib.mop_models") == []
    assert trained.value("SELECT count(*) FROM pg_class WHERE relname ~ '^(never|parts)'") == 0


# Keras' own, by another name and shape: it must give the very same numbers
SQUARED = pickled(
    "squared",
    """
def squared(y_true, y_pred):
    import keras
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)
""",
)


def test_nobody_brings_a_segment_functions_of_his_own(db, ann, bob):
    """They run code: what a superuser has put into an object table, and who asks may read, comes there alone."""
    db.run(
        "DROP TABLE IF EXISTS madlib.functions; "
        "CREATE TABLE madlib.anns (id serial, name text, description text, object bytea)"
    )
    db.run("SELECT madlib.load_custom_function('functions', %s, 'squared')", [SQUARED])
    give = "SELECT madlib.mop_give_objects(0, %s, %s)"
    asked = json.dumps([["loss='squared', optimizer='SGD()', metrics=['accuracy']", None]])
    ann.run(give, ["functions", asked])
    assert "is not the one that the run began with" in str(
        ann.error(give, ["functions", asked.replace("null", '[["squared", "00"]]')])
    )
    assert "permission denied for function" in str(ann.error("SELECT madlib.mop_at_objects('{squared}', '{x}')"))
    assert "has not arrived at its segment" in str(
        ann.error(
            "SELECT madlib.mop_at_begin(%s)",
            [json.dumps({"unit": {**REQUEST, "models": [{**MODEL, "objects": ["squared"]}]}})],
        )
    )
    assert "no token" in str(
        bob.error(f"{give[:-1]}, %s)", ["functions", asked, ann.value("SELECT token FROM madlib.mop_tokens")])
    )
    db.run("ALTER TABLE madlib.anns OWNER TO ann")
    ann.run("INSERT INTO madlib.anns (name, object) VALUES ('squared', 'x')")
    assert "is no superuser" in str(ann.error(give, ["anns", asked]))
    db.run("REVOKE SELECT ON madlib.functions FROM PUBLIC")
    assert "permission denied for object table" in str(ann.error(give, ["functions", asked]))
    db.run("DROP TABLE madlib.anns, madlib.functions")
