"""How many devices of a server a net is divided among, because one device has too little memory for it. Pure Python.

By the estimate, a net gets the fewest devices that hold it, and one device where one does, or where even all do not. A net that
has run out of the memory of so many devices gets more from then on. A replay gives each unit as many as the log tells.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from pg_mop.plan.stages import StageNumber
from pg_mop.schedule.unit import Server, Unit


def sizes(most: int) -> list[int]:
    """The numbers of devices that a net may be divided among: each twice the one before, and at last all, so that kernels are
    likely to have a dimension that they divide evenly.

    >>> sizes(8), sizes(6), sizes(1)
    ([1, 2, 4, 8], [1, 2, 4, 6], [1])
    """
    found = [1]
    while 2 * found[-1] <= most:
        found.append(2 * found[-1])
    return found if found[-1] >= most else [*found, most]


def fewest(most: int, memory: int | None, needed: Callable[[int], int]) -> int:
    """The fewest devices, of `most`, that hold a net; 1 also where no number of them does, or where the need is unknown.

    `memory`: bytes of a device, None: unknown; `needed(devices)`: bytes that each of so many needs, 0: unknown.

    >>> fewest(4, 10, lambda n: 16 // n), fewest(4, 16, lambda n: 16 // n), fewest(4, 2, lambda n: 16 // n)
    (2, 1, 1)
    """
    if memory is None:
        return 1
    return next((n for n in sizes(most) if needed(n) <= memory), 1)


class DividedNets:
    """The numbers of devices of a run's nets."""

    def __init__(
        self,
        most_of: Callable[[Server], int] = lambda server: 1,
        memory_of: Callable[[Server], int | None] = lambda server: None,
        needed: Callable[[StageNumber, int, Server], int] = lambda stage, devices, server: 0,
        key_of: Callable[[StageNumber], Hashable] = lambda stage: stage,
        log: Mapping[Unit, int] | None = None,
        are_possible: bool = False,
    ) -> None:
        """`most_of`: devices of a server that one net may have; `memory_of`: bytes of each of them, None: unknown; `needed`:
        bytes of each of so many devices of a server that train a stage, 0: unknown; `key_of`: equal for stages of one net;
        `log`: of a replay: {training unit: devices}, where these were several; `are_possible`: a server may have several for
        a net."""
        self.most_of, self.memory_of, self.needed, self.key_of, self.log = most_of, memory_of, needed, key_of, log
        self.are_possible = are_possible
        self._least: dict[
            Hashable, int
        ] = {}  # key of a net that has run out of memory -> devices that it needs at least
        self._found: dict[tuple[Hashable, Server], int] = {}
        self._logged: dict[StageNumber, int] = {}
        for unit, devices in (log or {}).items():
            self._logged[unit.stage] = max(devices, self._logged.get(unit.stage, 1))

    def of(self, server: Server, unit: Unit) -> int:
        """The devices of a command that begins with a unit, on a server."""
        most = self.most_of(server) if self.are_possible else 1
        if most < 2:
            return 1
        key = self.key_of(unit.stage)
        least = self._least.get(key, 1)
        if self.log is not None:  # (the evaluations of a model that several devices have trained need as many)
            logged = self.log.get(unit, 1) if unit.kind == "train" else self._logged.get(unit.stage, 1)
            return min(most, max(least, logged))
        if (key, server) not in self._found:
            self._found[key, server] = fewest(
                most, self.memory_of(server), lambda n: self.needed(unit.stage, n, server)
            )
        return min(most, max(least, self._found[key, server]))

    def next(self, server: Server, had: int) -> int | None:
        """How many devices a net may have on a server that has run out of the memory of `had`; None: no more."""
        most = self.most_of(server) if self.are_possible else 1
        return next((n for n in sizes(most) if n > had), None)

    def more(self, stage: StageNumber, devices: int) -> None:
        """A stage's net has run out of memory: from now on it gets so many devices at least."""
        key = self.key_of(stage)
        self._least[key] = max(devices, self._least.get(key, 1))
