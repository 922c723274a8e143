"""Ray Tune: COPY the table out, then one Keras trial for each configuration; trials reuse the actors."""

import os
import tempfile

from contenders.common import THREADS, export, main, train_whole


def contender(workload, dsn, workers, clock):
    with clock.part("export"):
        x, y = export(workload, dsn)
    with clock.part("start Ray"):
        os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
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
        shared = ray.put((x, y))

    def trial(config):
        loss, steps = train_whole(workload, config["key"], *ray.get(shared))
        tune.report({"loss": loss, "steps": steps, "key": config["key"]})

    with clock.part("train"):
        keys = list(range(len(workload.configurations)))
        results = tune.Tuner(
            tune.with_resources(trial, {"cpu": 1}),
            param_space={"key": tune.grid_search(keys)},
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(storage_path=place, verbose=0),
        ).fit()
    trained = {r.metrics["key"]: (r.metrics["loss"], r.metrics["steps"]) for r in results}
    ray.shutdown()
    return {"losses": [trained[k][0] for k in keys], "updates": sum(steps for _, steps in trained.values())}


if __name__ == "__main__":
    main(contender)
