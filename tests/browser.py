"""A real browser for the tests: Debian's Chromium, through its driver."""

import os
import shutil
import subprocess

import pytest


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
