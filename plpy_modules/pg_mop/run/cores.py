"""The cores of a run: which commands may begin now, and with how many threads."""

from __future__ import annotations

import psycopg2

from pg_mop.backend import settings
from pg_mop.backend.errors import MopError
from pg_mop.call.servers import Server
from pg_mop.run.run import Run
from pg_mop.schedule.board import Unit


def local_cores(run: Run) -> tuple[int, int]:
    """How many cores of the coordinator's server the commands of workers use, and how many workers there have none."""
    board, busy, idle = run.board, 0, 0
    for worker, session in run.sessions.by_worker.items():
        if worker in board.workers and board.server(worker) is None:
            if session.work:
                busy += run.threads.of(worker) or run.turns.threads
            else:
                idle += 1
    return busy, idle


def may_begin(run: Run, worker: int, unit: Unit | None) -> bool:
    """Whether a worker's command may begin now with a unit: its part of the device is free, and so are cores for as many
    threads as the unit had in the run that is repeated. (None: the worker has no unit.)"""
    logged = None if unit is None or run.board.server(worker) is not None else run.threads.logged(unit)
    if logged is not None and logged > run.turns.threads and not run.turns.may_have(local_cores(run)[0], logged):
        return False
    return run.device_parts.may_begin(worker, unit, run.working)


def threads(run: Run, worker: int, unit: Unit) -> int | None:
    """The threads of a worker's trainer, for a command that begins with a unit."""
    return run.threads.begin(worker, unit, run.working, lambda cores: _may_grow(run, worker, cores))


def _may_grow(run: Run, worker: int, cores: int) -> bool:
    """Whether commands may use so many cores of a worker's server, with its next one."""
    server = run.sessions.server(worker)
    if not server.home:
        return _may_grow_at(run, server, worker, cores)
    busy = local_cores(run)[0]
    if not run.turns.grow(busy, cores):
        return False
    more = cores - busy
    if run.options.get("deal_threads") == "on" or more <= (run.threads.of(worker) or run.turns.threads):
        return True
    return settings.runnable_threads() + more <= run.turns.cores


def _may_grow_at(run: Run, server: Server, worker: int, cores: int) -> bool:
    """As _may_grow, of another server: there no run takes turns, and other programs are asked for where that matters."""
    busy = sum(run.threads.of(w) or 0 for w in run.working if run.board.server(w) == server.name and w != worker)
    if run.options.get("deal_threads") == "on" or cores - busy <= (run.threads.of(worker) or 0):
        return True
    try:
        rows = server.catalog.execute(f"SELECT {server.schema}.mop_server_info() ->> 'computing' AS n")
    except (psycopg2.Error, MopError):  # it is away: the command will tell
        return False
    return int(rows[0]["n"]) + cores - busy <= server.info["cores"]
