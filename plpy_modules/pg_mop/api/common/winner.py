"""The winner of a call: the configuration with the best written model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pg_mop.backend.database import Database
from pg_mop.call.metrics import HELD_OUT
from pg_mop.search.ranking import Judged, judged_by, order

REQUIRED = ("mst_key", "metrics_type", "training_loss_final", "training_metrics_final")
VALIDATION = ("validation_loss_final", "validation_metrics_final")
FOLDS = ("folds_loss_mean", "folds_metrics_mean")


@dataclass(frozen=True)
class Winner:
    """The best of `count` configurations: by `metric` of `dataset`, which has `value` there; and its `loss` there."""

    mst_key: int
    dataset: str
    metric: str
    value: float
    loss: float | None
    count: int

    def tell(self, db: Database, info: str, name: str = "configurations") -> None:
        """Send a NOTICE that names the winner, unless there was no choice. `info`: the info table (quoted); `name`: how
        configurations are called."""
        row = db.one(f"SELECT compile_params, fit_params FROM {info} WHERE mst_key = $1", ["integer"], [self.mst_key])
        if row is None or self.count < 2:
            return
        loss = f", loss={self.loss:.4g}" if self.metric != "loss" and self.loss is not None else ""
        db.notice(
            f"the best of {self.count} {name} is mst_key={self.mst_key}: "
            f"{self.dataset} {self.metric}={self.value:.4g}{loss}",
            detail=f"Its compile_params are {row['compile_params'].strip()}"
            + (f", its fit_params {row['fit_params'].strip()}." if (row["fit_params"] or "").strip() else "."),
        )


JudgedBy = tuple[str, str, str]  # a metric, the dataset on which it is measured, and 'min' or 'max'


def best_of(
    candidates: Iterable[tuple[int, float | None, float | None]], judged: Judged, dataset: str
) -> Winner | None:
    """The Winner of configurations, each (mst_key, value of the metric, loss); None if none of them has a value."""
    metric, direction = judged
    ranking = sorted(candidates, key=lambda c: order(direction, c[1], c[2], c[0]))
    if not ranking or order(direction, ranking[0][1], None, 0)[0]:
        return None
    key, value, loss = ranking[0]
    assert value is not None
    return Winner(key, dataset, metric, value, loss, len(ranking))


def winner(db: Database, info: str, judged: Judged | None = None, models: str | None = None) -> Winner | None:
    """The Winner by the final metrics of an info table: by the means over folds where there are folds, else of the
    validation table where the models have been validated.

    Configurations that failed never win. `info`: the table's name as the caller writes it. `judged`: the metric of the
    call, the loss or the first metric; None: as :func:`~pg_mop.search.ranking.judged_by`. `models`: the model table
    (quoted): a configuration without weights there never wins. Returns None if the table does not tell: it may be MADlib's.
    """
    table = db.find_table(info)
    columns = {} if table is None else db.columns(table)
    if any(name not in columns for name in REQUIRED) or columns["metrics_type"] != "text[]":
        return None
    validated = all(name in columns for name in VALIDATION) and db.value(
        f"SELECT bool_or(validation_loss_final IS NOT NULL) FROM {table}"
    )
    dataset = "validation" if validated else "training"
    loss, metric = f"{dataset}_loss_final", f"{dataset}_metrics_final"
    if all(name in columns for name in FOLDS):
        dataset, (loss, metric) = HELD_OUT, FOLDS
    conditions = [f"i.{loss} IS NOT NULL"]
    if "error" in columns:
        conditions.append("i.error IS NULL")
    if models is not None:
        conditions.append(f"i.mst_key IN (SELECT mst_key FROM {models} WHERE model_weights IS NOT NULL)")
    rows: list[dict[str, Any]] = db.execute(
        f"SELECT i.mst_key, i.metrics_type[1] AS name, i.{metric} AS metric, i.{loss} AS loss "
        f"FROM {table} i WHERE {' AND '.join(conditions)}"
    )
    judged = judged or judged_by(row["name"] for row in rows)
    values = "loss" if judged[0] == "loss" else "metric"
    return best_of(((row["mst_key"], row[values], row["loss"]) for row in rows), judged, dataset)
