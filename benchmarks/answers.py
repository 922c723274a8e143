"""How fast trained models answer: `python answers.py DSN [SECONDS]`.

A row by LATERAL, a row a call, a new connection, forty connections, a million rows, and the Python client; beside them an HTTP
service of the same model (contenders/answer_service.py) and plain pandas with Keras, on the same rows. Adds the figures to
.local/bench/results.json; report.py makes a section of docs/benchmarks.md from them. SECONDS: of the forty connections.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import pandas
import psycopg2
from measure import proportional_bytes
from run import PEERS, RESULTS, machine
from tables import connect

HERE = pathlib.Path(__file__).resolve().parent
CUSTOMERS, MANY, CONNECTIONS, MODELS = 7043, 1_000_000, 40, 8
REPEATS = 300
NUMBERS = ", ".join(f"(i * {17 + 6 * k} % {97 + 2 * k})::float8 AS x{k}" for k in range(15))
TEXTS = ", ".join(f"'c' || i % {2 + k} AS c{k}" for k in range(5))
TABLES = f"""
CREATE TABLE customers AS SELECT i AS id, (ARRAY['Month-to-month', 'One year', 'Two year'])[1 + i % 3] AS contract,
    (ARRAY['Yes', 'No'])[1 + i % 2] AS partner, i * 7 % 72 AS tenure, (i * 13 % 100)::float8 + 20 AS monthly,
    (i * 31 % 8000)::numeric(10, 2) AS total, (ARRAY['DSL', 'Fiber', 'No'])[1 + i % 3] AS internet,
    (ARRAY['Check', 'Card', 'Bank'])[1 + (i / 7) % 3] AS payment, i % 2 AS senior,
    (ARRAY['Yes', 'No'])[1 + (i / 3) % 2] AS paperless,
    CASE WHEN i * 7 % 72 < 20 AND i % 3 = 0 OR i % 11 = 0 THEN 'Yes' ELSE 'No' END AS churn
    FROM generate_series(1, {CUSTOMERS}) i;
CREATE TABLE many AS SELECT i AS id, i % 1000 > 500 AS y, {NUMBERS}, {TEXTS} FROM generate_series(1, {MANY}) i;
"""
TRAIN = "SELECT madlib.mop_train('{}', '{}', '{}', max_trials => 1, layers => 'small', baselines => FALSE)"
LATERAL = "SELECT count(p.probability) FROM customers t, madlib.mop_predict('churn', t) AS p"
ONE = "SELECT p.* FROM (SELECT * FROM customers LIMIT 1) t, madlib.mop_predict('{}', t) AS p"
TABLE = "SELECT madlib.mop_predict_into('wide', 'many', 'pg_temp.out', keep => 'id')"


def timed(function, repeats=1):
    """The median of the seconds of calls."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def prepare(dsn):
    """The tables and the models."""
    _, cursor = connect(dsn)
    cursor.execute("DROP TABLE IF EXISTS customers, many, churn, wide CASCADE")
    cursor.execute(TABLES)
    cursor.execute(TRAIN.format("customers", "churn", "churn"))
    cursor.execute(TRAIN.format("SELECT * FROM many WHERE id <= 5000", "wide", "y"))
    for number in range(MODELS):
        cursor.execute(f"CREATE TABLE churn_{number} AS SELECT * FROM churn")
    cursor.execute("ANALYZE; CHECKPOINT")
    cursor.connection.close()


def in_database(dsn, seconds):
    """{measure: figure} of pg_mop."""

    def first_answer():
        with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(ONE.format("churn"))

    found = {"first answer of a new connection": timed(first_answer, 20)}
    connection, cursor = connect(dsn)
    cursor.execute(LATERAL)
    found[f"{CUSTOMERS:,} rows"] = timed(lambda: cursor.execute(LATERAL), 5)
    found["one row, round trip"] = timed(lambda: cursor.execute(ONE.format("churn")), REPEATS)

    def into():
        cursor.execute("DROP TABLE IF EXISTS pg_temp.out")
        cursor.execute(TABLE)

    found[f"{MANY:,} rows x 20 columns into a table"] = timed(into, 3)
    connection.close()
    from pg_mop_client import Selection

    frame = customers(dsn)
    with Selection(dsn, progress=False) as selection:
        model = selection.model("churn")
        model.predict(frame.iloc[:1])
        found["the client's model.predict of one row"] = timed(lambda: model.predict(frame.iloc[:1]), 50)
    found.update(forty_connections(dsn, seconds))
    return found


def customers(dsn):
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM customers ORDER BY id")
        return pandas.DataFrame(cursor.fetchall(), columns=[column.name for column in cursor.description])


def forty_connections(dsn, seconds):
    """pgbench: {measure: seconds, or bytes of a backend}. Each transaction asks one of several models about one row."""
    pgbench = shutil.which("pgbench") or next(
        iter(sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/pgbench"))), None
    )
    if pgbench is None:
        print("# pgbench is not installed: the forty connections are not measured")
        return {}
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "ask.sql")
        script.write_text(f"\\set m random(0, {MODELS - 1})\n{ONE.format('churn_:m')};\n")
        process = subprocess.Popen(
            [pgbench, "-n", "-c", str(CONNECTIONS), "-j", "2", "-T", str(seconds), "-l", "-f", str(script), dsn],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(seconds * 0.8)
        backends, trainers = backends_of(dsn)
        output, errors = process.communicate()
        if process.returncode:
            sys.exit(errors)
        late = [
            int(line.split()[2]) / 1e6 for path in pathlib.Path(folder).glob("pgbench_log.*") for line in path.open()
        ]
    late.sort()
    late = late[CONNECTIONS:] if len(late) > CONNECTIONS else late
    return {
        f"{CONNECTIONS} connections: answers a second": float(re.search(r"tps = ([\d.]+)", output)[1]),
        f"{CONNECTIONS} connections: median": late[len(late) // 2],
        f"{CONNECTIONS} connections: 99 % below": late[int(0.99 * len(late))],
        f"{CONNECTIONS} connections: MiB of a backend (median)": statistics.median(backends) / 2**20,
        f"{CONNECTIONS} connections: trainers at work": trainers,
    }


def backends_of(dsn):
    """(the proportional bytes of each backend that pgbench uses, the number of trainers)."""
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'")
        sizes = [proportional_bytes(pid) for (pid,) in cursor.fetchall()]
        cursor.execute("SELECT count(*) FROM madlib.mop_trainers WHERE state <> 'idle'")
        return sizes, cursor.fetchone()[0]


def as_service(dsn, runtime):
    """{measure: seconds} of an HTTP service with the model."""
    rows = [json.dumps(row, default=float) for row in customers(dsn).drop(columns="churn").to_dict("records")]
    command = [PEERS, "-B", HERE / "contenders" / "answer_service.py", runtime, dsn]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            port = int(process.stdout.readline())
            connection = http.client.HTTPConnection("127.0.0.1", port)

            def ask(row):
                connection.request("POST", "/", row, {"Content-Type": "application/json"})
                return json.loads(connection.getresponse().read())

            ask(rows[0])

            def one_by_one():
                for row in rows[:500]:
                    ask(row)

            return {
                f"{CUSTOMERS:,} rows": timed(one_by_one, 3) * CUSTOMERS / 500,
                "one row, round trip": timed(lambda: ask(rows[0]), REPEATS),
            }
        finally:
            process.kill()


def as_pandas(dsn):
    """{measure: seconds} of a process that reads the rows into pandas and asks Keras, with all imports."""
    command = [PEERS, "-B", HERE / "contenders" / "answer_service.py", "pandas", dsn]
    return {f"{CUSTOMERS:,} rows": timed(lambda: subprocess.run(list(map(str, command)), check=True), 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("seconds", nargs="?", type=int, default=60)
    a = parser.parse_args()
    prepare(a.dsn)
    figures = {"pg_mop": in_database(a.dsn, a.seconds)}
    print(json.dumps(figures, indent=1), flush=True)
    figures["FastAPI and Keras"] = as_service(a.dsn, "keras")
    figures["FastAPI and ONNX Runtime"] = as_service(a.dsn, "onnx")
    figures["pandas and Keras"] = as_pandas(a.dsn)
    print(json.dumps(figures, indent=1))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"workloads": {}}
    results["answers"] = {"figures": figures}
    if "machine" not in results:
        results["machine"] = machine(a.dsn, 2)
    RESULTS.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
