"""Train and evaluate as pg_mop does and as Keras does: in this process, or `KERAS_BACKEND=... python against_keras.py CASES`.

Each case has a model and pg_mop's compile_params, whose texts Python makes the arguments of Keras' `compile`.
"""

import dataclasses
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", OMP_NUM_THREADS="1")

from mop_udf.kernels.framework import framework  # noqa: E402

if __name__ == "__main__":
    assert framework.begin(1) is None
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers as kl  # noqa: E402

from mop_udf import state  # noqa: E402
from mop_udf.kernels.vmap_batch import VmapBatch  # noqa: E402
from mop_udf.params import params  # noqa: E402
from mop_udf.training import evaluation, model_cache  # noqa: E402

ROWS, SIZE, PASSES = 45, 8, 2  # the last batch is short
SEED = 7
KERNELS = {"tensorflow": ("plain", "loop", "xla"), "jax": ("plain", "loop", "vmap"), "torch": ("plain",)}
ROUNDING = {"plain": 1e-6, "loop": 1e-5, "xla": 2e-4, "vmap": 2e-4}  # of weights, after a dozen mini-batches
random = np.random.default_rng(0)
X = random.normal(size=(ROWS, 4)).astype("f4")
CLASSES = random.integers(0, 3, ROWS)
ONE_HOT = np.eye(3, dtype="i2")[CLASSES]
NUMBER = random.normal(size=(ROWS, 1)).astype("f4")
WEIGHT = random.uniform(0, 3, (ROWS, 1)).astype("f4")
WEIGHT[::7] = 0


def classifier():
    return keras.Sequential([keras.Input([4]), kl.Dense(8, "relu"), kl.Dense(3, "softmax")])


def two_outputs(kind="kind", size="size"):
    given = keras.Input([4], name="given")
    hidden = kl.Dense(8, "relu", name="hidden")(given)
    return keras.Model(given, [kl.Dense(3, "softmax", name=kind)(hidden), kl.Dense(1, name=size)(hidden)])


def mixed(policy):
    return keras.Sequential(
        [
            keras.Input([4]),
            kl.Dense(8, "relu", dtype=policy),
            kl.Dense(3, dtype=policy),
            kl.Activation("softmax", dtype="float32"),
        ]
    )


def augmented():
    return keras.Sequential(
        [
            keras.Input([4]),
            kl.Reshape([2, 2, 1]),
            kl.RandomFlip(seed=1),
            kl.RandomTranslation(0.4, 0.4, seed=2),
            kl.RandomRotation(0.3, seed=3),
            kl.RandomZoom(0.3, seed=4),
            kl.RandomContrast(0.5, seed=5),
            kl.GaussianNoise(0.2, seed=6),
            kl.Flatten(),
            kl.Dense(3, "softmax"),
        ]
    )


@dataclasses.dataclass
class Case:
    """`text`: compile_params without the optimizer; Keras gets the same, or `keras` where it wants it otherwise.

    `labels`: one array an output, as packed; `target`: as Keras takes it, where it differs."""

    text: str = "loss='categorical_crossentropy'"
    make: Callable[[], keras.Model] = classifier
    optimizer: str = "Adam(lr=0.02)"
    keras: dict[str, Any] = dataclasses.field(default_factory=dict)
    labels: tuple[np.ndarray, ...] = (ONE_HOT,)
    target: Any = None
    weight: np.ndarray | None = None
    class_weight: dict[int, float] | None = None
    kernels: tuple[str, ...] = ("plain", "loop", "xla", "vmap")
    eagerly: bool = (
        True  # Keras compiles each operation once for all cases; in half precision a compiled step rounds otherwise
    )

    @property
    def columns(self):
        return (X, *self.labels, *([] if self.weight is None else [self.weight]))


def of_keras(value, own):
    """A value of compile_params as Keras' `compile` takes it; `own`: the classes that texts may name."""
    if isinstance(value, str) and (value[0].isupper() or "(" in value):
        name = value if "(" in value else f"{value}(name={value!r})"
        return eval(name.replace("(lr=", "(learning_rate="), dict(vars(own)))
    return keras.tree.map_structure(lambda v: of_keras(v, own), value) if isinstance(value, (list, dict)) else value


def arguments(case):
    """The arguments of Keras' `compile`."""
    given = {**eval(f"dict({case.text})"), **case.keras}
    found = {
        name: of_keras(value, keras.metrics if "metrics" in name else keras.losses) for name, value in given.items()
    }
    return {"optimizer": of_keras(case.optimizer, keras.optimizers), **found}


def logits():
    return keras.Sequential([keras.Input([4]), kl.Dense(3)])


def number():
    return keras.Sequential([keras.Input([4]), kl.Dense(1)])


TWO = {"make": two_outputs, "labels": (ONE_HOT, NUMBER)}
OF_TWO = {"loss": ["mse", "mse"], "loss_weights": [0.3, 2.0]}
CASES = {
    "sample weights": Case(weight=WEIGHT),
    "sample and class weights": Case(weight=WEIGHT, class_weight={0: 0.5, 2: 3.0}),
    "weighted metrics": Case(
        "loss='categorical_crossentropy', metrics=['accuracy'], weighted_metrics=['accuracy', 'AUC', 'mae']",
        weight=WEIGHT,
    ),
    "weighted metrics alone": Case("loss='categorical_crossentropy', weighted_metrics=['accuracy']", weight=WEIGHT),
    "two outputs with sample weights": Case(
        "loss='mse', loss_weights=[0.3, 2.0], metrics=['mae'], weighted_metrics=['mae']",
        keras={**OF_TWO, "metrics": [["mae"]] * 2, "weighted_metrics": [["mae"]] * 2},
        weight=WEIGHT,
        **TWO,
    ),
    "a loss of all rows with sample weights": Case("loss='dice'", weight=WEIGHT),
    "label smoothing": Case("loss='CategoricalCrossentropy(label_smoothing=0.1)'", weight=WEIGHT),
    "logits": Case("loss='CategoricalCrossentropy(from_logits=True)'", logits),
    "focal": Case("loss='CategoricalFocalCrossentropy(alpha=[0.2, 0.3, 0.5], gamma=1.5)'"),
    "Huber": Case("loss='Huber(delta=0.5)', metrics=['mae']", number, labels=(NUMBER,)),
    "Tversky": Case("loss='Tversky(alpha=0.3, beta=0.7)'"),
    "metrics with arguments": Case(
        """loss='categorical_crossentropy', metrics=['TopKCategoricalAccuracy(k=2, name="top2")',
        'AUC(curve="PR", num_thresholds=50, name="pr")', 'F1Score(average="macro", name="f1")',
        'Precision(class_id=1, thresholds=0.3, name="p1")', 'SensitivityAtSpecificity(specificity=0.5, name="at")',
        'R2Score(class_aggregation="uniform_average", name="r2")']""",
        kernels=("plain",),
    ),
    "sparse labels": Case(
        "loss='sparse_categorical_crossentropy', metrics=['sparse_categorical_accuracy', 'SparseCategoricalAccuracy', "
        "'SparseTopKCategoricalAccuracy(k=2, name=\"top2\")', 'sparse_categorical_crossentropy']",
        target=(CLASSES,),
        weight=WEIGHT,
    ),
    "sparse labels, logits": Case("loss='SparseCategoricalCrossentropy(from_logits=True)'", logits, target=(CLASSES,)),
    "losses by output, in a list": Case(
        "loss=['CategoricalCrossentropy(label_smoothing=0.1)', 'mse'], loss_weights=[0.3, 2.0]", **TWO
    ),
    "losses by output, by name": Case(
        "loss={'size': 'Huber(delta=0.5)', 'kind': 'sparse_categorical_crossentropy'}, "
        "loss_weights={'size': 2.0, 'kind': 0.3}",
        target=(CLASSES, NUMBER),
        weight=WEIGHT,
        **TWO,
    ),
    "weights of one loss by name": Case("loss='mse', loss_weights={'size': 2.0, 'kind': 0.3}", keras=OF_TWO, **TWO),
    "weights of one loss by names out of order": Case(
        "loss='mse', loss_weights={'a': 2.0, 'z': 0.3}", keras=OF_TWO, **{**TWO, "make": lambda: two_outputs("z", "a")}
    ),
    "clipnorm": Case(optimizer="Adam(lr=0.02, clipnorm=0.1)"),
    "clipvalue": Case(optimizer="SGD(lr=0.1, clipvalue=0.01)"),
    "global_clipnorm": Case(optimizer="SGD(lr=0.1, momentum=0.9, nesterov=True, global_clipnorm=0.1)"),
    "weight_decay": Case(optimizer="SGD(lr=0.1, weight_decay=0.05)"),
    "weight_decay of AdamW": Case(optimizer="AdamW(lr=0.02, weight_decay=0.05, amsgrad=True)"),
    "moving averages": Case(optimizer="Adam(lr=0.02, use_ema=True, ema_momentum=0.8)"),
    "moving averages put in place": Case(
        optimizer="Adam(lr=0.02, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4)"
    ),
    "gradient accumulation": Case(optimizer="Adam(lr=0.02, gradient_accumulation_steps=3)"),
    "loss scale": Case(optimizer="Adam(lr=0.02, loss_scale_factor=8.0)"),
    "mixed_bfloat16": Case(make=lambda: mixed("mixed_bfloat16"), kernels=("plain", "loop"), eagerly=False),
    "mixed_float16": Case(make=lambda: mixed("mixed_float16"), eagerly=False),
    "augmentation": Case(make=augmented, kernels=("plain", "loop")),
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
    compiles = not case.eagerly and keras.backend.backend() == "jax"
    model.compile(**arguments(case), jit_compile=compiles, run_eagerly=case.eagerly)
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


def by_us(case, architecture, kernel, scored=True):
    """(the weights, the scores if they are wanted) that pg_mop gives."""
    parsed = params.parse_compile_params(f"{case.text}, optimizer='{case.optimizer}'")
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
    if not scored:
        return weights, None
    evaluated = evaluation.Evaluation(model, weights, 1)
    for start in range(0, ROWS, 20):
        evaluated.add(tuple(column[start : start + 20] for column in case.columns))
    scores = evaluated.report()
    return weights, {"loss": scores["loss"], **scores["metrics"]}


def compared(name, kernels):
    case = CASES[name]
    keras.utils.set_random_seed(SEED)
    architecture = case.make().to_json()
    theirs, scores = by_keras(case, architecture)
    result = {}
    for kernel in case.kernels:
        if kernel in kernels:
            ours, own = by_us(case, architecture, kernel, "scores" not in result)
            result[kernel] = max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
            if own is not None:
                result["scores"] = [own, scores]
    return result


def assert_alike(found):
    """The largest differences of weights that `compared` has found are rounding, and the scores are Keras'."""
    assert "error" not in found, found["error"]
    for kernel, largest in ROUNDING.items():
        assert kernel not in found or found[kernel] <= largest, kernel
    ours, theirs = found["scores"]
    for name, value in theirs.items():
        if name == "loss" or not name.endswith("_loss"):
            assert abs(ours[name] - value) <= max(2e-5 * abs(value), 2e-6), name


def in_another_process(backend, *names):
    """{case: what `compared` finds} on a framework that this process does not have; without names: of all cases."""
    own = {"KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)}
    own["XLA_FLAGS"] = (
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # compiles twice as fast
    )
    command = [sys.executable, "-B", __file__, *names]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    kernels, found = KERNELS[keras.backend.backend()], {}
    for name in sys.argv[1:] or CASES:
        try:
            found[name] = compared(name, kernels)
        except Exception:
            found[name] = {"error": traceback.format_exc()[-1500:]}
    print(json.dumps(found))
