"""Decides, while a run goes on, which iterations of which configurations are trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.call.configurations import Configuration, Configurations, is_super_net
from pg_mop.call.earlier import End
from pg_mop.catalog import metric_of
from pg_mop.plan.stages import Plan, Stage
from pg_mop.plan.watch import Watch
from pg_mop.run.instructions import Ask, GiveUp, Instructions, Invite, Pin, Register, Withdraw
from pg_mop.run.messages import Messages
from pg_mop.search.space import ParameterSet

Row = dict[str, Any]  # of Catalog.metrics
Verdict = tuple[str, int]  # why a configuration stops, and after which iteration


class RunController:
    """Stops configurations by their own rules (`stop` in fit parameters), and keeps the best state of those that ask
    for it. Its methods are generators of instructions (run/instructions.py).

    The executor calls `begin()` first; then `ended(stages)` for stages that have been trained and, where wanted,
    evaluated; `failed(mst_keys)`; and `control_requests(list)` for requests by people (mop_stop_trial, mop_add_trial).
    The run goes on until the board and the controller are `done`.

    A subclass has `begin`, `ended` and `failed`. Its `stop()` and `add()` carry out requests of users and stop rules; a
    stop rule names the iteration `at` after which it stops a configuration.
    """

    def __init__(
        self,
        plan: Plan,
        configurations: Configurations,
        metrics_of: Callable[[list[int]], Iterable[Row]],
        messages: Messages,
    ) -> None:
        """`metrics_of(stages)`: the rows of Catalog.metrics of these stages (numbers)."""
        self.plan, self.configurations, self.metrics_of, self.messages = plan, configurations, metrics_of, messages
        self.watches: dict[int, Watch] = {}  # of each mst_key with a rule
        self.seen: dict[int, int] = {}  # mst_key -> the last iteration whose metrics its watch has
        self.kept: dict[int, int] = {}  # mst_key -> the stage whose state is kept as its best one
        self.values: dict[tuple[int, str], Row] = {}  # (stage, dataset) -> its metrics
        self.stopped: set[int] = set()  # mst_keys that a rule or a person has stopped

    @property
    def done(self) -> bool:
        """True if the controller will ask for nothing more by itself."""
        return True

    def begin(self) -> Instructions:
        raise NotImplementedError

    def ended(self, stages: Sequence[Stage]) -> Instructions:
        raise NotImplementedError

    def failed(self, mst_keys: Collection[int]) -> Instructions:
        raise NotImplementedError

    def stop(self, mst_key: int, reason: str, at: int | None = None) -> Instructions:
        raise NotImplementedError

    def add(self, added: ParameterSet, iterations: int | None, reason: str) -> Instructions:
        raise NotImplementedError

    def expect(self, stages: Iterable[Stage]) -> None:
        """These stages are to be done."""

    def finish(self) -> None:
        """All is trained."""

    def keeps(self, mst_key: int) -> bool:
        """True where a configuration has a best state, which is written even if it can be trained no further. (A fold fails
        with its configuration.)"""
        return mst_key in self.kept and not self.configurations.folds

    # --- rules ----------------------------------------------------------------------------------------
    def watch(self) -> Instructions:
        """Watch the configurations that have rules, from the metrics that are known."""
        for c in self.configurations:
            self.begin_to_watch(c)
        known = {s for key in self.watches for s in self.plan.path(key) if s.evaluated and s.ended}
        self.look_up(known)
        for key in list(self.watches):
            yield from self.look(key)

    def begin_to_watch(self, c: Configuration) -> None:
        if "rule" in c and not c.get("error"):
            _, _, goal = c["rule"]
            self.watches[c["mst_key"]] = Watch(goal, c["fit"]["stop"])

    def look(self, mst_key: int) -> Instructions:
        """Tell a configuration's watch the metrics that are known by now, and stop it if the watch says so."""
        verdict = yield from self.judge(mst_key)
        if verdict is not None:
            yield from self.stop(mst_key, *verdict)

    def judge(self, mst_key: int, until: int | None = None) -> Instructions:
        """Tell a configuration's watch the metrics that are known by now, of iterations up to `until`. Returns a
        Verdict, or None."""
        watch, c = self.watches[mst_key], self.configurations[mst_key]
        metric, dataset, _ = c["rule"]
        for stage in self.plan.path(mst_key)[self.seen.get(mst_key, 0) : until]:
            if not stage.ended:
                return None
            self.seen[mst_key] = stage.iteration
            row = self.row(stage, dataset) if stage.evaluated else None
            if row is None:
                continue
            reason = watch.tell(stage.iteration, metric_of(row, metric), row["loss"])
            if c["fit"]["keep"] == "best" and watch.best is not None and watch.best[0] == stage.iteration:
                yield Pin(stage.number, self.kept.get(mst_key))
                self.kept[mst_key] = stage.number
            if reason is not None and mst_key not in self.stopped:
                return reason, stage.iteration
        return None

    def apply_rules(self, stages: Sequence[Stage]) -> Instructions:
        """Apply the rules of the configurations on whose paths these stages are, which have ended."""
        if self.watches:
            self.look_up([stage for stage in stages if stage.evaluated])
            for mst_key in sorted(set().union(*(stage.trials for stage in stages)) & self.watches.keys()):
                yield from self.look(mst_key)

    def row(self, stage: Stage, dataset: str) -> Row | None:
        """The metrics of a stage that has been evaluated; None if it was not evaluated on this dataset."""
        if (stage.number, "training") not in self.values:
            self.look_up([stage])
        return self.values.get((stage.number, dataset))

    def look_up(self, stages: Iterable[Stage]) -> None:
        """Read the metrics of stages that have been evaluated."""
        unknown = [stage.number for stage in stages if (stage.number, "training") not in self.values]
        for row in self.metrics_of(unknown) if unknown else ():
            self.values[row["stage"], row["dataset"]] = row

    # --- people ---------------------------------------------------------------------------------------
    def control_requests(self, requests: Iterable[dict[str, Any]]) -> Instructions:
        """Do what people request. Returns True if something else has changed, too."""
        for request in requests:
            if "stop" in request:
                yield from self.stop(request["stop"], f"stopped by {request['by']}")
                continue
            if "server" in request:
                yield Invite(request["server"], request["by"])
                continue
            model_id, compile_params, fit_params = request["add"]
            added = ParameterSet(model_id, compile_params, fit_params or "")
            reason = f"added by {request['by']}"
            try:
                yield from self.add(added, request["iterations"], reason)
            except MopError as error:
                self.messages.not_taken(reason, error)
        return False

    def withdraw(self, mst_key: int, reason: str | None, at: int | None = None) -> Instructions:
        """End a configuration with its folds after its present iteration, or after `at`, and evaluate it there. Returns the
        stages that it gives up."""
        trials = self.configurations.trials_of(mst_key)
        gone = []
        for key in reversed(trials):  # folds first: a run that goes on finds the configuration stopped after them
            gone += yield from self._withdraw(key, reason, at, tuple(trials) if len(trials) > 1 else ())
        return gone

    def _withdraw(self, mst_key: int, reason: str | None, at: int | None, beside: Sequence[int]) -> Instructions:
        self.stopped.add(mst_key)
        gone = yield Withdraw(mst_key, reason, at, beside)
        path = self.plan.path(mst_key)
        if path and not path[-1].failed and not is_super_net(self.configurations[mst_key]):
            stages, _ = yield Ask(self.configurations[mst_key], len(path), (len(path),))
            if stages and mst_key in self.seen:  # the iteration may have ended unevaluated: the watch needs its metrics
                self.seen[mst_key] = min(self.seen[mst_key], len(path) - 1)
            self.expect(stages)
        return gone


class FixedController(RunController):
    """All iterations are asked for at the beginning, apart from configurations that people add. Tells of each iteration
    that all configurations have been through."""

    def __init__(self, *arguments: Any, num_iterations: int, metrics_iterations: Collection[int]) -> None:
        super().__init__(*arguments)
        self.num_iterations, self.metrics_iterations = num_iterations, metrics_iterations
        self.left: dict[int, set[int]] = {}  # iteration -> numbers of the stages that have not ended
        self.worked: set[int] = set()  # iterations with stages that ended in this call
        self.told, self.began, self.passed = 0, 0.0, 0  # the last iteration told of; stages that have ended since

    def begin(self) -> Instructions:
        yield from self.watch()
        self.expect(self.plan.stages.values())
        self.told = min(self.left, default=1) - 1
        self.began = time.monotonic()

    def ended(self, stages: Sequence[Stage]) -> Instructions:
        for stage in stages:
            self.worked.add(stage.iteration)
            self._leave(stage)
        self.passed += len(stages)
        yield from self.apply_rules(stages)
        self.tell()

    def failed(self, mst_keys: Collection[int]) -> Instructions:
        self._leave_unwanted()
        self.tell()
        yield from ()

    def stop(self, mst_key: int, reason: str, at: int | None = None) -> Instructions:
        if self.plan.path(mst_key):
            for stage in (yield from self.withdraw(mst_key, reason, at)):
                if not stage.trials:
                    self._leave(stage)

    def add(self, added: ParameterSet, iterations: int | None, reason: str) -> Instructions:
        until = iterations or self.num_iterations
        c = self.configurations.make(max(self.configurations.by_key) + 1, added)
        problem = self.configurations.add(c, until)
        if problem:
            self.messages.refused(c["mst_key"], reason, problem)
        self.begin_to_watch(c)
        if problem:
            yield Register(c)
        else:
            evaluated = [i for i in range(1, until + 1) if i in self.metrics_iterations or i == until]
            stages, _ = yield Ask(c, until, evaluated, new=True)
            self.expect(stages)
        if c["mst_key"] in self.watches:  # stages that others have trained may be its best, or its end
            yield from self.look(c["mst_key"])

    def tell(self) -> None:
        """Tell of the iterations that all configurations have been through."""
        reached = min(self.left, default=max(self.worked, default=self.told) + 1)
        while self.told < reached - 1:
            self.told += 1
            if self.told in self.worked:
                self.messages.iteration(self.told, self.seconds_left())

    def seconds_left(self) -> float | None:
        """Seconds to the end if stages go on to take as long as by now; None if none has ended."""
        left = sum(len(numbers) for numbers in self.left.values())
        return (time.monotonic() - self.began) * left / self.passed if self.passed else None

    def expect(self, stages: Iterable[Stage]) -> None:
        for stage in stages:
            if stage.trials and not stage.failed and not stage.ended:
                self.left.setdefault(stage.iteration, set()).add(stage.number)

    def _leave_unwanted(self) -> None:
        """Some configurations go no further: do not wait for stages that nobody else wants."""
        for numbers in list(self.left.values()):
            for number in {n for n in numbers if not (s := self.plan.stages[n]).trials or s.failed}:
                self._leave(self.plan.stages[number])

    def _leave(self, stage: Stage) -> None:
        left = self.left.get(stage.iteration)
        if left is not None:
            left.discard(stage.number)
            if not left:
                del self.left[stage.iteration]


class ReplayController(FixedController):
    """Repeats what an earlier run logged. All iterations are asked for at the beginning: the log has the decisions of search
    procedures, of rules, of people and of the clock. A configuration that ended before its time ends in the same way."""

    def __init__(self, *arguments: Any, ends: Mapping[int, End], best: Mapping[int, int] | None, **more: Any) -> None:
        """`ends`: {mst_key: End}; `best`: {mst_key: iteration} of the states that the run kept as the best ones; None: the
        rules of the configurations choose them again."""
        super().__init__(*arguments, **more)
        self.ends, self.best = dict(ends), best

    def begin(self) -> Instructions:
        self.stopped.update(c["mst_key"] for c in self.configurations)  # (by the log, not by rules)
        yield from super().begin()
        for key in list(self.ends):
            yield from self._end(key)

    def watch(self) -> Instructions:
        if self.best is None:
            yield from super().watch()
            return
        for key, iteration in self.best.items():
            if len(path := self.plan.path(key)) >= iteration:  # (else it could not be trained now)
                self.kept[key] = path[iteration - 1].number
                yield Pin(self.kept[key])

    def ended(self, stages: Sequence[Stage]) -> Instructions:
        yield from super().ended(stages)
        for key in sorted(set().union(*(stage.trials for stage in stages)) & self.ends.keys()):
            yield from self._end(key)

    def _end(self, key: int) -> Instructions:
        """End a configuration as the log says, if its last iteration has ended."""
        path = self.plan.path(key)
        if path and not path[-1].ended:
            return
        end = self.ends.pop(key)
        if end.reason is not None:
            yield Withdraw(key, end.reason, len(path))
        if end.error is not None:
            yield GiveUp(key, end.error, end.blame or "configuration")
