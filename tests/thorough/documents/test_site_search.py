"""The documents as a site, read from the disk: its search works without a server, and it loads nothing from elsewhere."""

import importlib.util
import re
import subprocess
import sys

import pytest

from support.browser import problems, value
from support.cluster import ROOT, eventually


def test_the_site_is_searched_from_the_disk(browser, tmp_path):
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("not run: the site needs mkdocs-material: make docs")
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", site],
        cwd=ROOT,
        check=True,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"},
    )
    front = (site / "index.html").read_text()
    assert "mop_train" in front and 'href="tutorial.html"' in front, "README.md is the first page"
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="([^"]+)"', page.read_text())
        assert not [one for one in loaded if "//" in one], page.name
    browser.get((site / "index.html").as_uri())
    browser.find_element("css selector", ".md-search__input").send_keys("mop_family")
    found = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    assert eventually(lambda: any("model-spaces.html" in link for link in value(browser, found)), 60)
    assert problems(browser) == []
