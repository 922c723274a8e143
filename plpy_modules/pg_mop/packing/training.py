"""A packed training table, as the packing of validation rows needs it: classes, widths and the constant."""

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.backend.sql_types import column_kind, kind_of
from pg_mop.packing import buffers

ELEMENTS = {"int16": "smallint", "float32": "real"}  # dependent_dtype -> type in the buffer


class Training:
    """What validation takes from a packed training table and its summary."""

    def __init__(self, db, text):
        hint = "Make it with training_preprocessor_dl first."
        self.db = db
        self.packed = db.input_table(text, "training preprocessor table", hint)
        full = f"{quote_identifier(self.packed.schema)}.{quote_identifier(self.packed.name + '_summary')}"
        self.summary = db.input_table(full, "training preprocessor summary table", hint)
        self.summary_columns = db.columns(self.summary)
        for name in (
            "normalizing_const",
            "num_classes",
            "dependent_varname",
            "independent_varname",
            "dependent_vartype",
        ):
            if name not in self.summary_columns:
                raise MopError(
                    f'expected column "{name}" in the training preprocessor summary table {self.summary}', hint=hint
                )
        row = db.one(
            "SELECT normalizing_const, num_classes, dependent_varname, independent_varname, "
            f"dependent_vartype FROM {self.summary} LIMIT 1"
        )
        self.constant, self.num_classes = row["normalizing_const"], row["num_classes"]
        self.outputs, self.inputs = row["dependent_varname"], row["independent_varname"]
        self.types = row["dependent_vartype"]
        self.element = "smallint"
        if "dependent_dtype" in self.summary_columns:
            self.element = ELEMENTS[db.value(f"SELECT dependent_dtype FROM {self.summary} LIMIT 1") or "int16"]
        self.class_columns = []

    def _shape(self, name):
        column = name + "_shape"
        if column not in self.db.columns(self.packed):
            raise MopError(f'expected column "{column}" in the training preprocessor table {self.packed}')
        return self.db.value(f"SELECT {quote_identifier(column)} AS s FROM {self.packed} LIMIT 1")[1:]

    def match(self, inputs, outputs):
        """Check that the validation columns fit those of training, and give the outputs their classes and widths."""
        for what, mine, theirs in (("independent", inputs, self.inputs), ("dependent", outputs, self.outputs)):
            if len(mine) != len(theirs):
                raise MopError(
                    f"{len(mine)} {what} columns are named, but training has {len(theirs)}",
                    detail=f"Those of training are {', '.join(theirs)}.",
                )
        for column, name in zip(inputs, self.inputs):
            if column.shape != self._shape(name):
                raise MopError(
                    f'column "{column.name}" has arrays of dimensions {buffers.braces(column.shape)}, '
                    f'but those of training column "{name}" have {buffers.braces(self._shape(name))}'
                )
        for output, name, shown in zip(outputs, self.outputs, self.types):
            self._match_output(output, name, shown)

    def _match_output(self, output, name, shown):
        column = name + "_class_values"
        row = None
        if column in self.summary_columns:
            quoted = quote_identifier(column)
            row = self.db.one(
                f"SELECT cardinality({quoted}) AS width, {quoted}[array_lower({quoted}, 1)] IS NULL "
                f"AS null_first FROM {self.summary} WHERE {quoted} IS NOT NULL LIMIT 1"
            )
        self.class_columns.append(column if row else None)
        if row is None:
            width = self._shape(name)[0]
            if output.encoded or output.width != width:
                has = output.kind.shown if output.encoded else f"vectors of {output.width}"
                raise MopError(
                    f'the labels of column "{output.name}" ({has}) are no subset of those of training '
                    f'column "{name}", which are vectors of {width} ({shown})'
                )
            return
        kind = kind_of(self.db, column_kind(self.db, self.summary, column).element_oid)
        if not output.encoded or not output.kind.like(kind):
            raise MopError(
                f'the classes of column "{output.name}" ({output.kind.shown}) are no subset of those of '
                f'training column "{name}", which are of type {kind.shown}',
                hint=f"Cast the column to {kind.shown}.",
            )
        output.class_kind = kind
        output.width, output.null_code = row["width"], 0 if row["null_first"] else -1
