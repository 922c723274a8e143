"""Searches over the members of a model space, and regularized evolution."""

import json
from random import Random

import pytest

from pg_mop.search import SearchError, create, random_sampler
from pg_mop.search.models import FIRST_ID, ModelChoices
from pg_mop.search.space import Space
from pg_mop.spaces import Base, ModelSpace
from support.workload import dense

GRID = {"loss": ["mse"], "metrics": [["accuracy"]], "batch_size": [8, 16]}
MUTATORS = [
    {"change": "repeat", "match": "hidden", "times": [1, 2]},
    {"change": "value", "match": "hidden*", "argument": "units", "choices": [4, 8, 16]},
]
# the second one is refused: its output is of another width
WRONG = {"change": "value", "match": "out", "argument": "units", "choices": [3, 5]}
EVOLUTION = {"population": 6, "tournament": 3, "trials": 30, "iterations": 2, "parallel": 3}


def models(*mutators, bases=None):
    return ModelChoices(ModelSpace(bases or [Base(1, dense()), Base(2, dense(32))], json.dumps(mutators or MUTATORS)))


def space(*mutators, grid=GRID, bases=None):
    return Space(grid, models=models(*mutators, bases=bases))


def driven(procedure, loss):
    """Give a procedure what it asks for, one trial after the other; returns {trial: (configuration, its loss)}."""
    found, live = {}, []
    while True:
        for proposal in procedure.ask():
            if proposal.configuration is not None:
                found[proposal.trial] = proposal.configuration
            live.append(proposal)
        if not live:
            break
        trial, _, budget = live.pop(0)
        for iteration in sorted(procedure.evaluates(trial)):
            if procedure.trials[trial].at < iteration <= budget:
                procedure.tell(trial, iteration, loss(procedure.space, found[trial]))
    assert procedure.done
    return found


def quality(searched, configuration):
    """Losses that the choices decide: the more units, the better."""
    member = searched.models.by_id[configuration[0]]
    return 1 / sum(value for name, value in member.choices.items() if name.endswith("units"))


def test_a_grid_has_every_member_with_every_hyper_parameter_once():
    searched = space()
    assert searched.size == (3 + 9) * 2 * 2
    found = driven(create("grid", searched, 0, "min", {"iterations": 1}), quality)
    assert len(set(found.values())) == len(found) < searched.size, "equal architectures of two bases count once"
    ids = {configuration[0] for configuration in found.values()}
    assert len(ids) == 12 and len(found) == 24


def test_a_grid_that_is_too_large_is_refused_without_a_number_of_trials():
    many = {"change": "value", "match": "hidden", "argument": "units", "choices": list(range(1, 1001))}
    searched = space(many, {**many, "match": "out", "argument": "autocast"})
    with pytest.raises(SearchError, match="4000000 configurations, and a grid has at most 1000000"):
        create("grid", searched, 0)
    assert len(driven(create("grid", searched, 0, "min", {"trials": 3, "iterations": 1}), quality)) == 3


def test_equal_models_have_equal_ids_in_every_search():
    first, second = space(), space(*reversed(MUTATORS), bases=[Base(5, dense())])
    ids = {}
    for searched in (first, second):
        for point in searched.points():
            model_id = searched.configuration(point)[0]
            ids.setdefault(searched.models.by_id[model_id].architecture, set()).add(model_id)
    assert all(len(found) == 1 for found in ids.values())
    assert len({one for found in ids.values() for one in found}) == len(ids)


def test_a_configuration_is_found_again_by_its_choices():
    searched = space()
    point = searched.sample(Random(1))
    configuration = searched.configuration(point)
    assert searched.configuration(searched.locate(configuration)) == configuration
    later = space()
    assert later.locate(configuration) is None, "its model was not proposed here"
    member = searched.models.describe(configuration[0])
    later.models.remember(configuration[0], member["base"], member["choices"])
    assert later.configuration(later.locate(configuration)) == configuration


@pytest.mark.parametrize(
    "base,choices",
    [
        (9, {}),
        (1, {}),
        (1, {"times hidden": 7}),
        (1, {"times hidden": 1, "hidden.units": "8"}),
        (1, {"times hidden": [1], "hidden.units": 8}),
    ],
)
def test_members_of_another_space_are_not_found(base, choices):
    searched = space()
    searched.models.remember(FIRST_ID, base, choices)
    assert searched.locate((FIRST_ID, "loss='mse',metrics=['accuracy']", "batch_size=8")) is None


def test_a_space_of_misfits_alone_proposes_nothing():
    searched = space({**WRONG, "choices": [5, 6]})
    assert driven(create("random", searched, 0, "min", {"iterations": 1}), quality) == {}
    assert searched.models.misfits


# --- regularized evolution --------------------------------------------------------------------------------------------


def evolution(searched, seed=1, **parameters):
    return create("regularized-evolution", searched, seed, "min", {**EVOLUTION, **parameters})


def test_a_child_differs_from_its_parent_in_what_its_lineage_says():
    searched = space()
    procedure = evolution(searched)
    driven(procedure, quality)
    lineages = {number: procedure.lineage(number) for number in procedure.trials}
    assert [number for number, lineage in lineages.items() if lineage is None] == list(range(1, 7))
    for number, lineage in lineages.items():
        if lineage is None:
            continue
        (child, _), (parent, _) = procedure.trials[number].data, procedure.trials[lineage["parent"]].data
        differs = [name for name in child.keys() & parent.keys() if child[name] != parent[name]]
        told = [searched.told(name, child[name])[0] for name in differs]
        assert told == [lineage["changed"]] and lineage["before"] != lineage["after"]
        json.dumps(lineage)


def test_a_parent_is_the_best_of_a_tournament_of_the_youngest():
    procedure = evolution(space(), trials=24, parallel=1, tournament=6)
    driven(procedure, quality)
    losses = {number: trial.loss for number, trial in procedure.trials.items()}
    for number in range(7, 25):
        lineage = procedure.lineage(number)
        youngest = range(number - 6, number)
        if lineage is not None:
            assert losses[lineage["parent"]] == min(losses[one] for one in youngest)
            assert lineage["parent"] in youngest, "the oldest have left the population"


def test_evolution_changes_hyper_parameters_without_a_model_space():
    searched = Space({"model_id": [1, 2], "loss": ["mse"], "batch_size": [8, 16, 32], "dropout": [0.1, 0.5, "linear"]})
    procedure = evolution(searched)
    driven(procedure, lambda _, configuration: Random(str(configuration)).random())
    changed = {lineage["changed"] for n in procedure.trials if (lineage := procedure.lineage(n))}
    assert changed <= {"model_id", "batch_size", "dropout"} and "dropout" in changed


def misfits_first(count):
    """A space whose first members, 2^count of them, do not fit: a convolution after a Dense layer; the others do."""
    return [
        {"change": "insert", "match": "hidden", "choices": [{"class": "Conv2D", "filters": 2, "kernel_size": 1}, None]},
        *({"change": "insert", "match": "hidden", "choices": [None, {"class": "ReLU"}]} for _ in range(count)),
    ]


def test_a_grid_of_misfits_ends_with_an_error(monkeypatch):
    monkeypatch.setattr(random_sampler, "MOST_MISFITS", 50)
    sampler = random_sampler.GridSampler(space(*misfits_first(40), bases=[Base(1, dense())]), 0)
    with pytest.raises(
        SearchError, match="none of the first 50 members .* Conv2D takes an input of 3 dimensions"
    ) as error:
        sampler.ask(1)
    assert "random" in error.value.hint


def test_a_grid_with_misfits_goes_on_after_them_and_ends_where_nothing_else_comes(monkeypatch):
    made = space(*misfits_first(4), bases=[Base(1, dense())])
    sampler = random_sampler.GridSampler(made, 0)
    assert sampler.ask(1) is not None and made.models.missed == 16
    monkeypatch.setattr(random_sampler, "MOST_MISFITS", 50)
    mutators = misfits_first(10)
    mutators[0]["choices"].reverse()
    mutators.append(mutators.pop(0))
    mutators[:0] = [{"change": "value", "match": "hidden", "argument": "units", "choices": [4, 5]}]
    mutators[-1]["choices"] = [None, *({"class": "Conv2D", "filters": n, "kernel_size": 1} for n in range(1, 100))]
    made = space(*mutators, bases=[Base(1, dense())])
    sampler = random_sampler.GridSampler(made, 0)
    found = iter(lambda: sampler.ask(1), None)
    assert len(list(found)) == len(GRID["batch_size"]) and made.models.ended


@pytest.mark.parametrize("procedure", ["grid", "random", "regularized-evolution", "tpe"])
def test_a_cancel_is_heard_for_each_member(procedure):
    class Cancelled(BaseException):
        pass

    heard = []

    def check():
        heard.append(1)
        if len(heard) > 300:
            raise Cancelled

    bases = [Base(1, dense())]
    found = ModelChoices(ModelSpace(bases, json.dumps(misfits_first(40)), check=check))
    with pytest.raises(Cancelled):
        driven(create(procedure, Space(GRID, models=found), 1, "min", "iterations=1, trials=1000"), lambda *_: 1.0)


def test_drafts_are_counted_without_a_member_and_made_when_they_are_looked_at():
    searched = space(*MUTATORS, WRONG)
    made = []
    of_choices = searched.models.space.of_choices
    searched.models.space.of_choices = lambda *chosen: made.append(chosen) or of_choices(*chosen)
    with searched.models.drafts():
        procedure = create("random", searched, 3, "min", {"iterations": 2, "trials": 20})
        found = driven(procedure, lambda space, configuration: 1.0)
    numbers = [model_id for model_id, *_ in found.values()]
    assert len(found) == 20 and not made and all(number < 0 for number in numbers)
    looked = [searched.models.member(number) for number in numbers]
    assert made and None in looked, "the wrong ones do not fit together"
    for number, one in zip(numbers, looked):
        if one is not None:
            assert one[0] == searched.models.model_id(searched.models.locate(number)) >= FIRST_ID
            assert searched.models.by_id[one[0]] is one[1]
    assert searched.models.member(None) is searched.models.member(-1) is None


# --- populations whose models change ---------------------------------------------------------------------------------

RATES = {**GRID, "optimizer_params_list": [{"optimizer": ["Adam"], "lr": [0.1, 0.05, 0.01]}]}
BRED = {"population": 6, "iterations": 6, "interval": 2, "fraction": 0.5}


def bred(seed=3, grid=RATES, loss=quality, mutators=MUTATORS, **parameters):
    procedure = create("population", space(*mutators, grid=grid), seed, "min", {**BRED, **parameters})
    return procedure, driven(procedure, loss)


def test_copies_of_a_population_may_have_other_models():
    procedure, found = bred(mutate=1)
    models = procedure.space.models
    children = {key: lineage for key in found if (lineage := procedure.lineage(key))}
    mutated = {key: lineage for key, lineage in children.items() if lineage.get("inherits")}
    assert len(mutated) == len(children) == 6, "3 of 6 are replaced, twice"
    for key, lineage in mutated.items():
        parent, trial = procedure.trials[lineage["parent"]], procedure.trials[key]
        one, other = (models.by_id[found[each][0]] for each in (lineage["parent"], key))
        assert one.architecture != other.architecture and models.inherits(found[key][0], found[lineage["parent"]][0])
        label, *keys = lineage["changed"].split(", ")
        assert set(keys) <= {"lr", "batch_size"}
        if label != "base model":
            assert one.choices[label] == lineage["before"] != lineage["after"] == other.choices[label]
        assert "=[" not in found[key][1].replace("metrics=[", ""), "its own iterations begin with its own rate"
        # the iterations of its line add up
        assert trial.data.before == parent.data.before + lineage["iteration"] in (2, 4)
        assert trial.state in ("ended", "stopped") and trial.budget == trial.at <= 6 - trial.data.before
    survivors = [trial for trial in procedure.trials.values() if trial.state == "ended"]
    assert len(survivors) == 6 and all(trial.data.before + trial.at == 6 for trial in survivors)


def test_a_population_mutates_models_at_the_given_rate_and_decides_by_its_seed():
    seen = {}
    for rate in (0, 0.5, 1):
        procedures = [bred(seed, mutate=rate)[0] for seed in range(3)]
        lineages = [lineage for p in procedures for key in p.trials if (lineage := p.lineage(key))]
        assert len(lineages) == 18
        seen[rate] = sum("inherits" in lineage for lineage in lineages)
        assert all(("inherits" in lineage) != ("inherited" in lineage) for lineage in lineages)
    assert seen[0] == 0 < seen[0.5] < seen[1] == 18
    assert bred(mutate=0.5)[1] == bred(mutate=0.5)[1] and bred(mutate=0)[1] == bred()[1]


def test_a_copy_of_a_mutated_copy_begins_a_path_of_its_own():
    def by_number(_, configuration):
        return numbers.setdefault(configuration, 1 / (1 + len(numbers)))  # the youngest are the best

    numbers = {}
    procedure, found = bred(mutate=0.5, iterations=12, loss=by_number)
    copies = [key for key in found if procedure.lineage(key)]
    kept = 0
    for key in copies:
        trial, lineage = procedure.trials[key], procedure.lineage(key)
        parent = procedure.trials[lineage["parent"]]
        stays = found[key][0] == found[lineage["parent"]][0]
        if not stays or parent.data.before:
            assert lineage["iteration"] + parent.data.before == trial.data.before
            assert "=[" not in found[key][1].replace("metrics=[", "")
            kept += stays
        else:
            assert trial.data.before == 0 and lineage["inherited"].startswith("iterations 1 to")
    assert kept, "some models stay"


def test_a_model_that_inherits_nothing_is_no_mutation():
    """All layers of the other model have other names, so that the model stays, and only the rates change."""
    other = dense(16).replace('"hidden"', '"else"').replace('"out"', '"end"')
    searched = Space(RATES, models=ModelChoices(ModelSpace([Base(1, dense()), Base(2, other)], "[]")))
    procedure = create("population", searched, 1, "min", {**BRED, "mutate": 1})
    found = driven(procedure, lambda _, configuration: Random(str(configuration)).random())
    lineages = [lineage for key in found if (lineage := procedure.lineage(key))]
    assert lineages and all("inherited" in lineage for lineage in lineages)
    first, second = (searched.models.model_id({"model": at}) for at in (0, 1))
    assert not searched.models.inherits(first, second) and not searched.models.inherits(first, first)
    assert not searched.models.inherits(None, first)


def test_a_population_may_change_models_alone():
    fixed = {"loss": ["mse"], "batch_size": [8]}
    with pytest.raises(SearchError, match="nothing to change in this space"):
        bred(grid=fixed)
    procedure, found = bred(grid=fixed, mutate=1)
    assert any(procedure.lineage(key) for key in found)
    with pytest.raises(SearchError, match="nothing to change in this space"):
        one = space({**WRONG, "choices": [3]}, grid=fixed, bases=[Base(1, dense())])
        create("population", one, 1, "min", {**BRED, "mutate": 1})
