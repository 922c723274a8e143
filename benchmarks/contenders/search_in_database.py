"""Studies in pg_mop: pack the tables; for each load the architecture, then one call; sessions start cold."""

from studies import SEED
from tables import configure, connect, pack, search, train

from contenders.common import main

WORK = """
SELECT sum(read_seconds + train_seconds + write_seconds)::float8,
       sum(read_seconds + train_seconds + write_seconds) FILTER (WHERE kind = 'train')::float8,
       sum(read_seconds + train_seconds + write_seconds) FILTER (WHERE kind = 'train' AND compilations = 0)::float8,
       count(DISTINCT (run_id, stage)) FILTER (WHERE kind = 'train')
FROM madlib.mop_units WHERE run_id = ANY(%s) AND status = 'finished' AND NOT shared
"""
BEST = """
SELECT loss, accuracy, run_id, mst_key, iteration FROM (
    SELECT run_id, mst_key, iteration, max(value) FILTER (WHERE name = 'loss') AS loss,
           max(value) FILTER (WHERE name = 'accuracy') AS accuracy
    FROM madlib.mop_metrics WHERE run_id = ANY(%s) AND dataset = 'validation' GROUP BY 1, 2, 3) AS m
ORDER BY 1, 3, 4 LIMIT 1
"""


def contender(workload, dsn, workers, clock, *settings):
    """`settings`: texts 'name=value'. Without a setting for it, no call reuses the training of an earlier run."""
    with clock.part("connect"):
        connection, cursor = connect(dsn)
        cursor.execute("SET client_min_messages = warning")
        # in comparisons of pg_mop with itself, all use the same kernel; otherwise pg_mop chooses the kernel by default
        kernel = "auto" if workload.parts[0].peers else "loop"
        for setting in ("pg_mop.threads=1", "pg_mop.seed=1", "pg_mop.reuse=off", f"pg_mop.kernel={kernel}", *settings):
            cursor.execute("SELECT set_config(%s, %s, FALSE)", setting.split("="))
        cursor.execute("SELECT madlib.mop_drop_checkpoints()")
    with clock.part("pack"):
        pack(cursor, workload, workers)
    runs = []
    for study in workload.parts:
        with clock.part("configure"):
            configure(cursor, study)
        with clock.part("train"):
            runs.append(
                train(cursor, study.iterations, "packed_validation")
                if study.procedure == "grid"
                else search(cursor, study, SEED)
            )
        check_order(cursor, study)
    cursor.execute(WORK, [runs])
    work, training, warm, trained = cursor.fetchone()
    clock.parts.update({"session-seconds": work, "session-seconds of train units": training})
    cursor.execute("SELECT sum(iterations)::integer FROM madlib.mop_trials WHERE run_id = ANY(%s)", [runs])
    asked = cursor.fetchone()[0]
    cursor.execute(BEST, [runs])
    loss, accuracy, *best = cursor.fetchone()
    connection.close()
    return {
        "loss": loss,
        "accuracy": accuracy,
        "best": best,
        "trained": trained,
        "asked": asked,
        "merge_rate": asked / trained,
        "session_seconds": work,
        "training_seconds": training,
        "warm_seconds": warm,
    }


def check_order(cursor, study):
    """The other contenders must have tried the same configurations, in the same order."""
    if study.procedure == "grid":
        return
    cursor.execute("SELECT compile_params, fit_params FROM models_trials ORDER BY mst_key")
    for (compile_params, fit_params), c in zip(cursor.fetchall(), study.configurations):
        assert f"lr={c.learning_rate}," in compile_params and fit_params == f"batch_size={c.batch_size}", (
            compile_params,
            fit_params,
            c,
        )


if __name__ == "__main__":
    main(contender)
