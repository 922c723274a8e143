"""training_preprocessor_dl and validation_preprocessor_dl: source rows to packed, partitioned buffers (docs/contract/preprocess.md)."""

import secrets

from mop_udf.errors import raise_error
from pg_mop.backend import settings
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import quote_identifier
from pg_mop.packing import buffers, columns, table
from pg_mop.packing import summary as summaries
from pg_mop.packing.rows import steady_scans
from pg_mop.packing.shards import places_of
from pg_mop.packing.training import ELEMENTS, Training


@sql_function
def training_preprocessor_dl(
    db,
    source_table,
    output_table,
    dependent_varname,
    independent_varname,
    buffer_size,
    normalizing_const,
    num_classes,
    distribution_rules,
    dependent_dtype=None,
):
    """Pack `source_table`, shuffled by the seed, and write the classes it has to the summary."""
    element = ELEMENTS.get((dependent_dtype or "int16").strip().lower())
    if element is None:
        raise MopError(f"dependent_dtype must be 'int16' or 'float32', not {dependent_dtype!r}")
    if element == "real" and num_classes is not None:
        raise MopError("num_classes must be NULL where dependent_dtype is 'float32': numbers have no classes")
    config = settings.load(db)
    source = db.input_table(source_table)
    target, summary = db.output_table(output_table, "_summary")
    _check_request(db, buffer_size, distribution_rules)
    factor = buffers.reciprocal(normalizing_const)
    places = places_of(db, source, config, distribution_rules)
    with steady_scans(db):
        inputs = columns.independent(db, source, independent_varname)
        outputs = columns.dependent(db, source, dependent_varname, element)
        widths = _check_num_classes(num_classes, outputs)
        table.column_names(inputs, outputs)  # raises where two would be equal
        summaries.create(db, summary, inputs, outputs, places)
        summaries.write(
            db,
            summary,
            source_table,
            output_table,
            inputs,
            outputs,
            1.0 if factor is None else normalizing_const,
            [summaries.class_list(source, output, width) for output, width in zip(outputs, widths)],
            places,
        )
        for output, width in zip(outputs, widths):
            if output.encoded:
                summaries.read_classes(db, summary, output, width)
        given = num_classes is not None or any(output.encoded for output in outputs)
        seed = config["seed"] if config["seed"] is not None else secrets.randbits(31)
        table.pack(
            db,
            source,
            target,
            summary,
            inputs,
            outputs,
            buffer_size,
            places,
            factor,
            [output.width for output in outputs] if given else [],
            seed,
        )


@sql_function
def validation_preprocessor_dl(
    db,
    source_table,
    output_table,
    dependent_varname,
    independent_varname,
    training_preprocessor_table,
    buffer_size,
    distribution_rules,
):
    """Pack `source_table` in scan order with the classes, widths and constant of a packed training table."""
    config = settings.load(db)
    source = db.input_table(source_table)
    target, summary = db.output_table(output_table, "_summary")
    _check_request(db, buffer_size, distribution_rules)
    training = Training(db, training_preprocessor_table)
    factor = buffers.reciprocal(training.constant)
    places = places_of(db, source, config, distribution_rules)
    with steady_scans(db):
        inputs = columns.independent(db, source, independent_varname)
        outputs = columns.dependent(db, source, dependent_varname, training.element)
        training.match(inputs, outputs)
        table.column_names(inputs, outputs)  # raises where two would be equal
        summaries.create(db, summary, inputs, outputs, places)
        summaries.write(
            db,
            summary,
            source_table,
            output_table,
            inputs,
            outputs,
            1.0 if factor is None else training.constant,
            [
                f"(SELECT t.{quote_identifier(column)} FROM {training.summary} t LIMIT 1)"
                if column and output.encoded
                else None
                for output, column in zip(outputs, training.class_columns)
            ],
            places,
        )
        table.pack(
            db,
            source,
            target,
            summary,
            inputs,
            outputs,
            buffer_size,
            places,
            factor,
            training.num_classes,
            None,
            training.packed,
        )


def _check_request(db, buffer_size, distribution_rules):
    if buffer_size is not None and buffer_size <= 0:
        raise MopError(f"buffer size must be positive or NULL, not {buffer_size}")
    if not db.has_segments and (distribution_rules or "").strip().lower() not in ("", "all_segments"):
        db.notice(
            f'distribution_rules "{distribution_rules}" is ignored',
            detail="Plain PostgreSQL has no segments of its own to choose from: pg_mop makes one partition per "
            "segment.",
            hint="Choose their number: SET pg_mop.segments = 4;",
        )


def _check_num_classes(num_classes, outputs):
    """The requested width per output, None where the data decide."""
    if num_classes is None:
        return [None] * len(outputs)
    if len(num_classes) != len(outputs):
        raise MopError(
            f"num_classes has {len(num_classes)} elements, but dependent_varname names {len(outputs)} columns",
            hint="Give one number per dependent column, NULL to count its classes.",
        )
    for value in num_classes:
        if isinstance(value, list) or (value is not None and not 1 <= value <= summaries.MAX_WIDTH):
            raise MopError(f"invalid num_classes: {value} is no number of classes from 1 to {summaries.MAX_WIDTH}")
    return num_classes


def convert_array_to_bytea(plpy, values, element):
    try:
        return buffers.to_bytes(values, element)
    except MopError as error:
        problem = error
    raise_error(plpy, f"convert_array_to_bytea: {problem.message}", problem.sqlstate, hint=problem.hint)


def convert_bytea_to_array(plpy, packed, element):
    try:
        return buffers.from_bytes(packed, element)
    except MopError as error:
        problem = error
    raise_error(plpy, f"convert_bytea_to_{element}_array: {problem.message}", problem.sqlstate)
