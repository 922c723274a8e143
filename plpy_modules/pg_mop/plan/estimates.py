"""How long units take, by net: measured by earlier runs, else guessed from arithmetic. Pure Python.

A guess is linear in the operations of a mini-batch: seconds = BASE + operations / rate. The rate is that of the nets that
earlier runs of the role have measured on this machine, and without any, that of this machine's cores or of ordinary ones.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pg_mop.plan.arithmetic import Arithmetic
from pg_mop.plan.cost_history import CostHistory, Net, typical
from pg_mop.plan.planner import Planner
from pg_mop.plan.sharing import ModelKey, epochs
from pg_mop.plan.stages import Stage

HISTORY, MEASURED, OTHERS, GUESS = (
    "history",
    "measured",
    "other nets",
    "arithmetic",
)  # where the seconds of a net come from
BACKWARD = 3.0  # operations of a training step, in forward passes
RATE = 6e10  # operations a second of an ordinary processor core
LEAST_OPERATIONS = 2e6  # of a mini-batch whose seconds tell the rate: of fewer, other work takes most of the time
MOST_IN_COMMAND = 64.0  # units of a command, about
EVALUATED_TOGETHER = 4.0  # models that a command evaluates, about
BASE = 5e-5  # seconds of a mini-batch that computes nothing
DIVIDED_RATE = 2.5e10  # operations a second of a core at which the arithmetic that threads divide is counted
PARALLEL = 0.8  # of a mini-batch's arithmetic, without any measurement: the share that more threads divide
# seconds that a run may take, as multiples of what is expected
SPREAD = {HISTORY: (0.8, 1.35), MEASURED: (0.7, 1.6), OTHERS: (0.5, 2.0), GUESS: (0.4, 2.5)}


@dataclass(frozen=True)
class CommandCosts:
    """Seconds of a session for a command, besides the trainer's computation: `command`, for its transactions, its way to the
    trainer and back, and the coordinator's; `unit`: for each of its units; `state`: to read and to write a model's state;
    `megabyte`: of these states."""

    command: float = 0.006
    unit: float = 0.0005
    state: float = 0.001
    megabyte: float = 0.004

    def around(self, units: float) -> float:
        """Seconds for a command of so many units, without its states."""
        return self.command + units * self.unit

    def states(self, count: float, size: float) -> float:
        """Seconds for so many states, of so many bytes each."""
        return count * (self.state + size / (1 << 20) * self.megabyte)


@dataclass(frozen=True)
class FixedCosts:
    """Seconds that do not depend on the rows.

    `start`: from the call to its first unit; `unit`: in the trainer, to begin and to end a training unit; `ready`: to make a
    net ready in a trainer, besides the time to compile that the cost history has; `compile`: to compile, where it has none;
    `end`: from the last unit to the end of the call; `training`, `evaluating`: of commands; `places`: the same of commands of
    other servers, where they are known; `evaluation`: seconds of an evaluated row, in seconds of a trained row; `slowdown`:
    seconds of training units, as a multiple of what the least seconds of a mini-batch say; `measured`: runs of the role whose
    log gave the values, 0: none did.
    """

    start: float = 0.4
    unit: float = 0.0005
    ready: float = 0.03
    compile: float = 0.3
    end: float = 0.3
    training: CommandCosts = CommandCosts()
    evaluating: CommandCosts = CommandCosts()
    places: Mapping[str, tuple[CommandCosts, CommandCosts]] = field(default_factory=dict)
    evaluation: float = 0.4
    slowdown: float = 1.15
    measured: int = 0

    def commands(self, kind: str, place: str | None = None) -> CommandCosts:
        """The costs of commands of a kind ('train' or 'evaluate') at a place: a server, None: the coordinator's own."""
        training, evaluating = self.places.get(place or "", (self.training, self.evaluating))
        return training if kind == "train" else evaluating

    def on_machine(self, slowness: float) -> FixedCosts:
        """These costs where such work takes `slowness` times as long; those that the log tells stay."""
        return replace(self, unit=self.unit * slowness, ready=self.ready * slowness, compile=self.compile * slowness)


@dataclass(frozen=True)
class NetCost:
    """What is known of a net: seconds of a mini-batch and of its compilation, and where they come from."""

    batch: float
    compile: float
    source: str
    kernel: str | None = None  # by the history; None: the trainer will measure
    runs: int = 0  # that measured it
    device: str | None = None
    of_units: bool = False  # `batch` has all that a trainer does for a unit; else mini-batches were timed or guessed


Sample = tuple[float, float]  # (operations of a mini-batch, its seconds)


class Estimates:
    """Seconds of the units of a plan.

    `planner`: has the stages and the history; `arithmetic(mst_key)`: of a configuration's architecture, None if unknown;
    `samples`: of other nets that runs of the role measured on this machine; `threads`: of a trainer, None: the cores are
    divided among the sessions; `cores`: of the coordinator's server, None: unknown; `machine`: (operations a second of one of
    its cores, seconds of other work as a multiple of the usual ones), None: the usual ones; `sessions`: that work at the same
    time, and may have to share cores.
    """

    def __init__(
        self,
        planner: Planner,
        arithmetic: Callable[[int], Arithmetic | None] = lambda mst_key: None,
        samples: Callable[[], Iterable[Sample]] = tuple,
        fixed: FixedCosts | None = None,
        threads: int | None = None,
        cores: int | None = None,
        machine: tuple[float, float] | None = None,
        sessions: int = 1,
    ) -> None:
        self._core_rate, self._slowness = machine or (RATE, 1.0)
        self.planner, self.history = planner, planner.history
        self.fixed = fixed or FixedCosts()
        self._arithmetic, self._samples, self._threads, self._cores = arithmetic, samples, threads, cores
        self.sessions = max(1, sessions)
        self._rate: float | None = None
        self._measured = 0  # nets that gave the rate
        self.warm = False  # the trainers have the measured nets ready, from earlier runs
        self._nets: dict[tuple[Net, str | None], NetCost] = {}
        self._units: dict[tuple[ModelKey, str], float] = {}  # what `unit` has found
        self._speedups: dict[tuple[int, int], float] = {}  # (mst_key, threads) -> what `speedup` has found
        rows = planner.workload.rows
        self.mean_rows = sum(rows) / len(rows) if rows else 0.0
        self.crowding = self._crowding()

    def net(self, stage: Stage, place: str | None = None) -> NetCost:
        """What is known of a stage's net at a place: the server that holds the rows, None for the coordinator's own."""
        net = self.planner.sharing.net(stage)
        if (net, place) not in self._nets:
            self._nets[net, place] = self._find(net, stage, place)
        return self._nets[net, place]

    def note(self, stage: Stage, cost: NetCost) -> None:
        """Take a measurement of a stage's net, at all places."""
        self._speedups.clear()
        net = self.planner.sharing.net(stage)
        for place in {*self.planner.workload.places, None}:
            self._nets[net, place] = cost
        self._units.clear()

    def take_over(self, other: Estimates) -> None:
        """Take what another object knows of nets, so that it is not found again."""
        self.warm = other.warm
        self._nets.update(other._nets)
        self._units.clear()
        self._rate, self._measured = other._rate, other._measured

    def _find(self, net: Net, stage: Stage, place: str | None) -> NetCost:
        measured = known(self.history, net, place)
        if measured is not None:
            return measured
        arithmetic = self._arithmetic(stage.mst_key)
        operations = BACKWARD * (arithmetic.operations if arithmetic is not None else 0.0) * net.batch_size
        rate = self.rate
        batch = self._slowness * BASE + operations / rate
        return NetCost(batch, self.fixed.compile, OTHERS if self._measured else GUESS)

    @property
    def threads(self) -> int | None:
        """Of a trainer; None: the cores are divided among the sessions."""
        return self._threads

    @property
    def cores(self) -> int | None:
        """Of the coordinator's server; None: unknown."""
        return self._cores

    @property
    def deals(self) -> bool:
        """True where the run deals the cores among its trainers by what is left, and all of them are on the coordinator's
        server: of other servers the cores are not known here."""
        work = self.planner.workload
        alone = all(segment.server is None and not segment.copies for segment in work.segments.values())
        return bool(work.options.get("deal_threads")) and self._cores is not None and alone

    @property
    def rate(self) -> float:
        """Floating-point operations a second of a trainer."""
        if self._rate is None:
            self._rate, self._measured = rate_of(self._samples(), self._core_rate)
            if not self._measured:
                self._rate *= self._threads or self._cores or 1
        return self._rate

    @property
    def measured_nets(self) -> int:
        """How many other nets gave the rate; 0 where it was not needed, or none was measured."""
        return self._measured

    def _crowding(self) -> float:
        """How many times as long a trainer's work takes because trainers with more threads than cores share the processor."""
        if self._cores is None:
            return 1.0
        sessions = -(-self.sessions // max(1, len(self.planner.workload.places)))  # (on this server)
        threads = self._threads or max(1, self._cores // sessions)
        return max(1.0, sessions * threads / self._cores)

    def unit(self, stage: Stage) -> float:
        """Seconds of a training unit of a stage on a segment of mean size, without fixed costs: the mean over the places of
        the segments."""
        key = self.planner.sharing.key(stage), stage.parameters[1]
        if key not in self._units:
            self._units[key] = self._unit(stage)
        return self._units[key]

    def _unit(self, stage: Stage) -> float:
        places = self.planner.workload.places
        batches = epochs(stage.parameters[1]) * math.ceil(self.mean_rows / self.planner.sharing.net(stage).batch_size)
        mean = sum(self.net(stage, place).batch for place in places) / max(1, len(places))
        unit = 0.0 if self.net(stage).of_units else self.fixed.unit
        return self._slowdown(stage) * (unit + batches * mean)

    def _slowdown(self, stage: Stage) -> float:
        """Seconds of a unit in the run, as a multiple of those of its mini-batches. (The units of earlier runs had as many
        sessions beside them, most likely.)"""
        cost = self.net(stage)
        if cost.of_units:
            return 1.0
        return self.crowding * (self.fixed.slowdown if cost.source in (HISTORY, MEASURED) else 1.0)

    def slowness(self, stage: Stage, place: str | None) -> float:
        """Seconds of a unit at a place, as a multiple of the mean over all places."""
        places = self.planner.workload.places
        if len(places) < 2:
            return 1.0
        mean = sum(self.net(stage, one).batch for one in places) / len(places)
        return self.net(stage, place).batch / mean if mean else 1.0

    def certain(self, stage: Stage) -> float:
        """As `unit`, where earlier runs have measured the net; else 0."""
        return self.unit(stage) if self.net(stage).source in (HISTORY, MEASURED) else 0.0

    def speedup(self, stage: Stage, threads: int) -> float:
        """How many times as fast a mini-batch of a stage is with so many threads, in place of the run's.

        A cautious guess: only the arithmetic, as on ordinary cores, is divided among the threads. Earlier runs that had either
        number count for more, the guess as one run: a measurement may have been disturbed, and would never be made again.
        """
        own = self._threads or 1
        if threads == own:
            return 1.0
        if (stage.mst_key, threads) not in self._speedups:
            self._speedups[stage.mst_key, threads] = self._speedup(stage, own, threads)
        return self._speedups[stage.mst_key, threads]

    def _speedup(self, stage: Stage, own: int, threads: int) -> float:
        net, arithmetic, guess = self.planner.sharing.net(stage), self._arithmetic(stage.mst_key), None
        if arithmetic is not None:
            batch = self.net(stage).batch
            computed = BACKWARD * arithmetic.operations * net.batch_size / DIVIDED_RATE / own
            divided = PARALLEL * max(0.0, min(batch - BASE, computed))
            guess = batch / (batch - divided + divided * own / threads)
        rows = self.history.measured(net, None, threads)
        before, after = _best_of(self.history.measured(net, None, own)), _best_of(rows)
        common = before.keys() & after.keys()
        if not common:
            return guess or 1.0
        found = statistics.median(before[version] / max(1e-9, after[version]) for version in common)
        runs = max(row["runs"] for row in rows)
        return found if guess is None else (runs * found + guess) / (runs + 1)

    def evaluation(self, stage: Stage, rows: float) -> float:
        """Seconds of an evaluation of a stage on so many rows, without fixed costs."""
        batch_size = self.planner.sharing.net(stage).batch_size
        return self._slowdown(stage) * self.fixed.evaluation * rows / batch_size * self.net(stage).batch

    def ready(self, stage: Stage, threads: int | None = None) -> float:
        """Seconds until a trainer that has never had a stage's net can train it; `threads`: of the trainer, in place of the
        run's."""
        if threads is not None and threads != self._threads:
            rows = self.history.measured(self.planner.sharing.net(stage), None, threads)
            best = min(rows, key=lambda row: row["batch_seconds"], default=None)
            seconds = self.net(stage).compile if best is None else best["compile_seconds"] or 0.0
            return self.crowding * (self.fixed.ready + seconds)
        cost = self.net(stage)
        return 0.0 if self.warm and cost.source == HISTORY else self.crowding * (self.fixed.ready + cost.compile)

    def spread(self, stages: Iterable[Stage]) -> tuple[float, float]:
        """The least and the most that the units of some stages may take, as multiples of what is expected."""
        total = low = high = 0.0
        for stage in stages:
            seconds = max(1e-9, self.unit(stage))
            least, most = SPREAD[self.net(stage).source]
            total, low, high = total + seconds, low + least * seconds, high + most * seconds
        return (low / total, high / total) if total else SPREAD[GUESS]


def longest_path(total: float, longest: float, sessions: int, speedup: float, cost: float) -> float:
    """Seconds of the longest path where it has more threads once the others have ended: `speedup` times as fast, after `cost`
    seconds. `total`: session seconds of all paths.

    >>> longest_path(120.0, 100.0, 2, 1.6, 5.0), longest_path(120.0, 100.0, 2, 1.0, 5.0)
    (75.0, 100.0)
    """
    others = (total - longest) / (sessions - 1) if sessions > 1 else 0.0
    return min(longest, others + max(0.0, longest - others) / speedup + cost)


def in_a_command(options: Mapping[str, Any], unit: float) -> float:
    """How many units of so many seconds a command has, about: chains and unit batches are as long as the setting says.

    >>> in_a_command({"chain_seconds": 0.5}, 0.1), in_a_command({"chain_seconds": 0}, 0.1), in_a_command({}, 1e-6)
    (5.0, 1.0, 1.0)
    """
    return max(1.0, min(MOST_IN_COMMAND, (options.get("chain_seconds") or 0.0) / max(1e-4, unit)))


def in_commands(fixed: FixedCosts, units: float, evaluations: float, together: float, size: float) -> dict[str, float]:
    """Session seconds of the commands that do so many units, by purpose: around them, and for states of `size` bytes.
    `together`: units of a command, which trains a model on one segment after the other."""
    training, evaluating = fixed.training, fixed.evaluating
    commands, evaluated = units / together, evaluations / EVALUATED_TOGETHER
    return {
        "around": commands * training.around(together) + evaluated * evaluating.around(EVALUATED_TOGETHER),
        "write": training.states(commands, size) + evaluating.states(evaluations, size),
    }


def known(history: CostHistory, net: Net, place: str | None = None) -> NetCost | None:
    """What the history knows of a net at a place, of the device that was measured last; None if nothing."""
    rows = history.measured(net, place)
    if not rows:
        return None
    latest = max(rows, key=lambda row: str(row["noted_at"]))
    same = [row for row in rows if (row["version"], row["device"], row["part"]) == _place(latest)]
    found = typical(same)
    own = next(row for row in same if row["kernel"] == found.kernel)
    return NetCost(
        found.seconds, own["compile_seconds"] or 0.0, HISTORY, found.kernel, own["runs"], own["device"], found.of_units
    )


def _best_of(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """{(version, part): seconds of a mini-batch with the fastest kernel}."""
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row["version"], row["part"]
        found[key] = min(row["batch_seconds"], found.get(key, row["batch_seconds"]))
    return found


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["version"], row["device"], row["part"]


def rate_of(samples: Iterable[Sample], usual: float = RATE) -> tuple[float, int]:
    """(operations a second, how many samples gave it): the median of the samples' rates; (`usual`, 0) without any that
    has enough operations.

    >>> rate_of([(1e8, 0.01005), (2e8, 0.02005), (1e8, 1.0), (1e3, 0.001)])
    (10000000000.0, 3)
    """
    rates: Sequence[float] = [
        operations / max(seconds - BASE, seconds / 2)
        for operations, seconds in samples
        if operations >= LEAST_OPERATIONS and seconds
    ]
    return (statistics.median(rates), len(rates)) if rates else (usual, 0)
