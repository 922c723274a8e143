"""A real browser for the tests: Debian's Chromium, through its driver."""

import os
import shutil
import subprocess

import pytest

from support.cluster import eventually

DESKTOP, PHONE = (1400, 900, False), (390, 844, True)  # width, height, is a phone
# what can be pressed, with less than 24 pixels
SMALL = """return [...document.querySelectorAll('button, a, input, select, summary')]
    .filter(e => e.checkVisibility() && !e.closest('.unseen, .skip'))
    .map(e => [e.outerHTML.slice(0, 120), (e.closest('label') || e).getBoundingClientRect()])
    .filter(([, r]) => r.height < 23.5 || r.width < 23.5).map(([html, r]) => `${html} ${r.width} x ${r.height}`)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="not run: the page in a browser needs selenium")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("not run: the page in a browser needs chromium and chromium-driver")
    home = tmp_path_factory.mktemp("browser")
    options = webdriver.ChromeOptions()
    for option in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--window-size=1200,1000",
        f"--user-data-dir={home}/profile",
    ):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(
        shutil.which("chromedriver"), env={**os.environ, "HOME": str(home)}, log_output=subprocess.DEVNULL
    )
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def value(browser, script):
    return browser.execute_script("return " + script)


def problems(browser):
    """The browser's complaints: errors of scripts, and requests that the content security policy has blocked."""
    return [line["message"] for line in browser.get_log("browser") if "Failed to load resource" not in line["message"]]


@pytest.fixture
def screen(browser):
    """Sets the size of the screen, and dark or light colours."""

    def set_to(size, dark=False):
        width, height, mobile = size
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    yield set_to
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def text(browser, selector):
    return value(browser, f"document.querySelector('{selector}')?.innerText ?? ''")


def press(browser, key):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    ActionChains(browser).send_keys(getattr(Keys, key, key)).perform()


def opened(browser, page, path, ready="#board tbody tr"):
    """Open a page of the dashboard, and wait for a part of it."""
    browser.get(page.address)
    browser.get(f"http://127.0.0.1:{page.port}{path}")
    assert eventually(lambda: value(browser, f"document.querySelectorAll('{ready}').length > 0"), 120)


# texts of pictures whose contrast with the page is below 4.5
FAINT = """
    const lin = c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
    const lum = text => {
        const [r, g, b] = text.match(/[\\d.]+/g).map(v => lin(text.startsWith('color(srgb') ? +v : v / 255));
        return .2126 * r + .7152 * g + .0722 * b;
    };
    const paper = lum(getComputedStyle(document.body).backgroundColor);
    return [...document.querySelectorAll('.picture svg text')].filter(e => e.checkVisibility()).map(e => {
        const own = lum(getComputedStyle(e).fill), [a, b] = [Math.max(own, paper), Math.min(own, paper)];
        return [(a + .05) / (b + .05), e.textContent];
    }).filter(([ratio]) => ratio < 4.5)"""


def shown(browser, name):
    """Scroll a picture into view, and wait until it is drawn."""
    browser.execute_script(f"document.getElementById('{name}-picture').scrollIntoView({{ block: 'center' }})")
    drawn = f"document.querySelectorAll('#{name}-picture svg *').length > 3"
    assert eventually(lambda: value(browser, drawn), 60), name


def focus(browser, name):
    browser.execute_script(f"document.querySelector('#{name}-picture > [tabindex]').focus()")


def readout(browser, name):
    return text(browser, f"#{name}-picture .readout")
