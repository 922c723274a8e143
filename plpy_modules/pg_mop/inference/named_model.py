"""Models with a name: a table whose rows are the versions of one model.

The table is an ordinary one, of the user's schema: it is owned, granted, dumped, replicated and dropped as all tables. One
version is in use; a partial unique index holds that. A session keeps the models that it predicts with.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.backend import foreign_code, weights
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError, has_nul, understood
from pg_mop.backend.foreign_code import Place
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.backend.sql_types import kind_of, plain_name, plain_types
from pg_mop.columns import Column, transform_from_json
from pg_mop.columns.features.category import Category
from pg_mop.columns.features.conversion import UTC, as_trained, family, json_type, null_sql
from pg_mop.columns.one_hot import free_name
from pg_mop.inference import forward, trees
from pg_mop.inference.custom_code import CustomCode
from pg_mop.inference.ensemble import Mixture
from pg_mop.inference.model import Model
from pg_mop.inference.model_parts import part_query
from pg_mop.inference.row_inputs import CHUNK_BYTES, RowInputs
from pg_mop.inference.tree_inputs import TreeInputs
from pg_mop.inference.version_rows import IS_MODEL, TYPES, SharedRows, VersionRows
from pg_mop.packing.row_source import in_brackets, is_query

# SQL: to read c runs no code of another role: the table has no policies, no expressions that the planner would compute, and
# no children, which may have both
IS_SAFE = (
    f"({foreign_code.IS_OF_TRUSTED_ROLE} OR NOT EXISTS ("
    + foreign_code.code_sql("c.oid", "NULL", (Place.POLICY, Place.CHILD, Place.CHECK, Place.INDEX, Place.STATISTICS))
    + "))"
)
MOST_ELEMENTS = 1 << 26  # of a row of an input
DRAWN_OF = 1 << 30  # positions of rows in a draw
PROBABILITY_BYTES = 100  # of a class in an answer: Python's numbers, their text, and JSON
MOST_TEXTS = 100_000  # numbers that are written at a time
NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")  # the character U+0000 in JSON
MOST_STEPS = 20_000_000  # nodes of trees that the rows of a chunk pass: part of a second
KEPT = 8  # models that a session keeps
# of a row: a class with its probability and those of all classes (JSON), or a number
Answer = tuple[str | None, float | None, str | None]
Computer = Callable[[Sequence[Any]], "list[np.ndarray]"]  # inputs [rows, ...] -> outputs: a forward.Net, or a KerasNet
_kept: dict[tuple[int, int | None, bool], NamedModel] = {}


class NamedModel(RowInputs, Model):
    """A version of a named model. `key` changes when its row does; `kind`: classification or regression.

    `mixture`: of a version with boosted trees; what the class has of a net is of the mixture's, if it has one."""

    version: int
    key: tuple[str, str]
    rows: VersionRows  # how they are read
    weight_bytes: int
    mixture: Mixture | None
    code: CustomCode | None  # that its architecture needs
    place_query: str  # SQL: where the row of the version in use is, or of the version that was asked for
    told: set[str]  # columns of whose unseen values the session has been told
    lacked_at: int | None = None  # the statement whose rows lack columns, which the session has been told
    _digest: str | None = None
    _net: Computer | None = None  # once it has answered in this process
    _trees: list[tuple[float, trees.Trees]] | None = None  # share and trees of each text, once they have been read
    _needs_trainer = False  # True once it is known that a trainer must compute the net

    @classmethod
    def find(cls, db: Database, name: str | None, version: int | None = None, asks: bool = False) -> NamedModel:
        """The version of the model that is in use, or another; `asks`: also of a model that the caller may only ask, for
        functions that return answers alone. Raises MopError."""
        shared = SharedRows.of(db, name) if asks else None
        rows = VersionRows(table_of(db, name)) if shared is None else shared
        if shared is not None:
            _check_model(db, str(name), shared.table)
        table, query = rows.table, rows.place_sql(db, version)
        row = db.one(query)
        if row is None:
            raise MopError(
                f'model "{name}" has no version {version}'
                if version is not None
                else f'no version of model "{name}" is in use',
                hint=f"SELECT version, in_use, metrics FROM {table};" if shared is None else None,
            )
        key, kept_as = (row["place"], row["writer"]), (table.oid, version, shared is not None)
        model = _kept.get(kept_as)
        if model is None or model.key != key:
            while len(_kept) >= KEPT:
                _kept.pop(next(iter(_kept)))
            model = _kept[kept_as] = cls(db, str(name), rows, row["version"], key)
        elif model.code is not None:  # its table may have changed since
            model.code.check(db, model.what)
        model.place_query = query
        return model

    def __init__(self, db: Database, name: str, rows: VersionRows, version: int, key: tuple[str, str]) -> None:
        self.name, self.rows, self.table, self.version, self.key = name, rows, rows.table, version, key
        row = rows.row(db, version)
        if row["lacking"]:
            raise MopError(
                f'version {version} of model "{name}" cannot be used: {row["lacking"]} is NULL', sqlstate="22004"
            )
        self.kind, self.target = row["kind"], row["target"]
        self.regression, self.told = self.kind == "regression", set()
        what = f'version {version} of model "{name}"'
        self.source, self.weight_bytes = rows.source(db, version, row["reference"], what), row["bytes"]
        with _reading(what):
            self.transform = transform_from_json(json.loads(row["transform"]))
        self.code = CustomCode.of_details(row["details"], what)
        digests = self.code.digests if self.code is not None else None
        self._take_architecture(row["arch"], row["bytes"], what, digests)
        self._whole = self.source
        if self.mixture is not None:
            self.weight_bytes = self.mixture.net_bytes
            self.source = weights.PartOf("", what, whole=self.source, size=self.weight_bytes)
        if self.code is not None:
            self.objects = self.code.read(db, what)
        with _reading(what):
            self._check_inputs()
            self._take_inputs()
            self.wires_sql()
            self.output.labels(1)
            assert self.chunk_rows > 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any], architecture_text: str, weights: bytes) -> NamedModel:
        """The model that another process describes (see `to_json`), whose net this process computes: it answers for values."""
        model = cls.__new__(cls)
        model._take_description(data)
        model._take_architecture(architecture_text, len(weights), data["what"])
        model._take_inputs()
        model._take_weights(weights)
        return model

    def whole(self, db: Database) -> tuple[str, Any]:
        """The architecture (JSON) and the weights of the version, with those of its trees."""
        return self._whole_text, self._whole.read(db)

    def _take_architecture(self, text: str, size: int, what: str, digests: Mapping[str, str] | None = None) -> None:
        """Take the net and the trees of an architecture with so many bytes of weights; `digests`: of custom code."""
        outputs = len(self.transform.outputs)
        with _reading(what):
            self.mixture, self._whole_text = Mixture.read(text, size), text
            if self.mixture is not None:
                self._tree_inputs = TreeInputs(self.transform.inputs)
        net = text if self.mixture is None else self.mixture.net
        if net is not None:
            self._read_architecture(net, None, outputs, what, digests)
            return
        self.architecture_text, self.architecture, self.weights, self.what = "", {}, None, what
        self.input_shapes, self.outputs = [list(column.shape) for column in self.transform.inputs], [None] * outputs

    def _take_weights(self, whole: Any) -> None:
        """Read the trees; and make the net for this process, which can compute it."""
        if self.mixture is not None:
            self._read_trees(self.mixture, memoryview(whole))
            whole = whole[: self.mixture.net_bytes]
        if self._net is None:
            self._take_net(whole)

    def _take_net(self, own: Any) -> None:
        net = forward.compiled(self.architecture, own)
        self._net, self.outputs, self.steps = net, [net.shapes[0][0]], [[]]

    def _read_trees(self, mixture: Mixture, whole: memoryview) -> None:
        width = 1 if self.regression else len(self.output.classes or ())
        with _reading(self.what):
            found = [
                (share, trees.read(whole[first : first + size], self._tree_inputs.width))
                for share, first, size in mixture.places()
            ]
            if any(own.width != width for _, own in found):
                raise ValueError(f"trees do not have {width} outputs")
        self._trees = found
        if mixture.net is None:
            self._net, self.outputs, self.steps = lambda arrays: [np.zeros((len(arrays[0]), width))], [width], [[]]

    def _take_inputs(self) -> None:
        self.inputs = self.input_columns([column.name for column in self.transform.inputs])

    def _check_inputs(self) -> None:
        """Raises ValueError where the columns of the transform are not the inputs of the net."""
        if len(self.input_shapes) != len(self.transform.inputs) or len(self.transform.outputs) != 1:
            raise ValueError(f"the net has {len(self.input_shapes)} inputs, the transform {len(self.transform.inputs)}")
        for column, shape in zip(self.transform.inputs, self.input_shapes, strict=True):
            if list(column.shape) != list(shape) or not 0 < math.prod(column.shape) <= MOST_ELEMENTS:
                raise ValueError(f"an input of the net has shape {shape}, its column {column.shape}")
            if [place.stop for _, place in column.places()][-1:] not in ([None], list(shape)):
                raise ValueError(f"the features of a column do not fill an input of shape {shape}")

    @property
    def wanted(self) -> str:
        return f'model "{self.name}" was trained on'

    def reading(self) -> AbstractContextManager[None]:
        return _reading(f'version {self.version} of model "{self.name}"')

    @property
    def output(self) -> Column:
        """The target's column."""
        return self.transform.outputs[0]

    def check_steps(self, db: Database) -> None:
        """Raises MopError where Keras has given an output of several steps."""
        if any(self.steps):
            raise MopError(
                f'model "{self.name}" has an output of several steps, which a named model cannot answer with',
                hint=f"Predict with the model table: SELECT {db.extension}.madlib_keras_predict(...);",
            )

    def check_without_trees(self, db: Database) -> None:
        """Raises MopError where boosted trees are members: Keras has no layer for them."""
        if self.mixture is None:
            return
        row = db.one(f"SELECT details->'arguments' AS arguments FROM {self.table} WHERE version = {self.version}")
        arguments = json.loads(row["arguments"]) if row is not None and row["arguments"] else None
        source, more = "your_table", f"target => {quote_literal(quote_identifier(self.target))}"
        if isinstance(arguments, dict):  # of mop_train
            source = str(arguments.pop("source", source))
            given = {name: value for name, value in arguments.items() if name not in ("name", "families", "keep")}
            more = ", ".join(f"{quote_identifier(name)} => {quote_literal(value)}" for name, value in given.items())
        call = f"{quote_literal(source)}, {quote_literal(self.table.name + '_of_nets')}, {more}, families => 'nets'"
        raise MopError(
            f"{self.what} has boosted trees: no .keras file can hold them",
            detail=f"They have {sum(share for share, _ in self.mixture.trees):.3g} of the answer.",
            hint=f"SELECT {db.extension}.mop_train({call}); trains a model of nets alone.",
            sqlstate="0A000",
        )

    def digest(self, db: Database) -> str:
        """A digest of all that decides the net's outputs: its architecture, code and weights."""
        if self._digest is None:
            made = hashlib.sha256(json.dumps([self.architecture_text, *self.objects]).encode())
            for pickle in self.objects.values():
                made.update(hashlib.sha256(pickle).digest())
            for piece in self.source.pieces(db):
                made.update(piece)
            self._digest = made.hexdigest()
        return self._digest

    def net(self, db: Database) -> Computer | None:
        """The net for this process; None where a trainer must compute it: it has other layers, code, or many weights, or its
        columns need a trainer. The version's trees are read, too: `outputs_of` needs them. Raises MopError."""
        if self.mixture is not None and self._trees is None:
            self._read_trees(self.mixture, memoryview(self._whole.read(db)))
        if self._net is None and not self._needs_trainer:
            is_whole = self.code is None and self.source.reference is None
            if is_whole and obstacle(self.inputs, self.architecture_text, self.weight_bytes) is None:
                self._take_net(self.source.read(db))
            self._needs_trainer = self._net is None
        return self._net

    @property
    def own_net(self) -> Computer | None:
        """The net for this process, if `net` has made one."""
        return self._net

    # --- rows ---

    @property
    def chunk_rows(self) -> int:
        answer_bytes = PROBABILITY_BYTES * (self.outputs[0] or 1)
        steps = sum(own.steps for _, own in self._trees or ())  # (a cancel is heard between two chunks)
        return max(1, min(super().chunk_rows, CHUNK_BYTES // answer_bytes, MOST_STEPS // max(1, steps)))

    @functools.cached_property
    def row_query(self) -> str:
        """SQL: the wires of one row, the JSON object $1. Absent columns are NULL, others do not matter."""
        types = self.types()
        columns = ", ".join(f"{quote_identifier(name)} {json_type(sql_type)}" for name, sql_type in types.items())
        values = ", ".join(f"{self._from_json(name)} AS {quote_identifier(name)}" for name in types)
        wires = ", ".join(f"{wire} AS w{i}" for i, wire in enumerate(self.wires_sql()))
        return f"SELECT {wires} FROM (SELECT {values} FROM json_to_record($1) AS t({columns})) q"

    @functools.cached_property
    def _trained(self) -> tuple[dict[str, str], dict[str, str]]:
        return self.types(), self.zones()

    def _from_json(self, name: str) -> str:
        """SQL: the value of a column of a JSON row `t` as one of the type of training."""
        types, zones = self._trained
        return as_trained(f"t.{quote_identifier(name)}", json_type(types[name]), types[name], zones.get(name, UTC))

    def without_nul(self, row: str) -> str:
        """A JSON row without the character U+0000, which no text can have. Raises MopError where it is read."""
        if "\\u0000" not in row:
            return row
        values = json.loads(row)
        for name in dict.fromkeys(self.json_columns):
            if "\\u0000" in json.dumps(values.get(name)).replace("\\\\", ""):
                raise has_nul([name])
        return NUL.sub(r"\1\\ufffd", row)

    def lacking(self, row: str) -> list[str]:
        """The columns of training that a JSON row lacks."""
        keys = self._json_keys
        if row.count("{") == 1 and all(key in row for key in keys.values()):
            return []
        try:
            columns = json.loads(row)
        except RecursionError:  # of a value in the depth of others: each text that is a name is taken for one
            columns = {name for name, key in keys.items() if key.removesuffix(":") in row}
        return [name for name in keys if name not in columns]

    @functools.cached_property
    def _json_keys(self) -> dict[str, str]:
        """{column of training: its key in JSON as PostgreSQL writes it}: no text within JSON has such a part."""
        return {name: json.dumps(name, ensure_ascii=False) + ":" for name in self.types()}

    def tell_lacking(self, db: Database, row: str, statement: int | None) -> None:
        """Tell the caller once a statement which columns of training a JSON row lacks. Raises MopError where it cannot be read
        without them."""
        missing = self.lacking(row)
        check_missing(self, missing)
        if missing and (self.lacked_at is None or self.lacked_at != statement):
            self.lacked_at = statement
            tell_missing(db, missing)

    def wires_of(self, db: Database, session: Session, row: str) -> Sequence[Any]:
        """The wires of a JSON row, by a plan that the session keeps. Raises MopError for a value of another type."""
        try:
            return session.query(self.row_query, ("json",), (self.without_nul(row),))
        except db.plpy.SPIError as error:
            problem = self._bad_value(db, row) if str(error.sqlstate).startswith("22") else None
            if problem is None:
                raise
        raise problem

    def _bad_value(self, db: Database, row: str) -> MopError | None:
        """The error for the first value of a JSON row that does not have the type of its column."""
        for name, sql_type in self.types().items():
            try:
                db.one(
                    f"SELECT x FROM json_to_record($1::json) AS t({quote_identifier(name)} {json_type(sql_type)}), "
                    f"LATERAL (SELECT ({self._from_json(name)})::text) AS q(x)",
                    ["text"],
                    [row],
                )
            except db.plpy.SPIError as error:
                if not str(error.sqlstate).startswith("22"):
                    raise
                value = json.dumps(json.loads(row).get(name))
                return MopError(
                    f'column "{name}" has {value[:100]}, but model "{self.name}" was trained on {sql_type}',
                    detail=str(error).partition("\n")[0],
                    sqlstate="22P02",
                )
        return None

    def encode(
        self, computer: Computer, rows: Sequence[Any], unseen: dict[str, list[str]] | None = None
    ) -> list[np.ndarray]:
        """Rows with wires w0, w1, ... -> the arrays that the net takes. `computer`: of this model; it decodes images.

        `unseen`: {column: values that training rows did not have}, to which those of new columns are added.
        """
        return self.encode_values(computer, self.values(rows), unseen)

    def encode_values(
        self, computer: Computer, inputs: Iterable[tuple[Column, list[Any]]], unseen: dict[str, list[str]] | None = None
    ) -> list[np.ndarray]:
        """The same of the values of each input."""
        arrays = []
        with _reading(self.what):
            for column, values in inputs:
                if column.needs_trainer:  # (another call of the session may have lent the column its own)
                    column.decoded_by(computer)
                arrays.append(column.encode_for_prediction(values))
                if unseen is not None:
                    for name, values_of_name in column.unseen(values).items():
                        unseen.setdefault(name, values_of_name)
        return arrays

    def outputs_of(self, computer: Computer, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The outputs [rows, units] of all members in the target's terms: probabilities of classes, or numbers. `computer`: of
        this model; it computes the net."""
        (found,) = computer(arrays)
        numbers = found.astype("f8")
        with _reading(self.what):
            if self._trees:
                assert self.mixture is not None
                if numbers.shape[1] < self._trees[0][1].width == 2:  # one unit: the probability of the second class
                    numbers = np.concatenate([1 - numbers, numbers], 1)
                numbers *= self.mixture.net_weight
                elements = self._tree_inputs.elements(arrays)
                for share, own in self._trees:
                    numbers += share * own(elements)
            _, decoded = self.output.decode(numbers)
        return decoded

    def answers(self, computer: Computer, rows: Sequence[Any], unseen: dict[str, list[str]]) -> list[Answer]:
        """The answers for rows with wires w0, w1, ...; `computer`, `unseen`: as for `outputs_of` and `encode`."""
        return answers(self, self.outputs_of(computer, self.encode(computer, rows, unseen)))

    def labels(self, width: int) -> list[str]:
        """The name of each unit: its class, or its place where more units than classes were asked for. All differ."""
        labels = self.output.labels(width)
        return [
            free_name("NULL" if k == 0 else f"(unit {k})", labels) if label is None else label
            for k, label in enumerate(labels)
        ]

    def answer_form(self, width: int) -> tuple[list[str], str]:
        """(labels, a template for the JSON of their probabilities): json.dumps of each row would take most of the time."""
        if width not in self._answer_forms:
            labels = self.labels(width)
            names = (json.dumps(label).replace("%", "%%") for label in labels)
            self._answer_forms[width] = labels, "{" + ", ".join(f"{name}: %s" for name in names) + "}"
        return self._answer_forms[width]

    @functools.cached_property
    def _answer_forms(self) -> dict[int, tuple[list[str], str]]:
        return {}

    def to_keras(self) -> dict[str, Any]:
        """What the trainer needs to build the model that takes raw columns (mop_udf/training/raw_model.py); JSON-able."""
        with _reading(self.what):
            return {
                "inputs": [column.raw_inputs() for column in self.inputs],
                "output": self.output.to_keras(),
                "classes": not self.regression,
            }

    @property
    def answer_columns(self) -> list[tuple[str, str]]:
        """(name, SQL type) of the columns of answers in a table."""
        return [("prediction", self.prediction_type), ("probability", "double precision"), ("probabilities", "jsonb")]

    @property
    def prediction_type(self) -> str:
        """The SQL type of predictions in a table: of the target, if it is one of PostgreSQL's own plain types."""
        if self.regression:
            return "double precision"
        sql_type = self.output.sql_type
        plain = ("smallint", "integer", "bigint", "numeric", "boolean", "text", "date", "uuid")
        return sql_type if sql_type in plain and self.output.classes is not None else "text"


def obstacle(inputs: Sequence[Column], architecture: str, weight_bytes: int) -> str | None:
    """Why a session cannot compute a net by itself; None where it can. `architecture`: JSON."""
    if any(column.needs_trainer for column in inputs):
        return "columns that a trainer decodes"
    return forward.obstacle(architecture, weight_bytes)


def computed_by(row: Mapping[str, Any]) -> str:
    """What computes a version, from the texts of its row: 'backend', or 'trainer: ' and the reason."""
    if weights.Reference.read(row["reference"]) is not None:
        return "trainer: weights in parts"
    try:
        if CustomCode.of_details(row["details"], "") is not None:
            return "trainer: custom code"
        inputs = transform_from_json(json.loads(row["transform"])).inputs
        mixture = Mixture.read(row["arch"], row["bytes"])
        if mixture is None:
            reason = obstacle(inputs, row["arch"], row["bytes"])
        else:
            reason = None if mixture.net is None else obstacle(inputs, mixture.net, mixture.net_bytes)
    except (MopError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        reason = "it cannot be read"
    return "backend" if reason is None else f"trainer: {reason}"


def _reading(what: str) -> AbstractContextManager[None]:
    """An error in what the model's row stores, perhaps by another role's hand, becomes an error for the caller."""
    return understood(f"{what} cannot be used: its transform does not suit its net")


def answers(model: NamedModel, outputs: np.ndarray) -> list[Answer]:
    """The answers of the outputs of many rows."""
    if model.regression:
        return [(_number_text(v) if math.isfinite(v) else None, None, None) for v in outputs[:, 0].tolist()]
    (labels, template), best = model.answer_form(outputs.shape[1]), model.output.predicted(outputs)
    finite = np.isfinite(outputs.sum(1)).tolist()
    return [
        (labels[place], row[place], template % tuple(row)) if is_finite else (None, None, None)
        for row, place, is_finite in zip(outputs.tolist(), best.tolist(), finite)
    ]


def answer_arrays(model: NamedModel, outputs: np.ndarray) -> list[str | None]:
    """The answers of the outputs of many rows, as texts of three arrays: of predictions, probabilities, and probabilities as
    JSON; a regression has the first alone. PostgreSQL reads such a text in half the time of a list."""
    if model.regression:
        values = outputs[:, 0].tolist()
        return [_array(_number_text(v) if math.isfinite(v) else "NULL" for v in values), None, None]
    width = outputs.shape[1]
    labels, template = model.answer_form(width)
    labels, template = [_quoted(label) for label in labels], _quoted(template)
    finite = np.isfinite(outputs.sum(1))
    predictions, probabilities, texts = ([], [], [])  # type: tuple[list[str], list[str], list[str]]
    step = max(1, MOST_TEXTS // width)
    for start in range(0, len(outputs), step):
        part, is_finite = outputs[start : start + step], finite[start : start + step]
        best, numbers = model.output.predicted(part), list(map(repr, part.ravel().tolist()))
        highest = (best + np.arange(len(part)) * width).tolist()
        if is_finite.all():
            predictions += [labels[place] for place in best.tolist()]
            probabilities += [numbers[place] for place in highest]
            texts.append(",".join([template] * len(part)) % tuple(numbers))
            continue
        for row, (place, high, is_known) in enumerate(zip(best.tolist(), highest, is_finite.tolist())):
            predictions.append(labels[place] if is_known else "NULL")
            probabilities.append(numbers[high] if is_known else "NULL")
            texts.append(template % tuple(numbers[row * width : (row + 1) * width]) if is_known else "NULL")
    return [_array(predictions), _array(probabilities), _array(texts)]


def _array(elements: Iterable[str]) -> str:
    return f"{{{','.join(elements)}}}"


def _quoted(text: str) -> str:
    """An element of an array, in the text of the array."""
    escaped = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def _number_text(value: float) -> str:
    """The shortest text of exactly this double."""
    return repr(value).removesuffix(".0")


class RowReader:
    """The rows of a table, view or query, as a model reads them."""

    def __init__(self, db: Database, source: str | None, model: RowInputs, answers: bool = True) -> None:
        """Raises MopError where a column has a type that the model cannot read, or is missing that `answers` need."""
        self.db, self.model = db, model
        part = None
        self._may_tell = not (isinstance(model, NamedModel) and isinstance(model.rows, SharedRows))
        if isinstance(model, NamedModel) and self._may_tell and source and not is_query(source):
            part = part_query(db, model.name, model.table, source)
        self.origin, self.columns, self.exact_types = origin_of(db, source, part)
        self.types, zones = model.types(), model.zones()
        self.zones = {name: zones.get(name, UTC) for name in self.types}
        self.missing = [name for name in self.types if name not in self.columns]
        for name, sql_type in self.types.items():
            if name in self.columns and family(self.columns[name]) != family(sql_type):
                raise MopError(
                    f'column "{name}" has type {self.columns[name]}, but {model.wanted} {sql_type}',
                    hint=f"Cast it: SELECT ..., {quote_identifier(name)}::{sql_type} FROM ...",
                    sqlstate="42804",
                )
        if answers:
            check_missing(model, self.missing)
        self._where = ""

    def draw(self, most: int) -> int | None:
        """Of more than `most` rows, read so many: a random draw, always of the same rows. Returns the number of all rows where
        some are left out."""
        with self.db.caller_path():
            (row,) = self.db.plpy.execute(f"SELECT pg_catalog.count(*) AS n FROM {self.origin} t")
        if row["n"] <= most:
            return None
        # an anonymous row: a cast of a table's row to text could be another role's function
        columns = ", ".join(f"t.{quote_identifier(name)}" for name in self.types if name in self.columns)
        place = f"pg_catalog.hashtextextended(ROW({columns})::pg_catalog.text, 1::bigint)"
        bound = math.ceil(most / row["n"] * DRAWN_OF)
        self._where = (
            f"WHERE ({place} OPERATOR(pg_catalog.&) {DRAWN_OF - 1}::bigint) OPERATOR(pg_catalog.<) {bound}::bigint"
        )
        return int(row["n"])

    def sql(self, extra: Sequence[str] = ()) -> str:
        """SQL: wires w0, w1, ... and further expressions e0, e1, ... of each row."""
        entries = [f"{wire} AS w{i}" for i, wire in enumerate(self.model.wires_sql())]
        entries += [f"__mop_e{i} AS e{i}" for i in range(len(extra))]
        return f"SELECT {', '.join(entries)} FROM {self.values_sql(extra, self._where)}"

    def values_sql(self, extra: Sequence[str] = (), where: str = "") -> str:
        """SQL after FROM: the rows, their columns with the types of training, and further expressions __mop_e0, ...

        `where`: a condition on the rows t of the source, or ''. The SQL may run with the caller's search_path. So each function
        and operator in it is qualified, or its arguments have exactly the types that it is declared with: PostgreSQL would
        prefer another role's function with these types.
        """
        inner = [
            (
                null_sql(sql_type)
                if name in self.missing
                else as_trained(f"t.{quote_identifier(name)}", self.columns[name], sql_type, self.zones[name])
            )
            + f" AS {quote_identifier(name)}"
            for name, sql_type in self.types.items()
        ]
        inner += [f"{expression} AS __mop_e{i}" for i, expression in enumerate(extra)]
        return f"(SELECT {', '.join(inner)} FROM {self.origin} t {where}) q"

    def chunks(self, extra: Sequence[str] = ()) -> Iterator[list[Any]]:
        """Chunks of rows."""
        # functions of a query or a view look up names by the caller's search_path, as a query's own names are
        with self.db.caller_path():
            cursor = self.db.plpy.cursor(self.sql(extra))
        try:
            while True:
                self.db.check_cancel()
                with self.db.caller_path():
                    rows = list(cursor.fetch(self.model.chunk_rows))
                if not rows:
                    return
                yield rows
        finally:
            cursor.close()

    def kept(self, names: Sequence[str]) -> list[str]:
        """The columns of the rows that the caller keeps. Raises MopError."""
        columns = []
        for name in names:
            column = self.db.find_column(self.columns, name)
            if column is None:
                raise MopError(
                    f'keep: column "{name}" does not exist', hint="The columns are " + ", ".join(self.columns) + "."
                )
            columns.append(column)
        return columns

    def tell_missing(self) -> None:
        """Tell the caller once which columns the rows do not have."""
        tell_missing(self.db, self.missing)

    def tell_unseen(self, unseen: dict[str, list[str]]) -> None:
        """Tell the caller once which categories training rows did not have."""
        lost = {name: labels for name in unseen if (labels := self._lost_labels(name))}
        tell_unseen(self.db, unseen, lost)

    def _lost_labels(self, name: str) -> list[str]:
        """The values of a category of an enum that are no labels of it any more: they have been renamed."""
        features = (f for column in self.model.inputs for f in column.features)
        feature = next((f for f in features if f.name == name and isinstance(f, Category)), None)
        if not self._may_tell or feature is None or feature.column not in self.exact_types:
            return []
        labels = self.db.execute(
            "SELECT enumlabel::text AS v FROM pg_enum WHERE enumtypid = to_regtype($1)",
            ["text"],
            [self.exact_types[feature.column]],
        )
        return sorted(set(feature.parameters["values"]).difference(row["v"] for row in labels)) if labels else []


def check_missing(model: RowInputs, missing: Sequence[str]) -> None:
    """Raises MopError where rows without the columns `missing` of training rows say nothing, or cannot be read."""
    types = model.types()
    needed = [name for column in model.inputs if not column.takes_null for name in column.sources]
    if not missing or len(missing) < len(types) and not set(needed) & set(missing):
        return
    first = next((name for name in missing if name in needed), missing[0])
    raise MopError(
        f'column "{first}" is missing, which {model.wanted}'
        if len(missing) < len(types)
        else f"the rows have none of the columns that {model.wanted}",
        detail=f"The columns are {', '.join(types)}.",
        sqlstate="42703",
    )


def tell_missing(db: Database, missing: Sequence[str]) -> None:
    """Tell the caller which columns of training rows are missing."""
    if missing:
        db.notice(
            f"{len(missing)} column{'s' * (len(missing) > 1)} of training rows "
            f"{'are' if len(missing) > 1 else 'is'} missing: {', '.join(missing)}",
            detail="NULL is taken instead.",
        )


def tell_unseen(db: Database, unseen: dict[str, list[str]], lost: dict[str, list[str]]) -> None:
    """Tell the caller of values that training rows did not have; `lost`: {column: labels of its enum that are gone}."""
    for name, values in unseen.items():
        labels = lost.get(name)
        db.notice(
            f'column "{name}" has values that training rows did not have',
            detail=f"For instance {', '.join(values)}. They are predicted as rare values."
            + (f" Its type has no label {', '.join(labels[:5])} any more: renamed?" if labels else ""),
            hint=f"SELECT {db.extension}.mop_retrain(...); learns the labels of today." if labels else None,
        )


def origin_of(
    db: Database, source: str | None, part: str | None = None
) -> tuple[Table | str, dict[str, str], dict[str, str]]:
    """(the table or view, or the query in brackets, {column: type without the domain}, {column: type}) of a source.

    `part`: our own query that the source stands for. Raises MopError. Writes nothing.
    """
    if part is not None or is_query(source):
        origin = in_brackets(part or str(source))
        with nullcontext() if part is not None else db.caller_path():
            # a text that is several statements in one form is a syntax error in the other, before anything of it runs
            db.plpy.prepare(f"SELECT * FROM (SELECT * FROM {origin} t) q")
            result = db.plpy.execute(db.plpy.prepare(f"SELECT * FROM {origin} t LIMIT 0"))
        names = result.colnames()
        for name in names:
            if names.count(name) > 1:
                raise MopError(
                    f'the query has two columns "{name}"',
                    hint=f"Name one of them otherwise: SELECT ... AS {quote_identifier(name + '_2')}.",
                    sqlstate="42701",
                )
        oids = dict(zip(names, result.coltypes()))
        plain = {name: plain_name(kind_of(db, oid)) for name, oid in oids.items()}
        # with -1, type char is not cut to one character
        exact = {name: db.value("SELECT format_type($1, -1)", ["oid"], [oid]) for name, oid in oids.items()}
        return origin, plain, exact
    table = db.input_table(source, "source table", rows=False)
    rows = db.execute(
        "SELECT attname, format_type(atttypid, -1) AS t FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 "
        "AND NOT attisdropped ORDER BY attnum",
        ["oid"],
        [table.oid],
    )
    return table, plain_types(db, table), {row["attname"]: row["t"] for row in rows}


def is_named(db: Database, table: Table) -> bool:
    """Whether a table has the columns of a named model."""
    return bool(db.value(f"SELECT {IS_MODEL} FROM pg_class c WHERE c.oid = $1", ["oid"], [table.oid]))


def table_of(db: Database, name: str | None) -> Table:
    """The table of a model. Raises MopError."""
    if name is None or not name.strip():
        raise MopError("no model is named", hint=f"SELECT * FROM {db.extension}.mop_models;")
    db.check_engine("a named model")
    table = db.input_table(name, "model", hint=f"SELECT * FROM {db.extension}.mop_models;", rows=False)
    _check_model(db, name, table)
    return table


def _check_model(db: Database, name: str, table: Table) -> None:
    """Raises MopError where a table is no model, or where to read it would run code of another role."""
    row = db.one(
        f"SELECT {IS_MODEL} AS is_model, {IS_SAFE} AS is_safe, NOT EXISTS (SELECT 1 FROM pg_class c WHERE c.relname = $2 "
        f"AND c.relnamespace = own.relnamespace AND c.relkind = 'r' AND NOT {IS_SAFE}) AS has_safe_parts "
        f"FROM pg_class c JOIN pg_class own ON own.oid = c.oid WHERE c.oid = $1",
        ["oid", "text"],
        [table.oid, table.name + weights.SUFFIX],
    )
    assert row is not None
    if not row["is_model"]:
        columns = db.columns(table)
        absent_columns = [column for column in TYPES if column not in columns]
        raise MopError(
            f'"{name}" is no model with versions: '
            + (
                f'it has no column "{absent_columns[0]}"'
                if absent_columns
                else "it is no plain table with the columns of one"
            ),
            hint=f"SELECT {db.extension}.mop_deploy('name', {quote_literal(name)}, mst_key); makes a model of a trained one.",
        )
    if not row["is_safe"]:
        raise _unsafe(f'model "{name}"', table)
    if not row["has_safe_parts"]:
        raise _unsafe(f'the table of the weights of model "{name}"', table)


def _unsafe(what: str, table: Table) -> MopError:
    return MopError(
        f"{what} of another role has policies, constraints, children, or indexes or statistics of expressions",
        detail="Their functions would run with your rights.",
        hint=f"CREATE TABLE my_model AS SELECT * FROM {table}; copies it, if you trust its owner.",
        sqlstate="42501",
    )
