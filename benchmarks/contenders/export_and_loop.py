"""Export and loop: COPY the table out, then plain Keras processes, each training whole configurations by Model.fit."""

import multiprocessing

from contenders.common import export, main, train_whole


def start(workload, x, y):
    global shared
    shared = workload, x, y


def train(key):
    return train_whole(shared[0], key, *shared[1:])


def contender(workload, dsn, workers, clock):
    with clock.part("export"):
        x, y = export(workload, dsn)
    context = multiprocessing.get_context("fork")  # this process has not imported Keras; rows are shared, not copied
    with clock.part("train"), context.Pool(workers, start, (workload, x, y)) as pool:
        trained = pool.map(train, range(len(workload.configurations)), chunksize=1)
    return {"losses": [loss for loss, _ in trained], "updates": sum(steps for _, steps in trained)}


if __name__ == "__main__":
    main(contender)
