"""Model tables as evaluate and predict read them."""

from __future__ import annotations

import json
from typing import Any

from mop_udf.architecture import architecture, architecture_shapes
from mop_udf.params import params
from pg_mop.api.common.winner import winner
from pg_mop.backend import object_table, weights
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.trusted import check_summary
from pg_mop.columns import madlib
from pg_mop.inference.model import Model, check_given

# losses, without "_", whose targets are a probability for each class; targets that are not whole are soft labels
OF_CLASSES = ("categoricalcrossentropy", "categoricalfocalcrossentropy", "categoricalhinge", "kldivergence", "kld")


class TableModel(Model):
    """A model in a row of a table, with its weights or, where they are in parts, with their source."""

    def check_names(self, inputs: list[str]) -> None:
        """Raises MopError where the names of the model's inputs contradict these columns."""
        raise NotImplementedError

    def _read_weights(self, db: Database, table: Table, where: str, value: bytes, what: str) -> None:
        """`where`: SQL for the model's row; `value`: its model_weights. Raises MopError."""
        self.source = weights.find(db, table, where, value, what)
        self.weights = value if self.source.reference is None else None


class StoredModel(TableModel):
    """A model of a model table, of madlib_keras_fit (one row) or of madlib_keras_fit_multiple_model.

    Besides: `compile_params` (text), `compile` (parsed), `summary` (dict).
    """

    def __init__(self, db: Database, text: str | None, mst_key: int | None) -> None:
        """Read model `mst_key` of the table that the caller calls `text`. Raises MopError."""
        table = db.input_table(text, "model table")
        text = str(text)
        columns = db.columns(table)
        for column in ("model_weights", "model_arch"):
            if column not in columns:
                raise MopError(f'model table "{text}" has no column "{column}"')
        summary = db.input_table(db.suffixed(text, "_summary"), "summary of the model table", rows=False)
        check_summary(db, table, summary)
        summary_row = db.one(f"SELECT * FROM {summary}")
        if summary_row is None:
            raise MopError(f'summary of the model table "{db.suffixed(text, "_summary")}" is empty')
        self.summary_table, self.summary = summary, summary_row
        if "mst_key" in columns:
            if mst_key is None:
                mst_key = self._best(db, text, table)
            row, what = self._one_of_several(db, text, table, mst_key), f'model {mst_key} of "{text}"'
            where = f"mst_key = {int(mst_key)}"
        elif mst_key is not None:
            raise MopError(f'model table "{text}" holds a single model: mst_key must not be given')
        else:
            where = ""
            (model_row,) = db.execute(f"SELECT model_weights, model_arch::text AS arch_text FROM {table}")
            row, what = {**self.summary, **model_row}, f'the model of "{text}"'
        absent_columns = [c for c in (*madlib.REQUIRED, "model_arch_table") if c not in self.summary]
        absent_columns += [c for c in ("model_id", "compile_params", "metrics_type") if c not in row]
        if absent_columns:
            raise MopError(f'the summary of model table "{text}" has no column "{absent_columns[0]}"')
        if row["model_weights"] is None or row["arch_text"] is None:
            raise MopError(f"{what} has no weights", detail=row.get("error"))
        self.compile_params = row["compile_params"]
        try:
            self.compile = params.parse_compile_params(self.compile_params)
        except params.ParameterError as error:
            raise MopError(f"{what} cannot be used: {error}") from None
        self.transform = madlib.read(db, summary, self.summary)
        names = [loss.partition("(")[0].lower().replace("_", "") for loss in params.losses(self.compile)]
        self.regression = self.transform.is_regression and not all(name in OF_CLASSES for name in names)
        self._read_weights(db, table, where, row["model_weights"], what)
        functions, custom = self.summary.get("object_table"), None
        if functions is not None and not _is_plain(row["arch_text"]):
            custom = object_table.layer_names(db, object_table.check(db, functions))
        self._read_architecture(row["arch_text"], self.weights, len(self.output_names), what, custom)
        if custom is not None:
            self.objects = object_table.read(db, functions, None, layers=architecture.custom_classes(self.architecture))

    @property
    def trained_code(self) -> dict[str, Any]:
        """{name: SHA-256 of its pickle} of the custom code that the models of the table were trained with, as far as it is
        known."""
        try:
            digests = json.loads(self.summary.get("object_digests") or "{}")
        except ValueError:
            return {}
        return digests if isinstance(digests, dict) else {}

    def check_names(self, inputs: list[str]) -> None:
        """Raises MopError where the model's inputs have the names of these columns, in another order.

        The columns of a test table may have other names.
        """
        names = architecture_shapes.named(self.architecture, "input_layers")
        if names is not None and names != inputs and names == sorted(inputs):
            raise MopError(
                f"{self.what} has its inputs in the order {', '.join(names)}, not {', '.join(inputs)}",
                hint=f"independent_varname => ARRAY{names}",
            )

    def _best(self, db: Database, text: str, table: Table) -> int:
        """The mst_key of the best model, which a NOTICE names. Raises MopError if it is not known."""
        key = self.summary.get("best_mst_key")
        if key is None:  # a table of MADlib
            best = winner(db, db.suffixed(text, "_info"), models=str(table))
            if best is None:
                raise MopError(
                    f'model table "{text}" holds several models: mst_key must be given',
                    hint=f"SELECT mst_key FROM {table};",
                )
            key = best.mst_key
        db.notice(f'the best model of "{text}" is used: mst_key {key}', hint="Give mst_key to use another model.")
        return key

    def _one_of_several(self, db: Database, text: str, table: Table, mst_key: int) -> dict[str, Any]:
        info = db.input_table(db.suffixed(text, "_info"), "info table of the model table")
        row = db.one(
            f"SELECT i.*, m.model_weights, m.model_arch::text AS arch_text FROM {info} i "
            f"LEFT JOIN {table} m USING (mst_key) WHERE mst_key = $1",
            ["integer"],
            [mst_key],
        )
        if row is None:
            raise MopError(
                f'mst_key {mst_key} is not in the info table of "{text}"', hint=f"SELECT mst_key FROM {info};"
            )
        if row["model_weights"] is None:
            error = row.get("error")
            last = "validation" if self.summary.get("validation_table") else "training"
            raise MopError(
                f'model {mst_key} of "{text}" {"failed in training" if error else "has no weights"}',
                detail=error,
                hint="Models that failed have no metrics: "
                f"SELECT mst_key, {last}_metrics_final FROM {info} "
                f"ORDER BY {last}_metrics_final DESC NULLS LAST;",
            )
        return row


def _is_plain(text: str) -> bool:
    """True where an architecture has Keras' own layers alone."""
    try:
        return bool(architecture.check(text))
    except architecture.ArchitectureError:
        return False


class OwnModel(TableModel):
    """The caller's own model, from an architecture table (docs/contract/fit_evaluate_predict.md, section 4)."""

    given_classes = True

    def check_names(self, inputs: list[str]) -> None:
        """Raises MopError where the names of the model's inputs or outputs are not those of the columns, in their order.

        Class values and the columns of predictions are matched by position.
        """
        outputs = [f"output {i}" for i in range(len(self.output_names))]
        try:
            problem, hint = (
                architecture_shapes.name_misfit(self.architecture, "input_layers", inputs)
                or architecture_shapes.name_misfit(self.architecture, "output_layers", outputs)
                or (None, None)
            )
        except architecture.ArchitectureError as error:
            problem, hint = str(error), None
        if problem:
            raise MopError(f"{self.what} cannot be used: {problem}", hint=hint)

    def __init__(
        self,
        db: Database,
        text: str | None,
        model_id: int | None,
        class_values: list[Any] | None,
        normalizing_const: float | None,
        dependent_count: int | None,
    ) -> None:
        """Read model `model_id` of the architecture table that the caller calls `text`. Raises MopError."""
        table = db.input_table(text, "model architecture table")
        db.check_built_in(table, ("model_id", "model_arch", "model_weights"))
        if model_id is None:
            raise MopError("model_id must not be NULL", hint=f"SELECT model_id, name FROM {table};")
        if dependent_count is None or dependent_count < 1:
            raise MopError(f"dependent_count must be at least 1, not {dependent_count}")
        if normalizing_const is not None and not 0 < normalizing_const < float("inf"):
            raise MopError(f"normalizing_const must be positive or NULL, not {normalizing_const:g}")
        for column in ("model_id", "model_arch", "model_weights"):
            if column not in db.columns(table):
                raise MopError(f'"{text}" is no model architecture table: it has no column {column}')
        row = db.one(
            f"SELECT model_weights, model_arch::text AS arch_text FROM {table} WHERE model_id = $1",
            ["integer"],
            [model_id],
        )
        if row is None:
            raise MopError(f'model_id {model_id} is not in "{text}"', hint=f"SELECT model_id, name FROM {table};")
        if row["arch_text"] is None or row["model_weights"] is None:
            raise MopError(f'model_arch and model_weights of model_id {model_id} in "{text}" must not be NULL')
        what = f"model_id {model_id}"
        self._read_weights(db, table, f"model_id = {int(model_id)}", row["model_weights"], what)
        self._read_architecture(row["arch_text"], self.weights, dependent_count, what)
        names = ["dependent_var"] if dependent_count == 1 else [f"dependent_var_{i}" for i in range(dependent_count)]
        classes: list[Any] = [None] * dependent_count
        if class_values is not None:
            # a one-dimensional array has the class values of the only output
            classes = class_values if class_values and isinstance(class_values[0], list) else [class_values]
        check_given(classes, self.outputs)
        self.transform = madlib.given(len(self.input_shapes), normalizing_const, names, classes)
