"""The zero-cost filter: the order of members, and when it is dropped. (Scores: training/test_zero_cost.py.)"""

import json
from random import Random

import pytest

from pg_mop.search import SearchError, create
from pg_mop.search.models import ModelChoices
from pg_mop.search.space import Space
from pg_mop.search.zero_cost import PROBES, Filter, filter_by, read, spearman
from pg_mop.spaces import Base, ModelSpace
from support.workload import dense

GRID = {"loss": ["mse"], "batch_size": [8, 16]}
MUTATORS = [
    {"change": "repeat", "match": "hidden", "times": [1, 2, 3]},
    {"change": "value", "match": "hidden*", "argument": "units", "choices": [4, 8, 16, 32]},
]


def space():
    return Space(GRID, models=ModelChoices(ModelSpace([Base(1, dense())], json.dumps(MUTATORS))))


def units(searched, model_id):
    return sum(v for name, v in searched.models.by_id[model_id].choices.items() if name.endswith("units"))


def test_ranks_that_agree_correlate():
    assert spearman([1, 2, 3, 4], [2, 3, 5, 9]) == 1 == -spearman([1, 2, 3], [3, 2, 1])
    assert spearman([1, 1, 1], [1, 2, 3]) == 0 == spearman([], [])
    assert spearman([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1)
    # Spearman's own formula, without ties
    one, other = [3, 1, 4, 2, 5], [2, 1, 5, 4, 3]
    assert spearman(one, other) == pytest.approx(1 - 6 * sum((a - b) ** 2 for a, b in zip(one, other)) / (5 * 24))


def driven(name, loss, members=30, **parameters):
    """(the procedure, the model_ids of its trials in their order), of a search whose scores are the units."""
    searched = space()
    procedure = create(name, searched, 3, "min", parameters)
    filter_by(procedure, "synflow", members)
    procedure.take_scores({i: float(units(searched, i)) for i in procedure.sampler.filter.pool()})
    found = []
    while not procedure.done:
        for proposal in procedure.ask():
            trial = procedure.trials[proposal.trial]
            if proposal.configuration is not None:
                found.append(proposal.configuration[0])
            for iteration in sorted(procedure.evaluates(proposal.trial)):
                if trial.at < iteration <= proposal.budget:
                    procedure.tell(proposal.trial, iteration, loss(units(searched, trial.configuration[0])))
    return procedure, [units(searched, i) for i in found]


@pytest.mark.parametrize(
    "name,parameters",
    [
        ("random", {"trials": 20, "iterations": 1}),
        ("asha", {"trials": 20, "iterations": 4, "reduction": 2, "parallel": 2}),
        ("median-stopping", {"trials": 20, "iterations": 2, "parallel": 2}),
    ],
)
def test_the_best_members_come_first_once_scores_have_proved_right(name, parameters):
    procedure, found = driven(name, lambda size: 1 / size, **parameters)
    chosen = procedure.sampler.filter
    assert chosen.correlation == pytest.approx(1) and not chosen.dropped
    late = found[2 * PROBES :]  # (those that began before the last probe had its result are of the old order)
    assert late == sorted(late, reverse=True) and sum(late) / len(late) > sum(found[:PROBES]) / PROBES
    assert driven(name, lambda size: 1 / size, **parameters)[1] == found, "the same scores and results, the same trials"


def test_scores_that_say_nothing_are_dropped():
    procedure, found = driven("random", lambda size: size, trials=20, iterations=1)
    assert procedure.sampler.filter.dropped and procedure.sampler.filter.correlation == pytest.approx(-1)
    assert len(found) == 20, "the search goes on at random"


def test_a_search_without_scores_is_as_without_a_filter():
    searched, other = space(), space()
    one, two = (create("random", s, 3, "min", {"trials": 8, "iterations": 1}) for s in (searched, other))
    filter_by(one, "naswot", 30)
    assert [p.configuration for p in one.ask()] == [p.configuration for p in two.ask()]
    with pytest.raises(SearchError):
        one.take_scores({})  # it has begun


def test_the_pool_is_always_the_same_and_has_no_member_twice():
    first, second = (Filter(space(), 5, "synflow", 25).pool() for _ in range(2))
    assert first == second and len(set(first)) == 25
    assert len(Filter(space(), 5, "synflow", 1000).pool()) <= 4 + 16 + 64, "no more than there are"


def test_members_without_a_score_come_last():
    searched = space()
    chosen = Filter(searched, 1, "synflow", 20)
    pool = chosen.pool()
    chosen.take({i: None if n % 2 else float(n) for n, i in enumerate(pool)})
    draw, order = Random(1), []
    for trial in range(1, 21):
        point = chosen.draw(trial, draw)
        order.append(searched.models.model_id(point))
        chosen.tell(trial, -float(pool.index(order[-1])))
    scored = [pool.index(i) % 2 == 0 for i in order[PROBES:]]
    assert chosen.correlation == pytest.approx(1) and scored == sorted(scored, reverse=True)
    assert chosen.draw(21, draw) is None


@pytest.mark.parametrize(
    "parameters,text",
    [
        ({"filter": "oracle"}, "filter must be one of synflow, naswot, jacob-cov, off, not 'oracle'"),
        ({"filter": 7}, "filter must be one of"),
        ({"filter": True}, "filter must be one of"),
        ({"filter": "synflow", "filter_members": 8}, "filter_members must be an integer from 9 to 10000, not 8"),
        ({"filter": "synflow", "filter_members": 20.5}, "not 20.5"),
        ({"filter": "synflow", "filter_members": True}, "not True"),
        ({"filter_members": 20}, "filter_members is for a search with a filter"),
        ({"filter": "synflow", "sampler": "tpe"}, "a filter is for trials at random"),
    ],
)
def test_wrong_parameters(parameters, text):
    with pytest.raises(SearchError, match=text):
        read("asha", dict(parameters), True)


def test_which_searches_may_have_a_filter():
    given = {"filter": "NASWOT", "filter_members": 50, "trials": 3}
    assert read("asha", given, True) == ("naswot", 50) and given == {"trials": 3}
    assert read("tpe", {"filter": "off"}, False) is None is read("tpe", {}, False)
    assert read("random", {"filter": "jacob-cov"}, True) == ("jacob-cov", 100)
    for name, models in (("tpe", True), ("grid", True), ("asha", False)):
        with pytest.raises(SearchError):
            read(name, {"filter": "synflow"}, models)
