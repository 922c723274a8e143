"""Memory and writes of everything that this user runs on the machine, from /proc."""

import itertools
import os
import threading
import time


class Watch:
    """Context manager; afterwards `peak_bytes`, of the largest process that began within it, `together_bytes`, of all
    that began within it, what they share counted once (proportional set size), and `written_bytes`, what all processes
    sent to the disk meanwhile. Looks every 0.1 s, at what they hold together every 0.5 s: what a process did in its
    last moments is missed.
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
                self.together_bytes = max(self.together_bytes, sum(map(_proportional, self.peak)))
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
        except OSError:  # it has ended
            continue
        found[int(pid)] = (peak, written)
    return found


def _proportional(pid):
    """Bytes that a process holds, of what it shares with others its part; 0 where it has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0
