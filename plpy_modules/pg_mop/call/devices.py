"""The devices of a server that trainers have, its GPUs or its processors, and how many of them one net may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pg_mop.backend.settings import BACKENDS
from pg_mop.schedule.unit import Server


class Places:
    """The devices of a run's servers, by number.

    With pg_mop.most_devices, the processors of a server without GPUs stand for as many devices of JAX: they share main memory,
    and serve to try out what GPUs do.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        use_gpus: bool,
        info: Callable[[Server], Any],
        divides: bool,
        threads: Callable[[Server], int | None] = lambda server: None,
    ) -> None:
        """`info(server)`: a server's description of itself; `divides`: a net may be divided in this call; `threads(server)`:
        that a trainer of the role may have there (mop_limit), None: no limit."""
        self.options, self.use_gpus, self.info, self.threads = options, use_gpus, info, threads
        self.divides = divides and options["keras_backend"] == "jax" and not options["trainers"]

    def gpus(self, server: Server) -> int:
        """The GPUs of a server that trainers use."""
        return int(self.info(server)["gpus"]) if self.use_gpus else 0

    def are_virtual(self, server: Server) -> bool:
        """True where the processors of a server stand for several devices."""
        return self.divides and not self.gpus(server) and (self.options["most_devices"] or 1) > 1

    def count(self, server: Server) -> int:
        """The devices of a server; 0: its processors alone, as one."""
        return int(self.options["most_devices"]) if self.are_virtual(server) else self.gpus(server)

    def most(self, server: Server) -> int:
        """How many devices of a server one net may have."""
        if not self.divides:
            return 1
        found, most = self.count(server), self.options["most_devices"]
        # (each of a processor's devices computes in a thread of its own, see Limits.allowed)
        limit = self.threads(server) if self.are_virtual(server) else None
        return max(1, min([found, *(number for number in (most, limit) if number is not None)]))

    def place(self, server: Server, worker: int) -> int | None:
        """The number of a worker's device; None: the server's processors."""
        count = self.count(server)
        return worker % count if count else None

    def group(self, server: Server, number: int | None, count: int) -> range:
        """The numbers of the devices that train together, `count` of them, for a worker of one of them."""
        first = min((number or 0) // count * count, max(0, self.count(server) - count))
        return range(first, first + count)

    def memory(self, server: Server) -> int | None:
        """Bytes of each of a server's devices that a trainer may be planned with; None: unknown, or without a limit."""
        given = self.options["device_memory_mb"]
        if not self.gpus(server):  # (processors have no memory of their own, unless they stand for several devices)
            return given << 20 if given is not None and self.are_virtual(server) else None
        found = given << 20 if given is not None else (self.info(server).get("memory") or {}).get("gpu")
        share = self.options["gpu_memory_share"]
        return found if found is None or share is None else int(found * share)

    def why_one(self, server: Server) -> str | None:
        """Why a net has one device, where it could have several; None where it may have several."""
        if self.options["trainers"]:
            return "a trainer on Ray has one device"
        if self.options["keras_backend"] != "jax":
            return f"{BACKENDS[self.options['keras_backend']]} does not divide models among devices, JAX does"
        if self.most(server) > 1:
            return None
        if self.options["most_devices"] == 1:
            return "pg_mop.most_devices is 1"
        return self.why_no_more(server) or "there is one device"

    def why_no_more(self, server: Server) -> str | None:
        """Why a net has fewer virtual devices at most than pg_mop.most_devices; None where it may have as many."""
        limit, wanted = self.threads(server) if self.are_virtual(server) else None, self.options["most_devices"]
        if limit is None or limit >= wanted:
            return None
        return (
            f"pg_mop.most_devices is {wanted}, and the role may have {limit} thread{'s' * (limit > 1)}, one for each device "
            "(mop_limit)"
        )
