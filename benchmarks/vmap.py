"""Equal small nets as one vmap batch, and one by one, in a trainer on JAX. Prints a table.

    PYTHONPATH=plpy_modules:. .local/venv/bin/python benchmarks/vmap.py

Eight configurations that differ in their learning rate train one sub-epoch on the same rows: with the kernel `vmap` as one
request, with the kernel `loop` as eight. The two take turns, and the table has the median of the pairs' quotients. Nothing is
compiled while the clock runs.
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np

from mop_udf.pool import process

ROWS, INPUTS, CLASSES, BATCH = 1437, 64, 10, 32
COMPILE = "loss='categorical_crossentropy', optimizer='Adam(lr={})'"


def net(*widths):
    """A dense net with hidden layers of these widths, as JSON."""
    units = [*widths, CLASSES]
    layers = [
        {
            "class_name": "Dense",
            "config": {
                "name": f"layer_{at}",
                "units": width,
                "activation": "relu" if at < len(widths) else "softmax",
                **({"batch_input_shape": [None, INPUTS]} if at == 0 else {}),
            },
        }
        for at, width in enumerate(units)
    ]
    return json.dumps({"class_name": "Sequential", "config": {"name": "net", "layers": layers}})


class Trainer:
    """A trainer process with the rows."""

    def __init__(self, threads):
        options = {"threads": threads, "gpu": None, "keras_backend": "jax", "cache_mb": 100, "idle_ms": 600_000}
        self.process = process.Trainer(sys.prefix, options, lambda: None)
        random = np.random.default_rng(1)
        self.x = random.random((ROWS, INPUTS), "f4")
        self.y = np.eye(CLASSES, dtype="<i2")[random.integers(0, CLASSES, ROWS)]

    def train(self, kernel, architecture, rates):
        """Train a unit of each learning rate as one request. Returns the kernels that trained."""
        sends = "rows" not in self.process.datasets
        unit = {
            "op": "unit",
            "kind": "train",
            "seed": 3,
            "same_start": True,
            "segment": 0,
            "dataset": "rows",
            "dtypes": ["<f4", "<i2"],
            "inputs": 1,
            "rows": ROWS,
            "nbytes": self.x.nbytes + self.y.nbytes,
            "replicas": None,
            "run_seconds": 0.0,
            "share_prefixes": True,
            "keep": ["rows"],
            "keeps_rows": True,
            "sends_rows": sends,
            "epochs_sent": 1,
            "outputs": {"widths": [CLASSES], "one_hot": [True], "classes": [CLASSES]},
        }
        unit["models"] = [
            {
                "stage": number,
                "mst_key": number,
                "model_id": 1,
                "iteration": 1,
                "architecture": architecture,
                "compile_params": COMPILE.format(rate),
                "fit_params": f"batch_size={BATCH}",
                "objects": [],
                "kernel": kernel,
                "passes_left": 1,
                "run_passes_left": 1,
                "plain_weights": False,
            }
            for number, rate in enumerate(rates)
        ]
        self.process.send(unit)
        self.process.send({"op": "states_end"})
        if sends:
            shapes = [[ROWS, INPUTS], [ROWS, CLASSES]]
            self.process.send(
                {"op": "rows", "epoch": 1, "buffer": 0, "shapes": shapes}, self.x.tobytes(), self.y.tobytes()
            )
        self.process.send({"op": "end"})
        report, _ = self.process.receive()
        self.process.datasets = set(report["datasets"])
        return {model["kernel"] for model in report["models"]}


def main():
    """Measure the nets and print their quotients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    rates = [0.001 * (1 + number) for number in range(asked.nets)]
    trainer = Trainer(asked.threads)
    print(
        f"{asked.nets} nets, {ROWS} rows, batch {BATCH}, {asked.threads} thread(s): ms together, ms one by one, quotient"
    )
    for widths in ((8,), (16,), (32, 32), (128, 128)):
        architecture = net(*widths)

        def together(architecture=architecture):
            assert trainer.train("vmap", architecture, rates) == {"vmap"}

        def alone(architecture=architecture):
            for rate in rates:
                assert trainer.train("loop", architecture, [rate]) == {"loop"}

        seconds = {together: [], alone: []}
        for pair in range(asked.pairs + 2):
            for work in (together, alone) if pair % 2 else (alone, together):
                began = time.perf_counter()
                work()
                seconds[work].append(time.perf_counter() - began)
        pairs = list(zip(seconds[together], seconds[alone]))[2:]
        fused, single = (1000 * statistics.median(column) for column in zip(*pairs))
        quotient = statistics.median(one / other for one, other in pairs)
        print(f"hidden {str(widths):12} {fused:8.1f} {single:8.1f} {quotient:6.2f}", flush=True)
    trainer.process.kill()


if __name__ == "__main__":
    main()
