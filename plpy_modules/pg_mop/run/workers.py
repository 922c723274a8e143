"""The workers of a run: how many there are, lost sessions, and servers that do not answer for a while."""

import itertools
import time
from collections.abc import Iterator

from pg_mop.backend.errors import MopError
from pg_mop.run.instructions import GiveServerUp, Instructions
from pg_mop.run.run import Run

AWAY_SECONDS = 3  # for a connection to a server that has been away
BACK_OFF = 0.5, 60.0  # seconds until the first look for a server that is away, and at most until the next
SILENT_SECONDS = 30  # without an answer from a server, until the run goes on without it, where it can


class Workers:
    """Opens, replaces and ends the worker sessions of a run while it goes on."""

    def __init__(self, run: Run) -> None:
        self.run = run
        # worker -> (when to look whether its server is back, seconds until the look after that, until when)
        self.away: dict[int, tuple[float, float, float]] = {}

    # --- how many -----------------------------------------------------------------------------------
    def resize(self) -> None:
        """Go on with the sessions that are wanted, or as many of them as can be opened. A worker that leaves ends its units
        first."""
        run, board, opened = self.run, self.run.board, self.run.sessions.by_worker
        servers, served = board.servers, board.workers

        def all_workers() -> Iterator[int]:
            yield from served
            for worker in itertools.count():
                if worker not in served and worker not in opened and board.server(worker) in servers:
                    yield worker

        first = [next(worker for worker in all_workers() if board.server(worker) == server) for server in servers]
        more = (worker for worker in all_workers() if worker not in first)
        chosen = first + list(itertools.islice(more, max(0, run.wanted - len(first))))
        refused = run.sessions.add([worker for worker in chosen if worker not in served])
        workers = [worker for worker in chosen if worker in served or worker in opened]
        if refused is not None:
            run.db.warning(
                f"run {run.run_id} goes on with {len(workers)} worker sessions, not {len(chosen)}", detail=str(refused)
            )
        for worker in {*first} - {*workers}:  # no other worker does that server's segments
            self._wait_for(worker)
        board.serve({*workers, *first})
        self.let_go()

    def let_go(self) -> None:
        """End the idle sessions of workers that the board does not use any more."""
        for worker, session in list(self.run.sessions.by_worker.items()):
            if worker not in self.run.board.workers and not session.work:
                self.end(worker)

    def end(self, worker: int) -> None:
        """End a worker's session."""
        self.run.sessions.end(worker)
        self.run.forget_ahead(worker)

    # --- lost sessions ------------------------------------------------------------------------------
    def replace(self, worker: int) -> Instructions:
        """Open a new session for a worker whose session was lost. Where that fails, the run goes on with the other
        workers, or waits for the server; raises MopError where no worker is left."""
        run, board, opened = self.run, self.run.board, self.run.sessions.by_worker
        if worker not in board.workers:  # it was to leave anyway
            self.end(worker)
            return
        try:
            run.sessions.fresh(worker)
            return
        except MopError as error:
            refused = error
        server = board.server(worker)
        others = [other for other in board.workers if other != worker]
        if not run.servers[server].home and not any(
            other in opened and board.server(other) == server for other in others
        ):
            self.end(worker)
            if server is not None and run.can_do_without(server):
                yield GiveServerUp(server, refused.message)
            else:
                self._wait_for(worker)
                run.db.warning(
                    f"run {run.run_id} goes on without server {server} until it is back: {refused.message}",
                    detail=refused.detail,
                )
            return
        if not any(other in opened for other in others):
            raise refused
        left = [other for other in others if other in opened or other in self.away]
        self.end(worker)
        board.serve(left)
        run.db.warning(
            f"run {run.run_id} goes on with {len(left)} worker sessions: {refused.message}", detail=refused.detail
        )

    # --- servers that do not answer -----------------------------------------------------------------
    def _wait_for(self, worker: int) -> None:
        now = time.monotonic()
        self.away[worker] = now + BACK_OFF[0], BACK_OFF[0], now + self.run.policy.server_timeout

    def check_servers(self) -> Instructions:
        """Look whether the other servers answer. Raises MopError where one has not answered for server_timeout."""
        timeout = self.run.policy.server_timeout
        for name, server in list(self.run.servers.items()):
            if server.home:
                continue
            silent = self.run.sessions.silence(server)
            server.silent = server.silent and silent > 0
            if name is not None and silent > min(SILENT_SECONDS, timeout / 4) and self.run.can_do_without(name):
                yield GiveServerUp(name, f"it has not answered for {silent:.0f} s")
            elif silent > timeout:
                raise self.run.waited_in_vain(f"server {name} has not answered for {silent:.0f} s", "it is back")

    def come_back(self) -> Instructions:
        """Open sessions on the servers that were away. True where one is back. Raises MopError after server_timeout."""
        back, board = False, self.run.board
        for worker, (when, delay, until) in list(self.away.items()):
            now = time.monotonic()
            if now < when:
                continue
            try:
                self.run.sessions.fresh(worker, AWAY_SECONDS)
            except MopError as error:
                self.end(worker)  # (it may have a session whose trainer cannot be started)
                server = board.server(worker)
                if server is not None and self.run.can_do_without(server):
                    yield GiveServerUp(server, error.message)
                    back = True
                    continue
                if now > until:
                    raise self.run.waited_in_vain(
                        f"server {server} has been away for {self.run.policy.server_timeout:g} s: {error.message}",
                        "it is back",
                        error.detail,
                    ) from None
                self.away[worker] = now + min(BACK_OFF[1], 2 * delay), 2 * delay, until
                continue
            del self.away[worker]
            back = True
        return back

    def leave(self, name: str) -> None:
        """A server is given up: end the sessions there, and look for it no more."""
        board = self.run.board
        for worker, session in list(self.run.sessions.by_worker.items()):
            if board.server(worker) == name:
                session.work = []
                self.end(worker)
        self.away = {worker: until for worker, until in self.away.items() if board.server(worker) != name}
