"""Jacobian covariance on other frameworks, each in a process of its own: Keras has one for a process."""

import os
import subprocess
import sys

import pytest

from support.workload import OTHERS


@pytest.mark.parametrize("backend", OTHERS)
def test_jacob_cov_is_the_score_of_correlations_between_jacobians(backend):
    own = {"KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-B", "-m", "support.jacob_cov"]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own})
    assert ended.returncode == 0, ended.stderr
