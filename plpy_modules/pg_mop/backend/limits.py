"""A role's limits (table mop_limit), enforced in the session that starts a trainer, for options of any origin."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from mop_udf.pool.pool import WHOLE
from mop_udf.pool.process import Trainer
from pg_mop.backend.device_memory import gpu_bytes, main_bytes
from pg_mop.backend.errors import MopError
from pg_mop.backend.ray_cluster import cluster
from pg_mop.backend.settings import BACKENDS, check_installed

TOO_MANY_TRAINERS = "53000"
MOST_DEVICES = 1024  # as pg_mop.most_devices
LEAST_FORK_SERVER_MS = 60_000  # without use, of a fork server that must count parts of devices


class Limits:
    """The limits of the calling role."""

    def __init__(self, plpy: Any, schema: str) -> None:
        """`schema`: the extension's, quoted."""
        self.plpy, self.schema = plpy, schema

    def _find(self) -> dict[str, Any]:
        return self.plpy.execute(
            f"SELECT *, {self.schema}.mop_role(current_user)::bigint AS role, (SELECT d.oid::bigint "
            "FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()) "
            f"AS database FROM {self.schema}.mop_limits()"
        )[0]

    def _backends(self) -> set[int]:
        """Process ids of the role's sessions."""
        return {row["pid"] for row in self.plpy.execute(f"SELECT pid FROM {self.schema}.mop_backends()")}

    def caller(self) -> str:
        """The role whose rights are in force."""
        return self.plpy.execute("SELECT current_user AS role")[0]["role"]

    def allowed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A trainer's options, reduced to the limits. Raises MopError for invalid options."""
        for name, least in (
            ("threads", 1),
            ("memory_mb", 1),
            ("model_mb", 1),
            ("cache_mb", 0),
            ("idle_ms", 0),
            ("fork_server_ms", 0),
            ("keep_ms", 0),
            ("compile_cache_mb", 0),
            ("gpu", 0),
            ("device_part", 1),
            ("device_most", 1),
            ("device_beside", 1),
            ("divided_by", 1),
            ("virtual_mb", 1),
            ("serving_processes", 0),
        ):
            value = options.get(name)
            if value is None and name in (
                "memory_mb",
                "model_mb",
                "fork_server_ms",
                "keep_ms",
                "compile_cache_mb",
                "gpu",
                "device_part",
                "device_most",
                "device_beside",
                "divided_by",
                "virtual_mb",
                "serving_processes",
            ):
                continue
            if type(value) is not int or not least <= value < 1 << 31:
                raise MopError(f"invalid option of a trainer: {name} = {value!r}")
        if (options.get("divided_by") or 1) > MOST_DEVICES:
            raise MopError(f"invalid option of a trainer: divided_by = {options['divided_by']!r}")
        if options.get("keras_backend") not in BACKENDS:
            raise MopError(f"invalid option of a trainer: keras_backend = {options.get('keras_backend')!r}")
        if options.get("trainers") is None:
            check_installed(options["keras_backend"])
        limits, within = self._find(), {n: v for n, v in options.items() if n not in ("ray", "device_mb")}
        # from the server, never from the client
        within["role"], within["database"] = int(limits["role"]), int(limits["database"])
        if options.get("trainers") is not None:
            within["ray"] = cluster(self.plpy, options["trainers"])
            within["ray"]["gpus"] *= bool(options.get("use_gpus"))
            within["threads"] = max(1, int(within["ray"]["cpus"]))
        within["most"] = limits["sessions"]
        for name, limit in (("threads", "threads"), ("memory_mb", "trainer_memory_mb"), ("model_mb", "max_model_mb")):
            values = [v for v in (options.get(name), limits[limit]) if v is not None]
            within[name] = min(values, default=None)
        if options.get("divided_by") is not None and options.get("gpu") is None and limits["threads"] is not None:
            # each of a processor's devices computes in a thread of its own
            within["divided_by"] = min(options["divided_by"], limits["threads"])
        beside = within.pop("device_beside", None) or 1
        if limits["device_share"] is not None and options.get("trainers") is None and "host_segment" not in options:
            self._limit_part(within, round(WHOLE * limits["device_share"]), beside)
        if within.get("device_part") is not None:
            if not within["device_part"] <= (within.get("device_most") or 0) <= WHOLE:
                raise MopError(f"invalid option of a trainer: device_part = {within['device_part']!r}")
            memory = gpu_bytes(options["gpu"]) if options.get("gpu") is not None else main_bytes()
            within["device_mb"] = None if memory is None else max(1, (memory * within["device_part"] // WHOLE) >> 20)
        return within

    @staticmethod
    def _limit_part(within: dict[str, Any], most: int, beside: int) -> None:
        """Give a trainer's options a part of its device, of the `most` millionths that the role's trainers take together.

        A part of a larger share becomes the same part of this one: a run divides a device by the share that it has on its own
        server. A trainer that asks for no part has one of `beside` equal ones, the trainers that its run has on the device. It
        is always one of the pool, which counts the parts.

        >>> options = {"device_part": 500_000, "device_most": 1_000_000}
        >>> Limits._limit_part(options, 300_000, 2)
        >>> options["device_part"], options["device_most"]
        (150000, 300000)
        """
        part, of = within.get("device_part"), within.get("device_most")
        if part is None:
            within["device_part"], within["device_most"] = max(1, most // beside), most
        elif of is not None and of > most:
            within["device_part"], within["device_most"] = min(most, max(1, part * most // of)), most
        within["fork_server_ms"] = within.get("fork_server_ms") or LEAST_FORK_SERVER_MS

    def admit(self, trainer: Trainer) -> None:
        """Raises MopError if a Trainer, already leased or started, exceeds the role's number of trainers.

        Only earlier leases count, so of several simultaneous starts the allowed number succeeds. Idle trainers in the
        pool do not count, and neither does the one that the session has given back for this one: it may be on its way.
        """
        most = self._find()["sessions"]
        if most is None:
            return
        try:
            began = _began(trainer.pid, _state_of(trainer.pid)[0], _words_of(trainer.pid))
        except OSError:  # the trainer has ended; the channel reports it
            return
        before = sum(other < began and other[1] != trainer.replaces for _, other in _trainers(self._backends()))
        if before >= most:
            raise MopError(
                f"the role's sessions have {before} trainers, as many as it may have at once ({most})",
                detail="The table mop_limit sets the number. A session gives its trainer back when its call ends.",
                hint=f"SELECT * FROM {self.schema}.mop_trainers WHERE state <> 'idle'; shows the sessions.",
                sqlstate=TOO_MANY_TRAINERS,
            )


def _state_of(pid: int | str) -> tuple[int, int, bytes]:
    """(start time in clock ticks since the machine's start, the parent's PID, the state's letter). Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rsplit(b")", 1)[1].split()
    return int(fields[19]), int(fields[1]), fields[0]


def _words_of(pid: int | str) -> list[bytes]:
    """The command line of a process, which the fork server's children set as one text. Raises OSError."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b" ", b"\0").split(b"\0")


def _began(pid: int | str, started: int, words: Sequence[bytes]) -> tuple[int, int]:
    """(microseconds since the machine's start, PID), which orders trainers by the beginning of their leases.

    `started`: as of _state_of; `words`: the command line.
    """
    _, since = _lease_in(words)
    # a trainer that no pool has leased: the end of the clock tick in which the process started
    return since or (started + 1) * 1_000_000 // os.sysconf("SC_CLK_TCK"), int(pid)


def _lease_in(words: Sequence[bytes]) -> tuple[int | None, int]:
    """(backend, beginning of the lease) that a trainer's command line names; 0 for what it does not name, and
    (None, 0) for other processes and before the exec of a trainer."""
    for place, word in enumerate(words):
        if word in (b"mop_udf.training.trainer", b"mop_udf.pool.relay"):
            numbers = [int(text) if text.isdigit() else 0 for text in words[place + 1 : place + 4]]
            backend, _, since = (*numbers, 0, 0, 0)[:3]
            return backend, since
    return None, 0


def _trainers(backends: Collection[int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """(backend, beginning of the lease) of each trainer that these backends (PIDs) have."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                started, parent, state = _state_of(entry)
                if state in b"ZX" or os.stat(f"/proc/{entry}").st_uid != os.geteuid():
                    continue
                words = _words_of(entry)
                # until its exec, a child has its backend's command line or none
                backend = parent if words[0] in (b"", b"postgres:") else _lease_in(words)[0]
                if backend is not None and backend in backends:
                    yield backend, _began(entry, started, words)
            except OSError:  # ended
                continue
