"""pg_mop and plain loops on one GPU: `on_gpu.py [--share 0.1] OUTPUT WORKLOAD ...`; tools/gpu_trial.sh runs it.

WORKLOAD: dense-wide, cnn, or vmap (16 configurations that differ in their learning rate, together and one by one).

Contenders, on JAX and on PyTorch where these are installed, on the GPU if the framework can use one here, else on processors:

- pg_mop with one segment, and with two that share the GPU: packs the table and makes one call, cold as on a new server; then
  the same call again in the same session, whose trainers live and have compiled their code;
- a plain loop, in one process and in two (contenders/loop_on_device.py).

All train the same rows in batches of the same sizes, in the same number of updates, which is checked. Figures go to the file
OUTPUT as JSON: {workload: {"about", "figures": {contender: {...}}}}. `--share`: of the rows, to try the program.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from contenders.common import THREADS  # noqa: E402
from run import forget  # noqa: E402
from tables import SETTINGS, configure, connect, load_rows, pack, train  # noqa: E402
from workloads import WORKLOADS  # noqa: E402

from pg_mop.backend import settings  # noqa: E402
from support.cluster import Cluster  # noqa: E402

FRAMEWORKS = {"jax": "JAX", "torch": "PyTorch"}
COUNTS = (1, 2)  # segments of pg_mop, and processes of the loops


def smaller(workload, share):
    """A workload with a share of the rows, in full batches for each of two segments."""
    step = 2 * math.lcm(*(c.batch_size for c in workload.configurations))
    return dataclasses.replace(workload, rows=max(step, int(workload.rows * share) // step * step))


def in_database(dsn, workload, segments, backend, kernel="auto"):
    """pg_mop's figures. `whole`: the seconds of a cold client. `warm-up`: the seconds of its training, less those of a
    second training of the same."""
    forget(dsn)
    began = time.monotonic()
    connection, cursor = connect(dsn)
    cursor.execute(SETTINGS)
    cursor.execute(f"SET pg_mop.keras_backend = '{backend}'; SET pg_mop.kernel = '{kernel}'")
    pack(cursor, workload, segments)
    seconds = []
    for _ in range(2):
        configure(cursor, workload)
        configured = time.monotonic()
        run_id = train(cursor, workload.iterations, use_gpus=settings.gpus(backend) > 0)
        seconds.append(time.monotonic() - configured)
        if len(seconds) == 1:
            whole = time.monotonic() - began
    cursor.execute("SELECT training_loss_final FROM models_info ORDER BY mst_key")
    losses = [row[0] for row in cursor.fetchall()]
    cursor.execute(
        "SELECT mst_key, rows, kernel FROM madlib.mop_units WHERE run_id = %s AND kind = 'train' AND status = 'finished'",
        [run_id],
    )
    units = cursor.fetchall()
    connection.close()
    return {
        "whole": whole,
        "warm-up": seconds[0] - seconds[1],
        "train": seconds[1],
        "updates": sum(-(-rows // workload.configurations[key].batch_size) for key, rows, _ in units),
        "losses": losses,
        "note": "kernels " + ", ".join(sorted({kernel for *_, kernel in units})),
    }


def in_loop(dsn, name, share, processes, framework):
    """A plain loop's figures."""
    with tempfile.TemporaryDirectory() as place:
        output = os.path.join(place, "out.json")
        program = (
            "import sys; sys.path[:0] = ['.']; import on_gpu, workloads; "
            "workloads.WORKLOADS.update({sys.argv[1]: on_gpu.workload_of(sys.argv[1], float(sys.argv.pop()))}); "
            "from contenders import common, loop_on_device; common.main(loop_on_device.contender)"
        )
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-B", "-c", program, name, dsn, str(processes), output, framework, str(share)],
            cwd=HERE,
            env={
                **os.environ,
                **THREADS,
                "CUDA_VISIBLE_DEVICES": "0" if settings.gpus(framework) else "-1",
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # two processes share the GPU
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        whole = time.monotonic() - began
        if done.returncode:
            raise SystemExit(f"the loop in {FRAMEWORKS[framework]} failed on {name}:\n{done.stdout[-3000:]}")
        with open(output) as text:
            made = json.load(text)
    parts = made.pop("parts")
    return {**made, "whole": whole, "warm-up": parts["warm-up"], "train": parts["train"], "note": made.pop("device")}


def workload_of(name, share):
    """The workload of a name; `vmap` is dense-small with 16 learning rates of Adam."""
    if name == "vmap":
        small = WORKLOADS["dense-small"]
        first = dataclasses.replace(small.configurations[0], batch_size=50)
        rates = [0.0003 * 1.2**n for n in range(16)]
        workload = dataclasses.replace(
            small,
            about="10,000 x 64, a net 64-64-64-10, 16 learning rates of Adam, 5 iterations",
            configurations=tuple(dataclasses.replace(first, learning_rate=rate) for rate in rates),
        )
    else:
        workload = WORKLOADS[name]
    return workload if share == 1 else smaller(workload, share)


def contenders_of(name, share, dsn):
    """{contender: a function that gives its figures}."""
    workload = workload_of(name, share)
    if name == "vmap":
        return {
            f"pg_mop on JAX, kernel {kernel}": lambda kernel=kernel: in_database(dsn, workload, 1, "jax", kernel)
            for kernel in ("loop", "vmap", "auto")
        }
    found = {}
    for backend, framework in FRAMEWORKS.items():
        if not find_spec(backend):
            continue
        for count in COUNTS:
            found[f"pg_mop on {framework}, {count} segment{'s' * (count > 1)}"] = lambda count=count, backend=backend: (
                in_database(dsn, workload, count, backend)
            )
        for count in COUNTS:
            found[f"{framework}, a plain loop, {count} process{'es' * (count > 1)}"] = (
                lambda count=count, backend=backend: in_loop(dsn, name, share, count, backend)
            )
    return found


def errors_in(figures):
    """The faults in a workload's {contender: figures}: numbers of updates that differ, and losses that are not finite."""
    wanted = next(iter(figures.values()))["updates"]
    return [
        f"{name}: {made['updates']:,} updates, others {wanted:,}"
        for name, made in figures.items()
        if made["updates"] != wanted
    ] + [
        f"{name}: the loss of configuration {key} is {loss}"
        for name, made in figures.items()
        for key, loss in enumerate(made["losses"])
        if loss is None or not math.isfinite(loss)
    ]


def measure(name, share, dsn, output):
    """Measure the contenders of a workload and add the figures to the file `output`: the errors."""
    workload, figures = workload_of(name, share), {}
    connection, cursor = connect(dsn)
    load_rows(cursor, workload)
    connection.close()
    for contender, call in contenders_of(name, share, dsn).items():
        figures[contender] = made = call()
        print(
            f"{name}: {contender}: whole {made['whole']:.2f} s, warm-up {made['warm-up']:.2f} s, training "
            f"{made['train']:.2f} s, {made['updates']:,} updates, {made['note']}",
            flush=True,
        )
        # (the file is written after each contender: an interrupted run keeps its figures)
        known = json.loads(output.read_text()) if output.exists() else {}
        known[name] = {"about": workload.about, "rows": workload.rows, "figures": figures}
        output.write_text(json.dumps(known))
    return errors_in(figures)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=1)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("workloads", nargs="+", choices=["dense-wide", "cnn", "vmap"])
    given = parser.parse_args()
    with Cluster(max_connections=40, shared_buffers="256MB", max_wal_size="4GB") as server:
        dsn = server.url(database="benchmark")
        for sql in ("CREATE DATABASE benchmark", "CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE"):
            connection, cursor = connect(server.url() if "DATABASE" in sql else dsn)
            cursor.execute(sql)
            connection.close()
        errors = [error for name in given.workloads for error in measure(name, given.share, dsn, given.output)]
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
