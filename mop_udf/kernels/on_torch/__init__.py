"""Keras on PyTorch, which runs every operation at once; on_tensorflow documents the names."""

import os
from typing import Any

import keras
import numpy as np
import torch

from mop_udf.kernels.on_torch.memory import OUT_OF_MEMORY, memory_errors
from mop_udf.kernels.on_torch.plain import Plain
from mop_udf.kernels.on_torch.scalars import Rate, make_variable
from mop_udf.kernels.variables import Variables
from mop_udf.pool import child_process

__all__ = [
    "OUT_OF_MEMORY",
    "VERSION",
    "Group",
    "Plain",
    "Rate",
    "Variables",
    "begin",
    "check_room",
    "device_count",
    "draw_from_state",
    "for_any_rows",
    "gpu_name",
    "has_gpu",
    "loops",
    "most_bytes",
    "ran_out",
    "shapes_only",
    "refused",
    "seed",
    "tensors",
    "make_variable",
]

VERSION = torch.__version__
Group = None
NO_LOOP = "PyTorch runs every operation at once: there is no loop to compile"


def begin(threads: int) -> Any:
    """See on_tensorflow. CUDA reads CUDA_VISIBLE_DEVICES at its start, which is still to come."""
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    # sums of several threads in a fixed order: a replay must give the same bits
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "-1")
    if wanted in ("", "-1"):
        return None
    if not torch.cuda.is_available():
        return (
            f"PyTorch {torch.__version__} finds no GPU {wanted} that it can use: it is built for CPUs only, "
            f"or the GPU driver is missing (nvidia-smi)"
        )
    if (part := child_process.part_of()) is not None:
        torch.cuda.set_per_process_memory_fraction(part[0])
    # for the life of this process: Keras was imported for processors, so that the fork server does not touch a GPU
    keras.device("gpu:0").__enter__()
    return None


def draw_from_state(model: Any) -> None:
    """See on_tensorflow. Dropout layers without a seed would draw from PyTorch's global generator.

    Its state is not part of the model's, so these layers draw as if the seed that Keras made for them had been given.
    """
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            if generator._initial_seed is None:
                generator._initial_seed = int(np.asarray(generator.state)[0])


def seed(number: int) -> None:
    """See on_tensorflow."""
    keras.utils.set_random_seed(number)


def has_gpu() -> bool:
    return keras.ops.zeros(()).device.type == "cuda"


def ran_out(error: BaseException) -> bool:
    """See on_tensorflow."""
    return isinstance(error, torch.OutOfMemoryError)


def device_count() -> Any:
    """See on_tensorflow."""
    return 1


def check_room(variables: Any) -> None:
    """See on_tensorflow."""


def most_bytes() -> Any:
    """See on_tensorflow."""
    return torch.cuda.max_memory_allocated() if has_gpu() else None


def gpu_name() -> Any:
    return torch.cuda.get_device_name() if has_gpu() else None


def loops(model: Any, name: str, lasting: bool) -> Any:
    return {}


def refused(random: bool, convolutional: bool) -> Any:
    """{kernel: reason} for the kernels that are useless for a model."""
    return {"loop": NO_LOOP, "xla": NO_LOOP}


def tensors(data: Any) -> Any:
    return keras.tree.map_structure(keras.ops.convert_to_tensor, data)


def for_any_rows(step: Any, data: Any, variables: Any, join: Any, name: str) -> Any:
    """See on_tensorflow: nothing is compiled."""

    def call(*data: Any) -> Any:
        with memory_errors(), torch.no_grad():
            return keras.tree.map_structure(keras.ops.convert_to_numpy, step(*data))

    return call


def shapes_only() -> Any:
    """See on_tensorflow: PyTorch's device `meta` has shapes alone."""
    return keras.device("meta")
