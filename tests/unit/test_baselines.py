"""Simple models: they keep their time, and are scikit-learn's own where the time allows."""

import numpy as np
import pytest

from mop_udf.training import baselines

pytest.importorskip("sklearn", reason="not run: scikit-learn is not installed (make install WITH=baseline)")
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(400, 3)).astype("f4")
CLASSES = (X @ [1, -2, 0.5] + GENERATOR.normal(size=400) > 0).astype(int)


def test_with_time_they_are_the_models_of_scikit_learn():
    (_, _, linear), (_, columns, boosted) = baselines.predictions(X, CLASSES.astype("f8"), X, False, 600.0, 1)
    whole = HistGradientBoostingClassifier(random_state=0).fit(X, CLASSES).predict_proba(X)
    assert columns == [0, 1] and np.allclose(boosted, whole, atol=1e-6)
    assert np.allclose(linear, LogisticRegression(max_iter=200).fit(X, CLASSES).predict_proba(X), atol=1e-3)
    found = {name: values for name, _, values in baselines.predictions(X, X[:, 0].astype("f8"), X, True, 600.0, 1)}
    whole = HistGradientBoostingRegressor(random_state=0).fit(X, X[:, 0]).predict(X)
    assert np.allclose(found["gradient boosting"][:, 0], whole, atol=1e-6)


def test_without_time_each_trains_one_step():
    many = np.arange(len(X)) % 20
    _, (_, _, boosted) = baselines.predictions(X, many.astype("f8"), X[:5], False, 0.0, 1)
    whole = HistGradientBoostingClassifier(random_state=0, max_iter=1).fit(X, many).predict_proba(X[:5])
    assert np.allclose(boosted, whole, atol=1e-6)


def test_many_classes_have_no_trees():
    assert [name for name, _, _ in baselines.predictions(X, np.arange(len(X)) % 201.0, X, False, 0.0, 1)] == [
        "linear model"
    ]


def test_the_linear_model_sees_texts_by_the_weights_of_scikit_learn():
    texts = ["a good day", "a bad day", "good good", "bad", "a day", "such a bad one"] * 10
    y = np.array([float("good" in text) for text in texts])
    vocabulary = {word: number for number, word in enumerate(sorted({w for t in texts for w in t.split()}), 2)}
    words = np.zeros((len(texts), 4), "f4")
    for row, text in enumerate(texts):
        own = [vocabulary[word] for word in text.split()]
        words[row, : len(own)] = own
    none = np.zeros((len(texts), 0), "f4")
    ((name, _, found),) = baselines.predictions(none, y, none, False, 600.0, 1, [(words, words)])
    weights = TfidfVectorizer(token_pattern=r"\S+").fit_transform(texts)
    assert name == "linear model"
    assert np.allclose(found, LogisticRegression(max_iter=200).fit(weights, y).predict_proba(weights), atol=1e-3)
