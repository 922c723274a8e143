"""Studies at the same time: sessions of one role that begin studies of the same rows together.

    benchmarks/studies_together.py DSN [STUDIES ...]

Two kinds of studies, after TreeML (thesis 2021, section 6.2). `pool`: each study has 20 of the 32 configurations of the study
`grid-3`, at random, so that studies have whole configurations in common. `eight`: grid searches whose sequences of learning
rates only begin alike. All sessions call at once: first with pg_mop.reuse off, so that each study shares within itself alone,
then with reuse on. The trainers are warm: a run that is not counted goes before.

Columns. Apart, together: the number of stages that all runs train, without reuse and with it. Merge rate: apart / number of
different stages, the most that can be reached. Reached: apart / together. Work: seconds of all training units, apart /
together. Seconds: from the first call to the end of the last one, with the load of the machine before it in
parentheses. Saved: seconds apart / together.
"""

import dataclasses
import os
import random
import sys
import threading
import time

import psycopg2
from studies import STUDIES
from tables import configure, connect, load_rows, pack

SEGMENTS = 2
ROWS = 4000
POOL = 20  # configurations of a study


def pool(number):
    """A study of some configurations of `grid-3`."""
    whole = STUDIES["grid-3"]
    drawn = random.Random(number).sample(whole.configurations, POOL)
    return dataclasses.replace(whole, configurations=tuple(drawn), validation=0)


KINDS = {"pool": [pool(number) for number in range(8)], "eight": STUDIES["eight"].parts}


class Session(threading.Thread):
    """Trains one study in a session of its own; `error`: what went wrong, or None."""

    def __init__(self, dsn, number, iterations, reuse):
        super().__init__()
        self.connection, cursor = connect(dsn)
        self.number, self.iterations, self.error = number, iterations, None
        cursor.execute(f"DROP TABLE IF EXISTS models_{number}, models_{number}_info, models_{number}_summary")
        cursor.execute(
            f"SET client_min_messages = error; SET pg_mop.threads = 1; SET pg_mop.seed = 1; SET pg_mop.reuse = {reuse}; "
            "SET pg_mop.kernel = 'loop'"
        )

    def run(self):
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(
                    "SELECT madlib.madlib_keras_fit_multiple_model('packed', %s, %s, %s, FALSE)",
                    [f"models_{self.number}", f"mst_{self.number}", self.iterations],
                )
        except psycopg2.Error as error:
            self.error = str(error)
        finally:
            self.connection.close()


@dataclasses.dataclass
class Outcome:
    """Of studies at the same time: `stages` that they trained, `different` ones of them, `work` seconds of units, `seconds`
    in all, `load` before."""

    stages: int
    different: int
    work: float
    seconds: float
    load: float


def once(dsn, numbers, iterations, reuse):
    """Train these studies (numbers) at the same time."""
    connection, cursor = connect(dsn)
    cursor.execute("SELECT madlib.mop_drop_run(run_id) FROM madlib.mop_runs")
    load = os.getloadavg()[0]
    sessions = [Session(dsn, number, iterations, reuse) for number in numbers]
    began = time.monotonic()
    for session in sessions:
        session.start()
    for session in sessions:
        session.join()
    seconds = time.monotonic() - began
    errors = [session.error for session in sessions if session.error]
    if errors:
        raise SystemExit("\n".join(errors))
    cursor.execute(
        "SELECT count(DISTINCT (u.run_id, u.stage)), count(DISTINCT s.identity), sum(u.train_seconds)::float8 "
        "FROM madlib.mop_units u JOIN madlib.mop_stages s USING (run_id, stage) "
        "WHERE u.kind = 'train' AND u.status = 'finished' AND NOT u.shared"
    )
    stages, different, work = cursor.fetchone()
    connection.close()
    return Outcome(stages, different, work, seconds, load)


def main(dsn, counts):
    """Print the table for both kinds of studies, and each count of them."""
    columns = (
        "kind",
        "studies",
        "apart",
        "together",
        "merge rate",
        "reached",
        "work",
        "seconds apart",
        "together",
        "saved",
    )
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")
    for kind, studies in KINDS.items():
        studies = [dataclasses.replace(study, rows=ROWS, validation=0) for study in studies]
        connection, cursor = connect(dsn)
        load_rows(cursor, studies[0])
        pack(cursor, studies[0], SEGMENTS)
        for number, study in enumerate(studies):
            configure(cursor, study, weights=False)
            cursor.execute(
                f"DROP TABLE IF EXISTS mst_{number}, mst_{number}_summary; ALTER TABLE mst RENAME TO mst_{number}; "
                f"ALTER TABLE mst_summary RENAME TO mst_{number}_summary"
            )
        connection.close()
        iterations = studies[0].iterations
        once(dsn, [0, 1], iterations, "off")
        for count in counts:
            apart, both = (once(dsn, range(count), iterations, reuse) for reuse in ("off", "on"))
            print(
                f"| {kind} | {count} | {apart.stages} | {both.stages} | {apart.stages / apart.different:.2f} | "
                f"{apart.stages / both.stages:.2f} | {apart.work / both.work:.2f} | {apart.seconds:.1f} ({apart.load:.1f}) | "
                f"{both.seconds:.1f} ({both.load:.1f}) | {apart.seconds / both.seconds:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1], [int(count) for count in sys.argv[2:]] or [2, 4, 8])
