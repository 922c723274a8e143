"""The live page in a real browser: a run is started, its curve grows, cancel cancels; a filter and focus stay."""

import pytest

from support.browser import problems, value
from support.client import Calling
from support.cluster import eventually
from support.served import ATTACK, Served
from support.workload import ADAM, dense, last_run, load, make_data, selection


@pytest.fixture(scope="module")
def page(db):
    make_data(db, rows=60, segments=2)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=1, epochs=10") for rate in (0.01, 0.02, 0.03)])
    served = Served(db.uri())
    yield served
    served.end()


USED = (
    "button",
    "link",
    "textbox",
    "spinbutton",
    "combobox",
    "checkbox",
    "radio",
    "slider",
    "image",
    "region",
    "table",
)  # roles


def points(browser):
    """How many points the curves have that are drawn."""
    return browser.execute_script(
        "return [...document.querySelectorAll('#curves-picture .curve')]"
        ".reduce((n, p) => n + p.getAttribute('d').split(/[ML]/).length - 1, 0)"
    )


def drawn(browser):
    """The curves that are drawn, of which a long run has samples: more of them would be as many points."""
    return value(browser, "[...document.querySelectorAll('#curves-picture .curve')].map(p => p.getAttribute('d')) + ''")


def test_a_run_is_watched_and_cancelled(db, browser, page):
    caller = db.another()
    calling = Calling(
        caller, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 4000, FALSE, NULL, 1)"
    )
    try:
        browser.get(page.address)
        assert eventually(lambda: value(browser, "document.querySelectorAll('.state-running').length") == 1, 120)
        assert "token" not in browser.current_url
        browser.find_element("css selector", "#table tbody a").click()
        assert eventually(lambda: "of 3 configurations" in value(browser, "document.body.innerText"), 120)
        assert eventually(lambda: points(browser) > 3, 120)
        before = drawn(browser)
        assert eventually(lambda: drawn(browser) != before, 400)  # (who reads for a second rests for fifty)
        assert value(browser, "document.getElementById('headline').textContent").startswith("running · ")
        # what somebody has chosen stays while the run goes on
        browser.execute_script("document.querySelector('#filter details').open = true")
        browser.find_element("id", "best").send_keys("2")
        assert eventually(lambda: value(browser, "document.querySelectorAll('#board tbody tr').length") == 2, 120)
        browser.find_element("css selector", "#board th:nth-child(2) button").click()
        assert eventually(
            lambda: value(browser, "document.querySelector('#board th:nth-child(2)').ariaSort") == "ascending", 30
        )
        browser.execute_script("scrollTo(0, 120)")
        before = drawn(browser)
        assert eventually(lambda: drawn(browser) != before, 400)
        assert value(browser, "scrollY") == 120
        assert value(browser, "document.activeElement.dataset.focus") == "headmst_key"
        assert value(browser, "document.querySelectorAll('#board tbody tr').length") == 2
        assert "sort=mst_key" in browser.current_url and "best=2" in browser.current_url
        browser.find_element("id", "cancel").click()
        browser.switch_to.alert.accept()
        assert eventually(
            lambda: value(browser, "document.getElementById('headline').textContent").startswith("cancelled"), 60
        )
        assert "canceling statement" in str(calling.end())
        assert value(browser, "!document.getElementById('resume').hidden && document.getElementById('cancel').hidden")
    finally:
        db.run("SELECT pg_cancel_backend(%s)", [caller.connection.info.backend_pid])
        calling.end()
        caller.close()
    assert problems(browser) == []


def test_what_people_write_is_text_in_the_page(db, browser, page):
    selection(db, "small", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.01, 0.02)])
    db.run(
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'small_models', 'small', 1, FALSE, NULL, 1)"
    )
    run_id = last_run(db)
    db.run("UPDATE madlib.mop_run SET error = %s, model_output_table = %s WHERE run_id = %s", [ATTACK, ATTACK, run_id])
    db.run(
        "UPDATE madlib.mop_configuration SET compile_params = compile_params || ', x=' "
        "|| to_json(mst_key || %s)::text WHERE run_id = %s",
        [ATTACK, run_id],
    )
    db.run(
        "UPDATE madlib.mop_metric SET metrics = json_build_object(%s::text, 0.5) WHERE run_id = %s", [ATTACK, run_id]
    )
    browser.get(page.address)
    assert eventually(lambda: "window.attacked=1" in value(browser, "document.body.innerText"), 120)
    browser.get(f"http://127.0.0.1:{page.port}/run/{run_id}")
    assert eventually(lambda: value(browser, "document.querySelectorAll('#parallel-picture path').length") > 2, 120)
    assert "window.attacked=1" in value(browser, "document.getElementById('error').textContent")
    assert not value(browser, "'attacked' in window") and not value(browser, "document.querySelectorAll('img').length")
    assert problems(browser) == []


def test_fields_that_are_filled_in_together_all_hold(browser, page):
    browser.get(f"http://127.0.0.1:{page.port}/run/1")
    assert eventually(lambda: value(browser, "document.querySelectorAll('#limits input').length") == 6, 120)
    browser.execute_script("""for (const [of, given] of [['#best', 2], ['#limits input', 0.001]]) {
        const input = document.querySelector(of);
        input.value = given;
        input.dispatchEvent(new Event('input'));
    }""")
    assert eventually(lambda: "best=2" in browser.current_url and "low." in browser.current_url, 120)
    assert eventually(lambda: value(browser, "document.querySelectorAll('#board tbody tr').length") == 2, 120)
    assert problems(browser) == []


def test_all_tabs_have_the_token_and_nobody_else(browser, page):
    first = browser.current_window_handle
    browser.get(f"http://127.0.0.1:{page.port}/run/1")
    assert value(browser, "document.cookie") == ""
    browser.switch_to.new_window("tab")
    browser.get(f"http://127.0.0.1:{page.port}/run/1")
    assert eventually(lambda: value(browser, "document.querySelectorAll('#board tbody tr').length") == 3, 120)
    browser.get(page.address)
    browser.execute_script("localStorage.clear(); location.reload()")
    assert eventually(
        lambda: "needs its token" in value(browser, "document.getElementById('connection').textContent"), 30
    )
    browser.get(page.address)  # (the part behind # alone differs: that loads nothing by itself)
    assert eventually(lambda: value(browser, "document.querySelectorAll('tbody tr').length") > 0, 120)
    browser.close()
    browser.switch_to.window(first)
    browser.get_log("browser")  # (it tells of the calls that were refused)


def test_what_can_be_used_has_a_name_for_who_hears_the_page(browser, page):
    browser.execute_cdp_cmd("Accessibility.enable", {})
    for path, least in (("/", 3), ("/run/1", 20)):
        browser.get(f"http://127.0.0.1:{page.port}{path}")
        assert eventually(lambda: value(browser, "document.querySelectorAll('tbody tr').length") > 0, 120)
        nodes = [
            node
            for node in browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
            if not node["ignored"] and node["role"]["value"] in USED
        ]
        nameless = [node for node in nodes if not node.get("name", {}).get("value", "").strip()]
        assert len(nodes) >= least and nameless == []
        assert value(browser, "document.documentElement.lang") == "en" and browser.title
    browser.execute_cdp_cmd("Accessibility.disable", {})


def test_a_phone_shows_it_without_scrolling_sideways(browser, page):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        for path in ("/", "/run/1"):
            browser.get(f"http://127.0.0.1:{page.port}{path}")
            assert eventually(lambda: value(browser, "document.querySelectorAll('tbody tr').length") > 0, 120)
            assert value(browser, "document.documentElement.scrollWidth") <= 360
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_page_whose_server_has_gone_says_so(db, browser, page):
    other = Served(db.uri())
    browser.get(other.address)
    assert eventually(lambda: value(browser, "document.querySelectorAll('tbody tr').length") > 0, 120)
    other.end()
    assert eventually(
        lambda: "does not answer: trying again" in value(browser, "document.getElementById('connection').textContent"),
        60,
    )
