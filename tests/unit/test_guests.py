"""A server without segments of its own, a guest, takes part with the copies that it has."""

import random

import pytest

from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import simulate
from support.plans import chains

ANY = [name for name in SCHEDULERS if name != "round-robin"]
KEYS = {("training", 0): "w1", ("training", 1): None, ("training", 2): "w2"}


def board_of(configurations=8, iterations=3):
    return Board(chains(configurations, iterations), range(3), (), KEYS)


def with_guest(board, workers=1, copies=(0, 1, 2)):
    board.copies = {key: [KEYS["training", key], "w3"] for key in copies}
    board.invite("w3", workers, board.workers)
    board.serve(
        [*board.workers, *[w for w in range(20) if board.server(w) == "w3" and w not in board.workers][:workers]]
    )
    return board


def seconds(unit):
    return random.Random(repr(unit)).uniform(0.5, 1.5)


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("workers,copies", [(1, (0, 1, 2)), (2, (0, 2)), (3, (1,))])
def test_guests_train_on_copies_and_every_unit_is_done_once(name, workers, copies):
    board = with_guest(board_of(), workers, copies)
    visits = simulate(board, SCHEDULERS[name](board, 7), seconds)
    assert len(visits) == len({v.unit for v in visits}) == 8 * 3 * 3 and board.done
    by_guest = [v for v in visits if board.server(v.worker) == "w3"]
    assert by_guest and {v.unit.segment for v in by_guest} <= set(copies)


@pytest.mark.parametrize("name", ANY)
def test_a_guest_shortens_the_run(name):
    alone = board_of()
    before = max(v.end for v in simulate(alone, SCHEDULERS[name](alone, 7), lambda unit: 1.0))
    board = with_guest(board_of())
    after = max(v.end for v in simulate(board, SCHEDULERS[name](board, 7), lambda unit: 1.0))
    assert after <= 0.85 * before


def test_workers_keep_their_numbers_and_servers():
    board = board_of()
    before = {worker: board.server(worker) for worker in range(12)}
    board.serve([0, 1, 2, 7])
    board.invite("w3", 2, [0, 1, 2, 7, 9])
    assert all(board.server(worker) == before[worker] for worker in range(10)), "also those that have sessions alone"
    assert [board.server(worker) for worker in (10, 11)] == ["w3", "w3"]
    assert "w3" in {board.server(worker) for worker in range(12, 20)} and set(board.servers) == {"w1", None, "w2", "w3"}


def test_a_guest_goes_and_comes_back():
    board = with_guest(board_of())
    guest = next(worker for worker in board.workers if board.server(worker) == "w3")
    assert board.dismiss("w3") and not board.dismiss("w1")
    board.relocate({})
    assert guest not in board.workers and "w3" not in board.servers
    board.invite("w3")
    board.serve([*board.workers, guest])
    assert board.servers.count("w3") == 1 and board.copied(guest) == [0, 1, 2]


def test_a_guest_stays_while_segments_move():
    board = with_guest(board_of())
    board.relocate({("training", 0): "w2"})
    assert set(board.servers) == {None, "w2", "w3"} and any(board.server(worker) == "w3" for worker in board.workers)
