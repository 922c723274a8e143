"""Small data, architectures and calls that several test modules share."""

import atexit
import base64
import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import dill
import numpy as np
import pytest

from support.client import Calling
from support.cluster import eventually
from support.trainers import trainers

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="not run: JAX is not installed here")
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="not run: PyTorch is not installed here (make test-torch)"
)
# a name with markup, a formula, placeholders, and characters that are hard to quote
HOSTILE = """<script>alert("x")</script> $x^ %s :name \\ 'q' \u2028 """
# the frameworks besides TensorFlow
OTHERS = [pytest.param("jax", marks=needs_jax), pytest.param("torch", marks=needs_torch)]


def layer(kind, /, **config):
    return {"module": "keras.layers", "class_name": kind, "config": config, "registered_name": None}


def sequential(name, shape, *layers):
    """Keras 3 JSON of a Sequential model for input of `shape`."""
    return json.dumps(
        {
            "module": "keras",
            "class_name": "Sequential",
            "registered_name": None,
            "config": {
                "name": name,
                "layers": [layer("InputLayer", batch_shape=[None, *shape], name=name + "_in"), *layers],
            },
        }
    )


def dense(width=8, inputs=4, classes=3, name="dense"):
    return sequential(
        name,
        [inputs],
        layer("Dense", name="hidden", units=width, activation="relu"),
        layer("Dense", name="out", units=classes, activation="softmax"),
    )


def make_data(db, table="flowers", rows=100, segments=3, buffer_size=10, packed=None, seed=5, then="SELECT"):
    """A table of three separable classes with 4 features, and its packed form `<table>_packed`.

    `then`: SQL to execute before packing.
    """
    packed = packed or f"{table}_packed"
    db.run(f"DROP TABLE IF EXISTS {table}, {packed}, {packed}_summary")
    db.run(
        f"CREATE TABLE {table} AS SELECT i AS id, ARRAY[i % 3, (i * 7) % 5, (i * 11) % 7, 1]::real[] AS x, "
        f"(ARRAY['a','b','c'])[1 + i % 3] AS y FROM generate_series(1, {rows}) AS i"
    )
    db.run(f"SET pg_mop.segments = {segments}; SET pg_mop.seed = {seed}; {then}")
    db.run("SELECT madlib.training_preprocessor_dl(%s, %s, 'y', 'x', %s)", [table, packed, buffer_size])
    return packed


def make_images(db):
    """A table `images` of 80 pictures, 8 x 8 x 1, of three classes, and its packed form."""
    db.run(
        "CREATE TABLE images AS SELECT i AS id, (SELECT array_agg(r) FROM (SELECT array_agg(ARRAY[((i * 13 + "
        "a * 7 + b * 3) % 17) / 16.0 + (i % 3)]) AS r FROM generate_series(1, 8) a, generate_series(1, 8) b "
        "GROUP BY a ORDER BY a) s)::real[] AS x, i % 3 AS y FROM generate_series(1, 80) AS i"
    )
    db.run("SELECT madlib.training_preprocessor_dl('images', 'images_packed', 'y', 'x', 11)")


def tagger():
    """A net with a class for each of five words; 0 is no word, and masked."""
    return sequential(
        "tagger",
        [5],
        layer("Embedding", name="words", input_dim=7, output_dim=8, mask_zero=True),
        layer("LSTM", name="order", units=8, return_sequences=True),
        layer("Dense", name="out", units=3, activation="softmax"),
    )


def make_tags(db, rows):
    """A table `tags` of sentences `x` (five word numbers, 0: none), for `tagger`. The tag of a word is its number modulo 3: `y`
    has the tags one-hot, `n` as numbers."""
    db.run(
        "CREATE TABLE tags AS SELECT id, w AS x, (SELECT array_agg(ARRAY[(v % 3 = 0)::int, (v % 3 = 1)::int, (v % 3 = 2)::int] "
        "ORDER BY o) FROM unnest(w) WITH ORDINALITY AS u(v, o)) AS y, (SELECT array_agg(v % 3 ORDER BY o) FROM unnest(w) WITH "
        "ORDINALITY AS u(v, o)) AS n FROM (SELECT id, (SELECT array_agg(CASE WHEN j <= 2 + id % 4 THEN 1 + (id * 5 + j * j) "
        f"% 6 ELSE 0 END ORDER BY j) FROM generate_series(1, 5) j) AS w FROM generate_series(1, {rows}) id) t"
    )


def random_rows(count):
    """(x float32 [count, 4], one-hot y float32 [count, 3]), for the nets of `dense`."""
    source = np.random.default_rng(0)
    return source.normal(size=(count, 4)).astype("f4"), np.eye(3, dtype="f4")[source.integers(0, 3, count)]


def load(db, table, *architectures):
    db.run(f"DROP TABLE IF EXISTS {table}")
    for text in architectures:
        db.run("SELECT madlib.load_keras_model(%s, %s::json)", [table, text])


def selection(db, table, arch_table, rows, functions=None):
    """A handmade model selection table; rows: (model_id, compile_params, fit_params); `functions`: the object table."""
    db.run(f"DROP TABLE IF EXISTS {table}, {table}_summary")
    db.run(f"CREATE TABLE {table} (mst_key serial, model_id integer, compile_params varchar, fit_params varchar)")
    db.run(
        f"CREATE TABLE {table}_summary AS SELECT %s::varchar AS model_arch_table, %s::varchar AS object_table",
        [arch_table, functions],
    )
    for row in rows:
        db.run(f"INSERT INTO {table} (model_id, compile_params, fit_params) VALUES (%s, %s, %s)", row)


def pickled(name, source):
    """A function defined by `source`, pickled by value, as in PL/Python or in a notebook."""
    space = {"__name__": "__main__"}
    exec(source, space)
    return dill.dumps(space[name], recurse=True)


ADAM = "loss='categorical_crossentropy', optimizer='Adam(learning_rate={})', metrics=['accuracy']"
# fails in every order of the segments (a high learning rate alone may end in a dead net, with a finite loss)
NAN = "loss='mse', optimizer='SGD(learning_rate=1e38, weight_decay=1e38)'"


def fit(db, packed, output, mst, iterations=2, validation=None, frequency=None, use_gpus=False):
    db.run(f"DROP TABLE IF EXISTS {output}, {output}_info, {output}_summary")
    db.run(
        "SELECT madlib.madlib_keras_fit_multiple_model(%s, %s, %s, %s, %s, %s, %s)",
        [packed, output, mst, iterations, use_gpus, validation, frequency],
    )
    return last_run(db)


def last_run(db):
    """The number of the database's last run, 0 where it has none."""
    return db.value("SELECT coalesce(max(run_id), 0) FROM madlib.mop_runs")


def runs_made(db, work):
    """The result of `work()`, and the number of runs that it began, including dropped ones; `db`: a superuser's."""
    last = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM madlib.mop_run_run_id_seq"
    before = db.value(last)
    result = work()
    return result, db.value(last) - before


@contextlib.contextmanager
def holding(client, schema="madlib"):
    """Within the context, no unit begins on a server, so that no run with units on the server ends.

    The `with` statement gets a function that lets only the waiting units begin. The end of the context closes `client`.
    Runs need a pg_mop.lock_timeout longer than the context lasts.
    """
    hold = f"BEGIN; LOCK TABLE {schema}.mop_unit IN SHARE MODE"
    client.run(hold)
    try:
        yield lambda: client.run(f"COMMIT; {hold}")  # waiting units get the lock before this statement asks for it
    finally:
        client.close()


def is_under_way(db, more_than=0):
    """True if running runs have finished more than `more_than` units."""
    return (
        db.value(
            "SELECT count(*) FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) "
            "WHERE r.status = 'running' AND u.status = 'finished'"
        )
        > more_than
    )


@contextlib.contextmanager
def under_way(db, client, call):
    """The session `client` executes `call`. Within the context, units of its run have begun, and none of them ends. The `with`
    statement gets the Calling."""
    client.run("SET pg_mop.lock_timeout = '300s'; SET pg_mop.chain_seconds = 0")
    running = "SELECT count(*) FROM madlib.mop_units WHERE status = 'running'"
    with holding(db.another()) as let_some_begin:
        calling = Calling(client, call)
        begun = eventually(lambda: not calling.thread.is_alive() or db.value(running) or let_some_begin(), 120)
        assert begun and calling.thread.is_alive(), calling.error
        yield calling


def ended_early(db, client, call, more_than, by="pg_cancel_backend"):
    """The error of a call in the session `client` that is cancelled (or terminated, `by`) when its run has finished more than
    `more_than` units. No machine is too fast, and no test too late: meanwhile each unit waits until it is let begin."""
    client.run("SET pg_mop.lock_timeout = '300s'; SET pg_mop.chain_seconds = 0")
    with holding(db.another()) as let_some_begin:
        calling = Calling(client, call)
        assert eventually(lambda: is_under_way(db, more_than) or let_some_begin(), 120), calling.error
        db.run(f"SELECT {by}(%s)", [client.connection.info.backend_pid])
    return calling.end()


def assert_invariants(db, run_id):
    """Assert the rules of model hopper parallelism for the unit log of a finished run. Returns its row of mop_runs."""
    run = db.run("SELECT * FROM madlib.mop_runs WHERE run_id = %s", [run_id])[0]
    finished = db.run(
        "SELECT u.* FROM madlib.mop_units u JOIN madlib.mop_progress p USING (run_id, mst_key) WHERE "
        "run_id = %s AND u.status = 'finished' AND u.kind = 'train' AND p.status = 'finished'",
        [run_id],
    )
    visits = sorted((u["mst_key"], u["iteration"], u["segment"]) for u in finished)
    keys = sorted({v[0] for v in visits})
    segments = sorted({v[2] for v in visits})
    assert len(segments) == run["segments"] or not visits
    assert visits == [(k, i, s) for k in keys for i in range(1, run["num_iterations"] + 1) for s in segments], (
        "every configuration visits every segment once per iteration"
    )
    for owner in ("stage", "backend_pid"):
        # units of one batch are on the same rows; one model may be evaluated on many segments at once
        kind = (
            "AND a.kind = 'train' AND b.kind = 'train'"
            if owner == "stage"
            else "AND (a.kind, a.dataset, a.segment) <> (b.kind, b.dataset, b.segment)"
        )
        overlapping = db.run(
            f"SELECT a.*, b.* FROM madlib.mop_unit a JOIN madlib.mop_unit b ON a.{owner} = b.{owner} "
            f"AND a.run_id = b.run_id AND a.ctid <> b.ctid {kind} AND a.started_at < b.finished_at "
            f"AND b.started_at < a.finished_at WHERE a.run_id = %s AND a.status = 'finished' "
            f"AND b.status = 'finished'",
            [run_id],
        )
        assert overlapping == [], f"never two units of one {owner} at once"
    assert (
        db.run(
            "SELECT a.* FROM madlib.mop_unit a JOIN madlib.mop_stage s USING (run_id, stage) "
            "JOIN madlib.mop_unit b ON b.run_id = s.run_id AND b.stage = s.parent WHERE a.run_id = %s "
            "AND a.kind = 'train' AND a.status = 'finished' AND b.status = 'finished' "
            "AND a.started_at < b.finished_at",
            [run_id],
        )
        == []
    ), "never a stage before its parent has ended"
    return run


@functools.cache
def _keras(backend, use_gpus):
    """A process that has imported Keras with the framework `backend` (keras_replay.py), for as long as the tests run."""
    process = subprocess.Popen(
        [sys.executable, "-B", pathlib.Path(__file__).parent / "keras_replay.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": "0" if use_gpus else "-1"},
    )
    atexit.register(process.kill)
    return process


def replayed(jobs, average=False, backend="tensorflow", use_gpus=False):
    """The result of plain Keras for the jobs, in a process of its own with the framework `backend` (keras_replay.py)."""
    process = _keras(backend, use_gpus)
    process.stdin.write(json.dumps({"jobs": jobs, "average": average}) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline().strip()
    assert answer not in ("", "null"), "plain Keras has failed: its error is above"
    return json.loads(answer)


def alike(rows, tolerance=1e-5):
    """Rows of predictions (dicts, in order) to compare with: a processor may round a row differently in other batches."""
    return [
        {
            name: pytest.approx(value, rel=tolerance) if isinstance(value, float) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def add_sample_weights(db, packed, weight):
    """Give a packed table a column `w` of sample weights, as a packer of them does. `weight(inputs)`: of each row."""
    from pg_mop.columns import OneHot, Scale, Transform
    from pg_mop.columns.weight import Weight

    db.run(f"ALTER TABLE {packed} ADD COLUMN w bytea, ADD COLUMN w_shape integer[]")
    for row in db.run(f"SELECT buffer_id, x, x_shape FROM {packed}"):
        weights = np.asarray(weight(np.frombuffer(row["x"], "<f4").reshape(row["x_shape"])), "<f4").reshape(-1, 1)
        db.run(
            f"UPDATE {packed} SET w = %s, w_shape = %s WHERE buffer_id = %s",
            [weights.tobytes(), list(weights.shape), row["buffer_id"]],
        )
    summary = db.run(f"SELECT *, y_class_values::text[] AS classes FROM {packed}_summary")[0]
    transform = Transform(
        [Scale("x", {"constant": summary["normalizing_const"]})],
        [OneHot("y", {"classes": summary["classes"], "sql_type": summary["dependent_vartype"][0]})],
        Weight("w", {"shape": [1], "scalar": True, "sql_type": "real"}),
    )
    db.run(f"ALTER TABLE {packed}_summary ADD COLUMN __transform__ text")
    db.run(f"UPDATE {packed}_summary SET __transform__ = %s", [json.dumps(transform.to_json())])


def buffers(db, packed, segment, columns="xy"):
    """The packed rows of a segment, in order."""
    names = ", ".join(f"{c}, {c}_shape" for c in columns)
    rows = db.run(f"SELECT {names} FROM {packed} WHERE __dist_key__ = %s ORDER BY buffer_id", [segment])
    return {c: [{"bytes": base64.b64encode(r[c]).decode(), "shape": r[c + "_shape"]} for r in rows] for c in columns}


def node(layer_, *inbound):
    """A layer of a functional model, on the outputs of `inbound` layers (name, shape)."""
    tensors = [
        {
            "class_name": "__keras_tensor__",
            "config": {"shape": [None, *shape], "dtype": "float32", "keras_history": [name, 0, 0]},
        }
        for name, shape in inbound
    ]
    args = [] if not tensors else tensors if len(tensors) == 1 else [tensors]
    return {
        **layer_,
        "name": layer_["config"]["name"],
        "inbound_nodes": [{"args": args, "kwargs": {}}] if inbound else [],
    }


def two_in_two_out():
    """The inputs listed b, a; its layers a, b: what counts is the list of inputs."""
    layers = [
        node(layer("InputLayer", batch_shape=[None, 2], name="a")),
        node(layer("InputLayer", batch_shape=[None, 3], name="b")),
        node(layer("Concatenate", name="both", axis=-1), ("b", [3]), ("a", [2])),
        node(layer("Dense", name="hidden", units=8, activation="relu"), ("both", [5])),
        node(layer("Dense", name="kind", units=3, activation="softmax"), ("hidden", [8])),
        node(layer("Dense", name="side", units=2, activation="softmax"), ("hidden", [8])),
    ]
    return json.dumps(
        {
            "module": "keras.src.models.functional",
            "class_name": "Functional",
            "registered_name": None,
            "config": {
                "name": "two",
                "trainable": True,
                "layers": layers,
                "input_layers": [["b", 0, 0], ["a", 0, 0]],
                "output_layers": [["kind", 0, 0], ["side", 0, 0]],
            },
        }
    )


def nothing_is_left(db, before):
    objects, runs, processes = before
    assert state(db)[0] == objects, "no leftover table"
    assert state(db)[1] == runs, "no run was opened"
    assert eventually(lambda: set(trainers()) <= processes), "no leftover process"
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pg_mop%' AND datname = current_database()"
    )
    # (PostgreSQL shows a session for a moment after its client has closed it)
    assert eventually(lambda: db.value(sessions) == 0), "no leftover session"


def state(db):
    return (
        db.value("SELECT count(*) FROM pg_class"),
        db.value("SELECT count(*) FROM madlib.mop_runs"),
        set(trainers()),
    )


def weights(client, table):
    return client.run(f"SELECT mst_key, md5(model_weights) AS w FROM {table} ORDER BY 1")


CNN = sequential(
    "cnn",
    [8, 8, 1],
    layer("Conv2D", name="conv", filters=4, kernel_size=[3, 3], activation="relu"),
    layer("Flatten", name="flat"),
    layer("Dense", name="out", units=3, activation="softmax"),
)


NOISY = sequential(
    "noisy",
    [4],
    layer("Dense", name="hidden", units=16, activation="relu"),
    layer("BatchNormalization", name="norm"),
    layer("Dropout", name="drop", rate=0.3),
    layer("Dense", name="out", units=3, activation="softmax"),
)


LOSS = "categorical_crossentropy"
