"""A PostgreSQL of the tests' own: it can be killed as by a power failure, filled up, or have its clock set back."""

import atexit
import functools
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import psycopg2

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOCAL = ROOT / ".local"
if "PYTEST_XDIST_WORKER" in os.environ:  # others run tests beside it: `trainers` is to count its own alone
    LOCAL = pathlib.Path(tempfile.mkdtemp(prefix="pg_mop_stream_"))
    atexit.register(shutil.rmtree, LOCAL, ignore_errors=True)
HOME = LOCAL / "venv"  # where the extension finds its packages
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


@functools.cache
def programs():
    """The directory of PostgreSQL's programs that have the extension of this checkout."""
    if not HOME.exists():
        HOME.symlink_to(ROOT / ".local" / "venv")
        found = run_text(ROOT / "tools" / "private_root.sh", LOCAL / "pgroot")
        into = run_text(f"{found}/pg_config", "--sharedir") + "/extension"
        shutil.copy(ROOT / "pg_mop.control", into)
        run_text(
            sys.executable,
            "-B",
            ROOT / "tools" / "build_sql.py",
            HOME,
            into,
            *(ROOT / "tests" / "upgrade" / "versions").glob("*.sql"),
        )
        (LOCAL / "bindir").write_text(found)
    return pathlib.Path((LOCAL / "bindir").read_text().strip())


def client_program(name):
    """The path of one of PostgreSQL's programs for clients: a checkout has none of its own."""
    return f"{run_text(ROOT / 'tools' / 'postgres.sh', 'bin')}/{name}"


def run_text(*command):
    """What a program writes."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Cluster:
    """A running cluster of this checkout's programs under a temporary directory `home`; `log` is its log file.

    `settings`: its postgresql.conf; by default without fsync, and with both doors, TCP on 127.0.0.1 and a socket. Runs
    train anew what earlier ones have trained: most tests are of training.
    `small_mb`: mounts a disk of that size at `small`; `clock`: its clock is what set_clock says.
    """

    def __init__(self, small_mb=None, clock=False, **settings):
        self.bin = programs()
        self.temporary = tempfile.TemporaryDirectory(prefix="pg_mop_", dir="/tmp", ignore_cleanup_errors=True)
        self.home = pathlib.Path(self.temporary.name)
        self.data, self.small, self.log = self.home / "data", self.home / "small", self.home / "log"
        self.small.mkdir()
        self.process = self.password = None
        self.port = free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.home,
            "port": self.port,
            "fsync": "off",
            "logging_collector": "off",
            "pg_mop.reuse": "off",
            **settings,
        }
        self.host = settings["listen_addresses"] or settings["unix_socket_directories"]
        subprocess.run(
            [
                self.bin / "initdb",
                "-D",
                self.data,
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
            ],
            check=True,
            capture_output=True,
        )
        with open(self.data / "postgresql.conf", "a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self.command = [self.bin / "postgres", "-D", self.data]
        if small_mb:
            # root in a namespace of users mounts the disk; within a second one the server is nobody's root again
            self.command = [
                "unshare",
                "-Urm",
                "sh",
                "-c",
                f"mount -t tmpfs -o size={small_mb}m none {self.small} && "
                f'exec unshare -U --map-user={os.getuid()} --map-group={os.getgid()} "$@"',
                "sh",
                *self.command,
            ]
        self.environment = dict(os.environ)
        if clock:
            self.set_clock("+0s")
            self.environment.update(
                LD_PRELOAD=FAKETIME,
                FAKETIME_TIMESTAMP_FILE=str(self.home / "clock"),
                FAKETIME_NO_CACHE="1",
                FAKETIME_DONT_FAKE_MONOTONIC="1",
                DONT_FAKE_MONOTONIC="1",
            )
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def dsn(self):
        """psycopg2.connect's parameters for the superuser."""
        return {
            "host": str(self.host),
            "port": self.port,
            "user": "postgres",
            "database": "postgres",
            **({"password": self.password} if self.password else {}),
        }

    def start(self):
        """Start the server and wait until it lets sessions in."""
        with open(self.log, "ab") as log:
            # in a session of its own: Ctrl-C is for the tests, which look at the server before they end it
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        eventually(lambda: self._answers() or self.process.poll() is not None, 60)
        if not self._answers():
            self.kill()
            raise AssertionError(f"the server does not start: {self.said()[-2000:]}")

    def _answers(self):
        try:
            psycopg2.connect(**self.dsn()).close()
            return True
        except psycopg2.OperationalError:
            return False

    def said(self):
        """Everything that the server has written into its log, at all of its starts."""
        return self.log.read_text(errors="replace")

    def processes(self):
        """Process ids of the server's processes, found by where they work."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/cwd") == str(self.data):
                    found.append(int(entry))
            except OSError:  # it has ended, or is somebody else's
                continue
        return found

    def kill(self):
        """SIGKILL to the postmaster and all of its children, as when the power fails."""
        for pid in (self.process.pid, *self.processes()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._wait()

    def end(self, number):
        """Send the postmaster a signal that ends it, and wait until all of its processes have ended."""
        self.process.send_signal(number)
        self._wait()

    def _wait(self):
        self.process.wait(30)
        assert eventually(lambda: not self.processes() and not self._attached(), 30), (
            "backends outlive their postmaster"
        )

    def _attached(self):
        """How many processes hold the shared memory by which a server finds out that one before it still runs. A killed
        backend with threads (numpy's) does for a moment after it has left its directory."""
        try:
            number = (self.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
        except (FileNotFoundError, IndexError):  # it has ended in order, or had not begun
            return 0
        with open("/proc/sysvipc/shm") as file:
            held = [line.split() for line in file.readlines()[1:]]
        return sum(int(line[6]) for line in held if line[1] == number)

    def stop(self):
        """End the server and remove its files."""
        try:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self.temporary.cleanup()

    def passwords(self, password):
        """From now on everybody needs a password; that of postgres is `password`."""
        with psycopg2.connect(**self.dsn()) as connection, connection.cursor() as cursor:
            cursor.execute("ALTER ROLE postgres PASSWORD %s", [password])
            (self.data / "pg_hba.conf").write_text(
                "local all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n"
            )
            cursor.execute("SELECT pg_reload_conf()")
        connection.close()
        self.password = password

    def set_clock(self, offset):
        """Set the server's clock off by `offset`, such as -2d."""
        new = self.home / "clock.new"  # (a process that reads half a file ends)
        new.write_text(offset + "\n")
        new.rename(self.home / "clock")

    def fill(self):
        """Fill the small disk up to its last byte; gives the path whose removal frees it."""
        path = pathlib.Path(f"/proc/{self.process.pid}/root{self.small}/filler")
        with open(path, "wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    pass
        return path


def free_port():
    """A TCP port of 127.0.0.1 that nobody has now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def eventually(condition, seconds=10):
    """Wait until `condition()` is true; its last value."""
    deadline = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return result
