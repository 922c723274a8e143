"""Takes over the stages that earlier runs of the role have trained, and runs of roles that share with it, with their states
and metrics."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.call.configurations import Configuration
from pg_mop.call.spec import RunSpec
from pg_mop.catalog import metric_of
from pg_mop.catalog.shared_stages import is_alias
from pg_mop.plan import reuse
from pg_mop.plan.planner import Planner
from pg_mop.plan.reuse import Known
from pg_mop.plan.stages import Stage
from pg_mop.plan.watch import Watch
from pg_mop.run.controllers import RunController
from pg_mop.run.given_states import problem_of

Row = dict[str, Any]


class _Unusable(MopError):
    """A state of another role's run is not one of the stage."""


class Adoption:
    """Takes over stages for one run.

    `controller`: set once the run has a controller; its watches know the metrics by now. `elements(stage)`: the number of
    weights of a stage's model; None: unknown.
    """

    controller: RunController | None = None
    elements: Callable[[Stage], int | None] = staticmethod(lambda stage: None)

    def __init__(self, spec: RunSpec, planner: Planner, catalog: Any, run_id: int) -> None:
        self.spec, self.planner, self.catalog, self.run_id = spec, planner, catalog, run_id
        self.allowed = (
            planner.workload.options["reuse"]
            and not spec.averaging
            and spec.application is None
            and planner.followed is None
        )
        self._told: set[bool] = set()  # of the role's own runs; of others
        self._refused: set[int] = set()  # aliases of runs with a state that cannot be used
        self.beside: list[int] = []  # runs that went on when this one began, and whose states it may have waited for

    def adopt(self, stages: Sequence[Stage], found: Sequence[tuple[Stage, Known, bool]] | None = None) -> list[Stage]:
        """Take over those of the stages that earlier runs have trained. Returns the stages that have a state now.

        `found`: what `find` gave for these stages, if it was called before."""
        found = self.find(stages) if found is None else found
        if not found or not self._adopted(found):
            return []
        self.mark(found)
        for _, of, _ in found:
            if is_alias(of.run) not in self._told:
                who = "a member of your group" if is_alias(of.run) else f"run {of.run}"
                self.spec.inputs.db.info(
                    f"stages that {who} has trained are not trained again (SET pg_mop.reuse = off;)"
                )
                self._told.add(is_alias(of.run))
        return [stage for stage, _, state in found if state]

    def share(self) -> None:
        """Let the run share stages with those of other roles, if its role wants that and the run may: all its rows are on this
        server, and everything that decides its results is in its call and in the rows. So no custom functions, whose
        pickles the role may not read, no initial weights, and no state of an earlier run (mop_more)."""
        spec, planner = self.spec, self.planner
        given = [c for c in spec.configurations.own if c.get("weights_sql") or c["functions"]]
        if (
            self.allowed
            and not given
            and spec.configurations.functions is None
            and spec.preferred is None
            and spec.inputs.engine.shares_among_roles
            and all(segment.server is None for segment in planner.workload.segments.values())
        ):
            packed = [spec.inputs.packed(dataset) for dataset in ("training", "validation")]
            self.catalog.share_run(self.run_id, packed[0].table.oid, packed[1] and packed[1].table.oid)

    def _adopted(self, found: Sequence[tuple[Stage, Known, bool]]) -> bool:
        """Take over what `find` has found; False where that is not possible (any more)."""
        stages = {stage.number: (stage, of.run) for stage, of, _ in found}

        def check(number: int, state: Any) -> None:
            stage, run = stages[number]
            if problem := problem_of(state, self.elements(stage)):
                self._refused.add(run)
                raise _Unusable(problem)

        def check_metrics(number: int, dataset: str, names: Collection[str]) -> None:
            stage, run = stages[number]
            if missing := sorted(self._judges(stage, dataset) - {"loss"} - set(names)):
                self._refused.add(run)
                raise _Unusable(f'its metrics lack "{missing[0]}"')

        try:
            return self.catalog.adopt(self.run_id, found, check, check_metrics)
        except _Unusable as error:
            self.spec.inputs.db.warning(
                f"a stage that a member of your group has trained is trained again: {error.message}",
                detail="The run takes over nothing more of that member's run.",
                hint=f"SELECT {self.spec.inputs.db.extension}.mop_share_training(NULL); ends the sharing.",
            )
            return False

    def _judges(self, stage: Stage, dataset: str) -> set[str]:
        """The metrics of a dataset by which the run judges a stage: of the configurations' rules, and of the search."""
        wanted = [c["rule"] for key in stage.trials if (c := self.spec.configurations.get(key)) and "rule" in c]
        if self.spec.search is not None and stage.evaluated:
            wanted.append((self.spec.search.metric, self.spec.search.dataset, self.spec.search.goal))
        return {metric for metric, of, _ in wanted if of == dataset}

    def find(self, stages: Sequence[Stage]) -> list[tuple[Stage, Known, bool]]:
        """Those of the stages that can be taken over, as plan.reuse.adoptable gives them. Changes nothing."""
        if not self.allowed:
            return []
        stages = [stage for stage in stages if not stage.trained]
        fingerprints = {key: segment.fingerprint for key, segment in self.planner.workload.segments.items()}
        names = [stage.identity for stage in stages]
        known = self.catalog.known_stages(self.run_id, names, fingerprints, self.beside)
        if self._refused:
            known = {name: [of for of in all_of if of.run not in self._refused] for name, all_of in known.items()}
        found = reuse.adoptable(stages, known, self.spec.preferred) if known else []
        kept: set[int] = set()
        # the state that a configuration may end with must exist: without it, less can be taken over
        while (needed := self._needed_of(found)) - kept:
            kept |= needed
            found = reuse.adoptable(stages, known, self.spec.preferred, kept)
        return found

    @staticmethod
    def mark(found: Sequence[tuple[Stage, Known, bool]]) -> None:
        """Mark stages that are taken over as trained."""
        for stage, of, _ in found:
            stage.trained, stage.scored, stage.origin = True, of.scored, of.origin

    def _needed_of(self, found: Sequence[tuple[Stage, Known, bool]]) -> set[int]:
        """Numbers of the stages in `found` whose states the output may need, since a configuration may stop before its
        last iteration or keep its best state. `found`: stages to be taken over, as plan.reuse gives them."""
        known = {stage.number: of for stage, of, _ in found}
        asking = {key for stage, *_ in found for key in stage.trials}
        early = [c for c in self.spec.configurations if c["mst_key"] in asking and self.spec.may_end_early(c)]
        rows = self._metrics_of({number: of for number, of in known.items() if of.scored}) if early else {}
        needed: set[int] = set()
        return needed.union(*(self._ends_within(c, known, rows) for c in early))

    def _metrics_of(self, known: Mapping[int, Known]) -> dict[tuple[int, str], Row]:
        """{(stage number, dataset): row} of the metrics that earlier runs have of stages: `known`, {number: Known}."""
        rows = {}
        for run in {of.run for of in known.values()}:
            numbers = {of.stage: number for number, of in known.items() if of.run == run}
            for row in self.catalog.metrics(run, stages=list(numbers)):
                rows[numbers[row["stage"]], row["dataset"]] = row
        return rows

    def _ends_within(
        self, c: Configuration, known: Mapping[int, Known], rows: Mapping[tuple[int, str], Row]
    ) -> set[int]:
        """The numbers of the stages that a configuration may end with, or keep, of those on its path that are to be
        taken over (`known`, with the metrics `rows`)."""
        path = [stage for stage in self.planner.plan.path(c["mst_key"]) if stage.evaluated]
        taken = [stage for stage in path if stage.number in known]
        watch, seen = self._watch_of(c)
        untold = [stage for stage in path if taken and stage.iteration < taken[0].iteration]
        if watch is None or any(stage.iteration > seen and stage.number not in known for stage in untold):
            return {stage.number for stage in taken}  # later results, or other trials, decide where it stops
        metric, dataset, _ = c["rule"]
        numbers, ends = {stage.iteration: stage.number for stage in taken}, set()
        for position, stage in enumerate(taken):
            row = rows.get((stage.number, dataset))
            if row is None:
                ends |= {later.number for later in taken[position:]}
                break
            if watch.tell(stage.iteration, metric_of(row, metric), row["loss"]) is not None:
                ends.add(stage.number)
                break
        if c["fit"]["keep"] == "best" and watch.best is not None and watch.best[0] in numbers:
            ends.add(numbers[watch.best[0]])
        return ends

    def _watch_of(self, c: Configuration) -> tuple[Watch | None, int]:
        """A copy of a configuration's Watch, and the last iteration that it was told of; (None, 0) where not only its
        own rule decides when it stops."""
        if self.spec.search is not None and self.spec.search.stops_within_budget or "rule" not in c:
            return None, 0
        if self.controller is not None and (watch := self.controller.watches.get(c["mst_key"])):
            return copy.deepcopy(watch), self.controller.seen.get(c["mst_key"], 0)
        _, _, goal = c["rule"]
        return Watch(goal, c["fit"]["stop"]), 0
