"""mop_report: what it tells of runs, to whom, and that nothing in it is markup but its own."""

import json
import re
import threading

import pytest

from pg_mop.report.page import DRAWING
from support.browser import problems, value
from support.cluster import eventually
from support.pages import ATTACK, KEY, Page
from support.workload import ADAM, NAN, dense, fit, load, make_data, selection

HOSTILE = '<script>alert("x")</script>&\'"</td>'


@pytest.fixture(scope="module")
def run_id(db):
    make_data(db, rows=60, segments=2)
    load(db, "arch", dense())
    selection(
        db,
        "mst",
        "arch",
        [(1, ADAM.format(0.05), "batch_size=8"), (1, ADAM.format(0.001), "batch_size=8"), (1, NAN, "batch_size=8")],
    )
    return fit(db, "flowers_packed", "models", "mst", 3, "flowers_packed", 1)


def test_a_report_sees_one_snapshot_of_a_run_that_goes_on(db, run_id):
    """Between two of its queries, a search adds a configuration and trains it."""
    view, waits = "madlib.mop_metrics_wide", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    definition = db.value("SELECT rtrim(pg_get_viewdef(%s::regclass), ';')", [view])
    hold = "(SELECT pg_advisory_xact_lock_shared(97) OFFSET 0) AS held"
    db.run(f"CREATE OR REPLACE VIEW {view} AS SELECT w.* FROM ({definition}) AS w, {hold}")
    reader, found = db.another(), {}
    before = json.loads(db.value("SELECT madlib.mop_report(%s, 'table')", [run_id]))
    db.run("SELECT pg_advisory_lock(97)")
    reading = threading.Thread(
        target=lambda: found.update(json.loads(reader.value("SELECT madlib.mop_report(%s, 'table')", [run_id])))
    )
    try:
        reading.start()
        assert eventually(lambda: db.value(waits), 60)
        for table, columns, values in (
            ("configuration", "mst_key, model_id, compile_params, fit_params, model_arch", "97, 1, 'c', 'f', 'a'"),
            ("stage", "stage, iteration, identity, mst_key, compile_params, evaluated", "97, 1, 'i', 97, 'c', false"),
            ("request", "mst_key, iteration, stage", "97, 1, 97"),
            (
                "unit",
                "stage, iteration, segment, kind, dataset, attempt, status",
                "97, 1, 0, 'train', 'training', 1, 'running'",
            ),
        ):
            db.run(f"INSERT INTO madlib.mop_{table} (run_id, {columns}) VALUES ({run_id}, {values})")
    finally:
        db.run("SELECT pg_advisory_unlock(97)")
        reading.join(60)
        db.run(f"CREATE OR REPLACE VIEW {view} AS {definition}")
    now = [
        c["mst_key"] for c in json.loads(db.value("SELECT madlib.mop_report(%s, 'table')", [run_id]))["configurations"]
    ]
    db.run("DELETE FROM madlib.mop_configuration WHERE run_id = %s AND mst_key = 97", [run_id])
    reader.close()
    assert found["configurations"] == before["configurations"] and 97 in now


def test_the_report_tells_how_much_the_gpus_worked(db, run_id):
    """As if the trainers had measured it, which they do on a GPU alone."""
    data = json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [run_id]))
    assert {part["gpu"] for part in data["time"]} == {None} and all(part["cpu"] > 0 for part in data["time"])
    assert "its GPU" not in db.value("SELECT madlib.mop_report(%s)", [run_id])
    assert "GPU" not in db.value("SELECT madlib.mop_explain_run(%s)", [run_id])
    db.run("BEGIN")
    db.run(
        "UPDATE madlib.mop_unit SET train_seconds = segment + 1, gpu_utilization = (segment + 1) / 4.0, "
        "gpu_memory_bytes = (segment + 1) * 1073741824::bigint WHERE run_id = %s AND kind = 'train' AND status = 'finished'",
        [run_id],
    )
    data = json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [run_id]))
    page = Page(db.value("SELECT madlib.mop_report(%s)", [run_id]))
    text = db.value("SELECT madlib.mop_explain_run(%s)", [run_id])
    units = db.run(
        "SELECT DISTINCT gpu_utilization, gpu_memory_bytes FROM madlib.mop_units WHERE run_id = %s AND kind = 'train' "
        "AND status = 'finished' ORDER BY 1",
        [run_id],
    )
    db.run("ROLLBACK")
    mean = (1 * 0.25 + 2 * 0.5) / 3  # weighted by the seconds of the units
    assert {part["what"]: part["gpu"] for part in data["time"]} == {
        "training units": pytest.approx(mean, rel=1e-3),
        "evaluations": None,
    }
    assert {"its processors", "utilization of its GPU"} <= set(page.text)
    assert "GPUs: 42% utilized on average" in text and "at most 2.0 GB of one in use" in text
    assert [tuple(row.values()) for row in units] == [(0.25, 1 << 30), (0.5, 2 << 30)]


def test_the_report_tells_in_which_seconds_a_resumed_run_was_not_alive(db, run_id):
    """As if another coordinator, with sessions of its own, had done the later iterations an hour later."""

    def told():
        data = json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [run_id]))
        return data["paused_seconds"], data["makespan"]

    paused, makespan = told()
    assert paused == 0 and makespan > 0
    ended = f"(SELECT max(finished_at) FROM madlib.mop_unit WHERE run_id = {run_id} AND iteration < 3)"
    db.run("BEGIN")
    try:
        db.run(
            "UPDATE madlib.mop_unit SET started_at = started_at + interval '1 hour', finished_at = finished_at "
            f"+ interval '1 hour', backend_pid = backend_pid + 1000000 WHERE run_id = %s AND started_at >= {ended}",
            [run_id],
        )
        paused, later = told()
        assert paused == pytest.approx(3600, abs=5) and later - paused == pytest.approx(makespan, abs=5)
    finally:
        db.run("ROLLBACK")


def test_the_report_tells_what_the_tables_tell(db, run_id):
    data = json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [run_id]))
    info = {r["mst_key"]: r for r in db.run("SELECT * FROM models_info")}
    best = db.value("SELECT best_mst_key FROM models_summary")
    ranked = sorted((1, 2), key=lambda key: key != best)
    assert [c["mst_key"] for c in data["configurations"]] == [*ranked, 3]
    assert data["measure"] == {"series": "validation accuracy", "goal": "max"}
    for c in data["configurations"][:2]:
        own = info[c["mst_key"]]
        for dataset in ("training", "validation"):
            for name, values in (("accuracy", own[f"{dataset}_metrics"]), ("loss", own[f"{dataset}_loss"])):
                series = f"{dataset} {name}"
                assert c["last"][series] == pytest.approx(values[-1], rel=1e-5)
                assert data["curves"][str(c["mst_key"])][series] == [
                    [i, pytest.approx(v, rel=1e-5)] for i, v in enumerate(values, 1)
                ]
        assert c["best"] == pytest.approx(max(own["validation_metrics"]), rel=1e-5) and c["seconds"] > 0
    failed = data["configurations"][-1]
    assert failed["status"] == "failed" and "NaN" in failed["reason"]
    assert {"optimizer", "learning_rate", "loss"} <= set(data["varied"])
    assert data["fixed"]["batch_size"] == 8 and data["sampled"] == {}
    units = db.run(
        "SELECT DISTINCT backend_pid, started_at FROM madlib.mop_units WHERE run_id = %s "
        "AND finished_at IS NOT NULL AND NOT shared",
        [run_id],
    )
    assert len(data["bars"]) == len(units) and sorted(data["lanes"]) == sorted({u["backend_pid"] for u in units})
    for key in (1, 2):
        own = db.value(
            "SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND mst_key = %s AND kind = 'train' "
            "AND status = 'finished'",
            [run_id, key],
        )
        assert own == sum(bar[3] == "train" and key in bar[4] for bar in data["bars"]), "also of units together"
    assert {tuple(n["keys"]) for n in data["stages"]} == {(1,), (2,), (3,)}


def test_the_sql_of_the_report_makes_the_run_once_more(db, run_id):
    data = json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [run_id]))
    again = db.another()
    again.run(data["sql"].replace("'models'", "'models_again'"))
    again.close()
    assert (
        db.value(
            "SELECT count(*) FROM models m JOIN models_again a USING (mst_key) "
            "WHERE length(m.model_weights) = length(a.model_weights)"
        )
        == 2
    )
    seeds = db.run("SELECT seed FROM madlib.mop_runs ORDER BY run_id DESC LIMIT 2")
    assert seeds[0] == seeds[1]
    db.run("DROP TABLE models_again, models_again_info, models_again_summary")


def test_what_people_write_is_text_in_the_report(db, run_id):
    db.run("BEGIN")
    db.run(
        "UPDATE madlib.mop_run SET error = %s, source_table = %s, parameters = jsonb_set(parameters::jsonb, "
        "'{arguments,name}', to_jsonb(%s::text))::json WHERE run_id = %s",
        [HOSTILE, HOSTILE, HOSTILE, run_id],
    )
    db.run(
        "UPDATE madlib.mop_configuration SET error = %s, compile_params = compile_params || %s WHERE mst_key = 2 "
        "AND run_id = %s",
        [HOSTILE, f", {HOSTILE}={HOSTILE}", run_id],
    )
    db.run(
        "UPDATE madlib.mop_metric SET metrics = json_build_object(%s::text, 0.5) WHERE run_id = %s", [HOSTILE, run_id]
    )
    db.run(
        "UPDATE madlib.mop_unit SET status = 'failed', error = %s WHERE run_id = %s AND stage = 1", [HOSTILE, run_id]
    )
    text = db.value("SELECT madlib.mop_report(%s)", [run_id])
    db.run("ROLLBACK")
    page = Page(text)
    assert page.count("script") == len(DRAWING) + 1
    assert not any(name.startswith("on") for _, given in page.elements for name in given)
    assert "".join(page.text).count('alert("x")') > 5
    assert page.data["run"]["error"] == HOSTILE and any(HOSTILE in series for series in page.data["series"])
    assert any(HOSTILE in c["parameters"] for c in page.data["configurations"])


def test_the_report_is_one_file_that_loads_nothing(db, run_id):
    text = db.value("SELECT madlib.mop_report(%s)", [run_id])
    page = Page(text)
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert not any({"src", "srcset", "action"} & given.keys() for _, given in page.elements)
    assert all(given["href"].startswith("#") for _, given in page.elements if "href" in given)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    (policy,) = (given["content"] for _, given in page.elements if given.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert ("html", {"lang": "en"}) in page.elements and len(text) < 200_000
    # headings sort by buttons, regions have names: for the keyboard and for readers of screens
    assert page.count("th") and page.count("button") == page.count("th")
    assert all("aria-labelledby" in given for tag, given in page.elements if tag == "section")


def test_a_report_is_for_those_who_may_see_the_run(db, run_id):
    assert "there is no run 999999" in str(db.error("SELECT madlib.mop_report(999999)"))
    assert "there is no run NULL" in str(db.error("SELECT madlib.mop_report(NULL)"))
    error = db.error("SELECT madlib.mop_report(%s, 'pdf')", [run_id])
    assert "format must be one of html, json, table, summary, not 'pdf'" in str(error)
    db.run("DROP ROLE IF EXISTS stranger, boss; CREATE ROLE stranger LOGIN; GRANT mop_user TO stranger")
    stranger = db.another("stranger")
    error = stranger.error("SELECT madlib.mop_report(%s)", [run_id])
    assert f'there is no run {run_id} that role "stranger" may see' in str(error)
    assert "mop_runs" in error.diag.message_hint
    # a member sees the runs, but not what was passed
    mine = db.value("SELECT owner FROM madlib.mop_run WHERE run_id = %s", [run_id])
    db.run("CREATE ROLE boss; GRANT boss TO stranger; INSERT INTO madlib.mop_owner (role, who) VALUES ('boss', 'boss')")
    db.run("UPDATE madlib.mop_run SET owner = lastval() WHERE run_id = %s", [run_id])
    data = json.loads(stranger.value("SELECT madlib.mop_report(%s, 'json')", [run_id]))
    assert len(data["configurations"]) == 3 and data["arguments"] == {} and data["sql"] is None
    assert "shown to the run&#x27;s owner alone" in stranger.value("SELECT madlib.mop_report(%s)", [run_id])
    stranger.close()
    db.run("UPDATE madlib.mop_run SET owner = %s WHERE run_id = %s", [mine, run_id])
    db.run("DROP OWNED BY stranger; DROP ROLE stranger, boss")


ROWS = "[...document.querySelectorAll('#board tbody tr')]"
DRAWN = ".picture:not(#slices-picture)"  # (it needs three configurations with a result)
PICTURES = f"[...document.querySelectorAll('{DRAWN}')]"
SORT = "[...document.querySelectorAll('#board th button')].find(h => h.textContent === 'mst_key').click()"


def test_the_page_works_in_a_browser(db, run_id, tmp_path, browser):
    db.run("BEGIN")
    db.run("UPDATE madlib.mop_run SET error = %s WHERE run_id = %s", [ATTACK, run_id])
    db.run(
        "UPDATE madlib.mop_configuration SET compile_params = compile_params || ', x=' "
        "|| to_json(mst_key || %s)::text WHERE run_id = %s",
        [ATTACK, run_id],
    )
    text = db.value("SELECT madlib.mop_report(%s)", [run_id])
    db.run("ROLLBACK")
    page = tmp_path / "page.html"
    page.write_text(text)
    browser.get(page.as_uri())
    for keys in ("1,2,3", "3,2,1"):
        browser.execute_script(SORT)
        assert value(browser, ROWS + ".map(r => r.dataset.key).join()") == keys
    for picture in browser.find_elements("css selector", DRAWN):  # it is drawn where it comes into view
        browser.execute_script("arguments[0].scrollIntoView()", picture)
        assert eventually(lambda: len(picture.find_elements("css selector", "svg path, svg rect")) > 2, 60)  # noqa: B023
    browser.execute_script(KEY, browser.find_elements("css selector", "#board tbody tr")[1], "Enter")
    assert value(browser, ROWS + ".map(r => r.getAttribute('aria-selected')).join()") == "false,true,false"
    assert value(browser, PICTURES + ".map(p => p.querySelectorAll('.marked').length > 0)") == [True] * 6
    browser.execute_script(KEY, browser.find_element("css selector", "#curves-picture [tabindex]"), "ArrowRight")
    said = value(browser, "document.querySelector('#curves-picture .readout').textContent")
    assert ("configuration 2" in said or "configuration 1" in said) and "window.attacked=1" in said
    assert value(browser, "'attacked' in window") is False and problems(browser) == []


# a run of 150 configurations and 70 iterations on two segments, as the journal would have it
LARGE = """
INSERT INTO madlib.mop_run (run_id, owner, status, function, source_table, validation_table, model_output_table, seed,
    scheduler, num_iterations, metrics_iterations, configurations, segments, started_at, finished_at, parameters,
    coordinator_pid)
SELECT 1000, owner, 'finished', function, source_table, validation_table, 'large', 7, 'randomized', 70, '{70}', 150, 2,
       now() - interval '5 hours', now(), parameters, 1 FROM madlib.mop_run WHERE run_id = %s;
INSERT INTO madlib.mop_configuration SELECT 1000, k, 1, format('optimizer=''Adam(learning_rate=%%s)'', '
    'metrics=[''accuracy''], loss=''mse''', k / 1000.0), 'batch_size=' || 8 << k %% 4, '{}'
FROM generate_series(1, 150) k;
INSERT INTO madlib.mop_stage (run_id, stage, parent, iteration, identity, mst_key, compile_params, evaluated)
SELECT 1000, (i - 1) * 150 + k, CASE WHEN i > 1 THEN (i - 2) * 150 + k END, i, md5(k || ' ' || i), k, 'c', true
FROM generate_series(1, 150) k, generate_series(1, 70) i;
INSERT INTO madlib.mop_request SELECT 1000, mst_key, iteration, stage FROM madlib.mop_stage WHERE run_id = 1000;
INSERT INTO madlib.mop_segment SELECT 1000, d, s, 1000, 10000, 'x'
FROM unnest(ARRAY['training', 'validation']) d, generate_series(0, 1) s;
INSERT INTO madlib.mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status, version, backend_pid,
    kernel, rows, loss, started_at, finished_at, read_seconds, train_seconds, write_seconds)
SELECT 1000, stage, iteration, s, kind, dataset, 1, 'finished', (iteration - 1) * 2 + s, 1000 + s, 'loop', 1000,
       1.0 / iteration, begins + pass * interval '0.09 s', begins + (pass + 1) * interval '0.09 s', 0.01, 0.06, 0.01
FROM (SELECT *, now() - interval '5 hours' + stage * interval '0.28 s' AS begins FROM madlib.mop_stage
      WHERE run_id = 1000) q, generate_series(0, 1) s,
     (VALUES ('train', 'training', 0), ('evaluate', 'training', 1), ('evaluate', 'validation', 2))
         AS k(kind, dataset, pass);
INSERT INTO madlib.mop_metric SELECT 1000, stage, d, 1.0 / iteration + mst_key / 500.0, 1 - 1.0 / (iteration + mst_key),
    json_build_object('accuracy', 1 - 1.0 / (iteration + mst_key))
FROM madlib.mop_stage, unnest(ARRAY['training', 'validation']) d WHERE run_id = 1000;
""".replace("|| 8 << k %% 4", "|| (8 << k %% 4)")


def test_the_report_of_a_large_run_is_sampled_and_says_so(db, run_id):
    db.run("BEGIN")
    db.run(LARGE, [run_id])
    db.run("ANALYZE")
    text = db.value("SELECT madlib.mop_report(1000)")
    data = json.loads(db.value("SELECT madlib.mop_report(1000, 'json')"))
    db.run("ROLLBACK")
    page = Page(text)
    assert len(text.encode()) < 3_000_000
    assert len(data["configurations"]) == 150 and len(data["curves"]) == 60
    assert {"150", "149"} <= {str(key) for key in data["curves"]}  # the best are among them
    assert all(len(points) == 60 for curves in data["curves"].values() for points in curves.values())
    assert len(data["bars"]) <= 2 * 2 * 251 and sum(bar[6] for bar in data["bars"]) == 63_000
    assert sum(part["seconds"] for part in data["time"]) == pytest.approx(63_000 * 0.09, rel=1e-3)
    shown = "".join(page.text)
    for said in data["sampled"].values():
        assert said in shown
    assert data["sampled"].keys() == {"curves", "sessions", "stages"}


def test_what_keeps_its_best_state_is_ranked_by_that(db, run_id):
    """As in the output tables, whose finals are of the state that is written."""
    wild = "loss='categorical_crossentropy', optimizer='Adam(lr=[0.05, 0.05, 3.0, 3.0])', metrics=['accuracy']"
    selection(
        db,
        "mst_k",
        "arch",
        [(1, ADAM.format(0.001), "batch_size=8"), (1, wild, "batch_size=8, keep='best'"), (1, wild, "batch_size=8")],
    )
    run = fit(db, "flowers_packed", "kept", "mst_k", 4, "flowers_packed", 1)
    data = json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [run]))
    told = {c["mst_key"]: c["last"] for c in data["configurations"]}
    written = db.run(
        "SELECT mst_key, iteration, training_loss_final AS training, validation_loss_final AS validation FROM kept_info"
    )
    assert any(row["iteration"] < 4 for row in written)
    for row in written:
        assert told[row["mst_key"]]["training loss"] == pytest.approx(row["training"], rel=1e-3)
        assert told[row["mst_key"]]["validation loss"] == pytest.approx(row["validation"], rel=1e-3)
    best = db.value("SELECT best_mst_key FROM kept_summary")
    assert data["measure"]["series"] == "validation accuracy" and data["configurations"][0]["mst_key"] == best
