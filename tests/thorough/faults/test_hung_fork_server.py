"""A fork server that does not answer: a call goes on without it after a minute (the rest: faults/test_fork_server.py)."""

import os
import signal

import psycopg2
import pytest

from support.client import Client
from support.cluster import Cluster, fork_servers
from support.workload import ADAM, assert_invariants, dense, fit, load, make_data, selection


@pytest.fixture
def own():
    """A server whose fork server is nobody else's."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def db(own):
    client = Client(own, "postgres")
    client.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE")
    make_data(client, segments=2)
    load(client, "arch", dense())
    selection(client, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=5")])
    yield client
    client.close()


def run(client, output):
    assert_invariants(client, fit(client, "flowers_packed", output, "mst"))


def test_a_fork_server_that_hangs_is_done_without_and_replaced(own, db):
    first = db.another()
    run(first, "hanging")
    (hung,) = fork_servers(own)
    os.kill(hung, signal.SIGSTOP)
    second = db.another()
    predict = "SELECT madlib.madlib_keras_predict('hanging', 'flowers', 'id', 'x', 'predicted', 'prob', FALSE, 1)"
    second.run("SET statement_timeout = '2s'")
    with pytest.raises(psycopg2.errors.QueryCanceled):  # a cancel is heard while it waits
        second.run(predict)
    second.run("RESET statement_timeout")
    second.run(predict)
    assert not fork_servers(own), "it has been killed"
    third = db.another()
    run(third, "unhung")
    assert len(fork_servers(own)) == 1
    first.close(), second.close(), third.close()
