"""The plan of a call that is explained: a coordinator that makes every check, and opens, trains and writes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mop_udf.architecture import architecture
from pg_mop.call import search_outlook, segments, trainer_memory
from pg_mop.call.configurations import Configuration
from pg_mop.call.planned_run import PlannedRun
from pg_mop.call.role_costs import other_nets
from pg_mop.call.servers import Server
from pg_mop.call.spec import RunSpec
from pg_mop.call.trainer_memory import TrainerMemory
from pg_mop.catalog import LocalCatalog
from pg_mop.explain import timing
from pg_mop.explain.prediction import MOST_UNITS, predict
from pg_mop.explain.suggestions import suggestions
from pg_mop.plan.estimates import Estimates
from pg_mop.plan.memory import PROCESS_BYTES
from pg_mop.plan.planner import Planner
from pg_mop.plan.stages import Stage
from pg_mop.run import runs_beside
from pg_mop.run.adoption import Adoption
from pg_mop.schedule import setup
from pg_mop.schedule.device_parts import parts
from pg_mop.schedule.predicted import Prediction, to_json
from pg_mop.schedule.unit import Unit

LISTED = 5  # configurations of a net that are named


def explain(spec: RunSpec, measure: bool = False) -> dict[str, Any]:
    """The plan of a call as plain values, with stable names (docs/explain.md). `measure`: time a few mini-batches of each net
    (explain/timing.py). Raises MopError where the call would fail."""
    preview = Preview(spec)
    preview.measures = measure
    return preview.plan()


class Preview(PlannedRun):
    """Makes the checks of a coordinator in the caller's own session, and a plan in place of a run."""

    catalog: Any
    measures = False

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self.awaited: dict[str, int] = {}  # {identity of a stage: the run beside that trains it now}

    # --- checks ---------------------------------------------------------------------------------------
    def _open_catalog(self, stack: contextlib.ExitStack) -> None:
        self.catalog = LocalCatalog(self.db)
        info = self.engine.info(self.options["keras_backend"])
        self.servers[None] = Server(None, self.engine.target(None), self.catalog, None, self.db.extension, info)

    def _makes_tables(self) -> bool:
        """True where steps of the call have made the packed tables only now: nobody else sees them."""
        return self.db.explaining is not None and self.db.explaining.stepping

    def _keep_writers_out(self) -> None:
        if not self._makes_tables():
            super()._keep_writers_out()

    def _check_rows(self) -> None:
        if not self._makes_tables():
            segments.check_committed(self.spec, self.segments)
        segments.check_copies(self.spec, self.options, self.catalog, self.segments, self.earlier)
        if self.db.explaining is not None:
            self._enlarge(self.db.explaining.rows)

    def _enlarge(self, rows: Mapping[str, int]) -> None:
        """Take the segments of each dataset, which hold a sample, as those of so many rows."""
        for dataset, wanted in rows.items():
            own = {key: segment for key, segment in self.segments.items() if key[0] == dataset}
            factor = wanted / max(1, sum(segment.rows for segment in own.values()))
            for key, segment in own.items():
                self.segments[key] = dataclasses.replace(
                    segment, rows=round(segment.rows * factor), bytes=round(segment.bytes * factor)
                )

    # --- the plan -------------------------------------------------------------------------------------
    def plan(self) -> dict[str, Any]:
        """See `explain`."""
        self.reserve()
        with contextlib.ExitStack() as stack:
            self.check(stack)
        self.run_id = self.earlier.run_id if self.earlier is not None and self.resumes else 0
        self._plan()
        if self.limits["sessions"] is not None:
            self.wanted = min(self.wanted, self.limits["sessions"])
        self.measure_machine()
        taken = [] if self.searches else self._take_over()
        self._await()
        self._learn_fixed_costs()
        if self.searches:
            return self._searched()
        if not self.run_id:
            self.check_limits()  # (stages that others have trained, or train now, are marked)
        counts = self._stages(taken)
        estimates = self.estimates_for(self.planner)
        if self.measures:
            timing.measure(self, estimates)
        nets, memory = self._nets(estimates), self._memory()  # before the simulation ends all stages
        found, self.estimated = self.predict(self.planner, estimates), estimates
        return {
            **self._head(),
            "stages": counts,
            **self._compute(nets),
            "nets": nets,
            "prediction": to_json(found),
            "memory": memory,
            **self._states(found),
            "suggestions": suggestions(self, found, functools.partial(self._with, taken)),
            "late_seconds": self._late(found.seconds),
        }

    def _take_over(self) -> list[Any]:
        """The stages that earlier runs have trained, marked as trained: see Adoption.find."""
        if self.earlier is not None and self.resumes:
            self._restore()
            return []
        found = self._adoption().find(list(self.planner.plan.stages.values()))
        Adoption.mark(found)
        return found

    def _adoption(self) -> Adoption:
        return Adoption(self.spec, self.planner, self.catalog, self.run_id)

    def _await(self) -> None:
        """Find the stages that runs beside train now: this run would wait for them, so they are none of its work."""
        adoption, begun = self._adoption(), set[int]()
        if self.earlier is not None and self.resumes:
            begun = {unit.stage for unit in self.earlier.finished}
        fresh = (stage for stage in self.planner.plan.stages.values() if stage.number not in begun)
        for number, run in runs_beside.expected(adoption, fresh, self.run_id).items():
            stage = self.planner.plan.stages[number]
            self.awaited[stage.identity] = run
            stage.trained = stage.scored = True

    def _restore(self) -> None:
        """Mark the stages that the run to be resumed has trained on all segments, and evaluated."""
        assert self.earlier is not None
        visits = Counter(unit.stage for unit in self.earlier.finished if unit.kind == "train")
        datasets = len({dataset for dataset, _ in self.segments})
        for row in self.earlier.stages:
            stage = self.planner.plan.stages[row["stage"]]
            stage.trained = stage.trained or visits[stage.number] >= self.planner.visits(stage)
            stage.scored = stage.scored or row["scores"] >= datasets

    def predict(self, planner: Planner, estimates: Estimates) -> Prediction:
        most = 0 if self.run_id else MOST_UNITS  # a run that goes on has units that are half done
        places = self.places()
        packs = self.options["gpu_memory_share"] is not None or any(places.most(server) > 1 for server in self.servers)
        return predict(
            planner,
            list(self.configurations),
            self.configurations.misfits,
            estimates,
            self.stage_bytes,
            most,
            (lambda board: self.device_parts_of(board, planner)) if packs else None,
        )

    def _with(self, taken: Sequence[Any], changes: Mapping[str, Any]) -> Prediction:
        """The prediction with other settings. `taken`: what Adoption.find has found."""
        options = {**self.planner.workload.options, **changes, "threads": None}
        work = dataclasses.replace(self.planner.workload, options=options)
        planner = Planner(work, list(self.configurations), self.history, self.earlier)
        planner.ask_for_all(self.configurations, self.configurations.misfits)
        known = {stage.identity: of for stage, of, _ in taken}
        for stage in planner.plan.stages.values():
            if (of := known.get(stage.identity)) is not None:
                stage.trained, stage.scored = True, of.scored
            if stage.identity in self.awaited:
                stage.trained = stage.scored = True
        estimates = self.estimates_for(planner)
        estimates.take_over(self.estimated)
        return self.predict(planner, estimates)

    def _info_of(self, server: str | None) -> dict[str, Any]:
        """(A preview asks no other server, and takes each for one like its own.)"""
        return self.servers[None].info

    def _sessions_of(self, planner: Planner) -> int:
        return self.wanted if planner is self.planner else planner.sessions(self.inputs.capacity)

    # --- nets -----------------------------------------------------------------------------------------
    def estimates_for(self, planner: Planner) -> Estimates:
        samples = functools.partial(other_nets, self.catalog, self.options["keras_backend"])
        return self._warm(self.estimates(planner, samples, sessions=self._sessions_of(planner)))

    def _nets(self, estimates: Estimates) -> list[dict[str, Any]]:
        """The distinct nets that are left to train, those with the longest units first."""
        planner = self.planner
        memory = self.trainer_memory(planner)
        found: dict[Any, Any] = {}
        for stage in planner.plan.stages.values():
            if stage.trials and not stage.trained:
                one = found.setdefault((planner.sharing.net(stage), stage.parameters[1]), [stage, set()])
                one[1].update(stage.trials)
        rows = []
        for (net, _), (stage, keys) in found.items():
            cost, own = estimates.net(stage), self.arithmetic(stage.mst_key)
            c = self.configuration_of(stage)
            own_class = architecture.custom_model(c["architecture"])
            kernel = cost.kernel if self.options["kernel"] == "auto" else self.options["kernel"]
            rows.append(
                {
                    "model_id": c["model_id"],
                    "optimizer": net.optimizer,
                    "loss": net.loss,
                    "batch_size": net.batch_size,
                    "shape": net.shape,
                    "configurations": len(keys),
                    "mst_keys": sorted(keys)[:LISTED],
                    "parameters": own and own.parameters,
                    "operations_per_row": own and own.operations,
                    "unknown_layers": sorted(own.unknown) if own is not None else None,
                    "shared_by": (c.get("member") or {}).get("shared_by"),
                    "devices": self._devices(memory, stage),
                    "unit_seconds": estimates.unit(stage),
                    "batch_seconds": cost.batch,
                    "ready_seconds": estimates.ready(stage),
                    "source": cost.source,
                    "measured_nets": estimates.measured_nets if cost.source == "other nets" else None,
                    "runs": cost.runs or None,
                    "kernel": kernel if own_class is None else "plain",
                    "own_class": own_class,
                    "device": cost.device,
                }
            )
        return sorted(rows, key=lambda row: -row["unit_seconds"])

    def _compute(self, nets: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The framework and the kernel, with the reasons. (A net with a training step of its own tells its kernel.)"""
        options = self.options
        others = [net for net in nets if not net["own_class"]]
        own = sorted({net["own_class"] for net in nets if net["own_class"]})
        if own and not others:
            why = f"only this kernel runs the code of model class {', '.join(own)}"
        elif options["kernel"] != "auto":
            why = "set by pg_mop.kernel"
        elif others and all(net["kernel"] for net in others):
            why = "by the cost history"
        else:
            why = "the trainers will time the kernels on their first batches"
        kernels = sorted({net["kernel"] for net in others or nets if net["kernel"]})
        return {
            "framework": {"name": options["keras_backend"], "reason": "pg_mop.keras_backend"},
            "kernel": {"name": ", ".join(kernels) or options["kernel"], "reason": why},
        }

    # --- what is asked for, and where it is -----------------------------------------------------------
    def _head(self) -> dict[str, Any]:
        inputs, options = self.inputs, self.options
        misfits = self.configurations.failures(self.configurations.misfits)
        return {
            "function": self.spec.function,
            "output_table": self.spec.output.name,
            "resumes": self.run_id or None,
            "source": self._rows_of("training"),
            "validation": self._rows_of("validation") if inputs.validation is not None else None,
            "engine": type(self.engine).__name__,
            "places": self._places(),
            "sessions": self.wanted,
            "threads": options["threads"],
            "warm_trainers": self.warm,
            "use_gpus": inputs.use_gpus,
            "trainers": options["trainers"],
            "scheduler": setup.scheduler_name(self.planner),
            "averaging": self.spec.averaging,
            "seed": self.seed if options["seed"] is not None else None,
            "configurations": len(self.configurations.own),
            "folds": self.configurations.folds,
            "unfit": [{"mst_key": key, "reason": reason} for key, reason in sorted(misfits.items())[:LISTED]],
            "unfit_count": len(misfits),
            "iterations": inputs.num_iterations,
            "evaluated_iterations": list(inputs.metrics_iterations),
            "fixed_costs": dataclasses.asdict(self.fixed),
            "deadline": self.deadline and self.deadline.text,
        }

    def _rows_of(self, dataset: str) -> dict[str, Any]:
        own = [segment for (of, _), segment in self.segments.items() if of == dataset]
        return {
            "table": self.inputs.packed(dataset).text,
            "segments": len(own),
            "rows": sum(segment.rows for segment in own),
            "bytes": sum(segment.bytes for segment in own),
        }

    def _places(self) -> list[dict[str, Any]]:
        """The segments by server, the coordinator's own server first."""
        found: dict[str | None, list[dict[str, Any]]] = {}
        for (dataset, key), segment in self.segments.items():
            found.setdefault(segment.server, []).append(
                {
                    "dataset": dataset,
                    "segment": key,
                    "rows": segment.rows,
                    "bytes": segment.bytes,
                    "copies": [copy.server for copy in segment.copies],
                }
            )
        return [
            {"server": name, "segments": found[name]}
            for name in sorted(found, key=lambda name: (name is not None, name))
        ]

    def _stages(self, taken: Sequence[Any]) -> dict[str, Any]:
        plan = self.planner.plan
        wanted = [stage for stage in plan.stages.values() if stage.trials]
        left = [stage for stage in wanted if not stage.trained]
        return {
            "asked": plan.asked,
            "shared": plan.asked - len(wanted),
            "found_trained": len(wanted) - len(left) - len(self.awaited),
            "found_in_runs": sorted({of.origin[0] for _, of, _ in taken}),
            "awaited": len(self.awaited),
            "awaited_from": sorted(set(self.awaited.values())),
            "to_train": len(left),
            "to_evaluate": sum(stage.evaluated and not stage.scored for stage in wanted),
            "merge_rate": plan.merge_rate(len(left)) if left else None,
        }

    # --- memory and disk ------------------------------------------------------------------------------
    def _memory(self) -> dict[str, Any]:
        """Bytes of a trainer, of the largest net."""
        memory = self.trainer_memory()
        need, rows = memory.largest(), memory.rows
        total = need.in_main_memory
        return {
            "process": PROCESS_BYTES,
            "weights": need.weights,
            "optimizer": need.optimizer,
            "activations": need.activations,
            "rows": rows,
            "trainer": total,
            "all_trainers": total * self.wanted,
            "packing": self._packed(memory),
        }

    def _devices(self, memory: TrainerMemory, stage: Stage) -> dict[str, Any] | None:
        """How many devices of this server the net of a stage is divided among, and why, where one has too little memory; None
        where one has enough, or where the memory of a device or the net's need is unknown."""
        places, gpus = self.places(), self.places().gpus(None)
        whole = places.memory(None)
        need = memory.needed_on_each_of(stage, 1, gpus > 0)
        if whole is None or need <= whole:
            return None
        divided, most = self.divided(memory), places.most(None)
        count = divided.of(None, Unit(stage.iteration, stage.number, "train", "training", 0))
        return {
            "count": count,
            "of": "GPU" if gpus else "device",
            "memory": whole,
            "needed_by_one": need,
            "needed_by_each": memory.needed_on_each_of(stage, count, gpus > 0),
            "most": most,
            "needed_by_most": memory.needed_on_each_of(stage, most, gpus > 0),
            "why_one": places.why_one(None) or places.why_no_more(None),
        }

    def _packed(self, memory: TrainerMemory) -> dict[str, Any] | None:
        """How many trainers of the largest net train side by side on a device of this server; None without
        pg_mop.gpu_memory_share."""
        share, info = self.options["gpu_memory_share"], self.servers[None].info
        gpus = info["gpus"] if self.inputs.use_gpus else 0
        whole = None if share is None or self.options["trainers"] else trainer_memory.budget(share, info, gpus > 0)
        if whole is None:
            return None
        stages = [stage for stage in self.planner.plan.stages.values() if stage.trials and not stage.ended]
        most = max((memory.needed(stage, gpus > 0) for stage in stages), default=0)
        workers = -(-self.wanted // max(1, gpus))
        # (each trainer of virtual devices has an equal part, whatever its net needs)
        beside = workers if self.places().are_virtual(None) else parts(workers, whole, most)
        return {"device": "GPU" if gpus else "main memory", "bytes": whole, "side_by_side": beside}

    def _states(self, found: Prediction) -> dict[str, Any]:
        """Disk for states, and bytes of states that go from server to server."""
        sizes = [self.stage_bytes(stage) for stage in self.planner.plan.stages.values() if stage.trials]
        paths = len(self.configurations) or 1
        mean = sum(sizes) / len(sizes) if sizes else 0.0
        live = int(mean * min(paths, len(sizes)))
        share: Counter[str | None] = Counter()
        for (dataset, _), segment in self.segments.items():
            share[segment.server] += dataset == "training"
        count = sum(share.values())
        away = 1 - sum((n / count) ** 2 for n in share.values()) if count else 0.0
        return {"disk": {"states": live, "most": 3 * live}, "moved_bytes": int(found.units * away * mean)}

    def drawn_seed(self) -> int:
        """(Always the same, so that equal calls have equal plans.)"""
        return 0

    # --- searches -------------------------------------------------------------------------------------
    def _searched(self) -> dict[str, Any]:
        """The plan of a search: least, expected and most work, by made-up results."""
        search, planner = self.spec.search, self.planner
        assert search is not None
        self.check_limits()
        looked = search_outlook.drive(search, self.seed, self._segment_count(), self.db.check_interrupts)
        trials = looked.driven["random"].trials
        times = 1 + len(search.held_out)  # a trial, and its folds
        sample = search_outlook.sample(trials, search_outlook.LOOKED_AT)
        keys = []
        for number, one in enumerate(sample, 1):
            c: Configuration = self.spec.configurations.make(number, one.configuration)
            if self.configurations.add(c, one.iterations) is None:
                planner.register(c)
                planner.ask(c, max(1, one.iterations), {max(1, one.iterations)})
                keys.append(number)
        estimates = self.estimates_for(planner)
        seconds = {
            number: planner.visits(planner.plan.path(number)[0]) * estimates.unit(planner.plan.path(number)[0])
            for number in keys
        }
        iteration = sum(seconds.values()) / len(seconds) if seconds else 0.0  # of a trial
        rows = sum(segment.rows for segment in self.segments.values())
        first = [planner.plan.path(number)[0] for number in keys]
        if self.measures and timing.measure(self, estimates):
            iteration = sum(planner.visits(stage) * estimates.unit(stage) for stage in first) / len(first)
        evaluated = sum(estimates.evaluation(stage, rows) for stage in first) / len(first) if first else 0.0
        nets = self._nets(estimates)
        distinct = {planner.sharing.key(stage): stage for stage in first}
        anywhere = setup.trains_anywhere(planner, list(self.configurations))
        times_ready = len(set(planner.workload.places)) if anywhere else self.wanted
        ready = sum(map(estimates.ready, distinct.values())) * times_ready
        costs = search_outlook.Costs(
            times,
            len(planner.workload.keys("training")),
            self.wanted,
            iteration,
            evaluated,
            ready,
            search.seconds,
            self.fixed,
            scoring=search_outlook.scoring(
                search, planner, estimates, [(sample[number - 1], stage) for number, stage in zip(keys, first)]
            ),
        )
        cases = looked.cases(costs)
        by_work = sorted(cases.values(), key=lambda case: case["seconds"])
        low, high = estimates.spread(first) if first else (1.0, 1.0)
        found = Prediction(self.wanted, units=cases["expected"]["training_units"])
        return {
            **self._head(),
            "configurations": cases["expected"]["trials"],
            "search": {
                "whole": looked.whole,
                "procedure": looked.name,
                "metric": search.metric,
                "dataset": search.dataset,
                "goal": search.goal,
                "time_limit": search.seconds,
                "max_trials": search.most_trials,
                "folds": len(search.held_out) or None,
                "looked_at": len(keys),
                # (a procedure may train more where results get worse)
                "least": by_work[0],
                "expected": cases["expected"],
                "most": by_work[-1],
                "range": [low, high],
            },
            **self._compute(nets),
            "nets": nets,
            "memory": self._memory(),
            **self._states(found),
            "suggestions": [],
            "late_seconds": self._late(cases["expected"]["seconds"]),
        }

    def _late(self, seconds: float) -> float | None:
        """Seconds by which the call would end after its deadline, if it were alone; None without a deadline."""
        return None if self.deadline is None else self.deadline.late_by(seconds)

    def _segment_count(self) -> int:
        return len(self.planner.workload.keys("training"))
