"""Plain PostgreSQL: every segment is on this server, every worker session a connection back to it."""

from pg_mop.database import MopError, quote_identifier
from pg_mop.engines.base import Engine, Segment

SERVER = "pg_mop"  # the foreign server whose user mappings hold the roles' credentials


class PostgreSQL(Engine):
    def segments(self, db, packed):
        keys = db.execute(f"SELECT DISTINCT __dist_key__ AS key FROM {packed.table} ORDER BY 1")
        if any(row["key"] is None for row in keys):
            raise MopError(f'{packed.table} has buffers whose "__dist_key__" is NULL')
        size = " + ".join(f"octet_length({quote_identifier(c)})" for c in packed.columns)
        first = quote_identifier(packed.columns[0] + "_shape")
        found = []
        for row in keys:
            sums = db.one(f"SELECT sum({first}[1]) AS rows, sum({size}) AS bytes FROM {packed.table} "
                          f"WHERE __dist_key__ = {int(row['key'])}")
            if sums["rows"]:
                found.append(Segment(int(row["key"]), int(sums["rows"]), int(sums["bytes"]),
                                     db.value(self.fingerprint_sql(packed, row["key"]))))
        return found

    def fingerprint_sql(self, packed, key):
        return (f"SELECT count(*) || ':' || coalesce(md5(string_agg(concat_ws(',', tableoid, ctid, xmin), ';' "
                f"ORDER BY tableoid, ctid)), '') AS fingerprint FROM {packed.table} WHERE __dist_key__ = {int(key)}")

    def rows_sql(self, packed, key, aggregate):
        def name(column):
            return quote_identifier(column).replace("%", "%%")
        wanted = ", ".join(f"{name(c)} AS c{i}, {name(c + '_shape')}::text AS s{i}"
                           for i, c in enumerate(packed.columns))
        values = ", ".join(f"c{i}" for i in range(len(packed.columns)))
        shapes = ", ".join(f"s{i}" for i in range(len(packed.columns)))
        # the rows are sorted while their values are still references to out-of-line storage
        return (f"SELECT {aggregate}(epoch, buffer_id, ARRAY[{values}], ARRAY[{shapes}]) AS report FROM ("
                f"SELECT epoch, buffer_id, {wanted} FROM {str(packed.table).replace('%', '%%')}, "
                f"generate_series(1, %(epochs)s) AS epoch "
                f"WHERE __dist_key__ = {int(key)} AND %(where)s ORDER BY epoch, buffer_id OFFSET 0) AS buffers")

    def connection_parameters(self, db):
        """By the server's own socket, or as the role's USER MAPPING on the foreign server `pg_mop` says."""
        user = db.value("SELECT session_user::text")
        parameters = {"dbname": db.value("SELECT current_database()::text"), "user": user}
        mapping = db.value("SELECT umoptions FROM pg_user_mappings WHERE srvname = $1 AND "
                           "umuser IN (0, (SELECT oid FROM pg_roles WHERE rolname = session_user)) "
                           "ORDER BY umuser DESC LIMIT 1", ["text"], [SERVER])
        # of a backend, the current directory is the data directory
        with open("postmaster.pid") as file:
            lines = file.read().splitlines()
        parameters["port"], sockets, listen = lines[3].strip(), lines[4].strip(), lines[5].strip()
        parameters["host"] = sockets or ("127.0.0.1" if listen in ("*", "", "0.0.0.0") else listen)
        options = db.value("SELECT srvoptions FROM pg_foreign_server WHERE srvname = $1", ["text"], [SERVER])
        for option in (options or []) + (mapping or []):
            name, _, value = option.partition("=")
            if name in ("host", "port", "user", "password", "sslmode", "sslrootcert"):
                parameters[name] = value
        return parameters
