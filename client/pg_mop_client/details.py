"""What the live page shows of a run on request: its packed tables, one configuration, the importance of parameters."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy
from sqlalchemy import text

from pg_mop_client import viewing
from pg_mop_client.database import driver_errors, exists, plain, suffixed
from pg_mop_client.errors import ClientError, LostError, ServerError, needed
from pg_mop_client.run import Run
from pg_mop_client.trusted import locked, row_of, transaction

LOCKED = "55P03"  # SQLSTATE: another session has locked the table
MOST_TEXT = 200  # characters of a name in a message
MOST_FACT = 1000  # characters of a fact about a packed table
HIDDEN = ("__transform__",)  # columns of a summary that the page shows in another form
MODEL_TABLES = ("", "_summary", "_info", "_parts")  # suffixes of a run's output tables that a model is read from
MOST_UNITS = 200  # listed units of a configuration
LEAST_WEIGHED, ENOUGH_WEIGHED = 4, 10  # configurations, for the importance of parameters


def tables_of(connection: sqlalchemy.Connection, schema: str, run_id: int) -> Any:
    """The tables of a run, and whether it is the role's `own`: of another role's run no table may be read, since a view there
    would execute that role's functions with the reader's rights. `schema` is quoted."""
    return connection.execute(
        text(
            f"SELECT source_table, validation_table, model_output_table, owner = current_user AS own "
            f"FROM {schema}.mop_runs WHERE run_id = :run"
        ),
        {"run": run_id},
    ).one()


def summary_of(connection: sqlalchemy.Connection, packed: str) -> dict[str, Any] | None:
    """The row of a packed table's summary, {column: value}; None if it is gone, or if it is no table of the role's own."""
    row = row_of(connection, suffixed(packed, "_summary"))
    if row is None:
        return None
    return {
        column: value
        if not isinstance(value, (list, dict, str))
        else (value if isinstance(value, str) else json.dumps(value))[:MOST_FACT]
        for column, value in row.items()
        if value is not None and column not in HIDDEN
    }


COLUMNS_SQL = (
    "SELECT column_name, sql_type, feature, elements, null_share, mean, deviation, lowest, highest, "
    "CAST(top_values AS text) AS top_values FROM {schema}.mop_feature_info(:packed)"
)
DRIFT_SQL = (
    "SELECT column_name, stability, null_share_then, null_share_now, verdict FROM {schema}.mop_drift(:packed, :source)"
)


def columns_of(connection: sqlalchemy.Connection, schema: str, packed: str) -> list[dict[str, Any]] | None:
    """How each column of a packed table was packed, as rows of mop_feature_info; None where the role has no such table of its
    own to read, or where its summary does not tell. `schema` is quoted."""
    try:
        with driver_errors(), transaction(connection):
            name = _locked_packed(connection, packed)
            if name is None:
                return None
            rows = connection.execute(text(COLUMNS_SQL.format(schema=schema)), {"packed": name}).mappings().all()
    except LostError:
        raise
    except ClientError:  # (a table of an older version, or one that another session is about to change)
        return None
    return [
        {name: value if not isinstance(value, float) or math.isfinite(value) else None for name, value in row.items()}
        for row in rows
    ]


def drift(connection: sqlalchemy.Connection, schema: str, packed: str) -> dict[str, Any]:
    """How far the rows of the table that a packed table was made from are, now, from those that were packed: {'source', 'rows'
    of mop_drift}. `schema` is quoted; the connection is in a transaction that reads only.

    Raises ClientError where one of the two is no plain table of the role's own: a view would execute its owner's functions.
    """
    call = f"SELECT * FROM {schema}.mop_drift(".replace("\\:", ":")
    name = _locked_packed(connection, packed)
    if name is None:
        raise ClientError(f"{packed} is no table of your role's any more")
    summary = text(f"SELECT CAST(source_table AS text) AS source_table FROM {plain(suffixed(name, '_summary'))}")
    with driver_errors():
        row = connection.execute(summary).first()
    if row is None or row.source_table is None:
        raise ClientError(
            f"the summary of {packed} does not tell which table it was made from",
            hint=f"{call}'{packed}', 'a table, view or query');",
        )
    source = str(row.source_table)
    try:
        table = locked(connection, source)
    except ServerError as error:
        if error.sqlstate != LOCKED:
            raise
        raise ClientError(
            f"{source[:MOST_TEXT]} is locked at this moment: another session is about to change it", hint="Try again."
        ) from None
    except ClientError:  # (a query is no name)
        table = None
    if table is None:
        raise ClientError(
            f"{source[:MOST_TEXT]} is no plain table of your role's: the page does not read it",
            hint=f"{call}'{packed}', 'a table, view or query');",
        )
    with driver_errors():
        rows = connection.execute(text(DRIFT_SQL.format(schema=schema)), {"packed": name, "source": table})
        return {"source": table, "rows": [dict(row) for row in rows.mappings()]}


def _locked_packed(connection: sqlalchemy.Connection, packed: str) -> str | None:
    """Lock a packed table of the role's own with its summary, until the transaction ends; its quoted name."""
    name = locked(connection, packed, partitioned=True)
    if name is None or not exists(connection, suffixed(name, "_summary")):
        return None
    return name if locked(connection, suffixed(name, "_summary")) is not None else None


def model_file(connection: sqlalchemy.Connection, schema: str, models: str, key: int) -> bytes:
    """The .keras file of a model of one's own run. `schema` is quoted; the connection commits each statement.

    Raises ClientError where the run's output tables are gone, or where one is no table of the role's own.
    """
    with driver_errors(), transaction(connection, read_only=False):
        for suffix in MODEL_TABLES:
            name = suffixed(models, suffix)
            needed_one = suffix in ("", "_summary")
            if (needed_one or exists(connection, name)) and locked(connection, name) is None:
                raise ClientError(
                    f"{name} is no table of your role's any more: the run's models are gone",
                    hint="mop_replay(run_id, 'another_table') trains them again.",
                )
        content = connection.execute(
            text(f"SELECT {schema}.mop_export_model(:models, :key)"), {"models": models, "key": key}
        ).scalar_one()
    return bytes(content)


def configuration(
    connection: sqlalchemy.Connection, schema: str, run_id: int, key: int, data: Mapping[str, Any]
) -> dict[str, Any]:
    """One configuration of a run: its values, curves, latest units, and the statements that use it.

    `schema` is quoted; `data`: mop_report's data of the run. Raises ClientError for a configuration that the run does not have.
    """
    own = next((c for c in data["configurations"] if c["mst_key"] == key), None)
    if own is None:
        raise ClientError(f"run {run_id} has no configuration {key}")
    units = connection.execute(
        text(
            f"SELECT iteration, segment, kind, dataset, attempt, status, loss, kernel, "
            f"CAST(extract(epoch FROM finished_at - started_at) AS float8) AS seconds, server, left(error, 300) AS error "
            f"FROM {schema}.mop_units WHERE run_id = :run AND mst_key = :key "
            f"ORDER BY started_at DESC NULLS FIRST, segment LIMIT {MOST_UNITS}"
        ),
        {"run": run_id, "key": key},
    )
    curves: dict[str, list[list[Any]]] = {}
    for row in connection.execute(
        text(
            f"SELECT dataset || ' ' || name AS series, iteration, value FROM {schema}.mop_metrics "
            f"WHERE run_id = :run AND mst_key = :key ORDER BY series, iteration"
        ),
        {"run": run_id, "key": key},
    ):
        curves.setdefault(row.series, []).append([row.iteration, row.value if math.isfinite(row.value) else None])
    # (the configurations with which it shares its first iterations)
    shared = sorted({other for node in data["stages"] if key in node["keys"] for other in node["keys"]} - {key})
    return {
        "mst_key": key,
        "rank": own["rank"],
        "status": own["status"],
        "reason": own["reason"],
        "iterations": own["iterations"],
        "seconds": own["seconds"],
        "last": own["last"],
        "parameters": own["parameters"],
        "strings": {name: own[name] for name in ("compile_params", "fit_params")},
        "shares": shared,
        "made_from": made_from(data["family"], key) or _left_out(connection, schema, run_id, key, data),
        "curves": curves,
        "units": [dict(row) for row in units.mappings()],
        "sql": statements(schema.replace("\\:", ":"), run_id, own, data),
    }


def made_from(family: list[Mapping[str, Any]], key: int) -> dict[str, Any] | None:
    """The trial that a trial was made from (`mst_key`), what was `changed` and what it `inherited`, as texts; None where it was
    made from no other. `family`: of mop_report's data."""
    own = next((node for node in family if node["mst_key"] == key), None)
    if own is None or own["parent"] is None:
        return None
    return {"mst_key": family[own["parent"]]["mst_key"], "changed": own["changed"], "inherited": own["inherited"]}


def _left_out(
    connection: sqlalchemy.Connection, schema: str, run_id: int, key: int, data: Mapping[str, Any]
) -> dict[str, Any] | None:
    """As made_from, of a trial that a shortened family does not have, or whose parent it does not have."""
    if "family" not in data["sampled"]:
        return None
    row = connection.execute(
        text(
            "SELECT parent, left(changed, :most) AS changed, left(value_before, :most) AS was, "
            "left(value_after, :most) AS now, left(inherited, :most) AS inherited "
            f"FROM {schema}.mop_lineage WHERE run_id = :run AND mst_key = :key"
        ),
        {"run": run_id, "key": key, "most": MOST_TEXT},
    ).one_or_none()
    if row is None or row.parent is None:
        return None
    values = "" if row.was is None and row.now is None else f": {row.was or 'none'} -> {row.now or 'none'}"
    changed = None if row.changed is None else f"{row.changed}{values}"
    return {"mst_key": row.parent, "changed": changed, "inherited": row.inherited}


def statements(schema: str, run_id: int, own: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, str]:
    """{what it does: SQL} for a configuration; `schema` is quoted."""
    key, run, found = own["mst_key"], data["run"], {}
    best = data["summary"]["best"] or {}
    if run["status"] == "running" and own["status"] in ("running", "waiting"):
        found["stop it"] = f"SELECT {schema}.mop_stop_trial({run_id}, {key});"
    if run["status"] == "finished" and own["status"] != "failed" and best.get("predict"):
        if run["function"] != "madlib_keras_fit":
            found["train it for 10 more iterations"] = f"SELECT {schema}.mop_more({run_id}, {key}, 10);"
        found["predict"] = re.sub(r"FALSE, \d+\);$", f"FALSE, {key});", best["predict"])
        if best.get("export"):
            found["export it as a .keras file"] = re.sub(r", \d+\);$", f", {key});", best["export"])
            if models := re.fullmatch(r"SELECT .*?\.mop_export_model\((.*), \d+\);", best["export"]):
                found["make it a named model"] = (
                    f"SELECT {schema}.mop_deploy('run_{run_id}_{key}', {models[1]}, {key});"
                )
    return found


def importance(run: Run, data: Mapping[str, Any], configurations: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The importance of each parameter by Optuna's evaluator, the greatest first.

    It counts, of some configurations of a run, those with the most iterations of which there are enough; `of` is their number,
    and `iterations` what each of them has at least. Raises ClientError.
    """
    optuna = needed("optuna", "optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    fair = viewing.comparable(configurations, data["measure"]["series"], ENOUGH_WEIGHED)
    if len(fair) < LEAST_WEIGHED:
        raise ClientError(
            f"only {len(fair)} of these configurations have a result: too few for an importance",
            hint=f"The importance of parameters needs {LEAST_WEIGHED} configurations.",
        )
    keys = {c["mst_key"] for c in fair}
    whole = run.to_optuna()
    study = optuna.create_study(direction=whole.direction)
    study.add_trials(
        [
            optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=trial.value)
            for trial in whole.trials
            if trial.user_attrs["mst_key"] in keys and trial.value is not None
        ]
    )
    try:
        found = optuna.importance.get_param_importances(study)
    except (ValueError, RuntimeError, ImportError) as error:  # too few results; no scikit-learn
        raise ClientError(f"Optuna cannot compute the importance: {error}") from None
    return {
        "importance": [[name, value] for name, value in found.items()],
        "of": len(study.trials),
        "iterations": min(c["iterations"] for c in fair),
    }
