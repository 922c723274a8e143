"""Functions for several servers: a server's description of itself, mop_connect_servers, mop_drop_packed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import psycopg2

from pg_mop import __version__
from pg_mop.backend import device_memory, settings
from pg_mop.backend.caller import extension_schema
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.call.earlier import open_catalog, own_run
from pg_mop.connections import targets
from pg_mop.connections.links import Link, Links
from pg_mop.connections.sessions import SessionLost
from pg_mop.engines.postgres_fdw import foreign_partitions
from pg_mop.packing.packed_table import looks_packed
from pg_mop.packing.partitions import is_of, this_database
from pg_mop.packing.summary import copies_in, reachable


def info(plpy: Any) -> str:
    """This server as JSON: pg_mop's version, cores, GPUs and memory, how many threads compute now, its mop_identity(), the
    names of the foreign servers that the role can use, and the bytes that the disk of its new tables has left."""
    schema = quote_identifier(extension_schema(plpy))
    return json.dumps(
        {
            "pg_mop": __version__,
            "cores": settings.cores(),
            "computing": settings.runnable_threads(),
            "gpus": settings.gpus(),
            "memory": device_memory.found(settings.gpus()),
            "identity": plpy.execute(f"SELECT {schema}.mop_identity() AS name")[0]["name"],
            "servers": [row["name"] for row in plpy.execute(REACHED)],
            "free_bytes": _free_bytes(plpy.execute(TABLESPACE)[0]["oid"]),
        }
    )


# the tablespace of the role's new tables
TABLESPACE = """
SELECT coalesce((SELECT t.oid FROM pg_catalog.pg_tablespace t WHERE t.spcname OPERATOR(pg_catalog.=)
        pg_catalog.current_setting('default_tablespace')::pg_catalog.name), d.dattablespace)::text AS oid
FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()"""
PG_DEFAULT = "1663"  # its OID


def _free_bytes(tablespace: str) -> int | None:
    """The bytes that the disk of a tablespace (its OID, as text) has left; None if that is not known. (A backend works in
    the data directory.)"""
    try:
        status = os.statvfs("." if tablespace == PG_DEFAULT else f"pg_tblspc/{tablespace}")
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


@sql_function
def mop_add_server(db: Database, run_id: int | None, server: str | None) -> None:
    """Let a server join a run in progress. Its coordinator copies segments there, and then trains on them.

    Raises MopError where the server cannot join: the caller does not own the run, the run has ended or has no copies, or the
    server is unknown, cannot be used, has another version, or is one of the run's.
    """
    db.check_engine("mop_add_server")
    if server is None or not server.strip():
        raise MopError("no server is named", hint="SELECT srvname FROM pg_foreign_server;")
    name, quoted = server.strip(), quote_identifier(server.strip())
    with open_catalog(db) as catalog:
        run = own_run(db, catalog, run_id)
        assert run_id is not None
        servers = catalog.remote_runs(run_id)
        elsewhere = catalog.has_other_servers(run_id)
    if run["status"] != "running":
        raise MopError(f"run {run_id} is {run['status']}, not running", sqlstate="55000")
    if name in servers:
        raise MopError(f"server {quoted} is one of the servers of run {run_id} already", sqlstate="42710")
    target = targets.to(db, name)
    if not elsewhere or run["parameters"]["settings"].get("replicas", 1) < 2:
        raise MopError(
            f"run {run_id} has no copies of segments on other servers, so no server can join it",
            detail="It began with pg_mop.replicas = 1, or all its segments are on this server.",
            hint="SET pg_mop.servers = ...; SET pg_mop.replicas = 2; before packing and training.",
            sqlstate="55000",
        )
    link = Links(db)[name]  # raises MopError
    if link.info["identity"] == this_database(db):
        raise MopError(f"server {quoted} is this server", hint="The coordinator takes part already.")
    db.execute(
        f"SELECT {db.extension}.mop_add_control_request($1, json_build_object('server', $2, 'by', current_user))",
        ["bigint", "text"],
        [run_id, target.server],
    )
    db.info(f"server {quoted} joins run {run_id} once it has copies of segments; the session of the run tells when")


Options = dict[str, str]  # of a user mapping
REACHED = f"""
SELECT s.srvname::text AS name FROM pg_catalog.pg_foreign_server s
JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid = s.srvfdw
WHERE {targets.IS_POSTGRES_FDW} AND has_server_privilege(s.oid, 'USAGE') AND EXISTS (
    SELECT 1 FROM pg_catalog.pg_user_mappings m WHERE m.srvid = s.oid AND m.usename IN (current_user, 'public'))"""


@sql_function
def mop_connect_servers(db: Database, servers: str | None) -> list[dict[str, Any]]:
    """Let servers reach one another: on each of `servers` (names, comma-separated), create the others as foreign servers.

    The foreign servers have the names and options that they have on this server. A role gets a user mapping if it has
    mappings for both servers on this server. Statements contain no passwords: the servers' administrators add them.

    Returns a row for each pair of servers and role. `missing` is a command that remains to be run on that server, a
    comment that names an obstacle, or None. Raises MopError if the caller is not a superuser on this server and on the
    others; nothing is created then. Created objects stay even if this transaction rolls back; a second call creates the
    missing rest.
    """
    if not db.is_superuser():
        raise MopError("only a superuser may connect servers", sqlstate="42501")
    names = [name.strip() for name in (servers or "").split(",")]
    if len(set(names)) < 2 or "" in names:
        raise MopError(
            f"servers must be the names of at least two servers, w1, w2, not {servers!r}",
            hint="SELECT srvname FROM pg_foreign_server;",
        )
    # On a node of Citus, create the objects on that node only.
    links = Links(db, "SET citus.enable_ddl_propagation = off" if db.has_citus else None)
    rows: list[dict[str, Any]] = []
    known: dict[str, Any] = {}
    mappings = {
        name: {
            row["role"]: dict(targets.options(row["umoptions"]))
            for row in db.execute(
                "SELECT usename AS role, umoptions FROM pg_user_mappings WHERE srvname = $1 AND umuser <> 0 ORDER BY 1",
                ["text"],
                [name],
            )
        }
        for name in names
    }
    try:
        for name in names:
            if (first := known.setdefault(links[name].info["identity"], name)) != name:
                raise MopError(
                    f"servers {quote_identifier(first)} and {quote_identifier(name)} are one", hint="Name one of them."
                )
            if not links[name].run("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")[0][0]:
                raise MopError(
                    f"role {quote_identifier(links[name].target.role)} is no superuser on server {quote_identifier(name)}",
                    sqlstate="42501",
                    hint="Map a superuser to a superuser of that server, or create servers and mappings on it by hand.",
                )
        for name in names:
            link = links[name]
            link.run(f"BEGIN; SET LOCAL lock_timeout = '{link.lock_timeout}'")
            if not link.run("SELECT 1 FROM pg_extension WHERE extname = 'postgres_fdw'"):
                link.run(f"CREATE EXTENSION postgres_fdw SCHEMA {link.schema}")
            for other in names:
                if other != name:
                    rows += _connect(db, link, other, mappings[name], mappings[other])
        for name in names:
            links[name].run("COMMIT")
        db.note_act("connect servers", {"servers": names})
    except (psycopg2.Error, SessionLost) as error:
        raise MopError(
            f"server {quote_identifier(name)}: {str(error).strip()}", sqlstate=getattr(error, "pgcode", None) or "08006"
        ) from None
    return rows


def _connect(
    db: Database, link: Link, server: str, here: Mapping[str, Options], there: Mapping[str, Options]
) -> list[dict[str, Any]]:
    """Create `server` as a foreign server on the link's server, with user mappings for the roles that have both.

    Returns rows of mop_connect_servers. `here`, `there`: {role: options of its mapping} of the coordinator's mappings for
    the link's server and for `server`. Existing objects stay unchanged; a foreign server of that name with another
    address gets no mappings.
    """
    on, quoted = link.target.server, quote_identifier(server)
    assert on is not None
    options_here = {
        option: value
        for option, value in targets.options(
            db.value("SELECT srvoptions FROM pg_foreign_server WHERE srvname = $1", ["text"], [server])
        )
        if option in targets.TAKEN
    }
    rows = link.run(
        "SELECT srvoptions, w.fdwhandler::regproc::text FROM pg_foreign_server s JOIN "
        f"pg_foreign_data_wrapper w ON w.oid = s.srvfdw WHERE srvname = {quote_literal(server)}"
    )
    if rows:
        options, handler = dict(targets.options(rows[0][0])), rows[0][1]
        if (
            not targets.is_postgres_fdw(handler or "")
            or {o: v for o, v in options.items() if o in targets.TAKEN} != options_here
        ):
            return [
                {
                    "on_server": on,
                    "server": server,
                    "role": None,
                    "missing": f"-- {quoted} has another address on {quote_identifier(on)}: "
                    f"ALTER SERVER {quoted} OPTIONS (...);",
                }
            ]
    else:
        options_sql = ", ".join(
            f"{option} {quote_literal(value)}" for option, value in {**options_here, "connect_timeout": "10"}.items()
        )
        link.run(f"CREATE SERVER {quoted} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({options_sql})")
    roles: dict[str, dict[str, Options]] = {}
    for role in here.keys() & there.keys():
        if "user" in here[role] and "user" in there[role]:
            roles.setdefault(here[role]["user"], {})[role] = there[role]
    return [
        {"on_server": on, "server": server, "role": role, "missing": _make_mapping(link, quoted, server, role, to)}
        for role, to in sorted(roles.items())
    ]


def _make_mapping(link: Link, quoted: str, server: str, role: str, to: Mapping[str, Options]) -> str | None:
    """Map a role of the link's server to its role on `server`, unless it is mapped. Returns the missing command, or None.

    `to`: {coordinator's role: options of its mapping for `server`} of the roles that are `role` on the link's server.
    """
    mapping = f"USER MAPPING FOR {quote_identifier(role)} SERVER {quoted}"
    users = sorted({options["user"] for options in to.values()})
    if len(users) > 1:  # one role would get the other's privileges
        return (
            f"-- {quote_identifier(role)} stands for several roles of the coordinator, "
            f"which are {', '.join(users)} on {quoted}"
        )
    there = next(iter(to.values()))
    free = all(options.get("password_required") == "false" for options in to.values())
    rows = link.run(
        f"SELECT umoptions FROM pg_user_mappings WHERE srvname = {quote_literal(server)} AND usename = "
        f"{quote_literal(role)}"
    )
    has = dict(targets.options(rows[0][0])) if rows else {"user": there["user"]}
    if not rows:
        link.run(
            f"GRANT USAGE ON FOREIGN SERVER {quoted} TO {quote_identifier(role)}; CREATE {mapping} OPTIONS (user "
            f"{quote_literal(there['user'])}{', password_required ' + quote_literal('false') if free else ''})"
        )
    if has.get("user") != there["user"]:
        return f"ALTER {mapping} OPTIONS (SET user {quote_literal(there['user'])});"
    return f"ALTER {mapping} OPTIONS (ADD password '...');" if "password" in there and "password" not in has else None


@sql_function
def mop_drop_packed(db: Database, packed_table: str | None) -> None:
    """Drop a packed table, its summary, and the tables that the preprocessor has made for it on other servers.

    Tables on other servers are dropped at once, even if this transaction rolls back. Raises MopError if the table does
    not exist, if no preprocessor has made it, or if a server cannot be reached; nothing is dropped then.
    """
    table = db.input_table(packed_table, "packed table", rows=False)
    text = str(packed_table)
    summary = db.find_table(db.suffixed(text, "_summary"))
    if not looks_packed(db, table):
        raise MopError(
            f'"{packed_table}" is no packed table',
            hint=f"DROP TABLE {table};",
            sqlstate="42809",
            detail="No preprocessor has made it: it lacks the column buffer_id, or bytea columns with a column of "
            "shapes. Nothing was dropped.",
        )
    if summary is not None and "independent_varname" not in db.columns(summary):
        db.notice(f"{summary} stays: it is not the summary of a packed table")
        summary = None
    copies = []
    if summary is not None and summary.kind == "r":  # a view could run its owner's functions with our privileges
        copies = reachable(db, copies_in(db.one(f"SELECT * FROM {summary}"), summary), summary)
    links, mine = Links(db), []
    elsewhere = [
        *foreign_partitions(db, table, text),
        *((server, there) for _, server, there in copies if server is not None),
    ]
    for server, there in dict.fromkeys(elsewhere):
        mark = links[server].run(f"SELECT obj_description(to_regclass({quote_literal(there)}), 'pg_class')")[0][0]
        if is_of(mark or "", db, table):
            mine.append((server, there))
        elif mark is not None:
            db.notice(f"{there} on server {server} stays: no preprocessor of this database has made it")
    # A summary may name any table.
    mine_here = [
        there
        for there in dict.fromkeys(there for _, server, there in copies if server is None)
        if is_of(
            db.value(
                "SELECT obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_class p ON p.relowner = c.relowner WHERE "
                "c.oid = to_regclass($1) AND p.oid = $2",
                ["text", "oid"],
                [there, table.oid],
            )
            or "",
            db,
            table,
        )
    ]
    db.note_act("drop packed", {"table": str(table), "servers": sorted({server for server, _ in mine})})
    db.execute("DROP TABLE " + ", ".join(map(str, [table, *([summary] if summary is not None else []), *mine_here])))
    for server, there in mine:
        link = links[server]
        try:
            link.run(f"SET lock_timeout = {quote_literal(link.lock_timeout)}; DROP TABLE IF EXISTS {there}")
        except (psycopg2.Error, SessionLost) as error:
            raise MopError(
                f"{there} on server {link.name} cannot be dropped: {str(error).strip()}",
                detail="Nothing was dropped here, and what was dropped on other servers before is gone.",
                hint=f"Call again when no run uses it: SELECT * FROM {db.extension}.mop_runs WHERE status = 'running';",
                sqlstate=getattr(error, "pgcode", None) or "08006",
            ) from None
