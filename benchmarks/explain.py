"""Compare the times that mop_explain predicts with the times of the calls: `python explain.py DSN [WORKLOAD ...]`.

Each workload is predicted and run three times: by a guess (on a server without cost history and trainers), by `measure`, and
from the history of the run before. Prints a table, and adds it to .local/bench/results.json; report.py makes a section of
docs/benchmarks.md from it.
"""

import argparse
import json
import statistics
import time

from measure import Watch
from report import explained_table
from run import RESULTS, forget, load, machine
from tables import SETTINGS, configure, connect, last_run, pack
from workloads import WORKLOADS

SEARCH = "small search"
BY = ("guess", "measure", "history")
SPACE = (
    "{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer_params_list': [{'optimizer': ['Adam'], "
    "'lr': [0.0001, 0.01, 'log']}], 'batch_size': [25, 50]}"
)
CONFIGURATIONS, SEGMENTS, TRIALS = 1000, 8, 10_000  # of the plans whose time is measured
ROUNDS = 3  # of each of these plans


def call_of(name, iterations):
    """The SQL of the call of a workload, or of the small search."""
    if name == SEARCH:
        return search_of(12)
    return f"SELECT madlib.madlib_keras_fit_multiple_model('packed', 'models', 'mst', {iterations}, FALSE)"


def search_of(trials):
    """The SQL of a search."""
    given = f"'asha', 'trials={trials}, iterations=9', 'loss'"
    return f"SELECT madlib.mop_search('packed', 'models', 'arch', $s${SPACE}$s$, {given})"


def explained(cursor, call, measure=False):
    """(the plan, seconds of mop_explain)."""
    began = time.monotonic()
    cursor.execute("SELECT madlib.mop_explain(%s, 'json', %s)", [call, measure])
    return json.loads(cursor.fetchone()[0]), time.monotonic() - began


def prepare(dsn, name, segments):
    """The tables of a workload, in a session of its own: (connection, cursor)."""
    connection, cursor = connect(dsn)
    cursor.execute(SETTINGS)
    pack(cursor, WORKLOADS[name], segments)
    configure(cursor, WORKLOADS[name])
    return connection, cursor


def expected(plan):
    """(makespan, its range) of a plan."""
    if "search" not in plan:
        found = plan["prediction"]
        return found["makespan"], (found["makespan_low"], found["makespan_high"])
    cases, fixed = plan["search"], plan["fixed_costs"]
    around = fixed["start"] + fixed["end"]
    low, high = cases["range"]
    middle = cases["expected"]["seconds"] - around
    return middle, (low * (cases["least"]["seconds"] - around), high * (cases["most"]["seconds"] - around))


def measured(dsn, name, workers):
    """Predicted against actual of a workload: a dict for each of BY."""
    workload = "dense-small" if name == SEARCH else name
    load(dsn, WORKLOADS[workload])
    call = call_of(name, WORKLOADS[workload].iterations)
    for by in BY:
        if by != "history":
            forget(dsn)
        connection, cursor = prepare(dsn, workload, workers)
        cursor.execute("DROP TABLE IF EXISTS models, models_info, models_summary, models_trials")
        plan, took = explained(cursor, call, by == "measure")
        makespan, (low, high) = expected(plan)
        with Watch() as watch:
            cursor.execute(call)
        cursor.execute("SELECT madlib.mop_explain_run(%s, 'json')", [last_run(cursor)])
        actual = json.loads(cursor.fetchone()[0])["actual"]["makespan"]
        connection.close()
        cold = by != "history"  # (later, the trainers have begun before the watch)
        yield {
            "workload": name,
            "by": by,
            "expected": makespan,
            "low": low,
            "high": high,
            "actual": actual,
            "memory_expected": plan["memory"]["trainer"] if cold else None,
            "memory": watch.peak_bytes if cold and by == "guess" else None,
            "seconds": took,
        }


def planning(dsn):
    """Seconds of mop_explain for a large selection and a long search: medians."""
    load(dsn, WORKLOADS["many"])
    connection, cursor = prepare(dsn, "many", SEGMENTS)
    cursor.execute("DROP TABLE IF EXISTS models, models_info, models_summary, models_trials")
    cursor.execute(
        "CREATE TEMPORARY TABLE one AS SELECT * FROM mst LIMIT 1; TRUNCATE mst; INSERT INTO mst SELECT i, o.model_id, "
        "regexp_replace(o.compile_params, 'learning_rate=[0-9.e-]+', 'learning_rate=' || i * 1e-6), o.fit_params "
        f"FROM one o, generate_series(1, {CONFIGURATIONS}) i"
    )
    found = {}
    for text, call in (
        (f"planning {CONFIGURATIONS:,} configurations on {SEGMENTS} segments, seconds", call_of("many", 1)),
        (f"planning a search of {TRIALS:,} trials, seconds", search_of(TRIALS)),
    ):
        explained(cursor, call)  # (imports)
        found[text] = statistics.median(explained(cursor, call)[1] for _ in range(ROUNDS))
    connection.close()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("dsn")
    parser.add_argument("workload", nargs="*", choices=[[], *WORKLOADS, SEARCH])
    a = parser.parse_args()
    rows = []
    for name in a.workload or [*WORKLOADS, SEARCH]:
        for row in measured(a.dsn, name, a.workers):
            rows.append(row)
            print(f"# {name}, {row['by']}: expected {row['expected']:.2f} s, actual {row['actual']:.2f} s", flush=True)
    figures = {"rows": rows, "planning": planning(a.dsn)}
    print(explained_table(figures))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"workloads": {}}
    results["explain"] = figures
    if "machine" not in results:
        results["machine"] = machine(a.dsn, a.workers)
    RESULTS.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
