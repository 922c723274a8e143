"""Every kernel of TensorFlow with every optimizer, every sequence per batch and every schedule of Keras."""

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

from support.conformance import KernelConformance
from support.conformance.kernels import PAIRS, SCHEDULES, SEQUENCES


class TestKernelsThoroughly(KernelConformance):
    optimizers, sequences, schedules, mosts = tuple(PAIRS), tuple(SEQUENCES), tuple(SCHEDULES), (None, 3, 17)
