"""Threads by what is left to do, on several servers: a Dealer for each, among the workers there. Pure Python."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pg_mop.plan.stages import Stage
from pg_mop.schedule.board import Board
from pg_mop.schedule.dealing import Dealer, Threads
from pg_mop.schedule.unit import Server, Unit, Worker


class ServerDealers(Threads):
    """Deals the cores of each server among the paths that are left, once there are fewer of them than workers there.

    All paths may come to a server at the same time. So its cores are dealt among all paths, also while some of them are trained
    elsewhere.
    """

    def __init__(self, board: Board, make: Callable[[Server], Dealer]) -> None:
        """`make(server)`: the Dealer of a server, made when its first command begins (a server may join)."""
        super().__init__(None)
        self.board, self._make = board, make
        self.cost = 0.0  # see Dealer
        self._dealers: dict[Server, Dealer] = {}

    def _at(self, worker: Worker) -> Dealer:
        server = self.board.server(worker)
        if server not in self._dealers:
            self._dealers[server] = self._make(server)
        return self._dealers[server]

    def begin(
        self, worker: Worker, unit: Unit, working: Collection[Worker], may_grow: Callable[[int], bool]
    ) -> int | None:
        server = self.board.server(worker)
        beside, dealer = [other for other in working if self.board.server(other) == server], self._at(worker)
        threads = dealer.begin(worker, unit, beside, may_grow)
        self.cost = dealer.cost
        return threads

    def faster(self, worker: Worker, stage: Stage) -> float:
        """See Dealer."""
        return self._at(worker).faster(worker, stage)

    def of(self, worker: Worker) -> int | None:
        return self._at(worker).of(worker)

    def finished(self, worker: Worker, unit: Unit, seconds: float) -> None:
        self._at(worker).finished(worker, unit, seconds)
