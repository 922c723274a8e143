"""Tests of every kernel of TensorFlow (mop_udf/kernels): it gives the results of Keras for each optimizer and schedule."""

import json

import numpy as np
import pytest

from mop_udf import state
from mop_udf.params import parameter_resolver, params
from pg_mop.backend.settings import KERNELS, ONLY
from support.conformance.base import Conformance
from support.workload import dense, random_rows

ROWS, BATCH, PASSES = 24, 8, 3
# two configurations each, which differ in every scalar
PAIRS = {
    "SGD": ("learning_rate=0.1, momentum=0.5, weight_decay=0.01", "learning_rate=0.05, momentum=0.9, weight_decay=0.3"),
    "SGD, nesterov": ("momentum=0.5, nesterov=True", "momentum=0.9, nesterov=True"),
    "SGD, decaying": ("lr=0.1, decay=0.5", "lr=0.2, decay=0.1"),
    "RMSprop": ("rho=0.8, momentum=0.2, epsilon=0.01", "rho=0.95, momentum=0.4, epsilon=0.1"),
    "RMSprop, centered": ("rho=0.8, centered=True", "rho=0.95, centered=True"),
    "Adam": ("lr=0.1, beta_1=0.8, beta_2=0.99, epsilon=0.01", "lr=0.02, beta_1=0.95, beta_2=0.9, epsilon=1e-5"),
    "Adam, amsgrad": ("beta_1=0.8, amsgrad=True", "beta_1=0.95, amsgrad=True"),
    "AdamW": ("weight_decay=0.5, beta_2=0.99", "weight_decay=0.01, beta_2=0.9"),
    "Adadelta": ("lr=1.0, rho=0.8, epsilon=0.01", "lr=0.5, rho=0.99, epsilon=0.001"),
    "Adagrad": ("lr=0.1, epsilon=0.1", "lr=0.5, epsilon=0.001"),
    "Adamax": ("beta_1=0.8, beta_2=0.99, epsilon=0.01", "beta_1=0.95, beta_2=0.9, epsilon=0.1"),
    "Adafactor": ("lr=0.1, weight_decay=0.1", "lr=0.01, weight_decay=0.5"),
    "Nadam": ("beta_1=0.8, beta_2=0.99, epsilon=0.01", "beta_1=0.95, beta_2=0.9, epsilon=0.1"),
    "Ftrl": ("lr=0.1", "lr=0.5"),
    "Lion": ("beta_1=0.8, beta_2=0.9", "beta_1=0.95, beta_2=0.99"),
    "Lamb": ("beta_1=0.8, beta_2=0.9, epsilon=0.01", "beta_1=0.95, beta_2=0.99, epsilon=0.1"),
    "Muon": ("lr=0.1, momentum=0.8", "lr=0.01, momentum=0.95"),
}
# two texts of one structure, and the rate of the batches 0, 1, 2, ...
SEQUENCES = {
    "warm-up": (
        'Warmup(0, 4, Cosine(0.4, 3), per="batch")',
        'Warmup(0.1, 2, Cosine(0.3, 5), per="batch")',
        lambda t: 0.1 * t if t < 4 else 0.2 * (1 + np.cos(np.pi * ((t - 4) % 3) / 3)),
    ),
    "exponential": ('Exponential(0.5, 0.8, per="batch")', 'Exponential(0.1, 0.5, per="batch")', lambda t: 0.5 * 0.8**t),
    "steps": (
        'MultiStep(0.5, [2, 5], 0.1, per="batch")',
        'MultiStep(0.3, [1, 3], 0.5, per="batch")',
        lambda t: 0.5 * 0.1 ** ((t >= 2) + (t >= 5)),
    ),
    "cycles": (
        'CyclicLR(0.1, 0.5, 2, mode="triangular2", per="batch")',
        'CyclicLR(0.2, 0.4, 3, mode="triangular2", per="batch")',
        lambda t: 0.1 + 0.4 * (0, 0.5, 1, 0.5)[t % 4] / 2 ** (t // 4),
    ),
    "growing periods": (
        'Cosine(0.4, 2, gamma=2, per="batch")',
        'Cosine(0.1, 3, gamma=3, per="batch")',
        lambda t: 0.2 * (1 + np.cos(np.pi * (t / 2 if t < 2 else (t - 2) / 4 if t < 6 else (t - 6) / 8))),
    ),
    "values": (
        'Values([0.5, 0.1, 0.3], per="batch")',
        'Values([0.1, 0.2, 0.4], per="batch")',
        lambda t: (0.5, 0.1, 0.3)[min(t, 2)],
    ),
}
SCHEDULES = {
    "CosineDecay, warm-up": (
        "initial_learning_rate=0.1, decay_steps=5, warmup_target=0.5, warmup_steps=3",
        "initial_learning_rate=0.2, decay_steps=6, warmup_target=0.4, warmup_steps=2",
    ),
    "ExponentialDecay": (
        "initial_learning_rate=0.5, decay_steps=3, decay_rate=0.7",
        "initial_learning_rate=0.2, decay_steps=2, decay_rate=0.5",
    ),
    "ExponentialDecay, staircase": (
        "initial_learning_rate=0.5, decay_steps=3, decay_rate=0.7, staircase=True",
        "initial_learning_rate=0.1, decay_steps=2, decay_rate=0.9, staircase=True, name='mine'",
    ),
    "PiecewiseConstantDecay": (
        "boundaries=[2, 5], values=[0.5, 0.1, 0.3]",
        "boundaries=[1, 3], values=[0.2, 0.3, 0.1]",
    ),
    "PolynomialDecay": (
        "initial_learning_rate=0.5, decay_steps=5, power=2.0",
        "initial_learning_rate=0.3, decay_steps=7, end_learning_rate=0.1",
    ),
    "PolynomialDecay, cycle": (
        "initial_learning_rate=0.5, decay_steps=4, cycle=True",
        "initial_learning_rate=0.3, decay_steps=3, cycle=True",
    ),
    "InverseTimeDecay": (
        "initial_learning_rate=0.5, decay_steps=2, decay_rate=0.7",
        "initial_learning_rate=0.1, decay_steps=3, decay_rate=0.5",
    ),
    "CosineDecay": ("initial_learning_rate=0.5, decay_steps=7, alpha=0.1", "initial_learning_rate=0.2, decay_steps=5"),
    "CosineDecayRestarts": (
        "initial_learning_rate=0.5, first_decay_steps=2",
        "initial_learning_rate=0.3, first_decay_steps=3, t_mul=1.5, m_mul=0.9",
    ),
}


def flat(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


def parsed(optimizer, iteration=1):
    text = f"loss='categorical_crossentropy', optimizer='{optimizer}', metrics=['accuracy']"
    return params.parse_compile_params(parameter_resolver.resolve(text, "", iteration)[0])


def trained(cache, optimizer, kernel, saved=None):
    """The weights after PASSES passes by a model of the cache; `saved`: takes the state after the first."""
    compile_params = parsed(optimizer)
    compiled = cache.get(dense(), compile_params, {})
    compiled.start(7)
    compiled.set_scalars(compile_params)
    for number in range(PASSES):
        report = compiled.kernels.train([random_rows(ROWS)], ROWS, BATCH, 1, forced=kernel)
        assert report["kernel"] == kernel and report["rows"] == ROWS
        if saved is not None and number == 0:
            saved.append(b"".join(bytes(part) for part in compiled.save()))
    return flat(compiled.model)


def by_keras(optimizer, before_batch=None):
    """The weights that plain Keras gives; `before_batch(optimizer, number)` is called before each mini-batch."""
    import keras

    from mop_udf.training import models

    model = models.build(models.normalise(dense()), 7)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", jit_compile=False, run_eagerly=True)
    x, y = random_rows(ROWS)
    for number, i in enumerate([*range(0, ROWS, BATCH)] * PASSES):
        if before_batch:
            before_batch(optimizer, number)
        model.train_on_batch(x[i : i + BATCH], y[i : i + BATCH])
    keras.backend.clear_session()
    return flat(model)


def by_keras_in_our_steps(optimizer):
    """As by_keras, in compiled steps: what the plain kernel equals bit by bit."""
    from mop_udf.kernels.on_tensorflow.plain import Plain
    from mop_udf.training import models

    model = models.build(models.normalise(dense()), 7)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", jit_compile=False)
    optimizer.build(model.trainable_variables)
    plain, (x, y) = Plain(model), random_rows(ROWS)
    for i in [*range(0, ROWS, BATCH)] * PASSES:
        plain.step((x[i : i + BATCH], y[i : i + BATCH]), 1, None, True)
    return flat(model)


class KernelConformance(Conformance):
    """`cases`: {kernel: the largest difference from Keras, relative to the largest weight}; `optimizers`, `sequences`,
    `schedules`, `mosts` (batches of a pass): what is tried."""

    cases = {"plain": 3e-6, "loop": 2e-5, "xla": 2e-5}
    registered = tuple(name for name in KERNELS if name != "auto" and ONLY.get(name, "tensorflow") == "tensorflow")
    optimizers, sequences, schedules, mosts = ("AdamW",), ("warm-up",), ("CosineDecay, warm-up",), (3,)

    def three(self, kind, texts):
        """What one, another and again the first configuration train, by one compiled model."""
        from mop_udf.training import model_cache

        cache = model_cache.ModelCache()
        results = [trained(cache, text, kind) for text in (*texts, texts[0])]
        assert (results[0] == results[2]).all() or kind != "plain"
        assert np.abs(results[0] - results[1]).max() > 1e-4
        return cache, results

    def assert_close(self, kind, result, expected):
        assert np.abs(result - expected).max() <= self.cases[kind] * np.abs(expected).max()

    def test_scalars_are_those_of_the_configuration(self, kind):
        from mop_udf.training.optimizers import make_optimizer

        for name in self.optimizers:
            texts = [f"{name.split(',')[0]}({arguments})" for arguments in PAIRS[name]]
            cache, results = self.three(kind, texts)
            assert len(cache.models) == 1, "they share one compiled model"
            for result, text in zip(results, texts):
                own = parsed(text)
                self.assert_close(kind, result, by_keras(make_optimizer(own["optimizer"], own["optimizer_args"])))

    def test_a_learning_rate_per_batch_is_what_setting_it_before_every_batch_gives(self, kind):
        import keras

        for name in self.sequences:
            *texts, rate = SEQUENCES[name]
            cache, results = self.three(kind, [f"SGD(lr={text}, momentum=0.5)" for text in texts])
            (compiled,) = cache.models.values()
            assert compiled.kernels.loops["xla" if kind == "xla" else "loop"].compilations == (kind != "plain")
            sgd = keras.optimizers.SGD(0.1, momentum=0.5)
            self.assert_close(kind, results[0], by_keras(sgd, lambda o, t, rate=rate: o.learning_rate.assign(rate(t))))

    def test_a_momentum_per_batch_is_what_setting_it_before_every_batch_gives(self, kind):
        import keras

        texts = [f'SGD(lr=0.1, momentum=Exponential({value}, 0.9, per="batch"))' for value in (0.9, 0.5)]
        cache, results = self.three(kind, texts)
        assert len(cache.models) == 1
        for result, value in zip(results, (0.9, 0.5)):
            sgd = keras.optimizers.SGD(0.1, momentum=0.9)
            set_momentum = lambda o, t, value=value: setattr(o, "momentum", value * 0.9**t)  # noqa: E731
            self.assert_close(kind, result, by_keras(sgd, set_momentum))

    def test_keras_schedules_train_as_in_keras_and_by_the_plain_kernel_bit_by_bit(self, kind):
        import keras

        for name in self.schedules:
            schedule = getattr(keras.optimizers.schedules, name.split(",")[0])
            configs = [eval(f"dict({text})") for text in SCHEDULES[name]]
            texts = [json.dumps(keras.optimizers.schedules.serialize(schedule(**config))) for config in configs]
            cache, results = self.three(kind, [f"Adam(learning_rate={text})" for text in texts])
            assert len(cache.models) == 2
            for result, config in zip(results, configs):
                adam = keras.optimizers.Adam(schedule(**config))
                if kind == "plain":
                    assert (result == by_keras_in_our_steps(adam)).all()
                else:
                    self.assert_close(kind, result, by_keras(adam))

    def test_a_warm_up_from_zero_compiles_nothing_anew(self, kind):
        import keras

        from mop_udf.training import model_cache

        cache = model_cache.ModelCache()
        for iteration in range(1, PASSES + 1):
            compile_params = parsed("SGD(lr=Warmup(0, 2, MultiStep(0.5, [1], 0.1)), momentum=0.5)", iteration)
            compiled = cache.get(dense(), compile_params, {})
            if iteration == 1:
                compiled.start(7)
            compiled.set_scalars(compile_params)
            compiled.kernels.train([random_rows(ROWS)], ROWS, BATCH, 1, forced=kind)
        assert len(cache.models) == 1 and compiled.kernels.compilations == 1
        sgd = keras.optimizers.SGD(0.1, momentum=0.5)
        expected = by_keras(sgd, lambda o, t: o.learning_rate.assign((0, 0.25, 0.5)[t // 3]))
        self.assert_close(kind, flat(compiled.model), expected)

    def test_pieces_give_what_the_whole_gives(self, kind):
        from mop_udf.training import model_cache

        data = random_rows(203)
        for most in self.mosts:
            results = []
            for sizes in ([203], [50, 50, 50, 53], [1] * 20 + [183]):
                model, starts = (
                    model_cache.ModelCache().get(dense(), parsed("Adam(lr=0.01)"), {}),
                    np.cumsum([0, *sizes]),
                )
                model.start(7)
                chunks = [tuple(c[a:b] for c in data) for a, b in zip(starts, starts[1:])]
                report = model.kernels.train(iter(chunks), 203, 8, 1, most=most, forced=kind, streams=len(sizes) > 1)
                assert report["rows"] == (203 if most is None else 8 * most)
                assert int(model.optimizer.iterations.value) == (most or 26)
                results.append((report["loss"], report["metrics"], [w.tobytes() for w in model.model.get_weights()]))
            assert all(result == results[0] for result in results)

    @pytest.mark.parametrize("frozen", [False, True])
    def test_training_behind_an_adapted_normalization_is_keras(self, kind, frozen):
        import keras

        from mop_udf.kernels.autotuner_memory import AutotunerMemory
        from mop_udf.training import compiled_model

        x, random = keras.Input((3,)), np.random.default_rng(0)
        inner = keras.Sequential([keras.Input((3,)), keras.layers.Normalization(name="norm")], name="inner")
        inner.trainable = not frozen
        model = keras.Model(x, keras.layers.Dense(2, name="out")(inner(x)))
        rows, y = random.normal(5, 2, (64, 3)).astype("f4"), random.normal(size=(64, 2)).astype("f4")
        inner.layers[-1].adapt(rows)
        text = "loss='mean_squared_error', optimizer='SGD(lr=0.01)'"
        own = params.parse_compile_params(text)
        compiled = compiled_model.CompiledModel(model.to_json(), own, {}, lambda *_: AutotunerMemory(), "name", seed=1)
        compiled.start(1)
        compiled.set_weights(state.weights_to_bytes(model.get_weights()))
        compiled.kernels.train([(rows, y)], 64, 16, 1, forced=kind)
        model.compile(keras.optimizers.SGD(0.01), "mean_squared_error")
        model.fit(rows, y, batch_size=16, shuffle=False, verbose=0)
        for ours, its in zip(compiled.model.get_weights(), model.get_weights()):
            assert np.allclose(ours, its, rtol=1e-4, atol=1e-5)
