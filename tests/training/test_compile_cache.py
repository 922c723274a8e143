"""XLA's cache, without a server: where they are, and what comes of what is wrong there."""

import json
import os
import shutil
import subprocess
import threading
import time

import pytest

from mop_udf.pool import compile_cache, server_folder
from mop_udf.pool.compile_cache import CompileCache


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A directory that this process takes for its server's."""
    (tmp_path / "postmaster.pid").write_text(f"{os.getppid()}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def directory(role=10, threads=1, megabytes=1, home="/home"):
    found = compile_cache.environment(home, "tensorflow", role, threads, megabytes)
    assert not found or found["TF_XLA_FLAGS"].endswith("=" + found[compile_cache.VARIABLE].split(":", 1)[1])
    return found and found[compile_cache.VARIABLE].split(":", 1)[1]


def test_roles_versions_processors_and_numbers_of_threads_have_one_each(data, monkeypatch):
    found = {directory(), directory(role=11), directory(threads=2), directory(home="/other")}
    monkeypatch.setattr(compile_cache, "processor", lambda: "another")
    found.add(directory())
    assert len(found) == 5 and all(os.stat(path).st_mode & 0o777 == 0o700 for path in found)
    assert directory() in found


def test_those_that_nobody_uses_go(data):
    old = directory()
    os.utime(old, (0, 0))
    assert directory(role=11) and not os.path.exists(old)


@pytest.fixture
def other(tmp_path_factory):
    """The data directory of another server on the host, which is up."""
    path = tmp_path_factory.mktemp("größe")
    with subprocess.Popen(["sleep", "600"], cwd=path) as process:
        (path / "postmaster.pid").write_text(f"{process.pid}\n")
        yield path, process.pid
        process.kill()


def test_segments_on_a_host_share_what_one_of_them_has(data, other):
    (first, pid), own = other, directory()
    server_folder.share(str(first))
    server_folder.share(str(first))
    assert directory().startswith(f"{first}/") and os.path.basename(directory()) == os.path.basename(own)
    folder, opened, server = server_folder.own_folder()
    os.close(opened)
    assert folder == f"{first}/pgsql_tmp.pg_mop" and server == pid
    server_folder.share(str(data))
    assert directory() == own


@pytest.mark.parametrize("trouble", ["down", "another process", "open to others", "empty", "no folder"])
def test_where_that_is_not_to_be_had_each_has_its_own(data, other, trouble):
    (first, _), own = other, directory()
    server_folder.share(str(first))
    if trouble == "down":
        (first / "postmaster.pid").write_text("4194305\n")
    elif trouble == "another process":  # which has the number that the server had
        (first / "postmaster.pid").write_text(f"{os.getpid()}\n")
    elif trouble == "open to others":
        (first / "pgsql_tmp.pg_mop").mkdir()
        os.chmod(first / "pgsql_tmp.pg_mop", 0o755)
    elif trouble == "empty":
        (data / "pgsql_tmp.pg_mop" / "shares").write_text("")
    elif trouble == "no folder":
        shutil.rmtree(data / "pgsql_tmp.pg_mop")
        (data / "pgsql_tmp.pg_mop").touch()
        server_folder.share(str(first))
        assert directory() == {}
        return
    assert directory() == own


@pytest.mark.parametrize("trouble", ["no server", "blank", "off", "file", "open to others"])
def test_where_there_is_no_place_for_it_it_is_done_without(data, monkeypatch, trouble):
    if trouble == "no server":
        (data / "postmaster.pid").write_text("1\n")
    elif trouble == "blank":
        (data / "my data").mkdir()
        (data / "my data" / "postmaster.pid").write_text(f"{os.getppid()}\n")
        monkeypatch.chdir(data / "my data")
    elif trouble == "file":
        (data / "pgsql_tmp.pg_mop").touch()
    elif trouble == "open to others":
        (data / "pgsql_tmp.pg_mop").mkdir()
        os.chmod(data / "pgsql_tmp.pg_mop", 0o755)
    assert directory(megabytes=0 if trouble == "off" else 1) == {}


def test_it_grows_no_larger_than_it_may(tmp_path):
    cache = CompileCache(tmp_path, 1000)
    for number in range(20):
        path = tmp_path / str(number)
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
        cache.tidy()
    left = sorted(int(path.name) for path in tmp_path.iterdir())
    assert 7 <= len(left) <= 10 and left == list(range(left[0], 20))


def test_what_has_been_compiled_is_known_by_name(tmp_path):
    cache = CompileCache(tmp_path, 1 << 20)
    assert cache.compiled("net") == {}
    for text, seconds in (("one", 1.5), ("one", 0.3), ("two", 1.2), ("one", 0.4)):
        cache.note("net", text, seconds)
    assert cache.compiled("net") == {compile_cache.digest("one"): (0.4, 3), compile_cache.digest("two"): (1.2, 1)}
    (path,) = tmp_path.iterdir()
    for text in (
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"compiled": 3}',
        '{"compiled": {"x": ["a", "b"]}}',
        json.dumps({"compiled": {"x": 1}}),
    ):
        path.write_text(text)
        assert cache.compiled("net") == {}
    for number in range(compile_cache.COMPILED + 1):
        cache.note("net", str(number), 1.0)
    assert len(cache.compiled("net")) == compile_cache.COMPILED and cache.compiled("other") == {}
    CompileCache("/nowhere", 1).note("net", "one", 2.0)
    assert CompileCache("/nowhere", 1).compiled("net") == {}


def test_what_has_been_compiled_is_cleared(tmp_path):
    cache = CompileCache(tmp_path, 1 << 20)
    assert not cache.clear()
    (tmp_path / "net.pb").touch()
    cache.note("net", "text", 2.0)
    assert cache.clear() and not cache.clear() and not cache.compiled("net")


def test_what_is_damaged_is_not_read(tmp_path):
    cache = CompileCache(tmp_path, 1000)
    assert cache.read("net") is None
    cache.write("net", b"traced")
    assert cache.read("net") == b"traced" and cache.read("another") is None
    (path,) = tmp_path.iterdir()
    for data in (b"", path.read_bytes()[:-1], path.read_bytes() + b"x", bytes(40)):
        path.write_bytes(data)
        assert cache.read("net") is None
    cache.write("net", b"traced")
    assert cache.read("net") == b"traced" and not cache.clear() and cache.read("net") is None
    for number in range(20):
        cache.write(str(number), bytes(100))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000
    CompileCache("/nowhere", 1).write("net", b"traced")
    assert CompileCache("/nowhere", 1).read("net") is None


def test_one_of_two_trainers_compiles(tmp_path):
    first, second = CompileCache(tmp_path, 100), CompileCache(tmp_path, 100)
    with first.exclusive("net", True) as turn:
        assert turn
        with second.exclusive("net", False) as turn:
            assert not turn
        with second.exclusive("another", False) as turn:
            assert turn
        second.tidy(), second.clear()  # what is held stays
        ended = []
        waiting = threading.Thread(target=lambda: [ended.append(turn) for turn in [_turn(second)]])
        waiting.start()
        time.sleep(0.2)
        assert not ended
    waiting.join()
    assert ended == [True]
    with CompileCache("/nowhere", 1).exclusive("net", False) as turn:
        assert turn


def _turn(cache):
    with cache.exclusive("net", True) as turn:
        return turn
