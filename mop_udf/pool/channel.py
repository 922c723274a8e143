"""The framed pipe between a backend and its trainer. Standard library only.

A frame is a JSON header and any number of binary payloads:
``u32 header length | header | payload | payload ...``; the header's "sizes" are the payloads' lengths in bytes.
"""

import json
import os
import select
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

CHECK_SECONDS = 0.1
SMALL = 1 << 16  # bytes; smaller writes are collected, and reads fetch at least as many
# size of a part of a model state, a row of its table (for 32 MB, malloc takes new memory at each copy)
PART_BYTES = 8 << 20

Read = TypeVar("Read", bytes, int)  # what os.read and os.readv return


class ChannelClosed(Exception):
    """The other side of the pipe has closed it."""


def frame(header: dict[str, Any], payloads: Sequence[Any]) -> list[bytes | memoryview]:
    """The parts of a frame."""
    views = [memoryview(p).cast("B") for p in payloads]
    text = json.dumps({**header, "sizes": [v.nbytes for v in views]}).encode()
    return [struct.pack("<I", len(text)), text, *views]


class Channel:
    """One side of the pipe. `check_interrupts`, if given, is called at least every 0.1 s while waiting."""

    def __init__(self, read_fd: int, write_fd: int, check_interrupts: Callable[[], object] | None = None) -> None:
        self.read_fd, self.write_fd, self.check_interrupts = read_fd, write_fd, check_interrupts
        self.pending = 0  # unread bytes of the last frame's payloads
        self._held = bytearray()  # small frames, held back until the next frame
        self._ahead = memoryview(b"")  # bytes read beyond the last request
        if check_interrupts is not None:
            os.set_blocking(write_fd, False)
            os.set_blocking(read_fd, False)

    def send(self, header: dict[str, Any], *payloads: Any, more: bool = False) -> None:
        """Send one frame. Payloads are bytes-like; large payloads are not copied.

        `more`: another frame follows, or the caller reads an answer next; small frames are held back until then. Each
        write wakes the other side, which costs more than writing a few bytes.
        """
        for view in frame(header, payloads):
            if len(self._held) + len(view) > SMALL:
                self._flush()
            if len(view) > SMALL:
                self._write(memoryview(view))
            else:
                self._held += view
        if not more:
            self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, bytearray()
        self._write(memoryview(held))

    def receive_header(self) -> dict[str, Any]:
        """The next frame's header. `receive_into` reads its payloads, one for each of header["sizes"].

        Unread payloads of the last frame are skipped, so payloads are never mistaken for frames after an error.
        """
        self._flush()
        while self.pending:
            self.receive_into(memoryview(bytearray(min(self.pending, 1 << 20))))
        size = struct.unpack("<I", self._read(4))[0]
        header = json.loads(self._read(size).decode())
        self.pending = sum(header["sizes"])
        return header

    def receive(self, joined: bool = False) -> tuple[dict[str, Any], Any]:
        """The next frame: (header, [payload, ...]) with bytearray payloads; `joined`: (header, all in one)."""
        header = self.receive_header()
        if joined:
            whole = bytearray(self.pending)
            self.receive_into(whole)
            return header, whole
        payloads = []
        for size in header["sizes"]:
            payloads.append(bytearray(size))
            self.receive_into(payloads[-1])
        return header, payloads

    def receive_into(self, view: Any) -> None:
        """Fill the writable buffer `view` with the next bytes of the frame's payloads."""
        view = memoryview(view).cast("B")
        self._fill(view)
        self.pending -= view.nbytes

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        self._fill(memoryview(data))
        return data

    def _fill(self, view: memoryview) -> None:
        done = 0
        while done < view.nbytes:
            if self._ahead:
                part = self._ahead[: view.nbytes - done]
                view[done : done + part.nbytes] = part
                self._ahead = self._ahead[part.nbytes :]
                done += part.nbytes
            elif view.nbytes - done < SMALL:
                self._ahead = memoryview(self._some(os.read, SMALL))
            else:
                done += self._some(os.readv, [view[done : done + (1 << 24)]])

    def _some(self, read: Callable[[int, Any], Read], how: Any) -> Read:
        """Call `read` until it returns data; wait in between. Raises ChannelClosed at the end of the pipe."""
        while True:
            try:
                found = read(self.read_fd, how)
            except BlockingIOError:
                self._wait([self.read_fd], [])
                continue
            if not found:
                raise ChannelClosed
            return found

    def wait_readable(self, seconds: float | None) -> bool:
        """True as soon as a frame begins; False after `seconds`."""
        return bool(self._ahead or select.select([self.read_fd], [], [], seconds)[0])

    def has_ended(self) -> bool:
        """True if the other side has closed the pipe, and nothing of it is unread. To be asked when it is readable."""
        if not self._ahead:
            self._ahead = memoryview(os.read(self.read_fd, SMALL))
        return not self._ahead

    def begin_anew(self) -> None:
        """Drop the data that a lease has left in the buffers; the next lease has other pipes under the same descriptors."""
        self.pending, self._held, self._ahead = 0, bytearray(), memoryview(b"")

    def _write(self, view: memoryview) -> None:
        try:
            while view.nbytes:
                try:
                    view = view[os.write(self.write_fd, view[: 1 << 24]) :]
                except BlockingIOError:
                    self._wait([], [self.write_fd])
        except BrokenPipeError:
            raise ChannelClosed from None

    def _wait(self, readers: list[int], writers: list[int]) -> None:
        while not any(select.select(readers, writers, [], CHECK_SECONDS)[:2]):
            if self.check_interrupts is not None:
                self.check_interrupts()
