"""A real browser for the tests: Debian's Chromium, through its driver."""

import os
import shutil
import subprocess

import pytest

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
