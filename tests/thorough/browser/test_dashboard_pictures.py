"""Pictures of the live page and of the report: parameters, results, curves; by pointer, by keyboard, in light and dark."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from support.browser import DESKTOP, FAINT, PHONE, SMALL, focus, opened, press, problems, readout, shown, value
from support.cluster import eventually
from support.workload import ADAM, dense, last_run, load, make_data, selection

SGD = "loss='categorical_crossentropy', optimizer='SGD(learning_rate={})', metrics=['accuracy']"
RATES = (0.0003, 0.003, 0.03, 0.1)
PICTURES = ("curves", "slices", "parallel", "edf", "pareto")
ROWS = "document.querySelectorAll('#board tbody tr').length"


@pytest.fixture(scope="module")
def made(db):
    """The number of a run of 16 configurations: an optimizer, a rate and a batch size, with validation rows."""
    make_data(db, rows=60, segments=2)
    load(db, "arch", dense())
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed', 10)")
    rows = [
        (1, params.format(rate), f"batch_size={size}") for params in (ADAM, SGD) for rate in RATES for size in (8, 16)
    ]
    selection(db, "mst", "arch", rows)
    db.run(
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 5, FALSE, 'flowers_val', 1)"
    )
    return last_run(db)


def drag(browser, name, begin, end):
    """Drag within a picture, from one point to another, in coordinates of its drawing."""
    box = value(
        browser,
        f"(() => {{ const s = document.querySelector('#{name}-picture svg'), r = s.getBoundingClientRect(); "
        f"return [r.left, r.top, r.width / s.viewBox.baseVal.width]; }})()",
    )
    actions = ActionChains(browser)
    points = [[round(box[0] + x * box[2]), round(box[1] + y * box[2])] for x, y in (begin, end)]
    mouse = actions.w3c_actions.pointer_action
    mouse.move_to_location(*points[0])
    mouse.pointer_down()
    mouse.move_to_location((points[0][0] + points[1][0]) // 2, (points[0][1] + points[1][1]) // 2)
    mouse.move_to_location(*points[1])
    mouse.pointer_up()
    actions.perform()


def axes(browser):
    return value(browser, "[...document.querySelectorAll('#parallel-picture .grip title')].map(t => t.textContent)")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_every_picture_is_drawn_named_and_used_by_keyboard(browser, page, made, screen, size, dark):
    screen(size, dark)
    for tab, names in (("parameters", PICTURES[:3]), ("results", PICTURES[3:])):
        opened(browser, page, f"/run/{made}?tab={tab}", "#curves-picture svg path")
        for name in names:
            shown(browser, name)
            label = value(browser, f"document.querySelector('#{name}-picture svg').getAttribute('aria-label')")
            assert label.endswith(".") and len(label) > 30, name
            focus(browser, name)
            press(browser, "ARROW_RIGHT")
            press(browser, "ARROW_RIGHT")
            assert len(readout(browser, name)) > 10, name
        assert browser.execute_script(SMALL) == []
        assert browser.execute_script(FAINT) == []
        assert value(browser, "document.documentElement.scrollWidth") <= size[0]
    assert problems(browser) == []


def test_axes_are_reordered_by_keyboard_and_by_pointer(browser, page, made, screen):
    screen(DESKTOP)
    opened(browser, page, f"/run/{made}")
    shown(browser, "parallel")
    before = axes(browser)
    assert set(before[:3]) == {"optimizer", "learning_rate", "batch_size"} and before[-1].startswith("validation")
    focus(browser, "parallel")
    press(browser, "ARROW_RIGHT")
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.ARROW_RIGHT).key_up(Keys.SHIFT).perform()
    now = axes(browser)
    assert now[:2] == [before[1], before[0]] and now[2:] == before[2:]
    assert f"{before[0]} is axis 2 of 5" in readout(browser, "parallel")
    assert "axis=" in browser.current_url
    xs = value(browser, "[...document.querySelectorAll('#parallel-picture .grip')].map(t => +t.getAttribute('x'))")
    drag(browser, "parallel", (xs[0], 26), (xs[2] + 10, 26))
    assert axes(browser) == [now[1], now[2], now[0], *now[3:]]
    browser.refresh()  # (the address has the order)
    shown(browser, "parallel")
    assert axes(browser) == [now[1], now[2], now[0], *now[3:]]
    assert problems(browser) == []


def test_a_part_of_an_axis_sets_the_one_filter(browser, page, made, screen):
    screen(DESKTOP)
    opened(browser, page, f"/run/{made}")
    shown(browser, "parallel")
    place = axes(browser).index("optimizer")
    x = value(browser, f"+document.querySelectorAll('#parallel-picture .grip')[{place}].getAttribute('x')")
    drag(browser, "parallel", (x, 50), (x, 150))  # (the upper band)
    assert eventually(lambda: value(browser, ROWS) == 8, 120)
    assert "is.optimizer=SGD" in browser.current_url
    assert "8 of 16" in value(browser, "document.getElementById('filtered').textContent")
    field = "document.querySelector('[data-filter=\"is.optimizer\"]').value"
    assert value(browser, field) == "SGD"
    assert value(browser, "document.querySelectorAll('#parallel-picture .brush').length") == 1
    drag(browser, "parallel", (x, 200), (x, 200))  # a click on the axis shows all
    assert eventually(lambda: value(browser, ROWS) == 16, 120) and "is.optimizer" not in browser.current_url
    assert value(browser, field) == ""
    opened(browser, page, f"/run/{made}?is.optimizer=SGD", "#curves-picture svg path")
    assert value(browser, "document.querySelectorAll('#curves-picture .curve').length") == 8
    assert problems(browser) == []


def test_results_are_those_of_all_configurations(browser, page, made, screen):
    screen(DESKTOP)
    opened(browser, page, f"/run/{made}?tab=results")
    view = page.json(f"/api/run/{made}")["view"]
    series, rows = view["measure"]["series"], view["configurations"]
    assert view["spread"]["of"] == 16 and view["spread"]["iterations"] == 5 and view["shown_values"] is None
    assert set(view["spread"]["parts"]) == {"optimizer", "learning_rate", "batch_size"}
    for name in ("edf", "pareto"):
        shown(browser, name)
    # the front: no other configuration is as good in both and better in one
    losses = {c["mst_key"]: (c["last"][series], c["last"][series.replace("accuracy", "loss")]) for c in rows}
    front = [
        key
        for key, (accuracy, loss) in losses.items()
        if not any(a >= accuracy and b <= loss and (a, b) != (accuracy, loss) for a, b in losses.values())
    ]
    assert value(browser, "document.getElementById('pareto-x').value") == series.replace("accuracy", "loss")
    assert value(browser, "document.querySelectorAll('#pareto-picture circle.front').length") == len(front)
    values = sorted((c["last"][series] for c in rows), reverse=True)
    focus(browser, "edf")
    press(browser, "ARROW_RIGHT")
    assert readout(browser, "edf").startswith("6 % have")
    some = page.json(f"/api/run/{made}?is.optimizer=Adam&is.optimizer=SGD&low.learning_rate=0.03")["view"]
    assert some["shown"] == 8 == len(some["shown_values"]) and some["spread"] == view["spread"]
    assert page.json(f"/api/run/{made}?low.{series.replace(' ', '%20')}={values[3]}")["view"]["shown"] >= 4
    assert problems(browser) == []


def test_curves_by_time_smoothed_and_of_both_data_sets(browser, page, made, screen):
    screen(DESKTOP)
    opened(browser, page, f"/run/{made}", "#curves-picture svg path")
    first = value(browser, "document.querySelector('#curves-picture .curve.top').getAttribute('d')")
    times = page.json(f"/api/run/{made}")["view"]["times"]
    assert len(times) == 16 and all(
        [i for i, _ in own] == [1, 2, 3, 4, 5] and sorted(own, key=lambda p: p[1]) == own for own in times.values()
    )
    choose = "const e = document.getElementById('{}'); e.value = '{}'; e.dispatchEvent(new Event('{}'))"
    browser.execute_script(choose.format("across", "seconds", "change"))
    assert "time since the run began" in value(browser, "document.querySelector('#curves-picture svg').textContent")
    assert value(browser, "document.querySelector('#curves-picture .curve.top').getAttribute('d')") != first
    focus(browser, "curves")
    press(browser, "ARROW_RIGHT")
    assert "iteration 2, after " in readout(browser, "curves")
    browser.execute_script(choose.format("across", "logarithmic", "change"))
    browser.execute_script(choose.format("smooth", "0.6", "input"))
    press(browser, "ARROW_RIGHT")
    assert "smoothed" in readout(browser, "curves")
    assert value(browser, "document.querySelectorAll('#curves-picture .raw').length") == 8
    browser.execute_script("document.getElementById('both').click()")
    assert value(browser, "document.querySelectorAll('#curves-picture .twin').length") == 8
    press(browser, "ARROW_RIGHT")
    assert "; training" in readout(browser, "curves")
    assert problems(browser) == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_the_report_has_the_same_pictures(db, browser, made, screen, size, tmp_path):
    screen(size)
    (tmp_path / "run.html").write_text(db.value("SELECT madlib.mop_report(%s)", [made]), encoding="utf-8")
    browser.get((tmp_path / "run.html").as_uri())
    for name in PICTURES:
        shown(browser, name)
    focus(browser, "parallel")
    press(browser, "ARROW_RIGHT")
    before = axes(browser)
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.ARROW_RIGHT).key_up(Keys.SHIFT).perform()
    assert axes(browser)[:2] == before[1::-1]
    press(browser, "ARROW_UP")  # (a report has no filter)
    assert value(browser, "document.querySelectorAll('#parallel-picture .brush').length") == 0
    assert value(browser, "document.documentElement.scrollWidth") <= size[0]
    assert problems(browser) == []
