"""A plain loop in PyTorch or JAX, on a GPU or on processors: COPY the table out, then processes that train on the device.

Each process warms up first: it puts the rows on the device, and trains each kind of configuration for a while, so that all
code is compiled and loaded. Training begins when all processes are ready, and is timed apart from the warm-up.
"""

import multiprocessing

from contenders.common import export, main

WARM_UPDATES = 5  # of PyTorch, which compiles nothing but chooses algorithms


def contender(workload, dsn, workers, clock, framework):
    """`framework`: torch or jax. The device is a GPU if CUDA_VISIBLE_DEVICES names one and the framework can use it."""
    with clock.part("export"):
        x, y = export(workload, dsn)
    # (this process has not imported a framework: rows are shared, and each process makes a CUDA context of its own)
    context = multiprocessing.get_context("fork")
    with context.Pool(workers, _begin, (workload, framework, x, y, context.Barrier(workers))) as pool:
        with clock.part("warm-up"):
            devices = set(pool.map(_warm, range(workers), chunksize=1))
        with clock.part("train"):
            trained = pool.map(_train, range(len(workload.configurations)), chunksize=1)
    return {
        "losses": [loss for loss, _ in trained],
        "updates": sum(updates for _, updates in trained),
        "device": " and ".join(sorted(devices)),
    }


class InTorch:
    """PyTorch's loop (torch_loop.py)."""

    def __init__(self, workload, x, y):
        import torch

        torch.backends.cudnn.benchmark = True  # the fastest algorithm for each shape, as most users set it
        self.device, self.workload = "cuda" if torch.cuda.is_available() else "cpu", workload
        self.rows = [torch.as_tensor(part, device=self.device) for part in (x, y)]
        self.name = torch.cuda.get_device_name() if self.device == "cuda" else "cpu"

    def train(self, key, most=None):
        from contenders import torch_loop

        return torch_loop.train(self.workload, key, *self.rows, self.device, most)

    def warm(self, key):
        self.train(key, WARM_UPDATES)


class InJax:
    """JAX's loop (jax_loop.py)."""

    def __init__(self, workload, x, y):
        import jax

        from contenders.jax_loop import Loop

        loop = Loop(workload, x, y)
        self.train, self.warm, self.name = loop.train, loop.warm, jax.devices()[0].device_kind


def _begin(workload, framework, x, y, barrier):
    global shared
    shared = {"torch": InTorch, "jax": InJax}[framework], workload, x, y, barrier


def _warm(_):
    global loop
    make, workload, x, y, barrier = shared
    loop = make(workload, x, y)
    seen = set()
    for key, c in enumerate(workload.configurations):
        form = c.architecture, c.optimizer, c.momentum, c.batch_size
        if form not in seen:
            seen.add(form)
            loop.warm(key)
    barrier.wait()  # so that every process warms up once
    return loop.name


def _train(key):
    return loop.train(key)


if __name__ == "__main__":
    main(contender)
