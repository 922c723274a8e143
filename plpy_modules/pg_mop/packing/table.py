"""The packed table: created with a place for each segment, and filled from the source in one scan."""

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import MAX_NAME
from pg_mop.packing import buffers, rows, unfit
from pg_mop.packing.segments import Segments
from pg_mop.packing.summary import complete

CHUNK_BYTES = 16 << 20  # of source rows in memory at a time
CHUNK_ROWS = 100_000


def pack(db, source, target, summary, inputs, outputs, requested, places, factor, num_classes, seed, training=None):
    """Create and fill the packed table, and complete the summary.

    `places`: of :func:`pg_mop.packing.shards.places_of`; `seed` shuffles the rows; None: as they are scanned.
    `training`: the packed table (quoted) that validation rows are to be packed as. Raises MopError for labels and
    numbers that do not fit.
    """
    columns = inputs + outputs
    row_bytes = sum(c.packed_bytes for c in columns)
    if row_bytes > buffers.MAX_PACKED_BYTES:
        raise MopError(f"one row of {source} would take {row_bytes} bytes, which no PostgreSQL row can hold")
    count, segments = db.value(f"SELECT count(*) FROM {source}"), len(places.keys)
    size = buffers.buffer_rows(count, segments, requested, [i.elements for i in inputs], row_bytes)
    # straight into the partition: routing would copy the buffer once more
    width = len(columns)
    types = ["integer"] + ["bytea"] * width + ["integer[]"] * width + ["integer"]
    filled, copies = places.create(target, list(zip(column_names(inputs, outputs), types)), [i.name for i in inputs])
    written = (
        places.load(source, target, summary, inputs, outputs, size, factor, seed, training)
        if isinstance(places, Segments)
        else _load(db, source, summary, inputs, outputs, size, places, filled, types, factor, seed, training)
    )
    if written != count:
        rows.changed(source)
    complete(db, summary, size, num_classes, copies)
    places.loaded(filled)
    if seed is not None:
        db.execute(f"COMMENT ON TABLE {target} IS 'packed by pg_mop, rows shuffled with seed {seed}'")


def _load(db, source, summary, inputs, outputs, size, places, filled, types, factor, seed, training):
    """Fill the tables of the segments by one scan: how many rows there were."""
    columns, segments = inputs + outputs, len(places.keys)
    plans = {}
    written, buffer_id = 0, 0

    def write(rows_in, values):
        nonlocal written, buffer_id
        segment = buffer_id % segments
        for table in filled[segment]:
            if table not in plans:
                plans[table] = db.plpy.prepare(
                    places.INSERT.format(table, ", ".join(f"${i + 1}" for i in range(len(types)))), types
                )
            db.check_cancel()
            db.plpy.execute(
                plans[table], [places.keys[segment], *values, *([rows_in, *c.shape] for c in columns), buffer_id]
            )
        written, buffer_id = written + rows_in, buffer_id + 1

    gathered = buffers.Buffers(size, len(columns))
    cursor = db.plpy.cursor(rows.scan(db, source, summary, inputs, outputs, seed, places.distributed))
    chunk = max(1, min(CHUNK_ROWS, CHUNK_BYTES // sum(c.wire_bytes for c in columns)))
    while True:
        db.check_cancel()
        try:
            fetched = list(cursor.fetch(chunk))
        except db.plpy.SPIError as error:
            if getattr(error, "sqlstate", None) == unfit.OUT_OF_RANGE:
                rows.explain(db, source, columns, training)
            raise
        if not fetched:
            break
        arrays = [column.decode([row[f"x{i}"] for row in fetched], factor) for i, column in enumerate(inputs)]
        arrays += [column.decode([row[f"y{i}"] for row in fetched]) for i, column in enumerate(outputs)]
        for column, array in zip(columns, arrays):
            if array is None:
                rows.refuse(db, source, summary, column, seed, training)
        del fetched
        for buffer in gathered.add(arrays):
            write(*buffer)
    cursor.close()
    if gathered.rows:
        write(*gathered.take())
    return written


def column_names(inputs, outputs):
    """The columns of the packed table; raises MopError where two would be equal or one too long."""
    columns = inputs + outputs
    names = ["__dist_key__"] + [c.name for c in columns] + [c.name + "_shape" for c in columns] + ["buffer_id"]
    for name in names:
        if names.count(name) > 1:
            raise MopError(
                f'the packed table would have two columns "{name}"', detail="Its columns are " + ", ".join(names) + "."
            )
    for name in [c.name + "_shape" for c in inputs] + [c.name + "_class_values" for c in outputs]:
        if len(name.encode()) > MAX_NAME:
            raise MopError(
                f'column name "{name}" is longer than {MAX_NAME} bytes', hint="Rename the source column in a view."
            )
    return names
