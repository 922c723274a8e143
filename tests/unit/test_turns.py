"""Turns: how many cores the commands of a run may use, by the database's answers."""

from pg_mop.run.turns import Turns


class Server:
    """Answers with `free` cores for the run, and notes what it is asked."""

    def __init__(self, free, alone=False, others=0):
        self.free, self.alone, self.others, self.asked = free, alone, others, []

    def ask(self, wanted, busy):
        self.asked.append((wanted, busy))
        return min(wanted, self.free), self.alone, self.others


def test_a_run_without_turns_begins_all():
    turns = Turns(None, 1, 4)
    assert turns.begin(1, 3) == 3 and not turns.look(1, 3) and turns.patience is None
    turns.settle(1)


def test_a_run_that_is_alone_asks_rarely():
    server = Server(4, alone=True)
    turns = Turns(server.ask, 1, 4)
    assert [turns.begin(busy, 4 - busy) for busy in (0, 3, 1)] == [4, 1, 3]
    turns.settle(2)
    assert not turns.look(4, 0) and turns.patience is None
    assert server.asked == [(4, 0)]
    turns.settle(0)  # at the end it leaves all
    assert server.asked == [(4, 0), (0, 0)]


def test_a_run_beside_others_begins_what_it_may_and_waits_with_the_rest():
    server = Server(1)
    turns = Turns(server.ask, 1, 4)
    assert turns.begin(0, 3) == 1 and turns.waits and turns.patience < 0.1
    assert turns.begin(1, 2) == 0
    turns._asked -= 1
    server.free = 3
    assert turns.look(1, 2) and turns.begin(1, 2) == 2 and not turns.waits
    assert server.asked == [(3, 0), (3, 1), (3, 1)]  # what it was given at a look, it has not asked for again


def test_a_run_that_must_stop_begins_nothing_and_ends_what_it_has_begun():
    server = Server(0)
    turns = Turns(server.ask, 1, 4)
    assert turns.begin(2, 1) == 0 and turns.waits
    assert turns.begin(0, 3) == 0 and turns.waits


def test_cores_that_no_worker_uses_are_left_to_others():
    server = Server(4)
    turns = Turns(server.ask, 1, 4)
    assert turns.begin(1, 3) == 3
    turns.settle(2)  # (the scheduler had one unit)
    assert server.asked == [(4, 1), (2, 2)]


def test_workers_of_several_threads_and_more_workers_than_cores():
    server = Server(3)
    turns = Turns(server.ask, 2, 4)
    assert turns.begin(0, 2) == 2 and server.asked == [(4, 0)]  # cores of one worker
    server = Server(4)
    turns = Turns(server.ask, 1, 4)
    assert turns.begin(0, 9) == 9  # it has asked for all cores, and shares them among its workers
    turns = Turns(Server(1).ask, 1, 1)
    assert turns.begin(0, 2) == 2


def test_more_threads_take_only_cores_that_no_other_run_wants():
    server = Server(4, others=3)
    turns = Turns(server.ask, 1, 4)
    assert turns.begin(0, 1) == 1
    assert not turns.grow(0, 2) and server.asked == [(1, 0)], "another run wants three of four cores"
    server.others = 2
    assert turns.begin(0, 1) == 1 and turns.grow(0, 2) and server.asked[-1] == (2, 0)
    server.others = 3  # it has come since the last answer
    assert not turns.grow(0, 2)
    turns.settle(1)
    assert server.asked[-1] == (1, 1)


def test_a_run_that_is_alone_has_all_cores_for_one_worker():
    server = Server(4, alone=True)
    turns = Turns(server.ask, 1, 4)
    assert turns.begin(0, 4) == 4 and turns.grow(0, 4) and server.asked == [(4, 0)]
    turns.settle(1)
    assert turns.grow(1, 4) and turns.grow(3, 6), "its own workers may be more than the cores"
    assert Turns(None, 1, 1).grow(0, 8)


def test_a_command_of_a_replay_waits_for_the_cores_that_it_had_and_for_a_minute_at_most(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("pg_mop.run.turns.time.monotonic", lambda: now[0])
    server = Server(4, others=3)
    turns = Turns(server.ask, 1, 4)
    turns.begin(0, 2)
    assert not turns.may_have(0, 4)
    turns.settle(0)
    assert turns.waits and server.asked[-1] == (0, 0), "it waits, and other runs have the cores"
    now[0] += 59
    assert not turns.may_have(0, 4)
    now[0] += 2
    assert turns.may_have(0, 4) and not turns.may_have(0, 4), "one command"
    server.others = 0
    turns.begin(0, 2)
    assert turns.may_have(0, 4) and server.asked[-1] == (4, 0)
    turns.settle(4)
    assert not turns.waits
