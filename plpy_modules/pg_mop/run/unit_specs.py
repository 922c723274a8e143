"""What worker sessions are told: of their trainers, and of the units that they do (read by run/unit.py)."""

import time
from dataclasses import dataclass, field

from pg_mop.plan.cost_history import CostHistory
from pg_mop.plan.sharing import Sharing, epochs


@dataclass
class UnitSpecs:
    """Of one run. What is told follows from these and from what the board knows at the time."""

    engine: object
    server: object  # place -> Server
    packed: dict  # dataset -> PackedTable, or None
    segments: dict  # (dataset, key) -> Segment
    plan: object
    board: object
    sharing: Sharing
    outputs: dict  # what a model must output for the rows: see PackedTable.wanted_outputs
    options: dict
    seed: int
    functions: str | None  # the object table, quoted, without its schema
    digests: object  # mst_key -> those of its custom functions, see object_table.digests
    use_gpus: bool
    began: float  # when the call did (time.monotonic)
    replicas: list | None  # of averaging: rows of the segment of each
    kernels: dict = field(default_factory=dict)  # of a replay: unit -> the kernel that it used
    finite: bool = True  # losses and metrics must be
    cost_history: CostHistory = field(default_factory=CostHistory)

    def trainer(self, worker, segment=None):
        """The options of the trainer at a place; on Greenplum it is where a Segment is, at first that which comes first
        there."""
        options, info = self.options, self.server(worker).info
        segment = segment or next((self.segments[key] for key in self.board.served(worker)), None)
        there = {} if segment is None or segment.host_segment is None else {"place": segment.host_segment}
        gpus = info["gpus"] if self.use_gpus and not options["trainers"] else 0
        beside = sum(self.board.server(p) == self.board.server(worker) for p in self.board.workers)
        return {
            "threads": options["threads"] or max(1, info["cores"] // max(1, beside)),
            "keras_backend": options["keras_backend"],
            "cache_mb": options["cache_mb"],
            "memory_mb": options["trainer_memory_mb"],
            "model_mb": options["max_model_mb"],
            "idle_ms": 0,
            "fork_server_ms": options["fork_server_idle_timeout"],
            "compile_cache_mb": options["compile_cache_mb"],
            "gpu": worker % gpus if gpus else None,
            "trainers": options["trainers"],
            "use_gpus": self.use_gpus,
            **there,
        }

    def describe(self, units, worker):
        """What a worker session needs to know of units that it does together, on one segment."""
        unit = units[0]
        server, packed = self.server(worker), self.packed[unit.dataset]
        segment = self.segments[unit.dataset, unit.segment].on(server.name)
        aggregate = f"{server.schema}.mop_sub_epoch"
        workers = (
            {}
            if segment.host_segment is None
            else {
                "places": {
                    key: one.host_segment for (dataset, key), one in self.segments.items() if dataset == "training"
                }
            }
        )
        return {
            **workers,
            "options": self.trainer(worker, segment),
            "seed": self.seed,
            "same_start": self.options["same_start"] or self.replicas is not None,
            "replicas": self.replicas_of(unit),
            "table": packed.text,
            "fingerprint": segment.fingerprint,
            "fingerprint_sql": segment.fingerprint_sql,
            "rows_sql": self.engine.rows_sql(packed, segment, aggregate),
            "dtypes": packed.dtypes(),
            "inputs": len(packed.inputs),
            "outputs": self.outputs,
            "finite": self.finite,
            "rows": segment.rows,
            "bytes": segment.bytes,
            "run_seconds": time.monotonic() - self.began,
            "share_prefixes": self.options["share_prefixes"],
            "models": [
                {
                    **self._passes_left(u),
                    "epochs": self._passes(u),
                    "kernel": self.kernels.get(u, self.options["kernel"]),
                    "functions": self.digests(self.plan.stages[u.stage].mst_key),
                    "costs": self._costs(u),
                }
                for u in units
            ],
            "dataset_key": self._dataset_key(unit.dataset, segment),
            "keep": [
                self._dataset_key(dataset, one) for (dataset, _), s in self.segments.items() for one in (s, *s.copies)
            ],
            "object_table": self.functions,
        }

    def _costs(self, unit):
        """What the trainer is told of what the unit's net has cost in earlier runs; None where it is of no use."""
        if unit.kind != "train" or self.options["kernel"] != "auto" or unit in self.kernels:
            return None
        return self.cost_history.told(self.sharing.net(self.plan.stages[unit.stage]))

    def replicas_of(self, unit):
        """Averaging: the stages whose average a unit is of, and their rows: [[stage, rows], ...]; else None.

        A replica begins an iteration with the average of all after the one before; its own is under its own number.
        """
        if self.replicas is None:
            return None
        own, stages = self.plan.stages[unit.stage], []
        for key, rows in enumerate(self.replicas, start=1):
            path = self.plan.path(key)
            before = unit.iteration - (unit.kind == "train")
            stage = own if own in path or not before else path[before - 1]
            stages.append([stage.number, rows])
        return stages

    def _passes(self, unit):
        return epochs(self.plan.stages[unit.stage].parameters[1]) if unit.kind == "train" else 1

    def _passes_left(self, unit):
        """How many passes are left at the unit's place, about: of its compiled model, and of the whole run.

        A compilation serves the former: configurations that differ in nothing but the learning rate share it.
        """
        if unit.kind != "train":
            return {"passes_left": 0, "run_passes_left": 0}
        own, all_left = self.sharing.key(self.plan.stages[unit.stage]), self.board.passes_left(None, unit.segment)
        if not self.board.anywhere:
            return {"passes_left": self.board.passes_left(own, unit.segment), "run_passes_left": all_left}
        # (what has its home at a place is done there, on all segments)
        here = all_left * len(self.board.segments) // len(self.board.workers)
        at_home = sum(self.board.passes_left(own, segment) for segment in self.board.segments)
        return {"passes_left": min(at_home, here), "run_passes_left": here}

    def _dataset_key(self, dataset, segment):
        """Names a segment's very rows, so that a warm trainer's cache serves the next call too."""
        return f"{self.packed[dataset].table.oid}/{segment.key}/{segment.fingerprint}"
