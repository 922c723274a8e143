"""The pool of trainers: mop_pool, behind the view mop_trainers, and mop_end_trainers."""

from __future__ import annotations

import datetime
import json
import os
import time
from typing import Any

import mop_udf
from mop_udf.pool import fork_server_client
from pg_mop.backend.database import Database
from pg_mop.backend.functions import sql_function
from pg_mop.backend.settings import BACKENDS
from pg_mop.engines.greenplum import on_hosts

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@sql_function
def mop_pool(db: Database) -> list[tuple[Any, ...]]:
    """The trainers in the pool that the caller may see: the rows of the SQL function. Those of Greenplum's hosts, too."""
    there = (json.loads(text) for texts in on_hosts(db, "mop_at_pool()") for text in texts)
    return [*_pool(db), *map(tuple, there)]


@sql_function
def mop_at_pool(db: Database) -> list[str]:
    """The trainers in the pool of this segment's host that the caller may see, as JSON."""
    return [json.dumps(row) for row in _pool(db)]


def _pool(db: Database) -> list[tuple[Any, ...]]:
    roles = _roles(db, "pg_read_all_stats")
    now, booted = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    return [
        (
            one["role"],
            one["database"],
            one["pid"],
            one["state"],
            one["backend"] or None,
            datetime.datetime.fromtimestamp(now - booted + one["since"] / 1e6, datetime.timezone.utc).isoformat(),
            one["keras_backend"],
            one["gpu"],
            one["threads"],
            _memory(one["pid"]),
            one["nets"],
            one["rows_bytes"],
        )
        for framework in (*BACKENDS, fork_server_client.RELAYS)
        for one in fork_server_client.trainers(mop_udf.home, framework)
        if one.get("role") is not None and (roles is None or one["role"] in roles)
    ]


@sql_function
def mop_end_trainers(db: Database) -> int:
    """End the idle trainers and the serving processes of the roles that the caller may act as, on Greenplum's hosts, too.
    Returns their number."""
    ended = _end(db) + sum(sum(there) for there in on_hosts(db, "mop_at_end_trainers()"))
    db.note_act("end trainers", {"trainers": ended})
    return ended


@sql_function
def mop_at_end_trainers(db: Database) -> int:
    """As mop_end_trainers, for the pool of this segment's host."""
    return _end(db)


def _end(db: Database) -> int:
    roles = _roles(db)
    return sum(
        fork_server_client.end_trainers(mop_udf.home, framework, None if roles is None else sorted(roles))
        for framework in (*BACKENDS, fork_server_client.RELAYS)
    )


def _roles(db: Database, all_of: str | None = None) -> set[int] | None:
    """OIDs of the roles that the caller may act as; None, all roles, for a superuser or a member of role `all_of`."""
    # Greenplum 6 has no role pg_read_all_stats
    if db.is_superuser() or (
        all_of is not None
        and db.value(
            "SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = $1 AND pg_has_role(current_user, oid, 'USAGE'))",
            ["text"],
            [all_of],
        )
    ):
        return None
    return {
        int(row["role"])
        for row in db.execute("SELECT oid::bigint AS role FROM pg_roles WHERE pg_has_role(current_user, oid, 'USAGE')")
    }


def _memory(pid: int) -> int | None:
    """Bytes of memory that a process holds; None if it has ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return None
