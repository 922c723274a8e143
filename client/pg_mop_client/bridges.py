"""Runs in other tools: Optuna, MLflow and TensorBoard, through their own libraries, imported on first use."""

import glob
import math
import os
import tempfile
import time
from collections.abc import Mapping
from typing import Any, Protocol

import pandas

from pg_mop_client.errors import ClientError, needed

SUFFIX = ".pg_mop"  # of the event files that to_tensorboard writes
MOST_METRICS = 1000  # MLflow's limit for one call
OF_MLFLOW = {"failed": "FAILED", "cancelled": "KILLED"}  # states that MLflow distinguishes from FINISHED


class Results(Protocol):
    """What is needed of a run."""

    run_id: int
    models: str

    @property
    def data(self) -> dict[str, Any]: ...
    def metrics(self, cap: int | None = None) -> pandas.DataFrame: ...
    def report(self, path: str | os.PathLike[str] | None = None) -> str: ...
    def export(self, mst_key: Any = None) -> bytes: ...


Values = dict[int, dict[str, dict[int, float]]]  # {mst_key: {'validation loss': {iteration: value}}}


def to_optuna(run: Results, storage: Any = None, study_name: str | None = None) -> Any:
    """An Optuna study with one trial for each configuration of a run.

    A trial has the configuration's parameters, values by iteration, and state: COMPLETE, PRUNED (stopped or cancelled
    before its end), RUNNING, WAITING or FAIL.

    `storage`: an Optuna storage, such as 'sqlite:///study.db' for Optuna's dashboard; None: in memory. Raises
    ClientError without Optuna, and if the storage already has a study with that name.
    """
    optuna = needed("optuna", "optuna")
    data = run.data
    series = data["measure"]["series"]
    study_name = study_name or f"pg_mop run {run.run_id}"
    try:
        study = optuna.create_study(
            storage=storage,
            study_name=study_name,
            direction="maximize" if data["measure"]["goal"] == "max" else "minimize",
        )
    except optuna.exceptions.DuplicatedStudyError:
        raise ClientError(
            f"study {study_name!r} already exists",
            hint=f"study_name='...', or optuna.delete_study(study_name={study_name!r}, storage=...)",
        ) from None
    distributions = {
        name: _distribution(optuna, [c["parameters"][name] for c in data["configurations"] if name in c["parameters"]])
        for name in data["varied"]
    }
    values = _values(run, series)
    state_of = optuna.trial.TrialState
    states = {
        "finished": state_of.COMPLETE,
        "stopped": state_of.PRUNED,
        "cancelled": state_of.PRUNED,
        "running": state_of.RUNNING,
        "waiting": state_of.WAITING,
    }
    for c in sorted(data["configurations"], key=lambda c: c["mst_key"]):
        own = {i: v for i, v in values.get(c["mst_key"], {}).get(series, {}).items() if math.isfinite(v)}
        state = states.get(c["status"], state_of.FAIL)
        if state == state_of.COMPLETE and not own:
            state = state_of.FAIL
        parameters = {name: value for name, value in c["parameters"].items() if name in distributions}
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=own[max(own)] if own and state in (state_of.COMPLETE, state_of.PRUNED) else None,
                params=parameters,
                distributions={name: distributions[name] for name in parameters},
                intermediate_values=own,
                user_attrs={
                    "mst_key": c["mst_key"],
                    "status": c["status"],
                    "training seconds": c["seconds"],
                    **({"reason": c["reason"]} if c["reason"] else {}),
                },
            )
        )
    return study


def _distribution(optuna: Any, values: list[Any]) -> Any:
    """The smallest Optuna distribution that contains the values: a range of numbers, or a set."""
    of = optuna.distributions
    if any(isinstance(v, (str, bool)) for v in values):
        return of.CategoricalDistribution(sorted(set(values), key=repr))
    low, high = min(values), max(values)
    log = low > 0 and high / low >= 50
    kind = of.FloatDistribution if any(isinstance(v, float) for v in values) else of.IntDistribution
    return kind(low, high, log=log)


def log_to_mlflow(run: Results, experiment: str | None = None, models: int = 1) -> str:
    """Log a run to MLflow, at the tracking server of MLflow's settings (MLFLOW_TRACKING_URI).

    MLflow gets a parent run, and a nested run for each configuration, with parameters, metrics by step, and the .keras
    files of the `models` best configurations as artifacts.

    Returns the ID of the parent run. Raises ClientError without MLflow, and if an MLflow run is active.
    """
    mlflow = needed("mlflow", "mlflow")
    if mlflow.active_run() is not None:
        raise ClientError("another MLflow run is active", hint="mlflow.end_run()")
    data, values = run.data, _values(run)
    artifacts: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        page = os.path.join(directory, "report.html")
        run.report(page)
        for c in data["configurations"]:  # (read all models first: an error then leaves no partial MLflow run)
            if c["rank"] <= models and c["status"] == "finished":
                artifacts[c["mst_key"]] = path = os.path.join(directory, f"model_{c['mst_key']}.keras")
                with open(path, "wb") as file:
                    file.write(run.export(c["mst_key"]))
        client, name = mlflow.MlflowClient(), experiment or "pg_mop"
        existing = client.get_experiment_by_name(name)
        where = existing.experiment_id if existing else client.create_experiment(name)
        with mlflow.start_run(run_name=f"run {run.run_id}: {run.models}", experiment_id=where) as parent:
            own = {name: data["run"][name] for name in ("function", "seed", "scheduler", "source_table")}
            mlflow.log_params(_parameters({"run_id": run.run_id, **own, **data["fixed"]}))
            mlflow.log_artifact(page)
            for c in data["configurations"]:
                with mlflow.start_run(
                    run_name=f"configuration {c['mst_key']}", nested=True, experiment_id=where
                ) as nested:
                    mlflow.log_params(_parameters(c["parameters"]))
                    mlflow.set_tags(
                        {
                            "status": c["status"],
                            "mst_key": c["mst_key"],
                            **({"reason": _short(c["reason"])} if c["reason"] else {}),
                        }
                    )
                    now = int(time.time() * 1000)
                    metrics = [
                        mlflow.entities.Metric(_key(name), value, now, step)
                        for name, by_iteration in values.get(c["mst_key"], {}).items()
                        for step, value in by_iteration.items()
                    ]
                    for at in range(0, len(metrics), MOST_METRICS):
                        client.log_batch(nested.info.run_id, metrics[at : at + MOST_METRICS])
                    if c["mst_key"] in artifacts:
                        mlflow.log_artifact(artifacts[c["mst_key"]])
                client.set_terminated(nested.info.run_id, OF_MLFLOW.get(c["status"], "FINISHED"))
        client.set_terminated(parent.info.run_id, OF_MLFLOW.get(data["run"]["status"], "FINISHED"))
    return parent.info.run_id


def _parameters(given: Mapping[str, Any]) -> dict[str, str]:
    return {_key(name): _short(value) for name, value in given.items()}


def to_tensorboard(run: Results, directory: str | os.PathLike[str]) -> str:
    """Write TensorBoard's event files, and remove those of an earlier call for the same run.

    Each configuration has a directory with its scalars by iteration and its hyperparameters. Returns `directory`.
    Raises ClientError without tensorboardX.
    """
    board = needed("tensorboardX", "tensorboard")
    data, values = run.data, _values(run)
    for c in data["configurations"]:
        name = f"configuration_{c['mst_key']}"
        into = os.path.join(directory, f"run_{run.run_id}", name)
        for old in glob.glob(f"{glob.escape(into)}/**/events.out.tfevents.*{SUFFIX}", recursive=True):
            os.unlink(old)  # (every point would appear twice)
        with board.SummaryWriter(into, filename_suffix=SUFFIX) as writer:
            last: dict[str, float] = {}
            for series, by_iteration in values.get(c["mst_key"], {}).items():
                for step, value in by_iteration.items():
                    writer.add_scalar(_key(series).replace(" ", "/"), value, step)
                if by_iteration:
                    last["hparam/" + _key(series)] = by_iteration[max(by_iteration)]
            given = {k: v if isinstance(v, (int, float, bool, str)) else str(v) for k, v in c["parameters"].items()}
            writer.add_hparams(given, last, name="parameters")
    return str(directory)


def _values(run: Results, only: str | None = None) -> Values:
    """The values of all evaluations of a run, or of the series `only`."""
    found: Values = {}
    rows: Any = run.metrics(cap=None).itertuples()
    for row in rows:
        series = f"{row.dataset} {row.name}"
        if row.value == row.value and only in (None, series):
            found.setdefault(row.mst_key, {}).setdefault(series, {})[row.iteration] = row.value
    return found


def _key(name: str) -> str:
    """A name with only the characters that MLflow and TensorBoard accept."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)[:250] or "_"


def _short(value: Any) -> str:
    return str(value)[:500]
