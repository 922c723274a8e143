"""The live page submits calls that train, and nothing else; what mop_explain tells comes first."""

import pytest

from support.browser import DESKTOP, PHONE, SMALL, opened, press, problems, text, value
from support.cluster import eventually
from support.workload import dense, last_run, load, make_data, selection

BY_LOSS = "loss='categorical_crossentropy', optimizer='Adam(learning_rate={})'"


@pytest.fixture(scope="module")
def made(db):
    """The number of a run whose configurations still improve."""
    make_data(db, rows=60, segments=2)
    load(db, "arch", dense())
    # (ranked by the loss, which falls for long)
    selection(db, "mst", "arch", [(1, BY_LOSS.format(rate), "batch_size=8") for rate in (0.001, 0.002)])
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 6, FALSE, NULL, 1)")
    return last_run(db)


def runs(db):
    return db.value("SELECT count(*) FROM madlib.mop_runs")


@pytest.mark.parametrize("size, dark", [(DESKTOP, False), (PHONE, True)])
def test_a_call_is_explained_and_then_submitted(db, browser, page, made, screen, size, dark):
    screen(size, dark)
    before = runs(db)
    opened(browser, page, "/", "#table tbody tr")
    browser.execute_script("document.getElementById('start').click()")
    assert value(browser, "document.activeElement.id") == "submit-sql" and "mop_train" in value(
        browser, "document.getElementById('submit-sql').value"
    )
    assert value(browser, "document.getElementById('submit-go').disabled")  # nothing is submitted unseen
    browser.find_element("id", "submit-sql").clear()
    browser.find_element("id", "submit-sql").send_keys(f"SELECT madlib.mop_more({made}, 1, 1)")
    press(browser, "TAB")
    press(browser, "ENTER")  # Explain
    assert eventually(lambda: "Units:" in text(browser, "#submit-plan"), 60), text(browser, "#submit-said")
    assert runs(db) == before and not value(browser, "document.getElementById('submit-go').disabled")
    assert browser.execute_script(SMALL) == [] and value(browser, "document.documentElement.scrollWidth") <= size[0]
    browser.execute_script("document.getElementById('submit-go').focus()")
    press(browser, "ENTER")
    assert eventually(lambda: "runs it, independent" in text(browser, "#said"), 60), text(browser, "#submit-said")
    assert not value(browser, "document.getElementById('submit-dialog').open")
    done = "SELECT status FROM madlib.mop_jobs ORDER BY job DESC LIMIT 1"
    assert eventually(lambda: db.value(done) == "finished", 120), db.run("SELECT * FROM madlib.mop_jobs")
    assert runs(db) == before + 1
    assert problems(browser) == []


def test_what_next_can_be_submitted(db, browser, page, made, screen):
    screen(DESKTOP)
    opened(browser, page, f"/run/{made}", "#steps summary")
    offered = (
        "[...document.querySelectorAll('#steps [aria-label^=\"Submit: \"]')].map(b => b.getAttribute('aria-label'))"
    )
    assert any(f"mop_more({made}, " in label for label in value(browser, offered)), text(browser, "#steps")
    browser.execute_script("document.querySelector('#steps [aria-label*=mop_more]').click()")
    assert eventually(lambda: "Units:" in text(browser, "#submit-plan"), 60), text(browser, "#submit-said")
    press(browser, "ESCAPE")
    assert not value(browser, "document.getElementById('submit-dialog').open")
    # a text that is changed after it was explained is explained again
    browser.execute_script("document.querySelector('#steps [aria-label*=mop_more]').click()")
    assert eventually(lambda: not value(browser, "document.getElementById('submit-go').disabled"), 120)
    browser.execute_script("document.getElementById('submit-sql').focus()")
    press(browser, "X")
    assert value(browser, "document.getElementById('submit-go').disabled")
    press(browser, "ESCAPE")
    assert problems(browser) == []


@pytest.mark.parametrize(
    "command",
    [
        "DROP TABLE flowers",
        "SELECT madlib.mop_drop_run(1)",
        "SELECT madlib.mop_more(1, 1, 1); DROP TABLE flowers",
        "SELECT madlib.mop_more((SELECT 1), 1, 1)",
        "SELECT madlib.mop_more(999999, 1, 1)",
        "",
        None,
        ["SELECT 1"],
        "SELECT 'a\0b'",
        "x" * 20_001,
    ],
)
def test_nothing_else_is_submitted(db, page, made, command):
    before = runs(db), db.value("SELECT count(*) FROM madlib.mop_jobs")
    for what in ("explain", "submit"):
        status, told = page.post(f"/api/{what}", command=command)
        assert status in (400, 409) and told["error"], (what, told)
    assert page.call("/api/submit", "POST", {}, "{}")[0] == 403 and page.call("/api/submit")[0] in (403, 405)
    assert (runs(db), db.value("SELECT count(*) FROM madlib.mop_jobs")) == before
    assert db.value("SELECT count(*) FROM flowers") == 60
