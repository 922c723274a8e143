"""Named models on the live page: what is stored is shown, rows are read on request alone, with the reader's rights."""

import re
import threading

import pytest

from support.browser import problems, value
from support.cluster import eventually
from support.served import ATTACK, Served


@pytest.fixture(scope="module")
def guests(db):
    """A named model with two versions, and a view whose rows come slowly."""
    db.run(
        "CREATE TABLE guests AS SELECT i AS id, (i * 37 % 101)::float8 AS age, 'town ' || i % 5 AS town, "
        "(ARRAY['wine', 'tea'])[1 + (i * 37 % 101) / 60] AS drink FROM generate_series(1, 200) i; "
        "SELECT madlib.mop_pack('guests', 'drinks_packed', target => 'drink', id => 'id'); "
        "SELECT madlib.mop_architecture('drinks_nets', 'drinks_packed', 'linear'); "
        "CREATE VIEW slow_guests AS SELECT * FROM guests WHERE pg_sleep(0.5) IS NOT NULL; "
        "CREATE TABLE seen (id integer); CREATE FUNCTION saw(integer) RETURNS boolean LANGUAGE sql VOLATILE "
        "AS 'INSERT INTO public.seen VALUES ($1) RETURNING true'; "
        "CREATE VIEW writing_guests AS SELECT * FROM guests WHERE saw(id)"
    )
    db.run(
        "SELECT madlib.madlib_keras_fit('drinks_packed', 'drinks_fitted', 'drinks_nets', 1, "
        "$$loss='categorical_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy']$$, 'batch_size=16', 4)"
    )
    for _ in range(2):
        db.run("SELECT madlib.mop_deploy('drinks', 'drinks_fitted', description => %s)", [ATTACK])
    db.run("""UPDATE drinks SET metrics = '{"accuracy": 0.75, "other": 1}' WHERE version = 2""")
    return db


@pytest.fixture(scope="module")
def page(guests):
    served = Served(guests.uri())
    yield served
    served.end()


def test_models_are_listed_with_the_version_in_use(page):
    (model,) = page.json("/api/models")["models"]
    assert (model["name"], model["version"], model["versions"], model["in_use"]) == ("drinks", 2, 2, True)
    assert model["metrics"] == {"accuracy": 0.75} and model["description"] == ATTACK
    for path in ("/models", "/model"):
        status, _, text = page.call(path, headers={})
        assert status == 200 and page.token not in text
    for path in ("/api/models", "/api/model?name=drinks"):
        assert page.call(path, headers={})[0] == 403


def test_what_is_stored_with_a_model_is_shown(guests, page):
    data = page.json("/api/model?name=drinks")
    assert data["version"] == 2 and data["versions"] == [1, 2] and data["measured"] == []
    assert page.json("/api/model?name=drinks&version=1")["version"] == 1
    for path, said in (
        ("/api/model", "no model is named"),
        ("/api/model?name=a;b", "invalid table name"),
        ("/api/model?name=drinks&version=x", "version must be a whole number"),
    ):
        status, _, text = page.call(path)
        assert status == 404 and said in text
    status, _, text = page.call("/api/model?name=drinks&version=9")
    assert status == 400 and "has no version 9" in text


def test_a_model_is_measured_on_request(guests, page):
    status, data = page.post("/api/model/evaluate", name="drinks", source="guests")
    assert status == 200 and data["source"] == "guests"
    names = {section["name"] for section in data["measured"]}
    assert {"measures", "confusion", "classes", "roc", "calibration", "importance", "drift"} == names
    assert page.call("/api/model/evaluate")[0] == 405
    assert page.call("/api/model/evaluate", "POST", {}, "{}")[0] == 403
    for given, said in (
        ({"name": "drinks"}, "no table is given"),
        ({"name": "drinks", "source": 7}, "no table is given"),
        ({"name": "drinks", "source": "SELECT * FROM guests"}, "invalid table name"),
        ({"source": "guests"}, "no model is named"),
    ):
        status, told = page.post("/api/model/evaluate", **given)
        assert status == 409 and said in told["error"]
    status, told = page.post("/api/model/evaluate", name="drinks", source="nowhere")
    assert status == 400 and "source table 'nowhere' does not exist" in told["error"]
    status, told = page.post("/api/model/evaluate", name="drinks", source="writing_guests")
    assert status == 400 and "read-only transaction" in told["error"]
    assert guests.value("SELECT count(*) FROM seen") == 0


def test_one_model_at_a_time_is_measured_and_it_can_be_cancelled(guests, page):
    assert page.post("/api/model/cancel") == (409, {"error": "no evaluation is in progress", "hint": None})
    found = []
    asking = threading.Thread(
        target=lambda: found.append(page.post("/api/model/evaluate", name="drinks", source="slow_guests"))
    )
    asking.start()
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    assert eventually(lambda: guests.value(sleeping) == 1, 120)
    status, told = page.post("/api/model/evaluate", name="drinks", source="guests")
    assert status == 409 and told["error"] == "another evaluation is in progress"
    assert page.post("/api/model/cancel")[0] == 200
    asking.join(180)
    assert not asking.is_alive() and found[0][0] == 400 and "canceling statement" in found[0][1]["error"]
    assert page.post("/api/model/evaluate", name="drinks", source="guests")[0] == 200


def test_models_and_rows_are_read_with_the_rights_of_the_role(guests):
    guests.run("CREATE ROLE looker LOGIN IN ROLE mop_user; GRANT USAGE ON SCHEMA public TO looker")
    served = Served(guests.uri("looker"))
    try:
        assert served.json("/api/models")["models"] == []
        assert "permission denied" in served.call("/api/model?name=drinks")[2]
        guests.run("SELECT madlib.mop_share('drinks', 'looker')")
        assert eventually(lambda: len(served.json("/api/models")["models"]) == 1, 120)
        assert eventually(lambda: served.call("/api/model?name=drinks")[0] == 200, 120)
        status, told = served.post("/api/model/evaluate", name="drinks", source="guests")
        assert status == 400 and 'permission denied for source table "guests"' in told["error"]
    finally:
        served.end()
        guests.run("DROP OWNED BY looker; DROP ROLE looker")


# --- in a browser --------------------------------------------------------------------------------------------
def size(browser, width, scheme="light"):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )


def test_a_model_is_opened_measured_and_saved(guests, page, browser, tmp_path):
    try:
        size(browser, 1400)
        browser.get(page.address)
        assert eventually(lambda: value(browser, "document.getElementById('caption').textContent"), 120)
        browser.find_element("link text", "Models").click()
        assert eventually(lambda: browser.find_elements("link text", "drinks"), 120)
        assert ATTACK in value(browser, "document.querySelector('#table tbody').textContent")
        browser.find_element("link text", "drinks").click()
        assert eventually(lambda: "Model drinks, version 2" in browser.title, 120)
        assert "0.75" in value(browser, "document.getElementById('about-part').textContent")
        assert not value(browser, "document.getElementById('measured-part').children.length")
        browser.find_element("id", "source").send_keys("nowhere")
        browser.find_element("css selector", "#evaluate button").click()
        told = "document.getElementById('evaluation').textContent"
        assert eventually(lambda: "source table 'nowhere' does not exist" in value(browser, told), 120)
        browser.find_element("id", "source").clear()
        browser.find_element("id", "source").send_keys("guests")
        browser.find_element("css selector", "#evaluate button").click()
        assert eventually(lambda: value(browser, told).startswith("Measured on guests, version 2"), 120)
        kinds = ("confusion", "classes", "roc", "calibration", "importance", "drift")
        for width, scheme in ((1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")):
            size(browser, width, scheme)
            for kind in kinds:
                picture = browser.find_element("id", f"{kind}-picture")
                browser.execute_script("arguments[0].scrollIntoView()", picture)
                assert eventually(lambda: picture.find_elements("css selector", "svg rect, svg circle, .curve"), 120)  # noqa: B023
            assert value(browser, "document.documentElement.scrollWidth") <= width
        browser.execute_cdp_cmd("Accessibility.enable", {})
        tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        used = [
            n
            for n in tree
            if not n["ignored"] and n["role"]["value"] in ("button", "link", "textbox", "image", "table")
        ]
        assert len(used) > 20 and all(n.get("name", {}).get("value", "").strip() for n in used)
        browser.execute_cdp_cmd("Accessibility.disable", {})
        # what was measured stays while the page reads the versions again
        assert value(browser, "document.getElementById('measured-part').children.length") == 7
        browser.execute_script("""window.blobs = []; window.saved = [];
            HTMLAnchorElement.prototype.click = function () { window.saved.push(this.download); };
            const made = URL.createObjectURL;
            URL.createObjectURL = blob => { window.blobs.push(blob); return made.call(URL, blob); };
            document.getElementById('html').click();
            document.querySelector('[aria-label="ROC curve as SVG"]').click();""")
        assert eventually(lambda: len(value(browser, "window.saved")) == 2, 120)
        assert value(browser, "window.saved") == ["model_drinks.html", "model_drinks_roc.svg"]
        texts = browser.execute_async_script("Promise.all(window.blobs.map(b => b.text())).then(arguments[0])")
        assert not value(browser, "'attacked' in window") and problems(browser) == []
        (tmp_path / "page.html").write_text(texts[0], encoding="utf-8")
        browser.get((tmp_path / "page.html").as_uri())
        assert value(browser, "document.querySelectorAll('.picture svg').length") == 6
        assert not value(browser, "document.querySelectorAll('button, input, script, link, template').length")
        assert "Confusion matrix" in value(browser, "document.body.innerText") and page.token not in texts[0]
        assert re.search(r"^<svg", texts[1]) and "ROC curve" in texts[1]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
