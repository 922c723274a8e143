"""Remote trainers: on a Ray cluster, described by a foreign server of pg_mop's own wrapper (pg_mop.trainers).

Only a superuser chooses the cluster's address: the relay process unpickles the cluster's messages.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import TYPE_CHECKING, Any

import mop_udf
from mop_udf.pool import child_process, process
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier

if TYPE_CHECKING:
    from pg_mop.backend.database import Database

SECONDS = 60  # for the cluster to report its resources
NUMBERS = {"gpus": 1.0, "cpus": 1.0, "wait": 600.0}  # options and their defaults


def cluster(plpy: Any, name: str) -> dict[str, Any]:
    """The Ray cluster that a foreign server describes: address; gpus and cpus of a trainer; wait (seconds).

    Raises MopError if the server does not exist, is invalid, or the role may not use it.
    """
    if not isinstance(name, str):
        raise MopError(f"invalid option of a trainer: trainers = {name!r}")
    quoted = quote_identifier(name)
    make = (
        f"CREATE SERVER {quoted} FOREIGN DATA WRAPPER pg_mop OPTIONS (kind 'ray', address 'ray://host:10001'); "
        f"GRANT USAGE ON FOREIGN SERVER {quoted} TO ...;"
    )
    rows = plpy.execute(
        plpy.prepare(
            "SELECT s.srvoptions, w.fdwname, pg_catalog.has_server_privilege(s.oid, 'USAGE') AS usable, "
            "pg_catalog.quote_ident(current_user) AS me, r.rolsuper FROM pg_catalog.pg_foreign_server s "
            "JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid OPERATOR(pg_catalog.=) s.srvfdw "
            "JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) s.srvowner "
            "WHERE s.srvname OPERATOR(pg_catalog.=) $1",
            ["text"],
        ),
        [name],
    )
    if not len(rows):
        raise MopError(
            f"server {quoted} of pg_mop.trainers does not exist", hint=f"By a superuser: {make}", sqlstate="42704"
        )
    row = rows[0]
    if not row["usable"]:
        raise MopError(
            f"permission denied for foreign server {quoted}",
            sqlstate="42501",
            hint=f"GRANT USAGE ON FOREIGN SERVER {quoted} TO {row['me']};",
        )
    options = dict(option.split("=", 1) for option in row["srvoptions"] or ())
    if row["fdwname"] != "pg_mop" or options.get("kind") != "ray":
        raise MopError(
            f"server {quoted} is not a server with trainers",
            sqlstate="42809",
            hint=f"SET pg_mop.trainers to a server that a superuser has made so: {make}",
        )
    if not row["rolsuper"]:
        raise MopError(
            f"server {quoted} is not a superuser's",
            detail="The relay to Ray runs code that the cluster sends.",
            hint=f"ALTER SERVER {quoted} OWNER TO ...; by a superuser who trusts the cluster.",
            sqlstate="42501",
        )
    if not re.fullmatch(r"ray://([^:/\s]+|\[[0-9a-fA-F:]+\]):\d{1,5}", options.get("address", "")):
        raise MopError(
            f"server {quoted} has no address of a Ray cluster",
            sqlstate="42809",
            hint=f"ALTER SERVER {quoted} OPTIONS ({'SET' if 'address' in options else 'ADD'} address "
            f"'ray://host:10001');",
        )
    target = {"address": options["address"]}
    for option, default in NUMBERS.items():
        try:
            target[option] = float(options.get(option, default))
            if not 0 < target[option] <= 86400:
                raise ValueError
        except ValueError:
            raise MopError(
                f"option {option} of server {quoted} is no positive number: {options[option]!r}",
                hint=f"ALTER SERVER {quoted} OPTIONS (SET {option} '1');",
            ) from None
    return target


def capacity(db: Database, name: str, use_gpus: bool | None) -> int:
    """The cluster's capacity: the number of trainers while it is idle. Raises MopError if it cannot be used."""
    target = cluster(db.plpy, name)
    gpus = target["gpus"] * bool(use_gpus)
    relay = subprocess.Popen(
        process.command(mop_udf.home, "mop_udf.pool.relay", "capacity", target["address"], gpus, target["cpus"]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=child_process.environment("tensorflow"),
        start_new_session=True,
    )
    assert relay.stdout is not None and relay.stderr is not None
    try:
        deadline = time.monotonic() + SECONDS
        while relay.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            db.check_interrupts()
        if relay.returncode == 0:
            count = json.loads(relay.stdout.read())
            if count:
                return count
            problem = f"no node has {gpus:g} GPUs and {target['cpus']:g} CPUs for a trainer"
        elif relay.returncode is None:
            problem = f"no answer within {SECONDS} s"
        else:
            problem = relay.stderr.read().decode("utf-8", "replace").strip()[-1000:] or "the relay has ended"
    finally:
        relay.kill()
        relay.wait()
        relay.stdout.close()
        relay.stderr.close()
    raise MopError(
        f"Ray at {target['address']} cannot be used",
        detail=problem,
        sqlstate="08001",
        hint=f"ALTER SERVER {quote_identifier(name)} OPTIONS (SET address '...'); or RESET pg_mop.trainers; "
        f"If the detail names a missing module ray: make install WITH=ray",
    )
