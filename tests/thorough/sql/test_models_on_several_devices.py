"""Models that fit no device are divided among several. Virtual devices of JAX stand in for GPUs, and a setting for memory."""

import json

import numpy as np
import pytest

from support.workload import ADAM, dense, fit, last_run, layer, load, make_data, needs_jax, selection, sequential

WIDE = 800  # of two layers: 2.6 MB of weights, which one device of 8 MB does not train and two devices do
SMALL, LARGE = 1, 2  # configurations
SGD = ADAM.replace("Adam", "SGD")  # (it carries rounding on, and does not enlarge it)
SETTINGS = (
    "SET pg_mop.keras_backend = 'jax'; SET pg_mop.reuse = off; SET pg_mop.threads = 1; SET pg_mop.kernel = 'plain'; "
    "SET pg_mop.seed = 11"
)
DEVICES = "SET pg_mop.most_devices = 2; SET pg_mop.device_memory_mb = "
CALL = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'n', 'mst', 2, FALSE)"

pytestmark = needs_jax


def net(name, second):
    first = layer("Dense", name="first", units=WIDE, activation="relu")
    return sequential(name, [4], first, second, layer("Dense", name="out", units=3, activation="softmax"))


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, rows=200, segments=2, then=SETTINGS)
    large = net("large", layer("Dense", name="second", units=WIDE, activation="relu"))
    # (EXPLAIN's arithmetic does not know this layer, so that the estimate is far too small)
    unknown = layer("EinsumDense", name="second", equation="ab,bc->ac", output_shape=WIDE, activation="relu")
    load(db, "arch", dense(8), large)
    load(db, "arch_unknown", dense(8), net("unknown", unknown))
    pairs = [(SMALL, SGD.format(0.01), "batch_size=50"), (LARGE, SGD.format(0.01), "batch_size=50")]
    selection(db, "mst", "arch", pairs)
    selection(db, "mst_unknown", "arch_unknown", pairs)


@pytest.fixture(autouse=True)
def devices(db):
    yield
    db.run("RESET pg_mop.most_devices; RESET pg_mop.device_memory_mb; RESET pg_mop.gpu_memory_share")
    db.run("SET pg_mop.keras_backend = 'jax'; SET pg_mop.kernel = 'plain'; RESET pg_mop.scheduler")


def units(db, run_id, key=LARGE, status="finished", kind="train"):
    return db.run(
        "SELECT * FROM madlib.mop_units WHERE run_id = %s AND mst_key = %s AND status = %s AND kind = %s "
        "ORDER BY started_at",
        [run_id, key, status, kind],
    )


def weights(db, table, key=LARGE):
    return np.frombuffer(bytes(db.value(f"SELECT model_weights FROM {table} WHERE mst_key = {key}")), "<f4")


def explained(db, call=CALL):
    found = db.value("SELECT madlib.mop_explain(%s, 'json')", [call])
    found = json.loads(found) if isinstance(found, str) else found
    return {net["model_id"]: net["devices"] for net in (found.get("plan") or found)["nets"]}


def visits(db, run_id):
    order = "SELECT mst_key, iteration, segment FROM madlib.mop_visit_order WHERE run_id = %s ORDER BY 1, 2, position"
    return db.run(order, [run_id])


def test_a_net_that_one_device_does_not_hold_is_trained_on_several_and_a_replay_takes_as_many(db):
    db.run(DEVICES + "8")
    told = explained(db)
    assert told[SMALL] is None and told[LARGE]["count"] == 2
    assert "divided among 2 devices: one device has 8 MB" in db.value("SELECT madlib.mop_explain(%s)", [CALL])
    run_id = fit(db, "flowers_packed", "m", "mst", 2)
    large, small = units(db, run_id), units(db, run_id, SMALL)
    assert len(large) == len(small) == 4 and not units(db, run_id, status="failed")
    assert {unit["devices"] for unit in large} == {2} and {unit["devices"] for unit in small} == {1}
    others = [unit for kind in ("train", "evaluate") for unit in units(db, run_id, SMALL, kind=kind)]
    assert all(
        other["finished_at"] <= unit["started_at"] or unit["finished_at"] <= other["started_at"]
        for unit in large
        for other in others
    ), "another net was trained on its devices"
    db.run("RESET pg_mop.device_memory_mb; DROP TABLE IF EXISTS r, r_info, r_summary")
    db.run("SELECT madlib.mop_replay(%s, 'r')", [run_id])
    assert {unit["devices"] for unit in units(db, last_run(db))} == {2}
    assert visits(db, last_run(db)) == visits(db, run_id)
    for key in (SMALL, LARGE):
        np.testing.assert_allclose(weights(db, "r", key), weights(db, "m", key), rtol=1e-5, atol=1e-6)
    assert weights(db, "m").size == 4 * WIDE + WIDE + WIDE * WIDE + WIDE + 3 * WIDE + 3


def test_a_divided_net_ends_with_the_weights_of_a_whole_one(db):
    db.run("SET pg_mop.scheduler = 'round-robin'")  # (its order of visits depends on the seed alone)
    whole = fit(db, "flowers_packed", "whole", "mst", 2)
    db.run(DEVICES + "8")
    run_id = fit(db, "flowers_packed", "m", "mst", 2)
    assert visits(db, whole) == visits(db, run_id) != []
    assert {unit["devices"] for unit in units(db, whole)} == {1} != {unit["devices"] for unit in units(db, run_id)}
    for key in (SMALL, LARGE):
        np.testing.assert_allclose(weights(db, "m", key), weights(db, "whole", key), rtol=1e-3, atol=1e-5)


def test_a_net_that_runs_out_of_memory_is_tried_again_on_more_devices(db):
    db.run(DEVICES + "3")
    call = CALL.replace("'mst'", "'mst_unknown'")
    assert explained(db, call) == {SMALL: None, LARGE: None}, "by the estimate, one device suffices"
    run_id = fit(db, "flowers_packed", "m", "mst_unknown", 2)
    failed, done = units(db, run_id, status="failed"), units(db, run_id)
    assert len(done) == 4 and {unit["devices"] for unit in done} == {2}
    assert "more than pg_mop.device_memory_mb (3 MB)" in failed[-1]["error"]
    assert any(unit["decision"].startswith("retried on 2 devices of its server: ") for unit in failed)
    assert {unit["devices"] for unit in units(db, run_id, SMALL)} == {1}
    assert db.value("SELECT count(*) FROM m") == 2


def test_a_net_that_all_devices_do_not_hold_fails_by_name(db):
    db.run(DEVICES + "1")
    text = db.value("SELECT madlib.mop_explain(%s)", [CALL])
    assert "may run out of memory: one device has 1 MB" in text and "of each of 2" in text
    run_id = fit(db, "flowers_packed", "m", "mst", 2)
    failed = units(db, run_id, status="failed")
    assert any(unit["decision"].startswith("retried on 2 devices of its server: ") for unit in failed)
    assert failed[-1]["decision"] == "given up: the unit needs more memory than its part of the device has"
    assert db.run("SELECT mst_key FROM m") == [{"mst_key": SMALL}], "the other configuration is trained"
    told = db.value("SELECT error FROM madlib.mop_configuration WHERE run_id = %s AND mst_key = %s", [run_id, LARGE])
    assert "MB of each of 2 devices, more than pg_mop.device_memory_mb (1 MB)" in told


def test_another_framework_divides_no_model_and_has_no_virtual_devices(db):
    db.run(DEVICES + "8; SET pg_mop.keras_backend = 'tensorflow'")
    assert explained(db)[LARGE] is None, "nothing limits the memory of a processor to 8 MB"
    assert "may run out of memory" not in db.value("SELECT madlib.mop_explain(%s)", [CALL])
    run_id = fit(db, "flowers_packed", "m", "mst", 1)
    assert {unit["devices"] for unit in units(db, run_id)} == {1}


def test_the_kernel_for_many_states_leaves_divided_nets_to_another_one(db):
    pairs = [(LARGE, SGD.format(rate), "batch_size=50") for rate in (0.01, 0.02)]
    selection(db, "mst_vmap", "arch", pairs)
    db.run(DEVICES + "8; SET pg_mop.kernel = 'vmap'")
    run_id = fit(db, "flowers_packed", "m", "mst_vmap", 1)
    for key in (1, 2):
        done = units(db, run_id, key)
        assert len(done) == 2 and {unit["devices"] for unit in done} == {2}
        assert all(unit["kernel"] in ("plain", "loop") for unit in done)


def test_a_net_that_needs_more_devices_than_the_role_may_have_fails_by_the_limit(db):
    why = "pg_mop.most_devices is 2, and the role may have 1 thread, one for each device (mop_limit)"
    db.run(DEVICES + "3; INSERT INTO madlib.mop_limit (role, threads) VALUES (NULL, 1)")
    try:
        text = db.value("SELECT madlib.mop_explain(%s)", [CALL])
        run_id = fit(db, "flowers_packed", "m", "mst", 1)
    finally:
        db.run("DELETE FROM madlib.mop_limit")
    assert "may run out of memory: one device has 3 MB" in text and why in text and "divided among" not in text
    assert not any(" devices of its server" in (unit["decision"] or "") for unit in units(db, run_id, status="failed"))
    told = db.value("SELECT error FROM madlib.mop_configuration WHERE run_id = %s AND mst_key = %s", [run_id, LARGE])
    assert "MB of one device, more than pg_mop.device_memory_mb (3 MB)" in told and why in told
    assert {unit["devices"] for unit in units(db, run_id, SMALL)} == {1}
