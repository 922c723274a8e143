"""What differs between database engines, behind one small class."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """A horizontal part of a packed table: its `__dist_key__` (0 where there is none), rows, bytes, and a fingerprint
    of its rows' versions."""

    key: int
    rows: int
    bytes: int
    fingerprint: str


class Engine(ABC):
    """One kind of database."""

    @abstractmethod
    def segments(self, db, packed):
        """The segments of a :class:`PackedTable` that have rows, by key."""

    @abstractmethod
    def fingerprint_sql(self, packed, key):
        """SQL for column `fingerprint` of segment `key`: it changes when anybody writes to the segment."""

    @abstractmethod
    def rows_sql(self, packed, key, aggregate):
        """SQL for column `report`: `aggregate` (a quoted name) over the segment's buffers, in order of buffer_id.

        It has two places to fill by %: `epochs` (how often the rows are sent) and `where` (true or false).
        """

    @abstractmethod
    def connection_parameters(self, db):
        """psycopg2.connect's parameters for a worker session as the calling role."""
