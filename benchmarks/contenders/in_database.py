"""pg_mop: pack the table, load architectures and the selection table, one call; sessions start cold."""

from tables import configure, pack, train

from contenders.common import main, updates


def contender(workload, dsn, workers, clock):
    import psycopg2
    with clock.part("connect"):
        connection = psycopg2.connect(dsn)
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute("SET client_min_messages = warning; SET pg_mop.threads = 1; SET pg_mop.seed = 1")
    with clock.part("pack"):
        pack(cursor, workload, workers)
    with clock.part("configure"):
        configure(cursor, workload)
    with clock.part("train"):
        run_id = train(cursor, workload.iterations)
    cursor.execute("SELECT training_loss_final FROM models_info ORDER BY mst_key")
    losses = [row[0] for row in cursor.fetchall()]
    cursor.execute("SELECT kind, sum(extract(epoch FROM finished_at - started_at))::float8 FROM madlib.mop_units "
                   "WHERE run_id = %s GROUP BY kind", [run_id])
    units = {f"session-seconds of {kind} units": seconds for kind, seconds in cursor.fetchall()}
    clock.parts.update(units)
    connection.close()
    return {"losses": losses, "updates": sum(updates(c, workload, workers) for c in workload.configurations)}


if __name__ == "__main__":
    main(contender)
