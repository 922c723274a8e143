"""Copies of a board, on which the rest of a run is tried in simulated time."""

from pg_mop.plan.stages import Iteration, Plan
from pg_mop.schedule.board import Board
from pg_mop.schedule.unit import Unit


def copy_of(board: Board, most: int) -> Board:
    """A board with the training that is left, as far as whole iterations have at most `most` units; at least one iteration.

    The stages keep their numbers. A running unit counts as not begun, and evaluations are left out.
    """
    stages = [board.plan.stages[number] for number in sorted(board.left) if not board.trained(number)]
    last = last_iteration(board, most)
    plan = Plan()
    done: list[Unit] = []
    for stage in stages:
        if stage.iteration <= last:
            parent = None if stage.parent is None or stage.parent.number not in plan.stages else stage.parent.number
            plan.restore(
                stage.number, parent, stage.iteration, stage.identity, stage.parameters, stage.mst_key, stage.trials
            )
            left = {s for s in board.segments if board.visits_left(stage.number, s)}
            done += [
                board.unit(stage.number, "train", "training", segment)
                for segment in board.all_visits(stage)
                if segment not in left
            ]
    servers = {key: server for key, server in board.server_of.items() if key[0] == "training"}
    copy = Board(plan, board.segments, (), servers, (), board.held_out)
    copy.anywhere, copy.copies = board.anywhere, board.copies
    copy.staff_of(board)
    copy.serve(board.workers)
    copy.restore(done)
    return copy


def last_iteration(board: Board, most: int) -> Iteration:
    """The last iteration up to which the stages that are left have at most `most` units; at least the first that is left."""
    units: dict[Iteration, int] = {}
    for number, stage in board.left.items():
        units[stage.iteration] = units.get(stage.iteration, 0) + board.visits_left(number)
    last, total = min(units, default=0), 0
    for iteration in sorted(units):
        total += units[iteration]
        if total > most and iteration > last:
            break
        last = iteration
    return last
