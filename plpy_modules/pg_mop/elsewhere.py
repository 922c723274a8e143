"""Trainers that run elsewhere than beside the rows: on a Ray cluster, which a foreign server of pg_mop's own wrapper
names (pg_mop.trainers).

Where that is, is an administrator's to say: the relay to it unpickles what the cluster sends.
"""

import re
import select
import socket

from pg_mop.database import MopError, quote_identifier

SECONDS = 5  # for the cluster to answer at all
NUMBERS = {"gpus": 1.0, "cpus": None, "wait": 60.0}  # options and their defaults


def cluster(plpy, name):
    """What a foreign server says of the Ray cluster: address, gpus, cpus (None: as many as threads) and wait (seconds).
    Raises MopError where there is no such server, or the role may not use it."""
    quoted = quote_identifier(name)
    make = (f"CREATE SERVER {quoted} FOREIGN DATA WRAPPER pg_mop OPTIONS (kind 'ray', address 'ray://host:10001'); "
            f"GRANT USAGE ON FOREIGN SERVER {quoted} TO ...;")
    found = plpy.execute(plpy.prepare(
        "SELECT s.srvoptions, w.fdwname, pg_catalog.has_server_privilege(s.oid, 'USAGE') AS usable "
        "FROM pg_catalog.pg_foreign_server s JOIN pg_catalog.pg_foreign_data_wrapper w "
        "ON w.oid OPERATOR(pg_catalog.=) s.srvfdw WHERE s.srvname OPERATOR(pg_catalog.=) $1", ["text"]), [name])
    if not len(found):
        raise MopError(f"server {quoted} of pg_mop.trainers does not exist", hint=f"By an administrator: {make}",
                       sqlstate="42704")
    if not found[0]["usable"]:
        raise MopError(f"permission denied for foreign server {quoted}", sqlstate="42501",
                       hint=f"GRANT USAGE ON FOREIGN SERVER {quoted} TO CURRENT_USER;")
    options = dict(option.split("=", 1) for option in found[0]["srvoptions"] or ())
    if found[0]["fdwname"] != "pg_mop" or options.get("kind") != "ray":
        raise MopError(f"server {quoted} is none with trainers", hint=f"By an administrator: {make}", sqlstate="42809")
    if not re.fullmatch(r"ray://[^:/\s]+:\d{1,5}", options.get("address", "")):
        raise MopError(f"server {quoted} has no address of Ray", sqlstate="42809",
                       hint=f"ALTER SERVER {quoted} OPTIONS ({'SET' if 'address' in options else 'ADD'} address "
                            f"'ray://host:10001');")
    told = {"address": options["address"]}
    for option, default in NUMBERS.items():
        try:
            told[option] = float(options[option]) if option in options else default
            if told[option] is not None and not 0 < told[option] <= 86400:
                raise ValueError
        except ValueError:
            raise MopError(f"option {option} of server {quoted} is no positive number: {options[option]!r}",
                           hint=f"ALTER SERVER {quoted} OPTIONS (SET {option} '1');") from None
    return told


def check(db, name):
    """Raises MopError where the cluster cannot be used, or nobody answers there."""
    told = cluster(db.plpy, name)
    host, _, port = told["address"][len("ray://"):].partition(":")
    problem = "nobody answers"
    try:
        with socket.socket(socket.AF_INET) as connection:
            connection.setblocking(False)
            if connection.connect_ex((socket.gethostbyname(host), int(port))) in (0, 115):
                for _ in range(SECONDS * 10):
                    if select.select([], [connection], [], 0.1)[1]:
                        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                        if not error:
                            return
                        problem = OSError(error).__class__.__name__
                        break
                    db.tick()
    except (OSError, OverflowError) as error:
        problem = str(error)
    raise MopError(f"Ray at {told['address']} cannot be reached: {problem}", sqlstate="08001",
                   hint=f"ray start --head --ray-client-server-port {port}, there; or ALTER SERVER "
                        f"{quote_identifier(name)} OPTIONS (SET address '...'); or RESET pg_mop.trainers;")
