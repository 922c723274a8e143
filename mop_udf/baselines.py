"""Models of scikit-learn as baselines, where it is installed (make install WITH=baseline). Runs in the trainer."""

import warnings

import numpy as np


def predictions(
    x: np.ndarray, y: np.ndarray, others: np.ndarray, regression: bool
) -> list[tuple[str, list[int], np.ndarray]]:
    """(name, the classes of the columns, the predictions for the rows `others`) of each baseline.

    `x`: [rows, elements]; `y`: numbers or class numbers. Predictions are numbers, or probabilities [rows, classes]. Without
    scikit-learn the list is empty.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from sklearn.linear_model import LogisticRegression, Ridge
    except ImportError:
        return []
    models = (
        {"linear model": Ridge(), "gradient boosting": HistGradientBoostingRegressor(random_state=0)}
        if regression
        else {
            "linear model": LogisticRegression(max_iter=200),
            "gradient boosting": HistGradientBoostingClassifier(random_state=0),
        }
    )
    found = []
    targets = y if regression else y.astype(int)
    if not regression and len(set(targets.tolist())) < 2:
        return []
    for name, model in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x, targets)
        if regression:
            found.append((name, [], model.predict(others).reshape(-1, 1)))
        else:
            found.append((name, [int(k) for k in model.classes_], model.predict_proba(others)))
    return found
