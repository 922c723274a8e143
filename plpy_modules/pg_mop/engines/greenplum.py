"""Greenplum: a segment of a packed table is on one of the cluster's own segments, and so is the trainer of its units.

A worker session is a session with the coordinator. It runs a unit with statements on the segment: each calls one of our
functions over the segment's row of mop_host_segment.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, is_cancel
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.connections import targets
from pg_mop.connections.blocking import connect
from pg_mop.engines.base import PackedRows, Rows, Segment
from pg_mop.engines.postgresql import PostgreSQL, fingerprint_sql, sizes

_machines: dict[str, dict[str, int]] = {}  # {host: its cores and GPUs, as this session received them}


@dataclass(frozen=True)
class Primary:
    """A primary segment of the cluster."""

    content: int
    dbid: int
    host: str


def hosts(db: Database) -> list[Primary]:
    """The primaries of the cluster, in the order of their content numbers."""
    return [
        Primary(row["content"], row["dbid"], row["hostname"])
        for row in db.execute(
            "SELECT content, dbid, hostname FROM gp_segment_configuration WHERE role = 'p' AND content >= 0 ORDER BY 1"
        )
    ]


def keys(db: Database, searched: bool = False) -> dict[int, int]:
    """{content: dist_key, the smallest number that Greenplum distributes to that segment} from mop_host_segment.

    If segments are missing, it finds their numbers first; `searched` says that it did. Raises MopError if a segment has
    none.
    """
    keys_by_content = {
        row["content"]: row["dist_key"]
        for row in db.execute(
            f"SELECT gp_segment_id AS content, min(dist_key) AS dist_key FROM {db.extension}.mop_host_segment GROUP BY 1"
        )
    }
    if contents_without := {segment.content for segment in hosts(db)} - set(keys_by_content):  # the cluster has grown
        if searched:
            raise MopError(
                f"found no number that Greenplum distributes to segment {min(contents_without)}", sqlstate="XX000"
            )
        with contextlib.closing(
            connect(targets.local(db), "pg_mop host segments")
        ) as session:  # worker sessions see the commit
            session.cursor().execute(f"SELECT {db.extension}.mop_find_host_segments()")
        return keys(db, searched=True)
    return keys_by_content


def machine(db: Database, host: str) -> dict[str, int]:
    """The cores and GPUs of a segment host: {"cores", "gpus"}. Raises MopError if our packages are missing there."""
    if host not in _machines:
        _machines[host] = json.loads(_on_host(db, host, "mop_machine()"))
    return _machines[host]


def gpus(db: Database, source: str) -> dict[str, list[str]]:
    """{host: lines, one for each of its GPUs} of the segment hosts. Raises MopError if our packages are missing."""
    return {
        host: _on_host(db, host, f"mop_gpus({quote_literal(source)})")
        for host in sorted({segment.host for segment in hosts(db)})
    }


def on_hosts(db: Database, call: str) -> Iterator[list[Any]]:
    """Call one of our functions on each segment host, and yield the list of its rows; PostgreSQL has no segment host."""
    if db.has_segments:
        keys_by_content = keys(db)
        for content in {segment.host: segment.content for segment in reversed(hosts(db))}.values():
            yield [
                row["answer"]
                for row in db.execute(
                    f"SELECT {db.extension}.{call} AS answer FROM {db.extension}.mop_host_segment "
                    f"WHERE dist_key = {keys_by_content[content]}"
                )
            ]


def _on_host(db: Database, host: str, call: str) -> Any:
    """The result of one of our functions on a segment host. Raises MopError if our packages are missing there."""
    content = next(segment.content for segment in hosts(db) if segment.host == host)
    try:
        return db.value(
            f"SELECT {db.extension}.{call} FROM {db.extension}.mop_host_segment WHERE dist_key = {keys(db)[content]}"
        )
    except db.plpy.SPIError as error:
        if is_cancel(error):
            raise
        problem = str(error)
    raise MopError(
        f"the packages of pg_mop cannot be used on host {quote_identifier(host)}",
        detail=problem,
        hint="Run make install PG_CONFIG=... on that host; the packages must have the same path on each host.",
        sqlstate="58000",
    )


class Greenplum(PostgreSQL):
    takes_turns = False  # an UPDATE locks the whole table

    def __init__(self, db: Database, tables: Sequence[PackedRows]) -> None:
        """Raises MopError unless each table is distributed by __dist_key__."""
        super().__init__(db)
        self._session = int(db.value("SHOW gp_session_id"))
        self._parts: set[tuple[int, int]] = set()  # segment and PID of each process with a part of the transaction
        for packed in tables:
            by = db.execute(
                "SELECT a.attname FROM gp_distribution_policy p, unnest(p.distkey) AS k "
                "JOIN pg_attribute a ON a.attnum = k AND a.attrelid = $1 WHERE p.localoid = $1",
                ["oid"],
                [packed.table.oid],
            )
            if [row["attname"] for row in by] != ["__dist_key__"]:
                raise MopError(
                    f'"{packed.text}" is not distributed by "__dist_key__"',
                    sqlstate="42809",
                    hint=f"ALTER TABLE {packed.table} SET DISTRIBUTED BY (__dist_key__); or pack it again.",
                )

    def info(self, backend: str) -> dict[str, Any]:
        """{"cores", "gpus"}: cores for all segments, if each had as many as the poorest segment; GPUs of the poorest host."""
        primaries = hosts(self.db)
        beside = {segment.host: sum(other.host == segment.host for other in primaries) for segment in primaries}
        machines = {host: machine(self.db, host) for host in beside}
        return {
            "cores": min(machines[host]["cores"] * len(primaries) // count for host, count in beside.items()),
            "gpus": min(machines[host]["gpus"] for host in beside),
        }

    def check_gpus(self, backend: str) -> None:
        for segment in hosts(self.db):
            if not machine(self.db, segment.host)["gpus"]:
                raise MopError(
                    f"use_gpus is set, but host {quote_identifier(segment.host)} has no GPU, or its "
                    "TensorFlow is for CPUs only",
                    sqlstate="58000",
                    hint="Run make install FRAMEWORK=cuda on that host, or call with use_gpus := FALSE.",
                )

    def segments(self, packed: PackedRows) -> list[Segment]:
        db, host_segments, segments = self.db, keys(self.db), list[Segment]()
        host_of = {segment.content: segment.host for segment in hosts(self.db)}
        for row in db.execute(
            f"SELECT __dist_key__ AS key, gp_segment_id AS content, {sizes(packed)} "
            f"FROM {packed.table} GROUP BY 1, 2 ORDER BY 1"
        ):
            if row["key"] is None:
                raise MopError(f'{packed.table} has buffers whose "__dist_key__" is NULL')
            key, sql = int(row["key"]), fingerprint_sql(packed, str(packed.table), row["key"])
            segments.append(
                Segment(
                    key,
                    int(row["rows"]),
                    int(row["bytes"]),
                    db.value(sql),
                    None,
                    str(packed.table),
                    sql,
                    host_segment=host_segments[row["content"]],
                    host=host_of[row["content"]],
                )
            )
        return segments

    def check_whole(self, beside: Callable[[str], Iterable[Mapping[str, Any]]]) -> None:
        """Raise MopError if a segment was lost, and with it the caller's transaction.

        The caller's next statement would raise that error, too, but in C code below PL/Python, so that `except` and
        `finally` would not run.
        """
        there = {
            (row["gp_segment_id"], row["pid"])
            for row in beside(
                f"SELECT DISTINCT gp_segment_id, pid FROM pg_locks WHERE mppsessionid = {self._session} AND mppiswriter "
                f"AND gp_segment_id >= 0"
            )
        }
        if not there >= self._parts:
            raise MopError(
                "a segment of the cluster was lost, and with it this call's transaction",
                detail="The states of finished units are kept.",
                sqlstate="58M01",
                hint="Repeat the call, or call mop_resume, to continue the run.",
            )
        self._parts = there

    def parts(self, raw: Rows) -> list[Segment]:
        raise NotImplementedError  # the caller's own session predicts

    def rows_sql(self, packed: PackedRows, segment: Segment, aggregate: str) -> str:
        def name(column: str) -> str:
            return quote_identifier(column).replace("%", "%%")

        values = ", ".join(name(c) for c in packed.columns)
        shapes = ", ".join(f"{name(c + '_shape')}::text" for c in packed.columns)
        columns_sql = ", ".join(name(c + more) for c in packed.columns for more in ("", "_shape"))
        transition = f"{self.db.extension}.mop_transition".replace("%", "%%")
        # No aggregate: Greenplum would start another process on each segment for it, even for rows of one segment. The
        # rows are sorted while their values are still references to out-of-line storage.
        table = segment.table.replace("%", "%%")
        return (
            f"SELECT {transition}(0, epoch, buffer_id, ARRAY[{values}], ARRAY[{shapes}]) FROM ("
            f"SELECT buffer_id, {columns_sql}, generate_series(1, %(epochs)s) AS epoch FROM {table} "
            f"WHERE __dist_key__ = {segment.key} ORDER BY epoch, buffer_id) AS b"
        )
