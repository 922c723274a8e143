"""The report of mop_train: the trials, the chosen models, the measures, and SQL for predictions."""

from __future__ import annotations

import json
import math
from typing import Any, Protocol

from pg_mop.api.tables import reports, time_shares, trained
from pg_mop.backend import transaction
from pg_mop.backend.database import Database
from pg_mop.backend.quoting import quote_literal, written
from pg_mop.columns.decision import Decision
from pg_mop.inference.metrics import Metric
from pg_mop.inference.named_model import NamedModel
from pg_mop.packing.row_source import is_query

BALANCED_NOTE = "weight => 'balanced': probabilities are the table's; the prediction counts all classes alike."
NAMES = {trained.LINEAR: "linear models", trained.BOOSTING: "boosting", trained.MLP: "perceptrons"}
SHOWN = 5  # classes that the report names


class Call(Protocol):
    """The members of the call that the report reads. With this class, the module does not import the call's module."""

    db: Database
    name: str
    source: str | None
    parts: dict[str, int]
    times: time_shares.TimeShares
    statements: list[str]
    balanced: bool


def text(
    call: Call,
    number: int,
    model: NamedModel,
    metric: Metric,
    details: dict[str, Any],
    chosen: dict[str, Any] | None,
    switched: bool,
    said: list[str],
) -> str:
    """The report of a call that has made version `number` of its model. `details`: of the version; `chosen`: the trial that
    answers alone; `switched`: the version is in use; `said`: sentences about its measures."""
    main = metric.name
    lines = [
        f'Version {number} of model "{call.name}" predicts {model.target} ({model.kind})'
        + ("." if switched else "; it is not in use: the present version is at least as good."),
        f"Rows: {', '.join(f'{rows} {part}' for part, rows in call.parts.items())}. "
        f"Trials: {_of_trials(details)}. "
        + (_of_members(details["ensemble"]) if "ensemble" in details else f"Chosen: {_of_trial(chosen or {})}."),
        *([_of_drawn(details["drawn"], details["rows"])] if "drawn" in details else []),
        *([f"Left out, for lack of time: {', '.join(call.times.left_out)}."] if call.times.left_out else []),
        *([_line(details["folds"])] if "folds" in details else []),
        *([_of_refit(details["refit"])] if "refit" in details else []),
        *([_of_final(details["final"])] if "final" in details else []),
        *(["On the test part:"] if "test" in call.parts else []),
    ]
    names = ["rmse", "mae", "r2"] if model.regression else ["log_loss", "auc", "accuracy"]
    names = [main, *(name for name in names if name != main)]
    for name, measures in details.get("contenders", {}).items():
        values = ", ".join(f"{m} {measures[m]:.4g}" for m in names if m in measures)
        lines.append(f"  {name}: {values}")
    low, high = details.get("interval", [math.nan] * 2)
    if not math.isnan(low):
        lines.append(f"  (95 % interval of pg_mop's {main}: {low:.4g} to {high:.4g})")
    lines += [f"  {sentence}" for sentence in said]
    quoted, schema = quote_literal(call.name), written(call.db.schema)
    lines += [
        "Predict:",
        f"  SELECT t.*, p.* FROM {'your_table' if is_query(call.source) else call.source} t, "
        f"{schema}.mop_predict({quoted}, t) AS p;",
        "The steps by hand:",
        *(f"  {statement}" for statement in call.statements),
    ]
    if call.balanced:
        lines.insert(-len(call.statements) - 1, BALANCED_NOTE)
    if transaction.is_in_block():
        lines.append("The model is kept, and exists for other sessions, from the COMMIT of this transaction on.")
    return "\n".join(lines)


def of_absent(measured: reports.Measured) -> list[str]:
    """The sentence of the report about classes that training rows have and the measured rows lack."""
    if not (absent := measured.absent):
        return []
    names = ", ".join(absent[:SHOWN]) + ", ..." * (len(absent) > SHOWN)
    return [f"The measured rows have no class {names}, which training rows have: the measures say nothing about it."]


def _of_drawn(drawn: dict[str, int], parts: dict[str, int]) -> str:
    """The line of the report about the rows that are used of large parts."""
    verbs = {"train": "Trained on", "valid": "chosen by", "test": "measured on"}
    said = ", ".join(f"{verb} {drawn[part]} of {parts[part]} rows" for part, verb in verbs.items() if part in drawn)
    return f"{said[0].upper()}{said[1:]}: the time limit allows no more."


def _of_refit(refit: dict[str, Any]) -> str:
    """The line of the report about models that were trained again."""
    models = _of_again(refit, "It was")
    rows = (
        f"all {refit['rows']}"
        if refit["rows"] == refit["of_rows"]
        else f"at least {refit['rows']} of the {refit['of_rows']}"
    )
    return f"{models} trained again on {rows} rows of the training and validation parts."


def _of_again(again: dict[str, Any], one: str) -> str:
    """The subject of a sentence about models that were trained again; `one`: where one model answers."""
    return one if again["of"] == 1 else f"{again['models']} of the {again['of']} models were"


def _of_final(final: dict[str, Any]) -> str:
    """The line of the report about models that were trained on all rows."""
    models = _of_again(final, "it was")
    return f"When it was measured, {models} trained again on the test rows, too: on rows until {final['until']}."


def _of_trials(details: dict[str, Any]) -> str:
    """How many models have been tried, and how long."""
    found = []
    for family, name in NAMES.items():
        if family in details:
            own, rows = details[family], details.get("drawn", {}).get("train", details["rows"]["train"])
            part = f" on {own['rows']} of the rows" if own["rows"] < rows else ""
            found.append(f"{len(own['trials'])} of {name}{part} in {own['seconds']:.0f} s")
    if details["trials"]:
        found.append(f"{details['trials']} of nets in {details['seconds']['nets']:.0f} s")
    return ", ".join(found)


def _of_trial(trial: dict[str, Any]) -> str:
    if trial.get("family") == trained.BOOSTING:
        return f"boosted trees, {json.dumps(trial['params'])}, after {trial['rounds']} rounds"
    if trial.get("family") == trained.LINEAR:
        return f"linear model, {json.dumps(trial['params'])}"
    if trial.get("family") == trained.MLP:
        return f"perceptron, {json.dumps(trial['params'])}"
    return (
        f"net {trial['net']}, {trial['compile_params']}, {trial['fit_params']}, after {trial['iterations']} iterations"
    )


def _of_members(details: dict[str, Any]) -> str:
    """The lines of the report about an ensemble."""
    members, folds = details["members"], details.get("folds")
    judged = f"in {folds} folds of {details['rows']} known rows" if folds else "in validation"
    metric, decision = details["metric"], Decision.read(details)
    decided = [] if decision is None else decision.described()
    if len(members) == 1:
        return "\n".join([f"Chosen: {_of_trial(members[0])}; {metric} {details['value']:.4g} {judged}.", *decided])
    return "\n".join(
        [
            f"Chosen: the weighted mean of {len(members)} models, of the best {details['candidates']}; {metric} "
            f"{details['value']:.4g} {judged}, {details['best_alone']:.4g} of the best model alone:",
            *(f"  {member['weight']:.3g} {_of_trial(member)}" for member in members),
            *decided,
        ]
    )


def _line(means: dict[str, Any]) -> str:
    """The line of the report about the folds; means of targets that are numbers are in standardised units."""
    return (
        f"Over {means['number']} folds of the training part: {means['metric']} {means['mean']:.4g} "
        f"(deviation {means['deviation']:.2g}), loss {means['loss_mean']:.4g} ({means['loss_deviation']:.2g})."
    )
