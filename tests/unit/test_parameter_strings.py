"""Parameter strings and grids: what is accepted, what is refused, and that nothing is executed."""

import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mop_udf.params import parameter_resolver, params
from mop_udf.params.params import ParameterError, parse_compile_params, parse_fit_params
from pg_mop.search import grids
from support.circles import draws

LOSS = "loss='mse',"


def optimizer(text):
    parsed = parse_compile_params(f"{LOSS} optimizer={text}")
    return parsed["optimizer"], parsed["optimizer_args"]


@pytest.mark.parametrize(
    "text,expected",
    [
        ("'Adam'", ("Adam", {})),
        ("adam", ("Adam", {})),
        ("'Adam()'", ("Adam", {})),
        ('"SGD()"', ("SGD", {})),
        (
            "SGD(lr=0.01, momentum=0.9, nesterov=False)",
            ("SGD", {"learning_rate": 0.01, "momentum": 0.9, "nesterov": False}),
        ),
        ("'rmsprop(learning_rate=1e-3)'", ("RMSprop", {"learning_rate": 0.001})),
        ("Adam(epsilon=None, decay=1)", ("Adam", {"decay": 1})),
        ("SGD(lr=1, nesterov=True)", ("SGD", {"learning_rate": 1.0, "nesterov": True})),
    ],
)
def test_optimizers_are_read_in_any_spelling(text, expected):
    assert optimizer(text) == expected


def test_whole_rates_are_floats_as_keras_wants_them():
    for text in ("SGD(lr=1)", "SGD(learning_rate=1, momentum=0)", "Adam(lr=1, decay=1)"):
        assert all(type(value) is float for value in optimizer(text)[1].values())


@pytest.mark.parametrize(
    "text",
    [
        "SGD1()",
        "'Adam(lr=0.1 momentum=0.9)'",
        "Adam(lr='x')",
        "Adam(lr=[])",
        "Adam(lr=__import__('os'))",
        "Adam(",
        "''",
    ],
)
def test_other_optimizers_are_refused(text):
    with pytest.raises(ParameterError):
        optimizer(text)


def test_the_last_of_a_repeated_key_wins_and_blanks_do_not_matter():
    parsed = parse_compile_params("\n loss = 'mae' ,\n loss='mse' , optimizer = 'SGD()', metrics = ['accuracy'] \n")
    assert (parsed["loss"], parsed["optimizer"], parsed["metrics"]) == ("mse", "SGD", ["accuracy"])


@pytest.mark.parametrize(
    "extra,key,value",
    [
        ("metrics=None", "metrics", []),
        ("metrics=[]", "metrics", []),
        ("metrics=['mae']", "metrics", ["mae"]),
        ("loss_weights=[2]", "loss_weights", [2]),
        ("loss_weights={'a': 1}", "loss_weights", {"a": 1}),
        ("weighted_metrics=None", "weighted_metrics", None),
        ("sample_weight_mode='temporal'", "sample_weight_mode", "temporal"),
        ("sample_weight_mode=None", "sample_weight_mode", None),
    ],
)
def test_literals_of_compile_params(extra, key, value):
    assert parse_compile_params(f"{LOSS} optimizer='SGD()', {extra}")[key] == value


@pytest.mark.parametrize(
    "text,fragment",
    [
        ("", "empty"),
        ("optimizer='SGD()'", "'loss' is required"),
        ("loss='mse'", "'optimizer' is required"),
        ("loss='mse', optimizer='SGD()', target_tensors=[1]", "target_tensors"),
        ("loss='mse', optimizer='SGD()', metrics=['mae', 5]", "5 is not a name"),
        ("loss='Huber(delta=open)', optimizer='SGD()'", "must be a literal"),
        ("loss='Huber(reduction=\"sum\")', optimizer='SGD()'", "not accepted as an argument of loss Huber .delta."),
        ("loss='mse(axis=1)', optimizer='SGD()'", "only these take arguments"),
        ("loss=['dice', 'mse'], optimizer='SGD()'", "cannot be combined"),
        ("loss='mse', optimizer='SGD()', metrics=['AUC(fn=1)']", "not accepted as an argument of metric AUC"),
        ("loss='mse', optimizer='SGD()', metrics=['AUC(name=\"mae\")', 'mae']", "have the same name"),
        ("loss='mse', optimizer", "key = value"),
        ("loss=os.system('x'), optimizer='SGD()'", "not a name"),
    ],
)
def test_bad_compile_params_have_clear_errors(text, fragment):
    with pytest.raises(ParameterError, match=fragment.replace("[", r"\[")):
        parse_compile_params(text)


def test_fit_params_and_their_defaults():
    usual = {"batch_size": 32, "epochs": 1, "verbose": 0, "shuffle": False, "initial_epoch": 0, "keep": "last"}
    usual |= dict.fromkeys(("class_weight", "steps_per_epoch", "callbacks", "dropout", "stop"))
    assert parse_fit_params(None) == parse_fit_params("") == usual
    parsed = parse_fit_params("batch_size=5, epochs=3,class_weight={0: 1, 1: 2.5}, initial_epoch=1, shuffle='batch'")
    assert (parsed["batch_size"], parsed["epochs"], parsed["class_weight"]) == (5, 3, {0: 1, 1: 2.5})
    assert parse_fit_params("class_weight={'b': 1, 'a': 2, 0: 3}")["class_weight"] == {"b": 1, "a": 2, 0: 3}
    assert parse_fit_params("class_weight='balanced'")["class_weight"] == "balanced"
    assert parse_fit_params('callbacks=[TensorBoard(log_dir="/tmp/x/", histogram_freq=1)]')["callbacks"] == {
        "log_dir": "/tmp/x/",
        "histogram_freq": 1,
    }


@pytest.mark.parametrize(
    "text",
    [
        "batch_size=0",
        "initial_epoch=1",
        "shuffle=2",
        "class_weight={0.5: 1}",
        "class_weight='even'",
        "epochs=print(1)",
        "batch_size",
        "callbacks=[EarlyStopping()]",
        "callbacks=[TensorBoard(log_dir='/x', profile=1)]",
        "callbacks=[TensorBoard(log_dir=open('/etc/passwd'))]",
        "epochs=" + "(" * 5000,
        "batch_size=5,,",
    ],
)
def test_bad_fit_params_are_refused(text):
    with pytest.raises(ParameterError):
        parse_fit_params(text)


WORDS = """loss= optimizer= 'SGD( )' [ ] { } , = epochs= 1 None ' " metrics= __import__('os') class_weight= 0:1 1e999
callbacks= [TensorBoard( log_dir='x' )] \\ b'x' \x00 é""".split()
PIECES = st.sampled_from([*WORDS, "lambda: 0", " ", "\n"])
TEXTS = st.text() | st.text(alphabet=string.printable) | st.lists(PIECES).map("".join)


@settings(max_examples=draws(250, 5000), deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
def test_any_text_gives_a_dictionary_or_one_kind_of_error(text):
    for parse in (parse_compile_params, parse_fit_params):
        try:
            assert isinstance(parse(text), dict)
        except ParameterError as error:
            assert str(error)


@settings(max_examples=draws(150, 2000), deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
def test_any_text_gives_a_grid_or_one_kind_of_error(text):
    for keys in (grids.COMPILE_KEYS, grids.FIT_KEYS):
        try:
            assert isinstance(grids.parse(text, "grid", keys), dict)
        except grids.GridError as error:
            assert str(error)


VALUES = st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=draws(100, 1000), deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(["momentum", "rho", "epsilon", "nesterov", "clipnorm"]), VALUES),
    st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 9)),
    st.integers(1, 999),
)
def test_what_is_written_is_read(arguments, weights, batch_size):
    written = ", ".join(f"{k} = {v!r}" for k, v in arguments.items())
    parsed = parse_compile_params(f"loss_weights={weights!r}, loss='mse', optimizer='SGD({written})'")
    assert parsed["optimizer_args"] == {k: v for k, v in arguments.items() if v is not None}
    assert parsed["loss_weights"] == weights
    assert parse_fit_params(f" batch_size = {batch_size}\n")["batch_size"] == batch_size


def test_what_says_the_same_is_equal():
    assert params.canonical_fit("batch_size=5, epochs=1") == params.canonical_fit(" epochs=1,batch_size=5 ")
    same = "optimizer='sgd(lr=0.1)', loss=MSE"
    assert params.canonical_compile("loss='mse', optimizer='SGD(learning_rate=0.10)'") == params.canonical_compile(same)
    assert params.canonical_compile("loss='mse', optimizer='SGD()'") != params.canonical_compile(same)


@pytest.mark.parametrize(
    "text,loss",
    [
        ("loss='huber(delta = 2.0)'", "Huber(delta=2.0)"),
        ("loss=CategoricalCrossentropy( label_smoothing=0.1, from_logits=True )", None),
        ("loss='Huber()'", "Huber"),
        ("loss=['mse', 'Huber(delta=2)']", ["mse", "Huber(delta=2)"]),
        ("loss={'b': 'mse', 'a': 'SparseCategoricalCrossentropy(from_logits=True)'}", None),
        ("loss='sparse_categorical_crossentropy', metrics=['AUC(curve=\"PR\", name=\"pr\")', 'AUC']", None),
        (
            "loss='mse', metrics='TopKCategoricalAccuracy(k=3)', weighted_metrics=['Precision(thresholds=[0.2, 0.5])']",
            None,
        ),
    ],
)
def test_losses_and_metrics_with_arguments_are_read_and_written(text, loss):
    parsed = parse_compile_params(text + ", optimizer='SGD()'")
    assert loss is None or parsed["loss"] == loss
    again = parameter_resolver.resolve(text + ", optimizer='SGD()'", None, 1)[0]
    assert parse_compile_params(again) == parsed


def test_metrics_are_reported_by_their_names():
    parsed = parse_compile_params(
        "loss='mse', optimizer='SGD()', metrics=['mae', 'AUC(curve=\"PR\", name=\"pr\")', 'TopKCategoricalAccuracy(k=3)'], "
        "weighted_metrics=['mae', 'mse']"
    )
    assert list(params.reported_metrics(parsed)) == ["mae", "pr", "TopKCategoricalAccuracy(k=3)", "weighted_mae", "mse"]
