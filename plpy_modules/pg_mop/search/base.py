"""The interface of the search procedures: ask for trials with budgets, tell the results."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from pg_mop.search.parameters import MOST_ITERATIONS, Parameter, SearchError
from pg_mop.search.space import ParameterSet, Space

TrialNumber = int  # from 1
Losses = dict[int, float]  # {iteration: loss}; the smaller the better, for either goal

RUNNING, PAUSED, ENDED, STOPPED, FAILED = "running", "paused", "ended", "stopped", "failed"


class Proposal(NamedTuple):
    """A trial that may train now, up to `budget` iterations in all.

    `configuration` is None for a trial that was proposed before. `ask` returns a group of proposals (TrialGroup in Yu et
    al.: "Fluid: Resource-aware Hyperparameter Tuning Engine", MLSys 2021).
    """

    trial: TrialNumber
    configuration: ParameterSet | None
    budget: int


class Trial:
    """A configuration that a procedure has proposed."""

    __slots__ = ("number", "configuration", "budget", "at", "loss", "state", "outside", "asked", "data")

    def __init__(self, number: TrialNumber, configuration: ParameterSet, outside: bool = False) -> None:
        self.number, self.configuration = number, configuration
        self.outside = outside  # a user has added the trial
        self.budget = self.at = 0  # iterations asked for; the last iteration with a value
        self.loss = math.inf  # that value; the smaller the better, for either goal
        self.state = PAUSED
        self.asked = False  # `ask` has returned its configuration
        self.data: Any = None  # for the procedure's own use


class Procedure(ABC):
    """Proposes, extends and stops trials.

    All decisions follow from the seed and from the calls of `begin_with`, `tell`, `add` and `stop` in their order; the
    times at which `ask` is called do not matter. So a new procedure that gets the same calls makes the same proposals.

    A subclass has a name, PARAMETERS and `most`. `_begin` makes the first proposals; `_on_budget` and `_on_lost` react
    to events, and so do `_on_value`, `_on_withdrawn` and `_on_idle` where a procedure needs them. All of these call
    `_propose` and `_stop`. The procedure is done when no trial runs.

    >>> from pg_mop.search.parameters import integer
    >>> from pg_mop.search.random_sampler import RandomSampler
    >>> class BestOfSome(Procedure):
    ...     name = "best-of-some"
    ...     PARAMETERS = {
    ...         "trials": integer(2, 100, 3, "configurations to compare after one iteration"),
    ...         "iterations": integer(2, 100, 10, "iterations of the best configuration"),
    ...     }
    ...
    ...     @property
    ...     def most(self):
    ...         return self.settings.iterations
    ...
    ...     def _evaluates(self, trial):
    ...         return (1, self.most)
    ...
    ...     def _begin(self):
    ...         sampler = RandomSampler(self.space, self.seed)
    ...         for number in range(1, self.settings.trials + 1):
    ...             self._propose(self._new(self.space.configuration(sampler.ask(number))), 1)
    ...
    ...     def _on_budget(self, trial):
    ...         pass
    ...
    ...     def _on_lost(self, trial):
    ...         pass
    ...
    ...     def _on_idle(self):
    ...         ranked = sorted((t for t in self.trials.values() if t.state == PAUSED), key=lambda t: t.loss)
    ...         for trial in ranked[1:]:
    ...             self._stop(trial, "not the best after iteration 1")
    ...         for trial in ranked[:1]:
    ...             self._propose(trial, self.most)
    >>> space = Space.of_texts([1], "{'loss': ['mse'], 'optimizer': ['SGD', 'Adam', 'Nadam']}", "{'batch_size': [8, 16]}")
    >>> procedure = BestOfSome(space, seed=1, goal="max", iterations=5)
    >>> for proposal in procedure.ask():
    ...     procedure.tell(proposal.trial, 1, value=proposal.trial / 10)
    >>> procedure.ask()
    [Proposal(trial=3, configuration=None, budget=5)]
    >>> procedure.tell(3, 5, 0.9)
    >>> procedure.done, procedure.best, sorted(procedure.why)
    (True, (3, 5, 0.9), [1, 2])
    """

    name: str
    PARAMETERS: dict[str, Parameter] = {}
    STOPS_WITHIN_BUDGET = False  # may stop a trial at any iteration that it evaluates

    def __init__(self, space: Space, seed: int, goal: str = "min", **parameters: Any) -> None:
        """`goal`: 'min' or 'max'. Raises SearchError for a wrong parameter, GridError where the procedure cannot search
        the space."""
        if goal not in ("min", "max"):
            raise SearchError(f"goal must be min or max, not {goal!r}")
        self.space, self.seed, self.goal = space, seed, goal
        self.settings: Any = SimpleNamespace()  # the values of PARAMETERS
        self.check_names(parameters)
        for name, parameter in self.PARAMETERS.items():
            value = parameters.get(name, parameter.default)
            value = value.lower() if isinstance(value, str) else value
            if not (value is None and parameter.default is None) and not parameter.accepts(value):
                raise SearchError(f"{name} of {self.name} must be {parameter.wanted}, not {value!r}")
            setattr(self.settings, name, value)
        self.trials: dict[TrialNumber, Trial] = {}
        self.why: dict[TrialNumber, str] = {}  # why trials have stopped
        self.best: tuple[TrialNumber, int, float] | None = None  # (trial, iteration, value)
        self.known: list[tuple[ParameterSet, Losses]] = []  # earlier results, most iterations first, then best
        self._queue: list[Proposal] = []
        self._stopped: dict[TrialNumber, str] = {}
        self._running = self._outside = 0  # running trials: the procedure's own; those of users
        self._started = self._idle_handled = False

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Raises SearchError for a name that is not a parameter of the procedure."""
        for name in names:
            if name not in cls.PARAMETERS:
                raise SearchError(
                    f"{name!r} is no parameter of {cls.name} ({', '.join(cls.PARAMETERS) or 'none'})",
                    {
                        "seed": "The argument random_state is the seed of proposals.",
                        "goal": "The argument metric sets the goal.",
                        "space": "The argument space sets the space.",
                    }.get(name),
                )

    # --- the caller's side -------------------------------------------------------------------------

    def ask(self) -> list[Proposal]:
        """The trials that may train now, or train further; may be empty.

        After a replay, the first call returns the trials that were running, each with its configuration.
        """
        self._start()
        proposals, self._queue = self._queue, []
        return [
            self._with_configuration(p)
            for p in proposals
            if self.trials[p.trial].state == RUNNING and self.trials[p.trial].budget == p.budget
        ]

    def tell(self, trial: TrialNumber, iteration: int | None, value: float | None, ends: str | None = None) -> None:
        """Take the metric of a trial after an iteration; None or NaN: the trial has failed and ends (`iteration`: None if
        the metric of none failed it).

        `ends`: the reason why the trial stops by its own rule after its budget, if it does. Values that are known
        already, and values after the trial's end, are ignored. Raises SearchError for an unknown trial.
        """
        self._start()
        known = self._trial(trial)
        if known.state != RUNNING:
            return
        if value is None or not math.isfinite(value):
            self._end(known, FAILED, "failed" if iteration is None else f"failed at iteration {iteration}")
            if not known.outside:
                self._on_lost(known)
            self._settle()
            return
        if iteration is None or not known.at < iteration <= known.budget:
            return
        known.at, known.loss = iteration, self._loss(value)
        if self.best is None or known.loss < self._loss(self.best[2]):
            self.best = known.number, iteration, value
        if not known.outside:
            self._on_value(known)
        if iteration == known.budget and known.state == RUNNING:
            known.state = ENDED if known.outside or iteration >= self.most else STOPPED if ends else PAUSED
            if known.state == STOPPED and ends:
                self.why[known.number] = self._stopped[known.number] = ends
            if known.outside:
                self._outside -= 1
            else:
                self._running -= 1
                self._on_budget(known)
        self._settle()

    def stopped(self) -> dict[TrialNumber, str]:
        """{trial: reason} of the trials that have stopped since the last call. (`why` has all reasons.)"""
        self._start()
        stopped, self._stopped = self._stopped, {}
        return stopped

    @property
    def done(self) -> bool:
        """True when no trial runs, so that no more will be proposed."""
        self._start()
        return self._running == self._outside == 0

    def add(self, configuration: ParameterSet, budget: int | None = None) -> TrialNumber:
        """Add a user's trial, which trains beside the procedure's own. Returns its number.

        `budget`: its iterations; None: as many as other trials may get. Raises SearchError for a wrong budget.
        """
        self._start()
        budget = self.most if budget is None else budget
        if not (isinstance(budget, int) and 1 <= budget <= MOST_ITERATIONS):
            raise SearchError(f"a trial's iterations must be an integer from 1 to {MOST_ITERATIONS}, not {budget!r}")
        trial = self._new(ParameterSet(*configuration), outside=True)
        self._propose(trial, budget)
        return trial.number

    def stop(self, trial: TrialNumber, why: str = "stopped by hand") -> None:
        """Stop a trial for a user. Raises SearchError for an unknown trial."""
        self._start()
        known = self._trial(trial)
        if known.state == RUNNING:
            self._end(known, STOPPED, why)
            if not known.outside:
                self._on_lost(known)
            self._settle()
        elif known.state == PAUSED:
            self._end(known, STOPPED, why)
            self._on_withdrawn(known)
            self._settle()

    def begin_with(self, results: Iterable[tuple[ParameterSet, Mapping[int, float | None]]]) -> None:
        """Take earlier results: [(configuration, {iteration: value})]. Raises SearchError after any other call."""
        if self._started:
            raise SearchError("a search begins with earlier results before it asks for anything")
        for configuration, values in results:
            losses = {i: self._loss(v) for i, v in values.items() if v is not None and math.isfinite(v)}
            if losses:
                self.known.append((ParameterSet(*configuration), losses))
        self.known.sort(key=lambda k: (-max(k[1]), k[1][max(k[1])]))

    def replay(self, events: Iterable[tuple]) -> None:
        """Repeat the logged calls of an earlier procedure, in their order: [("tell" | "add" | "stop" | "members",
        arguments...)]."""
        calls: dict[str, Callable] = {
            "tell": self.tell,
            "add": self.add,
            "stop": self.stop,
            "members": lambda trial, rows: self.take_scores_of_members(trial, {row[0]: row[1] for row in rows}),
        }
        for name, *arguments in events:
            calls[name](*arguments)

    @property
    @abstractmethod
    def most(self) -> int:
        """The most iterations that the procedure gives a trial."""

    def evaluates(self, trial: TrialNumber) -> Collection[int]:
        """The iterations of a trial after which its metric is wanted."""
        known = self._trial(trial)
        return (known.budget,) if known.outside else self._evaluates(known)

    def candidates(self, trial: TrialNumber) -> list[int] | None:
        """Of a trial that is a super-net (search/one_shot.py): the model_ids of the members that it gives scores, once it has
        its budget. It is never evaluated itself. None: the trial is none."""
        return None

    def take_scores_of_members(self, trial: TrialNumber, scores: Mapping[int, float | None]) -> None:
        """Take the scores of the `candidates` of a super-net, by model_id, which ends its trial; None: no score. Raises
        SearchError where the procedure has no super-nets."""
        raise SearchError(f"{self.name} has no super-net, so that no member has a score of one")

    def place(self, trial: TrialNumber) -> Sequence[int] | None:
        """(bracket, round) of one of the procedure's trials, where the output tables tell them."""
        return None

    def lineage(self, trial: TrialNumber) -> dict[str, Any] | None:
        """Of a trial that was made from another one: {"parent": its number, "changed": what differs, ...}, as JSON values.

        With "inherits", the trial begins with what fits of the parent's weights, after its `iteration` (by default its last
        one).
        """
        return None

    # --- events, which a subclass handles -----------------------------------------------------------

    @abstractmethod
    def _begin(self) -> None:
        """Make the first proposals."""

    def _evaluates(self, trial: Trial) -> Collection[int]:
        """The iterations of one of the procedure's trials after which its metric is wanted."""
        return (self.most,)

    def _on_value(self, trial: Trial) -> None:  # noqa: B027 (few procedures need it)
        """One of the procedure's trials has a new value."""

    @abstractmethod
    def _on_budget(self, trial: Trial) -> None:
        """A trial has trained to its budget and is paused; or its state is STOPPED, because it stops by its own rule."""

    @abstractmethod
    def _on_lost(self, trial: Trial) -> None:
        """A trial will not reach its budget: it has failed, or a user has stopped it."""

    def _on_withdrawn(self, trial: Trial) -> None:  # noqa: B027
        """A user has stopped a paused trial."""

    def _on_idle(self) -> None:  # noqa: B027
        """No trial runs: make last proposals, or stop the paused trials with reasons."""

    # --- actions, which a subclass calls ------------------------------------------------------------

    def _new(self, configuration: ParameterSet, outside: bool = False) -> Trial:
        """A new trial, which is not proposed yet."""
        trial = self.trials[len(self.trials) + 1] = Trial(len(self.trials) + 1, configuration, outside)
        return trial

    def _propose(self, trial: Trial, budget: int) -> None:
        """Let a trial train until it has `budget` iterations."""
        trial.state, trial.budget = RUNNING, budget
        if trial.outside:
            self._outside += 1
        else:
            self._running += 1
            self._idle_handled = False
        self._queue.append(Proposal(trial.number, None, budget))

    def _stop(self, trial: Trial, why: str) -> None:
        """End a trial."""
        self._end(trial, STOPPED, why)

    # --- internals ----------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._begin()
            self._settle()

    def _settle(self) -> None:
        if self._running == 0 and not self._idle_handled:
            self._idle_handled = True
            self._on_idle()

    def _with_configuration(self, proposal: Proposal) -> Proposal:
        trial = self.trials[proposal.trial]
        if trial.asked:
            return proposal
        trial.asked = True
        return proposal._replace(configuration=trial.configuration)

    def _end(self, trial: Trial, state: str, why: str) -> None:
        if trial.state == RUNNING:
            if trial.outside:
                self._outside -= 1
            else:
                self._running -= 1
        trial.state = state
        if trial.budget:  # (the caller does not know the others)
            self.why[trial.number] = self._stopped[trial.number] = why

    def _loss(self, value: float) -> float:
        return value if self.goal == "min" else -value

    def _trial(self, trial: TrialNumber) -> Trial:
        if trial not in self.trials:
            raise SearchError(f"there is no trial {trial!r}")
        return self.trials[trial]
