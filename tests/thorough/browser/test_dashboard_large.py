"""The live page of a run of 2,000 configurations and 20 iterations: what it takes, which is printed, and that it is usable."""

import json
import time

import pytest

from support.browser import problems, value
from support.cluster import eventually
from support.forged import large_run
from support.served import Served
from support.workload import ADAM, dense, last_run, load, make_data, selection

COUNT, ITERATIONS, RUN = 2000, 20, 9000
# The claims are for two busy cores, and below a tenth of these. (No result of a test depends on timing: these numbers are for
# what hangs.)
HANGS = 180
# a script that keeps what the headline of a page says, from its beginning on
HEADLINES = """new MutationObserver(() => {
    const text = document.getElementById("headline")?.textContent;
    if (text) (window.headlines ||= []).push(text);
}).observe(document, { subtree: true, childList: true, characterData: true });"""


@pytest.fixture(scope="module")
def page(db):
    make_data(db, rows=60, segments=2)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=8")])
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 1, FALSE)")
    large_run(db, RUN, COUNT, ITERATIONS, last_run(db))
    served = Served(db.uri())
    yield served
    served.end()
    db.run("DELETE FROM madlib.mop_run WHERE run_id = %s", [RUN])


def timed(name, work):
    """The result of `work`, whose seconds are printed."""
    began = time.monotonic()
    found = work()
    took = time.monotonic() - began
    print(f"\n{COUNT} configurations x {ITERATIONS} iterations: {name} {took:.2f} s", end="")
    assert took < HANGS, name
    return found


def test_counts_of_a_large_run_are_those_of_its_configurations(db, page):
    sums = (
        "SELECT sum(units_done)::bigint AS d, sum(units_total)::bigint AS t FROM madlib.mop_progress WHERE run_id = %s"
    )
    whole = tuple(db.run(sums, [RUN])[0].values())
    look = "SELECT units_done, units_total FROM madlib.mop_run_progress WHERE run_id = %s"
    assert tuple(timed("a look", lambda: db.run(look, [RUN]))[0].values()) == whole == (160_000, 160_000)


def test_a_large_run_is_loaded_filtered_and_sorted(browser, page):
    def rows(count=20):
        return eventually(lambda: value(browser, "document.querySelectorAll('#board tbody tr').length") == count, HANGS)

    def first(column):
        at = f"[...document.querySelectorAll('#board th')].findIndex(h => h.textContent === '{column}')"
        return value(browser, f"document.querySelector('#board tbody tr').cells[{at}].textContent")

    browser.get(page.address)
    eventually(lambda: value(browser, "document.querySelectorAll('#table tbody tr').length") > 0, 120)
    address = f"http://127.0.0.1:{page.port}/run/{RUN}"
    watch = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": HEADLINES})
    assert timed("first load", lambda: (browser.get(address), rows())[1])
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", watch)
    began, *_, ended = value(browser, "window.headlines")
    assert began == f"Run {RUN} is being read." and "160000 of 160000 units" in ended  # (it says so while it waits)
    drawn = "document.querySelectorAll('#curves-picture path').length"
    assert timed("curves after it", lambda: eventually(lambda: value(browser, drawn) > 50, HANGS))
    marks = "(document.querySelector('#slices-picture path.others')?.getAttribute('d') || '').split('M').length - 1"
    browser.execute_script("document.getElementById('slices-picture').scrollIntoView()")
    assert eventually(lambda: value(browser, marks) == 1460, HANGS)
    head = "document.querySelector('[data-focus=\"headlearning_rate\"]')"
    assert timed(
        "sort",
        lambda: (
            browser.execute_script(head + ".click()"),
            eventually(lambda: first("learning_rate") == "0.0001", HANGS),
        )[1],
    )
    assert timed("filter", lambda: browser.get(address + "?best=7") or rows(7))
    assert "7 of 2000" in value(browser, "document.getElementById('filtered').textContent")
    assert eventually(lambda: value(browser, "document.querySelectorAll('#curves-picture .curve').length") == 7, HANGS)
    # the pictures of these alone come when they are read
    assert eventually(lambda: not page.json(f"/api/run/{RUN}?best=7")["view"]["pending"], HANGS)
    few = page.json(f"/api/run/{RUN}?best=7")["view"]
    assert len(few["curves"]) == 7 and sum(bar[6] for bar in few["bars"]) == 7 * 80
    assert problems(browser) == []


def test_the_api_answers_filters_and_orders_from_memory(page):
    def ask(query):
        return page.json(f"/api/run/{RUN}?{query}")["view"]

    whole = ask("")
    # (of those with a result, pictures draw the 500 best one by one, and each other one as a small mark)
    assert whole["all"] == COUNT and len(whole["others"]) == COUNT - COUNT // 50 - 500 == 1460
    assert "1460 others as small marks" in whole["sampled"]["slices"]
    assert timed("filter in the API", lambda: ask("low.learning_rate=0.1&is.optimizer=Adam"))["shown"] < COUNT / 3
    assert timed("sort in the API", lambda: ask("sort=learning_rate&desc=1"))["rows"][0][0] > 0


def test_merged_bars_cover_neither_gaps_nor_other_kinds(db, page):
    """Of the forged run, a session trains for 0.09 s, evaluates for 0.09 s, and then idles for 0.1 s."""
    data = json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [RUN]))
    assert data["merged_bars"] and sum(bar[6] for bar in data["bars"]) == 4 * COUNT * ITERATIONS
    wide = data["bars"][0][2] - data["bars"][0][1]
    for kind in ("train", "evaluate"):
        busy = [bar[7] for bar in data["bars"] if bar[3] == kind]
        assert all(share <= 1 for share in busy) and len(busy) == 2 * 250
        assert sum(busy) * wide == pytest.approx(2 * 0.09 * COUNT * ITERATIONS, rel=0.01)
        assert sorted(busy)[len(busy) // 2] == pytest.approx(0.09 / 0.28, rel=0.05)
