"""Transfer learning: with what frozen layers give computed once, results are plain Keras' within rounding."""

import base64

import numpy as np
import pytest

from support.replays import by_keras, job, visited
from support.workload import fit, layer, load, make_images, selection, sequential

WIDE = 8192  # units of a frozen layer: 40 rows of them are more than a MB


def transfer(name, width, *frozen):
    return sequential(
        name,
        [8, 8, 1],
        *frozen,
        layer("Dense", name="hidden", units=width, activation="relu"),
        layer("Dense", name="out", units=3, activation="softmax"),
    )


FROZEN = (
    layer("Conv2D", name="conv", filters=4, kernel_size=[3, 3], activation="relu", trainable=False),
    layer("BatchNormalization", name="norm", trainable=False),
    layer("Flatten", name="flat"),
)
LARGE = (layer("Flatten", name="flat"), layer("Dense", name="wide", units=WIDE, trainable=False))
ARCHITECTURES = transfer("five", 5, *FROZEN), transfer("nine", 9, *FROZEN), transfer("large", 5, *LARGE)
ARGUMENTS = {"learning_rate": 0.05, "momentum": 0.9}
FIT = "batch_size=8, epochs=2"


def weights(width):
    """Of a net of FROZEN layers, in which those are equal whatever the width."""
    random = np.random.default_rng(1)
    frozen = [random.normal(size=(3, 3, 1, 4)), random.normal(size=4), *(random.random((4, 4)) + 0.5)]
    hidden = [random.normal(size=(144, width)) / 12, np.zeros(width), random.normal(size=(width, 3)), np.zeros(3)]
    return b"".join(np.asarray(w, "<f4").tobytes() for w in (*frozen, *hidden))


@pytest.fixture(scope="module")
def data(db):
    db.run("SET pg_mop.seed = 5; SET pg_mop.threads = 1; SET pg_mop.segments = 2")
    make_images(db)
    load(db, "arch", *ARCHITECTURES)
    for model_id, width in ((1, 5), (2, 9)):
        db.run("UPDATE arch SET model_weights = %s WHERE model_id = %s", [weights(width), model_id])


def train(db, model_ids, settings, rate=ARGUMENTS["learning_rate"]):
    """{mst_key: (weights, losses)} and how each training unit shared, in a session of its own."""
    client = db.another()
    client.run(f"SET pg_mop.seed = 5; SET pg_mop.threads = 1; SET pg_mop.reuse = off; {settings}")
    text = ", ".join(f"{k}={v}" for k, v in {**ARGUMENTS, "learning_rate": rate}.items())
    selection(
        client,
        "mst",
        "arch",
        [
            (m, f"loss='categorical_crossentropy', optimizer='SGD({text})', metrics=['accuracy']", FIT)
            for m in model_ids
        ],
    )
    run_id = fit(client, "images_packed", "models", "mst", 2, "images_packed", 1)
    shared = [
        row["prefix"] for row in client.run("SELECT prefix FROM madlib.mop_kernel_choices WHERE run_id = %s", [run_id])
    ]
    rows = client.run(
        "SELECT m.mst_key, m.model_weights, i.training_loss, i.validation_loss, i.validation_metrics "
        "FROM models m JOIN models_info i USING (mst_key) ORDER BY 1"
    )
    visits = {row["mst_key"]: visited(client, run_id, "images_packed", row["mst_key"]) for row in rows}
    client.close()
    return [
        (
            np.frombuffer(bytes(r["model_weights"]), "<f4"),
            r["training_loss"] + r["validation_loss"],
            r["validation_metrics"],
            visits[r["mst_key"]],
        )
        for r in rows
    ], shared


def test_what_is_shared_and_what_is_not_is_plain_keras_within_rounding(db, data):
    (shared, how), (whole, none) = train(db, (1, 2), ""), train(db, (1, 2), "SET pg_mop.share_prefixes = off")
    assert len(how) == len(none) == 8 and set(map(str, how)) == {"{'layers': 3}"} and set(none) == {None}
    jobs = [
        job(
            ARCHITECTURES[n],
            "SGD",
            ARGUMENTS,
            result[3],
            1,
            epochs=2,
            weights=base64.b64encode(weights((5, 9)[n])).decode(),
        )
        for results in (shared, whole)
        for n, result in enumerate(results)
    ]
    for question, keras, (ours, *_) in zip(jobs, by_keras(*jobs), [*shared, *whole], strict=True):
        start = np.frombuffer(base64.b64decode(question["weights"]), "<f4")
        assert np.abs(ours - keras).max() <= 1e-6 * np.abs(keras).max()
        assert (ours[:56] == start[:56]).all() and (ours[56:200] != start[56:200]).any(), "what is frozen stays"
    for ours, other in zip(shared, whole):
        if ours[3] == other[3]:  # the same visit order
            assert ours[1] == pytest.approx(other[1], rel=1e-6) and ours[2] == pytest.approx(other[2], rel=1e-6)


@pytest.mark.parametrize(
    "settings,shares",
    [
        ("SET pg_mop.cache_mb = 1024", True),
        ("SET pg_mop.cache_mb = 1", False),
        ("SET pg_mop.cache_mb = 0", False),
        ("SET pg_mop.kernel = loop", False),
    ],
)
def test_what_does_not_fit_the_cache_is_not_kept(db, data, settings, shares):
    slow = 0.0005  # else such a net makes much of a little
    results, how = train(db, (3,), f"SET pg_mop.scheduler = 'round-robin'; {settings}", slow)
    assert len(how) == 4 and all((prefix is not None) == shares for prefix in how)
    whole, _ = train(db, (3,), "SET pg_mop.scheduler = 'round-robin'; SET pg_mop.kernel = plain", slow)
    assert results[0][3] == whole[0][3]
    assert np.abs(results[0][0] - whole[0][0]).max() <= 1e-6 * np.abs(whole[0][0]).max()
    assert results[0][1] == pytest.approx(whole[0][1], rel=1e-6)
