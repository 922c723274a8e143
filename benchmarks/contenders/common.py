"""Functions that several contenders share."""

import contextlib
import io
import json
import multiprocessing
import sys
import time

# the environment of contenders: one thread for each worker, in all libraries (which read it when they are imported)
THREADS = {
    "OMP_NUM_THREADS": "1",
    "NPROC": "1",  # read by JAX
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
}
EVALUATED = 1024  # rows of a batch for the final loss
ADAM_EPSILON = 1e-7  # Keras' default, for contenders with another default


class Clock:
    """Seconds of the parts of a process."""

    def __init__(self):
        self.parts = {}

    @contextlib.contextmanager
    def part(self, name):
        began = time.monotonic()
        yield
        self.parts[name] = self.parts.get(name, 0.0) + time.monotonic() - began


def main(contender):
    """Run `contender(workload, dsn, workers, clock, *settings)` -> {"losses": ..., ...} for a command line."""
    from studies import STUDIES
    from workloads import WORKLOADS

    _, name, dsn, workers, output, *settings = sys.argv
    clock = Clock()
    made = contender({**WORKLOADS, **STUDIES}[name], dsn, int(workers), clock, *settings)
    with open(output, "w") as out:
        json.dump({**made, "parts": clock.parts}, out)


def export(workload, dsn, table="raw"):
    """The raw table, copied out as text: (x, one-hot y), float32."""
    import numpy as np
    import psycopg2

    text = io.BytesIO()
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.copy_expert(f"COPY (SELECT x, y FROM {table} ORDER BY id) TO STDOUT", text)
    plain = text.getvalue().translate(bytes.maketrans(b"{}\t\n", b"  ,,"))
    values = np.fromstring(plain.rstrip(b","), "f4", sep=",").reshape(-1, np.prod(workload.shape) + 1)
    y = values[:, -1].astype("i4")
    return np.ascontiguousarray(values[:, :-1]).reshape(-1, *workload.shape), np.eye(workload.classes, dtype="f4")[y]


def train_whole(workload, key, x, y):
    """One configuration by Model.fit on all rows, in their order: its final loss and the number of its updates."""
    model = workload.compiled(key)
    model.fit(
        x, y, batch_size=workload.configurations[key].batch_size, epochs=workload.iterations, shuffle=False, verbose=0
    )
    loss = float(model.evaluate(x, y, batch_size=EVALUATED, verbose=0)[0])
    return loss, int(model.optimizer.iterations.numpy())


def exporting(train):
    """A contender that exports the rows, and then trains whole configurations by `train` (see in_processes)."""

    def contender(workload, dsn, workers, clock):
        with clock.part("export"):
            x, y = export(workload, dsn)
        with clock.part("train"):
            losses, updates = in_processes(train, workload, x, y, workers)
        return {"losses": losses, "updates": updates}

    return contender


def in_processes(train, workload, x, y, workers):
    """`train(workload, key, x, y)` -> (loss, number of updates) of all configurations: (losses, sum of the updates).

    A process for each worker, forked from this one, so that it has not copied the rows. This process must not have
    imported a framework.
    """
    context = multiprocessing.get_context("fork")
    with context.Pool(workers, _begin, (train, workload, x, y)) as pool:
        trained = pool.map(_train, range(len(workload.configurations)), chunksize=1)
    return [loss for loss, _ in trained], sum(steps for _, steps in trained)


def _begin(*given):
    global shared
    shared = given


def _train(key):
    train, workload, x, y = shared
    return train(workload, key, x, y)
