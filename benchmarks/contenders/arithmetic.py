"""Arithmetic alone: the time in which warm processes compute the batches with the fastest kernel.

A process for each worker holds the rows and compiles everything. The first pass trains all configurations; the next
passes train them again, the longest first, and only these are timed. Reading, loading of rows, compilation, states
that move, and the final loss are outside this time. A contender can only be faster if it needs less arithmetic: with several
models in one computation, or with the outputs of layers that are not trained kept from pass to pass.

The kernels: those of pg_mop on TensorFlow, and for dense nets a loop in JAX if that is installed. Each process times them
for each architecture, optimizer and batch size, and keeps the fastest.

A timed pass starts from the workload's weights with a relative error of the size of rounding ("twins"). The differences
between its losses and those of the first pass show what rounding alone does to a loss (see losses.py).
"""

import multiprocessing
import statistics
import time
from importlib.util import find_spec

import numpy as np

from contenders.common import EVALUATED, main

PROBED, PROBES = 64, 3  # kernels are compared on 64 batches, three times; the best time counts
ROUNDING = 2.0**-20  # relative; eight times the rounding of float32


def form(configuration):
    """A key: configurations with equal keys can use the same compiled kernel."""
    return configuration.architecture, configuration.optimizer, configuration.momentum, configuration.batch_size


class KerasKernel:
    """A kernel of pg_mop for configurations that differ in their learning rates alone: `key` is one of them."""

    def __init__(self, workload, key, columns, name):
        from mop_udf.kernels.autotuner_memory import AutotunerMemory
        from mop_udf.kernels.tuned_kernels import TunedKernels

        self.name, self.columns, self.size = name, columns, workload.configurations[key].batch_size
        self.model = workload.compiled(key)
        self.model.optimizer.build(self.model.trainable_variables)
        self.fresh = [v.numpy() for v in self.model.optimizer.variables]
        # (pg_mop keeps compiled code by name)
        self.kernels = TunedKernels(
            self.model, False, AutotunerMemory(), f"{name} of {form(workload.configurations[key])}"
        )

    def begin(self, weights, rate):
        """Start from weights, with a learning rate."""
        self.model.set_weights(weights)
        for variable, value in zip(self.model.optimizer.variables, self.fresh):
            variable.assign(value)
        self.model.optimizer.learning_rate = rate

    def train(self, most=None):
        """Train one pass over the rows, or its first `most` batches."""
        rows = len(self.columns[0])
        report = self.kernels.train([self.columns], rows, self.size, 1, most=most, forced=self.name)
        if report["kernel"] != self.name:
            why = self.kernels.autotuner(self.size, self.name).refused.get(self.name)
            raise RuntimeError(f"the kernel {self.name} cannot train this model: {why}")

    def weights(self):
        """The trained weights, in the order of Keras."""
        return self.model.get_weights()

    def updates(self):
        """The optimizer steps since `begin`."""
        return int(self.model.optimizer.iterations.numpy())


class Worker:
    """The rows, compiled kernels and trained weights of a process."""

    def __init__(self, workload, x, y, barrier):
        self.workload, self.x, self.y, self.barrier = workload, x, y, barrier
        self.kernels, self.trained = {}, {}  # form of a configuration -> its kernel; key -> trained weights
        self.models = {}  # architecture -> a model that evaluates
        self.start = [workload.architecture(number)[1] for number in range(len(workload.nets))]

    def warm(self):
        """Compile and compare the kernels, and run the fastest over all batches: the names of the fastest."""
        from mop_udf.data import Columns

        columns = Columns((self.x, self.y))
        columns.MOST_BYTES = 1 << 40  # all batches are cut from the rows once
        for key, configuration in enumerate(self.workload.configurations):
            if form(configuration) in self.kernels:
                continue
            candidates = [KerasKernel(self.workload, key, columns, name) for name in ("loop", "xla")]
            if find_spec("jax"):
                from contenders import jax_scan

                if jax_scan.trains(self.workload):
                    candidates.append(jax_scan.Scan(self.workload, configuration, self.x, self.y))
            seconds = {}
            for kernel in candidates:
                times = []
                for _ in range(1 + PROBES):  # the first compiles
                    kernel.begin(self.start[configuration.architecture], configuration.learning_rate)
                    began = time.monotonic()
                    kernel.train(PROBED)
                    times.append(time.monotonic() - began)
                seconds[kernel] = min(times[1:])
            self.kernels[form(configuration)] = fastest = min(seconds, key=seconds.get)
            fastest.train()
        return {kernel.name for kernel in self.kernels.values()}

    def disturb(self, seed):
        """Let the next passes start from the workload's weights with errors of the size of rounding."""
        source = np.random.default_rng(seed)
        self.start = [
            [
                (w * (1 + ROUNDING * source.uniform(-1, 1, w.shape))).astype("f4")
                for w in self.workload.architecture(n)[1]
            ]
            for n in range(len(self.workload.nets))
        ]

    def train(self, key):
        """Train a configuration to the end: the seconds that it took."""
        configuration = self.workload.configurations[key]
        kernel = self.kernels[form(configuration)]
        began = time.monotonic()
        kernel.begin(self.start[configuration.architecture], configuration.learning_rate)
        for _ in range(self.workload.iterations):
            kernel.train()
        self.trained[key] = kernel.weights(), kernel.updates()
        return time.monotonic() - began

    def measure(self):
        """{key: (final loss, number of updates)} of the configurations that this process has trained since the last call."""
        found = {}
        for key, (weights, updates) in self.trained.items():
            number = self.workload.configurations[key].architecture
            if number not in self.models:
                self.models[number] = self.workload.compiled(key)
            model = self.models[number]
            model.set_weights(weights)
            found[key] = float(model.evaluate(self.x, self.y, batch_size=EVALUATED, verbose=0)[0]), updates
        self.trained = {}
        return found


def _begin(*given):
    global worker
    worker = Worker(*given)


def _each(call):
    """Call a method of Worker; the barrier lets every process do it once."""
    name, *arguments = call
    worker.barrier.wait()
    return getattr(worker, name)(*arguments)


def _train(key):
    return worker.train(key)


def train_all(workload, x, y, workers, seeds, clock):
    """The figures on rows `x` with one-hot `y`, with a timed pass for each seed of `seeds`."""
    keys = list(range(len(workload.configurations)))
    context = multiprocessing.get_context("fork")  # this process has not imported a framework; rows are shared
    with context.Pool(workers, _begin, (workload, x, y, context.Barrier(workers))) as pool:

        def each(*call):
            return pool.map(_each, [call] * workers, chunksize=1)

        def whole_pass(order):
            """(seconds of the pass, seconds of each key of `order`, losses, updates of all)"""
            began = time.monotonic()
            took = pool.map(_train, order, chunksize=1)
            seconds = time.monotonic() - began
            made = {key: own for found in each("measure") for key, own in found.items()}
            return seconds, took, [made[key][0] for key in keys], sum(updates for _, updates in made.values())

        with clock.part("warm-up"):
            names = set().union(*each("warm"))
        clock.parts["first pass"], took, losses, updates = whole_pass(keys)
        longest, timed = sorted(keys, key=lambda key: -took[key]), []
        for seed in seeds:
            each("disturb", seed)
            timed.append(whole_pass(longest))
    return {
        "seconds": statistics.median(seconds for seconds, *_ in timed),
        "losses": losses,
        "twins": [losses for _, _, losses, _ in timed],
        "updates": updates,
        "notes": [f"kernels {' and '.join(sorted(names))}"],
        # (not measured: the processes also hold the kernels that were compiled for the comparison)
        "peak_bytes": None,
        "together_bytes": None,
        "written_bytes": None,
    }


def contender(workload, dsn, workers, clock, seeds="1"):
    """`seeds`: of the timed passes' twins, as '1,2'. Reads no table: the rows are those that the table has."""
    x, classes = workload.data()
    y = np.eye(workload.classes, dtype="f4")[classes]
    return train_all(workload, x, y, workers, [int(seed) for seed in seeds.split(",")], clock)


if __name__ == "__main__":
    main(contender)
