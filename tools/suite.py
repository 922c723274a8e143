#!/usr/bin/env python3
"""Run the tests: suite.py CIRCLE [OPTION ...], where CIRCLE is check, test, all, rest or third:NUMBER, or a path in tests/.

A test that fails is run once more, alone, after all others. If it passes then, it is *unsteady*: the summary names it, the
file /var/tmp/pg_mop_unsteady_<uid> keeps it for the next run of CI, and the run passes. A test that fails twice fails. A run
that did not come to its end (a worker of pytest died, -x) fails, and no test of it is run again.

All that the tests make is in one temporary directory. When the run has ended, however it has ended, this program ends the
processes that are left, and removes their shared memory and the directory. What a killed run has left is removed by the
next one. OPTIONS are pytest's, for the first run. The exit status is pytest's; 3, if the tests could not begin; 130 after
Ctrl-C.
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
from support.shared_memory import remove_shared_memory, segment_of, shared_memory  # noqa: E402

LEAST_FREE_MB = 2500  # the servers of three workers, with their write-ahead logs
MOST_AGAIN = 25  # with more failures, something is broken that no second try mends
PREFIX = "pg_mop_suite_"
UNSTEADY = pathlib.Path(os.environ.get("PG_MOP_UNSTEADY") or f"/var/tmp/pg_mop_unsteady_{os.getuid()}")
MOST_KEPT = 200  # lines of that file


class CannotBegin(Exception):
    """The reason why no test was run."""


def paths(circle):
    """The paths of a circle for pytest, whether they need servers, and whether they run side by side."""
    several = {"check": ["check"], "test": ["test", "check"], "rest": ["rest"], "all": ["rest", "test", "check"]}
    if circle in several:
        found = [path for one in several[circle] for path in circles.files(one)]
        return circles.long_first(found), circle != "check", True
    if circle.startswith("third:"):
        number = circle.removeprefix("third:")
        if not number.isdecimal():
            raise CannotBegin(f"third:NUMBER needs a whole number, not {number!r}")
        return circles.long_first(circles.third(int(number))), True, True
    return [circle], "PG_MOP_SUITE_HAS_NO_SERVER" not in os.environ, False


class Suite:
    """The directory, the environment and the processes of one run."""

    def __init__(self):
        self._clean_up_after_the_killed()
        new = pathlib.Path(tempfile.mkdtemp(prefix="pg_mop_new_", dir="/tmp"))
        self.lock = open(new / "lock", "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        # (under this name another run would take an unlocked directory for one of a killed run)
        self.home = new.rename(new.with_name(new.name.replace("pg_mop_new_", PREFIX)))
        self.running = self.stopped = None
        self.environment = {**os.environ, "PG_MOP_SUITE": str(self.home), "TMPDIR": str(self.home)}

    def __enter__(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)
        return self

    def __exit__(self, *_):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the end is not interrupted
        clean(self.home)

    def _stop(self, number, _):
        """Ctrl-C: pytest ends its fixtures; a second Ctrl-C does not wait for them."""
        again, self.stopped = self.stopped is not None, number
        if self.running is not None and self.running.returncode is None:
            if again:
                os.killpg(self.running.pid, signal.SIGKILL)
            else:
                self.running.send_signal(signal.SIGINT)

    def pytest(self, *arguments):
        """Run pytest in a process group of its own. Returns its exit status, {test: "passed" or "failed"}, and the reason why
        the run has not come to its end, or None."""
        notes = self.home / "notes"
        notes.unlink(missing_ok=True)
        if self.stopped is not None:
            return 130, {}, "stopped"
        self.running = subprocess.Popen(
            [
                sys.executable,
                "-B",
                ROOT / "tools" / "noted_pytest.py",
                notes,
                f"--basetemp={self.home}/pytest",
                *arguments,
            ],
            cwd=ROOT,
            env=self.environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        status = self.running.wait()
        if self.stopped is not None:
            return 130, {}, "stopped"
        try:
            return status, *json.loads(notes.read_text())
        except FileNotFoundError:
            return status or 1, {}, f"pytest ended with status {status} before its end"

    @staticmethod
    def _clean_up_after_the_killed():
        for home in pathlib.Path("/tmp").glob(PREFIX + "*"):
            try:
                if home.is_symlink() or home.stat().st_uid != os.getuid():
                    continue
                with open(home / "lock") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    clean(home)
            except OSError:  # its run goes on
                continue


def processes_of(home):
    """The process IDs of what a run has started: by their environment, their directory or the path of their program."""
    found, mark = [], os.fsencode(home)
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            process = pathlib.Path("/proc", entry)
            words, settings = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
            inside = os.readlink(process / "cwd").startswith(f"{home}/")
        except OSError:  # the process has ended, or is another user's
            continue
        own = inside or b"PG_MOP_SUITE=" + mark in settings or words[0].startswith(mark + b"/")
        if own and int(entry) != os.getpid():
            found.append(int(entry))
    return found


def clean(home):
    """End the processes of a run, and remove their shared memory and the run's directory."""
    shared = shared_memory(processes_of(home))
    segments = [segment for path in home.glob("*/data/postmaster.pid") if (segment := segment_of(path)) is not None]
    for wait, number in ((10, signal.SIGQUIT), (10, signal.SIGKILL)):
        for pid in processes_of(home):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        end = time.monotonic() + wait
        while processes_of(home) and time.monotonic() < end:
            time.sleep(0.1)
    remove_shared_memory(segments, shared)  # (of postmasters that were killed; the others remove it themselves)
    shutil.rmtree(home, ignore_errors=True)


def check_the_machine(suite, servers):
    """Raises CannotBegin where the tests would fail one by one for a reason of the machine."""
    if not servers:
        return
    free = shutil.disk_usage("/tmp").free >> 20
    if free < LEAST_FREE_MB:
        raise CannotBegin(f"/tmp has {free} MB free, and the tests need {LEAST_FREE_MB} MB")
    begin = "from support.cluster import Cluster\nwith Cluster() as cluster:\n    print(cluster.port)"
    tried = subprocess.run(
        [sys.executable, "-B", "-c", begin],
        env={**suite.environment, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    if tried.returncode:
        raise CannotBegin("PostgreSQL does not start for the tests:\n" + tried.stderr.strip()[-2000:])


def disk_is_full():
    return shutil.disk_usage("/tmp").free < 100 << 20


def note_unsteady(names):
    """Print the unsteady tests, and keep them for the next run of CI."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    names = {name.removeprefix(f"{ROOT}/") for name in names}
    lines = [f"{datetime.datetime.now():%Y-%m-%d %H:%M} {commit.strip()} {name}" for name in sorted(names)]
    print(f"\n{len(names)} unsteady: failed among the others, passed alone (kept in {UNSTEADY})")
    print("\n".join(f"unsteady: {name}" for name in sorted(names)))
    with contextlib.suppress(OSError):
        kept = UNSTEADY.read_text().splitlines() if UNSTEADY.exists() else []
        UNSTEADY.write_text("\n".join([*kept, *lines][-MOST_KEPT:]) + "\n")


def run(suite, circle, options):
    where, servers, several = paths(circle)
    if not where:
        print(f"{circle}: no test files")
        return 0
    check_the_machine(suite, servers)
    if any("thorough" in word for word in [*where, *options]) or circle == "all":
        suite.environment["PG_MOP_THOROUGH"] = "1"
    status, outcomes, unfinished = suite.pytest(*(circles.SIDE_BY_SIDE if several else []), *options, *where)
    if suite.stopped is not None:
        return 130
    if unfinished:
        print(f"\nThe run has not come to its end: {unfinished}. No test is run again.")
        return status or 1
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    if status and disk_is_full():
        print("\nThe disk of /tmp is full. The failures above may be its fault, and no test is run again.")
        return status
    if status != 1 or not failed:
        return status
    if len(failed) > MOST_AGAIN:
        print(f"\n{len(failed)} tests have failed, more than {MOST_AGAIN}: none of them is run again.")
        return status
    print(f"\nThe failed tests are run once more, alone: {len(failed)}", flush=True)
    status, again, _ = suite.pytest(*sorted(failed))
    if suite.stopped is not None:
        return 130
    unsteady = {name for name in failed if again.get(name) == "passed"}
    if unsteady:
        note_unsteady(unsteady)
    return 0 if unsteady == failed else status or 1


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
