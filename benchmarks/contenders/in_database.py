"""pg_mop: pack the table, load architectures and the selection table, one call; sessions start cold."""

from contenders.common import main, updates


def contender(workload, dsn, workers, clock):
    import psycopg2
    with clock.part("connect"):
        connection = psycopg2.connect(dsn)
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute("SET client_min_messages = warning; SET pg_mop.threads = 1; SET pg_mop.seed = 1;"
                       "DROP TABLE IF EXISTS packed, packed_summary, arch, mst, mst_summary, models, models_info, "
                       "models_summary")
        cursor.execute("SELECT set_config('pg_mop.segments', %s, FALSE)", [str(workers)])
    with clock.part("pack"):
        cursor.execute("SELECT madlib.training_preprocessor_dl('raw', 'packed', 'y', 'x', NULL, 1.0, %s)",
                       [[workload.classes]])
    with clock.part("configure"):
        for number in range(len(workload.nets)):
            text, weights = workload.architecture(number)
            cursor.execute("SELECT madlib.load_keras_model('arch', %s, %s)",
                           [text, b"".join(w.tobytes() for w in weights)])
        cursor.execute("CREATE TABLE mst (mst_key integer, model_id integer, compile_params text, fit_params text)")
        for key, c in enumerate(workload.configurations):
            cursor.execute("INSERT INTO mst VALUES (%s, %s, %s, %s)",
                           [key, c.architecture + 1, c.compile_params, f"batch_size={c.batch_size}"])
        cursor.execute("CREATE TABLE mst_summary AS SELECT 'arch'::text AS model_arch_table, "
                       "NULL::text AS object_table")
    with clock.part("train"):
        cursor.execute("SELECT madlib.madlib_keras_fit_multiple_model('packed', 'models', 'mst', %s, FALSE)",
                       [workload.iterations])
    cursor.execute("SELECT training_loss_final FROM models_info ORDER BY mst_key")
    losses = [row[0] for row in cursor.fetchall()]
    cursor.execute("SELECT kind, sum(extract(epoch FROM finished_at - started_at))::float8 FROM madlib.mop_units "
                   "WHERE run_id = (SELECT max(run_id) FROM madlib.mop_runs) GROUP BY kind")
    units = {f"session-seconds of {kind} units": seconds for kind, seconds in cursor.fetchall()}
    clock.parts.update(units)
    connection.close()
    return {"losses": losses, "updates": sum(updates(c, workload, workers) for c in workload.configurations)}


if __name__ == "__main__":
    main(contender)
