"""Trainers on a Ray cluster of several nodes, which Ray's own utility makes."""

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

from support.client import Calling
from support.cluster import eventually, free_port
from support.workload import ADAM, assert_invariants, dense, fit, is_under_way, load, make_data, selection

if importlib.util.find_spec("ray") is None:
    pytest.skip("tests/thorough/engines/test_ray.py was NOT RUN: no Ray here (make test-ray)", allow_module_level=True)

LONG = "batch_size=1, epochs=10"
SETTINGS = "SET pg_mop.seed = 3; SET pg_mop.threads = 1; SET pg_mop.kernel = plain; SET pg_mop.reuse = off; "
ON_RAY = "SET pg_mop.trainers = 'gpus'; "
IN_TURN = "SET pg_mop.scheduler = 'round-robin'"


class Ray:
    """A cluster of two nodes with room for one trainer each, and the door that clients come in by."""

    def __init__(self, home):
        from ray.cluster_utils import Cluster

        (home / "ray").mkdir()
        os.environ.update(RAY_TMPDIR=str(home), RAY_USAGE_STATS_ENABLED="0", HOME=str(home))
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "include_dashboard": False,
                "object_store_memory": 80 << 20,
                "temp_dir": str(home),
            },
        )
        self.second = self.add()
        self.port = free_port()
        self.door = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ray.util.client.server",
                "--address",
                self.cluster.address,
                "--port",
                str(self.port),
                "--mode",
                "proxy",
                "--host",
                "127.0.0.1",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self):
        return self.cluster.add_node(num_cpus=1, object_store_memory=80 << 20)

    def close(self):
        os.killpg(self.door.pid, signal.SIGKILL)
        self.cluster.shutdown()


def hosts():
    """Process ids of the actors with trainers, and of the trainers that they have."""
    found = subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()[1:]
    pairs = [line.split(None, 1) for line in found]
    return (
        [int(pid) for pid, text in pairs if text.startswith("ray::Host")],
        [int(pid) for pid, text in pairs if "from mop_udf.training import trainer" in text],
    )


def ended(db):
    """End the idle trainers: True if no other one is left."""
    db.run("SELECT madlib.mop_end_trainers()")
    return hosts() == ([], [])


@pytest.fixture(scope="module")
def ray(db):
    # below /tmp, because the path of a socket has a limit of 107 bytes
    home = tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp", ignore_cleanup_errors=True)
    made = Ray(pathlib.Path(home.name))
    db.run(
        f"CREATE SERVER gpus FOREIGN DATA WRAPPER pg_mop OPTIONS (kind 'ray', address 'ray://127.0.0.1:{made.port}',"
        " cpus '1', wait '120')"
    )
    db.run("DO $$ BEGIN CREATE ROLE rayless LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    make_data(db, rows=101, segments=3, buffer_size=9)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.02, 0.05)])
    selection(db, "slow", "arch", [(1, ADAM.format(0.01), LONG)] * 2)
    db.run(SETTINGS + IN_TURN)
    yield made
    db.run("RESET pg_mop.trainers")
    made.close()
    home.cleanup()


def weights(db, table):
    return [bytes(row["model_weights"]) for row in db.run(f"SELECT model_weights FROM {table} ORDER BY mst_key")]


def test_trainers_on_ray_give_what_those_here_give(db, ray):
    fit(db, "flowers_packed", "here", "mst", iterations=2)
    db.run("SET pg_mop.trainers = 'gpus'; SELECT madlib.mop_end_trainers()")
    other = db.another()
    other.run(SETTINGS + ON_RAY + IN_TURN)
    run_id = fit(other, "flowers_packed", "there", "mst", iterations=2)
    assert_invariants(db, run_id)
    assert weights(db, "here") == weights(db, "there")
    actors, trainers = hosts()
    assert len(actors) == len(trainers) == 2, "as many as there is room for"
    assert db.value("SELECT sessions FROM madlib.mop_run WHERE run_id = %s", [run_id]) == 2
    other.close()
    again = db.another()
    again.run(SETTINGS + ON_RAY + IN_TURN)
    fit(again, "flowers_packed", "once_more", "mst", iterations=2)
    assert hosts() == (actors, trainers), "the next client's run has leased them"
    assert weights(db, "once_more") == weights(db, "there")
    again.close()
    assert db.value("SELECT count(*) FROM madlib.mop_trainers WHERE state = 'idle'") == 2
    assert db.value("SELECT madlib.mop_end_trainers()") == 2
    assert eventually(lambda: hosts() == ([], []), 60), "Ray has their resources back"


def test_a_cancel_frees_what_computes_there(db, ray):
    other = db.another()
    other.run("SET pg_mop.kernel = plain; SET pg_mop.trainers = 'gpus'")
    call = Calling(other, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'slow', 2, FALSE)")
    assert eventually(lambda: is_under_way(db), 180)
    db.run("SELECT pg_cancel_backend(%s)", [other.connection.info.backend_pid])
    assert call.end().pgcode == "57014"
    assert eventually(lambda: ended(db), 60)
    other.close()


@pytest.mark.parametrize("what", ["actor", "trainer", "node"])
def test_what_dies_there_is_a_lost_trainer(db, ray, what):
    other = db.another()
    other.run(SETTINGS + ON_RAY + "SET pg_mop.unit_retries = 20")
    db.run("DROP TABLE IF EXISTS hurt, hurt_info, hurt_summary")
    call = Calling(other, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'hurt', 'slow', 2, FALSE)")
    begun = eventually(lambda: call.error or is_under_way(db), 180)
    assert begun and not call.error, call.error
    actors, trainers = hosts()
    if what == "node":
        ray.cluster.remove_node(ray.second, allow_graceful=False)
        ray.second = ray.add()
    else:
        os.kill((actors if what == "actor" else trainers)[0], signal.SIGKILL)
    assert call.end(300) is None
    run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs")
    assert_invariants(db, run_id)
    assert set(actors) - set(hosts()[0]), "one of them has gone"
    # (between two units nobody misses it)
    failed = [
        row["error"]
        for row in db.run("SELECT error FROM madlib.mop_units WHERE run_id = %s AND status = 'failed'", [run_id])
    ]
    assert all("Ray" in error for error in failed)
    other.close()
    assert eventually(lambda: ended(db), 60)


@pytest.mark.parametrize(
    "change,message,hint",
    [
        ("SET pg_mop.trainers = 'nowhere'", 'server "nowhere" of pg_mop.trainers does not exist', "CREATE SERVER"),
        (
            "ALTER SERVER gpus OPTIONS (SET address 'ray://127.0.0.1:1')",
            "Ray at ray://127.0.0.1:1 cannot be used",
            "RESET pg_mop.trainers",
        ),
        ("ALTER SERVER gpus OPTIONS (SET cpus '64')", "cannot be used", "ALTER SERVER"),
        ("ALTER SERVER gpus OWNER TO rayless", "is not a superuser's", "OWNER TO"),
        ("ALTER SERVER gpus OPTIONS (SET address 'http://x')", "has no address of a Ray cluster", "ALTER SERVER"),
        ("ALTER SERVER gpus OPTIONS (SET kind 'spark')", "is not a server with trainers", "CREATE SERVER"),
        ("ALTER SERVER gpus OPTIONS (SET cpus 'many')", 'option cpus of server "gpus" is no positive number', "ALTER"),
    ],
)
def test_bad_servers(db, ray, change, message, hint):
    db.run("BEGIN; SET LOCAL pg_mop.trainers = 'gpus'; " + change.replace("SET pg", "SET LOCAL pg"))
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'mst', 1, FALSE)")
    assert message in str(error) and hint in error.diag.message_hint
    db.run("ROLLBACK")


def test_who_may_not_use_the_server_trains_not_there(db, ray):
    db.run(
        "GRANT mop_user TO rayless; GRANT SELECT ON flowers_packed, flowers_packed_summary, mst, mst_summary, arch "
        "TO rayless; GRANT ALL ON SCHEMA public TO rayless"
    )
    other = db.another("rayless")
    other.run("SET pg_mop.trainers = 'gpus'")
    call = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'mst', 1, FALSE)"
    assert "permission denied for foreign server" in str(other.error(call))
    # nor by what a client says to a worker session itself
    options = (
        '{"threads": 1, "cache_mb": 1, "idle_ms": 0, "keras_backend": "tensorflow", "trainers": %s, "ray": '
        '{"address": "ray://127.0.0.1:1", "gpus": 0, "cpus": 1, "wait": 5}}'
    )
    assert "permission denied" in str(other.error("SELECT madlib.mop_start_trainer(%s)", [options % '"gpus"']))
    other.run("SELECT madlib.mop_start_trainer(%s)", [options % "null"])
    relays = subprocess.run(["pgrep", "-f", "mop_udf.pool.relay"], capture_output=True, text=True).stdout.split()
    assert not relays
    other.close()


def test_a_trainer_on_ray_does_chains(db, ray):
    """A chain is one command and one transaction; a replay on trainers of this machine has the same weights."""
    other = db.another()
    other.run(SETTINGS + ON_RAY + "SET pg_mop.chain_seconds = 0.5")
    selection(db, "short", "arch", [(1, ADAM.format(round(0.004 * n, 3)), "batch_size=20") for n in range(1, 4)])
    run_id = fit(other, "flowers_packed", "there", "short", iterations=10)
    assert_invariants(db, run_id)
    longest = (
        "SELECT max(n) FROM (SELECT count(*) AS n FROM madlib.mop_unit WHERE run_id = %s AND kind = 'train' "
        "GROUP BY xmin::text, stage) AS transactions"
    )
    assert db.value(longest, [run_id]) > 1
    db.run("RESET pg_mop.trainers; DROP TABLE IF EXISTS here, here_info, here_summary; SET pg_mop.chain_seconds = 0")
    db.run("SELECT madlib.mop_replay(%s, 'here')", [run_id])
    db.run("RESET pg_mop.chain_seconds")
    assert weights(db, "here") == weights(db, "there")
