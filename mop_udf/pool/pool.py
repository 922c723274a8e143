"""The pool of trainers that a fork server keeps: which trainers live, which backend leases each, and which are to end.

A backend leases a trainer for as long as it works. Then the trainer resets itself and waits in the pool, with its
compiled models and the rows in its cache, for the next lease with an equal key: the same role, database, framework,
device and limits. Everything that it keeps is named by content, and a backend uses rows only after it has checked the
caller's rights and the rows' fingerprint.

The module decides; mop_udf.pool.fork_server acts. Standard library only.

- A lease ends when its session closes the pipe between two requests, or ends. The trainer forgets the lease (`reset`) and
  offers itself again. It keeps compiled models and rows, both named by content. A session uses kept rows only after it has
  checked the caller's right to read the table and the rows' fingerprint, as for any unit.
- While a trainer works on a request, the kernel kills it when its session ends (`die_with_pipe`). So no one waits for an
  answer that nobody reads.
- A trainer that has run a custom function, or read a .keras file, ends with its lease. A trainer that is not back within five
  seconds is killed. Requests wait up to two seconds for trainers that will be back.
- A serving process (training/serving.py) has no lease: the sessions with its key share it. It counts as a trainer of its role,
  and is idle when nobody has asked it for a while. The pool may end it at any moment, and does so where a trainer of the role
  lacks room: a session that waits for an answer asks another process.
- The fork server holds no rows and no weights. It ends with the postmaster; its idle trainers end with it.
"""

from __future__ import annotations

import collections
import dataclasses
import socket
from collections.abc import Collection, Iterable, Iterator
from typing import Any

WAIT_SECONDS = 2  # that a request waits at most for a trainer that will be back
LATE_LOOK_SECONDS = 0.5  # between two looks while somebody's time may run out
RETURN_SECONDS = 5  # within which a trainer resets itself when its lease has ended
LOOK_SECONDS = 5  # between two looks at the free memory while trainers are idle
FREE_SHARE, FREE_BYTES = 0.1, 512 << 20  # of the memory that stays free: idle trainers end for it
WHOLE = 1_000_000  # the parts of a device
MOST_NAMES = 200  # of compiled models and of datasets in a message
SHARED_BY = 4  # sessions that share a serving process before another one is forked


@dataclasses.dataclass(eq=False)
class Member:
    """A trainer of the pool.

    `file`: a pidfd; `control`: the socket to the trainer; `key`: see `Pool.free`, None for a trainer that ends with its
    lease; `about`: what the view mop_trainers shows of its key; `connection`: the socket to the backend with the lease;
    `since`: when the lease or the idle time began (microseconds of CLOCK_BOOTTIME); `keep_seconds`: the idle time after
    which it ends, None for no limit; `held`: what it reported at the end of its last lease: {"nets": [digest, ...],
    "datasets": [key, ...], "rows_bytes": n}.
    """

    pid: int
    file: int
    control: socket.socket
    key: str | None
    about: dict[str, Any]
    connection: socket.socket | None
    backend: int
    since: int
    keep_seconds: float | None
    state: str = "leased"  # or "returning" (the lease has ended) or "idle", or "serving" (several sessions)
    returning: float = 0.0  # when the state began (time.monotonic)
    most: int | None = None  # how many members its role may have, as of its last lease; None: any number
    device: dict[str, Any] | None = None  # {"name", "part", "most"}: millionths of its device's memory, see Pool.room
    held: dict[str, Any] = dataclasses.field(default_factory=dict)
    serves: bool = False  # it is a serving process
    came: int = 0  # sessions that have been handed to it, and of them those that have gone
    left: int = 0

    def makes_room(self, role: int | None) -> bool:
        """True if it may end where a trainer of a role lacks room."""
        return self.state in ("idle", "returning") or self.state == "serving" and self.about.get("role") == role


@dataclasses.dataclass(eq=False)
class Waiting:
    """A request for a lease that waits until a trainer with its key is back from its last lease.

    `files`: descriptors; `since`: when it began to wait (time.monotonic).
    """

    backend: int
    request: dict[str, Any]
    files: list[int]
    connection: socket.socket
    since: float


class Pool:
    """The members, the requests that wait, and the decisions about them."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}  # by pidfd
        self.waiting: list[Waiting] = []

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self.members.values()))

    def idle(self) -> list[Member]:
        """The idle members, those first that have been idle longest."""
        return sorted((m for m in self.members.values() if m.state == "idle"), key=lambda member: member.since)

    def free(self, key: str | None, wants: dict[str, Any]) -> list[Member]:
        """The idle members that a lease with this key may have, the best first.

        Those that hold the most of the rows and then of the compiled models that it `wants` come first: {"datasets":
        [...], "nets": [...]}. With {"trainer": process ID}, only this member is free if it is idle, and none while it is on
        its way back.
        """
        if key is None:
            return []
        for member in self.members.values():
            if member.pid == wants.get("trainer") and member.key == key and member.state != "leased":
                return [member] if member.state == "idle" else []
        datasets, nets = set(wants.get("datasets") or ()), set(wants.get("nets") or ())

        def worth(member: Member) -> tuple[int, int, int]:
            held = member.held
            return (len(datasets & set(held.get("datasets", ()))), len(nets & set(held.get("nets", ()))), member.since)

        return sorted((m for m in self.idle() if m.key == key), key=worth, reverse=True)

    def is_expected(self, key: str | None) -> bool:
        """True if a trainer with this key, for which no request waits, will be back soon."""
        back = sum(m.key == key for m in self.members.values() if m.state == "returning")
        return key is not None and back > sum(w.request.get("key") == key for w in self.waiting)

    def not_to_wait(self, now: float) -> list[Waiting]:
        """The requests that have waited for too long, or for which no trainer is expected any more."""
        back = collections.Counter(m.key for m in self.members.values() if m.state == "returning")
        found = []
        for waiting in self.waiting:
            key = waiting.request["key"]
            back[key] -= 1
            if back[key] < 0 or now - waiting.since > WAIT_SECONDS:
                found.append(waiting)
        return found

    def leave(self, member: Member, now: float) -> None:
        """A member's lease has ended; the trainer resets itself."""
        member.connection, member.backend = None, 0
        if member.state == "leased":
            member.state, member.returning = "returning", now

    def forgive(self, seconds: float) -> None:
        """The machine has stood still for so many seconds: they do not count for the members on their way back, and for the
        requests that wait."""
        for member in self.members.values():
            member.returning += seconds
        for waiting in self.waiting:
            waiting.since += seconds

    def to_end(self, now: float, since: int) -> list[Member]:
        """The members that are to end: idle for too long, or not back from their lease in time.

        `now`: time.monotonic(); `since`: the same instant as Member.since counts it.
        """
        return [
            m
            for m in self.members.values()
            if m.state == "returning"
            and now - m.returning > RETURN_SECONDS
            or m.state == "idle"
            and m.keep_seconds is not None
            and (since - m.since) / 1e6 >= m.keep_seconds
        ]

    def wait_seconds(self, now: float, since: int) -> float | None:
        """The seconds until the next look at the members; None if nothing has to be looked at."""
        waits = [m.returning + RETURN_SECONDS - now for m in self.members.values() if m.state == "returning"]
        waits += [w.since + WAIT_SECONDS - now for w in self.waiting]
        waits += [LATE_LOOK_SECONDS] * bool(waits)  # (a longer wait would hide that the machine stood still)
        for member in self.idle():
            waits.append(LOOK_SECONDS)
            if member.keep_seconds is not None:
                waits.append(member.keep_seconds - (since - member.since) / 1e6)
        return max(0.01, min(waits)) if waits else None

    def surplus(self, role: int | None, most: int | None, coming: int = 0) -> list[Member]:
        """The members that end so that a role (an OID) has at most `most` members, in whatever state, besides those that are
        `coming`: idle ones, and then serving ones; None: any number."""
        if role is None or most is None:
            return []
        own = [m for m in self.members.values() if m.about.get("role") == role and m.key is not None]
        ends = [m for m in self.idle() if m in own] + [m for m in own if m.state == "serving"]
        return ends[: max(0, len(own) + coming - most)]

    # --- serving processes ---

    def serving(self, key: str | None) -> list[Member]:
        """The serving processes with a key, those first that the fewest sessions share."""
        found = [m for m in self.members.values() if m.serves and m.key is not None and m.key == key]
        return sorted(found, key=lambda m: (m.came - m.left, m.since))

    def needs_serving(self, key: str, serving: int, role: int | None, most: int | None) -> bool:
        """True if a serving process is to be forked: those with the `key` have sessions enough, and neither they, at most
        `serving`, nor the trainers of the `role`, at most `most` (None: any number), are too many."""
        own = self.serving(key)
        of_role = [m for m in self.members.values() if m.about.get("role") == role]
        busy = sum(m in own or m.state in ("leased", "serving") for m in of_role)
        if len(own) >= serving or most is not None and busy >= most:
            return False
        return not own or own[0].came - own[0].left >= SHARED_BY

    def hear(self, member: Member, told: dict[str, Any], since: int) -> None:
        """A serving process tells: {"quiet": whether nobody asks, "left": sessions that have gone, "held"}."""
        member.held, member.left = told["held"], told["left"]
        state = "idle" if told["quiet"] else "serving"
        if member.key is not None and member.state != state:
            member.state, member.since = state, since

    def room(
        self, device: dict[str, Any] | None, own: Member | None = None, role: int | None = None
    ) -> tuple[list[Member], str | None]:
        """The idle members that end so that a trainer may take its part of a device's memory, the one first that has been idle
        longest; and why it may not take it even then, or None.

        `device`: {"name": its name, "part": millionths of its memory that the trainer takes, "most": that all trainers of the
        `role` (an OID) may take together}, and "names" where the trainer takes parts of several; None: its part is not counted.
        `own`: the idle member that the trainer would be. Members of other roles count against the whole device alone, and end
        only if it is full. Members on the way back end, too: until then they hold their parts. So do the role's idle members
        that hold an unknown part of a GPU.
        """
        if device is None:
            return [], None
        found: list[Member] = []
        for name in _names(device):
            ends, why = self._room(name, device, own, role)
            if why is not None:
                return [], why
            found += [member for member in ends if member not in found]
        return found, None

    def _room(
        self, name: str, device: dict[str, Any], own: Member | None, role: int | None
    ) -> tuple[list[Member], str | None]:
        """The same for one of the devices that a trainer takes."""
        part = device["part"]
        ends = [m for m in self.idle() if m is not own and m.about.get("role") == role and _has_all_of(m, name)]
        others = [m for m in self.members.values() if m is not own and m.device and name in _names(m.device)]
        for whose, most in ((True, device["most"]), (False, WHOLE)):
            counted = [m for m in others if m not in ends and (not whose or m.about.get("role") == role)]
            taken = sum(m.device["part"] for m in counted if m.device)
            states = ["returning", "serving"]  # (idle ones end first)
            order = {m: states.index(m.state) + 1 if m.state in states else 0 for m in counted}
            for member in sorted(counted, key=lambda m: (m.about.get("role") != role, order[m], m.since)):
                if taken + part <= most:
                    break
                if member.makes_room(role) and member.device:
                    taken -= member.device["part"]
                    ends.append(member)
            if taken + part > most:
                allowed = f"the {most / 10_000:.3g} % that the role's trainers may take together" if whose else "it"
                return [], (
                    f"other trainers {'of the role ' * whose}hold {taken / 10_000:.3g} % of the memory of {name}, "
                    f"and a trainer needs {part / 10_000:.3g} % of {allowed}"
                )
        return ends, None

    def of(self, roles: Collection[int] | None, databases: Collection[int] | None) -> list[Member]:
        """The members of these roles and databases (OIDs; None: of all) that are idle, serving or on the way back."""
        return [
            m
            for m in self.members.values()
            if (m.state in ("idle", "serving") or m.state == "returning" and m.key is not None)
            and (roles is None or m.about.get("role") in roles)
            and (databases is None or m.about.get("database") in databases)
        ]


def _names(device: dict[str, Any]) -> list[str]:
    """The names of the devices that a trainer has a part of."""
    return device.get("names") or [device["name"]]


def _has_all_of(member: Member, name: str) -> bool:
    """True for a trainer on the GPU of this name that no part limits."""
    return member.device is None and member.about.get("gpu") is not None and name == f"GPU {member.about['gpu']}"


def memory_short() -> bool:
    """True where idle trainers should end because this machine, or this control group, has little free memory."""
    found = {}
    with open("/proc/meminfo") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(rest.split()[0]) << 10
    if is_short(found["MemTotal"], found["MemAvailable"]):
        return True
    group = memory_of_group()
    return group is not None and is_short(*group)


def is_short(total: int, available: int) -> bool:
    """True where so little of the memory (bytes) is available that idle trainers should end."""
    return available < min(total // 4, max(FREE_BYTES, int(FREE_SHARE * total)))


def memory_of_group(groups: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> tuple[int, int] | None:
    """(limit, available bytes) of this process's control group (version 2); None without a limit.

    The kernel gives up cached pages of files before the limit is reached. They count as available, as in MemAvailable: a
    database server soon fills its group with them. `groups`, `own`: where the kernel describes the groups and names ours.
    """
    try:
        with open(own) as file:
            path = groups + next(line.strip()[3:] for line in file if line.startswith("0::"))
        with open(f"{path}/memory.max") as file:
            limit = int(file.read())  # ("max": no limit)
        with open(f"{path}/memory.current") as file:
            used = int(file.read())
        with open(f"{path}/memory.stat") as file:
            held = dict(line.split() for line in file)
        cached = sum(int(held.get(name, 0)) for name in ("inactive_file", "active_file", "slab_reclaimable"))
    except (OSError, StopIteration, ValueError):
        return None
    return limit, limit - used + cached


def names(found: Iterable[str]) -> list[str]:
    """As many names as a message may hold, the last ones."""
    return list(found)[-MOST_NAMES:]
