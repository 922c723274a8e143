"""What changes while a configuration trains, in the trainer: sequences per batch, and dropout; against Keras.

Kernels with rates per batch and Keras' schedules: support/conformance/kernels.py.
"""

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import pytest

from mop_udf import state
from mop_udf.architecture import architecture, architecture_dropout
from mop_udf.params import params
from support.conformance.kernels import BATCH, PASSES, ROWS, flat, parsed, trained
from support.workload import dense, layer, random_rows, sequential


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
    from mop_udf.training import model_cache

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

    from mop_udf.kernels.on_tensorflow.plain import Plain
    from mop_udf.training import model_cache, models

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
    from mop_udf.training import model_cache, models

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
    from mop_udf.training import models

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
