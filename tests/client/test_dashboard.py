"""The live page: who may call it, what it tells, what it does, and how people use it in a browser."""

import contextlib
import csv
import io
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
from urllib.parse import quote, urlencode

import pytest

from support.client import Calling
from support.cluster import eventually
from support.served import ATTACK, Served
from support.workload import ADAM, dense, is_under_way, last_run, load, make_data, selection

for _needed in ("starlette", "uvicorn"):
    pytest.importorskip(_needed, reason=f"not run: mop dashboard needs {_needed}")


@pytest.fixture(scope="module")
def run_id(db):
    make_data(db, rows=60, segments=2)
    load(db, "arch", dense())
    selection(
        db, "mst", "arch", [(1, ADAM.format(rate), f"batch_size={size}") for rate in (0.01, 0.05) for size in (8, 16)]
    )
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 3, FALSE, NULL, 1)")
    return last_run(db)


@pytest.fixture(scope="module")
def page(db, run_id):
    served = Served(db.uri())
    yield served
    served.end()


@contextlib.contextmanager
def going_on(db, name, iterations=4000, configurations=2):
    """A run that goes on, in a session of its own: its number."""
    selection(
        db, "long", "arch", [(1, ADAM.format(0.01 * (k + 1)), "batch_size=1, epochs=10") for k in range(configurations)]
    )
    caller = db.another()
    calling = Calling(
        caller,
        f"SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', '{name}', 'long', "
        f"{iterations}, FALSE, NULL, 1)",
    )
    try:
        assert eventually(lambda: is_under_way(db), 120)
        yield db.value("SELECT max(run_id) FROM madlib.mop_runs WHERE status = 'running'")
    finally:
        db.run("SELECT pg_cancel_backend(%s)", [caller.connection.info.backend_pid])
        calling.end()
        caller.close()


# --- who may call it -----------------------------------------------------------------------------------------
def test_calls_without_the_token_are_refused(page, run_id):
    for path in (
        "/api/runs",
        f"/api/run/{run_id}",
        f"/api/run/{run_id}/report.html",
        "/api/compare?run=1&run=2",
        f"/api/runs?token={page.token}",
        "/nowhere",
        "//",
        "/static/../api/runs",
    ):
        for headers in (
            {},
            {"X-Mop-Token": f"{page.token[1:]}{page.token[0]}x"},
            {"Cookie": f"token={page.token}"},
            {"X-Mop-Token": ""},
            {"X-Mop-Token": "\u00e9"},
        ):
            status, _, text = page.call(path, headers=headers)
            assert status == 403 and "token" in text and page.token not in text


def test_the_empty_page_has_no_secret(page, run_id):
    """A cookie would be sent to every port of the machine, and so to other people's servers."""
    for path in ("/", f"/run/{run_id}", "/compare", "/static/live.js", "/static/page.css"):
        status, headers, text = page.call(path, headers={})
        assert status == 200 and page.token not in text
        assert "set-cookie" not in headers
        assert page.call(path, "POST", headers={})[0] == 403


def test_other_hosts_and_origins_are_refused(page, run_id):
    for host in ("evil.example", f"evil.example:{page.port}", "127.0.0.1", "127.0.0.1:1", ""):
        assert page.call("/api/runs", headers={**page.shown, "Host": host})[0] == 403
    assert page.call("/api/runs", headers={**page.shown, "Host": f"localhost:{page.port}"})[0] == 200
    for origin in ("http://evil.example", "null", f"http://localhost:{page.port}", f"https://127.0.0.1:{page.port}"):
        assert page.call("/api/runs", headers={**page.shown, "Origin": origin})[0] == 403
    assert page.call("/api/runs", headers={**page.shown, "Origin": f"http://127.0.0.1:{page.port}"})[0] == 200
    assert page.call("/api/runs", headers={**page.shown, "Sec-Fetch-Site": "cross-site"})[0] == 403


def test_the_browser_is_called_without_the_token(db, tmp_path):
    """What a program is called with can be read by everybody on the machine."""
    program, said = tmp_path / "browser", tmp_path / "said"
    program.write_text(
        f'#!/bin/sh\necho "$1" > {said}.new; stat -c %a "$(dirname "${{1#file://}}")" >> {said}.new\n'
        f'cat "${{1#file://}}" >> {said}.new; mv {said}.new {said}\n'
    )
    program.chmod(0o755)
    served = Served(db.uri(), (), {**os.environ, "BROWSER": f"{program} %s"})
    try:
        assert eventually(said.exists, 120)
        uri, mode, page = said.read_text().split("\n", 2)
    finally:
        served.end()
    assert uri.startswith("file:///") and served.token not in uri and mode == "700"
    assert f"url=http://127.0.0.1:{served.port}/#token={served.token}" in page
    assert not pathlib.Path(uri.removeprefix("file://")).exists()


def test_what_changes_something_is_a_post_with_the_token_in_a_header(page, run_id):
    path = f"/api/run/{run_id}/cancel"
    assert page.call(path)[0] == 405
    assert page.call(path, "POST", {})[0] == 403  # as another page's form might
    assert page.call(path, "POST", {"X-Mop-Token": "x"})[0] == 403
    status, told = page.post(path)
    assert status == 409 and told["error"] == f"run {run_id} is not running"
    for body in ("[]", "{", "x" * 2000):
        assert page.call(path, "POST", page.shown, body)[0] == 409


def test_broken_requests_are_refused_and_leave_no_traceback(db, run_id, tmp_path):
    """Requests that break off, by a closed line or a reset one, and those with characters that the database does not have."""
    with open(tmp_path / "errors", "w") as errors:
        served = Served(db.uri(), errors=errors)
    head = f"Host: 127.0.0.1:{served.port}\r\nX-Mop-Token: {served.token}\r\n"
    post = f"POST /api/run/{run_id}/note HTTP/1.1\r\n{head}"
    for broken in (
        f"{post}Content-Length: 100\r\n\r\n{{",
        f"{post}Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        f"{post}Transfer-Encoding: chunked\r\n\r\nno number\r\n",
        f"{post}Expect: 100-continue\r\nContent-Length: 100\r\n\r\n",
        f"GET /api/run/{run_id}/report.html HTTP/1.1\r\n{head}\r\n",
        "GET /api/runs HTTP/1.1\r\nHo",
        "no request",
    ):
        for reset in (False, True):
            with socket.create_connection(("127.0.0.1", served.port)) as line:
                line.sendall(broken.encode())
                if reset:
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for text in ("\0", "\ud800"):
        assert served.post(f"/api/run/{run_id}/note", note=text, tags=[])[0] == 409
    for number in ("1" * 40, "0"):
        assert served.call(f"/api/run/{number}")[0] == 404
    assert served.call("/api/runs?words=%00")[0] == 404 and served.call("/api/runs?words=%ff")[0] == 200
    served.end()
    assert "Traceback" not in (tmp_path / "errors").read_text()


def test_every_answer_has_a_strict_policy_and_is_not_kept(page, run_id):
    for path, headers in (
        ("/", None),
        (f"/run/{run_id}", None),
        ("/api/runs", None),
        ("/static/page.js", None),
        ("/nowhere", None),
        ("/", {}),
    ):
        _, told, text = page.call(path, headers=headers)
        policy = told["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert told["cache-control"] == "no-store" and told["x-content-type-options"] == "nosniff"
    for name in ("../dashboard.py", "..%2fdashboard.py", "shell.html"):
        assert page.call(f"/static/{name}")[0] == 404
    text = page.call("/")[2]
    assert not re.search(r"<script>|\son\w+=|style=|https?://", text)


def test_it_listens_on_loopback_alone(page):
    listed = (
        subprocess.run(["ss", "-Hltn", f"sport = :{page.port}"], capture_output=True, text=True).stdout
        if shutil.which("ss")
        else open("/proc/net/tcp").read()
    )
    wanted = f"127.0.0.1:{page.port}" if shutil.which("ss") else f"0100007F:{page.port:04X}"
    assert wanted in listed and f"00000000:{page.port:04X}" not in listed


# --- what it tells -------------------------------------------------------------------------------------------
def test_a_run_is_shown_as_the_report_has_it(db, page, run_id):
    found = page.json(f"/api/run/{run_id}")
    report = json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [run_id]))
    view, head = found["view"], found["head"]
    assert head["status"] == "finished" and head["done"] == head["total"] > 0
    assert view["curves"] == report["curves"] and view["measure"] == report["measure"]
    assert [row[1] for row in view["rows"]] == [c["mst_key"] for c in report["configurations"]]
    names = [c["name"] for c in view["columns"]]
    assert names[:5] == ["rank", "mst_key", "status", "learning_rate", "batch_size"] and "training seconds" in names
    again = page.json(f"/api/run/{run_id}?have={found['number']}")
    assert "view" not in again and again["number"] == found["number"]  # what the page has is not sent again
    listed = page.json("/api/runs")
    assert listed["runs"][0]["run_id"] == run_id and listed["count"] == len(listed["runs"])


def test_one_filter_holds_for_the_table_and_the_pictures(page, run_id):
    def view(**asked):
        return page.json(f"/api/run/{run_id}?{urlencode(asked)}")["view"]

    for asked, count in (
        ({"best": 2}, 2),
        ({"low.learning_rate": 0.02}, 2),
        ({"high.batch_size": 8}, 2),
        ({"low.learning_rate": 0.02, "high.batch_size": 8}, 1),
        ({"state": "failed"}, 0),
        ({"state": "finished"}, 4),
        ({"is.learning_rate": "0.05"}, 2),
    ):
        found = view(**asked)
        assert found["shown"] == count and found["all"] == 4 and len(found["rows"]) == count
        assert len(found["configurations"]) == len(found["curves"]) == count
        keys = {c["mst_key"] for c in found["configurations"]}
        assert {key for node in found["stages"] for key in node["keys"]} == keys
        # (units that went together are one bar)
        assert set().union(*(bar[4] for bar in found["bars"])) == keys
        assert sum(bar[6] for bar in found["bars"]) == 12 * count
    rates = [row[3] for row in view(sort="learning_rate", desc=1)["rows"]]
    assert rates == sorted(rates, reverse=True)
    assert len(view(sort="no such column")["rows"]) == 4
    for bad in ("best=x", "best=-1", "page=0", "low.batch_size=x"):
        status, _, text = page.call(f"/api/run/{run_id}?{bad}")
        assert status == 404 and "error" in json.loads(text)


def test_what_is_seen_is_exported(page, run_id):
    status, headers, text = page.call(f"/api/run/{run_id}/leaderboard.csv?best=2&sort=mst_key")
    rows = list(csv.reader(io.StringIO(text)))
    assert status == 200 and len(rows) == 3 and rows[0][:3] == ["rank", "mst_key", "status"]
    assert rows[1][1] < rows[2][1] and "attachment" in headers["content-disposition"]
    status, headers, text = page.call(f"/api/run/{run_id}/report.html")
    assert text.startswith("<!DOCTYPE html>") and "attachment" in headers["content-disposition"]
    assert "4 configurations" in text
    assert "2 of 4 configurations" in page.call(f"/api/run/{run_id}/report.html?best=2")[2]


def test_runs_are_compared(db, page, run_id):
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'others', 'mst', 1, FALSE, NULL, 1)")
    other = last_run(db)
    status, headers, text = page.call(f"/api/compare/leaderboard.csv?run={run_id}&run={other}&best=3")
    assert status == 200 and 'filename="runs.csv"' in headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["rank"] for row in rows] == ["1", "2", "3"] and "mst_key" not in rows[0]
    read = list(csv.DictReader(io.StringIO(page.call(f"/api/run/{run_id}/leaderboard.csv?best=1")[2])))
    assert (rows[0]["run"], rows[0]["configuration"]) == (f"run {run_id}", read[0]["mst_key"])
    found = page.json(f"/api/compare?run={run_id}&run={other}")
    view = found["view"]
    assert view["shown"] == 8 and view["varied"][0] == "run" and len(view["curves"]) == 8
    assert {c["name"].split(",")[0] for c in view["configurations"]} == {f"run {run_id}", f"run {other}"}
    assert [row[0] for row in view["rows"]] == sorted(view["keys"]) == list(range(1, 9))
    curves = {key: [v for _, v in own[view["measure"]["series"]]] for key, own in view["curves"].items()}
    assert view["best"]["value"] == max(map(max, curves.values()))
    assert (
        view["best"]["value"]
        in curves[str(next(c["mst_key"] for c in view["configurations"] if c["name"] == view["best"]["name"]))]
    )
    db.run(
        "SELECT madlib.generate_model_configs('arch', 'mae', ARRAY[1], $$ {'loss': ['mse'], 'metrics': ['mae'], "
        "'optimizer_params_list': [{'optimizer': ['Adam'], 'learning_rate': [0.1]}]} $$, $$ {'batch_size': [8], "
        "'epochs': [1]} $$, 'grid')"
    )
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'by_mae', 'mae', 1, FALSE, NULL, 1)")
    found = page.json(f"/api/compare?run={run_id}&run={last_run(db)}")  # (ranked by accuracy, and by mae)
    assert found["view"]["measure"] == {"series": "training loss", "goal": "min"} and found["view"]["shown"] == 5
    for bad in (f"run={run_id}", f"run={run_id}&run={run_id}", "", f"run={run_id}&run=999999"):
        assert page.call(f"/api/compare?{bad}")[0] == 404


# a run of as many configurations as are asked for, each with two evaluations


def test_what_people_write_stays_data(db, page, run_id):
    db.run("UPDATE madlib.mop_run SET error = %s, model_output_table = %s WHERE run_id = %s", [ATTACK, ATTACK, run_id])
    db.run(
        "UPDATE madlib.mop_configuration SET compile_params = compile_params || ', x=' || to_json('=' || mst_key || "
        "%s)::text WHERE run_id = %s",
        [ATTACK, run_id],
    )
    served = Served(db.uri())
    try:
        status, headers, text = served.call(f"/api/run/{run_id}")
        assert headers["content-type"] == "application/json"
        view = json.loads(text)["view"]
        assert view["run"]["error"] == ATTACK and any(ATTACK in str(row) for row in view["rows"])
        assert "attacked" not in served.call(f"/run/{run_id}?{quote(ATTACK)}")[2]
        rows = list(csv.reader(io.StringIO(served.call(f"/api/run/{run_id}/leaderboard.csv")[2])))
        assert all(cell.startswith("'=") for row in rows[1:] for cell in row if ATTACK in cell)
    finally:
        served.end()
        db.run("UPDATE madlib.mop_run SET error = NULL, model_output_table = 'models' WHERE run_id = %s", [run_id])
        db.run(
            "UPDATE madlib.mop_configuration SET compile_params = regexp_replace(compile_params, ', x=.*', '') "
            "WHERE run_id = %s",
            [run_id],
        )


def test_runs_of_others_are_neither_shown_nor_touched(db, page, run_id):
    status, _, text = page.call("/api/run/999999")
    assert status == 404 and json.loads(text)["error"] == "there is no run 999999 that the role may see"
    db.run("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN; GRANT mop_user TO stranger")
    with going_on(db, "kept") as running:
        served = Served(db.uri("stranger"))
        try:
            assert served.json("/api/runs")["runs"] == []
            for what in ("", "/report.html", "/leaderboard.csv", "/importance"):
                assert served.call(f"/api/run/{running}{what}")[0] == 404
            for what, given in (
                ("cancel", {}),
                ("stop", {"mst_key": 1}),
                ("sessions", {"sessions": 1}),
                ("resume", {}),
            ):
                for run in (running, run_id, 999999, 10**30):
                    status, told = served.post(f"/api/run/{run}/{what}", **given)
                    assert (status, told["error"]) == (404, f"there is no run {run} that the role may see")
            assert db.value("SELECT count(*) FROM madlib.mop_jobs WHERE command LIKE '%mop_resume(999999)%'") == 0
            assert db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [running]) == "running"
        finally:
            served.end()
    db.run("DROP OWNED BY stranger; DROP ROLE stranger")


# --- what it does --------------------------------------------------------------------------------------------
def test_a_run_is_steered_cancelled_and_resumed(db, page, run_id):
    def status():
        return db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [running])

    with going_on(db, "steered") as running:
        assert page.post(f"/api/run/{running}/sessions", sessions=1)[0] == 200
        assert page.post(f"/api/run/{running}/sessions", sessions="many")[0] == 409
        assert page.post(f"/api/run/{running}/stop", mst_key=77)[0] == 400
        code, told = page.post(f"/api/run/{running}/stop", mst_key=2)
        assert code == 200 and "Configuration 2" in told["said"]
        assert eventually(
            lambda: (
                db.value("SELECT status FROM madlib.mop_trials WHERE run_id = %s AND mst_key = 2", [running])
                == "stopped"
            ),
            60,
        )
        assert page.post(f"/api/run/{running}/cancel")[0] == 200
        assert eventually(lambda: status() == "cancelled", 120)
    code, told = page.post(f"/api/run/{running}/resume")
    assert code == 200, told
    job = int(re.search(r"job (\d+)", told["said"])[1])
    assert eventually(lambda: status() == "running", 120)
    assert page.post(f"/api/run/{running}/cancel")[0] == 200
    assert eventually(lambda: db.value("SELECT status FROM madlib.mop_jobs WHERE job = %s", [job]) != "running", 120)
    assert eventually(lambda: status() == "cancelled", 120)
    assert page.post(f"/api/run/{run_id}/resume") == (409, {"error": f"run {run_id} is finished", "hint": None})


def test_a_run_that_cannot_go_on_is_not_said_to(db, page):
    with going_on(db, "gone") as running:
        assert page.post(f"/api/run/{running}/resume") == (409, {"error": f"run {running} is running", "hint": None})
        assert page.post(f"/api/run/{running}/cancel")[0] == 200
        assert eventually(
            lambda: db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [running]) == "cancelled", 60
        )
    db.run("SELECT madlib.mop_drop_states(%s)", [running])
    code, told = page.post(f"/api/run/{running}/resume")
    assert code == 409 and told["error"] and "continues" not in str(told)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 999,
        b'{"mst_key": ' + b"[" * 480 + b"]" * 480 + b"}",
        b'{"a":' * 160,
        b"\xff\xfe{}",
        b'"x"',
        b"[]",
        b"1e999",
        b'{"mst_key": NaN, "sessions": Infinity}',
        b'{"mst_key": true}',
        b'{"mst_key": 99999999999999999999999, "sessions": 1e400}',
        b"x" * 1001,
        b'{"mst_key": "\\ud800"}',
    ],
)
def test_no_body_and_no_path_gives_a_traceback(page, run_id, body):
    for what in ("stop", "sessions", "cancel", "resume"):
        status, headers, text = page.call(f"/api/run/{run_id}/{what}", "POST", page.shown, body)
        assert status in (400, 409), (what, text)
        assert headers["content-type"] == "application/json" and json.loads(text)["error"]
    assert page.call(f"/api/run/{'9' * 5000}/resume", "POST", page.shown, body)[0] == 403


def test_a_connection_that_is_lost_is_said_and_made_again(db, page, run_id):
    db.run("DROP ROLE IF EXISTS onlooker; CREATE ROLE onlooker LOGIN; GRANT postgres TO onlooker")
    served = Served(db.uri("onlooker"))
    try:
        assert served.json(f"/api/run/{run_id}")["head"]["status"] == "finished"
        db.run("ALTER ROLE onlooker NOLOGIN")
        db.run("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'onlooker'")
        assert eventually(lambda: served.call(f"/api/run/{run_id}")[0] == 503, 120)
        assert "the connection to the database is lost" in served.call("/api/runs?page=3")[2]
        db.run("ALTER ROLE onlooker LOGIN")
        assert eventually(lambda: served.call(f"/api/run/{run_id}")[0] == 200, 120)
    finally:
        served.end()
        db.run("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'onlooker'")
        db.run("DROP ROLE onlooker")


def test_tabs_share_their_looks(db, page, run_id):
    page.json(f"/api/run/{run_id}")
    before = {page.json(f"/api/run/{run_id}")["number"] for _ in range(20)}
    assert len(before) == 1
