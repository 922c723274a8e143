"""Eight equal small dense nets on JAX: one by one, as a vmap batch, and as one net whose kernels are block-diagonal.

    .local/venv/bin/python benchmarks/block_diagonal.py

This decided that pg_mop has no block-diagonal operators: they compute N x N blocks to use N of them. They are faster than
vmap for one hidden layer alone. The three ways take turns; the table has medians of the quotients of each turn.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

ROWS, INPUTS, CLASSES, BATCH, NETS, TURNS = 1408, 64, 10, 32, 8, 15
RATE = 0.001


def new_net(widths, key):
    """[(kernel, bias), ...] of a dense net with hidden layers of these widths."""
    units, net = [INPUTS, *widths, CLASSES], []
    for before, after in zip(units, units[1:]):
        key, own = jax.random.split(key)
        net.append((jax.random.normal(own, (before, after)) * np.sqrt(2 / before), jnp.zeros(after)))
    return net


def outputs(net, x):
    """The logits of a net, or of nets in one."""
    for kernel, bias in net[:-1]:
        x = jax.nn.relu(x @ kernel + bias)
    kernel, bias = net[-1]
    return x @ kernel + bias


def loss(net, x, y):
    """The mean cross-entropy of a net."""
    return -jnp.mean(jnp.sum(y * jax.nn.log_softmax(outputs(net, x)), -1))


def in_blocks(nets):
    """One net for several: the first kernels side by side, the later ones on the diagonal of one matrix."""
    found = []
    for layer in range(len(nets[0])):
        kernels = [net[layer][0] for net in nets]
        kernel = jax.scipy.linalg.block_diag(*kernels) if layer else jnp.concatenate(kernels, 1)
        found.append((kernel, jnp.concatenate([net[layer][1] for net in nets])))
    return found


def loss_in_blocks(masks, net, x, y):
    """The sum of the nets' losses. `masks`: of each kernel, 1 in the blocks and else 0."""
    net = [(kernel * mask, bias) for (kernel, bias), mask in zip(net, masks)]
    logits = outputs(net, x).reshape(len(x), NETS, CLASSES)
    return -jnp.sum(jnp.mean(jnp.sum(y[:, None] * jax.nn.log_softmax(logits), -1), 0))


def training(loss):
    """A function that trains one pass by Adam in a compiled loop over the batches."""

    def train(net, x, y):
        zeros = jax.tree.map(jnp.zeros_like, net)

        def step(carried, batch):
            net, means, squares, count = carried
            gradients = jax.grad(loss)(net, *batch)
            means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
            squares = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, squares, gradients)
            net = jax.tree.map(
                lambda w, m, s: w - RATE * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-7),
                net,
                means,
                squares,
            )
            return (net, means, squares, count + 1), None

        (net, *_), _ = jax.lax.scan(step, (net, zeros, zeros, 1.0), (x, y))
        return net

    return train


def measure(widths, x, y):
    """Measure nets with hidden layers of these widths: (seconds one by one, quotient by vmap, quotient in blocks)."""
    nets = [new_net(widths, jax.random.key(number)) for number in range(NETS)]
    units = [INPUTS, *widths, CLASSES]
    masks = [jnp.ones((INPUTS, NETS * units[1]))]
    masks += [jnp.kron(jnp.eye(NETS), jnp.ones(pair)) for pair in zip(units[1:], units[2:])]
    stacked, blocks = jax.tree.map(lambda *own: jnp.stack(own), *nets), in_blocks(nets)
    single = jax.jit(training(loss))
    batched = jax.jit(jax.vmap(training(loss), in_axes=(0, None, None)))
    diagonal = jax.jit(training(lambda net, x, y: loss_in_blocks(masks, net, x, y)))
    ways = (lambda: [single(net, x, y) for net in nets], lambda: batched(stacked, x, y), lambda: diagonal(blocks, x, y))
    alone, together, one = (way() for way in ways)  # (compiled here)
    for number, net in enumerate(alone):
        own = slice(number * widths[0], (number + 1) * widths[0])
        assert np.allclose(net[0][0], together[0][0][number], atol=1e-4)
        assert np.allclose(net[0][0], one[0][0][:, own], atol=1e-4)
    seconds = []
    for turn in range(TURNS):
        taken = [0.0, 0.0, 0.0]
        for at in (0, 1, 2) if turn % 2 else (2, 1, 0):
            began = time.perf_counter()
            jax.block_until_ready(ways[at]())
            taken[at] = time.perf_counter() - began
        seconds.append(taken)
    median = statistics.median
    return median(taken[0] for taken in seconds), *(median(own[at] / own[0] for own in seconds) for at in (1, 2))


def main():
    """Measure some nets, and print the quotients."""
    random = np.random.default_rng(0)
    x = jnp.asarray(random.random((ROWS // BATCH, BATCH, INPUTS), "f4"))
    y = jnp.asarray(np.eye(CLASSES, dtype="f4")[random.integers(0, CLASSES, (ROWS // BATCH, BATCH))])
    print(f"{NETS} nets, {ROWS} rows, batch {BATCH}: ms one by one, quotient by vmap, quotient in blocks")
    for widths in ((8,), (16,), (32, 32), (128, 128)):
        seconds, by_vmap, by_blocks = measure(widths, x, y)
        print(f"hidden {str(widths):12} {1000 * seconds:8.1f} {by_vmap:6.2f} {by_blocks:6.2f}", flush=True)


if __name__ == "__main__":
    main()
