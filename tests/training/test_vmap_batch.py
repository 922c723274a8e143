"""Units of one model that come together are trained as one computation: the kernel `vmap`, in a trainer on JAX.

What comes of each is what comes of it alone, with the same bits in whatever company it was.
"""

import json
import sys

import numpy as np
import pytest

from mop_udf import process, state
from support.workload import ADAM, NAN, dense, layer, needs_jax, pickled, random_rows, sequential

pytestmark = needs_jax
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
        self.process.send(
            {
                "op": "unit",
                "kind": "train",
                "seed": 3,
                "same_start": True,
                "segment": 0,
                "dataset": "rows",
                "dtypes": ["<f4", "<i2"],
                "inputs": 1,
                "rows": ROWS,
                "nbytes": ROWS * 22,
                "replicas": None,
                "run_seconds": 0.0,
                "share_prefixes": True,
                "keep": ["rows"],
                "keeps_rows": self.keeps,
                "sends_rows": sends,
                "epochs_sent": 1,
                "outputs": {"widths": [3], "one_hot": [True], "classes": [3]},
                "models": [
                    {
                        "stage": number,
                        "mst_key": number,
                        "model_id": 1,
                        "iteration": 1,
                        "architecture": architecture,
                        "compile_params": compiling,
                        "fit_params": fitting,
                        "objects": list(functions),
                        "kernel": kernel,
                        "passes_left": 1,
                        "run_passes_left": 1,
                        "plain_weights": False,
                    }
                    for number, (_, architecture, compiling, fitting) in enumerate(models)
                ],
            },
            *(pickle for _ in models for pickle in functions.values()),
        )
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


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slice) if case == "dense" else case for case in CASES]
)
def test_each_is_trained_as_by_itself(trainer, case):
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


@pytest.mark.parametrize("case", ["dense", "BatchNormalization and Dropout", "rates per batch"])
def test_the_company_changes_no_bit(trainer, case):
    whole, apart = named("whole", case), named("apart", case)
    trainer.train("vmap", *whole)
    trainer.train("vmap", apart[3])
    trainer.train("vmap", apart[2], apart[0], apart[4])
    trainer.train("vmap", apart[1])
    for one, other in zip(whole, apart):
        assert trainer.states[one[0]] == trainer.states[other[0]]


def test_it_is_compiled_once_whatever_the_number(trainer):
    architecture = dense(width=11)
    many = [(f"model {n}", architecture, ADAM.format(0.001 * (n + 1)), "batch_size=9") for n in range(20)]
    assert sum(report["compilations"] for report in trainer.train("vmap", *many)) == 1
    for count in (1, 2, 7, 16):
        assert sum(report["compilations"] for report in trainer.train("vmap", *many[:count])) == 0


def test_a_group_of_different_models_falls_apart(trainer):
    mixed = [
        ("a", NET, ADAMS[0], "batch_size=8"),
        ("b", NORMALISED, ADAMS[0], "batch_size=8"),
        ("c", NET, ADAMS[1], "batch_size=8"),
        ("d", NET, ADAMS[0], "batch_size=8, epochs=2"),
        ("e", CONVOLUTION, ADAMS[0], "batch_size=8"),
        ("f", NET, ADAMS[2], "batch_size=5"),
    ]
    reports = trainer.train("vmap", *mixed)
    assert [report["kernel"] for report in reports] == ["vmap", "vmap", "vmap", "vmap", "plain", "vmap"]
    assert "slow on processors" in json.dumps(reports[4]["choice"]["refused"])
    before = dict(trainer.states)
    trainer.states = {}
    for one in mixed:
        trainer.train("vmap", one)
    assert trainer.states == before


def test_one_to_blame_fails_as_it_does_alone(trainer):
    rates = ["0.01", "0.02", "1e38", "0.04"]
    bad = [(rate, NET, NAN.replace("1e38", rate), "batch_size=8, epochs=2") for rate in rates]
    with pytest.raises(process.TrainerError) as failed:
        trainer.train("vmap", *bad)
    assert str(failed.value) == "the loss became NaN"
    assert failed.value.configuration
    with pytest.raises(process.TrainerError, match="the loss became NaN"):
        trainer.train("vmap", bad.pop(2))
    assert [report["kernel"] for report in trainer.train("vmap", *bad)] == ["vmap"] * 3


def test_what_is_too_large_for_sixteen_is_trained_one_after_the_other(trainer):
    large = [
        (f"large {n}", dense(width=200_000), ADAM.format(rate), "batch_size=8") for n, rate in enumerate((0.1, 0.2))
    ]
    reports = trainer.train("vmap", *large)
    assert [report["kernel"] for report in reports] == ["loop", "loop"]
    assert "16 of this model at once may take" in reports[0]["choice"]["refused"]["vmap"]
    others = [(f"other {n}", *rest) for n, (_, *rest) in enumerate(large)]
    trainer.train("loop", *others)
    assert [trainer.states[f"large {n}"] for n in (0, 1)] == [trainer.states[f"other {n}"] for n in (0, 1)]


def test_what_cannot_be_mapped_is_trained_one_after_the_other(trainer):
    functions = {"called": pickled("called", CALLED)}
    models = [
        (f"model {rate}", NET, f"loss='called', optimizer='Adam(lr={rate})'", "batch_size=8") for rate in (0.1, 0.2)
    ]
    reports = trainer.train("vmap", *models, functions=functions)
    assert [report["kernel"] for report in reports] == ["loop", "loop"]
    assert "vmap" in reports[0]["choice"]["refused"] and "loop" not in reports[0]["choice"]["refused"]
    after = dict(trainer.states)
    trainer.states = {}
    trainer.train("loop", *models, functions=functions)
    assert trainer.states == after


CALLED = """
def called(y_true, y_pred):
    import jax
    import keras
    loss = keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)
    seen = jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(loss.shape, loss.dtype), jax.lax.stop_gradient(loss))
    return loss + 0 * seen
"""


def test_on_processors_it_is_used_where_it_is_asked_for_alone(trainer):
    assert {report["kernel"] for report in trainer.train("auto", *named("any", "dense"))} <= {"loop", "plain"}


def test_rows_that_are_not_kept_are_trained_on_as_they_come(trainer):
    trainer.keeps = False
    try:
        assert trainer.train("vmap", named("streamed", "dense")[0])[0]["kernel"] == "loop"
    finally:
        trainer.keeps = True
