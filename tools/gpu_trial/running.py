"""The place of a trial, its unprivileged user, and its steps as processes of that user."""

import contextlib
import datetime
import grp
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

import folder
import table
from steps import BENCH, FRAMEWORKS

ROOT = pathlib.Path(__file__).resolve().parents[2]
USER = "postgres"  # if the trial is started by root
LEFT_OUT = (".git", ".local", "build", "__pycache__", ".ruff_cache", ".mypy_cache", ".hypothesis")
TESTS = "tests/thorough/engines/test_on_gpu.py"
SELECTED = {  # step -> what pytest's option -k selects
    "jax": "TestOnGpu and jax",
    "torch": "TestOnGpu and torch",
    "shared": "two_segments",
    "killed": "killed_trainer_leaves",
}


class CannotRun(Exception):
    """The trial, or one of its steps, cannot run; the text says why."""


class StepFailed(Exception):
    """A step failed; `said`: the lines of its result."""

    def __init__(self, said):
        super().__init__("; ".join(said))
        self.said = said


class NotRun(StepFailed):
    """A step does not apply to this machine; `said`: why."""


class Trial:
    """The trial's directory `place`, with the copy `tree` of this checkout, and its results."""

    def __init__(self):
        self.place = pathlib.Path(os.environ.get("TRIAL", "/var/tmp/pg_mop_gpu")).absolute()
        self.tree, self.pg, self.logs = self.place / "tree", self.place / "pg", self.place / "logs"
        self.home, self.carried = self.tree / ".local" / "venv", self.place / "folder"
        self.python, self.limit = sys.executable, float(os.environ.get("LIMIT", 540))
        self.user = USER if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name

    def prepare(self):
        """Make the directories, the user if root has none, and a copy of the checkout and the folder. Raises CannotRun."""
        if os.getuid() == 0:
            _make_user(self.user)
        for path in (self.place, self.logs, self.place / "results", self.place / "home"):
            path.mkdir(parents=True, exist_ok=True)
        self._end_former_step()
        if folder.place().is_dir():
            shutil.copytree(folder.place(), self.carried, dirs_exist_ok=True)
        elif not self.carried.is_dir():
            raise CannotRun(
                f"there is no folder {folder.place()}: gpu_trial.sh folder, on a machine with network, makes it"
            )
        for package in self.carried.glob("*.deb") if shutil.which("dpkg-deb") else ():
            subprocess.run(["dpkg-deb", "-x", package, self.carried / "unpacked"], check=True)
        self.tree.mkdir(exist_ok=True)
        for path in self.tree.iterdir():  # what was built stays
            if path.name not in LEFT_OUT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(ROOT, self.tree, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LEFT_OUT, "*.egg-info"))
        if os.getuid() == 0:
            subprocess.run(["chown", "-R", self.user, self.place], check=True)
        self.place.chmod(0o755)
        if self.ask("test", "-r", str(self.tree / "Makefile"))[0]:
            raise CannotRun(f"the user {self.user} cannot read {self.tree}: choose another directory by TRIAL=...")

    def as_user(self):
        """Arguments of subprocess for a program of the trial's user."""
        if os.getuid():
            return {}
        group = pwd.getpwnam(self.user).pw_gid
        return {"user": self.user, "group": group, "extra_groups": os.getgrouplist(self.user, group)}

    def environment(self, **more):
        """A step's environment."""
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
        return {
            "PATH": f"{os.path.dirname(self.python)}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.place / "home"),
            "LANG": "C.UTF-8",
            "PG_MOP_GPU_TRIAL": "1",
            **kept,
            **more,
        }

    def ask(self, *words, clean=False):
        """Run a short program as the trial's user: (exit status, what it printed). `clean`: as a trainer's environment."""
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"} if clean else self.environment()
        try:
            done = subprocess.run(
                words,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd="/",
                env=environment,
                timeout=120,
                **self.as_user(),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return 1, str(error)
        return done.returncode, done.stdout.strip()

    def do(self, log, words, **more):
        """Run a program of a step in the tree, with its output in a log. Raises StepFailed with the log's end."""
        path = self.logs / f"{log}.log"
        with open(path, "ab") as output:
            output.write(f"\n$ {' '.join(map(str, words))}\n".encode())
            output.flush()
            process = subprocess.Popen(
                list(map(str, words)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.tree,
                env=self.environment(**more),
                start_new_session=True,
                **self.as_user(),
            )
            (self.place / "process").write_text(str(process.pid))
            try:
                status = process.wait(max(1, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = None
                os.killpg(process.pid, signal.SIGINT)  # pytest and the benchmark stop their servers
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self.end_servers()
        if status != 0:
            why = f"ended with {status}" if status is not None else f"did not end within {self.limit:.0f} s (LIMIT)"
            raise StepFailed([f"{why} ({path})", *_end_of(path)])

    def _end_former_step(self):
        """Kill the processes of a trial that was killed itself: a step is a session of its own, and would run on."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.place / "process").read_text())
            if str(self.place).encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                os.killpg(pid, signal.SIGKILL)
        self.end_servers()

    def end_servers(self):
        """Kill processes that a step has left: all whose program is the trial's PostgreSQL or virtual environment."""
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
                if command.startswith((f"{self.pg}/", f"{self.home}/")):
                    os.kill(int(pid), signal.SIGKILL)

    def record(self, step, call):
        """Do a step by `call()`, which returns the lines of its result, and write the result."""
        print(f"== {step}", flush=True)
        (self.logs / f"{step}.log").unlink(missing_ok=True)
        began = time.monotonic()
        self.deadline = began + self.limit
        try:
            status, said = table.PASSED, call()
        except NotRun as error:
            status, said = table.NOT_RUN, error.said
        except StepFailed as error:
            status, said = table.FAILED, error.said
        except Exception as error:  # the other steps go on, and the table names this one
            status, said = table.FAILED, [f"{type(error).__name__}: {error}"]
        result = {"status": status, "said": said, "seconds": time.monotonic() - began}
        (self.place / "results" / f"{step}.json").write_text(json.dumps(result))
        print("\n".join([f"{step}: {status}, {result['seconds']:.0f} s", *(f"  {line}" for line in said)]), flush=True)

    def write(self, name, value):
        """Keep a value for later steps and for the table."""
        (self.place / "results" / f"_{name}.json").write_text(json.dumps(value))

    def read(self, name, default):
        """A value that `write` has kept."""
        path = self.place / "results" / f"_{name}.json"
        return json.loads(path.read_text()) if path.exists() else default

    def kept(self):
        """(results of steps, facts, figures of the benchmarks), as of the last time that each was made."""
        paths = (self.place / "results").glob("[a-z]*.json")
        results = {path.stem: json.loads(path.read_text()) for path in paths}
        figures = {}
        for path in (self.place / f"figures-{step}.json" for step in BENCH):
            figures.update(json.loads(path.read_text()) if path.exists() else {})
        return results, self.read("facts", {}), figures


def run(trial, step):
    """Run a step of tests or of the benchmark: the lines of its result. Raises StepFailed and NotRun."""
    known = trial.read("frameworks", None)
    if known is None:
        raise NotRun(["the step look has not run"])
    if not (trial.tree / ".local" / "built").exists():
        raise NotRun(["the step build has not passed"])
    if step in FRAMEWORKS and step not in known:
        raise NotRun([f"{FRAMEWORKS[step]} is not installed"])
    if step == "vmap" and "jax" not in known:
        raise NotRun(["only JAX has this kernel, and it is not installed"])
    used = {"jax": ["jax"], "torch": ["torch"], "vmap": ["jax"]}.get(step, known)
    where = [f"{FRAMEWORKS[name]} on {known[name]}" for name in used]
    if step in SELECTED:
        return [*where, *_tests(trial, step)]
    share = os.environ.get("SHARE", "1" if trial.read("gpu", False) else "0.1")
    output = trial.place / f"figures-{step}.json"
    output.unlink(missing_ok=True)
    words = [trial.home / "bin" / "python", "-B", "benchmarks/on_gpu.py", "--share", share, output, step]
    trial.do(step, words)
    return [*where, *([f"with a share of {share} of the rows, to try the step"] if share != "1" else [])]


def _tests(trial, step):
    report = trial.place / f"tests-{step}.xml"
    report.unlink(missing_ok=True)
    words = [trial.home / "bin" / "python", "-B", "-m", "pytest", "-q", "-rfEs", f"--junitxml={report}"]
    failure = None
    try:
        trial.do(step, [*words, "-k", SELECTED[step], TESTS])
    except StepFailed as error:
        failure = error
    if not report.exists():
        raise failure or StepFailed(["pytest has written no report"])
    passed, failed, skipped, properties = read_report(report.read_text())
    said = [f"{passed} passed, {len(failed)} failed, {len(skipped)} not run", *properties]
    said += [f"{name}: {why}" for name, why in [*failed.items(), *skipped.items()]]
    if failure or failed:
        raise StepFailed(said if failed else [*said, *failure.said])
    if not passed:
        raise NotRun(said)
    return said


def read_report(text):
    """(passed tests, {failed test: line of its message}, {skipped test: reason}, lines of properties) of a JUnit file."""
    root, passed, failed, skipped = xml.etree.ElementTree.fromstring(text), 0, {}, {}
    for case in root.iter("testcase"):
        bad, left_out = case.find("failure"), case.find("skipped")
        bad = case.find("error") if bad is None else bad
        name = case.get("name")
        if bad is not None:
            failed[name] = (bad.get("message") or "").strip().split("\n")[0][:300]
        elif left_out is not None:
            skipped[name] = (left_out.get("message") or "").strip()
        else:
            passed += 1
    return passed, failed, skipped, [f"{p.get('name')}: {p.get('value')}" for p in root.iter("property")]


def _end_of(path, most=4):
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(error: |FAILED |ERROR |E  )|.*\b[Ee]rror:", line)]
    return [line[:300] for line in (told or lines)[-most:]]


def _make_user(name):
    try:
        pwd.getpwnam(name)
    except KeyError:
        done = subprocess.run(
            ["useradd", "--system", "--no-create-home", "--shell", "/bin/sh", name], capture_output=True, text=True
        )
        if done.returncode:
            raise CannotRun(f"the user {name} cannot be made: {done.stderr.strip()}") from None
    for device in pathlib.Path("/dev").glob("nvidia*"):
        status = device.stat()
        if not device.is_dir() and status.st_mode & 0o006 != 0o006 and status.st_mode & 0o060 == 0o060:
            subprocess.run(["usermod", "-aG", grp.getgrgid(status.st_gid).gr_name, name], check=True)


def today():
    """The date, for the table."""
    return datetime.date.today().isoformat()
