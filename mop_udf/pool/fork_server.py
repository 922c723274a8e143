"""The fork server: a process that has imported Keras, forks trainers for the backends of its database server, and keeps
them in a pool (pool.py) when their leases end.

`python -m mop_udf.pool.fork_server LISTENER LOCK POSTMASTER`: the numbers of inherited descriptors. The first backend that
needs a trainer, or expects to need one, starts the fork server (fork_server_client.py). The fork server ends with the
postmaster, or after it has been without trainers and requests for a while; its idle trainers end with it. It is
optional: a backend without it starts trainers itself.

There is one for each framework, and one that imports nothing: it starts the relays to trainers on Ray (relay.py), which
are in its pool as trainers are.

Backends connect to a socket in the server's folder (server_folder.py). A request is a JSON object:

    lease, with the descriptors of the trainer's pipes -> {"forking"} or {"pid", "nets", "datasets"}; {"pid"} when a
        forked trainer lives; {"code"} (negative for a signal) when the trainer has ended. The end of the connection ends
        the lease.
    serve, with the descriptor of a socket, which goes to a serving process (training/serving.py) -> {"pid"}; no answer where
        the role can have none
    expect -> no answer; only restarts the idle time
    list   -> a message for each trainer, then {}
    end    -> {"ended": number of trainers that were ended: idle, or on the way back from a lease}
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mop_udf.pool import lease
from mop_udf.pool.child_process import die_with_parent, prefer_oom_kill
from mop_udf.pool.fork_server_client import MOST_BYTES, RELAYS, peer, receive
from mop_udf.pool.pool import Member, Pool, Waiting, memory_short

UNUSED_LOOK_SECONDS = 30  # between two looks at the free memory without trainers
ANSWER_SECONDS = 1  # within which an idle trainer takes a lease
LATE_SECONDS = 1  # an event loop that is this late means that the machine stood still

Request = dict[str, Any]  # of a backend, see fork_server_client.ask


class ForkServer:
    """Gives each request a trainer from the pool or a new one, and reports the end of each."""

    def __init__(self, listener: int, lock: int, postmaster: int, trainer: ModuleType | None) -> None:
        """`trainer`: the module mop_udf.training.trainer, None to start relays; the other arguments are descriptors."""
        self._listener = socket.socket(fileno=listener)
        self._lock, self._postmaster, self._trainer_module = lock, postmaster, trainer
        self._pool = Pool()
        self._idle_seconds, self._last_use = 60, time.monotonic()
        self._events = selectors.DefaultSelector()
        self._events.register(self._listener, selectors.EVENT_READ, self._accept)
        self._events.register(postmaster, selectors.EVENT_READ, lambda _: sys.exit())

    def serve(self) -> None:
        """Serve until the postmaster ends, or until the fork server has been idle: without trainers and requests."""
        while True:
            now = time.monotonic()
            if self._pool.members:
                wait = self._pool.wait_seconds(now, boot_microseconds())
            else:
                wait = self._last_use + self._idle_seconds - now
                if wait <= 0 or memory_short():
                    return
                wait = min(wait, UNUSED_LOOK_SECONDS)
            found = self._events.select(wait)
            if wait is not None and time.monotonic() - now > wait + LATE_SECONDS:
                self._pool.forgive(time.monotonic() - now)
            for key, _ in found:
                if self._is_registered(key):  # (not where an event before this one has closed it)
                    key.data(key.fileobj)
            self._end_some()

    def _is_registered(self, key: selectors.SelectorKey) -> bool:
        try:
            return self._events.get_key(key.fileobj) is key
        except (KeyError, ValueError):
            return False

    def _end_some(self) -> None:
        """End the trainers that have been idle for too long or are not back in time, and those that the memory lacks."""
        for waiting in self._pool.not_to_wait(time.monotonic()):
            self._end_wait(waiting, fork=True)
        for member in self._pool.to_end(time.monotonic(), boot_microseconds()):
            self._end(member)
        while (idle := self._pool.idle()) and memory_short():
            self._end(idle[0], wait=True)

    # --- requests -----------------------------------------------------------------------------------------
    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # the client has gone, or too many files are open
            time.sleep(0.01)
            return
        self._events.register(connection, selectors.EVENT_READ, self._request)

    def _request(self, connection: socket.socket) -> None:
        self._events.unregister(connection)
        files: list[int] = []
        try:
            text, files, _, _ = socket.recv_fds(connection, MOST_BYTES, 4)
            pid, user = peer(connection)
            gone = len(files) == 4 and select.select(files[3:], [], [], 0)[0]
            if text and user == os.geteuid() and not gone and len(files) in (0, 1, 4):
                request = json.loads(text)
                answers = {"list": self._list, "end": self._end_idle}
                if "op" in request:
                    connection.settimeout(ANSWER_SECONDS)
                    answers[request["op"]](connection, request)
                else:
                    self._idle_seconds, self._last_use = request["idle_ms"] / 1000, time.monotonic()
                    if len(files) == 1:
                        self._serve_for(request, files, connection)
                    elif files:
                        self._lease_for(pid, request, files, connection)
        except Exception:
            traceback.print_exc()  # the client has gone or is not a backend
        finally:
            for file in files:
                os.close(file)
            used = [*(member.connection for member in self._pool), *(w.connection for w in self._pool.waiting)]
            if all(connection is not other for other in used):
                connection.close()

    def _list(self, connection: socket.socket, request: Request) -> None:
        for member in self._pool:
            told = {
                **member.about,
                "pid": member.pid,
                "state": "serving" if member.serves and member.key is not None else member.state,
                "backend": member.backend,
                "since": member.since,
                "nets": len(member.held.get("nets", ())),
                "rows_bytes": member.held.get("rows_bytes", 0),
            }
            connection.send(json.dumps(told).encode())
        connection.send(b"{}")

    def _end_idle(self, connection: socket.socket, request: Request) -> None:
        members = self._pool.of(request["roles"], request["databases"])
        for member in members:
            self._end(member, wait=True)
        connection.send(json.dumps({"ended": len(members)}).encode())

    # --- leases -------------------------------------------------------------------------------------------
    def _lease_for(self, backend: int, request: Request, files: list[int], connection: socket.socket) -> None:
        """Lease an idle trainer to a backend, or fork a new one for it."""
        key = None if request.get("fresh") else request.get("key")
        self._look_at((request.get("wants") or {}).get("trainer"))
        for member in self._pool.free(key, request.get("wants") or {}):
            if member.file not in self._pool.members or self._make_room(request, member) is not None:
                continue
            if self._lease(member, backend, request, files):
                self._events.register(connection, selectors.EVENT_READ, self._left)
                member.connection = connection
                answer = {"pid": member.pid, **{name: member.held.get(name, []) for name in ("nets", "datasets")}}
                break
            self._end(member)  # it hangs
        else:
            if self._pool.is_expected(key):
                kept = [os.dup(file) for file in files]
                self._pool.waiting.append(Waiting(backend, request, kept, connection, time.monotonic()))
                self._events.register(connection, selectors.EVENT_READ, self._stops_waiting)
                return
            if full := self._make_room(request):
                _try_send(connection, {"full": full})
                connection.close()
                return
            _try_send(connection, {"forking": True})
            for member in self._pool.surplus((request.get("about") or {}).get("role"), request.get("most"), 1):
                self._end(member)
            member = self._fork_for(backend, request, files, connection)
            answer = {"pid": member.pid}
        _try_send(connection, answer)  # (if the backend has gone, the lease ends with its connection)

    def _make_room(self, request: Request, own: Member | None = None) -> str | None:
        """End idle trainers so that a trainer may take its part of a device's memory: None, or why that is not enough.
        `own`: the idle member that it would be."""
        ends, full = self._pool.room(request.get("device"), own, (request.get("about") or {}).get("role"))
        for member in ends:
            self._end(member, wait=True)
        return full

    # --- serving processes --------------------------------------------------------------------------------
    def _serve_for(self, request: Request, files: list[int], connection: socket.socket) -> None:
        """Hand a session's socket to a serving process, or fork one for it. Without one, the session leases a trainer."""
        key, role, most = request["key"], request["about"]["role"], request.get("most")
        for member in self._pool.serving(key):
            # (a session hears of the end before this process does)
            if member.pid == request.get("lost") and select.select([member.file], [], [], ANSWER_SECONDS)[0]:
                self._ended(member.file)
        if self._pool.needs_serving(key, request["serving"], role, most):
            ends, full = self._pool.room(request.get("device"), None, role)
            if full is None and not any(member.state == "serving" or member.key == key for member in ends):
                for member in [*ends, *self._pool.surplus(role, most, 1)]:
                    self._end(member, wait=True)
                self._fork_serving(request, files, connection)
        for member in self._pool.serving(key):
            try:
                member.control.setblocking(False)
                socket.send_fds(member.control, [b"{}"], files)
            except OSError:  # it takes nothing: it hangs, or has ended
                self._end(member)
                continue
            member.came += 1
            _try_send(connection, {"pid": member.pid})
            return

    def _told(self, control: socket.socket) -> None:
        """A serving process tells how it is."""
        member = next(member for member in self._pool if member.control is control)
        try:
            self._pool.hear(member, json.loads(control.recv(MOST_BYTES)), boot_microseconds())
        except (OSError, ValueError, LookupError):  # it has ended
            self._events.unregister(control)

    def _fork_serving(self, request: Request, files: list[int], connection: socket.socket) -> None:
        parent = os.getpid()
        pid, file, ours = self._forked(
            lambda naming, control: self._become_serving(request, files, connection, naming, control, parent)
        )
        about, since = request["about"], boot_microseconds()
        member = Member(pid, file, ours, request["key"], about, None, 0, since, _seconds(request), "serving")
        member.most, member.device, member.serves = request.get("most"), request.get("device"), True
        self._pool.members[file] = member
        self._events.register(file, selectors.EVENT_READ, self._ended)
        self._events.register(ours, selectors.EVENT_READ, self._told)

    def _become_serving(
        self,
        request: Request,
        files: list[int],
        connection: socket.socket,
        naming: int,
        control: socket.socket,
        parent: int,
    ) -> None:
        """In the child: become a serving process. What it prints is in the log of the fork server."""
        try:
            die_with_parent(parent)
            self._leave(connection)
            for file in files:
                os.close(file)
            os.setsid()
            os.environ.update(request["environment"])
            arguments = [request["trainer_idle_ms"], *request["arguments"]]
            from setproctitle import setproctitle

            setproctitle(f"{sys.executable} -I -B -m {request['module']} {' '.join(map(str, arguments))}")
            with open(os.devnull) as null:
                os.dup2(null.fileno(), 0)
            os.write(naming, b".")
            os.close(naming)
            assert self._trainer_module is not None
            self._trainer_module.serve(control, *arguments)
        except BaseException:
            traceback.print_exc()

    def _end_wait(self, waiting: Waiting, fork: bool = False) -> None:
        """Lease a trainer that is back, or `fork` one, to a request that has waited."""
        self._pool.waiting.remove(waiting)
        self._events.unregister(waiting.connection)
        try:
            request = {**waiting.request, "fresh": True} if fork else waiting.request
            self._lease_for(waiting.backend, request, waiting.files, waiting.connection)
        except Exception:
            traceback.print_exc()
            waiting.connection.close()  # the backend will start a trainer itself
        finally:
            for file in waiting.files:
                os.close(file)

    def _stops_waiting(self, connection: socket.socket) -> None:
        """A backend has gone while its request waited."""
        waiting = next(waiting for waiting in self._pool.waiting if waiting.connection is connection)
        self._pool.waiting.remove(waiting)
        self._events.unregister(connection)
        connection.close()
        for file in waiting.files:
            os.close(file)

    def _lease(self, member: Member, backend: int, request: Request, files: list[int]) -> bool:
        """Hand a backend's pipes to an idle trainer: True once the process list shows the lease."""
        since = boot_microseconds()
        offer = {"backend": backend, "since": since, "idle_ms": request["trainer_idle_ms"]}
        try:
            member.control.settimeout(ANSWER_SECONDS)
            socket.send_fds(member.control, [json.dumps(offer).encode()], files)
            if not receive(member.control, ANSWER_SECONDS):
                return False
        except OSError:
            return False
        member.state, member.backend, member.since = "leased", backend, since
        member.keep_seconds, member.most, member.device = _seconds(request), request.get("most"), request.get("device")
        return True

    def _fork_for(self, backend: int, request: Request, files: list[int], connection: socket.socket) -> Member:
        since = boot_microseconds()
        pid, file, ours = self._forked(
            lambda naming, control: self._become_trainer(backend, since, request, files, connection, naming, control)
        )
        member = Member(
            pid,
            file,
            ours,
            request.get("key"),
            request.get("about") or {},
            connection,
            backend,
            since,
            _seconds(request),
            most=request.get("most"),
            device=request.get("device"),
        )
        self._pool.members[file] = member
        self._events.register(file, selectors.EVENT_READ, self._ended)
        self._events.register(ours, selectors.EVENT_READ, self._freed)
        self._events.register(connection, selectors.EVENT_READ, self._left)
        return member

    def _forked(self, become: Callable[[int, socket.socket], None]) -> tuple[int, int, socket.socket]:
        """Fork a process that calls `become(naming, control)`, which writes into `naming` once the process has its own name:
        (process ID, pidfd, our side of `control`)."""
        named, naming = os.pipe()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            os.close(named)
            os.close(naming)
            ours.close()
            theirs.close()
            raise
        if not pid:
            try:
                os.close(named)
                ours.close()
                become(naming, theirs)
            finally:
                os._exit(1)
        os.close(naming)
        theirs.close()
        try:
            # continue only when the process has its own name, so the process list never shows two fork servers
            if not os.read(named, 1):
                raise ChildProcessError("the child did not become a trainer")
            return pid, os.pidfd_open(pid), ours
        except BaseException:  # the backend will start another trainer
            ours.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        finally:
            os.close(named)

    def _leave(self, connection: socket.socket) -> None:
        """In the child: close the descriptors of the fork server."""
        for waiting in self._pool.waiting:
            for file in waiting.files:
                os.close(file)
        for key in list(self._events.get_map().values()):  # descriptors of the fork server's event loop
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        self._events.close()
        connection.close()
        os.close(self._lock)

    def _become_trainer(
        self,
        backend: int,
        since: int,
        request: Request,
        files: list[int],
        connection: socket.socket,
        naming: int,
        control: socket.socket,
    ) -> None:
        """In the child: become the process that an exec of mop_udf.training.trainer would be."""
        try:
            self._leave(connection)
            os.setsid()
            os.environ.update(request["environment"])
            arguments = [backend, files[3], since, request["trainer_idle_ms"], *request["arguments"]]
            from setproctitle import setproctitle

            setproctitle(lease.title(request["module"], *arguments))
            for number, file in enumerate(files[:3]):
                os.dup2(file, number)
                os.close(file)
            os.write(naming, b".")
            os.close(naming)
            kept = control.detach() if request.get("key") else None
            if self._trainer_module is not None:
                self._trainer_module.live(*arguments, kept)
            for file in (files[3], *([] if kept is None else [kept])):
                os.set_inheritable(file, True)
            words = [backend, files[3], since, request["trainer_idle_ms"], -1 if kept is None else kept]
            relay = [*words, *request["ray"], *request["arguments"]]
            own = [sys.executable, "-I", "-B", "-m", request["module"], *map(str, relay)]
            os.execve(sys.executable, own, request["environment"])
        except BaseException:
            traceback.print_exc()

    # --- events of trainers and backends ------------------------------------------------------------------
    def _freed(self, control: socket.socket) -> None:
        """A trainer offers itself: its lease has ended."""
        member = next(member for member in self._pool if member.control is control)
        try:
            text = control.recv(MOST_BYTES)
            if text:
                member.held = json.loads(text)["free"]
        except (OSError, ValueError, KeyError):
            text = b""
        if not text:  # it ends; `_ended` tells its backend how
            self._events.unregister(control)
            return
        self._let_go(member)
        member.state, member.since, self._last_use = "idle", boot_microseconds(), time.monotonic()
        for waiting in self._pool.waiting:
            if self._pool.free(waiting.request["key"], waiting.request.get("wants") or {}):
                self._end_wait(waiting)
                break
        for surplus in self._pool.surplus(member.about.get("role"), member.most):
            self._end(surplus)

    def _left(self, connection: socket.socket) -> None:
        """A backend has ended its connection, and with it its lease."""
        for member in self._pool:
            if member.connection is connection:
                self._let_go(member)

    def _look_at(self, pid: int | None) -> None:
        """Note the end of a trainer's lease whose event has not come yet: another process of the same session asks for it."""
        for member in self._pool:
            if member.pid == pid and member.connection and select.select([member.connection], [], [], 0)[0]:
                self._let_go(member)

    def _let_go(self, member: Member) -> None:
        if member.connection is not None:
            self._events.unregister(member.connection)
            member.connection.close()
        self._pool.leave(member, time.monotonic())

    def _end(self, member: Member, wait: bool = False) -> None:
        """Kill a trainer; its end is an event. `wait`: return when its memory is free."""
        try:
            signal.pidfd_send_signal(member.file, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if wait:
            select.select([member.file], [], [], ANSWER_SECONDS)
        member.state, member.returning, member.key = "returning", time.monotonic(), None
        if wait:
            self._ended(member.file)

    def _ended(self, file: int) -> None:
        member = self._pool.members.pop(file)
        self._events.unregister(file)
        os.close(file)
        code = os.waitstatus_to_exitcode(os.waitpid(member.pid, 0)[1])
        if member.control in self._events.get_map():
            self._events.unregister(member.control)
        member.control.close()
        if member.connection is not None:
            self._events.unregister(member.connection)
            _try_send(member.connection, {"code": code})
            member.connection.close()
        self._last_use = time.monotonic()


def boot_microseconds() -> int:
    """The time since the machine's start, which orders leases and starts of processes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def _seconds(request: Request) -> float | None:
    """The idle time in the pool after which the trainer of a request ends; None for no limit."""
    return request["keep_ms"] / 1000 if request.get("keep_ms") else None


def _try_send(connection: socket.socket, message: dict[str, Any]) -> None:
    try:
        connection.send(json.dumps(message).encode())
    except OSError:
        pass  # the backend has gone or does not listen any more


def main() -> None:
    os.pwrite(int(sys.argv[2]), str(os.getpid()).encode(), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell ignores them for background commands
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

    from setproctitle import getproctitle

    getproctitle()  # locates the title's memory, which is impossible after a change of the environment
    prefer_oom_kill()
    trainer: ModuleType | None = None
    if os.environ["KERAS_BACKEND"] != RELAYS:
        from mop_udf.training import trainer as module

        module.import_frameworks()
        module.import_own()
        trainer = module
    listener, lock, postmaster = map(int, sys.argv[1:4])
    ForkServer(listener, lock, postmaster, trainer).serve()


if __name__ == "__main__":
    main()
