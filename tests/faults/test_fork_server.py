"""The fork server: who starts it, whom it serves, how it ends, and what happens where it cannot be had."""

import fcntl
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import psycopg2
import pytest

from support.client import Client
from support.cluster import client_program, eventually, folder, fork_servers
from support.trainers import all_trainers, of_backend, trainers
from support.tries import tries
from support.workload import ADAM, assert_invariants, dense, fit, load, make_data, selection

OPTIONS = {"threads": 1, "keras_backend": "tensorflow", "cache_mb": 1, "idle_ms": 60000}


@pytest.fixture(scope="module")
def db(own):
    client = Client(own, "postgres")
    client.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE")
    make_data(client, segments=2)
    load(client, "arch", dense())
    selection(client, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=5"), (1, ADAM.format(0.02), "batch_size=5")])
    yield client
    client.close()


@pytest.fixture
def alone(own, db):
    """No fork server lives and none of its files is left."""

    def remove():
        for pid in fork_servers(own):
            os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not fork_servers(own))
        for path in folder(own).glob("fork-server-*"):
            path.unlink()

    remove()
    yield
    remove()


def start(client, **options):
    """Start the trainer of a client's session and wait until it has imported Keras: its process id."""
    client.run("SELECT madlib.mop_start_trainer(%s)", [json.dumps({**OPTIONS, "fork_server_ms": 600000, **options})])
    backend = client.connection.info.backend_pid
    found = eventually(lambda: [pid for pid in trainers() if of_backend(pid) == backend], 120)
    assert found, "no trainer was started"
    return found[0]


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def parent_of(pid):
    try:
        return parent(pid)
    except OSError:
        return None


def lives(pid):
    return pid in all_trainers()


def run(client, output):
    run_id = fit(client, "flowers_packed", output, "mst")
    assert_invariants(client, run_id)


def test_one_fork_server_forks_the_trainers_of_all_sessions(own, db, alone):
    others = [db.another(), db.another()]
    pids = [start(client) for client in others]
    (fork_server,) = fork_servers(own)
    assert {parent(pid) for pid in pids} == {fork_server}
    assert len(set(pids)) == 2 and all(os.getsid(pid) == pid for pid in pids)
    for pid in pids:
        assert pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "900"
        kept = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert not any("pgsql_tmp" in name or "pidfd" in name or "eventpoll" in name for name in kept), kept
        assert sum("socket" in name for name in kept) == 1, "the one to the pool"
    assert len(os.listdir(f"/proc/{fork_server}/task")) == 1, "one that has threads may not fork"
    for client in others:
        client.close()
    assert eventually(lambda: [of_backend(pid) for pid in pids] == [0, 0]), "they wait in the pool"
    assert fork_servers(own) == [fork_server]
    others = [db.another(), db.another()]
    assert {start(client) for client in others} == set(pids), "the next sessions of the role lease them"
    for client in others:
        client.close()


def test_a_call_that_trains_has_it_import_keras_meanwhile(own, db, alone):
    client = db.another()
    client.run("SET pg_mop.fork_server_idle_timeout = '10min'; SET pg_mop.session_idle_timeout = '1s'")
    backend = client.connection.info.backend_pid
    with pytest.raises(psycopg2.Error, match="no such configuration|does not exist"):
        fit(client, "flowers_packed", "none", "nowhere")
    assert not fork_servers(own), "bad input begins nothing"
    run(client, "expected")
    (fork_server,) = fork_servers(own)
    assert parent(fork_server) != backend
    client.run("SET pg_mop.fork_server_idle_timeout = '2s'")
    run(client, "expected_again")
    assert eventually(lambda: not fork_servers(own)), "it stays for as long as the call says"
    children = [pid for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == backend]
    assert not children, "nobody has to wait for its end"
    client.close()


def test_who_expects_it_keeps_it(own, db, alone):
    client = db.another()
    expect = (
        "DO LANGUAGE plpython3u $$\nimport mop_udf\nfrom mop_udf.pool import fork_server_client\n"
        "fork_server_client.expect(mop_udf.home, 'tensorflow', 2000)\n$$"
    )
    for once in tries(5):  # (the machine may stand still for longer than the idle time)
        pid = start(client, fork_server_ms=2000)
        (fork_server,) = fork_servers(own)
        os.kill(pid, signal.SIGKILL)
        times = [time.monotonic()]
        for _ in range(5):
            client.run(expect)
            times.append(time.monotonic())
            time.sleep(0.7)
        found = fork_servers(own)
        times.append(time.monotonic())
        once.counts = max(later - earlier for earlier, later in itertools.pairwise(times)) < 1.5
    assert found == [fork_server]
    assert eventually(lambda: not fork_servers(own))
    client.close()


def test_many_at_once_are_all_forked(own, db, alone):
    clients = [db.another() for _ in range(8)]
    for client in clients:  # while it imports Keras they queue
        client.run("SELECT madlib.mop_start_trainer(%s)", [json.dumps({**OPTIONS, "fork_server_ms": 600000})])
    backends = {client.connection.info.backend_pid for client in clients}
    assert eventually(lambda: {of_backend(pid) for pid in trainers()} >= backends, 120)
    assert {parent(pid) for pid in trainers() if of_backend(pid) in backends} == set(fork_servers(own))
    (log,) = folder(own).glob("*.log")
    assert "Traceback" not in log.read_text()
    for client in clients:
        client.close()


def test_the_folder_is_the_servers_users_alone_and_no_backup_takes_it(own, db, alone, tmp_path):
    client = db.another()
    start(client)
    for path in (folder(own), *folder(own).iterdir()):
        status = path.stat()
        assert status.st_uid == os.geteuid() and not status.st_mode & 0o077, path
    done = subprocess.run(
        [
            client_program("pg_basebackup"),
            "-h",
            own.host,
            "-p",
            str(own.port),
            "-U",
            "postgres",
            "-D",
            tmp_path / "backup",
            "-c",
            "fast",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "special file" not in done.stderr, done.stderr
    assert not (tmp_path / "backup" / folder(own).name).exists()
    client.close()


def test_a_trainer_that_is_stopped_when_its_backend_ends_is_killed(db, alone):
    client = db.another()
    pid = start(client)
    os.kill(pid, signal.SIGSTOP)
    db.run("SELECT pg_terminate_backend(%s)", [client.connection.info.backend_pid])
    assert eventually(lambda: not lives(pid))


def test_how_a_trainer_ended_is_told(db, alone):
    client = db.another()
    client.run("DROP TABLE IF EXISTS told, told_info, told_summary")
    client.run(
        "SELECT madlib.madlib_keras_fit('flowers_packed', 'told', 'arch', 1, %s, 'batch_size=5', 1)",
        [ADAM.format(0.01)],
    )
    predict = "SELECT madlib.madlib_keras_predict('told', 'flowers', 'id', 'x', %s)"
    client.run(predict, ["p1"])
    backend = client.connection.info.backend_pid
    error, aborted = None, []

    def abort():
        while not aborted and calling:
            for pid in trainers():
                if of_backend(pid) == backend:
                    os.kill(pid, signal.SIGABRT)
                    aborted.append(pid)

    for number in range(20):  # (a call may end before its trainer is found)
        calling = True
        thread = threading.Thread(target=abort)
        thread.start()
        try:
            client.run(predict, [f"told_{number}"])
        except psycopg2.Error as raised:
            error = str(raised)
            break
        finally:
            calling = False
            thread.join()
        aborted.clear()
    assert error and f"the trainer process {aborted[0]} was killed by signal" in error
    assert "Fatal Python error: Aborted" in error
    client.run(predict, ["p2"])
    client.close()


def test_a_run_goes_on_while_the_fork_server_is_killed_again_and_again(own, db, alone):
    client = db.another()
    run(client, "first")
    for pid in fork_servers(own):
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not fork_servers(own))
    run(client, "second")  # by the trainers that are there
    client.close()
    client = db.another()
    run(client, "third")
    assert len(fork_servers(own)) == 1, "the next backend has started another"
    assert len({str(client.run(f"SELECT mst_key, model_weights FROM {t} ORDER BY 1")) for t in ("first", "third")}) == 1
    client.close()


def test_trainers_are_started_by_themselves_where_nobody_can_trust_the_folder(own, db, alone):
    client = db.another()
    folder(own).chmod(0o755)
    try:
        pid = start(client)
    finally:
        folder(own).chmod(0o700)
    assert parent(pid) == client.connection.info.backend_pid and not fork_servers(own)
    client.close()


def test_trainers_are_started_by_themselves_while_somebody_holds_the_lock(own, db, alone):
    client = db.another()
    start(client)
    os.kill(fork_servers(own)[0], signal.SIGKILL)
    assert eventually(lambda: not fork_servers(own))
    (lock,) = folder(own).glob("*.lock")
    with open(lock, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        other = db.another()
        assert parent(start(other)) == other.connection.info.backend_pid
        run(other, "locked")
    client.close(), other.close()


def test_it_can_be_done_without(own, db, alone):
    client, before = db.another(), set(all_trainers())
    client.run("SET pg_mop.fork_server_idle_timeout = 0")
    run(client, "without")
    assert not fork_servers(own)
    assert eventually(lambda: set(all_trainers()) <= before), "without a pool, trainers end with their sessions"
    client.close()


def test_it_ends_when_nobody_needs_it_and_not_before(own, db, alone):
    client = db.another()
    pid = start(client, fork_server_ms=300, keep_ms=300)
    assert not eventually(lambda: not fork_servers(own), 1.5), "its trainer lives"
    client.close()
    assert eventually(lambda: not fork_servers(own)) and not lives(pid)


def test_an_ill_formed_request_harms_nobody(own, db, alone):
    client = db.another()
    start(client)
    (path,) = [p for p in folder(own).iterdir() if p.is_socket()]
    fork_server = fork_servers(own)
    life, mine = os.pipe()
    four = [0, 1, 2, life]
    for text, files in (
        (b"", []),
        (b"{", four),
        (b"[]", four),
        (b'{"idle_ms": null}', four),
        (b"{}", [0]),
        (b'{"idle_ms": 600000, "environment": {}, "arguments": ["no number"]}', four),
        (b"x" * 100_000, []),
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(str(path))
            socket.send_fds(connection, [text], files)
    other = db.another()
    start(other)
    assert fork_servers(own) == fork_server
    os.close(life), os.close(mine)
    client.close(), other.close()


def test_it_ends_with_the_postmaster(own, db, alone):
    client = db.another()
    start(client)
    (fork_server,) = fork_servers(own)
    own.end(signal.SIGKILL)
    assert eventually(lambda: not os.path.exists(f"/proc/{fork_server}"))
