"""Every kernel gives the plain one's weights and losses, within rounding, and bit for bit where it is the plain one."""

import numpy as np
import pytest

from support.workload import CNN, NOISY, dense, fit, load, make_data, make_images, needs_jax, selection

CASES = {
    "dense net with Adam": (1, "flowers_packed", "Adam(lr=0.02)", ""),
    "CNN with momentum": (2, "images_packed", "SGD(lr=0.05, momentum=0.9)", ""),
    "Dropout and BatchNormalization": (3, "flowers_packed", "Adam(lr=0.01)", ""),
    "moving averages of weights": (1, "flowers_packed", "Adam(lr=0.02, use_ema=True, ema_momentum=0.8)", ""),
    "class weights and a decay": (
        1,
        "flowers_packed",
        "SGD(lr=0.05, decay=0.01)",
        ", class_weight={0: 1, 1: 3, 2: 0.5}, epochs=3",
    ),
    "shuffled, few steps": (1, "flowers_packed", "RMSprop(lr=0.01)", ", shuffle=True, steps_per_epoch=2"),
}


@pytest.fixture(scope="module")
def data(db):
    db.run("SET pg_mop.threads = 1")
    make_data(db, rows=203, segments=2, buffer_size=9)
    make_images(db)
    load(db, "arch", dense(), CNN, NOISY)


def train(db, case, kernel):
    """(weights, loss, units, losses of the units)"""
    model_id, packed, optimizer, extra = CASES[case]
    compiled = f"loss='categorical_crossentropy', optimizer='{optimizer}', metrics=['accuracy']"
    selection(db, "mst", "arch", [(model_id, compiled, f"batch_size=8{extra}")])
    db.run(f"SET pg_mop.kernel = {kernel}")
    run_id = fit(db, packed, "models", "mst", 2)
    units = db.run("SELECT * FROM madlib.mop_kernel_choices WHERE run_id = %s", [run_id])
    losses = db.value(
        "SELECT array_agg(loss ORDER BY iteration, started_at) FROM madlib.mop_units "
        "WHERE kind = 'train' AND status = 'finished' AND run_id = %s",
        [run_id],
    )
    info = db.run("SELECT * FROM models_info")[0]
    assert info["error"] is None
    weights = np.frombuffer(bytes(db.value("SELECT model_weights FROM models")), "<f4")
    return weights, info["training_loss_final"], units, losses


@pytest.mark.parametrize("case", CASES)
def test_kernels_agree(db, data, case):
    plain, plain_loss, _, plain_losses = train(db, case, "plain")
    for kernel in ("loop", "xla"):
        other, loss, units, losses = train(db, case, kernel)
        # XLA draws other random numbers: it refuses Dropout
        used = "loop" if (case, kernel) == ("Dropout and BatchNormalization", "xla") else kernel
        assert {u["kernel"] for u in units} == {used} and {u["forced"] for u in units} == {kernel}
        assert ("random" in str(units[0]["refused"])) == (used != kernel or "Dropout" in case)
        assert np.abs(other - plain).max() <= 2e-4 * np.abs(plain).max()
        assert loss == pytest.approx(plain_loss, rel=1e-3)
        assert losses == pytest.approx(plain_losses, rel=1e-3), "the mean loss of every unit"


@pytest.fixture
def on_jax(db):
    db.run("SET pg_mop.keras_backend = 'jax'")
    yield
    db.run("SET pg_mop.keras_backend = 'tensorflow'; SET pg_mop.kernel = auto")


@needs_jax
@pytest.mark.parametrize("case", ["CNN with momentum", "class weights and a decay"])
def test_kernels_on_jax_agree(db, data, case, on_jax):
    plain, plain_loss, *_ = train(db, case, "plain")
    other, loss, units, _ = train(db, case, "loop")
    assert {u["kernel"] for u in units} == {"plain" if case.startswith("CNN") else "loop"}
    assert np.abs(other - plain).max() <= 2e-4 * np.abs(plain).max()
    assert loss == pytest.approx(plain_loss, rel=1e-3)


def test_what_the_loop_computes_does_not_depend_on_the_trainers_past(db, data):
    """Nor on how the rows come: in pieces or whole, batch by batch from the first visit on."""
    selection(
        db,
        "mst",
        "arch",
        [(1, "loss='categorical_crossentropy', optimizer='Adam(lr=0.02)'", f"batch_size={b}") for b in (8, 5)],
    )
    db.run("SET pg_mop.kernel = loop; SET pg_mop.scheduler = 'round-robin'")
    results = []
    for cache in ("1024", "0", "1024"):
        client = db.another()
        client.run(
            f"SET pg_mop.kernel = loop; SET pg_mop.scheduler = 'round-robin'; SET pg_mop.cache_mb = {cache}; "
            "SET pg_mop.seed = 5; SET pg_mop.threads = 1"
        )
        if len(results) == 2:  # trainers that have done something else before
            selection(
                client,
                "mst_other",
                "arch",
                [(1, "loss='categorical_crossentropy', optimizer='Adam(lr=0.5)'", "batch_size=8")],
            )
            fit(client, "flowers_packed", "other", "mst_other", 1)
        fit(client, "flowers_packed", "models", "mst", 2)
        results.append([bytes(r["model_weights"]) for r in client.run("SELECT * FROM models ORDER BY mst_key")])
        client.close()
    db.run("RESET pg_mop.scheduler")
    assert results[0] == results[1] == results[2]
