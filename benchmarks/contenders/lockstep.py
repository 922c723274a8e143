"""MADlib's way: rounds in lockstep, Model.fit on each buffer alone, a model built and compiled at every visit.

It is emulated with pg_mop's round-robin scheduler. A process for each segment stands for the segment's backend. The
process keeps the rows after the first visit (MADlib's use_caching), and reads and writes model weights as bytea rows.
"""

import multiprocessing

from tables import connect, pack

from contenders.common import main
from pg_mop.plan import identity
from pg_mop.plan.stages import Plan
from pg_mop.schedule.board import Board
from pg_mop.schedule.round_robin import RoundRobin


def segment(place, pipe, workload, dsn):
    """Serve (kind, key) requests for the rows of segment number `place`."""
    import keras
    import numpy as np

    connection, cursor = connect(dsn)
    cursor.execute(
        "SELECT x, x_shape, y, y_shape FROM packed WHERE __dist_key__ = (SELECT __dist_key__ FROM (SELECT "
        "DISTINCT __dist_key__ FROM packed) AS d ORDER BY 1 OFFSET %s LIMIT 1) ORDER BY buffer_id",
        [place],
    )
    buffers = [
        (np.frombuffer(x, "<f4").reshape(xs), np.frombuffer(y, "<i2").reshape(ys)) for x, xs, y, ys in cursor.fetchall()
    ]
    while (request := pipe.recv()) is not None:
        kind, key = request
        cursor.execute("SELECT weights FROM lockstep WHERE key = %s", [key])
        weights, at = np.frombuffer(cursor.fetchone()[0], "<f4"), 0
        keras.backend.clear_session()
        model = workload.compiled(key)
        values = []
        for array in model.get_weights():
            values.append(weights[at : at + array.size].reshape(array.shape))
            at += array.size
        model.set_weights(values)
        size = workload.configurations[key].batch_size
        total, steps = 0.0, 0
        for x, y in buffers:
            if kind == "train":
                model.fit(x, y, batch_size=size, verbose=0)
                steps += -(-len(x) // size)
            else:
                total += float(model.evaluate(x, y, batch_size=1024, verbose=0)[0]) * len(x)
        if kind == "train":
            cursor.execute(
                "UPDATE lockstep SET weights = %s WHERE key = %s",
                [b"".join(w.tobytes() for w in model.get_weights()), key],
            )
        pipe.send((total, steps))


def contender(workload, dsn, workers, clock):
    connection, cursor = connect(dsn)
    with clock.part("pack"):
        cursor.execute(
            "SET client_min_messages = warning; SET pg_mop.seed = 1; DROP TABLE IF EXISTS lockstep; "
            "CREATE TABLE lockstep (key integer PRIMARY KEY, weights bytea)"
        )
        pack(cursor, workload, workers)
        for key, c in enumerate(workload.configurations):
            cursor.execute(
                "INSERT INTO lockstep VALUES (%s, %s)",
                [key, b"".join(w.tobytes() for w in workload.architecture(c.architecture)[1])],
            )
    keys = list(range(len(workload.configurations)))
    plan = Plan()
    for key, c in enumerate(workload.configurations):
        plan.ask(
            key,
            identity.root(key),
            lambda iteration, c=c: (c.compile_params, ""),
            workload.iterations,
            [workload.iterations],
        )
    board = Board(plan, range(workers))
    scheduler = RoundRobin(board, 1)
    losses, steps = [0.0] * len(keys), 0
    with clock.part("train"):
        context = multiprocessing.get_context("fork")
        pipes = []
        for place in range(workers):
            ours, theirs = context.Pipe()
            context.Process(target=segment, args=(place, theirs, workload, dsn), daemon=True).start()
            pipes.append(ours)
        while not board.done:
            units = {}
            for place in board.places:
                if unit := scheduler.choose(place):
                    board.start(unit)
                    units[place] = unit
                    pipes[place].send((unit.kind, plan.stages[unit.stage].mst_key))
            for place, unit in units.items():
                loss, done = pipes[place].recv()
                board.finish(unit)
                losses[plan.stages[unit.stage].mst_key] += loss / workload.rows
                steps += done
        for pipe in pipes:
            pipe.send(None)
    connection.close()
    return {"losses": losses, "updates": steps}


if __name__ == "__main__":
    main(contender)
