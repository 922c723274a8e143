"""Export and loop: COPY the table out, then plain Keras processes, each training whole configurations by Model.fit."""

from contenders.common import export, in_processes, main, train_whole


def contender(workload, dsn, workers, clock):
    with clock.part("export"):
        x, y = export(workload, dsn)
    with clock.part("train"):
        losses, updates = in_processes(train_whole, workload, x, y, workers)
    return {"losses": losses, "updates": updates}


if __name__ == "__main__":
    main(contender)
