"""The segments that a run works on: found, and checked against the rows that other sessions see."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg2

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.call.earlier import Earlier
from pg_mop.call.spec import RunSpec
from pg_mop.connections.locks import is_locked
from pg_mop.engines.base import Segment

Segments = dict[tuple[str, int], Segment]  # by (dataset, number)


def find(spec: RunSpec, options: dict[str, Any]) -> Segments:
    """The segments of a call's datasets, with their copies if `options` say so. Raises MopError.

    Where copies are only a help and not all are there, `options` are changed to do without.
    """
    inputs, application = spec.inputs, spec.application
    if application is not None and application.parts is not None:
        return {("training", part.key): part for part in application.parts()}
    segments: Segments = {}
    for dataset in ("training", "validation"):
        packed = inputs.packed(dataset)
        for segment in _of_table(spec, options, packed) if packed is not None else ():
            if (dataset, segment.key) in segments:
                raise MopError(
                    f'"{packed.text}" has rows of "__dist_key__" {segment.key} in several partitions',
                    detail="A segment is in one place.",
                    sqlstate="42809",
                    hint="Partition it by LIST (__dist_key__), as the preprocessors do.",
                )
            segments[dataset, segment.key] = segment
    if not any(dataset == "training" for dataset, _ in segments):
        raise MopError(f'source table "{inputs.source.text}" has no rows')
    return segments


def _of_table(spec: RunSpec, options: dict[str, Any], packed: Any) -> list[Segment]:
    """The segments of a packed table. Raises MopError."""
    engine = spec.inputs.engine
    if options["replicas"] == 1:
        return engine.segments(packed)
    segments = engine.with_copies(packed, engine.segments(packed))
    unseen = {key for key, server, _ in packed.copies if server in engine.away}
    alone = [s for s in segments if s.server is not None and not s.copies and s.key not in unseen]
    if not alone:
        _tell_of_fewer(spec, options, packed, segments)
        return segments
    if _needs_copies(spec):
        raise MopError(
            f"pg_mop.replicas is {options['replicas']}, but segment {alone[0].key} of "
            f'"{packed.text}" has no copy on another server',
            hint="RESET pg_mop.replicas; or pack the table anew as it is set.",
            sqlstate="55000",
        )
    return _without_copies(options, engine.segments(packed))


def _tell_of_fewer(spec: RunSpec, options: dict[str, Any], packed: Any, segments: Iterable[Segment]) -> None:
    """Tell the caller of segments with fewer copies than pg_mop.replicas asks for: the table was packed otherwise."""
    if spec.application is not None:
        return
    wanted = options["replicas"] - 1
    noted = {(key, server) for key, server, _ in packed.copies}  # also those on servers that are away
    fewer = [
        s.key
        for s in segments
        if s.server is not None
        and max(len(s.copies), sum(key == s.key and server != s.server for key, server in noted)) < wanted
    ]
    if fewer:
        spec.inputs.db.notice(
            f"pg_mop.replicas is {options['replicas']}, but {len(fewer)} of the segments of "
            f'"{packed.text}" have fewer than {wanted} copies',
            hint="Pack the table anew as it is set.",
        )


def _needs_copies(spec: RunSpec) -> bool:
    """True if the call cannot do without copies: it asks for them, or a server is away."""
    return spec.application is None or spec.application.needs_copies or bool(spec.inputs.engine.away)


def _without_copies(options: dict[str, Any], segments: Iterable[Segment]) -> list[Segment]:
    options["replicas"] = 1
    return [dataclasses.replace(segment, copies=()) for segment in segments]


def check_visible(spec: RunSpec, catalog: Any, segments: Segments) -> None:
    """Other sessions must see the very rows that the caller sees. Raises MopError."""
    for (dataset, _), segment in segments.items():
        if segment.server is not None:
            continue
        packed = spec.inputs.packed(dataset)
        try:
            seen = catalog.fingerprint(segment.fingerprint_sql)
        except psycopg2.errors.LockNotAvailable:
            raise is_locked(packed) from None
        if seen != segment.fingerprint:
            raise _is_unseen(packed, seen is not None)


def check_committed(spec: RunSpec, segments: Segments) -> None:
    """The same as check_visible, as far as the caller's session itself can tell. Raises MopError."""
    db = spec.inputs.db
    for packed in spec.inputs.tables:
        if db.is_temporary(packed.table):
            raise _is_unseen(packed, False)
    if db.has_segments or db.value("SELECT txid_current_if_assigned()") is None:
        return  # this transaction has written nothing
    for (dataset, key), segment in segments.items():
        packed = spec.inputs.packed(dataset)
        if segment.server is None and (
            db.value(f"SELECT EXISTS (SELECT 1 FROM {segment.table} WHERE {packed.of_segment(key)} AND {WRITTEN_NOW})")
            or db.value(CHANGED_NOW, ["text"], [segment.table])
        ):
            raise _is_unseen(packed, True)


# SQL: a row was written by this transaction, or by a part of it that has a number of its own. (The row has the last 32 bits
# of the number; a later number that is in progress can only be this transaction's, for the row is visible.)
WRITTEN_NOW = (
    "CASE WHEN age(xmin) <= age((txid_current() & 4294967295)::text::xid) THEN "
    "txid_status(txid_current() + age((txid_current() & 4294967295)::text::xid) - age(xmin)) = 'in progress' ELSE false END"
)
# SQL: this transaction has updated or deleted rows of a table ($1) or of its partitions. (The counters alone may still have
# rows of the session's transaction before.)
CHANGED_NOW = (
    "SELECT coalesce(sum(pg_stat_get_xact_tuples_updated(t.relid) + pg_stat_get_xact_tuples_deleted(t.relid)), 0) > 0 "
    "FROM (SELECT $1::regclass::oid AS relid UNION SELECT p.relid::oid FROM pg_partition_tree($1::regclass) p) t "
    "JOIN pg_locks l ON l.relation = t.relid AND l.pid = pg_backend_pid() AND l.granted AND l.mode = 'RowExclusiveLock'"
)


def _is_unseen(packed: Any, visible: bool) -> MopError:
    """The MopError for a table that other sessions do not see, or (`visible`) of which they do not see all rows."""
    return MopError(
        f'"{packed.text}" has rows that other sessions do not see'
        if visible
        else f'"{packed.text}" is not visible to other sessions',
        detail="Worker sessions see committed data only, and no temporary tables.",
        hint="COMMIT the transaction that made it (a temporary table: make it a permanent one).",
        sqlstate="55000",
    )


def check_copies(
    spec: RunSpec, options: dict[str, Any], catalog: Any, segments: Segments, earlier: Earlier | None
) -> None:
    """The copies of segments must have the same rows as the segments. Raises MopError.

    A segment whose server is away gets the fingerprint that an earlier run found.
    """
    try:
        _check_copies(spec, catalog, segments, earlier)
    except MopError:
        if _needs_copies(spec):
            raise
        segments.update(zip(segments, _without_copies(options, segments.values())))


def _check_copies(spec: RunSpec, catalog: Any, segments: Segments, earlier: Earlier | None) -> None:
    engine, known = spec.inputs.engine, catalog.known_copies(segments)

    def known_of(segment: Segment, copy: Segment) -> Any:
        return known.get((segment.server, copy.server, copy.fingerprint), ())

    originals: dict[Any, Segment] = {}  # what the copies of a segment are compared with
    for key, segment in segments.items():
        originals[key] = segment
        if segment.server in engine.away:
            before = earlier.segments.get(key) if earlier is not None else None
            segments[key] = found = _as_known(
                engine, segment, [known_of(segment, copy) for copy in segment.copies], before
            )
            # a copy that an earlier run has compared with it stands for the segment
            originals[key] = next(copy for copy in segment.copies if found.fingerprint in known_of(segment, copy))
    pairs = [
        (spec.inputs.packed(key[0]), originals[key], copy)
        for key, segment in segments.items()
        for copy in segment.copies
        if segment.fingerprint not in known_of(segment, copy) and copy is not originals[key]
    ]
    wanted = list(dict.fromkeys((packed, one) for packed, segment, copy in pairs for one in (segment, copy)))
    digests = dict(zip(wanted, engine.contents(wanted) if wanted else ()))
    for packed, segment, copy in pairs:
        if digests[packed, segment] != digests[packed, copy]:
            where = "here" if copy.server is None else f"on server {quote_identifier(copy.server)}"
            raise MopError(
                f'the copy of segment {segment.key} of "{packed.text}" {where} has other rows',
                detail=f"It is {copy.table}. Somebody has written to one of the two.",
                hint="Pack the table anew; or RESET pg_mop.replicas; to train without copies.",
                sqlstate="55000",
            )


def _as_known(engine: Any, segment: Segment, of_copies: Sequence[Any], before: Any) -> Segment:
    """A segment on a server that is away, with the fingerprint that an earlier run found there: `before`, of the run
    that this call resumes, else the latest. `of_copies`: for each copy those that were compared with it. Raises MopError."""
    fingerprints = next((found for found in of_copies if before in found), next(filter(None, of_copies), ()))
    if not fingerprints:
        away = engine.away[segment.server]
        raise MopError(
            f"{away.message}, and no run of yours has compared its rows with their copies",
            detail=away.detail,
            sqlstate=away.sqlstate,
            hint="Call again when it is back.",
        )
    return dataclasses.replace(segment, fingerprint=before if before in fingerprints else fingerprints[-1])
