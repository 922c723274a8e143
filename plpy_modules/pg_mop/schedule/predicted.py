"""What is expected of a run, as a value and as JSON. Pure Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pg_mop.plan.estimates import HISTORY
from pg_mop.plan.stages import StageNumber
from pg_mop.schedule.simulator import Visit
from pg_mop.schedule.unit import Worker

MOST_TOLD = 2000  # simulated units in the plan's JSON
# what the session time besides training and evaluation may take, as multiples of what is expected
REST, REST_BY_LOG = (0.6, 1.6), (0.8, 1.25)
LEAST, MOST = 0.95, 1.1  # of the makespan: what a schedule may be shorter or longer by, besides its units


@dataclass
class Load:
    """A worker session's part: busy seconds, and when it has nothing more to do (seconds from the first unit)."""

    worker: Worker
    server: str | None
    busy: float = 0.0
    until: float = 0.0


@dataclass
class Prediction:
    """What a run will take.

    `makespan`: seconds from the first unit's start to the last unit's end; `low`, `high`: its range; `lower_bound`: no
    schedule takes less; `seconds`: of the whole call; `work`: session seconds by purpose: train, evaluate, ready, around,
    write; `path`: (mst_key, seconds) of the longest path; `shares`: {mst_key: share of the training work}; `limits`: what
    limits the makespan, in words.
    """

    sessions: int
    units: int = 0
    evaluations: int = 0
    makespan: float = 0.0
    low: float = 0.0
    high: float = 0.0
    lower_bound: float = 0.0
    start: float = 0.0
    end: float = 0.0
    work: dict[str, float] = field(default_factory=dict)
    path: tuple[int, float] | None = None
    shares: dict[int, float] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)
    commands: int | None = None  # None: not simulated
    chained: int = 0  # commands that are chains
    grouped: int = 0  # commands with unit batches
    simulated: bool = False
    limits: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    dealt: dict[str, Any] | None = None  # from which second on how many sessions have more threads
    visits: list[Visit] = field(default_factory=list)
    trials: dict[StageNumber, tuple[int, int]] = field(
        default_factory=dict
    )  # (mst_key, iteration) of the stages of visits

    def set_range(self, spread: tuple[float, float]) -> None:
        """Set `low` and `high`. `spread`: the least and the most that the trainers' work may take, as multiples of what is
        expected. The rest (to make nets ready, to read, to write) varies by REST, or less where the log tells of these nets."""
        varies = (self.work["train"] + self.work["evaluate"]) / max(1e-9, sum(self.work.values()))
        rest = REST_BY_LOG if self.sources == [HISTORY] else REST
        low, high = (varies * factor + (1 - varies) * other for factor, other in zip(spread, rest))
        self.low, self.high = LEAST * low * self.makespan, MOST * high * self.makespan

    @property
    def seconds(self) -> float:
        """Of the whole call."""
        return self.start + self.makespan + self.end

    @property
    def range(self) -> tuple[float, float]:
        """Of the whole call."""
        return self.start + self.low + self.end, self.start + self.high + self.end


def in_brief(found: Prediction) -> dict[str, Any]:
    """A prediction as plain values with stable names, as a run keeps it."""
    return {
        "seconds": found.seconds,
        "makespan": found.makespan,
        "makespan_low": found.low,
        "makespan_high": found.high,
        "lower_bound": found.lower_bound,
        "start_seconds": found.start,
        "end_seconds": found.end,
        "sessions": found.sessions,
        "training_units": found.units,
        "evaluation_units": found.evaluations,
        "session_seconds": found.work,
        "longest_path": None if found.path is None else {"mst_key": found.path[0], "seconds": found.path[1]},
        "sources": found.sources,
    }


def to_json(found: Prediction) -> dict[str, Any]:
    """A prediction as plain values with stable names, with what its simulation tells."""
    return {
        **in_brief(found),
        "seconds_low": found.range[0],
        "seconds_high": found.range[1],
        "simulated": found.simulated,
        "commands": found.commands,
        "chains": found.chained if found.simulated else None,
        "unit_batches": found.grouped if found.simulated else None,
        "loads": [
            {"session": load.worker, "server": load.server, "busy_seconds": load.busy, "until": load.until}
            for load in found.loads
        ],
        "limits": found.limits,
        "dealt": found.dealt,
        "units": _units(found) if found.simulated else None,
    }


def _units(found: Prediction) -> dict[str, Any]:
    """The simulated units as a compact table, in seconds from the first unit: the first MOST_TOLD of them, and how many are
    left out."""
    begin = min((visit.start for visit in found.visits), default=0.0)
    return {
        "columns": ["session", "from", "until", "mst_key", "iteration", "kind"],
        "rows": [
            [
                visit.worker,
                _brief(visit.start - begin),
                _brief(visit.end - begin),
                *found.trials[visit.unit.stage],
                visit.unit.kind,
            ]
            for visit in found.visits[:MOST_TOLD]
        ],
        "left_out": max(0, len(found.visits) - MOST_TOLD),
    }


def _brief(seconds: float) -> float:
    """Seconds with as many digits as a picture needs."""
    return float(f"{seconds:.5g}")
