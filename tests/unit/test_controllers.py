"""Run controllers yield requests; whoever carries these out need not be an executor."""

from types import SimpleNamespace

import pytest

from mop_udf.params import params
from pg_mop.backend.errors import MopError
from pg_mop.call.earlier import End
from pg_mop.plan import identity
from pg_mop.plan.stages import Plan
from pg_mop.run.controllers import FixedController, ReplayController
from pg_mop.run.instructions import Ask, GiveUp, Pin, Register, Withdraw, perform


class Configurations(dict):
    """Of the interface that a controller uses."""

    def __iter__(self):
        return iter(list(self.values()))

    by_key = property(lambda self: dict(self))

    def trials_of(self, mst_key):
        return [mst_key]

    def own_key(self, mst_key):
        return mst_key

    def make(self, mst_key, added):
        return configuration(mst_key, fit=added[2])

    def add(self, c, iterations):
        self[c["mst_key"]] = c
        problem = "it is bad" if "bad" in c["fit_text"] else None
        if problem:
            c["error"] = problem
        return problem


def configuration(key, fit="batch_size=4", rule=None):
    parsed = params.parse_fit_params("batch_size=4" if "bad" in fit else fit)
    c = {"mst_key": key, "fit": parsed, "fit_text": fit}
    return {**c, "rule": rule} if rule else c


class Run:
    """A plan of some configurations, and the requests that a controller has yielded."""

    def __init__(self, configurations, iterations=4, values=None, kind=FixedController, lengths=None, **more):
        self.plan, self.requests, self.lines, self.warnings = Plan(), [], [], []
        self.configurations = Configurations({c["mst_key"]: c for c in configurations})
        self.iterations, self.values = iterations, values or {}
        for c in configurations:
            until = (lengths or {}).get(c["mst_key"], iterations)
            self.ask(c, until, range(1, until + 1))
        messages = SimpleNamespace(
            iteration=lambda iteration, left: self.lines.append(iteration),
            refused=lambda *what: self.warnings.append(what),
        )
        self.controller = kind(
            self.plan,
            self.configurations,
            self.metrics_of,
            messages,
            num_iterations=iterations,
            metrics_iterations=range(1, iterations + 1),
            **more,
        )
        perform(self.controller.begin(), self.do)

    def ask(self, c, until, evaluated):
        key = c["mst_key"]
        return self.plan.ask(key, identity.root({"mst_key": key}), lambda i: ("", str((key, i))), until, evaluated)

    def metrics_of(self, stages):
        for number in stages:
            stage = self.plan.stages[number]
            value = self.values.get((min(stage.trials, default=0), stage.iteration), 1.0)
            yield {"stage": number, "dataset": "training", "loss": value, "metric": None, "metrics": {}}

    def do(self, request):
        self.requests.append(request)
        match request:
            case Ask(c, until, evaluated, _):
                return self.ask(c, until, evaluated), []
            case Withdraw(key, _, until):
                path = self.plan.path(key)
                self.plan.withdraw(key, None, until)
                return path[len(self.plan.path(key)) :]
        return None

    def end(self, key, iteration):
        stage = self.plan.path(key)[iteration - 1]
        stage.trained = stage.scored = True
        perform(self.controller.ended([stage]), self.do)


def test_a_rule_withdraws_its_configuration_at_the_iteration_that_it_decided_on():
    rule = "loss", "training", "min"
    stops = configuration(1, "batch_size=4, stop={'patience': 1}", rule)
    run = Run([stops, configuration(2)], values={(1, 1): 0.5, (1, 2): 0.6})
    run.end(1, 1)
    assert run.requests == []
    run.end(1, 2)
    (withdraw,) = [r for r in run.requests if isinstance(r, Withdraw)]
    assert (withdraw.mst_key, withdraw.until) == (1, 2) and "patience 1" in withdraw.reason
    assert len(run.plan.path(1)) == 2 and len(run.plan.path(2)) == 4


def test_the_best_state_is_pinned_in_place_of_the_one_before():
    rule = "loss", "training", "min"
    run = Run(
        [configuration(1, "batch_size=4, keep='best'", rule)], values={(1, 1): 3, (1, 2): 1, (1, 3): 2, (1, 4): 0}
    )
    for iteration in (1, 2, 3, 4):
        run.end(1, iteration)
    numbers = [stage.number for stage in run.plan.path(1)]
    assert run.requests == [Pin(numbers[0]), Pin(numbers[1], numbers[0]), Pin(numbers[3], numbers[1])]
    assert run.controller.kept == {1: numbers[3]}


def test_people_stop_and_add_configurations_and_are_told_of_bad_ones():
    run = Run([configuration(1), configuration(2)])
    people = [
        {"stop": 1, "by": "ann"},
        {"add": [1, "", "batch_size=8"], "iterations": 2, "by": "bob"},
        {"add": [1, "", "bad"], "iterations": None, "by": "bob"},
    ]
    assert perform(run.controller.control_requests(people), run.do) is False
    withdraw, ask, register = run.requests
    assert withdraw == Withdraw(1, "stopped by ann") and run.plan.path(1) == []
    assert isinstance(ask, Ask) and (ask.configuration["mst_key"], ask.until, ask.new) == (3, 2, True)
    assert isinstance(register, Register) and register.configuration["mst_key"] == 4
    assert run.warnings == [(4, "added by bob", "it is bad")]


def test_a_replay_ends_configurations_where_the_log_ends_them():
    """Whatever the metrics are now, and once: a trial may be stopped, fail, or both; one was stopped before it had begun."""
    rule = "loss", "training", "min"
    ends = {
        1: End("not among the best", None, None),
        2: End(None, "it is NaN", "configuration"),
        3: End("fold 2 failed", "fold 2: it is NaN", "infrastructure"),
        4: End("stopped by ann", None, None),
    }
    stops = configuration(5, "batch_size=4, stop={'patience': 1}", rule)
    run = Run(
        [*map(configuration, (1, 2, 3, 4)), stops],
        values={(5, 1): 0.5, (5, 2): 0.6},
        kind=ReplayController,
        lengths={1: 2, 2: 1, 3: 1, 4: 0},
        ends=ends,
        best=None,
    )
    assert run.requests == [Withdraw(4, "stopped by ann", 0)]
    for key, iteration in ((1, 1), (5, 1), (5, 2), (5, 3), (1, 2), (2, 1), (3, 1)):
        run.end(key, iteration)
    assert run.requests[1:] == [
        Withdraw(1, "not among the best", 2),
        GiveUp(2, "it is NaN", "configuration"),
        Withdraw(3, "fold 2 failed", 1),
        GiveUp(3, "fold 2: it is NaN", "infrastructure"),
    ]
    assert [len(run.plan.path(key)) for key in (1, 2, 3, 4, 5)] == [2, 1, 1, 0, 4], "no rule stops anything"


def test_a_replay_keeps_the_states_that_the_log_kept():
    rule = "loss", "training", "min"
    best = [configuration(key, "batch_size=4, keep='best'", rule) for key in (1, 2)]
    run = Run(best, values={(1, 4): 0, (2, 4): 0}, kind=ReplayController, lengths={2: 1}, ends={}, best={1: 2, 2: 3})
    number = run.plan.path(1)[1].number
    assert run.requests == [Pin(number)] and run.controller.kept == {1: number}
    for iteration in (1, 2, 3, 4):
        run.end(1, iteration)
    assert run.requests == [Pin(number)]


def test_an_iteration_is_told_of_once_all_have_been_through_it():
    run = Run([configuration(1), configuration(2)], iterations=2)
    run.end(1, 1)
    run.end(1, 2)
    assert run.lines == []
    run.end(2, 1)
    assert run.lines == [1]
    run.end(2, 2)
    assert run.lines == [1, 2] and run.controller.done


@pytest.mark.parametrize("answer", [None, 3])
def test_answers_reach_the_controller(answer):
    def steps():
        got = yield Pin(1)
        return got

    assert perform(steps(), lambda request: answer) == answer


def test_an_error_of_a_request_reaches_the_controller():
    """An added configuration that the catalog refuses is a warning, and the run goes on."""
    run, refusal = Run([configuration(1)]), MopError("its weights have changed")
    run.controller.messages.not_taken = lambda reason, error: run.warnings.append((reason, error))

    def do(request):
        if isinstance(request, Ask) and request.new:
            raise refusal
        return run.do(request)

    people = [{"add": [1, "", "batch_size=8"], "iterations": 2, "by": "bob"}, {"stop": 1, "by": "ann"}]
    assert perform(run.controller.control_requests(people), do) is False
    assert run.warnings == [("added by bob", refusal)] and run.plan.path(1) == []

    def steps():
        yield Pin(1)

    with pytest.raises(MopError, match="weights"):
        perform(steps(), lambda request: (_ for _ in ()).throw(refusal))
