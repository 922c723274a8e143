"""Time the contenders on the workloads: `python run.py [--runs 3] [--workers 2] DSN [WORKLOAD ...]`.

Every contender is a whole process, from the raw table in the database to the final losses. Prints a table for each
workload and adds its figures to .local/bench/results.json; report.py makes docs/benchmarks.md from this file.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec

import psycopg2
from measure import Watch
from report import study_table, table
from studies import STUDIES
from tables import connect, load_rows
from workloads import WORKLOADS

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / ".local" / "bench" / "results.json"
PEERS = HERE.parent / ".local" / "peers" / "bin" / "python"

# contender -> (module, interpreter, settings ...)
CONTENDERS = {
    "pg_mop": ("in_database", sys.executable),
    "pg_mop, second client": ("in_database", sys.executable),
    **{
        f"pg_mop on {name}": ("in_database", sys.executable, f"pg_mop.keras_backend={backend}")
        for backend, name in (("jax", "JAX"), ("torch", "PyTorch"))
        if find_spec(backend)
    },
    "export and loop": ("export_and_loop", sys.executable),
    "Ray Tune": ("ray_tune", str(PEERS)),
    "MADlib's way": ("lockstep", sys.executable),
}
SEARCHERS = {
    "pg_mop": ("search_in_database", sys.executable),
    "pg_mop without sharing": ("search_in_database", sys.executable, "pg_mop.sharing=off"),
    "Ray Tune": ("search_ray", str(PEERS)),
    "Optuna": ("search_optuna", sys.executable),
}
SERIAL = {
    "pg_mop": ("search_in_database", sys.executable, "pg_mop.reuse=on"),
    "pg_mop without reuse": ("search_in_database", sys.executable),
    "pg_mop without sharing": ("search_in_database", sys.executable, "pg_mop.sharing=off"),
}
EVERYTHING = {**WORKLOADS, **STUDIES}


def contenders_of(name):
    """{contender: (module, interpreter, settings ...)} of a workload, study or series of studies."""
    if name not in STUDIES:
        return CONTENDERS
    if len(STUDIES[name].parts) > 1:
        return SERIAL
    return {c: made for c, made in SEARCHERS.items() if STUDIES[name].peers or c.startswith("pg_mop")}


def load(dsn, workload):
    """Make the raw table and the table of validation rows."""
    connection, cursor = connect(dsn)
    load_rows(cursor, workload)
    cursor.execute("VACUUM ANALYZE raw")
    if workload.validation:
        load_rows(cursor, workload, "raw_validation", validation=True)
        cursor.execute("VACUUM ANALYZE raw_validation")
    connection.close()
    checkpoint(dsn)


def checkpoint(dsn):
    connection, cursor = connect(dsn)
    cursor.execute("CHECKPOINT")
    connection.close()


def once(contender, name, dsn, workers):
    """One run of a contender: its figures."""
    module, interpreter, *settings = contenders_of(name)[contender]
    if contender == "pg_mop" or contender.startswith("pg_mop on "):  # cold; the next contender is the second client
        forget(dsn)
    with tempfile.TemporaryDirectory() as place:
        output = os.path.join(place, "out.json")
        with Watch() as watch:
            began = time.monotonic()
            done = subprocess.run(
                [interpreter, "-B", "-m", f"contenders.{module}", name, dsn, str(workers), output, *settings],
                cwd=HERE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            seconds = time.monotonic() - began
            checkpoint(dsn)  # so that the count includes delayed writes of the server
        if done.returncode:
            raise SystemExit(f"{contender} failed on {name}:\n{done.stdout[-3000:]}")
        with open(output) as text:
            made = json.load(text)
    return {
        "seconds": seconds,
        "peak_bytes": watch.peak_bytes,
        "together_bytes": watch.together_bytes,
        "written_bytes": watch.written_bytes,
        **made,
    }


def forget(dsn):
    """End the fork server, and remove compiled code and the cost history, as on a new server."""
    connection, cursor = connect(dsn)
    cursor.execute("DELETE FROM madlib.mop_cost")
    cursor.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pg_mop run%'; "
        "SHOW data_directory"
    )
    folder = pathlib.Path(cursor.fetchone()[0], "pgsql_tmp.pg_mop")
    connection.close()
    for lock in folder.glob("fork-server-*.lock"):
        try:
            os.kill(int(lock.read_text()), signal.SIGKILL)
        except (ValueError, ProcessLookupError):
            pass
    for cache in folder.glob("xla-*"):
        shutil.rmtree(cache)


def measure(name, dsn, runs, workers, contenders):
    """`runs` runs of every contender, in turn: {contender: figures}, medians."""
    load(dsn, EVERYTHING[name])
    all_runs = {c: [] for c in contenders}
    for number in range(runs):
        for contender in contenders:
            all_runs[contender].append(once(contender, name, dsn, workers))
            print(f"# {name}, run {number + 1}: {contender} {all_runs[contender][-1]['seconds']:.2f} s", flush=True)
    figures = {}
    for contender, made in all_runs.items():
        middle = sorted(made, key=lambda m: m["seconds"])[len(made) // 2]
        figures[contender] = {
            **middle,
            "seconds": statistics.median(m["seconds"] for m in made),
            "all_seconds": [m["seconds"] for m in made],
            **{k: statistics.median(m[k] for m in made) for k in ("peak_bytes", "together_bytes", "written_bytes")},
        }
    return figures


def machine(dsn, workers):
    """The machine and the versions of programs and packages, for the page."""
    import keras
    import tensorflow

    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version')")
        server = cursor.fetchone()[0]
    try:
        ray = subprocess.run([str(PEERS), "-c", "import ray; print(ray.__version__)"], capture_output=True, text=True)
        ray = ray.stdout.strip()
    except OSError:
        ray = "-"
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) >> 20
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": memory,
        "workers": workers,
        "python": sys.version.split()[0],
        "postgresql": server,
        "keras": keras.__version__,
        "tensorflow": tensorflow.__version__,
        "ray": ray,
        "date": time.strftime("%Y-%m-%d"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dsn")
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help=", ".join([*WORKLOADS, f"search (all of {', '.join(STUDIES)})"]),
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--only",
        action="append",
        choices={**CONTENDERS, **SEARCHERS, **SERIAL},
        help="these contenders alone; nothing is kept",
    )
    arguments = parser.parse_args()
    wanted = [n for w in arguments.workloads or [*WORKLOADS, "search"] for n in (STUDIES if w == "search" else [w])]
    if unknown := [w for w in wanted if w not in EVERYTHING]:
        parser.error(f"there is no workload {unknown[0]!r}, but {', '.join([*EVERYTHING, 'search'])}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"workloads": {}}
    for name in wanted:
        contenders = [c for c in contenders_of(name) if not arguments.only or c in arguments.only]
        figures = measure(name, arguments.dsn, arguments.runs, arguments.workers, contenders)
        about = EVERYTHING[name].about
        print(f"\n## {name}: {about}\n\n{(study_table if name in STUDIES else table)(figures)}\n", flush=True)
        if not arguments.only:
            results["machine"] = machine(arguments.dsn, arguments.workers)
            kind = "studies" if name in STUDIES else "workloads"
            results.setdefault(kind, {})[name] = {"about": about, "runs": arguments.runs, "figures": figures}
            RESULTS.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
