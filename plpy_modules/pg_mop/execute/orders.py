"""What worker sessions are told: of their trainers, and of the units that they do (read by execute/unit.py)."""

import json
import time
from dataclasses import dataclass, field

from mop_udf import params


def sharing(configurations):
    """{mst_key: a number}, equal for configurations that share a compiled model; `configurations` as in Orders."""
    numbers = {}
    return {c["mst_key"]: numbers.setdefault(json.dumps([c["model_arch"], params.without_scalars(c["compile"])],
                                                        sort_keys=True), len(numbers)) for c in configurations}


@dataclass
class Orders:
    """Of one run. What is told follows from these and from what the board knows at the time."""

    db: object
    engine: object
    packed: dict            # dataset -> PackedTable, or None
    segments: dict          # (dataset, key) -> Segment
    configurations: list    # dicts, with the parsed `compile` and `fit`
    board: object
    outputs: dict           # what a model must output for the rows: see PackedTable.wanted_outputs
    options: dict
    seed: int
    functions: str | None   # the object table, quoted
    gpus: int               # that trainers share; 0: they use none
    began: float            # when the call did (time.monotonic)
    replicas: list | None   # of averaging: [[mst_key, rows of its segment], ...]
    kernels: dict = field(default_factory=dict)  # of a replay: unit -> the kernel that it used

    def __post_init__(self):
        # configurations of one key share what is compiled for a batch size
        shared = sharing(self.configurations)
        self._key = {c["mst_key"]: (shared[c["mst_key"]], c["fit"]["batch_size"]) for c in self.configurations}

    def trainer(self, place):
        """The options of the trainer at a place."""
        options = self.options
        return {"threads": options["threads"], "keras_backend": options["keras_backend"],
                "cache_mb": options["cache_mb"], "memory_mb": options["trainer_memory_mb"],
                "model_mb": options["max_model_mb"], "idle_ms": 0, "gpu": place % self.gpus if self.gpus else None}

    def describe(self, units, place):
        """What a worker session needs to know of units that it does together, on one segment."""
        unit = units[0]
        packed, segment = self.packed[unit.dataset], self.segments[unit.dataset, unit.segment]
        fit = self._configuration(unit.mst_key)["fit"]
        aggregate = f"{self.db.extension}.mop_sub_epoch"
        return {
            "options": self.trainer(place), "seed": self.seed,
            "same_start": self.options["same_start"] or self.replicas is not None, "replicas": self.replicas,
            "table": packed.text, "fingerprint": segment.fingerprint,
            "fingerprint_sql": self.engine.fingerprint_sql(packed, unit.segment),
            "rows_sql": self.engine.rows_sql(packed, unit.segment, aggregate),
            "dtypes": packed.dtypes(), "inputs": len(packed.inputs), "outputs": self.outputs,
            "rows": segment.rows, "bytes": segment.bytes,
            "epochs": fit["epochs"] - fit["initial_epoch"] if unit.kind == "train" else 1,
            "kernel": self.kernels.get(unit, self.options["kernel"]), "run_seconds": time.monotonic() - self.began,
            "models": [self._passes_left(u) for u in units],
            "dataset_key": self._dataset_key(unit.dataset, unit.segment),
            "keep": [self._dataset_key(*d) for d in self.segments], "object_table": self.functions,
        }

    def _configuration(self, mst_key):
        """Of a replica, the one that there is."""
        return self.configurations[0] if self.replicas is not None else next(
            c for c in self.configurations if c["mst_key"] == mst_key)

    def _passes_left(self, unit):
        """How many passes over the unit's segment are left: of its compiled model, and of the whole run.

        A compilation serves the former: configurations that differ in nothing but the learning rate share it.
        """
        if unit.kind != "train":
            return {"passes_left": 0, "run_passes_left": 0}
        averaging = self.replicas is not None
        configurations = [{**self.configurations[0], "mst_key": unit.mst_key}] if averaging else self.configurations
        left = {c["mst_key"]: (c["fit"]["epochs"] - c["fit"]["initial_epoch"])
                * self.board.visits_left(c["mst_key"], unit.segment) for c in configurations}
        own = left[unit.mst_key] if averaging else sum(
            passes for key, passes in left.items() if self._key[key] == self._key[unit.mst_key])
        return {"passes_left": own, "run_passes_left": sum(left.values())}

    def _dataset_key(self, dataset, key):
        """Names a segment's very rows, so that a warm trainer's cache serves the next call too."""
        return f"{self.packed[dataset].table.oid}/{key}/{self.segments[dataset, key].fingerprint}"
