"""The fork server: a process that has imported Keras and forks trainers for the backends of its database server.

`python -m mop_udf.fork_server LISTENER LOCK POSTMASTER`: the numbers of inherited descriptors. The first backend that
needs a trainer, or expects to need one, starts the fork server (fork_server_client.py). The fork server ends with the
postmaster, or after it has been idle for a while. It is optional: a backend without it starts trainers itself.

Backends connect to a socket in the server's folder (server_folder.py). A connection is for one trainer. The backend
sends a request, a JSON object with the descriptors of the trainer's pipes. The fork server answers {"pid": ...} when
the trainer lives, and {"code": ...} (negative for a signal) when the trainer has ended. A request without descriptors
only restarts the idle time.
"""

import json
import os
import select
import selectors
import signal
import socket
import sys
import time
import traceback

from mop_udf.child_process import prefer_oom_kill
from mop_udf.fork_server_client import MOST_BYTES, peer


class ForkServer:
    """Forks a trainer for each request, and reports the end of each."""

    def __init__(self, listener, lock, postmaster, trainer):
        """`trainer`: the module mop_udf.trainer; the other arguments are descriptors."""
        self._listener = socket.socket(fileno=listener)
        self._lock, self._postmaster, self._trainer_module = lock, postmaster, trainer
        self._trainers = {}  # pidfd -> (pid, connection)
        self._idle_seconds, self._last_use = 60, time.monotonic()
        self._events = selectors.DefaultSelector()
        self._events.register(self._listener, selectors.EVENT_READ, self._accept)
        self._events.register(postmaster, selectors.EVENT_READ, lambda _: sys.exit())

    def serve(self):
        """Serve until the postmaster ends, or until the fork server has been idle: without trainers and requests."""
        while True:
            wait = None
            if not self._trainers:
                wait = self._last_use + self._idle_seconds - time.monotonic()
                if wait <= 0:
                    return
            for key, _ in self._events.select(wait):
                key.data(key.fileobj)

    def _accept(self, listener):
        try:
            connection, _ = listener.accept()
        except OSError:  # the client has gone, or too many files are open
            time.sleep(0.01)
            return
        self._events.register(connection, selectors.EVENT_READ, self._fork)

    def _fork(self, connection):
        self._events.unregister(connection)
        files = []
        try:
            text, files, _, _ = socket.recv_fds(connection, MOST_BYTES, 4)
            pid, user = peer(connection)
            gone = len(files) == 4 and select.select(files[3:], [], [], 0)[0]
            if text and user == os.geteuid() and not gone and len(files) in (0, 4):
                request = json.loads(text)
                self._idle_seconds, self._last_use = request["idle_ms"] / 1000, time.monotonic()
                if files:
                    self._fork_for(pid, request, files, connection)
        except Exception:
            traceback.print_exc()  # the client has gone or is not a backend
        finally:
            for file in files:
                os.close(file)
            if all(connection is not known for _, known in self._trainers.values()):
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
                self._become_trainer(backend, request, files, connection, naming)
            finally:
                os._exit(1)
        os.close(naming)
        try:
            # continue only when the trainer has its own name, so the process list never shows two fork servers
            if not os.read(named, 1):
                raise ChildProcessError("the child did not become a trainer")
            file = os.pidfd_open(pid)
            self._events.register(file, selectors.EVENT_READ, self._ended)
            self._trainers[file] = pid, connection
        except BaseException:  # the backend will start another trainer
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        finally:
            os.close(named)
        try:
            connection.send(json.dumps({"pid": pid}).encode())
        except OSError:
            pass  # the backend has gone, and its trainer ends with it

    def _become_trainer(self, backend, request, files, connection, naming):
        """In the child: become the process that an exec of mop_udf.trainer would be."""
        try:
            for key in list(self._events.get_map().values()):  # descriptors of the fork server's event loop
                (os.close if isinstance(key.fileobj, int) else socket.socket.close)(key.fileobj)
            self._events.close()
            for other in (connection, *(connected for _, connected in self._trainers.values())):
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
            self._trainer_module.live(*arguments)
        except BaseException:
            traceback.print_exc()

    def _ended(self, file):
        self._events.unregister(file)
        pid, connection = self._trainers.pop(file)
        os.close(file)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        try:
            connection.send(json.dumps({"code": code}).encode())
        except OSError:
            pass  # the backend does not listen any more
        connection.close()
        self._last_use = time.monotonic()


def main():
    os.pwrite(int(sys.argv[2]), str(os.getpid()).encode(), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell ignores them for background commands
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

    from setproctitle import getproctitle

    from mop_udf import trainer

    getproctitle()  # locates the title's memory, which is impossible after a change of the environment
    prefer_oom_kill()
    trainer.import_frameworks()
    trainer.import_own()
    ForkServer(*map(int, sys.argv[1:4]), trainer).serve()


if __name__ == "__main__":
    main()
