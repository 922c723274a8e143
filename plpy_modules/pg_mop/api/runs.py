"""mop_resume and mop_replay: go on with a run, or do it again."""

from pg_mop.api import automl, fit, fit_multiple, more, search
from pg_mop.backend.database import MopError, sql_function
from pg_mop.run.earlier import Earlier, open_catalog, own_run

# function -> (what trains, the argument that names the output table)
TRAINS = {
    fit_multiple.FUNCTION: (fit_multiple.train, "model_output_table"),
    fit.FUNCTION: (fit.train, "model"),
    search.FUNCTION: (search.train, "model_output_table"),
    automl.FUNCTION: (automl.train, "model_output_table"),
    more.FUNCTION: (more.train, None),
}


@sql_function
def mop_resume(db, run_id):
    """Go on with a run that was cancelled, failed or rolled back, from the last committed units, to its end.

    Everything is as the run had it: configurations, seed, kernel, output table. Raises MopError where the run is
    running or finished, or its states or rows are gone.
    """
    with open_catalog(db) as catalog:
        run = own_run(db, catalog, run_id)
        if run["status"] == "running":
            raise MopError(
                f"run {run_id} is running",
                hint=f"SELECT pg_cancel_backend({run['coordinator_pid']}); ends it.",
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
            f"run {run_id} is a replay, which does not go on",
            hint=f"SELECT {db.extension}.mop_replay({earlier.tables['replay_of']}, ...); begins it anew.",
            sqlstate="0A000",
        )
    train, _ = TRAINS[run["function"]]
    db.look_up_as(earlier.path)
    train(db, earlier.arguments, earlier)


@sql_function
def mop_replay(db, run_id, output_table):
    """Train as a run did, from its initial weights in its visit order, with its kernels, as a new run into new tables.

    On the same kind of device the weights are the same, byte by byte, whatever the number of sessions; but for units in
    which kernels were timed against one another (pg_mop.kernel = 'auto'), which are equal within rounding. Raises
    MopError where the run was not trained to its end, or its rows or initial weights are no longer there.
    """
    with open_catalog(db) as catalog:
        run = own_run(db, catalog, run_id)
        _check_trains(run)
        earlier = Earlier(catalog, run, replay=True)
    if run["function"] not in (fit_multiple.FUNCTION, fit.FUNCTION):
        raise MopError(
            f"run {run_id} is a search, which is not replayed",
            hint=f"SELECT {db.extension}.{run['function']}(...); with the same seed proposes the same for "
            f"the same results.",
            sqlstate="0A000",
        )
    earlier.check_complete()
    train, output = TRAINS[run["function"]]
    if earlier.path not in (None, db.callers_path):  # the new tables are where the caller makes tables
        output_table = db.output_table(output_table)
        db.look_up_as(earlier.path)
    train(db, {**earlier.arguments, output: output_table, "warm_start": False}, earlier)


def _check_trains(run):
    """Raises MopError where a run is a part of another server's, or of a call that trains nothing."""
    if run["function"] == "remote_run":
        raise MopError(
            f"run {run['run_id']} is a part of run {run['parameters']['run']} of another server",
            hint="Call it there, with that number.",
            sqlstate="0A000",
        )
    if run["function"] not in TRAINS:
        raise MopError(
            f"run {run['run_id']} is of {run['function']}, which trains nothing",
            hint="Make that call once more.",
            sqlstate="0A000",
        )
