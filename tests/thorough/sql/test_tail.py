"""pg_mop.tail: the configuration that is left at a run's end trains on several devices at once."""

import os

import numpy as np
import pytest

from support.workload import ADAM, dense, fit, last_run, load, make_data, needs_jax, selection

CORES = len(os.sched_getaffinity(0))
FEW = max(1, CORES // 2)  # threads of a trainer, of two sessions
BIG, TIMES = 2, 30
SETTINGS = "SET pg_mop.keras_backend = 'jax'; SET pg_mop.reuse = off; SET pg_mop.chain_seconds = 0.2; " + (
    "SET pg_mop.deal_threads = on"
)
SGD = ADAM.replace("Adam", "SGD")  # (it carries rounding on, and does not enlarge it)

pytestmark = [needs_jax, pytest.mark.skipif(CORES < 2, reason="not run: there is one processor core")]


@pytest.fixture(scope="module", autouse=True)
def data(db):
    """A small and a large configuration, and what runs measured on one device."""
    make_data(db, rows=3000, segments=2, then=SETTINGS)
    load(db, "arch", dense(8), dense(900, name="large"))
    selection(
        db, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=50"), (2, SGD.format(0.01), "batch_size=10, epochs=20")]
    )
    db.run("SET pg_mop.kernel = 'loop'; SET pg_mop.seed = 11")
    fit(db, "flowers_packed", "m", "mst", 2)


@pytest.fixture(autouse=True)
def anew(db):
    """A history by which the large configuration is far faster on several devices, and soon ready there, whatever the tests
    before have measured."""
    db.run("DELETE FROM madlib.mop_cost WHERE device LIKE '%% devices, %%'")
    several = f", {CORES // FEW} devices, {CORES} threads"
    db.run(
        "INSERT INTO madlib.mop_cost (owner, net, part, version, device, kernel, architecture, optimizer, loss, batch_size, "
        "shape, batch_seconds, compile_seconds) SELECT owner, net, part, version, replace(device, %s, %s), kernel, "
        "architecture, optimizer, loss, batch_size, shape, ARRAY(SELECT b / 10 FROM unnest(batch_seconds) b, "
        "generate_series(1, 9)), '{0.05}' FROM madlib.mop_cost WHERE device LIKE '%%' || %s",
        [f", {FEW} threads", several, f", {FEW} threads"],
    )
    yield
    db.run("RESET pg_mop.tail; RESET pg_mop.threads; SET pg_mop.kernel = 'loop'; SET pg_mop.keras_backend = 'jax'")
    db.run("SET pg_mop.deal_threads = on")


def units(db, run_id, key=BIG):
    return db.run(
        "SELECT u.*, (n.choice ->> 'devices')::integer AS devices FROM madlib.mop_units u JOIN madlib.mop_unit n "
        "USING (run_id, stage, kind, dataset, segment, attempt) WHERE u.run_id = %s AND u.mst_key = %s AND "
        "u.status = 'finished' AND u.kind = 'train' ORDER BY u.started_at",
        [run_id, key],
    )


def weights(db, table):
    found = db.run(f"SELECT mst_key, model_weights FROM {table} ORDER BY mst_key")
    return {row["mst_key"]: np.frombuffer(bytes(row["model_weights"]), "<f4") for row in found}


def test_the_last_configuration_trains_on_several_devices_with_the_same_updates(db):
    alone = fit(db, "flowers_packed", "alone", "mst", TIMES)
    assert {unit["devices"] for unit in units(db, alone)} == {1}, "the default is sequential"
    db.run("SET pg_mop.tail = 'data-parallel'")
    run_id = fit(db, "flowers_packed", "m", "mst", TIMES)
    small, large = units(db, run_id, 1), units(db, run_id)
    assert {(unit["devices"], unit["threads"]) for unit in small} == {(1, FEW)}
    assert (CORES // FEW, CORES) in {(unit["devices"], unit["threads"]) for unit in large}
    order = (
        "SELECT iteration, segment FROM madlib.mop_visit_order WHERE run_id = %s AND mst_key = %s ORDER BY 1, position"
    )
    same_order = all(db.run(order, [alone, key]) == db.run(order, [run_id, key]) for key in (1, BIG))
    one, several = weights(db, "alone"), weights(db, "m")
    if same_order:
        np.testing.assert_allclose(several[BIG], one[BIG], rtol=0.05, atol=0.01)
    assert (several[BIG] != one[BIG]).any(), "nothing was divided"
    # a replay repeats it, device by device
    db.run("SET pg_mop.tail = 'sequential'; SET pg_mop.deal_threads = off")
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    again = last_run(db)
    place = lambda number: [(u["iteration"], u["segment"], u["devices"], u["threads"]) for u in units(db, number)]  # noqa: E731
    assert place(again) == place(run_id)
    assert (
        db.value("SELECT count(*) FROM m JOIN again USING (mst_key) WHERE m.model_weights = again.model_weights") == 2
    )
    db.run("DROP TABLE again, again_info, again_summary, alone, alone_info, alone_summary")


def test_stages_of_the_other_tail_are_not_reused(db):
    db.run("SET pg_mop.reuse = on; SET pg_mop.checkpoint_mb = 100")
    try:
        fit(db, "flowers_packed", "m", "mst", 2)
        call = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'n', 'mst', 2, FALSE)"
        assert "4 asked for, 4 to train" not in db.value("SELECT madlib.mop_explain(%s)", [call])
        db.run("SET pg_mop.tail = 'data-parallel'")
        assert "4 asked for, 4 to train" in db.value("SELECT madlib.mop_explain(%s)", [call])
    finally:
        db.run("SET pg_mop.reuse = off; RESET pg_mop.checkpoint_mb")


def test_explain_tells_on_how_many_devices(db):
    db.run("SET pg_mop.tail = 'data-parallel'")
    # (so much work that no trainer takes too long to start, however busy the machine was when starts were measured)
    call = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'n', 'mst', 60, FALSE)"
    assert f"session of {CORES} threads on {CORES // FEW} devices" in db.value("SELECT madlib.mop_explain(%s)", [call])


@pytest.mark.parametrize(
    "settings,told",
    [
        ("SET pg_mop.keras_backend = 'tensorflow'", 'but pg_mop.keras_backend is "tensorflow"'),
        ("SET pg_mop.kernel = 'vmap'", 'but pg_mop.kernel is "vmap"'),
        ("SET pg_mop.deal_threads = 'off'", 'but pg_mop.deal_threads is "off"'),
        ("SET pg_mop.tail = 'parallel'", "It takes one of sequential, data-parallel."),
    ],
)
def test_settings_that_contradict_the_tail_are_refused_before_any_work(db, settings, told):
    before = db.value("SELECT count(*) FROM madlib.mop_runs")
    db.run(f"SET pg_mop.tail = 'data-parallel'; {settings}")
    call = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'n', 'mst', 2, FALSE)"
    assert told in str(db.error(call))
    assert db.value("SELECT count(*) FROM madlib.mop_runs") == before
