"""The versions and the device of this process as text: measured times hold for equal ones only."""

import keras

from mop_udf.kernels.framework import framework
from mop_udf.pool import compile_cache


def described(threads: int) -> tuple[str, str]:
    """(versions, device) of a process with this number of processor threads."""
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "processor")
    count = framework.device_count()
    several = "" if count == 1 else f", divided by {count}"
    name = framework.gpu_name()
    device = f"{name}{several}" if name else f"{model} ({compile_cache.processor()}){several}, {threads} threads"
    return f"Keras {keras.__version__}, {keras.backend.backend()} {framework.VERSION}", device
