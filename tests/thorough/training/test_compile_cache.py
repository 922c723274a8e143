"""XLA's cache in trainers: damaged files and a directory that cannot be written (the rest: training/test_compile_cache.py)."""

import os
import subprocess
import sys

from mop_udf.pool import compile_cache
from mop_udf.pool.compile_cache import CompileCache
from support.workload import dense

TRAIN = """
import hashlib, sys
import tensorflow as tf
from mop_udf.params import params
from mop_udf.training import model_cache
from support.workload import dense, random_rows
compile_params = params.parse_compile_params("loss='categorical_crossentropy', optimizer='Adam(lr=0.01)'")
model = model_cache.ModelCache().get(dense(), compile_params, {})
model.start(7)
for _ in range(int(sys.argv[1])):
    tf.function(lambda x: x + 1)(tf.constant(1.0))
print(model.kernels.train([random_rows(200)], 200, 8, 1, forced="xla")["kernel"])
print(hashlib.md5(b"".join(w.tobytes() for w in model.model.get_weights())).hexdigest())
"""


def train(path, before=0):
    """What a trainer with its cache in `path` says, which has made so many functions before: (the kernel, a digest of
    the weights)."""
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": ":".join(sys.path),
        "TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={path}",
        compile_cache.VARIABLE: f"1:{path}",
    }
    return subprocess.run(
        [sys.executable, "-B", "-c", TRAIN, str(before)], env=environment, check=True, text=True, stdout=subprocess.PIPE
    ).stdout.split()


def test_what_is_damaged_there_is_compiled_anew(tmp_path):
    first = train(tmp_path)
    (compiled,) = tmp_path.glob("*.pb")
    size = compiled.stat().st_size
    assert first[0] == "xla" and train(tmp_path, before=3) == first
    assert [compiled] == list(tmp_path.glob("*.pb")), "found again, whatever else a trainer has done"
    compiled.write_bytes(os.urandom(size // 2))
    assert train(tmp_path) == first and not compiled.exists()
    assert train(tmp_path) == first and compiled.stat().st_size == size
    assert CompileCache(tmp_path, 1).compiled(dense())


def test_where_it_cannot_be_written_the_loop_trains(tmp_path):
    (tmp_path / "file").touch()
    assert train(tmp_path / "file")[0] == "loop"
