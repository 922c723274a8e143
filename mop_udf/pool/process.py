"""Starting, holding and ending a backend's trainer process. Standard library only.

The aggregate sends each packed buffer as it is read, so reading and training overlap. Its final function waits with a short
timeout and lets PostgreSQL check for interrupts. An abort, an out-of-memory or a segmentation fault in TensorFlow ends the
trainer alone: the unit's transaction rolls back with a clear error. A trainer has a clean environment without credentials, a
fixed number of threads, an optional memory limit, and a high `oom_score_adj`, so that the kernel kills it before PostgreSQL.
The kernel also kills it when its backend dies. GPU memory is free the moment it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mop_udf.pool import child_process, compile_cache, fork_server_client
from mop_udf.pool.channel import CHECK_SECONDS, Channel, ChannelClosed
from mop_udf.pool.fork_server_client import ForkedTrainer

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
F_SETPIPE_SZ = 1031  # Linux; Python's fcntl defines it from 3.10 on
PIPE_BYTES = 1 << 20  # the limit for unprivileged users
QUOTED_BYTES = 2000  # of a trainer's last output that error messages quote
LISTEN_SECONDS = 0.5  # for the first answer of a running fork server, which takes some milliseconds
LEAVING = 0.8  # share of a trainer's idle time after which it gets no request any more, since it may be about to leave
GPU_KEEP_MS = 10_000  # that an idle trainer keeps a GPU's memory, at most
UNANSWERED = ("unit", "state", "states_end", "rows")  # operations without an answer


class TrainerLost(Exception):
    """The trainer ended before it answered; the text says how."""


class TrainerError(Exception):
    """The trainer answered with an error and lives on.

    `configuration`: True where the configuration is to blame; `datasets`: the datasets in the trainer's cache, or None
    where they have not changed.
    """

    def __init__(self, message: str, configuration: bool, datasets: Iterable[str] | None = None) -> None:
        super().__init__(message)
        self.configuration, self.datasets = configuration, datasets


class DeviceFull(TrainerLost):
    """Other trainers hold the part of a device's memory that a new trainer would need; the text names the device."""


class MemoryExceeded(TrainerError):
    """The trainer exceeded its memory limit; the text gives the memory. A retry would fail again, unless `part`: the limit is
    its part of a device's memory."""

    def __init__(self, message: str, part: bool = False) -> None:
        super().__init__(message, configuration=True, datasets=())
        self.part = part


def command(home: str, module: str, *arguments: Any) -> list[str]:
    """The command line that runs a module by the packages' own interpreter."""
    return [os.path.join(home, "bin", "python"), "-I", "-B", "-m", module, *map(str, arguments)]


class ExecutedTrainer:
    """A trainer started by exec of the packages' own interpreter; same interface as fork_server_client.ForkedTrainer."""

    full: str | None = None
    held: dict[str, Any] | None = None

    def __init__(self, home: str, request: dict[str, Any], files: Sequence[int]) -> None:
        self._process = subprocess.Popen(
            command(
                home,
                request["module"],
                os.getpid(),
                files[3],
                0,
                request["trainer_idle_ms"],
                *([-1, *request["ray"]] if request["ray"] else []),
                *request["arguments"],
            ),
            stdin=files[0],
            stdout=files[1],
            stderr=files[2],
            pass_fds=files[3:],
            env=request["environment"],
            cwd="/",
            start_new_session=True,
        )
        self.pid = self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def listen(self, seconds: float) -> None:
        pass

    def started(self, seconds: float) -> bool:
        return True

    def ended(self) -> bool:
        return self._process.poll() is not None

    def leave(self) -> None:
        self.kill()
        self.wait()

    def kill(self) -> None:
        self._process.kill()  # it may not watch its pipe yet

    def wait(self) -> None:
        self._process.wait()


class Trainer:
    """A trainer process and the channel to it.

    The fork server has it in its pool or forks it (mop_udf.pool.fork_server); without a fork server, it is an exec of the
    packages' own interpreter. In all cases it has a clean environment and its own session. While it works, it dies with
    this process: the kernel kills it when no process holds the other end of its pipe `life`. `check_interrupts` is
    called while waiting for the trainer. An error that it raises ends the trainer, since the pending answer would be
    taken for the next one.
    """

    def __init__(
        self,
        home: str,
        options: Mapping[str, Any],
        check_interrupts: Callable[[], object],
        wants: Mapping[str, Any] | None = None,
        fresh: bool = False,
    ) -> None:
        """`home`: the virtual environment; `options`: threads, gpu (None: CPU), keras_backend, cache_mb, idle_ms (the
        time without requests after which the trainer leaves, 0: no limit), and optionally:

        - divided_by: how many devices each model is divided among: GPUs from `gpu` on, or a processor's (None: one)
        - virtual_mb: the memory that each of a processor's devices stands for (None: any)
        - ray: the Ray cluster that runs the trainer (pg_mop/backend/ray_cluster.py)
        - fork_server_ms: the idle time after which the fork server ends (0, None: no fork server)
        - keep_ms: the time that the trainer stays in the pool after its lease (0, None: no limit)
        - memory_mb: limit of the process's memory (None: no limit)
        - device_part, device_most: millionths of the memory of its device (the GPU, or else the machine) that the trainer
          takes, and that all trainers take together (None: no limit); device_mb: the part in MB (None: unknown)
        - model_mb: limit of a model's weights and optimizer variables (None: no limit)
        - role, compile_cache_mb: OID of the role whose compile cache the trainer shares, and the size of that cache
        - database: its OID; with it and `role`, the trainer comes from the pool and returns there
        - most: how many trainers the role may have in the pool (None: any number)

        `wants`: {"datasets": keys, "nets": digests}, what the trainer should hold if possible, and optionally
        {"trainer": the process ID of the trainer that this session has just given back}; `fresh`: it must not have had
        another lease.
        """
        self.options, self._last_use = options, time.monotonic()
        # an answer is pending (Greenplum may interrupt Python between a request and its answer)
        self._answer_pending = False
        self.has_run_code = False  # a user's: custom functions
        self.replaces: int | None = None  # process ID of the trainer that this session has given back for it
        self._home, self._check_interrupts, self._memory_mb = home, check_interrupts, options.get("memory_mb")
        # without a GPU, the part of the device is one of main memory, which this process watches
        self._part_mb = main_part_mb(options)
        if options.get("ray"):
            self._memory_mb = self._part_mb = None  # the limit is the trainer's, not the relay's
        self._request = request_of(home, options)
        self._request.update(_for_pool(options, self._request, wants, fresh))
        self._begin(self._fork if self._request["idle_ms"] else None)
        self._child.listen(LISTEN_SECONDS)
        held = self._child.held or {}
        self.nets = list(held.get("nets", ()))  # digests of the compiled models that it held at first
        self.datasets = set(held.get("datasets", ()))  # keys of the segments in the trainer's cache

    def _begin(self, fork: Callable[[list[int]], ForkedTrainer | None] | None = None) -> None:
        """Make the pipes, and start the process at their other ends, by `fork` if it gives a process, else by exec."""
        self._process: ForkedTrainer | ExecutedTrainer | None = None
        self._life: int | None = None
        self._child_ends: list[int] = []
        own: list[int] = []
        self._log, self._last_output = tempfile.TemporaryFile(), ""
        try:
            for _ in range(3):
                own += os.pipe()
            requests, self._requests, self._answers, answers, life, self._life = own
            self._child_ends = [requests, answers, life]  # open until the trainer lives
            for pipe in (requests, answers):
                try:
                    fcntl.fcntl(pipe, F_SETPIPE_SZ, PIPE_BYTES)
                except OSError:  # the user's limit of pipe memory is reached: a small pipe is only slower
                    pass
            files = [requests, answers, self._log.fileno(), life]
            self._process = fork(files) if fork else None
            if not self._process:
                self._process = ExecutedTrainer(self._home, self._request, files)
                self._close(self._child_ends)
        except BaseException as error:
            if self._life is None:
                self._close(own)
            self.kill()
            if isinstance(error, OSError):
                raise TrainerLost(f"no trainer can be started: {error}") from None
            raise
        self.channel = Channel(self._answers, self._requests, self._watch)

    def _fork(self, files: list[int]) -> ForkedTrainer | None:
        assert self._life is not None
        return fork_server_client.ask(self._home, self._request, files, self._life)

    @property
    def _child(self) -> ForkedTrainer | ExecutedTrainer:
        assert self._process is not None
        return self._process

    def _close(self, files: list[int]) -> None:
        while files:
            os.close(files.pop())

    @property
    def was_leased(self) -> bool:
        """True if the trainer has had other leases. It may turn out only when the trainer answers."""
        return self._process is not None and self._process.held is not None

    def is_pooled(self) -> bool:
        """True if the trainer returns to the pool at the end of its lease, as one that has run custom functions does not."""
        return "key" in self._request and not self.has_run_code and isinstance(self._process, ForkedTrainer)

    @property
    def pid(self) -> int:
        self._guard("wait_readable", 0)
        assert self._child.pid is not None
        return self._child.pid

    def alive(self) -> bool:
        """True where the trainer can take a request: it lives, no abandoned answer is pending, and it is not about to
        leave because it has been idle."""
        idle = self.options["idle_ms"] / 1000
        return (
            self._life is not None
            and not self._answer_pending
            and not (idle and time.monotonic() - self._last_use > LEAVING * idle)
            and not self._child.ended()
        )

    def _wait_started(self) -> None:
        """Wait until the trainer lives."""
        while self._child_ends:
            born = self._child.started(CHECK_SECONDS)
            if born is None:
                self._check_interrupts()
            elif born:
                self._close(self._child_ends)
            else:  # with new pipes, which no other process can have
                full = self._child.full
                self.kill()
                if full:
                    raise DeviceFull(full)
                self._begin()

    def _watch(self) -> None:
        """Check the trainer's memory, and interrupts. Called at least every 0.1 s while waiting."""
        if self._memory_mb or self._part_mb:
            held = memory_mb_of(self._child.pid)
            if self._memory_mb and held > self._memory_mb:
                raise MemoryExceeded(
                    f"the trainer used {held} MB, more than pg_mop.trainer_memory_mb allows ({self._memory_mb} MB)"
                )
            if self._part_mb and held > self._part_mb:
                raise MemoryExceeded(
                    f"the trainer used {held} MB, more than its part of this machine's memory ({self._part_mb} MB)",
                    True,
                )
        self._check_interrupts()

    def send(self, header: dict[str, Any], *payloads: Any, more: bool = False) -> None:
        """Send a frame; `more` as of Channel.send. Raises TrainerLost or MemoryExceeded; any interruption ends the
        trainer.
        """
        self._answer_pending, self._last_use = header["op"] not in UNANSWERED, time.monotonic()
        self._guard("send", header, *payloads, more=more)

    def receive(self, joined: bool = False) -> tuple[dict[str, Any], Any]:
        """(header, payloads) of the answer; `joined`: all payloads as one.

        Raises TrainerError for an answer that is an error, TrainerLost or MemoryExceeded.
        """
        header, payloads = self._guard("receive", joined)
        self._answer_pending, self._last_use = header.get("last") is False, time.monotonic()
        check_answer(header)
        return header, payloads

    def request(self, header: dict[str, Any], *payloads: Any) -> tuple[dict[str, Any], Any]:
        """Send a frame and receive its answer."""
        self.send(header, *payloads)
        return self.receive()

    def give_back(self) -> None:
        """End the lease of a trainer that waits for a request: it returns to the pool, or ends if it has none."""
        if self._life is None or self._answer_pending or self._child_ends:
            self.kill()
            return
        self._close([self._requests, self._answers, self._life])
        self._life = None
        self._child.leave()
        self._log.close()

    def kill(self) -> None:
        """End the process at once."""
        if self._life is not None:
            if self._process is not None:
                self._process.kill()
            os.close(self._life)
            self._life = None
            if self._process is not None:
                self._process.wait()
            self._close([self._requests, self._answers])
            self._close(self._child_ends)
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 32 * QUOTED_BYTES))
            output = self._log.read()
            # (the first line of a long stack names the error)
            fatal, rest = output[:-QUOTED_BYTES].rfind(b"Fatal Python error"), output[-QUOTED_BYTES:]
            first = b"" if fatal < 0 else output[fatal:].split(b"\n", 1)[0] + b" ... "
            self._last_output = (first + rest).decode("utf-8", "replace").strip()
            self._log.close()

    def _guard(self, operation: str, *args: Any, **more: Any) -> Any:
        try:
            self._wait_started()
            return getattr(self.channel, operation)(*args, **more)
        except DeviceFull:
            raise
        except (ChannelClosed, ValueError, OSError):
            self.kill()
            raise TrainerLost(self._how_it_ended()) from None
        except BaseException:
            self.kill()
            raise

    def _how_it_ended(self) -> str:
        code = self._child.code
        how = (
            "ended"
            if code is None
            else f"was killed by signal {-code}"
            if code < 0
            else f"ended with exit status {code}"
        )
        return f"the trainer process {self._child.pid} {how}{self._last_output and '; its last output: '}{self._last_output}"


def check_answer(header: dict[str, Any]) -> None:
    """Raises TrainerError for an answer that is an error."""
    if header.get("ran_out"):
        raise MemoryExceeded(header["error"], True)
    if "error" in header:
        raise TrainerError(header["error"], header["configuration"], header.get("datasets"))


def memory_mb_of(pid: int | None) -> int:
    """The memory that a process holds. Raises OSError where it has ended."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES >> 20


def processor_ticks_of(pid: int | None) -> int:
    """The processor time that a process has had, in ticks of the clock. Raises OSError where it has ended."""
    with open(f"/proc/{pid}/stat") as file:
        return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))


def main_part_mb(options: Mapping[str, Any]) -> int | None:
    """The part of main memory that a trainer with these options takes at most."""
    return options.get("device_mb") if options.get("gpu") is None else None


def request_of(home: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The request for a trainer (fork_server_client.ask) without what concerns the pool; `home`, `options`: see Trainer."""
    gpu, ray, part_mb = options.get("gpu"), options.get("ray"), options.get("device_mb")
    environment = {
        **child_process.environment(options["keras_backend"]),
        "OMP_NUM_THREADS": str(options["threads"]),
        "CUDA_VISIBLE_DEVICES": str(-1 if gpu is None else gpu),
        **_divides(options),
        **(child_process.part_of_gpu(options["device_part"], part_mb) if _has_part_of_gpu(options) else {}),
    }
    if not ray and options.get("role") is not None and gpu is None:
        own_cache = options["role"], options["threads"], options.get("compile_cache_mb") or 0
        environment.update(compile_cache.environment(home, options["keras_backend"], *own_cache))
    limits_mb = (options.get("memory_mb"), main_part_mb(options))
    return {
        "environment": environment,
        "arguments": [
            options["threads"],
            options["cache_mb"],
            min((mb for mb in limits_mb if mb), default=0),
            options.get("model_mb") or 0,
        ],
        "trainer_idle_ms": options["idle_ms"],
        "idle_ms": options.get("fork_server_ms") or 0,
        "module": "mop_udf.pool.relay" if ray else "mop_udf.training.trainer",
        "ray": [ray["address"], ray["gpus"], ray["cpus"], ray["wait"]] if ray else [],
    }


def serving_request(home: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The request for a serving process (fork_server_client.serve) with a trainer's options; None where they rule it out."""
    request = request_of(home, options)
    request.update(_for_pool(options, request, None, False))
    if not request["idle_ms"] or "key" not in request or request["ray"] or not options.get("serving_processes"):
        return None
    return {
        **request,
        "module": "mop_udf.training.serving",
        "key": f"serving {request['key']}",
        "serving": options["serving_processes"],
    }


def _divides(options: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a trainer that divides models, or whose device stands for so much memory."""
    count, gpu, limit = options.get("divided_by") or 1, options.get("gpu"), options.get("virtual_mb")
    return child_process.among_devices(count, gpu, limit if gpu is None else None) if count > 1 or limit else {}


def _has_part_of_gpu(options: Mapping[str, Any]) -> bool:
    return options.get("gpu") is not None and options.get("device_part") is not None


def device_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a device's memory that a trainer with these options takes, as the pool counts it (pool.Pool.room)."""
    gpu, count = options.get("gpu"), options.get("divided_by") or 1
    names = [] if gpu is None or count == 1 else [f"GPU {number}" for number in range(gpu, gpu + count)]
    return {
        "name": "this machine" if gpu is None else f"GPU {gpu}",
        **({"names": names} if names else {}),
        "part": options["device_part"],
        "most": options["device_most"],
    }


def _for_pool(
    options: Mapping[str, Any], request: dict[str, Any], wants: Mapping[str, Any] | None, fresh: bool
) -> dict[str, Any]:
    """The entries of a request for a trainer that concern the pool."""
    role, database = options.get("role"), options.get("database")
    if role is None or database is None:
        return {}
    equal = json.dumps([role, database, request["environment"], request["ray"], request["arguments"]], sort_keys=True)
    gpu, keep = options.get("gpu"), options.get("keep_ms") or 0
    if gpu is not None:  # other processes need its memory
        keep = min(keep or GPU_KEEP_MS, GPU_KEEP_MS)
    return {
        "key": hashlib.sha256(equal.encode()).hexdigest(),
        "fresh": fresh,  # (a new trainer; it returns to the pool, too)
        "keep_ms": keep,
        "most": options.get("most"),
        **({"device": device_of(options)} if options.get("device_part") is not None else {}),
        "wants": wants or {},
        "about": {
            "role": role,
            "database": database,
            "keras_backend": options["keras_backend"],
            "threads": options["threads"],
            "gpu": gpu,
        },
    }
