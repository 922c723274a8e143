"""Segments on four servers of this machine, compared with the same number on one: `servers.py [--runs 3] [--mb 100]`.

The program makes the servers (tests/support/cluster.py). It prints

- the times of the workload `mixed` on both,
- the bytes on each connection (in a separate run, through relays),
- the time of a model state's hop between two servers, directly and through the coordinator, and the time of one
  INSERT ... SELECT of the state through postgres_fdw.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

import psycopg2.extensions

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

from tables import SETTINGS, load_rows, timed  # noqa: E402
from workloads import WORKLOADS  # noqa: E402

from support.client import Client, add_server  # noqa: E402
from support.cluster import Cluster  # noqa: E402
from support.relay import Relay  # noqa: E402
from support.workload import layer, load, selection, sequential  # noqa: E402

SERVERS = "w1, w2, w3, local"
PORT = "ALTER SERVER {} OPTIONS (SET port '{}')"


class Machines:
    """A coordinator and three servers, all on this machine."""

    def __init__(self):
        settings = {"max_connections": 60, "shared_buffers": "256MB", "max_wal_size": "4GB"}
        self.clusters = {name: Cluster(**settings) for name in ("local", "w1", "w2", "w3")}
        self.db = Client(self.clusters["local"], "postgres")
        self.db.run(
            "CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; CREATE EXTENSION postgres_fdw"
        )
        self.workers = {
            name: add_server(self.db, name, cluster) for name, cluster in self.clusters.items() if name != "local"
        }
        self.ports = {name: self.clusters[name].port for name in self.workers}

    def session(self):
        """A session whose calls start cold."""
        client = self.db.another()
        client.run(SETTINGS)
        return client

    def stop(self):
        for client in (self.db, *self.workers.values()):
            client.close()
        for cluster in self.clusters.values():
            cluster.stop()


def once(machines, workload, servers):
    """Seconds of packing and of training."""
    client = machines.session()
    cursor = client.connection.cursor(cursor_factory=psycopg2.extensions.cursor)
    if servers:
        client.run(f"SET pg_mop.servers = '{servers}'")
    seconds = timed(cursor, workload, 4)
    if servers:
        client.run("SELECT madlib.mop_drop_packed('packed')")
    client.close()
    return seconds


def mixed(machines, runs):
    workload = WORKLOADS["mixed"]
    load_rows(machines.db.connection.cursor(), workload)
    made = {None: [], SERVERS: []}
    for number in range(runs):
        for servers in made:
            made[servers].append(once(machines, workload, servers))
            print(
                f"# run {number + 1}, {servers or 'one server'}: packed in {made[servers][-1][0]:.2f} s, trained in "
                f"{made[servers][-1][1]:.2f} s",
                flush=True,
            )
    (pack_one, train_one), (pack_four, train_four) = (
        [statistics.median(run[part] for run in made[servers]) for part in (0, 1)] for servers in made
    )
    print(
        "\n| four segments | on one server | on four servers | ratio |\n|---|---|---|---|\n"
        f"| packing | {pack_one:.2f} s | {pack_four:.2f} s | {pack_four / pack_one:.2f} |\n"
        f"| training ({workload.about}) | {train_one:.2f} s | {train_four:.2f} s | {train_four / train_one:.2f} |\n"
    )
    relays = {name: Relay(port) for name, port in machines.ports.items()}
    for name, relay in relays.items():
        machines.db.run(PORT.format(name, relay.port))
    once(machines, workload, SERVERS)
    for name, port in machines.ports.items():
        machines.db.run(PORT.format(name, port))
    print("| the coordinator's line to | MB there | MB back |\n|---|---|---|")
    for name, relay in relays.items():
        print(f"| {name} | {relay.there / 1e6:.1f} | {relay.back / 1e6:.1f} |")
        relay.close()


def hop(machines, megabytes, runs):
    """One configuration on segments of two servers, so that its state hops before every unit but the first."""
    db, width = machines.db, int((megabytes * 1e6 / 4) ** 0.5)
    db.run(
        "CREATE TABLE tiny AS SELECT i AS id, array_fill(i::real, ARRAY[4]) AS x, i % 2 AS y "
        "FROM generate_series(1, 40) AS i"
    )
    hidden = [layer("Dense", name=name, units=width, activation="relu") for name in ("one", "two")]
    load(db, "wide", sequential("wide", [4], *hidden, layer("Dense", name="out", units=2, activation="softmax")))
    selection(
        db,
        "one",
        "wide",
        [(1, "loss='categorical_crossentropy', optimizer='SGD(learning_rate=0.01)'", "batch_size=20")],
    )
    client = machines.session()
    client.run(
        "SET pg_mop.servers = 'w1, w2'; SET pg_mop.segments = 2; SET pg_mop.kernel = plain; "
        "SELECT madlib.training_preprocessor_dl('tiny', 'tiny_packed', 'y', 'x')"
    )
    print(f"\n| {megabytes} MB, from one server to another | seconds |\n|---|---|")
    for how in ("through the coordinator", "straight"):
        if how == "straight":
            client.run("SELECT madlib.mop_connect_servers('w1, w2')")
        client.run(
            "DROP TABLE IF EXISTS wides, wides_info, wides_summary; SELECT "
            f"madlib.madlib_keras_fit_multiple_model('tiny_packed', 'wides', 'one', {max(4, runs)}, FALSE)"
        )
        waits = [
            row["seconds"]
            for row in client.run(
                "SELECT extract(epoch FROM started_at - queued_at)::float8 AS seconds FROM madlib.mop_unit WHERE run_id = "
                "(SELECT max(run_id) FROM madlib.mop_run) AND kind = 'train' AND version > 1 ORDER BY version"
            )
        ]
        print(f"| a hop, {how} | {statistics.median(waits):.2f} |", flush=True)
    client.run("SELECT madlib.mop_drop_packed('tiny_packed')")
    client.close()
    worker = machines.workers["w1"]
    worker.run("CREATE TABLE state (part integer, data bytea); ALTER TABLE state ALTER data SET STORAGE EXTERNAL")
    worker.run("INSERT INTO state VALUES (0, %s)", [os.urandom(int(megabytes * 1e6))])
    db.run(
        "CREATE FOREIGN TABLE state_there (part integer, data bytea) SERVER w1 OPTIONS (schema_name 'public', "
        "table_name 'state', fetch_size '1'); CREATE TABLE state_here (part integer, data bytea); "
        "ALTER TABLE state_here ALTER data SET STORAGE EXTERNAL"
    )
    seconds = []
    for _ in range(runs):
        db.run("TRUNCATE state_here")
        began = time.monotonic()
        db.run("INSERT INTO state_here SELECT * FROM state_there")
        seconds.append(time.monotonic() - began)
    print(f"| `INSERT ... SELECT` of as much from a postgres_fdw table | {statistics.median(seconds):.2f} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--mb", type=int, default=100)
    arguments = parser.parse_args()
    machines = Machines()
    try:
        mixed(machines, arguments.runs)
        hop(machines, arguments.mb, arguments.runs)
    finally:
        machines.stop()


if __name__ == "__main__":
    main()
