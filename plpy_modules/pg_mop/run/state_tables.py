"""Which table a run's model states are written to, so that its disk use follows the live states."""

from collections import Counter

SHARE = 4  # of the live states' bytes a state_table takes one part in so many
BOUND = 2.2  # times the live states' bytes may be there before states are moved


class StateTables:
    """The run's state tables of states (see mop_state_table in sql/10_tables.sql).

    New states go into the newest. Once a quarter as many bytes are written there as live states have together, a new
    one begins. When all states of use have moved on from a state_table, it is dropped. Where those that are left take
    too much, the one is emptied of which least is in use: its states are moved to the newest, as a log-structured file
    system cleans the segments that cost it least (Rosenblum and Ousterhout 1992, section 3.4).
    """

    def __init__(self, catalog, run_id, size_key, sizes, measured):
        """`size_key(stage)` is equal for stages (numbers) whose states are of one size; `sizes`: {size key: bytes of a
        state, at first perhaps of weights alone}; `measured`: the size keys of which a trained state has been seen.
        Both are those of all servers."""
        self.catalog, self.run_id, self.size_key, self.least = (
            catalog,
            run_id,
            size_key,
            catalog.least_state_table_bytes,
        )
        self.sizes, self.measured = sizes, measured
        self.where = {}  # stage -> the state_table of its state, where it has one of its own that is of use
        self.held = Counter()  # state_table -> states there
        self.live = 0  # bytes of all states of use
        self.filled = Counter()  # state_table -> bytes that have been written there, about
        self.there = catalog.state_tables(run_id)
        self.newest = max(self.there)
        self.untouched = False  # nothing has been written to the newest, nor can have been
        for stage, model in catalog.models(run_id).items():
            self.sizes[size_key(stage)] = max(model["bytes"], self.sizes.get(size_key(stage), 0))
            if model["state_table"] is not None:
                self._put(stage, model["state_table"])
        for state_table in self.there - {self.newest}:  # (of a run that goes on: what else is there is of no use)
            self.filled[state_table] = self.live / SHARE
        for state_table in self.there:
            self.filled[state_table] = max(self.filled[state_table], sum(map(self.bytes, self._at(state_table))))
        self.targets = {}  # stage -> the state_table that its unit at work will write to
        self.expected = Counter()  # state_table -> states that are on their way there

    def bytes(self, stage):
        """Bytes of a stage's state, about; 0 where none of its kind has been written."""
        return self.sizes.get(self.size_key(stage), 0)

    def has(self, stage):
        """True where the stage has a state of its own that is of use."""
        return stage in self.where

    def begin(self, stage, state_table=None):
        """The state_table that a training unit is to write its stage's state to, or has written to."""
        self.targets[stage] = self.newest if state_table is None else state_table
        self.untouched = False
        return self.targets[stage]

    def adopted(self, stage):
        """A stage has initial weights, or its state was taken over from another run: in the newest state table."""
        key = self.size_key(stage)
        if key not in self.sizes:
            self.sizes[key] = self.catalog.state_bytes(self.run_id, stage) or 0
        self._put(stage, self.newest)
        self.filled[self.newest] += self.bytes(stage)

    def expect(self):
        """The state_table that a state from elsewhere is to come to."""
        self.expected[self.newest] += 1
        self.untouched = False
        return self.newest

    def arrived(self, stage, state_table, size):
        """A state that was expected has come, of so many bytes; None: it has not."""
        self.expected[state_table] -= 1
        if size is not None:
            self.sizes[self.size_key(stage)] = size
            self.filled[state_table] += size
            if stage not in self.where:
                self._put(stage, state_table)

    def failed(self, stage):
        """The unit wrote nothing."""
        self.targets.pop(stage, None)

    def finished(self, stage, released):
        """The unit has written its stage's state; those of the stages `released` are of no use any more."""
        target = self.targets.pop(stage)
        self._take(stage)
        self._put(stage, target)
        for other in released:
            self._take(other)
        self.filled[target] += self.bytes(stage)

    def measure(self, stage):
        """Look how large the state of a stage is that has been trained, if none of its kind has been seen."""
        key = self.size_key(stage)
        if key not in self.measured:
            size, before = self.catalog.state_bytes(self.run_id, stage) or 0, self.bytes(stage)
            self.measured.add(key)
            self.sizes[key] = size
            self.live = sum(self.bytes(other) for other in self.where)
            self.filled[self.where[stage]] += size - before

    def tidy(self, movable):
        """A state has been written: begin a new state_table, and drop old ones, where it is time to.

        `movable(stage)`: nobody reads that stage's state now.
        """
        if self.filled[self.newest] >= max(self.least, self.live / SHARE):
            self.turn()
        self._drop()
        if sum(self.filled.values()) > max(self.least, self.live) * BOUND and self._empty_one(movable):
            self._drop()

    def _drop(self):
        """Drop the state tables that nothing of use is in, nor will be."""
        unused = self.there - {self.newest, *self._to_come()} - {g for g, count in self.held.items() if count}
        if unused:
            dropped = self.catalog.drop_state_tables(self.run_id, unused)  # (one that a session still reads: later)
            self.there -= dropped
            for state_table in dropped:
                del self.filled[state_table]

    def _empty_one(self, movable):
        """Move the states out of the state_table of which the least part is of use; False where that gains nothing."""
        shares = []
        for state_table in self.there - {self.newest, *self._to_come()}:
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

    def _at(self, state_table):
        return [stage for stage, where in self.where.items() if where == state_table]

    def _to_come(self):
        """The state tables that units at work, and states that are carried here, write to."""
        return {*self.targets.values(), *(g for g, count in self.expected.items() if count)}

    def release(self, stages):
        """The states of these stages are of no use any more."""
        for stage in stages:
            self._take(stage)

    def _put(self, stage, state_table):
        self.untouched = self.untouched and state_table != self.newest
        self.where[stage] = state_table
        self.held[state_table] += 1
        self.live += self.bytes(stage)

    def _take(self, stage):
        if stage in self.where:
            self.held[self.where.pop(stage)] -= 1
            self.live -= self.bytes(stage)

    def begin_anew(self):
        """Write to a state_table in which nothing can be."""
        if not self.untouched:
            self.turn()

    def turn(self):
        """Begin a new state table."""
        self.catalog.new_state_table(self.run_id, self.newest + 1)
        self.newest += 1
        self.there.add(self.newest)
        self.untouched = True
