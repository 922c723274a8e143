"""Super-nets: what cannot share weights is refused by name; and the procedure. (Paths: training/test_super_net.py.)"""

import json
from random import Random

import pytest

from pg_mop.call import search_outlook
from pg_mop.plan.estimates import FixedCosts
from pg_mop.search import SearchError, create, outlook
from pg_mop.search.models import ModelChoices
from pg_mop.search.space import Space
from pg_mop.spaces import Base, ModelSpace, SpaceError
from support.super_nets import FILTERS, KERNEL, UNITS, net_of, times
from support.workload import dense, layer, sequential


def test_a_space_of_one_member_is_that_member():
    space, net = net_of({**FILTERS, "choices": [4]}, times("hidden", 2))
    assert space.size == 1 and net.architecture == space.member(0).architecture


REFUSED = {
    "cell": (
        [{"change": "cell", "match": "hidden", "operations": [{"class": "Dense", "units": 16}]}],
        "mutator 1 .cell.",
    ),
    "inputs": ([{"change": "inputs", "match": "hidden", "from": ["flat"]}], "mutator 1 .inputs."),
    "shape": ([{"change": "layer", "match": "pool", "choices": ["keep", None]}], "choice 'pool' .* of shape"),
    "absent": ([times("hidden", 0, 1)], "choice 'times hidden' .* of shape"),
    "normalization": (
        [FILTERS, {"change": "insert", "match": "conv", "choices": [None, {"class": "LayerNormalization"}]}],
        "layer 'conv_after' .LayerNormalization. cannot be trained by one-shot behind a choice of width",
    ),
    "two arguments": (
        [KERNEL, {"change": "value", "match": "conv", "argument": "use_bias", "choices": [True, False]}],
        "layer 'conv' has choices of 'kernel_size' and of 'use_bias'",
    ),
    "groups": (
        [FILTERS, {"change": "value", "match": "conv", "argument": "groups", "choices": [2]}],
        "layer 'conv' has groups",
    ),
    "last": ([{"change": "value", "match": "out", "argument": "units", "choices": [10, 12]}], "several widths"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_share_weights_is_refused_by_name(name):
    mutators, message = REFUSED[name]
    with pytest.raises(SpaceError, match=message):
        net_of(*mutators)


def test_a_base_model_that_is_no_chain_is_refused():
    def node(kind, name, *sources, **config):
        inbound = [[[source, 0, 0, {}] for source in sources]] if sources else []
        return {"class_name": kind, "config": {"name": name, **config}, "name": name, "inbound_nodes": inbound}

    nodes = [
        node("InputLayer", "x", batch_shape=[None, 6]),
        node("Dense", "first", "x", units=8),
        node("Dense", "inner", "first", units=8),
        node("Add", "sum", "first", "inner"),
    ]
    config = {"name": "graph", "layers": nodes, "input_layers": [["x", 0, 0]], "output_layers": [["sum", 0, 0]]}
    residual = json.dumps({"class_name": "Functional", "keras_version": "3.0.0", "config": config})
    with pytest.raises(
        SpaceError, match="its layer 'sum' does not take the output of the one before it alone"
    ) as found:
        net_of(
            {"change": "value", "match": "inner", "argument": "activation", "choices": ["relu", "tanh"]}, base=residual
        )
    assert "chain" in found.value.hint


def test_users_cannot_name_the_layers_of_super_nets():
    from mop_udf.architecture.architecture import ArchitectureError, check

    _, net = net_of(FILTERS)
    with pytest.raises(ArchitectureError, match="is not Keras' own"):
        check(net.architecture)
    for kind in ("Paths", "PathWidth", "PathChoice", "PathGate", "PathNormalization"):
        with pytest.raises(ArchitectureError, match="may not be loaded"):
            check(sequential("own", [4], layer(kind, name="own", counts=[1], parents=[None])))
    assert check(check(net.architecture, True), True) == json.loads(net.architecture)
    bad = json.loads(net.architecture)
    (own,) = (one for one in bad["config"]["layers"] if one["class_name"] == "PathWidth")
    for value in ("__import__", {"class_name": "Lambda"}, [["x"]], 1.5, True):
        own["config"]["widths"] = value
        with pytest.raises(ArchitectureError, match="'widths' with another value than numbers"):
            check(bad, True)


# --- the procedure -------------------------------------------------------------------------------
GRID = {"loss": ["mse"], "metrics": [["accuracy"]], "batch_size": [8]}
MUTATORS = [times("hidden", 1, 2), {**UNITS, "choices": [4, 8, 16]}]


def one_shot(grid=GRID, bases=None, seed=5, goal="max", mutators=MUTATORS, **parameters):
    space = ModelSpace(bases or [Base(1, dense()), Base(2, dense(32))], json.dumps(mutators))
    given = {"iterations": 4, "candidates": 10, "retrain": 3, "retrain_iterations": 2, **parameters}
    return create("one-shot", Space(grid, models=ModelChoices(space)), seed, goal, given)


def value(model_id):
    return Random(model_id).random()


def run(procedure):
    """Give a procedure what it asks for: {trial: (configuration, budget)}."""
    asked = {}
    while not procedure.done:
        for trial, configuration, budget in procedure.ask():
            asked[trial] = configuration, budget
            members = procedure.candidates(trial)
            if members is not None:
                assert not procedure.evaluates(trial)
                procedure.take_scores_of_members(trial, {model_id: value(model_id) for model_id in members})
            else:
                procedure.tell(trial, budget, 0.1 * trial)
    return asked


def test_super_nets_first_then_the_best_members_from_scratch():
    procedure = one_shot()
    asked = run(procedure)
    assert [budget for _, budget in asked.values()] == [4, 4, 2, 2, 2]
    assert [configuration[0] for configuration, _ in list(asked.values())[:2]] == list(procedure.nets)
    scored = {model_id for trial in (1, 2) for model_id in procedure.candidates(trial)}
    assert len(scored) == 10
    best = sorted(scored, key=value, reverse=True)[:3]
    assert [configuration[0] for configuration, _ in list(asked.values())[2:]] == best
    assert [procedure.lineage(trial)["one_shot"]["rank"] for trial in (3, 4, 5)] == [1, 2, 3]
    assert procedure.best == (5, 2, 0.5), "no score is the best result"
    assert run(one_shot()) == asked and run(one_shot(seed=6)) != asked


def test_a_replayed_procedure_goes_on_at_the_same_point():
    first, second = one_shot(), one_shot()
    first.ask()
    rows = [[model_id, value(model_id)] for model_id in first.candidates(1)]
    for procedure in (first, second):
        procedure.replay([("members", 1, [[*row, {}] for row in rows])])
    assert [proposal.trial for proposal in second.ask()] == [2]
    first.take_scores_of_members(2, dict.fromkeys(first.candidates(2), 0.5))
    second.take_scores_of_members(2, dict.fromkeys(second.candidates(2), 0.5))
    assert [p.configuration for p in first.ask()] == [p.configuration for p in second.ask()]


def test_a_resumed_search_knows_the_members_that_it_trains_from_scratch():
    first, second = one_shot(bases=[Base(1, dense())]), one_shot(bases=[Base(1, dense())])
    first.ask()
    second.replay([("members", 1, [[model_id, value(model_id), {}] for model_id in first.candidates(1)])])
    proposals = second.ask()
    assert len(proposals) == 3 and all(second.models.member(p.configuration[0]) for p in proposals)


def test_a_small_space_is_scored_as_a_whole_and_members_without_a_score_are_not_trained():
    procedure = one_shot(bases=[Base(1, dense())], candidates=100, retrain=50)
    procedure.ask()
    members = procedure.candidates(1)
    assert len(members) == procedure.models.size == 12
    scores = dict.fromkeys(members[:10], 0.5)
    procedure.take_scores_of_members(1, {**scores, members[10]: None, members[11]: float("nan")})
    assert len(procedure.ask()) == 10


def test_a_super_net_that_fails_leaves_the_others():
    procedure = one_shot()
    procedure.ask()
    procedure.tell(1, None, None)
    procedure.take_scores_of_members(2, {model_id: value(model_id) for model_id in procedure.candidates(2)})
    assert {c[0] for _, c, _ in procedure.ask()} <= set(procedure.candidates(2))
    nothing = one_shot(retrain=0)
    assert len(run(nothing)) == 2 and nothing.best is None


def test_the_outlook_counts_super_nets_and_retrained_members():
    procedure = one_shot()
    with procedure.models.drafts():
        found = outlook.drive(procedure, "random")
    assert [trial.iterations for trial in found.trials] == [4, 4, 2, 2, 2] and found.whole
    assert sum(trial.members for trial in found.trials[:2]) == 10 and not any(t.members for t in found.trials[2:])


def test_the_time_of_a_search_contains_the_scores_of_members():
    fixed = FixedCosts()
    costs = search_outlook.Costs(1, 2, 2, 0.1, 0.01, 0.0, None, fixed, scoring=0.5)

    def took(members):
        trials = [outlook.TrialOutlook((1,), 4, 0, members), outlook.TrialOutlook((2,), 2, 1)]
        return search_outlook.case(trials, 1.0, costs)

    without, found = took(0), took(1000)
    assert found["members"] == 1000 and found["scoring_seconds"] == pytest.approx(500)
    for name in ("seconds", "session_seconds"):
        assert found[name] - without[name] == pytest.approx(500)


def test_it_needs_a_model_space_and_right_parameters():
    plain = Space.of_texts([1], "{'loss': ['mse']}", "{'batch_size': [8]}")
    with pytest.raises(SearchError, match="one-shot trains the members of a model space"):
        create("one-shot", plain, 1)
    for name, bad in (("candidates", 0), ("retrain", -1), ("iterations", "x"), ("retrain_iterations", 0)):
        with pytest.raises(SearchError, match=f"{name} of one-shot must be"):
            one_shot(**{name: bad})
    with pytest.raises(SearchError, match="mutator 1 .cell. cannot be trained by one-shot"):
        one_shot(mutators=REFUSED["cell"][0])
