"""Every argument of Keras' `compile` that pg_mop takes has the effect that it has in Keras: support/against_keras.py."""

import inspect
import os
import pathlib
import re

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import pytest

from support import against_keras

EVERY_KERNEL = ("sample and class weights", "moving averages put in place")  # the others: the one that is used most
LOOP = [name for name, case in against_keras.CASES.items() if "loop" in case.kernels]


@pytest.mark.parametrize("case", LOOP)
def test_training_and_evaluation_are_keras(case):
    kernels = against_keras.KERNELS["tensorflow"] if case in EVERY_KERNEL else ("loop",)
    against_keras.assert_alike(against_keras.compared(case, kernels))


@pytest.mark.parametrize("function", ["compile", "fit"])
def test_the_table_has_every_argument_of_keras(function):
    text = (pathlib.Path(__file__).parents[2] / "docs/compatibility.md").read_text()
    table = text.split(f"| `{function}` | in pg_mop |")[1].split("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1] if row else "")}
    arguments = set(inspect.signature(getattr(keras.Model, function)).parameters) - {"self"}
    assert named >= arguments
