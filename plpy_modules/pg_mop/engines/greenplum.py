"""Greenplum: a segment of a packed table is on one of the cluster's own segments, and so is the trainer of its units.

A worker session is one with the coordinator. It does a unit by statements that run on the segment: each is a function
of ours over the one row of mop_place that is there.
"""

import contextlib
import json
from dataclasses import dataclass

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.connections import targets
from pg_mop.connections.blocking import connect
from pg_mop.engines.base import Segment
from pg_mop.engines.postgresql import PostgreSQL, fingerprint_sql, sizes

_machines = {}  # host -> what it said of itself to this session


@dataclass(frozen=True)
class Primary:
    """A segment of the cluster that does the work."""

    content: int
    dbid: int
    host: str


def hosts(db):
    """The Primaries of the cluster, by content."""
    return [
        Primary(row["content"], row["dbid"], row["hostname"])
        for row in db.execute(
            "SELECT content, dbid, hostname FROM gp_segment_configuration WHERE role = 'p' AND content >= 0 ORDER BY 1"
        )
    ]


def keys(db, looked=False):
    """{content: the smallest number that Greenplum puts on that segment}, as mop_place has them, once it is `looked`
    for them on all."""
    found = {
        row["content"]: row["place"]
        for row in db.execute(
            f"SELECT gp_segment_id AS content, min(place) AS place FROM {db.extension}.mop_place GROUP BY 1"
        )
    }
    if missing := {segment.content for segment in hosts(db)} - set(found):  # the cluster has grown
        if looked:
            raise MopError(f"no number is found that is on segment {min(missing)}", sqlstate="XX000")
        with contextlib.closing(connect(targets.local(db), "pg_mop places")) as session:  # worker sessions see it, too
            session.cursor().execute(f"SELECT {db.extension}.mop_find_places()")
        return keys(db, looked=True)
    return found


def machine(db, host):
    """What a host of segments says of itself: {"cores", "gpus"}. Raises MopError where our packages are missing."""
    if host not in _machines:
        _machines[host] = json.loads(_on_host(db, host, "mop_machine()"))
    return _machines[host]


def gpus(db, source):
    """{host: a line for each of its GPUs} of the hosts of segments. Raises MopError."""
    return {
        host: _on_host(db, host, f"mop_gpus({quote_literal(source)})")
        for host in sorted({segment.host for segment in hosts(db)})
    }


def _on_host(db, host, call):
    """What a function of ours gives on a host of segments. Raises MopError."""
    content = next(segment.content for segment in hosts(db) if segment.host == host)
    try:
        return db.value(f"SELECT {db.extension}.{call} FROM {db.extension}.mop_place WHERE place = {keys(db)[content]}")
    except db.plpy.SPIError as error:
        if getattr(error, "sqlstate", None) == "57014":
            raise
        problem = str(error)
    raise MopError(
        f"the packages of pg_mop cannot be used on host {quote_identifier(host)}",
        detail=problem,
        hint="There: make install PG_CONFIG=...; it puts them at the same path on each host.",
        sqlstate="58000",
    )


class Greenplum(PostgreSQL):
    def __init__(self, db, tables):
        """`tables`: PackedTables. Raises MopError where one is distributed otherwise than we need."""
        super().__init__(db)
        self._session = int(db.value("SHOW gp_session_id"))
        self._parts = frozenset()  # processes on segments, each with a part of the caller's transaction
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
                    hint=f"ALTER TABLE {packed.table} SET DISTRIBUTED BY (__dist_key__); or pack it anew.",
                )

    def info(self, backend):
        """{"cores", "gpus"} of all segments together, as the one that has the least would have it."""
        known = hosts(self.db)
        beside = {segment.host: sum(other.host == segment.host for other in known) for segment in known}
        machines = {host: machine(self.db, host) for host in beside}
        return {
            "cores": min(machines[host]["cores"] * len(known) // count for host, count in beside.items()),
            "gpus": min(machines[host]["gpus"] for host in beside),
        }

    def check_gpus(self, backend):
        for segment in hosts(self.db):
            if not machine(self.db, segment.host)["gpus"]:
                raise MopError(
                    f"use_gpus is set, but host {quote_identifier(segment.host)} has no GPU, or its "
                    "TensorFlow is for processors alone",
                    sqlstate="58000",
                    hint="There: make install FRAMEWORK=cuda; or call with use_gpus := FALSE.",
                )

    def segments(self, packed):
        db, places, found = self.db, keys(self.db), []
        for row in db.execute(
            f"SELECT __dist_key__ AS key, gp_segment_id AS content, {sizes(packed)} "
            f"FROM {packed.table} GROUP BY 1, 2 ORDER BY 1"
        ):
            if row["key"] is None:
                raise MopError(f'{packed.table} has buffers whose "__dist_key__" is NULL')
            key, sql = int(row["key"]), fingerprint_sql(packed, str(packed.table), row["key"])
            found.append(
                Segment(
                    key,
                    int(row["rows"]),
                    int(row["bytes"]),
                    db.value(sql),
                    None,
                    str(packed.table),
                    sql,
                    host_segment=places[row["content"]],
                )
            )
        return found

    def check_whole(self, beside):
        """(The caller's own next statement would say so as well, but from under PL/Python, whose `except` and
        `finally` it would pass by.)"""
        there = {
            (row["gp_segment_id"], row["pid"])
            for row in beside(
                f"SELECT DISTINCT gp_segment_id, pid FROM pg_locks WHERE mppsessionid = {self._session} AND mppiswriter "
                f"AND gp_segment_id >= 0"
            )
        }
        if not there >= self._parts:
            raise MopError(
                "a segment of the cluster has gone, and with it this call's transaction",
                detail="What has been trained is kept.",
                sqlstate="58M01",
                hint="The same call again goes on with the run, and so does mop_resume.",
            )
        self._parts = there

    def parts(self, raw):
        raise NotImplementedError  # the caller's own session predicts

    def rows_sql(self, packed, segment, aggregate):
        def name(column):
            return quote_identifier(column).replace("%", "%%")

        values = ", ".join(name(c) for c in packed.columns)
        shapes = ", ".join(f"{name(c + '_shape')}::text" for c in packed.columns)
        wanted = ", ".join(name(c + more) for c in packed.columns for more in ("", "_shape"))
        transition = f"{self.db.extension}.mop_transition".replace("%", "%%")
        # What an aggregate is made of is brought together by a process of its own on each segment, even where all of it
        # is there. (The rows are sorted while their values are still references to out-of-line storage.)
        table = segment.table.replace("%", "%%")
        return (
            f"SELECT {transition}(0, epoch, buffer_id, ARRAY[{values}], ARRAY[{shapes}]) FROM ("
            f"SELECT buffer_id, {wanted}, generate_series(1, %(epochs)s) AS epoch FROM {table} "
            f"WHERE __dist_key__ = {segment.key} ORDER BY epoch, buffer_id) AS b"
        )
