"""The training table of a validation table: its transform packs the validation rows."""

from __future__ import annotations

from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, understood
from pg_mop.backend.quoting import quote_identifier
from pg_mop.backend.trusted import check_summary
from pg_mop.columns import Column, Request, SourceColumn, Transform, madlib


class Training:
    """A packed training table. `num_classes`: as its summary has them; `packed`, `summary`: Tables."""

    def __init__(self, db: Database, text: str | None) -> None:
        """Read the table that the caller calls `text`. Raises MopError."""
        hint = "Make it with training_preprocessor_dl first."
        self.db = db
        self.packed = db.input_table(text, "training preprocessor table", hint)
        full = f"{quote_identifier(self.packed.schema)}.{quote_identifier(self.packed.name + '_summary')}"
        self.summary = db.input_table(full, "training preprocessor summary table", hint, rows=False)
        check_summary(db, self.packed, self.summary)
        row = db.one(f"SELECT * FROM {self.summary} LIMIT 1")
        if row is None:
            raise MopError(f"training preprocessor summary table {self.summary} is empty", hint=hint)
        for name in (*madlib.REQUIRED, "num_classes"):
            if name not in row:
                raise MopError(
                    f'expected column "{name}" in the training preprocessor summary table {self.summary}', hint=hint
                )
        self.num_classes = row["num_classes"]
        transform = madlib.read(db, self.summary, row)
        with understood(f"the columns of {self.packed} and of its summary cannot be read"):
            self.transform = Transform(
                [self._with_shape(column) for column in transform.inputs],
                [self._with_shape(column) for column in transform.outputs],
                transform.weight,
            )

    @property
    def request(self) -> Request:
        """The arguments of the training table's preprocessor that concern its columns."""
        return Request(madlib.constant(self.transform)[0].value, self.transform.dependent_dtype)

    def output_like(self, source: SourceColumn, trained: Column) -> Column:
        """A target of other rows with the parameters of the training rows' target. Raises MopError."""
        return type(trained).fit_like(source, self.request, trained, self.summary)

    def _with_shape(self, column: Column) -> Column:
        """The column with its shape, which only the packed table has."""
        shape = column.name + "_shape"
        if shape not in self.db.columns(self.packed):
            raise MopError(f'expected column "{shape}" in the training preprocessor table {self.packed}')
        value = self.db.value(f"SELECT {quote_identifier(shape)} AS s FROM {self.packed} LIMIT 1")
        return column.with_parameters(column.name, shape=value[1:])
