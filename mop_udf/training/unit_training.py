"""Training units in a trainer: one after the other, or several as one vmap batch."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mop_udf import data
from mop_udf.kernels import vmap_batch
from mop_udf.kernels.batch_size import Memory
from mop_udf.kernels.framework import framework
from mop_udf.kernels.kernel_order import LOGGED, KernelOrder
from mop_udf.training import models, prefixes, work_meter
from mop_udf.training.callbacks import TensorBoard
from mop_udf.training.unit_rows import KeptRows, UnitRows
from mop_udf.unit_spec import TrainerUnit

if TYPE_CHECKING:
    from mop_udf.kernels.tuned_kernels import TunedKernels
    from mop_udf.training.compiled_model import CompiledModel
    from mop_udf.training.model_cache import ModelCache

Report = dict[str, Any]  # on a trained model


@dataclasses.dataclass
class TrainingUnit:
    """A training unit with its parameters parsed.

    UnitTraining sets `joins`, whether the unit may train in a vmap batch, and `last`, whether no unit is prepared after
    this unit. `held`: the Held state with which the unit begins, in a chain.
    """

    unit: TrainerUnit
    compile_params: dict[str, Any]
    fit: dict[str, Any]
    objects: dict[str, Any]
    held: Held | None = None
    joins: bool = False
    last: bool = False

    @property
    def forced(self) -> str | None:
        """The kernel that the setting names, or None for the autotuner's; LOGGED: those of a log, batch by batch."""
        kernel = self.unit.kernel
        return None if kernel == "auto" else kernel if isinstance(kernel, str) else LOGGED

    @property
    def epochs(self) -> int:
        return self.fit["epochs"] - self.fit["initial_epoch"]

    @property
    def block(self) -> int:
        """The rows that `shuffle` permutes together."""
        return data.shuffle_block(self.unit.nbytes, self.unit.rows, self.fit["batch_size"])

    def random(self) -> np.random.Generator:
        """The generator that permutes the rows.

        Its seed leaves the configuration out: all configurations see the same order, so it does not matter which
        configurations share this iteration.
        """
        return np.random.default_rng([n & 0xFFFFFFFF for n in (self.unit.seed, self.unit.iteration, self.unit.segment)])


class Held:
    """The state of a model between two steps of a chain: in the variables of its CompiledModel, or beside them."""

    def __init__(self, compiled: CompiledModel, stays: bool) -> None:
        """`stays`: no other model is trained in the CompiledModel before the next step."""
        self.compiled, self.values = compiled, None if stays else compiled.values()

    def put(self, compiled: CompiledModel) -> None:
        """Put a CompiledModel into the state: the same one, or that of the next step's parameters."""
        if self.values is not None:
            compiled.put_values(self.values)
        elif compiled is not self.compiled:
            compiled.put_values(self.compiled.values())


class UnitTraining:
    """Trains the models of one request on the same rows."""

    def __init__(
        self,
        units: Sequence[TrainerUnit],
        objects: Iterator[Any],
        states: dict[int, Any],
        rows: UnitRows | KeptRows,
        cache: data.Cache,
        compiled_models: ModelCache,
        device: Sequence[Any],
        held: Sequence[Held | None] | None = None,
    ) -> None:
        """Parse the units' parameters.

        `units`: TrainerUnits; `objects`: an iterator over the pickles of their custom functions; `states`: {stage: bytes of
        its state}, emptied as the models load them; `rows`: UnitRows; `cache`: data.Cache; `compiled_models`:
        ModelCache; `device`: as device.described gives it; `held`: the Held states of the models, in place of `states`.
        Raises ConfigurationError.
        """
        self.states, self.rows, self.cache = states, rows, cache
        self.compiled_models, self.device = compiled_models, device
        self.memory = Memory()
        self.works = [
            TrainingUnit(
                unit,
                *models.parse(unit.compile_params, unit.fit_params, unit.iteration),
                {name: next(objects) for name in unit.objects},
                before,
            )
            for unit, before in zip(units, held or [None] * len(units), strict=True)
        ]

    def run(
        self, holds: Sequence[bool] | None = None, stays: bool = True, alone: bool = True
    ) -> tuple[list[Report], list[Any]]:
        """Train all models: (their reports, their states as lists of buffers), in the order of the units.

        `holds`: of each unit, whether its state is a Held state instead, for the next step of a chain; `stays`: see Held.
        `alone`: no other model of the request is trained after these.
        """
        with work_meter.meter():
            return self._run(holds, stays, alone)

    def _run(self, held: Sequence[bool] | None, stays: bool, alone: bool) -> tuple[list[Report], list[Any]]:
        holds = dict(zip(map(id, self.works), held or [False] * len(self.works), strict=True))
        meter = work_meter.meter()
        parts = self._parts()
        done: dict[int, tuple[Report, Any]] = {}
        parts[-1][-1].last = True
        for part in parts:
            meter.take()
            began, busy, self.rows.wait_seconds = time.monotonic(), work_meter.processor_seconds(), 0.0
            together = self._train_batch(part)
            share = (time.monotonic() - began - self.rows.wait_seconds) / len(part)
            cpu_share, readings = (work_meter.processor_seconds() - busy) / len(part), meter.take()
            for number, work in enumerate(part):
                began, busy, self.rows.wait_seconds = time.monotonic(), work_meter.processor_seconds(), 0.0
                self.memory.begin()
                if together is None:
                    compiled, batch = self._prepare(work), None
                else:
                    compiled, batch = together
                    batch.put(number)
                if batch is None or not batch.trained:
                    report = self._train(work, compiled)
                else:
                    report = self._report(work, batch.report(), compiled.kernels, 0 if number else batch.compilations)
                if report["loss"] != report["loss"]:
                    raise models.ConfigurationError("the loss became NaN")
                state: Any
                if holds[id(work)]:
                    state = Held(compiled, stays)
                else:
                    state = compiled.save()
                    if len(self.works) > 1 or not alone:
                        # joined, since the next model may be trained in the variables that these buffers view
                        state = [b"".join(state)]
                done[id(work)] = (
                    {
                        **report,
                        "seconds": share + time.monotonic() - began - self.rows.wait_seconds,
                        "cpu_seconds": cpu_share + work_meter.processor_seconds() - busy,
                        **meter.report(readings + meter.take()),
                    },
                    state,
                )
        return [done[id(work)][0] for work in self.works], [done[id(work)][1] for work in self.works]

    def _parts(self) -> list[list[TrainingUnit]]:
        """The units in lists of those that may train as one vmap batch, judged before their models are made."""
        parts: dict[Any, list[TrainingUnit]] = {}
        for number, work in enumerate(self.works):
            unit, fit = work.unit, work.fit
            work.joins = (
                vmap_batch.is_possible(unit.kernel)
                and framework.device_count() == 1
                and unit.keeps_rows
                and unit.epochs_sent == 1
                and not fit["callbacks"]
            )
            alike = (
                (
                    self.compiled_models.key(
                        unit.architecture, work.compile_params, work.objects, False, fit["dropout"]
                    ),
                    unit.kernel,
                    fit["batch_size"],
                    work.epochs,
                    repr(fit["class_weight"]),
                    fit["steps_per_epoch"],
                    fit["shuffle"],
                    fit["shuffle"] and unit.iteration,
                )
                if work.joins
                else number
            )
            parts.setdefault(alike, []).append(work)
        return [
            part[start : start + vmap_batch.MOST_STATES]
            for part in parts.values()
            for start in range(0, len(part), vmap_batch.MOST_STATES)
        ]

    def _prepare(self, work: TrainingUnit) -> CompiledModel:
        """The CompiledModel of a unit, in the state where its training starts."""
        unit, compile_params, fit = work.unit, work.compile_params, work.fit
        state = None if work.held else self.states.get(unit.stage)
        seed = None
        if not work.held and (state is None or unit.plain_weights):
            seed = models.initial_seed(unit.seed, unit.model_id, None if unit.same_start else unit.mst_key)
        compiled = self.compiled_models.get(
            unit.architecture, compile_params, work.objects, seed, bool(fit["callbacks"]), fit["dropout"]
        )
        self.compiled_models.note_net(unit.net)
        compiled.check_trainable()
        models.check_outputs(compiled.model, unit.outputs, compiled.losses)
        models.check_weights(compiled.model, fit["class_weight"], unit)
        if work.held:
            work.held.put(compiled)
        elif seed is not None:
            compiled.start(seed)
            if state is not None and unit.inherits:
                compiled.inherit(unit.inherits, state)
            elif state is not None:
                compiled.set_weights(state)
        else:
            began = time.monotonic()
            compiled.load(state)
            self.rows.wait_seconds += time.monotonic() - began
            if replicas := replica_states(unit, self.states):
                compiled.average(replicas)
        framework.check_room(compiled.variables)
        compiled.set_scalars(compile_params)
        self.states.pop(unit.stage, None)
        if work.last:
            self.states.clear()  # training needs their memory
        return compiled

    def _train_batch(self, part: list[TrainingUnit]) -> tuple[CompiledModel, vmap_batch.VmapBatch] | None:
        """Train the models of some units as one vmap batch: (their CompiledModel, a VmapBatch with their states).

        The batch may decide against training; then its states are as they were. None: each model trains by itself. A kernel
        that the setting names trains a single model in the same way: the result does not depend on the other models of the
        batch.
        """
        work = part[0]
        if not work.joins or len(part) == 1 and work.forced is None:
            return None
        compiled = self._prepare(part[0])
        batch = vmap_batch.VmapBatch(compiled.kernels)
        batch.take()
        for each in part[1:]:
            compiled = self._prepare(each)
            batch.take()
        self.rows.finish()
        unit, fit = work.unit, work.fit
        if work.forced is None:
            if unit.share_prefixes and compiled.cut:
                return compiled, batch
            compiled.kernels.load_history(fit["batch_size"], unit.costs, self.device)
        segment, random = self._segment(unit), work.random()
        batch.train(
            (_columns(segment, work, random) for _ in range(work.epochs)),
            unit.rows,
            fit["batch_size"],
            unit.inputs,
            fit["class_weight"],
            fit["steps_per_epoch"],
            unit.passes_left,
            unit.run_passes_left,
            unit.run_seconds,
            work.forced,
        )
        return compiled, batch

    def _train(self, work: TrainingUnit, compiled: CompiledModel) -> Report:
        """Train one model by itself: its report."""
        unit, fit = work.unit, work.fit
        kernels, inputs, features = compiled.kernels, unit.inputs, None
        before, random = kernels.compilations, work.random()
        passes: list[Report] = []
        order = KernelOrder(unit.kernel if work.forced == LOGGED else ())

        def one_pass(chunks: Iterable[Sequence[np.ndarray]], streams: bool) -> None:
            if work.forced is None:
                kernels.load_history(fit["batch_size"], unit.costs, self.device)
            passes.append(
                kernels.train(
                    chunks,
                    unit.rows,
                    fit["batch_size"],
                    inputs,
                    fit["class_weight"],
                    fit["steps_per_epoch"],
                    unit.passes_left - len(passes),
                    unit.run_passes_left - len(passes),
                    unit.run_seconds,
                    work.forced,
                    streams,
                    order,
                )
            )

        if unit.epochs_sent > 1 or not unit.keeps_rows:
            # the backend sends the rows once for every epoch
            for _, epoch in itertools.groupby(self.rows, key=lambda item: item[0]):
                rows: Iterator[data.Arrays] = (arrays for _, arrays in epoch)
                if fit["shuffle"]:
                    rows = data.permuted_stream(rows, fit["shuffle"], fit["batch_size"], work.block, random)
                one_pass(rows, True)
        else:
            # (with steps_per_epoch a pass trains on a part of the rows)
            if not fit["steps_per_epoch"]:
                features = prefixes.features(self.cache, unit, compiled)
            if unit.sends_rows and not self.rows.ended and not fit["shuffle"] and not features:
                one_pass((arrays for _, arrays in self.rows), True)  # reading and training overlap
            self.rows.finish()
            segment = self._segment(unit)
            if features and (shared := features.segment(fit["batch_size"])):
                segment, kernels, inputs = shared, compiled.cut.kernels, 1
                before = kernels.compilations
            for _ in range(work.epochs - len(passes)):
                one_pass([_columns(segment, work, random)], False)
        if fit["callbacks"]:
            with TensorBoard(fit["callbacks"], unit.segment, compiled.model) as board:
                for number, logs in enumerate(passes):
                    board.passed((unit.iteration - 1) * len(passes) + number, logs)
        return self._report(
            work,
            passes[-1],
            kernels,
            kernels.compilations - before,
            {
                **({"prefix": compiled.cut.report(kernels)} if features else {}),
                **({"order": mixed} if (mixed := order.mixed()) else {}),
            },
        )

    def _segment(self, unit: TrainerUnit) -> data.Segment:
        segment = self.cache.get(unit.dataset)
        assert segment is not None
        return segment

    def _report(
        self,
        work: TrainingUnit,
        last: Report,
        kernels: TunedKernels,
        compilations: int,
        more: dict[str, Any] | None = None,
    ) -> Report:
        """The report on a trained model, from the report of its last pass."""
        return {
            "loss": last["loss"],
            "rows": last["rows"],
            "kernel": last["kernel"],
            "compilations": compilations,
            "choice": {
                **kernels.autotuner(work.fit["batch_size"], work.forced).report(),
                "version": self.device[0],
                "device": self.device[1],
                "devices": framework.device_count(),
                "memory_bytes": framework.most_bytes() if framework.has_gpu() else self.memory.peak(),
                **(more or {}),
            },
        }


def replica_states(unit: TrainerUnit, states: dict[int, Any]) -> list[tuple[Any, int]] | None:
    """[(bytes of its state, rows), ...] of the replicas that a unit's model averages; None without replicas."""
    return [(states[key], rows) for key, rows in unit.replicas] if unit.replicas else None


def _columns(segment: data.Segment, work: TrainingUnit, random: np.random.Generator) -> Sequence[np.ndarray]:
    """The rows of a segment for one pass."""
    shuffle, batch_size = work.fit["shuffle"], work.fit["batch_size"]
    if not shuffle:
        return segment.columns
    return data.permuted(segment.columns, shuffle, batch_size, work.block, random)
