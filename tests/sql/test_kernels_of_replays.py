"""A replay trains every batch with the kernel that trained it in the run, also where a unit was trained by several."""

import json

import pytest

from support.workload import ADAM, dense, fit, last_run, load, make_data, selection

ROWS = 4000


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(
        db, rows=ROWS, segments=2, then="SET pg_mop.reuse = off; SET pg_mop.threads = 1; SET pg_mop.same_start = on"
    )
    load(db, "arch", dense(32), dense(48, name="other"))
    rows = [(net, ADAM.format(0.01), "batch_size=9, epochs=3") for net in (1, 2)]
    selection(db, "mst", "arch", rows)


@pytest.fixture
def run_id(db):
    """A run whose trainers change from one kernel to another within units: they have nothing compiled, and earlier runs say
    that XLA pays only when the loop has been timed."""
    db.run("SELECT madlib.mop_end_trainers()")
    db.run("DROP TABLE IF EXISTS m, m_info, m_summary, again, again_info, again_summary")
    fit(db, "flowers_packed", "m", "mst", 4)
    # by this history the loop comes first, and XLA is ten times as fast once the loop is timed
    db.run("DELETE FROM madlib.mop_cost WHERE kernel <> 'loop'")
    db.run("UPDATE madlib.mop_cost SET batch_seconds = ARRAY[1e-7, 1e-7, 1e-7], compile_seconds = ARRAY[0.0, 0.0, 0.0]")
    db.run(
        "INSERT INTO madlib.mop_cost (owner, net, part, version, device, kernel, architecture, optimizer, loss, batch_size, "
        "shape, batch_seconds, compile_seconds) SELECT owner, net, part, version, device, 'xla', architecture, optimizer, "
        "loss, batch_size, shape, ARRAY[1e-8, 1e-8, 1e-8], ARRAY[0.01, 0.01, 0.01] FROM madlib.mop_cost"
    )
    db.run("SELECT madlib.mop_end_trainers()")
    return fit(db, "flowers_packed", "m", "mst", 4)


def orders(db, run_id):
    """{(configuration, iteration, segment): [[kernel, batches], ...]} of the units that several kernels trained."""
    found = db.run(
        "SELECT u.mst_key, u.iteration, u.segment, n.choice -> 'order' AS kernels FROM madlib.mop_units u "
        "JOIN madlib.mop_unit n USING (run_id, stage, kind, dataset, segment, attempt) WHERE run_id = %s AND kind = 'train' "
        "AND u.status = 'finished' AND n.choice -> 'order' IS NOT NULL",
        [run_id],
    )
    return {
        (row["mst_key"], row["iteration"], row["segment"]): json.loads(row["kernels"])
        if isinstance(row["kernels"], str)
        else row["kernels"]
        for row in found
    }


def test_a_replay_of_units_that_several_kernels_trained_gives_the_same_bytes(db, run_id):
    mixed = orders(db, run_id)
    assert mixed, "no unit was trained by several kernels"
    batches = -(-ROWS // 2 // 9)
    assert all(sum(count for _, count in order) == 3 * batches for order in mixed.values()), mixed
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    assert orders(db, last_run(db)) == mixed
    assert (
        db.value("SELECT count(*) FROM m JOIN again USING (mst_key) WHERE m.model_weights = again.model_weights") == 2
    )
