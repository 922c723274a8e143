"""The command mop, as people call it, and watching while the connection is lost."""

import io
import re
import threading
import time

import pytest
from rich.console import Console

from pg_mop_client.command import main, watch
from pg_mop_client.database import make_engine
from pg_mop_client.watching import SHARE, Watcher
from support.client import Calling
from support.cluster import eventually
from support.workload import ADAM, dense, is_under_way, last_run, load, make_data, selection

SHOWN = "<script>alert(1)</script> [bold red]x[/bold red] [/nonsense] {}]0;owned{}{}[2J"
HOSTILE, SHOWN = SHOWN.format("\x1b", "\x07", "\x9b"), SHOWN.format(*"\ufffd\ufffd\ufffd")


@pytest.fixture(scope="module")
def run_id(db):
    make_data(db, rows=60, segments=2)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 1, FALSE)")
    return last_run(db)


class Watching:
    """`mop watch` in a thread, on a console that is no terminal; `text` is what it has shown."""

    def __init__(self, uri, run_id):
        self.file, self.status = io.StringIO(), None
        self.watcher = Watcher(make_engine(uri), "madlib")
        self.thread = threading.Thread(target=self._go, args=(run_id,), daemon=True)
        self.thread.start()

    def _go(self, run_id):
        # each look is written, so that a test sees all
        console = Console(file=self.file, width=120, force_terminal=True, force_interactive=True)
        self.status = watch(self.watcher, run_id, console)

    @property
    def text(self):
        return self.file.getvalue()


def test_runs_are_listed_as_psql_would_connect(db, run_id, capsys, monkeypatch):
    to = db.connection.info
    for name, value in (("PGHOST", to.host), ("PGPORT", to.port), ("PGUSER", "postgres"), ("PGDATABASE", to.dbname)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["runs"]) == 0
    environment = capsys.readouterr().out
    assert main(["-d", db.uri(), "runs", "-n", "1"]) == 0
    assert main(["-d", f"postgresql://postgres@{to.host}:{to.port}/{to.dbname}", "runs"]) == 0
    for shown in (environment, capsys.readouterr().out):
        assert "models" in shown and "finished" in shown and str(run_id) in shown
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["runs"]) == 0 and capsys.readouterr().out.splitlines()[0].endswith("num iterations")  # (into a file)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["runs", "-n", "1"]) == 0
    head, row, *note = (re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in capsys.readouterr().out.splitlines())
    assert head.startswith("run id  status ") and row.startswith(f"{run_id} ") and max(map(len, (head, row))) <= 80
    assert note[0].startswith("in a wider window also: ")


def test_jobs_are_listed_and_say_what_they_have_said(db, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = db.value("SELECT madlib.mop_submit($$ DO 'BEGIN RAISE NOTICE ''[red]half way''; END' $$)")
    failed = db.value("SELECT madlib.mop_submit($$ SELECT 1 / 0 $$)")
    assert [db.value("SELECT madlib.mop_wait(%s, '5 min')", [n]) for n in (done, failed)] == ["finished", "failed"]
    assert main(["-d", db.uri(), "jobs"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in listed[1:3]] == [[str(failed), "failed"], [str(done), "finished"]]
    assert "division by zero" in listed[1] and "[red]half way" in listed[2]
    assert main(["-d", db.uri(), "jobs", str(done)]) == 0 and main(["-d", db.uri(), "jobs", str(failed)]) == 1
    shown = capsys.readouterr().out
    assert "SELECT 1 / 0" in shown and "error: division by zero" in shown and "[red]half way" in shown
    assert main(["-d", db.uri(), "jobs", "999"]) == 1 and "there is no job 999" in capsys.readouterr().err


def test_a_report_is_written(db, run_id, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["-d", db.uri(), "report", str(run_id)]) == 0
    assert capsys.readouterr().out.strip() == f"run_{run_id}.html"
    assert (tmp_path / f"run_{run_id}.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["-d", db.uri(), "report", str(run_id), "-o", "-"]) == 0
    assert "learning" in capsys.readouterr().out.lower()
    assert main(["-d", db.uri(), "report", str(run_id), "-o", "no/such/directory"]) == 1


def test_event_files_are_written(db, run_id, tmp_path):
    pytest.importorskip("tensorboardX", reason="not run: mop tensorboard needs tensorboardX")
    assert main(["-d", db.uri(), "tensorboard", str(run_id), str(tmp_path)]) == 0
    assert list((tmp_path / f"run_{run_id}" / "configuration_1").glob("events*"))


def test_what_is_wrong_is_said_in_a_line(db, run_id, capsys):
    for arguments, said in (
        (["report", "999999"], "there is no run 999999 that the role may see"),
        (["watch", "999999"], "there is no run 999999 that the role may see"),
        (["--schema", "x", "runs"], 'pg_mop is in schema "madlib", not in "x"'),
    ):
        assert main(["-d", db.uri(), *arguments]) == 1
        assert said in capsys.readouterr().err
    assert main(["-d", "host=127.0.0.1 port=1 dbname=x", "runs"]) == 1
    told = capsys.readouterr().err
    assert told.count("mop: ") == 1 and "Connection refused" in told and "Traceback" not in told
    with pytest.raises(SystemExit):
        main(["nonsense"])


def test_names_are_shown_as_they_are(db, run_id, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    db.run(
        "UPDATE madlib.mop_run SET model_output_table = %s, error = %s WHERE run_id = %s", [HOSTILE, HOSTILE, run_id]
    )
    assert main(["-d", db.uri(), "runs"]) == 0
    listed = capsys.readouterr().out
    assert SHOWN in listed and "\x1b]0" not in listed
    assert main(["-d", db.uri(), "watch", str(run_id)]) == 0
    watched = capsys.readouterr().out
    assert watched.count(SHOWN) == 2 and "\x1b]0" not in watched
    db.run("UPDATE madlib.mop_run SET model_output_table = 'models', error = NULL WHERE run_id = %s", [run_id])


def begin_long(db, name):
    """A call that takes long is under way: (its session, it)."""
    selection(db, name, "arch", [(1, ADAM.format(rate), "batch_size=1, epochs=30") for rate in (0.01, 0.02)])
    caller = db.another()
    calling = Calling(
        caller,
        f"SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', '{name}_models', '{name}', 4000, FALSE)",
    )
    assert eventually(lambda: is_under_way(db), 60)
    return caller, calling


def test_a_watcher_that_loses_its_connection_says_so_and_goes_on(db, run_id):
    caller, calling = begin_long(db, "long")
    db.run("DROP ROLE IF EXISTS looker; CREATE ROLE looker LOGIN; GRANT postgres TO looker")
    watching = Watching(db.uri("looker"), None)  # the latest that goes on
    try:
        assert eventually(lambda: " trains configuration " in watching.text, 60)
        db.run("ALTER ROLE looker NOLOGIN")  # it is not let in for a while
        db.run("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'looker'")
        assert eventually(lambda: "the connection is lost: trying again" in watching.text, 60)
        assert watching.thread.is_alive() and not watching.watcher.is_connected
        db.run("ALTER ROLE looker LOGIN")
        assert eventually(lambda: "connected again" in watching.text, 60)
        assert watching.watcher.lost == 1
    finally:
        db.run("ALTER ROLE looker LOGIN")
        db.run("SELECT pg_cancel_backend(%s)", [caller.connection.info.backend_pid])
        calling.end()
        caller.close()
    watching.thread.join(180)
    assert not watching.thread.is_alive() and watching.status == 1
    assert "cancelled" in watching.text and "canceling statement" in watching.text
    db.run("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'looker'; DROP ROLE looker")


def test_a_run_that_was_cut_off_does_not_look_complete(db, run_id):
    caller, calling = begin_long(db, "cut")
    db.run("SELECT pg_terminate_backend(%s, 5000)", [caller.connection.info.backend_pid])
    assert calling.end() is not None
    watcher = Watcher(make_engine(db.uri()), "madlib")
    look = watcher.look(last_run(db))
    watcher.close()
    assert look.run.status == "failed" and look.units_done < look.units_total == 2 * (2 * 4000 + 2)


def test_looking_takes_a_small_share_of_the_time(db, run_id):
    watcher = Watcher(make_engine(db.uri()), "madlib")
    for _ in range(3):  # (the machine may stand still after the look)
        began = time.monotonic()
        look = watcher.look(run_id, sessions=True)
        wanted = min(1.0, (time.monotonic() - began) / SHARE * 0.5)
        if watcher.rest >= wanted:
            break
    assert look.units_done == 4 and watcher.rest >= wanted
    watcher.close()
