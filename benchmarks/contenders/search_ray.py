"""A study in Ray Tune: trials reuse actors with their compiled models, and report only at the rungs.

ASHAScheduler, with one bracket, stands for both procedures: at a rung it stops, for good, every trial that is not among
the best so far. Ray's synchronous scheduler, HyperBandScheduler (with one bracket of all trials), takes far longer: a
paused trial gives up its actor, so that every continued trial imports Keras and compiles again.
"""

import os
import tempfile

from contenders.common import THREADS, main
from contenders.learner import Learner, found, rows


def scheduler(study):
    """Ray's scheduler for a Study."""
    from ray.tune import schedulers

    if study.procedure == "grid":
        return schedulers.FIFOScheduler()
    return schedulers.ASHAScheduler(
        time_attr="iteration",
        max_t=study.iterations,
        grace_period=study.levels[0],
        reduction_factor=study.reduction,
        brackets=1,
    )


def trainable(study, shared):
    """The class of trials."""
    import ray
    from ray import tune

    class Trial(tune.Trainable):
        def setup(self, config):
            self.learner = Learner(study, *ray.get(shared))
            self.reset_config(config)

        def reset_config(self, config):
            self.key, self.results = config["key"], []
            self.learner.begin(self.key)
            return True

        def step(self):
            level = next(level for level in study.levels if level > self.learner.iteration)
            loss, accuracy = self.learner.train(level)
            self.results.append((self.key, level, loss, accuracy))
            return {"loss": loss, "iteration": level, "results": self.results[:], "done": level == study.iterations}

        def save_checkpoint(self, directory):
            """Unused, because actors are reused and a stopped trial never continues."""
            return {}

    return Trial


def contender(study, dsn, workers, clock):
    with clock.part("export"):
        data = rows(study, dsn)
    with clock.part("start Ray"):
        os.environ.update(
            {"RAY_AIR_NEW_OUTPUT": "0", "TUNE_MAX_PENDING_TRIALS_PG": "1000", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
        )
        import ray
        from ray import tune

        place = tempfile.mkdtemp(prefix="mop-ray-", dir="/tmp")
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        ray.init(
            num_cpus=workers,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=place,
            runtime_env={"env_vars": {**THREADS, "PYTHONPATH": here}},
        )
        shared = ray.put(data)
    with clock.part("train"):
        keys = list(range(len(study.configurations)))
        trials = tune.Tuner(
            tune.with_resources(trainable(study, shared), {"cpu": 1}),
            param_space={"key": tune.grid_search(keys)},
            tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler(study), reuse_actors=True),
            run_config=tune.RunConfig(storage_path=place, verbose=0),
        ).fit()
    if trials.errors:
        raise SystemExit(f"{len(trials.errors)} trials failed: {trials.errors[0]}")
    results = [tuple(r) for trial in trials for r in trial.metrics["results"]]
    ray.shutdown()
    return found(results)


if __name__ == "__main__":
    main(contender)
