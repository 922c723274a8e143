"""training_preprocessor_dl and validation_preprocessor_dl: source rows to packed, partitioned buffers."""

import secrets
from contextlib import contextmanager

import numpy as np

from pg_mop import packing, settings
from pg_mop.database import MopError, quote_identifier, split_names, sql_function

NUMBERS = {"smallint", "integer", "bigint", "numeric", "real", "double precision"}
STRINGS = {"text", "character varying", "character", '"char"', "name"}
DTYPES = {"int16": "smallint", "float32": "real"}
CHUNK_BYTES = 16 << 20  # of source rows in memory at a time
CHUNK_ROWS = 100_000


def convert_array_to_bytea(plpy, values, element):
    try:
        return packing.to_bytes(values, element)
    except MopError as error:
        problem = error
    plpy.error(f"convert_array_to_bytea: {problem.message}", hint=problem.hint, sqlstate=problem.sqlstate)


def convert_bytea_to_array(plpy, packed, element):
    try:
        return packing.from_bytes(packed, element)
    except MopError as error:
        problem = error
    plpy.error(f"convert_bytea_to_{element}_array: {problem.message}", sqlstate=problem.sqlstate)


# --- what is packed ---------------------------------------------------------------------------------


class Input:
    """An independent column: numeric arrays of the same dimensions in every row."""

    def __init__(self, name, dims):
        self.name, self.dims = name, dims
        self.elements = int(np.prod(dims))
        self.wire_bytes, self.packed_bytes = 20 + 8 * self.elements, 4 * self.elements

    @property
    def shape(self):
        return list(self.dims)

    def decode(self, values, factor):
        numbers = packing.decode(values, self.dims, "real", self.name)
        return numbers if factor is None else packing.scale(numbers, factor, self.name)


class Output:
    """A dependent column: classes to encode one-hot, or (`encoded` False) numbers that are packed as they are.

    Those are numeric arrays of `width` elements or, for regression, single numbers (`scalar`); `element` is their type
    in the buffer, a key of packing.WIRE.
    """

    def __init__(self, name, kind, encoded, width=None, element="smallint", scalar=False):
        self.name, self.kind, self.encoded, self.width = name, kind, encoded, width
        self.element, self.scalar = element, scalar
        self.class_kind = kind   # type of the class values
        self.null_code = -1      # code of NULL labels; -1: NULL is no class

    @property
    def shape(self):
        return [self.width]

    @property
    def packed_bytes(self):
        return packing.WIRE[self.element][1].itemsize * self.width

    @property
    def wire_bytes(self):
        return 20 + 4 * self.width + self.packed_bytes

    def decode(self, values):
        """Fetched values -> rows of numbers; None where a label is no known class."""
        if not self.encoded:
            return packing.decode(values, (self.width,), self.element, self.name)
        codes = np.array(values, np.int64)
        return packing.one_hot(codes, self.width) if codes.min() >= 0 else None

    @property
    def class_column(self):
        return quote_identifier(self.name + "_class_values")


class Kind:
    """A type, domains undone: its oid, its name for people, its name in SQL, its elements' name if an array."""

    def __init__(self, row):
        self.oid, self.shown, self.sql = int(row["oid"]), row["shown"], row["sql"]
        self.typtype, self.has_array = row["typtype"], row["has_array"]
        self.collatable, self.element, self.element_oid = row["collatable"], row["element"], row["typelem"]

    @property
    def numeric_array(self):
        return self.element in NUMBERS

    def like(self, other):
        """Whether labels of the two types may be compared."""
        return (self.oid == other.oid or {self.shown, other.shown} <= NUMBERS
                or {self.shown, other.shown} <= STRINGS)

    def collated(self, expression):
        """`expression` of this type, compared by code point where it is text."""
        return f'({expression} COLLATE pg_catalog."C")' if self.collatable else expression


def _kind(db, oid):
    return Kind(db.one(
        "WITH RECURSIVE b AS (SELECT $1::oid AS t UNION ALL SELECT d.typbasetype FROM b JOIN pg_type d "
        "ON d.oid = b.t WHERE d.typtype = 'd') "
        "SELECT t.oid, format_type(t.oid, NULL) AS shown, format_type(t.oid, -1) AS sql, t.typtype::text, "
        "t.typarray <> 0 AS has_array, t.typcollation <> 0 AS collatable, t.typelem, "
        "CASE WHEN t.typcategory = 'A' THEN format_type(t.typelem, NULL) END AS element "
        "FROM b JOIN pg_type t ON t.oid = b.t WHERE t.typtype <> 'd'", ["oid"], [oid]))


def _column_kind(db, table, column):
    return _kind(db, db.value("SELECT atttypid FROM pg_attribute WHERE attrelid = $1 AND attname = $2 "
                              "AND attnum > 0 AND NOT attisdropped", ["oid", "text"], [table.oid, column]))


def _equality(db, kind):
    """The equality operator of a type's default ordering as OPERATOR(schema.=); None where it has none."""
    row = db.one(
        "SELECT n.nspname, o.oprname FROM pg_opclass c JOIN pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree' "
        "JOIN pg_amop p ON p.amopfamily = c.opcfamily AND p.amoplefttype = c.opcintype "
        "AND p.amoprighttype = c.opcintype AND p.amopstrategy = 3 "
        "JOIN pg_operator o ON o.oid = p.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace "
        "JOIN pg_type t ON t.oid = c.opcintype "
        "WHERE c.opcdefault AND (c.opcintype = $1 "
        "OR c.opcintype = CASE $2 WHEN 'e' THEN 'anyenum'::regtype WHEN 'r' THEN 'anyrange'::regtype END "
        "OR EXISTS (SELECT 1 FROM pg_cast x WHERE x.castsource = $1 AND x.casttarget = c.opcintype "
        "AND x.castmethod = 'b' AND x.castcontext = 'i')) "
        "ORDER BY c.opcintype = $1 DESC, t.typispreferred DESC LIMIT 1", ["oid", "text"], [kind.oid, kind.typtype])
    return row and f'OPERATOR({quote_identifier(row["nspname"])}.{row["oprname"]})'


def _names(db, table, text, what):
    """The existing columns of `table` that the comma list `text` names."""
    columns = db.columns(table)
    wanted = split_names(text)
    if not wanted:
        raise MopError(f"invalid {what}: no column is named", hint="Name one column, or several with commas between.")
    found = []
    for name in wanted:
        column = db.find_column(columns, name)
        if column is None:
            raise MopError(f'invalid {what}: column "{name}" does not exist in {table}',
                           hint="Its columns are " + ", ".join(columns) + ".")
        found.append(column)
    db.check_readable(table, found)
    return found


def _first_dims(db, source, column, element):
    """The dimensions of the array in the first row; NULL and empty arrays are errors."""
    wire = db.value(f"SELECT array_send({quote_identifier(column)}::{element}[]) AS a FROM {source} LIMIT 1")
    return packing.dimensions(wire, column)


def _inputs(db, source, text):
    inputs = []
    for name in _names(db, source, text, "independent_varname"):
        kind = _column_kind(db, source, name)
        if not kind.numeric_array:
            raise MopError(f'invalid independent_varname: column "{name}" has type {kind.shown}, '
                           "not an array of numbers", hint="Give a column of type real[], integer[] or the like.")
        inputs.append(Input(name, _first_dims(db, source, name, "real")))
    return inputs


def _outputs(db, source, text, element):
    """The dependent columns. `element`: smallint for classes, real for the numbers of regression."""
    outputs = []
    for name in _names(db, source, text, "dependent_varname"):
        kind = _column_kind(db, source, name)
        if kind.numeric_array:
            dims = _first_dims(db, source, name, element)
            if len(dims) != 1:
                raise MopError(f'column "{name}" has arrays of {len(dims)} dimensions',
                               detail="A dependent column of arrays has vectors, one for each row: one dimension.")
            outputs.append(Output(name, kind, False, dims[0], element))
            continue
        if element == "real":
            if kind.shown not in NUMBERS:
                raise MopError(f'invalid dependent_varname: column "{name}" has type {kind.shown}, '
                               "neither a number nor an array of numbers",
                               hint="Leave out dependent_dtype => 'float32' to have its values as classes.")
            outputs.append(Output(name, kind, False, 1, element, scalar=True))
            continue
        if kind.element is not None or kind.typtype not in "ber" or not kind.has_array or not _equality(db, kind):
            raise MopError(f'invalid dependent_varname: column "{name}" has type {kind.shown}, '
                           "whose values cannot be ordered as classes",
                           hint=f'Cast it: SELECT ..., "{name}"::text FROM ...')
        outputs.append(Output(name, kind, True))
    return outputs


# --- the two functions ------------------------------------------------------------------------------


@sql_function
def training_preprocessor_dl(db, source_table, output_table, dependent_varname, independent_varname, buffer_size,
                             normalizing_const, num_classes, distribution_rules, dependent_dtype=None):
    """Pack `source_table`, shuffled by the seed, and write the classes it has to the summary."""
    element = DTYPES.get((dependent_dtype or "int16").strip().lower())
    if element is None:
        raise MopError(f"dependent_dtype must be 'int16' or 'float32', not {dependent_dtype!r}")
    if element == "real" and num_classes is not None:
        raise MopError("num_classes must be NULL where dependent_dtype is 'float32': numbers have no classes")
    config = settings.load(db)
    source = db.input_table(source_table)
    target, summary = db.output_table(output_table, "_summary")
    _check_request(buffer_size, distribution_rules)
    factor = packing.reciprocal(normalizing_const)
    with _steady_scans(db):
        inputs = _inputs(db, source, independent_varname)
        outputs = _outputs(db, source, dependent_varname, element)
        widths = _check_num_classes(num_classes, outputs)
        _create_summary(db, summary, inputs, outputs)
        _write_summary(db, summary, source_table, output_table, inputs, outputs,
                       1.0 if factor is None else normalizing_const,
                       [_class_list(source, output, width) for output, width in zip(outputs, widths)])
        for output, width in zip(outputs, widths):
            if output.encoded:
                _read_classes(db, summary, output, width)
        given = num_classes is not None or any(output.encoded for output in outputs)
        seed = config["seed"] if config["seed"] is not None else secrets.randbits(31)
        _pack(db, source, target, summary, inputs, outputs, buffer_size, config["segments"], factor,
              [output.width for output in outputs] if given else [], seed)


@sql_function
def validation_preprocessor_dl(db, source_table, output_table, dependent_varname, independent_varname,
                               training_preprocessor_table, buffer_size, distribution_rules):
    """Pack `source_table` in scan order with the classes, widths and constant of a packed training table."""
    config = settings.load(db)
    source = db.input_table(source_table)
    target, summary = db.output_table(output_table, "_summary")
    _check_request(buffer_size, distribution_rules)
    training = _Training(db, training_preprocessor_table)
    factor = packing.reciprocal(training.constant)
    with _steady_scans(db):
        inputs = _inputs(db, source, independent_varname)
        outputs = _outputs(db, source, dependent_varname, training.element)
        training.match(inputs, outputs)
        _create_summary(db, summary, inputs, outputs)
        _write_summary(db, summary, source_table, output_table, inputs, outputs,
                       1.0 if factor is None else training.constant,
                       [f"(SELECT t.{quote_identifier(column)} FROM {training.summary} t LIMIT 1)"
                        if column and output.encoded else None
                        for output, column in zip(outputs, training.class_columns)])
        _pack(db, source, target, summary, inputs, outputs, buffer_size, config["segments"], factor,
              training.num_classes, None)


def _check_request(buffer_size, distribution_rules):
    if buffer_size is not None and buffer_size <= 0:
        raise MopError(f"buffer size must be positive or NULL, not {buffer_size}")
    if distribution_rules is not None and distribution_rules.strip().lower() != "all_segments":
        raise MopError(f'invalid distribution_rules "{distribution_rules}"',
                       detail="Plain PostgreSQL has no segments of its own to choose from: pg_mop makes one "
                              "partition per segment.",
                       hint="Leave distribution_rules out, and choose their number: SET pg_mop.segments = 4;")


def _check_num_classes(num_classes, outputs):
    """The requested width per output, None where the data decide."""
    if num_classes is None:
        return [None] * len(outputs)
    if len(num_classes) != len(outputs):
        raise MopError(f"num_classes has {len(num_classes)} elements, but dependent_varname names "
                       f"{len(outputs)} columns",
                       hint="Give one number per dependent column, NULL to count its classes.")
    for value in num_classes:
        if isinstance(value, list) or (value is not None and not 1 <= value <= packing.MAX_WIDTH):
            raise MopError(f"invalid num_classes: {value} is no number of classes from 1 to {packing.MAX_WIDTH}")
    return num_classes


@contextmanager
def _steady_scans(db):
    """Scan tables in the same order every time: no synchronized and no parallel scans.

    Nor are plans made for particular parameters: the planner would copy a whole buffer, twice.
    """
    wanted = {"synchronize_seqscans": "off", "max_parallel_workers_per_gather": "0",
              "plan_cache_mode": "force_generic_plan"}
    before = {name: value for name in wanted if (value := db.setting(name)) is not None}

    def apply(values):
        for name, value in values.items():
            db.execute("SELECT set_config($1, $2, true)", ["text", "text"], [name, value])

    apply({name: wanted[name] for name in before})
    try:
        yield
    finally:
        apply(before)


# --- classes and the summary ------------------------------------------------------------------------


def _class_list(source, output, width):
    """SQL for the distinct labels as an array: NULL first, ascending, padded with NULL up to `width`."""
    if not output.encoded:
        return None
    kind = output.kind
    value, ordered = kind.collated(f"s.{quote_identifier(output.name)}::{kind.sql}"), kind.collated("d.v")
    classes = (f"(SELECT array_agg(d.v ORDER BY {ordered} NULLS FIRST) AS a "
               f"FROM (SELECT DISTINCT {value} AS v FROM {source} s) d)")
    if width is None:
        return f"(SELECT c.a::{kind.sql}[] FROM {classes} c)"
    return (f"(SELECT c.a::{kind.sql}[] || array_fill(NULL::{kind.sql}, ARRAY[greatest({int(width)} - "
            f"cardinality(c.a), 0)]) FROM {classes} c)")


def _create_summary(db, summary, inputs, outputs):
    _packed_columns(inputs, outputs)
    classes = "".join(f"{output.class_column} {output.class_kind.sql if output.encoded else 'text'}[], "
                      for output in outputs)
    db.execute(f"CREATE TABLE {summary} (source_table text, output_table text, dependent_varname text[], "
               f"independent_varname text[], dependent_vartype text[], {classes}buffer_size integer, "
               "normalizing_const real, num_classes integer[], distribution_rules text, "
               f"__internal_gpu_config__ text{', dependent_dtype text' if _is_regression(outputs) else ''})")


def _is_regression(outputs):
    return any(output.element == "real" for output in outputs)


def _write_summary(db, summary, source_table, output_table, inputs, outputs, constant, class_lists):
    """Insert the one row; buffer_size and num_classes follow once they are known."""
    db.execute(f"INSERT INTO {summary} SELECT $1, $2, $3, $4, $5, {''.join((c or 'NULL') + ', ' for c in class_lists)}"
               f"NULL, $6, NULL, 'all_segments', 'all_segments'{', $$float32$$' if _is_regression(outputs) else ''}",
               ["text", "text", "text[]", "text[]", "text[]", "real"],
               [source_table, output_table, [o.name for o in outputs], [i.name for i in inputs],
                [o.kind.shown for o in outputs], constant])


def _read_classes(db, summary, output, requested):
    """Set width and NULL's code from the classes in the summary; checks the requested width."""
    row = db.one(f"SELECT cardinality(c) AS width, c[array_lower(c, 1)] IS NULL AS null_first "
                 f"FROM (SELECT {output.class_column} AS c FROM {summary}) s")
    output.width, output.null_code = row["width"], 0 if row["null_first"] else -1
    if requested is not None and output.width > requested:
        raise MopError(f'num_classes value too small: {requested} for column "{output.name}", '
                       f'which has {output.width} classes', hint=f"Give {output.width} or more, or NULL.")
    if output.width > packing.MAX_WIDTH:
        raise MopError(f'column "{output.name}" has {output.width} classes, more than {packing.MAX_WIDTH}',
                       detail="Labels are encoded one-hot: every distinct value is a class.")


class _Training:
    """What validation takes from a packed training table and its summary."""

    def __init__(self, db, text):
        hint = "Make it with training_preprocessor_dl first."
        self.db = db
        self.packed = db.input_table(text, "training preprocessor table", hint)
        full = f"{quote_identifier(self.packed.schema)}.{quote_identifier(self.packed.name + '_summary')}"
        self.summary = db.input_table(full, "training preprocessor summary table", hint)
        self.summary_columns = db.columns(self.summary)
        for name in ("normalizing_const", "num_classes", "dependent_varname", "independent_varname",
                     "dependent_vartype"):
            if name not in self.summary_columns:
                raise MopError(f'expected column "{name}" in the training preprocessor summary table {self.summary}',
                               hint=hint)
        row = db.one("SELECT normalizing_const, num_classes, dependent_varname, independent_varname, "
                     f"dependent_vartype FROM {self.summary} LIMIT 1")
        self.constant, self.num_classes = row["normalizing_const"], row["num_classes"]
        self.outputs, self.inputs = row["dependent_varname"], row["independent_varname"]
        self.types = row["dependent_vartype"]
        self.element = "smallint"
        if "dependent_dtype" in self.summary_columns:
            self.element = DTYPES[db.value(f"SELECT dependent_dtype FROM {self.summary} LIMIT 1") or "int16"]
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
                raise MopError(f"{len(mine)} {what} columns are named, but training has {len(theirs)}",
                               detail=f"Those of training are {', '.join(theirs)}.")
        for column, name in zip(inputs, self.inputs):
            if column.shape != self._shape(name):
                raise MopError(f'column "{column.name}" has arrays of dimensions {packing.braces(column.shape)}, '
                               f'but those of training column "{name}" have {packing.braces(self._shape(name))}')
        for output, name, shown in zip(outputs, self.outputs, self.types):
            self._match_output(output, name, shown)

    def _match_output(self, output, name, shown):
        column = name + "_class_values"
        row = None
        if column in self.summary_columns:
            quoted = quote_identifier(column)
            row = self.db.one(f"SELECT cardinality({quoted}) AS width, {quoted}[array_lower({quoted}, 1)] IS NULL "
                              f"AS null_first FROM {self.summary} WHERE {quoted} IS NOT NULL LIMIT 1")
        self.class_columns.append(column if row else None)
        if row is None:
            width = self._shape(name)[0]
            if output.encoded or output.width != width:
                has = output.kind.shown if output.encoded else f"vectors of {output.width}"
                raise MopError(f'the labels of column "{output.name}" ({has}) are no subset of those of training '
                               f'column "{name}", which are vectors of {width} ({shown})')
            return
        kind = _kind(self.db, _column_kind(self.db, self.summary, column).element_oid)
        if not output.encoded or not output.kind.like(kind):
            raise MopError(f'the classes of column "{output.name}" ({output.kind.shown}) are no subset of those of '
                           f'training column "{name}", which are of type {kind.shown}',
                           hint=f"Cast the column to {kind.shown}.")
        output.class_kind = kind
        output.width, output.null_code = row["width"], 0 if row["null_first"] else -1


# --- packing ----------------------------------------------------------------------------------------


def _pack(db, source, target, summary, inputs, outputs, requested, segments, factor, num_classes, seed):
    """Create and fill the packed table, and complete the summary."""
    columns = inputs + outputs
    row_bytes = sum(c.packed_bytes for c in columns)
    if row_bytes > packing.MAX_PACKED_BYTES:
        raise MopError(f"one row of {source} would take {row_bytes} bytes, which no PostgreSQL row can hold")
    rows = db.value(f"SELECT count(*) FROM {source}")
    size = packing.buffer_rows(rows, segments, requested, [i.elements for i in inputs], row_bytes)
    partitions = _create_packed(db, target, inputs, outputs, segments)
    plans = {}
    written, buffer_id = 0, 0

    def write(count, values):
        nonlocal written, buffer_id
        segment = buffer_id % segments
        if segment not in plans:  # straight into the partition: routing would copy the buffer once more
            plans[segment] = db.plpy.prepare(
                f"INSERT INTO {partitions[segment]} VALUES ("
                + ", ".join(f"${i + 1}" for i in range(2 * len(columns) + 2)) + ")",
                ["int4"] + ["bytea"] * len(columns) + ["int4[]"] * len(columns) + ["int4"])
        db.plpy.execute(plans[segment], [segment, *values, *([count, *c.shape] for c in columns), buffer_id])
        written, buffer_id = written + count, buffer_id + 1

    buffers = packing.Buffers(size, len(columns))
    cursor = db.plpy.cursor(_scan(db, source, summary, inputs, outputs, seed))
    chunk = max(1, min(CHUNK_ROWS, CHUNK_BYTES // sum(c.wire_bytes for c in columns)))
    while True:
        fetched = cursor.fetch(chunk)
        if not len(fetched):
            break
        fetched = list(fetched)
        arrays = [column.decode([row[f"x{i}"] for row in fetched], factor) for i, column in enumerate(inputs)]
        for i, column in enumerate(outputs):
            arrays.append(column.decode([row[f"y{i}"] for row in fetched]))
            if arrays[-1] is None:
                _unknown_class(db, source, summary, column, seed)
        del fetched
        for count, values in buffers.add(arrays):
            write(count, values)
    cursor.close()
    if buffers.rows:
        write(*buffers.take())
    if written != rows:
        _changed(source)
    db.execute(f"UPDATE {summary} SET buffer_size = $1, num_classes = $2", ["int4", "int4[]"], [size, num_classes])
    if seed is not None:
        db.execute(f"COMMENT ON TABLE {target} IS 'packed by pg_mop, rows shuffled with seed {seed}'")


def _changed(source):
    raise MopError(f"the rows of {source} changed while they were being packed", sqlstate="40001",
                   hint="Try again, or use BEGIN ISOLATION LEVEL REPEATABLE READ.")


def _packed_columns(inputs, outputs):
    """The columns of the packed table; raises MopError where two would be equal or one too long."""
    columns = inputs + outputs
    names = ["__dist_key__"] + [c.name for c in columns] + [c.name + "_shape" for c in columns] + ["buffer_id"]
    for name in names:
        if names.count(name) > 1:
            raise MopError(f'the packed table would have two columns "{name}"',
                           detail="Its columns are " + ", ".join(names) + ".")
    for name in [c.name + "_shape" for c in inputs] + [c.name + "_class_values" for c in outputs]:
        if len(name.encode()) > packing.MAX_NAME:
            raise MopError(f'column name "{name}" is longer than {packing.MAX_NAME} bytes',
                           hint="Rename the source column in a view.")
    return names


def _create_packed(db, target, inputs, outputs, segments):
    """Create the packed table; returns its partitions, one per segment, quoted."""
    names = _packed_columns(inputs, outputs)
    width = len(inputs + outputs)
    types = ["integer"] + ["bytea"] * width + ["integer[]"] * width + ["integer"]
    schema, name = db.parse_name(target)
    db.execute(f"CREATE TABLE {target} (" + ", ".join(f"{quote_identifier(n)} {t}" for n, t in zip(names, types))
               + ', PRIMARY KEY ("__dist_key__", "buffer_id")) PARTITION BY LIST ("__dist_key__")')
    for column in inputs:
        db.execute(f"ALTER TABLE {target} ALTER {quote_identifier(column.name)} SET STORAGE EXTERNAL")
    partitions = []
    for segment in range(segments):
        partition = f"{quote_identifier(schema)}.{quote_identifier(packing.partition_name(name, segment, segments))}"
        if db.value("SELECT to_regclass($1) IS NOT NULL", ["text"], [partition]):
            raise MopError(f"table {partition} already exists", detail=f"It would be segment {segment} of {target}.",
                           hint=f"DROP TABLE {partition}; or choose another output table.", sqlstate="42P07")
        db.execute(f"CREATE TABLE {partition} PARTITION OF {target} FOR VALUES IN ({segment})")
        partitions.append(partition)
    return partitions


def _classes(summary, output):
    """SQL: the classes of an output, but NULL, with their codes."""
    return (f"(SELECT u.v, u.o::integer - 1 AS code FROM unnest((SELECT {output.class_column} FROM {summary})) "
            "WITH ORDINALITY AS u(v, o) WHERE u.v IS NOT NULL)")


def _same(db, output, label, value):
    """SQL: a label of the source equals a class value, whatever the caller's operators."""
    equals = (_equality(db, output.kind) if output.kind.oid == output.class_kind.oid
              else "OPERATOR(pg_catalog.=)")
    return f"{output.kind.collated(label)} {equals} {output.class_kind.collated(value)}"


def _scan(db, source, summary, inputs, outputs, seed):
    """SQL for the rows to pack, in order: x0.. and array labels in binary form, class codes (-1: none) else."""
    raw = ["row_number() OVER () AS n"]
    ordered, sent, joins = [], [], []
    for i, column in enumerate(inputs):
        raw.append(f"{quote_identifier(column.name)} AS x{i}")
        ordered.append(f"s.x{i}")
        sent.append(f"array_send(q.x{i}::real[]) AS x{i}")
    for i, output in enumerate(outputs):
        raw.append(f"{quote_identifier(output.name)}::{output.kind.sql} AS y{i}")
        if output.encoded:
            joins.append(f"LEFT JOIN {_classes(summary, output)} c{i} ON {_same(db, output, f's.y{i}', f'c{i}.v')}")
            ordered.append(f"CASE WHEN s.y{i} IS NULL THEN {output.null_code} ELSE coalesce(c{i}.code, -1) END AS y{i}")
            sent.append(f"q.y{i}")
        else:
            ordered.append(f"s.y{i}")
            array = f"ARRAY[q.y{i}]" if output.scalar else f"q.y{i}"
            sent.append(f"array_send({array}::{output.element}[]) AS y{i}")
    order = "ORDER BY s.n" if joins else ""  # a join may change the order of the scan
    if seed is not None:
        order = f"ORDER BY hashint8extended(s.n, {int(seed)}), s.n"
    return (f"SELECT {', '.join(sent)} FROM (SELECT {', '.join(ordered)} FROM (SELECT {', '.join(raw)} "
            f"FROM {source}) s {' '.join(joins)} {order}) q")


def _unknown_class(db, source, summary, output, seed):
    """Say which labels are no classes."""
    if seed is not None:  # the classes were read from these very rows
        _changed(source)
    label = f"s.{quote_identifier(output.name)}::{output.kind.sql}"
    null = "false" if output.null_code == 0 else f"{label} IS NULL"
    rows = db.execute(
        f"SELECT DISTINCT coalesce({label}::text, 'NULL') AS v FROM {source} s WHERE {null} OR ({label} IS NOT NULL "
        f"AND NOT EXISTS (SELECT 1 FROM {_classes(summary, output)} c WHERE {_same(db, output, label, 'c.v')})) "
        "ORDER BY 1 LIMIT 6")
    values = [row["v"] for row in rows]
    raise MopError(f'the classes of column "{output.name}" are no subset of those of training',
                   detail="Training has no class " + ", ".join(values[:5]) + (", ..." if len(values) > 5 else "."))
