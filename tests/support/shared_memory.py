"""The shared memory of the tests' servers: what a killed one leaves behind."""

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterable


def segment_of(path: pathlib.Path) -> str | None:
    """The System V segment that a postmaster.pid names; None without one."""
    with contextlib.suppress(OSError, IndexError):
        return path.read_text().splitlines()[6].split()[1]
    return None


def shared_memory(pids: Iterable[int]) -> set[str]:
    """The files of PostgreSQL in /dev/shm that these processes have mapped."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            words = pathlib.Path(f"/proc/{pid}/maps").read_text().split()
            found.update(word for word in words if word.startswith("/dev/shm/PostgreSQL."))
    return found


def remove_shared_memory(segments: Iterable[str], files: Iterable[str]) -> None:
    """Remove System V segments to which no process is attached, and files in /dev/shm."""
    with open("/proc/sysvipc/shm") as table:
        unused = {line.split()[1] for line in table.readlines()[1:] if line.split()[6] == "0"}
    for segment in unused & set(segments):
        subprocess.run(["ipcrm", "-m", segment], stderr=subprocess.DEVNULL)
    for path in files:
        with contextlib.suppress(OSError):
            os.unlink(path)
