"""Screenshots of the live page and of the tutorial's report, of real runs on the embedded server: make screenshots.

Each is taken in light and in dark colours (<name>-light.png, <name>-dark.png), with two pixels for each one of the page.
Argument: the server's URI."""

import io
import json
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
from PIL import Image
from selenium import webdriver
from sklearn.datasets import load_breast_cancer, load_digits

from pg_mop_client import Selection

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PICTURES = DOCS / "pictures"
DESKTOP, MODEL, NARROW = (1400, 900, False), (1100, 1000, False), (800, 900, False)
FAMILY = (1100, 760, False)
DENSITY = 2
COLOURS = 256  # of a picture: it has no photographs
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


def search(where):
    """A job that searches over the handwritten digits of `run`: (its number, the number of its run, which goes on)."""
    space = {
        "loss": ["categorical_crossentropy"],
        "metrics": [["accuracy"]],
        "optimizer_params_list": [{"optimizer": ["Adam", "SGD"], "lr": [0.0001, 0.3, "log"]}],
        "batch_size": [8, 16, 64],
    }
    with Selection(where, progress=False) as s:
        s.calls.execute("DROP TABLE IF EXISTS shot_found, shot_found_info, shot_found_summary, shot_found_trials", {})
        call = (
            f"SELECT madlib.mop_search('shot_digits_packed', 'shot_found', 'shot_nets', "
            f"$space${space}$space$, procedure_params => 'trials=200, iterations=729, least=9', metric => 'accuracy', "
            f"validation_table => 'shot_digits_val_packed')"
        )
        job = int(s.query("SELECT madlib.mop_submit(:call) AS job", call=call).job[0])
        until = time.monotonic() + 120
        while time.monotonic() < until:
            time.sleep(1)
            found = s.query(
                "SELECT run_id FROM madlib.mop_runs WHERE status = 'running' AND model_output_table = 'shot_found' AND "
                "(SELECT count(*) FROM madlib.mop_trials t WHERE t.run_id = mop_runs.run_id AND status = 'finished') > 40"
            )
            if len(found):
                return job, int(found.run_id[0])
    raise SystemExit("the search has not begun")


def family(where):
    """A search whose trials inherit from other ones, over the handwritten digits of `run`: the number of its run."""
    space = {
        "loss": ["categorical_crossentropy"],
        "metrics": [["accuracy"]],
        "optimizer_params_list": [{"optimizer": ["Adam"], "lr": [0.0005, 0.01, "log"]}],
        "batch_size": [32],
    }
    mutators = [
        {"change": "repeat", "match": {"class": "Dense", "position": 1}, "times": [1, 2, 3]},
        {"change": "value", "match": {"class": "Dense", "position": 1}, "argument": "units", "choices": [16, 32, 64]},
        {
            "change": "insert",
            "match": {"class": "Dense", "position": 1},
            "choices": [None, {"class": "Dropout", "rate": 0.1}],
        },
    ]
    with Selection(where, seed=42, progress=False) as s:
        names = ("", "_info", "_summary", "_trials")
        s.calls.execute("DROP TABLE IF EXISTS shot_space, " + ", ".join(f"shot_family{n}" for n in names), {})
        s.query("SELECT madlib.mop_space('shot_space', 'shot_nets', ARRAY[1], :given)", given=json.dumps(mutators))
        return s.mop_search(
            "shot_digits_packed",
            "shot_family",
            None,
            space,
            "regularized-evolution",
            "population=8, tournament=3, trials=40, iterations=2, inherit=on",
            metric="accuracy",
            validation_table="shot_digits_val_packed",
            model_space="shot_space",
        ).run_id


def model(where):
    """A named model of an ordinary table: its name."""
    with Selection(where, seed=42, progress=False) as s:
        for view in ("train", "valid", "test"):
            s.calls.execute(f"DROP VIEW IF EXISTS diagnosis_{view}", {})
        s.calls.execute("DROP TABLE IF EXISTS shot_patients, diagnosis", {})
        data = load_breast_cancer(as_frame=True)
        patients = data.data.rename(columns=lambda name: name.replace(" ", "_"))
        patients = patients.assign(diagnosis=data.target.map(lambda k: str(data.target_names[k])), id=patients.index)
        s.load(patients, "shot_patients", key="id")
        return s.train("shot_patients", "diagnosis", "diagnosis", id="id", time_limit="20 s").name


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


def shoot(browser, name, address, size, parts=None, measured=False, to=None):
    """Screenshots in light and in dark: of the window, or of each of the page's `parts`, `name` and then the part's.

    `measured`: the page is that of a model, which is measured first; `to`: the id of the element to scroll to.
    """
    for scheme in ("light", "dark"):
        width, height, mobile = size
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": DENSITY, "mobile": mobile},
        )
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        prepare(browser, address, parts, measured)
        if to is not None:
            browser.execute_script("document.getElementById(arguments[0]).scrollIntoView()", to)
            time.sleep(1)  # what is not in view is not drawn
        if parts is None:
            save(browser.get_screenshot_as_png(), f"{name}-{scheme}.png")
        for part in parts or ():
            shown = browser.find_element("id", part)
            browser.execute_script("arguments[0].scrollIntoView()", shown)
            time.sleep(1)
            save(shown.screenshot_as_png, f"{name}-{part}-{scheme}.png")


def save(png, name):
    """Write a picture with as few colours as it needs: a third of the bytes."""
    whole = Image.open(io.BytesIO(png)).convert("RGB")
    whole.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURES / name, optimize=True)


def prepare(browser, address, parts, measured):
    """Open a page, and wait until it shows what a screenshot should show."""
    browser.get(address)
    until = time.monotonic() + 30
    while not browser.execute_script("return document.querySelectorAll('tbody tr').length"):
        if time.monotonic() > until:
            raise SystemExit(f"{address} shows nothing")
        time.sleep(0.1)
    time.sleep(1)  # the pictures are drawn once their widths are known
    while (
        browser.execute_script(
            "return document.querySelectorAll('td time').length * 2 > "
            "document.querySelectorAll('td svg.spark').length * 3"
        )
        and time.monotonic() < until
    ):
        time.sleep(0.5)  # the summaries of listed runs come later
    browser.execute_script("const row = document.querySelector('#board tbody tr'); row && row.click()")
    if parts is None:
        browser.execute_script("document.getElementById('early')?.click()")  # (rungs are close to each other at first)
    if measured:
        browser.find_element("css selector", "#evaluate button").click()
        while not browser.execute_script("return document.querySelectorAll('#roc-picture svg').length"):
            if time.monotonic() > until:
                raise SystemExit(f"{address} measures nothing")
            time.sleep(0.1)
        browser.execute_script("document.getElementById('evaluation-title').scrollIntoView()")
        time.sleep(1)


def main(where):
    named = model(where)
    run(where)
    of_family = family(where)
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
            page = address.split("#")[0]
            shoot(browser, "dashboard-runs", address, (1400, 420, False))
            job, going = search(where)
            shoot(browser, "dashboard", f"{page}run/{going}", DESKTOP)
            with Selection(where, progress=False) as s:
                s.mop_cancel(job)
            shoot(browser, "dashboard-family", f"{page}run/{of_family}?tab=family", FAMILY, to="family-title")
            shoot(browser, "dashboard-model", f"{page}model?name={named}", MODEL, measured=True)
            report = pathlib.Path(home, "report.html")
            report.write_text(tutorial(where), encoding="utf-8")
            shoot(browser, "tutorial", report.as_uri(), NARROW, OF_TUTORIAL)
        finally:
            browser.quit()
            served.terminate()
            served.wait()


main(sys.argv[1])
