"""mop_model_report: a named model as one HTML file, or its data as JSON."""

from __future__ import annotations

import json
from typing import Any

from mop_udf.aggregate import Session
from pg_mop import __version__
from pg_mop.api.common.session import with_trainer
from pg_mop.api.tables import reports
from pg_mop.api.tables.named_models import step_prefix
from pg_mop.backend import weights
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, understood
from pg_mop.backend.quoting import finite_json
from pg_mop.inference.model_parts import stored_part
from pg_mop.inference.named_model import NamedModel, table_of
from pg_mop.packing.row_source import is_query
from pg_mop.report import model_data
from pg_mop.report.model_page import model_page

FORMATS = ("html", "json")
MOST_SOURCE = 100  # characters of a query that the page shows
MOST_TEXT, MOST_JSON = 2000, 1 << 20  # characters, bytes of a stored value
STORED = ("version", "in_use", "target", "kind")
TEXTS = ("description", "statement", "compile_params", "fit_params")


@with_trainer
def mop_model_report(
    db: Database, session: Session, model: str | None, source: str | None, format: str | None, version: int | None
) -> str:
    """The report of a version of a named model, by default of the one in use.

    `source`: rows whose target is known, for measures and pictures; None: what is stored with the model alone. Raises
    MopError.
    """
    if format not in FORMATS:
        raise MopError(
            f"format must be one of {', '.join(FORMATS)}, not {format!r}",
            hint=f"SELECT {db.extension}.mop_model_report('model', 'table', '{FORMATS[0]}');",
        )
    named = NamedModel.find(db, model, version)
    versions = _versions(db, model, named.version)
    data = {
        "model": model,
        "version": named.version,
        "target": named.target,
        "kind": named.kind,
        "source": source,
        "pg_mop": __version__,
        "made_at": db.value("SELECT date_trunc('second', clock_timestamp())::text"),
        "versions": [row["version"] for row in versions],
        "stored": model_data.stored_sections(versions, named.version),
        "measured": [] if source is None else _measured(db, session, named, source),
        "test_part": _test_part(db, named),
    }
    data["headline"] = f"{named.kind} of {named.target}" + (
        "" if source is None else f", measured on {_called(source)}"
    )
    return model_page(data) if format == "html" else finite_json(data)


def _called(source: str) -> str:
    """A short name of a source."""
    if source.startswith("pg_temp."):
        return "a temporary table"
    if not is_query(source):
        return source
    line = " ".join(source.split())
    return f"the query {line[:MOST_SOURCE]}" + ("…" if len(line) > MOST_SOURCE else "")


def _versions(db: Database, model: str | None, version: int) -> list[dict[str, Any]]:
    """The latest versions and `version`, in order, without transforms and weights; `count` of each: of all versions.

    Longer values than mop_train stores are left out: another role may have written them.
    """
    table = table_of(db, model)
    rows = db.execute(
        f"SELECT {', '.join(STORED)}, {', '.join(f'left({name}, {MOST_TEXT}) AS {name}' for name in TEXTS)}, "
        f"CASE WHEN octet_length(metrics::text) <= {MOST_JSON} THEN metrics::text END AS metrics, "
        f"CASE WHEN version = {version} AND octet_length(details::text) <= {MOST_JSON} THEN details::text END AS details, "
        f"left(details->>'net', {MOST_TEXT}) AS net, octet_length(model_weights) AS bytes, "
        f"{weights.reference_sql('model_weights')} AS reference, "
        f"date_trunc('second', created)::text AS created, (SELECT count(*) FROM {table}) AS count FROM {table} "
        f"WHERE version = {version} OR version IN (SELECT version FROM {table} ORDER BY version DESC "
        f"LIMIT {model_data.MOST_VERSIONS}) ORDER BY version"
    )
    owner = db.value("SELECT pg_get_userbyid(relowner)::text FROM pg_class WHERE oid = $1", ["oid"], [table.oid])
    with understood(f'the versions of model "{table}" cannot be read'):
        return [
            {
                **row,
                "bytes": weights.size_of(row),
                "owner": owner,
                **{name: row[name] and json.loads(row[name]) for name in ("metrics", "details")},
            }
            for row in rows
        ]


def _test_part(db: Database, model: NamedModel) -> str | None:
    """The name of the test part of the version, if the caller may read it."""
    query, is_callers_own = stored_part(db, model.table, model.version, "test")
    return (
        db.suffixed(step_prefix(db, model.name, model.version), "_test")
        if query is not None and is_callers_own
        else None
    )


def _measured(db: Database, session: Any, model: NamedModel, source: str) -> list[model_data.Section]:
    measurement = reports.measure(db, session, model, source)
    return model_data.measured_sections(
        measurement.truth,
        measurement.outputs,
        measurement.labels,
        reports.importance(db, session, model, source),
        reports.drift(db, model, source),
        _called(source),
        measurement.output.predicted,
    )
