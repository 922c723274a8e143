"""What a server tells those that would train on it; and how what was packed on several servers is dropped."""

import json

from pg_mop import __version__, settings
from pg_mop.database import quote_literal, sql_function
from pg_mop.engines.postgres_fdw import Links, foreign_partitions
from pg_mop.packing.places import packed_by


def info(plpy):
    """This server as JSON: pg_mop's version, processor cores and GPUs."""
    del plpy
    return json.dumps({"pg_mop": __version__, "cores": settings.cores(), "gpus": settings.gpus()})


@sql_function
def mop_drop_packed(db, packed_table):
    """Drop a packed table, its summary, and what the preprocessor has made of it on other servers.

    What is on other servers goes at once, whatever becomes of this transaction. Raises MopError where there is no such
    table or one of the servers cannot be reached: nothing is dropped then.
    """
    table = db.input_table(packed_table, "packed table", rows=False)
    summary = db.find_table(db.suffixed(packed_table, "_summary"))
    links, mine = Links(db), []
    for server, there in foreign_partitions(db, table, packed_table):
        mark = links[server].run(f"SELECT obj_description(to_regclass({quote_literal(there)}), 'pg_class')")[0][0]
        if (mark or "").endswith(packed_by(db)):
            mine.append((server, there))
        elif mark is not None:
            db.notice(f"{there} on server {server} stays: no preprocessor here has made it")
    db.execute(f"DROP TABLE {table}" + (f", {summary}" if summary is not None else ""))
    for server, there in mine:
        links[server].run(f"DROP TABLE {there}")
