"""A serving process: it answers for the sessions of a role that ask models which Keras must compute.

The fork server forks it (fork_server.py), and hands it a socket of each session that comes to share it. A session sends a
request as one frame (channel.py), and waits for the answer:

    predict ...             see predictors.py; requests for one model that wait are answered as one batch
    pictures {...}, files   see pictures.py

One thread does everything. It reads what has come without waiting for the rest, so a session that stands still hinders no
other, and it computes one batch between two looks. A session that goes away, as a cancelled one does, takes its request along.
The process runs no code of users: models with custom code have a leased trainer. It tells the pool how many sessions have left
it, which models it keeps, and whether it is at rest: then the pool may end it. It dies with the fork server.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from mop_udf.kernels import batch_size
from mop_udf.kernels.framework import framework
from mop_udf.pool import pool
from mop_udf.pool.channel import frame
from mop_udf.pool.fork_server_client import MOST_BYTES
from mop_udf.training import sizes
from mop_udf.training.predictors import Frame, Header, Predictors, failure

READ_BYTES = 1 << 20
MOST_ROWS = batch_size.MOST  # of the requests that become one batch


class Asking:
    """A session: its socket, what has come of its request, and what must still be sent of the answer."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._came, self._size = bytearray(), 4  # the bytes of the frame, and how many are needed to read on
        self._header: Header | None = None
        self._left = memoryview(b"")

    def read(self) -> Request | None:
        """Read what has come: the request once it is complete. Raises OSError at the end of the connection, ValueError where
        more comes than one request."""
        data = self.connection.recv(READ_BYTES)
        if not data:
            raise ConnectionError
        self._came += data
        while len(self._came) >= self._size:
            if self._header is not None:
                return self._request(self._header)
            (text,) = struct.unpack_from("<I", self._came)
            if len(self._came) < 4 + text:
                self._size = 4 + text
            else:
                self._header = json.loads(self._came[4 : 4 + text])
                self._size = 4 + text + sum(self._header["sizes"])
        return None

    def _request(self, header: Header) -> Request:
        if len(self._came) != self._size:
            raise ValueError("more than a request")
        view = memoryview(self._came)
        self._came, self._size, self._header = bytearray(), 4, None
        payloads, start = [], len(view) - sum(header["sizes"])
        for size in header["sizes"]:
            payloads.append(view[start : start + size])
            start += size
        return Request(self, header, payloads)

    def answer(self, header: Header, payloads: Sequence[Any]) -> bool:
        """Send an answer, or as much of it as the session reads at once: True if that was all."""
        self._left = memoryview(b"".join(frame(header, payloads)))
        return self.write()

    def write(self) -> bool:
        """Send more of the answer: True once all is sent. Raises OSError at the end of the connection."""
        try:
            while self._left:
                self._left = self._left[self.connection.send(self._left[: 1 << 24]) :]
        except BlockingIOError:
            return False
        return True


@dataclass(eq=False)
class Request:
    """A session's request that waits."""

    asking: Asking
    header: Header
    payloads: Sequence[Any]

    @property
    def rows(self) -> int:
        return max((shape[0] for shape in self.header.get("shapes", ())), default=0)

    def joins(self, other: Request) -> bool:
        """True if both can be answered as one batch."""
        return self.batch is not None and self.batch == other.batch

    @property
    def batch(self) -> tuple[str, Any] | None:
        header = self.header
        if header["op"] != "predict" or "architecture" in header or not header["shapes"]:
            return None
        return header["digest"], [shape[1:] for shape in header["shapes"]]


class Serving:
    """Reads requests, answers them in their order, and tells the pool."""

    def __init__(self, control: socket.socket, quiet_seconds: float, predictors: Predictors) -> None:
        """`control`: to the pool; `quiet_seconds`: without a request, after which the process is at rest."""
        self._control, self._quiet_seconds, self._predictors = control, quiet_seconds, predictors
        self._events = selectors.DefaultSelector()
        self._events.register(control, selectors.EVENT_READ)
        self._waiting: list[Request] = []
        self._last = time.monotonic()
        self._is_quiet, self._left = False, 0  # sessions that have gone
        self._told = ""

    def step(self) -> None:
        """Look for requests, and answer those for the model that has waited longest."""
        rest = max(0.0, self._last + self._quiet_seconds - time.monotonic())
        self._look(0 if self._waiting else None if self._is_quiet else rest)
        self._is_quiet = not self._waiting and time.monotonic() >= self._last + self._quiet_seconds
        self._tell()
        if self._waiting:
            self._answer_first()
            self._last = time.monotonic()

    def _tell(self) -> None:
        held = {"nets": pool.names(self._predictors.kept)}
        text = json.dumps({"quiet": self._is_quiet, "left": self._left, "held": held})
        if text != self._told:
            self._control.send(text.encode())
            self._told = text

    def _look(self, seconds: float | None) -> None:
        """Take what has come: sessions, and requests of those that this process has."""
        for key, mask in self._events.select(seconds):
            if key.fileobj is self._control:
                self._accept()
                continue
            asking: Asking = key.data
            try:
                if mask & selectors.EVENT_WRITE and asking.write():
                    self._events.modify(asking.connection, selectors.EVENT_READ, asking)
                if mask & selectors.EVENT_READ and (request := asking.read()):
                    self._waiting.append(request)
            except BlockingIOError:
                pass
            except (OSError, ValueError, LookupError, TypeError):
                self._drop(asking)

    def _accept(self) -> None:
        text, files, _, _ = socket.recv_fds(self._control, MOST_BYTES, 1)
        if not text:
            os._exit(0)
        for file in files:
            asking = Asking(socket.socket(fileno=file))
            self._events.register(asking.connection, selectors.EVENT_READ, asking)

    def _drop(self, asking: Asking) -> None:
        """A session has gone, or sends what is no request."""
        self._events.unregister(asking.connection)
        asking.connection.close()
        self._waiting = [request for request in self._waiting if request.asking is not asking]
        self._left += 1

    def _answer_first(self) -> None:
        """Answer the request that has waited longest, and those that wait for the same model."""
        first = self._waiting.pop(0)
        together = [first]
        try:
            rows = first.rows
            for other in [request for request in self._waiting if request.joins(first)]:
                if rows + other.rows <= MOST_ROWS:
                    rows += other.rows
                    together.append(other)
                    self._waiting.remove(other)
            answers = self._answers(together)
        except Exception as error:
            answers = [(failure(error, self._predictors.memory_mb), ())] * len(together)
        for request, (header, payloads) in zip(together, answers, strict=True):
            try:
                if not request.asking.answer(header, payloads):
                    both = selectors.EVENT_READ | selectors.EVENT_WRITE
                    self._events.modify(request.asking.connection, both, request.asking)
            except OSError:
                self._drop(request.asking)

    def _answers(self, together: Sequence[Request]) -> list[Frame]:
        frames = [(request.header, request.payloads) for request in together]
        if frames[0][0]["op"] == "predict":
            return self._predictors.answers(frames)
        from mop_udf.training import pictures

        return [pictures.answer(*frames[0])]


def live(control: socket.socket, quiet_ms: int, threads: int, _: int, memory_mb: int, model_mb: int) -> NoReturn:
    """Serve in this process, a fork of the fork server; the last arguments are those of a trainer."""
    framework.begin(threads)
    sizes.limit_mb = model_mb or None
    batch_size.limit_bytes = memory_mb << 20 if memory_mb else None
    serving = Serving(control, quiet_ms / 1000, Predictors(memory_mb))
    while True:
        serving.step()
