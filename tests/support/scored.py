"""Loss and metrics that are added up over pieces of rows, and Keras' own of all rows."""

import numpy as np

from mop_udf import state
from mop_udf.params import params
from mop_udf.training import evaluation, model_cache
from support.workload import dense

PIECES = (1, 7, 0, 130, 62)  # rows


def rows(classes, seed=0):
    """200 rows sorted by label, so that pieces have other classes."""
    random = np.random.default_rng(seed)
    labels = np.sort(random.integers(0, max(classes, 2), 200))
    x = random.normal(size=(200, 4)).astype("f4") + labels[:, None]
    return x, (np.eye(classes, dtype="i2")[labels] if classes > 1 else labels[:, None].astype("i2"))


def compiled(loss="categorical_crossentropy", metrics=(), classes=3, architecture=None, **more):
    text = f"loss='{loss}', optimizer='SGD()', metrics={list(metrics)!r}"
    text += "".join(f", {k}={v}" for k, v in more.items())
    return model_cache.ModelCache().get(
        architecture or dense(classes=classes), params.parse_compile_params(text), {}, 5
    )


def in_pieces(model, columns, inputs=1):
    """The scores from the sums of pieces, each evaluated for itself, in another order."""
    weights = state.values(model.model.weights)
    total, start = 0, 0
    parts = []
    for count in PIECES:
        pieces = evaluation.Evaluation(model, weights, inputs)
        if count:
            pieces.add(tuple(c[start : start + count] for c in columns))
            parts.append(np.array(pieces.report()["sums"]))
        start += count
    assert start == len(columns[0])
    for part in reversed(parts):
        total = total + part
    return model.score(total)


def by_keras(model, columns, loss, metrics, inputs=1, **more):
    """What Keras' evaluate says of all rows in one batch."""
    model.model.compile(optimizer="sgd", loss=loss, metrics=metrics, **more)
    x, y = list(columns[:inputs]), list(columns[inputs:])
    return model.model.evaluate(
        x[0] if inputs == 1 else x, y[0] if len(y) == 1 else y, batch_size=len(x[0]), verbose=0, return_dict=True
    )
