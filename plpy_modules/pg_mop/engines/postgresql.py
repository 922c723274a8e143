"""Plain PostgreSQL: every segment is on this server, every worker session a connection back to it."""

from pg_mop.database import MopError, quote_identifier
from pg_mop.engines import ways
from pg_mop.engines.base import Engine, Segment


class PostgreSQL(Engine):
    def __init__(self, db):
        self.db = db

    def way(self, server):
        return ways.local(self.db)

    def share(self, packed):
        """The call's own locks do that (pg_mop.locks)."""

    def shapes(self, packed):
        return packed.shapes(self.db)

    def segments(self, packed):
        return self._segments_here(packed, str(packed.table), packed.keys_sql())

    def _segments_here(self, packed, table, keys_sql):
        """The segments of `table` (quoted) with the keys that some SQL gives."""
        db, found = self.db, []
        keys = [row["key"] for row in db.execute(keys_sql)]
        if None in keys:
            raise MopError(f'{packed.table} has buffers whose "__dist_key__" is NULL')
        for key in keys:
            sums = db.one(f"SELECT {_sizes(packed)} FROM {table} WHERE {packed.of_segment(key)}")
            if sums["rows"]:
                found.append(Segment(int(key), int(sums["rows"]), int(sums["bytes"]), db.value(
                    f"SELECT {FINGERPRINT} FROM {table} WHERE {packed.of_segment(key)}"), None, str(packed.table)))
        return found

    def fingerprint_sql(self, packed, segment):
        return f"SELECT {FINGERPRINT} AS fingerprint FROM {segment.table} WHERE {packed.of_segment(segment.key)}"

    def rows_sql(self, packed, segment, aggregate):
        def name(column):
            return quote_identifier(column).replace("%", "%%")
        wanted = ", ".join(f"{name(c)} AS c{i}, {name(c + '_shape')}::text AS s{i}"
                           for i, c in enumerate(packed.columns))
        values = ", ".join(f"c{i}" for i in range(len(packed.columns)))
        shapes = ", ".join(f"s{i}" for i in range(len(packed.columns)))
        aggregate, table = aggregate.replace("%", "%%"), segment.table.replace("%", "%%")
        # the rows are sorted while their values are still references to out-of-line storage
        return (f"SELECT {aggregate}(epoch, buffer_id, ARRAY[{values}], ARRAY[{shapes}]) AS report FROM ("
                f"SELECT epoch, buffer_id, {wanted} FROM {table}, generate_series(1, %(epochs)s) AS epoch "
                f"WHERE {packed.of_segment(segment.key)} AND %(where)s ORDER BY epoch, buffer_id OFFSET 0) AS buffers")


FINGERPRINT = ("count(*) || ':' || coalesce(md5(string_agg(concat_ws(',', tableoid, ctid, xmin), ';' "
               "ORDER BY tableoid, ctid)), '')")


def _sizes(packed):
    """SQL: what a segment's rows and bytes are, of its buffers."""
    size = " + ".join(f"octet_length({quote_identifier(c)})" for c in packed.columns)
    return f"sum({quote_identifier(packed.columns[0] + '_shape')}[1]) AS rows, sum({size}) AS bytes"
