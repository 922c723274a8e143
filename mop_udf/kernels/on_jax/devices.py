"""Training on several devices at once, with synchronous gradients: data parallelism.

Variables are on every device, and each device has a part of a mini-batch's rows. XLA adds the parts' gradients up before the
optimizer's step, so an update is that of the whole mini-batch, up to the order of additions (Keras' DataParallel divides
batches in this way). A mini-batch whose rows the devices do not divide evenly is computed on each device as a whole.
"""

import functools

import jax
import keras
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@functools.lru_cache(1)
def _mesh():
    """The devices of this process as a mesh; None for a single one."""
    devices = jax.local_devices()
    return Mesh(devices, ("rows",)) if len(devices) > 1 else None


def count() -> int:
    """The number of devices that a mini-batch is divided among."""
    mesh = _mesh()
    return 1 if mesh is None else mesh.size


def divided(data):
    """A nest of arrays with equal first dimension, within a compiled function: its rows are divided among the devices."""
    mesh = _mesh()
    if mesh is None or any(array.shape[0] % mesh.size for array in keras.tree.flatten(data)):
        return data
    rows = NamedSharding(mesh, PartitionSpec("rows"))
    return keras.tree.map_structure(lambda array: jax.lax.with_sharding_constraint(array, rows), data)


def whole(values):
    """A nest of arrays, within a compiled function, as every device has them."""
    mesh = _mesh()
    return values if mesh is None else jax.lax.with_sharding_constraint(values, NamedSharding(mesh, PartitionSpec()))
