"""The search plan: the forest of the stages that were asked for.

A *stage* is one iteration of training from its parent's state under given parameters. A trial is a path from a root.
Stages of equal identity are one stage, so two trials share exactly their longest common path (TreeML's search plan,
thesis 2021, section 4.2, with one node an iteration: no node is ever split). What nobody asks for any more stays in
the plan, as somebody may ask for it again, but is not run.
"""

from pg_mop.plan import identity


class Stage:
    """One iteration of training.

    `number`: from 1, in the order in which stages were asked for; a parent's is smaller. `iteration`: from 1.
    `parameters`: (compile_params, fit_params), literal texts. `mst_key`: of the trial that asked for it first.
    `trials`: the mst_keys on whose path it is; `ends`: how many of these paths end with it;
    `evaluated_for`: those of them that want its metrics (None: none has ever). The board notes what came of it:
    `trained` on every segment, `scored` (all its metrics are there), `failed`.
    """

    __slots__ = (
        "number",
        "parent",
        "iteration",
        "identity",
        "parameters",
        "mst_key",
        "children",
        "trials",
        "ends",
        "evaluated_for",
        "origin",
        "trained",
        "scored",
        "failed",
    )

    def __init__(self, number, parent, iteration, identity, parameters, mst_key=None):
        self.number, self.parent, self.iteration = number, parent, iteration
        self.identity, self.parameters, self.mst_key = identity, parameters, mst_key
        self.children, self.trials, self.ends, self.evaluated_for = [], set(), 0, None
        self.origin = None
        self.trained = self.scored = self.failed = False

    @property
    def evaluated(self):
        """True where somebody wants its metrics."""
        return bool(self.evaluated_for)

    @property
    def ended(self):
        """True where nothing of it is left to do: it has been trained and, where somebody wants that, evaluated."""
        return self.trained and (self.scored or not self.evaluated_for)

    def __repr__(self):
        return f"<stage {self.number}: iteration {self.iteration} of {sorted(self.trials)}>"


class Plan:
    """All stages of a run: `stages`, {number: Stage}; `asked`, the lengths of all trials' paths together."""

    def __init__(self):
        self.stages, self.asked = {}, 0
        self._by_identity = {}  # identity -> Stage
        self._paths = {}  # mst_key -> [Stage of iteration 1, ...]
        self._wanted = 0  # stages on somebody's path
        self._next = 1

    def ask(self, mst_key, root, parameters, until, evaluated=(), apart=None):
        """A trial wants its iterations up to `until`. Returns the stages that somebody has to do something for now:
        those on nobody's path so far and those whose metrics nobody wanted, parents first.

        `root`: the identity of where it starts; `parameters(iteration)` gives a stage's parameters; `evaluated`: a
        container of the iterations whose metrics it wants, also of earlier ones; `apart`: {iteration: a text} of those
        that are not shared with equal ones of another text, or of none. A path ends with the first stage that is at
        fault, which is never returned: see `failed`.
        """
        path, found = self._paths.setdefault(mst_key, []), []
        for stage in path if evaluated else ():
            if stage.iteration in evaluated and self._evaluate(stage, mst_key) and not stage.failed:
                found.append(stage)
        parent = path[-1] if path else None
        if parent is not None and parent.failed:
            return found
        for iteration in range(len(path) + 1, until + 1):
            values = tuple(parameters(iteration))
            name = identity.child(parent.identity if parent else root, values)
            if apart and iteration in apart:
                name += f"/{apart[iteration]}"
            stage = self._by_identity.get(name) or self._put(self._next, parent, iteration, name, values, mst_key)
            new = not stage.trials
            stage.trials.add(mst_key)
            self._wanted += new
            self._append(path, stage)
            if stage.failed:
                break
            if iteration in evaluated and self._evaluate(stage, mst_key):
                new = True
            if new:
                found.append(stage)
            parent = stage
        return found

    def foresee(self, mst_key, root, parameters, until):
        """Those stages that `ask` would add to a trial's path that the plan has already."""
        path, found = self._paths.get(mst_key, ()), []
        parent = path[-1] if path else None
        for iteration in range(len(path) + 1, until + 1):
            parent = self._by_identity.get(
                identity.child(parent.identity if parent else root, tuple(parameters(iteration)))
            )
            if parent is None or parent.failed:
                break
            found.append(parent)
        return found

    def restore(
        self,
        number,
        parent_number,
        iteration,
        identity,
        parameters,
        mst_key=None,
        trials=(),
        evaluated=False,
        failed=False,
    ):
        """Put a stage of an earlier coordinator back under its number, after its parent (None: it has none); on the
        path of its `trials`, who want its metrics where it is `evaluated`."""
        parent = None if parent_number is None else self.stages[parent_number]
        stage = self._put(number, parent, iteration, identity, tuple(parameters), mst_key)
        stage.failed = failed or (parent is not None and parent.failed)
        self._wanted += bool(trials)
        for key in trials:
            stage.trials.add(key)
            self._append(self._paths.setdefault(key, []), stage)
            if evaluated:
                self._evaluate(stage, key)
        return stage

    def path(self, mst_key):
        """The stages that a trial has asked for, by iteration."""
        return list(self._paths.get(mst_key, ()))

    def failed(self, mst_key):
        """True where a stage on the trial's path is at fault: what it wants below will never be run."""
        path = self._paths.get(mst_key)
        return bool(path) and path[-1].failed

    def withdraw(self, mst_key, begun=None, until=None):
        """The trial wants nothing more: its path ends with what has been trained, or failed, or where `begun(stage
        number)` says that it has begun.

        `until`: the iteration after which it stops. Its path ends there although others, or an earlier run, have
        trained what follows: so where it ends depends on its own results alone.

        Returns the stages of which it wants less now, by iteration. It may ask again, and goes on from there.
        """
        path, changed = self._paths.get(mst_key, []), []

        def stays(stage):
            if self._is_origin(stage):
                return True
            if until is not None and stage.iteration > until and (stage.trained or len(stage.trials) > 1):
                return False
            return stage.trained or begun is not None and begun(stage.number)

        while path and not stays(path[-1]):
            stage = path.pop()
            stage.ends -= 1
            if path:
                path[-1].ends += 1
            stage.trials.discard(mst_key)
            if stage.evaluated_for:
                stage.evaluated_for.discard(mst_key)
            self.asked -= 1
            self._wanted -= not stage.trials
            changed.append(stage)
        changed.reverse()
        unscored = [
            stage
            for stage in path
            if stage.trained and not stage.scored and stage.evaluated_for and mst_key in stage.evaluated_for
        ]
        for stage in unscored:
            stage.evaluated_for.discard(mst_key)
        return unscored + changed

    def merge_rate(self, run=None):
        """Stages asked for, by all trials together, for each one that is run (`run`: as many; by default all that
        are on somebody's path). None before anything was."""
        run = self._wanted if run is None else run
        return self.asked / run if run else None

    def _put(self, number, parent, iteration, name, parameters, mst_key):
        stage = Stage(number, parent, iteration, name, parameters, mst_key)
        self.stages[number] = self._by_identity[name] = stage
        self._next = max(self._next, number + 1)
        if parent is not None:
            parent.children.append(stage)
        return stage

    def _append(self, path, stage):
        if path:
            path[-1].ends -= 1
        path.append(stage)
        stage.ends += 1
        self.asked += 1

    @staticmethod
    def _is_origin(stage):
        """True for a stage that is itself at fault, not one above it."""
        return stage.failed and not (stage.parent is not None and stage.parent.failed)

    @staticmethod
    def _evaluate(stage, mst_key):
        """Note that the trial wants the stage's metrics; True where nobody did."""
        first = not stage.evaluated_for
        if stage.evaluated_for is None:
            stage.evaluated_for = set()
        stage.evaluated_for.add(mst_key)
        return first
