#!/usr/bin/env python3
"""Run the tests: suite.py CIRCLE [OPTION ...], where CIRCLE is check, test, all, rest or third:NUMBER, or a path in tests/.

A test that fails is run once more, alone, after all others. If it passes then, it is *unsteady*: the summary names it, the
file /var/tmp/pg_mop_unsteady_<uid> keeps it for the next run of CI, and the run passes. A test that fails twice fails.

All that the tests make is in one temporary directory. When the run has ended, however it has ended, this program ends the
processes that are left, and removes their shared memory and the directory. What a killed run has left is removed by the
next one. OPTIONS are pytest's. The exit status is pytest's; 3, if the tests could not begin; 130 after Ctrl-C.
"""

import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support import circles  # noqa: E402

# three at a time on two cores: most tests wait for half of their time
SIDE_BY_SIDE = ["-n", "3", "--dist", "loadfile"]
LEAST_FREE_MB = 2500  # the servers of three workers, with their write-ahead logs
MOST_AGAIN = 25  # with more failures, something is broken that no second try mends
PREFIX = "pg_mop_suite_"
UNSTEADY = pathlib.Path(os.environ.get("PG_MOP_UNSTEADY") or f"/var/tmp/pg_mop_unsteady_{os.getuid()}")
MOST_KEPT = 200  # lines of that file


class CannotBegin(Exception):
    """The reason why no test was run."""


def paths(circle):
    """The paths of a circle for pytest, and whether they need servers."""
    if circle == "all":
        return [str(circles.TESTS)], True
    if circle in ("check", "test"):
        rooms = circles.CIRCLES["check"] + (circles.CIRCLES["test"] if circle == "test" else [])
        return [str(circles.TESTS / room) for room in rooms], circle == "test"
    if circle == "rest":
        return list(map(str, circles.files("rest"))), True
    if circle.startswith("third:"):
        return list(map(str, circles.third(int(circle.removeprefix("third:"))))), True
    return [circle], "PG_MOP_SUITE_HAS_NO_SERVER" not in os.environ


class Suite:
    """The directory, the environment and the processes of one run."""

    def __init__(self):
        self._clean_up_after_the_killed()
        new = pathlib.Path(tempfile.mkdtemp(prefix="pg_mop_new_", dir="/tmp"))
        self.lock = open(new / "lock", "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        # (under this name another run would take an unlocked directory for one of a killed run)
        self.home = new.rename(new.with_name(new.name.replace("pg_mop_new_", PREFIX)))
        self.began, self.stopped = time.time(), None
        self.environment = {**os.environ, "PG_MOP_SUITE": str(self.home), "TMPDIR": str(self.home)}

    def __enter__(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)
        return self

    def __exit__(self, *_):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the end is not interrupted
        clean(self.home, self.began)

    def _stop(self, number, _):
        """Ctrl-C: pytest ends its fixtures; a second Ctrl-C does not wait for them."""
        again, self.stopped = self.stopped is not None, number
        if (running := getattr(self, "running", None)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL) if again else os.kill(running.pid, signal.SIGINT)

    def pytest(self, *arguments):
        """Run pytest in a process group of its own, and return its exit status."""
        command = [sys.executable, "-B", "-m", "pytest", "-o", f"cache_dir={self.home}/cache"]
        self.running = subprocess.Popen(
            [*command, f"--basetemp={self.home}/pytest", *arguments],
            cwd=ROOT,
            env=self.environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        while True:
            with contextlib.suppress(InterruptedError):
                return self.running.wait()

    def failed(self):
        """The tests that have failed and have not passed since, as pytest names them."""
        try:
            return set(json.loads((self.home / "cache" / "v" / "cache" / "lastfailed").read_text()))
        except FileNotFoundError:
            return set()

    @staticmethod
    def _clean_up_after_the_killed():
        for home in pathlib.Path("/tmp").glob(PREFIX + "*"):
            try:
                with open(home / "lock") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    clean(home, home.stat().st_ctime)
            except OSError:  # its run goes on, or another user's
                continue


def processes_of(home):
    """The process IDs of what a run has started: by their environment, directory or command line."""
    found, mark = [], os.fsencode(home)
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        if int(entry) == os.getpid():
            continue
        try:
            seen = os.fsencode(os.readlink(f"/proc/{entry}/cwd"))
            for name in ("cmdline", "environ"):
                seen += b"\0" + pathlib.Path("/proc", entry, name).read_bytes()
        except OSError:  # the process has ended, or is another user's
            continue
        if mark in seen:
            found.append(int(entry))
    return found


def clean(home, began):
    """End the processes of a run, and remove their shared memory and the run's directory."""
    postmasters = {}
    for path in home.glob("*/data/postmaster.pid"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            lines = path.read_text().splitlines()
            postmasters[int(lines[0])] = lines[6].split()[1]
    for wait, number in ((10, signal.SIGQUIT), (10, signal.SIGKILL)):
        for pid in processes_of(home):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        end = time.monotonic() + wait
        while processes_of(home) and time.monotonic() < end:
            time.sleep(0.1)
    for segment in postmasters.values():  # (a postmaster that was killed has not removed it)
        subprocess.run(["ipcrm", "-m", segment], stderr=subprocess.DEVNULL)
    mapped = set()
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped.update(word for word in maps.read_text().split() if word.startswith("/dev/shm/"))
    for path in pathlib.Path("/dev/shm").glob("PostgreSQL.*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and path.stat().st_mtime >= began and str(path) not in mapped:
                path.unlink()
    shutil.rmtree(home, ignore_errors=True)


def check_the_machine(suite, servers):
    """Raises CannotBegin where the tests would fail one by one for a reason of the machine."""
    free = shutil.disk_usage("/tmp").free >> 20
    if free < LEAST_FREE_MB:
        raise CannotBegin(f"/tmp has {free} MB free, and the tests need {LEAST_FREE_MB} MB")
    if not servers:
        return
    begin = "from support.cluster import Cluster\nwith Cluster() as cluster:\n    print(cluster.port)"
    tried = subprocess.run(
        [sys.executable, "-B", "-c", begin],
        env={**suite.environment, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        raise CannotBegin("PostgreSQL does not start for the tests:\n" + tried.stderr.strip()[-2000:])


def disk_is_full():
    return shutil.disk_usage("/tmp").free < 100 << 20


def note_unsteady(names):
    """Print the unsteady tests, and keep them for the next run of CI."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    lines = [f"{datetime.datetime.now():%Y-%m-%d %H:%M} {commit.strip()} {name}" for name in sorted(names)]
    print(f"\n{len(names)} unsteady: failed among the others, passed alone (kept in {UNSTEADY})")
    print("\n".join(f"unsteady: {name}" for name in sorted(names)))
    with contextlib.suppress(OSError):
        kept = UNSTEADY.read_text().splitlines() if UNSTEADY.exists() else []
        UNSTEADY.write_text("\n".join([*kept, *lines][-MOST_KEPT:]) + "\n")


def run(suite, circle, options):
    where, servers = paths(circle)
    if not where:
        print(f"{circle}: no test files")
        return 0
    check_the_machine(suite, servers)
    if circle in ("all", "rest") or circle.startswith("third:"):
        suite.environment["PG_MOP_THOROUGH"] = "1"
    several = circle in ("check", "test", "all", "rest") or circle.startswith("third:")
    status = suite.pytest(*(SIDE_BY_SIDE if several else []), *options, *where)
    failed = suite.failed()
    if suite.stopped is not None:
        return 130
    if status and disk_is_full():
        print("\nThe disk of /tmp is full. The failures above may be its fault, and no test is run again.")
        return status
    if status != 1 or not failed:
        return status
    if len(failed) > MOST_AGAIN:
        print(f"\n{len(failed)} tests have failed, more than {MOST_AGAIN}: none of them is run again.")
        return status
    print(f"\nThe failed tests are run once more, alone: {len(failed)}", flush=True)
    status = suite.pytest("--lf", "--lfnf=none", *options, *where)
    if suite.stopped is not None:
        return 130
    if unsteady := failed - suite.failed():
        note_unsteady(unsteady)
    return status


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with Suite() as suite:
        try:
            return run(suite, sys.argv[1], sys.argv[2:])
        except CannotBegin as reason:
            print(f"The tests cannot begin: {reason}", file=sys.stderr)
            return 3


if __name__ == "__main__":
    sys.exit(main())
