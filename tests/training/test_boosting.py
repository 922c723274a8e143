"""The trainer's search of boosted trees, in the test's own process."""

import socket
import threading
import time

import numpy as np
import pytest

from mop_udf.pool.channel import Channel
from mop_udf.training import boosting
from mop_udf.training.trainer_server import TrainerServer
from pg_mop.inference import trees

pytest.importorskip("lightgbm", reason="not run: LightGBM is not installed (pip install lightgbm)")

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(400, 4)).astype("f4")
X[:, 3] = RANDOM.integers(0, 6, 400)
NUMBERS = np.sin(2 * X[:, 0]) + (X[:, 3] % 2) + RANDOM.normal(0, 0.2, 400)
LONG = 60.0  # seconds: the search ends by itself


def rows(part, targets, weights=None):
    return boosting.Rows(X[part], np.asarray(targets, "f8")[part], weights)


def search(targets, classes, seconds=LONG, kept=3):
    until = time.monotonic() + seconds
    train, valid = rows(slice(300), targets), rows(slice(300, 400), targets)
    return boosting.search(train, valid, [3], classes, until, 5, 1, 1, kept)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_texts_are_those_of_the_answers_and_of_the_loss(classes):
    targets = np.digitize(NUMBERS, [[0.5], [0.2, 0.9]][classes - 2]) if classes else NUMBERS
    trials = search(targets, classes)
    kept = sorted((one for one in trials if one.text), key=lambda one: one.loss)
    assert len(kept) == 3 and kept[0].loss == min(one.loss for one in trials)
    for one in kept:
        found = trees.read(one.text.encode(), 4)(X[300:])
        assert np.allclose(found, one.answers, atol=1e-9)
        chosen = found[np.arange(100), targets[300:] if classes else 0]
        loss = -np.log(chosen).mean() if classes else ((chosen - targets[300:]) ** 2).mean()
        assert one.loss == pytest.approx(loss, rel=1e-4)


def test_without_time_there_is_a_model():
    trial, *_ = search(NUMBERS, 0, seconds=0)
    assert trial.rounds >= 1 and trial.text and np.isfinite(trial.loss)


def test_the_trainer_answers_a_request():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server = TrainerServer(Channel(theirs.fileno(), theirs.fileno()), 1, 8, 0, 0)
        served = threading.Thread(target=server.serve, args=(None,))
        served.start()
        channel = Channel(ours.fileno(), ours.fileno())
        arrays = [X[:300], NUMBERS[:300], np.ones(300), X[300:], NUMBERS[300:]]
        header = {
            "op": "boosting",
            "shapes": [[300, 4], [100, 4]],
            "weighted": [True, False],
            "codes": [3],
            "classes": 0,
        }
        header |= {"until": time.monotonic() + LONG, "most": 5, "threads": 1, "seed": 1, "kept": 2, "objective": {}}
        channel.send(header, *(np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays))
        told, (answer, payloads) = [], channel.receive()
        while "kept" not in answer:
            told.append(answer["done"])
            answer, payloads = channel.receive()
        assert told and told == sorted(told) and told[-1] <= len(answer["trials"])
        assert len(answer["kept"]) == 2 and len(payloads) == 4 and len(answer["trials"]) > 2
        found = trees.read(bytes(payloads[0]), 4)(X[300:])
        assert np.allclose(found[:, 0], np.frombuffer(payloads[2], "f8"))
        ours.shutdown(socket.SHUT_RDWR)
        served.join()
