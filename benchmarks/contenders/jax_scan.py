"""Dense nets in JAX: one compiled loop over the batches of a pass, with nothing else in it."""

import functools

import jax
import jax.numpy as jnp

from contenders.common import ADAM_EPSILON

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "linear": lambda x: x}
DECAY, SQUARES_DECAY = 0.9, 0.999  # of Adam's moments, the defaults of Keras


def trains(workload):
    """True for workloads of dense nets that end in a softmax."""
    return not workload.frozen and all(
        {kind for kind, *_ in net} == {"dense"}
        and {activation for _, _, activation in net[:-1]} <= ACTIVATIONS.keys()
        and net[-1][2] == "softmax"
        for net in workload.nets
    )


class Scan:
    """Trains configurations that differ in their learning rates alone: `configuration` is one of them."""

    name = "JAX scan"

    def __init__(self, workload, configuration, x, y):
        """Rows `x` with one-hot `y`."""
        net = workload.nets[configuration.architecture]
        self.data, self.size = (jnp.asarray(x), jnp.asarray(y)), configuration.batch_size
        self.full, self.short = divmod(len(x), self.size)
        loss = functools.partial(_loss, tuple(activation for _, _, activation in net))
        self.step = functools.partial(update, loss, configuration.optimizer, configuration.momentum)
        self.loop, self.last = jax.jit(self._loop), jax.jit(self.step)

    def begin(self, weights, rate):
        """Start from weights in the order of Keras, with a learning rate."""
        self.rate, self.state = jnp.float32(rate), fresh(weights)

    def train(self, most=None):
        """Train one pass over the rows, or its first `most` batches."""
        count = self.full if most is None else min(most, self.full)
        self.state = self.loop(self.rate, self.state, *self.data, count)
        if self.short and most is None:
            self.state = self.last(self.rate, self.state, *(part[self.full * self.size :] for part in self.data))
        jax.block_until_ready(self.state)

    def weights(self):
        """The trained weights, in the order of Keras."""
        return self.state[0]

    def updates(self):
        """The optimizer steps since `begin`."""
        return int(self.state[3])

    def _loop(self, rate, state, x, y, count):
        def body(number, state):
            cut = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=number * self.size, slice_size=self.size)
            return self.step(rate, state, cut(x), cut(y))

        return jax.lax.fori_loop(0, count, body, state)


def _loss(activations, weights, x, y):
    for activation, kernel, bias in zip(activations, weights[::2], weights[1::2]):
        x = x @ kernel + bias
        x = jax.nn.log_softmax(x) if activation == "softmax" else ACTIVATIONS[activation](x)
    return -(x * y).sum(axis=-1).mean()


def fresh(weights):
    """The state of a training before its first update: (weights, two lists of moments, updates so far)."""
    weights = [jnp.asarray(w) for w in weights]
    return weights, [jnp.zeros_like(w) for w in weights], [jnp.zeros_like(w) for w in weights], jnp.float32(0)


def update(loss, optimizer, momentum, rate, state, x, y):
    """The state after one update, with the formulas of Keras' optimizers. `loss`: a function of weights, x and y."""
    weights, first, second, updates = state
    gradients = jax.grad(loss)(weights, x, y)
    updates = updates + 1
    if optimizer == "SGD":
        first = [momentum * m - rate * g for m, g in zip(first, gradients)]
        return [w + m for w, m in zip(weights, first)], first, second, updates
    first = [m + (g - m) * (1 - DECAY) for m, g in zip(first, gradients)]
    second = [v + (g * g - v) * (1 - SQUARES_DECAY) for v, g in zip(second, gradients)]
    alpha = rate * jnp.sqrt(1 - SQUARES_DECAY**updates) / (1 - DECAY**updates)
    return (
        [w - alpha * m / (jnp.sqrt(v) + ADAM_EPSILON) for w, m, v in zip(weights, first, second)],
        first,
        second,
        updates,
    )
