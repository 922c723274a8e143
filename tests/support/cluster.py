"""A PostgreSQL cluster for the tests. It can be killed as by a power failure, fill its disk, or have its clock set back.

`Cluster` extends testing.postgresql.Postgresql, which makes a cluster in a temporary directory and removes it. The
programs are given by path, because only a private copy of them has the extension of this checkout.
"""

import atexit
import functools
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import psycopg2
import testing.postgresql

from support.shared_memory import remove_shared_memory, segment_of, shared_memory

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCAL = ROOT / ".local"
if "PYTEST_XDIST_WORKER" in os.environ:  # other workers test at the same time, and `trainers` must not count theirs
    LOCAL = pathlib.Path(tempfile.mkdtemp(prefix="pg_mop_stream_"))  # (tools/suite.py says where)
    atexit.register(shutil.rmtree, LOCAL, ignore_errors=True)
HOME = LOCAL / "venv"  # where the extension finds its packages
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


@functools.cache
def programs():
    """The directory of the PostgreSQL programs that have the extension of this checkout."""
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
    """The path of a PostgreSQL client program; the private copy has only the server's programs."""
    return f"{run_text(ROOT / 'tools' / 'postgres.sh', 'bin')}/{name}"


def run_text(*command):
    """The standard output of a program, without surrounding white space."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Cluster(testing.postgresql.Postgresql):
    """A running cluster in a temporary directory `home`; `log` is its log file.

    `settings` go to postgresql.conf. By default fsync is off, and the server listens on 127.0.0.1 and on a socket.
    `pg_mop.reuse` is off, because most tests are about training and must not reuse earlier results.
    `small_mb`: mounts a disk of that size at `small`. `clock`: `set_clock` sets the server's clock.
    """

    DEFAULT_BOOT_TIMEOUT = 180.0
    subdirectories = ["data", "small"]

    def __init__(self, small_mb=None, clock=False, **settings):
        self.child_process = None  # (the base class's destructor needs it, if this function fails)
        self.started = False
        self.segments, self.shared = set(), set()  # shared memory of postmasters that were killed
        self.bin, self.password, self.port, self.small_mb = programs(), None, free_port(), small_mb
        # below /tmp, because the path of a socket has a limit of 107 bytes
        below = os.environ.get("PG_MOP_SUITE", "/tmp")
        self.temporary = tempfile.TemporaryDirectory(prefix="pg_mop_", dir=below, ignore_cleanup_errors=True)
        self.home = pathlib.Path(self.temporary.name)
        self.data, self.small, self.log = self.home / "data", self.home / "small", self.home / "Cluster.log"
        self.configuration = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.home,
            "port": self.port,
            "fsync": "off",
            "logging_collector": "off",
            "pg_mop.reuse": "off",
            "jit": "off",  # (as in all sessions of pg_mop itself: compiling a test's query takes longer than the query)
            **settings,
        }
        self.host = self.configuration["listen_addresses"] or self.configuration["unix_socket_directories"]
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
        super().__init__(
            base_dir=str(self.home),
            port=self.port,
            initdb=str(self.bin / "initdb"),
            initdb_args="-U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync",
            postgres=str(self.bin / "postgres"),
        )

    # --- the steps of testing.postgresql -----------------------------------------------------------------
    def initialize_database(self):
        super().initialize_database()
        with open(self.data / "postgresql.conf", "a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self.configuration.items())

    def get_server_commandline(self):
        command = [self.postgres, "-D", str(self.data)]
        if self.small_mb is None:
            return command
        # The root user of a user namespace mounts the disk. In a second namespace the server runs as an ordinary user.
        return [
            "unshare",
            "-Urm",
            "sh",
            "-c",
            f"mount -t tmpfs -o size={self.small_mb}m none {self.small} && "
            f'exec unshare -U --map-user={os.getuid()} --map-group={os.getgid()} "$@"',
            "sh",
            *command,
        ]

    def start(self):
        """Start the server and wait until it accepts sessions. Raises RuntimeError with the end of the log.

        Where another program has taken the port meanwhile, the first start takes another port.
        """
        for left in (2, 1, 0):
            try:
                self._start()
                self.started = True
                return
            except RuntimeError as error:
                if not left or self.started or "could not bind IP" not in str(error):
                    raise
                self.port = self.settings["port"] = free_port()
                with open(self.data / "postgresql.conf", "a") as file:
                    file.write(f"port = {self.port}\n")

    def _start(self):
        # The base class would truncate the log. It would also start the server in the session of the terminal, where
        # Ctrl-C ends the server before the tests have looked at it.
        with open(self.log, "ab") as log:
            self.child_process = subprocess.Popen(
                self.get_server_commandline(), env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self.wait_booting()
        except BaseException:
            self.kill()
            raise

    def is_server_available(self):
        try:
            psycopg2.connect(**self.dsn()).close()
            return True
        except psycopg2.OperationalError:
            return False

    def dsn(self, **parameters):
        """psycopg2.connect's parameters for the superuser."""
        password = {"password": self.password} if self.password else {}
        return super().dsn(**{"host": str(self.host), "database": "postgres", **password, **parameters})

    def read_bootlog(self):
        return self.said()[-2000:]

    def terminate(self, *_):
        try:
            super().terminate(signal.SIGINT)  # sessions that tests have left open are not waited for
        except RuntimeError:  # the server has not ended in time
            self.kill()

    def cleanup(self):
        super().cleanup()
        remove_shared_memory(self.segments, self.shared)
        self.temporary.cleanup()

    # --- what tests do to a server -----------------------------------------------------------------------
    @property
    def process(self):
        """The postmaster, a subprocess.Popen."""
        return self.child_process

    def said(self):
        """The whole log of the server, including earlier starts."""
        return self.log.read_text(errors="replace")

    def processes(self):
        """Process IDs of the server's processes, found by their working directory."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/cwd") == str(self.data):
                    found.append(int(entry))
            except OSError:  # the process has ended, or belongs to another user
                continue
        return found

    def kill(self):
        """Send SIGKILL to the postmaster and all of its children, as in a power failure."""
        pids = (self.process.pid, *self.processes())
        self.segments.add(segment_of(self.data / "postmaster.pid"))
        self.shared |= shared_memory(pids)
        for pid in pids:
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
        self.process.wait(120)
        assert eventually(lambda: not self.processes() and not self._attached()), "backends outlive their postmaster"

    def _attached(self):
        """The number of processes attached to the server's shared memory.

        A starting server checks this number to learn whether its predecessor still runs. A killed backend with threads
        (of numpy) stays attached for a moment after it has left its working directory.
        """
        number = segment_of(self.data / "postmaster.pid")
        if number is None:  # the server has shut down in order, or has not begun
            return 0
        with open("/proc/sysvipc/shm") as file:
            held = [line.split() for line in file.readlines()[1:]]
        return sum(int(line[6]) for line in held if line[1] == number)

    def passwords(self, password):
        """Require a password of every role from now on; `password` is the one of postgres."""
        with psycopg2.connect(**self.dsn()) as connection, connection.cursor() as cursor:
            cursor.execute("ALTER ROLE postgres PASSWORD %s", [password])
            (self.data / "pg_hba.conf").write_text(
                "local all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n"
            )
            cursor.execute("SELECT pg_reload_conf()")
        connection.close()
        self.password = password

    def set_clock(self, offset):
        """Shift the server's clock by `offset`, such as -2d."""
        new = self.home / "clock.new"  # (a process that reads half a file ends)
        new.write_text(offset + "\n")
        new.rename(self.home / "clock")

    def fill(self):
        """Fill the small disk to its last byte. Returns the path of the filler; its removal frees the disk."""
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
    """A TCP port of 127.0.0.1 that no process uses now. None of the ports that the kernel gives to clients, which might take it
    before the server listens, or while it is down."""
    try:
        first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    ports = range(10_000, first)
    for port in random.SystemRandom().sample(ports, min(1000, len(ports))):
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def eventually(condition, seconds=60):
    """Wait until `condition()` is true, for at most `seconds`. Returns its last value.

    Of a look that takes longer than a second only one second counts: the machine may stand still meanwhile.
    """
    waited, began = 0.0, time.monotonic()
    while not (result := condition()) and waited < seconds:
        time.sleep(0.05)
        ended = time.monotonic()
        waited, began = waited + min(ended - began, 1), ended
    return result


def folder(cluster):
    """The server's folder for its fork server and its compile caches."""
    return pathlib.Path(cluster.data, "pgsql_tmp.pg_mop")


def fork_servers(cluster):
    """Process IDs of a server's fork servers."""
    found = []
    for lock in folder(cluster).glob("*.lock"):
        pid = lock.read_text()
        try:
            if pid and b"mop_udf.pool.fork_server" in pathlib.Path("/proc", pid, "cmdline").read_bytes():
                found.append(int(pid))
        except OSError:
            pass
    return found
