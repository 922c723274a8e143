"""madlib_keras_predict and madlib_keras_predict_byom: predictions for raw rows (contract 4, sections 3 and 4)."""

import numpy as np

from pg_mop.api.model_table import OwnModel, StoredModel
from pg_mop.api.session import trainer_of, trainer_options, with_trainer
from pg_mop.database import MopError, quote_identifier, quote_literal, split_names
from pg_mop.kinds import column_kind
from pg_mop.packing import unfit
from pg_mop.packing.buffers import decode

CHUNK_BYTES = 16 << 20
ROW_BYTES = 300  # of a prediction on its way into the table: Python objects, then an array of SQL


@with_trainer
def madlib_keras_predict(db, session, model_table, test_table, id_col, independent_varname, output_table, pred_type,
                         use_gpus, mst_key):
    """Write the predictions of a trained model for the rows of `test_table` to `output_table`."""
    if model_table is None or not model_table.strip():
        raise MopError("NULL/empty input table name", detail="It is the model table.")
    choice = Choice(pred_type)
    test = db.input_table(test_table, "test table")
    model = StoredModel(db, model_table, mst_key)
    _write(db, session, model, test, test_table, id_col, independent_varname, output_table, choice, use_gpus)


@with_trainer
def madlib_keras_predict_byom(db, session, model_arch_table, model_id, test_table, id_col, independent_varname,
                              output_table, pred_type, use_gpus, class_values, normalizing_const, dependent_count):
    """Write the predictions of a model of an architecture table: bring your own (contract 4, section 4)."""
    choice = Choice(pred_type)
    model = OwnModel(db, model_arch_table, model_id, class_values, normalizing_const, dependent_count)
    test = db.input_table(test_table, "test table")
    _write(db, session, model, test, test_table, id_col, independent_varname, output_table, choice, use_gpus)


def _unquoted(name):
    """A column name as it is, or without the quotes that SQL puts around it."""
    return name[1:-1].replace('""', '"') if len(name) > 1 and name[0] == name[-1] == '"' else name


def _write(db, session, model, test, test_table, id_col, independent_varname, output_table, choice, use_gpus):
    """Predict in the caller's transaction, with a trainer of his own session; rows stream through it in chunks."""
    if model.regression:
        choice.all_in_order()
    columns = db.columns(test)
    identifier = id_col and db.find_column(columns, _unquoted(id_col.strip()))
    if not identifier:
        raise MopError(f'invalid id column "{id_col}": test table "{test_table}" has no such column')
    inputs = []
    for name in split_names(independent_varname):
        column = db.find_column(columns, name)
        hint = "predict takes raw rows, one example a row, not a packed table."
        if column is None:
            raise MopError(f'invalid independent_varname "{name}": test table "{test_table}" has no such column',
                           hint=hint)
        kind = column_kind(db, test, column)
        if not kind.numeric_array:
            raise MopError(f'invalid independent_varname: column "{column}" of test table "{test_table}" has type '
                           f"{kind.shown}, not an array of numbers", hint=hint)
        inputs.append(column)
    db.check_readable(test, [identifier, *inputs])
    if identifier in ("class_name", "class_value", "prob", "rank"):
        raise MopError(f'id column "{identifier}" has the name of a column that the predictions have',
                       hint="Give it another name in a view of the test table.")
    if len(inputs) != len(model.input_shapes):
        raise MopError(f"the model takes {len(model.input_shapes)} inputs, not {len(inputs)}")
    output = db.output_table(output_table)
    reader = Reader(db, test, identifier, inputs, model.input_shapes, model.normalizing_const)
    rank_column = ", rank integer" if choice.rank else ""
    db.execute(f"CREATE TABLE {output} ({quote_identifier(identifier)} {reader.id_type}, class_name text, "
               f"class_value text, prob float8{rank_column})")
    insert = db.plpy.prepare(
        f"INSERT INTO {output} SELECT (p.id)::{reader.id_type}, p.class_name, p.class_value, p.prob"
        f"{', p.rank' if choice.rank else ''} FROM unnest($1, $2, $3, $4, $5) "
        f"AS p(id, class_name, class_value, prob, rank)", ["text[]", "text[]", "text[]", "float8[]", "integer[]"])
    unknown = 0
    with trainer_of(session, trainer_options(db, use_gpus)) as trainer:
        model.lend(trainer)
        classes = []
        for values, units in zip(model.classes, model.outputs):
            values = list(values) if values is not None else [str(k) for k in range(units)]
            classes.append((values + [None] * units)[:units] + [None])  # the last: of no class
        kept = sum(model.outputs) if choice.most is None else len(model.outputs) * choice.most
        for identifiers, arrays in reader.chunks(16 * sum(model.outputs) + ROW_BYTES * kept):
            trainer.send({"op": "predict", "shapes": [list(a.shape) for a in arrays]},
                         *(a.reshape(-1).view(np.uint8) for a in arrays))
            _, payloads = trainer.receive()
            rows = [[], [], [], [], []]
            finite = np.all([np.isfinite(a.reshape(len(a), -1)).all(axis=1) for a in arrays], axis=0)
            for name, values, data in zip(model.output_names, classes, payloads):
                probabilities = np.frombuffer(data, "<f4").reshape(len(identifiers), -1).astype("f8")
                known = finite & np.isfinite(probabilities).all(axis=1)
                unknown += len(known) - int(known.sum())
                row, column, rank = choice.of(probabilities, known)
                rows[0] += [identifiers[i] for i in row]
                rows[1] += [name] * len(row)
                rows[2] += [values[c] for c in column]
                rows[3] += [p if c >= 0 else None for p, c in zip(probabilities[row, column].tolist(), column)]
                rows[4] += [r if r > 0 else None for r in rank.tolist()]
            if rows[0]:
                db.plpy.execute(insert, rows)
    if unknown:
        db.warning(f"{unknown} prediction{'s are' if unknown > 1 else ' is'} NULL",
                   detail="An input is NaN or infinite there, or what the model makes of it is.",
                   hint=f"SELECT * FROM {output} WHERE prob IS NULL;")


class Choice:
    """Which classes of an example are kept, by pred_type (contract 4, section 3.2). Raises MopError."""

    def __init__(self, pred_type):
        pred_type = "prob" if pred_type is None else pred_type
        self.most = self.above = None
        if isinstance(pred_type, str):
            if pred_type not in ("prob", "response"):
                raise MopError(f"pred_type must be 'prob', 'response', an integer or a double precision number, "
                               f"not {pred_type!r}")
            if pred_type == "response":
                self.most = 1
        elif isinstance(pred_type, int):
            if pred_type < 1:
                raise MopError(f"pred_type must be at least 1 as an integer, not {pred_type}")
            self.most = pred_type
        else:
            if not 0 <= pred_type < 1:
                raise MopError(f"pred_type must be in [0, 1) as a double precision number, not {pred_type}")
            self.above = pred_type
        self.rank, self.sort = pred_type != "response", True

    def all_in_order(self):
        """Keep every output of a regression model, ranked by its position. Raises MopError for a choice of classes."""
        if self.above is not None or self.most is not None and self.rank:
            raise MopError("pred_type must be 'prob' or 'response' for a regression model, which has no classes")
        self.most, self.sort = None, False

    def of(self, probabilities, known):
        """(rows, columns, ranks) of the kept entries of an array [examples, classes]; rank 1 = the best.

        Of an example that is not `known` (an array of booleans), which has no prediction, one entry is kept: of column
        and rank -1.
        """
        count, classes = probabilities.shape
        order = np.argsort(-probabilities, axis=1, kind="stable") if self.sort else np.tile(np.arange(classes),
                                                                                          (count, 1))
        kept = np.ones((count, classes), bool)
        if self.most is not None:
            kept[:, self.most:] = False
        if self.above is not None:
            kept = np.take_along_axis(probabilities, order, 1) > self.above
        kept[~known] = np.arange(classes) == 0
        row, rank = np.nonzero(kept)
        return row, np.where(known[row], order[row, rank], -1), np.where(known[row], rank + 1, -1)


class Reader:
    """Chunks of a table's rows: (ids as text, [float32 array for each input])."""

    def __init__(self, db, table, identifier, inputs, shapes, normalizing_const):
        self.db, self.table, self.shapes, self.inputs = db, table, shapes, inputs
        self.constant = np.float32(normalizing_const)
        self.id_type = db.value("SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
                                "WHERE attrelid = $1 AND attname = $2", ["oid", "text"], [table.oid, identifier])
        columns = ", ".join(f"array_send({quote_identifier(c)}::real[]) AS c{i}" for i, c in enumerate(inputs))
        self.sql = f"SELECT {quote_identifier(identifier)}::text AS id, {columns} FROM {table}"
        dims = ", ".join(f"array_dims({quote_identifier(c)}) AS c{i}" for i, c in enumerate(inputs))
        first = db.one(f"SELECT {dims} FROM {table} LIMIT 1")
        for i, (name, shape) in enumerate(zip(inputs, shapes)):
            given = [int(d.split(":")[1]) - int(d.split(":")[0]) + 1
                     for d in (first[f"c{i}"] or "").strip("[]").split("][") if d]
            if given != shape:
                raise MopError(f'the model takes input of shape {shape}, column {quote_literal(name)} has {given}: '
                               f"input shape does not match")

    def chunks(self, output_bytes):
        """The chunks, one after the other. `output_bytes`: what the predictions for one row take in memory, about."""
        size = sum(int(np.prod(s)) * 8 + 64 for s in self.shapes) + output_bytes
        cursor = self.db.plpy.cursor(self.sql)
        try:
            while rows := self._fetch(cursor, max(1, min(10_000, CHUNK_BYTES // size))):
                arrays = []
                for i, (name, shape) in enumerate(zip(self.inputs, self.shapes)):
                    array = decode([row[f"c{i}"] for row in rows], shape, "real", name).reshape(-1, *shape)
                    arrays.append(array if self.constant == 1 else array / self.constant)
                yield [row["id"] for row in rows], arrays
        finally:
            cursor.close()

    def _fetch(self, cursor, count):
        try:
            return cursor.fetch(count)
        except self.db.plpy.SPIError as error:
            if getattr(error, "sqlstate", None) == unfit.OUT_OF_RANGE:
                for name in self.inputs:
                    unfit.check(self.db, self.table, name, "real", detail="The model takes float32.")
            raise
