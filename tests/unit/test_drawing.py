"""The report and the live page draw with the same scripts, in the same order, and leave none out."""

import pathlib
import re

from pg_mop.report import model_page, page
from pg_mop_client import dashboard
from support.cluster import ROOT

REPORT = ROOT / "plpy_modules" / "pg_mop" / "report"
PAGE = ROOT / "client" / "pg_mop_client" / "page"


def test_the_page_serves_the_scripts_of_the_reports_in_their_order():
    assert tuple(name for name in dashboard.DRAWING if name != "model.js") == page.DRAWING
    assert {path.name for path in REPORT.glob("*.js")} == set(dashboard.DRAWING)
    assert set(re.findall(r'"(\w+\.js)"', pathlib.Path(model_page.__file__).read_text())) <= set(dashboard.DRAWING)


def test_the_page_loads_every_script_that_it_serves_once_and_in_order():
    loaded = re.findall(r'<script src="/static/([\w.]+)"></script>', (PAGE / "shell.html").read_text())
    assert loaded[: len(dashboard.DRAWING)] == list(dashboard.DRAWING)
    assert sorted(loaded) == sorted(name for name, kind in dashboard.FILES.items() if kind == "text/javascript")
    links = {path.name: path.resolve() for path in PAGE.glob("*.js") if path.is_symlink()}
    assert links == {name: REPORT / name for name in dashboard.DRAWING}
    assert {path.name for path in PAGE.glob("*.js")} == set(loaded)
