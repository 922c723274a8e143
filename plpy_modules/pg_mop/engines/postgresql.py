"""Plain PostgreSQL: every segment is on this server, every worker session a connection back to it."""

from pg_mop.database import MopError, listening, quote_identifier
from pg_mop.engines.base import Engine, Segment

SERVER = "pg_mop"  # the foreign server whose user mappings hold the roles' credentials


class PostgreSQL(Engine):
    def segments(self, db, packed):
        keys = db.execute(packed.keys_sql())
        if any(row["key"] is None for row in keys):
            raise MopError(f'{packed.table} has buffers whose "__dist_key__" is NULL')
        size = " + ".join(f"octet_length({quote_identifier(c)})" for c in packed.columns)
        first = quote_identifier(packed.columns[0] + "_shape")
        found = []
        for row in keys:
            sums = db.one(f"SELECT sum({first}[1]) AS rows, sum({size}) AS bytes FROM {packed.table} "
                          f"WHERE {packed.of_segment(row['key'])}")
            if sums["rows"]:
                found.append(Segment(int(row["key"]), int(sums["rows"]), int(sums["bytes"]),
                                     db.value(self.fingerprint_sql(packed, row["key"]))))
        return found

    def fingerprint_sql(self, packed, key):
        return (f"SELECT count(*) || ':' || coalesce(md5(string_agg(concat_ws(',', tableoid, ctid, xmin), ';' "
                f"ORDER BY tableoid, ctid)), '') AS fingerprint FROM {packed.table} WHERE {packed.of_segment(key)}")

    def rows_sql(self, packed, key, aggregate):
        def name(column):
            return quote_identifier(column).replace("%", "%%")
        wanted = ", ".join(f"{name(c)} AS c{i}, {name(c + '_shape')}::text AS s{i}"
                           for i, c in enumerate(packed.columns))
        values = ", ".join(f"c{i}" for i in range(len(packed.columns)))
        shapes = ", ".join(f"s{i}" for i in range(len(packed.columns)))
        aggregate = aggregate.replace("%", "%%")
        # the rows are sorted while their values are still references to out-of-line storage
        return (f"SELECT {aggregate}(epoch, buffer_id, ARRAY[{values}], ARRAY[{shapes}]) AS report FROM ("
                f"SELECT epoch, buffer_id, {wanted} FROM {str(packed.table).replace('%', '%%')}, "
                f"generate_series(1, %(epochs)s) AS epoch "
                f"WHERE {packed.of_segment(key)} AND %(where)s ORDER BY epoch, buffer_id OFFSET 0) AS buffers")

    def connection_parameters(self, db):
        """As the session's own role, by the server's own socket or as the foreign server `pg_mop` says.

        Where to is the administrator's to say (host, port and sslmode of the SERVER); the role's USER MAPPING gives
        nothing but the password, or anybody could have this server's operating-system user connect as a superuser.
        """
        user = db.value("SELECT session_user::text")
        if db.current_user() not in (user, db.setting("role")):
            raise MopError("training cannot be called within a SECURITY DEFINER function of another role",
                           detail=f"Worker sessions would connect as {quote_identifier(user)}, whose rights that "
                                  "function must not have.", sqlstate="0A000")
        parameters = {"dbname": db.value("SELECT current_database()::text"), "user": user}
        parameters["port"], sockets, address = listening()
        parameters["host"] = sockets or address or "127.0.0.1"
        server = db.one("SELECT s.oid, s.srvoptions FROM pg_foreign_server s JOIN pg_foreign_data_wrapper w "
                        "ON w.oid = s.srvfdw WHERE s.srvname = $1 AND w.fdwname = $1", ["text"], [SERVER])
        if server is None:
            return parameters
        for name, value in _options(server["srvoptions"]):
            if name in ("host", "port", "sslmode", "sslrootcert"):
                parameters[name] = value
        # not PUBLIC's: only the server's owner may read that, and a password is one role's
        mapping = db.one(
            "SELECT umoptions, current_user = session_user AND has_server_privilege(srvid, 'USAGE') OR (SELECT "
            "rolsuper FROM pg_roles WHERE rolname = current_user) AS readable FROM pg_user_mappings "
            "WHERE srvid = $1 AND usename = session_user", ["oid"], [server["oid"]])
        if mapping is None:
            return parameters
        parameters["password"] = ""  # tells connection_refused that there is a mapping
        if mapping["umoptions"] is None and not mapping["readable"]:
            raise MopError(f"the user mapping of role {quote_identifier(user)} for server {SERVER} cannot be read",
                           hint=f"GRANT USAGE ON FOREIGN SERVER {SERVER} TO {quote_identifier(user)}; and call as that "
                                "role itself.", sqlstate="42501")
        for name, value in _options(mapping["umoptions"]):
            if name == "password":
                parameters[name] = value
            elif name == "user" and value != user:
                raise MopError(f'the user mapping of role {quote_identifier(user)} says user "{value}"',
                               detail="Worker sessions connect as the role that calls.", sqlstate="42501")
        return parameters


def _options(texts):
    """PostgreSQL's list of name=value -> pairs."""
    return [tuple(text.split("=", 1)) for text in texts or []]
