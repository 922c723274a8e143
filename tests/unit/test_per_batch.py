"""What changes while a configuration trains, in the trainer: rates per batch, Keras' schedules, dropout; against Keras.

The numbers of sequences are variables: configurations that differ in them alone share a compiled model.
"""

import json
import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import numpy as np
import pytest

from mop_udf import architecture, architecture_dropout, parameter_resolver, params, state
from support.workload import dense, layer, random_rows, sequential

ROWS, BATCH, PASSES = 24, 8, 3
KERNELS = ("plain", "loop", "xla")


def parsed(optimizer, iteration=1):
    text = f"loss='categorical_crossentropy', optimizer='{optimizer}', metrics=['accuracy']"
    return params.parse_compile_params(parameter_resolver.resolve(text, "", iteration)[0])


def trained(cache, optimizer, kernel, saved=None):
    """The weights after PASSES passes by a model of the cache."""
    compile_params = parsed(optimizer)
    compiled = cache.get(dense(), compile_params, {})
    compiled.start(7)
    compiled.set_scalars(compile_params)
    for number in range(PASSES):
        report = compiled.kernels.train([random_rows(ROWS)], ROWS, BATCH, 1, forced=kernel)
        assert report["kernel"] == kernel
        if saved is not None and number == 0:
            saved.append(b"".join(bytes(part) for part in compiled.save()))
    return flat(compiled.model)


def flat(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


def by_keras(make_optimizer, before_batch=None, eagerly=True, text=None):
    """The weights that plain Keras gives; `before_batch(optimizer, number)` is called before each mini-batch."""
    import keras

    from mop_udf import models

    model = models.build(models.normalise(text or dense()), 7)
    optimizer = make_optimizer()
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", jit_compile=False, run_eagerly=eagerly)
    x, y = random_rows(ROWS)
    number = 0
    for _ in range(PASSES):
        for i in range(0, ROWS, BATCH):
            if before_batch:
                before_batch(optimizer, number)
            model.train_on_batch(x[i : i + BATCH], y[i : i + BATCH])
            number += 1
    keras.backend.clear_session()
    return flat(model)


def close(a, b, kernel="plain"):
    return np.abs(a - b).max() <= (3e-6 if kernel == "plain" else 2e-5) * np.abs(b).max()


# two texts of one structure, and the rate of the batches 0, 1, 2, ...
SEQUENCES = {
    "exponential": ('Exponential(0.5, 0.8, per="batch")', 'Exponential(0.1, 0.5, per="batch")', lambda t: 0.5 * 0.8**t),
    "steps": (
        'MultiStep(0.5, [2, 5], 0.1, per="batch")',
        'MultiStep(0.3, [1, 3], 0.5, per="batch")',
        lambda t: 0.5 * 0.1 ** ((t >= 2) + (t >= 5)),
    ),
    "warm-up": (
        'Warmup(0, 4, Cosine(0.4, 3), per="batch")',
        'Warmup(0.1, 2, Cosine(0.3, 5), per="batch")',
        lambda t: 0.1 * t if t < 4 else 0.2 * (1 + np.cos(np.pi * ((t - 4) % 3) / 3)),
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name,kernel",
    [*((n, "plain") for n in SEQUENCES), *((n, k) for k in KERNELS[1:] for n in ("warm-up", "growing periods"))],
)
def test_a_learning_rate_per_batch_is_what_setting_it_before_every_batch_gives(name, kernel):
    import keras

    from mop_udf import model_cache

    cache = model_cache.ModelCache()
    first, second, rate = SEQUENCES[name]
    results = [trained(cache, f"SGD(lr={text}, momentum=0.5)", kernel) for text in (first, second, first)]
    assert len(cache.models) == 1, "they share one compiled model"
    compiled = next(iter(cache.models.values()))
    assert compiled.kernels.loops["xla" if kernel == "xla" else "loop"].compilations == (kernel != "plain")
    assert (results[0] == results[2]).all() and np.abs(results[0] - results[1]).max() > 1e-4
    expected = by_keras(
        lambda: keras.optimizers.SGD(0.1, momentum=0.5), lambda optimizer, t: optimizer.learning_rate.assign(rate(t))
    )
    assert close(results[0], expected, kernel)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "optimizer,name,kernel",
    [
        *(("SGD(lr=0.1, momentum={})", "momentum", kernel) for kernel in KERNELS),
        ("AdamW(weight_decay={})", "weight_decay", "plain"),
    ],
)
def test_other_scalars_per_batch_are_what_setting_them_before_every_batch_gives(optimizer, name, kernel):
    import keras

    from mop_udf import model_cache

    cache = model_cache.ModelCache()
    results = [
        trained(cache, optimizer.format(f'Exponential({value}, 0.9, per="batch")'), kernel) for value in (0.9, 0.5)
    ]
    assert len(cache.models) == 1 and np.abs(results[0] - results[1]).max() > 1e-4
    made = {
        "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "weight_decay": lambda: keras.optimizers.AdamW(weight_decay=0.9),
    }
    for result, value in zip(results, (0.9, 0.5)):
        expected = by_keras(made[name], lambda o, t, value=value: setattr(o, name, value * 0.9**t))
        assert close(result, expected, kernel)


SCHEDULES = {
    "ExponentialDecay": (
        {"initial_learning_rate": 0.5, "decay_steps": 3, "decay_rate": 0.7},
        {"initial_learning_rate": 0.2, "decay_steps": 2, "decay_rate": 0.5},
    ),
    "ExponentialDecay, staircase": (
        {"initial_learning_rate": 0.5, "decay_steps": 3, "decay_rate": 0.7, "staircase": True},
        {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.9, "staircase": True, "name": "mine"},
    ),
    "PiecewiseConstantDecay": (
        {"boundaries": [2, 5], "values": [0.5, 0.1, 0.3]},
        {"boundaries": [1, 3], "values": [0.2, 0.3, 0.1]},
    ),
    "PolynomialDecay": (
        {"initial_learning_rate": 0.5, "decay_steps": 5, "power": 2.0},
        {"initial_learning_rate": 0.3, "decay_steps": 7, "end_learning_rate": 0.1},
    ),
    "PolynomialDecay, cycle": (
        {"initial_learning_rate": 0.5, "decay_steps": 4, "cycle": True},
        {"initial_learning_rate": 0.3, "decay_steps": 3, "cycle": True},
    ),
    "InverseTimeDecay": (
        {"initial_learning_rate": 0.5, "decay_steps": 2, "decay_rate": 0.7},
        {"initial_learning_rate": 0.1, "decay_steps": 3, "decay_rate": 0.5},
    ),
    "CosineDecay": (
        {"initial_learning_rate": 0.5, "decay_steps": 7, "alpha": 0.1},
        {"initial_learning_rate": 0.2, "decay_steps": 5},
    ),
    "CosineDecay, warm-up": (
        {"initial_learning_rate": 0.1, "decay_steps": 5, "warmup_target": 0.5, "warmup_steps": 3},
        {"initial_learning_rate": 0.2, "decay_steps": 6, "warmup_target": 0.4, "warmup_steps": 2},
    ),
    "CosineDecayRestarts": (
        {"initial_learning_rate": 0.5, "first_decay_steps": 2},
        {"initial_learning_rate": 0.3, "first_decay_steps": 3, "t_mul": 1.5, "m_mul": 0.9},
    ),
}


def by_keras_in_our_steps(optimizer):
    """As by_keras, in compiled steps: what the plain kernel equals bit by bit."""
    from mop_udf import models
    from mop_udf.kernels.on_tensorflow.plain import Plain

    model = models.build(models.normalise(dense()), 7)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", jit_compile=False)
    optimizer.build(model.trainable_variables)
    plain, (x, y) = Plain(model), random_rows(ROWS)
    for _ in range(PASSES):
        for i in range(0, ROWS, BATCH):
            plain.step((x[i : i + BATCH], y[i : i + BATCH]), 1, None, True)
    return flat(model)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name,kernel", [*((n, "plain") for n in SCHEDULES), *(("CosineDecay, warm-up", k) for k in ("loop", "xla"))]
)
def test_keras_schedules_train_bit_by_bit_as_in_keras(name, kernel):
    import keras

    from mop_udf import model_cache

    cache, kind = model_cache.ModelCache(), name.split(",")[0]
    configs = SCHEDULES[name]
    results = []
    for config in (*configs, configs[0]):
        made = getattr(keras.optimizers.schedules, kind)(**config)
        text = json.dumps(keras.optimizers.schedules.serialize(made))
        results.append(trained(cache, f"Adam(learning_rate={text})", kernel))
    assert len(cache.models) == 2
    assert (results[0] == results[2]).all() and np.abs(results[0] - results[1]).max() > 1e-4
    for result, config in zip(results, configs):
        made = getattr(keras.optimizers.schedules, kind)(**config)
        if kernel == "plain":
            assert (result == by_keras_in_our_steps(keras.optimizers.Adam(made))).all()
        else:
            assert close(result, by_keras(lambda made=made: keras.optimizers.Adam(made)), kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_warm_up_from_zero_compiles_nothing_anew(kernel):
    import keras

    from mop_udf import model_cache, models

    cache, text = model_cache.ModelCache(), "SGD(lr=Warmup(0, 2, MultiStep(0.5, [1], 0.1)), momentum=0.5)"
    for iteration in range(1, PASSES + 1):
        compile_params, _ = models.parse(f"loss='categorical_crossentropy', optimizer='{text}'", "", iteration)
        compiled = cache.get(dense(), compile_params, {})
        if iteration == 1:
            compiled.start(7)
        compiled.set_scalars(compile_params)
        compiled.kernels.train([random_rows(ROWS)], ROWS, BATCH, 1, forced=kernel)
    assert len(cache.models) == 1 and compiled.kernels.compilations == 1
    expected = by_keras(
        lambda: keras.optimizers.SGD(0.1, momentum=0.5),
        lambda optimizer, t: optimizer.learning_rate.assign((0, 0.25, 0.5)[t // 3]),
    )
    assert close(flat(compiled.model), expected, kernel)


def test_what_is_computed_otherwise_is_compiled_for_itself():
    def key(text):
        return str(params.without_scalars(parsed(f"SGD(lr={text})")))

    keys = [
        key(text)
        for text in (
            "0.1",
            'Exponential(0.1, 0.9, per="batch")',
            'MultiStep(0.1, [1, 2], per="batch")',
            'MultiStep(0.1, [1], per="batch")',
            'Warmup(0, 3, 0.1, per="batch")',
            'Cosine(0.1, 3, per="batch")',
            'Cosine(0.1, 3, gamma=2, per="batch")',
            'Warmup(0, 3, Cosine(0.1, 3), per="batch")',
            *(
                "{'class_name': 'CosineDecay', 'config': {'initial_learning_rate': 0.1, 'decay_steps': 3%s}}" % more
                for more in ("", ", 'warmup_target': 1.0")
            ),
        )
    ]
    assert len(set(keys)) == len(keys)
    assert key("0") == key("0.1") == key("-1"), "a learning rate is a variable of Keras', whatever its sign"


def test_a_state_goes_on_with_its_sequence_per_batch():
    from mop_udf import model_cache

    saved, text = [], 'SGD(lr=Exponential(0.5, 0.8, per="batch"), momentum=Exponential(0.9, 0.9, per="batch"))'
    expected = trained(model_cache.ModelCache(), text, "plain", saved)
    compile_params = parsed(text)
    compiled = model_cache.ModelCache().get(dense(), compile_params, {})
    compiled.load(saved[0])
    compiled.set_scalars(compile_params)
    for _ in range(PASSES - 1):
        compiled.kernels.train([random_rows(ROWS)], ROWS, BATCH, 1, forced="plain")
    assert (flat(compiled.model) == expected).all()


# --- dropout -----------------------------------------------------------------------------------------
NOISY = sequential(
    "noisy",
    [4],
    layer("Dropout", name="first", rate=0.2),
    layer("Dense", name="hidden", units=8),
    layer("GaussianDropout", name="second", rate=0.1),
    layer("AlphaDropout", name="third", rate=0.0),
    layer("Dense", name="out", units=3, activation="softmax"),
)


def with_rates(cache, rates, kernel="plain"):
    """The weights after a pass with each of the rates, each by the compiled model of its own."""
    data, held = None, []
    compile_params = parsed("Adam(lr=0.05)")
    for rate in rates:
        compiled = cache.get(NOISY, compile_params, {}, dropout=rate)
        if data is None:
            compiled.start(7)
        else:
            compiled.load(data)
        compiled.kernels.train([random_rows(ROWS)], ROWS, BATCH, 1, forced=kernel)
        data = b"".join(bytes(part) for part in compiled.save())
        held.append(compiled)
    return flat(held[-1].model)


@pytest.mark.parametrize(
    "rates", [[0.5, 0.1, 0.5], [0.0, 0.3, 0.0], [{"first": 0.4, "third": 0.2}, {"first": 0.0, "third": 0.6}]]
)
def test_a_rate_of_dropout_is_that_of_a_keras_model_whose_layers_are_given_it(rates):
    import keras

    from mop_udf import model_cache, models
    from mop_udf.kernels.on_tensorflow.plain import Plain

    cache = model_cache.ModelCache()
    result = with_rates(cache, rates)
    assert len(cache.models) == len({str(rate) for rate in rates})
    model = models.build(models.normalise(NOISY, rates[0]), 7)
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss="categorical_crossentropy", jit_compile=False)
    x, y = random_rows(ROWS)
    for rate in rates:
        for one in model.layers:
            if "rate" in one.get_config():
                one.rate = rate if not isinstance(rate, dict) else rate.get(one.name, one.rate)
        plain = Plain(model)  # with steps of its own, compiled for these rates
        for i in range(0, ROWS, BATCH):
            plain.step((x[i : i + BATCH], y[i : i + BATCH]), 1, None, True)
    assert (flat(model) == result).all()


def test_every_rate_of_dropout_begins_with_the_same_weights_and_zero_draws_nothing():
    from mop_udf import model_cache, models

    cache, begins = model_cache.ModelCache(), []
    for rate in (0.0, 0.5, 0.9):
        compiled = cache.get(NOISY, parsed("SGD()"), {}, 7, dropout=rate)
        compiled.start(7)
        begins.append(b"".join(bytes(part) for part in compiled.save()))
    assert begins[0] == begins[1] == begins[2]
    compiled = cache.get(NOISY, parsed("SGD()"), {}, 7, dropout=0.0)
    compiled.start(7)
    seeds = state.values(models.seed_variables(compiled.model))
    assert len(seeds) == 3
    compiled.kernels.train([random_rows(ROWS)], ROWS, BATCH, 1, forced="loop")
    assert all((now == then).all() for now, then in zip(state.values(models.seed_variables(compiled.model)), seeds))


def test_dropout_in_layers_within_layers():
    import keras

    k = keras.layers
    inner = keras.Sequential([keras.Input((5, 4)), k.SpatialDropout1D(0.1, name="maps")], name="inner")
    x = keras.Input((5, 4))
    text = keras.Model(x, k.Dense(3)(k.Flatten()(k.TimeDistributed(k.Dropout(0.1, name="each"))(inner(x))))).to_json()
    from mop_udf import models

    made = models.build(models.normalise(text, {"maps": 0.3, "each": 0.0}), 1)
    models.set_zero_rates(made, {"maps": 0.3, "each": 0.0})
    rates = {one.name: one.rate for one in made._flatten_layers() if hasattr(one, "rate")}
    assert rates == {"maps": 0.3, "each": 0.0}


@pytest.mark.parametrize(
    "text,dropout,message",
    [
        (dense(), 0.5, "dropout is given, but the architecture has no layer of AlphaDropout, Dropout"),
        (NOISY, {"fourth": 0.5}, "the architecture has no dropout layer 'fourth', only first, second, third"),
        (NOISY, {"hidden": 0.5}, "the architecture has no dropout layer 'hidden'"),
        (NOISY, params.parse_fit_params("dropout=[{'x': 0.1}, {'x': 0.2}]")["dropout"], "no dropout layer 'x'"),
    ],
)
def test_dropout_that_the_architecture_does_not_have_is_refused(text, dropout, message):
    made = architecture.check(text)
    with pytest.raises(architecture.ArchitectureError, match=message):
        architecture_dropout.check_dropout(made, dropout)
    architecture_dropout.check_dropout(made, None)
