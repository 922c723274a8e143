"""Runs of several kinds of nets and optimizers, each done again by plain Keras in the logged visit order."""

import base64
import functools

import numpy as np

from support.replays import job, visited
from support.workload import (
    CNN,
    LOSS,
    NOISY,
    assert_invariants,
    dense,
    fit,
    load,
    make_data,
    make_images,
    make_tags,
    replayed,
    selection,
    tagger,
)

SEED = 11
AVERAGED = {"learning_rate": 0.05, "use_ema": True}
CASES = {
    "dense net with Adam": (dense(), "flowers_packed", 1, 2, "Adam", {"learning_rate": 0.02}),
    "CNN with SGD and momentum": (CNN, "images_packed", 2, 1, "SGD", {"learning_rate": 0.05, "momentum": 0.9}),
    "Dropout and BatchNormalization": (NOISY, "flowers_packed", 3, 1, "Adam", {"learning_rate": 0.01}),
    "moving averages of weights": (dense(), "flowers_packed", 1, 1, "Adam", {**AVERAGED, "ema_momentum": 0.9}),
    "moving averages put in place": (
        dense(),
        "flowers_packed",
        1,
        1,
        "SGD",
        {**AVERAGED, "ema_overwrite_frequency": 3},
    ),
    "soft labels": (dense(), "soft_packed", 1, 2, "Adam", {"learning_rate": 0.02}),
    "a class for each step, and a mask": (tagger(), "tags_packed", 4, 1, "Adam", {"learning_rate": 0.02}),
    "class numbers of steps": (tagger(), "tag_numbers_packed", 4, 1, "Adam", {"learning_rate": 0.03}),
}
LOSSES = {"class numbers of steps": "sparse_categorical_crossentropy"}
SIZES = (8, 13)  # of batches


def make_runs(db):
    """A function: of a case, trained in the database and replayed by Keras, {batch size: (ours, plain Keras, Keras'
    default)}. Each is trained when it is first asked for."""
    db.run(f"SET pg_mop.seed = {SEED}; SET pg_mop.threads = 1; SET pg_mop.kernel = plain")
    make_data(db, rows=101, segments=3, buffer_size=9, seed=SEED)
    make_images(db)
    db.run(
        "CREATE TABLE soft AS SELECT id, x, CASE y WHEN 'a' THEN ARRAY[0.8, 0.15, 0.05] WHEN 'b' THEN ARRAY[0.1, "
        "0.7, 0.2] ELSE ARRAY[0, 0.3, 0.7] END AS y FROM flowers"
    )
    db.run("SELECT madlib.training_preprocessor_dl('soft', 'soft_packed', 'y', 'x', 9, dependent_dtype => 'float32')")
    make_tags(db, 101)
    db.run("SELECT madlib.training_preprocessor_dl('tags', 'tags_packed', 'y', 'x', 9)")
    db.run("CREATE VIEW tag_numbers AS SELECT id, x, n AS y FROM tags")
    db.run("SELECT madlib.training_preprocessor_dl('tag_numbers', 'tag_numbers_packed', 'y', 'x', 9)")
    load(db, "arch", dense(), CNN, NOISY, tagger())
    return functools.cache(functools.partial(trained, db))


def trained(db, case):
    architecture, packed, model_id, epochs, optimizer, arguments = CASES[case]
    loss = LOSSES.get(case, LOSS)
    text = ", ".join(f"{k}={v}" for k, v in arguments.items())
    compiled = f"loss='{loss}', optimizer='{optimizer}({text})', metrics=['accuracy']"
    selection(db, "mst", "arch", [(model_id, compiled, f"batch_size={size}, epochs={epochs}") for size in SIZES])
    run_id = fit(db, packed, "models", "mst", iterations=2, frequency=1)
    assert_invariants(db, run_id)
    jobs, ours = [], []
    for key, size in enumerate(SIZES, 1):
        more = {"loss": loss, "batch_size": size, "epochs": epochs, "default": True}
        visits = visited(db, run_id, packed, key)
        jobs.append(job(architecture, optimizer, arguments, visits, SEED, model_id, **more))
        ours.append(bytes(db.value("SELECT model_weights FROM models WHERE mst_key = %s", [key])))
    return {
        size: (w, base64.b64decode(t["plain"]), base64.b64decode(t["default"]))
        for size, w, t in zip(SIZES, ours, replayed(jobs))
    }


def assert_plain_keras(runs, case):
    """The weights of a case are those of plain Keras bit by bit, and those of Keras' default step within rounding."""
    for size, (ours, plain, default) in runs(case).items():
        assert ours == plain, size
        a, b = np.frombuffer(ours, "<f4"), np.frombuffer(default, "<f4")
        assert np.abs(a - b).max() <= 1e-6 * np.abs(b).max(), size
