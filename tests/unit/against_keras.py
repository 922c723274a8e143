"""Train and evaluate as pg_mop does and as Keras does: `KERAS_BACKEND=... python against_keras.py`.

Prints {case: {kernel: largest difference of a weight, "scores": [ours, Keras']}} for the cases of CASES. Each case has a
model, pg_mop's compile_params, and the arguments of Keras' `compile` with the same meaning.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", OMP_NUM_THREADS="1")

from mop_udf.kernels.framework import framework  # noqa: E402

assert framework.begin(1) is None
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers as kl  # noqa: E402

from mop_udf import evaluation, model_cache, params, state  # noqa: E402
from mop_udf.kernels.vmap_batch import VmapBatch  # noqa: E402

ROWS, SIZE, PASSES = 45, 8, 2  # the last batch is short
SEED = 7
random = np.random.default_rng(0)
X = random.normal(size=(ROWS, 4)).astype("f4")
CLASSES = random.integers(0, 3, ROWS)
ONE_HOT = np.eye(3, dtype="i2")[CLASSES]
NUMBER = random.normal(size=(ROWS, 1)).astype("f4")
WEIGHT = random.uniform(0, 3, (ROWS, 1)).astype("f4")
WEIGHT[::7] = 0


def classifier():
    return keras.Sequential([keras.Input([4]), kl.Dense(8, "relu"), kl.Dense(3, "softmax")])


def two_outputs():
    given = keras.Input([4], name="given")
    hidden = kl.Dense(8, "relu", name="hidden")(given)
    return keras.Model(given, [kl.Dense(3, "softmax", name="kind")(hidden), kl.Dense(1, name="size")(hidden)])


@dataclasses.dataclass
class Case:
    """`text`: compile_params without the optimizer; `keras`: the arguments of `compile` with the same meaning.

    `optimizer`: as in compile_params, and Keras' own; `labels`: one array an output, as packed; `target`: as Keras takes
    it, where it differs.
    """

    text: str
    keras: dict[str, Any]
    make: Callable[[], keras.Model] = classifier
    optimizer: tuple[str, Callable[[], Any]] = ("Adam(lr=0.02)", lambda: keras.optimizers.Adam(0.02))
    labels: tuple[np.ndarray, ...] = (ONE_HOT,)
    target: Any = None
    weight: np.ndarray | None = None
    class_weight: dict[int, float] | None = None
    kernels: tuple[str, ...] = ("plain", "loop", "xla", "vmap")

    @property
    def columns(self):
        return (X, *self.labels, *([] if self.weight is None else [self.weight]))


CROSSENTROPY = "loss='categorical_crossentropy'"
CASES = {
    "sample weights": Case(CROSSENTROPY, {"loss": "categorical_crossentropy"}, weight=WEIGHT),
    "sample and class weights": Case(
        CROSSENTROPY, {"loss": "categorical_crossentropy"}, weight=WEIGHT, class_weight={0: 0.5, 2: 3.0}
    ),
    "weighted metrics": Case(
        CROSSENTROPY + ", metrics=['accuracy'], weighted_metrics=['accuracy', 'AUC', 'mae']",
        {
            "loss": "categorical_crossentropy",
            "metrics": ["accuracy"],
            "weighted_metrics": ["accuracy", keras.metrics.AUC(name="AUC"), "mae"],
        },
        weight=WEIGHT,
    ),
    "weighted metrics alone": Case(
        CROSSENTROPY + ", weighted_metrics=['accuracy']",
        {"loss": "categorical_crossentropy", "weighted_metrics": ["accuracy"]},
        weight=WEIGHT,
    ),
    "two outputs with sample weights": Case(
        "loss='mse', loss_weights=[0.3, 2.0], metrics=['mae'], weighted_metrics=['mae']",
        {
            "loss": ["mse", "mse"],
            "loss_weights": [0.3, 2.0],
            "metrics": [["mae"]] * 2,
            "weighted_metrics": [["mae"]] * 2,
        },
        two_outputs,
        labels=(ONE_HOT, NUMBER),
        weight=WEIGHT,
    ),
    "a loss of all rows with sample weights": Case("loss='dice'", {"loss": "dice"}, weight=WEIGHT),
}


def weights_of_rows(case):
    """The weight of each row, class weights included; None without weights."""
    weight = None if case.weight is None else case.weight[:, 0]
    if case.class_weight is None:
        return weight
    of_class = np.array([case.class_weight.get(c, 1.0) for c in CLASSES], "f4")
    return of_class if weight is None else weight * of_class


def by_keras(case, architecture):
    """(the weights, the scores) that Keras gives."""
    keras.utils.set_random_seed(SEED)
    model = keras.models.model_from_json(architecture)
    model.compile(optimizer=case.optimizer[1](), **case.keras, jit_compile=keras.backend.backend() == "jax")
    weight, labels = weights_of_rows(case), case.labels if case.target is None else case.target
    for _ in range(PASSES):
        for start in range(0, ROWS, SIZE):
            here = slice(start, start + SIZE)
            y = [label[here] for label in labels]
            model.train_on_batch(
                X[here], y if len(y) > 1 else y[0], sample_weight=None if weight is None else weight[here]
            )
    model.optimizer.finalize_variable_values(model.trainable_weights)
    scores = model.evaluate(
        X,
        list(labels) if len(labels) > 1 else labels[0],
        sample_weight=None if case.weight is None else case.weight[:, 0],
        batch_size=ROWS,
        verbose=0,
        return_dict=True,
    )
    return model.get_weights(), {name: float(np.mean(value)) for name, value in scores.items()}


def by_us(case, architecture, kernel):
    """(the weights, the scores) that pg_mop gives."""
    parsed = params.parse_compile_params(f"{case.text}, optimizer='{case.optimizer[0]}'")
    model = model_cache.ModelCache().get(architecture, parsed, {}, SEED)
    model.start(SEED)
    if kernel == "vmap":
        batch = VmapBatch(model.kernels)
        batch.take()
        batch.train([case.columns] * PASSES, ROWS, SIZE, 1, case.class_weight, forced=kernel)
        assert batch.trained, model.kernels.autotuner(SIZE, kernel).refused
        batch.put(0)
    else:
        for _ in range(PASSES):
            model.kernels.train([case.columns], ROWS, SIZE, 1, case.class_weight, forced=kernel)
            used = model.kernels.autotuner(SIZE, kernel).refused
            assert kernel not in used, used
    weights = state.output_weights(b"".join(model.save()))
    evaluated = evaluation.Evaluation(model, weights, 1)
    for start in range(0, ROWS, 20):
        evaluated.add(tuple(column[start : start + 20] for column in case.columns))
    scores = evaluated.report()
    return weights, {"loss": scores["loss"], **scores["metrics"]}


def compared(case, kernels):
    keras.utils.set_random_seed(SEED)
    architecture = case.make().to_json()
    theirs, scores = by_keras(case, architecture)
    result = {}
    for kernel in case.kernels:
        if kernel in kernels:
            ours, own = by_us(case, architecture, kernel)
            result[kernel] = max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
            result["scores"] = [own, scores]
    return result


if __name__ == "__main__":
    kernels = {"tensorflow": ("plain", "loop", "xla"), "jax": ("plain", "loop", "vmap"), "torch": ("plain",)}
    names = sys.argv[1:] or CASES
    json.dump({name: compared(CASES[name], kernels[keras.backend.backend()]) for name in names}, sys.stdout)
