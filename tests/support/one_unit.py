"""Nets with a sigmoid of one unit: a table whose two classes are words in one column and numbers in another."""

import numpy as np
import pytest

from support.workload import load, selection

ADAM = "loss='{}', optimizer='Adam(lr=0.03)', metrics=['accuracy', 'AUC', 'Precision']"


def one_unit(activation="sigmoid"):
    from keras import Input, Sequential, layers

    return Sequential(
        [Input((3,)), layers.Dense(6, activation="relu"), layers.Dense(1, activation=activation)]
    ).to_json()


@pytest.fixture(scope="module")
def data(db):
    db.run(
        "SET pg_mop.segments = 1; SET pg_mop.seed = 5; "
        "SET pg_mop.reuse = off; SET search_path = public, madlib; CREATE TABLE rows AS SELECT i AS id, "
        "ARRAY[i % 7, i % 5, i % 3]::real[] AS x, CASE WHEN (i % 7) + (i % 3) > 4 THEN 'yes' ELSE 'no' END AS word, "
        "ARRAY[((i % 7) + (i % 3) > 4)::int] AS number FROM generate_series(1, 90) i"
    )
    for column in ("word", "number"):
        db.run(f"SELECT training_preprocessor_dl('rows', '{column}_packed', '{column}', 'x', 10)")
        db.run(f"SELECT validation_preprocessor_dl('rows', '{column}_valid', '{column}', 'x', '{column}_packed', 10)")
    load(db, "arch", one_unit())


def train(db, column, configurations, **settings):
    for name, value in settings.items():
        db.run(f"SET pg_mop.{name} = '{value}'")
    selection(db, "mst", "arch", [(1, ADAM.format(loss), fitted) for loss, fitted in configurations])
    db.run(f"DROP TABLE IF EXISTS {column}_models, {column}_models_info, {column}_models_summary")
    db.run(
        f"SELECT madlib_keras_fit_multiple_model('{column}_packed', '{column}_models', 'mst', 2, FALSE, '{column}_valid', 1)"
    )
    for name in settings:
        db.run(f"RESET pg_mop.{name}")
    weights = [
        np.frombuffer(bytes(r["model_weights"]), "<f4")
        for r in db.run(f"SELECT model_weights FROM {column}_models ORDER BY mst_key")
    ]
    info = db.run(
        f"SELECT training_loss, validation_loss, validation_metrics FROM {column}_models_info ORDER BY mst_key"
    )
    return weights, [[v for values in row.values() for v in np.ravel(values)] for row in info]


CONFIGURATIONS = [
    ("binary_crossentropy", "batch_size=8"),
    ("BinaryCrossentropy(label_smoothing=0.1)", "batch_size=8"),
    ("mse", "batch_size=8, epochs=2"),
    ("binary_crossentropy", "batch_size=8, class_weight={1: 3}"),
    ("hinge", "batch_size=8"),
    ("dice", "batch_size=16"),
]


def assert_words_are_trained_on_as_numbers(db, configurations, **settings):
    words, word_values = train(db, "word", configurations, **settings)
    numbers, values = train(db, "number", configurations, **settings)
    for own, other in zip(words, numbers, strict=True):
        assert np.abs(own - other).max() <= 1e-6
    for own, other in zip(word_values, values, strict=True):
        assert own == pytest.approx(other, abs=1e-6)
