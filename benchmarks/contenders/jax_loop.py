"""JAX, a plain loop: a jitted training step, called for one batch after the other, as JAX's users write it."""

import functools

import jax
import jax.numpy as jnp

from contenders.common import EVALUATED
from contenders.jax_scan import ACTIVATIONS, fresh, update


class Loop:
    """Trains configurations of a workload on rows that are on the device: `train(key)`."""

    def __init__(self, workload, x, y):
        """Rows `x` with one-hot `y`, arrays of NumPy."""
        self.workload, self.rows = workload, (x, y)
        self.steps, self.batches, self.losses = {}, {}, {}  # configurations share these

    def train(self, key, most=None):
        """One configuration: its final loss and the number of its updates. `most`: see torch_loop.train."""
        c = self.workload.configurations[key]
        net = self.workload.nets[c.architecture]
        loss = self.losses.setdefault(c.architecture, jax.jit(functools.partial(loss_of, net)))
        form = c.architecture, c.optimizer, c.momentum
        if form not in self.steps:
            self.steps[form] = jax.jit(functools.partial(update, loss, c.optimizer, c.momentum))
        step, rate, updates = self.steps[form], jnp.float32(c.learning_rate), 0
        state = fresh(self.workload.architecture(c.architecture)[1])
        for _ in range(self.workload.iterations):
            for x, y in self._cut(c.batch_size):
                state = step(rate, state, x, y)
                updates += 1
                if updates == most:
                    jax.block_until_ready(state)
                    return None, updates
        total = sum(float(loss(state[0], x, y)) * len(x) for x, y in self._cut(EVALUATED))
        return total / len(self.rows[0]), updates

    def warm(self, key):
        """Compile the step, for full batches and for the short batch, and the loss."""
        c = self.workload.configurations[key]
        self.train(key, most=len(self._cut(c.batch_size)))
        for x, y in self._cut(EVALUATED)[-2:]:
            self.losses[c.architecture](self.workload.architecture(c.architecture)[1], x, y).block_until_ready()

    def _cut(self, size):
        """The batches of a size, on the device."""
        if size not in self.batches:
            starts = range(0, len(self.rows[0]), size)
            self.batches[size] = [tuple(jax.device_put(part[at : at + size]) for part in self.rows) for at in starts]
        return self.batches[size]


def loss_of(net, weights, x, y):
    """The mean cross-entropy of a workload's net, with weights in the order of Keras. Shapes as in Keras: NHWC."""
    rest = iter(weights)
    for kind, *arguments in net:
        if kind == "dense":
            x = x @ next(rest) + next(rest)
            activation = arguments[1]
            x = jax.nn.log_softmax(x) if activation == "softmax" else ACTIVATIONS[activation](x)
        elif kind == "convolution":
            x = jax.lax.conv_general_dilated(x, next(rest), (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x + next(rest))
        elif kind == "pool":
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        else:
            x = x.reshape(len(x), -1)
    return -(x * y).sum(axis=-1).mean()
