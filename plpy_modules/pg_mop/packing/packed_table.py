"""Packed tables as the consumers see them: the columns, what the summary says, and the checks on both."""

import hashlib
import json

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.backend.sql_types import NUMBERS
from pg_mop.packing.summary import copies_in

REPACK = "SELECT {schema}.training_preprocessor_dl(...) (or validation_preprocessor_dl) makes such a table."


class PackedTable:
    """A packed table and its summary.

    `inputs` and `outputs` are column names, `columns` both, `summary` the summary's row as a dict. `keyed`: its rows
    say by `__dist_key__` of which segment they are; those that MADlib packed on PostgreSQL do not, and are one segment.
    `foreign`: rows are in foreign tables or, `distributed`, in shards of Citus.
    """

    def __init__(self, db, text, what):
        """Read and check the table that the caller calls `text`. Raises MopError as docs/contract/fit_multiple.md, section 7."""
        hint = REPACK.format(schema=db.extension)
        self.text = text
        self.table = db.input_table(text, what, hint=hint, rows=False)
        # whoever reads a foreign table here depends on its server until his transaction ends
        self.foreign = db.has_foreign_rows(self.table)
        if not self.foreign and db.one(f"SELECT 1 AS x FROM {self.table} LIMIT 1") is None:
            raise MopError(f'{what} "{text}" is empty', hint=hint)
        if self.table.kind == "v":
            raise MopError(f'{what} "{text}" is a view: it must be a table that the preprocessor has made', hint=hint)
        distribution = db.distribution(self.table)
        self.distributed = distribution is not None
        if distribution not in (None, "h by __dist_key__"):
            table = quote_literal(self.table)
            raise MopError(
                f'{what} "{text}" is distributed by Citus, but not by hash of "__dist_key__"',
                hint=f"SELECT undistribute_table({table}); SELECT create_distributed_table({table}, "
                f"'__dist_key__', colocate_with => 'none');",
                sqlstate="42809",
            )
        db.check_readable(self.table, db.columns(self.table))
        self.summary_table = db.input_table(db.suffixed(text, "_summary"), f"summary of the {what}", hint=hint)
        self.summary = db.one(f"SELECT * FROM {self.summary_table}")
        self.inputs, self.outputs = self._names(db, what)
        present = db.columns(self.table)
        self.keyed = "__dist_key__" in present
        for column in ("buffer_id", *self.columns, *(c + "_shape" for c in self.columns)):
            if column not in present:
                raise MopError(f'{what} "{text}" has no column "{column}": it must be preprocessed', hint=hint)
        for column in self.columns:
            if present[column] != "bytea":
                raise MopError(
                    f'column "{column}" of {what} "{text}" is {present[column]}, not bytea: '
                    f"it should be minibatched by the preprocessor",
                    hint=hint,
                )

    @property
    def columns(self):
        return [*self.inputs, *self.outputs]

    @property
    def copies(self):
        """Those of its segments: see packing.summary.copies_in."""
        return copies_in(self.summary, self.summary_table)

    def keys_sql(self):
        """SQL: the keys of its segments, in order, as `key`."""
        if not self.keyed:
            return "SELECT 0 AS key"
        return f"SELECT DISTINCT __dist_key__ AS key FROM {self.table} ORDER BY 1"

    def of_segment(self, key):
        """SQL: the condition that is true of the rows of the segment `key`."""
        return f"__dist_key__ = {int(key)}" if self.keyed else "true"

    def _names(self, db, what):
        lists = []
        for column in ("independent_varname", "dependent_varname"):
            if column not in self.summary:
                raise MopError(f'the summary of {what} "{self.text}" lacks the expected column "{column}"')
            names = self.summary[column]
            if not isinstance(names, list):
                raise MopError(
                    f'{what} "{self.text}" was made by an old preprocessor',
                    detail=f'"{column}" of its summary is no array.',
                    hint="Run the preprocessor again, of this version.",
                )
            lists.append(names)
        return lists

    def shape_columns(self):
        """SQL: the columns with the shapes."""
        return ", ".join(quote_identifier(c + "_shape") for c in self.columns)

    def shapes_of(self, row):
        """{column: shape of one example}, from the values of `shape_columns` of any buffer."""
        return {column: list(shape[1:]) for column, shape in zip(self.columns, row)}

    def class_values(self):
        """{output: list of class values, or None}, padding included, as the summary has them."""
        return {c: self.summary.get(c + "_class_values") for c in self.outputs}

    def meaning(self):
        """A text that changes when the summary says that the columns are to be read as something else."""
        said = [
            self.inputs,
            self.outputs,
            [str(values) for values in self.class_values().values()],
            dependent_dtype(self.summary),
            self.summary.get("normalizing_const"),
        ]
        return hashlib.md5(json.dumps(said).encode()).hexdigest()

    def differs(self, summary):
        """How rows prepared as `summary` (of the training data, or of a model) says differ from these, or None.

        What one of the two does not say is no difference.
        """
        mine, theirs = dependent_dtype(self.summary), dependent_dtype(summary)
        if mine != theirs:
            return f"dependent_dtype {mine}, not {theirs}"
        mine, theirs = self.summary.get("normalizing_const"), summary.get("normalizing_const")
        if mine is not None and theirs is not None and abs(mine - theirs) > 1e-6 * abs(theirs):
            return f"normalizing_const {mine:g}, not {theirs:g}"
        for own, what in ((self.inputs, "independent_varname"), (self.outputs, "dependent_varname")):
            theirs = list(summary.get(what) or ())
            if own != theirs and sorted(own) == sorted(theirs):
                return f"{what} {', '.join(own)}, not {', '.join(theirs)}"
        names = summary.get("dependent_varname") or []
        for own, other in zip(self.outputs, names):
            mine, theirs = self.summary.get(own + "_class_values"), summary.get(other + "_class_values")
            if mine is not None and theirs is not None and [str(v) for v in mine] != [str(v) for v in theirs]:
                return f'for "{own}" the classes {_some(mine)}, not {_some(theirs)}'
        return None

    def wanted_outputs(self, shapes):
        """What a model must output for these rows (architecture_shapes.output_misfit); `shapes`: those of one example."""
        return {
            "widths": [shapes[c][0] for c in self.outputs],
            "what": "numbers" if self.regression else "classes",
            "table": self.text,
        }

    def hint_to_fit(self):
        """What helps where no architecture fits these rows."""
        hint = "Load an architecture of that shape with load_keras_model."
        types = set(self.summary.get("dependent_vartype") or [])
        if not self.regression and types & {"real", "double precision", "numeric"}:
            hint += " Numbers that are to be predicted, and no classes, are packed with dependent_dtype => 'float32'."
        elif not self.regression and any(values and len(values) == 2 for values in self.class_values().values()):
            number = "as they are" if types & NUMBERS else 'as "column"::integer in a view'
            hint += (
                " For two classes that is Dense(2, 'softmax') with categorical_crossentropy. For Dense(1, "
                f"'sigmoid') with binary_crossentropy, pack labels that are the numbers 0 and 1, {number}, with "
                "dependent_dtype => 'float32'."
            )
        return hint

    def dtypes(self):
        """numpy dtypes of the columns' bytes."""
        return ["<f4"] * len(self.inputs) + ["<f4" if self.regression else "<i2"] * len(self.outputs)

    @property
    def regression(self):
        """True where the outputs are numbers or soft labels (float32), not one-hot classes."""
        return dependent_dtype(self.summary) == "float32"


def looks_packed(db, table):
    """True where a table has the columns that preprocessors make, MADlib's included."""
    columns = db.columns(table)
    return (
        table.kind != "v"
        and "buffer_id" in columns
        and any(kind == "bytea" and f"{name}_shape" in columns for name, kind in columns.items())
    )


def dependent_dtype(summary):
    """'int16' or 'float32': how a summary (of a packed table, or of a model; a dict) says that outputs are packed."""
    return summary.get("dependent_dtype") or "int16"


def _some(values):
    shown = ", ".join("NULL" if v is None else str(v) for v in values[:8])
    return f"{{{shown}{', ...' if len(values) > 8 else ''}}}"
