"""Runs in other tools: Optuna, MLflow, TensorBoard, each by its own library, imported when it is used."""

import math
import os
import tempfile

from pg_mop_client.errors import needed


def to_optuna(run, storage=None, study_name=None):
    """An Optuna study of a run: a trial for each configuration, with its parameters, its values by iteration, and its
    state (COMPLETE, PRUNED where it was stopped, FAIL).

    `storage`: Optuna's, such as 'sqlite:///study.db' for its dashboard; None: in memory. Raises ClientError without
    Optuna.
    """
    optuna = needed("optuna", "optuna")
    data = run.data
    series = data["measure"]["series"]
    study = optuna.create_study(storage=storage, study_name=study_name or f"pg_mop run {run.run_id}",
                                direction="maximize" if data["measure"]["goal"] == "max" else "minimize")
    distributions = {name: _distribution(optuna, [c["parameters"][name] for c in data["configurations"]
                                                  if name in c["parameters"]]) for name in data["varied"]}
    values = _values(run, series)
    states = {"finished": optuna.trial.TrialState.COMPLETE, "stopped": optuna.trial.TrialState.PRUNED}
    for c in sorted(data["configurations"], key=lambda c: c["mst_key"]):
        own = {i: v for i, v in values.get(c["mst_key"], {}).get(series, {}).items() if math.isfinite(v)}
        state = states.get(c["status"], optuna.trial.TrialState.FAIL)
        if state == optuna.trial.TrialState.COMPLETE and not own:
            state = optuna.trial.TrialState.FAIL
        parameters = {name: value for name, value in c["parameters"].items() if name in distributions}
        study.add_trial(optuna.trial.create_trial(
            state=state, value=own[max(own)] if own and state != optuna.trial.TrialState.FAIL else None,
            params=parameters, distributions={name: distributions[name] for name in parameters},
            intermediate_values=own, user_attrs={"mst_key": c["mst_key"], "training seconds": c["seconds"],
                                                 **({"reason": c["reason"]} if c["reason"] else {})}))
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

    Returns the parent's id. Raises ClientError without MLflow.
    """
    mlflow = needed("mlflow", "mlflow")
    data = run.data
    mlflow.set_experiment(experiment or "pg_mop")
    values, done = _values(run), data["run"]
    with mlflow.start_run(run_name=f"run {run.run_id}: {run.models}") as parent:
        mlflow.log_params({name: _short(value) for name, value in {
            "run_id": run.run_id, "function": done["function"], "seed": done["seed"], "scheduler": done["scheduler"],
            "source_table": done["source_table"], **data["fixed"]}.items()})
        with tempfile.TemporaryDirectory() as directory:
            page = os.path.join(directory, "report.html")
            run.report(page)
            mlflow.log_artifact(page)
            for c in data["configurations"]:
                with mlflow.start_run(run_name=f"configuration {c['mst_key']}", nested=True):
                    mlflow.log_params({_key(name): _short(value) for name, value in c["parameters"].items()})
                    mlflow.set_tags({"status": c["status"], "mst_key": c["mst_key"], **(
                        {"reason": _short(c["reason"])} if c["reason"] else {})})
                    for name, by_iteration in values.get(c["mst_key"], {}).items():
                        for step, value in by_iteration.items():
                            mlflow.log_metric(_key(name), value, step=step)
                    if c["rank"] <= models and c["status"] == "finished":
                        path = os.path.join(directory, f"model_{c['mst_key']}.keras")
                        with open(path, "wb") as file:
                            file.write(run.export(c["mst_key"]))
                        mlflow.log_artifact(path)
    return parent.info.run_id


def to_tensorboard(run, directory):
    """Write TensorBoard's event files: a directory for each configuration, with its scalars by iteration and its
    hyper-parameters. Returns the directory. Raises ClientError without tensorboardX.
    """
    board = needed("tensorboardX", "tensorboard")
    data, values = run.data, _values(run)
    for c in data["configurations"]:
        name = f"configuration_{c['mst_key']}"
        with board.SummaryWriter(os.path.join(directory, f"run_{run.run_id}", name)) as writer:
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
