"""Nothing of a connection's parameters is ever shown but host, port, database and role."""

import logging
import subprocess
import sys
import traceback

import pytest
import sqlalchemy

from pg_mop_client import ClientError, LostError, Selection
from pg_mop_client.command import main
from pg_mop_client.database import make_engine

SECRET = "Xq7vHUSH"
UNREADABLE = """
postgresql+asyncpg://u:{}@127.0.0.1/db postgres+aiopg://u:{}@127.0.0.1/db postgresql+pg8000://u:{}@127.0.0.1/db
jdbc:postgresql://u:{}@h/db mysql://u:{}@h/db postgresql://u:{}@127.0.0.1:bad/db postgresql://u:{}%ZZ@127.0.0.1/db
postgresql://u:%{}@127.0.0.1/db postgresql://u:100%{}@127.0.0.1/db postgresql://u:a@{}@127.0.0.1/db
postgresql://u:{}/x@127.0.0.1/db postgresql://u:a/{}@127.0.0.1/db postgresql://u:a@b/{}@127.0.0.1/db
postgresql://{}/a@127.0.0.1/db postgresql://u:p@127.0.0.1/db?{} postgresql://u:p@127.0.0.1/db?{}=1
postgresql:/u:{}@127.0.0.1/db postgresql//u:{}@127.0.0.1/db https://u:{}@127.0.0.1/db {} u:{}@127.0.0.1/db
postgresql://u@127.0.0.1:1/db?passwort={}
""".split()
UNREADABLE += [
    "host=127.0.0.1 password=a {} dbname=db",
    "host=127.0.0.1 password=a {}=1",
    "host=127.0.0.1 password='{}",
    "host=127.0.0.1 {}",
    "host=127.0.0.1 pass={}",
    "password={}' host=h' x",
    "host=127.0.0.1 port={}",
    "\0{}",
    "host=127.0.0.1 password={}\0",
]
UNREACHABLE = """
postgresql://u:{}@127.0.0.1:1/db postgres://u:{}@127.0.0.1:1/db postgresql+psycopg2://u:{}@127.0.0.1:1/db
postgres+psycopg://u:{}@127.0.0.1:1/db postgresql://u:%25{}@127.0.0.1:1/db postgresql://u@127.0.0.1:1/db?password={}
postgresql://u:?{}=@127.0.0.1:1/db postgresql://u:p:{}#@127.0.0.1:1/db
""".split()
UNREACHABLE += [
    " postgresql://u:{}@127.0.0.1:1/db ",
    "host=127.0.0.1 port=1 user=u dbname=db password={}",
    "host=127.0.0.1 port=1 password='a b{}'",
    "host=127.0.0.1 port=1 sslpassword={} application_name={}",
]


def shown(error):
    """All that anybody may be shown of an error."""
    found = "".join(traceback.format_exception(error))
    while error is not None:
        found += f"{error} {error!r} {error.args} {vars(error)}"
        error = error.__cause__ or error.__context__
    return found


@pytest.mark.parametrize("where", [*UNREADABLE, *UNREACHABLE])
def test_no_error_has_a_password(where, caplog, capsys):
    where = where.replace("{}", SECRET)
    with caplog.at_level(logging.DEBUG), pytest.raises(ClientError) as raised:
        Selection(where)
    capsys.readouterr()
    assert main(["-d", where, "runs"]) == 1
    written = capsys.readouterr()
    for text in (shown(raised.value), caplog.text, written.out, written.err):
        assert SECRET not in text and SECRET.upper() not in text.upper()
    is_lost = isinstance(raised.value, LostError)
    assert is_lost == (where.replace(SECRET, "{}") in UNREACHABLE)
    if is_lost:
        assert "127.0.0.1" in str(raised.value) and "port 1 " in str(raised.value)
    else:
        assert raised.value.hint


def test_the_hint_says_how_a_password_is_written():
    with pytest.raises(ClientError) as raised:
        Selection(f"postgresql://u:{SECRET}%@127.0.0.1/db")
    assert "urllib.parse.quote" in raised.value.hint
    with pytest.raises(ClientError, match=r"the URI's scheme is postgresql\+asyncpg, not postgresql"):
        Selection(f"postgresql+asyncpg://u:{SECRET}@127.0.0.1/db")


@pytest.mark.parametrize(
    "arguments",
    [
        ["-d", "host=127.0.0.1", f"password={SECRET}", "runs"],
        [f"postgresql://u:{SECRET}@127.0.0.1/db", "runs"],
        ["-d", "host=127.0.0.1", "runs", f"password={SECRET}"],
        ["runs", "-n", f"password={SECRET}"],
        [f"--password={SECRET}", "runs"],
    ],
)
def test_an_argument_that_is_not_in_quotes_is_not_shown(arguments):
    done = subprocess.run(
        [sys.executable, "-c", "from pg_mop_client.command import main; main()", *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and SECRET not in done.stdout + done.stderr and "is not shown" in done.stderr


def test_no_repr_and_no_log_has_a_password(db, caplog):
    uri = db.uri().replace("postgresql://", "postgresql+psycopg2://", 1)
    password = sqlalchemy.make_url(uri).password
    for where in (uri, sqlalchemy.make_url(uri), f"  {db.uri()}\n"):
        with caplog.at_level(logging.DEBUG), Selection(where, progress=False) as s:
            text = f"{s!r} {s.engine!r} {s.engine.url!r} {s.calls.connection()!r} {s.engine.pool!r} "
            text += repr(s.calls.connection().connection.dbapi_connection)
            assert s.query("SELECT 1 AS one").one[0] == 1
            s.engine.dispose()
        assert password is None or password not in text + caplog.text


def test_what_is_no_connection_is_told_by_its_type():
    for where in (3, {"password": SECRET}, [SECRET], SECRET.encode()):
        with pytest.raises(ClientError) as raised:
            make_engine(where)
        assert SECRET not in str(raised.value) and type(where).__name__ in str(raised.value)


def test_a_service_and_the_environment_are_read_as_psql_does(db, tmp_path, monkeypatch):
    url = sqlalchemy.make_url(db.uri())
    (tmp_path / "services").write_text(
        "[here]\n"
        + "".join(
            f"{name}={value}\n"
            for name, value in {
                **url.query,
                "host": url.host,
                "port": url.port,
                "user": url.username,
                "dbname": url.database,
                "password": url.password,
            }.items()
            if value is not None
        )
    )
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    with Selection("service=here", progress=False) as s:
        assert s.query("SELECT current_database() AS name").name[0] == url.database
    monkeypatch.setenv("PGSERVICE", "here")
    with Selection(progress=False) as s:
        assert s.query("SELECT 1 AS one").one[0] == 1
    (tmp_path / "services").write_text(f"[here]\nhost=127.0.0.1\nport=1\npassword {SECRET}\n")
    with pytest.raises(ClientError) as raised:
        Selection()
    assert SECRET not in shown(raised.value)
    monkeypatch.setenv("PGSERVICE", "nowhere")
    monkeypatch.setenv("PGPASSWORD", SECRET)
    with pytest.raises(ClientError) as raised:
        Selection()
    assert SECRET not in shown(raised.value)


@pytest.mark.parametrize(
    "pool",
    [
        {"pool_size": 1, "max_overflow": 0},
        {"poolclass": sqlalchemy.StaticPool},
        {"poolclass": sqlalchemy.AssertionPool},
    ],
)
def test_a_pool_of_one_connection_is_refused_before_any_work(db, pool):
    engine = sqlalchemy.create_engine(db.uri().replace("postgresql://", "postgresql+psycopg2://", 1), **pool)
    with pytest.raises(ClientError, match="pool has one connection, but a call and its progress need two\nHINT: "):
        Selection(engine)
    engine.dispose()


def test_a_pool_that_is_used_up_is_said(db):
    engine = sqlalchemy.create_engine(
        db.uri().replace("postgresql://", "postgresql+psycopg2://", 1), pool_size=2, max_overflow=0, pool_timeout=0.1
    )
    s = Selection(engine, progress=False)
    s.runs()
    with engine.connect(), pytest.raises(ClientError, match="all connections of the engine's pool are in use"):
        s.runs()
    s.close()
    engine.dispose()
