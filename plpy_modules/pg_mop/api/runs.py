"""mop_resume and mop_replay: continue a run, or repeat it."""

from pg_mop.api import automl, fit, fit_multiple, more, search
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.run.earlier import Earlier, open_catalog, own_run

# function -> (training function, the argument with the output table's name)
TRAINS = {
    fit_multiple.FUNCTION: (fit_multiple.train, "model_output_table"),
    fit.FUNCTION: (fit.train, "model"),
    search.FUNCTION: (search.train, "model_output_table"),
    automl.FUNCTION: (automl.train, "model_output_table"),
    more.FUNCTION: (more.train, None),
}


@sql_function
def mop_resume(db, run_id):
    """Continue a run that was cancelled, failed or rolled back, from its last committed units to its end.

    The run keeps its configurations, seed, kernel and output table. Raises MopError if the run is running or finished,
    or if its states or rows no longer exist.
    """
    with open_catalog(db) as catalog:
        run = own_run(db, catalog, run_id)
        if run["status"] == "running":
            raise MopError(
                f"run {run_id} is running",
                hint=f"To cancel it: SELECT pg_cancel_backend({run['coordinator_pid']});",
                sqlstate="55006",
            )
        if catalog.output_is_written(run_id):
            raise MopError(f"run {run_id} is finished", sqlstate="55000")
        if not run["has_states"]:
            raise MopError(
                f"the model states of run {run_id} are gone", detail="They are not part of a dump.", sqlstate="55000"
            )
        _check_trains(run)
        earlier = Earlier(catalog, run)
    if "replay_of" in earlier.tables:
        raise MopError(
            f"run {run_id} is a replay, which cannot be resumed",
            hint=f"To start it again: SELECT {db.extension}.mop_replay({earlier.tables['replay_of']}, ...);",
            sqlstate="0A000",
        )
    train, _ = TRAINS[run["function"]]
    db.look_up_as(earlier.path)
    train(db, earlier.arguments, earlier)


@sql_function
def mop_replay(db, run_id, output_table):
    """Repeat a run from its initial weights, in its visit order and with its kernels, as a new run into new tables.

    On the same kind of device, the weights are equal byte by byte, with any number of sessions. The exception are units
    that timed kernels against one another (pg_mop.kernel = 'auto'): their results are equal within rounding. Raises
    MopError if the run was not trained completely, or if its rows or initial weights no longer exist.
    """
    with open_catalog(db) as catalog:
        run = own_run(db, catalog, run_id)
        _check_trains(run)
        earlier = Earlier(catalog, run, replay=True)
    if run["function"] not in (fit_multiple.FUNCTION, fit.FUNCTION):
        raise MopError(
            f"run {run_id} is a search, which is not replayed",
            hint=f"SELECT {db.extension}.{run['function']}(...); with the same seed makes the same proposals for "
            f"the same results.",
            sqlstate="0A000",
        )
    earlier.check_complete()
    train, output = TRAINS[run["function"]]
    if earlier.path not in (None, db.callers_path):  # create the new tables in the caller's schema
        output_table = db.output_table(output_table)
        db.look_up_as(earlier.path)
    train(db, {**earlier.arguments, output: output_table, "warm_start": False}, earlier)


def _check_trains(run):
    """Raises MopError for a remote run, or for the run of a call that trains nothing."""
    if run["function"] == "remote_run":
        raise MopError(
            f"run {run['run_id']} is a part of run {run['parameters']['run']} of another server",
            hint="Call the function on that server, with that number.",
            sqlstate="0A000",
        )
    if run["function"] not in TRAINS:
        raise MopError(
            f"run {run['run_id']} is of {run['function']}, which trains nothing",
            hint="Make that call once more.",
            sqlstate="0A000",
        )
