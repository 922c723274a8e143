"""The planner: a workload and the history of costs in, a search plan and estimates out. Nothing is opened.

The run coordinator (run/coordinator.py) asks it when a run begins, and while the run goes on. schedule/setup.py makes the
board and the scheduler of a planned run. EXPLAIN needs no more than these and the simulator.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pg_mop.plan import identity
from pg_mop.plan.configuration import Configuration
from pg_mop.plan.cost_history import CostHistory
from pg_mop.plan.sharing import Sharing, epochs
from pg_mop.plan.stages import Plan, Stage

SAMPLED_STAGES = 500  # stages by which the duration of a run is estimated

SegmentKey = tuple[str, int]  # (dataset, number of the segment)
Shareable = Callable[[Sequence[Stage], Collection[int]], int]


def inherits(c: Configuration) -> dict[str, Any] | None:
    """What a configuration inherits from another trial (run/inheriting.py); None: nothing."""
    return (c.get("member") or {}).get("inherits")


@dataclass(frozen=True)
class Workload:
    """What there is to train, as plain values.

    `table`: the packed table's OID; `columns`: its input and output columns; `shape`: of a row, as text such as
    '28 x 28 -> 10'; `segments`: {(dataset, number): engines.base.Segment}; `options`: the settings in force; `seed`: of
    the run; `metrics_iterations`: iterations after which every configuration is evaluated; `averaging`: one model is
    trained as replicas, one for each segment, and averaged; `searches`: a procedure asks for the iterations.
    """

    table: int
    columns: tuple[Sequence[str], Sequence[str]]
    shape: str
    segments: Mapping[SegmentKey, Any]
    options: Mapping[str, Any]
    seed: int
    num_iterations: int
    metrics_iterations: Sequence[int]
    averaging: bool = False
    searches: bool = False
    use_gpus: bool = False

    def keys(self, dataset: str) -> list[int]:
        """The numbers of a dataset's segments."""
        return [key for of, key in self.segments if of == dataset]

    @functools.cached_property
    def places(self) -> list[str | None]:
        """The servers that hold the segments of the training data: one for all segments, or that of each."""
        found = [segment.server for (dataset, _), segment in self.segments.items() if dataset == "training"]
        return found if len(set(found)) > 1 else found[:1]

    @property
    def rows(self) -> list[int]:
        """Rows of each segment of the training data."""
        return [segment.rows for (dataset, _), segment in self.segments.items() if dataset == "training"]


class Planner:
    """Plans one run.

    `plan` is the search plan; `sharing` tells which of its stages share a compiled model. `earlier`: the run that this
    one resumes or replays (:class:`~pg_mop.call.earlier.Earlier`), or None.
    """

    def __init__(
        self,
        workload: Workload,
        configurations: Sequence[Configuration],
        history: CostHistory | None = None,
        earlier: Any = None,
    ) -> None:
        self.workload, self.history, self.earlier = workload, history or CostHistory(), earlier
        self.followed = earlier.followed if earlier is not None else None  # the run that a replay repeats
        self.plan = Plan()
        self.sharing = Sharing(self._architectures(configurations), workload.shape, workload.options["keras_backend"])
        self._held_out = {c["mst_key"]: tuple(c["held_out"]) for c in configurations if c.get("held_out")}
        self._heirs = {c["mst_key"]: found for c in configurations if (found := inherits(c))}
        self._first = configurations[0] if configurations else None
        self._unit_seconds: dict[Any, float] = {}
        if earlier is not None and not earlier.replay:
            earlier.restore(self.plan)

    def _architectures(self, configurations: Sequence[Configuration]) -> dict[int, str]:
        """{mst_key: architecture JSON}; the replicas of averaging all have that of the one configuration."""
        if self.workload.averaging:
            return dict.fromkeys(self.replicas(), str(configurations[0]["model_arch"]))
        return {c["mst_key"]: c["model_arch"] for c in configurations}

    def replicas(self) -> range:
        """The mst_keys of the replicas of averaging: one for each segment."""
        return range(1, len(self.workload.keys("training")) + 1)

    def register(self, c: Configuration) -> None:
        """Take note of a configuration that is added while the run goes on."""
        self.sharing.architectures[c["mst_key"]] = c["model_arch"]
        if found := inherits(c):
            self._heirs[c["mst_key"]] = found
        if c.get("held_out"):
            self._held_out[c["mst_key"]] = tuple(c["held_out"])

    # --- folds --------------------------------------------------------------------------------------
    def held_out(self, stage: Stage) -> Sequence[int]:
        """The segments that a stage leaves out, and is evaluated on; empty for a stage of no fold. (A stage is shared only
        by trials that leave out the same segments.)"""
        return self._held_out.get(stage.mst_key, ())

    def visits(self, stage: Stage) -> int:
        """How many training units a stage has."""
        return 1 if self.workload.averaging else len(self.workload.keys("training")) - len(self.held_out(stage))

    def unit_key(self, number: int) -> tuple[Any, str]:
        """Equal for stages (by number) whose units take about equally long: the same compiled model and fit parameters."""
        stage = self.plan.stages[number]
        return self.sharing.key(stage), stage.parameters[1]

    def may_chain(self, keys: Iterable[SegmentKey]) -> bool:
        """True where one trainer can keep the rows of all these segments, a worker's, so that its units may form chains.

        The segments must be on one host. A replica of averaging has a single unit between two averages: there are no chains.
        """
        work = self.workload
        segments = [work.segments[key] for key in keys]
        return (
            not work.averaging
            and len({segment.host for segment in segments}) == 1
            and sum(segment.bytes for segment in segments) <= work.options["cache_mb"] << 20
        )

    # --- stages -------------------------------------------------------------------------------------
    def ask_for_all(self, configurations: Iterable[Configuration], misfits: Collection[int]) -> None:
        """Ask for all iterations of the configurations, but of the `misfits` (their mst_keys). A configuration that was
        stopped in the earlier run gets the iterations that it had; in a replay all of them do."""
        for c in configurations:
            if c["mst_key"] not in misfits:
                self._ask_for_all(c)
        for key in misfits:
            self.plan.withdraw(key)

    def _ask_for_all(self, c: Configuration) -> None:
        work = self.workload
        for key in self.replicas() if work.averaging else [c["mst_key"]]:
            until, evaluated = work.num_iterations, set(work.metrics_iterations)
            if self.followed is not None and not work.averaging:
                until, evaluated = self.followed.iterations[key], self.followed.evaluated.get(key, set())
            elif self.earlier is not None and key in self.earlier.stopped | self.earlier.iterations.keys():
                until = self.earlier.iterations[key]  # it was stopped, or added with a number of its own
                evaluated.add(until)
            self.ask(c, until, evaluated if key == 1 or not work.averaging else (), key)

    def ask(
        self,
        c: Configuration,
        until: int,
        evaluated: Collection[int],
        key: int | None = None,
        shareable: Shareable | None = None,
    ) -> tuple[list[Stage], list[tuple[int, Stage]]]:
        """Ask for the iterations of a configuration up to `until`, and for the metrics of the iterations `evaluated`.

        `key`: the mst_key of a replica, if not the configuration's own; `shareable(stages, evaluated)`: how many of the
        stages ahead the configuration may share with others, once the run has begun. Returns the stages to be done, and
        (mst_key, stage) for each stage that is new to the configuration.
        """
        key = key or c["mst_key"]
        donor = self._donor(c, key)
        before, root, at, apart = len(self.plan.path(key)), self._root(c, key, donor), c["resolver"].at, None
        if self.followed is not None:
            apart = self.followed.apart.get(key)
        elif shareable is not None:
            stages = self.plan.foresee(key, root, at, until)
            shared = shareable(stages, evaluated)
            if shared < len(stages):  # others have trained these stages and given the states up: they are done again
                apart = {before + shared + 1: key}
        stages = self.plan.ask(key, root, at, until, evaluated, apart, donor)
        return stages, [(key, stage) for stage in self.plan.path(key)[before:]]

    # --- inheritance --------------------------------------------------------------------------------
    def _donor(self, c: Configuration, key: int) -> Stage | None:
        """The stage from whose state a configuration inherits; None for one that starts anew. `key`: its own."""
        found = self._heirs.get(key)
        if found is None or found["trial"] not in self.sharing.architectures:
            return None
        # (the trial of a fold inherits from the trial of the same fold)
        other = found["trial"] + (key - c["fold_of"] if c.get("fold") is not None else 0)
        return self.plan.path(other)[found["iteration"] - 1]

    def orphans(self) -> list[Stage]:
        """First stages that inherit from a trial of another run, and that this run would have to train: it cannot."""
        return [
            stage
            for stage in self.plan.stages.values()
            if stage.iteration == 1
            and stage.parent is None
            and stage.trials
            and not stage.trained
            and stage.mst_key in self._heirs
        ]

    def inherited(self, stage: Stage) -> dict[str, Any] | None:
        """What the first stage of a path inherits from another trial, as CompiledModel.inherit takes it; None: nothing."""
        found = self._heirs.get(stage.mst_key) if stage.iteration == 1 else None
        if found is None or stage.parent is None:
            return None
        architecture = self.sharing.architectures[stage.parent.mst_key]
        return {"architecture": architecture, "layers": found["layers"], "seed": found["seed"]}

    def _root(self, c: Configuration, key: int, donor: Stage | None = None) -> str:
        """The identity of a path's start: a digest of everything that decides it, apart from the parameters. `donor`: see
        `_donor`."""
        work, options, heir = self.workload, self.workload.options, self._heirs.get(key, {})
        # random draws and files that belong to one configuration cannot be shared
        alone = (
            work.averaging
            or not options["sharing"]
            or c["fit"]["callbacks"]
            or not options["same_start"]
            and c["weights_md5"] is None
        )
        return identity.root(
            {
                "rows": [
                    [work.table, segment, work.segments["training", segment].fingerprint]
                    for segment in work.keys("training")
                ],
                "columns": [*work.columns],
                "architecture": c["model_arch"],
                "model_id": c["model_id"],
                "weights": c.get("weights_md5"),
                "seed": work.seed,
                "functions": c["functions"],
                "framework": [options["keras_backend"], options["kernel"]],
                "averaging": work.averaging,
                "own": key if alone else None,
                **({"held_out": list(self._held_out[key])} if key in self._held_out else {}),
                **(
                    {"inherits": [donor.identity if donor else heir["identity"], heir["layers"], heir["seed"]]}
                    if heir
                    else {}
                ),
            }
        )

    # --- sessions and costs -------------------------------------------------------------------------
    def sessions(self, capacity: int | None = None, most: Mapping[str | None, int] | None = None) -> int:
        """How many worker sessions the run should have.

        `capacity`: trainers that a Ray cluster can hold; `most`: {server: sessions that it can run at once}, for a call that
        applies a model, whose sessions end with their segments.
        """
        segments = len(self.workload.keys("training"))
        earlier = self.earlier.sessions if self.earlier is not None and not self.earlier.replay else None
        wanted = min(segments, self.workload.options["sessions"] or earlier or segments, capacity or segments)
        if most is None:
            return wanted
        servers = Counter(segment.at(most).server for segment in self.workload.segments.values())
        return min(wanted, sum(min(count, most[name]) for name, count in servers.items()))

    def threads(self, cores: int, sessions: int) -> int | None:
        """Threads of a trainer, where all segments are on the coordinator's server; else None: each server's own cores
        count. `cores`: of the coordinator's server."""
        chosen = self.workload.options["threads"]
        if {segment.server for segment in self.workload.segments.values()} == {None}:
            return chosen or max(1, cores // sessions)
        return chosen

    def unit_seconds(self, stage: Stage) -> float:
        """Seconds of one training unit of a stage, measured by earlier runs; 0.0 if unknown. Of segments on several servers:
        the mean."""
        key = self.sharing.key(stage), stage.parameters[1]
        if key not in self._unit_seconds:
            net, rows = self.sharing.net(stage), self.workload.rows
            batches = epochs(stage.parameters[1]) * math.ceil(sum(rows) / len(rows) / net.batch_size)
            found = [self.history.batch_seconds(net, place) or 0.0 for place in self.workload.places]
            self._unit_seconds[key] = batches * sum(found) / len(found) if all(found) else 0.0
        return self._unit_seconds[key]

    def expected_seconds(self, sessions: int) -> float | None:
        """Seconds of all training with so many sessions; None if the cost of most stages is unknown."""
        stages = list(self.plan.stages.values())
        sample = stages[:: max(1, len(stages) // SAMPLED_STAGES)]
        known = [seconds for stage in sample if (seconds := self.unit_seconds(stage))]
        if 2 * len(known) <= len(sample):
            return None
        visits = sum(map(self.visits, sample)) / len(sample)
        return sum(known) / len(known) * len(stages) * visits / sessions
