"""Screenshots of the live page and of the tutorial's report, of real runs on the embedded server: make screenshots.
Argument: the server's URI."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import keras
import psycopg2
from selenium import webdriver
from sklearn.datasets import load_digits

from pg_mop_client import Selection

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PICTURES = DOCS / "pictures"
DESKTOP, NARROW, PHONE = (1100, 1000, False), (800, 900, False), (360, 740, True)
OF_TUTORIAL = ("curves", "parallel", "sessions")  # what is shown of its report


def run(where):
    """A run of 12 configurations over handwritten digits: its number."""
    with Selection(where, seed=42, progress=False) as s:
        for table in ("shot_digits", "shot_digits_val"):
            s.calls.execute(f"DROP TABLE IF EXISTS {table}, {table}_packed, {table}_packed_summary", {})
        s.calls.execute("DROP TABLE IF EXISTS shot_nets, shot_grid, shot_grid_summary", {})
        s.calls.execute("DROP TABLE IF EXISTS shot_models, shot_models_info, shot_models_summary", {})
        digits = load_digits(as_frame=True).frame
        train = s.pack(digits[::2], "shot_digits", label="target", normalizing_const=16)
        val = s.pack(digits[1::2], "shot_digits_val", label="target", validation_of=train)
        s.from_keras(
            keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")]),
            "shot_nets",
        )
        s.generate_model_configs(
            "shot_nets",
            "shot_grid",
            [1],
            {
                "loss": ["categorical_crossentropy"],
                "metrics": ["accuracy"],
                "optimizer_params_list": [{"optimizer": ["Adam", "SGD"], "lr": [0.001, 0.01, 0.05]}],
            },
            {"batch_size": [16, 64]},
        )
        return s.fit_multiple(train, "shot_models", "shot_grid", 12, val).run_id


def tutorial(where):
    """The report of the run that the tutorial makes."""
    connection = psycopg2.connect(where)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA IF EXISTS tutorial CASCADE; CREATE SCHEMA tutorial; SET search_path = tutorial")
        blocks = re.findall("^```sql\n(.*?)^```", (DOCS / "tutorial.md").read_text(), re.M | re.S)
        at = next(i for i, block in enumerate(blocks) if "CREATE TABLE points" in block)
        for block in blocks[at : at + 5]:
            cursor.execute(block)
        cursor.execute("SELECT madlib.mop_report(max(run_id)) FROM madlib.mop_runs")
        report = cursor.fetchone()[0]
        cursor.execute("DROP SCHEMA tutorial CASCADE")
    connection.close()
    return report


def shoot(browser, name, address, size, dark, parts=None):
    """A screenshot, or one of each of the page's `parts`, `name` and then the part's."""
    width, height, mobile = size
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]},
    )
    browser.get(address)
    until = time.monotonic() + 30
    while not browser.execute_script("return document.querySelectorAll('tbody tr').length"):
        if time.monotonic() > until:
            raise SystemExit(f"{address} shows nothing")
        time.sleep(0.1)
    time.sleep(1)  # the pictures are drawn once their widths are known
    browser.execute_script("const row = document.querySelector('#board tbody tr'); row && row.click()")
    if parts is None:
        browser.save_screenshot(str(PICTURES / name))
    for part in parts or ():
        shown = browser.find_element("id", part)
        browser.execute_script("arguments[0].scrollIntoView()", shown)
        time.sleep(1)  # what is not in view is not drawn
        shown.screenshot(str(PICTURES / f"{name}-{part}.png"))


def main(where):
    number = run(where)
    PICTURES.mkdir(exist_ok=True)
    served = subprocess.Popen(
        [shutil.which("mop", path=os.path.dirname(sys.executable)), "-d", where, "dashboard", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
    )
    options = webdriver.ChromeOptions()
    with tempfile.TemporaryDirectory() as home:
        for option in (
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            f"--user-data-dir={home}",
        ):
            options.add_argument(option)
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            address = served.stdout.readline().strip()
            shoot(browser, "dashboard-runs.png", address, (1100, 420, False), False)
            page = f"{address.split('#')[0]}run/{number}"
            shoot(browser, "dashboard-light.png", page, DESKTOP, False)
            shoot(browser, "dashboard-dark.png", page, DESKTOP, True)
            shoot(browser, "dashboard-phone.png", page, PHONE, False)
            report = pathlib.Path(home, "report.html")
            report.write_text(tutorial(where), encoding="utf-8")
            shoot(browser, "tutorial", report.as_uri(), NARROW, False, OF_TUTORIAL)
        finally:
            browser.quit()
            served.terminate()
            served.wait()


main(sys.argv[1])
