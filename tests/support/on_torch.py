"""Train and evaluate small models of many kinds on PyTorch: `python on_torch.py keras|ours`.

Prints {case: {"weights": base64, "evaluated": [loss, metric]}}. As `keras` it knows nothing of pg_mop.
"""

import base64
import json
import os
import sys

os.environ.update(KERAS_BACKEND="torch", CUDA_VISIBLE_DEVICES="-1", OMP_NUM_THREADS="1")
OURS = sys.argv[1] == "ours"
if OURS:
    from mop_udf.kernels.framework import framework

    assert framework.begin(1) is None
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers as kl  # noqa: E402

if not OURS:
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)

ROWS, SIZE, CLASSES = 45, 8, 3  # the last batch is short


def sequential(shape, *layers):
    return keras.Sequential([keras.Input(shape), *layers, kl.Dense(CLASSES, "softmax", name="out")])


def two_inputs():
    a, b = keras.Input([4], name="a"), keras.Input([6], name="b")
    joined = kl.Concatenate()([kl.Dense(5, "relu")(a), kl.Dense(3, "tanh")(b)])
    return keras.Model([a, b], kl.Dense(CLASSES, "softmax")(joined))


# case -> (makes the model, its input's shapes, optimizer, its arguments)
CASES = {
    "dense": (lambda: sequential([4], kl.Dense(8, "relu")), [[4]], "Adam", {"learning_rate": 0.02}),
    "conv": (
        lambda: sequential([8, 8, 1], kl.Conv2D(4, 3, activation="relu"), kl.MaxPooling2D(), kl.Flatten()),
        [[8, 8, 1]],
        "SGD",
        {"learning_rate": 0.05, "momentum": 0.9, "nesterov": True},
    ),
    "lstm": (lambda: sequential([5, 3], kl.LSTM(6)), [[5, 3]], "RMSprop", {"learning_rate": 0.01}),
    "batch normalization": (
        lambda: sequential([4], kl.Dense(8), kl.BatchNormalization(), kl.ReLU()),
        [[4]],
        "AdamW",
        {"learning_rate": 0.01, "weight_decay": 0.02},
    ),
    # (without one Keras does not draw from the model's random state)
    "dropout with a seed": (
        lambda: sequential([4], kl.Dense(16, "relu"), kl.Dropout(0.3, seed=7)),
        [[4]],
        "Nadam",
        {"learning_rate": 0.01},
    ),
    "embedding": (
        lambda: sequential([6], kl.Embedding(11, 4), kl.GlobalAveragePooling1D()),
        [[6]],
        "Adagrad",
        {"learning_rate": 0.1},
    ),
    "several inputs": (two_inputs, [[4], [6]], "Lion", {"learning_rate": 0.003}),
    # they change with every mini-batch: (the first, a factor)
    "numbers per batch": (
        lambda: sequential([4], kl.Dense(8, "relu")),
        [[4]],
        "SGD",
        {"learning_rate": (0.5, 0.75), "momentum": (0.5, 0.75)},
    ),
}


def data(case, shapes):
    source = np.random.default_rng(3)
    x = [
        (source.integers(0, 11, [ROWS, *s]) if case == "embedding" else source.normal(size=[ROWS, *s])).astype("f4")
        for s in shapes
    ]
    return x, np.eye(CLASSES, dtype="f4")[source.integers(0, CLASSES, ROWS)]


def by_keras(make, x, y, optimizer, arguments):
    text = make().to_json()
    keras.utils.set_random_seed(5)
    model = keras.models.model_from_json(text)
    made = getattr(keras.optimizers, optimizer)(
        **{name: value[0] if isinstance(value, tuple) else value for name, value in arguments.items()}
    )
    model.compile(optimizer=made, loss="categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    for epoch in range(2):
        for number, start in enumerate(range(0, ROWS, SIZE)):
            for name, value in arguments.items():
                if isinstance(value, tuple):
                    setattr(made, name, value[0] * value[1] ** (epoch * -(-ROWS // SIZE) + number))
            batch = [c[start : start + SIZE] for c in x]
            model.train_on_batch(batch[0] if len(batch) == 1 else batch, y[start : start + SIZE])
    return model.get_weights(), model.evaluate(x[0] if len(x) == 1 else x, y, batch_size=ROWS, verbose=0)


def by_ours(make, x, y, optimizer, arguments):
    from mop_udf.params import params
    from mop_udf.training import evaluation, model_cache, models

    text = ", ".join(
        f"{key}=Exponential({value[0]}, {value[1]}, per='batch')" if isinstance(value, tuple) else f"{key}={value}"
        for key, value in arguments.items()
    )
    compile_params, _ = models.parse(
        f"loss='categorical_crossentropy', optimizer=\"{optimizer}({text})\", metrics=['accuracy']",
        f"batch_size={SIZE}",
    )
    assert params.scalars(compile_params)
    compiled = model_cache.ModelCache().get(make().to_json(), compile_params, {}, 5)
    compiled.start(5)
    compiled.set_scalars(compile_params)
    state = None
    for _ in range(2):
        if state:  # a state is all that goes on
            compiled.start(6)
            compiled.load(state)
        compiled.kernels.train([(*x, y)], ROWS, SIZE, len(x), forced="plain")
        state = b"".join(bytes(part) for part in compiled.save())
    evaluation = evaluation.Evaluation(compiled, compiled.weights_of(state, False), len(x))
    evaluation.add((*x, y))
    told = evaluation.report()
    return compiled.model.get_weights(), [told["loss"], told["metric"]]


results = {}
for case, (make, shapes, *optimizer) in CASES.items():
    weights, evaluated = (by_ours if OURS else by_keras)(make, *data(case, shapes), *optimizer)
    results[case] = {
        "weights": base64.b64encode(b"".join(w.tobytes() for w in weights)).decode(),
        "evaluated": [float(v) for v in evaluated],
    }
json.dump(results, sys.stdout)
