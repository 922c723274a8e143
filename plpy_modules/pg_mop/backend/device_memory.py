"""How much memory this machine and its GPUs have."""

from __future__ import annotations

import functools
import os
import subprocess

from mop_udf.pool import pool

SMI = ("nvidia-smi", "--query-gpu=index,memory.total", "--format=csv,noheader,nounits")
SMI_SECONDS = 30


def found(gpus: int) -> dict[str, int | None]:
    """Bytes of this machine's "main" memory, and of the smallest "gpu" of so many that trainers can use; None: unknown."""
    return {"main": main_bytes(), "gpu": gpu_bytes() if gpus else None}


def main_bytes() -> int:
    """Bytes of this machine's main memory, or of this control group, where it may have less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = pool.memory_of_group()
    return whole if group is None else min(whole, group[0])


def gpu_bytes(number: int | None = None) -> int | None:
    """Bytes of a GPU's memory, None: of the GPU with the least; None where nvidia-smi does not tell."""
    sizes = _gpus()
    return sizes.get(number) if number is not None else min(sizes.values(), default=None)


@functools.lru_cache(1)
def _gpus() -> dict[int, int]:
    """{number of a GPU: bytes of its memory}, asked once in a session."""
    try:
        text = subprocess.run(SMI, capture_output=True, text=True, timeout=SMI_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return read(text)


def read(text: str) -> dict[int, int]:
    """{number: bytes} from the answer of nvidia-smi.

    >>> read("0, 81559\\n1, 81559\\n") == {0: 81559 << 20, 1: 81559 << 20}, read("No devices were found")
    (True, {})
    """
    sizes = {}
    for line in text.splitlines():
        number, _, megabytes = line.partition(",")
        if number.strip().isdigit() and megabytes.strip().isdigit():
            sizes[int(number)] = int(megabytes) << 20
    return sizes
