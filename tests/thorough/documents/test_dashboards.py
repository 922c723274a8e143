"""docs/bi.md and docs/grafana.json: every question is asked of a real run, as the role that the document makes."""

import datetime
import json
import re

import psycopg2
import pytest

from support.cluster import ROOT
from support.workload import ADAM, NAN, dense, last_run, load, make_data, selection

DOCS = ROOT / "docs"
TEXT = (DOCS / "bi.md").read_text()
BLOCKS = re.findall(r"^```sql\n(.*?)^```", TEXT, re.M | re.S)
QUESTIONS = [block for block in BLOCKS if not block.startswith("CREATE ROLE")]
BOARD = json.loads((DOCS / "grafana.json").read_text())
VARIABLES = {v["name"]: v for v in BOARD["templating"]["list"]}
HOSTILE = """<script>'";--"""


@pytest.fixture(scope="module")
def run_id(db):
    """A run of the role analyst's, one of whose configurations fails, with hostile names."""
    for role in ("dashboard", "analyst"):
        if db.value("SELECT count(*) FROM pg_roles WHERE rolname = %s", [role]):
            db.run(f"DROP OWNED BY {role}; DROP ROLE {role}")
    db.run("CREATE ROLE analyst LOGIN; GRANT mop_user TO analyst; GRANT CREATE ON SCHEMA public TO analyst")
    analyst = db.another("analyst")
    make_data(analyst, '"a""b"', rows=60, segments=2, packed="flowers_packed")
    load(analyst, "arch", dense())
    selection(
        analyst,
        "mst",
        "arch",
        [(1, ADAM.format(0.05), "batch_size=8"), (1, ADAM.format(0.01), "batch_size=8"), (1, NAN, "batch_size=8")],
    )
    analyst.run("""SELECT madlib.madlib_keras_fit_multiple_model(
        'flowers_packed', '"models<script>"', 'mst', 3, FALSE, 'flowers_packed', 1)""")
    run_id = last_run(analyst)
    analyst.close()
    db.run(
        "UPDATE madlib.mop_configuration SET error = error || %s WHERE run_id = %s AND error IS NOT NULL",
        [HOSTILE, run_id],
    )
    # a unit that was lost, of which the question about units has something to tell
    db.run(
        "INSERT INTO madlib.mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status, "
        "backend_pid, queued_at, started_at, finished_at, error) "
        "SELECT run_id, stage, iteration, segment, kind, dataset, 9, "
        "'failed', backend_pid, queued_at, started_at, finished_at, %s FROM madlib.mop_unit WHERE run_id = %s "
        "AND status = 'finished' LIMIT 1",
        [HOSTILE, run_id],
    )
    yield run_id


@pytest.fixture(scope="module")
def dashboard(db, run_id):
    """A session of the role that the document makes."""
    db.run(next(block for block in BLOCKS if block.startswith("CREATE ROLE")))
    client = db.another("dashboard")
    yield client
    client.close()
    db.run("DROP OWNED BY dashboard; DROP ROLE dashboard; DROP OWNED BY analyst; DELETE FROM madlib.mop_run")
    db.run("DROP ROLE analyst")


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_every_question_of_the_document_has_an_answer(dashboard, run_id, number):
    sql = QUESTIONS[number].replace("{{run}}", str(run_id))
    answer = dashboard.run(sql)
    assert "{{" not in sql and (answer or "mop_hops" in sql), sql  # (a run on one server has no hops)


def test_the_answers_are_those_of_the_run(dashboard, run_id):
    def answer(part):
        (sql,) = [q for q in QUESTIONS if part in q]
        return dashboard.run(sql.replace("{{run}}", str(run_id)))

    board = answer("rank() OVER")
    assert sorted(r["mst_key"] for r in board[:2]) == [1, 2] and board[2]["mst_key"] == 3
    assert board[0]["validation_loss"] <= board[1]["validation_loss"] and board[0]["iteration"] == 3
    assert len(answer("name AS metric")) == 2 * 3 * 2 * 2 and len(answer("seconds, evaluated_at")) == 2 * 3
    (failed,) = answer("compile_params, fit_params, reason")
    assert failed["mst_key"] == 3 and failed["reason"].endswith(HOSTILE)
    assert HOSTILE in {r["error"] for r in answer("kind, attempt, error")}
    time = answer("AS session")
    assert {r["kind"] for r in time} == {"train", "evaluate"}
    assert all(r["seconds"] > 0 and r["units"] > 0 for r in time)


def test_the_role_of_the_document_gets_reports_of_the_runs_that_it_sees(dashboard, run_id):
    page = dashboard.value("SELECT madlib.mop_report(%s)", [run_id])
    data = json.loads(dashboard.value("SELECT madlib.mop_report(%s, 'json')", [run_id]))
    assert page.startswith("<!DOCTYPE html>") and {c["mst_key"] for c in data["configurations"]} == {1, 2, 3}
    assert data["arguments"] == {} and data["settings"] == {}, "which are the owner's"


def test_a_role_that_may_not_read_lineages_gets_reports_without_family_trees(db, dashboard, run_id):
    db.run("REVOKE SELECT ON madlib.mop_lineage FROM dashboard")
    assert json.loads(dashboard.value("SELECT madlib.mop_report(%s, 'json')", [run_id]))["family"] == []
    db.run("GRANT SELECT ON madlib.mop_lineage TO dashboard")


def test_the_columns_that_stay_are_there(dashboard):
    rows = re.findall(r"^\| `(mop_\w+)` \| (.+) \|$", TEXT, re.M)
    assert {name for name, _ in rows} >= {f"mop_{n}" for n in ("runs", "trials", "metrics", "metrics_wide", "units")}
    for view, text in rows:
        there = dashboard.run(
            "SELECT column_name::text FROM information_schema.columns WHERE table_schema = 'madlib' "
            "AND table_name = %s",
            [view],
        )
        assert set(re.findall(r"`(\w+)`", text)) <= {r["column_name"] for r in there}, view


def test_the_role_of_the_document_reads_the_views_alone(db, dashboard, run_id):
    for sql in (
        'SELECT * FROM "models<script>"',
        "SELECT * FROM flowers_packed",
        "SELECT * FROM madlib.mop_run",
        f"SELECT madlib.mop_drop_run({run_id})",
        "SELECT madlib.mop_resume(1)",
    ):
        assert isinstance(dashboard.error(sql), psycopg2.errors.InsufficientPrivilege), sql
    db.run("REVOKE analyst FROM dashboard")
    assert dashboard.value("SELECT count(*) FROM madlib.mop_runs") == 0
    assert "there is no run" in str(dashboard.error("SELECT madlib.mop_report(%s)", [run_id]))
    db.run("GRANT analyst TO dashboard")


# --- Grafana ----------------------------------------------------------------------------------------


def expanded(sql, values):
    """As Grafana makes it: variables first, then the macros of its PostgreSQL data source."""

    def variable(found):
        name, how = found[1] or found[3], found[2]
        return "'" + values[name].replace("'", "''") + "'" if how == "sqlstring" else values[name]

    sql = sql.replace("$__interval", "10s")
    sql = re.sub(r"\$\{(\w+)(?::(\w+))?\}|\$(?!__)([a-z]\w*)", variable, sql)
    sql = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 BETWEEN '2000-01-01T00:00:00Z' AND '2100-01-01T00:00:00Z'", sql)
    sql = re.sub(r"\$__timeGroupAlias\((\w+), *10s\)", r'floor(extract(epoch from \1)/10)*10 AS "time"', sql)
    assert "$" not in sql, sql
    return sql


@pytest.fixture(scope="module")
def chosen(dashboard, run_id):
    """The first choice of each variable, but of the run, in the order in which the dashboard has them."""
    values = {}
    for name, variable in VARIABLES.items():
        if variable["type"] == "query":
            first = dashboard.run(expanded(variable["query"], values))[0]
            assert len(first) == 1 or first.keys() == {"__text", "__value"}
            values[name] = str(first.get("__value", next(iter(first.values()))))
    assert values == {"run": str(run_id), "metric": "accuracy", "dataset": "validation"}
    return values


@pytest.mark.parametrize("panel", BOARD["panels"], ids=lambda p: p["type"] + str(p["id"]))
def test_every_panel_has_what_it_draws(dashboard, chosen, panel):
    (target,) = panel["targets"]
    assert target["rawQuery"] and target["datasource"] == panel["datasource"]
    rows = dashboard.run(expanded(target["rawSql"], chosen))
    assert rows
    x = panel["options"].get("xField")
    if target["format"] == "time_series":
        assert panel["type"] == "timeseries" and rows[0].keys() == {"time", "metric", "value"}
        times = [r["time"] for r in rows]
        assert times == sorted(times) and all(isinstance(r["metric"], str) for r in rows)
        assert isinstance(times[0], datetime.datetime) or times[0] > 1e9
        assert all(float(r["value"]) >= 0 for r in rows)
    elif x is not None:
        assert all(
            isinstance(value, (int, float))
            for row in rows
            for name, value in row.items()
            if name != x or panel["type"] == "trend"
        )
        assert len({row[x] for row in rows}) == len(rows)
    else:
        assert target["format"] == panel["type"] == "table"


@pytest.mark.parametrize("value", [HOSTILE, "1' OR '1'='1"])
def test_what_somebody_writes_into_a_variable_is_a_value(dashboard, chosen, value):
    (trend,) = [p for p in BOARD["panels"] if p["type"] == "trend"]
    assert dashboard.run(expanded(trend["targets"][0]["rawSql"], {**chosen, "metric": value})) == []
    for panel in BOARD["panels"]:
        sql = panel["targets"][0]["rawSql"]
        if "${run" in sql:
            error = dashboard.error(expanded(sql, {**chosen, "run": value}))
            assert isinstance(error, psycopg2.errors.InvalidTextRepresentation)
