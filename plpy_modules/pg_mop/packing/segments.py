"""Segments of Greenplum: rows are packed there, by all of them at once, and each buffer stays on its segment."""

from mop_udf.errors import raise_error
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.engines import greenplum
from pg_mop.packing import buffers, rows, unfit
from pg_mop.packing.placement import PRIMARY_KEY, columns_sql, external_sql

PIECE_BYTES = 16 << 20  # of source rows that a process of a segment turns into a piece of a buffer at a time
INVALID = "22023"  # SQLSTATE of what `pack_rows` refuses


class Segments:
    """The segments that a packed table is put on, as Places; `keys`: a number for each that Greenplum puts there, those
    of MADlib. `rules`, `gpu_config`: what the summary says of them, texts or lists of numbers."""

    copies = ()

    def __init__(self, db, distribution_rules):
        """`distribution_rules`: as the caller gave them (docs/contract/preprocess.md, section 6). Raises MopError."""
        self.db, known = db, greenplum.hosts(db)
        text = (distribution_rules or "all_segments").strip()
        self.rules = self.gpu_config = "all_segments"
        chosen = known
        if text.lower() != "all_segments":
            chosen = _with_gpus(db, known) if text.lower() == "gpu_segments" else _listed(db, known, text)
            self.rules = sorted(segment.dbid for segment in chosen)
            self.gpu_config = sorted(segment.content for segment in chosen)
        keys = greenplum.keys(db)
        self.keys = [keys[segment.content] for segment in chosen]

    def create(self, target, columns, external):
        """Create the packed table, as Places does."""
        self.db.execute(
            f"CREATE TABLE {target} ({columns_sql(columns)}, {PRIMARY_KEY}) WITH (appendonly = false) "
            f'DISTRIBUTED BY ("__dist_key__"); ALTER TABLE {target} {external_sql(external)}'
        )
        return [[target]] * len(self.keys), []

    def loaded(self, filled):
        """Nothing served for the loading alone."""

    def load(self, source, target, summary, inputs, outputs, size, factor, seed, training):
        """Fill the packed table by one statement: how many rows it has. Raises MopError."""
        db, columns = self.db, inputs + outputs
        piece = max(1, min(size, PIECE_BYTES // sum(c.wire_bytes for c in columns)))
        values = [self._packed(f"x{i}", column, factor) for i, column in enumerate(inputs)]
        values += [self._packed(f"y{i}", column, None) for i, column in enumerate(outputs)]
        joined = ", ".join(
            # (a piece that cannot be packed is NULL, and so is the buffer then)
            f"CASE WHEN count(v{i}) = count(*) THEN string_agg(v{i}, '' ORDER BY piece) END AS v{i}"
            for i in range(len(columns))
        )
        pieces = ", ".join(f"{value} AS v{i}" for i, value in enumerate(values))
        shapes = ", ".join(f"ARRAY[b.rows, {', '.join(map(str, column.shape))}]" for column in columns)
        keys = ", ".join(map(str, self.keys))
        try:
            db.execute(
                f"INSERT INTO {target} SELECT (ARRAY[{keys}])[1 + b.buffer % {len(self.keys)}], "
                f"{', '.join(f'b.v{i}' for i in range(len(columns)))}, {shapes}, b.buffer FROM (SELECT buffer, "
                f"sum(p.rows)::integer AS rows, {joined} FROM (SELECT (n / {size})::integer AS buffer, "
                f"(n % {size} / {piece})::integer AS piece, count(*) AS rows, {pieces} FROM "
                f"({self._numbered(source, summary, inputs, outputs, seed)}) q GROUP BY 1, 2) p GROUP BY buffer) b"
            )
        except db.plpy.SPIError as error:
            if getattr(error, "sqlstate", None) == unfit.OUT_OF_RANGE:
                rows.explain(db, source, columns, training)
            if getattr(error, "sqlstate", None) != INVALID:
                raise
            problem, told = str(error), error.spidata[1:3]
        else:
            return self._check(source, target, summary, inputs, outputs, seed, training)
        raise MopError(problem, *told)

    def _packed(self, value, column, factor):
        """SQL: the bytes of a piece of a column."""
        schema = self.db.extension
        if column.encoded:
            return f"{schema}.mop_one_hot(array_agg({value} ORDER BY n), {column.width})"
        return (
            f"{schema}.mop_pack_rows(array_agg({value} ORDER BY n), ARRAY{list(column.shape)}, "
            f"{quote_literal(column.wire)}, {quote_literal(column.element)}, "
            f"{'NULL' if factor is None else repr(float(factor))}, {quote_literal(column.name)})"
        )

    def _numbered(self, source, summary, inputs, outputs, seed):
        """SQL for the rows to pack: their number `n` in the order of the seed, or of the scan where that is None; x0..
        and array labels in binary form, class codes (-1: none) else.

        Of a table the order is that of where rows are; of a view, which does not know that, that of what they contain.
        A table's rows are numbered without their values, which stay on the segments.
        """
        names = [quote_identifier(column.name) for column in inputs + outputs]
        at = ["s.gp_segment_id", *["s.tableoid::regclass::text"] * self._is_partitioned(source), "s.ctid"]
        if source.kind == "r":
            mixed = f"md5(concat_ws('/', {int(seed or 0)}, {', '.join(at)}))::uuid"
            order = "k.u" if seed is not None else ", ".join(f"k.a{i}" for i in range(len(at)))
            places = ", ".join(f"{place} AS a{i}" for i, place in enumerate(at))
            numbers = (
                f"(SELECT k.u, row_number() OVER (ORDER BY {order}) - 1 AS n FROM "
                f"(SELECT {mixed} AS u, {places} FROM {source} s) k) m"
            )
        else:
            mixed = f"md5(concat_ws('/', {int(seed or 0)}, {', '.join(f's.{n}::text' for n in names)}))::uuid"
            numbers = None
        sent, joins = [f"array_send(r.x{i}::real[]) AS x{i}" for i in range(len(inputs))], []
        for i, output in enumerate(outputs):
            if output.encoded:
                joins.append(
                    f"LEFT JOIN {rows.classes(summary, output)} c{i} ON "
                    f"{rows.same(self.db, output, f'r.y{i}', f'c{i}.v')}"
                )
                sent.append(
                    f"CASE WHEN r.y{i} IS NULL THEN {output.null_code} ELSE coalesce(c{i}.code, -1) END AS y{i}"
                )
            else:
                array = f"ARRAY[r.y{i}]" if output.scalar else f"r.y{i}"
                sent.append(f"array_send({array}::{output.wire}[]) AS y{i}")
        raw = [f"{name} AS x{i}" for i, name in enumerate(names[: len(inputs)])]
        raw += [
            f"{name}::{output.kind.sql} AS y{i}" for i, (name, output) in enumerate(zip(names[len(inputs) :], outputs))
        ]
        if numbers is None:
            order = "ORDER BY s.u" if seed is not None else ""
            return (
                f"SELECT r.n, {', '.join(sent)} FROM (SELECT row_number() OVER ({order}) - 1 AS n, s.* FROM "
                f"(SELECT {mixed} AS u, {', '.join(raw)} FROM {source} s) s) r {' '.join(joins)}"
            )
        return (
            f"SELECT m.n, {', '.join(sent)} FROM {numbers} JOIN (SELECT {mixed} AS u, {', '.join(raw)} "
            f"FROM {source} s) r ON r.u = m.u {' '.join(joins)}"
        )

    def _is_partitioned(self, source):
        return self.db.value("SELECT EXISTS (SELECT 1 FROM pg_inherits WHERE inhparent = $1)", ["oid"], [source.oid])

    def _check(self, source, target, summary, inputs, outputs, seed, training):
        """How many rows are packed. Raises MopError where a value could not be."""
        columns = inputs + outputs
        bad = ", ".join(f"bool_or({quote_identifier(c.name)} IS NULL) AS b{i}" for i, c in enumerate(columns))
        found = self.db.one(
            f"SELECT {bad}, sum({quote_identifier(columns[0].name + '_shape')}[1]) AS rows FROM {target}"
        )
        for i, column in enumerate(columns):
            if found[f"b{i}"]:
                rows.refuse(self.db, source, summary, column, seed, training)
        return int(found["rows"] or 0)


def pack_rows(plpy, values, dims, wire, element, factor, column):
    """The bytes of a column of rows (arrays in binary form, of type `wire`), as they are in a buffer of `element`; None
    where a number does not fit. On a segment."""
    try:
        numbers = buffers.decode(values, tuple(dims), wire, column)
        return buffers.fitting(numbers, element, factor, column)
    except MopError as error:
        problem = error
    raise_error(plpy, problem.message, INVALID, problem.detail, problem.hint)


def one_hot(codes, width):
    """The bytes of class codes as one-hot vectors; None where one is no class. On a segment."""
    return None if min(codes) < 0 else buffers.one_hot(codes, width).tobytes()


def _with_gpus(db, known):
    """The segments on hosts that have a GPU. Raises MopError."""
    chosen = [segment for segment in known if greenplum.machine(db, segment.host)["gpus"]]
    if not chosen:
        raise MopError("No GPUs configured on hosts", hint="Call with distribution_rules => 'all_segments'.")
    return chosen


def _listed(db, known, text):
    """The segments whose dbid a table lists. Raises MopError."""
    table = db.input_table(
        text, "distribution rules table", hint="It is 'all_segments', 'gpu_segments' or a table with a column dbid."
    )
    if "dbid" not in db.columns(table):
        raise MopError(f'distribution rules table "{text}" must contain the column "dbid"')
    listed = [row["dbid"] for row in db.execute(f"SELECT dbid FROM {table}")]
    by_id = {segment.dbid: segment for segment in known}
    hint = "SELECT dbid, hostname FROM gp_segment_configuration WHERE role = 'p' AND content >= 0;"
    for dbid in listed:
        if listed.count(dbid) > 1:
            raise MopError(f'duplicate dbid {dbid} in distribution rules table "{text}"', hint=hint)
        if dbid not in by_id:
            raise MopError(
                f'invalid dbid {dbid} in distribution rules table "{text}": it is no primary segment', hint=hint
            )
    return [segment for segment in known if segment.dbid in listed]
