"""The documents name tests and functions that exist."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def test_the_tests_that_the_compatibility_table_names_exist():
    text = (ROOT / "docs" / "compatibility.md").read_text()
    rows = [line.split("|")[4].strip() for line in text.splitlines() if re.match(r"\| [TXD] \|", line)]
    assert len(rows) > 60
    for row in rows:
        module = None
        for part in row.split(", "):
            found = re.fullmatch(r"(?:(\w+/\w+)(?:::)?)?(\w+)?( \(.*\))?|-", part)
            assert found, part
            if found[1]:
                module = (ROOT / "tests" / found[1].replace("/", "/test_")).with_suffix(".py").read_text()
            if found[2]:
                assert re.search(rf"^def test_{found[2]}\(", module, re.M), part


def test_the_settings_that_the_readme_names_are_those_that_exist():
    from pg_mop import settings
    named = set(re.findall(r"^\| `pg_mop\.(\w+)`", (ROOT / "README.md").read_text(), re.M))
    assert named == set(settings.KNOWN)
