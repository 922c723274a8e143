"""The engine interface: everything that differs between databases that hold packed rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from pg_mop.backend import device_memory, settings
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.columns import Transform
from pg_mop.connections.targets import Target

FETCH_BUFFERS = 10  # buffers of labels in one fetch

# Column of a packed table's summary, JSON: [[segment, server or null, schema, table], ...]
COPIES = "__internal_copies__"


class Rows(Protocol):
    """A packed table, or a table of raw rows (inference/raw_table.py), as an engine reads it.

    `text`: its name as the caller writes it; `copies`: of the segments of a packed table, as (key, server, quoted table).
    """

    text: str
    table: Table

    @property
    def copies(self) -> Sequence[tuple[int, str | None, str]]: ...

    def shape_columns(self) -> str: ...


class PackedRows(Rows, Protocol):
    """A packed table (packing/packed_table.py) as an engine reads it."""

    foreign: bool
    keyed: bool
    outputs: list[str]
    summary_table: Table
    transform: Transform

    @property
    def columns(self) -> list[str]: ...

    def keys_sql(self) -> str: ...

    def of_segment(self, key: int) -> str: ...

    def shapes_of(self, row: Sequence[list[int]]) -> dict[str, list[int]]: ...

    def meaning(self) -> str: ...


@dataclass(frozen=True)
class Segment:
    """A horizontal part of a packed table, on one server.

    A Segment also describes a leaf partition of a table of raw rows. Its key is then a running number, its rows and
    bytes are estimates, and its fingerprint identifies the table only.

    >>> copy = Segment(3, 500, 81920, "b2", "w2", '"public"."copy_3"', "SELECT ...")
    >>> segment = Segment(3, 500, 81920, "a1", "w1", '"public"."packed_3"', "SELECT ...", copies=(copy,))
    >>> segment.at(["w2", "w3"]) is copy
    True
    """

    key: int  # `__dist_key__`; 0 if the table has no such column
    rows: int
    bytes: int
    fingerprint: str | None  # changes with each write to the rows; None if the server is away
    server: str | None  # name of the foreign server; None: the coordinator's own server
    table: str  # quoted name on that server
    fingerprint_sql: str  # selects the present fingerprint on that server, as column `fingerprint`
    copies: tuple[Segment, ...] = ()  # of the same rows on other servers
    host_segment: int | None = None  # Greenplum: the row of mop_host_segment whose segment has the trainer
    host: str | None = None  # Greenplum: the host of that segment

    def on(self, server: str | None) -> Segment:
        """This segment or its copy on a server (name)."""
        return self.at([server])

    def at(self, servers: Collection[str | None]) -> Segment:
        """This segment or a copy on one of `servers` (names). Raises LookupError if none has it."""
        for candidate in (self, *self.copies):
            if candidate.server in servers:
                return candidate
        raise LookupError(self.key)


class Engine(ABC):
    """One kind of database. :func:`pg_mop.engines.find` chooses the engine by the packed tables of a call.

    An engine implements six methods. This one keeps two segments in a dict:

    >>> class InMemory(Engine):
    ...     rows = {0: 120, 1: 80}
    ...
    ...     def segments(self, packed):
    ...         return [Segment(k, n, 64 * n, "v1", None, "t", "SELECT 'v1'") for k, n in self.rows.items()]
    ...
    ...     def share(self, packed):
    ...         pass  # nobody else writes to the dict
    ...
    ...     def parts(self, raw):
    ...         return self.segments(raw)
    ...
    ...     def first_row(self, table, columns):
    ...         return [[4]]
    ...
    ...     def target(self, server):
    ...         return Target(None, {"dbname": "db", "user": "ann"}, role="ann")
    ...
    ...     def rows_sql(self, packed, segment, aggregate):
    ...         return f"SELECT {aggregate}(...) AS report FROM {segment.table} WHERE __dist_key__ = {segment.key}"
    >>> from pg_mop.connections.targets import Target
    >>> engine = InMemory()
    >>> [segment.rows for segment in engine.segments(None)]
    [120, 80]
    >>> engine.target(None).role
    'ann'
    >>> engine.rows_sql(None, engine.segments(None)[1], "mop_sub_epoch")
    'SELECT mop_sub_epoch(...) AS report FROM t WHERE __dist_key__ = 1'

    tests/support/engines.py has the tests that every engine passes.
    """

    db: Database
    several_servers = False  # segments may be on other servers
    # the error of each server that does not answer, but whose segments have copies
    away: Mapping[str | None, MopError] = MappingProxyType({})

    takes_turns = True  # whether the runs of a server share its cores by turns (run/turns.py)

    @property
    def shares_among_roles(self) -> bool:
        """Whether runs of several roles may share stages (sql/postgresql/13_sharing.sql)."""
        return False

    @abstractmethod
    def segments(self, packed: PackedRows) -> list[Segment]:
        """The Segments of a :class:`~pg_mop.packing.packed_table.PackedTable` that have rows, ordered by key."""

    def with_copies(self, packed: PackedRows, segments: list[Segment]) -> list[Segment]:
        """The segments of a packed table, each with its copies. Raises MopError."""
        return segments

    def contents(self, wanted: Sequence[tuple[PackedRows, Segment]]) -> list[str]:
        """Digests of the values of segments or copies, for a list of (packed table, Segment): equal values have equal
        digests. Raises MopError."""
        raise NotImplementedError  # this engine has no copies

    @abstractmethod
    def share(self, packed: PackedRows) -> None:
        """Lock the segments of a packed table against writers until the call ends, if the caller has the privilege."""

    def check_whole(self, beside: Callable[[str], Iterable[Mapping[str, Any]]]) -> None:
        """Check that the caller's transaction is intact on all servers that take part in it.

        `beside(sql)`: the rows of a query in another session. Raises MopError.
        """
        return  # one session of one server ends as a whole

    @abstractmethod
    def parts(self, raw: Rows) -> list[Segment]:
        """The leaf partitions of a :class:`~pg_mop.inference.raw_table.RawTable`, as Segments."""

    @abstractmethod
    def first_row(self, table: Rows, columns: str) -> list[Any] | None:
        """The values of some SQL columns in any row of a packed or raw table; None if it is empty."""

    def buffers(self, packed: PackedRows, segments: Sequence[Segment], columns: Sequence[str]) -> Iterator[list[Any]]:
        """The buffers of a packed table one after the other, ordered by segment and buffer: the values of these columns (SQL).

        `segments`: of the table, with their copies, ordered by key. Raises MopError.
        """
        names = self.db.columns(packed.table)
        order = ", ".join(name for name in ("__dist_key__", "buffer_id") if name in names)
        columns_sql = ", ".join(f"{column} AS c{number}" for number, column in enumerate(columns))
        cursor = self.db.plpy.cursor(f"SELECT {columns_sql} FROM {packed.table} ORDER BY {order}")
        while rows := cursor.fetch(1):  # a buffer may be large
            yield [rows[0][f"c{number}"] for number in range(len(columns))]
        cursor.close()

    @abstractmethod
    def target(self, server: str | None) -> Target:
        """The :class:`~pg_mop.connections.targets.Target` for a server (name; None: the coordinator's own)."""

    @abstractmethod
    def rows_sql(self, packed: PackedRows, segment: Segment, aggregate: str) -> str:
        """SQL for column `report`, on the segment's server: `aggregate` (quoted) over the segment's buffers, ordered by
        buffer_id. On Greenplum, SQL that passes the buffers to the trainer of the host segment, which reports later.

        The text is a % format with the key `epochs`: how often the rows are sent.
        """

    def shapes(self, packed: PackedRows) -> dict[str, list[int]]:
        """{column: shape of one example} of a packed table. Raises MopError if it is empty."""
        row = self.first_row(packed, packed.shape_columns())
        if row is None:
            raise MopError(f'"{packed.text}" is empty')
        return packed.shapes_of(row)

    def class_counts(self, packed: PackedRows) -> list[int] | None:
        """The number of rows of each class in a packed table with one output, in the order of the classes.

        For an output of a single number: the numbers of 0 and of 1, or None if there are other values.
        """
        from pg_mop.backend.arrays import np

        width, column = self.shapes(packed)[packed.outputs[0]][0], quote_identifier(packed.outputs[0])
        counts = np.zeros(max(2, width), "i8")
        for segment in self.segments(packed):
            for data in self._buffers(packed, segment, column):
                labels = np.frombuffer(data, packed.transform.outputs[0].dtype).reshape(-1, width)
                if width == 1:
                    if not np.isin(labels, (0, 1)).all():
                        return None
                    labels = np.concatenate([labels == 0, labels == 1], axis=1)
                counts += labels.sum(0, dtype="i8")
        return counts.tolist()

    def _buffers(self, packed: PackedRows, segment: Segment, column: str) -> Iterator[bytes]:
        """The buffers of one column (quoted) of a segment, one after the other."""
        cursor = self.db.plpy.cursor(
            f"SELECT {column} AS data FROM {segment.table} WHERE {packed.of_segment(segment.key)}"
        )
        while rows := cursor.fetch(FETCH_BUFFERS):
            yield from (row["data"] for row in rows)
        cursor.close()

    def info(self, backend: str) -> dict[str, Any]:
        """{"cores", "gpus", "memory"} of the coordinator's own server, for trainers of the framework `backend`; "memory": bytes
        of "main" memory, and of the smallest "gpu" (None: unknown, or there is none)."""
        return {
            "cores": settings.cores(),
            "gpus": settings.gpus(backend),
            "memory": device_memory.found(settings.gpus(backend)),
        }

    def check_gpus(self, backend: str) -> None:
        """Raises MopError if trainers of the framework `backend` have no GPU."""
        if not settings.gpus(backend):
            raise settings.no_gpu(backend)
