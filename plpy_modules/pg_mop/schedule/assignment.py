"""The workers of a board: the segments that each one does, and the stage that is reserved for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pg_mop.plan.stages import StageNumber
from pg_mop.schedule.unit import Dataset, DatasetSegment, SegmentNumber, Server, Worker


class Assignment:
    """Deals the segments out to workers, each of which does segments of its own server only."""

    anywhere = False  # every worker does all training segments of its server (set it before `serve`)
    # {training segment: the servers that have a copy, its own server among them where a copy is used in its place}
    copies: Mapping[SegmentNumber, Collection[Server]] = {}  # noqa: RUF012 (replaced, never changed)

    def __init__(
        self,
        segments: Iterable[SegmentNumber],
        validation_segments: Iterable[SegmentNumber] = (),
        servers: Mapping[DatasetSegment, Server] | None = None,
        others: Iterable[Server] = (),
    ) -> None:
        """At first, one worker for each training segment does that segment, and the same workers share the validation
        segments.

        `servers`: the server that holds a segment; None for one that is not listed. `others`: servers that may get
        segments later (`relocate`).
        """
        self.segments: list[SegmentNumber] = list(segments)
        self.datasets: list[DatasetSegment] = [("training", s) for s in self.segments]
        self.datasets += [("validation", s) for s in validation_segments]
        self.server_of: dict[DatasetSegment, Server] = {key: (servers or {}).get(key) for key in self.datasets}
        self.servers: list[Server] = list(dict.fromkeys(self.server_of.values()))  # that hold segments now, and guests
        # servers without segments of their own, whose workers train on the copies that they have
        self.guests: list[Server] = []
        first = [self.server_of["training", s] for s in self.segments]
        self._all: list[Server] = list(dict.fromkeys([*self.servers, *others]))
        self._server_of_worker = first + [server for server in self._all if server not in first]
        self._reserved: dict[StageNumber, Worker] = {}
        self._reserved_for: dict[Worker, StageNumber] = {}
        self.workers: list[Worker] = []
        self.serve(worker for worker, server in enumerate(self._server_of_worker) if server in self.servers)

    def serve(self, workers: Iterable[Worker]) -> None:
        """Deal the segments out to these workers. A worker gets several segments where segments outnumber workers; a
        segment gets several workers where workers outnumber segments."""
        self.workers = sorted(workers)
        self._serves: dict[Worker, list[DatasetSegment]] = {worker: [] for worker in self.workers}
        for server in self.servers:
            local = [worker for worker in self.workers if self.server(worker) == server]
            for dataset in ("training", "validation"):
                keys = [key for key in self.datasets if key[0] == dataset and self.server_of[key] == server]
                if self.anywhere and dataset == "training":
                    for worker in local:
                        self._serves[worker] += keys
                    continue
                for number in range(max(len(keys), len(local)) if keys and local else 0):
                    self._serves[local[number % len(local)]].append(keys[number % len(keys)])

    def relocate(self, servers: Mapping[DatasetSegment, Server]) -> None:
        """Move segments to other servers: {(dataset, segment): the server's name}. Workers on servers without segments
        are dropped; the caller calls `serve` to add workers on the new servers."""
        self.server_of.update(servers)
        self.servers = list(dict.fromkeys([*self.server_of.values(), *self.guests]))
        self.serve(worker for worker in self.workers if self.server(worker) in self.servers)

    def invite(self, server: Server, workers: int = 0, used: Iterable[Worker] = ()) -> None:
        """Let a server take part that has copies, and no segments of its own; the caller calls `serve` to add its workers.

        `workers`: how many of the next numbers are workers there; `used`: workers that have sessions now.
        """
        if workers:
            known = len(self._server_of_worker)
            taken = max([known - 1, *self.workers, *used]) + 1
            self._server_of_worker += [self.server(worker) for worker in range(known, taken)]
            self._server_of_worker += [server] * workers
        if server not in self._all:
            self._all.append(server)
        if server not in self.guests:
            self.guests.append(server)
        if server not in self.servers:
            self.servers.append(server)

    def staff_of(self, other: Assignment) -> None:
        """Take over the servers of another board's workers, and its guests."""
        self._server_of_worker, self._all = list(other._server_of_worker), list(other._all)
        self.guests, self.servers = list(other.guests), list(other.servers)

    def dismiss(self, server: Server) -> bool:
        """A guest takes part no more; False where the server is none. The caller calls `relocate`."""
        if server not in self.guests:
            return False
        self.guests.remove(server)
        return True

    def server(self, worker: Worker) -> Server:
        """The name of the server that a worker is on."""
        if worker < len(self._server_of_worker):
            return self._server_of_worker[worker]
        return self._all[worker % len(self._all)]

    def first_workers(self, wanted: int) -> list[Worker]:
        """The numbers of `wanted` workers, or of more where fewer would leave a server without a worker."""
        first = [self._server_of_worker.index(server) for server in self.servers]
        more = [w for w, server in enumerate(self._server_of_worker) if w not in first and server in self.servers]
        return sorted((first + more)[: max(wanted, len(first))])

    def served(self, worker: Worker) -> Sequence[DatasetSegment]:
        """The (dataset, segment) keys that a worker does."""
        return self._serves.get(worker, ())

    def served_segments(self, worker: Worker, dataset: Dataset) -> list[SegmentNumber]:
        """The segments of one dataset that a worker does."""
        return [segment for of, segment in self.served(worker) if of == dataset]

    def copied(self, worker: Worker) -> list[SegmentNumber]:
        """The training segments that a worker does not do, and of which its server has a copy."""
        own, server = self.served_segments(worker, "training"), self.server(worker)
        return [segment for segment, servers in self.copies.items() if server in servers and segment not in own]

    def reserve(self, worker: Worker, stage_number: StageNumber | None) -> None:
        """Reserve a stage's training for a worker, in place of the worker's earlier reservation; None: no stage.

        Other workers train a reserved stage only if they find no other stage.
        """
        before = self._reserved_for.pop(worker, None)
        if before is not None:
            self._reserved.pop(before, None)
        if stage_number is not None and stage_number not in self._reserved:
            self._reserved[stage_number], self._reserved_for[worker] = worker, stage_number

    def reserved(self, stage_number: StageNumber) -> Worker | None:
        """The worker that a stage is reserved for."""
        return self._reserved.get(stage_number)

    def reserved_for(self, worker: Worker) -> StageNumber | None:
        """The number of the stage that is reserved for a worker."""
        return self._reserved_for.get(worker)

    def _unreserve(self, stage_number: StageNumber) -> None:
        worker = self._reserved.pop(stage_number, None)
        if worker is not None:
            self._reserved_for.pop(worker, None)
