"""Questions to plain Keras (keras_replay.py) about configurations of a run."""

import base64

import numpy as np

from support.workload import LOSS, buffers, replayed


def visited(db, run_id, packed, key=1, columns="xy"):
    """The packed rows of the segments that a configuration has visited, in the logged order."""
    rows = db.run(
        "SELECT segment FROM madlib.mop_visit_order WHERE run_id = %s AND mst_key = %s ORDER BY iteration, position",
        [run_id, key],
    )
    return [buffers(db, packed, row["segment"], columns) for row in rows]


def job(architecture, optimizer, arguments, visits, seed, model_id=1, **more):
    """A job of `replayed`. `seed`: of the run; `more`: what differs from one epoch with batches of 8 and LOSS."""
    own = int(np.random.SeedSequence([seed, model_id]).generate_state(1)[0])
    plain = {"loss": LOSS, "metrics": ["accuracy"], "batch_size": 8, "epochs": 1, "seed": own}
    return {
        "architecture": architecture,
        "optimizer": optimizer,
        "arguments": arguments,
        "visits": visits,
        **plain,
        **more,
    }


def by_keras(*jobs, **more):
    """The weights (float32) that plain Keras trains for each job."""
    return [np.frombuffer(base64.b64decode(found["plain"]), "<f4") for found in replayed(list(jobs), **more)]
