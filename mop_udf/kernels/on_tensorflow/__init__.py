"""Keras on TensorFlow.

Besides the functions below, each framework's package has these names:

- `Plain`: the plain kernel
- `Variables`: reads and sets a model's variables
- `make_variable`: lets an optimizer's number change without a new compilation (scalars.variable_maker)
- `Rate`: a learning rate that changes with every mini-batch
- `OUT_OF_MEMORY`: the errors that say that a batch was too large
- `Group`: the kernel that trains several states of a model at once (on_jax/group.py), or None
"""

import importlib
import os
import random
import types
from typing import Any

import keras
import tensorflow as tf

from mop_udf.kernels.on_tensorflow import traces
from mop_udf.kernels.on_tensorflow.loop import Loop
from mop_udf.kernels.on_tensorflow.per_batch import Rate, SequencedScalar
from mop_udf.kernels.on_tensorflow.plain import Plain
from mop_udf.kernels.on_tensorflow.scalars import Scalar
from mop_udf.kernels.on_tensorflow.variables import Variables
from mop_udf.kernels.scalars import variable_maker
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

VERSION = tf.__version__
OUT_OF_MEMORY = (tf.errors.ResourceExhaustedError, MemoryError)
Group = None
make_variable = variable_maker(Scalar, SequencedScalar)


def begin(threads: int) -> Any:
    """Prepare a new process with this number of processor threads: None, or why it cannot use its GPU.

    TensorFlow takes these options only before its first computation.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    gpus = tf.config.list_physical_devices("GPU")
    part = child_process.part_of()
    for gpu in gpus:
        if part is None:
            tf.config.experimental.set_memory_growth(gpu, True)
        elif part[1]:
            tf.config.set_logical_device_configuration(
                gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=part[1])]
            )
        else:
            return "the memory of the GPU is not known (nvidia-smi), so that no trainer can have a part of it"
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "-1")
    return (
        None
        if gpus or wanted in ("", "-1")
        else (
            f"TensorFlow {tf.__version__} finds no GPU {wanted} that it can use: it is built for CPUs only (make "
            f"install FRAMEWORK=cuda), or the GPU driver is missing (nvidia-smi)"
        )
    )


def draw_from_state(model: Any) -> None:
    """Let all layers of a new model draw random numbers from the model's own random state. TensorFlow's do so already."""


def seed(number: int) -> None:
    """Set the seeds of Python, NumPy, Keras and TensorFlow, as keras.utils.set_random_seed does.

    TensorFlow's own function also forgets all kernels, to begin their random numbers anew. Afterwards every function takes
    0.1 seconds longer at its first call. A model draws its random numbers from its own state, so this one keeps the kernels.
    The names that this needs are private: a Keras or TensorFlow without them sets the seeds in its own way.
    """
    try:
        rng_utils = importlib.import_module("keras.src.utils.rng_utils")
        own = importlib.import_module("tensorflow.python.eager.context").context()
        before, _, _ = rng_utils.tf, own._seed, own._rng
    except (ImportError, AttributeError):
        keras.utils.set_random_seed(number)
        return

    def set_seed(number: int) -> None:
        own._seed, own._rng = number, random.Random(number)

    rng_utils.tf = types.SimpleNamespace(  # type: ignore[attr-defined]
        available=True, random=types.SimpleNamespace(set_seed=set_seed)
    )
    try:
        keras.utils.set_random_seed(number)
    finally:
        rng_utils.tf = before  # type: ignore[attr-defined]


def has_gpu() -> bool:
    """True where this process computes on a GPU."""
    return bool(tf.config.list_physical_devices("GPU"))


def ran_out(error: BaseException) -> Any:
    """True where an error says that the memory of this process's GPU, or its part of it, has run out."""
    return isinstance(error, tf.errors.ResourceExhaustedError) and has_gpu()


def device_count() -> Any:
    """The number of devices that this process divides each model among."""
    return 1


def check_room(variables: Any) -> None:
    """Raises a MemoryError where a model's variables (a list) need more memory than a virtual device stands for."""


def most_bytes() -> Any:
    """The most bytes of its GPU's memory that this process has held; None without a GPU."""
    return tf.config.experimental.get_memory_info("GPU:0")["peak"] if has_gpu() else None


def gpu_name() -> Any:
    """The name of this process's GPU; None without a GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else None


def loops(model: Any, name: str, lasting: bool) -> Any:
    """{name: kernel} of the kernels that train on many batches at once.

    `name`: equal for models with equal compiled code; `lasting`: in later trainers as well.
    """
    return {"loop": Loop(model, False, name, lasting), "xla": Loop(model, True, name, lasting)}


def refused(random: bool, convolutional: bool) -> Any:
    """{kernel: reason} for the kernels that are useless for a model; `random`: it draws random numbers in training."""
    return {"xla": "XLA draws other random numbers from a seed than TensorFlow does"} if random else {}


def tensors(data: Any) -> Any:
    """A nest of arrays as tensors."""
    return keras.tree.map_structure(tf.convert_to_tensor, data)


def for_any_rows(step: Any, data: Any, variables: Any, join: Any, name: str) -> Any:
    """A function of tensors like `data` (a sequence, possibly nested), compiled for any number of rows.

    `variables`: all variables that `step` reads or changes; `join(*parts)`: combines the results for parts of the rows,
    in order (TensorFlow does not need it); `name`: equal for equal code, in all trainers; None to keep no compiled
    code.
    """
    signature = keras.tree.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), list(data))
    made = tf.function(step, input_signature=signature, autograph=False)
    return traces.function(made.get_concrete_function, name, variables, True)


def shapes_only() -> Any:
    """A context that turns computations into parts of a graph, which is thrown away."""
    return tf.Graph().as_default()
