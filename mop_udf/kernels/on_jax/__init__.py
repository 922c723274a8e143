"""Keras on JAX; on_tensorflow documents the names."""

import contextlib
import os
from typing import Any

import jax
import keras
import numpy as np

from mop_udf.pool import compile_cache

jax.config.update("jax_enable_x64", True)  # sums over many rows, and schedules, are in float64

from mop_udf.kernels.on_jax import devices  # noqa: E402
from mop_udf.kernels.on_jax.group import Group  # noqa: E402
from mop_udf.kernels.on_jax.loop import Loop  # noqa: E402
from mop_udf.kernels.on_jax.per_batch import Rate, SequencedScalar  # noqa: E402
from mop_udf.kernels.on_jax.plain import Plain  # noqa: E402
from mop_udf.kernels.on_jax.scalars import Scalar  # noqa: E402
from mop_udf.kernels.scalars import variable_maker  # noqa: E402
from mop_udf.kernels.variables import Variables  # noqa: E402

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

VERSION = jax.__version__
OUT_OF_MEMORY = (jax.errors.JaxRuntimeError, MemoryError)
make_variable = variable_maker(Scalar, SequencedScalar)
PIECES = (512, 64, 8, 1)  # rows of the compiled functions; pieces of these sizes make up any number of rows


def begin(threads: int) -> Any:
    """See on_tensorflow. JAX reads these settings at its first computation, which is still to come."""
    os.environ.update(NPROC=str(threads), XLA_PYTHON_CLIENT_PREALLOCATE="false")
    if cache := compile_cache.current():
        for name, value in (
            ("compilation_cache_dir", cache.path),
            ("persistent_cache_min_compile_time_secs", 0),
            ("persistent_cache_min_entry_size_bytes", -1),
        ):
            jax.config.update(f"jax_{name}", value)
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "-1")
    if wanted in ("", "-1"):
        jax.config.update("jax_platforms", "cpu")
        devices.begin()
        return None
    if has_gpu():
        devices.begin()
    return (
        None
        if has_gpu()
        else (
            f"JAX {jax.__version__} finds no GPU {wanted} that it can use: it is built for CPUs only, or the GPU driver "
            f"is missing (nvidia-smi)"
        )
    )


def draw_from_state(model: Any) -> None:
    """See on_tensorflow: nothing to do."""


def seed(number: int) -> None:
    """See on_tensorflow."""
    keras.utils.set_random_seed(number)


def has_gpu() -> bool:
    return jax.default_backend() == "gpu"


def ran_out(error: BaseException) -> Any:
    """See on_tensorflow. JAX has one class of errors for everything that fails on a device."""
    if isinstance(error, devices.DeviceMemoryError):
        return True
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error) and has_gpu()


def device_count() -> Any:
    """See on_tensorflow."""
    return devices.count()


def check_room(variables: Any) -> None:
    """See on_tensorflow."""
    devices.check_room(variables)


def most_bytes() -> Any:
    """See on_tensorflow."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use") if has_gpu() else None


def gpu_name() -> Any:
    return jax.devices()[0].device_kind if has_gpu() else None


def loops(model: Any, name: str, lasting: bool) -> Any:
    return {"loop": Loop(model, name)}


def refused(random: bool, convolutional: bool) -> Any:
    """{kernel: reason} for the kernels that are useless for a model."""
    found = {"xla": "JAX compiles everything by XLA: the loop kernel uses it"}
    if devices.count() > 1:
        found["vmap"] = "the devices divide the model among them"
    if convolutional and not has_gpu():
        found["loop"] = found["vmap"] = "XLA's convolutions within a loop are slow on processors"
    return found


def tensors(data: Any) -> Any:
    """The arrays themselves: JAX moves them to its device when it computes."""
    return data


def for_any_rows(step: Any, data: Any, variables: Any, join: Any, name: str) -> Any:
    """See on_tensorflow: compiled for pieces of a few sizes."""

    @jax.jit
    def pure(values: Any, data: Any) -> Any:
        with keras.StatelessScope(list(zip(variables, values))):
            return step(*data)

    def call(*data: Any) -> Any:
        count, at, found = len(keras.tree.flatten(data)[0]), 0, []
        values = [v.value for v in variables]
        while at < count:
            size = next(n for n in PIECES if n <= count - at)
            piece = keras.tree.map_structure(lambda a, at=at, size=size: a[at : at + size], list(data))
            found.append(keras.tree.map_structure(np.asarray, pure(values, piece)))
            at += size
        return keras.tree.map_structure(join, *found)

    return call


def shapes_only() -> Any:
    """See on_tensorflow: with JAX, Keras builds models on shapes alone."""
    return contextlib.nullcontext()
