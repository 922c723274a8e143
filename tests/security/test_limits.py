"""What is too large is refused before it is allocated, and a trainer that holds too much memory is ended."""

import json
import os
import pathlib

import numpy as np
import pytest

from mop_udf.aggregate import CONFIGURATION_FAILED, MEMORY_EXCEEDED, TRAINER_LOST, Session, failures_as_sql
from mop_udf.pool import process
from mop_udf.unit_spec import UnitHeader, UnitModel
from support.cluster import HOME, programs
from support.trainers import all_trainers
from support.workload import ADAM, dense, fit, layer, load, make_data, selection, sequential

ROWS = 64


class Raised(Exception):
    """What an SQL error becomes here: (message, SQLSTATE)."""


class Unlimited:
    """What no administrator limits."""

    allowed, admit, caller = dict, id, str


class Interrupts:
    """A session that nobody cancels."""

    def execute(self, sql):
        return []

    def error(self, message, sqlstate):
        raise Raised(message, sqlstate)


def options(**more):
    return {"threads": 1, "keras_backend": "tensorflow", "cache_mb": 100, "idle_ms": 60000, **more}


@pytest.fixture
def holder():
    """The backend's side of a unit, with real trainers."""
    programs()  # makes HOME
    session = Session(Interrupts(), str(HOME))
    yield session
    session.stop_trainer()


def unit(architecture, optimizer="Adam()", batch_size=8):
    return {
        "kind": "train",
        "dataset": "d",
        "segment": 0,
        "nbytes": ROWS * 10,
        "seed": 1,
        "same_start": True,
        "dtypes": ["<f4", "<i2"],
        "inputs": 1,
        "rows": ROWS,
        "replicas": None,
        "outputs": {"widths": [3], "what": "classes", "table": "t"},
        "run_seconds": 0,
        "model": {
            "epochs": 1,
            "kernel": "plain",
            "stage": 1,
            "mst_key": 1,
            "model_id": 1,
            "iteration": 1,
            "passes_left": 1,
            "run_passes_left": 1,
            "plain_weights": True,
            "architecture": architecture,
            "compile_params": f"loss='categorical_crossentropy', optimizer='{optimizer}'",
            "fit_params": f"batch_size={batch_size}",
        },
    }


def begin(holder, what, states):
    keeps = holder.holds(what["dataset"], what["nbytes"], [])
    header = UnitHeader.from_json({**what, "keeps_rows": keeps})
    holder.begin(header, [UnitModel.from_json(what["model"])], states, [{}])


def train(holder, what, **limits):
    """Train a unit; its report."""
    with failures_as_sql(holder.plpy, holder):
        try:
            holder.start_trainer(options(**limits), Unlimited)
            begin(holder, what, [])
            if holder.unit.sends_rows:
                x, y = np.ones((ROWS, 4), "<f4"), np.eye(3, dtype="<i2")[np.arange(ROWS) % 3]
                holder.rows(1, 0, [x.tobytes(), y.tobytes()], ["{%d,4}" % ROWS, "{%d,3}" % ROWS])
            return holder.end()["models"][0]
        except BaseException:
            if holder.unit is not None:
                holder.stop_trainer()
            raise


def refused(holder, what, expected=CONFIGURATION_FAILED, **limits):
    """The message with which a unit fails as a configuration that is not to be tried again, or as `expected` says."""
    with pytest.raises(Raised) as caught:
        train(holder, what, **limits)
    message, state = caught.value.args
    assert state == expected
    return message


def wide(*widths, classes=3):
    return sequential(
        "wide",
        [4],
        *(layer("Dense", name=f"d{i}", units=n) for i, n in enumerate(widths)),
        layer("Dense", name="out", units=classes, activation="softmax"),
    )


HUGE = {
    "100 GB": wide(160_000, 160_000),
    "terabytes": wide(10**12),
    "more than an int32": wide(2**40, 2**40),
    "more than an int64": wide(2**62, 2**62),
    "more than anything": wide(10**30),
    "an embedding": sequential("e", [4], layer("Embedding", name="e", input_dim=10**11, output_dim=100)),
    "a convolution": sequential("c", [8, 8, 1], layer("Conv2D", name="c", filters=10**10, kernel_size=[5, 5])),
    "a recurrent cell": sequential("r", [8, 2], layer("LSTM", name="l", units=10**6)),
    "many layers": wide(*[20_000] * 40),
    "within another layer": sequential(
        "t", [8, 2], layer("TimeDistributed", name="t", layer=layer("Dense", name="d", units=10**12))
    ),
}


def processor_seconds(pid):
    """The time that a process has computed."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_model_that_no_machine_holds_is_refused_and_the_trainer_lives(holder):
    train(holder, unit(dense()))
    pid = holder.trainer.pid
    for name, architecture in HUGE.items():
        began = processor_seconds(pid)
        message = refused(holder, unit(architecture))
        assert "more than the memory of this machine" in message and "bytes of weights" in message, name
        assert processor_seconds(pid) - began < 10, name
    assert "102,4" in refused(holder, unit(HUGE["100 GB"])), "160,000 x 160,000 x 4 bytes"
    assert holder.trainer.pid == pid and train(holder, unit(dense()))["rows"] == ROWS
    peak = [line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in line]
    assert int(peak[0].split()[1]) >> 10 < 2000, "nothing of them was allocated"


def test_a_model_above_the_limit_is_refused_with_both_numbers(holder):
    limits = {"model_mb": 10}
    # 4 * 250,000 + 250,000 + 3 * 250,000 + 3 numbers: 8 MB, with Adam's variables 24
    message = refused(holder, unit(wide(250_000)), **limits)
    assert message == (
        "the model has 8,000,012 bytes of weights (and 16,000,024 of optimizer variables), more than "
        "pg_mop.max_model_mb allows (10 MB)"
    )
    assert train(holder, unit(wide(250_000), "SGD()"), **limits)["rows"] == ROWS
    assert "more than pg_mop.max_model_mb allows" in refused(holder, unit(wide(250_000), "Ftrl()"), **limits)
    assert train(holder, unit(dense()), **limits)["rows"] == ROWS


def stateful(value, units, **more):
    """A recurrent layer that keeps its state for 100 rows; `value`: what its JSON says for stateful."""
    return {"units": units, "name": "r", "stateful": value, **more}


def batches_of(count, *layers):
    """A Sequential of `layers` for batches of `count` rows of 2 steps of 4 numbers, with 3 outputs."""
    made = json.loads(sequential("s", [2, 4], *layers, layer("Dense", name="out", units=3)))
    made["config"]["layers"][0]["config"]["batch_shape"][0] = count
    return json.dumps(made)


@pytest.mark.parametrize("value", [True, 1, "yes", [0], 2.5])
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda s, rows=100: layer("LSTM", **s),
        lambda s, rows=100: layer("Bidirectional", name="b", layer=layer("GRU", **s)),
        lambda s, rows=100: layer(
            "RNN",
            name="n",
            stateful=s["stateful"],
            cell=layer(
                "StackedRNNCells",
                name="c",
                cells=[layer("LSTMCell", name="l", units=s["units"]), layer("SimpleRNNCell", name="m", units=4)],
            ),
        ),
        lambda s, rows=100: json.loads(batches_of(rows, layer("SimpleRNN", **s))),
    ],
)
def test_a_layer_that_keeps_its_state_is_refused_whatever_says_that_it_does(wrapped, value):
    """One that does not is sized as every other, whatever number of rows it was made for."""
    from mop_udf.training import models, sizes

    with pytest.raises(models.ConfigurationError, match="is stateful"):
        models.normalise(batches_of(100, wrapped(stateful(value, 3))))
    models.build(models.normalise(batches_of(100, wrapped(stateful(False, 3)))), 1)
    sizes.limit_mb = 10
    try:
        for text in (
            batches_of(100, wrapped(stateful(False, 5000))),
            batches_of(100, wrapped(stateful(False, 3)), layer("Dense", name="d", units=10**7)),
        ):
            with pytest.raises(models.ConfigurationError, match="more than pg_mop.max_model_mb allows"):
                models.build(models.normalise(text), 1)
    finally:
        sizes.limit_mb = None


def test_what_spreads_a_number_over_its_input_is_sized():
    from mop_udf.training import models

    wide_input = sequential(
        "n", [10**12], layer("Normalization", name="n", mean=0.0, variance=1.0), layer("Dense", name="out", units=3)
    )
    with pytest.raises(models.ConfigurationError, match="more than the memory of this machine"):
        models.build(models.normalise(wide_input), 1)


def test_what_cannot_be_sized_is_not_built(monkeypatch):
    """Whatever Keras says while the size is asked for: the model itself is not made then."""
    import keras

    from mop_udf.training import models, sizes

    made, load_model = [], keras.models.model_from_json

    def fails(text):
        made.append(text)
        if keras.src.backend.common.stateless_scope.in_stateless_scope():
            raise KeyError("nobody knows")
        return load_model(text)

    monkeypatch.setattr(keras.models, "model_from_json", fails)
    sizes._variables.cache_clear()
    with pytest.raises(models.ConfigurationError, match="Keras refuses the architecture: KeyError: 'nobody knows'"):
        models.build(models.normalise(dense(width=7)), 1)
    assert len(made) == 1


def test_a_model_to_predict_with_is_limited_too(holder):
    trainer = holder.start_trainer(options(model_mb=10), Unlimited)
    for header, payload in (
        ({"op": "model", "architecture": wide(500_000)}, b""),
        ({"op": "model", "architecture": HUGE["100 GB"]}, b""),
    ):
        trainer.send(header, payload)
        with pytest.raises(process.TrainerError, match="bytes of weights, more than pg_mop.max_model_mb") as caught:
            trainer.receive()
        assert caught.value.configuration
    assert trainer.alive()


def test_a_trainer_that_holds_too_much_is_ended_and_the_next_unit_gets_another(holder):
    limits = {"memory_mb": 1500}
    train(holder, unit(dense()), **limits)
    pid = holder.trainer.pid
    # 64 rows of 4 million numbers are 1 GB, of which training holds several; the weights are small
    greedy = sequential(
        "g",
        [4],
        layer("RepeatVector", name="r", n=1_000_000),
        layer("Dense", name="d", units=4, activation="tanh"),
        layer("Flatten", name="f"),
        layer("Reshape", name="s", target_shape=[1_000_000, 4]),
        layer("GlobalMaxPooling1D", name="p"),
        layer("Dense", name="out", units=3),
    )
    refused(holder, unit(greedy, batch_size=ROWS), TRAINER_LOST, **limits)  # what came before may be to blame
    message = refused(holder, unit(greedy, batch_size=ROWS), MEMORY_EXCEEDED, **limits)
    assert message.startswith("the trainer used ") and message.endswith(
        "MB, more than pg_mop.trainer_memory_mb allows (1500 MB)"
    )
    assert pid not in all_trainers()
    assert train(holder, unit(dense()), **limits)["rows"] == ROWS
    assert holder.trainer.pid != pid


def test_memory_that_cannot_be_had_is_the_configurations_fault_under_a_limit(holder):
    # 64 rows of 16 TB each: no allocator tries
    greedy = sequential(
        "g",
        [4],
        layer("RepeatVector", name="r", n=1_000_000_000_000),
        layer("GlobalMaxPooling1D", name="p"),
        layer("Dense", name="out", units=3),
    )
    assert refused(holder, unit(greedy), memory_mb=4000)
    assert train(holder, unit(dense()), memory_mb=4000)["rows"] == ROWS


def test_every_optimizers_variables_are_counted():
    from mop_udf.params import parameter_names
    from mop_udf.training import models, optimizers, sizes

    model = models.build(models.normalise(wide(300, 200)), 1)
    weights = [(tuple(v.shape), v.dtype) for v in model.trainable_variables]
    for name in parameter_names.OPTIMIZERS:
        optimizer = optimizers.make_optimizer(name, {})
        before = len(optimizer.variables)
        optimizer.build(model.trainable_variables)
        real = sum(int(np.prod(v.shape)) * 4 for v in optimizer.variables[before:])
        # single numbers of their own are not counted
        assert 0 <= real - sizes._optimizer_bytes(optimizers.make_optimizer(name, {}), weights) < 100, name


def test_a_huge_model_fails_alone_in_a_run(db):
    make_data(db, segments=1)
    load(db, "arch", dense(), HUGE["100 GB"].replace("wide", "huge"))
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), ""), (2, ADAM.format(0.05), "")])
    fit(db, "flowers_packed", "models", "mst", 1)
    errors = {r["mst_key"]: r["error"] for r in db.run("SELECT mst_key, error FROM models_info")}
    assert errors[1] is None and "more than the memory of this machine" in errors[2]
    assert db.value("SELECT max(attempt) FROM madlib.mop_unit") == 1, "it is not tried again"


PICTURES = 1024  # whose evaluation at once needs 1.8 GB


def test_an_evaluation_keeps_the_limit_that_training_keeps(holder):
    network = sequential(
        "p",
        [64, 64, 3],
        *(
            layer("Conv2D", name=f"c{i}", filters=32, kernel_size=[1, 1], activation="relu")  # (few computations)
            for i in range(3)
        ),
        layer("GlobalAveragePooling2D", name="g"),
        layer("Dense", name="o", units=3, activation="softmax"),
    )
    holder.start_trainer(options(memory_mb=1500), Unlimited)
    x = np.random.default_rng(0).random((PICTURES, 64, 64, 3), "f4")
    y = np.eye(3, dtype="<i2")[np.arange(PICTURES) % 3]
    weights = b"".join(np.full(n, 0.01, "f4").tobytes() for n in (96, 32, 1024, 32, 1024, 32, 96, 3))
    with failures_as_sql(holder.plpy, holder):
        begin(holder, {**unit(network), "kind": "evaluate", "rows": PICTURES, "nbytes": 1 << 40}, [(1, weights)])
        for start in range(0, PICTURES, 128):
            own = slice(start, start + 128)
            holder.rows(1, start, [x[own].tobytes(), y[own].tobytes()], ["{128,64,64,3}", "{128,3}"])
        report = holder.end()["models"][0]
    assert report["rows"] == PICTURES and report["loss"] > 0
    # and so does a prediction of as many rows as are sent at once
    trainer = holder.trainer
    trainer.send({"op": "model", "architecture": network}, weights)
    trainer.receive()
    trainer.send({"op": "predict", "shapes": [list(x.shape)]}, x.tobytes())
    assert len(trainer.receive()[1][0]) == PICTURES * 3 * 4


def test_settings_and_an_administrators_limits_reach_the_trainers(db):
    """What a role may not have fails as a configuration; the others finish; a setting cannot raise a limit."""
    make_data(db, segments=1)
    load(db, "arch", dense(), dense(200_000, name="big"), dense(5_000_000_000, name="absurd"))
    adam = ADAM.format(0.01)
    selection(db, "mst", "arch", [(1, adam, "batch_size=50"), (2, adam, "batch_size=50"), (3, adam, "batch_size=50")])

    def errors(output):
        fit(db, "flowers_packed", output, "mst", 1)
        return [r["error"] for r in db.run(f"SELECT error FROM {output}_info ORDER BY mst_key")]

    db.run("SET pg_mop.max_model_mb = 10; SET pg_mop.seed = 1")
    first, second, third = errors("capped")
    assert first is None and "pg_mop.max_model_mb allows (10 MB)" in second and "bytes of weights" in third
    db.run("SET pg_mop.max_model_mb = 1000")
    assert errors("raised")[1] is None
    db.run("INSERT INTO madlib.mop_limit (max_model_mb) VALUES (10)")
    assert "allows (10 MB)" in errors("limited")[1]
    db.run("DELETE FROM madlib.mop_limit; RESET pg_mop.max_model_mb")
