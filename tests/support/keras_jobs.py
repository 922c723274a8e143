"""What plain Keras is asked to repeat of a run (support/keras_replay.py)."""

import numpy as np

from support.workload import buffers, dense


def keras_job(db, run_id, key, rate, seed, **more):
    """The training of a configuration with Adam, over the segments of flowers_packed in the order that the run logged.
    `seed`: the run's, and the model_id; `more`: other values of a job."""
    visits = db.run(
        "SELECT segment FROM madlib.mop_visit_order WHERE (run_id, mst_key) = (%s, %s) ORDER BY iteration, position",
        [run_id, key],
    )
    return {
        **{"architecture": dense(), "optimizer": "Adam", "arguments": {"learning_rate": rate}},
        **{"loss": "categorical_crossentropy", "metrics": ["accuracy"], "batch_size": 10, "epochs": 1},
        "seed": int(np.random.SeedSequence(seed).generate_state(1)[0]),
        "visits": [buffers(db, "flowers_packed", visit["segment"]) for visit in visits],
        **more,
    }
