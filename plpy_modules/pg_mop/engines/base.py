"""What differs between places where packed rows are, behind one small class."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MappingProxyType

from pg_mop.backend import settings
from pg_mop.backend.database import MopError, quote_identifier

AT_ONCE = 10  # buffers of labels that are fetched together

COPIES = (
    "__internal_copies__"  # column of a packed table's summary, JSON: [[segment, server or null, schema, table], ...]
)


@dataclass(frozen=True)
class Segment:
    """A horizontal part of a packed table: its `__dist_key__` (0 where there is none), rows, bytes, a fingerprint of
    its rows' versions; `server`: the name of the foreign server that holds it, None: the coordinator's own; `table`:
    what it is called there (quoted); `fingerprint_sql`: SQL for column `fingerprint` there; `copies`: of the same rows,
    on other servers, as Segments; `host_segment`: on Greenplum, the row of mop_host_segment whose segment has its trainer.

    Of a table of raw rows: a leaf partition, by a number; rows and bytes are estimates, and the fingerprint only tells
    that it is the same table."""

    key: int
    rows: int
    bytes: int
    fingerprint: str
    server: str | None
    table: str
    fingerprint_sql: str
    copies: tuple = ()
    host_segment: int | None = None

    def on(self, server):
        """This, or its copy, on a server (its name)."""
        return self.at([server])

    def at(self, servers):
        """This, or a copy of it, on one of some servers (their names). Raises LookupError where none has it."""
        for one in (self, *self.copies):
            if one.server in servers:
                return one
        raise LookupError(self.key)


class Engine(ABC):
    """One kind of place. It is found by looking at the packed tables (:func:`pg_mop.engines.find`).

    `several_servers`: segments may be on other servers. `away`: {name of a server that does not answer, for whose segments
    their copies may do: the MopError}.
    """

    several_servers = False
    away = MappingProxyType({})

    @abstractmethod
    def segments(self, packed):
        """The segments of a :class:`PackedTable` that have rows, by key."""

    def with_copies(self, packed, segments):
        """These segments of a packed table with the copies that there are of each. Raises MopError."""
        return segments

    def contents(self, wanted):
        """Digests of the rows of segments, or of copies of them, for a list of (packed table, Segment): they are equal
        where all values are. Raises MopError."""
        raise NotImplementedError  # there are no copies

    @abstractmethod
    def share(self, packed):
        """Keep writers from the segments of a packed table until the call ends, where the caller may."""

    def check_whole(self, beside):
        """The caller's transaction must be all there still, wherever parts of it are: `beside(sql)` gives the rows of a
        query in another session. Raises MopError."""
        return  # (here it is one session of one server, which ends as a whole)

    @abstractmethod
    def parts(self, raw):
        """The leaf partitions of a :class:`~pg_mop.inference.raw_table.RawTable`, as Segments."""

    @abstractmethod
    def first_row(self, table, columns):
        """The values of some SQL columns for any row of a packed or raw table; None where it has none."""

    def shapes(self, packed):
        """{column: shape of one example} of a packed table. Raises MopError where it is empty."""
        row = self.first_row(packed, packed.shape_columns())
        if row is None:
            raise MopError(f'"{packed.text}" is empty')
        return packed.shapes_of(row)

    def class_counts(self, packed):
        """How many rows of a packed table with one output have each class, in the order of the classes; of a single
        number, how many are 0 and 1, or None where some are neither."""
        from pg_mop.backend.arrays import np

        width, column = self.shapes(packed)[packed.outputs[0]][0], quote_identifier(packed.outputs[0])
        counts = np.zeros(max(2, width), "i8")
        for segment in self.segments(packed):
            for data in self._buffers(packed, segment, column):
                labels = np.frombuffer(data, packed.dtypes()[-1]).reshape(-1, width)
                if width == 1:
                    if not np.isin(labels, (0, 1)).all():
                        return None
                    labels = np.concatenate([labels == 0, labels == 1], axis=1)
                counts += labels.sum(0, dtype="i8")
        return counts.tolist()

    def _buffers(self, packed, segment, column):
        """The buffers of one column (quoted) of a segment, one after the other."""
        cursor = self.db.plpy.cursor(
            f"SELECT {column} AS data FROM {segment.table} WHERE {packed.of_segment(segment.key)}"
        )
        while rows := cursor.fetch(AT_ONCE):
            yield from (row["data"] for row in rows)
        cursor.close()

    def info(self, backend):
        """{"cores", "gpus"} of the coordinator's own server, where trainers are; `backend`: their framework."""
        return {"cores": settings.cores(), "gpus": settings.gpus(backend)}

    def check_gpus(self, backend):
        """Raises MopError where trainers have no GPU there."""
        if not settings.gpus(backend):
            raise settings.no_gpu(backend)

    @abstractmethod
    def target(self, server):
        """The :class:`~pg_mop.connections.targets.Way` to a server (its name; None: the coordinator's own)."""

    @abstractmethod
    def rows_sql(self, packed, segment, aggregate):
        """SQL for column `report`, on the segment's server: `aggregate` (a quoted name) over its buffers, in order of
        buffer_id. On Greenplum SQL that hands them to the trainer there, which reports later.

        It has a place to fill by %: `epochs` (how often the rows are sent).
        """
