"""How worker sessions get in: by socket only, by TCP only, with passwords; and where those passwords never appear."""

import glob
import pathlib
import re
import threading

import psycopg2
import pytest

from support.client import Client
from support.cluster import Cluster
from support.places import job, prepare

SECRET, WRONG = "s3cr3t'of a \\ lodger", "wr0ngWord"


@pytest.fixture(scope="module", params=["socket only", "TCP only"])
def locked(request):
    """(server, superuser's session, how): everybody needs a password, and there is one way in."""
    one_way = {"listen_addresses": ""} if request.param == "socket only" else {"unix_socket_directories": ""}
    with Cluster(**one_way) as server:
        server.passwords("super")
        db = Client(server, "postgres")
        db.run(
            "CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; SET password_encryption = "
            "'scram-sha-256'; CREATE ROLE lodger LOGIN; GRANT mop_user TO lodger"
        )
        db.run("ALTER ROLE lodger PASSWORD %s", [SECRET])
        prepare(db, "lodger", "lodger")
        yield server, db, request.param
        db.close()


@pytest.fixture
def lodger(locked):
    server, db, _ = locked
    db.run("DROP SERVER IF EXISTS pg_mop CASCADE")
    client = Client(server, "postgres", "lodger", SECRET)
    yield client
    client.close()


def literal(text):
    return psycopg2.extensions.QuotedString(text).getquoted().decode()


def pack(client):
    client.run(
        "DROP TABLE IF EXISTS lodger.packed, lodger.packed_summary, lodger.models, lodger.models_info, "
        "lodger.models_summary; SET pg_mop.threads = 1; SET pg_mop.kernel = 'plain'; SET pg_mop.segments = 2"
    )
    client.run("SELECT madlib.training_preprocessor_dl('lodger.flowers', 'lodger.packed', 'y', 'x', 10)")


def test_a_password_and_the_weights_are_nowhere_to_be_read(locked, lodger):
    """Not in the server's log, however much it logs; not on a command line or in an environment."""
    server, db, how = locked
    pack(lodger)
    db.run(
        "CREATE SERVER pg_mop FOREIGN DATA WRAPPER pg_mop"
        + ("" if how == "socket only" else " OPTIONS (host '127.0.0.1')")
    )
    db.run("GRANT USAGE ON FOREIGN SERVER pg_mop TO lodger")
    db.run(f"CREATE USER MAPPING FOR lodger SERVER pg_mop OPTIONS (password {literal(SECRET)})")
    begins = server.log.stat().st_size
    db.run(
        "ALTER ROLE lodger SET log_statement = 'all'; ALTER ROLE lodger SET log_min_duration_statement = 0; "
        "ALTER ROLE lodger SET log_min_messages = 'debug1'; ALTER ROLE lodger SET log_duration = on"
    )
    try:
        client = Client(server, "postgres", "lodger", SECRET)
        seen, over = set(), threading.Event()
        watch = threading.Thread(target=look_at_processes, args=(server, seen, over))
        watch.start()
        try:
            job(client, "lodger")
        finally:
            over.set()
            watch.join()
        client.close()
    finally:
        db.run("ALTER ROLE lodger RESET ALL")
    assert {"backend", "trainer"} <= {kind for kind, _ in seen}, "the watch saw the processes at work"
    written = server.log.read_bytes()[begins:]
    assert b"mop_sub_epoch" in written, "the log does log the workers' statements"
    for kind, text in [*seen, ("log", written)]:
        assert b"s3cr3t" not in text, kind
    for row in db.run("SELECT model_weights AS w FROM lodger.models"):
        weights = bytes(row["w"])[:24]
        assert weights.hex().encode() not in written and weights not in written
        assert literal_of(db, weights) not in written
    assert not re.search(rb"\\x80(02|03|04|05)95?", written), "pickles"
    assert max(map(len, written.splitlines())) < 20_000
    assert b"PANIC" not in written and b"FATAL" not in written


def literal_of(db, data):
    return db.value("SELECT encode(%s, 'escape')", [data]).encode()


def look_at_processes(server, seen, over):
    """Note the command lines and environments of the server's processes and of the trainers, until `over`."""
    while not over.wait(0.1):
        for folder in glob.glob("/proc/[0-9]*"):
            try:
                command = pathlib.Path(folder, "cmdline").read_bytes()
                kind = (
                    "trainer"
                    if b"mop_udf.training.trainer" in command
                    else "backend"
                    if b"lodger" in command and b"postgres" in command
                    else "other"
                )
                seen.add((kind, command))
                if kind != "other":
                    seen.add((kind, pathlib.Path(folder, "environ").read_bytes()))
            except OSError:  # it has ended, or is another user's
                pass
