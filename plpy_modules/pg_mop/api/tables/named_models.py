"""Named models: deployed, listed, switched between versions, and shared."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from pg_mop.api.common.model_table import StoredModel
from pg_mop.api.tables import trained
from pg_mop.backend import foreign_code, weights
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.columns import Transform
from pg_mop.inference.custom_code import KEY, CustomCode
from pg_mop.inference.named_model import IS_SAFE, computed_by, table_of
from pg_mop.inference.version_rows import COLUMNS, IS_MODEL, MARK


@sql_function
def mop_deploy(
    db: Database, name: str | None, model_table: str | None, mst_key: int | None, description: str | None
) -> int:
    """Make a trained model a version of the named model `name`; returns the version."""
    db.check_engine("mop_deploy")
    model = StoredModel(db, model_table, mst_key)
    if len(model.transform.outputs) != 1:
        raise MopError(f"{model.what} has {len(model.transform.outputs)} outputs: a named model has one")
    row = _info(db, str(model_table), mst_key)
    code = None
    if model.objects:
        code = CustomCode.of(db, model.summary["object_table"], list(model.objects))
        code.check_trained(db, model.what, model.trained_code)
    statement = f"SELECT {db.extension}.mop_deploy({quote_literal(name)}, {quote_literal(model_table)}"
    statement += f", {int(mst_key)});" if mst_key is not None else ");"
    details = code and code.to_details()
    version = version_of(model, metrics=row, details=details, description=description, statement=statement)
    return add_version(db, name, version)


def step_prefix(db: Database, name: str, version: int) -> str:
    """The beginning of the names of the relations that mop_train makes for a version of a model."""
    return name if version == 1 else db.suffixed(name, f"_v{version}")


def check_writable(db: Database, table: Table) -> None:
    """Raises MopError where the caller may not add versions to a model, or put them into use."""
    if db.setting("transaction_read_only") == "on":
        raise MopError(f"cannot write to model {table} in a read-only transaction", sqlstate="25006")
    if not db.value(
        "SELECT has_table_privilege($1, 'INSERT') AND has_table_privilege($1, 'UPDATE')", ["oid"], [table.oid]
    ):
        raise MopError(
            f"permission denied for model {table}",
            detail="Versions are rows of its table.",
            hint=f"GRANT INSERT, UPDATE ON {table} TO {quote_identifier(db.current_user())};",
            sqlstate="42501",
        )
    foreign_code.check_writable(db, table)


class Version:
    """The contents of a new version: `source` has the weights; the others are values."""

    def __init__(
        self, transform: Any, architecture: str, source: weights.Source, target: str, kind: str, **more: Any
    ) -> None:
        self.transform, self.architecture, self.source = transform, architecture, source
        self.target, self.kind = target, kind
        self.metrics, self.details = more.get("metrics"), more.get("details")
        self.description, self.statement = more.get("description"), more.get("statement")
        self.compile_params, self.fit_params = more.get("compile_params"), more.get("fit_params")


def version_of(
    model: StoredModel, architecture: str | None = None, source: weights.Source | None = None, **more: Any
) -> Version:
    """The version that a trained model becomes; `architecture`, `source`: of the net in place of the model's own; `more`: its
    other values."""
    return Version(
        **{
            "transform": with_shapes(model).to_json(),
            "architecture": architecture or model.architecture_text,
            "source": source or model.source,
            "target": model.output_names[0],
            "kind": "regression" if model.regression else "classification",
            "compile_params": model.compile_params,
            **more,
        }
    )


def add_version(db: Database, name: str | None, version: Version, use: bool = True) -> int:
    """Append a version to the model's table, which is made if it does not exist; returns its number. Raises MopError.

    `use`: it is the version in use from the commit on. Readers see the old one until then.
    """
    present_table = db.find_table(name) if name and name.strip() else None
    if present_table is None:
        table = db.output_table(name)
        db.execute(
            f"CREATE TABLE {table} ({', '.join(f'{column} {sql_type}' for column, sql_type in COLUMNS.items())}); "
            f"ALTER TABLE {table} ALTER model_weights SET STORAGE EXTERNAL; "
            f"CREATE UNIQUE INDEX ON {table} (in_use) WHERE in_use; "
            f"COMMENT ON TABLE {table} IS 'model of pg_mop; each row is a version'"
        )
        number = 1
    else:
        found = table_of(db, name)
        check_writable(db, found)
        table = str(found)
        db.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
        foreign_code.check_writable(db, found)
        number = 1 + db.value(f"SELECT coalesce(max(version), 0) FROM {table}")
        if use:
            db.execute(f"UPDATE {table} SET in_use = false WHERE in_use")
    values = {
        "version": number,
        "in_use": use or number == 1,
        "target": version.target,
        "kind": version.kind,
        "metrics": version.metrics and json.dumps(version.metrics),
        "description": version.description,
        "statement": version.statement,
        "details": version.details and json.dumps(version.details),
        "transform": json.dumps(version.transform),
        "compile_params": version.compile_params,
        "fit_params": version.fit_params,
        "model_arch": version.architecture,
    }
    types = {"version": "integer", "in_use": "boolean"}
    kinds = [types.get(column, "text") for column in values]
    entries = ", ".join(f"${i}::{COLUMNS[column].split()[0]}" for i, column in enumerate(values, 1))
    selected, parameters = version.source.sql, list(values.values())
    if version.source.reference is not None:
        selected = f"${len(values) + 1}"
        parameters.append(weights.copy(db, version.source, table))
        kinds.append("bytea")
    db.execute(
        f"INSERT INTO {table} ({', '.join(values)}, model_weights) SELECT {entries}, ({selected})", kinds, parameters
    )
    return number


@sql_function
def mop_use_version(db: Database, name: str | None, version: int | None) -> None:
    """Put a version into use, from the commit of the transaction on."""
    table = table_of(db, name)
    if version is None:
        raise MopError("version must not be NULL", hint=f"SELECT version, in_use, metrics FROM {table};")
    check_writable(db, table)
    db.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
    foreign_code.check_writable(db, table)
    if db.one(f"SELECT 1 AS x FROM {table} WHERE version = {version}") is None:
        raise MopError(
            f'model "{name}" has no version {version}', hint=f"SELECT version, in_use, metrics FROM {table};"
        )
    switch(db, str(table), version)


def switch(db: Database, table: str, number: int) -> None:
    """Put version `number` of a model into use. `table`: the model's, quoted; the caller holds its lock."""
    db.execute(f"UPDATE {table} SET in_use = false WHERE in_use AND version <> {number}")
    db.execute(f"UPDATE {table} SET in_use = true WHERE version = {number} AND NOT in_use")


SHARED = ("model", "answers", "nothing")


@sql_function
def mop_share(db: Database, name: str | None, role: str | None, what: str | None) -> None:
    """Let a role read the model, or only ask it, or neither. Raises MopError."""
    table = table_of(db, name)
    if role is None or not role.strip():
        raise MopError("no role is named", sqlstate="22004", hint="SELECT rolname FROM pg_roles;")
    again = f"SELECT {db.extension}.mop_share({quote_literal(name)}, {quote_literal(role)}, what => 'answers');"
    if what not in SHARED:
        raise MopError(f"what must be one of {', '.join(map(repr, SHARED))}, not {quote_literal(what)}", hint=again)
    if db.one("SELECT 1 AS x FROM pg_roles WHERE rolname = $1", ["text"], [role]) is None:
        raise MopError(f'role "{role}" does not exist', sqlstate="42704", hint="SELECT rolname FROM pg_roles;")
    quoted = quote_identifier(role)
    if not db.value("SELECT has_table_privilege($1, 'SELECT WITH GRANT OPTION')", ["oid"], [table.oid]):
        raise MopError(
            f"permission denied to share model {table}",
            hint=f"GRANT SELECT ON {table} TO {quote_identifier(db.current_user())} WITH GRANT OPTION;",
            sqlstate="42501",
        )
    about = db.one(
        "SELECT pg_get_userbyid(relowner) = $2 AS owns, relrowsecurity FROM pg_class WHERE oid = $1",
        ["oid", "text"],
        [table.oid, role],
    )
    assert about is not None
    if about["owns"]:
        raise MopError(f'role "{role}" owns model {table}', hint="Name another role.", sqlstate="42501")
    if what == "answers" and about["relrowsecurity"]:
        raise MopError(
            f"answers of model {table} cannot be shared: the table has row security",
            detail="A role that may only ask is answered from rows that are read with the owner's rights.",
            hint=f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY; or share the table: what => 'model'.",
            sqlstate="55000",
        )
    parts = weights.existing(db, str(table))
    tables = f"{table}{f', {parts}' if parts else ''}"
    if what == "nothing":
        db.execute(f"REVOKE SELECT ON {tables} FROM {quoted}")  # and on all columns
    elif what == "answers":
        db.execute(f"GRANT SELECT ({MARK}) ON {table} TO {quoted}")
    else:
        db.execute(f"GRANT SELECT ON {tables} TO {quoted}")
    column = {"answers": "transform", "nothing": MARK}.get(what)
    if column and db.value(
        "SELECT has_column_privilege($1, $2, $3, 'SELECT')", ["text", "oid", "text"], [role, table.oid, column]
    ):
        db.warning(
            f'role "{role}" may {"ask" if column == MARK else "read"} model {table} nevertheless',
            detail="It owns the table, is a superuser, or has the right from an earlier grant or from another role.",
            hint=f"REVOKE SELECT ON {tables} FROM {quoted}; -- by whoever gave it"
            + (f"\n{again}" if what == "answers" else ""),
        )
    if what == "nothing":
        return
    if not db.value("SELECT has_schema_privilege($1, $2, 'USAGE')", ["text", "text"], [role, table.schema]):
        db.warning(
            f'role "{role}" may not use schema "{table.schema}" of the model',
            hint=f"GRANT USAGE ON SCHEMA {quote_identifier(table.schema)} TO {quoted};",
        )
    for row in db.execute(
        f"SELECT DISTINCT details->'{KEY}'->>'object_table' AS name FROM {table} WHERE details ? '{KEY}' ORDER BY 1"
    ):
        try:
            functions = db.find_table(f"{db.extension}.{row['name']}") if row["name"] else None
        except MopError:  # details may have been changed by hand: no name of a table
            functions = None
        if functions is not None and not db.value(
            "SELECT has_table_privilege($1, $2, 'SELECT')", ["text", "oid"], [role, functions.oid]
        ):
            db.warning(
                f'role "{role}" may not read object table {functions}, which has code of the model',
                hint=f"GRANT SELECT ON {functions} TO {quoted};",
            )
    if not db.value("SELECT pg_has_role($1, 'mop_user', 'USAGE')", ["text"], [role]):
        db.warning(f'role "{role}" may not use pg_mop', hint=f"GRANT mop_user TO {quoted};")


@sql_function
def mop_list_models(db: Database) -> list[tuple[Any, ...]]:
    """The versions of all named models that the caller may read."""
    rows_of_models: list[Any] = []
    for table, name in _readable_models(db):
        for row in db.execute(
            f"SELECT version, in_use, target, kind, metrics::text AS metrics, created::text AS created, description, "
            f"octet_length(model_weights) AS bytes, {weights.reference_sql('model_weights')} AS reference, "
            "details::text AS details, transform::text AS transform, model_arch::text AS arch "
            f"FROM {table['t']} ORDER BY version"
        ):
            computer, size = computed_by(row), weights.size_of(row)
            rows_of_models.append(
                (
                    name,
                    *(row[name] for name in ("version", "in_use", "target", "kind", "metrics", "created")),
                    table["owner"],
                    size,
                    row["description"],
                    computer,
                )
            )
    return rows_of_models


@sql_function
def mop_list_family_trials(db: Database) -> list[tuple[Any, ...]]:
    """The trials of boosting, linear and mlp of all versions that the caller may read."""
    found: list[tuple[Any, ...]] = []
    for table, name in _readable_models(db):
        for row in db.execute(f"SELECT version, details::text AS details FROM {table['t']} ORDER BY version"):
            with contextlib.suppress(RecursionError):  # (of another role's model)
                details = json.loads(row["details"] or "null")
                found += [(name, row["version"], *trial) for trial in trained.trials_of(details)]
    return found


def _readable_models(db: Database) -> Iterator[tuple[Any, str]]:
    """(table, name for the caller) of each named model that the caller may read."""
    if db.has_segments:  # mop_deploy and mop_train refuse to make one there
        return
    for table in db.execute(
        "SELECT format('%I.%I', n.nspname, c.relname) AS t, quote_ident(c.relname) AS bare, c.oid, "
        "pg_get_userbyid(c.relowner)::text AS owner FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN (SELECT attrelid FROM pg_attribute WHERE "
        "attname = 'model_weights') AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') "
        f"AND {IS_MODEL} AND {IS_SAFE} ORDER BY 1"
    ):
        with db.caller_path():
            visible = db.value("SELECT pg_catalog.pg_table_is_visible($1) AS v", ["pg_catalog.oid"], [table["oid"]])
        yield table, table["bare"] if visible else table["t"]


def with_shapes(model: StoredModel) -> Transform:
    """The transform, with the shapes that MADlib's summaries do not have."""
    inputs = [
        column.with_parameters(column.name, shape=list(shape))
        for column, shape in zip(model.transform.inputs, model.input_shapes, strict=True)
    ]
    return Transform(inputs, model.transform.outputs, model.transform.weight)


def _info(db: Database, model_table: str, mst_key: int | None) -> dict[str, Any]:
    """The final metrics of a trained model, for the version's row."""
    if mst_key is None:
        return {}
    info = db.input_table(db.suffixed(model_table, "_info"), "info table of the model table")
    row = db.one(f"SELECT * FROM {info} WHERE mst_key = {int(mst_key)}") or {}
    columns = ("training_metrics_final", "training_loss_final", "validation_metrics_final", "validation_loss_final")
    return {name: row[name] for name in columns if row.get(name) is not None}
