"""The live page answers: is it going well, which is best, when is it done, what failed and why, what next."""

import json
import re

import pytest

from support.browser import DESKTOP, PHONE, SMALL, opened, press, problems, text, value
from support.cluster import eventually
from support.served import ATTACK
from support.workload import ADAM, NAN, dense, last_run, load, make_data, selection

CARDS = ("state", "best", "failed", "next")
# texts whose contrast with the page is below 4.5 (WCAG 2.2, 1.4.3)
CONTRAST = """
    const lin = c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
    const lum = text => {
        const [r, g, b] = text.match(/[\\d.]+/g).map(v => lin(v / 255));
        return .2126 * r + .7152 * g + .0722 * b;
    };
    const paper = lum(getComputedStyle(document.body).backgroundColor);
    return [...document.querySelectorAll('.card p, .card h2, #board td, [role=tab]')]
        .filter(e => e.checkVisibility() && e.textContent.trim()).map(e => {
            const own = lum(getComputedStyle(e).color), [a, b] = [Math.max(own, paper), Math.min(own, paper)];
            return [(a + .05) / (b + .05), e.textContent];
        }).filter(([ratio]) => ratio < 4.5)"""
RED = """const e = document.createElement('p');
    e.className = 'error';
    document.body.append(e);
    return getComputedStyle(e).color"""
# boxes that scroll up and down within the page
COPY_ALL = """window.copied = [];
    navigator.clipboard.writeText = text => { window.copied.push(text); return Promise.resolve(); };
    for (const own of document.querySelectorAll('.copy')) if (!own.textContent.startsWith('.')) own.click();"""


@pytest.fixture(scope="module")
def made(db):
    """The number of a run of 4 configurations, one of which fails."""
    make_data(db, rows=60, segments=2)
    load(db, "arch", dense())
    rows = [(1, ADAM.format(rate), "batch_size=8") for rate in (0.001, 0.01, 0.05)]
    selection(db, "mst", "arch", [*rows, (1, NAN, "batch_size=8")])
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 4, FALSE, NULL, 1)")
    return last_run(db)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_five_questions_are_answered_above_the_fold(db, browser, page, made, screen, size, dark):
    screen(size, dark)
    opened(browser, page, f"/run/{made}", "#card-next")
    report = json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [made]))
    best = report["configurations"][0]
    assert "finished, 1 of 4 failed" in text(browser, "#card-state")
    shown = text(browser, "#card-best")
    assert (
        f"configuration {best['mst_key']}" in shown
        and "learning_rate" in shown
        and report["measure"]["series"] in shown
    )
    assert float(text(browser, "#card-best .big").split()[0]) == pytest.approx(
        best["last"][report["measure"]["series"]], rel=1e-3
    )
    assert "1 of 4, 1 cause" in text(browser, "#card-failed") and "1 × the loss became NaN" in text(
        browser, "#card-failed"
    )
    assert len(text(browser, "#card-next .step")) > 20
    for name in CARDS:
        bottom = value(browser, f"document.getElementById('card-{name}').getBoundingClientRect().bottom")
        assert bottom <= size[1], name
    assert value(browser, "document.documentElement.scrollWidth") <= size[0]
    assert browser.execute_script(CONTRAST) == []
    amber = value(browser, "getComputedStyle(document.querySelector('#card-state .big')).color")
    red = browser.execute_script(RED)
    assert amber != red
    assert problems(browser) == []


def test_all_that_is_used_is_large_enough_to_hit(browser, page, made, screen):
    for size in (DESKTOP, PHONE):
        screen(size)
        for path, ready in ((f"/run/{made}", "#board tbody tr"), ("/", "#table tbody tr")):
            opened(browser, page, path, ready)
            assert browser.execute_script(SMALL) == []


def test_a_table_is_one_tab_stop_and_arrows_move_within_it(browser, page, made, screen):
    screen(DESKTOP)
    opened(browser, page, f"/run/{made}")
    stops = "[...document.querySelectorAll('#board [tabindex], #board button')].filter(e => e.tabIndex >= 0).length"
    assert value(browser, stops) == 1
    browser.execute_script("document.querySelector('#board tbody tr').focus()")
    here = "document.activeElement.dataset.focus"
    first = value(browser, here)
    press(browser, "ARROW_DOWN")
    second = value(browser, here)
    assert first.startswith("row") and second.startswith("row") and second != first and value(browser, stops) == 1
    press(browser, "ENTER")
    assert value(browser, "document.activeElement.getAttribute('aria-selected')") == "true"
    press(browser, "ARROW_UP")
    press(browser, "ARROW_UP")
    assert value(browser, here) == "headrank"
    press(browser, "ARROW_RIGHT")
    assert value(browser, here) == "headmst_key"
    press(browser, "ENTER")
    assert eventually(lambda: "sort=mst_key" in browser.current_url, 120)
    assert eventually(lambda: value(browser, here) == "headmst_key", 120)
    press(browser, "END")
    assert value(browser, "document.activeElement === document.querySelector('#board tbody tr:last-child')")
    assert problems(browser) == []


def test_tabs_by_keyboard_and_what_they_show(browser, page, made, screen):
    screen(DESKTOP)
    opened(browser, page, f"/run/{made}")
    visible = "[...document.querySelectorAll('[role=tabpanel]')].filter(p => p.checkVisibility()).map(p => p.id).join()"
    assert value(browser, visible) == "tab-parameters"
    assert eventually(lambda: value(browser, "document.querySelectorAll('#slices-picture circle').length") >= 3, 120)
    browser.execute_script("document.querySelector('[role=tab]').focus()")
    press(browser, "ARROW_RIGHT")
    assert value(browser, visible) == "tab-results" and "tab=results" in browser.current_url
    press(browser, "ARROW_RIGHT")
    assert value(browser, visible) == "tab-time" and "tab=time" in browser.current_url
    assert eventually(lambda: value(browser, "document.querySelectorAll('#sessions-picture rect').length") > 3, 120)
    press(browser, "ARROW_RIGHT")
    assert eventually(lambda: f"Run {made}" in text(browser, "#plan") and "Makespan" in text(browser, "#plan"), 120)
    press(browser, "ARROW_RIGHT")
    assert eventually(lambda: "flowers" in text(browser, "#data-facts"), 120)
    press(browser, "ARROW_RIGHT")
    assert "madlib_keras_fit_multiple_model" in text(browser, "#repeat")
    opened(browser, page, f"/run/{made}?tab=setup")
    assert value(browser, visible) == "tab-setup"  # the address has it
    assert problems(browser) == []


def test_statements_are_copied_and_run(db, browser, page, made, screen):
    screen(DESKTOP)
    opened(browser, page, f"/run/{made}", "#card-next")
    browser.execute_script(COPY_ALL)
    assert eventually(lambda: len(value(browser, "window.copied")) >= 3, 120)
    copied = value(browser, "window.copied")
    predict = next(sql for sql in copied if "madlib_keras_predict" in sql)
    assert re.fullmatch(
        r"SELECT madlib\.madlib_keras_predict\('models', 'flowers', 'id', 'x', 'models_predicted', 'response', FALSE, \d\);",
        predict,
    ), predict
    db.run(predict)
    assert db.value("SELECT count(*) FROM models_predicted") == 60
    db.run("DROP TABLE models_predicted")
    clip = next(sql for sql in copied if "clipnorm" in sql)
    # (the failed configuration once more; this one cannot be helped, since its weights decay by 1e38)
    assert "all 1 configurations failed" in str(db.error(clip))
    steps = json.loads(db.value("SELECT madlib.mop_report(%s, 'summary')", [made]))["next"]
    for step in steps:
        if step["kind"] in ("more", "wider", "keep"):
            db.run(step["sql"])


def test_all_failures_are_listed_by_cause(db, browser, page, made, screen):
    screen(DESKTOP)
    selection(db, "many", "arch", [(1, ADAM.format(rate / 1000), "batch_size=8") for rate in range(1, 17)])
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'many_models', 'many', 1, FALSE, NULL, 1)")
    run = last_run(db)
    db.run(
        "UPDATE madlib.mop_configuration SET error = CASE WHEN mst_key > 6 THEN 'the loss became NaN' ELSE %s END "
        "WHERE run_id = %s AND mst_key > 4",
        [ATTACK, run],
    )
    opened(browser, page, f"/run/{run}", "#card-failed a")
    assert "12 of 16, 2 causes" in text(browser, "#card-failed") and "finished, 12 of 16 failed" in text(
        browser, "#card-state"
    )
    assert "learning_rate 0.007 or more, and no other has" in text(browser, "#card-failed")
    assert value(browser, "document.querySelectorAll('#causes tbody tr').length") == 12
    assert "10 × the loss became NaN" in text(browser, "#failures") and "2 × " + ATTACK in text(browser, "#failures")
    assert not value(browser, "'attacked' in window") and problems(browser) == []


def test_the_list_is_searched_sorted_and_filtered(db, browser, page, made, screen):
    screen(DESKTOP)
    opened(browser, page, "/", "#table tbody tr")
    rows = "[...document.querySelectorAll('#table tbody tr')].map(r => r.cells[1].textContent)"
    count = len(value(browser, rows))
    assert count >= 2
    cell = "document.querySelector('[data-focus=\"row%s\"]').innerText" % made
    assert eventually(lambda: "1 of 4 failed" in value(browser, cell) and "learning_rate" in value(browser, cell), 120)
    assert value(browser, f"document.querySelectorAll('[data-focus=\"row{made}\"] svg').length") == 1
    shown = value(browser, f"document.querySelector('[data-focus=\"row{made}\"] time').textContent")
    began = db.value("SELECT extract(epoch FROM started_at)::float8 FROM madlib.mop_run WHERE run_id = %s", [made])
    assert shown == browser.execute_script(
        "return new Date(arguments[0] * 1000).toLocaleString([], { dateStyle: 'short', timeStyle: 'short' })", began
    )
    browser.find_element("id", "words").send_keys("many_mod")
    assert eventually(lambda: "words=many_mod" in browser.current_url and len(value(browser, rows)) == 1, 120)
    browser.find_element("id", "words").clear()
    browser.find_element("id", "words").send_keys("no%_such")
    assert eventually(lambda: "No run fits" in text(browser, "#caption"), 120)
    opened(browser, page, "/?sort=run", "#table tbody tr")
    assert value(browser, rows) == sorted(value(browser, rows), key=int)
    opened(browser, page, "/?state=cancelled", "#caption")
    assert eventually(lambda: "No run fits" in text(browser, "#caption"), 120)
    assert page.call("/api/runs?sort=nonsense")[0] == 404 == page.call("/api/runs?state=nonsense")[0]
    used = "#table [tabindex], #table a, #table button, #table input"
    stops = f"[...document.querySelectorAll('{used}')].filter(e => e.tabIndex >= 0).length"
    opened(browser, page, "/", "#table tbody tr")
    assert value(browser, stops) == 1
    assert problems(browser) == []


def test_one_configuration_is_shown_in_a_drawer(db, browser, page, made, screen):
    screen(DESKTOP)
    opened(browser, page, f"/run/{made}")
    browser.execute_script("document.querySelector('[data-focus=details1]').click()")
    assert eventually(lambda: "Configuration 1" in text(browser, "#drawer"), 120)
    shown = text(browser, "#drawer")
    assert "learning_rate" in shown and "training accuracy" in shown and "The latest" in shown
    assert value(browser, "document.querySelectorAll('#drawer svg path.curve').length") >= 2
    assert "configuration=1" in browser.current_url and value(browser, "document.activeElement.id") == "drawer-close"
    press(browser, "ESCAPE")
    assert value(browser, "document.getElementById('drawer').hidden") and "configuration=" not in browser.current_url
    assert value(browser, "document.activeElement.dataset.focus") == "details1"
    opened(browser, page, f"/run/{made}?configuration=4", "#drawer h2")  # (the one that failed)
    assert eventually(lambda: "the loss became NaN" in text(browser, "#drawer"), 120)
    found = page.json(f"/api/run/{made}/configuration?mst_key=1")
    assert found["sql"]["predict"].endswith("FALSE, 1);") and set(found["sql"]) == {
        "train it for 10 more iterations",
        "predict",
        "export it as a .keras file",
        "make it a named model",
    }
    db.run(found["sql"]["make it a named model"])
    assert db.value(f"SELECT count(*) FROM madlib.mop_models WHERE name = 'run_{made}_1'") == 1
    db.run(f"DROP TABLE run_{made}_1")
    for bad in ("99", "x", ""):
        assert page.call(f"/api/run/{made}/configuration?mst_key={bad}")[0] == 404
    opened(browser, page, f"/run/{made}?configuration=99", "#drawer .error")
    assert "has no configuration 99" in text(browser, "#drawer")
    assert problems(browser) == []


def test_a_model_comes_as_a_keras_file(page, made):
    best = page.json(f"/api/run/{made}")["view"]["summary"]["best"]["mst_key"]
    status, headers, _ = page.call(f"/api/run/{made}/model.keras?mst_key={best}", raw=True)
    assert status == 200 and f"run_{made}_{best}.keras" in headers["content-disposition"]
    assert page.call("/api/run/999999/model.keras?mst_key=1")[0] == 404


def empty(browser, name):
    """Empty a text field that has the focus, and leave the focus there (which WebDriver's clear does not)."""
    assert value(browser, "document.activeElement.id") == name
    browser.execute_script("document.activeElement.value = ''")


def test_notes_and_tags_are_written_searched_and_shown(db, browser, page, made, screen):
    cell = f"document.querySelector('[data-focus=\"row{made}\"]').innerText"
    for size, dark in ((DESKTOP, False), (PHONE, True)):
        screen(size, dark)
        opened(browser, page, "/", "#table tbody tr")
        browser.execute_script(f"document.querySelector('[data-focus=\"note{made}\"]').click()")
        assert value(browser, "document.activeElement.id") == "note-text"
        empty(browser, "note-text")
        press(browser, f"the first try {size[0]} {ATTACK}")
        press(browser, "TAB")
        empty(browser, "note-tags")
        press(browser, "deep, baseline ,deep")
        assert browser.execute_script(SMALL) == [] and value(browser, "document.documentElement.scrollWidth") <= size[0]
        press(browser, "ENTER")
        assert eventually(lambda: f"the first try {size[0]}" in value(browser, cell), 120)  # noqa: B023
        assert value(browser, "document.activeElement.dataset.focus") == f"note{made}"
    assert not value(browser, "'attacked' in window")
    kept = db.run("SELECT note, tags FROM madlib.mop_notes WHERE run_id = %s", [made])
    assert kept == [{"note": f"the first try 390 {ATTACK}", "tags": ["deep", "baseline"]}]
    screen(DESKTOP)
    opened(browser, page, "/?words=baseline", "#table tbody tr")
    assert value(browser, "document.querySelectorAll('#table tbody tr').length") == 1
    opened(browser, page, f"/run/{made}", "#own-note .tag")
    assert "the first try" in text(browser, "#own-note")
    # what the server refuses is told in the dialog, which stays
    browser.execute_script(f"document.querySelector('[data-focus=\"note{made}\"]').click()")
    press(browser, "TAB")
    empty(browser, "note-tags")
    press(browser, "x" * 51)
    press(browser, "ENTER")
    assert eventually(lambda: "is not possible" in text(browser, "#note-said"), 120)
    press(browser, "ESCAPE")
    assert not value(browser, "document.getElementById('note-dialog').open")
    browser.get_log("browser")
    for given in (
        {},
        {"note": 1, "tags": []},
        {"note": "x", "tags": "y"},
        {"note": "x", "tags": [1]},
        {"note": "a\0b", "tags": []},
    ):
        assert page.post(f"/api/run/{made}/note", **given)[0] == 409, given
    assert page.call(f"/api/run/{made}/note", "POST", {}, "{}")[0] == 403
    assert page.post("/api/run/999999/note", note="x", tags=[])[0] == 404
    assert page.post(f"/api/run/{made}/note", note="", tags=[])[0] == 200
    assert db.run("SELECT * FROM madlib.mop_notes WHERE run_id = %s", [made]) == []
