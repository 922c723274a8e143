"""mop_resume and mop_replay: continue a run, or repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pg_mop.api.madlib import fit, fit_multiple
from pg_mop.api.search import automl, more, search
from pg_mop.backend import settings
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.trusted import check_of_run
from pg_mop.call.earlier import Earlier, open_catalog, options_of, own_run

# function -> (training function, {argument with the name of an output table: its suffix in a replay})
TRAINS = {
    fit_multiple.FUNCTION: (fit_multiple.train, {"model_output_table": ""}),
    fit.FUNCTION: (fit.train, {"model": ""}),
    search.FUNCTION: (search.train, {"model_output_table": ""}),
    automl.FUNCTION: (automl.train, {"model_output_table": "", "model_selection_table": "_best"}),
    more.FUNCTION: (more.train, {"output_table": ""}),
}
# arguments with names of tables that a resumed or replayed run reads (-> of their companions): other roles may have taken them
READ = {
    "source_table": ("", "_summary"),
    "validation_table": ("", "_summary"),
    "model_selection_table": ("", "_summary"),
    "model_arch_table": ("",),
    "model_space": ("",),
}
SEARCHES = (search.FUNCTION, automl.FUNCTION)


@sql_function
def mop_resume(db: Database, run_id: int | None) -> None:
    """Continue a run that was cancelled, failed or rolled back, from its last committed units to its end.

    The run keeps its configurations, seed, kernel and output table. Raises MopError if the run is running or finished,
    or if its states or rows no longer exist.
    """
    with open_catalog(db) as catalog:
        run = own_run(db, catalog, run_id)
        _check_ended(run)
        assert run_id is not None
        if catalog.output_is_written(run_id):
            raise MopError(f"run {run_id} is finished", sqlstate="55000")
        if not run["has_states"]:
            raise MopError(
                f"the model states of run {run_id} are gone", detail="They are not part of a dump.", sqlstate="55000"
            )
        _check_trains(run)
        earlier = Earlier(catalog, run)
        earlier.follow(catalog)
    _go_on(db, earlier)


@sql_function
def mop_replay(db: Database, run_id: int | None, output_table: str | None) -> None:
    """Repeat a run from its initial weights, by its logged decisions, in its visit order and with its kernels, as a new run
    into new tables. The same call again goes on with an unfinished replay.

    On the same kind of device, the weights are equal byte by byte, with any number of sessions. The exception are units
    that timed kernels against one another (pg_mop.kernel = 'auto'): their results are equal within rounding. Raises
    MopError if the log of the run is not whole, or if its rows or initial weights no longer exist.
    """
    with open_catalog(db) as catalog:
        run = own_run(db, catalog, run_id)
        _check_trains(run)
        _check_ended(run)
        earlier = Earlier(catalog, run, replay=True)
        assert run_id is not None
        if run["function"] in SEARCHES:
            earlier.check_search(catalog.output_is_written(run_id))
        earlier.check_complete()
        new_table = db.output_table(output_table)
        if earlier.path not in (None, db.callers_path):  # create the new tables in the caller's schema
            output_table = new_table
        arguments = _arguments(db, run, earlier, output_table)
        unfinished = _unfinished(db, catalog, run, earlier, arguments)
    if unfinished is not None:
        db.info(f"going on with run {unfinished.run_id} of the same call (SET pg_mop.resume = off; begins anew)")
        _go_on(db, unfinished)
        return
    train, _ = TRAINS[run["function"]]
    if earlier.path not in (None, db.callers_path):
        db.look_up_as(earlier.path)
    _check_tables(db, arguments, earlier)
    train(db, arguments, earlier)


def _go_on(db: Database, earlier: Earlier) -> None:
    """Continue a run, which may be a replay."""
    train, _ = TRAINS[earlier.function]
    db.look_up_as(earlier.path)
    _check_tables(db, earlier.arguments, earlier)
    train(db, earlier.arguments, earlier)


def _check_tables(db: Database, arguments: Mapping[str, Any], earlier: Earlier) -> None:
    """Raises MopError where reading a table that the run names would run code of another role: the caller has named the run
    alone."""
    names = {(arguments.get(name) or earlier.tables.get(name), own) for name, own in READ.items()}
    if arguments.get("warm_start"):
        names.add((arguments.get("model_output_table") or arguments.get("model"), ("", "_info", "_summary")))
    for name, suffixes in names:
        for suffix in suffixes if isinstance(name, str) and name.strip() else ():
            check_of_run(db, db.suffixed(name, suffix) if suffix else name, "table of the run")


def _arguments(db: Database, run: Mapping[str, Any], earlier: Earlier, output_table: str | None) -> dict[str, Any]:
    """The arguments of a run's call, for a replay into other tables."""
    _, outputs = TRAINS[run["function"]]
    names = {
        name: db.suffixed(str(output_table), suffix) if suffix else output_table for name, suffix in outputs.items()
    }
    changes = {"warm_start": False} if "warm_start" in earlier.arguments else {}
    if run["function"] == more.FUNCTION:  # its call names no tables
        changes.update({name: run[name] for name in ("source_table", "validation_table")})
    return {**earlier.arguments, **changes, **names}


def _unfinished(
    db: Database, catalog: Any, run: Mapping[str, Any], earlier: Earlier, arguments: Mapping[str, Any]
) -> Earlier | None:
    """The unfinished replay of the same call, or None."""
    options = settings.load(db)
    if not options["resume"]:
        return None
    _, outputs = TRAINS[run["function"]]
    replay = catalog.unfinished(run["function"], arguments[next(iter(outputs))], arguments, replay_of=run["run_id"])
    if replay is None:
        return None
    unfinished = Earlier(catalog, replay)
    unfinished.followed = earlier
    return unfinished if unfinished.sharing == options_of(earlier, options)["sharing"] else None


def _check_ended(run: Mapping[str, Any]) -> None:
    """Raises MopError for a run in progress."""
    if run["status"] == "running":
        raise MopError(
            f"run {run['run_id']} is running",
            hint=f"To cancel it: SELECT pg_cancel_backend({run['coordinator_pid']});",
            sqlstate="55006",
        )


def _check_trains(run: Mapping[str, Any]) -> None:
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
