"""A serving process, step by step, in the test's own process: sessions are sockets, and no step depends on the time."""

import contextlib
import json
import socket

import keras
import numpy as np
import pytest
from keras import layers

from mop_udf import state
from mop_udf.pool.channel import Channel, frame
from mop_udf.training import predictors
from mop_udf.training.predictors import Predictors
from mop_udf.training.serving import Serving


def net(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((6,)), layers.Reshape((3, 2)), layers.LSTM(4), layers.Dense(2)])


class Asker:
    """A session that has come to the serving process."""

    def __init__(self, served):
        self.served = served
        self.own, theirs = socket.socketpair()
        served.stack.enter_context(self.own)
        with theirs:
            socket.send_fds(served.pool, [b"{}"], [theirs.fileno()])
        served.step()
        self.channel = Channel(self.own.fileno(), self.own.fileno(), served.step)

    def ask(self, model, rows, given=False, **header):
        """Send a request. `given`: with the model."""
        header = {"op": "predict", "digest": model.name, "shapes": [list(rows.shape)], **header}
        payloads = [np.ascontiguousarray(rows, "<f4").reshape(-1).view(np.uint8)]
        if given:
            header["architecture"] = model.to_json()
            payloads.insert(0, state.weights_to_bytes(model.get_weights()))
        self.channel.send(header, *payloads)

    def answer(self):
        header, payloads = self.channel.receive()
        if "shapes" not in header:
            return header
        return np.frombuffer(payloads[0], "<f4").reshape(header["shapes"][0])


class Served(Serving):
    def __init__(self, stack):
        self.stack = stack
        self.pool, control = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        super().__init__(control, 0.0, Predictors(0))
        self.batches = []
        kept = self._predictors.answers
        self._predictors.answers = lambda frames: self.batches.append(len(frames)) or kept(frames)

    def wait(self, count):
        """Read until so many requests wait, without answering."""
        while len(self._waiting) < count:
            self._look(None)

    def close(self):
        for key in list(self._events.get_map().values()):
            self.stack.enter_context(key.fileobj)
        self._events.close()

    def told(self):
        """What the pool was told last."""
        texts = []
        self.pool.setblocking(False)
        try:
            while True:
                texts.append(self.pool.recv(1 << 16))
        except BlockingIOError:
            return json.loads(texts[-1])


@pytest.fixture
def served():
    with contextlib.ExitStack() as stack:
        served = Served(stack)
        yield served
        served.close()


ROWS = np.random.default_rng(3).normal(0, 1, (40, 6)).astype("f4")


def test_sessions_share_a_model_that_one_of_them_has_sent(served):
    first, second, model = Asker(served), Asker(served), net(1)
    wanted = model.predict(ROWS, verbose=0)
    first.ask(model, ROWS)
    assert first.answer()["absent"]
    first.ask(model, ROWS, given=True)
    assert np.allclose(first.answer(), wanted, atol=1e-6)
    second.ask(model, ROWS[:3])
    assert np.allclose(second.answer(), wanted[:3], atol=1e-6)
    served.step()
    told = served.told()
    assert told["held"]["nets"] == [model.name] and told["quiet"] and told["left"] == 0


def test_rows_of_several_sessions_that_wait_are_one_batch(served):
    """And only those for the same model. The answers agree with those of single requests within rounding."""
    one, other = net(1), net(2)
    askers = [Asker(served) for _ in range(6)]
    for model in (one, other):
        askers[0].ask(model, ROWS, given=True)
        askers[0].answer()
    served.batches.clear()
    asked = [(one, 0, 5), (other, 5, 9), (one, 9, 10), (one, 10, 30), (other, 30, 31), (one, 31, 40)]
    for asker, (model, start, end) in zip(askers, asked, strict=True):
        asker.ask(model, ROWS[start:end])
    served.wait(6)
    for asker, (model, start, end) in zip(askers, asked, strict=True):
        assert np.allclose(asker.answer(), model.predict(ROWS[start:end], verbose=0), rtol=1e-5, atol=1e-6)
    assert served.batches == [4, 2]


def test_an_error_is_the_answer_of_its_cause_alone(served):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), layers.Embedding(10, 3), layers.Flatten()])
    askers = [Asker(served) for _ in range(3)]
    askers[0].ask(model, np.ones((1, 1)), given=True)
    askers[0].answer()
    for asker, number in zip(askers, (2, 99, 3)):
        asker.ask(model, np.full((1, 1), number, "f4"))
    served.wait(3)
    good, bad, fine = (asker.answer() for asker in askers)
    assert "error" in bad and np.array_equal([good[0], fine[0]], model.get_weights()[0][[2, 3]])
    askers[1].ask(model, ROWS, shapes=[[3, 3]])
    assert "error" in askers[1].answer()
    askers[1].channel.send({"op": "no such"})
    assert "error" in askers[1].answer()


def test_a_session_that_stands_still_or_goes_away_hinders_no_other(served):
    half, gone, garbage, reader, model = *(Asker(served) for _ in range(4)), net(1)
    reader.ask(model, ROWS, given=True)
    wanted = reader.answer()
    whole = b"".join(
        frame({"op": "predict", "digest": model.name, "shapes": [[40, 6]]}, [ROWS.reshape(-1).view(np.uint8)])
    )
    half.own.send(whole[:100])
    gone.ask(model, ROWS)
    reader.ask(model, ROWS)
    served.wait(2)
    gone.own.close()
    garbage.own.send(b"\3\0\0\0{]}")
    served.batches.clear()
    assert np.allclose(reader.answer(), wanted, atol=1e-6)
    half.own.send(whole[100:])
    assert np.allclose(half.answer(), wanted, atol=1e-6)
    served.step()
    assert served.batches == [1, 1] and served.told()["left"] == 2


def test_an_answer_that_nobody_reads_hinders_no_other(served):
    slow, other = Asker(served), Asker(served)
    keras.utils.set_random_seed(1)
    wide = keras.Sequential([keras.Input((1,)), layers.Dense(50_000)])
    slow.ask(wide, np.ones((10, 1)), given=True)
    served.wait(1)
    other.ask(wide, np.ones((1, 1)))
    assert np.allclose(other.answer(), slow.answer()[:1], rtol=1e-5)


def test_the_models_that_were_asked_least_recently_go(served, monkeypatch):
    monkeypatch.setattr(predictors, "MOST_MODELS", 2)
    asker, models = Asker(served), [net(seed) for seed in range(3)]
    for model in (models[0], models[1], models[0], models[2]):
        asker.ask(model, ROWS[:1], given=True)
        asker.answer()
    asker.ask(models[1], ROWS[:1])
    assert asker.answer()["absent"]
    asker.ask(models[0], ROWS[:1])
    assert asker.answer().shape == (1, 2)
