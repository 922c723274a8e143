"""The way to a server: how a session gets there, and as whom."""

import re
from dataclasses import dataclass, field

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.backend.session_settings import listening, options_without

LOCAL = "pg_mop"  # the foreign server whose user mappings hold the roles' passwords for this server itself
# libpq's parameters that a postgres_fdw server or user mapping may set for our sessions, too
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
# SQL: the foreign data wrapper w is postgres_fdw, whatever its schema
IS_POSTGRES_FDW = "w.fdwhandler::regproc::text ~ '(^|\\.)postgres_fdw_handler$'"
# of our sessions' settings: those that came after PostgreSQL 9.4, or that only Greenplum has
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
    """`server`: its name, None: this server itself; `parameters`: psycopg2.connect's; `role`: to SET there;
    `by_password`: only if the server asked for the password; `lacks`: those of MAY_LACK that the server does not know.
    """

    server: str | None
    parameters: dict = field(repr=False)
    role: str
    by_password: bool = False
    lacks: frozenset = frozenset({"optimizer", "transaction_timeout"})  # of a server that has not been asked

    def options(self, text):
        """libpq's `options` that give these settings (-c name=value ...), but for those that the server lacks."""
        return options_without(self.lacks, text)

    def idle_sql(self, milliseconds):
        """SQL, with a semicolon: a session that is idle for so long is ended; 0: it stays. (Where the server ends none,
        it stays as long as who opened it.)"""
        return "" if "idle_session_timeout" in self.lacks else f"SET idle_session_timeout = {milliseconds}; "

    @property
    def key(self):
        """Equal for ways that lead to the same place as the same role."""
        shown = tuple(sorted((k, v) for k, v in self.parameters.items() if k != "password"))
        return self.server, shown, hash(self.parameters.get("password")), self.role

    def refused(self, error):
        """The MopError for a connection that could not be made, with the commands that mend it."""
        made, state = self._refused(error), getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        made.silent = self if state is None or state.startswith("57P") else None
        return made

    def _refused(self, error):
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
        # (of a connection that psycopg2 makes by itself the SQLSTATE is not known)
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


def connections_hint(user):
    """What helps where no more sessions can be had for a role (quoted)."""
    return (
        "SELECT pid, usename, datname, application_name FROM pg_stat_activity; or, where it is the role's limit, "
        f"ALTER ROLE {user} CONNECTION LIMIT ...;"
    )


def local(db):
    """The way back to this server, as the session's own role: by its own socket or as the foreign server `pg_mop` says.

    Where to is the administrator's to say (host, port and sslmode of the SERVER); the role's USER MAPPING gives
    nothing but the password, or anybody could have this server's operating-system user connect as a superuser.
    """
    user, role = db.value("SELECT session_user::text"), db.current_user()
    if role not in (user, db.setting("role")):
        raise MopError(
            "training cannot be called within a SECURITY DEFINER function of another role",
            detail=f"Worker sessions would connect as {quote_identifier(user)}, whose rights that "
            "function must not have.",
            sqlstate="0A000",
        )
    if role != user:
        # The role's code there may RESET ROLE. So there is no way where PostgreSQL itself lets nobody do that: in a
        # SECURITY DEFINER function, REFRESH MATERIALIZED VIEW, the expression of an index.
        try:
            db.execute("SELECT set_config('role', current_setting('role'), true)")
        except db.plpy.SPIError as error:
            if error.sqlstate != "42501":
                raise
            raise MopError(
                "no session can be opened where nobody may RESET ROLE",
                detail=str(error),
                hint=f"Call as role {quote_identifier(role)}, outside of SECURITY DEFINER functions, "
                "materialized views and indexes.",
                sqlstate="42501",
            ) from None
    parameters = {"dbname": db.value("SELECT current_database()::text"), "user": user}
    parameters["port"], sockets, address = listening()
    parameters["host"] = sockets or address or "127.0.0.1"
    target = Target(None, parameters, role, lacks=frozenset(db.lacking_settings(MAY_LACK)))
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
    # not PUBLIC's: only the server's owner may read that, and a password is one role's
    mapping = db.one(
        "SELECT umoptions, current_user = session_user AND has_server_privilege(srvid, 'USAGE') OR (SELECT "
        "rolsuper FROM pg_roles WHERE rolname = current_user) AS readable FROM pg_user_mappings "
        "WHERE srvid = $1 AND usename = session_user",
        ["oid"],
        [server["oid"]],
    )
    if mapping is None:
        return target
    parameters["password"] = ""  # tells `refused` that there is a mapping
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


def to(db, name):
    """The way to a postgres_fdw server as the user mapping of the role whose rights are in force says.

    Raises MopError where there is no such server or mapping, or the role may not use it. As for postgres_fdw itself,
    who is no superuser must have a password there, unless a superuser has set password_required 'false': or anybody
    could have this server's operating-system user connect.
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
            f"server {quoted} is none of postgres_fdw",
            detail="No session can train on it.",
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
            detail="That of PUBLIC does not count: what is trained there is one role's.",
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


def is_postgres_fdw(handler):
    """True for the name of postgres_fdw's handler, whatever its schema."""
    return handler.rpartition(".")[2] == "postgres_fdw_handler"


def options(texts):
    """PostgreSQL's list of name=value -> pairs."""
    return [tuple(text.split("=", 1)) for text in texts or []]
