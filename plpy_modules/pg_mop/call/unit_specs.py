"""Unit specs: all that a worker session needs to know about its trainer and a unit (mop_udf/unit_spec.py)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mop_udf.pool.pool import MOST_NAMES
from mop_udf.unit_spec import ModelSpec, SegmentSpec, StepSpec, UnitSpec
from pg_mop.call.devices import Places
from pg_mop.plan.cost_history import CostHistory
from pg_mop.plan.sharing import Sharing, epochs
from pg_mop.plan.stages import Plan, Stage
from pg_mop.schedule.board import Board, Unit
from pg_mop.schedule.unit_batches import units_of

MOST_STAGES = 1000  # that are looked at for the compiled models of a run


@dataclass
class UnitSpecs:
    """Makes the unit specs of one run, from these values and from the state of the board."""

    engine: Any
    server: Callable[[int], Any]  # worker -> Server
    packed: Mapping[str, Any]  # dataset -> PackedTable, or None
    segments: Mapping[tuple[str, int], Any]  # (dataset, number) -> Segment
    plan: Plan
    board: Board
    sharing: Sharing
    outputs: Any  # the outputs that a model must have for the rows: see PackedTable.wanted_outputs
    options: Mapping[str, Any]
    seed: int
    functions: str | None  # the object table, quoted, without its schema
    digests: Callable[[int], Any]  # mst_key -> digests of its custom functions, see object_table.digests
    use_gpus: bool
    began: float  # when the call began (time.monotonic)
    replicas: list[int] | None  # of averaging: rows of each replica's segment
    chainable: Callable[
        [Sequence[tuple[str, int]]], bool
    ]  # (dataset, number) of a worker's segments -> units may form chains
    kernels: Mapping[Unit, Any] = field(default_factory=dict)  # of a replay: see setup.logged_kernels
    finite: bool = True  # losses and metrics must be finite
    cost_history: CostHistory = field(default_factory=CostHistory)
    inherited: Callable[[Stage], Any] = lambda stage: None  # what a stage inherits, see Planner.inherited
    device_parts: Any = None  # the schedule.device_parts.DeviceParts of the run
    places: Places | None = None  # the devices of its servers

    def trainer(
        self, worker: int, segment: Any = None, threads: int | None = None, parts: int | None = None
    ) -> dict[str, Any]:
        """The options of a worker's trainer. On Greenplum the trainer is on the host of a Segment: at first, of the first
        segment that the worker serves. `threads`: in place of the run's. `parts`: of its device's memory, of
        which the trainer has one; None: as at first."""
        options, info = self.options, self.server(worker).info
        segment = segment or next((self.segments[key] for key in self.board.served(worker)), None)
        there = {} if segment is None or segment.host_segment is None else {"host_segment": segment.host_segment}
        gpus = info["gpus"] if self.use_gpus and not options["trainers"] else 0
        several = self.device_parts.several(worker) if self.device_parts is not None and parts is not None else ()
        beside = sum(self.board.server(p) == self.board.server(worker) for p in self.board.workers)
        return {
            "divided_by": len(several) or None,
            "virtual_mb": options["device_memory_mb"] if self._has_virtual_devices(worker) else None,
            "threads": threads or options["threads"] or max(1, info["cores"] // max(1, beside)),
            "keras_backend": options["keras_backend"],
            "cache_mb": options["cache_mb"],
            "memory_mb": options["trainer_memory_mb"],
            "model_mb": options["max_model_mb"],
            "idle_ms": 0,
            "keep_ms": options["session_idle_timeout"],
            "fork_server_ms": options["fork_server_idle_timeout"],
            "compile_cache_mb": options["compile_cache_mb"],
            "gpu": (several[0][1] if several else worker % gpus) if gpus else None,
            "trainers": options["trainers"],
            "use_gpus": self.use_gpus,
            **(self._part_of_device(worker, parts) if not there and not options["trainers"] else {}),
            **there,
        }

    def _part_of_device(self, worker: int, parts: int | None) -> dict[str, Any]:
        """The part of its device's memory that a worker's trainer has, and that all trainers have together: millionths. Where
        the run has no share, how many trainers it has on the device: the worker's server may have a share for the role."""
        if self.device_parts is None:
            return {}
        share, usual = self.options["gpu_memory_share"], self.device_parts.usual(worker)
        if self._has_virtual_devices(worker):  # (they share main memory, of which no trainer has a part)
            return {"device_beside": sum(self.board.server(p) == self.board.server(worker) for p in self.board.workers)}
        # (an idle trainer of a divided net holds devices, and ends where the pool knows that another one needs a part of them)
        if share is None and (parts or usual) == usual and not (parts and self.device_parts.has_divided):
            return {"device_beside": usual}
        most = round(1_000_000 * (share or 1.0))
        return {"device_part": max(1, most // (parts or usual)), "device_most": most}

    def _has_virtual_devices(self, worker: int) -> bool:
        return self.places is not None and self.places.are_virtual(self.board.server(worker))

    def why_one_device(self, worker: int) -> str | None:
        """Why a net cannot be divided among all devices of a worker's server, where it has several; else None."""
        server = self.board.server(worker)
        if self.places is None:
            return None
        return self.places.why_one(server) if self.places.gpus(server) > 1 else self.places.why_no_more(server)

    def wants(self, worker: int) -> dict[str, list[str]]:
        """What a worker's trainer should hold already, if the pool has such a trainer: rows and compiled models."""
        served = [(dataset, self.segments[dataset, number]) for dataset, number in self.board.served(worker)]
        nets = dict.fromkeys(self.net(stage) for stage in itertools.islice(self.plan.stages.values(), MOST_STAGES))
        server = self.server(worker).name
        return {
            "datasets": [self._dataset_key(dataset, segment.on(server)) for dataset, segment in served][:MOST_NAMES],
            "nets": list(nets)[:MOST_NAMES],
        }

    def net(self, stage: Stage) -> str:
        """The digest of a stage's compiled model."""
        return self.sharing.digest(self.sharing.key(stage)[0])

    def describe(
        self,
        steps: Sequence[Sequence[Unit | None]],
        worker: int,
        threads: int | None = None,
        parts: int | None = None,
        run_id: int = 0,
        fencing_token: int = 0,
    ) -> UnitSpec:
        """The spec of a unit, of a unit batch on one segment, or of a chain of them (see UnitBatches.choose). `threads`: of the
        trainer; a session that has one with others gives it back, and leases another. None: the run's. `parts`: see
        `trainer`. `run_id`, `fencing_token`: on the worker's server."""
        units = units_of(steps[:1])
        unit = units[0]
        server, packed = self.server(worker), self.packed[unit.dataset]
        segment = self.segments[unit.dataset, unit.segment].on(server.name)
        aggregate = f"{server.schema}.mop_sub_epoch"
        hosts = {} if segment.host_segment is None else self.segments
        then, segments = self._then(steps, server, aggregate)
        return UnitSpec(
            **vars(self._rows(packed, segment, aggregate, unit)),
            run_id=run_id,
            fencing_token=fencing_token,
            kind=unit.kind,
            dataset=unit.dataset,
            options=self.trainer(worker, segment, threads, parts),
            host_segments={str(key): s.host_segment for (dataset, key), s in hosts.items() if dataset == "training"},
            seed=self.seed,
            same_start=self.options["same_start"] or self.replicas is not None,
            replicas=self.replicas_of(unit),
            table=packed.text,
            dtypes=packed.dtypes(),
            inputs=len(packed.inputs),
            outputs=self.outputs,
            finite=self.finite,
            run_seconds=time.monotonic() - self.began,
            share_prefixes=self.options["share_prefixes"],
            models=[self._model(u, True, self.functions_of(u.stage)) for u in units],
            then=then,
            segments=segments,
            keep=[
                self._dataset_key(dataset, one) for (dataset, _), s in self.segments.items() for one in (s, *s.copies)
            ],
            object_table=self.functions,
        )

    def _rows(self, packed: Any, segment: Any, aggregate: str, unit: Unit) -> SegmentSpec:
        """The rows of one segment."""
        return SegmentSpec(
            segment=unit.segment,
            fingerprint=segment.fingerprint,
            fingerprint_sql=segment.fingerprint_sql,
            rows_sql=self.engine.rows_sql(packed, segment, aggregate),
            rows=segment.rows,
            bytes=segment.bytes,
            dataset_key=self._dataset_key(unit.dataset, segment),
        )

    def _model(self, unit: Unit, is_new: bool, functions: Any = ()) -> ModelSpec:
        """One unit of a step. `is_new`: no step before has its stage; `functions`: see `functions_of`, of the first step."""
        here, all_left = self._passes_left(unit)
        return ModelSpec(
            stage=unit.stage,
            iteration=unit.iteration,
            epochs=self._passes(unit),
            kernel=self.kernels.get(unit, self.options["kernel"]),
            net=self.net(self.plan.stages[unit.stage]),
            passes_left=here,
            run_passes_left=all_left,
            functions=list(functions),
            costs=self._costs(unit) if is_new else None,
            inherits=self.inherited(self.plan.stages[unit.stage]) if unit.kind == "train" else None,
        )

    def _then(
        self, steps: Sequence[Sequence[Unit | None]], server: Any, aggregate: str
    ) -> tuple[list[StepSpec], list[SegmentSpec]]:
        """The later steps of a chain, and the rows of their segments."""
        then: list[StepSpec] = []
        rows: dict[int, SegmentSpec] = {}
        stages = {unit.stage for unit in units_of(steps[:1])}
        for step in steps[1:]:
            first = units_of([step])[0]
            if first.segment not in rows:
                segment = self.segments[first.dataset, first.segment].on(server.name)
                rows[first.segment] = self._rows(self.packed[first.dataset], segment, aggregate, first)
            models = [None if unit is None else self._model(unit, unit.stage not in stages) for unit in step]
            stages.update(unit.stage for unit in units_of([step]))
            then.append(StepSpec(segment=first.segment, models=models))
        return then, list(rows.values())

    def functions_of(self, stage: int) -> Any:
        """The digests of a stage's custom functions, see object_table.digests."""
        return self.digests(self.plan.stages[stage].mst_key)

    def may_chain(self, worker: int) -> bool:
        """True where a worker's units may form chains (see Planner.may_chain)."""
        return self.chainable(self.board.served(worker))

    def _costs(self, unit: Unit) -> Any:
        """The costs of the unit's net in earlier runs, for the trainer's kernel autotuner; None if it needs none."""
        if unit.kind != "train" or self.options["kernel"] != "auto" or unit in self.kernels:
            return None
        return self.cost_history.hints(self.sharing.net(self.plan.stages[unit.stage]))

    def replicas_of(self, unit: Unit) -> list[list[int]] | None:
        """Averaging: [[stage, rows], ...] of the replicas whose average the unit reads; else None.

        A replica begins an iteration with the average of all replicas after the iteration before.
        """
        if self.replicas is None:
            return None
        own = self.plan.stages[unit.stage]
        stages: list[list[int]] = []
        for key, rows in enumerate(self.replicas, start=1):
            path = self.plan.path(key)
            before = unit.iteration - (unit.kind == "train")
            stage = own if own in path or not before else path[before - 1]
            stages.append([stage.number, rows])
        return stages

    def _passes(self, unit: Unit) -> int:
        return epochs(self.plan.stages[unit.stage].parameters[1]) if unit.kind == "train" else 1

    def _passes_left(self, unit: Unit) -> tuple[int, int]:
        """Estimates the passes that the unit's worker still has to make: with the same compiled model, and in all.

        A compilation serves the former: configurations that differ in the learning rate alone share it.
        """
        if unit.kind != "train":
            return 0, 0
        board, own = self.board, self.sharing.key(self.plan.stages[unit.stage])
        all_left = board.passes_left(None, unit.segment)
        if not board.anywhere:
            return board.passes_left(own, unit.segment), all_left
        # a worker trains the models with affinity for it on all segments of its server
        server = board.server_of["training", unit.segment]
        segments = [segment for segment in board.segments if board.server_of["training", segment] == server]
        here = all_left * len(segments) // sum(board.server(worker) == server for worker in board.workers)
        affine = sum(board.passes_left(own, segment) for segment in segments)
        return min(affine, here), here

    def _dataset_key(self, dataset: str, segment: Any) -> str:
        """Names the exact rows of a segment, so that the cache of a warm trainer serves the next call, too."""
        return f"{self.packed[dataset].table.oid}/{segment.key}/{segment.fingerprint}"
