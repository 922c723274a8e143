"""Sequences of hyper-parameters: their values, what is refused, and the literal strings that they are resolved to."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mop_udf.params import params, sequence_parser, sequences
from mop_udf.params.parameter_resolver import Resolver, resolve
from mop_udf.params.params import ParameterError, parse_compile_params, parse_fit_params

LOSS = "loss='mse',"


def values(text, count):
    """The values of the iterations 1 to `count`."""
    sequence = sequence_parser.parse(text)
    return [sequence.at(step) for step in range(count)]


TABLES = {
    "Exponential(8, 0.5)": [8, 4, 2, 1, 0.5],
    "exponential(value=8, gamma=0.5)": [8, 4, 2, 1, 0.5],
    "MultiStep(0.1, [2, 4], 0.1)": [0.1, 0.1, 0.01, 0.01, 0.001, 0.001],
    "MultiStep(0.1, [2, 2])": [0.1, 0.1, 0.001],
    "CyclicLR(1, 5, 2)": [1, 3, 5, 3, 1, 3, 5],
    "CyclicLR(1, 5, 2, 4)": [1, 3, 5, 4, 3, 2, 1, 3],
    "CyclicLR(1, 5, 2, step_size_down=1)": [1, 3, 5, 1, 3, 5],
    "CyclicLR(1, 5, 2, 'triangular2')": [1, 3, 5, 3, 1, 2, 3, 2, 1, 1.5],
    "CyclicLR(1, 5, 2, mode='exp_range', gamma=0.5)": [1, 2, 2, 1.25, 1],
    "Cosine(2, 2)": [2, 1, 2, 1],
    "Cosine(3, 2, 1)": [3, 2, 3, 2],
    "Cosine(2, 2, gamma=2)": [2, 1, 2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5), 2],
    "Warmup(0, 4, 1)": [0, 0.25, 0.5, 0.75, 1, 1],
    "Warmup(0, 2, Exponential(8, 0.5))": [0, 4, 8, 4, 2],
    "Warmup(0, 2, [8, 1])": [0, 4, 8, 1, 1],
    "Warmup(0, 2, Warmup(4, 2, 0))": [0, 2, 4, 2, 0, 0],
    "[0.1, 0.1, 0.05]": [0.1, 0.1, 0.05, 0.05, 0.05],
    "Values([3, 1, 2])": [3, 1, 2, 2],
}


@pytest.mark.parametrize("text", TABLES)
def test_sequences_have_the_values_of_tables_made_by_hand(text):
    assert values(text, len(TABLES[text])) == pytest.approx(TABLES[text], rel=1e-14, abs=1e-15)


def test_sequences_have_the_values_of_their_formulas():
    # as PyTorch's ExponentialLR, MultiStepLR, CyclicLR and CosineAnnealingWarmRestarts compute them
    for t, v in enumerate(values("Exponential(0.3, 0.97)", 200)):
        assert v == pytest.approx(0.3 * 0.97**t, rel=1e-13)
    for t, v in enumerate(values("MultiStep(0.3, [7, 11, 90], 0.3)", 200)):
        assert v == pytest.approx(0.3 * 0.3 ** sum(t >= m for m in (7, 11, 90)), rel=1e-13)
    for mode in ("triangular", "triangular2", "exp_range"):
        for t, v in enumerate(values(f"CyclicLR(0.1, 0.7, 7, 12, '{mode}', 0.99)", 200)):
            cycle = math.floor(1 + t / 19)
            x = 1 + t / 19 - cycle
            scale = x / (7 / 19) if x <= 7 / 19 else (x - 1) / (7 / 19 - 1)
            factor = {"triangular": 1, "triangular2": 1 / 2 ** (cycle - 1), "exp_range": 0.99**t}[mode]
            assert v == pytest.approx(0.1 + 0.6 * scale * factor, rel=1e-12)
    for gamma in (1, 2, 3, 1.5):
        begin, period = 0.0, 5.0
        for t, v in enumerate(values(f"Cosine(0.7, 5, 0.1, {gamma})", 200)):
            if t >= begin + period:
                begin, period = begin + period, period * gamma
            assert v == pytest.approx(0.1 + 0.6 * (1 + math.cos(math.pi * (t - begin) / period)) / 2, rel=1e-12)


def test_a_value_that_the_text_names_is_that_value():
    assert values("MultiStep(0.1, [1], 0.1)", 2)[1] == 0.01
    start = 0.12345678901234566
    for text in (f"Exponential({start}, 0.9)", f"Cosine({start}, 7, 0.03)", f"CyclicLR({start}, 0.7, 3)"):
        assert values(text, 1) == [start]
    assert values(f"Warmup(0, 3, {start})", 5)[3:] == [start, start]
    assert values(f"CyclicLR(0.7, {start}, 3)", 4)[3] == start


DECAY = "{'class_name': '%s', 'config': {%s}}"


@pytest.mark.parametrize(
    "text,message",
    [
        ("Linear(0.1)", "Linear"),
        ("Exponential(0.1, gamma=0)", "gamma of Exponential(value, gamma) must be above 0, not 0"),
        ("Exponential(**{'a': 1})", "None is not an argument"),
        ("Exponential(1e999, 0.9)", "must be a number, not inf"),
        ("Exponential(0.1, __import__('os'))", "__import__('os') is not a literal"),
        *((f"MultiStep(0.1, {wrong})", "ascending list of integers") for wrong in ("4", "[4, 2]", "[True]", "[1.5]")),
        ("Cosine(0.1, 3, gamma=0.5)", "gamma of Cosine(value, period, min, gamma) must be at least 1, not 0.5"),
        ("Warmup(0, 3, Cosine(1, 2, per='batch'))", "per belongs to the outermost sequence alone"),
        ("Warmup(0, 3, [{0: 1}, {0: 2}])", "must be numbers"),
        ("Warmup(0, 3, " * 12 + "1" + ")" * 12, "nested deeper than 10"),
        ("[]", "list with"),
        ("[1, None]", "a value of a list must be a number, not None"),
        ("Exponential(0.1, 0.9, per='epoch')", "per of Exponential must be 'iteration' or 'batch', not 'epoch'"),
        (DECAY % ("Lambda", ""), "'Lambda' is not a learning rate schedule of Keras"),
        (DECAY % ("CosineDecay", "'decay_steps': 3"), "CosineDecay needs initial_learning_rate"),
        (DECAY % ("CosineDecay", "'f': 3"), "'f' is not an argument of schedule CosineDecay"),
        (DECAY % ("CosineDecay", "'alpha': {'class_name': 'x'}"), "alpha of CosineDecay must be a"),
        ("{'class_name': 'CosineDecay', 'module': 'os', 'config': {}}", "not in Keras' form"),
        (DECAY % ("ExponentialDecay", "'initial_learning_rate': 1, 'decay_steps': 0, 'decay_rate': 1"), "above 0"),
        (DECAY % ("PiecewiseConstantDecay", "'boundaries': [3], 'values': [1]"), "one more than"),
        # arguments in another order: the error has the right one
        ("MultiStep([3, 5], 0.1)", "value of MultiStep(value, milestones, gamma) must be a number, not [3, 5]"),
        ("Warmup(5, Cosine(0.1, 3), 0)", "Cosine(0.1, 3) is not a literal"),
        # nothing is given twice
        ("Constant(1, value=2)", "twice"),
        ("[{0: 1, 0: 2}, {0: 1}]", "{0: 1, 0: 2} has the key 0 twice"),
        ("{'class_name': 'CosineDecay', 'class_name': 'X', 'config': {}}", "has the key 'class_name' twice"),
    ],
)
def test_bad_sequences_have_clear_errors(text, message):
    with pytest.raises(ParameterError) as error:
        parse_compile_params(f"{LOSS} optimizer='SGD(lr={text})'")
    assert message in str(error.value)


@pytest.mark.parametrize("count", ["0", "2.5", "-1", "True", "nan", "1e999", "1e300", "'3'", "[3]", "None"])
@pytest.mark.parametrize(
    "text, name",
    [
        ("Cosine(0.1, {})", "period of Cosine(value, period, min, gamma)"),
        ("Cosine(0.1, period={}, gamma=2)", "period of Cosine(value, period, min, gamma)"),
        ("Warmup(0, {}, 0.1)", "steps of Warmup(start, steps, then)"),
        ("CyclicLR(0, 1, {})", "step_size_up of CyclicLR(base, max, step_size_up, step_size_down, mode, gamma)"),
        ("CyclicLR(0, 1, 3, step_size_down={})", "step_size_down of CyclicLR("),
        ("MultiStep(0.1, [{}])", "milestones of MultiStep(value, milestones, gamma)"),
    ],
)
def test_numbers_of_iterations_are_integers_of_at_least_1(text, name, count):
    if count == "None" and "step_size_down" in text:
        assert sequence_parser.parse(text.format(count)) == sequence_parser.parse("CyclicLR(0, 1, 3)")
        return
    with pytest.raises(sequences.SequenceError) as error:
        sequence_parser.parse(text.format(count))
    assert name in str(error.value) or "is not a literal" in str(error.value)
    assert sequence_parser.parse(text.format("4.0")) == sequence_parser.parse(text.format("4"))


OF_KERAS = DECAY % ("CosineDecay", "'initial_learning_rate': 1, 'decay_steps': 2")


@pytest.mark.parametrize(
    "compile_params,fit_params,message",
    [
        ("SGD(nesterov=[0, 1])", "", "optimizer argument nesterov cannot be a sequence, only learning_rate, momentum"),
        ("SGD(lr=Cosine(0.1, 5, per='batch'), decay=1)", "", "decay, which changes the learning rate with each mini-"),
        ("SGD(momentum=[0.9, 0])", "", "momentum must not change between zero and other signs"),
        ("SGD(lr=[{0: 1}, {0: 2}])", "", "optimizer argument learning_rate must be numbers"),
        (f"SGD(momentum={OF_KERAS})", "", "a learning rate schedule of Keras cannot stand for momentum"),
        ("SGD()", "epochs=[1, 2]", "'epochs' cannot be a sequence, only batch_size, class_weight, dropout can"),
        ("SGD()", "batch_size=[32, 0]", "batch_size must be at least 1, not 0"),
        ("SGD()", "batch_size=Exponential(32, 2, per='batch')", "batch_size cannot change within an iteration"),
        ("SGD()", "class_weight=[1, 2]", "class_weight must be a dictionary of class numbers"),
        ("SGD()", "dropout=[0.5, -0.1]", "dropout must be a rate from 0"),
        ("SGD()", "dropout={}", "dropout must name layers"),
        ("SGD()", "dropout=[{'a': 0.1}, {'b': 0.1}]", "must all name the same layers"),
    ],
)
def test_sequences_where_they_cannot_be_are_refused(compile_params, fit_params, message):
    with pytest.raises(ParameterError) as error:
        Resolver(f"{LOSS} optimizer='{compile_params}'", fit_params)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "compile_params,fit_params,message",
    [
        ("SGD(lr=Exponential(1, 1e30))", "", "learning_rate, iteration 12: .* is not finite at step 11"),
        ("SGD(momentum=Exponential(0.9, 1e-30))", "", "momentum, iteration 12: momentum must not change between zero"),
        ("SGD()", "batch_size=Exponential(32, 1000)", "batch_size, iteration 4: batch_size must be an integer"),
        ("SGD()", "dropout=Exponential(0.5, 1.5)", "dropout, iteration 3: dropout must be a rate"),
    ],
)
def test_what_a_sequence_reaches_later_is_found_before_any_work(compile_params, fit_params, message):
    resolver = Resolver(f"{LOSS} optimizer='{compile_params}'", fit_params)
    resolver.check(2)
    with pytest.raises(ParameterError, match=message):
        resolver.check(20)


def resolved(optimizer, fit_params="", iterations=6):
    resolver = Resolver(f"{LOSS} optimizer='{optimizer}', metrics=['mae']", fit_params)
    return [resolver.at(i) for i in range(1, iterations + 1)]


def test_what_means_the_same_resolves_to_the_same_text():
    for same in (
        (
            "0.1; [0.1]; Constant(0.1); constant(value=0.10); Exponential(0.1, 1); [0.1, 0.1]; 1e-1; MultiStep(0.1, [], 0.5);"
            'Warmup(0.1, 5, 0.1); Cosine(0.1, 5, 0.1); CyclicLR(0.1, 0.1, 5); Constant(0.1, per="batch")'
        ).split(";"),
        [
            "MultiStep(0.1, [2, 4], 0.1)",
            "[0.1, 0.1, 0.01, 0.01, 0.001]",
            "multistep(0.1, milestones=[2, 4])",
            "Values([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])",
        ],
        ['Exponential(0.1, 0.9, per="batch")', 'exponential(gamma=0.9, value=0.10, per="batch")'],
    ):
        texts = [resolved(f"SGD(lr={text}, momentum=0.9)") for text in same]
        assert all(text == texts[0] for text in texts), texts
    first = "loss='mse',optimizer='SGD(learning_rate=0.1)',metrics=['mae']"
    assert resolved("SGD(lr=MultiStep(0.1, [2], 0.1))")[1] == (first, "")
    assert resolved("SGD(lr=MultiStep(0.1, [2], 0.1))")[2] == (first.replace("0.1", "0.01"), "")
    assert resolved("SGD(lr=0.1, momentum=-0.0)")[0] == resolved("SGD(learning_rate=.1, momentum=0)")[0]


def test_fit_parameters_that_mean_the_same_resolve_to_the_same_text():
    for same in (
        "; batch_size=32; batch_size=[32]; epochs=1; verbose=1, shuffle=False; dropout=None; callbacks=None, batch_size="
        "Constant(32.2)",
        "class_weight={1: 2, 0: 1}; class_weight=[{0: 1.0, 1: 2.0}]; class_weight={0: 1, 1: 2},epochs=1",
        "dropout=0.5; dropout=Constant(0.5)",
        "dropout={'b': 0, 'a': 0.5}; dropout={'a':.5,'b':0.0}",
    ):
        texts = {Resolver(f"{LOSS} optimizer=SGD", text).at(3) for text in same.split(";")}
        assert len(texts) == 1, texts
    other = "; shuffle=True; shuffle='batch'; epochs=2; batch_size=1; steps_per_epoch=1; dropout=0.0; class_weight={}"
    other = [*other.split(";"), 'callbacks=[TensorBoard(log_dir="/x(y]")]']
    assert len({Resolver(f"{LOSS} optimizer=SGD", text).at(1) for text in other}) == len(other)


def test_batch_sizes_are_whole_and_at_least_1():
    texts = [fit for _, fit in resolved("SGD()", "batch_size=Exponential(5, 0.5)")]
    assert texts == ["batch_size=5", "batch_size=3", *["batch_size=1"] * 4]  # 2.5, 1.25, 0.625, ...
    assert [fit for _, fit in resolved("SGD()", "batch_size=MultiStep(32, [1, 2], 2)", 3)] == [
        "",
        "batch_size=64",
        "batch_size=128",
    ]


def test_several_sequences_change_each_in_its_time():
    texts = resolved("SGD(lr=[1, 2], momentum=[0.5, 0.5, 0.6])", "dropout=[{'a': 0.1}, {'a': 0.2}]", 4)
    assert [t[0][t[0].index("SGD") : -16] for t in texts] == [
        "SGD(learning_rate=1.0,momentum=0.5)'",
        "SGD(learning_rate=2.0,momentum=0.5)'",
        *["SGD(learning_rate=2.0,momentum=0.6)'"] * 2,
    ]
    assert [t[1] for t in texts] == ["dropout={'a':0.1}", *["dropout={'a':0.2}"] * 3]
    resolver = Resolver(f"{LOSS} optimizer='SGD(lr=[1, 2])'", "")
    assert [resolver.at(i)[0][22:-2] for i in (2, 1, 3, 1)] == [
        "SGD(learning_rate=%s" % v for v in ("2.0", "1.0", "2.0", "1.0")
    ], "asked for in any order"


def test_configurations_without_sequences_have_one_tuple():
    resolver = Resolver(f"{LOSS} optimizer='SGD(lr=0.1)'", "batch_size=8")
    assert not resolver.varies and resolver.at(1) is resolver.at(100)
    assert resolve(f"{LOSS} optimizer='SGD(lr=0.1)'", "batch_size=8", 7) == resolver.at(1)
    changing = Resolver(f"{LOSS} optimizer='SGD(lr=[0.1, 0.2])'", "batch_size=8")
    assert changing.varies and changing.at(2) is changing.at(3)


def test_the_keys_of_compiled_models_know_sequences():
    def key(text):
        return params.without_scalars(parse_compile_params(f"{LOSS} optimizer='SGD({text})'"))

    assert key("lr=[0, 0.1]") == key("lr=0.3") == key("lr=Warmup(0, 3, 1)")
    assert key("momentum=[0.5, 0.9]") == key("momentum=0.1") != key("momentum=0")
    assert key("lr=0.1, decay=1") == key("lr=0.2, decay=2") != key("lr=0, decay=2")
    batch = 'lr=Exponential(%s, 0.5, per="batch")'
    assert key(batch % 1) == key(batch % 2) != key("lr=0.1")


def test_texts_that_are_sequences():
    for text in ("[1]", " Values ([1])", "cosine(1, 2)", "{'class_name': 'X'}", '{"config": {}}', "Warmup("):
        assert sequence_parser.is_sequence_text(text)
    for text in ("0.1", "None", "{0: 1}", "{'a': 0.5}", "Cosine", "Linear(1)", "'x'", "", "TensorBoard(a=1)"):
        assert not sequence_parser.is_sequence_text(text)


def test_schedules_are_written_with_all_that_keras_takes_by_default():
    text = (
        '{"module": "keras.optimizers.schedules", "class_name": "PolynomialDecay", "config": {"decay_steps": 10, '
        '"initial_learning_rate": 1, "cycle": false, "name": "x"}, "registered_name": null}'
    )
    same = "{'class_name':'PolynomialDecay','config':{'initial_learning_rate':1.0,'decay_steps':10.0,'power':1}}"
    assert resolved(f"SGD(lr={text})") == resolved(f"SGD(lr={same})")
    assert resolved(f"SGD(lr={text})")[0] == resolved(f"SGD(lr={text})")[5]


NUMBERS = st.integers(-3, 300) | st.floats(-1e6, 1e6, allow_nan=False)
POSITIVE = st.floats(1e-3, 1e3) | st.integers(1, 100)


COUNTS = st.integers(1, 1000)


def calls(inner):
    return (
        st.builds("Exponential({!r}, {!r})".format, NUMBERS, POSITIVE)
        | st.builds("MultiStep({!r}, {!r}, {!r})".format, NUMBERS, st.lists(st.integers(1, 20)).map(sorted), POSITIVE)
        | st.builds(
            "CyclicLR({!r}, {!r}, {!r}, {!r}, '{}', {!r})".format,
            NUMBERS,
            NUMBERS,
            COUNTS,
            COUNTS,
            st.sampled_from(sequences.MODES),
            POSITIVE,
        )
        | st.builds("Cosine({!r}, {!r}, {!r}, {!r})".format, NUMBERS, COUNTS, NUMBERS, st.floats(1, 4))
        | st.builds("Warmup({!r}, {!r}, {})".format, NUMBERS, COUNTS, inner)
        | st.lists(NUMBERS, min_size=1).map(repr)
        | NUMBERS.map(repr)
    )


SEQUENCES = calls(st.recursive(NUMBERS.map(repr), calls, max_leaves=3))


@settings(max_examples=500, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(SEQUENCES, st.integers(1, 300), st.sampled_from(["", ', per="batch"']))
def test_what_is_resolved_is_literal_and_resolves_to_itself(text, iteration, per):
    if per and text.endswith(")"):
        text = text[:-1] + per + ")"
    try:
        written = resolve(
            f"{LOSS} optimizer='SGD(lr={text})', metrics=['mae', \"a\\x29'b\"]", "batch_size=[5, 6]", iteration
        )
    except ParameterError as error:
        assert "finite" in str(error)
        return
    assert all(resolve(*written, i) == written for i in (1, iteration))
    rate = parse_compile_params(written[0])["optimizer_args"]["learning_rate"]
    assert isinstance(rate, float) or per and rate.per == "batch"
    assert parse_compile_params(written[0])["metrics"] == ["mae", "a)'b"]
    if not per:
        own = sequence_parser.parse(text) if sequence_parser.is_sequence_text(text) else float(text)
        assert rate == (own.at(iteration - 1) if isinstance(own, sequences.Sequence) else own)
    assert params.scalars(parse_compile_params(written[0])) == {"learning_rate": rate}
    assert parse_fit_params(written[1])["batch_size"] == (5 if iteration == 1 else 6)


@settings(max_examples=500, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(SEQUENCES, st.integers(0, 400))
def test_values_lie_between_those_that_the_text_names(text, step):
    try:
        sequence = sequence_parser.parse(text) if sequence_parser.is_sequence_text(text) else float(text)
        value = sequence.at(step) if isinstance(sequence, sequences.Sequence) else sequence
    except sequences.SequenceError:
        return
    assert math.isfinite(value)
    if isinstance(sequence, sequences.Sequence) and not any(word in text for word in ("Exp", "exp", "Multi")):
        named = sequence.stated()
        slack = 1e-9 * max(map(abs, named))
        assert min(named) - slack <= value <= max(named) + slack
