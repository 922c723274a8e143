"""The board and the scheduler of a planned run. Pure Python."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pg_mop.plan.planner import Configuration, Planner, SegmentKey
from pg_mop.plan.sharing import epochs
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.base import Scheduler
from pg_mop.schedule.board import Board
from pg_mop.schedule.logged import Logged
from pg_mop.schedule.replicas import Replicas
from pg_mop.schedule.unit import Unit

ANYWHERE_BYTES = 32 << 20  # rows of all segments of a server that one trainer may keep
ANYWHERE_SEGMENTS = 8  # of a server: with more the choice of a unit takes longer than it saves
FROZEN = re.compile(r'"trainable"\s*:\s*false')


def scheduler_name(planner: Planner) -> str:
    """The name of the scheduler that a run uses."""
    return "randomized" if planner.workload.averaging else planner.workload.options["scheduler"]


def make_board(
    planner: Planner,
    configurations: Sequence[Configuration],
    misfits: Collection[int],
    sessions: int,
    moved: Mapping[SegmentKey, str | None] | None = None,
    trains: bool = True,
) -> Board:
    """The board of a run's units, for so many sessions.

    `misfits`: mst_keys of configurations that cannot be trained; `moved`: {segment: server that holds the copy to use}, for
    segments whose own server is away; `trains`: False where the run only evaluates or predicts.
    """
    work, earlier = planner.workload, planner.earlier
    kind: Callable[..., Board] = Board
    if work.averaging:
        kind = Replicas
    elif planner.followed is not None:
        order = {
            stage.number: planner.followed.order[c["mst_key"], stage.iteration]
            for c in configurations
            if c["mst_key"] not in misfits
            for stage in planner.plan.path(c["mst_key"])
        }
        kind = functools.partial(Logged, order=order)
    board = kind(
        planner.plan,
        work.keys("training"),
        work.keys("validation"),
        {key: segment.server for key, segment in work.segments.items()},
        [copy.server for segment in work.segments.values() for copy in segment.copies],
        planner.held_out,
    )
    if moved is not None:
        board.relocate(moved)
    if not work.averaging:  # (whose replicas belong to their segments)
        board.copies = {
            key: [segment.server, *(copy.server for copy in segment.copies)]
            for (dataset, key), segment in work.segments.items()
            if dataset == "training" and segment.copies
        }
        if trains:
            # (servers that are away have no copies here; a server without segments of its own has joined an earlier run)
            held = {copy.server for segment in work.segments.values() for copy in segment.copies}
            for server in sorted(held - {None} - set(board.servers), key=str):
                board.invite(server)
    board.count_by(planner.sharing.key, lambda stage: epochs(stage.parameters[1]))
    board.anywhere, board.searched = trains_anywhere(planner, configurations), work.searches
    board.serve(board.first_workers(sessions))
    if earlier is not None and not earlier.replay:
        board.restore(earlier.finished)
    return board


def make_scheduler(planner: Planner, board: Board) -> Scheduler:
    """The scheduler that chooses the board's next units."""

    def model(number: int) -> int:
        return planner.sharing.key(planner.plan.stages[number])[0]

    return SCHEDULERS[scheduler_name(planner)](board, planner.workload.seed, model, planner.unit_seconds)


def trains_anywhere(planner: Planner, configurations: Sequence[Configuration]) -> bool:
    """True if every trainer may hold the rows of all segments of its server, so that most nets are compiled in one trainer
    of each server only.

    False where frozen layers may be shared, since every trainer would compute them for every segment; and where the
    configurations are not known yet.
    """
    work, options = planner.workload, planner.workload.options
    shares = options["share_prefixes"] and any(FROZEN.search(c["model_arch"]) for c in configurations)
    if shares or not configurations:
        return False
    held: dict[str | None, list[int]] = {}  # server -> bytes of each of its segments
    for (dataset, _), segment in work.segments.items():
        if dataset == "training":
            held.setdefault(segment.server, []).append(segment.bytes)
    return (
        SCHEDULERS[scheduler_name(planner)].ANYWHERE
        and not work.averaging
        and len({segment.host for segment in work.segments.values() if segment.server is None}) <= 1
        and all(len(sizes) <= ANYWHERE_SEGMENTS for sizes in held.values())
        and all(sum(sizes) <= min(ANYWHERE_BYTES, options["cache_mb"] << 19) for sizes in held.values())
    )


def logged_threads(planner: Planner, misfits: Collection[int]) -> dict[Unit, int]:
    """Of a replay: {unit: the threads of its trainer in the earlier run}; empty where all were the run's own, or none is
    known."""
    if planner.followed is None:
        return {}
    log, own = planner.followed.threads, planner.followed.settings.get("threads")
    if not any(threads != own for threads in log.values()):
        return {}
    paths = {key: planner.plan.path(key) for key, *_ in log if key not in misfits}
    return {
        Unit(iteration, path[iteration - 1].number, kind, dataset, segment): threads
        for (key, iteration, kind, dataset, segment), threads in log.items()
        if iteration <= len(path := paths.get(key, []))
    }


def logged_devices(
    planner: Planner, log: Mapping[tuple[int, int, int], int], misfits: Collection[int]
) -> dict[Unit, int]:
    """{training unit: the devices that its model was divided among in the earlier run}, where these were several. `log`:
    {(mst_key, iteration, segment): devices}."""
    paths = {key: planner.plan.path(key) for key, *_ in log if key not in misfits}
    return {
        Unit(iteration, path[iteration - 1].number, "train", "training", segment): devices
        for (key, iteration, segment), devices in log.items()
        if iteration <= len(path := paths.get(key, []))
    }


def logged_kernels(planner: Planner, misfits: Collection[int]) -> dict[Unit, Any]:
    """Of a replay: {unit: the kernel that it used in the earlier run; of several kernels [[kernel, batches], ...]}."""
    if planner.followed is None:
        return {}
    paths = {key: planner.plan.path(key) for key, _, _ in planner.followed.kernels if key not in misfits}
    return {
        Unit(iteration, path[iteration - 1].number, "train", "training", segment): kernel
        for (key, iteration, segment), kernel in planner.followed.kernels.items()
        if iteration
        <= len(path := paths.get(key, []))  # (one that has failed is repeated up to its last whole iteration)
    }
