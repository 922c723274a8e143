"""The memory of a run's trainers: what each net needs, measured or estimated, and which parts of devices that makes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.call.devices import Places
from pg_mop.plan import arithmetic
from pg_mop.plan.memory import CONTEXT_BYTES, PROCESS_BYTES, Need
from pg_mop.plan.planner import Configuration, Planner
from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule import setup
from pg_mop.schedule.board import Board
from pg_mop.schedule.device_parts import Device, DeviceParts
from pg_mop.schedule.divided_nets import DividedNets
from pg_mop.schedule.unit import Worker


class TrainerMemory:
    """What the trainers of a run need, by net."""

    def __init__(
        self,
        planner: Planner,
        configurations: Sequence[Configuration],
        segments: Mapping[tuple[str, int], Any],
        wanted: int,
        arithmetic_of: Callable[[int], arithmetic.Arithmetic | None],
        state_bytes: Callable[[Stage], int],
    ) -> None:
        """`segments`: {(dataset, number): Segment}; `wanted`: worker sessions; `arithmetic_of`: of an mst_key, None: unknown;
        `state_bytes`: of a stage's model state."""
        self.planner, self.configurations, self.segments = planner, configurations, segments
        self.wanted, self.arithmetic_of, self.state_bytes = wanted, arithmetic_of, state_bytes
        self._found: dict[Any, Need | None] = {}
        self._rows: int | None = None

    def of(self, stage: Stage) -> Need | None:
        """The need of a trainer that trains a stage, by arithmetic; None where that does not know the net."""
        net = self.planner.sharing.net(stage)
        if net not in self._found:
            own = self.arithmetic_of(stage.mst_key)
            activations = 0 if own is None else 2 * arithmetic.NUMBER_BYTES * own.activations * net.batch_size
            self._found[net] = (
                None if own is None else Need(own.state_bytes, self.state_bytes(stage), activations, self.rows)
            )
        return self._found[net]

    def largest(self) -> Need:
        """The need of a trainer that trains all nets of the plan."""
        found = Need(rows=self.rows)
        stages = [stage for stage in self.planner.plan.stages.values() if stage.trials]
        for stage in {self.planner.sharing.net(stage): stage for stage in stages}.values():
            found = found.most(self.of(stage) or Need())
        return found

    @property
    def rows(self) -> int:
        """Bytes of rows that a trainer keeps."""
        if self._rows is None:
            sizes: Counter[str | None] = Counter()
            largest = 0
            for segment in self.segments.values():
                sizes[segment.server] += segment.bytes
                largest = max(largest, segment.bytes)
            held = max(sizes.values(), default=0)
            if not setup.trains_anywhere(self.planner, self.configurations):
                held = max(largest, held // max(1, self.wanted // max(1, len(sizes))))
            self._rows = min(held, self.planner.workload.options["cache_mb"] << 20)
        return self._rows

    def needed(self, stage: Stage, on_gpu: bool) -> int:
        """Bytes of its device that a trainer needs for a stage: as measured in earlier runs, or by arithmetic; 0: unknown."""
        measured = self.planner.history.most_bytes(self.planner.sharing.net(stage), on_gpu)
        if measured:
            return measured
        need = self.of(stage)
        return 0 if need is None else need.on_gpu if on_gpu else need.in_main_memory

    def needed_on_each_of(self, stage: Stage, devices: int, on_gpu: bool) -> int:
        """Bytes of each of so many devices that train a stage together; 0: unknown. By arithmetic, which earlier runs on one
        GPU correct; a processor's devices have no memory of their own to be measured."""
        need, own = self.of(stage), self.arithmetic_of(stage.mst_key)
        if need is None or own is None:
            return 0
        context = CONTEXT_BYTES if on_gpu else 0
        found = need.on_each_of(own.share_on_each_of(devices), context)
        measured = self.planner.history.most_bytes(self.planner.sharing.net(stage), True) if on_gpu else 0
        return found if not measured else int(measured * found / need.on_each_of(1.0, context))


def device_parts(
    memory: TrainerMemory,
    board: Board,
    options: Mapping[str, Any],
    use_gpus: bool,
    info: Callable[[str | None], Any],
    places: Places,
    divided: DividedNets,
) -> DeviceParts:
    """The DeviceParts of a run. `info(server)`: a server's description of itself; `places`, `divided`: call/devices.py."""
    plan, share = memory.planner.plan, options["gpu_memory_share"]
    at_hosts = any(segment.host_segment is not None for segment in memory.segments.values())
    unpacked = bool(options["trainers"]) or at_hosts  # (Ray and Greenplum have other places for trainers)

    def device_of(worker: Worker) -> Device | None:
        server = board.server(worker)
        return None if unpacked else (server, places.place(server, worker))

    def budget_of(device: Device) -> int | None:
        assert isinstance(device, tuple)
        if share is None or places.are_virtual(device[0]):
            return None
        return budget(share, info(device[0]), device[1] is not None)

    def group_of(device: Device, count: int) -> tuple[Device, ...]:
        assert isinstance(device, tuple)
        return tuple((device[0], number) for number in places.group(device[0], device[1], count))

    def need_of(number: StageNumber) -> int:
        return 0 if share is None else memory.needed(plan.stages[number], on_gpu)

    on_gpu = use_gpus and any(info(server)["gpus"] for server in board.servers)
    key_of = lambda number: memory.planner.sharing.key(plan.stages[number])  # noqa: E731
    return DeviceParts(board, device_of, budget_of, need_of, key_of, divided, group_of)


def budget(share: float, info: Mapping[str, Any], on_gpu: bool) -> int | None:
    """Bytes of a server's main memory, or of each of its GPUs, that trainers may take together; None: unknown."""
    whole = (info.get("memory") or {}).get("gpu" if on_gpu else "main")
    return None if whole is None else int(share * whole)


def check_virtual(options: Mapping[str, Any], earlier: bool) -> None:
    """Raises MopError where the trainers of virtual devices should have parts of a share of memory: these devices share main
    memory, and no trainer of them has a part of one. `earlier`: the number of devices is that of an earlier run."""
    share, devices = options["gpu_memory_share"], options["most_devices"]
    if share is None:
        return
    alternative = "" if earlier else " or SET pg_mop.most_devices = 1;"
    raise MopError(
        f"pg_mop.gpu_memory_share ({share:g}) does not apply to virtual devices (pg_mop.most_devices is {devices})",
        detail=f"Without GPUs, the processors of a server stand for {devices} devices, which share its main memory.",
        hint=f"RESET pg_mop.gpu_memory_share;{alternative}",
        sqlstate="22023",
    )


def allowed_share(options: Mapping[str, Any], limit: float | None, schema: str) -> float | None:
    """The share of a device's memory that the trainers of a run take together, pg_mop.gpu_memory_share or else the role's
    limit (device_share of mop_limit); None: no limit. Raises MopError where the setting is more than the limit."""
    share: float | None = options["gpu_memory_share"]
    if limit is None or options["trainers"]:
        return share
    if share is not None and share > limit:
        raise MopError(
            f"pg_mop.gpu_memory_share ({share:g}) is more than the share of a device that the role may take ({limit:g})",
            detail="The table mop_limit sets the role's limits (device_share).",
            hint=f"SET pg_mop.gpu_memory_share = {limit:g}; or RESET pg_mop.gpu_memory_share; (SELECT device_share FROM "
            f"{schema}.mop_my_limits; shows the limit)",
            sqlstate="53400",
        )
    return limit if share is None else share


def check(
    options: Mapping[str, Any], info: Mapping[str, Any], on_gpu: bool, limit: float | None = None, schema: str = ""
) -> None:
    """Raises MopError where the share of a device (`gpu_memory_share`, see allowed_share) leaves too little for any trainer,
    or less than the limit of one. `limit`: that of the role; `schema`: the extension's, quoted."""
    share = options["gpu_memory_share"]
    whole = None if share is None or options["trainers"] else budget(share, info, on_gpu)
    if whole is None:
        return
    memory, least = ("a GPU's", CONTEXT_BYTES) if on_gpu else ("this server's", PROCESS_BYTES)
    name = "pg_mop.gpu_memory_share" if limit is None or share < limit else "device_share of mop_limit"
    other = (
        "RESET pg_mop.gpu_memory_share;"
        if limit is None
        else f"SELECT device_share FROM {schema}.mop_my_limits; shows the limit, which an administrator sets."
    )
    if whole < least:
        passing = math.ceil(1000 * least / info["memory"]["gpu" if on_gpu else "main"]) / 1000
        may = passing <= (1 if limit is None else limit)
        raise MopError(
            f"{name} ({share:g}) leaves trainers {whole >> 20} MB of {memory} memory",
            detail=f"A trainer takes at least about {least >> 20} MB.",
            hint=f"SET pg_mop.gpu_memory_share = {passing:g}; or {other}" if may else other,
            sqlstate="22023",
        )
    if on_gpu:  # (the limit is one of main memory)
        return
    most = options["trainer_memory_mb"]
    if most is not None and most << 20 > whole:
        raise MopError(
            f"pg_mop.trainer_memory_mb ({most}) is more than {name} ({share:g}) leaves all trainers together",
            detail=f"That is {whole >> 20} MB of this server's memory.",
            hint=f"SET pg_mop.trainer_memory_mb = {whole >> 20}; or {other}",
            sqlstate="22023",
        )
