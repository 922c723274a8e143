"""Nothing that a user's table or unit holds is ever taken for a message to the trainer."""

import json
import pickle
import struct

import pytest

from support.forged import mark, own_run, unit
from support.payloads import Writes
from support.workload import ADAM, dense, fit, load, make_data, selection

__all__ = ["mark"]


def frame(header, *payloads):
    text = json.dumps({**header, "sizes": [len(p) for p in payloads]}).encode()
    return struct.pack("<I", len(text)) + text + b"".join(payloads)


def forged(path):
    """Messages that end a stream of rows, then begin a unit with a function whose unpickling writes `path`."""
    model = {
        "compile_params": "loss='zzz', optimizer='Adam()'",
        "fit_params": None,
        "architecture": dense(),
        "stage": 1,
        "mst_key": 1,
        "model_id": 1,
        "iteration": 1,
        "objects": ["zzz"],
        "plain_weights": True,
        "kernel": "plain",
        "passes_left": 1,
        "run_passes_left": 1,
    }
    unit = {"op": "unit", "kind": "train", "models": [model], "seed": 1, "same_start": True, "run_seconds": 0}
    unit |= {"dtypes": ["<f4"], "inputs": 1, "outputs": None}
    text = frame({"op": "end"}) + frame(unit, pickle.dumps(Writes(str(path)))) + frame({"op": "states_end"})
    return text + b" " * (-len(text) % 8)


@pytest.fixture(scope="module")
def plain(db):
    """A role without any right but the use of pg_mop, with a model and packed rows."""
    db.run(
        "DROP ROLE IF EXISTS forger; CREATE ROLE forger LOGIN; GRANT mop_user TO forger; "
        "CREATE SCHEMA forger AUTHORIZATION forger"
    )
    client = db.another("forger")
    make_data(client, segments=1)
    load(client, "arch", dense())
    selection(client, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=10")])
    fit(client, "flowers_packed", "models", "mst", 1)
    yield client
    client.close()


def test_the_pickle_would_write_the_file(mark):
    pickle.loads(pickle.dumps(Writes(str(mark))))
    assert mark.exists()
    mark.unlink()


@pytest.mark.parametrize(
    "x_shape,y_shape",
    [("{{-1,{n}}}", "{{-1,-3}}"), ("{{-{n},-1}}", "{{-1,3}}"), ("{{1,1}}", "{{1,3}}"), ("{{{n}}}", "{{1,3}}")],
)
def test_a_packed_table_with_forged_messages(plain, mark, x_shape, y_shape):
    evil = forged(mark)
    plain.run(
        "DROP TABLE IF EXISTS bad, bad_summary, scores; CREATE TABLE bad AS SELECT * FROM flowers_packed; "
        "CREATE TABLE bad_summary AS SELECT * FROM flowers_packed_summary; "
        "UPDATE bad SET buffer_id = buffer_id + 10"
    )
    sizes = {"n": len(evil) // 4}
    plain.run(
        "INSERT INTO bad SELECT (jsonb_populate_record(b, jsonb_build_object('buffer_id', 2, 'x', %s, 'y', "
        "'\\x000000000000', 'x_shape', %s, 'y_shape', %s))).* FROM bad AS b LIMIT 1",
        ["\\x" + evil.hex(), x_shape.format(**sizes), y_shape.format(**sizes)],
    )
    plain.error("SELECT madlib.madlib_keras_evaluate('models', 'bad', 'scores', FALSE, 1)")
    plain.error("SELECT madlib.madlib_keras_fit_multiple_model('bad', 'never', 'mst', 1, FALSE)")
    assert not mark.exists()
    plain.run("SELECT madlib.madlib_keras_evaluate('models', 'flowers_packed', 'scores', FALSE, 1)")
    assert plain.value("SELECT loss FROM scores") > 0, "the session goes on"
    assert not mark.exists()


@pytest.mark.parametrize("dtype", ["O", "|V8", "<f4", "<f8"])
def test_a_unit_with_forged_messages(plain, mark, dtype):
    evil = forged(mark)
    n = len(evil) // 8
    run_id = own_run(plain, ADAM.format(0.05), dense())
    rows = (
        f"SELECT madlib.mop_sub_epoch(1, b, ARRAY[d], ARRAY['{{{n}}}']) AS report FROM (SELECT b, CASE WHEN b = 1 "
        f"THEN '\\x{evil.hex()}'::bytea ELSE ''::bytea END AS d FROM generate_series(1, 2) AS b OFFSET 0) AS q "
        f"WHERE %(epochs)s = 1"
    )
    own = unit(run_id, dtypes=[dtype], rows=n, bytes=len(evil), rows_sql=rows)
    plain.error("SELECT madlib.mop_run_unit(%s)", [json.dumps(own)])
    assert not mark.exists()


def test_nobody_takes_the_number_of_anothers_run(plain):
    error = plain.error(
        "INSERT INTO madlib.mop_run (run_id, function, source_table, model_output_table, seed, "
        "scheduler, num_iterations, metrics_iterations, configurations, segments, parameters, "
        "coordinator_pid) VALUES (900001, 'f', 's', 'm', 1, 'r', 1, '{1}', 1, 1, '{}', 1)"
    )
    assert error.pgcode == "42501"
