"""Frozen prefixes with every kind of model, optimizer and dtype: tests/training/test_prefixes.py has some of each."""

import itertools
import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import numpy as np
import pytest

from support.frozen import (
    CUT,
    OPTIMIZERS,
    assert_equal,
    assert_the_head_trains_as_the_whole,
    base,
    columns,
    compiled,
    dense,
    head,
    model,
    parts,
    trained,
    transfer,
)


def test_prefixes_of_equal_digests_compute_the_same():
    """Whatever the order in which their graphs and their layers are told."""

    def minus(x, k, swapped, within):
        a, b = dense(4, k), dense(4, k)
        first, second = (b, a) if within else (a, b)
        first, second = first(x), second(x)
        return k.Subtract()([second, first] if swapped else [first, second])

    found, x = [], columns(model(lambda x, k: head(x, k), (6,)))[0]
    for swapped, within, order in itertools.product([False, True], repeat=3):
        for nested in (False, True):

            def call(x, k, swapped=swapped, within=within, nested=nested):
                if not nested:
                    return head(minus(x, k, swapped, within), k)
                inner = model(lambda x, k: minus(x, k, swapped, within), (6,))
                inner.trainable = False
                return head(inner(x), k)

            split = parts(model(call, (6,)))
            values = [np.full((6, 4), 1, "f4"), np.zeros(4, "f4"), np.full((6, 4), 2, "f4"), np.ones(4, "f4")]
            for variable, value in zip(split.prefix.weights, values[2:] + values[:2] if order else values):
                variable.assign(value)
            found.append((nested, split.digest(), np.asarray(split.prefix(x)).tobytes()))
    for nested in (False, True):
        pairs = {(digest, output) for of, digest, output in found if of == nested}
        assert len({digest for digest, _ in pairs}) == len({output for _, output in pairs}) == len(pairs) == 2


@pytest.mark.parametrize(
    "kernel,optimizer",
    [*(("loop", optimizer) for optimizer in OPTIMIZERS), ("plain", OPTIMIZERS[1]), ("xla", OPTIMIZERS[2])],
)
def test_the_head_trains_as_the_whole_does(kernel, optimizer):
    # (XLA puts other operations together)
    of_optimizer = 1e-5 if kernel == "xla" else 1e-6
    assert_the_head_trains_as_the_whole(model(transfer), kernel, optimizer, of_optimizer=of_optimizer)


@pytest.mark.parametrize("name", list(CUT)[1:])
def test_every_kind_of_model_trains_as_the_whole_does(name):
    call, shape, _ = CUT[name]
    assert_the_head_trains_as_the_whole(model(call, shape))


def test_dropout_after_the_cut_draws_what_it_draws_in_the_whole():
    original = model(lambda x, k: head(k.Dropout(0.5)(k.Flatten()(base(k)(x))), k))
    rows = columns(original)
    for kernel in ("plain", "loop"):
        whole, shared = (trained(compiled(original), rows, kernel, shared) for shared in (False, True))
        assert_equal(whole, shared)
    made = compiled(original)
    assert "xla" in made.cut.kernels.refused


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16", "float64"])
def test_other_dtypes_train_as_in_the_whole(policy):
    def call(x, k):
        found = k.Conv2D(4, 3, trainable=False, dtype=policy)(x)
        return k.Dense(3, "softmax")(k.Dense(5, dtype=policy)(k.Flatten(dtype=policy)(found)))

    original = model(call)
    rows = columns(original)
    made = compiled(original, "SGD(lr=0.001)")
    assert made.cut.split.row_bytes == 6 * 6 * 4 * {"mixed_bfloat16": 2, "float16": 2, "float64": 8}[policy]
    for kernel in ("plain", "loop"):
        assert_equal(
            *(trained(compiled(original, "SGD(lr=0.001)"), rows, kernel, shared) for shared in (False, True)),
            rel=1e-6 if policy == "float64" else 1e-2,
        )
