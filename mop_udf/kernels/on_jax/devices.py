"""Models that are divided among several devices, because they do not fit one.

Each device has a part of the variables (kernels/layout.py). Keras' ModelParallel places each variable as it is made or
assigned, and a compiled step leaves the variables where they were. XLA divides the computation accordingly. An update is that
of one device, up to the order of additions.

`DividedNets` (`schedule/divided_nets.py`, pure) says how many devices a net has, by the estimate
(`TrainerMemory.needed_on_each_of`), by a replay's log, or by a unit that has run out of memory; `Places` (`call/devices.py`)
knows the devices of a server. A command of a divided net takes its devices whole: `DeviceParts` has a part for each, and a
command waits for all of its devices or reserves none. The number is an option of the trainer (`divided_by`), whose
environment names its GPUs, or virtual devices. In the trainer, `mop_udf/kernels/on_jax/devices.py` sets Keras'
`ModelParallel` with the layout of `mop_udf/kernels/layout.py`. A compiled step puts the new variables where the old ones
were. The planner knows the shapes of kernels from `plan/arithmetic.py`, and takes the same rule.
"""

import functools
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mop_udf.kernels.layout import divided_dimension
from mop_udf.pool import child_process

ROWS, MODEL = "rows", "model"  # the axes of the meshes


class DeviceMemoryError(MemoryError):
    """A model needs more memory than the devices of a processor that it is trained on stand for."""


class DividedModel(keras.distribution.ModelParallel):
    """Keras' ModelParallel with the layouts of kernels/layout.py, which depend on a variable's shape and not on its name."""

    def get_variable_layout(self, variable: Any) -> Any:
        """The layout of a variable that Keras makes."""
        return keras.distribution.TensorLayout(_axes(variable.shape), self.device_mesh)


def begin() -> None:
    """Let Keras divide all models that this process makes among its devices, if it was started for that."""
    if _mesh() is None:
        return
    names = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((1, len(names)), [ROWS, MODEL], devices=names)
    layouts = keras.distribution.LayoutMap(mesh)
    keras.distribution.set_distribution(DividedModel(layout_map=layouts, batch_dim_name=ROWS))


@functools.lru_cache(1)
def _mesh() -> Any:
    """The devices of this process as a mesh, equal to Keras' own; None where it divides no model."""
    devices = jax.local_devices() if child_process.divided_by() > 1 else []
    return Mesh(np.array(devices).reshape(1, -1), (ROWS, MODEL)) if len(devices) > 1 else None


def count() -> int:
    """The number of devices that a model is divided among."""
    mesh = _mesh()
    return 1 if mesh is None else mesh.size


def placed(values: Any) -> Any:
    """A nest of variables' values, within a compiled function, where the variables are: of a divided model, in parts."""
    mesh = _mesh()
    if mesh is None:
        return values
    return jax.tree.map(
        lambda value: jax.lax.with_sharding_constraint(value, NamedSharding(mesh, PartitionSpec(*_axes(value.shape)))),
        values,
    )


def _axes(shape: Any) -> Any:
    """For each dimension of a variable, the axis of the mesh that divides it, or None."""
    divides = divided_dimension(shape, count())
    return [MODEL if axis == divides else None for axis in range(len(shape))]


def check_room(variables: Any) -> None:
    """Raises DeviceMemoryError where the parts of a model's variables on one device of a processor, old and new ones, are more
    than the device stands for (`device_limit`). Such devices share main memory, and never run out by themselves."""
    limit = child_process.device_limit()
    if limit is None:
        return
    values = [v.value for v in variables]
    held = 2 * sum(value.addressable_shards[0].data.nbytes for value in values if isinstance(value, jax.Array))
    if held > limit << 20:
        where = f"each of {count()} devices" if count() > 1 else "one device"
        raise DeviceMemoryError(
            f"the model's variables need {held >> 20} MB of {where}, more than pg_mop.device_memory_mb ({limit} MB)"
        )
