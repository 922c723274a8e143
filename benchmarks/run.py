"""Time the contenders on the workloads: `python run.py [--runs 3] [--workers 2] DSN [WORKLOAD ...]`.

Every contender but "arithmetic alone" is a whole process, from the raw table in the database to the final losses. Prints
a table for each workload, with medians of the runs, compares the losses (losses.py), and adds the figures to
.local/bench/results.json; report.py makes docs/benchmarks.md from this file. Losses that differ by more than rounding
without a stated reason are an error, and the figures of that workload are not kept.
"""

import argparse
import importlib
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
from importlib.metadata import version
from importlib.util import find_spec

import losses
import psycopg2
from contenders.common import THREADS
from measure import Watch
from report import median_of, study_table, table
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
    },
    "export and loop": ("export_and_loop", sys.executable),
    "PyTorch, a plain loop": ("torch_loop", sys.executable),
    "scikit-learn": ("scikit_learn", sys.executable),
    "Ray Tune": ("ray_tune", str(PEERS)),
    "MADlib's way": ("lockstep", sys.executable),
    losses.TWINS: ("arithmetic", sys.executable),
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
# modules that .local/venv may lack -> (package, extra of pyproject.toml); contender -> the module that it needs
OPTIONAL = {"jax": ("jax", "jax"), "torch": ("torch", "torch"), "sklearn": ("scikit-learn", "baseline")}
NEEDS = {
    "pg_mop on JAX": "jax",
    "pg_mop on PyTorch": "torch",
    "PyTorch, a plain loop": "torch",
    "scikit-learn": "sklearn",
}
LEFT_OUT = "not run this time"
LEAST_TWINS = 3  # of each configuration, over all runs


def contenders_of(name):
    """{contender: (module, interpreter, settings ...)} of a workload, study or series of studies."""
    if name not in STUDIES:
        return CONTENDERS
    if len(STUDIES[name].parts) > 1:
        return SERIAL
    return {c: made for c, made in SEARCHERS.items() if STUDIES[name].peers or c.startswith("pg_mop")}


def absent(contender, name):
    """Why a contender does not take part in a workload or study; None if it does."""
    module, interpreter, *_ = contenders_of(name)[contender]
    if not os.path.exists(interpreter):
        return "not run: Ray is not installed (make bench-peers)"
    if contender in NEEDS and not find_spec(NEEDS[contender]):
        package, extra = OPTIONAL[NEEDS[contender]]
        return f"not run: {package} is not installed (pip install '.[{extra}]')"
    refusal = getattr(importlib.import_module(f"contenders.{module}"), "refusal", None)
    why = refusal(EVERYTHING[name]) if refusal else None
    return why and f"not comparable: {why}"


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


def once(contender, name, dsn, workers, seeds):
    """One run of a contender: its figures. `seeds`: of the twins that it trains if it does so."""
    module, interpreter, *settings = contenders_of(name)[contender]
    if contender == losses.TWINS:
        settings.append(",".join(map(str, seeds)))
    if contender == "pg_mop" or contender.startswith("pg_mop on "):  # cold; the next contender is the second client
        forget(dsn)
    with tempfile.TemporaryDirectory() as place:
        output = os.path.join(place, "out.json")
        with Watch() as watch:
            began = time.monotonic()
            done = subprocess.run(
                [interpreter, "-B", "-m", f"contenders.{module}", name, dsn, str(workers), output, *settings],
                cwd=HERE,
                env={**os.environ, **THREADS},
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
    all_runs, twins = {c: [] for c in contenders}, -(-LEAST_TWINS // runs)
    for number in range(runs):
        for contender in contenders:
            seeds = range(number * twins, (number + 1) * twins)
            all_runs[contender].append(once(contender, name, dsn, workers, seeds))
            print(f"# {name}, run {number + 1}: {contender} {all_runs[contender][-1]['seconds']:.2f} s", flush=True)
    figures = {}
    for contender, made in all_runs.items():
        middle = sorted(made, key=lambda m: m["seconds"])[len(made) // 2]
        figures[contender] = {
            **middle,
            "seconds": statistics.median(m["seconds"] for m in made),
            "all_seconds": [m["seconds"] for m in made],
            **{k: _median(m[k] for m in made) for k in ("peak_bytes", "together_bytes", "written_bytes")},
            **({"twins": [t for m in made for t in m["twins"]]} if "twins" in middle else {}),
        }
    return figures


def _median(values):
    """The median; None where values are missing."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


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
        **{package: version(package) for module, (package, _) in OPTIONAL.items() if find_spec(module)},
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
    parser.add_argument("--runs", type=int, default=3, help="of each contender; fewer than 3 for a quick look (3)")
    parser.add_argument("--workers", type=int, default=2, help="processes or trainers of a contender (2)")
    parser.add_argument(
        "--only",
        action="append",
        choices={**CONTENDERS, **SEARCHERS, **SERIAL},
        help="these contenders alone; nothing is kept",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices={**CONTENDERS, **SEARCHERS, **SERIAL},
        help="not this contender, to save time; the page says so",
    )
    arguments = parser.parse_args()
    wanted = [n for w in arguments.workloads or [*WORKLOADS, "search"] for n in (STUDIES if w == "search" else [w])]
    if unknown := [w for w in wanted if w not in EVERYTHING]:
        parser.error(f"there is no workload {unknown[0]!r}, but {', '.join([*EVERYTHING, 'search'])}")
    if arguments.runs < 1 or arguments.workers < 1:
        parser.error("--runs and --workers must be 1 or more")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"workloads": {}}
    wrong = []
    for name in wanted:
        chosen = [c for c in contenders_of(name) if not arguments.only or c in arguments.only]
        missing = {c: why for c in chosen if (why := LEFT_OUT if c in arguments.without else absent(c, name))}
        for contender, why in missing.items():
            print(f"# {name}: {contender}: {why}", flush=True)
        contenders = [c for c in chosen if c not in missing]
        figures = measure(name, arguments.dsn, arguments.runs, arguments.workers, contenders)
        study, about = name in STUDIES, EVERYTHING[name].about
        lines, errors = ([], []) if study else losses.compare(EVERYTHING[name].configurations, figures)
        made = {"about": about, "runs": arguments.runs, "figures": figures, "absent": missing, "losses": lines}
        print(f"\n## {name}: {about}. {median_of(arguments.runs)}\n", flush=True)
        print(f"{(study_table if study else table)(made)}\n", flush=True)
        wrong += [f"{name}: {error}" for error in errors]
        if not arguments.only and not errors:
            results["machine"] = machine(arguments.dsn, arguments.workers)
            results.setdefault("studies" if study else "workloads", {})[name] = made
            RESULTS.write_text(json.dumps(results, indent=1))
    if wrong:
        raise SystemExit("\n".join(["losses differ by more than rounding:", *wrong]))


if __name__ == "__main__":
    main()
