"""The present utilization and memory of GPUs, by NVIDIA's management library (NVML), which the GPU driver installs.

Four functions are enough, so no package is needed: nvidia-ml-py is such a layer of ctypes over all of the library, and would
be one more package in the directory of each server. The library's reference: https://docs.nvidia.com/deploy/nvml-api.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SUCCESS, FUNCTION_NOT_FOUND = 0, 13  # codes of nvmlReturn_t
MOST_DEVICES = 1 << 16  # a larger number is none of a device


class NvmlError(Exception):
    """The library has refused a call. `code`: its nvmlReturn_t."""

    def __init__(self, function: str, code: int, text: str):
        super().__init__(f"{function}: {text} (code {code})")
        self.code = code


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the last sample period (1/6 to 1 second) in which kernels ran, and in which memory was
    read or written."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """The library, initialized once. Its functions may be called from any thread."""

    def __init__(self, path: str = LIBRARY):
        """Raises OSError without the library, NvmlError without a driver that works, and for another library."""
        self._library = ctypes.CDLL(path)
        self._function("nvmlErrorString").restype = ctypes.c_char_p
        self._call("nvmlInit_v2")

    def device(self, name: str) -> "Device":
        """The device with a number (in the order of PCI bus ids, as nvidia-smi's) or a UUID, as CUDA_VISIBLE_DEVICES has it.

        Raises NvmlError for an unknown one.
        """
        handle = ctypes.c_void_p()
        if name.isdecimal() and int(name) < MOST_DEVICES:
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(name.encode()), ctypes.byref(handle))
        return Device(self._call, handle)

    def _call(self, name: str, *arguments: object) -> None:
        """Call a function. Raises NvmlError for any code but success."""
        code = self._function(name)(*arguments)
        if code != SUCCESS:
            text = self._library.nvmlErrorString(code)
            raise NvmlError(name, code, text.decode(errors="replace") if text else "unknown error")

    def _function(self, name: str) -> Any:
        try:
            return getattr(self._library, name)
        except AttributeError:
            raise NvmlError(name, FUNCTION_NOT_FOUND, "the library has no such function") from None


class Device:
    """A GPU, or a part of one (MIG), which the library knows without its utilization."""

    def __init__(self, call: Callable[..., None], handle: ctypes.c_void_p):
        self._call, self._handle = call, handle

    def utilization(self) -> float:
        """The part (0 to 1) of the last sample period in which kernels of any process ran. Raises NvmlError."""
        found = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(found))
        return found.gpu / 100

    def used_bytes(self) -> int:
        """The memory that all processes use, in bytes. Raises NvmlError."""
        found = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(found))
        return found.used


def devices(visible: str, path: str = LIBRARY) -> Sequence[Device]:
    """The devices that CUDA_VISIBLE_DEVICES names ("0", "1,2", "GPU-...", ""); none without the library, without a driver that
    works, and where the library does not know one of them."""
    names = [name.strip() for name in visible.split(",")]
    if not visible or "-1" in names:
        return []
    try:
        library = Nvml(path)
        return [library.device(name) for name in names]
    except (OSError, NvmlError):
        return []
