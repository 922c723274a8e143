"""The tables of a run's model states on one server: their disk use follows the bytes of the live states.

A state is live while the run still needs it (run/needed_states.py).
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any

SHARE = 4  # a new state table begins once this part (one fourth) of the live states' bytes is written
BOUND = 2.2  # compaction begins once the tables have this many times the live states' bytes


class Sizes:
    """How large the states of stages are; all servers of a run share it. `size_key(stage)` is equal for stages whose
    states have equal sizes."""

    def __init__(self, size_key: Callable[[int], Hashable]) -> None:
        self.key = size_key
        self.known: dict[Hashable, int] = {}  # size key -> bytes of a state; before training perhaps of weights alone
        self.measured: set[Hashable] = set()  # size keys with a state that was measured after training

    def bytes(self, stage: int) -> int:
        """Bytes of a stage's state, about; 0 where no state of that size key has been written."""
        return self.known.get(self.key(stage), 0)


class StateTables:
    """The state tables of a run on one server (see mop_state_table in sql/10_tables.sql).

    New states go into the newest table. A new one begins once a quarter of the live states' bytes is written there. A
    table is dropped when all its live states have moved on. Where the remaining tables take too much space, the table
    with the smallest live share is compacted: its states move to the newest, as a log-structured file system cleans its
    cheapest segments (Rosenblum and Ousterhout 1992, section 3.4).
    """

    def __init__(self, catalog: Any, run_id: int | None, sizes: Sizes) -> None:
        self.catalog, self.run_id, self.sizes = catalog, run_id, sizes
        self.least = catalog.least_state_table_bytes
        self.where: dict[int, int] = {}  # stage -> the state table of its live state
        self.held: Counter[int] = Counter()  # state table -> live states there
        self.live = 0  # bytes of all live states
        self.filled: Counter[int] = Counter()  # state table -> bytes written there, about
        self.present: set[int] = catalog.state_tables(run_id)
        self.newest = max(self.present)
        self.untouched = False  # True: the newest table is empty, and nothing writes to it
        self.targets: dict[int, int] = {}  # stage -> the state table that its running unit will write to
        self.expected: Counter[int] = Counter()  # state table -> states on their way there
        for stage, state in catalog.models(run_id).items():
            sizes.known[sizes.key(stage)] = max(state["bytes"], self.bytes(stage))
            if state["state_table"] is not None:
                self._put(stage, state["state_table"])
        for state_table in self.present - {self.newest}:  # (a resumed run: the other contents are dead)
            self.filled[state_table] = round(self.live / SHARE)
        for state_table in self.present:
            live = sum(map(self.bytes, self._at(state_table)))
            self.filled[state_table] = max(self.filled[state_table], live)

    def bytes(self, stage: int) -> int:
        """Bytes of a stage's state, about; 0 where no state of that size key has been written."""
        return self.sizes.bytes(stage)

    def has(self, stage: int) -> bool:
        """True where the stage has a live state here."""
        return stage in self.where

    def begin(self, stage: int) -> int:
        """The state table that a training unit is to write its stage's state to."""
        self.targets[stage] = self.newest
        self.untouched = False
        return self.newest

    def adopted(self, stage: int) -> None:
        """The newest table has initial weights of a stage, or a state taken over from another run."""
        key = self.sizes.key(stage)
        if key not in self.sizes.known:
            self.sizes.known[key] = self.catalog.state_bytes(self.run_id, stage) or 0
        self._put(stage, self.newest)
        self.filled[self.newest] += self.bytes(stage)

    def expect(self) -> int:
        """The state table for a state that is to come from another server."""
        self.expected[self.newest] += 1
        self.untouched = False
        return self.newest

    def arrived(self, stage: int, state_table: int, size: int | None) -> None:
        """An expected state has come, with `size` bytes; None: it has not."""
        self.expected[state_table] -= 1
        if size is not None:
            self.sizes.known[self.sizes.key(stage)] = size
            self.filled[state_table] += size
            if stage not in self.where:
                self._put(stage, state_table)

    def failed(self, stage: int) -> None:
        """The training unit of a stage wrote nothing."""
        self.targets.pop(stage, None)

    def finished(self, stage: int, released: Iterable[int]) -> None:
        """A unit has written its stage's state; the states of the stages `released` are dead from now on."""
        target = self.targets.pop(stage)
        self._take(stage)
        self._put(stage, target)
        for other in released:
            self._take(other)
        self.filled[target] += self.bytes(stage)

    def measure(self, stage: int) -> None:
        """Look up how large the state of a trained stage is, unless one of its size key was measured before."""
        key = self.sizes.key(stage)
        if key not in self.sizes.measured:
            size, before = self.catalog.state_bytes(self.run_id, stage) or 0, self.bytes(stage)
            self.sizes.measured.add(key)
            self.sizes.known[key] = size
            self.live = sum(self.bytes(other) for other in self.where)
            self.filled[self.where[stage]] += size - before

    def release(self, stages: Iterable[int]) -> None:
        """The states of these stages are dead from now on."""
        for stage in stages:
            self._take(stage)

    # --- tables begin and go ------------------------------------------------------------------------
    def tidy(self, movable: Callable[[int], bool]) -> None:
        """After a write: begin a new state table, and drop or compact old ones, where it is time to.

        `movable(stage)`: no unit reads that stage's state now.
        """
        if self.filled[self.newest] >= max(self.least, self.live / SHARE):
            self.turn()
        self._drop()
        if sum(self.filled.values()) > max(self.least, self.live) * BOUND and self._compact(movable):
            self._drop()

    def _drop(self) -> None:
        """Drop the state tables without live states that nothing will be written to."""
        unused = self.present - {self.newest, *self._to_come()} - {g for g, count in self.held.items() if count}
        if unused:
            dropped = self.catalog.drop_state_tables(self.run_id, unused)  # (a table that a session reads: later)
            self.present -= dropped
            for state_table in dropped:
                del self.filled[state_table]

    def _compact(self, movable: Callable[[int], bool]) -> bool:
        """Move the states out of the state table with the smallest live share; False where that gains nothing."""
        shares = []
        for state_table in self.present - {self.newest, *self._to_come()}:
            stages = self._at(state_table)
            if stages and all(stage not in self.targets and movable(stage) for stage in stages):
                shares.append((sum(map(self.bytes, stages)) / max(self.filled[state_table], 1), state_table, stages))
        if not shares or min(shares)[0] > 2 / 3:
            return False
        _, _, stages = min(shares)
        self.catalog.move_states(self.run_id, stages, self.newest)
        for stage in stages:
            self._take(stage)
            self._put(stage, self.newest)
            self.filled[self.newest] += self.bytes(stage)
        return True

    def begin_anew(self) -> None:
        """Write to an empty state table from now on."""
        if not self.untouched:
            self.turn()

    def turn(self) -> None:
        """Begin a new state table."""
        self.catalog.new_state_table(self.run_id, self.newest + 1)
        self.newest += 1
        self.present.add(self.newest)
        self.untouched = True

    # --- contents -----------------------------------------------------------------------------------
    def _at(self, state_table: int) -> list[int]:
        return [stage for stage, where in self.where.items() if where == state_table]

    def _to_come(self) -> Collection[int]:
        """The state tables that running units, and states on their way here, write to."""
        return {*self.targets.values(), *(g for g, count in self.expected.items() if count)}

    def _put(self, stage: int, state_table: int) -> None:
        self.untouched = self.untouched and state_table != self.newest
        self.where[stage] = state_table
        self.held[state_table] += 1
        self.live += self.bytes(stage)

    def _take(self, stage: int) -> None:
        if stage in self.where:
            self.held[self.where.pop(stage)] -= 1
            self.live -= self.bytes(stage)
