"""Trainers share the memory of a device within pg_mop.gpu_memory_share. Main memory stands in for a GPU's here."""

import json
import os

import pytest

from support.client import Calling
from support.cluster import eventually
from support.workload import ADAM, dense, fit, last_run, layer, load, make_data, selection, sequential

MAIN = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
WHOLE = 500  # MB that all trainers have: one needs more than half of it, and less than the whole
BIG = 2  # the configuration with the large net
SHARE = WHOLE * (1 << 20) / MAIN  # of the machine's memory
OPTIONS = {"threads": 1, "keras_backend": "tensorflow", "cache_mb": 1024, "idle_ms": 0, "keep_ms": 300000}
OPTIONS["fork_server_ms"] = 28800000
SETTINGS = "SET pg_mop.reuse = off; SET pg_mop.threads = 1; SET pg_mop.kernel = 'plain'; SET pg_mop.chain_seconds = 0"
CALL = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'n', 'mst', 3, FALSE)"


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, rows=400, segments=2, then=SETTINGS)
    load(db, "arch", dense(8), dense(16, name="other"))
    selection(db, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=50"), (2, ADAM.format(0.01), "batch_size=50")])
    fit(db, "flowers_packed", "m", "mst", 1)  # (what trainers take is measured)


@pytest.fixture(autouse=True)
def share(db):
    """All trainers together have WHOLE, and no trainer of an earlier test is left."""
    db.run("SELECT madlib.mop_end_trainers()")
    db.run(f"SET pg_mop.gpu_memory_share = {SHARE:.6f}")
    yield
    db.run("RESET pg_mop.gpu_memory_share; RESET pg_mop.trainer_memory_mb")


def measured(db, megabytes):
    """Let earlier runs have measured so many MB of each trainer."""
    db.run("UPDATE madlib.mop_cost SET memory_bytes = %s", [megabytes << 20])


def units(db, run_id, status="finished"):
    return db.run(
        "SELECT * FROM madlib.mop_units WHERE run_id = %s AND status = %s ORDER BY started_at, finished_at",
        [run_id, status],
    )


def test_a_run_measures_the_memory_of_its_trainers(db):
    taken = [row["mb"] for row in db.run("SELECT memory_bytes >> 20 AS mb FROM madlib.mop_unit_costs")]
    assert taken and all(WHOLE / 2 < mb < WHOLE for mb in taken), "the tests below rely on this, too"


def test_trainers_that_do_not_fit_side_by_side_train_one_after_the_other(db):
    measured(db, 400)
    run_id = fit(db, "flowers_packed", "m", "mst", 3)
    done = units(db, run_id)
    assert len(done) == 2 * (3 * 2 + 2) and not units(db, run_id, "failed")
    ends = [unit["finished_at"] for unit in done]
    begins = [unit["started_at"] for unit in done]
    assert all(end <= begin for end, begin in zip(ends, begins[1:])), "two trained at once"
    # (a trainer is listed until its process has ended)
    assert eventually(lambda: db.value("SELECT count(*) FROM madlib.mop_trainers") == 1), (
        "an idle trainer has kept its part"
    )


def test_explain_tells_how_many_train_side_by_side(db):
    seconds = {}
    for megabytes, count in ((400, 1), (200, 2)):
        measured(db, megabytes)
        found = json.loads(db.value("SELECT madlib.mop_explain(%s, 'json')", [CALL]))
        assert found["memory"]["packing"]["side_by_side"] == count
        seconds[megabytes] = found["prediction"]["makespan"]
    assert seconds[400] > 1.3 * seconds[200], "the prediction has two trainers at once"


def test_a_trainer_whose_memory_was_measured_wrongly_dies_and_its_unit_has_fewer_neighbours(db):
    measured(db, 200)
    run_id = fit(db, "flowers_packed", "m", "mst", 3)
    done, failed = units(db, run_id), units(db, run_id, "failed")
    assert len(done) == 2 * (3 * 2 + 2)
    assert any("more than its part of this machine's memory" in unit["error"] for unit in failed)
    assert any(unit["decision"].startswith("retried with at most 1 trainer on its device") for unit in failed)
    assert db.value("SELECT count(*) FROM m") == 2
    assert db.value("SELECT bool_and(memory_bytes >> 20 > 200) FROM madlib.mop_unit_costs"), "it was not measured again"


def test_a_configuration_that_does_not_fit_the_whole_device_fails_by_name(db):
    large = [layer("Dense", name=f"d{n}", units=4500, activation="relu") for n in range(2)]
    large = sequential("large", [4], *large, layer("Dense", name="out", units=3, activation="softmax"))
    load(db, "arch_large", dense(8), large)
    pairs = [(1, ADAM.format(0.01), "batch_size=50"), (2, ADAM.format(0.01), "batch_size=50")]
    selection(db, "mst_large", "arch_large", pairs)
    run_id = fit(db, "flowers_packed", "m_large", "mst_large", 2)
    given_up = [unit for unit in units(db, run_id, "failed") if unit["decision"].startswith("given up")]
    assert {unit["mst_key"] for unit in given_up} == {BIG}
    assert given_up[0]["decision"] == "given up: the unit needs more memory than its part of the device has"
    told = db.value("SELECT error FROM madlib.mop_configuration WHERE run_id = %s AND mst_key = %s", [run_id, BIG])
    assert "more than its part of this machine's memory" in told
    assert db.run("SELECT mst_key FROM m_large") == [{"mst_key": 1}], "the other configuration is trained"


@pytest.mark.parametrize("limit", [None, 10])
def test_a_run_waits_for_the_memory_that_another_session_has(db, limit):
    """The other session's trainer holds the whole share: the run trains once it has gone, however long that takes.

    `limit`: how many trainers the role may have, by mop_limit; then sessions wait for their trainers at once."""
    measured(db, 400)
    if limit is not None:
        db.run("INSERT INTO madlib.mop_limit (role, sessions) VALUES (NULL, %s)", [limit])
    most = round(SHARE * 1e6)
    options = {**OPTIONS, "device_part": most, "device_most": most}
    other, caller = db.another(), db.another()
    other.run("SELECT madlib.mop_start_trainer(%s)", [json.dumps(options)])
    caller.run(f"{SETTINGS}; SET pg_mop.gpu_memory_share = {SHARE:.6f}; SET pg_mop.server_timeout = '1s'")
    db.run("DROP TABLE IF EXISTS n, n_info, n_summary")
    call = Calling(caller, CALL)
    waits = "SELECT count(*) FROM madlib.mop_units WHERE decision ~ '^retried in .*: other trainers hold the memory'"
    before = db.value(waits)
    assert eventually(lambda: db.value(waits) > before + 5, 180), (
        "it has not met the other trainer, or not waited for it"
    )
    other.close()
    assert call.end() is None
    warnings = [text for text in caller.connection.notices if "for the memory of a device, and goes on waiting" in text]
    assert len(warnings) == 1 and 'SELECT role, pid, state FROM "madlib".mop_trainers;' in warnings[0]
    caller.close()
    assert db.value("SELECT count(*) FROM n") == 2
    db.run("DROP TABLE n, n_info, n_summary; DELETE FROM madlib.mop_limit")


@pytest.fixture
def limited(db):
    """An administrator has limited the role to WHOLE of the machine's memory; the role has set nothing itself."""
    db.run(
        "RESET pg_mop.gpu_memory_share; INSERT INTO madlib.mop_limit (role, device_share) VALUES (NULL, %s)", [SHARE]
    )
    yield
    db.run("DELETE FROM madlib.mop_limit")


def test_trainers_share_what_an_administrator_leaves_their_role(db, limited):
    """As with a setting: where a net needs more than half, one trains after the other."""
    measured(db, 400)
    assert "1 trainer of the largest net side by side" in db.value("SELECT madlib.mop_explain(%s)", [CALL])
    run_id = fit(db, "flowers_packed", "m", "mst", 3)
    done = units(db, run_id)
    assert len(done) == 2 * (3 * 2 + 2)
    assert all(unit["finished_at"] <= after["started_at"] for unit, after in zip(done, done[1:])), "two trained at once"


def test_a_setting_above_the_limit_of_the_role_is_refused_before_any_work(db, limited):
    before = db.value("SELECT count(*) FROM madlib.mop_runs")
    db.run("SET pg_mop.gpu_memory_share = 0.9")
    error = db.error(CALL)
    assert error.pgcode == "53400"
    assert (
        f"pg_mop.gpu_memory_share (0.9) is more than the share of a device that the role may take ({SHARE:g})"
        in str(error)
    )
    assert "SELECT device_share FROM" in error.diag.message_hint
    assert "is more than the share of a device" in str(db.error("SELECT madlib.mop_explain(%s)", [CALL]))
    db.run("UPDATE madlib.mop_limit SET device_share = 0.9")
    db.run(f"SET pg_mop.gpu_memory_share = {SHARE:.6f}")
    assert db.value("SELECT device_share FROM madlib.mop_my_limits") == 0.9
    measured(db, 400)
    assert "1 trainer of the largest net side by side" in db.value("SELECT madlib.mop_explain(%s)", [CALL]), (
        "less is fine"
    )
    db.run("RESET pg_mop.gpu_memory_share; UPDATE madlib.mop_limit SET device_share = 0.001")
    error = db.error(CALL)
    assert "device_share of mop_limit (0.001) leaves trainers" in str(error) and "RESET" not in error.diag.message_hint
    assert db.value("SELECT count(*) FROM madlib.mop_runs") == before


@pytest.mark.parametrize("asked", [{"device_beside": 2}, {"device_part": 500_000, "device_most": 1_000_000}])
def test_the_trainers_of_a_run_divide_the_share_of_a_smaller_server(db, limited, asked):
    """A run divides each device by the share of its own server. Another one may have a smaller share for the role, or alone."""
    db.run("UPDATE madlib.mop_limit SET sessions = 10")
    first, second = db.another(), db.another()
    try:
        for count, client in enumerate((first, second), 1):
            client.run("SELECT madlib.mop_start_trainer(%s)", [json.dumps({**OPTIONS, **asked})])
            assert db.value("SELECT count(*) FROM madlib.mop_trainers WHERE state = 'leased'") == count
    finally:
        first.close()
        second.close()


def test_a_run_that_waits_for_a_part_gives_the_parts_of_its_idle_workers_back(db):
    """Another session holds a part, as another run would. The other part is that of the first worker, which idles once it has
    trained its segment: the second worker, or a run that waits, gets it."""
    share = 2 * SHARE
    measured(db, 400)
    part = {"device_part": round(share * 500_000), "device_most": round(share * 1_000_000)}
    other, caller = db.another(), db.another()
    # (then sessions wait for their trainers at once)
    db.run("INSERT INTO madlib.mop_limit (role, sessions) VALUES (NULL, 10)")
    failed = "SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND status = 'failed'"
    try:
        other.run("SELECT madlib.mop_start_trainer(%s)", [json.dumps({**OPTIONS, **part})])
        caller.run(f"{SETTINGS}; SET pg_mop.gpu_memory_share = {share:.6f}")
        db.run("DROP TABLE IF EXISTS n, n_info, n_summary")
        call = Calling(caller, CALL)
        assert call.end() is None, "it waits, and its idle worker keeps a part"
        assert db.value(failed, [last_run(db)]) > 0, "no worker has met the other session's part"
        leased = "SELECT pid FROM madlib.mop_trainers WHERE state = 'leased'"
        assert eventually(lambda: len(db.run(leased)) == 1, 60), "the other session's"
        assert db.value("SELECT count(*) FROM n") == 2
    finally:
        other.close()
        caller.close()
        db.run("DROP TABLE IF EXISTS n, n_info, n_summary; DELETE FROM madlib.mop_limit")


def test_a_prediction_waits_for_the_trainer_that_another_session_keeps(db, limited):
    """A session keeps its trainer for some seconds: for the next row of a query, or here."""
    db.run("UPDATE madlib.mop_limit SET sessions = 10")
    other = db.another()
    try:
        other.run("SELECT madlib.mop_start_trainer(%s)", [json.dumps({**OPTIONS, "idle_ms": 5000})])
        assert db.value("SELECT count(*) FROM madlib.mop_trainers WHERE state = 'leased'") == 1
        db.run(
            "SELECT madlib.madlib_keras_predict('m', 'flowers', 'id', 'x', 'guesses', 'response', FALSE, 1); "
            "DROP TABLE guesses"
        )
    finally:
        other.close()
