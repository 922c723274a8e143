"""Which table a run's model states are written to, so that its disk use follows the live states."""

LEAST_BYTES = 4 << 20  # of a generation: with small states a table is not worth its making


class Generations:
    """The run's generations of states (see mop_generation in sql/10_tables.sql).

    New states go into the newest. Once half as many bytes are written there as live states have together, a new one
    begins. When the states of all models that train have moved on from a generation, it holds nothing of use and is
    dropped; models that lag behind are moved. So there are three or so, of half the size of the live states each.
    """

    def __init__(self, catalog, run_id):
        self.catalog, self.run_id = catalog, run_id
        models = catalog.models(run_id)
        # mst_key -> bytes of its model state, the same in every version; of those that have been written
        self.bytes = {key: m["bytes"] for key, m in models.items() if m["bytes"] is not None}
        self.where = {key: {m["generation"], m["kept_generation"]} - {None} for key, m in models.items()}
        self.there = catalog.generations(run_id)
        self.newest = max(self.there)
        self.written = sum(self.bytes[key] for key, where in self.where.items() if self.newest in where)
        self.targets = {}  # mst_key -> the generation that its unit at work will write to

    def begin(self, mst_key):
        """The generation that a training unit is to write its model's state to."""
        self.targets[mst_key] = self.newest
        return self.newest

    def failed(self, mst_key):
        """The unit wrote nothing."""
        self.targets.pop(mst_key, None)

    def finished(self, mst_key, movable, keeps):
        """The unit has written its model's state.

        `movable(mst_key)`: nobody reads that model's state now; `keeps`: the version before stays, too.
        """
        target = self.targets.pop(mst_key)
        before = max(self.where[mst_key], default=target)
        self.where[mst_key] = {before, target} if keeps else {target}
        if mst_key not in self.bytes:
            self.bytes.update({key: m["bytes"] for key, m in self.catalog.models(self.run_id).items()
                               if m["bytes"] is not None})
        self.written += self.bytes.get(mst_key, 0)
        if self.written >= max(LEAST_BYTES, sum(self.bytes.values()) / 2):
            self._turn(movable)
        used = {self.newest, *self.targets.values()}.union(*self.where.values())
        if self.there - used:
            # one that a session still reads is dropped later
            self.there -= self.catalog.drop_generations(self.run_id, self.there - used)

    def _turn(self, movable):
        before, self.newest = self.newest, self.newest + 1
        self.catalog.new_generation(self.run_id, self.newest)
        self.there.add(self.newest)
        late = [key for key, where in self.where.items() if where and max(where) < before - 1
                and key not in self.targets and movable(key)]
        if late:
            self.catalog.move_states(self.run_id, late, self.newest)
            self.where.update({key: {self.newest} for key in late})
        self.written = sum(self.bytes[key] for key in late)
