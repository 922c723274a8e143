"""The report and the live page have the same pictures, draw with the same scripts, and leave none out."""

import pathlib
import re

from pg_mop.report import model_page, page, sections
from pg_mop_client import dashboard, report_sections
from support.cluster import ROOT

REPORT = ROOT / "plpy_modules" / "pg_mop" / "report"
PAGE = ROOT / "client" / "pg_mop_client" / "page"


def test_the_list_of_sections_names_what_draws_them_once():
    assert pathlib.Path(report_sections.__file__).resolve() == pathlib.Path(sections.__file__).resolve()
    for picture in sections.PICTURES:
        assert re.search(rf'add\("{picture.name}"|\b{picture.name}: \[', (REPORT / picture.script).read_text())
    assert {own.name for own in sections.SECTIONS} == {*page.WRITTEN, *(own.name for own in sections.PICTURES)}
    assert len(sections.SECTIONS) == len({own.name for own in sections.SECTIONS})
    keys = [key for own in sections.SECTIONS for key in (*own.shown, *own.whole)]
    assert len(keys) == len(set(keys))
    used = {*sections.DRAWING, *re.findall(r'"(\w+\.js)"', pathlib.Path(model_page.__file__).read_text())}
    assert {path.name for path in REPORT.glob("*.js")} == used


def test_the_page_has_every_picture_and_loads_every_script_that_it_serves_once_and_in_order():
    shell = dashboard.shell()
    assert re.findall(r'<div class="picture" id="(\w+)-picture">', shell) == [own.name for own in sections.PICTURES]
    loaded = re.findall(r'<script src="/static/([\w.]+)"></script>', shell)
    assert tuple(loaded[: len(sections.DRAWING)]) == sections.DRAWING
    assert sorted(loaded) == sorted(name for name, kind in dashboard.FILES.items() if kind == "text/javascript")
    links = {path.name: path.resolve() for path in PAGE.glob("*.js") if path.is_symlink()}
    assert links == {path.name: path for path in REPORT.glob("*.js")}
    assert {path.name for path in PAGE.glob("*.js")} == set(loaded)
