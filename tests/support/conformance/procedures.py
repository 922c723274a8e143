"""Tests of every search procedure (search/base.py)."""

import json
import math
from random import Random

import pytest

from pg_mop import search
from pg_mop.search import MADLIB, PROCEDURES, SearchError
from pg_mop.search.grids import COMPILE_KEYS, FIT_KEYS, parse_several
from pg_mop.search.models import FIRST_ID, ModelChoices
from pg_mop.search.space import Space
from pg_mop.spaces import Base, ModelSpace
from support.conformance.base import Conformance
from support.workload import dense

COMPILE = """{'loss': ['mse'], 'metrics': ['accuracy'], 'optimizer_params_list': [
    {'optimizer': ['Adam', 'RMSprop'], 'lr': [0.0001, 0.001, 0.01, 0.1]},
    {'optimizer': ['SGD'], 'lr': [0.01, 0.1, MultiStep(0.1, [3, 5], 0.1)], 'momentum': [0.0, 0.5, 0.9]}]}"""
FIT = "{'batch_size': [16, 64, 256], 'epochs': [1]}"
MUTATORS = [
    {"change": "repeat", "match": "hidden", "times": [1, 2]},
    {"change": "value", "match": "hidden*", "argument": "units", "choices": [4, 8, 16]},
    {"change": "value", "match": "out", "argument": "units", "choices": [3, 5]},  # 5 does not fit
]
# procedure -> parameters that make a short search of it
CASES = {
    search.Grid: {"iterations": 4, "trials": 20},
    search.Random: {"iterations": 4},
    search.Tpe: {"iterations": 4, "trials": 14},
    search.SuccessiveHalving: {"iterations": 9},
    search.Hyperband: {"iterations": 9},
    search.Bohb: {"iterations": 9},
    search.Asha: {"iterations": 9, "parallel": 4},
    search.Population: {"iterations": 10},
    search.Evolution: {"population": 4, "tournament": 2, "trials": 12, "iterations": 4, "parallel": 3},
    search.MadlibHyperopt: {"trials": 11, "parallel": 3},
    search.MedianStopping: {"iterations": 6, "parallel": 5},
    search.MadlibHyperband: {"iterations": 9},
}
STUDIES = {}  # whole searches, by (class of tests, procedure)


def space(compile_grid=COMPILE, models=(1, 2)):
    return Space.of_texts(models, compile_grid, FIT)


def flat(count):
    """A space of so many configurations."""
    rates = [i / 10000 for i in range(1, count + 1)]
    compiling = f"{{'loss': ['mse'], 'optimizer_params_list': [{{'optimizer': ['SGD'], 'lr': {rates}}}]}}"
    return Space.of_texts([1], compiling, "{'epochs': [1]}")


def several(text=None):
    """A space of two dictionaries: small nets with SGD and large batches, and the others with Adam."""
    text = (
        text
        or """[{'model_id': [1], 'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [0.1, 0.2]},
        {'lr': [0.3]}], 'batch_size': [64, 128]},
        {'model_id': [2, 3], 'loss': ['mse'], 'optimizer': ['adam()'], 'batch_size': [8, 16, 32], 'epochs': [1, 2]}]"""
    )
    return Space(*parse_several(text, "space", ("model_id", *COMPILE_KEYS, *FIT_KEYS)))


def of_models():
    """A space of the members of a model space, some of which do not fit."""
    grid = {"loss": ["mse"], "metrics": [["accuracy"]], "batch_size": [8, 16]}
    grid["optimizer_params_list"] = [{"optimizer": ["Adam"], "lr": [0.1, 0.01]}]
    return Space(grid, models=ModelChoices(ModelSpace([Base(1, dense()), Base(2, dense(32))], json.dumps(MUTATORS))))


def value(configuration, iteration):
    """A learning curve: it falls to something that the configuration decides."""
    return Random(str(configuration)).random() + 1 / iteration


class Study:
    """Does what a procedure asks for, one stage after the other, in a random order."""

    def __init__(self, procedure, order=0, curve=value):
        self.procedure, self.random, self.curve = procedure, Random(order), curve
        self.live, self.configurations, self.reached, self.events, self.asked = [], {}, {}, [], []

    def ask(self):
        for proposal in self.procedure.ask():
            number, configuration, budget = proposal
            assert (configuration is None) == (number in self.configurations)
            if configuration is not None:
                self.configurations[number] = configuration
                self.reached[number] = self.procedure.trials[number].at  # what it shares with the one that it copies
            assert self.reached[number] < budget <= self.procedure.most
            self.asked.append(proposal)
            self.live.append((number, budget))

    def tell(self, number, iteration, result):
        self.events.append(("tell", number, iteration, result))
        self.procedure.tell(number, iteration, result)

    def step(self):
        """One trial trains to its budget. False where none is to."""
        self.ask()
        gone = self.procedure.stopped()
        self.live = [(n, b) for n, b in self.live if n not in gone]
        if not self.live:
            return False
        number, budget = self.live.pop(self.random.randrange(len(self.live)))
        wanted = self.procedure.evaluates(number)
        assert budget in wanted
        for iteration in range(self.reached[number] + 1, budget + 1):
            if iteration in wanted:
                result = self.curve(self.configurations[number], iteration)
                self.tell(number, iteration, result)
                if (state := self.procedure.trials[number].state) in ("stopped", "failed"):
                    assert state == "failed" or self.procedure.STOPS_WITHIN_BUDGET or iteration == budget
                    break
        self.reached[number] = budget
        return True

    def run(self):
        while self.step():
            assert not self.procedure.done or not self.live
        assert self.procedure.done and not self.procedure.ask()
        return self


class ProcedureConformance(Conformance):
    """The rules of search/base.py, for procedures that search any space.

    `orderless`: which trials these propose, and how far, is decided by the results, in whatever order they come; `changing`:
    these propose changed configurations, which are not of the space; `seeds`, `orders`, `cuts`: how much is tried."""

    cases, registered = CASES, (*PROCEDURES.values(), *MADLIB.values())
    orderless = tuple(PROCEDURES[n] for n in ("grid", "random", "successive-halving", "hyperband", "population"))
    orderless += (MADLIB["madlib-hyperband"],)
    changing = (PROCEDURES["population"],)
    seeds, orders, cuts = 1, 1, 2

    def made(self, kind, seed=5, goal="min", over=None, **parameters):
        try:
            return kind(over or space(), seed, goal, **{**self.cases[kind], **parameters})
        except SearchError as error:
            if "needs the Python package" in str(error):
                pytest.skip(f"not run: {error}")
            raise

    def study(self, kind):
        """A whole search, which several tests look at."""
        if (key := (type(self), kind)) not in STUDIES:
            STUDIES[key] = Study(self.made(kind)).run()
        return STUDIES[key]

    def test_the_same_seed_and_results_give_the_same_proposals(self, kind):
        first, second = self.study(kind), Study(self.made(kind)).run()
        assert first.asked == second.asked and first.procedure.why == second.procedure.why

    def test_one_made_anew_goes_on_from_wherever_it_is_told_the_past(self, kind):
        whole = self.study(kind)
        asked, count = [(p.trial, p.budget) for p in whole.asked], len(whole.events)
        for cut in {*range(0, count, max(1, count // self.cuts)), count}:
            again = self.made(kind)
            again.replay(whole.events[:cut])
            proposals = again.ask()  # asked once, instead of after each
            for event in whole.events[cut:]:
                again.replay([event])
                proposals += again.ask()
            pairs = [(p.trial, p.budget) for p in proposals]
            told = {(n, iteration) for _, n, iteration, _ in whole.events[:cut]}
            over = {n for n, _ in told if whole.procedure.trials[n].state == "stopped"}
            assert pairs == [p for p in asked if p in pairs]
            assert all(p in pairs or p in told or p[0] in over for p in asked)
            assert all(p.configuration in (None, whole.configurations[p.trial]) for p in proposals)
            assert again.done and again.best == whole.procedure.best and again.why == whole.procedure.why

    def test_no_configuration_comes_twice_and_each_is_of_the_space(self, kind):
        configurations, over = list(self.study(kind).configurations.values()), space()
        assert configurations and len(set(configurations)) == len(configurations)
        if kind not in self.changing:
            assert all(over.configuration(over.locate(c)) == c for c in configurations)

    def test_what_it_says_of_its_trials(self, kind):
        study = self.study(kind)
        procedure, told = study.procedure, [result for *_, result in study.events]
        number, iteration, best = procedure.best
        assert best == min(told) and ("tell", number, iteration, best) in study.events
        stopped = {n for n, trial in procedure.trials.items() if trial.state in ("stopped", "failed") and trial.budget}
        assert set(procedure.why) == stopped and all(procedure.why.values())
        for number in procedure.trials:
            lineage, place = procedure.lineage(number), procedure.place(number)
            assert lineage is None or (
                lineage["parent"] in procedure.trials and "changed" in json.loads(json.dumps(lineage))
            )
            assert place is None or len(place) == 2
            assert procedure.candidates(number) is None

    def test_trials_that_all_fail_do_not_block(self, kind):
        nothing = lambda c, i: Random(str(c)).choice([math.nan, None, math.inf])  # noqa: E731
        study = Study(self.made(kind), curve=nothing).run()
        assert study.procedure.best is None and len(study.procedure.why) == len(study.configurations)

    def test_one_in_three_fails(self, kind):
        study = Study(self.made(kind), curve=lambda c, i: None if Random(str(c)).random() < 0.3 else value(c, i)).run()
        assert study.procedure.best is not None

    def test_people_add_and_stop_trials_at_any_time(self, kind):
        for seed in range(self.seeds):
            random, procedure = Random(seed), self.made(kind)
            study = Study(procedure, seed)
            mine = {procedure.add((7, "by hand", str(seed)), 3)}
            study.events.append(("add", (7, "by hand", str(seed)), 3))
            while study.step():
                if random.random() < 0.3:
                    victim = random.choice(list(study.configurations))
                    study.events.append(("stop", victim))
                    procedure.stop(victim)
                if random.random() < 0.1:
                    extra = (7, "by hand", str(len(study.events)))
                    study.events.append(("add", extra))
                    mine.add(procedure.add(extra))
            assert procedure.done and {procedure.trials[number].state for number in mine} <= {"ended", "stopped"}
            again = self.made(kind)
            again.replay(study.events)
            assert again.why == procedure.why and again.best == procedure.best

    def test_a_trial_that_was_stopped_is_not_asked_for(self, kind):
        procedure = self.made(kind)
        first = procedure.ask()[0].trial
        procedure.stop(first)
        assert procedure.stopped() == {first: "stopped by hand"} and procedure.stopped() == {}
        assert first not in [p.trial for p in procedure.ask()]

    def test_what_is_told_twice_or_too_late_changes_nothing(self, kind):
        first, second = self.study(kind), self.made(kind)
        for event in first.events:
            second.replay([event])
            second.tell(*event[1:3], -1.0)
            second.tell(event[1], 10**6, -1.0)
        assert second.best == first.procedure.best and second.why == first.procedure.why

    def test_the_goal_may_be_the_most(self, kind):
        least = self.study(kind).procedure
        most = Study(self.made(kind, goal="max"), curve=lambda c, i: -value(c, i)).run().procedure
        assert most.best == (*least.best[:2], -least.best[2]) and most.why == least.why

    def test_what_is_known_is_no_hindrance(self, kind):
        earlier = space()
        points = [earlier.configuration(earlier.sample(Random(i))) for i in range(10 * self.seeds)]
        known = [(point, {i: value(point, i) for i in (1, 3, 9)}) for point in points]
        narrow = space(COMPILE.replace("'Adam', 'RMSprop'", "'Adam'"))
        procedures = [self.made(kind, over=narrow) for _ in range(2)]
        for procedure in procedures:
            procedure.begin_with([*known, ((9, "of another", "space"), {1: 0.0, 2: math.nan}), (known[0][0], {})])
        first, second = (Study(p).run() for p in procedures)
        assert first.asked == second.asked and first.asked
        with pytest.raises(SearchError, match="before it asks"):
            first.procedure.begin_with(known)
        if kind not in self.changing:
            assert all(narrow.locate(c) is not None for c in first.configurations.values())

    def test_a_space_of_one_configuration_is_enough(self, kind):
        if kind in self.changing:
            with pytest.raises(SearchError, match="nothing to change"):
                self.made(kind, over=flat(1))
            return
        study = Study(self.made(kind, over=flat(1))).run()
        assert set(study.configurations) == {1}
        assert study.reached[1] == study.procedure.most or kind.name.startswith("madlib")

    def test_odd_parameters_are_refused_with_what_to_write(self, kind):
        with pytest.raises(SearchError, match=f"'speed' is no parameter of {kind.name} .*iterations"):
            self.made(kind, speed=3)
        for bad in (0, -1, 1.5, True, "many", None, 10**9):
            with pytest.raises(SearchError, match=f"iterations of {kind.name} must be an integer from"):
                self.made(kind, iterations=bad)
        with pytest.raises(SearchError, match="goal must be min or max"):
            self.made(kind, goal="best")
        procedure = self.made(kind)
        with pytest.raises(SearchError, match="there is no trial 99999"):
            procedure.tell(99999, 1, 0.5)
        for bad in (0, -3, 1.5, "2"):
            with pytest.raises(SearchError, match="iterations must be an integer"):
                procedure.add((1, "", ""), bad)
        assert all(parameter.meaning and parameter.wanted for parameter in kind.PARAMETERS.values())

    def test_the_order_of_results_decides_only_what_is_asynchronous(self, kind):
        first = self.study(kind)
        for order in range(1, self.orders + 1):
            second = Study(self.made(kind), order).run()
            if kind in self.orderless:  # (copies of a population are numbered as they come)
                one, other = ({(s.configurations[p.trial], p.budget) for p in s.asked} for s in (first, second))
                assert one == other and first.procedure.best[1:] == second.procedure.best[1:]

    def test_a_good_configuration_wins(self, kind):
        """Of 60, the loss grows with the distance from the 20th, and early results are noisy."""

        def curve(configuration, iteration):
            lr = float(str(configuration[1]).split("lr=")[1].strip("[").split(")")[0].split(",")[0].strip("]"))
            return abs(lr - 0.002) * 100 + Random(f"{configuration} {iteration}").random() * 0.3 / iteration

        assert Study(self.made(kind, over=flat(60)), curve=curve).run().procedure.best[2] < 0.35

    def test_a_space_of_several_dictionaries_is_searched(self, kind):
        allowed = set(map(several().configuration, several().points()))
        found = set(Study(self.made(kind, over=several())).run().configurations.values())
        own = {c for c in found if "lr=[" not in c[1] and "batch_size=[" not in c[2]}
        assert own and own <= allowed and (own == found or kind in self.changing)

    def test_models_and_hyper_parameters_are_searched_together(self, kind):
        def quality(configuration, iteration):
            """The more units, the better."""
            chosen = searched.models.by_id[configuration[0]].choices
            return 1 / sum(number for name, number in chosen.items() if name.endswith("units")) + 1 / iteration

        found = []
        for _ in range(2):
            searched = of_models()
            found.append(Study(self.made(kind, over=searched), curve=quality).run().configurations)
        assert found[0] == found[1] and len(found[0]) >= 4
        for model_id, compile_params, fit_params in found[1].values():
            member = searched.models.by_id[model_id]
            assert member.misfit is None and member.choices["out.units"] == 3 and FIRST_ID <= model_id < 2**31
            assert "batch_size" in fit_params and "Adam" in compile_params
