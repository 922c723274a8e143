"""The interface of the search procedures: ask and tell, in groups of trials with budgets."""

import ast
import math
from abc import ABC, abstractmethod
from collections import namedtuple
from types import SimpleNamespace

from mop_udf import params

# A trial's number (from 1), its configuration (None: it was given before, the trial goes on), and the iterations in all
# that it may train. What `ask` returns is a group of them (TrialGroup in Yu et al.: "Fluid: Resource-aware
# Hyperparameter Tuning Engine", MLSys 2021).
Proposal = namedtuple("Proposal", "trial configuration budget")

RUNNING, PAUSED, ENDED, STOPPED, FAILED = "running", "paused", "ended", "stopped", "failed"


class SearchError(ValueError):
    """A procedure that cannot be made or go on as asked: the text names what is wrong, `hint` what mends it."""

    def __init__(self, text, hint=None):
        super().__init__(text)
        self.hint = hint


class Parameter:
    """A parameter of a procedure: what it takes, what it is where it is not given, what it means."""

    def __init__(self, accepts, wanted, default, meaning):
        self.accepts, self.wanted, self.default, self.meaning = accepts, wanted, default, meaning


def whole(low, high, default, meaning):
    """A parameter that is an integer; a default of None may also be given as None."""

    def accepts(value):
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return Parameter(accepts, f"an integer from {low} to {high}", default, meaning)


def number(low, high, default, meaning):
    """A parameter that is a number."""

    def accepts(value):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high

    return Parameter(accepts, f"a number from {low} to {high}", default, meaning)


def choice(names, default, meaning):
    """A parameter that is a word, in any case."""
    return Parameter(lambda value: value in names, "one of " + ", ".join(names), default, meaning)


MOST_TRIALS, MOST_ITERATIONS = 1_000_000, 1_000_000


def read_parameters(text):
    """'iterations=27, sampler=tpe' (or None) -> {name: literal or word}. Raises SearchError."""
    values = {}
    try:
        parts = params.split(text) if text and text.strip() else {}
    except params.ParameterError as error:
        raise SearchError(str(error), "Write name = value, name = value.") from None
    for name, value in parts.items():
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            values[name] = value
    return values


class Trial:
    """A configuration that a procedure has asked to be trained."""

    __slots__ = ("number", "configuration", "budget", "at", "loss", "state", "outside", "asked", "data")

    def __init__(self, number, configuration, outside=False):
        self.number, self.configuration, self.outside = number, configuration, outside
        self.budget = self.at = 0  # iterations asked for, and the last one whose value was told
        self.loss = None  # that value; the smaller the better, whatever the goal
        self.state = PAUSED
        self.asked = False  # somebody was given its configuration
        self.data = None  # the procedure's own


class Procedure(ABC):
    """Proposes, extends and stops trials.

    Everything follows from the seed and from the calls of `begin_with`, `tell`, `add` and `stop` in their order, not
    from when `ask` is called: a procedure made anew and told the same makes the same proposals.

    A subclass has PARAMETERS and says what happens: `_begin` at the start, `_told` after each value, `_reached` where a
    trial has trained to its budget, `_lost` where it never will, `_withdrawn` where somebody stops a trial that waits.
    It calls `_propose` and `_stop`. Where no trial is running any more, the procedure is done.
    """

    name: str
    PARAMETERS = {}
    STOPS_WITHIN_BUDGET = False  # it may stop a trial at any iteration that it evaluates

    def __init__(self, space, seed, goal="min", **parameters):
        """Raises SearchError, naming the parameter and what it takes; GridError for a space that does not serve."""
        if goal not in ("min", "max"):
            raise SearchError(f"goal must be min or max, not {goal!r}")
        self.space, self.seed, self.goal, self.settings = space, seed, goal, SimpleNamespace()
        self.check_names(parameters)
        for name, parameter in self.PARAMETERS.items():
            value = parameters.get(name, parameter.default)
            value = value.lower() if isinstance(value, str) else value
            if not (value is None and parameter.default is None) and not parameter.accepts(value):
                raise SearchError(f"{name} of {self.name} must be {parameter.wanted}, not {value!r}")
            setattr(self.settings, name, value)
        self.trials = {}  # number -> Trial
        self.why = {}  # number -> why it does not go on
        self.best = None  # (trial, iteration, value)
        self.known = []  # (configuration, {iteration: loss}) that others have found out, the furthest and best first
        self._queue, self._stopped = [], {}
        self._running = self._outside = 0  # trials of the procedure's own, and people's
        self._started = self._finished = False

    @classmethod
    def check_names(cls, names):
        """Raises SearchError where one of the names is no parameter's."""
        for name in names:
            if name not in cls.PARAMETERS:
                raise SearchError(
                    f"{name!r} is no parameter of {cls.name} ({', '.join(cls.PARAMETERS) or 'none'})",
                    {
                        "seed": "The seed of proposals is the argument random_state.",
                        "goal": "What is sought follows from the argument metric.",
                        "space": "The space is an argument of its own.",
                    }.get(name),
                )

    # --- what the caller does ------------------------------------------------------------------

    def ask(self):
        """The trials that may train now, or train on: a list of Proposals, maybe empty.

        After a replay, those that were training then, each with its configuration.
        """
        self._start()
        proposals, self._queue = self._queue, []
        return [
            self._given(p)
            for p in proposals
            if self.trials[p.trial].state == RUNNING and self.trials[p.trial].budget == p.budget
        ]

    def tell(self, trial, iteration, value, ends=None):
        """The metric of a trial after an iteration; None or NaN: it has failed, and will not go on. `ends`: why the
        trial goes no further by a rule of its own, where it does not.

        What is known already, or comes after the trial's end, is left aside. Raises SearchError for an unknown trial.
        """
        self._start()
        known = self._trial(trial)
        if known.state != RUNNING:
            return
        if value is None or not math.isfinite(value):
            self._end(known, FAILED, f"failed at iteration {iteration}")
            if not known.outside:
                self._lost(known)
            self._settle()
            return
        if not known.at < iteration <= known.budget:
            return
        known.at, known.loss = iteration, self._loss(value)
        if self.best is None or known.loss < self._loss(self.best[2]):
            self.best = known.number, iteration, value
        if not known.outside:
            self._told(known)
        if iteration == known.budget and known.state == RUNNING:
            known.state = ENDED if known.outside or iteration >= self.most else STOPPED if ends else PAUSED
            if known.state == STOPPED:
                self.why[known.number] = self._stopped[known.number] = ends
            if known.outside:
                self._outside -= 1
            else:
                self._running -= 1
                self._reached(known)
        self._settle()

    def stopped(self):
        """{trial: why} of the trials that need not go on, since the last call. (`why` has all of them.)"""
        self._start()
        stopped, self._stopped = self._stopped, {}
        return stopped

    @property
    def done(self):
        """True where nothing more is to be trained."""
        self._start()
        return self._running == self._outside == 0

    def add(self, configuration, budget=None):
        """A person's trial of a configuration: trained to `budget` iterations (as far as any other, where None), beside
        what the procedure does. Returns its number."""
        self._start()
        budget = self.most if budget is None else budget
        if not (isinstance(budget, int) and 1 <= budget <= MOST_ITERATIONS):
            raise SearchError(f"a trial's iterations must be an integer from 1 to {MOST_ITERATIONS}, not {budget!r}")
        trial = self._new(tuple(configuration), outside=True)
        self._propose(trial, budget)
        return trial.number

    def stop(self, trial, why="stopped by hand"):
        """A person stops a trial."""
        self._start()
        known = self._trial(trial)
        if known.state == RUNNING:
            self._end(known, STOPPED, why)
            if not known.outside:
                self._lost(known)
            self._settle()
        elif known.state == PAUSED:
            self._end(known, STOPPED, why)
            self._withdrawn(known)
            self._settle()

    def begin_with(self, results):
        """Go on from what is known: [(configuration, {iteration: value})]. Before anything is asked or told."""
        if self._started:
            raise SearchError("a search begins with earlier results before it asks for anything")
        for configuration, values in results:
            losses = {i: self._loss(v) for i, v in values.items() if v is not None and math.isfinite(v)}
            if losses:
                self.known.append((tuple(configuration), losses))
        self.known.sort(key=lambda k: (-max(k[1]), k[1][max(k[1])]))

    def replay(self, events):
        """Bring a new procedure to where another one was: [("tell" | "add" | "stop", arguments...)] in their order."""
        for what, *arguments in events:
            {"tell": self.tell, "add": self.add, "stop": self.stop}[what](*arguments)

    @property
    @abstractmethod
    def most(self):
        """Iterations that a trial may get."""

    def evaluates(self, trial):
        """The iterations of a trial after which its metric is wanted: a container of integers."""
        known = self._trial(trial)
        return (known.budget,) if known.outside else self._evaluates(known)

    # --- what a subclass says ------------------------------------------------------------------

    @abstractmethod
    def _begin(self):
        """Make the first proposals."""

    def _evaluates(self, trial):
        return (self.most,)

    def _told(self, trial):  # noqa: B027 (few need to know)
        """The trial, one of the procedure's own, has a new value."""

    @abstractmethod
    def _reached(self, trial):
        """The trial has trained to its budget, and waits; or its state is STOPPED: it goes no further by a rule of its
        own."""

    @abstractmethod
    def _lost(self, trial):
        """The trial will not get to its budget: it failed, or a person stopped it."""

    def _withdrawn(self, trial):  # noqa: B027
        """A person stopped a trial that was waiting."""

    def _finish(self):  # noqa: B027
        """Nothing is running: make a last proposal, or say why the trials that wait do not go on."""

    # --- what a subclass uses ------------------------------------------------------------------

    def _new(self, configuration, outside=False):
        trial = self.trials[len(self.trials) + 1] = Trial(len(self.trials) + 1, configuration, outside)
        return trial

    def _propose(self, trial, budget):
        """The trial may train until it has `budget` iterations."""
        trial.state, trial.budget = RUNNING, budget
        if trial.outside:
            self._outside += 1
        else:
            self._running += 1
            self._finished = False
        self._queue.append(Proposal(trial.number, None, budget))

    def _stop(self, trial, why):
        """The trial does not go on."""
        self._end(trial, STOPPED, why)

    # --- within ------------------------------------------------------------------------------------

    def _start(self):
        if not self._started:
            self._started = True
            self._begin()
            self._settle()

    def _settle(self):
        if self._running == 0 and not self._finished:
            self._finished = True
            self._finish()

    def _given(self, proposal):
        trial = self.trials[proposal.trial]
        if trial.asked:
            return proposal
        trial.asked = True
        return proposal._replace(configuration=trial.configuration)

    def _end(self, trial, state, why):
        if trial.state == RUNNING:
            if trial.outside:
                self._outside -= 1
            else:
                self._running -= 1
        trial.state = state
        if trial.budget:  # the others nobody has heard of
            self.why[trial.number] = self._stopped[trial.number] = why

    def _loss(self, value):
        return value if self.goal == "min" else -value

    def _trial(self, trial):
        if trial not in self.trials:
            raise SearchError(f"there is no trial {trial!r}")
        return self.trials[trial]
