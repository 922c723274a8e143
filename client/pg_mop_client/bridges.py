"""Runs in other tools: Optuna, MLflow, TensorBoard, each by its own library, imported when it is used."""

import glob
import math
import os
import tempfile
import time

from pg_mop_client.errors import ClientError, needed

SUFFIX = ".pg_mop"  # of TensorBoard's files that are ours
MOST_METRICS = 1000  # that MLflow takes at once
OF_MLFLOW = {"failed": "FAILED", "cancelled": "KILLED"}  # states that MLflow tells from FINISHED


def to_optuna(run, storage=None, study_name=None):
    """An Optuna study of a run: a trial for each configuration, with its parameters, its values by iteration, and its
    state (COMPLETE; PRUNED where it was stopped or cancelled before its end; RUNNING and WAITING as the run is now;
    FAIL).

    `storage`: Optuna's, such as 'sqlite:///study.db' for its dashboard; None: in memory. Raises ClientError without
    Optuna, and where the storage has a study of that name.
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
            f"there is a study {study_name!r} already",
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


def _distribution(optuna, values):
    """The least range, or the set, that has the values."""
    of = optuna.distributions
    if any(isinstance(v, (str, bool)) for v in values):
        return of.CategoricalDistribution(sorted(set(values), key=repr))
    low, high = min(values), max(values)
    log = low > 0 and high / low >= 50
    kind = of.FloatDistribution if any(isinstance(v, float) for v in values) else of.IntDistribution
    return kind(low, high, log=log)


def log_to_mlflow(run, experiment=None, models=1):
    """Log a run to MLflow, where its own settings say (MLFLOW_TRACKING_URI): a parent run, and a nested run for each
    configuration, with parameters, metrics by step, and the .keras files of the `models` best as artifacts.

    Returns the parent's id. Raises ClientError without MLflow, and within a run of MLflow's.
    """
    mlflow = needed("mlflow", "mlflow")
    if mlflow.active_run() is not None:
        raise ClientError("another run of MLflow is open", hint="mlflow.end_run()")
    data, values, artifacts = run.data, _values(run), {}
    with tempfile.TemporaryDirectory() as directory:
        page = os.path.join(directory, "report.html")
        run.report(page)
        for c in data["configurations"]:  # (what cannot be read leaves nothing half written)
            if c["rank"] <= models and c["status"] == "finished":
                artifacts[c["mst_key"]] = path = os.path.join(directory, f"model_{c['mst_key']}.keras")
                with open(path, "wb") as file:
                    file.write(run.export(c["mst_key"]))
        client, name = mlflow.MlflowClient(), experiment or "pg_mop"
        there = client.get_experiment_by_name(name)
        where = there.experiment_id if there else client.create_experiment(name)
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


def _parameters(given):
    return {_key(name): _short(value) for name, value in given.items()}


def to_tensorboard(run, directory):
    """Write TensorBoard's event files: a directory for each configuration, with its scalars by iteration and its
    hyper-parameters, in place of those that were written there before. Returns the directory. Raises ClientError
    without tensorboardX.
    """
    board = needed("tensorboardX", "tensorboard")
    data, values = run.data, _values(run)
    for c in data["configurations"]:
        name = f"configuration_{c['mst_key']}"
        into = os.path.join(directory, f"run_{run.run_id}", name)
        for old in glob.glob(f"{glob.escape(into)}/**/events.out.tfevents.*{SUFFIX}", recursive=True):
            os.unlink(old)  # (of an earlier call: every point would be there twice)
        with board.SummaryWriter(into, filename_suffix=SUFFIX) as writer:
            last = {}
            for series, by_iteration in values.get(c["mst_key"], {}).items():
                for step, value in by_iteration.items():
                    writer.add_scalar(_key(series).replace(" ", "/"), value, step)
                if by_iteration:
                    last["hparam/" + _key(series)] = by_iteration[max(by_iteration)]
            given = {k: v if isinstance(v, (int, float, bool, str)) else str(v) for k, v in c["parameters"].items()}
            writer.add_hparams(given, last, name="parameters")
    return str(directory)


def _values(run, only=None):
    """{mst_key: {'validation loss': {iteration: value}}} of every evaluation."""
    found = {}
    for row in run.metrics(cap=None).itertuples():
        series = f"{row.dataset} {row.name}"
        if row.value == row.value and only in (None, series):
            found.setdefault(row.mst_key, {}).setdefault(series, {})[row.iteration] = row.value
    return found


def _key(name):
    """A name as MLflow and TensorBoard take it."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)[:250] or "_"


def _short(value):
    return str(value)[:500]
