"""A workload on Greenplum and on PostgreSQL with the same number of segments: `on_greenplum.py [--runs 3] [WORKLOAD]`.

PG_MOP_GREENPLUM is the DSN of Greenplum's coordinator, with the extension installed (docs/greenplum.md). The program makes
the PostgreSQL server (tests/support/cluster.py). Runs on the two servers alternate. Each begins without idle trainers; then a
second session leases the trainers of the first. Prints the seconds of packing and of training: the medians and all runs.
"""

import argparse
import os
import pathlib
import statistics
import sys

import psycopg2.extensions

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

from tables import SETTINGS, load_rows, timed  # noqa: E402
from workloads import WORKLOADS  # noqa: E402

from support import greenplum  # noqa: E402
from support.client import Client  # noqa: E402
from support.cluster import Cluster  # noqa: E402


def once(db, workload, segments):
    """Seconds of packing, of training with new trainers, and of training with those of the pool."""
    db.run("SELECT madlib.mop_end_trainers()")
    seconds = []
    for _ in range(2):
        client = db.another()
        client.run(SETTINGS)
        cursor = client.connection.cursor(cursor_factory=psycopg2.extensions.cursor)
        load_rows(cursor, workload)
        seconds.append(timed(cursor, workload, segments))
        client.close()
    return *seconds[0], seconds[1][1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", nargs="?", default="dense-small", choices=WORKLOADS)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    workload, cluster = WORKLOADS[arguments.workload], Cluster(max_connections=60, shared_buffers="256MB")
    beside = greenplum.Database("pg_mop_bench")
    try:
        db = Client(cluster, "postgres")
        db.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE")
        segments = beside.db.value("SELECT count(*) FROM madlib.mop_host_segment")
        took = {"PostgreSQL": [], "Greenplum": []}
        for _ in range(arguments.runs):
            for name, where in (("PostgreSQL", db), ("Greenplum", beside.db)):
                took[name].append(once(where, workload, segments))
                packing, training, again = took[name][-1]
                print(
                    f"# {name}: packing {packing:.2f} s, training {training:.2f} s, by a second client {again:.2f} s; "
                    f"load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
        medians = {name: [statistics.median(column) for column in zip(*runs)] for name, runs in took.items()}
        print(
            f"\n## {arguments.workload}: {workload.about}; {segments} segments\n\n"
            "| | PostgreSQL | Greenplum | ratio |\n|---|---|---|---|"
        )
        for place, what in enumerate(("packing, s", "training, s", "training by a second client, s")):
            one, other = medians["PostgreSQL"][place], medians["Greenplum"][place]
            print(f"| {what} | {one:.2f} | {other:.2f} | {other / one:.2f} |")
        db.close()
    finally:
        beside.close()
        cluster.stop()


if __name__ == "__main__":
    main()
