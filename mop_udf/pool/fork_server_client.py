"""The backend's side of the fork server: starting it, leasing trainers and looking into its pool.

Standard library only: backends import this module.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mop_udf.pool.child_process import environment
from mop_udf.pool.patience import Patience
from mop_udf.pool.server_folder import own_folder, version

ANSWER_SECONDS = 60  # time that the import of Keras takes at most, even on a busy machine
LOOK_SECONDS = 2  # that a look into the pool takes at most
RELAYS = "relays"  # in place of a framework: the fork server that starts relays
MOST_BYTES = 1 << 16  # size limit of a message
OLDER_IDLE_MS = 10_000  # after which a fork server of another version of the packages ends


class ForkedTrainer:
    """A trainer that was requested from the fork server: from its pool, or a new fork.

    `pid`: None until the trainer lives. `code`: its exit status, negative for a signal, or None where it is unknown.
    `held`: None for a new fork; else {"nets": digests of its compiled models, "datasets": keys of the rows in its cache}.
    """

    def __init__(self, connection: socket.socket, name: _Endpoint, life: int, was_running: bool) -> None:
        """`life`: the writing end of the pipe that the trainer dies with; `was_running`: the fork server has not been
        started for this request."""
        self._connection: socket.socket | None = connection
        self._name, self._patience = name, Patience(ANSWER_SECONDS)
        self.pid: int | None = None
        self.code: int | None = None
        self.held: dict[str, Any] | None = None
        self.full: str | None = None  # why the trainer cannot be had: other trainers hold the memory of its device
        self._heard = not was_running
        self._file: int | None = None
        self._gone = select.poll()
        self._gone.register(life, 0)  # (an error event: no process reads the pipe any more)

    def listen(self, seconds: float) -> None:
        """Wait until a running fork server has answered: the trainer comes from the pool, or will be forked."""
        if not self._heard:
            self._read_reports(seconds)

    def started(self, seconds: float) -> bool | None:
        """True as soon as the trainer lives, None if it does not live yet after `seconds`, False if it never will."""
        if self.pid is None:  # (an earlier call may have read the report)
            self._read_reports(seconds)
        if self.pid is None and self._connection is not None and self._patience.over():
            self._name.end()
            self._close()
        return True if self.pid is not None else None if self._connection is not None else False

    def ended(self) -> bool:
        self._read_reports(0)
        return self.pid is not None and (self.code is not None or bool(self._gone.poll(0)))

    def leave(self) -> None:
        """End the lease of a trainer that waits for a request, and whose pipes have been closed."""
        self._close()
        self._forget()

    def kill(self) -> None:
        """Kill the trainer, unless it has left by itself: then it may have another lease. To be called before the pipe
        `life` is closed."""
        if self._file is not None and not self._gone.poll(0):
            try:
                signal.pidfd_send_signal(self._file, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def wait(self) -> None:
        """Wait until the trainer, which has been killed and whose pipes have been closed, has ended, and read its exit
        status if the fork server reports it.
        """
        patience = Patience(5)
        while self.pid is not None and self._connection is not None and not patience.over():
            self._read_reports(0.1)
        self._close()
        self._forget()

    def _forget(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read_reports(self, seconds: float) -> None:
        """Read the fork server's next report, waiting up to `seconds`."""
        if self._connection is None or not select.select([self._connection], [], [], seconds)[0]:
            return
        try:
            text = self._connection.recv(MOST_BYTES)
        except OSError:
            text = b""
        if not text:
            self._close()
            return
        report, self._heard = json.loads(text), True
        if self.pid is None and "pid" in report:
            self.pid, self.held = report["pid"], report if "nets" in report else None
            try:
                self._file = os.pidfd_open(self.pid)
            except OSError:
                pass  # it has ended; the next report says how
        self.code, self.full = report.get("code"), report.get("full")
        if self.code is not None or self.full is not None:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def ask(home: str, request: dict[str, Any], files: Sequence[int], life: int) -> ForkedTrainer | None:
    """Request a trainer: a :class:`ForkedTrainer`, or None where no fork server is running and none can be started.

    `home`: the packages' virtual environment; `request`: a dict with

    - environment: of a new trainer, including KERAS_BACKEND
    - module, arguments: mop_udf.training.trainer, and its arguments after IDLE_MS
    - ray: of mop_udf.pool.relay, the arguments between these; else []
    - trainer_idle_ms: the time without requests after which the trainer leaves (0: no limit)
    - idle_ms: the idle time after which the fork server ends
    - key, about, keep_ms: for the pool (pool.Member); without a key, the trainer ends with its lease
    - most: how many trainers, leased or idle, the role may have: idle ones end for a new one (None: any number)
    - device: the part of a device's memory that the trainer takes (pool.Pool.room); without it, the part is not counted
    - wants: {"datasets": [...], "nets": [...]}, what the trainer should hold if possible

    `files`: the trainer's standard input, output and error, and the reading end of the pipe `life`; this process keeps
    the writing end.
    """
    framework = RELAYS if request["ray"] else request["environment"]["KERAS_BACKEND"]
    sent = _send(home, framework, request, files)
    return None if sent is None else ForkedTrainer(sent[0], sent[1], life, sent[2])


def serve(home: str, request: dict[str, Any], file: int, check_interrupts: Callable[[], object]) -> int | None:
    """Have the descriptor of a socket handed to a serving process: its process ID, or None where there is none to be had.

    `request`: see process.serving_request; `check_interrupts` is called while waiting for the fork server.
    """
    sent = _send(home, request["environment"]["KERAS_BACKEND"], request, [file])
    if sent is None:
        return None
    connection, name, _ = sent
    patience = Patience(ANSWER_SECONDS)
    with connection:
        while not select.select([connection], [], [], 0.1)[0]:
            check_interrupts()
            if patience.over():
                name.end()
                return None
        try:
            answer = connection.recv(MOST_BYTES)
        except OSError:
            return None
    return json.loads(answer)["pid"] if answer else None


def expect(home: str, keras_backend: str, idle_ms: int) -> None:
    """Start the fork server if it is not running: a trainer will be needed soon, and the import of Keras takes time.

    An unused fork server ends after `idle_ms`. Failures are ignored: the later request for a trainer meets them again.
    """
    if sent := _send(home, keras_backend, {"idle_ms": idle_ms}):
        sent[0].close()


def trainers(home: str, keras_backend: str) -> list[dict[str, Any]]:
    """The trainers in the pools of the fork servers for a framework (see pool.Member), leased or idle."""
    return [message for message in _answers(home, keras_backend, {"op": "list"}) if message]


def end_trainers(
    home: str, keras_backend: str, roles: Sequence[int] | None = None, databases: Sequence[int] | None = None
) -> int:
    """End the idle trainers of these roles and databases (OIDs; None: of all). Returns their number."""
    request = {"op": "end", "roles": roles, "databases": databases}
    return sum(message["ended"] for message in _answers(home, keras_backend, request))


def _answers(home: str, keras_backend: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the answers (dicts) of the running fork servers for a framework to a request without files: that of this version
    of the packages, and those of others, which older sessions have started."""
    try:
        name = _Endpoint(home, keras_backend)
        paths = name.of_all_versions()
    except (OSError, ValueError):
        return
    for path in paths:
        try:
            connection = name.connect(path)
            if connection is not None:
                with connection:
                    connection.settimeout(LOOK_SECONDS)
                    connection.send(json.dumps(request).encode())
                    while answer := receive(connection, LOOK_SECONDS):
                        yield json.loads(answer)
        except (OSError, ValueError):
            pass


def receive(connection: socket.socket, seconds: float) -> bytes:
    """The next message, b"" at the end. Raises TimeoutError where none comes within so many seconds."""
    patience = Patience(seconds)
    while not select.select([connection], [], [], 0.1)[0]:
        if patience.over():
            raise TimeoutError
    return connection.recv(MOST_BYTES)


def _send(
    home: str, keras_backend: str, request: dict[str, Any], files: Sequence[int] = ()
) -> tuple[socket.socket, _Endpoint, bool] | None:
    """Send a request to the fork server, starting it if it is not running: (connection, _Endpoint, whether it was
    running), or None."""
    try:
        name = _Endpoint(home, keras_backend)
        running = name.connect()
        if connection := running or name.start() and name.connect():
            socket.send_fds(connection, [json.dumps(request).encode()], files)
            return connection, name, running is not None
    except (OSError, ValueError):
        pass
    return None


class _Endpoint:
    """The socket, lock and log of this server's fork server for one version of the packages."""

    def __init__(self, home: str, keras_backend: str) -> None:
        """Raises OSError where the server's folder is not safe."""
        self.home, self.keras_backend = home, keras_backend
        _, self._folder, self._server = own_folder()
        # a postmaster with process id 1 would inherit the fork server and take its death by a signal for a crash of its
        # own
        if self._server == 1:
            raise FileNotFoundError(errno.ENOENT, "no server's own process")
        # (the path of a socket must be short)
        self.path = f"/proc/self/fd/{self._folder}/fork-server-{version(home, keras_backend)}"

    def __del__(self) -> None:
        if hasattr(self, "_folder"):
            os.close(self._folder)

    def of_all_versions(self) -> list[str]:
        """The paths of the sockets for this framework."""
        found = glob.glob(f"{os.path.dirname(self.path)}/fork-server-{self.keras_backend}-*.lock")
        return [path[: -len(".lock")] for path in sorted(found)]

    def connect(self, path: str | None = None) -> socket.socket | None:
        """A connection, or None where no fork server is running; `path`: of its socket. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(1)
        try:
            connection.connect(path or self.path)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        if peer(connection)[1] != os.geteuid():
            raise PermissionError(errno.EACCES, "another user's")
        return connection

    def start(self) -> bool:
        """Start the fork server unless another backend starts it: True once it accepts connections. Raises OSError."""
        lock = self._lock()
        for _ in range(20):  # the lock's holder begins to listen at once, or is about to end
            if lock is not None:
                break
            time.sleep(0.01)
            if connection := self.connect():
                connection.close()
                return True
            lock = self._lock()
        else:
            return False
        try:
            self._tidy()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                try:
                    os.unlink(self.path)
                except FileNotFoundError:
                    pass
                listener.bind(self.path)
                os.chmod(self.path, 0o600)
                listener.listen(128)
                postmaster = os.pidfd_open(self._server)
                try:
                    self._execute(listener.fileno(), lock, postmaster)
                finally:
                    os.close(postmaster)
        finally:
            os.close(lock)
        self._outdate()
        return True

    def _outdate(self) -> None:
        """Let the fork servers of other versions end soon: only sessions that began before an update still use them."""
        for path in self.of_all_versions():
            if path != self.path and (connection := self.connect(path)):
                with connection:
                    connection.send(json.dumps({"idle_ms": OLDER_IDLE_MS}).encode())

    def _execute(self, *files: int) -> None:
        os.ftruncate(files[1], 0)  # (the fork server writes its process id into it)
        with open(f"{self.path}.log", "wb") as log:
            # started by a shell that ends at once, since the fork server must not be a child of the backend
            subprocess.run(
                [
                    "/bin/sh",
                    "-c",
                    '"$@" &',
                    "sh",
                    os.path.join(self.home, "bin", "python"),
                    "-I",
                    "-B",
                    "-m",
                    "mop_udf.pool.fork_server",
                    *map(str, files),
                ],
                env={**environment(self.keras_backend), "OMP_NUM_THREADS": "1"},
                cwd="/",
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _tidy(self) -> None:
        """Remove files of fork servers of other package versions."""
        for path in glob.glob(f"{os.path.dirname(self.path)}/fork-server-*.lock"):
            path = path[: -len(".lock")]
            if path != self.path and (lock := self._lock(path)) is not None:
                for name in (path, f"{path}.log", f"{path}.lock"):
                    try:
                        os.unlink(name)
                    except FileNotFoundError:
                        pass
                os.close(lock)

    def _lock(self, path: str | None = None) -> int | None:
        """Take the lock that a fork server holds all its life: its descriptor, or None where it is held."""
        while True:
            lock = os.open(f"{path or self.path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.exists(f"{path or self.path}.lock") and os.path.samestat(
                    os.fstat(lock), os.stat(f"{path or self.path}.lock")
                ):
                    return lock
            except BlockingIOError:
                os.close(lock)
                return None
            except OSError:
                os.close(lock)
                raise
            os.close(lock)  # another process removed the file before it was locked

    def end(self) -> None:
        """Kill a fork server that does not answer; the next backend starts another."""
        try:
            lock = self._lock()
            if lock is not None:  # no fork server is running
                os.close(lock)
                return
            with open(f"{self.path}.lock") as file:
                pid = int(file.read())
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"mop_udf.pool.fork_server" in file.read():
                    os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            pass


def peer(connection: socket.socket) -> tuple[int, int]:
    """(process id, user id) of the other side, from the kernel."""
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[:2]
