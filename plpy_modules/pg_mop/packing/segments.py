"""Segments of Greenplum: all segments pack their rows at once, and each buffer stays on its segment."""

from __future__ import annotations

from typing import Any

from mop_udf.errors import raise_error
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError, error_of
from pg_mop.backend.quoting import quote_identifier
from pg_mop.columns import Transform, binary
from pg_mop.columns.out_of_range import OUT_OF_RANGE
from pg_mop.engines import greenplum
from pg_mop.engines.greenplum import Primary
from pg_mop.packing import rows
from pg_mop.packing.partitions import PRIMARY_KEY, columns_sql, external_sql
from pg_mop.packing.placement import Entry

PIECE_BYTES = 16 << 20  # of source rows that a process of a segment turns into a piece of a buffer at a time
INVALID = "22023"  # SQLSTATE of the errors of `pack_rows`


class SegmentPlacement:
    """Greenplum's segments as the placement of a packed table; the interface is that of :class:`ServerPlacement`.

    `keys`: for each segment a number that Greenplum's hash puts there, the same as MADlib's. `rules`, `gpu_config`: the
    values for the summary, texts or lists of numbers.
    """

    distributed = False  # by Citus
    copies: tuple[()] = ()

    def __init__(self, db: Database, distribution_rules: str | None) -> None:
        """`distribution_rules`: as the caller gave them (docs/contract/preprocess.md, section 6). Raises MopError."""
        self.db, primaries = db, greenplum.hosts(db)
        text = (distribution_rules or "all_segments").strip()
        self.rules: str | list[int] = "all_segments"
        self.gpu_config: str | list[int] = "all_segments"
        segments = primaries
        if text.lower() != "all_segments":
            segments = _with_gpus(db, primaries) if text.lower() == "gpu_segments" else _listed(db, primaries, text)
            self.rules = sorted(segment.dbid for segment in segments)
            self.gpu_config = sorted(segment.content for segment in segments)
        keys = greenplum.keys(db)
        self.keys = [keys[segment.content] for segment in segments]

    def create(
        self, target: str, columns: list[tuple[str, str]], external: list[str]
    ) -> tuple[list[list[str]], list[Entry]]:
        """Create the packed table, as ServerPlacement does."""
        self.db.execute(
            f"CREATE TABLE {target} ({columns_sql(columns)}, {PRIMARY_KEY}) WITH (appendonly = false) "
            f'DISTRIBUTED BY ("__dist_key__"); ALTER TABLE {target} {external_sql(external)}'
        )
        return [[target]] * len(self.keys), []

    def loaded(self, filled: list[list[str]]) -> None:
        """No table was made for the loading alone."""

    def load(
        self,
        source: Table,
        target: str,
        summary: str,
        transform: Transform,
        size: int,
        seed: int | None,
        training: str | None,
    ) -> int:
        """Fill the packed table by one statement; returns the number of rows. Raises MopError."""
        db, columns = self.db, transform.columns
        piece = max(1, min(size, PIECE_BYTES // sum(c.wire_bytes for c in columns)))
        values = [column.segment_sql(f"x{i}", db.extension) for i, column in enumerate(columns)]
        buffers_sql = ", ".join(
            # a piece that cannot be packed is NULL, and then its buffer is NULL
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
                f"sum(p.rows)::integer AS rows, {buffers_sql} FROM (SELECT (n / {size})::integer AS buffer, "
                f"(n % {size} / {piece})::integer AS piece, count(*) AS rows, {pieces} FROM "
                f"({self._numbered(source, summary, transform, seed)}) q GROUP BY 1, 2) p GROUP BY buffer) b"
            )
        except db.plpy.SPIError as error:
            if getattr(error, "sqlstate", None) == OUT_OF_RANGE:
                rows.explain_out_of_range(db, source, summary, transform, training)
            if getattr(error, "sqlstate", None) != INVALID:
                raise
            problem = error_of(error)
        else:
            return self._check(source, target, summary, transform, training)
        raise problem

    def _numbered(self, source: Table, summary: str, transform: Transform, seed: int | None) -> str:
        """SQL for the rows to pack: `n`, their number in the order of the seed (None: of the scan), and x0, x1, ..., the
        wires of the transform's columns.

        The order of a table's rows follows from their positions; a view has no positions, so its order follows from the
        rows' contents. A table's rows are numbered without their values, which stay on the segments.
        """
        columns = transform.columns
        at = ["s.gp_segment_id", *["s.tableoid::regclass::text"] * self._is_partitioned(source), "s.ctid"]
        if source.kind == "r":
            hash_sql = f"md5(concat_ws('/', {int(seed or 0)}, {', '.join(at)}))::uuid"
            order = "k.u" if seed is not None else ", ".join(f"k.a{i}" for i in range(len(at)))
            positions = ", ".join(f"{position} AS a{i}" for i, position in enumerate(at))
            numbers = (
                f"(SELECT k.u, row_number() OVER (ORDER BY {order}) - 1 AS n FROM "
                f"(SELECT {hash_sql} AS u, {positions} FROM {source} s) k) m"
            )
        else:
            texts = ", ".join(f"s.{quote_identifier(column.name)}::text" for column in columns)
            hash_sql = f"md5(concat_ws('/', {int(seed or 0)}, {texts}))::uuid"
            numbers = None
        wires, joins = [], []
        for i, column in enumerate(columns):
            join, value = column.lookup(self.db, summary, f"r.x{i}", f"c{i}")
            joins += [join] if join else []
            wires.append(f"{column.wire_sql(value)} AS x{i}")
        raw = ", ".join(f"{column.raw_sql()} AS x{i}" for i, column in enumerate(columns))
        if numbers is None:
            order = "ORDER BY s.u" if seed is not None else ""
            return (
                f"SELECT r.n, {', '.join(wires)} FROM (SELECT row_number() OVER ({order}) - 1 AS n, s.* FROM "
                f"(SELECT {hash_sql} AS u, {raw} FROM {source} s) s) r {' '.join(joins)}"
            )
        return (
            f"SELECT m.n, {', '.join(wires)} FROM {numbers} JOIN (SELECT {hash_sql} AS u, {raw} "
            f"FROM {source} s) r ON r.u = m.u {' '.join(joins)}"
        )

    def _is_partitioned(self, source: Table) -> bool:
        return self.db.value("SELECT EXISTS (SELECT 1 FROM pg_inherits WHERE inhparent = $1)", ["oid"], [source.oid])

    def _check(self, source: Table, target: str, summary: str, transform: Transform, training: str | None) -> int:
        """The number of packed rows. Raises MopError where a value could not be packed."""
        columns = transform.columns
        bad = ", ".join(f"bool_or({quote_identifier(c.name)} IS NULL) AS b{i}" for i, c in enumerate(columns))
        (row,) = self.db.execute(
            f"SELECT {bad}, sum({quote_identifier(columns[0].name + '_shape')}[1]) AS rows FROM {target}"
        )
        for i, column in enumerate(columns):
            if row[f"b{i}"]:
                rows.refuse(self.db, source, summary, column, training)
        return int(row["rows"] or 0)


def pack_rows(
    plpy: Any, values: list[bytes], dims: list[int], wire: str, element: str, factor: float | None, column: str
) -> bytes | None:
    """On a segment: the bytes of arrays in binary form as elements of a buffer; None where a number does not fit.

    `values`: of the rows, each with the dimensions `dims`; `wire`: their SQL type; `element`: of the buffer.
    """
    try:
        numbers = binary.packable(binary.read(values, dims, wire, column), element, factor, column)
        return None if numbers is None else numbers.tobytes()
    except MopError as error:
        problem = error
    raise_error(plpy, problem.message, INVALID, problem.detail, problem.hint)
    return None


def one_hot(codes: list[int], width: int) -> bytes | None:
    """On a segment: the bytes of class codes as one-hot vectors; None where a code is of no class."""
    return None if min(codes) < 0 else binary.one_hot(binary.np.array(codes), width).tobytes()


def _with_gpus(db: Database, primaries: list[Primary]) -> list[Primary]:
    """The segments on hosts that have a GPU. Raises MopError."""
    segments = [segment for segment in primaries if greenplum.machine(db, segment.host)["gpus"]]
    if not segments:
        raise MopError("No GPUs configured on hosts", hint="Call with distribution_rules => 'all_segments'.")
    return segments


def _listed(db: Database, primaries: list[Primary], text: str) -> list[Primary]:
    """The segments whose dbid a table lists. Raises MopError."""
    table = db.input_table(
        text, "distribution rules table", hint="It is 'all_segments', 'gpu_segments' or a table with a column dbid."
    )
    if "dbid" not in db.columns(table):
        raise MopError(f'distribution rules table "{text}" must contain the column "dbid"')
    dbids = [row["dbid"] for row in db.execute(f"SELECT dbid FROM {table}")]
    by_id = {segment.dbid: segment for segment in primaries}
    hint = "SELECT dbid, hostname FROM gp_segment_configuration WHERE role = 'p' AND content >= 0;"
    for dbid in dbids:
        if dbids.count(dbid) > 1:
            raise MopError(f'duplicate dbid {dbid} in distribution rules table "{text}"', hint=hint)
        if dbid not in by_id:
            raise MopError(
                f'invalid dbid {dbid} in distribution rules table "{text}": it is no primary segment', hint=hint
            )
    return [segment for segment in primaries if segment.dbid in dbids]
