"""pg_mop: pack the table, load architectures and the selection table, one call; sessions start cold."""

from tables import configure, connect, pack, train

from contenders.common import main

# the time from the first unit's start to the last unit's end, and the longest work of a session or of a configuration
IDLE = """
WITH u AS (SELECT mst_key, backend_pid, started_at, finished_at FROM madlib.mop_units WHERE run_id = %s),
work AS (SELECT (SELECT sum(extract(epoch FROM upper(r) - lower(r))) FROM unnest(busy) AS r) AS seconds
         FROM (SELECT range_agg(tstzrange(started_at, finished_at)) AS busy FROM u GROUP BY backend_pid
               UNION ALL SELECT range_agg(tstzrange(started_at, finished_at)) FROM u GROUP BY mst_key) AS b)
SELECT (SELECT extract(epoch FROM max(finished_at) - min(started_at)) FROM u)::float8, max(seconds)::float8 FROM work
"""


def contender(workload, dsn, workers, clock, *settings):
    """`settings`: 'name=value' each."""
    with clock.part("connect"):
        connection, cursor = connect(dsn)
        cursor.execute(
            "SET client_min_messages = warning; SET pg_mop.threads = 1; SET pg_mop.seed = 1; SET pg_mop.reuse = off"
        )
        for setting in settings:
            cursor.execute("SELECT set_config(%s, %s, false)", setting.split("=", 1))
    with clock.part("pack"):
        pack(cursor, workload, workers)
    with clock.part("configure"):
        configure(cursor, workload)
    with clock.part("train"):
        run_id = train(cursor, workload.iterations)
    cursor.execute("SELECT training_loss_final FROM models_info ORDER BY mst_key")
    losses = [row[0] for row in cursor.fetchall()]
    # (the times of units in one batch overlap: the time of a unit is the sum of its parts)
    cursor.execute(
        "SELECT kind, sum(read_seconds + train_seconds + write_seconds)::float8 FROM madlib.mop_units "
        "WHERE run_id = %s AND NOT shared GROUP BY kind",
        [run_id],
    )
    clock.parts.update({f"session-seconds of {kind} units": seconds for kind, seconds in cursor.fetchall()})
    cursor.execute(IDLE, [run_id])
    clock.parts.update(zip(("makespan", "its lower bound"), cursor.fetchone()))
    cursor.execute(
        "SELECT mst_key, rows FROM madlib.mop_units WHERE run_id = %s AND kind = 'train' AND status = 'finished'",
        [run_id],
    )
    steps = sum(-(-rows // workload.configurations[key].batch_size) for key, rows in cursor.fetchall())
    connection.close()
    return {"losses": losses, "updates": steps}


if __name__ == "__main__":
    main(contender)
