"""The cost of single parts: `python parts.py DSN [PART ...]`. Adds to .local/bench/results.json.

packing     rows packed per second, compared with PL/Python that converts rows element by element
hop         reading and writing a model state of 100 MB in a unit, compared with the same bytea row in plain SQL
stream      training on streamed rows, compared with rows in the trainer's cache
unit        the overhead of coordinator, SQL and log for a unit: the gap between two units of a session
second call the time from the call to its first unit, with warm sessions
large       a model state of 1.5 GB
looking     the share of the processors that the live page and mop watch take during a selection
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

from run import RESULTS
from tables import SETTINGS, configure, connect, load_rows, pack, train
from workloads import Configuration, Workload

ROUNDS = 3  # of each compared variant
SCHEMA = f"{SETTINGS}; DROP SCHEMA IF EXISTS parts CASCADE; CREATE SCHEMA parts; SET search_path = parts, public"


def session(dsn):
    connection, cursor = connect(dsn)
    cursor.execute(SCHEMA)
    return connection, cursor


def prepare(cursor, workload, segments, weights=True):
    load_rows(cursor, workload)
    pack(cursor, workload, segments)
    configure(cursor, workload, weights)


def seconds(cursor, sql, values=None):
    began = time.monotonic()
    cursor.execute(sql, values)
    return time.monotonic() - began


def packing(dsn):
    connection, cursor = session(dsn)
    cursor.execute(
        "CREATE TABLE wide AS SELECT i AS id, i % 10 AS y, (SELECT array_agg(random()::real) FROM "
        "generate_series(1, 100) AS j WHERE i > 0) AS x FROM generate_series(1, 100000) AS i"
    )
    cursor.execute("ANALYZE wide")
    cursor.execute("SELECT madlib.training_preprocessor_dl()")  # this session's PL/Python then finds pg_mop's packages
    cursor.execute("""CREATE FUNCTION conversions() RETURNS float8[] LANGUAGE plpython3u AS $$
import struct, time
from pg_mop.packing import buffers as packing
began = time.time()
for row in plpy.cursor('SELECT x FROM parts.wide'):
    b''.join(struct.pack('<f', float(element) / 1.0) for element in row['x'])
elements = time.time() - began
cursor, decoding, began = plpy.cursor('SELECT array_send(x) AS x FROM parts.wide'), 0.0, time.time()
while rows := cursor.fetch(5000):
    before = time.time()
    packing.decode([row['x'] for row in rows], (100,), 'real', 'x')
    decoding += time.time() - before
arrays, began = time.time() - began, time.time()
for row in plpy.cursor('SELECT x FROM parts.wide'):
    pass
return [elements, time.time() - began, arrays, decoding]
$$""")
    whole, rows = [], []
    for _ in range(3):
        cursor.execute("DROP TABLE IF EXISTS packed, packed_summary")
        whole.append(seconds(cursor, "SELECT madlib.training_preprocessor_dl('wide', 'packed', 'y', 'x')"))
        cursor.execute("SELECT conversions()")
        rows.append(cursor.fetchone()[0])
    connection.close()
    elements, lists, arrays, decoding = (statistics.median(column) for column in zip(*rows))
    mine = statistics.median(whole)
    return {
        "training_preprocessor_dl of 100,000 x 100 reals, seconds": mine,
        "rows a second": 1e5 / mine,
        "reading and converting element by element, seconds": elements,
        "reading and converting as pg_mop does, seconds": arrays,
        "ratio": elements / arrays,
        "the conversion alone, element by element, seconds": elements - lists,
        "the conversion alone, as pg_mop does, seconds": decoding,
        "ratio of the conversions alone": (elements - lists) / decoding,
    }


def hop(dsn):
    """One model of 100 MB (with SGD, the state is the weights) on one segment; no other session writes."""
    workload = Workload(
        "",
        100,
        (500,),
        8,
        ((("dense", 5000, "relu"), ("dense", 4500, "relu"), ("dense", 10, "softmax")),),
        (Configuration(0, "SGD", 0.001, 50, 0.0),),
    )
    connection, cursor = session(dsn)
    prepare(cursor, workload, 1)
    cursor.execute("CHECKPOINT")
    run_id = train(cursor, workload.iterations)
    cursor.execute(
        "SELECT read_seconds, write_seconds FROM madlib.mop_units WHERE run_id = %s AND kind = 'train' "
        "ORDER BY iteration",
        [run_id],
    )
    units = cursor.fetchall()[1:]
    cursor.execute("SELECT model_weights FROM models")
    weights = bytes(cursor.fetchone()[0])
    cursor.execute(
        "CREATE TABLE plain (key integer, data bytea); ALTER TABLE plain ALTER COLUMN data SET STORAGE "
        "EXTERNAL; CHECKPOINT"
    )
    header = b"PGCOPY\n\xff\r\n\0" + bytes(8)
    row = header + b"\0\2" + b"\0\0\0\4\0\0\0\1" + len(weights).to_bytes(4, "big") + weights + b"\xff\xff"
    cursor.copy_expert("COPY plain FROM STDIN (FORMAT binary)", io.BytesIO(row))
    plain = []
    for _ in range(len(units)):
        began = time.monotonic()
        cursor.copy_expert("COPY (SELECT data FROM plain) TO STDOUT (FORMAT binary)", io.BytesIO())
        read = time.monotonic() - began
        began = time.monotonic()
        cursor.execute("BEGIN; DELETE FROM plain")  # as in a unit, where the new state replaces the old state
        cursor.copy_expert("COPY plain FROM STDIN (FORMAT binary)", io.BytesIO(row))
        cursor.execute("COMMIT")
        plain.append((read, time.monotonic() - began))
    connection.close()
    median = [[statistics.median(column) for column in zip(*both)] for both in (units, plain)]
    return {
        "bytes": len(weights),
        "hops": len(units),
        "read, seconds": median[0][0],
        "write, seconds": median[0][1],
        "plain SQL: COPY out, seconds": median[1][0],
        "plain SQL: DELETE and COPY in, seconds": median[1][1],
        "ratio": sum(median[0]) / sum(median[1]),
    }


def stream(dsn):
    """Seconds of the training units of the same run, with rows in the trainers' caches and with pg_mop.cache_mb = 0."""
    found = {}
    for name, rows, width, layers, size in (
        ("dense-small", 20_000, 64, (64, 64), 50),
        ("dense-wide", 20_000, 512, (1024, 1024), 100),
    ):
        workload = Workload(
            "",
            rows,
            (width,),
            4,
            ((*(("dense", w, "relu") for w in layers), ("dense", 10, "softmax")),),
            tuple(Configuration(0, "SGD", rate, size) for rate in (0.001, 0.002)),
        )
        took = {1024: [], 0: []}
        for cache in (1024, 0) * ROUNDS:  # alternately, so that other work on the machine affects both
            connection, cursor = session(dsn)
            prepare(cursor, workload, 2)
            cursor.execute(f"SET pg_mop.cache_mb = {cache}")
            run_id = train(cursor, workload.iterations)
            cursor.execute(
                "SELECT extract(epoch FROM finished_at - started_at)::float8 FROM madlib.mop_units WHERE "
                "run_id = %s AND kind = 'train' AND iteration > 1",
                [run_id],
            )
            took[cache] += [row[0] for row in cursor.fetchall()]
            connection.close()
        took = {cache: statistics.median(all_) for cache, all_ in took.items()}
        found[f"{name}: cached, seconds a unit"], found[f"{name}: streamed, seconds a unit"] = took[1024], took[0]
        found[f"{name}: streamed at this share of the cached speed"] = took[1024] / took[0]
    return found


def unit(dsn):
    """The overhead around thousands of very small units, which are sent in batches."""
    workload = Workload(
        "",
        40,
        (4,),
        25,
        ((("dense", 10, "softmax"),),),
        tuple(Configuration(0, "SGD", 0.001 * (1 + i), 20) for i in range(40)),
    )
    connection, cursor = session(dsn)
    prepare(cursor, workload, 2)
    run_id = train(cursor, workload.iterations)
    cursor.execute(
        "SELECT sum(units)::integer, sum(units)::float8 / count(DISTINCT (backend_pid, began)), "
        "1000 * sum(took) / sum(units)::float8, 1000 * sum(training) / sum(units), "
        "1000 * sum(reading) / sum(units), 1000 * sum(writing) / sum(units) FROM (SELECT backend_pid, "
        "started_at AS began, count(*) AS units, sum(train_seconds) AS training, sum(read_seconds) AS "
        "reading, sum(write_seconds) AS writing, extract(epoch FROM lead(started_at) OVER (PARTITION BY "
        "backend_pid ORDER BY started_at) - started_at)::float8 AS took FROM madlib.mop_unit WHERE run_id "
        "= %s AND kind = 'train' AND iteration > 2 GROUP BY 1, 2) AS g WHERE took IS NOT NULL AND took < 1",
        [run_id],
    )
    count, group, took, training, reading, writing = cursor.fetchone()
    connection.close()
    return {
        "units": count,
        "units of a group": group,
        "session milliseconds a unit": took,
        "of which the trainer trains": training,
        "around it": took - training,
        "of which to read, and load": reading,
        "of which to write": writing,
    }


def second_call(dsn):
    workload = Workload("", 200, (16,), 1, ((("dense", 10, "softmax"),),), (Configuration(0, "SGD", 0.01, 20),))
    connection, cursor = session(dsn)
    prepare(cursor, workload, 2)
    found = {}
    for name in ("first call", "second call"):
        cursor.execute("DROP TABLE IF EXISTS models, models_info, models_summary")
        cursor.execute("SELECT clock_timestamp()")
        began = cursor.fetchone()[0]
        run_id = train(cursor, 1)
        cursor.execute(
            "SELECT extract(epoch FROM started_at - %s)::float8, read_seconds FROM madlib.mop_units "
            "WHERE run_id = %s ORDER BY started_at LIMIT 1",
            [began, run_id],
        )
        first, read = cursor.fetchone()
        found[f"{name}: until its first unit starts, seconds"] = first
        found[f"{name}: until that trains, seconds"] = first + read
    connection.close()
    return found


def large(dsn):
    """A model of 125 million weights with Adam."""
    workload = Workload(
        "",
        20,
        (100,),
        2,
        ((("dense", 11200, "relu"), ("dense", 11200, "relu"), ("dense", 10, "softmax")),),
        (Configuration(0, "Adam", 0.00001, 10),),
    )
    connection, cursor = session(dsn)
    prepare(cursor, workload, 1, weights=False)
    took = seconds(cursor, "SELECT madlib.madlib_keras_fit_multiple_model('packed', 'models', 'mst', 2, FALSE)")
    cursor.execute(
        "SELECT sum(bytes)::bigint FROM madlib.mop_stage_state WHERE run_id = (SELECT max(run_id) FROM madlib.mop_runs)"
    )
    size = cursor.fetchone()[0]
    cursor.execute(
        "SELECT read_seconds, write_seconds FROM madlib.mop_units WHERE run_id = (SELECT max(run_id) FROM "
        "madlib.mop_runs) AND kind = 'train' AND iteration = 2"
    )
    read, write = cursor.fetchone()
    cursor.execute("DROP TABLE models, models_info, models_summary, arch")
    connection.close()
    return {
        "bytes of its state": size,
        "two iterations on one segment, seconds": took,
        "read, seconds": read,
        "write, seconds": write,
    }


def looking(dsn):
    """500 configurations x 6 iterations: the share of processor time of the watching program and its sessions."""
    workload = Workload(
        "",
        2000,
        (16,),
        6,
        ((("dense", 16, "relu"), ("dense", 10, "softmax")),),
        tuple(Configuration(0, "Adam", 0.0001 * 1.01**n, 50) for n in range(500)),
    )
    connection, cursor = session(dsn)
    prepare(cursor, workload, 2)
    other, look = connect(dsn)
    mop = [sys.executable, "-c", "import sys; from pg_mop_client.command import main; sys.exit(main())", "-d"]
    found, used, took, answers = {}, {}, 0.0, []
    for name, command in {"page": ["dashboard", "--no-browser"], "watch": ["watch"]}.items():
        cursor.execute("DROP TABLE IF EXISTS models, models_info, models_summary")
        calling = threading.Thread(target=train, args=(cursor, workload.iterations))
        began = time.monotonic()
        calling.start()
        while True:
            look.execute("SELECT max(run_id) FROM madlib.mop_runs WHERE status = 'running'")
            if (run_id := look.fetchone()[0]) is not None:
                break
        with subprocess.Popen(
            [*mop, f"{dsn}?application_name=looking_{name}", *command],
            text=True,
            stdout=subprocess.PIPE if name == "page" else subprocess.DEVNULL,
        ) as process:
            if name == "page":
                address, token = process.stdout.readline().strip().split("#token=")
                have = ""
            while calling.is_alive():
                if name == "page":  # as the browser does
                    asked = time.monotonic()
                    request = urllib.request.Request(
                        f"{address}api/run/{run_id}?have={have}", headers={"X-Mop-Token": token}
                    )
                    have = json.load(urllib.request.urlopen(request))["number"]
                    answers.append(time.monotonic() - asked)
                look.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [f"looking_{name}"])
                for pid in [process.pid, *(row[0] for row in look.fetchall())]:
                    used[name, pid] = max(used.get((name, pid), 0.0), _processor_seconds(pid))
                calling.join(1)
            process.terminate()
        took = time.monotonic() - began
        share = sum(cpu for (of, _), cpu in used.items() if of == name) / (took * len(os.sched_getaffinity(0)))
        found.update({f"{name}: seconds of the selection": took, f"{name}: its share of the processors": share})
    found["page: an answer, seconds (median)"] = statistics.median(answers)
    other.close()
    connection.close()
    return found


def _processor_seconds(pid):
    """The processor time of a process in seconds; 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


PARTS = {
    "packing": packing,
    "hop": hop,
    "stream": stream,
    "unit": unit,
    "second call": second_call,
    "large": large,
    "looking": looking,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dsn")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"workloads": {}}
    for name in arguments.parts or PARTS:
        found = PARTS[name](arguments.dsn)
        print(f"## {name}\n" + "\n".join(f"{key}: {value:.6g}" for key, value in found.items()) + "\n", flush=True)
        results.setdefault("parts", {})[name] = found
        os.makedirs(RESULTS.parent, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
