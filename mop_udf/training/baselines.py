"""Models of scikit-learn as baselines, where it is installed (make install WITH=baseline). Runs in the trainer."""

import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_CLASSES = 200  # that boosting is trained for: it grows a tree for each class in each round
ROUNDS = 100  # of boosting; scikit-learn's default
ITERATIONS = 200  # of a linear classifier
FIRST_WORD = 2  # 0 is no word, 1 an unknown one (pg_mop/columns/words.py)


def predictions(
    x: np.ndarray,
    y: np.ndarray,
    others: np.ndarray,
    regression: bool,
    seconds: float,
    threads: int,
    texts: Sequence[tuple[np.ndarray, np.ndarray]] = (),
) -> list[tuple[str, list[int], np.ndarray]]:
    """(name, the classes of the columns, the predictions for the rows `others`) of each baseline.

    `x`: [rows, elements]; `y`: numbers or class numbers; `texts`: of each column of texts, the numbers of its words
    [rows, words] in the rows and in the others, of which the linear model takes the TF-IDF. Predictions are numbers, or
    probabilities [rows, classes]. Without scikit-learn the list is empty. Each of the two models stops training at half of
    `seconds`, with what it has by then.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from sklearn.linear_model import LogisticRegression, Ridge
        from threadpoolctl import threadpool_limits
    except ImportError:
        return []
    targets = y if regression else y.astype(int)
    classes = 1 if regression else len(set(targets.tolist()))
    if not regression and classes < 2:
        return []
    boosting = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    models: list[tuple[str, Any]] = [("linear model", Ridge() if regression else LogisticRegression(warm_start=True))]
    if classes <= MOST_CLASSES and x.shape[1]:
        models.append(("gradient boosting", boosting(random_state=0, warm_start=True)))
    found = []
    for name, model in models:
        own, own_others = _with_texts(x, others, texts) if texts and name == "linear model" else (x, others)
        with warnings.catch_warnings(), threadpool_limits(threads):
            warnings.simplefilter("ignore")
            if isinstance(model, Ridge):
                model.fit(own, targets)
            else:
                _fit(model, own, targets, time.monotonic() + seconds / 2)
            if regression:
                found.append((name, [], model.predict(own_others).reshape(-1, 1)))
            else:
                found.append((name, [int(k) for k in model.classes_], model.predict_proba(own_others)))
    return found


def _with_texts(x: np.ndarray, others: np.ndarray, texts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[Any, Any]:
    """The rows, and the others, with the TF-IDF of their words (sparse), as scikit-learn's TfidfVectorizer weights them."""
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfTransformer

    parts: tuple[list[Any], list[Any]] = ([sparse.csr_matrix(x)], [sparse.csr_matrix(others)])
    for pair in texts:
        most = int(max(words.max(initial=0) for words in pair)) + 1
        weighting = TfidfTransformer()
        for part, words in zip(parts, pair):
            rows, places = np.nonzero(words >= FIRST_WORD)
            numbers = words[rows, places].astype(int)
            counts = sparse.csr_matrix((np.ones(len(rows)), (rows, numbers)), (len(words), most))
            part.append(weighting.fit_transform(counts) if part is parts[0] else weighting.transform(counts))
    rows, others_rows = (sparse.hstack(part).tocsr() for part in parts)
    return rows, others_rows


def _fit(model: Any, x: Any, y: np.ndarray, until: float) -> None:
    """Fit a model in growing steps of iterations, as far as the time allows, and at least one iteration."""
    boosts = hasattr(model, "learning_rate")
    most = ROUNDS if boosts else ITERATIONS
    done, step = 0, 1
    while step > 0:
        began = time.monotonic()
        model.max_iter = done + step if boosts else step  # (boosting counts all its rounds)
        model.fit(x, y)
        if not boosts and model.n_iter_[0] < step:
            return  # it has converged
        done += step
        each = max(1e-9, (time.monotonic() - began) / step)
        step = min(most - done, 4 * done, int((until - time.monotonic()) / each))
