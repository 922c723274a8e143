"""The time that model states need on their way to units."""

from dataclasses import dataclass, field

from pg_mop.schedule.board import Board


@dataclass
class Transport:
    """What a unit takes besides its training, where each worker of a board is on a server of its own: `around` of `simulate`.

    `bytes`: of a model state; `network`: bytes a second of a server's line, and of the coordinator's; `disk`: bytes a
    second that a server writes; `coordinator`: seconds of its own work for a unit, one unit after the other. `direct`:
    states go from server to server; otherwise all pass the coordinator's line.
    """

    board: Board
    bytes: float
    network: float
    disk: float
    coordinator: float = 0.005
    direct: bool = False
    line_free: float = 0.0  # when the coordinator's line has carried all states so far
    coordinator_free: float = 0.0  # when the coordinator has done all its work so far
    state_at: dict = field(default_factory=dict)  # the worker that has a stage's state

    def __call__(self, worker, steps, now):
        """The seconds besides those of the unit: until it begins, and for writing its state."""
        ((unit,),) = steps
        parent = self.board.plan.stages[unit.stage].parent
        self.coordinator_free = ready = max(now, self.coordinator_free) + self.coordinator
        source = self.state_at.get(unit.stage, parent and self.state_at.get(parent.number))
        written = self.bytes / self.disk if unit.kind == "train" else 0.0
        if unit.kind == "train":
            self.state_at[unit.stage] = worker
        if source is not None and source != worker:
            carried = self.bytes / self.network
            if not self.direct:
                self.line_free = ready = max(ready, self.line_free) + carried
            else:
                ready += carried
            ready += self.bytes / self.disk
        return ready - now + written
