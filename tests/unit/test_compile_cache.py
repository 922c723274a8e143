"""XLA's cache and what is known of kernels, without a server: where they are, and what comes of what is wrong there."""

import json
import os
import subprocess
import sys

import pytest

from mop_udf import compile_cache
from mop_udf.compile_cache import CompileCache
from workload import dense


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
    monkeypatch.setattr(compile_cache, "_processor", lambda: "another")
    found.add(directory())
    assert len(found) == 5 and all(os.stat(path).st_mode & 0o777 == 0o700 for path in found)
    assert directory() in found


def test_those_that_nobody_uses_go(data):
    old = directory()
    os.utime(old, (0, 0))
    assert directory(role=11) and not os.path.exists(old)


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


def test_what_is_known_of_an_architecture_is_the_median(tmp_path):
    cache = CompileCache(tmp_path, 1 << 20)
    assert cache.known("net") == {}
    for speedup, seconds in ((3.0, 1.5), (0.1, 0.2), (3.2, 0.3), (3.1, 0.2)):
        cache.note("net", "xla", speedup, seconds)
    cache.note("net", "loop", None, 0.2)
    assert cache.known("net") == {"xla": (3.05, 0.25), "loop": (None, 0.2)} and cache.known("other") == {}
    (path,) = tmp_path.iterdir()
    for text in ("", "{", "[]", "7", "{}", '{"measured": 3, "compiled": {}}', '{"measured": {"xla": [["a", "b"]]}}',
                 json.dumps({"measured": {"xla": [[1]]}, "compiled": {}}),
                 json.dumps({"measured": {"xla": [[1, 2]]}, "compiled": {"x": 1}})):
        path.write_text(text)
        assert cache.known("net") == {} == cache.compiled("net")
    cache.note("net", "xla", 2.0, 0.1)
    assert cache.known("net") == {"xla": (2.0, 0.1)}
    CompileCache("/nowhere", 1).note("net", "xla", 2.0, 0.1)
    assert CompileCache("/nowhere", 1).known("net") == {}


def test_what_has_been_compiled_is_known_by_name(tmp_path):
    cache = CompileCache(tmp_path, 1 << 20)
    for seconds in (1.5, 0.3, 0.4):
        cache.note("net", "xla", None, seconds, "one")
    cache.note("net", "xla", 3.0, 1.5)
    cache.note("net", "xla", None, 1.2, "two")
    assert cache.compiled("net") == {compile_cache.digest("one"): (0.4, 3), compile_cache.digest("two"): (1.2, 1)}
    for number in range(compile_cache.COMPILED):
        cache.note("net", "xla", None, 1.0, str(number))
    assert len(cache.compiled("net")) == compile_cache.COMPILED and cache.compiled("other") == {}


def test_what_has_been_compiled_is_cleared_and_what_is_known_stays(tmp_path):
    cache = CompileCache(tmp_path, 1 << 20)
    assert not cache.clear()
    (tmp_path / "net.pb").touch()
    cache.note("net", "xla", 2.0, 0.1, "text")
    assert cache.compiled("net")
    assert cache.clear() and not cache.clear() and cache.known("net") and not cache.compiled("net")


TRAIN = """
import hashlib, sys
import tensorflow as tf
from mop_udf import models, params
from workload import dense, random_rows
compile_params = params.parse_compile_params("loss='categorical_crossentropy', optimizer='Adam(lr=0.01)'")
model = models.ModelCache().get(dense(), compile_params, {})
model.start(7)
for _ in range(int(sys.argv[1])):
    tf.function(lambda x: x + 1)(tf.constant(1.0))
print(model.kernels.train([random_rows(200)], 200, 8, 1, forced="xla")["kernel"])
print(hashlib.md5(b"".join(w.tobytes() for w in model.model.get_weights())).hexdigest())
"""


def train(path, before=0):
    """What a trainer with its cache in `path` says, which has made so many functions before: (the kernel, a digest of
    the weights)."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1",
                   "PYTHONPATH": ":".join(sys.path),
                   "TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={path}", compile_cache.VARIABLE: f"1:{path}"}
    return subprocess.run([sys.executable, "-B", "-c", TRAIN, str(before)], env=environment, check=True, text=True,
                          stdout=subprocess.PIPE).stdout.split()


@pytest.mark.thorough
def test_what_is_damaged_there_is_compiled_anew(tmp_path):
    first = train(tmp_path)
    (compiled,) = tmp_path.glob("*.pb")
    size = compiled.stat().st_size
    assert first[0] == "xla" and train(tmp_path, before=3) == first
    assert [compiled] == list(tmp_path.glob("*.pb")), "found again, whatever else a trainer has done"
    compiled.write_bytes(os.urandom(size // 2))
    assert train(tmp_path) == first and not compiled.exists()
    assert train(tmp_path) == first and compiled.stat().st_size == size
    assert compile_cache.CompileCache(tmp_path, 1).known(dense())["xla"][1] > 0


@pytest.mark.thorough
def test_where_it_cannot_be_written_the_loop_trains(tmp_path):
    (tmp_path / "file").touch()
    assert train(tmp_path / "file")[0] == "loop"
