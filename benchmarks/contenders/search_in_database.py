"""A study in pg_mop: pack the tables, load the architecture, one call; sessions start cold."""

from studies import SEED
from tables import configure, connect, pack, search, train

from contenders.common import main

WORK = """
SELECT sum(read_seconds + train_seconds + write_seconds) FILTER (WHERE NOT shared)::float8,
       sum(read_seconds + train_seconds + write_seconds) FILTER (WHERE NOT shared AND kind = 'train')::float8,
       sum(read_seconds + train_seconds + write_seconds)
           FILTER (WHERE NOT shared AND kind = 'train' AND compilations = 0)::float8,
       count(DISTINCT stage) FILTER (WHERE kind = 'train'), count(DISTINCT (mst_key, iteration))
FROM madlib.mop_units WHERE run_id = %s AND status = 'finished'
"""
BEST = """
SELECT loss, accuracy, mst_key, iteration FROM (
    SELECT mst_key, iteration, max(value) FILTER (WHERE name = 'loss') AS loss,
           max(value) FILTER (WHERE name = 'accuracy') AS accuracy
    FROM madlib.mop_metrics WHERE run_id = %s AND dataset = 'validation' GROUP BY 1, 2) AS m ORDER BY 1, 3 LIMIT 1
"""


def contender(study, dsn, workers, clock, sharing=True):
    with clock.part("connect"):
        connection, cursor = connect(dsn)
        cursor.execute("SET client_min_messages = warning; SET pg_mop.threads = 1; SET pg_mop.seed = 1; "
                       "SET pg_mop.reuse = off")
        cursor.execute("SELECT set_config('pg_mop.sharing', %s, FALSE)", ["on" if sharing else "off"])
    with clock.part("pack"):
        pack(cursor, study, workers)
    with clock.part("configure"):
        configure(cursor, study)
    with clock.part("train"):
        run_id = train(cursor, study.iterations, "packed_validation") if study.procedure == "grid" else \
            search(cursor, study, SEED)
    cursor.execute(WORK, [run_id])
    work, training, warm, trained, asked = cursor.fetchone()
    clock.parts.update({"session-seconds": work, "session-seconds of train units": training})
    cursor.execute("SELECT merge_rate FROM madlib.mop_runs WHERE run_id = %s", [run_id])
    merge_rate = cursor.fetchone()[0]
    cursor.execute(BEST, [run_id])
    loss, accuracy, key, iteration = cursor.fetchone()
    check_order(cursor, study)
    connection.close()
    return {"loss": loss, "accuracy": accuracy, "best": [key, iteration], "trained": trained, "asked": asked,
            "merge_rate": merge_rate, "session_seconds": work, "training_seconds": training, "warm_seconds": warm}


def check_order(cursor, study):
    """The other contenders must have tried the same configurations, in the same order."""
    if study.procedure == "grid":
        return
    cursor.execute("SELECT compile_params, fit_params FROM models_trials ORDER BY mst_key")
    for (compile_params, fit_params), c in zip(cursor.fetchall(), study.configurations):
        assert f"lr={c.learning_rate}," in compile_params and fit_params == f"batch_size={c.batch_size}", \
            (compile_params, fit_params, c)


if __name__ == "__main__":
    main(contender)
