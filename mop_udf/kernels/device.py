"""Where this process computes, as text: seconds that were measured are good for the like alone."""

import keras

from mop_udf import compile_cache
from mop_udf.kernels.framework import framework


def described(threads):
    """(versions, device) of a process that computes with so many processor threads."""
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "processor")
    device = framework.gpu_name() or f"{model} ({compile_cache.processor()}), {threads} threads"
    return f"Keras {keras.__version__}, {keras.backend.backend()} {framework.VERSION}", device
