"""Where packed rows are: what differs between kinds of places."""

from pg_mop.engines.postgres_fdw import PostgresFdw, foreign_partitions
from pg_mop.engines.postgresql import PostgreSQL


def find(db, tables, tick):
    """The Engine of a call's packed tables, found by looking at them. `tick`: called while servers are waited for.

    Raises MopError for a foreign table that is none of postgres_fdw's.
    """
    foreign = {packed.table.oid: found for packed in tables if (found := foreign_partitions(db, packed))}
    if not foreign:
        return PostgreSQL(db)
    engine = PostgresFdw(db, foreign, tick)
    db.at_end.append(engine.close)  # whatever becomes of the call, no session holds locks on other servers
    return engine
