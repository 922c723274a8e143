"""A trainer process on JAX, and cases of units that it trains as one computation. A test file imports the fixtures."""

import json
import sys

import numpy as np
import pytest

from mop_udf import state
from mop_udf.pool import process
from support.workload import ADAM, dense, layer, random_rows, sequential

ROWS = 45
NET = dense()
NORMALISED = sequential(
    "normalised",
    [4],
    layer("Dense", name="a", units=8, activation="relu"),
    layer("BatchNormalization", name="b"),
    layer("Dropout", name="c", rate=0.3, seed=7),
    layer("Dense", name="d", units=3, activation="softmax"),
)
CONVOLUTION = sequential(
    "convolution",
    [4],
    layer("Reshape", name="a", target_shape=[4, 1]),
    layer("Conv1D", name="b", filters=2, kernel_size=2),
    layer("Flatten", name="c"),
    layer("Dense", name="d", units=3, activation="softmax"),
)
ADAMS = [ADAM.format(0.002 * number) for number in range(1, 6)]
MOMENTA = [
    f"loss='categorical_crossentropy', optimizer='SGD(lr={0.01 * n}, momentum={0.1 * n}, weight_decay=0.00{n})'"
    for n in range(1, 6)
]
CASES = {
    "dense": (NET, ADAMS, "batch_size=8"),
    "BatchNormalization and Dropout": (NORMALISED, ADAMS, "batch_size=8"),
    "class weights, several epochs": (NET, ADAMS, "batch_size=8, epochs=3, class_weight={0: 1, 1: 3, 2: 0.5}"),
    "other scalars": (NET, MOMENTA, "batch_size=9, epochs=2"),
    "a decay": (NET, [text.replace("weight_decay", "decay") for text in MOMENTA], "batch_size=8"),
    "rates per batch": (
        NET,
        [ADAM.format(f'Cosine(0.0{n}, 2, gamma=2, per="batch")') for n in range(1, 6)],
        "batch_size=8",
    ),
    "shuffled": (NET, ADAMS, "batch_size=8, epochs=2, shuffle=True"),
    "a few steps": (NET, ADAMS, "batch_size=8, steps_per_epoch=2"),
    "fewer rows than a batch": (NET, ADAMS, "batch_size=64"),
}

UNIT = """{"op": "unit", "kind": "train", "seed": 3, "same_start": true, "segment": 0, "dataset": "rows", "inputs": 1,
    "dtypes": ["<f4", "<i2"], "replicas": null, "run_seconds": 0.0, "share_prefixes": true, "keep": ["rows"],
    "epochs_sent": 1, "outputs": {"widths": [3], "one_hot": [true], "classes": [3]}}"""
MODEL = '{"model_id": 1, "iteration": 1, "plain_weights": false, "passes_left": 1, "run_passes_left": 1}'


class Trainer:
    """A trainer process, and what a session would do with it: the states of models, and what was told of them."""

    def __init__(self):
        options = {"threads": 1, "gpu": None, "keras_backend": "jax", "cache_mb": 100, "idle_ms": 120_000}
        self.process, self.states, self.keeps = process.Trainer(sys.prefix, options, lambda: None), {}, True

    def train(self, kernel, *models, functions=None):
        """Train a unit of each of (name, architecture, compile parameters, fit parameters): reports. `functions`:
        {name: pickle} for all of them."""
        functions = functions or {}
        sends = not self.keeps or "rows" not in self.process.datasets
        sizes = {"rows": ROWS, "nbytes": ROWS * 22, "keeps_rows": self.keeps, "sends_rows": sends}
        of_model = {**json.loads(MODEL), "objects": list(functions), "kernel": kernel}
        names = ("architecture", "compile_params", "fit_params")
        described = [
            {"stage": number, "mst_key": number, **dict(zip(names, texts)), **of_model}
            for number, (_, *texts) in enumerate(models)
        ]
        pickles = [pickle for _ in models for pickle in functions.values()]
        self.process.send({**json.loads(UNIT), **sizes, "models": described}, *pickles)
        for number, (name, *_) in enumerate(models):
            if name in self.states:
                self.process.send({"op": "state", "stage": number}, self.states[name])
        self.process.send({"op": "states_end"})
        if sends:
            x, y = random_rows(ROWS)
            self.process.send(
                {"op": "rows", "epoch": 1, "buffer": 0, "shapes": [[ROWS, 4], [ROWS, 3]]},
                x.tobytes(),
                y.astype("<i2").tobytes(),
            )
        self.process.send({"op": "end"})
        report, _ = self.process.receive()
        self.process.datasets = set(report["datasets"])
        for number, (name, *_) in enumerate(models):
            self.process.send({"op": "save", "numbers": [number]})
            parts, last = [], False
            while not last:
                header, payloads = self.process.receive()
                parts, last = [*parts, *payloads], header["last"]
            self.states[name] = b"".join(parts)
        return report["models"]

    def weights(self, name):
        return np.concatenate([array.ravel() for array in state.unpack(self.states[name])["weights"]])


@pytest.fixture(scope="module")
def process_of_all():
    trainer = Trainer()
    yield trainer
    trainer.process.kill()


@pytest.fixture
def trainer(process_of_all):
    process_of_all.states = {}
    return process_of_all


def named(who, case):
    architecture, compiling, fitting = CASES[case]
    return [(f"{who} {number}", architecture, text, fitting) for number, text in enumerate(compiling)]


def assert_trained_as_by_itself(trainer, case):
    together, alone = named("together", case), named("alone", case)
    for _ in range(2):  # the second time from states
        reports = trainer.train("vmap", *together)
        others = [trainer.train("plain", one)[0] for one in alone]
        assert [report["kernel"] for report in reports] == ["vmap"] * 5
        for mine, other in zip(reports, others):
            assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4)
            assert mine["rows"] == other["rows"] and mine["seconds"] > 0
    for one, other in zip(together, alone):
        mine, its = trainer.weights(one[0]), trainer.weights(other[0])
        assert np.abs(mine - its).max() <= 2e-4 * np.abs(its).max()
    assert len({trainer.states[one[0]] for one in together}) == 5
    for one, other in zip(together, alone):  # counters and random states, too
        mine, its = (state.unpack(trainer.states[name[0]]) for name in (one, other))
        assert [a.tobytes() for a in mine["seeds"]] == [a.tobytes() for a in its["seeds"]]
        assert mine["optimizer"][0] == its["optimizer"][0]
