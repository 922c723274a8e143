"""Super-nets: the paths compute what their members compute, and what cannot share weights is refused by name."""

import json
import os
from random import Random

import numpy as np
import pytest

from pg_mop.plan.estimates import FixedCosts
from pg_mop.run import search_outlook
from pg_mop.search import SearchError, create, outlook
from pg_mop.search.models import ModelChoices
from pg_mop.search.space import Space
from pg_mop.spaces import Base, ModelSpace, SpaceError
from pg_mop.spaces.super_net import super_net
from support.workload import dense, layer, sequential

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

CNN = sequential(
    "cnn",
    [8, 8, 2],
    layer("Conv2D", name="conv", filters=8, kernel_size=3, padding="same", activation="relu"),
    layer("MaxPooling2D", name="pool"),
    layer("Flatten", name="flat"),
    layer("Dense", name="hidden", units=16, activation="relu"),
    layer("Dense", name="out", units=10, activation="softmax"),
)
FILTERS = {"change": "value", "match": "conv", "argument": "filters", "choices": [4, 8, 3]}
UNITS = {"change": "value", "match": "hidden*", "argument": "units", "choices": [16, 7]}
AVERAGE = {"change": "layer", "match": "pool", "choices": ["keep", {"class": "AveragePooling2D", "pool_size": 2}]}
DROPOUT = {"change": "insert", "match": "conv", "choices": [None, {"class": "Dropout", "rate": 0.2}]}
NORMALIZED = {"change": "insert", "match": "hidden", "choices": [None, {"class": "BatchNormalization"}]}
NORMALIZED_WIDTHS = {"change": "insert", "match": "conv", "choices": [None, {"class": "BatchNormalization"}]}
SIGMOID = {"change": "insert", "match": "conv", "choices": [None, {"class": "Activation", "activation": "sigmoid"}]}
TWO = {"change": "insert", "match": "flat", "choices": [[{"class": "Dropout", "rate": 0.1}, {"class": "ReLU"}], None]}
ACTIVATION = {"change": "value", "match": "hidden", "argument": "activation", "choices": ["relu", "tanh", "elu"]}
KERNEL = {"change": "value", "match": "conv", "argument": "kernel_size", "choices": [3, 5, 1]}
REMOVED = {"change": "remove", "match": "drop"}


def times(name, *choices, **more):
    return {"change": "repeat", "match": name, "times": list(choices), **more}


def space_of(*mutators, base=CNN):
    return ModelSpace([Base(1, base)], json.dumps(mutators))


def net_of(*mutators, base=CNN):
    space = space_of(*mutators, base=base)
    return space, super_net(space, 1)


def slices(layer, array, shape):
    """The first channels of a weight; of a kernel behind a Flatten, those of each position."""
    if len(shape) == 2 and layer == "hidden":
        channels = shape[0] // 16
        array = array.reshape(16, -1, array.shape[1])[:, :channels].reshape(16 * channels, -1)
    return array[tuple(slice(size) for size in shape)]


def weights_for(model, name, chosen):
    """The weights that a member's layer has in the super-net: of its own variant, where an argument has several."""
    names = {layer.name for layer in model.layers}
    variant = next((f"{name}_{at + 1}" for point, at in chosen.items() if point == f"{name}.kernel_size"), name)
    return model.get_layer(variant if variant in names else name).get_weights()


@pytest.mark.parametrize(
    "mutators",
    [
        [FILTERS],
        [FILTERS, UNITS],
        [FILTERS, DROPOUT, times("conv", 1, 2, 3), AVERAGE, times("hidden", 1, 2), UNITS],
        [times("hidden", 1, 2, 3), UNITS, ACTIVATION],
        [KERNEL, AVERAGE],
        [NORMALIZED, times("hidden", 1, 2)],
        [FILTERS, SIGMOID],
        [TWO, AVERAGE, FILTERS],
        [FILTERS, NORMALIZED_WIDTHS, times("conv", 1, 2)],
    ],
    ids=lambda mutators: ", ".join(m["change"] for m in mutators),
)
def test_each_path_computes_what_its_member_does(mutators):
    from mop_udf import models
    from mop_udf import super_net as layers

    space, net = net_of(*mutators)
    model = models.build(models.normalise(net.architecture), 1)
    at, x = layers.path_position(model), np.random.default_rng(0).random((5, 8, 8, 2), "f4")
    draw = np.random.default_rng(2)
    weights = [draw.uniform(0.1, 1, w.shape).astype("f4") if w.ndim == 1 else w for w in model.get_weights()]
    numbers = Random(1).sample(range(space.size), min(space.size, 10))
    for member in map(space.member, numbers):
        weights[at] = np.array(net.path(member.chosen), "f4")
        model.set_weights(weights)
        alone = models.build(models.normalise(member.architecture), 0)
        for own in alone.layers:
            if own.weights:
                found = weights_for(model, own.name, member.chosen)
                own.set_weights([slices(own.name, a, w.shape) for a, w in zip(found, own.weights)])
        given = [np.asarray(one(x, training=False)) for one in (model, alone)]
        np.testing.assert_allclose(*given, atol=1e-6, err_msg=str(member.choices))


def test_training_draws_each_path_equally_often_and_closed_points_have_no_option():
    from mop_udf import models
    from mop_udf.super_net import Paths

    space, net = net_of(FILTERS, times("hidden", 1, 2), UNITS)
    model = models.build(models.normalise(net.architecture), 1)
    (paths,) = (layer for layer in model.layers if isinstance(layer, Paths))
    x = np.zeros((3, 8, 8, 2), "f4")
    drawn = [np.asarray(paths(x, training=True)) for _ in range(2000)]
    assert all((one == one[0]).all() for one in drawn), "the rows of a mini-batch take the same path"
    found = [tuple(one[0].astype(int).tolist()) for one in drawn]
    names = [point.name for point in net.points]
    assert names == ["conv.filters", "times hidden", "hidden.units", "hidden_2.units"]
    assert all((one[3] == -1) == (one[1] == 0) for one in found)
    counts = {one: found.count(one) for one in set(found)}
    assert len(counts) == space.size == 18
    for option in range(3):
        assert 560 < sum(one[0] == option for one in found) < 780
    again = models.build(models.normalise(net.architecture), 1)
    (other,) = (layer for layer in again.layers if isinstance(layer, Paths))
    second = [tuple(np.asarray(other(x, training=True))[0].astype(int).tolist()) for _ in range(50)]
    assert second == found[:50], "the seed of the weights decides the paths"


def test_a_space_of_one_member_is_that_member():
    space, net = net_of({**FILTERS, "choices": [4]}, times("hidden", 2))
    assert space.size == 1 and net.architecture == space.member(0).architecture


def changes(net, layer, times=12):
    """The weights of a layer before and after each of some steps of training."""
    import keras

    from mop_udf import models

    model = models.build(models.normalise(net.architecture), 1)
    model.compile(keras.optimizers.SGD(0.1), "categorical_crossentropy")
    x, y = np.random.default_rng(0).random((8, 8, 8, 2), "f4"), np.eye(10, dtype="f4")[np.arange(8)]
    for _ in range(times):
        before = model.get_layer(layer).get_weights()
        model.train_on_batch(x, y)
        yield [a != b for a, b in zip(before, model.get_layer(layer).get_weights())]


def test_the_last_channels_of_a_narrow_member_get_no_gradient():
    _, net = net_of({**FILTERS, "choices": [4, 8]})
    changed = [kernel.any(axis=(0, 1, 2)) for kernel, *_ in changes(net, "conv")]
    assert all(channels[:4].any() for channels in changed) and {bool(c[4:].any()) for c in changed} == {True, False}


def test_a_narrow_member_leaves_the_averages_of_the_last_channels():
    always = {"change": "insert", "match": "conv", "choices": [{"class": "BatchNormalization"}]}
    _, net = net_of({**FILTERS, "choices": [4, 8]}, always)
    seen = set()
    for _, _, mean, variance in changes(net, "conv_after"):
        assert mean.any() and variance.any() and mean[4:].any() == variance[4:].any()
        seen.add(bool(mean[4:].any()))
    assert seen == {True, False}


@pytest.mark.parametrize(
    "mutators, layer",
    [
        ([NORMALIZED], "hidden_after"),
        ([FILTERS, NORMALIZED_WIDTHS], "conv_after"),
        ([{**AVERAGE, "choices": ["keep", [{"class": "MaxPooling2D"}, {"class": "BatchNormalization"}]]}], "pool_2"),
        (
            [{"change": "value", "match": "hidden_after", "argument": "momentum", "choices": [0.9, 0.5]}],
            "hidden_after_1",
        ),
    ],
    ids=("inserted", "with widths", "second of a branch", "variant"),
)
def test_a_path_without_a_batch_normalization_leaves_its_averages(mutators, layer):
    _, net = net_of(*mutators, base=CNN if layer != "hidden_after_1" else with_normalization())
    seen = set()
    for _, _, mean, variance in changes(net, layer):
        assert mean.any() == variance.any()
        seen.add(bool(mean.any()))
    assert seen == {True, False}


def with_normalization():
    layers = json.loads(CNN)["config"]["layers"]
    at = next(at for at, one in enumerate(layers) if one["config"]["name"] == "hidden")
    made = json.loads(CNN)
    made["config"]["layers"].insert(at + 1, layer("BatchNormalization", name="hidden_after"))
    return json.dumps(made)


@pytest.mark.parametrize(
    "mutators",
    [
        [{**ACTIVATION, "choices": ["relu", "exponential"]}],
        [
            {
                "change": "insert",
                "match": "hidden",
                "choices": [None, {"class": "Activation", "activation": "exponential"}],
            }
        ],
    ],
    ids=("argument", "layer"),
)
def test_a_branch_that_overflows_spoils_only_its_own_path(mutators):
    import tensorflow as tf

    from mop_udf import models
    from mop_udf import super_net as layers

    space, net = net_of(*mutators)
    model = models.build(models.normalise(net.architecture), 1)
    weights = [100 * abs(w) for w in model.get_weights()]
    at, x = layers.path_position(model), np.ones((4, 8, 8, 2), "f4")
    finite = []
    for number in range(space.size):
        weights[at] = np.array(net.path(space.member(number).chosen), "f4")
        model.set_weights(weights)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        finite.append(all(np.isfinite(g).all() for g in gradients if g is not None) and bool(np.isfinite(loss)))
    assert finite == [True, False]


def test_channels_that_overflow_are_cut_off():
    from mop_udf.super_net import PathWidth

    values, paths = np.array([[1.0, np.inf, np.nan]], "f4"), np.array([[0.0]], "f4")
    assert np.asarray(PathWidth(0, [1, 3])([values, paths])).tolist() == [[1, 0, 0]]


def test_many_widths_of_a_wide_layer_take_little_memory():
    import tracemalloc

    from mop_udf.super_net import PathWidth

    widths, values = list(range(1, 401)), np.ones((3, 20_000), "f4")
    made = PathWidth(1, widths)
    paths = np.array([[0, 0], [0, 399], [0, -1]], "f4")
    tracemalloc.start()
    try:
        shown = np.asarray(made([values, paths]))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20, "a table of widths x channels"
    finally:
        tracemalloc.stop()
    assert shown.sum(1).tolist() == [1, 400, 20_000] and shown[1, :400].all()


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
    from mop_udf.architecture import ArchitectureError, check

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


@pytest.mark.parametrize(
    "grid, message",
    [
        ({**GRID, "batch_size": [8, 16]}, "several values of 'batch_size'"),
        ({**GRID, "optimizer_params_list": [{"optimizer": ["SGD"], "lr": [0.1, 0.01]}]}, "several values of 'lr'"),
        ({**GRID, "optimizer_params_list": [{"lr": [0.001, 0.1, "log"]}]}, "several values of 'lr'"),
        ({**GRID, "optimizer_params_list": [{"optimizer": ["SGD"]}, {"optimizer": ["Adam"]}]}, "several dictionaries"),
    ],
)
def test_several_hyper_parameters_are_refused(grid, message):
    with pytest.raises(SearchError, match=message):
        one_shot(grid)


def test_it_needs_a_model_space_and_right_parameters():
    plain = Space.of_texts([1], "{'loss': ['mse']}", "{'batch_size': [8]}")
    with pytest.raises(SearchError, match="one-shot trains the members of a model space"):
        create("one-shot", plain, 1)
    for name, bad in (("candidates", 0), ("retrain", -1), ("iterations", "x"), ("retrain_iterations", 0)):
        with pytest.raises(SearchError, match=f"{name} of one-shot must be"):
            one_shot(**{name: bad})
    with pytest.raises(SearchError, match="mutator 1 .cell. cannot be trained by one-shot"):
        one_shot(mutators=REFUSED["cell"][0])
