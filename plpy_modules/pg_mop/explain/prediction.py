"""What a planned run will take: the real scheduler and unit batches, run by the simulator on estimated seconds. Pure Python.

A plan with many units is not simulated: with many units for each session every scheduler comes close to the lower bound, and
the sum of the work says as much in less time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pg_mop.plan.estimates import Estimates, in_a_command, in_commands, longest_path
from pg_mop.plan.planner import Configuration, Planner
from pg_mop.plan.sharing import ModelKey
from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule import setup
from pg_mop.schedule.board import Board
from pg_mop.schedule.dealing import START, Dealer
from pg_mop.schedule.device_parts import DeviceParts
from pg_mop.schedule.predicted import Load, Prediction
from pg_mop.schedule.simulator import Visit, makespan, simulate
from pg_mop.schedule.unit import Unit, Worker
from pg_mop.schedule.unit_batches import CommandSteps, UnitBatches, units_of

MOST_UNITS = 2000  # of a plan that is simulated
IDLE = 0.1  # of the makespan: shorter idle times at the end are not told
MANY = 0.25  # a share of the session time that is told as a limit
MOST_OF_WORK = 0.4  # a configuration's share of the work that is told


class _Counting(UnitBatches):
    """Unit batches that are counted."""

    commands = chained = grouped = 0

    def choose(self, worker: Worker) -> CommandSteps:
        steps = super().choose(worker)
        if steps:
            self.commands += 1
            self.chained += len(steps) > 1
            self.grouped += any(len(units_of([step])) > 1 for step in steps)
        return steps


def predict(
    planner: Planner,
    configurations: Sequence[Configuration],
    misfits: Collection[int],
    estimates: Estimates,
    bytes_of: Callable[[Stage], int] = lambda stage: 1 << 16,
    most_units: int = MOST_UNITS,
    device_parts_of: Callable[[Board], DeviceParts] | None = None,
) -> Prediction:
    """The prediction of a planned run, whose stages are asked for. `estimates`: for its number of sessions; `bytes_of`: the
    size of a stage's model state; `most_units`: of a plan that is simulated; `device_parts_of`: the DeviceParts of a board,
    None: trainers do not share devices. The planner's plan is in the run's final state afterwards if it was simulated.
    """
    work = _Work(planner, estimates, bytes_of, setup.trains_anywhere(planner, configurations))
    fixed = estimates.fixed
    found = Prediction(work.sessions, work.units, work.evaluations, start=fixed.start, end=fixed.end)
    found.path, found.shares = work.path, work.shares
    if not work.units and not work.evaluations:
        return found
    found.sources = sorted({estimates.net(stage).source for stage in work.models.values()})
    spread = estimates.spread(work.left)
    found.lower_bound = work.lower_bound
    if work.units + work.evaluations <= most_units:
        _simulate(found, work, planner, configurations, misfits, device_parts_of)
    else:
        _sum_up(found, work)
    found.set_range(spread)
    found.limits = _limits(found, work, len({key for stage in work.left for key in stage.trials}))
    return found


class _Work:
    """The units that are left of a plan, and their seconds."""

    def __init__(
        self, planner: Planner, estimates: Estimates, bytes_of: Callable[[Stage], int], anywhere: bool
    ) -> None:
        self.planner, self.estimates, self.bytes_of, self.anywhere = planner, estimates, bytes_of, anywhere
        self.sessions = estimates.sessions
        self.deals = estimates.deals
        self.most: int = planner.workload.options.get("most_threads") or estimates.cores or 1  # threads of a trainer
        self.least = estimates.threads or max(1, (estimates.cores or 1) // self.sessions)
        options, segments = planner.workload.options, planner.workload.segments
        self.rows = {key: segment.rows for key, segment in segments.items()}
        self.servers = {key: segment.server for key, segment in segments.items()}
        chains = all(
            planner.may_chain([key for key, server in self.servers.items() if server == name])
            for name in set(self.servers.values())
        )
        self.chain_seconds: float = options.get("chain_seconds") or 0.0 if chains else 0.0
        self.left = [stage for stage in planner.plan.stages.values() if stage.trials and not stage.ended]
        self._row: dict[tuple[ModelKey, str], float] = {}
        total_rows = sum(self.rows.values())
        self.units = self.evaluations = 0
        self.train = self.evaluate = 0.0
        self.models: dict[ModelKey, Stage] = {}
        paths: dict[StageNumber, float] = {}
        by_trial: Counter[int] = Counter()
        averaging = planner.workload.averaging
        datasets = {dataset for dataset, _ in segments}
        for stage in self.left:
            own = 0.0
            if not stage.trained:
                visits = planner.visits(stage)
                own = visits * estimates.unit(stage)
                self.units, self.train = self.units + visits, self.train + own
                by_trial[min(stage.trials)] += own  # type: ignore[assignment]
                self.models.setdefault(planner.sharing.key(stage), stage)
            if stage.evaluated and not stage.scored:
                held_out = planner.held_out(stage)
                keys = [("training", k) for k in held_out] if held_out else list(segments)
                self.evaluations += len(keys)
                rows = sum(self.rows[key] for key in keys) if held_out else total_rows
                self.evaluate += rows * self._evaluation(stage)
            parent = stage.parent.number if stage.parent is not None else None
            paths[stage.number] = own + (paths.get(parent, 0.0) if parent is not None else 0.0)
        if averaging:  # the replicas of an iteration wait for one another, and each trains on one segment
            largest = max((self.rows[key] for key in self.rows if key[0] == "training"), default=0)
            factor = largest / max(1.0, estimates.mean_rows)
            paths = {number: seconds * factor for number, seconds in paths.items()}
        longest = max(self.left, key=lambda stage: paths[stage.number], default=None)
        self.path = (min(longest.trials), paths[longest.number]) if longest is not None else None
        if longest is not None:
            self.longest = longest
        total = sum(by_trial.values())
        self.shares = {key: seconds / total for key, seconds in by_trial.items()} if total and not averaging else {}
        self.datasets = len(datasets)

    def _evaluation(self, stage: Stage) -> float:
        """Seconds of an evaluated row."""
        key = self.planner.sharing.key(stage), stage.parameters[1]
        if key not in self._row:
            self._row[key] = self.estimates.evaluation(stage, 1.0)
        return self._row[key]

    @property
    def ready(self) -> float:
        """Session seconds to make nets ready: each compiled model in one trainer of a server, or in every trainer."""
        times = len(set(self.planner.workload.places)) if self.anywhere else self.sessions
        return times * sum(map(self.estimates.ready, self.models.values()))

    @property
    def lower_bound(self) -> float:
        """Seconds that no schedule can do without."""
        work = (self.train + self.evaluate) / self.sessions
        path = self.path[1] if self.path is not None else 0.0
        if self.deals and self.path is not None:
            assert self.estimates.cores is not None
            cores, speedup = self.estimates.cores, self.estimates.speedup(self.longest, self.most)
            # (a net may need fewer core-seconds with more threads, by measurement)
            work *= min(1.0, self.least * self.sessions / cores) / max(1.0, speedup * self.least / self.most)
            path /= max(1.0, speedup)
        return max(work, path)

    @property
    def longest_path(self) -> float:
        """Seconds of the longest path, with more threads where they are dealt once other paths have ended."""
        if self.path is None:
            return 0.0
        if not self.deals:
            return self.path[1]
        cost = START + self.estimates.ready(self.longest, self.most)
        total = self.train + self.evaluate
        return longest_path(total, self.path[1], self.sessions, self.estimates.speedup(self.longest, self.most), cost)

    def dealer(self, board: Board) -> Dealer | None:
        """The Dealer of the run; None: threads are fixed."""
        if not self.deals:
            return None
        return Dealer(board, self.most, self.least, self.planner.unit_key, _Costs(self.estimates))

    def seconds(self, unit: Unit) -> float:
        """Seconds of a unit, for the simulator."""
        stage, rows = self.planner.plan.stages[unit.stage], self.rows[unit.dataset, unit.segment]
        if unit.kind == "evaluate":
            return rows * self._evaluation(stage)
        slow = self.estimates.slowness(stage, self.servers[unit.dataset, unit.segment])
        return slow * self.estimates.unit(stage) * rows / max(1.0, self.estimates.mean_rows)


class _Costs:
    """As of dealing.Costs: by the time that threads are dealt, the run will have measured what is estimated now."""

    def __init__(self, estimates: Estimates) -> None:
        self.certain, self.speedup, self.ready = estimates.unit, estimates.speedup, estimates.ready


def _simulate(
    found: Prediction,
    work: _Work,
    planner: Planner,
    configurations: Sequence[Configuration],
    misfits: Collection[int],
    device_parts_of: Callable[[Board], DeviceParts] | None,
) -> None:
    board = setup.make_board(planner, configurations, misfits, found.sessions)
    scheduler, device_parts = (
        setup.make_scheduler(planner, board),
        None if device_parts_of is None else device_parts_of(board),
    )
    plan, estimates = planner.plan, work.estimates
    batches = _Counting(
        board,
        scheduler,
        planner.unit_key,
        lambda number: work.bytes_of(plan.stages[number]),
        work.chain_seconds,
        lambda stage, child: not stage.ends and not stage.evaluated,
        lambda worker: planner.may_chain(board.served(worker)),
        lambda unit: None if device_parts is None else (device_parts.kind(unit.stage), device_parts.shared_by(unit)),
    )
    has: set[tuple[Worker, ModelKey]] = set()
    spent = dict.fromkeys(("ready", "around", "write"), 0.0)

    def ready(unit: Unit, worker: Worker) -> float:
        stage = plan.stages[unit.stage]
        key = worker, planner.sharing.key(stage)
        if key in has:
            return 0.0
        if unit.kind == "train":
            has.add(key)
        seconds = estimates.ready(stage) if unit.kind == "train" else min(estimates.fixed.ready, estimates.ready(stage))
        spent["ready"] += seconds
        return seconds

    def around(worker: Worker, steps: Sequence[Sequence[Unit]], now: float) -> float:
        costs = estimates.fixed.commands(steps[0][0].kind, board.server(worker))
        command = costs.around(sum(map(len, steps)))
        states = sum(costs.states(1, work.bytes_of(plan.stages[unit.stage])) for unit in steps[0])
        spent["around"], spent["write"] = spent["around"] + command, spent["write"] + states
        return command + states

    dealer = work.dealer(board)
    visits = simulate(
        board,
        scheduler,
        work.seconds,
        batches=batches,
        around=around,
        ready=ready,
        dealer=dealer,
        device_parts=device_parts,
    )
    found.makespan = makespan(visits) if visits else 0.0
    found.commands, found.chained, found.grouped = batches.commands, batches.chained, batches.grouped
    found.loads, found.simulated = _loads(visits, board), True
    found.dealt = None if dealer is None else _dealt(visits, dealer.least)
    found.visits = sorted(visits, key=lambda visit: (visit.start, visit.worker, visit.end))
    found.trials = {stage.number: (min(stage.trials), stage.iteration) for stage in work.left}
    found.work = {"train": work.train, "evaluate": work.evaluate, **spent}


def _dealt(visits: Sequence[Visit], least: int) -> dict[str, Any] | None:
    """From which second on, of the first unit's, how many sessions have more than the least threads, and at most how many.
    None: none has."""
    more = [visit for visit in visits if (visit.threads or 0) > least]
    if not more:
        return None
    return {
        "from": min(visit.start for visit in more) - min(visit.start for visit in visits),
        "sessions": len({visit.worker for visit in more}),
        "threads": max(visit.threads or 0 for visit in more),
    }


def _loads(visits: Sequence[Visit], board: Board) -> list[Load]:
    loads = {worker: Load(worker, board.server(worker)) for worker in board.workers}
    # the units of a unit batch have the times of their step
    for worker, start, end in sorted({(visit.worker, visit.start, visit.end) for visit in visits}):
        load = loads.setdefault(worker, Load(worker, board.server(worker)))
        load.busy, load.until = load.busy + end - start, max(load.until, end)
    return list(loads.values())


def _sum_up(found: Prediction, work: _Work) -> None:
    """The prediction of a plan that is not simulated: the work of all sessions is about equal."""
    fixed, units = work.estimates.fixed, work.units + work.evaluations
    mean = (work.train + work.evaluate) / units
    together = in_a_command({"chain_seconds": work.chain_seconds}, mean)
    sizes = [work.bytes_of(stage) for stage in work.models.values()]
    size = sum(sizes) / len(sizes) if sizes else 0.0
    found.work = {
        "train": work.train,
        "evaluate": work.evaluate,
        "ready": work.ready,
        **in_commands(fixed, work.units, work.evaluations, together, size),
    }
    total = sum(found.work.values()) / work.sessions
    found.makespan = max(total, work.longest_path) + mean * together / 2
    found.loads = [Load(worker, None, total, found.makespan) for worker in range(found.sessions)]


def _limits(found: Prediction, work: _Work, trials: int) -> list[str]:
    """What limits the makespan, in words, the most important first."""
    told: list[tuple[float, str]] = []
    spent, makespan_ = sum(found.work.values()), max(1e-9, found.makespan)
    if found.shares and len(found.shares) > 1:
        key = max(found.shares, key=lambda k: found.shares[k])
        share = found.shares[key]
        if share >= MOST_OF_WORK and share * len(found.shares) > 1.5:
            told.append((share, f"configuration {key} is {share:.0%} of the work"))
    if 0 < trials < found.sessions:
        s = "s" * (trials > 1)
        text = f"{trials} configuration{s} can keep {trials} of {found.sessions} sessions busy"
        told.append((1 - trials / found.sessions, text))
    for purpose, text in (
        ("ready", "making nets ready is {} of the session time"),
        ("around", "transactions around units are {} of the session time"),
        ("evaluate", "evaluations are {} of the session time"),
        ("write", "reading and writing states is {} of the session time"),
    ):
        share = found.work.get(purpose, 0.0) / max(1e-9, spent)
        if share >= MANY:
            told.append((share, text.format(f"{share:.0%}")))
    if found.start / (found.start + makespan_ + found.end) >= MANY:
        share = found.start / (found.start + makespan_ + found.end)
        told.append((share, f"starting sessions and trainers is {share:.0%} of the call"))
    ends = sorted(load.until for load in found.loads)
    if found.simulated and len(ends) > 1:
        early = [end for end in ends if makespan_ - end > IDLE * makespan_]
        if early and trials >= found.sessions:
            share = sum(makespan_ - end for end in early) / (makespan_ * len(ends))
            told.append((share, f"{len(early)} of {len(ends)} sessions idle from second {max(early):.3g} on"))
    return [text for _, text in sorted(told, reverse=True)]
