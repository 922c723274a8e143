"""From checked configurations to a search plan and a board: what there is to do, and what has been done already."""

import copy
import functools
import math
import re

from pg_mop.api.checks import Checks
from pg_mop.catalog import metric_of
from pg_mop.plan import identity, reuse
from pg_mop.plan.cost_history import CostHistory
from pg_mop.plan.stages import Plan
from pg_mop.plan.watch import Watch
from pg_mop.run.unit_specs import Sharing, epochs
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board, Unit
from pg_mop.schedule.logged import Logged
from pg_mop.schedule.replicas import Replicas

ANYWHERE_BYTES = 32 << 20  # of rows that each trainer may keep, whichever segments they are of
ANYWHERE_SEGMENTS = 8  # choosing a unit takes longer with more of them
LOOKED_AT = 500  # stages by which it is told what a run will take
FROZEN = re.compile(r'"trainable"\s*:\s*false')


class Planning(Checks):
    """The part of a training call that plans it, and takes up more while the run goes on."""

    executor = None  # while the run goes on
    capacity = None  # for how many trainers there is some elsewhere
    preferred = None  # the run to go on from, if there are several
    segments = {}  # (dataset, key) -> Segment: read when the run begins
    reuses = False  # something that earlier runs had trained
    searches = False  # asks for more by what comes of it
    stops_within_budget = False  # a search procedure may stop a trial before the iterations that it asked for
    cost_history = CostHistory()  # what earlier runs have measured

    def take_up(self, earlier):
        """Go on with the configurations that people have added to an earlier run, too."""
        for c in earlier.configurations if not self.averaging else ():
            if c["mst_key"] not in self.by_key:
                c = {**c, "error": None}
                if problem := self._problem(c) or self._misfit(c):
                    self.misfits[c["mst_key"]] = problem
                self.put(c)

    def _make_plan(self, earlier):
        """What is to be done: `plan`; and `wanted`, by how many sessions."""
        options, sessions = self.options, None
        self.plan, self._unit_seconds = Plan(), {}
        if earlier is not None:
            self.misfits = {**self.misfits, **earlier.failed}
            if not earlier.replay:
                sessions = earlier.sessions
                earlier.restore(self.plan)
        self.sharing = Sharing(self._architectures(), self._shape(), options["keras_backend"])
        for c in self.configurations:
            if c["mst_key"] not in self.misfits:
                self._ask(c)
        for key in self.misfits:
            self.plan.withdraw(key)
        workers = len(self._keys("training"))
        self.wanted = min(workers, options["sessions"] or sessions or workers, self.capacity or workers)
        if {s.server for s in self.segments.values()} == {None}:  # (else each server's own cores count)
            options["threads"] = options["threads"] or max(1, self.servers[None].info["cores"] // self.wanted)
        self.scheduler_name = options["scheduler"] if not self.averaging else "randomized"

    def adopt(self, stages):
        """Take over what earlier runs have trained of these stages: those of which there is a state now."""
        if not self.options["reuse"] or self.averaging or self.earlier is not None and self.earlier.replay:
            return []
        stages = [stage for stage in stages if not stage.trained]
        datasets = len({dataset for dataset, _ in self.segments})
        known = self.catalog.known_stages(self.run_id, [stage.identity for stage in stages], datasets)
        found, kept = reuse.adoptable(stages, known, self.preferred) if known else [], set()
        # the state that will be written of a configuration must be there; without it less can be taken over
        while (needed := self._needed_of(found)) - kept:
            kept |= needed
            found = reuse.adoptable(stages, known, self.preferred, kept)
        if not found or not self.catalog.adopt(self.run_id, found):
            return []
        for stage, of, _ in found:
            stage.trained, stage.scored, stage.origin = True, of.scored, of.origin
        if not self.reuses:
            self.db.info(f"what run {found[0][1].run} has trained is not trained again (SET pg_mop.reuse = off;)")
        self.reuses = True
        return [stage for stage, _, state in found if state]

    def _needed_of(self, found):
        """Of stages that are to be taken over (as plan.reuse gives them): the numbers of those whose states may be
        written. A configuration may stop before the iterations that it was asked for, or keep its best state."""
        workers = {stage.number: of for stage, of, _ in found}
        asking = {key for stage, *_ in found for key in stage.trials}
        early = [c for c in self.configurations if c["mst_key"] in asking and self.may_end_early(c)]
        rows = self._metrics_of({number: of for number, of in workers.items() if of.scored}) if early else {}
        return set().union(*(self._ends_within(c, workers, rows) for c in early))

    def _metrics_of(self, workers):
        """The metrics of stages that earlier runs have: {(stage number, dataset): row}; `places`: {number: Known}."""
        rows = {}
        for run in {of.run for of in workers.values()}:
            of_run = {of.stage: number for number, of in workers.items() if of.run == run}
            for row in self.catalog.metrics(run, stages=list(of_run)):
                rows[of_run[row["stage"]], row["dataset"]] = row
        return rows

    def _ends_within(self, c, workers, rows):
        """The numbers of the stages on a configuration's path that it may end with, or keep, of those that are to be
        taken over: `places`, {number: Known}, with the metrics `rows`."""
        path = [stage for stage in self.plan.path(c["mst_key"]) if stage.evaluated]
        taken = [stage for stage in path if stage.number in workers]
        watch, seen = self._watch_of(c)
        if watch is None or any(
            stage.iteration > seen and stage.number not in workers
            for stage in path
            if taken and stage.iteration < taken[0].iteration
        ):
            return {stage.number for stage in taken}  # what is decided by others' results, or by ones still to come
        metric, dataset, _ = c["rule"]
        numbers, ends = {stage.iteration: stage.number for stage in taken}, set()
        for worker, stage in enumerate(taken):
            row = rows.get((stage.number, dataset))
            if row is None:
                ends |= {later.number for later in taken[worker:]}
                break
            if watch.told(stage.iteration, metric_of(row, metric)) is not None:
                ends.add(stage.number)
                break
        if c["fit"]["keep"] == "best" and watch.best is not None and watch.best[0] in numbers:
            ends.add(numbers[watch.best[0]])
        return ends

    def _watch_of(self, c):
        """A copy of the Watch of a configuration, and the last iteration that it was told of; (None, 0) where more than
        its own rule decides when it stops."""
        if self.stops_within_budget or "rule" not in c:
            return None, 0
        controller = self.executor and self.executor.controller
        if controller and (watch := controller.watches.get(c["mst_key"])):
            return copy.deepcopy(watch), controller.seen.get(c["mst_key"], 0)
        _, _, goal = c["rule"]
        return Watch(goal, c["fit"]["stop"]), 0

    def may_end_early(self, c):
        """True where not the last state on a configuration's path may be the one that is written."""
        return "rule" in c or self.stops_within_budget

    def _make_board(self, earlier):
        """By whom it is to be done, in which order: `board`, `scheduler`."""
        kind = Replicas if self.averaging else Board
        if earlier is not None and earlier.replay and not self.averaging:
            kind = functools.partial(
                Logged,
                order={
                    self.plan.path(key)[iteration - 1].number: segments
                    for (key, iteration), segments in earlier.order.items()
                    if key not in self.misfits
                },
            )
        self.board = kind(
            self.plan,
            self._keys("training"),
            self._keys("validation"),
            {key: segment.server for key, segment in self.segments.items()},
            [copy.server for segment in self.segments.values() for copy in segment.copies],
        )
        if self.engine.away:
            self.board.relocate({key: segment.at(self.servers).server for key, segment in self.segments.items()})
        self.board.count_by(self.sharing.key, lambda stage: epochs(stage.parameters[1]))
        self.board.anywhere, self.board.searched = self._may_train_anywhere(), self.searches
        self.board.serve(self.board.first_workers(self.wanted))
        if earlier is not None and not earlier.replay:
            self.board.restore(earlier.finished)
        self.scheduler = SCHEDULERS[self.scheduler_name](
            self.board, self.seed, lambda stage: self.sharing.key(self.plan.stages[stage])[0], self._expected
        )

    def _shape(self):
        """The shape of a row as text, such as '28 x 28 -> 10'."""
        inputs = len(self.source.inputs)
        texts = [" x ".join(map(str, shape)) for shape in self.shapes]
        return f"{', '.join(texts[:inputs])} -> {', '.join(texts[inputs:])}"

    def _expected(self, stage):
        """Seconds of a training unit of a stage, by what earlier runs measured; 0.0 where nobody knows."""
        key = self.sharing.key(stage), stage.parameters[1]
        if key not in self._unit_seconds:
            net = self.sharing.net(stage)
            rows = [s.rows for (dataset, _), s in self.segments.items() if dataset == "training"]
            batches = epochs(stage.parameters[1]) * math.ceil(sum(rows) / len(rows) / net.batch_size)
            self._unit_seconds[key] = batches * (self.cost_history.batch_seconds(net) or 0.0)
        return self._unit_seconds[key]

    def expected_seconds(self):
        """Seconds of all training, by as many sessions as are wanted; None where too little is known."""
        stages = list(self.plan.stages.values())
        some = stages[:: max(1, len(stages) // LOOKED_AT)]
        known = [seconds for stage in some if (seconds := self._expected(stage))]
        if 2 * len(known) <= len(some):
            return None
        visits = 1 if self.averaging else len(self._keys("training"))
        return sum(known) / len(known) * len(stages) * visits / self.wanted

    def _may_train_anywhere(self):
        """True where every trainer may hold the rows of all segments: then most is compiled in one of them only. Not
        where frozen layers may be shared, which every trainer would compute for every segment; nor where it is not
        known yet what will be trained."""
        shares = self.options["share_prefixes"] and any(FROZEN.search(c["model_arch"]) for c in self.configurations)
        if shares or not self.configurations or len(self._keys("training")) > ANYWHERE_SEGMENTS:
            return False
        rows = sum(segment.bytes for (dataset, _), segment in self.segments.items() if dataset == "training")
        return (
            SCHEDULERS[self.scheduler_name].ANYWHERE
            and not self.averaging
            and not self.use_gpus
            and not self.options["trainers"]
            and {(segment.server, segment.host_segment) for segment in self.segments.values()} == {(None, None)}
            and rows <= min(ANYWHERE_BYTES, self.options["cache_mb"] << 19)
        )

    def _architectures(self):
        """{mst_key: architecture JSON}; replicas are all of the one configuration."""
        if self.averaging:
            return {key + 1: self.configurations[0]["model_arch"] for key in range(len(self._keys("training")))}
        return {c["mst_key"]: c["model_arch"] for c in self.configurations}

    def _ask(self, c):
        """Ask for all iterations of a configuration, but for those before which it was stopped in an earlier run."""
        for key in range(1, len(self._keys("training")) + 1) if self.averaging else [c["mst_key"]]:
            until, evaluated = self.num_iterations, self.metrics_iterations
            if self.earlier is not None and key in self.earlier.stopped | self.earlier.iterations.keys():
                until = self.earlier.iterations[key]  # of one that was stopped, or added with a number of its own
                evaluated = {*evaluated, until}
            self.ask(c, until, evaluated if key == 1 or not self.averaging else (), key)

    def ask(self, c, until, evaluated, key=None):
        """Ask for a configuration's iterations up to `until`, with the metrics of some: (stages that are to be done,
        [(mst_key, stage), ...] of those that are new to it). `key`: its mst_key, or that of a replica of it."""
        key = key or c["mst_key"]
        before, root, at, apart = len(self.plan.path(key)), self._root(c, key), c["resolver"].at, None
        if self.earlier is not None and self.earlier.replay:
            apart = self.earlier.apart.get(key)
        elif self.executor is not None:
            stages = self.plan.foresee(key, root, at, until)
            shared = self.executor.shareable(stages, evaluated, self.may_end_early(c))
            if shared < len(stages):  # others have trained what comes next, and gone on: it is trained once more
                apart = {before + shared + 1: key}
        stages = self.plan.ask(key, root, at, until, evaluated, apart)
        return stages, [(key, stage) for stage in self.plan.path(key)[before:]]

    def add(self, c, iterations):
        """Take up a configuration (as in the constructor) of so many iterations while the run goes on; why it cannot be
        trained, or None."""
        problem = self._problem(c, iterations) or self._misfit(c)
        self.put(c)
        self.sharing.architectures[c["mst_key"]] = c["model_arch"]
        if problem:
            self.misfits[c["mst_key"]] = c["error"] = problem
        return problem

    def _root(self, c, key):
        """The identity of the start of a configuration's path: of everything that decides it but its parameters."""
        options = self.options
        # what is drawn, or done to files, for each configuration by itself is shared with none
        own = (
            self.averaging
            or not options["sharing"]
            or c["fit"]["callbacks"]
            or not options["same_start"]
            and c["weights_md5"] is None
        )
        return identity.root(
            {
                "rows": [
                    [self.source.table.oid, segment, self.segments["training", segment].fingerprint]
                    for segment in self._keys("training")
                ],
                "columns": [self.source.inputs, self.source.outputs],
                "architecture": c["model_arch"],
                "model_id": c["model_id"],
                "weights": c.get("weights_md5"),
                "seed": self.seed,
                "functions": c["functions"],
                "framework": [options["keras_backend"], options["kernel"]],
                "averaging": self.averaging,
                "own": key if own else None,
            }
        )

    def _kernels(self, earlier):
        """Of a replay: {unit: the kernel that it used}."""
        return {
            Unit(iteration, self.plan.path(key)[iteration - 1].number, "train", "training", segment): kernel
            for (key, iteration, segment), kernel in earlier.kernels.items()
            if key not in self.misfits
        }

    def _keys(self, dataset):
        return [key for of, key in self.segments if of == dataset]
