#!/usr/bin/env python3
"""Run a command on a machine that stands still: freeze.py COMMAND ..., as root.

All processes of the command, and all that they start, are in one control group. This program stops the group for 3 to 8
seconds every 15 to 35 seconds, as a busy host stops a virtual machine. SEED=7 repeats the times.
"""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time


class Group:
    """A control group with a freezer, of the second version or of the first."""

    def __init__(self, name):
        for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            if pathlib.Path(top, "cgroup.controllers").exists():
                self.home = pathlib.Path(top, name)
                self.file, self.words = "cgroup.freeze", ("0", "1")
                break
        else:
            self.home = pathlib.Path("/sys/fs/cgroup/freezer", name)
            self.file, self.words = "freezer.state", ("THAWED", "FROZEN")
        try:
            self.home.mkdir()
        except OSError as error:
            sys.exit(f"no control group can be made ({error}): run this as root, where Linux has its freezer")

    def join(self):
        """Put the calling process into the group."""
        (self.home / "cgroup.procs").write_text(str(os.getpid()))

    def freeze(self, stop):
        (self.home / self.file).write_text(self.words[stop])

    def end(self):
        self.freeze(False)
        for pid in (self.home / "cgroup.procs").read_text().split():
            pathlib.Path("/proc", pid).exists() and os.kill(int(pid), 9)
        for _ in range(100):
            try:
                return self.home.rmdir()
            except OSError:  # a process is on its way out
                time.sleep(0.1)
        print(f"a process is left in {self.home}", file=sys.stderr)


def main(command):
    chance, group = random.Random(os.environ.get("SEED")), Group(f"pg_mop_freeze_{os.getpid()}")
    stops, still, running = 0, 0.0, None

    def stop(*_):
        """Ctrl-C: the command ends in order, on a machine that goes on."""
        group.freeze(False)
        if running is not None:
            running.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(60)
        sys.exit(130)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        running = subprocess.Popen(command, preexec_fn=group.join, start_new_session=True)
        while True:
            try:
                running.wait(chance.uniform(15, 35))
                break
            except subprocess.TimeoutExpired:
                pass
            seconds = chance.uniform(3, 8)
            group.freeze(True)
            time.sleep(seconds)
            group.freeze(False)
            stops, still = stops + 1, still + seconds
        print(f"the machine stood still {stops} times, {still:.0f} s together")
        return running.returncode
    finally:
        group.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if sys.argv[1:] else __doc__)
