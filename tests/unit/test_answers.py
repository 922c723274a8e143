"""Answers of many rows, as the texts of arrays that PostgreSQL reads."""

import json

import numpy as np
import pytest

from pg_mop.backend.weights import Reference
from pg_mop.inference.named_model import NamedModel, answer_arrays, answers, computed_by

LABELS = ['a "word", {} \\ 100%s', "NULL", "é"]
ARCHITECTURE = {
    "class_name": "Functional",
    "config": {
        "name": "net",
        "layers": [
            {
                "module": "keras.layers",
                "class_name": "InputLayer",
                "config": {"name": "features", "batch_shape": [None, 3], "dtype": "float32"},
                "registered_name": None,
                "name": "features",
                "inbound_nodes": [],
            },
            {
                "module": "keras.layers",
                "class_name": "Activation",
                "config": {"name": "same", "activation": "linear"},
                "registered_name": None,
                "name": "same",
                "inbound_nodes": [[["features", 0, 0, {}]]],
            },
        ],
        "input_layers": [["features", 0, 0]],
        "output_layers": [["same", 0, 0]],
    },
    "module": "keras",
}


def model(regression=False):
    """A model without weights, as another process describes it."""
    number = {
        "column": "x",
        "sql_type": "real",
        "scale": "none",
        "center": 0,
        "factor": 1,
        "fill": 0,
        "indicator": False,
    }
    features = [{"type": "number", "name": name, "parameters": {**number, "column": name}} for name in "xyz"]
    output = {"type": "one_hot", "name": "y", "parameters": {"classes": LABELS, "sql_type": "text"}}
    described = {
        "what": "a model",
        "transform": {
            "inputs": [{"type": "features", "name": "f", "parameters": {"features": features, "shape": [3]}}],
            "outputs": [output],
        },
        "given_classes": False,
        "regression": regression,
    }
    return NamedModel.from_json(described, json.dumps(ARCHITECTURE), b"")


def elements(text):
    """The elements of an array's text, each as it stands in JSON: None for NULL."""
    return json.loads("[" + text[1:-1].replace("NULL,", "null,").replace(",NULL", ",null") + "]")


def test_arrays_are_the_answers_of_the_rows(monkeypatch):
    own = model()
    numbers = [[0.5, 0.25, 0.75], [float("nan"), 1, 0], [1e-9, 1, 0.1]]
    columns = own.values_of_arrays(np.array(numbers).T.tolist(), None)
    outputs = own.own_net(own.encode_values(own.own_net, columns))[0].astype("f8")
    outputs[1] = [np.nan, 1, np.inf]
    for most in (100, 3):  # in one piece, and row by row
        monkeypatch.setattr("pg_mop.inference.named_model.MOST_TEXTS", most)
        predictions, probabilities, texts = answer_arrays(own, outputs)
        found = zip(elements(predictions), elements(probabilities), elements(texts))
        assert list(found) == answers(own, outputs)
    assert answers(own, outputs)[0][0] == "é" and answers(own, outputs)[1] == (None, None, None)


def test_a_regression_has_numbers_alone():
    numbers = np.array([[1.5], [np.inf], [2.0], [np.nan]])
    assert answer_arrays(model(True), numbers) == ["{1.5,NULL,2,NULL}", None, None]


@pytest.mark.parametrize(
    "weights, by", [(bytes(12), "backend"), (Reference("0" * 32, 8).encode(), "trainer: weights in parts")]
)
def test_few_weights_are_no_reference_to_parts(weights, by):
    layer = {"class_name": "Dense", "config": {"units": 1, "use_bias": False, "batch_input_shape": [None, 3]}}
    net = {"class_name": "Sequential", "config": {"name": "net", "layers": [layer]}}
    transform = json.dumps(model().transform.to_json())
    row = {
        "reference": weights,
        "details": None,
        "transform": transform,
        "arch": json.dumps(net),
        "bytes": len(weights),
    }
    assert computed_by(row) == by
