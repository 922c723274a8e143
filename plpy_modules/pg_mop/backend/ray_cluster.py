"""Trainers that run elsewhere than beside the rows: on a Ray cluster, which a foreign server of pg_mop's own wrapper
names (pg_mop.trainers).

Where that is, is a superuser's to say: the relay to it unpickles what the cluster sends.
"""

import json
import re
import subprocess
import time

import mop_udf
from mop_udf import process, server_folder
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier

SECONDS = 60  # for the cluster to say what it has
NUMBERS = {"gpus": 1.0, "cpus": 1.0, "wait": 600.0}  # options and their defaults


def cluster(plpy, name):
    """What a foreign server says of the Ray cluster: address; gpus and cpus of a trainer; wait (seconds). Raises
    MopError where there is no such server, or the role may not use it."""
    if not isinstance(name, str):
        raise MopError(f"invalid option of a trainer: trainers = {name!r}")
    quoted = quote_identifier(name)
    make = (
        f"CREATE SERVER {quoted} FOREIGN DATA WRAPPER pg_mop OPTIONS (kind 'ray', address 'ray://host:10001'); "
        f"GRANT USAGE ON FOREIGN SERVER {quoted} TO ...;"
    )
    found = plpy.execute(
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
    if not len(found):
        raise MopError(
            f"server {quoted} of pg_mop.trainers does not exist", hint=f"By a superuser: {make}", sqlstate="42704"
        )
    row = found[0]
    if not row["usable"]:
        raise MopError(
            f"permission denied for foreign server {quoted}",
            sqlstate="42501",
            hint=f"GRANT USAGE ON FOREIGN SERVER {quoted} TO {row['me']};",
        )
    options = dict(option.split("=", 1) for option in row["srvoptions"] or ())
    if row["fdwname"] != "pg_mop" or options.get("kind") != "ray":
        raise MopError(
            f"server {quoted} is none with trainers",
            sqlstate="42809",
            hint=f"SET pg_mop.trainers to one that a superuser has made so: {make}",
        )
    if not row["rolsuper"]:
        raise MopError(
            f"server {quoted} is not a superuser's",
            detail="The relay to Ray runs what the cluster sends.",
            hint=f"ALTER SERVER {quoted} OWNER TO ...; by a superuser who trusts the cluster.",
            sqlstate="42501",
        )
    if not re.fullmatch(r"ray://([^:/\s]+|\[[0-9a-fA-F:]+\]):\d{1,5}", options.get("address", "")):
        raise MopError(
            f"server {quoted} has no address of Ray",
            sqlstate="42809",
            hint=f"ALTER SERVER {quoted} OPTIONS ({'SET' if 'address' in options else 'ADD'} address "
            f"'ray://host:10001');",
        )
    told = {"address": options["address"]}
    for option, default in NUMBERS.items():
        try:
            told[option] = float(options.get(option, default))
            if not 0 < told[option] <= 86400:
                raise ValueError
        except ValueError:
            raise MopError(
                f"option {option} of server {quoted} is no positive number: {options[option]!r}",
                hint=f"ALTER SERVER {quoted} OPTIONS (SET {option} '1');",
            ) from None
    return told


def capacity(db, name, use_gpus):
    """For how many trainers the cluster has room, were it idle. Raises MopError where it cannot be used."""
    told = cluster(db.plpy, name)
    gpus = told["gpus"] * bool(use_gpus)
    asked = subprocess.Popen(
        process.command(mop_udf.home, "mop_udf.relay", "capacity", told["address"], gpus, told["cpus"]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=server_folder.environment("tensorflow"),
        start_new_session=True,
    )
    try:
        until = time.monotonic() + SECONDS
        while asked.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
            db.check_interrupts()
        if asked.returncode == 0:
            count = json.loads(asked.stdout.read())
            if count:
                return count
            problem = f"no node has {gpus:g} GPUs and {told['cpus']:g} CPUs for a trainer"
        elif asked.returncode is None:
            problem = f"no answer within {SECONDS} s"
        else:
            problem = asked.stderr.read().decode("utf-8", "replace").strip()[-1000:] or "the relay has ended"
    finally:
        asked.kill()
        asked.wait()
        asked.stdout.close()
        asked.stderr.close()
    raise MopError(
        f"Ray at {told['address']} cannot be used",
        detail=problem,
        sqlstate="08001",
        hint=f"ALTER SERVER {quote_identifier(name)} OPTIONS (SET address '...'); or RESET pg_mop.trainers; "
        f"Where the detail says that there is no module ray: make install WITH=ray",
    )
