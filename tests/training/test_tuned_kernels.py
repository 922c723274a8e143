"""The kernels of one compiled model, without a server: which trains what, and what happens when one fails."""

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import dill
import numpy as np
import pytest

from mop_udf import state
from mop_udf.errors import first_line
from mop_udf.params import params
from support.workload import dense, random_rows


def compiled(optimizer="Adam(lr=0.01)", **functions):
    from mop_udf.training import model_cache

    loss = next(iter(functions), "categorical_crossentropy")
    text = f"loss='{loss}', optimizer='{optimizer}', metrics=['accuracy']"
    model = model_cache.ModelCache().get(
        dense(),
        params.parse_compile_params(text),
        {name: dill.dumps(function, recurse=True) for name, function in functions.items()},
    )
    model.start(7)
    return model


def iterations(model):
    return int(model.optimizer.iterations.value)


@pytest.mark.parametrize("count", [128, 203])
def test_xla_trains_the_full_batches_of_rows_in_memory(count):
    model = compiled()
    report = model.kernels.train([random_rows(count)], count, 8, 1, forced="xla")
    assert report["kernel"] == "xla" and report["rows"] == count
    assert iterations(model) == -(-count // 8)
    assert model.kernels.loops["xla"].compilations == 1


def test_xla_compiles_once_for_any_number_of_rows(monkeypatch):
    """It has them in pieces, the last of which it pads with rows that it does not train on."""
    from mop_udf.kernels import timed_loop

    data, results = random_rows(203), []
    for size in (timed_loop.PIECE_BYTES, 3000, 1):
        monkeypatch.setattr(timed_loop, "PIECE_BYTES", size)
        model = compiled()
        for rows in (203, 50, 203):
            model.kernels.train([tuple(c[:rows] for c in data)], rows, 8, 1, forced="xla")
        assert iterations(model) == 26 + 7 + 26 and model.kernels.loops["xla"].compilations == 1
        results.append([w.tobytes() for w in model.model.get_weights()])
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("most_bytes", [1 << 24, 8000, 0])
def test_a_segments_rows_are_cut_once_as_far_as_they_are_few(monkeypatch, most_bytes):
    """In several pieces for each batch size, and with class weights: none is taken for another."""
    from mop_udf import data
    from mop_udf.kernels import timed_loop
    from mop_udf.kernels.on_tensorflow.loop import Loop

    monkeypatch.setattr(timed_loop, "PIECE_BYTES", 1000)  # 32 rows
    monkeypatch.setattr(data.Columns, "MOST_BYTES", most_bytes)
    cut, cuts = Loop.cut, []
    monkeypatch.setattr(Loop, "cut", staticmethod(lambda tensor, *place: cuts.append(place) or cut(tensor, *place)))
    segment, results, often = data.Segment(random_rows(203)), [], []
    for columns in (segment.columns, tuple(segment.columns)):
        model = compiled()
        for _ in range(3):
            for size, weights in ((8, None), (16, None), (16, {0: 2.0}), (32, None)):
                model.kernels.train([columns], 203, size, 1, weights, forced="xla")
            often.append(len(cuts))
        results.append([w.tobytes() for w in model.model.get_weights()])
    assert results[0] == results[1]
    assert segment.columns.made_bytes <= most_bytes and bool(segment.columns.made) == bool(most_bytes)
    first, second, third, *others = np.diff([0, *often])
    if most_bytes == 1 << 24:
        # tensors without and with weights; pieces of 32 rows for batches of 8, 16 and 32; of 16 with weights
        assert second == third == 0 and len(segment.columns.made) == 2 + 7 + 12
    assert others[1] == others[2] >= 4 * 6 * 2, "rows that do not stay are cut each time"
    assert all(loop.kept is None for loop in model.kernels.loops.values()), "what a cache drops is gone"


def test_a_doubtful_kernel_that_cannot_be_had_is_not_waited_for():
    """It disappointed once; and with class weights it must be compiled anew, which fails."""
    model, rows = compiled(), random_rows(203)
    autotuner = model.kernels.autotuner(8, None)
    model.kernels.train([rows], 203, 8, 1)
    autotuner.compile_seconds["xla"] = 0.5
    autotuner.record_time("xla", autotuner.batch_seconds["loop"] + 0.0005)
    assert autotuner.next_kernel(1000, 1000) == "xla" and autotuner.needs_retiming("xla")
    report = model.kernels.train([rows], 203, 8, 1, {0: 2.0})
    assert (
        report["rows"] == 203 and model.kernels.loops["xla"].compilations == 0 and not autotuner.needs_retiming("xla")
    )
    autotuner.timings["xla"] = 1
    autotuner.busy.add("xla")
    assert autotuner.next_kernel(1000, 1000) == "loop"
    autotuner.busy.clear()
    autotuner.refused["xla"] = "no"
    assert autotuner.next_kernel(1000, 1000) == "loop"


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("watched", [False, True])
def test_what_is_reported_is_what_keras_would_report(outputs, watched):
    """Of every pass, also of the first, in which Keras makes what it reports from."""
    import keras

    from mop_udf.training import model_cache

    inputs = keras.Input((4,))
    heads = [keras.layers.Dense(3, activation="softmax", name=f"out{n}")(inputs) for n in range(outputs)]
    architecture = keras.Model(inputs, heads[0] if outputs == 1 else heads).to_json()
    text = "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']"
    model = model_cache.ModelCache().get(architecture, params.parse_compile_params(text), {}, watched=watched)
    model.start(7)
    x, y = random_rows(44)
    for _ in range(3):
        report = model.kernels.train([(x, *[y] * outputs)], 44, 8, 1, forced="loop")
        keras_says = {name: float(value) for name, value in model.model.get_metrics_result().items()}
        assert report["loss"] == keras_says["loss"] > 0
        assert {**report["metrics"], "loss": report["loss"]} == {
            name: value for name, value in keras_says.items() if name == "loss" or not name.endswith("_loss")
        }
        assert bool(report["metrics"]) == watched


def test_what_fails_while_it_runs_is_not_trained_again():
    model = compiled(stubborn=stubborn)
    with pytest.raises(Exception, match="not now"):
        model.kernels.train([random_rows(80)], 80, 8, 1, forced="loop")
    assert not model.kernels.refused and iterations(model) < 10


def stubborn(y_true, y_pred):
    import keras
    import numpy as np
    import tensorflow as tf

    def once(value):
        import builtins

        builtins.stubborn_calls = getattr(builtins, "stubborn_calls", 0) + 1
        if builtins.stubborn_calls == 6:
            raise ValueError("not now")
        return np.float32(value)

    loss = keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)
    return loss + 0 * tf.ensure_shape(tf.numpy_function(once, [tf.reduce_sum(loss)], tf.float32), ())


def fixed(y_true, y_pred):
    import keras

    rows = int(y_pred.shape[0])  # None where the number of rows is left open
    return keras.ops.sum(keras.ops.square(y_true - y_pred), axis=-1) / rows


def test_a_loss_that_the_loop_cannot_compile_trains_by_the_plain_kernel_whatever_came_before():
    model = compiled(fixed=fixed)
    for size in (8, 16, 8):
        assert model.kernels.train([random_rows(64)], 64, size, 1)["kernel"] == "plain"
    assert "loop" in model.kernels.refused
    assert model.kernels.train([random_rows(64)], 64, 8, 1, forced="xla")["kernel"] == "xla"


def test_the_plain_step_is_timed_on_full_batches():
    model = compiled()
    for _ in range(3):
        model.kernels.train([random_rows(1)], 1, 8, 1, forced="plain")
    autotuner = model.kernels.autotuner(8, "plain")
    assert not autotuner.batch_seconds and not autotuner.compile_seconds
    model.kernels.train([random_rows(97)], 97, 8, 1, forced="plain")
    assert autotuner.batch_seconds["plain"] < autotuner.compile_seconds["plain"]


def test_the_values_that_were_read_stay_when_the_variables_change():
    model = compiled().model
    before = state.values(model.weights)
    kept = [value.tobytes() for value in before]
    for variable in model.weights:
        variable.assign(variable + 1)
    assert [value.tobytes() for value in before] == kept
    assert [value.tobytes() for value in state.values(model.weights)] != kept


@pytest.mark.parametrize("kernel", ["loop", "plain"])
def test_an_error_says_what_is_wrong_first(kernel):
    import json

    from mop_udf.training import model_cache

    text = json.dumps(
        {
            "class_name": "Sequential",
            "config": {
                "name": "e",
                "layers": [
                    {"class_name": "InputLayer", "config": {"batch_shape": [None, 4], "name": "i", "dtype": "float32"}},
                    {"class_name": "Embedding", "config": {"name": "e", "input_dim": 5, "output_dim": 3}},
                    {"class_name": "Flatten", "config": {"name": "f"}},
                    {"class_name": "Dense", "config": {"name": "c", "units": 2, "activation": "softmax"}},
                ],
            },
        }
    )
    model = model_cache.ModelCache().get(
        text, params.parse_compile_params("loss='categorical_crossentropy', optimizer='SGD()'"), {}, 5
    )
    model.start(5)
    x, y = np.full((8, 4), 2, "f4"), np.eye(2, dtype="i2")[[0, 1] * 4]
    x[6] = 77
    with pytest.raises(Exception) as caught:
        model.kernels.train([(x, y)], 8, 4, 1, forced=kernel)
    assert first_line(caught.value) == "indices[2,0] = 77 is not in [0, 5)"


def in_turn(cache, count, rounds):
    """Ask for `count` models in turn, `rounds` times: how many were compiled anew in the last round."""
    parsed = params.parse_compile_params("loss='categorical_crossentropy', optimizer='SGD()'")
    for _ in range(rounds):
        before, made = list(cache.models.values()), []
        for number in range(count):
            model = cache.get(dense(width=10 + number), parsed, {})
            made += [model] if model not in before else []
    return len(made)


def test_compiled_models_are_kept_as_long_as_memory_holds_them():
    from mop_udf.training import model_cache

    cache = model_cache.ModelCache()
    assert in_turn(cache, 40, 2) == 0, "also more than 32"
    one = next(iter(cache.models.values())).nbytes
    cache = model_cache.ModelCache(one * 9)
    assert in_turn(cache, 12, 5) < 12, "those that are asked for in turn do not push one another out"
    assert sum(model.nbytes for model in cache.models.values()) <= cache.most_bytes and len(cache.models) >= 4
    used = set(cache.models)
    cache.most_bytes = 1
    parsed = params.parse_compile_params("loss='categorical_crossentropy', optimizer='Adam()'")
    model = cache.get(dense(), parsed, {})
    assert list(cache.models.values()) == [model] and not used & set(cache.models), "the one in use stays"


def test_what_is_compiled_counts():
    from mop_udf.training import model_cache

    small, large = (
        compiled(),
        model_cache.ModelCache().get(
            dense(width=100_000), params.parse_compile_params("loss='categorical_crossentropy', optimizer='Adam()'"), {}
        ),
    )
    # 4 * 100,000 + 100,000 + 3 * 100,000 + 3 numbers, twice again for Adam, all of that twice
    assert large.nbytes >= 2 * 3 * 4 * 800_003 and small.nbytes < 10_000
    small.kernels.train([random_rows(64)], 64, 8, 1, forced="loop")
    once = small.nbytes
    assert once > 1_000_000
    small.kernels.train([random_rows(64)], 64, 8, 1, forced="xla")
    assert small.nbytes > 3 * once


def test_a_model_starts_from_its_seed_whatever_was_done_with_it():
    from mop_udf.training import evaluation, model_cache

    text = "loss='categorical_crossentropy', optimizer='Adam()'"
    cache, parsed = model_cache.ModelCache(), params.parse_compile_params(text)
    first = cache.get(dense(), parsed, {}, 7)
    first.start(7)
    begins = [bytes(part) for part in first.save()]
    other = model_cache.ModelCache().get(dense(), parsed, {}, 7)
    weights = [np.ones(w.shape, "f4") for w in other.model.weights]
    evaluation.Evaluation(other, weights, 1).add(random_rows(8))
    other.start(7)
    assert [bytes(part) for part in other.save()] == begins
    first.kernels.train([random_rows(64)], 64, 8, 1)
    first.start(7)
    assert [bytes(part) for part in first.save()] == begins


def test_an_order_of_kernels_is_followed_batch_by_batch():
    """As a log tells it, whatever the passes and the chunks are; the short last batch included."""
    from mop_udf.kernels.kernel_order import LOGGED, KernelOrder

    def weights(model):
        return [w.tobytes() for w in (*model.model.get_weights(), *map(np.asarray, model.optimizer.variables))]

    rows, logged = random_rows(203), [["loop", 3], ["plain", 9], ["xla", 25], ["plain", 15]]
    piecewise = compiled()
    at = 0
    for kernel, count in logged:  # (26 batches in a pass: the second one begins within "xla")
        for number in range(at, at + count):
            batch = tuple(column[number % 26 * 8 : number % 26 * 8 + 8] for column in rows)
            piecewise.kernels.train([batch], len(batch[0]), 8, 1, forced=kernel)
        at += count
    for chunks in ([rows], [tuple(c[:96] for c in rows), tuple(c[96:] for c in rows)]):
        model, order = compiled(), KernelOrder(logged)
        for _ in range(2):
            report = model.kernels.train(chunks, 203, 8, 1, forced=LOGGED, streams=len(chunks) > 1, order=order)
        assert order.mixed() == logged and report["kernel"] == "plain"
        assert weights(model) == weights(piecewise)


def test_a_kernel_of_a_log_that_cannot_train_here_is_replaced():
    from mop_udf.kernels.kernel_order import LOGGED, KernelOrder

    model, order = compiled(), KernelOrder([["other", 10], ["plain", 16]])
    model.kernels.train([random_rows(203)], 203, 8, 1, forced=LOGGED, order=order)
    assert iterations(model) == 26 and order.mixed() == [["loop", 10], ["plain", 16]]
