"""Units of one model that come together are trained as one computation: the kernel `vmap`, in a trainer on JAX.

What comes of each is what comes of it alone, with the same bits in whatever company it was.
"""

import json

import pytest

from mop_udf.pool import process
from support.on_jax import (
    ADAMS,
    CONVOLUTION,
    NET,
    NORMALISED,
    assert_trained_as_by_itself,
    named,
    process_of_all,
    trainer,
)
from support.workload import ADAM, NAN, dense, needs_jax, pickled

__all__ = ["process_of_all", "trainer"]  # fixtures

pytestmark = needs_jax


@pytest.mark.parametrize("case", ["dense", "BatchNormalization and Dropout", "rates per batch"])
def test_each_is_trained_as_by_itself(trainer, case):
    """All cases: tests/thorough/kernels/test_vmap_batch.py."""
    assert_trained_as_by_itself(trainer, case)


@pytest.mark.parametrize("case", ["BatchNormalization and Dropout", "rates per batch"])
def test_the_company_changes_no_bit(trainer, case):
    whole, apart = named("whole", case), named("apart", case)
    trainer.train("vmap", *whole)
    trainer.train("vmap", apart[3])
    trainer.train("vmap", apart[2], apart[0], apart[4])
    trainer.train("vmap", apart[1])
    for one, other in zip(whole, apart):
        assert trainer.states[one[0]] == trainer.states[other[0]]


def test_it_is_compiled_once_whatever_the_number(trainer):
    architecture = dense(width=11)
    many = [(f"model {n}", architecture, ADAM.format(0.001 * (n + 1)), "batch_size=9") for n in range(20)]
    assert sum(report["compilations"] for report in trainer.train("vmap", *many)) == 1
    for count in (1, 2, 7, 16):
        assert sum(report["compilations"] for report in trainer.train("vmap", *many[:count])) == 0


def test_a_group_of_different_models_falls_apart(trainer):
    mixed = [
        ("a", NET, ADAMS[0], "batch_size=8"),
        ("b", NORMALISED, ADAMS[0], "batch_size=8"),
        ("c", NET, ADAMS[1], "batch_size=8"),
        ("d", NET, ADAMS[0], "batch_size=8, epochs=2"),
        ("e", CONVOLUTION, ADAMS[0], "batch_size=8"),
        ("f", NET, ADAMS[2], "batch_size=5"),
    ]
    reports = trainer.train("vmap", *mixed)
    assert [report["kernel"] for report in reports] == ["vmap", "vmap", "vmap", "vmap", "plain", "vmap"]
    assert "slow on processors" in json.dumps(reports[4]["choice"]["refused"])
    before = dict(trainer.states)
    trainer.states = {}
    for one in mixed:
        trainer.train("vmap", one)
    assert trainer.states == before


def test_one_to_blame_fails_as_it_does_alone(trainer):
    rates = ["0.01", "0.02", "1e38", "0.04"]
    bad = [(rate, NET, NAN.replace("1e38", rate), "batch_size=8, epochs=2") for rate in rates]
    with pytest.raises(process.TrainerError) as failed:
        trainer.train("vmap", *bad)
    assert str(failed.value) == "the loss became NaN"
    assert failed.value.configuration
    with pytest.raises(process.TrainerError, match="the loss became NaN"):
        trainer.train("vmap", bad.pop(2))
    assert [report["kernel"] for report in trainer.train("vmap", *bad)] == ["vmap"] * 3


def test_what_is_too_large_for_sixteen_is_trained_one_after_the_other(trainer):
    large = [
        (f"large {n}", dense(width=200_000), ADAM.format(rate), "batch_size=8") for n, rate in enumerate((0.1, 0.2))
    ]
    reports = trainer.train("vmap", *large)
    assert [report["kernel"] for report in reports] == ["loop", "loop"]
    assert "16 of this model at once may take" in reports[0]["choice"]["refused"]["vmap"]
    others = [(f"other {n}", *rest) for n, (_, *rest) in enumerate(large)]
    trainer.train("loop", *others)
    assert [trainer.states[f"large {n}"] for n in (0, 1)] == [trainer.states[f"other {n}"] for n in (0, 1)]


def test_what_cannot_be_mapped_is_trained_one_after_the_other(trainer):
    functions = {"called": pickled("called", CALLED)}
    models = [
        (f"model {rate}", NET, f"loss='called', optimizer='Adam(lr={rate})'", "batch_size=8") for rate in (0.1, 0.2)
    ]
    reports = trainer.train("vmap", *models, functions=functions)
    assert [report["kernel"] for report in reports] == ["loop", "loop"]
    assert "vmap" in reports[0]["choice"]["refused"] and "loop" not in reports[0]["choice"]["refused"]
    after = dict(trainer.states)
    trainer.states = {}
    trainer.train("loop", *models, functions=functions)
    assert trainer.states == after


CALLED = """
def called(y_true, y_pred):
    import jax
    import keras
    loss = keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)
    seen = jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(loss.shape, loss.dtype), jax.lax.stop_gradient(loss))
    return loss + 0 * seen
"""


def test_on_processors_it_is_used_where_it_is_asked_for_alone(trainer):
    assert {report["kernel"] for report in trainer.train("auto", *named("any", "dense"))} <= {"loop", "plain"}


def test_rows_that_are_not_kept_are_trained_on_as_they_come(trainer):
    trainer.keeps = False
    try:
        assert trainer.train("vmap", named("streamed", "dense")[0])[0]["kernel"] == "loop"
    finally:
        trainer.keeps = True
