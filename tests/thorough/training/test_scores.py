"""Every metric and every loss of pieces is that of all rows, and Keras' own."""

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import numpy as np
import pytest

from mop_udf.params import parameter_names
from support.scored import by_keras, compiled, in_pieces, rows
from support.workload import layer, sequential

WIDE = sorted(parameter_names.METRICS - {"ctc"})


@pytest.mark.filterwarnings("ignore:In loss categorical_crossentropy:SyntaxWarning")  # Keras', of a single output
@pytest.mark.parametrize("classes", [3, 1])
def test_every_metric_of_pieces_is_that_of_all_rows(classes):
    loss = "categorical_crossentropy" if classes > 1 else "mse"
    columns, names = rows(classes), list(WIDE)
    one = sequential("one", [4], layer("Dense", name="out", units=1, activation="sigmoid"))
    model = compiled(loss, names, architecture=one if classes == 1 else None)
    scores = in_pieces(model, columns)
    assert list(scores["metrics"]) == names and scores["metric"] == scores["metrics"][names[0]]
    assert scores["rows"] == 200
    of_width = "binary_crossentropy" if classes == 1 else "categorical_crossentropy"  # Keras refuses the short names
    theirs = by_keras(model, columns, loss, [n for n in names if n not in ("ce", "crossentropy")])
    theirs.update(ce=theirs[of_width], crossentropy=theirs[of_width])
    assert scores["metrics"] == pytest.approx(
        {n: float(np.mean(theirs[n])) for n in names}, rel=2e-5, abs=2e-6, nan_ok=True
    )
    assert scores["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


@pytest.mark.parametrize("loss", sorted(parameter_names.LOSSES - {"ctc", "CTC"}))
def test_every_loss_of_pieces_is_that_of_all_rows(loss):
    columns = rows(3)
    model = compiled(loss)
    assert in_pieces(model, columns)["loss"] == pytest.approx(by_keras(model, columns, loss, None)["loss"], rel=1e-5)
