"""Connection targets: the address of a server, and the role of the session there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pg_mop.backend import custom_settings
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.backend.session_settings import listening, options_without

if TYPE_CHECKING:
    from pg_mop.backend.database import Database

LOCAL = "pg_mop"  # the foreign server whose user mappings hold the roles' passwords for this server
# The libpq parameters that our sessions take from a postgres_fdw server and its user mapping.
TAKEN = (
    "host",
    "hostaddr",
    "port",
    "dbname",
    "sslmode",
    "sslrootcert",
    "sslcrl",
    "sslsni",
    "ssl_min_protocol_version",
    "gssencmode",
    "krbsrvname",
    "channel_binding",
    "target_session_attrs",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)
# SQL: the foreign data wrapper w is postgres_fdw, in any schema.
IS_POSTGRES_FDW = "w.fdwhandler::regproc::text ~ '(^|\\.)postgres_fdw_handler$'"
# Settings of our sessions that came after PostgreSQL 9.4, or that only Greenplum has.
MAY_LACK = (
    "row_security",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
    "jit",
    "client_connection_check_interval",
    "optimizer",
)
REFUSED = ("service", "passfile", "sslkey", "sslcert", "sslpassword", "requirepeer", "options")


@dataclass(frozen=True)
class Target:
    """A connection target: one server, one role.

    `server`: the name of the foreign server; None: this server. `parameters`: of psycopg2.connect. `role`: for SET ROLE.
    `by_password`: the connection counts only if the server asked for the password. `lacks`: the settings in MAY_LACK
    that the server does not know. `settings`: (name, value) of the settings of the caller's application, for this server
    alone: another one has packed rows, which no policy of the caller's tables hides, and the values may be secrets.
    """

    server: str | None
    parameters: dict = field(repr=False)
    role: str
    by_password: bool = False
    lacks: frozenset = frozenset({"optimizer", "transaction_timeout"})  # the assumption for other servers
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def options(self, text: str) -> str:
        """libpq's `options` (-c name=value ...) without the settings that the server lacks."""
        return options_without(self.lacks, text)

    def idle_sql(self, milliseconds: int) -> str:
        """SQL, ending in a semicolon: the server ends the session after so long an idle time; 0: never.

        On a server without this setting, the session lives as long as the process that opened it.
        """
        return "" if "idle_session_timeout" in self.lacks else f"SET idle_session_timeout = {milliseconds}; "

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for connection targets of the same address and role."""
        shown = tuple(sorted((k, v) for k, v in self.parameters.items() if k != "password"))
        return self.server, shown, hash(self.parameters.get("password")), self.role

    def refused(self, error: Exception) -> MopError:
        """The MopError for a failed connection, with a hint."""
        made, state = self._refused(error), getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        made.unreachable = self if state is None or state.startswith("57P") else None
        return made

    def _refused(self, error: Exception) -> MopError:
        user = quote_identifier(self.parameters["user"])
        if self.server is not None:
            server = quote_identifier(self.server)
            return MopError(
                f"cannot open a session on server {server} as role {user}",
                detail=str(error).strip(),
                hint=f"SELECT srvoptions, umoptions FROM pg_foreign_server s JOIN pg_user_mappings m ON "
                f"m.srvid = s.oid WHERE s.srvname = {quote_literal(self.server)}; then ALTER SERVER "
                f"or ALTER USER MAPPING.",
                sqlstate="08001",
            )
        address = listening()[2]
        options = f" OPTIONS (host {quote_literal(address)})" if address else ""
        # psycopg2 does not tell the SQLSTATE of a refused blocking connection.
        if getattr(error, "sqlstate", None) == "53300" or re.search("too many|connection slots", str(error)):
            hint = connections_hint(user)
        elif "password" in self.parameters:
            hint = (
                "The password is that of the role's user mapping: ALTER USER MAPPING FOR "
                f"{user} SERVER pg_mop OPTIONS ({'SET' if self.parameters['password'] else 'ADD'} password "
                f"'...');"
            )
        else:
            hint = (
                "Worker sessions connect to this server as the calling role. Where it asks them for a password: "
                f"CREATE SERVER IF NOT EXISTS pg_mop FOREIGN DATA WRAPPER pg_mop{options}; "
                f"GRANT USAGE ON FOREIGN SERVER pg_mop TO {user}; "
                f"CREATE USER MAPPING FOR {user} SERVER pg_mop OPTIONS (password '...');"
            )
        return MopError(
            f"cannot open a worker session as role {user}", detail=str(error).strip(), hint=hint, sqlstate="08001"
        )


def connections_hint(user: str) -> str:
    """The hint for a role (quoted) that has too many connections."""
    return (
        "SELECT pid, usename, datname, application_name FROM pg_stat_activity; or, where it is the role's limit, "
        f"ALTER ROLE {user} CONNECTION LIMIT ...;"
    )


def local(db: Database) -> Target:
    """The connection target for this server, as the session's role: its socket, or the foreign server `pg_mop`.

    Only the administrator chooses the address (host, port and sslmode of the SERVER). The role's USER MAPPING sets the
    password alone: otherwise any role could make this server's operating-system user connect as a superuser. Raises
    MopError.
    """
    user, role = db.value("SELECT session_user::text"), db.current_user()
    if role not in (user, db.setting("role")):
        raise MopError(
            "training cannot be called within a SECURITY DEFINER function of another role",
            detail=f"Worker sessions would connect as {quote_identifier(user)}, whose privileges that "
            "function must not have.",
            sqlstate="0A000",
        )
    if role != user:
        # The role's code in a worker session may RESET ROLE. So no session is opened where PostgreSQL forbids that: in a
        # SECURITY DEFINER function, in REFRESH MATERIALIZED VIEW, in the expression of an index.
        try:
            db.execute("SELECT set_config('role', current_setting('role'), true)")
        except db.plpy.SPIError as error:
            if error.sqlstate != "42501":
                raise
            raise MopError(
                "worker sessions cannot be opened where RESET ROLE is not allowed",
                detail=str(error),
                hint=f"Call as role {quote_identifier(role)}, outside of SECURITY DEFINER functions, "
                "materialized views and indexes.",
                sqlstate="42501",
            ) from None
    parameters = {"dbname": db.value("SELECT current_database()::text"), "user": user}
    parameters["port"], sockets, address = listening()
    parameters["host"] = sockets or address or "127.0.0.1"
    lacks = frozenset(db.lacking_settings(MAY_LACK))
    target = Target(None, parameters, role, lacks=lacks, settings=custom_settings.of_applications(db))
    server = db.one(
        "SELECT s.oid, s.srvoptions FROM pg_foreign_server s JOIN pg_foreign_data_wrapper w "
        "ON w.oid = s.srvfdw WHERE s.srvname = $1 AND w.fdwname = $1",
        ["text"],
        [LOCAL],
    )
    if server is None:
        return target
    for name, value in options(server["srvoptions"]):
        if name in ("host", "port", "sslmode", "sslrootcert"):
            parameters[name] = value
    # PUBLIC's mapping does not count: only the server's owner may read it, and a password belongs to one role.
    mapping = db.one(
        "SELECT umoptions, current_user = session_user AND has_server_privilege(srvid, 'USAGE') OR (SELECT "
        "rolsuper FROM pg_roles WHERE rolname = current_user) AS readable FROM pg_user_mappings "
        "WHERE srvid = $1 AND usename = session_user",
        ["oid"],
        [server["oid"]],
    )
    if mapping is None:
        return target
    parameters["password"] = ""  # marks the mapping for `refused`
    if mapping["umoptions"] is None and not mapping["readable"]:
        raise MopError(
            f"the user mapping of role {quote_identifier(user)} for server {LOCAL} cannot be read",
            hint=f"GRANT USAGE ON FOREIGN SERVER {LOCAL} TO {quote_identifier(user)}; and call as that role itself.",
            sqlstate="42501",
        )
    for name, value in options(mapping["umoptions"]):
        if name == "password":
            parameters[name] = value
        elif name == "user" and value != user:
            raise MopError(
                f'the user mapping of role {quote_identifier(user)} says user "{value}"',
                detail="Worker sessions connect as the role that calls.",
                sqlstate="42501",
            )
    return target


def to(db: Database, name: str) -> Target:
    """The connection target for a postgres_fdw server, by the current role's user mapping.

    Raises MopError if the server or the mapping does not exist, or the role may not use the server. As in postgres_fdw,
    a role that is not a superuser needs a password, unless a superuser has set password_required 'false': otherwise any
    role could connect as this server's operating-system user.
    """
    quoted, user = quote_identifier(name), db.current_user()
    server = db.one(
        "SELECT s.oid, s.srvoptions, has_server_privilege(s.oid, 'USAGE') AS usable, w.fdwhandler::regproc::text AS "
        "handler FROM pg_foreign_server s JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw WHERE s.srvname = $1",
        ["text"],
        [name],
    )
    if server is None:
        raise MopError(
            f"server {quoted} does not exist", hint="SELECT srvname FROM pg_foreign_server;", sqlstate="42704"
        )
    if not is_postgres_fdw(server["handler"]):
        raise MopError(
            f"server {quoted} is not a server of postgres_fdw",
            detail="Worker sessions cannot connect to it.",
            hint="CREATE EXTENSION postgres_fdw; CREATE SERVER ... FOREIGN DATA WRAPPER postgres_fdw;",
            sqlstate="42809",
        )
    if not server["usable"]:
        raise MopError(
            f"permission denied for foreign server {quoted}",
            sqlstate="42501",
            hint=f"GRANT USAGE ON FOREIGN SERVER {quoted} TO {quote_identifier(user)};",
        )
    mapping = db.one(
        "SELECT umoptions FROM pg_user_mappings WHERE srvid = $1 AND usename = $2",
        ["oid", "text"],
        [server["oid"], user],
    )
    make = (
        f"CREATE USER MAPPING FOR {quote_identifier(user)} SERVER {quoted} OPTIONS (user {quote_literal(user)}, "
        f"password '...');"
    )
    if mapping is None:
        raise MopError(
            f"role {quote_identifier(user)} has no user mapping for server {quoted}",
            detail="A mapping for PUBLIC does not count: a run belongs to one role.",
            hint=make,
            sqlstate="42704",
        )
    given = {**dict(options(server["srvoptions"])), **dict(options(mapping["umoptions"]))}
    if refused := next((option for option in REFUSED if option in given), None):
        raise MopError(
            f'server {quoted} has the option "{refused}", which sessions of pg_mop do not take',
            detail="They take " + ", ".join(TAKEN) + ", user and password.",
            hint=f"ALTER SERVER {quoted} OPTIONS (DROP {refused}); or the user mapping's.",
        )
    if not given.get("user"):
        raise MopError(
            f"the user mapping of role {quote_identifier(user)} for server {quoted} names no user",
            hint=f"ALTER USER MAPPING FOR {quote_identifier(user)} SERVER {quoted} OPTIONS (ADD user "
            f"{quote_literal(user)});",
        )
    by_password = not db.is_superuser() and given.get("password_required") != "false"
    if by_password and not given.get("password"):
        raise MopError(
            f"the user mapping of role {quote_identifier(user)} for server {quoted} has no password",
            hint=f"ALTER USER MAPPING FOR {quote_identifier(user)} SERVER {quoted} OPTIONS (ADD password "
            f"'...'); or a superuser adds password_required 'false'.",
            sqlstate="42501",
        )
    parameters = {option: value for option, value in given.items() if option in TAKEN}
    parameters.setdefault("dbname", given["user"])
    parameters["user"] = given["user"]
    if given.get("password"):
        parameters["password"] = given["password"]
    return Target(name, parameters, given["user"], by_password)


def is_postgres_fdw(handler: str) -> bool:
    """True for the name of postgres_fdw's handler, in any schema."""
    return handler.rpartition(".")[2] == "postgres_fdw_handler"


def options(texts: Iterable[str] | None) -> list[tuple[str, str]]:
    """PostgreSQL's list of name=value texts as pairs."""
    return [(name, value) for name, _, value in (text.partition("=") for text in texts or [])]
