"""How much a trainer's processors and its GPUs worked, for the log of units.

The trainer counts its own processor seconds. A GPU does not: NVML tells what the device does at a moment, with the work of all
processes on it. A thread reads this about four times a second while a unit trains; the unit has the mean.
"""

import functools
import os
import resource
import threading
import time
from collections.abc import Sequence
from typing import Any

from mop_udf.kernels.framework import framework
from mop_udf.pool import nvml

INTERVAL = 0.25  # seconds between two readings; NVML's own sample period is 1/6 to 1 second

Reading = tuple[float | None, int | None]  # utilization (0 to 1), bytes in use; None: the library does not tell it


def processor_seconds() -> float:
    """Seconds that all threads of this process, and its ended children (such as a compiler of kernels), have computed."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class WorkMeter:
    """Reads devices while it is entered (`with`). Without devices it has no thread and does nothing."""

    def __init__(self, devices: Sequence[nvml.Device], interval: float = INTERVAL):
        self._devices, self._interval = devices, interval
        self._readings: list[Reading] = []
        self._wanted = threading.Event()
        if devices:
            threading.Thread(target=self._read_always, name="work meter", daemon=True).start()

    def __enter__(self) -> "WorkMeter":
        if self._devices:
            self._wanted.set()
        return self

    def __exit__(self, *_: object) -> None:
        self._wanted.clear()

    def take(self) -> list[Reading]:
        """The readings since the last call."""
        if not self._devices:
            return []
        taken, self._readings = self._readings, []
        return taken

    def report(self, readings: list[Reading]) -> dict[str, Any]:
        """What the log of units has of a unit with these readings: gpu_utilization (their mean) and gpu_memory_bytes (the
        most). A unit too short for a reading gets one now, of the sample period that has just ended."""
        if not self._devices:
            return {}
        readings = readings or [self.read()]
        shares = [share for share, _ in readings if share is not None]
        sizes = [size for _, size in readings if size is not None]
        return {
            "gpu_utilization": sum(shares) / len(shares) if shares else None,
            "gpu_memory_bytes": max(sizes, default=None),
        }

    def read(self) -> Reading:
        """The mean utilization of the devices, and the bytes in use on the fullest. A device that does not answer (it has been
        lost, or it is a part of a GPU) is left out."""
        shares: list[Any] = []
        sizes: list[Any] = []
        for device in self._devices:
            for found, ask in ((shares, device.utilization), (sizes, device.used_bytes)):
                try:
                    found.append(ask())
                except nvml.NvmlError:
                    continue
        return sum(shares) / len(shares) if shares else None, max(sizes, default=None)

    def _read_always(self) -> None:
        while True:
            self._wanted.wait()
            time.sleep(self._interval)
            if self._wanted.is_set():
                reading = self.read()
                self._readings.append(reading)


@functools.cache
def meter() -> WorkMeter:
    """The meter of this process: of the devices on which its framework computes, which are looked for once."""
    return WorkMeter(nvml.devices(os.environ.get("CUDA_VISIBLE_DEVICES", "")) if framework.has_gpu() else [])
