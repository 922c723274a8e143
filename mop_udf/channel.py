"""The framed pipe between a backend and its trainer. Standard library only.

A frame is a JSON header and any number of binary payloads:
``u32 header length | header | payload | payload ...``; the header's "sizes" are the payloads' lengths in bytes.
"""

import json
import os
import select
import struct

TICK_SECONDS = 0.1


class ChannelClosed(Exception):
    """The other side has gone."""


class Channel:
    """One side of the pipe. Where `tick` is given, it is called at least every 0.1 s while waiting."""

    def __init__(self, read_fd, write_fd, tick=None):
        self.read_fd, self.write_fd, self.tick = read_fd, write_fd, tick
        self.pending = 0  # bytes of the last frame's payloads that have not been read
        if tick is not None:
            os.set_blocking(write_fd, False)
            os.set_blocking(read_fd, False)

    def send(self, header, *payloads):
        """Send one frame; payloads are bytes-like and are not copied."""
        views = [memoryview(p).cast("B") for p in payloads]
        text = json.dumps({**header, "sizes": [v.nbytes for v in views]}).encode()
        self._write(memoryview(struct.pack("<I", len(text)) + text))
        for view in views:
            self._write(view)

    def receive_header(self):
        """The next frame's header; its payloads follow by `receive_into`, one for each of header["sizes"].

        What nobody read of the last frame is skipped: payloads are never taken for frames, whatever went wrong
        meanwhile.
        """
        while self.pending:
            self.receive_into(memoryview(bytearray(min(self.pending, 1 << 20))))
        size = struct.unpack("<I", self._read(4))[0]
        header = json.loads(self._read(size).decode())
        self.pending = sum(header["sizes"])
        return header

    def receive(self, joined=False):
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

    def receive_into(self, view):
        """Fill the writable buffer `view` with what follows of the frame's payloads."""
        view = memoryview(view).cast("B")
        self._fill(view)
        self.pending -= view.nbytes

    def _read(self, size):
        data = bytearray(size)
        self._fill(memoryview(data))
        return data

    def _fill(self, view):
        done = 0
        while done < view.nbytes:
            if self.tick is not None:
                self._wait([self.read_fd], [])
            try:
                count = os.readv(self.read_fd, [view[done:done + (1 << 24)]])
            except BlockingIOError:
                continue
            if count == 0:
                raise ChannelClosed
            done += count

    def wait_readable(self, seconds):
        """True when a frame begins within `seconds`."""
        return bool(select.select([self.read_fd], [], [], seconds)[0])

    def _write(self, view):
        try:
            while view.nbytes:
                if self.tick is not None:
                    self._wait([], [self.write_fd])
                try:
                    view = view[os.write(self.write_fd, view[:1 << 24]):]
                except BlockingIOError:
                    continue
        except BrokenPipeError:
            raise ChannelClosed from None

    def _wait(self, readers, writers):
        while not any(select.select(readers, writers, [], TICK_SECONDS)[:2]):
            self.tick()
