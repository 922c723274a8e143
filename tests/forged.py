"""Runs that a role makes by hand, by the functions that worker sessions write with."""

import json


def own_run(client, compile_params="", architecture="", fit_params=None, state=None):
    """The number of a new run of one configuration; `state`: bytes that are its model state at version 1."""
    run = {
        "function": "f",
        "source_table": "s",
        "model_output_table": "m",
        "seed": 1,
        "scheduler": "r",
        "num_iterations": 1,
        "metrics_iterations": [1],
        "configurations": 1,
        "segments": 1,
        "parameters": {},
        "coordinator": client.value("SELECT backend FROM madlib.mop_tokens"),
    }
    configuration = {
        "mst_key": 1,
        "model_id": 1,
        "compile_params": compile_params,
        "fit_params": fit_params,
        "model_arch": architecture,
    }
    stage = {
        "stage": 1,
        "iteration": 1,
        "identity": "x",
        "mst_key": 1,
        "compile_params": compile_params,
        "fit_params": fit_params,
        "evaluated": True,
        "version": 0,
    }
    run_id = client.value("SELECT madlib.mop_open_run(%s, '[]')", [json.dumps(run)])
    client.run(
        "SELECT madlib.mop_ask(%s, 1, %s, %s, %s)",
        [run_id, *(json.dumps([row]) for row in (configuration, stage, {"mst_key": 1, "iteration": 1, "stage": 1}))],
    )
    if state is not None:
        client.run(
            "SELECT madlib.mop_begin_units(%s, 1, 'train', 'training', '{1}', '{1}', '{0}', '{1}', '{0}')", [run_id]
        )
        client.run("SELECT madlib.mop_put_state(%s, 1, 1, 1, 0, %s)", [run_id, state])
        client.run(
            "SELECT madlib.mop_finish_units(%s, 'train', 'training', %s)",
            [
                run_id,
                json.dumps(
                    [
                        {
                            "stage": 1,
                            "segment": 0,
                            "attempt": 1,
                            "version": 1,
                            "state_table": 1,
                            "bytes": len(state),
                            "release": [],
                        }
                    ]
                ),
            ],
        )
    client.run("SELECT madlib.mop_close_run(%s, 1, 'failed', 'by hand')", [run_id])
    return run_id
