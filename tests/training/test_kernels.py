"""Every kernel of TensorFlow gives the results of Keras. A new kernel is an entry of `cases` of KernelConformance."""

import doctest
import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

from mop_udf.kernels import timed_loop
from mop_udf.params import parameter_names, params
from support.conformance import KernelConformance
from support.conformance.kernels import PAIRS, parsed


class TestKernels(KernelConformance):
    """More optimizers and schedules: tests/thorough/kernels/test_kernels.py."""


def test_every_optimizer_has_its_pair():
    assert {name.split(",")[0] for name in PAIRS} == set(parameter_names.OPTIMIZERS)


def test_numbers_of_different_signs_do_not_share():
    texts = "momentum=0|momentum=0.1|momentum=0.2|momentum=-0.1|lr=0.1|nesterov=True|clipnorm=1.0|clipnorm=2.0"
    keys = [str(params.without_scalars(parsed(f"SGD({text})"))) for text in texts.split("|")]
    assert keys[1] == keys[2] and len(set(keys)) == 7


def test_the_example_of_a_new_kernel_runs():
    found = doctest.testmod(timed_loop)
    assert found.attempted >= 4 and not found.failed
