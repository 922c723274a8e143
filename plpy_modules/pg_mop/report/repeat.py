"""The SQL that repeats a run's call."""

from collections.abc import Iterable, Mapping
from typing import Any

from pg_mop.report.again import call, literal


def repeating_sql(
    run: Mapping[str, Any],
    arguments: Mapping[str, Any],
    settings: Mapping[str, Any],
    repeated: Iterable[str],
    schema: str,
    gets: str,
    replay_of: int | None = None,
) -> str | None:
    """The SQL that makes a run's call again; None where the role may not see the call's arguments.

    `repeated`: names of the settings that decide the result. `gets`: the server's operator between an argument's name
    and its value. `replay_of`: the run that it repeats, of a replay.
    """
    if not arguments:
        return None
    if replay_of is not None:
        return f"-- this run is a replay of run {replay_of}\nSELECT {schema}.mop_replay({replay_of}, '...');"
    lines = [f"SET pg_mop.{name} = {literal(settings[name])};" for name in repeated if settings.get(name) is not None]
    if run["status"] == "finished":
        lines.insert(0, "-- name new output tables: those of this call exist")
    return "\n".join([*lines, call(schema, run["function"], arguments, gets)])
