"""Memory and writes of all processes of this user, from /proc."""

import itertools
import os
import threading
import time


class Watch:
    """A context manager that measures the processes that begin within its block.

    Afterwards, `peak_bytes` is the memory of the largest process. `together_bytes` is the memory of all processes, with
    shared memory counted once (proportional set size). `written_bytes` counts the bytes that all processes have sent to
    the disk. The samples are 0.1 s apart (`together_bytes`: 0.5 s), so that they miss the last moments of a process.
    """

    def __enter__(self):
        self.before = {pid: written for pid, (_, written) in _processes().items()}
        self.peak, self.last, self.together_bytes = {}, {}, 0
        self.going = True
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.going = False
        self.thread.join()
        self.peak_bytes = max(self.peak.values(), default=0)
        self.written_bytes = sum(w - self.before.get(pid, 0) for pid, w in self.last.items())

    def _look(self):
        for number in itertools.count():
            if not self.going:
                return
            if number % 5 == 0:
                self.together_bytes = max(self.together_bytes, sum(map(proportional_bytes, self.peak)))
            for pid, (peak, written) in _processes().items():
                if pid not in self.before:
                    self.peak[pid] = peak
                self.last[pid] = written
            time.sleep(0.1)


def _processes():
    """{pid: (highest resident bytes, bytes written)} of this user's processes."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid != os.getuid():
                continue
            with open(f"/proc/{pid}/status") as status:
                peak = next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")), 0)
            with open(f"/proc/{pid}/io") as io:
                written = next(int(line.split()[1]) for line in io if line.startswith("write_bytes"))
        except OSError:  # the process has ended
            continue
        found[int(pid)] = (peak, written)
    return found


def proportional_bytes(pid):
    """The memory of a process in bytes, with its share of shared memory; 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0
