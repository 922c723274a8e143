"""The backend's side of the serving processes, which the sessions of a role share (mop_udf/training/serving.py).

Standard library only: backends import this module.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

from mop_udf.pool import fork_server_client
from mop_udf.pool.channel import Channel, ChannelClosed
from mop_udf.pool.patience import Patience
from mop_udf.pool.process import (
    TrainerLost,
    check_answer,
    main_part_mb,
    memory_mb_of,
    processor_ticks_of,
    serving_request,
)

STUCK_SECONDS = 10  # without processor time, while a session waits: then the process is stopped, or hangs
TRIES = 3  # of a request: at an old connection, whose process may have ended at rest; at a new one; and once more


class NotServed(TrainerLost):
    """No serving process answers: the session leases a trainer of its own."""

    def __init__(self) -> None:
        super().__init__("no serving process answers")


class Served:
    """This session's connection to a serving process, which is made when a request needs it.

    The pool may end the process at any moment. A request changes nothing, so it is sent again, to another process.
    """

    def __init__(self, home: str, check_interrupts: Callable[[], object]) -> None:
        self._home, self._check_interrupts = home, check_interrupts
        self._options: Mapping[str, Any] | None = None  # of the process that it is connected to
        self._socket: socket.socket | None = None
        self._file: int | None = None  # a pidfd
        self.pid: int | None = None
        # the processor time of the process, and how long it may stay so
        self._ticks, self._patience = -1, Patience(STUCK_SECONDS)
        self._lost: int | None = None  # the process that has ended the connection, if that was the last one

    def request(self, options: Mapping[str, Any], header: dict[str, Any], *payloads: Any) -> tuple[dict[str, Any], Any]:
        """The answer of a process with these options, of the role that they name: (header, payloads).

        Raises NotServed, and TrainerError for an answer that is an error. An interruption ends the connection: the answer would
        be taken for the next one.
        """
        for _ in range(TRIES):
            try:
                channel = self._connected(options)
                self._ticks = -1
                channel.send(header, *payloads)
                answer, found = channel.receive()
            except (ChannelClosed, OSError, ValueError):
                self._lost = self.pid
                self.close()
                continue
            except BaseException:
                self.close()
                raise
            check_answer(answer)
            return answer, found
        raise NotServed

    def _connected(self, options: Mapping[str, Any]) -> Channel:
        if self._socket is None or self._options != options:
            self.close()
            self._connect(options)
        assert self._socket is not None
        number = self._socket.fileno()
        return Channel(number, number, self._watch)

    def _connect(self, options: Mapping[str, Any]) -> None:
        request = serving_request(self._home, options)
        if request is None:
            raise NotServed
        request["lost"], self._lost = self._lost, None
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.pid = fork_server_client.serve(self._home, request, theirs.fileno(), self._check_interrupts)
        if self.pid is None:
            raise NotServed
        self._options, self._file = options, os.pidfd_open(self.pid)

    def _watch(self) -> None:
        """End a process that holds too much memory, or does nothing; check interrupts. Called at least every 0.1 s while
        waiting."""
        assert self._options is not None and self._file is not None
        limits = [mb for mb in (self._options.get("memory_mb"), main_part_mb(self._options)) if mb]
        ticks = processor_ticks_of(self.pid)
        if ticks != self._ticks:
            self._ticks, self._patience = ticks, Patience(STUCK_SECONDS)
        if limits and memory_mb_of(self.pid) > min(limits) or self._patience.over():
            signal.pidfd_send_signal(self._file, signal.SIGKILL)
        self._check_interrupts()

    def close(self) -> None:
        """End the connection. The process drops a request that it has not begun."""
        if self._socket is not None:
            self._socket.close()
        if self._file is not None:
            os.close(self._file)
        self._socket = self._file = self._options = self.pid = None
