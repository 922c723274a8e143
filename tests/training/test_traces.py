"""What TensorFlow has traced is read by later trainers, and does what it did; without a server."""

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import collections
import gc
import itertools
import re
import sys

import dill
import numpy as np
import pytest

from mop_udf.pool import compile_cache
from mop_udf.pool.compile_cache import CompileCache
from support.workload import dense, random_rows

NUMBERS = itertools.count()
net = None  # the architecture of a test


@pytest.fixture
def traced(tmp_path, monkeypatch):
    """A cache of this process's own, and what is traced beside it: {"functions": how many}."""
    from mop_udf.kernels.on_tensorflow import traces

    monkeypatch.setattr(compile_cache, "current", lambda: CompileCache(tmp_path, 1 << 24))
    counted, function = collections.Counter(), traces.function
    monkeypatch.setattr(sys.modules[__name__], "net", dense(name=f"net{next(NUMBERS)}"))  # whose names are new here

    def counting(trace, *more, **named):
        def counts(*arguments):
            counted["functions"] += 1
            return trace(*arguments)

        return function(counts, *more, **named)

    monkeypatch.setattr(traces, "function", counting)
    return counted


def model_of(optimizer="Adam(lr=0.01)", loss="categorical_crossentropy", functions=None):
    from mop_udf.training import model_cache, models

    text = f"loss='{loss}', optimizer=\"{optimizer}\", metrics=['accuracy']"
    compile_params, _ = models.parse(text, "batch_size=8, epochs=1", 1)
    made = model_cache.ModelCache().get(
        net, compile_params, {name: dill.dumps(function, recurse=True) for name, function in (functions or {}).items()}
    )
    made.set_scalars(compile_params)
    made.start(7)
    return made


def trained(kernel, **more):
    """The weights and losses of a model that a new trainer trains and evaluates."""
    from mop_udf.training import evaluation

    model, rows = model_of(**more), random_rows(203)
    report = model.kernels.train([rows], 203, 8, 1, forced=kernel)
    assert report["kernel"] == kernel
    evaluation = evaluation.Evaluation(model, model.weights_of(b"".join(model.save()), False), 1)
    evaluation.add(rows)
    return [w.tobytes() for w in model.model.get_weights()], report["loss"], evaluation.report()["sums"]


OPTIMIZERS = [
    "Adam(lr=0.01)",
    "SGD(lr=0.1, momentum=0.9)",
    "SGD(lr=0.01, decay=0.1)",
    "Adam(lr=Exponential(0.1, gamma=0.9, per='batch'), beta_1=0.8)",
    "RMSprop(lr=0.01, centered=True)",
    "SGD(lr=0.1, momentum=Exponential(0.9, gamma=0.99, per='batch'))",
]


@pytest.mark.parametrize("kernel", ["loop", "xla"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_another_trainer_has_traced_does_the_same(traced, kernel, optimizer):
    first = trained(kernel, optimizer=optimizer)
    times = traced["functions"]
    assert times >= 2, "the loop, and the evaluation"
    assert trained(kernel, optimizer=optimizer) == first and traced["functions"] == times


def test_after_a_short_batch_functions_are_made_fast_again(traced):
    from tensorflow.python.eager import context

    from mop_udf.kernels.on_tensorflow import traces

    before = context.context().function_call_options
    with pytest.raises(ZeroDivisionError), traces.unoptimized():
        assert context.context().function_call_options is not before
        raise ZeroDivisionError
    assert context.context().function_call_options is before
    trained("xla")
    assert context.context().function_call_options is before


def test_numbers_that_may_change_are_read_anew(traced):
    """A rate of another configuration, whose function is the same one."""
    slow = trained("xla", optimizer="SGD(lr=0.001, momentum=0.9, nesterov=True)")
    times = traced["functions"]
    fast = trained("xla", optimizer="SGD(lr=0.1, momentum=0.5, nesterov=True)")
    assert traced["functions"] == times
    traced.clear()
    for path in os.scandir(compile_cache.current().path):
        os.unlink(path)
    again = trained("xla", optimizer="SGD(lr=0.1, momentum=0.5, nesterov=True)")
    assert again == fast != slow and traced["functions"] >= times


@pytest.mark.parametrize("what", ["other variables", "nonsense", "no function", "no protocol buffer"])
def test_what_cannot_be_used_is_traced(traced, what):
    first, cache = trained("loop"), compile_cache.current()
    times = traced["functions"]
    for path in os.scandir(cache.path):
        with open(path, "rb") as file:
            data = file.read()[32:]
        data = {
            "other variables": re.sub(b'"variables": "[0-9a-f]{4}', b'"variables": "zzzz', data),
            "nonsense": b"nonsense",
            "no protocol buffer": data.split(b"\n", 1)[0] + b"\n\xff\xfe",
            "no function": data.split(b"\n", 1)[0] + b"\n",
        }[what]
        cache.write("", data)
        os.replace(cache._trace(""), path)
    assert trained("loop") == first and traced["functions"] > times


def test_nothing_is_kept_of_custom_functions(traced):
    def own(true, predicted):
        import keras

        return keras.ops.mean(keras.ops.square(true - predicted), axis=-1)

    trained("loop", loss="own", functions={"own": own})
    assert not [*os.scandir(compile_cache.current().path)]


def test_nothing_is_kept_that_this_process_alone_can_do(traced):
    import tensorflow as tf

    from mop_udf.kernels.on_tensorflow import traces

    known, unknown = tf.Variable(1.0), tf.Variable(2.0)
    x = tf.constant(3.0)
    for number, (step, kept) in enumerate(
        (
            (lambda x: x * known, True),
            (lambda x: x * known * unknown, False),
            (lambda x: known * tf.numpy_function(lambda x: x, [x], tf.float32), False),
        )
    ):
        made = tf.function(step, autograph=False)
        function = traces.function(lambda made=made: made.get_concrete_function(x), str(number), [known], True)
        assert function(x).numpy() == step(x).numpy()
        assert (compile_cache.current().read(str(number)) is not None) == kept


def test_two_functions_traced_as_the_first_of_their_trainers_are_both_read(traced):
    """Left to itself TensorFlow would give both the same name."""
    import tensorflow as tf
    from tensorflow.python.framework import ops

    from mop_udf.kernels.on_tensorflow import traces

    x, before = tf.constant(3.0), ops.uid
    for _ in range(2):
        for factor in (2.0, 5.0):
            ops.uid = itertools.count(10**9).__next__
            try:
                made = tf.function(lambda x, factor=factor: x * factor, autograph=False)
                function = traces.function(lambda made=made: made.get_concrete_function(x), str(factor), [], True)
                assert function(x).numpy() == 3 * factor
            finally:
                ops.uid = before
    assert traced["functions"] == 2


def test_operations_that_xla_takes_quickly_come_to_the_same():
    """Each kind, with rows and features of several ranks, in a function and in a loop within it."""
    import tensorflow as tf

    from mop_udf.kernels.on_tensorflow import traces

    weights, bias = tf.Variable(np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4)), tf.Variable(np.zeros(4, "f4"))

    def step(x):
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.nn.bias_add(tf.tensordot(x, weights, 1), bias))
            with tf.name_scope("optimizer"):
                loss = tf.reduce_sum(tf.sqrt(tf.square(y) + 0.5))
            with tf.name_scope("own"):
                loss += tf.sqrt(loss)
        slopes = tape.gradient(loss, [weights, bias])
        weights.assign_sub(0.1 * slopes[0])
        bias.assign_sub(0.1 * slopes[1])
        return loss

    def loop(x):
        return tf.while_loop(lambda i, loss: i < 3, lambda i, loss: (i + 1, loss + step(x)), [0, 0.0])[1]

    for body in (step, loop):
        for shape in ((5, 3), (2, 5, 3)):
            x = tf.constant(np.random.default_rng(0).normal(size=shape).astype("f4"))
            before = weights.numpy(), bias.numpy()
            results = []
            for by_xla in (None, "optimizer"):
                weights.assign(before[0]), bias.assign(before[1])
                made = tf.function(body, autograph=False, jit_compile=bool(by_xla))
                function = traces.function(
                    lambda x=x, made=made: made.get_concrete_function(x), None, [], False, by_xla
                )
                assert isinstance(function, traces.Function)
                results.append([function(x).numpy(), weights.numpy(), bias.numpy()])
                nodes = [
                    node
                    for definition in traces._definitions(made.get_concrete_function(x), by_xla)
                    for node in definition.node_def
                ]
                heavy = {"Sqrt", "Relu", "ReluGrad", "BiasAddGrad"}
                assert heavy & {n.op for n in nodes if not n.name.endswith("own/Sqrt")} == (set() if by_xla else heavy)
                assert any(n.op == "Sqrt" for n in nodes), "a net's own root stays"
            for one, other in zip(*results):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", ["plain", "loop", "xla"])
def test_nothing_stays_of_what_has_been_traced(traced, kernel):
    """TensorFlow's graphs take some megabytes each, and a search may have hundreds of nets."""
    from tensorflow.python.framework.func_graph import FuncGraph

    def graphs():
        gc.collect()
        return sum(isinstance(found, FuncGraph) for found in gc.get_objects())

    trained(kernel)
    before = graphs()
    for path in os.scandir(compile_cache.current().path):
        os.unlink(path)
    trained(kernel)
    assert traced["functions"] >= 2 and graphs() <= before
