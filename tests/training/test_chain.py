"""A chain in a trainer gives the states and reports of its units, each trained by itself from the bytes of the last."""

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import numpy as np
import pytest

from mop_udf import data
from mop_udf.training import chain
from mop_udf.unit_spec import UnitRequest
from mop_udf.unit_spec import steps_of as steps_of_request
from support.workload import NAN, dense, layer, random_rows, sequential

ROWS = 30
NETS = {
    "dense": dense(),
    "dropping": sequential(
        "dropping",
        [4],
        layer("Dense", name="hidden", units=8, activation="relu"),
        layer("Dropout", name="drop", rate=0.5),
        layer("Dense", name="out", units=3, activation="softmax"),
    ),
}
COMMON = {
    "kind": "train",
    "seed": 5,
    "same_start": True,
    "dtypes": ["<f4", "<f4"],
    "inputs": 1,
    "outputs": {"widths": [3], "what": "classes", "table": "rows"},
    "replicas": None,
    "run_seconds": 0.0,
    "share_prefixes": False,
    "keep": [],
    "keeps_rows": True,
    "sends_rows": False,
    "epochs_sent": 1,
}


def rows_of(segment):
    return {"segment": segment, "rows": ROWS, "nbytes": ROWS * 28, "dataset": f"segment {segment}"}


def model(stage, iteration, net="dense", rate=0.01, fit="batch_size=10", **more):
    return {
        "stage": stage,
        "mst_key": stage,
        "model_id": 1,
        "iteration": iteration,
        "architecture": NETS[net],
        "compile_params": f"loss='categorical_crossentropy', optimizer='Adam(learning_rate={rate})', metrics=['accuracy']",
        "fit_params": fit,
        "objects": [],
        "functions": [],
        "epochs": 1,
        "kernel": "plain",
        "costs": None,
        "passes_left": 1,
        "run_passes_left": 1,
        "plain_weights": False,
        **more,
    }


@pytest.fixture
def cache():
    made = data.Cache(1 << 20)
    source = np.random.default_rng(1)
    for segment in range(3):
        x, y = random_rows(ROWS)
        made.segments[f"segment {segment}"] = data.Segment((source.permuted(x), y))
    return made


def trained(cache, steps):
    """(reports, {place of a model: bytes of its state}) of a chain, or of one step by itself."""
    from mop_udf.kernels import device
    from mop_udf.training import model_cache

    return chain.train(steps, iter(()), {}, cache, model_cache.ModelCache(), device.described(1))


def one_by_one(cache, steps):
    """The same, each unit by itself, from the bytes that the unit before has left."""
    from mop_udf.kernels import device
    from mop_udf.training import model_cache

    reports, states = [], [None] * len(steps[0])
    compiled = model_cache.ModelCache()
    for step in steps:
        for place, unit in enumerate(step):
            if unit is not None:
                given = {} if states[place] is None else {unit.stage: states[place]}
                made, (state,) = chain.train([[unit]], iter(()), given, cache, compiled, device.described(1))
                reports += made
                states[place] = b"".join(map(bytes, state))
    return reports, states


def steps_of(first, *then):
    unit = {**COMMON, **rows_of(first[0]), "models": list(first[1:])}
    unit["then"] = [{**rows_of(step[0]), "models": list(step[1:])} for step in then]
    return steps_of_request(UnitRequest.from_json(unit))


CASES = {
    "one model": [(0, model(1, 1)), (2, model(1, 1)), (1, model(1, 1)), (1, model(2, 2, rate=0.001))],
    "several models, one of which ends early and one of which waits": [
        (0, model(1, 1), model(2, 1, rate=0.02), model(3, 1, fit="batch_size=7, shuffle=True")),
        (1, model(1, 1), None, model(3, 1, fit="batch_size=7, shuffle=True")),
        (2, None, model(2, 1, rate=0.02), None),
        (2, None, model(4, 2, rate=0.02), model(5, 2, fit="batch_size=5, shuffle=True, epochs=2")),
    ],
    "a net whose dropout rate changes": [
        (0, model(1, 1, "dropping", fit="batch_size=10, dropout=0.5"), model(2, 1, "dropping")),
        (1, model(1, 1, "dropping", fit="batch_size=10, dropout=0.5"), model(2, 1, "dropping")),
        (0, model(3, 2, "dropping", fit="batch_size=10, dropout=0.3"), model(4, 2, "dropping")),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_a_chain_gives_what_its_units_give_by_themselves(cache, case):
    steps = steps_of(*CASES[case])
    reports, states = trained(cache, steps)
    expected, wanted = one_by_one(cache, steps)
    assert [b"".join(map(bytes, state)) for state in states] == wanted
    assert [r["loss"] for r in reports] == [r["loss"] for r in expected]
    assert len(reports) == sum(unit is not None for step in steps for unit in step)
    assert [r["began"] for r in reports].count(None) == 1 and min(r["ended"] for r in reports) == 0
    assert all(r["began"] is None or r["began"] >= r["ended"] >= 0 for r in reports)


def test_rows_that_are_not_there_are_an_error(cache):
    del cache.segments["segment 1"]
    with pytest.raises(RuntimeError, match="does not hold the rows"):
        trained(cache, steps_of(*CASES["one model"]))


def test_a_loss_that_is_no_number_ends_the_chain(cache):
    from mop_udf.training.models import ConfigurationError

    units = [model(1, 1), model(2, 1, compile_params=NAN)]
    with pytest.raises(ConfigurationError, match="NaN"):
        trained(cache, steps_of((0, *units), (1, *units), (2, *units)))
