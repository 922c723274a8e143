"""A study in Optuna: a process for each worker, a journal file, SuccessiveHalvingPruner.

Optuna's pruner is asynchronous: at a rung it prunes, for good, every trial that is worse than the best 1/reduction of
the trials so far. So it stands for both procedures. Grid search has no pruner.
"""

import multiprocessing
import os
import tempfile

from contenders.common import main
from contenders.learner import Learner, found, rows


def connect(place, study):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(os.path.join(place, "log")))
    pruner = (
        optuna.pruners.NopPruner()
        if study.procedure == "grid"
        else optuna.pruners.SuccessiveHalvingPruner(
            min_resource=study.levels[0], reduction_factor=study.reduction, min_early_stopping_rate=0
        )
    )
    return optuna, optuna.create_study(
        storage=storage,
        study_name="study",
        pruner=pruner,
        direction="minimize",
        sampler=optuna.samplers.RandomSampler(seed=1),
        load_if_exists=True,
    )


def worker(place, study, data, out):
    """Execute trials until no trial waits."""
    optuna, shared = connect(place, study)
    learner, results = Learner(study, *data), []

    def objective(trial):
        if not trial.user_attrs:  # another worker has taken the last enqueued trial
            raise optuna.TrialPruned
        key = trial.suggest_int("key", 0, len(study.configurations) - 1)
        learner.begin(key)
        for level in study.levels:
            loss, accuracy = learner.train(level)
            results.append((key, level, loss, accuracy))
            trial.report(loss, level)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    while shared.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
        shared.optimize(objective, n_trials=1)
    out.put(results)


def contender(study, dsn, workers, clock):
    with clock.part("export"):
        data = rows(study, dsn)
    context = multiprocessing.get_context("fork")  # this process has not imported Keras; rows are shared, not copied
    with tempfile.TemporaryDirectory() as place, clock.part("train"):
        _, shared = connect(place, study)
        for key in range(len(study.configurations)):
            shared.enqueue_trial({"key": key}, user_attrs={"drawn": True})
        out = context.SimpleQueue()
        processes = [context.Process(target=worker, args=(place, study, data, out)) for _ in range(workers)]
        for process in processes:
            process.start()
        results = [r for _ in processes for r in out.get()]
        for process in processes:
            process.join()
    return found(results)


if __name__ == "__main__":
    main(contender)
