"""A PostgreSQL of a test's own: it can be killed as by a power failure, filled up, or have its clock set back."""

import os
import pathlib
import signal
import socket
import subprocess
import tempfile

import psycopg2

from conftest import BIN, eventually

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


class Cluster:
    """A cluster under a temporary directory `home`, with fsync.

    `small_mb`: mounts a disk of that size at home/small; `clock`: its clock is what set_clock says.
    """

    def __init__(self, *settings, small_mb=None, clock=False):
        self.bin = pathlib.Path(BIN.read_text().strip())
        self.temporary = tempfile.TemporaryDirectory(prefix="pg_mop_", dir="/tmp", ignore_cleanup_errors=True)
        self.home = pathlib.Path(self.temporary.name)
        self.data, self.small, self.clock = self.home / "data", self.home / "small", self.home / "clock"
        self.small.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        subprocess.run([self.bin / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                        "--locale=C.UTF-8"], check=True, capture_output=True)
        self.command = [self.bin / "postgres", "-D", self.data, "-k", self.home, "-h", "127.0.0.1", "-p",
                        str(self.port), *(part for setting in settings for part in ("-c", setting))]
        if small_mb:
            # root in a namespace of users mounts the disk; within a second one the server is nobody's root again
            self.command = ["unshare", "-Urm", "sh", "-c", f"mount -t tmpfs -o size={small_mb}m none {self.small} && "
                            f'exec unshare -U --map-user={os.getuid()} --map-group={os.getgid()} "$@"', "sh",
                            *self.command]
        self.environment = dict(os.environ)
        if clock:
            self.set_clock("+0s")
            self.environment.update(LD_PRELOAD=FAKETIME, FAKETIME_TIMESTAMP_FILE=str(self.clock), FAKETIME_NO_CACHE="1",
                                    FAKETIME_DONT_FAKE_MONOTONIC="1", DONT_FAKE_MONOTONIC="1")
        self.start()

    def start(self):
        """Start the server and wait until it lets sessions in."""
        with open(self.home / "log", "ab") as log:
            self.process = subprocess.Popen(self.command, env=self.environment, stdout=log, stderr=log)
        assert eventually(self._answers, 30), (self.home / "log").read_text()[-2000:]

    def _answers(self):
        try:
            psycopg2.connect(**self.dsn()).close()
            return True
        except psycopg2.OperationalError:
            return False

    def dsn(self):
        """psycopg2.connect's parameters."""
        return {"host": "127.0.0.1", "port": self.port, "user": "postgres", "database": "postgres"}

    def kill(self):
        """SIGKILL to the postmaster and all of its children, as when the power fails."""
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout
        for pid in (self.process.pid, *map(int, children.split())):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def set_clock(self, offset):
        """Set the server's clock off by `offset`, such as -2d."""
        self.clock.write_text(offset + "\n")

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

    def stop(self):
        """End the server and remove its files."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self.temporary.cleanup()
