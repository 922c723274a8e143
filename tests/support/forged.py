"""Runs that a role makes by hand, by the functions that worker sessions write with."""

import json

import pytest

# the argument of mop_open_run; a caller adds the token of its session as "coordinator"
RUN = {
    "function": "f",
    "source_table": "s",
    "model_output_table": "m",
    "seed": 1,
    "scheduler": "r",
    "num_iterations": 1,
    "metrics_iterations": [1],
    "configurations": 1,
    "segments": 1,
    "parameters": {},
}


def own_run(client, compile_params="", architecture="", fit_params=None, state=None):
    """The number of a new run of one configuration; `state`: bytes that are its model state at version 1."""
    run = {**RUN, "coordinator": client.value("SELECT backend FROM madlib.mop_tokens")}
    configuration = {
        "mst_key": 1,
        "model_id": 1,
        "compile_params": compile_params,
        "fit_params": fit_params,
        "model_arch": architecture,
    }
    stage = {
        "stage": 1,
        "iteration": 1,
        "identity": "x",
        "mst_key": 1,
        "compile_params": compile_params,
        "fit_params": fit_params,
        "evaluated": True,
        "version": 0,
    }
    run_id = client.value("SELECT madlib.mop_open_run(%s, '[]')", [json.dumps(run)])
    client.run(
        "SELECT madlib.mop_ask(%s, 1, %s, %s, %s)",
        [run_id, *(json.dumps([row]) for row in (configuration, stage, {"mst_key": 1, "iteration": 1, "stage": 1}))],
    )
    if state is not None:
        client.run(
            "SELECT madlib.mop_begin_units(%s, 1, 'train', 'training', '{1}', '{1}', '{0}', '{1}', '{0}')", [run_id]
        )
        client.run("SELECT madlib.mop_put_state(%s, 1, 1, 1, 0, %s)", [run_id, state])
        client.run(
            "SELECT madlib.mop_finish_units(%s, 'train', 'training', %s)",
            [
                run_id,
                json.dumps(
                    [
                        {
                            "stage": 1,
                            "segment": 0,
                            "attempt": 1,
                            "version": 1,
                            "state_table": 1,
                            "bytes": len(state),
                            "release": [],
                        }
                    ]
                ),
            ],
        )
    client.run("SELECT madlib.mop_close_run(%s, 1, 'failed', 'by hand')", [run_id])
    return run_id


@pytest.fixture
def mark(tmp_path):
    """The path of a file that an attack would write; the server may write there."""
    for directory in (tmp_path, *list(tmp_path.parents)[:2]):
        directory.chmod(0o777)
    yield tmp_path / "mark"
    assert not (tmp_path / "mark").exists(), "the attack has left its mark"


def options(**changed):
    """The options of a trainer in such a unit."""
    return {"threads": 1, "keras_backend": "tensorflow", "cache_mb": 10, "idle_ms": 60000, **changed}


def unit(run_id, version=0, **changed):
    """A unit as mop_run_unit takes it, which a role has written itself; `changed`: other members."""
    return {
        "run_id": run_id,
        "fencing_token": 1,
        "iteration": 1,
        "segment": 0,
        "kind": "train",
        "dataset": "training",
        "attempt": 1,
        "fingerprint_sql": "SELECT '1' AS fingerprint",
        "fingerprint": "1",
        "table": "x",
        "replicas": None,
        "object_table": None,
        "seed": 1,
        "same_start": True,
        "options": options(),
        "dtypes": ["<f4"],
        "inputs": 1,
        "rows": 1,
        "bytes": 1,
        "dataset_key": "k",
        "keep": [],
        "share_prefixes": True,
        "run_seconds": 0,
        "coming": None,
        "outputs": {"widths": [3], "what": "classes", "table": "x"},
        "rows_sql": "SELECT madlib.mop_sub_epoch(1, 1, ARRAY[''::bytea], ARRAY['{0}']) AS report",
        "models": [
            {
                "stage": 1,
                "iteration": 1,
                "attempt": 1,
                "version": version,
                "state_table": 1,
                "passes_left": 1,
                "run_passes_left": 1,
                "epochs": 1,
                "kernel": "plain",
                "release": [],
            }
        ],
        **changed,
    }


# a run of many configurations on two segments, as the journal would have it: trained and evaluated after each iteration
LARGE = """
INSERT INTO madlib.mop_run (run_id, owner, status, function, source_table, model_output_table, seed, scheduler,
    num_iterations, metrics_iterations, configurations, segments, started_at, finished_at, parameters, coordinator_pid)
SELECT {run}, owner, 'finished', 'madlib_keras_fit_multiple_model', source_table, 'large', 7, 'randomized', {iterations},
       '{{{iterations}}}', {count}, 2, now() - interval '5 hours', now(), parameters, 1
FROM madlib.mop_run WHERE run_id = {like};
INSERT INTO madlib.mop_configuration (run_id, mst_key, model_id, compile_params, fit_params, model_arch, error)
SELECT {run}, k, 1, format('optimizer=''%s(learning_rate=%s)'', metrics=[''accuracy''], loss=''mse''',
           (ARRAY['Adam', 'SGD', 'RMSprop'])[1 + k % 3], round((10 ^ (-4 + 4.0 * k / {count}))::numeric, 6)),
       'batch_size=' || (8 << k % 4), '{{}}', CASE WHEN k % 50 = 0 THEN 'the loss became NaN' END
FROM generate_series(1, {count}) k;
INSERT INTO madlib.mop_stage (run_id, stage, parent, iteration, identity, mst_key, compile_params, evaluated)
SELECT {run}, (i - 1) * {count} + k, CASE WHEN i > 1 THEN (i - 2) * {count} + k END, i, md5('{run} ' || k || ' ' || i), k,
       'c', true
FROM generate_series(1, {count}) k, generate_series(1, {iterations}) i;
INSERT INTO madlib.mop_request SELECT {run}, mst_key, iteration, stage FROM madlib.mop_stage WHERE run_id = {run};
INSERT INTO madlib.mop_segment (run_id, dataset, segment, rows, bytes, fingerprint)
SELECT {run}, 'training', s, 1000, 10000, 'x' FROM generate_series(0, 1) s;
INSERT INTO madlib.mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status, version, backend_pid,
    kernel, rows, loss, started_at, finished_at, read_seconds, train_seconds, write_seconds)
SELECT {run}, stage, iteration, s, kind, 'training', 1, 'finished', (iteration - 1) * 2 + s, 1000 + s, 'loop', 1000,
       1.0 / iteration, begins + pass * interval '0.09 s', begins + (pass + 1) * interval '0.09 s', 0.01, 0.06, 0.01
FROM (SELECT *, now() - interval '5 hours' + stage * interval '0.28 s' AS begins FROM madlib.mop_stage
      WHERE run_id = {run}) q, generate_series(0, 1) s, (VALUES ('train', 0), ('evaluate', 1)) AS k(kind, pass);
INSERT INTO madlib.mop_metric (run_id, stage, dataset, loss, metric, metrics, noted_at)
SELECT {run}, stage, 'training', 1.0 / iteration + mst_key / 500.0, m, json_build_object('accuracy', m),
       now() - interval '5 hours' + stage * interval '0.28 s'
FROM (SELECT *, 1 - 1.0 / (iteration + abs(sin(mst_key)) * 30 + 1) AS m FROM madlib.mop_stage WHERE run_id = {run}) q;
"""


def large_run(client, run, count, iterations, like):
    """Make a finished run of `count` configurations and `iterations`, one of 50 failed, with the number `run`; it has the owner
    and the parameters of the run `like`."""
    client.run(LARGE.format(run=run, count=count, iterations=iterations, like=like))
    client.run("ANALYZE")
