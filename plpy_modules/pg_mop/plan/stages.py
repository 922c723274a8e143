"""The search plan: the forest of the stages that trials ask for.

A *stage* is one iteration of training from its parent's state under given parameters. A trial is a path from a root, or from
the last stage of another trial, whose weights it inherits: such a first stage has that stage as its parent, and iteration 1.
Stages of equal identity are one stage, so two trials share exactly their longest common path (TreeML's search plan,
thesis 2021, section 4.2, with one node for each iteration, so that no node is ever split). A stage that no trial wants
any more stays in the plan, because a trial may ask for it again, but the run does not train it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from pg_mop.plan import identity
from pg_mop.plan.identity import Identity

MstKey = int  # number of a configuration (and of its trial)
StageNumber = int  # from 1, in the order of asking; a parent's number is smaller than its child's
Iteration = int  # from 1
Parameters = tuple[str, ...]  # (compile_params, fit_params) of one iteration, literal texts
Origin = tuple[int, StageNumber]  # (run, stage number) where a stage was trained


class Stage:
    """One iteration of training. `depth`: how many iterations its state has behind it with this one, those of trials that its
    trial inherits from included; else the iteration.

    `mst_key`: the trial that asked for the stage first (0: unknown). `trials`: the trials whose paths contain the stage;
    `ends`: the number of paths that end with it; `evaluated_for`: the trials that want its metrics (None: no trial ever has);
    `origin`: where an earlier run trained it, or None. The board notes progress: `trained` on every segment, `scored`
    (all its metrics are known), `failed`.
    """

    __slots__ = (
        "number",
        "parent",
        "iteration",
        "depth",
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

    def __init__(
        self,
        number: StageNumber,
        parent: "Stage | None",
        iteration: Iteration,
        identity: Identity,
        parameters: Parameters,
        mst_key: MstKey = 0,
    ) -> None:
        self.number, self.parent, self.iteration = number, parent, iteration
        self.depth: int = 1 if parent is None else parent.depth + 1
        self.identity, self.parameters, self.mst_key = identity, parameters, mst_key
        self.children: list[Stage] = []
        self.trials: set[MstKey] = set()
        self.ends = 0
        self.evaluated_for: set[MstKey] | None = None
        self.origin: Origin | None = None
        self.trained = self.scored = self.failed = False

    @property
    def evaluated(self) -> bool:
        """True where a trial wants the stage's metrics."""
        return bool(self.evaluated_for)

    @property
    def ended(self) -> bool:
        """True where no work is left: the stage is trained and, where a trial wants its metrics, evaluated."""
        return self.trained and (self.scored or not self.evaluated_for)

    def __repr__(self) -> str:
        return f"<stage {self.number}: iteration {self.iteration} of {sorted(self.trials)}>"


class Plan:
    """All stages of a run.

    `stages`: {number: Stage}; `asked`: the sum of the lengths of all trials' paths.
    """

    def __init__(self) -> None:
        self.stages: dict[StageNumber, Stage] = {}
        self.asked = 0
        self._by_identity: dict[Identity, Stage] = {}
        self._paths: dict[MstKey, list[Stage]] = {}  # by iteration
        self._wanted = 0  # stages on the path of at least one trial
        self._next = 1

    def ask(
        self,
        mst_key: MstKey,
        root: Identity,
        parameters: Callable[[Iteration], Iterable[str]],
        until: Iteration,
        evaluated: Collection[Iteration] = (),
        apart: Mapping[Iteration, object] | None = None,
        donor: "Stage | None" = None,
    ) -> list[Stage]:
        """Extend a trial's path up to the iteration `until`. Returns the stages that need work now, parents first: those
        that no trial wanted before, and those whose metrics no trial wanted before.

        `root`: the identity of the path's start. `parameters`: gives the parameters of an iteration. `evaluated`: the
        iterations whose metrics the trial wants, earlier ones included. `apart`: {iteration: text} of iterations that
        the trial shares only with trials that give the same text. `donor`: the last stage of another trial, from whose
        state the path begins; `root` covers its identity. A path ends with the first failed stage, which is never returned:
        see `failed`.
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
            stage = self._by_identity.get(name) or self._put(
                self._next, parent or donor, iteration, name, values, mst_key
            )
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

    def foresee(
        self, mst_key: MstKey, root: Identity, parameters: Callable[[Iteration], Iterable[str]], until: Iteration
    ) -> list[Stage]:
        """The existing stages that `ask` would add to a trial's path, up to the first missing or failed one."""
        path, found = self._paths.get(mst_key, []), []
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
        number: StageNumber,
        parent_number: StageNumber | None,
        iteration: Iteration,
        identity: Identity,
        parameters: Iterable[str],
        mst_key: MstKey = 0,
        trials: Collection[MstKey] = (),
        evaluated: bool = False,
        failed: bool = False,
    ) -> Stage:
        """Put a logged stage back under its number when a run is resumed; its parent must have been restored before.

        `trials`: the trials whose paths contain the stage; they want its metrics where `evaluated` is true.
        """
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

    def path(self, mst_key: MstKey) -> list[Stage]:
        """The stages that a trial has asked for, by iteration."""
        return list(self._paths.get(mst_key, ()))

    def failed(self, mst_key: MstKey) -> bool:
        """True where a stage on the trial's path has failed: the trial's later stages will never run."""
        path = self._paths.get(mst_key)
        return path is not None and len(path) > 0 and path[-1].failed

    def withdraw(
        self,
        mst_key: MstKey,
        begun: Callable[[StageNumber], bool] | None = None,
        until: Iteration | None = None,
        least: Iteration = 0,
    ) -> list[Stage]:
        """End a trial: its path keeps the stages that are trained, have failed, or have begun by `begun(stage number)`.

        `until`: the iteration after which the trial stops. The path ends there even if another trial or an earlier run
        has trained the following stages, so that its end depends on the trial's own results alone. `least`: the path keeps
        the stages up to this iteration. Returns the stages that the trial wants no longer, or whose metrics it wants no
        longer, by iteration. The trial may ask again and continues from the end of its path.
        """
        path, changed = self._paths.get(mst_key, []), []
        while path and path[-1].iteration > least and not self._stays(path[-1], begun, until):
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
        unscored = []
        for stage in path:
            if stage.trained and not stage.scored and stage.evaluated_for and mst_key in stage.evaluated_for:
                stage.evaluated_for.discard(mst_key)
                unscored.append(stage)
        return unscored + changed

    def end(
        self, mst_key: MstKey, begun: Callable[[StageNumber], bool] | None = None, until: Iteration | None = None
    ) -> Iteration:
        """The iteration with which a trial's path would end if it were withdrawn now; 0: with none."""
        path = self._paths.get(mst_key, [])
        return next((stage.iteration for stage in reversed(path) if self._stays(stage, begun, until)), 0)

    def _stays(self, stage: Stage, begun: Callable[[StageNumber], bool] | None, until: Iteration | None) -> bool:
        """True for a stage that a trial which is withdrawn keeps; see `withdraw`."""
        if self._has_failed_itself(stage):
            return True
        if until is not None and stage.iteration > until and (stage.trained or len(stage.trials) > 1):
            return False
        return stage.trained or begun is not None and begun(stage.number)

    def merge_rate(self, run: int | None = None) -> float | None:
        """Stages asked for by all trials, divided by the stages that the run trains; None before any request.

        `run`: the number of trained stages; by default, the stages that at least one trial wants.
        """
        run = self._wanted if run is None else run
        return self.asked / run if run else None

    def _put(
        self,
        number: StageNumber,
        parent: Stage | None,
        iteration: Iteration,
        name: Identity,
        parameters: Parameters,
        mst_key: MstKey,
    ) -> Stage:
        stage = Stage(number, parent, iteration, name, parameters, mst_key)
        self.stages[number] = self._by_identity[name] = stage
        self._next = max(self._next, number + 1)
        if parent is not None:
            parent.children.append(stage)
        return stage

    def _append(self, path: list[Stage], stage: Stage) -> None:
        if path:
            path[-1].ends -= 1
        path.append(stage)
        stage.ends += 1
        self.asked += 1

    @staticmethod
    def _has_failed_itself(stage: Stage) -> bool:
        """True for a failed stage whose parent has not failed."""
        return stage.failed and not (stage.parent is not None and stage.parent.failed)

    @staticmethod
    def _evaluate(stage: Stage, mst_key: MstKey) -> bool:
        """Note that the trial wants the stage's metrics. Returns True if no trial wanted them before."""
        first = not stage.evaluated_for
        if stage.evaluated_for is None:
            stage.evaluated_for = set()
        stage.evaluated_for.add(mst_key)
        return first
