"""The fork server: a process that has imported Keras, runs nothing, and forks trainers for the backends of its server.

`python -m mop_udf.fork_server LISTENER LOCK POSTMASTER`: the numbers of inherited descriptors. The first backend that
needs a trainer, or is soon going to, starts it; it ends with the postmaster, or when nobody has needed it for a while.
It is a convenience: a backend that gets no trainer of it starts one by itself.

Backends ask it by a socket in the server's data directory, in a folder that is its user's alone and that backups leave
out. A connection is one trainer: the request, a JSON object with the descriptors of the trainer's pipes; then
{"pid": ...} as soon as it lives, and {"code": ...} (a signal's number is negative) when it has ended. A request
without descriptors keeps it for a while.

Up to `main`, standard library only: that much backends import.
"""

import errno
import fcntl
import glob
import hashlib
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback

import mop_udf

FOLDER = "pgsql_tmp.pg_mop"  # of the data directory: pg_basebackup and pg_rewind leave out what begins like this
SHARES = "shares"  # names the data directory of the server whose folder is used instead
ANSWER_SECONDS = 20  # in which it has imported Keras, however busy the machine is
MOST_BYTES = 1 << 16  # of a request


def environment(keras_backend):
    """That of every process that imports a framework; of its server's it has nothing.

    (PyTorch's Keras would look for GPUs as it is imported, after which no fork could use one: a trainer does it.)
    """
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        "KERAS_HOME": "/nonexistent",
        "KERAS_BACKEND": keras_backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONHASHSEED": "0",
        "KERAS_TORCH_DEVICE": "cpu",
    }


# --- the backends' side -------------------------------------------------------------------------
class Forked:
    """A trainer that the fork server has been asked for. `pid`: None until it lives; `code`: its exit status, a signal as a
    negative number, or None where nobody knows."""

    def __init__(self, connection, name, life):
        """`life`: the writing end of the pipe that the trainer dies with."""
        self._connection, self._name, self._asked = connection, name, time.monotonic()
        self.pid, self.code = None, None
        self._gone = select.poll()
        self._gone.register(life, 0)  # (the error that nobody reads any more)

    def born(self, seconds):
        """True as soon as it lives, None if it does not after so many seconds; False: it will never."""
        if self.pid is None:  # (it may have been heard of since)
            self._hear(seconds)
        if self.pid is None and self._connection is not None and time.monotonic() - self._asked > ANSWER_SECONDS:
            self._name.end()
            self._close()
        return True if self.pid is not None else None if self._connection is not None else False

    def ended(self):
        self._hear(0)
        return self.pid is not None and (self.code is not None or bool(self._gone.poll(0)))

    def wait(self):
        """Until it has ended, its pipe having been closed; and learn how, if the fork server tells."""
        deadline = time.monotonic() + 5
        while self.pid is not None and self._connection is not None and time.monotonic() < deadline:
            self._hear(0.1)
        self._close()

    def _hear(self, seconds):
        """Read what the fork server has to say within so many seconds."""
        if self._connection is None or not select.select([self._connection], [], [], seconds)[0]:
            return
        try:
            news = self._connection.recv(MOST_BYTES)
        except OSError:
            news = b""
        if not news:
            self._close()
            return
        news = json.loads(news)
        self.pid, self.code = news.get("pid", self.pid), news.get("code")
        if self.code is not None:
            self._close()

    def _close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def ask(home, request, files, life):
    """Ask for a trainer: a :class:`Forked`, or None where there is no fork server and none can be started.

    `home`: the packages' virtual environment; `request`: a dict with `environment`, its `KERAS_BACKEND` among it,
    `arguments` and `idle_ms`, the time that the fork server stays without being needed; `files`: the trainer's standard
    input, output and error and the reading end of the pipe whose writing end `life` this process keeps.
    """
    sent = _send(home, request["environment"]["KERAS_BACKEND"], request, files)
    return sent and Forked(*sent, life)


def expect(home, keras_backend, idle_ms):
    """Let there be a fork server, for somebody is soon going to need a trainer: it imports Keras meanwhile. If nobody does,
    it ends after so many milliseconds. Where there can be none, whoever needs a trainer finds out."""
    if sent := _send(home, keras_backend, {"idle_ms": idle_ms}):
        sent[0].close()


def _send(home, keras_backend, request, files=()):
    """Send a request to the fork server, which is started where there is none: (connection, _Name), or None."""
    try:
        name = _Name(home, keras_backend)
        if connection := name.connect() or name.start() and name.connect():
            socket.send_fds(connection, [json.dumps(request).encode()], files)
            return connection, name
    except (OSError, ValueError):
        pass
    return None


def share(directory):
    """From now on this server uses what the one with that data directory has: its fork server, and what is kept beside
    that. Greenplum's segments on a host are told so by the extension's owner (mop_share_host), so that one has it for
    all. Where there is no folder to trust, or the disk is full, each has its own."""
    try:
        folder, opened = _folder(os.getcwd())
        os.close(opened)
        if _shares(folder) != directory:
            path = os.path.join(folder, SHARES)
            made = f"{path}.{os.getpid()}"
            try:
                with open(made, "wb") as file:
                    file.write(os.fsencode(directory))
                os.replace(made, path)
            except BaseException:
                os.unlink(made)
                raise
    except (OSError, ValueError):
        pass


def _shares(folder):
    """The data directory that a folder names, or None."""
    try:
        with open(os.path.join(folder, SHARES), "rb") as file:
            return os.fsdecode(file.read())
    except FileNotFoundError:
        return None


def own_folder():
    """(path, descriptor, process id of the server) of the folder of the server whose backend this is, or of the one
    that it shares that of, as long as it is up. Raises OSError where there is none to trust."""
    directory = os.getcwd()  # a backend is in its server's data directory
    if (server := _server(directory)) != os.getppid():
        raise FileNotFoundError(errno.ENOENT, "no server's own process")
    folder, opened = _folder(directory)
    try:
        if (other := _shares(folder)) not in (None, directory) and os.path.isabs(other):
            running = _server(other)
            # (the number may be another process's by now; a server is in its data directory)
            if running != 1 and os.path.samefile(f"/proc/{running}/cwd", other):
                shared = _folder(other)
                os.close(opened)
                return *shared, running
    except (OSError, ValueError):
        pass
    return folder, opened, server


def _server(directory):
    """The process id of the server of a data directory, as that says. Raises OSError where it says none."""
    with open(os.path.join(directory, "postmaster.pid"), "rb") as file:
        return int(file.readline())


def _folder(directory):
    """(path, descriptor) of the folder in a data directory: its user's alone. Raises OSError where it is not."""
    folder = os.path.join(directory, FOLDER)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    status = os.fstat(opened)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(opened)
        raise PermissionError(errno.EACCES, "not the server's own", folder)
    return folder, opened


class _Name:
    """Where this server's fork server of certain packages is found."""

    def __init__(self, home, keras_backend):
        """Raises OSError where nobody but the server's own user may be: no folder to trust."""
        self.home, self.keras_backend = home, keras_backend
        _, self._folder, self._server = own_folder()
        # (that would inherit the fork server, and take its end by a signal for a crash of its own)
        if self._server == 1:
            raise FileNotFoundError(errno.ENOENT, "no server's own process")
        # paths of sockets are short
        self.path = f"/proc/self/fd/{self._folder}/fork-server-{version(home, keras_backend)}"

    def __del__(self):
        if hasattr(self, "_folder"):
            os.close(self._folder)

    def connect(self):
        """A connection; None where there is no fork server. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(1)
        try:
            connection.connect(self.path)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        if _peer(connection)[1] != os.geteuid():
            raise PermissionError(errno.EACCES, "another user's")
        return connection

    def start(self):
        """Start one, unless somebody does: True as soon as it can be connected to. Raises OSError."""
        lock = self._lock()
        for _ in range(20):  # whoever has the lock listens at once; or is about to end
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
        return True

    def _execute(self, *files):
        os.ftruncate(files[1], 0)  # (it writes its process id there)
        with open(f"{self.path}.log", "wb") as log:
            # by a shell, which ends at once: it must be nobody's child, who would have to wait for its end
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
                    "mop_udf.fork_server",
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

    def _tidy(self):
        """Remove what fork servers of other packages have left."""
        for path in glob.glob(f"{os.path.dirname(self.path)}/fork-server-*.lock"):
            path = path[: -len(".lock")]
            if path != self.path and (lock := self._lock(path)) is not None:
                for name in (path, f"{path}.log", f"{path}.lock"):
                    try:
                        os.unlink(name)
                    except FileNotFoundError:
                        pass
                os.close(lock)

    def _lock(self, path=None):
        """The descriptor of the lock that a fork server holds for all its life; None: it is held."""
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
            os.close(lock)  # somebody has removed it before it was locked

    def end(self):
        """Kill a fork server that does not answer; the next backend starts another."""
        try:
            lock = self._lock()
            if lock is not None:  # there is none
                os.close(lock)
                return
            with open(f"{self.path}.lock") as file:
                pid = int(file.read())
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"mop_udf.fork_server" in file.read():
                    os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            pass


_versions = {}


def version(home, keras_backend):
    """Names the packages as they are on disk: what a fork server has imported is what this backend would."""
    if (home, keras_backend) not in _versions:
        own = os.path.dirname(os.path.abspath(mop_udf.__file__))
        digest = hashlib.sha256(f"{home} {own}".encode())
        for path in sorted(
            [*glob.glob(f"{own}/**/*.py", recursive=True), *filter(os.path.isdir, [mop_udf.packages(home)])]
        ):
            status = os.stat(path)
            digest.update(f"{path} {status.st_mtime_ns} {status.st_size}".encode())
        _versions[home, keras_backend] = f"{keras_backend}-{digest.hexdigest()[:16]}"
    return _versions[home, keras_backend]


def _peer(connection):
    """(process id, user id) of the other side, as the kernel knows them."""
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[:2]


# --- the fork server --------------------------------------------------------------------------------
class ForkServer:
    """Forks a trainer for each request, and tells how each has ended."""

    def __init__(self, listener, lock, postmaster, trainer):
        """`trainer`: the module; the others descriptors."""
        self._listener = socket.socket(fileno=listener)
        self._lock, self._postmaster, self._trainer = lock, postmaster, trainer
        self._living = {}  # pidfd -> (pid, connection)
        self._idle_seconds, self._needed = 60, time.monotonic()
        self._events = selectors.DefaultSelector()
        self._events.register(self._listener, selectors.EVENT_READ, self._accept)
        self._events.register(postmaster, selectors.EVENT_READ, lambda _: sys.exit())

    def serve(self):
        """Until the postmaster ends, or nobody has a trainer or asks for one for a while."""
        while True:
            wait = None
            if not self._living:
                wait = self._needed + self._idle_seconds - time.monotonic()
                if wait <= 0:
                    return
            for key, _ in self._events.select(wait):
                key.data(key.fileobj)

    def _accept(self, listener):
        try:
            connection, _ = listener.accept()
        except OSError:  # it has gone, or there are too many
            time.sleep(0.01)
            return
        self._events.register(connection, selectors.EVENT_READ, self._fork)

    def _fork(self, connection):
        self._events.unregister(connection)
        files = []
        try:
            text, files, _, _ = socket.recv_fds(connection, MOST_BYTES, 4)
            pid, user = _peer(connection)
            gone = len(files) == 4 and select.select(files[3:], [], [], 0)[0]
            if text and user == os.geteuid() and not gone and len(files) in (0, 4):
                request = json.loads(text)
                self._idle_seconds, self._needed = request["idle_ms"] / 1000, time.monotonic()
                if files:
                    self._fork_for(pid, request, files, connection)
        except Exception:
            traceback.print_exc()  # a backend that has gone, or that is none
        finally:
            for file in files:
                os.close(file)
            if all(connection is not known for _, known in self._living.values()):
                connection.close()

    def _fork_for(self, backend, request, files, connection):
        named, naming = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(named), os.close(naming)
            raise
        if not pid:
            try:
                os.close(named)
                self._be_trainer(backend, request, files, connection, naming)
            finally:
                os._exit(1)
        os.close(naming)
        try:
            # one by one: who looks at all that there are sees each by its name
            if not os.read(named, 1):
                raise ChildProcessError("it has become no trainer")
            file = os.pidfd_open(pid)
            self._events.register(file, selectors.EVENT_READ, self._ended)
            self._living[file] = pid, connection
        except BaseException:  # its backend will start another
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        finally:
            os.close(named)
        try:
            connection.send(json.dumps({"pid": pid}).encode())
        except OSError:
            pass  # the backend has gone, and so the trainer goes

    def _be_trainer(self, backend, request, files, connection, naming):
        """In the child: become what an exec of mop_udf.trainer would be."""
        try:
            for key in list(self._events.get_map().values()):  # whatever waits for the fork server
                (os.close if isinstance(key.fileobj, int) else socket.socket.close)(key.fileobj)
            self._events.close()
            for other in (connection, *(told for _, told in self._living.values())):
                other.close()
            os.close(self._lock)
            os.setsid()
            os.environ.update(request["environment"])
            arguments = [backend, files[3], *request["arguments"]]
            from setproctitle import setproctitle

            setproctitle(f"{sys.executable} -I -B -m mop_udf.trainer {' '.join(map(str, arguments))}")
            for number, file in enumerate(files[:3]):
                os.dup2(file, number)
                os.close(file)
            os.write(naming, b".")
            os.close(naming)
            self._trainer.live(*arguments)
        except BaseException:
            traceback.print_exc()

    def _ended(self, file):
        self._events.unregister(file)
        pid, connection = self._living.pop(file)
        os.close(file)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        try:
            connection.send(json.dumps({"code": code}).encode())
        except OSError:
            pass  # nobody asks any more
        connection.close()
        self._needed = time.monotonic()


def main():
    os.pwrite(int(sys.argv[2]), str(os.getpid()).encode(), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell has them ignored
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

    from setproctitle import getproctitle

    from mop_udf import trainer

    getproctitle()  # finds the place of the title, which it cannot once the environment has been changed
    trainer.first_to_go()
    trainer.import_frameworks()
    trainer.import_own()
    ForkServer(*map(int, sys.argv[1:4]), trainer).serve()


if __name__ == "__main__":
    main()
