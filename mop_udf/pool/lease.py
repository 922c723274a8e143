"""A trainer's side of its leases: the pipes of the backend that leases it, and its way back into the pool.

While the trainer works on a request, the kernel kills it as soon as the backend is gone. While it waits for a request,
the end of the backend's pipe ends the lease: a trainer of the pool resets itself and offers itself again, any other
trainer ends. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

from mop_udf.pool.child_process import die_with_pipe, take_stdio
from mop_udf.pool.fork_server_client import MOST_BYTES

REST_SECONDS = 5  # that an idle trainer waits before it tidies up: a lease that follows at once must not wait for that


def title(module: str, backend: int, life: int, *arguments: Any) -> str:
    """The command line under which a trainer, or the relay to one, appears in the process list."""
    words = " ".join(str(word) for word in (backend, life, *arguments))
    return f"{sys.executable} -I -B -m {module} {words}"


class Lease:
    """The descriptors of the present lease. They keep their numbers from lease to lease.

    `life`: the reading end of a pipe whose other end the backend holds; `control`: the descriptor of the socket to the
    pool, or None; `since`: when the lease began, for the process list; `idle_ms`: the time without requests after which
    the trainer leaves, 0 for no limit; `arguments`: further arguments of the command line that the process list shows;
    `module`: the module that this process runs.
    """

    def __init__(
        self,
        life: int,
        control: int | None,
        idle_ms: int,
        arguments: tuple[Any, ...],
        module: str = "mop_udf.training.trainer",
    ) -> None:
        self.read_fd, self.write_fd = take_stdio()
        self._life, self._arguments, self._module = life, arguments, module
        self._control = None if control is None else socket.socket(fileno=control)
        self.idle_seconds = idle_ms / 1000 if idle_ms else None

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Within this context, this process dies with its backend."""
        die_with_pipe(self._life)
        try:
            yield
        finally:
            self.at_rest()

    def at_rest(self) -> None:
        """From now on the end of the backend does not kill this process."""
        fcntl.fcntl(self._life, fcntl.F_SETFL, fcntl.fcntl(self._life, fcntl.F_GETFL) & ~os.O_ASYNC)

    def is_renewable(self) -> bool:
        """True if this trainer belongs to a pool."""
        return self._control is not None

    def release(self) -> None:
        """The lease has ended: let go of the backend's pipes and of its log."""
        sys.stdout.flush()  # what is still held back belongs into this lease's log
        null = os.open(os.devnull, os.O_RDWR)
        for number in (self.read_fd, self.write_fd, self._life):
            os.dup2(null, number, inheritable=False)
        for number in (1, 2):
            os.dup2(null, number)
        os.close(null)

    def renew(self, held: dict[str, Any], tidy: Callable[[], object] = lambda: None) -> None:
        """Offer this trainer to the pool, and wait for the next lease; `held`: see pool.Member; `tidy`: called once meanwhile,
        unless that begins soon. Ends this process if the pool ends this trainer, or is gone."""
        if not self._renew(held, tidy):
            os._exit(0)

    def _renew(self, held: dict[str, Any], tidy: Callable[[], object]) -> bool:
        from setproctitle import setproctitle

        control = self._control
        assert control is not None
        setproctitle(title(self._module, 0, self._life, 0, 0, *self._arguments))
        try:
            control.send(json.dumps({"free": held}).encode())
            if not select.select([control], [], [], REST_SECONDS)[0]:
                tidy()
            text, files, _, _ = socket.recv_fds(control, MOST_BYTES, 4)
            if not text or len(files) != 4:
                return False
            lease = json.loads(text)
            for number, file in zip((self.read_fd, self.write_fd, 2, self._life), files, strict=True):
                os.dup2(file, number, inheritable=number == 2)
                os.close(file)
            os.dup2(2, 1)
            self.idle_seconds = lease["idle_ms"] / 1000 if lease["idle_ms"] else None
            # the pool waits for the answer: from then on the process list shows who has the lease
            told = lease["backend"], self._life, lease["since"], lease["idle_ms"]
            setproctitle(title(self._module, *told, *self._arguments))
            control.send(b'{"leased": true}')
        except OSError:
            return False
        return True
